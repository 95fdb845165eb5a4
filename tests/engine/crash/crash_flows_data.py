"""Flows: enqueue, the schema, pruning, effects and steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from cronjobs import enqueue
from cronjobs.engine.schema import migrations
from engine.crash.crash_judge import Case, Leave
from engine.crash.crash_registry import HOUR, flow
from engine.crash.crash_world import World

# --- enqueue ----------------------------------------------------------------------------------------------------------


def users_table(world: World) -> None:
    world.configure()
    world.project.sql("CREATE TABLE orders (id integer PRIMARY KEY, state text)")


def users_engine(world: World) -> Any:
    return create_engine(world.url.replace("postgresql://", "postgresql+psycopg://"))


def orders_and_jobs(case: Case) -> Iterator[str]:
    for name, snapshot in (("as it died", case.killed), ("at rest", case.rest)):
        orders = {row["id"] for row in snapshot["orders"]}
        jobs = sorted(job["payload"]["order"] for job in snapshot.jobs.values())
        if sorted(orders) != jobs:
            yield f"{name}: orders {sorted(orders)} and jobs for {jobs}"
    if not case.died and len(case.rest["orders"]) != 2:
        yield f"{len(case.rest['orders'])} orders, of which 2 were committed"
    if set(case.done("done").values()) - {1}:
        yield f"orders were worked on {dict(case.done('done'))} times"


@flow("an enqueue in the user's transaction", seed=users_table, check=orders_and_jobs, floor=10)
def outbox(world: World) -> None:
    engine = users_engine(world)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1, 'PAID')"))
        enqueue(connection, "crash.ok", {"order": 1})
    with suppress(ZeroDivisionError), Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO orders VALUES (2, 'PAID')"))
        enqueue(session, "crash.ok", {"order": 2}, idempotency_key=("order", 2))
        raise ZeroDivisionError
    with Session(engine) as session, session.begin():
        enqueue(session, "crash.ok", {"order": 3}, idempotency_key=("order", 3))
        session.execute(text("INSERT INTO orders VALUES (3, 'PAID')"))
    engine.dispose()


def one_job_per_key(case: Case) -> Iterator[str]:
    keys = sorted(job["idempotency_key"] for job in case.rest.jobs.values())
    if keys != ["done:1", "invoice:1"]:
        yield f"the jobs at rest have the keys {keys}"
    if set(case.done("done").values()) != {1}:
        yield f"the jobs were done {dict(case.done('done'))} times"


def one_key_is_spent(world: World) -> None:
    world.configure()
    world.add("crash.ok", idempotency_key="done:1")
    world.tick()


@flow("an enqueue with a key", seed=one_key_is_spent, check=one_job_per_key, again=True, floor=11)
def keyed(world: World) -> None:
    engine = users_engine(world)
    for _ in range(2):
        with engine.begin() as connection:
            enqueue(connection, "crash.ok", {"n": 1}, idempotency_key=("invoice", 1))
    with engine.begin() as connection:
        enqueue(connection, "crash.ok", {"n": 2}, idempotency_key=("done", 1))
    engine.dispose()


def one_job_at_most(case: Case) -> Iterator[str]:
    if len(case.rest.jobs) != 1 and (case.rest.jobs or not case.died):
        yield f"{len(case.rest.jobs)} jobs were made"


@flow("the command enqueue", desk=True, check=one_job_at_most, floor=6)
def enqueue_command(world: World) -> None:
    world.command("enqueue", "crash.ok", "--payload", '{"n": 1}')


# --- effects and steps ------------------------------------------------------------------------------------------------


def jobs_with_effects(world: World) -> None:
    world.configure()
    for on_unknown in ("again", "skip", "stop"):
        world.add("crash.effect", json.dumps({"on_unknown": on_unknown}))


def effects_as_promised(case: Case) -> Iterator[str]:
    """Recorded: never again. Begun and not recorded: as it says. Never begun: once."""
    known = {row["key"]: row["state"] for row in case.killed["effects"]}
    for number, (on_unknown, end) in enumerate((("again", "done"), ("skip", "done"), ("stop", "dead")), 1):
        then = sum(did.pid == case.pid and did.what == "sent" and did.job_id == number for did in case.did)
        sent, status = case.done("sent")[number], case.rest.jobs[number]["status"]
        unknown = known.get(f"mail:{number}") == "begun"
        wanted = then + (on_unknown == "again") if unknown else 1
        if sent != wanted:
            yield f"the effect that says {on_unknown} was done {sent} times, not {wanted}"
        if (status == "dead") != (unknown and end == "dead"):
            yield f"the job whose effect says {on_unknown} is {status}"
    states = {row["key"]: row["state"] for row in case.rest["effects"]}
    for key, state in states.items():
        was_unknown = known.get(key) == "begun"
        if state != {"mail:2": "skipped", "mail:3": "stopped"}.get(key, "recorded") and was_unknown:
            yield f"{key} was unknown, and is {state}"
        if state != "recorded" and not was_unknown:
            yield f"{key} was not unknown, and is {state}"


@flow("effects", everywhere=True, seed=jobs_with_effects, check=effects_as_promised, floor=50)
def effects(world: World) -> None:
    world.tick()


def a_job_in_steps(world: World) -> None:
    world.configure()
    world.add("crash.steps")


def steps_as_promised(case: Case) -> Iterator[str]:
    known = {row["key"].rpartition(":")[2]: row["state"] for row in case.killed["effects"]}
    for name in ("first", "second"):
        then = sum(did.pid == case.pid and did.what == name for did in case.did)
        wanted = then + 1 if known.get(name) == "begun" else 1
        if case.done(name)[1] != wanted:
            yield f"the {name} step was done {case.done(name)[1]} times, not {wanted}"


@flow("steps", everywhere=True, seed=a_job_in_steps, check=steps_as_promised, floor=30)
def steps(world: World) -> None:
    world.tick()


# --- prune ------------------------------------------------------------------------------------------------------------

OLD, OLDER = timedelta(days=100), timedelta(days=400)


def old_rows(world: World) -> None:
    world.configure()
    done = {"status": "succeeded", "attempts": 1}
    for ago, more in (
        (OLD, {}),
        (OLD, {"idempotency_key": "spent"}),
        (OLDER, {"idempotency_key": "forgotten"}),
        (OLD, {"status": "dead", "failures": 1}),
        (HOUR, {}),
        (HOUR, {"idempotency_key": "recent"}),
    ):
        then = world.instant(-ago)
        job_id = world.add("crash.ok", '{"n": 1}', **(done | {"finished_at": then, "started_at": then} | more))
        outcome = "failed" if "status" in more else "succeeded"
        world.project.sql(
            "INSERT INTO cronjobs_job_runs (job_id, attempt, outcome, started_at, finished_at, runner) "
            f"VALUES ({job_id}, 1, '{outcome}', '{then}', '{then}', 'gone')".replace(
                f"'{then}'", f"'{then}'" if not world.is_sqlite else str(then)
            )
        )
    then = f"'{world.instant(-OLDER)}'" if not world.is_sqlite else str(world.instant(-OLDER))
    world.project.sql(f"INSERT INTO cronjobs_effects (key, begun_at) VALUES ('old', {then})")


def pruned(case: Case) -> Iterator[str]:
    if len(case.start.jobs) != 6:
        yield "the start is not what it is meant to be"
    for name, snapshot in (("as it died", case.killed), ("at rest", case.rest)):
        keys = {job["idempotency_key"] for job in snapshot.jobs.values()}
        [meta] = snapshot["meta"]
        went = meta["pruned_at"] is not None
        if not {"spent", "recent"} <= keys:
            yield f"{name}: a spent key is gone"
        stripped = [job for job in snapshot.jobs.values() if job["payload"] == {}]
        bare = {job_id for job_id in snapshot.jobs if (job_id, 1) not in snapshot.runs}
        if bare != {job["id"] for job in stripped}:
            yield f"{name}: jobs {sorted(bare)} have no history"
        if not went:
            continue  # batch after batch is committed, and the next tick goes on
        if "forgotten" in keys or len(snapshot.jobs) != 3:
            yield f"{name}: pruned, and jobs {sorted(snapshot.jobs)} are left"
        if snapshot["effects"]:
            yield f"{name}: pruned, and {len(snapshot['effects'])} effects are left"
        if [job["idempotency_key"] for job in stripped] != ["spent"]:
            yield f"{name}: pruned, and {len(stripped)} jobs are stripped"
    if not case.died and case.killed["meta"][0]["pruned_at"] is None:
        yield "nothing was pruned"
    if case.did:
        yield "something ran"


@flow("a tick that prunes", seed=old_rows, check=pruned, leave=Leave(pruned=True), floor=15)
def prune(world: World) -> None:
    world.tick(budget_s=30)


# --- the schema -------------------------------------------------------------------------------------------------------


def no_tables(world: World) -> None:
    world.configure()


@flow("db upgrade from nothing", seed=no_tables, again=True, empty=True, floor=30)
def upgrade(world: World) -> None:
    database = world.database()
    migrations.upgrade(database)
    database.close()
