"""SIGTERM and SIGINT at any moment, once and twice: which jobs are asked to stop, and which are released."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from support.commands import until
from support.ticking import Project, Tick, rivals, stop_and_go

from cronjobs.clock import SYSTEM
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.execution.attempt import Attempt, WorkerContext
from cronjobs.engine.execution.worker_threads import Workers
from cronjobs.engine.jobs.job_types import JobType
from cronjobs.engine.jobs.registry import Registration
from cronjobs.model import CancelledByRequest, Job, Released, RetryPolicy

pytestmark = pytest.mark.either

SIGNALS = [signal.SIGTERM, signal.SIGINT]

HANDLERS = '''
@job("s.polite", timeout="15s")
def polite(ctx):
    """Stops when it is asked to."""
    if ctx.attempt > 1:
        return say("ran", ctx)
    say("start", ctx)
    while not ctx.cancelled:
        time.sleep(0.005)
    say("told", ctx)
    ctx.check()

@job("s.finishes", timeout="15s")
def finishes(ctx):
    """Uses the grace to end its work."""
    say("start", ctx)
    while not ctx.cancelled:
        time.sleep(0.005)
    time.sleep(0.3)
    say("end", ctx)
    return "done"

@job("s.deaf", timeout="15s")
def deaf(ctx):
    if ctx.attempt > 1:
        return say("ran", ctx)
    say("start", ctx)
    while True:
        say("beat", ctx)
        time.sleep(0.02)
'''
YAML = "run: {workers: 2, shutdown_grace: 1s}\n"


def working(project: Project, *job_types: str, yaml: str = YAML) -> tuple[Tick, list[int]]:
    """A tick in which all of these run."""
    project.configure(yaml, HANDLERS)
    ids = [project.add(job_type) for job_type in job_types]
    tick = project.start()
    until(lambda: len(project.effects("start")) == min(2, len(ids)))
    return tick, ids


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_reaches_contexts_at_once_and_nothing_more_is_begun(project: Project, number: signal.Signals) -> None:
    tick, (polite_id, finishes_id) = working(project, "s.polite", "s.finishes")
    waiting = [project.add("t.quick") for _ in range(3)]
    sent = SYSTEM.monotonic()
    tick.send(number)
    assert tick.wait() == 128 + number
    [told] = project.effects("told")
    assert told.at - sent < 0.5
    assert project.outcomes(polite_id) == ["interrupted"]
    polite = project.job(polite_id)
    assert (polite["status"], polite["failures"], polite["interruptions"]) == ("queued", 0, 1)
    assert project.outcomes(finishes_id) == ["succeeded"]  # the job used the grace to end
    assert [project.job(job_id)["attempts"] for job_id in waiting] == [0, 0, 0]
    assert project.tick().wait() == 0
    assert project.times_ran() == dict.fromkeys([polite_id, *waiting], 1)
    assert project.times_ran("end") == {finishes_id: 1}


def test_what_was_claimed_and_not_begun_goes_back_as_it_was(project: Project) -> None:
    """Fast jobs let the loop claim ahead of its workers; then slow ones take both of them."""
    project.configure(YAML, HANDLERS)
    project.add_many("t.quick", 200)
    polite_ids = [project.add("s.polite") for _ in range(2)]
    project.add_many("t.quick", 200)
    tick = project.start()
    until(lambda: len(project.effects("start")) == 2)
    tick.send(signal.SIGTERM)
    assert tick.wait() == 143
    untouched = "failures = 0 AND losses = 0 AND interruptions = 0 AND locked_by IS NULL AND started_at IS NOT NULL"
    given_back = project.value(
        f"SELECT count(*) FROM cronjobs_jobs WHERE status = 'queued' AND attempts = 1 AND {untouched} "
        "AND job_type = 't.quick'"
    )
    assert given_back > 0, "the loop had claimed nothing ahead: this test shows nothing"
    assert (
        project.value("SELECT count(*) FROM cronjobs_job_runs WHERE outcome NOT IN ('succeeded', 'interrupted')") == 0
    )
    assert project.tick().wait() == 0
    assert project.statuses() == {"succeeded": 402}
    assert set(project.times_ran().values()) == {1}
    assert len(project.times_ran()) == 402
    assert [project.outcomes(job_id) for job_id in polite_ids] == [["interrupted", "succeeded"]] * 2


@pytest.mark.slow
def test_what_waits_behind_slow_jobs_is_given_to_other_runners(project: Project) -> None:
    """No signal comes. Both workers are busy for long, so jobs that were claimed ahead would have to wait."""
    project.configure(YAML, HANDLERS)
    project.add_many("t.quick", 200)
    gated_ids = [project.add("t.gated") for _ in range(2)]
    project.add_many("t.quick", 200)
    tick = project.start()
    until(lambda: len(project.effects("start")) == 2)
    with rivals(project):
        until(lambda: len(project.times_ran()) == 400, 15)
    assert tick.process.poll() is None
    project.open()
    assert tick.wait() == 0
    assert set(project.times_ran().values()) == {1}
    assert project.times_ran("end") == dict.fromkeys(gated_ids, 1)
    assert project.value("SELECT max(failures + losses + interruptions) FROM cronjobs_jobs") == 0


@pytest.mark.parametrize(
    ("reason", "outcome"), [("shutdown", Released), ("lease lost", Released), ("cancelled", CancelledByRequest)]
)
def test_a_worker_does_not_begin_what_was_asked_to_stop_before(reason: str, outcome: type, tmp_path: Path) -> None:
    """The loop may be in a transaction when a worker comes free; the lease may be another's by then."""
    ran: list[int] = []
    gate = threading.Event()

    def handler(n: int) -> None:
        ran.append(n)
        gate.wait(60)

    workers = Workers(1, WorkerContext(Settings(tmp_path / "cronjobs.yaml", tmp_path)), SYSTEM)
    job_type = JobType("t", timedelta(seconds=20), RetryPolicy(), Registration("t", handler))
    first, second = (Attempt(Job(n, "t", {"n": n}, locked_by="test"), job_type, job_type.timeout) for n in (1, 2))
    workers.hand(first)
    workers.hand(second)
    until(lambda: ran)
    second.stop.set(reason)
    gate.set()
    ended = [workers.ended.get(timeout=60) for _ in range(2)]
    assert [end.attempt is attempt for end, attempt in zip(ended, (first, second), strict=True) if end] == [True, True]
    assert ended[1] is not None
    assert isinstance(ended[1].finished.outcome, outcome)
    assert ran == [1]


