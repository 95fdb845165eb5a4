"""One case: hosts whose job types change, ticks that die at any commit or in a handler, and what must be true.

All of it happens in this process, in fake time. A tick that is killed does nothing any more from that point on:
whatever it writes is refused by raising ``Killed``, which no safety net catches.
"""

from __future__ import annotations

import queue
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection, delete, insert, select

from cronjobs import events
from cronjobs.clock import SYSTEM, Clock, sleep
from cronjobs.engine.config.settings import RunSettings, Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs, metadata
from cronjobs.engine.execution.attempt import Attempt, Ended, WorkerContext
from cronjobs.engine.execution.handler import run_attempt
from cronjobs.engine.execution.worker_threads import Workers
from cronjobs.engine.host import identity
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs import job_types
from cronjobs.engine.jobs.job_types import Fault, JobType, JobTypes
from cronjobs.engine.jobs.registry import Registration
from cronjobs.engine.rules.ending import running_row
from cronjobs.engine.store import claims, leases
from cronjobs.engine.tick import work
from cronjobs.engine.tick.result import Result
from cronjobs.engine.tick.tick import Tick
from cronjobs.engine.tick.watchdog import Unarmed
from cronjobs.model import Finished, RetryPolicy, TimedOut
from cronjobs.testing import FakeClock

START = datetime(2026, 3, 2, 8, 0, 30, tzinfo=UTC)
NOBODY = 2**22 + 7  # no process has this number
HEALING_TICKS = 40
HALF_AN_HOUR = timedelta(minutes=31)

TYPES = {
    "pay.dead": JobType("pay.dead", timedelta(seconds=10), RetryPolicy(), on_lost="dead"),
    "pay.single": JobType("pay.single", timedelta(seconds=10), RetryPolicy(max_attempts=1)),
    "work.plain": JobType("work.plain", timedelta(seconds=10), RetryPolicy()),
    "work.tries": JobType("work.tries", timedelta(seconds=10), RetryPolicy(max_attempts=4, base="10s")),
}
# What the code of a job does in its first attempt; in the next ones it comes to its end.
MANNERS = {
    "pay.dead": ("ends",),
    "pay.single": ("ends", "fails", "hangs"),
    "work.plain": ("ends", "fails", "hangs"),
    "work.tries": ("ends", "fails"),
}


class Killed(BaseException):
    """Raised in place of kill -9: this tick is dead."""


@dataclass(frozen=True)
class Report:
    """``violations``: what must not be. The rest says whether the case was one at all."""

    violations: list[str]
    ticks: int
    kills: int
    executions: int


class DyingDatabase(Database):
    """Dies at the n-th of the points before, inside and behind its transactions."""

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(parse_url(url), clock=clock)
        self.die_at: int | None = None
        self.dead = False

    def _point(self) -> None:
        if self.die_at is not None:
            self.die_at -= 1
            self.dead = self.dead or self.die_at < 0
        if self.dead:
            raise Killed

    @contextmanager
    def write(self, **options: Any) -> Iterator[Connection]:
        self._point()
        with super().write(**options) as connection:
            yield connection
            self._point()  # not committed
        self._point()  # committed, and nobody here knows

    @contextmanager
    def read(self) -> Iterator[Connection]:
        self._point()
        with super().read() as connection:
            yield connection


class _Ends(queue.SimpleQueue["Ended | None"]):
    """Waiting for an end is when the work is done."""

    def __init__(self, run: Callable[[Attempt], Ended]) -> None:
        self.waiting: deque[Attempt] = deque()
        self._run = run

    def get(self, block: bool = True, timeout: float | None = None) -> Ended | None:
        if self.waiting:
            return self._run(self.waiting.popleft())
        sleep(min(timeout or 0.0, 0.01))
        raise queue.Empty

    def get_nowait(self) -> Ended | None:
        return self.get(block=False)


class Inline(Workers):
    """Workers that work in the loop's own thread, so that a tick that dies leaves nothing that runs."""

    def __init__(self, count: int, around: WorkerContext, clock: Clock) -> None:
        super().__init__(count, around, clock)
        self._ends = _Ends(self._attempt)
        self.ended = self._ends

    def hand(self, attempt: Attempt) -> bool:
        attempt.on_its_way = True
        self._ends.waiting.append(attempt)
        return True

    def take_back(self) -> list[Attempt]:
        unbegun = list(self._ends.waiting)
        self._ends.waiting.clear()
        return unbegun

    def wake(self) -> None:
        pass

    def _attempt(self, attempt: Attempt) -> Ended:
        attempt.worker, attempt.started = "1", self.clock.monotonic()
        attempt.in_child_process = False  # a child knows nothing of these handlers
        finished: Finished = run_attempt(attempt, self.around, self.clock)
        return Ended(attempt, finished, self.clock.monotonic())


