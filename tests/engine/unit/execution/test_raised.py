"""Any exception of a handler becomes an outcome, and groups of exceptions are handled by their parts."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from support.untrusted import UNTRUSTED, Always, Lies, Span, Text, Twice, Unreadable, bomb

from cronjobs.clock import SYSTEM
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.execution.attempt import Attempt, WorkerContext
from cronjobs.engine.execution.handler import run_attempt
from cronjobs.engine.execution.raised import outcome_of, stack_of
from cronjobs.engine.jobs.job_types import JobType
from cronjobs.engine.jobs.registry import Registration
from cronjobs.engine.rules.ending import decide
from cronjobs.errors import Cancelled, EffectUnknown, GiveUp, RetryLater, Snooze, TransactionBroken
from cronjobs.model import (
    CancelledByRequest,
    Failed,
    Interrupted,
    Job,
    Lost,
    Outcome,
    RetryPolicy,
    Snoozed,
    Status,
    Succeeded,
    TimedOut,
)
from cronjobs.text import ERROR_LIMIT

JOB = Job(id=1, job_type="t", payload={}, attempt=1, locked_by="test")
WEST = timezone(-timedelta(hours=12))


def test_the_stack_of_a_running_handler_begins_with_its_own_code_and_ends_where_it_is() -> None:
    seen: list[str | None] = []

    def handler() -> None:
        with contextlib.ExitStack() as stack:  # a file whose frames are left out only around a handler
            stack.callback(deeper)

    def deeper() -> None:
        seen.append(stack_of(attempt))

    attempt = attempt_of(handler)
    run_attempt(attempt, WorkerContext(Settings(Path(), Path())), SYSTEM)
    stack = seen[0] or ""
    assert next(line.split(" in ")[1] for line in stack.splitlines() if line.startswith("  File")) == "handler"
    assert " in deeper\n" in stack
    assert stack_of(attempt) is None, "its thread may have another attempt by now"


def attempt_of(handler: Callable[..., Any] | None = None, *, stop: str | None = None, over: bool = False) -> Attempt:
    registration = None if handler is None else Registration("t", handler)
    job_type = JobType("t", timedelta(seconds=10), RetryPolicy(jitter=0), registration)
    attempt = Attempt(JOB, job_type, job_type.timeout)
    attempt.started = SYSTEM.monotonic() - (11 if over else 0)
    if stop is not None:
        attempt.stop.set(stop)
    return attempt


def outcome(error: BaseException, **how: Any) -> Outcome:
    return outcome_of(error, attempt_of(**how), SYSTEM)


def failed(error: BaseException, **how: Any) -> Failed:
    found = outcome(error, **how)
    assert isinstance(found, Failed)
    return found


def ran(handler: Callable[..., Any]) -> Outcome:
    """What the whole way through a worker makes of it; and it can be decided about."""
    surroundings, ended = WorkerContext(Settings(Path("cronjobs.yaml"), Path())), list[Outcome]()
    # In a thread, as in a tick: in the main thread asyncio minds SIGINT, and reads the task's repr for that.
    thread = Thread(target=lambda: ended.append(run_attempt(attempt_of(handler), surroundings, SYSTEM).outcome))
    thread.start()
    thread.join()
    [found] = ended
    decide(JOB, found, RetryPolicy(), datetime.now(UTC), 0.0)
    return found


def raising(error: Any) -> Callable[[], None]:
    def handler() -> None:
        raise error

    return handler


# --- stops ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        Cancelled("the customer cancelled the order"),
        Cancelled("shutdown"),
        Cancelled("timeout"),
        Cancelled(None),  # type: ignore[arg-type]
        ExceptionGroup("tasks", [Cancelled("cancelled")]),
        asyncio.CancelledError(),
    ],
)
def test_a_cancelled_that_nobody_asked_for_is_an_ordinary_charged_failure(error: BaseException) -> None:
    found = failed(error)
    assert (found.permanent, found.retry_after) == (False, None)
    became = decide(JOB, found, RetryPolicy(), datetime.now(UTC), 0.0)
    assert (became.status, became.failures, became.losses) == (Status.FAILED, 1, 0)
    if isinstance(error, Cancelled):
        assert "nothing had asked the job to stop" in found.error
        assert found.error_type == "cronjobs.errors.Cancelled"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("cancelled", CancelledByRequest), ("shutdown", Interrupted), ("timeout", TimedOut), ("lease lost", Lost)],
)
@pytest.mark.parametrize(
    "wrapped", ["bare", "group", "nested", "cause", "beside GiveUp", "asyncio's", "cause in group"]
)
def test_a_stop_that_was_asked_for_is_found_wherever_it_is(reason: str, kind: type, wrapped: str) -> None:
    stop = Cancelled(reason)
    caused = RuntimeError("while cleaning up")
    caused.__cause__ = stop
    error: BaseException = {
        "bare": stop,
        "group": ExceptionGroup("tasks", [stop]),
        "nested": ExceptionGroup("a", [ValueError("x"), ExceptionGroup("b", [ExceptionGroup("c", [stop])])]),
        "cause": caused,
        "beside GiveUp": ExceptionGroup("tasks", [GiveUp("no such customer"), stop]),
        "asyncio's": asyncio.CancelledError(),
        "cause in group": ExceptionGroup("tasks", [ValueError("x"), caused]),
    }[wrapped]
    assert isinstance(outcome(error, stop=reason), kind)


def test_check_raises_timeout_before_the_loop_has_noticed() -> None:
    assert isinstance(outcome(Cancelled("timeout"), over=True), TimedOut)
    assert isinstance(outcome(ExceptionGroup("tasks", [Cancelled("timeout")]), over=True), TimedOut)
    assert isinstance(outcome(ValueError("late"), over=True), Failed)


# --- groups -----------------------------------------------------------------------------------------------------------

LATER, SOONER = RetryLater("429", after="90s"), RetryLater("503", after="10s")
SNOOZE = Snooze(timedelta(minutes=10))


def group(*errors: BaseException) -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup("tasks", [BaseExceptionGroup("more", list(errors))])


def test_the_first_in_the_order_of_precedence_decides() -> None:
    unknown = EffectUnknown("invoice:1")
    assert failed(group(SNOOZE, GiveUp("void"), unknown)).error_type == "EffectUnknown"
    assert failed(group(GiveUp("void"), TransactionBroken())).error_type == "TransactionBroken"
    gave_up = failed(group(ValueError("x"), LATER, GiveUp("void")))
    assert (gave_up.error_type, gave_up.error, gave_up.permanent) == ("GiveUp", "void", True)
    both = failed(group(SNOOZE, ValueError("x"), LATER))
    assert (both.error_type, both.error, both.permanent) == ("ValueError", "x", False)
    assert both.at_least is not None
    assert both.at_least == pytest.approx(timedelta(minutes=10), abs=timedelta(seconds=1))
    later = failed(group(SOONER, LATER))
    assert (later.error_type, later.retry_after) == ("RetryLater", timedelta(seconds=90))
    assert failed(group(SNOOZE, LATER)).retry_after == pytest.approx(timedelta(minutes=10), abs=timedelta(seconds=1))
    snoozed = outcome(group(Snooze("5m"), SNOOZE))
    assert isinstance(snoozed, Snoozed)
    assert snoozed.until - SYSTEM.now() > timedelta(minutes=9)


def test_a_retry_later_by_the_policy_beside_one_with_a_delay_waits_at_least_that_long() -> None:
    found = failed(group(RetryLater("busy"), LATER))
    assert (found.retry_after, found.at_least) == (None, timedelta(seconds=90))


def test_one_error_in_a_group_is_that_error_and_several_bear_the_groups_name() -> None:
    one = failed(group(ConnectionResetError("gone")))
    assert (one.error_type, one.error) == ("ConnectionResetError", "gone")
    assert {"ConnectionResetError", "ConnectionError", "OSError", "BaseExceptionGroup"} <= {*one.kinds}
    two = failed(ExceptionGroup("several", [ValueError("one"), KeyError("two")]))
    assert two.error_type == "ExceptionGroup"
    assert "ValueError: one; KeyError: no such key: 'two'" in two.error
    assert {"ValueError", "LookupError", "ExceptionGroup"} <= {*two.kinds}


def test_a_key_error_says_more_than_the_key() -> None:
    with pytest.raises(KeyError) as raised:
        dict[str, int]()["USD"]
    assert failed(raised.value).error == "no such key: 'USD'"
    assert failed(KeyError()).error == "KeyError"
    assert failed(KeyError("EUR", "USD")).error == "('EUR', 'USD')"


def test_words_in_a_task_group_mean_what_they_mean_alone() -> None:
    async def task(error: Exception) -> None:
        raise error

    def handler(error: Exception) -> Callable[[], Any]:
        async def run() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(task(error))
                tasks.create_task(asyncio.sleep(60))

        return run

    gave_up = ran(handler(GiveUp("no such customer")))
    assert isinstance(gave_up, Failed)
    assert (gave_up.permanent, gave_up.error) == (True, "no such customer")
    assert isinstance(ran(handler(SNOOZE)), Snoozed)
    later = ran(handler(LATER))
    assert isinstance(later, Failed)
    assert later.retry_after == timedelta(seconds=90)


@pytest.mark.slow
def test_wide_deep_and_circular_groups_cost_little() -> None:
    deep: BaseException = GiveUp("deep")
    for _ in range(500):
        deep = BaseExceptionGroup("g", [deep])
    assert failed(deep).error == "deep"
    for _ in range(50_000):
        deep = BaseExceptionGroup("g", [deep])
    assert isinstance(outcome(deep), Failed)
    wide = failed(ExceptionGroup("wide", [ValueError("x" * 1000) for _ in range(100_000)]))
    assert wide.error_type == "ExceptionGroup"
    assert len(wide.error) <= ERROR_LIMIT
    chain = ValueError("end")
    for _ in range(50_000):
        before, chain = chain, ValueError("link")
        chain.__context__ = before
    assert failed(chain).error == "link"
    circle = ValueError("circle")
    circle.__cause__ = other = KeyError()
    other.__cause__ = circle
    assert failed(circle).error == "circle"


# --- delays and instants ----------------------------------------------------------------------------------------------


class _NoZone(tzinfo):
    def utcoffset(self, _at: datetime | None) -> timedelta:
        raise RuntimeError("nobody knows")

    dst = tzname = utcoffset  # type: ignore[assignment]


@pytest.mark.parametrize(
    "after",
    [
        timedelta.max,
        timedelta.min,
        timedelta(days=3661),
        timedelta(seconds=-1),
        -5,
        math.nan,
        math.inf,
        10**400,
        True,
        "soon",
        "",
        "9" * 5000,
        b"90s",
        Decimal("NaN"),
        [],
        object(),
        Span(1),
        Unreadable(),
    ],
)
def test_a_retry_later_without_a_usable_delay_is_retried_by_the_policy_and_says_so(after: Any) -> None:
    found = ran(raising(RetryLater("429", after=after)))
    assert isinstance(found, Failed)
    assert (found.error_type, found.retry_after, found.permanent) == ("RetryLater", None, False)
    assert found.error.startswith("429 (after=")


@pytest.mark.parametrize("after", [timedelta(days=3660), 0, 0.5, "1h30m", timedelta(0)])
def test_a_usable_delay_is_taken_as_it_is(after: Any) -> None:
    found = ran(raising(RetryLater("429", after=after)))
    assert isinstance(found, Failed)
    assert type(found.retry_after) is timedelta


@pytest.mark.parametrize(
    "until",
    [
        datetime(9999, 12, 31, 23, tzinfo=WEST),
        datetime(9999, 12, 31, tzinfo=UTC),
        datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12))),
        datetime(2030, 1, 1, tzinfo=_NoZone()),
        timedelta.max,
        timedelta(seconds=-1),
        math.nan,
        None,
        "when I like",
        Unreadable(),
        [],
    ],
)
def test_a_snooze_that_cannot_be_meant_is_a_charged_failure(until: Any) -> None:
    error = Snooze.__new__(Snooze)
    Exception.__init__(error, "snoozed")
    error.until = until
    found = ran(raising(error))
    assert isinstance(found, Failed)
    assert found.error_type == "UsageError"
    assert found.error.startswith("Snooze(")


def test_a_snooze_that_is_over_already_comes_back_at_once() -> None:
    found = ran(raising(Snooze(datetime(1, 1, 1, tzinfo=UTC))))
    assert found == Snoozed(datetime(1, 1, 1, tzinfo=UTC))


# --- exceptions that cannot be trusted --------------------------------------------------------------------------------


@pytest.mark.parametrize("made", UNTRUSTED, ids=range(len(UNTRUSTED)))
def test_whatever_is_raised_is_one_charged_failure_with_words(made: Callable[[], BaseException]) -> None:
    error = made()  # not a parameter: pytest itself looks at those
    for handler in (raising(error), _coroutine(error)):
        found = ran(handler)
        assert isinstance(found, Failed)
        assert not found.permanent
        assert type(found.error) is str
        assert found.error
        assert "\n" not in found.error
        assert type(found.error_type) is str


def _coroutine(error: BaseException) -> Callable[[], Any]:
    async def handler() -> None:
        if type(error) is Lies:
            raise ValueError("asyncio itself looks at it, and hangs")
        raise error

    return handler


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [Always(a=1), {"a": Always()}, bomb(), ["x" * 100_000] * 1000, {1: 2}, {"a"}])
def test_a_result_that_cannot_be_read_is_dropped_with_a_note_and_the_work_is_done(result: Any) -> None:
    found = ran(lambda: result)
    assert isinstance(found, Succeeded)
    assert found.result is None
    assert found.note is not None
    assert "the result was not kept" in found.note


def test_what_goes_on_of_a_result_is_plain_and_is_read_once() -> None:
    trap = Twice(text=Text("words"), numbers=(1, 2.5))
    found = ran(lambda: trap)
    if isinstance(found, Succeeded) and found.result is not None:
        assert found.result == {"text": "words", "numbers": [1, 2.5]}
        assert type(found.result) is dict
    assert isinstance(found, Succeeded)


@pytest.mark.parametrize("kind", ["generator", "async generator"])
def test_a_generator_that_a_handler_returns_is_no_success(kind: str) -> None:
    async def later() -> Any:
        yield 1

    found = ran(lambda: (n for n in (1, 2)) if kind == "generator" else later())
    assert isinstance(found, Failed)
    assert "the generator's body did not run" in found.error
    assert found.at_least == timedelta(minutes=5)
