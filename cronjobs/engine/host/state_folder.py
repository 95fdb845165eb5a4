"""The user's state folder, where one tick leaves small files for the next tick.

If the user has no home, the folder is inside the temporary folder. Anyone could create the folder there first, with
links in it. So we store nothing if the folder belongs to another user, or if other users can write to it, and we
follow no link.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cronjobs.engine.host.files import make_folder
from cronjobs.engine.probe import state_files


def state_folder() -> Path:
    """Return $XDG_STATE_HOME/cronjobs, else ~/.local/state/cronjobs, else a folder inside the temporary folder."""
    return Path(state_files.folder_here())


class State:
    """The files of the state folder, by name. The methods never fail: what cannot be stored safely is not stored."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_folder()

    def read(self, name: str) -> str | None:
        """Return the content of the file, or None if the file does not exist or is not safe to read."""
        content = self.read_bytes(name)
        return None if content is None else content.decode(errors="replace")

    def read_bytes(self, name: str) -> bytes | None:
        with suppress(OSError), self._opened() as folder:
            return state_files.read_file(folder, name)
        return None

    def write(self, name: str, text: str) -> None:
        """Replace the file's content with *text*, atomically."""
        self.write_bytes(name, text.encode(errors="replace"))

    def write_bytes(self, name: str, content: bytes) -> None:
        with suppress(OSError), self._opened(make=True) as folder:
            fresh = f"{name}.{os.getpid()}"
            with suppress(FileNotFoundError):
                # A process with the same pid, which was killed, may have left this file behind.
                os.unlink(fresh, dir_fd=folder)
            try:
                state_files.put(folder, fresh, os.O_CREAT | os.O_EXCL, content)
                os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
            # The file cannot be written, for example because the disk is full.
            except OSError:
                os.unlink(fresh, dir_fd=folder)

    def append(self, name: str, text: str) -> bool:
        """Append *text* to the file. Return whether it was stored."""
        with suppress(OSError), self._opened(make=True) as folder:
            state_files.put(folder, name, os.O_CREAT | os.O_APPEND, text.encode(errors="replace"))
            return True
        return False

    def take(self, name: str) -> str | None:
        """Read and delete the file. If two processes take the same file at once, only one of them gets the content."""
        with suppress(OSError), self._opened() as folder:
            content = state_files.take(folder, name)
            return None if content is None else content.decode(errors="replace")
        return None

    @contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[int]:
        """Yield a descriptor of the folder.

        With the descriptor, files are opened in the folder that was checked, even if the folder is renamed later.
        """
        if make:
            make_folder(self.folder, 0o700)
        descriptor = state_files.open_folder(str(self.folder))
        try:
            yield descriptor
        finally:
            os.close(descriptor)
