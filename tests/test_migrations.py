"""Making the tables: together, beside other people's, offline, by plain alembic; and what check finds."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from alembic.script import ScriptDirectory
from postgres import PostgresServer
from sqlalchemy import text

from cronjobs import migrations
from cronjobs.database import Database, parse_url
from cronjobs.errors import CronjobsError, DatabaseError, SchemaMissing, SchemaTooNew, SchemaTooOld
from cronjobs.store.meta import adopt, read_meta, require_schema
from cronjobs.tables import SCHEMA_REVISION, metadata

ROOT = Path(__file__).parent.parent


@contextmanager
def opened(url: str, schema: str | None = None) -> Iterator[Database]:
    database = Database(parse_url(url, schema))
    try:
        yield database
    finally:
        database.close()


def in_psql(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


# --- upgrade --------------------------------------------------------------------------------------------------------


def test_the_newest_revision_is_the_one_this_code_knows() -> None:
    assert migrations.head() == SCHEMA_REVISION


def test_revisions_are_numbered_and_in_one_line() -> None:
    """They are compared as text."""
    script = ScriptDirectory(str(migrations.script_location()))
    numbers = [revision.revision for revision in script.walk_revisions()][::-1]
    assert numbers == [f"{number:04d}" for number in range(1, len(numbers) + 1)]


def test_an_upgrade_says_from_where_to_where_and_then_finds_nothing_to_do(empty_url: str) -> None:
    with opened(empty_url) as database:
        assert migrations.current(database) is None
        assert migrations.upgrade(database) == (None, SCHEMA_REVISION)
        assert migrations.upgrade(database) == (SCHEMA_REVISION, SCHEMA_REVISION)
        assert migrations.current(database) == SCHEMA_REVISION
        assert migrations.check(database) == []


RACER = """
import sys
from cronjobs import migrations
from cronjobs.database import Database, parse_url
print("ready", flush=True)
sys.stdin.readline()
database = Database(parse_url(sys.argv[1]))
print(*migrations.upgrade(database))
database.close()
"""


def test_upgrades_at_once_do_not_break_each_other(empty_url: str) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, empty_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = [racer.communicate(timeout=60) for racer in racers]
    assert [(racer.returncode, errors) for racer, (_, errors) in zip(racers, said, strict=True)] == [(0, "")] * 3
    assert sorted(out.strip() for out, _ in said) == ["0001 0001", "0001 0001", f"None {SCHEMA_REVISION}"]
    with opened(empty_url) as database:
        assert migrations.check(database) == []


def test_an_upgrade_that_fails_half_way_leaves_nothing(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(empty_url) as database:
        # The last table is in the way.
        with database.write() as connection:
            connection.execute(text("CREATE TABLE cronjobs_meta (x int)"))
        with pytest.raises(DatabaseError):
            migrations.upgrade(database)
        with database.write() as connection:
            connection.execute(text("DROP TABLE cronjobs_meta"))
        assert migrations.current(database) is None
        assert migrations.upgrade(database) == (None, SCHEMA_REVISION)


def test_ddl_gives_way_to_the_app_and_comes_back(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that waited for a lock would make everybody else wait behind it."""
    in_psql(postgres_url, "CREATE TABLE cronjobs_alembic_version (version_num varchar(32) NOT NULL PRIMARY KEY)")
    monkeypatch.setattr(migrations, "_SHORT_LOCKS", "SET LOCAL lock_timeout = '50ms'")
    pauses = []
    with psycopg.connect(postgres_url) as app, opened(postgres_url) as database:
        app.execute("LOCK TABLE cronjobs_alembic_version IN ACCESS EXCLUSIVE MODE")

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:
                app.rollback()

        monkeypatch.setattr(migrations, "sleep", pause)
        assert migrations.upgrade(database) == (None, SCHEMA_REVISION)
    assert len(pauses) == 2


