"""How others use the migrations: a DBA with the SQL, and a developer with plain alembic in a clone."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.databases import in_psql, opened
from support.postgres import PostgresServer

from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.tables import SCHEMA_REVISION
from cronjobs.engine.schema import migrations
from cronjobs.engine.store.meta import read_meta

ROOT = Path(__file__).parents[3]


# --- offline SQL ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [None, "jobs"])
def test_sql_for_a_dba_makes_the_same_tables_on_postgresql(
    postgres_url: str, postgres_server: PostgresServer, schema: str | None
) -> None:
    script = migrations.sql(parse_url("postgresql://", schema))
    done = subprocess.run(
        [postgres_server.bin / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", postgres_url],
        input=script,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    with opened(postgres_url, schema) as database:
        assert migrations.check(database) == []
        assert migrations.upgrade(database) == (SCHEMA_REVISION, SCHEMA_REVISION)


def test_sql_for_a_dba_makes_the_same_tables_on_sqlite(sqlite_url: str) -> None:
    script = migrations.sql(parse_url("sqlite:///any.db"))
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        connection.executescript(script)
    with opened(sqlite_url) as database:
        assert migrations.check(database) == []
        assert migrations.upgrade(database) == (SCHEMA_REVISION, SCHEMA_REVISION)


def test_sql_is_one_transaction() -> None:
    for address in ("postgresql://", "sqlite:///any.db"):
        lines = [line for line in migrations.sql(parse_url(address)).splitlines() if line]
        assert (lines[0].rstrip(";"), lines[-1].rstrip(";")) == ("BEGIN", "COMMIT")


# --- plain alembic, from a clone ------------------------------------------------------------------------------------


def alembic(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "alembic", *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CRONJOBS_")}
    return subprocess.run(command, cwd=cwd, env=clean | environment, capture_output=True, text=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with nothing in it but what plain alembic reads."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("pyproject.toml", "cronjobs"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "alembic" / "versions").mkdir(parents=True)
    for file in ("env.py", "script.py.mako", *(f"versions/{path.name}" for path in ROOT.glob("alembic/versions/*.py"))):
        (folder / "alembic" / file).write_text((ROOT / "alembic" / file).read_text())
    return folder


@pytest.mark.slow
def test_plain_alembic_upgrades_and_finds_nothing_to_change(empty_url: str) -> None:
    for arguments in (("upgrade", "head"), ("check",), ("current",)):
        done = alembic(*arguments, CRONJOBS_DATABASE_URL=empty_url)
        assert done.returncode == 0, done.stderr
    assert f"{SCHEMA_REVISION} (head)" in done.stdout
    with opened(empty_url) as database:
        assert migrations.check(database) == []


@pytest.mark.slow
def test_plain_alembic_leaves_other_peoples_tables_alone(postgres_url: str) -> None:
    in_psql(postgres_url, "CREATE TABLE invoices (id int PRIMARY KEY)")
    options = ("-x", f"url={postgres_url}", "-x", "schema=public")
    for command in (("upgrade", "head"), ("check",)):
        done = alembic(*options, *command)
        assert done.returncode == 0, done.stderr
    assert "No new upgrade operations" in done.stdout


def test_plain_alembic_prints_sql(postgres_url: str) -> None:
    done = alembic("-x", f"url={postgres_url}", "-x", "schema=jobs", "upgrade", "head", "--sql")
    assert done.returncode == 0, done.stderr
    assert done.stdout == migrations.sql(parse_url(postgres_url, "jobs"))


@pytest.mark.slow
def test_plain_alembic_writes_the_next_revision(clone: Path, sqlite_url: str) -> None:
    alembic("upgrade", "head", cwd=clone, CRONJOBS_DATABASE_URL=sqlite_url)
    done = alembic("revision", "--autogenerate", "-m", "Add a thing", cwd=clone, CRONJOBS_DATABASE_URL=sqlite_url)
    assert done.returncode == 0, done.stderr
    number = f"{int(SCHEMA_REVISION) + 1:04d}"
    written = (clone / "alembic" / "versions" / f"{number}_add_a_thing.py").read_text()
    assert f"down_revision = '{SCHEMA_REVISION}'" in written
    assert "drop_table" not in written
    done = alembic("upgrade", "head", cwd=clone, CRONJOBS_DATABASE_URL=sqlite_url)
    assert done.returncode == 0, done.stderr
    with opened(sqlite_url) as database, database.read() as connection:
        assert read_meta(connection).schema_revision == number


def test_plain_alembic_takes_the_database_of_the_configuration_beside_it(clone: Path) -> None:
    (clone / "cronjobs.yaml").write_text("database: sqlite:///here.db\n")
    done = alembic("upgrade", "head", cwd=clone)
    assert done.returncode == 0, done.stderr
    with opened(f"sqlite:///{clone}/here.db") as database:
        assert migrations.check(database) == []


def test_plain_alembic_without_a_database_asks_for_one(clone: Path) -> None:
    done = alembic("upgrade", "head", cwd=clone)
    assert done.returncode != 0
    assert "which database to use: set CRONJOBS_DATABASE_URL" in done.stderr


def test_a_downgrade_is_refused_with_the_reason(postgres_migrated: str) -> None:
    done = alembic("downgrade", "base", CRONJOBS_DATABASE_URL=postgres_migrated)
    assert done.returncode != 0
    assert 'run "cronjobs db drop"' in done.stderr
    with opened(postgres_migrated) as database:
        assert migrations.check(database) == []
