"""An unexpected error anywhere in the loop: running jobs end and are recorded, others are released, exit code 70."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from support.hosts import Host, put

from cronjobs.clock import SYSTEM
from cronjobs.engine.config.settings import RunSettings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import job_runs, ticks
from cronjobs.engine.database.tables import jobs as jobs_table
from cronjobs.engine.execution.attempt import InFlight
from cronjobs.engine.execution.worker_threads import Workers
from cronjobs.engine.jobs import registry
from cronjobs.engine.store import claims, leases
from cronjobs.engine.tick import ends as ends_module
from cronjobs.engine.tick import loop as loop_module
from cronjobs.engine.tick.claim_planner import ClaimPlanner
from cronjobs.engine.tick.ends import EndWriter
from cronjobs.engine.tick.hung_handlers import HungHandlers
from cronjobs.engine.tick.loop import Loop
from cronjobs.engine.tick.trouble import FAULT, MOST_FALLS
from cronjobs.engine.tick.turn import Writer
from cronjobs.testing import FakeClock

CASES = int(os.environ.get("CRONJOBS_FAULT_CASES", "100"))

LOOP = (
    *("_report_stopping", "_release_waiting", "_turn", "_state", "_next_claim", "_after", "_begin"),
    *("_begin_one", "_next_renewal", "_move_watchdog"),
)
ENDS = (
    "collect",
    "_take",
    "release",
    "decided",
    "_decide",
    "written",
    "_after_end",
    "_report",
)
PLACES: list[tuple[Any, str]] = [
    *((Loop, name) for name in LOOP),
    *((EndWriter, name) for name in ENDS),
    *((HungHandlers, name) for name in ("note_overdue", "rows")),
    *((Writer, name) for name in ("write", "_finish", "_claim", "_settle_claim")),
    *((InFlight, name) for name in ("take", "end", "move", "leases", "busy", "recorded")),
    *((ClaimPlanner, name) for name in ("admission", "long_admission", "room", "note")),
    *((Workers, name) for name in ("hand", "take_back")),
    (leases, "finish"),
    (claims, "claim"),
    *((loop_module, name) for name in ("why_ended", "wait_s")),
    (ends_module, "decide_end"),
]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(SYSTEM.now())


@pytest.fixture
def ran() -> Iterator[Counter[int]]:
    """How often each job's handler ran."""
    seen: Counter[int] = Counter()
    lock, before = threading.Lock(), dict(registry._registered)

    @registry.job("t.say")
    def say(ctx: Any) -> str:
        with lock:
            seen[ctx.job_id] += 1
        return "said"

    yield seen
    registry._registered.clear()
    registry._registered.update(before)


@pytest.fixture
def host(database: Database, tmp_path: Path) -> Host:
    host = Host(database, tmp_path)
    host.carry(run=RunSettings(workers=3))
    return host


class Broken:
    """Raises at the *n*-th call of a function, before or after it has done its work; *always*: from then on."""

    def __init__(self, owner: Any, name: str, n: int = 1, *, after: bool = False, always: bool = False) -> None:
        self.owner, self.name, self.n, self.after, self.always = owner, name, n, after, always
        self.function: Callable[..., Any] = getattr(owner, name)
        self.calls = self.raised = 0

    def __enter__(self) -> Broken:
        setattr(self.owner, self.name, lambda *args, **kwargs: self(*args, **kwargs))
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self.owner, self.name, self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        is_it = self.calls == self.n or (self.always and self.calls > self.n)
        result = self.function(*args, **kwargs) if self.after or not is_it else None
        if is_it:
            self.raised += 1
            raise KeyError(f"broken {self.name}")
        return result


def rows(database: Database, statement: Any) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(statement).all())


def settled(host: Host, database: Database) -> None:
    """A tick without the fault does what is left."""
    assert host.tick().exit_code() == 0
    states = rows(database, select(jobs_table.c.status, func.count()).group_by(jobs_table.c.status))
    assert [tuple(row) for row in states] == [("succeeded", 12)]
    charged = jobs_table.c.failures + jobs_table.c.losses + jobs_table.c.interruptions
    assert rows(database, select(func.max(charged)))[0][0] == 0


def broken_tick(host: Host, database: Database, broken: Broken) -> None:
    """Run one tick with a fault in it. Whatever the fault, the tick reports it and holds no job at its end."""
    host.events.clear()
    started = SYSTEM.monotonic()
    with broken:
        result = host.tick()
    assert SYSTEM.monotonic() - started < 40  # the budget is 50 s
    assert rows(database, select(jobs_table.c.id).where(jobs_table.c.locked_by.is_not(None))) == []
    if broken.raised:
        assert isinstance(result.fault, KeyError)
        assert result.exit_code() == 70
        [said] = host.said("tick.fault")
        assert f"broken {broken.name}" in said.facts["error"]
        assert ".py:" in said.facts["where"]
    [last] = rows(database, select(ticks.c.finished_at, ticks.c.ended).order_by(ticks.c.id.desc()).limit(1))
    assert last.finished_at is not None


def cases() -> list[tuple[int, int, bool]]:
    """Which place, at which call, before or after its work: all of them, or the first calls and some more."""
    every = list(itertools.product(range(len(PLACES)), (1, 2, 3, 5, 8), (False, True)))
    if len(every) <= CASES:
        return every
    first = [case for case in every if case[1] == 1]
    return sorted({*first, *random.Random(7).sample(every, max(0, CASES - len(first)))})


