"""``cronjobs books``: after any history the books balance, but not if somebody has changed the ledger."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, delete, insert, select, text, update
from support.cases import judge
from support.explained import DAY, HOUR, MINUTE, MINUTELY, World, fail, utc
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world
from support.postgres import OWNER
from support.rounds import rounds

from cronjobs.contrib.books.evidence import books
from cronjobs.contrib.books.judging import SETTLED, Book
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.store import schedules as store

of = tables.occurrences
# Who may change the ledger by hand. Its statements are the same everywhere; test_plans has them on both.
pytestmark = [pytest.mark.connects_as(OWNER), pytest.mark.either]


def kept(world: World, since: timedelta = 400 * DAY) -> list[Book]:
    now = world.clock.now()
    with world.database.read() as connection:
        return books(connection, world.settings(), now - since, now + HOUR)


def told(found: list[Book]) -> list[str]:
    return [f"{each.schedule} {each.first} +{each.count}: {each.text}" for book in found for each in book.differences]


def counts(found: list[Book]) -> Counter[str]:
    total: Counter[str] = Counter()
    for book in found:
        for day in book.days:
            total.update(day.counts)
            total["due"] += day.due
    return +total


def must_add_up(found: list[Book]) -> None:
    """For each day, the counts must add up to what was due."""
    for book in found:
        for day in book.days:
            accounted = sum(day.counts[word] for word in SETTLED) + day.open + day.counts["pruned"]
            assert day.due == accounted + day.counts["beyond"], day


# --- generated histories ----------------------------------------------------------------------------------------------

TIMINGS = (
    'cron: "* * * * *"',
    'cron: "*/7 * * * *"',
    'cron: "15 2 * * *", timezone: America/New_York',
    'cron: "30 2 * * *", timezone: Europe/Berlin',
    'cron: "*/20 1-3 * * *", timezone: Europe/Berlin',
    'cron: "5,35 */2 * * 1-5", timezone: Australia/Lord_Howe',
    "every: 11m",
    "every: 10m, spread: 3m",
    "every: 1h, timezone: Asia/Kolkata",
)
POLICIES = (
    "",
    ", catch_up: none",
    ", catch_up: all",
    ", catch_up: all, catch_up_limit: 3",
    ", catch_up_within: 20m",
    ", overlap: wait",
    ", overlap: allow",
    ", priority: 7",
)


ACTS = ["ticks", "ticks", "outage", "redefine", "rename", "remove", "broken"]
ACTS += ["pause", "resume", "fails", "step_back", "without_time", "backfill", "trigger"]


class Life:
    """The life of a project: random acts in random order."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.names = ["alpha", "beta", "gamma"]
        self.file = {name: self.definition() for name in self.names}
        self.acts: list[str] = []
        self.fresh, self.began = 0, world.clock.now()
        world.file(**self.file)
        world.tick()

    def definition(self) -> str:
        return self.random.choice(TIMINGS) + self.random.choice(POLICIES)

    def live(self, days: int) -> None:
        until = self.world.clock.now() + days * DAY
        while self.world.clock.now() < until:
            act = self.random.choice(ACTS)
            self.acts.append(act)
            getattr(self, act)()
        self.world.tick()

    def pass_by(self, most: timedelta) -> None:
        self.world.clock.advance(self.random.uniform(0.02, 1) * most)

    def ticks(self) -> None:
        for _ in range(self.random.randrange(1, 5)):
            self.pass_by(20 * MINUTE)
            self.world.tick(host=self.random.choice("ab"))

    def outage(self) -> None:
        self.pass_by(self.random.choice((3 * HOUR, 30 * HOUR)))
        self.world.tick()

    def redefine(self) -> None:
        if self.file:
            self.file[self.random.choice(list(self.file))] = self.definition()
        self.apply()

    def apply(self) -> None:
        self.world.file(**self.file)
        self.pass_by(9 * MINUTE)
        self.world.cronjobs("sync", "--allow-removals")
        self.world.tick()

    def rename(self) -> None:
        if self.file:
            old = self.random.choice(list(self.file))
            self.fresh += 1
            fields = self.file.pop(old).partition(", renamed_from")[0]
            self.file[f"n{self.fresh}"] = f"{fields}, renamed_from: {old}"
            self.apply()
            self.file[f"n{self.fresh}"] = fields

    def remove(self) -> None:
        if len(self.file) > 1 and self.random.random() < 0.5:
            del self.file[self.random.choice(list(self.file))]
        else:
            self.file[self.random.choice(self.names)] = self.definition()
        self.apply()

    def pause(self) -> None:
        whom = ["--all"] if self.random.random() < 0.3 or not self.file else [self.random.choice(list(self.file))]
        how = self.random.choice(([], ["--skip"], ["--for", "2h"], ["--for", "7h", "--skip"]))
        self.world.cronjobs("pause", *whom, *how)
        self.pass_by(2 * HOUR)
        self.world.tick()

    def resume(self) -> None:
        for whom in ("--all", *self.file):
            self.world.cronjobs("resume", whom)
        self.world.tick()

    def fails(self) -> None:
        self.world.plan.append(fail())

    def step_back(self) -> None:
        self.world.clock.advance(-self.random.uniform(0, 3) * MINUTE)
        self.world.tick()

    def without_time(self) -> None:
        self.pass_by(HOUR)
        host = self.world.hosts["alpha"]
        host.settings = self.world.settings()
        host.tick(only="t.nothing")

    def broken(self) -> None:
        if self.file:
            name = self.random.choice(list(self.file))
            good, self.file[name] = self.file[name], 'cron: "77 * * * *"'
            self.apply()
            self.file[name] = good

    def backfill(self) -> None:
        if self.file:
            now = self.world.clock.now()
            span = [(now - self.random.uniform(0, 1) * DAY).isoformat() for _ in range(2)]
            name = self.random.choice(list(self.file))
            self.world.cronjobs("backfill", name, "--from", min(span), "--to", max(span))

    def trigger(self) -> None:
        if self.file:
            self.world.cronjobs("trigger", self.random.choice(list(self.file)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_after_any_history_the_books_balance_and_a_changed_ledger_does_not(world: World, seed: int) -> None:
    # Europe's clocks change on the 29th of March 2026, New York's on the 8th, Lord Howe's on the 5th of April.
    world.go(utc(("2026-03-06T20:00:00", "2026-03-27T20:00:00", "2026-04-03T20:00:00")[seed % 3]))
    life = Life(world, seed)
    life.live(3)
    found = kept(world)
    assert told(found) == [], (life.acts, why(world, found))
    must_add_up(found)
    with world.database.read() as connection:
        # A backfill may run what was due by nothing before the first tick, which the books cannot know. And when a
        # clock was set back at a change of the definition, they leave the next minutes alone.
        rows = list(connection.execute(select(of).where(of.c.last_for > life.began)).all())
        changed = connection.execute(select(tables.audit.c.at).where(tables.audit.c.action.in_(["define", "retire"])))
        for at in set(changed.scalars()):
            rows = [row for row in rows if row.last_for <= at or row.first_for > at + 6 * MINUTE]
    assert len(rows) > 20
    for row in life.random.sample(rows, rounds(5, 12)):
        with undone(world.database, row):
            assert told(kept(world)), ("deleted", row)
    for row in life.random.sample(rows, rounds(5, 12)):
        with doubled(world.database, row):
            assert told(kept(world)), ("doubled", row)
    found = kept(world)
    assert told(found) == []
    ran = counts(found)["ran"]
    for row in life.random.sample([row for row in rows if row.outcome == "enqueued"], rounds(5, 12)):
        with world.database.write() as connection:
            connection.execute(delete(tables.jobs).where(tables.jobs.c.id == row.job_id))
        found = kept(world)
        if not told(found):
            must_add_up(found)
        assert counts(found)["ran"] <= ran, ("its job deleted", row)
        assert told(found) or any("are gone" in note for book in found for note in book.notes), ("its job deleted", row)


def why(world: World, found: list[Book]) -> list[Any]:
    at = [each.first for book in found for each in book.differences]
    with world.database.read() as connection:
        rows = connection.execute(select(of).where(of.c.last_for.in_(at))).all()
        acts = connection.execute(select(tables.audit).order_by(tables.audit.c.id)).all()
    print(
        *told(found),
        *rows,
        *[(a.id, str(a.at), a.action, a.subject, a.detail) for a in acts if a.action != "sync"],
        sep="\n",
    )
    return []


class undone:  # noqa: N801 a context manager
    """Delete a row of the ledger, and put it back at the end."""

    def __init__(self, database: Database, row: Any) -> None:
        self.database, self.row = database, row

    def __enter__(self) -> None:
        with self.database.write() as connection:
            self.change(connection)

    def __exit__(self, *_: object) -> None:
        with self.database.write() as connection:
            connection.execute(delete(of).where(*self.key, of.c.count == self.row.count * self.times))
            connection.execute(insert(of).values(dict(self.row._mapping)))

    times = 0

    @property
    def key(self) -> list[Any]:
        return [of.c.schedule_id == self.row.schedule_id, of.c.last_for == self.row.last_for]

    def change(self, connection: Connection) -> None:
        connection.execute(delete(of).where(*self.key))


class doubled(undone):  # noqa: N801
    """Let a row of the ledger count twice, and restore it at the end."""

    times = 2

    def change(self, connection: Connection) -> None:
        connection.execute(update(of).where(*self.key).values(count=of.c.count * 2))


# --- one thing at a time ----------------------------------------------------------------------------------------------


def test_all_that_was_due_ran(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.ticks(utc("2026-03-02T08:01:10"), utc("2026-03-02T08:10:10"))
    answer = world.cronjobs("books", "--json")
    assert answer.code == 0
    [day] = answer.json["days"]
    figures = {word: number for word, number in answer.json["total"].items() if number}
    assert (day["schedule"], day["day"], day["timezone"]) == ("s", "2026-03-02", "UTC")
    assert figures == {"due": 10, "ran": 10}
    assert answer.json["balanced"] is True


def test_the_table_has_quiet_days_in_one_line_and_a_total(world: World) -> None:
    world.file(a='cron: "0 12 * * *"', b='cron: "0 13 * * *", timezone: Asia/Kolkata')
    world.tick()
    for day in range(2, 7):
        world.tick(utc(f"2026-03-0{day}T12:00:10"))
        if day != 4:
            world.tick(utc(f"2026-03-0{day + 1}T07:30:10"))
        else:
            world.tick(utc("2026-03-05T07:50:10"))
    answer = world.cronjobs("books", "--from", "2026-03-01")
    assert answer.code == 0, answer
    lines = answer.out.splitlines()
    assert [" ".join(line.split()) for line in lines[1:4]] == [
        "schedule day due ran failed missed wrong",
        "a 2026-03-02 … 03-06 (5) 5 5 · · ·",
        "b 2026-03-03 … 03-07 (5) 5 5 · · ·",
    ]
    assert lines[4].split()[:3] == ["total", "10", "10"]
    assert lines[-1] == "the books balance"


def test_a_schedule_is_found_by_a_name_that_it_once_had(world: World) -> None:
    world.file(a='cron: "0 12 * * *"')
    world.tick()
    world.tick(utc("2026-03-02T12:00:10"))
    world.file(b='cron: "0 12 * * *", renamed_from: a')
    world.tick(utc("2026-03-03T12:00:10"))
    by_name = {name: world.cronjobs("books", "--from", "2026-03-01", "--schedule", name) for name in "ab"}
    assert by_name["a"].code == 0
    assert by_name["a"].out == by_name["b"].out


def test_a_row_that_is_gone_is_named_with_the_command_that_explains_it(world: World) -> None:
    world.file(**{"the-s": 'cron: "0 12 * * *", timezone: Europe/Berlin'})
    world.tick()
    world.tick(utc("2026-03-02T11:00:10"))
    world.tick(utc("2026-03-03T11:00:10"))
    with world.database.write() as connection:
        connection.execute(delete(of).where(of.c.last_for == utc("2026-03-02T11:00")))
    answer = world.cronjobs("books")
    assert answer.code == 1
    assert "the-s, 2026-03-02 11:00:00: the ledger has no row for the occurrence, but job" in answer.out
    assert "cronjobs explain the-s --at 2026-03-02T12:00:00+01:00" in answer.out
    whole = world.cronjobs("books", "--json").json
    assert [each["differences"] for each in whole["days"]] == [1, 0]
    [difference] = whole["differences"]
    assert re.fullmatch(r"the ledger has no row for the occurrence, but job \d+ exists", difference["text"])


def test_a_job_that_is_gone_too_early_is_a_difference_and_a_pruned_one_ran(world: World) -> None:
    world.file(more="retention: {succeeded: 2d}\n", s='cron: "0 12 * * *"')
    world.tick()
    for day in range(2, 9):
        world.tick(utc(f"2026-03-0{day}T12:00:10"))
    gone = {"due": 7, "ran": 7}
    assert counts(kept(world)) == gone
    with world.database.write() as connection:
        ids = list(connection.execute(select(of.c.job_id).order_by(of.c.last_for)).scalars())
        connection.execute(delete(tables.jobs).where(tables.jobs.c.id.in_(ids[:2])))
    assert (counts(kept(world)), told(kept(world))) == (gone, [])
    with world.database.write() as connection:
        connection.execute(delete(tables.jobs).where(tables.jobs.c.id == ids[5]))
    [difference] = told(kept(world))
    assert f"job {ids[5]} ran the occurrence and is missing, although retention cannot" in difference


def test_a_job_that_retention_removed_dead_has_failed(world: World) -> None:
    world.file(more="retention: {succeeded: 1d, dead: 2d}\n", s='cron: "0 12 * * *", max_attempts: 1')
    world.tick()
    world.plan = [fail()]
    for day in range(2, 7):
        world.tick(utc(f"2026-03-0{day}T12:00:10"))
    assert world.cronjobs("jobs", "show", "1").code == 1, "it is pruned"
    assert counts(kept(world)) == {"due": 5, "ran": 2, "failed": 1, "pruned": 2}


def test_a_job_of_another_occurrence_is_a_difference(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.ticks(utc("2026-03-02T08:01:10"), utc("2026-03-02T08:03:10"))
    with world.database.write() as connection:
        _, one, other = connection.execute(select(of.c.job_id).order_by(of.c.last_for)).scalars()
        connection.execute(update(of).where(of.c.job_id == one).values(job_id=other))
    assert f"job {other} for the occurrence, but that job belongs to another occurrence" in " ".join(told(kept(world)))
    assert f"job {one} exists, but the ledger does not name it" in " ".join(told(kept(world)))


def minutes(world: World) -> int:
    """Run a schedule for four minutes; return its id."""
    world.file(**MINUTELY)
    world.tick()
    world.ticks(utc("2026-03-02T08:01:10"), utc("2026-03-02T08:04:10"))
    with world.database.read() as connection:
        return int(connection.execute(select(tables.schedules.c.id)).scalar_one())


def second(minute: int, seconds: float = 0) -> datetime:
    return utc(f"2026-03-02T08:0{minute}:00") + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"first_for": second(1), "last_for": second(3, 30), "count": 3}, "more than one ledger row covers the same"),
        (
            {"first_for": second(2, 30), "last_for": second(2, 30)},
            "under the definition in force then, nothing was due",
        ),
        ({"first_for": second(2, 30), "last_for": second(2, 30), "outcome": "enqueued"}, "but does not name it"),
        ({"first_for": second(2, 30), "last_for": second(2, 30), "reason": "backfill by eve"}, "nothing was due"),
        ({"first_for": second(3, 1), "last_for": second(3, 59), "count": 9}, "nothing was due"),
    ],
)
def test_a_row_too_many_is_a_difference(world: World, row: dict[str, Any], said: str) -> None:
    values = {"schedule_id": minutes(world), "outcome": "missed", "decided_at": second(4), "count": 1} | row
    assert told(kept(world)) == []
    with world.database.write() as connection:
        connection.execute(insert(of).values(values))
    assert said in " ".join(told(kept(world)))


