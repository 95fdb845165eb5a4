"""Pauses on both databases: whatever is deployed during a pause, each occurrence gets the right outcome."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from support.pausing import START, Story
from support.yard import MINUTE, Yard, at, minutely

from cronjobs.engine.config.settings import ScheduleSettings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import audit, job_runs, jobs
from cronjobs.engine.schedules.backfill import backfill
from cronjobs.engine.schedules.materialise import materialise
from cronjobs.engine.schedules.sync import sync
from cronjobs.engine.store import schedules as store
from cronjobs.engine.store import ticks
from cronjobs.errors import UsageError
from cronjobs.testing import FakeClock

STORIES = int(os.environ.get("PAUSE_STORIES", "4"))
SCHEDULES = 6
HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def yard(database: Database, clock: FakeClock, tmp_path: Path) -> Yard:
    return Yard(database, clock, tmp_path)


@pytest.fixture
def second(database_url: str, clock: FakeClock) -> Iterator[Database]:
    """The other host's connections."""
    with closing(Database(parse_url(database_url), clock=clock)) as database:
        yield database


class Real:
    """Two hosts on a real database, in fake time."""

    def __init__(self, yard: Yard, second: Database) -> None:
        self.yard, self.hosts = yard, (yard.database, second)

    def advance(self, by: timedelta) -> None:
        self.yard.clock.advance(by)

    def apply(self, host: int, file: Sequence[ScheduleSettings]) -> None:
        settings, emit = self.yard.file(*file), self.yard.events.append
        done = sync(self.hosts[host], settings, emit, host=f"h{host}", actor="tick", allow_removals=True)
        assert done.applied

    def tick(self, hosts: Sequence[int]) -> None:
        """At the same moment."""
        emit = self.yard.events.append
        threads = [threading.Thread(target=materialise, args=(self.hosts[host], emit)) for host in hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def pause(self, name: str, until: datetime | None, skip: bool) -> None:
        self.yard.pause(name, until, skip=skip)

    def resume(self, name: str) -> None:
        self.yard.resume(name)
        self.yard.tick()

    def ledger(self, name: str) -> list[tuple[str, int, datetime, datetime]]:
        return self.yard.ledger(name)

    def runs(self, name: str) -> list[datetime]:
        return [job.scheduled_for for job in self.yard.jobs(name)]


@pytest.mark.slow
def test_whatever_two_hosts_deploy_under_pauses_each_occurrence_ends_as_one_thing(yard: Yard, second: Database) -> None:
    """PAUSE_STORIES=500 is the long form: six schedules in each."""
    for seed in range(STORIES):
        yard.forget_pauses()
        story = Story(Real(yard, second), seed, schedules=SCHEDULES, start=yard.clock.now())
        story.play(40)
        story.judge()
    assert not [event for event in yard.events if event.name == "schedule.broken"]


# --- by hand ----------------------------------------------------------------------------------------------------------


def due(yard: Yard) -> bool:
    """Whether a tick would find schedules to settle."""
    with yard.database.read() as connection:
        return ticks.overview(connection, host="alpha", place="alpha:", fingerprint="f").schedules_due


def hourly(**fields: Any) -> ScheduleSettings:
    return minutely(**({"cron": "0 * * * *", "overlap": "allow"} | fields))


def told(yard: Yard, name: str = "s") -> list[tuple[str, int, datetime]]:
    return [(outcome, count, last) for outcome, count, _, last in yard.ledger(name)]


def test_what_a_pause_holds_back_makes_no_tick_a_working_one(yard: Yard) -> None:
    yard.sync(yard.file(hourly()))
    yard.pause("s")
    yard.clock.advance(HOUR)
    yard.sync(yard.file(hourly(cron="30 * * * *")))
    yard.clock.advance(HOUR)
    assert not due(yard)
    assert yard.held_back() == {"s": 2}
    yard.resume("s")
    assert due(yard)
    yard.tick()
    yard.clock.advance(MINUTE)
    assert not due(yard)
    assert yard.definition().owed is None


def test_a_schedule_that_is_moved_while_paused_still_owes_its_old_times(yard: Yard) -> None:
    """The nightly run of 02:15 that a deploy moves to 03:30 at 02:45: one run, of the newest, stands for both."""
    yard.sync(yard.file(hourly(cron="15 10 * * *")))
    yard.pause(why="deploy")
    yard.clock.set(at(45, hour=10))
    assert yard.sync(yard.file(hourly(cron="30 11 * * *"))).applied
    yard.clock.set(at(0, hour=12))
    yard.resume()
    yard.tick()
    assert told(yard) == [("coalesced", 1, at(15, hour=10)), ("enqueued", 1, at(30, hour=11))]
    [job] = yard.jobs()
    with yard.database.read() as connection:
        ids = {row.job_id for row in store.ledger_between(connection, yard.definition().id, START, at(0, hour=12))}
    assert ids == {job.id}


def test_what_is_removed_while_paused_is_settled_by_its_own_definition(yard: Yard) -> None:
    other = minutely(name="other", cron="0 0 1 1 *")
    yard.sync(yard.file(hourly(payload={"n": 1}, catch_up="all"), other))
    yard.pause("s")
    yard.clock.set(at(5, hour=10))
    assert yard.sync(yard.file(other)).applied
    yard.clock.set(at(5, hour=12))
    assert yard.jobs() == []
    yard.resume("s")
    yard.tick()
    assert told(yard) == [("enqueued", 1, at(0, hour=9)), ("enqueued", 1, at(0, hour=10))]
    assert [job.payload for job in yard.jobs()] == [{"n": 1}] * 2
    assert (yard.definition().status, yard.definition().owed, yard.definition().next_at) == ("retired", None, None)


def test_what_comes_back_while_paused_owes_nothing_for_its_absence(yard: Yard) -> None:
    other = minutely(name="other", cron="0 0 1 1 *")
    yard.sync(yard.file(hourly(catch_up="all"), other))
    yard.pause("s")
    yard.clock.set(at(30, hour=9))
    yard.sync(yard.file(other))
    yard.clock.set(at(30, hour=11))
    yard.sync(yard.file(hourly(catch_up="all"), other))
    yard.clock.set(at(30, hour=12))
    yard.resume("s")
    yard.tick()
    assert told(yard) == [("enqueued", 1, at(0, hour=9)), ("enqueued", 1, at(0, hour=12))]


def test_a_renamed_schedule_stays_paused_under_its_new_name(yard: Yard) -> None:
    yard.sync(yard.file(hourly()))
    yard.pause("s")
    yard.clock.set(at(30, hour=9))
    yard.sync(yard.file(hourly(name="new", renamed_from="s")))
    yard.tick()
    assert yard.ledger("new") == []
    assert yard.held_back() == {"new": 1}
    assert not yard.resume("s")
    assert yard.resume("new")
    yard.tick()
    assert [job.scheduled_for for job in yard.jobs("new")] == [at(0, hour=9)]


def test_an_edit_of_catch_up_holds_for_what_is_held_back(yard: Yard) -> None:
    yard.sync(yard.file(hourly(catch_up="all")))
    yard.pause()
    yard.clock.set(at(30, hour=11))
    yard.sync(yard.file(hourly(catch_up="none")))
    yard.resume()
    yard.tick()
    assert told(yard) == [("missed", 3, at(0, hour=11))]
    with yard.database.read() as connection:
        [row] = store.ledger_between(connection, yard.definition().id, START, at(30, hour=11))
    assert row.reason == "held back by a pause (catch_up: none)"


def test_of_two_pauses_the_first_that_ends_settles_nothing(yard: Yard) -> None:
    yard.sync(yard.file(hourly()))
    yard.pause("s")
    yard.pause(until=at(30, hour=9))
    yard.clock.set(at(30, hour=10))
    yard.tick()
    assert yard.ledger() == []
    yard.resume("s")
    yard.tick()
    assert told(yard) == [("coalesced", 1, at(0, hour=9)), ("enqueued", 1, at(0, hour=10))]


def test_a_pause_that_skips_put_on_top_of_one_that_postpones_loses_nothing(yard: Yard) -> None:
    yard.sync(yard.file(hourly()))
    yard.pause()
    yard.clock.set(at(30, hour=9))
    yard.pause(skip=True)
    yard.clock.set(at(30, hour=10))
    yard.tick()
    assert told(yard) == [("skipped", 1, at(0, hour=10))]
    yard.clock.advance(MINUTE)
    assert not due(yard)
    yard.resume()
    yard.tick()
    assert told(yard) == [("enqueued", 1, at(0, hour=9)), ("skipped", 1, at(0, hour=10))]


def test_what_a_pause_has_skipped_stays_skipped_when_it_is_changed_under_another(yard: Yard) -> None:
    yard.sync(yard.file(hourly()))
    yard.pause()
    yard.pause("s", skip=True)
    yard.clock.set(at(30, hour=9))
    yard.pause("s")
    yard.clock.set(at(30, hour=10))
    yard.resume("s")
    yard.resume()
    yard.tick()
    assert told(yard) == [("skipped", 1, at(0, hour=9)), ("enqueued", 1, at(0, hour=10))]


def test_pieces_are_settled_though_the_clock_stepped_back_a_little(yard: Yard) -> None:
    yard.sync(yard.file(hourly()))
    yard.pause()
    yard.clock.set(at(30, hour=9))
    yard.sync(yard.file(hourly(cron="15 * * * *")))
    yard.clock.set(at(28, hour=9))
    yard.resume()
    yard.tick()
    assert told(yard) == [("enqueued", 1, at(0, hour=9))]


def test_pausing_again_keeps_since_when(yard: Yard) -> None:
    yard.sync(yard.file(hourly()))
    yard.pause("s", why="first")
    yard.clock.advance(HOUR)
    yard.pause("s", why="second", by="bob")
    with yard.database.read() as connection:
        [pause] = store.pauses_in_force(connection)
    assert START <= pause.paused_at < START + MINUTE
    assert (pause.by, pause.why) == ("ada", "second")


def test_a_backfill_leaves_alone_what_a_pause_holds_back(yard: Yard) -> None:
    yard.sync(yard.file(hourly()))
    yard.pause()
    yard.clock.set(at(30, hour=9))
    yard.sync(yard.file(hourly(cron="15 * * * *")))
    options: dict[str, Any] = {"retention": timedelta(days=90), "actor": "ada", "host": "alpha", "dry_run": False}
    with (
        yard.database.write() as connection,
        pytest.raises(UsageError, match="a pause is holding back part of that range"),
    ):
        backfill(connection, "s", at(45), at(5, hour=9), **options)
    assert yard.jobs() == []


# --- a clock that was ahead -------------------------------------------------------------------------------------------


def begin(yard: Yard, scheduled_for: datetime, status: str) -> int:
    """An attempt of the job that was made for that instant runs, on the clock that is wrong."""
    [job] = [job for job in yard.jobs() if job.scheduled_for == scheduled_for]
    now = yard.clock.now()
    with yard.database.write() as connection:
        ends = {"finished_at": now} if status == "succeeded" else {"failures": 1}
        connection.execute(update(jobs).where(jobs.c.id == job.id).values(status=status, attempts=1, **ends))
        run = {"job_id": job.id, "attempt": 1, "outcome": status, "started_at": now, "finished_at": now}
        connection.execute(insert(job_runs).values(run | {"runner": "alpha:1", "worker": "1"}))
    return int(job.id)


def test_a_job_made_before_its_time_is_taken_back_and_made_again_in_its_time(yard: Yard) -> None:
    daily = hourly(cron="15 10 * * *")
    yard.sync(yard.file(daily))
    yard.clock.set(at(15, hour=10) + timedelta(days=3, seconds=5))
    yard.tick()
    [early] = yard.jobs()
    assert early.scheduled_for == at(15, hour=10) + timedelta(days=3)
    yard.clock.set(START + MINUTE)
    yard.tick()
    [taken] = yard.jobs()
    assert (taken.status, taken.attempts) == ("cancelled", 0)
    assert "created again when it is due" in taken.last_error
    assert yard.ledger() == []
    with yard.database.read() as connection:
        acts = connection.execute(select(audit).where(audit.c.action == "cancel")).all()
    assert [act.detail["ids"] for act in acts] == [[early.id]]
    for day in range(4):
        yard.clock.set(at(15, hour=10) + timedelta(days=day, seconds=5))
        yard.tick()
    made = [job.scheduled_for for job in yard.jobs() if job.status == "queued"]
    assert made == [at(15, hour=10) + timedelta(days=day) for day in range(4)]
    assert [event.name for event in yard.events if event.level == "error"] == []


@pytest.mark.parametrize("status", ["succeeded", "failed"])
def test_a_job_that_ran_before_its_time_stays_the_only_one_and_it_is_told_once(yard: Yard, status: str) -> None:
    yard.sync(yard.file(hourly(cron="15 10 * * *")))
    third = at(15, hour=10) + timedelta(days=3)
    yard.clock.set(third + timedelta(seconds=5))
    yard.tick()
    job_id = begin(yard, third, status)
    yard.clock.set(START + MINUTE)
    yard.tick()
    assert told(yard) == [("enqueued", 1, third)]
    with yard.database.read() as connection:
        [row] = store.ledger_between(connection, yard.definition().id, third, third)
    assert row.job_id == job_id
    assert str(row.reason).startswith(
        "ran early at 2026-03-02T08:01:30+00:00 or before, because of a wrong clock that showed 2026-03-05"
    )
    for day in range(5):
        yard.clock.set(at(15, hour=10) + timedelta(days=day, seconds=5))
        yard.tick()
        yard.tick()
    assert sorted(job.scheduled_for for job in yard.jobs()) == [
        at(15, hour=10) + timedelta(days=day) for day in range(5)
    ]
    [event] = [event for event in yard.events if event.level == "error"]
    assert event.name == "schedule.ran_early"
    assert '"cronjobs explain s --at ' in event.facts["error"]


def test_what_came_due_while_the_clock_was_ahead_is_made_up_for(yard: Yard) -> None:
    """The watermark was past the occurrence, so no tick ran it.

    What the wrong clock recorded does not count as its run.
    """
    yard.sync(yard.file(hourly(cron="15 10 * * *")))
    yard.clock.set(at(0, hour=9) + timedelta(days=3))
    yard.tick()
    yard.clock.set(at(30, hour=10))
    yard.tick()
    assert told(yard) == [("enqueued", 1, at(15, hour=10))]
    assert [job.scheduled_for for job in yard.jobs() if job.status != "cancelled"] == [at(15, hour=10)]


def test_a_watermark_in_the_future_is_set_right_under_a_pause_and_pieces_end_now(yard: Yard) -> None:
    yard.sync(yard.file(hourly()))
    yard.pause()
    yard.clock.advance(timedelta(days=3))
    yard.sync(yard.file(hourly(cron="30 * * * *")))
    yard.clock.set(at(45))
    yard.tick()
    yard.clock.set(at(45, hour=10))
    yard.resume()
    yard.tick()
    assert [row[3] for row in yard.ledger() if row[0] == "enqueued"] == [at(30, hour=10)]
    assert sum(row[1] for row in yard.ledger()) == 2  # 09:30 and 10:30; the old definition ended at 08:45
