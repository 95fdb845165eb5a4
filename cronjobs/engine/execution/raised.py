"""Turn what a handler raised into an outcome. An exception is user code, so we trust nothing that it says about itself.

A group (``asyncio.TaskGroup`` raises one) contains several exceptions. The outcome follows from the first entry in this
list that applies to any of these exceptions:

1. A requested stop: the job was cancelled, shutdown began, the lease was lost or the time was up, and then the handler
   raised ``Cancelled`` or asyncio's CancelledError, or an exception that one of these caused.
2. ``EffectUnknown`` or ``TransactionBroken``: the job is dead at once, because a person must first examine what
   happened.
3. ``GiveUp``: the job is dead at once.
4. Any other error, or a ``Cancelled`` without a request to stop: a failure that uses up a try.
5. ``RetryLater``: a failure that uses up a try, and is retried after the longest of the requested delays.
6. ``Snooze``: no failure, so no try is used up. The job waits until the latest of the requested instants.

Delays count even if an earlier entry applies. For example, if a group contains a failure and a RetryLater, the job
waits at least as long as the RetryLater asks.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import dropwhile, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cronjobs.clock import Clock
from cronjobs.engine.jobs import around
from cronjobs.errors import Cancelled, EffectBusy, EffectUnknown, GiveUp, RetryLater, Snooze, TransactionBroken
from cronjobs.model import (
    CancelledByRequest,
    Failed,
    Interrupted,
    Lost,
    Outcome,
    Snoozed,
    TimedOut,
    duration,
    duration_text,
    kind_name,
    kinds_of,
)
from cronjobs.text import ERROR_LIMIT, TRACEBACK_LIMIT, cap, message_of, one_line

if TYPE_CHECKING:
    from cronjobs.engine.execution.attempt import Attempt

# Examine at most this many exceptions of a group or a chain.
MOST_PARTS: Final = 1000
# If a chain or group has more exceptions than this, format only the frames of the outermost exception.
MOST_TRACED: Final = 100
# The one-line summary of a group names at most this many errors.
MOST_NAMED: Final = 3
# ``duration`` refuses a longer delay, because it must be a mistake.
LONGEST_DELAY: Final = timedelta(days=3660)
UNREADABLE: Final = "the handler raised an unprintable exception"
# A traceback begins after the frames of these files. contextlib adds frames if hooks surround a handler.
_OURS: Final = (str(Path(__file__).with_name("handler.py")), around.__file__, contextlib.__file__)


def outcome_of(error: BaseException, attempt: Attempt, clock: Clock) -> Outcome:
    """Turn what a handler raised into an outcome. Never raises. The retry policy judges ordinary errors later."""
    try:
        return _outcome(error, attempt, clock)
    # Reading the error runs the error's own code: __str__, properties, a metaclass.
    except BaseException:
        return Failed(UNREADABLE, _kind(error))


def rehearse(attempt: Attempt, clock: Clock) -> Outcome:
    """Judge a made-up error, so that the code that judges errors is loaded before a real error needs it.

    A handler that has used up all memory still holds it when its own error is judged, so no code could be loaded then.
    """
    try:
        raise MemoryError("a rehearsal")
    except MemoryError as error:
        return outcome_of(error, attempt, clock)


def _outcome(error: BaseException, attempt: Attempt, clock: Clock) -> Outcome:
    reason = _asked_to_stop(error, attempt, clock)
    if reason is not None:
        return stopped(reason, attempt, error)
    if _is(error, TimeoutError) and _is_async_timeout(error, attempt, clock):
        return stopped("timeout", attempt, error)
    parts = list(_parts(error))
    for kind in (EffectUnknown, TransactionBroken, GiveUp):
        for part in parts:
            if _is(part, kind):
                return Failed(error_text(part), kind.__name__, _trace(error), permanent=True)
    wishes = [wish for part in parts if (wish := _wish(part, clock)) is not None]
    failures = [part for part in parts if not _is(part, RetryLater) and not _is(part, Snooze)]
    refused = [wish for wish in wishes if wish.refused]
    if failures:
        return _failed(error, failures, at_least=_longest(wishes))
    if refused:
        return Failed(refused[0].refused, "UsageError", at_least=_longest(wishes))
    if any(wish.charged for wish in wishes):
        return _retry_later(wishes)
    busy = next((wish.words for wish in wishes if wish.words), None)
    return Snoozed(max(wish.until for wish in wishes if wish.until is not None), busy)


def _failed(error: BaseException, failures: Sequence[BaseException], at_least: timedelta | None) -> Failed:
    """Return the outcome of an ordinary failure.

    If a group contains one error, only that error counts. If it contains several errors, they count as one failure with
    the group's name and message.
    """
    main = failures[0] if len(failures) == 1 else error
    words, kinds = error_text(main), [kinds_of(part) for part in (*failures, main, error)]
    if len(failures) > 1:
        named = "; ".join(f"{_kind(part)}: {error_text(part, 200)}" for part in failures[:MOST_NAMED])
        words = one_line(f"{words}: {named}", ERROR_LIMIT // 2)
    return Failed(
        words,
        _kind(main),
        _trace(error),
        at_least=at_least,
        kinds=tuple(dict.fromkeys(name for names in kinds for name in names)),
    )


# --- stops ------------------------------------------------------------------------------------------------------------


def stopped(reason: str, attempt: Attempt, error: BaseException) -> Outcome:
    """Return the outcome of an attempt that ended because it was asked to stop for *reason*."""
    match reason:
        case "shutdown":
            return Interrupted()
        case "timeout":
            return TimedOut(f"timed out after {duration_text(attempt.timeout)}", _trace(error))
        case "cancelled":
            return CancelledByRequest()
        case _:
            return Lost()


def _asked_to_stop(error: BaseException, attempt: Attempt, clock: Clock) -> str | None:
    """Return why the attempt was asked to stop, or None if *error* is not the handler's reaction to a stop."""
    reason = attempt.stop.reason
    if reason is None and _is_over(attempt, clock) and _holds(error, (Cancelled,)):
        return "timeout"
    return reason if reason is not None and _holds(error, (Cancelled, *_cancelled_by_asyncio())) else None


