"""The log file that ``log:`` names, and the function that worker threads call to report that a job has started."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cronjobs import events, masking
from cronjobs.clock import SYSTEM
from cronjobs.engine.host.files import open_regular, why_unwritable
from cronjobs.text import visible

if TYPE_CHECKING:
    from cronjobs.engine.execution.attempt import Attempt
    from cronjobs.engine.tick.extras import Extras


class Log:
    """Writes one line per event, as JSON if the file's name ends in .jsonl. An error never stops the tick."""

    def __init__(self, file: Path | None) -> None:
        self._descriptor: int | None = None
        self._json = file is not None and file.suffix == ".jsonl"
        self.fault: str | None = None
        self.unwritable: str | None = None  # in the words of "cronjobs check"
        if file is not None:
            try:
                # Without O_NOFOLLOW, a link in a shared folder could make us append to another file.
                self._descriptor = open_regular(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
                self.unwritable = why_unwritable(file)  # a full disk
            except OSError as error:
                self.unwritable = why_unwritable(file) or error.strerror
            if self.unwritable is not None:
                self.fault = f"log {file} cannot be written: {self.unwritable}"

    def write(self, event: events.Event, traceback: str | None = None) -> None:
        """Add a line for *event*.

        In a text log, *traceback* follows the line, indented. In a JSON log, *traceback* is one of the facts.
        """
        if self._descriptor is None:
            return
        more = {"traceback": traceback} if traceback and self._json else {}
        event = event._replace(facts=masking.hide_in(event.facts | more))
        now = SYSTEM.now()
        line = (
            events.json_line(event, now)
            if self._json
            else f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03}Z {events.line(event)}"
        )
        if traceback and not self._json:
            line += "".join(f"\n    {visible(part)}" for part in masking.hide(traceback).splitlines())
        try:
            left = (line + "\n").encode()
            # On a disk that is nearly full, os.write may write only a part and raise no error.
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            self.fault = f"the log cannot be written: {error.strerror}"
            self._descriptor = None


def start_reporter(write: Callable[[events.Event], None], extras: Extras | None = None) -> Callable[[Attempt], None]:
    """Return the function that a worker's thread calls when an attempt's code starts. *write* must be thread-safe."""

    def started(attempt: Attempt) -> None:
        write(events.job_started(attempt.job, attempt.worker))
        if extras is not None:
            extras.started(attempt.job)

    return started
