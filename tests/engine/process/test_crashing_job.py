"""A job that kills its runners is found, and other jobs succeed. Work that must not be repeated is not repeated."""

from __future__ import annotations

import signal
import sys
from functools import partial

import pytest
from support import forked
from support.commands import until
from support.ticking import Project, Tick, events

from cronjobs.engine.execution.attempt import ISOLATED_FROM_LOSSES

WORKERS = 4
MAX_ATTEMPTS = 3
YAML = f"run: {{workers: {WORKERS}}}\n"

HANDLERS = f"""
import ctypes, signal

TRIES = RetryPolicy(max_attempts={MAX_ATTEMPTS}, base="1s", jitter=0)

@job("crash.good", timeout="10s")
def good(ctx):
    say("ran", ctx)
    time.sleep(0.002)

@job("crash.segfault", timeout="10s", retry=TRIES)
def segfault(ctx):
    say("crashed", ctx)
    ctypes.string_at(0)

@job("crash.ends", timeout="10s", retry=TRIES)
def ends(ctx, how):
    say("crashed", ctx)
    match how:
        case "exit": os._exit(0)
        case "abort": os.abort()
        case "memory": os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out

@job("lost.dead", timeout="20s", on_lost="dead")
def lost_dead(ctx):
    say("start", ctx)
    wait_for("gate")
    say("end", ctx)

@job("shutdown.drop", timeout="20s", on_shutdown="drop")
def drop(ctx): say("ran", ctx)

@job("shutdown.polite", timeout="20s")
def polite(ctx):
    say("start", ctx)
    while not ctx.cancelled: time.sleep(0.005)
    ctx.check()
"""


def tick_until_settled(project: Project, at_most: int) -> list[Tick]:
    """Ticks, one after another, without waiting for a lease, until no job is left that could run."""
    ticks: list[Tick] = []
    while project.value("SELECT count(*) FROM cronjobs_jobs WHERE finished_at IS NULL"):
        assert len(ticks) < at_most, project.statuses()
        project.make_due()
        ticks.append(project.tick())
    return ticks


@pytest.mark.slow
def test_one_segfault_among_200_good_jobs_ends_dead_with_its_signal_and_the_200_succeed(project: Project) -> None:
    project.configure(YAML, HANDLERS)
    project.add_many("crash.good", 60)
    crashing_id = project.add("crash.segfault")
    project.add_many("crash.good", 140)
    # In a thread until so many runners died of it, and then each try is in a process of its own.
    ticks = tick_until_settled(project, ISOLATED_FROM_LOSSES + MAX_ATTEMPTS)
    codes = [tick.process.returncode for tick in ticks]
    assert codes == [-signal.SIGSEGV] * ISOLATED_FROM_LOSSES + [0] * (MAX_ATTEMPTS - 1) + [1]
    crashing = project.job(crashing_id)
    assert (crashing["status"], crashing["error_type"]) == ("dead", "SIGSEGV")
    assert crashing["last_error"].startswith("killed by SIGSEGV")
    assert (crashing["losses"], crashing["failures"]) == (ISOLATED_FROM_LOSSES, MAX_ATTEMPTS)
    assert project.outcomes(crashing_id) == ["lost"] * ISOLATED_FROM_LOSSES + ["failed"] * MAX_ATTEMPTS
    assert project.statuses() == {"succeeded": 200, "dead": 1}
    losses = dict(project.sql("SELECT id, losses FROM cronjobs_jobs WHERE job_type = 'crash.good'"))
    ran = project.times_ran()
    assert ran.keys() == losses.keys()
    for job_id, times in ran.items():
        assert times <= 1 + losses[job_id]
    # What was lost once is taken only when it begins at once, so the next crash meets no more than run beside it.
    assert sum(lost >= 2 for lost in losses.values()) < WORKERS
    assert max(losses.values()) <= ISOLATED_FROM_LOSSES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "kind", "error"),
    [
        ("exit", "exit-0", "the job's process ended with exit status 0 before the handler had ended"),
        ("abort", "SIGABRT", "killed by SIGABRT"),
        ("memory", "SIGKILL", "killed by SIGKILL (by hand, or because memory ran out)"),
    ],
)
def test_whichever_way_a_job_takes_its_runner_with_it_it_is_found_and_named(
    sqlite_project: Project, how: str, kind: str, error: str
) -> None:
    project = sqlite_project.configure(YAML, HANDLERS)
    job_id, good_id = project.add("crash.ends", f'{{"how": "{how}"}}', max_attempts=1), project.add("crash.good")
    ticks = tick_until_settled(project, ISOLATED_FROM_LOSSES + 1)
    assert ticks[-1].wait() == 1
    found = project.job(job_id)
    assert (found["status"], found["error_type"]) == ("dead", kind)
    assert found["last_error"].startswith(error)
    assert project.job(good_id)["status"] == "succeeded"


@pytest.mark.slow
def test_a_crash_is_recovered_by_the_next_tick_at_once(project: Project) -> None:
    """The lease goes on for a minute; that its holder is dead can be proven here."""
    project.configure(YAML, HANDLERS)
    gated_id = project.add("t.gated")
    tick = project.start()
    until(lambda: project.effects("start"), 30)
    tick.send(signal.SIGKILL)
    tick.wait()
    assert not project.lease_ended()
    project.open()
    assert project.tick().wait() == 0
    assert project.outcomes(gated_id) == ["lost", "succeeded"]


