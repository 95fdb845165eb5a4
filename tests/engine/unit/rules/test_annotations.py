"""What each annotation accepts, what the handler gets, and that written values are read back unchanged."""

# ruff: noqa: UP007, UP045 both spellings are meant

import inspect
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from typing import Annotated, Any, Generic, Literal, NewType, NotRequired, Optional, TypedDict, TypeVar, Union, get_args
from uuid import UUID

import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic_core.core_schema import ErrorType

from cronjobs.engine.jobs.handler_payload import HandlerPayload
from cronjobs.engine.rules import payload_pydantic
from cronjobs.engine.rules.annotations import UNCHECKED, Misfits, plain_check, resolved
from cronjobs.engine.rules.payload import payload_fault

# Older versions of pydantic raise Python's own error, which names no place.
UNHASHABLE = (
    "payload.p[0] is a list or an object, and a set can contain neither"
    if "set_item_not_hashable" in get_args(ErrorType)
    else "payload.p is refused: TypeError: unhashable type: 'list'"
)
COUNTER = map(float, itertools.count())


class Colour(Enum):
    RED = "red"
    BLUE = "blue"
    ODD = (1, 2)  # no JSON


class Other(Enum):
    RED = "red"


class Pair(Enum):
    ONE = (1, 2)
    TWO = Decimal(2)


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mode(StrEnum):
    FAST = "fast"


class Right(Flag):
    READ = 1
    WRITE = 2


@dataclass
class Line:
    sku: str
    price: Decimal
    count: int = 1


@dataclass(frozen=True)
class Order:
    id: int
    day: date
    lines: list[Line] = field(default_factory=list)
    parent: Optional["Order"] = None
    total: int = field(init=False, default=0)


@dataclass
class Card:
    number: str


@dataclass
class Cash:
    number: str


@dataclass
class Left:
    below: "Left | AlsoLeft | int"


@dataclass
class AlsoLeft:
    below: "Left | AlsoLeft | int"


@dataclass
class Picky:
    age: int

    def __post_init__(self) -> None:
        if self.age < 0:
            raise ValueError("nobody is that young")


@dataclass
class Money:
    cents: int  # made of an amount in euros

    def __post_init__(self) -> None:
        self.cents *= 100


class Word(str):
    def __str__(self) -> str:
        return "another"


@dataclass
class Loose:
    name: str
    level: int
    share: float
    parts: list[int]


class Parts(list[int]):
    pass


@dataclass
class Partly:
    line: "OnlyForTheTypeChecker"  # type: ignore[name-defined]  # noqa: F821
    day: "date"
    copies: int = None  # type: ignore[assignment]


class Address(TypedDict):
    street: str
    since: NotRequired[date]


class Customer(pydantic.BaseModel):
    id: int
    born: date | None = None


class Strict(pydantic.BaseModel, strict=True):
    id: int
    day: date = pydantic.Field(alias="theDay")


class Login(pydantic.BaseModel, extra="forbid"):
    name: str
    word: pydantic.SecretStr | None = None
    _seen: float = pydantic.PrivateAttr(default_factory=lambda: next(COUNTER))

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def shouted(self) -> str:
        return self.name.upper()


T = TypeVar("T")


def payload_of(annotation: Any) -> HandlerPayload:
    """What a handler asks whose only parameter ``p`` is annotated so."""

    def handler(p: Any) -> None: ...

    handler.__annotations__ = {"p": annotation}
    return HandlerPayload(handler, inspect.signature(handler), takes_ctx=False)


def decoded(annotation: Any, value: Any) -> tuple[Any, str]:
    """What the handler gets for JSON, and what does not fit."""
    of = annotation if isinstance(annotation, HandlerPayload) else payload_of(annotation)
    payload, misfits = of.decode({"p": value})
    return payload["p"], str(misfits)


def encoded(annotation: Any, value: Any) -> tuple[Any, str]:
    """The JSON that is written for what somebody enqueues, and what does not fit."""
    of = annotation if isinstance(annotation, HandlerPayload) else payload_of(annotation)
    payload, misfits = of.encode({"p": value})
    return payload["p"], str(misfits)


@dataclass
class Box(Generic[T]):
    item: T


UserId = NewType("UserId", int)
U = UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)

