"""Temporary database errors are retried within the tick's time, and every wait for the database ends."""

from __future__ import annotations

import re
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import OperationalError
from support.commands import started, until
from support.databases import opened
from support.postgres import PostgresServer
from support.ticking import Project, a_day_passes, due_six_hours_ago, events, patched

from cronjobs import errors
from cronjobs.clock import SYSTEM
from cronjobs.engine.database import retrying
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import as_database_error
from cronjobs.engine.database.retrying import TRIES, first_look, growing_pauses, patiently
from cronjobs.engine.probe.server_session import CONNECT_TIMEOUT_S, TIMEOUTS
from cronjobs.engine.schema import migrations
from cronjobs.errors import (
    DatabaseBusy,
    DatabaseDamaged,
    DatabaseError,
    DatabaseFull,
    DatabaseNotReady,
    DatabaseReadOnly,
    DatabaseUnreachable,
    TransientTrouble,
)
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.slow

NewProject = Callable[[str], Project]

SCHEDULES = f"schedules:\n  daily: {{{due_six_hours_ago()}, job: t.quick}}\n"

# --- how often, how long ----------------------------------------------------------------------------------------------


def test_pauses_grow_are_jittered_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda least, most: (least + most) / 2)
    assert list(growing_pauses(TRIES)) == [0.1, 0.2, 0.4, 0.8, 1.6, *[2.0] * (TRIES - 6)]
    for jitter, first in ((min, 0.075), (max, 0.125)):
        monkeypatch.setattr("random.uniform", jitter)
        assert next(growing_pauses()) == pytest.approx(first)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Instead of waiting, the pauses are noted."""
    seen: list[float] = []
    monkeypatch.setattr(retrying, "sleep", seen.append)
    return seen


class Refuses:
    """Raises *trouble*, so many times."""

    def __init__(self, *trouble: DatabaseError) -> None:
        self.trouble = list(trouble)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.trouble:
            raise self.trouble.pop(0)
        return "done"


PASSING = TransientTrouble("deadlock detected")
UNREACHABLE = DatabaseUnreachable("db", "connection refused")
NOT_READY = DatabaseNotReady("db", "the database system is starting up")


def test_trouble_that_passes_is_tried_again_until_it_works(pauses: list[float]) -> None:
    noted: list[tuple[DatabaseError, int]] = []
    refuses = Refuses(PASSING, UNREACHABLE, DatabaseBusy("db", 2))
    done = patiently(refuses, clock=FakeClock(), until=1e9, note=lambda error, failed, _: noted.append((error, failed)))
    assert (done, refuses.calls, len(pauses)) == ("done", 4, 3)
    assert noted[:2] == [(PASSING, 1), (UNREACHABLE, 2)]


def test_tries_are_bounded_and_stop_when_time_or_will_is_gone(pauses: list[float]) -> None:
    clock = FakeClock()
    for left_s, go_on, calls in ((1e9, True, TRIES), (0.0, True, 1), (1e9, False, 1)):
        refuses = Refuses(*[PASSING] * 100)
        with pytest.raises(TransientTrouble):
            patiently(refuses, clock=clock, until=clock.monotonic() + left_s, go_on=partial(bool, go_on))
        assert refuses.calls == calls


def test_what_stays_as_it_is_is_not_tried_again(pauses: list[float]) -> None:
    for error in (DatabaseFull("db", "full"), DatabaseReadOnly("db", "ro", "look"), DatabaseError("no such table")):
        refuses = Refuses(error)
        with pytest.raises(DatabaseError):
            patiently(refuses, clock=FakeClock(), until=1e9)
        assert (refuses.calls, pauses) == (1, [])


@pytest.mark.parametrize(
    ("trouble", "calls"),
    [([UNREACHABLE], 1), ([NOT_READY], 2), ([NOT_READY, UNREACHABLE, NOT_READY], 4), ([PASSING], 1)],
)
def test_a_first_look_waits_only_for_a_server_that_is_there(
    pauses: list[float], trouble: list[DatabaseError], calls: int
) -> None:
    refuses = Refuses(*trouble)
    try:
        first_look(refuses, FakeClock())
    except DatabaseError:
        assert refuses.calls == 1
    assert refuses.calls == calls


# --- what a refusal means ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("40001", TransientTrouble),
        ("40P01", TransientTrouble),
        ("57014", TransientTrouble),
        ("53300", DatabaseNotReady),
        ("57P01", DatabaseNotReady),
        ("57P02", DatabaseNotReady),
        ("57P03", DatabaseNotReady),
        ("08006", DatabaseUnreachable),
        ("55P03", DatabaseBusy),
        ("53100", DatabaseFull),
        ("25006", DatabaseReadOnly),
        ("XX001", DatabaseDamaged),
        ("XX002", DatabaseDamaged),
        ("22P05", errors.BadValue),
        ("23514", errors.BadValue),
        ("42P01", DatabaseError),
        ("42501", DatabaseError),
        ("58030", DatabaseError),
    ],
)
def test_an_sqlstate_is_told_by_what_can_be_done_about_it(
    postgres_migrated: str, sqlstate: str, kind: type[DatabaseError]
) -> None:
    raised = f"DO $$ BEGIN RAISE EXCEPTION 'stand-in' USING ERRCODE = '{sqlstate}'; END $$"
    with opened(postgres_migrated) as database, pytest.raises(kind) as caught, database.write() as connection:
        connection.exec_driver_sql(raised)
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    ["FATAL:  the database system is shutting down", "FATAL:  sorry, too many clients already"],
)
def test_a_server_that_lets_nobody_in_says_so_in_words_only(words: str) -> None:
    address = parse_url("postgresql://u:hunter2@h/d")
    refused = OperationalError("", {}, psycopg.OperationalError(f'connection to server at "h" failed: {words}'))
    assert type(as_database_error(address, refused)) is DatabaseNotReady
    refused = OperationalError("", {}, psycopg.OperationalError("password authentication failed"))
    assert type(as_database_error(address, refused)) is DatabaseUnreachable


# --- each part of a tick ----------------------------------------------------------------------------------------------

# A sequence is outside transactions: the trouble ends after two, though both are rolled back.
TROUBLE = """
CREATE SEQUENCE trouble;
CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF nextval('trouble') <= 2 THEN
    {trouble};
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER trouble AFTER {event} ON cronjobs_{table} EXECUTE FUNCTION trouble();
"""
RAISED = "RAISE EXCEPTION 'stand-in' USING ERRCODE = '{}'"
TROUBLES = {
    "deadlock": RAISED.format("40P01"),
    "serialisation": RAISED.format("40001"),
    "statement timeout": RAISED.format("57014"),
    "admin shutdown": "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(1)",
}
PARTS = {
    "recover": ("jobs", "UPDATE"),
    "materialise": ("occurrences", "INSERT"),
    "sync": ("audit", "INSERT"),
    "history": ("job_runs", "INSERT OR UPDATE"),
    "prune": ("meta", "UPDATE"),
    "record": ("ticks", "INSERT OR UPDATE"),
}


def owing(project: Project) -> tuple[int, int]:
    """A project whose next tick has something to do in each of its parts: ids of a lost and of a waiting job."""
    project.configure(SCHEDULES)
    assert project.tick().wait() == 0
    a_day_passes(project)
    old = "1600000000000000" if project.is_sqlite else "2020-01-01"
    project.sql("UPDATE cronjobs_meta SET pruned_at = NULL")
    project.add("t.quick", status="succeeded", finished_at=old, idempotency_key="old")
    lost_id = project.add(
        "t.quick", status="running", attempts=1, locked_by="a:b:1:2:3:4", locked_until=old, run_at=old
    )
    project.configure("run: {workers: 1}\n" + SCHEDULES + "  second: {cron: '15 2 29 2 *', job: t.quick}\n")
    return lost_id, project.add("t.quick")


def assert_all_done_once(project: Project, lost_id: int, waiting_id: int, log: str) -> None:
    [made_id] = [row[0] for row in project.sql("SELECT id FROM cronjobs_jobs WHERE schedule IS NOT NULL")]
    assert project.times_ran() == dict.fromkeys([lost_id, waiting_id, made_id], 1)
    assert project.outcomes(lost_id) == ["lost", "succeeded"]
    assert project.job(lost_id)["losses"] == 1
    assert [len(events(log, name)) for name in ("job.lost", "schedule.enqueued", "schedules.applied")] == [1, 1, 1]
    assert project.value("SELECT count(*) FROM cronjobs_audit WHERE action = 'sync'") == 2
    assert project.value("SELECT count(*) FROM cronjobs_occurrences") == 1
    assert project.value("SELECT count(*) FROM cronjobs_ticks") == 2
    did = last_did(project)
    assert re.search(r"recovered\W+1\b.*enqueued\W+1\b|enqueued\W+1\b.*recovered\W+1\b", did)


def last_did(project: Project) -> str:
    return str(project.value("SELECT did FROM cronjobs_ticks ORDER BY id DESC LIMIT 1"))


SOON_BUSY = """
from cronjobs.engine.database.connection import Database
Database.write.__wrapped__.__kwdefaults__["patience"] = 0.2
"""
FEW_TRIES = "from cronjobs.engine.database import retrying as patience\npatience.TRIES = 3\n"


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("part", PARTS)
def test_trouble_that_passes_costs_no_part_of_a_tick_its_turn(
    postgres_project: Project, part: str, trouble: str
) -> None:
    project = postgres_project
    ids = owing(project)
    before = project.log()
    table, event = PARTS[part]
    project.admin_sql(TROUBLE.format(trouble=TROUBLES[trouble], table=table, event=event))
    tick = project.tick()
    assert tick.wait() == 0
    assert project.admin_sql("SELECT last_value FROM trouble")[0][0] > 2
    log = project.log().removeprefix(before)
    assert_all_done_once(project, *ids, log)
    # A sync repeats itself at once after a deadlock, and reports nothing.
    reported = events(log, "database.tried_again") or events(log, "database.trouble")
    assert ("outages" in last_did(project)) is bool(reported)


def test_a_locked_file_is_tried_again_within_the_budget(sqlite_project: Project) -> None:
    project = sqlite_project
    ids = owing(project)
    before = project.log()
    with closing(project.connect()) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        tick = project.start(**patched(project, SOON_BUSY))
        until(lambda: len(events(project.log(), "database.tried_again")) >= 2)
        foreign.execute("ROLLBACK")
    assert tick.wait() == 0
    assert tick.stderr == ""
    assert_all_done_once(project, *ids, project.log().removeprefix(before))
    assert "was locked by another connection" in last_did(project)


def test_trouble_that_does_not_pass_ends_in_exit_4_and_does_not_keep_the_other_parts(
    postgres_project: Project,
) -> None:
    project = postgres_project
    lost_id, waiting_id = owing(project)
    project.admin_sql(TROUBLE.format(trouble=TROUBLES["deadlock"], table="occurrences", event="INSERT"))
    project.admin_sql("ALTER SEQUENCE trouble MINVALUE -1000 RESTART -1000")
    tick = project.tick(**patched(project, FEW_TRIES))
    assert tick.wait() == 4
    assert tick.stderr.count("\n") == 1
    assert "stand-in" in tick.stderr
    assert 'ended="the database failed"' in events(project.log(), "tick.ended")[-1]
    assert project.value("SELECT ended FROM cronjobs_ticks ORDER BY id DESC LIMIT 1") == "the database failed"
    assert project.times_ran() == {lost_id: 1, waiting_id: 1}
    assert project.admin_sql("SELECT last_value FROM trouble") == [(-1000 + 3 - 1,)]


WAITS = """
hold = os.path.join(HERE, "hold")
if os.path.exists(hold):
    open(hold + ".seen", "x").close()
    while os.path.exists(hold):
        time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_lingering_tick_goes_on_when_the_server_is_back(
    own_postgres_server: PostgresServer, new_project: NewProject
) -> None:
    server = own_postgres_server
    server.start()
    server.execute("CREATE DATABASE shop")
    with opened(server.url("shop")) as database:
        migrations.upgrade(database)
    project = new_project(server.url("shop")).configure("run: {linger: 100ms, budget: 55s}\n", WAITS)
    assert project.tick().wait() == 0
    hold = project.folder / "hold"
    hold.touch()
    tick = project.start()
    job_id = project.add("t.quick")
    until((project.folder / "hold.seen").exists)  # a full tick imports the handlers
    server.kill()
    hold.unlink()
    until(lambda: events(project.log(), "tick.ended"))
    server.start()
    until(lambda: project.times_ran()[job_id] == 1)
    assert tick.process.poll() is None, "it stays"
    tick.send(signal.SIGTERM)
    tick.wait()
    assert events(project.log(), "tick.ended")[0].endswith("code=4")
    assert 'ended="the database failed"' in events(project.log(), "tick.ended")[0]


