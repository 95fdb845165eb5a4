"""Declared commands, with real processes: their input, the record of their end, and the kept part of their output."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.commands import LINUX_ONLY, THE_C_LIBRARYS, Shell, marked_shell

from cronjobs.engine.execution import process, process_outcome
from cronjobs.engine.execution.process import command_environment
from cronjobs.model import ExitCodes, Failed, Job, Released, Succeeded
from cronjobs.text import OUTPUT_LIMIT


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with marked_shell(tmp_path) as shell:
        yield shell


# --- how it ends ------------------------------------------------------------------------------------------------------


def test_exit_0_is_success_and_the_output_is_kept(shell: Shell) -> None:
    assert shell.sh("echo out; echo err >&2; echo more") == (Succeeded(), "out\nerr\nmore\n")


def test_an_end_that_is_reported_between_two_looks_is_the_commands_own(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy host runs the launcher to its end after we heard nothing from it, and before we ask whether it lives."""
    monkeypatch.setattr(subprocess.Popen, "poll", subprocess.Popen.wait)
    assert shell.sh("sleep 0.3; echo done") == (Succeeded(), "done\n")


def test_a_command_that_prints_nothing_has_no_output(shell: Shell) -> None:
    assert shell.run("true") == (Succeeded(), None)


@pytest.mark.parametrize(
    ("script", "error", "error_type", "permanent"),
    [
        ("echo first; echo no space left; exit 3", "exit status 3: no space left", "exit-3", False),
        ("exit 1", "exit status 1", "exit-1", False),
        ("echo try later; exit 75", "exit status 75: try later", "exit-75", False),  # EX_TEMPFAIL
        ("echo bad record; exit 65", "exit status 65: bad record", "exit-65", True),  # EX_DATAERR
        ("exit 78", "exit status 78", "exit-78", True),  # EX_CONFIG
        ("echo here; kill -SEGV $$", "killed by SIGSEGV: here", "SIGSEGV", False),
        ("kill -KILL $$", "killed by SIGKILL (by hand, or because memory ran out)", "SIGKILL", False),
        ("kill -40 $$", "killed by signal 40", "signal 40", False),
        (r"printf '10%%\r99%%\r\033[31;1mboom\033[0m\r\n\n  \n'; exit 1", "exit status 1: boom", "exit-1", False),
        (r"printf 'a\033[2Jb\n'; exit 1", r"exit status 1: a\x1b[2Jb", "exit-1", False),
    ],
)
def test_a_failure_is_told_by_its_status_and_last_line(
    shell: Shell, script: str, error: str, error_type: str, permanent: bool
) -> None:
    outcome, _ = shell.sh(script)
    assert outcome == Failed(error, error_type, permanent=permanent, kinds=(error_type,))


def test_exit_codes_can_be_given_other_meanings(shell: Shell) -> None:
    codes = ExitCodes(success=frozenset({0, 24}), permanent=frozenset({2}))
    assert shell.run("sh", "-c", "exit 24", exit_codes=codes)[0] == Succeeded()
    outcome, _ = shell.run("sh", "-c", "exit 2", exit_codes=codes)
    assert outcome == Failed("exit status 2", "exit-2", permanent=True, kinds=("exit-2",))


def test_a_missing_command_is_retried_and_path_is_named(shell: Shell) -> None:
    outcome, output = shell.run("pg_dmp", "--version")
    assert isinstance(outcome, Failed)
    assert outcome.error_type == "CommandNotFound"
    assert "pg_dmp is not on PATH=/usr/bin:/bin" in outcome.error
    assert not outcome.permanent
    assert output is None


def test_what_cannot_be_executed_says_what_to_do(shell: Shell) -> None:
    script = shell.folder / "backup"
    errors = []
    for text, mode in (("echo hi\n", 0o644), ("echo hi\n", 0o755), ("#!/nowhere/sh\n", 0o755)):
        script.write_text(text)
        script.chmod(mode)
        outcome, _ = shell.run("./backup")
        assert isinstance(outcome, Failed)
        errors.append(outcome.error)
    assert "chmod +x" in errors[0]
    assert "#! line" in errors[1]
    assert "command not found: ./backup" in errors[2]
    assert "#! line" in errors[2]


def test_a_missing_folder_or_an_impossible_argument_is_a_failure(shell: Shell) -> None:
    assert "could not be started" in str(shell.run("echo", "a\0b"))
    assert "too long for the kernel" in str(shell.run("true", "x" * 10_000_000))
    shell.folder = shell.folder / "gone"
    assert f"the folder {shell.folder} cannot be entered" in str(shell.run("true"))


