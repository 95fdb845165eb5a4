"""Which of these report an incident: ``status``, ``check --live``, the first page, a tick's exit code and mail.

Each row of the table makes an incident, names what must report it, and ends the incident. After that, all must be well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select, text, update
from support.alerted import noting
from support.browsing import Browser, Reply
from support.hosts import Host

from cronjobs.clock import SYSTEM
from cronjobs.contrib.alerts import alert_rounds
from cronjobs.contrib.exec import delivery
from cronjobs.contrib.exec.run import ExecRun
from cronjobs.contrib.web.application import Application
from cronjobs.contrib.web.project import Current, OwnDatabase
from cronjobs.contrib.web.security import AppAccess
from cronjobs.desk.insight.acking import acknowledge
from cronjobs.desk.insight.findings import Finding, troubles
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.rules.finding_kinds import FINDING_KINDS
from cronjobs.engine.config.settings import (
    AlertChannel,
    AlertFilter,
    AlertSettings,
    CommandChannel,
    Retention,
    RunSettings,
    ScheduleSettings,
)
from cronjobs.engine.database import tables
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs import job_types, registry
from cronjobs.engine.rules.capacity import Cap
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.run_due import cron_mail as report
from cronjobs.engine.run_due.cron_mail import CronMail
from cronjobs.engine.schedules.backfill import backfill, trigger
from cronjobs.engine.store import effects, operating, schedules
from cronjobs.engine.store.alerts import look_soon
from cronjobs.engine.store.operating import OperatorAction
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.tick.work import Work
from cronjobs.errors import CronjobsError, Problem, RetryLater, Snooze
from cronjobs.model import duration
from cronjobs.testing import FakeClock

START = datetime(2026, 3, 2, 8, 0, 30, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@dataclass
class World:
    """A healthy project with one host, and what its ticks printed."""

    database: Database
    clock: FakeClock
    folder: Path
    host: Host = field(init=False)
    broken: bool = False  # whether t.say raises
    snoozes: bool = False  # whether it puts itself off by a day
    asks: str = ""  # how long its RetryLater asks to wait
    code: int = 0  # exit code of the last tick
    mail: str = ""  # printed by all ticks since the last look

    def __post_init__(self) -> None:
        self.host = Host(self.database, self.folder)
        self.carry(nightly=schedule("nightly", "0 12 * * *"), hourly=schedule("hourly", "0 * * * *"))

    def carry(self, **wanted: ScheduleSettings) -> None:
        self.host.carry(schedules=wanted)

    def tick(self, host: Host | None = None, **how: Any) -> None:
        host = host or self.host
        host.events.clear()
        mail = CronMail(self.folder / "cronjobs.yaml", throttle=True)
        reporter = mail.reporter(None, talk=False)
        try:
            result = host.tick(**how)
        except CronjobsError as error:
            self.code = error.exit_code
            mail.trouble(str(error))
        else:
            self.code = result.exit_code()
            for event in host.events:
                reporter.note(event)
            for problem in host.settings.problems:
                mail.trouble(str(problem))
            mail.print_causes(reporter)
        mail.send()

    def minutes(self, count: int, **how: Any) -> None:
        """Let so many minutes pass, with a tick in each."""
        for _ in range(count):
            self.clock.advance(MINUTE)
            self.tick(**how)

    def later(self, span: str, *, ticks: bool = True) -> None:
        """Time passes; with *ticks* those of its last minutes come, too."""
        self.clock.advance(duration(span) - (2 * MINUTE if ticks else timedelta(0)))
        if ticks:
            self.minutes(2)

    def found(self) -> list[Finding]:
        settings = self.host.settings
        with self.database.read() as connection:
            return troubles(look(connection, settings, job_types.load(settings)), settings)

    def on_page(self) -> Reply:
        """The first page of ``cronjobs web``."""
        current, doors = Current(self.host.settings), OwnDatabase(self.database)
        return Browser(Application(current, doors, AppAccess(lambda _: "ada"), "alpha")).get("/")

    def count(self, status: str) -> int:
        with self.database.read() as connection:
            wanted = select(func.count()).select_from(tables.jobs).where(tables.jobs.c.status == status)
            return int(connection.execute(wanted).scalar_one())

    # --- what people and time do --------------------------------------------------------------------------------------

    def put(self, **values: Any) -> int:
        now = self.clock.now()
        with self.database.write() as connection:
            row = {"job_type": "t.say", "run_at": now, "created_at": now} | values
            return int(connection.execute(insert(tables.jobs).values(row).returning(tables.jobs.c.id)).scalar_one())

    def change(self, statement: Any) -> None:
        with self.database.write() as connection:
            connection.execute(statement)

    def act(self, verb: Callable[..., Any], name: str) -> None:
        """Apply *verb* to all dead jobs."""
        with self.database.write() as connection:
            dead = connection.execute(select(tables.jobs.c.id).where(tables.jobs.c.status == "dead")).scalars().all()
            verb(connection, dead, OperatorAction(name, "ada", "alpha", None))

    def dismiss(self) -> None:
        self.act(operating.dismiss, "dismiss")

    def pause(self, scope: str, name: str = "", ago: timedelta = timedelta(0), skip: bool = False) -> None:
        with self.database.write() as connection:
            now = self.clock.now() - ago
            schedules.pause(connection, scope=scope, name=name, until=None, by="ada", why="deploy", now=now, skip=skip)

    def resume(self, scope: str, name: str = "") -> None:
        with self.database.write() as connection:
            schedules.resume(connection, scope=scope, name=name, now=database_now(connection))
        self.minutes(2)

    def trigger(self, name: str) -> None:
        with self.database.write() as connection:
            trigger(connection, name, force=True, actor="ada", host="alpha")
        self.minutes(1)


def schedule(name: str, cron: str, **fields: Any) -> ScheduleSettings:
    return ScheduleSettings(**({"name": name, "job": "t.say", "cron": cron} | fields))


@dataclass(frozen=True)
class Incident:
    """``live``: what ``check --live`` reports, if that is not what ``status`` does. ``mail``: words of the tick's."""

    name: str
    make: Callable[[World], Any]
    status: str
    mend: Callable[[World], Any] = lambda world: None
    live: str | None = None
    code: int = 0
    mail: str = ""
    left: str = ""  # findings that remain after ``mend``


