"""Turn a handler's annotations into checks of payload values. Pure.

This module checks types that JSON itself has, such as ``int``, ``list[str]`` and ``dict[str, float] | None``. It
imports nothing for that. For dates, dataclasses, models and the like, ``payload_pydantic`` uses pydantic, from the
extra ``cronjobs[types]``. An annotation that we do not know, or cannot resolve, is no error: it is not checked.
"""

from __future__ import annotations

import collections.abc
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Final, Literal, NamedTuple, Union
from uuid import UUID

from cronjobs.text import one_line

Path = tuple[str | int, ...]
# Returns what the handler gets for a JSON value. If the value does not fit, adds a misfit, and raises nothing.
Read = Callable[[Any, Path, "Misfits"], Any]

# The error names at most this many misfits of one payload.
MOST_NAMED: Final = 3
SCALARS: Final[frozenset[type]] = frozenset({str, int, float, bool, type(None)})
ANY_JSON: Final = SCALARS | {list, dict}


class Misfit(NamedTuple):
    """One value that does not fit: where it is, and why. The value itself is not stored, because it may be a secret."""

    path: Path
    what: str

    @property
    def where(self) -> str:
        return "payload" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)

    def __str__(self) -> str:
        return f"{one_line(self.where, 200)} {self.what}"


class Misfits:
    """The misfits of one payload: the first few, and their number."""

    def __init__(self) -> None:
        self.found: list[Misfit] = []
        self.count = 0

    def add(self, path: Path, what: str) -> None:
        """Add a misfit. Return None, for the caller to use in place of the value."""
        self.count += 1
        if len(self.found) < MOST_NAMED:
            self.found.append(Misfit(path, one_line(what, 300)))

    def __str__(self) -> str:
        more = self.count - len(self.found)
        return "; ".join([*map(str, self.found), *([f"and {more:,} more"] if more else [])])


@dataclass(frozen=True)
class Check:
    """The check for one annotation. ``plain`` has the classes of JSON values that fit and stay unchanged."""

    words: str
    read: Read
    plain: frozenset[type] = frozenset()


class NeedsTypes(Exception):
    """Raised by ``plain_check`` for an annotation that only pydantic can read."""


UNCHECKED: Final = Check("anything", lambda value, path, misfits: value, ANY_JSON)


