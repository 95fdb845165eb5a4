"""Random lives of jobs and their keys: enqueued, claimed, failed, cancelled, moved, retried, against a small model.

What must hold: of all jobs that ever had one key, at most one ever began. CRONJOBS_KEY_SEEDS=300 makes the long form.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import select
from support.databases import opened

from cronjobs import JobHeld, JobNotWaiting, NoSuchJob, cancel, enqueue, find, reschedule
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import job_runs, jobs
from cronjobs.engine.rules.lease import Finish, lease_of
from cronjobs.engine.store import claims, leases, operating
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.engine.store.operating import OperatorAction
from cronjobs.model import Job, Status

SEEDS = range(int(os.environ.get("CRONJOBS_KEY_SEEDS", "2")))
STEPS = 60
KEYS = ("a", "b", "ü")
PAST, FUTURE = datetime(2026, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
ANY = ClaimFilter(known=["t"], fitting=["t"], remaining_s=50)
WAITING = (Status.QUEUED, Status.FAILED)
# How an attempt may end: the status that it asks for, and its history row; a released one never began.
ENDS = {
    "succeeded": (Status.SUCCEEDED, "succeeded"),
    "failed": (Status.FAILED, "failed"),
    "dead": (Status.DEAD, "failed"),
    "snoozed": (Status.QUEUED, "snoozed"),
    "released": (Status.QUEUED, None),
}


def claimed(database: Database) -> list[Job]:
    with database.write() as connection:
        return claims.claim(connection, limit=2, locked_by="me", lease=timedelta(minutes=1), admission=ANY)[1]


def end(database: Database, job: Job, how: str) -> None:
    status, outcome = ENDS[how]
    failed = outcome == "failed"
    finish = Finish(
        lease=lease_of(job),
        status=status,
        failures=job.failures + failed,
        losses=0,
        interruptions=0,
        outcome=outcome,
        run_at=PAST,
        error="503" if failed else None,
        error_type="HTTPError" if failed else None,
    )
    with database.write() as connection:
        leases.finish(connection, [finish])


@dataclass
class Modelled:
    """The expected state of a job."""

    key: str
    status: Status = Status.QUEUED
    due: bool = True
    began: bool = False
    asked_to_stop: bool = False


class KeyLives:
    def __init__(self, database: Database, seed: int) -> None:
        self.database, self.dice = database, random.Random(seed)
        self.jobs: dict[int, Modelled] = {}
        self.owner: dict[str, int] = {}  # of each key that is used
        self.running: dict[int, Job] = {}

    def step(self) -> None:
        acts: list[Callable[[], None]] = [self.enqueue, self.claim, self.end, self.cancel, self.move, self.retry]
        self.dice.choice([*acts, self.enqueue, self.claim, self.end])()

    def enqueue(self) -> None:
        key = self.dice.choice(KEYS)
        made = enqueue(self.database.engine, "t", idempotency_key=key, run_at=PAST)
        assert made.id is not None
        assert made.new == (key not in self.owner)
        if made.new:
            self.jobs[made.id] = Modelled(key)
            self.owner[key] = made.id
        assert made.id == self.owner[key]

    def claim(self) -> None:
        for job in claimed(self.database):
            wanted = self.jobs[job.id]
            assert wanted.status in WAITING, f"job {job.id} runs, and should be {wanted.status}"
            assert wanted.due
            assert self.owner[wanted.key] == job.id, f"job {job.id} runs without its key"
            wanted.status, wanted.asked_to_stop = Status.RUNNING, False
            self.running[job.id] = job

    def end(self) -> None:
        if not self.running:
            return
        job = self.running.pop(self.dice.choice(list(self.running)))
        how = self.dice.choice(list(ENDS))
        end(self.database, job, how)
        wanted, (status, outcome) = self.jobs[job.id], ENDS[how]
        wanted.began |= outcome is not None
        wanted.status = status
        if wanted.asked_to_stop and status in WAITING:
            self.is_cancelled(job.id)

    def cancel(self) -> None:
        job_id = self.any_job()
        if job_id is None:
            return
        wanted = self.jobs[job_id]
        if self.dice.random() < 0.5:
            with self.database.write() as connection:
                operating.cancel(connection, [job_id], OperatorAction("cancel", "ada", "web1", None))
        else:
            by_key = self.owner.get(wanted.key) == job_id and self.dice.random() < 0.5
            which: dict[str, Any] = {"idempotency_key": wanted.key} if by_key else {"id": job_id}
            told = cancel(self.database.engine, **which)
            assert told == (Status.CANCELLED if wanted.status in WAITING else wanted.status)
        wanted.asked_to_stop |= wanted.status is Status.RUNNING
        if wanted.status in WAITING:
            self.is_cancelled(job_id)

    def is_cancelled(self, job_id: int) -> None:
        wanted = self.jobs[job_id]
        wanted.status = Status.CANCELLED
        if not wanted.began:
            del self.owner[wanted.key]

    def move(self) -> None:
        job_id = self.any_job()
        if job_id is None:
            return
        wanted, due = self.jobs[job_id], self.dice.random() < 0.7
        run_at = PAST if due else FUTURE
        if wanted.status in WAITING:
            assert reschedule(self.database.engine, id=job_id, run_at=run_at) is wanted.status
            wanted.due = due
        else:
            with pytest.raises(JobNotWaiting, match=wanted.status):
                reschedule(self.database.engine, id=job_id, run_at=run_at)

    def retry(self) -> None:
        chosen = self.dice.sample(sorted(self.jobs), min(3, len(self.jobs)))
        with self.database.write() as connection:
            done = operating.retry(connection, chosen, OperatorAction("retry", "ada", "web1", None)).done
        can = {id_ for id_ in chosen if self.jobs[id_].status in (Status.DEAD, Status.CANCELLED, Status.FAILED)}
        can = {id_ for id_ in can if self.owner.get(self.jobs[id_].key, id_) == id_}
        newest = {self.jobs[id_].key: id_ for id_ in sorted(can)}  # of those that had one key, one gets it
        assert done == {id_ for id_ in can if newest[self.jobs[id_].key] == id_}
        for job_id in done:
            wanted = self.jobs[job_id]
            self.jobs[job_id] = Modelled(wanted.key, began=wanted.began)
            self.owner[wanted.key] = job_id

    def any_job(self) -> int | None:
        return self.dice.choice(sorted(self.jobs)) if self.jobs else None

    def compare(self) -> None:
        with self.database.read() as connection:
            rows = connection.execute(select(jobs)).all()
        assert {row.id: row.status for row in rows} == {id_: wanted.status for id_, wanted in self.jobs.items()}
        assert {row.idempotency_key: row.id for row in rows if row.idempotency_key} == self.owner
        assert {row.id: row.idempotency_key or row.released_key for row in rows} == {
            id_: wanted.key for id_, wanted in self.jobs.items()
        }
        for key in KEYS:
            found = find(self.database.engine, idempotency_key=key)
            given_back = [id_ for id_, wanted in self.jobs.items() if wanted.key == key]
            assert (found and found.id) == self.owner.get(key, max(given_back, default=None))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_key_has_one_job_that_ever_began(database: Database, seed: int) -> None:
    lives = KeyLives(database, seed)
    for step in range(STEPS):
        lives.step()
        if step % 6 == 0:
            lives.compare()
    lives.compare()
    assert_one_job_of_each_key_began(database)


def assert_one_job_of_each_key_began(database: Database) -> None:
    with database.read() as connection:
        rows = connection.execute(select(jobs.c.id, jobs.c.idempotency_key, jobs.c.released_key)).all()
        began = set(connection.execute(select(job_runs.c.job_id)).scalars())
    for key in {row.idempotency_key or row.released_key for row in rows}:
        had = [row.id for row in rows if key in (row.idempotency_key, row.released_key)]
        assert len(began.intersection(had)) <= 1, f"key {key}: of {had} began {began.intersection(had)}"
    assert not [row.id for row in rows if row.released_key and row.id in began]


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_runners_and_apps_race_for_the_same_keys(database_url: str, database: Database) -> None:
    """Claims, ends, cancels, moves and enqueues at the same time, each in transactions of its own."""
    faults: list[BaseException] = []

    def race(work: Callable[[random.Random], Callable[[], object]], seed: int) -> threading.Thread:
        def run() -> None:
            try:
                step = work(random.Random(seed))
                for _ in range(60):
                    step()
            except BaseException as fault:
                faults.append(fault)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def app(dice: random.Random) -> Callable[[], object]:
        connection = closing.enter_context(psycopg.connect(database_url))

        def step() -> None:
            with connection.transaction():
                key = dice.choice(KEYS)
                act = dice.choice(["enqueue", "cancel", "move"])
                try:
                    if act == "cancel":
                        cancel(connection, idempotency_key=key)
                    elif act == "move":
                        reschedule(connection, idempotency_key=key, run_at=PAST)
                    enqueue(connection, "t", idempotency_key=key, run_at=PAST)
                except (JobHeld, JobNotWaiting, NoSuchJob):
                    pass  # the transaction goes on

        return step

    def runner(dice: random.Random) -> Callable[[], object]:
        def step() -> None:
            for job in claimed(second):
                end(second, job, dice.choice(["released", "released", "snoozed", "failed"]))

        return step

    with opened(database_url) as second, ExitStack() as closing:
        racing = [race(app, n) for n in range(3)] + [race(runner, n) for n in range(2)]
        for thread in racing:
            thread.join()
    assert faults == []
    assert_one_job_of_each_key_began(database)
