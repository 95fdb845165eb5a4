"""When a lingering tick looks, when it starts a full tick, and when it exits, with a fake clock."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from cronjobs.engine.probe import linger, timer
from cronjobs.engine.probe.linger import LEAST_S, stay
from cronjobs.engine.probe.repeated_signals import SAME_SIGNAL_S, RepeatedSignals

Found = Callable[[float], str | None]
TOOK_S = 0.5  # a full tick


class Minute:
    """A minute in which *found* says what there is to do at each second; a full tick does it, or leaves it."""

    def __init__(
        self, found: Callable[[float], str | None], codes: Iterable[int] = (), *, leaves: bool = False
    ) -> None:
        self.now = 0.0
        self.found, self.codes, self.leaves = found, [*codes], leaves
        self.done_at = -1.0
        self.runs: list[float] = []

    def look(self) -> str | None:
        seen = self.found(self.now)
        done = self.found(self.done_at) if self.done_at >= 0 else None
        return None if seen == done and not self.leaves else seen

    def run(self) -> int:
        self.runs.append(self.now)
        self.done_at = self.now
        self.now += TOOK_S
        return self.codes.pop(0) if self.codes else 0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def stay(self, until: float = 58, poll_s: float = 1, first: str | None = None, room_s: float = LEAST_S) -> int:
        clock: dict[str, Any] = {"monotonic": lambda: self.now, "sleep": self.sleep}
        return stay(self.look, self.run, found=first, until=until, room_s=room_s, poll_s=poll_s, **clock)


def test_with_nothing_to_do_it_looks_until_the_end_and_goes() -> None:
    minute = Minute(lambda now: None)
    assert minute.stay() == 0
    assert minute.runs == []
    assert 56 <= minute.now <= 58


def test_work_is_started_at_the_next_look() -> None:
    minute = Minute(lambda now: "a job" if now >= 20.4 else None)
    assert minute.stay() == 0
    assert minute.runs == [21]


def test_what_is_there_at_first_is_done_at_once() -> None:
    minute = Minute(lambda now: None)
    minute.stay(first="?")
    assert minute.runs == [0]


def test_each_new_thing_is_done_at_the_next_look() -> None:
    minute = Minute(lambda now: f"job {int(now) // 5}" if now >= 5 else None)
    minute.stay()
    assert len(minute.runs) == 11


def test_what_a_full_tick_leaves_is_looked_at_less_and_less_often() -> None:
    minute = Minute(lambda now: "paused", leaves=True)
    minute.stay(first="paused")
    gaps = [round(b - a - TOOK_S) for a, b in zip(minute.runs, minute.runs[1:], strict=False)]
    assert gaps == sorted(gaps)
    assert 4 <= len(minute.runs) <= 7


def test_something_new_beside_what_was_left_is_done_at_once() -> None:
    minute = Minute(lambda now: "paused" if now < 30 else "paused and a job", leaves=True)
    minute.stay(first="paused")
    assert any(30 <= at <= 31.5 for at in minute.runs)


@pytest.mark.parametrize("room_s", [LEAST_S, 9])
def test_nothing_is_started_that_could_not_begin_before_the_minute_ends(room_s: float) -> None:
    minute = Minute(lambda now: f"job {now}" if now >= 40 else None)
    assert minute.stay(room_s=room_s) == 0
    assert 58 - room_s - 2 < max(minute.runs) <= 58 - room_s


@pytest.mark.parametrize(("took_s", "room_s"), [(0.1, LEAST_S), (0.5, 6), (5, 50 / 4)])
def test_a_busy_host_leaves_more_room_for_a_start(
    monkeypatch: pytest.MonkeyPatch, took_s: float, room_s: float
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(linger, "stay", lambda *_, **facts: seen.update(facts) or 0)
    monkeypatch.setattr(linger, "timer", SimpleNamespace(**vars(timer) | {"give": void, "stand_at": void}))
    monkeypatch.setattr(linger, "time", SimpleNamespace(monotonic=lambda: 100.0, time=lambda: 60_030.0, sleep=void))
    inputs: Any = {"budget_s": "55", "every_s": "60", "linger_s": "1", "unreported": "unreported"}
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/no state folder")
    linger.stay_here(lambda: None, inputs, [], begun=100 - took_s, idle=True, place="alpha:b:1:")
    assert seen["room_s"] == pytest.approx(room_s)


def void(*_: object) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("codes", "ended", "runs"),
    [([1, 0], 1, 2), ([0, 1], 1, 2), ([3], 3, 1), ([1, 4], 4, 2), ([4, 1], 4, 2), ([143], 143, 1)],
)
def test_the_exit_code_is_that_of_the_full_ticks(codes: list[int], ended: int, runs: int) -> None:
    minute = Minute(lambda now: f"job {int(now) // 20}" if 20 <= now < 60 else None, codes)
    assert minute.stay() == ended
    assert len(minute.runs) == runs


def test_only_the_same_signal_within_a_second_is_a_repeated_one() -> None:
    now = 50.0
    repeated = RepeatedSignals(lambda: now)
    assert not repeated.again(signal.SIGTERM)
    now += SAME_SIGNAL_S / 2
    assert repeated.again(signal.SIGTERM)
    assert not repeated.again(signal.SIGINT)
    now += SAME_SIGNAL_S / 2  # since the first one
    assert not repeated.again(signal.SIGTERM)
