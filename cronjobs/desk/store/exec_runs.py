"""Read and write the runs of ``cronjobs exec``. Each run has one row, identified by the run's token.

Ticks do not create these rows, and may not claim them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from cronjobs.engine.probe.idle_conditions import IS_EXEC
from cronjobs.engine.probe.sql_text import JOBS, SCHEDULES, before_now, either, shifted
from cronjobs.engine.rules.lease import Finish
from cronjobs.engine.rules.quarters import NOTHING, QUARTER, ResultSpan, painted
from cronjobs.engine.rules.recovery_policy import AttemptPolicy
from cronjobs.engine.store import leases
from cronjobs.engine.store.overlap import PRESENT_TYPE
from cronjobs.engine.store.quarters import quarter_sql
from cronjobs.engine.store.sql import AMONG_IDS, AMONG_NAMES, JSON_TYPE, database_now, run
from cronjobs.model import Status

_BEGAN_AGO: Final = before_now(":began_ago")
_LEASE_LATER: Final = shifted(_BEGAN_AGO, ":lease_s")


@dataclass(frozen=True)
class ExecRow:
    """The facts about a run when it begins. The run began ``began_ago`` before the database's current time."""

    key: str
    job_type: str
    locked_by: str
    began_ago: timedelta
    lease: timedelta
    policy: AttemptPolicy
    meta: Mapping[str, str]
    enqueued_by: str
    scheduled_for: datetime | None = None


# A run's key never changes, so the run gets only one row, even if several processes insert the row.
_BEGIN: Final = f"""
  INSERT INTO {JOBS} (job_type, payload, meta, status, run_at, created_at, started_at, attempts, max_attempts,
                      locked_by, locked_until, idempotency_key, policy, enqueued_by)
  SELECT CAST(:job_type AS text), CAST(:empty AS {JSON_TYPE}), CAST(:meta AS {JSON_TYPE}), 'running', {_BEGAN_AGO},
    {_BEGAN_AGO}, {_BEGAN_AGO}, 1, 1, CAST(:locked_by AS text), {_LEASE_LATER}, CAST(:key AS text),
    CAST(:policy AS {JSON_TYPE}), CAST(:enqueued_by AS text)
  WHERE true ON CONFLICT (idempotency_key) DO NOTHING RETURNING id"""


def begin(connection: Connection, row: ExecRow) -> int | None:
    """Insert the row of a run that has begun. Return its id, or None if the run already has a row."""
    found: int | None = run(
        connection,
        _BEGIN,
        job_type=row.job_type,
        empty="{}",
        meta=json.dumps(dict(row.meta)),
        began_ago=max(0.0, row.began_ago.total_seconds()),
        lease_s=row.lease.total_seconds(),
        locked_by=row.locked_by,
        key=row.key,
        policy=row.policy.text(),
        enqueued_by=row.enqueued_by,
    ).scalar()
    return found


class ExecState(NamedTuple):
    """The state of a run's row. If ``guessed``, recovery recorded the run as lost without knowing its real end."""

    id: int
    status: Status
    guessed: bool


def find(connection: Connection, key: str) -> ExecState:
    row = run(
        connection, f"SELECT j.id, j.status, j.error_type FROM {JOBS} j WHERE j.idempotency_key = :key", key=key
    ).one()
    return ExecState(row.id, Status(row.status), row.status == Status.DEAD and row.error_type == "Lost")


def end(connection: Connection, state: ExecState, row: ExecRow, finish: Finish) -> bool:
    """Record how a run ended. Return False if the end was not recorded, because another session has locked the row."""
    if state.guessed:
        run(
            connection,
            f"""UPDATE {JOBS} SET status = 'running', locked_by = :locked_by, locked_until = {_LEASE_LATER},
                 finished_at = NULL, losses = 0, last_error = NULL, error_type = NULL, last_failed_at = NULL
               WHERE id = :id AND status = 'dead' AND error_type = 'Lost'""",
            id=state.id,
            locked_by=row.locked_by,
            began_ago=0.0,
            lease_s=row.lease.total_seconds(),
        )
    return state.id in leases.finish(connection, [finish]).written


_PRUNE: Final = f"""
  DELETE FROM {JOBS} WHERE id IN (
    SELECT j.id FROM {JOBS} j
    WHERE j.finished_at IS NOT NULL AND j.status = :status AND j.finished_at < {before_now(":kept_s")}
    ORDER BY j.finished_at LIMIT 500) RETURNING id"""


