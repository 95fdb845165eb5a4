"""If something fails before a job's code begins, the job is released without using a try, and the fault is reported."""

from __future__ import annotations

import errno
import math
import subprocess
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from support.hosts import Host, put
from support.lost import paying, row

from cronjobs.engine.config.settings import JobTypeSettings, RunSettings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import ticks
from cronjobs.engine.execution import attempt as worker
from cronjobs.engine.execution import handler, worker_threads
from cronjobs.engine.execution.child_protocol import read_outcome, write_outcome
from cronjobs.engine.execution.foreground_claim import CannotRun, begin_existing, begin_new
from cronjobs.engine.execution.live_output import live_streams
from cronjobs.engine.host.caller import os_user
from cronjobs.engine.jobs import job_types, registry
from cronjobs.engine.jobs.checking import new_job
from cronjobs.engine.tick.foreground import Foreground
from cronjobs.engine.tick.watchdog import Unarmed
from cronjobs.model import Job, Released, duration
from cronjobs.testing import FakeClock


@pytest.fixture
def ran() -> Iterator[list[str]]:
    with paying() as seen:
        yield seen


@pytest.fixture
def host(database: Database, tmp_path: Path, ran: list[str]) -> Host:
    host = Host(database, tmp_path)
    host.carry(run=RunSettings(workers=4))
    return host


