"""``ctx.map`` without a cluster or a tick: what it refuses, what comes back, and the processes of a pool."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cronjobs import CallFailure, Cancelled, Context, MapFailed, PayloadError, UsageError, job
from cronjobs.clock import SYSTEM, sleep
from cronjobs.config.settings import RunSettings, Settings
from cronjobs.execution.attempt import Attempt
from cronjobs.execution.call_pool import CallPool
from cronjobs.execution.call_worker import CallerFacts
from cronjobs.execution.calls_here import calls_inline
from cronjobs.execution.child_protocol import Request
from cronjobs.execution.mapping import mapping
from cronjobs.jobs import registry
from cronjobs.jobs.context import StopSignal
from cronjobs.jobs.job_types import JobType
from cronjobs.model import Job, RetryPolicy
from cronjobs.rules import calls
from cronjobs.rules.calls import MOST_RESULT, Call, CallEnd
from cronjobs.testing import context

pytestmark = pytest.mark.either

MODULE = """
import os, time
from cronjobs import job


@job("pool.call")
def call(ctx, n: int, do: str = ""):
    if do == "hang":
        open(f"hangs-{os.getpid()}", "w").close()
        time.sleep(60)
    if do == "polite":
        open(f"hangs-{os.getpid()}", "w").close()
        while not ctx.cancelled:
            time.sleep(0.005)
        open("was-asked", "w").close()
    if do == "leave a copy and die":
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
        do = "die"
    if do == "close":
        os.closerange(3, 256)
    if do == "die":
        os.kill(os.getpid(), 9)
    return [n, os.getpid()]
