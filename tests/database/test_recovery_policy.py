"""A lost attempt is settled by what its claim wrote on the row, also by a process that does not know its type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from support.hosts import Host, put
from support.lost import MINUTE, as_an_older_version, claim_as_a_tick, forget, paying, row

from cronjobs.config.settings import JobTypeSettings, RetryChanges, RunSettings, ScheduleSettings
from cronjobs.database.connection import Database
from cronjobs.database.tables import jobs as jobs_table
from cronjobs.database.tables import schedules as schedules_table
from cronjobs.jobs import job_types, registry
from cronjobs.jobs.job_types import policy_of
from cronjobs.model import RetryPolicy, TimedOut, duration
from cronjobs.rules.attempt_policy import AttemptPolicy, read_policy
from cronjobs.rules.concurrency import Limit
from cronjobs.rules.ending import running_row
from cronjobs.store import leases, operating
from cronjobs.store.concurrency import running_by_key
from cronjobs.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(datetime(2026, 3, 2, 8, 0, 30, tzinfo=UTC))


@pytest.fixture
def ran() -> Iterator[list[str]]:
    with paying() as seen:
        yield seen


@pytest.fixture
def host(database: Database, tmp_path: Path, ran: list[str]) -> Host:
    return Host(database, tmp_path)


# --- who recovers does not know the type ------------------------------------------------------------------------------


def test_what_must_not_run_twice_is_dead_although_nobody_here_knows_its_type(
    host: Host, clock: FakeClock, ran: list[str]
) -> None:
    job_id = put(host.database, job_type="pay.once")
    claim_as_a_tick(host)
    known = dict(registry._registered)
    forget()
    clock.advance(2 * MINUTE)
    assert host.tick().exit_code() == 1
    assert (row(host, job_id).status, row(host, job_id).losses) == ("dead", 1)
    registry._registered.update(known)
    host.tick()
    assert ran == []


def test_a_last_try_that_timed_out_is_dead_although_nobody_here_knows_its_type(
    host: Host, clock: FakeClock, ran: list[str]
) -> None:
    put(host.database, job_type="pay.single")
    [job] = claim_as_a_tick(host)
    with host.database.write() as connection:
        leases.record_overdue(connection, [running_row(job, TimedOut("still running"), MINUTE, "1")])
    forget()
    clock.advance(2 * MINUTE)
    host.tick()
    found = row(host, job.id)
    assert (found.status, found.failures, found.policy) == ("dead", 1, None)


@pytest.mark.parametrize("knows", [True, False], ids=["known", "unknown"])
def test_its_own_tries_and_delays_count_not_those_of_whoever_recovers(
    host: Host, clock: FakeClock, ran: list[str], knows: bool
) -> None:
    put(host.database, job_type="pay.tries")
    [job] = claim_as_a_tick(host)
    with host.database.write() as connection:
        leases.record_overdue(connection, [running_row(job, TimedOut("still running"), MINUTE, "1")])
    if knows:  # and has another opinion by now
        host.carry(job_types={"pay.tries": JobTypeSettings("pay.tries", retry=RetryChanges((("max_attempts", 1),)))})
    else:
        forget()
    clock.advance(2 * MINUTE)
    host.tick()
    found = row(host, job.id)
    assert (found.status, found.failures) == ("failed", 1)
    assert abs(found.run_at - (clock.now() + timedelta(seconds=90))) < timedelta(seconds=5)


def test_a_runner_may_die_with_a_job_as_often_as_its_claim_said(host: Host, clock: FakeClock) -> None:
    host.carry(run=RunSettings(max_losses=2))
    job_id = put(host.database, job_type="pay.tries", losses=1)
    claim_as_a_tick(host)
    host.carry(run=RunSettings(max_losses=10))
    forget()
    clock.advance(2 * MINUTE)
    host.tick()
    assert (row(host, job_id).status, row(host, job_id).losses) == ("dead", 2)


def test_a_schedules_retry_until_is_what_it_was_when_the_attempt_began(host: Host, clock: FakeClock) -> None:
    until_next = ScheduleSettings("s", "pay.tries", cron="30 * * * *", retry_until="next_occurrence")
    host.carry(schedules={"s": until_next})
    host.tick()
    job_id = put(host.database, job_type="pay.tries", schedule="s")
    [job] = claim_as_a_tick(host)
    assert row(host, job_id).policy["retry_until"] == "next_occurrence"
    with host.database.write() as connection:
        leases.record_overdue(connection, [running_row(job, TimedOut("still running"), MINUTE, "1")])
    clock.set(datetime(2026, 3, 2, 8, 29, 30, tzinfo=UTC))  # 90 s are longer than until the next one
    with host.database.write() as connection:  # another host has applied a file without it
        definition = connection.execute(select(schedules_table.c.definition)).scalar_one() | {"retry_until": None}
        connection.execute(update(schedules_table).values(definition=definition))
    forget()
    host.tick()
    assert row(host, job_id).status == "dead"


# --- the column -------------------------------------------------------------------------------------------------------


def test_each_claim_writes_the_policy_anew_and_the_end_of_the_attempt_clears_it(
    host: Host, clock: FakeClock, ran: list[str]
) -> None:
    job_id = put(host.database, job_type="pay.tries", max_attempts=7, timeout_s=11)
    claim_as_a_tick(host)
    first = row(host, job_id).policy
    assert (first["attempt"], first["max_attempts"], first["base_s"], first["on_lost"]) == (1, 3, 90.0, "retry")
    forget()
    clock.advance(2 * MINUTE)
    host.tick()
    found = row(host, job_id)
    assert (found.status, found.policy) == ("failed", None)
    # The enqueuer's columns stay what they were.
    assert (found.max_attempts, found.timeout_s) == (7, 11)


def test_a_change_of_the_file_applies_to_the_next_attempt(host: Host, clock: FakeClock, ran: list[str]) -> None:
    job_id = put(host.database, job_type="pay.tries")
    claim_as_a_tick(host)
    known = dict(registry._registered)
    forget()
    clock.advance(2 * MINUTE)
    host.tick()
    registry._registered.update(known)
    host.carry(job_types={"pay.tries": JobTypeSettings("pay.tries", on_lost="dead")})
    clock.advance(MINUTE)
    claim_as_a_tick(host)
    assert (row(host, job_id).policy["attempt"], row(host, job_id).policy["on_lost"]) == (2, "dead")
    forget()
    clock.advance(2 * MINUTE)
    host.tick()
    assert (row(host, job_id).status, row(host, job_id).losses) == ("dead", 2)


def test_a_policy_is_read_back_as_it_was_written() -> None:
    for retry in (
        RetryPolicy(),
        RetryPolicy(delays=["5s", "1m"], max_attempts=20, jitter=0),
        RetryPolicy(retry_on=["ValueError", "app.Busy"], give_up_on=["TimedOut"], factor=3, base="1s", cap="5s"),
    ):
        policy = AttemptPolicy(retry, "dead", 4, "next_occurrence", in_thread=True, runner_s=60.0, lease_s=60.0)
        back = read_policy(json.loads(policy.for_attempt(3)), 3)
        assert back is not None
        assert (back.on_lost, back.max_losses, back.retry_until, back.in_thread) == (
            "dead",
            4,
            "next_occurrence",
            True,
        )
        for name in ("max_attempts", "factor", "jitter", "retry_on", "give_up_on"):
            assert getattr(back.retry, name) == getattr(retry, name)
        assert duration(back.retry.base) == duration(retry.base)
        assert [duration(each) for each in back.retry.delays or ()] == [duration(each) for each in retry.delays or ()]


@pytest.mark.parametrize(
    "value",
    [
        None, 5, "x", [], {}, {"attempt": 1}, {"attempt": 2}, {"attempt": "1"},
        {"attempt": 1, "max_attempts": 0, "base_s": 1, "factor": 2, "cap_s": 1, "jitter": 0, "on_lost": "dead"},
        {"attempt": 1, "max_attempts": 1, "base_s": "NaN", "factor": 2, "cap_s": 1, "jitter": 0, "on_lost": "dead",
         "max_losses": 1},
        {"attempt": 1, "max_attempts": 1e400, "base_s": 1, "factor": 2, "cap_s": 1, "jitter": 0, "on_lost": "dead",
         "max_losses": 1},
    ],
)  # fmt: skip
def test_what_plain_sql_wrote_there_is_no_policy(value: Any) -> None:
    assert read_policy(value, 1) is None


def test_a_type_takes_its_own_policy_although_another_is_usual(host: Host) -> None:
    names = ["pay.once", "pay.tries", "pay.single"]
    ids = {name: put(host.database, job_type=name) for name in names}
    claim_as_a_tick(host)
    types = job_types.load(host.settings).types
    for name, job_id in ids.items():
        wanted = policy_of(types[name], host.settings.run, runner=MINUTE)
        assert row(host, job_id).policy == wanted.row() | {"attempt": 1, "retry_until": None}


# --- claimed by an older version --------------------------------------------------------------------------------------


def test_a_job_without_a_policy_and_of_unknown_type_is_left_alone_and_reported(
    host: Host, clock: FakeClock, ran: list[str]
) -> None:
    job_id = put(host.database, job_type="pay.once")
    as_an_older_version(host, job_id)
    known = dict(registry._registered)
    forget()
    clock.advance(5 * MINUTE)
    result = host.tick()
    assert row(host, job_id).status == "running"
    [said] = host.said("job.left_alone")
    assert (said.facts["job_type"], said.facts["jobs"], said.facts["job_id"]) == ("pay.once", 1, job_id)
    assert result.exit_code() == 3
    registry._registered.update(known)  # the deploy is over
    host.tick()
    assert (row(host, job_id).status, ran) == ("dead", [])


def test_what_the_attempt_before_was_to_be_decided_by_is_not_taken_for_an_older_versions(
    host: Host, clock: FakeClock
) -> None:
    job_id = put(host.database, job_type="pay.tries")
    claim_as_a_tick(host)
    with host.database.write() as connection:  # an older version finds it lost, and claims it: the column stays
        connection.execute(
            update(jobs_table)
            .where(jobs_table.c.id == job_id)
            .values(status="failed", locked_by=None, locked_until=None)
        )
    as_an_older_version(host, job_id)
    forget()
    clock.advance(5 * MINUTE)
    host.tick()
    assert row(host, job_id).status == "running"
    assert host.said("job.left_alone")


def test_nor_where_its_type_is_known(host: Host, clock: FakeClock) -> None:
    job_id = put(host.database, job_type="pay.tries")
    claim_as_a_tick(host)  # which may be lost
    with host.database.write() as connection:
        values = {"status": "failed", "locked_by": None, "locked_until": None}
        connection.execute(update(jobs_table).where(jobs_table.c.id == job_id).values(values))
    as_an_older_version(host, job_id)
    host.carry(job_types={"pay.tries": JobTypeSettings("pay.tries", on_lost="dead")})  # and this may not
    clock.advance(5 * MINUTE)
    host.tick()
    assert row(host, job_id).status == "dead"


def test_more_of_them_than_a_batch_hold_nobody_up(host: Host, clock: FakeClock, monkeypatch: Any) -> None:
    monkeypatch.setattr("cronjobs.tick.recovery.RECOVER_BATCH", 2)
    for _ in range(5):
        as_an_older_version(host, put(host.database, job_type="pay.once"))
    clock.advance(MINUTE / 2)
    ids = [put(host.database, job_type="pay.tries") for _ in range(3)]
    claim_as_a_tick(host)
    forget()
    clock.advance(5 * MINUTE)
    assert host.tick().recovered == 3
    assert {row(host, job_id).status for job_id in ids} == {"failed"}
    assert [event.facts["jobs"] for event in host.said("job.left_alone")] == [5]


def test_it_counts_neither_for_limits_nor_for_overlap(host: Host, clock: FakeClock, ran: list[str]) -> None:
    host.carry(schedules={"s": ScheduleSettings("s", "pay.tries", cron="* * * * *")}, limits=(Limit("bank:", 1),))
    host.tick()
    left_id = put(host.database, job_type="pay.gone", schedule="s", concurrency_key="bank:1")
    as_an_older_version(host, left_id)
    waiting_id = put(host.database, job_type="pay.tries", concurrency_key="bank:2", run_at=clock.now())
    with host.database.read() as connection:
        assert running_by_key(connection) == {"bank:1": 1}  # as long as its lease is in force
    clock.advance(5 * MINUTE)
    result = host.tick()
    assert row(host, left_id).status == "running"
    assert row(host, waiting_id).status == "succeeded"
    assert result.occurrences.get("enqueued") == 1
    assert len(ran) == 2  # the schedule's, too


def test_a_person_can_call_it_off(host: Host, clock: FakeClock) -> None:
    job_id = put(host.database, job_type="pay.once")
    as_an_older_version(host, job_id)
    forget()
    clock.advance(5 * MINUTE)
    with host.database.write() as connection:
        operating.cancel(connection, [job_id], operating.OperatorAction("cancel", "ada", "here", None))
    assert host.tick().exit_code() == 0
    assert row(host, job_id).status == "cancelled"


@pytest.mark.parametrize("bad", ["[1]", '"x"', '{"attempt": 1}', "{}"])
def test_a_policy_that_nobody_can_read_is_no_reason_to_run_a_job_twice(host: Host, clock: FakeClock, bad: str) -> None:
    job_id = put(host.database, job_type="pay.once")
    claim_as_a_tick(host)
    with host.database.write() as connection:
        connection.execute(update(jobs_table).where(jobs_table.c.id == job_id).values(policy=json.loads(bad)))
    forget()
    clock.advance(5 * MINUTE)
    host.tick()
    assert row(host, job_id).status in ("running", "dead")
