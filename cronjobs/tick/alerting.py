"""What a tick does for alerts, in spare time: it looks, keeps the findings, and sends what is due. It fails nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from cronjobs import events
from cronjobs.alerts import texts
from cronjobs.alerts.deliver import CHANNEL_S, deliver
from cronjobs.alerts.pings import Pings
from cronjobs.clock import SYSTEM
from cronjobs.config.settings import AlertChannel, Settings
from cronjobs.errors import CronjobsError, DatabaseBusy
from cronjobs.host.identity import Identity
from cronjobs.jobs.job_types import JobTypes
from cronjobs.store import alerts as store
from cronjobs.tick.context import TickContext
from cronjobs.tick.mail_throttle import Alarm, away_name

LEAST_LEFT_S: Final = 3.0  # of the tick, to look
LEFT_FOR_MARKS_S: Final = 1.0
OVERDUE_TICKS: Final = 2  # that had no time left to look: the next one looks before its work
AWAY: Final = "database"  # what a channel's findings: and ignore: call it
DATABASE_TROUBLE: Final = 4  # exit code
OVERDUE_SHARE: Final = 0.25  # of that tick


def is_overdue(look_at: datetime | None, last_tick_at: datetime | None, now: datetime, every: timedelta) -> bool:
    """Whether ticks come, and none has had the time to look. After an outage the work goes first: it mends a lot."""
    if look_at is None or last_tick_at is None:
        return False
    return now - look_at > OVERDUE_TICKS * every and now - last_tick_at <= OVERDUE_TICKS * every


def alert(
    tick: TickContext,
    types: Callable[[], JobTypes],
    *,
    loaded: bool,
    due: bool,
    anyway: bool,
    share: float = 1.0,
) -> None:
    """Look, if that is *due* (and no other host does) or *anyway*, and send, within a *share* of the rest of the tick.

    It looks, too, if a finding is open that only this host can end.
    """
    until = tick.clock.monotonic() + share * (tick.deadline - tick.clock.monotonic())

    def left_s() -> float:
        return until - tick.clock.monotonic() - LEFT_FOR_MARKS_S if tick.go_on() else 0.0

    try:
        if left_s() >= LEAST_LEFT_S:
            tell_back(tick, left_s)
            with tick.database.read() as connection:
                ours = store.open_of(connection, tick.identity.host)
            if due or anyway or ours:
                _look_and_send(tick, types, left_s, loaded=loaded or ours, anyway=anyway or ours)
    except DatabaseBusy:
        return  # the next tick looks
    except CronjobsError as error:
        tick.emit(events.alerts_failed(str(error)))
    except Exception as error:
        tick.emit(events.alerts_failed(f"{type(error).__name__}: {error}"))


def _look_and_send(
    tick: TickContext, types: Callable[[], JobTypes], left_s: Callable[[], float], *, loaded: bool, anyway: bool
) -> None:
    from cronjobs.alerts.looking import Alerting  # and what judges health, which pings do without

    alerting = Alerting(tick.settings, tick.database, tick.identity.host, str(tick.identity), tick.emit)
    if alerting.look(types, loaded=loaded, anyway=anyway):
        alerting.send(left_s)


# --- pings ------------------------------------------------------------------------------------------------------------


def pings_of(tick: TickContext) -> Pings:
    pings = Pings(tick.settings, tick.emit)
    pings.tick_started()
    return pings


def end_pings(tick: TickContext) -> None:
    if tick.pings is not None:
        tick.pings.tick_ended(tick.result.exit_code(), tick.result.trouble or "")
        tick.pings.flush(tick.deadline - tick.clock.monotonic())


# --- while the database is away ---------------------------------------------------------------------------------------


def not_started(settings: Settings, error: CronjobsError, until: float) -> None:
    """Report a tick that did not begin: by the tick's ping, and by each channel if it was for the database.

    The state is this host's own, so each host reports it: at once, then hourly, then daily. *until*: of the monotonic
    clock, when this process has to be gone.
    """
    pings = Pings(settings, _nobody)
    pings.tick_ended(error.exit_code, str(error))
    if error.exit_code == DATABASE_TROUBLE:
        _tell_away(settings, str(error), until)
    pings.flush(until - SYSTEM.monotonic())


def _tell_away(settings: Settings, error: str, until: float) -> None:
    now, host = SYSTEM.now(), Identity.here().host
    for channel in _channels(settings):
        left_s = until - SYSTEM.monotonic() - LEFT_FOR_MARKS_S
        if left_s < 1:
            return
        alarm = _alarm(settings)
        if alarm.worth_telling(channel.name, now):
            message = texts.note(texts.away(error), settings, host, now)
            if deliver(channel, message, settings, min(CHANNEL_S, left_s)) is not None:
                alarm.forget(channel.name)  # the next tick tries again


def tell_back(tick: TickContext, left_s: Callable[[], float]) -> None:
    """Say that the database is there again, to whom this host has said that it is not."""
    alarm = _alarm(tick.settings)
    for channel in _channels(tick.settings) if alarm.causes() else ():
        if channel.name in alarm.causes():
            message = texts.note(texts.back(), tick.settings, tick.identity.host, tick.clock.now())
            if left_s() < 1 or deliver(channel, message, tick.settings, min(CHANNEL_S, left_s())) is not None:
                continue  # the next tick that looks tries again
            alarm.forget(channel.name)


def _channels(settings: Settings) -> list[AlertChannel]:
    found = settings.alerts.channels.values() if settings.alerts is not None else ()
    return [
        each
        for each in found
        if AWAY not in each.only.ignore and (each.only.findings is None or AWAY in each.only.findings)
    ]


def _alarm(settings: Settings) -> Alarm:
    return Alarm(settings.file, name=away_name(settings.file))


def _nobody(event: events.Event) -> None:
    """There is no log to write to yet."""
