"""Whatever an app passes to what it calls, it works, or a clear error names the argument and what to write."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from support.cases import judge

import cronjobs
from cronjobs import RetryPolicy, enqueue, enqueue_async, enqueue_many, job
from cronjobs.engine.config.load import load as load_config
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs import job_types, registry
from cronjobs.engine.jobs.enqueue import EnqueueOptions
from cronjobs.errors import CronjobsError, PayloadError, UsageError
from cronjobs.loading import Loading

ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 5, 10**400, 3.5, float("nan"), float("inf"), -0.0, b"x", "", " ", "x", "5s", "\0"),
    *("\ud800", "x" * 3000, "thread", "keep", [], [1], ["5s"], (), ("a", None), ("a", 1), {}, {"a": 1}, {1: object()}),
    *(
        {"max_attempts": 1},
        {1, 2},
        object(),
        object,
        ValueError,
        len,
        lambda: None,
        timedelta(-1),
        timedelta(days=9999),
    ),
    *(
        timedelta(0),
        timedelta(seconds=5),
        datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None),
        datetime(1, 1, 1, tzinfo=UTC),
        date(2026, 1, 1),
    ),
    *(datetime.max.replace(tzinfo=UTC), range(3), RetryPolicy(), Path("x"), 1j, iter([1])),
]
OPTIONS = tuple(EnqueueOptions.__annotations__)
OF_JOB = ("timeout", "retry", "isolation", "max_memory", "on_shutdown", "on_lost", "durable", "check_types", "executor")
OF_POLICY = tuple(RetryPolicy.__dataclass_fields__)


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_refused", {})


def is_clear(error: BaseException, about: str) -> bool:
    """Of the kinds that the API documents, and it names the argument."""
    kinds = (UsageError, PayloadError, TypeError, ValueError)
    return isinstance(error, kinds) and about.replace("_", " ") in str(error).replace("_", " ")


def tried(call: Callable[..., Any], about: str, *given: Any, **options: Any) -> None:
    try:
        call(*given, **options)
    except Exception as error:
        if not is_clear(error, about):
            error.add_note(f"{about} of {call}: {given!r:.200} {options!r:.200}")
            raise


def said(call: Callable[..., Any], option: str, value: Any) -> str:
    try:
        call(**{option: value})
    except ValueError as error:
        return str(error)
    return ""


def test_each_argument_of_job_and_of_its_policy_is_taken_or_refused_clearly() -> None:
    def case(dice: random.Random) -> None:
        value = dice.choice(ODD)
        option = dice.choice(OF_JOB)
        tried(lambda **options: job("t.x", **options)(lambda: None), option, **{option: value})
        tried(lambda name: job(name)(lambda: None), "name" if not callable(value) else "parentheses", value)
        option = dice.choice(OF_POLICY)
        about = (
            "duration"
            if option in ("base", "cap", "delays") and "duration" in said(RetryPolicy, option, value)
            else option
        )
        tried(RetryPolicy, about, **{option: value})

    judge(case, few=300)


def test_each_argument_of_the_enqueues_is_taken_or_refused_clearly(database: Database) -> None:
    @job("t.here")
    def here(amount: int = 0) -> None: ...

    def case(dice: random.Random) -> None:
        value, option = dice.choice(ODD), dice.choice(OPTIONS)
        name = dice.choice(["t.here", "t.elsewhere"])
        with database.write() as connection:
            before = connection.begin_nested()
            tried(enqueue, option, connection, name, **{option: value})
            tried(enqueue, "payload", connection, name, value)
            tried(enqueue, "job_type", connection, value, {})
            tried(
                enqueue,
                "connection" if value is None or isinstance(value, str | bytes | dict) else "enqueue",
                value,
                name,
            )
            tried(
                enqueue_many,
                "rows" if not isinstance(value, list | tuple | set | range | Iterator) else "payload",
                connection,
                name,
                value,
            )
            tried(enqueue_many, option, connection, name, [{}], **{option: value})
            tried(enqueue_many, option, connection, name, [({}, {option: value})])
            tried(here.options(**{option: value}).enqueue, option, connection)
            assert enqueue(connection, "t.here", {"amount": 1}).new, "the transaction stays usable"
            before.rollback()

    judge(case, few=150)


def test_each_argument_of_an_async_enqueue_is_taken_or_refused_clearly(sqlite_migrated: Path) -> None:
    async def all_of(dice: random.Random) -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{sqlite_migrated}")
        try:
            async with engine.connect() as connection:
                for _ in range(20):
                    value, option = dice.choice(ODD), dice.choice(OPTIONS)
                    for about, given, options in (
                        (option, (connection, "t.x"), {option: value}),
                        ("payload", (connection, "t.x", value), {}),
                        ("job_type", (connection, value), {}),
                        ("async", (value, "t.x"), {}),
                    ):
                        [error] = await asyncio.gather(enqueue_async(*given, **options), return_exceptions=True)
                        if isinstance(error, BaseException):
                            assert is_clear(error, about) or is_clear(error, "connection"), (about, given, options)
        finally:
            await engine.dispose()

    judge(lambda dice: asyncio.run(all_of(dice)), few=5, many=100)


def test_each_argument_of_connect_is_taken_or_refused_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for value in ODD:
        for option in ("config", "database_url"):
            with suppress(CronjobsError), cronjobs.connect(**{option: value}):
                pass


ANY: Any = cronjobs  # so that the type checker lets these pass
FIRST = "(connection, …): the first argument must be the connection of the transaction"
MISSPELT: list[tuple[Callable[..., Any], str]] = [
    (
        lambda: ANY.RetryPolicy(max_retries=3),
        "RetryPolicy() has no argument 'max_retries', did you mean 'max_attempts'?",
    ),
    (
        lambda: ANY.job("t.x", max_attempts=1),
        "job() has no argument 'max_attempts': write retry=RetryPolicy(max_attempts=…)",
    ),
    (lambda: ANY.job("t.x", timout="5s"), "job() has no argument 'timout', did you mean 'timeout'?"),
    (lambda: ANY.enqueue(0, "t.x", eta=1), "enqueue() has no argument 'eta', did you mean 'run_at'?"),
    (lambda: ANY.enqueue(0, "t.x", countdown=1), "enqueue() has no argument 'countdown', did you mean 'delay'?"),
    (lambda: ANY.enqueue(0, "t.x", prioritty=1), "enqueue() has no argument 'prioritty', did you mean 'priority'?"),
    (
        lambda: ANY.enqueue_many(0, "t.x", [], dellay=1),
        "enqueue_many() has no argument 'dellay', did you mean 'delay'?",
    ),
    (lambda: ANY.connect(confg="x"), "connect() has no argument 'confg', did you mean 'config'?"),
    (lambda: ANY.enqueue("hello", {"a": 1}), f"enqueue{FIRST}"),
    (lambda: ANY.enqueue_many(None, "t.x", []), f"enqueue_many{FIRST}"),
]


@pytest.mark.parametrize(("call", "says"), MISSPELT, ids=lambda value: value[:30] if isinstance(value, str) else "")
def test_a_misspelt_or_misplaced_argument_says_what_was_meant(call: Callable[..., Any], says: str) -> None:
    with pytest.raises(TypeError) as refused:
        call()
    assert str(refused.value).startswith(says)


def test_a_handlers_own_enqueue_says_that_the_connection_comes_first() -> None:
    @job("t.invoice")
    def send_invoice(order_id: int) -> None: ...

    enqueue_it: Any = send_invoice.enqueue
    with pytest.raises(TypeError, match=r"enqueue\(connection, …\): the first argument must be the connection"):
        enqueue_it(order_id=1)
    for its_argument in (1, "42", {"order_id": 1}, [1]):
        with pytest.raises(TypeError, match=r"enqueue\(connection, …\): the first argument must be the connection"):
            enqueue_it(its_argument)
    with pytest.raises(TypeError, match=r"options\(\) has no argument 'prio', did you mean 'priority'"):
        send_invoice.options(prio=1)  # type: ignore[call-arg]


WRONG = {
    'retry={"max_attempts": 1}': "write retry=RetryPolicy(max_attempts=1)",
    "retry=3": "retry 3 is not a policy",
    'timeout="soon"': "timeout: 'soon' is not a duration",
    "timout=3": "did you mean 'timeout'?",
    'isolation="procces"': "isolation 'procces' is not one of thread, process",
    "check_types=1": "check_types 1 is neither True nor False",
    "retry=RetryPolicy(max_retries=1)": "RetryPolicy() has no argument 'max_retries', did you mean 'max_attempts'?",
    "retry=RetryPolicy(max_attempts=0)": "retry: max_attempts must be at least 1",
    "retry=RetryPolicy(1, 2, 3, 4, 5, 6, 7, 8, 9)": "positional arguments",
    'retry=replace(RetryPolicy(), base="soon")': "'soon' is not a duration",
    "retry=replace(RetryPolicy(factor=0), max_attempts=2)": "factor must be between 1 and 100",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_argument_of_job_is_a_fault_of_that_type_and_stops_no_other(
    tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"module_{abs(hash(wrong))}"
    (tmp_path / f"{name}.py").write_text(
        "from dataclasses import replace\nfrom cronjobs import RetryPolicy, job\n"
        f"@job('bad', {wrong})\ndef bad(): pass\n@job\ndef plain(): pass\n"
        "@job('good')\ndef good(): pass\n"
    )
    found = job_types.load(Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path, imports=(name,)))
    assert found.types.keys() == {"good"}
    faults = {fault.where: fault.what for fault in found.faults}
    assert faults.keys() == {"bad", f"{name}.plain"}
    assert WRONG[wrong] in faults["bad"]
    assert faults[f"{name}.plain"] == 'the @job above plain has no parentheses: write @job("app.plain")'
    with pytest.raises((UsageError, TypeError, ValueError)):  # whoever imports it without a tick hears of it at once
        exec((tmp_path / f"{name}.py").read_text(), {"__name__": "elsewhere"})


def test_of_two_functions_with_one_name_neither_runs_and_their_modules_other_handlers_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "named_twice.py").write_text(
        "from cronjobs import job\n@job('first')\ndef first(): pass\n"
        + "".join(f"@job('dup')\ndef {name}(): pass\n" for name in ("one", "two", "three"))
        + "@job('last')\ndef last(): pass\n"
    )
    found = job_types.load(Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path, imports=("named_twice",)))
    assert found.types.keys() == {"first", "last"}
    [fault] = found.faults
    assert fault.where == "dup"
    assert "is registered twice: by named_twice.one and by named_twice.three" in fault.what


def test_a_module_that_reads_a_file_while_it_is_imported_hears_of_a_wrong_policy_in_it(tmp_path: Path) -> None:
    file = tmp_path / "cronjobs.yaml"
    file.write_text("database: sqlite:///x.db\njob_types: {t.x: {retry: {base: 2h, cap: 1h}}}\n")
    with Loading():
        [wrong] = load_config(file, environ={}).problems
    assert "base must be above zero and at most cap" in str(wrong)


def test_whatever_is_wrong_with_one_type_the_others_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("t.good", "t.odd"):
        job(name)(lambda: None)
    job_type = job_types._job_type

    def fails(settings: Settings, name: str) -> Any:
        if name == "t.odd":
            raise KeyError("nobody expected this")
        return job_type(settings, name)

    monkeypatch.setattr(job_types, "_job_type", fails)
    found = job_types.assembled(Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path), [])
    assert found.types.keys() == {"t.good"}
    assert [(fault.where, "KeyError: 'nobody expected this'" in fault.what) for fault in found.faults] == [
        ("t.odd", True)
    ]
