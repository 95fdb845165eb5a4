"""Read the facts behind every problem in ``status``: deaths, missing runs, ticks that fire no schedules.

Every statement uses an index and reads a bounded number of rows, even if millions of jobs have ended. A test checks the
query plans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Final

from sqlalchemy import Connection, Row

from cronjobs.desk.rules.occurrence_results import ByHand, JobNow, OccurrenceResult, overrun_since
from cronjobs.desk.rules.schedule_names import Name
from cronjobs.desk.rules.tick_rows import did_of
from cronjobs.engine.database.tables import LONGEST_NAME, UNSETTLED_DEAD_SQL
from cronjobs.engine.probe.idle_conditions import WAITING
from cronjobs.engine.probe.sql_text import (
    AUDIT,
    JOB_RUNS,
    JOBS,
    NOW,
    OCCURRENCES,
    PAUSES,
    SCHEDULES,
    TICKS,
    after_now,
    either,
)
from cronjobs.engine.rules.misfits import MISFIT
from cronjobs.engine.rules.occurrences import RAN_EARLY
from cronjobs.engine.rules.recovery_policy import seconds
from cronjobs.engine.store.effects import unknown_of
from cronjobs.engine.store.job_rows import RUNNER_S
from cronjobs.engine.store.sql import AMONG_IDS, AMONG_NAMES, run
from cronjobs.model import Status

DEATHS_COUNTED: Final = 10_000
DEATHS_NAMED: Final = 1000
EFFECTS_READ: Final = 10_000  # to find effects that stay unknown, read this many of the newest
MISDATED_READ: Final = 1000  # read at most this many attempts and jobs to find jobs whose times come from a wrong clock
MISDATED_NAMED: Final = 20
LEASES_READ: Final = 50  # read at most this many leases, those of the jobs that have run longest
# Read at most this many audit entries of one schedule and name.
TRIGGERS_READ: Final = 100
DEFINITIONS_READ: Final = 20
OCCURRENCES_READ: Final = 5000  # read at most this many ledger rows of one schedule
# Read this many ticks at a time to find out when something began. With a tick each minute, that is one day.
TICKS_READ: Final = 1500
# Read at most this many times. With fewer, the beginning of a finding could be out of sight, and an ack of a week would
# end too early.
DAYS_READ: Final = 10

_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
UNDEALT: Final = UNSETTLED_DEAD_SQL
SOME_AGO: Final = after_now(":ago_s")
_LATER_AGO: Final = after_now(":later_s")
# Read at most this many of a job's newest attempts. A job that snoozed for a year has very many.
ATTEMPTS: Final = 100
# A payload that does not fit costs no try.
FAILED_TRY: Final = f"r.outcome IN ('failed', 'timed_out') AND coalesce(r.error_type, '') <> '{MISFIT}'"
_AHEAD: Final = after_now(":ahead_s")
# The newest :rows_each ledger rows of each schedule, without rows that a wrong clock dated ahead. SQLite needs a join
# with a bound. PostgreSQL needs a lateral subquery, since for that join it would read the whole ledger by time.
NEWEST_OF_EACH: Final = either(
    postgresql=f"""{SCHEDULES} s CROSS JOIN LATERAL (
          SELECT l.* FROM {OCCURRENCES} l WHERE l.schedule_id = s.id AND l.last_for <= {NOW}
          ORDER BY l.last_for DESC LIMIT :rows_each) c WHERE s.id {AMONG_IDS}""",
    # CROSS JOIN keeps the join order, so SQLite reads schedules first. It reads only a schedule's last :rows_each rows.
    sqlite=f"""{SCHEDULES} s CROSS JOIN {OCCURRENCES} c
        WHERE s.id {AMONG_IDS} AND c.schedule_id = s.id AND c.last_for <= {NOW} AND c.last_for >= coalesce(
          (SELECT l.last_for FROM {OCCURRENCES} l WHERE l.schedule_id = s.id AND l.last_for <= {NOW}
           ORDER BY l.last_for DESC LIMIT 1 OFFSET :rows_each - 1),
          (SELECT min(l.last_for) FROM {OCCURRENCES} l WHERE l.schedule_id = s.id))""",
)


@dataclass(frozen=True)
class Deaths:
    """Open dead jobs (not retried or dismissed): how many, at most DEATHS_COUNTED, and since when.

    ``newest`` are the ids of the jobs that died last, at most DEATHS_NAMED. ``last_of`` maps each job type to the last
    time that one of its jobs died. ``unknown_effects`` are the ids of dead jobs that began an effect whose outcome is
    unknown.
    """

    count: int
    since: datetime | None
    newest: tuple[int, ...] = ()
    last_of: Mapping[str, datetime] = field(default_factory=dict)
    unknown_effects: tuple[int, ...] = ()


def deaths(connection: Connection) -> Deaths:
    row = run(
        connection,
        f"SELECT count(*) AS deaths, min(finished_at) AS finished_at FROM (SELECT j.finished_at FROM {JOBS} j "
        f"WHERE {UNDEALT} ORDER BY j.finished_at LIMIT :most) AS dead",
        most=DEATHS_COUNTED,
    ).one()
    if not row.deaths:
        return Deaths(0, None)
    newest = run(
        connection,
        f"SELECT j.id, substr(j.job_type, 1, :longest) AS job_type, j.finished_at FROM {JOBS} j "
        f"WHERE {UNDEALT} ORDER BY j.finished_at DESC LIMIT :most",
        most=DEATHS_NAMED,
        longest=LONGEST_NAME,
    ).all()
    last_of = {each.job_type: each.finished_at for each in reversed(newest)}
    ids = tuple(each.id for each in newest)
    return Deaths(row.deaths, row.finished_at, ids, last_of, tuple(unknown_of(connection, ids)))


def lately(connection: Connection, schedule_ids: Collection[int], rows: int) -> dict[int, list[OccurrenceResult]]:
    """Return each schedule's newest *rows* ledger rows, newest first, without rows that a wrong clock dated ahead."""
    ledger = run(
        connection,
        "SELECT c.schedule_id, c.first_for, c.last_for, c.outcome, c.reason, c.decided_at, c.job_id, c.count "
        f"FROM {NEWEST_OF_EACH} ORDER BY c.schedule_id, c.last_for DESC",
        ids=sorted(schedule_ids),
        rows_each=rows,
    ).all()
    lists: dict[int, list[OccurrenceResult]] = {}
    for row in _with_jobs(connection, ledger):
        lists.setdefault(row.schedule_id, []).append(row)
    return lists


