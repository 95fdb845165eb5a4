"""No text that strangers write into rows can harm a reader: no output has an escape sequence or a forged line."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update
from support.project import Project

from cronjobs import events
from cronjobs.clock import SYSTEM
from cronjobs.desk.cli.progress import Progress
from cronjobs.engine.command.printing import complain
from cronjobs.engine.database import tables
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs

# Cursor movement, a line end of each kind, a bidi override: each would show something that is not there.
FORGED = "FORGED all is well"
HOSTILE = f"x\x1b[2J\x1b]0;title\x07\r{FORGED}\n{FORGED}\x85{FORGED}\u2028{FORGED}\u202e\x9b31m"
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

HANDLERS = f"""
from cronjobs import GiveUp, job

HOSTILE = {HOSTILE!r}

@job("t.known")
def known(a: int = 0): ...

@job("t.raises")
def raises():
    print(HOSTILE)
    raise GiveUp(HOSTILE)

@job("t.class")
def odd_class():
    raise type(HOSTILE, (Exception,), {{}})(HOSTILE)
"""
YAML = """
defaults: {retry: {max_attempts: 1}}
log: cronjobs.log
queues: {mail: {max_waiting: 10}}
"""

LOOKING = [
    ("status",),
    ("history",),
    ("audit",),
    ("explain", "--type", "t.known"),
    ("jobs", "list"),
    ("jobs", "list", "--group-by", "error"),
    ("jobs", "show", "1"),
    ("jobs", "show", "2"),
    ("jobs", "show", "3"),
    ("jobs", "show", "5"),
    ("explain", "1"),
    ("explain", "5"),
    ("effects", "list"),
    ("schedules", "list"),
    ("check", "--live"),
]


@pytest.fixture
def database(sqlite_migrated: str) -> Iterator[Database]:
    database = Database(parse_url(f"sqlite:///{sqlite_migrated}"))
    yield database
    database.close()


@pytest.fixture
def project(sqlite_migrated: str, database: Database, tmp_path: Path) -> Project:
    """Rows in which each column that a stranger may write holds text that acts on a terminal."""
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write(YAML, HANDLERS)
    rows: list[dict[str, Any]] = [
        {"job_type": "t.known", "payload": {HOSTILE: 1}},
        {"job_type": "t.raises", "meta": {HOSTILE: HOSTILE}},
        {"job_type": "t.class", "queue": HOSTILE, "concurrency_key": HOSTILE},
        {"job_type": "t.known", "payload": {"a": 1}, "idempotency_key": HOSTILE},
        {"job_type": HOSTILE, "enqueued_by": HOSTILE},
    ]
    with database.write() as connection:
        for row in rows:
            connection.execute(insert(jobs).values(row))
        connection.execute(insert(tables.effects).values(key=HOSTILE, job_id=2, attempt=1))
        connection.execute(insert(tables.pauses).values(scope="queue", name=HOSTILE, by=HOSTILE, why=HOSTILE))
        tick = {"host": HOSTILE, "tick": "0", "pid": 1, "version": HOSTILE, "ended": HOSTILE}
        when = dict.fromkeys(("started_at", "finished_at"), SYSTEM.now())
        did = {"succeeded": HOSTILE, "dead": 7, HOSTILE: 1}
        connection.execute(insert(tables.ticks).values(did=did, **tick, **when))
        connection.execute(insert(tables.audit).values(actor=HOSTILE, action="pause", subject=HOSTILE, why=HOSTILE))
    return project


def harmless(text: str) -> bool:
    return not ACTS.search(text) and not re.search(f"^{FORGED}", text, re.MULTILINE)


@pytest.mark.slow
def test_nothing_that_a_row_holds_acts_on_who_reads_of_it(project: Project, database: Database) -> None:
    tick = project.run("run-due")
    assert "is dead" in tick.err or "are dead" in tick.err
    assert FORGED in tick.err  # the text is there, and harmless
    assert harmless(tick.err)
    assert harmless(tick.out)
    log = (project.folder / "cronjobs.log").read_bytes().decode()
    assert FORGED in log
    assert harmless(log)
    with database.write() as connection:  # columns that only runners write
        connection.execute(update(jobs).where(jobs.c.id == 4).values(last_error=HOSTILE, error_type=HOSTILE))
    for command in LOOKING:
        answer = project.call(*command)
        assert answer.code in (0, 1), (command, answer)
        assert harmless(answer.out), command
        assert harmless(answer.err), command
        if command[0] not in ("check",):
            as_json = project.call(*command, "--json")
            json.loads(as_json.out)
            assert as_json.out.isascii(), command
            assert harmless(as_json.err), command


def test_what_operators_are_asked_and_answered_is_harmless(project: Project) -> None:
    for command in (
        ("enqueue", HOSTILE, "--queue", HOSTILE),
        ("enqueue", "t.known", "--payload", json.dumps({HOSTILE: 1})),
        ("jobs", "cancel", "1", "--why", HOSTILE),
        ("jobs", "retry", "1"),
        ("run", HOSTILE),
        ("trigger", HOSTILE),
        ("explain", HOSTILE),
        ("pause", "--queue", HOSTILE, "--why", HOSTILE),
        ("resume", "--queue", HOSTILE),
    ):
        answer = project.call(*command)
        assert harmless(answer.out), command
        assert harmless(answer.err), command


MARKUP = "[red]x[/red][/] :bomb: [link=file:///]"


def test_what_rich_would_take_for_markup_is_shown_as_it_is(
    project: Project, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typer prints its refusals by rich; our tables do without it."""
    monkeypatch.setenv("COLUMNS", "200")
    with database.write() as connection:
        connection.execute(insert(jobs).values(job_type=MARKUP, queue=MARKUP, payload={MARKUP: MARKUP}))
        connection.execute(insert(tables.pauses).values(scope="queue", name=MARKUP, why=MARKUP))
        connection.execute(insert(tables.effects).values(key=MARKUP, job_id=6, attempt=1))
    for command, count in (("jobs list", 2), ("jobs show 6", 4), ("effects list", 1), ("status", 2), ("explain 6", 1)):
        assert project.call(*command.split()).out.count(MARKUP) >= count, command
    assert MARKUP in project.call("explain", MARKUP).out  # the type of a job that waits
    for command in ("jobs list --status", "jobs show", "schedules show", "explain --key", "run", "trigger"):
        answer = project.call(*command.split(), MARKUP)
        assert answer.code in (1, 2), command
        assert "[red]x" in answer.err or "unable to parse" in answer.err, answer
        assert "\x1b" not in answer.err


def test_progress_keeps_to_one_line_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 40))
    with os.fdopen(ours, "rb", buffering=0) as screen, os.fdopen(theirs, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with Progress() as progress:
            progress.say("database error: " + HOSTILE * 9)
        seen = ""
        while seen.count("\x1b[K") < 2:
            seen += screen.read(4096).decode()
    shown, end = seen.removeprefix("\r").split("\x1b[K\r", 1)
    assert (len(shown), end) == (39, "\x1b[K")
    assert harmless(shown)


def test_a_death_in_a_mail_is_one_line() -> None:
    facts = dict.fromkeys(("job_type", "error", "error_type", "at"), HOSTILE) | {"job_id": 1}
    line = events.death_line(events.Event("job.dead", facts), Path(f"/srv/{HOSTILE.replace('/', '')}/cronjobs.yaml"))
    assert FORGED in line
    assert "\n" not in line
    assert harmless(line)


def test_stderr_escapes_whatever_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    complain("two lines\nof a traceback, \x1b[2J and \x9b31m")
    assert capsys.readouterr().err == "two lines\nof a traceback, \\x1b[2J and \\x9b31m\n"
