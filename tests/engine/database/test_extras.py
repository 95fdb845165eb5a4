"""The interface for extras: whatever an extra does, the tick does its work, records it, and ends on time."""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import select
from support.cases import judge
from support.hosts import Host, put

from cronjobs.clock import SYSTEM
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import ticks
from cronjobs.engine.jobs import registry
from cronjobs.engine.tick import extras
from cronjobs.engine.tick.extras import Door, Hook, HookContext, RunSummary
from cronjobs.engine.tick.result import Result
from cronjobs.engine.tick.watchdog import PAST_DEADLINE_S, Unarmed
from cronjobs.errors import DatabaseUnreachable, UsageError
from cronjobs.testing import FakeClock

CALLS = ("begin", "before_work", "wants_handlers", "end")
_numbers = itertools.count()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(SYSTEM.now())


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(extras, "DOORS", {})
    before = dict(registry._registered)

    @registry.job("t.say")
    def say() -> None:
        pass

    yield
    registry._registered.clear()
    registry._registered.update(before)


@pytest.fixture
def host(database: Database, tmp_path: Path) -> Host:
    return Host(database, tmp_path)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """A gate at which hooks hang; it opens at the end of the test."""
    gate = threading.Event()
    yield gate
    gate.set()


def install(monkeypatch: pytest.MonkeyPatch, name: str, hook: Callable[[HookContext], Hook]) -> None:
    module = ModuleType(f"an_extra_{next(_numbers)}")
    module.hook = hook  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(extras.DOORS, name, Door(module.__name__, lambda _settings, _spool: True))


def hook_that(called: list[str], trouble: Callable[[str], None]) -> Callable[[HookContext], Hook]:
    """A hook that notes its calls, and lets each meet its *trouble*."""

    class Troubled(Hook):
        def begin(self) -> None:
            self._met("begin")

        def before_work(self) -> None:
            self._met("before_work")

        def wants_handlers(self) -> bool:
            self._met("wants_handlers")
            return False

        def end(self, summary: RunSummary) -> None:
            self._met("end")

        def _met(self, name: str) -> None:
            called.append(name)
            trouble(name)

    return Troubled


def did_its_work(host: Host) -> Result:
    job_id = put(host.database)
    result = host.tick()
    with host.database.read() as connection:
        [status] = connection.exec_driver_sql(f"SELECT status FROM cronjobs_jobs WHERE id = {job_id}").scalars()
        [ended] = connection.exec_driver_sql("SELECT ended FROM cronjobs_ticks ORDER BY id DESC LIMIT 1").scalars()
    assert (status, bool(ended)) == ("succeeded", True)
    assert (result.exit_code(), result.trouble, result.fault) == (0, None, None)
    return result


