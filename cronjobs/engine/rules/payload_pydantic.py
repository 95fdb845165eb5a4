"""Read payload values with pydantic, strictly and from JSON text.

Only this module imports pydantic, and it is imported only once a value needs pydantic. pydantic reads containers,
unions, dataclasses, TypedDicts and models. We change its schemas where docs/how-to/payloads.md promises something else:
which texts are accepted as dates and the like, floats for a Decimal, and the order of a union's members.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from functools import cached_property, partial
from typing import Any, Final
from uuid import UUID

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic._internal import _generate_schema
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic_core import PydanticCustomError, SchemaValidator
from pydantic_core.core_schema import CoreConfig, any_schema, chain_schema, no_info_plain_validator_function

from cronjobs.engine.rules.annotations import NO_BYTES, SCALARS, Misfits, Path, a, one_of
from cronjobs.model import duration
from cronjobs.text import error_text

Schema = dict[str, Any]

# Even the largest payload needs fewer trials than this, unless a type contains itself in two unions.
MOST_TRIALS: Final = 200_000
# This error type marks errors that have our own messages.
OURS: Final = "cronjobs"
CONFIG: Final = CoreConfig(strict=True, allow_inf_nan=False)


class TooManyTrials(Exception):
    """Nested unions have so many combinations of members that it would take hours to try them all."""


class PydanticReader:
    """Reads the values of one annotation. The validator is built for the first value, which takes milliseconds."""

    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation
        # Threads share this counter, so the limit is only approximate.
        self._trials = 0

    def __call__(self, value: Any, path: Path, misfits: Misfits) -> Any:
        self._trials = 0
        try:
            # Wrap the value in a list, so that every error's path begins with an index, even if the whole value is bad.
            return self._validator.validate_json(json.dumps([value]))[0]
        except ValidationError as error:
            for each in error.errors(include_url=False, include_input=False):
                misfits.add((*path, *_place(each["loc"])), _words(each))
        except TooManyTrials:
            misfits.add(path, "has a type with too many combined unions to check")
        # This error comes from user code, or from an annotation that pydantic cannot read.
        except Exception as error:
            misfits.add(path, f"is refused: {error_text(error)}")
        return None

    @cached_property
    def _validator(self) -> SchemaValidator:
        schema = self._changed(_schema_of(self._annotation))
        return SchemaValidator(schema, CONFIG)

    def _changed(self, schema: Any, *, is_key: bool = False) -> Any:
        """Return *schema* with our changes. A schema inside a pydantic model or a pydantic dataclass stays as it is."""
        if isinstance(schema, list | tuple):
            return type(schema)([self._changed(each) for each in schema])
        if not isinstance(schema, dict):
            # This is the label of a union's member, not a schema.
            return schema
        kind = schema.get("type")
        # This is not a schema, but maps names to schemas: the fields of a type, or the members of a tagged union.
        if not isinstance(kind, str):
            return {name: self._changed(each) for name, each in schema.items()}
        if kind == "model" or (kind == "dataclass" and hasattr(schema["cls"], "__pydantic_validator__")):
            return schema
        if kind in _LEAVES or (kind == "int" and is_key):
            leaf = _INT_KEY if kind == "int" else _LEAVES[kind](schema)
            return {**leaf, "ref": schema["ref"]} if "ref" in schema else leaf
        changed = {**schema, **{key: self._changed(schema[key]) for key in _NESTED & schema.keys()}}
        match kind:
            case "dict":
                changed["keys_schema"] = self._changed(schema.get("keys_schema", any_schema()), is_key=True)
            case "union":
                changed |= self._union(changed["choices"])
            case "dataclass" | "dataclass-args" | "typed-dict":
                changed |= {"config": {**schema.get("config", {}), **CONFIG}, "extra_behavior": "forbid"}
            # The parameter has the default None, as in "count: int = None".
            case "default" if schema.get("default", ...) is None:
                changed["schema"] = {"type": "nullable", "schema": changed["schema"]}
        return changed

    def _union(self, choices: Sequence[Any]) -> Schema:
        """Return a union's schema. pydantic tries the members in written order, but float last; the first fit wins."""
        members = [choice[0] if isinstance(choice, tuple) else choice for choice in choices]
        members.sort(key=lambda member: bool(member["type"] == "float"))
        return {
            "mode": "left_to_right",
            "choices": [no_info_plain_validator_function(self._count), *members],
            "custom_error_type": OURS,
            "custom_error_message": f"is not {' or '.join(dict.fromkeys(map(_name, members)))}",
        }

    def _count(self, value: Any) -> Any:
        self._trials += 1
        if self._trials > MOST_TRIALS:
            raise TooManyTrials
        raise ValueError


