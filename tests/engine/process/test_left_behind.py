"""What a job leaves behind in its process.

Either the next job does not see it, or the docs say so. No tick is harmed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.pages import Page
from support.ticking import Project

from cronjobs.clock import SYSTEM
from cronjobs.engine.execution import process
from cronjobs.engine.execution.command import Command
from cronjobs.engine.jobs.context import StopSignal
from cronjobs.engine.tick.watchdog import HARD_AFTER_S, PAST_DEADLINE_S
from cronjobs.model import ExitCodes, Succeeded

PAGE = Page("docs/explanation/tick.md")
TICK_S = 20.0


@dataclass(frozen=True)
class Kind:
    """*name*: as the page has it. *act* leaves it behind, *look* is what a later job sees of it.

    *own*: the next job sees it as it was. *look* None: only the end of the process shows it.
    """

    name: str
    act: str
    look: str | None
    own: bool = False


KINDS = (
    Kind(
        "Context variables: decimal's precision, a tenant, a log's bound fields",
        "decimal.getcontext().prec = 3; tenant.set('acme')",
        "[decimal.getcontext().prec, tenant.get()]",
        own=True,
    ),
    Kind(
        "Blocked signals",
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})",
        "len(signal.pthread_sigmask(signal.SIG_BLOCK, ()))",
        own=True,
    ),
    Kind("Environment variables", "os.environ.clear(); os.environ['LEFT'] = '1'", "sorted(os.environ)"),
    Kind("The working directory", "os.chdir(tempfile.mkdtemp())", "os.getcwd()"),
    Kind("The umask", "os.umask(0o777)", "UMASK.findall(open('/proc/self/status').read())"),
    Kind("The locale", "locale.setlocale(locale.LC_ALL, 'C.UTF-8')", "locale.setlocale(locale.LC_ALL)"),
    Kind("The time zone of the process", "os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()", "time.timezone"),
    Kind(
        "Signal handlers and alarms",
        "ctypes.CDLL(None).signal(signal.SIGUSR1, None); signal.setitimer(signal.ITIMER_REAL, 0)",
        "IGNORED.findall(open('/proc/self/status').read()) and left",
    ),
    Kind("Warnings filters", "warnings.simplefilter('error')", "str(warnings.filters[0])"),
    Kind(
        "The configuration of logging",
        "logging.disable(); logging.root.handlers.clear()",
        "logging.root.manager.disable",
    ),
    Kind("The import path and loaded modules", "sys.path.insert(0, '/nowhere')", "sys.path[0]"),
    Kind("Replaced standard streams", "sys.stdout = io.StringIO()", "type(sys.stdout).__name__"),
    Kind("The default timeout of sockets", "socket.setdefaulttimeout(0.0001)", "socket.getdefaulttimeout()"),
    Kind("A clock that freezegun or a mock has stopped", "freeze()", "[time.monotonic() for _ in '123'][::2]"),
    Kind(
        "Patches of the standard library by gevent or a mock",
        "del select.poll; socket.socketpair = as_gevents",
        "hasattr(select, 'poll')",
    ),
    Kind("Thread-local values", "here.value = 'acme'", "getattr(here, 'value', None)"),
    Kind("The seed of the random generator", "random.seed(1)", "random.random()"),
    Kind("Limits of the interpreter", "sys.setrecursionlimit(5000)", "sys.getrecursionlimit()"),
    Kind("Exit callbacks", "atexit.register(os._exit, 7)", None),
)
ELSEWHERE = {
    "Django's connections: broken, too old, in a transaction": "own",  # contrib/django/test_left_behind_django.py
    "Settings of a session on a Django connection that `CONN_MAX_AGE` keeps": "shared",
}

HANDLERS = """
import atexit, contextvars, ctypes, datetime, decimal, io, locale, logging, random, re, select, signal, socket
import tempfile, warnings
import threading

