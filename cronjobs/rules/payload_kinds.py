"""What an annotation asks of a JSON value: whether it fits, what the handler gets for it, and the way back. Pure.

A ``Kind`` stands for one annotation. ``decode`` turns JSON into what the handler gets; ``encode`` takes such a value,
or JSON that fits, and returns JSON. Neither raises for a value that does not fit: it notes that in ``Misfits``.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, Final
from uuid import UUID

from cronjobs.masking import MASK, is_secret_name
from cronjobs.model import duration
from cronjobs.text import one_line

Path = tuple[str | int, ...]

MOST_NAMED: Final = 3  # misfits of one payload that its error names
MOST_TRIALS: Final = 200_000  # more than the largest payload needs for a type without such a circle
_SHOWN: Final = 60  # characters of a value
_NONE: Final = type(None)
SCALARS: Final[frozenset[type]] = frozenset({str, int, float, bool, _NONE})
ANY_JSON: Final[frozenset[type]] = frozenset({*SCALARS, list, dict})


@dataclass(frozen=True)
class Misfit:
    """One value that does not fit: where, the value in short, and what is wrong with it, which names no value."""

    path: Path
    value: str
    what: str

    @property
    def where(self) -> str:
        return "payload" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)

    def __str__(self) -> str:
        place = one_line(self.where, 200)
        return f"{place}: {self.value} {self.what}" if self.value else f"{place} {self.what}"


class Misfits:
    """What was found in one payload; the first few, and how many there are.

    *trial_of*: this is about one of several types that a value may have. *compares*: what was written is read and
    written again, to see whether it comes back.
    """

    def __init__(self, trial_of: Misfits | None = None, *, compares: bool = False) -> None:
        self.found: list[Misfit] = []
        self.count = 0
        self.compares: bool = compares or (trial_of is not None and trial_of.compares)
        self._tried: list[int] = [0] if trial_of is None else trial_of._tried  # shared by all trials

    def trial(self) -> Misfits | None:
        """For another trial; None: there were too many, as a type that contains two unions of itself can need 2^32."""
        self._tried[0] += 1
        return Misfits(self) if self._tried[0] <= MOST_TRIALS else None

    def add(self, path: Path, value: Any, what: str) -> Any:
        """Note a *value*; returns None, which then stands in its place."""
        if len(self.found) >= MOST_NAMED:
            return self.put(path, "", what)
        hidden = any(is_secret_name(part) for part in path if isinstance(part, str))
        return self.put(path, MASK if hidden else shown(value), what)

    def put(self, path: Path, value: str, what: str) -> Any:
        """The same with the value as it is to be shown, or ""."""
        self.count += 1
        if len(self.found) < MOST_NAMED:
            self.found.append(Misfit(path, value, one_line(what, 300)))
        return None

    def take(self, others: Misfits) -> Any:
        self.count += others.count
        self.found = [*self.found, *others.found][:MOST_NAMED]
        return None

    def __str__(self) -> str:
        more = self.count - len(self.found)
        return "; ".join([*map(str, self.found), *([f"and {more:,} more"] if more else [])])


def shown(value: Any) -> str:
    """A value in an error message: JSON if it is short, else what it is."""
    if value.__class__ is int and value.bit_length() > 200:  # Python refuses to write more than 4,300 digits
        return "a very large number"
    if value.__class__ in SCALARS:
        return one_line(json.dumps(value[:_SHOWN] if isinstance(value, str) else value, ensure_ascii=False), _SHOWN)
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return "an object" if isinstance(value, Mapping) else f"a value of type {type(value).__name__}"


class Kind(ABC):
    """How values of one annotation are read and written.

    ``words``: "an int". ``plain``: classes of JSON values that are JSON and what the handler gets at once.
    ``accepts``: classes of JSON values of which some fit.
    """

    words: str = "anything"
    plain: frozenset[type] = frozenset()
    accepts: frozenset[type] = ANY_JSON

    @abstractmethod
    def decode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        """What the handler gets for this JSON."""

    @abstractmethod
    def encode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        """The JSON that is written for what somebody enqueues."""

    def _refuse(self, value: Any, path: Path, misfits: Misfits) -> Any:
        return misfits.add(path, value, f"is not {self.words}")

    def _as_json(self, value: Any, path: Path, misfits: Misfits) -> Any:
        """*value* itself if it is JSON that fits."""
        self.decode(value, path, misfits)
        return value


class Unchecked(Kind):
    """``Any``, and every annotation that we do not know: the handler gets the JSON."""

    plain = ANY_JSON

    def decode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        return value

    def encode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        return value


# Of a value of a subclass, such as an IntEnum's, the one that JSON writes; the subclass may have a __str__ of its own.
_AS_BASE: Final[dict[type, Callable[[Any], Any]]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
}


class ExactKind(Kind):
    """str, int, bool and None. A bool is no int here, though Python says so."""

    def __init__(self, cls: type, words: str) -> None:
        self._class, self.words = cls, words
        self.plain = self.accepts = frozenset({cls})

    def decode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        return value if value.__class__ is self._class else self._refuse(value, path, misfits)

    def encode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        if value.__class__ is self._class:
            return value
        if isinstance(value, self._class) and not isinstance(value, bool):
            return _AS_BASE[self._class](value)
        return self._refuse(value, path, misfits)


class FloatKind(Kind):
    words = "a float"
    plain = frozenset({float})
    accepts = frozenset({float, int})

    def decode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        if value.__class__ is float and math.isfinite(value):
            return value
        if value.__class__ is int:  # PostgreSQL gives 1e16 back as 10000000000000000
            try:
                return float(value)
            except OverflowError:
                return misfits.add(path, value, "is too large for a float")
        return self._refuse(value, path, misfits)

    def encode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        return _AS_BASE[float](value) if isinstance(value, float) else self._as_json(value, path, misfits)


class TextKind(Kind):
    """What JSON has as text, such as a date; some also as a number."""

    def __init__(
        self,
        cls: type,
        words: str,
        parse: Callable[[Any], Any],
        write: Callable[[Any], Any],
        accepts: Iterable[type] = (),
        hints: Mapping[type, str] | None = None,
    ) -> None:
        self._class, self.words, self._parse, self._write = cls, words, parse, write
        self.accepts = frozenset({str, *accepts})
        self._hints = hints or {}

    def decode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        if value.__class__ in self.accepts:
            try:
                return self._parse(value)
            except (ValueError, ArithmeticError):  # Decimal's errors are the latter
                pass
        hint = self._hints.get(value.__class__)
        return misfits.add(path, value, hint) if hint else self._refuse(value, path, misfits)

    def encode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        if isinstance(value, self._class) and not (self._class is date and isinstance(value, datetime)):
            try:
                return self._write(value)
            except (ValueError, ArithmeticError):
                return misfits.put(path, repr(value)[:_SHOWN], f"cannot be written as {self.words}")
        return self._as_json(value, path, misfits)


_DATE: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME: Final = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?"
_UUID: Final = "[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}"
_NUMBER: Final = r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,9})?"


def matching(pattern: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Python's own readers take more than one would write by intention, such as "20260102" or "1_000"."""
    expression = re.compile(pattern)

    def read(text: str) -> Any:
        if not expression.fullmatch(text):
            raise ValueError(text)
        return parse(text)

    return read


