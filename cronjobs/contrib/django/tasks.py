"""Django's tasks as jobs: ``TASKS = {"default": {"BACKEND": "cronjobs.contrib.django.tasks.CronjobsBackend"}}``.

Django 6 includes ``django.tasks``; on Django 5.2 the package django-tasks provides it as ``django_tasks``.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

import django  # type: ignore[import-untyped]
from django.apps import apps  # type: ignore[import-untyped]
from django.core.checks import Error  # type: ignore[import-untyped]
from django.core.exceptions import ImproperlyConfigured  # type: ignore[import-untyped]

from cronjobs import errors
from cronjobs.clock import SYSTEM
from cronjobs.contrib.django import task_jobs
from cronjobs.contrib.django.apps import import_modules_of_apps
from cronjobs.contrib.django.connections import in_transaction
from cronjobs.contrib.django.instants import as_djangos, from_djangos
from cronjobs.contrib.django.models import JobModel, JobRunModel
from cronjobs.engine.config.django_project import APP
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs.checking import name_fault
from cronjobs.engine.jobs.context import Context
from cronjobs.engine.jobs.enqueue import enqueue
from cronjobs.engine.jobs.find import FoundJob, find
from cronjobs.errors import RetryLater, Snooze
from cronjobs.model import Status

_HOME: Final = "django.tasks" if django.VERSION >= (6,) else "django_tasks"
try:
    _base: Any = import_module(f"{_HOME}.base")
except ImportError:
    raise ImproperlyConfigured(
        "Django has tasks from 6.0 on; with an older Django, pip install django-tasks and add it to INSTALLED_APPS"
    ) from None
_backends: Any = import_module(f"{_HOME}.backends.base")
_signals: Any = import_module(f"{_HOME}.signals")
_exceptions: Any = import_module(f"{_HOME}.exceptions")
_json: Any = import_module("django.utils.json" if django.VERSION >= (6,) else f"{_HOME}.utils")

BaseTaskBackend: Any = _backends.BaseTaskBackend
Task: Any = _base.Task
TaskResult: Any = _base.TaskResult
TaskResultStatus: Any = _base.TaskResultStatus

LEVELS: Final = 10
PRIORITIES: Final = _base.TASK_MAX_PRIORITY - _base.TASK_MIN_PRIORITY + 1  # 201
STATUSES: Final = {
    Status.QUEUED: TaskResultStatus.READY,
    Status.RUNNING: TaskResultStatus.RUNNING,
    Status.FAILED: TaskResultStatus.READY,  # the job waits for its retry
    Status.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    Status.DEAD: TaskResultStatus.FAILED,
    Status.CANCELLED: TaskResultStatus.FAILED,
}
FAILURES: Final = ("failed", "timed_out", "lost")  # outcomes that count as the task's errors


def level_of(priority: int) -> int:
    """Map Django's priority to ours.

    Django's priorities run from -100 to 100, and the highest runs first. Ours run from 0 to 9, and the lowest runs
    first. Django's 0 becomes our default, 5.
    """
    return LEVELS - 1 - (int(priority) - int(_base.TASK_MIN_PRIORITY)) * LEVELS // PRIORITIES


def priority_of(level: int) -> int:
    """Return the middle of the range of Django's priorities that map to our priority *level*."""
    return 0 if level == level_of(0) else round((LEVELS - 0.5 - level) * PRIORITIES / LEVELS) - 100


