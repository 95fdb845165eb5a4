"""Our ``dataclass`` means what the standard library's means."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import InitVar, field
from typing import Any, ClassVar

import pytest

from cronjobs import records

KINDS: tuple[dict[str, bool], ...] = ({}, {"frozen": True}, {"frozen": True, "slots": True}, {"kw_only": True})


def made(how: Any, options: dict[str, bool]) -> Any:
    @how(**options)
    class Point:
        x: Any
        y: Any = field(default=2, compare=False)
        hidden: Any = field(default=3, repr=False)
        shared: ClassVar[int] = 4

    @how(**options)
    class One:
        x: Any

    @how(**options)
    class Empty:
        pass

    @how(**options)
    class Child(Point):
        z: Any = 5

    @how(**options)
    class Own:
        x: Any

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    @how(**options)
    class Made:
        of: list[int] = field(default_factory=list)
        self: int = 6
        always: int = field(default=7, init=False)
        later: int = field(init=False)
        fresh: list[int] = field(default_factory=list, init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "later", len(self.of))

    @how(**options)
    class Given:
        much: InitVar[int]
        kept: int = 0

        def __post_init__(self, much: int) -> None:
            object.__setattr__(self, "kept", much)

    class Loose(Point):
        pass

    return Point, One, Empty, Child, Own, Made, Given, Loose


def seen(classes: Any) -> list[object]:
    """What can be observed of them."""
    point, one, empty, child, own, made, given, loose = classes
    first, again, other, other_y = point(x=1), point(x=1), point(x=2), point(x=1, y=9)
    loop = one(x=[])
    loop.x.append(loop)
    found: list[object] = [repr(each) for each in (first, other_y, one(x="a"), empty(), child(x=1, z=[]), loop)]
    found += [first == again, first == other, first == other_y, first != other, first == 1, first == child(x=1)]
    found += [one(x=float("nan")) == one(x=1), empty() == empty(), first.__eq__(one(x=1)) is NotImplemented]
    found += [repr(own(x=1)), own(x=1) == 5, hash(own(x=1)) == 7]
    found += [attempt(lambda: hash(first) == hash(again)), attempt(lambda: hash(one(x=[]))), attempt(lambda: {empty()})]
    found += [attempt(lambda: setattr(first, "x", 5)), attempt(lambda: delattr(again, "x"))]
    found += [attempt(lambda: dataclasses.asdict(dataclasses.replace(child(x=1), z=0))), point.__match_args__]
    found += [attempt(each, 1, 2, 3, 4, 5) for each in classes] + [attempt(lambda: point(x=1, w=1)), attempt(one)]
    found += [made(), made(of=[1]).of, made(self=2), made().fresh is made().fresh, given(much=3), given.__match_args__]
    # "other" of a class with slots is an error of the standard library's own: "super(type, obj): obj must be …"
    names = ("x",) if "__slots__" in vars(point) else ("x", "other")
    found += [attempt(setattr, loose(x=1), name, 5) for name in names]
    found += [copy.copy(made(of=[1, 2])) == made(of=[1, 2]), [params(each) for each in classes]]
    found += [attempt(inspect.signature, each) for each in classes]
    return [str(each) for each in found]


def params(made: Any) -> tuple[bool, bool]:
    return made.__dataclass_params__.init, made.__dataclass_params__.frozen


def attempt(do: Any, *given: Any) -> str:
    try:
        return str(do(*given))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.either
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_objects_behave_alike(options: dict[str, bool]) -> None:
    assert seen(made(records.dataclass, options)) == seen(made(dataclasses.dataclass, options))


@records.dataclass(frozen=True)
class Carried:
    a: int


@pytest.mark.either
def test_an_init_is_compiled_when_it_is_needed() -> None:
    @records.dataclass
    class Seen:
        a: int

    assert not inspect.isfunction(vars(Seen)["__init__"])
    assert Seen(1).a == 1
    assert inspect.isfunction(vars(Seen)["__init__"])


@pytest.mark.either
def test_they_can_be_pickled_and_are_the_same_key() -> None:
    assert {Carried(1): "x"}[pickle.loads(pickle.dumps(Carried(1)))] == "x"
