"""An ack ends with its finding: what begins after the ack is an alarm again, with the same name and rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from support.cases import judge as judge_cases
from support.explained import DAY, MINUTE, World, fail, utc
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world
from support.postgres import OWNER
from support.yard import START, Yard

from cronjobs.desk.insight.acking import acknowledge
from cronjobs.desk.insight.finding import Finding, Severity, together
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import occurrences, ticks
from cronjobs.engine.store.schedules import all_schedules
from cronjobs.testing import FakeClock

from .test_all_well_generated import Week

pytestmark = [pytest.mark.either, pytest.mark.connects_as(OWNER)]

TEN = "run: {every: 10m}\n"


def alarms(world: World) -> dict[str, bool]:
    """The findings now: their keys, and whether they are alarms."""
    return {each["key"]: each["alarm"] for each in world.cronjobs("ack", "--json").json}


def ack(world: World, key: str, span: str = "7d") -> None:
    world.cronjobs("ack", key, "--for", span)
    assert alarms(world).get(key) is False, world.cronjobs("status").out + world.cronjobs("jobs", "list").out


def test_the_next_outage_is_not_covered(world: World) -> None:
    world.file(s='cron: "0 4 * * 2"')
    world.ticks(utc("2026-03-02T08:01:00"), utc("2026-03-02T08:03:00"))
    world.go(utc("2026-03-02T08:10:00"))
    ack(world, "no_tick")
    world.ticks(utc("2026-03-02T08:12:00"), utc("2026-03-02T08:13:00"))
    assert alarms(world) == {}
    world.go(utc("2026-03-02T08:30:00"))
    assert alarms(world) == {"no_tick": True}


def test_a_host_that_came_back_and_stopped_again_is_not_covered(world: World) -> None:
    world.file(s='cron: "0 4 * * 2"')

    def both(at: datetime) -> None:
        for host in ("alpha", "beta"):
            world.tick(at, host)

    for minute in range(1, 12):
        both(utc(f"2026-03-02T08:{minute:02}:00"))
    world.ticks(utc("2026-03-02T08:12:00"), utc("2026-03-02T08:16:00"))
    ack(world, "host:beta")
    both(utc("2026-03-02T08:17:00"))
    world.ticks(utc("2026-03-02T08:18:00"), utc("2026-03-02T08:22:00"))
    assert alarms(world) == {"host:beta": True}


def missed_two(world: World) -> None:
    world.file(hourly='cron: "0 * * * *", catch_up: none', more=TEN)
    world.ticks(utc("2026-03-02T00:50:00"), utc("2026-03-02T01:00:00"), 10 * MINUTE)
    world.tick(utc("2026-03-02T03:10:00"))
    ack(world, "missed")


def test_runs_missed_after_a_run_that_succeeded_are_not_covered(world: World) -> None:
    missed_two(world)
    world.ticks(utc("2026-03-02T03:20:00"), utc("2026-03-02T04:10:00"), 10 * MINUTE)
    assert alarms(world) == {}
    world.tick(utc("2026-03-02T07:10:00"))
    assert alarms(world)["missed"] is True
    assert world.cronjobs("check", "--live").code == 1


def test_more_missed_runs_without_one_that_succeeded_are_not_covered(world: World) -> None:
    missed_two(world)
    world.tick(utc("2026-03-02T03:20:00"))
    assert alarms(world)["missed"] is False
    world.tick(utc("2026-03-02T05:10:00"))
    assert alarms(world)["missed"] is True


def test_what_a_pause_held_back_is_not_covered_by_an_ack_of_an_outage(world: World) -> None:
    """The occurrence is older than the ack: a tick settled it after that."""
    missed_two(world)
    world.cronjobs("pause", "hourly")
    world.go(utc("2026-03-02T04:05:00"))
    world.cronjobs("ack", "missed")
    world.go(utc("2026-03-02T04:10:00"))
    world.cronjobs("resume", "hourly")
    world.tick(utc("2026-03-02T04:20:00"))
    assert alarms(world)["missed"] is True


def test_a_schedule_that_fails_again_after_it_succeeded_is_not_covered(world: World) -> None:
    world.file(hourly='cron: "0 * * * *"', more=TEN)
    world.tick(utc("2026-03-02T01:50:00"))
    world.plan = [fail()] * 9
    world.ticks(utc("2026-03-02T02:00:00"), utc("2026-03-02T02:40:00"), 10 * MINUTE)
    ack(world, "failing")
    world.plan = []
    world.ticks(utc("2026-03-02T02:50:00"), utc("2026-03-02T04:10:00"), 10 * MINUTE)
    assert alarms(world) == {}
    world.plan = [fail("quite another")] * 9
    world.ticks(utc("2026-03-02T05:00:00"), utc("2026-03-02T05:40:00"), 10 * MINUTE)
    assert alarms(world) == {"failing": True}


def test_a_fault_of_a_file_that_was_mended_and_came_back_is_not_covered(world: World) -> None:
    good, bad = {"nightly": 'cron: "0 3 * * *"'}, {"nightly": 'cron: "0 3 * *"'}
    world.file(**good)
    world.ticks(utc("2026-03-02T08:01:00"), utc("2026-03-02T08:03:00"))
    world.file(**bad)
    world.tick(utc("2026-03-02T08:04:00"))
    ack(world, "config:alpha")
    world.tick(utc("2026-03-02T08:05:00"))
    assert alarms(world) == {"config:alpha": False}
    world.file(**good)
    world.tick(utc("2026-03-02T08:06:00"))
    assert alarms(world) == {}
    world.file(**bad)
    world.tick(utc("2026-03-02T08:07:00"))
    assert alarms(world) == {"config:alpha": True}


def test_one_of_two_schedules_that_succeeded_and_missed_runs_again_is_not_covered(world: World) -> None:
    world.file(more=TEN, one='cron: "0 * * * *", catch_up: none', two='cron: "0 1 * * *", catch_up: none, job: t.work')
    world.tick(utc("2026-03-02T00:30:00"))
    world.tick(utc("2026-03-02T03:10:00"))
    ack(world, "missed")
    world.ticks(utc("2026-03-02T04:00:00"), utc("2026-03-02T04:10:00"), 10 * MINUTE)
    assert alarms(world)["missed"] is False, "two has not run yet"
    world.tick(utc("2026-03-02T06:30:00"))
    assert alarms(world)["missed"] is True


def test_a_retried_job_that_dies_again_is_not_covered(world: World) -> None:
    world.file(s='cron: "0 4 * * 2"')
    world.tick(utc("2026-03-02T08:01:00"))
    for _ in range(2):
        world.cronjobs("enqueue", "t.work", "--max-attempts", "1")
    world.plan = [fail()] * 2
    world.tick(utc("2026-03-02T08:02:00"))
    ack(world, "dead")
    world.cronjobs("jobs", "retry", "2", "--yes")
    world.plan = [fail("another")]
    world.tick(utc("2026-03-02T08:03:00"))
    assert alarms(world) == {"dead": True}


# --- not too early ----------------------------------------------------------------------------------------------------


def test_ticks_that_go_on_being_killed_stay_acknowledged(world: World, database: Database) -> None:
    """The finding looks 20 minutes back, but its start is that of the first killed tick."""
    world.file(s='cron: "0 4 * * 2"')
    for minute in range(40):
        world.tick(utc("2026-03-02T08:01:00") + minute * MINUTE)
        if minute % 2:
            with database.write() as connection:
                last = ticks.c.started_at > utc("2026-03-02T08:01:00") + minute * MINUTE
                connection.execute(update(ticks).where(last).values(finished_at=None))
        if minute == 10:
            ack(world, "ending:alpha")
    assert alarms(world) == {"ending:alpha": False}


def test_a_fault_that_lasts_for_days_stays_acknowledged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start is read from the ticks, a page at a time."""
    monkeypatch.setattr("cronjobs.desk.store.status_facts.TICKS_READ", 3)
    world.file(nightly='cron: "0 3 * *"')
    world.ticks(utc("2026-03-02T08:01:00"), utc("2026-03-02T08:03:00"))
    ack(world, "config:alpha")
    world.ticks(utc("2026-03-02T08:04:00"), utc("2026-03-02T08:20:00"))
    assert alarms(world) == {"config:alpha": False}