@pytest.mark.parametrize("place", range(len(PLACES)), ids=[f"{owner.__name__}.{name}" for owner, name in PLACES])
def test_a_single_fault_in_the_loop_loses_repeats_and_charges_nothing(
    sqlite_migrated: str, clock: FakeClock, tmp_path: Path, ran: Counter[int], place: int
) -> None:
    database = Database(parse_url(f"sqlite:///{sqlite_migrated}"), clock=clock)
    host = Host(database, tmp_path)
    host.carry(run=RunSettings(workers=3))
    for _, n, after in (case for case in cases() if case[0] == place):
        with database.write() as connection:
            connection.execute(job_runs.delete())
            connection.execute(jobs_table.delete())
        ran.clear()
        ids = [put(database) for _ in range(12)]
        broken_tick(host, database, Broken(*PLACES[place], n, after=after))
        settled(host, database)
        assert ran == dict.fromkeys(ids, 1), (PLACES[place], n, after)
    database.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name"), [(HungHandlers, "note_overdue"), (loop_module, "why_ended"), (claims, "claim")]
)
def test_a_fault_that_stays_ends_the_tick_before_its_time(
    database: Database, host: Host, ran: Counter[int], owner: Any, name: str
) -> None:
    ids = [put(database) for _ in range(12)]
    broken = Broken(owner, name, always=True)
    broken_tick(host, database, broken)
    assert broken.raised <= MOST_FALLS
    settled(host, database)
    assert ran == dict.fromkeys(ids, 1)


def test_what_runs_is_waited_for_and_recorded_and_what_waits_goes_back(
    database: Database, host: Host, ran: Counter[int]
) -> None:
    opened, begun = threading.Event(), threading.Event()

    @registry.job("t.slow", timeout="15s")
    def slow(ctx: Any) -> str:
        begun.set()
        opened.wait(60)
        ran[ctx.job_id] += 1
        return "done"

    host.carry(run=RunSettings(workers=1))
    slow_id = put(database, job_type="t.slow", priority=0)
    waiting_ids = [put(database) for _ in range(3)]

    class Once(Broken):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if not begun.is_set():
                return self.function(*args, **kwargs)
            opened.set()
            return super().__call__(*args, **kwargs)

    broken_tick(host, database, Once(loop_module, "wait_s"))
    [row] = rows(database, select(jobs_table.c.status, jobs_table.c.result).where(jobs_table.c.id == slow_id))
    assert tuple(row) == ("succeeded", "done")
    waits = rows(database, select(jobs_table.c.status).where(jobs_table.c.id.in_(waiting_ids)).distinct())
    assert [row.status for row in waits] == ["queued"]
    [last] = rows(database, select(ticks.c.ended).order_by(ticks.c.id.desc()).limit(1))
    assert last.ended == FAULT


def test_an_end_that_cannot_be_decided_is_recorded_in_our_own_words(
    database: Database, host: Host, ran: Counter[int]
) -> None:
    """Work that was done stays done; a failure is retried."""

    @registry.job("t.fail")
    def fail() -> None:
        raise ValueError("no luck")

    good_id, bad_id = put(database), put(database, job_type="t.fail")
    with Broken(ends_module, "decide_end"), Broken(leases, "finish"):
        result = host.tick()
    assert result.exit_code() == 70
    states = dict(tuple(row) for row in rows(database, select(jobs_table.c.id, jobs_table.c.status)))
    assert states == {good_id: "succeeded", bad_id: "failed"}
    runs = rows(database, select(job_runs.c.job_id, job_runs.c.outcome).order_by(job_runs.c.job_id))
    assert [tuple(row) for row in runs] == [(good_id, "succeeded"), (bad_id, "failed")]


def test_one_end_that_can_be_written_in_no_form_costs_only_itself(
    database: Database, host: Host, ran: Counter[int]
) -> None:
    ids = [put(database) for _ in range(5)]
    written = leases.finish

    def refuse(connection: Any, finishes: Any) -> Any:
        if any(end.lease.job_id == ids[2] for end in finishes):
            raise OverflowError("Python int too large to convert to SQLite INTEGER")
        return written(connection, finishes)

    leases.finish = refuse
    try:
        result = host.tick()
    finally:
        leases.finish = written
    assert result.exit_code() == 70
    states = dict(tuple(row) for row in rows(database, select(jobs_table.c.id, jobs_table.c.status)))
    assert states.pop(ids[2]) == "running"  # the job's lease runs out, and the next tick finds the job
    # On a busy machine not all had begun when the fault came: those went back.
    assert states == {job_id: "succeeded" if job_id in ran else "queued" for job_id in ids if job_id != ids[2]}
    [said] = host.said("job.end_not_recorded")
    assert said.facts["job_id"] == ids[2]


def test_a_report_that_fails_stops_nothing(database: Database, host: Host, ran: Counter[int]) -> None:
    ids = [put(database) for _ in range(12)]

    def refuse(_event: Any) -> None:
        raise BrokenPipeError("nobody reads")

    host.events = _Refusing(refuse)
    result = host.tick()
    assert result.exit_code() == 70
    assert ran == dict.fromkeys(ids, 1)


class _Refusing(list[Any]):
    def __init__(self, refuse: Callable[[Any], None]) -> None:
        super().__init__()
        self.append = refuse  # type: ignore[method-assign]


def _missing(*_: Any, **__: Any) -> None:
    raise KeyError("missing")


def test_a_part_of_the_tick_that_breaks_leaves_the_others_their_turn(
    database: Database, host: Host, ran: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [put(database) for _ in range(2)]
    monkeypatch.setattr("cronjobs.engine.schedules.sync.sync", _missing)
    monkeypatch.setattr("cronjobs.engine.config.settings.Settings.defines_something", True)
    result = host.tick()
    assert result.exit_code() == 70
    assert ran == dict.fromkeys(ids, 1)
    assert len(host.said("tick.fault")) == 1
