"""Flows: work that is committed with its job's success, by ``ctx.transaction()`` and by ``ctx.finish()``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from engine.crash.crash_judge import Case
from engine.crash.crash_registry import flow
from engine.crash.crash_world import World


def users_table(world: World) -> None:
    world.configure()
    world.project.sql("CREATE TABLE work (job_id bigint, attempt integer)")


def in_our_transaction(world: World) -> None:
    users_table(world)
    for _ in range(2):
        world.add("crash.transaction")


def in_users_transaction(world: World) -> None:
    users_table(world)
    for how in ("session", "driver"):
        world.add("crash.finish", json.dumps({"url": world.url, "how": how}))


def exactly_once(case: Case) -> Iterator[str]:
    """At every moment: the work of a job, and the job it enqueued, are there if and only if it has succeeded."""
    parents = sorted(case.start.jobs)
    for name, snapshot in (("as it died", case.killed), ("at rest", case.rest)):
        works = Counter(row["job_id"] for row in snapshot["work"])
        children = Counter(job["payload"]["of"] for job in snapshot.jobs.values() if "of" in job["payload"])
        for parent in parents:
            expected = int(snapshot.jobs[parent]["status"] == "succeeded")
            if (works[parent], children[parent]) != (expected, expected):
                yield (
                    f"{name}: job {parent} is {snapshot.jobs[parent]['status']}, its work was committed "
                    f"{works[parent]} times and {children[parent]} jobs of it"
                )
    if any(case.rest.jobs[parent]["status"] != "succeeded" for parent in parents):
        yield "not every job came to its end"


@flow("work in ctx.transaction()", everywhere=True, seed=in_our_transaction, check=exactly_once, floor=30)
def own(world: World) -> None:
    world.tick()


@flow("work finished by ctx.finish()", everywhere=True, seed=in_users_transaction, check=exactly_once, floor=25)
def users(world: World) -> None:
    world.tick()
