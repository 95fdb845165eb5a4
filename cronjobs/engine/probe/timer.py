"""Set the tick's time limit, before anything else: a kernel timer that ends the process without running any Python."""

from __future__ import annotations

import faulthandler
import os
import time

# Import only the C part of the signal module. The Python part imports enum, which takes longer than the whole query.
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

from cronjobs.engine.probe.kernel_facts import process_age, waited_for_a_child

DEFAULT_BUDGET_S = 55.0
DEFAULT_EVERY_S = 60.0
PAST_DEADLINE_S = 1.0
# If stderr is a full pipe that nobody reads, faulthandler waits forever while it writes the stacks. But faulthandler
# does not begin a second dump, so a second signal ends the process.
STRIKE_AGAIN_S = 0.2
# A process that has waited for a child, and started longer ago than this, did something else before it exec'ed us
# (``sleep 30; exec cronjobs run-due``, a container's entrypoint). So its start is not the start of the tick.
LONGEST_START_S = 10.0
# A lingering tick sets this variable for its full ticks. The value is their deadline on the monotonic clock.
UNTIL = "CRONJOBS_UNTIL"
LEAST_LEFT_S = 0.5

_given: float | None = None
_found: tuple[float, float] | None = None  # when the age of this process was read (monotonic), and that age


def start() -> None:
    """Start the timer with the default budget, which applies until the tick has read its file."""
    global _given
    # Remove the variable from the environment. Handlers and commands may start other ticks, which must not inherit it.
    try:
        _given = float(os.environ.pop(UNTIL, ""))
    except ValueError:
        _given = None
    open_standard_streams()
    # Before the tick has installed its own signal handler, and after it has removed it, Ctrl-C should print no
    # traceback. So use the default action.
    signal(SIGINT, SIG_DFL)
    signal(SIGALRM, SIG_DFL)
    pthread_sigmask(SIG_UNBLOCK, {SIGALRM})
    age = time.monotonic() - began()
    left_s = deadline(started_wall=time.time() - age, started=-age, budget_s=DEFAULT_BUDGET_S, every_s=DEFAULT_EVERY_S)
    # A tick that needed its whole budget to get here must end by itself, and not by a signal.
    left_s = max(left_s, LEAST_LEFT_S)
    try:
        # ``chain`` means that the default action follows the dump of the stacks, and ends the process.
        faulthandler.register(SIGALRM, all_threads=True, chain=True)
    # stderr is closed or is not a real file, so the process will end without a dump of the stacks.
    except (ValueError, OSError, AttributeError, RuntimeError):
        faulthandler.unregister(SIGALRM)
    stand_at(given_deadline(time.monotonic() + left_s) + PAST_DEADLINE_S)


def began(every_s: float = DEFAULT_EVERY_S) -> float:
    """Return when the tick began, on the monotonic clock. Every call with the same *every_s* returns the same.

    The tick began when the process started, however long a starved or frozen host took to get here. But if *every_s*
    has passed since then, so that the next tick is due, this tick counts as that one.
    """
    global _found
    if _found is None:
        age = process_age()
        _found = time.monotonic(), 0.0 if age > LONGEST_START_S and waited_for_a_child() else age
    read_at, age = _found
    return read_at - age % every_s


def stand_at(instant: float) -> None:
    """Set the *instant* on the monotonic clock at which the kernel kills this process."""
    setitimer(ITIMER_REAL, max(0.001, instant - time.monotonic()), STRIKE_AGAIN_S)


def given_deadline(otherwise: float) -> float:
    """Return *otherwise*, or the deadline that the lingering tick set for this tick, if that deadline is earlier."""
    return otherwise if _given is None else min(otherwise, max(_given, time.monotonic() + LEAST_LEFT_S))


def give(until: float) -> None:
    """Make this process end at *until*, even if it becomes a full tick before that."""
    global _given
    _given = until


def is_given() -> bool:
    """Return whether a lingering tick started this one."""
    return _given is not None


def open_standard_streams() -> list[int]:
    """Open /dev/null for each of descriptors 0 to 2 that the caller has closed (``>&-``).

    Returns the descriptors that were closed. Without this call, the next file that we open, such as the database or the
    log, would get one of these numbers, and printed text would be written into that file.
    """
    opened = []
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
        opened.append(descriptor)
    os.close(descriptor)
    return opened


def deadline(*, started_wall: float, started: float, budget_s: float, every_s: float) -> float:
    """Return when a tick must end, on the clock of *started* (monotonic seconds). This is the tick's start plus its
    budget.

    A tick that started within 10 s after a multiple of *every_s*, as cron's ticks do, must also end 2 s before the next
    multiple. A tick that a person starts in the middle of a minute has its full budget, because it is harmless if it
    overlaps another tick. *started_wall* is the start in seconds since 1970.
    """
    into = started_wall % every_s
    if into <= 10:
        budget_s = min(budget_s, every_s - into - 2)
    return started + budget_s
