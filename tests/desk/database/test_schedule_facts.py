"""Random ledgers, jobs and attempts: the facts about a schedule are those that plain Python finds in the rows."""

from __future__ import annotations

import random
import statistics
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select
from support.lookingrows import NOW, Rows, ago
from support.lookingrows import rows as rows

from cronjobs.desk.insight.schedule_facts import last_runs, p95, schedule_facts
from cronjobs.desk.store.schedule_runs import RunFacts
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.testing import FakeClock

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
STATUSES = ["succeeded"] * 8 + ["failed", "dead", "cancelled", "running", "queued"]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


class Histories:
    """Writes the rows, and keeps them."""

    def __init__(self, rows: Rows, seed: int) -> None:
        self.rows, self.dice = rows, random.Random(seed)
        self.jobs: dict[int, dict[str, Any]] = {}
        self.attempts: dict[tuple[int, int], dict[str, Any]] = {}
        self.ledger: dict[int, list[dict[str, Any]]] = {}

    def schedule(self, name: str, count: int) -> int:
        dice = self.dice
        number = self.rows.schedule(name, next_at=dice.choice([None, NOW + MINUTE, ago(minutes=3)]))
        ahead = dice.choice([0, 0, 3])
        self.ledger[number] = []
        for step in range(count):
            at = NOW + (ahead - step) * MINUTE - SECOND * dice.randrange(50)
            outcome = "enqueued" if dice.random() < 0.8 else dice.choice(["missed", "skipped", "coalesced"])
            job_id = (
                dice.choice([None, 10**9 + step, self.job(name, at)]) if dice.random() < 0.2 else self.job(name, at)
            )
            row = {"schedule_id": number, "first_for": at, "last_for": at, "decided_at": at, "outcome": outcome}
            # An outage has one row for all its occurrences, which also holds the first of them.
            count = dice.choice([1, 2, 30]) if outcome == "missed" else 1
            self.ledger[number].append(row | {"job_id": job_id, "count": count, "first_for": at - (count - 1) * SECOND})
        if count:
            with self.rows.database.write() as connection:
                connection.execute(insert(tables.occurrences), self.ledger[number])
        return number

    def job(self, schedule: str, at: datetime) -> int:
        dice, status = self.dice, self.dice.choice(STATUSES)
        began = at + SECOND * dice.random() * 5
        ended = began + SECOND * dice.choice([0.1, 1, 2, 3, 30]) * dice.random()
        tried = {"attempts": dice.randrange(1, 4)}
        match status:
            case "queued":
                extra: dict[str, Any] = {"attempts": 0}
            case "running":
                extra = tried | {"started_at": began}
            case "failed":
                extra = tried | {"started_at": began, "last_failed_at": ended, "failures": 1}
            case _:
                extra = tried | {"started_at": began, "finished_at": ended}
        job_id = self.rows.job(status=status, schedule=schedule, scheduled_for=at, **extra)
        self.jobs[job_id] = {"status": status} | extra
        last = extra["attempts"] if status in ("succeeded", "failed", "dead") else extra["attempts"] - 1
        for attempt in range(1, last + 1):
            if attempt == last and dice.random() < 0.1:
                continue  # pruned, or never written
            good = status == "succeeded" and attempt == last
            times = {"started_at": began, "finished_at": ended} if attempt == last else {}
            self.rows.attempt(job_id, "succeeded" if good else "failed", attempt=attempt, **times)
            self.attempts[job_id, attempt] = times
        return job_id

    def expected(self, number: int) -> tuple[list[Any], list[timedelta]]:
        """Runs and durations, in plain Python."""
        past = sorted((row for row in self.ledger[number] if row["last_for"] <= NOW), key=lambda row: row["last_for"])
        told, durations = [], []
        for place, row in enumerate(reversed(past[-100:])):
            job = self.jobs.get(row["job_id"], {}) if row["outcome"] == "enqueued" else {}
            outcome = job.get("status", "pruned") if row["outcome"] == "enqueued" else row["outcome"]
            times = self.attempts.get((row["job_id"], job["attempts"])) if job else None
            took = times["finished_at"] - times["started_at"] if times else None
            if outcome == "succeeded" and took is not None:
                durations.append(took)
            at = job.get({"running": "started_at", "failed": "last_failed_at"}.get(outcome, "finished_at"))
            if place < 20:
                told.append((outcome, at or row["last_for"], row["last_for"], row["job_id"], took, row["count"]))
        return told, durations


