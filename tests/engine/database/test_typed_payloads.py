"""Payloads checked by the handler's annotations: when they are enqueued, and before the handler is called."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pydantic
import pytest
from sqlalchemy import Connection, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from cronjobs import Context, enqueue, enqueue_async, enqueue_many, job
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import job_runs, jobs
from cronjobs.engine.jobs import registry
from cronjobs.errors import PayloadError
from cronjobs.testing import assert_enqueued, assert_not_enqueued, drain


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    sku: str
    price: Decimal


class Customer(pydantic.BaseModel):
    id: int
    born: date | None = None


GOT: list[dict[str, Any]] = []
DAY, NOON = date(2026, 11, 23), datetime(2026, 11, 23, 12, tzinfo=UTC)
RICH: dict[str, Any] = {
    "day": DAY,
    "lines": [Line("x", Decimal("19.90"))],
    "customer": Customer(id=7, born=DAY),
    "colour": Colour.RED,
    "at": NOON,
    "rate": 1e16,
}
PLAIN = {
    "day": "2026-11-23",
    "lines": [{"sku": "x", "price": "19.90"}],
    "customer": {"id": 7, "born": "2026-11-23"},
    "colour": "red",
    "at": "2026-11-23T12:00:00+00:00",
    "rate": 1e16,
}


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    GOT.clear()

    @job("t.bill")
    def bill(
        ctx: Context,
        day: date,
        lines: list[Line],
        customer: Customer | None = None,
        colour: Colour = Colour.RED,
        at: datetime | None = None,
        rate: float = 1.0,
    ) -> None:
        GOT.append({key: value for key, value in locals().items() if key != "ctx"})


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with database.write() as connection:
        yield connection


def bill() -> Any:
    return registry.registered()["t.bill"].handler


def payloads(connection: Connection) -> list[Any]:
    return list(connection.execute(select(jobs.c.payload).order_by(jobs.c.id)).scalars())


def test_a_handler_gets_what_it_annotates_whoever_enqueued_it_and_how(connection: Connection) -> None:
    enqueue(connection, "t.bill", PLAIN)
    enqueue(connection, "t.bill", RICH)
    bill().enqueue(connection, **RICH)
    bill().options(queue="mail").enqueue(connection, **PLAIN)
    enqueue_many(connection, "t.bill", [RICH, (PLAIN, {"idempotency_key": "a"}), (RICH, {"priority": 2})])
    assert payloads(connection) == [PLAIN] * 7
    assert_enqueued(connection, "t.bill", day=DAY, lines=RICH["lines"], count=7)
    assert_enqueued(connection, "t.bill", day="2026-11-23", count=7)
    assert_not_enqueued(connection, "t.bill", day=date(2026, 11, 24))
    drain(connection, raise_errors=True)
    assert GOT == [RICH] * 7
    assert {type(got["rate"]) for got in GOT} == {float}, "PostgreSQL gives 1e16 back as an integer"


def test_async_enqueues_are_checked_likewise(database_url: str) -> None:
    url = database_url.replace("postgresql://", "postgresql+psycopg://").replace("sqlite://", "sqlite+aiosqlite://")

    async def both() -> None:
        engine = create_async_engine(url)
        try:
            async with engine.begin() as connection:
                await enqueue_async(connection, "t.bill", RICH)
                with pytest.raises(PayloadError, match=r"payload\.day is not a date"):
                    await bill().enqueue_async(connection, day="soon", lines=[])
                assert (await connection.execute(select(jobs.c.payload))).scalars().all() == [PLAIN]
        finally:
            await engine.dispose()

    asyncio.run(both())


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({"day": "soon", "lines": []}, 'payload.day is not a date like "2026-11-23"'),
        (
            {"day": DAY, "lines": [Line("x", Decimal("NaN"))]},
            "payload.lines[0].price is not a Decimal",
        ),
        ({"day": DAY, "lines": [{"sku": "x", "price": 19.9}]}, "payload.lines[0].price is a float, which may"),
        ({"day": DAY, "lines": [], "customer": {"id": "x"}}, "payload.customer.id is not an int"),
        ({"day": DAY}, "missing a required argument: 'lines'"),
        ({"day": DAY, "lines": [], "rate": float("nan")}, "payload.rate is nan, which is not JSON"),
        (None, "missing a required argument: 'day'"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_transaction_stays_usable(
    connection: Connection, payload: Any, says: str
) -> None:
    with pytest.raises(PayloadError) as refused:
        enqueue(connection, "t.bill", payload)
    assert says in str(refused.value)
    with pytest.raises(PayloadError):
        enqueue_many(connection, "t.bill", [PLAIN, payload])
    assert payloads(connection) == []
    enqueue(connection, "t.bill", PLAIN)
    assert payloads(connection) == [PLAIN]


def test_a_type_that_is_not_registered_here_is_not_checked(connection: Connection) -> None:
    enqueue(connection, "t.elsewhere", {"day": "soon"})
    with pytest.raises(PayloadError, match=r"payload\.day is a date, which is not JSON"):
        enqueue(connection, "t.elsewhere", {"day": DAY})
    assert payloads(connection) == [{"day": "soon"}]


def test_a_row_that_does_not_fit_fails_before_the_handler_and_waits_for_the_next_version(
    connection: Connection,
) -> None:
    made = enqueue(connection, "t.bill", PLAIN)
    json = "text" if connection.dialect.name == "sqlite" else "jsonb"
    statement = f"UPDATE cronjobs_jobs SET payload = CAST(:payload AS {json}) WHERE id = :id"
    connection.execute(text(statement), {"id": made.id, "payload": '{"day": "soon", "lines": 3}'})
    assert [ran.became for ran in drain(connection).ran] == ["failed"]
    assert GOT == []
    row = connection.execute(select(jobs)).one()
    assert row.last_error == (
        'payload does not fit t.bill: payload.day is not a date like "2026-11-23"; payload.lines is not a list'
    )
    assert row.error_type == "SignatureMismatch"
    started_at = connection.execute(select(job_runs.c.started_at)).scalar_one()
    # The attempt's start is this host's reckoning of the database's time, a few milliseconds beside it.
    assert abs(row.run_at - started_at - timedelta(minutes=5)) < timedelta(minutes=1)
