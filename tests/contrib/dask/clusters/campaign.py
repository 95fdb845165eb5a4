"""Jobs on a cluster whose processes are killed, and a judge of what the handlers really did.

Each handler writes a line as it begins, every 20 ms while it runs, and as it ends. So the judge knows, from outside the
database and the cluster, when an attempt ran: from its first line to its last.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from support.clusters import DaskProcesses, Relay, supervisors
from support.postgres import PostgresServer
from support.ticking import Effect, Project, events

from cronjobs.clock import SYSTEM, sleep
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.schema import migrations

LEASE_S = 5.0
YAML = """
run: {{lease: 5s, shutdown_grace: 4s, max_losses: 1000}}
executors: {{cluster: {{dask: "{address}", in_flight: 40}}}}
"""
HANDLERS = """
@job("far.work", executor="cluster", timeout="60s")
def far_work(ctx, s=0.5):
    say("start", ctx)
    end = time.monotonic() + s
    while time.monotonic() < end:
        time.sleep(0.02)
        say("beat", ctx)
    say("end", ctx)
"""
# What a cluster does by itself, without our tokens: it repeats a task whose worker it has lost, while that still runs.
WITHOUT_TOKENS = """
import time
from cronjobs.contrib.dask import permit
from cronjobs.engine.store.tokens import Permit

def take(self):
    self.safe_until = time.monotonic() + 600
    return Permit("yours", 600)

