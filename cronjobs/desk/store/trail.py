"""Read the audit trail: who did what, to what and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, or_, select, text

from cronjobs.engine.database.tables import audit
from cronjobs.engine.probe.sql_text import either, statement_text
from cronjobs.engine.store.shown_columns import fetched, shown
from cronjobs.engine.store.sql import is_postgresql

# The kinds with which a subject may begin. For example, the subject of a schedule's pause is "schedule nightly".
KINDS: Final = ("job", "schedule", "queue", "effect")


@dataclass(frozen=True)
class TrailFilter:
    """The filter for audit entries. A field that is None matches every entry."""

    since: datetime | None = None
    subject: str | None = None
    actor: str | None = None
    action: str | None = None


def entries(connection: Connection, wanted: TrailFilter, limit: int) -> Sequence[Row[Any]]:
    """Return the newest *limit* entries that pass the filter, newest first."""
    conditions = [
        audit.c[name] == value for name in ("actor", "action") if (value := getattr(wanted, name)) is not None
    ]
    if wanted.since is not None:
        conditions.append(audit.c.at >= wanted.since)
    if wanted.subject is not None:
        conditions.append(_about(connection, wanted.subject))

    def query(with_json: bool) -> Select[Any]:
        columns = shown(connection, audit.c, with_json=with_json)
        return select(*columns).where(*conditions).order_by(audit.c.id.desc()).limit(limit)

    return fetched(connection, query)


def _about(connection: Connection, subject: str) -> ColumnElement[bool]:
    """Return the condition for entries about *subject*, with or without its kind ("job 17", "queue mail").

    For a job, entries about batches that include the job are returned as well.
    """
    named = audit.c.subject.in_([subject, *(f"{kind} {subject}" for kind in KINDS)])
    number = subject.removeprefix("job ")
    if not number.isascii() or not number.isdecimal() or int(number[:20]) >= 2**63:
        return named
    in_batch = statement_text(has_id("cronjobs_audit.detail"), postgresql=is_postgresql(connection))
    return or_(named, and_(audit.c.subject == "jobs", text(in_batch).bindparams(id=int(number))))


def has_id(detail: str) -> str:
    """Return SQL for whether a batch's audit entry names the job :id. *detail* is the column.

    Jobs that were chosen by a filter share one audit row per batch, with a list of their ids. On SQLite, plain SQL may
    have written anything into the column.
    """
    return either(
        postgresql=f"{detail} -> 'ids' @> to_jsonb(CAST(:id AS bigint))",
        sqlite=f"CASE WHEN json_valid({detail}) "
        f"THEN EXISTS (SELECT 1 FROM json_each({detail}, '$.ids') WHERE value = :id) ELSE 0 END",
    )
