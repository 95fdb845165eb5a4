"""The fast path finds nothing to do exactly when the full tick does nothing, whatever the tables hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Table, delete, func, insert, select, update
from support.cases import judge
from support.databases import opened
from support.hosts import Host, put
from support.postgres import SUPERUSER, as_role
from support.rounds import rounds

from cronjobs.clock import SYSTEM
from cronjobs.engine.config.load import load
from cronjobs.engine.database import tables
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.probe import fast_path as idle
from cronjobs.engine.probe.idle_conditions import IDLE, NOTHING_DUE
from cronjobs.engine.probe.inputs import Inputs, Start
from cronjobs.engine.tick.idle_inputs import inputs_of
from cronjobs.engine.tick.result import Result
from cronjobs.errors import CronjobsError
from cronjobs.testing import FakeClock

YAML = """\
project: shop
environment: production
database: @database@
queues: {slow: {max_waiting: 100}}
job_types: {t.say: {command: ["true"]}}
schedules:
  night: {cron: "0 2 29 2 *", job: t.say}  # not due by itself, at whatever hour the test runs
  often: {every: 365d, job: t.say}
"""
KEPT = [
    table for table in tables.metadata.sorted_tables if table.name not in ("cronjobs_ticks", "cronjobs_job_type_lists")
]


@contextmanager
def everything(database: Database) -> Iterator[Connection]:
    """A transaction of somebody who may change anything."""
    url = url_of(database)
    with opened(url if database.is_sqlite else as_role(url, SUPERUSER)) as unlimited, unlimited.write() as connection:
        yield connection


def url_of(database: Database) -> str:
    url = database.address.url.render_as_string(hide_password=False)
    return url.replace("+psycopg", "", 1).replace("+pysqlite", "")


class MovedProbe(idle.Probe):
    """The fast path's query, by the clocks of *world*: its host's, and its server's."""

    def __init__(self, world: World) -> None:
        super().__init__(world.inputs, world.place)
        self._world = world

    def facts(self, age_s: float = 0) -> dict[str, object]:
        now = self._world.clock.now()
        host_s = now.timestamp() + self._world.host_ahead_s
        shift_s = (now - SYSTEM.now()).total_seconds()
        clocks = {"host_s": host_s, "now_": round(host_s * 1_000_000) if self._world.database.is_sqlite else shift_s}
        return super().facts(age_s) | clocks


