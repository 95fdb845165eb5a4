"""From an annotation to its ``Kind``. What we do not know, or cannot resolve, is unchecked and never an error."""

from __future__ import annotations

import collections.abc
import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum, Flag
from typing import Annotated, Any, Final, Literal, Union

from cronjobs.rules.payload_containers import INT_KEY, DictKind, FixedTupleKind, LaterKind, ListKind, UnionKind
from cronjobs.rules.payload_kinds import SCALAR_KINDS, ChoiceKind, ExactKind, Kind, TextKind, Unchecked
from cronjobs.rules.payload_records import (
    ConstrainedKind,
    MsgspecKind,
    PydanticKind,
    RecordField,
    RecordKind,
    by_msgspec,
    by_pydantic,
)

UNCHECKED: Final = Unchecked()
Known = dict[Any, Kind]  # the named types that are read already, or just now

_LISTS: Final = {
    list: list,
    collections.abc.Sequence: None,
    collections.abc.MutableSequence: None,
    collections.abc.Collection: None,
    collections.abc.Iterable: None,
}
_SETS: Final = {set: set, frozenset: frozenset, collections.abc.Set: set, collections.abc.MutableSet: set}
_DICTS: Final = frozenset({dict, collections.abc.Mapping, collections.abc.MutableMapping})
# By name: typing has them since 3.13 or 3.11, and typing_extensions has its own.
_WRAPPERS: Final = frozenset({"Required", "NotRequired", "ReadOnly", "Final", "ClassVar"})


def resolved(annotations: Mapping[str, Any], names: Mapping[str, Any], local: Mapping[str, Any]) -> dict[str, Any]:
    """*annotations* with names in place of text; what cannot be resolved is ``Any``, and leaves the others alone."""
    found = {}
    for name, annotation in annotations.items():
        one = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            found[name] = typing.get_type_hints(one, dict(names), dict(local), include_extras=True)[name]
        except Exception:  # a name that only the type checker has, text that is no type
            found[name] = Any
    return found


def kind_of(annotation: Any, known: Known | None = None) -> Kind:
    """The kind of an annotation whose names are resolved; never raises."""
    known = {} if known is None else known
    try:
        return _found(annotation, known) or _found(annotation, SCALAR_KINDS) or _kind_of(annotation, known)
    except Exception:  # no type at all, or one that its own library cannot read
        return UNCHECKED


def _found(annotation: Any, kinds: Mapping[Any, Kind]) -> Kind | None:
    try:
        return kinds.get(annotation)
    except TypeError:  # Annotated[int, []] cannot be hashed
        return None


def _kind_of(annotation: Any, known: Known) -> Kind:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _annotated(annotation, arguments, known)
    if origin is Union or origin is types.UnionType:
        return UnionKind([kind_of(one, known) for one in arguments])
    if origin is Literal:
        return ChoiceKind(arguments)
    if _name(origin) in _WRAPPERS and arguments:
        return kind_of(arguments[0], known)
    if isinstance(origin or annotation, type):
        return _of_class(annotation, origin or annotation, arguments, known)
    if isinstance(annotation, typing.NewType):
        return kind_of(annotation.__supertype__, known)
    if annotation is typing.LiteralString:
        return SCALAR_KINDS[str]
    if type(annotation).__name__ == "TypeAliasType":  # type X = …, since 3.12
        known[annotation] = LaterKind(annotation.__name__, lambda: kind_of(annotation.__value__, known))
        return known[annotation]
    return UNCHECKED


def _name(origin: Any) -> str:
    return str(getattr(origin, "__name__", getattr(origin, "_name", "")))


def _annotated(annotation: Any, arguments: tuple[Any, ...], known: Known) -> Kind:
    base = kind_of(arguments[0], known)
    homes = {type(one).__module__.partition(".")[0] for one in arguments[1:]}
    if isinstance(base, PydanticKind) or (homes & {"pydantic", "annotated_types"} and "pydantic" in sys.modules):
        if isinstance(base, PydanticKind | Unchecked):
            return PydanticKind(annotation)
        return ConstrainedKind(base, by_pydantic(annotation))
    if "msgspec" in homes and not isinstance(base, MsgspecKind):
        return ConstrainedKind(base, by_msgspec(annotation))
    return base


