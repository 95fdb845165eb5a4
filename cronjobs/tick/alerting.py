"""What a tick does for alerts, in spare time: it looks, keeps the findings, and sends what is due. It fails nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from cronjobs import events
from cronjobs.alerts import texts
from cronjobs.alerts.deliver import CHANNEL_S, LEAST_S, deliver
from cronjobs.alerts.pings import Pings
from cronjobs.clock import SYSTEM
from cronjobs.config.settings import Settings
from cronjobs.database.connection import Database
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

    with _failing_nothing(tick.emit):
        if left_s() >= LEAST_LEFT_S:
            tell_back(tick, left_s)
            with tick.database.read() as connection:
                ours = store.open_of(connection, tick.identity.host)
            if due or anyway or ours:
                _look_and_send(
                    tick.settings,
                    tick.database,
                    tick.identity,
                    tick.emit,
                    types,
                    left_s,
                    loaded=loaded or ours,
                    anyway=anyway or ours,
                )


def report_now(settings: Settings, database: Database, until: float, emit: Callable[[events.Event], None]) -> None:
    """Look and send at once, until that instant of the monotonic clock: for a process that has recorded a death.

    It is no tick and loads no handlers. If nobody has loaded them lately, the next tick looks.
    """

    def left_s() -> float:
        return until - SYSTEM.monotonic() - LEFT_FOR_MARKS_S

    if settings.alerts is not None and settings.alerts.channels:
        with _failing_nothing(emit):
            _look_and_send(settings, database, Identity.here(), emit, None, left_s, loaded=False, anyway=True)


@contextmanager
def _failing_nothing(emit: Callable[[events.Event], None]) -> Iterator[None]:
    try:
        yield
    except DatabaseBusy:
        return  # the next tick looks
    except CronjobsError as error:
        emit(events.alerts_failed(str(error)))
    except Exception as error:
        emit(events.alerts_failed(f"{type(error).__name__}: {error}"))


def _look_and_send(
    settings: Settings,
    database: Database,
    identity: Identity,
    emit: Callable[[events.Event], None],
    types: Callable[[], JobTypes] | None,
    left_s: Callable[[], float],
    *,
    loaded: bool,
    anyway: bool,
) -> None:
    from cronjobs.alerts.looking import Alerting  # and what judges health, which pings do without

    alerting = Alerting(settings, database, identity.host, str(identity), emit)
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
    now, alarm = SYSTEM.now(), _alarm(settings)
    left_s = until - SYSTEM.monotonic() - LEFT_FOR_MARKS_S
    if left_s < LEAST_S:
        return
    untold = [name for name in _channels(settings) if alarm.worth_telling(name, now)]
    message = texts.note(texts.away(error), settings, Identity.here().host, now)
    for name, failed in _deliver(untold, message, settings, left_s):
        if failed is not None:
            alarm.forget(name)  # the next tick tries again


def tell_back(tick: TickContext, left_s: Callable[[], float]) -> None:
    """Say that the database is there again, to whom this host has said that it is not."""
    alarm = _alarm(tick.settings)
    told = alarm.causes()
    channels = [name for name in _channels(tick.settings) if name in told]
    if not channels or left_s() < LEAST_S:
        return  # the next tick that looks tries again
    message = texts.note(texts.back(), tick.settings, tick.identity.host, tick.clock.now())
    for name, failed in _deliver(channels, message, tick.settings, left_s()):
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


def _alarm(settings: Settings) -> Alarm:
    return Alarm(settings.file, name=away_name(settings.file))


def _nobody(event: events.Event) -> None:
    """There is no log to write to yet."""