UMASK, IGNORED = re.compile("Umask:.*"), re.compile("SigIgn:.*")
tenant = contextvars.ContextVar("tenant", default="nobody")
here, left = threading.local(), []
pair = socket.socketpair
monotonic, wall = time.monotonic, datetime.datetime


def as_gevents():
    made = pair()
    for each in made:
        os.set_blocking(each.fileno(), False)
        each.settimeout(10)
    return made


class OfStanding(type):
    def __instancecheck__(cls, each):
        return isinstance(each, wall)


class Standing(datetime.datetime, metaclass=OfStanding):
    @classmethod
    def now(cls, tz=None):
        return wall(2020, 1, 1, tzinfo=tz)


def freeze():
    '''As freezegun does: in every module that has a part of it.'''
    stands, then = monotonic() - 2000, 1577836800.0
    fakes = {id(monotonic): lambda: stands, id(time.time): lambda: then, id(wall): Standing}
    for module in list(sys.modules.values()):
        if module.__name__ in ("__main__", "handlers", "threading", "queue"):
            continue
        for name, value in list(vars(module).items()):
            if id(value) in fakes:
                setattr(module, name, fakes[id(value)])
    assert time.monotonic() == time.monotonic()


@job("t.leave", timeout="2s")
def leave(act: str):
    exec(act, globals())
    left.append(act)


@job("t.look", timeout="5s")
def look(look: str):
    return eval(look, globals())


@job("t.alook", timeout="5s")
async def alook(look: str):
    return eval(look, globals())
