"""However many occurrences are due, they take at most half of a tick. The rest is for jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.hosts import Host

from cronjobs.engine.config.settings import ScheduleSettings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.testing import FakeClock


@pytest.mark.parametrize(("spent_s", "goes_on"), [(9.0, True), (11.0, False)])
def test_settling_goes_on_for_half_of_the_tick(
    sqlite_migrated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spent_s: float, goes_on: bool
) -> None:
    clock = FakeClock()
    database = Database(parse_url(f"sqlite:///{sqlite_migrated}"), clock=clock)
    host = Host(database, tmp_path)
    host.carry(schedules={"a": ScheduleSettings(name="a", job="t.a", cron="* * * * *")})
    host.tick()
    clock.advance(timedelta(minutes=2))
    seen: list[bool] = []

    def settle(*_: Any, go_on: Callable[[], bool], **__: Any) -> None:
        clock.advance(timedelta(seconds=spent_s))
        seen.append(go_on())

    monkeypatch.setattr("cronjobs.engine.schedules.materialise.materialise", settle)
    host.tick(budget_s=20)
    database.close()
    assert seen == [goes_on]
