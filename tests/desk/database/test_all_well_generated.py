"""A week of random schedules and policies, outages, snoozes, deaths, clocks that are ahead for a while, and what people
do: is "all well" said rightly?

The rule is here once more, in the plainest way, from all rows: every active schedule has had what it was due, except
what a pause holds back. Never "all well" when that does not hold; always when it does and nothing else is wrong. What a
tick does here the store's own functions do: recover, materialise, claim, finish, prune.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, select
from support.cases import judge
from support.postgres import OWNER
from support.rounds import LONG
from support.yard import MINUTE, START, Yard

from cronjobs.desk.insight.acking import acknowledge
from cronjobs.desk.insight.findings import Finding
from cronjobs.desk.insight.findings import judge as judge_health
from cronjobs.desk.insight.gathering import look
from cronjobs.engine.config.settings import Retention, ScheduleSettings
from cronjobs.engine.crontime.timing import timing
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.capacity import Cap
from cronjobs.engine.rules.ending import decide_end, settle_expired
from cronjobs.engine.rules.lease import lease_of
from cronjobs.engine.rules.occurrences import dropped_reason
from cronjobs.engine.rules.recovery_policy import AttemptPolicy, ClaimPolicies
from cronjobs.engine.schedules.backfill import ScheduleBusy, trigger
from cronjobs.engine.schedules.decide import spread_offset
from cronjobs.engine.schedules.definition import fingerprint, schedule_from_definition
from cronjobs.engine.store import claims, expiry, leases, operating
from cronjobs.engine.store import schedules as store
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.engine.store.job_types import Loaded, record_types
from cronjobs.engine.store.operating import OperatorAction
from cronjobs.engine.tick.pruner import Before, Pruner
from cronjobs.model import Failed, Finished, Job, Outcome, RetryPolicy, Snoozed, Succeeded
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.connects_as(OWNER)  # who may delete everything

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
GRACE = HOUR  # docs/reference/findings.md: without ``grace:``
LEASE = timedelta(minutes=1)
LIMIT = timedelta(hours=2)  # of an attempt
SLACK = timedelta(minutes=5)
POLICY = AttemptPolicy(RetryPolicy(max_attempts=3), runner_s=LIMIT.total_seconds(), lease_s=LEASE.total_seconds())
KNOWN = ["t.known"]
CRONS = ["0 */6 * * *", "30 2 * * *", "15 */8 * * *", "0 4 * * 2", "*/15 9-11 * * *"]
RETENTION = Retention(succeeded=3 * DAY, dead=2 * DAY, occurrences=4 * DAY)
TABLES = ["alerts", "findings", "acks", "job_runs", "jobs", "occurrences", "schedules", "pauses", "ticks", "audit"]
TABLES += ["job_type_lists", "queues"]
# Findings of which the rule here knows nothing; they may always be there.
BESIDE = {"failing", "failing_type", "slower", "full", "late", "pause", "schedule", "dead", "lease", "crashing"}
BESIDE |= {"clock", "ending"}
# Findings that account for an occurrence of any schedule that did not run.
OF_ANY = {"dead", "late", "pause", "no_tick"}


@dataclass
class Week:
    """One random week. ``moods``: what becomes of a schedule's attempts. ``long``: attempts that run on, until when."""

    yard: Yard
    dice: random.Random
    types: JobTypes = field(default_factory=JobTypes)
    long: dict[tuple[int, int], tuple[Job, datetime]] = field(default_factory=dict)
    moods: dict[str, str] = field(default_factory=dict)
    wrong_clocks: float = 0.1  # how often
    ahead: timedelta = timedelta(0)  # how far the clock is ahead now
    ran_at: dict[int, datetime] = field(default_factory=dict)  # when the last attempt of a job really began
    deaths_gone: int = 0  # removed by retention, undealt with, and not acknowledged
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        with self.yard.database.write() as connection:
            for name in TABLES:
                connection.execute(delete(tables.metadata.tables[f"cronjobs_{name}"]))
        wanted = [self.schedule(f"s{number}") for number in range(self.dice.choice([1, 2, 3]))]
        self.settings = self.yard.file(*wanted)
        if self.dice.random() < 0.3:
            self.settings = self.with_cap(self.dice.choice([1, 2]))
        self.yard.sync(self.settings)
        self.moods = {each.name: "good" for each in wanted}

    def with_cap(self, most: int) -> Any:
        return replace(self.settings, queues={"q": Cap("q", most, "drop")})

    def schedule(self, name: str) -> ScheduleSettings:
        dice = self.dice
        return ScheduleSettings(
            name=name,
            job="t.known",
            cron=dice.choice(CRONS),
            catch_up=dice.choice(["none", "latest", "all", "all"]),
            catch_up_within=dice.choice([HOUR, DAY]),
            catch_up_limit=dice.choice([1, 2, 100]),
            overlap=dice.choice(["skip", "wait", "allow"]),
            queue=dice.choice(["default", "q"]),
            grace=dice.choice([None, None, 3 * HOUR]),
            spread=dice.choice([None, None, 2 * HOUR]),
            max_attempts=dice.choice([None, 1, 2]),
        )

    @property
    def now(self) -> datetime:
        return self.yard.clock.now()

    # --- what a tick does ---------------------------------------------------------------------------------------------

    def tick(self) -> None:
        database = self.yard.database
        with database.write() as connection:
            mark = record_types(connection, Loaded(KNOWN))
            row = {"host": "alpha", "pid": 1, "version": "0", "schedules_on": 1, "job_types": mark}
            row |= {"fingerprint": fingerprint(self.settings)}
            times = {"started_at": self.now, "finished_at": self.now}
            connection.execute(insert(tables.ticks).values(tick=str(self.dice.random()), **row, **times))
        self.renew()
        with database.write() as connection:
            now, found = expiry.expired_leases(connection, 100)
            ends = [settle_expired(each, each.policy or POLICY, now, MINUTE).finish for each in found]
            if ends:
                leases.finish(connection, ends)
        self.yard.tick()
        self.work()

    def renew(self) -> None:
        for key, (job, until) in list(self.long.items()):
            with self.yard.database.write() as connection:
                if until <= self.now:
                    del self.long[key]
                    self.finish(connection, job, Succeeded())
                elif lease_of(job).job_id not in leases.renew(connection, [lease_of(job)], LEASE).renewed:
                    del self.long[key]  # it was away for too long, and somebody has settled it

    def work(self) -> None:
        admission = ClaimFilter(
            known=KNOWN, fitting=KNOWN, remaining_s=50, runnable=KNOWN, policies=ClaimPolicies.of({"t.known": POLICY})
        )
        for _ in range(5):
            with self.yard.database.write() as connection:
                held = f"alpha:b:1:1:1:{self.dice.random()}"
                jobs = claims.claim(connection, limit=10, locked_by=held, lease=LEASE, admission=admission).jobs
            if not jobs:
                break
            for job in jobs:
                self.attempt(job)

    def attempt(self, job: Job) -> None:
        mood = self.moods.get(job.schedule or "", "good")
        self.ran_at[job.id] = self.now - self.ahead
        ends: dict[str, Outcome] = {
            "good": Succeeded(),
            "fails": Failed("no", "ValueError"),
            "dies": Failed("no", "ValueError", permanent=True),
            "snoozes": Snoozed(self.now + self.dice.choice([HOUR, DAY])),
            "asks": Failed("no", "RetryLater", retry_after=self.dice.choice([HOUR, DAY, 3 * DAY])),
        }
        if mood in ends:
            with self.yard.database.write() as connection:
                self.finish(connection, job, ends[mood])
        elif mood != "lost":
            hours = {"long": 1.5, "longer": 30}[mood]
            self.long[job.id, job.attempt] = (job, self.now + hours * HOUR)

    def finish(self, connection: Any, job: Job, outcome: Outcome) -> None:
        end = decide_end(Finished(job, outcome, MINUTE), POLICY.retry, self.now, max_losses=10, every=MINUTE)
        leases.finish(connection, [end.finish])

    # --- what happens -------------------------------------------------------------------------------------------------

    def go(self) -> Iterator[None]:
        end = self.now + 7 * DAY
        while self.now < end:
            if self.dice.random() > self.wrong_clocks:
                self.happens()
            if self.dice.random() < 0.25:  # an outage
                self.yard.clock.advance(self.dice.choice([HOUR, 5 * HOUR, 20 * HOUR]))
            elif self.dice.random() < self.wrong_clocks:
                self.clock_is_ahead()
            else:
                self.run_until(self.now + self.dice.choice([20 * MINUTE, 2 * HOUR, 9 * HOUR, 20 * HOUR]))
            for _ in range(self.dice.choice([1, 1, 3])):
                self.tick()
                self.yard.clock.advance(MINUTE)
            yield

    def clock_is_ahead(self) -> None:
        """For a tick or two, and no attempt outlasts that; the next tick finds it set right."""
        moods, self.moods = self.moods, dict.fromkeys(self.moods, self.dice.choice(["good", "good", "fails", "asks"]))
        self.ahead = self.dice.choice([HOUR, 7 * HOUR, DAY, 3 * DAY])
        self.yard.clock.advance(self.ahead)
        for _ in range(self.dice.choice([1, 2])):
            self.tick()
            self.yard.clock.advance(MINUTE)
        self.yard.clock.advance(-self.ahead)
        self.moods, self.ahead = moods, timedelta(0)
        self.tick()

    def run_until(self, end: datetime) -> None:
        """Ticks come at every instant at which something is due, and leases are renewed in between."""
        while self.now < end:
            with self.yard.database.read() as connection:
                nexts = [each.next_at for each in store.all_schedules(connection) if each.next_at]
                unended = tables.jobs.c.finished_at.is_(None)
                nexts += connection.execute(select(tables.jobs.c.run_at).where(unended)).scalars().all()
            nexts += [until for _, until in self.long.values()]
            upto = min([end, *(at for at in nexts if at > self.now)]) + timedelta(seconds=2)
            for job, _ in self.long.values():  # heartbeats, which need no tick
                with self.yard.database.write() as connection:
                    leases.renew(connection, [lease_of(job)], upto - self.now + LEASE)
            self.yard.clock.advance(upto - self.now)
            self.tick()

    def happens(self) -> None:
        name = self.dice.choice(list(self.moods))
        match self.dice.randrange(15):
            case 0 | 1 | 2:
                moods = ["fails", "dies", "snoozes", "snoozes", "asks", "long", "longer", "lost"]
                self.moods[name] = self.dice.choice(moods)
            case 3 | 4 | 5 | 6:
                self.moods[name] = "good"
            case 7:
                self.act(operating.dismiss, "dismiss", "dead")
            case 8:
                self.act(operating.retry, "retry", self.dice.choice(["dead", "failed"]))
            case 9:
                self.act(operating.cancel, "cancel", self.dice.choice(["queued", "failed"]))
            case 10:
                until = self.now + self.dice.choice([HOUR, 10 * HOUR])
                self.yard.pause(self.dice.choice([name, name, ""]), until, skip=self.dice.random() < 0.5)
            case 11:
                self.trigger(name)
            case 12:
                self.prune()
            case 13:
                self.acknowledge()
            case 14:
                self.edit(name)

    def edit(self, name: str) -> None:
        """Give the schedule other times, as a deploy does."""
        wanted = replace(self.settings.schedules[name], cron=self.dice.choice(CRONS))
        self.settings = replace(self.settings, schedules={**self.settings.schedules, name: wanted})
        self.yard.sync(self.settings)

    def act(self, verb: Any, word: str, status: str) -> None:
        with self.yard.database.write() as connection:
            wanted = select(tables.jobs.c.id).where(tables.jobs.c.status == status)
            ids = connection.execute(wanted).scalars().all()
            verb(connection, ids, OperatorAction(word, "ada", "alpha", None))

    def trigger(self, name: str) -> None:
        with self.yard.database.write() as connection:
            try:
                trigger(connection, name, force=False, actor="ada", host="alpha")
            except ScheduleBusy:
                return

    def prune(self) -> None:
        before = self.undealt()
        limits = Before.of(RETENTION, self.now)
        Pruner(self.yard.database, limits, self.yard.database.clock, lambda: True).run()
        self.deaths_gone += len(before - self.undealt())

    def undealt(self) -> set[int]:
        with self.yard.database.read() as connection:
            rows = connection.execute(select(tables.jobs).where(tables.jobs.c.status == "dead")).all()
        return {row.id for row in rows if row.dismissed_at is None or row.dismissed_at < row.finished_at}

    def acknowledge(self) -> None:
        found = [each for each in self.found() if each.kind in ("dropped", "pruned")]
        for each in found:
            with self.yard.database.write() as connection:
                given = {"by": "ada", "host": "alpha", "why": None}
                acknowledge(connection, each, until=self.now + DAY, now=self.now, **given)
            if each.kind == "pruned":
                self.deaths_gone = 0

    # --- what is said -------------------------------------------------------------------------------------------------

    def found(self) -> list[Finding]:
        with self.yard.database.read() as connection:
            return judge_health(look(connection, self.settings, self.types), self.settings)