class CronjobsBackend(BaseTaskBackend):
    """Runs tasks as jobs whose type is the task's path, such as shop.tasks.send_invoice.

    If Django's connection has an open transaction, the job is part of it: both are committed, or neither. A failed task
    is retried as ``job_types:`` and ``defaults:`` in cronjobs.yaml say, by default in up to ten attempts.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Any) -> None:
        """Raise InvalidTask for a task that cannot be enqueued, or that no tick could import."""
        super().validate_task(task)
        if fault := name_fault(task.module_path):
            raise (getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError)(
                f"The path of the task, {task.module_path!r}, is also the name of its job type, but {fault}."
            )
        task_jobs.know(task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a job for the task. Return its TaskResult.

        Raises TypeError or PayloadError if the arguments are not JSON. Raises PayloadError if the task cannot be called
        with the arguments. Raises QueueFull if the queue is full and refuses jobs.
        """
        self.validate_task(task)
        result = self._made(task=task, id="", status=TaskResultStatus.READY, args=args, kwargs=kwargs)
        with in_transaction() as connection:
            made = enqueue(
                connection,
                task.module_path,
                {"args": result.args, "kwargs": result.kwargs},
                run_at=None if task.run_after is None else from_djangos(task.run_after),
                queue=task.queue_name,
                priority=level_of(task.priority),
            )
            # created_at comes from the database's clock, and get_result returns it too.
            times = JobModel.objects.using(connection.alias).filter(id=made.id).values_list("created_at", flat=True)
            _set(result, enqueued_at=times[0] if made.id else as_djangos(SYSTEM.now()))
        if made.id is None:
            words = f"queue {task.queue_name} is full and drops new jobs, so nothing was enqueued"
            result.errors.append(_error("cronjobs.errors.QueueFull", words))
            _set(result, status=TaskResultStatus.FAILED, finished_at=result.enqueued_at)
            return result
        _set(result, id=str(made.id))
        _signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return a job's TaskResult. Raises TaskResultDoesNotExist if no job of this project's tasks has that id."""
        # Accept only an id as enqueue returns it. int() would also accept other forms, such as "١" or " 1".
        is_id = isinstance(result_id, str) and result_id.isascii() and result_id.isdecimal() and len(result_id) < 19
        with in_transaction() as connection:
            found = find(connection, id=int(result_id)) if is_id and int(result_id) else None
            task = None if found is None else _task(found.job_type)
            if found is None or task is None:
                raise _exceptions.TaskResultDoesNotExist(result_id)
            runs = list(JobRunModel.objects.using(connection.alias).filter(job_id=found.id).order_by("attempt"))
            jobs = JobModel.objects.using(connection.alias).filter(id=found.id, status=Status.RUNNING)
            running = list(jobs.values_list("locked_by", "attempts"))
        return self._result(found, task, runs, running)

    def _result(self, found: FoundJob, task: Any, runs: Sequence[Any], running: Sequence[tuple[str, int]]) -> Any:
        payload = found.payload if isinstance(found.payload, dict) else {}
        args, kwargs = payload.get("args"), payload.get("kwargs")
        started = [run.started_at for run in runs]
        # The running attempt has no row yet. A runner claimed it at found.started_at, slightly before it started.
        if found.started_at is not None and (running or not runs):
            started.append(as_djangos(found.started_at))
        result = self._made(
            task=self._as_enqueued(task, found),
            id=str(found.id),
            status=STATUSES[found.status],
            enqueued_at=as_djangos(found.enqueued_at),
            started_at=min(started, default=None),
            finished_at=None if found.finished_at is None else as_djangos(found.finished_at),
            last_attempted_at=max(started, default=None),
            args=args if isinstance(args, list) else [],
            kwargs=kwargs if isinstance(kwargs, dict) else {},
            errors=[
                _error(_path(run.error_type), run.traceback or run.error) for run in runs if run.outcome in FAILURES
            ],
            worker_ids=[run.runner for run in runs]
            + [locked_by for locked_by, attempt in running if not runs or runs[-1].attempt < attempt],
        )
        if found.status is Status.CANCELLED:
            result.errors.append(_error("cronjobs.errors.Cancelled", found.last_error))
        elif found.status is Status.DEAD and not result.errors:
            result.errors.append(_error(_path(found.error_type), found.last_error))
        _set(result, _return_value=found.result)
        return result

    def _made(self, **given: Any) -> Any:
        """Return a TaskResult. Fields that are not *given* have their initial values."""
        instants = dict.fromkeys(("enqueued_at", "started_at", "finished_at", "last_attempted_at"))
        return TaskResult(**{"backend": self.alias, "errors": [], "worker_ids": [], **instants, **given})

    def _as_enqueued(self, task: Any, found: FoundJob) -> Any:
        """Return *task* with the options with which it was enqueued, as far as the job's row shows them."""
        changes: dict[str, Any] = {"backend": self.alias}
        if level_of(task.priority) != found.priority:
            changes["priority"] = priority_of(found.priority)
        if not self.queues or found.queue in self.queues:
            changes["queue_name"] = found.queue
        if not found.attempts and found.run_at > found.enqueued_at:
            changes["run_after"] = as_djangos(found.run_at)
        return task.using(**changes)

    # --- in a tick ----------------------------------------------------------------------------------------------------

    def begin(self, task: Any, ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return the TaskResult of an attempt that starts now, and send task_started."""
        if task.takes_context:  # the task's context shows earlier attempts
            result = self.get_result(str(ctx.job_id))
        else:
            at = None if ctx.started_at is None else as_djangos(ctx.started_at)
            result = self._made(
                task=task,
                id=str(ctx.job_id),
                status=TaskResultStatus.RUNNING,
                enqueued_at=None if ctx.enqueued_at is None else as_djangos(ctx.enqueued_at),
                started_at=at,
                last_attempted_at=at,
                args=args,
                kwargs=kwargs,
                worker_ids=[Identity.here().host] * ctx.attempt,
            )
        _signals.task_started.send_robust(type(self), task_result=result)
        return result

    def context_of(self, result: Any) -> Any:
        return _base.TaskContext(task_result=result)

    def end(self, result: Any, value: Any = None, *, error: Exception | None = None) -> Any:
        """Send task_finished with the attempt's outcome. Return *value* as JSON."""
        _set(result, finished_at=as_djangos(SYSTEM.now()))
        if error is None:
            # The attempt reports later that a value which is not JSON cannot be stored.
            with suppress(TypeError, ValueError):
                value = _json.normalize_json(value)
            _set(result, status=TaskResultStatus.SUCCESSFUL, _return_value=value)
        elif isinstance(error, Snooze | RetryLater | errors.Cancelled):
            return None  # the job has not ended
        else:
            kind = type(error)
            words = "".join(traceback.format_exception(error))
            result.errors.append(_error(f"{kind.__module__}.{kind.__qualname__}", words))
            _set(result, status=TaskResultStatus.FAILED)
        _signals.task_finished.send_robust(type(self), task_result=result)
        return value

    # --- manage.py check ----------------------------------------------------------------------------------------------

    def check(self, **kwargs: Any) -> list[Any]:
        """Return the errors for ``manage.py check``."""
        found = [*super().check(**kwargs)]
        if not apps.is_installed(APP):
            found.append(Error(f'TASKS needs the app: INSTALLED_APPS += ["{APP}"]', id="cronjobs.E005"))
        return found


def _task(job_type: str) -> Any:
    """Return the project's task for *job_type*, or None. Import the apps' modules, never a path from a row."""
    if job_type not in task_jobs.KNOWN:
        import_modules_of_apps()
    return task_jobs.KNOWN.get(job_type)


def _error(path: str, words: str | None) -> Any:
    return _base.TaskError(exception_class_path=path, traceback=words or "")


def _path(error_type: str | None) -> str:
    """Return an importable path for the error type in a row, such as "ValueError" or "billing.errors.Declined"."""
    name = error_type or ""
    if "." in name:
        return name
    home = builtins if hasattr(builtins, name) else errors
    return f"{home.__name__}.{name}" if hasattr(home, name) else "cronjobs.errors.CronjobsError"


def _set(result: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)  # TaskResult is a frozen dataclass
