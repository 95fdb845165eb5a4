"""Databases for tests. A session has one server, and each test gets its own database, a copy of a migrated one.

On PostgreSQL the tests connect with the least rights that ``cronjobs db grants`` prints. They use the role ``run``, and
tests that enqueue use the role ``enqueue``, so a missing right makes tests fail. A test that needs another role says so
with ``@pytest.mark.connects_as(OWNER)`` or ``postgres.as_role``.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import pkgutil
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import hypothesis
import pytest
from support import nofsync
from support.pool import Pool, copy_statement
from support.postgres import ENQUEUE, OWNER, READ, RUN, PostgresServer, as_role
from support.ticking import Project

import cronjobs
from cronjobs.engine.command import fault
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.schema import migrations
from cronjobs.engine.schema.grants import Role, statements
from cronjobs.installed import if_installed
from cronjobs.testing import FakeClock

BOTH = ["sqlite", "postgresql"]

_numbers = itertools.count(1)
_STATE = tempfile.TemporaryDirectory(prefix="cronjobs-tests-")

nofsync.install()

# Start the slowest tests first. Otherwise one of two cores is idle at the end.
LONGEST = ("test_drill", "test_walk", "test_wheel", "test_kill_points", "test_long_jobs_stop")
SLOW_S = 2.0
SLOW_SHOWN = 20
WITH_A_DATABASE = {"project", "cronjobs", "world", "browser", "stage", "shop", "database"}  # names of fixtures
MARKERS = (
    "needs(layer): also needs a layer above the test's folder, or another extra",
    "connects_as(role): the role for the migrated PostgreSQL database; the default is RUN",
    "slow: takes more than two seconds, or kills processes on purpose; the everyday run leaves it out",
    "either: about processes, not SQL, so it runs on one database, or with CRONJOBS_TESTS_BOTH=1 on both",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in a random order, the same for a seed")


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    # no deadline: how long an example takes depends on the machine's load
    hypothesis.settings.register_profile("ours", deadline=None)
    hypothesis.settings.load_profile("ours")
    # A shell without job control ignores SIGINT for processes that it starts with "&", and nohup ignores SIGHUP. Reset
    # both signals, because the processes that we start would inherit that.
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (seed := config.getoption("shuffle")) is not None:
        random.Random(seed).shuffle(items)  # in the same order in each worker
    else:
        order = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    left_out: set[pytest.Item] = set()
    if not os.environ.get("CRONJOBS_TESTS_BOTH"):
        left_out |= {item for item in items if _is_for_the_other(item)}
    left_out |= {item for item in items if any(not _is_there(mark.args[0]) for mark in item.iter_markers("needs"))}
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]


def _is_there(layer: str) -> bool:
    """Whether this checkout has that layer or extra. In .ci/alone, others are removed."""
    return if_installed(f"cronjobs.{layer}") is not None


def _is_for_the_other(item: pytest.Item) -> bool:
    """Whether the test needs only one database, and its name's hash selects the other one, not this item's."""
    if item.get_closest_marker("either") is None or not isinstance(item, pytest.Function):
        return False
    if not WITH_A_DATABASE & {*item.fixturenames} or not hasattr(item, "callspec"):
        return False
    of = item.callspec.params.get("database_url")
    return of in BOTH and of != BOTH[crc32(item.originalname.encode()) % 2]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make tests independent of their order where modules are loaded late."""
    # Write no bytecode. If a test rewrites a module within a second, at the same length, Python would load the old
    # bytecode.
    sys.dont_write_bytecode = True
    # Load all commands now. A command that is first loaded while a test replaces a function would keep the replacement.
    for module in pkgutil.walk_packages(cronjobs.__path__, "cronjobs."):
        if "cli" in module.name.split(".") and not module.name.startswith("cronjobs.contrib.demo"):
            importlib.import_module(module.name)
    # Leave all tests and modules out of later collections. With 11,000 tests, one collection takes a second.
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remove what earlier tests left in the state folder, or by commands that ran in this process."""
    os.environ["XDG_STATE_HOME"] = f"{_STATE.name}/{next(_numbers)}"
    vars(fault.circumstances).update(vars(fault.Circumstances()))


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Disarm the timer that a test may have left. It would kill this process in the middle of another test."""
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.setitimer(signal.ITIMER_REAL, 0)
        pytest.fail(f"{item.nodeid} left the kernel's timer running")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that are slow but not marked as slow."""
    reports = [report for key in ("passed", "failed") for report in terminalreporter.stats.get(key, [])]
    slow = [each for each in reports if each.duration > SLOW_S and each.when == "call" and "slow" not in each.keywords]
    for report in sorted(slow, key=lambda report: -report.duration)[:SLOW_SHOWN]:
        terminalreporter.write_line(f"slow, and not marked so: {report.duration:.1f} s {report.nodeid}")


@pytest.fixture(scope="session")
def _server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres_server(_server: PostgresServer) -> Iterator[PostgresServer]:
    """The server of this session. A test may stop, kill or restart it. It runs again for the next test."""
    yield _server
    _start_if_ended(_server)


def _start_if_ended(server: PostgresServer) -> None:
    try:
        server.execute("SELECT 1")
    except Exception:
        server.stop()
        server.start()


@pytest.fixture
def own_postgres_server() -> Iterator[PostgresServer]:
    """A server for this test alone. It is not started yet, and starting it takes a second."""
    server = PostgresServer()
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def _postgres_template(_server: PostgresServer) -> str:
    _server.add_roles()
    _server.execute("CREATE DATABASE migrated")
    _server.execute(statements("public", {Role.MIGRATE: OWNER}), database="migrated")
    _migrate(_server.url("migrated", OWNER))
    names = {Role.RUN: RUN, Role.ENQUEUE: ENQUEUE, Role.READ: READ}
    _server.execute(statements("public", names, replace=True), database="migrated")
    return "migrated"


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("template") / "migrated.db"
    _migrate(f"sqlite:///{file}")
    return file


def _migrate(url: str) -> None:
    database = Database(parse_url(url))
    try:
        migrations.upgrade(database)
    finally:
        database.close()


@pytest.fixture
def new_postgres_url(_server: PostgresServer) -> Iterator[Callable[..., str]]:
    """Create databases.

    ``new_postgres_url()`` creates an empty one, ``new_postgres_url("migrated")`` a copy of that template.
    """
    made: list[str] = []

    def make(template: str = "template0") -> str:
        name = f"test_{next(_numbers)}"
        _server.execute(copy_statement(name, template))
        made.append(name)
        return _server.url(name)

    yield make
    if made:
        _server.execute(*(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)" for name in made))


@pytest.fixture
def postgres_url(new_postgres_url: Callable[..., str]) -> str:
    """A fresh, empty PostgreSQL database."""
    return new_postgres_url()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'cronjobs.db'}"


@pytest.fixture
def sqlite_migrated(sqlite_url: str, _sqlite_template: Path) -> str:
    """The path of a migrated SQLite file, for a plain sqlite3 connection."""
    path = sqlite_url.removeprefix("sqlite:///")
    shutil.copy(_sqlite_template, path)
    return path


@pytest.fixture(scope="session")
def _postgres_pool(_server: PostgresServer, _postgres_template: str) -> Pool:
    return Pool(_server, _postgres_template)


@pytest.fixture
def postgres_migrated(request: pytest.FixtureRequest, _server: PostgresServer, _postgres_pool: Pool) -> Iterator[str]:
    """The URL of a migrated PostgreSQL database, for the role ``run`` or the one that ``connects_as`` names."""
    asked = request.node.get_closest_marker("connects_as")
    name = _postgres_pool.take()
    yield as_role(_server.url(name), asked.args[0] if asked else RUN)
    if not _postgres_pool.give_back(name):
        _start_if_ended(_server)


@pytest.fixture(params=BOTH)
def empty_url(request: pytest.FixtureRequest) -> str:
    """A database without tables, on each kind."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


