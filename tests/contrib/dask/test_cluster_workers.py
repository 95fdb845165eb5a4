"""How a supervisor judges its attempts by their tokens alone. The cluster is a fake that reports what a test wants."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from cronjobs import enqueue
from cronjobs.contrib.dask.cluster_workers import ClusterWorkers
from cronjobs.contrib.dask.messages import Begun, GuardReport, Progressed, Spec, TaskEnd
from cronjobs.engine.config.settings import ExecutorSettings, Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.execution.attempt import Attempt, WorkerContext
from cronjobs.engine.jobs.job_types import JobType
from cronjobs.engine.rules.progress import HowFar
from cronjobs.engine.store import claims, operating, tokens
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.model import CancelledByRequest, Failed, Lost, Outcome, Released, RetryPolicy, Succeeded
from cronjobs.testing import FakeClock

TYPES = ["t.far"]
WORKER = "tcp://10.0.0.7:4321"


@dataclass
class FakeCluster:
    heard: Callable[[object], None]
    up: bool = True
    submitted: dict[str, str] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
    stopped: list[tuple[str, int, int, str]] = field(default_factory=list)
    avoided: list[str] = field(default_factory=list)

    def connect(self) -> None:
        if not self.up:
            raise OSError("connection refused")

    def submit(self, name: str, spec: str, *, priority: int) -> None:
        self.submitted[name] = spec

    def forget(self, name: str) -> None:
        self.forgotten.append(name)

    def avoid(self, worker: str) -> None:
        self.avoided.append(worker)

    def stop(self, worker: str, job_id: int, attempt: int, reason: str) -> None:
        self.stopped.append((worker, job_id, attempt, reason))

    def close(self) -> None:
        self.up = False

    @property
    def last(self) -> str:
        return list(self.submitted)[-1]


@dataclass
class Desk:
    """A supervisor's workers, attended to by the test, one round at a time."""

    database: Database
    clock: FakeClock
    cluster: FakeCluster
    workers: ClusterWorkers
    events: list[Any]
    workers_named: list[str] = field(default_factory=list)  # the workers of the attempts that have ended

    def hand(self) -> Attempt:
        """Claim a job and hand it to the workers, which submit it to the cluster."""
        job_type = JobType("t.far", timedelta(seconds=30), RetryPolicy(), isolation="process", executor="cluster")
        every = ClaimFilter(known=TYPES, fitting=TYPES, remaining_s=1000)
        with self.database.write() as connection:
            enqueue(connection, "t.far", {"n": 1})
            lease = timedelta(seconds=60)
            [job] = claims.claim(connection, limit=1, locked_by="host:me", lease=lease, admission=every).jobs
        attempt = Attempt(job, job_type, job_type.timeout, lease_s=60.0)
        self.workers.hand(attempt)
        self.workers.attend()
        return attempt

    def round(self, after_s: float = 0.0) -> None:
        self.clock.advance(timedelta(seconds=after_s))
        self.workers.attend()

    def begin(self) -> None:
        """Let a worker take the token of the task that was submitted last."""
        key = Spec.decode(self.cluster.submitted[self.cluster.last]).key
        with self.database.write() as connection:
            assert tokens.take(connection, key, f"{WORKER} 1-a").answer == "yours"

    def confirm(self, report: GuardReport) -> None:
        key = Spec.decode(self.cluster.submitted[self.cluster.last]).key
        with self.database.write() as connection:
            assert tokens.confirm(connection, key, report.encode()).answer == "yours"

    def say(self, report: GuardReport | None = None, **more: Any) -> None:
        self.cluster.heard(TaskEnd(self.cluster.last, None if report is None else report.encode(), **more))

    def end_permits(self) -> None:
        past = "statement_timestamp() - interval '1s'"
        if self.database.is_sqlite:
            past = "(CAST(strftime('%s', 'now') AS INTEGER) - 1) * 1000000"
        with self.database.write() as connection:
            connection.execute(text(f"UPDATE cronjobs_tokens SET permitted_until = {past}"))

    def ended(self) -> list[Outcome]:
        found: list[Outcome] = []
        while True:
            try:
                end = self.workers.ended.get_nowait()
            except queue.Empty:
                return found
            if end is not None:
                found.append(end.finished.outcome)
                self.workers_named.append(end.finished.worker)

    def tokens(self) -> int:
        with self.database.read() as connection:
            return int(connection.execute(text("SELECT count(*) FROM cronjobs_tokens")).scalar_one())


