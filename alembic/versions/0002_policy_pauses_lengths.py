"""What recovery, pauses and ``status`` need to know beyond 0001, and limits on the length of every text in an index.

It only adds, so code of revision 0001 goes on ticking on these tables.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.elements import conv

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

OLDEST_CODE = "0001"  # the oldest revision whose code may run on the database after this migration

FIRST_INSTANT = 100_000_000_000_000  # microseconds, as in 0001
LAST_INSTANT = 253_402_300_799_999_999

# A value of more than about 2,700 bytes does not fit into a PostgreSQL index: the INSERT into a partial index that does
# not cover the row yet would succeed, and every claim would fail. Bytes, so that both databases agree.
LONGEST_NAME = 1000
LONGEST_KEY = 2000

NAMES = ("job_type", "queue", "schedule", "enqueued_by")
KEYS = ("idempotency_key", "concurrency_key")


def upgrade() -> None:
    end_jobs_that_are_too_long()
    if is_postgresql():
        op.execute(WITHOUT_OLD_VERSIONS)
    extend_jobs()
    index_jobs_by_type()
    extend_ticks()
    extend_schedules_and_pauses()
    create_job_type_lists()
    create_crashing_types()
    extend_meta()
    if not is_postgresql():
        replace_readable_views()
    op.execute(f"UPDATE cronjobs_meta SET schema_revision = '{revision}', oldest_code = '{OLDEST_CODE}'")  # noqa: S608


def downgrade() -> None:
    raise RuntimeError("cronjobs' migrations only expand, and code of an older version runs on a newer schema")


# --- what differs between the databases -----------------------------------------------------------------------------


def is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def length(column: str) -> str:
    """SQL for the length of *column* in bytes."""
    return f"octet_length({column})" if is_postgresql() else f"length(CAST({column} AS BLOB))"


def now() -> str:
    if is_postgresql():
        return "statement_timestamp()"
    return (
        "(CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000)"
    )


def json_type() -> str:
    return "JSONB" if is_postgresql() else "TEXT"


def add_column(table: str, name: str, kind: str, *, default: str = "", check: tuple[str, str] | None = None) -> None:
    """Add a column and a CHECK (name, condition), which may be about other columns, too.

    SQLite takes a new CHECK only with a new column; it holds for the whole row all the same.
    """
    words = [f"ALTER TABLE {table} ADD COLUMN {name} {kind}"]
    if default:
        words.append(f"DEFAULT {default} NOT NULL")
    if check is None:
        op.execute(" ".join(words))
        return
    constraint = f"CONSTRAINT {table}_{check[0]}_ck CHECK ({check[1]})"
    if is_postgresql():
        op.execute(" ".join(words))
        op.execute(f"ALTER TABLE {table} ADD {constraint}")
    else:
        op.execute(" ".join([*words, constraint]))


def add_instant(table: str, name: str) -> None:
    if is_postgresql():
        add_column(table, name, "TIMESTAMP WITH TIME ZONE")
    else:
        add_column(table, name, "BIGINT", check=(f"{name}_microseconds", in_microseconds(name)))


def in_microseconds(column: str) -> str:
    return f"{column} IS NULL OR (typeof({column}) = 'integer' AND {column} BETWEEN {FIRST_INSTANT} AND {LAST_INSTANT})"


# --- jobs -----------------------------------------------------------------------------------------------------------


def longest(column: str) -> int:
    return LONGEST_KEY if column in KEYS else LONGEST_NAME


def end_jobs_that_are_too_long() -> None:
    """An unfinished row beyond a limit can neither stay as it is nor be claimed: it is dead, and says why."""
    for column in (*NAMES, *KEYS):
        reason = f"{column} is longer than {longest(column)} bytes: enqueue it again with a shorter one"
        op.execute(
            f"UPDATE cronjobs_jobs SET status = 'dead', finished_at = {now()}, locked_by = NULL, locked_until = NULL, "  # noqa: S608
            f"last_failed_at = {now()}, error_type = 'TooLong', last_error = '{reason}' "
            f"WHERE finished_at IS NULL AND {length(column)} > {longest(column)}"
        )


# An index that is made in this transaction would hold these rows as they were before it, too, and refuse their length.
# A table that is written anew has them only as they are now.
WITHOUT_OLD_VERSIONS = """
DO $cronjobs$ BEGIN
    IF EXISTS (SELECT 1 FROM cronjobs_jobs WHERE error_type = 'TooLong') THEN
        ALTER TABLE cronjobs_jobs ALTER COLUMN interruptions TYPE integer USING (interruptions + 0);
    END IF;
