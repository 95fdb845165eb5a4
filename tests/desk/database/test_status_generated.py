"""Random states: status says the same as a simple check that reads and judges every row.

The straightforward way is here. CRONJOBS_STATUS_SEEDS=1000 makes the long form.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Table, delete, insert, select, text
from support.postgres import OWNER
from support.yard import MINUTE, START

from cronjobs.desk.cli.status_json import status_object
from cronjobs.desk.cli.status_lines import head_lines, work_lines
from cronjobs.desk.insight import watched
from cronjobs.desk.insight.findings import troubles
from cronjobs.desk.insight.formatting import Times
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.judged_types import JudgedTypes, judged_types, unknown_schedules
from cronjobs.desk.insight.queue_trends import QueueTrends
from cronjobs.desk.insight.run_watch import RUNS_LOOKED_AT
from cronjobs.desk.insight.waiting import LateGroup, Queue
from cronjobs.desk.rules.occurrence_results import (
    DEFAULT_GRACE,
    SAID_ELSEWHERE,
    ByHand,
    JobNow,
    OccurrenceResult,
    UnrunOccurrences,
    standing,
    why_not_run,
)
from cronjobs.desk.rules.pausing import of_queue
from cronjobs.desk.rules.schedule_names import names_of
from cronjobs.desk.store import status_facts
from cronjobs.desk.store.schedule_health import ScheduleSurvey, active_schedules
from cronjobs.engine.command.printing import json_text
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.occurrences import RAN_EARLY
from cronjobs.engine.store import schedules as store
from cronjobs.engine.store.job_types import Loaded, record_types
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.connects_as(OWNER)  # who may delete everything

SEEDS = int(os.environ.get("CRONJOBS_STATUS_SEEDS", "20"))
TABLES = ("job_runs", "jobs", "occurrences", "schedules", "pauses", "ticks", "job_type_lists", "queues", "audit")
PLAIN = {"cron": "*/10 * * * *", "timezone": "UTC", "job": "t.known"}
DEFINITIONS: list[str] = [
    *[json.dumps(PLAIN | {"job": "t.unknown"})] * 2,
    *[json.dumps(PLAIN | {"grace_s": 600})] * 4,
    json.dumps(PLAIN | {"grace_s": 600, "payload": {"name": "Ägir" * 1000}}),
    json.dumps(PLAIN | {"grace_s": None}),
    json.dumps(PLAIN | {"payload": {"grace_s": 600}}),
    *("[]", "5", '"cron"', "{}", "null"),
    '{"job": "t.known", "deep": ' + "[" * 1400 + "]" * 1400 + "}",
    '{"job": "t.known", "digits": ' + "7" * 5000 + "}",
]
UNREADABLE = ['{"cron": ', '{"job": "t.known"}\0', ""]  # only SQLite keeps those


class World:
    """A database in one random state after another."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database, self.settings, self.types = database, settings, JobTypes()
        self.now = database.clock.now()
        self.dice = random.Random()

    def ago(self, *minutes: int) -> datetime:
        """Return an instant not a whole number of minutes ago: PostgreSQL's clock goes on during the test."""
        return self.now - self.dice.choice(minutes) * MINUTE - timedelta(seconds=30)

    def chance(self, one_in: int) -> bool:
        return self.dice.randrange(one_in) == 0

    def make(self, seed: int) -> None:
        self.dice = random.Random(seed)
        with self.database.write() as self.connection:
            for name in TABLES:
                self.connection.execute(delete(tables.metadata.tables[f"cronjobs_{name}"]))
            self.jobs = [self.job() for _ in range(self.dice.choice([0, 3, 12, 40]))]
            for number in range(self.dice.choice([0, 2, 12, 24])):
                self.schedule(f"s{number:02}")
            for scope, name in [("all", ""), ("queue", "q1"), *(("schedule", f"s{number:02}") for number in range(9))]:
                if self.chance(6):
                    self.pause(scope, name)
            if self.chance(3):
                self.put(tables.queues, name=self.dice.choice(["q0", "empty"]), max_waiting=self.dice.choice([2, 100]))
            self.ticks()

    def put(self, table: Table, **values: Any) -> Any:
        return self.connection.execute(insert(table).values(values).returning(table.primary_key.columns[0])).scalar()

    def job(self) -> int:
        dice = self.dice
        state = dice.choice(["queued", "queued", "failed", "running", "succeeded", "dead", "dead", "cancelled"])
        values: dict[str, Any] = {
            "status": state,
            "job_type": dice.choice(["t.known", "t.known", "t.unknown"]),
            "queue": dice.choice(["default", "q0", "q1"]),
            "run_at": self.ago(-600, -1, 0, 1, 2, 4, 5, 60),
            "timeout_s": dice.choice([None, None, 5]),
            "schedule": dice.choice([None, "s00", "s01"]),
            "failures": dice.choice([0, 1, 3, 3]),
            "losses": dice.choice([0, 0, 0, 2]),
            "created_at": self.ago(100),
        }
        if state == "failed":
            values |= {"last_failed_at": self.now - {0: -5, 1: 45, 3: 90}[values["failures"]] * MINUTE}
        if state == "running":
            values |= {"locked_by": "web1:b:1:1:1:t", "locked_until": self.ago(-5), "started_at": self.ago(1)}
        if state in ("succeeded", "dead", "cancelled"):
            values |= {"finished_at": self.ago(10), "dismissed_at": dice.choice([None, self.ago(5), self.ago(20)])}
        return int(self.put(tables.jobs, **values))

    def schedule(self, name: str) -> None:
        # Mostly one thing at a time, or everything would be looked at for another reason.
        definition: Any = self.dice.choice(DEFINITIONS) if self.chance(3) else json.dumps(PLAIN)
        if self.database.is_sqlite and self.chance(12):
            definition = self.dice.choice(UNREADABLE)
        schedule_id = self.put(
            tables.schedules,
            name=name,
            definition={},
            fingerprint="f",
            status=self.dice.choice(["active", "active", "active", "retired"]),
            seen_until=self.ago(1),
            next_at=self.dice.choice([None, self.ago(0, 1, 4, 90)]) if self.chance(3) else self.ago(-60, -60, -61),
            owed=self.dice.choice([[], [{"from": 1}], [{"from": 1}]]) if self.chance(4) else None,
        )
        kind = "text" if self.database.is_sqlite else "jsonb"
        change = f"UPDATE cronjobs_schedules SET definition = CAST(:it AS {kind}) WHERE id = :id"
        self.connection.execute(text(change), {"it": definition, "id": schedule_id})
        newest, well = self.dice.choice([-3, 0, 0, 35]), self.chance(2)
        ledger = [
            self.occurrence(schedule_id, self.now - (newest + 10 * number) * MINUTE - timedelta(seconds=20), well)
            for number in range(self.dice.choice([0, 1, 4, 14]))
        ]
        if ledger:
            self.connection.execute(insert(tables.occurrences), ledger)
        if not self.chance(3):
            self.put(tables.audit, at=self.ago(5, 500), action="define", subject=name)
        if self.chance(4):
            action = self.dice.choice(["trigger", "backfill"])
            detail = {"job_id": self.dice.choice([999_999, *self.jobs])} if action == "trigger" else None
            self.put(tables.audit, at=self.ago(5, 25, 500), action=action, subject=name, detail=detail)

    def occurrence(self, schedule_id: int, at: datetime, well: bool) -> dict[str, Any]:
        outcome = "enqueued" if well else self.dice.choice(["enqueued", "enqueued", "skipped", "missed", "coalesced"])
        reason = self.dice.choice([None, "paused by ada", "overlap"])
        if reason == "overlap" and at.minute % 4 == 0:
            reason = f"{RAN_EARLY} 08:00 or before"
        job_id = None if outcome == "missed" else self.dice.choice([999_999, None, *([] if well else self.jobs)])
        there = {"schedule_id": schedule_id, "first_for": at, "last_for": at, "decided_at": at + MINUTE}
        return there | {"outcome": outcome, "reason": reason, "job_id": job_id}

    def pause(self, scope: str, name: str) -> None:
        until = self.dice.choice([None, self.ago(-60), self.ago(1)])
        said = {"by": self.dice.choice([None, "ada"]), "why": self.dice.choice([None, "deploy"])}
        self.put(tables.pauses, scope=scope, name=name, until=until, paused_at=self.ago(3, 15, 3000), **said)

    def ticks(self) -> None:
        known = record_types(self.connection, Loaded(["t.known"])) if self.chance(2) else None
        for host in ("web1", "web2"):
            began = self.ago(0, 0, 0, 2, 5)
            row = {"finished_at": began, "pid": 1, "version": "0.1.0", "fingerprint": "f", "job_types": known}
            fires = self.dice.choice([1, 1, 0])
            self.put(tables.ticks, tick=host, host=host, started_at=began, schedules_on=fires, **row)