# --- making them ------------------------------------------------------------------------------------------------------


def a_death(world: World) -> None:
    world.broken = True
    world.put(max_attempts=1)
    world.minutes(1)
    world.broken = False


def cancelled_in_an_effect(world: World) -> None:
    now = world.clock.now()
    ended = {"started_at": now, "cancel_requested_at": now, "finished_at": now, "attempts": 1}
    job_id = world.put(status="cancelled", **ended)
    for key in ("capture:7", f"job:{job_id}:step:render"):
        world.change(insert(tables.effects).values(key=key, job_id=job_id, attempt=1, begun_at=now))
    world.minutes(1)


def effect_settled(world: World) -> None:
    [found] = world.found()
    assert "nobody knows whether the effect capture:7 of job 1 happened" in found.text
    with world.database.write() as connection:
        effects.settle(connection, "capture:7", None)
    world.minutes(1)


def cancelled_job_retried(world: World) -> None:
    with world.database.write() as connection:
        operating.retry(connection, [1], OperatorAction("retry", "ada", "alpha", None))
    world.minutes(1)


def a_death_last_night(world: World) -> None:
    a_death(world)
    world.later("8h")


def died_again(world: World) -> None:
    a_death(world)
    world.dismiss()
    world.broken = True
    world.clock.advance(MINUTE)
    world.act(operating.retry, "retry")
    world.minutes(1)
    world.broken = False


def retried(world: World) -> None:
    world.act(operating.retry, "retry")
    world.minutes(1)


def unreadable(world: World) -> None:
    world.put(payload=["not", "an", "object"])
    world.minutes(1)


def lost_for_good(world: World) -> None:
    gone = {"locked_by": "gone:b:1:1:1:t", "locked_until": world.clock.now() - MINUTE, "attempts": 1}
    world.put(status="running", losses=9, started_at=world.clock.now() - HOUR, **gone)
    world.minutes(1)


def failing(world: World) -> None:
    world.broken = True
    world.carry(hourly=schedule("hourly", "0 * * * *"), nightly=schedule("nightly", "5 8 * * *"))
    world.minutes(20)


def healed(world: World) -> None:
    world.broken = False
    world.minutes(40)
    world.dismiss()


def one_by_hand_goes_well(world: World) -> None:
    world.broken = False
    world.trigger("nightly")
    world.dismiss()


def schedules_off(world: World) -> None:
    world.minutes(7, fire_schedules=False)


def one_host_off(world: World) -> None:
    other = Host(world.database, world.folder, "beta")
    other.settings = world.host.settings
    for _ in range(8):
        world.minutes(1)
        world.tick(other, fire_schedules=False)


def unreadable_definition(world: World) -> None:
    unreadable = {"cron": 7, "job": "t.say"}
    world.change(update(tables.schedules).where(tables.schedules.c.name == "hourly").values(definition=unreadable))
    world.clock.set(START.replace(hour=9, minute=0))
    world.minutes(5)


def definition_again(world: World) -> None:
    with world.database.read() as connection:
        good = connection.execute(select(tables.schedules.c.definition).where(tables.schedules.c.name == "nightly"))
        cron = dict(good.scalar_one()) | {"cron": "0 * * * *"}
    world.change(update(tables.schedules).where(tables.schedules.c.name == "hourly").values(definition=cron))
    world.minutes(2)


def refused(world: World) -> None:
    world.carry(**{name: schedule(name, "0 12 * * *") for name in "abcdef"})
    world.minutes(1)
    world.carry(a=schedule("a", "0 12 * * *"))
    world.minutes(2)


def not_refused(world: World) -> None:
    world.carry(**{name: schedule(name, "0 12 * * *") for name in "abcdef"})
    world.minutes(2)


def an_outage(world: World) -> None:
    world.carry(nightly=schedule("nightly", "0 12 * * *", catch_up="none"))
    world.minutes(1)
    world.later("23h")


