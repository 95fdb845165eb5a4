"""A project whose job types run on a Dask cluster of real processes."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.clusters import DaskProcesses, supervisors, wait_until
from support.ticking import Project

HANDLERS = """
@job("far.quick", executor="cluster", timeout="30s")
def far_quick(ctx, n=0):
    say("ran", ctx)
    print("said on the worker", n)
    ctx.progress(1, 2, "half")
    return {"n": n}


@job("far.gated", executor="cluster", timeout="60s")
def far_gated(ctx, gate="gate", stubborn=False):
    say("start", ctx)
    end = time.monotonic() + 50
    while not os.path.exists(os.path.join(HERE, gate)) and time.monotonic() < end:
        time.sleep(0.02)
        if not stubborn:
            ctx.check()
    say("end", ctx)


@job("far.effect", executor="cluster", timeout="30s")
def far_effect(ctx):
    with ctx.effect("far") as effect:
        effect.result = 1


@job("far.hopeless", executor="cluster", timeout="30s")
def far_hopeless():
    from cronjobs import GiveUp
    raise GiveUp("no such thing")


@job("far.tells", executor="cluster", timeout="30s")
def far_tells(ctx):
    secret = os.environ["FAR_PASSWORD"]
    print("prints", secret)
    ctx.progress(1, 2, "notes " + secret)
    far_gated(ctx)
    raise ValueError("raises " + secret)


@job("far.booked", executor="cluster", timeout="30s")
def far_booked(ctx):
    with ctx.transaction():
        ctx.result = 1
    say("booked", ctx)
    time.sleep(3)  # longer than a quarter of the lease: the permit is asked for again
    say("end", ctx)
    print("and its end was awaited")
"""
LEASE_S = 4.0
YAML = """
run: {{lease: 4s, shutdown_grace: 4s}}
executors: {{cluster: {{dask: "{address}", queue_wait: {queue_wait}, resources: {resources}}}}}
"""


@dataclass
class Far:
    """A project with a cluster."""

    project: Project
    cluster: DaskProcesses

    def configure(self, *, queue_wait: str = "10m", resources: str = "{}", more: str = "") -> None:
        yaml = YAML.format(address=self.cluster.address, queue_wait=queue_wait, resources=resources)
        self.project.configure(yaml + more, handlers=HANDLERS)

    def begin(self, workers: int = 1) -> None:
        self.cluster.start_scheduler()
        for _ in range(workers):
            self.cluster.start_worker()
        self.cluster.wait_for_workers(workers)

    def until(self, status: str, job_id: int, within_s: float = 60) -> None:
        try:
            wait_until(lambda: self.project.job(job_id)["status"] == status, within_s)
        except AssertionError:
            pytest.fail(f"{self.project.job(job_id)}\n{self._logs()}")

    def until_said(self, what: str, times: int = 1) -> None:
        try:
            wait_until(lambda: len(self.project.effects(what)) >= times)
        except AssertionError:
            pytest.fail(f"{what!r} was not said {times} times\n{self._logs()}")

    def _logs(self) -> str:
        workers = [f"worker-{number + 1}" for number in range(len(self.cluster.workers))]
        theirs = "".join(f"\n{name}: {self.cluster.log(name)[-2000:]}" for name in ["scheduler", *workers])
        return self.project.log() + theirs


def end(far: Far) -> None:
    for pid in supervisors(far.project):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    far.cluster.end()


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def parents(pid: int) -> list[str]:
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(str(pid))
    return found


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie. A frozen parent reaps no zombies."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
