"""Faults are found behind very many rows or schedules, with only a few statements."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from support.postgres import OWNER
from support.yard import MINUTE, START, statements

from cronjobs.desk.insight.findings import troubles
from cronjobs.desk.insight.findings_of_schedules import schedule_findings
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.run_watch import ASKED_AT_ONCE
from cronjobs.desk.insight.same_cause import SameCause
from cronjobs.desk.insight.watched import ScheduleWithoutRun
from cronjobs.engine.config.settings import Retention, Settings
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store.job_types import Loaded, record_types
from cronjobs.engine.tick.pruner import Before, Pruner
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.connects_as(OWNER)  # who may fill the tables

HOUR = timedelta(hours=1)
MINUTELY = {"cron": "* * * * *", "timezone": "UTC", "job": "t.say"}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


class World:
    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.now = database, database.clock.now()
        self.settings = Settings(file=folder / "cronjobs.yaml", folder=folder)

    def put(self, table: Any, *rows: dict[str, Any]) -> list[int]:
        with self.database.write() as connection:
            made = insert(table).returning(table.primary_key.columns[0], sort_by_parameter_order=True)
            return [row[0] for row in connection.execute(made, list(rows)).all()]

    def schedules(self, count: int) -> list[int]:
        row = {"definition": MINUTELY, "fingerprint": "f", "seen_until": self.now, "next_at": self.now + HOUR}
        return self.put(tables.schedules, *(row | {"name": f"s{number:05}"} for number in range(count)))

    def job(self, **values: Any) -> int:
        row = {"job_type": "t.say", "schedule": "s00000", "scheduled_for": self.now - 100 * HOUR, "attempts": 1}
        return self.put(tables.jobs, row | {"run_at": self.now, "started_at": self.now - HOUR} | values)[0]

    def running(self) -> int:
        held = {"locked_by": "web1:b:1:1:1:t", "locked_until": self.now + MINUTE}
        return self.job(status="running", timeout_s=1e6, **held)

    def ledger(self, schedule: int, *rows: tuple[timedelta, str, int | None]) -> None:
        self.put(
            tables.occurrences,
            *(
                {"schedule_id": schedule, "first_for": self.now - ago, "last_for": self.now - ago, "outcome": outcome}
                | {"job_id": job_id, "decided_at": self.now - ago}
                for ago, outcome, job_id in rows
            ),
        )

    def found(self) -> dict[str, tuple[str, ...]]:
        with self.database.read() as connection:
            found = troubles(look(connection, self.settings, JobTypes()), self.settings)
        return {each.kind: each.rows for each in found if each.kind != "no_tick"}


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    return World(database, tmp_path)


def test_a_missed_run_behind_thousands_that_gave_way_is_found_in_a_few_statements(world: World) -> None:
    [schedule] = world.schedules(1)
    job = world.running()
    gave_way = [(minute * MINUTE, "skipped", job) for minute in range(1, 4000)]
    world.ledger(schedule, *gave_way)
    with statements(world.database) as usual:
        assert world.found() == {}, "it runs within its timeout, and all others gave way to it"
    world.ledger(schedule, (5000 * MINUTE, "missed", None))
    with statements(world.database) as seen:
        assert world.found() == {"missed": ("s00000",)}
    assert len(seen) <= len(usual) + 5


@pytest.mark.parametrize("pruned", [False, True])
def test_a_success_between_them_ends_the_search_although_others_gave_way_to_it_too(world: World, pruned: bool) -> None:
    [schedule] = world.schedules(1)
    job = world.running()
    done = 4711 if pruned else world.job(status="succeeded", finished_at=world.now)
    world.ledger(schedule, *((minute * MINUTE, "skipped", job) for minute in range(1, 100)))
    world.ledger(schedule, *((minute * MINUTE, "skipped", done) for minute in range(100, 300)))
    world.ledger(schedule, (300 * MINUTE, "enqueued", done), (400 * MINUTE, "missed", None))
    assert world.found() == {}


def test_what_a_person_cancelled_after_a_week_hides_nothing(world: World) -> None:
    """The rows of one job that was cancelled, and of many that were dismissed."""
    [schedule] = world.schedules(1)
    ended = {"finished_at": world.now, "dismissed_at": world.now}
    cancelled = world.job(status="cancelled", finished_at=world.now)
    dead = [world.job(status="dead", **ended) for _ in range(150)]
    world.ledger(schedule, *((minute * MINUTE, "skipped", cancelled) for minute in range(1, 1000)))
    world.ledger(schedule, *(((2000 + number) * MINUTE, "enqueued", job) for number, job in enumerate(dead)))
    assert world.found() == {}
    snoozes = world.job(run_at=world.now + HOUR, scheduled_for=world.now - 3000 * MINUTE)
    world.ledger(schedule, (3000 * MINUTE, "enqueued", snoozes))
    assert world.found() == {"not_run": ("s00000",)}


def test_retention_does_not_end_what_a_yearly_schedule_missed(world: World) -> None:
    [schedule] = world.schedules(1)
    world.ledger(schedule, (2400 * HOUR, "enqueued", 4711), (2300 * HOUR, "missed", None))
    before = Before.of(Retention(), world.now)
    pruner = Pruner(world.database, before, world.database.clock, lambda: True)
    assert pruner.run()
    assert pruner.counts["occurrences"] == 1
    assert world.found() == {"missed": ("s00000",)}


def test_retention_that_removed_the_last_success_is_no_alarm(world: World) -> None:
    """The job first, then its ledger row, while the run after it still goes on."""
    [schedule] = world.schedules(1)
    world.ledger(schedule, (2 * HOUR, "enqueued", world.running()), (2300 * HOUR, "enqueued", 4711))
    assert world.found() == {}
    Pruner(world.database, Before.of(Retention(), world.now), world.database.clock, lambda: True).run()
    assert world.found() == {}


@pytest.mark.slow
def test_however_many_schedules_are_in_doubt_each_is_looked_at(world: World) -> None:
    ids = world.schedules(ASKED_AT_ONCE + 2)
    job = world.running()
    row = {"outcome": "skipped", "job_id": job, "decided_at": world.now}
    at = world.now - 2 * HOUR
    world.put(tables.occurrences, *({"schedule_id": id_, "first_for": at, "last_for": at} | row for id_ in ids))
    assert world.found() == {}
    world.ledger(ids[-1], (3 * HOUR, "missed", None))
    assert world.found() == {"missed": (f"s{len(ids) - 1:05}",)}


GRACE = {"job": "t.say", "cron": "0 * * * *", "timezone": "UTC", "grace_s": 600, "overlap": "skip"}


def put_past_its_grace(
    world: World, *rows: tuple[timedelta, str, int | None], began: datetime | None = None
) -> ScheduleWithoutRun | None:
    """A schedule on the full hour, with ten minutes of grace, and this ledger."""
    row = {"definition": GRACE, "fingerprint": "f", "seen_until": world.now, "next_at": world.now + HOUR}
    [schedule] = world.put(tables.schedules, row | {"name": "s00000"})
    world.put(tables.audit, {"action": "define", "subject": "s00000", "at": began or world.now - 1000 * HOUR})
    world.ledger(schedule, *rows)
    with world.database.read() as connection:
        return look(connection, world.settings, JobTypes()).watch.without_run.get("s00000")


@pytest.mark.parametrize("status", ["succeeded", "dead"])
def test_an_occurrence_that_gave_way_to_a_run_that_succeeded_had_its_run(world: World, status: str) -> None:
    since_last = timedelta(seconds=world.now.timestamp() % 3600)
    job = world.job(status=status, finished_at=world.now)
    rows = [(since_last + HOUR, "enqueued", job), (since_last, "skipped", job)]
    if since_last <= timedelta(minutes=10):  # its grace is not over: the one before counts
        rows = [(since_last + 2 * HOUR, "enqueued", job), (since_last + HOUR, "skipped", job)]
    assert (put_past_its_grace(world, *rows) is None) is (status == "succeeded")


def test_past_a_grace_is_told_since_the_first_that_had_no_run(world: World) -> None:
    since_last = timedelta(seconds=world.now.timestamp() % 3600)
    well, dead = world.job(status="succeeded", finished_at=world.now), world.job(status="dead", finished_at=world.now)
    rows = [(since_last + ago * HOUR, "enqueued", well if ago == 5 else dead) for ago in range(6)]
    found = put_past_its_grace(world, *rows)
    assert found is not None
    assert found.since == world.now - since_last - 4 * HOUR + timedelta(minutes=10)


def test_an_occurrence_older_than_the_newest_is_explained_by_its_time(world: World) -> None:
    """The first run never starts, and the later ones give way to it."""
    since_last = timedelta(seconds=world.now.timestamp() % 3600)
    first = world.now - since_last - 4 * HOUR
    waits = world.job(schedule="s00000", scheduled_for=first, run_at=first)
    rows = [(since_last + ago * HOUR, "enqueued" if ago == 4 else "skipped", waits) for ago in range(5)]
    found = put_past_its_grace(world, *rows, began=first - MINUTE)
    assert found is not None
    assert found.not_newest == first
    with world.database.read() as connection:
        health = look(connection, world.settings, JobTypes())
    late = next(each for each in schedule_findings(health, world.settings, SameCause()) if each.kind == "schedule")
    assert late.command == f"cronjobs explain s00000 --at {first.isoformat()}"


def test_an_occurrence_that_no_tick_settled_is_told_since_its_own_grace(world: World) -> None:
    """An older one has no run either: a pause skipped it, and a tick settled that."""
    last = world.now - timedelta(seconds=world.now.timestamp() % 3600) - HOUR
    skipped = last - HOUR
    row = {"definition": GRACE, "fingerprint": "f", "seen_until": skipped, "next_at": last, "name": "s00000"}
    world.put(tables.schedules, row)
    world.put(tables.audit, {"action": "define", "subject": "s00000", "at": world.now - 1000 * HOUR})
    with world.database.read() as connection:
        found = look(connection, world.settings, JobTypes()).watch.without_run["s00000"]
    assert found.why == f"due {last:%Y-%m-%d %H:%M:%S} UTC: no tick has settled it"
    assert found.since == last + timedelta(minutes=10)


def test_missed_runs_are_not_to_be_made_up_for_while_the_schedules_own_job_snoozes(world: World) -> None:
    [schedule] = world.schedules(1)
    snoozes = world.job(run_at=world.now + HOUR, scheduled_for=world.now - 3 * HOUR)
    world.ledger(schedule, (4 * HOUR, "missed", None), (3 * HOUR, "enqueued", snoozes))
    with world.database.read() as connection:
        found = troubles(look(connection, world.settings, JobTypes()), world.settings)
    [missed] = [each for each in found if each.kind == "missed"]
    assert missed.command == f"cronjobs explain {snoozes}"
    assert missed.text.endswith(f"; job {snoozes} of s00000 was postponed")


FULL = "full: as many jobs wait in its queue as may (max_waiting)"


def pause(world: World, scope: str, name: str) -> None:
    world.put(tables.pauses, {"scope": scope, "name": name, "by": "ada", "paused_at": world.now - 4 * HOUR})


def tick(world: World) -> None:
    times = {"started_at": world.now, "finished_at": world.now}
    with world.database.write() as connection:
        mark = record_types(connection, Loaded(["t.say"]))
    known = {"pid": 1, "version": "0", "schedules_on": 1, "job_types": mark, "fingerprint": "f"}
    world.put(tables.ticks, {"tick": "t", "host": "alpha"} | times | known)


@pytest.mark.parametrize("others", [3, 30])
def test_a_paused_queue_hides_no_run_that_was_missed_for_another_reason(world: World, others: int) -> None:
    [schedule] = world.schedules(1)
    tick(world)
    waits = world.job(status="queued", attempts=0, started_at=None, run_at=world.now - 3 * HOUR)
    world.ledger(schedule, *((2 * HOUR + minute * MINUTE, "skipped", waits) for minute in range(others)))
    world.ledger(schedule, (3 * HOUR, "enqueued", waits))
    pause(world, "queue", "default")
    assert world.found() == {"pause": ()}
    full = {"first_for": world.now - 5 * HOUR, "last_for": world.now - 5 * HOUR, "decided_at": world.now - 5 * HOUR}
    world.put(tables.occurrences, {"schedule_id": schedule, "outcome": "skipped", "reason": FULL} | full)
    assert world.found() == {"not_run": ("s00000",), "pause": ()}


@pytest.mark.parametrize(("scope", "name"), [("schedule", "s00000"), ("all", "")])
def test_a_paused_schedule_hides_no_job_that_was_put_off(world: World, scope: str, name: str) -> None:
    [schedule] = world.schedules(1)
    tick(world)
    snoozes = world.job(run_at=world.now + HOUR, scheduled_for=world.now - 5 * HOUR)
    world.ledger(schedule, (5 * HOUR, "enqueued", snoozes))
    pause(world, scope, name)
    assert world.found() == {"not_run": ("s00000",)}


@pytest.mark.parametrize("more", [0, 1, 2])
def test_each_schedule_that_a_finding_names_has_its_own_command(world: World, more: int) -> None:
    """If the finding only counts some schedules, one command lists the missed runs of all: views cut long commands."""
    first, second, *others = world.schedules(2 + more)
    missed = world.now - 3 * HOUR
    snoozes = world.job(schedule="s00001", run_at=world.now + HOUR, scheduled_for=world.now - 2 * HOUR)
    world.ledger(first, (3 * HOUR, "missed", None))
    world.ledger(second, (2.5 * HOUR, "missed", None), (2 * HOUR, "enqueued", snoozes))
    for other in others:
        world.ledger(other, (1.5 * HOUR, "missed", None))
    at = (world.now - 1.5 * HOUR).isoformat()
    with world.database.read() as connection:
        found = {each.kind: each for each in troubles(look(connection, world.settings, JobTypes()), world.settings)}
    backfill = f"cronjobs backfill s00000 --from {missed.isoformat()} --to {missed.isoformat()}"
    third = f"; cronjobs backfill s00002 --from {at} --to {at}" if more else ""
    all_of_them = f"cronjobs history --outcome missed --since {missed.isoformat()}"
    expected = all_of_them if more == 2 else f"{backfill}; cronjobs explain {snoozes}{third}"
    assert found["missed"].command == expected
    named = "s00000, s00001" + (", s00002" if more else "") + (" and 1 more" if more == 2 else "")
    assert found["missed"].text == (
        f"{named} missed {2 + more} runs, and no later run succeeded; job {snoozes} of s00001 was postponed"
    )
    assert found["missed"].job_id is None


def test_several_schedules_that_did_not_run_are_each_explained(world: World) -> None:
    for name, schedule in zip(("s00000", "s00001"), world.schedules(2), strict=True):
        snoozes = world.job(schedule=name, run_at=world.now + HOUR, scheduled_for=world.now - 2 * HOUR)
        world.ledger(schedule, (2 * HOUR, "enqueued", snoozes))
    with world.database.read() as connection:
        found = {each.kind: each for each in troubles(look(connection, world.settings, JobTypes()), world.settings)}
    assert found["not_run"].command == "cronjobs explain s00000; cronjobs explain s00001"


def test_a_renamed_schedule_is_still_past_its_grace_and_was_still_triggered(world: World) -> None:
    since_last = timedelta(seconds=world.now.timestamp() % 3600)
    row = {"definition": GRACE, "fingerprint": "f", "seen_until": world.now, "next_at": world.now + HOUR}
    [schedule] = world.put(tables.schedules, row | {"name": "new"})
    defined = {"action": "define", "subject": "old", "at": world.now - 100 * HOUR, "detail": GRACE}
    renamed = {"action": "rename", "subject": "new", "at": world.now - MINUTE, "detail": {"from": "old"}}
    other_job = {"action": "define", "subject": "new", "at": world.now - MINUTE, "detail": GRACE | {"job": "t.other"}}
    world.put(tables.audit, defined, renamed, other_job)
    world.ledger(schedule, (since_last + HOUR, "missed", None))

    def found() -> tuple[str, ...]:
        with world.database.read() as connection:
            return tuple(look(connection, world.settings, JobTypes()).watch.without_run)

    assert found() == ("new",)
    done = world.job(status="succeeded", finished_at=world.now, schedule="old")
    triggered = {"action": "trigger", "subject": "old", "at": world.now - 2 * MINUTE, "detail": {"job_id": done}}
    world.put(tables.audit, triggered)
    assert found() == ()
