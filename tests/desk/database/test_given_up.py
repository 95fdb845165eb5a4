"""A job that cronjobs gives up is a finding until a person acknowledges it. A later one is a new finding."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select
from support.postgres import OWNER
from support.yard import MINUTE, START, Yard, minutely

from cronjobs.desk.insight.acking import acknowledge, take_ack_back
from cronjobs.desk.insight.finding import Finding
from cronjobs.desk.insight.findings import judge
from cronjobs.desk.insight.gathering import look
from cronjobs.engine.config.settings import Retention
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store.given_up import READ, give_up
from cronjobs.engine.tick.pruner import Before, Pruner
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.connects_as(OWNER)  # who may fill the tables

DAY = timedelta(days=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def yard(database: Database, clock: FakeClock, tmp_path: Path) -> Yard:
    return Yard(database, clock, tmp_path)


def found(yard: Yard) -> dict[str, Finding]:
    settings = yard.file()
    with yard.database.read() as connection:
        every = judge(look(connection, settings, JobTypes()), settings)
    return {each.kind: each for each in every if each.kind in ("dropped", "pruned")}


def ack(yard: Yard, finding: Finding) -> None:
    with yard.database.write() as connection:
        now = yard.clock.now()
        acknowledge(connection, finding, until=now + MINUTE, now=now, by="ada", host="alpha", why=None)


def outage(yard: Yard, minutes: int) -> None:
    yard.clock.advance(minutes * MINUTE)
    yard.tick()
    yard.finish_jobs()


def test_what_catch_up_all_drops_lasts_whatever_succeeds_until_it_is_acknowledged(yard: Yard) -> None:
    yard.sync(yard.file(minutely(catch_up="all", catch_up_limit=3)))
    outage(yard, 10)
    said = found(yard)["dropped"]
    assert said.text.startswith("7 occurrences of s were dropped, because more were due than catch_up_limit allows")
    assert said.command == "cronjobs audit --action dropped"
    for _ in range(5):
        outage(yard, 1)  # each minute goes well
    assert found(yard)["dropped"] == said
    ack(yard, said)
    assert found(yard) == {}
    yard.clock.advance(DAY)  # the ack is over, and the finding stays away
    assert found(yard) == {}


def test_what_is_dropped_after_an_ack_is_a_finding_again_with_its_own_number(yard: Yard) -> None:
    yard.sync(yard.file(minutely(catch_up="all", catch_up_limit=3)))
    outage(yard, 10)
    ack(yard, found(yard)["dropped"])
    outage(yard, 5)
    assert found(yard)["dropped"].text.startswith("2 occurrences of s")


def test_an_ack_that_is_taken_back_brings_it_back(yard: Yard) -> None:
    yard.sync(yard.file(minutely(catch_up="all", catch_up_limit=3)))
    outage(yard, 10)
    ack(yard, found(yard)["dropped"])
    outage(yard, 5)
    ack(yard, found(yard)["dropped"])
    assert found(yard) == {}
    with yard.database.write() as connection:
        assert take_ack_back(connection, "dropped", by="ada", host="alpha", why=None)
    assert found(yard)["dropped"].text.startswith("2 occurrences of s")


def test_what_is_older_than_catch_up_within_is_missed_and_not_dropped(yard: Yard) -> None:
    yard.sync(yard.file(minutely(catch_up="all", catch_up_limit=100, catch_up_within=5 * MINUTE)))
    outage(yard, 20)
    assert found(yard) == {}
    assert next(row[:2] for row in yard.ledger()) == ("missed", 15)


def test_the_ledger_says_which_of_the_two_it_was(yard: Yard) -> None:
    yard.sync(yard.file(minutely(catch_up="all", catch_up_limit=2, catch_up_within=5 * MINUTE)))
    outage(yard, 20)
    with yard.database.read() as connection:
        missed = select(tables.occurrences).where(tables.occurrences.c.outcome == "missed")
        rows = connection.execute(missed.order_by(tables.occurrences.c.last_for)).all()
    assert [(row._mapping["count"], row.reason) for row in rows] == [
        (15, "the next tick came later than catch_up_within allows"),
        (3, "more were due than catch_up_limit allows"),
    ]


@pytest.mark.parametrize(
    ("state", "removed"),
    [
        ({"status": "dead"}, 1),
        ({"status": "dead", "idempotency_key": "k"}, 0),  # it stays, without its payload, and so does its finding
        ({"status": "dead", "dismissed_at": 30}, 0),
        ({"status": "dead", "dismissed_at": 50}, 1),  # and it died again after that
        ({"status": "cancelled"}, 0),
        ({"status": "succeeded"}, 0),
    ],
)
def test_a_dead_job_that_nobody_dealt_with_does_not_go_without_a_word(
    yard: Yard, state: dict[str, Any], removed: int
) -> None:
    at = yard.clock.now() - 40 * DAY
    days_ago = state.get("dismissed_at")
    given = state if days_ago is None else state | {"dismissed_at": yard.clock.now() - days_ago * DAY}
    with yard.database.write() as connection:
        connection.execute(insert(tables.jobs).values(job_type="t.say", run_at=at, finished_at=at, **given))
    limits = Before.of(Retention(succeeded=DAY, dead=DAY), yard.clock.now())
    Pruner(yard.database, limits, yard.clock, lambda: True).run()
    said = found(yard)
    assert len(said) == removed
    if said:
        assert said["pruned"].text.startswith("retention removed 1 dead job of t.say before")
        ack(yard, said["pruned"])
        assert found(yard) == {}


def test_of_very_many_entries_a_part_is_read_and_said_to_be_one(yard: Yard) -> None:
    with yard.database.write() as connection:
        give_up(connection, "dropped", {"z": {"count": 1}}, START)
        give_up(connection, "dropped", {f"s{number:05}": {"count": 1} for number in range(READ + 4)}, START)
    said = found(yard)["dropped"]
    assert said.text.startswith("1,000 or more occurrences of s00000, s00001, s00002 and 997 more")
    ack(yard, said)
    assert found(yard)["dropped"].text.startswith("5 occurrences of ")
