"""A forked process of the tests behaves like a started one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from support import forked
from support.commands import until
from support.ticking import Project

LOOK = '''
import locale, resource

@job("look")
def look(ctx):
    """What a process can know of how it was started."""
    descriptors = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
    (Path(HERE) / "look.json").write_text(json.dumps({
        "argv": sys.argv[1:],
        "called": os.path.basename(sys.argv[0]),
        "main": sys.modules["__main__"].__name__,
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "path": [entry for entry in sys.path if entry != HERE],
        "umask": status["Umask"].strip(),
        "ignored": status["SigIgn"].strip(),
        "blocked": status["SigBlk"].strip(),
        "streams": [[s.encoding, s.errors, s.line_buffering] for s in (sys.__stdin__, sys.__stdout__, sys.__stderr__)],
        "inherited": [fd for fd in descriptors if fd < 3],
        "locale": locale.setlocale(locale.LC_CTYPE),
        "time": time.tzname,
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
        "flags": [sys.flags.safe_path, sys.flags.utf8_mode, sys.flags.dev_mode],
        "session": os.getsid(0) == os.getpid(),
    }))


from pathlib import Path
'''


def looked(project: Project, **changes: Any) -> dict[str, Any]:
    project.add("look")
    tick = project.start(**changes)
    assert tick.wait() == 0, tick.stderr
    found: dict[str, Any] = json.loads((project.folder / "look.json").read_text())
    return found


@pytest.mark.parametrize("changes", [{}, {"env": {"TZ": "Asia/Tokyo", "X": "1"}, "start_new_session": True}])
def test_it_finds_around_it_what_a_started_one_finds(sqlite_project: Project, changes: dict[str, Any]) -> None:
    project = sqlite_project.configure(handlers=LOOK)
    assert forked.run([sys.executable, "-m", "cronjobs", "--version"]).returncode == 0  # what forks is older than this
    old = os.umask(0o027)
    try:
        started = looked(project, fresh=True, **changes)
        assert isinstance(project.ticks[-1].process, subprocess.Popen)
        found = looked(project, **changes)
    finally:
        os.umask(old)
    assert isinstance(project.ticks[-1].process, forked.Forked)
    assert not isinstance(project.ticks[-2].process, forked.Forked)
    assert found == started


def test_its_end_is_told_whatever_it_is(sqlite_project: Project) -> None:
    project = sqlite_project
    killed, stopped, done = project.start(), project.start(), project.start("--nonsense")
    killed.send(signal.SIGKILL)
    stopped.send(signal.SIGSTOP)
    assert (killed.wait(), killed.process.poll(), done.wait()) == (-signal.SIGKILL, -signal.SIGKILL, 2)
    assert "--nonsense" in done.stderr
    with pytest.raises(subprocess.TimeoutExpired):
        stopped.wait(0.05)
    assert stopped.process.poll() is None
    stopped.send(signal.SIGKILL)
    until(lambda: stopped.process.poll() == -signal.SIGKILL)


def test_it_talks_through_pipes() -> None:
    done = forked.run([sys.executable, "-P", "-m", "cronjobs", "next", "0 2 * * *", "-n", "3"])
    assert (done.returncode, done.stderr, "02:00" in done.stdout) == (0, "", True)
    done = forked.run([sys.executable, "-P", "-m", "cronjobs", "--config", "/gone.yaml", "status"])
    assert (done.returncode, done.stdout) == (3, "")
    assert "/gone.yaml" in done.stderr


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        (["-c", "pass"], {}),
        (["-W", "error", "-m", "cronjobs", "--version"], {}),
        (["-m", "cronjobs", "--version"], {"env": None}),
        (["-m", "cronjobs", "--version"], {"env": {"PYTHONUTF8": "1"}}),
        (["-m", "cronjobs", "--version"], {"env": {"LC_ALL": "C.UTF-8"}}),
        (["-m", "cronjobs", "--version"], {"preexec_fn": os.getpid}),
        (["-m", "cronjobs", "--version"], {"fresh": True}),
    ],
)
def test_what_the_interpreter_reads_at_its_start_is_left_to_it(argv: list[str], options: dict[str, Any]) -> None:
    given: dict[str, Any] = {"env": forked._environment(), "stdout": subprocess.DEVNULL} | options
    with forked.start([sys.executable, *argv], **given) as process:
        assert not isinstance(process, forked.Forked)
    assert process.returncode == 0


def test_a_terminal_is_left_to_the_interpreter() -> None:
    ours, theirs = os.openpty()
    with forked.start(
        [sys.executable, "-m", "cronjobs", "--version"], env=forked._environment(), stdout=theirs
    ) as process:
        assert not isinstance(process, forked.Forked)
    os.close(ours)
    os.close(theirs)


def test_no_two_draw_the_same_numbers(sqlite_project: Project) -> None:
    draw = "    import random, uuid\n    say(f'{random.random()}-{uuid.uuid4().hex}', ctx)\n"
    project = sqlite_project.configure(handlers=f"@job('draw')\ndef draw(ctx):\n{draw}")
    for _ in range(2):
        project.add("draw")
        assert project.tick().wait() == 0
    first, second = [effect.what for effect in project.effects()]
    assert not set(first.split("-")) & set(second.split("-"))
