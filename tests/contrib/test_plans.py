"""The number of rows that a tick or a command reads does not grow with the tables. Measured in work, not in seconds.

On PostgreSQL each is measured without statistics (as before the first autovacuum), with fresh statistics, and with
statistics of only some tables (as during autovacuum).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text
from support.counted import Counted, counted
from support.grown import Grown
from support.hosts import Host
from support.postgres import OWNER
from support.rounds import rounds

from cronjobs.contrib.books.evidence import books
from cronjobs.contrib.metrics.families import gather
from cronjobs.contrib.web.charts import first_hour
from cronjobs.contrib.web.schedule_strip import QUARTERS, first_quarter
from cronjobs.desk.cli.known_types import known_types
from cronjobs.desk.insight.evidence import ScheduleEvidence
from cronjobs.desk.insight.explain_job import explain_job
from cronjobs.desk.insight.explain_occurrence import explain_occurrence
from cronjobs.desk.insight.explain_type import type_life
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.job_evidence import job_life
from cronjobs.desk.insight.schedule_facts import schedule_facts
from cronjobs.desk.insight.worst_first import run_by_cron, schedules_shown, worst_first
from cronjobs.desk.store import causes, exec_runs, explaining, listing, tailing, trends
from cronjobs.desk.store.listing import Filter
from cronjobs.desk.store.schedule_runs import active_names, newest_runs
from cronjobs.desk.store.status_facts import unended_ticks
from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import Retention
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import SCHEMA_REVISION
from cronjobs.engine.probe.idle_conditions import LOOK, MANY_QUEUES, VERDICT
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.schedules.materialise import materialise
from cronjobs.engine.store import claims, expiry, not_started, quarters
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.engine.store.counts import by_hour, fold
from cronjobs.engine.store.misfits import give_up_outlived, outlived, waiting_misfits
from cronjobs.engine.store.quarters import close_hour
from cronjobs.engine.store.sql import database_now, run
from cronjobs.engine.tick.pruner import Before, Pruner
from cronjobs.model import Status

pytestmark = pytest.mark.connects_as(OWNER)  # who may fill the tables, and ANALYZE

HOUR = timedelta(hours=1)
FAR = datetime(2100, 1, 1, tzinfo=UTC)
YAML = """\
database: "@database@"
job_types:
  kind0: {command: ["true"]}
  kind1: {command: ["true"]}
schedules:
  s: {cron: "* * * * *", job: kind1}
