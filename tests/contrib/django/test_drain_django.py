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

from cronjobs import Context, RetryPolicy, Snooze, enqueue, job
from cronjobs.testing import Drained, drain

pytestmark = pytest.mark.connects_as(OWNER)

LEFT_OPEN = (
    "the handler left a transaction open (on 'default' by an atomic block that was never exited); "
    "its writes were rolled back"
)
ONCE = RetryPolicy(max_attempts=1)


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


def enter_atomic() -> None:
    transaction.atomic().__enter__()
    execute("INSERT INTO orders VALUES ('lost')")


@pytest.mark.parametrize("kind", ["thread", "async", "raises", "snoozes"])
def test_blocks_that_a_handler_leaves_open_are_rolled_back_and_fail_its_job(orders: None, kind: str) -> None:
    @job("leave.thread", retry=ONCE)
    def leaves() -> None:
        enter_atomic()
        enter_atomic()

    @job("leave.async", retry=ONCE)
    async def aleaves() -> None:
        await sync_to_async(enter_atomic)()

    @job("leave.raises", retry=ONCE)
    def raises() -> None:
        enter_atomic()
        raise ValueError("its own error")

    @job("leave.snoozes", retry=ONCE)
    def snoozes() -> None:
        enter_atomic()
        raise Snooze("1h")

    @job("write")
    def writes() -> None:
        execute("INSERT INTO orders VALUES ('paid')")

    with transaction.atomic():
        depth = len(db.connection.atomic_blocks)
        result = drained(f"leave.{kind}", "write")
        assert [(ran.became, ran.error) for ran in result.ran] == [
            ("dead", "its own error" if kind == "raises" else LEFT_OPEN),
            ("succeeded", None),
        ]
        assert (written(), len(db.connection.atomic_blocks)) == (["paid"], depth)
        transaction.set_rollback(True)
    assert written() == []


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
