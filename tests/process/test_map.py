"""``ctx.map`` on this host: calls in a pool of processes below the handler's own, and none outlives the job."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.clusters import wait_until
from support.ticking import Project

pytestmark = [pytest.mark.slow, pytest.mark.either]

HANDLERS = """
from cronjobs import MapFailed


@job("map.call")
def call(ctx, n: int, do: str = ""):
    say("call", ctx)
    if do == "slow":
        time.sleep(0.2)
    if do == "raise":
        raise ValueError(f"no {n}")
    if do == "die":
        os.kill(os.getpid(), 9)
    if do == "exit":
        os._exit(3)
    if do == "large":
        return "x" * 1024 * 1024
    if do == "as large as may be":
        return "x" * (1024 * 1024 - 2)
    if do == "object":
        return object()
    if do == "hang":
        wait_for("gate")
    if do == "effect":
        with ctx.effect("a"):
            pass
    if do == "map":
        ctx.map("map.call", [])
    if do == "interrupt":
        raise KeyboardInterrupt
    print("said by", n)
    return {"n": n, "pid": os.getpid(), "job": ctx.job_id}


@job("map.async")
async def async_call(n):
    return -n


def mapped(ctx, todo, of="map.call", at_once=None):
    say("parent", ctx)
    try:
        return ctx.map(of, todo, at_once=at_once)
    except MapFailed as failed:
        kept = [result if result is None or len(result) < 1000 else len(result) for result in failed.results]
        return {"said": str(failed), "failures": [[f.index, f.type, f.message] for f in failed.failures], "kept": kept}


@job("map.apart", isolation="process", timeout="20s")
def apart(ctx, todo, of="map.call", at_once=None):
    return mapped(ctx, todo, of, at_once)


@job("map.twice", isolation="process", timeout="20s")
def twice(ctx):
    first, second = (ctx.map("map.call", [{"n": n, "do": "slow"} for n in range(2)], at_once=2) for _ in range(2))
    return [sorted(each["pid"] for each in one) for one in (first, second)]


@job("map.thread")
def in_thread(ctx):
    return ctx.map("map.call", [{"n": 1}])


@job("map.plain", isolation="process")
def plain(ctx):
    return ctx.map("map.call", [{"n": 1, "do": "raise"}, {"n": 2}])
"""


def result(project: Project, job_id: int) -> Any:
    job = project.job(job_id)
    assert job["status"] == "succeeded", (job["last_error"], project.log())
    return json.loads(job["result"]) if isinstance(job["result"], str) else job["result"]


def mapped(project: Project, todo: list[dict[str, Any]], **more: Any) -> int:
    return project.add("map.apart", json.dumps({"todo": todo, **more}))


@pytest.fixture
def maps(project: Project) -> Project:
    project.configure("run: {workers: 4}\n", HANDLERS)
    return project


def test_calls_come_back_in_order_and_failures_as_a_list(maps: Project) -> None:
    in_order = mapped(maps, [{"n": n, "do": "slow" if n == 0 else ""} for n in range(20)], at_once=3)
    bad = ["raise", "die", "exit", "large", "object", "effect", "map", "interrupt", "as large as may be"]
    failing = mapped(maps, [{"n": n, "do": bad[n]} if n < len(bad) else {"n": n} for n in range(len(bad) + 2)])
    asynchronous = mapped(maps, [{"n": 1}, {"n": 2}], of="map.async")
    empty, again, plain = mapped(maps, []), maps.add("map.twice"), maps.add("map.plain")
    refused = [
        mapped(maps, [{"n": 1}, {"n": "two"}]),
        mapped(maps, [{"n": 1}, {"m": 2}]),
        mapped(maps, [{"n": 1}], of="map.nowhere"),
        mapped(maps, [{"n": 1}], at_once=0),
        maps.add("map.thread"),
    ]
    maps.tick()

    found = result(maps, in_order)
    assert [each["n"] for each in found] == list(range(20))
    assert {each["job"] for each in found} == {in_order}
    assert 1 < len({each["pid"] for each in found}) <= 3
    output = maps.sql(f"SELECT output FROM cronjobs_job_runs WHERE job_id = {in_order}")[0][0]
    assert sorted(output.split("\n")) == sorted(["", *(f"said by {n}" for n in range(20))])

    failed = result(maps, failing)
    assert failed["said"].startswith("8 of 11 calls of map.call have failed, first that of payload 0: ValueError: no 0")
    assert [(number, kind) for number, kind, _ in failed["failures"]] == [
        *((0, "ValueError"), (1, "SIGKILL"), (2, "exit-3"), (3, "ResultRefused"), (4, "ResultRefused")),
        *((5, "cronjobs.errors.UsageError"), (6, "cronjobs.errors.UsageError"), (7, "KeyboardInterrupt")),
    ]
    assert "1,048,576 bytes" in failed["failures"][3][2]
    assert failed["kept"][8] == 1024 * 1024 - 2
    assert [each and each["n"] for each in failed["kept"][9:]] == [9, 10]

    assert result(maps, asynchronous) == [-1, -2]
    assert result(maps, empty) == []
    first, second = result(maps, again)
    assert first == second, "the processes of the first map are there for the second"
    assert "1 of 2 calls of map.call have failed" in maps.job(plain)["last_error"]
    for job_id, why in zip(
        refused,
        [
            "payload 1: payload does not fit map.call: payload.n: ",
            "payload 1: payload does not fit",
            "no @job of that name",
            "at_once=0",
            'this one runs in a thread: write isolation="process" in its @job',
        ],
        strict=True,
    ):
        assert why in maps.job(job_id)["last_error"]
        assert job_id not in maps.times_ran("call")


def test_a_job_that_times_out_and_one_that_is_killed_take_their_calls_with_them(maps: Project) -> None:
    """While calls hang, which look at nothing."""
    hanging = [{"n": n, "do": "hang"} for n in range(2)]
    timed_out = maps.add("map.apart", json.dumps({"todo": hanging, "at_once": 2}), timeout_s=6)
    killed = mapped(maps, hanging, at_once=2)
    tick = maps.start()
    wait_until(lambda: maps.times_ran("call")[killed] == 2, 40, maps.log())
    [parent] = [effect.pid for effect in maps.effects("parent") if effect.job_id == killed]
    os.kill(parent, signal.SIGKILL)
    tick.wait(60)
    assert not [call for call in maps.effects("call") if is_running(call.pid)]
    assert maps.outcomes(timed_out) == ["timed_out"]
    assert maps.outcomes(killed) == ["failed"]
    assert maps.times_ran("call")[killed] == 2, "no call is made again by itself"


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
