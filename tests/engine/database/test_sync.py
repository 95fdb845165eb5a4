"""How a file is applied to the database in chunks: what interrupts it, what prevents it, and which host's file wins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, select, text
from support.databases import opened
from support.yard import MINUTE, START, Yard, at, broken, minutely, names, statements

from cronjobs.engine.config.settings import RunSettings, ScheduleSettings, Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import audit, schedules
from cronjobs.engine.jobs.enqueue import enqueue
from cronjobs.engine.rules.capacity import Cap
from cronjobs.engine.schedules import chunks
from cronjobs.engine.schedules import sync as core
from cronjobs.engine.schedules.applying import judge_file
from cronjobs.engine.schedules.changes import compare, renames_without_effect
from cronjobs.engine.schedules.definition import fingerprint
from cronjobs.engine.store import schedules as store
from cronjobs.engine.store import ticks
from cronjobs.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def yard(database: Database, clock: FakeClock, tmp_path: Path) -> Yard:
    return Yard(database, clock, tmp_path)


def many(yard: Yard, count: int, **fields: Any) -> Settings:
    return yard.file(*(minutely(name=name, **fields) for name in names(count)))


def trail(yard: Yard, *actions: str) -> list[tuple[str, str]]:
    with yard.database.read() as connection:
        rows = connection.execute(select(audit.c.action, audit.c.subject).order_by(audit.c.id)).all()
    return [(row.action, row.subject) for row in rows if row.action in actions]


def active(yard: Yard) -> set[str]:
    with yard.database.read() as connection:
        return set(connection.execute(select(schedules.c.name).where(schedules.c.status == "active")).scalars())


def known_and_carried(yard: Yard, settings: Settings, host: str) -> bool:
    """Whether a tick of *host* would apply *settings*."""
    with yard.database.read() as connection:
        seen = ticks.overview(connection, host=host, place="", fingerprint=fingerprint(settings))
        return judge_file(connection, seen, settings, host=host) == "apply"


class Killed(BaseException):
    """Stands for kill -9 between two transactions: nothing of this process goes on."""


def killed_at(transaction: int) -> Callable[[Any], None]:
    count = iter(range(1, 1000))

    def kill(_: Any) -> None:
        if next(count) == transaction:
            raise Killed

    return kill


# --- chunks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 60])
def test_the_number_of_statements_does_not_grow_with_the_number_of_definitions(yard: Yard, count: int) -> None:
    before = many(yard, count, overlap="allow")
    after = yard.file(
        *(minutely(name=f"new-{name}", renamed_from=name, cron="5 * * * *") for name in names(count // 2)),
        *(minutely(name=f"other-{name}") for name in names(count)),
    )
    for settings in (before, after):
        with statements(yard.database) as seen:
            assert yard.sync(settings, allow_removals=True).applied
        assert len(seen) < 35
        yard.clock.advance(5 * MINUTE)
    assert (len(trail(yard, "rename")), len(trail(yard, "retire"))) == (count // 2, count - count // 2)


@pytest.mark.parametrize("end", ["time", "kill"])
def test_a_sync_that_is_cut_off_is_gone_on_with_and_defines_each_schedule_once(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 3)
    before = many(yard, 7, overlap="allow", catch_up="all")
    yard.sync(before)
    assert trail(yard, "sync_begun", "sync") == [(each, fingerprint(before)) for each in ("sync_begun", "sync")]
    yard.clock.advance(2 * MINUTE)
    kept = [minutely(name=name, overlap="allow", catch_up="all", cron="*/5 * * * *") for name in names(5)]
    after = yard.file(*kept, minutely(name="renamed", renamed_from="s005", overlap="allow", catch_up="all"))
    if end == "time":
        left = iter([True] * 2)
        done = yard.sync(after, go_on=lambda: next(left, False))
        assert (done.applied, len(done.left)) == (False, 1)
    else:
        with pytest.raises(Killed):
            yard.sync(after, before_writing=killed_at(3))
    assert fingerprint(after) not in [subject for action, subject in trail(yard, "sync") if action == "sync"]
    assert len(trail(yard, "sync_begun")) == 2
    assert known_and_carried(yard, after, "alpha")
    assert not known_and_carried(yard, before, "beta"), "its file is in force nowhere else, and was cut off just now"
    assert yard.sync(after).applied
    yard.tick()
    assert active(yard) == {*names(5), "renamed"}
    defined = [name for action, name in trail(yard, "define", "retire", "rename")]
    assert sorted(defined[7:]) == sorted([*names(5), "renamed", "s006"])
    for name in (*names(5), "renamed", "s006"):
        assert [(row[0], row[3]) for row in yard.ledger(name)] == [("enqueued", at(1)), ("enqueued", at(2))]
        assert [job.scheduled_for for job in yard.jobs(name)] == [at(1), at(2)]


def test_a_roll_back_that_was_killed_is_ended_by_who_began_it_or_carries_it(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 3)
    old, new = many(yard, 6), many(yard, 6, priority=1)
    yard.sync(old)
    yard.sync(new)
    with pytest.raises(Killed):
        yard.sync(old, before_writing=killed_at(2))
    assert known_and_carried(yard, old, "beta"), "it carries the file"
    assert known_and_carried(yard, new, "alpha"), "it began, and has been rolled forward since"
    assert not known_and_carried(yard, new, "beta")
    yard.clock.advance(6 * MINUTE)
    assert known_and_carried(yard, new, "beta"), "nobody came back to it"


def test_removals_that_were_allowed_are_allowed_until_the_file_is_applied(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 2)
    yard.sync(many(yard, 9))
    few = many(yard, 1)
    assert yard.sync(few).plan.refused
    with pytest.raises(Killed):
        yard.sync(few, allow_removals=True, before_writing=killed_at(2))
    assert yard.sync(few).applied
    assert active(yard) == {"s000"}
    assert yard.sync(yard.file()).plan.refused


# --- what stands in its way -------------------------------------------------------------------------------------------

UNREADABLE = ['"cron"', "[]", "{}", "null", '{"cron": "0 0 L * *", "job": "t.say", "timezone": "UTC"}']


@pytest.mark.parametrize("definition", [*UNREADABLE, "{not json"])
def test_the_file_that_mends_an_unreadable_definition_is_applied_and_loses_nothing(yard: Yard, definition: str) -> None:
    if definition == "{not json" and not yard.database.is_sqlite:
        definition = "7"
    yard.sync(yard.file(minutely(), minutely(name="gone"), minutely(name="kept")))
    with yard.database.write() as connection:
        wanted = ":d" if yard.database.is_sqlite else "CAST(:d AS jsonb)"
        names_ = "name IN ('s', 'gone')"
        connection.execute(
            text(f"UPDATE cronjobs_schedules SET definition = {wanted} WHERE {names_}"), {"d": definition}
        )
    yard.clock.advance(3 * MINUTE)
    yard.tick()
    assert sorted(broken(yard)) == ["gone", "s"]
    assert yard.sync(yard.file(minutely(), minutely(name="kept"), minutely(name="new"))).applied
    assert active(yard) == {"s", "kept", "new"}
    yard.tick()
    assert [row[:2] for row in yard.ledger()] == [("coalesced", 2), ("enqueued", 1)]
    assert sorted(broken(yard)) == ["gone", "s"]


def test_a_definition_that_the_database_refuses_keeps_no_other_out(yard: Yard) -> None:
    bad = yard.file(*(minutely(name=name) for name in names(9)), minutely(name="x" * 1100))
    for _ in range(2):
        done = yard.sync(bad)
        assert (done.applied, done.left) == (False, ("x" * 1100,))
    assert active(yard) == set(names(9))
    assert broken(yard) == ["x" * 1100] * 2
    assert len(trail(yard, "define")) == 9
    assert yard.sync(yard.file(*(minutely(name=name) for name in names(9)))).applied


@pytest.fixture
def shared(postgres_migrated: str, tmp_path: Path) -> Iterator[tuple[Yard, Any]]:
    """A yard on PostgreSQL, and a connection of an app's."""
    with opened(postgres_migrated) as database, psycopg.connect(postgres_migrated) as user:
        database.clock = clock = FakeClock(START)
        database.engine = database.engine.execution_options(cronjobs_clock=clock)
        yield Yard(database, clock, tmp_path), user