END $cronjobs$"""


def extend_jobs() -> None:
    # Final rows are exempt: one of them that is too long must not make every UPDATE of a batch fail.
    within = [f"({column} IS NULL OR {length(column)} <= {longest(column)})" for column in (*NAMES, *KEYS)]
    lengths = f"finished_at IS NOT NULL OR ({' AND '.join(within)})"
    add_column("cronjobs_jobs", "policy", json_type(), check=("lengths", lengths))
    add_instant("cronjobs_jobs", "dismissed_at")
    # Deaths that nobody has dealt with: "status" counts them, however many jobs have died in the past.
    # One that was retried and died again counts again.
    where = "status = 'dead' AND finished_at IS NOT NULL AND (dismissed_at IS NULL OR dismissed_at < finished_at)"
    op.execute(f"CREATE INDEX cronjobs_jobs_dead_idx ON cronjobs_jobs (finished_at) WHERE {where}")


def index_jobs_by_type() -> None:
    """So that jobs of types that nobody can run stand in nobody's way, however many they are."""
    waiting = "status IN ('queued', 'failed')"
    for name, timeout in (("type", "timeout_s IS NULL"), ("type_timed", "timeout_s IS NOT NULL")):
        op.execute(
            f"CREATE INDEX cronjobs_jobs_{name}_idx ON cronjobs_jobs (job_type, queue, priority, run_at, id) "
            f"WHERE {waiting} AND {timeout}"
        )
    op.execute(
        f"CREATE INDEX cronjobs_jobs_timeout_idx ON cronjobs_jobs (job_type, timeout_s) "
        f"WHERE {waiting} AND timeout_s IS NOT NULL"
    )


# --- the other tables -----------------------------------------------------------------------------------------------


def extend_ticks() -> None:
    add_column("cronjobs_ticks", "job_types", "TEXT")
    add_column("cronjobs_ticks", "schedules_on", "SMALLINT")
    add_column("cronjobs_ticks", "not_started", json_type())
    for name, columns in (("types_host", "host, id"), ("types_started", "started_at")):
        op.execute(f"CREATE INDEX cronjobs_ticks_{name}_idx ON cronjobs_ticks ({columns}) WHERE job_types IS NOT NULL")


def extend_schedules_and_pauses() -> None:
    # Without this CHECK an index would refuse longer ones, too, with words that nobody understands.
    name_length = ("name_length", f"{length('name')} <= {LONGEST_NAME}")
    add_column("cronjobs_schedules", "owed", json_type(), check=name_length)
    add_column("cronjobs_pauses", "skip", "SMALLINT", default="0", check=name_length)


def create_job_type_lists() -> None:
    table = "cronjobs_job_type_lists"
    json: Any = postgresql.JSONB() if is_postgresql() else sa.Text()
    op.create_table(
        table,
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("names", json, nullable=False),
        instant("recorded_at"),
        sa.PrimaryKeyConstraint("hash", name=conv(f"{table}_pk")),
        *instant_checks(table, "recorded_at"),
    )


def create_crashing_types() -> None:
    table = "cronjobs_crashing_types"
    op.create_table(
        table,
        sa.Column("job_type", sa.Text(), nullable=False),
        instant("found_at"),
        sa.Column("clean_ends", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("runner", sa.Text()),
        sa.Column("suspected", sa.SmallInteger(), nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("job_type", name=conv(f"{table}_pk")),
        *instant_checks(table, "found_at"),
    )


def extend_meta() -> None:
    add_column("cronjobs_meta", "prune_from", json_type())


def instant(name: str) -> sa.Column[Any]:
    """An instant whose default is the database's clock."""
    kind: Any = postgresql.TIMESTAMP(timezone=True) if is_postgresql() else sa.BigInteger()
    return sa.Column(name, kind, nullable=False, server_default=sa.text(now()))


def instant_checks(table: str, *columns: str) -> list[sa.CheckConstraint]:
    if is_postgresql():
        return []
    return [
        sa.CheckConstraint(in_microseconds(column), name=conv(f"{table}_{column}_microseconds_ck"))
        for column in columns
    ]


# --- views ----------------------------------------------------------------------------------------------------------

# Table → columns of its readable view; those with a star are instants.
READABLE = {
    "cronjobs_jobs": "id job_type payload meta queue priority status *run_at attempts failures losses interruptions "
    "max_attempts timeout_s locked_by *locked_until idempotency_key concurrency_key schedule *scheduled_for last_error "
    "error_type *last_failed_at result enqueued_by *cancel_requested_at *created_at *started_at *finished_at policy "
    "*dismissed_at",
    "cronjobs_schedules": "id name definition fingerprint status *seen_until *next_at owed",
    "cronjobs_ticks": "id tick host boot_id pid version fingerprint *started_at *finished_at did ended job_types "
    "schedules_on not_started",
    "cronjobs_pauses": "scope name *until by why *paused_at skip",
    "cronjobs_job_type_lists": "hash names *recorded_at",
    "cronjobs_crashing_types": "job_type *found_at clean_ends runner suspected",
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
