"""The project that the pages show: its current configuration, its job types, and its database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Protocol

from sqlalchemy import Connection

from cronjobs.desk.store.reading import only_reading
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes, assembled
from cronjobs.errors import CronjobsError


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

    After the configuration file has changed, the settings and the job types are read again.

    If the file cannot be read, the settings stay as they were. The job types are those in the file, and those that this
    process has imported. To judge whether a due job can run, the pages use the job types that ticks have recorded.
    """

    settings: Settings
    reload: Callable[[], Settings] | None = None
    _read: tuple[int, int] | None = None
    _lock: Lock = field(default_factory=Lock, repr=False)

    def __post_init__(self) -> None:
        self._read = _stamp(self.settings.file)
        self._types = assembled(self.settings, [])

    def now(self) -> tuple[Settings, JobTypes]:
        with self._lock:
            stamp = _stamp(self.settings.file)
            if self.reload is not None and stamp is not None and stamp != self._read:
                self._read = stamp
                try:
                    self.settings = self.reload()
                except CronjobsError:
                    pass  # the file is incomplete or broken; "cronjobs check" reports why
                self._types = assembled(self.settings, [])
            return self.settings, self._types


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
