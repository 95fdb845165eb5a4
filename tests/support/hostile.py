"""Make a badly behaved handler from a seed. It raises, returns, prints and requests strange things."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from sqlalchemy import text

from cronjobs.engine.jobs.context import Context
from cronjobs.errors import Cancelled, EffectUnknown, GiveUp, RetryLater, Snooze
from support.untrusted import UNTRUSTED, Always, Span, Text, Twice, Unreadable, bomb

ODD_TEXTS = ("", "no luck", "half \ud800", "nul \0", "\x1b[2J\r\n", "x" * 100_000, "ü\u2028\u202e")
DELAYS: tuple[Any, ...] = (
    *(None, 0, 1, 90, "90s", "1h30m", timedelta(minutes=5), timedelta(0), 86_400.0),
    *(timedelta.max, timedelta.min, -1, math.nan, math.inf, 10**400, "soon", b"", [], object(), True),
)
INSTANTS: tuple[Any, ...] = (
    *(datetime(2030, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)),
    *(
        datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=23))),
        datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None),
    ),
)
STOPS = ("cancelled", "shutdown", "timeout", "lease lost")


def error_of(dice: random.Random, depth: int = 0) -> BaseException:
    """Return an exception, or a tree of exceptions."""
    match dice.randrange(13 if depth < 4 else 11):
        case 0:
            return GiveUp(dice.choice(ODD_TEXTS))
        case 1:
            return RetryLater(dice.choice(ODD_TEXTS), after=dice.choice((*DELAYS, Span(1), Unreadable())))
        case 2:
            return snooze_of(dice.choice((*DELAYS, *INSTANTS, Unreadable())))
        case 3:
            reasons: tuple[Any, ...] = (*STOPS, "the customer cancelled", None, 5)
            return Cancelled(dice.choice(reasons))
        case 4:
            return EffectUnknown("invoice:1")
        case 5 | 6:
            return dice.choice(UNTRUSTED)()
        case 7:
            return asyncio.CancelledError()
        case 8:
            error = dice.choice((ValueError, OSError, KeyError, MemoryError, BaseException))(dice.choice(ODD_TEXTS))
            if dice.random() < 0.5:
                error.__cause__ = error_of(dice, depth + 1)
            return error
        case 9:
            return RetryLater("429", after=dice.choice((timedelta.max, timedelta(seconds=10**12), math.nan, Span(1))))
        case 10:
            return snooze_of(dice.choice(INSTANTS))
        case _:
            parts = [error_of(dice, depth + 1) for _ in range(dice.choice((1, 1, 2, 3, 50)))]
            with suppress(Exception):  # a group refuses an object that isinstance does not take for an exception
                return BaseExceptionGroup(dice.choice(ODD_TEXTS), parts)
            return ValueError("no group")


def snooze_of(until: Any) -> Snooze:
    """Return a Snooze. Its arguments may be such that its constructor cannot format them."""
    error = Snooze.__new__(Snooze)
    Exception.__init__(error, "later")
    error.until = until
    return error


def result_of(dice: random.Random, depth: int = 0) -> Any:
    match dice.randrange(14 if depth < 3 else 6):
        case 0:
            return None
        case 1:
            return dice.choice((1, 2.5, True, "text", -(10**300)))
        case 2:
            return dice.choice((math.nan, math.inf, 10**5000, b"raw", object(), {1, 2}))
        case 3:
            return dice.choice(ODD_TEXTS)
        case 4:
            return dice.choice((Always(a=1), Twice(a=1), Text("words"), Unreadable(), bomb()))
        case 5:
            return (n for n in range(3))
        case 6 | 7 | 8 | 9:
            return [result_of(dice, depth + 1) for _ in range(dice.randrange(4))]
        case _:
            return {dice.choice(("a", "b", "c\0", "\ud800", 5)): result_of(dice, depth + 1) for _ in range(3)}


def noise(dice: random.Random) -> None:
    """Print, also from threads, perhaps after the attempt has ended."""
    words = dice.choice(ODD_TEXTS)
    print(words)
    logging.getLogger("hostile").warning("%s", words)
    threading.Thread(target=print, args=(words,), daemon=True).start()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(print, words)


def use_context(dice: random.Random, ctx: Context) -> Any:
    """Use effects, steps and the transaction, and leave them in every possible way."""
    match dice.randrange(4):
        case 0:
            with ctx.effect(f"e:{ctx.job_id}", dice.choice(("again", "skip", "stop"))) as effect:
                effect.result = result_of(dice)
                raise_or_not(dice)
        case 1:
            with ctx.step("one") as step:
                step.result = result_of(dice)
        case 2:
            with ctx.transaction() as connection:
                connection.execute(text("SELECT 1"))
                ctx.result = result_of(dice)
                dice.choice((connection.commit, connection.rollback, lambda: raise_or_not(dice), int, int))()
            raise_or_not(dice)
        case _:
            ctx.check()
            _ = (ctx.deadline, ctx.remaining_s, ctx.cancelled, ctx.late_by)
    return result_of(dice)


def raise_or_not(dice: random.Random) -> None:
    if dice.random() < 0.5:
        raise error_of(dice)


def act(dice: random.Random, ctx: Context) -> Any:
    """Do what the handler of one seed does. In the end it returns or raises something."""
    if dice.random() < 0.1:
        noise(dice)
    match dice.randrange(8):
        case 0 | 1 | 2:
            raise error_of(dice)
        case 3 | 4:
            return result_of(dice)
        case 5:
            return use_context(dice, ctx)
        case 6:
            return _coroutine(dice)
        case _:
            return _generator if dice.random() < 0.5 else _generator()


def _generator() -> Any:
    yield 1


async def _coroutine(dice: random.Random) -> Any:
    error = error_of(dice)
    if "Lies" in {type.__name__.__get__(type(part)) for part in _every(error)}:  # type: ignore[attr-defined]
        return result_of(dice)  # asyncio itself inspects this result and hangs, which is an ordinary timeout

    async def task() -> None:
        raise error

    if dice.random() < 0.5:
        raise error
    if isinstance(error, Exception):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(task())
            tasks.create_task(asyncio.sleep(10))
    return result_of(dice)


def _every(error: BaseException) -> list[BaseException]:
    found, todo = list[BaseException](), [error]
    while todo:
        each = todo.pop()
        found.append(each)
        if issubclass(type(each), BaseExceptionGroup) and type(each).__name__ != "Group":
            todo += each.exceptions  # type: ignore[attr-defined]
    return found


Stop = Callable[[int, str], None]


def handler_of(stop: Stop) -> Callable[..., Any]:
    """Return the handler for seeds. *stop* asks an attempt to stop, as the loop does."""

    def hostile(ctx: Context, seed: int) -> Any:
        dice = random.Random(seed)
        if dice.random() < 0.05:
            stop(ctx.job_id, dice.choice(STOPS[:3]))
            if dice.random() < 0.7:
                ctx.check()
        return act(dice, ctx)

    return hostile
