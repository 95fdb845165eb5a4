"""A ledger row names the tick that wrote it. It names no tick for a person, or for a tick older than revision 0003."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, insert, select
from support.explained import DAY, MINUTE, MINUTELY, World, utc
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world
from support.postgres import OWNER

from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.store import schedules as store
from cronjobs.errors import DatabaseBusy


def rows(database: Database) -> list[tuple[str, int, int | None, str | None]]:
    """(outcome, count, tick, host of that tick) of each ledger row."""
    of = tables.occurrences
    query = select(of.c.outcome, of.c["count"], of.c.tick, tables.ticks.c.host)
    with database.read() as connection:
        found = connection.execute(
            query.outerjoin(tables.ticks, tables.ticks.c.id == of.c.tick).order_by(of.c.schedule_id, of.c.last_for)
        )
        return [tuple(row) for row in found]


def hosts(database: Database) -> list[str | None]:
    return [row[3] for row in rows(database)]


def test_each_row_names_its_tick(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    for minute, host in ((1, "alpha"), (2, "beta"), (3, "alpha")):
        world.tick(utc(f"2026-03-02T08:0{minute}:10"), host)
    assert hosts(world.database) == ["alpha", "beta", "alpha"]
    told = world.ask("s", "--at", "08:02")
    assert "A tick of host beta made job 2" in told
    assert told.facts["ledger"]["tick"] == rows(world.database)[1][2]


def test_what_was_due_before_a_new_definition_names_the_tick_that_applied_it(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.tick(utc("2026-03-02T08:01:10"))
    world.file(s='cron: "30 9 * * *"')
    world.tick(utc("2026-03-02T08:02:10"), "beta")
    world.tick(utc("2026-03-02T08:02:20"))  # only a host's own file shows that it is new
    world.file(s='cron: "45 9 * * *"')
    world.tick(utc("2026-03-02T09:31:00"), "beta")
    assert hosts(world.database)[-1] == "beta"


def test_a_transaction_that_was_rolled_back_before_takes_no_name_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tick's row was inserted in it, and is gone with it."""
    world.file(a='cron: "* * * * *"', b='cron: "* * * * *"')
    world.tick()
    write, tries = store.record_occurrences, []

    def refuse(connection: Any, rows: Any, *more: Any) -> None:
        tries.append(len(rows))
        if len(tries) == 1:
            raise DatabaseBusy("db", 2)
        write(connection, rows, *more)

    monkeypatch.setattr(store, "record_occurrences", refuse)
    world.tick(utc("2026-03-02T08:01:10"), "beta")
    assert len(tries) > 1
    assert hosts(world.database) == ["beta", "beta"]


def test_what_a_person_settles_names_no_tick_and_what_is_left_of_a_row_keeps_its_own(world: World) -> None:
    world.file(s='cron: "* * * * *", catch_up: none')
    world.tick()
    world.tick(utc("2026-03-02T08:10:10"))
    at = "2026-03-02T08:05"
    assert world.cronjobs("backfill", "s", "--from", at, "--to", at).code == 0
    assert [(row[0], row[3]) for row in rows(world.database)][:3] == [
        ("missed", "alpha"),
        ("enqueued", None),
        ("missed", "alpha"),
    ]
    assert "a backfill by" in world.ask("s", "--at", "08:05")


def test_resume_by_hand_names_no_tick(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    assert world.cronjobs("pause", "s").code == 0
    world.go(utc("2026-03-02T08:03:10"))
    assert world.cronjobs("resume", "s").code == 0
    assert rows(world.database)
    assert {row[2] for row in rows(world.database)} == {None}


@pytest.mark.connects_as(OWNER)  # who may write "tick", as a tick of 0002 would leave it
def test_a_row_whose_tick_is_pruned_is_not_given_to_another_one(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.tick(utc("2026-03-02T08:01:10"))
    with world.database.write() as connection:
        # By when the row was written: PostgreSQL's fake clock goes on while a statement is on its way, so that after a
        # stall the tick's own start may be seconds later than what it decided.
        [(id_, at)] = connection.execute(select(tables.occurrences.c.tick, tables.occurrences.c.decided_at))
        connection.execute(delete(tables.ticks).where(tables.ticks.c.id == id_))
        other = {"tick": "x", "host": "beta", "pid": 1, "version": "0", "started_at": at, "finished_at": at + MINUTE}
        connection.execute(insert(tables.ticks).values(**other, did={"occurrences": {"enqueued": 1}}))
    told = world.ask("s", "--at", "08:01")
    assert "Job 1 was made for it at 08:01:10" in told


def test_a_clock_that_was_set_back_leaves_the_tick_of_what_ran_early(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.tick(utc("2026-03-02T08:01:10") + 2 * DAY)
    before = {row[2] for row in rows(world.database)}
    world.tick(utc("2026-03-02T08:02:10"), "beta")
    with world.database.read() as connection:
        early = connection.execute(
            select(tables.occurrences.c.tick).where(tables.occurrences.c.reason.like("ran early%"))
        ).scalars()
        assert set(early) <= before
