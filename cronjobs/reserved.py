"""Names of job types that nobody may enqueue or define, because runs of ``cronjobs exec`` have them."""

EXEC_PREFIX = "exec:"
