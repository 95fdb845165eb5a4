"""Is all well? One look at the database gathers the facts; a pure function finds what is wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from cronjobs.config.settings import Settings
from cronjobs.errors import CronError
from cronjobs.insight import unresolved as watching
from cronjobs.insight.unresolved import Finding, Watched
from cronjobs.jobs.job_types import Fault, JobTypes
from cronjobs.masking import mask
from cronjobs.model import Status, duration_text, in_zone
from cronjobs.rules.concurrency import Limit, full, waiting_by_limit
from cronjobs.rules.crashing_types import CLEAN_ENDS, Crashing
from cronjobs.rules.pausing import of_queue
from cronjobs.schedules.definition import schedule_from_definition
from cronjobs.store import concurrency, expiry, listing, meta, schedules
from cronjobs.store.crashing_types import crashing
from cronjobs.store.enqueue import job_status
from cronjobs.store.expiry import LeftAlone
from cronjobs.store.job_types import remembered, runnable_types, types_recorded_at, unknown_to_schedules
from cronjobs.store.queues import pressures
from cronjobs.store.schedules import StoredSchedule
from cronjobs.store.sql import database_now

RUNNING_SHOWN: Final = 50
UNKNOWN_IS_LATE: Final = timedelta(minutes=5)  # status reports it from the first minute; see troubles
STEADY_TICKS: Final = 10  # a host that ticked so often is expected to go on
FORGOTTEN: Final = timedelta(days=1)  # and after a day counts as switched off
ONE_TICK: Final = timedelta(minutes=1)
LONGEST_GRACE: Final = timedelta(days=366)
RUNS_ASKED: Final = 1000
_WHEN_FULL: Final = {
    "error": "whoever enqueues there is refused",
    "drop": "what is enqueued there is dropped",
    "wait": "whoever enqueues there waits, or is refused",
}
RUNS_IN_A_LEASE: Final = 5  # of typical length; a long job's process exists for one run, and renews for as long


@dataclass
class Queue:
    """What waits in one queue. ``failed`` jobs wait for another try, and count in due or future as well."""

    due: int = 0
    future: int = 0
    failed: int = 0
    late: int = 0
    paused: bool = False
    max_waiting: int | None = None  # None: it has no cap
    on_full: str | None = None
    dropped: int = 0  # since it first had a cap

    @property
    def waiting(self) -> int:
        return self.due + self.future

    @property
    def full(self) -> bool:
        # SQLite accepts any type there.
        return isinstance(self.max_waiting, int) and self.waiting >= self.max_waiting


@dataclass(frozen=True)
class Health:
    """The facts, some as plain rows. ``late`` counts only jobs that could run: of known types, and not paused."""

    now: datetime
    project: str
    environment: str
    schema_revision: str
    ticks: list[dict[str, Any]]  # the last of each host, newest first
    running: list[dict[str, Any]]  # the longest first, at most RUNNING_SHOWN
    running_total: int
    overdue: int
    queues: dict[str, Queue]
    oldest_due_at: datetime | None
    unresolved: dict[str, int]  # due jobs by a type that no tick knew lately
    dead: dict[str, int]
    pauses: list[dict[str, Any]]
    schedules: list[StoredSchedule]
    faults: tuple[Fault, ...] = field(default=())
    judged_by_ticks: bool = False  # types are judged by what ticks knew; else by what is registered here
    unknown_schedules: dict[str, list[str]] = field(default_factory=dict)  # active ones, by such a type
    silent: dict[str, datetime] = field(default_factory=dict)  # steady hosts that stopped ticking: since when
    slow: dict[str, timedelta] = field(default_factory=dict)  # job types whose typical run is too long for the lease
    limited: dict[Limit, int] = field(default_factory=dict)  # reached limits: how many due jobs wait for each
    crashing: list[Crashing] = field(default_factory=list)  # job types that run in child processes because they crash
    left_alone: list[LeftAlone] = field(default_factory=list)  # lost attempts that no host can settle
    watch: Watched = field(default_factory=Watched)
    without_run: dict[str, str] = field(default_factory=dict)  # schedules past their grace: why, if it is known

    def total(self, what: str) -> int:
        return sum(getattr(queue, what) for queue in self.queues.values())


def look(connection: Connection, settings: Settings, types: JobTypes) -> Health:
    """Gather the facts in a few indexed statements; *types* are those that this configuration knows."""
    now = database_now(connection)
    whose = meta.read_meta(connection)
    pauses = schedules.pauses_in_force(connection)
    judged = _judged_types(connection, settings, types)
    queues: dict[str, Queue] = {}
    unresolved: dict[str, int] = {}
    oldest: list[datetime] = []
    for row in listing.waiting_groups(connection, late_after(settings)):
        queue = queues.setdefault(row.queue, Queue(paused=bool(of_queue(pauses, row.queue))))
        queue.due += row.due
        queue.future += row.waiting - row.due
        queue.failed += row.waiting if row.status == "failed" else 0
        if row.due:
            oldest.append(row.run_at)
        unknown = row.due and not judged.knows(row.job_type, since=row.run_at)
        if unknown:
            unresolved[row.job_type] = unresolved.get(row.job_type, 0) + row.due
        if not queue.paused and not (unknown and now - row.run_at < UNKNOWN_IS_LATE):
            queue.late += row.late
    for capped in pressures(connection):
        queue = queues.setdefault(capped.name, Queue(paused=bool(of_queue(pauses, capped.name))))
        queue.max_waiting, queue.dropped = capped.max_waiting, capped.dropped
        queue.on_full = None if capped.max_waiting is None else capped.on_full
    running_total, overdue = listing.running_count(connection)
    last_ticks = [dict(row._mapping) for row in listing.last_ticks(connection)]
    definitions = schedules.all_schedules(connection)
    return Health(
        now=now,
        project=whose.project,
        environment=whose.environment,
        schema_revision=whose.schema_revision,
        ticks=last_ticks,
        running=[dict(row._mapping) for row in listing.running_jobs(connection, RUNNING_SHOWN)],
        running_total=running_total,
        overdue=overdue,
        queues=queues,
        oldest_due_at=min(oldest, default=None),
        unresolved=unresolved,
        judged_by_ticks=judged.ticks is not None,
        unknown_schedules=_unknown_schedules(connection, judged),
        dead=listing.dead_counts(connection),
        pauses=[dict(row._mapping) for row in pauses],
        schedules=definitions,
        faults=tuple(Fault(fault.where, mask(fault.what, settings.secrets)) for fault in types.faults),
        silent=_silent_hosts(connection, last_ticks, now, settings),
        slow={
            job_type: took
            for job_type, took in listing.typical_runs(connection, RUNS_ASKED).items()
            if settings.run.lease < RUNS_IN_A_LEASE * took <= RUNS_IN_A_LEASE * settings.run.budget
        },
        limited=_limited(connection, settings.limits),
        crashing=crashing(connection),
        left_alone=expiry.left_alone(connection, [], [], {*types.types, *(judged.ticks or ())}),
        watch=watching.watch(
            connection, settings, definitions, _ticking(last_ticks, now, settings), [dict(p._mapping) for p in pauses]
        ),
        without_run={
            schedule.name: why
            for schedule in definitions
            if schedule.status == "active" and (why := _without_run(connection, schedule, now))
        },
    )


@dataclass(frozen=True)
class JudgedTypes:
    """Which job types can run. ``ticks`` knew these lately, the last recorded them at ``at``; None: unknown."""

    here: Collection[str]
    ticks: Collection[str] | None
    at: datetime | None

    def knows(self, job_type: str, *, since: datetime) -> bool:
        """Whether a job of this type, which has existed *since* then, can probably run on some host.

        A type registered here counts until a tick has looked and not known it, as cron's environment may differ.
        """
        if self.ticks is None:
            return job_type in self.here
        return job_type in self.ticks or (job_type in self.here and (self.at is None or self.at <= since))


def _judged_types(connection: Connection, settings: Settings, types: JobTypes) -> JudgedTypes:
    ticks = runnable_types(connection, remembered(settings.run.every))
    return JudgedTypes(types.types.keys(), ticks, types_recorded_at(connection))


def _unknown_schedules(connection: Connection, judged: JudgedTypes) -> dict[str, list[str]]:
    """Active schedules of types that no tick knew lately, by type."""
    if judged.ticks is None:
        return {}
    found = {}
    for job_type, names in unknown_to_schedules(connection, judged.ticks).items():
        defined = max(filter(None, (listing.defined_at(connection, name) for name in names[:3])), default=None)
        if defined is None or not judged.knows(job_type, since=defined):
            found[job_type] = names
    return found


def _limited(connection: Connection, all_limits: Sequence[Limit]) -> dict[Limit, int]:
    """Waiting due jobs, by the limit they wait for."""
    running = concurrency.running_by_key(connection) if all_limits else {}
    found = full(all_limits, running)
    if not (found.prefixes or found.keys):
        return {}
    return waiting_by_limit(all_limits, running, concurrency.due_and_full(connection, found))


def _silent_hosts(
    connection: Connection, last_ticks: Sequence[Mapping[str, Any]], now: datetime, settings: Settings
) -> dict[str, datetime]:
    """Hosts that ticked steadily within the last day and stopped, while others tick.

    A container with a new random name for each tick never counts as steady; CRONJOBS_HOST gives it a fixed name.
    """
    signs = {tick["host"]: tick["finished_at"] or tick["started_at"] for tick in last_ticks}
    return {
        host: last
        for host, last in signs.items()
        if quiet_after(settings) < now - last < FORGOTTEN and listing.ticked_at_least(connection, host, STEADY_TICKS)
    }


def _without_run(connection: Connection, stored: StoredSchedule, now: datetime) -> str | None:
    """Why a schedule with a ``grace`` has not run for its last occurrence or any later one; None: it has."""
    from cronjobs.crontime.timing import newest_between, timing

    try:
        schedule = schedule_from_definition(stored.name, stored.definition)
        if schedule.grace is None:
            return None
        when = timing(schedule.cron, schedule.every, schedule.timezone)
    except (CronError, ValueError, TypeError, KeyError, AttributeError) as error:  # plain SQL wrote it
        return f"its definition cannot be read: {error}"
    began = listing.defined_at(connection, stored.name) or now
    last = newest_between(when, max(began, now - LONGEST_GRACE), now - schedule.grace, 1)
    if not last:
        return None
    rows = schedules.ledger_between(connection, stored.id, last[0], now)
    states = [(row, None if row.job_id is None else job_status(connection, row.job_id)) for row in rows]
    if any(row.outcome in ("enqueued", "coalesced") and state in (Status.SUCCEEDED, None) for row, state in states):
        return None  # None: pruned, so it ended long ago
    due = f"due {in_zone(last[0], ZoneInfo(schedule.timezone)).isoformat(timespec='minutes')}"
    if not states:
        return f"{due}: held back, {stored.paused}" if stored.paused else f"{due}: no tick has settled it"
    row, state = states[-1]
    if row.outcome == "enqueued":
        return f"{due}: job {row.job_id} is {state}"
    return f"{due}: {row.outcome} ({row.reason})"


def late_after(settings: Settings) -> timedelta:
    """A due job is late after this: two minutes if cron starts a tick each minute."""
    return settings.run.every + timedelta(minutes=1)


def quiet_after(settings: Settings) -> timedelta:
    """Without a tick for so long something is wrong: three minutes if cron starts one each minute."""
    return 2 * settings.run.every + timedelta(minutes=1)


def last_sign(ticks: Sequence[Mapping[str, Any]]) -> datetime | None:
    """When a tick last showed signs of life: its row is written as it starts to work, and as it ends.

    Looks at the last tick by id and those before it in time: a tick whose clock was years ahead would count for years.
    """
    newest = max(ticks, key=lambda tick: tick["id"], default=None)
    if newest is None:
        return None
    signs: list[datetime] = [
        tick["finished_at"] or tick["started_at"]
        for tick in ticks
        if tick["started_at"] - newest["started_at"] <= ONE_TICK
    ]
    return max(signs)


def _ticking(ticks: Sequence[dict[str, Any]], now: datetime, settings: Settings) -> list[dict[str, Any]]:
    """The last ticks of the hosts that tick now."""
    return [tick for tick in ticks if abs(now - (tick["finished_at"] or tick["started_at"])) <= quiet_after(settings)]


def troubles(health: Health, settings: Settings) -> list[Finding]:
    """What is wrong, the worst first; empty when all is well."""
    found: list[Finding] = []
    theirs, ours = (health.project, health.environment), (settings.project, settings.environment)
    if theirs not in (("", ""), ours):
        found.append(
            Finding(
                "foreign",
                f"this database belongs to {_name(*theirs)}, and the configuration says {_name(*ours)}: ticks claim "
                'nothing; "cronjobs db adopt" hands it over',
            )
        )
    found += _no_tick(health, settings)
    if len(health.silent) < len(health.ticks):
        for host, since in health.silent.items():
            found.append(Finding("host", f"host {host} has not ticked for {_span(health.now - since)}, others do"))
    ticking = bool(_ticking(health.ticks, health.now, settings))
    if ticking:
        off = list(watching.schedules_off(health.watch, health.schedules, settings))
        patience = quiet_after(settings)
        found += off or watching.behind(health.schedules, health.now, patience, ticking=ticking)
    for name, why in health.without_run.items():
        found.append(Finding("schedule", f"{name} has not run within its grace; {why}"))
    if late := health.total("late"):
        jobs = "1 job has" if late == 1 else f"{late:,} jobs have"
        minutes = round(late_after(settings).total_seconds() / 60)
        why = "the ticks do not keep up, or do not run"
        if limited := sum(health.limited.values()):
            why += f"; {limited:,} of those due wait for a limit"
        found.append(Finding("late", f"{jobs} been due for more than {minutes} minutes: {why}"))
    for job_type in sorted(health.unresolved.keys() | health.unknown_schedules.keys()):
        found.append(_unknown_type(job_type, health))
    for left in health.left_alone:
        attempts = "a lost attempt of" if left.jobs == 1 else f"{left.jobs:,} lost attempts of"
        text = (
            f"{attempts} {left.job_type} by an older version: without its handler nobody knows whether it may run again"
        )
        found.append(Finding("left_alone", text, since=left.since, command=f"cronjobs jobs cancel {left.sample}"))
    found += watching.deaths(health.watch)
    found += watching.unwell(health.watch, health.schedules)
    found += watching.refused(health.watch)
    found += watching.held_back(health.watch, health.pauses, health.schedules, health.now)
    found += [Finding("config", f"{fault.where}: {fault.what}") for fault in health.faults]
    found += [Finding("config", str(problem)) for problem in settings.problems]
    if len(files := _files(health, settings)) > 1:
        said = "; ".join(
            f"{fingerprint[:8]} on {', '.join(sorted(hosts))}" for fingerprint, hosts in sorted(files.items())
        )
        long = health.watch.differ_long
        text = f"hosts carry different files{' for more than 15 minutes' if long else ''}: {said}"
        begun = health.now - watching.DIFFERENT_FILES if long else None
        found.append(Finding("files", text, alarm=long, since=begun, command="cronjobs sync --plan" if long else None))
    for name, queue in health.queues.items():
        if queue.full:
            then = _WHEN_FULL[queue.on_full or "error"]
            text = f'queue "{name}" is full ({queue.waiting:,} of {queue.max_waiting:,}): {then}'
            found.append(Finding("full", text, alarm=False))
    for each in health.crashing:
        text = (
            f"{each.job_type} takes its runners down: its jobs run in child processes until {CLEAN_ENDS} in a row have "
            f"ended without a crash ({each.clean_ends} so far), or for an hour"
        )
        found.append(Finding("crashing", text, alarm=False))
    for job_type, took in health.slow.items():
        lease = duration_text(settings.run.lease)
        text = (
            f"{job_type} typically runs for {duration_text(took)}, and run.lease is {lease}: "
            f"{RUNS_IN_A_LEASE} runs should fit into a lease, or a few late heartbeats cost a run its job"
        )
        found.append(Finding("lease", text, alarm=False))
    return found


def _unknown_type(job_type: str, health: Health) -> Finding:
    count, names = health.unresolved.get(job_type, 0), health.unknown_schedules.get(job_type, [])
    what = []
    if count:
        what.append("1 due job waits" if count == 1 else f"{count:,} due jobs wait")
    if names:
        what.append(f"{'schedule' if len(names) == 1 else 'schedules'} {', '.join(names[:3])} cannot run")
        what[-1] += ", …" if len(names) > 3 else ""
    why = f'no handler or command "{job_type}" is registered here'
    if health.judged_by_ticks:
        why = f'no tick of the last minutes knew a handler or command "{job_type}"; "cronjobs check" lists all'
    return Finding("unresolved", f"{' and '.join(what)}: {why}")


def _files(health: Health, settings: Settings) -> dict[str, list[str]]:
    """The hosts that tick now, by the file that they have."""
    files: dict[str, list[str]] = {}
    for tick in health.ticks:
        if tick["fingerprint"] and health.now - (tick["finished_at"] or tick["started_at"]) <= quiet_after(settings):
            files.setdefault(tick["fingerprint"], []).append(tick["host"])
    return files


def _no_tick(health: Health, settings: Settings) -> list[Finding]:
    last = last_sign(health.ticks)
    if last is None:
        text = 'no tick has ever reached this database: "cronjobs crontab install" lets cron run one each minute'
        return [Finding("no_tick", text, command="cronjobs crontab install")]
    if abs(health.now - last) <= quiet_after(settings):
        return []
    if last > health.now:
        text = "the last tick began in the future: a clock is wrong, or was"
        return [Finding("no_tick", text, since=last, command="cronjobs history --since 1h")]
    text = f"no tick has reached this database for {_span(health.now - last)}"
    return [Finding("no_tick", text, since=last, command="cronjobs crontab show")]


def _span(span: timedelta) -> str:
    minutes = round(span.total_seconds() / 60)
    return f"{minutes} minutes" if minutes < 180 else f"{round(minutes / 60)} hours"


def _name(project: str, environment: str) -> str:
    return f'project "{project}", environment "{environment}"'
