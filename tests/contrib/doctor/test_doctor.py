"""``cronjobs doctor`` on a whole project: it passes if all is well, and for each fault exactly one check fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Row, insert, text, update
from support.commands import until
from support.databases import in_psql
from support.explained import MINUTE, MINUTELY, World, utc
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world
from support.hosts import put
from support.postgres import OWNER, READ, RUN, SUPERUSER, as_role

from cronjobs.contrib.doctor import database_verdicts, examine, patient, statements
from cronjobs.contrib.doctor.examine import CHECKS, Examination
from cronjobs.contrib.doctor.patient import ExaminedSite
from cronjobs.desk.crontab import block, program
from cronjobs.engine.database import tables
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.host.known_databases import remember
from cronjobs.engine.jobs import registry

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases

CRONTAB = '#!/bin/sh\n[ -f "$FAKE_STORE" ] && exec cat "$FAKE_STORE"\necho "no crontab for ada" >&2\nexit 1\n'
ONLY = {"postgresql": {"locks", "rights", "vacuum", "versions", "clocks"}}
ONLY["sqlite"] = {"file system", "file modes", "journal mode"}


class Surgery:
    """A project on a host that is well: its crontab has the line, a daemon and a mail program are there."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.monkeypatch, self.folder = world, monkeypatch, world.folder
        self.root, self.store = world.folder / "root", world.folder / "spool"
        self.config = world.folder / "cronjobs.yaml"
        self.name = Identity.here().host
        for file, content in (("proc/1/comm", "init"), ("proc/77/comm", "cron")):
            self.put(self.root / file, content + "\n")
        self.put(self.root / "proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
        self.put(self.root / "usr/sbin/sendmail", "").chmod(0o755)
        self.put(self.folder / "bin/crontab", CRONTAB).chmod(0o755)
        monkeypatch.setenv("PATH", f"{self.folder / 'bin'}:/usr/bin:/bin")
        monkeypatch.setenv("FAKE_STORE", str(self.store))
        monkeypatch.setenv("XDG_STATE_HOME", str(self.folder / "state"))
        monkeypatch.setattr(patient, "ExaminedSite", partial(ExaminedSite, root=self.root))
        self.line()
        world.file(**MINUTELY)
        world.tick(utc("2026-03-02T08:10:10"), self.name)
        world.tick(utc("2026-03-02T08:11:10"), self.name)
        with world.database.write() as connection:  # the ticks before these two, which had another version
            for minute in range(10):
                at = utc("2026-03-02T08:00:10") + minute * MINUTE
                values = {"tick": f"t{minute}", "host": self.name, "pid": 1, "version": "0", "started_at": at}
                connection.execute(insert(tables.ticks).values(values | {"finished_at": at + timedelta(seconds=1)}))

    def put(self, file: Path, content: str) -> Path:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file

    def line(self, above: str = "", config: Path | None = None) -> None:
        self.store.write_text(above + block.block(config or self.config, program.interpreter()))

    def write(self, *statements: str) -> None:
        """Execute the statements as the owner of the tables."""
        if self.world.url.startswith("sqlite"):
            with self.world.database.write() as connection:
                for statement in statements:
                    connection.execute(text(statement))
        else:
            in_psql(as_role(self.world.url, SUPERUSER), *statements)

    def see(self) -> dict[str, dict[str, Any]]:
        answer = self.world.cronjobs("doctor", "--json")
        checks = {each["check"]: each for each in answer.json["checks"]}
        wrong = [each for each in checks.values() if each["status"] == "problem"]
        assert answer.code == (1 if wrong else 0), answer
        assert answer.json["ok"] is not bool(wrong)
        return checks


@pytest.fixture
def surgery(world: World, monkeypatch: pytest.MonkeyPatch) -> Surgery:
    return Surgery(world, monkeypatch)


def test_all_is_well(surgery: Surgery) -> None:
    found = surgery.see()
    kind = "sqlite" if surgery.world.database.is_sqlite else "postgresql"
    elsewhere = ONLY["sqlite" if kind == "postgresql" else "postgresql"] | {"alembic"}
    statuses = {name: each["status"] for name, each in found.items()}
    assert statuses == {check.name: "not applicable" if check.name in elsewhere else "ok" for check in CHECKS}, found
    text = surgery.world.cronjobs("doctor")
    assert text.code == 0
    assert text.out.endswith("ok, 0 warnings, 0 problems\n")
    assert all(len(line) <= 160 for line in text.out.splitlines())


def test_ticks_before_restore_do_not_run_lines_twice(surgery: Surgery) -> None:
    """Restore removes the line that starts ticks, so none will come, although the last one was a moment ago."""
    types = "job_types: {a: {command: [/bin/sh, -c, a], stdin: none}}\n"
    surgery.world.file(types, **MINUTELY, a="every: 1h, job: a")
    surgery.store.write_text("@hourly a\n")
    assert "and ticks run the same commands" in surgery.see()["crontab"]["text"]
    copy = surgery.put(surgery.folder / "state/cronjobs/crontab-0123456789ab", "")
    for changed, status in (("08:11:05", "problem"), ("08:11:15", "not applicable")):
        at = utc(f"2026-03-02T{changed}").timestamp()
        os.utime(copy, (at, at))
        assert surgery.see()["crontab"]["status"] == status
    surgery.world.tick(utc("2026-03-02T08:12:10"), "beta")
    said = surgery.see()["crontab"]
    assert said["status"] == "problem"
    assert "and ticks on beta (" in said["text"], "another host runs the lines, whatever this crontab has"


def test_the_parts_of_a_lingering_tick_are_one_tick(surgery: Surgery) -> None:
    _twice(surgery)
    assert surgery.see()["overlapping ticks"]["status"] == "warning"
    surgery.world.file("run: {linger: true}\n", **MINUTELY)
    assert surgery.see()["overlapping ticks"]["status"] == "ok"


def test_the_host_has_the_name_that_its_crontab_gives_it(surgery: Surgery) -> None:
    surgery.world.tick(utc("2026-03-02T09:00:10"), "web1")
    assert surgery.see()["ticks"]["status"] == "warning"
    surgery.line(above="CRONJOBS_HOST=web1\n")
    assert surgery.see()["ticks"] | {"status": "ok", "text": "ticks run on web1"} == surgery.see()["ticks"]


# --- what is broken, which check says so, and how bad it is -----------------------------------------------------------


def _file(it: Surgery) -> None:
    it.world.file(
        "imports: [no_such_module]\nrun: {long_jobs: 0}\n",
        a='cron: "77 * * * *"',
        b='cron: "* * * * *", job: t.wrok',
        c='cron: "* * * * *", timeout: 2h',
    )


def _syntax(it: Surgery) -> None:
    it.config.write_text("schedules: [")


def _foreign(it: Surgery) -> None:
    it.write("UPDATE cronjobs_meta SET project = 'blog'")


def _newer(it: Surgery) -> None:
    it.write("UPDATE cronjobs_meta SET schema_revision = '9999'")


def _drifted(it: Surgery) -> None:
    it.write("DROP INDEX cronjobs_effects_job_idx")


def _no_line(it: Surgery) -> None:
    it.store.unlink()
    it.world.go(utc("2026-03-02T09:00:00"))


def _no_daemon(it: Surgery) -> None:
    (it.root / "proc/77/comm").unlink()


def _silence(it: Surgery) -> None:
    it.world.go(utc("2026-03-02T09:00:00"))


def _no_mail(it: Surgery) -> None:
    (it.root / "usr/sbin/sendmail").unlink()


def _no_recipient(it: Surgery) -> None:
    it.line(above="MAILTO=\n")


def _twice(it: Surgery) -> None:
    with it.world.database.write() as connection:
        for row in connection.execute(tables.ticks.select()).all():
            values = dict(row._mapping) | {
                "tick": f"again{row.id}",
                "started_at": row.started_at + timedelta(seconds=1),
            }
            del values["id"]
            connection.execute(tables.ticks.insert().values(values))


def _long_ticks(it: Surgery) -> None:
    with it.world.database.write() as connection:
        for row in connection.execute(tables.ticks.select()).all():
            later = row.started_at + timedelta(seconds=80)
            connection.execute(update(tables.ticks).where(tables.ticks.c.id == row.id).values(finished_at=later))
    it.world.go(it.world.clock.now() + timedelta(seconds=90))


def _alembic(it: Surgery) -> None:
    it.put(it.folder / "alembic/env.py", "from alembic import context\n")
    it.put(it.folder / "alembic.ini", "[alembic]\nscript_location = alembic\n")
    it.write("CREATE TABLE alembic_version (version_num text)")


def _state(it: Surgery) -> None:
    it.put(it.folder / "state/cronjobs/file", "").parent.chmod(0o777)


def _disk(it: Surgery) -> None:
    it.monkeypatch.setattr("shutil.disk_usage", lambda _: _Usage())


class _Usage:
    total, used, free = 100 << 30, 100 << 30, 1 << 20


# Faults that are present at the same time; in one group are those that do not hide each other.
BROKEN: dict[str, list[tuple[Callable[[Surgery], None], dict[str, str]]]] = {
    "a bad day": [
        (_file, dict.fromkeys(("configuration", "handlers", "job types", "timeouts"), "problem")),
        (_drifted, {"schema drift": "problem"}),
        (_no_daemon, {"crontab": "problem"}),
        (_no_mail, {"cron's mail": "warning"}),
        (_twice, {"overlapping ticks": "warning"}),
        (_alembic, {"alembic": "problem"}),
        (_state, {"state folder": "problem"}),
        (_disk, {"disk space": "problem"}),
    ],
    "another": [
        (_syntax, {"configuration": "problem", "database": "ok", "handlers": "not applicable"}),
        (_newer, {"schema revision": "warning"}),
        (_no_recipient, {"cron's mail": "warning"}),
        (_long_ticks, {"overlapping ticks": "warning"}),
    ],
    "nothing runs": [
        (_foreign, {"database": "problem"}),
        (_no_line, {"crontab": "problem", "cron's mail": "not applicable"}),
        (_silence, {"ticks": "problem"}),
    ],
}


@pytest.mark.parametrize("day", BROKEN)
def test_what_is_broken_is_found_by_its_check(surgery: Surgery, day: str) -> None:
    surgery.monkeypatch.setenv("CRONJOBS_DATABASE_URL", surgery.world.url)
    for damage, _ in BROKEN[day]:
        damage(surgery)
    try:
        found = surgery.see()
    finally:
        if not surgery.world.database.is_sqlite:
            surgery.write("DROP TABLE IF EXISTS alembic_version")
    wanted = {name: status for _, expected in BROKEN[day] for name, status in expected.items()}
    assert {name: found[name]["status"] for name in wanted} == wanted
    assert all(each["fix"] for each in found.values() if each["status"] in ("warning", "problem"))
    assert not [each["text"] for each in found.values() if "itself failed" in each["text"]]


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


def test_jobs_of_a_renamed_handler_are_counted_before_a_tick_and_before_they_are_due(surgery: Surgery) -> None:
    """Ticks of this host have recorded the old name, and a job that is not due is no finding yet."""
    world = surgery.world
    for job_type in ("t.gone", "t.gone", "t.work"):
        put(world.database, job_type=job_type, run_at=world.clock.now() + timedelta(days=7))
    found = surgery.see()["job types"]
    assert found["text"] == "2 jobs wait for a handler of type t.gone, which this project does not have"
    assert "cronjobs jobs cancel --type t.gone; cronjobs explain t.gone" in found["fix"]
    work = registry._registered.pop("t.work")
    assert "1 job waits for a handler of type t.work" in surgery.see()["job types"]["text"]
    registry._registered["t.work"] = work
    world.tick(utc("2026-03-02T08:11:20"), "beta")
    del registry._registered["t.work"]
    assert "1 job waits for type t.work" not in surgery.see()["job types"]["text"], "another host has it"


@on_postgresql
@pytest.mark.connects_as(OWNER)
def test_the_owner_may_do_too_much(surgery: Surgery) -> None:
    found = surgery.see()["rights"]
    assert found["status"] == "warning"
    assert "owns" in found["text"]


@pytest.mark.needs("contrib.books")
@on_postgresql
def test_who_may_only_read_examines_and_balances_all_the_same(surgery: Surgery) -> None:
    config = surgery.config
    config.write_text(config.read_text().replace(surgery.world.url, as_role(surgery.world.url, READ)))
    found = surgery.see()
    assert not [each for each in found.values() if "itself failed" in each["text"]]
    assert {found[name]["status"] for name in ("rights", "schema drift", "ticks", "vacuum")} <= {"ok", "warning"}, found
    assert surgery.world.cronjobs("books").code == 0


@on_postgresql
def test_rights_that_are_missing_or_too_many_are_named(surgery: Surgery) -> None:
    surgery.write(f"GRANT DELETE ON cronjobs_audit TO {RUN}", "GRANT SELECT ON cronjobs_jobs TO PUBLIC")
    found = surgery.see()["rights"]
    assert (found["status"], "DELETE on cronjobs_audit" in found["text"]) == ("warning", True)
    assert "PUBLIC has SELECT on cronjobs_jobs" in found["text"]
    surgery.write(f"REVOKE INSERT ON cronjobs_effects FROM {RUN}")
    found = surgery.see()["rights"]
    assert (found["status"], "lacks INSERT on cronjobs_effects" in found["text"]) == ("problem", True)


@contextmanager
def session_of(url: str, role: str, application: str) -> Iterator[psycopg.Connection[Any]]:
    """A session that does not commit."""
    with psycopg.connect(as_role(url, role), application_name=application) as session:
        yield session
        session.rollback()


@pytest.mark.slow
@on_postgresql
@pytest.mark.parametrize("table", ["cronjobs_jobs", "cronjobs_meta"])
def test_a_session_that_locks_a_table_is_named(surgery: Surgery, table: str) -> None:
    with session_of(surgery.world.url, SUPERUSER, "report") as session:
        session.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        found, pid = surgery.see(), session.info.backend_pid
    assert found["locks"]["status"] == "problem"
    assert f"pid {pid} has locked {table} (application report, user {SUPERUSER})" in found["locks"]["text"]
    assert f'"SELECT pg_terminate_backend({pid})"' in found["locks"]["fix"]
    assert "has no cronjobs tables" not in found["schema revision"]["text"]


@on_postgresql
@pytest.mark.parametrize(
    "statement", ["SELECT 1 FROM cronjobs_jobs FOR UPDATE", "UPDATE cronjobs_jobs SET priority = 4"]
)
def test_a_session_whose_jobs_ticks_pass_over_is_named(surgery: Surgery, statement: str) -> None:
    put(surgery.world.database, job_type="t.work")
    with session_of(surgery.world.url, RUN, "psql") as session:
        session.execute(statement.encode())
        with surgery.world.database.read() as connection:
            [found] = statements.blockers(connection)
        pid = session.info.backend_pid
    blocker = database_verdicts.Blocker(**found._mapping)
    assert blocker.since is not None
    assert database_verdicts.locks([blocker], blocker.since + timedelta(seconds=1)).status == "ok"
    judged = database_verdicts.locks([blocker], blocker.since + MINUTE)
    assert judged.status == "warning"
    assert f"pid {pid} has locked or changed jobs (application psql, user {RUN}, idle in" in judged.text


@on_postgresql
def test_a_session_for_whose_rows_a_tick_waits_is_named(surgery: Surgery) -> None:
    def seen() -> Sequence[Row[Any]]:
        with surgery.world.database.read() as connection:
            return statements.blockers(connection)

    url, change = surgery.world.url, b"UPDATE cronjobs_meta SET project = project"
    with session_of(url, RUN, "report") as first, session_of(url, RUN, "cronjobs") as tick:
        first.execute(change)
        assert seen() == []
        waits = threading.Thread(target=tick.execute, args=(change,))
        waits.start()
        until(seen)
        [found] = seen()
        pid = first.info.backend_pid
        first.rollback()
        waits.join()
    assert (found.pid, found.application, found.table) == (pid, "report", None)
    blocker = database_verdicts.Blocker(**found._mapping)
    assert blocker.since is not None
    assert database_verdicts.locks([blocker], blocker.since + timedelta(seconds=1)).status == "ok"
    judged = database_verdicts.locks([blocker], blocker.since + MINUTE)
    assert judged.status == "warning"
    whose = f"pid {pid} (application report, user {RUN}, idle in transaction"
    since = f"since {blocker.since:%Y-%m-%d %H:%M:%S} UTC, for 1m)"
    assert f"{whose}, in a transaction {since}" in judged.text
    as_other = database_verdicts.locks([replace(blocker, is_wait=True)], blocker.since + MINUTE)
    assert f"{whose}, a session has been waiting for it {since}" in as_other.text


@on_postgresql
def test_autovacuum_that_is_off_for_a_table(surgery: Surgery) -> None:
    surgery.write("ALTER TABLE cronjobs_jobs SET (autovacuum_enabled = false)")
    found = surgery.see()["vacuum"]
    assert (found["status"], found["text"]) == ("problem", "autovacuum is off for cronjobs_jobs")


@on_postgresql
def test_a_clock_that_is_off(surgery: Surgery, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = surgery.world.clock
    real = clock.now
    monkeypatch.setattr(type(clock), "now", lambda _: real() + 10 * MINUTE)
    found = surgery.see()["clocks"]
    assert (found["status"], "10m ahead" in found["text"]) == ("problem", True)


# --- SQLite -----------------------------------------------------------------------------------------------------------


on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@on_sqlite
def test_a_file_that_everybody_may_read_or_write(surgery: Surgery) -> None:
    file = Path(surgery.world.url.removeprefix("sqlite:///"))
    for mode, status in ((0o644, "warning"), (0o666, "problem"), (0o600, "ok")):
        file.chmod(mode)
        assert surgery.see()["file modes"]["status"] == status


@on_sqlite
def test_a_file_on_a_network_file_system(surgery: Surgery) -> None:
    surgery.put(surgery.root / "proc/self/mountinfo", "22 1 0:5 / / rw - nfs4 server:/srv rw\n")
    assert surgery.see()["file system"]["status"] == "problem"


# --- what cannot be examined ------------------------------------------------------------------------------------------


def test_without_a_readable_file_the_host_is_examined_and_with_an_address_the_database_too(surgery: Surgery) -> None:
    _syntax(surgery)
    found = surgery.see()
    assert found["handlers"] == found["handlers"] | {"status": "not applicable"}
    assert (found["database"]["status"], found["crontab"]["status"]) == ("problem", "ok")
    surgery.monkeypatch.setenv("CRONJOBS_DATABASE_URL", surgery.world.url)
    found = surgery.see()
    assert (found["configuration"]["status"], found["schema drift"]["status"]) == ("problem", "ok")


def test_without_a_database_all_else_is_examined(surgery: Surgery) -> None:
    url = "sqlite:////nowhere/at/all.db" if surgery.world.database.is_sqlite else "postgresql://127.0.0.1:1/nobody"
    text = surgery.config.read_text().replace(surgery.world.url, url)
    surgery.config.write_text(text)
    found = surgery.see()
    assert found["database"]["status"] == "problem"
    assert {found[name]["status"] for name in ("ticks", "schema drift", "rights", "journal mode")} == {"not applicable"}
    assert found["handlers"]["status"] == "ok"


@pytest.mark.parametrize("what", ["unreachable", "damaged", "gone"])
def test_only_a_database_that_may_answer_again_loses_no_job(surgery: Surgery, tmp_path: Path, what: str) -> None:
    file = tmp_path / "spoiled.db"
    if what == "damaged":
        file.write_bytes(bytes(range(1, 255)) * 80)
    elif what == "gone":
        remember(surgery.config.parent, parse_url(f"sqlite:///{file}"))
    url = "postgresql://127.0.0.1:1/nobody" if what == "unreachable" else f"sqlite:///{file}"
    surgery.config.write_text(surgery.config.read_text().replace(surgery.world.url, url))
    advice = surgery.see()["database"]["fix"]
    assert ("no job is lost; check the address and the server" in advice) is (what == "unreachable")
    assert ("a restored backup has only the jobs of its time" in advice) is (what != "unreachable")


def test_without_tables_it_says_so_and_makes_none(
    surgery: Surgery, new_postgres_url: Callable[..., str], tmp_path: Path
) -> None:
    is_sqlite = surgery.world.database.is_sqlite
    url = f"sqlite:///{tmp_path / 'empty.db'}" if is_sqlite else new_postgres_url()
    surgery.config.write_text(surgery.config.read_text().replace(surgery.world.url, url))
    found = surgery.see()
    if is_sqlite:
        assert found["database"]["text"].endswith("does not exist yet")
        assert found["database"]["fix"].startswith("the first tick creates the file, and so does the trial tick")
        assert not (tmp_path / "empty.db").exists()
    else:
        assert found["schema revision"]["text"] == "the database has no cronjobs tables"
        assert found["ticks"]["status"] == "not applicable"


def test_a_check_that_fails_itself_says_so_and_the_others_go_on(
    surgery: Surgery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: ExaminedSite) -> Any:
        raise RuntimeError("no such thing\x1b[31m")

    broken = Examination("broken", "Does it fail?", "nothing", fail)
    monkeypatch.setattr(examine, "CHECKS", (broken, *CHECKS))
    found = surgery.see()
    assert found["broken"]["status"] == "warning"
    assert "this check itself failed: RuntimeError: no such thing" in found["broken"]["text"]
    assert found["disk space"]["status"] == "ok"
    assert "\x1b" not in surgery.world.cronjobs("doctor").out


def test_secrets_are_masked(surgery: Surgery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRONJOBS_DATABASE_URL", "postgresql://ada:hunter2hunter2@127.0.0.1:1/x")
    for options in ((), ("--json",)):
        answer = surgery.world.cronjobs("doctor", *options)
        assert answer.code == 1
        assert "hunter2" not in answer.out + answer.err
