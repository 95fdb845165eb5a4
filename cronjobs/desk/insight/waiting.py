"""Read waiting jobs by queue: how many are due or late, and what they wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row

from cronjobs.desk.insight.jobs_ahead import Place, claimed_by_ticks, jobs_ahead
from cronjobs.desk.insight.judged_types import JudgedTypes
from cronjobs.desk.insight.watched import late_after, quiet_after
from cronjobs.desk.rules.pausing import of_queue
from cronjobs.desk.rules.tick_rows import did_of
from cronjobs.desk.store import trends, workload
from cronjobs.desk.store.explaining import LONGEST_TICK, last_tick_that_knew, records_between
from cronjobs.desk.store.status_facts import resumed_lately
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import JobType
from cronjobs.engine.rules.concurrency import Limit, held_back
from cronjobs.engine.store import concurrency
from cronjobs.engine.store.concurrency import LateBehind
from cronjobs.engine.store.not_started import WaitingLane, lanes_due
from cronjobs.engine.store.queues import pressures
from cronjobs.engine.tick.not_started import BEHIND_ANOTHER, ELSEWHERE, LIMITED, PASSED_OVER

# Look for a host that could run the type, but only for this many types.
STRANDED_NAMED: Final = 3
MOST_TYPES: Final = 100  # list at most this many unknown types, and count the others
LOOKED_BACK: Final = timedelta(hours=1)  # read the options of ticks that began in this time
GROUPS: Final = 50  # in at most this many groups, look for options that exclude the jobs


class LateGroup(NamedTuple):
    """Late jobs of one queue and type. They could run, and have been due for too long."""

    queue: str
    job_type: str
    run_at: datetime  # when the oldest of these jobs became due
    late: int
    a_minute: float = 0.0  # how many such jobs have recently succeeded per minute
    behind: bool = False  # whether ticks work through jobs that come before these and keep all workers busy
    recorded: frozenset[str] = frozenset()  # why the hosts' last ended ticks did not start such jobs


@dataclass
class Queue:
    """Counts of a queue's waiting jobs.

    ``failed`` counts the jobs that wait for a retry. These jobs are also in ``due`` or ``future``.
    """

    due: int = 0
    future: int = 0
    failed: int = 0
    late: int = 0
    paused: bool = False
    max_waiting: int | None = None  # None if the queue has no cap
    on_full: str | None = None
    dropped: int = 0  # how many jobs were dropped since the queue first had a cap
    oldest_due_at: datetime | None = None

    @property
    def waiting(self) -> int:
        return self.due + self.future

    @property
    def full(self) -> bool:
        # On SQLite plain SQL may store any type here.
        return isinstance(self.max_waiting, int) and self.waiting >= self.max_waiting


@dataclass(frozen=True)
class BeyondOptions:
    """Due jobs of one queue and type that no tick may claim. ``options`` are texts such as "--queue mail on web1"."""

    queue: str
    job_type: str
    jobs: int
    since: datetime
    options: tuple[str, ...]


@dataclass
class QueueFacts:
    """The waiting jobs by queue. ``late`` counts only jobs that could run.

    A job could run if its type is known, its queue is not paused, and it waits neither for a limit nor for another job
    of its schedule.

    ``unresolved`` counts the due jobs of each type that no recent tick knew. ``came`` says when the oldest of these
    jobs became due. Only the largest queues and the oldest unknown types are listed. ``others`` sums up the
    ``more_queues`` queues that are not listed. ``more_unresolved`` counts the due jobs of the ``more_types`` types that
    are not listed.
    """

    queues: dict[str, Queue] = field(default_factory=dict)
    others: Queue = field(default_factory=Queue)
    more_queues: int = 0
    more_types: int = 0
    more_unresolved: int = 0
    # Late jobs of known types in the queues and types that are not listed.
    more_late: int = 0
    oldest_due_at: datetime | None = None
    late: list[LateGroup] = field(default_factory=list)  # without the groups in ``out_of_reach``
    late_since: datetime | None = None  # when the oldest late job became late
    released: list[workload.OftenReleased] = field(default_factory=list)  # of known types, in queues without a pause
    unresolved: dict[str, int] = field(default_factory=dict)
    came: dict[str, datetime] = field(default_factory=dict)
    out_of_reach: list[BeyondOptions] = field(default_factory=list)
    # Maps each reached limit to the number of due jobs that wait only for it.
    limited: dict[Limit, int] = field(default_factory=dict)
    # Maps each limit to how many of its jobs succeed per minute.
    limits_a_minute: dict[Limit, float] = field(default_factory=dict)

    @property
    def late_groups(self) -> set[tuple[str, str]]:
        """Each pair of a queue and a job type that has late jobs."""
        return {(each.queue, each.job_type) for each in self.late}

    def total(self, what: str) -> int:
        return sum(getattr(queue, what) for queue in (*self.queues.values(), self.others))

    def of(self, queue: str) -> Queue:
        """Return the counts that include this queue's jobs."""
        return self.queues.get(queue, self.others)

    def with_due_jobs(self) -> list[tuple[datetime, str, Queue]]:
        """Return when the oldest job of each queue became due, with the queue's name and counts, oldest first."""
        queues = self.queues.items()
        due = [(queue.oldest_due_at, name, queue) for name, queue in queues if queue.due and queue.oldest_due_at]
        return sorted(due, key=lambda each: each[:2])


