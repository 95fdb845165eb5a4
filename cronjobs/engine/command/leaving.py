"""How a command ends its process: output is flushed, exit callbacks have run, and none of that takes long.

By ``os._exit``: the interpreter's own way out joins threads and processes that a handler left behind. Under load that
took longer than what is left of a tick whose time is up, which then ended by the timer (142) with all its work done.
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

LEAVING_S: Final = 5.0  # for exit callbacks, unless a tick must end sooner
BEFORE_TIMER_S: Final = 0.3  # to be gone with the right code before the timer strikes
_NAME: Final = "cronjobs-leaving"


def leave(code: int, *, stuck: bool) -> NoReturn:
    """End the process with *code*, whatever threads and processes still run and whatever happened to stdout.

    *stuck*: a handler still runs, so there is no time for anything else.
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
    """Become the program that waits for a tick's long jobs. Returns only if there is no memory for it."""
    from cronjobs.engine.tick import wait_for_long_jobs

    flush()
    deadline.arm().watchdog.dismiss()
    with suppress(OSError):  # in that case the processes go on by themselves
        wait_for_long_jobs.stay_for(processes, config, code, count_dead=count_dead)


def flush() -> None:
    """Flush what was printed. Ignore a stream that accepts nothing any more."""
    for number, stream in ((1, sys.__stdout__), (2, sys.__stderr__)):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            # A reader that left, a full disk: results are recorded, and the interpreter must not stumble over it.
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def end_anyway(code: int) -> None:
    """From here on, an exit callback that hangs, or a pipe that nobody reads, does not change the exit code."""
    if any(thread.name == _NAME for thread in threading.enumerate()):
        return
    left_s = max(0.05, min(LEAVING_S, deadline.left_s() - BEFORE_TIMER_S))

    def end() -> None:
        sleep(left_s)
        os._exit(code)

    with suppress(RuntimeError):  # no thread can be started: the timer must do
        threading.Thread(target=end, name=_NAME, daemon=True).start()


def forget_children() -> None:
    """Forget child processes: multiprocessing's exit callback would wait for every one that nobody joined.

    They were reported and may go on. It ends daemons itself.
    """
    process = sys.modules.get("multiprocessing.process")
    children = getattr(process, "_children", None)
    if isinstance(children, set):
        children -= {child for child in children if not child.daemon}


def _flush_files() -> None:
    """Flush the files that user code left open in its modules, as the interpreter would."""
    if not deadline.user_code_ran():  # looking for them costs some milliseconds
        return
    for each in gc.get_objects():
        if type(each) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            with suppress(Exception):
                each.flush()
