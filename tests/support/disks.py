"""Full disks, read-only files and corrupted files, for real processes. They work for root, too."""

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
LARGEST_FILE = 1024  # in bytes: less than a page of SQLite, but more than any other file of a test


class Disk(Protocol):
    """The disk of a database.

    ``fill()`` affects ticks that are started with ``changes``, and the running *tick*. ``said`` is how messages name
    the cause.
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
    """A limit on file sizes, like a quota: at a kilobyte, a write fails with EFBIG (``ulimit -f``)."""

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
    """Call this before exec. Root without capabilities has to obey the modes of files like anyone else."""
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
    """Corrupt all pages except the first, which lists the tables."""
    _overwrite(file, 4096, file.stat().st_size - 4096)


def _overwrite(file: Path, offset: int, length: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(b"\xde\xad" * (length // 2))