# --- a server that is there and lets nobody in ------------------------------------------------------------------------


@pytest.fixture
def full_server(own_postgres_server: PostgresServer) -> PostgresServer:
    """A server that accepts at most six connections."""
    own_postgres_server.start()
    settings = {"max_connections": 6, "superuser_reserved_connections": 0, "reserved_connections": 0}
    own_postgres_server.execute(*(f"ALTER SYSTEM SET {name} = {value}" for name, value in settings.items()))
    own_postgres_server.execute("ALTER SYSTEM SET max_wal_senders = 0", "CREATE DATABASE shop")
    with opened(own_postgres_server.url("shop")) as database:
        migrations.upgrade(database)
    own_postgres_server.restart()
    return own_postgres_server


def take_all(server: PostgresServer) -> list[psycopg.Connection[Any]]:
    taken: list[psycopg.Connection[Any]] = []
    with suppress(psycopg.OperationalError):
        while True:
            taken.append(psycopg.connect(server.url()))
    return taken


def refusals(server: PostgresServer) -> int:
    return (server.folder / "log").read_text().count("too many clients")


def test_a_tick_waits_a_moment_for_a_connection_to_come_free(
    full_server: PostgresServer, new_project: NewProject
) -> None:
    project = new_project(full_server.url("shop"))
    job_id = project.add("t.quick")
    taken = take_all(full_server)
    before = refusals(full_server)
    tick = project.start()
    until(lambda: refusals(full_server) > before)
    for connection in taken:
        connection.close()
    assert tick.wait() == 0
    assert project.times_ran() == {job_id: 1}
    assert tick.stderr == ""


