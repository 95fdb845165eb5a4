"""The restrictions of a tick, and its result, from which its row, its summary and its exit code are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import islice, starmap
from typing import TYPE_CHECKING, Any, Final

from cronjobs import masking
from cronjobs.engine.probe.idle_conditions import NOTHING_DUE as NOTHING_DUE
from cronjobs.errors import EX_SOFTWARE
from cronjobs.model import Interrupted, Released, Status, TimedOut
from cronjobs.text import one_line

if TYPE_CHECKING:
    from cronjobs.engine.rules.ending import Decided

NOTHING_ELSE_DUE: Final = "nothing else is due"
NOT_LOADED: Final = "not loaded"


@dataclass(frozen=True)
class TickFilter:
    """The restrictions that the caller of run-due puts on a tick. None means no restriction."""

    queue: str | None = None
    only: str | None = None  # a job type
    jobs: int | None = None  # the most jobs that the tick may claim
    # The supervisor of this executor takes only jobs of the executor's types. If this is None, the loop takes only
    # types without an executor.
    executor: str | None = None

    def options(self) -> dict[str, Any]:
        """Return the restrictions that were given, by the names of the options."""
        given = {"queue": self.queue, "only": self.only, "limit": self.jobs}
        return {name: value for name, value in given.items() if value is not None}


@dataclass
class Counts:
    """The number of jobs that a tick claimed, and how they ended."""

    claimed: int = 0
    succeeded: int = 0
    failed: int = 0  # will be retried
    dead: int = 0
    cancelled: int = 0
    interrupted: int = 0
    snoozed: int = 0
    # These attempts also count as ``failed`` or ``dead``, unless their code is still running.
    timed_out: int = 0
    # Long jobs that the tick handed to their own processes, which record how the jobs end.
    handed_over: int = 0
    released: int = 0
    lost: int = 0
    lease_lost: int = 0

    def count(self, decided: Decided, recorded: str | None = None) -> None:
        """Count an attempt's final end.

        If the attempt was already counted as timed out or interrupted while its code was still running, *recorded* is
        that earlier outcome, and this count replaces it. Otherwise *recorded* is None.
        """
        if recorded == "timed_out":
            self.timed_out -= 1
        elif recorded == "interrupted":
            self.interrupted -= 1
        if decided.transition.status is Status.SUCCEEDED:
            self.succeeded += 1
            return
        outcome = decided.finished.outcome
        if isinstance(outcome, Released):
            self.released += 1
            return
        if isinstance(outcome, TimedOut):
            self.timed_out += 1
        match decided.transition.status:
            case Status.QUEUED if isinstance(outcome, Interrupted):
                self.interrupted += 1
            case Status.QUEUED:
                self.snoozed += 1
            case status:
                name = str(status)
                setattr(self, name, getattr(self, name) + 1)


# A tick's row stores only these exit codes. All other exit codes follow from other facts in the row.
TOLD_CODES: Final = (3, 4, EX_SOFTWARE)


@dataclass
class Result:
    """The result of a tick. If ``stuck`` is True, a thread is still running, so the process must exit at once."""

    ended: str = ""
    counts: Counts = field(default_factory=Counts)
    occurrences: dict[str, int] = field(default_factory=dict)
    recovered: int = 0
    pruned: int = 0
    # Types of jobs that the tick expected to end in time, but had to interrupt.
    overran: set[str] = field(default_factory=set)
    # The due jobs that the tick did not start, as entries of not_started.py.
    not_started: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)  # how the caller restricted the tick
    # The bad entries in the tick's file, and what is wrong with each.
    broken: dict[str, str] = field(default_factory=dict)
    # The modules and job types that could not be loaded, and why.
    not_loaded: dict[str, str] = field(default_factory=dict)
    # The types of long jobs whose process did not start, and why.
    without_process: dict[str, str] = field(default_factory=dict)
    kept_from_starting: list[dict[str, Any]] = field(default_factory=list)  # why earlier ticks did not start
    # The times in which the tick could not use the database, in the form that ``noted_outages`` returns.
    outages: list[dict[str, str]] = field(default_factory=list)
    # How far this host's clock is ahead of the database's, or 0 if the difference is acceptable.
    skew_s: float = 0
    faults: int = 0  # the number of faults in the user's code and configuration
    refused: str | None = None  # why the file was not applied
    trouble: str | None = None  # a database error
    fault: Exception | None = None  # a bug in cronjobs
    stuck: bool = False
    signal: int | None = None

    def left(self) -> list[dict[str, Any]]:
        """Return, for the tick's row, the due jobs that it did not start, and the code that it could not load."""
        return [*self.not_started, *({"why": NOT_LOADED, "where": where} for where in noted(self.not_loaded))]

    def did(self) -> dict[str, Any]:
        """Return the figures that are not zero, for the tick's row."""
        counts = {name: count for name, count in asdict(self.counts).items() if count}
        more: dict[str, Any] = {"recovered": self.recovered, "pruned": self.pruned, "occurrences": self.occurrences}
        more |= {"refused": self.refused, "overran": sorted(self.overran)}
        code = self.exit_code("never")
        more |= {"code": code if code in TOLD_CODES else 0, "skew_s": self.skew_s}
        more |= {
            "kept_from_starting": self.kept_from_starting,
            "options": self.options,
            "broken": noted(self.broken),
            "not_loaded": noted(self.not_loaded),
            "without_process": noted(self.without_process),
            "outages": self.outages,
        }
        return counts | {name: value for name, value in more.items() if value}

    def exit_code(self, fail_on: str = "dead") -> int:
        """Return 0 (all well), 1 (job dead), 3 (configuration), 4 (database), 70 (bug in cronjobs) or 128 + signal."""
        if self.trouble is not None:
            return 4
        if self.fault is not None:
            return EX_SOFTWARE
        if self.signal is not None:
            return 128 + self.signal
        if self.faults:
            return 3
        failed = self.counts.dead + (self.counts.failed + self.counts.timed_out if fail_on == "any" else 0)
        return 1 if failed and fail_on != "never" else 0