class World:
    """A host that has ticked twice, and its fast path."""

    clock: Any

    def __init__(self, database: Database, folder: Path, text: str = YAML) -> None:
        self.database = database
        self.clock = database.clock
        url = (
            database.address.url.render_as_string(hide_password=False).replace("+psycopg", "").replace("+pysqlite", "")
        )
        lines = text.replace("@database@", url).replace("@schema@", database.address.schema or "").splitlines()
        file = folder / "cronjobs.yaml"
        file.write_text("\n".join(line for line in lines if line != "schema: ") + "\n")
        self.host: Any = Host(database, folder)
        self.host.settings = load(file, environ={})
        self.host.tick()
        self.clock.advance(timedelta(minutes=1))
        self.host.tick()
        self.inputs = self._inputs(folder)
        self.clock.advance(timedelta(minutes=1))
        self.host_ahead_s = 0.0

    def _inputs(self, folder: Path) -> Inputs:
        from cronjobs.engine.tick.tick import Tick

        seen: list[Any] = []
        look = Tick._look

        def noting(tick: Tick) -> Any:
            seen.append(look(tick))
            return seen[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Tick, "_look", noting)
            self.host.tick()
        found = inputs_of(Start(["run-due"]), self.host.settings, self.database.address, seen[-1], "none")
        assert found is not None
        return found

    @property
    def place(self) -> str:
        here = Identity.here()
        return f"{self.host.name}:{here.boot_id}:{here.pid_namespace}:"

    def look(self, probe: idle.Probe | None = None) -> str | None:
        """Return what a lingering tick sees in the database."""
        probe = probe or MovedProbe(self)
        try:
            return probe.look()
        finally:
            probe.close()

    def probe(self) -> bool:
        """Whether the fast path takes the tick; then it has written its row."""
        probe = MovedProbe(self)
        try:
            there_is = probe.look()
            settled = probe.settle(age_s=0.02)
        finally:
            probe.close()
        assert settled == (there_is is None), "a look and the settling question agree"
        return settled

    def full(self) -> Result | None:
        """The full tick; None: it did not start."""
        self.host.events.clear()
        ahead = FakeClock()
        ahead.now = lambda: self.database.clock.now() + timedelta(seconds=self.host_ahead_s)  # type: ignore[method-assign]
        self.host.clock = ahead if self.host_ahead_s else self.database.clock
        try:
            result: Result = self.host.tick()
        except CronjobsError:
            return None
        return result

    def execute(self, statement: Any) -> Any:
        with everything(self.database) as connection:
            return connection.execute(statement)

    def rows(self, table: Table) -> list[Any]:
        with self.database.read() as connection:
            return [
                dict(row._mapping) for row in connection.execute(select(table).order_by(*table.primary_key.columns))
            ]

    def last_tick(self) -> Any:
        return self.rows(tables.ticks)[-1]

    def contents(self) -> list[Any]:
        return [self.rows(table) for table in KEPT]

    def did_nothing(self, before: list[Any], result: Result | None) -> bool:
        """Whether the full tick left no more than the plain row of an idle one."""
        row = self.last_tick()
        return (
            result is not None
            and (result.ended, result.did(), result.exit_code()) == (NOTHING_DUE, {}, 0)
            and not [event for event in self.host.events if event.printed]
            and (row["job_types"], row["not_started"]) == (None, None)
            and self.contents() == before
        )


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    return World(database, tmp_path)


@pytest.fixture
def postgresql_world(postgres_migrated: str, clock: FakeClock, tmp_path: Path) -> Iterator[World]:
    database = Database(parse_url(postgres_migrated), clock=clock)
    yield World(database, tmp_path)
    database.close()


# --- states -----------------------------------------------------------------------------------------------------------

Change = Callable[[World, random.Random], None]


def instant(world: World, dice: random.Random) -> datetime:
    seconds = dice.choice([-90_000, -4000, -3599, -30, -1, 0, 1, 30, 200, 3700, 90_000])
    return world.clock.now() + timedelta(seconds=seconds)  # type: ignore[no-any-return]


def waiting_job(world: World, dice: random.Random) -> None:
    status = dice.choice(["queued", "queued", "failed", "succeeded", "dead"])
    put(
        world.database,
        run_at=instant(world, dice),
        queue=dice.choice(["default", "slow", "mail"]),
        priority=dice.randint(0, 9),
        status=status,
        finished_at=world.clock.now() if status in ("succeeded", "dead") else None,
        job_type=dice.choice(["t.say", "nobody.knows"]),
    )


def running_job(world: World, dice: random.Random) -> None:
    here = Identity.here()
    started = dice.choice([here.started, here.started, "12345", "0"])
    boot = dice.choice([here.boot_id, here.boot_id, "another-boot"])
    host = dice.choice([world.host.name, world.host.name, "beta"])
    runner = Identity(host, boot, here.pid_namespace, here.pid, started, "long-0123456789ab")
    until = world.clock.now() + timedelta(seconds=dice.choice([-5, 20, 50, 300, 900, 90_000_000]))
    holder = dice.choice([str(runner), str(runner), "nonsense", f"{world.place}a:b\nc"])
    put(
        world.database, status="running", attempts=1, locked_by=holder, locked_until=until, started_at=world.clock.now()
    )


def pause(world: World, dice: random.Random) -> None:
    scope, names = dice.choice([("all", [""]), ("queue", ["default", "slow"]), ("schedule", ["night", "often"])])
    until = dice.choice([None, instant(world, dice)])
    values = {"scope": scope, "name": dice.choice(names), "until": until, "skip": dice.choice([0, 0, 1])}
    world.execute(delete(tables.pauses))
    columns = {name: value for name, value in values.items() if name in tables.pauses.c}
    world.execute(insert(tables.pauses).values(columns | {"by": "test"}))


