"""The variables of the environment that cronjobs reads, and those that it gives to jobs; a test finds one left out."""

from __future__ import annotations

from typing import Final

READ: Final = {
    "CRONJOBS_CONFIG": "The configuration, where --config is not given; else ./cronjobs.yaml.",
    "CRONJOBS_DATABASE_URL": "The jobs database, where --database-url is not given; goes before database: in the file.",
    "CRONJOBS_TOKEN_URL": "On a worker of a cluster: the database, for a role that may only take and confirm tokens.",
    "CRONJOBS_SCHEDULES": "off: this process runs jobs and fires no schedules; on, or nothing: it does both.",
    "CRONJOBS_HOST": "This host's name in leases, logs and status: a steady one, for containers.",
    "CRONJOBS_TRUST_FILES": "Users (deploy,ci) whose files root's tick runs, its cronjobs.yaml too; 1: everybody's.",
    "XDG_STATE_HOME": "Where the state folder is; else ~/.local/state.",
    "NO_COLOR": "Anything: no colours on a terminal.",
    "COLUMNS": "How wide tables may be where stdout is no terminal; else nothing is cut there.",
}
GIVEN: Final = {
    "CRONJOBS_JOB_ID": "The job's id.",
    "CRONJOBS_JOB_TYPE": "Its job type.",
    "CRONJOBS_ATTEMPT": "The number of this attempt, from 1.",
    "CRONJOBS_SCHEDULE": "The schedule that made it, if one did.",
    "CRONJOBS_SCHEDULED_FOR": "The occurrence it is for, ISO 8601 in the schedule's time zone: its date is today.",
    "CRONJOBS_STANDS_FOR": "How many occurrences it stands for.",
    "CRONJOBS_IDEMPOTENCY_KEY": "Its idempotency key, the same in every attempt.",
    "CRONJOBS_DEADLINE": "The instant at which its time is over, ISO 8601 in UTC.",
}
# Between our own processes.
INTERNAL: Final = frozenset(
    {"CRONJOBS_UNTIL", "CRONJOBS_PROGRESS_EVERY_S", "CRONJOBS_DRILL", "CRONJOBS_PROCESS", "_CRONJOBS_COMPLETE"}
)
