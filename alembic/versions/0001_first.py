"""All tables, indexes and views, and on PostgreSQL the function cronjobs_enqueue.

Written out, not made from ``cronjobs.tables``: a migration says for good what it did, whatever the tables become.
Names are unqualified: whoever runs migrations has pinned the search_path to the one schema that is meant.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.elements import conv

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

OLDEST_CODE = "0001"  # the oldest revision whose code may run on the database after this migration

# SQLite keeps instants as microseconds. Text, seconds and milliseconds lie below this range, nanoseconds above it.
FIRST_INSTANT = 100_000_000_000_000
IN_RANGE = "BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'"
LAST_INSTANT = 253_402_300_799_999_999

SQLITE_NOW = (
    "(CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000)"
)

WAITING = "status IN ('queued', 'failed')"


def upgrade() -> None:
    create_jobs()
    create_job_runs()
    create_schedules()
    create_occurrences()
    create_ticks()
    create_effects()
    create_queues_and_pauses()
    create_audit()
    create_meta()
    if is_postgresql():
        op.execute(VIEWS_POSTGRESQL[0])
        op.execute(VIEWS_POSTGRESQL[1])
        op.execute(ENQUEUE)
    else:
        create_readable_views()
        create_alarm_views_sqlite()


def downgrade() -> None:
    raise RuntimeError(
        "cronjobs' migrations only expand, and code of an older version runs on a newer schema: there is nothing to "
        "downgrade. To remove cronjobs, drop what begins with cronjobs_; the jobs go with it"
    )


# --- what differs between the databases -----------------------------------------------------------------------------


def is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def row_id(name: str = "id") -> sa.Column[Any]:
    # SQLite counts ids itself only in a column that is exactly INTEGER PRIMARY KEY.
    kind = sa.BigInteger() if is_postgresql() else sa.Integer()
    return sa.Column(name, kind, sa.Identity(), nullable=False)


def instant(name: str, *, null: bool = True, now: bool = False) -> sa.Column[Any]:
    """timestamptz on PostgreSQL, microseconds on SQLite; *now*: the database's clock is the default."""
    kind: Any = postgresql.TIMESTAMP(timezone=True) if is_postgresql() else sa.BigInteger()
    default = sa.text("statement_timestamp()" if is_postgresql() else SQLITE_NOW) if now else None
    return sa.Column(name, kind, nullable=null, server_default=default)


def json(name: str, *, null: bool = True, empty: bool = False) -> sa.Column[Any]:
    """jsonb on PostgreSQL, text on SQLite; *empty*: {} is the default."""
    kind: Any = postgresql.JSONB() if is_postgresql() else sa.Text()
    return sa.Column(name, kind, nullable=null, server_default=sa.text("'{}'") if empty else None)


def caller(name: str) -> sa.Column[Any]:
    """Who is connected, where the database knows."""
    known = "concat_ws('/', CURRENT_USER, nullif(current_setting('application_name', true), ''))"
    return sa.Column(name, sa.Text(), server_default=sa.text(known if is_postgresql() else "NULL"))


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


def instant_range(table: str, *columns: str) -> list[sa.CheckConstraint]:
    """PostgreSQL: no "infinity", and no year that programs cannot hold, where anyone may INSERT."""
    if not is_postgresql():
        return []
    return [check(table, "instants", " AND ".join(f"{column} {IN_RANGE}" for column in columns))]


def primary_key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=conv(f"{table}_pk"))


