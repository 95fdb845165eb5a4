"""Find processes that handlers in threads leave behind.

We report these processes, but do not kill them, because we cannot know which thread started a process, nor whether it
is meant to keep running. A tick lists them in the log when it ends, and a person decides what to do about them. (With
``isolation: process``, the launcher would kill them.)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from cronjobs.engine.host.identity import LAUNCHER

PR_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h
# Helper processes of cronjobs and of the standard library, by a part of their command line. They end with this process.
OURS: Final = (LAUNCHER, "multiprocessing.resource_tracker", "multiprocessing.forkserver")

# The pids of processes that extras started. Each of these processes has a time limit of its own.
OUR_PROCESSES: Final[set[int]] = set()


def keep_orphans(on: bool = True) -> None:
    """Become the parent of processes that handlers daemonise, so that a tick can list them at its end.

    This sets PR_SET_CHILD_SUBREAPER. A process that outlives its tick calls this function with *on* False, so that it
    no longer becomes the parent of such processes.
    """
    if sys.platform.startswith("linux"):
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def left_behind(but: Collection[int]) -> list[str]:
    """Return the living children of this process except *but*, each as "sleep (pid 7)". Without /proc, return none."""
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
    # The process has ended in the meantime, or belongs to another user.
    except (OSError, ValueError):
        return None
    return None if any(word in command for word in OURS) else f"{head.partition('(')[2]} (pid {pid})"
