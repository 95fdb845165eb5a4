"""Decide how many jobs a capped queue may hold, and which jobs it admits if not all of them fit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from cronjobs.errors import QueueFull

OnFull = Literal["error", "drop", "wait"]
P = TypeVar("P")


@dataclass(frozen=True)
class Cap:
    """The cap of a queue: ``max_waiting`` jobs may wait, and ``on_full`` decides what happens to one more."""

    queue: str
    max_waiting: int
    on_full: OnFull = "error"

    def __str__(self) -> str:
        return f"{self.queue}: max_waiting {self.max_waiting:,}, on_full {self.on_full}"


def admit(
    asking: Iterable[tuple[P, str]], caps: Mapping[str, Cap], waiting: Mapping[str, int]
) -> tuple[list[P], list[P]]:
    """Decide which of the jobs *asking* in one call are admitted and which are dropped.

    *waiting* contains, for each queue, the number of jobs that already wait there.

    A queue without a cap admits all jobs. A queue that drops jobs admits the first jobs that fit. For any other
    queue, raises QueueFull unless it can admit all of the call's jobs. After QueueFull, the caller must write no job of
    the call, for any queue.
    """
    room = {name: max(0, cap.max_waiting - waiting.get(name, 0)) for name, cap in caps.items()}
    let_in: list[P] = []
    dropped: list[P] = []
    wanted = dict.fromkeys(caps, 0)
    for one, queue in asking:
        if queue in caps:
            wanted[queue] += 1
        if queue in caps and wanted[queue] > room[queue]:
            dropped.append(one)
        else:
            let_in.append(one)
    for name, cap in caps.items():
        if cap.on_full != "drop" and wanted[name] > room[name]:
            raise QueueFull(name, cap.max_waiting, cap.on_full, wanted=wanted[name], room=room[name])
    return let_in, dropped
