"""Connection parameters, timeouts and settings for PostgreSQL sessions, with libpq or psycopg."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CONNECT_TIMEOUT_S = 5
# Connection parameters, which the URL can override.
KEEPALIVES = {
    "application_name": "cronjobs",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
# How long a frozen peer, another session's lock or a dead runner can delay us, in milliseconds. Each transaction sets
# these.
TIMEOUTS = {
    "statement_timeout": 15_000,
    "lock_timeout": 2_000,
    "idle_in_transaction_session_timeout": 30_000,
    # Without this setting, the SQL of a dead runner would keep running, and might even commit.
    "client_connection_check_interval": 2_000,
}
# With UTC, a day in our statements has 24 hours, whatever the server's time zone is, and instants need no conversion.
# psycopg can read instants only in this date style. With this value of extra_float_digits, floats are read exactly as
# they were written.
SETTINGS = {
    "timezone": "UTC",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "standard_conforming_strings": "on",
    "extra_float_digits": "1",
    # The planner overestimates the cost of the recursive parts of a claim. With jit it would compile the claim, which
    # takes longer than a thousand claims.
    "jit": "off",
    # Without statistics (autovacuum is off, or has not run yet), the planner assumes that a third of all rows are
    # leased. So it might scan ten million finished rows to find one leased row. We need no sequential scans, because
    # each of our statements on large tables has an index.
    "enable_seqscan": "off",
    # A bitmap scan would sort rows that the index already has in order.
    "enable_bitmapscan": "off",
    # The start of parallel workers takes longer than the work itself.
    "max_parallel_workers_per_gather": "0",
}
SET_SETTINGS = tuple([f"SET LOCAL {name} = '{value}'" for name, value in SETTINGS.items()])


def begin(timeouts_ms: Mapping[str, int], *more: str) -> str:
    """Return the statements that open a transaction.

    The caller sends them together with the next statements, in one round trip. The settings use SET LOCAL, because in
    PgBouncer's transaction mode no setting may outlive the transaction.
    """
    local = [f"SET LOCAL {name} = {ms}" for name, ms in timeouts_ms.items()]
    # Use READ COMMITTED, whatever the role's default is, because each statement must see everything that was committed
    # before it began. Counts under a lock rely on that. The last statement of a handler's transaction relies on it too,
    # because the job's lease may have been renewed during the transaction.
    return "; ".join(["BEGIN", "SET TRANSACTION ISOLATION LEVEL READ COMMITTED", *more, *local])
