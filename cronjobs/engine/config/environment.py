"""The environment variables that cronjobs reads, and the variables that it sets for jobs.

A test fails if a variable is missing here.
"""

from __future__ import annotations

from typing import Final

READ: Final = {
    "CRONJOBS_CONFIG": "The configuration, if --config is not given. Default: ./cronjobs.yaml.",
    "CRONJOBS_DATABASE_URL": 'The jobs database, if --database-url is not given; overrides "database" in the file.',
    "CRONJOBS_TOKEN_URL": "On a cluster's worker: the database URL, with a role that may only take and confirm tokens.",
    "CRONJOBS_SCHEDULES": (
        'With "off", this process runs jobs but fires no schedules. With "on", or if the variable is empty, this '
        "process also fires schedules."
    ),
    "CRONJOBS_HOST": "This host's name in leases, logs and status. In a container, set a stable name.",
    "CRONJOBS_TRUST_FILES": (
        "A tick that runs as root may also use the files of these users (deploy,ci), cronjobs.yaml included. The "
        "value 1 means all users."
    ),
    "XDG_STATE_HOME": "Parent of the state folder. Default: ~/.local/state.",
    "NO_COLOR": "Any non-empty value turns off colours on a terminal.",
    "COLUMNS": "Width of tables when stdout is not a terminal. Default: unlimited.",
}
GIVEN: Final = {
    "CRONJOBS_JOB_ID": "The job's id.",
    "CRONJOBS_JOB_TYPE": "The job's type.",
    "CRONJOBS_ATTEMPT": "The attempt's number, starting at 1.",
    "CRONJOBS_SCHEDULE": "The schedule that created the job, if there is one.",
    "CRONJOBS_SCHEDULED_FOR": (
        "The job's occurrence, ISO 8601 in the schedule's time zone; use its date instead of today's."
    ),
    "CRONJOBS_STANDS_FOR": "How many occurrences of its schedule the job covers.",
    "CRONJOBS_IDEMPOTENCY_KEY": "The job's idempotency key, the same in every attempt.",
    "CRONJOBS_DEADLINE": "The attempt's deadline, ISO 8601 in UTC.",
}
# The processes of cronjobs use these variables to pass facts to each other.
INTERNAL: Final = frozenset(
    {"CRONJOBS_UNTIL", "CRONJOBS_PROGRESS_EVERY_S", "CRONJOBS_RUN_BY_CRON"}
    | {"CRONJOBS_DRILL", "CRONJOBS_PROCESS", "_CRONJOBS_COMPLETE"}
)
