"""Many schedules at once, on both databases: a few statements handle all, and a bad schedule affects only itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text, update
from support.databases import opened
from support.ticking import Project
from support.yard import MINUTE, START, Yard, at, broken, minutely, names, statements

from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import schedules
from cronjobs.engine.jobs.enqueue import enqueue
from cronjobs.engine.rules.capacity import Cap
from cronjobs.engine.schedules import chunks, decide
from cronjobs.engine.schedules import materialise as core
from cronjobs.engine.schedules.materialise import materialise
from cronjobs.engine.store import schedules as store
from cronjobs.engine.store.job_types import REMEMBERED
from cronjobs.engine.store.queues import put_caps
from cronjobs.errors import DatabaseBusy
from cronjobs.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def yard(database: Database, clock: FakeClock, tmp_path: Path) -> Yard:
    return Yard(database, clock, tmp_path)


def many(yard: Yard, count: int, **fields: Any) -> None:
    yard.sync(yard.file(*(minutely(name=name, **fields) for name in names(count))))


def define(yard: Yard, name: str, **fields: Any) -> None:
    """Change a stored definition, as a newer version or somebody with SQL may do."""
    with yard.database.write() as connection:
        [row] = [row for row in store.all_schedules(connection) if row.name == name]
        changed = row.definition | fields
        connection.execute(update(schedules).where(schedules.c.name == name).values(definition=changed))


def test_the_number_of_statements_does_not_grow_with_the_number_of_schedules(yard: Yard) -> None:
    for count in (2, 60):
        yard.sync(
            yard.file(
                *(minutely(name=name, catch_up="all", overlap="allow") for name in names(count)),
                *(minutely(name=f"late-{name}") for name in names(count)),
            )
        )
        yard.clock.advance(timedelta(minutes=5))
        with statements(yard.database) as seen:
            done = yard.tick()
        assert done.counts["enqueued"] == 5 * count + count
        assert len(seen) < 20
        yard.finish_jobs()


def test_each_job_is_named_by_the_ledger_row_of_its_occurrence(yard: Yard) -> None:
    many(yard, 7, catch_up="all", overlap="allow")
    yard.clock.advance(timedelta(minutes=3))
    yard.tick()
    with yard.database.read() as connection:
        rows = connection.execute(
            text(
                "SELECT count(*) FROM cronjobs_occurrences c JOIN cronjobs_schedules s ON s.id = c.schedule_id "
                "JOIN cronjobs_jobs j ON j.id = c.job_id AND j.schedule = s.name AND j.scheduled_for = c.last_for"
            )
        ).scalar()
    assert rows == 21


def test_chunks_are_whole_schedules_and_bounded_by_jobs_and_bytes(monkeypatch: pytest.MonkeyPatch, yard: Yard) -> None:
    many(yard, 6, catch_up="all", overlap="allow", payload={"text": "x" * 100})
    now = yard.clock.advance(timedelta(minutes=3))
    with yard.database.read() as connection:
        planned = [decide.plan_for(stored, now) for stored in store.due_schedules(connection)]
    due = [found for found in planned if found is not None]
    for name, most, sizes in (
        ("CHUNK", 4, [4, 2]),
        ("CHUNK_JOBS", 7, [2, 2, 2]),
        ("CHUNK_JOBS", 2, [1] * 6),
        ("CHUNK_BYTES", 1100, [3, 3]),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(chunks, name, most)
            assert [len(chunk) for chunk in chunks.chunks(due, core.weight)] == sizes, name


# --- one bad schedule -------------------------------------------------------------------------------------------------

UNREADABLE: list[Any] = [
    {"job": "t.say", "cron": "61 * * * *"},
    {"job": "t.say", "cron": "0 0 L * *", "timezone": "UTC"},
    {"job": "t.say", "cron": "* * * * *", "timezone": "Mars/Olympus"},
    {"job": "t.say", "every_s": 0.5},
    {"job": "t.say"},
    {},
    [],
    ["cron"],
    "cron",
    7,
    None,
]


def test_definitions_that_cannot_be_read_stop_only_themselves(yard: Yard) -> None:
    many(yard, len(UNREADABLE) + 2)
    with yard.database.write() as connection:
        for name, definition in zip(names(len(UNREADABLE)), UNREADABLE, strict=True):
            wanted = "CAST(:d AS jsonb)" if not yard.database.is_sqlite else ":d"
            connection.execute(
                text(f"UPDATE cronjobs_schedules SET definition = {wanted} WHERE name = :n"),
                {"d": json.dumps(definition), "n": name},
            )
        if yard.database.is_sqlite:
            connection.execute(text("UPDATE cronjobs_schedules SET definition = '{not json' WHERE name = 's000'"))
    before = {name: yard.definition(name).seen_until for name in names(len(UNREADABLE))}
    yard.clock.advance(MINUTE)
    assert yard.tick().counts == {"enqueued": 2}
    assert broken(yard) == names(len(UNREADABLE))
    assert before == {name: yard.definition(name).seen_until for name in names(len(UNREADABLE))}


@pytest.mark.parametrize("bad", [[0], [8, 9], list(range(10))])
def test_what_the_database_refuses_of_one_schedule_costs_the_others_nothing(yard: Yard, bad: list[int]) -> None:
    many(yard, 10)
    for number in bad:
        define(yard, names(10)[number], priority=12)
    yard.clock.advance(MINUTE)
    for _ in range(2):
        yard.tick()
    assert yard.tick().counts.get("enqueued", 0) == 0
    made = [name for name in names(10) if len(yard.jobs(name)) == 1]
    assert made == [name for number, name in enumerate(names(10)) if number not in bad]
    assert set(broken(yard)) == {names(10)[number] for number in bad}
    for number in bad:
        define(yard, names(10)[number], priority=2)
    yard.clock.advance(MINUTE)
    yard.tick()
    mended = [[row[:2] for row in yard.ledger(names(10)[number])] for number in bad]
    assert mended == [[("coalesced", 1), ("enqueued", 1)]] * len(bad)


def test_one_bad_schedule_among_many_is_found_in_a_few_transactions(yard: Yard) -> None:
    many(yard, 64)
    define(yard, "s037", priority=12)
    yard.clock.advance(MINUTE)
    with statements(yard.database) as seen:
        yard.tick()
    commits = sum(statement.startswith("UPDATE") and "seen_until" in statement for statement in seen)
    assert commits <= 8  # 64 by halves, and the tries that are refused
    assert broken(yard) == ["s037"]


def test_an_occurrence_that_the_ledger_has_meanwhile_is_refused_and_its_job_with_it(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last guard of "once": whoever passes over every other meets the ledger's primary key."""
    many(yard, 3, overlap="allow")
    yard.clock.advance(MINUTE)
    with yard.database.read() as connection:
        planned = [decide.plan_for(stored, yard.clock.now()) for stored in store.due_schedules(connection)]
    yard.tick()
    read = {due.stored.id: due.stored.settled for due in planned if due is not None}
    monkeypatch.setattr(store, "lock_rows", lambda *_: read)
    monkeypatch.setattr(store, "ledger_above", lambda *_: {})
    settling = core.Settling(yard.database, yard.events.append, lambda _: None, lambda: True, REMEMBERED)
    settling.settle([due for due in planned if due is not None], yard.clock.now())
    assert broken(yard) == names(3)
    assert [len(yard.jobs(name)) for name in names(3)] == [1, 1, 1]


