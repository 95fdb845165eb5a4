"""``explain`` names the cause that a tick's row, the file at hand, or the audit trail holds."""

from __future__ import annotations

import pytest
from support.explained import MINUTELY, World, brake, utc
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world


def test_ticks_that_fire_no_schedules_are_named(world: World) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:10"))
    host = world.hosts["alpha"]
    for at in ("2026-03-03T01:59:10", "2026-03-03T02:03:10"):
        world.go(utc(at))
        host.tick(fire_schedules=False, queue="nothing")
    told = world.ask("s", "--at", "02:01")
    assert told.verdict == "pending"
    assert "and left it; it fired no schedules (CRONJOBS_SCHEDULES=off on that host)" in told
    world.tick(utc("2026-03-03T02:10:10"))
    told = world.ask("s", "--at", "02:01")
    assert "did not settle it; it fired no schedules (CRONJOBS_SCHEDULES=off on that host)" in told


def test_a_database_of_another_project_is_the_cause_for_a_schedule_and_for_a_job(world: World) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:10"))
    assert world.cronjobs("enqueue", "t.work").code == 0
    file = world.folder / "cronjobs.yaml"
    file.write_text(file.read_text().replace("project: shop", "project: books"))
    world.go(utc("2026-03-03T02:05:00"))
    refused = "Ticks with the file here refuse this database:"
    told = world.ask("s", "--at", "02:01")
    assert refused in told
    assert "shop" in told
    assert refused.lower() in repr(world.ask("1")).lower()


def test_a_file_that_has_a_retired_schedule_is_not_in_force(world: World) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:10"))
    world.file(other='cron: "0 0 1 1 *"')
    world.tick(utc("2026-03-03T01:59:10"))
    assert world.cronjobs("sync", "--allow-removals").code == 0
    world.file(**MINUTELY)
    world.go(utc("2026-03-03T02:05:00"))
    told = world.ask("s", "--at", "02:03")
    assert told.verdict == "retired"
    assert "The file here has it, and no tick applied that file since: it is not in force." in told


def test_a_pause_that_ended_without_a_tick(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:20"))
    brake(world, "pause", "--all", "--for", "20m", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T02:48:00"))
    told = world.ask("s", "--at", "02:05")
    assert "everything was paused by ada from 01:58:20 to 02:18:20" in told
    assert "No tick settled it between its end and 02:48:00." in told
