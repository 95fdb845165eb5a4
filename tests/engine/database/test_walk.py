"""Months of simulated time: whatever happens to ticks, clocks and definitions, every occurrence is settled once.

One database carries a schedule for each combination of catch-up and overlap policy, in zones that change their clocks.
The walk goes on minute by minute; minutes in which nothing is due and nothing happens are stepped over at once.
CRONJOBS_WALK_DAYS=3650 makes it ten years.
"""

from __future__ import annotations

import os
import random
import threading
from bisect import bisect_left, bisect_right
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from support.yard import Yard

from cronjobs.engine.config.settings import CatchUp, Overlap, ScheduleSettings
from cronjobs.engine.crontime.timing import timing
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs, occurrences, schedules
from cronjobs.engine.schedules.materialise import materialise
from cronjobs.engine.store import schedules as store
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.slow

START = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
LENGTH = timedelta(days=int(os.environ.get("CRONJOBS_WALK_DAYS", "100")))
MINUTE = timedelta(minutes=1)

CRONS = ["15 */6 * * *", "30 2 * * *", "45 1,13 * * 1-5", "5 0 1,15 * *", "0 3 29 2 *", "20 22 * * sun"]
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "UTC", "Asia/Beirut"]
CATCH_UPS: list[CatchUp] = ["none", "latest", "all"]
OVERLAPS: list[Overlap] = ["skip", "wait", "allow"]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


