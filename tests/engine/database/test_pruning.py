"""Old rows are pruned fast enough, in short batches, despite locked rows, and never by a wrong clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import thread_time
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, insert, select, text, update
from support.hosts import Host
from support.postgres import SUPERUSER, as_role

from cronjobs.clock import SYSTEM
from cronjobs.engine.config.settings import Retention
from cronjobs.engine.database import column_types, tables
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.store import pruning as store
from cronjobs.engine.tick.pruner import LARGEST_BATCH, SMALLEST_BATCH, Before, Pruner, next_batch
from cronjobs.engine.tick.pruning import is_due, is_overdue
from cronjobs.testing import FakeClock

START = datetime(2026, 3, 2, 8, 0, 30, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
SHORT = Retention(succeeded=HOUR, dead=HOUR, keys=10 * DAY, occurrences=DAY, effects=DAY)
BIG = {
    "cronjobs_jobs": (
        "(job_type, status, run_at, created_at, finished_at) SELECT 't.say', 'succeeded', {at}, {at}, {at}"
    ),
    "cronjobs_occurrences": "(schedule_id, first_for, last_for, outcome) SELECT 1, {at} - {i}, {at} - {i}, 'enqueued'",
    "cronjobs_ticks": "(tick, host, pid, version, started_at) SELECT 't' || i, 'alpha', 1, '0', {at}",
    "cronjobs_effects": "(key, begun_at) SELECT 'k' || i, {at}",
    "cronjobs_job_type_lists": "(hash, names, recorded_at) SELECT 'h' || i, '[]', {at}",
}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def host(database: Database, tmp_path: Path) -> Host:
    made = Host(database, tmp_path)
    made.carry(retention=SHORT)
    made.tick()
    return made


def fill(database: Database, table: str, count: int, age: timedelta = 20 * DAY) -> None:
    """*count* rows of that age; with a schedule for the ledger's, and one row more, as its newest always stays."""
    then = database.clock.now() - age
    if table == "cronjobs_occurrences":
        with database.write() as connection:
            row = {
                "name": "s",
                "definition": {},
                "fingerprint": "",
                "seen_until": database.clock.now(),
                "status": "retired",
            }
            connection.execute(insert(tables.schedules).values(row))
        count += 1
    at, i = (":at", "i * 1000") if database.is_sqlite else ("CAST(:at AS timestamptz)", "i * interval '1 ms'")
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    with database.write() as connection:
        connection.execute(
            text(f"{numbers} INSERT INTO {table} {BIG[table].format(at=at, i=i)} FROM n"),
            {"at": column_types.to_microseconds(then) if database.is_sqlite else then},
        )


def count(database: Database, table: str) -> int:
    with database.read() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def look_again(database: Database) -> None:
    with database.write() as connection:
        connection.execute(update(tables.meta).values(pruned_at=None))


@contextmanager
def writes(database: Database) -> Iterator[list[int]]:
    """How many rows each statement that deletes is allowed to take."""
    seen: list[int] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "DELETE" in statement:
            given = parameters if isinstance(parameters, dict) else dict(enumerate(parameters))
            listed = [len(json.loads(value)) for value in given.values() if str(value).startswith("[")]
            limits = [value for value in given.values() if isinstance(value, int) and value < 1_000_000]
            seen.append(min([*listed, *limits]))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


# --- as fast as they come ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", sorted(BIG))
def test_one_tick_removes_all_that_is_old_in_bounded_batches(database: Database, host: Host, table: str) -> None:
    fill(database, table, 3500)
    host.tick()  # so that the last tick is none of those
    look_again(database)
    # Those of the ticks themselves, and a schedule's newest row.
    kept = {"cronjobs_ticks": 3, "cronjobs_job_type_lists": 1, "cronjobs_occurrences": 1}.get(table, 0)
    with writes(database) as taken:
        result = host.tick()
    assert (count(database, table), result.pruned) == (kept, 3500)
    assert max(taken) <= LARGEST_BATCH
    assert result.trouble is None


def test_a_look_is_hourly_and_what_it_found_goes_on_in_the_next_tick(
    database: Database, host: Host, clock: FakeClock
) -> None:
    fill(database, "cronjobs_jobs", 500)
    assert host.tick().pruned == 0  # within the hour of the last look
    clock.advance(HOUR + MINUTE)
    asked = iter([True] * 3)
    assert not _pruner(database, go_on=lambda: next(asked, False)).run()
    left = count(database, "cronjobs_jobs")
    assert 0 < left < 500
    assert host.tick().pruned == left
    fill(database, "cronjobs_jobs", 1)
    assert host.tick().pruned == 0


def _pruner(database: Database, go_on: Callable[[], bool] = lambda: True) -> Pruner:
    return Pruner(database, Before.of(SHORT, database.clock.now()), database.clock, go_on)


