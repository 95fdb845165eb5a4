"""The hook of metrics in ticks. It writes the textfile given in ``metrics:``."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Final

from cronjobs import events
from cronjobs.contrib.metrics import textfile
from cronjobs.contrib.metrics.families import gather
from cronjobs.contrib.metrics.openmetrics import lines_of
from cronjobs.engine.tick.extras import Hook, HookContext, RunSummary
from cronjobs.errors import CronjobsError

LEAST_LEFT_S: Final = 3.0  # with less time than this left in the tick, do not write the file
STALE: Final = timedelta(seconds=150)  # a tick also writes a file older than this before its work


class MetricsHook(Hook):
    def __init__(self, context: HookContext) -> None:
        super().__init__(context)
        self._path = context.settings.metrics.textfile

    def before_work(self) -> None:
        if self._path is not None and self._age(self._path) > STALE:
            self._write(self._path)

    def end(self, summary: RunSummary) -> None:
        if self._path is not None and self.context.seen is not None:
            self._write(self._path)

    def _age(self, path: Path) -> timedelta:
        try:
            return abs(timedelta(seconds=self.context.clock.now().timestamp() - os.lstat(path).st_mtime))
        except OSError:
            return timedelta(0)  # the file does not exist yet; end() will write it

    def _write(self, path: Path) -> None:
        """Write the textfile if there is time. Report a failure as an event."""
        context = self.context
        if not context.go_on() or context.deadline - context.clock.monotonic() < LEAST_LEFT_S:
            return
        try:
            with context.database.read() as connection:
                families = gather(connection, context.settings.limits, context.settings.run.workers)
            textfile.write(path, lines_of(families))
        except CronjobsError as error:
            context.emit(events.metrics_not_written(str(error)))
        except Exception as error:
            said = f"metrics cannot be written to {path}: {type(error).__name__}: {error}"
            context.emit(events.metrics_not_written(said))


hook = MetricsHook
