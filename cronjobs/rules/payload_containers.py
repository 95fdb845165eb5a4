"""Kinds made of others: lists, tuples, sets, objects with any keys, and unions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from cronjobs.rules.payload_kinds import ANY_JSON, FloatKind, Kind, Misfits, Path, TextKind, matching


class ListKind(Kind):
    """list[T], Sequence[T], tuple[T, ...], set[T]: a JSON array. ``make`` is called with the list of the items."""

    accepts = frozenset({list})

    def __init__(self, item: Kind, words: str, make: type | None, takes: tuple[type[Iterable[Any]], ...]) -> None:
        self._item, self.words, self._make, self._takes = item, words, make, takes
        self._hashed = make in (set, frozenset)

    def decode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        if value.__class__ is not list:
            return self._refuse(value, path, misfits)
        before, plain = misfits.count, self._item.plain
        items = value
        if not all([item.__class__ in plain for item in value]):  # noqa: C419 a generator costs twice
            items = [self._item.decode(item, (*path, n), misfits) for n, item in enumerate(value)]
        if self._make is None or misfits.count > before:
            return items
        try:
            return self._make(items)
        except TypeError:  # of a set, whose items may turn out to be lists
            return misfits.add(path, value, f"is not {self.words}: its items cannot be compared")

    def encode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        if not isinstance(value, self._takes):
            return self._refuse(value, path, misfits)
        plain = self._item.plain
        is_set = isinstance(value, set | frozenset)
        if self._hashed and not is_set:
            return self._list_for_a_set(value, path, misfits)
        if value.__class__ is list and all([item.__class__ in plain for item in value]):  # noqa: C419
            return value
        items = [self._item.encode(item, (*path, n), misfits) for n, item in enumerate(value)]
        return sorted(items, key=repr) if is_set else items

    def _list_for_a_set(self, value: Any, path: Path, misfits: Misfits) -> Any:
        before = misfits.count
        items = [self._item.encode(item, (*path, n), misfits) for n, item in enumerate(value)]
        return items if misfits.count > before else self._as_json(items, path, misfits)


class FixedTupleKind(Kind):
    """tuple[A, B]: a JSON array of so many items."""

    accepts = frozenset({list})

    def __init__(self, items: Sequence[Kind]) -> None:
        self._items = items
        self.words = f"a list of {len(items)}"

    def decode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        if value.__class__ is not list or len(value) != len(self._items):
            return self._refuse(value, path, misfits)
        pairs = enumerate(zip(self._items, value, strict=True))
        return tuple([kind.decode(item, (*path, n), misfits) for n, (kind, item) in pairs])

    def encode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(self._items):
            return self._refuse(value, path, misfits)
        pairs = enumerate(zip(self._items, value, strict=True))
        return [kind.encode(item, (*path, n), misfits) for n, (kind, item) in pairs]


class DictKind(Kind):
    """dict[K, V], Mapping[K, V]: a JSON object, whose keys are text; ``key`` reads and writes them as such."""

    words = "an object"
    accepts = frozenset({dict})

    def __init__(self, key: Kind, value: Kind) -> None:
        self._key, self._value = key, value

    def decode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        if value.__class__ is not dict:
            return self._refuse(value, path, misfits)
        decoded = {}
        for key, item in value.items():
            here = (*path, str(key))
            before = misfits.count
            name, one = self._key.decode(key, here, misfits), self._value.decode(item, here, misfits)
            if misfits.count == before:
                decoded[name] = one
        return decoded

    def encode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        if not isinstance(value, Mapping):
            return self._refuse(value, path, misfits)
        encoded = {}
        for key, item in value.items():
            here = (*path, str(key))
            encoded[self._key.encode(key, here, misfits)] = self._value.encode(item, here, misfits)
        return encoded


INT_KEY: Final = TextKind(int, "a whole number", matching("-?(0|[1-9][0-9]{0,999})", int), str)


_TOO_MANY: Final = "has too many alternatives to try"


class UnionKind(Kind):
    """The first of several that a value fits, in the order written; an int is one before it is a float."""

    def __init__(self, members: Iterable[Kind]) -> None:
        self._members = sorted(members, key=lambda kind: isinstance(kind, FloatKind))
        self.accepts = frozenset().union(*(kind.accepts for kind in self._members))
        self.plain = frozenset(
            cls for cls in self.accepts if cls in next(kind for kind in self._members if cls in kind.accepts).plain
        )
        words = [kind.words for kind in self._members]
        self.words = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]

    def decode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        if value.__class__ in self.plain:
            return value
        trials = []
        for kind in self._members:
            if value.__class__ in kind.accepts:
                if (trial := misfits.trial()) is None:
                    return misfits.put(path, "", _TOO_MANY)
                trials.append(trial)
                decoded = kind.decode(value, path, trial)
                if not trial.count:
                    return decoded
        return self._say(trials, value, path, misfits)

    def encode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        """Refuses what the way back would read as another of the members."""
        trials, ambiguous = [], False
        is_json = value.__class__ in ANY_JSON
        for kind in self._members:
            if is_json and value.__class__ not in kind.accepts:
                continue
            if (trial := misfits.trial()) is None:
                return misfits.put(path, "", _TOO_MANY)
            trials.append(trial)
            encoded = kind.encode(value, path, trial)
            if trial.count:
                continue
            if _same(encoded, value) or self._comes_back(encoded, value, path, trial):
                return encoded
            ambiguous = True
        if ambiguous:
            return misfits.add(path, value, f"would not be read as itself: this is {self.words}, and the first counts")
        return self._say(trials, value, path, misfits)

    def _say(self, trials: Sequence[Misfits], value: Any, path: Path, misfits: Misfits) -> Any:
        """Of the one that was meant, as the value is of its class, it is said what is wrong inside."""
        meant = [trial for trial in trials if trial.found[0].path != path or not trial.found[0].value]
        if len(meant) == 1 or (len(trials) == 1 and trials[0].count):
            return misfits.take((meant or trials)[0])
        return self._refuse(value, path, misfits)

    def _comes_back(self, encoded: Any, value: Any, path: Path, trial: Misfits) -> bool:
        if sum(encoded.__class__ in kind.accepts for kind in self._members) == 1:
            return True
        back = self.decode(encoded, path, trial)
        return not trial.count and type(back) is type(value) and _same(back, value)


def _same(one: Any, other: Any) -> bool:
    """Whether they are equal; of objects that are only equal to themselves, nothing else can be said than yes."""
    incomparable: Any = object.__eq__
    try:
        return bool(one == other) or all(type(each).__eq__ is incomparable for each in (one, other))
    except Exception:  # an __eq__ of the user's
        return False


class LaterKind(Kind):
    """A named type that may mention itself: what it is is read when the first value comes."""

    def __init__(self, words: str, read: Callable[[], Kind]) -> None:
        self.words, self._read = words, read

    @cached_property
    def _kind(self) -> Kind:
        return self._read()

    def decode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        return self._kind.decode(value, path, misfits)

    def encode(self, value: Any, path: Path, misfits: Misfits) -> Any:
        return self._kind.encode(value, path, misfits)