def _is_over(attempt: Attempt, clock: Clock) -> bool:
    return attempt.started is not None and clock.monotonic() - attempt.started >= attempt.timeout.total_seconds()


def _cancelled_by_asyncio() -> tuple[type[BaseException], ...]:
    """Return asyncio's CancelledError if asyncio is imported. Otherwise nobody can have raised one."""
    kind = getattr(sys.modules.get("asyncio.exceptions"), "CancelledError", None)
    return () if kind is None else (kind,)


def _is_async_timeout(error: BaseException, attempt: Attempt, clock: Clock) -> bool:
    cause = error.__cause__ or error.__context__
    return _is_over(attempt, clock) and cause is not None and issubclass(type(cause), _cancelled_by_asyncio())


# --- delays -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _NextRunRequest:
    """The time at which a RetryLater (``charged``) or a Snooze asks to run again.

    If ``wait`` of a RetryLater is None, the retry policy decides. ``words`` is the message of the RetryLater,
    or of an EffectBusy.
    ``refused`` says why a Snooze is unusable, or is "" if the Snooze is valid.
    """

    charged: bool
    wait: timedelta | None = None
    until: datetime | None = None
    words: str = ""
    refused: str = ""


def _wish(part: BaseException, clock: Clock) -> _NextRunRequest | None:
    if _is(part, RetryLater):
        after = getattr(part, "after", None)
        wait = None if after is None else _delay(after)
        words = error_text(part)
        if after is not None and wait is None:
            words += f" (after={_shown(after)} is not a delay between 0 and ten years, so the retry policy decides)"
        return _NextRunRequest(True, wait, words=words)
    if _is(part, Snooze):
        until = getattr(part, "until", None)
        now = clock.now()
        moment = _instant(until, now)
        if moment is None:
            text = f"Snooze({_shown(until)}) needs an aware datetime within ten years, or a delay such as '10m'"
            return _NextRunRequest(False, refused=text)
        busy = error_text(part) if _is(part, EffectBusy) else ""
        return _NextRunRequest(False, max(moment - now, timedelta(0)), moment, words=busy)
    return None


def _retry_later(wishes: Sequence[_NextRunRequest]) -> Failed:
    words = next(wish.words for wish in wishes if wish.charged)
    longest = _longest(wishes)
    if any(wish.wait is None for wish in wishes):
        return Failed(words, "RetryLater", None, at_least=longest)
    return Failed(words, "RetryLater", None, retry_after=longest)


def _longest(wishes: Sequence[_NextRunRequest]) -> timedelta | None:
    return max((wish.wait for wish in wishes if wish.wait is not None), default=None)


def _delay(value: Any) -> timedelta | None:
    """Return *value* as a plain timedelta. Return None if it is not a span of time, is negative, or is too long."""
    try:
        span = timedelta(seconds=duration(value).total_seconds())
    # The value may be NaN, a text that is not a duration, or an object of a misbehaving subclass.
    except Exception:
        return None
    return span if timedelta(0) <= span <= LONGEST_DELAY else None


