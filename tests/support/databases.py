"""Small functions that several database tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from cronjobs.clock import SYSTEM, sleep
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database


@contextmanager
def opened(url: str, schema: str | None = None) -> Iterator[Database]:
    database = Database(parse_url(url, schema))
    try:
        yield database
    finally:
        database.close()


def in_psql(url: str, *statements: str) -> None:
    """Run each statement separately, as psql does."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def until(condition: Callable[[], bool]) -> None:
    """Wait until another connection or thread has done something."""
    give_up_at = SYSTEM.monotonic() + 60
    while not condition():
        assert SYSTEM.monotonic() < give_up_at, "it never came"
        sleep(0.005)
