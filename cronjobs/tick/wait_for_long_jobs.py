"""``run-due --wait`` after its tick: ``python -m cronjobs.cli.stay``, into which the tick's process turns (exec).

Another program, since a thread that did not end at its time-out must be gone before its lease is; exec ends it, and the
processes of the long jobs are still the children of this one. What waits for hours is small, too.
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

from cronjobs.tick.cron_mail import take_word

ENDING: Final = (signal.SIGTERM, signal.SIGINT)
DEAD: Final = 1  # how cronjobs.long says that its job ended dead
NOT_RECORDED: Final = 4


def stay_for(processes: Sequence[subprocess.Popen[bytes]], config: Path, code: int, *, count_dead: bool) -> NoReturn:
    """Become the program that waits for *processes*; *code* is the tick's.

    What the tick has to say must be said, and its timer be dismissed. Raises OSError if it cannot be done.
    """
    pids = [process.pid for process in processes if process.poll() is None]
    code = _worst(code, [process.returncode for process in processes if process.returncode is not None], count_dead)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until main() is ready for them
    words = [str(config), str(code), str(int(count_dead)), *map(str, pids)]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "cronjobs.tick.wait_for_long_jobs", *words])


def main() -> None:
    config, code, count_dead, *pids = sys.argv[1], *map(int, sys.argv[2:])
    left = list(pids)
    signals: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        """As often as they come: for those processes, too, the second one is in earnest."""
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
        left.remove(pid)  # before it is reaped, and its number may be somebody else's
        ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    code = _worst(code, ends, bool(count_dead))
    for word in take_word(Path(config)):
        with suppress(OSError):
            sys.stderr.write(f"cronjobs: {word}\n")
    sys.exit(128 + signals[-1] if signals and code != NOT_RECORDED else code)


def _worst(code: int, ends: Sequence[int], count_dead: bool) -> int:
    """The tick's exit code with those of its long jobs: 4 before anything else, 1 only where nothing else is."""
    if NOT_RECORDED in ends:
        return NOT_RECORDED
    return code or int(count_dead and DEAD in ends)


if __name__ == "__main__":
    main()
