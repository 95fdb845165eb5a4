"""``cronjobs db grants``: each role can do no more than its work. The other tests show that it can do all its work."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from support.databases import in_psql, opened
from support.postgres import ENQUEUE, OWNER, READ, RUN, PostgresServer, as_role
from support.project import Project

from cronjobs.engine.database.tables import metadata
from cronjobs.engine.schema import migrations
from cronjobs.engine.schema.grants import RELATIONS, Role, statements
from cronjobs.engine.schema.grants import RUN as RUN_RIGHTS

REFUSED = [
    (RUN, "DROP TABLE cronjobs_jobs"),
    (RUN, "TRUNCATE cronjobs_ticks"),
    (RUN, "ALTER TABLE cronjobs_jobs ADD COLUMN mine int"),
    (RUN, "CREATE TABLE mine (id int)"),
    (RUN, "UPDATE cronjobs_audit SET actor = 'nobody'"),
    (RUN, "DELETE FROM cronjobs_audit"),
    (RUN, "UPDATE cronjobs_meta SET schema_revision = '0000'"),
    (RUN, "UPDATE cronjobs_alembic_version SET version_num = '0000'"),
    (ENQUEUE, "SELECT payload FROM cronjobs_jobs"),
    (ENQUEUE, "SELECT * FROM cronjobs_dead_jobs"),
    (ENQUEUE, "UPDATE cronjobs_jobs SET status = 'queued'"),
    (ENQUEUE, "UPDATE cronjobs_jobs SET locked_by = NULL"),
    (ENQUEUE, "INSERT INTO cronjobs_jobs (job_type, attempts) VALUES ('t', 3)"),
    (ENQUEUE, "INSERT INTO cronjobs_jobs (id, job_type) VALUES (3, 't')"),
    (ENQUEUE, "INSERT INTO cronjobs_jobs (job_type, schedule) VALUES ('t', 'nightly')"),
    (ENQUEUE, "SELECT by FROM cronjobs_pauses"),
    (ENQUEUE, "SELECT 1 FROM cronjobs_meta FOR NO KEY UPDATE"),  # this lock would keep all limited jobs from starting
    (ENQUEUE, "DELETE FROM cronjobs_jobs"),
    (ENQUEUE, "UPDATE cronjobs_queues SET max_waiting = NULL"),
    (ENQUEUE, "SELECT * FROM cronjobs_audit"),
    (ENQUEUE, "UPDATE cronjobs_meta SET project = 'mine'"),
    (READ, "INSERT INTO cronjobs_jobs (job_type) VALUES ('t')"),
    (READ, "SELECT cronjobs_enqueue('t')"),
    (READ, "UPDATE cronjobs_jobs SET priority = 0"),
    (READ, "DELETE FROM cronjobs_effects"),
    (READ, "SELECT id FROM cronjobs_jobs FOR UPDATE"),
]


@pytest.mark.parametrize(("role", "statement"), REFUSED)
def test_a_role_cannot_do_what_is_not_its_own(template_url: str, role: str, statement: str) -> None:
    with psycopg.connect(as_role(template_url, role)) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement.encode())
        connection.rollback()


@pytest.fixture(scope="module")
def template_url(_server: PostgresServer, _postgres_template: str) -> str:
    """The migrated database that all are copied from: nothing may be committed in it."""
    return _server.url(_postgres_template)


def test_a_reader_sees_every_table_and_view(template_url: str) -> None:
    with psycopg.connect(as_role(template_url, READ)) as connection:
        for relation in RELATIONS:
            connection.execute(f"SELECT * FROM {relation}".encode())
        connection.rollback()


def test_every_table_has_rights_for_who_runs() -> None:
    assert {*metadata.tables} <= {*RUN_RIGHTS}


def test_a_right_that_is_no_longer_due_goes_with_the_next_run(postgres_migrated: str) -> None:
    owner = as_role(postgres_migrated, OWNER)
    in_psql(
        owner, f"GRANT SELECT ON cronjobs_audit TO {ENQUEUE}", f"GRANT UPDATE (status) ON cronjobs_jobs TO {ENQUEUE}"
    )
    for _ in range(2):
        in_psql(as_role(postgres_migrated, "postgres"), statements("public", {Role.ENQUEUE: ENQUEUE}))
    with psycopg.connect(as_role(postgres_migrated, ENQUEUE)) as connection:
        for statement in (b"SELECT * FROM cronjobs_audit", b"UPDATE cronjobs_jobs SET status = 'queued'"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
            connection.rollback()
        connection.execute("INSERT INTO cronjobs_jobs (job_type) VALUES ('t') RETURNING id")


def test_without_the_option_nobody_replaces(postgres_migrated: str) -> None:
    in_psql(as_role(postgres_migrated, "postgres"), statements("public", {Role.ENQUEUE: ENQUEUE}))
    with (
        psycopg.connect(as_role(postgres_migrated, ENQUEUE)) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("UPDATE cronjobs_jobs SET payload = '{}'")


@pytest.mark.usefixtures("_postgres_template")
def test_the_owner_takes_over_what_another_made(postgres_url: str) -> None:
    """A project that began with one user for everything."""
    with opened(postgres_url, "jobs") as database:
        migrations.upgrade(database)
    in_psql(postgres_url, statements("jobs", {Role.MIGRATE: OWNER}))
    with psycopg.connect(as_role(postgres_url, OWNER)) as connection:
        connection.execute("ALTER TABLE jobs.cronjobs_jobs ADD COLUMN mine int")
        connection.execute("CREATE OR REPLACE VIEW jobs.cronjobs_dead_jobs AS SELECT * FROM jobs.cronjobs_dead_jobs")
        connection.execute("DROP FUNCTION jobs.cronjobs_enqueue")


NAMES = {Role.MIGRATE: 'It"s the owner', Role.RUN: "o'run", Role.ENQUEUE: "en queue", Role.READ: "Read"}


def test_schema_and_names_may_be_anything(postgres_url: str) -> None:
    schema = 'Jobs\' "n" crons'
    try:
        in_psql(postgres_url, statements(schema, {Role.MIGRATE: NAMES[Role.MIGRATE]}))
        with opened(postgres_url, schema) as database:
            migrations.upgrade(database)
        for _ in range(2):
            in_psql(postgres_url, statements(schema, NAMES, replace=True))
        with psycopg.connect(postgres_url) as connection:
            connection.execute('SET ROLE "en queue"')
            connection.execute("""SELECT "Jobs' ""n"" crons".cronjobs_enqueue('t')""")
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            for name in NAMES.values():
                quoted = '"' + name.replace('"', '""') + '"'
                connection.execute(f"DROP OWNED BY {quoted} CASCADE".encode())
                connection.execute(f"DROP ROLE {quoted}".encode())


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.needs("desk")
def test_the_command_finds_the_schema_of_the_tables(postgres_migrated: str, tmp_path: Path) -> None:
    project = Project(tmp_path, postgres_migrated)
    project.write()
    answer = project.call("db", "grants", "--role", "run=app_jobs", "--role", "read=bi")
    assert answer.code == 0
    assert answer.out == statements("public", {Role.RUN: "app_jobs", Role.READ: "bi"}) + "\n"
    project.write("schema: jobs\n")
    assert 'GRANT USAGE ON SCHEMA "jobs" TO "cronjobs_enqueue"' in project.call("db", "grants").out


@pytest.mark.needs("desk")
def test_an_upgrade_names_the_roles_that_lack_rights_on_new_tables(postgres_migrated: str, tmp_path: Path) -> None:
    project = Project(tmp_path, as_role(postgres_migrated, OWNER))
    project.write()
    assert "role" not in project.call("db", "upgrade").err
    in_psql(as_role(postgres_migrated, OWNER), f"REVOKE ALL ON cronjobs_tokens FROM {RUN}, {READ}, {ENQUEUE}")
    told = project.call("db", "upgrade").err.splitlines()
    assert [line.partition(":")[0] for line in told] == [
        f"the role {role} has no rights on cronjobs_tokens" for role in sorted((RUN, READ))
    ]


@pytest.mark.needs("desk")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "SQLite has no roles"),
        (("--schema", "s", "--role", "ruin=app"), "kinds are migrate, run, enqueue, read"),
        (("--schema", "s", "--role", "run"), "is not KIND=NAME"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path}/jobs.db")
    project.write()
    answer = project.call("db", "grants", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


@pytest.mark.needs("desk")
def test_an_app_can_use_the_command_to_enqueue(postgres_migrated: str, tmp_path: Path) -> None:
    in_psql(as_role(postgres_migrated, OWNER), "INSERT INTO cronjobs_pauses (scope, name) VALUES ('queue', 'mail')")
    project = Project(tmp_path, as_role(postgres_migrated, ENQUEUE))
    project.write()
    answer = project.call("enqueue", "t.say", "--queue", "mail", "--no-import")
    assert (answer.code, answer.err) == (0, "the job waits, because its queue is paused\n")
    assert answer.out == "job 1 enqueued, due now\n"