def further_back(
    connection: Connection, schedule_id: int, before: datetime, but: Collection[int], rows: int
) -> list[OccurrenceResult]:
    """Return a schedule's newest *rows* ledger rows from before *before*, newest first.

    Occurrences that were skipped because of a job in *but*, or because of a pause, are left out. A schedule that is due
    every minute may have a hundred thousand skipped occurrences, but each costs only one comparison. The rows of the
    jobs in *but* stay, because one of them may be the last success.
    """
    ledger = run(
        connection,
        f"""
        SELECT c.schedule_id, c.first_for, c.last_for, c.outcome, c.reason, c.decided_at, c.job_id, c.count
        FROM {OCCURRENCES} c WHERE c.schedule_id = :schedule_id AND c.last_for < :before
          AND NOT (c.outcome = 'skipped' AND c.job_id IS NOT NULL AND c.job_id {AMONG_IDS})
          AND NOT (c.outcome = 'skipped' AND c.job_id IS NULL AND substr(coalesce(c.reason, ''), 1, 6) = 'paused')
        ORDER BY c.last_for DESC LIMIT :most""",
        schedule_id=schedule_id,
        before=before,
        ids=sorted(but),
        most=rows,
    ).all()
    return _with_jobs(connection, ledger)


def heads(connection: Connection, names: Collection[str]) -> dict[str, JobNow]:
    """Return, by schedule, the unfinished job that its other jobs wait for: the running job, or else the oldest job."""
    rows = run(
        connection,
        f"""
        SELECT j.schedule, coalesce(min(CASE WHEN j.status = 'running' THEN j.id END), min(j.id)) AS id FROM {JOBS} j
        WHERE j.schedule IS NOT NULL AND j.finished_at IS NULL AND j.schedule {AMONG_NAMES} GROUP BY j.schedule""",
        names=sorted(names),
    ).all()
    jobs = jobs_now(connection, [row.id for row in rows])
    return {row.schedule: jobs[row.id] for row in rows if row.id in jobs}