def unique(table: str, column: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(column, name=conv(f"{table}_{column}_key"))


def index(name: str, table: str, columns: list[str], where: str | None = None) -> None:
    condition = None if where is None else sa.text(where)
    op.create_index(name, table, columns, postgresql_where=condition, sqlite_where=condition)


# --- tables ---------------------------------------------------------------------------------------------------------


def create_jobs() -> None:
    table = "cronjobs_jobs"
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
    op.create_table(
        table,
        row_id(),
        sa.Column("job_type", sa.Text(), nullable=False),
        json("payload", null=False, empty=True),
        json("meta", null=False, empty=True),
        sa.Column("queue", sa.Text(), nullable=False, server_default=sa.text("'default'")),
        sa.Column("priority", sa.SmallInteger(), nullable=False, server_default=sa.text("5")),
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'queued'")),
        instant("run_at", null=False, now=True),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("failures", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("losses", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("interruptions", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("max_attempts", sa.Integer()),
        sa.Column("timeout_s", sa.Float()),
        sa.Column("locked_by", sa.Text()),
        instant("locked_until"),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("concurrency_key", sa.Text()),
        sa.Column("schedule", sa.Text()),
        instant("scheduled_for"),
        sa.Column("last_error", sa.Text()),
        sa.Column("error_type", sa.Text()),
        instant("last_failed_at"),
        json("result"),
        caller("enqueued_by"),
        instant("cancel_requested_at"),
        instant("created_at", null=False, now=True),
        instant("started_at"),
        instant("finished_at"),
        primary_key(table, "id"),
        unique(table, "idempotency_key"),
        check(table, "status", "status IN ('queued', 'running', 'succeeded', 'failed', 'dead', 'cancelled')"),
        check(
            table,
            "leased_when_running",
            "(status = 'running') = (locked_by IS NOT NULL) AND (status = 'running') = (locked_until IS NOT NULL)",
        ),
        check(
            table,
            "finished_when_final",
            "(status IN ('succeeded', 'dead', 'cancelled')) = (finished_at IS NOT NULL)",
        ),
        check(table, "priority", "priority BETWEEN 0 AND 9"),
        check(table, "counters", "attempts >= 0 AND failures >= 0 AND losses >= 0 AND interruptions >= 0"),
        check(table, "max_attempts", "max_attempts IS NULL OR max_attempts >= 1"),
        check(table, "timeout_s", "timeout_s IS NULL OR timeout_s > 0"),
        *instant_checks(
            table,
            "run_at",
            "locked_until",
            "scheduled_for",
            "last_failed_at",
            "cancel_requested_at",
            "created_at",
            "started_at",
            "finished_at",
        ),
        *instant_range(table, "run_at", "created_at", "scheduled_for", "started_at"),
        # SQLite takes any type in any column.
        *([] if is_postgresql() else [types]),
        sqlite_autoincrement=True,  # or the id of a pruned job comes back for another
    )
    index("cronjobs_jobs_waiting_idx", table, ["queue", "priority", "run_at", "id"], WAITING)
    index("cronjobs_jobs_leased_idx", table, ["locked_until"], "locked_until IS NOT NULL")
    index("cronjobs_jobs_schedule_idx", table, ["schedule"], "schedule IS NOT NULL AND finished_at IS NULL")
    index(
        "cronjobs_jobs_concurrency_idx",
        table,
        ["concurrency_key"],
        "concurrency_key IS NOT NULL AND locked_until IS NOT NULL",
    )
    index("cronjobs_jobs_finished_idx", table, ["status", "finished_at"], "finished_at IS NOT NULL")


def create_job_runs() -> None:
    table = "cronjobs_job_runs"
    op.create_table(
        table,
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        instant("started_at", null=False),
        instant("finished_at", null=False),
        sa.Column("runner", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text()),
        sa.Column("error_type", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("traceback", sa.Text()),
        sa.Column("output", sa.Text()),
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
    index("cronjobs_job_runs_finished_idx", table, ["finished_at"])


def create_schedules() -> None:
    table = "cronjobs_schedules"
    op.create_table(
        table,
        row_id(),
        sa.Column("name", sa.Text(), nullable=False),
        json("definition", null=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'active'")),
        instant("seen_until", null=False),
        instant("next_at"),
        primary_key(table, "id"),
        unique(table, "name"),
        check(table, "status", "status IN ('active', 'retired')"),
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
        sa.Column("count", sa.Integer(), nullable=False, server_default=sa.text("1")),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("job_id", sa.BigInteger()),
        instant("decided_at", null=False, now=True),
        primary_key(table, "schedule_id", "last_for"),
        check(table, "outcome", "outcome IN ('enqueued', 'skipped', 'missed', 'coalesced')"),
        check(table, "range", "count >= 1 AND first_for <= last_for"),
        *instant_checks(table, "first_for", "last_for", "decided_at"),
    )
    index("cronjobs_occurrences_job_idx", table, ["job_id"], "job_id IS NOT NULL")
    index("cronjobs_occurrences_last_for_idx", table, ["last_for"])


def create_ticks() -> None:
    table = "cronjobs_ticks"
    op.create_table(
        table,
        row_id(),
        sa.Column("tick", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("boot_id", sa.Text()),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text()),
        instant("started_at", null=False),
        instant("finished_at"),
        json("did", null=False, empty=True),
        sa.Column("ended", sa.Text()),
        primary_key(table, "id"),
        unique(table, "tick"),
        *instant_checks(table, "started_at", "finished_at"),
        sqlite_autoincrement=True,
    )
    index("cronjobs_ticks_host_idx", table, ["host", "id"])
    index("cronjobs_ticks_started_idx", table, ["started_at"])


def create_effects() -> None:
    table = "cronjobs_effects"
    op.create_table(
        table,
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger()),
        sa.Column("attempt", sa.Integer()),
        sa.Column("state", sa.Text(), nullable=False, server_default=sa.text("'begun'")),
        instant("begun_at", null=False, now=True),
        instant("recorded_at"),
        json("result"),
        primary_key(table, "key"),
        check(table, "state", "state IN ('begun', 'recorded', 'skipped', 'stopped')"),
        check(table, "recorded_when_recorded", "(state = 'recorded') = (recorded_at IS NOT NULL)"),
        *instant_checks(table, "begun_at", "recorded_at"),
    )
    index("cronjobs_effects_job_idx", table, ["job_id"])
    index("cronjobs_effects_begun_idx", table, ["begun_at"])


def create_queues_and_pauses() -> None:
    table = "cronjobs_queues"
    op.create_table(
        table,
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("max_waiting", sa.Integer()),
        sa.Column("on_full", sa.Text(), nullable=False, server_default=sa.text("'error'")),
        sa.Column("dropped", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        primary_key(table, "name"),
        check(table, "on_full", "on_full IN ('error', 'drop', 'wait')"),
        check(table, "max_waiting", "max_waiting IS NULL OR max_waiting >= 0"),
    )
    table = "cronjobs_pauses"
    op.create_table(
        table,
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False, server_default=sa.text("''")),
        instant("until"),
        sa.Column("by", sa.Text()),
        sa.Column("why", sa.Text()),
        instant("paused_at", null=False, now=True),
        primary_key(table, "scope", "name"),
        check(table, "scope", "scope IN ('all', 'queue', 'schedule')"),
        *instant_checks(table, "until", "paused_at"),
    )


def create_audit() -> None:
    table = "cronjobs_audit"
    op.create_table(
        table,
        row_id(),
        instant("at", null=False, now=True),
        caller("actor"),
        sa.Column("host", sa.Text()),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("why", sa.Text()),
        json("detail"),
        primary_key(table, "id"),
        *instant_checks(table, "at"),
        sqlite_autoincrement=True,
    )
    index("cronjobs_audit_subject_idx", table, ["action", "subject", "at"])


def create_meta() -> None:
    table = "cronjobs_meta"
    op.create_table(
        table,
        sa.Column("id", sa.Integer(), nullable=False, server_default=sa.text("1"), autoincrement=False),
        sa.Column("project", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("environment", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("schema_revision", sa.Text(), nullable=False),
        sa.Column("oldest_code", sa.Text(), nullable=False),
        instant("pruned_at"),
        primary_key(table, "id"),
        check(table, "one_row", "id = 1"),
        *instant_checks(table, "pruned_at"),
    )
    op.execute(
        f"INSERT INTO cronjobs_meta (schema_revision, oldest_code) VALUES ('{revision}', '{OLDEST_CODE}')"  # noqa: S608
    )


# --- views ----------------------------------------------------------------------------------------------------------

DEAD = (
    "id, job_type, queue, priority, schedule, failures, losses, attempts, error_type, last_error, last_failed_at, "
    "finished_at, created_at, idempotency_key, enqueued_by, payload"
)

VIEWS_POSTGRESQL = (
    f"CREATE VIEW cronjobs_dead_jobs AS SELECT {DEAD} FROM cronjobs_jobs WHERE status = 'dead'",  # noqa: S608
    """
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
""",
)


def create_alarm_views_sqlite() -> None:
    columns = ", ".join(
        _iso(name) if name in {"last_failed_at", "finished_at", "created_at"} else name for name in DEAD.split(", ")
    )
    op.execute(f"CREATE VIEW cronjobs_dead_jobs AS SELECT {columns} FROM cronjobs_jobs WHERE status = 'dead'")  # noqa: S608
    op.execute(
        f"""
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
    )


# Table → columns of its readable view; those with a star are instants.
READABLE = {
    "cronjobs_jobs": "id job_type payload meta queue priority status *run_at attempts failures losses interruptions "
    "max_attempts timeout_s locked_by *locked_until idempotency_key concurrency_key schedule *scheduled_for last_error "
    "error_type *last_failed_at result enqueued_by *cancel_requested_at *created_at *started_at *finished_at",
    "cronjobs_job_runs": "job_id attempt outcome *started_at *finished_at runner worker error_type error traceback "
    "output",
    "cronjobs_schedules": "id name definition fingerprint status *seen_until *next_at",
    "cronjobs_occurrences": "schedule_id *first_for *last_for count outcome reason job_id *decided_at",
    "cronjobs_ticks": "id tick host boot_id pid version fingerprint *started_at *finished_at did ended",
    "cronjobs_effects": "key job_id attempt state *begun_at *recorded_at result",
    "cronjobs_pauses": "scope name *until by why *paused_at",
    "cronjobs_audit": "id *at actor host action subject why detail",
}


def create_readable_views() -> None:
    for table, names in READABLE.items():
        columns = ", ".join(_iso(name[1:]) if name.startswith("*") else f'"{name}"' for name in names.split())
        op.execute(f"CREATE VIEW {table}_readable AS SELECT {columns} FROM {table}")  # noqa: S608


def _iso(column: str) -> str:
    """SQL for an instant as people read it: 2026-01-31T09:30:00.000000Z."""
    return (
        f"strftime('%Y-%m-%dT%H:%M:%S', {column} / 1000000, 'unixepoch') || printf('.%06dZ', {column} % 1000000) "
        f"AS {column}"
    )


# --- the function ---------------------------------------------------------------------------------------------------

# SET search_path FROM CURRENT keeps the one schema that the migration was pinned to (pg_temp last, so that nobody's
# temporary table stands in): the function finds its tables whatever the caller's search_path is.
# No percent sign in here: the driver would double it in offline SQL.
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
    patience text := current_setting('lock_timeout');
BEGIN
    IF coalesce(btrim($1), '') = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'cronjobs_enqueue: job_type is empty';
    END IF;
    IF jsonb_typeof($2) <> 'object' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'cronjobs_enqueue: payload is a JSON object, not of type ' || jsonb_typeof($2);
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
            IF patience = '0' THEN
                PERFORM set_config('lock_timeout', '10s', true);
            END IF;
            SELECT q.max_waiting, q.on_full INTO most, then_do FROM cronjobs_queues q
            WHERE q.name = wanted_queue FOR NO KEY UPDATE;
            PERFORM set_config('lock_timeout', patience, true);
            CONTINUE;  -- whoever had the row may have spent the key
        END IF;
        IF most <= (SELECT count(*) FROM (
               SELECT FROM cronjobs_jobs j WHERE j.queue = wanted_queue AND j.status IN ('queued', 'failed')
               LIMIT most) waiting) THEN
            IF then_do = 'drop' THEN
                UPDATE cronjobs_queues q SET dropped = q.dropped + 1 WHERE q.name = wanted_queue;
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
