"""The holder of a lease: host, boot, pid namespace, process and tick.

With these facts, the holder's own host can prove that the holder has died.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from cronjobs.engine.probe import kernel_facts as kernel
from cronjobs.engine.probe.kernel_facts import UNKNOWN, age_of, process_started

LAUNCHER: Final = "cronjobs/engine/execution/launcher.py"


@dataclass(frozen=True)
class Identity:
    """One tick on one host. ``locked_by`` is its ``str()``: host:boot id:pid namespace:pid:process start:tick."""

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    started: str
    tick: str

    @classmethod
    def here(cls) -> Identity:
        return cls(
            host=kernel.host_name(),
            boot_id=kernel.boot_id(),
            pid_namespace=kernel.pid_namespace(),
            pid=os.getpid(),
            started=process_started(os.getpid()) or "0",
            tick=os.urandom(6).hex(),
        )

    @classmethod
    def parse(cls, locked_by: str) -> Identity | None:
        """Parse ``locked_by``. Return None if cronjobs cannot have written it: plain SQL can write anything."""
        fields = locked_by.split(":")
        if len(fields) != 6 or not fields[3].isascii() or not fields[3].isdecimal() or len(fields[3]) > 10:
            return None
        host, boot_id, pid_namespace, pid, started, tick = fields
        return cls(host, boot_id, pid_namespace, int(pid), started, tick)

    @property
    def place(self) -> str:
        """The prefix of ``locked_by`` for all processes with this host, boot and pid namespace."""
        return f"{self.host}:{self.boot_id}:{self.pid_namespace}:"

    def __str__(self) -> str:
        return f"{self.place}{self.pid}:{self.started}:{self.tick}"


def _read(path: str) -> str:
    return (kernel.read(path) or UNKNOWN).strip()


def is_gone(locked_by: str, here: Identity) -> bool | None:
    """Return whether the process that holds a lease has ended, and also all processes that our launchers ran for it.

    True means that this is proven. False means that one of these processes is still alive. None means that this host
    cannot know: the holder may belong to another host, boot or pid namespace, its name may be unreadable, or /proc may
    hide other users' processes.
    """
    holder = Identity.parse(locked_by)
    if holder is None or _place(holder) != _place(here) or UNKNOWN in _place(holder) or holder.started == "0":
        return None
    now_there = process_started(holder.pid)
    if now_there == holder.started:
        return False
    if now_there is None and _runs_unseen(holder.pid):
        return None
    # /proc is mounted with hidepid, see proc(5). In that case another user's launcher would also be hidden.
    if _read("/proc/1/stat") == UNKNOWN:
        return None
    return not any(_belongs(launcher, now_there) for launcher in _launchers_of(holder.pid))


def age_at_work(locked_by: str, here: Identity) -> float | None:
    """Return the age in seconds of the process that holds a lease.

    Return None if that process is not running, or if this host cannot know that. A stopped process (state T) does not
    count as running, because it may never continue. An earlier tick in this same process does not count either.
    """
    holder = Identity.parse(locked_by)
    if holder is None or holder.pid == here.pid or _place(holder) != _place(here) or UNKNOWN in _place(holder):
        return None
    state = _read(f"/proc/{holder.pid}/stat").rpartition(")")[2].split()
    if process_started(holder.pid) != holder.started or not state or state[0] in "Tt":
        return None
    return age_of(holder.started)


def _place(identity: Identity) -> tuple[str, str, str]:
    # Compare these three facts first: pids of different containers, or from before a reboot, cannot be compared.
    return identity.host, identity.boot_id, identity.pid_namespace


def _runs_unseen(pid: int) -> bool:
    """Return whether any thread of a process may still be running, although its main thread has ended."""
    if _read(f"/proc/{pid}/stat") == UNKNOWN:
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            return True
        return True
    # A killed process has ended only when its last thread has, and a thread may still be in a system call.
    return any(_thread_runs(pid, thread) for thread in _numbers(f"/proc/{pid}/task"))


def _thread_runs(pid: int, thread: int) -> bool:
    fields = _read(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2].split()
    return bool(fields) and fields[0] not in "ZX-"


def _launchers_of(pid: int) -> list[int]:
    """Return the launchers that *pid* started. Each kills everything that its command started, then exits."""
    found = []
    for other in _numbers("/proc"):
        arguments = _read(f"/proc/{other}/cmdline").split("\0")
        script = next((at for at, word in enumerate(arguments) if word.endswith(LAUNCHER)), None)
        if script is not None and str(pid) in arguments[script + 2 :]:
            found.append(other)
    return found


def _belongs(launcher: int, now_there: str | None) -> bool:
    """Return whether the dead process started this launcher. *now_there* is the start time of the process that now has
    the dead one's pid, or None if no process has that pid.
    """
    started = process_started(launcher)
    return started is not None and (now_there is None or int(started) <= int(now_there))


def _numbers(folder: str) -> list[int]:
    try:
        return [int(entry.name) for entry in os.scandir(folder) if entry.name.isdecimal()]
    except OSError:
        return []