def schedule(world: World, dice: random.Random) -> None:
    column = dice.choice(["next_at", "seen_until"])
    name = dice.choice(["night", "often"])
    world.execute(
        update(tables.schedules).where(tables.schedules.c.name == name).values({column: instant(world, dice)})
    )


def meta(world: World, dice: random.Random) -> None:
    changes: list[dict[str, Any]] = [
        {"project": "other"},
        {"environment": "staging"},
        {"project": "", "environment": ""},
        {"schema_revision": "9999"},
        {"schema_revision": "0001"},
        {"oldest_code": "9999"},
        {"pruned_at": None},
        {"pruned_at": instant(world, dice)},
    ]
    world.execute(update(tables.meta).values(dice.choice(changes)))


def ledger(world: World, dice: random.Random) -> None:
    audit = tables.audit
    entry = {"subject": "0" * 16, "actor": "test", "host": dice.choice([world.host.name, "beta"])}
    match dice.randrange(4):
        case 0:
            world.execute(insert(audit).values(entry | {"action": "sync_begun", "detail": {"removals": False}}))
        case 1:
            world.execute(delete(audit).where(audit.c.action == "sync"))
        case 2:
            world.execute(insert(audit).values(entry | {"action": "sync"}))
        case _:
            world.execute(insert(audit).values(entry | {"action": "jobs.retry"}))


def ticks(world: World, dice: random.Random) -> None:
    rows = tables.ticks
    ours = rows.c.host == world.host.name
    match dice.randrange(5):
        case 0:
            world.execute(update(rows).where(ours).values(fingerprint=dice.choice([None, "f" * 16])))
        case 1:
            loaded = update(rows).where(ours, rows.c.job_types.is_not(None))
            world.execute(loaded.values(started_at=instant(world, dice)))
        case 2:
            world.execute(update(rows).where(ours).values(host="beta"))
        case 3:
            why = [{"why": "unknown_type", "type": "nobody.knows", "jobs": 1}]
            world.execute(update(rows).where(ours, rows.c.job_types.is_not(None)).values(not_started=why))
        case _:
            began = instant(world, dice)
            values = {"tick": f"{dice.random()}", "host": "beta", "pid": 1, "version": "1", "started_at": began}
            world.execute(insert(rows).values(values))


def time_passes(world: World, dice: random.Random) -> None:
    world.clock.advance(timedelta(seconds=dice.choice([1, 59, 600, 1799, 3700, 90_000])))


def clock_is_wrong(world: World, dice: random.Random) -> None:
    if not world.database.is_sqlite:  # SQLite's clock is the host's
        world.host_ahead_s = dice.choice([-3600.0, -61.0, -59.0, 59.0, 61.0, 3600.0])


CHANGES: list[Change] = [
    waiting_job,
    running_job,
    pause,
    schedule,
    meta,
    ledger,
    ticks,
    time_passes,
    clock_is_wrong,
]


def may_be_cautious(world: World) -> bool:
    """Whether the fast path leaves this state to the full tick even where that finds nothing to do."""
    revision = world.rows(tables.meta)[0]["schema_revision"]
    left_something = any(row["not_started"] for row in world.rows(tables.ticks) if row["job_types"])
    held = [row["locked_by"] for row in world.rows(tables.jobs) if row["locked_until"] is not None]
    unproven = [holder for holder in held if holder.startswith(world.place) and not idle.is_alive(holder)]
    ahead = [row for row in world.rows(tables.schedules) if row["seen_until"] > world.clock.now()]
    mine = [row["fingerprint"] for row in world.rows(tables.ticks) if row["host"] == world.host.name]
    unsure = not mine or mine[-1] is None  # which file this host had
    now = world.clock.now()
    ends = [row["locked_until"] for row in world.rows(tables.jobs) if row["locked_until"] is not None]
    # the full tick's recovery settles these
    judged = [end for end in ends if not now <= end <= now + timedelta(minutes=6)]
    return revision != tables.SCHEMA_REVISION or left_something or unsure or bool(unproven or ahead or judged)


