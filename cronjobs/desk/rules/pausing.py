"""Find the pauses that stop a queue or schedule, and name a pause's scope. The rules are pure functions.

``schedules.planning`` decides whether a pause is in force.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Scoped(Protocol):
    """What a pause stops. ``scope`` is "all", "queue" or "schedule". ``name`` names the queue or schedule, or is ""."""

    @property
    def scope(self) -> str: ...
    @property
    def name(self) -> str: ...


P = TypeVar("P", bound=Scoped)


def of_queue(pauses: Iterable[P], queue: str) -> list[P]:
    """Return the *pauses* that hold back jobs of *queue*, a pause of everything first."""
    return sorted((pause for pause in pauses if _is_for(pause, "queue", queue)), key=lambda pause: pause.scope)


def of_schedule(pauses: Iterable[P], schedule: str) -> list[P]:
    """Return the *pauses* that stop *schedule* from firing."""
    return [pause for pause in pauses if _is_for(pause, "schedule", schedule)]


def _is_for(pause: Scoped, scope: str, name: str) -> bool:
    return pause.scope == "all" or (pause.scope, pause.name) == (scope, name)


def what(scope: str, name: str) -> str:
    """Return "everything", "queue mail" or "schedule nightly", for example."""
    return "everything" if scope == "all" else f"{scope} {name}"