def prune(connection: Connection, kept: Mapping[Status, timedelta]) -> int:
    """Delete up to 500 old runs of each status, and return how many were deleted.

    A foreign key deletes the history of the runs with them. This function is for a database without a project, which no
    tick prunes.
    """
    return sum(
        len(run(connection, _PRUNE, status=status.value, kept_s=span.total_seconds()).all())
        for status, span in kept.items()
    )


def running_here(connection: Connection, host: str) -> list[Any]:
    """Return up to 200 runs of *host* whose end has not been recorded."""
    return list(
        run(
            connection,
            f"""SELECT j.id, j.job_type, j.locked_by, j.started_at, j.attempts FROM {JOBS} j
               WHERE j.locked_until IS NOT NULL AND {IS_EXEC} AND substr(j.locked_by, 1, :length) = :prefix
               ORDER BY j.id LIMIT 200""",
            prefix=f"{host}:",
            length=len(host) + 1,
        ).all()
    )


# --- recent runs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LatestRun:
    """A recorded run. ``meta`` is what exec wrote, unless another program has changed it."""

    id: int
    job_type: str
    status: str
    started_at: datetime
    finished_at: datetime | None
    meta: Mapping[str, str]


# The entry of ``meta`` with the instant from which the next run is expected, if that is later than this run.
EXPECTED_FROM: Final = "expected_from"
MOST_IN_STRIP: Final = 1500
MOST_NAMES: Final = 1000  # read the runs of at most this many names, and report a finding if there are more
# exec wrote each row that has an "exec:" type and has started. The condition repeats the predicate of an index, since
# otherwise the planner may not use that index.
_BEGAN_BY_EXEC: Final = f"({IS_EXEC} AND j.started_at IS NOT NULL)"


def _nth_run(nth: int) -> str:
    """Return SQL for the id of a run of name ``n``: 0 is the newest run, 1 the run before, and so on."""
    return (
        f"(SELECT j.id FROM {JOBS} j WHERE {_BEGAN_BY_EXEC} AND j.job_type = n.job_type "
        f"ORDER BY j.run_at DESC, j.id DESC LIMIT 1 OFFSET {nth})"
    )


_NAMES: Final = f"""
  WITH RECURSIVE name(job_type, place) AS (
    SELECT (SELECT min(j.job_type) FROM {JOBS} j WHERE {_BEGAN_BY_EXEC}), 1
    UNION ALL
    SELECT (SELECT min(j.job_type) FROM {JOBS} j WHERE {_BEGAN_BY_EXEC} AND j.job_type > n.job_type), n.place + 1
    FROM name n WHERE n.job_type IS NOT NULL AND n.place < :most),
  newest AS (
    SELECT {_nth_run(0)} AS id, {_nth_run(1)} AS before FROM name n WHERE n.job_type IS NOT NULL)
  SELECT id, before FROM newest"""


def latest(connection: Connection) -> dict[str, list[LatestRun]]:
    """Return the two newest runs of each name, newest first, by job type.

    If there are more than ``MOST_NAMES`` names, one extra name is returned, so that the caller notices.
    """
    rows = run(connection, _NAMES, most=MOST_NAMES + 1).all()
    return _by_type(connection, [id_ for row in rows for id_ in (row.id, row.before) if id_ is not None])


def begun_between(
    connection: Connection, job_type: str, begin: datetime | None, end: datetime | None, limit: int
) -> list[LatestRun]:
    """Return up to *limit* runs of one name that began between *begin* and *end*, newest first.

    A bound that is None does not apply.
    """
    ids = run(
        connection,
        f"""SELECT j.id FROM {JOBS} j WHERE {_BEGAN_BY_EXEC} AND j.job_type = :job_type
             AND j.run_at >= :begin AND j.run_at <= :end ORDER BY j.run_at DESC, j.id DESC LIMIT :limit""",
        job_type=job_type,
        begin=begin or datetime(1970, 1, 1, tzinfo=UTC),
        end=end or datetime(9999, 1, 1, tzinfo=UTC),
        limit=limit,
    ).scalars()
    return _by_type(connection, list(ids)).get(job_type, [])