def test_without_a_place_for_the_output_it_is_given_back(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(shell.folder / "gone"))
    outcome, _ = shell.run("true")
    assert isinstance(outcome, Released)
    assert "cannot start a process" in (outcome.error or "")


# --- what it is given -------------------------------------------------------------------------------------------------


def test_a_payload_is_data_whatever_it_says(shell: Shell) -> None:
    payload = b"""{"a": "$(touch x)", "b": "; id > y", "c": "`touch z`", "d": "--flag", "e": "' \\u0000 \\n"}"""
    assert shell.run("cat", stdin=payload) == (Succeeded(), payload.decode())
    assert list(shell.folder.iterdir()) == []


def test_no_input_is_the_null_device(shell: Shell) -> None:
    assert shell.run("readlink", "/proc/self/fd/0", stdin=b"") == (Succeeded(), "/dev/null\n")


def test_arguments_reach_the_command_as_they_are(shell: Shell) -> None:
    words = ["$(touch x)", "; id", "*", "~", "%", "two words", "--", "", "ü"]
    _, output = shell.run("printf", "<%s>\n", *words)
    assert output == "".join(f"<{word}>\n" for word in words)


def test_a_payload_that_nobody_reads_and_one_larger_than_a_pipe(shell: Shell) -> None:
    payload = b"x" * 1_000_000
    assert shell.run("true", stdin=payload)[0] == Succeeded()
    assert shell.run("wc", "-c", stdin=payload) == (Succeeded(), "1000000\n")


def test_the_environment_is_exactly_the_one_given_and_a_mark_of_ours(shell: Shell) -> None:
    _, output = shell.run("env", "-0", PYTHONPATH="/x", LC_ALL="C", LINES="a\nb", RAW="caf\udce9")
    variables = {
        f"MARK={shell.mark}",
        "PATH=/usr/bin:/bin",
        "PYTHONPATH=/x",
        "LC_ALL=C",
        "LINES=a\nb",
        "RAW=caf\N{REPLACEMENT CHARACTER}",
    }
    found = set((output or "").split(r"\x00")) - {""}
    [mark] = found - variables
    assert re.fullmatch(r"CRONJOBS_PROCESS=[0-9a-f]{32}", mark)
    assert found == variables | {mark}


def test_it_runs_in_its_folder_with_our_umask(shell: Shell) -> None:
    before = os.umask(0o027)
    try:
        assert shell.sh("pwd -P; umask") == (Succeeded(), f"{shell.folder.resolve()}\n0027\n")
    finally:
        os.umask(before)


def test_it_leads_a_session_of_its_own(shell: Shell) -> None:
    script = "import os; print(os.getpid() == os.getsid(0) == os.getpgrp())"
    assert shell.run(sys.executable, "-c", script) == (Succeeded(), "True\n")


def test_it_inherits_no_descriptors(shell: Shell) -> None:
    with socket.socket() as leaky:
        leaky.set_inheritable(True)
        script = "import os; print([fd for fd in range(256) if os.path.exists(f'/dev/fd/{fd}')])"
        _, output = shell.run(sys.executable, "-c", script)
    assert output == "[0, 1, 2]\n"


@LINUX_ONLY
def test_signals_are_at_their_defaults_and_no_timer_runs(shell: Shell) -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGALRM, signal.SIGHUP)}
    signal.setitimer(signal.ITIMER_REAL, 1000)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
    try:
        _, masks = shell.run("grep", "-E", "Sig(Blk|Ign)", "/proc/self/status")
        _, timer = shell.run(sys.executable, "-c", "import signal; print(signal.getitimer(signal.ITIMER_REAL))")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
    assert {int(line.split()[1], 16) & ~THE_C_LIBRARYS for line in (masks or "").splitlines()} == {0}
    assert timer == "(0.0, 0.0)\n"


def test_a_job_is_told_in_the_environment() -> None:
    job = Job(
        17,
        "billing.send\0invoice",
        {"secret": "canary"},
        attempt=3,
        idempotency_key="invoice:42",
        schedule="nightly",
        scheduled_for=datetime(2026, 7, 1, 22, 15, tzinfo=UTC),
        stands_for=2,
        timezone="Europe/Berlin",
    )
    deadline = datetime(2026, 7, 1, 22, 16, tzinfo=UTC)
    base = {"PATH": "/bin", "ATTEMPT": "mine", "CRONJOBS_JOB_ID": "outer"}
    assert command_environment(base, job, deadline) == {
        "PATH": "/bin",
        "ATTEMPT": "mine",
        "CRONJOBS_JOB_ID": "17",
        "CRONJOBS_JOB_TYPE": r"billing.send\x00invoice",
        "CRONJOBS_ATTEMPT": "3",
        "CRONJOBS_SCHEDULE": "nightly",
        "CRONJOBS_SCHEDULED_FOR": "2026-07-02T00:15:00+02:00",
        "CRONJOBS_STANDS_FOR": "2",
        "CRONJOBS_IDEMPOTENCY_KEY": "invoice:42",
        "CRONJOBS_DEADLINE": "2026-07-01T22:16:00+00:00",
    }


