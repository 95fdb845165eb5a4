"""Django model fields for the columns of our tables."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import models  # type: ignore[import-untyped]
from django.db.models.fields.json import KeyTransform  # type: ignore[import-untyped]

from cronjobs.contrib.django.instants import as_djangos, from_djangos
from cronjobs.engine.database.column_types import from_microseconds, to_microseconds
from cronjobs.engine.probe.sql_text import statement_text
from cronjobs.engine.rules.payload import too_deep
from cronjobs.engine.store.sizes import NOT_FETCHED, if_not_too_large
from cronjobs.text import BrokenText, decoded


def _undecoded(connection: Any, sql: str) -> str:
    """Return SQL that reads a text column as bytes on SQLite, whose driver raises an error for broken UTF-8."""
    is_column = "(" not in sql
    return f"CAST({sql} AS BLOB)" if connection.vendor == "sqlite" and is_column else sql


class AnyTextField(models.TextField):
    """Text that hand-written SQL may have stored. Bytes that are not UTF-8 become replacement characters."""

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        # In a subquery, keep the text: the outer query compares the column with text, and bytes never equal text.
        return (sql if compiler.query.subquery else _undecoded(compiler.connection, sql)), params

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return str(decoded(value)) if isinstance(value, bytes) else value


class JsonField(models.JSONField):
    """JSON that hand-written SQL may have stored. Unreadable JSON reads as None, so that one bad row breaks no list."""

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        if compiler.query.subquery or "(" in sql:  # the SQL is not just a column
            return sql, params
        if compiler.connection.vendor == "postgresql":
            return statement_text(if_not_too_large(sql), postgresql=True), params
        return _undecoded(compiler.connection, sql), params

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        if isinstance(value, bytes):
            value = decoded(value)
            if isinstance(value, BrokenText):
                return None
        try:
            found = super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):  # for example a number with 5,000 digits, or deep nesting
            return None
        if found in NOT_FETCHED or (isinstance(value, str) and too_deep(value, found)):
            return None
        # Django returns invalid JSON as text, unchanged. After a key transform, text may also be a value.
        is_text = found is value and isinstance(value, str) and not isinstance(expression, KeyTransform)
        return None if is_text else found


class InstantField(models.DateTimeField):
    """An instant: timestamptz on PostgreSQL, microseconds since 1970 on SQLite, in Python a datetime as USE_TZ says."""

    def get_internal_type(self) -> str:
        # As "DateTimeField", Django would parse SQLite's integer as the text of a date.
        return "InstantField"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> datetime | None:
        if value is None:
            return None
        return as_djangos(from_djangos(value) if isinstance(value, datetime) else from_microseconds(value))

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        if not isinstance(value, datetime):
            return super().get_db_prep_value(value, connection, prepared)
        instant = from_djangos(value)
        return instant if connection.vendor == "postgresql" else to_microseconds(instant)