@dataclass(frozen=True)
class StrandedJobs:
    """Late jobs that no ticking host can run. ``host`` could run them, but last ticked ``at``."""

    group: LateGroup
    host: str | None = None
    at: datetime | None = None


def stranded(
    connection: Connection, late: Sequence[LateGroup], at_work: Sequence[Mapping[str, Any]], ticks: Sequence[Any]
) -> list[StrandedJobs]:
    """Return the groups of *late* jobs that no ticking host can run.

    *at_work*: the last ticks of the hosts that are ticking now. *ticks*: the last tick of every host.
    """
    signs = {tick["host"]: tick["finished_at"] or tick["started_at"] for tick in ticks}
    found: list[StrandedJobs] = []
    for group in late:
        if not _only_elsewhere(group, at_work):
            continue
        knew = last_tick_that_knew(connection, group.job_type) if len(found) < STRANDED_NAMED else None
        host = None if knew is None or knew.host in {tick["host"] for tick in at_work} else knew.host
        found.append(StrandedJobs(group, host, signs.get(host)))
    return found


def _only_elsewhere(group: LateGroup, at_work: Sequence[Mapping[str, Any]]) -> bool:
    records = _records(at_work)
    place = (group.queue, group.job_type)
    return bool(records) and all(
        any((each.get("queue"), each.get("job_type"), each.get("why")) == (*place, ELSEWHERE) for each in entries)
        for entries in records
    )


def _minutes_read(succeeded: Sequence[trends.SucceededLately], within: timedelta, now: datetime) -> float:
    """Return how many minutes *succeeded* covers.

    *succeeded* covers all of *within* unless there were too many to read.
    """
    if sum(each.jobs for each in succeeded) >= trends.ENDS_READ:
        within = max(timedelta(seconds=1), now - min(each.finished_at for each in succeeded))
    return within / timedelta(minutes=1)


def _by_place(succeeded: Sequence[trends.SucceededLately], minutes: float) -> dict[tuple[str, str], float]:
    """Return how many jobs of each queue and type succeed per minute."""
    rates: Counter[tuple[str, str]] = Counter()
    for each in succeeded:
        rates[each.queue, each.job_type] += each.jobs
    return {place: jobs / minutes for place, jobs in rates.items()}


def _by_limit(
    succeeded: Sequence[trends.SucceededLately], minutes: float, limits: Sequence[Limit]
) -> dict[Limit, float]:
    """Return how many jobs under each of *limits* succeed per minute."""
    keyed = [(each.concurrency_key, each.jobs) for each in succeeded if each.concurrency_key is not None]
    return {limit: sum(jobs for key, jobs in keyed if limit.counts(key)) / minutes for limit in limits}


def _that_could_run(
    group: LateGroup, behind: Mapping[tuple[str, str], LateBehind], records: Sequence[Sequence[Mapping[str, Any]]]
) -> int:
    """Return how many of *group*'s late jobs waited neither for a limit nor for another job."""
    its = behind.get(group[:2], LateBehind())
    late = group.late if its.late is None else its.late
    return late - max(its.behind, _waited_for_others(group, records))


def _waited_for_others(group: LateGroup, records: Sequence[Sequence[Mapping[str, Any]]]) -> int:
    """Return the smallest number of *group*'s jobs that a host's last tick left to wait for a limit or another job."""
    return min((sum(_waiting_in(entry, group) for entry in entries) for entries in records), default=0)


