"""Create all tables, indexes and views, and on PostgreSQL the functions.

The migration writes everything out instead of using ``cronjobs.engine.database.tables``, because a migration must not
change when the tables change. Until 0.2.0 is published, we edit this migration in place. Names have no schema, because
the code that runs migrations has set the search_path to our schema.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.elements import conv

from alembic import op

# The first number is 0012, because versions before 0.2.0 used 0001 to 0011. A database of such a version must not be
# mistaken for a database of this version.
revision = "0012"
down_revision = None
branch_labels = None
depends_on = None

OLDEST_CODE = "0012"  # the oldest revision whose code may run on the database after this migration

# SQLite stores instants as microseconds. Instants that were written as seconds or milliseconds are below this range,
# and nanoseconds are above it.
FIRST_INSTANT = 100_000_000_000_000
LAST_INSTANT = 253_402_300_799_999_999
IN_RANGE = "BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'"

SQLITE_NOW = (
    "(CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000)"
)

WAITING = "status IN ('queued', 'failed')"

# A value of more than about 2,700 bytes does not fit into a PostgreSQL index. If a row with such a value is not in the
# partial index yet, its INSERT would succeed, but then every claim would fail. The limits are in bytes, because both
# databases can count bytes.
LONGEST_NAME = 1000
LONGEST_KEY = 2000

# Matches a number beyond 1e400 or -1e400, or with more than 400 decimals. The path is strict, because lax mode would
# visit the items of an array twice. The last condition counts decimals. If the number has n decimals, and n is above
# sixteen, the quotient 1 / 3 has n decimals too. Three times this quotient is 1 - 10^-n (compare 0.33 * 3).
ODD_NUMBERS = "strict $.** ? (@ > 1e400 || @ < -1e400 || (@ - @ + 1) / 3 * 3 > 1 - 1e-400)"


def upgrade() -> None:
    create_jobs()
    index_jobs()
    create_job_runs()
    create_schedules()
    create_occurrences()
    create_ticks()
    create_job_type_lists()
    create_crashing_types()
    create_effects()
    create_queues()
    create_pauses()
    create_audit()
    create_counts()
    create_acks()
    create_findings()
    create_alerts()
    create_quarters()
    create_tokens()
    create_meta()
    create_views()
    if is_postgresql():
        keep_small()
        create_functions()


def downgrade() -> None:
    raise RuntimeError('there is nothing below this revision: to remove cronjobs, run "cronjobs db drop"')


# --- differences between the databases --------------------------------------------------------------------------------


def is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def row_id() -> sa.Column[Any]:
    # SQLite assigns ids by itself only in a column that is exactly INTEGER PRIMARY KEY.
    return sa.Column("id", sa.BigInteger() if is_postgresql() else sa.Integer(), sa.Identity(), nullable=False)


def instant(name: str, *, null: bool = True, now: bool = False) -> sa.Column[Any]:
    """timestamptz on PostgreSQL, microseconds on SQLite.

    With *now*, the default is the time by the database's clock.
    """
    kind: Any = postgresql.TIMESTAMP(timezone=True) if is_postgresql() else sa.BigInteger()
    default = sa.text("statement_timestamp()" if is_postgresql() else SQLITE_NOW) if now else None
    return sa.Column(name, kind, nullable=null, server_default=default)


def json(name: str, *, null: bool = True, empty: bool = False) -> sa.Column[Any]:
    """jsonb on PostgreSQL, text on SQLite. With *empty*, the default is {}."""
    kind: Any = postgresql.JSONB() if is_postgresql() else sa.Text()
    return sa.Column(name, kind, nullable=null, server_default=sa.text("'{}'") if empty else None)


def text(name: str, *, null: bool = True, default: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=null, server_default=None if default is None else sa.text(default))


def count(name: str, kind: Any = sa.Integer, default: str = "0") -> sa.Column[Any]:
    return sa.Column(name, kind(), nullable=False, server_default=sa.text(default))


def caller(name: str) -> sa.Column[Any]:
    """A text column whose default names the connected role and application, if the database knows them."""
    known = "concat_ws('/', CURRENT_USER, nullif(current_setting('application_name', true), ''))"
    return text(name, default=known if is_postgresql() else "NULL")


def check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=conv(f"{table}_{name}_ck"))


def instant_checks(table: str, *columns: str) -> list[sa.CheckConstraint]:
    if is_postgresql():
        return []
    return [
        check(
            table,
            f"{column}_microseconds",
            f"{column} IS NULL OR (typeof({column}) = 'integer' AND {column} BETWEEN {FIRST_INSTANT} "
            f"AND {LAST_INSTANT})",
        )
        for column in columns
    ]


def length(column: str) -> str:
    """Return SQL for the length of *column* in bytes."""
    return f"octet_length({column})" if is_postgresql() else f"length(CAST({column} AS BLOB))"


def name_length(table: str) -> sa.CheckConstraint:
    # Without this CHECK, an index would refuse longer names, with a message that nobody understands.
    return check(table, "name_length", f"{length('name')} <= {LONGEST_NAME}")


def primary_key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=conv(f"{table}_pk"))


def unique(table: str, column: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(column, name=conv(f"{table}_{column}_key"))


def index(name: str, table: str, columns: str, where: str | None = None, *, unique: bool = False) -> None:
    condition = None if where is None else sa.text(where)
    op.create_index(
        f"cronjobs_{name}_idx",
        table,
        columns.split(),
        postgresql_where=condition,
        sqlite_where=condition,
        unique=unique,
    )


# --- jobs -------------------------------------------------------------------------------------------------------------


def create_jobs() -> None:
    table = "cronjobs_jobs"
    # Rows in a final status are exempt. Otherwise a row with a value that is too long would make every UPDATE of its
    # batch fail.
    longest = dict.fromkeys(("job_type", "queue", "schedule", "enqueued_by"), LONGEST_NAME)
    longest |= dict.fromkeys(("idempotency_key", "concurrency_key"), LONGEST_KEY)
    # SQLite tests the CHECKs in the order in which this function creates them, and reports only the first that fails.
    # So the CHECK on types comes first.
    of_this_kind = of_jobs_on_postgresql(table) if is_postgresql() else of_jobs_on_sqlite(table)
    within = " AND ".join(f"({column} IS NULL OR {length(column)} <= {most})" for column, most in longest.items())
    op.create_table(
        table,
        row_id(),
        text("job_type", null=False),
        json("payload", null=False, empty=True),
        json("meta", null=False, empty=True),
        text("queue", null=False, default="'default'"),
        count("priority", sa.SmallInteger, "5"),
        text("status", null=False, default="'queued'"),
        instant("run_at", null=False, now=True),
        count("attempts"),
        count("failures"),
        count("losses"),
        count("interruptions"),
        sa.Column("max_attempts", sa.Integer()),
        sa.Column("timeout_s", sa.Float()),
        text("locked_by"),
        instant("locked_until"),
        text("idempotency_key"),
        text("concurrency_key"),
        text("schedule"),
        instant("scheduled_for"),
        text("last_error"),
        text("error_type"),
        instant("last_failed_at"),
        json("result"),
        caller("enqueued_by"),
        instant("cancel_requested_at"),
        instant("created_at", null=False, now=True),
        instant("started_at"),
        instant("finished_at"),
        json("policy"),
        instant("dismissed_at"),
        json("progress"),
        text("live_output"),
        text("released_key"),
        instant("misfit_since"),
        primary_key(table, "id"),
        unique(table, "idempotency_key"),
        check(table, "status", "status IN ('queued', 'running', 'succeeded', 'failed', 'dead', 'cancelled')"),
        check(
            table,
            "leased_when_running",
            "(status = 'running') = (locked_by IS NOT NULL) AND (status = 'running') = (locked_until IS NOT NULL)",
        ),
        check(
            table, "finished_when_final", "(status IN ('succeeded', 'dead', 'cancelled')) = (finished_at IS NOT NULL)"
        ),
        check(table, "priority", "priority BETWEEN 0 AND 9"),
        check(table, "counters", "attempts >= 0 AND failures >= 0 AND losses >= 0 AND interruptions >= 0"),
        check(table, "max_attempts", "max_attempts IS NULL OR max_attempts >= 1"),
        check(table, "timeout_s", "timeout_s IS NULL OR timeout_s > 0"),
        check(table, "lengths", f"finished_at IS NOT NULL OR ({within})"),
        # exec rows report what cron ran under a name. Only exec writes such rows, and it inserts them as running. The
        # arguments of substr have no spaces, because Django's inspectdb mistakes ", 1" in SQLite's CREATE TABLE for a
        # column, and fails.
        check(
            table,
            "exec_began",
            "substr(job_type,1,5) <> 'exec:' OR started_at IS NOT NULL OR finished_at IS NOT NULL",
        ),
        *of_this_kind,
        sqlite_autoincrement=True,  # otherwise SQLite would reuse the id of a pruned job
    )


def of_jobs_on_postgresql(table: str) -> list[sa.CheckConstraint]:
    """CHECKs for PostgreSQL, because anyone may INSERT.

    Instants must not be "infinity", or in a year that programs cannot represent. The CHECK on numbers applies only
    before a job's first claim, because checking a large payload takes as long as parsing it.
    """
    odd = " OR ".join(f"jsonb_path_exists({column}, '{ODD_NUMBERS}')" for column in ("payload", "meta"))
    instants = ("run_at", "created_at", "scheduled_for", "started_at")
    return [
        check(table, "numbers", f"attempts > 0 OR finished_at IS NOT NULL OR NOT ({odd})"),
        check(table, "instants", " AND ".join(f"{column} {IN_RANGE}" for column in instants)),
    ]


def of_jobs_on_sqlite(table: str) -> list[sa.CheckConstraint]:
    # SQLite accepts any type in any column.
    types = check(
        table,
        "types",
        "typeof(job_type) = 'text' AND typeof(queue) = 'text' AND typeof(priority) = 'integer' "
        "AND typeof(attempts) = 'integer' AND typeof(failures) = 'integer' AND typeof(losses) = 'integer' "
        "AND typeof(interruptions) = 'integer' AND typeof(max_attempts) IN ('integer', 'null') "
        "AND typeof(timeout_s) IN ('integer', 'real', 'null') AND typeof(idempotency_key) IN ('text', 'null') "
        "AND typeof(payload) = 'text' AND typeof(meta) = 'text' AND typeof(schedule) IN ('text', 'null') "
        "AND typeof(concurrency_key) IN ('text', 'null')",
    )
    instants = instant_checks(
        table,
        "run_at",
        "locked_until",
        "scheduled_for",
        "last_failed_at",
        "cancel_requested_at",
        "created_at",
        "started_at",
        "finished_at",
        "dismissed_at",
        "misfit_since",
    )
    return [types, *instants]


def index_jobs() -> None:
    """The purpose of each index is described in ``cronjobs/engine/database/indexes.py``."""
    table = "cronjobs_jobs"
    index("jobs_waiting", table, "queue priority run_at id", WAITING)
    index("jobs_unread", table, "id", f"error_type = 'NotRead' AND {WAITING}")
    index("jobs_type", table, "job_type queue priority run_at id", f"{WAITING} AND timeout_s IS NULL")
    index("jobs_type_timed", table, "job_type queue priority run_at id", f"{WAITING} AND timeout_s IS NOT NULL")
    index("jobs_timeout", table, "job_type timeout_s", f"{WAITING} AND timeout_s IS NOT NULL")
    index("jobs_misfit", table, "job_type misfit_since id", f"{WAITING} AND misfit_since IS NOT NULL")
    index("jobs_leased", table, "locked_until", "locked_until IS NOT NULL")
    index("jobs_schedule", table, "schedule", "schedule IS NOT NULL AND finished_at IS NULL")
    index("jobs_concurrency", table, "concurrency_key", "concurrency_key IS NOT NULL AND locked_until IS NOT NULL")
    index("jobs_finished", table, "status finished_at", "finished_at IS NOT NULL")
    index(
        "jobs_dead",
        table,
        "finished_at",
        "status = 'dead' AND finished_at IS NOT NULL AND (dismissed_at IS NULL OR dismissed_at < finished_at)",
    )
    index(
        "jobs_cancelled",
        table,
        "status finished_at",
        "status = 'cancelled' AND finished_at IS NOT NULL AND cancel_requested_at IS NOT NULL",
    )
    index("jobs_exec", table, "job_type run_at id", "substr(job_type, 1, 5) = 'exec:' AND started_at IS NOT NULL")
    index("jobs_released_key", table, "released_key", "released_key IS NOT NULL")


# --- the other tables -------------------------------------------------------------------------------------------------


def create_job_runs() -> None:
    table = "cronjobs_job_runs"
    op.create_table(
        table,
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        text("outcome", null=False),
        instant("started_at", null=False),
        instant("finished_at", null=False),
        text("runner", null=False),
        text("worker"),
        text("error_type"),
        text("error"),
        text("traceback"),
        text("output"),
        primary_key(table, "job_id", "attempt"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["cronjobs_jobs.id"], name=conv("cronjobs_job_runs_job_id_fk"), ondelete="CASCADE"
        ),
        check(
            table,
            "outcome",
            "outcome IN ('succeeded', 'failed', 'timed_out', 'lost', 'interrupted', 'cancelled', 'snoozed')",
        ),
        *instant_checks(table, "started_at", "finished_at"),
    )
    index("job_runs_finished", table, "finished_at")


def create_schedules() -> None:
    table = "cronjobs_schedules"
    op.create_table(
        table,
        row_id(),
        text("name", null=False),
        json("definition", null=False),
        text("fingerprint", null=False),
        text("status", null=False, default="'active'"),
        instant("seen_until", null=False),
        instant("next_at"),
        json("owed"),
        primary_key(table, "id"),
        unique(table, "name"),
        check(table, "status", "status IN ('active', 'retired')"),
        name_length(table),
        *instant_checks(table, "seen_until", "next_at"),
        sqlite_autoincrement=True,
    )


def create_occurrences() -> None:
    table = "cronjobs_occurrences"
    op.create_table(
        table,
        sa.Column("schedule_id", sa.BigInteger(), nullable=False),
        instant("first_for", null=False),
        instant("last_for", null=False),
        count("count", default="1"),
        text("outcome", null=False),
        text("reason"),
        sa.Column("job_id", sa.BigInteger()),
        instant("decided_at", null=False, now=True),
        sa.Column("tick", sa.BigInteger()),
        primary_key(table, "schedule_id", "last_for"),
        check(table, "outcome", "outcome IN ('enqueued', 'skipped', 'missed', 'coalesced')"),
        check(table, "range", "count >= 1 AND first_for <= last_for"),
        *instant_checks(table, "first_for", "last_for", "decided_at"),
    )
    index("occurrences_job", table, "job_id", "job_id IS NOT NULL")
    index("occurrences_last_for", table, "last_for")


def create_ticks() -> None:
    table = "cronjobs_ticks"
    op.create_table(
        table,
        row_id(),
        text("tick", null=False),
        text("host", null=False),
        text("boot_id"),
        sa.Column("pid", sa.Integer(), nullable=False),
        text("version", null=False),
        text("config"),
        text("fingerprint"),
        instant("started_at", null=False),
        instant("finished_at"),
        json("did", null=False, empty=True),
        text("ended"),
        text("job_types"),
        sa.Column("schedules_on", sa.SmallInteger()),
        json("not_started"),
        primary_key(table, "id"),
        unique(table, "tick"),
        *instant_checks(table, "started_at", "finished_at"),
        sqlite_autoincrement=True,
    )
    index("ticks_host", table, "host id")
    index("ticks_started", table, "started_at")
    index("ticks_types_host", table, "host id", "job_types IS NOT NULL")
    index("ticks_types_started", table, "started_at", "job_types IS NOT NULL")


def create_job_type_lists() -> None:
    table = "cronjobs_job_type_lists"
    op.create_table(
        table,
        text("hash", null=False),
        json("names", null=False),
        instant("recorded_at", null=False, now=True),
        primary_key(table, "hash"),
        *instant_checks(table, "recorded_at"),
    )


def create_crashing_types() -> None:
    table = "cronjobs_crashing_types"
    op.create_table(
        table,
        text("job_type", null=False),
        instant("found_at", null=False, now=True),
        count("clean_ends"),
        text("runner"),
        count("suspected", sa.SmallInteger),
        primary_key(table, "job_type"),
        *instant_checks(table, "found_at"),
    )


def create_effects() -> None:
    table = "cronjobs_effects"
    op.create_table(
        table,
        text("key", null=False),
        sa.Column("job_id", sa.BigInteger()),
        sa.Column("attempt", sa.Integer()),
        text("state", null=False, default="'begun'"),
        instant("begun_at", null=False, now=True),
        instant("recorded_at"),
        json("result"),
        count("repeats"),
        primary_key(table, "key"),
        check(table, "state", "state IN ('begun', 'recorded', 'skipped', 'stopped')"),
        check(table, "recorded_when_recorded", "(state = 'recorded') = (recorded_at IS NOT NULL)"),
        *instant_checks(table, "begun_at", "recorded_at"),
    )
    index("effects_job", table, "job_id")
    index("effects_begun", table, "begun_at")


def create_queues() -> None:
    table = "cronjobs_queues"
    op.create_table(
        table,
        text("name", null=False),
        sa.Column("max_waiting", sa.Integer()),
        text("on_full", null=False, default="'error'"),
        count("dropped", sa.BigInteger),
        count("refused", sa.BigInteger),
        primary_key(table, "name"),
        check(table, "on_full", "on_full IN ('error', 'drop', 'wait')"),
        check(table, "max_waiting", "max_waiting IS NULL OR max_waiting >= 0"),
    )
    if is_postgresql():
        op.execute(f"CREATE SEQUENCE cronjobs_queues_held OWNED BY {table}.name")


def create_pauses() -> None:
    table = "cronjobs_pauses"
    op.create_table(
        table,
        text("scope", null=False),
        text("name", null=False, default="''"),
        instant("until"),
        text("by"),
        text("why"),
        instant("paused_at", null=False, now=True),
        count("skip", sa.SmallInteger),
        primary_key(table, "scope", "name"),
        check(table, "scope", "scope IN ('all', 'queue', 'schedule')"),
        name_length(table),
        *instant_checks(table, "until", "paused_at"),
    )


def create_audit() -> None:
    table = "cronjobs_audit"
    op.create_table(
        table,
        row_id(),
        instant("at", null=False, now=True),
        caller("actor"),
        text("host"),
        text("action", null=False),
        text("subject", null=False, default="''"),
        text("why"),
        json("detail"),
        primary_key(table, "id"),
        *instant_checks(table, "at"),
        sqlite_autoincrement=True,
    )
    index("audit_subject", table, "action subject at")


def create_counts() -> None:
    kept, new = "cronjobs_counts", "cronjobs_new_counts"
    op.create_table(kept, *counted(), primary_key(kept, "at_hour", "kind", "name", "outcome", "bucket"))
    op.create_table(new, row_id(), *counted(), primary_key(new, "id"))


def counted() -> list[Any]:
    return [
        sa.Column("at_hour", sa.BigInteger(), nullable=False),
        text("kind", null=False),
        text("name", null=False),
        text("outcome", null=False),
        sa.Column("bucket", sa.SmallInteger(), nullable=False),
        count("count", sa.BigInteger),
        count("micros", sa.Float),
        sa.Column("longest", sa.BigInteger()),
        sa.Column("newest", sa.BigInteger()),
    ]


def create_acks() -> None:
    table = "cronjobs_acks"
    op.create_table(
        table,
        text("finding", null=False),
        text("severity", null=False),
        json("rows", null=False),
        instant("until", null=False),
        text("by"),
        text("why"),
        instant("acked_at", null=False, now=True),
        primary_key(table, "finding"),
        check(table, "severity", "severity IN ('critical', 'warning', 'notice')"),
        *instant_checks(table, "until", "acked_at"),
    )


def create_findings() -> None:
    table = "cronjobs_findings"
    op.create_table(
        table,
        row_id(),
        text("finding", null=False),
        text("kind", null=False),
        text("severity", null=False),
        text("text", null=False),
        text("command"),
        json("rows", null=False),
        text("host", null=False, default="''"),
        instant("began_at", null=False),
        instant("found_at", null=False, now=True),
        instant("ended_at"),
        primary_key(table, "id"),
        check(table, "severity", "severity IN ('critical', 'warning', 'notice')"),
        *instant_checks(table, "began_at", "found_at", "ended_at"),
        sqlite_autoincrement=True,
    )
    index("findings_open", table, "finding", "ended_at IS NULL", unique=True)
    index("findings_ended", table, "ended_at")


def create_alerts() -> None:
    table = "cronjobs_alerts"
    op.create_table(
        table,
        sa.Column("finding_id", sa.BigInteger(), nullable=False),
        text("channel", null=False),
        instant("due_at"),
        count("over", sa.SmallInteger),
        text("severity"),
        json("rows"),
        instant("first_at"),
        instant("sent_at"),
        count("sent"),
        instant("failed_at"),
        count("failures"),
        text("error"),
        text("locked_by"),
        instant("locked_until"),
        primary_key(table, "finding_id", "channel"),
        *instant_checks(table, "due_at", "first_at", "sent_at", "failed_at", "locked_until"),
    )
    index("alerts_due", table, "due_at", "due_at IS NOT NULL")


def create_quarters() -> None:
    table = "cronjobs_quarters"
    op.create_table(
        table,
        sa.Column("schedule_id", sa.BigInteger(), nullable=False),
        instant("hour", null=False),
        text("quarters", null=False),
        primary_key(table, "schedule_id", "hour"),
        *instant_checks(table, "hour"),
    )


def create_tokens() -> None:
    table = "cronjobs_tokens"
    op.create_table(
        table,
        sa.Column("job_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        text("token", null=False),
        text("holder"),
        instant("taken_at"),
        instant("permitted_until"),
        text("ended"),
        primary_key(table, "job_id"),
        check(table, "taken", "(holder IS NULL) = (taken_at IS NULL) AND (holder IS NULL) = (permitted_until IS NULL)"),
        *instant_checks(table, "taken_at", "permitted_until"),
    )


def create_meta() -> None:
    table = "cronjobs_meta"
    op.create_table(
        table,
        sa.Column("id", sa.Integer(), nullable=False, server_default=sa.text("1"), autoincrement=False),
        text("project", null=False, default="''"),
        text("environment", null=False, default="''"),
        text("schema_revision", null=False),
        text("oldest_code", null=False),
        instant("pruned_at"),
        json("prune_from"),
        instant("look_at"),
        primary_key(table, "id"),
        check(table, "one_row", "id = 1"),
        *instant_checks(table, "pruned_at", "look_at"),
    )
    op.execute(
        f"INSERT INTO cronjobs_meta (schema_revision, oldest_code) VALUES ('{revision}', '{OLDEST_CODE}')"  # noqa: S608
    )


# --- keeping it small -------------------------------------------------------------------------------------------------

# By default PostgreSQL vacuums a table when a fifth of its rows are dead. For a million jobs, that is after 200,000
# dead rows, and a claim may have to step over all their index entries. Each job leaves two dead rows (its claim and its
# end) and a third when it is pruned. The rows of its attempt, its occurrence and its tick leave one dead row each. So
# PostgreSQL vacuums the jobs when a fiftieth of the rows are dead, and the other tables when a twentieth are dead. The
# vacuum's cost limits stay at the server's defaults, with which a vacuum of a million jobs takes seconds (ADR 19).
#
# Jobs have no fill factor. A claim and an end change columns of the partial indexes, so neither is ever a HOT update,
# and free space in the pages would only make the table larger. The watermarks of schedules and the counts are in no
# index. If the page has room, their new row versions stay in the page, and the next reader of the page cleans up
# without a vacuum.
STORAGE = {
    "cronjobs_jobs": "autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02",
    "cronjobs_job_runs": "autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05",
    "cronjobs_occurrences": "autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05",
    "cronjobs_ticks": "autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05",
    "cronjobs_schedules": "fillfactor = 50",
    "cronjobs_counts": "fillfactor = 70",
}


def keep_small() -> None:
    for table, options in STORAGE.items():
        op.execute(f"ALTER TABLE {table} SET ({options})")


# --- views ------------------------------------------------------------------------------------------------------------

DEAD = (
    "id, job_type, queue, priority, schedule, failures, losses, attempts, error_type, last_error, last_failed_at, "
    "finished_at, created_at, idempotency_key, enqueued_by, payload"
)

# For SQLite only: the columns of each table's readable view. A star marks an instant.
READABLE = {
    "cronjobs_jobs": "id job_type payload meta queue priority status *run_at attempts failures losses interruptions "
    "max_attempts timeout_s locked_by *locked_until idempotency_key concurrency_key schedule *scheduled_for last_error "
    "error_type *last_failed_at result enqueued_by *cancel_requested_at *created_at *started_at *finished_at policy "
    "*dismissed_at progress live_output released_key *misfit_since",
    "cronjobs_job_runs": "job_id attempt outcome *started_at *finished_at runner worker error_type error traceback "
    "output",
    "cronjobs_schedules": "id name definition fingerprint status *seen_until *next_at owed",
    "cronjobs_occurrences": "schedule_id *first_for *last_for count outcome reason job_id *decided_at tick",
    "cronjobs_ticks": "id tick host boot_id pid version config fingerprint *started_at *finished_at did ended "
    "job_types schedules_on not_started",
    "cronjobs_job_type_lists": "hash names *recorded_at",
    "cronjobs_crashing_types": "job_type *found_at clean_ends runner suspected",
    "cronjobs_effects": "key job_id attempt state *begun_at *recorded_at result repeats",
    "cronjobs_pauses": "scope name *until by why *paused_at skip",
    "cronjobs_audit": "id *at actor host action subject why detail",
    "cronjobs_acks": "finding severity rows *until by why *acked_at",
}


def create_views() -> None:
    if is_postgresql():
        op.execute(f"CREATE VIEW cronjobs_dead_jobs AS SELECT {DEAD} FROM cronjobs_jobs WHERE status = 'dead'")  # noqa: S608
        op.execute(LONG_RUNNING)
        return
    for table, names in READABLE.items():
        columns = ", ".join(_iso(name[1:]) if name.startswith("*") else f'"{name}"' for name in names.split())
        op.execute(f"CREATE VIEW {table}_readable AS SELECT {columns} FROM {table}")  # noqa: S608
    columns = ", ".join(_iso(name) if name.endswith("_at") else name for name in DEAD.split(", "))
    op.execute(f"CREATE VIEW cronjobs_dead_jobs AS SELECT {columns} FROM cronjobs_jobs WHERE status = 'dead'")  # noqa: S608
    op.execute(long_running_of_sqlite())


LONG_RUNNING = """
CREATE VIEW cronjobs_long_running_jobs AS
SELECT id, job_type, queue, schedule, attempts, timeout_s, started_at, locked_by, locked_until,
       extract(epoch FROM statement_timestamp() - started_at)::float8 AS running_s,
       CASE WHEN locked_until < statement_timestamp() THEN 'its lease ran out'
            WHEN started_at + make_interval(secs => timeout_s) < statement_timestamp() THEN 'beyond its timeout'
            ELSE 'more than an hour' END AS why