def test_the_refusal_that_is_told_does_not_show_the_row(yard: Yard) -> None:
    many(yard, 1, payload={"token": "canary"})
    define(yard, "s000", priority=12)
    yard.clock.advance(MINUTE)
    yard.tick()
    [told] = [event.facts["error"] for event in yard.events if event.name == "schedule.broken"]
    assert "cronjobs_jobs_priority_ck" in told
    assert "canary" not in told


def test_jobs_run_while_the_definition_of_their_schedule_cannot_be_read(sqlite_project: Project) -> None:
    project = sqlite_project.configure("schedules:\n  a: {cron: '0 3 1 1 *', job: t.quick}\n")
    assert project.tick().wait() == 0
    project.sql("UPDATE cronjobs_schedules SET definition = '{not json'")
    ids = [project.add("t.quick", schedule="a"), project.add("t.quick")]
    tick = project.tick()
    assert (tick.wait(), tick.stderr) == (0, "")
    assert project.times_ran() == dict.fromkeys(ids, 1)


def test_a_plan_that_another_tick_has_overtaken_writes_nothing(yard: Yard) -> None:
    many(yard, 2, overlap="allow")
    now = yard.clock.advance(MINUTE)
    with yard.database.read() as connection:
        stale = [found for stored in store.due_schedules(connection) if (found := decide.plan_for(stored, now))]
    yard.clock.advance(MINUTE)
    yard.tick()
    before = [yard.definition(name).seen_until for name in names(2)]
    with yard.database.write() as connection:
        written = core.write(connection, stale, now, REMEMBERED, tick=None)
    assert (written.rows, sorted(written.busy), written.held) == ((), names(2), ())
    assert [yard.definition(name).seen_until for name in names(2)] == before