# The figures of ``Result.did`` in words for people.
WORDS: Final = {
    "succeeded": "succeeded",
    "failed": "will retry",
    "dead": "dead",
    "cancelled": "cancelled",
    "lost": "lost",
    "interrupted": "interrupted",
    "snoozed": "snoozed",
    "timed_out": "timed out",
    "handed_over": "handed over",
    "released": "released",
    "recovered": "recovered",
}


def did_in_words(did: Mapping[str, Any]) -> str:
    """Return "3 succeeded, 1 dead", for example, or "" for nothing. Plain SQL may have written anything into *did*."""
    counts = {name: did.get(name) for name in WORDS}
    return ", ".join(f"{count} {WORDS[name]}" for name, count in counts.items() if isinstance(count, int) and count)


# Each tick records at most this many faults, because a broken file may stay broken for weeks.
MOST_NOTED: Final = 5
LONGEST_WHY: Final = 400  # in characters: room for an error with the database's URL and with advice


def noted(faults: dict[str, str]) -> dict[str, str]:
    """Return the first few *faults*, shortened for the tick's row."""
    return dict(starmap(as_noted, list(faults.items())[:MOST_NOTED]))


def as_noted(where: str, what: str) -> tuple[str, str]:
    """Return a fault, shortened for the tick's row."""
    return one_line(where, 120), one_line(what, LONGEST_WHY)


def noted_causes(causes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return why earlier ticks did not start (``Alarm.kept_from_starting``), shortened for the tick's row."""
    return [
        {"ticks": cause["ticks"], "since": cause["since"], "why": one_line(masking.hide(cause["why"]), LONGEST_WHY)}
        for cause in causes[:MOST_NOTED]
    ]


def noted_outages(outages: Iterable[tuple[datetime, datetime, str]]) -> list[dict[str, str]]:
    """Return the first few periods (from, to, why) in which a tick could not use the database, for the tick's row."""
    return [
        {"since": began.isoformat(), "until": ended.isoformat(), "why": one_line(masking.hide(why), LONGEST_WHY)}
        for began, ended, why in islice(outages, MOST_NOTED)
    ]


def is_code_fault(not_started: Any) -> bool:
    """Return whether a tick's record (``Result.left``, perhaps of another version) reports a fault of the user's code.

    Only a tick that loads the handlers can see that such a fault was fixed.
    """
    found = not_started if isinstance(not_started, list) else []
    return any(isinstance(entry, dict) and entry.get("why") in ("unknown type", NOT_LOADED) for entry in found)