@pytest.mark.parametrize("seed", range(2))
def test_facts_of_random_histories_are_what_python_finds_in_the_rows(database: Database, rows: Rows, seed: int) -> None:
    world = Histories(rows, seed)
    numbers = [world.schedule(f"s{size}", size) for size in (0, 1, 19, 23, 60, 130)]
    with database.read() as connection:
        found = schedule_facts(connection, [*numbers, 10**9])
        assert schedule_facts(connection, []) == {}
        stored = {row.id: row for row in connection.execute(select(tables.schedules))}
        jobs = [row for row in connection.execute(select(tables.jobs)) if row.status == "running"]
    assert found.keys() == set(numbers)
    for number in numbers:
        facts, (runs, durations) = found[number], world.expected(number)
        assert [tuple(vars(each).values()) for each in facts.runs] == runs
        assert list(facts.strip) == [each[0] for each in reversed(runs) for _ in range(each[-1])][-20:]
        assert list(facts.durations) == durations
        results = [each for each in runs if each[0] not in ("queued", "running")]
        assert (None if facts.last is None else tuple(vars(facts.last).values())) == (results[0] if results else None)
        running = min((row for row in jobs if row.schedule == facts.name), key=lambda row: row.started_at, default=None)
        assert (facts.running and facts.running.job_id) == (running and running.id)
        ordered = sorted(durations)
        if len(durations) < 20:
            assert (facts.median, facts.p95) == (None, None)
        else:
            assert facts.p95 is not None
            assert sum(each <= facts.p95 for each in ordered) >= 0.95 * len(ordered)
            assert sum(each < facts.p95 for each in ordered) < 0.95 * len(ordered)
            seconds = statistics.median(each.total_seconds() for each in ordered)
            assert facts.median is not None
            assert facts.median.total_seconds() == pytest.approx(seconds, abs=1e-6)
        assert (facts.name, facts.next_at) == (stored[number].name, stored[number].next_at)


def test_a_pause_is_told_with_the_schedule_that_it_stops(database: Database, rows: Rows) -> None:
    quiet, other = rows.schedule("quiet"), rows.schedule("other")
    rows.pause("schedule", "quiet", by="hugo", why="too loud")
    with database.read() as connection:
        found = schedule_facts(connection, [quiet, other])
    assert (found[quiet].paused, found[other].paused) == ("paused by hugo: too loud", None)


def test_of_twenty_durations_one_may_be_longer() -> None:
    assert p95([SECOND * n for n in range(1, 21)]) == 19 * SECOND
    assert p95([SECOND * n for n in range(1, 101)]) == 95 * SECOND


def test_a_retry_counts_from_the_end_of_the_attempt_and_not_from_its_recovery(database: Database, rows: Rows) -> None:
    """A thread that outlives its timeout holds its job until a tick recovers the job."""
    nightly = rows.schedule("nightly")
    began = ago(minutes=11)
    job = rows.job(status="failed", schedule="nightly", started_at=began, attempts=1, last_failed_at=ago(minutes=1))
    rows.attempt(job, "timed_out", attempt=1, started_at=began, finished_at=ago(minutes=10))
    rows.occurrence(nightly, ago(minutes=11), job_id=job)
    with database.read() as connection:
        last = last_runs(connection, [nightly])
    assert (last[nightly].outcome, last[nightly].at) == ("failed", ago(minutes=10))


def test_the_last_run_of_a_schedule_can_be_one_that_a_person_triggered(database: Database, rows: Rows) -> None:
    nightly, never, other = rows.schedule("nightly"), rows.schedule("never"), rows.schedule("other")
    failed = rows.job(status="failed", schedule="nightly", started_at=ago(hours=5), last_failed_at=ago(hours=4))
    rows.occurrence(nightly, ago(hours=6), job_id=failed)
    begun: dict[str, Any] = {"started_at": ago(hours=3), "attempts": 1}

    def trigger(name: str, hours: int, detail: dict[str, Any]) -> None:
        rows.put(tables.audit, action="trigger", subject=name, detail=detail, at=ago(hours=hours), host="web1")

    old = rows.job(status="dead", schedule="nightly", finished_at=ago(hours=3), **begun)
    made = rows.job(status="succeeded", schedule="nightly", finished_at=ago(hours=2), **begun)
    rows.attempt(made, "succeeded", attempt=1, started_at=ago(hours=3), finished_at=ago(hours=2))
    trigger("nightly", 4, {"job_id": old, "force": True})
    trigger("nightly", 3, {"job_id": made, "force": True})
    trigger("never", 1, {"job_id": 10**9, "force": False})
    trigger("other", 3, {"job_id": rows.job(status="running", schedule="other", **begun), "force": False})
    by_hand = RunFacts("succeeded", ago(hours=2), ago(hours=3), made, timedelta(hours=1))
    with database.read() as connection:
        found = schedule_facts(connection, [nightly, never, other])
        last = last_runs(connection, [nightly, never, other])
    assert (found[nightly].last, last[nightly]) == (by_hand, by_hand)
    assert found[nightly].strip == ("failed",)  # occurrences alone
    assert found[never].last == last[never] == RunFacts("pruned", ago(hours=1), ago(hours=1), 10**9)
    assert found[other].last is None
    assert found[other].running == last[other]
