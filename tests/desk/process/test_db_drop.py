"""``cronjobs db drop`` removes everything of ours and nothing else, and refuses while somebody uses the tables."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert, text, update
from support.databases import opened, until
from support.project import Project
from support.ticking import Project as Ticking
from support.ticking import cli

from cronjobs.clock import SYSTEM
from cronjobs.desk.cli import db_drop
from cronjobs.desk.crontab import block, program, swapping
from cronjobs.desk.insight import leftovers as outside
from cronjobs.engine.database import tables
from cronjobs.engine.host.state_folder import State
from cronjobs.engine.schema import migrations
from cronjobs.errors import DatabaseError

YAML = "log: cronjobs.log\n"
HANDLERS = """
import cronjobs
@cronjobs.job("t.work")
def work(): pass
"""


@pytest.fixture
def on_sqlite(tmp_path: Path, sqlite_migrated: str, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose last tick was yesterday; its user's crontab is empty."""
    return _project(tmp_path, f"sqlite:///{sqlite_migrated}", monkeypatch)


@pytest.fixture
def on_postgresql(
    tmp_path: Path, new_postgres_url: Callable[..., str], _postgres_template: str, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """The same, on a database of its own."""
    return _project(tmp_path, new_postgres_url(_postgres_template), monkeypatch)


@pytest.fixture(params=["on_sqlite", "on_postgresql"])
def typed(request: pytest.FixtureRequest) -> Project:
    found: Project = request.getfixturevalue(request.param)
    return found


def _project(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(program, "read", lambda: "")
    project = Project(folder, url)
    project.write(YAML, HANDLERS)
    project.execute(update(tables.meta).values(project="shop"))
    tick(project, SYSTEM.now() - timedelta(days=1))
    return project


def tick(project: Project, at: datetime) -> None:
    row = {"tick": f"at {at}", "host": "web1", "pid": 1, "version": "0", "started_at": at}
    project.execute(insert(tables.ticks).values(row))


def leftovers(connection: Connection) -> list[str]:
    """Whatever of ours the database still has: relations, functions, types, sequences, indexes."""
    if connection.dialect.name == "sqlite":
        return list(connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE name LIKE '%cronjobs%'").scalars())
    catalogues = {"pg_class": "relname", "pg_proc": "proname", "pg_type": "typname", "pg_constraint": "conname"}
    asked = " UNION ALL ".join(f"SELECT {column}::text AS name FROM {table}" for table, column in catalogues.items())
    found = connection.execute(text(f"SELECT name FROM ({asked}) every WHERE name LIKE '%cronjobs%'"))
    return list(found.scalars())


def lease(project: Project) -> None:
    later = "4102444800000000" if project.url.startswith("sqlite") else "'2100-01-01'"
    project.execute(
        text(
            "UPDATE cronjobs_jobs SET status = 'running', attempts = 1, locked_by = 'web2:x:y:1:1:a', "
            f"started_at = run_at, locked_until = {later}"
        )
    )


def test_all_of_ours_goes_and_the_users_own_stays(typed: Project) -> None:
    with opened(typed.url) as database:
        with database.write() as connection:
            connection.exec_driver_sql("CREATE TABLE orders (id integer PRIMARY KEY)")
            connection.exec_driver_sql("CREATE TABLE cronjobs_of_mine (id integer PRIMARY KEY)")
            connection.exec_driver_sql("INSERT INTO orders VALUES (7)")
        typed.call("enqueue", "t.work", "--in", "1h")
        done = typed.call("db", "drop", "--yes")
        assert done.code == 0, done.err
        with database.read() as connection:
            mine = [name for name in leftovers(connection) if "cronjobs_of_mine" not in name]
            assert mine == []
            assert connection.exec_driver_sql("SELECT id FROM orders").scalars().all() == [7]
            assert connection.exec_driver_sql("SELECT count(*) FROM cronjobs_of_mine").scalar() == 0
    dropped = {line.removeprefix("dropped ") for line in done.out.splitlines()}
    assert {"table cronjobs_jobs", "table cronjobs_alembic_version", "view cronjobs_dead_jobs"} <= dropped
    assert ("function cronjobs_enqueue" in dropped) is not typed.url.startswith("sqlite")
    again = typed.call("db", "drop", "--yes")
    assert again.code == 4
    assert "has no cronjobs tables" in again.err
    assert typed.call("db", "upgrade").code == 0
    assert typed.call("db", "check").code == 0


def test_a_dry_run_lists_the_same_and_changes_nothing(on_sqlite: Project) -> None:
    before = on_sqlite.everything()
    on_sqlite.call("enqueue", "t.work", "--in", "1h")
    dry = on_sqlite.call("db", "drop", "--dry-run")
    assert "these tables still have unfinished or dead jobs: 1 waiting" in dry.err
    assert len(on_sqlite.everything()["cronjobs_ticks"]) == len(before["cronjobs_ticks"])
    done = on_sqlite.call("db", "drop", "--yes")
    assert dry.out.replace("would drop", "dropped") == done.out


def test_it_asks_for_the_projects_name(on_sqlite: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = on_sqlite.call("db", "drop")
    assert refused.code == 2
    assert "add --yes. Nothing was dropped" in refused.err
    monkeypatch.setattr(db_drop, "is_interactive", lambda: True)
    with opened(on_sqlite.url) as database:
        for answer, code in ((b"", 1), (b"shopp\n", 1), (b"shop\n", 0)):
            assert migrations.current(database) is not None
            assert on_sqlite.call("db", "drop", stdin=answer).code == code
        assert migrations.current(database) is None


def test_it_refuses_while_a_job_runs_unless_forced(typed: Project) -> None:
    typed.call("enqueue", "t.work")
    lease(typed)
    refused = typed.call("db", "drop", "--yes")
    assert refused.code == 1
    assert "jobs are running: job 1 (t.work) by web2" in refused.err
    assert len(typed.jobs()) == 1
    assert typed.call("db", "drop", "--yes", "--force").code == 0


def test_it_refuses_while_ticks_come_and_says_whose(on_sqlite: Project) -> None:
    tick(on_sqlite, SYSTEM.now() - timedelta(seconds=40))
    refused = on_sqlite.call("db", "drop", "--yes")
    assert refused.code == 1
    assert "hosts are still ticking: web1 4" in refused.err
    assert "and wait 1m30s" in refused.err
    assert on_sqlite.call("db", "drop", "--yes", "--force").code == 0


def test_another_projects_tables_are_never_dropped(on_sqlite: Project) -> None:
    file = on_sqlite.folder / "cronjobs.yaml"
    file.write_text(file.read_text().replace("shop", "blog"))
    for words in (["--yes"], ["--yes", "--force"], ["--dry-run"]):
        refused = on_sqlite.call("db", "drop", *words)
        assert refused.code == 3
        assert 'project "shop"' in refused.err
    with opened(on_sqlite.url) as database:
        assert migrations.current(database) is not None


def test_a_later_versions_tables_are_left_to_that_version(on_sqlite: Project) -> None:
    on_sqlite.execute(text("UPDATE cronjobs_meta SET schema_revision = '9999'"))
    refused = on_sqlite.call("db", "drop", "--yes")
    assert refused.code == 4
    assert "install a newer cronjobs" in refused.err
    assert on_sqlite.rows("jobs") == []


def test_what_somebody_built_on_our_tables_keeps_all_of_them(on_postgresql: Project) -> None:
    on_postgresql.execute(text("CREATE VIEW my_jobs AS SELECT id FROM cronjobs_jobs"))
    refused = on_postgresql.call("db", "drop", "--yes", "--force")
    assert refused.code == 4
    assert "my_jobs" in refused.err
    assert on_postgresql.call("db", "check").code == 0


def test_a_job_claimed_between_question_and_answer_is_seen(typed: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    typed.call("enqueue", "t.work")
    monkeypatch.setattr(db_drop, "_ask", lambda *_: lease(typed))
    refused = typed.call("db", "drop", "--yes")
    assert refused.code == 1
    assert len(typed.jobs()) == 1


def test_it_waits_for_a_transaction_that_writes_jobs(typed: Project) -> None:
    """An enqueue that has begun is not lost unseen: it is in the tables before they go, or fails."""
    answers: list[Any] = []
    with opened(typed.url) as database:
        dropper = threading.Thread(target=lambda: answers.append(typed.call("db", "drop", "--yes")))
        with database.write() as connection:
            connection.exec_driver_sql("INSERT INTO cronjobs_jobs (job_type) VALUES ('t.work')")
            dropper.start()
            dropper.join(0.3)
            assert dropper.is_alive()
        dropper.join(30)
    assert answers[0].code == 0, answers[0].err


def test_a_statement_after_the_drop_says_what_happened(typed: Project) -> None:
    assert typed.call("db", "drop", "--yes").code == 0
    said = r"cronjobs_jobs.*perhaps somebody ran \"cronjobs db drop\""
    with opened(typed.url) as database, pytest.raises(DatabaseError, match=said) as raised, database.write() as writing:
        writing.exec_driver_sql("DELETE FROM cronjobs_jobs WHERE id = 17")
    assert "DELETE" not in str(raised.value)


def test_of_two_schemas_it_empties_its_own_and_leaves_that_there(on_postgresql: Project) -> None:
    on_postgresql.write("schema: jobs\n" + YAML, HANDLERS)
    assert on_postgresql.call("db", "upgrade").code == 0
    done = on_postgresql.call("db", "drop", "--yes")
    assert done.code == 0, done.err
    assert 'DROP SCHEMA "jobs"' in done.err
    with opened(on_postgresql.url) as database, database.read() as connection:
        schemas = "SELECT count(c.oid) FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid"
        assert connection.exec_driver_sql(f"{schemas} WHERE n.nspname = 'jobs' GROUP BY n.oid").scalar() == 0
        functions = "SELECT pronamespace::regnamespace::text FROM pg_proc WHERE proname = 'cronjobs_enqueue'"
        assert connection.exec_driver_sql(functions).scalars().all() == ["public"]
        assert migrations.current(database) is not None


def test_without_a_file_none_is_made(tmp_path: Path, sqlite_url: str) -> None:
    project = Project(tmp_path, sqlite_url)
    project.write()
    refused = project.call("db", "drop", "--yes")
    assert refused.code == 4
    assert "nothing to drop" in refused.err
    assert not list(tmp_path.glob("cronjobs.db*"))


def test_a_role_that_does_not_own_the_tables_drops_none_of_them(tmp_path: Path, postgres_migrated: str) -> None:
    project = Project(tmp_path, postgres_migrated)
    project.write()
    refused = project.call("db", "drop", "--yes", "--force")
    assert refused.code == 4
    assert "must be owner" in refused.err
    assert project.call("db", "check").code == 0


def test_a_dropped_file_may_be_removed_without_being_missed(tmp_path: Path, sqlite_url: str) -> None:
    project = Project(tmp_path, sqlite_url)
    project.write()
    assert project.call("db", "upgrade").code == 0
    assert project.call("db", "drop", "--yes").code == 0
    for command in (["status"], ["jobs", "list"]):  # which only read
        refused = project.call(*command)
        assert (refused.code, 'has no cronjobs tables: run "cronjobs db upgrade"' in refused.err) == (4, True)
    assert "cronjobs_jobs" not in project.call("db", "drop", "--dry-run").out
    for file in tmp_path.glob("cronjobs.db*"):
        file.unlink()
    assert project.call("status").code == 0  # makes a new one


def test_what_stays_is_named_with_the_command_that_removes_it(
    typed: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "cronjobs.yaml"
    (tmp_path / "units").mkdir()
    (tmp_path / "units" / "cronjobs.service").write_text(f"ExecStart=python -m cronjobs run-due --config {config}\n")
    (tmp_path / "units" / "other.service").write_text("ExecStart=true\n")
    monkeypatch.setattr(outside, "UNIT_FOLDERS", (str(tmp_path / "units"),))
    monkeypatch.setattr(outside, "LOGROTATE", tmp_path / "units")
    lines = "0 3 * * * cronjobs exec backup -c 'true'\n"
    gone = block.block(Path("/srv/gone/cronjobs.yaml"), program.interpreter())
    there = tmp_path / "units" / "cronjobs.yaml"
    there.touch()
    other = f"# cronjobs swapped /srv/gone/cronjobs.yaml: @daily b\n# cronjobs swapped {there}: @daily c\n{gone}"
    system = tmp_path / "system"
    system.mkdir()
    monkeypatch.setattr(outside, "CRON_D", system)
    starts = f"* * * * * root /venv/bin/cronjobs run-due --config {config}\n"
    (system / "shop").write_text(f"# {starts}{starts}* * * * * root /venv/bin/cronjobs exec a --config {config} -- a\n")
    (system / "other").write_text("* * * * * root /venv/bin/cronjobs run-due --config /srv/x.yaml\n")
    crontab = swapping.swap("@daily a\n", [1], block.block(config, program.interpreter()), config) + lines + other
    monkeypatch.setattr(program, "read", lambda: crontab)
    (tmp_path / "cronjobs.log").touch()
    State().write("a-file", "of a tick")
    said = typed.call("db", "drop", "--dry-run").err
    for words in (
        f"cronjobs crontab restore --config {config}; until then, nothing runs them",
        f"cronjobs crontab remove --config {config}",
        "cronjobs crontab restore --config /srv/gone/cronjobs.yaml; until then, nothing runs them",
        f"cronjobs crontab restore --config {there}; leave them if that configuration's ticks still run them",
        "for /srv/gone/cronjobs.yaml, whose ticks fail (",
        "cronjobs crontab remove --config /srv/gone/cronjobs.yaml",
        f"a line of a system crontab: {system}/shop, line 2\n",
        f"a line of a system crontab: {system}/shop, line 3\n",
        "cronjobs crontab unwrap",
        f"systemctl disable --now cronjobs.timer; rm {tmp_path}/units/cronjobs.service",
        f"rm {tmp_path}/cronjobs.log",
        "the state folder: ",
        "enqueue() now fails",
        "other hosts: web1\n",
    ):
        assert words in said
    assert said.index("crontab restore") < said.index("crontab remove")
    assert "other.service" not in said
    assert f"{system}/other" not in said
    assert ("DROP ROLE" in said) is not typed.url.startswith("sqlite")
    assert ("cronjobs.db-turn" in said) is typed.url.startswith("sqlite")


def test_it_counts_what_goes_by_its_kind(typed: Project) -> None:
    done = typed.call("db", "drop", "--dry-run")
    kinds = Counter(line.split()[2] for line in done.out.splitlines())
    assert f"would drop {', '.join(f'{number} {kind}s' for kind, number in kinds.items())}\n" in done.err
    assert ("function" in kinds) is not typed.url.startswith("sqlite")


def test_a_file_with_other_tables_is_not_to_be_removed(on_sqlite: Project) -> None:
    file = on_sqlite.url.removeprefix("sqlite:///")
    assert f"rm {file} " in on_sqlite.call("db", "drop", "--dry-run").err
    on_sqlite.execute(text("CREATE TABLE orders (id integer)"))
    said = on_sqlite.call("db", "drop", "--dry-run").err
    assert f"rm {file} " not in said
    assert f"rm {file}-turn" in said
    assert "because it has other tables, but VACUUM it" in said


def test_djangos_record_of_our_migrations_is_named(typed: Project) -> None:
    typed.execute(text("CREATE TABLE django_migrations (app text, name text)"))
    typed.execute(text("INSERT INTO django_migrations VALUES ('shop', '0001')"))
    assert "django_migrations" not in typed.call("db", "drop", "--dry-run").err
    typed.execute(text("INSERT INTO django_migrations VALUES ('cronjobs', '0001_first')"))
    assert "python manage.py migrate cronjobs zero --fake" in typed.call("db", "drop", "--yes").err


@pytest.mark.slow
@pytest.mark.either
def test_a_tick_whose_tables_are_dropped_ends_and_says_why(
    empty_url: str, new_project: Callable[[str], Ticking]
) -> None:
    """As in an outage, the tick keeps what it has to record, until its time is up."""
    project = new_project(empty_url).configure("run: {budget: 15s}\njob_types: {t.gated: {timeout: 10s}}\n")
    cli(project, "db", "upgrade")
    project.add("t.gated")
    tick = project.start()
    until(lambda: len(project.effects("start")) == 1)
    assert "jobs are running: job 1 (t.gated)" in cli(project, "db", "drop", "--yes", code=1)
    cli(project, "db", "drop", "--yes", "--force")
    project.open()
    assert tick.wait() == 4
    assert "cronjobs db drop" in tick.stderr
    assert "Traceback" not in tick.stderr
    assert len(project.effects()) == 2  # the job ran to its end, and nothing of that is recorded
