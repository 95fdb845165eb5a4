"""A command that runs in its own process: what it gets as input, and how it may be stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from cronjobs.model import ExitCodes
from cronjobs.text import CappedText


@dataclass(frozen=True)
class Command:
    """A program to run, and how it may be stopped.

    ``env`` is the whole environment. ``stdin`` is the text for standard input. If the text is empty, standard input is
    /dev/null. ``keep_open`` lists the descriptors that the command inherits. ``max_memory`` is how many bytes of memory
    each of the command's processes may allocate. None means no limit.

    ``grace`` is the time from SIGTERM to SIGKILL. If the runner shuts down, it uses ``shutdown_grace`` instead, unless
    that is None. With ``term_alone``, SIGTERM goes only to the command itself, and the processes that it started get
    SIGTERM after it has ended. With ``leave_running``, processes that the command leaves behind keep running if the
    command ends on its own.

    ``lease`` returns the instant of the monotonic clock at which our lease ends. If this process is frozen at that
    instant, the launcher kills the command. If ``lease`` is None, no lease limits the command. ``on_output`` is called
    with new output, for a person who is watching. If ``on_output`` raises an exception, we end the command. ``output``
    collects output, for progress reports. ``called`` is the name of the process in messages.
    """

    argv: tuple[str, ...]
    folder: Path
    env: Mapping[str, str]
    stdin: bytes
    timeout: timedelta
    grace: timedelta
    exit_codes: ExitCodes = field(default_factory=ExitCodes)
    shutdown_grace: timedelta | None = None
    max_memory: int | None = None
    keep_open: tuple[int, ...] = ()
    term_alone: bool = False
    leave_running: bool = False
    lease: Callable[[], float] | None = None
    on_output: Callable[[str], None] | None = None
    output: CappedText | None = None
    called: str = "the command"

    def grace_for(self, reason: str) -> timedelta:
        match reason:
            # Kill the command at once, because another runner may already be starting the job.
            case "lease lost":
                return timedelta(0)
            case "shutdown":
                return self.shutdown_grace or self.grace
        return self.grace