def test_each_call_comes_once_in_its_place(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    install(monkeypatch, "acme", hook_that(called, lambda _: None))
    did_its_work(host)
    assert called == ["begin", "before_work", "end"]  # the handlers are loaded: nobody is asked for them


def test_an_import_for_an_extra_leaves_the_ended_ticks_row(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[bool] = []

    class Wants(Hook):
        def wants_handlers(self) -> bool:
            return True

        def end(self, summary: RunSummary) -> None:
            loaded.append(summary.types is not None)

    did_its_work(host)
    install(monkeypatch, "acme", Wants)
    host.tick()
    assert loaded == [True]
    with host.database.read() as connection:
        [row] = connection.execute(select(ticks).order_by(ticks.c.id.desc()).limit(1)).all()
    assert row.finished_at is not None
    assert (row.did, row.job_types) == ({}, None)


@pytest.mark.parametrize("error", [ValueError("no"), UsageError("no"), SystemExit(3), KeyboardInterrupt()])
def test_an_error_of_an_extra_is_reported_and_fails_nothing(
    error: BaseException, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def fails(_: str) -> None:
        raise error

    install(monkeypatch, "acme", hook_that(called, fails))
    did_its_work(host)
    assert called == ["begin", "before_work", "end"]
    said = host.said("extra.failed")
    assert len(said) == 3
    assert {event.facts["extra"] for event in said} == {"acme"}
    assert all(type(error).__name__ in event.facts["error"] or "no" in event.facts["error"] for event in said)


def test_an_error_of_the_database_in_an_extra_does_not_end_the_tick_with_4(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: str) -> None:
        raise DatabaseUnreachable("its own database", "refused")

    install(monkeypatch, "acme", hook_that([], fails))
    did_its_work(host)
    assert len(host.said("extra.failed")) == 3


def test_an_extra_has_to_end_before_the_watchdog(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    ends_by: list[float] = []

    class Noting(Hook):
        def end(self, summary: RunSummary) -> None:
            ends_by.append(summary.until)

    install(monkeypatch, "acme", Noting)
    stands_at = host.clock.monotonic() + 10  # as after a stop
    monkeypatch.setattr(Unarmed, "instant", stands_at)
    monkeypatch.setattr(Unarmed, "hardened", True)  # or a timer would kill pytest at that instant
    did_its_work(host)
    assert ends_by == [stands_at - PAST_DEADLINE_S]


def test_a_module_that_cannot_be_imported_is_reported(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.DOORS, "acme", Door("no_such_module_of_acme", lambda _settings, _spool: True))
    did_its_work(host)
    assert "no_such_module_of_acme" in host.said("extra.failed")[0].facts["error"]


@pytest.mark.parametrize("where", ["begin", "before_work"])
def test_the_tick_goes_on_without_an_extra_that_hangs_and_calls_it_no_more(
    where: str, host: Host, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    monkeypatch.setattr(extras, "WAIT_S", 0.05)
    called: list[str] = []
    other: list[str] = []

    def hangs(name: str) -> None:
        if name == where:
            gate.wait()

    install(monkeypatch, "acme", hook_that(called, hangs))
    install(monkeypatch, "other", hook_that(other, lambda _: None))
    did_its_work(host)
    assert called[-1] == where
    assert other == ["begin", "before_work", "end"]
    [said] = host.said("extra.left_behind")
    assert said.facts["extra"] == "acme"


def test_at_its_end_a_tick_waits_for_extras_until_its_deadline_and_no_longer(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []

    def wait(extra: extras._Extra, done: threading.Event, until: float | None) -> None:
        waits.append(until)

    monkeypatch.setattr(extras._Extra, "wait", wait)
    install(monkeypatch, "acme", hook_that([], lambda _: None))
    put(host.database)
    first = SYSTEM.monotonic()
    host.tick(budget_s=20)
    last = SYSTEM.monotonic()
    before_work, end = waits
    assert before_work is None, "what is left of the two seconds"
    assert end is not None
    assert first + 20 <= end + 0.001
    assert end <= last + 20


def test_a_thread_that_cannot_be_started_is_reported(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "cronjobs-extra-acme":
            raise RuntimeError("can't start new thread")
        start(thread)

    called: list[str] = []
    install(monkeypatch, "acme", hook_that(called, lambda _: None))
    monkeypatch.setattr(threading.Thread, "start", refused)
    did_its_work(host)
    assert called == []
    assert "can't start new thread" in host.said("extra.failed")[0].facts["error"]


def test_random_trouble_in_random_extras_harms_no_tick(
    host: Host, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    monkeypatch.setattr(extras, "WAIT_S", 0.02)

    def case(chance: random.Random) -> None:
        extras.DOORS.clear()
        host.events.clear()
        for name in ("a", "b", "c")[: chance.randint(1, 3)]:
            bad = {call: chance.choice(["error", "exit", "hang", "", ""]) for call in CALLS[:3]}
            bad["end"] = chance.choice(["error", "exit", ""])  # to hang there is to wait for the deadline

            def trouble(call: str, bad: dict[str, str] = bad) -> None:
                match bad[call]:
                    case "error":
                        raise ValueError(call)
                    case "exit":
                        raise SystemExit(call)
                    case "hang":
                        gate.wait()

            install(monkeypatch, name, hook_that([], trouble))
        did_its_work(host)

    judge(case, few=15, many=500)
