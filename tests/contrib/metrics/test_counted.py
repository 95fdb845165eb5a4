"""After random lives, metrics count everything that has ever ended, and report the current state."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import Table, insert, select
from support.lives import SCHEDULES, SECOND, Lives
from support.postgres import OWNER
from support.scraped import families

from cronjobs.contrib.metrics.families import Sample, gather
from cronjobs.contrib.metrics.openmetrics import lines_of
from cronjobs.engine.database.column_types import to_microseconds
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import counts, jobs, new_counts, queues, schedules, ticks
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.store.counts import BOUNDS_S
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.connects_as(OWNER)  # who may fill the tables
SEEDS = range(int(os.environ.get("CRONJOBS_COUNTS_SEEDS", "2")))
LIMITS = (Limit("card:", 2, 1),)


def check_text(lives: Lives) -> None:
    """What is printed, as the official client reads it."""
    with lives.database.read() as connection:
        printed = "".join(f"{line}\n" for line in lines_of(gather(connection, LIMITS, 4)))
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families(printed)
        for sample in family.samples
    }
    names = {"attempts": "cronjobs_attempts", "jobs": "cronjobs_jobs_finished"}
    names |= {"scheduled": "cronjobs_schedule_jobs_finished", "occurrences": "cronjobs_occurrences"}
    histograms = {"attempts": "cronjobs_attempt_duration_seconds", "jobs": "cronjobs_job_latency_seconds"}
    wanted: Any = Counter()
    micros: Any = Counter()
    last: dict[str, int] = {}
    for key, each in lives.wanted().items():
        name = SCHEDULES[int(key.name) - 1] if key.kind == "occurrences" else key.name
        wanted[f"{names[key.kind]}_total", *sorted((name, key.outcome))] += each.number
        if key.bucket >= 0:
            for bound in [*map(str, map(float, BOUNDS_S)), "+Inf"][key.bucket :]:
                wanted[f"{histograms[key.kind]}_bucket", *sorted((name, bound))] += each.number
            wanted[f"{histograms[key.kind]}_count", name] += each.number
            micros[f"{histograms[key.kind]}_sum", name] += each.micros
        if key.kind == "scheduled" and key.outcome == "succeeded":
            last[name] = each.newest or 0
    wanted |= Counter({key: value / 1e6 for key, value in micros.items()})
    for schedule, at in last.items():
        wanted["cronjobs_schedule_last_success_timestamp_seconds", schedule] = at / 1e6
    wanted |= gauges(lives) | longest(lives)
    shown = {key: value for key, value in found.items() if value or key in wanted}
    # Equal up to some microseconds, because a span goes into the database as a float of seconds.
    assert shown == {key: pytest.approx(value, abs=1e-4) for key, value in wanted.items() if value or key in shown}


def longest(lives: Lives) -> dict[Any, float]:
    """The longest attempts and waits of this hour and the last."""
    names = {"attempts": "cronjobs_attempt_duration_max_seconds", "jobs": "cronjobs_job_latency_max_seconds"}
    now = to_microseconds(lives.clock.now()) // 3_600_000_000
    found: dict[Any, float] = {}
    for key, each in lives.wanted(by_hour=True).items():
        if key.hour >= now - 1 and each.longest is not None:
            place = (names[key.kind], key.name)
            found[place] = max(found.get(place, 0), each.longest / 1e6)
    return found


def gauges(lives: Lives) -> dict[Any, float]:
    """How things stand now, by a look at every row."""
    with lives.database.read() as connection:
        live = connection.execute(select(jobs).where(jobs.c.status.in_(("queued", "failed", "running")))).all()
        capped = connection.execute(select(queues)).all()
        listed = connection.execute(select(schedules)).all()
        last = connection.execute(select(ticks.c.started_at).order_by(ticks.c.id.desc()).limit(1)).scalar()
    wanted: dict[Any, float] = {("cronjobs_workers",): 4, ("cronjobs_saturated_hosts",): 0}
    for queue in {job.queue for job in live} | {row.name for row in capped}:
        waiting = [job.run_at for job in live if job.queue == queue and job.status != "running"]
        due = [run_at for run_at in waiting if run_at <= lives.clock.now() + SECOND / 2]  # PostgreSQL's goes on
        running = [job for job in live if job.queue == queue and job.status == "running"]
        for name, count in (("waiting", len(waiting)), ("due", len(due)), ("running", len(running))):
            wanted[f"cronjobs_queue_{name}", queue] = count
        if due:
            wanted["cronjobs_queue_oldest_due_timestamp_seconds", queue] = min(due).timestamp()
    for row in capped:
        if row.max_waiting is not None:
            wanted["cronjobs_queue_capacity", row.name] = row.max_waiting
        wanted["cronjobs_queue_dropped_total", row.name] = row.dropped
        wanted["cronjobs_queue_refused_total", row.name] = row.refused
    keys = Counter(job.concurrency_key for job in live if job.status == "running" and job.concurrency_key)
    for scope, used, most in (("all", keys.total(), 2), ("each", max(keys.values(), default=0), 1)):
        wanted["cronjobs_limit_used", scope, "card:"] = used
        wanted["cronjobs_limit_capacity", scope, "card:"] = most
    upcoming = {row.name: row.next_at for row in listed if row.next_at is not None and row.status == "active"}
    for name, at in upcoming.items():
        wanted["cronjobs_schedule_next_timestamp_seconds", name] = at.timestamp()
    if last is not None:
        wanted["cronjobs_last_tick_timestamp_seconds",] = last.timestamp()
    return {(name, *sorted(labels)): value for (name, *labels), value in wanted.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_printed_is_what_ever_ended(database: Database, clock: FakeClock, seed: int) -> None:
    lives = Lives(database, clock, seed)
    for _ in range(70):
        lives.step()
    check_text(lives)


MINUTE = 60 * SECOND
BUSY = [{"why": "slots", "job_type": "t", "queue": "q", "jobs": 3}]


@pytest.mark.parametrize(
    ("ticks_of_hosts", "saturated"),
    [
        ({"a": [(MINUTE, BUSY)], "b": [(MINUTE, BUSY)]}, 2),
        ({"a": [(2 * MINUTE, BUSY), (MINUTE, None)], "b": [(2 * MINUTE, None), (MINUTE, BUSY)]}, 1),
        ({"a": [(11 * MINUTE, BUSY)], "b": [(9 * MINUTE, BUSY)]}, 1),
        ({"a": [(MINUTE, [{"why": "late"}])], "b": [(MINUTE, "slots")], "c": [(MINUTE, ["slots", 1])]}, 0),
    ],
)
def test_a_host_whose_last_tick_had_no_worker_free_is_saturated(
    database: Database, clock: FakeClock, ticks_of_hosts: dict[str, Any], saturated: int
) -> None:
    own = {"pid": 1, "version": "0", "schedules_on": 1}
    with database.write() as connection:
        for host, its in ticks_of_hosts.items():
            for ago, left in its:
                row = own | {"tick": f"{host}{ago}", "host": host, "started_at": clock.now() - ago, "not_started": left}
                connection.execute(insert(ticks).values(row))
    with database.read() as connection:
        found = {family.name: family for family in gather(connection, LIMITS, 4)}
    assert [sample.value for sample in found["cronjobs_saturated_hosts"].samples] == [saturated]


@pytest.mark.parametrize("table", [counts, new_counts], ids=["folded", "not yet folded"])
def test_the_longest_is_that_of_this_hour_and_the_last(database: Database, clock: FakeClock, table: Table) -> None:
    this_hour = to_microseconds(clock.now()) // 3_600_000_000
    own = {"kind": "attempts", "name": "t.a", "outcome": "succeeded", "bucket": 3}
    with database.write() as connection:
        for hour, seconds in [(this_hour, 5), (this_hour - 1, 7), (this_hour - 2, 9), (0, 11)]:
            connection.execute(insert(table).values(own | {"at_hour": hour, "longest": seconds * 1_000_000}))
        if table is new_counts:  # makes the name one that the counters know
            connection.execute(insert(counts).values(own | {"at_hour": 0}))
    with database.read() as connection:
        found = {family.name: family for family in gather(connection, LIMITS, 4)}
    assert found["cronjobs_attempt_duration_max_seconds"].samples == [Sample("", (("job_type", "t.a"),), 7)]
