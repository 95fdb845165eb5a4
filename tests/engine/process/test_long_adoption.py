"""How a long job moves to its own process: the lease decides who has the job, and no user code runs before that."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from sqlalchemy import Connection
from support.commands import until
from support.databases import opened
from support.longjobs import LongJobs, long_jobs
from support.ticking import Project, events

from cronjobs.clock import SYSTEM
from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import RunSettings, Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.execution.attempt import Attempt, Ended
from cronjobs.engine.jobs.enqueue import enqueue
from cronjobs.engine.jobs.job_types import JobType
from cronjobs.engine.rules.lease import Lease
from cronjobs.engine.rules.recovery_policy import AttemptPolicy
from cronjobs.engine.store.claims import ClaimFilter, claim
from cronjobs.engine.store.leases import adopt, renew
from cronjobs.engine.tick.long_jobs import ADOPTED, FULL, PAUSE_S, PROGRAM, STOPPED, Handover, Handovers
from cronjobs.engine.tick.long_jobs import adopt as take_over
from cronjobs.errors import CommitUnknown
from cronjobs.model import ExitCodes, Job, RetryPolicy

pytestmark = pytest.mark.either

TICK = "here:boot:1:1:1:tick"
MINUTE = timedelta(minutes=1)


@pytest.fixture
def longs(project: Project) -> Iterator[LongJobs]:
    with long_jobs(project) as longs:
        yield longs


# --- a process that begins late ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_process_slow_to_start_takes_the_job_all_the_same(longs: LongJobs) -> None:
    longs.configure(budget_s=30)
    longs.freeze()
    job_id = longs.project.add("l.gated")
    tick = longs.start()
    pid = longs.frozen()
    slow_until = SYSTEM.monotonic() + 3
    until(lambda: SYSTEM.monotonic() > slow_until)
    longs.thaw(pid)
    assert tick.wait() == 0
    assert longs.did()["handed_over"] == 1
    longs.project.open()
    assert longs.ended(job_id)["status"] == "succeeded"
    assert longs.project.times_ran("start") == longs.project.times_ran("end") == {job_id: 1}
    assert longs.project.job(job_id)["attempts"] == 1


@pytest.mark.slow
def test_a_tick_that_hears_nothing_gives_the_job_back_and_the_late_process_runs_nothing(longs: LongJobs) -> None:
    longs.freeze()
    job_id = longs.project.add("l.gated")
    tick = longs.start()
    pid = longs.frozen()
    assert tick.wait(20) == 0
    row = longs.project.job(job_id)
    assert (row["status"], row["attempts"], row["failures"], row["losses"]) == ("queued", 1, 0, 0)
    assert longs.project.outcomes(job_id) == []
    assert longs.did()["released"] == 1
    [told] = events(longs.project.log(), "job.not_handed_over")
    assert (
        "the job needs its own process, which could not be started, so the job is released: no answer in time" in told
    )
    assert "no answer in time" in tick.stderr
    longs.thaw(pid)
    longs.nobody_left()
    assert not longs.project.effects()
    assert longs.project.job(job_id) == row


@pytest.mark.slow
def test_a_tick_that_is_told_to_stop_meanwhile_gives_the_job_back(longs: LongJobs) -> None:
    longs.configure("shutdown_grace: 1s", budget_s=40)
    longs.freeze()
    job_id = longs.project.add("l.gated")
    tick = longs.start()
    pid = longs.frozen()
    tick.send(signal.SIGTERM)
    assert tick.wait(60) == 128 + signal.SIGTERM
    assert longs.project.job(job_id)["status"] == "queued"
    longs.thaw(pid)
    longs.nobody_left()
    assert not longs.project.effects()


def test_a_tick_that_is_told_to_stop_while_a_process_starts_does_not_leave_it_behind(longs: LongJobs) -> None:
    """Where --wait stays for the processes: then the signal is for them, too."""
    longs.configure(budget_s=40)
    longs.freeze()
    job_id = longs.project.add("l.gated")
    tick = longs.start("--wait")
    pid = longs.frozen()
    tick.send(signal.SIGTERM)
    longs.thaw(pid)
    assert tick.wait(20) == 128 + signal.SIGTERM
    longs.nobody_left()
    assert (longs.project.job(job_id)["status"], longs.project.effects()) == ("queued", [])


@pytest.mark.slow
def test_the_process_takes_the_job_of_a_tick_that_died_after_starting_it(longs: LongJobs) -> None:
    longs.freeze()
    job_id = longs.project.add("l.gated")
    tick = longs.start()
    pid = longs.frozen()
    tick.send(signal.SIGKILL)
    tick.wait()
    longs.thaw(pid)
    until(lambda: longs.project.times_ran("start")[job_id], 30)
    longs.project.open()
    assert longs.ended(job_id)["status"] == "succeeded"
    assert longs.project.outcomes(job_id) == ["succeeded"]


@pytest.mark.slow
def test_the_process_runs_nothing_once_another_tick_has_recovered_the_job(longs: LongJobs) -> None:
    longs.freeze()
    job_id = longs.project.add("l.gated")
    tick = longs.start()
    pid = longs.frozen()
    tick.send(signal.SIGKILL)
    tick.wait()
    longs.tick("--only", "t.quick")  # at once: the runner's death is proven
    assert longs.project.outcomes(job_id) == ["lost"]
    longs.thaw(pid)
    longs.nobody_left()
    assert not longs.project.effects()
    assert longs.project.outcomes(job_id) == ["lost"]


@pytest.mark.slow
def test_a_file_that_changed_meanwhile_is_told_and_the_job_goes_back(longs: LongJobs) -> None:
    longs.configure(budget_s=30)
    longs.freeze()
    job_id = longs.project.add("l.command")
    tick = longs.start()
    pid = longs.frozen()
    longs.project.configure("run: {budget: 30s}\n")  # a deploy that drops the command
    longs.thaw(pid)
    tick.wait()
    [told] = events(longs.project.log(), "job.not_handed_over")
    assert "l.command is no longer in" in told
    assert (longs.project.job(job_id)["status"], longs.project.effects()) == ("queued", [])


@pytest.mark.slow
def test_a_process_that_dies_before_it_answers_is_noticed_at_once(longs: LongJobs) -> None:
    longs.configure(budget_s=40)
    longs.freeze()
    job_id = longs.project.add("l.gated")
    tick = longs.start()
    os.kill(longs.frozen(), signal.SIGKILL)
    assert tick.wait(60) == 0
    assert "the job's process ended before it took the job over: signal 9" in tick.stderr
    assert (longs.project.job(job_id)["status"], longs.project.job(job_id)["failures"]) == ("queued", 0)


# --- by hand: the process itself --------------------------------------------------------------------------------------


def run_process(project: Project, handover: Handover) -> tuple[int, str]:
    """Start the process as a tick does; return its exit code and its answer."""
    reader, writer = os.pipe()
    done = subprocess.run(
        [sys.executable, "-P", "-m", PROGRAM, str(writer)],
        input=handover.encode(),
        pass_fds=[writer],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": str(project.folder)},
        timeout=60,
        check=False,
    )
    os.close(writer)
    with open(reader) as opened:
        answer = opened.read().strip()
    assert not done.stderr, done.stderr
    return done.returncode, answer


def handed(project: Project, job_id: int, attempt: int = 1, job_type: str = "t.quick") -> Handover:
    return Handover(
        config=str(project.folder / "cronjobs.yaml"),
        database=project.url,
        job_id=job_id,
        job_type=job_type,
        attempt=attempt,
        locked_by=TICK,
        timeout_s=60,
        is_command=False,
        max_memory=None,
        success=[0],
        permanent=[],
        row_policy=AttemptPolicy(RetryPolicy()).text(),
    )


def leased(project: Project, job_type: str = "t.quick") -> int:
    """A job that the tick TICK holds."""
    job_id = project.add(job_type)
    soon = SYSTEM.now() + timedelta(minutes=5)
    lease = int(soon.timestamp() * 1_000_000) if project.is_sqlite else f"'{soon.isoformat()}'"
    project.sql(
        f"UPDATE cronjobs_jobs SET status = 'running', attempts = 1, locked_by = '{TICK}', locked_until = {lease} "
        f"WHERE id = {job_id}"
    )
    return job_id


def test_the_process_runs_the_job_that_its_tick_holds(longs: LongJobs) -> None:
    project = longs.project
    job_id = leased(project)
    assert run_process(project, handed(project, job_id)) == (0, ADOPTED)
    assert project.times_ran() == {job_id: 1}
    assert (project.job(job_id)["status"], project.outcomes(job_id)) == ("succeeded", ["succeeded"])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"attempt": 2}, id="another attempt"),
        pytest.param({"locked_by": "here:boot:1:2:2:tick"}, id="another holder"),
        pytest.param({"job_id": 999_999}, id="no such job"),
    ],
)
def test_the_process_runs_nothing_without_the_very_lease_it_was_told_of(
    longs: LongJobs, change: dict[str, Any]
) -> None:
    project = longs.project
    job_id = leased(project)
    before = project.everything()
    policy = AttemptPolicy(RetryPolicy()).text()
    assert run_process(project, replace(handed(project, job_id), **change, row_policy=policy)) == (0, FULL)
    assert (project.everything(), project.effects()) == (before, [])


def test_the_process_runs_nothing_of_a_job_that_was_given_back(longs: LongJobs) -> None:
    project = longs.project
    job_id = leased(project)
    project.sql(
        f"UPDATE cronjobs_jobs SET status = 'queued', locked_by = NULL, locked_until = NULL WHERE id = {job_id}"
    )
    before = project.everything()
    assert run_process(project, handed(project, job_id)) == (0, FULL)
    assert (project.everything(), project.effects()) == (before, [])


def start_process(project: Project) -> tuple[subprocess.Popen[bytes], int]:
    """The process, which waits for what it is to do, and where it will answer."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", PROGRAM, str(writer)],
        stdin=subprocess.PIPE,
        pass_fds=[writer],
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": str(project.folder)},
    )
    os.close(writer)
    until(lambda: catches(process.pid, signal.SIGTERM), 30)
    return process, reader


