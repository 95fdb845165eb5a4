"""Test helpers.

They provide a context for a handler, the tables, jobs that run in a test's transaction, whole ticks, and settable
clocks.

``context`` is for calling one handler without a database. ``create_tables`` and ``drain`` use the test's connection,
which the test rolls back. ``tick`` runs a whole tick at any time, on a database that belongs to the test. Each name of
this package is imported lazily, on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from cronjobs.testing.clocks import FakeClock

if TYPE_CHECKING:
    from cronjobs.testing.assertions import Found, assert_enqueued, assert_fires, assert_not_enqueued
    from cronjobs.testing.attempt_collector import JobFailed, Ran
    from cronjobs.testing.creating import create_tables
    from cronjobs.testing.draining import Drained, drain
    from cronjobs.testing.fixture import Jobs, cronjobs_fixture
    from cronjobs.testing.handler_context import UNKNOWN, FakeContext, context
    from cronjobs.testing.ticking import Ticked, tick

__all__ = [
    "UNKNOWN",
    "Drained",
    "FakeClock",
    "FakeContext",
    "Found",
    "JobFailed",
    "Jobs",
    "Ran",
    "Ticked",
    "assert_enqueued",
    "assert_fires",
    "assert_not_enqueued",
    "context",
    "create_tables",
    "cronjobs_fixture",
    "drain",
    "tick",
]

_HOMES: Final = {
    "assertions": {"Found", "assert_enqueued", "assert_fires", "assert_not_enqueued"},
    "creating": {"create_tables"},
    "draining": {"Drained", "drain"},
    "fixture": {"Jobs", "cronjobs_fixture"},
    "handler_context": {"UNKNOWN", "FakeContext", "context"},
    "attempt_collector": {"JobFailed", "Ran"},
    "ticking": {"Ticked", "tick"},
}


def __getattr__(name: str) -> object:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"cronjobs.testing.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
