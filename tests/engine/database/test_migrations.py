"""Create the tables: concurrently, beside other tables, in a schema. What check finds, and which code may use them."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import psycopg
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import text
from support.databases import in_psql, opened, until
from support.postgres import OWNER, SUPERUSER, PostgresServer

from cronjobs.engine.database import retrying
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import FIRST_REVISION, SCHEMA_REVISION, metadata
from cronjobs.engine.schema import migrations
from cronjobs.engine.store import meta
from cronjobs.engine.store.meta import adopt, read_meta, require_schema
from cronjobs.errors import CronjobsError, DatabaseError, SchemaMissing, SchemaTooNew, SchemaTooOld

pytestmark = pytest.mark.connects_as(OWNER)

# --- upgrade --------------------------------------------------------------------------------------------------------


def test_the_newest_revision_is_the_one_this_code_knows() -> None:
    assert migrations.head() == SCHEMA_REVISION


def test_revisions_are_numbered_and_in_one_line() -> None:
    """Revisions are compared as text, so all must have four digits."""
    script = ScriptDirectory(str(migrations.script_location()))
    numbers = [revision.revision for revision in script.walk_revisions()][::-1]
    first = int(FIRST_REVISION)
    assert numbers == [f"{number:04d}" for number in range(first, first + len(numbers))]


def test_an_upgrade_says_from_where_to_where_and_then_finds_nothing_to_do(empty_url: str) -> None:
    with opened(empty_url) as database:
        assert migrations.current(database) is None
        assert migrations.upgrade(database) == (None, SCHEMA_REVISION)
        assert migrations.upgrade(database) == (SCHEMA_REVISION, SCHEMA_REVISION)
        assert migrations.current(database) == SCHEMA_REVISION
        assert migrations.check(database) == []


RACER = """
import sys
from cronjobs.engine.schema import migrations
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
print("ready", flush=True)
sys.stdin.readline()
database = Database(parse_url(sys.argv[1]))
print(*migrations.upgrade(database))
database.close()
"""


@pytest.mark.slow
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
    assert sorted(out.strip() for out, _ in said) == [f"{SCHEMA_REVISION} {SCHEMA_REVISION}"] * 2 + [
        f"None {SCHEMA_REVISION}"
    ]
    with opened(empty_url) as database:
        assert migrations.check(database) == []


@pytest.mark.slow
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

        monkeypatch.setattr(retrying, "sleep", pause)
        assert migrations.upgrade(database) == (None, SCHEMA_REVISION)
    assert len(pauses) == 2


def test_a_lock_that_is_never_given_up_ends_in_one_line(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_psql(postgres_url, "CREATE TABLE cronjobs_alembic_version (version_num varchar(32) NOT NULL PRIMARY KEY)")
    monkeypatch.setattr(migrations, "_SHORT_LOCKS", "SET LOCAL lock_timeout = '5ms'")
    monkeypatch.setattr(migrations, "_LOCK_TRIES", 3)
    monkeypatch.setattr(migrations, "_PAUSE_S", 0)
    with psycopg.connect(postgres_url) as app, opened(postgres_url) as database:
        app.execute("LOCK TABLE cronjobs_alembic_version IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(DatabaseError, match="locked by another") as caught:
            migrations.upgrade(database)
    assert "\n" not in str(caught.value)


def test_an_upgrade_waits_for_another_one(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as other, opened(postgres_url) as database:
        other.execute(migrations.upgrade_lock(None).encode())
        done: list[tuple[str | None, str]] = []
        waiting = threading.Thread(target=lambda: done.append(migrations.upgrade(database)))
        waiting.start()
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        until(lambda: other.execute(waits).fetchone() == (1,))
        assert not done
        other.rollback()
        waiting.join(30)
    assert done == [(None, SCHEMA_REVISION)]


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
        ["cronjobs_jobs: column run_at is «timestamp with time zone NOT NULL» but should be «timestamp with"],
    ),
    (
        "ALTER TABLE cronjobs_jobs ALTER COLUMN queue DROP NOT NULL",
        ["cronjobs_jobs: column queue is «text DEFAULT 'default'::text» but should be «text NOT NULL DEFAULT"],
    ),
    ("DROP FUNCTION cronjobs_enqueue", ["function cronjobs_enqueue is missing"]),
    ("ALTER SCHEMA public RENAME TO elsewhere; CREATE SCHEMA public", ["has no cronjobs tables"]),
    (
        "DELETE FROM cronjobs_alembic_version",
        ["cronjobs_alembic_version says revision None, but cronjobs_meta says 00"],
    ),
    ("UPDATE cronjobs_meta SET schema_revision = '0000'", ["is at revision 0000, from a version before 0.2.0"]),
    ("UPDATE cronjobs_meta SET schema_revision = '9999'", ["but cronjobs_meta says 9999: one of them was changed by"]),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGE)
def test_what_is_missing_or_changed_is_found(database: Database, damage: str, said: list[str]) -> None:
    found_after(database, damage, said)


@pytest.mark.connects_as(SUPERUSER)  # who may rename and make schemas
@pytest.mark.parametrize(("damage", "said"), DAMAGE_POSTGRESQL)
def test_what_is_missing_or_changed_on_postgresql_is_found(
    postgres_migrated: str, damage: str, said: list[str]
) -> None:
    with opened(postgres_migrated) as database:
        found_after(database, damage, said)


@pytest.mark.connects_as(OWNER)
def test_what_a_restored_dump_has_is_no_finding(postgres_migrated: str) -> None:
    """pg_dump writes each constraint as the server does, and the server then writes some of them otherwise."""
    checks = "SELECT conrelid::regclass, conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'c'"
    with opened(postgres_migrated) as database:
        with database.write() as connection:
            before = connection.exec_driver_sql(f"{checks} AND conname LIKE 'cronjobs_%%' ORDER BY 2").all()
            for table, name, definition in before:
                connection.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT {name}"))
                again = text(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}".replace(":", r"\:"))
                connection.execute(again)
            after = connection.exec_driver_sql(f"{checks} AND conname LIKE 'cronjobs_%%' ORDER BY 2").all()
        assert after != before
        assert migrations.check(database) == []


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
        "cronjobs_jobs: constraint cronjobs_jobs_priority_ck is «CHECK (priority >= 0)» but should be "
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


def test_tables_before_their_next_migration_are_too_old(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta, "SCHEMA_REVISION", f"{int(SCHEMA_REVISION) + 1:04d}")
    with database.read() as connection, pytest.raises(SchemaTooOld, match='run "cronjobs db upgrade"'):
        require_schema(connection)


def test_adopting_writes_project_and_environment_and_the_audit_trail(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRONJOBS_HOST", "web1")
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
    assert {entry.host for entry in trail} == {"web1"}


# --- import cost ----------------------------------------------------------------------------------------------------


def test_only_migrations_imports_alembic() -> None:
    program = (
        "import sys, cronjobs.engine.database.connection, cronjobs.engine.store.meta, cronjobs.testing; "
        "sys.exit(any(name.partition('.')[0] in ('alembic', 'mako') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