def _tries(counter: str, tries: str) -> str:
    """Return how many attempts of the job failed (or were lost). A retry resets the counter, but not the history."""
    most = either(postgresql="greatest", sqlite="max")
    return f"""CASE WHEN j.last_failed_at IS NOT NULL AND j.attempts > j.failures + j.losses
            AND j.status NOT IN ('succeeded', 'cancelled')
          THEN {most}(j.{counter}, (SELECT count(*) FROM {JOB_RUNS} r
            WHERE r.job_id = j.id AND r.attempt > j.attempts - {ATTEMPTS} AND {tries})) ELSE j.{counter} END"""


_FAILURES: Final = _tries("failures", FAILED_TRY)
_LOSSES: Final = _tries("losses", "r.outcome = 'lost'")


def jobs_now(connection: Connection, ids: Collection[int]) -> dict[int, JobNow]:
    """Return the jobs among *ids* that exist."""
    rows = run(
        connection,
        f"""
        SELECT j.id, j.status, substr(j.job_type, 1, :longest) AS job_type, substr(j.queue, 1, :longest) AS queue,
          j.run_at, j.scheduled_for, {_FAILURES} AS failures, {_LOSSES} AS losses,
          CASE WHEN j.dismissed_at >= j.finished_at THEN 1 ELSE 0 END AS dismissed, j.started_at, j.locked_until,
          j.attempts, j.finished_at, j.locked_by, j.last_failed_at, j.timeout_s,
          CASE WHEN j.status = 'running' THEN {RUNNER_S} END AS runner_s
        FROM {JOBS} j WHERE j.id {AMONG_IDS}""",
        ids=sorted(ids),
        longest=LONGEST_NAME,
    )
    return {row.id: _job_now(row) for row in rows}


def _job_now(row: Any) -> JobNow:
    *facts, dismissed, started_at, locked_until, attempts, finished_at, locked_by, failed_at, timeout_s, runner_s = row
    limit = seconds(timeout_s if timeout_s is not None else runner_s)
    try:
        most = None if limit is None else timedelta(seconds=limit)
    except OverflowError:  # plain SQL may have written a number that is too large
        most = None
    ended = (finished_at, locked_by, failed_at)
    job: JobNow = _job(*facts, bool(dismissed), started_at, locked_until, most, attempts, *ended)
    return job


_job: Any = JobNow  # mypy does not know how many columns a row has
_happened: Any = OccurrenceResult


def _with_jobs(connection: Connection, ledger: Sequence[Any]) -> list[OccurrenceResult]:
    # Use a separate statement, since PostgreSQL would read all jobs even for a join with so few rows.
    jobs = jobs_now(connection, {row.job_id for row in ledger if row.job_id is not None})
    return [_happened(*facts, job=jobs.get(row.job_id), count=count) for row in ledger for *facts, count in [row]]


def triggered(connection: Connection, names: Sequence[Name]) -> list[ByHand]:
    """Return the last TRIGGERS_READ runs of a schedule that a person triggered, newest first.

    *names*: all names of the schedule. Backfilled runs are left out, because they have ledger rows like all other runs.
    """
    rows = list(islice(_audited(connection, "trigger", names, TRIGGERS_READ), TRIGGERS_READ))
    made = [(row.at, row.actor, job_id) for row in rows if (job_id := triggered_job(row.detail)) is not None]
    jobs = jobs_now(connection, {job_id for *_, job_id in made})
    return [ByHand(at, by, job_id, jobs.get(job_id)) for at, by, job_id in made]


