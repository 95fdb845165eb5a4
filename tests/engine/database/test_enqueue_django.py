"""On Django's own connection, a job is part of atomic(), on a real PostgreSQL and on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connections, transaction  # type: ignore[import-untyped]
from sqlalchemy import select
from support.databases import in_psql
from support.djangos import configured
from support.postgres import ENQUEUE, SUPERUSER, as_role

from cronjobs import cancel, enqueue, enqueue_many, find, reschedule
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.schema.grants import Role, statements
from cronjobs.errors import SchemaMissing


@pytest.fixture
def alias(database_url: str) -> Iterator[str]:
    yield from configured(database_url)


@pytest.fixture
def empty_alias(empty_url: str) -> Iterator[str]:
    yield from configured(empty_url)


def payloads(url: str) -> list[Any]:
    database = Database(parse_url(url))
    try:
        with database.read() as connection:
            return list(connection.execute(select(jobs.c.payload).order_by(jobs.c.id)).scalars())
    finally:
        database.close()


def raise_after(told: object) -> None:
    raise ZeroDivisionError(told)


def test_a_job_is_part_of_the_atomic_block(alias: str, database_url: str) -> None:
    connection = connections[alias]
    with transaction.atomic(using=alias):
        made = enqueue(connection, "t.say", {"n": "100 %s"}, idempotency_key="k", delay="5m")
        assert not enqueue(connection, "t.say", {"n": 2}, idempotency_key="k").new
        assert payloads(database_url) == []
    assert made.new
    assert payloads(database_url) == [{"n": "100 %s"}]


def test_a_job_goes_with_the_rollback_of_its_block(alias: str, database_url: str) -> None:
    connection = connections[alias]
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=alias):
        raise_after(enqueue(connection, "t.say", {"n": 1}))
    with transaction.atomic(using=alias):
        enqueue(connection, "t.say", {"n": 2})
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=alias):  # a savepoint
            raise_after(enqueue_many(connection, "t.say", [{"n": 3}, {"n": 4}]))
        enqueue(connection, "t.say", {"n": 5})
    assert payloads(database_url) == [{"n": 2}, {"n": 5}]


def test_a_waiting_job_is_replaced(alias: str, database_url: str) -> None:
    for n in (1, 2):
        with transaction.atomic(using=alias):
            enqueue(connections[alias], "t.say", {"n": n}, idempotency_key="k", on_conflict="replace")
    assert payloads(database_url) == [{"n": 2}]


def test_a_missing_table_is_named_and_the_block_goes_on(empty_alias: str) -> None:
    connection = connections[empty_alias]
    with transaction.atomic(using=empty_alias):
        with pytest.raises(SchemaMissing, match="cronjobs db upgrade") as told:
            enqueue(connection, "t.say")
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    assert str(connection.settings_dict["NAME"]) in str(told.value)


def test_a_job_is_found_moved_and_cancelled(alias: str, database_url: str) -> None:
    if database_url.startswith("postgresql"):
        in_psql(as_role(database_url, SUPERUSER), statements("public", {Role.ENQUEUE: ENQUEUE}, find=True))
    connection = connections[alias]
    later = datetime(2030, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
    with transaction.atomic(using=alias):
        made = enqueue(connection, "t.say", {"n": "100 %s"}, idempotency_key="k")
        assert reschedule(connection, idempotency_key="k", run_at=later) == "queued"
        found = find(connection, id=made.id)
        assert found is not None
        assert (found.payload, found.next_try, found.idempotency_key) == ({"n": "100 %s"}, later, "k")
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=alias):  # a savepoint
            raise_after(cancel(connection, idempotency_key="k", reason="100 %"))
        assert cancel(connection, idempotency_key="k", reason="100 %") == "cancelled"
        assert cancel(connection, idempotency_key="k") == "cancelled"
        assert enqueue(connection, "t.say", {"n": 2}, idempotency_key="k").new
    assert payloads(database_url) == [{"n": "100 %s"}, {"n": 2}]