def _instant(value: Any, now: datetime) -> datetime | None:
    """Return when a Snooze ends, as a plain UTC instant, or None if *value* is unusable."""
    try:
        if isinstance(value, datetime):
            if value.utcoffset() is None:
                return None
            utc = value.astimezone(UTC)
            parts = (utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second, utc.microsecond)
            moment = datetime(*parts, tzinfo=UTC)
            return moment if moment - now <= LONGEST_DELAY else None
    # The instant may be in the year 9999 in a zone west of Greenwich, and its tzinfo may raise anything.
    except Exception:
        return None
    wait = _delay(value)
    return None if wait is None else now + wait


# --- reading what cannot be trusted -----------------------------------------------------------------------------------


def _is(error: BaseException, kind: type[BaseException]) -> bool:
    # Do not use isinstance(), because it trusts ``__class__``, which user code can set to anything.
    return issubclass(type(error), kind)


def _parts(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group and in its subgroups, or *error* itself if it is not a group."""
    todo, seen = [error], 0
    while todo and seen < MOST_PARTS:
        part, seen = todo.pop(), seen + 1
        if isinstance(part, BaseExceptionGroup):
            todo += reversed(list(islice(part.exceptions, MOST_PARTS)))
        else:
            yield part


def _holds(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Return whether *error*, an exception inside its groups, or an exception that led to it, is one of *kinds*."""
    return any(issubclass(type(each), kinds) for each in islice(_everything(error), MOST_PARTS))


def _everything(error: BaseException) -> Iterator[BaseException]:
    todo, seen = [error], set[int]()
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, BaseExceptionGroup):
            todo += list(islice(each.exceptions, MOST_PARTS))
        led_to_it = each.__cause__ or each.__context__
        if led_to_it is not None:
            todo.append(led_to_it)


def error_text(error: BaseException, limit: int = ERROR_LIMIT // 2) -> str:
    """Return the message of *error* in one line, whatever its ``__str__`` does."""
    if _is(error, Cancelled):
        return one_line(
            f"raised {_shown(error)}, but nothing had asked the job to stop: raise GiveUp to end a job", limit
        )
    words = message_of(error)
    # For an exception like SystemExit, add its name. The message of sys.exit(3) alone would be just "3".
    if not _is(error, Exception):
        words = f"{_kind(error)}: {words}"
        if type(error) is SystemExit and error.code in (None, 0):
            words = words.rstrip() + " (an exit fails the attempt, even with code 0: to end a handler, return)"
    # The message of a KeyError is only the key, so add words.
    elif type(error) is KeyError and len(error.args) == 1:
        words = f"no such key: {words}"
    return one_line(words or _kind(error), limit)


def _shown(value: object) -> str:
    if isinstance(value, Cancelled):
        value = getattr(value, "reason", None)
        return f"Cancelled({_shown(value)})"
    try:
        return one_line("".join([repr(value)]), 100)
    except BaseException:
        return "…"


def _kind(error: BaseException) -> str:
    try:
        return "".join([kind_name(type(error))])
    # User code can set __module__ and __qualname__ to anything.
    except BaseException:
        return "Exception"


def stack_of(attempt: Attempt) -> str | None:
    """Return the present stack of the handler's thread as text, or None if the attempt has ended."""
    try:
        if (thread := attempt.thread) is None:
            return None
        frames = [*traceback.walk_stack(sys._current_frames()[thread])][::-1]
        # If the attempt has just ended, these frames may belong to another attempt.
        if attempt.thread is None:
            return None
        last = max(place for place, (frame, _) in enumerate(frames) if frame.f_code.co_filename == _OURS[0])
        theirs = dropwhile(lambda each: each[0].f_code.co_filename in _OURS, frames[last:])
        lines = traceback.StackSummary.extract(iter(theirs)).format()
        return cap("".join(["Stack at the timeout (most recent call last):\n", *lines]), TRACEBACK_LIMIT)
    # Reading the stack may run user code, which may raise anything.
    except BaseException:
        return None


def _trace(error: BaseException) -> str | None:
    try:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename in _OURS:
            # Skip our own frames, so that the trace begins with the user's code.
            frames = frames.tb_next
        if len(list(islice(_everything(error), MOST_TRACED + 1))) > MOST_TRACED:
            lines = [
                *traceback.format_tb(frames),
                f"{_kind(error)}: {error_text(error)}\n",
                "(and too many more to show)\n",
            ]
        else:
            lines = traceback.format_exception(type(error), error, frames)
        return cap("".join(lines), TRACEBACK_LIMIT)
    except BaseException:
        return None
