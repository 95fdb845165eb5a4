"""Every write about an attempt has the fence: id, attempt, holder and status. There is a case for each part."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select

from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import job_runs, jobs
from cronjobs.engine.rules.ending import running_row
from cronjobs.engine.rules.lease import Finish, Lease, lease_of
from cronjobs.engine.store import claims, leases
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.model import Job, Status, TimedOut

LEASE = timedelta(minutes=1)
BEFORE = datetime(2026, 1, 1, tzinfo=UTC)
ANY = ClaimFilter(known=["t"], fitting=["t"], remaining_s=50)


def enqueue(database: Database, count: int = 1) -> None:
    with database.write() as connection:
        connection.execute(insert(jobs), [{"job_type": "t", "run_at": BEFORE} for _ in range(count)])


def claim(database: Database, holder: str = "a") -> list[Job]:
    with database.write() as connection:
        return claims.claim(connection, limit=10, locked_by=holder, lease=LEASE, admission=ANY)[1]


def ended(lease: Lease, status: Status = Status.SUCCEEDED) -> Finish:
    return Finish(
        lease=lease,
        status=status,
        failures=0,
        losses=0,
        interruptions=0,
        outcome="succeeded" if status is Status.SUCCEEDED else None,
    )


def rows(database: Database) -> list[Any]:
    with database.read() as connection:
        return [*connection.execute(select(jobs).order_by(jobs.c.id)), *connection.execute(select(job_runs))]


def given_back_and_taken_again(database: Database, job: Job) -> None:
    """The same holder, another attempt: a tick that gave a job back claims it again."""
    with database.write() as connection:
        leases.finish(connection, [ended(lease_of(job), Status.QUEUED)])
    [again] = claim(database)
    assert (again.locked_by, again.attempt) == (job.locked_by, job.attempt + 1)


def adopted(database: Database, job: Job) -> None:
    """The same attempt, another holder: the process of a long job has taken it over."""
    with database.write() as connection:
        taken = leases.adopt(connection, lease_of(job), locked_by="b", lease=LEASE, host="h", at_most=1)
    assert taken is not None
    assert (taken.locked_by, taken.attempt) == ("b", job.attempt)


def over(database: Database, job: Job) -> None:
    with database.write() as connection:
        leases.finish(connection, [ended(lease_of(job))])


WRITES: dict[str, Callable[[Connection, Job], object]] = {
    "finish": lambda connection, job: leases.finish(connection, [ended(lease_of(job))]),
    "renew": lambda connection, job: leases.renew(connection, [lease_of(job)], LEASE * 2),
    "record a time-out": lambda connection, job: leases.record_overdue(
        connection, [running_row(job, TimedOut(), timedelta(seconds=1), "1")]
    ),
    "cut the lease": lambda connection, job: leases.cut_leases(connection, [lease_of(job)], timedelta(seconds=2)),
    "adopt": lambda connection, job: leases.adopt(
        connection, lease_of(job), locked_by="c", lease=LEASE, host="h", at_most=9
    ),
}


@pytest.mark.parametrize("what_happened", [given_back_and_taken_again, adopted, over])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_who_lost_the_lease_changes_nothing(
    database: Database,
    write: Callable[[Connection, Job], object],
    what_happened: Callable[[Database, Job], None],
) -> None:
    enqueue(database)
    [job] = claim(database)
    what_happened(database, job)
    before = rows(database)
    with database.write() as connection:
        write(connection, job)
    assert rows(database) == before


def test_the_ends_of_one_group_go_to_their_own_jobs(database: Database) -> None:
    enqueue(database, 3)
    first, second, third = claim(database)
    with database.write() as connection:
        leases.finish(connection, [ended(lease_of(first)), ended(lease_of(second), Status.QUEUED)])
    with database.read() as connection:
        found = {row.id: row.status for row in connection.execute(select(jobs.c.id, jobs.c.status))}
    assert found == {first.id: "succeeded", second.id: "queued", third.id: "running"}


def test_a_renewal_says_what_is_held_and_what_is_lost(database: Database) -> None:
    enqueue(database, 2)
    kept, lost = claim(database)
    adopted(database, lost)
    with database.write() as connection:
        renewal = leases.renew(connection, [lease_of(kept), lease_of(lost)], LEASE)
    assert renewal.renewed == {kept.id}
    assert renewal.lost == {lost.id}
