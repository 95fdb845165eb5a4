"""``limits:`` of the file, how many jobs run at once by concurrency key, and which of those due may begin. Pure.

(What one tick is narrowed to by its caller, ``--queue`` and the like, is ``tick.claiming.TickFilter``.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Limit:
    """Of the jobs whose concurrency_key begins with ``prefix`` at most ``most`` run at once, and ``each`` of one key.

    None: any number. ``most`` 0: the file's entry cannot be read, so that none begins until it is mended.
    """

    prefix: str
    most: int | None = None
    each: int | None = None

    def counts(self, key: str) -> bool:
        return key.startswith(self.prefix)

    @property
    def reached(self) -> str:
        """Why a job waits for it, in words."""
        if self.most == 0:
            return f'limit "{self.prefix}" of the file is bad ("cronjobs check" says why), so that nothing of it begins'
        parts = [str(self.most)] if self.most is not None else []
        parts += [f"{self.each} of each key"] if self.each is not None else []
        return f"limit {self.prefix} {', '.join(parts)} is reached"


@dataclass(frozen=True)
class Full:
    """Of which keys, and of all keys with which beginnings, none may begin now."""

    prefixes: frozenset[str]
    keys: frozenset[str]


@dataclass(frozen=True)
class Candidate:
    """A due job, in the order of its turn. ``careful``: it is taken only if it begins at once."""

    id: int
    concurrency_key: str | None
    careful: bool = False


@dataclass(frozen=True)
class Choice:
    """Which candidates are taken; ``running`` counts them too. ``cut``: a careful one waits, and all behind it."""

    taken: tuple[int, ...]
    running: Mapping[str, int]
    cut: bool


class _Slots:
    """How many run, by key and by limit."""

    def __init__(self, limits: Sequence[Limit], running: Mapping[str, int]) -> None:
        self._limits = limits
        self.by_key: Counter[str] = Counter()
        self._together: Counter[str] = Counter()
        for key, count in running.items():
            self.add(key, count)

    def add(self, key: str, count: int = 1) -> None:
        self.by_key[key] += count
        for limit in self._limits:
            if limit.counts(key):
                self._together[limit.prefix] += count

    def reached(self, key: str) -> Limit | None:
        """The first limit that lets no more of *key* begin. Several may count it: all of them hold."""
        return next((limit for limit in self._limits if limit.counts(key) and self._is_reached(limit, key)), None)

    def _is_reached(self, limit: Limit, key: str) -> bool:
        return self.together_reached(limit) or (limit.each is not None and self.by_key[key] >= limit.each)

    def together_reached(self, limit: Limit) -> bool:
        return limit.most is not None and self._together[limit.prefix] >= limit.most


def closed(limits: Sequence[Limit]) -> tuple[Limit, ...]:
    """Limits that let nothing begin of what *limits* count."""
    return tuple(Limit(limit.prefix, most=0) for limit in limits)


def reached(limits: Sequence[Limit], running: Mapping[str, int], key: str | None) -> Limit | None:
    """The limit that a job of *key* waits for while so many run, by key; None: it may begin."""
    return None if key is None else _Slots(limits, running).reached(key)


def full(limits: Sequence[Limit], running: Mapping[str, int]) -> Full:
    """What has no room while so many run, by key."""
    slots = _Slots(limits, running)
    prefixes = frozenset(limit.prefix for limit in limits if slots.together_reached(limit))
    keys = (key for key in running if not key.startswith(tuple(prefixes)))
    return Full(prefixes, frozenset(key for key in keys if slots.reached(key)))


def waiting_by_limit(limits: Sequence[Limit], running: Mapping[str, int], due: Mapping[str, int]) -> dict[Limit, int]:
    """How many of the *due* jobs, by key, wait for each limit that is reached; a job for the first that stops it."""
    slots = _Slots(limits, running)
    found: Counter[Limit] = Counter()
    for key, count in due.items():
        if (limit := slots.reached(key)) is not None:
            found[limit] += count
    return {limit: found[limit] for limit in limits if found[limit]}


def choose(
    candidates: Sequence[Candidate], limits: Sequence[Limit], running: Mapping[str, int], *, before: int, free: int
) -> Choice:
    """Take candidates in order, passing over those whose limits are reached, by those taken here too.

    A careful one that *free* places do not reach, *before* of which are taken already, ends the row.
    """
    slots = _Slots(limits, running)
    taken: list[int] = []
    for candidate in candidates:
        key = candidate.concurrency_key
        if key is not None and slots.reached(key):
            continue
        if candidate.careful and before + len(taken) >= free:
            return Choice(tuple(taken), slots.by_key, True)
        taken.append(candidate.id)
        if key is not None:
            slots.add(key)
    return Choice(tuple(taken), slots.by_key, False)
