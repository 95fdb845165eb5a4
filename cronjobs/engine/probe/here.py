"""Ask the kernel about this process, other processes and this host, without importing much."""

from __future__ import annotations

import os
import time

UNKNOWN = "-"


def read(path: str) -> str | None:
    """The text of a file in /proc, or None if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode(errors="replace")
    except OSError:
        return None


def host_name() -> str:
    """The host's name. Containers get a new one each time; CRONJOBS_HOST gives them a fixed one."""
    return (os.environ.get("CRONJOBS_HOST") or os.uname().nodename or "localhost").replace(":", "-")


def boot_id() -> str:
    return (read("/proc/sys/kernel/random/boot_id") or "").strip() or UNKNOWN


def pid_namespace() -> str:
    """Two containers share the host's boot id and count their pids separately."""
    try:
        return os.readlink("/proc/self/ns/pid").removeprefix("pid:").strip("[]")
    except OSError:
        return UNKNOWN


def process_started(pid: int) -> str | None:
    """The kernel's start time of *pid* as an opaque token, or None if it is gone (a zombie counts as gone).

    With the boot id it identifies a process for ever, while a bare pid is reused.
    """
    fields = (read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return None if not fields or fields[0] in "ZX" else fields[19]


def age_of(started: str) -> float:
    """Seconds since *started*, a token of ``process_started``, by a clock that nobody sets. 0.0: it is no token."""
    try:
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK"))
    except (AttributeError, OSError, ValueError):
        return 0.0


def process_age() -> float:
    """Seconds since the kernel started this process. 0.0: /proc does not show it."""
    return age_of(process_started(os.getpid()) or "")
