"""An idle tick as cron starts it: what it loads, what it leaves behind, and what makes it a full tick."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url
from support.databases import until
from support.proxy import Proxy, shut
from support.ticking import Project, Tick

from cronjobs.clock import SYSTEM
from cronjobs.engine.probe import postgresql
from cronjobs.engine.probe.kernel_facts import host_name

YAML = "schedules:\n  nightly: {cron: '15 2 29 2 *', job: t.quick}\n"

# Writes which modules the process had loaded when it ended, by whichever of its two ways.
LOOK = """
import os, sys
end = os._exit
def noting(code):
    file = os.open("modules", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(file, " ".join(sys.modules).encode())
    end(code)
os._exit = noting
before = {*sys.modules}
from cronjobs.__main__ import main
main()
"""

# What Python loads of itself for an idle tick, beyond what it has at its start. Each one more is a fault of this list
# or of the tick: 1,440 times a day.
FACTS = (
    *("tick", "host", "boot_id", "pid", "version", "age_s", "host_s", "now_", "place", "place_length", "most_branches"),
    *(
        "beyond_s",
        "defines_nothing",
        "alerts",
        "project",
        "environment",
        "fingerprint",
        "schema_revision",
        "oldest_code",
    ),
)
MAY_LOAD = {
    *("cronjobs", "cronjobs.__main__", "cronjobs.version", "cronjobs.engine", "cronjobs.engine.probe"),
    *(
        f"cronjobs.engine.probe.{name}"
        for name in ("fast_path", "idle_conditions", "inputs", "kernel_facts", "sql_text", "state_files", "timer")
    ),
    *("__future__", "_blake2", "pwd", "faulthandler"),
}
FOR_SQLITE = {
    *("cronjobs.engine.probe.sqlite", "_sqlite3"),
    # _sqlite3 keeps its statements in an lru_cache
    *("functools", "_functools", "collections", "_collections", "itertools", "keyword", "operator", "_operator"),
    *("reprlib", "types"),
}
FOR_POSTGRESQL = {
    *("cronjobs.engine.probe.postgresql", "cronjobs.engine.probe.server_session"),
    *("ctypes", "ctypes._endian", "_ctypes", "struct", "_struct", "select", "types"),
}
HEAVY = {"re", "argparse", "dataclasses", "typing", "logging", "importlib.metadata", "pathlib", "enum", "json"}


def modules_of(project: Project, *options: str, **changes: Any) -> set[str]:
    """The modules that a tick loaded beyond those of a bare Python."""
    file = project.folder / "modules"
    file.unlink(missing_ok=True)
    argv = [sys.executable, "-c", LOOK, "run-due", "--config", str(project.folder / "cronjobs.yaml"), *options]
    tick = project.tick(argv=argv, cwd=project.folder, **changes)
    assert (tick.wait(), tick.stdout, tick.stderr) == (0, "", "")
    return set(file.read_text().split()) - _bare_python()


@cache
def _bare_python() -> set[str]:
    look = [sys.executable, "-c", "import sys; print(' '.join(sys.modules))"]
    return set(subprocess.run(look, capture_output=True, text=True, check=True).stdout.split())


def is_fast(loaded: set[str]) -> bool:
    return "cronjobs.engine.tick.tick" not in loaded


@pytest.fixture
def idle(project: Project) -> Project:
    """A project whose ticks have nothing to do, after the full one that says so."""
    project.configure(YAML)
    assert not is_fast(modules_of(project))
    assert is_fast(modules_of(project))
    return project


def test_an_idle_tick_loads_these_modules_and_no_others(idle: Project) -> None:
    loaded = modules_of(idle)
    allowed = MAY_LOAD | (FOR_SQLITE if idle.is_sqlite else FOR_POSTGRESQL)
    assert loaded <= allowed, f"more than before: {sorted(loaded - allowed)}"
    assert not loaded & HEAVY
    assert len({name for name in loaded if name.startswith("cronjobs")}) <= 14


def test_an_idle_tick_is_silent_and_leaves_one_row_and_no_line_in_the_log(idle: Project) -> None:
    log = idle.folder / "tick.log"
    before, said = idle.everything(), log.read_text()
    tick = idle.tick(
        argv=[sys.executable, "-c", LOOK, "run-due", "--config", f"{idle.folder}/cronjobs.yaml"], cwd=idle.folder
    )
    assert (tick.wait(), tick.stdout, tick.stderr) == (0, "", "")
    after = idle.everything()
    assert after[:2] == before[:2]
    assert after[2][:-1] == before[2]
    [row] = idle.sql("SELECT host, ended, schedules_on, job_types FROM cronjobs_ticks ORDER BY id DESC LIMIT 1")
    assert row == (host_name(), "nothing is due", 1, None)
    assert log.read_text() == said


def state(project: Project) -> Path:
    [file] = (project.folder / "cronjobs").glob("idle-*")
    return file


def test_the_state_file_is_private_and_holds_nothing_of_the_configuration(project: Project) -> None:
    project.configure("project: '${SHOP}'\nenv_file: .env\n" + YAML)
    (project.folder / "cronjobs.yaml").write_text(
        (project.folder / "cronjobs.yaml").read_text().replace(f'"{project.url}"', "${JOBS}")
    )
    (project.folder / ".env").write_text(f"JOBS={project.url}\nSHOP=secret-shop\n")
    assert not is_fast(modules_of(project))
    assert is_fast(modules_of(project)), "values of an env_file are taken from there"
    content = state(project).read_text()
    assert state(project).stat().st_mode & 0o777 == 0o600
    assert project.url not in content
    assert "secret" not in content


def touched(change: Callable[[Project], object]) -> Callable[[Project], dict[str, object]]:
    def do(project: Project) -> dict[str, object]:
        change(project)
        return {}

    return do


def rewrite(project: Project, old: str, new: str) -> None:
    file = project.folder / "cronjobs.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def write_state(project: Project, mode: int) -> None:
    state(project).chmod(mode)


def link_state(project: Project) -> None:
    file = state(project)
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


FULL: dict[str, Callable[[Project], dict[str, object]]] = {
    "a job is due": touched(lambda project: project.add("t.quick")),
    "the file changed": touched(lambda project: rewrite(project, "15 2", "16 2")),
    "a comment changed": touched(lambda project: rewrite(project, "schedules:", "# hello\nschedules:")),
    "another variable": lambda project: {"env": {"CRONJOBS_HOST": "another"}},
    "schedules are off": lambda project: {"env": {"CRONJOBS_SCHEDULES": "off"}},
    "no state": touched(lambda project: state(project).unlink()),
    "a truncated state": touched(lambda project: os.truncate(state(project), 40)),
    "an empty state": touched(lambda project: os.truncate(state(project), 0)),
    "a state of nonsense": touched(lambda project: state(project).write_bytes(b"\0" * 4000)),
    "a state of bytes": touched(lambda project: state(project).write_bytes(os.urandom(500))),
    "a linked state": touched(link_state),
    "a folder that others may write": touched(lambda project: (project.folder / "cronjobs").chmod(0o777)),
    "a word of a long job": touched(
        lambda project: (
            project.folder / "cronjobs" / re.findall("word=([^\0]+)", state(project).read_text())[0]
        ).touch()
    ),
    "an alarm": touched(
        lambda project: (
            project.folder / "cronjobs" / re.findall("alarm=([^\0]+)", state(project).read_text())[0]
        ).write_text('{"x": {}}')
    ),
}


@pytest.mark.slow
@pytest.mark.either
def test_these_take_the_full_tick(idle: Project) -> None:
    """One after the other in one project, which is as it was before each."""
    file = idle.folder / "cronjobs.yaml"
    yaml, left = file.read_text(), idle.folder.with_name("left")
    shutil.copytree(state(idle).parent, left)
    fast = []
    for why, change in FULL.items():
        if is_fast(modules_of(idle, **change(idle))):
            fast.append(why)
        file.write_text(yaml)
        shutil.rmtree(idle.folder / "cronjobs")
        shutil.copytree(left, idle.folder / "cronjobs")
        assert any(is_fast(modules_of(idle)) for _ in range(3)), f"what was undone of {why!r} is seen"
    assert fast == []


@pytest.mark.slow
@pytest.mark.either
def test_options_have_a_fast_path_of_their_own(idle: Project) -> None:
    for options in (["--queue", "mail"], ["--limit", "3"], ["--quiet"], ["--wait"]):
        assert not is_fast(modules_of(idle, *options)), options
        assert is_fast(modules_of(idle, *options)), options


@pytest.mark.needs("desk")
@pytest.mark.either
def test_what_prints_is_always_a_full_tick(idle: Project) -> None:
    for options in (["--json"], ["--verbose"], ["--dry-run"]):
        for _ in range(2):
            tick = idle.tick(*options)
            assert tick.wait() == 0
            assert tick.stdout + tick.stderr, options
    assert len([*(idle.folder / "cronjobs").glob("idle-*")]) == 1


def test_a_tick_with_a_fault_leaves_no_fast_path(project: Project) -> None:
    project.configure(YAML + "  broken: {cron: 'nonsense', job: t.quick}\n")
    for _ in range(2):
        assert project.tick().wait() == 3
    assert not [*(project.folder / "cronjobs").glob("idle-*")]


def test_a_fault_that_comes_up_takes_the_fast_path_away(idle: Project) -> None:
    (idle.folder / "handlers.py").write_text("raise ValueError('no')\n")
    idle.add("t.quick")
    assert idle.tick().wait() != 0
    assert idle.tick().wait() != 0, "the full tick says it again"


def test_after_a_death_was_mailed_idle_ticks_are_fast_until_it_may_be_over(project: Project) -> None:
    project.configure(YAML, '\n@job("t.dies")\ndef dies(ctx): raise GiveUp("no")\n')
    project.add("t.dies")
    assert project.tick().wait() == 1
    modules_of(project)
    [file] = (project.folder / "cronjobs").glob("alarm-*")
    until = json.loads(file.read_text())["quiet_until"]
    assert until - SYSTEM.now().timestamp() == pytest.approx(25 * 3600, abs=300)
    assert is_fast(modules_of(project))
    for moment in (-1, 25 * 3600 + 600):  # over, or dated by a clock that was ahead
        text = file.read_text()
        file.write_text(text.replace(str(until), str(int(SYSTEM.now().timestamp()) + moment)))
        assert not is_fast(modules_of(project))
        file.write_text(text)
    project.add("t.quick")
    assert project.tick().wait() == 0
    assert project.effects()[-1].what == "ran"


def test_a_database_that_is_away_is_reported_by_the_full_tick(sqlite_project: Project) -> None:
    sqlite_project.configure(YAML)
    for _ in range(2):
        assert sqlite_project.tick().wait() == 0
    file = Path(sqlite_project.file)
    for name in [file, *file.parent.glob(f"{file.name}-*")]:
        name.unlink(missing_ok=True)
    tick = sqlite_project.tick()
    assert tick.wait() == 4
    assert "is missing now" in tick.stderr
    assert not file.exists(), "no empty file takes its place"


# --- linger -----------------------------------------------------------------------------------------------------------


def lingers(project: Project, budget: str, poll: str = "100ms") -> Project:
    project.configure(f"run: {{linger: {poll}, budget: {budget}}}\n{YAML}")
    assert project.tick().wait() == 0
    return project


@pytest.fixture
def lingering(project: Project) -> Project:
    """A project whose ticks stay for longer than any test."""
    return lingers(project, "50s")


@pytest.fixture
def lingering_shortly(project: Project) -> Project:
    return lingers(project, "10s")


def ended(project: Project, count: int) -> bool:
    return bool(project.value("SELECT count(*) FROM cronjobs_jobs WHERE status = 'succeeded'") >= count)


@pytest.mark.slow
@pytest.mark.parametrize("due", [0, 1])
@pytest.mark.either
def test_a_lingering_tick_runs_what_is_due_at_first_and_what_comes_later_each_once(
    lingering: Project, due: int
) -> None:
    for _ in range(due):
        lingering.add("t.quick")
    tick = lingering.start()
    until(lambda: lingering.value("SELECT count(*) FROM cronjobs_ticks WHERE ended IS NOT NULL") == 2)
    for count in (1, 2):
        lingering.add("t.quick")
        until(lambda count=count: ended(lingering, due + count))  # type: ignore[misc]
        assert tick.process.poll() is None, "it stays"
    until(lambda: lingering.value("SELECT count(*) FROM cronjobs_ticks WHERE ended IS NULL") == 0)
    tick.send(signal.SIGTERM)
    assert tick.wait() in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert tick.stdout + tick.stderr == ""
    assert [effect.what for effect in lingering.effects()] == ["ran"] * (due + 2)


@pytest.mark.slow
def test_a_lingering_tick_ends_by_itself_with_its_minute(lingering_shortly: Project) -> None:
    tick = lingering_shortly.tick()
    assert (tick.wait(), tick.stdout, tick.stderr) == (0, "", "")
    assert 6 < tick.took_s < 40


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_lingering_tick_within_a_second(lingering: Project, number: signal.Signals) -> None:
    tick = lingering.start()
    until(lambda: lingering.value("SELECT count(*) FROM cronjobs_ticks") == 2)
    asked = SYSTEM.monotonic()
    tick.send(number)
    assert tick.wait() == -number
    assert SYSTEM.monotonic() - asked < 10  # the tick's minute is not over yet


def _catches(number: signal.Signals, status: str) -> bool:
    """Whether the process with this /proc/PID/status has a handler for signal *number*."""
    [caught] = re.findall(r"SigCgt:\s(\w+)", status)
    return bool(int(caught, 16) & 1 << number - 1)


@pytest.mark.slow
@pytest.mark.either
@pytest.mark.parametrize("due", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_next_tick_records_a_killed_lingering_tick(project: Project, number: signal.Signals, due: int) -> None:
    lingering = lingers(project, "50s", poll="30s")
    for _ in range(due):
        lingering.add("t.quick")
    tick = lingering.start()
    until(lambda: lingering.value("SELECT count(*) FROM cronjobs_ticks WHERE ended IS NOT NULL") == 2)
    # While the full tick rewrites the file of unreported ticks, another tick does not see the lines in it.
    process = Path(f"/proc/{tick.process.pid}")
    until(lambda: (process / f"task/{process.name}/children").read_text() == "")
    # Wait until the process sleeps, because a signal that arrives during a look ends it like SIGKILL.
    until(lambda: _catches(signal.SIGTERM, (process / "status").read_text()))
    tick.send(number)
    tick.wait()
    killed = [tick.process.pid] if number == signal.SIGKILL else []
    for _ in range(2):
        assert lingering.tick("--limit", "9").wait() == 0
        assert [pid for (pid,) in lingering.sql("SELECT pid FROM cronjobs_ticks WHERE finished_at IS NULL")] == killed
    [last] = lingering.sql("SELECT ended FROM cronjobs_ticks ORDER BY id DESC LIMIT 1")
    assert last == ("nothing is due",), "the host's last tick has ended"
    assert lingering.value("SELECT count(*) FROM cronjobs_ticks") == 4 + len(killed)
    assert not [*lingering.folder.rglob("unreported-*")]


@pytest.mark.slow
@pytest.mark.either
def test_a_signal_reaches_the_full_tick_of_a_lingering_one(lingering: Project) -> None:
    lingering.add("t.gated")
    tick = lingering.start()
    until(lambda: any(effect.what == "start" for effect in lingering.effects()))
    tick.send(signal.SIGTERM)
    assert tick.wait() == 128 + signal.SIGTERM


@pytest.mark.slow
def test_the_full_ticks_of_a_lingering_one_end_with_its_minute(lingering_shortly: Project) -> None:
    lingering_shortly.add("t.gated")
    tick = lingering_shortly.start()
    tick.wait(40)
    assert tick.took_s < 10 + 15, "budget, and what ends a tick that hangs"


@pytest.mark.slow
def test_a_paused_queue_does_not_start_a_full_tick_each_time_it_looks(lingering_shortly: Project) -> None:
    project = lingering_shortly
    project.sql("INSERT INTO cronjobs_pauses (scope) VALUES ('all')")
    project.add("t.quick")
    assert project.tick().wait() == 0
    assert 2 <= project.value("SELECT count(*) FROM cronjobs_ticks") <= 4


@pytest.mark.slow
def test_an_alarm_does_not_keep_a_tick_from_staying(lingering: Project) -> None:
    [name] = re.findall("alarm=([^\0]+)", state(lingering).read_text())
    (lingering.folder / "cronjobs" / name).write_text('{"x": {}}')
    tick = lingering.start()
    until(lambda: lingering.value("SELECT count(*) FROM cronjobs_ticks WHERE ended IS NOT NULL") == 2)
    lingering.add("t.quick")
    until(lambda: ended(lingering, 1))
    assert tick.process.poll() is None
    tick.send(signal.SIGTERM)
    tick.wait()


@pytest.mark.slow
def test_what_a_lingering_tick_tells_its_full_ticks_reaches_no_handler(lingering: Project) -> None:
    handlers = lingering.folder / "handlers.py"
    handlers.write_text(
        f"{handlers.read_text()}\n@job('t.env')\ndef env(ctx):\n    say('CRONJOBS_UNTIL' in os.environ, ctx)\n"
    )
    lingering.add("t.env")
    tick = lingering.start()
    until(lambda: ended(lingering, 1))
    tick.send(signal.SIGTERM)
    tick.wait()
    assert [effect.what for effect in lingering.effects()] == ["False"]


@pytest.mark.parametrize("option", [["--wait"], ["--limit", "1"], ["--budget", "6s"]])
def test_what_is_said_for_one_tick_does_not_make_it_stay(project: Project, option: list[str]) -> None:
    project.configure(f"run: {{linger: true}}\n{YAML}")
    for _ in range(2):
        assert project.tick(*option).wait() == 0
    assert "linger_s=0" in state(project).read_text()
    assert "linger_s=0." not in state(project).read_text()


def test_a_working_folder_that_was_removed_is_no_trouble(sqlite_project: Project) -> None:
    sqlite_project.configure(YAML)
    gone = sqlite_project.folder / "gone"
    gone.mkdir()
    program = f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r})\n{LOOK}"
    # -P, as in the crontab's line: without it Python 3.13.0 itself fails to import what it looks for in such a folder.
    argv = [sys.executable, "-P", "-c", program, "run-due", "--config", str(sqlite_project.folder / "cronjobs.yaml")]
    tick = sqlite_project.tick(argv=argv)
    assert "looks incomplete" not in tick.stderr
    assert tick.wait() != 70
    assert sqlite_project.value("SELECT count(*) FROM cronjobs_ticks") == 1


class Frozen(Proxy):
    """Takes the question and never passes it on."""

    def _to_server(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if b"WITH RECURSIVE" not in data:
                    server.sendall(data)
        shut(client, server)


def test_a_server_that_freezes_is_left_to_the_full_tick(
    postgres_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_url(postgres_project.url)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        through = url.set(port=listener.getsockname()[1]).render_as_string(hide_password=False)
        proxy = Frozen(through, (str(url.host), int(url.port or 5432)))
        threading.Thread(target=proxy.serve, args=(listener,), daemon=True).start()
        with psycopg.connect(through):  # loads libpq
            [libpq] = {
                line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libpq-" in line
            }
        monkeypatch.setattr(postgresql, "ANSWER_TIMEOUT_S", 0.2)
        session = postgresql.ServerSession(through, None, libpq)
        facts = dict.fromkeys(FACTS, 0)
        with pytest.raises(OSError, match="does not answer"):
            session.look(facts)
        session.close()
        shut(*proxy.sockets)


def test_a_writer_that_holds_sqlite_does_not_break_an_idle_tick(sqlite_project: Project) -> None:
    sqlite_project.configure(YAML)
    for _ in range(2):
        assert sqlite_project.tick().wait() == 0
    holder = sqlite_project.connect()
    holder.execute("BEGIN IMMEDIATE")
    tick: Tick = sqlite_project.start()
    try:
        assert tick.process.poll() is None
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    assert (tick.wait(), tick.stderr) == (0, "")
