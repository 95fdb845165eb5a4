"""Trigger and backfill: runs that no schedule's time has caused, recorded in the same ledger."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from support.yard import MINUTE, START, Yard, at, minutely

from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.schedules import backfill as fill
from cronjobs.engine.schedules.backfill import Filling, ScheduleBusy, UnknownSchedule
from cronjobs.engine.schedules.materialise import skip_runs_of_cron
from cronjobs.engine.store import operating
from cronjobs.engine.store import schedules as store
from cronjobs.engine.store.enqueue import NewJob, insert_jobs
from cronjobs.engine.store.operating import OperatorAction
from cronjobs.errors import UsageError
from cronjobs.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def yard(database: Database, clock: FakeClock, tmp_path: Path) -> Yard:
    return Yard(database, clock, tmp_path)


def trigger(yard: Yard, name: str = "s", *, force: bool = False) -> int:
    with yard.database.write() as connection:
        return fill.trigger(connection, name, force=force, actor="ada", host="h")


def backfill(yard: Yard, first: datetime, last: datetime, **options: Any) -> Filling:
    settings = {"retention": timedelta(days=90), "actor": "ada", "host": "h", "dry_run": False} | options
    with yard.database.write() as connection:
        return fill.backfill(connection, "s", first, last, **settings)  # type: ignore[arg-type]


def test_a_triggered_run_does_not_move_the_cadence(yard: Yard) -> None:
    yard.sync(yard.file(minutely(payload={"line": "x"})))
    before = yard.definition()
    job_id = trigger(yard)
    [job] = yard.jobs()
    assert (job.id, job.payload, job.enqueued_by) == (job_id, {"line": "x"}, "trigger ada")
    assert yard.definition() == before
    assert yard.ledger() == []


def test_a_trigger_gives_way_to_an_unfinished_job_unless_forced(yard: Yard) -> None:
    yard.sync(yard.file(minutely()))
    first = trigger(yard)
    with pytest.raises(ScheduleBusy, match=f"job {first} .*--force"):
        trigger(yard)
    trigger(yard, force=True)
    assert [job.meta for job in yard.jobs()] == [{}, {"cronjobs.overlap": "allow"}]


def test_a_trigger_waits_for_a_tick_that_is_making_jobs_of_its_schedule(yard: Yard) -> None:
    yard.sync(yard.file(minutely()))
    schedule_id = yard.definition().id
    with ThreadPoolExecutor(1) as other:
        with yard.database.write() as tick:
            store.lock_rows(tick, [schedule_id])
            [made] = insert_jobs(tick, [NewJob("t.say", schedule="s", scheduled_for=START)])
            triggered = other.submit(trigger, yard)
            wait([triggered], timeout=1)  # without the lock it is done by then
        with pytest.raises(ScheduleBusy, match=f"job {made} of"):
            triggered.result(timeout=30)


def test_a_trigger_of_an_unknown_schedule_names_the_nearest(yard: Yard) -> None:
    yard.sync(yard.file(minutely(name="nightly")))
    with pytest.raises(UnknownSchedule, match="do you mean nightly"):
        trigger(yard, "nightl")


def test_a_backfill_runs_what_was_missed_and_nothing_twice(yard: Yard) -> None:
    yard.sync(yard.file(minutely(catch_up="none", overlap="allow")))
    yard.clock.advance(timedelta(minutes=60))
    yard.tick()  # 58 missed, one coalesced, the newest runs
    filling = backfill(yard, at(10), at(20))
    assert list(filling.run) == [at(minute) for minute in range(10, 21)]
    assert yard.ledger()[:3] == [
        ("missed", 9, at(1), at(9)),
        ("enqueued", 1, at(10), at(10)),
        ("enqueued", 1, at(11), at(11)),
    ]
    assert sum(row[1] for row in yard.ledger()) == 60
    again = backfill(yard, at(5), at(25))
    assert [*again.run] == [at(minute) for minute in (5, 6, 7, 8, 9, 21, 22, 23, 24, 25)]
    assert again.done == 11
    assert sum(row[1] for row in yard.ledger()) == 60
    jobs = [job.scheduled_for for job in yard.jobs()]
    assert len(jobs) == len(set(jobs)) == 22


def test_backfilled_jobs_are_due_now_oldest_first(yard: Yard) -> None:
    yard.sync(yard.file(minutely(catch_up="none")))
    yard.clock.advance(timedelta(minutes=30))
    yard.tick()
    backfill(yard, at(1), at(3))
    filled = [job for job in yard.jobs() if job.enqueued_by == "backfill ada"]
    assert [job.scheduled_for for job in filled] == [at(1), at(2), at(3)]
    assert all(job.run_at >= yard.clock.now() for job in filled)


def test_skipped_occurrences_can_be_filled_and_coalesced_ones_were_stood_for(yard: Yard) -> None:
    yard.sync(yard.file(minutely()))
    yard.clock.advance(5 * MINUTE)
    yard.tick()  # 08:01–08:04 coalesced into 08:05
    yard.clock.advance(MINUTE)
    yard.tick()  # 08:06 skipped: the job of 08:05 waits
    assert [*backfill(yard, at(1), at(6)).run] == [at(6)]


@pytest.mark.parametrize("catch_up", ["none", "latest", "all"])
def test_no_backfill_repeats_what_cron_itself_ran(yard: Yard, catch_up: Any) -> None:
    """An outage, then restore and swap, with cron running the line in between, then an outage again."""
    yard.sync(yard.file(minutely(catch_up=catch_up, catch_up_within=timedelta(0), overlap="allow")))
    yard.clock.advance(10 * MINUTE)
    yard.tick()
    yard.clock.advance(10 * MINUTE)
    assert skip_runs_of_cron(yard.database, yard.events.append, ["s"])
    yard.clock.advance(10 * MINUTE)
    yard.tick()
    settled = yard.ledger()
    filling = backfill(yard, at(1), at(30))
    due = [job.scheduled_for for job in yard.jobs()]
    coalesced = sum(count for outcome, count, *_ in settled if outcome == "coalesced")
    assert len(due) == len(set(due)) == 30 - 10 - coalesced
    assert not {at(minute) for minute in range(11, 21)} & set(due)
    assert [row for row in yard.ledger() if row[0] == "skipped"] == [("skipped", 10, at(11), at(20))]
    assert len(filling.run) + filling.done == sum(row[1] for row in yard.ledger()) == 30
    assert filling.not_in_force == 0


def test_a_past_from_before_the_schedule_was_there_can_be_filled(yard: Yard) -> None:
    yard.sync(yard.file(minutely(cron="0 * * * *")))
    filling = backfill(yard, at(0, hour=3), at(0, hour=7))
    assert len(filling.run) == 5
    assert yard.ledger()[0] == ("enqueued", 1, at(0, hour=3), at(0, hour=3))


def test_a_dry_run_changes_nothing(yard: Yard) -> None:
    yard.sync(yard.file(minutely(catch_up="none")))
    yard.clock.advance(timedelta(minutes=30))
    yard.tick()
    before = (yard.ledger(), yard.jobs())
    assert len(backfill(yard, at(1), at(3), dry_run=True).run) == 3
    assert (yard.ledger(), yard.jobs()) == before


def test_a_range_ends_at_the_last_instant_that_ticks_have_settled(yard: Yard) -> None:
    """Later occurrences are the ticks' own."""
    yard.sync(yard.file(minutely(catch_up="none")))
    yard.clock.advance(timedelta(minutes=30))
    yard.tick()
    settled = yard.clock.now()
    assert backfill(yard, at(28), settled, dry_run=True).settled_until is None
    assert backfill(yard, at(28), settled + timedelta(seconds=1), dry_run=True).settled_until is None, (
        "nothing is due then"
    )
    filling = backfill(yard, at(28), settled + timedelta(days=400))
    assert filling.run == (at(28),)
    assert filling.settled_until == settled
    assert yard.definition().seen_until == settled


