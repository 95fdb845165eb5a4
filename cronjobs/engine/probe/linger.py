"""A lingering tick: it stays until its budget is used.

This tick queries the database at the interval that ``run.linger`` gives, and starts a full tick when work is due.

The full tick is a separate process, so this process never loads slow modules or user code.
"""

from __future__ import annotations

import os
import sys
import time
from _signal import SIG_DFL, SIG_IGN, SIGALRM, SIGHUP, SIGINT, SIGTERM, getsignal, signal  # type: ignore[import-not-found]

from cronjobs.engine.probe import kernel_facts, state_files, timer
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
# Cron mails this text after the stacks that the full tick printed when the kernel's timer fired.
KILLED = (
    b"cronjobs: the stacks above are of a full tick that was still at work 1 s after its time was up, and was killed. "
    b"Later ticks run its jobs. If no handler of yours is in the stacks, the host is too busy to start ticks in time.\n"
)
# The timer of this process fires this much later than the timer of a full tick that this process started.
AFTER_CHILD_S = 0.8
# These signals ask this process to end.
ASKING = (SIGTERM, SIGINT, SIGHUP)
# If another process is rewriting the file of our line, wait for it this often, and this long each time.
TRIES = 50
PAUSE_S = 0.01
# In the last field of our line, this separates a random text and when the tick began.
BEGAN = "-"


def stay_here(
    look: Callable[[], str | None], inputs: Inputs, arguments: Sequence[str], *, begun: float, idle: bool, place: str
) -> int:
    """Stay until the tick that began at *begun* must end, and return the exit code.

    *idle* is True if the first look found nothing to do. *place* is the beginning of this process's ``locked_by``.
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
    trace = Trace(inputs["unreported"], place, time.time() - (now - begun))
    trace.leave()
    try:
        return stay(
            look,
            lambda: full_tick(arguments, until),
            found=None if idle else "?",
            until=until,
            room_s=max(LEAST_S, min(START_TIMES * (now - begun), MOST_SHARE * (until - now))),
            poll_s=float(inputs["linger_s"]),
            monotonic=time.monotonic,
            sleep=trace.sleep,
        )
    finally:
        trace.remove()


class Trace:
    """This process's line in the file of unreported ticks (``tick.unreported``).

    This process may have no row in the database. If it is killed, the next tick finds the line and records a row for
    it. The last field of the line ends with when this tick began, in seconds since 1970.
    """

    def __init__(self, name: str, place: str, began: float) -> None:
        pid = os.getpid()
        started = kernel_facts.process_started(pid) or "0"
        self._name = name
        self._line = f"{place}{pid}:{started}:{os.urandom(6).hex()}{BEGAN}{int(began)}\n".encode(errors="replace")
        self._folder: int | None = None

    def leave(self) -> None:
        """Add the line. If it cannot be stored, this tick lingers all the same."""
        try:
            self._folder = state_files.open_folder(state_files.folder_here())
            state_files.put(self._folder, self._name, os.O_CREAT | os.O_APPEND, self._line)
        except OSError:
            self._folder = None

    def remove(self) -> None:
        """Remove the line, and keep the lines of other processes."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        for _ in range(TRIES):
            lines: list[bytes] = []
            try:
                lines = (state_files.take(folder, self._name) or b"").splitlines(keepends=True)
                if left := b"".join(line for line in lines if line != self._line):
                    state_files.put(folder, self._name, os.O_CREAT | os.O_APPEND, left)
            except OSError:
                pass
            # If our line is not in the file, another process has taken the lines and is about to put ours back.
            if self._line in lines:
                break
            time.sleep(PAUSE_S)

    def sleep(self, seconds: float) -> None:
        """Sleep. If a signal asks this process to end, remove the line first, because then nobody has killed it.

        A signal that arrives during a look ends this process at once and leaves the line, because a Python handler
        would wait for a server that does not answer.
        """
        before = _listening(self._end)
        try:
            time.sleep(seconds)
        finally:
            _restore(before)

    def _end(self, number: int, _frame: object) -> None:
        self.remove()
        signal(number, SIG_DFL)
        os.kill(os.getpid(), number)


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

    before = _listening(pass_on)
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
        _restore(before)
    ended = os.waitstatus_to_exitcode(status)
    code = 128 - ended if ended < 0 else ended
    if ended == -SIGALRM:
        os.write(2, KILLED)
    return 128 + asked[-1] if asked and code in GOES_ON else code


def _listening(handler: Callable[[int, object], None]) -> dict[int, object]:
    """Call *handler* for the signals that ask this process to end. Return their previous handlers."""
    # A signal may be ignored, for example because nohup sets SIG_IGN. Keep ignoring it.
    return {number: signal(number, handler) for number in ASKING if getsignal(number) != SIG_IGN}


def _restore(before: dict[int, object]) -> None:
    for number, handler in before.items():
        signal(number, SIG_DFL if handler is None else handler)
