"""``cronjobs exec``: the command behaves as without exec, and its run is recorded whatever else fails."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from support import forked
from support.commands import THE_C_LIBRARYS
from support.databases import until
from support.ticking import Project

from cronjobs.clock import SYSTEM
from cronjobs.contrib.exec import delivery, spool
from cronjobs.contrib.exec.run import ExecRun
from cronjobs.engine.command.database import ready_database
from cronjobs.engine.config.load import load
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.probe.state_files import spool_address

CRONS = {"PATH": "/usr/bin:/bin", "HOME": "/", "SHELL": "/bin/sh", "LOGNAME": "ada"}
if "PYTHONPATH" in os.environ:  # another copy of the package is tested: tests/mutants
    CRONS["PYTHONPATH"] = os.environ["PYTHONPATH"]


class Box:
    """A folder to run commands in, with a state folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.env = CRONS | {"XDG_STATE_HOME": str(self.state)}

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start exec as cron does, in an interpreter of its own."""
        given: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": self.folder}
        given |= {"env": self.env, "stdin": subprocess.DEVNULL}
        return subprocess.Popen([sys.executable, "-P", "-m", "cronjobs", "exec", *words], **(given | options))

    def run(self, *words: str, input: bytes | None = None, **options: Any) -> tuple[int, bytes, bytes]:  # noqa: A002
        if input is not None:
            options["stdin"] = subprocess.PIPE
        process = self.start(*words, **options)
        out, err = process.communicate(input, timeout=60)
        return process.returncode, out, err

    @property
    def file(self) -> Path:
        return self.state / "cronjobs" / "exec.db"

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        if not self.file.exists():
            return []
        try:
            with closing(sqlite3.connect(self.file, timeout=20)) as connection:
                return connection.execute(statement).fetchall()
        except sqlite3.OperationalError:  # the other process is still making the tables
            return []

    def statuses(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT job_type, status, last_error FROM cronjobs_jobs ORDER BY id")

    def spooled(self) -> list[Path]:
        return sorted((self.state / "cronjobs" / spool.FOLDER).glob("*.json"))


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def block_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGUSR1})


LOOK = """
import json, os, sys
print(json.dumps({
    "stdin": list(sys.stdin.buffer.read()), "arguments": sys.argv[1:], "folder": os.getcwd(), "group": os.getpgrp(),
    "environment": {name: value for name, value in sorted(os.environ.items())},
    "umask": os.umask(0), "session": os.getsid(0), "parent": os.getppid(),
    "ignored": open("/proc/self/status").read().split("SigIgn:")[1].split()[0],
    "blocked": open("/proc/self/status").read().split("SigBlk:")[1].split()[0],
    "descriptors": sorted(os.listdir("/proc/self/fd"))[:-1],
}))
os.write(2, b"\\xff\\x00 to stderr")
sys.exit(7)
"""


def test_the_command_sees_what_it_would_see_without_exec_and_its_output_and_code_pass_through(box: Box) -> None:
    data = bytes(range(256)) * 3
    command = [sys.executable, "-S", "-c", LOOK, "a b", "%", ""]
    odd: dict[str, Any] = {"start_new_session": True, "preexec_fn": block_signals}
    plain = subprocess.run(command, input=data, capture_output=True, cwd=box.folder, env=box.env, check=False, **odd)
    process = box.start("look", "--", *command, stdin=subprocess.PIPE, **odd)
    out, err = process.communicate(data, timeout=60)
    seen, expected = json.loads(out), json.loads(plain.stdout)
    assert (process.returncode, err) == (7, b"\xff\x00 to stderr") == (plain.returncode, plain.stderr)
    assert (seen.pop("group"), seen.pop("session"), seen.pop("parent")) == (process.pid,) * 3
    for one in ("group", "session", "parent"):
        expected.pop(one)
    ignored, wanted = (int(each.pop("ignored"), 16) & ~THE_C_LIBRARYS for each in (seen, expected))
    assert ignored == wanted
    assert seen == expected
    until(lambda: bool(box.rows("SELECT 1 FROM cronjobs_job_runs")))
    [(output, outcome, error)] = box.rows("SELECT output, outcome, error FROM cronjobs_job_runs")
    assert (outcome, error.partition(":")[0]) == ("failed", "exit status 7")
    assert "\ufffd\\x00 to stderr" in output
    assert '"arguments": ["a b", "%", ""]' in output


def processes_with(text: str) -> list[bytes]:
    """The command lines that pgrep -f would find."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(file.read_bytes())
    return [each for each in found if text.encode() in each]