@pytest.mark.parametrize(
    ("first", "last", "says"),
    [
        (START - timedelta(days=91), at(0), "the ledger only reaches back 90d"),
        (START + MINUTE, START + timedelta(hours=1), "ticks will run all later occurrences"),
        (at(0), at(0) - MINUTE, "--from must be before --to"),
        (START - timedelta(days=80), START - timedelta(days=1), "backfill it in parts"),
    ],
)
def test_a_range_that_cannot_be_answered_for_is_refused(yard: Yard, first: datetime, last: datetime, says: str) -> None:
    yard.sync(yard.file(minutely()))
    with pytest.raises(UsageError, match=says):
        backfill(yard, first, last)
    assert yard.jobs() == []


def test_a_range_under_another_timing_is_refused_rather_than_guessed(yard: Yard) -> None:
    yard.sync(yard.file(minutely(catch_up="none")))
    yard.clock.advance(timedelta(minutes=30))
    yard.tick()
    yard.sync(yard.file(minutely(catch_up="none", cron="*/7 * * * *")))
    with pytest.raises(UsageError, match="another definition"):
        backfill(yard, at(7), at(14))
    assert sum(row[1] for row in yard.ledger()) == 30


def test_so_is_one_under_another_timing_with_as_many_occurrences(yard: Yard) -> None:
    yard.sync(yard.file(minutely(catch_up="none", cron="0,20,40 9 * * *")))
    yard.clock.set(at(50, hour=9))
    yard.tick()
    missed = yard.ledger()
    yard.sync(yard.file(minutely(catch_up="none", cron="5,10,15 9 * * *")))
    with pytest.raises(UsageError, match="another definition"):
        backfill(yard, at(0, hour=9), at(50, hour=9))
    assert yard.ledger() == missed


