"""``cronjobs_fixture``: the three kinds of it, in real pytest."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, NullPool, create_engine
from support import billing
from support.databases import opened
from support.targets import plain_url

from cronjobs import enqueue
from cronjobs.clock import SYSTEM
from cronjobs.errors import UsageError
from cronjobs.testing import Jobs, cronjobs_fixture

in_memory = cronjobs_fixture(imports=["support.billing"])
on_my_connection = cronjobs_fixture(connection="my_connection", imports=["support.billing"])
on_a_file = cronjobs_fixture(database_url="sqlite", imports=["support.billing"])
on_my_database = cronjobs_fixture(database_url="postgres_migrated", imports=["support.billing"])


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    billing.sent.clear()


@pytest.fixture
def my_connection(empty_url: str) -> Iterator[Connection]:
    with create_engine(plain_url(empty_url), poolclass=NullPool).connect() as connection:
        yield connection
        connection.rollback()


def test_in_memory_it_brings_its_own_connection_and_clock(in_memory: Jobs) -> None:
    enqueue(in_memory.connection, "billing.charge", {"invoice_id": 1}, delay="1h")
    in_memory.assert_enqueued("billing.charge", delay="1h", count=1)
    in_memory.assert_not_enqueued("billing.charge", invoice_id=2)
    assert in_memory.drain().ran == ()
    in_memory.clock.advance(timedelta(hours=1))
    assert len(in_memory.drain().succeeded) == 1
    enqueue(in_memory.connection, "billing.charge", {"invoice_id": 2})  # now, by the fixture's clock
    assert len(in_memory.drain().succeeded) == 1
    in_memory.assert_fires("@daily", between=("2026-03-01", "2026-03-02"))
    with pytest.raises(UsageError, match=r"cronjobs_fixture\(database_url=…\)"):
        in_memory.tick()


def test_on_the_tests_own_connection(on_my_connection: Jobs, my_connection: Connection) -> None:
    assert on_my_connection.connection is my_connection
    enqueue(my_connection, "billing.charge", {"invoice_id": -1})
    assert len(on_my_connection.drain().failed) == 1
    assert on_my_connection.drain().ran == ()
    assert len(on_my_connection.drain(at=SYSTEM.now() + timedelta(minutes=6)).dead) == 1
    enqueue(my_connection, "billing.charge", {"invoice_id": -2})
    with pytest.raises(billing.Declined):
        on_my_connection.drain(raise_errors=True)


@pytest.mark.parametrize("name", ["on_a_file", "on_my_database"])
def test_on_a_database_it_ticks(name: str, request: pytest.FixtureRequest) -> None:
    jobs: Jobs = request.getfixturevalue(name)
    then = datetime(2030, 1, 1, tzinfo=UTC)
    assert jobs.database_url is not None
    with opened(jobs.database_url) as database, database.write() as connection:
        enqueue(connection, "billing.charge", {"invoice_id": 5}, run_at=then)
    jobs.assert_enqueued("billing.charge", run_at=then)
    assert jobs.tick().ran == ()
    assert len(jobs.tick(at=then).succeeded) == 1
    assert jobs.clock.now() == then
    with pytest.raises(UsageError, match=r"then call tick\(\)"):
        jobs.drain()


in_a_schema = cronjobs_fixture(database_url="empty_postgres", config="cronjobs.yaml")


@pytest.fixture
def empty_postgres(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "cronjobs.yaml").write_text(
        "database: postgresql:///nowhere\nschema: work\nimports: [support.billing]\n"
    )
    monkeypatch.chdir(tmp_path)
    return postgres_url


def test_its_assertions_read_the_schema_of_the_file(in_a_schema: Jobs) -> None:
    assert in_a_schema.database_url is not None
    with opened(in_a_schema.database_url, "work") as database, database.write() as connection:
        enqueue(connection, "billing.charge", {"invoice_id": 5})
    in_a_schema.assert_enqueued("billing.charge", count=1)
    assert len(in_a_schema.tick().succeeded) == 1
    in_a_schema.assert_enqueued("billing.charge", status="succeeded")


@pytest.mark.usefixtures("on_my_connection", "on_my_database")
def test_the_fixtures_it_takes_are_known_before_the_test_runs(request: pytest.FixtureRequest) -> None:
    """pytest-django creates a test database only for tests that have ``db`` among these names."""
    assert {"my_connection", "empty_url", "postgres_migrated"} <= {*request.node.fixturenames}


@pytest.mark.usefixtures("on_a_file")
def test_a_file_of_its_own_is_in_the_tests_folder(request: pytest.FixtureRequest) -> None:
    assert "tmp_path" in request.node.fixturenames
