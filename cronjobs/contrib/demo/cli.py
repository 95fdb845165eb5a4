"""``cronjobs demo``: show cronjobs at work in a few seconds, with real ticks on its own SQLite file.

Each command runs in a fork of this process, which has imported what the commands need. To start an interpreter for each
command would take most of the demo's time.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sqlite3
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from cronjobs import __main__ as program
from cronjobs.clock import SYSTEM, sleep
from cronjobs.engine.command.printing import coloured, echo
from cronjobs.engine.host.files import make_folder
from cronjobs.errors import EX_SOFTWARE, CronjobsError

CONFIG = """\
# This is a whole configuration. "cronjobs init" writes one that explains every setting.
database: sqlite:///demo.db
imports: [demo_jobs]
schedules:
  heartbeat: {every: 1m, job: demo.beat, payload: {of: heartbeat}}
  newsletter: {every: 1m, job: demo.beat, payload: {of: newsletter}}
"""

HANDLERS = '''\
"""The handlers of the demo: plain functions that write a line to effects.log when they do something."""

from pathlib import Path

from cronjobs import Context, GiveUp, RetryPolicy, job

EFFECTS = Path(__file__).with_name("effects.log")


def effect(line: str) -> None:
    with EFFECTS.open("a") as file:
        file.write(line + "\\n")


@job("demo.greet")
def greet(name: str) -> str:
    effect(f"greeted {name}")
    return f"Hello, {name}!"


@job("demo.charge", retry=RetryPolicy(delays=["1s"], max_attempts=5))
def charge(ctx: Context, order: int) -> None:
    if ctx.tries == 1:
        raise ConnectionError("503 from the payment provider")
    effect(f"charged order {order}")


@job("demo.invoice")
def invoice(order: int) -> None:
    raise GiveUp(f"order {order} has no address")


@job("demo.beat")
def beat(ctx: Context, of: str) -> None:
    effect(f"{of} of {ctx.scheduled_for:%H:%M}")
'''

WAIT_S = 10.0  # wait up to this long for the retry, which is due after a second
LONGEST_S = 60  # one command may take this many seconds
ROOM_S = 15  # the demo takes this many seconds on a busy machine
NEEDED = (
    *(f"cronjobs.desk.cli.{name}" for name in ("main", "enqueue", "jobs_list")),
    *(f"cronjobs.engine.{name}" for name in ("run_due.command", "schema.migrations", "tick.work")),
)


def exit_code(child: int) -> int:
    """Wait for a process. Return its exit code, or minus the number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class DemoFailed(CronjobsError):
    """A result of the demo was wrong, which is a bug in cronjobs, or the folder of --keep cannot be made."""


