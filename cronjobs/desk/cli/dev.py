"""``cronjobs dev``: run ticks in the foreground while you write handlers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Set
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer

from cronjobs.clock import SYSTEM, sleep
from cronjobs.desk.cli import parse_values
from cronjobs.desk.cli.loading import command_line, load_settings
from cronjobs.desk.cli.options import Source
from cronjobs.desk.cli.progress import Progress
from cronjobs.engine.command.database import open_database
from cronjobs.engine.command.printing import coloured, echo, is_terminal
from cronjobs.engine.config.load import load
from cronjobs.engine.database.connection import Database
from cronjobs.engine.run_due.options import SHOWS_PROGRESS
from cronjobs.engine.schedules.definition import fingerprint
from cronjobs.engine.store.ticks import overview
from cronjobs.engine.store.upcoming import due_attempts
from cronjobs.errors import CronjobsError, UsageError
from cronjobs.model import duration_text
from cronjobs.text import visible

POLL_S: Final = 0.25  # seconds between two checks for due work
# An environment with one of these names counts as production.
PRODUCTION: Final = frozenset({"production", "prod", "live"})
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_COLOURS: Final = {
    "job.dead": "red",
    "job.succeeded": "green",
    "job.retried": "yellow",
    "job.timed_out": "yellow",
    "config.fault": "red",
    "database.trouble": "red",
}
_IDLE: Final = re.compile(r"no job ran in [\w.]+; (?!SIG).*")  # the summary line of run-due -v after an idle tick


def dev(
    source: Source,
    schedules: Annotated[
        bool, typer.Option("--schedules", help="Apply the file's schedules, and fire those that are due.")
    ] = False,
    every: Annotated[str, typer.Option("--every", metavar="DURATION", help="Tick at least this often.")] = "5s",
    yes: Annotated[bool, typer.Option("--yes", help='Run even if the file has "environment: production".')] = False,
) -> None:
    """While you write handlers, run ticks in the foreground as soon as jobs are due, and print each event.

    A tick starts as soon as a job is due, and otherwise every few seconds. Each tick is a new process, so edits to the
    handlers or the file apply from the next tick on. Schedules do not fire without --schedules. If ticks repeat a
    message, it is printed only once. Ctrl-C stops claiming, gives running jobs their shutdown grace, and exits with 0.
    A second Ctrl-C ends the tick at once.
    """
    pause = parse_values.span(every, "--every", above_zero=True)
    settings = load_settings(source)
    if settings.environment.lower() in PRODUCTION and not yes:
        raise UsageError(
            f'{settings.file} says "environment: {settings.environment}", and dev would run the jobs of that '
            "environment with the code that you are editing here: name another file with --config, or add --yes"
        )
    environ = dict(os.environ) | {"CRONJOBS_SCHEDULES": "on" if schedules else "off"}
    if url := source.given("database_url"):
        # Pass the URL in the environment, since every user on the host can read a process's arguments.
        environ["CRONJOBS_DATABASE_URL"] = url
    environ[SHOWS_PROGRESS] = "0.5" if is_terminal("stderr") else "5"
    # A Django project may keep these settings in Django and have no cronjobs.yaml.
    file = settings.file if settings.file.exists() else None
    ticks = _Ticks(file, environ)
    database = open_database(settings)
    database.close()
    firing = "schedules fire" if schedules else "schedules do not fire (to fire them: --schedules)"
    echo(f"{settings.file}, database {database.address}: a tick every {duration_text(pause)}, and when a job is due;")
    echo(f"{firing}. Ctrl-C ends dev.")
    with ticks.signals():
        while ticks.stopped_by is None:
            with closing(_Watch(file, environ, schedules)) as watch:
                code = ticks.run()
                _wait(ticks, pause.total_seconds(), watch if code in (0, 1) else None)
    if ticks.stopped_by != signal.SIGINT:
        raise typer.Exit(128 + int(ticks.stopped_by or 0))


# --- ticks ------------------------------------------------------------------------------------------------------------


class _Ticks:
    """Runs ticks one after another, each in its own process, and prints their output."""

    def __init__(self, file: Path | None, environ: Mapping[str, str]) -> None:
        self.command = [*command_line(), "run-due", "-v", *([] if file is None else ["--config", str(file)])]
        self.environ = environ
        self.stopped_by: signal.Signals | None = None
        self._running: subprocess.Popen[str] | None = None
        self._said: set[str] = set()  # the lines of the previous tick, which are not printed again
        self._below = Progress()

    @contextmanager
    def signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """End the loop and ask the tick to stop. On the second signal, the tick ends at once.

        Sends SIGTERM, since on SIGINT an interpreter that is still starting would print a traceback.
        """
        self.stopped_by = self.stopped_by or signal.Signals(number)
        if self._running is not None:
            with suppress(ProcessLookupError):
                self._running.send_signal(signal.SIGTERM)

    def run(self) -> int:
        """Run one tick. Return its exit code."""
        # The tick gets a process group of its own. Otherwise the terminal's Ctrl-C would reach the tick in addition to
        # our SIGTERM, and two signals mean "end at once". If a signal came before the tick's process existed, the tick
        # is stopped below.
        with subprocess.Popen(
            self.command,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="backslashreplace",
            process_group=0,
        ) as tick:
            self._running = tick
            if self.stopped_by is not None:
                tick.terminate()
            # Read in a thread, since a process that a handler left running may keep the pipe open after the tick has
            # exited.
            reader = threading.Thread(target=self._print_tick, args=[tick], daemon=True)
            reader.start()
            code = tick.wait()
            self._running = None
            reader.join(1)
            if reader.is_alive():
                tick.stdout = None
        return code

    def _print_tick(self, tick: subprocess.Popen[str]) -> None:
        said: set[str] = set()
        assert tick.stdout is not None
        for line in tick.stdout:
            text = visible(line.rstrip("\n"))
            if text.startswith("job.progress ") and is_terminal("stderr"):
                self._below.say(text.removeprefix("job.progress "))
                continue
            self._below.say("")
            if text not in self._said and not _IDLE.fullmatch(text):
                name = text.partition(" ")[0]
                echo(coloured(name, _COLOURS[name]) + text[len(name) :] if name in _COLOURS else text)
            said.add(text)
        self._below.say("")
        self._said = said


# --- between ticks ----------------------------------------------------------------------------------------------------


class _Watch:
    """Detects newly due work. Due work that the last tick left waiting does not count as new."""

    def __init__(self, file: Path | None, environ: Mapping[str, str], schedules: bool) -> None:
        self.schedules = schedules
        self.database: Database | None = None
        self.known: Set[object] = frozenset()
        with suppress(CronjobsError):  # the tick reports an unusable file or database
            settings = load(file, environ=environ)
            self.fingerprint = fingerprint(settings)
            self.database = open_database(settings)
            self.known = self._due(self.database)

    def came(self) -> bool:
        """Return whether any work became due since the last call."""
        if self.database is None:
            return False
        try:
            due = self._due(self.database)
        except CronjobsError:
            return False
        known, self.known = self.known, due
        return bool(due - known)

    def close(self) -> None:
        if self.database is not None:
            self.database.close()

    def _due(self, database: Database) -> Set[object]:
        with database.read() as connection:
            seen = overview(connection, host="", place="", fingerprint=self.fingerprint)
            due: set[object] = set(due_attempts(connection)) if seen.jobs_due else set()
        if seen.expired:
            due.add("a lease that ran out")
        if self.schedules and seen.schedules_due:
            due.add("a schedule")
        return due


def _wait(ticks: _Ticks, seconds: float, watch: _Watch | None) -> None:
    """Sleep until the next tick should start."""
    until = SYSTEM.monotonic() + seconds
    while ticks.stopped_by is None and (left := until - SYSTEM.monotonic()) > 0:
        if watch is not None and watch.came():
            return
        sleep(min(POLL_S, left))