def test_a_server_whose_connections_stay_taken_is_told_in_a_few_seconds(
    full_server: PostgresServer, new_project: NewProject
) -> None:
    project = new_project(full_server.url("shop"))
    project.add("t.quick")
    taken = take_all(full_server)
    before = refusals(full_server)
    tick = project.tick()
    for connection in taken:
        connection.close()
    assert tick.wait() == 4
    assert refusals(full_server) - before > 2
    assert tick.stderr.count("\n") == 1
    assert "too many clients" in tick.stderr
    assert full_server.password not in tick.stderr
    assert project.effects() == []


@pytest.mark.slow
def test_a_tick_whose_row_stays_locked_ends_by_itself_and_says_why(postgres_project: Project) -> None:
    """A wait for the lock began shortly before the deadline, and lasted until the watchdog ended the tick."""
    project = postgres_project.configure("run: {budget: 5s}\n")
    assert project.tick().wait() == 0
    job_id = project.add("t.quick")
    with closing(project.connect()) as foreign:
        foreign.execute("BEGIN")
        foreign.execute("LOCK TABLE cronjobs_ticks IN SHARE MODE")
        tick = project.tick()
        foreign.execute("ROLLBACK")
    assert tick.wait() == 4
    assert tick.stderr.count("\n") == 1
    assert "was locked by another connection" in tick.stderr
    assert project.tick().wait() == 0
    assert "was locked by another connection" in last_did(project), "the next tick records why there is no row"
    assert project.times_ran() == {job_id: 1}


