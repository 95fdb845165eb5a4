"""Run our sync functions for async callers.

SQLAlchemy calls them with the sync connection that an async target wraps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

AsyncTarget: TypeAlias = "AsyncConnection | AsyncSession"
AsyncTargetOrEngine: TypeAlias = "AsyncTarget | AsyncEngine"
T = TypeVar("T")


class RunSync(Protocol):
    def __call__(self, do: Callable[[Any], T], /) -> Awaitable[T]: ...


@asynccontextmanager
async def run_sync_of(target: Any, called: str) -> AsyncIterator[RunSync]:
    """Yield an awaitable function that runs a sync call with the Connection or Session behind *target*.

    For an AsyncEngine, begins a new transaction, and commits it at the end of the block. Raises TypeError if *target*
    is not async. The message contains *called*, the name of the function that the user called.
    """
    if is_async_engine(target):
        async with target.begin() as connection:
            yield connection.run_sync
    elif is_async(target):
        yield target.run_sync
    else:
        raise TypeError(
            f"{called}() takes an SQLAlchemy AsyncConnection, AsyncSession or AsyncEngine, not "
            f"{type(target).__name__}: use {called.removesuffix('_async')}() for sync connections and sessions"
        )


def is_async(target: Any) -> bool:
    return hasattr(target, "run_sync") or type(target).__module__.startswith("sqlalchemy.ext.asyncio")


def is_async_engine(target: Any) -> bool:
    return is_async(target) and not hasattr(target, "run_sync")


def refuse_async(target: Any, called: str, twin: str | None) -> None:
    """Raise TypeError if *target* is async. The message tells the user to call the async function *twin* instead.

    If *twin* is None, no async function exists, and the message suggests ``run_sync``.
    """
    if not is_async(target):
        return
    instead = f"{twin}(…)" if twin else f"connection.run_sync(lambda sync: {called}(sync, …))"
    raise TypeError(f"{called}() does not accept {type(target).__name__}: write await {instead}")
