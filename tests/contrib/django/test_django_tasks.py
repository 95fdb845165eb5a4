"""Django's tasks as jobs: every TaskResult state, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from django.db import connections, transaction  # type: ignore[import-untyped]
from django.test import override_settings  # type: ignore[import-untyped]
from sqlalchemy import insert, select
from support.django_project import BACKEND, django_project

from cronjobs import enqueue
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import job_runs, queues
from cronjobs.engine.store.operating import OperatorAction, cancel
from cronjobs.errors import PayloadError
from cronjobs.model import Status
from cronjobs.testing import drain
from cronjobs.testing.draining import Drained

NAIVE = datetime(2200, 1, 1, 12, tzinfo=UTC).replace(tzinfo=None)
OPERATOR = OperatorAction("cancel", "ada", "web1", "no longer wanted")


@pytest.fixture
def alias(database_url: str) -> Iterator[str]:
    with django_project(database_url) as name:
        yield name


@pytest.fixture
def tasks(alias: str) -> Any:
    module = import_module("support.django_app.tasks")
    module.seen.clear()
    return module


def run_due(**options: Any) -> Drained:
    """Run all due jobs as a tick does, on Django's connection."""
    with transaction.atomic():
        return drain(connections["default"], **options)


def home(name: str) -> Any:
    """A module of Django's tasks."""
    from cronjobs.contrib.django import tasks

    return import_module(f"{tasks._HOME}.{name}")


# --- the states -------------------------------------------------------------------------------------------------------


def test_a_task_that_waits_is_ready(tasks: Any) -> None:
    made = tasks.add.using(priority=-100, run_after=datetime(2200, 1, 1, tzinfo=UTC)).enqueue(1, b=2)
    assert (str(made.status), made.attempts, made.is_finished) == ("READY", 0, False)
    found = tasks.add.get_result(made.id)
    assert (found.id, found.task.func, found.args, found.kwargs) == (made.id, tasks.add.func, [1], {"b": 2})
    assert found.task.priority <= -81
    assert (found.task.queue_name, found.task.run_after) == ("default", datetime(2200, 1, 1, tzinfo=UTC))
    assert (found.started_at, found.last_attempted_at, found.finished_at) == (None, None, None)
    assert (str(found.status), found.errors, found.worker_ids) == ("READY", [], [])
    with pytest.raises(ValueError, match="not finished"):
        _ = found.return_value
    assert run_due().ran == ()


def test_what_enqueue_returns_is_what_get_result_finds(tasks: Any) -> None:
    made = tasks.add.enqueue(1, b=2)
    assert tasks.add.get_result(made.id) == made
    with transaction.atomic():
        made = tasks.look.using(run_after=datetime(2200, 1, 1, tzinfo=UTC)).enqueue(word="x")
    assert tasks.look.get_result(made.id) == made


def test_a_task_that_succeeded_has_its_value(tasks: Any) -> None:
    made = tasks.add.enqueue(1, b=2)
    assert [ran.became for ran in run_due().ran] == ["succeeded"]
    made.refresh()
    assert (str(made.status), made.return_value, made.is_finished, made.errors) == ("SUCCESSFUL", 3, True, [])
    assert max(made.started_at, made.finished_at) - made.enqueued_at < timedelta(minutes=5)
    assert (made.attempts, len(made.worker_ids), made.last_attempted_at) == (1, 1, made.started_at)


def test_a_running_task_is_seen_running_by_itself(tasks: Any) -> None:
    made = tasks.look.enqueue("hello")
    run_due()
    assert tasks.seen == [(1, made.id, "RUNNING", ["hello"], 0)]
    made.refresh()
    assert made.return_value == {"word": "hello", "pair": [1, 2]}
    assert (made.task.priority, made.task.queue_name) == (40, "mail")


