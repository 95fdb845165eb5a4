"""If only a clock change ended a lease, the living process keeps it.

A lease that ends in a year does not last so long.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.commands import LINUX_ONLY, started, until
from support.hosts import Host, put
from support.lost import claim_as_a_tick, paying, row
from support.ticking import Project, cli

from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity, age_at_work
from cronjobs.engine.probe.kernel_facts import process_started
from cronjobs.engine.rules.lease import Lease
from cronjobs.engine.rules.recovery_policy import AttemptPolicy, ClaimPolicies
from cronjobs.engine.store import claims, leases
from cronjobs.engine.store.leases import LONG
from cronjobs.engine.tick.runners import lease_is_wrong, sort_runners
from cronjobs.model import Job, RetryPolicy
from cronjobs.testing import FakeClock

pytestmark = LINUX_ONLY

MINUTE = timedelta(minutes=1)
YEAR = timedelta(days=365)


@contextmanager
def process() -> Iterator[tuple[subprocess.Popen[bytes], Identity]]:
    """A process of this host that could hold a lease."""
    with started([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as holder:
        yield holder, replace(Identity.here(), pid=holder.pid, started=process_started(holder.pid) or "")


@pytest.fixture
def ran() -> Iterator[list[str]]:
    with paying() as seen:
        yield seen


@pytest.fixture
def host(database: Database, tmp_path: Path, ran: list[str]) -> Host:
    return Host(database, tmp_path, Identity.here().host)


def claimed(host: Host, locked_by: object, *, runner_s: float = 3600, lease: timedelta = MINUTE) -> Job:
    """A job whose lease *locked_by* holds; its process gets *runner_s* old."""
    put(host.database, job_type="pay.tries")
    policies = ClaimPolicies.of({"": AttemptPolicy(RetryPolicy(), runner_s=runner_s, lease_s=60)})
    admission = claims.ClaimFilter(known=["pay.tries"], fitting=["pay.tries"], remaining_s=60, policies=policies)
    with host.database.write() as connection:
        [job] = claims.claim(connection, limit=1, locked_by=str(locked_by), lease=lease, admission=admission).jobs
    return job


# --- who lives --------------------------------------------------------------------------------------------------------


def test_a_process_that_lives_is_known_by_its_age_and_one_that_is_stopped_is_not() -> None:
    here = Identity.here()
    with process() as (started, holder):
        age_s = age_at_work(str(holder), here)
        assert age_s is not None
        assert 0 <= age_s < 60
        started.send_signal(signal.SIGSTOP)
        until(lambda: age_at_work(str(holder), here) is None)
        started.send_signal(signal.SIGCONT)
        until(lambda: age_at_work(str(holder), here) is not None)
        for other in ({"host": "web9"}, {"boot_id": "x"}, {"pid_namespace": "1"}, {"started": "1"}):
            assert age_at_work(str(replace(holder, **other)), here) is None  # type: ignore[arg-type]
        assert age_at_work(str(replace(holder, boot_id="-")), replace(here, boot_id="-")) is None
        started.kill()
        until(lambda: age_at_work(str(holder), here) is None)  # a zombie


def test_an_earlier_tick_of_this_process_has_ended() -> None:
    here = Identity.here()
    assert age_at_work(str(replace(here, tick="before")), here) is None


@pytest.mark.parametrize("name", ["", "someone", "a:b:c:1:2:d"])
def test_a_name_that_is_none_of_ours_is_nobody_alive(name: str) -> None:
    assert age_at_work(name, Identity.here()) is None


def test_runners_are_dead_or_working_or_neither() -> None:
    here = Identity.here()
    dead = str(replace(here, started="1", tick="before"))
    with process() as (_, holder):
        name, long_name = str(holder), str(replace(holder, tick=f"{LONG}x"))
        assert sort_runners({dead: 60.0, name: 60.0}, here).dead == (dead,)
        assert sort_runners({dead: 60.0, name: 60.0}, here).working == (name,)
        assert sort_runners({name: 0.0}, here).working == ()  # beyond its limit
        assert sort_runners({name: None}, here).working == ()  # how long it may take nobody knows
        assert sort_runners({long_name: 60.0}, here).working == (long_name,)


# --- the clock steps forward ------------------------------------------------------------------------------------------


def test_a_lease_that_only_the_clock_ended_is_not_taken_from_a_process_that_lives(host: Host, clock: FakeClock) -> None:
    with process() as (started, holder):
        job = claimed(host, holder)
        clock.advance(timedelta(hours=2))
        assert host.tick().recovered == 0
        assert row(host, job.id).locked_by == str(holder)
        with host.database.write() as connection:  # the runner's next heartbeat
            renewal = leases.renew(connection, [Lease(job.id, job.attempt, str(holder))], MINUTE)
        assert renewal.renewed == {job.id}
        clock.advance(timedelta(hours=2))
        started.send_signal(signal.SIGSTOP)
        until(lambda: age_at_work(str(holder), Identity.here()) is None)
        assert host.tick().recovered == 1  # frozen: the fence stands between it and the next owner


@pytest.mark.parametrize("reason", ["beyond its limit", "killed", "on another host"])
def test_and_is_taken_from_one_that_is(host: Host, clock: FakeClock, reason: str) -> None:
    with process() as (started, holder):
        if reason == "on another host":
            holder = replace(holder, host="web9")
        claimed(host, holder, runner_s=0 if reason == "beyond its limit" else 3600)
        clock.advance(timedelta(hours=2))
        if reason == "killed":
            started.kill()
            started.wait()
        assert host.tick().recovered == 1


def test_jobs_of_living_processes_hold_no_others_up(host: Host, clock: FakeClock, monkeypatch: Any) -> None:
    monkeypatch.setattr("cronjobs.engine.tick.recovery.RECOVER_BATCH", 2)
    with process() as (_, holder):
        for _ in range(4):
            claimed(host, holder)
        gone = [claimed(host, "web9:b:1:1:1:t").id for _ in range(3)]
        clock.advance(timedelta(hours=2))
        assert host.tick().recovered == 3
        assert {row(host, job_id).losses for job_id in gone} == {1}


def test_a_tick_writes_how_old_its_process_gets(host: Host, clock: FakeClock) -> None:
    job_id = put(host.database, job_type="pay.tries")
    claim_as_a_tick(host)  # the lease is a minute
    policy = row(host, job_id).policy
    assert (policy["runner_s"], policy["lease_s"]) == (65.0, 60.0)


# --- a lease that ends in a year --------------------------------------------------------------------------------------


def test_a_lease_is_wrong_beyond_what_its_runner_or_any_runner_could_have_written(clock: FakeClock) -> None:
    now = clock.now()
    assert not lease_is_wrong(now + MINUTE, now, 60)
    assert not lease_is_wrong(now - YEAR, now, 60)
    assert lease_is_wrong(now + timedelta(hours=1), now, 60)
    assert not lease_is_wrong(now + timedelta(hours=1), now, 7200)
    assert not lease_is_wrong(now + timedelta(hours=24), now, None)
    assert lease_is_wrong(now + timedelta(hours=25), now, None)
    assert lease_is_wrong(now + YEAR, now, 1e12)


def test_of_a_runner_before_the_last_boot_it_is_over_at_once(host: Host, clock: FakeClock) -> None:
    before = replace(Identity.here(), boot_id="11111111-2222-3333-4444-555555555555", pid=77, started="1234")
    job = claimed(host, before, lease=YEAR)
    assert host.tick().recovered == 1
    assert (row(host, job.id).status, row(host, job.id).losses) == ("succeeded", 1)


def test_of_one_that_cannot_be_seen_it_is_cut_and_who_lives_renews_it(host: Host, clock: FakeClock) -> None:
    job = claimed(host, "web9:b:1:1:1:t", lease=YEAR)
    assert host.tick().recovered == 0
    assert row(host, job.id).locked_until < clock.now() + 2 * MINUTE
    [said] = host.said("job.lease_cut")
    assert said.facts["job_id"] == job.id
    with host.database.write() as connection:  # the runner lives
        leases.renew(connection, [Lease(job.id, job.attempt, "web9:b:1:1:1:t")], 5 * MINUTE)
    clock.advance(2 * MINUTE)
    assert host.tick().recovered == 0
    clock.advance(5 * MINUTE)  # now it does not
    assert host.tick().recovered == 1


def test_of_a_process_that_lives_it_is_cut_too_and_stays_its_own(host: Host, clock: FakeClock) -> None:
    with process() as (_, holder):
        job = claimed(host, holder, lease=YEAR)
        host.tick()
        clock.advance(2 * MINUTE)
        assert host.tick().recovered == 0
        assert row(host, job.id).locked_by == str(holder)


def test_a_long_lease_that_its_host_configured_is_none(host: Host, clock: FakeClock) -> None:
    put(host.database, job_type="pay.tries")
    host.carry(run=replace(host.settings.run, lease=timedelta(hours=6)))
    [job] = claim_as_a_tick(host)
    with host.database.write() as connection:
        leases.renew(connection, [Lease(job.id, job.attempt, job.locked_by or "")], timedelta(hours=6))
    host.carry(run=replace(host.settings.run, lease=MINUTE))
    host.tick()
    assert not host.said("job.lease_cut")
    assert row(host, job.id).locked_until > clock.now() + timedelta(hours=5)


@pytest.mark.needs("desk")
def test_a_person_can_release_it(sqlite_project: Project) -> None:
    project = sqlite_project
    job_id = project.add("t.quick")
    other = str(replace(Identity.here(), boot_id="another-boot", pid=77, started="1234"))
    in_a_year = 1_000_000 * 86400 * 365
    project.sql(
        f"UPDATE cronjobs_jobs SET status = 'running', attempts = 1, locked_by = '{other}', "
        f"locked_until = run_at + {in_a_year} WHERE id = {job_id}"
    )
    assert "is queued again" in cli(project, "jobs", "release", str(job_id))
    assert project.job(job_id)["status"] == "queued"
