"""Cron's mail as an alarm: told once, then rarely, and its end once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from cronjobs.alarm import Alarm

NOW = datetime(2026, 3, 2, 3, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def alarm(tmp_path: Path) -> Alarm:
    return Alarm(Path("/srv/shop/cronjobs.yaml"), tmp_path)


def test_a_cause_that_repeats_each_minute_is_told_less_and_less_often(alarm: Alarm) -> None:
    told = [minute for minute in range(5 * 24 * 60) if alarm.worth_telling("database down", NOW + minute * MINUTE)]
    assert told[:5] == [0, 60, 180, 420, 900]
    assert all(later - sooner <= 24 * 60 for sooner, later in pairwise(told))


def test_its_end_is_told_once(alarm: Alarm) -> None:
    for minute in range(5):
        alarm.worth_telling("database down", NOW + minute * MINUTE)
    assert alarm.over(set(), NOW + 37 * MINUTE) == ["over after 37m: database down"]
    assert alarm.over(set(), NOW + 38 * MINUTE) == []


def test_what_was_mended_before_it_came_again_needs_no_word(alarm: Alarm) -> None:
    assert alarm.worth_telling("no tables", NOW)
    assert alarm.over(set(), NOW + MINUTE) == []
    assert alarm.worth_telling("no tables", NOW + 2 * MINUTE)


def test_causes_are_remembered_apart_and_by_configuration(alarm: Alarm, tmp_path: Path) -> None:
    assert alarm.worth_telling("a", NOW)
    assert alarm.worth_telling("b", NOW)
    assert not alarm.worth_telling("a", NOW + MINUTE)
    assert Alarm(Path("/srv/blog/cronjobs.yaml"), tmp_path).worth_telling("a", NOW + MINUTE)


def test_where_nothing_can_be_remembered_everything_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    alarm = Alarm(Path("/srv/shop/cronjobs.yaml"), tmp_path / "file" / "below")
    assert alarm.worth_telling("a", NOW)
    assert alarm.worth_telling("a", NOW)


@pytest.mark.parametrize("content", ["", "nonsense", "[1]", '{"a": 1}', '{"a": {"since": "x"}}'])
def test_a_spoiled_memory_is_begun_anew(alarm: Alarm, tmp_path: Path, content: str) -> None:
    alarm.worth_telling("a", NOW)
    [file] = tmp_path.iterdir()
    file.write_text(content)
    assert alarm.worth_telling("a", NOW)
