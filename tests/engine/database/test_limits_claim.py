"""A claim under limits: exact over all runners, in order, and a full key hides no other job. On both databases."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, select, update

from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs, pauses
from cronjobs.engine.execution.foreground_claim import CannotRun, begin_existing
from cronjobs.engine.jobs.job_types import JobType, JobTypes
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.rules.lease import Finish, Lease
from cronjobs.engine.store import claims, leases
from cronjobs.engine.store.claims import Claim, ClaimFilter
from cronjobs.model import Job, RetryPolicy, Status

MINUTE = timedelta(minutes=1)
BEFORE = datetime(2026, 1, 1, tzinfo=UTC)
SMTP = Limit("smtp:", most=2)


@pytest.fixture
def add(database: Database) -> Callable[..., int]:
    def add(key: str | None = None, count: int = 1, **columns: Any) -> int:
        """Due jobs of a key; the id of the last."""
        row = {"job_type": "t", "concurrency_key": key, "run_at": BEFORE} | columns
        with database.write() as connection:
            found = [connection.execute(insert(jobs).returning(jobs.c.id), [row]).scalar_one() for _ in range(count)]
        return int(found[-1])

    return add


def admission(*limits: Limit, **changes: Any) -> ClaimFilter:
    return replace(ClaimFilter(known=["t"], fitting=["t"], remaining_s=50, limits=limits), **changes)


def claim_with(connection: Connection, *limits: Limit, room: int = 10, **changes: Any) -> Claim:
    return claims.claim(
        connection, limit=room, locked_by=f"r{id(connection)}", lease=MINUTE, admission=admission(*limits, **changes)
    )


def claim(database: Database, *limits: Limit, room: int = 10, **changes: Any) -> list[Job]:
    with database.write() as connection:
        found = claim_with(connection, *limits, room=room, **changes)
    assert not found.more_due
    return found.jobs


def keys(found: list[Job]) -> list[str | None]:
    return [job.concurrency_key for job in found]


def end(database: Database, job: Job) -> None:
    lease = Lease(job.id, job.attempt, str(job.locked_by))
    finish = Finish(lease=lease, status=Status.SUCCEEDED, failures=0, losses=0, interruptions=0, outcome="succeeded")
    with database.write() as connection:
        assert leases.finish(connection, [finish]).written == {job.id}


def test_no_more_begin_than_the_limit_lets_and_the_next_when_one_has_ended(
    database: Database, add: Callable[..., int]
) -> None:
    add("smtp:a", 3)
    add("smtp:b", 3)
    first = claim(database, SMTP)
    assert keys(first) == ["smtp:a", "smtp:a"]
    assert claim(database, SMTP) == []
    end(database, first[0])
    assert keys(claim(database, SMTP)) == ["smtp:a"]
    assert claim(database, SMTP) == []


def test_a_key_that_is_full_hides_nobody_else(database: Database, add: Callable[..., int]) -> None:
    add("smtp:a", 40, priority=0)
    add("tenant:1", 40, priority=1)
    add("tenant:2", 40, priority=1)
    add("free", priority=2)
    add(None, priority=9)
    limits = [SMTP, Limit("tenant:", each=1)]
    expected = ["smtp:a", "smtp:a", "tenant:1", "tenant:2", "free", None]
    assert keys(claim(database, *limits, room=6)) == expected
    assert claim(database, *limits, room=6) == []


def test_with_more_full_keys_than_one_claim_looks_behind_the_next_one_goes_on(
    database: Database, add: Callable[..., int]
) -> None:
    tenants = [f"tenant:{n}" for n in range(2 * claims.ROUNDS)]
    for tenant in tenants:
        add(tenant, 3)
    add(None, priority=9)
    found: list[str | None] = []
    more_due = True
    while more_due:
        with database.write() as connection:
            one = claim_with(connection, Limit("tenant:", each=1), room=3)
        assert one.jobs
        found, more_due = found + keys(one.jobs), one.more_due or len(one.jobs) == 3
    assert found == [*tenants, None]


def test_order_is_kept_under_limits(database: Database, add: Callable[..., int]) -> None:
    later = BEFORE + timedelta(hours=1)
    low = add("smtp:a", priority=5)
    late = add("smtp:b", priority=1, run_at=later)
    other = add(None, priority=1, run_at=BEFORE + timedelta(minutes=30), queue="other")
    high = add("smtp:c", priority=1)
    order = []
    while found := claim(database, Limit("smtp:", most=1), room=1):
        order.append(found[0].id)
        end(database, found[0])
    assert order == [high, other, late, low]


def test_a_lease_that_ran_out_counts_until_it_is_recovered(
    database: Database, add: Callable[..., int], clock: Any
) -> None:
    add("smtp:a", 2)
    [job] = claim(database, Limit("smtp:", most=1))
    clock.advance(timedelta(hours=1))
    assert claim(database, Limit("smtp:", most=1)) == []  # the job's code may still run, although its lease is over
    with database.write() as connection:
        back = {"status": "failed", "locked_by": None, "locked_until": None}
        connection.execute(update(jobs).where(jobs.c.id == job.id).values(back))
    assert [found.id for found in claim(database, Limit("smtp:", most=1))] == [job.id]


def test_what_else_decides_whether_a_job_is_taken_does_so_under_limits_too(
    database: Database, add: Callable[..., int]
) -> None:
    add("smtp:paused", queue="held")
    add("smtp:unknown", job_type="gone")
    add("smtp:long", timeout_s=3000.0)
    add("smtp:future", run_at=datetime(2030, 1, 1, tzinfo=UTC))
    add("smtp:other queue", queue="other")
    add("smtp:lost", losses=1, queue="mail")
    add(None, queue="mail")
    with database.write() as connection:
        connection.execute(insert(pauses).values(scope="queue", name="held"))
    assert claim(database, SMTP, queue="mail", free=0) == []  # one that is not prefetched does not begin at once
    assert keys(claim(database, SMTP, queue="other")) == ["smtp:other queue"]
    assert keys(claim(database, Limit("smtp:", most=9))) == ["smtp:lost", None]
    assert keys(claim(database, Limit("smtp:", most=9), remaining_s=-1, longest_s=60, fitting=[])) == ["smtp:long"]


def test_long_jobs_are_counted_with_the_others(database: Database, add: Callable[..., int]) -> None:
    add("smtp:long", timeout_s=3000.0)
    add("smtp:short")
    assert keys(claim(database, Limit("smtp:", most=1), remaining_s=-1, longest_s=60, fitting=[])) == ["smtp:long"]
    assert claim(database, Limit("smtp:", most=1)) == []


def test_a_prefix_that_looks_like_a_pattern_is_text(database: Database, add: Callable[..., int]) -> None:
    for key in ("a%_'\"\\é:", "a%_'\"\\é:", "abcdefgh", "A%_'\"\\é:"):
        add(key)
    assert keys(claim(database, Limit("a%_'\"\\é:", most=1))) == ["a%_'\"\\é:", "abcdefgh", "A%_'\"\\é:"]


# --- one by hand ------------------------------------------------------------------------------------------------------

KNOWN = JobTypes({"t": JobType("t", MINUTE, RetryPolicy())})


def test_a_job_named_by_hand_waits_for_its_limit_too_and_is_told_which(
    database: Database, add: Callable[..., int]
) -> None:
    add("smtp:a", 2)
    claim(database, SMTP)
    job_id, free = add("smtp:b"), add("other")

    def begin(job_id: int, *limits: Limit) -> Job:
        settings = Settings(Path("cronjobs.yaml"), Path(), limits=limits)
        return begin_existing(database, job_id, settings, KNOWN, locked_by="hand")

    with pytest.raises(CannotRun, match=rf'job {job_id} waits: limit "smtp:" is reached \(2 at once\); try again when'):
        begin(job_id, SMTP)
    assert begin(free, SMTP).id == free
    assert begin(job_id, Limit("smtp:", most=3)).concurrency_key == "smtp:b"


# --- many at once -----------------------------------------------------------------------------------------------------


@contextmanager
def another(url: str) -> Iterator[Database]:
    database = Database(parse_url(url))
    yield database
    database.close()


def test_while_another_is_judging_only_jobs_without_limits_are_taken_and_it_is_said_to_come_back(
    postgres_migrated: str,
) -> None:
    """The other may be frozen: nobody's renewals wait for it."""
    with another(postgres_migrated) as ours, another(postgres_migrated) as theirs:
        with ours.write() as connection:
            row = {"job_type": "t", "run_at": BEFORE}
            connection.execute(insert(jobs), [row | {"concurrency_key": key} for key in ["smtp:a"] * 5 + [None] * 2])
        with theirs.write() as judging, ours.write() as connection:
            assert keys(claim_with(judging, SMTP, room=2).jobs) == ["smtp:a"] * 2
            found = claim_with(connection, SMTP)
            assert (keys(found.jobs), found.more_due) == ([None, None], True)


