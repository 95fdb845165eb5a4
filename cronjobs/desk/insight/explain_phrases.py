"""Phrases that explanations share: how late it was, who did it, what was paused."""

from __future__ import annotations

from datetime import timedelta

from cronjobs.desk.insight.explain_facts import PauseFacts, TickFacts
from cronjobs.desk.insight.saying import LocalTimes
from cronjobs.model import rough
from cronjobs.text import one_line


def late(by: timedelta) -> str:
    return "on time" if by < timedelta(seconds=1) else f"{rough(by)} late"


def name(text: str) -> str:
    return one_line(text, 120)


def who(tick: TickFacts | None) -> str | None:
    """ "a tick of host alpha"; None when no tick is on record."""
    return None if tick is None else f"a tick of host {name(tick.host)}"


def pause(pause: PauseFacts, times: LocalTimes) -> str:
    """ "everything was paused by ada from … to … (why: deploy)"."""
    what = {"all": "everything", "schedule": "the schedule", "queue": f"queue {name(pause.name)}"}[pause.scope]
    by = f" by {name(pause.by)}" if pause.by else ""
    why = f" (why: {one_line(pause.why, 300)})" if pause.why else ""
    if pause.ended_at is not None:
        return f"{what} was paused{by} from {times.clock(pause.since)} to {times.clock(pause.ended_at)}{why}"
    until = f"until {times.clock(pause.until)}" if pause.until else "until someone resumes it"
    return f"{what} is paused{by} since {times.clock(pause.since)}, {until}{why}"


def capital(text: str | None) -> str:
    return (text or "")[:1].upper() + (text or "")[1:]
