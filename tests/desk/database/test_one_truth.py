"""Commands that look say nothing that is not so, and do not contradict each other."""

from __future__ import annotations

import pytest
from support.explained import World, utc
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world

pytestmark = pytest.mark.either


def test_an_exit_status_is_said_once_wherever_errors_are_shown(world: World) -> None:
    command = "[sh, -c, 'echo no space left; exit 3']"
    retry = "retry: {max_attempts: 4, delays: [1m]}"
    world.file(f"job_types: {{backup: {{command: {command}, {retry}}}}}\n", nightly='cron: "15 2 * * *", job: backup')
    world.tick(utc("2026-03-03T02:10:00"))
    world.tick(utc("2026-03-03T02:15:00"))
    [shown] = [line for line in world.cronjobs("explain", "1").out.splitlines() if line.startswith("Attempt 1 failed")]
    assert shown.endswith(": exit status 3: no space left.")
    world.ticks(utc("2026-03-03T02:17:00"), utc("2026-03-03T02:23:00"))
    for command in ("explain 1", "history --since 2h", "jobs show 1", "jobs list --group-by error", "status"):
        out = world.cronjobs(*command.split()).out
        assert "exit status 3: no space left" in out, command
        assert "exit-3" not in out, command
