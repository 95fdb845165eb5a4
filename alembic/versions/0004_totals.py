"""What metrics need: totals of what ended, refused jobs by queue, and the ledger by outcome in an index.

It only adds, so code of the revisions before goes on ticking on these tables. What such code prunes is not in the
totals.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.elements import conv

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

OLDEST_CODE = "0001"  # the oldest revision whose code may run on the database after this migration


def upgrade() -> None:
    is_postgresql = op.get_context().dialect.name == "postgresql"
    json: Any = postgresql.JSONB() if is_postgresql else sa.Text()
    zero = sa.text("0")
    op.create_table(
        "cronjobs_totals",
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("bucket", sa.SmallInteger(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False, server_default=zero),
        sa.Column("micros", sa.Float(), nullable=False, server_default=zero),
        sa.Column("newest", sa.BigInteger()),
        sa.Column("detail", json),
        sa.PrimaryKeyConstraint("part", "kind", "name", "outcome", "bucket", name=conv("cronjobs_totals_pk")),
        sa.CheckConstraint("part IN ('gone', 'counted', 'mark')", name=conv("cronjobs_totals_part_ck")),
    )
    detail = '{"id":0,"until":null,"pending":[]}'
    op.execute(
        sa.text(
            "INSERT INTO cronjobs_totals (part, kind, name, outcome, bucket, detail) "  # noqa: S608
            f"VALUES ('mark', '', '', '', -1, CAST(:detail AS {'JSONB' if is_postgresql else 'TEXT'}))"
        ).bindparams(detail=detail)
    )
    op.execute("ALTER TABLE cronjobs_queues ADD COLUMN refused BIGINT DEFAULT 0 NOT NULL")
    # All rows have a count; only a statement that says so can use this index.
    op.execute(
        "CREATE INDEX cronjobs_occurrences_outcome_idx ON cronjobs_occurrences (schedule_id, outcome, count) "
        "WHERE count > 0"
    )
    op.execute(f"UPDATE cronjobs_meta SET schema_revision = '{revision}', oldest_code = '{OLDEST_CODE}'")  # noqa: S608


def downgrade() -> None:
    raise RuntimeError("cronjobs' migrations only expand, and code of an older version runs on a newer schema")
