"""The tokens of attempts that run on a cluster: who may run the handler, and until when.

The supervisor of a cluster writes a token before it submits the attempt (``put``). The worker takes the token
(``take``), and confirms its permit while the handler runs (``confirm``). The process that ends the attempt takes the
token back (``close``). The row of the token decides whether the supervisor or the worker may act. While the worker's
permit is valid, no other process may end or begin the attempt. Once the row is deleted, the worker can neither take the
token nor confirm its permit. On PostgreSQL a worker calls two functions, so its role needs no rights on any table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import Connection, Row

from cronjobs.engine.probe.sql_text import CONFIRM_PERMIT, JOB_RUNS, JOBS, NOW, TAKE_TOKEN, TOKENS, either
from cronjobs.engine.rules.lease import Lease
from cronjobs.engine.store.sql import group, is_postgresql, run

# The longest description of an end that a worker records in the row, in characters. The worker sends a longer one only
# through the cluster.
MOST_ENDED: Final = 900_000


def _seconds(until: str, since: str) -> str:
    return either(
        postgresql=f"CAST(extract(epoch FROM {until} - {since}) AS float8)",
        sqlite=f"(({until} - {since}) / 1000000.0)",
    )


_THESE_ATTEMPTS: Final = group("attempts", {"job_id": "bigint", "attempt": "int", "token": "text"})
_IS_THIS_ATTEMPT: Final = "t.job_id = o.job_id AND t.attempt = o.attempt"
_PERMIT_IS_OVER: Final = f"(t.permitted_until IS NULL OR t.permitted_until <= {NOW})"

Answer = Literal["yours", "taken", "cancelled", "done", "over"]


class TokenKey(NamedTuple):
    """The key with which a worker takes the token of one attempt and confirms its permit."""

    job_id: int
    attempt: int
    token: str


class Permit(NamedTuple):
    """The answer to a worker. The attempt's lease ends in ``left_s`` seconds, by the database's clock.

    "cancelled" means that the permit is valid, but the handler should stop. "done" means that the handler has ended its
    job in its own transaction.
    """

    answer: Answer
    left_s: float = 0.0


# --- the supervisor's side ----------------------------------------------------------------------------------------


def put(connection: Connection, keys: Sequence[TokenKey]) -> frozenset[int]:
    """Write the tokens of claimed attempts. Return the ids of the jobs whose token was written.

    The attempts of all other jobs must not begin, because an earlier attempt of such a job may still be running.
    """
    rows = run(
        connection,
        f"""
        INSERT INTO {TOKENS} AS t (job_id, attempt, token)
        SELECT o.job_id, o.attempt, o.token FROM {_THESE_ATTEMPTS} AS o WHERE true
        ON CONFLICT (job_id) DO UPDATE SET attempt = excluded.attempt, token = excluded.token, holder = NULL,
          taken_at = NULL, permitted_until = NULL, ended = NULL
        WHERE {_PERMIT_IS_OVER}
        RETURNING job_id""",
        attempts=[key._asdict() for key in keys],
    )
    return frozenset(rows.scalars())


class Closed(NamedTuple):
    """The result of taking tokens back.

    ``over`` are the jobs whose attempts no worker can begin or continue any more. ``unbegun`` are those of them whose
    attempts no worker began.
    """

    over: frozenset[int]
    unbegun: frozenset[int]


def close(connection: Connection, leases: Sequence[Lease]) -> Closed:
    """Take back the tokens of these attempts, except those with a valid permit, whose handler may still run."""
    if not leases:
        return Closed(frozenset(), frozenset())
    attempts = [{"job_id": lease.job_id, "attempt": lease.attempt} for lease in leases]
    gone = run(
        connection,
        f"""
        DELETE FROM {TOKENS} AS t WHERE {_PERMIT_IS_OVER}
          AND EXISTS (SELECT 1 FROM {_THESE_ATTEMPTS} AS o WHERE {_IS_THIS_ATTEMPT})
        RETURNING job_id, holder""",
        attempts=attempts,
    ).all()
    # Use a separate statement, so that it sees a token that a worker took while the DELETE waited for the token's row.
    held = run(
        connection,
        f"SELECT t.job_id FROM {TOKENS} t JOIN {_THESE_ATTEMPTS} AS o ON {_IS_THIS_ATTEMPT}",
        attempts=attempts,
    ).scalars()
    over = frozenset(lease.job_id for lease in leases) - frozenset(held)
    return Closed(over, frozenset(row.job_id for row in gone if row.holder is None))


def drop(connection: Connection, keys: Sequence[TokenKey]) -> dict[int, str]:
    """Delete the tokens of attempts that have stopped completely, as their guards have reported.

    Returns the holders, by job id.
    """
    rows = run(
        connection,
        f"""
        DELETE FROM {TOKENS} AS t
        WHERE EXISTS (SELECT 1 FROM {_THESE_ATTEMPTS} AS o WHERE {_IS_THIS_ATTEMPT} AND t.token = o.token)
        RETURNING job_id, holder""",
        attempts=[key._asdict() for key in keys],
    )
    return {row.job_id: row.holder for row in rows if row.holder is not None}


class TokenRow(NamedTuple):
    """The row of a token. ``taken_s`` is how many seconds ago a worker took the token, or None if no worker has taken
    it.

    The permit lasts for ``left_s`` more seconds. If ``left_s`` is negative, no part of the attempt is still running.
    ``ended`` is JSON that the worker wrote when the attempt ended.
    """

    job_id: int
    holder: str | None
    taken_s: float | None
    left_s: float | None
    ended: str | None


def look(connection: Connection, keys: Sequence[TokenKey]) -> dict[int, TokenRow]:
    """Return the tokens of these attempts, by job id. If an attempt has no token in the result, its token has been
    taken back.
    """
    rows = run(
        connection,
        f"""
        SELECT t.job_id, t.holder, {_seconds(NOW, "t.taken_at")} AS taken_s,
          {_seconds("t.permitted_until", NOW)} AS left_s, t.ended
        FROM {TOKENS} t JOIN {_THESE_ATTEMPTS} AS o ON {_IS_THIS_ATTEMPT} AND t.token = o.token""",
        attempts=[key._asdict() for key in keys],
    )
    return {row.job_id: TokenRow(row.job_id, row.holder, row.taken_s, row.left_s, row.ended) for row in rows}


def cancelled(connection: Connection, keys: Sequence[TokenKey]) -> list[int]:
    """Return the jobs of these attempts that somebody has asked to cancel."""
    rows = run(
        connection,
        f"""
        SELECT j.id FROM {JOBS} j JOIN {_THESE_ATTEMPTS} AS o ON j.id = o.job_id AND j.attempts = o.attempt
        WHERE j.cancel_requested_at IS NOT NULL AND j.status = 'running'""",
        attempts=[key._asdict() for key in keys],
    )
    return list(rows.scalars())


# --- the worker's side --------------------------------------------------------------------------------------------


def take(connection: Connection, key: TokenKey, holder: str) -> Permit:
    """Take the token for *holder*, which may repeat the call.

    Returns "yours", "taken" (by another), "cancelled" or "over".
    """
    if is_postgresql(connection):
        return _call(connection, TAKE_TOKEN, key, holder)
    lease = _lease_here(connection, key)
    if lease is None:
        return Permit("over")
    if not lease.cancel_requested:
        taken = run(
            connection,
            f"""
            UPDATE {TOKENS} AS t
            SET holder = :holder, taken_at = coalesce(t.taken_at, {NOW}), permitted_until = :leased_until
            WHERE {_THIS_TOKEN} AND (t.holder IS NULL OR t.holder = :holder) AND t.ended IS NULL RETURNING job_id""",
            holder=holder,
            leased_until=lease.locked_until,
            **key._asdict(),
        ).all()
        if taken:
            return Permit("yours", lease.left_s)
    row = run(connection, f"SELECT t.holder FROM {TOKENS} t WHERE {_THIS_TOKEN}", **key._asdict()).first()
    if row is None:
        return Permit("over")
    return Permit("taken" if row.holder is not None else "cancelled")


def confirm(connection: Connection, key: TokenKey, ended: str | None = None) -> Permit:
    """Renew the permit if the attempt is still leased. If *ended* is given, record it as the end of the attempt instead
    of renewing.
    """
    if is_postgresql(connection):
        return _call(connection, CONFIRM_PERMIT, key, ended)
    if ended is not None:
        over = f"""SET ended = :ended, permitted_until = {NOW}
          WHERE {_THIS_TOKEN} AND t.holder IS NOT NULL AND t.ended IS NULL RETURNING job_id"""
        rows = run(connection, f"UPDATE {TOKENS} AS t " + over, ended=ended, **key._asdict()).all()
        return Permit("yours" if rows else "over")
    lease = _lease_here(connection, key)
    if lease is None:
        itself = run(connection, f"SELECT 1 FROM {JOB_RUNS} r WHERE {_ENDED_ITSELF}", **key._asdict()).first()
        return Permit("done" if itself else "over")
    held = run(
        connection,
        f"""
        UPDATE {TOKENS} AS t SET permitted_until = :leased_until
        WHERE {_THIS_TOKEN} AND t.holder IS NOT NULL AND t.ended IS NULL RETURNING job_id""",
        leased_until=lease.locked_until,
        **key._asdict(),
    ).all()
    if not held:
        return Permit("over")
    return Permit("cancelled" if lease.cancel_requested else "yours", lease.left_s)


# These statements for SQLite do the same as the functions in the migration. They need no locks, because SQLite has only
# one writer.
_THIS_TOKEN: Final = "t.job_id = :job_id AND t.attempt = :attempt AND t.token = :token"
_ENDED_ITSELF: Final = f"""
      r.job_id = :job_id AND r.attempt = :attempt AND r.outcome = 'succeeded'
      AND EXISTS (SELECT 1 FROM {TOKENS} t WHERE {_THIS_TOKEN} AND t.holder IS NOT NULL)"""


def _lease_here(connection: Connection, key: TokenKey) -> Row[Any] | None:
    """Return the lease of an attempt and its ``left_s`` in seconds, or None if the attempt or the lease has ended."""
    return run(
        connection,
        f"""
        SELECT j.locked_until, {_seconds("j.locked_until", NOW)} AS left_s,
          j.cancel_requested_at IS NOT NULL AS cancel_requested
        FROM {JOBS} j
        WHERE j.id = :id AND j.attempts = :attempt AND j.status = 'running' AND j.locked_until > {NOW}""",
        id=key.job_id,
        attempt=key.attempt,
    ).first()


def _call(connection: Connection, function: str, key: TokenKey, last: str | None) -> Permit:
    # The casts are needed because a driver may send None or a small number as another type.
    arguments = "(CAST(:job_id AS bigint), CAST(:attempt AS int), CAST(:token AS text), CAST(:last AS text))"
    row = run(connection, f"SELECT answer, left_s FROM {function}{arguments}", last=last, **key._asdict()).one()
    return Permit(row.answer, row.left_s)