FROM cronjobs_jobs
WHERE locked_until IS NOT NULL
  AND (locked_until < statement_timestamp()
       OR started_at + make_interval(secs => timeout_s) < statement_timestamp()
       OR started_at < statement_timestamp() - interval '1 hour')
"""


def long_running_of_sqlite() -> str:
    return f"""
CREATE VIEW cronjobs_long_running_jobs AS
SELECT id, job_type, queue, schedule, attempts, timeout_s, {_iso("started_at")}, locked_by, {_iso("locked_until")},
       ({SQLITE_NOW} - started_at) / 1000000.0 AS running_s,
       CASE WHEN locked_until < {SQLITE_NOW} THEN 'its lease ran out'
            WHEN started_at + timeout_s * 1000000 < {SQLITE_NOW} THEN 'beyond its timeout'
            ELSE 'more than an hour' END AS why
FROM cronjobs_jobs
WHERE locked_until IS NOT NULL
  AND (locked_until < {SQLITE_NOW}
       OR started_at + timeout_s * 1000000 < {SQLITE_NOW}
       OR started_at < {SQLITE_NOW} - 3600000000)
"""  # noqa: S608


def _iso(column: str) -> str:
    """Return SQL that formats an instant for people: 2026-01-31T09:30:00.000000Z."""
    return (
        f"strftime('%Y-%m-%dT%H:%M:%S', {column} / 1000000, 'unixepoch') || printf('.%06dZ', {column} % 1000000) "
        f"AS {column}"
    )


# --- functions --------------------------------------------------------------------------------------------------------


def create_functions() -> None:
    op.execute(ENQUEUE.replace("{ODD_NUMBERS}", ODD_NUMBERS))
    # These functions run with the rights of the tables' owner. "cronjobs db grants" decides who may call them.
    for function in (LOCK_QUEUES, COUNT_FULL, CANCEL, RESCHEDULE, TAKE_TOKEN, CONFIRM_PERMIT):
        op.execute(function)
        name = function.partition("CREATE FUNCTION ")[2].partition("(")[0]
        op.execute(f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC")


# SET search_path FROM CURRENT stores the schema that the migration was pinned to. So a function finds its tables
# whatever the caller's search_path is. pg_temp is last, so that nobody's temporary table can replace one of our tables.
# The SQL must contain no percent sign, because the driver would double it in offline SQL.
ENQUEUE = r"""
CREATE FUNCTION cronjobs_enqueue(
    job_type text,
    payload jsonb DEFAULT '{}',
    run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    queue text DEFAULT 'default',
    priority int DEFAULT 5,
    idempotency_key text DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    max_attempts int DEFAULT NULL,
    timeout_s float8 DEFAULT NULL,
    meta jsonb DEFAULT '{}',
    enqueued_by text DEFAULT NULL
) RETURNS TABLE (id bigint, new boolean, status text)
LANGUAGE plpgsql VOLATILE SECURITY INVOKER
SET search_path FROM CURRENT
AS $cronjobs$
#variable_conflict use_column
DECLARE
    given ALIAS FOR $7;
    wanted_queue text := coalesce($5, 'default');
    most int;
    then_do text;
