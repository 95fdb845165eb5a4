"""Progress and live output of real ticks: shown while the attempt runs, and removed at its end."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from typing import Any

import pytest
from support import forked
from support.commands import started, until
from support.ticking import CRONS, Project

LEASE = "run: {workers: 2, lease: 4s}\n"
HANDLERS = """
SECRET = "correct-horse-battery"

def work(ctx):
    print("begun")
    print("key", SECRET)
    ctx.progress(1, of=4, note="first " + SECRET)
    ctx.progress(2, of=4, note="half\\nway")
    wait_for("gate")
    print("behind \\x00 \\ud800 \\x1b[2J the gate")
    wait_for("end")
    print("done")

job("t.thread", timeout="30s")(work)
job("t.process", isolation="process", timeout="30s")(work)
job("t.long", timeout="10m")(work)

@job("t.dies")
def dies(ctx):
    ctx.progress(5)
    print("soon gone", flush=True)
    wait_for("never")

@job("t.silent")
def silent(ctx):
    wait_for("gate")
"""
COMMAND = """
job_types:
  t.command:
    command: [sh, -c, 'echo begun; echo key correct-horse-battery; echo "::progress 2/4 half"; until [ -e gate ];
      do sleep 0.02; done; printf "behind \\377\\000\\r\\n"; until [ -e end ]; do sleep 0.02; done; echo done']
    timeout: 30s
env: {A_SECRET: "${file:secret}"}
"""


@pytest.fixture
def live(project: Project) -> Project:
    (project.folder / "secret").write_text("correct-horse-battery")
    return project.configure(LEASE + COMMAND, HANDLERS)


def row(project: Project, job_id: int) -> tuple[dict[str, Any] | None, str | None]:
    progress, output = project.sql(f"SELECT progress, live_output FROM cronjobs_jobs WHERE id = {job_id}")[0]
    return (json.loads(progress) if isinstance(progress, str) else progress), output


def command(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cronjobs", *words, "--config", str(project.folder / "cronjobs.yaml")]
    return forked.run(argv, env=CRONS)


@pytest.mark.either
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "process", "long", "command"])
def test_what_an_attempt_reports_is_seen_while_it_runs_and_gone_when_it_ends(live: Project, kind: str) -> None:
    job_id = live.add(f"t.{kind}")
    tick = live.start()
    until(lambda: (row(live, job_id)[0] or {}).get("done") == 2, 20)
    until(lambda: "key ***" in (row(live, job_id)[1] or ""), 20)
    progress, output = row(live, job_id)
    assert progress is not None
    assert output == "begun\nkey ***\n" + ("::progress 2/4 half\n" if kind == "command" else "")
    assert progress["of"] == 4
    assert progress["note"] == ("half" if kind == "command" else r"half\nway")
    shown = command(live, "jobs", "show", str(job_id))
    for said in (shown, command(live, "explain", str(job_id))):
        assert "Its progress is 2 of 4 (50 %): half" in said.stdout
    tailed = command(live, "jobs", "tail", str(job_id))
    assert (tailed.returncode, tailed.stdout) == (0, output)
    (live.folder / "gate").touch()
    (live.folder / "end").touch()
    assert tick.wait() == 0
    until(lambda: live.job(job_id)["status"] == "succeeded", 20)  # a long job outlives its tick
    assert row(live, job_id) == (None, None)
    tailed = command(live, "jobs", "tail", str(job_id))
    stored = live.value(f"SELECT output FROM cronjobs_job_runs WHERE job_id = {job_id}")
    assert (tailed.returncode, tailed.stdout) == (0, stored.replace("\r\n", "\n").replace("\x1b", r"\x1b"))
    assert "correct-horse" not in tailed.stdout + shown.stdout


@pytest.mark.slow
def test_kill_9_leaves_no_stale_progress_after_recovery(live: Project) -> None:
    job_id = live.add("t.dies")
    tick = live.start()
    until(lambda: row(live, job_id)[1] == "soon gone\n", 20)
    tick.send(signal.SIGKILL)
    tick.wait()
    assert row(live, job_id)[0] is not None  # nobody was there to clear it
    live.configure(LEASE + COMMAND, HANDLERS.replace('wait_for("never")', "pass"))
    live.tick()
    assert live.outcomes(job_id)[0] == "lost"
    assert row(live, job_id) == (None, None)


@pytest.mark.either
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "command"])
def test_tail_f_on_a_terminal_follows_a_job_from_before_its_beginning_to_its_end(live: Project, kind: str) -> None:
    job_id = live.add(f"t.{kind}")
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "cronjobs", "jobs", "tail", str(job_id), "-f"]
    argv += ["--config", str(live.folder / "cronjobs.yaml")]
    with started(argv, env=CRONS | {"TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs) as tail:
        os.close(theirs)
        seen = Seen(ours)
        seen.until("waits, and ")
        tick = live.start()
        seen.until("begun")
        seen.until("2 of 4 (50 %): half")
        (live.folder / "gate").touch()
        seen.until("behind")
        (live.folder / "end").touch()
        seen.until("attempt 1 succeeded; job")
        assert tick.wait() == 0
        assert tail.wait(20) == 0
    os.close(ours)
    stored = live.value(f"SELECT output FROM cronjobs_job_runs WHERE job_id = {job_id}")
    lines = [line for line in seen.plain().split("\n") if line and "(50 %)" not in line and " job " not in f" {line}"]
    assert lines == [re.sub("[\x1b]", r"\\x1b", line) for line in stored.replace("\r\n", "\n").split("\n") if line]


@pytest.mark.either
@pytest.mark.slow
@pytest.mark.parametrize("words", [["run", "t.thread"], ["dev", "--every", "1h"]])
def test_run_and_dev_show_a_bar_on_a_terminal(live: Project, words: list[str]) -> None:
    if words[0] == "dev":
        live.add("t.thread")
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "cronjobs", *words, "--config", str(live.folder / "cronjobs.yaml")]
    with started(argv, env=CRONS | {"TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs) as shown:
        os.close(theirs)
        seen = Seen(ours)
        seen.until("2 of 4 (50 %): half")
        assert words[0] == "dev" or "\r[##########..........] 2 of 4 (50 %): half" in seen.text
        (live.folder / "gate").touch()
        (live.folder / "end").touch()
        seen.until("succeeded")
        if words[0] == "dev":
            shown.send_signal(signal.SIGINT)
        assert shown.wait(30) == 0
    os.close(ours)
    assert "correct-horse" not in seen.text.replace("key correct-horse-battery", "")  # run shows what the job prints
    assert "(50 %)" not in live.value("SELECT output FROM cronjobs_job_runs")


@pytest.mark.either
@pytest.mark.slow
def test_a_tick_that_talks_says_progress_in_plain_lines_and_the_log_does_not(live: Project) -> None:
    live.add("t.thread")
    tick = live.start("-v", env={"CRONJOBS_PROGRESS_EVERY_S": "0.1"})
    until(lambda: "job.progress" in tick.stdout, 20)
    for name in ("gate", "end"):
        (live.folder / name).touch()
    assert tick.wait() == 0
    [line] = [line for line in tick.stdout.splitlines() if line.startswith("job.progress")]
    assert 'progress="2 of 4 (50 %): half' in line
    assert "job.progress" not in (live.folder / "tick.log").read_text()


class Seen:
    """The text that a terminal has received, without the codes that overwrite a line."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.text = descriptor, ""

    def until(self, word: str) -> None:
        while word not in self.text:
            assert select.select([self.descriptor], [], [], 30)[0], f"no {word!r} in {self.text!r}"
            try:
                self.text += os.read(self.descriptor, 65536).decode(errors="replace")
            except OSError:  # EIO: the other end is closed
                raise AssertionError(f"no {word!r} in {self.text!r}") from None

    def plain(self) -> str:
        return re.sub("\r[^\r\n]*\x1b\\[K", "", self.text).replace("\r\n", "\n").replace("\r", "")


@pytest.mark.either
@pytest.mark.slow
def test_a_tail_that_follows_ends_with_1_when_the_job_fails_and_with_130_at_ctrl_c(live: Project) -> None:
    bad, waits = live.add("t.unknown", status="queued", run_at=_far(live)), live.add("t.silent", run_at=_far(live))
    argv = [sys.executable, "-m", "cronjobs", "jobs", "tail", "-f", "--config", str(live.folder / "cronjobs.yaml")]
    with forked.start([*argv, str(waits)], env=CRONS, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stderr is not None
        assert "waits, due in" in tail.stderr.readline()
        tail.send_signal(signal.SIGINT)
        assert tail.wait(20) == 130
    live.sql(f"UPDATE cronjobs_jobs SET status = 'cancelled', finished_at = run_at WHERE id = {bad}")
    assert command(live, "jobs", "tail", str(bad), "-f").returncode == 1
    missing = command(live, "jobs", "tail", "99999")
    assert (missing.returncode, missing.stdout) == (1, "")


def _far(project: Project) -> str:
    return "4102444800000000" if project.is_sqlite else "2100-01-01"