@pytest.mark.slow
def test_a_job_whose_runners_die_without_its_doing_is_dead_after_max_losses(project: Project) -> None:
    """Also where it runs in a process of its own by then, which is not to blame."""
    project.configure("run: {workers: 2, max_losses: 3}\n", HANDLERS)
    job_id = project.add("t.gated")
    for number in range(3):
        tick = project.start()
        until(partial(began, project, number + 1), 30)
        assert (project.effects("start")[-1].pid == tick.pid) == (number < ISOLATED_FROM_LOSSES)
        tick.send(signal.SIGKILL)
        tick.wait()
    until(lambda: project.tick().wait() == 1, 30)  # once the process is gone, too
    assert project.outcomes(job_id) == ["lost"] * 3
    assert (project.job(job_id)["status"], project.job(job_id)["failures"]) == ("dead", 0)
    assert len(project.effects("start")) == 3


def began(project: Project, times: int) -> bool:
    return len(project.effects("start")) == times


# --- on_lost: dead ----------------------------------------------------------------------------------------------------


def command(project: Project, *words: str) -> str:
    argv = [sys.executable, "-m", "cronjobs", *words, "--config", str(project.folder / "cronjobs.yaml")]
    done = forked.run(argv)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_work_that_must_not_repeat_by_itself_is_dead_when_its_runner_dies_until_someone_says_so(
    project: Project,
) -> None:
    project.configure(YAML, HANDLERS)
    job_id, retried_id = project.add("lost.dead"), project.add("t.gated")
    tick = project.start()
    until(lambda: len(project.effects("start")) == 2, 30)
    tick.send(signal.SIGKILL)
    tick.wait()
    project.open()
    assert project.tick().wait() == 1
    found = project.job(job_id)
    assert (found["status"], found["attempts"], found["failures"], found["losses"]) == ("dead", 1, 0, 1)
    assert "runner died" in found["last_error"]
    assert [line for line in events(project.log(), "job.dead") if f"job_id={job_id}" in line]
    assert project.outcomes(retried_id) == ["lost", "succeeded"]
    assert project.tick().wait() == 0
    assert project.times_ran("start")[job_id] == 1
    command(project, "jobs", "retry", str(job_id))
    assert (project.job(job_id)["status"], project.job(job_id)["losses"]) == ("queued", 0)
    assert project.tick().wait() == 0
    assert project.outcomes(job_id) == ["lost", "succeeded"]


def begin_behind_slow_ones(project: Project, job_type: str, count: int) -> Tick:
    """A tick that is fast enough to claim ahead, and then slow jobs take all of its workers; *count* jobs wait."""
    project.configure("run: {workers: 2}\n", HANDLERS)
    project.add_many("t.quick", 200)
    for _ in range(2):
        project.add("shutdown.polite")
    project.add_many("t.quick", 3)
    project.add_many(job_type, count)
    project.add_many("t.quick", 200)
    tick = project.start()
    until(lambda: len(project.effects("start")) == 2, 30)
    return tick


@pytest.mark.slow
def test_a_tick_killed_before_it_came_to_such_a_job_leaves_it_untouched(project: Project) -> None:
    tick = begin_behind_slow_ones(project, "lost.dead", 1)
    tick.send(signal.SIGKILL)
    tick.wait()
    claimed = project.sql("SELECT job_type, count(*) FROM cronjobs_jobs WHERE status = 'running' GROUP BY job_type")
    assert dict(claimed).get("t.quick"), "the tick had claimed nothing ahead: this test shows nothing"
    assert "lost.dead" not in dict(claimed)
    assert project.sql("SELECT status, attempts FROM cronjobs_jobs WHERE job_type = 'lost.dead'") == [("queued", 0)]


# --- on_shutdown: drop ------------------------------------------------------------------------------------------------


def test_what_its_type_says_to_drop_is_cancelled_at_shutdown_if_it_was_claimed_and_not_begun(project: Project) -> None:
    tick = begin_behind_slow_ones(project, "shutdown.drop", 20)
    tick.send(signal.SIGTERM)
    assert tick.wait() == 128 + signal.SIGTERM
    of_type = "FROM cronjobs_jobs WHERE job_type = 'shutdown.drop'"
    dropped = [row[0] for row in project.sql(f"SELECT id {of_type} AND attempts = 1")]
    assert dropped, "the tick had claimed none of them ahead: this test shows nothing"
    for job_id in dropped:
        found = project.job(job_id)
        assert (found["status"], found["last_error"]) == ("cancelled", "dropped at shutdown")
        assert project.outcomes(job_id) == ["cancelled"]
    said = [line for line in events(project.log(), "job.cancelled") if "dropped at shutdown" in line]
    assert len(said) == len(dropped)
    # Jobs that the tick never claimed wait, and so do claimed jobs of other types.
    assert project.value(f"SELECT count(*) {of_type} AND status = 'queued' AND attempts = 0") == 20 - len(dropped)
    released = "job_type = 't.quick' AND status = 'queued' AND attempts = 1 AND interruptions = 0"
    assert project.value(f"SELECT count(*) FROM cronjobs_jobs WHERE {released}") > 0
    assert not project.times_ran().keys() & set(dropped)


def test_a_job_that_lost_two_runners_has_its_whole_timeout_for_its_handler(project: Project) -> None:
    project.configure(YAML, HANDLERS)
    job_id = project.add("crash.good")
    project.sql(f"UPDATE cronjobs_jobs SET losses = {ISOLATED_FROM_LOSSES}, timeout_s = 0.1 WHERE id = {job_id}")
    project.tick()  # an interpreter needs longer than that to start
    assert project.outcomes(job_id) == ["succeeded"]
    assert project.times_ran()[job_id] == 1