def test_a_job_with_very_many_attempts_goes_in_batches_too(database: Database, host: Host) -> None:
    fill(database, "cronjobs_jobs", 2)
    with database.write() as connection:
        job_id = connection.execute(select(tables.jobs.c.id).limit(1)).scalar_one()
        runs = {"job_id": job_id, "outcome": "snoozed", "started_at": START, "finished_at": START, "runner": "r"}
        connection.execute(insert(tables.job_runs), [runs | {"attempt": n} for n in range(2500)])
    look_again(database)
    with writes(database) as taken:
        assert host.tick().pruned == 2
    assert count(database, "cronjobs_job_runs") == 0
    assert max(taken) <= LARGEST_BATCH


def test_a_job_that_was_retried_since_it_was_read_stays(database: Database, host: Host) -> None:
    fill(database, "cronjobs_jobs", 3)
    before = database.clock.now() - DAY
    with database.read() as connection:
        retried, recent, old = (job.id for job in store.old_jobs(connection, "succeeded", before, store.BEGINNING, 10))
    changes: dict[int, dict[str, Any]] = {
        retried: {"status": "queued", "finished_at": None},
        recent: {"finished_at": database.clock.now()},
    }
    with database.write() as connection:
        for job_id, values in changes.items():
            connection.execute(update(tables.jobs).where(tables.jobs.c.id == job_id).values(values))
        ids = [retried, recent, old]
        assert store.strip_jobs(connection, [retried, recent], "succeeded", before) == set()
        assert store.delete_jobs(connection, ids, "succeeded", before) == {old}


def test_stripped_jobs_are_not_read_again_each_hour(database: Database, host: Host, clock: FakeClock) -> None:
    fill(database, "cronjobs_jobs", 300, age=2 * DAY)
    with database.write() as connection:
        connection.execute(text("UPDATE cronjobs_jobs SET idempotency_key = 'k' || id"))
    look_again(database)
    host.tick()
    with database.read() as connection:
        begin = store.prune_from(connection)
        [job] = store.old_jobs(connection, "succeeded", START, store.BEGINNING, 1)
        rest = store.old_jobs(connection, "succeeded", START, store.PrunePosition(begin["succeeded"], 0), 1000)
    assert job.stripped
    assert abs(begin["succeeded"] - (START - 2 * DAY)) < MINUTE
    assert len(rest) == 300  # all of one instant: the place is between instants
    fill(database, "cronjobs_jobs", 5, age=90 * MINUTE)
    look_again(database)
    assert host.tick().pruned == 5
    for _ in range(10):  # until their keys have served their time
        clock.advance(23 * HOUR)
        host.tick()
    assert count(database, "cronjobs_jobs") == 0


@pytest.mark.parametrize("budget_s", [5, 20])
def test_a_short_tick_prunes_too(database: Database, host: Host, budget_s: float) -> None:
    fill(database, "cronjobs_jobs", 50)
    look_again(database)
    assert host.tick(budget_s=budget_s).pruned == 50