def test_a_script_that_looks_for_itself_does_not_find_exec_or_its_recorder(box: Box) -> None:
    """As in: [ "$(pgrep -fc /home/x/guard.sh)" -gt 1 ] && exit."""
    guard = f"{box.folder}/guard.sh"
    process = box.start("guard", "-c", f"cat; : {guard}", stdin=subprocess.PIPE)
    until(lambda: box.statuses() == [("exec:guard", "running", None)])
    assert processes_with(guard) == [f"/bin/sh\0-c\0cat; : {guard}\0".encode()]
    with open(f"/proc/{process.pid}/cmdline", "rb") as file:
        assert file.read().rstrip(b"\0").endswith(b"\0exec")
    process.communicate(b"", timeout=60)


@pytest.mark.parametrize("files", [None, 5], ids=["recorded", "too-few-descriptors-to-record"])
def test_a_stdin_that_the_caller_closed_is_closed_for_the_command(box: Box, files: int | None) -> None:
    def close_stdin() -> None:
        os.close(0)
        if files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    plain = subprocess.run(["/bin/cat"], capture_output=True, preexec_fn=close_stdin, env=box.env, check=False)
    assert plain.returncode == 1
    assert box.run("look", "--", "/bin/cat", preexec_fn=close_stdin) == (1, b"", plain.stderr)


def test_what_is_loaded_before_the_command_runs_is_of_no_weight(box: Box) -> None:
    program = """
import os, sys
def spawned(*given, **options):
    sys.stdout.write(" ".join(sys.modules))
    sys.stdout.flush()
    os._exit(0)
before = {*sys.modules}
os.posix_spawnp = spawned
sys.argv = ["cronjobs", "exec", "a", "--", "true"]
from cronjobs.__main__ import main
main()
"""
    given: dict[str, Any] = {"cwd": box.folder, "env": box.env, "capture_output": True, "check": True, "text": True}
    loaded = subprocess.run([sys.executable, "-P", "-c", program], **given).stdout.split()
    plain = subprocess.run([sys.executable, "-P", "-c", "import sys; print(*sys.modules)"], **given).stdout.split()
    assert set(loaded) - set(plain) == {
        *("cronjobs", "cronjobs.__main__", "cronjobs.version", "__future__", "errno", "fcntl", "select"),
        *("cronjobs.contrib", "cronjobs.contrib.exec"),
        *(f"cronjobs.contrib.exec.{name}" for name in ("arguments", "start", "copying")),
        *(
            "cronjobs.engine",
            "cronjobs.engine.probe",
            "cronjobs.engine.probe.timer",
            "cronjobs.engine.probe.kernel_facts",
            "faulthandler",
        ),
    }