@dataclass
class World:
    """The database and the clock of all cases; each begins on empty tables."""

    database: DyingDatabase
    clock: FakeClock
    folder: Path
    random: random.Random = field(default_factory=random.Random)
    executed: Counter[int] = field(default_factory=Counter)
    manners: dict[int, str] = field(default_factory=dict)
    types_of: dict[int, str] = field(default_factory=dict)
    registry: JobTypes = field(default_factory=JobTypes)
    violations: list[str] = field(default_factory=list)
    ticks: int = 0
    kills: int = 0

    # --- one case -----------------------------------------------------------------------------------------------------

    def case(self, seed: int) -> Report:
        self._begin(seed)
        hosts = [f"web{number}" for number in range(self.random.randint(1, 3))]
        for _ in range(self.random.randint(1, 6)):
            self._add()
        for _ in range(self.random.randint(2, 7)):
            self._tick(self.random.choice(hosts), self._registry(), kill=self.random.random() < 0.6)
            self.clock.advance(timedelta(seconds=self.random.choice([5, 61, 130, 200])))
        self._heal(hosts[0])
        self._judge()
        return Report(self.violations, self.ticks, self.kills, self.executed.total())

    def _begin(self, seed: int) -> None:
        self.random.seed(seed)
        self.clock.set(START)
        self.executed, self.manners, self.types_of, self.violations = Counter(), {}, {}, []
        self.ticks = self.kills = 0
        self.database.dead, self.database.die_at = False, None
        with self.database.write() as connection:
            for table in reversed(metadata.sorted_tables):
                if table.name != "cronjobs_meta":
                    connection.execute(delete(table))

    def _add(self) -> None:
        job_type = self.random.choice(list(TYPES))
        now = self.clock.now()
        with self.database.write() as connection:
            values = {"job_type": job_type, "run_at": now, "created_at": now}
            job_id = connection.execute(insert(jobs).values(values).returning(jobs.c.id)).scalar_one()
        self.types_of[job_id], self.manners[job_id] = job_type, self.random.choice(MANNERS[job_type])

    def _registry(self) -> JobTypes:
        """What a host can run at the moment. A module may fail to import, and a handler may be gone."""
        types, faults = {}, []
        for name, job_type in TYPES.items():
            match self.random.choice(["here", "here", "gone", "broken"]):
                case "here":
                    types[name] = self._with_code(job_type)
                case "broken":
                    faults.append(Fault(f"module {name}", "cannot be imported: ModuleNotFoundError"))
        return JobTypes(types, tuple(faults))

    def _with_code(self, job_type: JobType) -> JobType:
        return JobType(
            job_type.name,
            job_type.timeout,
            job_type.retry,
            Registration(job_type.name, self._handler),
            on_lost=job_type.on_lost,
        )

    def _handler(self, ctx: Any) -> None:
        first = not self.executed[ctx.job_id]
        self.executed[ctx.job_id] += 1
        if self.die_in_handler and self.random.random() < 0.5:
            self.database.dead = True
        elif first and self.manners[ctx.job_id] == "hangs":
            self._time_out(ctx.job_id)
        elif first and self.manners[ctx.job_id] == "fails":
            raise RuntimeError("no luck")

    def _time_out(self, job_id: int) -> None:
        """The tick records that the job timed out. The tick's timer then ends the tick while the code still runs."""
        with self.database.write() as connection:
            row = connection.execute(select(jobs).where(jobs.c.id == job_id)).one()
            [job] = [each for each in claims.held_by(connection, row.locked_by) if each.id == job_id]
            end = running_row(job, TimedOut("still running after its timeout of 10s"), timedelta(seconds=10), "1")
            leases.record_overdue(connection, [end])
        self.database.dead = True

    # --- ticks --------------------------------------------------------------------------------------------------------

    die_in_handler: bool = False

    def _tick(self, host: str, registry: JobTypes, *, kill: bool) -> Result | None:
        """Run one tick of *host*; None if it was killed."""
        self.registry = registry
        self.database.dead, self.database.die_at = False, None
        self.die_in_handler = False
        if kill:
            if self.random.random() < 0.4:
                self.die_in_handler = True
            else:
                self.database.die_at = self.random.randint(0, 25)
        said: list[events.Event] = []
        began = SYSTEM.monotonic()
        try:
            result = self._new_tick(host, said).run()
        except Killed:
            self.kills += 1
            return None
        finally:
            self.ticks += 1
            self.database.dead, self.database.die_at = False, None
        if SYSTEM.monotonic() - began > 30:
            self.violations.append(f"a tick took {SYSTEM.monotonic() - began:.1f} s")
        self._judge_tick(result, registry, said)
        return result

    def _new_tick(self, host: str, said: list[events.Event]) -> Tick:
        began = self.clock.monotonic()
        return Tick(
            settings=Settings(file=self.folder / "cronjobs.yaml", folder=self.folder, run=RunSettings(workers=2)),
            database=self.database,
            # A process of this host that is no more when the next one looks.
            identity=Identity(host, f"boot-of-{host}", "1", NOBODY, "1", f"{self.random.getrandbits(48):012x}"),
            clock=self.clock,
            watchdog=Unarmed(),
            began=began,
            deadline=began + 50,
            emit=said.append,
        )

    def _heal(self, host: str) -> None:
        """The deploy is over: everything is registered, and nobody is killed any more."""
        everything = JobTypes({name: self._with_code(job_type) for name, job_type in TYPES.items()})
        for _ in range(HEALING_TICKS):
            self.clock.advance(HALF_AN_HOUR)
            try:
                hung = self._tick(host, everything, kill=False) is None
            except Exception as error:
                self.violations.append(f"a tick ended in {error!r}")
                return
            if not hung and not self._unfinished():
                return
        self.violations.append(f"after {HEALING_TICKS} ticks there is still work: {self._unfinished()}")

    def _unfinished(self) -> list[tuple[int, str]]:
        with self.database.read() as connection:
            rows = connection.execute(select(jobs.c.id, jobs.c.status).where(jobs.c.finished_at.is_(None)))
            return [(row.id, row.status) for row in rows]

    # --- the judge ----------------------------------------------------------------------------------------------------

    def _judge_tick(self, result: Result, registry: JobTypes, said: list[events.Event]) -> None:
        names = Counter(event.name for event in said)
        if result.fault is not None or result.trouble is not None:
            self.violations.append(f"a tick ended in {result.fault!r} {result.trouble}")
        # A tick that had nothing to do imports nothing, and cannot know.
        worked = result.counts.claimed
        if registry.faults and worked and (names["config.fault"] != len(registry.faults) or result.exit_code() != 3):
            self.violations.append(f"a module that cannot be imported was not reported: {dict(names)}")
        with self.database.read() as connection:
            lost = connection.execute(
                select(jobs.c.job_type).where(jobs.c.status == "running", jobs.c.locked_until < self.clock.now())
            ).scalars()
            alone = set(lost)
        if alone:
            self.violations.append(f"lost attempts were left: {alone}")

    def _judge(self) -> None:
        with self.database.read() as connection:
            rows = connection.execute(select(jobs)).all()
        for row in rows:
            times, what = self.executed[row.id], f"job {row.id} {row.job_type} ({self.manners[row.id]})"
            if row.job_type == "pay.dead" and (times > 1 or row.status not in ("succeeded", "dead")):
                self.violations.append(f"{what} was executed {times} times, and is {row.status}")
            ended_badly = 1 if self.manners[row.id] != "ends" else 0
            if times > 1 + row.losses + ended_badly:
                self.violations.append(f"{what} was executed {times} times with {row.losses} losses")
            if row.job_type == "pay.single" and row.failures and (row.status != "dead" or row.failures != 1):
                self.violations.append(f"{what} had its only try, and is {row.status}")
            if row.job_type == "pay.single" and times > 1 + row.losses:
                self.violations.append(f"{what} was executed {times} times with {row.losses} losses")
            if row.job_type.startswith("work.") and (row.status != "succeeded" or not times):
                self.violations.append(f"{what} is {row.status} after {times} executions: {row.last_error}")
            if row.losses == 0 and self.manners[row.id] == "ends" and times != 1:
                self.violations.append(f"{what} was executed {times} times, and nobody died with it")


@contextmanager
def world(url: str, folder: Path) -> Iterator[World]:
    """A world on a migrated database that is its alone."""
    clock = FakeClock(START)
    database = DyingDatabase(url, clock)
    here = World(database, clock, folder)
    with (
        patch.object(job_types, "load", lambda _settings: here.registry),
        patch.object(work, "Workers", Inline),
        patch.object(identity, "_launchers_of", lambda _pid: []),  # nothing is started here, and /proc is large
    ):
        try:
            yield here
        finally:
            database.close()
