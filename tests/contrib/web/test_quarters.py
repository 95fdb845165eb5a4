"""The strips agree with the ledger, whatever the stored summaries hold, and whatever has happened since."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from typing import Any

import pytest
from sqlalchemy import select
from support.lookingrows import NOW, Rows
from support.lookingrows import rows as rows

from cronjobs.contrib.web.schedule_strip import QUARTERS, first_quarter
from cronjobs.engine.crontime.timing import fire_times
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.rules.quarters import (
    FINAL_LETTERS,
    HOUR,
    NOTHING,
    PRUNED,
    QUARTER,
    WORDS,
    ResultSpan,
    gaps,
    number_of,
    painted,
    worse,
)
from cronjobs.engine.store import operating, pruning, quarters
from cronjobs.engine.store.operating import OperatorAction
from cronjobs.engine.store.schedules import LedgerRow, forget_occurrences, record_occurrences
from cronjobs.testing import FakeClock

DAY = timedelta(hours=24)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


def by_select(database: Database, schedule_id: int, now: datetime) -> str:
    """The strip by one SELECT and arithmetic, as somebody would check it."""
    cells = [NOTHING] * QUARTERS
    end = datetime.fromtimestamp((int(now.timestamp()) // 900 + 1) * 900, now.tzinfo)
    found, jobs = tables.occurrences, tables.jobs
    with database.read() as connection:
        ledger = connection.execute(select(found).where(found.c.schedule_id == schedule_id)).all()
        statuses = {row.id: row.status for row in connection.execute(select(jobs.c.id, jobs.c.status))}
        plan = select(tables.schedules.c.definition).where(tables.schedules.c.id == schedule_id)
        definition = connection.execute(plan).scalar_one()
    due = [instants_of(row, definition) for row in ledger]
    of_job = {"succeeded": "s", "queued": "w", "running": "r", "failed": "f", "cancelled": "x", "dead": "d"}
    for place in range(QUARTERS):
        begin = end - DAY + place * QUARTER
        for row, instants in zip(ledger, due, strict=True):
            if any(begin <= each < begin + QUARTER for each in instants):
                letter = {"missed": "m", "skipped": "k", "coalesced": "c"}.get(row.outcome)
                letter = letter or of_job.get(statuses.get(row.job_id, ""), "p")
                cells[place] = worse(cells[place], letter)
    return "".join(cells)


def instants_of(row: Any, definition: dict[str, Any]) -> list[datetime]:
    """Of a ledger row: as its schedule's expression says, if that has so many; else evenly spread."""
    if row.count == 1:
        return [row.last_for]
    if "cron" in definition:
        fires = fire_times(definition["cron"], definition.get("timezone", "UTC"), row.first_for - QUARTER)
        found = [each for each in takewhile(row.last_for.__ge__, fires) if each >= row.first_for]
        if len(found) == row.count and [found[0], found[-1]] == [row.first_for, row.last_for]:
            return found
    span = row.last_for - row.first_for
    return [row.first_for + span * place / (row.count - 1) for place in range(row.count)]


def strips(database: Database, ids: list[int], now: datetime) -> dict[int, str]:
    with database.read() as connection:
        return quarters.strips(connection, ids, first_quarter(now), QUARTERS)


def close_all(database: Database, now: datetime) -> int:
    closed = 0
    while True:
        with database.write() as connection:
            if not quarters.close_hour(connection, now):
                return closed
        closed += 1