@pytest.fixture(params=BOTH)
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database, on each kind; on PostgreSQL as ``postgres_migrated``."""
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('sqlite_migrated')}"
    url: str = request.getfixturevalue("postgres_migrated")
    return url


@pytest.fixture
def clock() -> FakeClock:
    """The clock of ``database``. It stands still at the time when the test began."""
    return FakeClock()


@pytest.fixture
def database(database_url: str, clock: FakeClock) -> Iterator[Database]:
    """A migrated ``Database`` under ``clock``, on each kind."""
    database = Database(parse_url(database_url), clock=clock)
    yield database
    database.close()


@pytest.fixture
def new_project(tmp_path: Path) -> Iterator[Callable[[str], Project]]:
    """Create projects: folders with a configuration and handlers, on a database.

    No tick of a project outlives the test.
    """
    made: list[Project] = []

    def make(url: str) -> Project:
        folder = tmp_path / f"project-{len(made)}"
        folder.mkdir()
        made.append(Project(folder, url).configure())
        return made[-1]

    yield make
    for project in made:
        project.end_everything()


@pytest.fixture
def project(database_url: str, new_project: Callable[[str], Project]) -> Project:
    """A project on each kind of database."""
    return new_project(database_url)


@pytest.fixture
def postgres_project(postgres_migrated: str, new_project: Callable[[str], Project]) -> Project:
    """A project on PostgreSQL."""
    return new_project(postgres_migrated)


@pytest.fixture
def sqlite_project(sqlite_migrated: str, new_project: Callable[[str], Project]) -> Project:
    """A project on SQLite, for tests that do not depend on the kind of database."""
    return new_project(f"sqlite:///{sqlite_migrated}")
