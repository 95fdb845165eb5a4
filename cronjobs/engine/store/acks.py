"""The table ``cronjobs_acks``: findings that a person knows about, for a while."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, select, update

from cronjobs.engine.database.tables import acks
from cronjobs.engine.store.sql import inserted_into


@dataclass(frozen=True)
class StoredAck:
    """``rows``: the ids or names that were behind the finding when it was acknowledged."""

    finding: str
    severity: str
    rows: Sequence[str]
    until: datetime
    by: str | None
    why: str | None
    acked_at: datetime


def acks_in_force(connection: Connection, now: datetime) -> dict[str, StoredAck]:
    """By the finding's key."""
    found = connection.execute(select(acks).where(acks.c.until > now).order_by(acks.c.finding))
    return {row.finding: StoredAck(**{**row._mapping, "rows": _texts(row.rows)}) for row in found}


def _texts(rows: Any) -> Sequence[str]:
    """None if another program wrote something else."""
    return [row for row in rows if isinstance(row, str)] if isinstance(rows, list) else []


def put_ack(connection: Connection, ack: StoredAck) -> None:
    """Write it in place of an earlier one, and delete what is over."""
    values = vars(ack) | {"rows": list(ack.rows)}
    connection.execute(delete(acks).where(acks.c.until <= ack.acked_at))
    insert = inserted_into(connection, acks).values(values)
    connection.execute(insert.on_conflict_do_update(index_elements=[acks.c.finding], set_=values))


def delete_ack(connection: Connection, finding: str) -> bool:
    """Return whether there was one."""
    return connection.execute(delete(acks).where(acks.c.finding == finding)).rowcount > 0


def rename_schedules(connection: Connection, names: Mapping[str, str]) -> None:
    """Let acknowledged findings about schedules (old → new) stay so: these are the same schedules."""
    for row in connection.execute(select(acks.c.finding, acks.c.rows)).all():
        rows, (kind, colon, subject) = _texts(row.rows), row.finding.partition(":")
        values = {
            "finding": f"{kind}{colon}{names.get(subject, subject)}",
            "rows": [names.get(each, each) for each in rows],
        }
        if values != {"finding": row.finding, "rows": rows}:
            connection.execute(delete(acks).where(acks.c.finding.in_({values["finding"]} - {row.finding})))
            connection.execute(update(acks).where(acks.c.finding == row.finding).values(values))