def test_signals_reach_the_command_and_exec_dies_as_it_dies(box: Box) -> None:
    line = "trap 'echo heard; exit 5' TERM; trap '' HUP; echo ready; while :; do sleep 0.05; done"
    process = box.start("traps", "-c", line)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30) == (b"heard\n", b"")
    assert process.returncode == 5
    process = box.start("dies", "--", "sh", "-c", "echo ready; exec sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    until(lambda: ("exec:dies", "dead", "killed by SIGINT: ready") in box.statuses())
    assert ("exec:traps", "dead", "exit status 5: heard") in box.statuses()


def test_a_command_that_cannot_be_started_ends_as_in_a_shell(box: Box) -> None:
    plain = box.folder / "plain"
    plain.write_text("echo from a script without a first line")
    assert box.run("none", "--", "./no-such-program")[0] == 127
    assert box.run("none", "--", "./plain")[0] == 126
    plain.chmod(0o700)
    code, out, err = box.run("plain", "--", "./plain")
    assert (code, out, err) == (0, b"from a script without a first line\n", b"")
    code, out, err = box.run("none", "--", "no-such-program")
    assert (code, out, err) == (127, b"", b"cronjobs exec: no-such-program: not found\n")
    until(lambda: ("exec:none", "dead", "exit status 127: not found") in box.statuses())


def test_a_cron_expression_that_cannot_be_read_is_said_once_and_changes_nothing(box: Box) -> None:
    code, out, err = box.run("backup", "--cron", "61 * * * *", "-c", "echo out; echo err >&2; exit 5")
    assert (code, out) == (5, b"out\n")
    assert err == (
        b'err\ncronjobs exec: --cron "61 * * * *": minute 61 is not in 0\xe2\x80\x9359. '
        b"So nobody will notice if backup does not run\n"
    )
    assert box.run("backup", "--cron", "15 2 * * *", "-c", "exit 5") == (5, b"", b"")


def test_background_processes_live_on_and_are_heard(box: Box) -> None:
    os.mkfifo(box.folder / "gate")
    line = "(read go < gate; echo late; echo later; echo > done) & echo now"
    process = box.start("daemon", "-c", line)
    assert process.stdout is not None
    assert process.stdout.readline() == b"now\n"
    assert process.wait(30) == 0, "exec waits for the command, not for its background"
    with (box.folder / "gate").open("w") as gate:
        gate.write("go\n")
    assert process.stdout.read() == b"late\nlater\n"
    assert (box.folder / "done").exists()
    process.communicate()
    until(lambda: ("exec:daemon", "succeeded", None) in box.statuses())


def test_much_output_passes_through_whole_and_its_end_is_recorded(box: Box) -> None:
    code, out, err = box.run("much", "-c", "seq 1 200000; seq 1 3 >&2")
    assert (code, err) == (0, b"1\n2\n3\n")
    assert out == b"".join(b"%d\n" % number for number in range(1, 200001))
    until(lambda: bool(box.rows("SELECT 1 FROM cronjobs_job_runs")))
    [(output,)] = box.rows("SELECT output FROM cronjobs_job_runs")
    assert len(output.encode()) <= 64 * 1024
    assert "bytes before this were not kept" in output.splitlines()[0]
    assert "\n200000\n" in output


def test_a_reader_that_leaves_ends_the_command_as_without_exec(box: Box) -> None:
    process = box.start("yes", "--", "yes")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == -signal.SIGPIPE
    process.communicate()


def test_nowhere_to_record_changes_nothing_but_says_so(box: Box) -> None:
    box.state.write_text("a file where the folder should be")
    code, out, err = box.run("lost", "-c", "echo out; exit 4")
    assert (code, out) == (4, b"out\n")
    assert b"this run of lost was not recorded: " in err


@pytest.mark.slow
def test_without_the_database_runs_wait_in_the_spool_and_are_delivered_once(box: Box) -> None:
    (box.folder / "cronjobs.yaml").write_text("database: sqlite:///away/jobs.db\n")
    began = [box.run("early", "-c", "echo out; exit 3"), box.run("late", "-c", "exit 0")]
    assert began == [(3, b"out\n", b""), (0, b"", b"")]
    spooled = box.spooled()
    assert len(spooled) == 2
    assert {file.stat().st_mode & 0o777 for file in spooled} == {0o600}
    (box.folder / "away").mkdir()
    copies = {file: file.read_bytes() for file in spooled}
    assert box.run("now", "-c", "exit 0") == (0, b"", b"")
    until(lambda: not box.spooled())
    for file, content in copies.items():  # as if the process that delivered them had died before it could remove them
        file.write_bytes(content)
    assert box.run("again", "-c", "exit 0") == (0, b"", b"")
    until(lambda: not box.spooled())
    with closing(sqlite3.connect(box.folder / "away" / "jobs.db")) as connection:
        found = connection.execute("SELECT job_type, status, attempts FROM cronjobs_jobs ORDER BY id").fetchall()
        runs = connection.execute("SELECT job_id, output FROM cronjobs_job_runs ORDER BY job_id").fetchall()
    assert sorted(found) == [
        ("exec:again", "succeeded", 1),
        ("exec:early", "dead", 1),
        ("exec:late", "succeeded", 1),
        ("exec:now", "succeeded", 1),
    ]
    assert len(runs) == 4
    assert "out\n" in {output for _, output in runs}


@pytest.mark.either
def test_a_projects_runs_are_in_its_database_while_they_run_and_after(project: Project) -> None:
    project.configure()
    box = Box(project.folder)
    box.env["XDG_STATE_HOME"] = str(project.folder)
    os.mkfifo(project.folder / "go")
    process = box.start("backup", "--config", f"{project.folder}/cronjobs.yaml", "-c", "echo begun; read go < go")
    until(lambda: project.statuses() == {"running": 1})
    [job_id] = project.sql("SELECT id FROM cronjobs_jobs")[0]
    tick = project.tick()
    assert (tick.wait(), tick.stderr) == (0, ""), "its lease is in nobody's way"
    project.let_leases_end()
    project.tick()
    assert project.statuses() == {"running": 1}, "it is proven to run"
    pause = forked.run([sys.executable, "-m", "cronjobs", "pause", "--all", "--wait", "9s", *config_of(project)])
    assert pause.returncode == 0, "a pause does not stop cron, so it does not wait for exec"
    with (project.folder / "go").open("w") as gate:
        gate.write("go\n")
    assert process.communicate(timeout=30) == (b"begun\n", b"")
    until(lambda: project.statuses() == {"succeeded": 1})
    assert project.sql("SELECT job_type, attempts, queue FROM cronjobs_jobs") == [("exec:backup", 1, "default")]
    assert project.sql("SELECT outcome, output FROM cronjobs_job_runs") == [("succeeded", "begun\n")]
    assert project.job(job_id)["result"] is not None


@pytest.mark.slow
def test_an_exec_that_was_killed_is_dead_by_the_next_tick_and_never_runs_again(project: Project) -> None:
    project.configure()
    box = Box(project.folder)
    box.env["XDG_STATE_HOME"] = str(project.folder)
    process = box.start("backup", "--config", f"{project.folder}/cronjobs.yaml", "--", "sleep", "60")
    until(lambda: project.statuses() == {"running": 1})
    [(holder,)] = project.sql("SELECT locked_by FROM cronjobs_jobs")
    assert int(holder.split(":")[3]) == process.pid
    command = next(pid for pid in children(process.pid) if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes())
    # the recorder first, because it would notice the death of the others
    for pid in [*set(children(process.pid)) - {command}, process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert Path(f"/proc/{command}").exists(), "the command itself was not touched"
    os.kill(command, signal.SIGKILL)
    project.tick()
    [(job_id, status, error)] = project.sql("SELECT id, status, error_type FROM cronjobs_jobs")
    assert (status, error) == ("dead", "Lost")
    assert "the command may still be running" in project.value("SELECT last_error FROM cronjobs_jobs")
    done = forked.run([sys.executable, "-m", "cronjobs", "jobs", "retry", str(job_id), *config_of(project)])
    assert (done.returncode, "a run of cronjobs exec" in done.stderr) == (1, True)
    project.tick()
    assert project.statuses() == {"dead": 1}


@pytest.mark.either
def test_an_idle_tick_delivers_what_waits_in_the_spool(project: Project) -> None:
    project.configure()
    while project.tick().wait() or project.value("SELECT count(*) FROM cronjobs_ticks") < 2:
        pass
    config = str(project.folder / "cronjobs.yaml")
    os.environ["XDG_STATE_HOME"], before = str(project.folder), os.environ.get("XDG_STATE_HOME")
    try:
        run = {"token": "0123456789abcdef", "name": "backup", "cron": None, "began": 1.7e9, "locked_by": "h:b:n:1:2:3"}
        run |= {"ended": 1.7e9 + 60, "took": 60.0, "status": 256, "output": "said\xff", "output_size": 5}
        assert spool.put(spool_address(config, None), run) is None
        assert spool.put(spool_address("/other.yaml", None), run) is None
    finally:
        os.environ.pop("XDG_STATE_HOME")
        if before is not None:
            os.environ["XDG_STATE_HOME"] = before
    project.tick()
    assert project.sql("SELECT job_type, status FROM cronjobs_jobs") == [("exec:backup", "dead")]
    assert project.sql("SELECT outcome, output FROM cronjobs_job_runs") == [("failed", "said\ufffd")]
    assert [file.name[:16] for file in (project.folder / "cronjobs" / spool.FOLDER).iterdir()] == [
        spool_address("/other.yaml", None)
    ]


@pytest.mark.slow
def test_a_configuration_that_is_gone_is_reported_at_once_and_then_hourly(box: Box) -> None:
    """Without the line, cron would mail nothing, and nobody would know that no run is recorded."""
    file = box.folder / "cronjobs.yaml"
    words = ("backup", "--config", str(file), "-c", "echo hi")
    said = (
        b"cronjobs exec: runs of backup wait in the state folder, because cronjobs cannot use the configuration of the"
    )
    said += f" project that should record them: ConfigError: {file}: there is no such file".encode()

    def reports() -> bool:
        """On a busy machine, the recorder may need longer than exec waits. Then the next run reports."""
        code, out, err = box.run(*words)
        assert (code, out) == (0, b"hi\n")
        return err.startswith(said)

    until(reports)
    assert box.run(*words) == (0, b"hi\n", b"")
    [alarm] = (box.state / "cronjobs").glob("exec-refused-*.json")
    alarm.write_text(alarm.read_text().replace(f'"next": "{SYSTEM.now():%Y}', '"next": "2020'))  # an hour has passed
    until(reports)
    oldest = box.spooled()[0]
    oldest.rename(oldest.with_name(oldest.name.replace("-1", "-0", 1)))
    command = [sys.executable, "-P", "-m", "cronjobs", "doctor"]
    found = subprocess.run(command, env=box.env, cwd=box.folder, capture_output=True, text=True, check=False).stdout
    gone = f"could not be written: backup ran for the configuration {file}, which does not exist"
    assert gone in " ".join(found.split())
    file.write_text("database: sqlite:///jobs.db\n")
    assert box.run(*words) == (0, b"hi\n", b"")
    until(lambda: not box.spooled() and not json.loads(alarm.read_text()))


def test_db_drop_delivers_what_waits_in_the_spool(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tick comes any more that would, and the run that has ended kept the tables in use."""
    monkeypatch.setenv("XDG_STATE_HOME", str(box.state))
    file = box.folder / "cronjobs.yaml"
    file.write_text("database: sqlite:///jobs.db\n")
    began = SYSTEM.now().timestamp() - 60
    facts = {"token": "0123456789abcdef", "name": "backup", "locked_by": str(Identity.here()), "began": began}
    with closing(ready_database(load(file, environ={}))) as database:
        delivery.begin(database, ExecRun.read(facts))
    assert spool.put(spool_address(str(file), None), facts | {"ended": began + 9, "took": 9.0, "status": 0}) is None
    command = [sys.executable, "-P", "-m", "cronjobs", "db", "drop", "--yes", "--config", str(file)]
    subprocess.run(command, env=box.env, capture_output=True, check=True)
    assert not box.spooled()


@pytest.mark.slow
def test_a_recorder_that_died_or_went_is_replaced_at_the_end(box: Box) -> None:
    os.mkfifo(box.folder / "go")
    process = box.start("long", "-c", "read go < go; exit 9")
    until(lambda: box.statuses() == [("exec:long", "running", None)])
    [recorder] = [pid for pid in children(process.pid) if b"cronjobs" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(recorder, signal.SIGKILL)
    with (box.folder / "go").open("w") as gate:
        gate.write("go\n")
    process.communicate(timeout=30)
    assert process.returncode == 9
    until(lambda: box.statuses() == [("exec:long", "dead", "exit status 9")])


@pytest.mark.slow
def test_a_locked_database_delays_the_end_by_two_seconds_and_gets_the_run_once(box: Box) -> None:
    assert box.run("first", "--", "true")[0] == 0
    until(lambda: box.statuses() == [("exec:first", "succeeded", None)])
    with closing(sqlite3.connect(box.file, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        began = SYSTEM.monotonic()
        assert box.run("second", "-c", "exit 3")[0] == 3
        assert 1.5 < SYSTEM.monotonic() - began < 40
        assert "second" in {json.loads(file.read_text())["name"] for file in box.spooled()}
        holder.execute("ROLLBACK")
    until(lambda: len(box.statuses()) == 2)
    assert box.run("third", "--", "true")[0] == 0
    until(lambda: not box.spooled())
    assert [row[:2] for row in box.statuses()] == [
        ("exec:first", "succeeded"),
        ("exec:second", "dead"),
        ("exec:third", "succeeded"),
    ]
    assert box.rows("SELECT count(*) FROM cronjobs_job_runs") == [(3,)]


@pytest.mark.slow
def test_without_a_project_commands_read_the_state_folder(box: Box) -> None:
    command = [sys.executable, "-P", "-m", "cronjobs"]
    given: dict[str, Any] = {"cwd": box.folder, "env": box.env}
    assert "there is no such file" in forked.run([*command, "status"], **given).stderr
    assert box.run("backup", "-c", "echo gone wrong; exit 3")[0] == 3
    until(lambda: bool(box.statuses()) and box.statuses()[0][1] == "dead")
    told = {
        words: forked.run([*command, *words.split()], **given).stdout
        for words in ("status", "history", "explain backup", "jobs list", "jobs show 1")
    }
    assert "critical dead: 1 dead job" in told["status"]
    assert "no tick" not in told["status"]
    assert "exec:backup #1" in told["history"]
    assert told["explain backup"].startswith("Job 1 is a run of cronjobs exec backup")
    assert "exec:backup" in told["jobs list"]
    assert "gone wrong" in told["jobs show 1"]
    assert forked.run([*command, "jobs", "dismiss", "1"], **given).returncode == 0
    assert "all well" in forked.run([*command, "status"], **given).stdout
    assert forked.run([*command, "enqueue", "x"], **given).returncode == 3, "it takes no jobs"


@pytest.mark.slow
@pytest.mark.needs("contrib.doctor")
def test_without_a_project_doctor_examines_the_state_folder(box: Box) -> None:
    assert box.run("backup", "-c", "true")[0] == 0
    until(lambda: bool(box.statuses()) and box.statuses()[0][1] == "succeeded")
    command = [sys.executable, "-P", "-m", "cronjobs", "doctor", "--json"]
    done = forked.run(command, cwd=box.folder, env=box.env)
    found = {each["check"]: each["status"] for each in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stdout
    assert (found["database"], found["schema revision"], found["state folder"]) == ("ok", "ok", "ok")
    assert {found[name] for name in ("configuration", "crontab", "ticks", "cron's mail")} == {"not applicable"}


def config_of(project: Project) -> tuple[str, str]:
    return "--config", f"{project.folder}/cronjobs.yaml"


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