class Night:
    """A random day of some schedules, which goes on."""

    def __init__(self, rows: Rows, clock: FakeClock, seed: int) -> None:
        self.rows, self.clock, self.dice = rows, clock, random.Random(seed)
        self.ids = [rows.schedule(f"s{n}", seen_until=clock.now() - DAY * 1.2) for n in range(3)]
        self.until = dict.fromkeys(self.ids, clock.now() - DAY * 1.2)
        self.jobs: list[int] = []

    def settle(self, schedule_id: int, upto: datetime) -> None:
        """Occurrences up to *upto*, and the watermark there."""
        at = self.until[schedule_id]
        step = timedelta(minutes=self.dice.choice([9, 25, 40, 200]))
        while (first := at + step) <= upto:
            many = self.dice.random() < 0.1
            steps = min(self.dice.randint(1, 90), (upto - first) // step) if many else 0
            at = first + steps * step
            # The row's own count, or another one: it is of a definition that was due more often, or less.
            count = self.dice.choice([steps + 1, 2, 3, 7, 5000]) if steps else 1
            outcome = self.dice.choice(["missed", "skipped", "coalesced"] if many else [*["enqueued"] * 6, "skipped"])
            job = self.make_job(first) if outcome == "enqueued" else None
            self.rows.occurrence(schedule_id, at, outcome, first_for=first, count=count, job_id=job)
        self.until[schedule_id] = upto
        with self.rows.database.write() as connection:
            change = tables.schedules.update().where(tables.schedules.c.id == schedule_id)
            connection.execute(change.values(seen_until=upto))

    def make_job(self, at: datetime) -> int:
        status = self.dice.choice([*["succeeded"] * 12, "dead", "failed", "running", "queued", "cancelled"])
        final = status in ("succeeded", "dead", "cancelled")
        ended: dict[str, Any] = {"started_at": at, "finished_at": at} if final else {}
        job = self.rows.job(status=status, run_at=at, **ended)
        self.jobs.append(job)
        return job

    # --- what happens -------------------------------------------------------------------------------------------------

    def act(self) -> None:
        getattr(self, self.dice.choice(["close", "go_on", "retry", "prune", "again", "finish"]))()

    def close(self) -> None:
        close_all(self.rows.database, self.clock.now())

    def go_on(self) -> None:
        now = self.clock.advance(timedelta(minutes=self.dice.randint(1, 150)))
        for schedule_id in self.ids:
            if self.dice.random() < 0.7:  # else no tick has settled it yet
                self.settle(schedule_id, now)

    def retry(self) -> None:
        act = OperatorAction("retry", "ada", "here", None)
        with self.rows.database.write() as connection:
            operating.retry(connection, self.dice.sample(self.jobs, min(5, len(self.jobs))), act)

    def finish(self) -> None:
        """Waiting jobs succeed."""
        jobs = tables.jobs
        now = self.clock.now()
        done = {"status": "succeeded", "started_at": now, "finished_at": now}
        with self.rows.database.write() as connection:
            connection.execute(jobs.update().where(jobs.c.status.in_(["queued", "failed"])).values(**done))

    def prune(self) -> None:
        jobs = tables.jobs
        with self.rows.database.write() as connection:
            gone = self.dice.sample(self.jobs, min(5, len(self.jobs)))
            connection.execute(jobs.delete().where(jobs.c.id.in_(gone), jobs.c.status == "succeeded"))

    def again(self) -> None:
        """A backfill: a row that did not run goes, and one that made a job comes."""
        found = tables.occurrences
        names = list(LedgerRow.__dataclass_fields__)
        chosen = self.dice.choice(self.ids)
        with self.rows.database.read() as connection:
            query = select(*(found.c[name] for name in names)).where(
                found.c.schedule_id == chosen, found.c.outcome == "skipped", found.c.first_for == found.c.last_for
            )
            ledger = [LedgerRow(**row._mapping) for row in connection.execute(query)]
        if not ledger:
            return
        row = self.dice.choice(ledger)
        job = self.make_job(row.last_for)
        with self.rows.database.write() as connection:
            forget_occurrences(connection, [row])
            new: Any = vars(row) | {"outcome": "enqueued", "job_id": job}
            record_occurrences(connection, [LedgerRow(**new)], now=self.clock.now(), tick=None)


@pytest.mark.parametrize("seed", range(6))
def test_strips_are_what_the_ledger_says_whatever_was_kept(
    rows: Rows, database: Database, clock: FakeClock, seed: int
) -> None:
    night = Night(rows, clock, seed)
    for schedule_id in night.ids:
        night.settle(schedule_id, clock.now())
    for _ in range(12):
        night.act()
        for each, told in strips(database, night.ids, clock.now()).items():
            expected = by_select(database, each, clock.now())
            # A closed hour may have been kept before its jobs were pruned, so that it knows more than the ledger.
            assert all(
                one == other or (other == PRUNED and one in FINAL_LETTERS)
                for one, other in zip(told, expected, strict=True)
            ), (told, expected)


@pytest.mark.parametrize("closed", [False, True], ids=["from the ledger", "kept"])
def test_a_job_pruned_while_dead_and_open_stays_dead(rows: Rows, database: Database, closed: bool) -> None:
    """Both were drawn as succeeded; books, explain and status called the first dead, and the other unknown."""
    schedule = rows.schedule("s", seen_until=NOW)
    due = NOW - timedelta(hours=3)
    dead, old = (rows.job(status="dead", run_at=due, started_at=due, finished_at=due) for _ in range(2))
    with database.write() as connection:
        pruning.delete_jobs(connection, [dead], "dead", NOW)
        connection.execute(tables.jobs.delete().where(tables.jobs.c.id == old))  # no record says how it ended
    rows.occurrence(schedule, due, "enqueued", job_id=dead)
    rows.occurrence(schedule, due + QUARTER, "enqueued", job_id=old)
    if closed:
        close_all(database, NOW)
    assert strips(database, [schedule], NOW)[schedule].strip(NOTHING) == "dp"


def test_an_hour_is_looked_at_once_and_goes_after_a_day(rows: Rows, database: Database, clock: FakeClock) -> None:
    schedule = rows.schedule("s", seen_until=NOW)
    rows.occurrence(schedule, NOW - timedelta(hours=3), "skipped")
    assert close_all(database, NOW) == 1  # hours in which nothing was due are no work
    with database.read() as connection:
        kept = connection.execute(select(tables.quarters).where(tables.quarters.c.schedule_id != 0)).all()
    assert [(row.schedule_id, row.hour, row.quarters) for row in kept] == [
        (schedule, datetime(2026, 7, 1, 9, tzinfo=UTC), "k...")
    ]
    assert close_all(database, NOW) == 0
    assert close_all(database, NOW + 2 * DAY) == 0
    later = NOW + 2 * DAY
    rows.occurrence(rows.schedule("t", seen_until=later), later - timedelta(hours=3), "skipped")
    assert close_all(database, later) == 1
    with database.read() as connection:
        left = {row.hour for row in connection.execute(select(tables.quarters)) if row.schedule_id}
    assert left == {datetime(2026, 7, 3, 9, tzinfo=UTC)}


def test_several_that_close_hours_at_once_take_turns(rows: Rows, database: Database) -> None:
    """Also the first time, and although each moves the mark: they deadlocked, and left two marks."""
    schedule = rows.schedule("s", seen_until=NOW)
    for hour in range(3, 20):
        rows.occurrence(schedule, NOW - timedelta(hours=hour), "skipped")
    with ThreadPoolExecutor(4) as threads:
        closed = [each.result() for each in [threads.submit(close_all, database, NOW) for _ in range(4)]]
    assert sum(closed) == 17  # each of them once
    with database.read() as connection:
        marks = connection.execute(select(tables.quarters.c.hour).where(tables.quarters.c.schedule_id == 0)).all()
    assert sorted(row.hour for row in marks) == [quarters.NEVER, datetime(2026, 7, 1, 10, tzinfo=UTC)]


EARLY = datetime(2026, 6, 30, 20, tzinfo=UTC)  # a Tuesday
HOURLY, OFFICE = {"cron": "0 * * * *"}, {"cron": "30 7-9 * * 1-5", "timezone": "Europe/Berlin"}


@pytest.mark.parametrize("closed", [False, True], ids=["from the ledger", "kept"])
@pytest.mark.parametrize(
    ("definition", "first", "last", "count", "due"),
    [
        (HOURLY, EARLY, EARLY + timedelta(hours=4), 5, [20, 21, 22, 23, 24]),
        ({"every_s": 7200}, EARLY, EARLY + timedelta(hours=12), 7, [20, 22, 24, 26, 28, 30, 32]),
        (
            OFFICE,
            datetime(2026, 6, 26, 6, 30, tzinfo=UTC),
            datetime(2026, 7, 1, 7, 30, tzinfo=UTC),
            11,
            [29.5, 30.5, 31.5],
        ),
        ({"cron": "*/5 * * * *"}, EARLY, EARLY + HOUR, 13, [20, 20.25, 20.5, 20.75, 21]),
        (HOURLY, EARLY - 40 * DAY, EARLY, 961, list(range(13, 21))),
        # Of an earlier definition, or one that cannot be read: as if evenly spread, and never more than were due.
        ({"cron": "0 3 * * *"}, EARLY, EARLY + timedelta(hours=4), 3, [20, 22, 24]),
        ({"cron": "no expression"}, EARLY, EARLY + timedelta(hours=4), 3, [20, 22, 24]),
        ({"cron": "0 20-23 * * *"}, EARLY, EARLY + timedelta(hours=3), 3, [20, 21.5, 23]),
    ],
)
def test_of_a_row_that_is_several_only_quarters_in_which_one_was_due_are_painted(
    rows: Rows, database: Database, definition: Any, first: datetime, last: datetime, count: int, due: Any, closed: bool
) -> None:
    """Four skipped runs of an hourly schedule were "7 skipped": all quarters from the first to the last.

    *due*: the quarters, in hours since the midnight of June 30.
    """
    schedule = rows.schedule("s", definition=definition, seen_until=NOW)
    rows.occurrence(schedule, last, "missed", first_for=first, count=count)
    if closed:
        close_all(database, NOW)
    told = strips(database, [schedule], NOW)[schedule]
    midnight = number_of(datetime(2026, 6, 30, tzinfo=UTC)) - first_quarter(NOW)
    assert [(place - midnight) / 4 for place, letter in enumerate(told) if letter != NOTHING] == due
    assert set(told) == {NOTHING, "m"}


def test_the_worst_is_shown() -> None:
    letters = list(WORDS)
    assert [worse(one, other) for one, other in pairwise(letters)] == letters[1:]
    rows = [
        ResultSpan(1, 10, 12, "missed", None),
        ResultSpan(1, 12, 12, "enqueued", "dead"),
        ResultSpan(1, 3, 9, "skipped", None),
    ]
    assert painted(rows, 8, 6) == {1: ".km.d."}
    assert gaps(10, 8, {12}) == [(8, 12), (16, 20)]
    assert number_of(NOW) * 900 == int(NOW.timestamp()) // 900 * 900