# Annotation, the JSON, and what the handler gets.
TAKEN: list[tuple[Any, Any, Any]] = [
    (str, "x", "x"),
    (int, 3, 3),
    (int, 10**30, 10**30),
    (bool, True, True),
    (None, None, None),
    (float, 1.5, 1.5),
    (float, 3, 3.0),
    (Decimal, "19.90", Decimal("19.90")),
    (Decimal, 20, Decimal(20)),
    (date, "2026-11-23", date(2026, 11, 23)),
    (datetime, "2026-11-23T12:00:00+00:00", NOON),
    (datetime, "2026-11-23T12:00:00Z", NOON),
    (datetime, "2026-11-23 12:00", datetime(2026, 11, 23, 12)),  # noqa: DTZ001 naive as it was written
    (time, "09:30", time(9, 30)),
    (timedelta, 90, timedelta(seconds=90)),
    (timedelta, "1h30m", timedelta(minutes=90)),
    (UUID, str(U), U),
    (UUID, U.hex, U),
    (Colour, "red", Colour.RED),
    (Level, 2, Level.HIGH),
    (Mode, "fast", Mode.FAST),
    (Right, 3, Right.READ | Right.WRITE),
    (Literal["a", 1, None], 1, 1),
    (list[int], [1, 2], [1, 2]),
    (list, [1, "x"], [1, "x"]),
    (Sequence[date], ["2026-11-23"], [date(2026, 11, 23)]),
    (Iterable[str], ["x"], ["x"]),
    (tuple[int, str], [1, "x"], (1, "x")),
    (tuple[int, ...], [1, 2, 3], (1, 2, 3)),
    (tuple[()], [], ()),
    (set[int], [1, 2], {1, 2}),
    (frozenset[Colour], ["red"], frozenset({Colour.RED})),
    (dict[str, Decimal], {"a": "1.5"}, {"a": Decimal("1.5")}),
    (dict[int, str], {"7": "x"}, {7: "x"}),
    (Mapping[date, int], {"2026-11-23": 1}, {date(2026, 11, 23): 1}),
    (dict, {"a": [1]}, {"a": [1]}),
    (Optional[date], None, None),
    (date | None, "2026-11-23", date(2026, 11, 23)),
    (int | str, "7", "7"),
    (float | int, 7, 7),
    (Union[date, str], "soon", "soon"),
    (Union[date, str], "2026-11-23", date(2026, 11, 23)),
    (str | date, "2026-11-23", "2026-11-23"),
    (UserId, 3, 3),
    (Annotated[int, "positive"], 3, 3),
    (Line, {"sku": "x", "price": "2"}, Line("x", Decimal(2))),
    (
        Order,
        {"id": 1, "day": "2026-11-23", "parent": {"id": 2, "day": "2026-11-24"}},
        Order(1, date(2026, 11, 23), [], Order(2, date(2026, 11, 24))),
    ),
    (Address, {"street": "x", "since": "2026-11-23"}, {"street": "x", "since": date(2026, 11, 23)}),
    (Partly, {"line": 7, "day": "2026-11-23"}, Partly(7, date(2026, 11, 23))),
    (Box[int], {"item": 3}, Box(3)),
    (Customer, {"id": 1, "born": "2000-01-01"}, Customer(id=1, born=date(2000, 1, 1))),
    (list[Customer] | None, [{"id": 1}], [Customer(id=1)]),
    (Strict, {"id": 1, "theDay": "2026-11-23"}, Strict(id=1, theDay=date(2026, 11, 23))),
    (Annotated[int, pydantic.Field(gt=0)], 3, 3),
    # The annotation is unknown, so the value is passed as it came.
    (Any, {"a": [1]}, {"a": [1]}),
    (object, 1, 1),
    (Callable[[], int], "x", "x"),
    (T, "x", "x"),
    ("not resolved", 3, 3),
]


@pytest.mark.parametrize(("annotation", "value", "gets"), TAKEN, ids=[str(row[0])[:60] for row in TAKEN])
def test_what_fits_becomes_what_was_annotated_and_back(annotation: Any, value: Any, gets: Any) -> None:
    got, fault = decoded(annotation, value)
    assert (got, type(got), fault) == (gets, type(gets), "")
    written, fault = encoded(annotation, got)
    assert (payload_fault({"a": written}), fault) == (None, "")
    assert decoded(annotation, json.loads(json.dumps(written))) == (gets, "")
    assert encoded(annotation, value) == (value, ""), "what fits already is written as it is"