def as_the_finding_says(world: World) -> None:
    """Do what the finding's command says: run the job for the missed instant."""
    [found] = world.found()
    _, verb, name, _, first, _, last = (found.command or "").split()
    assert (verb, name) == ("backfill", "nightly")
    begin, end = map(datetime.fromisoformat, (first, last))
    with world.database.write() as connection:
        made = backfill(connection, name, begin, end, retention=DAY, actor="ada", host="alpha", dry_run=False)
    assert made.run == (START.replace(hour=12, minute=0, second=0),)
    world.minutes(1)


def another_outage(world: World) -> None:
    an_outage(world)
    world.trigger("nightly")
    assert world.found() == []
    world.later("23h")


def an_outage_past_a_grace(world: World) -> None:
    world.carry(nightly=schedule("nightly", "0 12 * * *", catch_up="none", grace=30 * MINUTE))
    world.minutes(1)
    world.later("23h")


def dead_past_its_grace_and_dismissed(world: World) -> None:
    """A run by hand succeeds while the job is dead, and then the job is dismissed."""
    dead_past_its_grace(world)
    world.trigger("hourly")
    assert [each.key for each in world.found()] == ["dead"]
    world.dismiss()


def the_next_run(world: World) -> None:
    world.clock.set(START.replace(day=4, hour=12, minute=0))
    world.minutes(1)


def paused_over_noon(world: World) -> None:
    world.pause("schedule", "nightly")
    world.clock.set(START.replace(hour=12, minute=0))
    world.minutes(2)


def skipped_over_noon(world: World) -> None:
    world.pause("schedule", "nightly", skip=True)
    world.clock.set(START.replace(hour=12, minute=0))
    world.minutes(2)
    world.later("2h")


def skipped_and_forgotten(world: World) -> None:
    skipped_over_noon(world)
    world.later("25h")


def queue_paused(world: World) -> None:
    world.pause("queue", "default")
    world.clock.set(START.replace(hour=9, minute=0))
    world.minutes(2)


def old_pause(world: World) -> None:
    world.pause("queue", "mail", ago=DAY + HOUR)
    world.minutes(1)


def short_pause(world: World) -> None:
    world.pause("all")
    world.minutes(2)


NEWER = {"a": schedule("a", "0 12 * * *")}


def two_files(world: World, minutes: int) -> None:
    other = Host(world.database, world.folder, "beta")
    other.settings = replace(world.host.settings, schedules=NEWER)
    world.tick(other)
    for _ in range(minutes):
        world.minutes(1)
        world.tick(other)


def one_file(world: World) -> None:
    world.carry(**NEWER)
    world.tick()


def a_host_stopped(world: World) -> None:
    other = Host(world.database, world.folder, "beta")
    other.settings = world.host.settings
    for _ in range(12):
        world.tick(other)
    world.minutes(5)


def clock_ahead(world: World) -> None:
    world.clock.advance(3650 * DAY)
    world.tick()
    world.clock.set(START + MINUTE)


def clock_was_ahead(world: World) -> None:
    """And the ticks stopped after it was right again: the one from the future is no sign of life."""
    clock_ahead(world)
    world.minutes(1)
    world.later("10m", ticks=False)


def another_clock_ahead(world: World) -> None:
    """A host that came once, in the future, and never again."""
    other = Host(world.database, world.folder, "beta")
    other.settings = world.host.settings
    world.clock.advance(3650 * DAY)
    world.tick(other, fire_schedules=False)
    world.clock.set(START + MINUTE)
    world.minutes(1)


def bad_bytes(world: World) -> None:
    job_id = world.put()
    world.change(text(f"UPDATE cronjobs_jobs SET meta = CAST(x'7b2261223a2022ff227d' AS TEXT) WHERE id = {job_id}"))
    world.minutes(1)


def nobody_knows(world: World) -> None:
    world.put(job_type="t.renamed")
    world.minutes(1)


def renamed_handler(world: World) -> None:
    world.carry(hourly=schedule("hourly", "0 * * * *", job="t.renamed"), nightly=schedule("nightly", "0 12 * * *"))
    world.minutes(2)


def handler_named_again(world: World) -> None:
    world.carry(hourly=schedule("hourly", "0 * * * *"), nightly=schedule("nightly", "0 12 * * *"))
    world.minutes(2)


def removed_in_a_pause(world: World) -> None:
    """Remove a schedule that was due and has not run. During the pause nothing makes up for that run."""
    world.pause("all")
    world.clock.set(START.replace(hour=9, minute=0))
    world.carry(nightly=schedule("nightly", "0 12 * * *"))
    world.minutes(2)


def cancelled_unknown(world: World) -> None:
    world.change(
        update(tables.jobs)
        .where(tables.jobs.c.job_type == "t.renamed")
        .values(status="cancelled", finished_at=world.clock.now())
    )
    world.minutes(1)


def misfit(world: World) -> None:
    world.put(payload={"amount": 1})
    world.minutes(1)


def handler_that_takes_it(world: World) -> None:
    registry._registered.pop("t.say")
    registry.job("t.say")(lambda amount=0: None)
    world.minutes(6)


def crashing_type(world: World) -> None:
    world.change(insert(tables.crashing_types).values(job_type="t.say", found_at=world.clock.now(), runner="r"))
    world.minutes(1)


def late(world: World) -> None:
    world.put(run_at=world.clock.now() - 5 * MINUTE)


