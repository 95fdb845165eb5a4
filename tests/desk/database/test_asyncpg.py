"""Every public function that runs on an app's own connection, over asyncpg.

asyncpg sends no types with its parameters, so the statement has to name each type that the server cannot infer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from support.postgres import OWNER
from support.targets import plain_url

from cronjobs import (
    Context,
    DatabaseError,
    Status,
    cancel,
    enqueue,
    enqueue_async,
    enqueue_many,
    find,
    health,
    job,
    reschedule,
    wait_async,
)
from cronjobs.engine.jobs import registry
from cronjobs.testing import assert_enqueued, drain

pytestmark = pytest.mark.connects_as(OWNER)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = dict(registry._registered)

    @job("asyncpg.say")
    def say(ctx: Context, order: int) -> dict[str, int]:
        with ctx.effect(("mail", order)) as effect:
            effect.result = {"sent": order}
        return {"order": order}

    @job("asyncpg.break")
    def broken(ctx: Context) -> None:
        raise ValueError("broken")

    yield
    registry._registered.clear()
    registry._registered.update(before)


def test_each_function_runs_on_an_asyncpg_connection(postgres_migrated: str) -> None:
    def on(sync: Connection | Session) -> None:
        made = enqueue(
            sync, "asyncpg.say", {"order": 1}, idempotency_key=("k", 1), delay="1m", queue="mail", meta={"a": "b"}
        )
        many = enqueue_many(sync, "asyncpg.say", [{"order": 2}, {"order": 3}])
        enqueue(sync, "asyncpg.break")
        assert find(sync, id=made.id) == find(sync, idempotency_key=("k", 1))
        assert reschedule(sync, id=made.id, delay="1h") is Status.QUEUED
        assert_enqueued(sync, "asyncpg.say", order=1, count=1)
        assert reschedule(sync, idempotency_key=("k", 1), delay=0) is Status.QUEUED
        assert cancel(sync, id=many[0].id, reason="paid") is Status.CANCELLED
        ran = drain(sync, only="asyncpg.say")
        assert [each.became for each in ran.ran] == ["succeeded"] * 2, ran
        drain(sync)
        assert [each.kind for each in health(sync).findings if each.alarm] == ["no_tick"]

    asyncio.run(_session(postgres_migrated, on))


async def _session(url: str, on: Callable[[Session], None]) -> None:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    async with AsyncSession(engine) as session:
        await session.run_sync(on)
        made = await enqueue_async(session, "asyncpg.say", {"order": 4})
        await session.commit()
    with pytest.raises(TimeoutError):
        await wait_async(engine, id=made.id, timeout=0)
    await engine.dispose()


def test_a_failed_health_leaves_the_transaction_usable(postgres_migrated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(connection: Connection, *_: object) -> None:
        connection.execute(text("SELECT 1 / 0"))

    monkeypatch.setattr("cronjobs.desk.insight.app_health.look", broken)
    with Session(create_engine(plain_url(postgres_migrated), poolclass=NullPool)) as session:
        with pytest.raises(DatabaseError, match="division by zero"):
            health(session)
        assert session.scalar(text("SELECT 1")) == 1


def test_health_takes_a_connection_that_commits_by_itself(postgres_migrated: str) -> None:
    with create_engine(
        plain_url(postgres_migrated), poolclass=NullPool, isolation_level="AUTOCOMMIT"
    ).connect() as connection:
        assert [finding.kind for finding in health(connection).findings] == ["no_tick"]
