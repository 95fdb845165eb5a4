"""Addresses, one-line errors, files that only their owner can read, and the order of writers."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from support.databases import opened
from support.nofsync import with_fsync
from support.postgres import PostgresServer

from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database, as_database_error
from cronjobs.engine.schema import migrations
from cronjobs.engine.store.sql import database_now
from cronjobs.errors import DatabaseBusy, DatabaseError, DatabaseUnreachable, DriverMissing, SqliteTooOld, UsageError
from cronjobs.testing import FakeClock

# --- addresses ------------------------------------------------------------------------------------------------------

PSYCOPG = "postgresql+psycopg://u:p@h:5433/d"


@pytest.mark.parametrize(
    ("written", "used", "schema"),
    [
        ("postgres://u:p@h:5433/d", PSYCOPG, None),
        ("postgresql://u:p@h:5433/d", PSYCOPG, None),
        ("postgresql+psycopg://u:p@h:5433/d", PSYCOPG, None),
        ("postgresql+psycopg2://u:p@h:5433/d", PSYCOPG, None),
        ("postgresql+asyncpg://u:p@h:5433/d", PSYCOPG, None),
        ("postgres+asyncpg://u:p@h:5433/d", PSYCOPG, None),
        ("postgresql+asyncpg://u:p@h:5433/d?ssl=require", PSYCOPG + "?sslmode=require", None),
        ("postgresql+asyncpg://u:p@h:5433/d?prepared_statement_cache_size=0", PSYCOPG, None),
        ("postgres://u:p@h:5433/d?sslmode=verify-full", PSYCOPG + "?sslmode=verify-full", None),
        ("postgresql://u:p@h:5433/d?schema=app", PSYCOPG, "app"),
        ("postgresql://u:p@h:5433/d?schema=app&connection_limit=5&pgbouncer=true", PSYCOPG, "app"),
        ("postgresql:///d?host=/run/postgresql", "postgresql+psycopg:///d?host=%2Frun%2Fpostgresql", None),
        (
            "postgresql://u:p@one:5433,two/d?target_session_attrs=read-write",
            "postgresql+psycopg://u:p@/d?host=one%3A5433&host=two&target_session_attrs=read-write",
            None,
        ),
        ("postgresql://u:p%40%2Fs@h/d", "postgresql+psycopg://u:p%40%2Fs@h/d", None),
        ("postgresql://u:p@s@h/d", "postgresql+psycopg://u:p%40s@h/d", None),
        ("postgresql://u:p#/?s@h/d", "postgresql+psycopg://u:p%23%2F%3Fs@h/d", None),
        ("postgresql://u:p@h/d?application_name=a@b", "postgresql+psycopg://u:p@h/d?application_name=a%40b", None),
        ("postgresql://u:p@h/d?sslpassword=a@b", "postgresql+psycopg://u:p@h/d?sslpassword=a%40b", None),
        ("sqlite:////var/lib/app/jobs.db", "sqlite+pysqlite:////var/lib/app/jobs.db", None),
        ("sqlite+aiosqlite:////var/lib/app/jobs.db", "sqlite+pysqlite:////var/lib/app/jobs.db", None),
        ("sqlite+pysqlite:////var/lib/app/jobs.db", "sqlite+pysqlite:////var/lib/app/jobs.db", None),
    ],
)
def test_a_url_is_taken_as_apps_write_it(written: str, used: str, schema: str | None) -> None:
    address = parse_url(written)
    assert (address.url.render_as_string(hide_password=False), address.schema) == (used, schema)


def test_a_relative_sqlite_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_url("sqlite:///jobs.db").url.database == str(tmp_path / "jobs.db")


def test_a_schema_that_is_asked_for_wins_over_the_urls() -> None:
    assert parse_url("postgresql://h/d?schema=app", "jobs").schema == "jobs"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("mysql://u:hunter2@h/d", "not mysql://"),
        ("oracle+thin://u:hunter2@h/d", "not oracle://"),
        ("u:hunter2@h/d", "not a database URL"),
        ("postgresql://u:hunter2@h:port/d", "cannot be read"),
        ("postgresql://u:p@ss#hunter2@h/d", "a second @. In the user, password and database name, write @ as %40"),
        ("postgresql://u:p@ss/hunter2@h/d", "a second @"),
        ("postgresql://u:p@ss?hunter2@h/d", "a second @"),
        ("postgresql://u:p@ss?n=hunter2@h/d", "a second @"),
        ("postgresql://u:p#ss@hunter2@h/d", "a second @"),
        ("", "the URL is empty"),
        ("sqlite://hunter2.db", "three slashes"),
        ("sqlite://", "in-memory"),
        ("sqlite:///:memory:", "in-memory"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_without_its_password(written: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_url(written)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "written",
    [
        "postgresql://u:hunter2@h/d",
        "postgresql://u:hunter2@one:5433,two/d",
        "postgresql://u@h/d?password=hunter2",
        "postgresql://h/d?sslpassword=hunter2",
    ],
)
def test_an_address_never_shows_its_password(written: str) -> None:
    assert "hunter2" not in str(parse_url(written))


# --- errors: one line, no secret ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("password", "said"), [("ro", "cronjobs_jobs of ro"), ("jobs-4711", "cronjobs_jobs of ***")])
def test_a_password_that_is_part_of_many_words_is_not_masked(password: str, said: str) -> None:
    error = DBAPIError("SELECT 1", None, Exception(f"permission denied for table cronjobs_jobs of {password}"))
    assert said in str(as_database_error(parse_url(f"postgresql://app:{password}@db/shop"), error))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("secret-", "wrong-secret-"), "password authentication failed"),
        (("127.0.0.1:", "127.0.0.1:1"), "refused|[Ii]nvalid port"),
        (("/test_", "/missing_"), "does not exist"),
        (("@127.0.0.1", "@no-such-host.invalid"), "resol|not known"),
    ],
    ids=["password", "port", "database", "host"],
)
def test_a_database_out_of_reach_is_one_line_without_a_secret(
    postgres_url: str, change: tuple[str, str], said: str
) -> None:
    password = str(parse_url(postgres_url).url.password)
    with (
        opened(postgres_url.replace(*change, 1)) as database,
        pytest.raises(DatabaseUnreachable, match=said) as caught,
        database.read(),
    ):
        pass
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert password not in sentence
    assert caught.value.exit_code == 4


def test_a_refusal_of_two_addresses_is_one_line(postgres_url: str) -> None:
    refused = "port 1 failed: Connection refused; Is the server running on that host and accepting TCP/IP connections? "
    with (
        opened("postgresql://app@127.0.0.1:1,127.0.0.1:1/shop") as database,
        pytest.raises(DatabaseUnreachable) as caught,
        database.read(),
    ):
        pass
    assert f"{refused}Multiple connection attempts failed. All failures were: - host: " in str(caught.value)


def test_a_statement_that_is_wrong_is_not_a_database_out_of_reach(database: Database) -> None:
    with pytest.raises(DatabaseError, match="no_such_table") as caught, database.read() as connection:
        connection.execute(text("SELECT * FROM no_such_table"))
    assert not isinstance(caught.value, DatabaseUnreachable)


def test_an_error_of_the_block_itself_is_left_alone(database: Database) -> None:
    with pytest.raises(FileNotFoundError), database.write():
        Path("/no/such/file").read_text()


def test_a_server_that_crashes_in_mid_transaction_is_out_of_reach_and_back_again(
    postgres_migrated: str, postgres_server: PostgresServer
) -> None:
    with opened(postgres_migrated) as database:
        with pytest.raises(DatabaseUnreachable), database.write() as connection:  # noqa: PT012
            connection.execute(text("INSERT INTO cronjobs_jobs (job_type) VALUES ('t')"))
            postgres_server.kill()
            connection.execute(text("SELECT 1"))
        postgres_server.start()
        with database.read() as connection:
            assert connection.execute(text("SELECT count(*) FROM cronjobs_jobs")).scalar() == 0


def test_a_file_that_is_no_database_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_text("this is not a database, whatever its name is" * 30)
    with (
        opened(f"sqlite:///{tmp_path}/jobs.db") as database,
        pytest.raises(DatabaseError, match="not a database") as caught,
        database.read(),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_without_the_driver_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DriverMissing) as caught:
        Database(parse_url("postgres://u:hunter2@h/d"))
    assert str(caught.value) == (
        "database postgresql://u:***@h/d needs the PostgreSQL driver: pip install 'cronjobs[postgres]'"
    )


def test_an_sqlite_that_is_too_old_is_one_sentence_and_no_file_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")
    with pytest.raises(SqliteTooOld, match=r"this Python has SQLite 3\.34\.1, but cronjobs needs 3\.35 or later"):
        Database(parse_url(f"sqlite:///{tmp_path}/jobs.db"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match=f"there is no folder {tmp_path}/missing"):
        Database(parse_url(f"sqlite:///{tmp_path}/missing/jobs.db"))


# --- what a transaction leaves behind -------------------------------------------------------------------------------


def test_a_write_is_committed_and_a_read_is_not(database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("INSERT INTO cronjobs_jobs (job_type) VALUES ('kept')"))
    with database.read() as connection:
        connection.execute(text("INSERT INTO cronjobs_jobs (job_type) VALUES ('gone')"))
    with database.read() as connection:
        assert list(connection.execute(text("SELECT job_type FROM cronjobs_jobs")).scalars()) == ["kept"]


def test_a_write_that_fails_is_rolled_back_and_the_next_one_works(database: Database) -> None:
    with pytest.raises(ZeroDivisionError), database.write() as connection:  # noqa: PT012
        connection.execute(text("INSERT INTO cronjobs_jobs (job_type) VALUES ('gone')"))
        raise ZeroDivisionError
    with database.write() as connection:
        assert connection.execute(text("SELECT count(*) FROM cronjobs_jobs")).scalar() == 0


def test_timeouts_of_a_transaction_end_with_it(postgres_migrated: str) -> None:
    with opened(postgres_migrated) as database, database.write() as connection:
        inside = connection.execute(text("SHOW lock_timeout")).scalar()
        connection.exec_driver_sql("COMMIT")
        outside = connection.exec_driver_sql("SHOW lock_timeout").scalar()
    assert (inside, outside) == ("2s", "0")


@pytest.mark.parametrize(("left_s", "waits_ms"), [(3, (2000, 2000)), (1, (800, 1000)), (-5, (200, 200))])
def test_no_statement_waits_for_a_lock_beyond_the_commands_deadline(
    postgres_migrated: str, left_s: float, waits_ms: tuple[int, int]
) -> None:
    with opened(postgres_migrated) as database:
        database.give_up_at = database.clock.monotonic() + left_s
        for transaction in (database.read, database.write):
            with transaction() as connection:
                asked = "SELECT CAST(setting AS int) FROM pg_settings WHERE name = 'lock_timeout'"
                assert waits_ms[0] <= connection.exec_driver_sql(asked).scalar_one() <= waits_ms[1]


# --- time -----------------------------------------------------------------------------------------------------------


def test_the_databases_now_is_the_fake_clocks(database: Database, clock: FakeClock) -> None:
    for instant in (datetime(2019, 3, 31, 1, 30, tzinfo=UTC), datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC)):
        clock.set(instant)
        with database.read() as connection:
            now = database_now(connection)
        assert instant <= now < instant + timedelta(seconds=5)


def test_the_fake_clock_stands_still_until_it_is_moved() -> None:
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    before = clock.monotonic()
    assert clock.now() == clock.now() == datetime(2026, 1, 1, tzinfo=UTC)
    assert clock.advance(timedelta(hours=1)) == clock.now() == datetime(2026, 1, 1, 1, tzinfo=UTC)
    assert 3600 <= clock.monotonic() - before < 3660


def test_the_monotonic_clock_never_steps_back() -> None:
    clock = FakeClock()
    before = clock.monotonic()
    clock.advance(timedelta(days=-1))
    assert clock.monotonic() >= before


def test_a_clock_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        FakeClock(datetime(2026, 1, 1))  # noqa: DTZ001


# --- SQLite: the file -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_only_the_owner_reads_the_files_whatever_crons_umask(sqlite_url: str, umask: int) -> None:
    old = os.umask(umask)
    try:
        with opened(sqlite_url) as database:
            migrations.upgrade(database)
            files = list(Path(str(database.address.url.database)).parent.iterdir())
            assert {file.name for file in files} >= {"cronjobs.db", "cronjobs.db-wal", "cronjobs.db-turn"}
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    finally:
        os.umask(old)


def test_a_commit_survives_a_power_cut_and_readers_do_not_wait(sqlite_url: str) -> None:
    with with_fsync(), opened(sqlite_url) as database, database.read() as connection:
        settings = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert settings == ["wal", 2, 1]


def test_a_lock_file_behind_a_symlink_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "cronjobs.db-turn").symlink_to(tmp_path / "elsewhere")
    with opened(sqlite_url) as database, pytest.raises(DatabaseError, match=r"cronjobs\.db-turn"), database.write():
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_nobody_writes_between_what_a_transaction_reads_and_what_it_writes(sqlite_migrated: str) -> None:
    """A deferred one would be refused at its own write as soon as somebody did."""
    with (
        closing(sqlite3.connect(sqlite_migrated, timeout=0, isolation_level=None)) as foreign,
        opened(f"sqlite:///{sqlite_migrated}") as database,
        database.write() as connection,
    ):
        connection.execute(text("SELECT count(*) FROM cronjobs_jobs")).scalar()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            foreign.execute("INSERT INTO cronjobs_jobs (job_type) VALUES ('foreign')")
        connection.execute(text("INSERT INTO cronjobs_jobs (job_type) VALUES ('ours')"))


# --- SQLite: whose turn ---------------------------------------------------------------------------------------------

WRITER = """
import sys
from sqlalchemy import text
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
url, name, writes, hold = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
database = Database(parse_url(url))
with database.read() as connection:
    connection.execute(text("SELECT 1"))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(writes):
    with database.write(patience=60) as connection:
        connection.execute(text("INSERT INTO cronjobs_jobs (job_type) VALUES (:name)"), {"name": name})
        if hold:
            end = database.clock.monotonic() + hold
            while database.clock.monotonic() < end:
                pass
