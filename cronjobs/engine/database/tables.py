"""The tables in SQLAlchemy Core. The migrations in ``alembic/versions`` create the tables. A test compares these
definitions with the result of the migrations.

Every column that a caller may leave out has a server-side default, so any language can enqueue with plain SQL.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKeyConstraint,
    Identity,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from cronjobs.engine.database.checks import has_odd_number, instants, lengths
from cronjobs.engine.database.column_types import (
    POSTGRESQL_RANGE,
    Instant,
    Json,
    server_caller,
    server_now,
)

# True for a dead job that nobody has dealt with. If a dismissed job is retried and dies again, that is a new death.
UNSETTLED_DEAD_SQL: Final = (
    "status = 'dead' AND finished_at IS NOT NULL AND (dismissed_at IS NULL OR dismissed_at < finished_at)"
)

CANCELLED_SQL: Final = "status = 'cancelled' AND finished_at IS NOT NULL"
# True for a job that was cancelled while it ran.
CANCELLED_RUNNING_SQL: Final = f"{CANCELLED_SQL} AND cancel_requested_at IS NOT NULL"

# The longest names and keys, in bytes. An entry of a PostgreSQL index has room for about 2,700 bytes. Without a limit,
# a row with a longer name could be inserted, because no partial index contains the row yet. Later, each claim of the
# row would fail.
LONGEST_NAME: Final = 1000
LONGEST_KEY: Final = 2000
# The limits of an unfinished job's texts, in bytes.
LENGTHS: Final = {
    "job_type": LONGEST_NAME,
    "queue": LONGEST_NAME,
    "schedule": LONGEST_NAME,
    "enqueued_by": LONGEST_NAME,
    "idempotency_key": LONGEST_KEY,
    "concurrency_key": LONGEST_KEY,
}


metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pk",
        "ck": "%(table_name)s_%(constraint_name)s_ck",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "fk": "%(table_name)s_%(column_0_N_name)s_fk",
    }
)

# SQLite assigns ids only in a column whose declared type is exactly INTEGER PRIMARY KEY.
RowId = BigInteger().with_variant(Integer(), "sqlite")


jobs = Table(
    "cronjobs_jobs",
    metadata,
    Column("id", RowId, Identity(), nullable=False),
    Column("job_type", Text, nullable=False),
    Column("payload", Json, nullable=False, server_default=text("'{}'")),
    Column("meta", Json, nullable=False, server_default=text("'{}'")),
    Column("queue", Text, nullable=False, server_default=text("'default'")),
    Column("priority", SmallInteger, nullable=False, server_default=text("5")),
    Column("status", Text, nullable=False, server_default=text("'queued'")),
    Column("run_at", Instant, nullable=False, server_default=server_now()),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("losses", Integer, nullable=False, server_default=text("0")),
    Column("interruptions", Integer, nullable=False, server_default=text("0")),
    Column("max_attempts", Integer),
    Column("timeout_s", Float),
    Column("locked_by", Text),
    Column("locked_until", Instant),
    Column("idempotency_key", Text),
    Column("concurrency_key", Text),
    Column("schedule", Text),
    Column("scheduled_for", Instant),
    Column("last_error", Text),
    Column("error_type", Text),
    Column("last_failed_at", Instant),
    Column("result", Json),
    Column("enqueued_by", Text, server_default=server_caller()),
    Column("cancel_requested_at", Instant),
    Column("created_at", Instant, nullable=False, server_default=server_now()),
    Column("started_at", Instant),
    Column("finished_at", Instant),
    # What recovery does if the running attempt is lost. Each claim writes this column.
    Column("policy", Json),
    Column("dismissed_at", Instant),  # when a person dismissed this dead job
    # The latest report of the running attempt. Renewals of the lease write this column.
    Column("progress", Json),
    Column("live_output", Text),  # the end of the running attempt's output
    # The idempotency_key of a job that was cancelled before it started. Another job may use the key now.
    Column("released_key", Text),
    Column("misfit_since", Instant),  # when an attempt first found that the payload does not fit the handler
    PrimaryKeyConstraint("id"),
    UniqueConstraint("idempotency_key"),
    CheckConstraint("status IN ('queued', 'running', 'succeeded', 'failed', 'dead', 'cancelled')", name="status"),
    CheckConstraint(
        "(status = 'running') = (locked_by IS NOT NULL) AND (status = 'running') = (locked_until IS NOT NULL)",
        name="leased_when_running",
    ),
    CheckConstraint(
        "(status IN ('succeeded', 'dead', 'cancelled')) = (finished_at IS NOT NULL)", name="finished_when_final"
    ),
    CheckConstraint("priority BETWEEN 0 AND 9", name="priority"),
    # A row whose type begins with "exec:" reports a run of "cronjobs exec". Only "cronjobs exec" writes such rows, and
    # it inserts them as running. Write no spaces between the arguments of substr(): in SQLite's CREATE TABLE, Django's
    # inspectdb would take ", 1" for a column, and fail.
    CheckConstraint(
        "substr(job_type,1,5) <> 'exec:' OR started_at IS NOT NULL OR finished_at IS NOT NULL", name="exec_began"
    ),
    CheckConstraint("attempts >= 0 AND failures >= 0 AND losses >= 0 AND interruptions >= 0", name="counters"),
    CheckConstraint("max_attempts IS NULL OR max_attempts >= 1", name="max_attempts"),
    CheckConstraint("timeout_s IS NULL OR timeout_s > 0", name="timeout_s"),
    *instants(
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
    ),
    # Finished jobs are exempt. Otherwise one row with a text that is too long would make the UPDATE of a whole batch
    # fail.
    *lengths(
        "lengths",
        "finished_at IS NOT NULL OR (...)",
        **LENGTHS,
    ),
    # Check numbers only before the first claim, because the check of a large payload takes as long as parsing it.
    CheckConstraint(
        f"attempts > 0 OR finished_at IS NOT NULL OR NOT ({has_odd_number('payload')} OR {has_odd_number('meta')})",
        name="numbers",
    ).ddl_if(dialect="postgresql"),
    CheckConstraint(
        " AND ".join(f"{name} {POSTGRESQL_RANGE}" for name in ("run_at", "created_at", "scheduled_for", "started_at")),
        name="instants",
    ).ddl_if(dialect="postgresql"),
    # SQLite accepts any type in any column. A text in the place of a number would crash programs that read the row.
    CheckConstraint(
        "typeof(job_type) = 'text' AND typeof(queue) = 'text' AND typeof(priority) = 'integer' "
        "AND typeof(attempts) = 'integer' AND typeof(failures) = 'integer' AND typeof(losses) = 'integer' "
        "AND typeof(interruptions) = 'integer' AND typeof(max_attempts) IN ('integer', 'null') "
        "AND typeof(timeout_s) IN ('integer', 'real', 'null') AND typeof(idempotency_key) IN ('text', 'null') "
        "AND typeof(payload) = 'text' AND typeof(meta) = 'text' AND typeof(schedule) IN ('text', 'null') "
        "AND typeof(concurrency_key) IN ('text', 'null')",
        name="types",
    ).ddl_if(dialect="sqlite"),
)

job_runs = Table(
    "cronjobs_job_runs",
    metadata,
    Column("job_id", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("finished_at", Instant, nullable=False),
    Column("runner", Text, nullable=False),
    Column("worker", Text),
    Column("error_type", Text),
    Column("error", Text),
    Column("traceback", Text),
    Column("output", Text),
    PrimaryKeyConstraint("job_id", "attempt"),
    ForeignKeyConstraint(["job_id"], ["cronjobs_jobs.id"], ondelete="CASCADE"),
    CheckConstraint(
        "outcome IN ('succeeded', 'failed', 'timed_out', 'lost', 'interrupted', 'cancelled', 'snoozed')",
        name="outcome",
    ),
    *instants("started_at", "finished_at"),
)

schedules = Table(
    "cronjobs_schedules",
    metadata,
    Column("id", RowId, Identity(), nullable=False),
    Column("name", Text, nullable=False),
    Column("definition", Json, nullable=False),
    # The fingerprint of the configuration file that contains the definition.
    Column("fingerprint", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'active'")),
    # The watermark: all occurrences up to this instant are settled, except those that ``owed`` lists.
    Column("seen_until", Instant, nullable=False),
    # When the schedule is next due. With this hint, an idle tick need not parse the cron expression. NULL means never.
    Column("next_at", Instant),
    # Time ranges under earlier definitions whose occurrences still have to be settled, oldest first.
    Column("owed", Json),
    PrimaryKeyConstraint("id"),
    UniqueConstraint("name"),
    CheckConstraint("status IN ('active', 'retired')", name="status"),
    *lengths("name_length", "...", name=LONGEST_NAME),
    *instants("seen_until", "next_at"),
)

occurrences = Table(
    "cronjobs_occurrences",
    metadata,
    Column("schedule_id", BigInteger, nullable=False),
    Column("first_for", Instant, nullable=False),
    Column("last_for", Instant, nullable=False),
    Column("count", Integer, nullable=False, server_default=text("1")),
    Column("outcome", Text, nullable=False),
    Column("reason", Text),
    # The job that the occurrence created, gave way to, or was coalesced into. The column is not a foreign key, because
    # these rows outlive jobs.
    Column("job_id", BigInteger),
    Column("decided_at", Instant, nullable=False, server_default=server_now()),
    # The tick that settled the occurrence, or NULL if a person settled it. The column is not a foreign key, because
    # ticks are pruned.
    Column("tick", BigInteger),
    PrimaryKeyConstraint("schedule_id", "last_for"),
    CheckConstraint("outcome IN ('enqueued', 'skipped', 'missed', 'coalesced')", name="outcome"),
    CheckConstraint("count >= 1 AND first_for <= last_for", name="range"),
    *instants("first_for", "last_for", "decided_at"),
)

ticks = Table(
    "cronjobs_ticks",
    metadata,
    Column("id", RowId, Identity(), nullable=False),
    Column("tick", Text, nullable=False),  # the tick's token, which is the last part of locked_by in the tick's leases
    Column("host", Text, nullable=False),
    Column("boot_id", Text),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("config", Text),  # the path of the tick's configuration file
    Column("fingerprint", Text),
    Column("started_at", Instant, nullable=False),
    Column("finished_at", Instant),  # NULL if the tick is still working, or was killed
    Column("did", Json, nullable=False, server_default=text("'{}'")),
    Column("ended", Text),  # why the tick ended
    # The hash of the job types that the tick loaded, or NULL if it loaded no handlers.
    Column("job_types", Text),
    Column("schedules_on", SmallInteger),  # 0 with CRONJOBS_SCHEDULES=off, otherwise 1
    Column("not_started", Json),  # the due jobs that the tick did not start, and the reasons
    PrimaryKeyConstraint("id"),
    UniqueConstraint("tick"),
    *instants("started_at", "finished_at"),
)

job_type_lists = Table(
    "cronjobs_job_type_lists",
    metadata,
    Column("hash", Text, nullable=False),
    Column("names", Json, nullable=False),
    Column("recorded_at", Instant, nullable=False, server_default=server_now()),
    PrimaryKeyConstraint("hash"),
    *instants("recorded_at"),
)

crashing_types = Table(
    "cronjobs_crashing_types",
    metadata,
    Column("job_type", Text, nullable=False),
    Column("found_at", Instant, nullable=False, server_default=server_now()),
    Column("clean_ends", Integer, nullable=False, server_default=text("0")),
    Column("runner", Text),
    Column("suspected", SmallInteger, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("job_type"),
    *instants("found_at"),
)

effects = Table(
    "cronjobs_effects",
    metadata,
    Column("key", Text, nullable=False),
    Column("job_id", BigInteger),
    Column("attempt", Integer),
    Column("state", Text, nullable=False, server_default=text("'begun'")),
    Column("begun_at", Instant, nullable=False, server_default=server_now()),
    Column("recorded_at", Instant),
    Column("result", Json),
    Column("repeats", Integer, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("key"),
    # "skipped" and "stopped" mean that the effect was begun, that its result is unknown, and that on_unknown has
    # decided what to do. engine/store/effects.py describes the states.
    CheckConstraint("state IN ('begun', 'recorded', 'skipped', 'stopped')", name="state"),
    CheckConstraint("(state = 'recorded') = (recorded_at IS NOT NULL)", name="recorded_when_recorded"),
    *instants("begun_at", "recorded_at"),
)

queues = Table(
    "cronjobs_queues",
    metadata,
    Column("name", Text, nullable=False),
    Column("max_waiting", Integer),
    Column("on_full", Text, nullable=False, server_default=text("'error'")),
    Column("dropped", BigInteger, nullable=False, server_default=text("0")),
    Column("refused", BigInteger, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("name"),
    CheckConstraint("on_full IN ('error', 'drop', 'wait')", name="on_full"),
    CheckConstraint("max_waiting IS NULL OR max_waiting >= 0", name="max_waiting"),
)

pauses = Table(
    "cronjobs_pauses",
    metadata,
    Column("scope", Text, nullable=False),
    Column("name", Text, nullable=False, server_default=text("''")),  # '' for the scope "all"
    Column("until", Instant),  # NULL means until someone resumes
    Column("by", Text),
    Column("why", Text),
    Column("paused_at", Instant, nullable=False, server_default=server_now()),
    # 1 means that occurrences during the pause are skipped. 0 means that they are held back until the pause ends.
    Column("skip", SmallInteger, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("scope", "name"),
    CheckConstraint("scope IN ('all', 'queue', 'schedule')", name="scope"),
    *lengths("name_length", "...", name=LONGEST_NAME),
    *instants("until", "paused_at"),
)

audit = Table(
    "cronjobs_audit",
    metadata,
    Column("id", RowId, Identity(), nullable=False),
    Column("at", Instant, nullable=False, server_default=server_now()),
    Column("actor", Text, server_default=server_caller()),
    Column("host", Text),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False, server_default=text("''")),
    Column("why", Text),
    Column("detail", Json),
    PrimaryKeyConstraint("id"),
    *instants("at"),
)


def _counted() -> list[Column[Any]]:
    """Return the columns of both tables of counts. ``engine/store/counts.py`` describes them."""
    return [
        Column("at_hour", BigInteger, nullable=False),  # in hours since 1970; 0 means the sum of all hours
        Column("kind", Text, nullable=False),
        Column("name", Text, nullable=False),
        Column("outcome", Text, nullable=False),
        Column("bucket", SmallInteger, nullable=False),
        Column("count", BigInteger, nullable=False, server_default=text("0")),
        Column("micros", Float, nullable=False, server_default=text("0")),
        Column("longest", BigInteger),  # in microseconds
        Column("newest", BigInteger),  # in microseconds since 1970, on both databases
    ]


counts = Table(
    "cronjobs_counts",
    metadata,
    *_counted(),
    PrimaryKeyConstraint("at_hour", "kind", "name", "outcome", "bucket"),
)

new_counts = Table(
    "cronjobs_new_counts",
    metadata,
    Column("id", RowId, Identity(), nullable=False),
    *_counted(),
    PrimaryKeyConstraint("id"),
)

acks = Table(
    "cronjobs_acks",
    metadata,
    Column("finding", Text, nullable=False),  # the finding's key: "dead", "host:web2"
    Column("severity", Text, nullable=False),
    Column("rows", Json, nullable=False),  # the ids or names that caused the finding
    Column("until", Instant, nullable=False),
    Column("by", Text),
    Column("why", Text),
    Column("acked_at", Instant, nullable=False, server_default=server_now()),
    PrimaryKeyConstraint("finding"),
    CheckConstraint("severity IN ('critical', 'warning', 'notice')", name="severity"),
    *instants("until", "acked_at"),
)

findings = Table(
    "cronjobs_findings",
    metadata,
    Column("id", RowId, Identity(), nullable=False),
    Column("finding", Text, nullable=False),  # the finding's key, for example "dead"
    Column("kind", Text, nullable=False),
    Column("severity", Text, nullable=False),  # the worst severity so far
    Column("text", Text, nullable=False),
    Column("command", Text),
    Column("rows", Json, nullable=False),
    # The only host that can see the finding, or '' if all hosts can see it.
    Column("host", Text, nullable=False, server_default=text("''")),
    Column("began_at", Instant, nullable=False),
    Column("found_at", Instant, nullable=False, server_default=server_now()),
    Column("ended_at", Instant),  # NULL if the finding is open
    PrimaryKeyConstraint("id"),
    CheckConstraint("severity IN ('critical', 'warning', 'notice')", name="severity"),
    *instants("began_at", "found_at", "ended_at"),
)

alerts = Table(
    "cronjobs_alerts",
    metadata,
    Column("finding_id", BigInteger, nullable=False),
    Column("channel", Text, nullable=False),
    Column("due_at", Instant),  # when the next message is due, or NULL if no message is due
    # 1 means that the next message will say that the finding has ended.
    Column("over", SmallInteger, nullable=False, server_default=text("0")),
    Column("severity", Text),  # the severity in the last message
    Column("rows", Json),  # the rows in the last message
    Column("first_at", Instant),  # when the first message was sent
    Column("sent_at", Instant),  # when the last message was sent
    Column("sent", Integer, nullable=False, server_default=text("0")),
    Column("failed_at", Instant),  # since when the delivery has been failing
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("error", Text),
    Column("locked_by", Text),  # the tick that is sending the message
    Column("locked_until", Instant),
    PrimaryKeyConstraint("finding_id", "channel"),
    *instants("due_at", "first_at", "sent_at", "failed_at", "locked_until"),
)

tokens = Table(
    # The tokens of attempts that wait or run on a cluster. engine/store/tokens.py describes them.
    "cronjobs_tokens",
    metadata,
    Column("job_id", BigInteger, nullable=False, autoincrement=False),
    Column("attempt", Integer, nullable=False),
    Column("token", Text, nullable=False),
    Column("holder", Text),  # the worker that took the token, or NULL
    Column("taken_at", Instant),
    Column("permitted_until", Instant),  # the instant until which the handler may run
    Column("ended", Text),  # how the attempt ended, as JSON written by the worker
    PrimaryKeyConstraint("job_id"),
    CheckConstraint(
        "(holder IS NULL) = (taken_at IS NULL) AND (holder IS NULL) = (permitted_until IS NULL)", name="taken"
    ),
    *instants("taken_at", "permitted_until"),
)

quarters = Table(
    # The outcomes of a schedule's occurrences, one row per closed hour. engine/store/quarters.py describes the table.
    "cronjobs_quarters",
    metadata,
    # 0 stands for no schedule. One row with 0 is the lock. In another row with 0, ``hour`` says until when all hours
    # are closed.
    Column("schedule_id", BigInteger, nullable=False),
    Column("hour", Instant, nullable=False),
    Column("quarters", Text, nullable=False),  # one letter per quarter; see engine/rules/quarters.py
    PrimaryKeyConstraint("schedule_id", "hour"),
    *instants("hour"),
)

meta = Table(
    "cronjobs_meta",
    metadata,
    Column("id", Integer, nullable=False, server_default=text("1"), autoincrement=False),
    Column("project", Text, nullable=False, server_default=text("''")),
    Column("environment", Text, nullable=False, server_default=text("''")),
    Column("schema_revision", Text, nullable=False),
    Column("oldest_code", Text, nullable=False),
    Column("pruned_at", Instant),
    Column("prune_from", Json),  # for each status, an instant: all older jobs are already stripped or deleted
    # The earliest instant at which a finding may begin, end or be repeated. NULL means now.
    Column("look_at", Instant),
    PrimaryKeyConstraint("id"),
    CheckConstraint("id = 1", name="one_row"),
    *instants("pruned_at", "look_at"),
)

VERSION_TABLE: Final = "cronjobs_alembic_version"
# Versions before 0.2.0 used the revisions 0001 to 0011. We refuse tables with one of these revisions.
FIRST_REVISION: Final = "0012"
# The newest revision of the tables that this code knows. A test compares it with alembic's head.
SCHEMA_REVISION: Final = "0012"
