"""Remember which databases existed, so that no empty file replaces a SQLite file whose disk is not mounted.

The notes are kept in the user's state folder, one for each database file and project folder. So a project in a new
folder, for example after a reinstallation, can start without any preparation, even if its database has the old path.
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from cronjobs.engine.host.state_folder import State
from cronjobs.errors import DatabaseVanished

if TYPE_CHECKING:
    from cronjobs.engine.database.address import Address


def require_still_there(folder: Path, address: Address) -> None:
    """Raise DatabaseVanished if a SQLite file that had our tables is now missing or empty."""
    if not address.is_sqlite:
        return
    with suppress(OSError):
        if Path(str(address.url.database)).stat().st_size:
            return
    if State().read(_note(folder, address)):
        raise DatabaseVanished(str(address))


def remember(folder: Path, address: Address) -> None:
    """Record that the file has our tables. This never fails. If the note cannot be stored, nothing is remembered."""
    if address.is_sqlite and not State().read(_note(folder, address)):
        State().write(_note(folder, address), f"{address.url.database}\n")


def forget(folder: Path, address: Address) -> None:
    """Delete the note, because the file is about to be created again."""
    if address.is_sqlite:
        State().take(_note(folder, address))


def _note(folder: Path, address: Address) -> str:
    inode = 0
    with suppress(OSError):
        inode = folder.stat().st_ino
    about = os.fsencode(f"{inode} {address.url.database}")
    return f"database-{sha256(about).hexdigest()[:16]}"
