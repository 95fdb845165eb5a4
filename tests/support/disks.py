"""Disks that fill up, files that may not be written to, files that are spoiled: for real processes, also as root."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import pytest

from support.ticking import Tick

PR_CAPBSET_DROP = 24
LARGEST_FILE = 1024  # bytes: less than a page of SQLite's, more than a test's other files


class Disk(Protocol):
    """Where a database is. ``fill()`` holds for ticks that are started with ``changes``, and for *tick*, which runs.

    ``said``: how the cause is named.
    """

    folder: Path
    changes: dict[str, Any]
    said: str

    def fill(self, tick: Tick | None = None) -> None: ...

    def free(self, tick: Tick | None = None) -> None: ...


class SmallDisk:
    """A file system of 2 MiB."""

    said = "has no room left"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes: dict[str, Any] = {}
        self._ballast = folder / "ballast"

    def fill(self, tick: Tick | None = None) -> None:
        with self._ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 4096)

    def free(self, tick: Tick | None = None) -> None:
        self._ballast.unlink()


class FileLimit:
    """``ulimit -f``, as a quota would do: files end at a kilobyte, and the system says EFBIG."""

    said = "check the disk, its quota and the file size limit"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes: dict[str, Any] = {}

    def fill(self, tick: Tick | None = None) -> None:
        limit = (LARGEST_FILE, resource.RLIM_INFINITY)
        if tick is not None:
            resource.prlimit(tick.pid, resource.RLIMIT_FSIZE, limit)
        else:
            self.changes["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit)

    def free(self, tick: Tick | None = None) -> None:
        self.changes.clear()
        if tick is not None:
            resource.prlimit(tick.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"only root can mount a small disk; the same is tested with a limit on files: {mounted.stderr}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def obey_modes() -> None:
    """Before exec: root without capabilities is held to the modes of files like anyone else."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        for capability in range(64):
            libc.prctl(PR_CAPBSET_DROP, capability)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    before = path.stat().st_mode
    path.chmod(before & ~0o222)
    try:
        yield
    finally:
        path.chmod(before)


def spoil_header(file: Path) -> None:
    _overwrite(file, 0, 100)


def spoil_pages(file: Path) -> None:
    """All of them but the first, which says what tables there are."""
    _overwrite(file, 4096, file.stat().st_size - 4096)


def _overwrite(file: Path, offset: int, length: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(b"\xde\xad" * (length // 2))