REFUSED: list[tuple[Any, Any, str]] = [
    (int, "abc", "payload.p is not an int"),
    (int, True, "payload.p is not an int"),
    (int, 1.0, "payload.p is not an int"),
    (int, None, "payload.p is not an int"),
    (float | date, math.inf, "payload.p is not a date"),
    (bool, 1, "payload.p is not a bool"),
    (bool, "true", "payload.p is not a bool"),
    (str, 1, "payload.p is not a str"),
    (float, True, "payload.p is not a float"),
    (float, 10**400, "payload.p is too large for a float"),
    (Decimal, 19.9, 'payload.p is a float, which may have lost digits: write a Decimal as text, "19.99"'),
    (Decimal, "NaN", 'payload.p is not a Decimal like "19.99"'),
    (Decimal, "1_000", 'payload.p is not a Decimal like "19.99"'),
    (date, "2026-13-01", 'payload.p is not a date like "2026-11-23"'),
    (date, "2026-11-23T09:00:00", 'payload.p is not a date like "2026-11-23"'),
    (date, "20261123", 'payload.p is not a date like "2026-11-23"'),
    (datetime, "2026-11-23", 'payload.p is not an instant like "2026-11-23T09:30:00+01:00"'),
    (time, "25:00", 'payload.p is not a time like "09:30"'),
    (timedelta, "soon", 'payload.p is not a span like "90s", or a number of seconds'),
    (UUID, "x", "payload.p is not a UUID"),
    (Colour, "teal", 'payload.p is not one of "red", "blue"'),
    (Colour, "RED", 'payload.p is not one of "red", "blue"'),
    (Level, True, "payload.p is not one of 1, 2"),
    (Right, 8, "payload.p is not one of 1, 2"),
    (Literal["a"], "b", 'payload.p is not one of "a"'),
    (bytes, "x", "payload.p cannot be bytes, which JSON lacks: annotate it as str, and pass base64"),
    (list[int], "x", "payload.p is not a list"),
    (list[int], [1, "x", 2], "payload.p[1] is not an int"),
    (set[list[int]], [[1]], UNHASHABLE),
    (tuple[int, str], [1], "payload.p is not a list of 2"),
    (dict[str, int], [], "payload.p is not an object"),
    (dict[str, int], {"a": {"b": 1}}, "payload.p.a is not an int"),
    (dict[int, int], {"01": 1}, "payload.p.01 is not a whole number"),
    (int | date, "x", 'payload.p is not an int or a date like "2026-11-23"'),
    (int | None, "x", "payload.p is not an int or null"),
    (Line | None, {"sku": 1, "price": "2"}, "payload.p.sku is not a str"),
    (Line, {"sku": "x"}, "payload.p.price is missing"),
    (Line, {"sku": "x", "price": "2", "count": "1"}, "payload.p.count is not an int"),
    (list[date | int], ["1"], "payload.p[0] is not a date"),
    (Line, {"sku": "x", "price": "2", "prize": 1}, "payload.p.prize is an unknown field"),
    (Line, "x", "payload.p is not a Line"),
    (Picky, {"age": -1}, "payload.p is refused: ValueError: nobody is that young"),
    (Order, {"id": 1, "day": "2026-11-23", "total": 3}, "payload.p.total is an unknown field"),
    (
        Order,
        {"id": 1, "day": "2026-11-23", "parent": {"id": "x", "day": "2026-11-23", "parent": {}}},
        "payload.p.parent.id is not an int; payload.p.parent.parent.id is missing; payload.p.parent.parent.day",
    ),
    (Address, {"since": "x"}, "payload.p.street is missing"),
    (Address, {"street": "x", "zip": "1"}, "payload.p.zip is an unknown field"),
    (Customer, {"id": "x"}, "payload.p.id is not an int"),
    (Strict, {"id": "1", "theDay": "2026-11-23"}, "payload.p.id is not an int"),
    (Strict, {"id": 1}, "payload.p.theDay is missing"),
    (Annotated[int, pydantic.Field(gt=0)], -1, "payload.p does not fit: greater than (gt 0)"),
    (list[int], ["a"] * 9, "payload.p[2] is not an int; and 6 more"),
]


@pytest.mark.parametrize(("annotation", "value", "says"), REFUSED, ids=[f"{row[0]}-{row[2]}"[:90] for row in REFUSED])
def test_what_does_not_fit_is_named_with_its_place(annotation: Any, value: Any, says: str) -> None:
    for way in (decoded, encoded):
        assert says in way(annotation, value)[1]


