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
        monkeypatch.setattr(timer, "_found", None)
        timer.start()
        began = timer.began() + BOOTED
        latest = now - now % 60 + 60 if seconds is CRONS else began + timer.DEFAULT_BUDGET_S
        assert timers.pop() <= max(latest, now) + 1.5, (second, age)


@pytest.mark.parametrize("every_s", [60, 120, 300, 3600])
def test_a_tick_that_started_late_counts_as_the_next_one_only_when_the_next_one_is_due(
    monkeypatch: pytest.MonkeyPatch, every_s: int
) -> None:
    """With ``run.every: 2m``, a tick that was frozen for 62 s in its start would get its whole budget again."""
    age = 0.0
    monkeypatch.setattr(timer, "time", SimpleNamespace(monotonic=lambda: 10_000.0))
    monkeypatch.setattr(timer, "process_age", lambda: age)
    monkeypatch.setattr(timer, "waited_for_a_child", lambda: False)
    for age in (0, 9, 59, 61, 119, 121, 299.5, 301, 3599, 3601):
        monkeypatch.setattr(timer, "_found", None)
        began = timer.began(every_s)
        periods = (began - (10_000 - age)) / every_s
        assert periods == int(periods)
        assert 0 <= 10_000 - began < every_s