"""
TABLES = [
    f"cronjobs_{name}" for name in ("jobs", "job_runs", "schedules", "occurrences", "ticks", "counts", "new_counts")
]
BIG = "cronjobs_jobs|cronjobs_job_runs|cronjobs_occurrences|cronjobs_ticks"
# At first there are more rows than any list or sample takes, so further rows must cost nothing.
FINISHED, FUTURE, SCHEDULES = 1500, 800, 20
MORE = {"finished": 6000, "future": 3000, "schedules": 400}
# Costs that do grow: the most steps of SQLite's virtual machine, and pages of PostgreSQL, for each further row.
GROWS = {
    ("probe", "schedules"): (20, 0.2),  # their next_at has no index: it would be written each minute
    ("look again", "schedules"): (40, 0.4),  # likewise, twice
    ("materialise", "schedules"): (70, 0.4),
    ("status", "schedules"): (130, 7),  # the newest row of each one's ledger, and its job
    ("status", "future"): (20, 0.6),  # it counts what waits
    ("first page", "schedules"): (120, 10),  # more are shown; the newest row of each one's ledger, and its job
    ("search", "schedules"): (15, 0.3),  # it reads their names
    ("metrics", "schedules"): (220, 11),  # each has ten occurrences here, and it reads an index of the ledger
    ("metrics", "future"): (40, 1.2),  # it counts what waits
    ("what status adds", "schedules"): (40, 0.3),  # the next ones are looked for among all
    ("around an instant", "finished"): (2, 0.1),  # up to 5,000 attempts that ended since
    ("around an instant", "schedules"): (250, 5),  # up to 5,000 rows of the ledger; each schedule has ten here
    ("around an instant", "future"): (10, 0.6),  # it counts what has waited since
    ("books", "schedules"): (130, 10),  # it reads each one's ledger
    ("jobs list queued", "future"): (25, 1.2),
    ("jobs list since", "future"): (45, 2.4),
    ("explain a type", "schedules"): (25, 1),
    ("explain a type", "future"): (70, 2.4),  # it counts what waits
    ("explain a type that no tick knows", "schedules"): (25, 1),
    ("explain a type that no tick knows", "future"): (70, 2.4),
    ("claim under limits", "a full limit"): (36, 0.05),
    ("look again", "a paused queue"): (0, 0.01),  # whether each of the newest 20 is paused
    ("due jobs that wait", "an unknown type"): (20, 0.6),  # up to 5,000 of each lane are counted
    ("due jobs that wait", "a paused queue"): (20, 0.6),
    ("due jobs that wait", "a full limit"): (20, 0.6),
}
DEAD_PAGES = 0.05  # index pages for each job that was drained and not yet vacuumed


class World:
    """A database with ticks of one host, and the operations whose cost must not grow with the database."""

    def __init__(self, database: Database, url: str, folder: Path) -> None:
        self.database = database
        file = folder / "cronjobs.yaml"
        file.write_text(YAML.replace("@database@", url))
        self.host = Host(database, folder)
        self.host.settings = self.settings = load(file, environ={})
        self.host.tick()
        self.connection = self._connect(url)
        self.grown = Grown(self.connection, postgresql=not database.is_sqlite)
        if not database.is_sqlite:
            for table in TABLES:  # its rounds would make a plan, and so a test's result, a matter of luck
                self.grown.run(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        self.grown.due(1, job_type="'kind1'", run_at=self.grown.at("-60"))

    def _connect(self, url: str) -> Any:
        import sqlite3

        import psycopg

        if self.database.is_sqlite:
            return sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=10)
        return psycopg.connect(url, autocommit=True)

    def reading(self, look: Callable[[Connection], object]) -> Counted:
        with counted(self.database) as found, self.database.read() as connection:
            look(connection)
        return found

    def writing(self, write: Callable[[Connection], object]) -> Counted:
        """Count the work of *write*, and roll it back."""
        with counted(self.database) as found, suppress(Undo), self.database.write() as connection:
            write(connection)
            raise Undo
        return found

    def work(self, only: str = "") -> dict[str, Counted]:
        return {name: call(self) for name, call in OPERATIONS.items() if only in name}

    def grow(self, what: str) -> int:
        """Add rows; return how many."""
        rows = MORE[what]
        match what:
            case "finished":
                self.grown.finished(rows)
                self.grown.ticks(rows // 10)
            case "future":
                self.grown.future(rows)
            case "schedules":
                self.grown.schedules(rows, occurrences=10)
        return rows

    def statistics(self, one_by_one: Sequence[str] = ()) -> Iterator[str]:
        """Each state of the planner's statistics; *one_by_one*: of these tables, in this order."""
        yield "as they are"
        for table in one_by_one:
            self.grown.run(f"ANALYZE {table}")
            yield f"of {table} last"
        if not (self.database.is_sqlite or one_by_one):
            self.grown.analyze()
            yield "fresh"


class Undo(Exception):
    pass


# --- what is to cost the same -----------------------------------------------------------------------------------------


def probe(world: World, question: str = f"{VERDICT} SELECT idle, holders FROM verdict") -> Counted:
    project = {"project": "", "environment": "", "schema_revision": SCHEMA_REVISION, "oldest_code": "0001"}
    here = {"host": "alpha", "place": "alpha:b:1:", "place_length": 10, "fingerprint": "f", "defines_nothing": 0}
    here["alerts"] = 1
    return world.reading(
        lambda connection: run(
            connection,
            question,
            **project,
            **here,
            beyond_s=400,
            most_branches=MANY_QUEUES,
            host_s=world.database.clock.now().timestamp(),
        ).one()
    )


