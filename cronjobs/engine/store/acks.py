"""The table ``cronjobs_acks``: findings that a person knows about, for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, select

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
