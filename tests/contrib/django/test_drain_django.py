"""``drain`` in a test's own ``atomic`` block: on the test's connection, in its thread, as a TestCase does it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django import db  # type: ignore[import-untyped]  # a module: pytest would open a bare "connection"
from django.db import transaction  # type: ignore[import-untyped]
from support.django_project import django_project
from support.postgres import OWNER

from cronjobs import Context, enqueue, job
from cronjobs.testing import Drained, drain

pytestmark = pytest.mark.connects_as(OWNER)


@pytest.fixture
def orders(database_url: str) -> Iterator[None]:
    """A Django project whose jobs database has a table of its own."""
    with django_project(database_url):
        execute("CREATE TABLE orders (what text)")
        yield


def execute(statement: str) -> list[Any]:
    with db.connection.cursor() as cursor:
        cursor.execute(statement)
        return [] if cursor.description is None else cursor.fetchall()


def written() -> list[str]:
    return [what for (what,) in execute("SELECT what FROM orders ORDER BY 1")]


def drained(*job_types: str) -> Drained:
    for name in job_types:
        enqueue(db.connection, name)
    return drain(db.connection)


def test_an_async_handler_uses_the_tests_connection(orders: None) -> None:
    """In a thread of its own it would not see the test's rows, and would commit its own for all later tests."""

    @job("async.reads")
    async def reads(ctx: Context) -> list[str]:
        seen: list[str] = await sync_to_async(written)()
        await sync_to_async(execute)("INSERT INTO orders VALUES ('by the handler')")
        return seen

    with transaction.atomic():
        execute("INSERT INTO orders VALUES ('by the test')")
        assert len(drained("async.reads").succeeded) == 1
        assert execute("SELECT CAST(result AS text) FROM cronjobs_jobs") == [('["by the test"]',)]
        assert written() == ["by the handler", "by the test"]
        transaction.set_rollback(True)
    assert written() == []
