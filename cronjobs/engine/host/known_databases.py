"""Remember which databases existed, so that no empty new file replaces a SQLite file whose disk is not mounted.

The user's state folder contains one note for each pair of database file and project folder. So a project in a new
folder, for example after a reinstallation, can start with a new database at the old path without any preparation.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cronjobs.engine.host.state_folder import State
from cronjobs.errors import DatabaseVanished

if TYPE_CHECKING:
    from cronjobs.engine.database.address import Address

_OUR_TABLE: Final = "cronjobs_meta"


def require_still_there(folder: Path, address: Address) -> None:
    """Raise DatabaseVanished if a SQLite file that had our tables is now missing or empty, or has lost the tables.

    The file has lost our tables if, for example, an app has created the file again, with the app's own tables.
    """
    if not address.is_sqlite:
        return
    file, size = Path(str(address.url.database)), 0
    with suppress(OSError):
        size = file.stat().st_size
    if State().read(_note(folder, address)) and not (size and _may_have_tables(file)):
        raise DatabaseVanished(str(address), has_file=size > 0)


def _may_have_tables(file: Path) -> bool:
    """Return False if the file can be read and has none of our tables. Opening the database finds all other faults."""
    # "rw" does not create the file. With "ro", SQLite could not read a file in WAL mode that nobody has open.
    uri = f"{file.absolute().as_uri()}?mode=rw"
    # Do not wait for a lock: whoever holds it uses the file, and our own connection waits for it later.
    with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True, timeout=0)) as found:
        return found.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (_OUR_TABLE,)).fetchone() is not None
    return True


def remember(folder: Path, address: Address) -> None:
    """Record that the database file has our tables. Never fails. If the note cannot be stored, there is none."""
    if address.is_sqlite and not State().read(_note(folder, address)):
        State().write(_note(folder, address), f"{address.url.database}\n")


def forget(folder: Path, address: Address) -> None:
    """Delete the note about a database file, because the file is about to be created again."""
    if address.is_sqlite:
        State().take(_note(folder, address))


def _note(folder: Path, address: Address) -> str:
    inode = 0
    with suppress(OSError):
        inode = folder.stat().st_ino
    about = os.fsencode(f"{inode} {address.url.database}")
    return f"database-{sha256(about).hexdigest()[:16]}"
