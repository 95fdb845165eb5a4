"""Judge a campaign: compare its ledger with the database after everything has ended. Pure.

The ledger's lines are in the order of events, so a line's position serves as its instant.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import text

from cronjobs.engine.database.connection import Database
from engine.chaos.ledger import Line
from engine.chaos.plan import Plan, PlannedJob

TOLD_AT_MOST = 20  # violations of one kind


@dataclass(frozen=True)
class JobRow:
    id: int
    key: str | None
    status: str
    attempts: int
    failures: int
    losses: int
    error_type: str | None = None


@dataclass(frozen=True)
class RunRow:
    job: int
    attempt: int
    outcome: str


@dataclass(frozen=True)
class EffectRow:
    """*recorded_at* is on the monotonic clock of the ledger."""

    key: str
    state: str
    attempt: int
    recorded_at: float | None


@dataclass(frozen=True)
class Evidence:
    planned: Sequence[PlannedJob]
    lines: Sequence[Line]
    jobs: Sequence[JobRow]
    runs: Sequence[RunRow]
    effects: Sequence[EffectRow] = ()
    booked: Sequence[int] = ()  # jobs whose work in their transaction is committed, as often as it is
    events: Sequence[dict[str, Any]] = ()


def gather(database: Database, log: Path, plan: Plan, lines: Sequence[Line]) -> Evidence:
    """Read the database at rest, and the log."""
    ahead_s = time.time() - time.monotonic()  # both databases' clock is this host's
    epoch = "recorded_at / 1e6" if database.is_sqlite else "CAST(extract(epoch FROM recorded_at) AS float8)"
    with database.read() as connection:

        def rows(columns: str, table: str) -> Iterable[Any]:
            return connection.execute(text(f"SELECT {columns} FROM {table}"))

        columns = "id, idempotency_key, status, attempts, failures, losses, error_type"
        jobs = [JobRow(*row) for row in rows(columns, "cronjobs_jobs")]
        runs = [RunRow(*row) for row in rows("job_id, attempt, outcome", "cronjobs_job_runs")]
        effects = [
            EffectRow(key, state, attempt, None if at is None else at - ahead_s)
            for key, state, attempt, at in rows(f"key, state, attempt, {epoch}", "cronjobs_effects")
        ]
        booked = [row.job_id for row in rows("job_id", "booked")]
    with log.open() as told:
        events = [json.loads(line) for line in told]
    return Evidence(plan.jobs, lines, jobs, runs, effects, booked, events)


def judge(evidence: Evidence) -> tuple[dict[str, Any], list[str]]:
    """Return figures for the report, and what must not be; an empty list is the proof."""
    case = _Case(evidence)
    for check in (_lost, _finished_twice, _left_running, _history, _beside, _keyed, _unkeyed, _booked, _freezes):
        check(case)
    return case.figures, case.violations


class _Case:
    """The evidence, indexed; and what is found out about it."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.figures: dict[str, Any] = {}
        self.violations: list[str] = []
        self.runs: dict[int, dict[int, str]] = defaultdict(dict)
        for run in evidence.runs:
            self.runs[run.job][run.attempt] = run.outcome
        self.attempts: dict[tuple[int, int], Attempt] = {}
        self.of_job: dict[int, list[Attempt]] = defaultdict(list)
        self.of_pid: dict[int, list[Attempt]] = defaultdict(list)
        self.freezes: dict[int, list[Freeze]] = defaultdict(list)
        self.guarded = {line.pid for line in evidence.lines if line.what == "guarded"}
        self._read(evidence.lines)

    def _read(self, lines: Iterable[Line]) -> None:
        for place, line in enumerate(lines):
            if line.job:
                self._attempt(line).places.append((place, line))
            elif line.what == "freeze":
                self.freezes[line.pid].append(Freeze(place, line.at))
            elif line.what == "brief":
                self.freezes[line.pid][-1].brief = True
            elif line.what in ("thaw", "gone") and line.pid in self.freezes:
                last = self.freezes[line.pid][-1]
                last.until = min(last.until, place)

    def _attempt(self, line: Line) -> Attempt:
        known = self.attempts.get((line.job, line.attempt))
        if known is None:
            known = self.attempts[line.job, line.attempt] = Attempt(line.job, line.attempt, line.pid)
            self.of_job[line.job].append(known)
            self.of_pid[line.pid].append(known)
        return known

    def count(self, name: str, found: Sequence[str]) -> None:
        """A figure that must be zero."""
        self.figures[name] = len(found)
        self.violations.extend(f"{name}: {what}" for what in found[:TOLD_AT_MOST])

    def frozen_between(self, pid: int, first: int, last: int) -> bool:
        # The line is written before the signal is sent: for some milliseconds the process may still begin something.
        return any(freeze.place < last and freeze.until > first for freeze in self.freezes.get(pid, ()))


