"""Real ticks that cost only a fork. A process that has imported everything forks one process for each tick.

Only the interpreter's start is left out: each fork has its own database connection, identity, kernel timer and loop.
``Runners`` is the campaign's side. ``python -m engine.chaos.runners`` is the other side. It has only one thread, so
that forks are safe. It is the parent of the ticks. So a signal that it sends can never reach another process that got
the same pid.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from engine.chaos.ledger import VARIABLE

TESTS = Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG = 1
EXCEPTION = 70  # EX_SOFTWARE: the exit code of a tick that ended by an exception of ours


@dataclass(frozen=True)
class Ground:
    """Where a campaign takes place; files are in *folder*. Leases of a second let a freeze be short."""

    folder: str
    url: str
    lease_s: float = 0.5
    budget_s: float = 6.0
    standby_paused_s: float = 0.0  # before every second promotion

    @property
    def ledger(self) -> Path:
        return Path(self.folder) / "ledger"

    @property
    def log(self) -> Path:
        return Path(self.folder) / "events.jsonl"


@dataclass(frozen=True)
class Order:
    """One tick. ``guarded`` False: its watchdog does not stand before its leases end, so that a frozen one wakes, goes
    on, and only the fence is between it and the database."""

    workers: int
    guarded: bool


@dataclass(frozen=True)
class News:
    """A tick has begun, or ended with *status* as waitpid tells it."""

    pid: int
    status: int | None = None


class Runners:
    """The campaign's side."""

    def __init__(self, ground: Ground) -> None:
        python_path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "engine.chaos.runners", json.dumps(asdict(ground))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": python_path, VARIABLE: str(ground.ledger)},
            start_new_session=True,  # a Ctrl-C in the terminal is for the campaign, which then ends it
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._news = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._rest = b""

    def start(self, order: Order) -> None:
        self._say("start", **asdict(order))

    def send(self, pid: int, number: signal.Signals) -> None:
        """Signal a tick; nothing if it has ended."""
        self._say("signal", pid=pid, number=int(number))

    def news(self, wait_s: float) -> Iterator[News]:
        """What happened since the last call; waits up to *wait_s* for the first."""
        while select.select([self._news], [], [], wait_s)[0]:
            part = os.read(self._news, 1 << 16)
            if not part:
                raise RuntimeError("the process that forks the runners is gone")
            *whole, self._rest = (self._rest + part).split(b"\n")
            for line in whole:
                yield News(**json.loads(line))
            wait_s = 0

    def close(self) -> None:
        """End it, and every tick with it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _say(self, verb: str, **facts: Any) -> None:
        os.write(self._orders, (json.dumps({"verb": verb} | facts) + "\n").encode())


# --- the other side ---------------------------------------------------------------------------------------------------


def main() -> None:
    die_with_parent()
    ground = Ground(**json.loads(sys.argv[1]))
    prepare(ground)
    children: set[int] = set()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    rest = b""
    gc.freeze()  # what is there now stays shared with the forks
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            for pid, status in _ended(children):
                _tell(News(pid, status))
        if 0 in ready:
            part = os.read(0, 1 << 16)
            if not part:
                break
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                _obey(json.loads(line), ground, children)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _ended(children: set[int]) -> Iterator[tuple[int, int]]:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        yield pid, status


def _obey(order: dict[str, Any], ground: Ground, children: set[int]) -> None:
    if order.pop("verb") == "signal":
        if order["pid"] in children:  # not waited for yet, so the pid is still its own
            os.kill(order["pid"], order["number"])
        return
    pid = os.fork()
    if pid == 0:
        _run_as_child(Order(**order), ground)
    children.add(pid)
    _tell(News(pid))


def _tell(news: News) -> None:
    os.write(1, (json.dumps(asdict(news)) + "\n").encode())


def die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def prepare(ground: Ground) -> None:
    """Import all that a tick needs, the handlers too."""
    from cronjobs.engine.database.address import parse_url
    from cronjobs.engine.database.connection import Database
    from cronjobs.engine.jobs import job_types
    from cronjobs.engine.tick import tick

    assert tick
    database = Database(parse_url(ground.url))  # imports the driver
    database.close()
    loaded = job_types.load(settings_of(ground))
    assert not loaded.faults, loaded.faults


def settings_of(ground: Ground, workers: int = 1) -> Any:
    from cronjobs.engine.config.settings import RunSettings, Settings

    folder = Path(ground.folder)
    return Settings(
        file=folder / "cronjobs.yaml",
        folder=folder,
        database=ground.url,
        imports=("engine.chaos.handlers",),
        python_path=(TESTS,),
        env=((VARIABLE, str(ground.ledger)),),
        run=RunSettings(
            workers=workers,
            budget=timedelta(seconds=ground.budget_s),
            lease=timedelta(seconds=ground.lease_s),
            shutdown_grace=timedelta(seconds=2),
            max_losses=1000,  # most losses here are kills by the campaign, which are not the job's fault
        ),
    )


def _run_as_child(order: Order, ground: Ground) -> None:
    """Run one tick, put together as ``run-due`` does it, and exit; never returns."""
    code = EXCEPTION
    try:
        die_with_parent()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        errors = os.open(Path(ground.folder) / "stderr", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for number, target in enumerate((null, null, errors)):
            os.dup2(target, number)
        code = _tick(order, ground)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _tick(order: Order, ground: Ground) -> int:
    from cronjobs import events
    from cronjobs.clock import SYSTEM
    from cronjobs.engine.database.address import parse_url
    from cronjobs.engine.database.connection import Database
    from cronjobs.engine.execution.output import divert_logging, divert_streams
    from cronjobs.engine.host.identity import Identity
    from cronjobs.engine.tick import recovery
    from cronjobs.engine.tick.tick import Tick
    from cronjobs.engine.tick.watchdog import Watchdog
    from cronjobs.errors import CronjobsError

    class LateWatchdog(Watchdog):
        def stand_at(self, instant: float) -> None:
            super().stand_at(until + 1)

    # Ticks die here several times a second, whatever they hold: each type would soon be one that takes runners down,
    # and the campaign is about threads. What crashes put into processes has tests of its own.
    setattr(recovery, "note_deaths", lambda *_: [])  # noqa: B010 mypy: it is not exported

    began = SYSTEM.monotonic()
    until = began + ground.budget_s
    watchdog = (Watchdog if order.guarded else LateWatchdog)(SYSTEM)
    watchdog.stand_at(until + 1)
    divert_streams()
    divert_logging()
    log = os.open(ground.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    me = {"pid": os.getpid()}

    def emit(event: events.Event) -> None:
        told = event._replace(facts=event.facts | me)
        os.write(log, (events.json_line(told, SYSTEM.now()) + "\n").encode())

    try:
        result = Tick(
            settings=settings_of(ground, order.workers),
            database=Database(parse_url(ground.url)),
            identity=Identity.here(),
            clock=SYSTEM,
            watchdog=watchdog,
            began=began,
            deadline=until,
            emit=emit,
        ).run()
    except CronjobsError as error:
        emit(events.Event("tick.refused", {"error": str(error)}))
        return error.exit_code
    emit(events.tick_ended(result.did(), result.ended, timedelta(seconds=SYSTEM.monotonic() - began)))
    return result.exit_code()


if __name__ == "__main__":
    main()