@pytest.mark.parametrize("change", [{"count": 2}, {"first_for": second(0, 30)}, {"job_id": None}, {"job_id": 999}])
def test_a_row_that_was_changed_is_a_difference(world: World, change: dict[str, Any]) -> None:
    minutes(world)
    with world.database.write() as connection:
        connection.execute(update(of).where(of.c.last_for == second(2)).values(change))
    assert told(kept(world))


def test_what_failed_and_what_was_cancelled_are_told_apart(world: World) -> None:
    world.file("defaults: {retry: {max_attempts: 1}}\n", **MINUTELY)
    world.tick()
    world.plan.append(fail())
    world.tick(utc("2026-03-02T08:01:10"))
    world.go(utc("2026-03-02T08:02:10"))
    host = world.hosts["alpha"]
    host.tick(only="t.nothing")
    [waiting] = world.cronjobs("jobs", "list", "--status", "queued", "--json").json
    found = kept(world)
    assert counts(found) == {"due": 2, "failed": 1, "waiting": 1}
    assert found[0].notes == ["waiting jobs: 1, running jobs: 0; cronjobs jobs list --schedule s"]
    assert world.cronjobs("jobs", "cancel", str(waiting["id"])).code == 0
    figures = world.cronjobs("books", "--json").json["total"]
    assert (figures["failed"], figures["cancelled"]) == (2, 1)


