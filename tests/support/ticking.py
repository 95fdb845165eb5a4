"""Real ticks for tests. They have their own project, start as under cron, and are judged by what their handlers did.

Handlers append a line to one file for everything that they do, with O_APPEND and one write per line. So tests know how
often work was really done without asking the database. A row that says "succeeded" can hide a job that ran twice.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from cronjobs.clock import SYSTEM
from cronjobs.engine.rules.recovery_policy import AttemptPolicy
from cronjobs.model import RetryPolicy
from support import forked
from support.postgres import SUPERUSER, as_role

HANDLERS = '''
import json, os, sys, threading, time
from cronjobs import GiveUp, RetryLater, RetryPolicy, Snooze, job

HERE = os.path.dirname(os.path.abspath(__file__))
_effects = os.open(os.path.join(HERE, "effects"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def say(what, ctx):
    line = f"{time.monotonic():.6f} {what} {ctx.job_id} {ctx.attempt} {os.getpid()}\\n"
    os.write(_effects, line.encode())


def wait_for(name, give_up_s=60):
    """Until the test makes a file of this name."""
    end = time.monotonic() + give_up_s
    while not os.path.exists(os.path.join(HERE, name)):
        assert time.monotonic() < end, name
        time.sleep(0.005)


@job("t.quick")
def quick(ctx, **payload):
    say("ran", ctx)


@job("t.gated")
def gated(ctx, gate="gate"):
    """Runs until the test opens the gate."""
    say("start", ctx)
    wait_for(gate)
    say("end", ctx)
'''


_numbers = itertools.count()

WITHOUT_WATCHDOG = """
from cronjobs.engine.tick.watchdog import Watchdog
Watchdog.stand_at = lambda self, instant: None
"""

# Cron's environment, with the path of the package to test if that is not the installed one (tests/mutants).
CRONS = {"PATH": "/usr/bin:/bin"} | {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}


@dataclass(frozen=True)
class Effect:
    """One line of the effects file. ``at`` is from the monotonic clock, which all processes of the host share."""

    at: float
    what: str
    job_id: int
    attempt: int
    pid: int


@dataclass
class Tick:
    """A running ``cronjobs run-due``."""

    process: subprocess.Popen[bytes]
    started: float
    folder: Path
    name: str
    gone_at: float | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, within_s: float = 50) -> int:
        """Wait for the end.

        Return the exit code as Python reports it: -14 means "ended by SIGALRM", which is 142 in a shell.
        """
        code = self.process.wait(within_s)
        if self.gone_at is None:
            self.gone_at = SYSTEM.monotonic()
        return code

    @property
    def took_s(self) -> float:
        assert self.gone_at is not None
        return self.gone_at - self.started

    @property
    def stdout(self) -> str:
        return (self.folder / f"{self.name}.out").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return (self.folder / f"{self.name}.err").read_text(errors="replace")


@dataclass
class Project:
    """A folder with cronjobs.yaml and handlers.py, and its database."""

    folder: Path
    url: str
    ticks: list[Tick] = field(default_factory=list)

    def configure(self, yaml: str = "", handlers: str = "", imports: str = "[handlers]") -> Project:
        """Write both files. *handlers* is added after the common handlers."""
        head = f"database: {json.dumps(self.url)}\nimports: {imports}\nlog: tick.log\n"
        (self.folder / "cronjobs.yaml").write_text(head + yaml)
        (self.folder / "handlers.py").write_text(HANDLERS + handlers)
        return self

    # --- ticks --------------------------------------------------------------------------------------------------------

    def start(self, *options: str, **changes: Any) -> Tick:
        """Start a tick in cron's environment. Its output goes to files."""
        name = f"tick-{next(_numbers)}"
        argv = [sys.executable, "-m", "cronjobs", "run-due", "--config", str(self.folder / "cronjobs.yaml"), *options]
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.err").open("wb") as err:
            forked.prepare()
            started = SYSTEM.monotonic()
            given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err, "cwd": "/"}
            given["env"] = CRONS | {"XDG_STATE_HOME": str(self.folder)} | changes.pop("env", {})
            process = forked.start(changes.pop("argv", argv), **(given | changes))
        tick = Tick(process, started, self.folder, name)
        self.ticks.append(tick)
        return tick

    def tick(self, *options: str, within_s: float = 30, **changes: Any) -> Tick:
        """Run one tick from start to end."""
        tick = self.start(*options, **changes)
        tick.wait(within_s)
        return tick

    def end_everything(self) -> None:
        for tick in self.ticks:
            if tick.process.poll() is None:
                tick.process.kill()
                tick.process.wait()

    # --- the database, from outside -----------------------------------------------------------------------------------

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    @property
    def file(self) -> str:
        return self.url.removeprefix("sqlite:///")

    def connect(self) -> Any:
        """Open a connection like another program's, for example psql's."""
        if self.is_sqlite:
            return sqlite3.connect(self.file, isolation_level=None, timeout=10)
        return psycopg.connect(self.url, autocommit=True)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement that both databases understand."""
        connection = self.connect()
        try:
            cursor = connection.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()

    def admin_sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement for which the least roles have no right, such as DDL or a manual change of the ledger."""
        return Project(self.folder, as_role(self.url, SUPERUSER)).sql(statement)

    def value(self, statement: str) -> Any:
        return self.sql(statement)[0][0]

    def add(self, job_type: str, payload: str = "{}", **columns: object) -> int:
        """INSERT a job, as a program in any language would.

        Return its id. A running job gets the policy that a claim writes.
        """
        given = {"job_type": job_type, "payload": payload} | columns
        if columns.get("status") == "running":
            given.setdefault("policy", AttemptPolicy(RetryPolicy()).text())
        values = ", ".join("'" + str(value).replace("'", "''") + "'" for value in given.values())
        found = self.value(f"INSERT INTO cronjobs_jobs ({', '.join(given)}) VALUES ({values}) RETURNING id")
        return int(found)

    def add_many(self, job_type: str, count: int, **columns: object) -> None:
        names = "".join(f", {name}" for name in columns)
        values = "".join(f", '{value}'" for value in columns.values())
        self.sql(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) "
            f"INSERT INTO cronjobs_jobs (job_type{names}) SELECT '{job_type}'{values} FROM n"
        )

    def job(self, job_id: int) -> dict[str, Any]:
        names = "status, attempts, failures, losses, interruptions, locked_by, last_error, error_type, result"
        [row] = self.sql(f"SELECT {names} FROM cronjobs_jobs WHERE id = {job_id}")
        return dict(zip(names.split(", "), row, strict=True))

    def outcomes(self, job_id: int) -> list[str]:
        """Return the outcomes of the job's attempts, in order."""
        found = self.sql(f"SELECT outcome FROM cronjobs_job_runs WHERE job_id = {job_id} ORDER BY attempt")
        return [row[0] for row in found]

    def statuses(self) -> dict[str, int]:
        return dict(self.sql("SELECT status, count(*) FROM cronjobs_jobs GROUP BY status"))

    def everything(self) -> list[Any]:
        """Return all rows about jobs, to see whether something has changed."""
        return [
            self.sql("SELECT * FROM cronjobs_jobs ORDER BY id"),
            self.sql("SELECT * FROM cronjobs_job_runs ORDER BY job_id, attempt"),
            self.sql("SELECT * FROM cronjobs_ticks ORDER BY id"),
        ]

    def lease_ended(self) -> bool:
        """Whether all leases have expired, by the database's clock."""
        now = "CAST(1e6 * (julianday('now') - 2440587.5) * 86400 AS INTEGER)" if self.is_sqlite else "now()"
        return bool(self.value(f"SELECT count(*) FROM cronjobs_jobs WHERE locked_until > {now}") == 0)

    def let_leases_end(self) -> None:
        """Let leases expire, as they do over time if the runner is gone."""
        past = "1600000000000000" if self.is_sqlite else "'2020-01-01'"
        self.sql(f"UPDATE cronjobs_jobs SET locked_until = {past} WHERE status = 'running'")

    def let_ticks_age(self) -> None:
        """Let ticks age, as they do over time if no host ticks."""
        past = "1600000000000000" if self.is_sqlite else "'2020-01-01'"
        self.sql(f"UPDATE cronjobs_ticks SET started_at = {past}, finished_at = NULL")

    def make_due(self) -> None:
        """Make a waiting retry due, as it becomes over time."""
        past = "1600000000000000" if self.is_sqlite else "'2020-01-01'"
        self.sql(f"UPDATE cronjobs_jobs SET run_at = {past} WHERE status IN ('queued', 'failed')")

    # --- effects ------------------------------------------------------------------------------------------------------

    def effects(self, what: str | None = None) -> list[Effect]:
        file = self.folder / "effects"
        # leave out the last line, of which a reader may see only a part
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        found = []
        for line in lines:
            at, said, *numbers = line.split()
            found.append(Effect(float(at), said, *map(int, numbers)))
        return [effect for effect in found if what in (None, effect.what)]

    def times_ran(self, what: str = "ran") -> Counter[int]:
        return Counter(effect.job_id for effect in self.effects(what))

    def open(self, gate: str = "gate") -> None:
        (self.folder / gate).touch()

    def log(self) -> str:
        file = self.folder / "tick.log"
        return file.read_text() if file.exists() else ""


