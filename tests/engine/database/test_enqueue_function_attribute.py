"""send_invoice.enqueue(session, invoice_id=42): a registered function enqueues itself, with its own signature."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from support.targets import app_url

from cronjobs import enqueue, enqueue_async, enqueue_many, job
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.jobs import registry as jobs_module
from cronjobs.errors import JobHeld, SchemaMissing, UsageError

if TYPE_CHECKING:
    from cronjobs import Context


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "_registered", {})


def rows(database: Database) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(select(jobs).order_by(jobs.c.id)).all())


def test_a_function_enqueues_itself_and_is_called_as_before(database: Database) -> None:
    @job("t.send")
    def send(ctx: Context | None, invoice_id: int, copies: int = 1) -> str:
        return f"{invoice_id} x {copies}"

    with Session(database.engine) as session, session.begin():
        first = send.enqueue(session, invoice_id=42)
        send.enqueue(session, 43, copies=2)
    assert send(None, 1) == "1 x 1"  # type: ignore[arg-type]
    assert first.new
    assert [(row.job_type, row.payload) for row in rows(database)] == [
        ("t.send", {"invoice_id": 42}),
        ("t.send", {"invoice_id": 43, "copies": 2}),
    ]


def test_options_stand_apart_from_the_handlers_arguments(database: Database) -> None:
    @job("t.send")
    def send(queue: str, priority: str = "low", **more: int) -> None: ...

    with database.write() as connection:
        chosen = send.options(queue="mail", priority=1, delay="5m", idempotency_key="k")
        first = chosen.enqueue(connection, queue="a", priority="b", target=1, self=2)
        again = send.options(idempotency_key="k", on_conflict="replace").enqueue(connection, queue="c")
    [row] = rows(database)
    assert (again.id, again.new) == (first.id, False)
    assert (row.queue, row.priority, row.payload) == ("default", 5, {"queue": "c"})


def test_arguments_that_do_not_fit_are_a_type_error_at_the_call(database: Database) -> None:
    @job("t.send")
    def send(ctx: Any, invoice_id: int) -> None: ...

    @job("t.positions")
    def positions(*ids: int) -> None: ...

    anything: Any = send
    with database.write() as connection:
        for arguments, says in [
            ({}, "missing a required argument: 'invoice_id'"),
            ({"invoice_id": 1, "run_at": 2}, "unexpected keyword argument 'run_at'"),
            ({"invoice_id": 1, "ctx": 2}, "multiple values for argument 'ctx'"),
        ]:
            with pytest.raises(TypeError, match=says):
                anything.enqueue(connection, **arguments)
        with pytest.raises(TypeError, match="ids cannot be passed by name"):
            positions.enqueue(connection, 1, 2)
        with pytest.raises(TypeError, match=r"options\(\) has no argument 'at'"):
            anything.options(at=1).enqueue(connection, invoice_id=1)
    assert rows(database) == []


def test_an_object_that_takes_no_attributes_is_registered_all_the_same() -> None:
    registered = job("t.print")(print)
    assert registered is print


# --- async ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def engine_of(url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(
        app_url(url).replace("postgresql://", "postgresql+psycopg_async://").replace("sqlite://", "sqlite+aiosqlite://")
    )
    try:
        yield engine
    finally:
        await engine.dispose()


def test_async_targets_carry_the_job_in_their_transaction(database_url: str, database: Database) -> None:
    @job("t.send")
    async def send(invoice_id: int) -> None: ...

    async def app() -> None:
        async with engine_of(database_url) as engine:
            async with AsyncSession(engine) as session:
                await enqueue_async(session, "t.say", {"n": 1}, idempotency_key="k")
                await session.rollback()
                await enqueue_async(session, "t.say", {"n": 2}, idempotency_key="k", meta={"a": "b"})
                await send.enqueue_async(session, invoice_id=3)
                await session.commit()
            async with engine.begin() as connection:
                await send.options(priority=0).enqueue_async(connection, invoice_id=4)
            async with engine.connect() as connection:
                told = await enqueue_async(connection, "t.say", {"n": 9}, idempotency_key="k")
                assert not told.new

    asyncio.run(app())
    assert [row.payload for row in rows(database)] == [{"n": 2}, {"invoice_id": 3}, {"invoice_id": 4}]


def test_each_names_the_other_for_the_wrong_target(database_url: str, database: Database) -> None:
    async def app() -> None:
        async with engine_of(database_url) as engine, AsyncSession(engine) as session, engine.connect() as connection:
            given: AsyncConnection | AsyncSession
            for given in (session, connection):
                with pytest.raises(TypeError, match="enqueue_async"):
                    enqueue(given, "t.say", {})  # type: ignore[arg-type]
                with pytest.raises(TypeError, match="enqueue_async"):
                    enqueue_many(given, "t.say", [{}])  # type: ignore[arg-type]
        with database.read() as sync, pytest.raises(TypeError, match=r"use enqueue\(\)"):
            await enqueue_async(sync, "t.say")  # type: ignore[arg-type]

    asyncio.run(app())


def test_a_missing_table_is_named_to_async_callers_too(empty_url: str) -> None:
    async def app() -> None:
        async with engine_of(empty_url) as engine, AsyncSession(engine) as session:
            with pytest.raises(SchemaMissing, match="cronjobs db upgrade"):
                await enqueue_async(session, "t.say")

    asyncio.run(app())


def test_an_async_replace_does_not_wait_for_who_holds_the_job(postgres_migrated: str) -> None:
    async def app() -> None:
        async with engine_of(postgres_migrated) as engine, engine.connect() as holder, engine.connect() as user:
            await enqueue_async(holder, "t.say", idempotency_key="k")
            await holder.commit()
            await enqueue_async(holder, "t.say", idempotency_key="k", on_conflict="replace")
            with pytest.raises(JobHeld):
                await enqueue_async(user, "t.say", idempotency_key="k", on_conflict="replace")

    asyncio.run(app())


def test_async_refuses_what_cannot_be_meant(sqlite_migrated: str) -> None:
    async def app() -> None:
        async with engine_of(f"sqlite:///{sqlite_migrated}") as engine, engine.connect() as connection:
            with pytest.raises(UsageError):
                await enqueue_async(connection, "", {})

    asyncio.run(app())
