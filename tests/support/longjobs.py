"""Long jobs for tests: a project whose jobs outlive their tick, and functions to handle the processes that run them."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cronjobs.engine.host.identity import Identity
from cronjobs.engine.probe.kernel_facts import process_started
from support import forked
from support.commands import until
from support.ticking import Project, Tick, first_on_path

HANDLERS = '''
import asyncio, signal, subprocess

@job("l.gated", timeout="60s")
def long_gated(ctx, gate="gate"):
    print("at work")
    say("start", ctx)
    wait_for(gate)
    say("end", ctx)
    return {"attempt": ctx.attempt}

@job("l.async", timeout="60s")
async def long_async(ctx, gate="gate"):
    say("start", ctx)
    while not os.path.exists(os.path.join(HERE, gate)):
        await asyncio.sleep(0.005)
    say("end", ctx)
    return "awaited"

@job("l.short", timeout="60s")
def long_short(ctx):
    say("start", ctx)
    time.sleep(1)
    say("end", ctx)

@job("l.fails", timeout="60s", retry=RetryPolicy(delays=["1h"]))
def long_fails(ctx):
    print("about to fail")
    raise ValueError("no such ledger")

@job("l.gives-up", timeout="60s")
def long_gives_up(ctx):
    raise GiveUp("void")

@job("l.polite", timeout="60s")
def polite(ctx):
    """Stops when it is asked to."""
    say("start", ctx)
    while not ctx.cancelled:
        time.sleep(0.005)
    say("told", ctx)
    ctx.check()

@job("l.stubborn", timeout="60s")
def stubborn(ctx):
    """Hears that it is to stop, and does not."""
    say("start", ctx)
    while not ctx.cancelled:
        time.sleep(0.005)
    say("told", ctx)
    time.sleep(60)

@job("l.deaf", timeout="60s")
def deaf(ctx):
    """Ignores SIGTERM, and so does what it starts, in a session of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "120"], start_new_session=True)
    say("start", ctx)
    while True:
        time.sleep(0.02)
        say("beat", ctx)
