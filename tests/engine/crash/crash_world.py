"""The world of a flow's process: a folder, a database, and a clock."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import typer.main
from support.ticking import Project

from cronjobs import events
from cronjobs.clock import SYSTEM, sleep
from cronjobs.engine.config import load
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.column_types import to_microseconds
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.probe.kernel_facts import process_started
from cronjobs.engine.tick.result import Result, TickFilter
from cronjobs.engine.tick.tick import Tick
from cronjobs.engine.tick.watchdog import Unarmed
from cronjobs.errors import CronjobsError
from cronjobs.installed import if_installed
from cronjobs.testing import FakeClock
from engine.crash import crash_handlers

TESTS = Path(__file__).parents[2]
HEAD = """
imports: [engine.crash.crash_handlers]
python_path: [{tests}]
env: {{CRASH_EFFECTS: {effects}}}
run: {{workers: {workers}, lease: {lease}, max_losses: 3}}
"""
DESK = if_installed("cronjobs.desk.cli.main")
# Typer makes it anew for each call, in a tenth of a second.
COMMANDS: Any = None if DESK is None else typer.main.get_command(DESK.app)
REST_EVERY = timedelta(hours=3)  # every lease and every retry is over by the next of them
MOST_TICKS = 8
STRAYS_LEFT_S = 40


@dataclass
class World:
    """``base`` is the flow's now, some time before the real one; the runs after it are hours later."""

    folder: Path
    url: str
    base: datetime

    def __post_init__(self) -> None:
        self.other: Other | None = None
        os.environ["CRASH_EFFECTS"] = str(self.folder / "effects")
        self.project = Project(self.folder, self.url)
        self.is_sqlite = self.project.is_sqlite
        self._said = os.open(self.folder / "said", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    # --- what is there ------------------------------------------------------------------------------------------------

    def configure(self, yaml: str = "", workers: int = 1, lease: str = "60s") -> None:
        tests, effects = json.dumps(str(TESTS)), json.dumps(os.environ["CRASH_EFFECTS"])
        head = HEAD.format(tests=tests, effects=effects, workers=workers, lease=lease)
        (self.folder / "cronjobs.yaml").write_text(head + yaml)

    def settings(self) -> Settings:
        return load.load(self.folder / "cronjobs.yaml", environ={}, database_url=self.url)

    def instant(self, after: timedelta = timedelta(0)) -> Any:
        """An instant in the form in which SQL takes it."""
        at = self.base + after
        return to_microseconds(at) if self.is_sqlite else at.isoformat()

    def add(self, job_type: str, payload: str = "{}", **columns: Any) -> int:
        """A job that has been due for a minute."""
        due = self.instant(-timedelta(minutes=1))
        return self.project.add(job_type, payload, **({"run_at": due, "created_at": due} | columns))

    # --- what happens -------------------------------------------------------------------------------------------------

    def database(self, clock: FakeClock | None = None) -> Database:
        return Database(parse_url(self.url), clock=clock or FakeClock(self.base))

    def tick(
        self,
        after: timedelta = timedelta(0),
        *,
        only: str | None = None,
        budget_s: float = 9,
        on: Database | None = None,
    ) -> Result:
        """A tick at *after* from the base. With less than 10 s it has no time to prune."""
        clock = FakeClock(self.base + after)
        database = on or self.database(clock)
        database.clock = clock
        database.engine.update_execution_options(cronjobs_clock=clock)
        crash_handlers.clock = clock
        now = clock.monotonic()
        result = Tick(
            settings=self.settings(),
            database=database,
            identity=Identity.here(),
            clock=clock,
            watchdog=Unarmed(),  # the clock is moved about here, and the zygote has a limit of its own
            began=now,
            deadline=now + budget_s,
            emit=self._say,
            limits=TickFilter(only=only),
        ).run()
        if result.stuck:
            return result  # its threads are at work: whoever called ends the process
        if on is None:
            database.close()
        return result

    @property
    def now(self) -> timedelta:
        """How long after the base it really is: for processes that know no other clock."""
        return SYSTEM.now() - self.base

    def is_unfinished(self) -> bool:
        return bool(self.project.value("SELECT count(*) FROM cronjobs_jobs WHERE finished_at IS NULL"))

    def rest_in_real_time(self) -> None:
        """The same for jobs in processes of their own: leases and retries are made to end, by the real clock."""
        for _ in range(MOST_TICKS):
            self.project.let_leases_end()
            self.project.make_due()
            self.tick(self.now, budget_s=20)
            wait_for_strays(self.folder)
            if not self.is_unfinished():
                return

    def rest(self) -> None:
        """The next runners, until nothing is left to do."""
        database = self.database()
        for number in range(1, MOST_TICKS + 1):
            result = self.tick(REST_EVERY * number, on=database, budget_s=30)
            if result.trouble:
                raise RuntimeError(result.trouble)
            if not self.is_unfinished():
                break
        database.close()

    def command(self, *arguments: str) -> None:
        """A command as an operator gives it, in this process."""
        given = [*arguments, "--config", str(self.folder / "cronjobs.yaml"), "--database-url", self.url]
        try:
            COMMANDS.main(given, prog_name="cronjobs", standalone_mode=False)
        except SystemExit as end:
            self._note(f"{arguments} exited {end.code}")
        except CronjobsError as error:
            self._note(f"{arguments}: {error}")

    def _say(self, event: events.Event) -> None:
        self._note(events.line(event))

    def _note(self, line: str) -> None:
        os.write(self._said, f"{os.getpid()} {line}\n".encode())


def wait_for_strays(folder: Path) -> None:
    """Until every program is gone that a flow in *folder* has started, and that outlives its process."""
    mark = f"CRASH_EFFECTS={folder / 'effects'}".encode()

    def is_ours(process: Path) -> bool:
        try:
            return (
                mark in (process / "environ").read_bytes().split(b"\0")
                and process_started(int(process.name)) is not None
            )
        except OSError:
            return False

    give_up_at = SYSTEM.monotonic() + STRAYS_LEFT_S
    while any(is_ours(process) for process in Path("/proc").glob("[0-9]*")):
        assert SYSTEM.monotonic() < give_up_at, "a process that the flow has started does not end"
        sleep(0.005)


class Other:
    """Another runner's process, forked before this one has threads; it begins when it is told to.

    It answers when it is done, or earlier, in the middle of its work; and it hears when this process has let go, or is
    gone.
    """

    def __init__(self, act: Callable[[Other], None]) -> None:
        ours, theirs = os.pipe(), os.pipe()
        if os.fork() == 0:
            with suppress(BaseException):
                os.close(ours[1])
                os.close(theirs[0])
                self._hear, self._speak = ours[0], theirs[1]
                if os.read(self._hear, 1):
                    act(self)
                    self.say()
            os._exit(0)
        os.close(ours[0])
        os.close(theirs[1])
        self._hear, self._speak = theirs[0], ours[1]

    def go(self) -> None:
        """Let it begin, and wait until it says something."""
        self.say()
        os.read(self._hear, 1)

    def say(self) -> None:
        with suppress(BrokenPipeError):  # the first process was killed before this one came so far
            os.write(self._speak, b".")

    def until_let_go(self) -> None:
        """In the other process: wait until the first one is done."""
        while os.read(self._hear, 1):
            pass

    def let_go(self) -> None:
        os.close(self._speak)