"""


@pytest.mark.slow
def test_two_processes_that_write_take_turns(sqlite_migrated: str) -> None:
    """With SQLite's own busy handler, or one lock that is polled for, one of them takes nearly all the turns."""
    url = f"sqlite:///{sqlite_migrated}"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, url, name, "40", "0.01"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    with closing(sqlite3.connect(sqlite_migrated)) as connection:
        order = "".join(name for (name,) in connection.execute("SELECT job_type FROM cronjobs_jobs ORDER BY id"))
    assert len(order) == 80
    both = order[order.index("b" if order[0] == "a" else "a") : max(order.index("a"), order.index("b")) + 60]
    assert "aaaa" not in both
    assert "bbbb" not in both


def test_a_foreign_lock_on_the_database_gives_busy_after_the_patience(sqlite_migrated: str) -> None:
    with (
        closing(sqlite3.connect(sqlite_migrated, isolation_level=None)) as foreign,
        opened(f"sqlite:///{sqlite_migrated}") as database,
    ):
        foreign.execute("BEGIN IMMEDIATE")
        with (
            pytest.raises(DatabaseBusy, match=r"by another connection \(this try waited 0\.[12]s\)"),
            database.write(patience=0.1),
        ):
            pass
        foreign.execute("ROLLBACK")
        with database.write(patience=0.1):
            pass


@pytest.mark.parametrize(("held", "busy"), [("turn", True), ("next", False)])
def test_a_process_that_is_stopped_at_its_turn_makes_us_busy_and_one_that_waits_is_passed(
    sqlite_migrated: str, held: str, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cronjobs.engine.database.sqlite_turns.GO_PAST_S", 0.1)
    with Path(f"{sqlite_migrated}-{held}").open("w") as file, opened(f"sqlite:///{sqlite_migrated}") as database:
        fcntl.flock(file, fcntl.LOCK_EX)
        if busy:
            with pytest.raises(DatabaseBusy), database.write(patience=0.3):
                pass
            fcntl.flock(file, fcntl.LOCK_UN)
        with database.write(patience=0.3):
            pass


def test_a_writer_under_a_fake_clock_gives_up_too(sqlite_migrated: str) -> None:
    database = Database(parse_url(f"sqlite:///{sqlite_migrated}"), clock=FakeClock())
    try:
        with Path(f"{sqlite_migrated}-turn").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(DatabaseBusy), database.write(patience=0.05):
                pass
    finally:
        database.close()
