"""For each incident that status reports, an alert is sent within two minutes, and another one at its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.alerted import noting

from contrib.test_incidents import INCIDENTS, Incident, World, clock, make_world  # noqa: F401
from cronjobs.contrib.alerts import alert_rounds
from cronjobs.contrib.alerts.texts import Message
from cronjobs.engine.config.settings import AlertChannel, AlertFilter, AlertSettings, CommandChannel
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.store.alerts import look_soon
from cronjobs.testing import FakeClock

BY_NO_TICK = {"no_tick", "foreign"}  # nobody ticks here: that is for the ping, and for the app
# Here rows are written that a tick or a command would have written, and that lets the next tick look.
MADE_BY_SQL = {"crashing", "effect", "pause", "slower", "lease", "full", "filling", "ending"}
CHANNEL = AlertChannel("ops", CommandChannel(("true",)), AlertFilter("notice"))


@pytest.mark.slow
@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.name)
def test_an_incident_is_told_and_its_end(
    sqlite_migrated: str,
    clock: FakeClock,  # noqa: F811
    make_world: Callable[[Database], World],  # noqa: F811
    incident: Incident,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[Message] = []
    monkeypatch.setattr(alert_rounds, "deliver", noting(sent))
    database = Database(parse_url(f"sqlite:///{sqlite_migrated}"), clock=clock)
    try:
        world = make_world(database)
        world.host.carry(alerts=AlertSettings({"ops": CHANNEL}))
        world.minutes(1)
        incident.make(world)
        if incident.status in MADE_BY_SQL:
            with database.write() as connection:
                look_soon(connection)
        before = {each.kind for each in world.found()}
        world.minutes(2)
        lasting = before & {each.kind for each in world.found()}
        wanted = lasting - BY_NO_TICK
        assert wanted <= {each.kind for message in sent for each in message.findings}
        incident.mend(world)
        still = {each.kind for each in world.found()}
        world.minutes(6)
        told = [each for message in sent for each in message.findings]
        over = {each.finding for each in told if each.ended_at is not None}
        gone = {each.finding for each in told if each.kind not in still | {each.kind for each in world.found()}}
        assert gone <= over
    finally:
        database.close()
