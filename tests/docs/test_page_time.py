"""docs/explanation/time.md: its examples of each policy and of ``explain`` are run for real."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from support.explained import World
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world
from support.pages import Page
from support.shop import Shop
from support.shop import shop as shop

from cronjobs.engine.config.settings import ScheduleSettings

PAGE = Page("docs/explanation/time.md")
START = "<!-- time: tests/docs/test_page_time.py runs this -->\n"


def blocks() -> tuple[str, list[tuple[str, str]]]:
    """The YAML of the section, and each command with what the page says it prints."""
    section = PAGE.text.partition(START)[2].partition("\n## ")[0]
    [schedules] = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    [console] = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    commands = re.findall(r"^\$ cronjobs (.*)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE)
    return schedules, [(command, said.rstrip()) for command, said in commands]


def at(hour: int, minute: int) -> datetime:
    return datetime(2026, 3, 2, hour, minute, 1, tzinfo=UTC)


@pytest.fixture
def outage(world: World) -> World:
    """cron ran until 08:30; the host came back at 12:10, in the middle of the day."""
    schedules, _ = blocks()
    file = world.folder / "cronjobs.yaml"
    file.write_text(f"project: shop\ndatabase: {world.url}\ntimezone: UTC\n{schedules}")
    world.ticks(at(8, 1), at(8, 30), timedelta(minutes=1))
    world.ticks(at(12, 10), at(12, 12), timedelta(minutes=1))
    return world


def test_the_page_tells_what_each_policy_really_does(outage: World) -> None:
    _, commands = blocks()
    assert len(commands) >= 5
    for command, said in commands:
        words = command.split("#")[0].split()
        answer = outage.cronjobs(*words)
        lines = [re.sub(r"after [\d.]+m?s", "after 3ms", line.rstrip()) for line in answer.out.rstrip().splitlines()]
        assert "\n".join(lines) == said, command


@pytest.mark.slow
def test_next_answers_as_it_is_written(shop: Shop) -> None:
    shown = re.findall(r"`(cronjobs next[^`]*)`", PAGE.text)
    assert len(shown) == 2
    for command in shown:
        answer = shop.shell(command)
        assert (answer.code, answer.err) == (0, "")
        assert "Europe/Berlin" in answer.out


def test_what_the_page_calls_the_default_is_the_default() -> None:
    text, schedule = " ".join(PAGE.text.split()), ScheduleSettings("nightly", "x")
    assert "`latest` (default) runs the newest occurrence of the last 24 h" in text
    assert (schedule.catch_up, schedule.catch_up_within) == ("latest", timedelta(hours=24))
    assert "`overlap: skip` (default)" in text
    assert schedule.overlap == "skip"
    assert PAGE.dead_links() == []
