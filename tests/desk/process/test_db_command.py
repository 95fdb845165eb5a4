"""``cronjobs db …`` as a person types it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Executable, insert, update
from support.project import Project

from cronjobs.clock import SYSTEM
from cronjobs.desk.init.app_alembic import with_filter
from cronjobs.engine.database import tables
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import SCHEMA_REVISION
from cronjobs.engine.store.meta import MOVED


class Folder:
    """A folder with a cronjobs.yaml, and the command line in it."""

    def __init__(self, path: Path, url: str) -> None:
        self.path = path
        self.password = str(parse_url(url).url.password)
        self.configure(database=url)

    def configure(self, **settings: str) -> None:
        self.settings = {**getattr(self, "settings", {}), **settings}
        lines = [f"{key}: {value}\n" for key, value in self.settings.items()]
        (self.path / "cronjobs.yaml").write_text("".join(lines))

    def execute(self, statement: Executable) -> None:
        Project(self.path, self.settings["database"]).execute(statement)

    def meta(self) -> dict[str, Any]:
        [found] = Project(self.path, self.settings["database"]).rows("meta")
        return found

    def run(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        done = Project(self.path, "").call(*arguments)
        assert done.code == code, done.err
        assert self.password not in done.out + done.err
        assert "Traceback" not in done.err
        return done.out, done.err


@pytest.fixture
def folder(tmp_path: Path, empty_url: str) -> Folder:
    return Folder(tmp_path, empty_url)


@pytest.fixture
def migrated(tmp_path: Path, database_url: str) -> Folder:
    return Folder(tmp_path, database_url)


def test_upgrade_says_from_where_to_where(folder: Folder) -> None:
    assert folder.run("db", "current") == (
        "none\n",
        f'this version needs revision {SCHEMA_REVISION}: run "cronjobs db upgrade"\n',
    )
    assert folder.run("db", "upgrade") == (f"revision none → {SCHEMA_REVISION}\n", "")
    assert folder.run("db", "upgrade") == (f"revision {SCHEMA_REVISION}: nothing to do\n", "")
    assert folder.run("db", "current") == (f"{SCHEMA_REVISION}\n", "")


def test_upgrade_warns_of_an_app_whose_autogenerate_would_drop_the_tables(folder: Folder) -> None:
    (folder.path / "alembic").mkdir()
    (folder.path / "alembic.ini").write_text("[alembic]\n")
    env = folder.path / "alembic/env.py"
    env.write_text("from alembic import context\ncontext.configure(connection=None, target_metadata=None)\n")
    assert folder.run("db", "upgrade")[1] == ""  # this upgrade migrates another database
    database = Database(parse_url(folder.settings["database"]))
    with database.write() as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num text)")
    database.close()
    said = folder.run("db", "upgrade")[1]
    assert said.startswith(f"{env}: ")
    assert "include_object=include_object" in said
    env.write_text(with_filter(env.read_text()) or "")
    assert folder.run("db", "upgrade")[1] == ""


def test_current_as_json(migrated: Folder) -> None:
    said = json.loads(migrated.run("db", "current", "--json")[0])
    assert (said["revision"], said["newest"]) == (SCHEMA_REVISION, SCHEMA_REVISION)


def test_check_ends_with_1_when_it_finds_something(folder: Folder) -> None:
    assert 'run "cronjobs db upgrade"' in folder.run("db", "check", code=1)[0]
    [finding] = json.loads(folder.run("db", "check", "--json", code=1)[0])
    assert "has no cronjobs tables" in finding
    folder.run("db", "upgrade")
    assert folder.run("db", "check") == ("", "the tables match this version\n")
    assert json.loads(folder.run("db", "check", "--json")[0]) == []


def test_adopt_hands_the_database_over(migrated: Folder) -> None:
    migrated.configure(project="shop", environment="production")
    assert migrated.run("db", "adopt")[0] == 'nobody → project "shop", environment "production"\n'
    migrated.configure(environment="staging")
    assert migrated.run("db", "adopt")[0] == (
        'project "shop", environment "production" → project "shop", environment "staging"\n'
    )
    assert (
        migrated.run("db", "adopt")[0]
        == 'the database already belongs to project "shop", environment "staging": nothing to do\n'
    )


def tick(folder: Folder, at: datetime, host: str = "web1", ended: datetime | None = None) -> None:
    row = {"tick": f"{host} {at}", "host": host, "pid": 1, "version": "0", "started_at": at, "finished_at": ended}
    folder.execute(insert(tables.ticks).values(row))


def test_adopt_refuses_while_hosts_tick_for_those_who_have_it(migrated: Folder) -> None:
    migrated.execute(update(tables.meta).values(project="shop", environment="production"))  # long ago
    tick(migrated, SYSTEM.now() - timedelta(seconds=64))
    tick(migrated, SYSTEM.now() - timedelta(minutes=9), "web2")
    migrated.configure(project="shop", environment="staging")
    before = migrated.meta()
    out, err = migrated.run("db", "adopt", code=1)
    assert out == ""
    file = migrated.path / "cronjobs.yaml"
    assert 'hosts still tick for project "shop", environment "production", which own this database: web1 1m' in err
    assert "web2" not in err
    assert f'If environment: "staging" is a mistake in {file}, correct it there' in err
    assert "first stop whatever starts ticks on each of these hosts, then wait 3m. --force" in err
    assert migrated.meta() == before
    assert migrated.run("db", "adopt", "--force")[0].endswith('→ project "shop", environment "staging"\n')


def test_adopt_counts_a_tick_that_began_before_the_first_adoption_and_ended_after(migrated: Folder) -> None:
    migrated.configure(project="shop", environment="production")
    began = SYSTEM.now() - timedelta(seconds=2)
    migrated.run("db", "adopt")  # as the first tick does
    tick(migrated, began, ended=SYSTEM.now())
    migrated.configure(project="blog")
    assert 'If project: "blog" is a mistake' in migrated.run("db", "adopt", code=1)[1]


def test_adopt_asks_nothing_where_nobody_ticks_for_those_who_have_it(migrated: Folder) -> None:
    migrated.configure(project="shop", environment="production")
    tick(migrated, SYSTEM.now())  # a tick of the previous owner
    migrated.run("db", "adopt")
    migrated.configure(environment="staging")
    migrated.run("db", "adopt")
    tick(migrated, SYSTEM.now())
    assert (
        migrated.run("db", "adopt")[0]
        == 'the database already belongs to project "shop", environment "staging": nothing to do\n'
    )
    migrated.execute(update(tables.ticks).values(started_at=SYSTEM.now() - timedelta(minutes=4)))  # a restored copy
    migrated.configure(environment="elsewhere")
    migrated.run("db", "adopt")


def test_adopt_asks_nothing_for_a_tick_that_a_wrong_clock_dates_far_ahead(migrated: Folder) -> None:
    migrated.execute(update(tables.meta).values(project="shop", environment="production"))
    tick(migrated, SYSTEM.now() + timedelta(days=3650))
    migrated.configure(project="shop", environment="staging")
    migrated.run("db", "adopt")


def test_adopt_opens_what_a_copy_closed_though_ticks_came_until_then(migrated: Folder) -> None:
    migrated.configure(project="shop", environment="production")
    migrated.run("db", "adopt")
    migrated.execute(update(tables.meta).values(environment=f"{MOVED}elsewhere"))
    tick(migrated, SYSTEM.now())
    assert migrated.run("db", "adopt")[0].endswith('→ project "shop", environment "production"\n')


def test_adopt_without_tables_names_the_command(folder: Folder) -> None:
    assert 'run "cronjobs db upgrade"' in folder.run("db", "adopt", code=4)[1]


def test_sql_makes_what_upgrade_makes(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "sqlite:///made.db")
    script, errors = folder.run("db", "sql")
    assert errors == ""
    assert not (tmp_path / "made.db").exists()
    with closing(sqlite3.connect(tmp_path / "made.db")) as connection:
        connection.executescript(script)
    folder.run("db", "check")


def test_sql_needs_neither_a_database_nor_a_configuration(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "sqlite:///made.db")
    (tmp_path / "cronjobs.yaml").unlink()
    assert "AUTOINCREMENT" in folder.run("db", "sql", "--dialect", "sqlite")[0]
    script = folder.run("db", "sql", "--dialect", "postgresql", "--schema", "jobs")[0]
    assert 'CREATE SCHEMA IF NOT EXISTS "jobs"' in script
    assert "jsonb" in script.lower()


def test_a_database_out_of_reach_ends_with_4_and_one_line(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "postgresql://u:hunter2-hunter2@127.0.0.1:1/d")
    for command in ("upgrade", "current", "check", "adopt"):
        out, errors = folder.run("db", command, code=4)
        assert out == ""
        assert errors.count("\n") == 1