@dataclass
class Attempt:
    """The lines that one attempt wrote, each with its place in the file."""

    job: int
    number: int
    pid: int
    places: list[tuple[int, Line]] = field(default_factory=list)

    @property
    def first(self) -> int:
        return self.places[0][0]

    @property
    def last(self) -> int:
        return self.places[-1][0]

    def place(self, what: str, key: str = "") -> int | None:
        return next((place for place, line in self.places if line.what == what and line.key == key), None)

    def left_unknown(self, key: str) -> bool:
        """Whether it may have begun the effect, and did not come to see it recorded."""
        return self.place("enter", key) is not None and self.place("recorded", key) is None


@dataclass
class Freeze:
    place: int
    at: float
    until: int = 1 << 60
    brief: bool = False  # the freeze ended before any lease did


# --- what must not be -------------------------------------------------------------------------------------------------


def _booked(case: _Case) -> None:
    """Work that is committed with its job's success is there exactly once."""
    keys = {job.key for job in case.evidence.planned if job.job_type == "chaos.booked"}
    times = Counter(case.evidence.booked)
    jobs = [row for row in case.evidence.jobs if row.key in keys]
    wrong = [f"the work of job {row.id} is there {times[row.id]} times" for row in jobs if times[row.id] != 1]
    case.figures["booked"] = len(case.evidence.booked)
    case.count("not booked exactly once", wrong)


def _lost(case: _Case) -> None:
    """Each enqueued job has one row and ended as its kind demands. Work that the row calls done was done."""
    rows: dict[str | None, list[JobRow]] = defaultdict(list)
    for row in case.evidence.jobs:
        rows[row.key].append(row)
    lost = []
    for planned in case.evidence.planned:
        found = rows.pop(planned.key, [])
        if len(found) != 1:
            lost.append(f"{planned.key} has {len(found)} rows")
            continue
        [row] = found
        if row.status not in planned.ends:
            lost.append(f"job {row.id} ({planned.job_type}) is {row.status}, not {' or '.join(planned.ends)}")
        last = case.attempts.get((row.id, row.attempts))
        if row.error_type == "EffectUnknown" and planned.job_type == "chaos.stop":
            if not any(attempt.left_unknown(planned.key) for attempt in case.of_job[row.id]):
                lost.append(f"job {row.id} stopped for an effect that no attempt left unknown")
        elif last is None or last.place("end") is None:
            lost.append(f"job {row.id} is {row.status}, but attempt {row.attempts} did not come to its end")
    lost += [f"job {row.id} was never planned" for left in rows.values() for row in left]
    case.count("lost", lost)


def _finished_twice(case: _Case) -> None:
    succeeded = Counter(job for job, runs in case.runs.items() for outcome in runs.values() if outcome == "succeeded")
    told = Counter(event["job_id"] for event in case.evidence.events if event["event"] in ("job.succeeded", "job.dead"))
    twice = [f"job {job}: {count} attempts succeeded" for job, count in succeeded.items() if count > 1]
    twice += [f"job {job}: its end was logged {count} times" for job, count in told.items() if count > 1]
    case.count("finished twice", twice)


def _left_running(case: _Case) -> None:
    running = [f"job {row.id}" for row in case.evidence.jobs if row.status == "running"]
    case.count("left running", running)


def _history(case: _Case) -> None:
    """Every attempt that began has its row, nothing came after the end, and the counters say what the rows say."""
    wrong = []
    for row in case.evidence.jobs:
        runs = case.runs[row.id]
        outcomes = Counter(runs.values())
        if runs and max(runs) != row.attempts:
            wrong.append(f"job {row.id}: {row.attempts} attempts, the last in its history is {max(runs)}")
        if outcomes["lost"] != row.losses:
            wrong.append(f"job {row.id}: {row.losses} losses, {outcomes['lost']} in its history")
        if outcomes["failed"] + outcomes["timed_out"] > row.failures:
            wrong.append(f"job {row.id}: {row.failures} failures, in its history {dict(outcomes)}")
        early = [attempt for attempt, outcome in runs.items() if outcome == "succeeded" and attempt != row.attempts]
        if early:
            wrong.append(f"job {row.id}: attempt {early[0]} succeeded, and attempt {row.attempts} came after it")
    unwritten = [(job, number) for job, number in case.attempts if number not in case.runs[job]]
    wrong += [f"job {job}: attempt {number} began and has no history" for job, number in unwritten]
    case.figures["attempts by outcome"] = dict(Counter(run.outcome for run in case.evidence.runs))
    case.figures["most losses of a job"] = max((row.losses for row in case.evidence.jobs), default=0)
    case.count("history wrong", wrong)