# --- the straightforward way ------------------------------------------------------------------------------------------


def judged_one_by_one(connection: Connection, settings: Settings, health: Health) -> Health:
    """*health* with what is known of waiting jobs and schedules as it comes out if each row is read and judged."""
    every = store.all_schedules(connection)
    active = [each for each in every if each.status == "active"]
    coming = sorted((each.next_at, each.name) for each in active if each.next_at and not each.paused)
    judged = judged_types(connection, settings.run.every, JobTypes())
    return replace(
        waiting_one_by_one(connection, settings, health),
        unknown_schedules=unknown_schedules(connection, judged),
        schedules=ScheduleSurvey(len(active), len(coming)),
        next=coming,
        watch=watched_one_by_one(connection, health, every),
    )


def watched_one_by_one(connection: Connection, health: Health, every: list[store.StoredSchedule]) -> watched.Watched:
    jobs = {job.id: job for job in connection.execute(select(tables.jobs))}
    active = [each for each in every if each.status == "active"]
    lately, not_run, by_trigger = {}, {}, {}
    for schedule in active:
        retries = any(job.schedule == schedule.name and job.status == "failed" for job in jobs.values())
        if retries:
            by_trigger[schedule.id] = triggered_runs(connection, schedule, jobs)
        ledger = select(tables.occurrences).where(tables.occurrences.c.schedule_id == schedule.id)
        rows = connection.execute(ledger.order_by(tables.occurrences.c.last_for.desc())).all()
        if not rows or (rows[0].last_for <= health.now and happened(rows[0], jobs).went_well and not retries):
            continue
        past = rows_that_decide(
            [happened(row, jobs) for row in rows if row.last_for <= health.now],
            head_of(schedule, jobs),
            health.now,
            grace_of(schedule),
        )
        if past:
            lately[schedule.id] = past
        if found := without_its_runs(connection, schedule, past, jobs, health.now):
            not_run[schedule.name] = found

    def triggered(name: str) -> list[ByHand]:
        return status_facts.triggered(connection, names_of(name, []))

    missing = [each for each in active if watched.missed(lately.get(each.id, []))]
    by_hand = {
        each.name: run_by_hand(connection, each, jobs, health.now, not_run.get(each.name, ())) for each in missing
    }
    return replace(
        health.watch,
        schedules=every,
        lately=lately,
        by_trigger=by_trigger,
        not_run=not_run,
        covered={name: at for name, at in by_hand.items() if at is not None},
        without_run={
            each.name: why
            for each in active
            if (
                why := watched._without_run(
                    connection, each, names_of(each.name, []), triggered, health.pauses, health.now
                )
            )
        },
    )


