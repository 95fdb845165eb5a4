"""An id that no job has: the answer says whether it never existed, was pruned, or was used up without a job."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import delete, insert, select
from support.postgres import OWNER, as_role

from cronjobs.desk.insight.missing_job import missing_at, missing_job
from cronjobs.desk.store.missing_jobs import Gap, is_enqueue_open
from cronjobs.engine.config.settings import Retention
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import effects, jobs, occurrences, schedules

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEPT = Retention()


def put(database: Database, *, age: timedelta = timedelta(0), keep: bool = True) -> int:
    made = database.clock.now() - age
    with database.write() as connection:
        values = {"job_type": "t", "run_at": made, "created_at": made}
        job_id = int(connection.execute(insert(jobs).values(values).returning(jobs.c.id)).scalar_one())
        if not keep:
            connection.execute(delete(jobs).where(jobs.c.id == job_id))
    return job_id


def said(database: Database, job_id: int) -> str:
    with database.read() as connection:
        return missing_job(connection, job_id, KEPT)


def test_before_the_first_job(database: Database) -> None:
    assert said(database, 2) == "there is no job 2: none was ever enqueued here"


def test_above_the_highest_that_was_given_also_if_that_one_is_gone(database_url: str) -> None:
    database = Database(parse_url(as_role(database_url, OWNER)))
    there = put(database)
    gone = put(database, keep=False)
    assert said(database, gone + 1) == f"there is no job {gone + 1}, and never was: the highest id so far is {gone}"
    assert "never was" not in said(database, gone)
    database.close()
    if not database.is_sqlite:  # those who run jobs have no right to the sequence
        database = Database(parse_url(database_url))
        assert said(database, gone + 1) == f"there is no job {gone + 1}: the highest id here is {there}"
        database.close()


@pytest.mark.parametrize("number", [0, 2**63, 10**19])
def test_what_no_job_can_be(database: Database, number: int) -> None:
    assert said(database, number) == f"there is no job {number}: job ids are between 1 and {2**63 - 1:,}"


def test_among_jobs_that_are_too_new_to_be_pruned_it_was_used_up(database: Database) -> None:
    put(database, age=timedelta(days=13))
    gone = put(database, age=timedelta(days=13), keep=False)
    put(database)
    told = said(database, gone)
    assert re.search(r"^there is no job \d+: an enqueue used up the id without making a job", told)
    # After a crash PostgreSQL goes on behind the values that it had logged ahead: up to 32 ids are skipped.
    skipped = "; or the database server skipped the id after a crash"
    assert told.endswith(("" if database.is_sqlite else skipped) + "; or someone deleted its row")


@pytest.mark.parametrize("first", [True, False])
def test_among_old_ones_it_may_have_been_pruned(database: Database, first: bool) -> None:
    if not first:
        put(database, age=timedelta(days=15))
    gone = put(database, age=timedelta(days=15), keep=False)
    put(database)
    assert said(database, gone).startswith(
        f"there is no job {gone} any more: it ended over 14d ago and was pruned (retention), or someone deleted "
        "its row, or an enqueue used"
    )


@pytest.mark.parametrize("state", ["begun", "stopped", "recorded"])
@pytest.mark.parametrize("age", [13, 15])
def test_a_job_that_left_an_effect_was_there_and_its_unknown_effect_is_named(
    database: Database, state: str, age: int
) -> None:
    gone = put(database, age=timedelta(days=age), keep=False)
    put(database)
    with database.write() as connection:
        at = {"begun_at": NOW, "recorded_at": NOW if state == "recorded" else None}
        connection.execute(insert(effects).values(key="mail:1 a", state=state, job_id=gone, attempt=1, **at))
    told = said(database, gone)
    assert "used up the id" not in told
    assert "someone deleted its row" in told
    settle = "find out, then run \"cronjobs effects settle 'mail:1 a' done\""
    assert (f"Nobody knows whether its effect mail:1 a happened: {settle}" in told) == (state != "recorded")


@pytest.mark.parametrize("age", [0, 15])
@pytest.mark.parametrize("role", [None, OWNER])
def test_an_id_whose_enqueue_is_not_committed_yet_is_not_called_gone(
    database_url: str, age: int, role: str | None
) -> None:
    """On SQLite no transaction leaves an id behind before it commits, and nobody else can write meanwhile."""
    database = Database(parse_url(database_url if role is None else as_role(database_url, role)))
    if database.is_sqlite:
        database.close()
        return
    there = put(database, age=timedelta(days=age))
    open_ = "another transaction may have enqueued it and is still open"
    with database.write() as connection:
        job_id = int(connection.execute(insert(jobs).values(job_type="t").returning(jobs.c.id)).scalar_one())
        told = said(database, job_id)
        assert told.startswith(f"there is no job {job_id}: {open_}")
        with database.read() as reading:
            assert is_enqueue_open(reading)
            assert missing_job(reading, job_id, KEPT) == told
        if role == OWNER:  # no transaction can have an id above the highest that was given
            assert open_ not in said(database, job_id + 1)
        connection.execute(delete(jobs).where(jobs.c.id == job_id))
    told = said(database, job_id)
    assert open_ not in told
    assert there < job_id
    database.close()


def test_what_the_ledger_has_was_a_job(database: Database) -> None:
    gone = put(database, keep=False)
    with database.write() as connection:
        connection.execute(insert(schedules).values(name="s", definition={}, fingerprint="f", seen_until=NOW))
        schedule_id = connection.execute(select(schedules.c.id)).scalar_one()
        row = {"schedule_id": schedule_id, "first_for": NOW, "last_for": NOW, "outcome": "enqueued", "job_id": gone}
        connection.execute(insert(occurrences).values(row))
    assert said(database, gone) == f'job {gone} was pruned: "cronjobs explain {gone}" shows what the ledger has kept'


def test_who_may_not_see_the_highest_number_that_was_given_is_told_what_the_rows_tell() -> None:
    gap = Gap(highest=None, highest_here=10**6 + 1, in_ledger=False, made_after=NOW - timedelta(days=1))
    assert missing_at(gap, 10**6, KEPT, NOW).startswith("there is no job 1000000: an enqueue used up the id")
