"""When the kernel's timer ends a tick that started late, with a fake clock."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest

from cronjobs.engine.probe import timer

MINUTE = 1_764_460_800  # in seconds since 1970
BOOTED = 1_764_000_000
# Of the minute. Cron starts a tick in the first seconds, and a person in any.
CRONS, PERSONS = (0, 0.25, 1, 2.5, 5, 9, 10), (10.25, 15, 30, 44, 59.75)
AGES = [quarters / 4 for quarters in range(130 * 4 + 1)]


@pytest.mark.parametrize("seconds", [CRONS, PERSONS])
def test_however_long_a_tick_took_to_start_its_timer_leaves_the_next_minute_to_the_next_tick(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, ...]
) -> None:
    """A tick that a person started in the middle of a minute has its whole budget, and not more."""
    now = age = 0.0
    timers: list[float] = []
    clock = SimpleNamespace(time=lambda: now, monotonic=lambda: now - BOOTED)
    monkeypatch.setattr(timer, "time", clock)
    monkeypatch.setattr(timer, "process_age", lambda: age)
    monkeypatch.setattr(timer, "waited_for_a_child", lambda: False)
    monkeypatch.setattr(timer, "setitimer", lambda _clock, left_s, _again: timers.append(now + left_s))
    monkeypatch.setattr(timer, "faulthandler", SimpleNamespace(register=lambda *_, **__: None))
    for name in ("signal", "pthread_sigmask", "open_standard_streams"):
        monkeypatch.setattr(timer, name, lambda *_: None)
    for second, age in product(seconds, AGES):
        now = MINUTE + second + age
        monkeypatch.setattr(timer, "_began", None)
        began = now - timer.start()
        latest = now - now % 60 + 60 if seconds is CRONS else began + timer.DEFAULT_BUDGET_S
        assert timers.pop() <= max(latest, now) + 1.5, (second, age)