BEGIN
    IF coalesce(btrim($1), '') = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'cronjobs_enqueue: job_type is empty';
    END IF;
    IF substr($1, 1, 5) = 'exec:' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'cronjobs_enqueue: job_type "' || $1
            || '" begins with "exec:", which is reserved for "cronjobs exec": choose another name';
    END IF;
    IF jsonb_typeof($2) <> 'object' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_enqueue: payload is a JSON object, not of type ' || jsonb_typeof($2);
    END IF;
    -- Before anything writes it as text.
    IF jsonb_path_exists($2, '{ODD_NUMBERS}') THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_enqueue: payload has a number beyond 1e400 or -1e400, or with more than 400 decimals: '
                || 'pass it as a text';
    END IF;
    IF jsonb_path_exists($11, '{ODD_NUMBERS}') THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_enqueue: meta has a number beyond 1e400 or -1e400, or with more than 400 decimals: '
                || 'pass it as a text';
    END IF;
    IF $3 IS NOT NULL AND $4 IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_enqueue: give run_at or delay, not both';
    END IF;
    IF given = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_enqueue: idempotency_key is empty (was it made before the row had its id?)';
    END IF;
    -- Looked for first: an INSERT would wait for an open transaction that has changed the row of this key. Again only
    -- when a row was in the way of the INSERT, or was deleted between the two statements.
    FOR try IN 1..10 LOOP
        RETURN QUERY
            SELECT j.id, false, j.status FROM cronjobs_jobs j WHERE j.idempotency_key = given;
        IF FOUND THEN
            RETURN;
        END IF;
        -- Others who enqueue into a capped queue wait for its row, and none of them for ever.
        IF most IS NULL AND EXISTS (SELECT FROM cronjobs_queues q
                                   WHERE q.name = wanted_queue AND q.max_waiting IS NOT NULL) THEN
            BEGIN
                SELECT q.max_waiting, q.on_full INTO most, then_do
                FROM cronjobs_lock_queues(ARRAY[wanted_queue], true) q;
            EXCEPTION WHEN lock_not_available THEN
                PERFORM cronjobs_count_full(wanted_queue, 'held', 1);
                RAISE EXCEPTION USING ERRCODE = 'lock_not_available',
                    MESSAGE = 'cronjobs_enqueue: another open transaction has enqueued into queue "' || wanted_queue
                        || '", whose jobs are counted: nothing was written',
                    HINT = 'Enqueue again: after ROLLBACK TO SAVEPOINT this transaction can be used.';
            END;
            CONTINUE;  -- whoever had the row may have spent the key
        END IF;
        IF most <= (SELECT count(*) FROM (
               SELECT FROM cronjobs_jobs j WHERE j.queue = wanted_queue AND j.status IN ('queued', 'failed')
               LIMIT most) waiting) THEN
            IF then_do = 'drop' THEN
                PERFORM cronjobs_count_full(wanted_queue, 'dropped', 1);
                RETURN QUERY SELECT NULL::bigint, false, NULL::text;
                RETURN;
            END IF;
            RAISE EXCEPTION USING ERRCODE = 'CJ001',
                MESSAGE = 'cronjobs_enqueue: queue "' || wanted_queue || '" is full (max_waiting '
                    || most || '): nothing was written',
                HINT = 'Enqueue again later, or raise max_waiting in the file.';
        END IF;
        RETURN QUERY
            INSERT INTO cronjobs_jobs (job_type, payload, meta, queue, priority, run_at, idempotency_key,
                                       concurrency_key, max_attempts, timeout_s, enqueued_by)
            VALUES ($1, coalesce($2, '{}'), coalesce($11, '{}'), wanted_queue, coalesce($6, 5),
                    coalesce($3, statement_timestamp() + coalesce($4, interval '0')), given, $8, $9, $10,
                    coalesce($12, concat_ws('/', CURRENT_USER, nullif(current_setting('application_name', true), ''))))
            ON CONFLICT (idempotency_key) DO NOTHING
            RETURNING cronjobs_jobs.id, true, cronjobs_jobs.status;
        IF FOUND THEN
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
        MESSAGE = 'cronjobs_enqueue: the job with this idempotency_key comes and goes: try again';
