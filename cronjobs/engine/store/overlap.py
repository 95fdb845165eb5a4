"""Which jobs of a schedule block each other: decided by what runs and what can run, never by ids alone.

The fragments compare a job ``j`` with the others of its schedule, ``o``; ``:runnable`` is the list of job types that
some host can run, NULL if that is unknown (then any may be).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from cronjobs.engine.rules.occurrences import Busy
from cronjobs.engine.store.sql import among, define, group_value, is_postgresql, json_value, run
from cronjobs.errors import TurnTaken

define(
    # Jobs of one schedule run one at a time, oldest first, unless it allows overlap or a person forced this one: none
    # starts while another one runs, whatever their ids. A job of a type that no host can run does not block others, and
    # those of an earlier definition's type wait behind the rest. All in one subquery: it occurs several times in a
    # claim, where planning costs more than running.
    in_turn="""
      ({forced} OR NOT EXISTS (
        SELECT 1 FROM {jobs} o LEFT JOIN {schedules} s ON s.name = o.schedule
        WHERE o.schedule = j.schedule AND o.finished_at IS NULL AND o.id <> j.id
          AND coalesce({overlap_key}, '') <> 'allow'
          AND ({is_running} OR (o.{waiting} AND {somebody_can_run}
            AND (CASE WHEN o.job_type = coalesce({present_type}, s.name) THEN 0 ELSE 1 END, o.id)
              < (CASE WHEN j.job_type = coalesce({present_type}, s.name) THEN 0 ELSE 1 END, j.id)))))""",
    overlap_allowed="EXISTS (SELECT 1 FROM {schedules} s WHERE s.name = j.schedule AND {overlap_key} = 'allow')",
    another_runs="""
      EXISTS (SELECT 1 FROM {jobs} o WHERE o.schedule = j.schedule AND o.finished_at IS NULL AND o.id <> j.id
        AND {is_running})""",
    is_running="o.status = 'running'",
    somebody_can_run="(CAST(:runnable AS text) IS NULL OR o.job_type {among_runnable})",
    # Two concurrent claims could each take another job of the schedule, as neither sees what the other has not
    # committed. So only one at a time takes jobs of schedules until it commits, and checks again afterwards; see
    # take_turns. The lock is on the row of cronjobs_meta, like the one for limits: a tick locks a schedule's own row
    # for as long as it settles many.
    holds_turn="""
      (j.schedule IS NULL OR {forced}
       OR EXISTS (SELECT 1 FROM {meta} m WHERE m.id = 1 FOR NO KEY UPDATE OF m SKIP LOCKED)
       OR {overlap_allowed})""",
    forced="coalesce({forced_key}, '') = 'allow'",
    forced_key=json_value("j.meta", "cronjobs.overlap"),
    overlap_key=json_value("s.definition", "overlap"),
    among_runnable=among("runnable"),
    # Only jobs of the schedule's present type: others are of an older definition. Nor jobs of a type that no host can
    # run, which may wait for ever.
    keeps_busy="""
      (o.schedule IS NOT NULL AND o.finished_at IS NULL
       AND (s.id IS NULL OR o.job_type = coalesce({present_type}, s.name))
       AND ({is_running} OR (o.{waiting} AND {somebody_can_run})))""",
    present_type=json_value("s.definition", "job"),
)


def unfinished_jobs(connection: Connection, schedule: str, runnable: Collection[str] | None) -> list[Busy]:
    """The jobs that keep *schedule* from making another one; see ``busy_schedules``."""
    return busy_schedules(connection, [schedule], runnable).get(schedule, [])


def busy_schedules(
    connection: Connection, names: Collection[str], runnable: Collection[str] | None
) -> dict[str, list[Busy]]:
    """By schedule, the unfinished jobs that keep it from making another one, oldest first; others are left out.

    *runnable*: the job types that some host can run; None: any may be. Read from rows, never from a lock that could
    outlive a crash.
    """
    busy: dict[str, list[Busy]] = {}
    rows = run(
        connection,
        "SELECT o.id, o.schedule, o.status FROM {jobs} o LEFT JOIN {schedules} s ON s.name = o.schedule "
        "WHERE o.schedule {among_names} AND {keeps_busy} ORDER BY o.id",
        names=sorted(names),
        runnable=runnable_value(connection, runnable),
    ).all()
    for row in rows:
        busy.setdefault(row.schedule, []).append(Busy(row.id, waiting=row.status != "running"))
    return busy


def runnable_value(connection: Connection, runnable: Collection[str] | None) -> str | None:
    """The parameter ``:runnable``."""
    return None if runnable is None else group_value(connection, sorted(runnable))


def hold_turn(connection: Connection) -> None:
    """Keep others from starting jobs of schedules until this transaction ends; waits for one that is doing so."""
    if is_postgresql(connection):
        run(connection, "SELECT m.id FROM {meta} m WHERE m.id = 1 FOR NO KEY UPDATE").all()


def turn_is_taken(connection: Connection) -> bool:
    """Whether another claim is taking jobs of schedules just now, so that ours skipped them."""
    if not is_postgresql(connection):
        return False
    return run(connection, "SELECT m.id FROM {meta} m WHERE m.id = 1 FOR NO KEY UPDATE SKIP LOCKED").first() is None


def running_beside(connection: Connection, job_id: int) -> int | None:
    """A running job of the same schedule that this one has to wait for."""
    found = run(
        connection,
        "SELECT o.id FROM {jobs} j JOIN {jobs} o ON o.schedule = j.schedule AND o.finished_at IS NULL AND o.id <> j.id "
        "WHERE j.id = :id AND {is_running} AND NOT {forced} AND NOT {overlap_allowed} ORDER BY o.id LIMIT 1",
        id=job_id,
        runnable=None,
    ).first()
    return None if found is None else int(found.id)


def take_turns(connection: Connection, claimed: Sequence[int], runnable: Collection[str] | None) -> None:
    """Check that the schedules whose jobs were just *claimed* run nothing else. Raises TurnTaken.

    A statement of its own, after the claim has the lock: it sees what another claim committed meanwhile.
    """
    if not claimed or not is_postgresql(connection):
        return
    rows = run(
        connection,
        "SELECT j.schedule FROM {jobs} j WHERE j.id {among_ids} AND NOT {forced} AND NOT {overlap_allowed} "
        "AND {another_runs}",
        ids=list(claimed),
        runnable=runnable_value(connection, runnable),
    ).all()
    if rows:
        raise TurnTaken(rows[0].schedule)