# --- the rule, once more ----------------------------------------------------------------------------------------------


class Rows:
    """All rows, as they are now."""

    def __init__(self, database: Database, now: datetime, ran_at: Mapping[int, datetime]) -> None:
        self.now, self.ran_at = now, ran_at
        with database.read() as connection:
            self.schedules = store.all_schedules(connection)
            self.ledger = connection.execute(select(tables.occurrences)).all()
            self.jobs = {row.id: row for row in connection.execute(select(tables.jobs))}
            self.audit = connection.execute(select(tables.audit).order_by(tables.audit.c.id)).all()

    def without_their_runs(self) -> set[str]:
        return {each.name for each in self.schedules if each.status == "active" and self.lacks(each)}

    def lacks(self, schedule: store.StoredSchedule) -> bool:
        given = schedule_from_definition(schedule.name, schedule.definition)
        grace = spread_offset(given) + (GRACE if given.grace is None else given.grace)
        rows = [row for row in self.ledger if row.schedule_id == schedule.id]
        well = [row.last_for for row in rows if self.succeeded(row)]
        triggered = [row for row in self.audit if (row.action, row.subject) == ("trigger", schedule.name)]
        by_hand = [row.at for row in triggered if self.came_of(row, rows, given, grace)]
        after = max([*well, *by_hand], default=START - DAY)
        for row in rows:
            if row.last_for > after and row.first_for + grace <= self.now and not self.is_well(row, given, grace):
                return True
        if schedule.paused is not None:
            return False
        unsettled = timing(given.cron, given.every, given.timezone).after(max(schedule.seen_until, after))
        return next(iter(unsettled)) + grace <= self.now

    def past_grace(self) -> set[str]:
        """Schedules with ``grace:`` whose newest occurrence past its grace had no success, by hand or since."""
        return {each.name for each in self.schedules if each.status == "active" and self.is_past_grace(each)}

    def is_past_grace(self, schedule: store.StoredSchedule) -> bool:
        given = schedule_from_definition(schedule.name, schedule.definition)
        if given.grace is None:
            return False
        rows = [row for row in self.ledger if row.schedule_id == schedule.id and not self.is_paused_away(row)]
        past = [row.last_for for row in rows if row.last_for + spread_offset(given) + given.grace < self.now]
        runs = [(row.last_for, row.job_id) for row in rows if row.job_id is not None and not self.early(row)]
        triggered = [row for row in self.audit if (row.action, row.subject) == ("trigger", schedule.name)]
        runs += [(row.at, row.detail["job_id"]) for row in triggered]
        jobs = [self.jobs.get(job_id) for at, job_id in runs if past and at >= max(past)]
        return bool(past) and not any(job is None or job.status == "succeeded" for job in jobs)

    def is_paused_away(self, row: Any) -> bool:
        return row.outcome == "skipped" and row.job_id is None and row.reason.startswith("paused")

    def succeeded(self, row: Any) -> bool:
        job = self.jobs.get(row.job_id)
        ran = row.outcome in ("enqueued", "coalesced") and (job is None or job.status == "succeeded")
        return ran and not self.early(row)

    def early(self, row: Any) -> bool:
        """Whether a clock that was ahead ran it, well before it was due, and nothing ran it again in time."""
        ran_at = self.ran_at.get(row.job_id)
        return row.outcome == "enqueued" and ran_at is not None and ran_at + SLACK < row.last_for

    def came_of(self, asked: Any, rows: list[Any], given: ScheduleSettings, grace: timedelta) -> bool:
        """Whether something came of what a person triggered, or may still before it holds up a later occurrence."""
        job = self.jobs.get(asked.detail["job_id"])
        if job is None or job.status == "succeeded":
            return True
        due = [row.first_for for row in rows if row.first_for + grace <= self.now and self.holds_up(job, row, given)]
        return job.status in ("running", "failed") and self.job_is_well(job, given, grace, max([asked.at, *due]))

    def holds_up(self, job: Any, row: Any, given: ScheduleSettings) -> bool:
        its = self.jobs.get(row.job_id)
        behind = its is not None and its.status == "queued" and given.overlap != "allow"
        return job.finished_at is None and (row.job_id == job.id or (behind and self.head(given).id == job.id))

    def head(self, given: ScheduleSettings) -> Any:
        mine = [each for each in self.jobs.values() if each.schedule == given.name and each.finished_at is None]
        return min(mine, key=lambda each: (each.status != "running", each.id))

    def is_well(self, row: Any, given: ScheduleSettings, grace: timedelta) -> bool:
        if row.outcome == "missed":
            return False
        if row.outcome == "skipped" and row.job_id is None:
            return self.is_paused_away(row)
        job = self.jobs.get(row.job_id)
        if (job is None or job.status == "succeeded") and self.early(row):
            return False
        return job is None or self.job_is_well(job, given, grace, row.first_for)

    def job_is_well(self, job: Any, given: ScheduleSettings, grace: timedelta, due: datetime) -> bool:
        match job.status:
            case "succeeded" | "cancelled":
                return True
            case "dead":
                return bool(job.dismissed_at and job.dismissed_at >= job.finished_at)
            case "running":
                return bool(job.locked_until > self.now and job.started_at + LIMIT + SLACK > self.now)
            case "failed" if job.run_at > self.now:  # a retry does not wait beyond an occurrence that comes due
                return bool(due <= job.last_failed_at <= self.now)
            case "failed":
                return bool(job.run_at + grace > self.now)
        first = self.head(given)
        return given.overlap != "allow" and first.id != job.id and self.job_is_well(first, given, grace, due)

    def dropped(self) -> bool:
        """Whether something was dropped that nobody has acknowledged."""
        reasons = (dropped_reason(paused=False), dropped_reason(paused=True))
        acked = [row.at for row in self.audit if (row.action, row.subject) == ("ack", "dropped")]
        return any(row.reason in reasons and row.decided_at > max(acked, default=START - DAY) for row in self.ledger)


