"""Our ``dataclass`` means what the standard library's means."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import field
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

    return Point, One, Empty, Child, Own


def seen(classes: Any) -> list[object]:
    """What can be observed of them."""
    point, one, empty, child, own = classes
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
    return found


def attempt(do: Any) -> str:
    try:
        return str(do())
    except Exception as error:
        return type(error).__name__


@pytest.mark.either
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_objects_behave_alike(options: dict[str, bool]) -> None:
    assert seen(made(records.dataclass, options)) == seen(made(dataclasses.dataclass, options))


@records.dataclass(frozen=True)
class Carried:
    a: int


@pytest.mark.either
def test_they_can_be_pickled_and_are_the_same_key() -> None:
    assert {Carried(1): "x"}[pickle.loads(pickle.dumps(Carried(1)))] == "x"
