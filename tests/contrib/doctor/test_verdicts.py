"""Each judgement of ``doctor``: which facts are ok, and which give a warning or a problem."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cronjobs.contrib.doctor import database_verdicts as db
from cronjobs.contrib.doctor import host_verdicts as host
from cronjobs.contrib.doctor.diagnosis import Diagnosis
from cronjobs.contrib.doctor.mounts import filesystem_of
from cronjobs.contrib.doctor.statements import HeldRights, ServerFacts, TableStatistics, TickSpan
from cronjobs.desk.crontab.double_runs import DoubleRuns
from cronjobs.desk.crontab.other_blocks import OtherBlock
from cronjobs.desk.init.app_alembic import ARGUMENT, IMPORT_LINE, EnvFile
from cronjobs.engine.schema import grants

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
LINE = host.CronLine("same", "the crontab has exactly this line", True)
TWICE, CHANGED = DoubleRuns({"backup": 3}, {}, {}), DoubleRuns({}, {}, {"backup": 3})
BOTH = "cron itself runs line 3 (backup) of your crontab"
FIRED = host.TickTimes("web1", NOW, MINUTE, 3 * MINUTE, NOW - MINUTE)
MAIL = host.MailSetUp("/usr/sbin/sendmail", "ada", logs=True)
STATE = host.StateFolder("/home/ada/.local/state/cronjobs", True, None, "ext4")
DISK = host.Volume("database", "/srv", 50 * host.GIB, 100 * host.GIB)
FILE = db.FileFacts("/srv/cronjobs.db", 0o600, 0o755, ours=True)
TABLE = TableStatistics("cronjobs_jobs", 50_000, 400, 9 << 20, autovacuum=True)
SERVER = ServerFacts(170_002, "run", superuser=False, autovacuum=True)
BLOCKER = db.Blocker(7, "ada", "psql", None, None, "cronjobs_jobs")
REFUSED = 'database postgresql://a@db/jobs cannot be reached: connection to server at "db", port 5432 failed: FATAL:  '


def ticks(*seconds: float, took: float = 2) -> list[TickSpan]:
    return [TickSpan(NOW + at * SECOND, NOW + (at + took) * SECOND) for at in seconds]


def held(
    relation: str = "cronjobs_audit", rights: str = "SELECT INSERT", partly: str = "", owner: bool = False
) -> HeldRights:
    return HeldRights(relation, frozenset(rights.split()), frozenset(f"{rights} {partly}".split()), owner)


def role(*rows: HeldRights, **more: Any) -> db.RoleRights:
    return replace(db.RoleRights("app", "run", grants.RUN, rows), **more)


ENV = [EnvFile(Path("/srv/shop/migrations/env.py"), "")]
FILTERED = [replace(ENV[0], source=f"{IMPORT_LINE}\ncontext.configure({ARGUMENT})")]

CASES: list[tuple[str, Diagnosis, str]] = [
    # the configuration
    ("ok", host.configuration("cronjobs.yaml", [], is_misread=False), "cronjobs.yaml is valid"),
    ("problem", host.configuration("cronjobs.yaml", ["line 3: bad"] * 7, is_misread=True), "and 2 more"),
    ("problem", host.unreadable("cronjobs.yaml", "it does not parse"), "nothing runs: it does not parse"),
    ("ok", host.handlers(3, []), "job types: 3"),
    ("problem", host.handlers(3, ["module shop: cannot be imported"]), "module shop"),
    ("ok", host.job_types([], [], {}), "has a handler"),
    ("problem", host.job_types(["no handler is registered"], [], {}), "no handler"),
    ("problem", host.job_types([], ["mail.send"], {}), "mail.send, which no ticking host can run"),
    (
        "problem",
        host.job_types([], [], {"a.b": 2}),
        "2 jobs wait for a handler of type a.b, which this project does not have",
    ),
    (
        "problem",
        host.job_types([], [], {"a.b": 1, "a.c": 1}),
        "1 job waits for a handler of type a.c",
    ),
    ("ok", host.timeouts([]), "fits"),
    ("problem", host.timeouts(["mail.send: timeout 2h is above"]), "mail.send"),
    # cron
    ("ok", host.crontab(LINE, ticks=True), "exactly the line"),
    ("problem", host.crontab(replace(LINE, daemon=False), ticks=False), "no cron daemon runs"),
    ("ok", host.crontab(replace(LINE, daemon=None), ticks=False), "exactly"),
    ("warning", host.crontab(replace(LINE, state="differs"), ticks=True), "exactly"),
    (
        "warning",
        host.crontab(replace(LINE, others=[OtherBlock("/b/cronjobs.yaml", "whose ticks fail")]), ticks=True),
        "for /b/",
    ),
    ("warning", host.crontab(replace(LINE, by_hand=[4]), ticks=True), "line 4 of your crontab also starts ticks"),
    ("warning", host.crontab(replace(LINE, state="missing", by_hand=[4]), ticks=True), "cronjobs did not write that"),
    ("problem", host.crontab(replace(LINE, state="missing", by_hand=[4]), ticks=False), "cronjobs did not write that"),
    ("problem", host.crontab(replace(LINE, state="missing"), ticks=False), "nothing starts ticks"),
    ("warning", host.crontab(replace(LINE, state="missing"), ticks=None), ""),
    ("not applicable", host.crontab(replace(LINE, state="missing"), ticks=True), "something else starts ticks"),
    (
        "problem",
        host.crontab(replace(LINE, state="missing", double=TWICE), ticks=True),
        "and ticks run the same commands",
    ),
    ("problem", host.crontab(replace(LINE, double=TWICE), ticks=False), "and ticks run the same commands"),
    (
        "warning",
        host.crontab(replace(LINE, double=CHANGED), ticks=False),
        "cron runs line 3 (backup), and a schedule with",
    ),
    ("warning", host.crontab(replace(LINE, state="missing", double=CHANGED), ticks=True), "has another command"),
    ("problem", host.crontab(replace(LINE, state="missing", double=CHANGED), ticks=False), "nothing starts ticks"),
    ("not applicable", host.crontab(replace(LINE, state="missing", double=TWICE), ticks=False), BOTH),
    (
        "problem",
        host.crontab(replace(LINE, state="missing", double=TWICE), ticks=False, elsewhere="web2 (20s ago)"),
        f"{BOTH}, and ticks on web2 (20s ago) run the same commands",
    ),
    (
        "not applicable",
        host.crontab(replace(LINE, state="missing", double=DoubleRuns({"backup": 3}, {"backup": 3}, {})), ticks=False),
        '; to hand those lines over to ticks: "cronjobs crontab unwrap", then',
    ),
    ("not applicable", host.crontab(replace(LINE, state="missing", double=TWICE), ticks=None), BOTH),
    ("problem", host.crontab(replace(LINE, state="broken"), ticks=True), ""),
    ("not applicable", host.crontab(replace(LINE, state="unknown"), ticks=True), ""),
    ("warning", host.crontab(replace(LINE, state="unknown"), ticks=False), ""),
    ("ok", host.firing(FIRED, LINE), "ticks run on web1"),
    ("problem", host.firing(replace(FIRED, last_at=NOW - 10 * MINUTE), LINE), "the last was at 2026-03-02 07:50:00"),
    ("problem", host.firing(replace(FIRED, last_at=None), LINE), "never"),
    (
        "problem",
        host.firing(replace(FIRED, last_at=None), LINE, (("the database belongs to another project", 4),)),
        "ticks of this host did not start: the database belongs to another project (4 times)",
    ),
    ("warning", host.firing(replace(FIRED, last_at=NOW - 10 * MINUTE, elsewhere="web2"), LINE), "other hosts tick"),
    ("not applicable", host.firing(replace(FIRED, last_at=None, elsewhere="web2"), LINE), "other hosts tick"),
    (
        "not applicable",
        host.firing(replace(FIRED, last_at=None), replace(LINE, state="missing", double=TWICE)),
        f"no ticks are running on web1 (never), and {BOTH}",
    ),
    ("problem", host.firing(replace(FIRED, last_at=None), replace(LINE, double=TWICE)), "nothing runs"),
    ("ok", host.mail(MAIL), "to ada"),
    ("warning", host.mail(replace(MAIL, mailto="", mailto_line=3)), 'line 3 of the crontab sets MAILTO=""'),
    ("warning", host.mail(replace(MAIL, mailto="")), "MAILTO is empty in cron's environment"),
    ("warning", host.mail(replace(MAIL, program=None)), "cannot send mail"),
    ("not applicable", host.mail(replace(MAIL, mailto=None)), "your crontab has no line for this file"),
    ("ok", host.overlapping(ticks(*range(0, 600, 60)), MINUTE), "ends before"),
    ("ok", host.overlapping(ticks(0, 60, 120, 121, 180, 240, 300), MINUTE), "ends before"),  # one by hand
    ("warning", host.overlapping(ticks(*range(0, 600, 60), took=70), MINUTE), "was still running"),
    ("warning", host.overlapping(ticks(0, 1, 60, 61, 120, 121), MINUTE), "two crontab lines start ticks"),
    ("ok", host.overlapping(ticks(0, 3, 6, 10, 60, 63, 66, 70), MINUTE, lingers=True), "ends before"),
    ("warning", host.overlapping(ticks(*range(0, 60, 6), took=7), MINUTE, lingers=True), "was still running"),
    ("not applicable", host.overlapping(ticks(0), MINUTE), ""),
    # folders and disks
    ("ok", host.state_folder(STATE), "survives a restart"),
    ("problem", host.state_folder(replace(STATE, fault="it is not ours alone")), "not ours alone"),
    ("warning", host.state_folder(replace(STATE, lasting=False)), "which a reboot empties"),
    ("warning", host.state_folder(replace(STATE, filesystem="tmpfs")), "in memory"),
    ("ok", host.state_folder(replace(STATE, runs=2, longest=timedelta(minutes=2))), "survives a restart"),
    (
        "warning",
        host.state_folder(replace(STATE, runs=1200, longest=timedelta(hours=3))),
        "1,200 in /home/ada/.local/state/cronjobs; the oldest began 3h ago",
    ),
    ("ok", host.disk_space([DISK]), "51,200 MiB free"),
    ("ok", host.disk_space([replace(DISK, free=900 * host.MIB, size=2 * host.GIB)]), ""),  # a small disk, half empty
    ("warning", host.disk_space([DISK, replace(DISK, free=900 * host.MIB)]), "900 MiB"),
    ("problem", host.disk_space([DISK, replace(DISK, free=host.MIB)]), "1 MiB"),
    ("not applicable", host.alembic([], same_database=None), ""),
    ("ok", host.alembic(FILTERED, same_database=True), "leaves our tables alone"),
    ("ok", host.alembic(ENV, same_database=False), "another database"),
    ("warning", host.alembic(ENV, same_database=None), "if this alembic migrates this database"),
    ("problem", host.alembic(ENV, same_database=True), "would drop the cronjobs_ tables"),
    # the database
    ("ok", db.database("sqlite:///a.db", None), "answers"),
    ("problem", db.unreachable("connection refused", no_file=False), "refused"),
    ("problem", db.unreachable("existed before, but is missing now", to_restore=True), "missing"),
    ("problem", db.unreachable(f'{REFUSED}password authentication failed for user "a"', no_file=False), "password"),
    ("ok", db.locks([], NOW), "no other session"),
    ("problem", db.locks([BLOCKER], NOW), "pid 7 has locked cronjobs_jobs (application psql, user ada)"),
    ("warning", db.locks([replace(BLOCKER, pid=0, table=None)], NOW), "a prepared transaction"),
    ("problem", db.database("a", 'project "blog"'), 'belongs to project "blog"'),
    ("ok", db.revision("0005", "0005", "0001"), ""),
    ("problem", db.revision(None, "0005", None), "no cronjobs tables"),
    ("problem", db.revision("0004", "0005", "0001"), "this version needs 0005"),
    ("warning", db.revision("0006", "0005", "0003"), "can use them"),
    ("problem", db.revision("0006", "0005", "0006"), "ticks refuse to run"),
    ("ok", db.drift([]), ""),
    ("problem", db.drift(["table cronjobs_jobs is missing"]), "is missing"),
    ("ok", db.clocks(SECOND, SECOND, same_host=False), "agree"),
    ("ok", db.clocks(40 * SECOND, 39 * SECOND, same_host=False), "agree"),  # the network is slow
    ("warning", db.clocks(-30 * SECOND, SECOND, same_host=False), "30s behind"),
    ("problem", db.clocks(10 * MINUTE, SECOND, same_host=False), "10m ahead"),
    ("not applicable", db.clocks(10 * MINUTE, SECOND, same_host=True), ""),
    ("ok", db.version(SERVER), "PostgreSQL 17.2"),
    ("warning", db.version(replace(SERVER, version=990_000)), "newer"),
    # SQLite's file
    ("ok", db.sqlite_place("/srv/cronjobs.db", "ext4"), "local disk (ext4)"),
    ("ok", db.sqlite_place("/srv/cronjobs.db", None), "local disk"),
    ("problem", db.sqlite_place("/srv/cronjobs.db", "nfs4"), "network file system (nfs4)"),
    ("ok", db.sqlite_modes(FILE), "alone"),
    ("ok", db.sqlite_modes(replace(FILE, mode=0o660)), "and group"),
    ("warning", db.sqlite_modes(replace(FILE, mode=0o644)), "can read"),
    ("warning", db.sqlite_modes(replace(FILE, ours=False)), "another user"),
    ("problem", db.sqlite_modes(replace(FILE, mode=0o666)), "can write"),
    ("problem", db.sqlite_modes(replace(FILE, folder_mode=0o777)), "or its folder"),
    ("ok", db.sqlite_modes(replace(FILE, folder_mode=0o1777)), ""),  # sticky, like /tmp
    ("ok", db.sqlite_journal("wal"), "WAL"),
    ("warning", db.sqlite_journal("delete"), "is delete"),
    # PostgreSQL
    ("ok", db.bloat([TABLE], autovacuum=True), "keeps up"),
    ("problem", db.bloat([TABLE], autovacuum=False), "is off on this server"),
    ("problem", db.bloat([replace(TABLE, autovacuum=False)], autovacuum=True), "off for cronjobs_jobs"),
    ("warning", db.bloat([replace(TABLE, dead=200_000)], autovacuum=True), "200,000 dead rows"),
    ("ok", db.rights([role(held())]), "only the rights"),
    ("ok", db.rights([role(held("cronjobs_meta", "SELECT", "UPDATE"))]), ""),
    ("problem", db.rights([role(held(rights="SELECT"))]), "app lacks INSERT on cronjobs_audit"),
    ("warning", db.rights([role(held(rights="SELECT INSERT UPDATE"))]), "app has UPDATE on cronjobs_audit"),
    ("warning", db.rights([role(held(partly="UPDATE"))]), "app has UPDATE on columns of cronjobs_audit"),
    ("warning", db.rights([role(held(rights="SELECT INSERT DELETE", owner=True))]), "owns cronjobs_audit"),
    ("ok", db.rights([role(held(owner=True), kind="migrate", wanted={})]), ""),
    ("warning", db.rights([role(superuser=True)]), "superuser"),
    ("warning", db.rights([role(held()), role(held(), role="PUBLIC", wanted=None)]), "PUBLIC has INSERT, SELECT"),
]


def test_only_a_file_that_is_misread_makes_ticks_fail() -> None:
    for is_misread in (True, False):
        found = host.configuration("cronjobs.yaml", ["env: dev here, prod there"], is_misread=is_misread)
        assert ("ticks exit with 3" in str(found.fix)) == is_misread


@pytest.mark.parametrize(("status", "found", "said"), CASES)
def test_each_judgement(status: str, found: Diagnosis, said: str) -> None:
    assert found.status == status
    assert said in found.text
    assert (found.fix is not None) == (status in ("warning", "problem"))


def test_the_file_system_of_a_path_is_that_of_the_longest_mount_point(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(
        "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
        "30 22 0:44 / /srv rw shared:5 - nfs4 server:/srv rw\n"
        "31 30 0:45 / /srv/a\\040b rw - tmpfs tmpfs rw\n"
        "32 22 0:46 / /srvx rw - xfs /dev/sdb rw\n"
        "garbage\n"
    )
    there = {path: filesystem_of(Path(path), tmp_path) for path in ("/etc", "/srv/db", "/srv/a b/c", "/srvx/y", "/srv")}
    assert list(there.values()) == ["ext4", "nfs4", "tmpfs", "xfs", "nfs4"]
    assert filesystem_of(Path("/"), tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('password authentication failed for user "a"', "Correct the user or the password"),
        ('no pg_hba.conf entry for host "10.0.0.7", user "a", database "jobs", no encryption', "or pg_hba.conf"),
        ('role "a" does not exist', "Correct the user or the password"),
        ('database "jobs" does not exist', "correct its name in the URL, create it if it is new, or restore it"),
        ("sorry, too many clients already", "check the address and the server"),
    ],
)
def test_a_server_that_refuses_a_login_gets_other_advice_than_one_that_does_not_answer(answer: str, said: str) -> None:
    assert said in (db.unreachable(f"{REFUSED}{answer}", no_file=False).fix or "")
