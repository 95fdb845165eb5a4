"""Import SQLAlchemy, psycopg and YAML without what a tick hardly ever uses: asyncio, OpenSSL, others' dialects.

They took a sixth of the time until a job starts. While these libraries are imported something else stands in
``sys.modules`` for each of them, which the libraries keep, and which imports the real module when something of it is
used. Nobody else meets it: a handler's ``import asyncio`` is the usual one. psycopg does use asyncio, which then keeps
what stands for ssl.

Only for our own programs: whoever imports the package gets SQLAlchemy as it is.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from types import ModuleType

from cronjobs.patterns import late

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NAMES = frozenset(
    {
        *("asyncio", "asyncio.sslproto", "ctypes.util", "hashlib", "importlib.metadata", "ssl"),
        "sqlalchemy.dialects.postgresql.pg_catalog",  # the tables of reflection
        # Dialects for drivers that we do not use: to load one for SQLite or PostgreSQL is to load all.
        *("sqlalchemy.dialects.sqlite.aiosqlite", "sqlalchemy.dialects.sqlite.pysqlcipher"),
        *("sqlalchemy.dialects.postgresql.asyncpg", "sqlalchemy.dialects.postgresql.pg8000"),
        *("sqlalchemy.dialects.postgresql.psycopg2", "sqlalchemy.dialects.postgresql.psycopg2cffi"),
    }
)

_in_use = False


def import_libraries() -> None:
    """Import SQLAlchemy without what it hardly uses, as ``left_out`` does until ``end`` for its parts; and YAML."""
    global _in_use
    if "sqlalchemy" not in sys.modules:
        _in_use = True
        with left_out():
            importlib.import_module("sqlalchemy")
    if "yaml" not in sys.modules:
        _import_yaml()


def _import_yaml() -> None:
    """Import YAML, whose regular expressions take half of that time; what reads our file in C needs none of them."""
    usual = re.compile

    def compiled(pattern: Any, flags: Any = 0) -> Any:
        of_yaml = sys._getframe(1).f_globals.get("__name__", "").startswith("yaml.")
        return late(pattern, flags) if of_yaml else usual(pattern, flags)

    re.compile = compiled
    try:
        importlib.import_module("yaml")
    finally:
        re.compile = usual


def end() -> None:
    """Leave nothing out any more: code of the user's is about to be imported, and may import in any thread."""
    global _in_use
    _in_use = False


class left_out:  # noqa: N801 for "with", as a function of contextlib, which is not needed here otherwise
    """A block whose imports meet the stand-ins, between ``import_libraries`` and ``end``."""

    def __enter__(self) -> None:
        self._placed = [StandIn(name) for name in NAMES if _in_use and name not in sys.modules and _is_there(name)]
        sys.modules.update({stand_in.__name__: stand_in for stand_in in self._placed})

    def __exit__(self, *_: object) -> None:
        for stand_in in self._placed:
            stand_in.leave()
            name, _dot, part = stand_in.__name__.rpartition(".")
            package = sys.modules.get(name)
            of_package = {} if package is None or isinstance(package, StandIn) else vars(package)
            if of_package.get(part) is stand_in:
                del of_package[part]
            if of_package and part not in of_package:
                # Whoever wrote "import importlib.metadata" and got the stand-in reads it from the package.
                of_package["__getattr__"] = _with_part(stand_in.__name__, of_package.get("__getattr__"))


class StandIn(ModuleType):
    """What imports a module when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        if name in ("iscoroutine", "Runner"):  # taken while SQLAlchemy is imported, for its asyncio part to call
            return lambda *given, **named: getattr(importlib.import_module("asyncio"), name)(*given, **named)
        if (self.__name__, name) == ("importlib.metadata", "version"):  # psycopg asks for its own
            return version_of
        # SQLAlchemy compares each error with these. To handle one should import nothing, since there may be no file
        # descriptor left; and none can be of a class that is not loaded.
        if name == "TimeoutError":
            return TimeoutError  # asyncio's, too
        if name == "CancelledError" and "asyncio" not in sys.modules:
            return ()
        self.leave()
        return getattr(importlib.import_module(self.__name__), name)

    def leave(self) -> None:
        """Let imports find the real module."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


def _is_there(name: str) -> bool:
    """Whether what stands for *name* could import it: asyncio asks whether there is an ssl."""
    return name != "ssl" or importlib.util.find_spec("_ssl") is not None


def _with_part(name: str, otherwise: Callable[[str], Any] | None) -> Callable[[str], Any]:
    """A package's ``__getattr__`` that imports its part *name* when it is asked for it."""
    package, _dot, part = name.rpartition(".")

    def found(asked: str) -> Any:
        if asked == part:
            return importlib.import_module(name)
        if otherwise is not None:
            return otherwise(asked)
        raise AttributeError(f"module {package!r} has no attribute {asked!r}")

    return found


def version_of(distribution: str) -> str:
    """``importlib.metadata.version``, from the name of the folder that it would read in: it parses an email for it."""
    begins = distribution.replace("-", "_") + "-"
    for place in sys.path:
        try:
            with os.scandir(place or ".") as entries:
                found = [entry.name for entry in entries if entry.name.startswith(begins)]
        except OSError:  # a ZIP archive, or nothing
            continue
        if len(found) == 1 and found[0].endswith(".dist-info"):
            return found[0].removeprefix(begins).removesuffix(".dist-info")
        if found:
            break
    metadata: Any = importlib.import_module("importlib.metadata")
    return str(metadata.version(distribution))
