"""Ask the kernel about this process, other processes and this host. This module imports very little."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN = "-"


def read(path: str) -> str | None:
    """Return the content of a file in /proc, or None if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode(errors="replace")
    except OSError:
        return None


def host_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of this host, given *environ*. Without CRONJOBS_HOST, a container gets a new name each time."""
    return (environ.get("CRONJOBS_HOST") or os.uname().nodename or "localhost").replace(":", "-")


def boot_id() -> str:
    return (read("/proc/sys/kernel/random/boot_id") or "").strip() or UNKNOWN


def pid_namespace() -> str:
    """Return the pid namespace of this process. Two containers on one host have the same boot id, but each counts its
    own pids.
    """
    try:
        return os.readlink("/proc/self/ns/pid").removeprefix("pid:").strip("[]")
    except OSError:
        return UNKNOWN


def process_started(pid: int) -> str | None:
    """Return the kernel's start time of process *pid* as an opaque token.

    Return None if the process is gone, or is a zombie. The boot id, the pid and this token together identify a process
    forever. A pid alone may be reused.
    """
    fields = (read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return None if not fields or fields[0] in "ZX" else fields[19]


def age_of(started: str) -> float:
    """Return the seconds since *started*, a token of ``process_started``, or 0.0 if *started* is not a token.

    The seconds are measured by a clock that nobody can set.
    """
    try:
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK"))
    except (AttributeError, OSError, ValueError):
        return 0.0


def process_age() -> float:
    """Return the seconds since the kernel started this process, or 0.0 if /proc does not show when this process
    started.
    """
    return age_of(process_started(os.getpid()) or "")


def waited_for_a_child() -> bool:
    """Return whether this process has waited for a child, as a shell does (``sleep 30; exec cronjobs run-due``)."""
    fields = (read("/proc/self/stat") or "").rpartition(")")[2].split()
    return fields[8:9] not in ([], ["0"])  # cminflt: the page faults of children that were waited for