def resolved(annotations: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Return *annotations* with strings resolved in the scope *names*, or replaced by ``Any`` if that is impossible."""
    found = {}
    for name, annotation in annotations.items():
        one = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            found[name] = typing.get_type_hints(one, dict(names), {}, include_extras=True)[name]
        # The annotation contains a name that only the type checker knows, or it is a string that is not a type.
        except Exception:
            found[name] = Any
    return found


def plain_check(annotation: Any) -> Check:
    """Return the check for an annotation whose names are already resolved. Raises no error except NeedsTypes."""
    try:
        return _check(annotation)
    # A RecursionError comes from an annotation such as "type Tree = list[Tree]".
    except (NeedsTypes, RecursionError):
        raise NeedsTypes from None
    # The annotation is not a type at all.
    except Exception:
        return UNCHECKED


def _check(annotation: Any) -> Check:
    origin, arguments = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if origin is Union or origin is types.UnionType:
        return _union([_check(one) for one in arguments])
    if origin is Literal:
        return _literal(arguments)
    if origin is Annotated:
        if any(_is_constraint(one) for one in arguments[1:]):
            raise NeedsTypes
        return _check(arguments[0])
    if annotation is typing.LiteralString:
        return _SIMPLE[str]
    if isinstance(annotation, typing.NewType):
        return _check(annotation.__supertype__)
    # Since Python 3.12, "type X = …" makes an alias of this class.
    if type(annotation).__name__ == "TypeAliasType":
        return _check(annotation.__value__)
    if origin in _SIMPLE:
        return _SIMPLE[origin]
    if origin in _LISTS:
        return _list(_check(arguments[0]) if arguments else UNCHECKED)
    if origin in _DICTS:
        key, value = arguments or (Any, Any)
        # JSON keys are text. Keys of other types, such as int, must be read from that text.
        if _check(key) not in (_SIMPLE[str], UNCHECKED):
            raise NeedsTypes
        return _dict(_check(value))
    if origin is tuple:
        if (not arguments and annotation is tuple) or (len(arguments) == 2 and arguments[1] is Ellipsis):
            return _list(_check(arguments[0]) if arguments else UNCHECKED, tuple)
        return _tuple([_check(one) for one in arguments])
    if _is_rich(origin):
        raise NeedsTypes
    return UNCHECKED


_LISTS: Final = frozenset(
    {
        list,
        collections.abc.Sequence,
        collections.abc.MutableSequence,
        collections.abc.Collection,
        collections.abc.Iterable,
    }
)
_DICTS: Final = frozenset({dict, collections.abc.Mapping, collections.abc.MutableMapping})
_SETS: Final = frozenset({set, frozenset, collections.abc.Set, collections.abc.MutableSet})
_BYTES: Final = frozenset({bytes, bytearray, memoryview})
_WRITTEN_AS_TEXT: Final = (date, datetime, time, timedelta, Decimal, UUID)
_PYDANTIC: Final = ("pydantic", "pydantic_core", "annotated_types")
# Pydantic's models have this attribute, and so do other classes that define how pydantic reads them.
_HOOK: Final = "__get_pydantic_core_schema__"


def _is_rich(cls: Any) -> bool:
    """Return whether *cls* is of a kind that pydantic reads. docs/how-to/payloads.md lists these kinds."""
    if cls in _SETS or cls in _WRITTEN_AS_TEXT:
        return True
    if not isinstance(cls, type):
        return False
    if issubclass(cls, Enum) or typing.is_typeddict(cls) or hasattr(cls, "__dataclass_fields__"):
        return True
    return hasattr(cls, _HOOK) or cls.__module__.partition(".")[0] in _PYDANTIC


def _is_constraint(metadata: Any) -> bool:
    return hasattr(metadata, _HOOK) or type(metadata).__module__.partition(".")[0] in _PYDANTIC


# --- checks -----------------------------------------------------------------------------------------------------------


def _exact(cls: type, words: str) -> Check:
    """Return the check for *cls*: str, int, bool or None. Unlike in Python, a bool does not count as an int here."""

    def read(value: Any, path: Path, misfits: Misfits) -> Any:
        return value if value.__class__ is cls else misfits.add(path, f"is not {words}")

    return Check(words, read, frozenset({cls}))


def _read_float(value: Any, path: Path, misfits: Misfits) -> Any:
    if value.__class__ is float and math.isfinite(value):
        return value
    # Accept an int as a float: PostgreSQL returns 1e16 as 10000000000000000.
    if value.__class__ is int:
        try:
            return float(value)
        except OverflowError:
            return misfits.add(path, "is too large for a float")
    return misfits.add(path, "is not a float")


def _read_bytes(value: Any, path: Path, misfits: Misfits) -> Any:
    return misfits.add(path, f"cannot be {NO_BYTES}")


NO_BYTES: Final = "bytes, which JSON lacks: annotate it as str, and pass base64"
_NULL: Final = _exact(type(None), "null")
_FLOAT: Final = Check("a float", _read_float, frozenset({float}))
_SIMPLE: Final[dict[Any, Check]] = {
    str: _exact(str, "a str"),
    int: _exact(int, "an int"),
    bool: _exact(bool, "a bool"),
    type(None): _NULL,
    None: _NULL,
    float: _FLOAT,
    **dict.fromkeys(_BYTES, Check("bytes", _read_bytes)),
}


def _list(item: Check, make: type | None = None) -> Check:
    def read(value: Any, path: Path, misfits: Misfits) -> Any:
        if value.__class__ is not list:
            return misfits.add(path, "is not a list")
        if not all([each.__class__ in item.plain for each in value]):  # noqa: C419 a generator costs twice
            value = [item.read(each, (*path, n), misfits) for n, each in enumerate(value)]
        return value if make is None else make(value)

    return Check("a list", read)


def _tuple(items: Sequence[Check]) -> Check:
    words = f"a list of {len(items)}"

    def read(value: Any, path: Path, misfits: Misfits) -> Any:
        if value.__class__ is not list or len(value) != len(items):
            return misfits.add(path, f"is not {words}")
        pairs = enumerate(zip(items, value, strict=True))
        return tuple([item.read(each, (*path, n), misfits) for n, (item, each) in pairs])

    return Check(words, read)


def _dict(item: Check) -> Check:
    def read(value: Any, path: Path, misfits: Misfits) -> Any:
        if value.__class__ is not dict:
            return misfits.add(path, "is not an object")
        return {key: item.read(each, (*path, key), misfits) for key, each in value.items()}

    return Check("an object", read)


def _literal(values: Sequence[Any]) -> Check:
    if any(value.__class__ not in SCALARS for value in values):
        # This Literal contains members of an Enum, which only pydantic can read.
        raise NeedsTypes
    words, among = one_of(values), {(value.__class__, value) for value in values}

    def read(value: Any, path: Path, misfits: Misfits) -> Any:
        fits = value.__class__ in SCALARS and (value.__class__, value) in among
        return value if fits else misfits.add(path, f"is not {words}")

    return Check(words, read)


def one_of(values: Sequence[Any]) -> str:
    named = [one_line(json.dumps(value, ensure_ascii=False), 60) for value in values[:6]]
    return f"one of {', '.join(named[:5])}{', …' if len(named) > 5 else ''}"


def _union(members: Sequence[Check]) -> Check:
    """Return the check for a union. It uses the first member that fits, in written order, but float last."""
    members = sorted(members, key=lambda member: member is _FLOAT)
    words = " or ".join(dict.fromkeys(member.words for member in members))
    others = [member for member in members if member is not _NULL]

    def read(value: Any, path: Path, misfits: Misfits) -> Any:
        if len(others) == 1 and value is not None and value.__class__ not in SCALARS:
            # With one member besides null, report what is wrong inside the value, not only that it does not fit.
            return others[0].read(value, path, misfits)
        for member in members:
            trial = Misfits()
            got = member.read(value, path, trial)
            if not trial.count:
                return got
        return misfits.add(path, f"is not {words}")

    # Only scalars certainly stay unchanged: another value, such as a list, may become a tuple in one of the members.
    return Check(words, read, SCALARS & frozenset().union(*(member.plain for member in members)))


# --- words ------------------------------------------------------------------------------------------------------------


def a(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOaeio' else 'a'} {name}"
