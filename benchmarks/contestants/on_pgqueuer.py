"""pgqueuer. The measured process is this script, which drains the queue as pgqueuer's quickstart does.

``pgq run --mode drain`` is not used: with the newest typer, 0.29, that command of version 1.6 ends in an
AttributeError.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg  # type: ignore[import-untyped]
from pgqueuer import PgQueuer  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]
from pgqueuer.types import QueueExecutionMode  # type: ignore[import-not-found]
from verbs import URL, serve

T = TypeVar("T")
BATCH = 25  # as on pgqueuer's page about performance


async def work() -> None:
    from seen import noop

    async def handle(job: Any) -> None:
        noop(int(job.payload))

    connection = await asyncpg.connect(URL)
    pgq = PgQueuer.from_asyncpg_connection(connection)
    pgq.entrypoint("noop", accepts_context=False)(handle)
    await pgq.qm.run(mode=QueueExecutionMode.drain, batch_size=BATCH)
    await connection.close()


def with_queries(call: Callable[[Queries], Awaitable[T]]) -> T:
    async def connected() -> T:
        connection = await asyncpg.connect(URL)
        try:
            return await call(Queries.from_asyncpg_connection(connection))
        finally:
            await connection.close()

    return asyncio.run(connected())


async def install(queries: Queries) -> None:
    await queries.install()
    await queries.optimize_autovacuum()


async def many(queries: Queries, count: int) -> None:
    await queries.enqueue(["noop"] * count, [b"%d" % n for n in range(count)], [0] * count)


def fill(count: int) -> None:
    async def filled(queries: Queries) -> None:
        await queries.clear_queue()
        await queries.clear_queue_log()
        await queries.clear_statistics_log()
        if count:
            await many(queries, count)

    with_queries(filled)


def left() -> int:
    async def counted(queries: Queries) -> int:
        return sum(row.count for row in await queries.queue_size())

    return with_queries(counted)


def single(count: int) -> float:
    async def one_by_one(queries: Queries) -> float:
        started = time.perf_counter()
        for n in range(count):
            await queries.enqueue("noop", b"%d" % n, 0)
        return time.perf_counter() - started

    return with_queries(one_by_one)


def bulk(count: int) -> float:
    async def at_once(queries: Queries) -> float:
        started = time.perf_counter()
        await many(queries, count)
        return time.perf_counter() - started

    return with_queries(at_once)


if __name__ == "__main__":
    serve(
        setup=lambda: with_queries(install),
        fill=fill,
        left=left,
        run=lambda: asyncio.run(work()),
        single=single,
        bulk=bulk,
    )
