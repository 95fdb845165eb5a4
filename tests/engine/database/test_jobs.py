"""How an app uses cronjobs: @job and enqueue, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session

import cronjobs
from cronjobs import RetryPolicy, enqueue, job
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.jobs import registry as jobs_module
from cronjobs.engine.jobs.checking import key_text
from cronjobs.errors import PayloadError, SchemaMissing, UsageError
from cronjobs.model import Status


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "_registered", {})


def rows(database: Database) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(select(jobs).order_by(jobs.c.id)).all())


# --- @job -------------------------------------------------------------------------------------------------------------


def test_a_registered_function_stays_what_it_is() -> None:
    @job("t.add", timeout="20s", retry=RetryPolicy(max_attempts=3))
    def add(a: int, b: int = 2) -> int:
        return a + b

    assert add(1) == 3
    registration = jobs_module.registered()["t.add"]
    assert registration.options.timeout == timedelta(seconds=20)
    assert registration.bind({"a": 1}) is None
    assert "missing a required argument: 'a'" in str(registration.bind({}))
    assert "unexpected keyword argument 'c'" in str(registration.bind({"a": 1, "c": 3}))


def test_ctx_is_passed_by_name_only() -> None:
    @job("t.with")
    def with_ctx(ctx: Any, a: int) -> None: ...

    @job("t.without")
    def without(a: int) -> None: ...

    assert jobs_module.registered()["t.with"].takes_ctx
    assert jobs_module.registered()["t.with"].bind({"a": 1}) is None
    assert not jobs_module.registered()["t.without"].takes_ctx


def test_one_name_cannot_mean_two_functions() -> None:
    @job("t.twice")
    def first() -> None: ...

    with pytest.raises(UsageError, match=r"registered twice.*first.*second"):

        @job("t.twice")
        def second() -> None: ...


@pytest.mark.parametrize("name", ["", " x", "a\nb", "x" * 201, "a\0b"])
def test_a_name_that_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        job(name)


@pytest.mark.parametrize("timeout", ["soon", "0s", -1, "31d"])
def test_a_timeout_that_cannot_be_meant_is_refused(timeout: Any) -> None:
    with pytest.raises(UsageError):
        job("t.x", timeout=timeout)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"isolation": "fork"}, "isolation 'fork' is not one of thread, process"),
        ({"durable": "always"}, "durable 'always' is not one of group, each"),
        ({"on_shutdown": "cancel"}, "on_shutdown 'cancel' is not one of release, drop"),
        ({"on_lost": True}, "on_lost True is not one of retry, dead"),
        ({"max_memory": "512MiB"}, 'max_memory needs a process: write isolation="process" too'),
        ({"max_memory": "512MiB", "isolation": "thread"}, 'write isolation="process" too'),
        ({"max_memory": "lots", "isolation": "process"}, "max_memory: 'lots' is not a size: write it as 512MiB"),
        ({"max_memory": 512, "isolation": "process"}, "max_memory 512 is below 16MiB"),
        ({"max_memory": 0, "isolation": "process"}, "max_memory 0 is below 16MiB"),
        ({"max_memory": True, "isolation": "process"}, "max_memory: True is not a size"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_with_what_to_write(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        job("t.x", **options)
    assert str(refused.value).startswith("@job('t.x'): ")
    assert says in str(refused.value)


# --- enqueue ----------------------------------------------------------------------------------------------------------


def test_enqueue_belongs_to_the_callers_transaction(database: Database) -> None:
    with Session(database.engine) as session:
        with session.begin():
            made = enqueue(session, "t.say", {"line": "kept"}, meta={"trace": "1"}, priority=2, queue="mail")
        session.begin()
        enqueue(session, "t.say", {"line": "rolled back"})
        session.rollback()
    [row] = rows(database)
    assert (made.id, made.new, made.status) == (row.id, True, Status.QUEUED)
    assert (row.payload, row.meta, row.priority, row.queue) == ({"line": "kept"}, {"trace": "1"}, 2, "mail")


def test_enqueue_takes_any_engine_of_the_users(database_url: str) -> None:
    url = database_url.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            enqueue(connection, "t.say", delay="5m")
        with engine.connect() as connection:
            [row] = connection.execute(select(jobs)).all()
        assert timedelta(minutes=4.9) < row.run_at - row.created_at <= timedelta(minutes=5, seconds=1)
        assert row.meta == {}
    finally:
        engine.dispose()


def test_a_key_makes_one_job_and_tells_of_the_first(database: Database) -> None:
    with database.write() as connection:
        first = enqueue(connection, "t.say", {"n": 1}, idempotency_key=("invoice", 42))
        second = enqueue(connection, "t.say", {"n": 2}, idempotency_key=("invoice", 42))
        other = enqueue(connection, "t.say", {"n": 3}, idempotency_key=("invoice", 43))
    assert (first.new, second.new, other.new) == (True, False, True)
    assert second.id == first.id
    assert [row.payload["n"] for row in rows(database)] == [1, 3]


def test_a_spent_key_does_not_spoil_the_callers_transaction(database: Database) -> None:
    with database.write() as connection:
        enqueue(connection, "t.say", idempotency_key="k")
    with database.write() as connection:
        enqueue(connection, "t.say", idempotency_key="k")
        enqueue(connection, "t.say", idempotency_key="l")
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(jobs)).scalar() == 2


@pytest.mark.parametrize("key", [None, "", ("invoice", None), ("invoice", ""), ()])
def test_a_key_with_an_empty_part_is_refused(key: Any) -> None:
    with pytest.raises(UsageError, match=r"flush|at least one part"):
        key_text(key)


def test_keys_are_told_apart_also_when_parts_contain_the_separator() -> None:
    keys = [("a", "b:c"), ("a:b", "c"), ("a", "b", "c"), ("a\\", "b"), ("a", "\\b")]
    assert len({key_text(key) for key in keys}) == len(keys)
    assert key_text(("invoice", 42)) == "invoice:42"


def test_run_at_is_kept_to_the_microsecond(database: Database) -> None:
    run_at = datetime(2027, 5, 1, 12, 30, 1, 123456, tzinfo=UTC)
    with database.write() as connection:
        enqueue(connection, "t.say", run_at=run_at)
    assert rows(database)[0].run_at == run_at


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"run_at": datetime(2027, 1, 1)}, "no time zone"),  # noqa: DTZ001 that is the point
        ({"run_at": datetime(2027, 1, 1, tzinfo=UTC), "delay": "5m"}, "not both"),
        ({"priority": 10}, "0 .first. to 9"),
        ({"priority": True}, "0 .first. to 9"),
        ({"max_attempts": 0}, "from 1 to 1,000,000"),
        ({"delay": "soon"}, "not a duration"),
        ({"timeout": 0}, "above zero"),
        ({"queue": "a\nb"}, "unprintable characters"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(
    database: Database, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says), database.write() as connection:
        enqueue(connection, "t.say", **arguments)
    assert rows(database) == []


def test_a_payload_that_cannot_be_stored_is_refused(database: Database) -> None:
    with pytest.raises(PayloadError, match="NUL"), database.write() as connection:
        enqueue(connection, "t.say", {"a": "x\0"})
    assert rows(database) == []


def test_a_missing_table_names_the_command_and_the_database(empty_url: str) -> None:
    engine = create_engine(empty_url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with pytest.raises(SchemaMissing, match="cronjobs db upgrade") as told, engine.begin() as connection:
            enqueue(connection, "t.say")
        assert "secret" not in str(told.value)
    finally:
        engine.dispose()


@pytest.mark.parametrize("target", [None, "sqlite:///x.db", object()])
def test_a_wrong_target_is_a_type_error_that_says_what_to_pass(target: Any) -> None:
    with pytest.raises(TypeError, match="Connection, Session or Engine"):
        enqueue(target, "t.say")


@pytest.mark.needs("desk")
def test_the_public_names_are_all_there() -> None:
    for name in cronjobs.__all__:
        assert getattr(cronjobs, name) is not None
    with pytest.raises(AttributeError):
        _ = cronjobs.nonsense