# --- generated --------------------------------------------------------------------------------------------------------


class AckedWeek(Week):
    """A random week in which a person acknowledges what is found, now and then.

    ``acked_at``: by key, when. ``away``: the keys of findings that ended since. While a triggered run may make up for
    missed runs, the finding ``missed`` is away and nothing is new, so the ledger decides instead.
    """

    acked_at: dict[str, datetime]
    away: set[str]

    def step(self) -> None:
        found: dict[str, Finding] = {}
        for each in self.found():
            found[each.key] = together([found[each.key], each]) if each.key in found else each
        covered = {each.key for finding in found.values() for each in finding.covers}
        self.away |= self.acked_at.keys() - found.keys() - covered
        for key, finding in found.items():
            if finding.ack is not None and finding.severity is not Severity.NOTICE:  # a notice is no alarm anyway
                if finding.kind == "missed":
                    assert not self.missed_after(self.acked_at[key], finding.rows), finding
                else:
                    assert key not in self.away, f"{finding} was away since its ack"
        if found and self.dice.random() < 0.3:
            key = self.dice.choice(sorted(found))
            with self.yard.database.write() as connection:
                who: dict[str, Any] = {"by": "ada", "host": "alpha", "why": None}
                acknowledge(connection, found[key], until=self.now + 30 * DAY, now=self.now, **who)
            self.acked_at[key] = self.now
            self.away.discard(key)

    def missed_after(self, at: datetime, names: Sequence[str]) -> list[Any]:
        """Return the schedules' missed occurrences that ticks recorded after *at*."""
        with self.yard.database.read() as connection:
            ids = [each.id for each in all_schedules(connection) if each.name in names]
            there = occurrences.c.schedule_id.in_(ids) & (occurrences.c.outcome == "missed")
            rows = connection.execute(select(occurrences).where(there)).all()
        return [row for row in rows if row.decided_at > at]


def test_no_finding_that_was_away_comes_back_acknowledged(database: Database, clock: FakeClock, tmp_path: Path) -> None:
    def case(dice: random.Random) -> None:
        clock.set(START)
        week = AckedWeek(Yard(database, clock, tmp_path), dice, wrong_clocks=0)
        week.acked_at, week.away = {}, set()
        for _ in week.go():
            week.step()

    judge_cases(case, 2, 500)
