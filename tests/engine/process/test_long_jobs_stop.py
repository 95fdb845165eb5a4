"""How a long job ends early: timeout, cancel, shutdown, death of its processes, or a database outage."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from support.commands import LINUX_ONLY, until
from support.longjobs import LongJobs, long_jobs, state
from support.postgres import PostgresServer
from support.ticking import Project, Tick, stop_and_go

from cronjobs.clock import SYSTEM
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.probe.repeated_signals import SAME_SIGNAL_S
from cronjobs.engine.schema import migrations

pytestmark = [LINUX_ONLY, pytest.mark.slow, pytest.mark.either]
GRACE_S = 2.0  # PROCESS_GRACE


@pytest.fixture
def longs(project: Project) -> Iterator[LongJobs]:
    with long_jobs(project) as longs:
        yield longs


@pytest.fixture
def sqlite_longs(sqlite_project: Project) -> Iterator[LongJobs]:
    with long_jobs(sqlite_project) as longs:
        yield longs


def last_beat(longs: LongJobs) -> float:
    return longs.project.effects("beat")[-1].at


# --- its lease --------------------------------------------------------------------------------------------------------


def test_a_long_job_keeps_its_lease_for_many_times_its_length(longs: LongJobs) -> None:
    longs.configure("lease: 3s")
    job_id = longs.begin("l.gated")
    holder = longs.project.job(job_id)["locked_by"]
    long_after = SYSTEM.monotonic() + 10
    while SYSTEM.monotonic() < long_after:  # ticks come and go, and would recover what they may
        longs.tick()
    assert longs.project.job(job_id)["locked_by"] == holder
    longs.project.open()
    assert longs.ended(job_id)["status"] == "succeeded"
    assert longs.project.times_ran("start") == {job_id: 1}
    assert longs.project.outcomes(job_id) == ["succeeded"]


# --- time-out ---------------------------------------------------------------------------------------------------------


def test_a_long_job_is_ended_at_its_timeout_and_retried(longs: LongJobs) -> None:
    longs.configure(budget_s=5)
    job_id = longs.begin("l.deaf", timeout_s=6)
    began = longs.project.effects("start")[-1].at
    row = longs.ended(job_id)
    assert (row["status"], row["failures"], longs.project.outcomes(job_id)) == ("failed", 1, ["timed_out"])
    assert "timed out after 6s" in row["last_error"]
    assert last_beat(longs) - began < 6 + GRACE_S + 1
    longs.nobody_left()


def test_a_polite_long_job_ends_at_its_timeout_without_a_kill(longs: LongJobs) -> None:
    longs.configure(budget_s=5)
    job_id = longs.begin("l.polite", timeout_s=6)
    row = longs.ended(job_id)
    assert (row["status"], longs.project.outcomes(job_id)) == ("failed", ["timed_out"])
    assert len(longs.project.effects("told")) == 1
    assert "killed" not in row["last_error"]


# --- cancel -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job_type", ["l.polite", "l.deaf", "l.command"])
def test_a_cancel_reaches_a_long_job_and_says_who_and_why(longs: LongJobs, job_type: str) -> None:
    longs.configure("lease: 6s")
    job_id = longs.begin(job_type)
    longs.cli("jobs", "cancel", str(job_id), "--why", "wrong month")
    row = longs.ended(job_id)
    assert (row["status"], longs.project.outcomes(job_id)) == ("cancelled", ["cancelled"])
    assert "wrong month" in row["last_error"]
    assert row["last_error"].startswith("cancelled by ")
    longs.nobody_left()
    longs.tick()
    assert longs.project.times_ran("start") == {job_id: 1}


# --- shutdown ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job_type", ["l.polite", "l.deaf", "l.command"])
def test_sigterm_sends_a_long_job_back_to_the_queue_within_the_grace(longs: LongJobs, job_type: str) -> None:
    longs.configure("shutdown_grace: 5s")
    job_id = longs.begin(job_type)
    os.kill(longs.supervisor(job_id), signal.SIGTERM)
    row = longs.ended(job_id, 5 + 3)
    assert (row["status"], row["failures"], row["interruptions"]) == ("queued", 0, 1)
    assert longs.project.outcomes(job_id) == ["interrupted"]
    longs.nobody_left()


def test_a_result_within_the_grace_counts(longs: LongJobs) -> None:
    job_id = longs.begin("l.gated")
    os.kill(longs.supervisor(job_id), signal.SIGTERM)
    longs.project.open()
    assert longs.ended(job_id)["status"] == "succeeded"


def test_a_second_sigterm_ends_it_at_once(longs: LongJobs) -> None:
    longs.configure("shutdown_grace: 60s")
    job_id = longs.begin("l.stubborn")
    pid = longs.supervisor(job_id)
    os.kill(pid, signal.SIGTERM)
    sent = SYSTEM.monotonic()
    until(lambda: longs.project.effects("told") and SYSTEM.monotonic() - sent > SAME_SIGNAL_S)
    os.kill(pid, signal.SIGTERM)
    longs.nobody_left(5)
    until(longs.project.lease_ended, 5)
    longs.tick("--only", "t.quick")
    assert longs.project.outcomes(job_id) == ["interrupted"]
    assert longs.project.job(job_id)["failures"] == 0


@pytest.mark.parametrize("job_type", ["l.polite", "l.gated", "l.command"])
def test_a_sigterm_to_all_its_processes_at_once_interrupts_it(longs: LongJobs, job_type: str) -> None:
    """systemd does this when it stops a unit or the host."""
    job_id = longs.begin(job_type)
    stop_and_go(list(longs.alive()), signal.SIGTERM)
    if job_type == "l.gated":
        longs.project.open()
    row = longs.ended(job_id, 15)
    expected = ("succeeded", ["succeeded"]) if job_type == "l.gated" else ("queued", ["interrupted"])
    assert (row["status"], longs.project.outcomes(job_id)) == expected
    longs.nobody_left()


# --- death ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job_type", ["l.deaf", "l.command"])
def test_a_killed_supervisor_takes_its_job_along_and_the_next_tick_runs_it_again(
    longs: LongJobs, job_type: str
) -> None:
    job_id = longs.begin(job_type)
    os.kill(longs.supervisor(job_id), signal.SIGKILL)
    longs.nobody_left(1)
    tick = longs.tick("--only", "t.quick")  # by far before its lease of a minute ends
    assert longs.project.outcomes(job_id) == ["lost"]
    row = longs.project.job(job_id)
    assert (row["status"], row["losses"], row["failures"]) == ("failed", 1, 0)
    assert (tick.process.returncode, tick.stderr) == (0, "")
    longs.project.make_due()
    longs.tick()
    until(lambda: longs.project.times_ran("start")[job_id] == 2, 30)


# The process is killed right after the commit that records a death.
KILLED_AFTER_COMMIT = """
if "cronjobs.engine.tick.long_job_process" in sys.orig_argv:
    from cronjobs.engine.tick.ends import EndWriter

    EndWriter.written = lambda self, turn: os.kill(os.getpid(), signal.SIGKILL) if turn.ends else None
