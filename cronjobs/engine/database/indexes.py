"""The indexes of the tables, for code that creates or compares tables.

Index conditions and table options for one database make SQLAlchemy import both dialects. So the indexes have a module
of their own, which ticks do not import. A tick on SQLite must not import PostgreSQL's dialect, which takes as long as
starting Python, and a tick on PostgreSQL need not import SQLite's.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Index, text

from cronjobs.engine.database.tables import (
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

# Without AUTOINCREMENT, SQLite would reuse the id of a pruned job.
for _table in (audit, findings, jobs, schedules, ticks):
    _table.dialect_kwargs["sqlite_autoincrement"] = True

# Due jobs. The claim has one limited branch per (queue, priority), so it reads no other priorities and no future jobs.
Index(
    "cronjobs_jobs_waiting_idx",
    jobs.c.queue,
    jobs.c.priority,
    jobs.c.run_at,
    jobs.c.id,
    postgresql_where=text(WAITING),
    sqlite_where=text(WAITING),
)
# Jobs whose last claim ended before the row was read. There are hardly ever any.
UNREAD_SQL: Final = f"error_type = 'NotRead' AND {WAITING}"
Index("cronjobs_jobs_unread_idx", jobs.c.id, postgresql_where=text(UNREAD_SQL), sqlite_where=text(UNREAD_SQL))
# Due jobs by job type, for claims. However many jobs there are whose type a tick cannot run, they slow nothing down.
# Jobs with a timeout of their own are kept separate, because their type does not show whether they fit into the tick.
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
# Jobs that are waiting because the current code does not accept their payload.
Index(
    "cronjobs_jobs_misfit_idx",
    jobs.c.job_type,
    jobs.c.misfit_since,
    jobs.c.id,
    postgresql_where=text(MISFITS_SQL),
    sqlite_where=text(MISFITS_SQL),
)
# Expired leases. The condition is not "status = 'running'": the finish statement has that one, too, and would use this
# index instead of the primary key.
Index(
    "cronjobs_jobs_leased_idx",
    jobs.c.locked_until,
    postgresql_where=text("locked_until IS NOT NULL"),
    sqlite_where=text("locked_until IS NOT NULL"),
)
# Whether a schedule has an unfinished job (for overlap).
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
# Recent deaths, and jobs that may be pruned.
Index(
    "cronjobs_jobs_finished_idx",
    jobs.c.status,
    jobs.c.finished_at,
    postgresql_where=text("finished_at IS NOT NULL"),
    sqlite_where=text("finished_at IS NOT NULL"),
)
# Deaths that nobody has dealt with.
Index(
    "cronjobs_jobs_dead_idx",
    jobs.c.finished_at,
    postgresql_where=text(UNSETTLED_DEAD_SQL),
    sqlite_where=text(UNSETTLED_DEAD_SQL),
)
# Runs of exec, by name and start. Ordering by id would be wrong: some runs are delivered late, and readers want the
# most recently started run first.
Index(
    "cronjobs_jobs_exec_idx",
    jobs.c.job_type,
    jobs.c.run_at,
    jobs.c.id,
    postgresql_where=text("substr(job_type, 1, 5) = 'exec:' AND started_at IS NOT NULL"),
    sqlite_where=text("substr(job_type, 1, 5) = 'exec:' AND started_at IS NOT NULL"),
)
# Which job had a key before the job was cancelled.
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
# Which job types the ticks knew recently, and on which host. Idle ticks, the great majority, are left out.
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
# At most one open episode per finding, whichever process finds it first.
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
