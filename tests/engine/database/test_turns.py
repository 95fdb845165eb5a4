"""Jobs of one schedule run one at a time, oldest first, if it does not allow overlap.

The claim decides this by rows.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select
from support.yard import MINUTE, START, Yard, at, minutely

from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.rules.ending import decide_end
from cronjobs.engine.schedules import backfill
from cronjobs.engine.store import claims, expiry, leases
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.model import Failed, Finished, Job, Outcome, RetryPolicy, Succeeded
from cronjobs.testing import FakeClock

EVERYTHING = ClaimFilter(known=["t.say"], fitting=["t.say"], remaining_s=50, longest_s=55)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def yard(database: Database, clock: FakeClock, tmp_path: Path) -> Yard:
    return Yard(database, clock, tmp_path)


def claim(yard: Yard, runner: str = "r", limit: int = 10) -> list[Job]:
    with yard.database.write() as connection:
        return claims.claim(
            connection, limit=limit, locked_by=runner, lease=timedelta(minutes=1), admission=EVERYTHING
        )[1]


def finish(yard: Yard, job: Job, outcome: Outcome | None = None) -> None:
    policy = RetryPolicy(base="5m", jitter=0)
    decided = decide_end(Finished(job, outcome or Succeeded()), policy, yard.clock.now(), max_losses=10)
    with yard.database.write() as connection:
        assert leases.finish(connection, [decided.finish]).written == {job.id}


def owed(yard: Yard, **fields: Any) -> None:
    """Ten minutes without a tick, each to be run."""
    yard.sync(yard.file(minutely(catch_up="all", **fields)))
    yard.clock.advance(timedelta(minutes=10))
    yard.tick()


def test_what_catch_up_all_made_together_runs_one_at_a_time_oldest_first(yard: Yard) -> None:
    owed(yard)
    ran = []
    while claimed := claim(yard):
        [job] = claimed
        assert claim(yard, "another") == []
        ran.append(job.scheduled_for)
        finish(yard, job)
    assert ran == [at(minute) for minute in range(1, 11)]


def test_a_schedule_that_allows_overlap_runs_them_together(yard: Yard) -> None:
    owed(yard, overlap="allow")
    assert len(claim(yard)) == 10


def test_jobs_without_a_schedule_and_of_other_schedules_are_not_held_back(yard: Yard) -> None:
    yard.sync(yard.file(minutely(catch_up="all"), minutely(name="other", catch_up="all")))
    yard.clock.advance(timedelta(minutes=3))
    yard.tick()
    claimed = claim(yard)
    assert sorted((job.schedule or "", job.scheduled_for) for job in claimed) == [("other", at(1)), ("s", at(1))]


def test_overlap_wait_starts_the_waiting_one_only_when_the_running_one_is_done(yard: Yard) -> None:
    yard.sync(yard.file(minutely(overlap="wait")))
    yard.clock.advance(MINUTE)
    yard.tick()
    [first] = claim(yard)
    for _ in range(2):
        yard.clock.advance(MINUTE)
        yard.tick()
    assert [row[0] for row in yard.ledger()] == ["enqueued", "enqueued", "coalesced"]
    assert claim(yard) == []
    finish(yard, first)
    [second] = claim(yard)
    assert (second.scheduled_for, second.stands_for) == (at(2), 2)


def test_a_lease_that_ran_out_in_a_crash_holds_no_schedule_back(yard: Yard) -> None:
    owed(yard)
    [first] = claim(yard, "runner that is killed")
    yard.clock.advance(timedelta(minutes=2))
    with yard.database.write() as connection:
        _, [expired] = expiry.expired_leases(connection, 10)
    assert expired.job.id == first.id
    assert claim(yard, "another") == []  # until it is recovered, its row says running
    finish(yard, first, Failed("its runner died", "Lost"))
    yard.clock.advance(timedelta(minutes=6))
    [again] = claim(yard, "another")
    assert again.id == first.id


def test_a_lease_is_over_when_the_databases_clock_says_so(yard: Yard) -> None:
    """Not the host's, which is months ahead of this test's database."""
    owed(yard)
    [job, *_] = claim(yard)
    for after_s, found in ((59, []), (2, [job.id])):
        yard.clock.advance(timedelta(seconds=after_s))
        with yard.database.write() as connection:
            _, expired = expiry.expired_leases(connection, 10)
        assert [each.job.id for each in expired] == found


def test_a_forced_trigger_does_not_wait_its_turn(yard: Yard) -> None:
    owed(yard)
    [running] = claim(yard)
    with yard.database.write() as connection:
        forced = backfill.trigger(connection, "s", force=True, actor="ada", host="h")
    assert [job.id for job in claim(yard)] == [forced]
    assert running.id != forced


def test_a_failing_minutely_schedule_is_tried_again_by_its_next_occurrence(yard: Yard) -> None:
    yard.sync(yard.file(minutely()))
    yard.clock.advance(MINUTE)
    yard.tick()
    [job] = claim(yard)
    assert job.next_occurrence == at(2)
    finish(yard, job, Failed("503", "ProviderError"))  # the job's own policy would wait five minutes
    [row] = yard.jobs()
    assert row.run_at == at(2)


def test_retry_until_next_occurrence_gives_up_instead(yard: Yard) -> None:
    yard.sync(yard.file(minutely(retry_until="next_occurrence")))
    yard.clock.advance(MINUTE)
    yard.tick()
    [job] = claim(yard)
    assert job.retry_until == "next_occurrence"
    finish(yard, job, Failed("503", "ProviderError"))
    with yard.database.read() as connection:
        assert connection.execute(select(jobs.c.status, jobs.c.failures)).one() == ("dead", 1)
    yard.clock.advance(MINUTE)
    yard.tick()
    assert [row[0] for row in yard.ledger()] == ["enqueued", "enqueued"]


def test_meta_that_is_no_json_object_stops_no_claim(yard: Yard) -> None:
    owed(yard)
    with yard.database.write() as connection:
        connection.exec_driver_sql("UPDATE cronjobs_jobs SET meta = '[1]'")
        if yard.database.is_sqlite:
            connection.exec_driver_sql("UPDATE cronjobs_jobs SET meta = 'nonsense'")
    assert len(claim(yard)) == 1


def test_a_claim_hands_out_what_the_row_says(yard: Yard) -> None:
    written = {"priority": 1, "queue": "mail", "max_attempts": 7, "timeout_s": 2.5, "idempotency_key": "k"}
    written |= {"concurrency_key": "c", "payload": {"line": "x"}, "meta": {"trace": "1"}, "failures": 2, "losses": 1}
    with yard.database.write() as connection:
        row = {"job_type": "t.say", "run_at": START, "created_at": START, "interruptions": 1, "attempts": 4} | written
        job_id = connection.execute(insert(jobs).values(row).returning(jobs.c.id)).scalar_one()
    [job] = claim(yard)
    assert {name: getattr(job, name) for name in written} == written
    assert (job.id, job.job_type, job.attempt, job.interruptions) == (job_id, "t.say", 5, 1)
    assert (job.run_at, job.created_at, job.locked_by) == (START, START, "r")
    assert (job.schedule, job.scheduled_for, job.next_occurrence, job.retry_until) == (None, None, None, None)
    assert (job.stands_for, job.timezone) == (1, "UTC")
    assert job.started_at is not None
    assert abs(job.started_at - yard.clock.now()) < timedelta(seconds=5)
