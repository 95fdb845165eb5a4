"""The part of ``run-due --wait`` after the tick, whose process replaces itself with this program (exec).

This is a separate program because a thread that ran past its timeout must be gone before its lease ends. The exec ends
such a thread, and the processes of the long jobs remain children of this process. Besides, a process that waits for
hours should use little memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from cronjobs.engine.tick.mail_throttle import take_messages
from cronjobs.events import death_line
from cronjobs.text import visible

ENDING: Final = (signal.SIGTERM, signal.SIGINT)
# A long job's process exits with this code if its job is dead.
DEAD: Final = 1
NOT_RECORDED: Final = 4


def stay_for(processes: Sequence[subprocess.Popen[bytes]], config: Path, code: int, *, count_dead: bool) -> NoReturn:
    """Become the program that waits for *processes*. *code* is the tick's exit code.

    The tick must have printed its output and dismissed its timer. Raises OSError if the exec fails.
    """
    pids = [process.pid for process in processes if process.poll() is None]
    code = _worst(code, [process.returncode for process in processes if process.returncode is not None], count_dead)
    # Block these signals until main() has installed its handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    words = [str(config), str(code), str(int(count_dead)), *map(str, pids)]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "cronjobs.engine.tick.wait_for_long_jobs", *words])


def main() -> None:
    config, code, count_dead, *pids = sys.argv[1], *map(int, sys.argv[2:])
    left = list(pids)
    signals: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        """Pass every signal on, because a second signal makes the processes of long jobs end at once."""
        signals.append(number)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    for number in ENDING:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    ends = []
    for pid in pids:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        # Forget the pid before the process is reaped, because after that another process may get the same pid.
        left.remove(pid)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    code = _worst(code, ends, bool(count_dead))
    lines, ends_of_jobs = take_messages(Path(config))
    deaths = [death_line(event, Path(config)) for event in ends_of_jobs if event.name == "job.dead"]
    for line in [*lines, *(f"a job is dead: {death}" for death in deaths)]:
        with suppress(OSError):
            sys.stderr.write(f"cronjobs: {visible(line)}\n")
    sys.exit(128 + signals[-1] if signals and code != NOT_RECORDED else code)


def _worst(code: int, ends: Sequence[int], count_dead: bool) -> int:
    """Combine the exit codes of the tick and its long jobs. 4 outranks all others, and 1 outranks only 0."""
    if NOT_RECORDED in ends:
        return NOT_RECORDED
    return code or int(count_dead and DEAD in ends)


if __name__ == "__main__":
    main()
