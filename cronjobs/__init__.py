"""The public API of cronjobs; everything else is internal.

``@job`` registers a handler, ``enqueue`` writes a job beside your own rows, ``fire_times`` reads cron time. Names are
loaded when they are first used: cron starts this package every minute, and an idle tick needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from cronjobs.version import __version__

if TYPE_CHECKING:
    from cronjobs.connecting import connect
    from cronjobs.context import Context
    from cronjobs.effects import Effect
    from cronjobs.enqueueing import Enqueued, enqueue, enqueue_async, enqueue_many, enqueue_many_async
    from cronjobs.errors import (
        Cancelled,
        CronjobsError,
        EffectUnknown,
        GiveUp,
        LeaseLost,
        QueueFull,
        RetryLater,
        Snooze,
        TransactionTooLong,
    )
    from cronjobs.jobs import job
    from cronjobs.model import RetryPolicy
    from cronjobs.occurrences import fire_times

__all__ = [
    "Cancelled",
    "Context",
    "CronjobsError",
    "Effect",
    "EffectUnknown",
    "Enqueued",
    "GiveUp",
    "LeaseLost",
    "QueueFull",
    "RetryLater",
    "RetryPolicy",
    "Snooze",
    "TransactionTooLong",
    "__version__",
    "connect",
    "enqueue",
    "enqueue_async",
    "enqueue_many",
    "enqueue_many_async",
    "fire_times",
    "job",
]

_HOMES: Final = {
    "Cancelled": "errors",
    "Context": "context",
    "CronjobsError": "errors",
    "Effect": "effects",
    "EffectUnknown": "errors",
    "Enqueued": "enqueueing",
    "GiveUp": "errors",
    "LeaseLost": "errors",
    "QueueFull": "errors",
    "RetryLater": "errors",
    "RetryPolicy": "model",
    "Snooze": "errors",
    "TransactionTooLong": "errors",
    "connect": "connecting",
    "enqueue": "enqueueing",
    "enqueue_async": "enqueueing",
    "enqueue_many": "enqueueing",
    "enqueue_many_async": "enqueueing",
    "fire_times": "occurrences",
    "job": "jobs",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"cronjobs.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
