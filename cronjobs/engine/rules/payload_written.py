"""Make JSON from the values that an app enqueues, and check that the handler will get the same values back. Pure."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from cronjobs.engine.rules.annotations import SCALARS

_SERIALIZER: Final = "__pydantic_serializer__"


def as_json(value: Any) -> Any:
    """Return the JSON for a *value* of any type that a handler may annotate. Values of other types stay unchanged."""
    if value.__class__ in SCALARS:
        return value
    match value:
        case Enum():
            return as_json(value.value)
        # The value may be of a subclass of str, which may have its own __str__.
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case date() | datetime() | time():
            return value.isoformat()
        case timedelta():
            seconds = value.total_seconds()
            return int(seconds) if seconds.is_integer() else seconds
        case Decimal() | UUID():
            return str(value)
        case list() | tuple():
            return [as_json(item) for item in value]
        case Set():
            return sorted((as_json(item) for item in value), key=repr)
        case Mapping():
            return {_key(key): as_json(item) for key, item in value.items()}
    # The value is a pydantic model.
    if hasattr(type(value), _SERIALIZER):
        return _dumped(value, mode="json", by_alias=True)
    if dataclasses.is_dataclass(value):
        return {name: as_json(item) for name, item in _fields(value).items()}
    # The value may be an IP address or a URL, for example. pydantic can convert such types.
    if "pydantic_core" in sys.modules:
        try:
            return sys.modules["pydantic_core"].to_jsonable_python(value)
        # pydantic cannot convert a value of this type.
        except Exception:
            return value
    return value


def _dumped(model: Any, **how: Any) -> Any:
    # Suppress the warnings, because they quote values. ``comes_back`` detects the same problems.
    return getattr(type(model), _SERIALIZER).to_python(model, round_trip=True, warnings=False, **how)


def _key(key: Any) -> str:
    written = as_json(key)
    return written if isinstance(written, str) else json.dumps(written, default=repr)


def _fields(value: Any) -> dict[str, Any]:
    fields = [field.name for field in dataclasses.fields(value) if field.init]
    return {name: getattr(value, name) for name in fields if hasattr(value, name)}


def comes_back(given: Any, got: Any) -> bool:
    """Return whether *got*, which was read from the JSON of *given*, equals *given*.

    If *given* is plain JSON, any *got* is accepted. The result is False, for example, for a date where the annotation
    is ``str | date``, because the handler would get a str. It is also False if a ``__post_init__`` would convert a
    value a second time.
    """
    if given.__class__ in SCALARS:
        return True
    if isinstance(given, Mapping):
        if isinstance(got, Mapping):
            there = {_key(key): (key, item) for key, item in got.items()}
            pairs = [(key, item, *there.get(_key(key), (None, None))) for key, item in given.items()]
            return all((key.__class__ is str or _same(key, its)) and comes_back(a, b) for key, a, its, b in pairs)
        return all(comes_back(item, getattr(got, name, item)) for name, item in given.items())
    if isinstance(given, list | tuple):
        if isinstance(got, Set):
            return all(any(comes_back(item, its) for its in got) for item in given)
        return isinstance(got, list | tuple) and all(map(comes_back, given, got))
    if isinstance(given, str | int | float | Set) and not isinstance(got, Enum):
        return bool(given == got)
    return _same(given, got)


def _same(given: Any, got: Any) -> bool:
    if type(given) is not type(got):
        return False
    # Compare only the model's fields, and not its private attributes.
    if hasattr(type(given), _SERIALIZER):
        return bool(_dumped(given) == _dumped(got))
    if dataclasses.is_dataclass(given):
        fields = _fields(given)
        same = all(comes_back(item, getattr(got, name, None)) for name, item in fields.items())
        return same and as_json(given) == as_json(got)
    return bool(given == got)