def demo(
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep everything in this new folder, so that you can explore it."),
    ] = None,
) -> None:
    """See cronjobs work: jobs, a retry, a death, a schedule and two hosts, in a few seconds.

    The demo works offline, on its own SQLite file. It runs the commands that you would run, and checks what they did.
    """
    with _folder(keep) as folder:
        Demo(folder).play()
        if keep is not None:
            echo(f"\nThe demo is kept in {keep}: try  cd {shlex.quote(str(keep))} && cronjobs status")


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        try:
            make_folder(keep.parent)
            keep.mkdir(mode=0o755)
        except OSError as error:
            raise DemoFailed(f"--keep {keep}: {error.strerror}: name a folder that does not exist yet") from None
        yield keep.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="cronjobs-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Demo:
    """The demo's scenes. Each scene runs real commands, then checks what the handlers did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scenes = 0
        (folder / "cronjobs.yaml").write_text(CONFIG)
        (folder / "demo_jobs.py").write_text(HANDLERS)

    def play(self) -> None:
        for name in NEEDED:
            import_module(name)
        self.room_in_the_minute()
        began = SYSTEM.monotonic()
        self.a_job()
        self.a_retry()
        self.a_death()
        self.a_schedule()
        self.a_second_host()
        self.the_morning_after()
        echo(
            coloured("\nEverything went as it should", "green")
            + f" ({SYSTEM.monotonic() - began:.0f} s). In real life one crontab line runs the tick every minute:\n"
            "  cronjobs init && cronjobs crontab install"
        )

    def a_job(self) -> None:
        self.scene("A job is a row. cron only starts the program that looks for rows.")
        self.run("enqueue", "demo.greet", "--payload", '{"name": "Ada"}')
        self.run("run-due", "-v")
        self.expect(["greeted Ada"])

    def a_retry(self) -> None:
        self.scene("A provider is down: the job fails, waits in the database, and is tried again.")
        self.run("enqueue", "demo.charge", "--payload", '{"order": 17}', "--idempotency-key", "order-17")
        echo("  The same order, clicked twice: a job with this key already exists, so the second click adds none.")
        self.run("enqueue", "demo.charge", "--payload", '{"order": 17}', "--idempotency-key", "order-17")
        self.run("run-due", "-v")
        echo("  A second later, the demo runs the next tick (cron would wait for the next minute):")
        self.until_due()
        self.run("run-due", "-v")
        self.expect(["greeted Ada", "charged order 17"])

    def a_death(self) -> None:
        self.scene("A job that can never succeed dies at once: exit code 1, and cron mails the output.")
        self.run("enqueue", "demo.invoice", "--payload", '{"order": 18}')
        self.run("run-due", code=1)

    def a_schedule(self) -> None:
        self.scene('A schedule comes due: "every: 1m" in cronjobs.yaml.')
        echo("  (To avoid a wait, the demo makes the schedule due now by changing the schedule's row.)")
        self.a_minute_passes("heartbeat")
        self.run("run-due", "-v")
        if not self.effects("heartbeat"):
            raise DemoFailed(f"the schedule heartbeat did not run; only these ran: {self.effects()}")

    def a_second_host(self) -> None:
        self.scene(
            "On each of two hosts, two ticks start at the same moment. The database decides which tick does the work."
        )
        self.a_minute_passes("newsletter")
        before = len(self.effects("newsletter"))
        self.command("run-due")
        ticks = [self.start("run-due", CRONJOBS_HOST=host) for host in ("alpha", "beta", "alpha", "beta")]
        codes = [exit_code(tick) for tick in ticks]
        ran = self.effects("newsletter")[before:]
        echo(f"    four ticks exited with {codes}; the newsletter was sent by: {', '.join(ran)}")
        if codes != [0, 0, 0, 0] or not ran or len(set(ran)) != len(ran):
            raise DemoFailed(f"four ticks exited with {codes} and ran {ran}")

    def the_morning_after(self) -> None:
        self.scene('"What happened last night?"')
        self.run("jobs", "list")
        echo("  What the handlers really did, as they wrote it to effects.log:")
        for line in self.effects():
            echo(f"    {line}")
        [counts] = self.query(
            "SELECT json_group_object(status, n) FROM (SELECT status, count(*) AS n FROM cronjobs_jobs GROUP BY status)"
        )
        rows = json.loads(counts)
        twice = [line for line, times in Counter(self.effects()).items() if times > 1]
        if twice:
            raise DemoFailed(f"these ran twice: {twice}")
        if rows != {"succeeded": len(self.effects()), "dead": 1}:
            raise DemoFailed(f"the jobs ended as {rows}")

    # --- steps of the scenes ------------------------------------------------------------------------------------------

    def scene(self, title: str) -> None:
        self.scenes += 1
        echo(coloured(f"\n{self.scenes}. {title}", "cyan"))

    def command(self, *arguments: str) -> None:
        echo(coloured(f"  $ cronjobs {shlex.join(arguments)}", "white"))

    def run(self, *arguments: str, code: int = 0) -> None:
        """Run one command as a user would, print its output, and check its exit code."""
        self.command(*arguments)
        with tempfile.TemporaryFile() as output:
            ended = exit_code(self.start(*arguments, output=output.fileno()))
            output.seek(0)
            for line in output.read().decode(errors="replace").rstrip().splitlines():
                echo(f"    {line}")
        if ended != code:
            raise DemoFailed(f"cronjobs {shlex.join(arguments)} exited with {ended} instead of {code}")

    def start(self, *arguments: str, output: int | None = None, **environ: str) -> int:
        """Start a command in a fork of this process. Return its pid."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            self._become([*arguments, "--config", str(self.folder / "cronjobs.yaml")], output, environ)
        return child

    def _become(self, arguments: list[str], output: int | None, environ: dict[str, str]) -> NoReturn:
        code = EX_SOFTWARE
        try:
            signal.alarm(LONGEST_S)
            os.chdir(self.folder)
            os.environ.update(environ)
            if output is not None:
                os.dup2(output, 1)
                os.dup2(output, 2)
            sys.argv[1:] = arguments
            program.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def effects(self, of: str = "") -> list[str]:
        file = self.folder / "effects.log"
        return [line for line in (file.read_text().splitlines() if file.exists() else []) if line.startswith(of)]

    def expect(self, effects: list[str]) -> None:
        """Check what the handlers did, except for schedules, which may come due at any time."""
        done = [line for line in self.effects() if " of " not in line]
        if done != effects:
            raise DemoFailed(f"the effects are {done} instead of {effects}")

    def query(self, statement: str, *values: object) -> Any:
        connection = sqlite3.connect(self.folder / "demo.db", timeout=10, isolation_level=None)
        try:
            return connection.execute(statement, values).fetchone()
        finally:
            connection.close()

    def until_due(self) -> None:
        """Wait until the retry is due."""
        give_up = SYSTEM.monotonic() + WAIT_S
        while SYSTEM.monotonic() < give_up:
            [run_at] = self.query("SELECT max(run_at) FROM cronjobs_jobs WHERE status = 'failed'")
            if run_at <= SYSTEM.now().timestamp() * 1_000_000:
                return
            sleep(0.05)
        raise DemoFailed(f"the retry did not come due within {WAIT_S:g} s")

    def a_minute_passes(self, schedule: str) -> None:
        """Make the schedule due by setting its watermark back by a minute.

        If a tick has already fired the schedule, wait for the next minute instead. Otherwise the schedule would run
        twice for the same minute.
        """
        fired, next_at = self.query(
            "SELECT (SELECT count(*) FROM cronjobs_occurrences o WHERE o.schedule_id = s.id), next_at "
            "FROM cronjobs_schedules s WHERE name = ?",
            schedule,
        )
        if fired:
            echo("  (The schedule has already fired, so the demo waits for the next minute.)")
            while SYSTEM.now().timestamp() * 1_000_000 < next_at:
                sleep(0.1)
            return
        minute_us = 60_000_000
        self.query(
            "UPDATE cronjobs_schedules SET seen_until = seen_until - ?, next_at = next_at - ? WHERE name = ?",
            minute_us,
            minute_us,
            schedule,
        )

    def room_in_the_minute(self) -> None:
        """If the minute is nearly over, wait for the next. Otherwise schedules would fire in the middle of the demo."""
        if SYSTEM.now().second >= 60 - ROOM_S:
            echo("waiting for the next minute to begin …")
        while SYSTEM.now().second >= 60 - ROOM_S:
            sleep(0.1)