def agree(world: World, dice: random.Random) -> bool:
    """Change the tables, ask both; return whether the tick was idle."""
    changes = dice.sample(CHANGES, dice.choice([0, 1, 1, 1, 2, 2, 3]))
    for change in changes:
        change(world, dice)
    before = world.contents()
    cautious = may_be_cautious(world)
    was_idle = world.probe()
    assert world.contents() == before, "the fast path changed more than its row"
    did_nothing = world.did_nothing(before, world.full())
    if was_idle:
        assert did_nothing, "the fast path took a tick that had something to do"
    elif not cautious:
        assert not did_nothing, f"{[change.__name__ for change in changes]}: the fast path left an idle tick"
    return was_idle


def cases(count: int, seed: int, database: Database, folder: Path) -> int:
    """Judge *count* random states; return how many of them were idle."""
    idle_ones = 0
    for number in range(count):
        with everything(database) as connection:
            for table in reversed(tables.metadata.sorted_tables):
                if table is not tables.meta:
                    connection.execute(delete(table))
            fresh = {"project": "", "environment": "", "schema_revision": tables.SCHEMA_REVISION, "pruned_at": None}
            connection.execute(update(tables.meta).values(fresh | {"oldest_code": "0001"}))
        case = folder / str(number)
        case.mkdir()
        try:
            idle_ones += agree(World(database, case), random.Random(f"{seed}-{number}"))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, case {number}: {error}") from error
    return idle_ones


def test_the_fast_path_and_the_full_tick_agree_in_any_state(database: Database, tmp_path: Path) -> None:
    assert cases(12, 1, database, tmp_path) >= 2


@pytest.mark.slow
def test_the_fast_path_and_the_full_tick_agree_in_many_states(database: Database, tmp_path: Path) -> None:
    assert cases(rounds(30, 60), 2, database, tmp_path) >= rounds(4, 9)


# --- each question ----------------------------------------------------------------------------------------------------


def changed(table: Table, **values: Any) -> Callable[[World], None]:
    """Set columns in all rows; what is a function is asked for the value."""

    def do(world: World) -> None:
        ready = {name: value(world) if callable(value) else value for name, value in values.items()}
        world.execute(update(table).values(ready))

    return do


def soon(seconds: float) -> Callable[[World], datetime]:
    return lambda world: world.clock.now() + timedelta(seconds=seconds)


def lease(seconds: float) -> Callable[[World], None]:
    def do(world: World) -> None:
        until = world.clock.now() + timedelta(seconds=seconds)
        put(world.database, status="running", attempts=1, locked_by="beta:b:1:7:9:abc", locked_until=until)

    return do


def paused_job(world: World) -> None:
    put(world.database)
    world.execute(insert(tables.pauses).values(scope="all"))


def a_misfit(world: World) -> None:
    put(world.database, status="failed", run_at=world.clock.now() + timedelta(hours=1), misfit_since=world.clock.now())


def forgotten_sync(world: World) -> None:
    world.execute(delete(tables.audit).where(tables.audit.c.action == "sync"))


def interrupted_sync(world: World) -> None:
    entry = {"action": "sync_begun", "subject": world.inputs["fingerprint"], "actor": "test", "host": "beta"}
    world.execute(insert(tables.audit).values(entry))


def with_handlers(**values: Any) -> Callable[[World], None]:
    def do(world: World) -> None:
        ready = {name: value(world) if callable(value) else value for name, value in values.items()}
        world.execute(update(tables.ticks).where(tables.ticks.c.job_types.is_not(None)).values(ready))

    return do


