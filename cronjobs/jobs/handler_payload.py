"""What one handler's parameters ask of a payload, read from its signature once."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Set
from typing import Any, Final

from cronjobs.rules.annotations import UNCHECKED, kind_of, or_none, resolved
from cronjobs.rules.payload_kinds import Kind, Misfits
from cronjobs.rules.payload_records import RecordKind, said

_NOTHING: Final = frozenset[type]()
_REST: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class HandlerPayload:
    """The parameters of a handler, as kinds. *typed* False: all are unchecked."""

    def __init__(
        self, handler: Callable[..., Any], signature: inspect.Signature, *, takes_ctx: bool, typed: bool = True
    ) -> None:
        parameters = list(signature.parameters.values())[1 if takes_ctx else 0 :]
        annotations = _annotations(handler, parameters) if typed else {}
        self._kinds: dict[str, Kind] = {}
        self._rest: Kind | None = None  # of **kwargs
        self._record: RecordKind | None = None  # of **kwargs: Unpack[SomeTypedDict]
        required = set()
        for parameter in parameters:
            annotation = annotations.get(parameter.name, Any)
            if parameter.kind in _BY_NAME:
                self._kinds[parameter.name] = or_none(kind_of(annotation), parameter.default)
            elif parameter.kind is parameter.VAR_KEYWORD:
                self._rest = kind_of(annotation)
                if typing.get_origin(annotation) is typing.Unpack:
                    record = kind_of(typing.get_args(annotation)[0])
                    self._record = record if isinstance(record, RecordKind) else None
            if parameter.default is parameter.empty and parameter.kind not in _REST:
                required.add(parameter.name)  # also one without a name, which then nothing fits
        self._plain = {name: kind.plain for name, kind in self._kinds.items()}
        self._required = frozenset(required)

    def takes_names(self, names: Set[str]) -> bool:
        """Whether a payload with these *names* surely fits, as far as names go; if not, the signature knows."""
        return self._rest is None and names <= self._kinds.keys() and self._required <= names

    def takes_as_it_is(self, payload: Mapping[str, Any]) -> bool:
        """Whether it fits by names, and each value by its class alone: nearly every payload, in no time."""
        plain = self._plain
        for name, value in payload.items():
            if value.__class__ not in plain.get(name, _NOTHING):
                return False
        return self._required <= payload.keys() and self._record is None

    def decode(self, payload: Mapping[str, Any]) -> tuple[Mapping[str, Any], Misfits]:
        """The handler's arguments for JSON whose names fit."""
        return self._each(payload, "decode")

    def encode(self, payload: Mapping[str, Any]) -> tuple[Mapping[str, Any], Misfits]:
        """The JSON for values that the handler takes, or for JSON that it takes."""
        return self._each(payload, "encode")

    def _each(self, payload: Mapping[str, Any], way: str) -> tuple[Mapping[str, Any], Misfits]:
        misfits = Misfits()
        if self.takes_as_it_is(payload):
            return payload, misfits
        try:
            own = {name: value for name, value in payload.items() if name in self._kinds}
            done = {name: getattr(self._kinds[name], way)(value, (name,), misfits) for name, value in own.items()}
            others = {name: value for name, value in payload.items() if name not in own}
            if self._record is not None:
                done |= self._record.each(others, (), misfits, way)
            else:
                rest = self._rest or UNCHECKED
                done |= {name: getattr(rest, way)(value, (name,), misfits) for name, value in others.items()}
        except RecursionError:
            misfits.put((), "", "is nested too deeply")
            return payload, misfits
        except Exception as error:  # code of the user's: an __eq__, a __hash__, a property
            misfits.put((), "", f"cannot be read: {said(error)}")
            return payload, misfits
        return done, misfits


def _annotations(handler: Callable[..., Any], parameters: list[inspect.Parameter]) -> dict[str, Any]:
    written = {each.name: each.annotation for each in parameters if each.annotation is not each.empty}
    return resolved(written, _names_of(handler), {})


def _names_of(handler: Any) -> Mapping[str, Any]:
    """The names that the annotations of *handler* were written among."""
    function = inspect.unwrap(handler)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    if isinstance(function, type):
        function = vars(function).get("__init__", function)
    elif not hasattr(function, "__globals__") and not inspect.ismethod(function):
        function = type(function).__call__
    names: Mapping[str, Any] | None = getattr(inspect.unwrap(function), "__globals__", None)
    return vars(sys.modules.get(getattr(function, "__module__", ""), typing)) if names is None else names