# --- every wait ends --------------------------------------------------------------------------------------------------


def test_an_address_that_never_answers_is_told_within_the_connect_timeout(new_project: NewProject) -> None:
    with socket.create_server(("127.0.0.1", 0)) as blackhole:  # the kernel takes connections, nobody reads them
        project = new_project(f"postgresql://u:hunter2@127.0.0.1:{blackhole.getsockname()[1]}/shop")
        tick = project.tick()
    assert tick.wait() == 4
    assert CONNECT_TIMEOUT_S <= tick.took_s < CONNECT_TIMEOUT_S + 5  # and Python's start on a busy machine
    assert tick.stderr.count("\n") == 1
    assert "timeout" in tick.stderr
    assert "hunter2" not in tick.stderr


def test_every_timeout_is_in_force_in_a_transaction(postgres_migrated: str) -> None:
    with opened(postgres_migrated) as database, database.read() as connection:
        shown = {
            name: connection.exec_driver_sql(f"SELECT setting FROM pg_settings WHERE name = '{name}'").scalar()
            for name in TIMEOUTS
        }
        given = connection.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]
    assert shown == {name: str(ms) for name, ms in TIMEOUTS.items()}
    assert given["connect_timeout"] == "5"
    assert given["tcp_user_timeout"] == "15000"
    assert (given["keepalives_idle"], given["keepalives_interval"], given["keepalives_count"]) == ("10", "5", "3")