def jumped(world: World) -> None:
    newest = select(func.max(tables.ticks.c.id)).scalar_subquery()
    long_ago = world.clock.now() - timedelta(days=3)
    world.execute(update(tables.ticks).where(tables.ticks.c.id == newest).values(started_at=long_ago))


def with_alerts(look_at: Any) -> Callable[[World], None]:
    def do(world: World) -> None:
        world.inputs.ours["alerts"] = "1"
        changed(tables.meta, look_at=look_at)(world)

    return do


# A question of the fast path → states in which it alone says no.
ASKED: dict[str, list[Callable[[World], None]]] = {
    "it is our database": [changed(tables.meta, project="other"), changed(tables.meta, environment="test")],
    "the tables are those that the last full tick saw": [
        changed(tables.meta, schema_revision="9999"),
        changed(tables.meta, oldest_code="9999"),
    ],
    "no lease has expired": [lease(-1)],
    "no lease was written by a wrong clock": [lease(86_400)],
    "no schedule is due": [
        changed(tables.schedules, next_at=soon(-1)),
        changed(tables.schedules, seen_until=soon(3600)),
    ],
    "no job is due": [lambda world: void(put(world.database))],
    "no job waits in a paused queue (a tick records such jobs)": [paused_job],
    "the last tick with handlers left nothing that may be fixed now": [with_handlers(not_started=[{"why": "x"}])],
    "no payload waits for code that takes it (each tick would record its version)": [a_misfit],
    "handlers were loaded lately": [with_handlers(started_at=soon(-3601)), with_handlers(job_types=None)],
    "this host's last tick had this file": [changed(tables.ticks, fingerprint="f" * 16)],
    "the file was applied, or defines nothing": [forgotten_sync],
    "no sync was interrupted": [interrupted_sync],
    "old rows were pruned lately": [
        changed(tables.meta, pruned_at=soon(-3601)),
        changed(tables.meta, pruned_at=None),
        changed(tables.meta, pruned_at=soon(3700)),
    ],
    "the clock did not jump": [jumped],
    "no finding may have begun or ended, or this host sends no alerts": [
        with_alerts(soon(-1)),
        with_alerts(None),
        with_alerts(soon(7200)),  # a wrong clock wrote this
    ],
    "this host's clock is right": [],  # for a server; tested below
}


def test_an_idle_tick_of_a_host_that_sends_alerts_waits_for_the_next_look(world: World) -> None:
    assert world.probe(), "it is the same to a host without alerts"
    with_alerts(soon(60))(world)
    assert world.probe()
    world.clock.advance(timedelta(seconds=61))
    assert not world.probe()


def test_a_look_differs_from_the_one_before_whenever_one_more_job_is_due(database: Database, tmp_path: Path) -> None:
    """Beside what is left undone, and whatever its id, its instant, its queue and how it came to wait."""
    world = World(database, tmp_path)

    def case(chance: random.Random) -> None:
        def later(seconds: float) -> datetime:
            return world.clock.now() + timedelta(seconds=seconds)  # type: ignore[no-any-return]

        def waits(run_at: datetime) -> int:
            queue, priority = chance.choice(["default", "slow", "mail"]), chance.randint(0, 9)
            return put(world.database, run_at=run_at, queue=queue, priority=priority, job_type="t.say")

        world.execute(delete(tables.jobs))
        comes = chance.choice(["later", "now", "in the past", "retried", "put back"])
        early = waits(later(3600)) if comes != "later" else 0
        coming = later(chance.choice([0.5, 5])) if comes == "later" else None
        first = waits(coming) if coming else 0
        for _ in range(chance.randint(1, 3)):  # what a full tick leaves
            waits(later(-chance.choice([0, 0.25, 10, 4000])))
        for _ in range(chance.randint(0, 3)):
            waits(later(7200))
        seen = world.look()
        assert seen
        assert world.look() == seen, "nothing has changed"
        world.clock.advance(timedelta(seconds=1 if chance.random() < 0.5 else 6))
        match comes:
            case "later":
                world.clock.advance(timedelta(seconds=5))
                assert first
            case "now":
                waits(later(0))
            case "in the past":
                waits(later(-chance.choice([60, 86_400])))
            case "retried":
                failed = {"status": "failed", "attempts": 1, "failures": 1, "run_at": later(-0.5)}
                world.execute(update(tables.jobs).where(tables.jobs.c.id == early).values(failed))
            case "put back":
                world.execute(update(tables.jobs).where(tables.jobs.c.id == early).values(run_at=later(0)))
        assert world.look() != seen, comes

    judge(case, 25)


