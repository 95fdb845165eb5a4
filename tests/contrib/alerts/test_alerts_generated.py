"""Whatever servers, hosts and kills do: no alert is lost, ends are reported, and nobody gets an alert too often."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update
from support.alerted import HOUR, MINUTE, Stage, alerting, webhook
from support.inboxes import Web, served
from support.rounds import rounds

from cronjobs.contrib.alerts import alert_rounds
from cronjobs.contrib.alerts.decide import OFTEN
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.store.alerts import look_soon
from cronjobs.engine.store.sql import database_now

NOT_YET = 0 * MINUTE


def a_death(database: Database) -> None:
    with database.write() as connection:
        now = database_now(connection)
        job = {"job_type": "t.say", "status": "dead", "finished_at": now, "run_at": now}
        connection.execute(insert(tables.jobs).values(job))
        look_soon(connection)


def all_is_settled(database: Database) -> None:
    with database.write() as connection:
        connection.execute(update(tables.jobs).values(dismissed_at=database_now(connection)))
        look_soon(connection)


def campaign(database: Database, folder: Path, seed: int, steps: int) -> None:
    chance = random.Random(seed)
    with served(Web()) as web, pytest.MonkeyPatch.context() as patch:
        stage = Stage(database, folder, alerting(webhook(web)), hosts=2)
        mark = alert_rounds.Alerting._mark

        unmarked: set[int] = set()

        def perhaps(sender: Any, due: Any, error: Any) -> None:
            if killing and chance.random() < 0.3:  # killed after sending, before marking
                unmarked.update(alert.episode.id for alert in due)
            else:
                mark(sender, due, error)

        patch.setattr(alert_rounds.Alerting, "_mark", perhaps)
        killing = True
        for _ in range(steps):
            match chance.randrange(6):
                case 0:
                    a_death(database)
                case 1:
                    all_is_settled(database)
                case 2:
                    web.status = chance.choice([200, 200, 500])
            stage.clock.advance(chance.choice([1, 1, 2, 7]) * MINUTE)  # type: ignore[attr-defined]
            chance.choice(stage.hosts).tick()
        web.status, killing = 200, False
        all_is_settled(database)
        stage.minutes(40)
        episodes = [row for row in stage.rows(tables.findings) if row.kind == "dead"]
        assert all(row.ended_at is not None for row in episodes)
        states = {row.finding_id: row for row in stage.rows(tables.alerts)}
        told = [each for message in web.messages for each in message["findings"] if each["kind"] == "dead"]
        begun = Counter(each["began_at"] for each in told)
        over = Counter(each["began_at"] for each in told if each["over"])
        for row in episodes:
            state = states.get(row.id)
            if state is None or state.sent == 0:  # see below
                assert not over[row.began_at.isoformat()] or row.id in unmarked, f"seed {seed}: {row} is news to all"
                continue
            assert begun[row.began_at.isoformat()] >= 1, f"seed {seed}: {row} was told to nobody"
            assert over[row.began_at.isoformat()] >= 1, f"seed {seed}: nobody heard that {row} is over"
        assert all(row.due_at is None for row in states.values()), "nothing is left to say"
        for row in episodes:
            if states.get(row.id) is None or (states[row.id].sent == 0 and states[row.id].failures == 0):
                before = [row.found_at - each.ended_at for each in episodes if each.ended_at]
                lately = [ago for ago in before if NOT_YET <= ago <= HOUR + MINUTE]
                assert len(lately) >= OFTEN, f"seed {seed}: {row} was told to nobody"


@pytest.mark.parametrize("seed", range(1))
def test_nothing_is_lost_and_ends_are_told(database: Database, tmp_path: Path, seed: int) -> None:
    campaign(database, tmp_path, seed, 40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, rounds(11, 12)))
def test_nothing_is_lost_in_longer_nights(database: Database, tmp_path: Path, seed: int) -> None:
    campaign(database, tmp_path, seed, rounds(90, 150))
