"""Compile each statement once in a test process, as production does. SQLAlchemy keeps a cache for each engine.

A command of production has one engine, but each test opens several, and would compile the same statements for each of
them. Here all engines whose dialects have the same settings share one cache.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Engine
from sqlalchemy.util import LRUCache

LIMIT = 4000
SIMPLE = (str, int, float, tuple, frozenset, type(None))


class SharedCache:
    """What an engine has as its cache. The first part of each key is a dialect, which is replaced by its settings."""

    def __init__(self) -> None:
        self._compiled: LRUCache[Any, Any] = LRUCache(LIMIT)
        self._settings: WeakKeyDictionary[Any, Hashable] = WeakKeyDictionary()

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return self._compiled.get(self._shared(key), default)

    def __getitem__(self, key: tuple[Any, ...]) -> Any:
        return self._compiled[self._shared(key)]

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        self._compiled[self._shared(key)] = compiled

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return self._shared(key) in self._compiled

    def clear(self) -> None:
        self._compiled.clear()

    def _shared(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        dialect, *rest = key
        if (settings := self._settings.get(dialect)) is None:
            settings = self._settings[dialect] = _settings(dialect)
        return (settings, *rest)


def _settings(dialect: Any) -> Hashable:
    """Return all that may change what the dialect compiles: its class, the server's version, functions, flags."""
    values = {name: value for name, value in vars(dialect).items() if isinstance(value, SIMPLE) or callable(value)}
    return type(dialect), frozenset((name, value) for name, value in values.items() if isinstance(value, Hashable))


def install() -> None:
    """Let all engines of this process share one cache. An engine that has turned its cache off keeps none."""
    cache = SharedCache()

    def own(engine: Any) -> SharedCache | None:
        return cache if vars(engine)["_compiled_cache"] is not None else None

    def keep(engine: Any, given: Any) -> None:
        vars(engine)["_compiled_cache"] = given

    Engine._compiled_cache = property(own, keep)  # type: ignore[assignment]
