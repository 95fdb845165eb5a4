"""Random lives of schedules in small chunks: in the end, each occurrence is settled exactly once.

There are bad definitions, refusals, kills between and within transactions, timeouts, and two hosts at once.
CRONJOBS_CHUNK_SEEDS=1000 makes the long form.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text
from support.yard import MINUTE, START, Yard, minutely, names

from cronjobs.engine.config.settings import ScheduleSettings
from cronjobs.engine.crontime.timing import timing
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import audit, jobs, occurrences, schedules
from cronjobs.engine.schedules import chunks, materialise, sync
from cronjobs.engine.schedules.definition import definition, schedule_from_definition
from cronjobs.engine.store import schedules as store
from cronjobs.engine.store import ticks
from cronjobs.errors import BadValue, DatabaseBusy, DatabaseError, TransientTrouble
from cronjobs.testing import FakeClock

SEEDS = range(int(os.environ.get("CRONJOBS_CHUNK_SEEDS", "2")))
STEPS = 25
CRONS = ["* * * * *", "*/2 * * * *", "*/5 * * * *", "3 * * * *"]
UNREADABLE: list[Any] = [[], "cron", {"cron": "0 0 L * *"}, {}]
WITHIN_A_TRANSACTION = [(store, "record_occurrences"), (store, "move_watermarks"), (ticks, "record_all")]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


class Killed(BaseException):
    """Stands for kill -9: nothing of this process goes on, and its open transaction is rolled back."""


class Life:
    def __init__(self, yard: Yard, seed: int) -> None:
        self.yard, self.dice = yard, random.Random(seed)
        self.wanted: dict[str, ScheduleSettings] = {}
        self.broken: dict[str, tuple[Any, Any]] = {}  # name → what it was, and what it is while it is broken
        self.depth = 0
        self.met: set[str] = set()
        for name in names(self.dice.randint(5, 12)):
            self.wanted[name] = self.schedule(name)
        self.sync()

    def schedule(self, name: str) -> ScheduleSettings:
        fields = {"cron": self.dice.choice(CRONS), "priority": self.dice.randint(0, 9)}
        fields |= {"catch_up": self.dice.choice(["all", "latest"]), "overlap": self.dice.choice(["allow", "skip"])}
        return minutely(name=name, **fields)

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def go_on(self) -> Callable[[], bool]:
        """Asked between transactions: time may be up, somebody may kill the tick, another host's may come between."""
        end = self.dice.choice([1, 2, 3, 99, 99])
        asked = iter(range(1000))

        def go_on() -> bool:
            if self.dice.random() < 0.05:
                self.met.add("kill between")
                raise Killed
            if self.depth < 2 and self.dice.random() < 0.2:
                self.met.add("another host")
                self.yard.clock.advance(timedelta(seconds=self.dice.choice([0, 0, 30, 90])))
                if self.dice.random() < 0.3:
                    self.edit()
                self.trouble(self.dice.choice([self.tick, self.sync]))
            return next(asked) < end

        return go_on

    def emit(self, event: Any) -> None:
        self.yard.events.append(event)
        if self.dice.random() < 0.01:
            self.met.add("kill after")
            raise Killed

    def trouble(self, do: Callable[[], Any]) -> None:
        """Do it on one of the hosts, come what may."""
        self.depth += 1
        try:
            do()
        except Killed:
            pass
        except DatabaseError as error:
            self.met.add(type(error).__name__)
        self.depth -= 1

    def refusing(self, patch: pytest.MonkeyPatch) -> None:
        """Now and then a statement is refused, or the last that the process does."""
        for module, name in WITHIN_A_TRANSACTION:
            write = getattr(module, name)

            def refuse(*args: Any, _write: Any = write, **more: Any) -> Any:
                done = _write(*args, **more)
                match self.dice.random():
                    case chance if chance < 0.03:
                        self.met.add("kill within")
                        raise Killed
                    case chance if chance < 0.06:
                        raise self.dice.choice([BadValue("no"), TransientTrouble("deadlock"), DatabaseBusy("db", 2)])
                return done

            patch.setattr(module, name, refuse)

    def break_one(self) -> None:
        """By hand: the database refuses what it makes, or nobody can read it."""
        name = self.dice.choice(list(self.wanted))
        stored = self.stored(name)
        if name in self.broken or stored is None or stored != definition(self.wanted[name]):
            return
        bad: Any = stored | {"priority": 12}
        if self.dice.random() < 0.5:
            bad = self.dice.choice(UNREADABLE)
        self.broken[name] = (stored, bad)
        self.put(name, bad)

    def mend(self) -> None:
        for name, (was, bad) in self.broken.items():
            if self.stored(name) == bad:  # else a file has mended it
                self.put(name, was)
        self.broken.clear()

    def stored(self, name: str) -> Any:
        with self.yard.database.read() as connection:
            query = select(schedules.c.definition).where(schedules.c.name == name, schedules.c.status == "active")
            return connection.execute(query).scalar()

    def put(self, name: str, value: Any) -> None:
        with self.yard.database.write() as connection:
            connection.execute(schedules.update().where(schedules.c.name == name).values(definition=value))

    # --- what happens -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        materialise.materialise(self.yard.database, self.emit, go_on=self.go_on())

    def sync(self) -> None:
        file = self.yard.file(*self.wanted.values())
        sync.sync(
            self.yard.database,
            file,
            self.emit if self.depth else self.yard.events.append,
            host=self.dice.choice(["alpha", "beta"]),
            actor="test",
            allow_removals=True,
            go_on=self.go_on() if self.depth else lambda: True,
        )

    def edit(self) -> None:
        for name in self.dice.sample(list(self.wanted), k=min(3, len(self.wanted))):
            if name not in self.broken and self.stored(name) == definition(self.wanted[name]):
                self.wanted[name] = self.schedule(name)
        healthy = [name for name in self.wanted if name not in self.broken]
        if self.dice.random() < 0.3 and len(healthy) > 3:
            del self.wanted[self.dice.choice(healthy)]
        if self.dice.random() < 0.4:
            name = f"s{self.dice.randint(0, 15):03}"
            if name not in self.wanted and self.stored(name) is None:
                self.wanted[name] = self.schedule(name)

    def finish_jobs(self) -> None:
        if self.dice.random() < 0.5:
            self.yard.finish_jobs()

    def go(self) -> None:
        for _ in range(STEPS):
            self.yard.clock.advance(timedelta(seconds=self.dice.randint(10, 400)))
            match self.dice.random():
                case chance if chance < 0.2:
                    self.break_one()
                case chance if chance < 0.3:
                    self.mend()
                case chance if chance < 0.6:
                    self.edit()
                    self.trouble(self.sync)
            self.trouble(self.tick)
            self.finish_jobs()

    def end(self) -> None:
        """Nothing goes wrong any more."""
        self.mend()
        self.yard.clock.advance(MINUTE)
        assert self.yard.sync(self.yard.file(*self.wanted.values()), allow_removals=True).applied
        self.yard.tick()
        assert {name for name in self.wanted if self.stored(name)} == set(self.wanted)
        with self.yard.database.read() as connection:
            assert not ticks.unfinished_sync(connection)


