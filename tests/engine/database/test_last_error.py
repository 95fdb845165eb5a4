"""A job's last error and the error's type always come from the same attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.rules.ending import decide_end
from cronjobs.engine.store import claims, leases, operating
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.engine.store.operating import OperatorAction
from cronjobs.model import (
    CancelledByRequest,
    Failed,
    Finished,
    Interrupted,
    Lost,
    Outcome,
    Released,
    RetryPolicy,
    Snoozed,
    Succeeded,
    TimedOut,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ANY = ClaimFilter(known=["t"], fitting=["t"], remaining_s=50)
ACT = OperatorAction("cancel", "ada", "host", "it is wrong")
BEFORE = ("boom", "ValueError")


def failed_before(database: Database) -> int:
    row = {"job_type": "t", "run_at": NOW, "status": "failed", "failures": 1, "last_failed_at": NOW}
    with database.write() as connection:
        added = connection.execute(
            insert(jobs).values(row | {"last_error": BEFORE[0], "error_type": BEFORE[1]}).returning(jobs.c.id)
        )
        return int(added.scalar_one())


def error_of(database: Database) -> tuple[Any, Any]:
    with database.read() as connection:
        row = connection.execute(select(jobs.c.last_error, jobs.c.error_type)).one()
    return row.last_error, row.error_type


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Succeeded(), BEFORE),
        (Succeeded(None, "its result is not JSON"), ("its result is not JSON", None)),
        (Snoozed(NOW + timedelta(hours=1)), BEFORE),
        (Snoozed(NOW + timedelta(hours=1), "job 1 was performing the effect pay:7"), BEFORE),
        (Released(), BEFORE),
        (Released("still here"), ("still here", None)),
        (Released("nobody read it", error_type="NotRead"), ("nobody read it", "NotRead")),
        (Interrupted("interrupted by shutdown"), ("interrupted by shutdown", None)),
        (Failed("no such key", "KeyError"), ("no such key", "KeyError")),
        (TimedOut("timed out"), ("timed out", "TimedOut")),
        (Lost("lost"), ("lost", "Lost")),
        (CancelledByRequest("cancelled by ada"), ("cancelled by ada", None)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_after_an_attempt(database: Database, outcome: Outcome, expected: tuple[str, str | None]) -> None:
    failed_before(database)
    with database.write() as connection:
        [job] = claims.claim(connection, limit=1, locked_by="a", lease=timedelta(minutes=1), admission=ANY).jobs
    end = decide_end(Finished(job, outcome), RetryPolicy(), NOW, max_losses=10)
    with database.write() as connection:
        leases.finish(connection, [end.finish])
    assert error_of(database) == expected


@pytest.mark.parametrize("begun", [False, True])
def test_after_a_cancel(database: Database, begun: bool) -> None:
    job_id = failed_before(database)
    with database.write() as connection:
        if begun:
            [job] = claims.claim(connection, limit=1, locked_by="a", lease=timedelta(minutes=1), admission=ANY).jobs
            connection.execute(update(jobs).values(cancel_requested_at=NOW))
            end = decide_end(Finished(job, Failed("no such key", "KeyError")), RetryPolicy(), NOW, max_losses=10)
            leases.finish(connection, [end.finish])
        else:
            operating.cancel(connection, [job_id], ACT)
    error, kind = error_of(database)
    assert "cancelled" in error
    assert kind is None
