"""Find one job by id or by key, on whatever connection the app has."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from cronjobs.engine.database.encoding import from_ascii, in_ascii, server_encoding, unfit_character
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.probe.sql_text import JOBS, META, either
from cronjobs.engine.store.meta import database_name, qualified, refuse_unsupported
from cronjobs.engine.store.sizes import if_not_too_large
from cronjobs.engine.store.sql import AMONG_KEYS, is_postgresql, run
from cronjobs.errors import SchemaMissing
from cronjobs.text import decoded, one_line

# Read at most this many characters of a text. cronjobs never writes longer texts.
LONGEST: Final = 4000
_JSON: Final = ("payload", "meta", "result", "progress", "policy")
_TEXTS: Final = (
    *("job_type", "queue", "status", "last_error", "error_type", "idempotency_key", "released_key", "schedule"),
)
_INSTANTS: Final = ("run_at", "cancel_requested_at", "created_at", "started_at", "finished_at")
_NUMBERS: Final = ("id", "priority", "attempts", "failures", "max_attempts")


class JobName(NamedTuple):
    """The name of a job: its id or, if that is None, its idempotency key."""

    id: int | None
    key: str | None

    def __str__(self) -> str:
        return f"job {self.id}" if self.key is None else f'the job with idempotency key "{one_line(self.key, 200)}"'


# The settings of the app's connection decide in which form its driver returns instants, JSON and texts. So we select
# instants as numbers, and texts and JSON as the hexadecimal digits of their bytes, which are the same on every
# connection.
def _text(column: str) -> str:
    shown = f"substr({column}, 1, {LONGEST})"
    return either(postgresql=in_ascii(shown), sqlite=f"CASE WHEN {column} IS NOT NULL THEN hex({shown}) END")


def _json(column: str) -> str:
    fetched = if_not_too_large(column)
    return either(
        postgresql=in_ascii(f"CAST({fetched} AS text)"),
        sqlite=f"CASE WHEN {column} IS NOT NULL THEN hex({fetched}) END",
    )


def _micros(column: str) -> str:
    return either(
        postgresql=f"CASE WHEN isfinite({column}) THEN CAST(extract(epoch FROM {column}) * 1000000 AS bigint) END",
        sqlite=column,
    )


_READ: Final = (
    {name: f"j.{name}" for name in _NUMBERS}
    | {name: _text(f"j.{name}") for name in _TEXTS}
    | {name: _micros(f"j.{name}") for name in _INSTANTS}
    | {name: _json(f"j.{name}") for name in _JSON}
)
_SELECT: Final = (
    f"SELECT {', '.join(f'{expression} AS read_{name}' for name, expression in _READ.items())} FROM {JOBS} j WHERE "
)
_BY_ID: Final = "j.id = CAST(:id AS bigint)"
# Finds the job that has the key, or else the newest job that released the key. Without "+ 0", PostgreSQL might walk
# back through all ids to find the largest.
_BY_KEY: Final = f"""j.id = coalesce((SELECT k.id FROM {JOBS} k WHERE k.idempotency_key {AMONG_KEYS}),
  (SELECT max(k.id + 0) FROM {JOBS} k WHERE k.released_key {AMONG_KEYS}))"""


def find_row(connection: Connection, name: JobName) -> dict[str, Any] | None:
    """Return the columns of a job, or None if there is no such job.

    JSON is returned as text, and instants as microseconds since 1970.
    """
    if cannot_be_there(connection, name):
        return None
    if name.id is not None:
        found = run(connection, _SELECT + _BY_ID, id=name.id).all()
    else:
        found = run(connection, _SELECT + _BY_KEY, keys=[name.key]).all()
    if not found:
        return None
    row = dict(zip(_READ, found[0], strict=True))
    for column in (*_TEXTS, *_JSON):
        if row[column] is not None:
            row[column] = _read(connection, row[column])
    return row


def _read(connection: Connection, digits: str) -> str:
    return from_ascii(connection, digits) if is_postgresql(connection) else decoded(bytes.fromhex(digits))


def cannot_be_there(connection: Connection, name: JobName) -> bool:
    """Return whether the key contains a character that this database cannot store.

    A query for such a key would abort the app's transaction.
    """
    return name.key is not None and unfit_character(server_encoding(connection), name.key) is not None


def require_ready(connection: Connection) -> bool:
    """Return whether this connection's role may read whole jobs. Call this before our query runs in the app's
    transaction: if the database refused our query, that transaction would be aborted.

    Raises SchemaMissing if the meta row is missing, and SchemaNotUpgraded for tables from before 0.2.0.
    """
    may, values = "true", {}
    if is_postgresql(connection):
        may, values = "has_table_privilege(CAST(:name AS text), 'SELECT')", {"name": qualified(connection, jobs.name)}
    found = run(connection, f"SELECT m.schema_revision, {may} AS may_read FROM {META} m", **values).all()
    if not found:
        raise SchemaMissing(database_name(connection))
    refuse_unsupported(str(found[0].schema_revision))
    return bool(found[0].may_read)
