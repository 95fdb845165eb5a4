"""A populated database of revision 0001 becomes one of 0002: rows beyond the new limits end first, and no others."""

from __future__ import annotations

import random
import string
from typing import Any

import pytest
from sqlalchemy import Connection, text
from support.databases import opened

from alembic import command
from cronjobs.database.connection import Database
from cronjobs.database.tables import LENGTHS
from cronjobs.errors import DatabaseError
from cronjobs.schema import migrations

# Random, or PostgreSQL would compress it below what an index takes.
LONG = "".join(random.Random(1).choices(string.ascii_letters, k=3000))


def to_0001(database: Database) -> None:
    with migrations.transaction(database) as connection:
        command.upgrade(migrations._config({migrations.CONNECTION: connection}), "0001")


def put(connection: Connection, **columns: Any) -> int:
    given = {"job_type": "t.work"} | columns
    names, marks = ", ".join(given), ", ".join(f":{name}" for name in given)
    statement = text(f"INSERT INTO cronjobs_jobs ({names}) VALUES ({marks}) RETURNING id")
    return int(connection.execute(statement, given).scalar_one())


@pytest.mark.parametrize("column", [name for name in LENGTHS if name != "idempotency_key"])
def test_an_unfinished_row_beyond_a_limit_ends_with_the_reason(empty_url: str, column: str) -> None:
    with opened(empty_url) as database:
        to_0001(database)
        # PostgreSQL's index on it took no more than 2,704 bytes before either.
        value = LONG[:2500] if column in ("queue", "schedule") else LONG
        with database.write() as connection:
            long, short = put(connection, **{column: value}), put(connection, **{column: "short"})
        migrations.upgrade(database)
        with database.read() as connection:
            rows = connection.execute(text("SELECT id, status, last_error FROM cronjobs_jobs ORDER BY id")).all()
        reason = f"{column} is longer than {LENGTHS[column]} bytes: enqueue it again with a shorter one"
        assert [tuple(row) for row in rows] == [(long, "dead", reason), (short, "queued", None)]
        assert migrations.check(database) == []
        with pytest.raises(DatabaseError, match="cronjobs_jobs_lengths_ck"), database.write() as connection:
            put(connection, **{column: value})


def test_a_final_row_stays_as_it_is_and_code_of_0001_goes_on(empty_url: str) -> None:
    with opened(empty_url) as database:
        to_0001(database)
        now = "1700000000000000" if database.is_sqlite else "now()"
        with database.write() as connection:
            ended: Any = int(now) if database.is_sqlite else "now"
            final = put(connection, concurrency_key=LONG, status="cancelled", finished_at=ended)
            mine = put(connection)
        migrations.upgrade(database)
        with database.write() as connection:  # what 0001 writes: it knows no column of 0002
            for words in (
                f"status = 'running', attempts = 1, locked_by = 'old', locked_until = {now}, started_at = {now}",
                f"status = 'succeeded', locked_by = NULL, locked_until = NULL, finished_at = {now}",
            ):
                connection.execute(text(f"UPDATE cronjobs_jobs SET {words} WHERE id = {mine}"))
            connection.execute(text(f"UPDATE cronjobs_jobs SET last_error = 'x' WHERE id IN ({final}, {mine})"))
            rows = connection.execute(
                text("SELECT status, length(concurrency_key) FROM cronjobs_jobs ORDER BY id")
            ).all()
        assert [tuple(row) for row in rows] == [("cancelled", 3000), ("succeeded", None)]