def out_of_reach(world: World) -> None:
    world.put()
    world.minutes(4, queue="other")


def full(world: World) -> None:
    world.host.carry(queues={"mail": Cap("mail", 1, "error")})
    world.minutes(1)
    world.put(queue="mail", run_at=world.clock.now() + HOUR)
    world.minutes(1)


def foreign(world: World) -> None:
    world.change(update(tables.meta).values(project="blog", environment=""))
    world.minutes(1)


def bad_entry(world: World) -> None:
    world.host.carry(problems=(Problem("cronjobs.yaml", 9, 11, "schedules.x.cron", "minute 61 is not in 0-59"),))
    world.minutes(1)


def bad_import(world: World) -> None:
    world.host.carry(imports=("nobody_has_this",))
    world.put()
    world.minutes(1)


def bad_import_of_a_due_type(world: World) -> None:
    world.host.carry(imports=("nobody_has_this",))
    world.put(job_type="t.gone")
    world.minutes(1)


def dead_past_its_grace(world: World) -> None:
    """Three occurrences in a row fail at their only try, and then the grace of the last one ends."""
    hourly = schedule("hourly", "0 * * * *", grace=10 * MINUTE, max_attempts=1)
    world.carry(hourly=hourly, nightly=schedule("nightly", "0 12 * * *"))
    world.minutes(1)
    world.broken = True
    for hour in (9, 10, 11):
        world.clock.set(START.replace(hour=hour, minute=0))
        world.minutes(1)
    world.later("15m")
    world.broken = False


def dismissed_and_run(world: World) -> None:
    world.dismiss()
    assert [each.key for each in world.found()] == ["schedule:hourly"], "it still has not run"
    world.clock.set(START.replace(hour=12, minute=0))
    world.minutes(2)


def without_run(world: World) -> None:
    world.carry(hourly=schedule("hourly", "0 * * * *", grace=10 * MINUTE))
    world.minutes(1)
    world.broken = True
    world.clock.set(START.replace(hour=9, minute=0))
    world.minutes(1)
    world.clock.advance(9 * MINUTE)
    world.minutes(3, queue="other")
    world.broken = False


def slow(world: World) -> None:
    world.host.carry(run=replace(world.host.settings.run, lease=timedelta(seconds=30)))
    took = {"started_at": world.clock.now() - 20 * timedelta(seconds=1), "finished_at": world.clock.now()}
    for _ in range(5):  # five runs are enough to show the typical duration
        job_id = world.put(status="succeeded", finished_at=world.clock.now())
        world.change(insert(tables.job_runs).values(job_id=job_id, attempt=1, outcome="succeeded", runner="r", **took))
    world.minutes(1)


def ticks_killed(world: World) -> None:
    for number in (5, 4):
        killed = world.clock.now() - number * MINUTE
        row = {"tick": f"killed-{number}", "host": "alpha", "pid": 1, "version": "0", "started_at": killed}
        world.change(insert(tables.ticks).values(row))
    world.minutes(1)


def bug_in_cronjobs(world: World) -> None:
    """An exception that nobody expected, in a part of the tick; the next ticks are sound."""

    def fail(*_: Any) -> None:
        raise AssertionError("a bug")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Work, "note_unknown_types", fail)
        world.put()
        world.minutes(1)


def clock_of_one_host(world: World) -> None:
    other = Host(world.database, world.folder, "beta")
    other.settings, other.clock = world.host.settings, FakeClock(world.clock.now() + 10 * MINUTE)
    world.tick(other)
    world.code = 0


def bad_entry_on_another_host(world: World) -> None:
    other = Host(world.database, world.folder, "beta")
    problem = Problem("cronjobs.yaml", 9, 11, "schedules.x.cron", "minute 61 is not in 0-59")
    other.settings = replace(world.host.settings, problems=(problem,))
    world.tick(other)
    world.minutes(1)
    world.code, world.mail = 0, ""


def snoozes_for_ever(world: World) -> None:
    """For four nights, in which every later run gives way."""
    world.snoozes = True
    for _ in range(4):
        the_next_noon(world)
    world.snoozes = False


def asks_for_days(world: World) -> None:
    """The later runs give way to a job whose handler asked for a retry in four days."""
    world.asks = "4d"
    for _ in range(3):
        the_next_noon(world)
    world.asks = ""


def asks_by_hand(world: World) -> None:
    """Runs are missed, somebody triggers one, and the later runs give way to that one."""
    an_outage(world)
    world.asks = "4d"
    world.trigger("nightly")
    world.asks = ""
    assert world.found() == []
    for _ in range(2):
        the_next_noon(world)
    world.later("2h")


def asks_no_more(world: World) -> None:
    for _ in range(4):
        the_next_noon(world)


def the_next_noon(world: World) -> None:
    now = world.clock.now()
    world.clock.set(now.replace(hour=11, minute=59) + (DAY if now.hour >= 12 else timedelta(0)))
    world.minutes(2)


