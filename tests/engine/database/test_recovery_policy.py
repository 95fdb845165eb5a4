"""A lost attempt is settled by the policy that its claim wrote on the row, even by a process without its handler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from support.hosts import Host, put
from support.lost import GONE, MINUTE, claim_as_a_tick, claim_without_a_policy, forget, paying, row

from cronjobs import events
from cronjobs.engine.config.settings import JobTypeSettings, RetryChanges, RunSettings, ScheduleSettings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import job_runs, ticks
from cronjobs.engine.database.tables import jobs as jobs_table
from cronjobs.engine.database.tables import schedules as schedules_table
from cronjobs.engine.jobs import job_types, registry
from cronjobs.engine.jobs.job_types import policy_of
from cronjobs.engine.rules.ending import running_row
from cronjobs.engine.rules.recovery_policy import AttemptPolicy, read_policy
from cronjobs.engine.store import leases, operating
from cronjobs.engine.tick.unreported import Unreported
from cronjobs.model import RetryPolicy, TimedOut, duration
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


@pytest.mark.parametrize("how", ["lost", "timed out"])
def test_a_death_has_the_same_cause_in_the_tick_s_event_and_on_the_row(
    host: Host, clock: FakeClock, ran: list[str], how: str
) -> None:
    job_id = put(host.database, job_type="pay.once" if how == "lost" else "pay.single")
    [job] = claim_as_a_tick(host)
    if how == "timed out":
        with host.database.write() as connection:
            leases.record_overdue(connection, [running_row(job, TimedOut("still running"), MINUTE, "1")])
    clock.advance(2 * MINUTE)
    host.tick()
    [dead], found = host.said("job.dead"), row(host, job_id)
    on_the_row = events.job_died_unreported(job_id, found.job_type, found.error_type, found.last_error)
    assert events.death_cause(dead) == events.death_cause(on_the_row)


@pytest.mark.parametrize(("killed_ticks", "worker"), [(0, None), (0, "dask tcp://w1"), (1, None), (3, "dask tcp://w1")])
def test_a_tick_reports_each_death_of_killed_ticks_once(
    host: Host,
    clock: FakeClock,
    ran: list[str],
    killed_ticks: int,
    worker: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The runner is gone, too, but did not record that its attempt was lost, unless it is an executor's supervisor."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    lost = [put(host.database, job_type="pay.once") for _ in range(3)]
    claim_as_a_tick(host)
    for _ in range(killed_ticks):
        host.tick()
    clock.advance(2 * MINUTE)
    with host.database.read() as connection:
        begun = list(connection.execute(select(ticks.c.tick)).scalars())
    host.tick()
    assert len(begun) == killed_ticks
    with host.database.write() as connection:
        connection.execute(update(job_runs).values(worker=worker))
    for runner in (GONE, *(f"alpha:another-boot:1:1:0:{tick}" for tick in begun)):
        Unreported(host.settings.file, runner).begin()
    host.events.clear()
    host.tick(unreported=Unreported(host.settings.file, "alpha:b:1:1:0:this"))
    assert [dead.facts["job_id"] for dead in host.said("job.dead")] == (lost if killed_ticks or worker else [])


@pytest.mark.parametrize("knows", [True, False], ids=["known", "unknown"])
def test_its_own_tries_and_delays_count_not_those_of_whoever_recovers(
    host: Host, clock: FakeClock, ran: list[str], knows: bool
) -> None:
    put(host.database, job_type="pay.tries")
    [job] = claim_as_a_tick(host)
    with host.database.write() as connection:
        leases.record_overdue(connection, [running_row(job, TimedOut("still running"), MINUTE, "1")])
    if knows:  # the present code has another policy
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
    assert (first["max_attempts"], first["base_s"], first["on_lost"]) == (3, 90.0, "retry")
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
    assert row(host, job_id).policy["on_lost"] == "dead"
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
        back = read_policy(json.loads(policy.text()))
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
        None, 5, "x", [], {}, {"on_lost": "retry"},
        {"max_attempts": 0, "base_s": 1, "factor": 2, "cap_s": 1, "jitter": 0, "on_lost": "dead"},
        {"max_attempts": 1, "base_s": "NaN", "factor": 2, "cap_s": 1, "jitter": 0, "on_lost": "dead",
         "max_losses": 1},
        {"max_attempts": 1e400, "base_s": 1, "factor": 2, "cap_s": 1, "jitter": 0, "on_lost": "dead",
         "max_losses": 1},
    ],
)  # fmt: skip
def test_what_plain_sql_wrote_there_is_no_policy(value: Any) -> None:
    assert read_policy(value) is None


def test_a_type_takes_its_own_policy_although_another_is_usual(host: Host) -> None:
    names = ["pay.once", "pay.tries", "pay.single"]
    ids = {name: put(host.database, job_type=name) for name in names}
    claim_as_a_tick(host)
    types = job_types.load(host.settings).types
    for name, job_id in ids.items():
        wanted = policy_of(types[name], host.settings.run, runner=MINUTE)
        assert row(host, job_id).policy == wanted.row() | {"retry_until": None}


# --- claimed by plain SQL ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job_type", ["pay.tries", "pay.gone"])
def test_a_job_without_a_policy_is_dead_and_visible_whoever_knows_its_type(
    host: Host, clock: FakeClock, ran: list[str], job_type: str
) -> None:
    job_id = put(host.database, job_type=job_type)
    claim_without_a_policy(host, job_id)
    clock.advance(5 * MINUTE)
    host.tick()
    assert (row(host, job_id).status, row(host, job_id).losses, ran) == ("dead", 1, [])


def test_a_person_can_call_it_off(host: Host, clock: FakeClock) -> None:
    job_id = put(host.database, job_type="pay.once")
    claim_without_a_policy(host, job_id)
    with host.database.write() as connection:
        operating.cancel(connection, [job_id], operating.OperatorAction("cancel", "ada", "here", None))
    clock.advance(5 * MINUTE)
    host.tick()
    assert row(host, job_id).status == "cancelled"


@pytest.mark.parametrize("bad", ["[1]", '"x"', "{}"])
def test_a_policy_that_nobody_can_read_is_no_reason_to_run_a_job_twice(host: Host, clock: FakeClock, bad: str) -> None:
    job_id = put(host.database, job_type="pay.once")
    claim_as_a_tick(host)
    with host.database.write() as connection:
        connection.execute(update(jobs_table).where(jobs_table.c.id == job_id).values(policy=json.loads(bad)))
    forget()
    clock.advance(5 * MINUTE)
    host.tick()
    assert row(host, job_id).status == "dead"
