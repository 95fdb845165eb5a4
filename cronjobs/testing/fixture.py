"""A pytest fixture in one line: everything in ``cronjobs.testing``, bound to the test's connection or database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.pool import StaticPool

from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.enqueue import Target
from cronjobs.errors import UsageError
from cronjobs.testing import assertions
from cronjobs.testing.assertions import Found
from cronjobs.testing.clocks import TravelClock
from cronjobs.testing.configured import settings_of
from cronjobs.testing.creating import create_tables
from cronjobs.testing.draining import Drained, drain
from cronjobs.testing.ticking import Ticked, ready_database, tick


class Jobs:
    """The fixture's value. Each method calls the function of the same name, with this fixture's connection and clock.

    ``clock`` shows the real time until the test or ``at=…`` moves it. After that it stands still.
    """

    def __init__(
        self,
        connection: Target | None,
        database_url: str | None,
        *,
        config: str | Path | None = None,
        imports: Iterable[str] = (),
        schema: str | None = None,
        clock: TravelClock | None = None,
    ) -> None:
        self.clock = clock or TravelClock()
        self.database_url = database_url
        self._connection, self._schema = connection, schema
        self._config, self._imports = config, tuple(imports)

    @property
    def connection(self) -> Any:
        """The given connection, or the fixture's own connection to an in-memory SQLite database.

        Raises UsageError if the fixture has a database URL instead.
        """
        if self._connection is None:
            raise UsageError(
                "this fixture has a database but no connection: enqueue in its database_url as your app does, then "
                "call tick()"
            )
        return self._connection

    def drain(self, *, at: datetime | None = None, **options: Any) -> Drained:
        self._move(at)
        given = {"config": self._config, "imports": self._imports, "schema": self._schema, "clock": self.clock}
        return drain(self.connection, **(given | options))

    def tick(self, *, at: datetime | None = None) -> Ticked:
        if self.database_url is None:
            raise UsageError(
                "tick() commits, so it needs a database of the test's own: use "
                "cronjobs_fixture(database_url=…), or call "
                "drain() on this connection"
            )
        self._move(at)
        return tick(self.database_url, config=self._config, imports=self._imports, clock=self.clock)

    def assert_enqueued(self, job_type: str, payload: Any = None, /, **options: Any) -> list[Found]:
        __tracebackhide__ = True
        with self._looking() as connection:
            return assertions.assert_enqueued(connection, job_type, payload, **({"schema": self._schema} | options))

    def assert_not_enqueued(self, job_type: str, payload: Any = None, /, **options: Any) -> None:
        __tracebackhide__ = True
        with self._looking() as connection:
            assertions.assert_not_enqueued(connection, job_type, payload, **({"schema": self._schema} | options))

    def assert_fires(self, schedule: str, **options: Any) -> list[datetime]:
        __tracebackhide__ = True
        return assertions.assert_fires(schedule, **({"config": self._config} | options))

    def _move(self, at: datetime | None) -> None:
        if at is not None:
            self.clock.set(at)

    @contextmanager
    def _looking(self) -> Iterator[Target]:
        if self._connection is not None:
            yield self._connection
            return
        with closing(self._ready_database()) as database, database.read() as connection:
            yield connection

    def _ready_database(self) -> Database:
        """Open the database of ``tick``, and create its tables if they are missing. The caller closes it."""
        return ready_database(settings_of(self._config, self._imports, self.database_url), self.clock)


def cronjobs_fixture(
    *,
    connection: str | None = None,
    database_url: str | None = None,
    config: str | Path | None = None,
    imports: Iterable[str] = (),
    schema: str | None = None,
) -> Any:
    """Make a pytest fixture whose value is a ``Jobs``.

    In conftest.py, write ``jobs = cronjobs_fixture(connection="session")``. ``connection`` is the name of your fixture
    that returns the test's connection or session. ``drain`` and the assertions use this connection or session.
    ``database_url`` is for ``tick``. It is a URL, or the name of your fixture that returns a URL or an Engine. "sqlite"
    creates a new file for each test. If neither is given, ``jobs.connection`` is an in-memory SQLite database. Missing
    tables are created. ``config``, ``imports`` and ``schema`` are the same as for ``drain``. With a ``database_url``,
    the file's schema is used.
    """
    import pytest

    options: dict[str, Any] = {"config": config, "imports": imports, "schema": schema}
    url_fixture = _fixture_of_url(database_url)

    def fixture(**fixtures: Any) -> Iterator[Jobs]:
        url = database_url if url_fixture is None else _url(fixtures[url_fixture])
        if connection is not None:
            target = fixtures[connection]
            create_tables(target, schema=schema)
            yield Jobs(target, url, **options)
        elif url is not None:
            jobs = Jobs(None, url, **options)
            jobs._ready_database().close()  # so that the test can enqueue before its first tick
            yield jobs
        else:
            clock = TravelClock()
            with _in_memory(clock) as own:
                create_tables(own)
                yield Jobs(own, None, clock=clock, **options)

    # The signature names the fixtures, so that the test's ``fixturenames`` contain them before the test runs.
    # pytest-django creates a test database only for tests with ``db`` in ``fixturenames``. Other tests would write to
    # the project's database.
    needed = dict.fromkeys(name for name in (connection, url_fixture) if name is not None)
    parameters = [Parameter(name, Parameter.KEYWORD_ONLY) for name in needed]
    fixture.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return pytest.fixture(fixture)


def _fixture_of_url(database_url: str | None) -> str | None:
    """Return the name of the fixture that has the database, or None if *database_url* is a URL."""
    if database_url is None or "://" in database_url:
        return None
    return "tmp_path" if database_url == "sqlite" else database_url


def _url(value: Any) -> str:
    match value:
        case Path():  # tmp_path
            return f"sqlite:///{value / 'cronjobs.db'}"
        case Engine():
            return value.url.render_as_string(hide_password=False)
        case _:
            return str(value)


@contextmanager
def _in_memory(clock: TravelClock) -> Iterator[Connection]:
    engine = create_engine(
        "sqlite://",
        poolclass=StaticPool,
        connect_args={"check_same_thread": False},
        execution_options={"cronjobs_clock": clock},
    )
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()