END
$cronjobs$
"""

# The functions below run with their owner's rights. So they call built-in functions with the schema's name. Without the
# name, PostgreSQL might choose a function of another user that matches the arguments better, and that function would
# get the owner's rights. To name the caller, the functions use session_user, because CURRENT_USER is the owner.

# An enqueuer has no right to update a queue's row. These functions lock the row and write its counters for the
# enqueuer.
LOCK_QUEUES = r"""
CREATE FUNCTION cronjobs_lock_queues(names text[], wait boolean)
RETURNS TABLE (name text, max_waiting int, on_full text, mine boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
AS $cronjobs$
#variable_conflict use_column
DECLARE
    patience text := pg_catalog.current_setting('lock_timeout');
BEGIN
    IF $2 THEN
        IF patience = '0' THEN
            PERFORM pg_catalog.set_config('lock_timeout', '10s', true);
        END IF;
        PERFORM FROM cronjobs_queues q WHERE q.name = ANY ($1) AND q.max_waiting IS NOT NULL
        ORDER BY q.name FOR NO KEY UPDATE;
        PERFORM pg_catalog.set_config('lock_timeout', patience, true);
    END IF;
    -- Skips rows that another session has locked: whoever does not wait tries again.
    RETURN QUERY
        WITH locked AS MATERIALIZED (
            SELECT q.name, q.max_waiting, q.on_full FROM cronjobs_queues q
            WHERE q.name = ANY ($1) AND q.max_waiting IS NOT NULL ORDER BY q.name FOR NO KEY UPDATE OF q SKIP LOCKED
        )
        SELECT q.name, coalesce(l.max_waiting, q.max_waiting), coalesce(l.on_full, q.on_full), l.name IS NOT NULL
        FROM cronjobs_queues q LEFT JOIN locked l ON l.name = q.name
        WHERE q.name = ANY ($1) AND q.max_waiting IS NOT NULL ORDER BY q.name;
END
$cronjobs$
"""

# A sequence counts the calls that gave up waiting, because no lock can block a sequence, and no rollback undoes its
# count.
COUNT_FULL = r"""
CREATE FUNCTION cronjobs_count_full(queue text, what text, jobs int)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
AS $cronjobs$
#variable_conflict use_column
DECLARE
    more bigint := CASE WHEN $3 > 0 THEN $3 ELSE 0 END;
    most bigint := 4611686018427387904;
    patience text := pg_catalog.current_setting('lock_timeout');
BEGIN
    IF $2 = 'held' THEN
        PERFORM pg_catalog.nextval('cronjobs_queues_held');
        RETURN;
    END IF;
    IF patience = '0' THEN
        PERFORM pg_catalog.set_config('lock_timeout', '1s', true);
    END IF;
    UPDATE cronjobs_queues q SET
        dropped = CASE WHEN $2 = 'dropped' AND q.dropped < most THEN q.dropped + more ELSE q.dropped END,
        refused = CASE WHEN $2 = 'refused' AND q.refused < most THEN q.refused + more ELSE q.refused END
    WHERE q.name = $1;
    PERFORM pg_catalog.set_config('lock_timeout', patience, true);
END
$cronjobs$
"""

# If another transaction has locked the job's row, the function retries for about a tenth of a second, because a claim
# takes only milliseconds. Then it returns "locked" instead of raising an error, because an error would abort the
# caller's transaction.
CANCEL = r"""
CREATE FUNCTION cronjobs_cancel(
    id bigint DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    reason text DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
AS $cronjobs$
#variable_conflict use_column
DECLARE
    wanted bigint;
    state text;
    never_begun boolean;
    app text := nullif(pg_catalog.current_setting('application_name', true), '');
    actor text := pg_catalog.concat_ws('/', session_user, app);
    client text := pg_catalog.host(pg_catalog.inet_client_addr());
    at_once timestamptz := pg_catalog.statement_timestamp();
    why text := nullif(pg_catalog.left(pg_catalog.btrim($3), 500), '');
BEGIN
    IF ($1 IS NULL) = ($2 IS NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_cancel: give id or idempotency_key, one of the two';
    END IF;
    FOR try IN 1..5 LOOP
        IF $1 IS NOT NULL THEN
            SELECT j.id, j.status INTO wanted, state FROM cronjobs_jobs j WHERE j.id = $1;
        ELSE
            SELECT j.id, j.status INTO wanted, state FROM cronjobs_jobs j WHERE j.idempotency_key = $2;
            IF NOT FOUND THEN
                -- "+ 0": in the order of ids alone it may walk back through all jobs.
                SELECT j.id, j.status INTO wanted, state FROM cronjobs_jobs j
                WHERE j.released_key = $2 ORDER BY j.id + 0 DESC LIMIT 1;
            END IF;
        END IF;
        IF wanted IS NULL OR state IN ('succeeded', 'dead', 'cancelled') THEN
            RETURN state;
        END IF;
        -- A statement of its own: the next one sees all that others did to the job before we had its lock.
        SELECT j.status INTO state FROM cronjobs_jobs j WHERE j.id = wanted FOR NO KEY UPDATE SKIP LOCKED;
        IF state IN ('queued', 'failed') THEN
            SELECT b.last_failed_at IS NULL AND NOT EXISTS (SELECT FROM cronjobs_job_runs r WHERE r.job_id = b.id)
            INTO never_begun FROM cronjobs_jobs b WHERE b.id = wanted;
            UPDATE cronjobs_jobs j SET
                status = 'cancelled', finished_at = at_once,
                last_error = 'cancelled by ' || actor || coalesce(': ' || why, ''),
                released_key = CASE WHEN never_begun THEN coalesce(j.idempotency_key, j.released_key)
                                    ELSE j.released_key END,
                idempotency_key = CASE WHEN never_begun THEN NULL ELSE j.idempotency_key END
            WHERE j.id = wanted;
            INSERT INTO cronjobs_new_counts (at_hour, kind, name, outcome, bucket, count, newest)
            SELECT pg_catalog.floor(extract(epoch FROM at_once) / 3600), k.kind, pg_catalog.substr(k.name, 1, 300),
                'cancelled', -1, 1, k.newest
            FROM cronjobs_jobs j, LATERAL (VALUES
                ('jobs', j.job_type, NULL),
                ('scheduled', j.schedule, (extract(epoch FROM at_once) * 1000000)::bigint)) k(kind, name, newest)
            WHERE j.id = wanted AND k.name IS NOT NULL;
            state := 'cancelled';
        ELSIF state = 'running' THEN
            -- Nobody reads a request to stop a run of "cronjobs exec".
            UPDATE cronjobs_jobs j SET cancel_requested_at = coalesce(j.cancel_requested_at, at_once)
            WHERE j.id = wanted AND pg_catalog.substr(j.job_type, 1, 5) <> 'exec:';
            IF NOT FOUND THEN
                RETURN state;
            END IF;
        ELSE
            PERFORM pg_catalog.pg_sleep(0.025);
            CONTINUE;
        END IF;
        INSERT INTO cronjobs_audit (at, actor, host, action, subject, why)
        VALUES (at_once, actor, client, 'cancel', 'job ' || wanted::text, why);
        RETURN state;
    END LOOP;
    RETURN 'locked';
END
$cronjobs$
"""

RESCHEDULE = r"""
CREATE FUNCTION cronjobs_reschedule(
    id bigint DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    reason text DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
AS $cronjobs$
#variable_conflict use_column
DECLARE
    wanted bigint;
    state text;
    was timestamptz;
    iso text := 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"';
    app text := nullif(pg_catalog.current_setting('application_name', true), '');
    actor text := pg_catalog.concat_ws('/', session_user, app);
    client text := pg_catalog.host(pg_catalog.inet_client_addr());
    at_once timestamptz := pg_catalog.statement_timestamp();
    due timestamptz := coalesce($3, at_once + $4);
    why text := nullif(pg_catalog.left(pg_catalog.btrim($5), 500), '');
BEGIN
    IF ($1 IS NULL) = ($2 IS NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_reschedule: give id or idempotency_key, one of the two';
    END IF;
    IF ($3 IS NULL) = ($4 IS NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_reschedule: give run_at or delay, one of the two';
    END IF;
    FOR try IN 1..5 LOOP
        IF $1 IS NOT NULL THEN
            SELECT j.id, j.status INTO wanted, state FROM cronjobs_jobs j WHERE j.id = $1;
        ELSE
            SELECT j.id, j.status INTO wanted, state FROM cronjobs_jobs j WHERE j.idempotency_key = $2;
            IF NOT FOUND THEN
                -- "+ 0": in the order of ids alone it may walk back through all jobs.
                SELECT j.id, j.status INTO wanted, state FROM cronjobs_jobs j
                WHERE j.released_key = $2 ORDER BY j.id + 0 DESC LIMIT 1;
            END IF;
        END IF;
        IF wanted IS NULL OR state IN ('succeeded', 'dead', 'cancelled') THEN
            RETURN state;
        END IF;
        SELECT j.status, j.run_at INTO state, was FROM cronjobs_jobs j WHERE j.id = wanted
        FOR NO KEY UPDATE SKIP LOCKED;
        IF state IN ('queued', 'failed') THEN
            UPDATE cronjobs_jobs j SET run_at = due WHERE j.id = wanted;
            INSERT INTO cronjobs_audit (at, actor, host, action, subject, why, detail)
            VALUES (at_once, actor, client, 'reschedule', 'job ' || wanted::text, why,
                    pg_catalog.jsonb_build_object(
                        'from', pg_catalog.to_char(pg_catalog.timezone('UTC'::text, was), iso),
                        'to', pg_catalog.to_char(pg_catalog.timezone('UTC'::text, due), iso)));
            RETURN state;
        ELSIF state IS NOT NULL THEN
            RETURN state;
        END IF;
        PERFORM pg_catalog.pg_sleep(0.025);
    END LOOP;
    RETURN 'locked';
END
$cronjobs$
"""

# A cluster worker's role may only call these two functions, and can see no table. A caller that does not know an
# attempt's token learns nothing and changes nothing.
#
# The token's row decides who has the attempt. The claiming host deletes the row to end an attempt, unless the attempt's
# permit still holds. So the host cannot release a token that a worker has taken, and a worker cannot take a token that
# the host has released.
TAKE_TOKEN = """
CREATE FUNCTION cronjobs_take_token(job bigint, attempt int, token text, holder text)
RETURNS TABLE (answer text, left_s float8)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
AS $cronjobs$
#variable_conflict use_column
DECLARE
    leased_until timestamptz;
    asked timestamptz;
    at_once timestamptz := pg_catalog.statement_timestamp();
    there text;
BEGIN
    SELECT j.locked_until, j.cancel_requested_at INTO leased_until, asked FROM cronjobs_jobs j
    WHERE j.id = $1 AND j.attempts = $2 AND j.status = 'running' AND j.locked_until > at_once;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'over', 0::float8;
        RETURN;
    END IF;
    IF asked IS NULL THEN
        -- The same holder asks again if the answer was lost on its way.
        UPDATE cronjobs_tokens t
        SET holder = $4, taken_at = coalesce(t.taken_at, at_once), permitted_until = leased_until
        WHERE t.job_id = $1 AND t.attempt = $2 AND t.token = $3 AND (t.holder IS NULL OR t.holder = $4)
          AND t.ended IS NULL;
        IF FOUND THEN
            RETURN QUERY SELECT 'yours', extract(epoch FROM leased_until - at_once)::float8;
            RETURN;
        END IF;
    END IF;
    SELECT t.holder INTO there FROM cronjobs_tokens t WHERE t.job_id = $1 AND t.attempt = $2 AND t.token = $3;
    RETURN QUERY SELECT CASE WHEN there IS NOT NULL THEN 'taken' WHEN asked IS NOT NULL AND FOUND THEN 'cancelled'
        ELSE 'over' END, 0::float8;
END
$cronjobs$
"""

CONFIRM_PERMIT = """
CREATE FUNCTION cronjobs_confirm_permit(job bigint, attempt int, token text, ended text DEFAULT NULL)
RETURNS TABLE (answer text, left_s float8)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
AS $cronjobs$
#variable_conflict use_column
DECLARE
    leased_until timestamptz;
    asked timestamptz;
    at_once timestamptz := pg_catalog.statement_timestamp();
BEGIN
    IF $4 IS NOT NULL THEN
        -- Nothing of it runs any more.
        UPDATE cronjobs_tokens t SET ended = pg_catalog.left($4, 1000000), permitted_until = at_once
        WHERE t.job_id = $1 AND t.attempt = $2 AND t.token = $3 AND t.holder IS NOT NULL AND t.ended IS NULL;
        RETURN QUERY SELECT CASE WHEN FOUND THEN 'yours' ELSE 'over' END, 0::float8;
        RETURN;
    END IF;
    SELECT j.locked_until, j.cancel_requested_at INTO leased_until, asked FROM cronjobs_jobs j
    WHERE j.id = $1 AND j.attempts = $2 AND j.status = 'running' AND j.locked_until > at_once;
    IF FOUND THEN
        UPDATE cronjobs_tokens t SET permitted_until = leased_until
        WHERE t.job_id = $1 AND t.attempt = $2 AND t.token = $3 AND t.holder IS NOT NULL AND t.ended IS NULL;
    ELSIF EXISTS (SELECT FROM cronjobs_tokens t JOIN cronjobs_job_runs r ON r.job_id = t.job_id
                  AND r.attempt = t.attempt AND r.outcome = 'succeeded'
                  WHERE t.job_id = $1 AND t.attempt = $2 AND t.token = $3 AND t.holder IS NOT NULL) THEN
        -- The handler has ended its job in a transaction of its own; what it does now changes nothing of that.
        RETURN QUERY SELECT 'done', 0::float8;
        RETURN;
    END IF;
    RETURN QUERY SELECT CASE WHEN NOT FOUND THEN 'over' WHEN asked IS NOT NULL THEN 'cancelled' ELSE 'yours' END,
        CASE WHEN FOUND THEN extract(epoch FROM leased_until - at_once)::float8 ELSE 0 END;
END
$cronjobs$
"""