def claim(world: World, limits: tuple[Limit, ...] = ()) -> Counted:
    def take(connection: Connection) -> None:
        types = ["kind0", "kind1"]
        admission = ClaimFilter(known=types, fitting=types, remaining_s=50, runnable=types, limits=limits)
        found = claims.claim(connection, limit=1, locked_by="r", lease=HOUR, admission=admission)
        assert [job.job_type for job in found.jobs] == ["kind1"]

    return world.writing(take)


def recover(world: World) -> Counted:
    def settle(connection: Connection) -> None:
        expiry.holders(connection, "alpha:b:1:")
        expiry.far_leases(connection, HOUR, 200)
        expiry.expired_leases(connection, 200)
        waiting_misfits(connection)
        outlived(connection, 200)
        give_up_outlived(connection, [1, 2, 3])

    return world.writing(settle)


def settle_schedules(world: World) -> Counted:
    due = world.grown.at("-120")
    world.grown.run("DELETE FROM cronjobs_occurrences WHERE schedule_id = (SELECT min(id) FROM cronjobs_schedules)")
    world.grown.run("DELETE FROM cronjobs_jobs WHERE schedule = 's'")
    world.grown.run(f"UPDATE cronjobs_schedules SET next_at = {due}, seen_until = {due} WHERE name = 's'")
    with counted(world.database) as found:
        materialise(world.database, lambda _event: None)
    world.grown.run("DELETE FROM cronjobs_jobs WHERE schedule = 's'")
    return found


def prune(world: World) -> Counted:
    now = world.database.clock.now()
    with counted(world.database) as found:
        Pruner(world.database, Before.of(Retention(), now), world.database.clock, lambda: True).run()
    return found


def jobs_list(world: World, **wanted: Any) -> Counted:
    return world.reading(lambda connection: listing.list_jobs(connection, Filter(**wanted), 20))


def explain_schedule(world: World) -> Counted:
    def explain(connection: Connection) -> None:
        evidence = ScheduleEvidence(connection, "s", world.settings, lambda: known_types(world.settings))
        explain_occurrence(evidence.at(evidence.latest()))

    return world.reading(explain)


def explain_one_job(world: World) -> Counted:
    def explain(connection: Connection) -> None:
        life = job_life(connection, 7, world.settings, lambda: known_types(world.settings))
        assert life is not None
        explain_job(life)

    return world.reading(explain)


def scrape(world: World) -> Counted:
    """Gather the metrics after ticks have folded all counts."""
    more = True
    while more:
        with world.database.write() as connection:
            more = fold(connection)
    return world.reading(lambda connection: gather(connection, (), 4))


def first_page(world: World) -> Counted:
    """What the first page reads besides ``status``, after closed hours have been stored."""
    more = True
    while more:
        with world.database.write() as connection:
            more = close_hour(connection, database_now(connection))

    with world.database.read() as connection:
        health = look(connection, world.settings, known_types(world.settings))

    def look_at_it(connection: Connection) -> None:
        now = database_now(connection)
        ids = worst_first(connection, health, world.settings.run.every, 50)
        quarters.strips(connection, ids, first_quarter(now), QUARTERS)
        newest_runs(connection, ids, 1)
        tailing.progress_of(connection, [1, 2, 3])
        run_by_cron(connection, now, 10)
        by_hour(connection, first_hour(now, "24h"))
        exec_runs.quarters_lately(connection, "exec:backup", first_quarter(now), QUARTERS)

    return world.reading(look_at_it)


def search(world: World) -> Counted:
    """What the search adds when it looks for schedules by name."""
    return world.reading(active_names)


def what_status_adds(world: World) -> Counted:
    """What ``status`` reads in addition to ``look``, which is counted above."""
    with world.database.read() as connection:
        health = look(connection, world.settings, known_types(world.settings))

    def add(connection: Connection) -> None:
        schedules_shown(connection, health, world.settings.run.every, 12)
        trends.changes(connection, ["default"], trends.compared_with(connection))
        trends.succeeded_lately(connection, timedelta(minutes=2))
        unended_ticks(connection, timedelta(minutes=2), 5)

    return world.reading(add)