@pytest.mark.parametrize(
    ("annotation", "value", "says"),
    [
        (date, NOON, "payload.p is not a date like"),
        (int, U, "payload.p is not an int"),
        (str, U, "changes when it is read: the payload has a UUID, and the handler would get a str"),
        (list[Any], [NOON], "payload.p changes when it is read"),
        (dict[int, str], {1.0: "x"}, "is not a whole number"),
        (Decimal, Decimal("NaN"), "payload.p is not a Decimal"),
        (Colour, Colour.ODD, 'is not one of "red", "blue"'),
        (Pair, Pair.ONE, "is not a member: no member has a value that JSON can hold; use strings"),
        (Colour, Level.LOW, "is not one of"),
        (Colour, Other.RED, "the payload has a Other, and the handler would get a Colour"),
        (Line, Picky(3), "payload.p.sku is missing"),
        (Line, {"sku": U, "price": "1"}, "changes when it is read"),
        (Card | Cash, Cash("7"), "changes when it is read: the payload has a Cash, and the handler would get a Card"),
        (list[Card | Cash], [Cash("7")], "changes when it is read"),
        (
            str | date,
            date(2026, 11, 23),
            "changes when it is read: the payload has a date, and the handler would get a str",
        ),
        (set[str | date], {date(2026, 11, 23)}, "changes when it is read"),
        (dict[str | date, int], {date(2026, 11, 23): 1}, "changes when it is read"),
        (Login, Login(name="ada", word=pydantic.SecretStr("x")), "changes when it is read"),
        (timedelta, timedelta(days=365_000, microseconds=1), "changes when it is read"),
        (Money, Money(5), "changes when it is read: reading it again changes it"),
        (list[Money | None], [Money(5)], "changes when it is read"),
        (list[int], {1, 2}, "changes when it is read: the payload has a set, and the handler would get a list"),
    ],
)
def test_a_value_that_would_not_come_back_is_not_written(annotation: Any, value: Any, says: str) -> None:
    assert says in encoded(annotation, value)[1]


def test_a_value_of_a_subclass_is_written_as_json_has_it_also_inside_a_record() -> None:
    loose = Loose(Word("x"), Level.LOW, type("Share", (float,), {})(0.5), Parts([1]))
    for value in (loose, vars(loose)):
        written, fault = encoded(Loose, value)
        assert (written, fault) == ({"name": "x", "level": 1, "share": 0.5, "parts": [1]}, "")
        assert [type(each) for each in written.values()] == [str, int, float, list]


def test_what_a_model_adds_to_its_fields_is_not_written() -> None:
    assert encoded(Login, Login(name="ada")) == ({"name": "ada", "word": None}, "")


def test_a_field_whose_default_is_none_takes_null() -> None:
    got = Partly(1, date(2026, 11, 23), None)  # type: ignore[arg-type]
    assert decoded(Partly, {"line": 1, "day": "2026-11-23", "copies": None}) == (got, "")
    assert decoded(Partly, {"line": 1, "day": "2026-11-23", "copies": "x"})[1] == "payload.p.copies is not an int"


def test_alternatives_in_alternatives_end_before_they_take_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_pydantic, "MOST_TRIALS", 1000)
    value: Any = "no int"
    for _ in range(12):
        value = {"below": value}
    reader, misfits = payload_pydantic.PydanticReader(Left), Misfits()
    reader(value, ("p",), misfits)
    assert (str(misfits), reader._trials) == ("payload.p has a type with too many combined unions to check", 1001)


@pytest.mark.parametrize("annotation", [row[0] for row in TAKEN], ids=[str(row[0])[:60] for row in TAKEN])
def test_no_error_repeats_the_value(annotation: Any) -> None:
    for each, value in itertools.product((annotation, list[annotation]), ("hunter2", ["hunter2"], {"": "hunter2"})):
        assert "hunter2" not in decoded(each, value)[1] + encoded(each, value)[1]


def test_names_that_cannot_be_resolved_leave_the_others_alone() -> None:
    found = resolved({"a": "Order | None", "b": "OnlyForTheTypeChecker", "c": "list[", "d": int}, globals())
    assert found == {"a": Order | None, "b": Any, "c": Any, "d": int}
    assert plain_check(found["b"]) is UNCHECKED


