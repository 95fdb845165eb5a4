"""The jobs of a campaign. Each job writes into the ledger what it does, while it does it."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec

from cronjobs import Context, GiveUp, RetryPolicy, job
from cronjobs.engine.jobs.effects import Effect
from engine.chaos.ledger import VARIABLE, Pen

TIMEOUT = "3s"
SOON = RetryPolicy(max_attempts=1000, delays=["1s"])

_pen = Pen(os.environ[VARIABLE])


def say(ctx: Context, what: str, key: str = "") -> None:
    _pen.write(what, job=ctx.job_id, attempt=ctx.attempt, key=key)


def spend(ms: float) -> None:
    """What a provider takes to answer: the moment in which a runner dies."""
    time.sleep(ms / 1000)


P = ParamSpec("P")
Told = Callable[Concatenate[Context, P], None]


def told(handler: Told[P]) -> Told[P]:
    """Write the start, and how it ended: "end" when all was done that the job demands, "failed" otherwise."""

    @functools.wraps(handler)
    def run(ctx: Context, /, *arguments: P.args, **payload: P.kwargs) -> None:
        say(ctx, "start")
        try:
            handler(ctx, *arguments, **payload)
        except GiveUp:
            say(ctx, "end")
            raise
        except BaseException:
            say(ctx, "failed")
            raise
        say(ctx, "end")

    return run


@job("chaos.unkeyed", timeout=TIMEOUT, retry=SOON)
@told
def unkeyed(ctx: Context, before_ms: int, after_ms: int) -> None:
    """An external effect that nobody guards: a loss at the wrong moment doubles it."""
    spend(before_ms)
    say(ctx, "unkeyed")
    spend(after_ms)


@job("chaos.failing", timeout=TIMEOUT, retry=SOON)
@told
def failing(ctx: Context, before_ms: int, after_ms: int, failures: int) -> None:
    spend(before_ms)
    if ctx.tries <= failures:
        raise ConnectionError("503 from the provider")
    spend(after_ms)


@job("chaos.hopeless", timeout=TIMEOUT, retry=SOON)
@told
def hopeless(ctx: Context, before_ms: int, after_ms: int) -> None:
    spend(before_ms + after_ms)
    raise GiveUp("there is no such customer")


@job("chaos.booked", timeout=TIMEOUT, retry=SOON)
def booked(ctx: Context, before_ms: int, after_ms: int) -> None:
    """Work in the jobs database, committed with the job's success: exactly once."""
    say(ctx, "start")
    spend(before_ms)
    with ctx.transaction() as connection:
        connection.exec_driver_sql(f"INSERT INTO booked (job_id) VALUES ({ctx.job_id})")
        spend(after_ms)
        say(ctx, "end")  # a kill from here on may come before the COMMIT, or after it


# --- effects that are recorded ----------------------------------------------------------------------------------------


def carry_out(ctx: Context, effect: Effect, key: str, ms: int) -> None:
    """Do a keyed effect unless it is done; what an earlier attempt recorded must come back as it was."""
    say(ctx, "enter", key)
    with effect as entered:
        mine = not entered.done
        if mine:
            say(ctx, "body", key)
            spend(ms)
            entered.result = {"receipt": key}
    if mine:
        say(ctx, "recorded", key)
    elif not entered.unknown and entered.result != {"receipt": key}:
        raise AssertionError(f"{key} was recorded as {entered.result!r}")


@job("chaos.again", timeout=TIMEOUT, retry=SOON)
@told
def again(ctx: Context, before_ms: int, after_ms: int) -> None:
    """The provider knows our key: what may have been done is done again."""
    spend(before_ms)
    carry_out(ctx, ctx.effect(ctx.idempotency_key), ctx.idempotency_key, after_ms)


@job("chaos.skip", timeout=TIMEOUT, retry=SOON)
@told
def skip(ctx: Context, before_ms: int, after_ms: int) -> None:
    """At most once: what may have been done is taken as done."""
    spend(before_ms)
    carry_out(ctx, ctx.effect(ctx.idempotency_key, on_unknown="skip"), ctx.idempotency_key, after_ms)


@job("chaos.stop", timeout=TIMEOUT, retry=SOON)
@told
def stop(ctx: Context, before_ms: int, after_ms: int) -> None:
    """At most once: what may have been done waits, dead, for a person."""
    spend(before_ms)
    carry_out(ctx, ctx.effect(ctx.idempotency_key, on_unknown="stop"), ctx.idempotency_key, after_ms)


@job("chaos.refused", timeout=TIMEOUT, retry=SOON)
@told
def refused(ctx: Context, before_ms: int, after_ms: int, failures: int) -> None:
    """The provider refuses at first, surely without doing anything."""
    spend(before_ms)
    if ctx.tries > failures:
        carry_out(ctx, ctx.effect(ctx.idempotency_key), ctx.idempotency_key, after_ms)
        return
    with ctx.effect(ctx.idempotency_key) as effect:
        if not effect.done:
            effect.did_nothing()
            raise ConnectionRefusedError("closed for maintenance")


@job("chaos.steps", timeout=TIMEOUT, retry=SOON)
@told
def steps(ctx: Context, before_ms: int, after_ms: int) -> None:
    for name, ms in (("fetch", before_ms), ("render", after_ms), ("store", before_ms)):
        step = ctx.step(name)
        carry_out(ctx, step, step.key, ms // 2)
