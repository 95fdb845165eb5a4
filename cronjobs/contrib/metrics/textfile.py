"""Metrics as a file for node_exporter: whole or not at all, and readable by its user."""

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
    """The file stays as it was."""


def write(path: Path, lines: Iterable[str]) -> None:
    """Replace *path* by a file of these lines; a link there is replaced, not followed. Raises TextfileNotWritten."""
    # Not *.prom: node_exporter must not read it. Each process has its own.
    beside = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        require_replaceable(path)
        try:
            with suppress(FileNotFoundError):
                beside.unlink()  # of a process of this number that was killed
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(beside, flags, MODE), "w", encoding="utf-8", errors="backslashreplace") as file:
                os.fchmod(file.fileno(), MODE)  # whatever cron's umask is
                file.writelines(f"{line}\n" for line in lines)
            beside.replace(path)
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise
    except OSError as error:
        # Without the name of the file beside it, which has a number: it is the same mistake each time.
        raise TextfileNotWritten(f"metrics cannot be written to {path}: {error.strerror or error}") from None