permit.HeldPermit.take = take
permit.HeldPermit.watch = lambda self: None
permit.HeldPermit.end = lambda self, report: None
"""

FAULTS = {  # each fault and its weight; the weights add up to 22
    "kill a worker": 8,
    "freeze a worker": 5,
    "kill a supervisor": 3,
    "freeze a supervisor": 2,
    "kill the scheduler": 1,
    "cut a worker off": 3,
}


@dataclass
class Battlefield:
    project: Project
    cluster: DaskProcesses
    relay: Relay
    chance: random.Random
    worker_env: dict[str, str]
    # when to continue which frozen process
    frozen: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    behind_relay: subprocess.Popen[bytes] | None = None

    def start_worker(self) -> None:
        # One of them reaches its scheduler through the relay, and can be cut off from it.
        alone = self.behind_relay is not None and self.behind_relay.poll() is None
        address = self.cluster.address if alone else self.relay.address
        worker = self.cluster.start_worker(address=address, env=self.worker_env)
        self.behind_relay = self.behind_relay if alone else worker

    def replace_the_dead(self, workers: int) -> None:
        if self.cluster.scheduler is not None and self.cluster.scheduler.poll() is not None:
            self.cluster.start_scheduler()
        alive = [worker for worker in self.cluster.workers if worker.poll() is None]
        for _ in range(workers - len(alive)):
            self.start_worker()

    def fault(self) -> None:
        name = self.chance.choices([*FAULTS], [*FAULTS.values()])[0]
        if self._do(name):
            self.done[name] += 1

    def _do(self, name: str) -> bool:
        longer = LEASE_S * self.chance.uniform(0.5, 2.0)
        workers = [worker.pid for worker in self.cluster.workers if worker.poll() is None]
        there = supervisors(self.project)
        match name:
            case "kill a worker" if workers:
                send(self.chance.choice(workers), signal.SIGKILL)
            case "freeze a worker" if workers:
                self._freeze(self.chance.choice(workers), longer)
            case "kill a supervisor" if there:
                send(self.chance.choice(there), signal.SIGKILL)
            case "freeze a supervisor" if there:
                self._freeze(self.chance.choice(there), longer)
            case "kill the scheduler" if self.cluster.scheduler is not None:
                self.cluster.scheduler.kill()
            case "cut a worker off" if not self.relay.cut.is_set():
                self.relay.cut.set()
                self.frozen.append((SYSTEM.monotonic() + longer, self.relay.cut.clear))
            case _:
                return False
        return True

    def _freeze(self, pid: int, for_s: float) -> None:
        send(pid, signal.SIGSTOP)
        self.frozen.append((SYSTEM.monotonic() + for_s, lambda: send(pid, signal.SIGCONT)))

    def thaw(self, *, everything: bool = False) -> None:
        now = SYSTEM.monotonic()
        for at, go_on in [each for each in self.frozen if everything or each[0] <= now]:
            go_on()
            self.frozen.remove((at, go_on))


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def campaign(
    folder: Path,
    *,
    database: str,
    seed: int,
    jobs: int,
    faults: int,
    workers: int,
    threads: int,
    limit_s: float,
    without_tokens: bool = False,
) -> dict[str, Any]:
    """Run the campaign; return what happened. ``violations`` are sentences, and none if all is well."""
    began = SYSTEM.monotonic()
    os.environ["XDG_STATE_HOME"] = str(folder)
    with _database(database, folder) as url:
        project = Project(folder, url)
        cluster = DaskProcesses(folder / "dask", {"CRONJOBS_DATABASE_URL": url}, threads=threads)
        project.configure(YAML.format(address=cluster.address), handlers=HANDLERS)
        env = {}
        if without_tokens:
            (folder / "patch").mkdir()
            (folder / "patch" / "sitecustomize.py").write_text(WITHOUT_TOKENS)
            tried = os.environ.get("PYTHONPATH")  # a copy of the package
            env = {"PYTHONPATH": os.pathsep.join([str(folder / "patch"), *([tried] if tried else [])])}
        relay = Relay(cluster.port)
        field_ = Battlefield(project, cluster, relay, random.Random(seed), env)
        ticks: list[subprocess.Popen[bytes]] = []
        try:
            cluster.start_scheduler()
            field_.replace_the_dead(workers)
            cluster.wait_for_workers(workers, 120)
            chance = random.Random(seed)
            ids = [project.add("far.work", f'{{"s": {chance.uniform(0.5, 8.0):.2f}}}') for _ in range(jobs)]
            _fight(field_, faults, workers, began + limit_s, ticks)
        finally:
            field_.thaw(everything=True)
            for pid in supervisors(project):
                send(pid, signal.SIGKILL)
            cluster.end()
            relay.close()
            project.end_everything()
        return _judged(project, ids, field_.done, SYSTEM.monotonic() - began)


def _fight(field_: Battlefield, faults: int, workers: int, until: float, ticks: list[Any]) -> None:
    next_tick = next_fault = 0.0
    project = field_.project
    while SYSTEM.monotonic() < until:
        now = SYSTEM.monotonic()
        field_.thaw()
        if now >= next_tick:
            next_tick = now + 3.0
            with suppress(sqlite3.OperationalError):  # a process was frozen while it held SQLite's lock
                project.make_due()
            project.start()
        for tick in project.ticks:
            tick.process.poll()
        calm = sum(field_.done.values()) >= faults
        if now >= next_fault and not calm and project.effects("start"):
            next_fault = now + field_.chance.uniform(0.5, 4.0)
            field_.fault()
        field_.replace_the_dead(workers)
        if project.statuses().keys() <= {"succeeded", "dead", "cancelled"}:
            return
        sleep(0.25)


@contextmanager
def _database(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        url = f"sqlite:///{folder / 'jobs.db'}"
        _migrate(url)
        yield url
        return
    server = PostgresServer()
    server.start()
    try:
        server.execute("CREATE DATABASE clusters")
        _migrate(server.url("clusters"))
        yield server.url("clusters")
    finally:
        server.remove()


def _migrate(url: str) -> None:
    database = Database(parse_url(url))
    migrations.upgrade(database)
    database.close()


# --- the judge --------------------------------------------------------------------------------------------------------


def _judged(project: Project, ids: list[int], faults: Counter[str], took_s: float) -> dict[str, Any]:
    spans = intervals(project.effects())
    outcomes = Counter(row[0] for row in project.sql("SELECT outcome FROM cronjobs_job_runs"))
    log = project.log()
    return {
        "violations": violations(project, ids, spans, project.effects("start")),
        "jobs": len(ids),
        "statuses": project.statuses(),
        "attempts": len(spans),
        "outcomes": dict(outcomes),
        "faults": dict(faults),
        "supervisors": len(events(log, "executor.started")),
        "scheduler_away": len(events(log, "executor.away")),
        "released": len(events(log, "job.not_begun")),
        "took_s": round(took_s, 1),
    }


def intervals(effects: list[Effect]) -> dict[tuple[int, int, int], tuple[float, float]]:
    """When each process of an attempt ran: (job, attempt, pid) → first line, last line."""
    found: dict[tuple[int, int, int], tuple[float, float]] = {}
    for effect in effects:
        key = (effect.job_id, effect.attempt, effect.pid)
        first, last = found.get(key, (effect.at, effect.at))
        found[key] = (min(first, effect.at), max(last, effect.at))
    return found


def violations(
    project: Project, ids: list[int], spans: dict[tuple[int, int, int], tuple[float, float]], starts: list[Effect]
) -> list[str]:
    found = []
    ended = {effect.job_id for effect in project.effects("end")}
    for job_id in ids:
        status = project.job(job_id)["status"]
        if status != "succeeded" or job_id not in ended:
            found.append(f"job {job_id} is {status}, and its work was {'' if job_id in ended else 'not '}done")
    for (job_id, attempt), times in Counter((each.job_id, each.attempt) for each in starts).items():
        if times > 1:
            found.append(f"attempt {attempt} of job {job_id} ran {times} times")
    by_job: dict[int, list[tuple[float, float, int]]] = {}
    for (job_id, attempt, _), (first, last) in spans.items():
        by_job.setdefault(job_id, []).append((first, last, attempt))
    for job_id, runs in by_job.items():
        runs.sort()
        for (_, last, one), (first, _, other) in pairwise(runs):
            if first < last:
                both = f"attempts {one} and {other} of job {job_id}"
                found.append(f"{both} ran at the same time for {last - first:.3f} s")
    return found
