"""Hooks around every attempt. They are entered and left however the attempt ends, and an error in them fails it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import insert, select
from support.hosts import Host

from cronjobs import Context, RetryPolicy, around_attempts, job
from cronjobs.clock import SYSTEM
from cronjobs.engine.config.settings import RunSettings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import job_runs, jobs
from cronjobs.engine.jobs import registry
from cronjobs.engine.jobs.around import HOOKS
from cronjobs.errors import UsageError

ONCE = RetryPolicy(max_attempts=1)
Run = Callable[..., list[tuple[str, str | None]]]


@pytest.fixture
def notes() -> Iterator[list[str]]:
    """What hooks and handlers note; they are registered for the test alone."""
    with patch.dict(HOOKS, clear=True), patch.dict(registry._registered, clear=True):
        yield []


@pytest.fixture
def run(sqlite_migrated: str, tmp_path: Path, notes: list[str]) -> Iterator[Run]:
    """Run jobs one after another in one worker's thread: the outcome and error of each."""
    database = Database(parse_url(f"sqlite:///{sqlite_migrated}"))

    def ran(*job_types: str, timeout_s: float = 10) -> list[tuple[str, str | None]]:
        now = SYSTEM.now()
        rows = [{"job_type": name, "run_at": now, "created_at": now, "timeout_s": timeout_s} for name in job_types]
        with database.write() as session:
            session.execute(insert(jobs), rows)
        host = Host(database, tmp_path)
        host.carry(run=RunSettings(workers=1))
        host.tick()
        with database.read() as session:
            found = session.execute(select(job_runs.c.outcome, job_runs.c.error).order_by(job_runs.c.job_id)).all()
        return [(row.outcome, row.error) for row in found]

    yield ran
    database.close()


def handlers(notes: list[str]) -> None:
    @job("t.returns", retry=ONCE)
    def returns() -> None:
        notes.append("returns")

    @job("t.raises", retry=ONCE)
    def raises() -> None:
        raise ValueError("its own")

    @job("t.overstays", retry=ONCE)
    def overstays(ctx: Context) -> None:
        while True:
            ctx.check()
            threading.Event().wait(0.005)

    @job("t.async", retry=ONCE)
    async def waits() -> None:
        await asyncio.sleep(0)
        notes.append("async")

    @job("t.async_overstays", retry=ONCE)
    async def waits_on() -> None:
        await asyncio.sleep(60)


def test_a_hook_is_around_every_attempt_however_it_ends(run: Run, notes: list[str]) -> None:
    handlers(notes)

    @around_attempts
    @contextmanager
    def note(ctx: Context) -> Iterator[None]:
        notes.append(f"in {ctx.job_type} {threading.current_thread().name}")
        try:
            yield
        except BaseException as error:
            notes.append(f"out {type(error).__name__}")
            raise
        notes.append("out")

    found = run("t.returns", "t.raises", "t.async")
    assert [outcome for outcome, _ in found] == ["succeeded", "failed", "succeeded"]
    here = "cronjobs-worker-1"
    assert notes == [
        *(f"in t.returns {here}", "returns", "out"),
        *(f"in t.raises {here}", "out ValueError"),
        *(f"in t.async {here}", "async", "out"),
    ]
    notes.clear()
    found = run("t.overstays", "t.async_overstays", timeout_s=0.1)[3:]
    assert [outcome for outcome, _ in found] == ["timed_out", "timed_out"]
    assert [each.partition(" ")[0] for each in notes] == ["in", "out", "in", "out"]


def test_what_a_hook_raises_is_the_attempts_error(run: Run, notes: list[str]) -> None:
    handlers(notes)
    raising: list[str] = []

    @around_attempts
    @contextmanager
    def raises(ctx: Context) -> Iterator[None]:
        if "in" in raising:
            raise RuntimeError("no session")
        try:
            yield
        finally:
            if "out" in raising:
                raise RuntimeError("not clean")

    raising.append("in")
    assert run("t.returns", "t.async") == [("failed", "no session")] * 2
    assert notes == []  # no handler was called
    raising[:] = ["out"]
    assert run("t.returns", "t.raises", "t.async")[2:] == [("failed", "not clean")] * 3


def test_no_hook_makes_a_success_of_a_failure(run: Run, notes: list[str]) -> None:
    handlers(notes)

    @around_attempts
    class Swallows:
        def __init__(self, ctx: Context) -> None:
            pass

        def __enter__(self) -> None:
            pass

        def __exit__(self, _kind: Any, _error: Any, _trace: TracebackType | None) -> bool:
            return True

        async def __aenter__(self) -> None:
            pass

        async def __aexit__(self, _kind: Any, _error: Any, _trace: TracebackType | None) -> bool:
            return True

    @job("t.async_raises", retry=ONCE)
    async def araises() -> None:
        raise ValueError("its own")

    assert run("t.raises", "t.async_raises", "t.returns", "t.async") == [
        ("failed", "its own"),
        ("failed", "its own"),
        ("succeeded", None),
        ("succeeded", None),
    ]


def test_an_asynchronous_one_is_entered_in_the_loop_of_async_handlers_alone(run: Run, notes: list[str]) -> None:
    handlers(notes)

    @around_attempts
    @asynccontextmanager
    async def note(ctx: Context) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        notes.append("in")
        yield
        await asyncio.sleep(0)
        notes.append("out")

    assert [outcome for outcome, _ in run("t.returns", "t.async")] == ["succeeded"] * 2
    assert notes == ["returns", "in", "async", "out"]


def test_a_stop_does_not_break_off_what_a_hook_does_after_its_handler(run: Run, notes: list[str]) -> None:
    """asyncio cancels the handler at its time-out, and so does the tick, a moment later."""
    handlers(notes)

    @around_attempts
    @asynccontextmanager
    async def slow(ctx: Context) -> AsyncIterator[None]:
        try:
            yield
        finally:
            while ctx._stop.reason is None:
                await asyncio.sleep(0.005)
            for _ in range(20):
                await asyncio.sleep(0)
            notes.append("clean")

    assert [outcome for outcome, _ in run("t.async_overstays", timeout_s=0.1)] == ["timed_out"]
    assert notes == ["clean"]


def test_each_attempt_has_a_context_of_its_own(run: Run, notes: list[str]) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")

    @job("t.binds", retry=ONCE)
    def binds() -> None:
        tenant.set("acme")

    @job("t.looks", retry=ONCE)
    def looks() -> None:
        notes.append(tenant.get())

    @job("t.async_looks", retry=ONCE)
    async def alooks() -> None:
        notes.append(tenant.get())
        tenant.set("acme")

    run("t.binds", "t.looks", "t.async_looks", "t.looks")
    assert notes == ["nobody"] * 3


def test_a_hook_is_a_function_or_a_class(notes: list[str]) -> None:
    wrong: Any
    for wrong in (None, "hooks:clean", contextmanager(lambda ctx: iter([None]))(None)):
        with pytest.raises(UsageError, match="takes a function or a class that returns a context manager"):
            around_attempts(wrong)
    assert not HOOKS
