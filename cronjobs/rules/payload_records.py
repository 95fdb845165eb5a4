"""Kinds with fields: dataclasses and TypedDicts, which we read ourselves, and models, which their own library reads."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

from cronjobs.rules.payload_kinds import Kind, Misfits, Path


class RecordField(NamedTuple):
    name: str
    kind: Kind
    required: bool


class RecordKind(Kind):
    """A JSON object of named fields.

    ``make``: what the handler gets, made of keyword arguments. ``cls``: instances of this class are taken, too; None:
    there are none, only mappings. ``fields`` is called when the first value comes, as a type may mention itself.
    """

    accepts = frozenset({dict})

    def __init__(
        self, name: str, fields: Callable[[], Iterable[RecordField]], make: Callable[..., Any], cls: type | None
    ) -> None:
        self._name, self._read, self._make, self._class = name, fields, make, cls
        self.words = _a(name)

    @cached_property
    def _fields(self) -> dict[str, RecordField]:
        return {field.name: field for field in self._read()}

    def decode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        if value.__class__ is not dict:
            return self._refuse(value, path, misfits)
        before = misfits.count
        given = self.each(value, path, misfits, "decode")
        if misfits.count > before:
            return None
        try:
            return self._make(**given)
        except Exception as error:  # its __post_init__ refuses
            return misfits.put(path, "", f"is refused by {self._name}: {said(error)}")

    def encode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        before = misfits.count
        if self._class is not None and type(value) is self._class:
            missing = object()
            found = {name: getattr(value, name, missing) for name in self._fields}
            given = {name: item for name, item in found.items() if item is not missing}
            encoded = self.each(given, path, misfits, "encode")
            return encoded if misfits.count > before else _if_it_comes_back(self, encoded, path, misfits)
        if isinstance(value, Mapping):
            encoded = self.each(value, path, misfits, "encode")
            # What the class itself refuses is only known once it is made.
            return encoded if misfits.count > before else self._as_json(encoded, path, misfits)
        return self._refuse(value, path, misfits)

    def each(self, value: Mapping[Any, Any], path: Path, misfits: Misfits, way: str) -> dict[str, Any]:
        """The values of the fields, each decoded or encoded."""
        fields, done = self._fields, {}
        for name, item in value.items():
            field = fields.get(name)
            if field is None:
                misfits.put((*path, str(name)), "", f"is no field of {self._name}")
            else:
                done[name] = getattr(field.kind, way)(item, (*path, name), misfits)
        for field in fields.values():
            if field.required and field.name not in value:
                misfits.put((*path, field.name), "", "is missing")
        return done


def _if_it_comes_back(kind: Kind, encoded: Any, path: Path, misfits: Misfits) -> Any:
    """*encoded*, if the handler will get what it was written from: a ``__post_init__`` may convert a second time."""
    if misfits.compares:
        return encoded
    before = misfits.count
    back, again = kind.decode(encoded, path, misfits), Misfits(misfits, compares=True)
    if misfits.count == before and (kind.encode(back, path, again) != encoded or again.count):
        misfits.put(path, "", f"would not be read as itself: making {kind.words} of its own values changes them")
    return encoded


class PydanticKind(Kind):
    """What only pydantic can read: its models, its dataclasses and its own types."""

    def __init__(self, annotation: Any) -> None:
        self._adapter: Any = sys.modules["pydantic"].TypeAdapter(annotation)
        self._class = annotation if isinstance(annotation, type) else None
        self.words = _a(getattr(annotation, "__name__", "value of pydantic's"))

    def decode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            return self._refuse(value, path, misfits)
        try:
            return self._adapter.validate_json(text)  # as JSON: a strict model takes a date as text then
        except Exception as error:  # a ValidationError, or what a validator of the user's raises
            return _pydantic_says(error, value, path, misfits)

    def encode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        if self._class is None or not isinstance(value, self._class):
            return self._as_json(value, path, misfits)
        before = misfits.count
        try:
            written = self._adapter.dump_python(value, mode="json", by_alias=True, round_trip=True)
            back = self.decode(written, path, misfits)
            # A SecretStr is written as asterisks.
            if misfits.count == before and self._plain(back) != self._plain(value):
                return misfits.put(path, "", f"would not be read as itself: pydantic writes {self.words} differently")
        except Exception as error:
            return misfits.put(path, "", f"cannot be written as JSON by pydantic: {said(error)}")
        return written

    def _plain(self, value: Any) -> Any:
        """What of *value* is compared: its fields, and none that are private."""
        return self._adapter.dump_python(value, round_trip=True)


class ConstrainedKind(Kind):
    """A kind of ours whose annotation has more to say, to pydantic or msgspec: ``Annotated[int, Field(gt=0)]``."""

    def __init__(self, base: Kind, check: Callable[[Any, Path, Misfits], Any]) -> None:
        self._base, self._check = base, check
        self.words, self.accepts = base.words, base.accepts

    def decode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        before = misfits.count
        decoded = self._base.decode(value, path, misfits)
        return decoded if misfits.count > before else self._check(decoded, path, misfits)

    def encode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        before = misfits.count
        encoded = self._base.encode(value, path, misfits)
        return encoded if misfits.count > before else self._as_json(encoded, path, misfits)


def by_pydantic(annotation: Any) -> Callable[[Any, Path, Misfits], Any]:
    """Check a value that is already what the handler is to get."""
    adapter = sys.modules["pydantic"].TypeAdapter(annotation)

    def check(value: Any, path: Path, misfits: Misfits) -> Any:
        try:
            return adapter.validate_python(value)
        except Exception as error:
            return _pydantic_says(error, value, path, misfits)

    return check


def _pydantic_says(error: Exception, value: Any, path: Path, misfits: Misfits) -> Any:
    try:
        errors: Any = error.errors(include_url=False, include_context=False)  # type: ignore[attr-defined]
        for each in errors:
            place = tuple(part for part in each["loc"] if isinstance(part, str | int))
            at, what = (*path, *place), str(each["msg"])
            if each["type"] == "missing":
                misfits.put(at, "", "is missing")
            else:
                misfits.add(at, each.get("input", value), f"does not fit: {what[:1].lower()}{what[1:]}")
    except Exception:  # no ValidationError: what a validator of the user's raised
        return misfits.put(path, "", f"is refused: {said(error)}")
    return None


class MsgspecKind(Kind):
    """What only msgspec can read: its Structs."""

    def __init__(self, annotation: Any) -> None:
        self._annotation, self._msgspec = annotation, sys.modules["msgspec"]
        self.words = _a(getattr(annotation, "__name__", "value of msgspec's"))

    def decode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        try:
            return self._msgspec.convert(value, self._annotation)
        except Exception as error:
            return _msgspec_says(error, path, misfits)

    def encode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        if not isinstance(value, self._annotation):
            return self._as_json(value, path, misfits)
        try:
            written = self._msgspec.to_builtins(value, str_keys=True)
        except Exception as error:
            return misfits.put(path, "", f"cannot be written as JSON by msgspec: {said(error)}")
        return _if_it_comes_back(self, written, path, misfits)


def by_msgspec(annotation: Any) -> Callable[[Any, Path, Misfits], Any]:
    """Check a value that is already what the handler is to get."""
    msgspec = sys.modules["msgspec"]

    def check(value: Any, path: Path, misfits: Misfits) -> Any:
        try:
            return msgspec.convert(value, annotation)
        except Exception as error:
            return _msgspec_says(error, path, misfits)

    return check


def _msgspec_says(error: Exception, path: Path, misfits: Misfits) -> Any:
    """Its message ends with the place: "Expected `int`, got `str` - at `$.id`"."""
    message, _, place = said(error, named=False).partition(" - at `$")
    inside = tuple(part for part in place.rstrip("`").replace("[", ".[").split(".") if part)
    steps = tuple(int(part[1:-1]) if part[1:-1].isdigit() else part for part in inside)
    return misfits.put((*path, *steps), "", f"does not fit: {message[:1].lower()}{message[1:]}")


_VOWELS: Final = frozenset("AEIOaeio")


def _a(name: str) -> str:
    return f"{'an' if name[:1] in _VOWELS else 'a'} {name}"


def said(error: BaseException, *, named: bool = True) -> str:
    """What an exception of the user's code says, whatever its ``__str__`` does."""
    try:
        words = "".join([str(error)])[:200]
    except Exception:
        words = "(its message could not be read)"
    return f"{type(error).__name__}: {words}" if named and words else words or type(error).__name__
