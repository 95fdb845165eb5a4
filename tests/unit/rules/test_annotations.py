"""What each annotation takes, what the handler gets for it, and that what is written comes back."""

# ruff: noqa: UP007, UP045 both spellings are meant

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from typing import Annotated, Any, Generic, Literal, NewType, NotRequired, Optional, TypedDict, TypeVar, Union
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cronjobs.rules.annotations import UNCHECKED, kind_of, resolved
from cronjobs.rules.payload import payload_fault
from cronjobs.rules.payload_kinds import Misfits

COUNTER = map(float, itertools.count())


class Colour(Enum):
    RED = "red"
    BLUE = "blue"
    ODD = (1, 2)  # no JSON


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


@dataclass(init=False)
class OwnInit:
    cents: int

    def __init__(self, euros: int) -> None:
        self.cents = 100 * euros


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
class Seeded:
    kept: int
    seed: InitVar[int]


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


class Part(msgspec.Struct):
    sku: str
    made: date


class Spot(msgspec.Struct):
    parts: list[Part]


class Coins(msgspec.Struct):
    cents: int

    def __post_init__(self) -> None:
        self.cents *= 100


T = TypeVar("T")


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
    (Customer, {"id": 1, "born": "2000-01-01"}, Customer(id=1, born=date(2000, 1, 1))),
    (list[Customer] | None, [{"id": 1}], [Customer(id=1)]),
    (Strict, {"id": 1, "theDay": "2026-11-23"}, Strict(id=1, theDay=date(2026, 11, 23))),
    (Part, {"sku": "x", "made": "2026-11-23"}, Part("x", date(2026, 11, 23))),
    (Annotated[int, pydantic.Field(gt=0)], 3, 3),
    (Annotated[int, msgspec.Meta(gt=0)], 3, 3),
    # Not known, so as it came.
    (Any, {"a": [1]}, {"a": [1]}),
    (object, 1, 1),
    (Box[int], {"item": "x"}, {"item": "x"}),
    (Seeded, {"kept": 1}, {"kept": 1}),
    (Callable[[], int], "x", "x"),
    (T, "x", "x"),
    ("not resolved", 3, 3),
]


@pytest.mark.parametrize(("annotation", "value", "gets"), TAKEN, ids=[str(row[0])[:60] for row in TAKEN])
def test_what_fits_becomes_what_was_annotated_and_back(annotation: Any, value: Any, gets: Any) -> None:
    kind, misfits = kind_of(annotation), Misfits()
    decoded = kind.decode(value, (), misfits)
    assert (decoded, type(decoded), str(misfits)) == (gets, type(gets), "")
    written = kind.encode(decoded, (), misfits)
    assert (payload_fault({"a": written}), str(misfits)) == (None, "")
    assert kind.decode(json.loads(json.dumps(written)), (), misfits) == gets
    assert kind.encode(value, (), misfits) == value, "what fits already is written as it is"
    assert not misfits.count