"""
COMMANDS = 'job_types:\n  t.command: {command: [sh, -c, "echo $LEFT $STAYS"], timeout: 5s}\n'
YAML = f"run: {{workers: 1, budget: 15s}}\nenv: {{STAYS: here}}\n{COMMANDS}"


def add(project: Project, job_type: str, **payload: Any) -> int:
    return project.add(job_type, json.dumps(payload))


def test_the_page_names_each_kind_and_says_whose_it_is() -> None:
    rows = {row["Left behind"]: row["The next job's"] for row in PAGE.table("What a job leaves behind")}
    assert rows.keys() == {kind.name for kind in KINDS} | ELSEWHERE.keys()
    for kind in KINDS:
        assert rows[kind.name].startswith("own" if kind.own else "shared"), kind
    assert all(rows[name].startswith(whose) for name, whose in ELSEWHERE.items())


def test_what_is_a_jobs_own_the_next_one_does_not_see(sqlite_project: Project) -> None:
    project = sqlite_project.configure(YAML, HANDLERS)
    seen: dict[str, list[int]] = {}
    for kind in (kind for kind in KINDS if kind.own):
        assert kind.look is not None
        before = add(project, "t.look", look=kind.look)
        add(project, "t.leave", act=kind.act)
        seen[kind.name] = [before, *(add(project, name, look=kind.look) for name in ("t.look", "t.alook"))]
    assert project.tick().wait() == 0
    for name, job_ids in seen.items():
        first, *later = [project.job(job_id)["result"] for job_id in job_ids]
        assert first is not None
        assert later == [first] * len(later), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.own], ids=lambda kind: kind.name)
def test_what_is_shared_is_seen_and_the_tick_and_good_jobs_do_not_suffer(sqlite_project: Project, kind: Kind) -> None:
    project = sqlite_project.configure(YAML, HANDLERS)
    look = kind.look or "None"
    before = add(project, "t.look", look=look)
    good = [add(project, "t.leave", act=kind.act)]
    after = add(project, "t.look", look=look)
    good += [project.add(name) for name in ("t.quick", "t.command")]
    good.append(add(project, "t.alook", look="1"))
    tick = project.tick(within_s=60)
    assert tick.wait() == (7 if kind.look is None else 0), tick.stderr
    assert tick.took_s < TICK_S
    assert {project.job(job_id)["status"] for job_id in (before, after, *good)} == {"succeeded"}
    if kind.look is not None:
        assert project.job(after)["result"] != project.job(before)["result"]
    assert project.value("SELECT count(*) FROM cronjobs_ticks WHERE finished_at IS NOT NULL") == 1
    odd = "finished_at < started_at OR finished_at > started_at + 60000000"
    assert project.value(f"SELECT count(*) FROM cronjobs_job_runs WHERE {odd}") == 0


def test_commands_get_the_environment_as_it_was_before_the_first_handler(sqlite_project: Project) -> None:
    project = sqlite_project.configure(YAML, HANDLERS)
    add(project, "t.leave", act="os.environ['LEFT'] = 'acme'; del os.environ['STAYS']")
    command = project.add("t.command")
    assert project.tick().wait() == 0
    assert project.value(f"SELECT output FROM cronjobs_job_runs WHERE job_id = {command}").strip() == "here"


CLOCKS = {
    "python's": "freeze()",
    # What patches the C function itself reaches ours, too. Then the kernel's own clock ends the tick.
    "ours": "from cronjobs.clock import SystemClock as C; then = monotonic() - 2000; C.monotonic = lambda self: then",
}


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_tick_ends_on_time_although_a_handler_has_stopped_the_clock(sqlite_project: Project, clock: str) -> None:
    naps = "\n@job('t.naps', timeout='2s')\ndef naps(): time.sleep(0.1)\n"
    project = sqlite_project.configure("run: {workers: 1}\n", HANDLERS + naps)
    add(project, "t.leave", act=CLOCKS[clock])
    assert project.tick("--only", "t.none").wait() == 0  # starts the server that forks the tests' processes
    project.add_many("t.naps", 300)
    tick = project.start("--budget", "5s")
    assert tick.wait(60) == (0 if clock == "python's" else -signal.SIGKILL)
    assert tick.took_s < 5 + PAST_DEADLINE_S + HARD_AFTER_S + 1
    assert clock == "ours" or project.statuses()["succeeded"] > 4  # others went on meanwhile


def test_a_module_cannot_take_the_signals_that_end_a_tick(sqlite_project: Project) -> None:
    taken = "import signal\nfor number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, signal.SIG_IGN)\n"
    project = sqlite_project.configure("run: {workers: 1, shutdown_grace: 1s}\n", taken)
    gated = project.add("t.gated")
    tick = project.start()
    while not project.effects("start"):
        assert tick.process.poll() is None
    tick.process.terminate()
    project_ends_by = SYSTEM.monotonic() + 25
    tick.wait(30)
    assert SYSTEM.monotonic() < project_ends_by
    assert project.outcomes(gated) == ["interrupted"]


def test_the_launcher_reads_its_orders_however_late_they_come_although_sockets_do_not_block(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """gevent's sockets do not: under load the launcher found no order yet, and died before the command began."""
    pair, popen, blocks = socket.socketpair, subprocess.Popen, list[bool]()

    def as_gevents() -> tuple[socket.socket, socket.socket]:
        ours, theirs = pair()
        theirs.settimeout(10)
        assert not os.get_blocking(theirs.fileno())
        return ours, theirs

    def noting(*given: Any, **named: Any) -> Any:
        blocks.append(os.get_blocking(named["pass_fds"][0]))
        return popen(*given, **named)

    monkeypatch.setattr(socket, "socketpair", as_gevents)
    monkeypatch.setattr(subprocess, "Popen", noting)
    command = Command(
        argv=("true",),
        folder=tmp_path,
        env={},
        stdin=b"",
        timeout=timedelta(seconds=10),
        grace=timedelta(seconds=1),
        exit_codes=ExitCodes(),
    )
    outcome, _ = process.run_command(command, StopSignal(), clock=SYSTEM)
    assert isinstance(outcome, Succeeded)
    assert blocks == [True]


def test_the_patterns_of_the_table_find_something() -> None:
    status = Path("/proc/self/status").read_text()
    assert re.findall("Umask:.*", status)
    assert re.findall("SigIgn:.*", status)