def without_its_runs(
    connection: Connection,
    schedule: store.StoredSchedule,
    rows: list[OccurrenceResult],
    jobs: dict[int, Any],
    now: datetime,
) -> tuple[UnrunOccurrences, ...]:
    covered = None
    for _ in range(2):
        judged = standing(rows, head_of(schedule, jobs), now, grace_of(schedule), covered)
        found = tuple(each for each in judged.not_run if each.why not in SAID_ELSEWHERE)
        if not found:
            break
        covered = run_by_hand(connection, schedule, jobs, now, judged.not_run)
    return found


def rows_that_decide(
    rows: list[OccurrenceResult], head: JobNow | None, now: datetime, grace: timedelta
) -> list[OccurrenceResult]:
    """The newest rows, and all rows if the newest do not decide. Every finding about the schedule is about these."""
    judged = standing(rows[:RUNS_LOOKED_AT], head, now, grace)
    return rows[:RUNS_LOOKED_AT] if judged.certain or judged.ended else rows


def head_of(schedule: store.StoredSchedule, jobs: dict[int, Any]) -> JobNow | None:
    mine = [job for job in jobs.values() if job.schedule == schedule.name and job.finished_at is None]
    first = min(mine, key=lambda job: (job.status != "running", job.id), default=None)
    return None if first is None else job_now(first)


