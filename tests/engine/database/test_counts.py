"""Counts of random lives: each end counts exactly once, and concurrent sessions do not change that.

CRONJOBS_COUNTS_SEEDS=300 makes the long form.
"""

from __future__ import annotations

import os
import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, insert, text
from support.databases import in_psql
from support.hosts import Host
from support.lives import DAY, Lives
from support.postgres import ENQUEUE, as_role

import cronjobs
from cronjobs import cancel
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import job_runs, jobs
from cronjobs.engine.rules.lease import Finish, Lease
from cronjobs.engine.store import counts, leases
from cronjobs.model import Status
from cronjobs.testing import FakeClock

SEEDS = range(int(os.environ.get("CRONJOBS_COUNTS_SEEDS", "6")))
STEPS = 60
ONLY_POSTGRESQL = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_that_ended_counts_once(database: Database, clock: FakeClock, seed: int) -> None:
    lives = Lives(database, clock, seed)
    for _ in range(STEPS):
        lives.step()
        lives.check()
    lives.check_hours()


def running(database: Database, **values: Any) -> Lease:
    now = database.clock.now()
    row = {"job_type": "t", "status": "running", "attempts": 1, "locked_by": "me", "created_at": now, "run_at": now}
    row |= {"locked_until": now + DAY, "started_at": now}
    with database.write() as connection:
        made = connection.execute(insert(jobs).values(row | values)).inserted_primary_key
    assert made is not None
    return Lease(made[0], 1, "me")


def done(lease: Lease) -> Finish:
    return Finish(lease, Status.SUCCEEDED, 0, 0, 0, "succeeded", duration=timedelta(0))


def end(database: Database, **values: Any) -> None:
    lease = running(database, **values)
    with database.write() as connection:
        assert leases.finish(connection, [done(lease)]).written


def numbers(database: Database, kind: str = "jobs") -> dict[str, int]:
    with database.read() as connection:
        found = counts.all_that_ended(connection)
    sums: dict[str, int] = {}
    for key, each in found.items():
        if key.kind == kind:
            sums[key.outcome] = sums.get(key.outcome, 0) + each.number
    return sums


def unfolded(database: Database) -> int:
    with database.read() as connection:
        return int(connection.execute(text("SELECT count(*) FROM cronjobs_new_counts")).scalar_one())


# --- at once ----------------------------------------------------------------------------------------------------------


@ONLY_POSTGRESQL
def test_no_end_waits_for_a_folder_or_for_an_apps_cancel(database: Database, database_url: str) -> None:
    """A fold and an app's cancel may each be frozen in their transaction for any time."""
    end(database)
    waits, mine, other = (
        running(database, status="queued", locked_by=None, locked_until=None),
        *(running(database) for _ in range(2)),
    )
    with psycopg.connect(database_url) as app, database.write() as folder:
        assert cancel(app, id=waits.job_id) is Status.CANCELLED
        counts.fold(folder)
        for lease in (mine, other):
            with database.write() as connection:
                connection.execute(text("SET LOCAL lock_timeout = '1s'"))
                assert leases.finish(connection, [done(lease)]).written
    for _ in range(2):
        assert numbers(database) == {"succeeded": 3, "cancelled": 1}
        with database.write() as connection:
            counts.fold(connection)


@ONLY_POSTGRESQL
def test_two_do_not_fold_at_once(database: Database, database_url: str) -> None:
    """The second one does not wait for the first, which may be frozen; not even if it has other rows."""
    for job_type in ("one", "two", "three"):
        end(database, job_type=job_type)
    with database.write() as connection:
        assert counts.fold(connection, 2)
    with database.write() as first:
        assert counts.fold(first, 2)
        with database.write() as second:
            second.execute(text("SET LOCAL lock_timeout = '1s'"))
            assert not counts.fold(second, 2)
    assert unfolded(database) == 2
    assert numbers(database) == {"succeeded": 3}


@ONLY_POSTGRESQL
def test_a_row_that_somebody_has_locked_is_folded_later(database: Database, database_url: str) -> None:
    end(database)
    with psycopg.connect(database_url) as person:
        person.execute("SELECT 1 FROM cronjobs_new_counts FOR UPDATE")
        with database.write() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '1s'"))
            counts.fold(connection)
        assert numbers(database) == {"succeeded": 1}
    with database.write() as connection:
        counts.fold(connection)
    assert numbers(database) == {"succeeded": 1}


