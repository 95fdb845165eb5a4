"""Django's connection to the jobs database, for our functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from django.conf import settings  # type: ignore[import-untyped]
from django.db import connections, transaction  # type: ignore[import-untyped]
from sqlalchemy import Connection

from cronjobs.engine.config import django_project
from cronjobs.engine.database.borrowed import by_sqlalchemy
from cronjobs.engine.database.user_connections import WrappedConnection, texts_decoded

VENDORS: Final = ("postgresql", "sqlite")


def jobs_alias() -> str:
    """Return the jobs database's alias in DATABASES."""
    return django_project.alias(settings)


def is_jobs_database(alias: str) -> bool:
    return alias == jobs_alias() and connections[alias].vendor in VENDORS


@contextmanager
def in_transaction() -> Iterator[Any]:
    """Yield Django's connection to the jobs database. If no transaction is open, open one for the block."""
    connection = connections[jobs_alias()]
    if connection.in_atomic_block or not connection.get_autocommit():
        yield connection
        return
    with transaction.atomic(using=connection.alias):
        yield connection


@contextmanager
def ours() -> Iterator[Connection]:
    """Yield the connection of ``in_transaction`` as an SQLAlchemy connection, which ``store`` and ``insight`` need."""
    with in_transaction() as connection:
        connection.ensure_connection()
        raw = connection.connection
        lent = by_sqlalchemy(raw, "cronjobs.contrib.django")
        with texts_decoded(raw):
            yield cast("Connection", WrappedConnection(lent, None))
