"""Register Django tasks as handlers. A task's path is the name of its job type."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any, Final

from cronjobs.engine.jobs.context import Context
from cronjobs.engine.jobs.registry import INNER_FAULT, job, signature_of

KNOWN: Final[dict[str, Any]] = {}  # path → task; the backends of all threads share it


def know(task: Any) -> None:
    path = task.module_path
    if path in KNOWN and KNOWN[path].func is task.func:  # task.using(…) made a copy of a known task
        return
    KNOWN[path] = task
    job(path)(_handler(task))


def _handler(task: Any) -> Any:
    def run(ctx: Context, args: list[Any] | None = None, kwargs: dict[str, Any] | None = None) -> Any:
        return _call(KNOWN[task.module_path], ctx, args or [], kwargs or {})

    # Errors and logs show the handler's name.
    run.__module__, run.__qualname__, run.__name__ = task.func.__module__, task.func.__qualname__, task.func.__name__
    run.__doc__ = task.func.__doc__
    setattr(run, INNER_FAULT, _fault_of_call(task))
    return run


def _fault_of_call(task: Any) -> Callable[[Mapping[str, Any]], str | None]:
    """Return a function that says why a payload's arguments do not fit the task's function, or None if they fit.

    It does not compare types with annotations, because Django passes JSON values unchanged.
    """

    def fault(payload: Mapping[str, Any]) -> str | None:
        try:
            signature = signature_of(task.func)
        except Exception:  # broken annotations may raise any; the call of the task will report it
            return None
        args, kwargs = payload.get("args") or [], payload.get("kwargs") or {}
        if not isinstance(args, list) or not isinstance(kwargs, dict):  # the annotations of run() refuse this
            return None
        context = [None] if task.takes_context else []
        try:
            signature.bind(*context, *args, **kwargs)
        except TypeError as error:
            return f"the arguments do not fit {task.module_path}{signature}: {error}"
        return None

    return fault


def _call(task: Any, ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call the task as Django's backends do. For an async task, return a coroutine that the tick awaits or cancels."""
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
