"""The engine's statements on the tables of alerts: make a tick look for findings soon, and prune old findings.

``contrib/alerts/statements.py`` has all other statements. The meta row's ``look_at`` says when a tick must next look
for findings.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy import Connection, delete, select

from cronjobs.engine.database.tables import alerts, findings
from cronjobs.engine.probe.sql_text import FINDINGS, META, NOW, either
from cronjobs.engine.store.sql import run

SKIP_LOCKED: Final = either(postgresql="FOR NO KEY UPDATE SKIP LOCKED", sqlite="")


def look_soon(connection: Connection) -> None:
    """Make the next tick that sends alerts look for findings. Call this when facts have changed.

    Do nothing if the meta row is locked.
    """
    run(
        connection,
        f"UPDATE {META} SET look_at = {NOW} WHERE id = "
        f"(SELECT m.id FROM {META} m WHERE m.id = 1 AND m.look_at > {NOW} {SKIP_LOCKED})",
    )


def remove_findings(connection: Connection, before: datetime, after: datetime, limit: int) -> list[datetime]:
    """Delete up to *limit* findings that ended at or after *after* and before *before*. Return when they ended.

    Also delete what the channels recorded about these findings.
    """
    chosen = select(findings.c.id, findings.c.ended_at).where(
        findings.c.ended_at < before, findings.c.ended_at >= after
    )
    rows = connection.execute(chosen.order_by(findings.c.ended_at).limit(limit).with_for_update(skip_locked=True)).all()
    ids = [row.id for row in rows]
    if ids:
        connection.execute(delete(alerts).where(alerts.c.finding_id.in_(ids)))
        connection.execute(delete(findings).where(findings.c.id.in_(ids)))
    return [row.ended_at for row in rows]


def past_findings(connection: Connection, before: datetime) -> tuple[int, datetime | None]:
    """Return how many findings ended before *before*, and when the first of them ended."""
    row = run(
        connection,
        f"SELECT count(*) AS episodes, min(f.ended_at) AS ended_at FROM {FINDINGS} f WHERE f.ended_at < :before",
        before=before,
    ).one()
    return row.episodes, row.ended_at