# --- the judge --------------------------------------------------------------------------------------------------------


def expected(yard: Yard) -> dict[str, list[datetime]]:
    """What was due of each schedule, by the definitions that were in force from when to when."""
    due: dict[str, list[datetime]] = defaultdict(list)
    with yard.database.read() as connection:
        trail = connection.execute(select(audit).order_by(audit.c.id)).all()
        until = dict(connection.execute(select(schedules.c.name, schedules.c.seen_until)).all())
    acts: dict[str, list[tuple[datetime, Any]]] = defaultdict(list)
    for act in trail:
        if act.action in ("define", "retire"):
            acts[act.subject].append((act.at, act.detail if act.action == "define" else None))
    for name, changes in acts.items():
        ends = [at for at, _ in changes[1:]] + [until[name]]
        for (since, written), end in zip(changes, ends, strict=True):
            if written is not None:
                schedule = schedule_from_definition(name, written)
                for instant in timing(schedule.cron, schedule.every, schedule.timezone).after(since):
                    if instant > end:
                        break
                    due[name].append(instant)
    return due


def judge(yard: Yard) -> None:
    due = expected(yard)
    with yard.database.read() as connection:
        ids = dict(connection.execute(select(schedules.c.id, schedules.c.name)).all())
        rows = connection.execute(select(occurrences).order_by(occurrences.c.last_for)).all()
        made = connection.execute(select(jobs.c.id, jobs.c.schedule, jobs.c.scheduled_for)).all()
    settled: dict[str, list[datetime]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        name = ids[row.schedule_id]
        settled[name] += [instant for instant in due[name] if row.first_for <= instant <= row.last_for]
        counts[name] += row._mapping["count"]
    for name in due:
        assert sorted(settled[name]) == due[name], f"{name}: each occurrence in exactly one row"
        assert counts[name] == len(due[name]), f"{name}: and no other"
    ran = {(row.job_id, ids[row.schedule_id], row.last_for) for row in rows if row.outcome == "enqueued"}
    assert {tuple(job) for job in made} == ran, "a job for each that was enqueued, no other"
    assert len(made) == len(ran)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_cuts_chunks_off_each_occurrence_is_settled_once(
    database: Database, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    yard = Yard(database, clock, tmp_path)
    monkeypatch.setattr(chunks, "CHUNK", seed % 4 + 1)
    for module in (materialise, sync):
        monkeypatch.setattr(module, "sleep", lambda _: None)
    life = Life(yard, seed)
    with monkeypatch.context() as patch:
        life.refusing(patch)
        life.go()
    life.end()
    judge(yard)
    with database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM cronjobs_jobs")).scalar_one() > 20
    assert life.met >= {"another host"}
