"""Pretend that no tick has run for eight days, so that the next tick finds every schedule due. Use it only for tests.

All occurrences of a schedule up to ``seen_until`` are settled. A tick looks at the schedule again at ``next_at``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from app import db
from sqlalchemy import text

instant = datetime.now(UTC) - timedelta(days=8)
value = int(instant.timestamp() * 1_000_000) if db.dialect.name == "sqlite" else instant
with db.begin() as connection:
    moved = connection.execute(text("UPDATE cronjobs_schedules SET seen_until = :at, next_at = :at"), {"at": value})
print(f"{moved.rowcount} schedules have not been looked at for eight days")