"""


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = dict(registry._registered)

    @job("map.half")
    def half(n: int, scale: float = 1.0) -> float:
        if n % 2:
            raise ValueError(f"{n} is odd")
        return n / 2 * scale

    @job("map.large")
    def large(ctx: Context, size: int) -> str:
        return "x" * size

    @job("map.odd")
    def odd(ctx: Context, what: str) -> Any:
        match what:
            case "map":
                return ctx.map("map.half", [])
            case "effect":
                return ctx.effect("a")
            case "transaction":
                return ctx.transaction()
            case "exit":
                raise SystemExit(3)
        return ctx.job_type, ctx.job_id, ctx.attempt, ctx.remaining_s

    @job("map.generator")
    def generator(n: int) -> Iterator[int]:
        yield n

    yield
    registry._registered.clear()
    registry._registered.update(before)


def test_results_come_in_order_and_the_progress_is_that_of_the_calls() -> None:
    ctx = context("map.parent")
    assert ctx.map("map.half", ({"n": n} for n in (8, 2, 6))) == [4.0, 1.0, 3.0]
    assert ctx.reported == [(0, 3, "map.half"), (1, 3, "map.half"), (2, 3, "map.half"), (3, 3, "map.half")]
    assert ctx.map("map.half", []) == []


def test_failures_are_a_list_beside_the_results() -> None:
    with pytest.raises(MapFailed) as raised:
        context().map("map.half", [{"n": n} for n in range(4)])
    assert raised.value.results == [0.0, None, 1.0, None]
    assert raised.value.failures == [CallFailure(1, "ValueError", "1 is odd"), CallFailure(3, "ValueError", "3 is odd")]
    said = "2 of 4 calls of map.half have failed, first that of payload 1: ValueError: 1 is odd"
    assert str(raised.value) == said
    with pytest.raises(MapFailed, match=r"^the call of map\.half has failed, first that of payload 0"):
        context().map("map.half", [{"n": 1}])


def test_a_result_of_more_than_a_mebibyte_is_refused() -> None:
    quotes = 2
    assert len(context().map("map.large", [{"size": MOST_RESULT - quotes}])[0]) == MOST_RESULT - quotes
    with pytest.raises(MapFailed, match=r"ResultRefused: .* more than 1,048,576 bytes: store it elsewhere"):
        context().map("map.large", [{"size": MOST_RESULT - quotes + 1}])


@pytest.mark.parametrize(
    ("payloads", "said"),
    [
        ([{"n": 1}, {"n": "two"}], r"ctx\.map\('map\.half'\): payload 1: payload does not fit map\.half: payload\.n"),
        ([{"n": 1}, {"m": 1}], r"payload 1: payload does not fit map\.half\(n: 'int'"),
        ([{"n": 1}, 2], "payload 1: it is a int, not a mapping"),
        ([{"n": 2, "scale": float("nan")}], "payload 0: .*nan"),
    ],
)
def test_payloads_are_checked_as_at_enqueue_before_any_call(payloads: list[Any], said: str) -> None:
    ctx = context()
    with pytest.raises(PayloadError, match=said):
        ctx.map("map.half", payloads)
    assert ctx.reported == []


def test_what_cannot_be_called_is_refused() -> None:
    for job_type, at_once, said in (
        ("map.nowhere", None, r"no @job of that name is registered"),
        ("map.generator", None, "its handler is a generator"),
        ("map.half", 0, r"at_once=0\): it has to be a whole number"),
        ("map.half", True, "at_once=True"),
    ):
        with pytest.raises(UsageError, match=said):
            context().map(job_type, [{"n": 2}], at_once=at_once)


def test_a_call_is_no_job() -> None:
    with pytest.raises(MapFailed) as raised:
        context().map("map.odd", [{"what": what} for what in ("map", "effect", "transaction", "exit")])
    assert [failure.type for failure in raised.value.failures] == [*["cronjobs.errors.UsageError"] * 3, "SystemExit"]
    for failure in raised.value.failures[:3]:
        assert "does not work in a call of ctx.map(), which is no job" in failure.message
    [found] = context(job_id=7, attempt=2, remaining=9.0).map("map.odd", [{"what": ""}])
    assert found == ["map.odd", 7, 2, 9.0]


def test_a_cancelled_job_begins_no_call() -> None:
    ctx = context(cancelled=True)
    with pytest.raises(Cancelled):
        ctx.map("map.half", [{"n": 2}])
    assert ctx.reported == []


def test_a_handler_in_a_thread_may_not_map(tmp_path: Path) -> None:
    settings = Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path)
    may = calls_inline(settings, RunSettings())
    in_thread = JobType("t", timedelta(seconds=5), RetryPolicy())
    kinds = (in_thread, replace(in_thread, isolation="process"), replace(in_thread, timeout=timedelta(hours=1)))
    attempts = [Attempt(JOB, job_type, job_type.timeout) for job_type in kinds]
    assert [may(attempt) is not None for attempt in attempts] == [False, True, True]
    with pytest.raises(UsageError, match='runs in a thread: write isolation="process" in its @job'):
        Context(JOB, timeout=timedelta(seconds=5)).map("map.half", [])


class Backwards:
    """Makes calls in the wrong order, and some of them twice."""

    def make(
        self, these: Sequence[Call], at_once: int | None, ended: Callable[[CallEnd], None], check: Callable[[], None]
    ) -> None:
        for call in reversed(these):
            ended(calls.returned(call.number, call.payload["n"]))
            ended(calls.failed(call.number, "Late", "made twice"))

    def close(self) -> None:
        pass


def test_whatever_order_the_ends_come_in_and_however_often_each_payload_has_one_result() -> None:
    ctx = Context(JOB, timeout=timedelta(seconds=5), map_calls=mapping(Backwards()))
    assert ctx.map("map.half", [{"n": n} for n in range(5)]) == [0, 1, 2, 3, 4]


def test_bundles_are_of_a_quarter_second_and_smaller_towards_the_end() -> None:
    assert calls.bundle(1000, 3, 0.02) == 12
    assert calls.bundle(1000, 3, 0.0) == 167
    assert calls.bundle(30, 3, 0.02) == 5
    assert calls.bundle(5, 3, 0.02) == 1
    assert calls.bundle(1000, 3, 10.0) == 1
    assert calls.bundle(1, 0, 0.1) == 1


# --- processes --------------------------------------------------------------------------------------------------------

JOB = Job(1, "t.job", payload={}, meta={}, attempt=1, failures=0, locked_by="test")


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[CallPool]:
    (tmp_path / "pool_handlers.py").write_text(MODULE)
    settings = Settings(
        file=tmp_path / "cronjobs.yaml", folder=tmp_path, imports=("pool_handlers",), python_path=(tmp_path,)
    )
    request = Request(JOB, settings, SYSTEM.monotonic() + 60, 60.0)
    found = CallPool(lambda: CallerFacts.of(request))
    yield found
    found.close()
    assert found._processes == []


def made(pool: CallPool, *todo: dict[str, Any], stop: StopSignal | None = None, at_once: int = 2) -> list[CallEnd]:
    ends: dict[int, CallEnd] = {}

    def check() -> None:
        if stop is not None and stop.reason is not None:
            raise Cancelled(stop.reason)

    these = [Call(number, "pool.call", payload) for number, payload in enumerate(todo)]
    pool.make(these, at_once, lambda end: ends.update({end.number: end}), check)
    return [ends[number] for number in sorted(ends)]


def test_a_pool_makes_all_calls_whatever_becomes_of_its_processes_and_keeps_those_that_are_left(pool: CallPool) -> None:
    ends = made(pool, *({"n": n, "do": do} for n, do in enumerate(["", "leave a copy and die", "", "close", ""])))
    assert [end.number for end in ends] == list(range(5))
    assert [end.error_type for end in ends] == [None, "SIGKILL", None, "exit-0", None]
    assert "(by hand, or because memory ran out)" in ends[1].error
    there = {each.process.pid for each in pool._processes}
    again = made(pool, {"n": 7})
    assert [end.result for end in again] in [[f"[7,{pid}]"] for pid in there]


def test_a_stop_kills_what_hangs_and_asks_what_looks(pool: CallPool, tmp_path: Path) -> None:
    stop = StopSignal()
    waiting = {"hang": 1, "polite": 1}
    before: list[int] = []

    def check_files() -> None:
        pids = [int(file.name.partition("-")[2]) for file in tmp_path.glob("hangs-*")]
        if len(pids) == len(waiting):
            before[:] = pids
            stop.set("cancelled")

    these = [Call(number, "pool.call", {"n": number, "do": do}) for number, do in enumerate(waiting)]

    def check() -> None:
        check_files()
        if stop.reason is not None:
            raise Cancelled(stop.reason)

    began = SYSTEM.monotonic()
    with pytest.raises(Cancelled):
        pool.make(these, 2, lambda end: None, check)
    assert len(before) == 2
    assert (tmp_path / "was-asked").exists()
    assert SYSTEM.monotonic() < began + 30
    for pid in before:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIG_DFL)


def test_a_process_of_a_pool_ends_when_the_handler_s_process_does(pool: CallPool) -> None:
    made(pool, {"n": 1})
    [process] = pool._processes
    process.lines.close()
    until = SYSTEM.monotonic() + 20
    while process.process.poll() is None and SYSTEM.monotonic() < until:
        sleep(0.01)
    assert process.process.returncode == 0
    pool._processes.remove(process)