@pytest.mark.slow
def test_a_deaf_handler_does_not_hold_the_tick_beyond_the_grace_nor_runs_twice_at_once(
    project: Project,
) -> None:
    tick, (deaf_id, finishes_id) = working(project, "s.deaf", "s.finishes")
    sent = SYSTEM.monotonic()
    tick.send(signal.SIGTERM)
    with rivals(project) as others:
        assert tick.wait() == 143
    assert tick.gone_at is not None
    assert tick.gone_at - sent <= 1 + 1.5
    assert others
    until(project.lease_ended, 5)
    assert project.tick().wait() == 0
    assert project.outcomes(deaf_id) == ["interrupted", "succeeded"]
    assert project.job(deaf_id)["failures"] == 0
    assert project.outcomes(finishes_id) == ["succeeded"]
    last_beat = max(effect.at for effect in project.effects("beat"))
    [again] = project.effects("ran")
    assert again.at > last_beat


@pytest.mark.slow
def test_between_the_last_write_and_the_end_of_the_process_nobody_else_begins(project: Project) -> None:
    """The code runs on until the very end, and its lease is cut before: not to nothing."""
    patch = project.folder / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(
        "import os, time\nend = os._exit\nos._exit = lambda code: (time.sleep(1.2), end(code))\n"
    )
    project.configure(YAML, HANDLERS)
    deaf_id = project.add("s.deaf")
    tick = project.start(env={"PYTHONPATH": str(patch)})
    until(lambda: project.effects("start"))
    tick.send(signal.SIGTERM)
    until(lambda: project.outcomes(deaf_id) == ["interrupted"])
    with rivals(project), rivals(project):
        assert tick.wait() in (143, -signal.SIGALRM)
    until(project.lease_ended, 5)
    assert project.tick().wait() == 0
    [again] = project.effects("ran")
    assert again.at > max(effect.at for effect in project.effects("beat"))


@pytest.mark.slow
def test_a_second_signal_ends_the_tick_at_once(project: Project) -> None:
    tick, (deaf_id, polite_id) = working(project, "s.deaf", "s.polite", yaml="run: {workers: 2, shutdown_grace: 30s}\n")
    tick.send(signal.SIGTERM)
    until(lambda: project.effects("told"))
    sent = SYSTEM.monotonic()
    tick.send(signal.SIGTERM)
    assert tick.wait() == 143
    assert tick.gone_at is not None
    assert tick.gone_at - sent < 1
    assert project.outcomes(deaf_id) == ["interrupted"]
    assert project.outcomes(polite_id) == ["interrupted"]
    until(project.lease_ended, 5)
    assert project.tick().wait() == 0
    assert project.times_ran() == {deaf_id: 1, polite_id: 1}


