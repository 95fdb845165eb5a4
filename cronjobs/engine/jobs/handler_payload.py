"""Check payloads against a handler's parameters. The handler's signature is read only once."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, Final, Optional

from cronjobs.engine.rules.annotations import (
    UNCHECKED,
    Check,
    Misfits,
    NeedsTypes,
    Path,
    plain_check,
    resolved,
)
from cronjobs.engine.rules.payload_written import as_json, comes_back
from cronjobs.text import error_text

_NOTHING: Final = frozenset[type]()
_REST: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class HandlerPayload:
    """Checks payloads against the parameters of one handler.

    ``needs_pydantic`` lists the parameters that only pydantic can check. If *typed* is False, no values are checked.
    """

    def __init__(
        self, handler: Callable[..., Any], signature: inspect.Signature, *, takes_ctx: bool, typed: bool = True
    ) -> None:
        parameters = list(signature.parameters.values())[1 if takes_ctx else 0 :]
        annotations = _annotations(handler, parameters)
        self._misplaced = _misplaced_context(parameters, annotations)
        annotations = annotations if typed else {}
        self.needs_pydantic: list[str] = []
        self._checks: dict[str, Check] = {}
        self._rest: Check | None = None  # for ``**kwargs``
        # The check of all parameters together, if the handler takes ``**kwargs: Unpack[SomeTypedDict]``.
        self._record: Check | None = None
        required = set()
        for parameter in parameters:
            annotation = annotations.get(parameter.name, Any)
            if parameter.kind in _BY_NAME:
                self._checks[parameter.name] = self._check(parameter.name, annotation, parameter.default)
            elif parameter.kind is parameter.VAR_KEYWORD:
                if typing.get_origin(annotation) is typing.Unpack:
                    self._rest = UNCHECKED
                    self._record = self._check(parameter.name, typing.get_args(annotation)[0])
                else:
                    self._rest = self._check(parameter.name, annotation)
            if parameter.default is parameter.empty and parameter.kind not in _REST:
                # No payload can fill a positional-only parameter, so a handler that requires one fits no payload.
                required.add(parameter.name)
        self._plain = {name: check.plain for name, check in self._checks.items()}
        self._required = frozenset(required)

    def _check(self, name: str, annotation: Any, default: Any = ...) -> Check:
        try:
            # Read ``count: int = None`` as Optional[int], because type checkers accepted that spelling for years.
            annotation = annotation if default is not None else Optional[annotation]  # noqa: UP045
        # *annotation* is not a type, so Optional[annotation] fails.
        except TypeError:
            return UNCHECKED
        try:
            return plain_check(annotation)
        except NeedsTypes:
            self.needs_pydantic.append(name)
            return Check("", _read_by_pydantic(annotation))

    @property
    def fault(self) -> str | None:
        """The reason why this process cannot read any payload of the handler, or None if it can."""
        if self._misplaced is not None:
            return (
                f"the parameter {self._misplaced} of its handler is annotated Context, but only a first parameter "
                "named ctx gets the context: write (ctx: Context, …)"
            )
        if not self.needs_pydantic or _has_pydantic():
            return None
        names = ", ".join(self.needs_pydantic)
        return f"the annotations of its handler need pydantic 2.7 or newer ({names}): pip install 'cronjobs[types]'"

    def takes_names(self, names: Set[str]) -> bool:
        """Return whether a payload with these *names* certainly fits by name. If not, check the signature."""
        return self._rest is None and names <= self._checks.keys() and self._required <= names

    def first_unknown(self, names: Iterable[str]) -> str:
        """Return the first of *names* that no parameter accepts, or "".

        This finds the old name of a renamed parameter: the payload lacks the new name, and still has the old name.
        """
        return "" if self._rest is not None else next((name for name in names if name not in self._checks), "")

    def takes_as_it_is(self, payload: Mapping[str, Any]) -> bool:
        """A fast path: return whether the names, and the classes of the values, already show that the payload fits."""
        plain = self._plain
        for name, value in payload.items():
            if value.__class__ not in plain.get(name, _NOTHING):
                return False
        return self._required <= payload.keys() and self._record is None

    def decode(self, payload: Mapping[str, Any]) -> tuple[Mapping[str, Any], Misfits]:
        """Convert a JSON payload to the handler's arguments. The payload's names must already fit the handler."""
        return self._each(payload, lambda check, value, path, misfits: check.read(value, path, misfits))

    def encode(self, payload: Mapping[str, Any]) -> tuple[Mapping[str, Any], Misfits]:
        """Convert a payload to JSON. Each value has the type that the handler's parameter has, or is already JSON."""
        return self._each(payload, _written)

    def _each(
        self, payload: Mapping[str, Any], way: Callable[[Check, Any, Path, Misfits], Any]
    ) -> tuple[Mapping[str, Any], Misfits]:
        misfits = Misfits()
        if self.takes_as_it_is(payload):
            return payload, misfits
        try:
            own = {name: value for name, value in payload.items() if name in self._checks}
            done = {name: way(self._checks[name], value, (name,), misfits) for name, value in own.items()}
            others = {name: value for name, value in payload.items() if name not in own}
            if self._record is not None:
                done |= way(self._record, others, (), misfits) or {}
            else:
                rest = self._rest or UNCHECKED
                done |= {name: way(rest, value, (name,), misfits) for name, value in others.items()}
        except RecursionError:
            misfits.add((), "is nested too deeply")
            return payload, misfits
        # The code above runs user code, such as an __eq__, a __hash__ or a property, so it may raise anything.
        except Exception as error:
            misfits.add((), f"cannot be read: {error_text(error)}")
            return payload, misfits
        return done, misfits