def test_a_backfill_of_the_past_is_extra_as_long_as_the_trail_knows_it(world: World) -> None:
    world.file(s='cron: "0 * * * *"')
    world.tick()
    world.tick(utc("2026-03-02T10:00:10"))
    assert world.cronjobs("backfill", "s", "--from", "2026-03-02T05:00Z", "--to", "2026-03-02T07:00Z").code == 0
    world.tick(utc("2026-03-02T10:01:10"))
    found = kept(world)
    assert (told(found), counts(found)["extra"], counts(found)["due"]) == ([], 3, 2)
    with world.database.write() as connection:
        connection.execute(delete(tables.audit).where(tables.audit.c.action == "backfill"))
    assert len(told(kept(world))) == 3


def a_week_of_which_three_days_are_kept(world: World) -> None:
    world.file(more="retention: {occurrences: 3d, succeeded: 3d}\n", s='cron: "0 12 * * *"')
    world.tick()
    for day in range(2, 9):
        world.tick(utc(f"2026-03-0{day}T12:00:10"))
    assert world.cronjobs("prune").code == 0


def test_what_is_older_than_the_retention_is_not_judged(world: World) -> None:
    a_week_of_which_three_days_are_kept(world)
    found = kept(world)
    assert (told(found), counts(found)) == ([], {"due": 7, "ran": 3, "beyond": 4})
    answer = world.cronjobs("books", "--from", "10d")
    assert answer.code == 0
    assert "s: occurrences without a ledger row: 4; the ledger only goes back to 2026-03-0" in answer.out