def find_causes_before_now(connection: Connection) -> None:
    causes.newest_deaths(connection, 100)
    causes.file_changed_at(connection)
    causes.deaths_until(connection, database_now(connection), 100)


OPERATIONS: dict[str, Callable[[World], Counted]] = {
    "probe": probe,
    "look again": lambda world: probe(world, LOOK),
    "claim": claim,
    "claim under limits": lambda world: claim(world, (Limit("smtp:", most=1),)),
    "is one long by its row": lambda world: world.reading(claims.any_with_own_timeout),
    "recover": recover,
    "materialise": settle_schedules,
    "prune": prune,
    "metrics": scrape,
    "status": lambda world: world.reading(
        lambda connection: look(connection, world.settings, known_types(world.settings))
    ),
    "what status adds": what_status_adds,
    "why jobs died": lambda world: world.reading(find_causes_before_now),
    "facts of schedules": lambda world: world.reading(lambda connection: schedule_facts(connection, range(1, 12))),
    "first page": first_page,
    "search": search,
    "hosts page": lambda world: world.reading(lambda connection: explaining.newest_ticks(connection, 1)),
    "jobs list": jobs_list,
    "jobs list dead": lambda world: jobs_list(world, statuses=(Status.DEAD,)),
    "jobs list succeeded": lambda world: jobs_list(world, statuses=(Status.SUCCEEDED,)),
    "jobs list running": lambda world: jobs_list(world, statuses=(Status.RUNNING,)),
    "jobs list queued": lambda world: jobs_list(world, statuses=(Status.QUEUED,)),
    "jobs list since": lambda world: jobs_list(world, since=world.database.clock.now() - timedelta(minutes=5)),
    "explain a schedule": explain_schedule,
    "explain a job": explain_one_job,
    "a job's place in line": lambda world: world.reading(
        lambda connection: explaining.place_in_line(connection, 1, ["kind0", "kind1"])
    ),
    "explain a type": lambda world: world.reading(
        lambda connection: type_life(connection, "kind1", world.settings, known_types(world.settings))
    ),
    "explain a type that no tick knows": lambda world: world.reading(
        lambda connection: type_life(connection, "kind2", world.settings, known_types(world.settings))
    ),
    "books": lambda world: world.reading(
        lambda connection: books(connection, world.settings, world.database.clock.now() - HOUR, FAR)
    ),
    "due jobs that wait": lambda world: world.reading(
        lambda connection: not_started.lanes_due(connection, ["kind0", "kind1"])
    ),
}


# --- the tests --------------------------------------------------------------------------------------------------------


@pytest.fixture
def world(database: Database, database_url: str, tmp_path: Path) -> Iterator[World]:
    world = World(database, database_url, tmp_path)
    world.grown.finished(FINISHED)
    world.grown.future(FUTURE)
    world.grown.schedules(SCHEDULES, occurrences=10)
    yield world
    world.connection.close()


def grown_too_much(
    world: World, before: dict[str, Counted], what: str, rows: int, analyzed: Sequence[str] = ()
) -> dict[str, str]:
    """What costs more than *before* there were so many *rows* more, with the statement that does most."""
    found = {}
    for statistics in world.statistics(analyzed):
        for name, now in world.work().items():
            if name not in before:
                continue
            per_row = GROWS.get((name, what), (0, 0))[0 if world.database.is_sqlite else 1]
            slack = 400 if world.database.is_sqlite else 20
            if now.work > 1.25 * before[name].work + slack + per_row * rows:
                found[f"{name}, statistics {statistics}"] = f"{before[name].work} → {now.work}: {now.most()}"
            for each in now.statements:
                if re.search(rf"Seq Scan on ({BIG})\b", each.plan):
                    found[f"{name} reads a whole table, statistics {statistics}"] = each.plan
    return found


