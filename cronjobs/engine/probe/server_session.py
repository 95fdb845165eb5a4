"""Connection parameters, timeouts and settings for PostgreSQL sessions, with libpq or psycopg."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CONNECT_TIMEOUT_S = 5
# Connection parameters that the URL can override.
KEEPALIVES = {
    "application_name": "cronjobs",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
# Limits on how long a frozen peer, another session's lock or a dead runner can delay us. They are in milliseconds, and
# are set in each transaction.
TIMEOUTS = {
    "statement_timeout": 15_000,
    "lock_timeout": 2_000,
    "idle_in_transaction_session_timeout": 30_000,
    # Otherwise a dead runner's SQL would keep running, and might even commit.
    "client_connection_check_interval": 2_000,
}
# With UTC, a day has 24 hours in our statements, whatever the server's zone, and instants need no conversion. psycopg
# reads instants only in this date style. With these float digits, floats are read back exactly as written.
SETTINGS = {
    "timezone": "UTC",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "standard_conforming_strings": "on",
    "extra_float_digits": "1",
    # The planner overestimates the recursive parts of a claim. So it would compile a claim, and compiling takes longer
    # than running a thousand claims.
    "jit": "off",
    # Without statistics (autovacuum is off, or has not run yet) the planner assumes that a third of all rows are
    # leased. So it would read ten million finished rows to find one leased row. All our statements on large tables have
    # an index.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",  # it would sort rows that the index already has in order
    "max_parallel_workers_per_gather": "0",  # starting workers takes longer than the work
}
SET_SETTINGS = tuple([f"SET LOCAL {name} = '{value}'" for name, value in SETTINGS.items()])


def begin(timeouts_ms: Mapping[str, int], *more: str) -> str:
    """Return the statements that open a transaction. One round trip carries them and the statements that follow.

    The settings use SET LOCAL: in PgBouncer's transaction mode, no setting may outlive the transaction.
    """
    local = [f"SET LOCAL {name} = {ms}" for name, ms in timeouts_ms.items()]
    # READ COMMITTED, whatever the role's default is: each statement must see what was committed before it began. Counts
    # under a lock rely on this. So does the last statement of a handler's transaction, because the job's lease may have
    # been renewed meanwhile.
    return "; ".join(["BEGIN", "SET TRANSACTION ISOLATION LEVEL READ COMMITTED", *more, *local])
