"""A job whose row cannot be read, for whatever reason, dies with the reason, and every other job runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text
from support.databases import opened, until

from cronjobs import RetryPolicy, enqueue, enqueue_many, job
from cronjobs.engine.database import connection as connections
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs import registry
from cronjobs.engine.probe.sql_text import statement_text
from cronjobs.engine.rules.ending import FIRST_UNREAD, NEVER_READ
from cronjobs.engine.store import claims, expiry, job_rows, sql
from cronjobs.engine.store.ticks import NO_SIGNS, DeathSigns, signs_of_death
from cronjobs.engine.tick import turn as turns
from cronjobs.engine.tick.claim_planner import WARY_ROWS
from cronjobs.engine.tick.loop import Loop
from cronjobs.engine.tick.result import NOTHING_DUE
from cronjobs.errors import DatabaseBusy, DatabaseError, DatabaseUnreachable
from cronjobs.testing import FakeClock, tick

GOOD = 5
LATER = timedelta(seconds=125)  # every lease of a dead tick has ended by then

ran: Counter[int] = Counter()


class Killed(BaseException):
    """The end of a process: nothing catches it, and what is not committed is gone."""


@pytest.fixture(autouse=True)
def _handlers_of_one_test() -> Iterator[None]:
    before = dict(registry._registered)
    ran.clear()

    @job("t.keep")
    def keep(n: int, poison: bool = False) -> None:
        ran[n] += 1

    @job("t.pay", on_lost="dead", retry=RetryPolicy(max_attempts=1))
    def pay(n: int, poison: bool = False) -> None:
        ran[n] += 1

    yield
    registry._registered.clear()
    registry._registered.update(before)


def reading_raises(monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException], times: int = 10**6) -> None:
    """Let each read of a poison row raise, in a claim and alone; so many *times*."""
    assert vars(expiry)["job_from"] is job_rows.job_from  # loaded by now: recovery reads no payload
    real, left = job_rows.job_from, [times]

    def read(row: Sequence[Any]) -> Any:
        found = real(row)
        if isinstance(found.payload, dict) and "poison" in found.payload and left[0]:
            left[0] -= 1
            raise error()
        return found

    monkeypatch.setattr(claims, "job_from", read)
    monkeypatch.setattr(job_rows, "job_from", read)


def reading_takes_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server take a minute for each poison row, and statements less than that."""
    slow = "CASE WHEN j.payload ? 'poison' THEN (SELECT j.payload FROM pg_sleep(60)) ELSE j.payload END AS payload, "
    begin, end = job_rows.FACTS.split(" AS queue", 1)
    before = begin.partition("j.job_type,")[0] + "j.job_type, "
    facts = f"{before}{slow}j.meta AS meta, j.queue AS queue{end}"

    def with_slow_facts(statement: str, **options: Any) -> str:
        return statement_text(statement.replace(job_rows.FACTS, facts), **options)

    monkeypatch.setattr(sql, "statement_text", with_slow_facts)
    monkeypatch.setattr(claims, "READ_WITHIN_S", 0.05)
    opening = connections._POSTGRESQL_BEGIN.replace("15000", "500")
    assert opening != connections._POSTGRESQL_BEGIN
    monkeypatch.setattr(connections, "_POSTGRESQL_BEGIN", opening)
    sql._prepare.cache_clear()


@pytest.fixture(autouse=True)
def _no_statement_of_another_test() -> Iterator[None]:
    yield
    sql._prepare.cache_clear()


def put(url: str, poison: int, job_type: str = "t.keep") -> None:
    with opened(url) as database, database.write() as connection:
        for n in range(poison):
            enqueue(connection, job_type, {"n": GOOD + n, "poison": True}, priority=0)
        for n in range(GOOD):
            enqueue(connection, "t.keep", {"n": n})


def statuses(url: str) -> Counter[tuple[str, str | None]]:
    with opened(url) as database, database.read() as connection:
        rows = connection.execute(text("SELECT status, last_error FROM cronjobs_jobs")).all()
    return Counter((row.status, row.last_error) for row in rows)


def ticks_until_done(url: str, clock: FakeClock, most: int) -> list[int]:
    """After each tick, the number of good jobs that have run; it ends when no job waits or runs."""
    seen = []
    for _ in range(most):
        clock.advance(LATER)
        try:
            tick(url, clock=clock)
        except Killed:
            pass
        seen.append(sum(ran.values()))
        if {status for status, _ in statuses(url)} <= {"dead", "succeeded"}:
            break
    return seen


