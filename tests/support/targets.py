"""Connections as users open them: every kind that enqueue accepts, with its commit and rollback."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from support.postgres import ENQUEUE, OWNER, RUN, as_role


@dataclass(frozen=True)
class Opened:
    """A user's connection, and the functions that end its transaction."""

    target: Any
    commit: Callable[[], None]
    rollback: Callable[[], None]


Kind = Callable[[str], Iterator[Opened]]


def plain_url(url: str) -> str:
    """Return the URL in the form that an app's engine accepts."""
    return url.replace("postgresql://", "postgresql+psycopg://")


def sqlalchemy_connection(url: str) -> Iterator[Opened]:
    engine = create_engine(plain_url(url))
    with engine.connect() as connection:
        yield Opened(connection, connection.commit, connection.rollback)
    engine.dispose()


def sqlalchemy_session(url: str) -> Iterator[Opened]:
    engine = create_engine(plain_url(url))
    with Session(engine) as session:
        yield Opened(session, session.commit, session.rollback)
    engine.dispose()


def sqlalchemy_scoped_session(url: str) -> Iterator[Opened]:
    engine = create_engine(plain_url(url))
    session = scoped_session(sessionmaker(engine))
    yield Opened(session, session.commit, session.rollback)
    session.remove()
    engine.dispose()


def _psycopg(**options: Any) -> Kind:
    def opened(url: str) -> Iterator[Opened]:
        connection = psycopg.connect(url, **options)
        if connection.autocommit:
            connection.execute("BEGIN")
        yield Opened(connection, lambda: _end(connection, "COMMIT"), lambda: _end(connection, "ROLLBACK"))
        connection.close()

    return opened


def _sqlite(**options: Any) -> Kind:
    def opened(url: str) -> Iterator[Opened]:
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), **options)
        if options.get("isolation_level", "") is None:
            connection.execute("BEGIN")
        connection.row_factory = lambda cursor, row: {
            column[0]: value for column, value in zip(cursor.description, row, strict=True)
        }
        connection.text_factory = bytes
        yield Opened(connection, lambda: _again(connection, "commit"), lambda: _again(connection, "rollback"))
        connection.close()

    return opened


def _again(connection: sqlite3.Connection, end: str) -> None:
    getattr(connection, end)()
    if connection.isolation_level is None:
        connection.execute("BEGIN")


def _end(connection: psycopg.Connection[Any], word: str) -> None:
    connection.execute(word.encode())
    if connection.autocommit:
        connection.execute("BEGIN")


def users_table(url: str, columns: str, name: str = "work") -> None:
    """Create a user's table beside ours. Every role may use it."""
    statement = f"CREATE TABLE {name} ({columns})"
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.execute(statement)
        connection.close()
        return
    with psycopg.connect(as_role(url, OWNER), autocommit=True) as owner:
        owner.execute(statement.encode())
        owner.execute(f"GRANT ALL ON {name} TO PUBLIC".encode())


EVERYWHERE: dict[str, Kind] = {
    "connection": sqlalchemy_connection,
    "session": sqlalchemy_session,
    "scoped session": sqlalchemy_scoped_session,
}
POSTGRESQL: dict[str, Kind] = {
    "psycopg": _psycopg(),
    "psycopg in autocommit": _psycopg(autocommit=True),
    "psycopg with rows and cursors of its own": _psycopg(row_factory=dict_row, cursor_factory=psycopg.ClientCursor),
}
SQLITE: dict[str, Kind] = {
    "sqlite3": _sqlite(),
    "sqlite3 without isolation level": _sqlite(isolation_level=None),
    "sqlite3 immediate": _sqlite(isolation_level="IMMEDIATE"),
}
ALL = [("sqlite", kind) for kind in EVERYWHERE | SQLITE] + [("postgresql", kind) for kind in EVERYWHERE | POSTGRESQL]

each_target = pytest.mark.parametrize(("database_url", "kind"), ALL, indirect=["database_url"])


def app_url(url: str) -> str:
    """Return *url* with the role of an app, which enqueues, in place of the runners' role that the tests use."""
    return as_role(url, ENQUEUE) if f"//{RUN}:" in url else url


@contextmanager
def opened(kind: str, url: str, *, by_runner: bool = False) -> Iterator[Opened]:
    """Open a connection of *kind* with the app's role, or with the role of a handler if *by_runner*."""
    yield from (EVERYWHERE | POSTGRESQL | SQLITE)[kind](url if by_runner else app_url(url))
