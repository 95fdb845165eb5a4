"""Measure the work of statements: in steps of SQLite's virtual machine, or in pages that PostgreSQL reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event

from cronjobs.engine.database.connection import Database

STEPS = 10  # SQLite reports its steps in multiples of this number
STATEMENT = re.compile(r"\s*(SELECT|WITH|UPDATE|INSERT|DELETE)\b")


@dataclass
class Statement:
    """A statement that was sent. Only PostgreSQL has a ``plan``."""

    sql: str
    work: int = 0
    plan: str = ""


@dataclass
class Counted:
    statements: list[Statement] = field(default_factory=list)

    @property
    def work(self) -> int:
        return sum(each.work for each in self.statements)

    def most(self) -> Statement:
        return max(self.statements, key=lambda each: each.work)


@contextmanager
def counted(database: Database) -> Iterator[Counted]:
    """Count the work of all statements that are sent within the block."""
    found = Counted()

    def count(_connection: Any, cursor: Any, sql: str, parameters: Any, *_: Any) -> None:
        if not STATEMENT.match(sql):
            return
        found.statements.append(Statement(sql))
        if database.is_sqlite:
            cursor.connection.set_progress_handler(step, STEPS)
        else:
            _explain(cursor.connection, parameters, found.statements[-1])

    def step() -> None:
        found.statements[-1].work += STEPS

    event.listen(database.engine, "before_cursor_execute", count)
    try:
        yield found
    finally:
        event.remove(database.engine, "before_cursor_execute", count)
        if database.is_sqlite:
            database.engine.dispose()  # this also closes the connections that count


def _explain(connection: Any, parameters: Any, statement: Statement) -> None:
    """Run the statement once to get its plan, and roll it back."""
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT explained")
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {statement.sql}", parameters)
        statement.plan = "\n".join(row[0] for row in cursor.fetchall())
        cursor.execute("ROLLBACK TO SAVEPOINT explained")
    pages = re.search(r"Buffers: (shared .*)", statement.plan)  # the first match is the total of the plan
    statement.work = sum(map(int, re.findall(r"(?:hit|read)=(\d+)", pages[1]))) if pages else 0
