"""Parse instants in the formats that users type."""

from __future__ import annotations

from datetime import UTC, datetime

from cronjobs.desk.insight.schedule_history import asked_on_the_clock
from cronjobs.errors import UsageError
from cronjobs.model import duration
from cronjobs.text import one_line


def since_instant(text: str, now: datetime, timezone: str, option: str = "--since") -> datetime:
    """Parse an option's value: a duration before *now*, or an ISO time, which is in *timezone* if it has no offset."""
    option = option if option.endswith(":") else f"{option}:"
    try:
        return now - duration(text)
    except (ValueError, OverflowError):
        pass
    try:
        found = iso_instant(text, timezone)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option} {one_line(text, 60)!r} is neither a duration (90m, 24h, 7d) nor an instant (2026-03-29T02:00)"
        ) from None
    if found > now and option in ("--since:", "--from:", "since:"):
        raise UsageError(f"{option} {one_line(text, 60)} is in the future")
    return found


def iso_instant(text: str, timezone: str) -> datetime:
    """Convert an ISO time to UTC. A time without an offset is in *timezone*; one that the clocks skip means the end of
    the gap. Raises ValueError or OverflowError.
    """
    read = datetime.fromisoformat(text.strip())
    return asked_on_the_clock(read, timezone).at if read.tzinfo is None else read.astimezone(UTC)
