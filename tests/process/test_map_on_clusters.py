"""``ctx.map`` on a Dask cluster: calls run on its workers, their parents hold no slot, and none outlives its job."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.clusters import DaskProcesses, supervisors, wait_until
from support.ticking import Project, cli

pytestmark = [pytest.mark.slow, pytest.mark.either]

LEASE_S = 4.0
HANDLERS = """
from cronjobs import MapFailed


@job("far.call", executor="calls")
def call(ctx, n: int, do: str = ""):
    say("call", ctx)
    if do == "raise":
        raise ValueError(f"no {n}")
    if do == "die":
        os.kill(os.getpid(), 9)
    if do == "large":
        return "x" * 1024 * 1024
    if do == "hang":
        wait_for("gate")
    print("said by", n)
    return {"n": n, "pid": os.getpid(), "launcher": os.getppid()}


@job("far.needy", executor="cluster")
def needy(n):
    return n


@job("far.map", executor="cluster", timeout="60s")
def far_map(ctx, todo, of="far.call", at_once=None):
    say("parent", ctx)
    try:
        return ctx.map(of, todo, at_once=at_once)
    except MapFailed as failed:
        return {"failures": [[f.index, f.type, f.message] for f in failed.failures], "kept": failed.results}


@job("far.gathered", executor="cluster", timeout="120s")
def gathered(ctx, parents):
    say("parent", ctx)
    ctx.map("far.call", [{"n": 0}])
    end = time.monotonic() + 100
    while open(os.path.join(HERE, "effects")).read().count(" parent ") < parents and time.monotonic() < end:
        time.sleep(0.02)
    return [each["n"] for each in ctx.map("far.call", [{"n": n} for n in range(3)])]
"""
YAML = """
run: {{lease: 4s, shutdown_grace: 4s}}
executors:
  cluster: {{dask: "{address}", resources: {resources}}}
  calls: {{dask: "{address}"}}