def one_by_hand_snoozes_too(world: World) -> None:
    """The first Tuesday's run snoozes for ever, somebody triggers another, and so does that."""
    world.carry(weekly=schedule("weekly", "0 12 * * 2", overlap="allow"), nightly=schedule("nightly", "30 3 1 * *"))
    world.minutes(1)
    world.snoozes = True
    for _ in range(2):
        the_next_noon(world)
    world.later("2h")
    assert [each.kind for each in world.found()] == ["not_run"]
    world.trigger("weekly")
    for _ in range(2):
        the_next_noon(world)
    world.snoozes = False


def one_by_hand_succeeds(world: World) -> None:
    world.trigger("weekly")


def snoozes_no_more(world: World) -> None:
    the_next_noon(world)
    world.later("3h")


def crowded_out(world: World) -> None:
    """Its queue was full when it was due, so it got no job."""
    world.host.carry(queues={"mail": Cap("mail", 1, "error")})
    world.carry(nightly=schedule("nightly", "0 12 * * *", queue="mail"))
    world.minutes(1)
    waiting = world.put(queue="mail", run_at=world.clock.now() + 2 * DAY)
    the_next_noon(world)
    world.change(delete(tables.jobs).where(tables.jobs.c.id == waiting))
    world.later("2h")


def behind_a_limit(world: World) -> None:
    """The schedule's job waits for a limit, so no tick can start it."""
    world.host.carry(limits=(Limit("smtp", most=0),))
    the_next_noon(world)
    again = {"status": "queued", "finished_at": None, "concurrency_key": "smtp"}
    world.change(update(tables.jobs).where(tables.jobs.c.schedule == "nightly").values(again))
    world.later("2h")


def limit_free(world: World) -> None:
    world.host.carry(limits=())
    world.minutes(2)


def beyond_the_limit(world: World) -> None:
    """Ten hours are owed, three are made up for, and the next hour goes well."""
    hourly = schedule("hourly", "0 * * * *", catch_up="all", catch_up_limit=3, overlap="allow")
    world.carry(hourly=hourly, nightly=schedule("nightly", "0 12 * * *"))
    world.minutes(2)
    world.later("10h", ticks=False)
    world.minutes(3)
    world.later("90m")


def removed_dead(world: World) -> None:
    world.host.carry(retention=Retention(dead=2 * HOUR))
    a_death(world)
    world.later("5h")


def acknowledge_all(world: World) -> None:
    for finding in world.found():
        with world.database.write() as connection:
            given = {"by": "ada", "host": "alpha", "why": None}
            acknowledge(connection, finding, until=world.clock.now() + 5 * MINUTE, now=world.clock.now(), **given)
    world.minutes(10)  # the run is over for good


def a_type_fails(world: World) -> None:
    """Jobs of an app, two of which fail, at first between others that succeed."""
    for _ in range(2):
        world.broken = True
        world.put()
        world.minutes(1)
        world.broken = False
        world.put()
        world.minutes(1)
    assert world.found() == [], "others succeeded in between"
    world.broken = True
    world.put()
    world.put()
    world.minutes(6)
    world.broken = False


def usual_runs(world: World, name: str, took: timedelta, count: int = 25) -> None:
    with world.database.read() as connection:
        [stored] = [each for each in schedules.all_schedules(connection) if each.name == name]
    for number in range(count, 0, -1):
        due = world.clock.now() - number * DAY
        ended = {"status": "succeeded", "started_at": due, "finished_at": due + took, "attempts": 1}
        job_id = world.put(run_at=due, schedule=name, scheduled_for=due, **ended)
        run = {"job_id": job_id, "attempt": 1, "outcome": "succeeded", "runner": "r"}
        world.change(insert(tables.job_runs).values(run | {"started_at": due, "finished_at": due + took}))
        row = {"schedule_id": stored.id, "first_for": due, "last_for": due, "outcome": "enqueued", "job_id": job_id}
        world.change(insert(tables.occurrences).values(row | {"decided_at": due}))


def slower(world: World, took: timedelta = 30 * MINUTE, **state: Any) -> None:
    """Its run takes half an hour; usual are 10 s."""
    usual_runs(world, "nightly", timedelta(seconds=10))
    with world.database.read() as connection:
        [stored] = [each for each in schedules.all_schedules(connection) if each.name == "nightly"]
    begun = world.clock.now() - took
    held = {"locked_by": "alpha:b:1:1:1:t", "locked_until": world.clock.now() + HOUR, "attempts": 1}
    running = {"status": "running", "schedule": "nightly", "scheduled_for": begun, "started_at": begun}
    job_id = world.put(run_at=begun, **running | held | state)
    row = {"schedule_id": stored.id, "first_for": begun, "last_for": begun, "outcome": "enqueued", "job_id": job_id}
    world.change(insert(tables.occurrences).values(row | {"decided_at": begun}))


def slower_and_in_the_way(world: World) -> None:
    """The run hangs, and each later occurrence gives way to it."""
    slower(world)
    with world.database.read() as connection:
        job = connection.execute(select(tables.jobs).where(tables.jobs.c.status == "running")).one()
        [stored] = [each for each in schedules.all_schedules(connection) if each.name == "nightly"]
    for number in range(1, 26):
        due = job.started_at + number * MINUTE
        reason = f"overlap: job {job.id} was still unfinished"
        row = {"schedule_id": stored.id, "first_for": due, "last_for": due, "outcome": "skipped", "reason": reason}
        world.change(insert(tables.occurrences).values(row | {"job_id": job.id, "decided_at": due}))