# --- time -------------------------------------------------------------------------------------------------------------


def until(chunks: int) -> Callable[[], bool]:
    """Time for so many chunks: it is asked before a chunk is planned, and before each is written."""
    asked = iter([True] * (2 * chunks))
    return lambda: next(asked, False)


def test_when_time_is_up_the_rest_is_left_and_the_next_tick_begins_with_the_longest_due(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "CHUNK", 3)
    hours = [5, 9, 2, 7, 3, 8, 4, 6, 1, 10]
    yard.sync(yard.file(*(minutely(name=f"h{hour}", cron=f"0 {8 + hour} * * *") for hour in hours)))
    yard.clock.advance(timedelta(hours=12))
    settled: list[int] = []
    for expected in ([1, 2, 3], [4, 5, 6, 7, 8, 9], [10], []):
        done = materialise(yard.database, yard.events.append, go_on=until(2 if len(expected) > 3 else 1))
        assert done.left == (expected not in ([10], []))
        settled = [hour for hour in sorted(hours) if yard.ledger(f"h{hour}") and hour not in settled] + settled
        assert sorted(settled) == list(range(1, max(settled) + 1))
        assert sorted(settled)[-len(expected) :] == expected or not expected
    assert [event.name for event in yard.events if event.name == "schedules.left"] == ["schedules.left"] * 2


# --- what others hold -------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(postgres_migrated: str, tmp_path: Path) -> Iterator[tuple[Yard, Any]]:
    """A yard on PostgreSQL, and a connection of an app's."""
    with opened(postgres_migrated) as database, psycopg.connect(postgres_migrated) as user:
        database.clock = clock = FakeClock(START)
        database.engine = database.engine.execution_options(cronjobs_clock=clock)
        yield Yard(database, clock, tmp_path), user


