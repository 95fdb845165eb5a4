"""Processes that handlers in threads leave behind: reported, not killed. ``isolation: process`` does more.

We cannot know which thread started a process, nor whether it is meant to go on. So a tick names them in the log when it
ends, and leaves them to the reader.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

PR_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h
# These end with this process: our own, and the helpers of the standard library.
OURS: Final = (
    "cronjobs/engine/execution/launcher.py",
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
)

OUR_PROCESSES: Final[set[int]] = set()  # of extras: they have a time limit and are no handler's


def keep_orphans(on: bool = True) -> None:
    """Become the parent of processes that handlers daemonise, so that a tick can name them at its end.

    By PR_SET_CHILD_SUBREAPER.

    Not *on*: stop being it, in a process that lives on after a tick.
    """
    if sys.platform.startswith("linux"):
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def left_behind(but: Collection[int]) -> list[str]:
    """The living children of this process except *but*, "sleep (pid 7)"; empty where there is no /proc."""
    found = []
    with suppress(OSError):
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal() and int(entry.name) not in but and int(entry.name) not in OUR_PROCESSES:
                leftover = _child(int(entry.name))
                if leftover is not None:
                    found.append(leftover)
    return found


def _child(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        head, _, rest = stat.rpartition(")")
        state, parent = rest.split()[:2]
        if int(parent) != os.getpid() or state in "ZX":
            return None
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except (OSError, ValueError):  # it is gone
        return None
    return None if any(word in command for word in OURS) else f"{head.partition('(')[2]} (pid {pid})"
