"""Phrases that explanations share: instants and spans as people read them, who did it, what was paused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronjobs.desk.insight.explain_facts import PauseFacts, TickFacts
from cronjobs.model import in_zone, rough
from cronjobs.text import one_line


class LocalTimes:
    """Instants on the clocks of a zone, with the date only if it differs from that of *about*."""

    def __init__(self, timezone: str, about: datetime) -> None:
        self.timezone, self.zone = timezone, ZoneInfo(timezone)
        self.day = in_zone(about, self.zone).date()

    def full(self, instant: datetime) -> str:
        """ "2026-11-20 02:15 America/New_York (07:15 UTC)"."""
        local, utc = in_zone(instant, self.zone), instant.astimezone(UTC)
        text = f"{local:%Y-%m-%d} {self._of_day(local)} {self.timezone}"
        if self.timezone == "UTC":
            return text
        date = f"{utc:%Y-%m-%d} " if utc.date() != local.date() else ""
        return f"{text} ({date}{_short(utc)} UTC)"

    def time(self, instant: datetime) -> str:
        """ "02:15:04"; on another day "2026-11-21 02:15:04"."""
        local = in_zone(instant, self.zone)
        date = f"{local:%Y-%m-%d} " if local.date() != self.day else ""
        return date + self._of_day(local)

    def dated(self, instant: datetime) -> str:
        local = in_zone(instant, self.zone)
        return f"{local:%Y-%m-%d} {self._of_day(local)}"

    def _of_day(self, local: datetime) -> str:
        first, second = (local.replace(fold=fold).utcoffset() for fold in (0, 1))
        twice = first is not None and second is not None and first > second
        return _short(local) + (f"{local:%z}" if twice else "")


def _short(moment: datetime) -> str:
    return f"{moment:%H:%M}" if not moment.second else f"{moment:%H:%M:%S}"


def late(by: timedelta) -> str:
    return "on time" if by < timedelta(seconds=1) else f"{rough(by)} late"


def name(text: str) -> str:
    return one_line(text, 120)


def who(tick: TickFacts | None) -> str | None:
    """ "a tick of host alpha"; None when no tick is on record."""
    return None if tick is None else f"a tick of host {name(tick.host)}"


def pause(pause: PauseFacts, clock: LocalTimes) -> str:
    """ "everything was paused by ada from … to … (why: deploy)"."""
    what = {"all": "everything", "schedule": "the schedule", "queue": f"queue {name(pause.name)}"}[pause.scope]
    by = f" by {name(pause.by)}" if pause.by else ""
    why = f" (why: {one_line(pause.why, 300)})" if pause.why else ""
    if pause.ended_at is not None:
        return f"{what} was paused{by} from {clock.time(pause.since)} to {clock.time(pause.ended_at)}{why}"
    until = f"until {clock.time(pause.until)}" if pause.until else "until someone resumes it"
    return f"{what} is paused{by} since {clock.time(pause.since)}, {until}{why}"


def capital(text: str | None) -> str:
    return (text or "")[:1].upper() + (text or "")[1:]
