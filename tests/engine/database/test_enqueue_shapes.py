"""Some columns of an INSERT are parameters, and some come from JSON. The rows are the same either way."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, event, insert, select
from support.databases import opened as opened_database
from support.targets import app_url, each_target, opened, plain_url

from cronjobs import enqueue, enqueue_many
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs, queues
from cronjobs.engine.store import sql
from cronjobs.errors import QueueFull, UsageError

TEXTS = ("mail", "a'b", "q%s:x", "{jobs}", "naïve", "日本", 'say "hi"', "back\\slash")
IGNORED = {"id", "created_at", "run_at"}


class Queue(str, Enum):  # noqa: UP042 its str() is not its value
    MAIL = "mail"


class Urgency(int, Enum):
    FIRST = 0


def rows_of(database: Database) -> list[dict[str, Any]]:
    with database.read() as connection:
        return [dict(row._mapping) for row in connection.execute(select(jobs).order_by(jobs.c.id))]


def some_options(dice: random.Random, n: int) -> dict[str, Any]:
    """Options of one job; most are not given, as usual."""
    every: dict[str, Any] = {
        "queue": dice.choice(TEXTS),
        "priority": dice.choice((0, 5, 9, Urgency.FIRST)),
        "idempotency_key": (dice.choice(TEXTS), n),
        "concurrency_key": dice.choice(TEXTS),
        "max_attempts": dice.choice((1, 7, 1_000_000)),
        "timeout": dice.choice((0.25, "90s", timedelta(days=2))),
        "meta": {dice.choice(TEXTS): dice.choice(TEXTS)},
        "enqueued_by": dice.choice(TEXTS),
        "run_at": datetime(2031, 2, 3, 4, 5, 6, dice.randrange(1_000_000), tzinfo=UTC),
    }
    return {name: value for name, value in every.items() if dice.random() < 0.3}


@pytest.mark.parametrize("seed", range(4))
def test_parameters_and_json_write_the_same_rows(
    database: Database, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    rows: list[Any] = [({"n": n, "text": dice.choice(TEXTS)}, some_options(dice, n)) for n in range(40)]
    written = []
    for only_json in (False, True):
        if only_json:
            monkeypatch.setattr(sql, "_may_be_bound", lambda *_: False)
        for many in (False, True):
            with database.write() as connection:
                connection.execute(jobs.delete())
                if many:
                    told = enqueue_many(connection, "t.say", rows)
                else:
                    told = [enqueue(connection, "t.say", payload, **options) for payload, options in rows]
            found = {row["id"]: row for row in rows_of(database)}
            written.append([found[one.id] for one in told if one.id])
    for n, (_, options) in enumerate(rows):
        kept = IGNORED - {"run_at"} if "run_at" in options else IGNORED
        first, *others = [{name: row[name] for name in row.keys() - kept} for row in (one[n] for one in written)]
        assert all(other == first for other in others)
        assert first["payload"] == rows[n][0]
        assert first["queue"] == options.get("queue", "default")


def test_equal_rows_are_as_many_jobs(database: Database) -> None:
    with database.write() as connection:
        told = enqueue_many(connection, "t.say", [{}] * 20)
    assert sorted(one.id for one in told if one.id) == [row["id"] for row in rows_of(database)]
    assert len({one.id for one in told}) == 20


@each_target
def test_enums_and_texts_beyond_ascii_arrive_over_every_connection(database_url: str, kind: str) -> None:
    options: dict[str, Any] = {"queue": Queue.MAIL, "priority": Urgency.FIRST, "concurrency_key": "日本"}
    with opened(kind, database_url) as user:
        enqueue(user.target, "t.say", {"text": "日本"}, **options)
        enqueue_many(user.target, "t.say", [{"text": "日本"}, {"text": "日本"}], **options)
        user.commit()
    with opened_database(database_url) as database:
        told = {
            (row["queue"], row["priority"], row["concurrency_key"], row["payload"]["text"]) for row in rows_of(database)
        }
    assert told == {("mail", 0, "日本", "日本")}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_client_encoding_without_the_character_keeps_no_job_from_being_written(database_url: str) -> None:
    with psycopg.connect(app_url(database_url), client_encoding="latin1") as connection:
        enqueue(connection, "t.say", {"text": "日本"}, concurrency_key="日本", idempotency_key="日")
    with opened_database(database_url) as database:
        [row] = rows_of(database)
    assert (row["concurrency_key"], row["idempotency_key"], row["payload"]) == ("日本", "日", {"text": "日本"})


def test_what_a_row_does_not_name_is_not_in_its_statement(database: Database) -> None:
    statements: list[str] = []
    with database.write() as connection:
        enqueue(connection, "t.say")
        event.listen(connection, "before_cursor_execute", lambda *given: statements.append(given[2]))
        enqueue(connection, "t.say", {"n": 1})
        enqueue(connection, "t.say", {"n": 1}, idempotency_key="k")
    plain, keyed = (statement for statement in statements if "INSERT" in statement)
    assert "json_" not in plain + keyed
    assert "ON CONFLICT" in keyed
    assert "ON CONFLICT" not in plain


def test_a_cap_holds_for_the_short_form_too(database: Database) -> None:
    with database.write() as connection:
        connection.execute(insert(queues).values(name="mail", max_waiting=2))
    with database.write() as connection:
        enqueue(connection, "t.say", queue="mail")
        enqueue(connection, "t.say", queue="mail", idempotency_key="k")
        assert not enqueue(connection, "t.say", queue="mail", idempotency_key="k").new
        with pytest.raises(QueueFull):
            enqueue(connection, "t.say", queue="mail")
    assert len(rows_of(database)) == 2


@pytest.mark.parametrize("name", ["before_execute", "after_execute", "before_cursor_execute"])
@pytest.mark.parametrize("on_engine", [False, True])
def test_listeners_of_the_apps_see_each_insert(database_url: str, name: str, on_engine: bool) -> None:
    heard: list[str] = []

    def listen(_: Any, statement: Any, *rest: Any) -> None:
        heard.append(str(rest[0] if name == "before_cursor_execute" else statement))

    engine = create_engine(plain_url(app_url(database_url)))
    with engine.connect() as connection:
        event.listen(engine if on_engine else connection, name, listen)
        enqueue(connection, "t.say")
        enqueue_many(connection, "t.say", [{}, {}])
        connection.rollback()
    engine.dispose()
    assert len([statement for statement in heard if "INSERT" in statement]) == 2


def test_what_one_insert_does_not_write_costs_no_second_one(database: Database) -> None:
    statements: list[str] = []
    with database.write() as connection:
        connection.execute(insert(queues).values(name="mail", max_waiting=1))
        there = enqueue(connection, "t.say", idempotency_key="k")
        event.listen(connection, "before_cursor_execute", lambda *given: statements.append(given[2].split()[0]))
        assert enqueue(connection, "t.say", idempotency_key="k").id == there.id
        assert statements == ["INSERT", "SELECT"]
        statements.clear()
        assert enqueue(connection, "t.say", {"n": 2}, idempotency_key="k", on_conflict="replace").id == there.id
        assert statements.count("INSERT") == 1
        assert enqueue(connection, "t.say", queue="mail").new
        statements.clear()
        with pytest.raises(QueueFull):
            enqueue(connection, "t.say", queue="mail")
        assert statements.count("INSERT") == 1
        with pytest.raises(UsageError):
            enqueue(connection, "t.say", on_conflict="overwrite")  # type: ignore[arg-type]
    assert [row["payload"] for row in rows_of(database)] == [{"n": 2}, {}]


def test_a_statement_declares_the_columns_that_it_may_return() -> None:
    told = sql._returned_types("UPDATE j SET run_at = 1 WHERE payload = '' RETURNING id, created_at")
    assert told.keys() == {"created_at"}
    assert "run_at" in sql._returned_types("WITH a AS (UPDATE j SET n = 1 RETURNING id) SELECT run_at FROM a")
    assert sql._returned_types("UPDATE j SET n = 1 RETURNING *").keys() == sql._TYPES.keys()
    assert sql._returned_types("SELECT j.* FROM j").keys() == sql._TYPES.keys()
    assert sql._returned_types("SELECT count(*) AS n, 2 * max(run_at) AS read_at FROM j WHERE x").keys() == {
        "run_at",
        "read_at",
    }
