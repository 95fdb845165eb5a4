"""``cronjobs_occurrences.tick``: which tick settled an occurrence, so that ``explain`` need not infer it from times.

It only adds, so code of older revisions goes on ticking on these tables; what it settles has no tick.
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

OLDEST_CODE = "0001"  # the oldest revision whose code may run on the database after this migration

READABLE = "schedule_id *first_for *last_for count outcome reason job_id *decided_at tick"  # with a star: an instant


def upgrade() -> None:
    op.execute("ALTER TABLE cronjobs_occurrences ADD COLUMN tick BIGINT")
    if op.get_context().dialect.name != "postgresql":
        columns = ", ".join(_iso(name[1:]) if name.startswith("*") else f'"{name}"' for name in READABLE.split())
        op.execute("DROP VIEW IF EXISTS cronjobs_occurrences_readable")
        op.execute(f"CREATE VIEW cronjobs_occurrences_readable AS SELECT {columns} FROM cronjobs_occurrences")  # noqa: S608
    op.execute(f"UPDATE cronjobs_meta SET schema_revision = '{revision}', oldest_code = '{OLDEST_CODE}'")  # noqa: S608


def downgrade() -> None:
    raise RuntimeError("cronjobs' migrations only expand, and code of an older version runs on a newer schema")


def _iso(column: str) -> str:
    """SQL for an instant as people read it: 2026-01-31T09:30:00.000000Z."""
    return (
        f"strftime('%Y-%m-%dT%H:%M:%S', {column} / 1000000, 'unixepoch') || printf('.%06dZ', {column} % 1000000) "
        f"AS {column}"
    )