def test_a_task_that_failed_is_ready_again_until_it_is_dead(tasks: Any) -> None:
    from cronjobs.contrib.django.models import JobModel

    made = tasks.fail.enqueue()
    run_due()
    made.refresh()
    assert (str(made.status), made.attempts, made.finished_at) == ("READY", 1, None)
    [error] = made.errors
    assert error.exception_class is ValueError
    assert error.traceback.endswith("ValueError: failure 1\n")
    JobModel.objects.filter(id=made.id).update(max_attempts=2)
    run_due(at=datetime.now(UTC) + timedelta(days=1))
    made.refresh()
    assert (str(made.status), made.attempts, len(made.errors), made.is_finished) == ("FAILED", 2, 2, True)
    assert made.finished_at is not None
    assert made.started_at < made.last_attempted_at
    with pytest.raises(ValueError, match="failed"):
        _ = made.return_value


def test_a_later_try_may_succeed_and_the_errors_stay(tasks: Any) -> None:
    made = tasks.fail.enqueue(times=1)
    run_due()
    run_due(at=datetime.now(UTC) + timedelta(days=1))
    made.refresh()
    assert (str(made.status), made.return_value, made.attempts, len(made.errors)) == ("SUCCESSFUL", "at last", 2, 1)


def test_a_task_that_gives_up_is_failed_at_once(tasks: Any) -> None:
    made = tasks.give_up.enqueue()
    run_due()
    made.refresh()
    assert (str(made.status), made.attempts) == ("FAILED", 1)
    assert "there is no such order" in made.errors[0].traceback
    assert made.errors[0].exception_class.__name__ == "GiveUp"


def test_a_cancelled_task_is_failed_and_says_who_cancelled_it(tasks: Any, database: Database) -> None:
    made = tasks.add.enqueue(1)
    with database.write() as connection:
        cancel(connection, [int(made.id)], OPERATOR)
    made.refresh()
    assert (str(made.status), made.attempts, made.started_at) == ("FAILED", 0, None)
    assert made.errors[0].traceback == "cancelled by ada: no longer wanted"
    assert made.errors[0].exception_class.__name__ == "Cancelled"


def test_a_snoozed_task_is_ready_without_an_error(tasks: Any) -> None:
    made = tasks.later.enqueue()
    run_due()
    made.refresh()
    assert (str(made.status), made.attempts, made.errors) == ("READY", 1, [])


def test_a_coroutine_is_awaited(tasks: Any) -> None:
    made = tasks.wait_for.enqueue("hello")
    run_due()
    made.refresh()
    assert made.return_value == "HELLO"


def test_a_value_that_json_does_not_have_is_not_kept_and_the_work_is_done(tasks: Any, database: Database) -> None:
    made = tasks.unkept.enqueue()
    run_due()
    made.refresh()
    assert (str(made.status), made.return_value, made.errors) == ("SUCCESSFUL", None, [])
    with database.read() as connection:
        assert "the result was not kept" in connection.execute(select(job_runs.c.error)).scalar_one()


# --- enqueueing -------------------------------------------------------------------------------------------------------


def test_a_task_is_part_of_the_transaction(tasks: Any) -> None:
    with transaction.atomic():
        made = tasks.add.enqueue(1)
        assert str(tasks.add.get_result(made.id).status) == "READY"
        transaction.set_rollback(True)
    with pytest.raises(home("exceptions").TaskResultDoesNotExist):
        tasks.add.get_result(made.id)


def test_arguments_that_json_does_not_have_are_refused_and_the_transaction_goes_on(tasks: Any) -> None:
    with transaction.atomic():
        with pytest.raises(TypeError, match="Unsupported type"):
            tasks.add.enqueue(object())
        with pytest.raises(PayloadError, match="nan"):
            tasks.add.enqueue(float("nan"))
        made = tasks.add.enqueue(1)
    assert str(tasks.add.get_result(made.id).status) == "READY"