def check(week: Week) -> None:
    found = week.found()
    rows = Rows(week.yard.database, week.now, week.ran_at)
    lacking = rows.without_their_runs()
    kinds = {each.kind for each in found}
    named = {name for each in found for name in (*each.rows, each.subject)}
    told = f"{sorted(lacking)} at {week.now}: {[(each.key, each.text) for each in found]}"
    assert not lacking or found, f"all well was said, and these lack a run: {told}"
    assert lacking <= named or kinds & OF_ANY, f"no finding is about one of these: {told}"
    strict = " ".join(each.text for each in found if each.kind in ("schedule", "dead"))
    assert all(name in strict for name in rows.past_grace()), f"{rows.past_grace()} are past their grace: {told}"
    for each in found:
        if each.kind == "not_run":
            assert set(each.rows) <= lacking, f"not all of them lack a run: {told}"
    assert not rows.dropped() or "dropped" in kinds, told
    assert ("pruned" in kinds) == (week.deaths_gone > 0), told
    if not lacking:
        assert kinds <= BESIDE | {"dropped", "pruned", "missed"}, told
    week.seen |= kinds or {"all well"}
    week.seen |= {"lacking"} if lacking else set()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


def test_all_is_said_to_be_well_exactly_when_every_schedule_had_its_runs(
    database: Database, clock: FakeClock, tmp_path: Path
) -> None:
    seen: set[str] = set()
    few = 2 if database.is_sqlite else 1

    def case(dice: random.Random) -> None:
        clock.set(START)
        week = Week(Yard(database, clock, tmp_path), dice)
        for _ in week.go():
            check(week)
        seen.update(week.seen)

    judge(case, few)
    if LONG:
        assert seen >= {"all well", "lacking", "not_run", "missed", "dropped", "pruned"}


def test_what_a_clock_that_was_ahead_ran_early_is_a_finding_when_it_is_due(
    database: Database, clock: FakeClock, tmp_path: Path
) -> None:
    """The check from above, mostly with wrong clocks. A retry counts as a run in time once the occurrence is due."""

    def case(dice: random.Random) -> None:
        clock.set(START)
        week = Week(Yard(database, clock, tmp_path), dice, wrong_clocks=0.7)
        for _ in week.go():
            check(week)

    judge(case, 12 if database.is_sqlite else 3)
