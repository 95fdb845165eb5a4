"""The grammar of cron expressions: five fields as Debian's cron reads them, or one of the ``@`` names.

Expressions are checked here before croniter sees them. croniter accepts many expressions that cron does not accept
(seconds, ``5/15``, ``R``, ``H``), and reads some expressions differently from cron (``5-5`` as "every"). We have
compared the expressions that this module accepts with those that Debian's cron 3.0pl1-162 accepts ("crontab -n").
Debian's cron silently accepts a few more expressions, which can only be mistakes: ranges that run backwards (they
select nothing), steps longer than their field, a ``*`` inside a list, and days that never come. This module refuses
them, and says what to write instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NoReturn

from cronjobs.errors import CronError

MAX_LENGTH: Final = 256

NAMES: Final = {
    # @hourly is the same as "0 * * * *": Debian's entry.c sets HR_STAR for both.
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_DAYS_IN_MONTH: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # February has 29 days in a leap year


@dataclass(frozen=True, slots=True)
class CronExpression:
    """A parsed cron expression. Two expressions are equal if they are written the same way.

    ``weekdays`` count from 0 (Sunday) to 6. ``fixed_time`` is True if neither the minute nor the hour field starts with
    ``*``, so that the expression names times of day. ``fixed_time`` decides how clock changes affect the expression
    (cron(8)). ``both_days_must_match`` is True if the day field or the weekday field starts with ``*`` (cron.c:
    DOM_STAR, DOW_STAR). ``day_fields`` holds the third to fifth fields in a form that croniter and cron read the same
    way: numbers and commas, or ``*`` and ``*/n``.
    """

    source: str
    minutes: frozenset[int] = field(compare=False)
    hours: frozenset[int] = field(compare=False)
    days: frozenset[int] = field(compare=False)
    months: frozenset[int] = field(compare=False)
    weekdays: frozenset[int] = field(compare=False)
    fixed_time: bool = field(compare=False)
    both_days_must_match: bool = field(compare=False)
    day_fields: str = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.source

    @property
    def day_remark(self) -> str | None:
        """A remark about the two day fields if cron needs only one of them to match, else None."""
        words = NAMES.get(self.source.strip(), self.source).split()
        if self.both_days_must_match or len(self.days) == 31 or len(self.weekdays) == 7:
            return None
        return (
            f'"{self.source.strip()}" is due when the day of the month is {words[2]}, and also when the weekday is '
            f'{words[4]}: cron joins these two fields by "or", unless one of them begins with "*"'
        )


def parse(text: str) -> CronExpression:
    """Parse *text*. Raises CronError with the column of the mistake, and a message that says what to write instead."""
    _refuse_strange_characters(text)
    words = [(match.group(), match.start() + 1) for match in re.finditer(r"[^ \t]+", text)]
    if words and words[0][0].startswith("@"):
        words = _fields_of_name(words)
    _refuse_wrong_number_of_fields(text, words)
    minute, hour, day, month, weekday = (kind.read(*word) for kind, word in zip(_KINDS, words, strict=True))
    expression = CronExpression(
        source=text,
        minutes=minute.values,
        hours=hour.values,
        days=day.values,
        months=month.values,
        weekdays=frozenset(value % 7 for value in weekday.values),  # 0 and 7 both mean Sunday
        fixed_time=not (minute.star or hour.star),
        both_days_must_match=day.star or weekday.star,
        day_fields=f"{day.text} {month.text} {weekday.text}",
    )
    _refuse_days_that_never_come(expression, column=words[2][1])
    return expression


@dataclass(frozen=True, slots=True)
class _Field:
    """One parsed field. ``text`` is the field as croniter gets it: ``*`` or ``*/n``, or one number for each value."""

    values: frozenset[int]
    star: bool
    text: str


@dataclass(frozen=True, slots=True)
class _Kind:
    """One of the five fields: its name, its range of values, and how to read it."""

    name: str
    low: int
    high: int
    size: int  # the number of different values in the field
    # The period that the field divides, in words, for the message about steps.
    whole: str
    names: tuple[str, ...] = ()

    def read(self, word: str, column: int) -> _Field:
        items = word.split(",")
        values: set[int] = set()
        for item in items:
            if item.startswith("*") and len(items) > 1:
                raise CronError(f'"*" stands alone in a field, not in a list: write "*" instead of "{word}"', column)
            values.update(self._read_item(item, column))
            column += len(item) + 1
        star = word.startswith("*")
        text = word if star else ",".join(str(value) for value in sorted(values))
        return _Field(frozenset(values), star, text)

    def _read_item(self, item: str, column: int) -> range:
        """Read ``*``, a value, or a range. ``*`` and a range may have a step."""
        match = _ITEM.fullmatch(item)
        if match is None:
            self._refuse(item, column)
        if match["star"]:
            low, high = self.low, self.high
        else:
            low = self._read_value(match["low"], column)
            high = low if match["high"] is None else self._read_value(match["high"], column + match.start("high"))
        if low > high:
            self._refuse_backwards(low, high, item, column)
        if match["step"] is None:
            return range(low, high + 1)
        if not match["star"] and match["high"] is None:
            raise CronError(f'a step needs a range: write "{low}-{self.high}/{match["step"]}", not "{item}"', column)
        return range(low, high + 1, self._read_step(match["step"], column + match.start("step")))

    def _read_value(self, word: str, column: int) -> int:
        if word.lower() in self.names:
            return self.names.index(word.lower()) + self.low
        if not word.isdigit():
            self._refuse(word, column)
        value = int(word)
        if not self.low <= value <= self.high:
            raise CronError(f"{self.name} {_short(word)} is not in {self.low}–{self.high}", column)
        if len(word) > 2:
            raise CronError(f'write "{value}", not "{_short(word)}"', column)
        return value

    def _read_step(self, word: str, column: int) -> int:
        if not word.isdigit():
            raise CronError(f'"{word}" is not a step: write a number after "/"', column)
        step = int(word)
        if step == 0:
            raise CronError('a step must be at least 1; "*/1" and "*" both mean every value', column)
        if step > self.size:
            # Debian's cron accepts "*/90" as minutes, and runs the job once an hour, which nobody wants.
            raise CronError(
                f"step {_short(word)} is longer than {self.whole}, and cron begins to count again after {self.whole}: "
                'write a smaller step, or use the key "every" instead of "cron"',
                column,
            )
        if len(word) > 2:
            raise CronError(f'write "{step}", not "{_short(word)}"', column)
        return step

    def _refuse_backwards(self, low: int, high: int, item: str, column: int) -> NoReturn:
        """Refuse a range that runs backwards, because such a range selects nothing in Vixie cron.

        In other crons such a range wraps around. The message shows how to write a range that wraps around.
        """
        if "/" in item:
            instead = "two ranges, each from low to high"
        elif self.name == "weekday" and low == 7:
            instead = f'"{self.low}-{high}"'
        elif self.name == "weekday" and high == 0:
            instead = f'"{low}-7"'
        else:
            instead = f'"{low}-{self.high},{self.low}-{high}"'
        raise CronError(f'range "{item}" runs backwards: write {instead}', column)

    def _refuse(self, item: str, column: int) -> NoReturn:
        """Raise an error that explains the mistake that *item* probably contains."""
        if not item:
            raise CronError("a list item is empty: remove the extra comma", column)
        if word := re.search(r"[A-Za-z]{4,}", item):
            for name in self.names:
                if word.group().lower().startswith(name):
                    # A crontab line may have lost the hyphen of a range.
                    if (last := word.group().lower()[3:6]) in self.names:
                        raise CronError(f'write "{name}-{last}" or "{name},{last}", not "{word.group()}"', column)
                    raise CronError(f'write "{name}", not "{word.group()}": names have three letters', column)
        for pattern, reason in _FOREIGN:
            if foreign := pattern.search(item):
                raise CronError(reason, column + foreign.start())
        if item.startswith("-") or re.search(r"\d\.\d", item):
            raise CronError(f'{self.name} "{_short(item)}" is not a whole number in {self.low}–{self.high}', column)
        allowed = f'"*", "{self.low}", "{self.low}-{self.high}" or "*/2"'
        if self.names:
            allowed += f' or "{self.names[1]}"'
        raise CronError(f'"{_short(item)}" is not a {self.name}: write it like {allowed}', column)


_KINDS: Final = (
    _Kind("minute", 0, 59, 60, "the 60 minutes of an hour"),
    _Kind("hour", 0, 23, 24, "the 24 hours of a day"),
    _Kind("day", 1, 31, 31, "the 31 days of a month"),
    _Kind("month", 1, 12, 12, "the 12 months of a year", _MONTHS),
    # Weekdays go from 0 to 7, and not only to 6, even with a step (entry.c, LAST_DOW). So "1-7/2" includes Sunday, and
    # "*/2" includes Saturday.
    _Kind("weekday", 0, 7, 7, "the 7 days of a week", _WEEKDAYS),
)

_ITEM: Final = re.compile(
    r"(?:(?P<star>\*)|(?P<low>[0-9A-Za-z]+)(?:-(?P<high>[0-9A-Za-z]+))?)(?:/(?P<step>[0-9A-Za-z]+))?", re.ASCII
)


def _lone(letters: str) -> re.Pattern[str]:
    """Return a pattern for *letters* that are not part of a name: the L in "5L", but not the one in "jul"."""
    return re.compile(f"(?i)(?<![a-z])(?:{letters})(?![a-z])")


_FOREIGN: Final = (
    (re.compile("#"), '"#" is Quartz syntax for the n-th weekday of a month, and is not supported: list the days'),
    (re.compile(r"\?"), '"?" is Quartz syntax: write "*"'),
    (re.compile("~"), '"~" is cronie\'s syntax for a random time, and is not supported: write a fixed one'),
    (_lone("LW|WL"), "LW is Quartz syntax for the last working day, and is not supported: list the days"),
    (_lone("L"), 'L is Quartz syntax for "last", and is not supported: list the days'),
    (_lone("W"), "W is Quartz syntax for the nearest working day, and is not supported: list the days"),
    (_lone("H"), "H is Jenkins syntax for a hashed time, and is not supported: write a fixed one"),
    (_lone("R"), "R is croniter syntax for a random time, and is not supported: write a fixed one"),
)


def _refuse_strange_characters(text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise CronError(
            f"a cron expression has at most {MAX_LENGTH} characters, but this one has {len(text)}", MAX_LENGTH + 1
        )
    for column, character in enumerate(text, start=1):
        if " " <= character <= "~" or character == "\t":
            continue
        code = f"U+{ord(character):04X}"
        if character.isascii():
            raise CronError(f"control character {code} cannot be part of a cron expression: remove it", column)
        if character in "‐‑‒–—−":
            raise CronError(f'"{character}" ({code}) is not a hyphen: write ranges with "-"', column)
        shown = f'"{character}" ({code})' if character.isprintable() and not character.isspace() else code
        raise CronError(f"{shown} cannot be part of a cron expression: write plain ASCII", column)


def _fields_of_name(words: list[tuple[str, int]]) -> list[tuple[str, int]]:
    (name, column), *more = words
    if name.lower() == "@reboot":
        raise CronError("@reboot is not a time: cronjobs has no daemon that starts at boot", column)
    if name.lower() == "@every":
        raise CronError('"@every" is not a cron name: write "every: 10m" instead of "cron"', column)
    if name not in NAMES:
        known = f'write "{name.lower()}"' if name.lower() in NAMES else f"write one of {', '.join(NAMES)}"
        raise CronError(f'"{_short(name)}" is not a name that cron knows: {known}', column)
    if more:
        raise CronError(f'"{name}" stands alone: remove "{_short(more[0][0])}"', more[0][1])
    return [(word, column) for word in NAMES[name].split()]


def _refuse_wrong_number_of_fields(text: str, words: list[tuple[str, int]]) -> None:
    if len(words) < 5:
        raise CronError(
            f'a cron expression has 5 fields, but this one has {len(words)}: write "minute hour day month weekday"',
            max(1, len(text.rstrip(" \t"))),
        )
    if len(words) > 5:
        raise CronError(_too_many_fields([word for word, _ in words]), words[5][1])


def _too_many_fields(fields: list[str]) -> str:
    """Return the message for an expression with too many fields.

    The message shows the expression without seconds and years, or without the command of a crontab line.
    """
    count = f"a cron expression has 5 fields, but this one has {len(fields)}"
    first = " ".join(fields[:5])
    if not all(_FIELD_LIKE.fullmatch(field) for field in fields[5:]):
        known = f'write "{first}", and ' if _is_valid(first) else ""
        return f'{count}: {known}put the command (the rest of the crontab line) into the key "command"'
    year = len(fields) == 7 or (len(fields) == 6 and re.fullmatch(r"(19|20)\d\d.*", fields[-1], re.ASCII))
    seconds = len(fields) - bool(year) == 6
    what = " and ".join(["seconds"] * seconds + ["years"] * bool(year))
    meant = " ".join(field.replace("?", "*") for field in fields[seconds:][:5])
    if len(fields) > 7 or not _is_valid(meant):
        return f'{count}: write "minute hour day month weekday"'
    if seconds and meant == "* * * * *" and (often := re.fullmatch(r"(?:\*|0)/([0-9]{1,2})", fields[0])):
        return (
            f'{count}: {what} are not supported; instead of "cron", write "every: {often[1]}s", and "linger: true" '
            'under "run"'
        )
    quartz = "?" in fields and any(character.isdigit() for character in meant.split()[4])
    weekdays = " (weekdays count from 0, Sunday, not from 1)" if quartz else ""
    return f'{count}: {what} are not supported; without them this is "{meant}"{weekdays}'


_FIELD_LIKE: Final = re.compile(r"[0-9*?,/#LWlw-]+|(?:(?:" + "|".join([*_MONTHS, *_WEEKDAYS]) + r")[,/#L0-9-]*)+", re.I)


def _is_valid(text: str) -> bool:
    try:
        parse(text)
    except CronError:
        return False
    return True


def _refuse_days_that_never_come(expression: CronExpression, column: int) -> None:
    """Refuse an expression whose days never come, such as 30 February.

    The weekday needs no check, because within 40 years each date falls on each weekday, even 29 February around the
    year 2100.
    """
    if not expression.both_days_must_match:
        return
    longest = max(_DAYS_IN_MONTH[month - 1] for month in expression.months)
    earliest = min(expression.days)
    if earliest > longest:
        months = ", ".join(_MONTHS[month - 1] for month in sorted(expression.months))
        raise CronError(f"day {earliest} never comes in {months}: choose a day up to {longest}", column)


def _short(word: str) -> str:
    return word if len(word) <= 20 else f"{word[:20]}…"
