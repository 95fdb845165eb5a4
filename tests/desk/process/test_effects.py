"""The effects ledger: how often a side effect happens if processes die at any moment, on both databases."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import pytest
from support.commands import until
from support.ticking import WITHOUT_WATCHDOG, Project, patched

HANDLERS = '''
NOW = RetryPolicy(base="1s", jitter=0)
GIVEN = {"again": {}, "skip": {"on_unknown": "skip"}, "stop": {"on_unknown": "stop"}}


def die():
    os.kill(os.getpid(), 9)


def reach(place, ctx, at):
    """The kill point: the first attempt ends here, by kill -9, when the job was told to."""
    if place == at and ctx.attempt == 1:
        die()


@job("e.mail", timeout="20s", retry=NOW)
def mail(ctx, on_unknown="again", at=None):
    reach("before", ctx, at)
    with ctx.effect(("mail", ctx.job_id), **GIVEN[on_unknown]) as effect:
        reach("begun", ctx, at)
        if not effect.done:
            say("sent" if not effect.unknown else "sent-unknown", ctx)
            effect.result = {"by": ctx.attempt}
            reach("sent", ctx, at)
    reach("recorded", ctx, at)
    return {"result": effect.result, "unknown": effect.unknown}


@job("e.steps", timeout="20s", retry=NOW)
def steps(ctx, at=None):
    results = []
    for name in ("one", "two", "three"):
        with ctx.step(name) as step:
            if not step.done:
                say(name, ctx)
                step.result = f"{name} by {ctx.attempt}"
                reach(name, ctx, at)
        results.append(step.result)
        reach(f"after-{name}", ctx, at)
    return results


@job("e.async", timeout="20s", retry=NOW)
async def in_async(ctx, at=None):
    import asyncio

    with ctx.effect("async") as effect:
        if not effect.done:
            await asyncio.sleep(0.01)
            say("sent", ctx)
            reach("sent", ctx, at)
            effect.result = 1
    return effect.unknown


@job("e.gated", timeout="20s", retry=NOW)
def gated_effect(ctx, where):
    """The first attempt waits for the gate, before its effect or inside it; "both": so does the second, for another."""
    if (ctx.attempt == 1 and where == "before") or where == "both":
        say("start", ctx)
        wait_for("gate" if ctx.attempt == 1 else "gate-2")
    with ctx.effect("gated") as effect:
        if not effect.done:
            if ctx.attempt == 1 and where == "inside":
                say("start", ctx)
                wait_for("gate")
            say("sent", ctx)


@job("e.apart", timeout="20s", retry=NOW, isolation="process")
def apart(ctx, on_unknown):
    """In a process of its own, which its first attempt kills in the middle of the effect."""
    with ctx.effect("apart", on_unknown=on_unknown) as effect:
        if not effect.done:
            say("sent", ctx)
            reach("sent", ctx, "sent")
'''

# A frozen runner then lives on when it wakes: what stands behind the watchdog is looked at here.
# Then it learns that its lease is lost from the ledger, not from its own renewal.
WITHOUT_HEARTBEAT = (
    WITHOUT_WATCHDOG
    + """