@pytest.mark.slow
def test_a_signal_to_a_lingering_tick_and_to_its_full_tick_is_one_signal(sqlite_project: Project) -> None:
    """systemd signals every process of a service, and the lingering tick passes its signal on."""
    yaml = "run: {linger: 100ms, shutdown_grace: 30s}\n"
    sqlite_project.configure(yaml, HANDLERS)
    assert sqlite_project.tick().wait() == 0
    tick, [job_id] = working(sqlite_project, "s.finishes", yaml=yaml)
    full = sqlite_project.value("SELECT pid FROM cronjobs_ticks WHERE ended IS NULL")
    assert full != tick.pid
    stop_and_go([full, tick.pid], signal.SIGTERM)
    assert tick.wait() == 143
    assert sqlite_project.outcomes(job_id) == ["succeeded"]


def test_the_fourth_interruption_in_a_row_is_charged(sqlite_project: Project) -> None:
    """Or a job that is longer than every deploy would never end."""
    tick, [job_id] = working(sqlite_project, "s.polite")
    tick.send(signal.SIGTERM)
    tick.wait()
    sqlite_project.sql(f"UPDATE cronjobs_jobs SET interruptions = 3, attempts = 0 WHERE id = {job_id}")
    sqlite_project.sql("DELETE FROM cronjobs_job_runs")
    (sqlite_project.folder / "effects").write_text("")
    tick = sqlite_project.start()
    until(lambda: sqlite_project.effects("start"))
    tick.send(signal.SIGTERM)
    assert tick.wait() == 143
    assert (sqlite_project.job(job_id)["status"], sqlite_project.job(job_id)["failures"]) == ("failed", 1)


@pytest.mark.slow
def test_a_signal_in_a_slow_import_ends_the_tick_within_the_grace_and_spends_no_attempt(
    sqlite_project: Project,
) -> None:
    sqlite_project.configure(
        YAML.replace("1s", "500ms"), "say_so = open(os.path.join(HERE, 'importing'), 'w')\ntime.sleep(60)\n"
    )
    job_id = sqlite_project.add("t.quick")
    tick = sqlite_project.start()
    until((sqlite_project.folder / "importing").exists)
    sent = SYSTEM.monotonic()
    tick.send(signal.SIGTERM)
    assert tick.wait() == -signal.SIGALRM
    assert tick.gone_at is not None
    assert tick.gone_at - sent < 2.5
    assert sqlite_project.job(job_id)["attempts"] == 0
    [(finished_at, did)] = sqlite_project.sql("SELECT finished_at, did FROM cronjobs_ticks")
    assert finished_at is None
    assert '"importing":true' in did


def interrupted_again(tick: Tick) -> bool:
    tick.send(signal.SIGINT)
    return tick.process.poll() is not None


def test_two_signals_in_a_slow_import_end_it_at_once(sqlite_project: Project) -> None:
    sqlite_project.configure(YAML, "say_so = open(os.path.join(HERE, 'importing'), 'w')\ntime.sleep(60)\n")
    job_id = sqlite_project.add("t.quick")
    tick = sqlite_project.start()
    until((sqlite_project.folder / "importing").exists)
    tick.send(signal.SIGINT)
    until(partial(interrupted_again, tick))
    assert tick.wait() == -signal.SIGINT
    assert sqlite_project.job(job_id)["attempts"] == 0


def reached(tick: Tick, moment: Callable[[Tick], object]) -> bool:
    return bool(moment(tick)) or tick.process.poll() is not None


@pytest.mark.slow
def test_at_whatever_moment_the_signal_comes_nothing_is_lost_or_doubled(project: Project) -> None:
    """From the first instruction to the last: ticks that are signalled later and later, until all work is done."""
    project.configure(YAML, HANDLERS)
    project.add_many("t.quick", 60)
    moments: list[Callable[[Tick], object]] = [
        lambda tick: True,
        lambda tick: SYSTEM.monotonic() > tick.started + 0.2,
        lambda tick: SYSTEM.monotonic() > tick.started + 0.35,
        lambda tick: SYSTEM.monotonic() > tick.started + 0.45,
        lambda tick: project.times_ran(),
        lambda tick: len(project.times_ran()) > 20,
        lambda tick: len(project.times_ran()) == 60,
    ]
    for number, moment in zip(itertools.cycle(SIGNALS), moments, strict=False):
        tick = project.start(fresh=True)
        until(partial(reached, tick, moment))
        tick.send(number)
        status = tick.wait()
        importing = number == signal.SIGINT and "KeyboardInterrupt" in tick.stderr  # Python's own answer
        assert status in (128 + number, -number, 0) or (importing and status == 1)
        assert importing or "Traceback" not in tick.stderr
    assert project.tick().wait() == 0
    assert project.statuses() == {"succeeded": 60}
    assert len(project.times_ran()) == 60
    assert set(project.times_ran().values()) == {1}
    assert project.value("SELECT max(losses + failures + interruptions) FROM cronjobs_jobs") == 0
