"""Job types for the flows. Each writes what it did to a file outside the database, where the judge counts the lines."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from cronjobs import Context, GiveUp, Snooze, enqueue, job
from cronjobs.clock import sleep
from cronjobs.testing import FakeClock
from engine.crash import crash_points

TIMEOUT = timedelta(seconds=2)

clock = FakeClock()  # the clock of the process that runs jobs
# What a flow does in the middle of a first attempt. It is set only in the flow's process, not in later runners.
in_first_attempt: Callable[[Context], None] | None = None
in_second_attempt: Callable[[], None] | None = None
before_later: Callable[[], object] | None = None


def say(what: str, ctx: Context) -> None:
    file = os.open(os.environ["CRASH_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{what} {ctx.job_id} {ctx.attempt} {os.getpid()}\n".encode())
    os.close(file)


@contextmanager
def effect(ctx: Context) -> Iterator[None]:
    """The work: begun, and done; a process may die on either side."""
    say("begun", ctx)
    crash_points.passed("the end of the handler")
    yield
    say("done", ctx)
    crash_points.passed("the handler's return")


@job("crash.ok", timeout=TIMEOUT)
def ok(ctx: Context, **_: Any) -> dict[str, int]:
    with effect(ctx):
        pass
    return {"attempt": ctx.attempt}


@job("crash.flaky", timeout=TIMEOUT)
def flaky(ctx: Context) -> None:
    """Fails in its first try that is charged."""
    with effect(ctx):
        pass
    if ctx.tries == 1:
        raise ConnectionError("the provider is away")


@job("crash.gives_up", timeout=TIMEOUT)
def gives_up(ctx: Context) -> None:
    with effect(ctx):
        pass
    raise GiveUp("this can never work")


@job("crash.snoozes", timeout=TIMEOUT)
def snoozes(ctx: Context) -> None:
    with effect(ctx):
        pass
    if ctx.attempt == 1:
        raise Snooze("5m")


@job("crash.poison", timeout=TIMEOUT)
def poison(ctx: Context) -> None:
    """Fail with an error text that the database refuses; the flow makes it refuse that text."""
    with effect(ctx):
        pass
    raise GiveUp("POISON")


@job("crash.hangs", timeout=TIMEOUT)
def hangs(ctx: Context) -> None:
    """The first attempt never returns."""
    with effect(ctx):
        if ctx.attempt == 1 and in_first_attempt is not None:
            threading.Event().wait()


@job("crash.obeys", timeout=3 * TIMEOUT)
def obeys(ctx: Context) -> None:
    """The first attempt works until it is told to stop."""
    with effect(ctx):
        if ctx.attempt == 1 and in_first_attempt is not None:
            in_first_attempt(ctx)
            while True:
                ctx.check()
                sleep(0.001)


@job("crash.meanwhile", timeout=9 * TIMEOUT)  # another process has to come and act, on a busy machine, too
def meanwhile(ctx: Context) -> dict[str, int]:
    """Something happens while it is at work."""
    with effect(ctx):
        if ctx.attempt == 1 and in_first_attempt is not None:
            in_first_attempt(ctx)
        if ctx.attempt == 2 and in_second_attempt is not None:
            in_second_attempt()
    return {"attempt": ctx.attempt}


@job("crash.later", timeout=TIMEOUT)
def later(ctx: Context, by_s: float) -> None:
    """Time passes."""
    with effect(ctx):
        if before_later is not None:
            before_later()
        clock.advance(timedelta(seconds=by_s))


@job("crash.effect", timeout=TIMEOUT)
def with_an_effect(ctx: Context, on_unknown: Any) -> None:
    with effect(ctx), ctx.effect(("mail", ctx.job_id), on_unknown=on_unknown) as mail:
        if not mail.done:
            say("sent", ctx)
            crash_points.passed("the end of the effect")
            mail.result = {"attempt": ctx.attempt}


@job("crash.steps", timeout=TIMEOUT)
def in_steps(ctx: Context) -> None:
    with effect(ctx):
        for name in ("first", "second"):
            with ctx.step(name) as step:
                if not step.done:
                    say(name, ctx)
                    crash_points.passed(f"the end of the {name} step")


WORK: Final = "INSERT INTO work (job_id, attempt) VALUES ({}, {})"


@job("crash.transaction", timeout=TIMEOUT)
def in_transaction(ctx: Context) -> None:
    """The handler's work and a following job are committed together with the job's success."""
    say("begun", ctx)
    crash_points.passed("the beginning of the transaction")
    with ctx.transaction() as connection:
        connection.exec_driver_sql(WORK.format(ctx.job_id, ctx.attempt))
        enqueue(connection, "crash.ok", {"of": ctx.job_id})
        say("done", ctx)
        ctx.result = {"attempt": ctx.attempt}
        crash_points.passed("the end of the work")
    crash_points.passed("the handler's return")


@job("crash.finish", timeout=TIMEOUT)
def with_finish(ctx: Context, url: str, how: str) -> None:
    """The same, in a transaction of the user's own: an ORM session, or a plain connection of the driver."""
    say("begun", ctx)
    if how == "session":
        engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        with Session(engine) as session, session.begin():
            session.execute(text(WORK.format(ctx.job_id, ctx.attempt)))
            _finish(ctx, session)
        engine.dispose()
    else:
        sqlite = url.startswith("sqlite")
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///")) if sqlite else psycopg.connect(url)
        connection.execute(WORK.format(ctx.job_id, ctx.attempt))
        _finish(ctx, connection)
        crash_points.passed("COMMIT of the driver's")
        connection.commit()
        crash_points.passed("what follows the driver's COMMIT")
        connection.close()
    crash_points.passed("the handler's return")


def _finish(ctx: Context, target: Any) -> None:
    enqueue(target, "crash.ok", {"of": ctx.job_id})
    say("done", ctx)
    crash_points.passed("the end of the work")
    ctx.finish(target)
    crash_points.passed("what follows ctx.finish()")
