"""All commands refuse tables of a version before 0.2.0, name the page to read, and leave the tables unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command  # type: ignore[import-untyped]
from sqlalchemy import text, update
from support.databases import opened
from support.django_project import django_project
from support.postgres import OWNER
from support.project import Project

from cronjobs import cancel, connect, enqueue, find, reschedule
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import FIRST_REVISION, meta
from cronjobs.engine.schema import migrations
from cronjobs.errors import SchemaNotUpgraded

pytestmark = pytest.mark.connects_as(OWNER)

REVISIONS = ("0001", f"{int(FIRST_REVISION) - 1:04d}")
SAYS = "from a version before 0.2.0: this version cannot upgrade it, and changed nothing"


@pytest.fixture(params=REVISIONS)
def old(request: pytest.FixtureRequest, database: Database) -> Database:
    """With a job that waits. The revision alone makes it old: what else those tables are like is not looked at."""
    enqueue(database.engine, "t.say", idempotency_key="k")
    with database.write() as connection:
        connection.execute(update(meta).values(schema_revision=request.param, oldest_code="0001"))
        connection.execute(text("UPDATE cronjobs_alembic_version SET version_num = :it"), {"it": request.param})
    return database


@pytest.fixture
def project(tmp_path: Path, database_url: str) -> Project:
    project = Project(tmp_path, database_url)
    project.write()
    return project


COMMANDS = [
    *("db upgrade", "db drop --yes", "db adopt", "run-due", "status", "jobs list", "jobs cancel 1", "sync"),
    *("enqueue t.say --no-import", "check --live", "check --against URL", "pause --all", "prune", "history"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_them_and_changes_nothing(
    old: Database, database_url: str, project: Project, command: str
) -> None:
    before = (project.everything(), names(old))
    answer = project.call(*command.replace("URL", database_url).split())
    assert (answer.code, SAYS in answer.err) == (4, True), answer
    assert "docs/how-to/operating.md#tables-from-before-020" in answer.err
    assert (project.everything(), names(old)) == before


def names(database: Database) -> list[tuple[Any, ...]]:
    statement = "name, sql FROM sqlite_master" if database.is_sqlite else "relname, relkind FROM pg_class"
    with database.read() as connection:
        return [tuple(row) for row in connection.execute(text(f"SELECT {statement} ORDER BY 1"))]


@pytest.mark.needs("contrib.doctor")
def test_what_only_shows_them_says_the_same(old: Database, project: Project) -> None:
    [finding] = project.call("db", "check", "--json").json
    assert SAYS in finding
    current = project.call("db", "current")
    assert (current.code, current.out.strip() in REVISIONS, SAYS in current.err) == (4, True, True)
    doctor = project.call("doctor")
    assert (doctor.code, SAYS in " ".join(doctor.out.split())) == (1, True)


def test_an_app_gets_the_same_error_and_its_transaction_stays_usable(
    old: Database, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder)
    with pytest.raises(SchemaNotUpgraded), connect():
        raise AssertionError
    calls: list[Callable[[Any], object]] = [
        lambda app: find(app, id=1),
        lambda app: cancel(app, id=1),
        lambda app: reschedule(app, id=1, delay=0),
    ]
    with old.write() as app:
        for call in calls:
            with pytest.raises(SchemaNotUpgraded):
                call(app)
        app.execute(text("SELECT 1"))


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_migration_by_django_or_alembic_refuses_them(empty_url: str, revision: str) -> None:
    """However little of such a database there is: it is refused by its record alone."""
    with opened(empty_url) as database:
        with database.write() as connection:
            connection.execute(text("CREATE TABLE cronjobs_alembic_version (version_num varchar(32) NOT NULL)"))
            connection.execute(text(f"INSERT INTO cronjobs_alembic_version VALUES ('{revision}')"))
        with pytest.raises(SchemaNotUpgraded):
            migrations.upgrade(database)
        with django_project(empty_url), pytest.raises(CommandError, match=SAYS):
            call_command("migrate", "cronjobs")
        assert migrations.current(database) == revision
        assert "cronjobs_jobs" not in [name for name, *_ in names(database)]