def _waiting_in(entry: Mapping[str, Any], group: LateGroup) -> int:
    its = (entry.get("queue"), entry.get("job_type")) == (group.queue, group.job_type)
    jobs = entry.get("jobs") if its and entry.get("why") in (LIMITED, BEHIND_ANOTHER) else 0
    return jobs if isinstance(jobs, int) else 0


def _records(at_work: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    return [entries_of(tick) for tick in at_work if tick["finished_at"]]


def _last_ended(
    connection: Connection, at_work: Sequence[Mapping[str, Any]], every: timedelta, now: datetime
) -> list[Mapping[str, Any]]:
    """Return the last ended tick of each host at work. A tick that still runs has recorded nothing yet."""
    hosts = {tick["host"] for tick in at_work}
    ended = records_between(connection, now - quiet_after(every) - LONGEST_TICK, now)
    return list({tick.host: tick._mapping for tick in reversed(ended) if tick.host in hosts}.values())


def _recorded(group: LateGroup, ended: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return why the *ended* ticks did not start the jobs of *group*.

    PASSED_OVER counts only if the group's oldest job was due when the tick began. Otherwise a job may just have come
    due as the tick ended.
    """
    return frozenset(
        str(why)
        for tick in ended
        for entry in entries_of(tick)
        if (entry.get("queue"), entry.get("job_type")) == (group.queue, group.job_type)
        and ((why := entry.get("why")) != PASSED_OVER or tick["started_at"] >= group.run_at)
    )


def _is_behind(
    group: LateGroup, lanes: Sequence[WaitingLane], busy: Sequence[WaitingLane], limits: Sequence[Limit], workers: int
) -> bool:
    """Return whether jobs in *busy* lanes come before the first job of *group*, and are enough for all *workers*."""
    its = [lane for lane in lanes if (lane.queue, lane.job_type) == group[:2]]
    first = min((Place(lane.priority, row.run_at, row.id) for lane in its for row in lane.rows[:1]), default=None)
    ahead = None if first is None else jobs_ahead(first, busy, limits, {}, workers)
    return ahead is not None and (ahead.more or ahead.better + ahead.earlier >= workers)


def out_of_reach(connection: Connection, late: Sequence[LateGroup], now: datetime) -> list[BeyondOptions]:
    """Return the groups of *late* jobs that are excluded by the options of all ticks since ``run_at``.

    ``--limit`` excludes no job. If a tick does not start a job because of --limit, a later tick starts the job.
    """
    if not late:
        return []
    begin = max(min(row.run_at for row in late), now - LOOKED_BACK)
    records = records_between(connection, begin, now)
    found = []
    for row in late[:GROUPS]:
        since_due = [tick for tick in records if tick.started_at >= row.run_at]
        place = {"queue": row.queue, "job_type": row.job_type}
        excluded = [(tick, options) for tick in since_due if (options := options_against(tick, place))]
        if excluded and len(excluded) == len(since_due):
            said = tuple(sorted({f"{text} on {tick.host}" for tick, text in excluded}))
            found.append(BeyondOptions(row.queue, row.job_type, row.late, row.run_at, said))
    return found


def options_against(tick: Any, place: Mapping[str, Any]) -> str | None:
    """Return the tick's options, as typed, that exclude jobs of the queue and type in *place*, or None."""
    options = did_of(tick.did).get("options")
    if not isinstance(options, dict):
        return None
    wants = {"queue": place["queue"], "only": place["job_type"]}
    against = [name for name, own in wants.items() if options.get(name, own) != own]
    return " ".join(f"--{name} {options[name]}" for name in against) or None


def entries_of(tick: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tick's records of due jobs that it did not start.

    Ignore malformed records, since on SQLite plain SQL can store any value in this column.
    """
    recorded = tick["not_started"]
    return [each for each in recorded if isinstance(each, Mapping)] if isinstance(recorded, list) else []


def what_waits(
    connection: Connection,
    settings: Settings,
    judged: JudgedTypes,
    pauses: Sequence[Row[Any]],
    at_work: Sequence[Mapping[str, Any]],
    now: datetime,
    types: Mapping[str, JobType],
) -> QueueFacts:
    """Read the waiting jobs by queue. *at_work*: the last ticks of the hosts that are ticking now."""
    found = QueueFacts()
    limit = late_after(settings.run.every)
    waiting = workload.waiting_by_queue(connection)
    for row in waiting.queues:
        queue = found.queues.setdefault(row.queue, Queue(paused=bool(of_queue(pauses, row.queue))))
        queue.due += row.due
        queue.future += row.waiting - row.due
        queue.failed += row.failed
        if row.due:
            queue.oldest_due_at = row.run_at
    rest = waiting.in_others
    found.others, found.more_queues = Queue(rest.due, rest.waiting - rest.due, rest.failed), waiting.others
    found.oldest_due_at = waiting.oldest_due_at
    late: list[LateGroup] = []
    # Read the groups only if something is due, since reading them scans the waiting indexes once more.
    due = workload.DueGroups(())
    if found.oldest_due_at:
        due = workload.due_groups(connection, limit, {*judged.here, *(judged.ticks or ())})
    for group in sorted(due.groups, key=lambda each: (each.queue, each.job_type)):
        unknown = not judged.knows(group.job_type, since=group.run_at)
        if unknown:
            found.unresolved[group.job_type] = found.unresolved.get(group.job_type, 0) + group.due
            found.came[group.job_type] = min(found.came.get(group.job_type, group.run_at), group.run_at)
        # Without a usable file and before any tick, no type is known, but the jobs can still be late.
        nobody_knows = settings.broken and judged.ticks is None
        its = found.of(group.queue)
        if group.late and not its.paused and (not unknown or nobody_knows):
            late.append(LateGroup(group.queue, group.job_type, group.run_at, group.late))
    if late or due.late:
        succeeded = trends.succeeded_lately(connection, limit)
        keys = {each.concurrency_key for each in succeeded if each.concurrency_key is not None}
        workers = settings.run.workers * len(at_work)
        held = held_back(settings.limits, keys, workers)
        behind = concurrency.late_behind_others(connection, settings.limits, limit, judged.ticks, held)
        records = _records(at_work)
        minutes = _minutes_read(succeeded, limit, now)
        rates = _by_place(succeeded, minutes)
        found.limits_a_minute = _by_limit(succeeded, minutes, settings.limits)
        ended = _last_ended(connection, at_work, settings.run.every, now)
        late = [
            each._replace(
                late=_that_could_run(each, behind, records),
                a_minute=rates.get(each[:2], 0.0),
                recorded=_recorded(each, ended),
            )
            for each in late
        ]
        # Leave out queues that were resumed lately, since their jobs are late only because of the pause.
        resumed = resumed_lately(connection, limit)
        late = [each for each in late if each.late > 0 and not {each.queue, ""} & resumed]
        read = {(each.queue, each.job_type) for each in due.groups}
        if not all(each.a_minute for each in late):
            lanes = claimed_by_ticks(lanes_due(connection, judged.ticks), types, judged.ticks)
            busy = [lane for lane in lanes if rates.get((lane.queue, lane.job_type))]
            late = [each._replace(behind=_is_behind(each, lanes, busy, settings.limits, workers)) for each in late]
        found.more_late = max(0, due.late - sum(each.behind for place, each in behind.items() if place not in read))
    found.more_types, found.more_unresolved = due.types, due.due
    for job_type in sorted(found.came, key=found.came.__getitem__)[MOST_TYPES:]:
        found.more_types += 1
        found.more_unresolved += found.unresolved.pop(job_type)
        del found.came[job_type]
    if late:
        first = min(late, key=lambda each: each.run_at)
        found.late_since = (workload.late_from(connection, first.queue, first.job_type, limit) or first.run_at) + limit
    if waiting.put_off:
        found.released = [
            each
            for each in workload.often_released(connection, limit, GROUPS)
            if not found.of(each.queue).paused and judged.knows(each.job_type, since=each.created_at)
        ]
    found.out_of_reach = out_of_reach(connection, late, now)
    beyond = {(each.queue, each.job_type) for each in found.out_of_reach}
    found.late = [each for each in late if (each.queue, each.job_type) not in beyond]
    for each in found.late:
        found.of(each.queue).late += each.late
    found.others.late += found.more_late
    for capped in pressures(connection):
        queue = found.queues.setdefault(capped.name, Queue(paused=bool(of_queue(pauses, capped.name))))
        queue.max_waiting, queue.dropped = capped.max_waiting, capped.dropped
        queue.on_full = None if capped.max_waiting is None else capped.on_full
    if not any(pause.scope == "all" for pause in pauses):
        paused = {pause.name for pause in pauses if pause.scope == "queue"}
        found.limited = concurrency.waiting_for(connection, settings.limits, paused)
    return found
