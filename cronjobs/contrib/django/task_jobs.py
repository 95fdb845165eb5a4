"""Each of Django's tasks as a handler: what a tick calls for a job whose type is the task's path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any, Final

from cronjobs.engine.jobs.context import Context
from cronjobs.engine.jobs.registry import INNER_FAULT, job, signature_of

KNOWN: Final[dict[str, Any]] = {}  # by path; in one process, whichever thread's backend met it first


def know(task: Any) -> None:
    """Register *task* as the handler of the job type that its path names."""
    path = task.module_path
    if path in KNOWN and KNOWN[path].func is task.func:  # the same by other words: task.using(…)
        return
    KNOWN[path] = task
    job(path)(_handler(task))


def _handler(task: Any) -> Any:
    def run(ctx: Context, args: list[Any] | None = None, kwargs: dict[str, Any] | None = None) -> Any:
        return _call(KNOWN[task.module_path], ctx, args or [], kwargs or {})

    # As whose errors and logs it is known.
    run.__module__, run.__qualname__, run.__name__ = task.func.__module__, task.func.__qualname__, task.func.__name__
    run.__doc__ = task.func.__doc__
    setattr(run, INNER_FAULT, _fault_of_call(task))
    return run


def _fault_of_call(task: Any) -> Callable[[Mapping[str, Any]], str | None]:
    """How the arguments in a payload do not fit the task's function by number and name.

    Their types are not compared with annotations: Django gives a task its arguments as JSON has them.
    """

    def fault(payload: Mapping[str, Any]) -> str | None:
        try:
            signature = signature_of(task.func)
        except Exception:  # whatever its annotations raise: the call itself will show
            return None
        args, kwargs = payload.get("args") or [], payload.get("kwargs") or {}
        if not isinstance(args, list) or not isinstance(kwargs, dict):  # which the types of the handler above say
            return None
        context = [None] if task.takes_context else []
        try:
            signature.bind(*context, *args, **kwargs)
        except TypeError as error:
            return f"the arguments do not fit {task.module_path}{signature}: {error}"
        return None

    return fault


def _call(task: Any, ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call the task as Django's own backends do; a coroutine is the tick's to await, which can stop it."""
    backend = task.get_backend()
    running = backend.begin(task, ctx, args, kwargs)
    given = (backend.context_of(running), *args) if task.takes_context else tuple(args)
    if iscoroutinefunction(task.func):
        return _awaited(backend, running, task.func(*given, **kwargs))
    try:
        value = task.func(*given, **kwargs)
    except Exception as error:
        backend.end(running, error=error)
        raise
    return backend.end(running, value)


async def _awaited(backend: Any, running: Any, work: Awaitable[Any]) -> Any:
    try:
        value = await work
    except Exception as error:
        backend.end(running, error=error)
        raise
    return backend.end(running, value)