def ended_at_last(world: World) -> None:
    now = world.clock.now()
    free = {"status": "succeeded", "locked_by": None, "locked_until": None, "finished_at": now}
    running = tables.jobs.c.status == "running"
    with world.database.read() as connection:
        job = connection.execute(select(tables.jobs).where(running)).one()
    run = {"job_id": job.id, "attempt": 1, "outcome": "succeeded", "runner": "r"}
    world.change(insert(tables.job_runs).values(run | {"started_at": job.started_at, "finished_at": now}))
    world.change(update(tables.jobs).values(free).where(running))


def nearly_full(world: World) -> None:
    world.host.carry(queues={"mail": Cap("mail", 5, "error")})
    world.minutes(1)
    for _ in range(4):
        world.put(queue="mail", run_at=world.clock.now() + HOUR)


def failed_once(world: World) -> None:
    world.broken = True
    nightly = schedule("nightly", "0 12 * * *")
    world.carry(hourly=schedule("hourly", "0 * * * *", warn_after_failures=1), nightly=nightly)
    world.minutes(1)
    world.clock.set(START.replace(hour=9, minute=0))
    world.minutes(1)


def ran_by_exec(world: World, ago: timedelta, took: timedelta = timedelta(0)) -> None:
    """A run of ``cronjobs exec`` that began so long ago, by a crontab's line that is due each hour."""
    began = SYSTEM.now().timestamp() - ago.total_seconds()
    facts = {"token": f"{ago}", "name": "hourly", "locked_by": str(Identity.here()), "cron": "0 * * * *", "status": 0}
    delivery.end(
        world.database,
        ExecRun.read(facts | {"began": began, "ended": began + took.total_seconds(), "took": took.total_seconds()}),
    )


def exec_stayed_away(world: World) -> None:
    ran_by_exec(world, 3 * HOUR)
    world.minutes(1)


def exec_overlapped(world: World) -> None:
    ran_by_exec(world, 2 * HOUR, took=2 * HOUR - 2 * MINUTE)
    ran_by_exec(world, 5 * MINUTE)
    world.minutes(1)


def exec_came(world: World) -> None:
    ran_by_exec(world, timedelta(0))
    world.minutes(1)


NOTHING: Callable[[World], Any] = lambda world: world.minutes(1)  # noqa: E731 the table reads better

