"""No job of a schedule begins while another one runs, whatever their ids.

A job that no host can run blocks no other.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, delete, insert, select, update
from support.databases import opened
from support.yard import MINUTE, START, Yard, minutely

from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs, schedules, ticks
from cronjobs.engine.execution import foreground_claim
from cronjobs.engine.jobs.job_types import JobType, JobTypes
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.schedules import backfill
from cronjobs.engine.schedules.backfill import ScheduleBusy
from cronjobs.engine.store import claims, overlap
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.engine.store.job_types import Loaded, record_types
from cronjobs.errors import DatabaseBusy, TurnTaken
from cronjobs.model import Job, RetryPolicy
from cronjobs.testing import FakeClock

LEASE = timedelta(minutes=1)
EVERYTHING = ClaimFilter(known=["t.say"], fitting=["t.say"], remaining_s=50)
LIMITS = [(), (Limit("smtp:", most=4),)]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def yard(database: Database, clock: FakeClock, tmp_path: Path) -> Yard:
    yard = Yard(database, clock, tmp_path)
    yard.sync(yard.file(minutely()))
    return yard


def add(yard: Yard, **columns: Any) -> int:
    row = {"job_type": "t.say", "schedule": "s", "run_at": START, "created_at": START} | columns
    with yard.database.write() as connection:
        found: int = connection.execute(insert(jobs).values(row).returning(jobs.c.id)).scalar_one()
        return found


def change(yard: Yard, job_id: int, **columns: Any) -> None:
    with yard.database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(**columns))


def running(by: str = "elsewhere", **columns: Any) -> dict[str, Any]:
    return {"status": "running", "locked_by": by, "locked_until": START + timedelta(hours=1), "attempts": 1} | columns


def claim_on(
    connection: Connection, limits: tuple[Limit, ...] = (), runnable: Collection[str] | None = None
) -> list[Job]:
    admission = ClaimFilter(known=["t.say"], fitting=["t.say"], remaining_s=50, limits=limits, runnable=runnable)
    return claims.claim(connection, limit=10, locked_by="r", lease=LEASE, admission=admission).jobs


def claim(yard: Yard, limits: tuple[Limit, ...] = (), runnable: Collection[str] | None = None) -> list[int]:
    with yard.database.write() as connection:
        return [job.id for job in claim_on(connection, limits, runnable)]


# --- what runs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", LIMITS, ids=["plain", "limits"])
@pytest.mark.parametrize("older_runs", [True, False])
@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_none_begins_while_another_of_its_schedule_runs_older_or_not(
    yard: Yard, older_runs: bool, timeout_s: float | None, limits: tuple[Limit, ...]
) -> None:
    first, second = add(yard, timeout_s=timeout_s), add(yard, timeout_s=timeout_s)
    other = add(yard, schedule=None)
    change(yard, first if older_runs else second, **running())
    assert claim(yard, limits) == [other]
    change(yard, first if older_runs else second, status="dead", locked_by=None, locked_until=None, finished_at=START)
    assert claim(yard, limits) == [second if older_runs else first]


def test_what_runs_counts_whatever_its_type_and_although_it_was_forced(yard: Yard) -> None:
    add(yard, job_type="t.older", **running())
    add(yard)
    assert claim(yard, runnable=["t.say"]) == []
    change(yard, 1, job_type="t.say", meta=backfill.FORCED)
    assert claim(yard) == []
    forced = add(yard, meta=backfill.FORCED)
    assert claim(yard) == [forced]


def test_a_lease_holds_its_schedule_until_it_is_settled(yard: Yard) -> None:
    add(yard, job_type="t.gone", **running())
    waits = add(yard)
    assert claim(yard, runnable=["t.say"]) == []  # the other job may be running
    change(yard, 1, locked_until=START - timedelta(minutes=3))
    assert claim(yard, runnable=["t.say"]) == []  # only the next recovery settles the expired lease
    change(yard, 1, status="dead", locked_by=None, locked_until=None, finished_at=START)
    assert claim(yard, runnable=["t.say"]) == [waits]


# --- what nobody can run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", LIMITS, ids=["plain", "limits"])
def test_an_older_job_of_an_unknown_type_is_passed_over_and_one_of_another_hosts_is_not(
    yard: Yard, limits: tuple[Limit, ...]
) -> None:
    yard.sync(yard.file(minutely(job="t.misspelt")))
    add(yard, job_type="t.misspelt")
    waits = add(yard)
    assert claim(yard, limits, runnable=None) == []
    assert claim(yard, limits, runnable=["t.say", "t.misspelt"]) == []
    assert claim(yard, limits, runnable=["t.say"]) == [waits]


@pytest.mark.parametrize("limits", LIMITS, ids=["plain", "limits"])
def test_jobs_of_an_earlier_definition_wait_behind_the_others_and_never_run_beside_them(
    yard: Yard, limits: tuple[Limit, ...]
) -> None:
    yard.sync(yard.file(minutely(job="t.newer")))
    old, older_new, newer_new = add(yard), add(yard, job_type="t.newer"), add(yard, job_type="t.newer")
    admission = ClaimFilter(known=["t.say", "t.newer"], fitting=["t.say", "t.newer"], remaining_s=50, limits=limits)
    ran = []
    for _ in range(4):
        with yard.database.write() as connection:
            claimed = claims.claim(connection, limit=10, locked_by="r", lease=LEASE, admission=admission).jobs
        ran.append([job.id for job in claimed])
        for job in claimed:
            change(yard, job.id, status="dead", locked_by=None, locked_until=None, finished_at=START)
    assert ran == [[older_new], [newer_new], [old], []]


@pytest.mark.parametrize("policy", ["skip", "wait"])
def test_an_occurrence_is_made_beside_waiting_jobs_of_other_or_unknown_types(
    yard: Yard, clock: FakeClock, policy: str
) -> None:
    yard.sync(yard.file(minutely(overlap=policy)))
    gives_way = {"skip": "skipped", "wait": "coalesced"}[policy]
    add(yard, job_type="t.older")
    ticked(yard, "t.say", "t.older")
    assert settled(yard, clock) == "enqueued"
    assert settled(yard, clock) == gives_way
    ticked(yard, "t.older")
    assert settled(yard, clock) == "enqueued"  # its present type is the unknown one
    ticked(yard)
    assert settled(yard, clock) == gives_way  # nobody can say


def test_a_running_job_of_the_present_type_is_busy_although_no_tick_knows_the_type_any_more(
    yard: Yard, clock: FakeClock
) -> None:
    add(yard, **running())
    ticked(yard, "t.other")
    assert settled(yard, clock) == "skipped"


def ticked(yard: Yard, *known: str) -> None:
    """The only tick there was knew these types; none: it loaded no handlers."""
    with yard.database.write() as connection:
        connection.execute(delete(ticks))
        hash_ = record_types(connection, Loaded(known)) if known else None
        row = {"tick": "1", "host": "alpha", "pid": 1, "version": "1", "started_at": yard.clock.now()} | {
            "schedules_on": 1
        }
        connection.execute(insert(ticks).values(row | {"job_types": hash_}))


def settled(yard: Yard, clock: FakeClock) -> str:
    """How the next occurrence is settled."""
    clock.advance(MINUTE)
    yard.tick()
    return yard.ledger()[-1][0]


# --- two at once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", LIMITS, ids=["plain", "limits"])
def test_what_another_claim_has_not_committed_yet_counts_too(
    postgres_migrated: str, tmp_path: Path, limits: Any
) -> None:
    with opened(postgres_migrated) as mine, opened(postgres_migrated) as theirs:
        yard = Yard(mine, FakeClock(START), tmp_path)
        yard.sync(yard.file(minutely()))
        add(yard, status="dead", finished_at=START)
        tonight = add(yard)
        with theirs.write() as connection:
            assert [job.id for job in claim_on(connection, limits)] == [tonight]
            change(yard, 1, status="queued", finished_at=None)  # "jobs retry 1", committed
            with mine.write() as ours:
                found = claims.claim(ours, limit=10, locked_by="r", lease=LEASE, admission=EVERYTHING)
            assert (found.jobs, found.more_due) == ([], True)  # it comes back in a moment
        assert claim(yard) == []
        change(yard, tonight, status="dead", locked_by=None, locked_until=None, finished_at=START)
        assert claim(yard) == [1]


@pytest.mark.parametrize("limits", LIMITS, ids=["plain", "limits"])
def test_what_was_committed_between_the_claim_and_its_question_undoes_the_claim(
    postgres_migrated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Any
) -> None:
    with opened(postgres_migrated) as mine, opened(postgres_migrated) as theirs:
        yard = Yard(mine, FakeClock(START), tmp_path)
        yard.sync(yard.file(minutely()))
        add(yard)
        second = add(yard)
        with ExitStack() as stack:
            connection = stack.enter_context(theirs.write())
            # A claim that was quicker than ours: begun after our snapshot, the schedule's row is free again.
            connection.execute(update(jobs).where(jobs.c.id == second).values(running(policy={"attempt": 1})))

            def commit_first(*given: Any) -> None:
                stack.close()
                overlap.take_turns(*given)

            monkeypatch.setattr(claims, "take_turns", commit_first)
            with pytest.raises(TurnTaken):
                claim(yard, limits)
        monkeypatch.undo()
        assert [row.status for row in yard.jobs()] == ["queued", "running"]


RUNNERS, ROUNDS = 5, 10


def test_racing_runners_never_run_two_jobs_of_a_schedule(database_url: str, tmp_path: Path) -> None:
    """In each round all runners claim at once, while one puts old jobs back; then all end while others claim."""
    barrier = threading.Barrier(RUNNERS)
    together: list[int] = []
    took: list[int] = []

    def runner(number: int) -> None:
        with opened(database_url) as database:
            held: list[Job] = []
            for _ in range(ROUNDS):
                barrier.wait(30)
                with database.write() as connection:
                    ended = [job.id for job in held]
                    connection.execute(
                        update(jobs)
                        .where(jobs.c.id.in_(ended))
                        .values(status="dead", locked_by=None, locked_until=None, finished_at=START)
                    )
                if number == 0:
                    with database.write() as connection:
                        back = {"status": "queued", "finished_at": None}
                        connection.execute(update(jobs).where(jobs.c.status == "dead").values(**back))
                try:
                    with database.write() as connection:
                        held = claim_on(connection)
                except TurnTaken:
                    held = []
                took.append(len(held))
                barrier.wait(30)
                if number == 0:
                    with database.read() as connection:
                        rows = connection.execute(jobs.select().where(jobs.c.status == "running")).all()
                    together.append(max((sum(row.schedule == name for row in rows) for name in "abc"), default=0))

    with opened(database_url) as database:
        yard = Yard(database, FakeClock(START), tmp_path)
        yard.sync(yard.file(*(minutely(name=name) for name in "abc")))
        for name in "abc" * 4:
            add(yard, schedule=name)
    threads = [threading.Thread(target=runner, args=(number,)) for number in range(RUNNERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(together) == ROUNDS
    assert max(together) == 1
    assert sum(took) >= ROUNDS


def test_a_trigger_waits_for_a_tick_that_holds_its_schedule_and_runs_after_that_ticks_job(
    postgres_migrated: str, tmp_path: Path
) -> None:
    with opened(postgres_migrated) as mine, opened(postgres_migrated) as theirs:
        yard = Yard(mine, FakeClock(START), tmp_path)
        yard.sync(yard.file(minutely()))
        with theirs.write() as connection:  # what materialise does, slowly
            connection.execute(
                select(schedules.c.id).where(schedules.c.name == "s").with_for_update(key_share=True)
            ).all()
            connection.execute(insert(jobs).values(job_type="t.say", schedule="s", run_at=START))
            with pytest.raises(DatabaseBusy), mine.write() as triggering:
                backfill.trigger(triggering, "s", force=False, actor="me", host="alpha")
        with pytest.raises(ScheduleBusy), mine.write() as triggering:
            backfill.trigger(triggering, "s", force=False, actor="me", host="alpha")
        assert claim(yard) == [1]


def test_by_hand_too_none_begins_while_another_of_its_schedule_runs(yard: Yard) -> None:
    add(yard, **running())
    waits = add(yard)
    known = JobTypes({"t.say": JobType("t.say", timedelta(seconds=10), RetryPolicy())})
    settings = Settings(Path("cronjobs.yaml"), Path())
    with pytest.raises(foreground_claim.CannotRun, match="job 1 of schedule s is still running"):
        foreground_claim.begin_existing(yard.database, waits, settings, known, locked_by="me")
    change(yard, waits, meta=backfill.FORCED)
    assert foreground_claim.begin_existing(yard.database, waits, settings, known, locked_by="me").id == waits
