"""For users' tests (and ours): a context, tables, jobs run in a test's own transaction, and clocks that a test moves.

``context`` is for calling one handler without a database. ``create_tables`` and ``drain`` work on a connection of the
test's, which is rolled back in the end. ``tick`` is a whole tick at any time, on a database of the test's own. Names
are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from cronjobs.testing.clocks import FakeClock

if TYPE_CHECKING:
    from cronjobs.testing.assertions import Found, assert_enqueued, assert_fires, assert_not_enqueued
    from cronjobs.testing.creating import create_tables
    from cronjobs.testing.draining import Drained, drain
    from cronjobs.testing.fixture import Jobs, cronjobs_fixture
    from cronjobs.testing.handling import UNKNOWN, FakeContext, context
    from cronjobs.testing.ran import JobFailed, Ran
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
    "UNKNOWN": "handling",
    "Drained": "draining",
    "FakeContext": "handling",
    "Found": "assertions",
    "JobFailed": "ran",
    "Jobs": "fixture",
    "Ran": "ran",
    "Ticked": "ticking",
    "assert_enqueued": "assertions",
    "assert_fires": "assertions",
    "assert_not_enqueued": "assertions",
    "context": "handling",
    "create_tables": "creating",
    "cronjobs_fixture": "fixture",
    "drain": "draining",
    "tick": "ticking",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"cronjobs.testing.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