INCIDENTS = [
    Incident("all is well", NOTHING, ""),
    Incident("a job died", a_death, "dead", World.dismiss, code=1, mail="a job is dead"),
    Incident("a job died, and is put back", a_death, "dead", retried, code=1, mail="a job is dead"),
    Incident("a job died eight hours ago", a_death_last_night, "dead", World.dismiss, mail="a job is dead"),
    Incident("a dismissed job died again", died_again, "dead", World.dismiss, code=1, mail="a job is dead"),
    Incident("a payload that cannot be read", unreadable, "dead", World.dismiss, code=1, mail="a job is dead"),
    Incident("a job killed its tenth runner", lost_for_good, "dead", World.dismiss, code=1, mail="a job is dead"),
    Incident("a job cancelled in an effect", cancelled_in_an_effect, "effect", effect_settled),
    Incident("its retry leaves it unknown", cancelled_in_an_effect, "effect", cancelled_job_retried, left="effect"),
    Incident("a schedule's last three runs failed", failing, "failing", healed),
    Incident("no tick for four minutes", lambda w: w.later("4m", ticks=False), "no_tick", NOTHING),
    Incident("no tick for a night", lambda w: w.later("2h", ticks=False), "no_tick", NOTHING),
    Incident("the last tick's clock was ahead", clock_ahead, "no_tick", lambda w: w.minutes(2)),
    Incident(
        "ticks stopped, one is from the future",
        clock_was_ahead,
        "no_tick",
        lambda w: w.minutes(2),
        mail="schedule.ran_early",
    ),
    Incident("a host that is gone ticked in the future", another_clock_ahead, ""),
    Incident("bytes that are no text", bad_bytes, "dead", World.dismiss, code=1, mail="a job is dead"),
    Incident(
        "a job of a type that nobody knows", nobody_knows, "unresolved", cancelled_unknown, code=3, mail="t.renamed"
    ),
    Incident("a renamed handler", renamed_handler, "unresolved", handler_named_again, code=3, mail="t.renamed"),
    Incident("a payload that does not fit its handler", misfit, "misfit", handler_that_takes_it),
    Incident("a type that takes runners down", crashing_type, "crashing", lambda w: w.later("2h")),
    Incident("a schedule removed in a pause", removed_in_a_pause, "pause", lambda w: w.resume("all")),
    Incident("schedules are off on every host", schedules_off, "schedules_off", NOTHING),
    Incident("schedules are off on one of two hosts", one_host_off, ""),
    Incident(
        "a stored definition that cannot be read",
        unreadable_definition,
        "behind",
        definition_again,
        code=3,
        mail="schedule.broken schedule=hourly",
    ),
    Incident("a file that every tick refuses", refused, "refused", not_refused, code=3, mail="config.fault"),
    Incident("runs missed in an outage", an_outage, "missed", the_next_run),
    Incident("runs missed, and made up for as the finding says", an_outage, "missed", as_the_finding_says),
    Incident("runs missed, and one made up for by hand", an_outage, "missed", lambda w: w.trigger("nightly")),
    Incident("missed again after one by hand", another_outage, "missed", lambda w: w.trigger("nightly")),
    Incident(
        "missed past its grace, and one by hand", an_outage_past_a_grace, "schedule", lambda w: w.trigger("nightly")
    ),
    Incident("dead past its grace, run by hand and dismissed", dead_past_its_grace_and_dismissed, "", mail="dead"),
    Incident("three runs failed, and one by hand", failing, "failing", one_by_hand_goes_well),
    Incident("a pause that skips a run", skipped_over_noon, ""),
    Incident(
        "a pause that skips, forgotten", skipped_and_forgotten, "pause", lambda w: w.resume("schedule", "nightly")
    ),
    Incident("a pause that holds a run back", paused_over_noon, "pause", lambda w: w.resume("schedule", "nightly")),
    Incident("a paused queue with a schedule's job", queue_paused, "pause", lambda w: w.resume("queue", "default")),
    Incident("a pause that somebody forgot", old_pause, "pause", lambda w: w.resume("queue", "mail")),
    Incident("a short pause", short_pause, "", lambda w: w.resume("all")),
    Incident("two files in mid-deploy", lambda w: two_files(w, 3), "files", one_file, live=""),
    Incident("two files for twenty minutes", lambda w: two_files(w, 22), "files", one_file),
    Incident("a host stopped ticking", a_host_stopped, "host", lambda w: w.later("30h")),
    Incident("jobs are late", late, "late", NOTHING),
    Incident("a crontab's line did not run", exec_stayed_away, "absent", exec_came),
    Incident("a crontab's line ran twice at once", exec_overlapped, "overlapped", exec_came),
    Incident("the options of every tick exclude a due job", out_of_reach, "out_of_reach", NOTHING),
    Incident("a queue is full", full, "full", lambda w: w.later("2h"), live=""),
    Incident("another project's database", foreign, "foreign", code=3, mail="belongs to", left="foreign"),
    Incident("a bad entry of the file", bad_entry, "config", live="", code=3, mail="minute 61", left="config"),
    Incident(
        "a module that cannot be imported", bad_import, "config", live="", code=3, mail="nobody_has", left="config"
    ),
    Incident(
        "a module with the handler of a due job",
        bad_import_of_a_due_type,
        "config",
        live="",
        code=3,
        mail="nobody_has",
        left="config",
    ),
    Incident("a schedule's jobs die, and its grace ends", dead_past_its_grace, "dead", dismissed_and_run, mail="dead"),
    Incident("a schedule past its grace", without_run, "schedule out_of_reach", lambda w: w.minutes(20)),
    Incident("ticks are killed", ticks_killed, "ending", lambda w: w.later("30m")),
    Incident("a bug in cronjobs", bug_in_cronjobs, "ending", NOTHING, code=70, mail="tick.fault"),
    Incident("the clock of one host is wrong", clock_of_one_host, "clock", lambda w: w.later("30h")),
    Incident("a bad entry in another host's file", bad_entry_on_another_host, "config", lambda w: w.later("30h")),
    Incident("a run that snoozes for ever", snoozes_for_ever, "not_run", snoozes_no_more),
    Incident("a run that asks for a retry in days", asks_for_days, "not_run", asks_no_more),
    Incident("one by hand asks for a retry in days", asks_by_hand, "missed not_run", asks_no_more),
    Incident("one by hand snoozes, too", one_by_hand_snoozes_too, "not_run", one_by_hand_succeeds),
    Incident("a run that found its queue full", crowded_out, "not_run", the_next_noon),
    Incident("a run that waits for a limit", behind_a_limit, "not_run", limit_free),
    Incident("runs beyond catch_up_limit", beyond_the_limit, "dropped", acknowledge_all),
    Incident("retention removed a dead job", removed_dead, "pruned", acknowledge_all, mail="a job is dead"),
    Incident("a job type that fails again and again", a_type_fails, "failing_type", lambda w: w.minutes(10)),
    Incident("a run takes much longer than usual", slower, "slower", ended_at_last, left="slower"),
    Incident("a run hangs, and later ones give way", slower_and_in_the_way, "slower", ended_at_last),
    Incident("a queue is nearly full", nearly_full, "full", lambda w: w.later("2h"), live=""),
    Incident("a schedule warns after its first failure", failed_once, "failing", healed),
    Incident("runs that are long for the lease", slow, "lease", live="", left="lease"),
]


# --- the table --------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def make_world(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Database], World]]:
    before = dict(registry._registered)
    worlds: list[World] = []

    @registry.job("t.say")
    def say() -> None:
        if worlds[0].broken:
            raise RuntimeError("no luck")
        if worlds[0].snoozes:
            raise Snooze("26h")
        if worlds[0].asks:
            raise RetryLater("bank closed", after=worlds[0].asks)

    def make(database: Database) -> World:
        world = World(database, clock, tmp_path)
        worlds.append(world)
        monkeypatch.setattr(report, "complain", lambda line: setattr(world, "mail", world.mail + line + "\n"))
        monkeypatch.setattr(report.Outlet, "say", lambda _, line: setattr(world, "mail", world.mail + line + "\n"))
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        world.host.carry(run=RunSettings(workers=1))
        world.tick()
        return world

    yield make
    registry._registered.clear()
    registry._registered.update(before)


