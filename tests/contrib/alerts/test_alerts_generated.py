"""Whatever servers, hosts and kills do: no alert is lost, ends are reported, and nobody gets an alert too often."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
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


def a_death(database: Database) -> str:
    with database.write() as connection:
        now = database_now(connection)
        job = {"job_type": "t.say", "status": "dead", "finished_at": now, "run_at": now}
        died = connection.execute(insert(tables.jobs).values(job).returning(tables.jobs.c.id)).scalar_one()
        look_soon(connection)
    return str(died)


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


AT_ONCE, AT_LATEST = 3 * MINUTE, HOUR + 5 * MINUTE


def deaths_are_named(database: Database, folder: Path, seed: int, steps: int) -> None:
    """Jobs die, are dealt with, and die again, often without a tick in between. Judge which deaths a message named."""
    chance = random.Random(seed)
    named: dict[str, datetime] = {}
    dead: dict[str, datetime] = {}  # each open dead job, and when it died
    settled: list[str] = []
    must_by: dict[str, datetime] = {}
    seen: set[str] = set()
    with served(Web()) as web, pytest.MonkeyPatch.context() as patch:
        stage = Stage(database, folder, alerting(webhook(web)), hosts=2)
        mark = alert_rounds.Alerting._mark

        def note(sender: Any, due: Any, error: Any) -> None:
            for alert in due:
                if error is None and alert.episode.kind == "dead" and not alert.state.over:
                    named.update({row: stage.clock.now() for row in alert.episode.rows if row not in named})
            mark(sender, due, error)

        def deal_with(jobs: list[str]) -> None:
            with database.write() as connection:
                now = database_now(connection)
                of_these = tables.jobs.c.id.in_(map(int, jobs))
                connection.execute(update(tables.jobs).where(of_these).values(dismissed_at=now))
                look_soon(connection)
            settled.extend(jobs)
            for job in jobs:
                del dead[job]
                must_by.pop(job, None)

        patch.setattr(alert_rounds.Alerting, "_mark", note)
        for _ in range(steps):
            match chance.randrange(8):
                case 0 | 1:
                    dead[a_death(database)] = stage.clock.now()
                case 2 | 3 if dead:
                    deal_with(list(dead))
                case 4 if dead:
                    deal_with([chance.choice(list(dead))])
                case 5 if settled:  # someone retried a job, and it died again
                    job = settled.pop(chance.randrange(len(settled)))
                    again = {"dismissed_at": None, "finished_at": stage.clock.now()}
                    with database.write() as connection:
                        connection.execute(update(tables.jobs).where(tables.jobs.c.id == int(job)).values(again))
                        look_soon(connection)
                    dead[job] = stage.clock.now()
            stage.clock.advance(chance.choice([1, 20, 60, 60, 400]) * timedelta(seconds=1))  # type: ignore[attr-defined]
            if chance.random() < 0.4:  # no tick in between
                continue
            for job, died in dead.items():
                began_anew = seen.isdisjoint(dead)
                within = AT_ONCE if began_anew and job not in named else AT_LATEST
                must_by.setdefault(job, max(died, stage.clock.now()) + within)
            chance.choice(stage.hosts).tick()
            seen = set(dead)
            late = {job for job in dead if job not in named and must_by[job] < stage.clock.now()}
            assert not late, f"seed {seed}: no message named the dead jobs {late}"


@pytest.mark.parametrize("seed", range(1))
def test_a_message_names_each_death_in_time(database: Database, tmp_path: Path, seed: int) -> None:
    deaths_are_named(database, tmp_path, seed, 60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, rounds(13, 30)))
def test_a_message_names_each_death_in_longer_nights(database: Database, tmp_path: Path, seed: int) -> None:
    deaths_are_named(database, tmp_path, seed, 300)
