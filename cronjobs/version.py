"""The version, where everything can import it; the wheel and the sdist take theirs from here."""

__version__ = "0.2.0"