def test_a_held_queue_costs_a_moment_whatever_number_of_schedules_are_for_it(
    shared: tuple[Yard, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    yard, user = shared
    pauses: list[float] = []
    monkeypatch.setattr(core, "sleep", pauses.append)
    monkeypatch.setattr(core, "CHUNK", 7)
    mail = [minutely(name=name, queue="mail") for name in names(30)]
    sms = minutely(name="sms", queue="sms")
    yard.sync(yard.file(*mail, sms, minutely(name="other")))
    with yard.database.write() as connection:
        assert put_caps(connection, [Cap("mail", 99, "error"), Cap("sms", 99, "error")], [])
    enqueue(user, "t.say", queue="mail")
    yard.clock.advance(MINUTE)
    assert sorted(yard.tick().busy) == names(30)
    assert tuple(pauses) == chunks.PAUSES_S
    assert [len(yard.jobs(name)) for name in ("sms", "other", "s000")] == [1, 1, 0]
    user.rollback()
    assert yard.tick().counts == {"enqueued": 30}


def test_an_enqueuer_who_is_done_in_a_moment_delays_nothing_to_the_next_tick(
    shared: tuple[Yard, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    yard, user = shared
    many(yard, 5, queue="mail")
    with yard.database.write() as connection:
        assert put_caps(connection, [Cap("mail", 3, "error")], [])
    enqueue(user, "t.say", queue="mail")
    monkeypatch.setattr(core, "sleep", lambda _: user.commit())
    yard.clock.advance(MINUTE)
    done = yard.tick()
    assert (done.busy, done.counts) == ([], {"enqueued": 2, "skipped": 3})


def test_a_row_that_a_claim_holds_for_a_moment_is_come_back_for(
    shared: tuple[Yard, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    yard, user = shared
    many(yard, 5)
    user.execute("SELECT 1 FROM cronjobs_schedules WHERE name = 's003' FOR NO KEY UPDATE")
    yard.clock.advance(MINUTE)
    with monkeypatch.context() as patch:
        patch.setattr(core, "sleep", lambda _: None)
        assert yard.tick().busy == ["s003"]
    assert [name for name in names(5) if not yard.jobs(name)] == ["s003"]
    monkeypatch.setattr(core, "sleep", lambda _: user.commit())
    assert yard.tick().counts == {"enqueued": 1}


def test_a_locked_table_is_waited_for_three_times_and_not_once_for_each_schedule(
    shared: tuple[Yard, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    yard, _ = shared
    many(yard, 50)
    tries = []

    def refuse(*_: Any) -> Any:
        tries.append(1)
        raise DatabaseBusy("db", 2)

    yard.clock.advance(MINUTE)
    with monkeypatch.context() as patch:
        patch.setattr(store, "record_occurrences", refuse)
        with pytest.raises(DatabaseBusy):
            yard.tick()
    assert len(tries) == 3
    assert yard.tick().counts == {"enqueued": 50}


def test_a_lock_that_one_schedule_meets_delays_only_that_one(
    shared: tuple[Yard, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    yard, _ = shared
    many(yard, 20)
    blocked = yard.definition("s011").id
    write = store.record_occurrences

    def refuse(connection: Any, rows: Any, *more: Any) -> None:
        if any(row.schedule_id == blocked for row in rows):
            raise DatabaseBusy("db", 2)
        write(connection, rows, *more)

    yard.clock.advance(MINUTE)
    with monkeypatch.context() as patch:
        patch.setattr(store, "record_occurrences", refuse)
        with pytest.raises(DatabaseBusy):
            yard.tick()
    assert [name for name in names(20) if not yard.jobs(name)] == ["s011"]
    assert yard.tick().counts == {"enqueued": 1}


# --- a clock that was wrong -------------------------------------------------------------------------------------------


def test_many_watermarks_in_the_future_are_set_right_together(yard: Yard) -> None:
    many(yard, 50, catch_up="none")
    yard.clock.advance(timedelta(days=10))
    yard.tick()
    yard.clock.set(START + MINUTE)
    with statements(yard.database) as seen:
        yard.tick()
    assert len(seen) < 40
    assert {row[0] for name in names(50) for row in yard.ledger(name) if row[3] <= at(1)} <= {"missed", "enqueued"}
    assert {yard.definition(name).seen_until for name in names(50)} == {yard.definition("s000").seen_until}
    yard.finish_jobs()
    yard.clock.advance(MINUTE)
    assert yard.tick().counts == {"enqueued": 50}
