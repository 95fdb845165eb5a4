"""Read the audit trail: who did what to which subject, and when."""

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
    *about* is a name without its kind. Only entries before *until* pass.
    """
    conditions = [
        *([] if actions is None else [audit.c.action.in_(list(actions))]),
        *([] if subjects is None else [audit.c.subject.in_(list(subjects))]),
        *([] if about is None else [_about(connection, about)]),
        *([] if actor is None else [audit.c.actor == actor]),
        *([] if since is None else [audit.c.at >= since]),
        *([] if until is None else [audit.c.at < until]),
    ]
    # With actions, their index leaves few rows to sort. Without actions, order by id, because that needs no sort.
    order = [audit.c.id.desc()] if actions is None else [audit.c.at.desc(), audit.c.id.desc()]

    def query(with_json: bool) -> Select[Any]:
        columns = shown(connection, audit.c, with_json=with_json)
        return select(*columns).where(*conditions).order_by(*order).limit(limit)

    return fetched(connection, query)[::-1]


def _about(connection: Connection, subject: str) -> ColumnElement[bool]:
    """Return the condition for entries about *subject*, with or without its kind ("job 17", "queue mail").

    For a job, entries about batches that include the job are returned as well.
    """
    names = [subject, *(f"{kind} {subject}" for kind in KINDS)]
    number = subject.removeprefix("job ")
    if not number.isascii() or not number.isdecimal() or int(number[:20]) >= 2**63:
        return audit.c.subject.in_(names)
    # For the index on actions and subjects, the subjects must be one list, so do not combine two lists with OR.
    in_batch = text(statement_text(_HAS_ID, postgresql=is_postgresql(connection))).bindparams(id=int(number))
    return and_(audit.c.subject.in_([*names, "jobs"]), or_(audit.c.subject != "jobs", in_batch))


# True if a batch's entry names the job :id. Jobs that were chosen by a filter share one entry per batch, with a list of
# their ids. On SQLite, plain SQL may have written anything into the column.
_HAS_ID: Final = either(
    postgresql="cronjobs_audit.detail -> 'ids' @> to_jsonb(CAST(:id AS bigint))",
    sqlite="CASE WHEN json_valid(cronjobs_audit.detail) "
    "THEN EXISTS (SELECT 1 FROM json_each(cronjobs_audit.detail, '$.ids') WHERE value = :id) ELSE 0 END",
)