def triggered_job(detail: Any) -> int | None:
    """Return the job of an audit entry "trigger", or None if plain SQL has written something else into *detail*."""
    job_id = detail.get("job_id") if isinstance(detail, Mapping) else None
    return job_id if isinstance(job_id, int) else None


def retrying(connection: Connection) -> frozenset[int]:
    """Return the ids of active schedules with an unfinished job whose last tries failed or were lost.

    If a person retries such a job, it is queued again, but that does not prove that it will succeed.
    """
    ids = run(
        connection,
        f"""
        SELECT s.id FROM {SCHEDULES} s WHERE s.status = 'active' AND s.name IN (
          SELECT j.schedule FROM {JOBS} j
          WHERE j.schedule IS NOT NULL AND j.finished_at IS NULL AND j.last_failed_at IS NOT NULL)""",
    ).scalars()
    return frozenset(ids)


def last_succeeded_for(connection: Connection, schedule_id: int) -> datetime | None:
    """Return the newest occurrence whose run succeeded, among the schedule's last OCCURRENCES_READ, or None.

    Runs that a wrong clock started early are left out.
    """
    at: datetime | None = run(
        connection,
        f"""
        SELECT max(n.last_for) AS last_for FROM (
          SELECT o.last_for, o.job_id, o.reason FROM {OCCURRENCES} o WHERE o.schedule_id = :schedule_id
          ORDER BY o.last_for DESC LIMIT :most) n
        LEFT JOIN {JOBS} j ON j.id = n.job_id
        WHERE n.job_id IS NOT NULL AND (j.id IS NULL OR j.status = 'succeeded')
          AND coalesce(n.reason, '') NOT LIKE '{RAN_EARLY}%'""",
        schedule_id=schedule_id,
        most=OCCURRENCES_READ,
    ).scalar()
    return at


def resumed_lately(connection: Connection, within: timedelta) -> set[str]:
    """Return the queues whose pause ended no more than *within* ago. The queue "" stands for a pause of everything.

    The pause ended because a person resumed the queue, or because it expired.
    """
    subjects = run(
        connection,
        f"""
        SELECT a.subject FROM {AUDIT} a WHERE a.action = 'resume' AND a.at >= {SOME_AGO}
          AND (a.subject = 'all' OR substr(a.subject, 1, 6) = 'queue ')
        UNION ALL SELECT CASE WHEN p.scope = 'all' THEN 'all' ELSE 'queue ' || p.name END FROM {PAUSES} p
        WHERE p.scope IN ('all', 'queue') AND p.until >= {SOME_AGO} AND p.until <= {NOW}""",
        ago_s=-within.total_seconds(),
    ).scalars()
    return {"" if subject == "all" else subject.removeprefix("queue ") for subject in subjects}


def fired_lately(connection: Connection, within: timedelta) -> bool:
    """Return whether a tick with schedules switched on began no more than *within* ago."""
    statement = (
        f"SELECT 1 FROM {TICKS} t WHERE t.started_at >= {SOME_AGO} AND t.schedules_on = 1 "
        "ORDER BY t.started_at DESC LIMIT 1"
    )
    return run(connection, statement, ago_s=-within.total_seconds()).first() is not None


def last_fired_at(connection: Connection) -> datetime | None:
    """Return when the last tick with schedules switched on began, or None if the last TICKS_READ had none."""
    at: datetime | None = run(
        connection,
        f"SELECT max(t.started_at) AS started_at FROM (SELECT i.started_at, i.schedules_on FROM {TICKS} i "
        "ORDER BY i.id DESC LIMIT :most) AS t WHERE t.schedules_on = 1",
        most=TICKS_READ,
    ).scalar()
    return at


def recorded_since(connection: Connection, host: str, *names: str) -> datetime | None:
    """Return the beginning of the latest period in which each of this host's ticks recorded one of *names*.

    Return None if the last tick recorded none of them.
    """
    return _since(_ticks_of(connection, host), lambda tick: not did_of(tick.did).keys().isdisjoint(names))


def carried_since(connection: Connection, host: str, fingerprint: str) -> datetime | None:
    """Return since when all ticks of this host have used the file *fingerprint*.

    Return None if the last tick had another file.
    """
    ticks = (tick for tick in _ticks_of(connection, host) if tick.fingerprint is not None)
    return _since(ticks, lambda tick: tick.fingerprint == fingerprint)