def no_threads(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Refuse to start threads whose names begin with *names*, as a limit on processes does."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(names):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


def untouched(host: Host, job_id: int) -> bool:
    found = row(host, job_id)
    return (found.status, found.failures, found.losses, found.interruptions) == ("queued", 0, 0, 0)


def test_with_fewer_threads_than_wanted_the_jobs_run_in_those_there_are(
    host: Host,
    ran: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_threads(monkeypatch, "cronjobs-worker-2")
    ids = [put(host.database, job_type="pay.once") for _ in range(6)]
    host.tick()
    assert [row(host, job_id).status for job_id in ids] == ["succeeded"] * 6
    assert {row(host, job_id).losses for job_id in ids} == {0}
    assert [event.facts["workers"] for event in host.said("worker.not_started")] == [1]


def test_without_any_thread_nothing_is_charged_and_the_tick_says_so(
    host: Host,
    clock: FakeClock,
    ran: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = [put(host.database, job_type="pay.once") for _ in range(3)]
    with monkeypatch.context() as patch:
        no_threads(patch, "cronjobs-worker")
        result = host.tick()
    assert all(untouched(host, job_id) for job_id in ids)
    assert result.exit_code() != 0
    assert host.said("worker.not_started")
    assert ran == []
    host.tick()
    assert len(ran) == 3


def test_without_a_process_the_jobs_that_need_one_wait_and_the_others_run(
    host: Host,
    clock: FakeClock,
    ran: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host.carry(
        job_types={
            "pay.tries": JobTypeSettings("pay.tries", isolation="process", timeout=timedelta(seconds=5)),
            "a.command": JobTypeSettings("a.command", command=("true",), timeout=timedelta(seconds=5)),
        }
    )
    apart = [put(host.database, job_type=name) for name in ("pay.tries", "a.command")]
    beside = put(host.database, job_type="pay.once")

    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    host.tick()
    assert row(host, beside).status == "succeeded"
    assert all(untouched(host, job_id) for job_id in apart)
    assert all(row(host, job_id).run_at >= clock.now() + timedelta(seconds=55) for job_id in apart)
    assert {event.facts["job_type"] for event in host.said("job.not_begun")} == {"pay.tries", "a.command"}


def test_a_tick_frozen_between_its_claim_and_the_handler_begins_nothing_without_a_lease(
    host: Host,
    clock: FakeClock,
    ran: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the runner wakes, another may have the job. The job must not be charged for an attempt that never began."""
    host.carry(run=RunSettings(workers=1, lease=timedelta(seconds=10)))
    job_id = put(host.database, job_type="pay.single")  # its only try
    hand, frozen = worker_threads.Workers.hand, [timedelta(seconds=9)]

    def slow_hand(workers: worker_threads.Workers, attempt: worker.Attempt) -> bool:
        clock.advance(frozen.pop() if frozen else timedelta(0))
        return hand(workers, attempt)

    monkeypatch.setattr(worker_threads.Workers, "hand", slow_hand)
    seen: list[int] = []
    begin = handler.run_attempt

    def note(attempt: worker.Attempt, *around: Any) -> Any:
        seen.append(attempt.job.attempt)
        return begin(attempt, *around)

    monkeypatch.setattr(worker_threads, "run_attempt", note)
    host.tick(budget_s=50)
    found = row(host, job_id)
    assert (found.status, found.losses, found.failures) == ("succeeded", 0, 0)
    assert ran == ["pay.single"]
    assert seen == [found.attempts]
    assert len(host.said("job.claimed")) == 2


def test_the_kernels_timer_stands_before_a_claimed_job_goes_to_a_worker(
    host: Host, clock: FakeClock, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host.carry(run=RunSettings(workers=2, lease=timedelta(seconds=10)))
    for _ in range(3):
        put(host.database, job_type="pay.once")
    stands, hand = [math.inf], worker_threads.Workers.hand
    monkeypatch.setattr(Unarmed, "stand_at", lambda _, instant: stands.append(instant))

    def note(workers: worker_threads.Workers, attempt: worker.Attempt) -> bool:
        assert stands[-1] <= attempt.safe_until
        return hand(workers, attempt)

    monkeypatch.setattr(worker_threads.Workers, "hand", note)
    host.tick()
    assert len(ran) == 3


def test_a_failure_of_ours_before_the_handler_begins_is_not_the_jobs(
    host: Host,
    clock: FakeClock,
    ran: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job_id = put(host.database, job_type="pay.single")  # its only try

    def broken(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(handler, "captured", broken)
        host.tick()
    assert untouched(host, job_id)
    assert "MemoryError" in row(host, job_id).last_error
    clock.advance(timedelta(minutes=2))
    host.tick()
    assert (row(host, job_id).status, ran) == ("succeeded", ["pay.single"])


def test_one_after_it_began_is(host: Host) -> None:
    @registry.job("t.memory")
    def memory() -> None:
        raise MemoryError

    job_id = put(host.database, job_type="t.memory", max_attempts=1)
    host.tick()
    assert (row(host, job_id).status, row(host, job_id).failures) == ("dead", 1)


def test_without_a_thread_to_hand_a_long_job_over_it_waits(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    no_threads(monkeypatch, "cronjobs-handover")
    host.carry(job_types={"pay.once": JobTypeSettings("pay.once", timeout=timedelta(hours=1))})
    job_id = put(host.database, job_type="pay.once")
    host.tick()
    assert untouched(host, job_id)
    assert "can't start new thread" in host.said("job.not_handed_over")[0].facts["error"]
    with host.database.read() as connection:
        [tick] = connection.execute(select(ticks)).all()
    why = "cannot start a thread: can't start new thread"
    assert tick.did["without_process"] == {"pay.once": why}
    [left] = tick.not_started
    assert (left["why"], left["error"], left["jobs"]) == ("process", why, 1)


def test_a_release_and_its_reason_come_back_from_a_process(tmp_path: Path) -> None:
    with (tmp_path / "answer").open("w+b") as answer:
        write_outcome(answer.fileno(), Released("no handler is registered", after=duration("5m")))
        assert read_outcome(answer.fileno()) == Released("no handler is registered", after=duration("5m"))


# --- by hand ----------------------------------------------------------------------------------------------------------


def by_hand(host: Host, job: Job, made: bool) -> None:
    known = job_types.load(host.settings)
    with live_streams() as streams:
        Foreground(
            host.database,
            host.settings,
            job,
            known.types[job.job_type],
            by_hand=made,
            claimed=host.database.clock.monotonic(),
            streams=streams,
            emit=host.events.append,
        ).run()


@pytest.mark.parametrize("made", [True, False], ids=["made for this run", "named by its id"])
def test_what_was_begun_by_hand_is_given_back_without_a_thread(
    host: Host,
    ran: list[str],
    made: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_threads(monkeypatch, "cronjobs-loop")
    known = job_types.load(host.settings)
    if made:
        new = new_job("pay.once", {})
        job = begin_new(host.database, new, host.settings.run, known, locked_by=os_user(), alone=False, actor="ada")
    else:
        job_id = put(host.database, job_type="pay.once")
        job = begin_existing(host.database, job_id, host.settings, known, locked_by=os_user())
    with pytest.raises(CannotRun, match="can't start new thread"):
        by_hand(host, job, made)
    found = row(host, job.id)
    assert (found.status, found.failures, found.losses) == ("cancelled" if made else "queued", 0, 0)
    assert ran == []
