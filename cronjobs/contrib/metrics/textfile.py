"""Write metrics to a file for node_exporter, atomically, with a mode that lets node_exporter's user read the file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from cronjobs.engine.host.files import require_replaceable
from cronjobs.errors import CronjobsError

MODE: Final = 0o644


class TextfileNotWritten(CronjobsError):
    """The textfile could not be written. The old textfile is unchanged."""


def write(path: Path, lines: Iterable[str]) -> None:
    """Replace *path* with a file of *lines*. A symlink is replaced, not followed. Raises TextfileNotWritten."""
    # node_exporter ignores this file, because its name does not end in .prom. Each process has its own.
    beside = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        require_replaceable(path)
        try:
            with suppress(FileNotFoundError):
                beside.unlink()  # a killed process with the same pid may have left this file
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(beside, flags, MODE), "w", encoding="utf-8", errors="backslashreplace") as file:
                os.fchmod(file.fileno(), MODE)  # set the mode whatever cron's umask is
                file.writelines(f"{line}\n" for line in lines)
            beside.replace(path)
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise
    except OSError as error:
        # Leave out the temporary file's name: it contains the pid, and a repeated error should have the same text.
        raise TextfileNotWritten(f"metrics cannot be written to {path}: {error.strerror or error}") from None
