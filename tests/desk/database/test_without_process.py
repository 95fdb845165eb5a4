"""Jobs that runners cannot begin: all views give the reason. For a long job they do so from the first tick on."""

from __future__ import annotations

import errno
import subprocess
import threading
from datetime import timedelta
from typing import Any, NoReturn

import pytest
from support.explained import MINUTE, World, utc
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world

from cronjobs.engine.execution import handler
from cronjobs.engine.tick import pacing
from cronjobs.testing import FakeClock

pytestmark = [pytest.mark.either, pytest.mark.parametrize("clock", [FakeClock], indirect=True)]

LONG = "job_types: {t.work: {timeout: 1h}}\n"
BEGIN = utc("2026-03-02T08:01:00")
WHY = "could not start a process for t.work: cannot start a thread: can't start new thread"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a tick look for work again soon. Each tick here finds that it can begin nothing, and looks once more."""
    monkeypatch.setattr(pacing, "POLL_S", 0.02)


@pytest.fixture
def failing(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world with a due long job, and one tick that could not start its process."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("cronjobs-handover"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    world.file(more=LONG)
    world.tick(BEGIN - MINUTE)
    world.cronjobs("enqueue", "t.work")
    world.tick(BEGIN)
    world.clock.advance(timedelta(seconds=30))  # PostgreSQL counts the real seconds of a tick
    return world


def test_status_and_check_report_it_after_the_first_tick(failing: World) -> None:
    status = failing.cronjobs("status", "--json").json
    [late] = status["findings"]
    assert (late["key"], late["since"][:19]) == ("late", "2026-03-02T08:01:00")
    assert late["text"].startswith(f"1 due job has not started: the last tick of host alpha {WHY} (see cron's mail")
    assert failing.cronjobs("check", "--live").code == 1


def test_status_counts_the_ticks_and_blames_no_limit(failing: World) -> None:
    failing.ticks(BEGIN + MINUTE, BEGIN + 16 * MINUTE)
    [late] = failing.cronjobs("status", "--json").json["findings"]
    assert f"has not started: the last 17 ticks of host alpha {WHY}" in late["text"]
    assert late["since"][:19] == "2026-03-02T08:01:00"
    assert "long_jobs" not in failing.cronjobs("status").out


def test_explain_gives_the_reason(failing: World) -> None:
    told = failing.ask("1")
    assert "that host could not start a process for a long job: cannot start a thread: can't start new thread" in told
    assert "its process does not start" in told
    assert "run.long_jobs" not in told


def test_history_shows_from_when_to_when(failing: World) -> None:
    failing.ticks(BEGIN + MINUTE, BEGIN + 3 * MINUTE)
    [fault] = [each for each in failing.cronjobs("history", "--json").json if each["kind"] == "fault"]
    assert (fault["name"], fault["finished_at"]) == ("a process for t.work", None)
    said = failing.cronjobs("history").out
    assert "could not use a process for t.work and still cannot: cannot start a thread" in " ".join(said.split())


def test_it_is_over_when_nothing_waits_any_more(failing: World) -> None:
    failing.cronjobs("jobs", "cancel", "1", "--yes")
    assert failing.cronjobs("status", "--json").json["findings"] == []


# --- jobs that fit into a tick ----------------------------------------------------------------------------------------


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


REASON = "Resource temporarily unavailable"


@pytest.mark.parametrize(
    ("job_type", "what"), [("t.command", (subprocess, "Popen")), ("t.work", (handler, "captured"))]
)
def test_a_job_that_is_released_again_and_again_is_late_although_each_release_puts_it_off(
    world: World, monkeypatch: pytest.MonkeyPatch, job_type: str, what: tuple[Any, str]
) -> None:
    world.file(more='job_types: {t.command: {command: ["true"]}}\n')
    world.tick(BEGIN - MINUTE)
    world.cronjobs("enqueue", job_type)
    with monkeypatch.context() as patch:
        patch.setattr(*what, refuse)
        world.ticks(BEGIN, BEGIN + 2 * MINUTE)
        assert world.cronjobs("status", "--json").json["findings"] == []  # twice may be a coincidence
        world.ticks(BEGIN + 3 * MINUTE, BEGIN + 8 * MINUTE)
    [late] = world.cronjobs("status", "--json").json["findings"]
    assert (late["key"], late["rows"]) == ("late", [f"default/{job_type}"])
    assert f"has not started: runners released 1 job of {job_type} before it began, 5 times in a row" in late["text"]
    assert REASON in late["text"]
    assert world.cronjobs("ack", "late", "--reason", "the host is too small").code == 0
    assert world.cronjobs("check", "--live").code == 0
    told = world.ask("1")
    assert "Attempts 1 to 5 were released before they began. The last reason: " in told
    assert REASON in told
    world.cronjobs("pause", "--queue", "default")
    assert not [each for each in world.cronjobs("status", "--json").json["findings"] if each["kind"] == "late"]
    world.cronjobs("resume", "--queue", "default")
    world.ticks(BEGIN + 9 * MINUTE, BEGIN + 10 * MINUTE)
    assert world.cronjobs("status", "--json").json["findings"] == []
    assert "The last reason" not in world.ask("1")