class Walk:
    """The walk and what it knows by itself: which definition was in force from when to when."""

    def __init__(self, yard: Yard, seed: int) -> None:
        self.yard, self.dice = yard, random.Random(seed)
        self.horizon = START  # the latest that any clock has shown, right or wrong
        self.wanted: dict[str, ScheduleSettings] = {}
        self.due: dict[str, set[datetime]] = {}
        self.early: dict[
            str, set[datetime]
        ] = {}  # a clock that ran ahead may have run these before an edit took them away
        self.in_force_since: dict[str, datetime] = {}
        for number, (catch_up, overlap) in enumerate(product(CATCH_UPS, OVERLAPS)):
            name = f"{catch_up}-{overlap}"
            self.wanted[name] = ScheduleSettings(
                name=name,
                job="t.say",
                cron=CRONS[number % len(CRONS)],
                timezone=ZONES[number % len(ZONES)],
                catch_up=catch_up,
                catch_up_within=timedelta(hours=self.dice.choice([1, 24, 72])),
                catch_up_limit=self.dice.choice([2, 100]),
                overlap=overlap,
            )
            self.due[name], self.early[name] = set(), set()
            self.in_force_since[name] = START
        self.apply()

    @property
    def now(self) -> datetime:
        return self.yard.clock.now()

    def apply(self) -> None:
        assert self.yard.sync(self.yard.file(*self.wanted.values())).applied

    def note_definition(self, name: str) -> None:
        """Note what was due under the definition that ends now."""
        schedule = self.wanted[name]
        for instant in timing(schedule.cron, schedule.every, schedule.timezone).after(self.in_force_since[name]):
            if instant > self.horizon:
                break
            (self.due if instant <= self.now else self.early)[name].add(instant)
        self.in_force_since[name] = self.now

    # --- what happens -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        self.yard.tick()
        self.horizon = max(self.horizon, self.now)

    def four_at_once(self) -> None:
        databases = [Database(parse_url(self.url), clock=self.yard.clock) for _ in range(4)]
        threads = [threading.Thread(target=materialise, args=(each, self.yard.events.append)) for each in databases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for each in databases:
            each.close()

    @property
    def url(self) -> str:
        return self.yard.database.address.url.render_as_string(hide_password=False)

    def edit(self) -> None:
        """A deploy, perhaps in the middle of an outage: the old definition is settled up to now first."""
        self.horizon = max(self.horizon, self.now)
        name = self.dice.choice(list(self.wanted))
        self.note_definition(name)
        changes: dict[str, Any] = self.dice.choice(
            [
                {"cron": self.dice.choice(CRONS)},
                {"timezone": self.dice.choice(ZONES)},
                {"payload": {"n": self.dice.random()}},
            ]
        )
        self.wanted[name] = ScheduleSettings(**(vars(self.wanted[name]) | changes))
        self.apply()

    def pause(self) -> None:
        with self.yard.database.write() as connection:
            until = self.now + timedelta(hours=self.dice.randint(1, 48))
            name = self.dice.choice(list(self.wanted))
            skip = self.dice.random() < 0.5
            store.pause(connection, scope="schedule", name=name, until=until, by="w", why=None, now=self.now, skip=skip)

    def finish(self) -> None:
        with self.yard.database.write() as connection:
            connection.execute(
                update(jobs).where(jobs.c.finished_at.is_(None)).values(status="succeeded", finished_at=self.now)
            )

    def jump(self) -> None:
        """The clock is wrong for one tick, by minutes or days, and then right again."""
        right = self.now
        self.yard.clock.set(right + timedelta(minutes=self.dice.choice([-90, -3, 3, 90, 3000])))
        self.tick()
        self.yard.clock.set(right)

    # --- on the way ---------------------------------------------------------------------------------------------------

    def next_due(self) -> datetime:
        with self.yard.database.read() as connection:
            stored = store.all_schedules(connection)
        found = min((each.next_at for each in stored if each.next_at and not each.paused), default=None)
        return found or START + LENGTH

    def go(self) -> None:
        end = START + LENGTH
        while self.now < end:
            step = max(self.next_due() - self.now, timedelta(0)) + timedelta(seconds=self.dice.choice([1, 5, 45, 110]))
            match self.dice.random():
                case chance if chance < 0.03:  # an outage, of hours or days
                    step += timedelta(hours=self.dice.choice([1, 5, 30, 100]))
                case chance if chance < 0.05:
                    self.jump()
                case chance if chance < 0.07:
                    self.pause()
            self.yard.clock.advance(step)
            match self.dice.random():
                case chance if chance < 0.04:
                    self.edit()
                case chance if chance < 0.07:
                    self.four_at_once()
                case chance if chance < 0.12:
                    self.tick()
            self.tick()
            if self.dice.random() < 0.7:
                self.finish()
        for name in self.wanted:
            self.note_definition(name)


def between(order: list[datetime], first: datetime, last: datetime) -> list[datetime]:
    return order[bisect_left(order, first) : bisect_right(order, last)]


@pytest.mark.parametrize("seed", [1])
def test_months_of_trouble_settle_every_occurrence_exactly_once(
    database: Database, clock: FakeClock, tmp_path: Path, seed: int
) -> None:
    walk = Walk(Yard(database, clock, tmp_path), seed)
    walk.go()
    with database.read() as connection:
        for name in walk.wanted:
            rows = connection.execute(
                select(occurrences)
                .join(schedules, schedules.c.id == occurrences.c.schedule_id)
                .where(schedules.c.name == name)
                .order_by(occurrences.c.last_for)
            ).all()
            due, early = walk.due[name], walk.early[name] - walk.due[name]
            order = sorted(due)
            told = [instant for row in rows for instant in between(order, row.first_for, row.last_for)]
            assert sorted(told) == order, f"{name}: each occurrence in exactly one row"
            extra = [row for row in rows if row.last_for in early and row.outcome == "enqueued"]
            assert sum(row._mapping["count"] for row in rows) == len(due) + len(extra), f"{name}: counts"
            # One that a wrong clock made and that had not begun was taken back.
            stays = (jobs.c.schedule == name, jobs.c.status != "cancelled")
            made = connection.execute(select(jobs.c.id, jobs.c.scheduled_for).where(*stays)).all()
            enqueued = {row.job_id: row.last_for for row in rows if row.outcome == "enqueued"}
            assert {job.id: job.scheduled_for for job in made} == enqueued, (
                f"{name}: a job for each enqueued one, no other"
            )
            assert len(enqueued) > 5 or walk.wanted[name].cron == "0 3 29 2 *"
    kinds = {row[0] for row in (name_row for name in walk.wanted for name_row in walk.yard.ledger(name))}
    assert kinds == {"enqueued", "missed", "skipped", "coalesced"}, "the walk met every outcome"