def _ticks_of(connection: Connection, host: str) -> Iterator[Any]:
    """Yield the host's newest ticks, newest first. A caller that stops early saves reading further pages."""
    before = 2**63 - 1
    for _ in range(DAYS_READ):
        rows = run(
            connection,
            f"SELECT t.id, t.started_at, t.finished_at, t.fingerprint, t.did FROM {TICKS} t "
            "WHERE t.host = :host AND t.id < :before ORDER BY t.id DESC LIMIT :most",
            host=host,
            before=before,
            most=TICKS_READ,
        ).all()
        yield from rows
        if len(rows) < TICKS_READ:
            return
        before = rows[-1].id


def _since(ticks: Iterable[Any], holds: Callable[[Any], bool]) -> datetime | None:
    """Return since when *holds* has been true of every tick, or None if it is not true of the newest tick.

    *ticks* are ordered, newest first.
    """
    since = None
    for tick in ticks:
        if not holds(tick):
            break
        since = tick.started_at
    return since


@dataclass(frozen=True)
class WithoutProcess:
    """How many of a host's last ticks in a row could not start the process of a long job, and when this began."""

    ticks: int
    since: datetime


def without_process(connection: Connection, host: str) -> WithoutProcess | None:
    """Count the host's last ticks that could not start the process of a long job.

    Return None if the last tick could.
    """
    ticks = takewhile(lambda tick: "without_process" in did_of(tick.did), _ticks_of(connection, host))
    found = [tick.started_at for tick in ticks]
    return WithoutProcess(len(found), found[-1]) if found else None


@dataclass(frozen=True)
class Overrunning:
    """A job that is leased, although its runner should have stopped it at the instant ``since``."""

    job_id: int
    job_type: str
    locked_by: str
    locked_until: datetime
    since: datetime


def overrunning(connection: Connection, now: datetime) -> list[Overrunning]:
    """Return the leased jobs whose runners died or hang (``overrun_since``), among the LEASES_READ that began first."""
    rows = run(
        connection,
        f"""
        SELECT j.id, substr(j.job_type, 1, :longest) AS job_type, j.locked_by, j.locked_until, j.started_at,
          {RUNNER_S} AS runner_s
        FROM {JOBS} j WHERE j.locked_until >= {NOW} ORDER BY j.started_at, j.id LIMIT :most""",
        longest=LONGEST_NAME,
        most=LEASES_READ,
    )
    return [
        Overrunning(row.id, row.job_type, row.locked_by, row.locked_until, since)
        for row in rows
        if (since := overrun_since(row.started_at, seconds(row.runner_s), now)) is not None
    ]


@dataclass(frozen=True)
class Misdated:
    """A waiting job that is due too late, because ``run_at`` was set by a clock that was ahead."""

    job_id: int
    job_type: str
    status: str
    run_at: datetime

    @property
    def verb(self) -> str:
        """The command that runs the job sooner. Only a failed job can be retried before it is due."""
        return "jobs retry" if self.status == Status.FAILED else "run"


