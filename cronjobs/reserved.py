"""Job types that are reserved for runs of ``cronjobs exec``. Nobody may enqueue or define such a type."""

EXEC_PREFIX = "exec:"
# Only exec was killed. Nobody killed its command.
EXEC_KILLED = "exec was killed, so nobody knows how the command ended; the command may still be running"
