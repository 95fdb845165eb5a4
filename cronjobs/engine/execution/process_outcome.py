"""Turn the end of a process into the outcome of its attempt. Pure."""

from __future__ import annotations

import errno
import os
import re
import signal
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from cronjobs.engine.execution.command import Command
from cronjobs.model import (
    CancelledByRequest,
    ExitCodes,
    Failed,
    Interrupted,
    Lost,
    Outcome,
    Released,
    Succeeded,
    TimedOut,
    duration_text,
)
from cronjobs.text import ERROR_LIMIT, one_line

# The most disk space for a command's output, in bytes, if the launcher cannot free the file's middle.
DISK_LIMIT: Final = 1024**3
# With these errors, the host had no process, descriptor, memory or disk space left.
NO_ROOM: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC})


@dataclass
class ProcessEnding:
    """The launcher's reports about a process. The docstring of ``launcher`` describes them."""

    pid: int | None = None
    # What the launcher could not enter or start ("folder" or "command"), and the errno. "late" means that it was too
    # late to start anything. None if the command was started.
    failure: tuple[str, int] | None = None
    # The exit status, or the negative number of a signal. None if no end was reported.
    status: int | None = None
    # True if the launcher sent the command a signal before it ended.
    stopped: bool = False
    signalled: tuple[str, ...] = ()
    left: tuple[str, ...] = ()  # processes that could not be killed

    @property
    def late(self) -> bool:
        return self.failure is not None and self.failure[0] == "late"


def outcome_of_process(command: Command, ending: ProcessEnding, reason: str | None, last_line: str) -> Outcome:
    if ending.failure is not None and not (ending.late and reason is not None):
        return outcome_not_started(command, *ending.failure)
    if ending.status is not None and not ending.stopped:
        return outcome_of_exit(command.exit_codes, ending.status, last_line)
    if reason is None and not ending.stopped:
        said = (
            f"{command.called} was lost: its launcher died without reporting, because somebody killed the launcher or "
            "memory ran out"
        )
        return Failed(sentence(said, last_line), "LauncherDied")
    # If *reason* is None, the launcher stopped the command at its time limit, because this process was frozen or got no
    # CPU time.
    return outcome_of_stop(command, reason or "timeout", ending, last_line)


def outcome_of_exit(codes: ExitCodes, status: int, last_line: str) -> Outcome:
    if status in codes.success:
        return Succeeded()
    if status < 0:
        name = _signal_name(-status)
        hint = " (by hand, or because memory ran out)" if -status == signal.SIGKILL else ""
        return Failed(sentence(f"killed by {name}{hint}", last_line), name, kinds=(name,))
    said, kind = sentence(f"exit status {status}", last_line), f"exit-{status}"
    return Failed(said, kind, permanent=status in codes.permanent, kinds=(kind,))


def outcome_of_stop(command: Command, reason: str, ending: ProcessEnding, last_line: str) -> Outcome:
    still = f", but these could not be killed: {', '.join(ending.left)}" if ending.left else ""
    match reason:
        case "cancelled":
            return CancelledByRequest(sentence(f"cancelled{still}"))
        case "shutdown":
            return Interrupted(sentence(f"interrupted by shutdown{still}"))
        case "lease lost":
            return Lost(sentence(f"the runner lost the lease, so it killed {command.called}{still}"))
        case "too much output":
            said = f"stopped: its output took more than {DISK_LIMIT // 1024**2} MiB of disk{still}"
            return Failed(sentence(said, last_line), "TooMuchOutput")
    killed = ""
    if ending.status == -signal.SIGKILL:
        killed = f", and was killed after a grace of {duration_text(command.grace)}"
    return TimedOut(sentence(f"{timed_out_words(command.timeout)}{killed}{still}", last_line))


def timed_out_words(timeout: timedelta) -> str:
    return f"timed out after {duration_text(timeout)}"


def outcome_not_started(command: Command, where: str, number: int) -> Outcome:
    name, why = command.argv[0], os.strerror(number)
    if where == "late":
        text = "the host was too slow: the lease or the time limit ended before the process could start"
        return Released(sentence(text))
    if number in NO_ROOM:
        return Released(sentence(f"cannot start a process for the command: {why}"))
    if where == "folder":
        return Failed(sentence(f"the folder {command.folder} cannot be entered: {why}"), "StartError")
    match number:
        case errno.ENOENT | errno.ENOTDIR if "/" in name:
            said = f"command not found: {name} (looked up from {command.folder}); if the file exists, check its #! line"
        case errno.ENOENT | errno.ENOTDIR:
            path = command.env.get("PATH", os.defpath)
            place = f"{name} is not on PATH={path}"
            said = f"command not found: {place}; write its full path, or set PATH under the key env"
        case errno.EACCES:
            said = f"command not executable: {name}; use chmod +x, and check the permissions of its folders"
        case errno.ENOEXEC:
            said = f"command not executable: {name} is neither a program nor a script with a #! line"
        case errno.E2BIG:
            said = f"the arguments and environment of {name} are too long for the kernel"
        case _:
            said = f"the command {name} could not be started: {why}"
    return Failed(sentence(said), "CommandNotFound" if number in (errno.ENOENT, errno.ENOTDIR) else "StartError")


def sentence(said: str, last_line: str = "") -> str:
    # An error's limit is in bytes, and a character takes at most four bytes in UTF-8.
    return one_line(f"{said}: {last_line}" if last_line else said, ERROR_LIMIT // 4)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    # Only the first and the last of the real-time signals have a name.
    except ValueError:
        return f"signal {number}"


_COLOURS: Final = re.compile(r"\x1b\[[0-9;:]*m")


def last_line_of(output: str | None) -> str:
    """Return the last line of *output* that is not blank, after its last carriage return and without colours."""
    lines = (line.rstrip().rpartition("\r")[2].strip() for line in reversed((output or "").split("\n")))
    return next((plain for line in lines if (plain := _COLOURS.sub("", line))), "")