"""


def test_a_killed_supervisor_s_death_is_reported(longs: LongJobs) -> None:
    with (longs.project.folder / "site" / "sitecustomize.py").open("a") as file:
        file.write(KILLED_AFTER_COMMIT)
    job_id = longs.project.add("l.gives-up")
    longs.tick()
    assert longs.ended(job_id)["status"] == "dead"
    longs.nobody_left()
    told = longs.tick().stderr
    assert told.startswith(f"cronjobs: a job is dead: job {job_id} l.gives-up: GiveUp: void; ")
    assert "; the process that recorded this was killed; look: " in told
    assert longs.tick().stderr == ""
    assert not [*longs.project.folder.rglob("unreported-*")]


def test_a_killed_handler_is_a_failure_named_by_its_signal(longs: LongJobs) -> None:
    job_id = longs.begin("l.gated")
    os.kill(longs.child(job_id), signal.SIGKILL)
    row = longs.ended(job_id)
    assert (row["status"], row["failures"], row["error_type"]) == ("failed", 1, "SIGKILL")
    assert "killed by SIGKILL" in row["last_error"]


def test_a_killed_launcher_is_a_failure_and_leaves_nothing_running(longs: LongJobs) -> None:
    job_id = longs.begin("l.gated")
    [launcher] = [pid for pid, words in longs.alive().items() if "launcher.py" in words]
    os.kill(launcher, signal.SIGKILL)
    row = longs.ended(job_id)
    assert (row["status"], row["failures"]) == ("failed", 1)
    longs.nobody_left()


# --- frozen -----------------------------------------------------------------------------------------------------------


def frozen_past_its_lease(longs: LongJobs, pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) == "T")
    until(longs.project.lease_ended, 20)


def test_a_frozen_supervisor_s_job_ends_before_its_lease_and_the_fence_holds(longs: LongJobs) -> None:
    longs.configure("lease: 6s")
    job_id = longs.begin("l.deaf")
    pid = longs.supervisor(job_id)
    frozen_past_its_lease(longs, pid)
    assert [other for other, words in longs.alive().items() if other != pid] == [], "code that runs without a lease"
    stopped_at = last_beat(longs)
    longs.tick("--only", "t.quick")
    assert longs.project.outcomes(job_id) == ["lost"]
    longs.project.make_due()
    longs.tick()
    until(lambda: longs.project.times_ran("start")[job_id] == 2, 30)
    assert longs.project.effects("start")[1].at > stopped_at
    holder = longs.project.job(job_id)["locked_by"]
    os.kill(pid, signal.SIGCONT)
    until(lambda: state(pid) in ("", "Z"), 5)
    row = longs.project.job(job_id)
    assert (row["status"], row["attempts"], row["locked_by"]) == ("running", 2, holder)
    assert longs.project.outcomes(job_id) == ["lost"]


def test_a_frozen_tick_s_isolated_handler_ends_before_its_lease(longs: LongJobs) -> None:
    longs.configure("lease: 6s, workers: 1", yaml="  l.deaf: {isolation: process, timeout: 10s}\n", budget_s=40)
    job_id = longs.project.add("l.deaf")
    tick = longs.start()
    until(lambda: longs.project.effects("beat"), 30)
    frozen_past_its_lease(longs, tick.pid)
    assert [other for other in longs.alive() if other != tick.pid] == []
    tick.send(signal.SIGCONT)
    assert tick.wait() == -signal.SIGKILL  # both of its limits passed meanwhile: SIGKILL comes before SIGALRM
    longs.tick("--only", "t.quick")
    assert longs.project.outcomes(job_id) == ["lost"]


# --- a database away --------------------------------------------------------------------------------------------------


@pytest.fixture
def own_longs(
    own_postgres_server: PostgresServer, new_project: Callable[[str], Project]
) -> Iterator[tuple[LongJobs, PostgresServer]]:
    own_postgres_server.start()
    url = own_postgres_server.url()
    database = Database(parse_url(url))
    migrations.upgrade(database)
    database.close()
    with long_jobs(new_project(url)) as longs:
        yield longs, own_postgres_server


def test_a_long_job_outlives_a_restart_of_the_database(own_longs: tuple[LongJobs, PostgresServer]) -> None:
    longs, server = own_longs
    longs.configure("lease: 10s")
    job_id = longs.begin("l.gated")
    holder = longs.project.job(job_id)["locked_by"]
    server.kill()
    longs.project.open()  # it even ends while the database is away
    until(lambda: longs.project.effects("end"))
    server.start()
    row = longs.ended(job_id)
    assert (row["status"], row["attempts"], longs.project.outcomes(job_id)) == ("succeeded", 1, ["succeeded"])
    assert holder
    assert longs.project.times_ran("start") == {job_id: 1}


def test_a_long_job_ends_itself_before_its_lease_when_the_database_stays_away(
    own_longs: tuple[LongJobs, PostgresServer],
) -> None:
    longs, server = own_longs
    longs.configure("lease: 6s")
    job_id = longs.begin("l.deaf")
    server.stop(signal.SIGINT)
    away = SYSTEM.monotonic()
    longs.nobody_left(8)
    assert last_beat(longs) - away < 6
    server.start()
    until(longs.project.lease_ended)
    longs.tick("--only", "t.quick")
    row = longs.project.job(job_id)
    assert (row["status"], row["failures"], longs.project.outcomes(job_id)) == ("failed", 0, ["lost"])


# --- run-due --wait ---------------------------------------------------------------------------------------------------


def staying(longs: LongJobs, *job_types: str) -> tuple[Tick, list[int]]:
    jobs = [longs.project.add(job_type) for job_type in job_types]
    tick = longs.start("--wait")
    until(lambda: len(longs.project.effects("start")) == len(jobs), 30)
    until(lambda: "cronjobs.engine.tick.wait_for_long_jobs" in longs.alive().get(tick.pid, ""), 20)
    return tick, jobs


def test_wait_stays_until_the_long_jobs_have_ended(longs: LongJobs) -> None:
    tick, jobs = staying(longs, "l.gated", "l.command")
    assert all(longs.project.job(job_id)["status"] == "running" for job_id in jobs)
    longs.project.open()
    assert tick.wait() == 0
    assert [longs.project.job(job_id)["status"] for job_id in jobs] == ["succeeded"] * 2
    assert (tick.stdout, tick.stderr, longs.alive()) == ("", "", {})


@pytest.mark.parametrize(("options", "code"), [((), 1), (("--fail-on", "never"), 0)])
def test_wait_ends_with_1_and_tells_if_a_long_job_ended_dead(
    sqlite_longs: LongJobs, options: tuple[str, ...], code: int
) -> None:
    job_id = sqlite_longs.project.add("l.gives-up")
    tick = sqlite_longs.tick("--wait", *options)
    assert tick.process.returncode == code
    assert sqlite_longs.says_it_gave_up(tick.stderr, job_id)
    assert sqlite_longs.tick().stderr == ""


def test_wait_passes_sigterm_on(longs: LongJobs) -> None:
    tick, jobs = staying(longs, "l.polite", "l.polite")
    tick.send(signal.SIGTERM)
    assert tick.wait(60) == 128 + signal.SIGTERM
    assert [longs.project.job(job_id)["status"] for job_id in jobs] == ["queued"] * 2
    assert [longs.project.outcomes(job_id) for job_id in jobs] == [["interrupted"]] * 2


def test_a_sigterm_to_wait_and_to_its_long_job_is_one_signal(sqlite_longs: LongJobs) -> None:
    handler = """