@pytest.mark.slow
@pytest.mark.parametrize("what", MORE)
def test_the_work_does_not_grow_with(world: World, what: str) -> None:
    before = world.work()
    assert grown_too_much(world, before, what, world.grow(what)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("what", "when_small", "order"),
    # Not schedules when small: a file with twenty times as many as before is analyzed within a minute or two.
    [
        pytest.param("finished", False, TABLES, id="finished, jobs first"),
        pytest.param("finished", True, TABLES[::-1], id="finished, analyzed when small, jobs last"),
        pytest.param("schedules", False, TABLES, id="schedules, jobs first"),
        pytest.param("finished", False, TABLES[::-1], id="finished, jobs last"),
        pytest.param("finished", True, TABLES, id="finished, analyzed when small, jobs first"),
        pytest.param("schedules", False, TABLES[::-1], id="schedules, jobs last"),
    ][: rounds(3, 6)],
)
def test_no_plan_turns_while_autovacuum_goes_round(
    world: World, what: str, when_small: bool, order: Sequence[str]
) -> None:
    if when_small:
        world.grown.analyze()
    before = world.work()
    assert grown_too_much(world, before, what, world.grow(what), order) == {}


def test_status_makes_no_objects_of_schedules_that_are_well_and_are_not_shown(world: World) -> None:
    world.grown.schedules(400, occurrences=10)
    world.grown.run("UPDATE cronjobs_schedules SET owed = '[]' WHERE name IN ('grown-5', 'grown-7')")
    with world.database.read() as connection:
        health = look(connection, world.settings, known_types(world.settings))
    assert len(health.watch.schedules) < 10
    assert {each.name for each in health.watch.schedules} >= {"grown-5", "grown-7"}
    assert len(health.next) == 5
    assert (health.schedules.active, health.schedules.coming) == (SCHEDULES + 401, SCHEDULES + 401)


BEHIND = {
    "an unknown type": {"job_type": "'nobody'"},
    "a paused queue": {"job_type": "'kind1'", "queue": "'stopped'"},
    "a full limit": {"job_type": "'kind1'", "concurrency_key": "'smtp:' || i"},
}


@pytest.mark.slow
@pytest.mark.parametrize("what", BEHIND)
def test_one_job_behind_very_many_that_may_not_run_is_claimed_as_if_it_were_alone(world: World, what: str) -> None:
    rows = 3000
    world.grown.run("INSERT INTO cronjobs_pauses (scope, name) VALUES ('queue', 'stopped')")
    lease = {"status": "'running'", "locked_by": "'x:b:1:1:1:t'", "locked_until": world.grown.at("3000")}
    world.grown.waiting(1, job_type="'kind0'", concurrency_key="'smtp:x'", attempts="1", **lease)
    before = {
        name: done
        for name, done in world.work().items()
        # Without limits in the file, jobs of a "full limit" are jobs like others.
        if name in ("probe", "look again", "claim under limits", "due jobs that wait")
        or (name == "claim" and what != "a full limit")
    }
    world.grown.due(rows, **BEHIND[what])
    assert grown_too_much(world, before, what, rows) == {}


@pytest.mark.slow
def test_the_work_does_not_grow_with_what_was_drained_and_not_vacuumed(world: World) -> None:
    rows = 3000
    before = world.work()
    world.grown.due(rows, job_type="'kind1'")
    with world.database.write() as connection:
        leased = "SET status = 'running', attempts = 1, locked_by = 'r', locked_until = run_at WHERE status = 'queued'"
        connection.execute(text(f"UPDATE cronjobs_jobs {leased} AND id > {FINISHED + FUTURE + 10}"))
    with world.database.write() as connection:
        done = "SET status = 'succeeded', locked_by = NULL, locked_until = NULL, finished_at = run_at"
        connection.execute(text(f"UPDATE cronjobs_jobs {done} WHERE status = 'running'"))
    world.work()  # the first look marks the entries of indexes that lead to dead rows
    slack = 400 if world.database.is_sqlite else 20 + DEAD_PAGES * rows
    found = {
        name: f"{before[name].work} → {now.work}: {now.most()}"
        for name, now in world.work().items()
        if now.work > 1.25 * before[name].work + slack and name != "books"  # it reads what ended since
    }
    assert found == {}