def test_a_claim_sees_what_was_committed_since_its_transaction_began_whatever_the_default(
    postgres_migrated: str,
) -> None:
    level = "options=-c%20default_transaction_isolation%3Drepeatable%5C%20read"
    late_url = postgres_migrated + ("&" if "?" in postgres_migrated else "?") + level
    with another(postgres_migrated) as theirs, another(late_url) as late:
        with theirs.write() as connection:
            row = {"job_type": "t", "run_at": BEFORE, "concurrency_key": "smtp:a"}
            connection.execute(insert(jobs), [row] * 5)
        with late.write() as connection:
            assert connection.exec_driver_sql("SHOW default_transaction_isolation").scalar() == "repeatable read"
            connection.execute(select(jobs.c.id)).all()  # a turn writes its ends before it claims
            assert len(claim(theirs, SMTP)) == 2
            found = claim_with(connection, SMTP)
            assert (found.jobs, found.more_due) == ([], False)


def is_lock(statement: str) -> bool:
    """The question whose turn it is; the lock for jobs of schedules is part of the claim."""
    return statement.startswith("SELECT 1 FROM cronjobs_meta") and "FOR NO KEY UPDATE" in statement


def test_whose_turn_it_is_to_judge_is_settled_by_a_statement_before_any_that_counts(postgres_migrated: str) -> None:
    """Inside the claim the lock would come after the snapshot by which that statement counts."""
    sent: list[str] = []
    with another(postgres_migrated) as database:
        event.listen(database.engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
        claim(database, SMTP)
    locks = [number for number, statement in enumerate(sent) if is_lock(statement)]
    about_jobs = [number for number, statement in enumerate(sent) if "cronjobs_jobs" in statement]
    assert min(locks) < min(about_jobs)


def test_without_limits_a_claim_is_the_one_statement_it_was(postgres_migrated: str) -> None:
    sent: list[str] = []
    with another(postgres_migrated) as database:
        with database.write() as connection:
            connection.execute(insert(jobs).values(job_type="t", run_at=BEFORE))
        event.listen(database.engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
        assert len(claim(database)) == 1
    assert len([statement for statement in sent if "cronjobs_jobs" in statement]) == 1
    assert not [statement for statement in sent if is_lock(statement)]


RUNNERS, ROUNDS = 6, 12


def test_racing_runners_never_pass_a_limit(database_url: str) -> None:
    """In each round all runners claim at once; then they write all ends at once, while others claim again."""
    barrier = threading.Barrier(RUNNERS)
    over: list[int] = []
    took: list[int] = []

    def runner(number: int) -> None:
        with another(database_url) as database:
            held: list[Job] = []
            for _ in range(ROUNDS):
                barrier.wait(30)
                with database.write() as connection:
                    for job in held:
                        connection.execute(
                            update(jobs)
                            .where(jobs.c.id == job.id)
                            .values(status="queued", locked_by=None, locked_until=None)
                        )
                    held = claim_with(connection, Limit("smtp:", most=3), room=2).jobs
                    took.append(len(held))
                barrier.wait(30)
                if number == 0:
                    with database.read() as connection:
                        over.append(len(connection.execute(select(jobs.c.id).where(jobs.c.status == "running")).all()))

    with another(database_url) as database, database.write() as connection:
        row = {"job_type": "t", "run_at": BEFORE, "concurrency_key": "smtp:a"}
        connection.execute(insert(jobs), [row] * 40)
    threads = [threading.Thread(target=runner, args=(number,)) for number in range(RUNNERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(over) == ROUNDS
    assert max(over) <= 3
    assert sum(took) >= ROUNDS  # the limit was not kept just because nobody took a job
