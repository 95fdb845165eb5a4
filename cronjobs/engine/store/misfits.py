"""The facts for deciding when to give up on a misfit, which is a job whose payload does not fit its handler.

The facts are: which versions of the code refused the job's payload, and which versions still run ticks. A version is
the hash of the job types and their source, which a tick records when it loads its handlers (``store.job_types``). While
a payload waits for code that accepts it, every tick loads its handlers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from cronjobs.engine.probe.idle_conditions import MISFITS_SQL
from cronjobs.engine.probe.sql_text import JOB_RUNS, JOB_TYPE_LISTS, JOBS, NOW, TICKS, after_now, either
from cronjobs.engine.rules.misfits import LATELY, LEAST, MISFIT, MOST, OUTLIVED, UNKNOWN_CODE, Refusals
from cronjobs.engine.store.alerts import look_soon
from cronjobs.engine.store.counts import count_jobs
from cronjobs.engine.store.job_rows import FACTS_UNREAD, job_from
from cronjobs.engine.store.job_types import WITHIN_AGO, WITHIN_AHEAD
from cronjobs.engine.store.sql import AMONG_IDS, LOCK, run
from cronjobs.model import Job
from cronjobs.text import ERROR_LIMIT, one_line

# Compare the errors of at most this many jobs.
REASONS_READ: Final = 1000
_LEAST_AGO: Final = after_now(str(-LEAST.total_seconds()))
_MOST_AGO: Final = after_now(str(-MOST.total_seconds()))
_OUTLIVED: Final = f"{MISFITS_SQL} AND misfit_since <= {_MOST_AGO}"
_RUNNERS_TICK: Final = either(postgresql="right(a.runner, 12)", sqlite="substr(a.runner, -12)")
_RUNNERS_HOST: Final = either(
    postgresql="split_part(a.runner, ':', 1)", sqlite="substr(a.runner, 1, instr(a.runner, ':') - 1)"
)


def known_misfits(connection: Connection, ids: Collection[int]) -> dict[int, Refusals]:
    """Return the facts about the jobs among *ids* that have been misfits for long enough (LEAST) to be given up.

    The caller holds the jobs' leases. The caller's own version of the code counts as a version that has refused the
    jobs.
    """
    found = run(
        connection,
        f"""SELECT j.id, j.job_type, j.misfit_since FROM {JOBS} j
           WHERE j.id {AMONG_IDS} AND j.misfit_since <= {_LEAST_AGO}""",
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
    """Return the versions of the code that have ticked lately, each with the job types that it knows.

    The types are None if the tick's code is unknown. A tick that loaded no handlers counts as a tick of the last
    version that its host recorded.
    """
    rows = run(
        connection,
        f"""
        WITH lately AS (SELECT t.host, t.job_types FROM {TICKS} t
                        WHERE t.started_at >= {WITHIN_AGO} AND t.started_at <= {WITHIN_AHEAD}),
        version AS (
          SELECT t.job_types FROM lately t WHERE t.job_types IS NOT NULL
          UNION
          SELECT (SELECT t.job_types FROM {TICKS} t WHERE t.host = h.host AND t.job_types IS NOT NULL
                  ORDER BY t.id DESC LIMIT 1)
          FROM (SELECT DISTINCT t.host FROM lately t WHERE t.job_types IS NULL) h)
        SELECT v.job_types AS hash, l.names FROM version v LEFT JOIN {JOB_TYPE_LISTS} l ON l.hash = v.job_types""",
        within_s=LATELY.total_seconds(),
    )
    return {
        row.hash or UNKNOWN_CODE: frozenset(map(str, row.names)) if isinstance(row.names, list) else None
        for row in rows
    }


def _refused(connection: Connection, ids: Collection[int]) -> dict[int, set[str]]:
    rows = run(
        connection,
        f"""
        SELECT DISTINCT x.job_id, x.version FROM (
          SELECT a.job_id, coalesce(
            (SELECT t.job_types FROM {TICKS} t WHERE t.tick = {_RUNNERS_TICK}),
            -- other runners (a long job's process, a supervisor, "cronjobs run") have the code of their host
            (SELECT t.job_types FROM {TICKS} t WHERE t.host = {_RUNNERS_HOST} AND t.job_types IS NOT NULL
               AND t.started_at <= a.at ORDER BY t.id DESC LIMIT 1)) AS version
          FROM (
            SELECT r.job_id, r.runner, r.finished_at AS at FROM {JOB_RUNS} r JOIN {JOBS} j ON j.id = r.job_id
            WHERE r.job_id {AMONG_IDS} AND r.error_type = :misfit AND r.finished_at >= j.misfit_since
            UNION ALL
            SELECT j.id, j.locked_by, {NOW} FROM {JOBS} j WHERE j.id {AMONG_IDS} AND j.locked_by IS NOT NULL) a) x
        WHERE x.version IS NOT NULL""",
        ids=sorted(ids),
        misfit=MISFIT,
    )
    found: dict[int, set[str]] = {}
    for row in rows:
        found.setdefault(row.job_id, set()).add(row.version)
    return found


def outlived(connection: Connection, limit: int) -> Sequence[int]:
    """Return the ids of up to *limit* waiting jobs that have been misfits for MOST, in the order of the index."""
    statement = f"SELECT id FROM {JOBS} WHERE {_OUTLIVED} ORDER BY job_type, misfit_since, id LIMIT :limit"
    return run(connection, statement, limit=limit).scalars().all()


def give_up_outlived(connection: Connection, ids: Collection[int]) -> list[tuple[Job, str]]:
    """Mark these jobs as dead, and return them with their errors.

    Skips jobs that ``outlived`` would no longer return, or that another transaction has locked.
    """
    rows = run(
        connection,
        f"SELECT {FACTS_UNREAD}, j.last_error FROM {JOBS} j WHERE j.id {AMONG_IDS} AND j.{_OUTLIVED} {LOCK}",
        ids=sorted(ids),
    ).all()
    given_up = [
        (job_from(row), f"{one_line(str(row.last_error or MISFIT), ERROR_LIMIT - len(OUTLIVED) - 2)}; {OUTLIVED}")
        for row in rows
    ]
    for job, error in given_up:
        run(
            connection,
            f"UPDATE {JOBS} SET status = 'dead', finished_at = {NOW}, last_error = :error WHERE id = :id",
            id=job.id,
            error=error,
        )
    if given_up:
        count_jobs(connection, [job.id for job, _ in given_up])
        look_soon(connection)
    return given_up


@dataclass(frozen=True)
class WaitingMisfits:
    """The jobs of one type that are waiting for code that accepts their payloads.

    ``first`` and ``newest`` are job ids. ``error`` is the error of the job ``first``. ``reasons`` is how many different
    errors the jobs have. At most REASONS_READ jobs are read to count them.
    """

    job_type: str
    jobs: int
    since: datetime
    first: int
    newest: int
    error: str
    reasons: int = 1


def waiting_misfits(connection: Connection) -> list[WaitingMisfits]:
    rows = run(
        connection,
        f"""SELECT j.job_type, count(*) AS jobs, min(j.misfit_since) AS misfit_since, min(j.id) AS first,
             max(j.id) AS newest FROM {JOBS} j WHERE {MISFITS_SQL} GROUP BY j.job_type ORDER BY j.job_type""",
    ).all()
    if not rows:
        return []
    said = run(
        connection,
        f"SELECT j.id, j.last_error FROM {JOBS} j WHERE j.id {AMONG_IDS}",
        ids=[row.first for row in rows],
    )
    errors = {row.id: str(row.last_error or "") for row in said}
    differ = run(
        connection,
        f"""SELECT m.job_type, count(DISTINCT m.last_error) AS reasons FROM (
             SELECT job_type, last_error FROM {JOBS} WHERE {MISFITS_SQL}
             ORDER BY job_type, misfit_since, id LIMIT :read) m GROUP BY m.job_type""",
        read=REASONS_READ,
    )
    reasons = {row.job_type: row.reasons for row in differ}
    return [
        WaitingMisfits(
            *(row.job_type, row.jobs, row.misfit_since, row.first, row.newest, errors.get(row.first, "")),
            reasons=reasons.get(row.job_type, 1),
        )
        for row in rows
    ]