# A schema contains other schemas under these keys. Left out: "serialization", and the user's own defaults and metadata.
_NESTED: Final = frozenset(
    {"schema", "items_schema", "keys_schema", "values_schema", "extras_schema", "arguments_schema", "json_schema"}
    | {"python_schema", "lax_schema", "strict_schema", "choices", "fields", "steps", "definitions"}
)


def _schema_of(annotation: Any) -> Any:
    """Return pydantic's schema of *annotation*. Read ``Any`` for a dataclass's name that only type checkers know."""
    config = ConfigDict(arbitrary_types_allowed=True)
    known: set[str] = set()
    while True:
        # pydantic looks for names among the local variables of the function that calls it.
        sys._getframe().f_locals.update(dict.fromkeys(known, Any))
        try:
            with _typed_dicts_of_typing():
                adapter: Any = TypeAdapter(list[annotation], config=config)
                # ``rebuild`` exists since pydantic 2.10. In older versions, an unknown name raises no error here.
                if hasattr(adapter, "rebuild"):
                    adapter.rebuild(raise_errors=True)
            return adapter.core_schema
        except PydanticUndefinedAnnotation as error:
            if not error.name or error.name in known:
                raise
            known.add(error.name)


@contextmanager
def _typed_dicts_of_typing() -> Iterator[None]:
    """Let pydantic accept ``typing.TypedDict``.

    Before Python 3.12, pydantic refuses such a class, because it cannot see whether the class's bases have validators.
    Here they have none.
    """
    before = _generate_schema._SUPPORTS_TYPEDDICT
    _generate_schema._SUPPORTS_TYPEDDICT = True
    try:
        yield
    finally:
        _generate_schema._SUPPORTS_TYPEDDICT = before


# --- types that we read ourselves -------------------------------------------------------------------------------------


def _leaf(words: str, read: Callable[[Any], Any], then: Schema | None = None) -> Any:
    """Return a schema that calls *read*, and then checks the result with *then*.

    *words* describe the values that *read* accepts. It raises ValueError for any other.
    """

    def checked(value: Any) -> Any:
        try:
            return read(value)
        # This error already has a message that says more.
        except PydanticCustomError:
            raise
        except (ValueError, ArithmeticError):  # Decimal raises an ArithmeticError
            raise PydanticCustomError(OURS, "{what}", {"what": f"is not {words}"}) from None

    plain = no_info_plain_validator_function(checked)
    schema: Any = plain if then is None else chain_schema([plain, {**then, "strict": False}])
    return {**schema, "metadata": {OURS: words}}


def _matching(pattern: str, parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return a function that parses only texts that match *pattern*. Python's own parsers also accept "1_000"."""
    expression = re.compile(pattern)

    def read(value: Any) -> Any:
        if not isinstance(value, str) or not expression.fullmatch(value):
            raise ValueError
        return parse(value)

    return read


_DATE: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME: Final = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?"
_UUID: Final = "[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}"
_NUMBER: Final = r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,9})?"
_decimal_of_text: Final = _matching(_NUMBER, Decimal)


def _decimal(value: Any) -> Decimal:
    if value.__class__ is float:
        raise PydanticCustomError(OURS, 'is a float, which may have lost digits: write a Decimal as text, "19.99"')
    return Decimal(value) if value.__class__ is int else _decimal_of_text(value)


def _span(value: Any) -> timedelta:
    if value.__class__ not in (str, int, float):
        raise ValueError
    return duration(value) if isinstance(value, str) else timedelta(seconds=value)


def _no_bytes(value: Any) -> Any:
    raise PydanticCustomError(OURS, f"cannot be {NO_BYTES}")


def _enum(schema: Schema) -> Any:
    cls = schema["cls"]
    return _one_of(list(cls), cls if issubclass(cls, Flag) else None)