def test_who_reads_meanwhile_sees_whole_sums(database: Database, clock: FakeClock) -> None:
    """After the first statement of a scrape others fold."""
    for _ in range(3):
        end(database)

    def others_come() -> None:
        with database.write() as connection:
            counts.fold(connection)

    seen: list[str] = []

    def after(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "cronjobs_counts" in statement and threading.current_thread() is threading.main_thread() and not seen:
            seen.append(statement)
            thread = threading.Thread(target=others_come)
            thread.start()
            thread.join()

    event.listen(database.engine, "after_cursor_execute", after)
    assert numbers(database) == {"succeeded": 3}
    assert seen


# --- when ticks fold --------------------------------------------------------------------------------------------------


def test_a_tick_folds_many_new_rows_at_once_and_few_in_the_hours_round(
    database: Database, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(database, tmp_path)
    host.tick()

    def left_by_a_tick_that_recovers_a_job() -> int:
        running(database, locked_until=clock.now() - DAY)
        assert host.tick().recovered == 1
        return unfolded(database)

    assert left_by_a_tick_that_recovers_a_job() == 2
    monkeypatch.setattr(counts, "MANY", 4)
    assert left_by_a_tick_that_recovers_a_job() == 0
    assert left_by_a_tick_that_recovers_a_job() == 2
    clock.advance(timedelta(hours=1))
    assert left_by_a_tick_that_recovers_a_job() == 0
    assert numbers(database, "attempts") == {"lost": 4}


# --- what is bounded --------------------------------------------------------------------------------------------------


def test_old_hours_go_and_what_ever_ended_stays(database: Database, clock: FakeClock) -> None:
    began = clock.now()
    for _ in range(4):
        end(database)
        clock.advance(timedelta(hours=1))
        with database.write() as connection:
            counts.fold(connection)
    clock.set(began + timedelta(hours=counts.KEPT_HOURS + 2))
    removed = 0
    with database.write() as connection:
        while counts.remove_old_hours(connection):
            removed += 1
    with database.read() as connection:
        left = connection.execute(
            text("SELECT count(DISTINCT at_hour) FROM cronjobs_counts WHERE at_hour > 0")
        ).scalar()
    assert (removed, left) == (2, 2)
    assert numbers(database) == {"succeeded": 4}


def test_names_beyond_the_first_ones_are_together(
    database: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the table, too; and a name that has a place keeps it."""
    monkeypatch.setitem(counts.MOST_NAMES, "jobs", 2)
    for names in ("aab", "ccccb", "d"):
        for name in names:
            end(database, job_type=name)
        for _ in range(2):
            with database.read() as connection:
                shown = {key.name for key in counts.all_that_ended(connection) if key.kind == "jobs"}
            assert shown == ({"a", "b"} if names == "aab" else {"a", "b", "other"})
            with database.write() as connection:
                counts.fold(connection)
    with database.read() as connection:
        found = counts.all_that_ended(connection)
    assert {key.name: each.number for key, each in found.items() if key.kind == "jobs"} == {"a": 2, "b": 2, "other": 5}


# --- odd rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("year", [1973, 9999])
def test_instants_of_1973_keep_no_end_from_being_written(database: Database, year: int) -> None:
    """What plain SQL may write: a job that waited for half a century, or for none of it."""
    at = datetime(year, 3, 4, tzinfo=UTC)
    for _ in range(2):
        end(database, run_at=at)
    with database.write() as connection:
        counts.fold(connection)
    with database.read() as connection:
        [waited] = [each for key, each in counts.all_that_ended(connection).items() if key.kind == "jobs"]
    assert waited.number == 2
    assert waited.micros == pytest.approx(2 * max(0, (database.clock.now() - at).total_seconds()) * 1e6)


def test_an_attempt_that_was_released_before_it_began_does_not_count(database: Database) -> None:
    """Earlier attempts in the job's history have been counted already, and are not counted again."""
    lease = running(database, attempts=2)
    now = database.clock.now()
    with database.write() as connection:
        before = {"job_id": lease.job_id, "attempt": 1, "outcome": "failed", "started_at": now, "finished_at": now}
        connection.execute(insert(job_runs).values(runner="me", **before))
        released = Finish(lease._replace(attempt=2), Status.QUEUED, 0, 0, 0, None, run_at=now)
        assert leases.finish(connection, [released]).written
    assert numbers(database, "attempts") == {}


# --- rights -----------------------------------------------------------------------------------------------------------


def test_whoever_may_only_enqueue_counts_by_the_function_and_by_nothing_else(postgres_migrated: str) -> None:
    in_psql(postgres_migrated, "INSERT INTO cronjobs_jobs (job_type) VALUES ('t')")
    with psycopg.connect(as_role(postgres_migrated, ENQUEUE)) as app:
        for table in ("cronjobs_counts", "cronjobs_new_counts"):
            for refused in (
                f"SELECT 1 FROM {table}",
                f"DELETE FROM {table}",
                f"UPDATE {table} SET count = 9",
                f"INSERT INTO {table} (at_hour, kind, name, outcome, bucket) VALUES (0, 'jobs', 't', 'dead', -1)",
                f"LOCK TABLE {table} IN ACCESS SHARE MODE",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege), app.transaction():
                    app.execute(refused)
        assert app.execute("SELECT cronjobs_cancel(1)").fetchone() == ("cancelled",)
        app.commit()
    with psycopg.connect(postgres_migrated) as owner:
        assert owner.execute("SELECT kind, name, outcome, count FROM cronjobs_new_counts").fetchall() == [
            ("jobs", "t", "cancelled", 1)
        ]


# --- every way --------------------------------------------------------------------------------------------------------

ENDS = re.compile(r"\bfinished_at = (?:CASE|\{|coalesce|:)")
KNOWN_ENDS = {
    "engine/store/leases.py": 1,  # finish
    "engine/store/operating.py": 1,  # CANCELLED: cancel, take_back, and an app's cancel on SQLite
    "engine/store/misfits.py": 1,  # give_up_outlived
}


def test_there_is_no_other_statement_that_ends_a_job() -> None:
    """A new one has to count, and to be an act in ``support.lives``; then it is added here."""
    package = Path(cronjobs.__file__).parent
    texts = {file.relative_to(package).as_posix(): file.read_text() for file in package.rglob("*.py")}
    assert {name: len(found) for name, code in texts.items() if (found := ENDS.findall(code))} == KNOWN_ENDS
