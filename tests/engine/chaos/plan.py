"""The plan of a campaign, drawn from its seed before it begins: the jobs, and the attacks on their runners."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

End = Literal["succeeded", "dead"]
Action = Literal["kill", "freeze", "restart", "cut", "promote"]


@dataclass(frozen=True)
class Size:
    """How much of each: jobs, kill -9, freezes past the lease; of the server: restarts, cut connections, promotions."""

    jobs: int
    kills: int
    freezes: int
    restarts: int = 0
    cuts: int = 0
    promotions: int = 0

    def of(self, action: Action) -> int:
        sizes: dict[Action, int] = {"kill": self.kills, "freeze": self.freezes, "restart": self.restarts}
        return (sizes | {"cut": self.cuts, "promote": self.promotions})[action]


@dataclass(frozen=True)
class PlannedJob:
    """``ends``: the statuses that its kind allows; anything else is a lost job."""

    number: int
    job_type: str
    payload: dict[str, Any]
    ends: tuple[End, ...] = ("succeeded",)

    @property
    def priority(self) -> int:
        """All of them, so that what was lost does not always stand behind what came in the meantime."""
        return self.number % 10

    @property
    def key(self) -> str:
        return f"chaos-{self.number}"


@dataclass(frozen=True)
class Deed:
    """One thing done to the runners, *delay_s* after its turn has come.

    *inside*: while an external effect is done and not yet recorded. *spares*: to none that holds a job which was lost
    before, so that few run in an interpreter of their own, which costs half a second. *harsh*: a restart is a crash.
    *leases*: how many of them a freeze lasts at least.
    """

    action: Action
    delay_s: float
    inside: bool = False
    spares: bool = False
    harsh: bool = False
    leases: float = 0.0


@dataclass(frozen=True)
class Plan:
    seed: int
    size: Size
    jobs: list[PlannedJob]
    deeds: dict[Action, list[Deed]] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """The schedule in figures; with the seed it can be drawn again."""
        kinds = [job.job_type for job in self.jobs]
        return {
            "jobs": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
            "kills": {"anywhere": sum(not d.inside for d in self.deeds["kill"])}
            | {"in mid-effect": sum(d.inside for d in self.deeds["kill"])},
            "freezes": len(self.deeds["freeze"]),
            "restarts": {"fast": sum(not d.harsh for d in self.deeds["restart"])}
            | {"crash": sum(d.harsh for d in self.deeds["restart"])},
            "cuts": len(self.deeds["cut"]),
            "promotions": len(self.deeds["promote"]),
        }


def draw(seed: int, size: Size) -> Plan:
    """The campaign of *seed*: the same each time."""
    dice = random.Random(seed)
    names = list(KINDS)
    weights = [KINDS[name][0] for name in names]
    jobs = [
        KINDS[name][1](dice, number, name)
        for number, name in enumerate(dice.choices(names, weights=weights, k=size.jobs))
    ]
    actions: tuple[Action, ...] = ("kill", "freeze", "restart", "cut", "promote")
    deeds = {action: [_deed(dice, action, number) for number in range(size.of(action))] for action in actions}
    return Plan(seed, size, jobs, deeds)


def _deed(dice: random.Random, action: Action, number: int) -> Deed:
    return Deed(
        action,
        delay_s=dice.uniform(0, 0.06),
        inside=dice.random() < 0.5,
        spares=dice.random() < 0.95,
        harsh=number % 2 == 1,
        leases=dice.uniform(1.2, 1.6),
    )


# --- kinds of jobs ----------------------------------------------------------------------------------------------------


def _spans(dice: random.Random) -> dict[str, Any]:
    """Most are short; one in eight takes its time."""
    long = 100 if dice.random() < 0.125 else 0
    return {"before_ms": int(dice.uniform(0, 30)), "after_ms": int(dice.uniform(long, 30 + 3 * long))}


def _plain(dice: random.Random, number: int, name: str) -> PlannedJob:
    return PlannedJob(number, name, _spans(dice))


def _failing(dice: random.Random, number: int, name: str) -> PlannedJob:
    return PlannedJob(number, name, _spans(dice) | {"failures": 1})


def _hopeless(dice: random.Random, number: int, name: str) -> PlannedJob:
    return PlannedJob(number, name, _spans(dice), ends=("dead",))


def _stop(dice: random.Random, number: int, name: str) -> PlannedJob:
    return PlannedJob(number, name, _spans(dice), ends=("succeeded", "dead"))


# How many of all jobs are of a kind, and how one is made.
KINDS: dict[str, tuple[float, Callable[[random.Random, int, str], PlannedJob]]] = {
    "chaos.unkeyed": (20, _plain),
    "chaos.booked": (10, _plain),
    "chaos.failing": (5, _failing),
    "chaos.hopeless": (5, _hopeless),
    "chaos.again": (25, _plain),
    "chaos.skip": (10, _plain),
    "chaos.stop": (10, _stop),
    "chaos.refused": (5, _failing),
    "chaos.steps": (10, _plain),
}