@pytest.mark.slow
def test_ticks_that_never_have_spare_time_prune_a_little_before_their_work(
    database: Database, host: Host, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy_until_the_end(self: Any) -> None:
        clock.advance(timedelta(seconds=60))

    monkeypatch.setattr("cronjobs.engine.tick.tick.Tick._work", busy_until_the_end)
    fill(database, "cronjobs_jobs", 50)
    with database.write() as connection:
        connection.execute(insert(tables.jobs).values(job_type="t.say", run_at=START, created_at=START))
    for _ in range(130):
        if host.tick().pruned:
            break
    assert timedelta(minutes=110) < clock.now() - START < 3 * HOUR
    assert count(database, "cronjobs_jobs") == 1


# --- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [timedelta(days=3), timedelta(days=3650)])
def test_one_tick_with_a_clock_ahead_does_not_stop_pruning(
    database: Database, host: Host, clock: FakeClock, ahead: timedelta
) -> None:
    fill(database, "cronjobs_jobs", 10)
    clock.advance(ahead)
    assert host.tick().pruned == 0
    clock.set(START + HOUR)
    assert host.tick().pruned == 0  # the clock made more than a day since the last tick, backwards
    clock.advance(58 * MINUTE)
    assert host.tick().pruned == 0
    clock.advance(3 * MINUTE)
    assert host.tick().pruned == 10


def test_a_tick_after_a_jump_prunes_nothing_nor_does_the_next_hour_also_if_that_tick_had_no_time(
    database: Database, host: Host, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.advance(20 * HOUR)
    host.tick()
    fill(database, "cronjobs_jobs", 10)
    clock.advance(25 * HOUR)
    with monkeypatch.context() as patched:
        patched.setattr("cronjobs.engine.tick.spare_time.SpareTime._prune", lambda *_: None)
        host.tick()
    for _ in range(5):
        clock.advance(11 * MINUTE)
        assert host.tick().pruned == 0
    clock.advance(6 * MINUTE)
    host.tick()
    assert count(database, "cronjobs_jobs") == 0


def test_when_to_look() -> None:
    now = START
    assert is_due(None, now)
    assert not is_due(now - timedelta(minutes=59), now)
    assert is_due(now - HOUR, now)
    assert is_due(now + DAY, now)  # the clock that wrote this was ahead
    assert not is_due(now + timedelta(seconds=1), now)  # or a little
    assert not is_overdue(None, now)
    assert not is_overdue(now - HOUR, now)
    assert is_overdue(now - 3 * HOUR, now)


def test_a_batch_is_as_large_as_its_time_allows() -> None:
    assert next_batch(100, 0.001, 0.015) == 200
    assert next_batch(100, 0.010, 0.015) == 100
    assert next_batch(100, 0.030, 0.015) == 50
    assert next_batch(LARGEST_BATCH, 0.0, 0.015) == LARGEST_BATCH
    assert next_batch(SMALLEST_BATCH, 9.0, 0.015) == SMALLEST_BATCH


# --- other people's locks ---------------------------------------------------------------------------------------------

LOCKED = {
    "cronjobs_jobs": "SELECT * FROM cronjobs_jobs WHERE id = (SELECT min(id) + 7 FROM cronjobs_jobs)",
    "cronjobs_job_runs": "SELECT * FROM cronjobs_job_runs WHERE job_id = (SELECT min(id) + 7 FROM cronjobs_jobs)",
    "cronjobs_occurrences": "SELECT * FROM cronjobs_occurrences ORDER BY last_for LIMIT 1",
    "cronjobs_ticks": "SELECT * FROM cronjobs_ticks WHERE tick = 't7'",
    "cronjobs_effects": "SELECT * FROM cronjobs_effects WHERE key = 'k7'",
    "cronjobs_job_type_lists": "SELECT * FROM cronjobs_job_type_lists WHERE hash = 'h7'",
}


@pytest.mark.parametrize("table", sorted(LOCKED))
def test_one_locked_row_stops_nothing(postgres_migrated: str, tmp_path: Path, table: str, clock: FakeClock) -> None:
    database = Database(parse_url(postgres_migrated), clock=clock)
    try:
        host = Host(database, tmp_path)
        host.carry(retention=SHORT)
        host.tick()
        filled = "cronjobs_jobs" if table == "cronjobs_job_runs" else table
        fill(database, filled, 60)
        if filled == "cronjobs_jobs":
            runs = "INSERT INTO cronjobs_job_runs (job_id, attempt, outcome, started_at, finished_at, runner) "
            with database.write() as connection:
                connection.execute(text(runs + "SELECT id, 1, 'lost', run_at, run_at, 'r' FROM cronjobs_jobs"))
        host.tick()  # so that the last tick is none of those
        look_again(database)
        with psycopg.connect(as_role(postgres_migrated, SUPERUSER)) as other:
            other.execute(LOCKED[table] + " FOR UPDATE")
            result = host.tick()
        assert (result.pruned, result.trouble, result.exit_code()) == (59, None, 0)
        assert not host.said("prune.put_off")  # the tick did not wait for the lock
        look_again(database)
        assert host.tick().pruned == 1
    finally:
        database.close()


def test_a_table_that_somebody_locked_whole_is_pruned_later_and_is_no_trouble(
    database: Database, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cronjobs.errors import DatabaseBusy

    def busy(*_: Any) -> Any:
        raise DatabaseBusy("db", 5)

    fill(database, "cronjobs_jobs", 5)
    look_again(database)
    with monkeypatch.context() as patched:
        patched.setattr(store, "delete_jobs", busy)
        result = host.tick()
    assert (result.exit_code(), result.pruned) == (0, 0)
    assert host.said("prune.put_off")
    assert host.tick().pruned == 5


def test_an_app_that_writes_meanwhile_is_not_locked_out_of_sqlite(sqlite_migrated: str) -> None:
    """How much work is done while the only write lock is held."""
    database = Database(parse_url(f"sqlite:///{sqlite_migrated}"))
    try:
        fill(database, "cronjobs_occurrences", 30_000)
        held: list[float] = []
        pruner = Pruner(database, Before.of(SHORT, SYSTEM.now()), SYSTEM, lambda: True)
        began: list[float] = []
        event.listen(database.engine, "begin", lambda _: began.append(thread_time()))
        event.listen(database.engine, "commit", lambda _: held.append(thread_time() - began[-1]))
        assert pruner.run()
        assert pruner.gone == 30_000
        assert len(held) > 30
        held.sort()
        assert held[len(held) // 2] < 0.03
    finally:
        database.close()
