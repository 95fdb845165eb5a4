"""A lingering tick: it stays until its budget is used.

This tick queries the database at the interval that ``run.linger`` gives, and starts a full tick when work is due.

The full tick is a separate process, so this process never loads slow modules or user code.
"""

from __future__ import annotations

import os
import sys
import time
from _signal import SIG_DFL, SIG_IGN, SIGALRM, SIGHUP, SIGINT, SIGTERM, getsignal, signal  # type: ignore[import-not-found]

from cronjobs.engine.probe import timer
from cronjobs.engine.probe.repeated_signals import RepeatedSignals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cronjobs.engine.probe.inputs import Inputs

# With less than LEAST_S left, a full tick could not start any job. On a busy or slow host a full tick needs more time:
# START_TIMES times what this process took for its start and its first look, but at most MOST_SHARE of the time until
# this process must end.
LEAST_S = 2.0
START_TIMES = 12
MOST_SHARE = 0.25
# If a full tick leaves work undone, the next full tick retries it after this pause. Each further pause is twice as
# long.
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 16.0
# The exit codes of a full tick after which this tick continues. 1 means that a job died. 4 means that the database
# failed, so this tick keeps looking until the database answers.
GOES_ON = (0, 1, 4)
# Cron mails this text after the stacks, which the kernel's timer has made the full tick print.
KILLED = (
    b"cronjobs: the stacks above are of a full tick that was still at work 1 s after its time was up, and was killed. "
    b"Later ticks run its jobs. If no handler of yours is in the stacks, the host is too busy to start ticks in time.\n"
)
# The timer of this process fires this much later than the timer of a full tick that this process started.
AFTER_CHILD_S = 0.8


def stay_here(
    look: Callable[[], str | None], inputs: Inputs, arguments: Sequence[str], *, begun: float, idle: bool
) -> int:
    """Stay until the tick that began at *begun* must end, and return the exit code.

    *idle* is True if the first look found nothing to do.
    """
    now = time.monotonic()
    until = timer.deadline(
        started_wall=time.time() - (now - begun),
        started=begun,
        budget_s=float(inputs["budget_s"]),
        every_s=float(inputs["every_s"]),
    )
    # The deadline also applies if no process can be started, and this process becomes the full tick.
    timer.give(until)
    timer.stand_at(until + timer.PAST_DEADLINE_S + AFTER_CHILD_S)
    return stay(
        look,
        lambda: full_tick(arguments, until),
        found=None if idle else "?",
        until=until,
        room_s=max(LEAST_S, min(START_TIMES * (now - begun), MOST_SHARE * (until - now))),
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
    room_s: float,
    poll_s: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], object],
) -> int:
    """Call *look* every *poll_s* seconds, and call *run*, which runs a full tick, if work is due. Return the exit code.

    This process ends at *until*. No full tick starts later than *room_s* seconds before that.

    A full tick may leave work undone, for example because a queue is paused or a limit is reached. Then the pause
    before the next full tick grows until new work is found.
    """
    code = 0
    left_undone: str | None = None
    again_at, pause_s = monotonic(), FIRST_PAUSE_S
    while True:
        if found is not None and until - monotonic() >= room_s and (found != left_undone or monotonic() >= again_at):
            pause_s = FIRST_PAUSE_S if found != left_undone else min(2 * pause_s, LONGEST_PAUSE_S)
            ended = run()
            if ended not in GOES_ON:
                return ended
            code = max(code, ended)
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
    repeated = RepeatedSignals(time.monotonic)
    child = 0

    def pass_on(number: int, _frame: object) -> None:
        asked.append(number)
        # A process group often gets the same signal twice.
        if not repeated.again(number) and child:
            try:
                os.kill(child, number)
            # The full tick has just exited.
            except ProcessLookupError:
                pass

    before = {}
    for number in (SIGTERM, SIGINT, SIGHUP):
        # The signal may be ignored, for example because nohup sets SIG_IGN. Keep ignoring it.
        if getsignal(number) != SIG_IGN:
            before[number] = signal(number, pass_on)
    # With -P, Python does not import from the working directory. Leave -P out only if this process itself imports from
    # there.
    safe = () if getattr(sys.modules["__main__"], "__spec__", None) else ("-P",)
    argv = [sys.executable, *safe, "-m", "cronjobs", *arguments]
    environ = {**os.environ, timer.UNTIL: f"{until:.3f}"}
    try:
        # The full tick gets its own process group, so that a signal to our group reaches it only once, through us.
        child = os.posix_spawn(sys.executable, argv, environ, setpgroup=0)
        if asked:
            os.kill(child, asked[-1])
        _, status = os.waitpid(child, 0)
    finally:
        for number, handler in before.items():
            signal(number, SIG_DFL if handler is None else handler)
    ended = os.waitstatus_to_exitcode(status)
    code = 128 - ended if ended < 0 else ended
    if ended == -SIGALRM:
        os.write(2, KILLED)
    return 128 + asked[-1] if asked and code in GOES_ON else code
