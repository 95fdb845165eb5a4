"""The hook of alerts in ticks and long-job processes: look for findings, store them, and send the due messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cronjobs import events
from cronjobs.clock import SYSTEM
from cronjobs.contrib.alerts import statements as store
from cronjobs.contrib.alerts import texts
from cronjobs.contrib.alerts.deliver import CHANNEL_S, LEAST_S, deliver
from cronjobs.engine.config.settings import AlertChannel, Settings
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store.job_types import remembered, runnable_types
from cronjobs.engine.tick.extras import Hook, RunSummary
from cronjobs.engine.tick.mail_throttle import Alarm, away_name
from cronjobs.errors import ConfigError, CronjobsError, DatabaseBusy

LEAST_LEFT_S: Final = 3.0  # a look needs this much time left in the tick
# Sending stops this long before the tick must end, so that messages can still be marked as sent or failed.
LEFT_FOR_MARKS_S: Final = 1.0
OUTAGE_TICKS: Final = 2  # if no tick began for longer than this many ticks, ticks were away
AWAY: Final = "database"  # the name for a database outage in the keys findings: and ignore: of a channel
UNUSABLE: Final = "config"  # the name for an unusable configuration in the keys findings: and ignore:
DATABASE_TROUBLE: Final = 4  # the exit code if the database cannot be reached or used


class AlertHook(Hook):
    """Looks for findings when the tick writes its row, or beside the work if the last tick had no time to look."""

    _early: threading.Thread | None = None

    def before_work(self) -> None:
        seen = self.context.seen
        if seen and is_overdue(seen.look_at, seen.last_tick_at, seen.now, self.context.settings.run.every):
            # Look in a thread, so that jobs run while the look waits for the network.
            self._early = threading.Thread(target=self.look_early, name="cronjobs-alerts-early", daemon=True)
            self._early.start()

    def look_early(self) -> None:
        self._alert(None, self.context.deadline, due=True, anyway=False)

    def wants_handlers(self) -> bool:
        """Whether a look is due and needs a process that has loaded the handlers."""
        seen = self.context.seen
        if seen is None or not self.context.go_on():
            return False
        with self.context.database.read() as connection:
            if store.open_of(connection, self.context.identity.host):
                return True
            return seen.look_due and runnable_types(connection, remembered(self.context.settings.run.every)) is None

    def end(self, summary: RunSummary) -> None:
        if self._early is not None:
            self._early.join()
        seen = self.context.seen
        if seen is not None:
            self._alert(summary.types, summary.until, due=seen.look_due, anyway=summary.news)
        elif summary.news and _channels(self.context.settings):
            self._guarded(lambda: self._look_and_send(None, self._left_until(summary.until), anyway=True))

    def _left_until(self, until: float) -> Callable[[], float]:
        context = self.context
        return lambda: until - context.clock.monotonic() - LEFT_FOR_MARKS_S if context.go_on() else 0.0

    def _alert(self, types: JobTypes | None, until: float, *, due: bool, anyway: bool) -> None:
        """Look if a look is *due*, *anyway* is true, or an open finding can end only on this host. Then send messages.

        If the look is only *due* and another process is looking, leave the look to that process. Stop at *until*, a
        monotonic instant.
        """
        left_s = self._left_until(until)

        def look_if_due() -> None:
            if left_s() < LEAST_LEFT_S:
                return
            alert_outage_over(self.context.settings, self.context.clock.now(), left_s())
            with self.context.database.read() as connection:
                ours = store.open_of(connection, self.context.identity.host)
            if due or anyway or ours:
                self._look_and_send(types, left_s, anyway=anyway or ours)

        self._guarded(look_if_due)

    def _guarded(self, do: Callable[[], None]) -> None:
        try:
            do()
        except DatabaseBusy:
            return  # the next tick will look
        except CronjobsError as error:
            self.context.emit(events.alerts_failed(str(error)))
        except Exception as error:
            self.context.emit(events.alerts_failed(f"{type(error).__name__}: {error}"))

    def _look_and_send(self, types: JobTypes | None, left_s: Callable[[], float], *, anyway: bool) -> None:
        # Import here: most ticks do not need the judging code.
        from cronjobs.contrib.alerts.alert_rounds import Alerting

        context = self.context
        alerting = Alerting(
            context.settings, context.database, context.identity.host, str(context.identity), context.emit
        )
        if alerting.look(types, anyway=anyway, has_time=lambda: left_s() >= LEAST_LEFT_S):
            alerting.send(left_s)


hook = AlertHook


def is_overdue(look_at: datetime | None, last_tick_at: datetime | None, now: datetime, every: timedelta) -> bool:
    """Whether the last tick had no time to look. After an outage this is False, because the work ends most findings.

    *look_at* is None if no tick has looked yet. *last_tick_at* is None in the first tick.
    """
    if last_tick_at is None or now - last_tick_at > OUTAGE_TICKS * every:
        return False
    return look_at is None or now - look_at > every


# --- while no tick of this host can start -----------------------------------------------------------------------------


def not_started(settings: Settings, error: CronjobsError, until: float) -> None:
    """Report through each channel that the database or the configuration kept a tick from starting.

    Stop at *until*, a monotonic instant. Each host reports the outage for itself: at once, then hourly, then daily.
    """
    if error.exit_code == DATABASE_TROUBLE:
        _alert_outage(settings, AWAY, texts.away(str(error)), until)
    elif isinstance(error, ConfigError):
        _alert_outage(settings, UNUSABLE, texts.unusable(str(error)), until)


def _alert_outage(settings: Settings, kind: str, text: str, until: float) -> None:
    now, alarm = SYSTEM.now(), _alarm(settings.file)
    left_s = until - SYSTEM.monotonic() - LEFT_FOR_MARKS_S
    if left_s < LEAST_S:
        return
    channels = _channels(settings)
    due = [each.name for each in channels.values() if each.only.asks_for(kind) and alarm.is_due(each.name, now)]
    message = texts.note(text, settings, Identity.here().host, now)
    for name, failed in deliver(dict.fromkeys(due, message), channels, settings.folder, min(CHANNEL_S, left_s)):
        if failed is None:
            alarm.worth_mailing(name, now)  # record only what was sent, so that the next tick sends the rest


def alert_outage_over(settings: Settings, now: datetime, left_s: float) -> None:
    """Report the end of this host's outage to the channels that got its alert."""
    alarm = _alarm(settings.file)
    causes, channels = alarm.causes(), _channels(settings)
    told = [name for name in channels if name in causes]
    if not told:
        return
    message = texts.note(texts.back(), settings, Identity.here().host, now)
    for name, failed in deliver(dict.fromkeys(told, message), channels, settings.folder, min(CHANNEL_S, left_s)):
        if failed is None:
            alarm.forget(name)


def _channels(settings: Settings) -> Mapping[str, AlertChannel]:
    assert settings.alerts is not None  # DOORS opens this module only for files with ``alerts:``
    return settings.alerts.channels


def _alarm(file: Path) -> Alarm:
    return Alarm(file, name=away_name(file))