"""


class Maps:
    def __init__(self, project: Project) -> None:
        self.project = project
        self.cluster = DaskProcesses(project.folder / "dask", {"CRONJOBS_DATABASE_URL": project.url}, threads=1)
        self.configure()

    def configure(self, resources: str = "{}") -> None:
        self.project.configure(YAML.format(address=self.cluster.address, resources=resources), HANDLERS)

    def begin(self, workers: int, *words: str) -> None:
        self.cluster.start_scheduler()
        for _ in range(workers):
            self.cluster.start_worker(*words)
        self.cluster.wait_for_workers(workers)

    def add(self, todo: list[dict[str, Any]], **more: Any) -> int:
        return self.project.add("far.map", json.dumps({"todo": todo, **more}))

    def until(self, status: str, job_id: int, within_s: float = 120) -> None:
        try:
            wait_until(lambda: self.project.job(job_id)["status"] == status, within_s)
        except AssertionError:
            pytest.fail(f"{self.project.job(job_id)}\n{self.project.log()}\n{self.cluster.log('worker-1')[-4000:]}")

    def until_calls(self, count: int) -> list[int]:
        """Until so many are being made; return the processes that make them."""
        wait_until(lambda: len(self.project.effects("call")) >= count, 40, self.project.log())
        return [effect.pid for effect in self.project.effects("call")]

    def result(self, job_id: int) -> Any:
        self.until("succeeded", job_id)
        found = self.project.job(job_id)["result"]
        return json.loads(found) if isinstance(found, str) else found


@pytest.fixture
def maps(project: Project) -> Iterator[Maps]:
    found = Maps(project)
    try:
        yield found
    finally:
        for pid in supervisors(found.project):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        found.cluster.end()


def test_calls_run_on_the_workers_and_come_back_in_order_with_what_they_printed(maps: Maps) -> None:
    maps.begin(2)
    in_order = maps.add([{"n": n} for n in range(40)])
    failing = maps.add([{"n": n, "do": do} for n, do in enumerate(["", "raise", "die", "large", ""])], at_once=2)
    maps.project.tick()
    found = maps.result(in_order)
    assert [each["n"] for each in found] == list(range(40))
    assert len({each["pid"] for each in found}) == 2, "one process for each slot makes many calls"
    [[output]] = maps.project.sql(f"SELECT output FROM cronjobs_job_runs WHERE job_id = {in_order}")
    assert sorted(output.split("\n")) == sorted(["", *(f"said by {n}" for n in range(40))])
    failed = maps.result(failing)
    assert [each[:2] for each in failed["failures"]] == [[1, "ValueError"], [2, "SIGKILL"], [3, "ResultRefused"]]
    assert [each and each["n"] for each in failed["kept"]] == [0, None, None, None, 4]
    wait_until(lambda: not any(map(is_running, maps.until_calls(45))), 10, "idle processes end with their job")


def test_more_parents_than_slots_come_to_their_end(maps: Maps) -> None:
    """None of the four returns before all have begun, on one slot, and each has made a call by then."""
    maps.begin(1)
    parents = [maps.project.add("far.gathered", '{"parents": 4}') for _ in range(4)]
    maps.project.tick()
    for job_id in parents:
        assert maps.result(job_id) == [0, 1, 2]
    assert maps.project.times_ran("parent") == dict.fromkeys(parents, 1)


def test_a_cancelled_job_takes_its_calls_with_it_and_their_workers_are_free(maps: Maps) -> None:
    maps.begin(2)
    job_id = maps.add([{"n": n, "do": "hang"} for n in range(6)])
    maps.project.tick()
    calling = maps.until_calls(2)
    cli(maps.project, "jobs", "cancel", str(job_id))
    maps.until("cancelled", job_id, LEASE_S / 4 + 2 + 2 + 3)
    wait_until(lambda: not any(map(is_running, calling)), 5)
    other = maps.add([{"n": 1}])
    assert [each["n"] for each in maps.result(other)] == [1]
    assert maps.project.times_ran("call")[job_id] == 2, "what waited was not begun"


def test_calls_of_a_worker_that_dies_are_made_again_on_another(maps: Maps) -> None:
    maps.begin(2)
    job_id = maps.add([{"n": n, "do": "hang"} for n in range(2)])
    maps.project.tick()
    calling = maps.until_calls(2)
    [parent] = [effect.pid for effect in maps.project.effects("parent")]
    [others] = [worker for worker in maps.cluster.workers if str(worker.pid) not in parents(parent)]
    others.kill()
    wait_until(lambda: not all(map(is_running, calling)), 10)
    maps.cluster.start_worker()
    assert len(maps.until_calls(3)) == 3
    maps.project.open()
    assert [each["n"] for each in maps.result(job_id)] == [0, 1]
    assert maps.project.outcomes(job_id) == ["succeeded"]


def test_calls_of_a_job_whose_guard_dies_end_within_a_lease(maps: Maps) -> None:
    maps.begin(2)
    maps.add([{"n": n, "do": "hang"} for n in range(2)])
    maps.project.tick()
    calling = maps.until_calls(2)
    [parent] = [effect.pid for effect in maps.project.effects("parent")]
    [guards] = [worker for worker in maps.cluster.workers if str(worker.pid) in parents(parent)]
    for pid in supervisors(maps.project):
        os.kill(pid, signal.SIGKILL)  # nobody renews, and nobody is told
    guards.kill()
    wait_until(lambda: not any(map(is_running, calling)), 2 * LEASE_S + 3)


def test_calls_that_need_what_their_job_holds_are_refused(maps: Maps) -> None:
    maps.configure(resources="{GPU: 1}")
    maps.begin(1, "--resources", "GPU=1")
    needy, free = maps.add([{"n": 1}], of="far.needy"), maps.add([{"n": 1}])
    maps.project.tick()
    [[number, kind, why]] = maps.result(needy)["failures"]
    assert (number, kind) == (0, "ResourceHeld")
    assert "give the two types executors of which only that of the calls has resources" in why
    assert [each["n"] for each in maps.result(free)] == [1]


def is_running(pid: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def parents(pid: int) -> list[str]:
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(str(pid))
    return found
