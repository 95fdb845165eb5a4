"""Run every attempt inside context managers: the file's ``around:`` entries, and the hooks of ``around_attempts``.

An ``around:`` entry is for tracing and error reporting. An error that an entry raises is reported in the attempt's
output and never changes the outcome. A hook cleans up resources that attempts share, such as connections and sessions.
An error that a hook raises becomes the attempt's error. Hooks are entered after the ``around:`` entries and left before
them, so the entries see the hooks' errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from importlib import import_module
from typing import Any, Final, TypeVar

from cronjobs.engine.jobs.context import Context
from cronjobs.errors import UsageError
from cronjobs.text import message_of, one_line

T = TypeVar("T")
Manager = AbstractContextManager[object]
Hook = Callable[[Context], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
H = TypeVar("H", bound=Hook)

# The key is the qualified name of the hook. When a module is reloaded, its hooks replace their old versions here.
HOOKS: Final[dict[str, Hook]] = {}


class CommandFailed(Exception):
    """The exception that ``around:`` managers get if a command fails. For a handler, they get its own exception."""


def hook(name: str) -> Callable[[Context], Manager]:
    """Import and return the function named "module:function". Raises whatever the import of that module raises."""
    module, _, function = name.partition(":")
    found: Callable[[Context], Manager] = getattr(import_module(module), function)
    return found


def surrounded(
    names: Sequence[str],
    ctx: Context,
    call: Callable[[], T],
    report: Callable[[str], object],
    failure: Callable[[T], BaseException | None] = lambda _: None,
) -> T:
    """Call *call* inside the context managers of *names*, and pass on its result or exception.

    The first manager is the outermost. The managers get the exception that *call* raises. If *call* returns, the
    managers get the exception that *failure* makes of the returned value, if any.
    """
    entered: list[tuple[str, Manager]] = []
    for name in names:
        try:
            manager = hook(name)(ctx)
            manager.__enter__()
        except BaseException as error:
            report(_said(name, "before the attempt", error))
        else:
            entered.append((name, manager))
    try:
        result = call()
    except BaseException as error:
        _leave(entered, error, report)
        raise
    _leave(entered, failure(result), report)
    return result


def _leave(entered: list[tuple[str, Manager]], error: BaseException | None, report: Callable[[str], object]) -> None:
    for name, manager in reversed(entered):
        try:
            if error is None:
                manager.__exit__(None, None, None)
            else:
                manager.__exit__(type(error), error, error.__traceback__)
        except BaseException as raised:
            # Many managers raise the same exception again just to pass it on. That is not an error of the manager.
            if raised is not error:
                report(_said(name, "after the attempt", raised))


def _said(name: str, when: str, error: BaseException) -> str:
    return one_line(f"around {name} raised {type(error).__name__} {when}: {message_of(error)}", 500)


# --- hooks ------------------------------------------------------------------------------------------------------------


def around_attempts(hook: H) -> H:
    """Decorator: run every attempt of a handler inside the context manager that *hook* returns.

    *hook* is called with the attempt's context, in each process that runs handlers. The context manager is entered in
    the handler's thread before the handler runs, and exited afterwards, even if the handler raised or timed out. An
    exception that the manager raises becomes the attempt's error. If the manager raises it on entry, the handler is not
    called. The manager cannot turn a failure into a success. An asynchronous manager is entered only for an ``async``
    handler, in that handler's event loop. A manager that is both synchronous and asynchronous is entered synchronously
    for every handler, and also asynchronously for an ``async`` handler. Raises UsageError if *hook* is neither a
    function nor a class.
    """
    name = getattr(hook, "__qualname__", None)
    if not callable(hook) or name is None:
        raise UsageError(f"around_attempts() takes a function or a class that returns a context manager, not {hook!r}")
    HOOKS[f"{hook.__module__}.{name}"] = hook
    return hook


class Surroundings:
    """The managers of all hooks, for one attempt."""

    def __init__(self, ctx: Context) -> None:
        self._managers: list[Any] = [hook(ctx) for hook in HOOKS.values()]

    def call(self, call: Callable[[], T]) -> T:
        """Call *call* inside the managers, in this thread."""
        failure: BaseException | None = None
        with ExitStack() as stack:
            for manager in self._managers:
                if hasattr(manager, "__enter__"):
                    stack.enter_context(manager)
            try:
                return call()
            except BaseException as error:
                failure = error
                raise
        # A manager has suppressed the exception, but the attempt still fails.
        raise failure

    async def awaited(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Await *wait* inside the asynchronous managers, in this event loop."""
        failure: BaseException | None = None
        async with AsyncExitStack() as stack:
            for manager in self._managers:
                if hasattr(manager, "__aenter__"):
                    await stack.enter_async_context(manager)
            try:
                return await wait()
            except BaseException as error:
                failure = error
                raise
        raise failure
