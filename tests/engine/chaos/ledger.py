"""The judge's ledger, outside the database.

It is one file with one write per line, so its lines are in the order of events.

Handlers write what they do. The campaign writes when it kills, freezes or thaws a process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "CHAOS_LEDGER"  # where handlers find it, also those in a process of their own


@dataclass(frozen=True, slots=True)
class Line:
    """*at* is the monotonic clock, the same for all processes of the host; *job* and *attempt* are 0 for the campaign's
    own lines."""

    at: float
    what: str
    job: int
    attempt: int
    pid: int
    key: str = ""


class Pen:
    """Appends lines. A process that is forked may go on with its parent's pen."""

    def __init__(self, file: Path | str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, what: str, *, job: int = 0, attempt: int = 0, pid: int | None = None, key: str = "") -> None:
        who = os.getpid() if pid is None else pid
        os.write(self._file, f"{time.monotonic():.6f} {what} {job} {attempt} {who} {key}\n".encode())


class Reader:
    """Follows the file: each call yields the lines that are new."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._rest = b""

    def news(self) -> Iterator[Line]:
        while part := os.read(self._file, 1 << 16):
            *whole, self._rest = (self._rest + part).split(b"\n")
            yield from map(parse, whole)

    def close(self) -> None:
        os.close(self._file)


def parse(line: bytes) -> Line:
    at, what, job, attempt, pid, key = line.decode().split(" ")
    return Line(float(at), what, int(job), int(attempt), int(pid), key)