@contextmanager
def rivals(project: Project, *options: str) -> Iterator[list[Tick]]:
    """Run ticks of other hosts, one after another, until the block ends."""
    enough = threading.Event()
    seen: list[Tick] = []

    def tick_on() -> None:
        while not enough.is_set():
            tick = project.start(*options)
            seen.append(tick)
            with suppress(subprocess.TimeoutExpired):
                tick.wait()

    thread = threading.Thread(target=tick_on)
    thread.start()
    try:
        yield seen
    finally:
        enough.set()
        thread.join()


def patched(project: Project, patch: str) -> dict[str, Any]:
    """Return how to start a tick whose process runs a patch first."""
    folder = project.folder / "patch"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(patch)
    return {"env": first_on_path(folder)}


def first_on_path(folder: Path) -> dict[str, str]:
    """Return a variable that makes a process import from *folder* first, and use this process's cronjobs."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), CRONS.get("PYTHONPATH")]))}


def stop_and_go(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def due_six_hours_ago() -> str:
    """The timing of a daily schedule that no test meets in real time, at whatever hour the test runs."""
    return f"cron: '0 {(SYSTEM.now().hour - 6) % 24} * * *', timezone: UTC"


def a_day_passes(project: Project) -> None:
    """The schedules' occurrences and their watermarks move into the past by a day, so that one more is due."""
    back = "- 86400000000" if project.is_sqlite else "- interval '24 hours'"
    project.admin_sql(f"UPDATE cronjobs_occurrences SET first_for = first_for {back}, last_for = last_for {back}")
    project.sql(f"UPDATE cronjobs_schedules SET seen_until = seen_until {back}, next_at = next_at {back}")


def events(stderr_or_log: str, name: str) -> list[str]:
    return re.findall(rf"^.*\b{re.escape(name)} .*$", stderr_or_log, re.MULTILINE)


def cli(project: Project, *words: str, code: int = 0) -> str:
    """Run the command in a separate process. Return its output."""
    argv = [sys.executable, "-m", "cronjobs", *words, "--config", str(project.folder / "cronjobs.yaml")]
    done = forked.run(argv)
    assert done.returncode == code, done
    return done.stdout + done.stderr
