"""The README's section on time: its example of each policy and of ``explain``, really run."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.explained import World
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
START = "<!-- time: tests/docs/test_readme_time.py runs this -->\n"


def blocks() -> tuple[str, list[tuple[str, str]]]:
    """The YAML of the section, and each command with what the README says it prints."""
    section = README.partition(START)[2].partition("\n## ")[0]
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


def test_the_readme_tells_what_each_policy_really_does(outage: World) -> None:
    _, commands = blocks()
    assert len(commands) >= 5
    for command, said in commands:
        words = command.split("#")[0].split()
        answer = outage.cronjobs(*words)
        lines = [re.sub(r"after [\d.]+m?s", "after 3ms", line.rstrip()) for line in answer.out.rstrip().splitlines()]
        assert "\n".join(lines) == said, command