def test_facts_of_an_outer_job_are_not_inherited() -> None:
    outer = {"CRONJOBS_SCHEDULE": "outer", "CRONJOBS_IDEMPOTENCY_KEY": "outer", "CRONJOBS_CONFIG": "/kept"}
    env = command_environment(outer, Job(1, "t", {}), datetime(2026, 7, 1, 22, 16, tzinfo=UTC))
    assert env.keys() == {
        "CRONJOBS_CONFIG",
        "CRONJOBS_JOB_ID",
        "CRONJOBS_JOB_TYPE",
        "CRONJOBS_ATTEMPT",
        "CRONJOBS_STANDS_FOR",
        "CRONJOBS_DEADLINE",
    }


# --- output -----------------------------------------------------------------------------------------------------------


def test_huge_output_keeps_its_ends_in_bounded_memory(shell: Shell) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome, output = shell.sh("echo begin; yes filler | head -c 50000000; echo; echo end")
    assert outcome == Succeeded()
    assert output is not None
    assert output.startswith("begin\nfiller\n")
    assert output.endswith("\nend\n")
    assert " bytes left out …" in output
    assert len(output.encode()) <= OUTPUT_LIMIT
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10 * 1024  # KiB


@LINUX_ONLY
def test_the_middle_of_long_output_takes_no_disk(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    def measure(child: process._Child, *_: object) -> None:
        used.append(child.disk_used())
        if "written" in shell.seen and used[-1] <= 4 * 1024**2:
            (shell.folder / "go").touch()

    monkeypatch.setattr(process, "_why_stop", measure)
    shell.when("written", lambda: None)
    _, output = shell.sh("head -c 20000000 /dev/zero; echo written; while ! [ -e go ]; do sleep 0.01; done; echo end")
    assert max(used) > 4 * 1024**2
    assert (output or "").endswith("written\nend\n")


def test_output_that_fills_the_disk_ends_the_command(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "DISK_LIMIT", 1024**2)
    monkeypatch.setattr(process_outcome, "DISK_LIMIT", 1024**2)
    outcome, _ = shell.sh("head -c 1500000 /dev/zero; echo; echo last; exec sleep 1000")
    assert outcome == Failed("stopped: its output took more than 1 MiB of disk: last", "TooMuchOutput")


def test_binary_output_and_escapes_are_kept_storable(shell: Shell) -> None:
    outcome, output = shell.sh(r"printf '\000\377\033[31m\n'; printf '\355\240\200 \303\251\n'; exit 1")
    assert output is not None
    assert output.encode().decode() == output
    assert output.startswith("\\x00\ufffd\x1b[31m\n")
    assert output.endswith(" é\n")
    assert outcome == Failed("exit status 1: \ufffd\ufffd\ufffd é", "exit-1", kinds=("exit-1",))


def test_writing_to_dev_stderr_leaves_no_hole(shell: Shell) -> None:
    # The shell opens the file anew and truncates it, as it would any file.
    assert shell.sh("echo a longer line; echo two > /dev/stderr; echo three") == (Succeeded(), "two\nthree\n")


def test_a_person_sees_output_as_it_comes(shell: Shell) -> None:
    shell.when("first", (shell.folder / "go").touch)
    _, output = shell.sh("echo first; while ! [ -e go ]; do sleep 0.01; done; echo second")
    assert shell.seen.startswith("first\n")
    assert output == "first\nsecond\n"


# --- side by side -----------------------------------------------------------------------------------------------------


def test_four_commands_run_at_once_in_four_threads(shell: Shell) -> None:
    meet = 'touch "$0"; while [ $(ls | wc -l) -lt 4 ]; do sleep 0.01; done; echo "$0"'
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda name: shell.run("sh", "-c", meet, name), "abcd")
        assert list(results) == [(Succeeded(), f"{name}\n") for name in "abcd"]


def test_nothing_is_left_open(shell: Shell) -> None:
    shell.run("true")
    before = len(list(Path("/dev/fd").iterdir()))
    for argv in (["true"], ["missing"], ["sh", "-c", "exit 3"]):
        shell.run(*argv)
    assert len(list(Path("/dev/fd").iterdir())) == before
