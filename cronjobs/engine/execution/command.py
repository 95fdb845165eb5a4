"""A command that runs in a process of its own: its input, and how it may be stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from cronjobs.model import ExitCodes
from cronjobs.text import CappedText


@dataclass(frozen=True)
class Command:
    """A program to run, and how it may be stopped.

    ``env``: the whole environment. ``stdin``: its standard input (b"": /dev/null). ``grace``: from TERM to KILL.

    ``shutdown_grace``: the same when the runner shuts down. None means ``grace``. ``max_memory``: bytes for each of its
    processes. None means no limit. ``keep_open``: descriptors that it inherits. ``term_alone``: SIGTERM goes only to
    the command itself; processes that it started get theirs after it has ended. ``leave_running``: when the command
    ends by itself, the processes it left go on.

    ``lease`` returns until when the lease is ours, on the monotonic clock. If this process is frozen by then, the
    launcher kills the command. None means that no lease limits it. ``on_output`` gets the output as it comes, for a
    person who watches; an exception from it ends the command. ``output`` collects it meanwhile, for progress reports.
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

    def grace_for(self, reason: str) -> timedelta:
        match reason:
            case "lease lost":  # another runner may be starting the job
                return timedelta(0)
            case "shutdown":
                return self.shutdown_grace or self.grace
        return self.grace


class StopRequest(Protocol):
    """``reason`` changes once, at any time, from None to "cancelled", "shutdown", "timeout" or "lease lost"."""

    @property
    def reason(self) -> str | None: ...
