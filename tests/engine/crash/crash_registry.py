"""The class of flows, and the list of them.

To add a flow, write ``seed``, which makes its start, and ``run``, which is the flow. Both run in a separate process
that has imported everything. ``check`` yields faults that the judge does not look for in every flow. ``again`` says
that the user repeats the flow after a crash. Import a new file of flows in ``crash_flows``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from engine.crash.crash_judge import Case, Leave
from engine.crash.crash_world import DESK, World

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def nothing(world: World) -> None:
    world.configure()


def fine(case: Case) -> Iterator[str]:
    yield from ()


@dataclass(frozen=True)
class Flow:
    """``floor``: fewer points than that, and the flow does not do what it is meant to do any more."""

    name: str
    run: Callable[[World], None]
    floor: int
    seed: Callable[[World], None] = nothing
    before: Callable[[World], None] | None = None  # in the process of the flow, before anything counts
    check: Callable[[Case], Iterator[str]] = fine
    again: bool = False
    rest: Callable[[World], None] = World.rest
    apart: bool = False  # starts programs
    empty: bool = False  # starts without tables
    leave: Leave = field(default_factory=Leave)
    everywhere: bool = False  # twice as many points in the short form as of other flows


FLOWS: dict[str, Flow] = {}


def flow(
    name: str, *, desk: bool = False, **options: Any
) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """A flow; *desk*: its step is a command of an operator's, so there is none in an engine that stands alone."""

    def register(run: Callable[[World], None]) -> Callable[[World], None]:
        if DESK is not None or not desk:
            FLOWS[name] = Flow(name, run, **options)
        return run

    return register


def audited_once(case: Case, action: str) -> Iterator[str]:
    if len(case.rest.audited(action)) != 1:
        yield f"{len(case.rest.audited(action))} audit rows say {action}"
