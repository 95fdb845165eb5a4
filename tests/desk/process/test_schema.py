"""``schema:`` in all commands, from the first upgrade on, with the least role. Two projects share one server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text
from support.databases import in_psql, opened
from support.postgres import OWNER, RUN, as_role
from support.project import Answer
from support.project import Project as Typed
from support.ticking import Project

from cronjobs.clock import SYSTEM
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import SCHEMA_REVISION
from cronjobs.engine.jobs.enqueue import enqueue
from cronjobs.engine.rules.lease import Lease
from cronjobs.engine.schema import migrations
from cronjobs.engine.schema.grants import Role, statements
from cronjobs.engine.store import leases, operating, schedules
from cronjobs.engine.store.concurrency import judge_alone
from cronjobs.engine.store.sql import run
from cronjobs.errors import DatabaseError

YAML = "schedules: {nightly: {every: 1m, job: t.tell, overlap: allow}}\n"
TELL = """
@job("t.tell")
def tell(ctx):
    say("told", ctx)
"""


def prepare(url: str, schema: str) -> None:
    """Do what ``db grants`` and ``db upgrade`` do, and then grant the rights of the role for ticks."""
    in_psql(url, statements(schema, {Role.MIGRATE: OWNER}))
    with opened(as_role(url, OWNER), schema) as database:
        migrations.upgrade(database)
    in_psql(url, statements(schema, {Role.RUN: RUN}))


@pytest.fixture
def empty(new_postgres_url: Callable[..., str], _postgres_template: str) -> Callable[[], str]:
    """Makes empty databases, beside which the roles are there."""
    return new_postgres_url


# --- a schema of its own ----------------------------------------------------------------------------------------------

COMMANDS = [
    "sync",
    "enqueue t.quick --in 0s --idempotency-key k",
    "trigger nightly",
    "jobs list --json",
    "jobs show 1",
    "jobs cancel 2 --why test",
    "jobs retry 2",
    "jobs list --group-by error",
    "explain 1",
    "schedules list",
    "schedules show nightly",
    "status",
    "history",
    "effects list",
    "pause --queue default --wait 1s --why test",
    "resume --queue default",
    "backfill nightly --from {an_hour_ago} --to {an_hour_ago}",
    "db current",
    "db check",
    "db grants",
    "db adopt",
    "db upgrade",
]


@pytest.mark.slow
def test_every_command_and_the_tick_work_in_a_schema_of_its_own(
    empty: Callable[[], str], new_project: Callable[[str], Project]
) -> None:
    url = empty()
    prepare(url, "jobs")
    project = new_project(as_role(url, RUN)).configure(f"schema: jobs\n{YAML}", TELL)
    typed = Typed(project.folder, project.url)

    def look(statement: str) -> Any:
        with psycopg.connect(url) as connection:
            return connection.execute(statement.encode()).fetchall()

    an_hour_ago = (SYSTEM.now() - timedelta(hours=1)).strftime("%Y-%m-%dT%H:00Z")
    for command in COMMANDS:
        answer: Answer = typed.call(*command.format(an_hour_ago=an_hour_ago).split())
        assert answer.code == 0, f"{command}: {answer.out}{answer.err}"
    in_psql(as_role(url, RUN), "SELECT jobs.cronjobs_enqueue('t.quick')")
    in_psql(as_role(url, RUN), "INSERT INTO jobs.cronjobs_jobs (job_type) VALUES ('t.quick')")
    assert "would" in project.tick("--dry-run").stdout
    tick = project.tick()
    assert (tick.process.returncode, tick.stdout, tick.stderr) == (0, "", "")
    assert typed.call("check", "--live").code == 0
    assert look("SELECT DISTINCT status FROM jobs.cronjobs_jobs") == [("succeeded",)]
    assert len(project.effects("ran")) == 3
    assert project.effects("told")
    assert look("SELECT count(*) FROM jobs.cronjobs_dead_jobs") == [(0,)]
    assert look("SELECT count(*) FROM jobs.cronjobs_long_running_jobs") == [(0,)]
    everywhere = "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'cronjobs%'"
    assert look(everywhere) == [("jobs",)]


def test_a_schema_that_is_missing_is_made_or_the_way_to_it_is_said(empty: Callable[[], str]) -> None:
    url = empty()
    with opened(as_role(url, OWNER), "jobs") as database, pytest.raises(DatabaseError, match="db grants"):
        migrations.upgrade(database)
    with opened(url, "jobs") as database:
        assert migrations.upgrade(database) == (None, SCHEMA_REVISION)


# --- two projects -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["two schemas", "two databases"])
def two(
    request: pytest.FixtureRequest, empty: Callable[..., str], new_project: Callable[[str], Project]
) -> list[Project]:
    """Two projects of the same handlers, schedules and keys on one server, each with its own file."""
    if request.param == "two databases":
        urls = [as_role(empty("migrated"), RUN) for _ in range(2)]
        return [new_project(url).configure(YAML, TELL) for url in urls]
    url = empty()
    for schema in ("one", "two"):
        prepare(url, schema)
    # So that the test's own bare names find the tables; the tick's are qualified.
    urls = [f"{as_role(url, RUN)}?options=-csearch_path%3D{schema}" for schema in ("one", "two")]
    return [
        new_project(url).configure(f"schema: {schema}\n{YAML}", TELL)
        for url, schema in zip(urls, ("one", "two"), strict=True)
    ]


@pytest.mark.slow
def test_two_projects_tick_side_by_side_and_do_their_own_work_once(two: list[Project]) -> None:
    for project in two:
        assert project.tick().process.returncode == 0  # the schedules are known; now an occurrence of each is owed
        back = "interval '90 seconds'"
        project.sql(f"UPDATE cronjobs_schedules SET seen_until = seen_until - {back}, next_at = next_at - {back}")
    for project, jobs in zip(two, (60, 40), strict=True):
        project.sql(
            f"SELECT cronjobs_enqueue('t.quick', idempotency_key => 'k' || n) FROM generate_series(1, {jobs}) n"
        )
    for tick in [project.start() for _ in range(2) for project in two]:
        assert tick.wait(60) == 0
        assert (tick.stdout, tick.stderr) == ("", "")
    for project, jobs in zip(two, (60, 40), strict=True):
        assert project.statuses().keys() == {"succeeded"}
        ran = project.times_ran()
        assert (len(ran), set(ran.values())) == (jobs, {1})
        made = project.value("SELECT count(*) FROM cronjobs_occurrences WHERE outcome = 'enqueued'")
        told = project.times_ran("told")
        assert (len(told), set(told.values())) == (made, {1})
        assert project.value("SELECT count(*) FROM cronjobs_audit WHERE action = 'sync'") == 1


@contextmanager
def databases(two: list[Project]) -> Iterator[tuple[Database, Database]]:
    with ExitStack() as stack:
        schemas = [line.partition(": ")[2] or None for line in map(_schema_line, two)]
        one, other = (stack.enter_context(opened(p.url, schema)) for p, schema in zip(two, schemas, strict=True))
        yield one, other


def _schema_line(project: Project) -> str:
    lines = (project.folder / "cronjobs.yaml").read_text().splitlines()
    return next((line for line in lines if line.startswith("schema:")), "")


HELD = Lease(1, 1, "nobody")


def adopt(connection: Connection) -> object:
    minute = timedelta(minutes=1)
    return leases.adopt(connection, HELD, locked_by="x", lease=minute, host="h", at_most=4) is None


@pytest.mark.parametrize("lock", [adopt, judge_alone, schedules.lock_definitions], ids=lambda lock: lock.__name__)
def test_what_one_project_locks_the_other_does_not_wait_for(
    two: list[Project], lock: Callable[[Connection], object]
) -> None:
    with databases(two) as (one, other), one.write() as first, other.write() as second:
        second.execute(text("SET LOCAL lock_timeout = '200ms'"))
        assert lock(first)
        assert lock(second)


def test_one_projects_migration_does_not_wait_for_the_others(
    empty: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "_BEGIN_DDL", migrations._BEGIN_DDL.replace("15min", "20s"))
    url = empty()
    with opened(url, "one") as one, opened(url, "two") as two, migrations.transaction(one):
        assert migrations.upgrade(two) == (None, SCHEMA_REVISION)


def test_a_pause_does_not_wait_for_the_other_projects_claims(two: list[Project]) -> None:
    with databases(two) as (one, other):
        for database in (one, other):
            with database.write() as connection:
                enqueue(connection, "t.quick")
        with one.write() as claiming, one.read() as here, other.read() as there:
            run(claiming, "UPDATE {jobs} SET priority = 4 WHERE NOT EXISTS (SELECT FROM {pauses})")
            assert operating.claims_in_flight(here)
            assert not operating.claims_in_flight(there)
