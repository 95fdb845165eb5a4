"""End a command's process: flush output and run exit callbacks, but only for a short time.

The process ends by ``os._exit``, because the interpreter's normal exit waits for threads and processes that a handler
left behind. Under load, that wait took longer than the time that a finished tick had left. The timer then killed the
tick, with exit code 142, although all its work was done.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from cronjobs.clock import sleep
from cronjobs.engine.tick import deadline

if TYPE_CHECKING:
    import subprocess

# Exit callbacks get this much time, or less if a tick must end sooner.
LEAVING_S: Final = 5.0
# Exit this long before the timer would kill the process and change its exit code.
BEFORE_TIMER_S: Final = 0.3
_NAME: Final = "cronjobs-leaving"


def leave(code: int, *, stuck: bool) -> NoReturn:
    """Exit with *code*, whatever threads and processes are still running, and even if stdout is broken.

    If *stuck* is True, a handler is still running, so exit callbacks get no time.
    """
    end_anyway(code)
    flush()
    if not stuck:
        forget_children()
        with suppress(BaseException):
            atexit._run_exitfuncs()
        _flush_files()
        flush()
    os._exit(code)


def stay_for(processes: Sequence[subprocess.Popen[bytes]], config: Path, code: int, *, count_dead: bool) -> None:
    """Replace this process with a program that waits for a tick's long jobs. Returns only if that fails."""
    from cronjobs.engine.tick import wait_for_long_jobs

    flush()
    deadline.arm().watchdog.dismiss()
    # If the program cannot be started, the long jobs continue without a waiting process.
    with suppress(OSError):
        wait_for_long_jobs.stay_for(processes, config, code, count_dead=count_dead)


def flush() -> None:
    """Flush stdout and stderr. Ignore a stream that is closed or full."""
    for number, stream in ((1, sys.__stdout__), (2, sys.__stderr__)):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            # Nobody reads the output, or the disk is full. The results are recorded, so a later flush must not fail.
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def end_anyway(code: int) -> None:
    """Make sure that the process ends with *code*, even if an exit callback hangs or nobody reads a pipe."""
    if any(thread.name == _NAME for thread in threading.enumerate()):
        return
    left_s = max(0.05, min(LEAVING_S, deadline.left_s() - BEFORE_TIMER_S))

    def end() -> None:
        sleep(left_s)
        os._exit(code)

    # If no thread can be started, the kernel's timer still ends the process.
    with suppress(RuntimeError):
        threading.Thread(target=end, name=_NAME, daemon=True).start()


def forget_children() -> None:
    """Make multiprocessing forget its children, because its exit callback would wait for those that nobody joined.

    The log has reported these processes, and they may keep running. Do not forget daemon processes, because
    multiprocessing itself ends them.
    """
    process = sys.modules.get("multiprocessing.process")
    children = getattr(process, "_children", None)
    if isinstance(children, set):
        children -= {child for child in children if not child.daemon}


def _flush_files() -> None:
    """Flush files that user code left open, as the interpreter would on exit."""
    # Skip this if no user code ran, because finding the files takes a few milliseconds.
    if not deadline.user_code_ran():
        return
    for each in gc.get_objects():
        if type(each) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            with suppress(Exception):
                each.flush()
