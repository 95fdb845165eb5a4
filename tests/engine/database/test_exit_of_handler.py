"""A handler that ends with ``sys.exit(0)`` has succeeded, unless the exit rolled its work back."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import text
from support.ledger import KEY, Jobs
from support.targets import users_table

from cronjobs.clock import SYSTEM
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.execution.attempt import Attempt, WorkerContext
from cronjobs.engine.execution.handler import run_attempt
from cronjobs.engine.jobs.around import HOOKS
from cronjobs.engine.jobs.context import Context
from cronjobs.engine.jobs.job_types import JobType
from cronjobs.engine.jobs.registry import Registration
from cronjobs.errors import Cancelled
from cronjobs.model import CancelledByRequest, Failed, Job, Outcome, RetryPolicy, Succeeded
from cronjobs.testing import FakeClock

JOB = Job(id=1, job_type="t", payload={}, attempt=1, locked_by="test")
WORK = text("INSERT INTO work VALUES (1)")


@pytest.fixture
def jobs(database: Database, database_url: str, clock: FakeClock) -> Jobs:
    users_table(database_url, "n integer")
    return Jobs(database, clock)


def ran(handler: Callable[..., Any], jobs: Jobs | None = None, stop: str | None = None) -> Outcome:
    job_type = JobType("t", timedelta(seconds=10), RetryPolicy(), Registration("t", handler))
    attempt = Attempt(JOB if jobs is None else jobs.claimed(), job_type, job_type.timeout)
    if stop is not None:
        attempt.stop.set(stop)
    database = None if jobs is None else jobs.database
    return run_attempt(attempt, WorkerContext(Settings(Path(), Path()), database), SYSTEM).outcome


def exits(code: Any) -> Callable[[], None]:
    return lambda: sys.exit(code)


def exits_in_a_task(code: Any) -> Callable[[], Any]:
    async def handler() -> None:
        await asyncio.sleep(0)
        sys.exit(code)

    return handler


@pytest.mark.parametrize("kind", [exits, exits_in_a_task])
def test_exit_code_0_is_success_as_it_is_for_a_command(kind: Callable[[Any], Callable[[], Any]]) -> None:
    for success in (0, None, False):
        assert ran(kind(success)) == Succeeded(None)
    failures: list[tuple[Any, str]] = [(2, "SystemExit: 2"), ("no", "SystemExit: no"), (0.0, "SystemExit: 0.0")]
    for code, error in failures:
        outcome = ran(kind(code))
        assert isinstance(outcome, Failed)
        assert (outcome.error, outcome.error_type) == (error, "SystemExit")


@pytest.mark.parametrize("kind", [exits, exits_in_a_task])
def test_a_hook_sees_no_exception_and_so_rolls_nothing_back(kind: Callable[[Any], Callable[[], Any]]) -> None:
    seen: list[BaseException | None] = []

    @contextmanager
    def hook(ctx: Context) -> Iterator[None]:
        try:
            yield
        finally:
            seen.append(sys.exception())

    with patch.dict(HOOKS, {"hook": hook}, clear=True):
        assert ran(kind(0)) == Succeeded(None)
    assert seen == [None]


def test_an_exit_that_reacts_to_a_stop_is_no_success() -> None:
    def handler(ctx: Context) -> None:
        try:
            ctx.check()
        except Cancelled:
            sys.exit(0)

    assert ran(handler, stop="cancelled") == CancelledByRequest()


def test_an_exit_that_rolls_ctx_transaction_back_is_a_failure(jobs: Jobs) -> None:
    def handler(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(WORK)
            sys.exit(0)

    outcome = ran(handler, jobs)
    assert isinstance(outcome, Failed)
    assert outcome.error == "SystemExit: 0"
    with jobs.database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM work")).scalar_one() == 0


def test_an_exit_after_ctx_transaction_has_committed_is_a_success(jobs: Jobs) -> None:
    def handler(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(WORK)
            ctx.result = 1
        sys.exit(0)

    assert ran(handler, jobs) == Succeeded(1)


@pytest.mark.parametrize("did_nothing", [False, True])
def test_an_exit_that_leaves_an_effect_without_a_result_is_a_failure(jobs: Jobs, did_nothing: bool) -> None:
    def handler(ctx: Context) -> None:
        with ctx.effect(KEY) as effect:
            if did_nothing:
                effect.did_nothing()
            sys.exit(0)

    assert isinstance(ran(handler, jobs), Failed)
    assert {key: state for key, (state, *_) in jobs.effects().items()} == ({} if did_nothing else {KEY: "begun"})


def test_an_exit_from_an_effect_that_another_error_became_is_a_failure(jobs: Jobs) -> None:
    """click and typer raise their own exception in the command, and turn it into sys.exit(0) outside of it."""

    def handler(ctx: Context) -> None:
        try:
            with ctx.effect(KEY):
                raise ZeroDivisionError
        except ZeroDivisionError:
            sys.exit(0)

    assert isinstance(ran(handler, jobs), Failed)


def test_an_exit_after_an_effect_was_recorded_is_a_success(jobs: Jobs) -> None:
    def handler(ctx: Context) -> None:
        with ctx.effect(KEY) as effect:
            effect.result = 1
        with ctx.effect(KEY) as effect:
            assert effect.done
            sys.exit(0)

    assert ran(handler, jobs) == Succeeded(None)
