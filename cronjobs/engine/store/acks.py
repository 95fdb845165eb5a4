"""The table ``cronjobs_acks``: the findings that a person has acknowledged, and until when each ack lasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, delete, insert, select

from cronjobs.engine.database.tables import acks
from cronjobs.engine.store.sql import inserted_into


@dataclass(frozen=True)
class StoredAck:
    """An acknowledged finding. ``rows`` holds the ids or names behind the finding when it was acknowledged."""

    finding: str
    severity: str
    rows: Sequence[str]
    until: datetime
    by: str | None
    why: str | None
    acked_at: datetime


def acks_in_force(connection: Connection, now: datetime) -> dict[str, StoredAck]:
    """Return the acknowledgements that have not expired, keyed by finding."""
    found = connection.execute(select(acks).where(acks.c.until > now).order_by(acks.c.finding))
    return {row.finding: StoredAck(**{**row._mapping, "rows": _texts(row.rows)}) for row in found}


def _texts(rows: Any) -> Sequence[str]:
    """Return the stored rows as strings, or an empty list if another program has stored a value of another kind."""
    return [row for row in rows if isinstance(row, str)] if isinstance(rows, list) else []


def put_ack(connection: Connection, ack: StoredAck) -> None:
    """Store an acknowledgement, replacing any earlier one for the same finding.

    Also delete expired acknowledgements.
    """
    values = vars(ack) | {"rows": list(ack.rows)}
    connection.execute(delete(acks).where(acks.c.until <= ack.acked_at))
    new = inserted_into(connection, acks).values(values)
    connection.execute(new.on_conflict_do_update(index_elements=[acks.c.finding], set_=values))


def delete_ack(connection: Connection, finding: str) -> bool:
    """Delete an acknowledgement. Return whether it existed."""
    return connection.execute(delete(acks).where(acks.c.finding == finding)).rowcount > 0


# The kinds of findings that are about one schedule, which the finding's key names.
_ABOUT_ONE: Final = ("schedule", "slower")
# The kinds of findings whose ``rows`` are names of schedules.
_NAMING: Final = (
    "behind",
    "failing",
    "missed",
    "not_run",
    "pause",
    "schedule",
    "unresolved",
)


def rename_schedules(connection: Connection, names: Mapping[str, str]) -> None:
    """Carry acknowledgements over to renamed schedules. *names* maps old names to new ones."""
    moved = {}
    for row in connection.execute(select(acks)).all():
        kind, colon, subject = row.finding.partition(":")
        before, slash, name = subject.rpartition("/")
        if kind in _ABOUT_ONE:
            subject = names.get(subject, subject)
        elif kind == "pause" and before == "schedule":
            subject = f"{before}{slash}{names.get(name, name)}"
        rows = [names.get(each, each) if kind in _NAMING else each for each in _texts(row.rows)]
        values = {"finding": f"{kind}{colon}{subject}", "rows": rows}
        if values != {"finding": row.finding, "rows": row.rows}:
            moved[row.finding] = dict(row._mapping) | values
    # Delete all old rows before inserting any, because one schedule's new name may be another schedule's old name.
    if moved:
        keys = [*moved, *(values["finding"] for values in moved.values())]
        connection.execute(delete(acks).where(acks.c.finding.in_(keys)))
        connection.execute(insert(acks), list(moved.values()))
