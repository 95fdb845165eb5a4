"""Decide which jobs of a schedule block each other. Only running jobs, and jobs that some host can run, block others.

The SQL here compares a job ``j`` with the other jobs of its schedule, ``o``. ``:runnable`` is the list of job types
that some host can run. It is NULL if that is unknown, and then every job counts as runnable.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import Connection

from cronjobs.engine.probe.idle_conditions import WAITING
from cronjobs.engine.probe.sql_text import JOBS, META, SCHEDULES
from cronjobs.engine.rules.occurrences import Busy
from cronjobs.engine.store.sql import AMONG_IDS, AMONG_NAMES, among, group_value, is_postgresql, json_value, run
from cronjobs.errors import TurnTaken

_FORCED: Final = f"coalesce({json_value('j.meta', 'cronjobs.overlap')}, '') = 'allow'"
_OVERLAP_KEY: Final = json_value("s.definition", "overlap")
_IS_RUNNING: Final = "o.status = 'running'"
AMONG_RUNNABLE: Final = among("runnable")
_SOMEBODY_CAN_RUN: Final = f"(CAST(:runnable AS text) IS NULL OR o.job_type {AMONG_RUNNABLE})"
PRESENT_TYPE: Final = json_value("s.definition", "job")
# Jobs of one schedule run one at a time, oldest first. The exceptions are schedules that allow overlap and jobs that a
# person forced. No job starts while another job of the schedule runs, even if the waiting job has a lower id. A job of
# a type that no host can run does not block other jobs. If the schedule used to run another job type, jobs of that old
# type wait behind all others. All these rules are in one subquery, because a claim contains them several times, and
# planning a claim takes longer than executing it.
IN_TURN: Final = f"""
      ({_FORCED} OR NOT EXISTS (
        SELECT 1 FROM {JOBS} o LEFT JOIN {SCHEDULES} s ON s.name = o.schedule
        WHERE o.schedule = j.schedule AND o.finished_at IS NULL AND o.id <> j.id
          AND coalesce({_OVERLAP_KEY}, '') <> 'allow'
          AND ({_IS_RUNNING} OR (o.{WAITING} AND {_SOMEBODY_CAN_RUN}
            AND (CASE WHEN o.job_type = coalesce({PRESENT_TYPE}, s.name) THEN 0 ELSE 1 END, o.id)
              < (CASE WHEN j.job_type = coalesce({PRESENT_TYPE}, s.name) THEN 0 ELSE 1 END, j.id)))))"""
_OVERLAP_ALLOWED: Final = f"EXISTS (SELECT 1 FROM {SCHEDULES} s WHERE s.name = j.schedule AND {_OVERLAP_KEY} = 'allow')"
# Without a lock, two concurrent claims could each take a job of the same schedule, because neither sees the other's
# uncommitted changes. So only one claim at a time takes jobs of schedules, and holds the lock until it commits. After
# it has taken the jobs, it checks again (take_turns). The lock is on the row of cronjobs_meta, like the lock for
# limits, and not on the rows of schedules, because a tick that settles many schedules keeps those locked for a while.
HOLDS_TURN: Final = f"""
      (j.schedule IS NULL OR {_FORCED}
       OR EXISTS (SELECT 1 FROM {META} m WHERE m.id = 1 FOR NO KEY UPDATE OF m SKIP LOCKED)
       OR {_OVERLAP_ALLOWED})"""
# Only jobs of the schedule's present type keep the schedule busy, because all other jobs come from an older definition.
# Waiting jobs of a type that no host can run do not count, because they may wait forever.
_KEEPS_BUSY: Final = f"""
      (o.schedule IS NOT NULL AND o.finished_at IS NULL
       AND (s.id IS NULL OR o.job_type = coalesce({PRESENT_TYPE}, s.name))
       AND ({_IS_RUNNING} OR (o.{WAITING} AND {_SOMEBODY_CAN_RUN})))"""


def unfinished_jobs(connection: Connection, schedule: str, runnable: Collection[str] | None) -> list[Busy]:
    """Return the unfinished jobs that keep *schedule* from creating another job. ``busy_schedules`` gives the rules."""
    return busy_schedules(connection, [schedule], runnable).get(schedule, [])


def busy_schedules(
    connection: Connection, names: Collection[str], runnable: Collection[str] | None
) -> dict[str, list[Busy]]:
    """Return, for each schedule, the unfinished jobs that prevent it from creating another job, oldest first.

    Schedules without such jobs are left out. *runnable* are the job types that some host can run, or None if that is
    unknown. The result comes from rows, and never from a lock that could outlive a crash.
    """
    busy: dict[str, list[Busy]] = {}
    rows = run(
        connection,
        f"SELECT o.id, o.schedule, o.status FROM {JOBS} o LEFT JOIN {SCHEDULES} s ON s.name = o.schedule "
        f"WHERE o.schedule {AMONG_NAMES} AND {_KEEPS_BUSY} ORDER BY o.id",
        names=sorted(names),
        runnable=runnable_value(connection, runnable),
    ).all()
    for row in rows:
        busy.setdefault(row.schedule, []).append(Busy(row.id, waiting=row.status != "running"))
    return busy


def runnable_value(connection: Connection, runnable: Collection[str] | None) -> str | None:
    return None if runnable is None else group_value(connection, sorted(runnable))


def running_beside(connection: Connection, job_id: int) -> int | None:
    """Return the running job of the same schedule that this job has to wait for, or None if no such job is running."""
    found = run(
        connection,
        f"SELECT o.id FROM {JOBS} j JOIN {JOBS} o ON o.schedule = j.schedule AND o.finished_at IS NULL "
        f"AND o.id <> j.id WHERE j.id = :id AND {_IS_RUNNING} AND NOT {_FORCED} AND NOT {_OVERLAP_ALLOWED} "
        "ORDER BY o.id LIMIT 1",
        id=job_id,
    ).first()
    return None if found is None else int(found.id)


def take_turns(connection: Connection, claimed: Sequence[int]) -> None:
    """Raise TurnTaken if a job just *claimed* runs beside another job of its schedule.

    The claim itself took the lock (HOLDS_TURN). This check is a second statement, with a newer snapshot. So it also
    sees jobs that another claim took and committed before we had the lock.
    """
    if not claimed or not is_postgresql(connection):
        return
    rows = run(
        connection,
        f"""
        SELECT j.schedule FROM {JOBS} j WHERE j.id {AMONG_IDS} AND NOT {_FORCED} AND NOT {_OVERLAP_ALLOWED}
          AND EXISTS (SELECT 1 FROM {JOBS} o WHERE o.schedule = j.schedule AND o.finished_at IS NULL AND o.id <> j.id
            AND {_IS_RUNNING})""",
        ids=list(claimed),
    ).all()
    if rows:
        raise TurnTaken(rows[0].schedule)