RUNS_ON = """
import sys
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
with Database(parse_url(sys.argv[1])).write() as connection:
    connection.exec_driver_sql("INSERT INTO cronjobs_jobs (job_type) SELECT 'orphan' FROM pg_sleep(120)")
"""


def test_the_sql_of_a_runner_that_was_killed_does_not_go_on(postgres_migrated: str) -> None:
    with closing(psycopg.connect(postgres_migrated, autocommit=True)) as watcher:

        def running() -> bool:
            found = watcher.execute(
                "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%orphan%' AND pid <> pg_backend_pid()"
            )
            return found.fetchone() is not None

        with started([sys.executable, "-c", RUNS_ON, postgres_migrated]) as runner:
            until(running)
            runner.send_signal(signal.SIGKILL)
        killed = SYSTEM.monotonic()
        until(lambda: not running())
        assert SYSTEM.monotonic() - killed < 60  # long before its statement would have ended
        assert watcher.execute("SELECT count(*) FROM cronjobs_jobs").fetchone() == (0,)


def test_a_foreign_lock_on_one_table_keeps_only_the_part_that_needs_it(postgres_project: Project) -> None:
    """Somebody builds an index on the ledger: it can be read and not written, schedules wait, and jobs run on."""
    project = postgres_project
    lost_id, waiting_id = owing(project)
    with closing(project.connect()) as foreign:
        foreign.execute("BEGIN")
        foreign.execute("LOCK TABLE cronjobs_occurrences IN SHARE MODE")
        tick = project.tick(**patched(project, FEW_TRIES))
        foreign.execute("ROLLBACK")
    assert tick.wait() == 4
    assert project.times_ran() == {lost_id: 1, waiting_id: 1}
    assert tick.stderr.count("\n") == 1
    assert "was locked by another connection (this try waited 2.0s)" in tick.stderr
    assert project.value("SELECT count(*) FROM cronjobs_ticks WHERE finished_at IS NOT NULL") == 2
    before = project.log()
    assert project.tick().wait() == 0
    assert len(events(project.log().removeprefix(before), "schedule.enqueued")) == 1
