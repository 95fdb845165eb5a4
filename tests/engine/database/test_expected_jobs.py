"""If a job fits into a tick by experience but not by its timeout, it begins no effect, which might be cut off."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import insert
from support.hosts import put

from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import effects, ticks
from cronjobs.engine.store import claims
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.engine.store.ticks import overran_lately
from cronjobs.engine.tick.result import Result

BY_TIMEOUT = ClaimFilter(known=["t.say"], fitting=["t.say"], remaining_s=50)
BY_EXPERIENCE = replace(BY_TIMEOUT, expected=["t.say"])


def claimed(database: Database, admission: ClaimFilter) -> set[int]:
    with database.write() as connection:
        found = claims.claim(connection, limit=9, locked_by="r", lease=timedelta(minutes=1), admission=admission)
    return {job.id for job in found.jobs}


@pytest.mark.parametrize("many_queues", [False, True])
def test_a_job_with_an_effect_begun_waits_for_a_tick_that_its_timeout_fits(
    database: Database, many_queues: bool
) -> None:
    fresh, begun, recorded = (put(database) for _ in range(3))
    now = database.clock.now()
    with database.write() as connection:
        connection.execute(insert(effects).values(key="a", job_id=begun, attempt=1, state="begun", begun_at=now))
        connection.execute(
            insert(effects).values(key="b", job_id=recorded, attempt=1, state="recorded", begun_at=now, recorded_at=now)
        )
    assert claimed(database, replace(BY_EXPERIENCE, many_queues=many_queues)) == {fresh, recorded}
    assert claimed(database, replace(BY_TIMEOUT, many_queues=many_queues)) == {begun}


def test_types_that_overran_are_remembered_for_a_day(database: Database) -> None:
    now = database.clock.now()
    ages = {"t.old": timedelta(hours=25), "t.late": timedelta(hours=23), "t.just": timedelta(0)}
    with database.write() as connection:
        for number, (job_type, age) in enumerate(ages.items()):
            row = {"tick": str(number), "host": "a", "pid": 1, "version": "0", "started_at": now - age}
            did = Result(overran={job_type, "t.other"} if number == 2 else {job_type}).did()
            connection.execute(insert(ticks).values(row | {"did": did}))
        connection.execute(insert(ticks).values(row | {"tick": "plain", "did": {"claimed": 3}}))
    with database.read() as connection:
        assert overran_lately(connection) == {"t.late", "t.just", "t.other"}
