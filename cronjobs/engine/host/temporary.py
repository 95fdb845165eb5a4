"""Find the folder where SQLite writes temporary files."""

from __future__ import annotations

import os
from pathlib import Path


def sqlite_temporary_folder() -> Path:
    """Return the first folder in SQLite's search order that this user may write to, whether or not its disk is full.

    The order is described at https://www.sqlite.org/tempfiles.html, "Temporary File Storage Locations".
    """
    named = (os.environ.get(name) for name in ("SQLITE_TMPDIR", "TMPDIR"))
    for folder in (*named, "/var/tmp", "/usr/tmp", "/tmp"):
        if folder and Path(folder).is_dir() and os.access(folder, os.W_OK | os.X_OK):
            return Path(folder)
    return Path()
