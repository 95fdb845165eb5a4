"""The indexes of the tables, for code that creates or compares tables.

If an index or a table has options for a particular database, SQLAlchemy imports the dialects of both databases. So the
indexes are in a separate module, which ticks do not import. A tick on SQLite must not import PostgreSQL's dialect,
because that takes as long as starting Python. A tick on PostgreSQL does not need SQLite's dialect.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Index, text

from cronjobs.engine.database.tables import (
    CANCELLED_RUNNING_SQL,
    UNSETTLED_DEAD_SQL,
    alerts,
    audit,
    effects,
    findings,
    job_runs,
    jobs,
    occurrences,
    schedules,
    ticks,
)
from cronjobs.engine.probe.idle_conditions import MISFITS_SQL, WAITING
from cronjobs.engine.rules.recovery_policy import NOT_READ

# Without AUTOINCREMENT, SQLite would reuse the id of a pruned job.
for _table in (audit, findings, jobs, schedules, ticks):
    _table.dialect_kwargs["sqlite_autoincrement"] = True

# Finds due jobs. A claim has one branch with a LIMIT per (queue, priority). With this index, such a branch reads no
# jobs of other priorities, and no jobs that are due later.
Index(
    "cronjobs_jobs_waiting_idx",
    jobs.c.queue,
    jobs.c.priority,
    jobs.c.run_at,
    jobs.c.id,
    postgresql_where=text(WAITING),
    sqlite_where=text(WAITING),
)
# Finds jobs whose last runner died before it had read their row. Hardly any such jobs ever exist.
UNREAD_SQL: Final = f"error_type = '{NOT_READ}' AND {WAITING}"
Index("cronjobs_jobs_unread_idx", jobs.c.id, postgresql_where=text(UNREAD_SQL), sqlite_where=text(UNREAD_SQL))
# Finds due jobs by job type, for claims. With these indexes, jobs of types that a tick cannot run do not slow the tick
# down, however many such jobs exist. Jobs with a timeout of their own have a separate index, because their type does
# not show whether they fit into the tick.
WAITING_PLAIN_SQL: Final = f"{WAITING} AND timeout_s IS NULL"
WAITING_TIMED_SQL: Final = f"{WAITING} AND timeout_s IS NOT NULL"
for _name, _where in (("type", WAITING_PLAIN_SQL), ("type_timed", WAITING_TIMED_SQL)):
    Index(
        f"cronjobs_jobs_{_name}_idx",
        jobs.c.job_type,
        jobs.c.queue,
        jobs.c.priority,
        jobs.c.run_at,
        jobs.c.id,
        postgresql_where=text(_where),
        sqlite_where=text(_where),
    )
Index(
    "cronjobs_jobs_timeout_idx",
    jobs.c.job_type,
    jobs.c.timeout_s,
    postgresql_where=text(WAITING_TIMED_SQL),
    sqlite_where=text(WAITING_TIMED_SQL),
)
# Finds jobs that wait because the current code does not accept their payload.
Index(
    "cronjobs_jobs_misfit_idx",
    jobs.c.job_type,
    jobs.c.misfit_since,
    jobs.c.id,
    postgresql_where=text(MISFITS_SQL),
    sqlite_where=text(MISFITS_SQL),
)
# Finds expired leases. The condition is not "status = 'running'", because the statement that finishes a job contains
# that condition. PostgreSQL might then use this index for that statement, instead of the primary key.
Index(
    "cronjobs_jobs_leased_idx",
    jobs.c.locked_until,
    postgresql_where=text("locked_until IS NOT NULL"),
    sqlite_where=text("locked_until IS NOT NULL"),
)
# Shows whether a schedule has an unfinished job, for overlap.
Index(
    "cronjobs_jobs_schedule_idx",
    jobs.c.schedule,
    postgresql_where=text("schedule IS NOT NULL AND finished_at IS NULL"),
    sqlite_where=text("schedule IS NOT NULL AND finished_at IS NULL"),
)
Index(
    "cronjobs_jobs_concurrency_idx",
    jobs.c.concurrency_key,
    postgresql_where=text("concurrency_key IS NOT NULL AND locked_until IS NOT NULL"),
    sqlite_where=text("concurrency_key IS NOT NULL AND locked_until IS NOT NULL"),
)
# Finds recent deaths, and jobs that may be pruned.
Index(
    "cronjobs_jobs_finished_idx",
    jobs.c.status,
    jobs.c.finished_at,
    postgresql_where=text("finished_at IS NOT NULL"),
    sqlite_where=text("finished_at IS NOT NULL"),
)
# Finds dead jobs that nobody has dealt with yet.
Index(
    "cronjobs_jobs_dead_idx",
    jobs.c.finished_at,
    postgresql_where=text(UNSETTLED_DEAD_SQL),
    sqlite_where=text(UNSETTLED_DEAD_SQL),
)
# Finds jobs that were cancelled while they ran, since an effect of such a job may have been cut off.
Index(
    "cronjobs_jobs_cancelled_idx",
    jobs.c.status,  # without this column, SQLite would use the index of all ended jobs
    jobs.c.finished_at,
    postgresql_where=text(CANCELLED_RUNNING_SQL),
    sqlite_where=text(CANCELLED_RUNNING_SQL),
)
# Finds runs of "cronjobs exec", by name and start. The order by id would be wrong: readers want the most recently
# started run first, and some runs are recorded late.
Index(
    "cronjobs_jobs_exec_idx",
    jobs.c.job_type,
    jobs.c.run_at,
    jobs.c.id,
    postgresql_where=text("substr(job_type, 1, 5) = 'exec:' AND started_at IS NOT NULL"),
    sqlite_where=text("substr(job_type, 1, 5) = 'exec:' AND started_at IS NOT NULL"),
)
# Finds a cancelled job by the idempotency key that it released when it was cancelled.
Index(
    "cronjobs_jobs_released_key_idx",
    jobs.c.released_key,
    postgresql_where=text("released_key IS NOT NULL"),
    sqlite_where=text("released_key IS NOT NULL"),
)
Index("cronjobs_job_runs_finished_idx", job_runs.c.finished_at)
Index(
    "cronjobs_occurrences_job_idx",
    occurrences.c.job_id,
    postgresql_where=text("job_id IS NOT NULL"),
    sqlite_where=text("job_id IS NOT NULL"),
)
Index("cronjobs_occurrences_last_for_idx", occurrences.c.last_for)
Index("cronjobs_ticks_host_idx", ticks.c.host, ticks.c.id)
Index("cronjobs_ticks_started_idx", ticks.c.started_at)
# Finds the job types that the ticks of each host knew recently. Idle ticks, which are most ticks, are left out.
for _name, _columns in (("types_host", (ticks.c.host, ticks.c.id)), ("types_started", (ticks.c.started_at,))):
    Index(
        f"cronjobs_ticks_{_name}_idx",
        *_columns,
        postgresql_where=text("job_types IS NOT NULL"),
        sqlite_where=text("job_types IS NOT NULL"),
    )
Index("cronjobs_effects_job_idx", effects.c.job_id)
Index("cronjobs_effects_begun_idx", effects.c.begun_at)
Index("cronjobs_audit_subject_idx", audit.c.action, audit.c.subject, audit.c.at)
# At most one row per finding can be open, whichever process finds it first.
Index(
    "cronjobs_findings_open_idx",
    findings.c.finding,
    unique=True,
    postgresql_where=text("ended_at IS NULL"),
    sqlite_where=text("ended_at IS NULL"),
)
Index("cronjobs_findings_ended_idx", findings.c.ended_at)
Index(
    "cronjobs_alerts_due_idx",
    alerts.c.due_at,
    postgresql_where=text("due_at IS NOT NULL"),
    sqlite_where=text("due_at IS NOT NULL"),
)