def catches(pid: int, number: signal.Signals) -> bool:
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) & 1 << (number - 1))


def test_a_process_that_is_told_to_stop_before_it_has_the_job_leaves_it_alone(longs: LongJobs) -> None:
    project = longs.project
    job_id = leased(project)
    before = project.everything()
    process, reader = start_process(project)
    process.send_signal(signal.SIGTERM)
    process.communicate(handed(project, job_id).encode(), 30)
    with open(reader) as opened:
        assert (process.returncode, opened.read().strip()) == (0, STOPPED)
    assert (project.everything(), project.effects()) == (before, [])


def test_a_process_that_was_being_started_when_its_tick_was_told_to_stop_is_told_too(longs: LongJobs) -> None:
    project = longs.project
    job_id = leased(project)
    settings = load(project.folder / "cronjobs.yaml", environ={})
    ended: SimpleQueue[Ended | None] = SimpleQueue()
    job = Job(job_id, "t.quick", {}, attempt=1, locked_by=TICK)
    attempt = Attempt(job, JobType("t.quick", MINUTE, RetryPolicy()), MINUTE)
    attempt.stop.set("shutdown")
    Handovers(settings, SYSTEM, ended).begin(attempt, SYSTEM.monotonic() + 30)
    said = ended.get(timeout=30)
    assert said is not None
    assert said.answer != ADOPTED
    assert (project.job(job_id)["locked_by"], project.effects()) == (TICK, [])


