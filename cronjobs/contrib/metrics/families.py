"""All metrics and their values. They cover the whole database, so they have no host label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row

from cronjobs import masking
from cronjobs.contrib.metrics.statements import (
    DueNext,
    queue_rows,
    running_by_queue,
    ticks_lately,
    upcoming_schedules,
)
from cronjobs.desk.store import explaining, workload
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.store import counts
from cronjobs.engine.store.concurrency import running_by_key
from cronjobs.engine.store.counts import BOUNDS_S, MOST_NAMES, NO_BUCKET, OTHER, Sum, Sums
from cronjobs.engine.store.queues import held_so_far
from cronjobs.engine.tick.not_started import NO_WORKER
from cronjobs.text import visible

MOST_QUEUES: Final = 200
SATURATED_WITHIN: Final = timedelta(minutes=10)  # do not count hosts whose last tick is older than this

Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    suffix: str
    labels: Labels
    value: float


@dataclass
class Metric:
    """A metric: its name without "_total", its kind ("counter", "gauge", "histogram"), and one line about it."""

    name: str
    kind: str
    help: str
    samples: list[Sample] = field(default_factory=list)

    def put(self, value: float | None, suffix: str = "", **labels: str) -> None:
        if value is not None:
            self.samples.append(Sample(suffix, tuple(labels.items()), value))


def gather(connection: Connection, limits: Sequence[Limit], workers: int) -> list[Metric]:
    """Return all metrics. *limits* and *workers* come from the file."""
    # Read the counts before the schedules, so that each schedule that has counts is in the list of schedules.
    ended = counts.all_that_ended(connection)
    schedules = upcoming_schedules(connection)
    return [
        *_ends(ended),
        *_longest(ended, counts.longest_lately(connection)),
        *_schedules(ended, schedules),
        *_queues(connection),
        *_limits(connection, limits),
        *_ticks(connection, workers),
    ]


def _shown(name: str) -> str:
    """Make a name safe for a label. Escape control characters and mask secrets."""
    return masking.hide(visible(name))


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


# --- what ended -------------------------------------------------------------------------------------------------------


def _ends(ended: Sums) -> list[Metric]:
    return [
        _counter("cronjobs_attempts", "Attempts that ended, by outcome.", ended, "attempts", ("job_type", "outcome")),
        _counter("cronjobs_jobs_finished", "Jobs that ended for good.", ended, "jobs", ("job_type", "status")),
        _counter(
            "cronjobs_schedule_jobs_finished",
            "Scheduled jobs that ended for good.",
            ended,
            "scheduled",
            ("schedule", "status"),
        ),
        _histogram(
            "cronjobs_attempt_duration_seconds",
            "How long attempts took, not counting lost attempts.",
            ended,
            "attempts",
        ),
        _histogram(
            "cronjobs_job_latency_seconds",
            "The time between the due time of a job's last attempt and its start.",
            ended,
            "jobs",
        ),
    ]


def _counter(name: str, about: str, ended: Sums, kind: str, labels: tuple[str, str]) -> Metric:
    numbers: dict[tuple[str, str], int] = {}
    for key, each in ended.items():
        if key.kind == kind:
            place = (_shown(key.name), key.outcome)
            numbers[place] = numbers.get(place, 0) + each.number
    family = Metric(name, "counter", about)
    for place, count in sorted(numbers.items()):
        family.put(count, "_total", **dict(zip(labels, place, strict=True)))
    return family


def _histogram(name: str, about: str, ended: Sums, kind: str) -> Metric:
    sums: dict[str, list[Sum]] = {}
    for key, each in ended.items():
        if key.kind == kind and key.bucket != NO_BUCKET:
            buckets = sums.setdefault(_shown(key.name), [Sum(0)] * (len(BOUNDS_S) + 1))
            buckets[key.bucket] = buckets[key.bucket].plus(each)
    family = Metric(name, "histogram", about)
    for job_type, buckets in sorted(sums.items()):
        count = 0
        for bound, each in zip([*map(float, BOUNDS_S), float("inf")], buckets, strict=True):
            count += each.number
            family.put(count, "_bucket", job_type=job_type, le="+Inf" if bound == float("inf") else str(bound))
        family.put(sum(each.micros for each in buckets) / 1e6, "_sum", job_type=job_type)
        family.put(count, "_count", job_type=job_type)
    return family


def _longest(ended: Sums, lately: Sums) -> list[Metric]:
    """Return the gauges of the longest attempts and latencies.

    If a job type's counters are merged under OTHER, merge its gauge too. Otherwise its series would come and go.
    """
    families = []
    for name, about, kind in (
        (
            "cronjobs_attempt_duration_max_seconds",
            "The longest attempt that ended in this hour or the hour before.",
            "attempts",
        ),
        (
            "cronjobs_job_latency_max_seconds",
            "The longest latency of a job that ended in this hour or the hour before.",
            "jobs",
        ),
    ):
        names = {key.name for key in ended if key.kind == kind}
        family = Metric(name, "gauge", about)
        for key, each in sorted(lately.items()):
            if key.kind == kind and each.longest is not None:
                family.put(each.longest / 1e6, job_type=_shown(key.name if key.name in names else OTHER))
        families.append(_without_repeats(family, max))
    return families


# --- schedules --------------------------------------------------------------------------------------------------------


def _schedules(ended: Sums, schedules: Sequence[DueNext]) -> list[Metric]:
    """Return the schedules' metrics.

    If there are too many schedules, those with the lowest ids get their own labels, so that none moves to OTHER later.
    """
    most = MOST_NAMES["occurrences"]
    names = {str(each.id): each.name if place < most else OTHER for place, each in enumerate(schedules)}
    settled: Sums = {}
    newest: dict[str, int] = {}
    for key, each in ended.items():
        if key.kind == "occurrences":
            counts.add(settled, key._replace(name=names.get(key.name, OTHER)), each)
        elif (key.kind, key.outcome) == ("scheduled", "succeeded") and each.newest is not None:
            newest[key.name] = max(each.newest, newest.get(key.name, each.newest))
    upcoming = Metric(
        "cronjobs_schedule_next_timestamp_seconds",
        "gauge",
        "When the schedule is due next. A time in the past means that the schedule is late.",
    )
    last = Metric(
        "cronjobs_schedule_last_success_timestamp_seconds", "gauge", "When a job of the schedule last succeeded."
    )
    for schedule in schedules[:most]:
        if schedule.active:
            upcoming.put(_seconds(schedule.next_at), schedule=_shown(schedule.name))
            at = newest.get(schedule.name)
            last.put(None if at is None else at / 1e6, schedule=_shown(schedule.name))
    about = "Occurrences of the schedule, by outcome."
    return [
        _counter("cronjobs_occurrences", about, settled, "occurrences", ("schedule", "outcome")),
        _without_repeats(upcoming, min),
        _without_repeats(last, max),
    ]


# --- queues and limits ------------------------------------------------------------------------------------------------


@dataclass
class _Queue:
    waiting: int = 0
    due: int = 0
    running: int = 0
    oldest: datetime | None = None
    capacity: int | None = None
    dropped: int = 0
    refused: int = 0
    listed: bool = False  # whether the queue has or once had a cap

    def absorb(self, other: _Queue) -> None:
        for name in ("waiting", "due", "running", "dropped", "refused"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.listed = self.listed or other.listed
        if other.oldest is not None:
            self.oldest = other.oldest if self.oldest is None else min(self.oldest, other.oldest)


def _queues(connection: Connection) -> list[Metric]:
    found: dict[str, _Queue] = {}
    waiting = workload.waiting_by_queue(connection)
    for group in waiting.queues:
        one = _Queue(waiting=group.waiting, due=group.due, oldest=group.run_at)
        found.setdefault(group.queue, _Queue()).absorb(one)
    for name, running in running_by_queue(connection).items():
        found.setdefault(name, _Queue()).running = running
    capped = queue_rows(connection)
    for row in capped:
        queue = found.setdefault(row.name, _Queue())
        queue.capacity, queue.dropped, queue.refused, queue.listed = row.max_waiting, row.dropped, row.refused, True
    # To keep the series stable, queues that have or once had a cap get labels first, then the fullest queues.
    order = sorted(found, key=lambda name: (not found[name].listed, -found[name].waiting, name))
    order = sorted(order[:MOST_QUEUES]) + order[MOST_QUEUES:]
    shown: dict[str, _Queue] = {}
    for place, name in enumerate(order):
        label = _shown(name) if place < MOST_QUEUES else OTHER
        if label in shown:
            shown[label].absorb(found[name])
        else:
            shown[label] = found[name]
    if waiting.others:
        rest = _Queue(waiting=waiting.in_others.waiting, due=waiting.in_others.due, oldest=waiting.oldest_due_at)
        shown.setdefault(OTHER, _Queue()).absorb(rest)
    families = {
        name: Metric(f"cronjobs_{name}", kind, about)
        for name, kind, about in (
            ("queue_waiting", "gauge", "Waiting jobs, due or not."),
            ("queue_due", "gauge", "Waiting jobs that are due."),
            ("queue_oldest_due_timestamp_seconds", "gauge", "When the job that has been waiting longest became due."),
            ("queue_capacity", "gauge", "The number of jobs that may wait in the queue (max_waiting)."),
            ("queue_running", "gauge", "Jobs that runners have claimed."),
            ("queue_dropped", "counter", "Jobs dropped because the queue was full."),
            (
                "queue_refused",
                "counter",
                "Jobs refused because the queue was full. Refusals in an app's own transaction are not counted.",
            ),
        )
    }
    for label, queue in shown.items():
        families["queue_waiting"].put(queue.waiting, queue=label)
        families["queue_due"].put(queue.due, queue=label)
        families["queue_oldest_due_timestamp_seconds"].put(_seconds(queue.oldest), queue=label)
        families["queue_capacity"].put(queue.capacity, queue=label)
        families["queue_running"].put(queue.running, queue=label)
        if queue.listed:
            families["queue_dropped"].put(queue.dropped, "_total", queue=label)
            families["queue_refused"].put(queue.refused, "_total", queue=label)
    held = Metric(
        "cronjobs_enqueue_held",
        "counter",
        "Enqueues that gave up waiting for another transaction's lock on a capped queue.",
    )
    held.put(held_so_far(connection), "_total")
    return [*families.values(), held]


def _limits(connection: Connection, limits: Sequence[Limit]) -> list[Metric]:
    """Return the limits' metrics.

    The scope "all" counts all running jobs under a limit. The scope "each" counts the running jobs of the busiest key.
    """
    used = Metric(
        "cronjobs_limit_used",
        "gauge",
        (
            "Running jobs that count against a limit. If each key has its own limit, the metric counts only the "
            "key with the most running jobs."
        ),
    )
    capacity = Metric("cronjobs_limit_capacity", "gauge", "The number of jobs that the limit lets run at once.")
    running = running_by_key(connection) if limits else {}
    for limit in limits:
        counted = [count for key, count in running.items() if limit.counts(key)]
        for scope, most, now in (("all", limit.most, sum(counted)), ("each", limit.each, max(counted, default=0))):
            if most is not None:
                used.put(now, limit=_shown(limit.prefix), scope=scope)
                capacity.put(most, limit=_shown(limit.prefix), scope=scope)
    return [used, capacity]


def _ticks(connection: Connection, workers: int) -> list[Metric]:
    last = Metric("cronjobs_last_tick_timestamp_seconds", "gauge", "When the last tick began, on any host.")
    # newest_tick selects by id, since a tick of a host whose clock is years ahead would have the latest time.
    if (newest := explaining.newest_tick(connection)) is not None:
        last.put(_seconds(newest.started_at))
    places = Metric("cronjobs_workers", "gauge", "The number of jobs that one tick runs at once (run.workers).")
    places.put(workers)
    about = "Hosts whose last tick did not start all due jobs, because its workers were busy until the tick ended."
    saturated = Metric("cronjobs_saturated_hosts", "gauge", about)
    saturated.put(sum(map(_is_saturated, ticks_lately(connection, SATURATED_WITHIN))))
    return [last, places, saturated]


def _is_saturated(tick: Row[Any]) -> bool:
    left = tick.not_started if isinstance(tick.not_started, list) else []  # on SQLite, this column may hold any JSON
    return any(isinstance(entry, Mapping) and entry.get("why") == NO_WORKER for entry in left)


def _without_repeats(family: Metric, choose: Callable[[float, float], float]) -> Metric:
    """Merge samples that have the same labels, because a series can have only one value."""
    values: dict[Labels, float] = {}
    for sample in family.samples:
        known = values.get(sample.labels)
        values[sample.labels] = sample.value if known is None else choose(known, sample.value)
    family.samples = [Sample("", labels, value) for labels, value in values.items()]
    return family