def test_a_held_queue_keeps_back_the_schedules_that_have_to_be_settled_there(
    shared: tuple[Yard, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    yard, user = shared
    monkeypatch.setattr(core, "sleep", lambda _: None)
    queues = {"mail": Cap("mail", 9, "error")}
    before = replace(yard.file(minutely(queue="mail"), minutely(name="other")), queues=queues)
    after = yard.file(minutely(queue="mail", cron="5 * * * *"), minutely(name="other", cron="5 * * * *"))
    yard.sync(before)
    yard.clock.advance(MINUTE)
    enqueue(user, "t.say", queue="mail")
    done = yard.sync(replace(after, queues=queues))
    assert (done.applied, done.left) == (False, ("s",))
    assert [yard.definition(name).definition["cron"] for name in ("s", "other")] == ["* * * * *", "5 * * * *"]
    user.rollback()
    assert yard.sync(replace(after, queues=queues)).applied
    assert [job.scheduled_for for name in ("s", "other") for job in yard.jobs(name)] == [at(1), at(1)]


def meanwhile(monkeypatch: pytest.MonkeyPatch, do: Callable[[], Any]) -> None:
    """Something that happens once, between a sync's look and its first transaction."""
    look, once = compare, iter([do])

    def compare_then(*args: Any) -> Any:
        todo = look(*args)
        next(once, lambda: None)()
        return todo

    monkeypatch.setattr(core, "compare", compare_then)


def test_two_hosts_that_apply_the_same_file_define_each_schedule_once(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard.sync(many(yard, 2))
    yard.clock.advance(MINUTE)
    after = yard.file(minutely(name="s000", cron="*/2 * * * *"), minutely(name="s001"), minutely(name="new"))

    def other_host() -> None:
        assert yard.sync(after).applied
        yard.clock.advance(MINUTE)
        yard.tick()
        yard.clock.advance(timedelta(seconds=-80))

    meanwhile(monkeypatch, other_host)
    assert yard.sync(after).applied
    assert trail(yard, "define")[2:] == [("define", "new"), ("define", "s000")]
    assert len(trail(yard, "sync")) == 2
    yard.clock.advance(timedelta(seconds=80))
    yard.tick()
    assert [job.scheduled_for for job in yard.jobs("new")] == [at(2)]
    assert yard.definition("new").seen_until > at(2)


def test_a_file_that_another_host_puts_in_force_meanwhile_wins(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    yard.sync(many(yard, 2))
    ours, theirs = many(yard, 2, priority=1), many(yard, 2, priority=2)
    meanwhile(monkeypatch, lambda: yard.sync(theirs))
    assert not yard.sync(ours).applied
    assert [yard.definition(name).definition["priority"] for name in names(2)] == [2, 2]


def test_a_file_that_another_host_applies_between_our_reads_wins(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PostgreSQL each statement sees what has been committed by then."""
    yard.sync(many(yard, 2))
    ours, theirs = many(yard, 2, priority=1), many(yard, 2, priority=2)
    read, waiting = store.all_schedules, [lambda: yard.sync(theirs)]

    def read_and_wait(connection: Connection) -> Any:
        found = read(connection)
        while waiting:
            waiting.pop()()
        return found

    monkeypatch.setattr(store, "all_schedules", read_and_wait)
    assert not yard.sync(ours).applied
    assert [yard.definition(name).definition["priority"] for name in names(2)] == [2, 2]


def test_a_file_that_another_host_begins_between_our_chunks_wins(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 2)
    yard.sync(many(yard, 6))
    ours, theirs = many(yard, 6, priority=1), many(yard, 6, priority=2)
    asked = []

    def go_on() -> bool:
        asked.append(1)
        if len(asked) == 2:
            assert yard.sync(theirs).applied
        return True

    assert not yard.sync(ours, go_on=go_on).applied
    assert [yard.definition(name).definition["priority"] for name in names(6)] == [2] * 6
    assert trail(yard, "sync")[-1] == ("sync", fingerprint(theirs))


@pytest.mark.parametrize("by", ["tick", "sync"])
def test_what_a_tick_settles_meanwhile_is_not_settled_again(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    yard.sync(yard.file(minutely(overlap="allow"), minutely(name="other")))
    yard.clock.advance(MINUTE)
    meanwhile(monkeypatch, yard.tick)
    assert yard.sync(yard.file(minutely(overlap="allow", cron="5 * * * *"), minutely(name="other"))).applied
    yard.tick()
    assert [job.scheduled_for for job in yard.jobs()] == [at(1)]
    assert yard.ledger() == [("enqueued", 1, at(1), at(1))]


# --- whose file -------------------------------------------------------------------------------------------------------


class Pods:
    """Ticks whose host has another name each time, or the name they say."""

    def __init__(self, yard: Yard) -> None:
        self.yard, self.count = yard, 0

    def tick(self, settings: Settings, host: str | None = None) -> bool:
        """Whether the tick applied its file; it leaves its row, as ticks do."""
        self.count += 1
        host = host or f"pod-{self.count}"
        applied = known_and_carried(self.yard, settings, host)
        if applied:
            assert self.yard.sync(settings).applied
        with self.yard.database.write() as connection:
            row = {"tick": f"t{self.count}", "host": host, "pid": 1, "version": "0", "did": {}, "ended": "idle"}
            now = self.yard.clock.now()
            instants = {"started_at": now, "finished_at": now, "fingerprint": fingerprint(settings)}
            ticks.end_tick(connection, row | instants)
        return applied


@pytest.fixture
def pods(yard: Yard) -> Pods:
    return Pods(yard)


def test_a_roll_back_among_hosts_of_new_names_takes_effect_when_the_other_file_is_gone(yard: Yard, pods: Pods) -> None:
    one, two = many(yard, 1), many(yard, 2)
    assert [pods.tick(file) for file in (one, two, two)] == [True, True, False]
    applied_at = []
    for tick in range(1, 9):
        yard.clock.advance(timedelta(seconds=70))
        if pods.tick(one):
            applied_at.append(tick)
    assert applied_at == [5], "the first after 5 minutes"
    assert active(yard) == {"s000"}


def test_while_pods_carry_the_file_in_force_another_that_was_seen_before_is_left_alone(yard: Yard, pods: Pods) -> None:
    one, two = many(yard, 1), many(yard, 2)
    pods.tick(one)
    pods.tick(two)
    for _ in range(12):
        yard.clock.advance(MINUTE)
        assert not pods.tick(one)
        yard.clock.advance(timedelta(seconds=1))
        assert not pods.tick(two)


def test_rarely_woken_hosts_are_waited_for_longer(yard: Yard, pods: Pods) -> None:
    rarely = RunSettings(every=timedelta(minutes=10))
    one, two = (replace(many(yard, count), run=rarely) for count in (1, 2))
    pods.tick(one)
    pods.tick(two)
    yard.clock.advance(timedelta(minutes=19))
    assert not pods.tick(one)
    yard.clock.advance(timedelta(minutes=2))
    assert pods.tick(one)


def test_a_host_with_earlier_ticks_keeps_to_what_it_carried(yard: Yard, pods: Pods) -> None:
    one, two = many(yard, 1), many(yard, 2)
    pods.tick(one, "old")
    pods.tick(two, "new")
    pods.tick(two, "new")
    for _ in range(3):
        yard.clock.advance(timedelta(hours=1))
        assert not pods.tick(one, "old"), "in the middle of a deploy, for however long"
    assert pods.tick(one, "new"), "rolled back"
    assert not pods.tick(two, "unseen"), "the file in force was carried a moment ago"
    yard.clock.advance(timedelta(hours=1))
    assert pods.tick(two), "nobody carries the file in force"


def test_a_job_of_a_command_that_is_renamed_with_its_schedule_stays_runnable(yard: Yard) -> None:
    """The type of a schedule's own command has the schedule's name, so no host would know the old type."""
    yard.sync(yard.file(minutely(name="old", job="old"), minutely(name="other", job="t.a")))
    yard.clock.advance(2 * MINUTE)
    yard.tick()
    own = minutely(name="new", job="new", renamed_from="old")
    file = yard.file(own, minutely(name="another", job="t.a", renamed_from="other"))
    yard.sync(replace(file, positions={"schedules.new.command": (1, 1)}))
    assert {job.job_type for job in yard.jobs("new")} == {"new"}
    assert {job.job_type for job in yard.jobs("another")} == {"t.a"}


def test_a_renaming_that_would_lose_a_history_is_found_before(yard: Yard) -> None:
    yard.sync(yard.file(*(minutely(name=name) for name in ("a", "b", "c", "gone"))))
    yard.sync(yard.file(*(minutely(name=name) for name in ("a", "b", "c"))))

    def found(*wanted: ScheduleSettings) -> dict[str, str]:
        with yard.database.read() as connection:
            return renames_without_effect(yard.file(*wanted, minutely(name="b")), store.all_schedules(connection))

    then = "so nothing is renamed, and the next tick retires"
    assert found(minutely(name="new", renamed_from="a"), minutely(name="c")) == {}
    assert found(minutely(name="a", renamed_from="old"), minutely(name="c")) == {}, "renamed before"
    assert found(minutely(name="a"), minutely(name="c"), minutely(name="new", renamed_from="x")) == {}, "no loss"
    wrong = found(minutely(name="new", renamed_from="aa"), minutely(name="c"))
    assert wrong == {"new": f'the database has no active schedule "aa", {then} a'}
    assert found(minutely(name="gone", renamed_from="a")) == {"gone": f'"gone" is a retired schedule, {then} a, c'}