@pytest.mark.parametrize("job_type", ["t.keep", "t.pay"])
def test_rows_that_take_too_much_memory_are_dead_when_two_ticks_have_found_so(
    database_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, job_type: str
) -> None:
    put(database_url, 40, job_type)
    reading_raises(monkeypatch, MemoryError)
    assert ticks_until_done(database_url, clock, 5) == [GOOD] * 3  # the third records what the second found
    assert statuses(database_url) == {("dead", NEVER_READ): 40, ("succeeded", None): GOOD}
    assert set(ran.values()) == {1}


@pytest.mark.slow
def test_rows_that_take_the_server_too_long_are_dead_when_two_ticks_have_found_so(
    postgres_migrated: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(postgres_migrated, 40)
    reading_takes_for_ever(monkeypatch)
    assert ticks_until_done(postgres_migrated, clock, 5) == [GOOD] * 3
    assert statuses(postgres_migrated) == {("dead", NEVER_READ): 40, ("succeeded", None): GOOD}
    assert set(ran.values()) == {1}


@pytest.mark.parametrize("job_type", ["t.keep", "t.pay"])
def test_rows_that_kill_each_tick_that_reads_them_are_dead_when_two_were_killed(
    database_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, job_type: str
) -> None:
    poison = 4
    put(database_url, poison, job_type)
    reading_raises(monkeypatch, Killed)
    # The first is killed in its claim and leaves no lease. Then each row kills one, after which all else runs, and one.
    seen = ticks_until_done(database_url, clock, 2 * poison + 3)
    assert seen == [0] * (1 + poison) + [GOOD] * (1 + poison)
    assert statuses(database_url) == {("dead", NEVER_READ): poison, ("succeeded", None): GOOD}
    assert set(ran.values()) == {1}


def test_no_row_that_took_a_tick_down_is_read_while_an_attempt_runs_here(
    database_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That attempt would die with the tick, and it may be one that must not be lost."""
    looks, running, seen_running = [0], [False], []
    real_claim, real_note = claims.claim_warily, claims.note_read  # a tick has died lately

    def claim(*arguments: Any, **options: Any) -> Any:
        looks[0] += not options["admission"].doubtful
        return real_claim(*arguments, **options)

    def note_read(*arguments: Any) -> bool:
        seen_running.append(running[0])
        return real_note(*arguments)

    monkeypatch.setattr(claims, "claim_warily", claim)
    monkeypatch.setattr(claims, "note_read", note_read)

    @job("t.slow")
    def slow() -> None:
        running[0], began = True, looks[0]
        until(lambda: looks[0] >= began + 2)  # the loop has looked for more, and found only the row
        running[0] = False

    with opened(database_url) as database, database.write() as connection:
        enqueue(connection, "t.keep", {"n": 1, "poison": True})
    reading_raises(monkeypatch, Killed, times=2)
    for _ in range(2):
        clock.advance(LATER)
        with pytest.raises(Killed):
            tick(database_url, clock=clock)
    with opened(database_url) as database, database.write() as connection:
        enqueue(connection, "t.slow", {})
    seen_running.clear()
    clock.advance(LATER)
    tick(database_url, clock=clock)
    assert seen_running == [False, False]  # one value for the slow job, and one for the row
    assert Counter(status for status, _ in statuses(database_url).elements()) == {"succeeded": 2}


def first_reads_fail(monkeypatch: pytest.MonkeyPatch, error: DatabaseError, times: int) -> list[int]:
    """Let so many reads of rows, by themselves, end before they began; how many there were."""
    real, reads = claims.note_read, [0]

    def note_read(*arguments: Any) -> bool:
        reads[0] += 1
        if reads[0] <= times:
            raise error
        return real(*arguments)

    monkeypatch.setattr(claims, "note_read", note_read)
    return reads


@pytest.mark.parametrize("trouble", [DatabaseBusy("db", 0.2), DatabaseUnreachable("db", "it is away")])
def test_a_row_is_read_a_moment_later_where_the_database_was_busy_or_away(
    database_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, trouble: DatabaseError
) -> None:
    """That is no fault of the row: a second time would make a good job dead that never ran."""
    with opened(database_url) as database, database.write() as connection:
        enqueue(connection, "t.keep", {"n": 1, "poison": True})
    reading_raises(monkeypatch, MemoryError, times=1)  # so that the tick claims row by row
    reads = first_reads_fail(monkeypatch, trouble, 3)
    clock.advance(LATER)
    tick(database_url, clock=clock)
    assert reads == [4]
    assert statuses(database_url) == {("succeeded", None): 1}
    assert ran == {1: 1}


def wary_tick(url: str, clock: FakeClock) -> None:
    clock.advance(LATER)
    tick(url, clock=clock)


@pytest.mark.parametrize("trouble", [DatabaseBusy("db", 0.2), DatabaseUnreachable("db", "it is away")])
def test_a_row_that_a_busy_database_keeps_unread_goes_back_unmarked_however_often(
    database_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, trouble: DatabaseError
) -> None:
    with opened(database_url) as database, database.write() as connection:
        enqueue(connection, "t.keep", {"n": 1})
    monkeypatch.setattr(Loop, "__post_init__", warily(Loop.__post_init__))
    monkeypatch.setattr(turns, "READ_AGAIN_S", 0.0)
    first_reads_fail(monkeypatch, trouble, 5)
    for _ in range(6):
        wary_tick(database_url, clock)
        assert statuses(database_url).keys() <= {("queued", None), ("succeeded", None)}
    assert statuses(database_url) == {("succeeded", None): 1}
    assert ran == {1: 1}


def warily(init: Callable[[Loop], None]) -> Callable[[Loop], None]:
    """Let ticks claim each row by itself, as after the death of a tick."""

    def begin(loop: Loop) -> None:
        loop.signs = DeathSigns(deaths=2, doubtful=loop.signs.doubtful)
        init(loop)

    return begin


def test_a_row_whose_reading_ends_the_connection_is_read_once_in_a_tick_and_dead_after_two(
    postgres_migrated: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row may have ended the server's process, and with it every other session."""
    put(postgres_migrated, 1)
    monkeypatch.setattr(Loop, "__post_init__", warily(Loop.__post_init__))
    real, reads = sql.run, Counter[int]()

    def run(connection: Connection, statement: str, **values: Any) -> Any:
        if statement == f"SELECT {job_rows.FACTS} {job_rows._IF_LEASED}" and values["id"] == 1:
            reads[1] += 1
            end_session_of(connection, postgres_migrated)
        return real(connection, statement, **values)

    monkeypatch.setattr(job_rows, "run", run)
    for seen in (1, 2, 2):
        wary_tick(postgres_migrated, clock)
        assert reads == {1: seen}
    assert statuses(postgres_migrated) == {("dead", NEVER_READ): 1, ("succeeded", None): GOOD}


def end_session_of(connection: Connection, url: str) -> None:
    pid = connection.connection.dbapi_connection.info.backend_pid  # type: ignore[union-attr]
    with opened(url) as other, other.write() as ending:
        ending.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})


