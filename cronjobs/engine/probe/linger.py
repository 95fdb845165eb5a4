"""A tick that stays alive for its minute.

It queries the database every second, and starts a full tick when there is work.

The full tick is a separate process. So this process never loads slow modules or user code.
"""

from __future__ import annotations

import os
import sys
import time
from _signal import SIG_DFL, SIG_IGN, SIGHUP, SIGINT, SIGTERM, getsignal, signal  # type: ignore[import-not-found]

from cronjobs.engine.probe import timer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cronjobs.engine.probe.inputs import Inputs

LEAST_S = 2.0  # with less time left in the minute, a full tick could not start any job
FIRST_PAUSE_S = 2.0  # before a full tick retries the work that the last one left; each further pause is twice as long
LONGEST_PAUSE_S = 16.0
GOES_ON = (0, 1)  # 1: a job died; after any other exit code, this tick ends
SAME_SIGNAL_S = 1.0
AFTER_CHILD_S = 0.8  # how much later this process is killed than a full tick that it started


def stay_here(
    look: Callable[[], str | None], inputs: Inputs, arguments: Sequence[str], *, begun: float, idle: bool
) -> int:
    """Stay until the tick that began at *begun* must end, and return the exit code.

    *idle* says whether the first look found nothing to do.
    """
    now = time.monotonic()
    until = timer.deadline(
        started_wall=time.time() - (now - begun),
        started=begun,
        budget_s=float(inputs["budget_s"]),
        every_s=float(inputs["every_s"]),
    )
    timer.give(until)  # this deadline also holds if no process can be started, and this one becomes the full tick
    timer.stand_at(until + timer.PAST_DEADLINE_S + AFTER_CHILD_S)
    return stay(
        look,
        lambda: full_tick(arguments, until),
        found=None if idle else "?",
        until=until,
        poll_s=float(inputs["linger_s"]),
        monotonic=time.monotonic,
        sleep=time.sleep,
    )


def stay(
    look: Callable[[], str | None],
    run: Callable[[], int],
    *,
    found: str | None,
    until: float,
    poll_s: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], object],
) -> int:
    """Look every *poll_s* seconds, and *run* a full tick if there is work. Return the exit code.

    If a full tick leaves work undone (a paused queue, a limit that is reached), the pauses before the next full tick
    grow until something new is found.
    """
    code = 0
    left_undone: str | None = None
    again_at, pause_s = monotonic(), FIRST_PAUSE_S
    while True:
        if found is not None and until - monotonic() >= LEAST_S and (found != left_undone or monotonic() >= again_at):
            pause_s = FIRST_PAUSE_S if found != left_undone else min(2 * pause_s, LONGEST_PAUSE_S)
            ended = run()
            if ended not in GOES_ON:
                return ended
            code = code or ended
            left_undone, again_at = look(), monotonic() + pause_s
        if until - monotonic() <= poll_s:
            return code
        sleep(poll_s)
        found = look()
        if found is None:
            left_undone = None


def full_tick(arguments: Sequence[str], until: float) -> int:
    """Run this command line as a full tick that ends at *until*. Return its exit code, or 128 + n for signal n.

    Signals that ask this process to end are passed on to the full tick.
    """
    asked: list[int] = []
    asked_at = 0.0
    child = 0

    def pass_on(number: int, _frame: object) -> None:
        nonlocal asked_at
        # A process group often gets a signal twice. Do not pass the second one on: it would cut the full tick's grace
        # period short.
        again = number in asked and time.monotonic() - asked_at < SAME_SIGNAL_S
        asked.append(number)
        if child and not again:
            asked_at = time.monotonic()
            try:
                os.kill(child, number)
            except ProcessLookupError:  # the full tick has just exited
                pass

    before = {}
    for number in (SIGTERM, SIGINT, SIGHUP):
        if getsignal(number) != SIG_IGN:  # nohup, for example, sets SIG_IGN
            before[number] = signal(number, pass_on)
    # -P: do not import from the working directory, unless this process does.
    safe = () if getattr(sys.modules["__main__"], "__spec__", None) else ("-P",)
    argv = [sys.executable, *safe, "-m", "cronjobs", *arguments]
    environ = {**os.environ, timer.UNTIL: f"{until:.3f}"}
    try:
        # The full tick gets its own process group, so that a signal to our group reaches it only once, from us.
        child = os.posix_spawn(sys.executable, argv, environ, setpgroup=0)
        if asked:
            os.kill(child, asked[-1])
        _, status = os.waitpid(child, 0)
    finally:
        for number, handler in before.items():
            signal(number, SIG_DFL if handler is None else handler)
    ended = os.waitstatus_to_exitcode(status)
    code = 128 - ended if ended < 0 else ended
    return (code or 128 + asked[-1]) if asked else code
