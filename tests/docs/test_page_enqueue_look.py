"""docs/how-to/enqueue.md, executed: the page's reminder, from the order to its end, on both databases."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session
from support.pages import Page
from support.postgres import SUPERUSER, as_role
from support.targets import plain_url

import cronjobs.engine.jobs.find as finding
from cronjobs import FoundJob, Status
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.jobs import registry

PAGE = Page("docs/how-to/enqueue.md")
ORDERS = "CREATE TABLE orders (id integer PRIMARY KEY, status text NOT NULL)"
STOCK = "CREATE TABLE stock (order_id integer PRIMARY KEY, job_id bigint)"


@pytest.fixture
def app(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names of the page's app."""
    if database_url.startswith("sqlite"):
        with closing(sqlite3.connect(database_url.removeprefix("sqlite:///"))) as connection:
            connection.execute(ORDERS)
            connection.execute(STOCK)
    else:
        with psycopg.connect(as_role(database_url, SUPERUSER)) as server:
            server.execute(ORDERS)
            server.execute(STOCK)
            server.execute("GRANT ALL ON orders, stock TO PUBLIC")
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setenv("DATABASE_URL", plain_url(database_url))
    names: dict[str, Any] = {"__name__": "reminders"}
    execute("# reminders.py", names)
    yield names
    names["engine"].dispose()


def execute(says: str, names: dict[str, Any]) -> None:
    exec(compile(PAGE.block("python", says), "docs/how-to/enqueue.md", "exec", dont_inherit=True), names)


def rows(database: Database) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(select(jobs).order_by(jobs.c.id)))


def test_a_reminder_is_taken_back_made_again_and_moved(
    app: dict[str, Any], database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    app["place"](42)
    app["pay"](42)
    [first] = rows(database)
    assert (first.status, first.released_key) == ("cancelled", "reminder:42")
    assert first.last_error.endswith(": paid")
    app["refund"](42)
    app["more_time"](42)
    _, again = rows(database)
    assert (again.status, again.idempotency_key) == ("queued", "reminder:42")
    assert again.run_at - again.created_at > timedelta(days=13)
    execute("found = find", app)
    assert capsys.readouterr().out == f"queued failed 0 {again.run_at} None\n"


def test_an_item_has_at_most_one_unfinished_job(app: dict[str, Any], database: Database) -> None:
    execute("class Stock(Base)", app)
    with Session(app["engine"]) as session, session.begin():
        session.add(app["Stock"](order_id=42))
    for _ in range(2):
        app["refresh"](42)
    assert [row.job_type for row in rows(database)].count("stock.refresh") == 1
    with database.write() as connection:
        ended = {"status": "succeeded", "finished_at": database.clock.now()}
        connection.execute(update(jobs).where(jobs.c.job_type == "stock.refresh").values(ended))
    app["refresh"](42)
    assert [row.job_type for row in rows(database)].count("stock.refresh") == 2


def test_waiting_for_a_job(
    app: dict[str, Any], database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pause(_seconds: float) -> None:
        now = database.clock.now()
        with database.write() as connection:
            ended = {"status": "succeeded", "started_at": now, "finished_at": now, "result": {"reminded": 42}}
            connection.execute(update(jobs).values(ended))

    monkeypatch.setattr(finding, "sleep", pause)
    execute("ended = wait", app)
    assert capsys.readouterr().out == "succeeded {'reminded': 42}\n"


def test_the_same_in_async_code(
    app: dict[str, Any], database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = plain_url(database_url).replace("sqlite://", "sqlite+aiosqlite://")
    monkeypatch.setenv("ASYNC_DATABASE_URL", url)
    names: dict[str, Any] = {"__name__": "async_reminders"}
    execute("# async_reminders.py", names)
    app["place"](42)
    app["place"](43)

    async def main() -> None:
        await names["give_more_time"](42)
        moved = rows(database)[0]
        assert moved.run_at - moved.created_at > timedelta(days=13)
        assert await names["when_due"](42) == f"queued, due at {moved.run_at:%Y-%m-%d}"
        assert await names["when_due"](44) == "no reminder"
        await names["cancel_reminder"](43)
        assert await names["reminded"](43) is False
        await names["async_engine"].dispose()

    asyncio.run(main())
    assert [row.status for row in rows(database)] == ["queued", "cancelled"]


def test_the_functions_of_the_page(postgres_migrated: str) -> None:
    with psycopg.connect(postgres_migrated) as connection:
        for n in (42, 43):
            connection.execute(
                "INSERT INTO cronjobs_jobs (job_type, idempotency_key) VALUES ('t', %s)", [f"reminder:{n}"]
            )
        for statement in PAGE.block("sql", "cronjobs_cancel").strip().splitlines():
            connection.execute(statement.encode())
        tomorrow = "SELECT status, run_at > now() + interval '1 day' FROM cronjobs_jobs ORDER BY id"
        assert connection.execute(tomorrow).fetchall() == [("cancelled", False), ("queued", True)]


def test_the_page_lists_every_attribute() -> None:
    listed = " ".join(row["attribute"] for row in PAGE.table("find and wait")).replace("`", "").replace(",", "").split()
    there = [field.name for field in dataclasses.fields(FoundJob)]
    assert sorted(listed) == sorted([*there, "is_final", "tries"])


def test_the_page_lists_every_status() -> None:
    [said] = [row["what it is"] for row in PAGE.table("find and wait") if row["attribute"] == "`status`"]
    assert {status for status in Status if f"`{status}`" in said} == {*Status}