def misdated(connection: Connection, by: timedelta, job_id: int | None = None) -> list[Misdated]:
    """Return waiting jobs whose ``run_at`` was set by a clock more than *by* ahead, earliest due first.

    Such a job has a recorded time later than now: the end of its last attempt or, if the job never began and was due at
    once, its creation. A job whose occurrence is not due yet is left out: if it ran now, it would only be early again.
    With *job_id*, look only at this job.
    """
    of_run, of_job = ("", "") if job_id is None else ("r.job_id = :job_id AND", "WHERE n.id = :job_id")
    # Compare the occurrence in the outer query. In the inner query, PostgreSQL may read all jobs by their due times.
    rows = run(
        connection,
        f"""
        SELECT id, job_type, status, run_at FROM (
        SELECT j.id, substr(j.job_type, 1, :longest) AS job_type, j.status, j.run_at, j.scheduled_for FROM (
          SELECT job_id, attempt FROM (SELECT r.job_id, r.attempt FROM {JOB_RUNS} r
            WHERE {of_run} r.finished_at > {_AHEAD}
            ORDER BY r.finished_at DESC LIMIT :read) AS ran
          UNION ALL
          SELECT id, 0 FROM (SELECT n.id, n.created_at, n.run_at FROM {JOBS} n {of_job} ORDER BY n.id DESC LIMIT :read)
            AS newest
          WHERE created_at > {_AHEAD} AND run_at <= created_at) AS planned
        JOIN {JOBS} j ON j.id = planned.job_id AND j.attempts = planned.attempt
        WHERE j.{WAITING} AND j.run_at > {_AHEAD} ORDER BY j.run_at, j.id LIMIT :read) AS found
        WHERE scheduled_for IS NULL OR scheduled_for <= {NOW} ORDER BY run_at, id LIMIT :most""",
        ahead_s=by.total_seconds(),
        longest=LONGEST_NAME,
        read=MISDATED_READ,
        most=MISDATED_NAMED,
        **({} if job_id is None else {"job_id": job_id}),
    )
    return [Misdated(row.id, row.job_type, row.status, row.run_at) for row in rows]


# How many of these ticks were importing the handlers when they last wrote their rows.
NUMBER_IMPORTING: Final = "count(CASE WHEN CAST(t.did AS text) LIKE '%\"importing\"%' THEN 1 END)"


@dataclass(frozen=True)
class Killed:
    """How many ticks of a host began no more than ``within`` ago and were killed, and when the first of them began.

    ``importing`` of them were importing the handlers.
    """

    ticks: int
    importing: int
    since: datetime
    within: timedelta


def killed_lately(connection: Connection, within: timedelta, longest: timedelta, least: int) -> dict[str, Killed]:
    """Return the killed ticks of each host that has *least* or more of them.

    A tick that began more than *longest* ago has ended, or was killed.
    """
    rows = run(
        connection,
        f"""
        SELECT t.host, count(*) AS ticks, {NUMBER_IMPORTING} AS importing FROM {TICKS} t
        WHERE t.started_at >= {SOME_AGO} AND t.started_at <= {_LATER_AGO} AND t.finished_at IS NULL
        GROUP BY t.host HAVING count(*) >= :least ORDER BY t.host""",
        ago_s=-within.total_seconds(),
        later_s=-longest.total_seconds(),
        least=least,
    )
    return {
        row.host: Killed(row.ticks, row.importing, _killed_since(_ticks_of(connection, row.host), within), within)
        for row in rows.all()
    }


def _killed_since(ticks: Iterable[Any], within: timedelta) -> datetime:
    """Return when the first of these killed ticks began.

    Read *ticks*, newest first, until *within* passed without a killed tick.
    """
    killed: list[datetime] = []
    for tick in ticks:
        if killed and killed[-1] - tick.started_at > within:
            break
        if tick.finished_at is None:
            killed.append(tick.started_at)
    return killed[-1]


def unended_ticks(connection: Connection, within: timedelta, limit: int) -> list[dict[str, Any]]:
    """Return the *limit* newest ticks that began no more than *within* ago and have not ended, newest first."""
    rows = run(
        connection,
        f"SELECT t.* FROM {TICKS} t WHERE t.started_at >= {SOME_AGO} AND t.finished_at IS NULL "
        "ORDER BY t.started_at DESC, t.id DESC LIMIT :limit",
        ago_s=-within.total_seconds(),
        limit=limit,
    )
    return [dict(row._mapping) for row in rows]


def files_between(connection: Connection, ago: timedelta, until: timedelta) -> set[str]:
    """Return the fingerprints of the files of ticks that began between now - *ago* and now - *until*."""
    rows = run(
        connection,
        f"SELECT DISTINCT t.fingerprint FROM {TICKS} t WHERE t.started_at >= {SOME_AGO} "
        f"AND t.started_at <= {_LATER_AGO} AND t.fingerprint IS NOT NULL",
        ago_s=-ago.total_seconds(),
        later_s=-until.total_seconds(),
    )
    return set(rows.scalars())