def _beside(case: _Case) -> None:
    """Only when an attempt's code no longer runs may the next begin; none but a frozen tick may break that."""
    beside, woken = [], 0
    for (job, number), attempt in case.attempts.items():
        later = [other for other in case.of_job[job] if other.number > number]
        if not later:
            continue
        begun = min(other.first for other in later)
        if attempt.last < begun:
            continue
        if case.frozen_between(attempt.pid, attempt.first, attempt.last):
            woken += 1
        elif attempt.pid in case.guarded:
            beside.append(f"job {job}: attempt {number} went on after a later one had begun")
    case.figures["went on after a freeze, beside their successor"] = woken
    case.count("ran beside its successor", beside)


AT_MOST_ONCE = ("chaos.skip", "chaos.stop")
STATES = {"chaos.skip": ("recorded", "skipped"), "chaos.stop": ("recorded", "stopped")}
CLOCKS_AGREE_S = 0.02


def _keyed(case: _Case) -> None:
    """What was recorded is never done again, and nothing is done again but what was left unknown."""
    kinds = {planned.key: planned.job_type for planned in case.evidence.planned}
    rows = {row.key: row for row in case.evidence.effects}
    by_key: dict[str, list[tuple[int, Line]]] = defaultdict(list)
    for place, line in enumerate(case.evidence.lines):
        if line.key:
            by_key[line.key].append((place, line))
    again, states, unknown, repeated, excused = [], [], 0, 0, 0
    for key, places in by_key.items():
        bodies = [(place, line) for place, line in places if line.what == "body"]
        left = sum(case.attempts[held].left_unknown(key) for held in {(line.job, line.attempt) for _, line in places})
        unknown += left
        repeated += max(0, len(bodies) - 1)
        recorded = next((place for place, line in places if line.what == "recorded"), 1 << 60)
        row = rows.get(key)
        recorded_at = row.recorded_at if row and row.recorded_at is not None else float("inf")
        for place, line in bodies:
            if place > recorded or line.at > recorded_at + CLOCKS_AGREE_S:
                # A tick that is frozen just before it does what it has begun cannot be stopped by anyone.
                entered = case.attempts[line.job, line.attempt].place("enter", key)
                if entered is not None and case.frozen_between(line.pid, entered, place):
                    excused += 1
                else:
                    again.append(f"{key}: attempt {line.attempt} did it although it was recorded")
        if len(bodies) - 1 > left:
            again.append(f"{key}: done {len(bodies)} times, left unknown {left} times")
        kind = kinds.get(key, "")
        if kind in AT_MOST_ONCE and len(bodies) > 1:
            again.append(f"{key} ({kind}): done {len(bodies)} times")
        if row is not None and row.state == "recorded" and not bodies:
            states.append(f"{key} ({kind}) is recorded, and nobody did it")
        if row is None or row.state not in STATES.get(kind, ("recorded",)):
            states.append(f"{key} ({kind}) is {row and row.state}")
    case.figures["keyed effects"] = len(by_key)
    case.figures["keyed effects left unknown"] = unknown
    case.figures["keyed effects repeated"] = repeated
    case.figures["done by who was frozen just before"] = excused
    if repeated > unknown:
        case.violations.append(f"{repeated} keyed effects were repeated, and only {unknown} left unknown")
    case.count("recorded effects repeated", again)
    case.count("effects in a wrong state", states)


def _unkeyed(case: _Case) -> None:
    """An effect that nobody guards is doubled now and then, or this campaign proves nothing."""
    done = Counter(line.job for line in case.evidence.lines if line.what == "unkeyed")
    doubled = sum(count > 1 for count in done.values())
    case.figures["unkeyed effects"] = len(done)
    case.figures["unkeyed effects doubled"] = doubled
    if not doubled:
        case.violations.append("no unkeyed effect was doubled: the campaign does not bite")


def _freezes(case: _Case) -> None:
    """A freeze matters only if others took over, while it lasted, what the frozen one held."""
    counted = taken = 0
    for pid, freezes in case.freezes.items():
        for freeze in freezes:
            counted += not freeze.brief
            taken += any(_taken_over(case, attempt, freeze) for attempt in case.of_pid[pid])
    refused = Counter(event["event"] for event in case.evidence.events)
    case.figures["freezes"] = counted
    case.figures["freezes in which a job was taken over"] = taken
    case.figures["leases found lost by who woke"] = refused["job.lease_lost"]
    if counted and not taken:
        case.violations.append("no frozen tick lost a job to another: the freezes do not bite")


def _taken_over(case: _Case, attempt: Attempt, freeze: Freeze) -> bool:
    ended = attempt.place("end") or attempt.place("failed") or 1 << 60
    if not attempt.first < freeze.place < ended:
        return False
    later = [other for other in case.of_job[attempt.job] if other.number > attempt.number]
    return any(freeze.place < other.first < freeze.until for other in later)
