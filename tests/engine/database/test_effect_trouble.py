"""The effects ledger while the database has problems: lost answers, locked rows, outages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection
from sqlalchemy import create_engine as engine_of
from support.commands import until
from support.ledger import KEY, Jobs

from cronjobs.clock import SYSTEM
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.context import StopSignal
from cronjobs.engine.jobs.effects import LEAST_PATIENCE_S, Effect, OnUnknown
from cronjobs.errors import (
    Cancelled,
    CommitUnknown,
    DatabaseBusy,
    DatabaseError,
    EffectNotRecorded,
    EffectUnknown,
    LeaseLost,
)
from cronjobs.model import Job
from cronjobs.testing import FakeClock


@pytest.fixture
def jobs(database: Database, clock: FakeClock) -> Jobs:
    return Jobs(database, clock)


class Trouble:
    """Makes ``Database.write`` fail: *before* the block, or after its COMMIT."""

    def __init__(self, database: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: list[tuple[str, DatabaseError]] = []
        self.tries = 0
        self.each_takes_s = 0.0
        self.then: Callable[[], None] = lambda: None
        write = database.write

        @contextmanager
        def troubled(**options: Any) -> Iterator[Connection]:
            self.tries += 1
            clock.advance(timedelta(seconds=self.each_takes_s))
            when, error = self.left.pop(0) if self.left else ("", None)
            if error is not None and when == "before":
                self.then()
                raise error
            with write(**options) as connection:
                yield connection
            if error is not None:
                raise error

        monkeypatch.setattr(database, "write", troubled)
        monkeypatch.setattr("cronjobs.engine.database.retrying.sleep", lambda _: None)


@pytest.fixture
def trouble(database: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Trouble:
    return Trouble(database, clock, monkeypatch)


BUSY = ("before", DatabaseBusy("db", 1.0))
LOST_ANSWER = ("after", CommitUnknown("db", "server closed the connection"))
BROKEN = ("before", DatabaseError("permission denied"))


def test_a_beginning_whose_answer_was_lost_is_no_unknown_effect(jobs: Jobs, trouble: Trouble) -> None:
    job = jobs.claimed()
    trouble.left = [LOST_ANSWER, LOST_ANSWER]
    with jobs.context(job).effect(KEY, on_unknown="stop") as effect:
        assert (effect.done, effect.unknown) == (False, False)
    assert jobs.effects() == {KEY: ("recorded", job.id, 1, None)}


def test_an_unknown_effect_stays_unknown_when_an_answer_is_lost(jobs: Jobs, trouble: Trouble) -> None:
    job = jobs.unknown()
    trouble.left = [LOST_ANSWER]
    with jobs.context(job).effect(KEY) as effect:
        assert effect.unknown


@pytest.mark.parametrize("on_unknown", ["skip", "stop"])
def test_a_decision_whose_answer_was_lost_stays_the_same(jobs: Jobs, trouble: Trouble, on_unknown: OnUnknown) -> None:
    job = jobs.unknown()
    trouble.left = [LOST_ANSWER, BUSY]
    stopped = False
    try:
        with jobs.context(job).effect(KEY, on_unknown=on_unknown) as effect:
            assert effect.done
    except EffectUnknown:
        stopped = True
    assert stopped == (on_unknown == "stop")


def test_an_end_whose_answer_was_lost_is_recorded_once(jobs: Jobs, trouble: Trouble) -> None:
    job = jobs.claimed()
    with jobs.context(job).effect(KEY) as effect:
        trouble.left = [LOST_ANSWER]
        effect.result = 1
    assert jobs.effects() == {KEY: ("recorded", job.id, 1, 1)}


@pytest.mark.parametrize("error", [BUSY, BROKEN], ids=["passing", "lasting"])
def test_what_was_done_is_recorded_as_soon_as_the_database_takes_it(
    jobs: Jobs, trouble: Trouble, error: tuple[str, DatabaseError]
) -> None:
    job = jobs.claimed()
    with jobs.context(job).effect(KEY):
        trouble.left, trouble.each_takes_s = [error] * 15, 1.0
    assert jobs.effects() == {KEY: ("recorded", job.id, 1, None)}


def test_what_was_done_is_recorded_also_past_the_time_out(jobs: Jobs, trouble: Trouble, clock: FakeClock) -> None:
    ctx = jobs.context(jobs.claimed())
    with ctx.effect(KEY):
        clock.advance(timedelta(seconds=60))
        assert ctx.remaining_s == 0
        trouble.left, trouble.each_takes_s = [BUSY] * 3, 1.0
    assert jobs.effects()[KEY][0] == "recorded"


def test_a_record_that_is_never_taken_ends_in_an_error_that_says_so(jobs: Jobs, trouble: Trouble) -> None:
    job = jobs.claimed()

    def break_it(_: Effect) -> None:
        trouble.tries = 0
        trouble.left, trouble.each_takes_s = [BUSY] * 100, 1.0

    with pytest.raises(EffectNotRecorded, match="was done but could not be recorded"):
        jobs.do(job, break_it, timeout=timedelta(seconds=1))
    assert trouble.tries <= LEAST_PATIENCE_S + 1
    trouble.left = []
    assert jobs.effects() == {KEY: ("begun", job.id, 1, None)}


def test_a_withdrawal_that_is_never_taken_does_not_hide_why_the_body_ended(jobs: Jobs, trouble: Trouble) -> None:
    job = jobs.claimed()

    def break_it(effect: Effect) -> None:
        trouble.left, trouble.each_takes_s = [BUSY] * 100, 5.0
        effect.did_nothing()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        jobs.do(job, break_it)
    trouble.left = []
    assert jobs.effects() == {KEY: ("begun", job.id, 1, None)}


def test_a_beginning_is_tried_while_the_job_has_time_and_no_longer(jobs: Jobs, trouble: Trouble) -> None:
    ctx = jobs.context(jobs.claimed())
    trouble.left, trouble.each_takes_s = [BUSY] * 5, 1.0
    with ctx.effect(KEY):
        pass
    trouble.left = [BUSY] * 100
    with pytest.raises(DatabaseBusy), ctx.effect("other"):
        pytest.fail("the body ran")
    assert ctx.remaining_s <= 2


def test_a_beginning_is_not_tried_again_for_a_job_that_is_to_stop_nor_in_lasting_trouble(
    jobs: Jobs, trouble: Trouble
) -> None:
    stop = StopSignal()
    ctx = jobs.context(jobs.claimed(), stop=stop)
    trouble.left = [BROKEN, BUSY]
    with pytest.raises(DatabaseError, match="permission"), ctx.effect(KEY):
        pytest.fail("the body ran")
    trouble.then = lambda: stop.set("shutdown")
    with pytest.raises(Cancelled, match="shutdown"), ctx.effect(KEY):
        pytest.fail("the body ran")
    assert jobs.effects() == {}


@pytest.mark.slow
@pytest.mark.parametrize(("table", "column"), [("cronjobs_jobs", "queue"), ("cronjobs_effects", "state")])
def test_rows_that_a_foreign_session_holds_do_not_block_for_ever(
    jobs: Jobs, database_url: str, table: str, column: str
) -> None:
    job = jobs.claimed()
    with pytest.raises(ZeroDivisionError), jobs.context(job).effect(KEY):
        raise ZeroDivisionError
    engine = engine_of(parse_url(database_url).url)
    with engine.connect() as foreign:
        foreign.exec_driver_sql(f"UPDATE {table} SET {column} = {column}")
        began = SYSTEM.monotonic()
        with pytest.raises(DatabaseBusy), jobs.context(job, timeout=timedelta(seconds=0.5)).effect(KEY):
            pytest.fail("the body ran")
        assert SYSTEM.monotonic() - began < 60
        foreign.rollback()
    engine.dispose()
    with jobs.context(job).effect(KEY) as effect:
        assert effect.unknown


# --- two transactions at once on PostgreSQL; on SQLite a writer is alone ----------------------------------------------


@pytest.fixture
def pg_jobs(postgres_migrated: str, clock: FakeClock) -> Iterator[Jobs]:
    database = Database(parse_url(postgres_migrated), clock=clock)
    yield Jobs(database, clock)
    database.close()


def entering(jobs: Jobs, job: Job, foreign_change: str) -> Any:
    """Enter an effect while a foreign transaction has changed a row, which commits when the entry waits for it."""
    entered: list[Any] = []

    def enter() -> None:
        try:
            with jobs.context(job).effect(KEY) as effect:
                entered.append(effect.done)
        except LeaseLost as error:
            entered.append(error)

    with psycopg.connect(jobs.database.address.url.set(drivername="postgresql").render_as_string(False)) as foreign:
        foreign.execute(foreign_change)
        thread = threading.Thread(target=enter)
        thread.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'cronjobs'"
        until(lambda: entered or foreign.execute(waits).fetchone() == (1,))
        foreign.commit()
        thread.join()
    [found] = entered
    return found


def test_a_beginning_waits_for_whoever_is_taking_the_job_over(pg_jobs: Jobs) -> None:
    job = pg_jobs.claimed()
    change = f"UPDATE cronjobs_jobs SET attempts = 2, locked_by = 'host:2' WHERE id = {job.id}"
    assert isinstance(entering(pg_jobs, job, change), LeaseLost)
    assert pg_jobs.effects() == {}


def test_a_beginning_waits_for_a_late_end_that_is_just_being_recorded(pg_jobs: Jobs) -> None:
    job = pg_jobs.unknown()
    assert entering(pg_jobs, job, "UPDATE cronjobs_effects SET state = 'recorded', recorded_at = now()") is True
    assert pg_jobs.effects()[KEY][0] == "recorded"