def grace_of(schedule: store.StoredSchedule) -> timedelta:
    if isinstance(schedule.definition, dict) and isinstance(seconds := schedule.definition.get("grace_s"), int):
        return timedelta(seconds=seconds)
    return DEFAULT_GRACE


def triggered_runs(
    connection: Connection, schedule: store.StoredSchedule, jobs: dict[int, Any]
) -> list[OccurrenceResult]:
    """The triggered runs whose jobs still exist, in the form of rows of the ledger."""
    audit = tables.audit.c
    asked = connection.execute(
        select(audit.at, audit.detail).where(audit.subject == schedule.name, audit.action == "trigger")
    )
    there = [(at, job_now(jobs[detail["job_id"]])) for at, detail in asked if detail["job_id"] in jobs]
    return [OccurrenceResult(schedule.id, at, at, "enqueued", None, at, job.id, job) for at, job in there]


def run_by_hand(
    connection: Connection,
    schedule: store.StoredSchedule,
    jobs: dict[int, Any],
    now: datetime,
    not_run: tuple[UnrunOccurrences, ...],
) -> datetime | None:
    """When the newest run was triggered of which something became, or may still."""
    audit = tables.audit.c
    asked = connection.execute(
        select(audit.at, audit.detail).where(audit.subject == schedule.name, audit.action == "trigger")
    )
    stand = []
    put_off = {each.job.id for each in not_run if each.why == "put off" and each.job is not None}
    for at, detail in asked:
        if detail["job_id"] in put_off:
            continue
        job = None if detail["job_id"] not in jobs else job_now(jobs[detail["job_id"]])
        runs_on = (
            job is not None
            and job.status in ("running", "failed")
            and not why_not_run(job, at, now, grace_of(schedule))
        )
        if job is None or job.status == "succeeded" or runs_on:
            stand.append(at)
    return max(stand, default=None)


def happened(row: Any, jobs: dict[int, Any]) -> OccurrenceResult:
    job = jobs.get(row.job_id)
    facts = {name: value for name, value in row._mapping.items() if name not in ("count", "tick")}
    return OccurrenceResult(**facts, job=None if job is None else job_now(job))


def job_now(job: Any) -> JobNow:
    same = ["id", "status", "job_type", "queue", "run_at", "scheduled_for", "started_at", "locked_until", "attempts"]
    same += ["finished_at", "last_failed_at"]
    return JobNow(
        **{name: getattr(job, name) for name in same},
        failures=job.failures,
        losses=job.losses,
        dismissed=bool(job.dismissed_at and job.finished_at and job.dismissed_at >= job.finished_at),
        limit=None if job.timeout_s is None else timedelta(seconds=job.timeout_s),
    )


