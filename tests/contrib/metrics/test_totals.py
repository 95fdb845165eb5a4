"""Totals of random lives: whatever ticks count, prune and operators do in between, they are those of all rows that ever
were.

CRONJOBS_TOTALS_SEEDS=300 makes the long form.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, text, update
from support.scraped import families

from cronjobs.contrib.metrics.families import gather
from cronjobs.contrib.metrics.openmetrics import lines_of
from cronjobs.engine.config.settings import Retention
from cronjobs.engine.database.column_types import to_microseconds
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import job_runs, jobs, occurrences, queues, schedules, ticks
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.rules.histogram import BOUNDS_S, bucket_of
from cronjobs.engine.store import operating, totals
from cronjobs.engine.store import schedules as ledger
from cronjobs.engine.store.operating import OperatorAction
from cronjobs.engine.store.schedules import LedgerRow
from cronjobs.engine.store.totals import Key, Sum
from cronjobs.engine.tick.pruner import Before, Pruner
from cronjobs.errors import DatabaseBusy
from cronjobs.testing import FakeClock

SEEDS = range(int(os.environ.get("CRONJOBS_TOTALS_SEEDS", "6")))
STEPS = 70
TYPES = ("t.mail", 'quote"d', "new\nline", "back\\slash", "other", "long" * 100)
SCHEDULES = ("a", "b", "c")
QUEUES = ("default", "mail")
LIMITS = (Limit("card:", 2, 1),)
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


class Lives:
    def __init__(self, database: Database, clock: FakeClock, seed: int) -> None:
        self.database, self.clock, self.dice = database, clock, random.Random(seed)
        self.attempts: dict[tuple[int, int], Any] = {}  # every row that ever said how an attempt ended
        self.ends: dict[tuple[int, int], Any] = {}  # and every end of a job, which a retry may give another
        self.lives: Counter[int] = Counter()
        self.ledger: Counter[tuple[int, str]] = Counter()
        self.at = clock.now() - 400 * DAY
        with database.write() as connection:
            row = {"definition": {}, "fingerprint": "", "seen_until": clock.now() + 400 * DAY}
            connection.execute(insert(schedules), [{"name": name, **row} for name in SCHEDULES])

    def acts(self) -> list[Callable[[], None]]:
        """What may happen next, each as likely as the others."""
        often = [self.claim, self.claim, self.end, self.end, self.end, self.count, self.count]
        seldom = [self.enqueue, self.overdue, self.prune, self.retry, self.cancel, self.restored, self.settle]
        return [*often, *seldom, self.fill, self.time, self.wrong_clock]

    def step(self) -> None:
        self.dice.choice(self.acts())()
        self.remember()

    # --- what happens -------------------------------------------------------------------------------------------------

    def enqueue(self) -> None:
        with self.database.write() as connection:
            for _ in range(self.dice.randint(1, 6)):
                connection.execute(insert(jobs).values(self.new()))

    def new(self, **more: Any) -> dict[str, Any]:
        now = self.clock.now()
        chosen = {"schedule": [None, "a", "b"], "queue": QUEUES, "concurrency_key": [None, "card:1", "card:2"]}
        row = {"job_type": self.dice.choice(TYPES), "run_at": now, "created_at": now}
        return row | {name: self.dice.choice(values) for name, values in chosen.items()} | more

    def claim(self) -> None:
        with self.database.write() as connection:
            for row in self.some(connection, jobs.c.status.in_(("queued", "failed")), 3):
                lease = {"locked_by": "me", "locked_until": self.clock.now() + DAY, "started_at": self.clock.now()}
                values = {"status": "running", "attempts": row.attempts + 1} | lease
                values["policy"] = {"attempt": row.attempts + 1}  # whoever recovers it needs it
                connection.execute(update(jobs).where(jobs.c.id == row.id).values(values))

    def some(self, connection: Any, where: Any, most: int) -> Sequence[Any]:
        rows = connection.execute(select(jobs).where(where).order_by(jobs.c.id)).all()
        return self.dice.sample(rows, min(most, len(rows)))

    def ended_at(self, row: Any) -> datetime:
        """Now, or earlier, when the database was away and the end had to wait."""
        span = max(0, to_microseconds(self.clock.now()) - to_microseconds(row.started_at))
        at: datetime = row.started_at + timedelta(microseconds=self.dice.choice([span, self.dice.randint(0, span)]))
        return at

    def end(self) -> None:
        outcomes = {
            "succeeded": "succeeded",
            "failed": self.dice.choice(["failed", "dead"]),
            "lost": self.dice.choice(["failed", "dead"]),
            "cancelled": "cancelled",
            "snoozed": "queued",
        }
        with self.database.write() as connection:
            for row in self.some(connection, jobs.c.status == "running", 2):
                outcome = self.dice.choice(list(outcomes))
                status, at = outcomes[outcome], self.ended_at(row)
                where = (job_runs.c.job_id == row.id) & (job_runs.c.attempt == row.attempts)
                connection.execute(delete(job_runs).where(where))
                self.run(connection, row.id, row.attempts, outcome, row.started_at, at)
                values: dict[str, Any] = {"status": status, "locked_by": None, "locked_until": None}
                if status in ("succeeded", "dead", "cancelled"):
                    values["finished_at"] = at
                else:
                    values["run_at"] = self.clock.now()
                connection.execute(update(jobs).where(jobs.c.id == row.id).values(values))

    def overdue(self) -> None:
        """The time-out is recorded while the thread still runs; what it returns may replace that."""
        with self.database.write() as connection:
            for row in self.some(connection, jobs.c.status == "running", 1):
                where = (job_runs.c.job_id == row.id) & (job_runs.c.attempt == row.attempts)
                if connection.execute(select(job_runs.c.job_id).where(where)).first() is None:
                    self.run(connection, row.id, row.attempts, "timed_out", row.started_at, self.ended_at(row))

    def run(self, connection: Any, job_id: int, attempt: int, outcome: str, began: datetime, ended: datetime) -> None:
        row = {"job_id": job_id, "attempt": attempt, "outcome": outcome, "started_at": began, "finished_at": ended}
        connection.execute(insert(job_runs).values(runner="me", **row))

    def restored(self) -> None:
        """Rows that ended long ago come in with new ids, as from another program or a copy."""
        began = self.clock.now() - self.dice.randint(1, 300) * DAY
        ended = began + self.dice.randint(0, 20_000) * SECOND
        times = {"run_at": began - SECOND, "started_at": began, "finished_at": ended}
        with self.database.write() as connection:
            for _ in range(self.dice.randint(1, 5)):
                row = self.new(status="succeeded", attempts=1, **times)
                job_id = connection.execute(insert(jobs).values(row).returning(jobs.c.id)).scalar_one()
                self.run(connection, job_id, 1, "succeeded", began, ended)

    def count(self) -> None:
        for _ in range(self.dice.randint(1, 4)):
            with self.database.write() as connection:
                if not totals.count_on(connection, self.dice.randint(1, 6)):
                    break
            if self.dice.random() < 0.3:
                self.check()

    def prune(self) -> None:
        span = timedelta(minutes=self.dice.choice([0, 1, 5, 600, 600_000]))
        kept = Retention(span, span, span, span, span)
        tries = self.dice.randint(1, 9)

        def go_on() -> bool:
            nonlocal tries
            tries -= 1
            return tries > 0

        Pruner(self.database, Before.of(kept, self.clock.now()), self.clock, go_on).run()

    def retry(self) -> None:
        self.operate("retry", jobs.c.status.in_(("dead", "cancelled", "failed")))

    def cancel(self) -> None:
        self.operate("cancel", jobs.c.status.in_(("queued", "failed")))

    def operate(self, action: str, where: Any) -> None:
        with self.database.write() as connection:
            ids = [row.id for row in self.some(connection, where, 3)]
            getattr(operating, action)(connection, ids, OperatorAction(action, "ada", "alpha", None))

    def settle(self) -> None:
        rows = []
        for _ in range(self.dice.randint(1, 4)):
            self.at += self.dice.randint(1, 1000) * timedelta(hours=1)
            outcome = self.dice.choice(["enqueued", "missed", "skipped"])
            last = self.at
            self.at += self.dice.randint(0, 5) * timedelta(hours=1)
            rows.append(LedgerRow(self.dice.choice([1, 2]), last, self.at, self.dice.randint(1, 50), outcome))
        with self.database.write() as connection:
            ledger.record_occurrences(connection, rows, self.clock.now())
        for row in rows:
            self.ledger[row.schedule_id, row.outcome] += row.count

    def fill(self) -> None:
        """A backfill takes an occurrence out of a row of missed ones. It was missed, and is enqueued now."""
        with self.database.write() as connection:
            columns = [occurrences.c[name] for name in LedgerRow.__dataclass_fields__]
            where = (occurrences.c.outcome == "missed") & (occurrences.c.count > 1)
            found = connection.execute(select(*columns).where(where).order_by(*columns[:3]).limit(1)).first()
            if found is None or found.first_for == found.last_for:
                return
            old = LedgerRow(**found._mapping)
            left = LedgerRow(
                old.schedule_id,
                old.first_for,
                old.last_for - SECOND,
                old.count - 1,
                "missed",
                decided_at=old.decided_at,
            )
            new = LedgerRow(old.schedule_id, old.last_for, old.last_for, 1, "enqueued")
            ledger.forget_occurrences(connection, [old], [left])
            ledger.record_occurrences(connection, [left, new], self.clock.now())
        self.ledger[old.schedule_id, "enqueued"] += 1

    def time(self) -> None:
        self.clock.advance(self.dice.choice([1, 50, 61, 400, 40_000]) * SECOND)

    def wrong_clock(self) -> None:
        """A tick at a wrong clock counts, and the next one notices."""
        ahead = self.dice.choice([600, 10_000, 1_000_000])
        self.clock.advance(ahead * SECOND)
        self.count()
        self.clock.advance(-ahead * SECOND)
        with self.database.write() as connection:
            totals.count_on(connection, 5)

    # --- what ever was ------------------------------------------------------------------------------------------------

    def remember(self) -> None:
        with self.database.read() as connection:
            kinds = {row.id: row for row in connection.execute(select(jobs))}
            for run in connection.execute(select(job_runs)):
                job = kinds[run.job_id]
                if not (job.status == "running" and job.attempts == run.attempt):
                    self.attempts[run.job_id, run.attempt] = (job.job_type, run)
            for job in kinds.values():
                if job.finished_at is not None:
                    self.ends[job.id, self.lives[job.id]] = job
                elif (job.id, self.lives[job.id]) in self.ends:
                    self.lives[job.id] += 1

    def wanted(self) -> dict[Key, Sum]:
        sums: dict[Key, Sum] = {}
        for job_type, run in self.attempts.values():
            took = None if run.outcome == "lost" else between(run.started_at, run.finished_at)
            totals.add(sums, Key("attempts", job_type[:300], run.outcome, bucket_of(took)), Sum(1, took or 0))
        for job in self.ends.values():
            known = job.started_at is not None and job.status != "cancelled"
            waited = between(job.run_at, job.started_at) if known else None
            totals.add(sums, Key("jobs", job.job_type[:300], job.status, bucket_of(waited)), Sum(1, waited or 0))
            if job.schedule:
                newest = to_microseconds(job.finished_at)
                totals.add(sums, Key("scheduled", job.schedule, job.status), Sum(1, 0, newest))
        for (schedule_id, outcome), number in self.ledger.items():
            totals.add(sums, Key("occurrences", str(schedule_id), outcome), Sum(number))
        return sums

    def check(self) -> None:
        with self.database.read() as connection:
            totals.one_snapshot(connection)
            found = totals.all_that_ended(connection)
        assert {key: each for key, each in found.items() if each.number} == self.wanted()

    def check_text(self) -> None:
        """What is printed, as the official client reads it."""
        with self.database.read() as connection:
            printed = "".join(f"{line}\n" for line in lines_of(gather(connection, LIMITS)))
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
        for key, each in self.wanted().items():
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
        wanted |= self.gauges()
        shown = {key: value for key, value in found.items() if value or key in wanted}
        assert shown == {key: value for key, value in wanted.items() if value or key in shown}

    def gauges(self) -> dict[Any, float]:
        """How things stand now, by a look at every row."""
        with self.database.read() as connection:
            live = connection.execute(select(jobs).where(jobs.c.status.in_(("queued", "failed", "running")))).all()
            capped = connection.execute(select(queues)).all()
            listed = connection.execute(select(schedules)).all()
            last = connection.execute(select(ticks.c.started_at).order_by(ticks.c.id.desc()).limit(1)).scalar()
        wanted: dict[Any, float] = {}
        for queue in {job.queue for job in live} | {row.name for row in capped}:
            waiting = [job.run_at for job in live if job.queue == queue and job.status != "running"]
            due = [run_at for run_at in waiting if run_at <= self.clock.now() + SECOND / 2]  # PostgreSQL's goes on
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


def between(first: datetime, last: datetime) -> int:
    return max(0, to_microseconds(last) - to_microseconds(first))


@pytest.mark.parametrize("seed", SEEDS)
def test_totals_are_those_of_all_rows_that_ever_were(database: Database, clock: FakeClock, seed: int) -> None:
    lives = Lives(database, clock, seed)
    for _ in range(STEPS):
        lives.step()
        lives.check()
    lives.check_text()


# --- at once ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["counts", "prunes"])
def test_one_who_counts_keeps_others_from_the_totals_until_it_is_done(database: Database, who: str) -> None:
    """On PostgreSQL; SQLite has one writer. A second one who counts does nothing, one who prunes waits."""
    if database.is_sqlite:
        return
    long_ago = database.clock.now() - DAY
    ended = {"status": "succeeded", "run_at": long_ago, "started_at": long_ago, "finished_at": long_ago}
    with database.write() as connection:
        for _ in range(20):
            connection.execute(insert(jobs).values(job_type="t.mail", created_at=long_ago, **ended))
    with database.write() as connection:  # whoever is the first makes the row that is locked
        totals.Leaving(connection)
    with database.write() as first:
        assert totals.count_on(first, 5)
        if who == "counts":
            with database.write() as second:
                assert not totals.count_on(second, 5)
        else:
            now = database.clock.now()
            kept = Retention(*[timedelta(0)] * 5)
            with pytest.raises(DatabaseBusy):
                Pruner(database, Before.of(kept, now), database.clock, lambda: True).run()
    with database.read() as connection:
        totals.one_snapshot(connection)
        found = totals.all_that_ended(connection)
    assert [each.number for key, each in found.items() if key.kind == "jobs"] == [20]


def test_who_reads_meanwhile_sees_whole_sums(database: Database, clock: FakeClock) -> None:
    """Between the statements of a scrape others count, and prune."""
    lives = Lives(database, clock, 4)
    for _ in range(30):
        lives.step()
    clock.advance(2 * DAY)
    lives.count()
    wanted = lives.wanted()
    read_mark = totals.read_mark

    def then_others_come(connection: Any) -> Any:
        found = read_mark(connection)
        thread = threading.Thread(target=lambda: [act() for act in (lives.count, lives.prune, lives.count)])
        thread.start()
        thread.join()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(totals, "read_mark", then_others_come)
        with database.read() as connection:
            totals.one_snapshot(connection)
            found = totals.all_that_ended(connection)
    assert {key: each for key, each in found.items() if each.number} == wanted


def test_rows_of_1973_and_of_infinity_stop_nothing(database: Database) -> None:
    """What plain SQL may write into a million rows."""
    far = "'infinity'" if not database.is_sqlite else "253402300799999999"
    old = "'1973-03-04'" if not database.is_sqlite else "100000000000000"
    names = "(job_type, status, run_at, started_at, finished_at)"
    now = database.clock.now() - DAY
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9000)"
    given = {"now": to_microseconds(now) if database.is_sqlite else now}
    with database.write() as connection:
        for began, ended in ((":now", ":now"), (":now", far)):
            row = f"SELECT 't.mail', 'succeeded', {old}, {began}, {ended} FROM n"
            connection.execute(text(f"{numbers} INSERT INTO cronjobs_jobs {names} {row}"), given)
    for _ in range(2):
        with database.read() as connection:
            totals.one_snapshot(connection)
            found = totals.all_that_ended(connection)
        [only] = [each for key, each in found.items() if key.kind == "jobs"]
        assert only.number == 18_000
        assert only.micros > 18_000 * 50 * 365 * 86400 * 1e6
        with database.write() as connection:
            assert not totals.count_on(connection)