def test_arguments_with_which_the_task_cannot_be_called_are_refused(tasks: Any) -> None:
    from cronjobs.contrib.django.models import JobModel

    for task, args, kwargs, words in (
        (tasks.add, [], {}, "missing a required argument: 'a'"),
        (tasks.add, [1, 2, 3], {}, "too many positional arguments"),
        (tasks.add, [1], {"c": 3}, "got an unexpected keyword argument 'c'"),
        (tasks.look, [None, "x"], {}, "too many positional arguments"),
    ):
        with pytest.raises(PayloadError, match=f"the arguments do not fit {task.module_path}.*: {words}"):
            task.enqueue(*args, **kwargs)
    assert not JobModel.objects.exists()
    tasks.add.enqueue("one")  # as Django has it: annotations are not compared


def test_arguments_that_the_next_version_may_take_wait_for_it(tasks: Any) -> None:
    """In a deploy a task of the new shape is met by code of the old one."""
    made = enqueue(connections["default"], "support.django_app.tasks.add", {"args": [1]})
    with connections["default"].cursor() as cursor:
        cursor.execute("UPDATE cronjobs_jobs SET payload = %s", ['{"args": [1], "kwargs": {"new": 1}}'])
    [ran] = run_due().ran
    assert (ran.job_id, ran.became) == (made.id, "failed")
    [error] = tasks.add.get_result(str(made.id)).errors
    assert "got an unexpected keyword argument 'new'" in error.traceback
    found = tasks.add.get_result(str(made.id))
    assert (str(found.status), found.attempts) == ("READY", 1)


def test_what_the_backend_does_not_take_is_refused(tasks: Any, alias: str) -> None:
    for wrong in ({"queue_name": "nowhere"}, {"priority": 101}, {"run_after": NAIVE}):
        with pytest.raises(Exception, match=r"not valid|whole number|aware"):
            tasks.add.using(**wrong)


def test_priorities_are_ten_levels_in_the_same_order(alias: str) -> None:
    from cronjobs.contrib.django.tasks import level_of, priority_of

    levels = [level_of(priority) for priority in range(-100, 101)]
    assert levels == sorted(levels, reverse=True)
    assert set(levels) == set(range(10))
    assert (level_of(100), level_of(0), level_of(-100)) == (0, 5, 9)
    assert [level_of(priority_of(level)) for level in range(10)] == list(range(10))


def test_signals_are_sent_as_djangos_own_backends_do(tasks: Any) -> None:
    heard: list[tuple[str, str, str]] = []
    signals = home("signals")
    named = {name: getattr(signals, f"task_{name}") for name in ("enqueued", "started", "finished")}

    def listener(name: str) -> Any:
        return lambda sender, task_result, **_: heard.append((name, task_result.id, str(task_result.status)))

    listeners = {name: listener(name) for name in named}
    for name, signal in named.items():
        signal.connect(listeners[name])
    try:
        good, bad = tasks.add.enqueue(1), tasks.give_up.enqueue()
        run_due()
    finally:
        for name, signal in named.items():
            signal.disconnect(listeners[name])
    assert heard == [
        ("enqueued", good.id, "READY"),
        ("enqueued", bad.id, "READY"),
        ("started", good.id, "RUNNING"),
        ("finished", good.id, "SUCCESSFUL"),
        ("started", bad.id, "RUNNING"),
        ("finished", bad.id, "FAILED"),
    ]


def test_async_code_enqueues_and_asks(tasks: Any) -> None:
    async def story() -> tuple[str, str]:
        made = await tasks.add.aenqueue(1)
        found = await tasks.add.aget_result(made.id)
        await found.arefresh()
        return str(made.status), str(found.status)

    assert asyncio.run(story()) == ("READY", "READY")


# --- what rows cannot do ----------------------------------------------------------------------------------------------


