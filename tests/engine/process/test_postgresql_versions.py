"""The oldest PostgreSQL that is promised, one that is too old, and PgBouncer in transaction mode between us and it.

CI runs the store and tick tests once more on that oldest version, CRONJOBS_TEST_POSTGRESQL=14.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import psycopg
import pytest
from support.databases import opened, until
from support.postgres import PostgresServer, as_nobody, free_port
from support.ticking import Project

from cronjobs import job
from cronjobs.engine.database.connection import OLDEST_SERVER
from cronjobs.engine.jobs import registry
from cronjobs.engine.schema import drift
from cronjobs.errors import ServerTooOld
from cronjobs.testing import tick


@pytest.fixture(autouse=True)
def _handlers_of_one_test() -> Iterator[None]:
    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)


@pytest.fixture
def server_of() -> Iterator[Callable[[str], PostgresServer]]:
    started: list[PostgresServer] = []

    def start(version: str) -> PostgresServer:
        server = PostgresServer(version)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.remove()


@pytest.mark.slow
def test_on_the_oldest_promised_version_jobs_run_and_db_check_finds_nothing(
    server_of: Callable[[str], PostgresServer],
) -> None:
    url = server_of(str(OLDEST_SERVER)).url()
    ran = []

    @job("t.work")
    def work() -> None:
        ran.append(True)

    tick(url)
    with psycopg.connect(url, autocommit=True) as plain:
        plain.execute("INSERT INTO cronjobs_jobs (job_type) VALUES ('t.work')")
        assert plain.info.server_version // 10_000 == OLDEST_SERVER
    tick(url)
    assert ran == [True]
    with opened(url) as database, database.read() as connection:
        assert drift.find(connection) == []


@pytest.mark.slow
def test_a_version_that_is_too_old_is_one_sentence(server_of: Callable[[str], PostgresServer]) -> None:
    with (
        pytest.raises(ServerTooOld, match="is PostgreSQL 13: cronjobs needs 14 or later"),
        opened(server_of("13").url()) as database,
        database.read(),
    ):
        pass


# --- PgBouncer --------------------------------------------------------------------------------------------------------


def pgbouncer() -> str:
    """Debian's, which is installed where it is missing and may be."""
    path = os.environ["PATH"] + ":/usr/sbin"
    found = shutil.which("pgbouncer", path=path)
    if found is None:
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        lock = "-o", "DPkg::Lock::Timeout=120"
        for words in (["update"], ["install", "-y", "--no-install-recommends", "pgbouncer"]):
            subprocess.run(["apt-get", "-qq", *lock, *words], env=environment, check=True, capture_output=True)
        found = shutil.which("pgbouncer", path=path)
    assert found, "the tests need pgbouncer: apt-get install pgbouncer"
    return found


@pytest.fixture
def pooled_url(postgres_migrated: str, postgres_server: PostgresServer) -> Iterator[str]:
    """The migrated database through PgBouncer in transaction mode, with fewer server connections than we open."""
    program, port = pgbouncer(), free_port()
    folder = postgres_server.folder / f"pgbouncer-{port}"
    folder.mkdir()
    with psycopg.connect(postgres_migrated) as plain:
        info = plain.info
        (folder / "users").write_text(f'"{info.user}" "{info.password}"\n')
        server_port = info.port
        database = f"host={info.host} port={server_port} user={info.user} password={info.password}"
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = {database}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = plain\nauth_file = {folder}/users\npool_mode = transaction\ndefault_pool_size = 3\n"
        f"max_client_conn = 100\nserver_check_query = select 1\nlogfile = {folder}/log\npidfile =\n"
    )
    # It refuses to be root, and nobody else may enter pytest's folder: it is in the server's, who is nobody, too.
    if os.geteuid() == 0:
        for each in (folder, *folder.iterdir()):
            shutil.chown(each, "nobody")
    process = subprocess.Popen([program, str(folder / "pgbouncer.ini")], stderr=subprocess.DEVNULL, **as_nobody())
    url = postgres_migrated.replace(f":{server_port}/", f":{port}/")

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        until(answers)
        yield url
    finally:
        process.terminate()
        process.wait(20)


HANDLERS = """
@job("t.in_transaction")
def in_transaction(ctx):
    with ctx.transaction() as connection:
        connection.exec_driver_sql("SELECT 1")
        say("ran", ctx)


@job("t.effect")
def effect(ctx):
    with ctx.effect(("once", ctx.job_id)) as once:
        say("ran", ctx)
        once.result = {"name": "José 🎉"}
"""
YAML = """\
run: {workers: 8}
limits: {"one:": 1}
schedules: {each: {every: 1m, job: t.quick}}
"""
LEFT_BEHIND = ("SET DateStyle = 'German'", "SET TimeZone = 'Asia/Kathmandu'", "SET client_encoding = 'LATIN1'")


@pytest.mark.slow
def test_everything_works_through_pgbouncer_in_transaction_mode(
    pooled_url: str, postgres_migrated: str, new_project: Callable[[str], Project]
) -> None:
    """Two ticks at once, and other clients of the pool, whose settings stay on the server's connections."""
    project = new_project(pooled_url).configure(YAML, HANDLERS)
    direct = Project(project.folder, postgres_migrated)
    for job_type in ("t.quick", "t.in_transaction", "t.effect"):
        for n in range(10):
            direct.add(job_type, "{}", concurrency_key="one:a" if n < 2 else f"other:{n}")
    with psycopg.connect(pooled_url, autocommit=True) as rude:
        for statement in LEFT_BEHIND:
            rude.execute(statement.encode())
    ticks = [project.start("-v"), project.start("-v")]
    assert [each.wait() for each in ticks] == [0, 0], [each.stderr for each in ticks]
    assert direct.statuses() == {"succeeded": 30}, [each.stderr for each in ticks]
    assert set(project.times_ran().values()) == {1}
