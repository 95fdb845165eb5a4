"""Parse instants in the formats that users type."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

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


@dataclass(frozen=True)
class Asked:
    """The instant asked about. ``wall``: the local time asked about if it did not exist or came twice, else None."""

    at: datetime
    wall: datetime | None = None
    exists: bool = True


def asked_on_the_clock(wall: datetime, timezone: str) -> Asked:
    """Convert the naive time *wall* from *timezone*. Use the first pass of a repeated hour, and the end of a gap."""
    zone = ZoneInfo(timezone)
    first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first == second:
        return Asked(first)
    if first < second:
        return Asked(first, wall)
    # In a gap, fold=0 uses the old offset, so it gives an instant after the clock change. fold=1 gives an instant
    # before the change.
    offset = first.astimezone(zone).utcoffset()
    seconds = range(int((first - second).total_seconds()) + 1)
    change = bisect_left(
        seconds, True, key=lambda s: (second + timedelta(seconds=s)).astimezone(zone).utcoffset() == offset
    )
    return Asked(second + timedelta(seconds=change), wall, exists=False)