@pytest.fixture
def desk(database_url: str, tmp_path: Path) -> Iterator[Desk]:
    with closing(Database(parse_url(database_url))) as database:  # tokens know the database's clock alone
        clock = FakeClock()
        events: list[Any] = []
        settings = Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path)
        made: list[FakeCluster] = []

        def cluster(_topic: str, heard: Callable[[object], None]) -> FakeCluster:
            made.append(FakeCluster(heard))
            return made[0]

        workers = ClusterWorkers(
            ExecutorSettings("cluster", "tcp://127.0.0.1:1", queue_wait=timedelta(minutes=10)),
            WorkerContext(settings, database),
            clock,
            cluster=cluster,
            emit=events.append,
            connected=lambda _up: None,
        )
        yield Desk(database, clock, made[0], workers, events)


def test_the_end_that_a_guard_reports_is_the_attempts_and_its_token_goes(desk: Desk) -> None:
    attempt = desk.hand()
    desk.begin()
    desk.cluster.heard(Begun(attempt.job.id, attempt.job.attempt, WORKER))
    desk.cluster.heard(Progressed(attempt.job.id, attempt.job.attempt, 1, 2, "half"))
    desk.round()
    assert attempt.reporting.progress == HowFar(1, 2, "half")
    assert (attempt.begun, attempt.worker) == (True, f"cluster {WORKER}")
    desk.say(GuardReport("ended", outcome=Succeeded({"n": 1})))
    desk.round()
    assert desk.ended() == [Succeeded({"n": 1})]
    assert desk.tokens() == 0


def test_what_travels_has_no_url_and_no_secret(desk: Desk) -> None:
    desk.hand()
    [spec] = desk.cluster.submitted.values()
    assert str(desk.database.address.url.database) not in spec
    assert "postgresql" not in spec
    assert Spec.decode(spec).request.settings.database == ""


def test_without_a_scheduler_what_has_not_begun_goes_back_and_what_runs_stays(desk: Desk) -> None:
    running = desk.hand()
    desk.begin()
    waiting = desk.hand()
    desk.cluster.up = False
    desk.round(2)
    [outcome] = desk.ended()
    assert isinstance(outcome, Released)
    assert not waiting.begun
    assert running.begun, "its token says so"
    desk.round(60)
    assert desk.ended() == []
    desk.end_permits()
    desk.round(2)
    [outcome] = desk.ended()
    assert isinstance(outcome, Lost)
    assert desk.tokens() == 0


def test_the_end_of_an_attempt_that_the_cluster_has_lost_is_read_from_its_token(desk: Desk) -> None:
    desk.hand()
    desk.begin()
    desk.say(why="the cluster has lost the task")
    desk.round(2)
    assert desk.ended() == []
    desk.confirm(GuardReport("ended", outcome=Succeeded(7)))
    desk.round(2)
    desk.round()
    assert desk.ended() == [Succeeded(7)]
    assert desk.tokens() == 0


def test_a_task_that_the_cluster_repeats_ends_nothing_while_the_first_one_may_run(desk: Desk) -> None:
    desk.hand()
    desk.begin()
    desk.say(GuardReport("taken"))
    desk.round(2)
    assert desk.ended() == []
    desk.end_permits()
    desk.round(2)
    [outcome] = desk.ended()
    assert isinstance(outcome, Lost)


def test_what_waits_too_long_for_a_worker_goes_back_unless_it_has_begun(desk: Desk) -> None:
    desk.hand()
    desk.round(599)
    assert desk.ended() == []
    desk.hand()
    desk.begin()
    desk.round(2)
    [outcome] = desk.ended()
    assert isinstance(outcome, Released)
    assert outcome.error == (
        "for 10m, every worker of executor cluster was busy or lacked the resources that the job needs"
    )
    desk.round(600)
    assert desk.ended() == []
    assert desk.cluster.stopped == [], "it has begun, and nobody stops it for that"


def test_other_code_on_a_worker_costs_nothing_for_ten_minutes(desk: Desk) -> None:
    for after_s, kind in ((0, Released), (590, Released), (20, Failed)):
        desk.round(after_s)
        desk.hand()
        desk.say(GuardReport("differs", "worker x: the worker has Python 3.9 (the claiming host has 3.12)"))
        desk.round(2)
        [outcome] = desk.ended()
        assert isinstance(outcome, kind), after_s
    desk.hand()
    desk.begin()
    desk.say(GuardReport("ended", outcome=Succeeded()))
    desk.round()
    desk.ended()
    desk.hand()
    desk.say(GuardReport("differs", "again"))
    desk.round(2)
    assert isinstance(desk.ended()[0], Released), "a new deploy"


