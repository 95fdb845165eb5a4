"""The tick's time limit from its first moment: a kernel timer that ends the process without any Python."""

from __future__ import annotations

import faulthandler
import os
import time

# The C part of the signal module. Its Python part imports enum, which would take longer than the question.
from _signal import (  # type: ignore[import-not-found]
    ITIMER_REAL,
    SIG_DFL,
    SIG_UNBLOCK,
    SIGALRM,
    SIGINT,
    pthread_sigmask,
    setitimer,
    signal,
)

from cronjobs.engine.probe.here import process_age

DEFAULT_BUDGET_S = 55.0
DEFAULT_EVERY_S = 60.0
PAST_DEADLINE_S = 1.0
# faulthandler would wait for ever to write the stacks into a full pipe that nobody reads. It dumps only once, so the
# second signal ends the process.
STRIKE_AGAIN_S = 0.2
# If the process is older than this, it exec'ed us after doing something else (``sleep 30; exec cronjobs run-due``, a
# container's entrypoint), and the kernel's start time is not the tick's.
LONGEST_START_S = 10.0
UNTIL = "CRONJOBS_UNTIL"  # set for the full ticks of a lingering one: their deadline on the monotonic clock
LEAST_LEFT_S = 0.5

_given: float | None = None


def start() -> float:
    """Start the timer with the default budget, which applies until the file is read; return the process's age."""
    global _given
    try:  # removed: handlers and commands, which may start other ticks, must not inherit it
        _given = float(os.environ.pop(UNTIL, ""))
    except ValueError:
        _given = None
    open_standard_streams()
    # Until the tick installs its own handler, and after it removes it, Ctrl-C ends the process without a traceback.
    signal(SIGINT, SIG_DFL)
    signal(SIGALRM, SIG_DFL)
    pthread_sigmask(SIG_UNBLOCK, {SIGALRM})
    age = process_age()
    if age > LONGEST_START_S:
        age = 0.0
    left_s = deadline(started_wall=time.time() - age, started=-age, budget_s=DEFAULT_BUDGET_S, every_s=DEFAULT_EVERY_S)
    try:
        # chain: after the dump run the default action, which ends the process
        faulthandler.register(SIGALRM, all_threads=True, chain=True)
    except (ValueError, OSError, AttributeError, RuntimeError):  # a closed or unusual stderr: end without stacks
        faulthandler.unregister(SIGALRM)
    stand_at(given_deadline(time.monotonic() + left_s) + PAST_DEADLINE_S)
    return age


def stand_at(instant: float) -> None:
    """Move the end of this process to *instant* of the monotonic clock."""
    setitimer(ITIMER_REAL, max(0.001, instant - time.monotonic()), STRIKE_AGAIN_S)


def given_deadline(otherwise: float) -> float:
    """The deadline that a lingering tick gave this one, if it did and if it is earlier than *otherwise*."""
    return otherwise if _given is None else min(otherwise, max(_given, time.monotonic() + LEAST_LEFT_S))


def give(until: float) -> None:
    """Let this process end at *until*, whatever it becomes until then."""
    global _given
    _given = until


def is_given() -> bool:
    """Whether a lingering tick started this one."""
    return _given is not None


def open_standard_streams() -> list[int]:
    """Open /dev/null on descriptors 0 to 2 where the caller closed them (``>&-``); return which it opened.

    Otherwise the next file opened, the database or the log, would get such a number, and prints would go into it.
    """
    opened = []
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
        opened.append(descriptor)
    os.close(descriptor)
    return opened


def deadline(*, started_wall: float, started: float, budget_s: float, every_s: float) -> float:
    """When a tick must be done, on the clock of *started* (monotonic seconds).

    Start + budget. If it started within 10 s after a multiple of *every_s*, as cron's ticks do, at the latest 2 s
    before the next multiple. A tick started by hand in mid-minute has its full budget: overlapping another tick is
    harmless. *started_wall* is the same start in seconds since 1970.
    """
    into = started_wall % every_s
    if into <= 10:
        budget_s = min(budget_s, every_s - into - 2)
    return started + budget_s