def test_a_row_that_names_a_function_is_no_task(tasks: Any) -> None:
    """Rows choose among the types that the apps' modules register; none is imported because a row names it."""
    for name in ("os.system", "support.django_app.tasks.seen", "support.django_app.tasks.add.func", "no_such.tasks.x"):
        made = enqueue(connections["default"], name, {"args": ["true"], "kwargs": {}})
        with pytest.raises(home("exceptions").TaskResultDoesNotExist):
            tasks.add.get_backend().get_result(str(made.id))
    drained = run_due()
    assert drained.ran == ()
    assert len(drained.unresolved) == 4


def test_ids_that_are_none_of_ours_find_nothing(tasks: Any) -> None:
    other = enqueue(connections["default"], "django_app.greet", {})
    for wrong in ("", "0", "-1", "x", "1e3", "٣", "9" * 40, None, str(other.id), "4711"):
        with pytest.raises(home("exceptions").TaskResultDoesNotExist):
            tasks.add.get_backend().get_result(wrong)
    made = tasks.add.enqueue(1)
    with pytest.raises(home("exceptions").TaskResultMismatch):
        tasks.fail.get_result(made.id)


def test_a_payload_of_plain_sql_is_read_as_far_as_it_goes(tasks: Any) -> None:
    texts = ['{"kwargs": {"a": 4}}', '{"args": 7, "kwargs": []}', '{"a": 4}']
    with connections["default"].cursor() as cursor:
        for text in texts:
            cursor.execute(
                "INSERT INTO cronjobs_jobs (job_type, payload) VALUES ('support.django_app.tasks.add', %s)", [text]
            )
        cursor.execute("SELECT id FROM cronjobs_jobs ORDER BY id")
        made, odd, more = [row[0] for row in cursor.fetchall()]
    found = tasks.add.get_result(str(odd))
    assert (found.args, found.kwargs) == ([], {})
    became = {ran.job_id: ran.became for ran in run_due().ran}
    assert became == {made: "succeeded", odd: "failed", more: "failed"}


# --- finding them -----------------------------------------------------------------------------------------------------


def test_ticks_find_the_jobs_and_tasks_of_the_apps(alias: str) -> None:
    from cronjobs.engine.jobs.registry import registered
    from cronjobs.testing.configured import handlers_of, settings_of

    assert "support.django_app.tasks.add" not in registered()
    found = handlers_of(settings_of(None)).types
    assert {"django_app.greet", "support.django_app.tasks.add", "support.django_app.tasks.look"} <= found.keys()


def test_a_full_queue_that_drops_is_told_as_failed(tasks: Any, database: Database) -> None:
    with database.write() as connection:
        connection.execute(insert(queues).values(name="mail", max_waiting=0, on_full="drop"))
    made = tasks.look.enqueue("x")
    assert (made.id, str(made.status), made.errors[0].exception_class.__name__) == ("", "FAILED", "QueueFull")


def test_without_use_tz_instants_are_naive_in_the_projects_zone(database_url: str) -> None:
    with django_project(database_url, USE_TZ=False, TIME_ZONE="Asia/Kolkata"):
        tasks = import_module("support.django_app.tasks")
        made = tasks.add.using(run_after=NAIVE).enqueue(1)
        found = tasks.add.get_result(made.id)
        assert found.task.run_after == NAIVE
        now = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=5, minutes=30)
        assert abs(found.enqueued_at - now) < timedelta(minutes=5)


def test_a_backend_without_the_app_is_a_finding_of_check(tasks: Any) -> None:
    assert tasks.add.get_backend().check() == []
    with override_settings(INSTALLED_APPS=["support.django_app"]):
        assert [each.id for each in tasks.add.get_backend().check()] == ["cronjobs.E005"]
    assert BACKEND.endswith(type(tasks.add.get_backend()).__name__)


def test_every_status_of_a_job_is_one_of_a_result(alias: str) -> None:
    from cronjobs.contrib.django.tasks import STATUSES

    assert STATUSES.keys() == set(Status)
