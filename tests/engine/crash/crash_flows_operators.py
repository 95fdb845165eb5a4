"""Flows: operators' commands on jobs and schedules."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cronjobs.engine.execution.output import divert_streams
from cronjobs.engine.host.identity import Identity
from engine.crash.crash_judge import FINAL, Case, Leave, Snapshot
from engine.crash.crash_registry import HOUR, MINUTE, audited_once, flow
from engine.crash.crash_world import World


def dead_and_waiting(world: World) -> None:
    world.configure(workers=1)
    world.add("crash.gives_up")
    world.add("crash.flaky")
    world.tick()


def retried(case: Case) -> Iterator[str]:
    for name, snapshot in (("as it died", case.killed), ("at rest", case.rest)):
        told = told_of(snapshot, "retry")
        queued = {job_id for job_id, job in snapshot.jobs.items() if job["status"] == "queued"}
        if name == "as it died" and queued != told:
            yield f"{name}: {sorted(queued)} are queued, and the audit trail says {sorted(told)}"
    if told_of(case.rest, "retry") != {1, 2}:
        yield f"the audit trail says {sorted(told_of(case.rest, 'retry'))}"
    if case.done("done")[1] != 2:
        yield f"the dead job was done {case.done('done')[1]} times in all"
    if case.rest.jobs[1]["status"] != "dead" or case.rest.jobs[2]["status"] != "succeeded":
        yield "they did not end as they must"


def told_of(snapshot: Snapshot, action: str) -> set[int]:
    """The jobs of which the audit trail says that it was done to them."""
    rows = snapshot.audited(action)
    named = {int(row["subject"].removeprefix("job ")) for row in rows if row["subject"].startswith("job ")}
    return named.union(*(row["detail"]["ids"] for row in rows if row["subject"] == "jobs"))


@flow("jobs retry", desk=True, seed=dead_and_waiting, check=retried, again=True, leave=Leave(reopened=True), floor=12)
def retry(world: World) -> None:
    world.command("jobs", "retry", "1", "2", "--why", "mended")


@flow(
    "jobs retry of all",
    desk=True,
    seed=dead_and_waiting,
    check=retried,
    again=True,
    leave=Leave(reopened=True),
    floor=10,
)
def retry_all(world: World) -> None:
    world.command("jobs", "retry", "--all", "--yes")


def held_by_the_dead(world: World) -> None:
    """Two jobs whose runner is gone; their leases have an hour left."""
    world.configure()
    says, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(told, str(Identity.here()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    gone, until = os.read(says, 1000).decode(), world.instant(world.now + HOUR)
    for _ in range(2):
        begun = {"status": "running", "attempts": 1, "started_at": world.instant()}
        world.add("crash.ok", **begun, locked_by=gone, locked_until=until)


def released(case: Case) -> Iterator[str]:
    told = told_of(case.killed, "release")
    queued = {job_id for job_id, job in case.killed.jobs.items() if job["status"] == "queued"}
    if told != queued:
        yield f"{sorted(queued)} are queued, and the audit trail says {sorted(told)}"
    if told_of(case.rest, "release") != {1, 2}:
        yield f"the audit trail says {sorted(told_of(case.rest, 'release'))}"
    for job_id, job in case.rest.jobs.items():
        if (job["losses"], job["attempts"]) != (1, 2):
            yield f"job {job_id} has {job['losses']} losses in {job['attempts']} attempts"


@flow("jobs release", desk=True, seed=held_by_the_dead, check=released, again=True, floor=10)
def release(world: World) -> None:
    world.command("jobs", "release", "1", "2")


def an_unknown_effect(world: World) -> None:
    world.configure()
    world.add("crash.effect", '{"on_unknown": "stop"}')
    begun = world.instant() if world.is_sqlite else f"'{world.instant()}'"
    world.project.sql(f"INSERT INTO cronjobs_effects (key, begun_at) VALUES ('mail:1', {begun})")
    world.tick()


def settled(case: Case) -> Iterator[str]:
    for name, snapshot in (("as it died", case.killed), ("at rest", case.rest)):
        [effect] = snapshot["effects"]
        if (effect["state"] == "recorded") != bool(snapshot.audited("settle")):
            yield f"{name}: the effect is {effect['state']}, and the audit trail has {snapshot.audited('settle')}"
    yield from audited_once(case, "settle")
    if case.start.jobs[1]["status"] != "dead" or case.rest.jobs[1]["status"] != "succeeded" or case.done("sent"):
        yield f"the job is {case.rest.jobs[1]['status']}, and did it {case.done('sent')[1]} times"


@flow(
    "effects settle", desk=True, seed=an_unknown_effect, check=settled, again=True, leave=Leave(reopened=True), floor=12
)
def settle(world: World) -> None:
    world.command("effects", "settle", "mail:1", "done")
    world.command("jobs", "retry", "1")


def waiting(world: World) -> None:
    world.configure()
    for _ in range(2):
        world.add("crash.ok")


def cancelled(case: Case) -> Iterator[str]:
    entries = {row["subject"] for row in case.killed.audited("cancel")}
    gone = {f"job {job_id}" for job_id, job in case.killed.jobs.items() if job["status"] == "cancelled"}
    if entries != gone:
        yield f"{sorted(gone)} are cancelled, and the audit trail says {sorted(entries)}"
    if len(case.rest.audited("cancel")) != 2 or case.did:
        yield f"{len(case.rest.audited('cancel'))} were cancelled, and {len(case.did)} effects"


@flow("jobs cancel", desk=True, seed=waiting, check=cancelled, again=True, floor=12)
def cancel_waiting(world: World) -> None:
    world.command("jobs", "cancel", "1", "2", "--why", "a mistake")


ONE_SCHEDULE = "schedules:\n  hourly: {every: 1h, job: crash.ok, catch_up: none, overlap: allow}\n"


def hourly(world: World) -> None:
    world.configure(ONE_SCHEDULE)
    world.tick(-6 * HOUR)
    world.tick(-5 * HOUR)
    world.tick(-MINUTE / 2)


def paused(case: Case) -> Iterator[str]:
    on = {row["scope"] for row in case.killed["pauses"] if row["until"] is None}
    said = len(case.killed.audited("pause")) - len(case.killed.audited("resume"))
    if len(on) != said:
        yield f"{len(on)} pauses in force, and the audit trail says {said}"
    if any(row["until"] is None for row in case.rest["pauses"]):
        yield "it is paused at rest"


@flow("pause and resume", desk=True, seed=hourly, check=paused, again=True, floor=15)
def pause_and_resume(world: World) -> None:
    world.command("pause", "hourly", "--why", "a deploy")
    world.command("resume", "hourly")


def triggered(case: Case) -> Iterator[str]:
    made = [job for job in case.killed.jobs.values() if str(job["enqueued_by"]).startswith("trigger")]
    if len(made) != len(case.killed.audited("trigger")):
        yield f"{len(made)} jobs were made, and the audit trail says {len(case.killed.audited('trigger'))}"
    if not case.died and len(made) != 1:
        yield f"{len(made)} jobs were made"


@flow("trigger", desk=True, seed=hourly, check=triggered, floor=6)
def trigger(world: World) -> None:
    world.command("trigger", "hourly")


def filled(case: Case) -> Iterator[str]:
    for name, snapshot in (("as it died", case.killed), ("at rest", case.rest)):
        made = [job for job in snapshot.jobs.values() if str(job["enqueued_by"]).startswith("backfill")]
        if len(made) != 2 * len(snapshot.audited("backfill")):
            yield f"{name}: {len(made)} jobs, and {len(snapshot.audited('backfill'))} audit rows"
    yield from audited_once(case, "backfill")


@flow("backfill", desk=True, seed=hourly, check=filled, again=True, leave=Leave(refilled=True), floor=8)
def backfill(world: World) -> None:
    """Two of the four that were missed, from the middle of their range."""
    first, last = (world.base - 3.5 * HOUR).isoformat(), (world.base - 1.5 * HOUR).isoformat()
    world.command("backfill", "hourly", "--from", first, "--to", last)


def by_hand(case: Case) -> Iterator[str]:
    if case.rest.jobs[1]["status"] not in FINAL:
        yield "the job that waited is not done"


@flow("the command run", desk=True, seed=waiting, check=by_hand, floor=10)
def run_command(world: World) -> None:
    divert_streams()
    world.command("run", "1")
