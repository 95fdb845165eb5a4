"""``db copy``: everything is copied exactly once.

Unsafe copies are refused. After a crash, the copy can be run again.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, select, text
from support.copied import DIGITS, ODD, add_odd_rows, everything, fill
from support.databases import opened
from support.postgres import OWNER, RUN, as_role
from support.project import Project
from support.rounds import rounds

from cronjobs.contrib.copy import copying
from cronjobs.contrib.copy import statements as store
from cronjobs.contrib.copy.conversion import as_jsonb
from cronjobs.contrib.copy.copying import CopyRefused, CopyReport, copy
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import audit, jobs
from cronjobs.engine.jobs.change import cancel, reschedule
from cronjobs.engine.jobs.enqueue import enqueue
from cronjobs.engine.rules.lease import Finish, Lease
from cronjobs.engine.schema import migrations
from cronjobs.engine.store import claims, leases, schedules, ticks
from cronjobs.engine.store.meta import adopt, is_ours, read_meta, reopen
from cronjobs.engine.store.sql import database_now
from cronjobs.errors import (
    CronjobsError,
    DatabaseBusy,
    DatabaseError,
    ForeignDatabase,
    MovedDatabase,
    UsageError,
)
from cronjobs.model import Status

pytestmark = pytest.mark.connects_as(OWNER)

SHOP = Settings(file=Path("cronjobs.yaml"), folder=Path(), project="shop", environment="production")
ADMISSION = claims.ClaimFilter(known=["t.work"], fitting=["t.work"], remaining_s=50)


class Move:
    """The two sides of one move."""

    def __init__(self, old: Database, new: Database) -> None:
        self.old, self.new = old, new

    def copy(self, settings: Settings = SHOP, **options: Any) -> CopyReport:
        return copy(self.old, self.new, settings, actor="ada", **options)

    def go_back(self) -> None:
        with self.old.write() as connection:
            reopen(connection, "shop", "production", "ada")

    def enqueue_late(self, **options: Any) -> None:
        with self.old.write() as connection:
            enqueue(connection, "t.work", {"late": True}, **options)

    def claim(self, side: Database) -> list[Any]:
        with side.write() as connection:
            lease = timedelta(minutes=1)
            return claims.claim(connection, limit=1, locked_by="h:1:1:1:1:t", lease=lease, admission=ADMISSION).jobs

    def tick_on_the_new_side(self) -> None:
        """Write the row that any tick leaves behind."""
        with self.new.write() as connection:
            row = {"tick": "new", "host": "h", "pid": 1, "version": "1", "started_at": database_now(connection)}
            ticks.begin_tick(connection, row)

    def is_closed(self) -> bool:
        with self.old.read() as connection:
            found = read_meta(connection)
        try:
            is_ours(SHOP, found.project, found.environment)
        except MovedDatabase:
            return True
        return False

    def jobs(self, side: Database, job_type: str) -> list[Any]:
        with side.read() as connection:
            return list(connection.execute(select(jobs).where(jobs.c.job_type == job_type).order_by(jobs.c.id)))


@pytest.fixture
def move(sqlite_migrated: str, postgres_migrated: str) -> Iterator[Move]:
    with opened(f"sqlite:///{sqlite_migrated}") as old, opened(postgres_migrated) as new:
        with old.write() as connection:
            adopt(connection, "shop", "production", None)
        fill(old)
        yield Move(old, new)


# --- bytes that are not UTF-8 -----------------------------------------------------------------------------------------


def test_what_is_not_utf8_comes_over_and_is_named(move: Move) -> None:
    with move.old.write() as connection:
        for column, value in (("payload", b'{"name": "Jos\xe9"}'), ("enqueued_by", b"Jos\xe9")):
            insert = f"INSERT INTO cronjobs_jobs (job_type, {column}) VALUES ('t.latin', CAST(? AS TEXT)) RETURNING id"
            last = connection.exec_driver_sql(insert, (value,)).scalar_one()
    report = move.copy()
    assert report.odd == [
        f"cronjobs_jobs id {last - 1}: payload was copied as text: not UTF-8",
        f"cronjobs_jobs id {last}: enqueued_by was copied with replacement characters: not UTF-8",
    ]
    there = move.jobs(move.new, "t.latin")
    assert [row.payload for row in there] == ['{"name": "Jos\N{REPLACEMENT CHARACTER}"}', {}]
    assert there[1].enqueued_by == "Jos\N{REPLACEMENT CHARACTER}"


def test_an_error_names_the_side_that_it_is_of(move: Move) -> None:
    for wrong, right in ((move.old, move.new), (move.new, move.old)):
        named = f"database {wrong.address.url.get_backend_name()}"
        with pytest.raises(DatabaseError, match=named), right.write(), wrong.read() as connection:
            connection.exec_driver_sql("SELECT nonsense")
        with pytest.raises(DatabaseError, match=named), wrong.read() as connection, right.write():
            connection.exec_driver_sql("SELECT nonsense")


# --- what arrives -----------------------------------------------------------------------------------------------------


def test_everything_arrives_as_it_was(move: Move) -> None:
    before = everything(move.old)
    report = move.copy()
    assert everything(move.new) == before == everything(move.old)
    assert all(before.values())  # a table with nothing in it would show nothing
    assert (report.odd, report.late, report.left) == ([], False, 0)
    with move.new.read() as connection:
        assert (read_meta(connection).project, read_meta(connection).environment) == ("shop", "production")
        trail = list(connection.execute(select(audit.c.action).order_by(audit.c.id)).scalars())
    assert trail[-1] == "copy"
    assert "sync" in trail


def test_ids_go_on_above_those_that_were_ever_given(move: Move) -> None:
    with move.old.write() as connection:
        pruned = [enqueue(connection, "gone").id or 0 for _ in range(3)]
        connection.execute(jobs.delete().where(jobs.c.job_type == "gone"))
    move.copy()
    with move.new.write() as connection:
        assert enqueue(connection, "t.work").id == max(pruned) + 1
        schedules.put_definitions(connection, [schedules.Definition("b", {}, "", database_now(connection), None)])
        assert [found.id for found in schedules.all_schedules(connection)] == [2, 1]


def test_spent_keys_are_still_spent(move: Move) -> None:
    move.copy()
    with move.new.write() as connection:
        assert not any(enqueue(connection, "t.work", idempotency_key=("k", n)).new for n in range(12))


def test_what_only_sqlite_takes_arrives_as_near_as_can_be_and_is_told(move: Move) -> None:
    add_odd_rows(str(move.old.address.url.database))
    report = move.copy()
    assert [row.payload for row in move.jobs(move.new, "t.odd")] == [arrives for _, arrives in ODD]
    told = [payload for payload, arrives in ODD if isinstance(arrives, str)]
    assert len(report.odd) == len(told)
    assert "payload was copied as text" in report.odd[0]
    with move.new.read() as connection:
        digits = connection.execute(text("SELECT payload::text FROM cronjobs_jobs WHERE job_type = 't.digits'"))
        assert digits.scalar_one() == DIGITS
    [odd] = move.jobs(move.new, "t.nul")
    assert (odd.last_error, odd.max_attempts, odd.timeout_s) == (r"a\x00b", 2**31 - 1, 1e300)
    assert odd.error_type == "\ufffdA"


@pytest.mark.parametrize(
    ("given", "arrives"),
    [
        ('{"a": 1.0}', True),
        ('{"a": 1e130000}', False),
        ('{"a": 1e-17000}', False),
        ('{"a": 0e999999}', True),
        ('{"a": [1e400, -1e400, 1e-400]}', True),
        ('{"a": 1e401}', False),
        ('{"a": [-2e400]}', False),
        ('{"a": 1e-401}', False),
        ('{"a": 0.' + "0" * 401 + "}", False),
        ('{"a": Infinity}', False),
        ('{"a": "\\\\\\u0000"}', False),
        ("[" * 100_000, False),
        ('"\\ud83d\\ude00"', True),
    ],
)
def test_json_is_taken_where_jsonb_takes_it(given: str, arrives: bool, new_jsonb: Callable[[str], None]) -> None:
    found, why = as_jsonb(given)
    assert (found == given, why is None) == (arrives, arrives)
    new_jsonb(found)


@pytest.fixture
def new_jsonb(postgres_migrated: str) -> Iterator[Callable[[str], None]]:
    with opened(postgres_migrated) as database, database.read() as connection:

        def take(value: str) -> None:
            connection.execute(text("SELECT CAST(:value AS jsonb)"), {"value": value})

        yield take


# --- again ------------------------------------------------------------------------------------------------------------


def test_a_second_run_brings_what_is_new_and_doubles_nothing(move: Move) -> None:
    move.copy()
    move.enqueue_late(idempotency_key="late")
    with move.old.write() as connection:
        connection.execute(jobs.update().where(jobs.c.id == 12).values(priority=9))
        connection.execute(jobs.delete().where(jobs.c.id == 11))
    for _ in range(2):
        move.copy()
        assert everything(move.new) == everything(move.old)
    with move.new.read() as connection:
        entries = list(connection.execute(select(audit.c.action).where(audit.c.action == "sync")).scalars())
    assert entries == ["sync"]


def test_once_the_new_side_is_in_use_only_late_jobs_come_over_under_new_ids(move: Move) -> None:
    move.copy()
    move.tick_on_the_new_side()
    with move.new.write() as connection:
        here = enqueue(connection, "t.here")
        enqueue(connection, "t.here", idempotency_key="both")
    before = everything(move.new)
    move.enqueue_late()
    move.enqueue_late(idempotency_key="both")
    for came, known in ((1, 1), (0, 0)):
        report = move.copy()
        assert (report.late, report.copied["cronjobs_jobs"], report.known) == (True, came, known)
    after = everything(move.new)
    [late] = after["cronjobs_jobs"][len(before["cronjobs_jobs"]) :]
    assert late["id"] > here.id
    assert '"late": true' in late["payload"]
    assert {name: rows for name, rows in after.items() if name != "cronjobs_jobs"} == {
        name: rows for name, rows in before.items() if name != "cronjobs_jobs"
    }


@pytest.mark.parametrize("use", ["a tick", "a job", "an operator", "a claim"])
def test_a_side_in_use_is_never_written_over(move: Move, use: str) -> None:
    move.copy()
    with move.new.write() as connection:
        match use:
            case "a job":
                enqueue(connection, "t.here")
            case "an operator":
                ticks.record(connection, action="pause", actor="ada")
    if use == "a tick":
        move.tick_on_the_new_side()
    if use == "a claim":
        assert move.claim(move.new)
    before = everything(move.new)
    assert move.copy().late
    assert everything(move.new) == before


def test_jobs_enqueued_during_the_copy_are_told(move: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    insert = store.insert

    def insert_slowly(*given: Any) -> None:
        if given[1] is audit:
            move.enqueue_late()
        insert(*given)

    monkeypatch.setattr(store, "insert", insert_slowly)
    assert move.copy().left == 1
    monkeypatch.undo()
    assert move.copy().left == 0
    assert everything(move.new) == everything(move.old)


def test_nobody_else_writes_to_the_new_side_during_the_copy(
    move: Move, postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer is a tick of a host that has the new configuration already."""
    insert, kept_out = store.insert, []

    def insert_meanwhile(*given: Any) -> None:
        with opened(as_role(postgres_migrated, RUN)) as tick, pytest.raises(DatabaseBusy), tick.write() as connection:
            connection.execute(text(f"SET LOCAL lock_timeout = 10; INSERT INTO {given[1].name} DEFAULT VALUES"))
        kept_out.append(given[1].name)
        insert(*given)

    monkeypatch.setattr(store, "insert", insert_meanwhile)
    move.copy()
    assert {*kept_out} == {table.name for table in store.TABLES}