def waiting_one_by_one(connection: Connection, settings: Settings, health: Health) -> Health:
    judged, late = judged_types(connection, settings.run.every, JobTypes()), watched.late_after(settings.run.every)
    in_force = store.pauses_in_force(connection)
    # Jobs are not late merely because of a pause that has just ended. The pause of everything has the name "".
    resumed = {
        pause.name
        for pause in connection.execute(select(tables.pauses).where(tables.pauses.c.scope != "schedule"))
        if pause.until is not None and health.now - late <= pause.until <= health.now
    }
    groups: dict[tuple[str, str], list[Any]] = {}
    for job in connection.execute(select(tables.jobs)):
        if job.status in ("queued", "failed"):
            groups.setdefault((job.queue, job.job_type), []).append(job)
    queues: dict[str, Queue] = {}
    unresolved_types: dict[str, int] = {}
    late_groups: list[LateGroup] = []
    for (name, job_type), jobs in sorted(groups.items()):
        queue = queues.setdefault(name, Queue(paused=bool(of_queue(in_force, name))))
        due = [job.run_at for job in jobs if job.run_at <= health.now]
        queue.due += len(due)
        queue.oldest_due_at = min([*due, *([queue.oldest_due_at] if queue.oldest_due_at else [])], default=None)
        queue.future += len(jobs) - len(due)
        queue.failed += sum(job.status == "failed" for job in jobs)
        unknown = due and not judged.knows(job_type, since=min(due))
        if unknown:
            unresolved_types[job_type] = unresolved_types.get(job_type, 0) + len(due)
        could = [job for job in jobs if job.run_at <= health.now - late and is_first(connection, job, judged)]
        if not queue.paused and not {name, ""} & resumed and not unknown and could:
            queue.late += len(could)
            group = LateGroup(name, job_type, min(due), len(could))
            late_groups.append(group)
    for name, seen in health.waiting.queues.items():
        if seen.max_waiting is not None:
            queue = queues.setdefault(name, Queue(paused=bool(of_queue(in_force, name))))
            queue.max_waiting, queue.on_full = seen.max_waiting, seen.on_full
    due = [job.run_at for jobs in groups.values() for job in jobs if job.run_at <= health.now]
    beyond = {(each.queue, each.job_type) for each in health.waiting.out_of_reach}
    late_groups = [each for each in late_groups if (each.queue, each.job_type) not in beyond]
    oldest = min(due, default=None)
    found = replace(health.waiting, queues=queues, unresolved=unresolved_types, late=late_groups, oldest_due_at=oldest)
    return replace(health, waiting=found)


def is_first(connection: Connection, job: Any, judged: JudgedTypes) -> bool:
    """Whether no other job of its schedule runs, or comes before it."""
    if job.schedule is None:
        return True
    others = connection.execute(select(tables.jobs).where(tables.jobs.c.schedule == job.schedule)).all()
    [defined] = connection.execute(
        select(tables.schedules.c.definition).where(tables.schedules.c.name == job.schedule)
    ).scalars().all() or [None]
    present = (defined.get("job") if isinstance(defined, dict) else None) or (job.schedule if defined else None)

    def turn(each: Any) -> tuple[bool, int]:
        return (each.job_type != present, each.id)

    for other in others:
        if other.id == job.id or other.finished_at is not None:
            continue
        runnable = judged.ticks is None or other.job_type in judged.ticks
        if other.status == "running" or (runnable and turn(other) < turn(job)):
            return False
    return True


# --- the test ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


def test_status_says_what_it_would_if_it_judged_every_row(database: Database, tmp_path: Path) -> None:
    settings = Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path)
    world = World(database, settings)
    said: set[str] = set()
    for seed in range(3 * SEEDS if database.is_sqlite else SEEDS):  # it has no server to ask, which takes longer
        world.make(seed)
        with database.read() as connection:
            seen = look(connection, settings, world.types)
            listed = [dict(row._mapping) for row in active_schedules(connection)]
            wanted = judged_one_by_one(connection, settings, seen)
            every = [
                {"name": each.name, "next_at": each.next_at, "paused": each.paused}
                for each in store.all_schedules(connection)
                if each.status == "active"
            ]
        assert listed == every, seed
        found, right = troubles(seen, settings), troubles(wanted, settings)
        assert found == right, seed
        said |= {each.kind for each in found}
        for as_printed in (lines, as_json):
            assert as_printed(seen, world) == as_printed(wanted, world), seed
        assert seen.schedules.doubtful >= seen.schedules.went_badly
    assert said >= {"behind", "failing", "late", "missed", "pause", "schedule", "schedules_off", "unresolved"}


def lines(health: Health, world: World) -> list[str]:
    times = Times(health.now, world.settings.timezone)
    head = head_lines(health, world.settings, "sqlite:///x", times, everything=False)
    return head + work_lines(health, world.settings, world.types, times, QueueTrends(health.now), ())


def as_json(health: Health, world: World) -> str:
    return json_text(status_object(health, world.settings, "sqlite:///x", QueueTrends(health.now)))
