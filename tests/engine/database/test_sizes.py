"""Rows of any size: a huge value harms only its own job, and memory stays bounded."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from support.databases import opened
from support.postgres import OWNER
from support.project import Project

from cronjobs import enqueue, job
from cronjobs.engine.database.tables import LENGTHS
from cronjobs.engine.jobs import registry
from cronjobs.testing import tick

MEGABYTE = 1024 * 1024

ran: list[object] = []


@pytest.fixture(autouse=True)
def _handlers_of_one_test() -> Iterator[None]:
    before = dict(registry._registered)
    ran.clear()

    @job("t.keep")
    def keep(**payload: object) -> None:
        ran.append(payload)

    yield
    registry._registered.clear()
    registry._registered.update(before)


def put(url: str, values: str, **bound: object) -> None:
    """INSERT as plain SQL does: *values* is the SELECT of job_type and further columns."""
    with opened(url) as database, database.write() as connection:
        connection.execute(text(f"INSERT INTO cronjobs_jobs {values}"), bound)


def put_healthy(url: str) -> None:
    with opened(url) as database, database.write() as connection:
        enqueue(connection, "t.keep", {"name": "healthy"})


def statuses(url: str) -> list[tuple[str, str | None]]:
    with opened(url) as database, database.read() as connection:
        rows = connection.execute(text("SELECT status, last_error FROM cronjobs_jobs ORDER BY id")).all()
    return [(row.status, row.last_error) for row in rows]


def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


def a_large(url: str, megabytes: int) -> str:
    """SQL for a JSON object of that size, which is small on PostgreSQL's disk."""
    if is_sqlite(url):
        return f"""'{{"a": "' || hex(zeroblob({megabytes * MEGABYTE // 2})) || '"}}'"""
    return f"jsonb_build_object('a', repeat('0', {megabytes * MEGABYTE}))"


@pytest.mark.connects_as(OWNER)
@pytest.mark.parametrize("column", ["payload", "meta"])
def test_a_row_of_many_megabytes_is_dead_and_not_fetched(database_url: str, column: str) -> None:
    size = 20 if is_sqlite(database_url) else 100
    put(database_url, f"(job_type, {column}) SELECT 't.keep', {a_large(database_url, size)}")
    put_healthy(database_url)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tick(database_url)
    assert statuses(database_url) == [("dead", f"{column} is larger than 1,048,576 bytes"), ("succeeded", None)]
    if not is_sqlite(database_url):  # there the database itself is in this process
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 * 1024  # KiB


@pytest.mark.connects_as(OWNER)
def test_numbers_that_are_just_allowed_cost_no_more_however_many_there_are(postgres_migrated: str) -> None:
    put(
        postgres_migrated,
        "(job_type, payload) SELECT 't.keep', jsonb_build_object('a', (SELECT jsonb_agg(1e399) "
        "FROM generate_series(1, 110000))) FROM generate_series(1, 3)",
    )  # each 30 KB on disk, and 44 MB as text
    put_healthy(postgres_migrated)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tick(postgres_migrated)
    dead = ("dead", "payload is larger than 1,048,576 bytes")
    assert statuses(postgres_migrated) == [dead] * 3 + [("succeeded", None)]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 * 1024  # KiB


@pytest.mark.connects_as(OWNER)
def test_a_payload_up_to_the_limit_is_fetched_whatever_it_takes_in_the_database(database_url: str) -> None:
    with opened(database_url) as database, database.write() as connection:
        enqueue(connection, "t.keep", {"a": "я" * 130_000})
        enqueue(connection, "t.keep", {"a": [1, 2] * 60_000})
    tick(database_url)
    assert statuses(database_url) == [("succeeded", None)] * 2
    assert len(ran) == 2


@pytest.mark.connects_as(OWNER)
def test_a_row_that_the_database_will_not_lease_stops_no_other(database_url: str) -> None:
    with opened(database_url) as database, database.write() as connection:
        if is_sqlite(database_url):
            connection.exec_driver_sql(
                "CREATE TRIGGER no BEFORE UPDATE ON cronjobs_jobs WHEN OLD.queue = 'no' "
                "BEGIN SELECT RAISE(ABORT, 'not this one'); END"
            )
        else:
            connection.exec_driver_sql(
                "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'not this one'; END$$"
            )
            connection.exec_driver_sql(
                "CREATE TRIGGER no BEFORE UPDATE ON cronjobs_jobs FOR EACH ROW WHEN (OLD.queue = 'no') "
                "EXECUTE FUNCTION no()"
            )
        for _ in range(5):
            enqueue(connection, "t.keep", {"name": "held"}, queue="no", priority=0)
        enqueue(connection, "t.keep", {"name": "healthy"})
    tick(database_url)
    assert statuses(database_url) == [("queued", None)] * 5 + [("succeeded", None)]
    assert ran == [{"name": "healthy"}]


@pytest.mark.slow
@pytest.mark.connects_as(OWNER)
def test_lists_fetch_no_more_than_they_show(database_url: str, tmp_path: Path) -> None:
    now = "1700000000000000" if is_sqlite(database_url) else "now()"
    large = f"hex(zeroblob({MEGABYTE // 2}))" if is_sqlite(database_url) else f"repeat('0', {MEGABYTE})"
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60) "
    # A final row is exempt from every limit: it may be older than they are.
    put(
        database_url,
        "(job_type, queue, status, finished_at, last_error, error_type, schedule, enqueued_by, payload) "
        f"{numbers}SELECT i || {large}, i || {large}, 'succeeded', {now}, {large}, {large}, {large}, {large}, "
        f"{a_large(database_url, 2)} FROM n",
    )
    project = Project(tmp_path, database_url)
    project.write()
    for words in (
        "jobs list",
        "jobs list --json",
        "jobs show 1 --json",
        "status --json",
        "history --json",
        "explain 1",
    ):
        answer = project.call(*words.split())
        assert answer.code in (0, 1), f"{words}: {answer.err}"
        assert len(answer.out) < 2 * MEGABYTE, words
    [row] = project.call("jobs", "list", "--limit", "1", "--json").json
    assert len(row["job_type"]) == 2000
    assert "larger than 1,048,576 bytes" in str(row["payload"])


@pytest.mark.needs("desk")
@pytest.mark.connects_as(OWNER)
def test_a_retry_of_a_row_from_before_the_limits_says_why_it_cannot(database_url: str, tmp_path: Path) -> None:
    now = "1700000000000000" if is_sqlite(database_url) else "now()"
    for column, longest in LENGTHS.items():
        put(
            database_url,
            f"(job_type, status, finished_at) VALUES ('t.keep', 'dead', {now})"
            if column == "job_type"
            else f"(job_type, {column}, status, finished_at) VALUES ('t.keep', '{'k' * (longest + 1)}', 'dead', {now})",
        )
    project = Project(tmp_path, database_url)
    project.write()
    answer = project.call("jobs", "retry", "1", "2", "3", "4", "5", "6")
    assert answer.code == 1
    for column in list(LENGTHS)[1:]:
        assert f"its {column} is longer than {LENGTHS[column]:,} bytes: enqueue a new job" in answer.out + answer.err
    assert [status for status, _ in statuses(database_url)] == ["queued"] + ["dead"] * 5
