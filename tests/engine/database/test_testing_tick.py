"""``testing.tick``: whole ticks at any time, in the test's process, which they leave unchanged."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, NullPool, StaticPool, create_engine, text
from sqlalchemy.orm import Session
from support import billing
from support.databases import opened, until
from support.targets import plain_url

from cronjobs import Context, enqueue, job
from cronjobs.clock import SYSTEM
from cronjobs.engine.jobs import registry
from cronjobs.errors import ConfigError, GiveUp, RetryLater, Snooze, UsageError
from cronjobs.testing import Drained, Ran, Ticked, context, create_tables, drain, tick

YAML = """\
database: postgresql://production.example/shop
imports: [support.billing]
timezone: Europe/Berlin
job_types:
  billing.charge: {retry: {delays: [10m], max_attempts: 3}}
  say: {command: [echo, said]}
schedules:
  nightly: {cron: "15 2 * * *", job: billing.nightly}
"""
MIDNIGHT = datetime(2026, 3, 28, 23, 0, tzinfo=UTC)  # in Berlin, before the night in which 02:15 is not there


@pytest.fixture(autouse=True)
def _handlers_of_one_test() -> Iterator[None]:
    billing.sent.clear()
    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "cronjobs.yaml"
    file.write_text(YAML)
    return file


def add(url: str, job_type: str, run_at: datetime, **payload: int) -> None:
    with opened(url) as database, database.write() as connection:
        enqueue(connection, job_type, payload, run_at=run_at)


def results(url: str) -> list[tuple[str, str]]:
    with opened(url) as database, database.read() as connection:
        rows = connection.execute(text("SELECT status, result FROM cronjobs_jobs ORDER BY id"))
        return [(row.status, row.result.strip('"')) for row in rows]


def test_schedules_fire_and_jobs_run_at_any_time(database_url: str, file: Path) -> None:
    seen = tick(database_url, config=file, at=MIDNIGHT)
    assert (seen.ran, seen.occurrences, seen.ended) == ((), {}, "nothing is due")
    early = tick(database_url, config=file, at=MIDNIGHT + timedelta(hours=1, minutes=59))
    assert early.ran == ()
    fired = tick(database_url, config=file, at=MIDNIGHT + timedelta(hours=2))  # 03:00 in summer time, after the gap
    assert (fired.occurrences, [ran.became for ran in fired.ran]) == ({"enqueued": 1}, ["succeeded"])
    assert results(database_url) == [("succeeded", "2026-03-29T03:00:00+02:00")]
    week = tick(database_url, config=file, at=MIDNIGHT + timedelta(days=7, minutes=1))
    assert week.occurrences == {"enqueued": 1, "missed": 5}


@pytest.mark.parametrize("in_a_tick", [True, False])
def test_drain_and_tick_keep_what_a_session_flushed_in_ctx_transaction(
    database_url: str, file: Path, in_a_tick: bool
) -> None:
    @job("t.orm")
    def orm(ctx: Context) -> None:
        with ctx.transaction() as connection, Session(connection) as session:
            enqueue(session, "t.later", run_at=MIDNIGHT + timedelta(days=1))

    def kept(connection: Connection) -> int:
        return len(connection.execute(text("SELECT id FROM cronjobs_jobs WHERE job_type = 't.later'")).all())

    add(database_url, "t.orm", MIDNIGHT)
    if in_a_tick:
        assert tick(database_url, config=file, at=MIDNIGHT).succeeded
    with create_engine(plain_url(database_url), poolclass=NullPool).begin() as connection:
        if not in_a_tick:
            assert drain(connection, at=MIDNIGHT, outside=True).succeeded
        assert kept(connection) == 1


Block = Callable[[Connection, Exception | None], None]


def in_begin(connection: Connection, error: Exception | None) -> None:
    with Session(connection) as session, session.begin():
        enqueue(session, "t.later", run_at=MIDNIGHT + timedelta(days=1))
        if error is not None:
            raise error


def rolled_back_by_hand(connection: Connection, error: Exception | None) -> None:
    with Session(connection) as session:
        try:
            enqueue(session, "t.later", run_at=MIDNIGHT + timedelta(days=1))
            if error is not None:
                raise error
        except Exception:
            session.rollback()
            raise


def swallowed(connection: Connection, error: Exception | None) -> None:
    with suppress(Exception):
        in_begin(connection, error)


@pytest.mark.parametrize("in_a_tick", [True, False])
@pytest.mark.parametrize("block", [in_begin, rolled_back_by_hand])
@pytest.mark.parametrize(
    ("error", "became"),
    [
        (None, "succeeded"),
        (ValueError("no"), "failed"),
        (GiveUp("no"), "dead"),
        (RetryLater("no", after=timedelta(hours=3)), "failed"),
        (Snooze(timedelta(hours=3)), "snoozed"),
    ],
)
def test_an_orm_session_in_ctx_transaction_leaves_the_handlers_exception_as_it_is(
    database_url: str, file: Path, in_a_tick: bool, block: Block, error: Exception | None, became: str
) -> None:
    ran, written = ran_in_transaction(database_url, file, in_a_tick, block, error)
    assert (ran.became, written) == (became, int(error is None))
    assert "rollback" not in str(ran.error)
    if isinstance(error, RetryLater):
        assert ran.delay == timedelta(hours=3)


@pytest.mark.parametrize("in_a_tick", [True, False])
def test_a_block_that_an_orm_session_rolled_back_does_not_succeed(
    database_url: str, file: Path, in_a_tick: bool
) -> None:
    ran, written = ran_in_transaction(database_url, file, in_a_tick, swallowed, ValueError("no"))
    assert (ran.became, written) == ("failed", 0)
    assert "rollback() inside ctx.transaction()" in str(ran.error)


def ran_in_transaction(
    database_url: str, file: Path, in_a_tick: bool, block: Block, error: Exception | None
) -> tuple[Ran, int]:
    """Run a job whose handler is *block* in a tick or in drain. Also return how many jobs the block enqueued."""

    @job("t.orm")
    def orm(ctx: Context) -> None:
        with ctx.transaction() as connection:
            block(connection, error)

    add(database_url, "t.orm", MIDNIGHT)
    with create_engine(plain_url(database_url), poolclass=NullPool).begin() as connection:
        if not in_a_tick:
            [ran] = drain(connection, at=MIDNIGHT, outside=True).ran
    if in_a_tick:
        [ran] = tick(database_url, config=file, at=MIDNIGHT).ran
    with create_engine(plain_url(database_url), poolclass=NullPool).begin() as connection:
        written = connection.execute(text("SELECT count(*) FROM cronjobs_jobs WHERE job_type = 't.later'"))
        return ran, int(written.scalar_one())


def test_retries_wait_as_the_file_says(database_url: str, file: Path) -> None:
    add(database_url, "billing.charge", MIDNIGHT, invoice_id=-1)
    [failed] = tick(database_url, config=file, at=MIDNIGHT).failed
    assert failed.delay is not None
    assert timedelta(minutes=8) <= failed.delay <= timedelta(minutes=12)
    assert tick(database_url, config=file, at=MIDNIGHT + timedelta(minutes=7)).ran == ()
    [again] = tick(database_url, config=file, at=MIDNIGHT + timedelta(minutes=13)).failed
    assert again.attempt == 2
    [dead] = tick(database_url, config=file, at=MIDNIGHT + timedelta(hours=1)).dead
    assert "card of invoice -1" in str(dead.error)


def test_the_same_handlers_run_in_memory_on_a_file_and_on_postgresql(empty_url: str) -> None:
    """Called by itself, drained in memory, ticked on a real database: nothing of the module changes."""
    assert billing.charge(context(), invoice_id=7) == {"receipt": "receipt 7", "try": 1, "late": False}
    ends: list[Drained | Ticked] = []
    for url in ("sqlite://", plain_url(empty_url)):
        engine = create_engine(url, poolclass=StaticPool if url == "sqlite://" else NullPool)
        with engine.begin() as connection:
            create_tables(connection)
            connection.execute(text("CREATE TABLE bookings (invoice_id int)"))
            enqueue(connection, "billing.book", {"invoice_id": 7})
            if url == "sqlite://":
                ends.append(drain(connection))
        if url != "sqlite://":
            ends.append(tick(engine))
        with engine.connect() as connection:
            assert connection.execute(text("SELECT invoice_id FROM bookings")).scalars().all() == [7]
        engine.dispose()
    assert [[(ran.job_type, ran.became) for ran in end.ran] for end in ends] == [
        [("billing.book", "succeeded"), ("billing.charge", "succeeded")]
    ] * 2
    assert billing.sent == [7, 7, 7]


def test_the_tables_are_made_where_they_are_missing(empty_url: str) -> None:
    assert tick(empty_url).ended == "nothing is due"
    with opened(empty_url) as database, database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM cronjobs_ticks")).scalar_one() == 1


def test_commands_run_as_processes_and_unknown_types_are_told(sqlite_migrated: str, file: Path) -> None:
    url = f"sqlite:///{sqlite_migrated}"
    add(url, "say", MIDNIGHT)
    add(url, "nobody.s", MIDNIGHT)
    ticked = tick(url, config=file, at=MIDNIGHT)
    assert ([ran.became for ran in ticked.ran], ticked.unresolved) == (["succeeded"], {"nobody.s": 1})


def _armed() -> tuple[object, ...]:
    """What ends this process, and how it hears of it."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    return signal.getitimer(signal.ITIMER_REAL), *(signal.getsignal(number) for number in signals)


def test_the_process_is_left_as_it_was(sqlite_migrated: str) -> None:
    url = f"sqlite:///{sqlite_migrated}"
    seen = []

    @job("t.look")
    def look() -> None:
        seen.append((threading.current_thread().name, *_armed()))

    add(url, "t.look", SYSTEM.now())
    threads, before = set(threading.enumerate()), _armed()
    assert len(tick(url).succeeded) == 1
    assert seen == [("cronjobs-worker-1", *before)]
    assert _armed() == before
    until(lambda: set(threading.enumerate()) <= threads)


def test_what_a_tick_would_end_in_is_raised(sqlite_migrated: str, file: Path) -> None:
    url = f"sqlite:///{sqlite_migrated}"
    with pytest.raises(UsageError, match="module nowhere: cannot be imported"):
        tick(url, imports=["nowhere"])
    with pytest.raises(UsageError, match="an in-memory SQLite database disappears"):
        tick("sqlite://")
    file.write_text(YAML.replace("15 2", "61 2"))
    with pytest.raises(ConfigError, match="minute 61"):
        tick(url, config=file)
