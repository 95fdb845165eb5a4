"""enqueue_many: a thousand rows in one statement, each with its own options, returned in the given order."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine, event, select

from cronjobs import enqueue, enqueue_many
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.errors import PayloadError, UsageError


def stored(database: Database) -> dict[int | None, Any]:
    with database.read() as connection:
        return {row.id: row for row in connection.execute(select(jobs))}


def test_what_is_told_is_in_the_order_of_the_rows(database: Database) -> None:
    rows: list[Any] = [
        ({"n": n}, {"idempotency_key": f"k{n % 7}"} if n % 3 == 0 else {"priority": n % 10}) for n in range(2500)
    ]
    with database.write() as connection:
        told = enqueue_many(connection, "t.say", rows, queue="mail")
    found = stored(database)
    assert len(told) == len(rows)
    for n, one in enumerate(told):
        if n % 3:
            assert (one.new, found[one.id].payload, found[one.id].priority) == (True, {"n": n}, n % 10)
        else:
            assert found[one.id].idempotency_key == f"k{n % 7}"
            assert one.new == (n < 21)
    assert {row.queue for row in found.values()} == {"mail"}
    unkeyed = [one.id for n, one in enumerate(told) if n % 3]
    assert unkeyed == sorted(filter(None, unkeyed))


def test_a_key_that_is_spent_already_is_told_among_new_ones(database: Database) -> None:
    with database.write() as connection:
        there = enqueue(connection, "t.say", {"n": 0}, idempotency_key="b")
        told = enqueue_many(connection, "t.say", [({"n": n}, {"idempotency_key": key}) for n, key in enumerate("cba")])
    assert [one.new for one in told] == [True, False, True]
    assert told[1].id == there.id
    assert stored(database)[there.id].payload == {"n": 0}


def test_of_rows_with_one_key_the_first_is_kept_and_the_last_replaces(database: Database) -> None:
    rows: list[Any] = [({"n": n}, {"idempotency_key": "k"}) for n in range(3)]
    with database.write() as connection:
        first = enqueue_many(connection, "t.say", rows)
        assert [one.new for one in first] == [True, False, False]
        assert connection.execute(select(jobs.c.payload)).scalar() == {"n": 0}
        again = enqueue_many(connection, "t.say", rows, on_conflict="replace")
        assert connection.execute(select(jobs.c.payload)).scalar() == {"n": 2}
    assert {one.id for one in [*first, *again]} == {first[0].id}


def test_ids_ascend_in_the_order_of_the_call(database: Database) -> None:
    """Jobs of one call run in the order of their ids; keys that end in numbers follow the numbers."""
    rows: list[Any] = [({"n": n}, {"idempotency_key": ("call", n)}) for n in range(1, 1102)]
    with database.write() as connection:
        ids = [one.id for one in enqueue_many(connection, "t.say", rows)]
    assert ids == sorted(filter(None, ids))


def test_rows_with_keys_are_written_in_the_order_of_the_keys_on_postgresql(database: Database) -> None:
    """Two calls at the same time then lock the same keys in the same order, so they cannot deadlock."""
    keys = ["d", "b10", "b9", "b09", "a", "c"]
    with database.write() as connection:
        told = enqueue_many(connection, "t.say", [({}, {"idempotency_key": key}) for key in keys])
        in_order = ["a", "b09", "b9", "b10", "c", "d"] if connection.dialect.name == "postgresql" else keys
    by_id = [key for _, key in sorted(zip((one.id or 0 for one in told), keys, strict=True))]
    assert by_id == in_order


def test_a_thousand_rows_are_one_statement(database: Database) -> None:
    statements: list[str] = []
    with database.write() as connection:
        enqueue(connection, "t.say")  # PostgreSQL is asked for the table once
        event.listen(connection, "before_cursor_execute", lambda *given: statements.append(given[2]))
        enqueue_many(connection, "t.say", ({"n": n} for n in range(1000)))
    assert len([statement for statement in statements if "INSERT" in statement]) == 1


def test_nothing_to_do_is_nothing_done(database: Database) -> None:
    with database.write() as connection:
        assert enqueue_many(connection, "t.say", []) == []


def test_one_bad_row_writes_none(database: Database) -> None:
    with pytest.raises(PayloadError), database.write() as connection:
        enqueue_many(connection, "t.say", [{"n": 1}, {"n": "\0"}])
    with pytest.raises(UsageError, match="give each row its own"), database.write() as connection:
        enqueue_many(connection, "t.say", [{}, {}], idempotency_key="k")
    assert stored(database) == {}


@pytest.mark.parametrize(
    ("row", "error", "said"),
    [
        ({"n": "\0"}, PayloadError, "payload.n contains a NUL character"),
        (7, PayloadError, "payload"),
        (({}, {}, {}), UsageError, "this tuple is not a pair of a payload and the job's options: (payload, {…})"),
        (({}, {"prioriy": 1}), TypeError, "enqueue_many() has no argument 'prioriy', did you mean 'priority'?"),
        (({}, {"priority": 10}), UsageError, "priority"),
        (({}, {"idempotency_key": ("k", None)}), UsageError, ""),
    ],
)
def test_an_error_says_which_row_is_wrong(row: Any, error: type[Exception], said: str) -> None:
    for rows in ([{"n": 1}, row], iter([{"n": 1}, row])):
        with pytest.raises(error) as caught:
            enqueue_many(create_engine("sqlite://"), "t.say", rows)
        assert str(caught.value).startswith(f"rows[1]: {said}")