@pytest.mark.parametrize("at", ["SAVEPOINT", "TAKE", "RELEASE"])
def test_a_connection_that_is_lost_in_a_savepoint_is_no_fault_of_the_row(
    postgres_migrated: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    put(postgres_migrated, 0)
    monkeypatch.setattr(Loop, "__post_init__", warily(Loop.__post_init__))
    ended = [False]

    def end(connection: Connection) -> None:
        if not ended[0]:
            ended[0] = True
            end_session_of(connection, postgres_migrated)

    nested, run = Connection.begin_nested, sql.run

    def begin_nested(connection: Connection) -> Any:
        if at == "SAVEPOINT":
            end(connection)
        return nested(connection)

    def run_and_end(connection: Connection, statement: str, **values: Any) -> Any:
        if statement == claims.TAKE_UNREAD and at == "TAKE":
            end(connection)
        found = run(connection, statement, **values)
        if statement == claims.TAKE_UNREAD and at == "RELEASE":
            end(connection)
        return found

    monkeypatch.setattr(Connection, "begin_nested", begin_nested)
    monkeypatch.setattr(claims, "run", run_and_end)
    clock.advance(LATER)
    assert tick(postgres_migrated, clock=clock).ended == NOTHING_DUE
    assert ended == [True]
    assert statuses(postgres_migrated) == {("succeeded", None): GOOD}
    assert set(ran.values()) == {1}


def test_a_reading_whose_commit_had_no_reply_is_found_in_the_rows(
    database_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(database_url, 0)
    monkeypatch.setattr(Loop, "__post_init__", warily(Loop.__post_init__))
    write, lost = Database.write, [0]

    @contextmanager
    def without_reply(database: Database, **options: Any) -> Iterator[Connection]:
        noted = False
        real = claims.note_read

        def note_read(*arguments: Any) -> bool:
            nonlocal noted
            noted = real(*arguments)
            return noted

        with monkeypatch.context() as patched:
            patched.setattr(claims, "note_read", note_read)
            with write(database, **options) as connection:
                yield connection
        if noted and not lost[0]:
            lost[0] += 1
            raise DatabaseUnreachable("db", "it is away")

    monkeypatch.setattr(Database, "write", without_reply)
    wary_tick(database_url, clock)
    assert lost == [1]
    assert statuses(database_url) == {("succeeded", None): GOOD}
    assert ran == dict.fromkeys(range(GOOD), 1)


def test_a_row_that_can_be_read_the_second_time_runs_and_its_first_time_is_forgotten(
    database_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(database_url) as database, database.write() as connection:
        enqueue(connection, "t.pay", {"n": 1})
        connection.execute(text('UPDATE cronjobs_jobs SET meta = \'{"poison": "1"}\''))
    real, left = job_rows.job_from, [2]

    def read(row: Sequence[Any]) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise Killed
        return real(row)

    monkeypatch.setattr(claims, "job_from", read)
    monkeypatch.setattr(job_rows, "job_from", read)
    told: list[tuple[str, str | None]] = []
    for _ in range(4):
        clock.advance(LATER)
        try:
            tick(database_url, clock=clock)
        except Killed:
            pass
        told += statuses(database_url)
    assert told == [
        ("queued", None),
        ("running", None),
        ("succeeded", FIRST_UNREAD.error),
        ("succeeded", FIRST_UNREAD.error),
    ]
    assert ran == {1: 1}


def test_after_a_tick_that_came_to_its_end_the_next_one_claims_as_ever(database_url: str, clock: FakeClock) -> None:
    put(database_url, 0)
    clock.advance(LATER)
    tick(database_url, clock=clock)
    clock.advance(LATER)
    with opened(database_url) as database, database.read() as connection:
        assert signs_of_death(connection, timedelta(seconds=55)) == NO_SIGNS


def claims_alone(url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a tick, and return how many rows it claimed alone."""
    real, found = claims.claim_warily, [0]

    def claim(*arguments: Any, **options: Any) -> Any:
        claimed = real(*arguments, **options)
        found[0] += len(claimed.unread)
        return claimed

    with monkeypatch.context() as patched:
        patched.setattr(claims, "claim_warily", claim)
        assert tick(url, clock=clock).ended == NOTHING_DUE
    return found[0]


@pytest.mark.parametrize(("deaths", "alone"), [(0, 0), (1, WARY_ROWS), (2, 2 * WARY_ROWS)])
def test_a_tick_that_was_killed_does_not_slow_down_all_of_the_next_one(
    database_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, deaths: int, alone: int
) -> None:
    """A ``kill -9`` looks like a row that killed a tick. Only if that happens again are all rows claimed alone."""
    reading_raises(monkeypatch, Killed)
    for _ in range(deaths):
        put(database_url, 1)
        clock.advance(LATER)
        with pytest.raises(Killed):
            tick(database_url, clock=clock)
        with opened(database_url) as database, database.write() as connection:
            connection.execute(text("DELETE FROM cronjobs_jobs"))
    with opened(database_url) as database, database.write() as connection:
        enqueue_many(connection, "t.keep", [{"n": n} for n in range(2 * WARY_ROWS)])
    clock.advance(LATER)
    assert claims_alone(database_url, clock, monkeypatch) == alone
    assert set(ran.values()) == {1}
    assert len(ran) == 2 * WARY_ROWS


CHANGES = {
    "another runner has the job": "UPDATE cronjobs_jobs SET locked_by = 'other', attempts = attempts + 1 WHERE id = 1",
    "its lease ended": "UPDATE cronjobs_jobs SET status = 'queued', locked_by = NULL, locked_until = NULL WHERE id = 1",
    "it was deleted": "DELETE FROM cronjobs_jobs WHERE id = 1",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("unreadable", [False, True])
def test_no_lease_is_taken_for_ours_that_changed_while_the_rows_were_read_one_by_one(
    postgres_migrated: str, monkeypatch: pytest.MonkeyPatch, change: str, unreadable: bool
) -> None:
    """In READ COMMITTED, each statement sees what other sessions have committed by then."""
    put(postgres_migrated, 0)
    leased = "status = 'running', locked_by = 'us', locked_until = now() + interval '1 min', attempts = 1"
    with opened(postgres_migrated) as database:
        with database.write() as connection:
            connection.execute(text(f"UPDATE cronjobs_jobs SET {leased} WHERE id IN (1, 2)"))
        real = Connection.begin_nested
        changed = [False]

        def begin_nested(connection: Connection) -> Any:
            if not changed[0]:
                changed[0] = True
                with database.write() as other:
                    other.execute(text(CHANGES[change]))
            return real(connection)

        monkeypatch.setattr(Connection, "begin_nested", begin_nested)
        if unreadable:
            facts = job_rows.FACTS.replace("j.payload", "CAST(1 / (j.id - j.id) AS text)::jsonb", 1)
            monkeypatch.setattr(job_rows, "FACTS", facts)
        with database.write() as connection:
            assert [job.id for job in claims.held_by(connection, "us", warily=True)] == [2]
        assert changed == [True]
