"""Read the audit trail: who did what, to what and when."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, or_, select, text

from cronjobs.engine.database.tables import audit
from cronjobs.engine.probe.sql_text import either, statement_text
from cronjobs.engine.store.shown_columns import fetched, shown
from cronjobs.engine.store.sql import is_postgresql

# The kinds with which a subject may begin. For example, the subject of a schedule's pause is "schedule nightly".
KINDS: Final = ("job", "schedule", "queue", "effect")


def entries(
    connection: Connection,
    actions: Collection[str] | None = None,
    subjects: Collection[str] | None = None,
    *,
    about: str | None = None,
    actor: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int | None = None,
) -> Sequence[Row[Any]]:
    """Return the newest *limit* entries that pass the filter, oldest first. A filter that is None passes all entries.

    The subject of "define" and "retire" is a schedule's name. The subject of "pause" includes the scope: "queue mail".
    *about* is a name without its kind. *until* is the first instant that does not pass.
    """
    conditions = [
        *([] if actions is None else [audit.c.action.in_(list(actions))]),
        *([] if subjects is None else [audit.c.subject.in_(list(subjects))]),
        *([] if about is None else [_about(connection, about)]),
        *([] if actor is None else [audit.c.actor == actor]),
        *([] if since is None else [audit.c.at >= since]),
        *([] if until is None else [audit.c.at < until]),
    ]
    # The index has the entries of an action by time. Without actions, only the order by id needs no sort of the table.
    order = [audit.c.id.desc()] if actions is None else [audit.c.at.desc(), audit.c.id.desc()]

    def query(with_json: bool) -> Select[Any]:
        columns = shown(connection, audit.c, with_json=with_json)
        return select(*columns).where(*conditions).order_by(*order).limit(limit)

    return fetched(connection, query)[::-1]


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
