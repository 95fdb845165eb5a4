"""The statements of ``history``: attempts, deaths, occurrences, ticks, and what people or deploys changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, Select, Text, and_, literal_column, or_, select

from cronjobs.desk.store.listing import STREAM_BATCH, Filter, in_status, without_index
from cronjobs.desk.store.workload import RUN_SECONDS
from cronjobs.engine.database.tables import job_runs, jobs, occurrences, schedules
from cronjobs.engine.probe.sql_text import (
    JOB_RUNS,
    JOB_TYPE_LISTS,
    JOBS,
    OCCURRENCES,
    SCHEDULES,
    TICKS,
    after_now,
    either,
    shifted,
    shifted_back,
)
from cronjobs.engine.rules.occurrences import BACKFILLED, BEFORE, RAN_EARLY
from cronjobs.engine.store.shown_columns import LONGEST, beginning, columns_shown, shown
from cronjobs.engine.store.sql import AMONG_IDS, AMONG_NAMES, run
from cronjobs.model import Status

FOREVER: Final = datetime(9999, 12, 31, tzinfo=UTC)  # later than every instant in the database
# The outcomes of occurrences that did not run when they were due.
DID_NOT_RUN: Final = ("missed", "skipped", "coalesced", "early")

# If an occurrence's row now says "enqueued", its outcome at the due time may have been different. The row's reason then
# says why: a wrong clock ran the occurrence early, or a backfill ran it after it had been missed or skipped.
_LATER_OR_EARLIER: Final = {"early": f"{RAN_EARLY}%"} | {
    became: f"{BACKFILLED} %{BEFORE}{became}%" for became in ("missed", "skipped")
}

_AT_ITS_TIME: Final = (
    "CASE "
    + " ".join(
        f"WHEN c.outcome = 'enqueued' AND c.reason LIKE '{text_}' THEN '{became}'"
        for became, text_ in _LATER_OR_EARLIER.items()
    )
    + " ELSE c.outcome END"
)


def _reason_before(became: str) -> str:
    """Return SQL for the reason that the row gave before a backfill ran the occurrence.

    *became* is the row's outcome at that time, "missed" or "skipped".
    """
    mark = f"{BEFORE}{became} ("
    at = either(postgresql=f"strpos(c.reason, '{mark}')", sqlite=f"instr(c.reason, '{mark}')")
    return (
        f"WHEN c.reason LIKE '{BACKFILLED} %{mark}%' "
        f"THEN substr(c.reason, {at} + {len(mark)}, length(c.reason) - {at} - {len(mark)})"
    )


_REASON_AT_ITS_TIME: Final = (
    f"CASE WHEN c.outcome <> 'enqueued' THEN c.reason {_reason_before('missed')} {_reason_before('skipped')} "
    f"WHEN c.reason LIKE '{BACKFILLED} %' THEN NULL ELSE c.reason END"
)
# A backfill writes its own job into the row, in place of the job that the occurrence gave way to. So the row no longer
# has the job at the due time.
_JOB_AT_ITS_TIME: Final = (
    f"CASE WHEN c.outcome = 'enqueued' AND c.reason LIKE '{BACKFILLED} %' THEN NULL ELSE c.job_id END"
)

_WHO: Final = f"""CAST(substr(j.schedule, 1, {LONGEST}) AS text) AS schedule,
            CASE WHEN j.schedule IS NULL THEN CAST(substr(j.job_type, 1, {LONGEST}) AS text) END AS job_type"""

# Leave out tracebacks and outputs, which can add up to hundreds of megabytes in one night. "jobs show" prints them.
_BRIEF: Final = [column for column in job_runs.c if column.name not in ("traceback", "output")]


def attempts_since(
    connection: Connection,
    since: datetime,
    limit: int,
    *,
    names: Collection[str] | None = None,
    job_type: str | None = None,
    outcomes: Collection[str] | None = None,
    until: datetime = FOREVER,
) -> Sequence[Row[Any]]:
    """Return the newest *limit* attempts that ended from *since* on and before *until*, newest first."""
    query: Select[Any] = (
        select(*shown(connection, [*_BRIEF, jobs.c.job_type, jobs.c.schedule, jobs.c.scheduled_for]))
        .join(jobs, jobs.c.id == job_runs.c.job_id)
        .where(job_runs.c.finished_at >= since, job_runs.c.finished_at < until)
        .order_by(job_runs.c.finished_at.desc(), job_runs.c.job_id.desc(), job_runs.c.attempt.desc())
        .limit(limit)
    )
    query = query.where(*without_index(Filter(job_type=job_type)), *_of_schedule(names))
    if outcomes is not None:
        query = query.where(job_runs.c.outcome.in_(list(outcomes)))
    return connection.execute(query).all()


def _of_schedule(names: Collection[str] | None) -> list[ColumnElement[bool]]:
    """Return the condition for jobs of the schedule that has had these *names*.

    An ended job keeps the name that its schedule had when the job ended.
    """
    return [] if names is None else [jobs.c.schedule.in_(list(names))]


def deaths_since(
    connection: Connection,
    since: datetime,
    limit: int,
    *,
    names: Collection[str] | None = None,
    job_type: str | None = None,
    until: datetime = FOREVER,
) -> Sequence[Row[Any]]:
    """Return the newest *limit* jobs that died from *since* on and before *until* and are still dead, newest first."""
    dismissed = and_(jobs.c.dismissed_at.is_not(None), jobs.c.dismissed_at >= jobs.c.finished_at)
    columns = (jobs.c.job_type, jobs.c.schedule, jobs.c.scheduled_for, jobs.c.finished_at, jobs.c.error_type)
    query: Select[Any] = (
        select(
            jobs.c.id.label("job_id"),
            *shown(connection, columns),
            beginning(jobs.c.last_error).label("error"),
            dismissed.label("dismissed"),
        )
        .where(jobs.c.finished_at < until)
        .where(*in_status(Status.DEAD, since), *without_index(Filter(job_type=job_type)), *_of_schedule(names))
        .order_by(jobs.c.finished_at.desc(), jobs.c.id.desc())
        .limit(limit)
    )
    return connection.execute(query).all()


def not_run_since(
    connection: Connection,
    since: datetime,
    limit: int,
    *,
    schedule_ids: Collection[int] | None = None,
    outcomes: Collection[str] = DID_NOT_RUN,
    until: datetime = FOREVER,
    gap_from: datetime | None = None,
) -> Sequence[Row[Any]]:
    """Return the newest *limit* ledger rows of occurrences that did not run at their time, newest first.

    The occurrences were due at or after *since*. If they were settled at or after *since*, they may have been due
    earlier, back to *gap_from*. Only rows with these *outcomes* are returned. In the result, ``outcome`` is the row's
    own outcome, or "early", or the outcome that the row had before a backfill ran the occurrence.
    """
    rows = occurrences.alias("c")
    at_its_time: ColumnElement[str] = literal_column(_AT_ITS_TIME, Text)
    others = [each for each in rows.c if each.name != "outcome"]
    query: Select[Any] = (
        select(*others, at_its_time.label("outcome"), schedules.c.name.label("schedule"))
        .join(schedules, schedules.c.id == rows.c.schedule_id)
        .where(rows.c.last_for >= (gap_from or since), or_(rows.c.last_for >= since, rows.c.decided_at >= since))
        .where(rows.c.last_for < until, at_its_time.in_(list(outcomes)))
        .order_by(rows.c.last_for.desc(), rows.c.schedule_id.desc())
        .limit(limit)
    )
    if schedule_ids is not None:
        query = query.where(rows.c.schedule_id.in_(list(schedule_ids)))
    return connection.execute(query).all()


def newest_begin(connection: Connection, kind: str, most: int, since: datetime, until: datetime) -> datetime:
    """Return *since* or, if there are more than *most* rows of this *kind*, the instant of the *most*-th newest.

    *kind* is "attempt" or "occurrence".
    """
    column = {"attempt": job_runs.c.finished_at, "occurrence": occurrences.c.last_for}[kind]
    query = select(column).where(column >= since, column < until).order_by(column.desc()).limit(2).offset(most - 1)
    found = connection.execute(query).scalars().all()
    return found[0] if len(found) == 2 else since


def tallies(
    connection: Connection,
    since: Mapping[str, datetime],
    most: int,
    *,
    names: Collection[str] | None = None,
    job_type: str | None = None,
    schedule_ids: Collection[int] | None = None,
    outcome: str | None = None,
    until: datetime = FOREVER,
    gap_from: datetime | None = None,
) -> Sequence[Row[Any]]:
    """Count attempts, deaths and occurrences without a run, by outcome and schedule (or job type, without a schedule).

    *since* has one instant for each kind: attempt, death, occurrence. For *gap_from* see ``not_run_since``. For each
    outcome, at most *most* groups are returned, the largest first. ``in_all`` is the sum of all groups. ``job_id`` and
    ``reason`` are None if a group has several jobs or reasons. The database does the counting, so a million rows need
    not be fetched.
    """
    of_job = f"""(:any_name OR j.schedule {AMONG_NAMES})
        AND (CAST(:job_type AS text) IS NULL OR j.job_type = CAST(:job_type AS text))"""
    rows = run(
        connection,
        f"""
        WITH each AS (
          SELECT {_WHO}, r.outcome, 1 AS number, r.started_at AS first_at, r.started_at AS last_at,
            {RUN_SECONDS} AS seconds, r.job_id, NULL AS reason
          FROM {JOB_RUNS} r JOIN {JOBS} j ON j.id = r.job_id
          WHERE r.finished_at >= :attempts_since AND r.finished_at < :until AND {of_job}
          UNION ALL
          SELECT {_WHO}, 'dead', 1, j.finished_at, j.finished_at, NULL, j.id, NULL FROM {JOBS} j
          WHERE j.status = 'dead' AND j.finished_at IS NOT NULL AND j.finished_at >= :deaths_since
            AND j.finished_at < :until AND {of_job}
          UNION ALL
          SELECT s.name, NULL, {_AT_ITS_TIME}, c.count, c.first_for, c.last_for, NULL,
            {_JOB_AT_ITS_TIME}, {_REASON_AT_ITS_TIME}
          FROM {OCCURRENCES} c JOIN {SCHEDULES} s ON s.id = c.schedule_id
          WHERE {_AT_ITS_TIME} IN {DID_NOT_RUN} AND c.last_for >= :gap_from
            AND (c.last_for >= :occurrences_since OR c.decided_at >= :occurrences_since)
            AND c.last_for < :until AND (:any_schedule OR s.id {AMONG_IDS})),
        sums AS (
          SELECT schedule, job_type, outcome, CAST(sum(number) AS bigint) AS number, min(first_at) AS first_at,
            max(last_at) AS last_at, sum(seconds) / sum(number) AS seconds, max(seconds) AS longest,
            CASE WHEN min(job_id) = max(job_id) AND count(job_id) = count(*) THEN min(job_id) END AS job_id,
            CASE WHEN min(reason) = max(reason) AND count(reason) = count(*) THEN min(reason) END AS reason
          FROM each WHERE CAST(:outcome AS text) IS NULL OR outcome = CAST(:outcome AS text)
          GROUP BY schedule, job_type, outcome)
        SELECT * FROM (
          SELECT sums.*, CAST(sum(number) OVER (PARTITION BY outcome) AS bigint) AS in_all,
            row_number() OVER (PARTITION BY outcome ORDER BY number DESC, schedule, job_type) AS place
          FROM sums) placed
        WHERE place <= :most ORDER BY first_at, schedule, job_type, outcome""",
        **{f"{kind}s_since": at for kind, at in since.items()},
        until=until,
        gap_from=gap_from or since["occurrence"],
        any_name=names is None,
        names=list(names or ()),
        job_type=job_type,
        any_schedule=schedule_ids is None,
        ids=list(schedule_ids or ()),
        outcome=outcome,
        most=most,
    )
    return rows.all()


def named_jobs(connection: Connection, ids: Sequence[int]) -> dict[int, tuple[str, str | None]]:
    """Return the job type and the schedule of each of these jobs that still exists, by id."""
    found: dict[int, tuple[str, str | None]] = {}
    statement = f"SELECT j.id, {columns_shown('job_type', 'schedule')} FROM {JOBS} j WHERE j.id {AMONG_IDS}"
    for first in range(0, len(ids), STREAM_BATCH):
        batch = ids[first : first + STREAM_BATCH]
        found |= {row.id: (row.job_type, row.schedule) for row in run(connection, statement, ids=batch)}
    return found


def spans_at_work(
    connection: Connection, ids: Sequence[int], since: datetime
) -> dict[int, list[tuple[datetime, datetime | None]]]:
    """Map each job's id to the spans, ending after *since*, in which the job was running.

    In these spans a cancel could only ask the job to stop. An end of None means that the job is still running. If the
    last attempt of a cancelled job has another outcome (its runner died, or its handler failed), the cancel itself
    ended the job, so the attempt's span is left out.
    """
    found: dict[int, list[tuple[datetime, datetime | None]]] = {}
    statement = f"""
        SELECT r.job_id, r.started_at, r.finished_at FROM {JOB_RUNS} r JOIN {JOBS} j ON j.id = r.job_id
        WHERE r.job_id {AMONG_IDS} AND r.finished_at >= :since
          AND NOT (j.status = 'cancelled' AND r.attempt = j.attempts AND r.outcome <> 'cancelled')
        UNION ALL
        SELECT j.id AS job_id, j.started_at, j.finished_at FROM {JOBS} j
        WHERE j.id {AMONG_IDS} AND j.status = 'running' AND j.started_at IS NOT NULL"""
    for first in range(0, len(ids), STREAM_BATCH):
        for row in run(connection, statement, ids=ids[first : first + STREAM_BATCH], since=since):
            found.setdefault(row.job_id, []).append((row.started_at, row.finished_at))
    return found


def code_changes(
    connection: Connection, since: datetime, read_from: datetime, until: datetime, limit: int
) -> Sequence[Row[Any]]:
    """Return the newest *limit* ticks since *since* whose version or job types differ from their host's previous tick.

    Only ticks since *read_from* that loaded handlers are compared. ``names`` and ``old_names`` are the job types.
    """
    return run(
        connection,
        f"""
        SELECT pair.host, pair.started_at, pair.version, pair.old_version, n.names, o.names AS old_names
        FROM (
          SELECT t.host, t.started_at, t.version, t.job_types, lag(t.version) OVER mine AS old_version,
            lag(t.job_types) OVER mine AS old_types
          FROM {TICKS} t WHERE t.job_types IS NOT NULL AND t.started_at >= :read_from AND t.started_at < :until
          WINDOW mine AS (PARTITION BY t.host ORDER BY t.started_at, t.id)) pair
        LEFT JOIN {JOB_TYPE_LISTS} n ON n.hash = pair.job_types LEFT JOIN {JOB_TYPE_LISTS} o ON o.hash = pair.old_types
        WHERE pair.started_at >= :since
          AND (pair.version <> pair.old_version OR pair.job_types <> pair.old_types)
        ORDER BY pair.started_at DESC LIMIT :limit""",
        since=since,
        read_from=read_from,
        until=until,
        limit=limit,
    ).all()


def clocks_set_back(connection: Connection, since: datetime, by: timedelta) -> Sequence[Row[Any]]:
    """Return the pairs of ticks between which the clock was set back by more than *by*.

    The first tick of each pair began after *since*. ``finished_at`` is the start of the last tick whose clock was
    ahead, and ``started_at`` that of the next tick. The comparison uses the next tick's end, because the row of a
    frozen tick may be written long after the tick began.
    """
    return run(
        connection,
        f"""
        SELECT ahead_at AS finished_at, n.started_at FROM (
          SELECT t.started_at AS ahead_at, (SELECT a.id FROM {TICKS} a
            WHERE a.id > t.id AND a.finished_at IS NOT NULL ORDER BY a.id LIMIT 1) AS next_id
          FROM {TICKS} t WHERE t.started_at >= :since) AS pairs JOIN {TICKS} n ON n.id = next_id
        WHERE n.finished_at < {shifted_back("ahead_at", ":by_s")} ORDER BY ahead_at""",
        since=since,
        by_s=by.total_seconds(),
    ).all()


def tick_gaps(connection: Connection, since: datetime, gap: timedelta) -> Sequence[Row[Any]]:
    """Return the gaps longer than *gap* from the end of all earlier ticks to the start of the next tick.

    ``host`` and ``did`` are the next tick's.

    The search begins with the tick before *since*. The caller adds the gap from the last tick to now. A time without
    ticks is not a gap if a tick whose clock was ahead ran in that time. Such a tick has an id between the ids of the
    two ticks, although its time is not between theirs.
    """
    return run(
        connection,
        f"""
        SELECT quiet_from AS started_at, next_at AS finished_at, host, did FROM (
          SELECT t.started_at AS next_at, t.host, t.did, t.id AS next_id,
            lag(t.id) OVER (ORDER BY t.started_at, t.id) AS last_id,
            max(coalesce(t.finished_at, t.started_at)) OVER (
              ORDER BY t.started_at, t.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS quiet_from
          FROM {TICKS} t WHERE t.started_at >= coalesce(
            (SELECT max(b.started_at) FROM {TICKS} b WHERE b.started_at <= :since), :since)) AS pairs
        WHERE quiet_from < {shifted_back("next_at", ":gap_s")} AND NOT EXISTS (SELECT 1 FROM {TICKS} a
          WHERE a.id > last_id AND a.id < next_id AND a.started_at > {shifted("next_at", ":gap_s")})
        ORDER BY next_at""",
        since=since,
        gap_s=gap.total_seconds(),
    ).all()


def gap_before_oldest(connection: Connection, retention: timedelta, gap: timedelta) -> Row[Any] | None:
    """Return the gap before the oldest tick that is kept, if ticks ran before it, else None.

    The gap began at ``started_at`` or earlier: an occurrence was due then, and waited for this tick. Occurrences of a
    backfill do not count. If ticks had run all the time, the oldest tick would be as old as the *retention* of ticks.
    ``host`` and ``did`` are the tick's.
    """
    return run(
        connection,
        f"""
        SELECT (SELECT min(c.first_for) FROM {OCCURRENCES} c WHERE c.last_for < {shifted_back("o.started_at", ":gap_s")}
            AND c.decided_at >= o.started_at AND c.decided_at <= {shifted("o.started_at", ":gap_s")}
            AND (c.reason IS NULL OR c.reason NOT LIKE '{BACKFILLED}%')) AS started_at,
          o.started_at AS finished_at, o.host, o.did
        FROM (SELECT t.started_at, t.host, t.did FROM {TICKS} t ORDER BY t.started_at, t.id LIMIT 1) AS o
        WHERE o.started_at > {after_now(":kept_s")}""",
        gap_s=gap.total_seconds(),
        kept_s=(gap - retention).total_seconds(),
    ).first()


def host_gaps(
    connection: Connection, since: datetime, read_from: datetime, gap: timedelta, steady: int
) -> Sequence[Row[Any]]:
    """Return each host's long gaps between ticks.

    A gap counts if it is longer than *gap*, it ended after *since*, and other hosts ticked meanwhile. This reads ticks
    from *read_from* on, and leaves out hosts with fewer than *steady* of them.
    """
    # Use an expression instead of the column, so that SQLite uses the index by time. With the column it would read the
    # whole index by host.
    host = "t.host || ''"
    return run(
        connection,
        f"""
        SELECT host, quiet_from AS started_at, next_at AS finished_at, did FROM (
          SELECT t.host, t.did, t.started_at AS next_at, count(*) OVER (PARTITION BY {host}) AS ticks,
            max(coalesce(t.finished_at, t.started_at)) OVER (PARTITION BY {host}
              ORDER BY t.started_at, t.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS quiet_from
          FROM {TICKS} t WHERE t.started_at >= :read_from) AS pairs
        WHERE ticks >= :steady AND next_at >= :since AND quiet_from < {shifted_back("next_at", ":gap_s")}
          AND EXISTS (SELECT 1 FROM {TICKS} o WHERE o.host <> pairs.host
            AND o.started_at > {shifted("quiet_from", ":half_s")}
            AND o.started_at < {shifted_back("next_at", ":half_s")})
        ORDER BY next_at, host""",
        since=since,
        read_from=read_from,
        steady=steady,
        gap_s=gap.total_seconds(),
        half_s=gap.total_seconds() / 2,
    ).all()


def schedules_off(connection: Connection, since: datetime, longer: timedelta) -> Sequence[Row[Any]]:
    """Return the spans longer than *longer* in which ticks ran, but none of them had schedules switched on."""
    return run(
        connection,
        f"""
        SELECT began_at AS started_at, ended_at AS finished_at FROM (
          SELECT min(started_at) AS began_at, max(started_at) AS ended_at FROM (
            SELECT t.started_at, t.schedules_on, sum(t.schedules_on) OVER (ORDER BY t.started_at, t.id) AS on_before
            FROM {TICKS} t WHERE t.started_at >= :since AND t.schedules_on IS NOT NULL) AS each
          WHERE schedules_on = 0 GROUP BY on_before) AS spans
        WHERE ended_at > {shifted("began_at", ":longer_s")} ORDER BY began_at""",
        since=since,
        longer_s=longer.total_seconds(),
    ).all()


def ticks_with_faults(connection: Connection, since: datetime, until: datetime, limit: int) -> Sequence[Row[Any]]:
    """Return the newest *limit* ticks, oldest first: host, started_at, whether they loaded handlers, and any faults.

    ``did`` is None for a tick without a fault: it could use its file, load the code, start processes, and use the
    database all the time.
    """
    text_of = "CAST(t.did AS text)"
    rows = run(
        connection,
        f"""SELECT t.host, t.started_at, t.job_types IS NOT NULL AS loaded,
             CASE WHEN {text_of} LIKE '%"broken"%' OR {text_of} LIKE '%"not_loaded"%'
               OR {text_of} LIKE '%"without_process"%' OR {text_of} LIKE '%"refused"%'
               OR {text_of} LIKE '%"outages"%' THEN t.did END AS did
           FROM {TICKS} t WHERE t.started_at >= :since AND t.started_at < :until
           ORDER BY t.started_at DESC, t.id DESC LIMIT :limit""",
        since=since,
        until=until,
        limit=limit,
    )
    return rows.all()[::-1]


def ticks_after_causes(connection: Connection, since: datetime, limit: int) -> Sequence[Row[Any]]:
    """Return the newest *limit* ticks since *since* whose rows say why earlier ticks of their hosts did not start."""
    return run(
        connection,
        f"""SELECT t.host, t.started_at, t.did FROM {TICKS} t
           WHERE t.started_at >= :since AND CAST(t.did AS text) LIKE '%"kept_from_starting"%'
           ORDER BY t.started_at DESC LIMIT :limit""",
        since=since,
        limit=limit,
    ).all()


def first_ticks(connection: Connection, after: datetime, until: datetime, host: str) -> dict[bool, datetime]:
    """Return when the first tick after *after* and up to *until* began: True for *host*, False for all other hosts."""
    rows = run(
        connection,
        f"""SELECT t.host = :host AS is_here, min(t.started_at) AS started_at FROM {TICKS} t
           WHERE t.started_at > :after AND t.started_at <= :until GROUP BY 1""",
        host=host,
        after=after,
        until=until,
    )
    return {bool(row.is_here): row.started_at for row in rows}


def ticks_without_end(connection: Connection, since: datetime, until: datetime, limit: int) -> Sequence[Row[Any]]:
    """Return the newest *limit* ticks that began from *since* to *until* and never recorded their end."""
    return run(
        connection,
        f"""SELECT t.host, t.started_at, t.did FROM {TICKS} t
           WHERE t.started_at >= :since AND t.started_at < :until AND t.finished_at IS NULL
           ORDER BY t.started_at DESC LIMIT :limit""",
        since=since,
        until=until,
        limit=limit,
    ).all()
