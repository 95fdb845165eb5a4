"""Flows: ticks and commands that settle occurrences or change definitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cronjobs.engine.schedules import chunks
from engine.crash.crash_judge import Case
from engine.crash.crash_registry import HOUR, audited_once, flow
from engine.crash.crash_world import World

SCHEDULES = """
schedules:
  all: {every: 1h, job: crash.ok, catch_up: all, catch_up_limit: 4, overlap: allow}
  latest: {every: 1h, job: crash.ok, catch_up: latest, overlap: skip}
  none: {every: 2h, job: crash.flaky, catch_up: none, overlap: allow}
  busy: {every: 1h, job: crash.ok, overlap: skip}
  waits: {every: 1h, job: crash.ok, catch_up: all, catch_up_limit: 3, overlap: wait}
  coalesces: {every: 1h, job: crash.ok, overlap: wait}
"""


def schedules_of_yesterday(world: World) -> None:
    world.configure(SCHEDULES)
    world.tick(-26 * HOUR)
    for name in ("busy", "coalesces"):
        world.add("crash.ok", schedule=name, run_at=world.instant(HOUR))


def in_small_chunks(_: World) -> None:
    vars(chunks)["CHUNK"] = 3


@flow("a tick that materialises", seed=schedules_of_yesterday, before=in_small_chunks, floor=25)
def materialise(world: World) -> None:
    world.tick(only="crash.none")


def two_schedules(world: World) -> None:
    world.configure(
        "schedules:\n"
        "  skips: {every: 1h, job: crash.ok, catch_up: latest, overlap: skip}\n"
        "  all: {every: 1h, job: crash.flaky, catch_up: all, catch_up_limit: 2, overlap: wait}\n"
    )
    world.tick(-26 * HOUR)


@flow("a tick that materialises and runs", seed=two_schedules, floor=40)
def materialise_and_run(world: World) -> None:
    world.tick()


def no_definitions(world: World) -> None:
    world.configure("project: shop\nenvironment: test\n" + SCHEDULES)


def adopted(case: Case) -> Iterator[str]:
    [meta] = case.rest["meta"]
    if (meta["project"], meta["environment"]) != ("shop", "test"):
        yield f"the database belongs to {meta['project']!r}, {meta['environment']!r}"
    yield from audited_once(case, "adopt")
    if len(case.rest["schedules"]) != 6:
        yield f"{len(case.rest['schedules'])} schedules, not 6"


@flow("a first tick", seed=no_definitions, check=adopted, floor=20)
def first_tick(world: World) -> None:
    world.tick(only="crash.none")


OLD_FILE = """
schedules:
  kept: {every: 1h, job: crash.ok, overlap: allow}
  retimed: {every: 1h, job: crash.ok, overlap: allow}
  old: {every: 1h, job: crash.ok, overlap: allow}
  removed: {every: 1h, job: crash.ok, overlap: allow}
"""
NEW_FILE = """
schedules:
  kept: {every: 1h, job: crash.ok, payload: {new: true}, overlap: allow}
  retimed: {every: 2h, job: crash.ok, overlap: allow}
  new: {every: 1h, job: crash.ok, overlap: allow, renamed_from: old}
  added: {every: 30m, job: crash.ok, overlap: allow}
"""


def an_old_file(world: World) -> None:
    world.configure(OLD_FILE)
    world.tick(-3 * HOUR)
    world.tick(-HOUR, only="crash.none")  # its jobs wait


def new_definitions(case: Case) -> Iterator[str]:
    for name, snapshot in (("as it died", case.killed), ("at rest", case.rest)):
        applied = len(snapshot.audited("sync")) > 1
        schedules = {row["name"]: row for row in snapshot["schedules"]}
        active = {name for name, row in schedules.items() if row["status"] == "active"}
        wanted = {"kept", "retimed", "new", "added"} if applied else {"kept", "retimed", "old", "removed"}
        if active != wanted:
            yield f"{name}: {sorted(active)} are active, and the file was applied: {applied}"
        if schedules["retimed"]["definition"]["every_s"] != (7200 if applied else 3600):
            yield f"{name}: the timing is that of the other file"
        waiting = {job["schedule"] for job in snapshot.jobs.values() if job["finished_at"] is None}
        if waiting & ({"old"} if applied else {"new"}):
            yield f"{name}: jobs of {sorted(waiting)} wait"
    yield from audited_once(case, "rename")
    yield from audited_once(case, "retire")
    if len(case.rest.audited("sync")) < 2:
        yield "the file was not applied"


def new_definitions_in_the_end(case: Case) -> Iterator[str]:
    """Half of the file may be in force where it died, each schedule as a whole; and each is defined once."""
    jobs = {job["schedule"] for job in case.killed.jobs.values() if job["finished_at"] is None}
    names = {row["name"] for row in case.killed["schedules"]}
    if jobs & ({"old", "new"} - names):
        yield "a schedule and its jobs have two names"
    yield from new_definitions(replace(case, killed=case.rest))
    defined = [row["subject"] for row in case.rest["audit"] if row["action"] == "define"]
    if sorted(defined) != ["added", "kept", "kept", "old", "removed", "retimed", "retimed"]:
        yield f"defined were {sorted(defined)}"


@flow(
    "a tick with a changed file",
    seed=an_old_file,
    before=in_small_chunks,
    check=new_definitions_in_the_end,
    floor=40,
)
def changed_file(world: World) -> None:
    world.configure(NEW_FILE)
    world.tick(only="crash.none")


@flow("the command sync", desk=True, seed=an_old_file, check=new_definitions, again=True, floor=25)
def sync_command(world: World) -> None:
    world.configure(NEW_FILE)
    world.command("sync")