_decimal_of_text: Final = matching(_NUMBER, Decimal)


def _decimal(value: str | int) -> Decimal:
    return Decimal(value) if isinstance(value, int) else _decimal_of_text(value)


def _decimal_text(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError(value)
    return str(value)


def _span(value: str | float) -> timedelta:
    return duration(value) if isinstance(value, str) else timedelta(seconds=value)


def _span_json(value: timedelta) -> int | float:
    seconds = value.total_seconds()
    if timedelta(seconds=seconds) != value:  # above 270 years a float has no microseconds
        raise ValueError(value)
    return int(seconds) if seconds.is_integer() else seconds


def _texts() -> dict[type, Kind]:
    lossy = 'is a float, which may have lost digits: write a Decimal as text, "19.99"'
    return {
        date: TextKind(date, 'a date like "2026-11-23"', matching(_DATE, date.fromisoformat), date.isoformat),
        datetime: TextKind(
            datetime,
            'an instant like "2026-11-23T09:30:00+01:00"',
            matching(f"{_DATE}[T ]{_TIME}", datetime.fromisoformat),
            datetime.isoformat,
        ),
        time: TextKind(time, 'a time like "09:30"', matching(_TIME, time.fromisoformat), time.isoformat),
        timedelta: TextKind(
            timedelta, 'a span like "90s", or a number of seconds', _span, _span_json, accepts=(int, float)
        ),
        Decimal: TextKind(
            Decimal,
            'a Decimal like "19.99"',
            _decimal,
            _decimal_text,
            accepts=(int,),
            hints={float: lossy},
        ),
        UUID: TextKind(UUID, "a UUID", matching(_UUID, UUID), str),
    }


class BytesKind(Kind):
    words = "bytes"
    accepts = frozenset()

    def decode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        return misfits.add(path, value, "cannot be bytes, which JSON has not: annotate it str, and pass base64")

    encode = decode


SCALAR_KINDS: Final[dict[Any, Kind]] = {
    str: ExactKind(str, "a str"),
    int: ExactKind(int, "an int"),
    bool: ExactKind(bool, "a bool"),
    _NONE: ExactKind(_NONE, "null"),
    None: ExactKind(_NONE, "null"),
    float: FloatKind(),
    bytes: BytesKind(),
    bytearray: BytesKind(),
    memoryview: BytesKind(),
    **_texts(),
}


_GIVE_VALUES: Final = "give it a text or a number, and put the rest into a property"
_NO_VALUES: Final = f"one of its type, of which no member has a value that JSON has: {_GIVE_VALUES}"


class ChoiceKind(Kind):
    """An Enum, by value, or a Literal."""

    def __init__(self, members: Sequence[Any], flags: type[Flag] | None = None) -> None:
        self._all = members
        self._of: dict[tuple[type, Any], Any] = {}
        for member in members:
            value = member.value if isinstance(member, Enum) else member
            if value.__class__ in SCALARS:
                self._of.setdefault((value.__class__, value), member)
        self._members = list(self._of.values())
        self._flags = flags
        self.accepts = frozenset(cls for cls, _ in self._of) | ({int} if flags else frozenset())
        named = [shown(value) for _, value in list(self._of)[:6]]
        self.words = f"one of {', '.join(named[:5])}{', …' if len(named) > 5 else ''}" if named else _NO_VALUES

    def decode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        found = self._of.get((value.__class__, value), self) if value.__class__ in SCALARS else self
        if found is not self:
            return found
        if self._flags is not None and value.__class__ is int:
            several: Any = value
            with suppress(ValueError):
                several = self._flags(value)
            if isinstance(several, self._flags):
                return several
        return self._refuse(value, path, misfits)

    def encode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        if isinstance(value, Enum):
            if any(value is member for member in self._members) or (self._flags and isinstance(value, self._flags)):
                return value.value
            if value.value.__class__ not in SCALARS and any(value is member for member in self._all):
                return misfits.put(path, one_line(str(value), _SHOWN), f"has a value that JSON has not: {_GIVE_VALUES}")
            return self._refuse(value, path, misfits)
        return self._as_json(value, path, misfits)
