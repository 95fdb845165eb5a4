"""A driver's connection that belongs to somebody else, as a full SQLAlchemy Connection that reads and writes.

``user_connections`` is smaller and faster: only what an enqueue needs.
"""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import Connection, StaticPool, create_engine

from cronjobs.engine.database.user_connections import PlainConnection, no_connection, plain_connection


class KeptConnection:
    """A driver's connection that SQLAlchemy uses, but neither ends, closes nor sets up."""

    def __init__(self, plain: PlainConnection) -> None:
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain.driver_connection, name)

    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...
    def create_function(self, *_: Any, **__: Any) -> None:
        """Keep the owner's REGEXP."""

    def cursor(self, *_: Any, **__: Any) -> Any:
        cursor = self._plain.cursor()
        if self._plain.dialect.name == "postgresql":
            from psycopg.types.datetime import TimestamptzLoader
            from psycopg.types.json import JsonbLoader, JsonLoader

            cursor.adapters.register_loader("timestamptz", TimestamptzLoader)  # USE_TZ = False: local time
            cursor.adapters.register_loader("jsonb", JsonbLoader)  # Django's returns text
            cursor.adapters.register_loader("json", JsonLoader)
        return cursor


def by_sqlalchemy(raw: Any, what: str) -> Connection:
    """An SQLAlchemy Connection on *raw*, which is open and stays its owner's. *what*: the caller's name, for errors."""
    plain = plain_connection(raw)
    if plain is None:
        raise no_connection(what, "Connection or Session", raw)
    is_sqlite = plain.dialect.name == "sqlite"
    options: dict[str, Any] = {} if is_sqlite else {"use_native_hstore": False}
    url, kept = "sqlite://" if is_sqlite else "postgresql+psycopg://", cast("Any", KeptConnection(plain))
    engine = create_engine(url, creator=lambda: kept, poolclass=StaticPool, pool_reset_on_return=None, **options)
    return engine.connect()