def test_a_difference_long_ago_is_no_part_of_a_new_deploy(desk: Desk) -> None:
    """The job that was refused then never ran: it was cancelled."""
    for after_s in (0, 3700):
        desk.round(after_s)
        desk.hand()
        desk.say(GuardReport("differs", "worker x: the worker has Python 3.9 (the claiming host has 3.12)"))
        desk.round(2)
        assert isinstance(desk.ended()[0], Released)


def test_the_worker_is_named_though_its_end_is_the_first_that_is_heard_of_it(desk: Desk) -> None:
    desk.hand()
    desk.begin()
    desk.say(GuardReport("ended", outcome=Succeeded()))
    desk.round()
    assert desk.ended() == [Succeeded()]
    assert desk.workers_named == [f"cluster {WORKER}"]


def test_a_guard_that_broke_off_is_named_as_why_its_attempt_is_lost(desk: Desk) -> None:
    desk.hand()
    desk.begin()
    desk.say(why="the Dask worker raised OSError: no space left on device")
    desk.round(2)
    assert desk.ended() == []
    desk.end_permits()
    desk.round(2)
    assert desk.ended() == [
        Lost("the Dask worker raised OSError: no space left on device, and its permit to run has expired")
    ]
    assert desk.cluster.avoided == [WORKER]


def test_a_cancel_ends_what_waits_and_stops_what_runs(desk: Desk) -> None:
    waiting = desk.hand()
    waiting.stop.set("cancelled")
    desk.round()
    assert desk.ended() == [CancelledByRequest()]
    assert len(desk.cluster.forgotten) == 1
    running = desk.hand()
    desk.begin()
    running.stop.set("cancelled")
    desk.round()
    assert desk.ended() == []
    assert desk.cluster.stopped == [(WORKER, running.job.id, running.job.attempt, "cancelled")]


def test_a_cancel_is_seen_within_a_second_however_long_the_lease_is(desk: Desk) -> None:
    running = desk.hand()
    desk.begin()
    with desk.database.write() as connection:
        act = operating.OperatorAction("cancel", "ann", "h", None)
        operating.cancel(connection, [running.job.id], act)
    desk.round(1)
    assert running.stop.reason == "cancelled"
    assert desk.cluster.stopped == [(WORKER, running.job.id, running.job.attempt, "cancelled")]


def test_a_token_that_somebody_else_took_back_ends_the_attempt_here(desk: Desk) -> None:
    attempt = desk.hand()
    with desk.database.write() as connection:
        tokens.close(connection, [attempt.lease])
    desk.round(60)
    [outcome] = desk.ended()
    assert isinstance(outcome, Released)


def test_an_attempt_waits_until_an_earlier_ones_permit_is_over(desk: Desk) -> None:
    first = desk.hand()
    desk.begin()
    with desk.database.write() as connection:
        connection.execute(text("UPDATE cronjobs_jobs SET status = 'dead', finished_at = run_at, locked_by = NULL, "
                                "locked_until = NULL"))  # fmt: skip
        connection.execute(text("UPDATE cronjobs_jobs SET status = 'queued', finished_at = NULL"))
        every = ClaimFilter(known=TYPES, fitting=TYPES, remaining_s=1000)
        lease = timedelta(seconds=60)
        [job] = claims.claim(connection, limit=1, locked_by="host:other", lease=lease, admission=every).jobs
    again = Attempt(job, first.job_type, first.timeout, lease_s=60.0)
    desk.workers.hand(again)
    before = len(desk.cluster.submitted)
    desk.round()
    assert len(desk.cluster.submitted) == before
    assert any(isinstance(each, Released) and "earlier attempt" in (each.error or "") for each in desk.ended())


def test_a_permit_that_nobody_confirms_ends_the_attempt_though_the_cluster_says_nothing(desk: Desk) -> None:
    """Dask notices after minutes that a worker is frozen."""
    desk.hand()
    desk.begin()
    desk.round(60)
    assert desk.ended() == []
    desk.end_permits()
    desk.round(60)
    [outcome] = desk.ended()
    assert isinstance(outcome, Lost)
    assert desk.cluster.forgotten == [desk.cluster.last]
