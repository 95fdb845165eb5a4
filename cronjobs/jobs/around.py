"""The file's ``around:``, context managers around every attempt: for tracing and error reporting.

What they raise is reported in the attempt's output, and never changes how the attempt ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TypeVar

from cronjobs.jobs.context import Context
from cronjobs.text import one_line

T = TypeVar("T")
Manager = AbstractContextManager[object]


class CommandFailed(Exception):
    """What ``around:`` gets when a declared command fails; a handler's exception it gets as it is."""


def hook(name: str) -> Callable[[Context], Manager]:
    """The function "module:function"; raises whatever its module raises."""
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
    """Call *call* inside the context managers of *names*, the first outermost; its result or exception is passed on.

    They get its exception, or what *failure* makes of its result.
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
            if raised is not error:  # to raise it again is how many let it pass
                report(_said(name, "after the attempt", raised))


def _said(name: str, when: str, error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # its own code
        text = "which cannot be read"
    return one_line(f"around {name} raised {type(error).__name__} {when}: {text}", 500)