@job("l.finishes", timeout="10m")
def finishes(ctx):
    say("start", ctx)
    while not ctx.cancelled:
        time.sleep(0.005)
    time.sleep(0.3)
"""
    sqlite_longs.configure("shutdown_grace: 60s", handlers=handler)
    tick, [job_id] = staying(sqlite_longs, "l.finishes")
    stop_and_go([sqlite_longs.supervisor(job_id), tick.pid], signal.SIGTERM)
    assert tick.wait(60) == 128 + signal.SIGTERM
    assert sqlite_longs.project.outcomes(job_id) == ["succeeded"]


def test_wait_passes_a_second_sigterm_on_too(sqlite_longs: LongJobs) -> None:
    sqlite_longs.configure("shutdown_grace: 60s")
    tick, _ = staying(sqlite_longs, "l.stubborn")
    tick.send(signal.SIGTERM)
    sent = SYSTEM.monotonic()
    until(lambda: sqlite_longs.project.effects("told") and SYSTEM.monotonic() - sent > SAME_SIGNAL_S)
    tick.send(signal.SIGTERM)
    assert tick.wait(60) == 128 + signal.SIGTERM
    assert not sqlite_longs.alive()


def test_a_signal_while_the_tick_still_works_is_for_its_long_jobs_too(longs: LongJobs) -> None:
    longs.configure(yaml="  t.gated: {timeout: 10s}\n", budget_s=40)
    ordinary, job_id = longs.project.add("t.gated"), longs.project.add("l.polite")
    tick = longs.start("--wait")
    until(lambda: len(longs.project.effects("start")) == 2, 30)
    tick.send(signal.SIGTERM)
    longs.project.open()
    assert tick.wait(20) == 128 + signal.SIGTERM
    assert longs.project.job(ordinary)["status"] == "succeeded"
    assert (longs.project.job(job_id)["status"], longs.project.outcomes(job_id)) == ("queued", ["interrupted"])


def test_wait_keeps_no_thread_running_past_its_lease(longs: LongJobs) -> None:
    """The tick's process stays, but not as the program whose thread does not end."""
    handlers = """
@job("l.hung", timeout="1s")
def hung(ctx):
    say("start", ctx)
    while True:
        say("beat", ctx)
        time.sleep(0.02)
"""
    longs.configure("workers: 1", handlers=handlers)
    hung, job_id = longs.project.add("l.hung"), longs.project.add("l.gated")
    tick = longs.start("--wait")
    until(lambda: "cronjobs.engine.tick.wait_for_long_jobs" in longs.alive().get(tick.pid, ""), 30)
    until(lambda: longs.project.times_ran("start")[job_id], 30)
    beats = len(longs.project.effects("beat"))
    until(lambda: longs.tick("--only", "t.quick") and longs.project.job(hung)["locked_by"] is None, 20)
    assert longs.project.outcomes(hung) == ["timed_out"]
    assert len(longs.project.effects("beat")) == beats, "code that ran on without a lease"
    longs.project.open()
    assert tick.wait() == 0
    assert longs.project.job(job_id)["status"] == "succeeded"
