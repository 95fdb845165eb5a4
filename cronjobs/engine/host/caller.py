"""Find out who runs this process, for the audit trail: the user and the program, as this host knows them."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from cronjobs.text import clean, one_line


def os_user() -> str:
    """Return the name of the user, or else the uid.

    The name may come from environment variables, so it can contain anything.
    """
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return f"uid {os.getuid()}"


@cache
def caller() -> str:
    """Return user and program, such as "ada/manage.py".

    The result is used on SQLite, which has no users. On PostgreSQL, the column's default has a similar form.
    """
    return one_line(clean(f"{os_user()}/{_program()}"), 200)


def _program() -> str:
    called = Path(sys.argv[0] if getattr(sys, "argv", None) else "")
    # ``python -m shop`` runs shop/__main__.py, so take the name of the folder.
    if called.name == "__main__.py":
        called = called.parent
    return called.name if called.name not in ("", "-c", "-m") else "python"