def _of_class(annotation: Any, cls: Any, arguments: tuple[Any, ...], known: Known) -> Kind:
    if cls in _LISTS:
        takes: tuple[Any, ...] = (list, tuple)
        return ListKind(_argument(arguments, known), "a list", _LISTS[cls], takes)
    if cls in _SETS:
        takes = (list, tuple, set, frozenset)
        return ListKind(_argument(arguments, known), "a list", _SETS[cls], takes)
    if cls in _DICTS:
        key, value = arguments if len(arguments) == 2 else (Any, Any)
        return DictKind(_key(kind_of(key, known)), kind_of(value, known))
    if cls is tuple:
        if not arguments and annotation is not tuple:
            return FixedTupleKind([])
        if not arguments or (len(arguments) == 2 and arguments[1] is Ellipsis):
            return ListKind(_argument(arguments[:1], known), "a list", tuple, (list, tuple))
        return FixedTupleKind([kind_of(one, known) for one in arguments])
    if _is_from("pydantic", cls) or "__pydantic_validator__" in vars(cls):
        return PydanticKind(annotation) if _speaks(cls) else UNCHECKED
    if _is_from("msgspec", cls):
        return MsgspecKind(annotation) if not arguments else UNCHECKED
    if arguments:
        return UNCHECKED  # a generic class of the user's
    if issubclass(cls, Enum):
        return ChoiceKind(list(cls), cls if issubclass(cls, Flag) else None)
    if typing.is_typeddict(cls):
        known[cls] = RecordKind(cls.__name__, lambda: _entries(cls, known), dict, None)
        return known[cls]
    if hasattr(cls, "__dataclass_fields__") and not _has_pseudo_fields(cls):
        known[cls] = RecordKind(cls.__name__, lambda: _fields(cls, known), cls, cls)
        return known[cls]
    return UNCHECKED


def _argument(arguments: tuple[Any, ...], known: Known) -> Kind:
    return kind_of(arguments[0], known) if arguments else UNCHECKED


def _key(kind: Kind) -> Kind:
    """Keys of JSON are text: what is written as text can be one, and an int in digits."""
    if kind is SCALAR_KINDS[int]:
        return INT_KEY
    if isinstance(kind, TextKind | ChoiceKind) and kind.accepts >= {str}:
        return kind
    return kind if isinstance(kind, ExactKind) and kind.accepts == {str} else UNCHECKED


def _is_from(library: str, cls: type) -> bool:
    return library in sys.modules and any(base.__module__.partition(".")[0] == library for base in cls.__mro__)


def _speaks(cls: Any) -> bool:
    """Whether it is of pydantic 2; models of pydantic 1 are unchecked."""
    first = any(base.__module__.startswith("pydantic.v1") for base in cls.__mro__)
    return not first and hasattr(sys.modules["pydantic"], "TypeAdapter")


# --- fields -----------------------------------------------------------------------------------------------------------


def _has_pseudo_fields(cls: Any) -> bool:
    """Whether it takes an ``InitVar``, which it does not keep: then there is no way back."""
    kinds = [getattr(field, "_field_type", None) for field in cls.__dataclass_fields__.values()]
    return any(getattr(kind, "name", "") == "_FIELD_INITVAR" for kind in kinds)


def _fields(cls: Any, known: Known) -> list[RecordField]:
    hints = _hints(cls, lambda: {field.name: field.type for field in dataclasses.fields(cls)})
    found = []
    for field in dataclasses.fields(cls):
        if field.init:
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            kind = or_none(kind_of(hints.get(field.name, Any), known), field.default)
            found.append(RecordField(field.name, kind, required))
    return found


def _entries(cls: Any, known: Known) -> list[RecordField]:
    hints = _hints(cls, lambda: cls.__annotations__)
    found = []
    for name in sorted(cls.__required_keys__ | cls.__optional_keys__):
        hint = hints.get(name, Any)
        # Of annotations that are text, TypedDict itself does not see NotRequired.
        said = {"Required": True, "NotRequired": False}.get(_name(typing.get_origin(hint)))
        found.append(RecordField(name, kind_of(hint, known), name in cls.__required_keys__ if said is None else said))
    return found


def or_none(kind: Kind, default: Any) -> Kind:
    """``count: int = None`` means Optional, as it did to type checkers for years."""
    null = SCALAR_KINDS[None]
    return kind if default is not None or type(None) in kind.accepts else UnionKind([kind, null])


def _hints(cls: Any, annotations: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception:  # one of them cannot be resolved: each by itself
        try:
            return resolved(annotations(), vars(sys.modules[cls.__module__]), {cls.__name__: cls})
        except Exception:  # Python 3.14 evaluates them all at once
            return {}
