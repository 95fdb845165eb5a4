"""Flows: jobs from their claim to their end, in a tick or in a separate process."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

from engine.crash import crash_handlers
from engine.crash.crash_judge import APART, Case, Leave
from engine.crash.crash_registry import HOUR, flow
from engine.crash.crash_world import Other, World

# --- jobs -------------------------------------------------------------------------------------------------------------


def jobs_of_all_kinds(world: World) -> None:
    world.configure(workers=3)
    for name in ("ok", "flaky", "gives_up", "snoozes", "ok", "ok", "flaky"):
        world.add(f"crash.{name}")


@flow("claim, run, finish", seed=jobs_of_all_kinds, floor=30)
def work(world: World) -> None:
    world.tick()


def one_after_another(world: World) -> None:
    world.configure(workers=1)
    for name in ("flaky", "ok", "snoozes", "gives_up"):
        world.add(f"crash.{name}", idempotency_key=name)


@flow("claim, run, finish, one at a time", seed=one_after_another, floor=30)
def work_in_order(world: World) -> None:
    world.tick()


def a_bad_value(world: World) -> None:
    world.configure(workers=3)
    for name in ("ok", "poison", "ok"):
        world.add(f"crash.{name}")
    if world.is_sqlite:
        world.project.sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON cronjobs_job_runs WHEN NEW.error = 'refused' "
            "BEGIN SELECT RAISE(ABORT, 'bad value'); END"
        )


def poisoned(world: World) -> None:
    """Texts are cleaned before they get here; this one slips through."""
    from cronjobs.engine.rules import ending

    bad, stored = "refused" if world.is_sqlite else "\x00", ending._stored
    ending._stored = lambda text: bad if text and "POISON" in text else stored(text)


@flow("a value that the database refuses", seed=a_bad_value, before=poisoned, floor=20)
def bad_value(world: World) -> None:
    world.tick()


def command_saying(*words: str) -> str:
    said = "; ".join(f"echo {word} $CRONJOBS_JOB_ID $CRONJOBS_ATTEMPT {APART} >> $CRASH_EFFECTS" for word in words)
    return json.dumps(["/bin/sh", "-c", said])


def a_command(world: World) -> None:
    world.configure(f"job_types:\n  crash.command: {{command: {command_saying('begun', 'done')}, timeout: 2s}}\n")
    world.add("crash.command")


@flow("a declared command", seed=a_command, apart=True, floor=20)
def command(world: World) -> None:
    world.tick()


LONG = f"job_types:\n  crash.long: {{command: {command_saying('begun', 'done')}, timeout: 20m}}\n"


def a_long_job(world: World) -> None:
    world.configure(LONG)
    world.add("crash.long")


# "released": on a busy machine the process may start later than a tick waits for it, and the job is given back.
@flow(
    "a long job is handed over",
    seed=a_long_job,
    rest=World.rest_in_real_time,
    apart=True,
    leave=Leave(released=True),
    floor=20,
)
def hand_over(world: World) -> None:
    world.tick(world.now, budget_s=30)


def a_long_job_begun(world: World) -> None:
    world.configure(LONG)
    now = world.instant(world.now)
    lease = {"locked_by": "a tick", "locked_until": world.instant(world.now + HOUR), "started_at": now}
    world.add("crash.long", status="running", attempts=1, **lease)


@flow("a long job adopts its lease", seed=a_long_job_begun, rest=World.rest_in_real_time, apart=True, floor=12)
def adopt(world: World) -> None:
    """The process that the tick has started; here it is this one."""
    from cronjobs.engine.rules.recovery_policy import AttemptPolicy
    from cronjobs.engine.tick import long_job_process, long_jobs
    from cronjobs.model import RetryPolicy

    told = long_jobs.Handover(
        config=str(world.folder / "cronjobs.yaml"),
        database=world.url,
        job_id=1,
        job_type="crash.long",
        attempt=1,
        locked_by="a tick",
        timeout_s=1200,
        is_command=True,
        max_memory=None,
        success=[0],
        permanent=[],
        row_policy=AttemptPolicy(RetryPolicy()).text(),
    )
    request = world.folder / "handover"
    request.write_bytes(told.encode())
    os.dup2(os.open(request, os.O_RDONLY), 0)
    sys.stdin = os.fdopen(0)
    answer, says = os.pipe()
    sys.argv = ["long", str(says)]
    leave = os._exit
    os._exit = sys.exit  # type: ignore[assignment]
    with suppress(SystemExit):
        long_job_process.main()
    os._exit = leave
    assert os.read(answer, 100) == b"adopted\n"


def expired_leases(world: World) -> None:
    """Runners died: with nothing said about their attempt, with a time-out or an interruption said, once too often."""
    from cronjobs.engine.rules.recovery_policy import AttemptPolicy
    from cronjobs.model import RetryPolicy

    world.configure(workers=1)
    past = world.instant(-timedelta(seconds=1))
    held = {"status": "running", "attempts": 2, "locked_by": "gone", "locked_until": past, "started_at": past}
    kinds: list[tuple[str, str | None, dict[str, Any]]] = [
        ("crash.ok", None, {}),
        ("crash.ok", "timed_out", {}),
        ("crash.ok", "interrupted", {}),
        ("crash.unknown", None, {"losses": 2, "policy": AttemptPolicy(RetryPolicy(), max_losses=3).text()}),
        ("crash.ok", "timed_out", {"max_attempts": 1}),
    ]
    for job_type, outcome, counts in kinds:
        job_id = world.add(job_type, **(held | counts))
        run = f"'{past}', '{past}', 'gone'" if not world.is_sqlite else f"{past}, {past}, 'gone'"
        outcomes = ["failed"] if outcome is None else ["failed", outcome]
        for attempt, said in enumerate(outcomes, 1):
            world.project.sql(
                "INSERT INTO cronjobs_job_runs (job_id, attempt, outcome, started_at, finished_at, runner) "
                f"VALUES ({job_id}, {attempt}, '{said}', {run})"
            )


def recovered(case: Case) -> Iterator[str]:
    wanted = {
        1: ("succeeded", 0, 1, ["failed", "lost", "succeeded"]),
        2: ("succeeded", 1, 0, ["failed", "timed_out", "succeeded"]),
        3: ("succeeded", 0, 0, ["failed", "interrupted", "succeeded"]),
        4: ("dead", 0, 3, ["failed", "lost"]),
        5: ("dead", 1, 0, ["failed", "timed_out"]),
    }
    lost_again = case.died and any(did.what == "begun" and did.pid == case.pid for did in case.did)
    for job_id, (status, failures, losses, outcomes) in wanted.items():
        job = case.rest.jobs[job_id]
        told = [run["outcome"] for (id_, _), run in sorted(case.rest.runs.items()) if id_ == job_id]
        if not lost_again and told[2:3] != ["lost"] and told != outcomes:
            yield f"job {job_id} has the history {told}, not {outcomes}"
        extra = told.count("lost") - outcomes.count("lost")
        if (job["status"], job["failures"], job["losses"]) != (status, failures, losses + extra):
            yield f"job {job_id} is {job['status']} with {job['failures']} failures and {job['losses']} losses"


@flow("recovery of expired leases", seed=expired_leases, check=recovered, floor=12)
def recover(world: World) -> None:
    world.tick(only="crash.none")


# --- time, cancelling, stopping ---------------------------------------------------------------------------------------


def a_job_that_hangs(world: World) -> None:
    world.configure(workers=2)
    world.add("crash.hangs")
    world.add("crash.later", '{"by_s": 4}')


def timed_out(case: Case) -> Iterator[str]:
    job = next(job for job in case.rest.jobs.values() if job["job_type"] == "crash.hangs")
    first, killed = case.rest.runs[job["id"], 1]["outcome"], case.killed.jobs[job["id"]]
    then = case.killed.runs.get((job["id"], 1))
    wanted = then["outcome"] if then else "lost" if killed["attempts"] else "succeeded"
    if first != wanted or (not case.died and first != "timed_out"):
        yield f"its first attempt is {first}, not {wanted}"
    if (job["status"], job["failures"], job["losses"]) != ("succeeded", first == "timed_out", first == "lost"):
        yield f"it is {job['status']} with {job['failures']} failures and {job['losses']} losses"


def misbehaving(world: World) -> None:
    crash_handlers.in_first_attempt = lambda ctx: None


@flow("a time-out and the last transaction", seed=a_job_that_hangs, before=misbehaving, check=timed_out, floor=20)
def time_out(world: World) -> None:
    assert world.tick(budget_s=60).stuck


def a_job_to_cancel(world: World) -> None:
    world.configure(workers=2, lease="12s")
    world.add("crash.obeys")
    world.add("crash.later", '{"by_s": 4}')  # a third of the lease: beyond the next heartbeat


def cancels_it(world: World) -> None:
    operator, asked = Other(lambda _: world.command("jobs", "cancel", "1")), threading.Event()

    def ask(_: Any) -> None:
        operator.go()
        asked.set()

    crash_handlers.in_first_attempt = ask
    crash_handlers.before_later = asked.wait


def cancelled(case: Case) -> Iterator[str]:
    asked = case.killed.audited("cancel")
    job = case.rest.jobs[1]
    if asked and job["status"] != "cancelled":
        yield f"an operator cancelled it, and it is {job['status']} after {job['attempts']} attempts"
    if not asked and job["status"] != "succeeded":
        yield f"nobody cancelled it, and it is {job['status']}"


@flow(
    "a renewal that brings a cancel request",
    desk=True,
    seed=a_job_to_cancel,
    before=cancels_it,
    check=cancelled,
    floor=15,
)
def cancel_running(world: World) -> None:
    world.tick(budget_s=60)


def jobs_for_a_shutdown(world: World) -> None:
    world.configure(workers=2)
    for _ in range(4):
        world.add("crash.ok")
    for _ in range(2):
        world.add("crash.obeys")
    for _ in range(3):
        world.add("crash.ok")


def sigterm(world: World) -> None:
    crash_handlers.in_first_attempt = lambda ctx: os.kill(os.getpid(), signal.SIGTERM)


def shut_down(case: Case) -> Iterator[str]:
    if not case.died and any(job["status"] == "running" for job in case.killed.jobs.values()):
        yield "the shutdown left a job running"
    for job_id, job in case.rest.jobs.items():
        told = [run["outcome"] for (id_, _), run in sorted(case.rest.runs.items()) if id_ == job_id]
        if job["status"] != "succeeded" or set(told[:-1]) - {"interrupted", "lost"} or job["failures"]:
            yield f"job {job_id} is {job['status']} with the history {told}"
        if job["losses"] != told.count("lost"):
            yield f"job {job_id} has {job['losses']} losses with the history {told}"


@flow("a shutdown", seed=jobs_for_a_shutdown, before=sigterm, check=shut_down, leave=Leave(released=True), floor=20)
def shutdown(world: World) -> None:
    world.tick()


def a_job_for_two(world: World) -> None:
    world.configure(workers=1)
    world.add("crash.meanwhile")


def taken_over(world: World) -> None:
    """Time passes, the lease ends, another runner does the job while this one still works on it."""
    other = Other(lambda _: world.rest())
    crash_handlers.in_first_attempt = lambda ctx: other.go()


def taken_over_and_at_work(world: World) -> None:
    """The same, and the other runner is in the middle of it until this one is done."""

    def act(self: Other) -> None:
        def in_second_attempt() -> None:
            self.say()
            self.until_let_go()

        crash_handlers.in_second_attempt = in_second_attempt
        world.rest()

    world.other = other = Other(act)
    crash_handlers.in_first_attempt = lambda ctx: other.go()


def overtaken(case: Case) -> Iterator[str]:
    second = any(did.attempt == 2 for did in case.did)
    told = [run["outcome"] for _, run in sorted(case.rest.runs.items())]
    job = case.rest.jobs[1]
    if second and told != ["lost", "succeeded"]:
        yield f"it was taken over, and its history is {told}"
    if second and (job["result"], job["losses"]) != ({"attempt": 2}, 1):
        yield f"it was taken over, and has the result {job['result']} and {job['losses']} losses"


@flow(
    "a runner that was overtaken",
    seed=a_job_for_two,
    before=taken_over,
    check=overtaken,
    leave=Leave(overtaken=True),
    floor=12,
)
def stale(world: World) -> None:
    world.tick(budget_s=60)


@flow(
    "a runner that was overtaken by one still at work",
    seed=a_job_for_two,
    before=taken_over_and_at_work,
    check=overtaken,
    leave=Leave(overtaken=True),
    floor=12,
)
def stale_beside_another(world: World) -> None:
    world.tick(budget_s=60)
    assert world.other is not None
    world.other.let_go()
