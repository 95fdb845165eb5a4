"""Names of job types that nobody may enqueue or define: runs of ``cronjobs exec`` bear them."""

EXEC_PREFIX = "exec:"