def check(world: World, incident: Incident) -> None:
    world.mail = ""
    incident.make(world)
    found = world.found()
    assert {trouble.kind for trouble in found} == set(incident.status.split()), found
    shows(world.on_page(), found)
    live = incident.status if incident.live is None else incident.live
    reported = {trouble.kind for trouble in found if trouble.alarm and trouble.kind != "config"}
    assert reported == set(live.split()) - {"config"}
    for trouble in found:
        there = {"config": '(for details, run "cronjobs check" there)', "host": '(on that host, "cronjobs doctor"'}
        elsewhere = there.get(trouble.kind, "nowhere") in trouble.text
        assert elsewhere or (trouble.command or "").startswith(("cronjobs ", "timedatectl"))
        if trouble.kind not in UNDATED and "in the future" not in trouble.text:
            assert trouble.since is not None, trouble
        assert trouble.since is None or trouble.since <= world.clock.now()
    assert world.code == incident.code
    assert incident.mail in world.mail
    assert bool(incident.mail) == bool(world.mail)
    incident.mend(world)
    found = world.found()
    assert {trouble.kind for trouble in found} == set(incident.left.split()), found
    shows(world.on_page(), found)


def shows(page: Reply, found: list[Finding]) -> None:
    """These findings and no others, the command that deals with each; or that all is well."""
    assert page.status == 200
    for trouble in found:
        assert " ".join(trouble.text.split()) in page.words
        assert (trouble.command or "") in page.words
    assert page.body.count('class="finding ') == len(found)
    assert ("All well" in page.words) == (not found)


# Findings for which the rows do not show when they began.
UNDATED = {"foreign", "config", "full", "lease"}


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.name)
def test_an_incident_is_reported_until_it_is_over(
    sqlite_migrated: str, clock: FakeClock, make_world: Callable[[Database], World], incident: Incident
) -> None:
    database = Database(parse_url(f"sqlite:///{sqlite_migrated}"), clock=clock)
    try:
        check(make_world(database), incident)
    finally:
        database.close()


ON_POSTGRESQL = {
    "a run hangs, and later ones give way",
    "a job died eight hours ago",
    "a job cancelled in an effect",
    "a schedule's last three runs failed",
    "runs missed in an outage",
} | {
    "schedules are off on every host",
    "a file that every tick refuses",
    "two files for twenty minutes",
}


@pytest.mark.parametrize(
    "incident", [each for each in INCIDENTS if each.name in ON_POSTGRESQL], ids=lambda incident: incident.name
)
def test_an_incident_is_reported_on_postgresql_too(
    postgres_migrated: str, clock: FakeClock, make_world: Callable[[Database], World], incident: Incident
) -> None:
    database = Database(parse_url(postgres_migrated), clock=clock)
    try:
        check(make_world(database), incident)
    finally:
        database.close()


def test_every_kind_of_finding_has_an_incident() -> None:
    reported = {kind for incident in INCIDENTS for kind in incident.status.split()}
    # test_alerts.py, test_names_of_exec.py and test_told.py make these
    elsewhere = {"alert", "threshold", "unwatched", "extra"}
    assert FINDING_KINDS.keys() == reported | elsewhere


@pytest.mark.slow
def test_a_quiet_week_of_20_schedules_finds_nothing_and_tells_nobody(
    sqlite_migrated: str, clock: FakeClock, make_world: Callable[[Database], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(alert_rounds, "deliver", noting(told))
    database = Database(parse_url(f"sqlite:///{sqlite_migrated}"), clock=clock)
    try:
        world = make_world(database)
        everything = AlertChannel("ops", CommandChannel(("true",)), AlertFilter("notice"))
        world.host.carry(alerts=AlertSettings({"ops": everything}))
        lines = [f"{3 * n} {n} * * {n % 7}" if n % 3 else f"{n} */6 * * *" for n in range(20)]
        world.carry(**{f"s{n}": schedule(f"s{n}", line) for n, line in enumerate(lines)})
        found: set[str] = set()
        for _ in range(7 * 24 * 2):
            world.clock.advance(29 * MINUTE)
            world.minutes(1)
            found |= {trouble.text for trouble in world.found()}
        assert (found, world.mail, told) == (set(), "", [])
        with database.read() as connection:
            for table in (tables.findings, tables.alerts):
                assert connection.execute(select(table)).all() == []
        shows(world.on_page(), [])
        assert world.count("succeeded") > 60
        world.put(status="dead", finished_at=clock.now())  # and it would have told
        with database.write() as connection:
            look_soon(connection)
        world.minutes(2)
        assert [each.kind for message in told for each in message.findings] == ["dead"]
    finally:
        database.close()


def test_there_are_thirty() -> None:
    assert len(INCIDENTS) >= 30
    assert len({incident.name for incident in INCIDENTS}) == len(INCIDENTS)