REFUSED: list[tuple[Any, Any, str]] = [
    (int, "abc", 'payload.p: "abc" is not an int'),
    (int, True, "payload.p: true is not an int"),
    (int, 1.0, "payload.p: 1.0 is not an int"),
    (int, None, "payload.p: null is not an int"),
    (bool, 1, "payload.p: 1 is not a bool"),
    (bool, "true", 'payload.p: "true" is not a bool'),
    (str, 1, "payload.p: 1 is not a str"),
    (float, True, "payload.p: true is not a float"),
    (float, 10**400, "payload.p: a very large number is too large for a float"),
    (Decimal, 19.9, 'payload.p: 19.9 is a float, which may have lost digits: write a Decimal as text, "19.99"'),
    (Decimal, "NaN", 'payload.p: "NaN" is not a Decimal like "19.99"'),
    (Decimal, "1_000", 'payload.p: "1_000" is not a Decimal like "19.99"'),
    (date, "2026-13-01", 'payload.p: "2026-13-01" is not a date like "2026-11-23"'),
    (date, "2026-11-23T09:00:00", 'payload.p: "2026-11-23T09:00:00" is not a date like "2026-11-23"'),
    (date, "20261123", 'payload.p: "20261123" is not a date like "2026-11-23"'),
    (datetime, "2026-11-23", 'payload.p: "2026-11-23" is not an instant like "2026-11-23T09:30:00+01:00"'),
    (time, "25:00", 'payload.p: "25:00" is not a time like "09:30"'),
    (timedelta, "soon", 'payload.p: "soon" is not a span like "90s", or a number of seconds'),
    (UUID, "x", 'payload.p: "x" is not a UUID'),
    (Colour, "teal", 'payload.p: "teal" is not one of "red", "blue"'),
    (Colour, "RED", 'payload.p: "RED" is not one of "red", "blue"'),
    (Level, True, "payload.p: true is not one of 1, 2"),
    (Right, 8, "payload.p: 8 is not one of 1, 2"),
    (Literal["a"], "b", 'payload.p: "b" is not one of "a"'),
    (bytes, "x", 'payload.p: "x" cannot be bytes, which JSON has not: annotate it str, and pass base64'),
    (list[int], "x", 'payload.p: "x" is not a list'),
    (list[int], [1, "x", 2], 'payload.p[1]: "x" is not an int'),
    (set[list[int]], [[1]], "payload.p: a list of 1 is not a list: its items cannot be compared"),
    (tuple[int, str], [1], "payload.p: a list of 1 is not a list of 2"),
    (dict[str, int], [], "payload.p: a list of 0 is not an object"),
    (dict[str, int], {"a": {"b": 1}}, "payload.p.a: an object is not an int"),
    (dict[int, int], {"01": 1}, 'payload.p.01: "01" is not a whole number'),
    (int | date, "x", 'payload.p: "x" is not a date like "2026-11-23"'),
    (int | None, "x", 'payload.p: "x" is not an int or null'),
    (Line | None, {"sku": 1, "price": "2"}, "payload.p.sku: 1 is not a str"),
    (Line, {"sku": "x"}, "payload.p.price is missing"),
    (Line, {"sku": "x", "price": "2", "prize": 1}, "payload.p.prize is no field of Line"),
    (Line, "x", 'payload.p: "x" is not a Line'),
    (Picky, {"age": -1}, "payload.p is refused by Picky: ValueError: nobody is that young"),
    (Order, {"id": 1, "day": "2026-11-23", "total": 3}, "payload.p.total is no field of Order"),
    (
        Order,
        {"id": 1, "day": "2026-11-23", "parent": {"id": "x", "day": "2026-11-23", "parent": {}}},
        'payload.p.parent.id: "x" is not an int; payload.p.parent.parent.id is missing; payload.p.parent.parent.day',
    ),
    (Address, {"since": "x"}, "payload.p.street is missing"),
    (Customer, {"id": "x"}, 'payload.p.id: "x" does not fit: input should be a valid integer'),
    (Strict, {"id": "1", "theDay": "2026-11-23"}, 'payload.p.id: "1" does not fit: input should be a valid integer'),
    (Strict, {"id": 1}, "payload.p.theDay is missing"),
    (Spot, {"parts": [{"sku": 1, "made": "x"}]}, "payload.p.parts[0].sku does not fit: expected `str`, got `int`"),
    (Spot, {}, "payload.p does not fit: object missing required field `parts`"),
    (Annotated[int, pydantic.Field(gt=0)], -1, "payload.p: -1 does not fit: input should be greater than 0"),
    (Annotated[int, msgspec.Meta(gt=0)], -1, "payload.p does not fit: expected `int` >= 1"),
    (list[int], ["a"] * 9, 'payload.p[2]: "a" is not an int; and 6 more'),
]


@pytest.mark.parametrize(("annotation", "value", "says"), REFUSED, ids=[f"{row[0]}-{row[2]}"[:90] for row in REFUSED])
def test_what_does_not_fit_is_named_with_its_place(annotation: Any, value: Any, says: str) -> None:
    for way in ("decode", "encode"):
        misfits = Misfits()
        getattr(kind_of(annotation), way)(value, ("p",), misfits)
        assert says in str(misfits), way


@pytest.mark.parametrize(
    ("annotation", "value", "says"),
    [
        (date, NOON, "a value of type datetime is not a date like"),
        (int, U, "a value of type UUID is not an int"),
        (Decimal, Decimal("NaN"), "Decimal('NaN') cannot be written as a Decimal"),
        (Colour, Colour.ODD, "Colour.ODD has a value that JSON has not: give it a text or a number"),
        (Pair, Pair.ONE, "Pair.ONE has a value that JSON has not: give it a text or a number"),
        (Pair, "one", '"one" is not one of its type, of which no member has a value that JSON has: give it a text'),
        (Colour, Level.LOW, "a value of type Level is not one of"),
        (Line, Picky(3), "a value of type Picky is not a Line"),
        (Card | Cash, Cash("7"), "would not be read as itself: this is a Card or a Cash, and the first counts"),
        (str | date, date(2026, 11, 23), "would not be read as itself"),
        (
            Login,
            Login(name="ada", word=pydantic.SecretStr("x")),
            "would not be read as itself: pydantic writes a Login",
        ),
        (timedelta, timedelta(days=365_000, microseconds=1), "cannot be written as a span"),
        (Money, Money(5), "would not be read as itself: making a Money of its own values changes them"),
        (Coins, Coins(5), "would not be read as itself: making a Coins of its own values changes them"),
        (list[Money | None], [Money(5)], "would not be read as itself"),
        (OwnInit, OwnInit(5), "is refused by OwnInit: TypeError"),
    ],
)
def test_a_value_that_would_not_come_back_is_not_written(annotation: Any, value: Any, says: str) -> None:
    misfits = Misfits()
    kind_of(annotation).encode(value, (), misfits)
    assert says in str(misfits)


