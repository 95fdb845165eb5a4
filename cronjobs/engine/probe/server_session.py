"""Connection parameters, timeouts and settings for a PostgreSQL server, through libpq or psycopg."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CONNECT_TIMEOUT_S = 5
# Connection parameters, unless the URL says otherwise.
KEEPALIVES = {
    "application_name": "cronjobs",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
# Limits on the cost of a frozen peer, a foreign lock or a dead runner. In milliseconds, set for each transaction.
TIMEOUTS = {
    "statement_timeout": 15_000,
    "lock_timeout": 2_000,
    "idle_in_transaction_session_timeout": 30_000,
    # Otherwise a dead runner's SQL goes on, and even commits.
    "client_connection_check_interval": 2_000,
}
# UTC: days have 24 hours in our statements whatever the server's zone, and instants need no conversion. The others:
# psycopg reads instants only in that style, and floats must come back exactly as written.
SETTINGS = {
    "timezone": "UTC",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "standard_conforming_strings": "on",
    "extra_float_digits": "1",
    # Compiling a claim would take longer than a thousand of them: the planner takes its recursive parts for huge.
    "jit": "off",
    # Without statistics (autovacuum is off, or has not come yet) the planner assumes that a third of all rows is
    # leased, and reads ten million finished ones to find one. Each of our statements about a big table has its index.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",  # it sorts what an index already has in order
    "max_parallel_workers_per_gather": "0",  # starting them takes longer than their work
}
SET_SETTINGS = tuple([f"SET LOCAL {name} = '{value}'" for name, value in SETTINGS.items()])


def begin(timeouts_ms: Mapping[str, int], *more: str) -> str:
    """The statements that open a transaction; one round trip carries them and what follows.

    SET LOCAL: nothing may outlive the transaction in PgBouncer's transaction mode.
    """
    local = [f"SET LOCAL {name} = {ms}" for name, ms in timeouts_ms.items()]
    # Each statement must see what was committed when it began, whatever the role's default: counts under a lock rely on
    # it, and so does a handler's last statement, whose row may have been renewed in between.
    return "; ".join(["BEGIN", "SET TRANSACTION ISOLATION LEVEL READ COMMITTED", *more, *local])
