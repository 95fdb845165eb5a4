"""The version. Every module can import it, and the wheel and the sdist read it from here."""

__version__ = "0.2.0"
