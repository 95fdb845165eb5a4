"""Random lives of jobs and schedules, with all the ways in which they can end, and a separate list of what ended.

The list belongs to the test. An end is on the list if the act that made it was committed, whatever the tables show.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, insert, select, text, update

from cronjobs import cancel
from cronjobs.engine.config.settings import Retention
from cronjobs.engine.database.column_types import to_microseconds
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs, occurrences, schedules
from cronjobs.engine.rules.lease import Finish, Lease
from cronjobs.engine.store import counts, leases, misfits, operating
from cronjobs.engine.store import schedules as ledger
from cronjobs.engine.store.counts import BOUNDS, BY_HOUR, EVER, NO_BUCKET, Key, Sum, Sums
from cronjobs.engine.store.operating import OperatorAction
from cronjobs.engine.store.schedules import LedgerRow
from cronjobs.engine.tick.pruner import Before, Pruner
from cronjobs.model import Status
from cronjobs.testing import FakeClock

TYPES = ("t.mail", 'quote"d', "new\nline", "back\\slash", "other", "long" * 100)
SCHEDULES = ("a", "b", "c")
QUEUES = ("default", "mail")
NONE, MILLISECOND, TENTH = timedelta(0), timedelta(milliseconds=1), timedelta(milliseconds=100)
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
FINAL = ("succeeded", "dead", "cancelled")


@dataclass(frozen=True)
class Ended:
    """An attempt or a job that ended: the outcome, the time, and how long it ran or waited. None means unknown."""

    kind: str
    name: str
    outcome: str
    at: datetime
    span: timedelta | None = None
    finished_at: datetime | None = None


class RolledBack(Exception):
    pass


class Lives:
    def __init__(self, database: Database, clock: FakeClock, seed: int) -> None:
        self.database, self.clock, self.dice = database, clock, random.Random(seed)
        self.ended: list[Ended] = []
        # attempts whose threads run on: (began, timeout)
        self.overran: dict[tuple[int, int], tuple[datetime, timedelta]] = {}
        self.ledger: Counter[tuple[int, str]] = Counter()
        self.at = clock.now() - 400 * DAY
        with database.write() as connection:
            row = {"definition": {}, "fingerprint": "", "seen_until": clock.now() + 400 * DAY}
            connection.execute(insert(schedules), [{"name": name, **row} for name in SCHEDULES])

    def acts(self) -> list[Callable[[], None]]:
        """Return the acts that may happen next. All are equally likely."""
        often = [self.claim, self.claim, self.claim, self.end, self.end, self.end, self.fold]
        seldom = [self.enqueue, self.overdue, self.prune, self.retry, self.cancel, self.ask, self.settle, self.release]
        own = [self.end_here, self.end_late, self.cancel_by_app, self.take_back, self.give_up]
        return [*often, *seldom, *own, self.fill, self.time, self.wrong_clock]

    def step(self) -> None:
        self.dice.choice(self.acts())()

    # --- jobs ---------------------------------------------------------------------------------------------------------

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
                values["policy"] = {"attempt": row.attempts + 1}  # the recovery of the attempt needs it
                connection.execute(update(jobs).where(jobs.c.id == row.id).values(values))

    def some(self, connection: Any, where: Any, most: int) -> Sequence[Any]:
        rows = connection.execute(select(jobs).where(where).order_by(jobs.c.id)).all()
        return self.dice.sample(rows, min(most, len(rows)))

    def running(self, most: int) -> Sequence[Any]:
        with self.database.read() as connection:
            return self.some(connection, jobs.c.status == "running", most)

    # --- ends of attempts ---------------------------------------------------------------------------------------------

    def an_end(self, row: Any) -> tuple[Finish, list[Ended]]:
        """Return an end for this running job, and the entry for the list after the commit."""
        outcome, status = self.dice.choice(
            [
                *[("succeeded", "succeeded")] * 3,
                *[("failed", status) for status in ("failed", "dead")],
                *[("lost", status) for status in ("failed", "dead")],
                ("cancelled", "cancelled"),
                ("snoozed", "queued"),
                (None, "queued"),  # either it is released, or its timeout is recorded and recovery follows
            ]
        )
        ago, duration = self.spans(row)
        finish = Finish(
            Lease(row.id, row.attempts, row.locked_by),
            Status(status),
            row.failures,
            row.losses,
            0,
            outcome,
            run_at=self.clock.now() if status in ("queued", "failed") else None,
            ended_ago=ago,
            duration=None if outcome in ("lost", None) else duration,
            error=None if status in ("succeeded", "queued") else "no",
        )
        return finish, self.what_ends(row, finish)

    def spans(self, row: Any) -> tuple[timedelta, timedelta]:
        """Return how long ago the attempt ended and how long it ran.

        It may have ended long ago, because the database was away. No duration lies at the edge of a bucket, where a
        microsecond would decide.
        """
        span = max(0, (self.clock.now() - row.started_at) // TENTH)
        ago = self.dice.choice([0, self.dice.randint(0, span)])
        ran = self.dice.choice([span - ago, self.dice.randint(0, span - ago)])
        return (
            ago * TENTH - 11 * MILLISECOND if ago else NONE,
            ran * TENTH - 37 * MILLISECOND if ran else NONE,
        )

    def what_ends(self, row: Any, finish: Finish) -> list[Ended]:
        now = self.clock.now()
        at = now - finish.ended_ago
        began = row.started_at if finish.duration is None else at - finish.duration
        since, after = self.overran.get((row.id, row.attempts), (began, None))
        found = []
        if finish.outcome is not None:
            took = None if finish.outcome == "lost" else max(at - since, NONE)
            found.append(Ended("attempts", row.job_type[:300], finish.outcome, now, took))
        elif after is not None:
            found.append(Ended("attempts", row.job_type[:300], "timed_out", now, after))
        status = finish.status.value
        if row.cancel_requested_at is not None and status in ("queued", "failed", "cancelled"):
            status = "cancelled"
        if status in FINAL:
            if finish.duration is None:
                began = since
            waited = None if status == "cancelled" else max(began - row.run_at, NONE)
            found += self.job_ends(row, status, waited, at)
        return found

    def job_ends(self, row: Any, status: str, waited: timedelta | None, at: datetime) -> list[Ended]:
        now = self.clock.now()
        found = [Ended("jobs", row.job_type[:300], status, now, waited)]
        return found + ([Ended("scheduled", row.schedule, status, now, None, at)] if row.schedule else [])

    def end(self) -> None:
        """Write some ends in one transaction, together with ends that come too late.

        It may be rolled back or written again.
        """
        rows = self.running(3)
        if not rows:
            return
        ends = [self.an_end(row) for row in rows]
        finishes = [finish for finish, _ in ends]
        taken = self.dice.random() < 0.2  # another runner has taken over the first job
        if taken:
            there = jobs.c.id == rows[0].id
            with self.database.write() as connection:
                connection.execute(update(jobs).where(there).values(attempts=rows[0].attempts + 1, locked_by="else"))
        with suppress(RolledBack), self.database.write() as connection:
            leases.finish(connection, finishes)
            if self.dice.random() < 0.2:
                raise RolledBack
            # The transaction is committed, but its answer may be lost. Then everything is written again.
            for (_, found), row in zip(ends, rows, strict=True):
                if not (taken and row is rows[0]):
                    self.ended += found
                    self.overran.pop((row.id, row.attempts), None)
        if self.dice.random() < 0.3:
            with self.database.write() as connection:
                again = [finish for finish in finishes if not self.still(connection, finish)]
                if again:
                    leases.settle(connection, again, leases.finish(connection, again))

    def still(self, connection: Connection, finish: Finish) -> bool:
        lease = jobs.c.id == finish.lease.job_id
        row = connection.execute(select(jobs.c.locked_by, jobs.c.attempts).where(lease)).one()
        return (row.attempts, row.locked_by) == (finish.lease.attempt, finish.lease.locked_by)

    def end_here(self) -> None:
        """Let an attempt end its job in a user's transaction. Then the loop writes what its handler returned."""
        for row in self.running(1):
            ago, duration = self.spans(row)
            lease = Lease(row.id, row.attempts, row.locked_by)
            end = Finish(lease, Status.SUCCEEDED, 0, 0, 0, "succeeded", duration=ago + duration)
            done = False
            with suppress(RolledBack), self.database.write() as connection:
                assert leases.finish_here(connection, end)
                if self.dice.random() < 0.4:
                    raise RolledBack
                done = True
            if done:
                self.ended += self.what_ends(row, end)
                self.overran.pop((row.id, row.attempts), None)
                failed = end._replace(status=Status.FAILED, outcome="failed", error="after its commit")
                with self.database.write() as connection:
                    written = leases.settle(connection, [failed], leases.finish(connection, [failed]))
                assert written.succeeded == {row.id}

    def end_late(self) -> None:
        """Let a frozen process wake and write old ends. This must change nothing."""
        with self.database.write() as connection:
            rows = self.some(connection, jobs.c.status != "running", 2)
            late = [Finish(Lease(row.id, row.attempts, "me"), Status.DEAD, 0, 0, 0, "failed") for row in rows]
            if late:
                assert not leases.finish(connection, late).written

    def overdue(self) -> None:
        """Record the timeout while the thread still runs. The thread's result may replace it."""
        for row in self.running(1):
            if (row.id, row.attempts) in self.overran:
                return
            ago, took = self.spans(row)
            lease = Lease(row.id, row.attempts, row.locked_by)
            end = Finish(lease, Status.RUNNING, 0, 0, 0, "timed_out", ended_ago=ago, duration=took, error="too long")
            with self.database.write() as connection:
                assert leases.record_overdue(connection, [end]) == {row.id}
            self.overran[row.id, row.attempts] = (self.clock.now() - ago - took, took)

    def release(self) -> None:
        """Let an operator release a job whose runner is gone."""
        for row in self.running(1):
            with self.database.write() as connection:
                held = operating.held(connection, [row.id])[row.id]
                written = operating.release(connection, [held], self.act("release"))
            if written.written:
                lost = Finish(Lease(row.id, row.attempts, row.locked_by), Status.QUEUED, 0, 0, 0, "lost")
                over = (row.id, row.attempts) in self.overran
                self.ended += self.what_ends(row, lost._replace(outcome=None) if over else lost)
                self.overran.pop((row.id, row.attempts), None)

    # --- ends of jobs that wait ---------------------------------------------------------------------------------------

    def act(self, action: str) -> OperatorAction:
        return OperatorAction(action, "ada", "alpha", None)

    def retry(self) -> None:
        with self.database.write() as connection:
            rows = self.some(connection, jobs.c.status.in_(("dead", "cancelled", "failed")), 3)
            operating.retry(connection, [row.id for row in rows], self.act("retry"))

    def cancel(self) -> None:
        with self.database.write() as connection:
            rows = self.some(connection, jobs.c.status.in_(("queued", "failed")), 3)
            done = operating.cancel(connection, [row.id for row in rows], self.act("cancel")).done
        self.cancelled([row for row in rows if row.id in done])

    def cancelled(self, rows: Sequence[Any]) -> None:
        for row in rows:
            self.ended += self.job_ends(row, "cancelled", None, self.clock.now())

    def ask(self) -> None:
        """Ask a running job to stop."""
        with self.database.write() as connection:
            rows = self.some(connection, jobs.c.status == "running", 1)
            assert not operating.cancel(connection, [row.id for row in rows], self.act("cancel")).done

    def cancel_by_app(self) -> None:
        """Cancel a job in the app's own transaction, which the app may roll back."""
        with self.database.read() as connection:
            rows = self.some(connection, jobs.c.status.in_(("queued", "failed")), 1)
        for row in rows:
            done = False
            with suppress(RolledBack), self.database.write() as connection:
                assert cancel(connection, id=row.id) is Status.CANCELLED
                if self.dice.random() < 0.3:
                    raise RolledBack
                done = True
            self.cancelled([row] if done else [])

    def take_back(self) -> None:
        with self.database.write() as connection:
            rows = self.some(connection, jobs.c.status.in_(("queued", "failed")), 3)
            done = operating.take_back(connection, [row.id for row in rows], self.act("cancel"))
        self.cancelled([row for row in rows if row.id in done])

    def give_up(self) -> None:
        """Give up a job whose payload no code has accepted for a long time."""
        with self.database.write() as connection:
            rows = self.some(connection, jobs.c.status == "failed", 1)
            for row in rows:
                there = jobs.c.id == row.id
                long_ago = self.clock.now() - 400 * DAY
                connection.execute(update(jobs).where(there).values(misfit_since=long_ago, last_error="no"))
            ids = [row.id for row in rows]
            gone = {job.id for job, _ in misfits.give_up_outlived(connection, ids)}
        for row in rows:
            if row.id in gone:
                self.ended += self.job_ends(row, "dead", None, self.clock.now())

    # --- what changes no count ----------------------------------------------------------------------------------------

    def fold(self) -> None:
        for _ in range(self.dice.randint(1, 4)):
            done = False
            with suppress(RolledBack), self.database.write() as connection:
                done = not counts.fold(connection, self.dice.randint(1, 6))
                if self.dice.random() < 0.2:
                    raise RolledBack
            if self.dice.random() < 0.3:
                self.check()
            if done:
                break

    def prune(self) -> None:
        span = timedelta(minutes=self.dice.choice([0, 1, 5, 600, 600_000]))
        kept = Retention(span, span, span, span, span)
        tries = self.dice.randint(1, 9)

        def go_on() -> bool:
            nonlocal tries
            tries -= 1
            return tries > 0

        Pruner(self.database, Before.of(kept, self.clock.now()), self.clock, go_on).run()

    def time(self) -> None:
        self.clock.advance(self.dice.choice([1, 50, 61, 400, 40_000]) * SECOND)

    def wrong_clock(self) -> None:
        """Let a tick with a wrong clock write ends and fold counts. The next tick has the right clock."""
        ahead = self.dice.choice([600, 10_000, 1_000_000])
        self.clock.advance(ahead * SECOND)
        self.end()
        self.fold()
        self.clock.advance(-ahead * SECOND)
        self.end()

    # --- occurrences --------------------------------------------------------------------------------------------------

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
        """Let a backfill take an occurrence out of a row of missed ones. It was missed, and now it is enqueued."""
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
            ledger.forget_occurrences(connection, [old])
            ledger.record_occurrences(connection, [left, new], self.clock.now())
        self.ledger[old.schedule_id, "enqueued"] += 1

    # --- what ever was ------------------------------------------------------------------------------------------------

    def wanted(self, *, by_hour: bool = False) -> Sums:
        sums: Sums = {}
        for each in self.ended:
            if by_hour and each.kind not in BY_HOUR:
                continue
            span = None if each.span is None else each.span // timedelta(microseconds=1)
            newest = None if each.finished_at is None else to_microseconds(each.finished_at)
            hour = to_microseconds(each.at) // 3_600_000_000 if by_hour else EVER
            bucket = NO_BUCKET if span is None else bisect_left(BOUNDS, span)
            key = Key(each.kind, each.name, each.outcome, bucket, hour)
            counts.add(sums, key, Sum(1, span or 0, span, newest))
        for (schedule_id, outcome), number in self.ledger.items():
            if not by_hour:
                counts.add(sums, Key("occurrences", str(schedule_id), outcome), Sum(number))
        return sums

    def found(self) -> Sums:
        with self.database.read() as connection:
            return counts.all_that_ended(connection)

    def check(self) -> None:
        differ(self.found(), self.wanted())

    def check_hours(self) -> None:
        """Fold all counts. Check that the hours have the same counts."""
        more = True
        while more:
            with self.database.write() as connection:
                more = counts.fold(connection)
        with self.database.read() as connection:
            assert connection.execute(text("SELECT count(*) FROM cronjobs_new_counts")).scalar() == 0
            rows = connection.execute(text("SELECT * FROM cronjobs_counts WHERE at_hour > 0")).all()
        found = {
            Key(row.kind, row.name, row.outcome, row.bucket, row.at_hour): Sum(
                row[5], row.micros, row.longest, row.newest
            )
            for row in rows
        }
        differ(found, self.wanted(by_hour=True))
        self.check()


def differ(found: Sums, wanted: Sums) -> None:
    """Fail with the counts that differ, as (found, wanted)."""
    one, other = comparable(found), comparable(wanted)
    wrong = {
        key: (one.get(key), other.get(key))
        for key in one.keys() | other.keys()
        if not same(one.get(key, Sum(0)), other.get(key, Sum(0)))
    }
    assert not wrong, wrong


def same(one: Sum, other: Sum) -> bool:
    """Whether the sums are equal, give or take a microsecond a span: spans are stored as float seconds."""
    pairs = zip(one[1:], other[1:], strict=True)
    near = (a is b or (a is not None and b is not None and abs(a - b) <= one.number) for a, b in pairs)
    return one.number == other.number and all(near)


def comparable(sums: Sums) -> Sums:
    """Leave out the times of cancellations: PostgreSQL's function for apps uses the server's clock."""
    found: Sums = {}
    for key, each in sums.items():
        if key.outcome == "cancelled":
            each = each._replace(newest=None)
            key = key._replace(hour=EVER) if key.kind == "jobs" else key
        counts.add(found, key, each)
    return {key: each for key, each in found.items() if each.number}
