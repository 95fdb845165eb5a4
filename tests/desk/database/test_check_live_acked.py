"""What ``check --live`` says about other hosts' files, and that it leaves out acknowledged findings."""

from __future__ import annotations

import pytest
from support.explained import World, utc
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world

pytestmark = pytest.mark.either


def test_what_comes_of_another_hosts_fault_is_quiet_once_that_is_acknowledged(world: World) -> None:
    world.file(nightly='cron: "* * * * *"')
    world.tick(utc("2026-03-02T08:01:00"))
    world.file(nightly='cron: "* * * *"')
    for minute in range(2, 9):
        world.tick(utc(f"2026-03-02T08:{minute:02}:00"), host="beta")
    world.file(nightly='cron: "* * * * *"')
    [finding] = [each for each in world.cronjobs("ack", "--json").json if each["kind"] == "config"]
    assert finding["key"] == "config:beta"
    before = world.cronjobs("check", "--live")
    assert (before.code, "nightly" in before.out + before.err) == (1, True), before
    world.cronjobs("ack", "config:beta", "--why", "a deploy is under way")
    after = world.cronjobs("check", "--live")
    assert (after.code, "nightly" in after.out + after.err) == (0, False), after
    world.cronjobs("ack", "config:beta", "--remove")
    assert world.cronjobs("check", "--live").code == 1


def test_a_fault_of_another_hosts_file_is_reported_though_nothing_comes_of_it(world: World) -> None:
    """Who monitors one host by it heard nothing of another whose deploy was broken."""
    world.file(nightly='cron: "0 3 * * *"')
    world.ticks(utc("2026-03-02T08:01:00"), utc("2026-03-02T08:03:00"))
    assert world.cronjobs("check", "--live").code == 0
    world.file(nightly='cron: "0 3 * *"')
    world.tick(utc("2026-03-02T08:03:30"), host="beta")
    here = world.cronjobs("check", "--live")
    assert "host beta cannot use" not in here.out + here.err, "the file here has the same fault, and is told of itself"
    world.file(nightly='cron: "0 3 * * *"')
    there = world.cronjobs("check", "--live")
    assert (there.code, (there.out + there.err).count("host beta can use only part of its file")) == (1, 1), there
    world.cronjobs("ack", "config:beta")
    assert world.cronjobs("check", "--live").code == 0