def test_a_signal_while_it_takes_the_job_sends_it_back_and_is_no_loss(longs: LongJobs) -> None:
    project = longs.project
    job_id = leased(project, "l.gated")
    process, reader = start_process(project)
    held = project.connect()  # somebody's open transaction
    held.execute("BEGIN IMMEDIATE" if project.is_sqlite else "BEGIN")
    held.execute(f"UPDATE cronjobs_jobs SET meta = '{{}}' WHERE id = {job_id}")
    assert process.stdin is not None
    process.stdin.write(handed(project, job_id, job_type="l.gated").encode())
    process.stdin.close()
    until(lambda: waits_for_the_database(project, process.pid), 30)
    process.send_signal(signal.SIGTERM)
    held.execute("COMMIT")
    held.close()
    assert process.wait(30) == 0
    with open(reader) as opened:
        assert opened.read().strip() == ADOPTED
    row = project.job(job_id)
    assert (row["status"], row["failures"], row["losses"]) == ("queued", 0, 0)
    assert not project.effects("end")


def waits_for_the_database(project: Project, pid: int) -> bool:
    if project.is_sqlite:  # it has opened the file, or is about to
        files = Path(f"/proc/{pid}/fd").iterdir()
        return any(os.path.realpath(file) == project.file for file in files)
    return bool(project.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


@pytest.mark.slow
def test_the_process_says_why_it_cannot_begin(longs: LongJobs) -> None:
    project = longs.project
    job_id = leased(project)
    gone = replace(handed(project, job_id), database="postgresql://nobody@127.0.0.1:1/none")
    code, answer = run_process(project, gone)
    assert code == 4
    assert "none" in answer
    code, answer = run_process(project, replace(handed(project, job_id), config="/nowhere/cronjobs.yaml"))
    assert code == 3
    assert "/nowhere/cronjobs.yaml" in answer
    assert project.effects() == []


# --- the compare-and-swap ---------------------------------------------------------------------------------------------


def claimed(database: Database, count: int = 1) -> list[Lease]:
    with database.write() as connection:
        for _ in range(count):
            enqueue(connection, "t.any", run_at=SYSTEM.now() - MINUTE)
        admission = ClaimFilter(known=["t.any"], fitting=["t.any"], remaining_s=60)
        jobs = claim(connection, limit=count, locked_by=TICK, lease=MINUTE, admission=admission).jobs
    return [Lease(job.id, job.attempt, TICK) for job in jobs]


def request(held: Lease) -> Handover:
    policy = AttemptPolicy(RetryPolicy()).text()
    return Handover("", "", held.job_id, "t.any", held.attempt, TICK, 60, False, None, [0], [], policy)


SETTINGS = Settings(Path("cronjobs.yaml"), Path(), run=RunSettings(long_jobs=2))


def test_who_adopts_holds_the_lease_and_the_tick_does_so_no_more(database: Database) -> None:
    [held] = claimed(database)
    adopted = take_over(database, request(held), SETTINGS.run)
    assert adopted is not None
    assert (adopted.job.id, adopted.job.attempt) == (held.job_id, held.attempt)
    assert adopted.job.locked_by != TICK
    with database.write() as connection:
        assert renew(connection, [held], MINUTE).lost == {held.job_id}
        assert renew(connection, [held._replace(locked_by=str(adopted.job.locked_by))], MINUTE).renewed == {held.job_id}
    assert take_over(database, request(held), SETTINGS.run) is None  # a second process of the same tick


def test_of_two_that_adopt_at_once_the_second_counts_the_first(database: Database, database_url: str) -> None:
    first, second = claimed(database, 2)
    found: list[object] = []

    def adopt_second() -> None:
        with opened(database_url) as other, other.write() as connection:
            found.append(adopt(connection, second, locked_by="h:b:1:2:2:long-2", lease=MINUTE, host="h", at_most=1))

    thread = threading.Thread(target=adopt_second)
    with database.write() as connection:
        assert adopt(connection, first, locked_by="h:b:1:1:1:long-1", lease=MINUTE, host="h", at_most=1)
        thread.start()
        thread.join(0.7)
        assert not found, "it did not wait"
    thread.join(20)
    assert found == [None]


def test_no_more_are_adopted_than_a_host_may_run(database: Database) -> None:
    found = [take_over(database, request(held), SETTINGS.run) is not None for held in claimed(database, 3)]
    assert found == [True, True, False]


@contextmanager
def _answer_lost(database: Database, monkeypatch: pytest.MonkeyPatch, times: int) -> Iterator[list[int]]:
    """The first *times* COMMITs go through, and nobody hears of it."""
    real, lost = database.write, [0]

    @contextmanager
    def write(**options: Any) -> Iterator[Connection]:
        with real(**options) as connection:
            yield connection
        if lost[0] < times:
            lost[0] += 1
            raise CommitUnknown("the database", "connection lost")

    monkeypatch.setattr(database, "write", write)
    yield lost


def test_an_adoption_whose_commit_got_no_answer_is_settled_by_reading(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    [held] = claimed(database)
    before = SYSTEM.monotonic()
    with _answer_lost(database, monkeypatch, 2) as lost:
        adopted = take_over(database, request(held), SETTINGS.run)
    assert lost == [2]
    assert adopted is not None
    assert adopted.job.id == held.job_id
    assert adopted.sent - before < PAUSE_S, "its lease is as old as the first try"


def test_the_retry_policy_and_the_exit_codes_travel_with_the_job() -> None:
    policy = RetryPolicy(
        max_attempts=3, base="2s", factor=1.5, cap="1h", jitter=0.1, delays=["1s", "2m"], retry_on=[OSError, "exit-3"]
    )
    exit_codes = ExitCodes(frozenset({0, 3}), frozenset({78}))
    job = Job(1, "t.any", {}, attempt=2, locked_by=TICK)
    sent = Handover.of(SETTINGS, Attempt(job, JobType("t.any", MINUTE, policy, exit_codes=exit_codes), MINUTE))
    received = Handover.decode(sent.encode()).as_type(SETTINGS.job_types)
    assert (received.retry, received.exit_codes) == (policy, exit_codes)
