"""Charts of ended jobs, failures and waiting times, by hour or by day. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from cronjobs.desk.insight.formatting import LocalTimes, counted
from cronjobs.engine.store.counts import HourSum
from cronjobs.model import rough

HOUR: Final = timedelta(hours=1)
SPANS: Final = {"24h": 24, "30d": 30}  # the number of bars for each span
HOURS: Final = {"24h": 24, "30d": 30 * 24}


@dataclass
class Bar:
    """The figures of the local hour or day ``name``: jobs that ended, attempts that failed, how long jobs waited."""

    name: str
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    failed: int = 0
    timed: int = 0
    micros: float = 0.0
    longest: timedelta | None = None

    @property
    def ended(self) -> int:
        return self.succeeded + self.dead + self.cancelled

    @property
    def waited(self) -> timedelta | None:
        """The average waiting time, or None if no job began."""
        return average(self.micros, self.timed)

    def add(self, row: HourSum) -> None:
        self.succeeded += row.succeeded
        self.dead += row.dead
        self.cancelled += row.cancelled
        self.failed += row.failed
        self.timed += row.timed
        self.micros += row.micros
        if row.longest is not None:
            longest = timedelta(microseconds=row.longest)
            self.longest = longest if self.longest is None else max(self.longest, longest)


def average(micros: float, number: int) -> timedelta | None:
    return timedelta(microseconds=micros / number) if number else None


@dataclass(frozen=True)
class Rect:
    """A part of a bar. Its place and size are percentages of the chart."""

    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Chart:
    """One chart. ``about`` is a summary in words. ``keys`` explains the colours if the chart has several."""

    name: str
    about: str
    rects: tuple[Rect, ...]
    keys: tuple[tuple[str, str], ...] = ()


def first_hour(now: datetime, span: str) -> int:
    """Return the first hour to read for *span*, in hours since 1970."""
    hours = 24 if span == "24h" else 31 * 24  # one more day, because days begin at local midnight
    return hour_of(now) - hours + 1


def bars(rows: Collection[HourSum], times: LocalTimes, span: str) -> list[Bar]:
    """Return a bar, perhaps empty, for each of the last 24 hours or 30 local days, oldest first."""
    if span == "24h":
        last = hour_of(times.about)
        hours = range(last - SPANS[span] + 1, last + 1)
        found: Mapping[int | date, Bar] = {hour: Bar(f"{times.local(_instant(hour)):%H:%M}") for hour in hours}
        return _filled(found, [(row.at_hour, row) for row in rows])
    today = times.local(times.about).date()
    days = [today - timedelta(days=ago) for ago in reversed(range(SPANS[span]))]
    by_day = [(times.local(_instant(row.at_hour)).date(), row) for row in rows]
    return _filled({day: Bar(f"{day:%Y-%m-%d}") for day in days}, by_day)


def _filled(found: Mapping[int | date, Bar], rows: Sequence[tuple[int | date, HourSum]]) -> list[Bar]:
    for place, row in rows:
        if place in found:
            found[place].add(row)
    return list(found.values())


def charts(found: Sequence[Bar], span: str) -> list[Chart]:
    each, over = ("hour", "24 hours") if span == "24h" else ("day", "30 days")
    ended, failed = sum(bar.ended for bar in found), sum(bar.failed for bar in found)
    dead = sum(bar.dead for bar in found)
    most_ended, most_failed = max(bar.ended for bar in found), max(max(bar.failed, bar.dead) for bar in found)
    waits = [bar.waited or timedelta(0) for bar in found]
    longest = max((bar.longest for bar in found if bar.longest is not None), default=None)
    waited = "nothing began" if longest is None else f"{rough(max(waits))} on average in the worst {each}"
    return [
        Chart(
            "Jobs that ended",
            f"jobs ended {counted(ended, 'time')} in {over}, at most {most_ended:,} in one {each}; "
            "a job counts each time it ends",
            _stacked(found, most_ended),
            tuple((word, word) for word in ("succeeded", "cancelled", "dead")),
        ),
        Chart(
            "Failures",
            f"{counted(failed, 'attempt')} failed or {'was' if failed == 1 else 'were'} lost in {over}, and there "
            f"{'was' if dead == 1 else 'were'} {counted(dead, 'death')}",
            _drawn([("retrying", bar.failed) for bar in found], most_failed)
            + _drawn([("dead", bar.dead) for bar in found], most_failed),
            (("retrying", "attempts that failed or were lost"), ("dead", "deaths")),
        ),
        Chart(
            "Waiting time",
            f"from due to start: {waited}" + ("" if longest is None else f", {rough(longest)} at most"),
            _drawn([("waiting", wait.total_seconds()) for wait in waits], max(waits).total_seconds()),
        ),
    ]


def _stacked(found: Sequence[Bar], most: int) -> tuple[Rect, ...]:
    rects = []
    for number, bar in enumerate(found):
        below = 0.0
        for kind, value in (("succeeded", bar.succeeded), ("cancelled", bar.cancelled), ("dead", bar.dead)):
            if value:
                rects.append(_rect(kind, number, len(found), value, most, below))
                below += value
    return tuple(rects)


def _drawn(values: Sequence[tuple[str, float]], most: float) -> tuple[Rect, ...]:
    return tuple(_rect(kind, number, len(values), value, most) for number, (kind, value) in enumerate(values) if value)


def _rect(kind: str, number: int, count: int, value: float, most: float, below: float = 0.0) -> Rect:
    width, height = 100 / count, 100 * value / most
    x, y = number * width, 100 - 100 * below / most - height
    return Rect(kind, round(x, 2), round(y, 2), round(0.8 * width, 2), round(height, 2))


def axis(found: Sequence[Bar], span: str) -> list[tuple[float, str]]:
    """Return the labels below the bars, each with the place of its bar as a percentage."""
    step, cut = (6, 0) if span == "24h" else (7, len("2026-"))
    return [(round(100 * place / len(found), 2), found[place].name[cut:]) for place in range(0, len(found), step)]


def hour_of(instant: datetime) -> int:
    return int(instant.timestamp() // HOUR.total_seconds())


def _instant(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * HOUR.total_seconds(), UTC)
