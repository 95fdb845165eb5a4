"""The prefix of job types that are reserved for runs of ``cronjobs exec``. Nobody may enqueue or define such a type."""

EXEC_PREFIX = "exec:"