def test_a_retention_that_was_shorter_until_now_is_no_difference(world: World) -> None:
    a_week_of_which_three_days_are_kept(world)
    world.file(s='cron: "0 12 * * *"')
    assert told(kept(world)) == []


def test_a_dead_job_that_someone_deleted_has_not_run(world: World) -> None:
    world.file(bad='cron: "5 * * * *", max_attempts: 1', nightly='cron: "5 * * * *"')
    world.tick(utc("2026-03-03T01:58:10"))
    world.plan = [fail()]
    world.tick(utc("2026-03-03T02:05:10"))
    world.plan = [fail()]
    world.tick(utc("2026-03-03T03:05:10"))
    with world.database.write() as connection:
        [first] = connection.execute(select(tables.jobs.c.id).where(tables.jobs.c.status == "dead").limit(1)).scalars()
        connection.execute(delete(tables.jobs).where(tables.jobs.c.id == first))
    [bad, _] = found = kept(world)
    assert counts(found) == {"due": 4, "ran": 2, "failed": 1, "pruned": 1}
    [note] = bad.notes
    assert note.startswith("occurrences whose jobs are missing: 1; nobody can tell whether the jobs succeeded or ")
    assert "The current retention would have kept the jobs" in note


def test_what_is_open_where_no_tick_fires_schedules_says_so(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.clock.advance(2 * HOUR)
    assert "(no tick has settled them yet)" in world.cronjobs("books").out
    world.tick()
    with world.database.write() as connection:
        connection.execute(update(tables.ticks).values(schedules_on=0))
        connection.execute(delete(of))
        connection.execute(update(tables.schedules).values(seen_until=world.clock.now() - HOUR))
    assert "(ticks fire no schedules (CRONJOBS_SCHEDULES=off))" in world.cronjobs("books").out


def test_what_is_open_is_explained(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.tick(utc("2026-03-02T08:01:10"))
    world.go(utc("2026-03-02T08:05:00"))
    assert counts(kept(world)) == {"due": 5, "ran": 1, "unsettled": 4}
    assert "due but not settled: 4 (no tick has settled them yet)" in world.cronjobs("books").out
    world.cronjobs("pause", "s", "--why", "deploy")
    assert "due but not settled: 4 (paused by" in world.cronjobs("books").out
    world.file(s='cron: "30 * * * *"')
    world.tick()
    found = kept(world)
    assert (told(found), counts(found)["unsettled"]) == ([], 4)
    world.cronjobs("resume", "s")
    world.tick(utc("2026-03-02T08:06:00"))
    found = kept(world)
    assert (told(found), counts(found)) == ([], {"due": 5, "ran": 2, "coalesced": 3})


def test_a_definition_that_cannot_be_read_is_not_judged(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.tick(utc("2026-03-02T08:01:10"))
    world.go(utc("2026-03-02T08:02:00"))
    now = world.clock.now()
    with world.database.write() as connection:
        act = {"at": now, "action": "define", "subject": "s", "actor": "file", "detail": {"cron": "L * * * *"}}
        connection.execute(insert(tables.audit).values(act))
        connection.execute(update(tables.schedules).values(definition=["no", "object"]))
    world.go(utc("2026-03-02T08:10:00"))
    found = kept(world)
    assert (told(found), counts(found)["ran"]) == ([], 1)
    assert "not judged from 2026-03-02 08:02:00 to 2026-03-02 08:10:00 UTC" in " ".join(found[0].notes)


def test_a_definition_changed_by_hand_alone_waits(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.tick(utc("2026-03-02T08:01:10"))
    with world.database.write() as connection:
        connection.execute(update(tables.schedules).values(definition=[1]))
    world.tick(utc("2026-03-02T08:05:00"))
    assert "the schedule's definition in the database cannot be read" in world.cronjobs("books").out


@pytest.mark.parametrize("zone", ["Nowhere/Else", "../../etc/passwd", "", "\x00", "Europe"])
def test_a_zone_that_there_is_not_stops_nobody(world: World, zone: str) -> None:
    world.file(s="every: 10m")
    world.tick()
    world.tick(utc("2026-03-02T08:10:10"))
    definition = {"job": "t.work", "every_s": 600, "timezone": zone.replace("\x00", "x" * 300)}
    with world.database.write() as connection:
        connection.execute(update(tables.audit).where(tables.audit.c.action == "define").values(detail=definition))
    [book] = kept(world)
    assert (book.days[0].timezone, counts([book]), told([book])) == ("UTC", {"due": 1, "ran": 1}, [])


def test_a_ledger_that_begins_at_the_beginning_of_time_is_a_difference(world: World) -> None:
    minutes(world)
    far = "'-infinity'" if not world.database.is_sqlite else "160000000000000"
    with world.database.write() as connection:
        connection.execute(text(f"UPDATE cronjobs_occurrences SET first_for = {far} WHERE reason IS NULL"))
    assert world.cronjobs("books").code == 1


def test_hostile_names_stay_on_their_line(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.tick(utc("2026-03-02T08:01:10"))
    name = "a\x1b[31m\n'; rm -rf /"
    with world.database.write() as connection:
        connection.execute(update(tables.schedules).values(name=name))
        connection.execute(update(tables.audit).where(tables.audit.c.subject == "s").values(subject=name))
        connection.execute(delete(of))
    answer = world.cronjobs("books")
    assert answer.code == 1
    assert "\x1b" not in answer.out
    assert "rm -rf /'" in answer.out


def test_a_wrong_clock_when_a_definition_changed_leaves_a_doubt_not_a_difference(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.tick(utc("2026-03-02T08:01:10"))
    world.file(s='cron: "*/2 * * * *"')
    world.tick(utc("2026-03-04T08:00:00"))
    world.file(s='cron: "*/3 * * * *"')
    world.tick(utc("2026-03-02T08:10:00"))
    world.tick(utc("2026-03-02T08:12:00"))
    found = kept(world)
    assert told(found) == []
    assert "a clock was wrong when the schedule's definition changed" in " ".join(found[0].notes)


def test_a_clock_that_was_ahead_at_a_change_is_seen_though_cron_stood_still_after_it(world: World) -> None:
    world.file(s="every: 10m, catch_up: all")
    world.tick()
    for passed in (-2 * HOUR, HOUR / 2, 3 * HOUR):
        world.clock.advance(passed)
        world.tick()
    assert told(kept(world)) == []


def test_runs_that_a_clock_ahead_made_too_early_are_noted_with_their_command(world: World) -> None:
    world.file(nightly='cron: "15 12 * * *"', sync='cron: "0,20 12 * * *"')
    world.tick(utc("2026-03-02T10:59:00"))
    for shown in ("12:00", "12:15", "12:20"):  # an hour ahead
        world.tick(utc(f"2026-03-02T{shown}:00"))
    for right in ("11:25", "12:30"):
        world.tick(utc(f"2026-03-02T{right}:00"))
    nightly, sync = kept(world)
    said = "of the occurrences ran early, because a clock was ahead: cronjobs explain"
    at = "2026-03-02T12:15:00+00:00"
    assert nightly.notes == [f"1 {said} nightly --at {at}"]
    span = "--from 2026-03-02T12:00:00+00:00 --to 2026-03-02T12:20:00+00:00"
    assert sync.notes == [f"2 {said} sync {span}"]
    assert told([nightly, sync]) == []
    answer = world.cronjobs("books")
    assert "2 of the occurrences ran early, because a clock was ahead" in answer.out
    assert answer.code == 0
    with world.database.write() as connection:  # the same occurrence had a second run, which was in time
        connection.execute(update(tables.jobs).where(tables.jobs.c.schedule == "nightly").values(attempts=2))
    nightly, sync = kept(world)
    assert (nightly.notes, len(sync.notes)) == ([], 1)


@pytest.mark.slow
def test_what_a_clock_that_was_ahead_at_a_change_makes_uncertain_is_unjudged(world: World) -> None:
    """It was set right after the change, by minutes or by days, and then its time came again."""

    def case(chance: random.Random) -> None:
        world.clock.advance(30 * DAY)  # makes the rows of earlier cases too old to matter
        world.file(**MINUTELY)
        world.tick()
        began = world.clock.now()
        for _ in range(chance.randrange(3)):
            world.clock.advance(chance.randrange(1, 40) * MINUTE)
            world.tick()
        ahead = chance.choice([3 * MINUTE, 12 * MINUTE, 2 * HOUR, 5 * HOUR, 2 * DAY])
        world.clock.advance(ahead)
        timing = chance.choice(TIMINGS) + chance.choice(POLICIES)
        world.file(**{chance.choice(["s", "new"]): timing})
        for _ in range(chance.randrange(1, 3)):
            world.tick()
        world.clock.advance(-ahead - chance.uniform(0, 1) * MINUTE)
        world.tick()
        last = world.clock.now() + ahead + HOUR
        if chance.random() < 0.3:  # cron stands still until the time of the change has come again, or nearly
            world.clock.advance(ahead * chance.uniform(0.5, 1.1))
            world.tick()
        while world.clock.now() < last:
            world.clock.advance(chance.uniform(0.1, 1) * min(HOUR, ahead / 3))
            world.tick()
            assert told(kept(world, world.clock.now() - began + DAY)) == []  # before its time came again, and after

    judge(case, 6)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("ahead", [8 * MINUTE, 2 * HOUR])
def test_what_ran_after_a_first_deploy_with_a_clock_that_was_ahead_is_unjudged_from_the_start(
    world: World, ahead: timedelta, by_hand: bool
) -> None:
    """What is said before the wrong instant has come, also where no tick shows that the clock was ahead."""
    world.file(h="every: 1m")
    world.clock.advance(ahead)
    world.cronjobs("sync")
    if not by_hand:
        world.tick()
    world.clock.advance(-ahead)
    for _ in range(5):
        world.clock.advance(MINUTE)
        world.tick()
        assert told(kept(world)) == []
    assert counts(kept(world))["unjudged"] >= 4


def test_only_one_schedule_and_bad_ranges(world: World) -> None:
    world.file(a='cron: "0 12 * * *"', b='cron: "0 12 * * *"')
    world.tick()
    world.tick(utc("2026-03-02T12:00:10"))
    assert [day["schedule"] for day in world.cronjobs("books", "--schedule", "b", "--json").json["days"]] == ["b"]
    assert world.cronjobs("books", "--schedule", "nobody").code == 1
    assert world.cronjobs("books", "--from", "yesterday").code == 2
    assert world.cronjobs("books", "--from", "1d", "--to", "2d").code == 2
    assert world.cronjobs("books", "--from", "2020-01-01", "--to", "2020-02-01").out.endswith("nothing was due\n")


def test_a_file_with_broken_schedules_stops_nobody_from_looking(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.tick(utc("2026-03-02T08:01:10"))
    file = world.folder / "cronjobs.yaml"
    file.write_text(file.read_text().replace("* * * * *", "L"))
    assert world.cronjobs("books").code == 0


@pytest.mark.slow
def test_a_hundred_schedules_and_eighty_days_take_seconds(world: World) -> None:
    world.file(**{f"s{number}": 'cron: "0 * * * *", timezone: Europe/Berlin' for number in range(100)})
    world.tick()
    begin, hours = datetime(2026, 3, 2, 9, tzinfo=UTC), 80 * 24
    with world.database.read() as connection:
        stored = store.all_schedules(connection)
    rows = [
        {"schedule_id": each.id, "first_for": at, "last_for": at, "outcome": "missed", "decided_at": at}
        for each in stored
        for at in (begin + hour * HOUR for hour in range(hours))
    ]
    with world.database.write() as connection:
        connection.execute(insert(of), rows)
        connection.execute(update(tables.schedules).values(seen_until=begin + hours * HOUR - MINUTE))
    world.go(begin + hours * HOUR - MINUTE)
    began = time.process_time()  # CPU time, because other processes use this machine, too
    found = kept(world)
    took = time.process_time() - began
    assert counts(found) == {"due": len(rows), "missed": len(rows)}
    assert took < 10, took