# --- the old side is closed -------------------------------------------------------------------------------------------


def test_a_tick_on_the_old_side_is_told_where_everything_went(move: Move) -> None:
    move.copy()
    with move.old.read() as connection:
        found = read_meta(connection)
    with pytest.raises(MovedDatabase) as told:
        is_ours(SHOP, found.project, found.environment)
    assert str(move.new.address) in str(told.value)
    assert "secret" not in str(told.value)
    assert '"cronjobs db adopt"' in str(told.value)
    assert told.value.exit_code == 3


def test_a_tick_that_had_begun_before_claims_and_settles_nothing_more(move: Move) -> None:
    move.copy()
    with pytest.raises(DatabaseError, match="moved this database elsewhere"):
        move.claim(move.old)
    now = move.old.clock.now()
    with pytest.raises(DatabaseError, match="moved this database elsewhere"), move.old.write() as connection:
        schedules.move_watermarks(connection, [schedules.Watermark(1, now, None)])
    with pytest.raises(DatabaseError, match="moved this database elsewhere"), move.old.write() as connection:
        schedules.record_occurrences(connection, [schedules.LedgerRow(1, now, now, 1, "missed")], now)


@pytest.mark.parametrize("change", [cancel, lambda target, **which: reschedule(target, delay="7d", **which)])
def test_an_app_that_still_writes_to_the_old_side_hears_that_no_job_there_can_be_changed(
    move: Move, change: Callable[..., Any]
) -> None:
    with move.old.write() as connection:
        job_id = enqueue(connection, "t.work", {}).id
    move.copy()
    with pytest.raises(DatabaseError, match="moved this database elsewhere"), move.old.write() as connection:
        change(connection, id=job_id)
    with move.old.read() as connection:
        assert connection.execute(select(jobs.c.status).where(jobs.c.id == job_id)).scalar_one() == "queued"
    move.enqueue_late()  # adds rows to a table that is copied later