from cronjobs.engine.rules import lease
assert lease.heartbeat_s
lease.heartbeat_s = lambda lease_s: 1000.0
"""
)

SHORT_LEASE = "run: {workers: 2, lease: 4s}\n"


# --- real ticks, killed at every point --------------------------------------------------------------------------------


def run_to_the_end(project: Project, *, killed: bool) -> None:
    tick = project.tick()
    assert tick.wait() == (-signal.SIGKILL if killed else tick.wait())
    if killed:
        project.let_leases_end()
        project.tick()


def recorded(project: Project) -> dict[str, str]:
    return dict(project.sql("SELECT key, state FROM cronjobs_effects"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on_unknown", "at", "sent", "unknown", "state", "status"),
    [
        # sent: the effects that were done; unknown: whether the second attempt found the outcome unknown
        ("again", None, ["sent"], False, "recorded", "succeeded"),
        ("again", "before", ["sent"], False, "recorded", "succeeded"),
        ("again", "begun", ["sent-unknown"], True, "recorded", "succeeded"),
        ("again", "sent", ["sent", "sent-unknown"], True, "recorded", "succeeded"),
        ("again", "recorded", ["sent"], False, "recorded", "succeeded"),
        ("skip", "before", ["sent"], False, "recorded", "succeeded"),
        ("skip", "begun", [], True, "skipped", "succeeded"),
        ("skip", "sent", ["sent"], True, "skipped", "succeeded"),
        ("skip", "recorded", ["sent"], False, "recorded", "succeeded"),
        ("stop", "before", ["sent"], False, "recorded", "succeeded"),
        ("stop", "begun", [], None, "stopped", "dead"),
        ("stop", "sent", ["sent"], None, "stopped", "dead"),
        ("stop", "recorded", ["sent"], False, "recorded", "succeeded"),
    ],
)
def test_a_runner_killed_at_any_point_leaves_effects_as_often_as_they_say(
    project: Project, on_unknown: str, at: str | None, sent: list[str], unknown: bool | None, state: str, status: str
) -> None:
    project.configure(SHORT_LEASE, HANDLERS)
    payload = f'{{"on_unknown": "{on_unknown}"' + (f', "at": "{at}"}}' if at else "}")
    job_id = project.add("e.mail", payload)
    run_to_the_end(project, killed=at is not None)
    assert [effect.what for effect in project.effects()] == sent
    assert recorded(project) == {f"mail:{job_id}": state}
    job = project.job(job_id)
    assert job["status"] == status, job
    if unknown is not None:
        assert ('"unknown": true' in as_json(job["result"])) == unknown


def as_json(result: Any) -> str:
    return json.dumps(json.loads(result) if isinstance(result, str) else result)


@pytest.mark.slow
def test_a_job_stopped_by_an_effect_says_how_to_settle_it(project: Project) -> None:
    project.configure(SHORT_LEASE, HANDLERS)
    job_id = project.add("e.mail", '{"on_unknown": "stop", "at": "sent"}')
    run_to_the_end(project, killed=True)
    job = project.job(job_id)
    assert (job["error_type"], job["failures"]) == ("EffectUnknown", 1)
    assert f"cronjobs effects settle mail:{job_id} done (or not-done)" in job["last_error"]
    told = cli(project, "jobs", "retry", str(job_id))
    assert f"Nobody knows whether its effect mail:{job_id} happened" in told
    assert f"then run: cronjobs effects settle mail:{job_id} done (or not-done)" in told


@pytest.mark.either
@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "done"),
    [
        ("one", ["one", "one", "two", "three"]),  # done, and not recorded: done again
        ("after-one", ["one", "two", "three"]),
        ("two", ["one", "two", "two", "three"]),
        ("after-three", ["one", "two", "three"]),
    ],
)
def test_work_of_several_steps_goes_on_after_the_last_recorded_one(project: Project, at: str, done: list[str]) -> None:
    project.configure(SHORT_LEASE, HANDLERS)
    job_id = project.add("e.steps", f'{{"at": "{at}"}}')
    assert project.tick().wait() == -signal.SIGKILL
    other_id = project.add("e.steps")
    project.let_leases_end()
    project.tick()
    assert [effect.what for effect in project.effects() if effect.job_id == job_id] == done
    assert [effect.what for effect in project.effects() if effect.job_id == other_id] == ["one", "two", "three"]
    result = project.job(job_id)["result"]
    results = json.loads(result) if isinstance(result, str) else result
    firsts = {"one": 0, "after-one": 1, "two": 1, "after-three": 3}[at]  # recorded by the attempt that was killed
    assert results == [f"{name} by {1 if n < firsts else 2}" for n, name in enumerate(("one", "two", "three"))]


@pytest.mark.either
@pytest.mark.slow
@pytest.mark.parametrize(("at", "times"), [("sent", 2), (None, 1)])
def test_effects_work_in_an_async_handler(project: Project, at: str | None, times: int) -> None:
    project.configure(SHORT_LEASE, HANDLERS)
    job_id = project.add("e.async", f'{{"at": "{at}"}}' if at else "{}")
    run_to_the_end(project, killed=at is not None)
    assert project.times_ran("sent") == {job_id: times}
    assert project.job(job_id)["status"] == "succeeded"
    assert recorded(project) == {"async": "recorded"}


def test_run_in_the_foreground_keeps_the_same_ledger(project: Project) -> None:
    project.configure(SHORT_LEASE, HANDLERS)
    job_id = project.add("e.mail")
    cli(project, "run", str(job_id))
    assert recorded(project) == {f"mail:{job_id}": "recorded"}
    assert project.times_ran("sent") == {job_id: 1}


@pytest.mark.either
@pytest.mark.slow
@pytest.mark.parametrize(("verdict", "sent"), [("done", ["sent"]), ("not-done", ["sent", "sent"])])
def test_a_settled_effect_lets_its_job_go_on(project: Project, verdict: str, sent: list[str]) -> None:
    project.configure(SHORT_LEASE, HANDLERS)
    job_id = project.add("e.mail", '{"on_unknown": "stop", "at": "sent"}')
    run_to_the_end(project, killed=True)
    assert f"job {job_id} died because of this effect" in cli(project, "effects", "settle", f"mail:{job_id}", verdict)
    assert "Nobody knows" not in cli(project, "jobs", "retry", str(job_id))
    assert project.tick().wait() == 0
    assert [effect.what for effect in project.effects()] == sent
    assert project.job(job_id)["status"] == "succeeded"
    assert recorded(project) == {f"mail:{job_id}": "recorded"}


def cli(project: Project, *words: str) -> str:
    tick = project.start(argv=[sys.executable, "-m", "cronjobs", *words], cwd=project.folder)
    assert tick.wait() == 0, tick.stderr
    return tick.stdout


@pytest.mark.slow
def test_a_job_whose_effect_another_one_is_doing_comes_back_for_it_uncharged(project: Project) -> None:
    project.configure("run: {workers: 2}\n", HANDLERS)
    first_id = project.add("e.gated", '{"where": "inside"}', priority=1)
    tick = project.start()
    until(lambda: project.effects("start"))
    other_id = project.add("e.gated", '{"where": "inside"}')
    until(lambda: project.outcomes(other_id) == ["snoozed"])
    assert (project.job(other_id)["status"], project.job(other_id)["failures"]) == ("queued", 0)
    project.open()
    assert tick.wait() == 0
    project.make_due()
    assert project.tick().wait() == 0
    assert [project.outcomes(job_id) for job_id in (first_id, other_id)] == [["succeeded"], ["snoozed", "succeeded"]]
    assert project.times_ran("sent") == {first_id: 1}


@pytest.mark.either
@pytest.mark.slow
@pytest.mark.parametrize(("on_unknown", "times", "status"), [("again", 2, "succeeded"), ("stop", 1, "dead")])
def test_a_handler_in_a_process_of_its_own_keeps_the_same_ledger(
    project: Project, on_unknown: str, times: int, status: str
) -> None:
    project.configure(SHORT_LEASE, HANDLERS)
    job_id = project.add("e.apart", f'{{"on_unknown": "{on_unknown}"}}')
    project.tick()
    project.make_due()
    project.tick()
    assert project.times_ran("sent") == {job_id: times}
    assert project.job(job_id)["status"] == status


# --- a runner that was away -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_frozen_runner_that_wakes_after_another_did_the_effect_does_not_repeat_it(project: Project) -> None:
    project.configure(SHORT_LEASE, HANDLERS)
    job_id = project.add("e.gated", '{"where": "before"}')
    frozen = project.start(**patched(project, WITHOUT_WATCHDOG))
    until(lambda: project.effects("start"))
    frozen.send(signal.SIGSTOP)
    until(project.lease_ended)
    project.tick()
    assert project.times_ran("sent") == {job_id: 1}
    project.open()
    frozen.send(signal.SIGCONT)
    frozen.wait()
    assert project.times_ran("sent") == {job_id: 1}
    assert [effect.attempt for effect in project.effects("sent")] == [2]
    assert project.job(job_id)["status"] == "succeeded"


@pytest.mark.slow
def test_a_frozen_runner_that_wakes_before_another_begins_the_effect_leaves_it_to_that_one(project: Project) -> None:
    project.configure(SHORT_LEASE, HANDLERS)
    job_id = project.add("e.gated", '{"where": "both"}')
    frozen = project.start(**patched(project, WITHOUT_HEARTBEAT))
    until(lambda: project.effects("start"))
    frozen.send(signal.SIGSTOP)
    until(project.lease_ended)
    other = project.start()
    until(lambda: len(project.effects("start")) == 2)
    project.open()
    frozen.send(signal.SIGCONT)
    frozen.wait()
    assert project.effects("sent") == []
    project.open("gate-2")
    assert other.wait() == 0
    assert [effect.attempt for effect in project.effects("sent")] == [2]
    assert project.job(job_id)["status"] == "succeeded"


def test_no_transaction_is_open_while_an_effect_is_under_way(postgres_project: Project) -> None:
    project = postgres_project.configure(SHORT_LEASE, HANDLERS)
    project.add("e.gated", '{"where": "inside"}')
    tick = project.start()
    until(lambda: project.effects("start"))
    open_ones = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'cronjobs' AND xact_start < now() - %s"
    assert recorded(project) == {"gated": "begun"}
    until(lambda: project.value(open_ones.replace("%s", "interval '0.1 s'")) == 0)
    locks = (
        "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
        "WHERE a.application_name = 'cronjobs' AND a.state LIKE 'idle in%'"
    )
    until(lambda: project.value(locks) == 0)  # but for the moments in which the tick renews the lease
    project.open()
    assert tick.wait() == 0
    assert recorded(project) == {"gated": "recorded"}
