"""Open and read files that users or other programs name, without ever waiting. Create folders with safe modes."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from cronjobs.engine.host.caller import os_user

LONGEST_TEXT: Final = 1 << 20


def open_regular(file: Path, flags: int) -> int:
    """Open *file* and return its descriptor, without waiting. Raises OSError, also if it is not a regular file."""
    try:
        descriptor = os.open(file, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        # *file* is a socket, or a FIFO that has no reader.
        if error.errno == errno.ENXIO:
            raise OSError(errno.EINVAL, "this is not a regular file") from None
        raise
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        raise OSError(errno.EINVAL, "this is not a regular file")
    os.set_blocking(descriptor, True)
    return descriptor


def read_text(file: Path) -> str:
    """Return the file's first MiB as text, or "" if the file cannot be read."""
    try:
        with os.fdopen(open_regular(file, os.O_RDONLY), "rb") as opened:
            return opened.read(LONGEST_TEXT).decode(errors="replace")
    except OSError:
        return ""


def require_replaceable(file: Path) -> None:
    """Raise OSError if *file* is a device, pipe or socket, or links to one. Otherwise root could replace /dev/null."""
    try:
        kind = file.stat().st_mode
    # The file does not exist, or the later attempt to write it will fail with the same error.
    except OSError:
        return
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        raise OSError(errno.EINVAL, "this is not a regular file")


def why_unwritable(file: Path, *, beside: bool = False) -> str | None:
    """Return why *file* cannot be written, or None. With *beside*, SQLite must also create files next to it."""
    # Unlike the methods of Path, these functions raise no error if this user may not look into a folder.
    is_there = os.path.exists(file)  # noqa: PTH110
    if not os.path.isdir(file.parent):  # noqa: PTH112
        return f"there is no folder {file.parent}"
    if os.path.islink(file) and not beside:  # noqa: PTH114
        return f"{file} is a symbolic link, which cronjobs does not follow: name the file itself"
    if is_there and not os.path.isfile(file):  # noqa: PTH113
        return f"{file} is not a file"
    if is_there and not os.access(file, os.W_OK):
        return f"{file} is not writable by user {os_user()}"
    if (beside or not is_there) and not os.access(file.parent, os.W_OK | os.X_OK):
        return f"user {os_user()} cannot create files in {file.parent}"
    return f"the disk of {file.parent} is full" if is_full(file.parent) else None


def is_full(folder: Path) -> bool:
    """Return whether the file system of *folder* has no block left for this user."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    left = found.f_bfree if os.geteuid() == 0 else found.f_bavail  # the last blocks are reserved for root
    return left == 0 and found.f_blocks > 0


def names_in(folder: Path) -> list[str]:
    """Return the sorted names in *folder*, or an empty list if the folder cannot be listed."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 only the names are needed
    except OSError:
        return []


def make_folder(folder: Path, mode: int = 0o755) -> None:
    """Create *folder* and its missing parents, writable only by the owner, even if cron's umask is 000."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=mode, exist_ok=True)
