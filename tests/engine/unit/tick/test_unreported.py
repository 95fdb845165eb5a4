"""Several ticks of one host change the file of unreported deaths at once."""

from __future__ import annotations

import subprocess
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cronjobs import clock
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.host.state_folder import State
from cronjobs.engine.tick.tick_row import TickRow
from cronjobs.engine.tick.unreported import Unreported

CONFIG = Path("/srv/shop/cronjobs.yaml")
KILLED = "alpha:b:1:1:0:killed"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "cronjobs"


def test_two_ticks_that_end_at_once_leave_no_line_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Unreported(CONFIG, KILLED).begin()
    first, second = (Unreported(CONFIG, f"alpha:b:1:{pid}:0:tick") for pid in (2, 3))
    for tick in (first, second):
        tick.begin()
    second.reported(KILLED)
    looked, put_back, ending = threading.Event(), threading.Event(), threading.Thread(target=second.end)
    take = State.take

    def taken_by_first(state: State, name: str) -> str | None:
        """The second tick looks for its line while the first tick has it."""
        monkeypatch.setattr(State, "take", take)
        content = take(state, name)
        ending.start()
        assert looked.wait(10)
        return content

    def pause(_seconds: float) -> None:
        looked.set()
        assert put_back.wait(10)

    monkeypatch.setattr(State, "take", taken_by_first)
    monkeypatch.setattr(clock, "sleep", pause)
    first.end()
    put_back.set()
    ending.join()
    assert [*folder.iterdir()] == []


def test_a_tick_whose_line_was_not_stored_does_not_wait_for_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write_text("no folder")
    monkeypatch.delattr(clock, "sleep")
    tick = Unreported(CONFIG, "alpha:b:1:2:0:tick")
    tick.begin()
    tick.end()


@pytest.mark.parametrize(
    ("changes", "recorded"),
    [
        ({}, True),
        ({"boot_id": "before"}, True),
        ({"boot_id": "-"}, False),  # unknown
        ({"pid_namespace": "another container"}, False),
        ({"host": "beta"}, False),
        ({"tick": "0123456789ab"}, False),  # did not linger
        ({"pid": "own"}, False),  # is alive
    ],
)
def test_only_a_lingering_tick_that_is_surely_gone_gets_a_row(changes: dict[str, Any], recorded: bool) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    here = Identity.here()
    now = datetime(2026, 3, 2, 8, tzinfo=UTC)
    began = int(now.timestamp()) - 60
    gone = replace(here, pid=ended.pid, started="1", tick=f"0123456789ab-{began}")
    runner = replace(here, tick=gone.tick) if "pid" in changes else replace(gone, **changes)
    database_now = now + timedelta(hours=1)  # this host's clock is behind
    row = TickRow(here, "/srv/cronjobs.yaml", schedules_on=True, started_at=database_now)
    found = row.of_lingering(str(runner), now)
    assert (found is not None) is recorded
    if found is not None:
        assert found["started_at"] == database_now - timedelta(seconds=60)
        assert (found["pid"], found["did"]) == (ended.pid, {"runner": str(runner)})
