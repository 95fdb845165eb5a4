"""What a handler's signature requires of a payload, for all kinds of signatures."""

from __future__ import annotations

import decimal
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import pytest

import cronjobs
from cronjobs.engine.jobs import handler_payload
from cronjobs.engine.jobs.registry import Registration
from cronjobs.errors import PayloadError

if TYPE_CHECKING:
    from nowhere import OnlyForTheTypeChecker  # type: ignore[import-not-found]

    from cronjobs import Context

DAY, TEXT = date(2026, 11, 23), "2026-11-23"


class Rest(TypedDict, total=False):
    day: date


def plain(day: date, copies: int = 1) -> None: ...


def with_ctx(ctx: OnlyForTheTypeChecker, day: date, copies: int = 1) -> None: ...


def by_name(*, day: date, copies: int | None = None, **others: Any) -> None: ...


def with_rest(copies: int = 1, **days: date) -> None: ...


def with_typed_rest(copies: int = 1, **rest: Unpack[Rest]) -> None: ...


def with_default_none(day: date = None, copies: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013


def without_annotations(day, copies=1): ...  # type: ignore[no-untyped-def]


def unresolved(day: OnlyForTheTypeChecker, copies: int = 1) -> None: ...


async def in_a_loop(day: date, copies: int = 1) -> None: ...


@functools.wraps(plain)
def wrapped(*args: Any, **kwargs: Any) -> None: ...


class Callee:
    def __call__(self, day: date, copies: int = 1) -> None: ...

    def method(self, day: date, copies: int = 1) -> None: ...


@dataclass
class Made:
    day: date
    copies: int = 1


@dataclass
class Tree:
    inner: Tree | None = None


HANDLERS: list[Callable[..., Any]] = [
    plain,
    with_ctx,
    by_name,
    with_rest,
    with_typed_rest,
    with_default_none,
    in_a_loop,
    wrapped,
    Callee(),
    Callee().method,
    Made,
    functools.partial(plain, copies=2),
    functools.partial(with_rest, 7),
]


@pytest.mark.parametrize("handler", HANDLERS, ids=[getattr(each, "__name__", type(each).__name__) for each in HANDLERS])
def test_every_kind_of_handler_gets_the_date_that_it_annotates(handler: Callable[..., Any]) -> None:
    registration = Registration("t.h", handler)
    assert registration.bind({"day": TEXT}) is None
    decoded, misfits = registration.decoded({"day": TEXT})
    assert (decoded, misfits.count) == ({"day": DAY}, 0)
    assert registration.encoded({"day": DAY}) == {"day": TEXT}
    assert registration.bind({"day": "soon"}) == 'payload does not fit t.h: payload.day is not a date like "2026-11-23"'


@pytest.mark.parametrize("handler", [without_annotations, unresolved])
def test_what_is_not_annotated_or_not_resolved_is_unchecked_and_the_rest_is_not(handler: Callable[..., Any]) -> None:
    registration = Registration("t.h", handler)
    assert registration.decoded({"day": TEXT})[0] == {"day": TEXT}
    assert registration.bind({"day": {"any": "thing"}}) is None
    copies = registration.bind({"day": TEXT, "copies": "x"})
    assert copies == (
        None if handler is without_annotations else "payload does not fit t.h: payload.copies is not an int"
    )


def misnamed(context: cronjobs.Context, day: date) -> None: ...


def not_first(day: date, ctx: Context) -> None: ...  # Context is imported for the type checker only


def two(ctx: Context, other: cronjobs.Context) -> None: ...


def never_passed(day: date, context: Context | None = None, ctx: cronjobs.Context = None) -> None: ...  # type: ignore[assignment]


def of_another_library(context: decimal.Context, day: date) -> None: ...


@pytest.mark.parametrize(
    ("handler", "name"),
    [
        (misnamed, "context"),
        (not_first, "ctx"),
        (two, "other"),
        (with_ctx, None),
        (never_passed, None),
        (of_another_library, None),
    ],
)
def test_a_context_that_the_handler_would_never_get_is_a_fault(handler: Any, name: str | None) -> None:
    said = (
        f"the parameter {name} of its handler is annotated Context, but only a first parameter named ctx gets the "
        "context: write (ctx: Context, …)"
    )
    for check_types in (True, False):
        registration = Registration("t.h", handler, check_types=check_types)
        assert registration.fault == (None if name is None else said)


def test_types_of_a_handlers_own_function_are_not_resolved_and_that_is_no_error() -> None:
    class Local: ...

    def handler(day: Local, copies: int) -> None: ...

    assert Registration("t.h", handler).bind({"day": 1, "copies": 2}) is None


def test_a_parameter_whose_default_is_none_takes_null() -> None:
    assert Registration("t.h", with_default_none).bind({"day": None, "copies": None}) is None
    assert Registration("t.h", plain).bind({"day": None}) is not None


@pytest.mark.parametrize(
    ("handler", "payload", "says"),
    [
        (plain, {"day": TEXT, "dya": 1}, "got an unexpected keyword argument 'dya'"),
        (plain, {}, "missing a required argument: 'day'"),
        (plain, {"dya": 1}, "missing a required argument: 'day', and got an unexpected keyword argument 'dya'"),
        (with_typed_rest, {"copies": 1, "dya": 1}, "payload.dya is an unknown field"),
        (with_rest, {"first": TEXT, "second": 1}, 'payload.second is not a date like "2026-11-23"'),
        (by_name, {"day": TEXT, "copies": True}, "payload.copies is not an int or null"),
    ],
)
def test_names_and_values_that_do_not_fit_are_named(handler: Any, payload: dict[str, Any], says: str) -> None:
    registration = Registration("t.h", handler)
    assert says in str(registration.bind(payload))
    with pytest.raises(PayloadError, match=r"payload does not fit t\.h"):
        registration.encoded(payload)


def test_what_has_no_name_cannot_be_in_a_payload() -> None:
    def positional(day: date, /, copies: int = 1) -> None: ...

    assert Registration("t.h", positional).bind({"copies": 1}) is not None
    assert Registration("t.h", positional).bind({"day": TEXT}) is not None


def test_types_are_left_alone_where_that_is_said() -> None:
    registration = Registration("t.h", plain, check_types=False)
    assert registration.decoded({"day": TEXT, "copies": "x"})[0] == {"day": TEXT, "copies": "x"}
    assert registration.encoded({"day": 1}) == {"day": 1}
    assert registration.bind({"dya": 1}) is not None


@pytest.mark.parametrize("version", ["1.10.24", "2.6.4"])
def test_without_a_new_pydantic_only_a_handler_that_needs_it_is_at_fault(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pydantic.VERSION", version)
    monkeypatch.setattr(handler_payload, "_has_pydantic", handler_payload._has_pydantic.__wrapped__)
    fault = "the annotations of its handler need pydantic 2.7 or newer (day): pip install 'cronjobs[types]'"
    assert Registration("t.h", plain).fault == fault
    assert Registration("t.h", plain).encoded({"day": "soon"}) == {"day": "soon"}, "nothing is known of it here"
    assert Registration("t.h", plain, check_types=False).fault is None
    assert Registration("t.h", of_json).fault is None
    assert Registration("t.h", of_json).bind({"ids": [1, "2"]}) == (
        "payload does not fit t.h: payload.ids[1] is not an int"
    )


def of_json(ids: list[int] | None = None) -> None: ...


def test_what_cannot_be_a_handler_keeps_nothing_from_being_enqueued() -> None:
    def generator(day: date) -> Any:
        yield day

    assert Registration("t.h", generator).encoded({"day": 1}) == {"day": 1}


def test_a_value_that_contains_itself_is_refused() -> None:
    def handler(tree: Tree) -> None: ...

    endless: dict[str, Any] = {}
    endless["inner"] = endless
    with pytest.raises(PayloadError, match="payload is nested too deeply"):
        Registration("t.h", handler).encoded({"tree": endless})


def test_code_of_the_users_that_raises_is_a_misfit() -> None:
    class Hostile(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            raise SystemError("no comparison")

        __hash__ = str.__hash__

    def handler(colour: date | str | int) -> None: ...

    registration = Registration("t.h", handler)
    try:
        registration.encoded({"colour": Hostile("x")})
    except PayloadError as error:
        assert "payload" in str(error)  # noqa: PT017 either is fine; nothing else may come out


def test_a_handler_is_read_once_whoever_comes_first() -> None:
    registration, gate = Registration("t.h", plain), threading.Barrier(4)
    seen: list[Any] = []

    def look() -> None:
        gate.wait()
        seen.append(registration.decoded({"day": TEXT})[0])

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [{"day": DAY}] * 4
