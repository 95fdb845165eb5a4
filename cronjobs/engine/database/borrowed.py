"""Make a full SQLAlchemy Connection from a driver's connection that belongs to someone else.

To enqueue, use ``user_connections`` instead, which is smaller and faster.
"""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import Connection, StaticPool, create_engine

from cronjobs.engine.database.user_connections import PlainConnection, no_connection, plain_connection


class KeptConnection:
    """A driver's connection that SQLAlchemy can use, but cannot commit, roll back, close or configure."""

    def __init__(self, plain: PlainConnection) -> None:
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain.driver_connection, name)

    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...
    def create_function(self, *_: Any, **__: Any) -> None:
        """Do nothing, so that the owner's REGEXP function is kept."""

    def cursor(self, *_: Any, **__: Any) -> Any:
        cursor = self._plain.cursor()
        if self._plain.dialect.name == "postgresql":
            from psycopg.types.datetime import TimestamptzLoader
            from psycopg.types.json import JsonbLoader, JsonLoader

            # Django's own loader for timestamps depends on USE_TZ, so use psycopg's loader.
            cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
            # Django's own loader for JSON returns text, so use psycopg's loaders.
            cursor.adapters.register_loader("jsonb", JsonbLoader)
            cursor.adapters.register_loader("json", JsonLoader)
        return cursor


def by_sqlalchemy(raw: Any, what: str) -> Connection:
    """Return an SQLAlchemy Connection that uses *raw*. *raw* must be open, and still belongs to its owner.

    *what* is the name of the calling function, for error messages.
    """
    plain = plain_connection(raw)
    if plain is None:
        raise no_connection(what, "Connection or Session", raw)
    is_sqlite = plain.dialect.name == "sqlite"
    options: dict[str, Any] = {} if is_sqlite else {"use_native_hstore": False}
    url, kept = "sqlite://" if is_sqlite else "postgresql+psycopg://", cast("Any", KeptConnection(plain))
    engine = create_engine(url, creator=lambda: kept, poolclass=StaticPool, pool_reset_on_return=None, **options)
    return engine.connect()