def test_adopting_the_old_side_opens_it_again(move: Move) -> None:
    move.copy()
    assert move.is_closed()
    move.go_back()
    assert not move.is_closed()
    assert move.claim(move.old)


def test_after_an_adoption_the_copy_begins_anew(move: Move) -> None:
    move.copy()
    move.go_back()
    [job] = move.claim(move.old)
    with move.old.write() as connection:
        end = Finish(Lease(job.id, job.attempt, "h:1:1:1:1:t"), Status.SUCCEEDED, 0, 0, 0, "succeeded")
        leases.finish(connection, [end])
    move.copy()
    assert everything(move.new) == everything(move.old)


# --- what is refused --------------------------------------------------------------------------------------------------


def refused(move: Move, said: str, error: type[CronjobsError] = CopyRefused, **options: Any) -> None:
    """The copy is refused, and nothing has changed on either side."""
    before = everything(move.old), everything(move.new), move.is_closed()
    with pytest.raises(error, match=said):
        move.copy(**options)
    assert (everything(move.old), everything(move.new), move.is_closed()) == before


def test_a_target_with_jobs_of_its_own_is_refused(move: Move) -> None:
    with move.new.write() as connection:
        enqueue(connection, "t.here")
    refused(move, "in use already .1 in cronjobs_jobs.")


