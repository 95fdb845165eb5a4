"""The public API of cronjobs. All names that are not listed here are internal.

``@job`` registers a handler, ``enqueue`` inserts a job together with your own rows, ``find`` looks a job up, and
``fire_times`` evaluates cron expressions. These names are imported lazily, on first use, because cron starts this
package every minute and an idle tick needs none of them.
"""

from __future__ import annotations

from cronjobs.version import __version__

# Type checkers treat this name as True. Importing it from typing would add a quarter to Python's start-up time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from cronjobs.desk.insight.app_health import health
    from cronjobs.engine.crontime.timing import fire_times
    from cronjobs.engine.jobs.around import around_attempts
    from cronjobs.engine.jobs.change import cancel, reschedule
    from cronjobs.engine.jobs.connect import connect
    from cronjobs.engine.jobs.context import Context
    from cronjobs.engine.jobs.effects import Effect
    from cronjobs.engine.jobs.enqueue import Enqueued, enqueue, enqueue_async, enqueue_many, enqueue_many_async
    from cronjobs.engine.jobs.find import FoundJob, find, wait, wait_async
    from cronjobs.engine.jobs.registry import job
    from cronjobs.errors import (
        Cancelled,
        ConfigError,
        CronError,
        CronjobsError,
        DatabaseError,
        EffectBusy,
        EffectUnknown,
        ForeignDatabase,
        GiveUp,
        JobHeld,
        JobNotWaiting,
        LeaseLost,
        NoSuchJob,
        PayloadError,
        QueueFull,
        QueueHeld,
        RetryLater,
        SchemaMissing,
        Snooze,
        TransactionTooLong,
        UsageError,
    )
    from cronjobs.model import RetryPolicy, Status

__all__ = [
    "Cancelled",
    "ConfigError",
    "Context",
    "CronError",
    "CronjobsError",
    "DatabaseError",
    "Effect",
    "EffectBusy",
    "EffectUnknown",
    "Enqueued",
    "ForeignDatabase",
    "FoundJob",
    "GiveUp",
    "JobHeld",
    "JobNotWaiting",
    "LeaseLost",
    "NoSuchJob",
    "PayloadError",
    "QueueFull",
    "QueueHeld",
    "RetryLater",
    "RetryPolicy",
    "SchemaMissing",
    "Snooze",
    "Status",
    "TransactionTooLong",
    "UsageError",
    "__version__",
    "around_attempts",
    "cancel",
    "connect",
    "enqueue",
    "enqueue_async",
    "enqueue_many",
    "enqueue_many_async",
    "find",
    "fire_times",
    "health",
    "job",
    "reschedule",
    "wait",
    "wait_async",
]

_HOMES = {  # maps each public name to its module; other names raise AttributeError
    "Context": "engine.jobs.context",
    "Effect": "engine.jobs.effects",
    "Enqueued": "engine.jobs.enqueue",
    "FoundJob": "engine.jobs.find",
    "RetryPolicy": "model",
    "Status": "model",
    "around_attempts": "engine.jobs.around",
    "cancel": "engine.jobs.change",
    "connect": "engine.jobs.connect",
    "enqueue": "engine.jobs.enqueue",
    "enqueue_async": "engine.jobs.enqueue",
    "enqueue_many": "engine.jobs.enqueue",
    "enqueue_many_async": "engine.jobs.enqueue",
    "find": "engine.jobs.find",
    "fire_times": "engine.crontime.timing",
    "health": "desk.insight.app_health",
    "job": "engine.jobs.registry",
    "reschedule": "engine.jobs.change",
    "wait": "engine.jobs.find",
    "wait_async": "engine.jobs.find",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"cronjobs.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