# A schedule has taken over a line if ticks have settled the schedule for at least this long after exec's last run.
TAKEN_OVER_AFTER: Final = timedelta(minutes=5)


def run_by_cron(connection: Connection) -> dict[str, list[LatestRun]]:
    """Return ``latest`` without the names whose line a schedule has taken over.

    The schedule of a swapped line has the line's name. After the swap, only the schedule runs the line. So exec never
    runs the line again, and a finding about its last run would never end. A schedule with a handler has taken over no
    line, even if it has the name of a line.
    """
    found = latest(connection)
    if not found:
        return found
    statement = f"""SELECT s.name, s.seen_until FROM {SCHEDULES} s WHERE s.status = 'active' AND s.name {AMONG_NAMES}
      AND coalesce({PRESENT_TYPE}, s.name) = s.name"""
    seen = {row.name: row.seen_until for row in run(connection, statement, names=[*map(_name, found)])}
    return {
        job_type: runs
        for job_type, runs in found.items()
        if runs[0].status == Status.RUNNING
        or (until := seen.get(_name(job_type))) is None
        or until < runs[0].started_at + TAKEN_OVER_AFTER
    }


def _name(job_type: str) -> str:
    return job_type.partition(":")[2]


_LATELY: Final = f"""
  SELECT q.quarter, q.status FROM (
    SELECT {quarter_sql("j.run_at")} AS quarter, j.status FROM {JOBS} j
    WHERE {_BEGAN_BY_EXEC} AND j.job_type = :job_type AND j.run_at >= :begin
    ORDER BY j.run_at DESC LIMIT :most) q
  GROUP BY q.quarter, q.status"""


def quarters_lately(connection: Connection, job_type: str, first: int, count: int) -> str:
    """Return one letter for each of *count* quarter-hours, beginning with number *first*.

    The letter shows what became of the runs that began in that quarter-hour. Only the newest MOST_IN_STRIP runs are
    read. That is enough for one run a minute for a day.
    """
    begin = datetime.fromtimestamp(first * QUARTER.total_seconds(), UTC)
    rows = run(connection, _LATELY, job_type=job_type, begin=begin, most=MOST_IN_STRIP)
    became = [ResultSpan(0, row.quarter, row.quarter, "enqueued", row.status) for row in rows]
    return painted(became, first, count).get(0, NOTHING * count)


def _by_type(connection: Connection, ids: list[int]) -> dict[str, list[LatestRun]]:
    if not ids:
        return {}
    rows = run(
        connection,
        f"""SELECT j.id, j.job_type, j.status, j.started_at, j.finished_at, j.meta FROM {JOBS} j
           WHERE j.id {AMONG_IDS}""",
        ids=ids,
    )
    found: dict[str, list[LatestRun]] = {}
    for row in rows:
        meta = {str(key): str(value) for key, value in row.meta.items()} if isinstance(row.meta, dict) else {}
        each = LatestRun(row.id, row.job_type, row.status, row.started_at, row.finished_at, meta)
        found.setdefault(row.job_type, []).append(each)
    return {name: sorted(runs, key=lambda run: run.started_at, reverse=True) for name, runs in found.items()}


_WITH_MORE: Final = either(postgresql="meta || CAST(:more AS jsonb)", sqlite="json_patch(meta, :more)")
_WITHOUT_CRON: Final = either(postgresql="meta - 'cron'", sqlite="json_remove(meta, '$.cron')")


def expect_no_more(connection: Connection, ids: list[int]) -> None:
    """Forget the cron expressions of these runs, because the crontab no longer has lines with their names."""
    run(
        connection,
        f"""UPDATE {JOBS} SET meta = {_WITHOUT_CRON}
           WHERE id IN (SELECT j.id FROM {JOBS} j WHERE j.id {AMONG_IDS} AND {IS_EXEC})""",
        ids=ids,
    )


def expect_again(connection: Connection, times: Mapping[int, Mapping[str, str]]) -> None:
    """Expect the runs after these runs at the given *times*, from the database's now on.

    *times* maps the ids of runs to the entries "cron" and "timezone" of their ``meta``.
    """
    since = {EXPECTED_FROM: database_now(connection).isoformat()} if times else {}
    for id_, when in times.items():
        more = json.dumps({**when, **since})
        run(connection, f"UPDATE {JOBS} SET meta = {_WITH_MORE} WHERE id = :id", id=id_, more=more)
