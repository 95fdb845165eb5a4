"""Definitions, watermarks and the ledger, in fake time on both databases: each occurrence is settled once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, select, update
from support.yard import MINUTE, START, Yard, at, minutely

from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import audit, jobs, occurrences, schedules
from cronjobs.engine.schedules.definition import fingerprint
from cronjobs.engine.schedules.materialise import materialise
from cronjobs.engine.store import schedules as store
from cronjobs.engine.store.enqueue import NewJob, insert_jobs
from cronjobs.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def yard(database: Database, clock: FakeClock, tmp_path: Path) -> Yard:
    return Yard(database, clock, tmp_path)


def test_a_new_schedule_never_fires_for_the_past(yard: Yard) -> None:
    yard.sync(yard.file(minutely()))
    yard.tick()
    assert yard.ledger() == []
    assert START <= yard.definition().seen_until < START + timedelta(seconds=1)
    assert yard.definition().next_at == at(1)


def test_an_occurrence_becomes_one_job_however_often_ticks_come(yard: Yard) -> None:
    yard.sync(yard.file(minutely(payload={"line": "x"}, priority=2, queue="mail", max_attempts=3)))
    yard.clock.advance(MINUTE)
    for _ in range(3):
        yard.tick()
    [job] = yard.jobs()
    assert (job.job_type, job.payload, job.priority, job.queue, job.max_attempts) == (
        "t.say",
        {"line": "x"},
        2,
        "mail",
        3,
    )
    assert (job.scheduled_for, job.run_at, job.enqueued_by) == (at(1), at(1), "schedule s")
    assert yard.ledger() == [("enqueued", 1, at(1), at(1))]


def test_a_week_of_missed_minutes_is_one_row_and_the_newest_runs(yard: Yard) -> None:
    yard.sync(yard.file(minutely()))
    now = yard.clock.advance(timedelta(days=7))
    yard.tick()
    newest = now.replace(second=0)
    kinds = [(outcome, count) for outcome, count, _, _ in yard.ledger()]
    assert kinds == [("missed", 6 * 1440), ("coalesced", 1439), ("enqueued", 1)]
    assert yard.ledger()[-1][3] == newest
    assert sum(count for _, count, _, _ in yard.ledger()) == 7 * 1440
    assert len(yard.jobs()) == 1


def test_coalesced_occurrences_name_the_job_that_stands_for_them(yard: Yard) -> None:
    yard.sync(yard.file(minutely()))
    yard.clock.advance(timedelta(minutes=10))
    yard.tick()
    with yard.database.read() as connection:
        columns = occurrences.c
        rows = connection.execute(select(columns.outcome, columns["count"], columns.job_id)).all()
    assert {tuple(row) for row in rows} == {
        ("coalesced", 9, yard.jobs()[0].id),
        ("enqueued", 1, yard.jobs()[0].id),
    }


def test_catch_up_none_runs_only_what_is_on_time(yard: Yard) -> None:
    yard.sync(yard.file(minutely(catch_up="none", cron="5 * * * *")))
    yard.clock.set(at(8, hour=9))  # 09:05 is three minutes old
    yard.tick()
    assert yard.jobs() == []
    assert [(row[0], row[1]) for row in yard.ledger()] == [("missed", 2)]
    yard.clock.set(at(6, hour=10))
    yard.tick()
    assert [job.scheduled_for for job in yard.jobs()] == [at(5, hour=10)]


def test_overlap_skip_gives_way_to_an_unfinished_job_and_says_to_which(yard: Yard) -> None:
    yard.sync(yard.file(minutely()))
    yard.clock.advance(MINUTE)
    yard.tick()
    [first] = yard.jobs()
    yard.clock.advance(MINUTE)
    yard.tick()
    with yard.database.read() as connection:
        row = connection.execute(select(occurrences).where(occurrences.c.outcome == "skipped")).one()
    assert (row.job_id, row.reason) == (first.id, f"overlap: job {first.id} was still unfinished")
    yard.finish_jobs()
    yard.clock.advance(MINUTE)
    yard.tick()
    assert [job.scheduled_for for job in yard.jobs()] == [at(1), at(3)]


def test_overlap_allow_runs_beside_an_unfinished_job(yard: Yard) -> None:
    yard.sync(yard.file(minutely(overlap="allow")))
    for _ in range(3):
        yard.clock.advance(MINUTE)
        yard.tick()
    assert len(yard.jobs()) == 3


def test_an_edit_settles_what_was_due_under_the_old_definition_first(yard: Yard) -> None:
    yard.sync(yard.file(minutely(overlap="allow")))
    yard.clock.advance(timedelta(minutes=5))  # an outage, and in the middle of it a deploy with another timing
    yard.sync(yard.file(minutely(cron="0 12 * * *", overlap="allow")))
    assert Counter(row[0] for row in yard.ledger()) == {"coalesced": 1, "enqueued": 1}
    assert sum(row[1] for row in yard.ledger()) == 5
    assert yard.definition().next_at == at(0, hour=12)


def test_an_edit_of_anything_but_timing_leaves_the_watermark(yard: Yard) -> None:
    yard.sync(yard.file(minutely()))
    before = yard.definition().seen_until
    yard.clock.advance(timedelta(seconds=10))
    yard.sync(yard.file(minutely(payload={"line": "new"})))
    after = yard.definition()
    assert after.definition["payload"] == {"line": "new"}
    assert before <= after.seen_until < at(1)
    assert after.next_at == at(1)
    yard.clock.advance(MINUTE)
    yard.tick()
    assert [job.payload for job in yard.jobs()] == [{"line": "new"}]


def test_a_removed_schedule_is_retired_and_its_jobs_stay(yard: Yard) -> None:
    yard.sync(yard.file(minutely(), minutely(name="other")))
    yard.clock.advance(MINUTE)
    yard.sync(yard.file(minutely(name="other")))
    assert yard.definition().status == "retired"
    assert [job.status for job in yard.jobs()] == ["queued"]
    yard.clock.advance(MINUTE)
    yard.tick()
    assert yard.ledger() == [("enqueued", 1, at(1), at(1))]


def test_a_schedule_that_comes_back_does_not_make_up_for_its_absence(yard: Yard) -> None:
    yard.sync(yard.file(minutely(), minutely(name="other")))
    yard.sync(yard.file(minutely(name="other")))
    yard.clock.advance(timedelta(hours=3))
    yard.sync(yard.file(minutely(), minutely(name="other")))
    yard.tick()
    assert yard.ledger() == []


def test_a_broken_entry_neither_fires_nor_is_retired_and_loses_nothing(yard: Yard) -> None:
    yard.sync(yard.file(minutely(), minutely(name="other")))
    yard.sync(yard.file(minutely(name="other"), disabled=("s",)))
    assert yard.definition().status == "active"
    yard.clock.advance(timedelta(minutes=3))
    materialise(yard.database, yard.events.append, but={"s"})
    assert yard.ledger() == []
    yard.tick()  # mended
    assert sum(row[1] for row in yard.ledger()) == 3


@pytest.mark.parametrize(
    ("before", "after", "refused"), [(6, 2, True), (6, 3, False), (3, 0, True), (2, 1, False), (1, 0, True)]
)
def test_a_file_that_would_silence_most_of_the_night_is_refused(
    yard: Yard, before: int, after: int, refused: bool
) -> None:
    names = [f"s{number}" for number in range(before)]
    yard.sync(yard.file(*(minutely(name=name) for name in names)))
    done = yard.sync(yard.file(*(minutely(name=name) for name in names[:after])))
    assert (done.plan.refused is not None) is refused
    with yard.database.read() as connection:
        active = connection.execute(select(schedules.c.name).where(schedules.c.status == "active")).all()
    assert len(active) == (before if refused else after)
    if refused:
        assert "--allow-removals" in str(done.plan.refused)
        assert yard.sync(yard.file(*(minutely(name=name) for name in names[:after])), allow_removals=True).applied


def test_every_definition_is_kept_in_the_audit_trail(yard: Yard) -> None:
    first, second = yard.file(minutely()), yard.file(minutely(cron="5 * * * *"))
    yard.sync(first)
    yard.sync(second)
    with yard.database.read() as connection:
        rows = connection.execute(select(audit).order_by(audit.c.id)).all()
    assert [(row.action, row.subject) for row in rows] == [
        ("define", "s"),
        ("sync", fingerprint(first)),
        ("define", "s"),
        ("sync", fingerprint(second)),
    ]
    assert [row.detail["cron"] for row in rows if row.action == "define"] == ["* * * * *", "5 * * * *"]


def test_a_pause_holds_back_and_at_resume_catch_up_decides_once(yard: Yard) -> None:
    yard.sync(yard.file(minutely()))
    yard.pause(why="deploy")
    yard.clock.advance(timedelta(minutes=5))
    yard.tick()
    assert yard.jobs() == yard.ledger() == []
    assert yard.held_back() == {"s": 5}
    assert yard.resume()
    yard.tick()
    assert [(row[0], row[1]) for row in yard.ledger()] == [("coalesced", 4), ("enqueued", 1)]
    assert [job.scheduled_for for job in yard.jobs()] == [at(5)]
    [event] = [event for event in yard.events if event.name == "schedule.held_back"]
    assert (event.facts["held_back"], event.facts["reason"]) == (5, "paused by ada: deploy")


def test_a_pause_that_skips_is_recorded_and_does_not_make_up_for_it(yard: Yard) -> None:
    yard.sync(yard.file(minutely()))
    yard.pause(why="deploy", skip=True)
    yard.clock.advance(timedelta(minutes=5))
    yard.tick()
    assert yard.jobs() == []
    assert sum(row[1] for row in yard.ledger()) == 5
    with yard.database.read() as connection:
        reasons = set(connection.execute(select(occurrences.c.outcome, occurrences.c.reason)).all())
    assert reasons == {("skipped", "paused by ada: deploy")}
    assert yard.resume()
    yard.tick()
    assert yard.jobs() == []
    yard.clock.advance(MINUTE)
    yard.tick()
    assert len(yard.jobs()) == 1


@pytest.mark.parametrize(("skip", "became"), [(True, ["skipped", "enqueued"]), (False, ["coalesced", "enqueued"])])
def test_a_pause_ends_by_itself_at_its_time(yard: Yard, skip: bool, became: list[str]) -> None:
    yard.sync(yard.file(minutely()))
    yard.pause("s", until=START + timedelta(seconds=70), skip=skip)
    yard.clock.advance(MINUTE)
    yard.tick()
    yard.clock.advance(MINUTE)
    yard.tick()
    assert [row[0] for row in yard.ledger()] == became


def test_a_watermark_in_the_future_falls_back_to_now_and_it_is_said(yard: Yard) -> None:
    yard.sync(yard.file(minutely()))
    yard.clock.set(START + timedelta(days=3650))
    yard.tick()
    made = len(yard.jobs())
    yard.finish_jobs()
    yard.clock.set(START + MINUTE)  # the clock was ten years ahead, once
    yard.tick()
    assert [event.name for event in yard.events if event.name == "schedule.watermark_reset"] == [
        "schedule.watermark_reset"
    ]
    yard.clock.advance(MINUTE)
    yard.tick()
    assert len(yard.jobs()) == made + 1
    # Of the ten years that the wrong clock had told missed nothing is left: what was really due has run.
    assert yard.ledger()[0] == ("enqueued", 1, at(1), at(1))
    assert yard.ledger()[1] == ("skipped", 1, at(2), at(2))


def test_a_clock_that_steps_back_a_little_runs_nothing_twice(yard: Yard) -> None:
    yard.sync(yard.file(minutely(overlap="allow")))
    for step in (60, -50, 55, -120, 60, 60, 60):
        yard.clock.advance(timedelta(seconds=step))
        yard.tick()
    instants = [row[3] for row in yard.ledger()]
    assert len(instants) == len(set(instants))
    assert len(yard.jobs()) == sum(row[0] == "enqueued" for row in yard.ledger())


def test_a_watermark_set_back_by_hand_runs_no_occurrence_again(yard: Yard) -> None:
    yard.sync(yard.file(minutely(overlap="allow")))
    for _ in range(3):
        yard.clock.advance(MINUTE)
        yard.tick()
    with yard.database.write() as connection:
        connection.execute(update(schedules).values(seen_until=START, next_at=START))
    yard.tick()
    assert [job.scheduled_for for job in yard.jobs()] == [at(1), at(2), at(3)]


def test_an_occurrence_that_is_in_the_ledger_is_refused_by_the_database(yard: Yard) -> None:
    yard.sync(yard.file(minutely()))
    yard.clock.advance(MINUTE)
    yard.tick()
    row = {"schedule_id": yard.definition().id, "first_for": at(1), "last_for": at(1), "outcome": "enqueued"}
    with pytest.raises(Exception, match=r"(?i)unique"), yard.database.write() as connection:
        connection.execute(insert(occurrences).values(row))


def test_another_tick_at_the_same_schedule_is_passed_by_and_nothing_is_doubled(yard: Yard) -> None:
    yard.sync(yard.file(minutely()))
    yard.clock.advance(MINUTE)
    with yard.database.read() as connection:
        stale = store.due_schedules(connection)[0]
    yard.tick()
    with yard.database.write() as connection:
        assert store.lock_schedules(connection, [stale]) == set()


def test_a_definition_that_cannot_be_read_stops_only_itself(yard: Yard) -> None:
    yard.sync(yard.file(minutely(), minutely(name="broken")))
    with yard.database.write() as connection:
        broken = {"job": "t.say", "cron": "61 * * * *"}
        connection.execute(update(schedules).where(schedules.c.name == "broken").values(definition=broken))
    yard.clock.advance(MINUTE)
    yard.tick()
    assert len(yard.jobs()) == 1
    [event] = [event for event in yard.events if event.name == "schedule.broken"]
    assert "minute 61 is not in 0–59" in event.facts["error"]


def test_an_interval_fires_at_multiples_since_1970(yard: Yard) -> None:
    yard.sync(yard.file(minutely(cron=None, every=timedelta(minutes=7))))
    yard.clock.advance(timedelta(minutes=7))
    yard.tick()
    [job] = yard.jobs()
    assert (job.scheduled_for - datetime(1970, 1, 1, tzinfo=UTC)) % timedelta(minutes=7) == timedelta(0)


def test_days_are_24_hours_also_when_the_servers_zone_changes_its_clock(database: Database, clock: FakeClock) -> None:
    with database.write() as connection:
        [job_id] = insert_jobs(connection, [NewJob("t.say", delay_s=timedelta(days=7).total_seconds())])
        run_at = connection.execute(select(jobs.c.run_at).where(jobs.c.id == job_id)).scalar_one()
    assert timedelta(0) <= run_at - (START + timedelta(days=7)) < timedelta(seconds=5)


def test_a_pause_that_skips_and_ran_out_while_no_tick_came_is_not_made_up_for(yard: Yard) -> None:
    yard.sync(yard.file(minutely(overlap="allow")))
    yard.pause("s", until=at(10) + timedelta(seconds=30), skip=True)
    yard.clock.set(at(12) + timedelta(seconds=1))
    yard.tick()
    assert [(row[0], row[1]) for row in yard.ledger()] == [("skipped", 10), ("coalesced", 1), ("enqueued", 1)]
    assert [job.scheduled_for for job in yard.jobs()] == [at(12)]


def test_a_long_pause_that_skips_is_recorded_as_one_however_old_its_beginning(yard: Yard) -> None:
    yard.sync(yard.file(minutely()))
    yard.pause(skip=True)
    yard.clock.advance(timedelta(days=3))
    yard.tick()
    assert {row[0] for row in yard.ledger()} == {"skipped"}
    assert sum(row[1] for row in yard.ledger()) == 3 * 1440