def test_a_target_that_has_ticked_is_refused(move: Move) -> None:
    move.tick_on_the_new_side()
    refused(move, "1 in cronjobs_ticks")


def test_a_target_of_another_project_is_refused(move: Move) -> None:
    with move.new.write() as connection:
        adopt(connection, "other", "production", None)
    refused(move, '"other"', ForeignDatabase)


def test_a_source_of_another_project_is_refused(move: Move) -> None:
    with pytest.raises(ForeignDatabase):
        move.copy(Settings(file=Path("cronjobs.yaml"), folder=Path(), project="other"))
    assert not move.is_closed()


def test_a_source_that_was_taken_to_another_database_is_refused(move: Move, new_postgres_url: Any) -> None:
    move.copy()
    with opened(as_role(new_postgres_url("migrated"), OWNER)) as elsewhere:
        refused(Move(move.old, elsewhere), "has moved this database to", MovedDatabase)


def test_a_copy_of_another_file_is_not_written_over(move: Move, tmp_path: Path) -> None:
    move.copy()
    with opened(f"sqlite:///{tmp_path}/other.db") as other:
        migrations.upgrade(other)
        refused(Move(other, move.new), "holds a copy of sqlite:///")


def test_two_sides_that_were_both_used_are_refused(move: Move) -> None:
    move.copy()
    move.tick_on_the_new_side()
    move.go_back()
    refused(move, "both databases have been used")