def _written(check: Check, value: Any, path: Path, misfits: Misfits) -> Any:
    if value.__class__ in check.plain:
        return value
    written, before = as_json(value), misfits.count
    got = check.read(written, path, misfits)
    if misfits.count == before and not comes_back(value, got):
        misfits.add(path, f"changes when it is read: {_change(value, got)}")
    return written


def _change(value: Any, got: Any) -> str:
    given, read = type(value).__name__, type(got).__name__
    return (
        f"the payload has a {given}, and the handler would get a {read}"
        if given != read
        else "reading it again changes it"
    )


def _read_by_pydantic(annotation: Any) -> Callable[[Any, Path, Misfits], Any]:
    @functools.cache
    def reader() -> Any:
        # Imported only when a value that needs pydantic is read.
        from cronjobs.engine.rules.payload_pydantic import PydanticReader

        return PydanticReader(annotation)

    return lambda value, path, misfits: reader()(value, path, misfits)


@functools.cache
def _has_pydantic() -> bool:
    """Return whether pydantic 2.7 or newer is installed. Importing it to find out would cost each tick 0.1 s."""
    # Imported only for handlers whose annotations need pydantic.
    from importlib import metadata

    loaded = getattr(sys.modules.get("pydantic"), "VERSION", None)
    try:
        major, minor = (loaded or metadata.version("pydantic")).split(".")[:2]
    except metadata.PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= (2, 7)


def _annotations(handler: Callable[..., Any], parameters: list[inspect.Parameter]) -> dict[str, Any]:
    written = {each.name: each.annotation for each in parameters if each.annotation is not each.empty}
    return resolved(written, _names_of(handler))


def _misplaced_context(parameters: list[inspect.Parameter], annotations: dict[str, Any]) -> str | None:
    """Return the name of a required parameter that is annotated as Context but never gets the context, or None.

    *parameters* are the parameters that a payload fills, and a payload cannot contain a Context.
    """
    for each in parameters:
        found = annotations.get(each.name)
        if found is Any:  # perhaps a name that only the type checker knows
            is_context = each.annotation in ("Context", "cronjobs.Context")
        else:
            place = getattr(found, "__module__", ""), getattr(found, "__qualname__", "")
            is_context = place == ("cronjobs.engine.jobs.context", "Context")
        if is_context and each.default is each.empty:
            return each.name
    return None


def _names_of(handler: Any) -> Mapping[str, Any]:
    """Return the names that are in scope where the annotations of *handler* were written."""
    function = inspect.unwrap(handler)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    if isinstance(function, type):
        function = vars(function).get("__init__", function)
    elif not hasattr(function, "__globals__") and not inspect.ismethod(function):
        function = type(function).__call__
    names: Mapping[str, Any] | None = getattr(inspect.unwrap(function), "__globals__", None)
    return vars(sys.modules.get(getattr(function, "__module__", ""), typing)) if names is None else names
