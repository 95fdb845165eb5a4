"""Missing events are reported: schedules past their grace, hosts that stopped, files that differ."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update
from support.hosts import Host
from support.yard import MINUTE, START, Yard, at, minutely

from cronjobs.desk.insight.findings import Finding, troubles
from cronjobs.desk.insight.gathering import look
from cronjobs.engine.config.settings import JobTypeSettings, Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import job_runs, jobs, ticks
from cronjobs.engine.jobs.job_types import JobType, JobTypes
from cronjobs.engine.rules.ending import decide_end
from cronjobs.engine.schedules.backfill import trigger
from cronjobs.engine.schedules.decide import spread_offset
from cronjobs.engine.store import operating
from cronjobs.engine.store import schedules as store
from cronjobs.engine.store.acks import StoredAck, acks_in_force, put_ack, rename_schedules
from cronjobs.engine.store.claims import ClaimFilter, claim
from cronjobs.engine.store.leases import finish
from cronjobs.engine.store.operating import OperatorAction
from cronjobs.model import Failed, Finished, Lost, Outcome, RetryPolicy, Succeeded
from cronjobs.testing import FakeClock

GRACE = timedelta(minutes=10)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def yard(database: Database, clock: FakeClock, tmp_path: Path) -> Yard:
    return Yard(database, clock, tmp_path)


NO_TYPES = JobTypes()
KNOWN = JobTypes({"t.say": JobType("t.say", timedelta(seconds=10), RetryPolicy())})


def noticed(yard: Yard, kind: str, types: JobTypes = NO_TYPES) -> list[Finding]:
    settings: Settings = yard.file()
    with yard.database.read() as connection:
        return [found for found in troubles(look(connection, settings, types), settings) if found.kind == kind]


def hourly(**fields: Any) -> Any:
    return minutely(cron="0 * * * *", grace=GRACE, **fields)


def end(yard: Yard, status: str) -> None:
    with yard.database.write() as connection:
        connection.execute(
            update(jobs).where(jobs.c.finished_at.is_(None)).values(status=status, finished_at=yard.clock.now())
        )


def test_a_schedule_that_ran_is_no_trouble(yard: Yard) -> None:
    yard.sync(yard.file(hourly()))
    yard.clock.set(at(1, hour=9))
    yard.tick()
    end(yard, "succeeded")
    yard.clock.set(at(50, hour=9))
    assert noticed(yard, "schedule") == []


def test_within_its_grace_a_schedule_may_be_late(yard: Yard) -> None:
    yard.sync(yard.file(hourly()))
    yard.clock.set(at(9, hour=9))
    assert noticed(yard, "schedule") == []


def test_the_grace_begins_when_its_share_of_the_spread_is_over(yard: Yard) -> None:
    schedule = hourly(spread=timedelta(hours=24))
    yard.sync(yard.file(schedule))
    share = spread_offset(schedule)
    assert share > timedelta(minutes=1)
    yard.clock.set(at(9, hour=9) + share)
    assert noticed(yard, "schedule") == []
    yard.clock.set(at(11, hour=9) + share)
    [found] = noticed(yard, "schedule")
    assert found.since == at(10, hour=9) + share


def test_past_its_grace_without_a_tick_it_is_noticed(yard: Yard) -> None:
    yard.sync(yard.file(hourly()))
    yard.clock.set(at(11, hour=9))
    [found] = noticed(yard, "schedule")
    assert found.text == "s has not run within its grace; due 2026-03-02 09:00:00 UTC: no tick has settled it"


@pytest.mark.parametrize("edit", [{"cron": "30 17 * * *"}, {"timezone": "Asia/Tokyo"}, {"grace": timedelta(minutes=8)}])
def test_an_edit_makes_up_for_no_run(yard: Yard, edit: dict[str, Any]) -> None:
    given = {"cron": "0 9 * * *", "grace": GRACE}
    yard.sync(yard.file(minutely(**given)))
    yard.clock.set(at(1, hour=9))
    yard.tick()
    end(yard, "cancelled")
    yard.clock.set(at(11, hour=9))
    assert len(noticed(yard, "schedule")) == 1
    for fields in (edit, {}):  # and the edit is taken back
        yard.sync(yard.file(minutely(**given | fields)))
        yard.tick()
        [found] = noticed(yard, "schedule")
        assert found.text.startswith("s has not run within its grace; due 2026-03-02 ")
        assert found.text.endswith(": job 1 is cancelled")
    with yard.database.write() as connection:
        connection.execute(update(jobs).values(status="succeeded"))
    assert noticed(yard, "schedule") == []


@pytest.mark.parametrize(("status", "kind"), [("dead", "dead"), ("cancelled", "schedule")])
def test_a_run_that_did_not_succeed_is_no_run(yard: Yard, status: str, kind: str) -> None:
    yard.sync(yard.file(hourly()))
    yard.clock.set(at(1, hour=9))
    yard.tick()
    end(yard, status)
    yard.clock.set(at(11, hour=9))
    assert len(noticed(yard, kind)) == 1
    assert len(noticed(yard, "schedule")) == (status == "cancelled"), "one cause is one finding"


def test_a_paused_schedule_is_noticed_with_the_reason(yard: Yard) -> None:
    yard.sync(yard.file(hourly()))
    with yard.database.write() as connection:
        store.pause(connection, scope="all", name="", until=None, by="ada", why="deploy", now=START)
    yard.clock.set(at(11, hour=9))
    yard.tick()
    [found] = noticed(yard, "schedule")
    assert found.text.endswith("held back, paused by ada: deploy")


def test_a_later_run_makes_up_for_it(yard: Yard) -> None:
    yard.sync(yard.file(hourly()))
    yard.clock.set(at(1, hour=9))
    yard.tick()
    end(yard, "dead")
    yard.clock.set(at(1, hour=10))
    yard.tick()
    end(yard, "succeeded")
    yard.clock.set(at(5, hour=10))
    assert noticed(yard, "schedule") == []


def test_a_schedule_without_grace_or_before_its_first_occurrence_is_not_expected(yard: Yard) -> None:
    yard.sync(yard.file(hourly(name="new"), minutely(name="none", cron="0 * * * *")))
    yard.clock.advance(GRACE + 20 * MINUTE)
    assert noticed(yard, "schedule") == []


def test_a_schedule_is_behind_only_when_ticks_had_time_since_its_pause_ended(yard: Yard) -> None:
    yard.sync(yard.file(minutely(cron="20 * * * *")))
    yard.clock.set(at(18))
    yard.pause("s", until=at(25))
    yard.pause("", until=at(24))
    yard.clock.set(at(25, hour=8) + timedelta(seconds=30))
    ticked(yard, "alpha", 3, timedelta(seconds=20))
    assert noticed(yard, "behind") == []
    yard.clock.set(at(29))
    ticked(yard, "alpha", 3, timedelta(seconds=20))
    [found] = noticed(yard, "behind")
    assert found.since == at(25)


def test_a_pause_that_skips_holds_nothing_back_and_excuses_no_tick(yard: Yard) -> None:
    yard.sync(yard.file(minutely(cron="20 * * * *")))
    yard.clock.set(at(18))
    yard.pause("s", until=at(25), skip=True)
    yard.clock.set(at(26))
    ticked(yard, "alpha", 3, timedelta(seconds=20))
    [found] = noticed(yard, "behind")
    assert found.since == at(20)


def ticked(
    yard: Yard,
    host: str,
    times: int,
    ago: timedelta,
    fingerprint: str | None = "aaaaaaaabbbbbbbb",
    config: str | None = None,
) -> None:
    with yard.database.write() as connection:
        for number in range(times):
            then = yard.clock.now() - ago - (times - number) * MINUTE
            row = {"tick": f"{host}-{then}", "host": host, "pid": 1, "version": "0", "fingerprint": fingerprint}
            row |= {"config": config, "started_at": then, "finished_at": then, "schedules_on": 1}
            connection.execute(insert(ticks).values(row))


def test_a_host_that_stopped_ticking_is_noticed_while_others_go_on(yard: Yard) -> None:
    ticked(yard, "alpha", 12, timedelta(0))
    ticked(yard, "beta", 12, timedelta(minutes=30))
    [found] = noticed(yard, "host")
    why = '(on that host, "cronjobs doctor" says why)'
    assert found.text == f"host beta has not ticked for 31m, but other hosts have {why}"
    assert found.command is None  # every command here would show this host


def test_a_host_that_stopped_last_is_not_the_one_that_stopped_while_others_went_on(yard: Yard) -> None:
    """An old tick of another host counted as a sign that others went on, beside the finding that nobody ticks."""
    ticked(yard, "alpha", 1, timedelta(minutes=20))
    ticked(yard, "beta", 12, timedelta(minutes=4))
    ticked(yard, "gamma", 12, timedelta(minutes=4, seconds=20))
    assert noticed(yard, "host") == []
    assert len(noticed(yard, "no_tick")) == 1


@pytest.mark.parametrize(("times", "ago"), [(3, timedelta(minutes=30)), (12, timedelta(days=2))])
def test_a_passing_host_or_one_long_gone_is_not_expected(yard: Yard, times: int, ago: timedelta) -> None:
    ticked(yard, "alpha", 12, timedelta(0))
    ticked(yard, "beta", times, ago)
    assert noticed(yard, "host") == []


def test_hosts_that_carry_different_files_are_told_apart_without_an_alarm(yard: Yard) -> None:
    ticked(yard, "alpha", 1, timedelta(0))
    ticked(yard, "beta", 1, timedelta(0), "ccccccccdddddddd")
    [found] = noticed(yard, "files")
    assert found.text == "hosts have different files: aaaaaaaa on alpha; cccccccc on beta"
    assert not found.alarm


def test_different_files_differ_since_the_last_host_has_had_its_own(yard: Yard) -> None:
    now = yard.clock.now()
    ticked(yard, "alpha", 30, timedelta(0))
    ticked(yard, "beta", 20, 10 * MINUTE)
    ticked(yard, "beta", 10, timedelta(0), "ccccccccdddddddd")
    ticked(yard, "gamma", 4, timedelta(0), "ccccccccdddddddd")
    [found] = noticed(yard, "files")
    assert found.since == now - 10 * MINUTE


def test_two_files_of_one_host_are_named_with_the_command_that_removes_one(yard: Yard) -> None:
    old, new = "/srv/release 1/cronjobs.yaml", "/srv/2/cronjobs.yaml"
    for minutes in (0, 12):
        ticked(yard, "alpha", 12, minutes * MINUTE, config=new)
        ticked(yard, "alpha", 12, minutes * MINUTE + timedelta(seconds=1), None, config=old)
        ticked(yard, "beta", 12, minutes * MINUTE, config=new)
        [found] = noticed(yard, "files")
        long = "" if not minutes else " for more than 15 minutes"
        assert found.text == (
            f"host alpha {'has ticked' if long else 'ticks'} with 2 files{long}: no tick applies the schedules of "
            "/srv/release 1/cronjobs.yaml as long as ticks use /srv/2/cronjobs.yaml"
        )
        assert found.command == "cronjobs crontab remove --config '/srv/release 1/cronjobs.yaml'"
        assert found.alarm == (minutes > 0)


def test_two_files_of_one_host_are_named_until_the_waiting_one_is_applied(yard: Yard) -> None:
    host = Host(yard.database, yard.folder)
    files = [
        host.carry(file=yard.folder / path, schedules=yard.file(minutely(name=name)).schedules)
        for path, name in (("old.yaml", "o"), ("new.yaml", "n"), ("old.yaml", "o"), ("new.yaml", "n"))
    ]
    for host.settings in files:
        host.tick()
        yard.clock.advance(timedelta(seconds=10))
    assert noticed(yard, "files")
    host.settings, waits = files[0], 0
    while not host.said("schedules.applied")[2:]:
        assert "schedules of" in noticed(yard, "files")[0].text
        yard.clock.advance(MINUTE)
        host.tick()
        waits += 1
        assert waits < 9
    assert noticed(yard, "files") == []


def test_hosts_that_come_and_go_do_not_show_since_when_files_differ(yard: Yard) -> None:
    """Containers: others had these files a quarter of an hour ago."""
    ticked(yard, "old-alpha", 5, 12 * MINUTE)
    ticked(yard, "old-beta", 5, 12 * MINUTE, "ccccccccdddddddd")
    ticked(yard, "alpha", 1, timedelta(0))
    ticked(yard, "beta", 1, timedelta(0), "ccccccccdddddddd")
    [found] = noticed(yard, "files")
    assert "for more than 15 minutes" in found.text
    assert found.since is None


def ran(yard: Yard, job_type: str, seconds: float, times: int = 5) -> None:
    now = yard.clock.now()
    began = now - timedelta(seconds=seconds)
    with yard.database.write() as connection:
        for _ in range(times):
            values = {"job_type": job_type, "status": "succeeded", "attempts": 1, "finished_at": now}
            job_id = connection.execute(insert(jobs).values(values).returning(jobs.c.id)).scalar_one()
            run = {"job_id": job_id, "attempt": 1, "outcome": "succeeded", "runner": "r"}
            connection.execute(insert(job_runs).values(run | {"started_at": began, "finished_at": now}))


def test_runs_that_are_long_for_the_lease_are_told_without_an_alarm(yard: Yard) -> None:
    """Five of them are to fit into a lease of 60 s; what is longer than any tick has a process that is there for it."""
    ran(yard, "quick", 11.9)
    ran(yard, "slow", 12.04)  # five of them take 60.2 s: to round that to the present lease would help nobody
    ran(yard, "long", 300)
    ran(yard, "slow.seldom", 13, times=4)
    [found] = noticed(yard, "lease")
    assert found.text.startswith(
        "slow typically runs for 12s, and run.lease is 1m: set run.lease to at least 1m1s (5 such runs), or"
    )
    assert found.command == "cronjobs config show run.lease"
    assert not found.alarm
    as_long_job = JobTypeSettings(name="slow", command=("true",), timeout=timedelta(days=1))  # as import writes it
    settings = replace(yard.file(), job_types={"slow": as_long_job})
    with yard.database.read() as connection:
        kinds = [each.kind for each in troubles(look(connection, settings, JobTypes()), settings)]
    assert "lease" not in kinds


# --- runs that a person triggered -------------------------------------------------------------------------------------


def triggered(yard: Yard, failures: int, status: str = "failed") -> None:
    """A run of the schedule by hand, whose last tries failed."""
    with yard.database.write() as connection:
        job_id = trigger(connection, "s", force=True, actor="ada", host="alpha")
        values = {"status": status, "attempts": failures, "failures": failures, "run_at": yard.clock.now() + MINUTE}
        values["last_failed_at"] = yard.clock.now()
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(values))


def test_failures_of_a_run_that_somebody_triggered_count_as_those_of_any_run(yard: Yard) -> None:
    yard.sync(yard.file(hourly()))
    yard.clock.set(at(1, hour=9))
    yard.tick()
    end(yard, "succeeded")
    yard.clock.set(at(5, hour=9))
    triggered(yard, 2)
    assert noticed(yard, "failing") == []
    triggered(yard, 1)
    [found] = noticed(yard, "failing")
    assert (found.text, found.rows) == ("the last 3 runs of s failed", ("s",))


def run_and(yard: Yard, outcome: Outcome) -> None:
    """Run whatever waits once, now."""
    with yard.database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.finished_at.is_(None)).values(run_at=yard.clock.now()))
        known = ClaimFilter(known=["t.say"], fitting=["t.say"], remaining_s=50, runnable=["t.say"])
        claimed = claim(connection, limit=9, locked_by="alpha:b:1:1:1:1", lease=MINUTE, admission=known).jobs
        assert claimed
        for job in claimed:
            end = decide_end(
                Finished(job, outcome, MINUTE), RetryPolicy(max_attempts=9), yard.clock.now(), max_losses=9
            )
            finish(connection, [end.finish])


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("how", ["retries it", "retries it after its death", "cancels it", "dismisses it"])
def test_only_a_success_a_cancel_or_a_dismissal_ends_it_and_no_retry(yard: Yard, by_hand: bool, how: str) -> None:
    yard.sync(yard.file(hourly()))
    yard.clock.set(at(1, hour=9))
    yard.tick()
    if by_hand:
        end(yard, "succeeded")
        yard.clock.advance(MINUTE)
        with yard.database.write() as connection:
            job_id = trigger(connection, "s", force=True, actor="ada", host="alpha")
    else:
        [job_id] = [job.id for job in yard.jobs()]
    for number in range(3):
        assert noticed(yard, "failing", KNOWN) == []
        run_and(yard, Lost() if number == 1 else Failed("no", "ValueError"))
    assert noticed(yard, "failing", KNOWN)
    if "death" in how or how == "dismisses it":
        run_and(yard, Failed("no", "ValueError", permanent=True))
    act = {"cancels it": operating.cancel, "dismisses it": operating.dismiss}.get(how, operating.retry)
    with yard.database.write() as connection:
        word = act.__name__
        assert act(connection, [job_id], OperatorAction(word, "ada", "alpha", None)).done == {job_id}
    if act is not operating.retry:
        assert noticed(yard, "failing", KNOWN) == []
        return
    assert noticed(yard, "failing", KNOWN), "the retry waits"
    run_and(yard, Failed("no", "ValueError"))
    assert noticed(yard, "failing", KNOWN), "the retry has failed, too"
    run_and(yard, Succeeded())
    assert noticed(yard, "failing", KNOWN) == []


def test_a_run_of_the_schedule_that_succeeds_ends_it(yard: Yard) -> None:
    yard.sync(yard.file(hourly()))
    yard.clock.set(at(5, hour=8))
    triggered(yard, 3)
    assert noticed(yard, "failing")
    yard.clock.set(at(1, hour=9))
    yard.tick()
    with yard.database.write() as connection:
        its = jobs.c.scheduled_for == at(0, hour=9)
        connection.execute(update(jobs).where(its).values(status="succeeded", finished_at=yard.clock.now()))
    assert noticed(yard, "failing") == []


# --- what stays as it was ---------------------------------------------------------------------------------------------


def test_what_is_acknowledged_of_a_schedule_stays_so_when_it_is_renamed(yard: Yard) -> None:
    yard.sync(yard.file(minutely(cron="0 * * * *"), minutely(name="other", cron="0 * * * *")))
    ours, theirs = StoredAck("schedule:s", "critical", ("s",), at(0, hour=20), "ada", None, at(0)), ("other",)
    taken = replace(ours, finding="schedule:t", rows=("t",), why="of an earlier t")
    several = replace(ours, finding="missed", severity="warning", rows=("other", "s"))
    ours_alone = replace(ours, finding="failing", rows=theirs)
    with yard.database.write() as connection:
        for ack in (ours, taken, several, ours_alone):
            put_ack(connection, ack)
    renamed = minutely(name="t", renamed_from="s", cron="0 * * * *")
    yard.sync(yard.file(renamed, minutely(name="other", cron="0 * * * *")))
    with yard.database.read() as connection:
        found = acks_in_force(connection, yard.clock.now())
    assert {key: (tuple(ack.rows), ack.why) for key, ack in found.items()} == {
        "schedule:t": (("t",), None),
        "missed": (("other", "t"), None),
        "failing": (("other",), None),
    }


def test_acks_of_schedules_that_change_places_change_places_and_others_stay(yard: Yard) -> None:
    ack = StoredAck("schedule:a", "critical", (), at(0, hour=20), "ada", "of a", at(0))
    own = {key: replace(ack, finding=key, why=key, rows=("a",)) for key in ("host:a", "dead", "config:a")}
    paused = replace(ack, finding="pause:schedule/a", why="paused", rows=("a",))
    with yard.database.write() as connection:
        for each in (ack, replace(ack, finding="schedule:b", why="of b"), paused, *own.values()):
            put_ack(connection, each)
        rename_schedules(connection, {"a": "b", "b": "a"})
    with yard.database.read() as connection:
        found = acks_in_force(connection, yard.clock.now())
    assert {key: (tuple(each.rows), each.why) for key, each in found.items()} == {
        "schedule:b": ((), "of a"),
        "schedule:a": ((), "of b"),
        "pause:schedule/b": (("b",), "paused"),
        **{key: (("a",), key) for key in own},
    }


def test_past_its_grace_it_says_what_became_of_the_occurrence_and_not_of_a_later_one(yard: Yard) -> None:
    yard.sync(yard.file(hourly(overlap="skip")))
    yard.clock.set(at(1, hour=9))
    yard.tick()
    yard.clock.set(at(1, hour=10))
    yard.tick()
    end(yard, "cancelled")
    yard.clock.set(at(5, hour=10))
    [found] = noticed(yard, "schedule")
    assert found.text.endswith("due 2026-03-02 09:00:00 UTC: job 1 is cancelled")