def test_a_lock_that_is_never_given_up_ends_in_one_line(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_psql(postgres_url, "CREATE TABLE cronjobs_alembic_version (version_num varchar(32) NOT NULL PRIMARY KEY)")
    monkeypatch.setattr(migrations, "_SHORT_LOCKS", "SET LOCAL lock_timeout = '5ms'")
    monkeypatch.setattr(migrations, "_LOCK_TRIES", 3)
    monkeypatch.setattr(migrations, "_PAUSE_S", 0)
    with psycopg.connect(postgres_url) as app, opened(postgres_url) as database:
        app.execute("LOCK TABLE cronjobs_alembic_version IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(DatabaseError, match="lock timeout") as caught:
            migrations.upgrade(database)
    assert "\n" not in str(caught.value)


def test_an_upgrade_waits_for_another_one_longer_than_for_any_lock(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as other, opened(postgres_url) as database:
        other.execute(migrations._UPGRADE_LOCK)
        done: list[tuple[str | None, str]] = []
        waiting = threading.Thread(target=lambda: done.append(migrations.upgrade(database)))
        waiting.start()
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while other.execute(waits).fetchone() != (1,):
            pass
        assert not done
        other.rollback()
        waiting.join(30)
    assert done == [(None, SCHEMA_REVISION)]


def test_a_downgrade_is_refused_with_the_reason(postgres_migrated: str) -> None:
    done = alembic("downgrade", "base", CRONJOBS_DATABASE_URL=postgres_migrated)
    assert done.returncode != 0
    assert "only expand" in done.stderr
    with opened(postgres_migrated) as database:
        assert migrations.check(database) == []


# --- which schema ---------------------------------------------------------------------------------------------------

FOREIGN = "CREATE TABLE invoices (id int PRIMARY KEY, total numeric); CREATE TABLE cronjobs_of_mine (id int)"


@pytest.mark.parametrize("schema", ["jobs", 'We"ird schema', "public"])
def test_the_tables_go_into_the_schema_that_is_asked_for(postgres_url: str, schema: str) -> None:
    in_psql(postgres_url, FOREIGN)
    with opened(postgres_url, schema) as database:
        assert migrations.upgrade(database) == (None, SCHEMA_REVISION)
        assert migrations.check(database) == []
        assert migrations.upgrade(database) == (SCHEMA_REVISION, SCHEMA_REVISION)
        with database.read() as connection:
            require_schema(connection)
            ours = connection.execute(
                text(
                    "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'cronjobs\\_%' "
                    "AND tablename <> 'cronjobs_of_mine'"
                )
            )
            assert list(ours.scalars()) == [schema]


def test_two_projects_live_in_two_schemas_of_one_database(postgres_url: str) -> None:
    with opened(postgres_url, "one") as one, opened(postgres_url, "two") as two:
        migrations.upgrade(one)
        assert migrations.current(two) is None
        migrations.upgrade(two)
        with one.write() as connection:
            connection.execute(metadata.tables["cronjobs_jobs"].insert().values(job_type="t"))
        for database, jobs in ((one, 1), (two, 0)):
            assert migrations.check(database) == []
            with database.read() as connection:
                count = connection.execute(metadata.tables["cronjobs_jobs"].select()).all()
                assert len(count) == jobs


def test_without_a_schema_the_search_path_says_where(postgres_url: str) -> None:
    in_psql(postgres_url, "CREATE SCHEMA app", "ALTER ROLE postgres IN DATABASE postgres RESET ALL")
    name = parse_url(postgres_url).url.database
    in_psql(postgres_url, f"ALTER DATABASE {name} SET search_path = nowhere, app, public")
    with opened(postgres_url) as database:
        migrations.upgrade(database)
        assert migrations.check(database) == []
    # A schema that comes to stand before it later does not get a second set of tables.
    in_psql(postgres_url, "CREATE SCHEMA nowhere")
    with opened(postgres_url) as database:
        assert migrations.upgrade(database) == (SCHEMA_REVISION, SCHEMA_REVISION)
        assert migrations.check(database) == []
        with database.read() as connection:
            where = "SELECT schemaname FROM pg_tables WHERE tablename = 'cronjobs_jobs'"
            assert list(connection.execute(text(where)).scalars()) == ["app"]


def test_a_search_path_that_leads_nowhere_is_said(postgres_url: str) -> None:
    name = parse_url(postgres_url).url.database
    in_psql(postgres_url, f"ALTER DATABASE {name} SET search_path = nowhere")
    with opened(postgres_url) as database, pytest.raises(DatabaseError, match='"schema: jobs"'):
        migrations.upgrade(database)


def test_a_role_that_may_not_create_schemas_migrates_in_one_that_is_there(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    in_psql(
        postgres_url,
        "CREATE ROLE migrator LOGIN PASSWORD 'm'",
        "CREATE SCHEMA jobs AUTHORIZATION migrator",
    )
    url = re.sub(r"//.*@", "//migrator:m@", postgres_url)
    try:
        with opened(url, "jobs") as database:
            assert migrations.upgrade(database) == (None, SCHEMA_REVISION)
            assert migrations.check(database) == []
    finally:
        in_psql(postgres_url, "DROP OWNED BY migrator CASCADE", "DROP ROLE migrator")


# --- check ----------------------------------------------------------------------------------------------------------

DAMAGE = [
    ("DROP INDEX cronjobs_jobs_waiting_idx", ["cronjobs_jobs: index cronjobs_jobs_waiting_idx is missing"]),
    ("DROP VIEW cronjobs_dead_jobs", ["view cronjobs_dead_jobs is missing"]),
    ("DROP TABLE cronjobs_pauses", ["table cronjobs_pauses is missing"]),
    (
        "DROP INDEX cronjobs_jobs_leased_idx; CREATE INDEX cronjobs_jobs_leased_idx ON cronjobs_jobs (locked_until)",
        ["cronjobs_jobs: index cronjobs_jobs_leased_idx is «"],
    ),
    ("ALTER TABLE cronjobs_queues RENAME COLUMN dropped TO fell", ["cronjobs_queues: column dropped is missing"]),
]
WIDER_PRIORITY = (
    "ALTER TABLE cronjobs_jobs DROP CONSTRAINT cronjobs_jobs_priority_ck; "
    "ALTER TABLE cronjobs_jobs ADD CONSTRAINT cronjobs_jobs_priority_ck CHECK (priority BETWEEN 0 AND 99)"
)
DAMAGE_POSTGRESQL = [
    (
        "ALTER TABLE cronjobs_jobs DROP CONSTRAINT cronjobs_jobs_status_ck",
        ["cronjobs_jobs: constraint cronjobs_jobs_status_ck is missing"],
    ),
    (
        WIDER_PRIORITY,
        ["cronjobs_jobs: constraint cronjobs_jobs_priority_ck is «CHECK"],
    ),
    (
        "ALTER TABLE cronjobs_jobs DROP CONSTRAINT cronjobs_jobs_idempotency_key_key",
        ["cronjobs_jobs: constraint cronjobs_jobs_idempotency_key_key is missing"],
    ),
    (
        "ALTER TABLE cronjobs_jobs ALTER COLUMN run_at DROP DEFAULT",
        ["cronjobs_jobs: column run_at is «timestamp with time zone NOT NULL» and should be «timestamp with"],
    ),
    (
        "ALTER TABLE cronjobs_jobs ALTER COLUMN queue DROP NOT NULL",
        ["cronjobs_jobs: column queue is «text DEFAULT 'default'::text» and should be «text NOT NULL DEFAULT"],
    ),
    ("DROP FUNCTION cronjobs_enqueue", ["function cronjobs_enqueue is missing"]),
    ("ALTER SCHEMA public RENAME TO elsewhere; CREATE SCHEMA public", ["has no cronjobs tables"]),
    ("DELETE FROM cronjobs_alembic_version", ["cronjobs_alembic_version says revision None and cronjobs_meta says 00"]),
    ("UPDATE cronjobs_meta SET schema_revision = '0000'", ["changed by hand", "is at revision 0000, this version"]),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGE)
def test_what_is_missing_or_changed_is_found(database: Database, damage: str, said: list[str]) -> None:
    found_after(database, damage, said)


@pytest.mark.parametrize(("damage", "said"), DAMAGE_POSTGRESQL)
def test_what_is_missing_or_changed_on_postgresql_is_found(
    postgres_migrated: str, damage: str, said: list[str]
) -> None:
    with opened(postgres_migrated) as database:
        found_after(database, damage, said)


def found_after(database: Database, damage: str, said: list[str]) -> None:
    with database.write() as connection:
        for statement in damage.split("; "):
            connection.execute(text(statement))
    found = migrations.check(database)
    assert len(found) == len(said), found
    for sentence, expected in zip(found, said, strict=True):
        assert expected in sentence


def test_a_check_that_is_gone_from_sqlite_is_found(sqlite_migrated: str) -> None:
    with closing(sqlite3.connect(sqlite_migrated)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET sql = replace(sql, 'priority BETWEEN 0 AND 9', 'priority >= 0') "
            "WHERE name = 'cronjobs_jobs'"
        )
        connection.commit()
    with opened(f"sqlite:///{sqlite_migrated}") as database:
        [finding] = migrations.check(database)
    assert finding == (
        "cronjobs_jobs: constraint cronjobs_jobs_priority_ck is «CHECK (priority >= 0)» and should be "
        "«CHECK (priority BETWEEN 0 AND 9)»"
    )


def test_what_somebody_added_is_no_finding(database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("CREATE INDEX mine ON cronjobs_jobs (job_type)"))
        connection.execute(text("ALTER TABLE cronjobs_jobs ADD COLUMN mine int"))
        connection.execute(text("CREATE TABLE cronjobs_mine (id int)"))
    assert migrations.check(database) == []


def test_check_leaves_nothing_behind(database: Database) -> None:
    names = "SELECT name FROM sqlite_master" if database.is_sqlite else "SELECT relname FROM pg_class"
    with database.read() as connection:
        before = sorted(connection.execute(text(names)).scalars())
    migrations.check(database)
    with database.read() as connection:
        assert sorted(connection.execute(text(names)).scalars()) == before


def test_check_of_an_empty_database_names_the_command(empty_url: str) -> None:
    with opened(empty_url) as database:
        [finding] = migrations.check(database)
    assert 'has no cronjobs tables: run "cronjobs db upgrade"' in finding


# --- does this code run on this schema ------------------------------------------------------------------------------


def test_a_missing_table_is_told_and_the_transaction_goes_on(empty_url: str) -> None:
    with opened(empty_url) as database, database.read() as connection:
        with pytest.raises(SchemaMissing) as caught:
            require_schema(connection)
        assert connection.execute(text("SELECT 1")).scalar() == 1
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("revision", "oldest_code", "error"),
    [
        (SCHEMA_REVISION, SCHEMA_REVISION, None),
        ("0000", "0000", SchemaTooOld),
        ("9999", SCHEMA_REVISION, None),  # a newer schema that says this code may run on it
        ("9999", "9999", SchemaTooNew),
    ],
)
def test_the_schema_says_which_code_runs_on_it(
    database: Database, revision: str, oldest_code: str, error: type[CronjobsError] | None
) -> None:
    with database.write() as connection:
        for table, column, value in (
            ("cronjobs_meta", "schema_revision", revision),
            ("cronjobs_meta", "oldest_code", oldest_code),
            ("cronjobs_alembic_version", "version_num", revision),
        ):
            connection.execute(text(f"UPDATE {table} SET {column} = :value"), {"value": value})
        if error is None:
            assert require_schema(connection).schema_revision == revision
        else:
            with pytest.raises(error):
                require_schema(connection)
    if error is SchemaTooNew:
        with pytest.raises(SchemaTooNew):
            migrations.upgrade(database)
    elif revision == "9999":
        assert migrations.upgrade(database) == ("9999", "9999")
        assert migrations.check(database) == []


def test_adopting_writes_project_and_environment_and_the_audit_trail(database: Database) -> None:
    with database.write() as connection:
        assert adopt(connection, "shop", "staging", "anna").project == ""
        assert adopt(connection, "shop", "staging", "anna").project == "shop"  # nothing to do, nothing written
        assert adopt(connection, "shop", "production", None).environment == "staging"
        found = read_meta(connection)
        trail = connection.execute(metadata.tables["cronjobs_audit"].select()).all()
    assert (found.project, found.environment) == ("shop", "production")
    assert [(entry.action, entry.subject, entry.detail["environment"]) for entry in trail] == [
        ("adopt", "shop", {"from": "", "to": "staging"}),
        ("adopt", "shop", {"from": "staging", "to": "production"}),
    ]
    assert trail[0].actor == "anna"


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


def test_plain_alembic_upgrades_and_finds_nothing_to_change(empty_url: str) -> None:
    for arguments in (("upgrade", "head"), ("check",), ("current",)):
        done = alembic(*arguments, CRONJOBS_DATABASE_URL=empty_url)
        assert done.returncode == 0, done.stderr
    assert f"{SCHEMA_REVISION} (head)" in done.stdout
    with opened(empty_url) as database:
        assert migrations.check(database) == []


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
    assert "which database? Set CRONJOBS_DATABASE_URL" in done.stderr


# --- the PostgreSQL function ----------------------------------------------------------------------------------------


@pytest.fixture
def psql(postgres_migrated: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_migrated, autocommit=True) as connection:
        yield connection


def test_enqueue_by_one_select(psql: psycopg.Connection) -> None:
    assert psql.execute("""SELECT cronjobs_enqueue('t.say', '{"line":"x"}')""").rowcount == 1
    assert psql.execute("SELECT job_type, payload, queue, priority FROM cronjobs_jobs").fetchall() == [
        ("t.say", {"line": "x"}, "default", 5)
    ]


def test_enqueue_takes_everything_by_name(psql: psycopg.Connection) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    arguments = {
        "job_type": "t",
        "payload": json.dumps({"a": 1}),
        "run_at": at,
        "queue": "mail",
        "priority": 1,
        "idempotency_key": "k",
        "concurrency_key": "smtp:a",
        "max_attempts": 3,
        "timeout_s": 1.5,
        "meta": json.dumps({"trace": "x"}),
    }
    by_name = ", ".join(f"{name} => %({name})s" for name in arguments)
    [(job_id, new, status)] = psql.execute(f"SELECT * FROM cronjobs_enqueue({by_name})".encode(), arguments).fetchall()
    assert (new, status) == (True, "queued")
    columns = ", ".join(arguments)
    row = psql.execute(f"SELECT {columns} FROM cronjobs_jobs WHERE id = {job_id}".encode()).fetchone()
    assert row == tuple(json.loads(a) if isinstance(a, str) and a[0] == "{" else a for a in arguments.values())


def test_enqueue_in_a_while(psql: psycopg.Connection) -> None:
    psql.execute("SELECT cronjobs_enqueue('t', delay => '5 min')")
    [(delay,)] = psql.execute("SELECT run_at - created_at FROM cronjobs_jobs").fetchall()
    assert delay == timedelta(minutes=5)


def test_a_key_that_is_spent_gives_back_its_job(psql: psycopg.Connection) -> None:
    call = "SELECT * FROM cronjobs_enqueue('t', idempotency_key => 'k')"
    [(first, new, _)] = psql.execute(call).fetchall()
    psql.execute("UPDATE cronjobs_jobs SET status = 'dead', finished_at = now()")
    assert new
    assert psql.execute(call).fetchall() == [(first, False, "dead")]
    assert psql.execute("SELECT count(*) FROM cronjobs_jobs").fetchone() == (1,)


def test_a_key_in_an_open_transaction_is_waited_for_and_then_taken(postgres_migrated: str) -> None:
    call = "SELECT * FROM cronjobs_enqueue('t', idempotency_key => 'k')"
    for ending, new in (("ROLLBACK", True), ("COMMIT", False)):
        with (
            psycopg.connect(postgres_migrated, autocommit=True) as one,
            psycopg.connect(postgres_migrated, autocommit=True) as two,
        ):
            one.execute("DELETE FROM cronjobs_jobs")
            one.execute("BEGIN")
            [(first, _, _)] = one.execute(call).fetchall()
            found: list[tuple[object, ...]] = []
            waiting = threading.Thread(target=lambda two=two, found=found: found.extend(two.execute(call)))
            waiting.start()
            waits = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
            while one.execute(waits, [two.info.backend_pid]).fetchone() != ("Lock",):
                pass
            one.execute(ending.encode())
            waiting.join(30)
        assert [(row[0] == first, row[1]) for row in found] == [(not new, new)]


def test_enqueue_belongs_to_the_callers_transaction(psql: psycopg.Connection) -> None:
    psql.execute("BEGIN")
    psql.execute("SELECT cronjobs_enqueue('t')")
    psql.execute("ROLLBACK")
    assert psql.execute("SELECT count(*) FROM cronjobs_jobs").fetchone() == (0,)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("''", "job_type is empty"),
        ("NULL", "job_type is empty"),
        ("'t', '[1]'", "payload is a JSON object, not of type array"),
        ("'t', run_at => now(), delay => '1 min'", "not both"),
        ("'t', idempotency_key => ''", "idempotency_key is empty"),
        ("'t', priority => 10", "cronjobs_jobs_priority_ck"),
    ],
)
def test_enqueue_refuses_what_cannot_be_meant(psql: psycopg.Connection, arguments: str, said: str) -> None:
    with pytest.raises(psycopg.Error, match=said):
        psql.execute(f"SELECT cronjobs_enqueue({arguments})".encode())


@pytest.mark.parametrize("schema", [None, "jobs"])
def test_enqueue_finds_its_tables_whatever_the_search_path(postgres_url: str, schema: str | None) -> None:
    with opened(postgres_url, schema) as database:
        migrations.upgrade(database)
    there = schema or "public"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            b"CREATE SCHEMA trap; CREATE TABLE trap.cronjobs_jobs (LIKE %s.cronjobs_jobs)" % there.encode()
        )
        connection.execute(b"CREATE TEMPORARY TABLE cronjobs_jobs (LIKE %s.cronjobs_jobs)" % there.encode())
        connection.execute("SET search_path = trap")
        connection.execute(f"SELECT {there}.cronjobs_enqueue('t')".encode())
        counts = connection.execute(
            f"SELECT (SELECT count(*) FROM {there}.cronjobs_jobs), (SELECT count(*) FROM trap.cronjobs_jobs), "
            "(SELECT count(*) FROM pg_temp.cronjobs_jobs)".encode()
        ).fetchone()
    assert counts == (1, 0, 0)


def test_enqueue_has_only_the_callers_rights(postgres_migrated: str, psql: psycopg.Connection) -> None:
    psql.execute("CREATE ROLE stranger NOLOGIN")
    try:
        psql.execute("SET ROLE stranger")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            psql.execute("SELECT cronjobs_enqueue('t')")
    finally:
        psql.execute("RESET ROLE")
        psql.execute("DROP ROLE stranger")


# --- import cost ----------------------------------------------------------------------------------------------------


def test_only_migrations_imports_alembic() -> None:
    program = (
        "import sys, cronjobs.database, cronjobs.store.meta, cronjobs.testing; "
        "sys.exit(any(name.partition('.')[0] in ('alembic', 'mako') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
