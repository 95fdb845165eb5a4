"""Upgrade each released version's database to this code, and then to a next revision, while ticks of both run.

Each folder here is a released version: see store.py. The next revision is invented. It is a copy of this code with one
more migration, which adds a column, a table and an index, as a real one might.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import inspect
from support.commands import until
from support.databases import in_psql, opened
from support.ticking import Project, first_on_path

from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import SCHEMA_REVISION, VERSION_TABLE
from cronjobs.engine.schema import migrations
from cronjobs.engine.store.meta import read_meta

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STORED = sorted(folder.parent.name for folder in HERE.glob("*/postgresql.sql"))
NEXT_REVISION = f"{int(SCHEMA_REVISION) + 1:04d}"

NEXT_MIGRATION = f'''
import sqlalchemy as sa
from alembic import op

revision = "{NEXT_REVISION}"
down_revision = "{SCHEMA_REVISION}"


def upgrade():
    op.add_column("cronjobs_jobs", sa.Column("made_up", sa.Text, nullable=False, server_default="new"))
    op.create_table("cronjobs_made_up", sa.Column("id", sa.BigInteger, primary_key=True))
    op.create_index("cronjobs_jobs_made_up_idx", "cronjobs_jobs", ["made_up"])
    op.execute("UPDATE cronjobs_meta SET schema_revision = '{NEXT_REVISION}', oldest_code = '{SCHEMA_REVISION}'")
'''

YAML = """
schedules:
  nightly: {cron: "0 2 * * *", job: t.work}
"""
HANDLERS = """
@job("t.work")
def work(ctx, **payload):
    say("worked", ctx)

@job("t.later")
def later(ctx):
    pass
"""

WAITING = "SELECT id FROM cronjobs_jobs WHERE job_type = 't.work' AND finished_at IS NULL"


@pytest.fixture(params=["sqlite", "postgresql"])
def stored_url(request: pytest.FixtureRequest, version: str, tmp_path: Path) -> str:
    """A copy of the database that *version* left."""
    if request.param == "sqlite":
        shutil.copy(HERE / version / "cronjobs.sqlite3", tmp_path)
        return f"sqlite:///{tmp_path / 'cronjobs.sqlite3'}"
    url: str = request.getfixturevalue("postgres_url")
    in_psql(url, (HERE / version / "postgresql.sql").read_text())
    return url


@pytest.fixture
def next_code(tmp_path: Path) -> dict[str, str]:
    """The variable with which a process is of the next revision."""
    folder = tmp_path / "next"
    for name in ("cronjobs", "alembic"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "alembic" / "versions" / f"{NEXT_REVISION}_made_up.py").write_text(NEXT_MIGRATION)
    tables = folder / "cronjobs" / "engine" / "database" / "tables.py"
    line = 'SCHEMA_REVISION: Final = "{}"'
    changed = tables.read_text().replace(line.format(SCHEMA_REVISION), line.format(NEXT_REVISION))
    assert changed != tables.read_text()
    tables.write_text(changed)
    return first_on_path(folder)


def columns_of(database: Database) -> dict[str, str]:
    with database.read() as connection:
        found = inspect(connection)
        tables = [name for name in found.get_table_names() if name not in ("cronjobs_meta", VERSION_TABLE)]
        return {name: ", ".join(f'"{each["name"]}"' for each in found.get_columns(name)) for name in tables}


def rows_of(database: Database, columns: dict[str, str]) -> dict[str, list[str]]:
    with database.read() as connection:
        read = {name: connection.exec_driver_sql(f"SELECT {these} FROM {name}") for name, these in columns.items()}
        return {name: sorted(map(repr, rows)) for name, rows in read.items()}


def revisions(url: str) -> tuple[str | None, str]:
    with opened(url) as database, database.read() as connection:
        return migrations.current(database), read_meta(connection).oldest_code


@pytest.mark.slow
@pytest.mark.parametrize("version", STORED)
def test_a_stored_database_is_upgraded_while_ticks_of_both_revisions_work(
    stored_url: str, next_code: dict[str, str], new_project: Callable[[str], Project]
) -> None:
    with opened(stored_url) as database:
        columns = columns_of(database)
        before = rows_of(database, columns)
        migrations.upgrade(database)
        assert migrations.check(database) == []
        assert rows_of(database, columns) == before

    project = new_project(stored_url).configure(YAML, HANDLERS)
    waiting = [job_id for (job_id,) in project.sql(WAITING)]
    assert waiting
    gated = [project.add("t.gated") for _ in range(2)]
    running = project.start()
    until(lambda: len(project.effects("start")) == 2, 30)

    # The next version's upgrade, while a tick of this one runs jobs.
    command = [sys.executable, "-m", "cronjobs", "db", "upgrade", "--config", f"{project.folder}/cronjobs.yaml"]
    upgrade = project.tick(argv=command, env=next_code)
    assert upgrade.stdout == f"revision {SCHEMA_REVISION} → {NEXT_REVISION}\n", upgrade.stderr
    assert revisions(stored_url) == (NEXT_REVISION, SCHEMA_REVISION)
    added = [project.add("t.quick") for _ in range(20)]
    ticks = [project.start(env=env) for env in (next_code, {}, next_code, {})]
    project.open()
    assert [tick.wait() for tick in (running, *ticks)] == [0] * 5

    # What waited, what ran meanwhile and what came after it: each ran once.
    project.make_due()
    assert [project.tick(env=env).wait() for env in (next_code, {})] == [0, 0]
    assert project.times_ran("worked").keys() >= {*waiting}
    assert project.times_ran("end").keys() == {*gated}
    assert project.times_ran().keys() == {*added}
    for what in ("worked", "end", "ran"):
        assert set(project.times_ran(what).values()) == {1}
    assert project.value("SELECT count(*) FROM cronjobs_jobs WHERE made_up <> 'new'") == 0