def void(_: object) -> None:
    """Throw a result away."""


@pytest.mark.parametrize(
    ("question", "state"), [(question, state) for question, states in ASKED.items() for state in range(len(states))]
)
def test_each_question_alone_makes_a_full_tick(world: World, question: str, state: int) -> None:
    ASKED[question][state](world)
    assert not world.probe(), question


def test_every_question_is_tried() -> None:
    assert ASKED.keys() == IDLE.keys()


@pytest.mark.parametrize("ahead_s", [-61, 61])
def test_a_clock_that_differs_from_the_server_makes_a_full_tick(postgresql_world: World, ahead_s: int) -> None:
    assert postgresql_world.probe()
    postgresql_world.host_ahead_s = ahead_s
    assert not postgresql_world.probe()


# --- what the row says ------------------------------------------------------------------------------------------------


def test_the_fast_path_writes_the_row_that_the_full_tick_would(world: World) -> None:
    assert world.probe()
    fast = world.last_tick()
    world.full()
    slow = world.last_tick()
    differ = {name for name in slow if slow[name] != fast[name]}
    assert differ <= {"id", "tick", "started_at", "finished_at"}
    assert timedelta(0) <= fast["finished_at"] - fast["started_at"] < timedelta(seconds=1)
    assert abs(fast["finished_at"] - world.clock.now()) < timedelta(seconds=2)


def test_a_running_job_of_a_live_process_here_keeps_the_fast_path(world: World) -> None:
    here = Identity.here()
    runner = replace(here, host=world.host.name, tick="long-0123456789ab")
    soon = world.clock.now() + timedelta(seconds=50)
    put(world.database, status="running", attempts=1, locked_by=str(runner), locked_until=soon)
    assert world.probe()
    put(world.database, status="running", attempts=1, locked_by=str(replace(runner, started="1")), locked_until=soon)
    assert not world.probe()


def test_a_tick_that_holds_leases_now_and_then_is_new_once_and_its_end_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each look beside it would start a full tick that can start nothing, because a limit is reached."""
    put(world.database, job_type="t.say")  # what a full tick left
    probe = MovedProbe(world)
    before = world.look(probe)
    runner = str(replace(Identity.here(), host=world.host.name, tick="0123456789ab"))
    lease = {"locked_by": runner, "locked_until": world.clock.now() + timedelta(seconds=50)}
    job_id = put(world.database, status="running", attempts=1, **lease)
    seen = world.look(probe)
    assert seen != before
    ended = {"status": "succeeded", "locked_by": None, "locked_until": None, "finished_at": world.clock.now()}
    world.execute(update(tables.jobs).where(tables.jobs.c.id == job_id).values(ended))
    assert world.look(probe) == seen
    put(world.database, status="running", attempts=1, **lease)
    assert world.look(probe) == seen
    monkeypatch.setattr(idle, "is_alive", lambda _: False)
    assert world.look(probe) not in (seen, before), "it died, and holds a job"
    world.execute(delete(tables.jobs).where(tables.jobs.c.locked_by == runner))
    assert world.look(probe) == before


def test_a_file_that_defines_nothing_is_idle_too(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, "database: @database@\n")
    assert world.probe()
    values = {"name": "old", "definition": {}, "status": "retired", "fingerprint": "x"}
    columns = {name: value for name, value in values.items() if name in tables.schedules.c}
    world.execute(insert(tables.schedules).values(columns | {"seen_until": world.clock.now()}))
    assert not world.probe(), "what an earlier file defined is there"
