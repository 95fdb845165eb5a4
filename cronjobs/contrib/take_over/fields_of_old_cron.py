"""Parse the five fields of a crontab line as cron's C code does. Pure.

This module shares no code with ``crontime``, because ``crontab compare`` checks the results of the two modules against
each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cronjobs.desk.crontab.lines import Cron

MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")


class BadField(ValueError):
    """Cron refuses a field. The message names the field and the fault."""


@dataclass(frozen=True)
class CronFields:
    """The minutes, hours and days that the fields select.

    Both weekdays 0 and 7 mean Sunday, so a set has both or neither. A field's flag (``minute_star`` …) is true if the
    field begins with "*". In cron.h, the flags are MIN_STAR, HR_STAR, DOM_STAR and DOW_STAR.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    minute_star: bool = False
    hour_star: bool = False
    day_star: bool = False
    weekday_star: bool = False

    @property
    def wild(self) -> bool:
        """Whether the minute or hour field begins with "*". Such a line follows a clock change at once."""
        return self.minute_star or self.hour_star

    def on_day(self, day: int, month: int, weekday: int) -> bool:
        if month not in self.months:
            return False
        if self.day_star or self.weekday_star:
            return day in self.days and weekday in self.weekdays
        return day in self.days or weekday in self.weekdays


def _at_midnight(days: frozenset[int], months: frozenset[int], weekdays: frozenset[int], **stars: bool) -> CronFields:
    return CronFields(_ZERO, _ZERO, days, months, weekdays, **stars)


_ZERO: Final = frozenset({0})
_DAYS: Final = frozenset(range(1, 32))
_MONTHS: Final = frozenset(range(1, 13))
_WEEK: Final = frozenset(range(8))
_FIRST: Final = frozenset({1})
_SUNDAY: Final = frozenset({0, 7})
# As in load_entry in entry.c, where @daily sets no day flags. That makes no difference, because all days match.
_NAMES: Final = {
    "@yearly": _at_midnight(_FIRST, _FIRST, _WEEK, weekday_star=True),
    "@annually": _at_midnight(_FIRST, _FIRST, _WEEK, weekday_star=True),
    "@monthly": _at_midnight(_FIRST, _MONTHS, _WEEK, weekday_star=True),
    "@weekly": _at_midnight(_DAYS, _MONTHS, _SUNDAY, day_star=True),
    "@daily": _at_midnight(_DAYS, _MONTHS, _WEEK),
    "@midnight": _at_midnight(_DAYS, _MONTHS, _WEEK),
    "@hourly": CronFields(_ZERO, frozenset(range(24)), _DAYS, _MONTHS, _WEEK, hour_star=True),
}


def read_fields(when: str, cron: Cron) -> CronFields:
    """Parse *when*, the time of a ``CrontabEntry``. Raises BadField if cron would refuse *when*."""
    if when.startswith("@"):
        if when not in _NAMES:
            raise BadField(f'"{when}" is not a name that cron knows')
        return _NAMES[when]
    minute, hour, day, month, weekday = when.split(" ")
    weekdays = _values("weekday", weekday, 0, 7, WEEKDAYS, cron)
    if weekdays & _SUNDAY:
        weekdays |= _SUNDAY
    return CronFields(
        _values("minute", minute, 0, 59, (), cron),
        _values("hour", hour, 0, 23, (), cron),
        _values("day", day, 1, 31, (), cron),
        _values("month", month, 1, 12, MONTHS, cron),
        frozenset(weekdays),
        minute_star=minute.startswith("*"),
        hour_star=hour.startswith("*"),
        day_star=day.startswith("*"),
        weekday_star=weekday.startswith("*"),
    )


def _values(kind: str, word: str, low: int, high: int, names: tuple[str, ...], cron: Cron) -> frozenset[int]:
    """Parse a list of ranges, like get_list in entry.c."""
    found: set[int] = set()
    try:
        for item in word.split(","):
            found |= _range(item, low, high, names, cron)
    except BadField as bad:
        raise BadField(f'{kind} "{word}": {bad}') from None
    return frozenset(found)


def _range(item: str, low: int, high: int, names: tuple[str, ...], cron: Cron) -> set[int]:
    """Parse "*", a number, or a range, like get_range in entry.c. A step may follow "*" or a range."""
    if "~" in item and cron == "cronie":
        raise BadField("cronie chooses the time at random")
    body, slash, step_text = item.partition("/")
    first, dash, last = body.partition("-")
    if body.startswith("*"):
        if body != "*":
            raise BadField(f'"{item}" is neither "*" nor a number')
        begin, end = low, high
    else:
        begin = end = _number(first, low, names)
        if dash:
            end = _number(last, low, names)
        elif slash:
            raise BadField("a step needs a range")
    step = 1
    if slash:
        if not step_text.isascii() or not step_text.isdigit() or int(step_text[:9]) == 0:
            raise BadField(f'"{step_text}" is not a step')
        step = int(step_text[:9])
    if cron == "cronie" and dash and not slash and begin > end == 0:
        end = 7  # such as "fri-sun", where _number has parsed "sun" as 0
    if begin > end and cron == "cronie":
        return set()
    touched = range(begin, end + 1, step)
    for value in (begin, end) if cron == "debian" else (touched[0], touched[-1]):
        if not low <= value <= high:
            raise BadField(f"{value} is not in {low}-{high}")
    return set(touched)


def _number(text: str, low: int, names: tuple[str, ...]) -> int:
    """Parse a number or a name, like get_number in entry.c. A name is a whole word, in upper or lower case."""
    if text.lower() in names:
        return names.index(text.lower()) + low
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise BadField(f'"{text}" is not a number')
    return int(text)