'''
COMMAND = """
  l.command:
    timeout: 60s
    command:
      - /bin/sh
      - -c
      - |
        note() { echo "0 $1 $CRONJOBS_JOB_ID $CRONJOBS_ATTEMPT $$" >>effects; }
        echo "payload $(cat)"
        note start
        while [ ! -e gate ]; do sleep 0.02; done
        note end
"""
BUDGET_S = 10
# If there is a file "freeze", the process of a long job stops itself before its first line, as on a very busy host.
SITE = """
import os, signal, sys

if "cronjobs.engine.tick.long_job_process" in sys.orig_argv and os.path.exists({freeze!r}):
    os.kill(os.getpid(), signal.SIGSTOP)
"""


class LongJobs:
    """A project, and the processes of its long jobs, as the kernel reports them."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.env = first_on_path(project.folder / "site")

    def configure(self, run: str = "", yaml: str = "", handlers: str = "", *, budget_s: int = BUDGET_S) -> LongJobs:
        """Write the file. *run* goes into the mapping ``run:``, and *yaml* after ``job_types:``."""
        run = f"run: {{budget: {budget_s}s{', ' + run if run else ''}}}\n"
        self.project.configure(run + "job_types:" + COMMAND + yaml, HANDLERS + handlers)
        site = self.project.folder / "site"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(SITE.format(freeze=str(self.project.folder / "freeze")))
        return self

    # --- ticks --------------------------------------------------------------------------------------------------------

    def tick(self, *options: str, **env: str) -> Tick:
        return self.project.tick(*options, env=self.env | env)

    def start(self, *options: str, **env: str) -> Tick:
        return self.project.start(*options, env=self.env | env)

    def begin(self, job_type: str, payload: str = "{}", what: str = "start", **columns: object) -> int:
        """Let a tick hand over a job. Return the job's id when its code has begun."""
        job_id = self.project.add(job_type, payload, **columns)
        for _ in range(5):  # on a slow host, a short tick may have no time for the job
            tick = self.tick()
            if self.project.job(job_id)["status"] == "running":
                until(lambda: self.project.times_ran(what)[job_id], 30)
                return job_id
        raise AssertionError(f"it was not handed over: {tick.stderr}")

    def ended(self, job_id: int, within_s: float = 30) -> dict[str, Any]:
        """Wait until the job has no lease any more. Return its row."""
        until(lambda: self.project.job(job_id)["locked_by"] is None, within_s)
        return self.project.job(job_id)

    # --- processes ----------------------------------------------------------------------------------------------------

    def alive(self) -> dict[int, str]:
        """Return all processes that descend from this project's ticks, with their command lines."""
        mark, found = f"XDG_STATE_HOME={self.project.folder}".encode(), {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0") and process_started(int(folder.name)):
                    words = (folder / "cmdline").read_bytes().decode(errors="replace")
                    found[int(folder.name)] = words.replace("\0", " ").strip()
        return found

    def supervisors(self) -> list[int]:
        return [pid for pid, words in self.alive().items() if "m cronjobs.engine.tick.long_job_process" in words]

    def supervisor(self, job_id: int) -> int:
        holder = Identity.parse(self.project.job(job_id)["locked_by"] or "")
        assert holder is not None
        assert holder.tick.startswith("long-"), holder
        return holder.pid

    def child(self, job_id: int) -> int:
        """Return the process of the handler itself."""
        return self.project.effects("start")[-1].pid

    def frozen(self) -> int:
        """Wait for a process of a long job that has stopped itself. Return that process."""
        until(lambda: [pid for pid in self.supervisors() if state(pid) == "T"], 30)
        [pid] = [pid for pid in self.supervisors() if state(pid) == "T"]
        return pid

    def freeze(self) -> None:
        self.project.open("freeze")

    def thaw(self, pid: int) -> None:
        (self.project.folder / "freeze").unlink(missing_ok=True)
        os.kill(pid, signal.SIGCONT)

    def nobody_left(self, within_s: float = 10) -> None:
        until(lambda: not self.alive(), within_s)

    def cli(self, *words: str) -> str:
        """Run another command in cron's environment. Return its output."""
        argv = [sys.executable, "-m", "cronjobs", *words, "--config", str(self.project.folder / "cronjobs.yaml")]
        env = {"PATH": "/usr/bin:/bin", "COLUMNS": "200"}  # without the mark by which alive() finds processes
        done = forked.run(argv, env=env, cwd="/")
        assert done.returncode in (0, 1), done.stderr
        return done.stdout + done.stderr

    def says_it_gave_up(self, text: str, job_id: int) -> bool:
        """Whether *text* is the one line that cron mails about a dead ``l.gives-up``."""
        folder, program = self.project.folder, Path(sys.executable).with_name("cronjobs")
        line = (
            f"cronjobs: a job is dead: job {job_id} l.gives-up: GiveUp: void (failed 1 of 10, permanent), at"
            f' {folder}/handlers.py:0 in long_gives_up: raise GiveUp("void"); look:'
            f" {program} --config {folder}/cronjobs.yaml jobs show {job_id}\n"
        )
        return re.sub(r"handlers\.py:\d+", "handlers.py:0", text) == line

    def did(self) -> dict[str, Any]:
        """Return the counts in the last tick's row."""
        found = self.project.value("SELECT did FROM cronjobs_ticks ORDER BY id DESC LIMIT 1")
        counts: dict[str, Any] = json.loads(found) if isinstance(found, str) else found
        return counts


def state(pid: int) -> str:
    """Return the state of a process, as in /proc: T is stopped, Z is a zombie. A process that is gone has ""."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@contextmanager
def long_jobs(project: Project) -> Iterator[LongJobs]:
    """Long jobs of *project*. None of their processes outlives the test."""
    longs = LongJobs(project).configure()
    yield longs
    project.end_everything()
    left = longs.alive()
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