def in_force_since(connection: Connection, fingerprint: str) -> datetime | None:
    """Return when the file *fingerprint*, which is in force, was applied after another file.

    Applying the file again does not change that time.
    """
    other = f"SELECT max(o.id) FROM {AUDIT} o WHERE o.action = 'sync' AND o.subject <> :fingerprint"
    statement = f"SELECT min(a.at) AS at FROM {AUDIT} a WHERE a.action = 'sync' AND a.id > coalesce(({other}), 0)"
    found: datetime | None = run(connection, statement, fingerprint=fingerprint).scalar()
    return found


def configs_between(connection: Connection, ago: timedelta, until: timedelta) -> dict[str, dict[str, bool]]:
    """Map each host to the files (by path) of its ticks that began between now - *ago* and now - *until*.

    The value says whether the last tick with that file left the file's definitions for later (the tick's
    ``fingerprint`` is NULL).
    """
    rows = run(
        connection,
        f"""SELECT t.host, t.config, t.fingerprint IS NULL AS waits FROM {TICKS} t WHERE t.id IN (
              SELECT max(l.id) FROM {TICKS} l WHERE l.started_at >= {SOME_AGO} AND l.started_at <= {_LATER_AGO}
                AND l.config IS NOT NULL AND l.schedules_on = 1 GROUP BY l.host, l.config)""",
        ago_s=-ago.total_seconds(),
        later_s=-until.total_seconds(),
    )
    found: dict[str, dict[str, bool]] = {}
    for row in rows:
        found.setdefault(row.host, {})[row.config] = bool(row.waits)
    return found


def scheduled_and_waiting(connection: Connection) -> dict[str, datetime]:
    """Map each queue to the time when its oldest due job of any schedule became due."""
    rows = run(
        connection,
        f"SELECT queue, min(run_at) AS run_at FROM {JOBS} WHERE schedule IS NOT NULL AND finished_at IS NULL "
        f"AND {WAITING} AND run_at <= {NOW} GROUP BY queue ORDER BY queue",
    )
    return {row.queue: row.run_at for row in rows}


def ticked_at_least(connection: Connection, host: str, times: int) -> bool:
    """Return whether *host* has ticked at least *times* times, as far as the stored rows show."""
    statement = f"SELECT 1 FROM {TICKS} t WHERE t.host = :host ORDER BY t.id DESC LIMIT 1 OFFSET :before"
    return run(connection, statement, host=host, before=times - 1).first() is not None


def defined_at(connection: Connection, names: Sequence[Name], keys: Collection[str] = ()) -> datetime | None:
    """Return when a schedule's definition last took effect, or None if no audit entry says so.

    *names*: all names of the schedule. If *keys* are given, changes that keep the values of these keys do not count.
    """
    if not keys:
        newest = next(_audited(connection, "define", names, 1), None)
        return None if newest is None else newest.at
    retired = next(_audited(connection, "retire", names, 1), None)
    found: datetime | None = None
    values: list[Any] = []
    for row in _audited(connection, "define", names, DEFINITIONS_READ):
        definition = row.detail if isinstance(row.detail, dict) else {}
        its = [definition.get(key) for key in keys]
        if found is not None and (its != values or (retired is not None and row.id < retired.id)):
            break
        found, values = row.at, its
    return found


def _audited(connection: Connection, action: str, names: Sequence[Name], most: int) -> Iterator[Row[Any]]:
    """Yield audit entries with this action about a schedule, newest first, and at most *most* for each of its names."""
    for name in names:
        # Another schedule may have had the name, with any number of entries. So select the period before the limit.
        yield from run(
            connection,
            f"SELECT a.id, a.at, a.actor, a.detail FROM {AUDIT} a WHERE a.action = :action AND a.subject = :schedule "
            "AND a.at >= :since AND a.at < :until ORDER BY a.at DESC, a.id DESC LIMIT :most",
            action=action,
            schedule=name.name,
            since=name.since or _FIRST,
            until=name.until or _LAST,
            most=most,
        ).all()
