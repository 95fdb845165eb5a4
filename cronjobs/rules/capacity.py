"""Back-pressure: what a capped queue may hold, and which jobs it admits when there is not room for all. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

OnFull = Literal["error", "drop", "wait"]
P = TypeVar("P")


@dataclass(frozen=True)
class Cap:
    """At most ``max_waiting`` jobs wait in ``queue``; ``on_full`` decides about one more."""

    queue: str
    max_waiting: int
    on_full: OnFull

    def __str__(self) -> str:
        return f"{self.queue}: max_waiting {self.max_waiting:,}, on_full {self.on_full}"


@dataclass(frozen=True)
class Refusal:
    """A whole call is refused: ``cap`` leaves room for ``room`` jobs, and the call has ``wanted``."""

    cap: Cap
    wanted: int
    room: int


@dataclass(frozen=True)
class CapDecision(Generic[P]):
    """``let_in`` and ``dropped`` jobs, in the order of the call. With a ``refusal`` none is let in."""

    let_in: tuple[P, ...] = ()
    dropped: tuple[P, ...] = ()
    refusal: Refusal | None = None


def admit(asking: Iterable[tuple[P, str]], caps: Mapping[str, Cap], waiting: Mapping[str, int]) -> CapDecision[P]:
    """Decide about a call that enqueues the jobs *asking*; *waiting*: how many jobs wait in each capped queue.

    A queue without a cap takes all. One that drops takes the first that fit. Any other takes all of the call or none of
    it, and in that case nothing of the call is written, for any queue.
    """
    room = {name: max(0, cap.max_waiting - waiting.get(name, 0)) for name, cap in caps.items()}
    let_in, dropped, wanted = [], [], dict.fromkeys(caps, 0)
    for one, queue in asking:
        if queue in caps:
            wanted[queue] += 1
        if queue in caps and wanted[queue] > room[queue]:
            dropped.append(one)
        else:
            let_in.append(one)
    for name, cap in caps.items():
        if cap.on_full != "drop" and wanted[name] > room[name]:
            return CapDecision(refusal=Refusal(cap, wanted[name], room[name]))
    return CapDecision(tuple(let_in), tuple(dropped))
