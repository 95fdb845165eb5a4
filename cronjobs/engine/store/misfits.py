"""Which versions of the code have refused a job, and which tick: what decides whether its payload is given up.

A version is what a tick that loads its handlers records: the hash of its job types and of their source
(``store.job_types``). While a payload waits for code that takes it, every tick loads them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from cronjobs.engine.probe.idle_conditions import after_now
from cronjobs.engine.rules.misfits import LATELY, LEAST, MISFIT, MOST, OUTLIVED, UNKNOWN_CODE, Refusals
from cronjobs.engine.store import job_types  # noqa: F401  its fragments: within_ago, within_ahead
from cronjobs.engine.store.alerts import look_soon
from cronjobs.engine.store.job_rows import job_from
from cronjobs.engine.store.sql import define, run
from cronjobs.model import Job
from cronjobs.text import ERROR_LIMIT, one_line

define(
    least_ago=after_now(str(-LEAST.total_seconds())),
    outlived="{misfit} AND misfit_since <= {most_ago}",
    most_ago=after_now(str(-MOST.total_seconds())),
    runners_tick=lambda postgresql: "right(a.runner, 12)" if postgresql else "substr(a.runner, -12)",
    runners_host=lambda postgresql: (
        "split_part(a.runner, ':', 1)" if postgresql else "substr(a.runner, 1, instr(a.runner, ':') - 1)"
    ),
)


def known_misfits(connection: Connection, ids: Collection[int]) -> dict[int, Refusals]:
    """What is known of those jobs whose first misfit is long enough ago to give them up.

    Their leases are the caller's, whose own version counts as one that has refused them.
    """
    found = run(
        connection,
        """SELECT j.id, j.job_type, j.misfit_since FROM {jobs} j
           WHERE j.id {among_ids} AND j.misfit_since <= {least_ago}""",
        ids=sorted(ids),
    ).all()
    if not found:
        return {}
    refused = _refused(connection, [row.id for row in found])
    ticked = versions_that_tick(connection)
    return {
        row.id: Refusals(
            row.misfit_since,
            frozenset(refused.get(row.id, ())),
            frozenset(version for version, types in ticked.items() if types is None or row.job_type in types),
        )
        for row in found
    }


def versions_that_tick(connection: Connection) -> dict[str, frozenset[str] | None]:
    """The versions that ticked lately, with the job types that they know; None: the tick's code is unknown.

    Of a tick that loaded no handlers the last version of its host counts.
    """
    rows = run(
        connection,
        """
        WITH lately AS (SELECT t.host, t.job_types FROM {ticks} t
                        WHERE t.started_at >= {within_ago} AND t.started_at <= {within_ahead}),
        version AS (
          SELECT t.job_types FROM lately t WHERE t.job_types IS NOT NULL
          UNION
          SELECT (SELECT t.job_types FROM {ticks} t WHERE t.host = h.host AND t.job_types IS NOT NULL
                  ORDER BY t.id DESC LIMIT 1)
          FROM (SELECT DISTINCT t.host FROM lately t WHERE t.job_types IS NULL) h)
        SELECT v.job_types AS hash, l.names FROM version v LEFT JOIN {job_type_lists} l ON l.hash = v.job_types""",
        within_s=LATELY.total_seconds(),
    )
    return {
        row.hash or UNKNOWN_CODE: frozenset(map(str, row.names)) if isinstance(row.names, list) else None
        for row in rows
    }


def _refused(connection: Connection, ids: Collection[int]) -> dict[int, set[str]]:
    rows = run(
        connection,
        """
        SELECT DISTINCT x.job_id, x.version FROM (
          SELECT a.job_id, coalesce(
            (SELECT t.job_types FROM {ticks} t WHERE t.tick = {runners_tick}),
            -- a long job's process, a supervisor, "cronjobs run": they have the code of their host
            (SELECT t.job_types FROM {ticks} t WHERE t.host = {runners_host} AND t.job_types IS NOT NULL
               AND t.started_at <= a.at ORDER BY t.id DESC LIMIT 1)) AS version
          FROM (
            SELECT r.job_id, r.runner, r.finished_at AS at FROM {job_runs} r JOIN {jobs} j ON j.id = r.job_id
            WHERE r.job_id {among_ids} AND r.error_type = :misfit AND r.finished_at >= j.misfit_since
            UNION ALL
            SELECT j.id, j.locked_by, {now} FROM {jobs} j WHERE j.id {among_ids} AND j.locked_by IS NOT NULL) a) x
        WHERE x.version IS NOT NULL""",
        ids=sorted(ids),
        misfit=MISFIT,
    )
    found: dict[int, set[str]] = {}
    for row in rows:
        found.setdefault(row.job_id, set()).add(row.version)
    return found


def outlived(connection: Connection, limit: int) -> Sequence[int]:
    """Ids of up to *limit* waiting jobs whose payload has not fitted for MOST, in the order of their index."""
    statement = "SELECT id FROM {jobs} WHERE {outlived} ORDER BY job_type, misfit_since, id LIMIT :limit"
    return run(connection, statement, limit=limit).scalars().all()


def give_up_outlived(connection: Connection, ids: Collection[int]) -> list[tuple[Job, str]]:
    """Let those of them be dead of which it still holds and that nobody has locked; each with its error."""
    rows = run(
        connection,
        "SELECT {facts_unread}, j.last_error FROM {jobs} j WHERE j.id {among_ids} AND j.{outlived} {lock}",
        ids=sorted(ids),
    ).all()
    given_up = [(job_from(row), _outlived(row.last_error)) for row in rows]
    for job, error in given_up:
        run(
            connection,
            "UPDATE {jobs} SET status = 'dead', finished_at = {now}, last_error = :error WHERE id = :id",
            id=job.id,
            error=error,
        )
    if given_up:
        look_soon(connection)
    return given_up


def _outlived(said: object) -> str:
    return f"{one_line(str(said or MISFIT), ERROR_LIMIT - len(OUTLIVED) - 2)}; {OUTLIVED}"


@dataclass(frozen=True)
class WaitingMisfits:
    """The jobs of a type that wait for code that takes their payloads: how many, since when, and how one of them fails.

    ``first`` and ``newest`` are ids; the error is that of ``first``.
    """

    job_type: str
    jobs: int
    since: datetime
    first: int
    newest: int
    error: str


def waiting_misfits(connection: Connection) -> list[WaitingMisfits]:
    rows = run(
        connection,
        """SELECT j.job_type, count(*) AS jobs, min(j.misfit_since) AS misfit_since, min(j.id) AS first,
             max(j.id) AS newest FROM {jobs} j WHERE {misfit} GROUP BY j.job_type ORDER BY j.job_type""",
    ).all()
    if not rows:
        return []
    said = run(
        connection,
        "SELECT j.id, j.last_error FROM {jobs} j WHERE j.id {among_ids}",
        ids=[row.first for row in rows],
    )
    errors = {row.id: str(row.last_error or "") for row in said}
    return [
        WaitingMisfits(row.job_type, row.jobs, row.misfit_since, row.first, row.newest, errors.get(row.first, ""))
        for row in rows
    ]
