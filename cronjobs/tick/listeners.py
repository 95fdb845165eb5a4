"""Who hears of one job that runs outside a tick: the log, and the pings of its schedule."""

from __future__ import annotations

from cronjobs.alerts.pings import FLUSH_S, Pings
from cronjobs.config.settings import Settings
from cronjobs.tick.log import Log


class Listeners:
    """Give ``pings.started`` and ``pings.ended`` to the run, ``emit`` to its loop; ``flush`` when it is over."""

    def __init__(self, settings: Settings) -> None:
        log = Log(settings.log).write
        self.pings = Pings(settings, log)
        self.emit = self.pings.listening(log)

    def flush(self) -> None:
        self.pings.flush(FLUSH_S)