def test_a_value_of_a_subclass_is_written_as_json_has_it_also_inside_a_record() -> None:
    loose, misfits = Loose(Word("x"), Level.LOW, type("Share", (float,), {})(0.5), Parts([1])), Misfits()
    for value in (loose, vars(loose)):
        written = kind_of(Loose).encode(value, (), misfits)
        assert (written, str(misfits)) == ({"name": "x", "level": 1, "share": 0.5, "parts": [1]}, "")
        assert [type(each) for each in written.values()] == [str, int, float, list]


def test_what_a_model_adds_to_its_fields_is_not_written() -> None:
    misfits = Misfits()
    assert kind_of(Login).encode(Login(name="ada"), (), misfits) == {"name": "ada", "word": None}
    assert not misfits.count


def test_alternatives_in_alternatives_end_before_they_take_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cronjobs.rules.payload_kinds.MOST_TRIALS", 1000)
    value: Any = "no int"
    for _ in range(12):
        value = {"below": value}
    for way in ("decode", "encode"):
        misfits = Misfits()
        getattr(kind_of(Left), way)(value, (), misfits)
        assert misfits.count
        assert misfits._tried[0] < 1100


def test_a_secret_is_not_repeated() -> None:
    misfits = Misfits()
    kind_of(dict[str, int]).decode({"api_token": "hunter2"}, (), misfits)
    assert str(misfits) == "payload.api_token: *** is not an int"


def test_names_that_cannot_be_resolved_leave_the_others_alone() -> None:
    found = resolved({"a": "Order | None", "b": "OnlyForTheTypeChecker", "c": "list[", "d": int}, globals(), {})
    assert found == {"a": Order | None, "b": Any, "c": Any, "d": int}
    assert kind_of(found["b"]) is UNCHECKED


def test_what_cannot_be_hashed_is_no_error() -> None:
    assert kind_of([int]) is UNCHECKED
    assert kind_of(Annotated[int, []]) is kind_of(int)


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
    (Part, st.builds(Part, TEXTS, st.dates())),
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
    annotation, value = pair
    kind, misfits = kind_of(annotation), Misfits()
    written = kind.encode(value, (), misfits)
    back = kind.decode(json.loads(json.dumps(written, allow_nan=False)), (), misfits)
    assert (str(misfits), back, type(back)) == ("", value, type(value))


@settings(max_examples=150, deadline=None)
@given(ANNOTATIONS, JSON)
def test_any_json_fits_or_is_named_and_nothing_is_raised(pair: tuple[Any, Any], value: Any) -> None:
    kind, misfits = kind_of(pair[0]), Misfits()
    decoded = kind.decode(value, (), misfits)
    assert str(misfits) if misfits.count else True
    again = Misfits()
    kind.encode(value, (), again)
    assert bool(again.count) == bool(misfits.count), "what may be enqueued is what can be run"
    if not misfits.count:
        back = kind.decode(json.loads(json.dumps(kind.encode(decoded, (), again))), (), again)
        assert back == decoded
        assert not again.count


# Where a strict pydantic means the same: it has no opinion of ours about floats for Decimals, or numbers for dates, and
# takes true and 1.0 for a Literal's 1.
WORDS: tuple[Any, Any] = (Literal["a", "b"], st.sampled_from(["a", "b"]))
SHARED = st.recursive(
    st.sampled_from([WORDS, *(pair for pair in LEAVES if pair[0] in (int, str, bool))]), _wrapped, max_leaves=4
)


@settings(max_examples=100, deadline=None)
@given(SHARED.flatmap(lambda pair: st.tuples(st.just(pair[0]), JSON | pair[1])))
def test_a_strict_pydantic_takes_what_we_take(pair: tuple[Any, Any]) -> None:
    annotation, value = pair
    written = json.dumps(_texts_for_keys(value))
    misfits = Misfits()
    kind_of(annotation).decode(json.loads(written), (), misfits)
    try:
        pydantic.TypeAdapter(annotation, config=pydantic.ConfigDict(strict=True)).validate_json(written)
        fits = True
    except pydantic.ValidationError:
        fits = False
    assert (not misfits.count) is fits, (written, str(misfits))


def _texts_for_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _texts_for_keys(item) for key, item in value.items()}
    return [_texts_for_keys(item) for item in value] if isinstance(value, list | tuple) else value


def test_infinity_that_json_can_spell_is_no_float() -> None:
    misfits = Misfits()
    assert math.isinf(json.loads("1e400"))
    kind_of(float).decode(json.loads("1e400"), ("p",), misfits)
    assert misfits.count == 1
