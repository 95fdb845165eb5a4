"""The user's state folder: small files that a tick leaves for the next one; only in a folder that is ours alone.

Without a home the folder is below the temporary one, where anyone can create it first, with links to our files in it.
So it must be ours, writable by no one else, and no link is followed; otherwise no state is kept.
"""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from cronjobs.host.files import make_folder

LONGEST: Final = 1 << 20  # of a file; a longer one is not ours
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def state_folder() -> Path:
    """$XDG_STATE_HOME/cronjobs, or ~/.local/state/cronjobs by the password file: cron may set no HOME."""
    named = os.environ.get("XDG_STATE_HOME")
    if named and Path(named).is_absolute():
        return Path(named) / "cronjobs"
    home = os.environ.get("HOME") or ""
    if not home:
        with suppress(KeyError):
            home = pwd.getpwuid(os.getuid()).pw_dir
    if home and os.access(home, os.W_OK):
        return Path(home) / ".local/state/cronjobs"
    return Path(tempfile.gettempdir()) / f"cronjobs-{os.getuid()}"


class State:
    """Files of one folder, by name. Never fails: what cannot be kept safely is not kept."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_folder()

    def read(self, name: str) -> str | None:
        """The file's content; None if it does not exist, or is not safe to read."""
        with suppress(OSError, UnicodeError), self._opened() as folder:
            return _read(folder, name)
        return None

    def write(self, name: str, text: str) -> None:
        """Replace the file's content with *text*, atomically."""
        with suppress(OSError), self._opened(make=True) as folder:
            fresh = f"{name}.{os.getpid()}"
            with suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=folder)  # left by an earlier process that was killed
            _put(folder, fresh, os.O_CREAT | os.O_EXCL, text)
            os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)

    def append(self, name: str, text: str) -> None:
        with suppress(OSError), self._opened(make=True) as folder:
            _put(folder, name, os.O_CREAT | os.O_APPEND, text)

    def take(self, name: str) -> str | None:
        """Read and remove the file; of two processes that do so together, one gets the content."""
        with suppress(OSError, UnicodeError), self._opened() as folder:
            taken = f"{name}.{os.getpid()}"
            os.rename(name, taken, src_dir_fd=folder, dst_dir_fd=folder)
            try:
                return _read(folder, taken)
            finally:
                os.unlink(taken, dir_fd=folder)
        return None

    @contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[int]:
        """The folder's descriptor: files are opened in the folder that was checked, even if it is renamed."""
        if make:
            make_folder(self.folder, 0o700)
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_MAY_WRITE:
                raise PermissionError(f"{self.folder} is not ours alone")
            yield descriptor
        finally:
            os.close(descriptor)


def _read(folder: int, name: str) -> str | None:
    # NONBLOCK: otherwise open() would wait on a FIFO.
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        content = file.read(LONGEST + 1)
    return content.decode(errors="replace") if len(content) <= LONGEST else None


def _put(folder: int, name: str, flags: int, text: str) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text.encode(errors="replace"))
