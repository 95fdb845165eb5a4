"""What alerts do beside a tick, or beside a job's own process: look, keep the findings, and send what is due."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cronjobs import events
from cronjobs.clock import SYSTEM
from cronjobs.contrib.alerts import texts
from cronjobs.contrib.alerts.deliver import CHANNEL_S, LEAST_S, deliver
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store import alerts as store
from cronjobs.engine.store.job_types import remembered, runnable_types
from cronjobs.engine.tick.extras import Hook, Over
from cronjobs.engine.tick.mail_throttle import Alarm, away_name
from cronjobs.errors import CronjobsError, DatabaseBusy

LEAST_LEFT_S: Final = 3.0  # of the tick, to look
LEFT_FOR_MARKS_S: Final = 1.0
OVERDUE_TICKS: Final = 2  # that had no time left to look: the next one looks before its work
OVERDUE_SHARE: Final = 0.25  # of that tick; more of a short one, in which a look would not fit into it
AWAY: Final = "database"  # what a channel's findings: and ignore: call it
DATABASE_TROUBLE: Final = 4  # exit code


class AlertHook(Hook):
    """Looks when the tick's row is written, or while the work begins if the ticks before had no time to."""

    _early: threading.Thread | None = None

    def before_work(self) -> None:
        seen = self.beside.seen
        if seen and is_overdue(seen.look_at, seen.last_tick_at, seen.now, self.beside.settings.run.every):
            # In a thread of its own, as it waits for the network; the work goes on meanwhile.
            self._early = threading.Thread(target=self.look_early, name="cronjobs-alerts-early", daemon=True)
            self._early.start()

    def look_early(self) -> None:
        until = early_until(self.beside.clock.monotonic(), self.beside.deadline)
        self._alert(None, until, due=True, anyway=False)

    def wants_handlers(self) -> bool:
        """Whether a look is due that only a process with the handlers can do."""
        seen = self.beside.seen
        if seen is None or not self.beside.go_on():
            return False
        with self.beside.database.read() as connection:
            if store.open_of(connection, self.beside.identity.host):
                return True
            return seen.look_due and runnable_types(connection, remembered(self.beside.settings.run.every)) is None

    def end(self, over: Over) -> None:
        if self._early is not None:
            self._early.join()
        seen, alerts = self.beside.seen, self.beside.settings.alerts
        if seen is not None:
            self._alert(over.types, over.until, due=seen.look_due, anyway=over.news)
        elif over.news and alerts is not None and alerts.channels:
            self._guarded(lambda: self._look_and_send(None, self._left_until(over.until), anyway=True))

    def _left_until(self, until: float) -> Callable[[], float]:
        beside = self.beside
        return lambda: until - beside.clock.monotonic() - LEFT_FOR_MARKS_S if beside.go_on() else 0.0

    def _alert(self, types: JobTypes | None, until: float, *, due: bool, anyway: bool) -> None:
        """Look, if that is *due* (and no other host does) or *anyway*, and send, *until* then.

        It looks, too, if a finding is open that only this host can end.
        """
        left_s = self._left_until(until)

        def look_if_due() -> None:
            if left_s() < LEAST_LEFT_S:
                return
            tell_back(self.beside.settings, self.beside.clock.now(), left_s)
            with self.beside.database.read() as connection:
                ours = store.open_of(connection, self.beside.identity.host)
            if due or anyway or ours:
                self._look_and_send(types, left_s, anyway=anyway or ours)

        self._guarded(look_if_due)

    def _guarded(self, do: Callable[[], None]) -> None:
        try:
            do()
        except DatabaseBusy:
            return  # the next tick looks
        except CronjobsError as error:
            self.beside.emit(events.alerts_failed(str(error)))
        except Exception as error:
            self.beside.emit(events.alerts_failed(f"{type(error).__name__}: {error}"))

    def _look_and_send(self, types: JobTypes | None, left_s: Callable[[], float], *, anyway: bool) -> None:
        from cronjobs.contrib.alerts.looking import Alerting  # and what judges health, of which most ticks need nothing

        beside = self.beside
        alerting = Alerting(beside.settings, beside.database, beside.identity.host, str(beside.identity), beside.emit)
        if alerting.look(types, anyway=anyway):
            alerting.send(left_s)


hook = AlertHook


def is_overdue(look_at: datetime | None, last_tick_at: datetime | None, now: datetime, every: timedelta) -> bool:
    """Whether ticks come, and none has had the time to look. After an outage the work goes first: it mends a lot.

    *look_at* None: no tick has looked yet; *last_tick_at* None: none was before this one.
    """
    if last_tick_at is None or now - last_tick_at > OVERDUE_TICKS * every:
        return False
    return look_at is None or now - look_at > OVERDUE_TICKS * every


def early_until(now: float, deadline: float) -> float:
    """When a look before the work has to be done, by the monotonic clock."""
    share_s = max(OVERDUE_SHARE * (deadline - now), LEAST_LEFT_S + LEFT_FOR_MARKS_S)
    return min(now + share_s, deadline)


# --- while the database is away ---------------------------------------------------------------------------------------


def not_started(settings: Settings, error: CronjobsError, until: float) -> None:
    """Report a tick that did not begin for the database, by each channel, until that instant of the monotonic clock.

    The state is this host's own, so each host reports it: at once, then hourly, then daily.
    """
    if error.exit_code == DATABASE_TROUBLE:
        _tell_away(settings, str(error), until)


def _tell_away(settings: Settings, error: str, until: float) -> None:
    now, alarm = SYSTEM.now(), _alarm(settings.file)
    left_s = until - SYSTEM.monotonic() - LEFT_FOR_MARKS_S
    if left_s < LEAST_S:
        return
    untold = [name for name in _channels(settings) if alarm.worth_telling(name, now)]
    message = texts.note(texts.away(error), settings, Identity.here().host, now)
    for name, failed in _deliver(untold, message, settings, left_s):
        if failed is not None:
            alarm.forget(name)  # the next tick tries again


def tell_back(settings: Settings, now: datetime, left_s: Callable[[], float]) -> None:
    """Send "the database is back" to the channels that got this host's outage alert."""
    alarm = _alarm(settings.file)
    told = alarm.causes()
    channels = [name for name in _channels(settings) if name in told]
    if not channels or left_s() < LEAST_S:
        return  # the next tick that looks tries again
    message = texts.note(texts.back(), settings, Identity.here().host, now)
    for name, failed in _deliver(channels, message, settings, left_s()):
        if failed is None:
            alarm.forget(name)


def _deliver(
    names: Sequence[str], message: texts.Message, settings: Settings, left_s: float
) -> Iterator[tuple[str, str | None]]:
    assert settings.alerts is not None
    return deliver(dict.fromkeys(names, message), settings.alerts.channels, settings, min(CHANNEL_S, left_s))


def _channels(settings: Settings) -> list[str]:
    """The names of those that are told of the database."""
    found = settings.alerts.channels.values() if settings.alerts is not None else ()
    return [
        each.name
        for each in found
        if AWAY not in each.only.ignore and (each.only.findings is None or AWAY in each.only.findings)
    ]


def _alarm(file: Path) -> Alarm:
    return Alarm(file, name=away_name(file))
