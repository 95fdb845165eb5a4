"""What people see: findings that somebody has acknowledged, findings as they were, and who was alerted of them.

It only adds, so code of the revisions before goes on ticking on these tables.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.elements import conv

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

OLDEST_CODE = "0001"  # the oldest revision whose code may run on the database after this migration

FIRST_INSTANT = 100_000_000_000_000  # microseconds, as in 0001
LAST_INSTANT = 253_402_300_799_999_999
SQLITE_NOW = (
    "(CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000)"
)


def upgrade() -> None:
    create_acks()
    create_findings()
    create_alerts()
    extend_meta()
    create_quarters()
    add_live_columns()
    keep_small()
    if not is_postgresql():
        replace_readable_views()
    op.execute(f"UPDATE cronjobs_meta SET schema_revision = '{revision}', oldest_code = '{OLDEST_CODE}'")  # noqa: S608


def downgrade() -> None:
    raise RuntimeError("cronjobs' migrations only expand, and code of an older version runs on a newer schema")


# --- what differs between the databases -----------------------------------------------------------------------------


def is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def instant(name: str, *, null: bool = True, now: bool = False) -> sa.Column[Any]:
    kind: Any = postgresql.TIMESTAMP(timezone=True) if is_postgresql() else sa.BigInteger()
    default = sa.text("statement_timestamp()" if is_postgresql() else SQLITE_NOW) if now else None
    return sa.Column(name, kind, nullable=null, server_default=default)


def instant_checks(table: str, *columns: str) -> list[sa.CheckConstraint]:
    if is_postgresql():
        return []
    return [
        sa.CheckConstraint(
            f"{column} IS NULL OR (typeof({column}) = 'integer' AND {column} BETWEEN {FIRST_INSTANT} "
            f"AND {LAST_INSTANT})",
            name=conv(f"{table}_{column}_microseconds_ck"),
        )
        for column in columns
    ]


def json() -> Any:
    return postgresql.JSONB() if is_postgresql() else sa.Text()


# --- findings ---------------------------------------------------------------------------------------------------------


def create_acks() -> None:
    table = "cronjobs_acks"
    op.create_table(
        table,
        sa.Column("finding", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("rows", json(), nullable=False),
        instant("until", null=False),
        sa.Column("by", sa.Text()),
        sa.Column("why", sa.Text()),
        instant("acked_at", null=False, now=True),
        sa.PrimaryKeyConstraint("finding", name=conv(f"{table}_pk")),
        sa.CheckConstraint("severity IN ('critical', 'warning', 'notice')", name=conv(f"{table}_severity_ck")),
        *instant_checks(table, "until", "acked_at"),
    )


# --- alerts -----------------------------------------------------------------------------------------------------------


def create_findings() -> None:
    table = "cronjobs_findings"
    big: Any = sa.BigInteger() if is_postgresql() else sa.Integer()
    op.create_table(
        table,
        sa.Column("id", big, sa.Identity() if is_postgresql() else None, nullable=False),
        sa.Column("finding", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("command", sa.Text()),
        sa.Column("rows", json(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False, server_default=sa.text("''")),
        instant("began_at", null=False),
        instant("found_at", null=False, now=True),
        instant("ended_at"),
        sa.PrimaryKeyConstraint("id", name=conv(f"{table}_pk")),
        sa.CheckConstraint("severity IN ('critical', 'warning', 'notice')", name=conv(f"{table}_severity_ck")),
        *instant_checks(table, "began_at", "found_at", "ended_at"),
        sqlite_autoincrement=True,
    )
    op.execute(f"CREATE UNIQUE INDEX {table}_open_idx ON {table} (finding) WHERE ended_at IS NULL")
    op.execute(f"CREATE INDEX {table}_ended_idx ON {table} (ended_at)")


def create_alerts() -> None:
    table = "cronjobs_alerts"
    op.create_table(
        table,
        sa.Column("finding_id", sa.BigInteger(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        instant("due_at"),
        sa.Column("over", sa.SmallInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("severity", sa.Text()),
        sa.Column("rows", json()),
        instant("first_at"),
        instant("sent_at"),
        sa.Column("sent", sa.Integer(), nullable=False, server_default=sa.text("0")),
        instant("failed_at"),
        sa.Column("failures", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("error", sa.Text()),
        sa.Column("locked_by", sa.Text()),
        instant("locked_until"),
        sa.PrimaryKeyConstraint("finding_id", "channel", name=conv(f"{table}_pk")),
        *instant_checks(table, "due_at", "first_at", "sent_at", "failed_at", "locked_until"),
    )
    op.execute(f"CREATE INDEX {table}_due_idx ON {table} (due_at) WHERE due_at IS NOT NULL")


def extend_meta() -> None:
    if is_postgresql():
        op.execute("ALTER TABLE cronjobs_meta ADD COLUMN look_at TIMESTAMP WITH TIME ZONE")
    else:
        check = (
            f"look_at IS NULL OR (typeof(look_at) = 'integer' AND look_at BETWEEN {FIRST_INSTANT} AND {LAST_INSTANT})"
        )
        name = "cronjobs_meta_look_at_microseconds_ck"
        op.execute(f"ALTER TABLE cronjobs_meta ADD COLUMN look_at BIGINT CONSTRAINT {name} CHECK ({check})")


# --- pages ------------------------------------------------------------------------------------------------------------


def create_quarters() -> None:
    table = "cronjobs_quarters"
    op.create_table(
        table,
        sa.Column("schedule_id", sa.BigInteger(), nullable=False),
        instant("hour", null=False),
        sa.Column("quarters", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("schedule_id", "hour", name=conv(f"{table}_pk")),
        *instant_checks(table, "hour"),
    )


# --- what a running attempt reports -----------------------------------------------------------------------------------


def add_live_columns() -> None:
    op.execute(f"ALTER TABLE cronjobs_jobs ADD COLUMN progress {'JSONB' if is_postgresql() else 'TEXT'}")
    op.execute("ALTER TABLE cronjobs_jobs ADD COLUMN live_output TEXT")


# --- keeping it small -------------------------------------------------------------------------------------------------

# By default PostgreSQL vacuums a table when a fifth of it is dead: of a million jobs that would be after 200,000 dead
# rows, all of whose index entries a claim may have to step over. Each job leaves two dead rows (its claim, its end) and
# a third when it is pruned; its attempt, ledger row and tick leave one. So these are vacuumed after a fiftieth or a
# twentieth. Costs stay at the server's defaults: a vacuum of a million jobs takes seconds at these, ADR 19.
#
# No fill factor for jobs: a claim and an end change what partial indexes are about, so neither is ever a HOT update,
# and free room on their pages would only make the table larger. Watermarks and totals are in no index: with room on
# its page an update stays there, and the next reader of the page clears it away without any vacuum.
STORAGE = {
    "cronjobs_jobs": {"autovacuum_vacuum_scale_factor": "0.02", "autovacuum_analyze_scale_factor": "0.02"},
    "cronjobs_job_runs": {"autovacuum_vacuum_scale_factor": "0.05", "autovacuum_analyze_scale_factor": "0.05"},
    "cronjobs_occurrences": {"autovacuum_vacuum_scale_factor": "0.05", "autovacuum_analyze_scale_factor": "0.05"},
    "cronjobs_ticks": {"autovacuum_vacuum_scale_factor": "0.05", "autovacuum_analyze_scale_factor": "0.05"},
    "cronjobs_schedules": {"fillfactor": "50"},
    "cronjobs_totals": {"fillfactor": "70"},
}


def keep_small() -> None:
    """Set what nobody has set: an owner's own settings stay."""
    if not is_postgresql():
        return
    for table, options in STORAGE.items():
        for option, value in options.items():
            op.execute(f"""
              DO $cronjobs$ BEGIN
                IF NOT EXISTS (SELECT FROM pg_class c, pg_options_to_table(c.reloptions) o
                               WHERE c.oid = to_regclass('{table}') AND o.option_name = '{option}') THEN
                  ALTER TABLE {table} SET ({option} = {value});
                END IF;
              END $cronjobs$""")


# --- views ------------------------------------------------------------------------------------------------------------

# As in 0002.
READABLE = {
    "cronjobs_jobs": "id job_type payload meta queue priority status *run_at attempts failures losses interruptions "
    "max_attempts timeout_s locked_by *locked_until idempotency_key concurrency_key schedule *scheduled_for last_error "
    "error_type *last_failed_at result enqueued_by *cancel_requested_at *created_at *started_at *finished_at policy "
    "*dismissed_at progress live_output",
    "cronjobs_acks": "finding severity rows *until by why *acked_at",
}


def replace_readable_views() -> None:
    for table, names in READABLE.items():
        columns = ", ".join(_iso(name[1:]) if name.startswith("*") else f'"{name}"' for name in names.split())
        op.execute(f"DROP VIEW IF EXISTS {table}_readable")
        op.execute(f"CREATE VIEW {table}_readable AS SELECT {columns} FROM {table}")  # noqa: S608


def _iso(column: str) -> str:
    """SQL for an instant as people read it: 2026-01-31T09:30:00.000000Z."""
    return (
        f"strftime('%Y-%m-%dT%H:%M:%S', {column} / 1000000, 'unixepoch') || printf('.%06dZ', {column} % 1000000) "
        f"AS {column}"
    )
