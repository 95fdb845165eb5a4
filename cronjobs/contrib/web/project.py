"""The project that the pages show: its current configuration, its job types, and its database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Protocol

from sqlalchemy import Connection

from cronjobs.desk.store.reading import only_reading
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes, assembled
from cronjobs.errors import ConfigError, CronjobsError, Problem

Stamp = tuple[int, int, int] | None


class Doors(Protocol):
    """Access to the database. ``read`` opens a short transaction for reading, and ``write`` opens one for writing."""

    def read(self) -> AbstractContextManager[Connection]: ...
    def write(self) -> AbstractContextManager[Connection]: ...


@dataclass(frozen=True)
class OwnDatabase:
    """Access through our own Database."""

    database: Database

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self.database.read() as connection, only_reading(connection):
            yield connection

    def write(self) -> AbstractContextManager[Connection]:
        return self.database.write()


@dataclass(frozen=True)
class AppConnections:
    """Access through the app's own SQLAlchemy connections. *connect* is ``engine.connect`` or similar."""

    connect: Callable[[], AbstractContextManager[Connection]]
    schema: str | None = None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self._connected() as connection:
            transaction = None if connection.in_transaction() else connection.begin()
            try:
                with only_reading(connection, lent=True):
                    yield connection
            finally:
                if transaction is not None:
                    transaction.rollback()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with self._connected() as connection:
            if connection.in_transaction():  # the app has begun the transaction, so the app must end it
                yield connection
            else:
                with connection.begin():
                    yield connection

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with self.connect() as connection:
            if not isinstance(connection, Connection):
                raise TypeError(f"connect() must return an SQLAlchemy Connection, not {type(connection).__qualname__}")
            if self.schema is not None and connection.dialect.name == "postgresql":
                connection = connection.execution_options(schema_translate_map={None: self.schema})
            yield connection


@dataclass
class Current:
    """The current settings and job types.

    ``now`` reads the configuration again if one of its files has changed or is gone. It also does so as long as ticks
    refuse the configuration. If the configuration is unreadable, the earlier settings stay, and the faults become their
    ``problems``, so that the pages report what "cronjobs status" prints.

    The job types are those in the file, and those that this process has imported. To judge whether a due job can run,
    the pages use the job types that ticks have recorded.
    """

    settings: Settings
    reload: Callable[[], Settings] | None = None
    _read: dict[Path, Stamp] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def __post_init__(self) -> None:
        self._read = self._stamps()
        self._types = assembled(self.settings, [])

    def now(self) -> tuple[Settings, JobTypes]:
        with self._lock:
            stamps = self._stamps()
            if self.reload is not None and (self.settings.broken or stamps != self._read):
                self.settings = _read_again(self.settings, self.reload)
                # Keep the stamps from before the file was read: the file may have changed meanwhile.
                self._read = self._stamps() | stamps
                self._types = assembled(self.settings, [])
            return self.settings, self._types

    def _stamps(self) -> dict[Path, Stamp]:
        return {file: _stamp(file) for file in (self.settings.file, *self.settings.contents)}


def _read_again(before: Settings, reload: Callable[[], Settings]) -> Settings:
    try:
        return reload()
    except CronjobsError as error:
        fault = Problem(str(before.file), 0, 0, "", str(error))
        problems = error.problems if isinstance(error, ConfigError) else (fault,)
        return replace(before, broken=True, problems=tuple(problems))


def _stamp(file: Path) -> Stamp:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size  # only the ctime shows a change of the permissions
