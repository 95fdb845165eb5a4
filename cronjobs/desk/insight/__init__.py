"""Judge and explain the system's state, for ``check``, ``health`` and ``explain``."""
