"""The user and the program that act, as this host knows them, for the audit trail."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from cronjobs.text import clean, one_line


def os_user() -> str:
    """The user's name, or the number of one without a name. It may come from variables, which can hold anything."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return f"uid {os.getuid()}"


def user_in_a_line() -> str:
    return one_line(clean(os_user()), 200)


@cache
def caller() -> str:
    """User and program, as "ada/manage.py", for a database without users; in the form of PostgreSQL's default."""
    return one_line(clean(f"{os_user()}/{_program()}"), 200)


def _program() -> str:
    called = Path(sys.argv[0] if getattr(sys, "argv", None) else "")
    if called.name == "__main__.py":  # started as python -m shop
        called = called.parent
    return called.name if called.name not in ("", "-c", "-m") else "python"