def test_only_sqlite_to_postgresql_is_meant(move: Move) -> None:
    for source, target in ((move.new, move.new), (move.old, move.old), (move.new, move.old)):
        with pytest.raises(UsageError):
            copy(source, target, SHOP, actor="ada")


def test_a_role_that_may_not_is_told_and_the_old_side_stays_open(move: Move, postgres_migrated: str) -> None:
    with opened(as_role(postgres_migrated, RUN)) as new:
        refused(Move(move.old, new), "permission denied", DatabaseError)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--from", "sqlite:///gone.db"), "there is no database sqlite:///"),
        ((), "give --to"),
        (("--from", "sqlite:///a.db", "--to", "postgresql://h/d"), "give --to or --from, not both"),
    ],
)
def test_a_command_that_cannot_be_meant_makes_no_file(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    project = Project(tmp_path, "postgresql://h/d")
    project.write()
    answer = project.call("db", "copy", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert [file.name for file in tmp_path.iterdir()] == ["cronjobs.yaml"]


def test_a_url_from_a_variable_is_named_by_the_variable(
    sqlite_migrated: str, postgres_migrated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEW_URL", postgres_migrated)
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write()
    assert project.call("db", "adopt").code == 0
    answer = project.call("db", "copy", "--to", "${NEW_URL}")
    assert answer.code == 0, answer.err
    assert "the old database is closed; name ${NEW_URL} in the configuration" in answer.out


def test_on_the_closed_side_status_advises_what_a_tick_advises(
    sqlite_migrated: str, postgres_migrated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEW_URL", postgres_migrated)
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write()
    assert project.call("db", "adopt").code == 0
    assert project.call("db", "copy", "--to", "${NEW_URL}").code == 0
    ticks = project.run("run-due").err.strip()
    assert "Name that database in the configuration" in ticks
    first = project.call("status", "--json").json["findings"][0]
    assert (first["kind"], first["command"]) == ("foreign", None)
    assert first["text"] == ticks


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("URL", "cronjobs db upgrade --database-url URL"),
        ("${NEW_URL}", 'CRONJOBS_DATABASE_URL="${NEW_URL}" cronjobs db upgrade'),
        ("${file:secret}", 'CRONJOBS_DATABASE_URL="$(cat secret)" cronjobs db upgrade'),
    ],
)
def test_into_a_database_without_tables_the_command_that_makes_them_is_named(
    sqlite_migrated: str, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, said: str
) -> None:
    url = make_url(postgres_url)
    monkeypatch.setenv("PGPASSWORD", str(url.password))
    plain = url._replace(password=None).render_as_string()
    monkeypatch.setenv("NEW_URL", plain)
    (tmp_path / "secret").write_text(plain)
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write()
    to, said = (plain, said.replace("URL", shlex.quote(plain))) if to == "URL" else (to, said)
    refused = project.call("db", "copy", "--to", to)
    assert refused.code == 4
    assert refused.err.strip().endswith(f"has no cronjobs tables: run {said}")
    (tmp_path / "cronjobs").write_text(f'#!/bin/sh\nexec {sys.executable} -m cronjobs "$@"\n')
    (tmp_path / "cronjobs").chmod(0o700)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(said, shell=True, cwd=tmp_path, env=os.environ | path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    (tmp_path / "cronjobs").unlink()
    assert project.call("db", "copy", "--to", to).code == 0


@pytest.mark.parametrize("in_url", [True, False])
def test_the_answer_names_the_new_database_without_its_password(
    sqlite_migrated: str, postgres_migrated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_url: bool
) -> None:
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write("env_file: .env\n")
    url = make_url(postgres_migrated)
    assert url.password
    monkeypatch.setenv("PGPASSWORD", str(url.password))  # libpq reads the password here if the URL has none
    given = url if in_url else url._replace(password=None)
    written = given.render_as_string(hide_password=False)
    (tmp_path / ".env").write_text(f"NEW_URL={written}\n")
    monkeypatch.setenv("NEW_URL", written)
    assert project.call("db", "adopt").code == 0
    answer = project.call("db", "copy", "--to", "${NEW_URL}", "--json")
    assert answer.json["to"] == given.render_as_string(hide_password=True)
    assert str(url.password) not in answer.out + answer.err


# --- what runs --------------------------------------------------------------------------------------------------------


def test_nothing_is_copied_while_a_job_runs(move: Move) -> None:
    [job] = move.claim(move.old)
    refused(move, f"job {job.id} still runs in the old database: to wait until no job runs, add --wait")
    refused(move, f"job {job.id} still runs in the old database after the wait", wait=timedelta(0))


def test_with_wait_the_copy_begins_when_what_runs_has_ended(move: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    [job] = move.claim(move.old)

    def work_on(_seconds: float) -> None:
        assert move.is_closed()
        with move.old.write() as connection:
            held = Lease(job.id, job.attempt, "h:1:1:1:1:t")
            leases.renew(connection, [held], timedelta(minutes=1))
            leases.finish(connection, [Finish(held, Status.SUCCEEDED, 0, 0, 0, "succeeded")])

    monkeypatch.setattr(copying, "sleep", work_on)
    move.copy(wait=timedelta(seconds=30))
    assert everything(move.new) == everything(move.old)


# --- whatever dies ----------------------------------------------------------------------------------------------------


def fail(error: BaseException) -> Callable[..., Any]:
    def failing(*_given: Any, **_options: Any) -> Any:
        raise error

    return failing


@pytest.mark.parametrize("error", [DatabaseError("gone"), KeyboardInterrupt("gone")])
def test_a_copy_that_fails_opens_the_old_side_again(
    move: Move, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "count_on", fail(error))
    refused(move, "gone", type(error))  # type: ignore[arg-type]
    assert move.claim(move.old)


# Each run is killed one statement, or one COMMIT, later than the one before, on what that one left, until one is not.
KILLED = """
import os, signal, sys
from pathlib import Path
from sqlalchemy import event
from sqlalchemy.engine import Engine
from cronjobs.contrib.copy.copying import copy
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.config.settings import Settings

old, new, step, kills = sys.argv[1], sys.argv[2], int(sys.argv[3]), 0
while True:
    child = os.fork()
    if not child:
        left = [kills]

        def die(*_given):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        event.listen(Engine, "before_cursor_execute", die)
        event.listen(Engine, "commit", die)
        settings = Settings(file=Path("cronjobs.yaml"), folder=Path(), project="shop", environment="production")
        copy(Database(parse_url(old)), Database(parse_url(new)), settings, actor="ada")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        print(kills)
        sys.exit(os.waitstatus_to_exitcode(status))
    assert os.WTERMSIG(status) == signal.SIGKILL
    found = Database(parse_url(new))
    with found.read() as connection:
        counts = [
            connection.exec_driver_sql(f"SELECT count(*) FROM cronjobs_{table}").scalar()
            for table in ("jobs", "job_runs", "schedules", "occurrences", "effects", "ticks")
        ]
    found.close()
    assert all(counts) or not any(counts), counts
    kills += step
"""


@pytest.mark.slow
def test_a_copy_killed_anywhere_is_whole_or_not_there_and_can_be_run_again(move: Move, postgres_migrated: str) -> None:
    before = everything(move.old)
    move.old.close()
    move.new.close()
    step = rounds(2, 1)  # every other point: a COMMIT has two, one before it and one after
    program = [sys.executable, "-c", KILLED, f"sqlite:///{move.old.address.url.database}", postgres_migrated, str(step)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 60  # kill points passed
    assert everything(move.new) == everything(move.old) == before
    assert move.is_closed()
