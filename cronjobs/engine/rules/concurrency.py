"""Apply the file's ``limits:`` to due jobs: how many jobs of a concurrency key may run at once. Pure.

(For options that restrict one tick, such as ``--queue``, see ``tick.result.TickFilter``.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_IS_BAD: Final = ' in the file is bad ("cronjobs check" says why), so the limited jobs do not start'


@dataclass(frozen=True)
class Limit:
    """At most ``most`` jobs whose key begins with ``prefix`` run at once, and at most ``each`` of them per key.

    None means any number. If the entry in the file cannot be read, ``most`` is 0. Then no job with the prefix starts
    before the entry is fixed.
    """

    prefix: str
    most: int | None = None
    each: int | None = None

    def counts(self, key: str) -> bool:
        return key.startswith(self.prefix)

    @property
    def reached(self) -> str:
        """A phrase that says why jobs wait for this limit."""
        if self.most == 0:
            # Without a prefix, this stands for all limits (see keys_of_jobs.UNREADABLE_LIMITS).
            what = f'limit "{self.prefix}"' if self.prefix else 'the section "limits"'
            return f"{what}{_IS_BAD}"
        parts = [f"{self.most} at once"] if self.most is not None else []
        parts += [f"{self.each} at once for each key"] if self.each is not None else []
        return f'limit "{self.prefix}" is reached ({", ".join(parts)})'


def in_the_past(reached: str) -> str:
    """Put *reached* into the past tense. It is a sentence that a tick recorded from ``Limit.reached``."""
    if reached.endswith(_IS_BAD):
        return reached.removesuffix(_IS_BAD) + " in the file was bad, so the limited jobs did not start"
    return '" was reached ('.join(reached.rsplit('" is reached (', 1)) if reached.startswith('limit "') else reached


@dataclass(frozen=True)
class Full:
    """The concurrency keys, and the prefixes of keys, whose jobs may not start now."""

    prefixes: frozenset[str]
    keys: frozenset[str]


@dataclass(frozen=True)
class Candidate:
    """A due job. If ``no_prefetch`` is True, claim the job only if it can start at once."""

    id: int
    concurrency_key: str | None
    no_prefetch: bool = False


@dataclass(frozen=True)
class Choice:
    """The result of ``choose``: the ids of the candidates to claim (``taken``).

    ``running`` counts the running jobs by key, including the candidates that are taken. ``cut`` is True if a
    ``no_prefetch`` candidate cannot start at once. All candidates behind it must then wait too.
    """

    taken: tuple[int, ...]
    running: Mapping[str, int]
    cut: bool


class _Slots:
    """The numbers of running jobs, by key and by limit."""

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
        """Return the first reached limit that applies to *key*, or None. A job may start only if none is reached."""
        return next((limit for limit in self._limits if limit.counts(key) and self._is_reached(limit, key)), None)

    def _is_reached(self, limit: Limit, key: str) -> bool:
        return self.together_reached(limit) or (limit.each is not None and self.by_key[key] >= limit.each)

    def together_reached(self, limit: Limit) -> bool:
        return limit.most is not None and self._together[limit.prefix] >= limit.most


def closed(limits: Sequence[Limit]) -> tuple[Limit, ...]:
    """Return limits that stop every job to which *limits* apply."""
    return tuple(Limit(limit.prefix, most=0) for limit in limits)


def reached(limits: Sequence[Limit], running: Mapping[str, int], key: str | None) -> Limit | None:
    """Return a limit that stops a job with *key*, or None. *running* has the number of running jobs of each key."""
    return None if key is None else _Slots(limits, running).reached(key)


def full(limits: Sequence[Limit], running: Mapping[str, int]) -> Full:
    """Return the keys and prefixes that have no room. *running* has the number of running jobs of each key."""
    slots = _Slots(limits, running)
    prefixes = frozenset(limit.prefix for limit in limits if slots.together_reached(limit))
    keys = (key for key in running if not key.startswith(tuple(prefixes)))
    return Full(prefixes, frozenset(key for key in keys if slots.reached(key)))


def held_back(limits: Sequence[Limit], keys: Collection[str], workers: int) -> Full:
    """Return the concurrency keys and prefixes whose jobs have probably waited for a limit lately.

    A limit counts if it lets at most *workers* jobs run at once, and if it applies to one of *keys*. *keys* are the
    concurrency keys of jobs that succeeded lately.
    """
    tight = [limit for limit in limits if limit.most is not None and limit.most <= workers]
    each = [limit for limit in limits if limit.each is not None and limit.each <= workers]
    return Full(
        frozenset(limit.prefix for limit in tight if any(map(limit.counts, keys))),
        frozenset(key for key in keys if any(limit.counts(key) for limit in each)),
    )


def waiting_by_limit(limits: Sequence[Limit], running: Mapping[str, int], due: Mapping[str, int]) -> dict[Limit, int]:
    """Return, for each limit that is reached, how many due jobs wait for it. *due* and *running* count the jobs by key.

    If several limits stop a job, it counts only for the first.
    """
    slots = _Slots(limits, running)
    found: Counter[Limit] = Counter()
    for key, count in due.items():
        if (limit := slots.reached(key)) is not None:
            found[limit] += count
    return {limit: found[limit] for limit in limits if found[limit]}


def choose(
    candidates: Sequence[Candidate], limits: Sequence[Limit], running: Mapping[str, int], *, before: int, free: int
) -> Choice:
    """Take the candidates in order, but leave out those whose limit is reached. Each job taken counts towards its
    limit.

    *free* is the number of workers that can start a job at once, and *before* is the number of jobs already taken.
    Leave a ``no_prefetch`` candidate that would come after the first *free* jobs, and all candidates behind it, for a
    later claim.
    """
    slots = _Slots(limits, running)
    taken: list[int] = []
    for candidate in candidates:
        key = candidate.concurrency_key
        if key is not None and slots.reached(key):
            continue
        if candidate.no_prefetch and before + len(taken) >= free:
            return Choice(tuple(taken), slots.by_key, True)
        taken.append(candidate.id)
        if key is not None:
            slots.add(key)
    return Choice(tuple(taken), slots.by_key, False)