def test_what_cannot_be_hashed_is_no_error() -> None:
    assert plain_check([int]) is UNCHECKED
    assert plain_check(Annotated[int, []]) is plain_check(int)


# --- properties -------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(2**70), 2**70)),
    (str, TEXTS),
    (bool, st.booleans()),
    (float, FLOATS),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (date, st.dates()),
    (datetime, st.datetimes(timezones=OFFSETS) | st.datetimes()),
    (time, st.times()),
    (timedelta, st.timedeltas(timedelta(days=-90_000), timedelta(days=90_000))),
    (UUID, st.uuids()),
    (Colour, st.sampled_from([Colour.RED, Colour.BLUE])),
    (Level, st.sampled_from(Level)),
    (Literal["a", 1], st.sampled_from(["a", 1])),
    (Line, st.builds(Line, TEXTS, st.decimals(allow_nan=False, allow_infinity=False), st.integers())),
    (Customer, st.builds(Customer, id=st.integers(-(2**60), 2**60), born=st.none() | st.dates())),
]
KEYS = [leaf for leaf in LEAVES if leaf[0] in (str, int, date, UUID)]


def of(origin: Any, *arguments: Any) -> Any:
    return origin[arguments[0] if len(arguments) == 1 else arguments]


def _wrapped(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda pair: (of(list, pair[0]), st.lists(pair[1], max_size=3))),
        inner.map(lambda pair: (of(tuple, pair[0], ...), st.lists(pair[1], max_size=3).map(tuple))),
        inner.map(lambda pair: (pair[0] | None, st.none() | pair[1])),
        st.tuples(st.sampled_from(KEYS), inner).map(
            lambda two: (of(dict, two[0][0], two[1][0]), st.dictionaries(two[0][1], two[1][1], max_size=3))
        ),
        st.tuples(inner, inner).map(lambda two: (of(tuple, two[0][0], two[1][0]), st.tuples(two[0][1], two[1][1]))),
    )


ANNOTATIONS = st.recursive(st.sampled_from(LEAVES), _wrapped, max_leaves=5)
FITTING = ANNOTATIONS.flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXTS | st.dates().map(str) | st.uuids().map(str),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.just("sku"), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(FITTING)
@example((float, 1e16))
def test_what_is_written_comes_back(pair: tuple[Any, Any]) -> None:
    of, value = payload_of(pair[0]), pair[1]
    written, fault = encoded(of, value)
    back, misfit = decoded(of, json.loads(json.dumps(written, allow_nan=False)))
    assert (fault, misfit, back, type(back)) == ("", "", value, type(value))


@settings(max_examples=150, deadline=None)
@given(ANNOTATIONS, JSON)
def test_any_json_fits_or_is_named_and_nothing_is_raised(pair: tuple[Any, Any], value: Any) -> None:
    of = payload_of(pair[0])
    got, fault = decoded(of, value)
    assert bool(encoded(of, value)[1]) == bool(fault), "what may be enqueued is what can be run"
    if not fault:
        assert decoded(of, json.loads(json.dumps(encoded(of, got)[0]))) == (got, "")


# Where what we check ourselves and a strict pydantic mean the same.
WORDS: tuple[Any, Any] = (Literal["a", "b"], st.sampled_from(["a", "b"]))
SHARED = st.recursive(
    st.sampled_from([WORDS, *(pair for pair in LEAVES if pair[0] in (int, str, bool, float))]), _wrapped, max_leaves=4
)


@settings(max_examples=100, deadline=None)
@given(SHARED.flatmap(lambda pair: st.tuples(st.just(pair[0]), JSON | pair[1])))
def test_what_is_plain_is_read_as_pydantic_reads_it(pair: tuple[Any, Any]) -> None:
    annotation, value = pair
    value = json.loads(json.dumps(_texts_for_keys(value)))
    misfits = Misfits()
    got = payload_pydantic.PydanticReader(annotation)(value, ("p",), misfits)
    plain, fault = decoded(annotation, value)
    assert bool(misfits.count) is bool(fault), (str(misfits), fault)
    assert misfits.count or (got, type(got)) == (plain, type(plain))


def _texts_for_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _texts_for_keys(item) for key, item in value.items()}
    return [_texts_for_keys(item) for item in value] if isinstance(value, list | tuple) else value