def _one_of(members: Sequence[Any], flags: Callable[[int], Any] | None = None) -> Any:
    """Return the schema of an Enum or a Literal. Members are looked up by value, and ``True`` is not ``1``."""
    values = [member.value if isinstance(member, Enum) else member for member in members]
    known: dict[Any, Any] = {}
    for value, member in zip(values, members, strict=True):
        if value.__class__ in SCALARS:
            known.setdefault((value.__class__, value), member)

    def read(value: Any) -> Any:
        key = (value.__class__, value) if value.__class__ in SCALARS else None
        if key in known:
            return known[key]
        if flags is None or value.__class__ is not int:
            raise ValueError
        return flags(value)

    return _leaf(one_of([value for _, value in known]) if known else _NO_VALUES, read)


_NO_VALUES: Final = "a member: no member has a value that JSON can hold; use strings or numbers as values"
_LEAVES: Final[dict[str, Callable[[Schema], Any]]] = {
    "date": partial(_leaf, 'a date like "2026-11-23"', _matching(_DATE, date.fromisoformat)),
    "datetime": partial(
        _leaf, 'an instant like "2026-11-23T09:30:00+01:00"', _matching(f"{_DATE}[T ]{_TIME}", datetime.fromisoformat)
    ),
    "time": partial(_leaf, 'a time like "09:30"', _matching(_TIME, time.fromisoformat)),
    "timedelta": partial(_leaf, 'a span like "90s", or a number of seconds', _span),
    "decimal": partial(_leaf, 'a Decimal like "19.99"', _decimal),
    "uuid": partial(_leaf, "a UUID", _matching(_UUID, UUID)),
    "enum": _enum,
    "literal": lambda schema: _one_of(schema["expected"]),
    "bytes": lambda schema: no_info_plain_validator_function(_no_bytes),
    "is-instance": lambda schema: any_schema(),  # a user's own class
    "callable": lambda schema: any_schema(),
    "generator": lambda schema: {**schema, "type": "list"},  # pydantic's name for Iterable
}
_INT_KEY: Final = _leaf("a whole number", _matching("-?(0|[1-9][0-9]{0,999})", int))


# --- errors -----------------------------------------------------------------------------------------------------------


def _place(loc: tuple[int | str, ...]) -> Path:
    return tuple(part for part in loc[1:] if part != "[key]")


_WORDS: Final = {
    "missing": "is missing",
    "unexpected_keyword_argument": "is an unknown field",
    "extra_forbidden": "is an unknown field",
    "none_required": "is not null",
    "string_type": "is not a str",
    "dict_type": "is not an object",
    "tuple_type": "is not a list",
    "set_type": "is not a list",
    "frozen_set_type": "is not a list",
    "set_item_not_hashable": "is a list or an object, and a set can contain neither",
}
_LIMITS: Final = frozenset(
    {"gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "max_digits", "decimal_places", "pattern"}
    | {"expected", "expected_tags"}
)


def _words(error: Any) -> str:
    """Return what is wrong with a value. pydantic's own message is not used, because it may contain the value."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == OURS:
        return str(error["msg"])
    if kind in _WORDS:
        return _WORDS[kind]
    if "class_name" in context:
        return f"is not {a(context['class_name'])}"
    # The user's own validator has raised an error.
    if isinstance(context.get("error"), Exception):
        return f"is refused: {error_text(context['error'])}"
    name, _, how = kind.rpartition("_")
    if how in ("type", "parsing"):
        return f"is not {a(name.replace('_', ' '))}"
    limits = ", ".join(f"{key} {context[key]}" for key in sorted(_LIMITS & context.keys()))
    return f"does not fit: {kind.replace('_', ' ')}" + (f" ({limits})" if limits else "")


def _name(schema: Any) -> str:
    """Return the name of a union's member, for an error message."""
    if words := (schema.get("metadata") or {}).get(OURS):
        return str(words)
    if cls := schema.get("cls"):
        return a(cls.__name__)
    kind = schema["type"]
    if kind == "definition-ref":  # "shop_jobs.Line:94107"
        return a(re.split(r"[:\[]", schema["schema_ref"])[0].rpartition(".")[2])
    return {"str": "a str", "dict": "an object", "none": "null", "any": "anything"}.get(kind) or a(kind)