def test_catch_up_all_runs_each_oldest_first_up_to_its_limit(yard: Yard) -> None:
    yard.sync(yard.file(minutely(catch_up="all", catch_up_limit=5)))
    yard.clock.advance(timedelta(minutes=30))
    yard.tick()
    assert [job.scheduled_for for job in yard.jobs()] == [at(minute) for minute in range(26, 31)]
    assert yard.ledger()[0] == ("missed", 25, at(1), at(25))


def test_overlap_wait_lets_one_wait_and_coalesces_the_next_into_it(yard: Yard) -> None:
    yard.sync(yard.file(minutely(overlap="wait")))
    for _ in range(3):
        yard.clock.advance(MINUTE)
        yard.tick()
    assert [row[0] for row in yard.ledger()] == ["enqueued", "coalesced", "coalesced"]
    assert len(yard.jobs()) == 1


def test_a_spread_delays_run_at_by_a_stable_part_and_leaves_the_nominal_time(yard: Yard) -> None:
    names = [f"s{number}" for number in range(40)]
    ten = timedelta(minutes=10)
    yard.sync(yard.file(*(minutely(name=name, cron="5 8 * * *", spread=ten) for name in names)))
    yard.clock.set(at(5) + timedelta(seconds=2))
    yard.tick()
    offsets = [yard.jobs(name)[0].run_at - at(5) for name in names]
    assert {yard.jobs(name)[0].scheduled_for for name in names} == {at(5)}
    assert all(timedelta(0) <= offset < ten for offset in offsets)
    assert len(set(offsets)) > 30


@pytest.mark.parametrize("status", ["dead", "cancelled"])
def test_a_job_that_is_retried_after_a_rename_is_one_of_the_schedule(yard: Yard, status: str) -> None:
    yard.sync(yard.file(minutely()))
    first = trigger(yard)
    with yard.database.write() as connection:
        ended = {"status": status, "finished_at": yard.clock.now(), "attempts": 1}
        connection.execute(update(jobs).where(jobs.c.id == first).values(ended))
    yard.sync(yard.file(minutely(name="t", renamed_from="s")))
    yard.sync(yard.file(minutely(name="u", renamed_from="t")))
    with yard.database.write() as connection:
        act = OperatorAction("retry", "ada", "h", None)
        assert operating.retry(connection, [first], act).done == {first}
    with pytest.raises(ScheduleBusy, match=f"job {first} .*--force"):
        trigger(yard, name="u")


def test_a_renamed_schedule_keeps_its_ledger_and_watermark(yard: Yard) -> None:
    yard.sync(yard.file(minutely()))
    yard.clock.advance(MINUTE)
    yard.tick()
    before = yard.definition()
    done = yard.sync(yard.file(minutely(name="t", renamed_from="s")))
    after = yard.definition("t")
    assert done.plan.rename == (("s", "t"),)
    assert (done.plan.add, done.plan.remove) == ((), ())
    assert after.id == before.id
    assert before.seen_until <= after.seen_until < at(2)
    assert [job.scheduled_for for job in yard.jobs("t")] == [at(1)]
    yard.clock.advance(MINUTE)
    yard.sync(yard.file(minutely(name="t", renamed_from="s")))  # the line may stay in the file
    yard.tick()
    assert [row[0] for row in yard.ledger("t")] == ["enqueued", "skipped"]
