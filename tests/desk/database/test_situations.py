"""Situations that a person may meet, each with what ``explain`` and ``status`` say about it."""

from __future__ import annotations

import json
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select, update
from support.explained import (
    DAY,
    HOUR,
    MINUTE,
    MINUTELY,
    World,
    a_night,
    brake,
    fail,
    no_room,
    utc,
)
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world
from support.hosts import put

from cronjobs import GiveUp, Snooze, cancel
from cronjobs.desk.insight.all_well import WELL
from cronjobs.desk.insight.kept_from_starting import kept_from_starting
from cronjobs.engine.database import tables
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs import registry
from cronjobs.engine.rules.ending import running_row
from cronjobs.engine.store import claims, leases, operating
from cronjobs.engine.store.operating import OperatorAction
from cronjobs.engine.tick.mail_throttle import Alarm
from cronjobs.engine.tick.result import noted_causes
from cronjobs.errors import EffectBusy, EffectUnknown
from cronjobs.model import TimedOut

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases

API = 'limits: {"api:": 1}\n'
ONE_DEAD = {"dead": "1 dead job that nobody has retried or dismissed"}


def status(world: World) -> str:
    return " ".join(world.cronjobs("status").out.split())


def found(world: World) -> dict[str, str]:
    return {each["key"]: each["text"] for each in world.cronjobs("status", "--json").json["findings"]}


def alarm(world: World) -> int:
    return world.cronjobs("check", "--live").code


def is_well(world: World) -> bool:
    assert found(world) == {}
    assert f"all well {WELL}" in status(world)
    return alarm(world) == 0


def hourly(world: World, **more: str) -> None:
    """The ticks stop at 21:00:10 and come back at 02:05."""
    world.file(s='cron: "0 * * * *"' + "".join(f", {key}: {value}" for key, value in more.items()))
    world.tick(utc("2026-03-02T20:30:00"))
    world.tick(utc("2026-03-02T21:00:10"))
    world.tick(utc("2026-03-03T02:05:00"))


def left(world: World, why: str, **facts: Any) -> None:
    """The newest tick has recorded that it left a job for this reason."""
    entry = {"why": why, "job_type": "t.work", "queue": "default", "jobs": 1} | facts
    with world.database.write() as connection:
        newest = select(func.max(tables.ticks.c.id)).scalar_subquery()
        connection.execute(update(tables.ticks).where(tables.ticks.c.id == newest).values(not_started=[entry]))


# --- brakes -----------------------------------------------------------------------------------------------------------


def test_a_paused_queue_with_the_job_of_a_schedule(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:10"))
    brake(world, "pause", "--queue", "default", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T01:59:10"))
    told = world.ask("s", "--at", "01:59")
    assert "Job 1 waits for its turn, due since 01:59:00" in told
    assert "queue default has been paused by ada since 01:58:10, until someone resumes it" in told
    said = "queue default is paused by ada: jobs that schedules created are waiting"
    assert found(world) == {"pause:queue/default": said}
    assert alarm(world) == 1


def test_everything_is_paused_for_three_days(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:10"))
    brake(world, "pause", "--all", monkeypatch=monkeypatch)
    world.ticks(utc("2026-03-03T14:00:10"), utc("2026-03-06T02:00:10"), every=12 * HOUR)
    told = world.ask("s", "--at", "2026-03-04T10:00")
    assert told.verdict == "pending"
    assert "It is held back: everything has been paused by ada since 2026-03-03 01:58:10, until someone" in told
    assert found(world) == {"pause:all": "everything is paused by ada: the pause holds back s"}
    assert alarm(world) == 1


@pytest.mark.parametrize("skip", [False, True])
def test_a_pause_and_after_it(world: World, monkeypatch: pytest.MonkeyPatch, skip: bool) -> None:
    world.file(**MINUTELY)
    world.ticks(utc("2026-03-03T01:57:00"), utc("2026-03-03T01:58:00"))
    brake(world, "pause", "s", *(["--skip"] if skip else []), monkeypatch=monkeypatch)
    world.ticks(utc("2026-03-03T01:59:10"), utc("2026-03-03T02:04:10"))
    held = {"pause:schedule/s": "schedule s is paused by ada: the pause holds back s"}
    assert found(world) == ({} if skip else held)
    assert alarm(world) == (0 if skip else 1)
    brake(world, "resume", "s", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T02:05:10"))
    told = world.ask("s", "--at", "02:00")
    assert told.verdict == ("paused" if skip else "coalesced")
    was = "the schedule was paused by ada from 01:58:00 to 02:04:10"
    assert (f"It was skipped, because {was}." if skip else f"It was held back: {was}.") in told
    assert is_well(world)


@pytest.mark.parametrize("scope", ["s", "--all"])
def test_a_pause_that_comes_to_skip_still_holds_back_what_was_due(
    world: World, monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    world.file(**MINUTELY)
    world.ticks(utc("2026-03-03T01:57:00"), utc("2026-03-03T01:58:00"))
    brake(world, "pause", scope, monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T01:59:10"))
    brake(world, "pause", scope, "--skip", monkeypatch=monkeypatch)
    key, paused = ("pause:all", "everything") if scope == "--all" else ("pause:schedule/s", "schedule s")
    held = {key: f"{paused} is paused by ada: the pause holds back s, which was due before the pause began"}
    assert found(world) == held
    world.tick(utc("2026-03-03T01:59:50"))
    assert (found(world), alarm(world)) == (held, 1)
    world.tick(utc("2026-03-03T02:00:10"))  # this tick records a skipped occurrence, and keeps the one from before
    assert (found(world), alarm(world)) == (held, 1)
    brake(world, "resume", scope, monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T02:00:40"))
    assert found(world) == {}
    assert world.ask("s", "--at", "01:59").verdict == "enqueued"


def test_of_two_pauses_the_one_in_force_when_the_occurrence_was_due_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.file(**MINUTELY)
    world.ticks(utc("2026-03-03T01:57:00"), utc("2026-03-03T01:58:00"))
    brake(world, "pause", "s", "--why", "first", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T02:00:10"))
    brake(world, "pause", "--all", "--why", "second", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T02:01:10"))
    first = "the schedule has been paused by ada since 01:58:00, until someone resumes it (why: first)."
    assert f"It is held back: {first}" in world.ask("s", "--at", "02:00")
    brake(world, "resume", "s", monkeypatch=monkeypatch)
    second = "everything has been paused by ada since 02:00:10, until someone resumes it (why: second)."
    told = world.ask("s", "--at", "02:00")
    assert "It is held back: the schedule was paused by ada from 01:58:00 to 02:01:1" in told
    assert f" (why: first), then {second}" in told
    world.go(utc("2026-03-03T02:01:40"))
    brake(world, "resume", "--all", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T02:01:50"))
    first = "the schedule was paused by ada from 01:58:00 to 02:01:10 (why: first)"
    assert f"It was held back: {first}, then everything was paused by ada from 02:00:10 to " in world.ask(
        "s", "--at", "02:00"
    )


def test_a_schedule_paused_with_skip_in_a_paused_queue(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file(s='cron: "* * * * *", queue: mail')
    world.tick(utc("2026-03-03T01:58:10"))
    brake(world, "pause", "--queue", "mail", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T01:59:10"))
    brake(world, "pause", "s", "--skip", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T02:00:10"))
    assert "queue mail has been paused by ada" in world.ask("s", "--at", "01:59")
    told = world.ask("s", "--at", "02:00")
    assert told.verdict == "paused"
    assert "It was skipped, because the schedule has been paused by ada since 01:59:10" in told
    said = "queue mail is paused by ada: jobs that schedules created are waiting"
    assert found(world) == {"pause:queue/mail": said}
    assert "schedule s until someone resumes it, skipping what comes due, by ada" in status(world)


def test_a_grace_that_passes_in_a_paused_queue(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file(s='cron: "0 2 * * *", queue: mail, grace: 10m')
    world.tick(utc("2026-03-03T01:58:10"))
    brake(world, "pause", "--queue", "mail", monkeypatch=monkeypatch)
    world.ticks(utc("2026-03-03T02:00:10"), utc("2026-03-03T02:12:10"))
    assert "queue mail has been paused by ada since 01:58:10" in world.ask("s", "--at", "02:00")
    cause = "job 1 waits: queue mail is paused by ada since 2026-03-03 01:58:10 UTC"
    assert found(world)["schedule:s"] == f"s has not run within its grace; due 2026-03-03 02:00:00 UTC: {cause}"
    assert found(world)["pause:queue/mail"] == "queue mail is paused by ada: jobs that schedules created are waiting"
    assert alarm(world) == 1


def test_a_grace_that_passes_while_the_job_snoozes(world: World) -> None:
    def snooze() -> None:
        raise Snooze("1h")

    world.file(s='cron: "0 2 * * *", grace: 10m')
    world.tick(utc("2026-03-03T01:58:10"))
    world.go(utc("2026-03-03T02:00:10"))
    world.plan = [snooze]
    world.ticks(utc("2026-03-03T02:00:10"), utc("2026-03-03T02:12:10"))
    cause = "due 2026-03-03 02:00:00 UTC: job 1 was postponed, and is due in 4"
    assert found(world)["schedule:s"].startswith(f"s has not succeeded within its grace; {cause}")


@pytest.mark.parametrize("overlap", ["skip", "wait"])
def test_a_run_that_later_occurrences_give_way_to_is_the_cause(world: World, overlap: str) -> None:
    world.file(s=f'cron: "0 * * * *", grace: 30m, overlap: {overlap}')
    world.tick(utc("2026-03-03T01:59:00"))
    world.go(utc("2026-03-03T02:00:00"))
    no_room(world)
    job_id = world.leave_hanging(lease=9 * HOUR)
    world.ticks(utc("2026-03-03T02:10:00"), utc("2026-03-03T03:40:00"), every=10 * MINUTE)
    cause = f"due 2026-03-03 02:00:00 UTC: job {job_id} has been running since 2026-03-03 02:00:0"
    said = found(world)["schedule:s"]
    assert said.startswith(f"s has not run within its grace; {cause}"), "later occurrences gave way or wait"
    assert said.endswith(" (1h40m)")


def test_a_pause_that_ended_while_no_tick_came(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T02:02:10"))
    brake(world, "pause", "--all", "--for", "23m", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T02:03:10"))
    world.tick(utc("2026-03-03T02:52:00"))
    told = world.ask("s", "--at", "02:48")
    assert told.verdict == "coalesced"
    assert "No tick reached the database between 02:03:10 and 02:52:00." in told
    assert "held back" not in told
    assert "everything was paused by ada from 02:02:10 to 02:25:10" in world.ask("s", "--at", "02:10")
    assert is_well(world)


def test_paused_renamed_an_outage_over_the_gap_and_resumed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file(old='cron: "30 2 * * *", timezone: America/New_York')
    world.tick(utc("2026-03-07T20:00:00"))
    brake(world, "pause", "old", "--why", "move", monkeypatch=monkeypatch)
    world.file(new='cron: "30 2 * * *", timezone: America/New_York, renamed_from: old')
    world.tick(utc("2026-03-07T21:00:00"))
    world.tick(utc("2026-03-08T06:30:00"))
    world.tick(utc("2026-03-08T08:30:00"))
    told = world.ask("new", "--at", "2026-03-08T02:30")
    assert told.verdict == "pending"
    assert "2026-03-08 02:30 does not exist in America/New_York: the schedule runs at 03:00 instead." in told
    assert "It is held back: the schedule has been paused by ada since 2026-03-07 15:00:00" in told
    assert found(world) == {"pause:schedule/new": "schedule new is paused by ada: the pause holds back new"}
    brake(world, "resume", "new", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-08T08:31:00"))
    told = world.ask("old", "--at", "2026-03-08T02:30")
    assert told.verdict == "enqueued"
    assert "old is called new now." in told
    span = "from 2026-03-07 15:00:00 to 2026-03-08 04:30:00"
    assert f"It was held back: the schedule was paused by ada {span} (why: move)." in told
    assert "Attempt 1 succeeded at 04:31:00" in told
    listed = " ".join(world.cronjobs("history", "--since", "48h").out.split())
    assert "schedule new by ada until 2026-03-08 08:30:00: move" in listed
    assert "still is" not in listed
    assert is_well(world)


# --- in each other's way ----------------------------------------------------------------------------------------------


def test_an_occurrence_that_gives_way_is_no_alarm(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.go(utc("2026-03-02T08:01:05"))
    no_room(world)
    world.leave_hanging(lease=5 * MINUTE)
    world.tick(utc("2026-03-02T08:02:10"))
    told = world.ask("s", "--at", "08:02")
    assert told.verdict == "skipped"
    assert told.steady[1:] == [
        (
            "It was skipped at 08:02:10, because job 1, made for 2026-03-02 08:01:00, was still unfinished "
            "(overlap: skip)."
        ),
        "Its attempt 1 had begun at 08:01:05, and no end is recorded.",
        told.steady[-1],
    ]
    assert told.steady[-1].startswith("Job 1 is running now: attempt 1 on beta, begun at 08:01:05, 1m5s ago; its lease")
    assert is_well(world)


def test_an_occurrence_that_found_its_queue_full(world: World) -> None:
    world.file(more="queues: {mail: {max_waiting: 1}}\n", s='cron: "15 2 * * *", queue: mail')
    world.tick(utc("2026-03-03T02:10:00"))
    assert world.cronjobs("pause", "--queue", "mail").code == 0
    assert world.cronjobs("enqueue", "t.work", "--queue", "mail").code == 0
    world.tick(utc("2026-03-03T02:15:10"))
    world.tick(utc("2026-03-03T04:15:10"))  # past the grace of a schedule that has none of its own
    assert "It was skipped: queue mail was at its limit of waiting jobs, 1 (max_waiting)." in world.ask("s")
    assert found(world) == {
        "not_run": "s has not run since it was due: queue mail was full when s was due",
        "full:mail": 'queue "mail" is full (1 of 1): it refuses new jobs',
    }
    assert alarm(world) == 1


def test_a_limit_that_is_reached_makes_no_job_late(world: World) -> None:
    world.file(API)
    world.tick(utc("2026-03-03T01:57:00"))
    put(world.database, job_type="t.work", concurrency_key="api:0")
    world.leave_hanging(lease=9 * MINUTE)
    waits = put(world.database, job_type="t.work", concurrency_key="api:1")
    world.ticks(utc("2026-03-03T01:58:00"), utc("2026-03-03T02:02:00"))
    assert 'limit "api:" is reached (1 at once)' in world.ask(str(waits))
    assert '1 due: limit "api:" is reached (1 at once)' in status(world)
    assert is_well(world)


def test_a_job_that_is_leased_long_after_its_runner_should_have_stopped_it(world: World) -> None:
    world.file(API)
    world.tick(utc("2026-03-03T01:57:00"))
    held = put(world.database, job_type="t.work", concurrency_key="api:0")
    world.leave_hanging(lease=5 * HOUR, runner_s=30)
    waits = put(world.database, job_type="t.work", concurrency_key="api:1")
    world.ticks(utc("2026-03-03T01:58:00"), utc("2026-03-03T02:01:00"))
    assert is_well(world)
    world.tick(utc("2026-03-03T02:03:00"))
    text = found(world)["ending:beta"]
    assert text.startswith(f"the runner of job {held} (t.work) on host beta should have stopped the job 5m30s ago, but")
    assert "but leases it for another 4h5" in text
    assert text.endswith(": the runner died or hangs")
    assert alarm(world) == 1
    assert f"by job {held} on beta" in world.ask(str(waits))


def test_a_limit_that_a_timed_out_thread_still_holds(world: World) -> None:
    world.file(API)
    world.tick()
    first = put(world.database, job_type="t.work", concurrency_key="api:0")
    world.leave_hanging(lease=5 * MINUTE)
    with world.database.write() as connection:
        [job] = claims.held_by(connection, "beta:boot:1:1:1:dead")
        overdue = running_row(job, TimedOut("timed out after 2s"), timedelta(seconds=2), "1")
        assert leases.record_overdue(connection, [overdue]) == {first}
    waits = put(world.database, job_type="t.work", concurrency_key="api:1")
    world.tick(utc("2026-03-02T08:01:10"))
    assert 'limit "api:" is reached (1 at once)' in world.ask(str(waits))
    told = world.ask(str(first))
    assert "Attempt 1 timed out" in told
    assert f"Job {first} is still leased for attempt 1 on beta; its lease" in told
    assert "running now" not in told
    [line] = [line for line in world.cronjobs("status").out.splitlines() if "t.work" in line and "beta" in line]
    assert "timed out, lease" in line
    assert is_well(world)


def test_in_a_limit_with_room_a_job_of_better_priority_comes_first(world: World) -> None:
    world.file(API)
    world.tick(utc("2026-03-03T01:57:00"))
    put(world.database, job_type="t.work", concurrency_key="api:0", priority=1)
    mine = put(world.database, job_type="t.work", concurrency_key="api:1", priority=9)
    world.go(utc("2026-03-03T01:57:30"))
    told = world.ask(str(mine))
    first = "1 due job with a better priority comes first"
    assert f"{first}; after it the next tick with a free worker will run it" in told
    assert is_well(world)


def test_overlap_wait_behind_a_job_that_fails(world: World) -> None:
    world.file(s='cron: "* * * * *", overlap: wait')
    world.tick(utc("2026-03-03T01:58:10"))
    world.plan = [fail(), fail()]
    world.tick(utc("2026-03-03T01:59:10"))
    world.tick(utc("2026-03-03T02:00:05"))
    told = world.ask("s", "--at", "02:00")
    assert told.verdict == "coalesced"
    assert "Job 1 of the schedule, for 01:59:00, was already waiting at 02:00:05: that job stands for it too" in told
    assert "Job 1 waits for another try (failed " in told
    assert is_well(world)


def test_jobs_with_a_better_priority_and_ticks_without_a_free_worker(world: World) -> None:
    world.file()
    world.tick(utc("2026-03-03T01:57:00"))
    put(world.database, job_type="t.work", priority=0)
    mine = put(world.database, job_type="t.work", priority=9)
    world.go(utc("2026-03-03T02:00:00"))
    no_room(world)
    left(world, "slots", jobs=2)
    told = world.ask(str(mine))
    assert "The tick that began at 02:00:00 on alpha did not start it: all workers of the tick were busy" in told
    assert "1 due job with a better priority comes first" in told
    saturated = "the ticks are saturated: all their workers were busy until the end (run.workers)"
    assert found(world) == {"late": f"2 jobs have been due for more than 2m and have not started: {saturated}"}


# --- runners ----------------------------------------------------------------------------------------------------------


def test_the_lease_of_a_runner_that_died(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.go(utc("2026-03-02T08:01:05"))
    no_room(world)
    job_id = world.leave_hanging()
    world.go(utc("2026-03-02T08:03:05"))
    assert "its lease ended 1m ago, so the next tick should record its outcome" in world.ask(str(job_id))
    assert "OVERDUE: lease ended" in status(world)
    world.tick(utc("2026-03-02T08:03:10"))
    told = world.ask(str(job_id))
    assert "Attempt 1, begun at 08:01:05 on beta, was lost: its runner died or lost its lease" in told
    world.tick(utc("2026-03-02T08:04:10"))
    assert "Attempt 2 succeeded" in world.ask(str(job_id))
    assert is_well(world)


def test_a_lost_job_that_is_not_to_run_again_is_dead_each_time(world: World) -> None:
    world.file(s='cron: "0 * * * *", max_attempts: 3')
    world.tick(utc("2026-03-02T08:59:10"))
    for hour in ("09", "10"):
        world.go(utc(f"2026-03-02T{hour}:00:05"))
        no_room(world)
        world.leave_hanging(on_lost="dead")
        world.tick(utc(f"2026-03-02T{hour}:02:10"))
        assert " after it was lost once: no automatic retry (on_lost: dead)." in world.ask("s", "--at", f"{hour}:00")
    assert found(world) == {"dead": "2 dead jobs that nobody has retried or dismissed"}
    assert alarm(world) == 1


def test_a_long_job_that_runs_within_its_lease(world: World) -> None:
    world.file()
    world.tick()
    at = world.clock.now()
    held = {"locked_by": "beta:boot:1:1:1:x", "locked_until": at + HOUR, "started_at": at, "attempts": 1}
    job_id = put(world.database, job_type="t.work", timeout_s=3600.0, status="running", **held)
    world.ticks(utc("2026-03-02T08:01:10"), utc("2026-03-02T08:20:10"))
    assert f"Job {job_id} is running now: attempt 1 on beta, begun at 08:00:30, 20m ago" in world.ask(str(job_id))
    assert is_well(world)


def test_a_long_job_for_which_no_place_is_free(world: World) -> None:
    world.file("run: {budget: 40s}\n")
    world.tick()
    job_id = put(world.database, job_type="t.work", timeout_s=3600.0)
    for minute in (1, 2, 3):
        world.go(utc(f"2026-03-02T08:0{minute}:10"))
        no_room(world)
    left(world, "long jobs")
    told = world.ask(str(job_id))
    assert "that host was already running as many long jobs as run.long_jobs allows" in told
    assert "a host runs at most 4 of these at once (run.long_jobs)" in told
    taken = "all places for long jobs are taken (run.long_jobs)"
    assert found(world) == {"late": f"1 job has been due for more than 2m and has not started: {taken}"}


def test_a_stopped_tick_and_the_next_one(world: World) -> None:
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work")
    at = world.clock.now()
    with world.database.write() as connection:
        of = {"job_id": job_id, "attempt": 1, "outcome": "interrupted", "runner": "alpha:boot:1:1:1:x"}
        times = {"started_at": at, "finished_at": at + timedelta(seconds=5), "error": "stopped by SIGTERM"}
        connection.execute(insert(tables.job_runs).values(of | times))
        connection.execute(update(tables.jobs).values(attempts=1, interruptions=1, started_at=at))
    assert f"Job {job_id} waits for another turn" in world.ask(str(job_id))
    world.tick(utc("2026-03-02T08:01:10"))
    told = world.ask(str(job_id))
    assert "Attempt 1 was interrupted at 08:00:35 on alpha, after 5s: stopped by SIGTERM." in told
    assert "Attempt 2 succeeded at 08:01:10 on alpha" in told
    assert is_well(world)


def test_two_ticks_that_a_timer_killed(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    for minute in (1, 2):
        world.tick(utc(f"2026-03-02T08:0{minute}:00"))
        with world.database.write() as connection:
            newest = select(func.max(tables.ticks.c.id)).scalar_subquery()
            connection.execute(update(tables.ticks).where(tables.ticks.c.id == newest).values(finished_at=None))
    world.tick(utc("2026-03-02T08:05:00"))
    assert world.ask("s", "--at", "08:02").verdict == "enqueued"
    said = found(world)
    assert said.keys() == {"ending:alpha"}
    assert said["ending:alpha"].endswith(
        "2 ticks of host alpha never recorded their end: they were killed or lost the database"
    )
    shown = " ".join(world.cronjobs("history", "--since", "1h").out.split())
    assert "since 07:05:00 UTC: 2 ticks that did not end," in shown
    never = "a tick of host alpha never recorded its end: it was killed or lost the database"
    assert f"08:01:00 no end {never}" in shown
    assert f"08:02:00 no end {never}" in shown
    assert alarm(world) == 1


def test_ticks_that_were_killed_while_they_imported_the_handlers(world: World) -> None:
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work")
    runner = {"runner": "a:b:1:1:1:x"}
    row: dict[str, Any] = {"host": "alpha", "boot_id": "boot", "pid": 1, "version": "1", "did": runner}
    slow = row | {"did": runner | {"importing": True}}
    rows = [slow, row, slow, slow]
    with world.database.write() as connection:
        for minute, each in enumerate(rows, 1):
            begun = {"tick": f"t{minute}", "started_at": utc(f"2026-03-02T08:0{minute}:00")}
            connection.execute(insert(tables.ticks).values(each | begun))
    world.go(utc("2026-03-02T08:04:30"))
    last = "the last tick began at 08:04:00 on alpha, and last recorded that it was importing the handlers"
    none_starts_it = "ticks are killed while they import the handlers"
    assert f"{none_starts_it} ({last})" in world.ask(str(job_id))
    assert "will run it" not in world.ask(str(job_id))
    assert "it is importing the handlers" in world.cronjobs("status").out
    world.tick(utc("2026-03-02T08:08:00"))
    killed = "they were killed or lost the database, 3 of them while importing the handlers"
    assert f"4 ticks did not start it, and never recorded an end: {killed}." in world.ask(str(job_id))
    assert none_starts_it not in world.ask(str(job_id)), "the last tick loaded them"
    assert found(world)["ending:alpha"].endswith(f"4 ticks of host alpha never recorded their end: {killed}")
    shown = " ".join(world.cronjobs("history", "--since", "1h").out.split())
    assert "08:02:00 no end a tick of host alpha never recorded its end: it was killed or lost the database 08" in shown
    assert shown.count("it was killed or lost the database, while importing the handlers") == 3
    entries = world.cronjobs("history", "--since", "1h", "--json").json
    assert [each["importing"] for each in entries if each["kind"] == "tick"] == [True, False, True, True]


def test_the_list_of_schedules_shows_no_occurrence_that_a_pause_skips_and_why_an_entry_is_disabled(
    world: World,
) -> None:
    world.file(always='cron: "0 * * * *"', while_='cron: "0 * * * *"', on='cron: "0 * * * *"')
    world.tick(utc("2026-03-02T09:01:10"))
    world.cronjobs("pause", "--skip", "always")
    world.cronjobs("pause", "--skip", "while-", "--until", "2026-03-02T12:30+00:00")
    world.file(always='cron: "0 * * * *"', while_='cron: "0 * * * *"', on='cron: "61 * * * *"')
    shown = {each["name"]: each["next"] for each in world.cronjobs("schedules", "list", "--json").json}
    assert [shown[name] for name in ("always", "on")] == [[], []]
    assert shown["while-"] == ["2026-03-02T13:00:00+00:00"]
    assert "minute 61 is not in 0–59" in world.cronjobs("schedules", "list").out


# --- what cannot run --------------------------------------------------------------------------------------------------


def test_a_module_that_cannot_be_imported(world: World) -> None:
    (world.folder / "broken_for_now.py").write_text("raise RuntimeError('no such table: shop')\n")
    world.file("imports: [broken_for_now]\n")
    job_id = put(world.database, job_type="t.away")
    for minute in (1, 2, 3):
        world.tick(utc(f"2026-03-02T09:0{minute}:10"))
    told = world.ask(str(job_id))
    assert "on alpha module broken_for_now cannot be imported: RuntimeError: no such table: shop" in told
    said = found(world)
    assert said.keys() == {"config:alpha"}
    assert "broken_for_now" in said["config:alpha"]
    assert "no such table: shop" in said["config:alpha"]
    assert "so t.away cannot run: 1 due job waits" in said["config:alpha"]
    assert alarm(world) == 1


def test_a_module_that_breaks_again_soon_after_it_was_mended(world: World) -> None:
    works = "from cronjobs import job\n\n\n@job('t.away')\ndef away() -> None: ...\n"
    world.file("imports: [off_and_on]\n", s='cron: "* * * * *", job: t.away, grace: 2m')
    for minute, code in enumerate([works, "raise RuntimeError\n"] * 2 + [""] * 4, 1):
        if code:
            (world.folder / "off_and_on.py").write_text(code)
        sys.modules.pop("off_and_on", None)
        registry._registered.pop("t.away", None)
        world.tick(utc(f"2026-03-02T09:0{minute}:10"))
    said = found(world)
    assert said.keys() == {"config:alpha"}
    assert re.search(r"so t.away cannot run: .* wait", said["config:alpha"])
    [finding] = world.cronjobs("status", "--json").json["findings"]
    assert finding["severity"] == "critical"
    assert "the last tick that loaded it began at 09:03:10 on alpha" in world.ask("--type", "t.away")


def test_a_bad_entry_is_no_finding_any_more_once_the_file_is_no_yaml(world: World) -> None:
    world.file('job_types: {t.ok: {command: ["true"], timeout: never}}\n')
    world.tick(host=Identity.here().host)
    (world.folder / "cronjobs.yaml").write_text(f"database: {json.dumps(world.url)}\nx: [\n")
    world.clock.advance(HOUR)
    shown = world.cronjobs("status", "--json", "--database-url", world.url).json["findings"]
    assert {each["key"] for each in shown} == {"no_tick", "config"}


def test_a_retried_job_of_a_type_that_nobody_knows(world: World) -> None:
    world.file()
    dead = {"status": "dead", "attempts": 1, "failures": 1, "finished_at": world.clock.now()}
    for job_type in ("t.away", "t.work"):
        put(world.database, job_type=job_type, **dead)
    answer = world.cronjobs("jobs", "retry", "1", "2")
    assert answer.code == 0
    assert 'no handler has the job type "t.away", here or on a host that ticked lately: its jobs wait' in answer.err
    assert "t.work" not in answer.err


def test_a_type_that_nobody_knows(world: World) -> None:
    world.file()
    job_id = put(world.database, job_type="t.away")
    world.tick()
    world.tick(utc("2026-03-02T08:01:10"))
    assert 'no handler or command "t.away" is registered in this configuration' in world.ask(str(job_id))
    said = 'no host that ticks has a handler or command "t.away"'
    assert found(world) == {"unresolved:t.away": f"1 due job waits: {said}"}
    assert alarm(world) == 1


@pytest.mark.parametrize(
    ("more", "schedule", "job_type"),
    [
        ("", 'cron: "0 0 1 1 *", command: ["true"]', "s"),
        ('job_types: {a.command: {command: ["true"]}}\n', 'cron: "0 0 1 1 *", job: a.command', "a.command"),
    ],
)
def test_a_type_that_was_removed_with_its_schedule(world: World, more: str, schedule: str, job_type: str) -> None:
    kept = f"{more}schedules:\n  s: {{{schedule}}}\n  kept: {{cron: '0 0 1 1 *', job: t.work}}\n"
    world.file(kept)
    world.tick(utc("2026-03-02T08:00:50"))
    assert world.cronjobs("trigger", "s").code == 0
    world.file(kept="cron: '0 0 1 1 *'")
    world.ticks(utc("2026-03-02T08:01:10"), utc("2026-03-02T08:21:10"), every=10 * MINUTE)
    why = "schedule s used this type, but the file no longer has it: put it back, or cancel the waiting jobs"
    said = f'1 due job waits: no host that ticks has a handler or command "{job_type}"; {why}'
    assert found(world) == {f"unresolved:{job_type}": said}
    assert why in world.ask("1")
    assert why in world.ask("--type", job_type)
    world.file(kept)
    world.tick(utc("2026-03-02T08:22:10"))
    assert found(world) == {}


def test_a_type_whose_entry_is_broken(world: World) -> None:
    world.file('job_types: {t.ok: {command: ["true"], timeout: never}}\n')
    job_id = put(world.database, job_type="t.ok")
    world.tick()
    told = world.ask(str(job_id))
    assert "the type's entry in the file here is broken: " in told
    assert "cronjobs.yaml:3" in told
    [said] = found(world).values()
    assert "job_types.t.ok.timeout" in said
    assert "1 due job waits" in said
    assert alarm(world) == 1


def test_a_database_of_another_environment(world: World) -> None:
    world.file("environment: staging\n", **MINUTELY)
    world.tick(utc("2026-03-03T01:58:10"))
    world.file("environment: production\n", **MINUTELY)
    world.go(utc("2026-03-03T02:01:20"))
    assert "Ticks that use the file here refuse this database: " in world.ask("s", "--at", "02:01")
    whose = 'this database belongs to project "shop", environment "staging"'
    here = (
        'this database belongs to environment "staging", but the configuration says "production": nothing was written'
    )
    assert here in world.ask("s", "--at", "02:01")
    said = found(world)
    assert said.keys() == {"foreign"}
    assert said["foreign"].startswith(
        f'{whose}, but the configuration is for project "shop", environment "production", so ticks start no jobs.'
    )
    assert alarm(world) == 1


def test_a_database_that_was_foreign_and_is_adopted(world: World) -> None:
    world.file("environment: staging\n", **MINUTELY)
    world.tick(utc("2026-03-03T01:58:10"))
    world.file("environment: production\n", **MINUTELY)
    world.go(utc("2026-03-03T02:09:00"))
    assert world.cronjobs("db", "adopt").code == 0
    world.tick(utc("2026-03-03T02:09:10"))
    told = world.ask("s", "--at", "02:05")
    assert told.verdict == "coalesced"
    assert "No tick reached the database between 01:58:10 and 02:09:10." in told
    assert is_well(world)


def test_a_file_that_was_rolled_back_while_a_job_of_the_newer_code_waits(world: World) -> None:
    world.file('job_types: {t.newer: {command: ["true"], timeout: 1s}}\n')
    put(world.database, job_type="t.newer")
    world.tick(utc("2026-03-03T01:55:00"))
    job_id = put(world.database, job_type="t.newer")
    world.file()
    world.ticks(utc("2026-03-03T01:56:00"), utc("2026-03-03T01:58:00"))
    assert (
        'no ticking host can run type "t.newer": no tick that loaded handlers has known this type since 01:56:00 '
        "(the last tick that loaded it began at 01:55:00 on alpha)"
    ) in world.ask(str(job_id))
    said = 'no host that ticks has a handler or command "t.newer"'
    assert found(world) == {"unresolved:t.newer": f"1 due job waits: {said}"}
    assert alarm(world) == 1


def test_a_schedule_of_other_environments_is_no_trouble(world: World) -> None:
    world.file("environment: staging\n", s='cron: "* * * * *", environments: [production]', t='cron: "0 3 * * *"')
    world.tick()
    told = world.ask("s")
    assert told.verdict == "not_yet_defined"
    assert told.text == 'schedule s is in the file, but only for environments other than this one ("staging").'
    assert is_well(world)


def test_a_schedule_that_nothing_fires_says_since_when_it_is_due(world: World) -> None:
    """``status`` said "due now" for hours, while the page said "due 4h ago"."""
    world.file(s='cron: "0 * * * *"')
    world.tick(utc("2026-03-03T01:58:00"))
    world.go(utc("2026-03-03T06:00:00"))
    assert "s none yet due 4h ago" in " ".join(re.sub("[^a-z0-9]", " ", status(world)).split())


def test_a_schedule_whose_entry_is_broken(world: World) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:00"))
    world.file(s='cron: "61 * * * *"')
    world.ticks(utc("2026-03-03T01:59:10"), utc("2026-03-03T02:03:10"))
    told = world.ask("s", "--at", "02:01")
    assert (
        "The schedule's entry in the file here is broken, so ticks that use this file leave the schedule alone" in told
    )
    [said] = found(world).values()
    assert "minute 61 is not in 0–59" in said
    assert said.endswith("; no tick has fired the due occurrences of s")
    assert alarm(world) == 1
    assert "no tick has fired the due occurrences of s" in world.cronjobs("check", "--live").out


@pytest.mark.parametrize(
    ("limits", "bad"), [('limits: {"api:": 0}\n', 'limit "api:"'), ('limit: {"api:": 1}\n', 'the section "limits"')]
)
def test_a_bad_limit(world: World, limits: str, bad: str) -> None:
    world.file(limits)
    job_id = put(world.database, job_type="t.work", concurrency_key="api:1")
    world.tick()
    told = world.ask(str(job_id))
    assert f'{bad} in the file is bad ("cronjobs check" says why), so the limited jobs do not start.' in told
    [said] = found(world).values()
    assert said.endswith("; 1 due job waits because of this fault")
    assert alarm(world) == 1


def test_a_command_that_is_not_there(world: World) -> None:
    world.file('job_types: {t.gone: {command: ["/nowhere/report"], timeout: 1s}}\n')
    job_id = put(world.database, job_type="t.gone")
    world.tick()
    told = world.ask(str(job_id))
    assert "Attempt 1 failed at 08:00:30 on alpha, after" in told
    assert "CommandNotFound: command not found: /nowhere/report" in told
    assert f"Job {job_id} waits for another try (failed 1 of 10)" in told
    assert found(world) == {}
    checked = world.cronjobs("check", "--live")
    assert (checked.code, "/nowhere/report" in checked.out + checked.err) == (1, True)


def test_ticks_for_another_queue(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    for minute in (1, 2, 3, 4):
        world.go(utc(f"2026-03-02T08:0{minute}:10"))
        world.hosts["alpha"].tick(queue="mail")
    told = world.ask("s", "--at", "08:01")
    assert "the options of every tick exclude the job: since 08:01:10, all ticks ran on alpha with --queue mail" in told
    said = "the options of every tick exclude it; all ticks ran with --queue mail on alpha"
    assert found(world) == {"out_of_reach:default/t.work": f'1 due job waits in queue "default", type t.work: {said}'}
    assert alarm(world) == 1


def test_ticks_that_fire_no_schedules(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    for minute in (1, 20, 40, 41):
        world.go(utc(f"2026-03-02T08:{minute:02}:10"))
        world.hosts["alpha"].tick(fire_schedules=False)
    assert "that tick fired no schedules (CRONJOBS_SCHEDULES=off on its host)" in world.ask("s", "--at", "08:40")
    said = found(world)
    assert said["schedules_off"].endswith("fired schedules: CRONJOBS_SCHEDULES is off on every host that ticks")
    assert alarm(world) == 1


def test_a_timeout_that_fits_into_no_tick(world: World) -> None:
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work", timeout_s=40.0)
    for minute in (1, 2, 3, 4):
        world.go(utc(f"2026-03-02T08:0{minute}:00"))
        world.hosts["alpha"].settings = world.settings()
        world.hosts["alpha"].tick(budget_s=20)
    told = world.ask(str(job_id))
    assert "the timeout of 40s is longer than the 20s of a whole tick (--budget)" in told
    assert "the job's timeout is too long for the tick that passed the job over" in told
    late = "its timeout is longer than a whole tick (run.budget, --budget)"
    assert found(world) == {"late": f"1 job has been due for more than 2m and has not started: {late}"}
    assert alarm(world) == 1


# --- which definition, which time -------------------------------------------------------------------------------------


def test_the_night_of_a_clock_change_is_well(world: World) -> None:
    world.file(s='cron: "30 2 * * *", timezone: America/New_York', t='cron: "30 1 * * *", timezone: America/New_York')
    world.tick(utc("2026-03-07T20:00:00"))
    world.ticks(utc("2026-03-08T06:30:10"), utc("2026-03-08T08:30:10"), every=30 * MINUTE)
    told = world.ask("s", "--at", "2026-03-08T02:30")
    assert "does not exist in America/New_York: the schedule runs at 03:00 instead" in told
    assert is_well(world)
    world.tick(utc("2026-11-01T04:59:00"))
    world.ticks(utc("2026-11-01T05:00:10"), utc("2026-11-01T07:30:10"), every=30 * MINUTE)
    told = world.ask("t", "--at", "2026-11-01T01:30-05:00")
    assert told.verdict == "not_due"
    assert "2026-11-01 01:30 comes twice in America/New_York: the schedule runs the first time only." in told
    assert is_well(world)


def test_a_schedule_that_was_edited_removed_returned_and_is_new(world: World) -> None:
    other = 'cron: "0 0 1 1 *"'
    world.file(s='cron: "15 * * * *"', other=other)
    world.tick()
    world.tick(utc("2026-03-02T08:15:10"))
    world.file(s='cron: "45 * * * *"', other=other)
    world.tick(utc("2026-03-02T08:20:00"))
    told = world.ask("s", "--at", "08:15")
    assert (told.verdict, "(15 * * * *)" in told) == ("enqueued", True)
    assert is_well(world)
    world.file(other=other)
    world.tick(utc("2026-03-02T08:30:00"))
    world.tick(utc("2026-03-02T09:00:00"))
    told = world.ask("s", "--at", "08:45")
    assert told.verdict == "retired"
    assert "a tick on host alpha retired it at 2026-03-02 08:30:00" in told
    assert is_well(world)
    world.file(s='cron: "45 * * * *"', other=other, young='cron: "50 8 * * *"')
    world.tick(utc("2026-03-02T09:10:00"))
    assert (
        "A schedule that returns to the file does not make up for the occurrences it missed in between."
    ) in world.ask("s", "--at", "08:45")
    assert "A new schedule never fires for times before it existed." in world.ask("young", "--at", "08:50")
    assert is_well(world)


def test_a_schedule_under_its_new_name_is_well(world: World) -> None:
    world.file(old='cron: "15 * * * *"')
    world.tick()
    world.tick(utc("2026-03-02T08:15:10"))
    world.file(new='cron: "15 * * * *", renamed_from: old')
    world.tick(utc("2026-03-02T08:20:00"))
    told = world.ask("old", "--at", "08:15")
    assert (told.verdict, told.steady[0]) == ("enqueued", "old is called new now.")
    assert is_well(world)


def test_two_hosts_with_two_times_for_one_schedule(world: World) -> None:
    one, other = 'cron: "10 2 * * *"', 'cron: "20 2 * * *"'
    world.file(s=one)
    world.tick(utc("2026-03-03T01:40:00"))
    world.file(s=other)
    world.tick(utc("2026-03-03T01:40:30"), host="beta")
    for minute in range(41, 60):
        world.file(s=one)
        world.tick(utc(f"2026-03-03T01:{minute}:00"))
        world.file(s=other)
        world.tick(utc(f"2026-03-03T01:{minute}:30"), host="beta")
    said = found(world)["files"]
    assert said.startswith("hosts have had different files for more than 15 minutes: ")
    assert alarm(world) == 1
    for minute in range(31):
        world.file(s=one)
        world.tick(utc(f"2026-03-03T02:{minute:02}:00"))
        world.file(s=other)
        world.tick(utc(f"2026-03-03T02:{minute:02}:30"), host="beta")
    with world.database.read() as connection:
        [made] = connection.execute(select(tables.occurrences).where(tables.occurrences.c.outcome == "enqueued")).all()
    told = world.ask("s", "--at", made.last_for.isoformat())
    assert told.verdict == "enqueued"
    assert f"({made.last_for.minute} 2 * * *)" in told


def test_a_file_that_another_host_has_replaced(world: World) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:10"))
    world.file(other='cron: "0 0 1 1 *"')
    world.tick(utc("2026-03-03T01:59:10"), host="beta")
    assert world.cronjobs("sync", "--allow-removals").code == 0
    world.file(**MINUTELY)
    world.go(utc("2026-03-03T02:00:30"))
    told = world.ask("s", "--at", "02:00")
    assert told.verdict == "retired"
    unapplied = "The file here has the schedule, but no tick has applied that file since"
    assert f"{unapplied}, so the schedule is not in force." in told
    said = found(world)["files"]
    assert said.startswith("hosts have different files: ")
    assert said.count(", which is in force, on beta") == 1, said
    assert said.count(", which is in force, on") == 1, said
    assert alarm(world) == 0


def test_a_new_host_with_an_older_file_than_the_one_in_force(world: World) -> None:
    """Its file was not applied, ever, and nothing said so once the host with the newer file was gone."""
    world.file(s='cron: "10 2 * * *"')
    world.tick(utc("2026-03-03T01:00:00"))
    world.file(s='cron: "20 2 * * *"')
    world.tick(utc("2026-03-03T01:01:00"))
    world.file(s='cron: "10 2 * * *"')
    world.ticks(utc("2026-03-03T01:02:00"), utc("2026-03-03T01:10:00"), host="beta")
    said = found(world)["files"]
    assert said.startswith("no host that ticks has the file in force: "), said
    assert said.endswith(', and its schedules stay (to apply a host\'s file, run "cronjobs sync" on that host)'), said
    assert alarm(world) == 0, "normal during a deploy"
    world.ticks(utc("2026-03-03T01:11:00"), utc("2026-03-03T01:24:00"), host="beta")
    said = found(world)["files"]
    assert said.startswith("for more than 15 minutes, the hosts that tick have not had the file in force: "), said
    assert alarm(world) == 1
    [now] = [each for each in world.cronjobs("ack", "--json").json if each["kind"] == "files"]
    assert now["since"] == "2026-03-03T01:02:00.300000+00:00"
    assert world.cronjobs("sync").code == 0
    assert "files" not in found(world)


def test_a_file_that_is_applied_before_the_hosts_have_it(world: World) -> None:
    world.file(s='cron: "10 2 * * *"')
    world.ticks(utc("2026-03-03T01:00:00"), utc("2026-03-03T01:30:00"))
    world.file(s='cron: "20 2 * * *"')
    assert world.cronjobs("sync").code == 0
    assert found(world)["files"].startswith("no host that ticks has the file in force: ")
    assert alarm(world) == 0, "a deploy is under way"
    world.tick(utc("2026-03-03T01:31:00"))
    assert "files" not in found(world)


@pytest.mark.parametrize("again", [False, True])
def test_a_file_that_was_applied_and_that_no_host_ever_gets(world: World, again: bool) -> None:
    old, new = 'cron: "10 2 * * *"', 'cron: "20 2 * * *"'
    world.file(s=old)
    world.ticks(utc("2026-03-03T01:00:00"), utc("2026-03-03T01:30:00"))
    world.file(s=new)
    assert world.cronjobs("sync").code == 0
    world.file(s=old)
    world.ticks(utc("2026-03-03T01:31:00"), utc("2026-03-03T01:46:00"))
    if again:
        world.file(s=new)
        assert world.cronjobs("sync").code == 0
    differs = "for more than 15 minutes, the hosts that tick have not had the file in force: "
    assert found(world)["files"].startswith(differs)
    assert alarm(world) == 1


def test_a_file_with_other_limits_and_nothing_else_is_in_force_once_a_host_has_it(world: World) -> None:
    world.file("limits: {'smtp:': 1}\n")
    assert world.cronjobs("sync").code == 0
    world.file("limits: {'smtp:': 2}\n")
    world.tick(utc("2026-03-03T01:00:00"))
    assert "files" not in found(world)


# --- outages and clocks -----------------------------------------------------------------------------------------------


def test_an_outage_of_five_hours_that_one_run_stands_for(world: World) -> None:
    hourly(world)
    told = world.ask("s", "--at", "2026-03-02T23:00")
    assert told.verdict == "coalesced"
    assert "No tick reached the database between 2026-03-02 21:00:10 and 2026-03-03 02:05:00." in told
    assert "stands for it and 3 more." in told
    assert is_well(world)
    assert "had its runs" not in status(world)


def test_an_outage_of_five_hours_that_nothing_makes_up_for(world: World) -> None:
    hourly(world, catch_up="none")
    told = world.ask("s", "--at", "2026-03-02T23:00")
    assert told.verdict == "missed"
    assert '"catch_up: none" makes up only for occurrences younger than 2m' in told
    assert found(world) == {"missed": "s missed 5 runs, and no later run succeeded"}
    assert alarm(world) == 1
    [missed] = world.cronjobs("status", "--json").json["findings"]
    assert missed["since"] == "2026-03-02T22:00:00+00:00"
    whole = "cronjobs backfill s --from 2026-03-02T22:00:00+00:00 --to 2026-03-03T02:00:00+00:00"
    assert missed["command"] == whole
    assert world.cronjobs(*whole.split()[1:]).out.startswith("5 jobs enqueued; 0 of")


def test_what_a_pause_held_back_for_good_names_the_pause(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file(s='cron: "0 * * * *", catch_up: none', t='cron: "0 * * * *"')
    world.ticks(utc("2026-03-02T20:30:00"), utc("2026-03-02T20:31:00"))
    brake(world, "pause", "s", "--why", "deploy", monkeypatch=monkeypatch)
    world.ticks(utc("2026-03-02T21:00:10"), utc("2026-03-02T21:05:10"))
    brake(world, "resume", "s", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-02T21:06:10"))
    assert found(world) == {"missed": "s missed 1 run that a pause had held back, and no later run succeeded"}


def test_missed_runs_are_not_to_be_made_up_for_while_a_triggered_job_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding advised a backfill, whose job would have done the work twice."""
    hourly(world, catch_up="none")
    brake(world, "trigger", "s", monkeypatch=monkeypatch)
    world.plan = [put_off(10 * MINUTE)]
    world.tick()
    [missed] = [each for each in world.cronjobs("status", "--json").json["findings"] if each["key"] == "missed"]
    assert missed["text"].endswith(f"; someone has since triggered job {missed['job_id']} of s, which has not ended")
    assert missed["command"] == f"cronjobs explain {missed['job_id']}"
    world.tick(utc("2026-03-03T02:20:00"))
    assert found(world) == {}


def test_more_owed_than_catch_up_limit(world: World) -> None:
    hourly(world, catch_up="all", catch_up_limit="2")
    told = world.ask("s", "--at", "2026-03-02T23:00")
    assert told.verdict == "missed"
    assert "more were due than catch_up_limit allows" in told
    assert "catch_up_within" not in told
    said = found(world)["dropped"]
    assert said.startswith("3 occurrences of s were dropped, because more were due than catch_up_limit allows")
    assert alarm(world) == 1


def test_a_database_that_was_away_for_four_minutes(world: World) -> None:
    world.file(**MINUTELY)
    world.ticks(utc("2026-03-03T01:57:00"), utc("2026-03-03T01:58:00"))
    world.go(utc("2026-03-03T02:02:00"))
    assert "The last tick began at 01:58:00 on host alpha." in world.ask("s", "--at", "02:00")
    [finding] = world.cronjobs("status", "--json").json["findings"]
    assert (finding["text"], finding["command"]) == (
        "no tick has reached this database for 4m",
        "cronjobs crontab show",
    )
    assert alarm(world) == 1
    world.tick(utc("2026-03-03T02:02:10"))
    assert "No tick reached the database between 01:58:00 and 02:02:10." in world.ask("s", "--at", "02:00")
    assert is_well(world)


def test_ticks_that_could_not_start(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state folder knows why while it lasts, and the row of the next tick afterwards."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    world.file(**MINUTELY)
    world.ticks(utc("2026-03-03T01:57:00"), utc("2026-03-03T01:58:00"))
    world.go(utc("2026-03-03T02:02:00"))
    file, why = world.folder / "cronjobs.yaml", "cronjobs.yaml:1:11: database: ${APP_DB} is not set"
    for minute in range(4):
        Alarm(file).worth_mailing(why, utc("2026-03-03T01:59:00") + minute * MINUTE, not_started=True)
    reason = f"ticks of this host did not start: {why} (4 times)"
    [finding] = world.cronjobs("status", "--json").json["findings"]
    assert (finding["key"], finding["command"]) == ("no_tick", "cronjobs doctor")
    assert finding["text"] == f"no tick has reached this database for 4m; {reason}"
    job_id = put(world.database, job_type="t.work")
    assert reason in world.ask(str(job_id))
    assert f"T{reason[1:]}." in world.ask("s", "--at", "02:00")
    kept = noted_causes(Alarm(file).kept_from_starting())
    assert Alarm(file).over([], utc("2026-03-03T02:02:10"))
    world.tick(utc("2026-03-03T02:02:10"))
    the_last_tick_recorded(world, kept)
    reason = f"icks of host alpha did not start: {why} (4 times)"
    told = world.ask("s", "--at", "02:00")
    assert f"No tick reached the database between 01:58:00 and 02:02:10. T{reason}." in told
    shown = world.cronjobs("history", "--since", "2026-03-03T01:50")
    assert f"reached the database between 01:58:00 and 02:02:10: t{reason}" in " ".join(shown.out.split())
    [gap] = [entry for entry in world.cronjobs("history", "--since", "02:01", "--json").json if entry["kind"] == "gap"]
    assert gap["reason"] == f"t{reason}"


@pytest.mark.parametrize(("since", "said"), [("01:59:00", True), ("02:02:30", False)])
def test_a_tick_by_hand_ended_the_outage_and_the_next_one_recorded_why(world: World, since: str, said: bool) -> None:
    """A tick in a terminal leaves that to cron's next tick. What began after the outage is not its cause."""
    world.file(**MINUTELY)
    world.ticks(utc("2026-03-03T01:57:00"), utc("2026-03-03T01:58:00"))
    world.ticks(utc("2026-03-03T02:02:10"), utc("2026-03-03T02:03:10"))
    kept = [{"ticks": 4, "since": f"2026-03-03T{since}+00:00", "why": "cronjobs.yaml:6:1: YAML: …"}]
    the_last_tick_recorded(world, kept)
    reason = "icks of host alpha did not start: cronjobs.yaml:6:1: YAML: … (4 times)"
    assert (f"T{reason}." in world.ask("s", "--at", "02:00")) is said
    shown = world.cronjobs("history", "--since", "2026-03-03T01:50", "--json").json
    assert [entry["reason"] for entry in shown if entry["kind"] == "gap"] == (
        [f"t{reason}"] if said else [None, f"t{reason}"]
    ), "the second time is shorter, and is listed because its cause is recorded"


def the_last_tick_recorded(world: World, kept: list[dict[str, Any]]) -> None:
    """Let the newest tick's row say why earlier ticks did not start."""
    with world.database.write() as connection:
        newest = select(func.max(tables.ticks.c.id)).scalar_subquery()
        row = update(tables.ticks).where(tables.ticks.c.id == newest)
        connection.execute(row.values(did={"kept_from_starting": kept}))


def test_one_tick_that_did_not_start_is_named_although_nothing_counts_as_late(world: World) -> None:
    world.file(**MINUTELY)
    world.ticks(utc("2026-03-03T01:57:00"), utc("2026-03-03T01:58:00"))
    world.tick(utc("2026-03-03T02:00:00"))
    kept = [{"ticks": 1, "since": "2026-03-03T01:59:01+00:00", "why": "the database cannot be reached"}]
    the_last_tick_recorded(world, kept)
    reason = "icks of host alpha did not start: the database cannot be reached (once)"
    assert world.ask("s", "--at", "01:59").verdict == "coalesced"
    assert f"T{reason}." in world.ask("s", "--at", "01:59")
    assert reason not in world.ask("s", "--at", "02:00")
    shown = " ".join(world.cronjobs("history", "--since", "2026-03-03T01:50").out.split())
    assert f"01:59:01 no tick reached the database between 01:59:01 and 02:00:00: t{reason}" in shown
    world.tick(utc("2026-03-03T01:59:30"), "beta")
    world.go(utc("2026-03-03T02:00:10"))
    shown = " ".join(world.cronjobs("history", "--since", "2026-03-03T01:50").out.split())
    assert f"02:00:00, while other hosts ticked: t{reason}" in shown


@pytest.mark.parametrize(("since", "said"), [("01:59:01", False), ("02:00:40", True)])
def test_what_kept_ticks_from_starting_before_a_tick_did_is_not_said_of_the_time_after_it(
    world: World, since: str, said: bool
) -> None:
    """A tick that cannot record its end leaves the cause to the next tick, which records it once more."""
    world.file(**MINUTELY)
    world.ticks(utc("2026-03-03T01:57:00"), utc("2026-03-03T01:58:00"))
    world.tick(utc("2026-03-03T02:00:00"))
    world.tick(utc("2026-03-03T02:02:30"))
    kept = [{"ticks": 1, "since": f"2026-03-03T{since}+00:00", "why": "the database cannot be reached"}]
    the_last_tick_recorded(world, kept)
    reason = "Ticks of host alpha did not start: the database cannot be reached (once)."
    assert (reason in world.ask("s", "--at", "02:01")) is said


def test_a_short_time_without_ticks_ends_at_a_tick_by_hand_and_no_other_host_ticked(world: World) -> None:
    world.file(**MINUTELY)
    world.ticks(utc("2026-03-03T01:57:00"), utc("2026-03-03T01:58:00"))
    world.tick(utc("2026-03-03T02:00:08"))  # somebody tries a tick, and cron's next tick records why none started
    world.tick(utc("2026-03-03T02:01:02"))
    kept = [{"ticks": 2, "since": "2026-03-03T01:59:05+00:00", "why": "cronjobs.yaml:6:1: YAML: …"}]
    the_last_tick_recorded(world, kept)
    shown = " ".join(world.cronjobs("history", "--since", "2026-03-03T01:50").out.split())
    assert "no tick reached the database between 01:59:05 and 02:00:08: ticks of host alpha did not start" in shown
    assert "other hosts" not in shown


@pytest.mark.parametrize(
    ("since", "started", "said"),
    [
        ("02:01:00", False, True),
        ("02:06:00", False, False),
        ("01:59:00", False, False),
        ("02:01:00", True, True),
        ("02:06:00", True, False),
        ("01:59:00", True, True),  # it lasted until after the attempt's end
    ],
)
def test_a_lost_attempt_names_what_kept_its_hosts_ticks_away(
    world: World, since: str, started: bool, said: bool
) -> None:
    world.file()
    put(world.database, job_type="t.work")
    world.go(utc("2026-03-03T02:00:00"))
    world.leave_hanging()
    world.tick(utc("2026-03-03T02:05:10"), host="beta")
    kept = [{"ticks": 4, "since": f"2026-03-03T{since}+00:00", "why": "database x did not answer"}]
    with world.database.write() as connection:
        away = {"since": kept[0]["since"], "until": "2026-03-03T02:07:00+00:00", "why": kept[0]["why"]}
        did = {"outages": [away]} if started else {"kept_from_starting": kept}
        connection.execute(update(tables.ticks).values(did=did))
    reason = "Meanwhile ticks of host beta did not start: database x did not answer (4 times)."
    if started:
        reason = "Meanwhile host beta could not use the database: database x did not answer."
    assert (reason in world.ask("1")) is said


@pytest.mark.parametrize("did", [[], {"kept_from_starting": 3}, {"kept_from_starting": [{"ticks": "x"}, 7, {}]}])
def test_a_row_that_plain_sql_wrote_says_nothing_of_ticks_before_it(did: object) -> None:
    assert kept_from_starting(did) == ()


def test_no_tick_ever_came(world: World) -> None:
    world.file()
    job_id = put(world.database, job_type="t.work")
    assert "no tick has ever reached this database" in world.ask(str(job_id))
    assert found(world)["no_tick"].startswith("no tick has ever reached this database")
    assert alarm(world) == 1


def test_a_clock_that_was_set_back_by_two_hours(world: World) -> None:
    world.file(s='cron: "0 * * * *"')
    world.tick(utc("2026-03-02T09:30:10"))
    world.tick(utc("2026-03-02T10:00:10"))
    world.ticks(utc("2026-03-02T08:01:10"), utc("2026-03-02T08:05:10"))
    told = world.ask("s", "--at", "2026-03-02T10:00")
    assert told.verdict == "enqueued"
    assert "a clock was ahead then and was later set back." in told
    assert "Attempt 1 succeeded at 10:00:10 on alpha" in told
    assert is_well(world)


def test_a_host_whose_clock_is_ahead_of_a_file_of_sqlite(world: World) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-02T08:10:10"))
    world.tick(utc("2026-03-02T08:20:40"), host="beta")
    world.tick(utc("2026-03-02T08:11:10"))
    told = world.ask("s", "--at", "2026-03-02T08:20")
    assert told.verdict == "enqueued"
    assert "a clock was ahead then and was later set back." in told
    assert is_well(world)


def test_a_host_whose_clock_is_ahead_of_the_servers(world: World) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-02T08:10:10"))
    world.tick(utc("2026-03-02T08:11:10"))
    with world.database.write() as connection:
        connection.execute(update(tables.ticks).values(did={"skew_s": 600}))
    assert "A tick of host alpha made job 1 for it, 10s late." in world.ask("s", "--at", "08:11")
    assert found(world) == {"clock:alpha": "the clock of host alpha is 10m ahead of the database's"}
    assert alarm(world) == 1


def test_a_database_restored_from_yesterday(world: World) -> None:
    world.file(s='cron: "10 2 * * *"')
    world.tick(utc("2026-03-03T01:00:10"))
    with world.database.read() as connection:
        saved = connection.execute(select(tables.schedules.c.seen_until, tables.schedules.c.next_at)).one()
    world.tick(utc("2026-03-03T02:10:10"))
    with world.database.write() as connection:
        for table in (tables.occurrences, tables.job_runs, tables.jobs):
            connection.execute(delete(table))
        connection.execute(delete(tables.ticks).where(tables.ticks.c.started_at > utc("2026-03-03T02:00:00")))
        connection.execute(update(tables.schedules).values(saved._mapping))
    world.tick(utc("2026-03-03T08:00:10"))
    told = world.ask("s", "--at", "02:10")
    assert told.verdict == "enqueued"
    assert "No tick reached the database between 01:00:10 and 08:00:10." in told
    assert is_well(world)


def test_a_host_that_is_silent_is_acknowledged_and_gone_after_a_day(world: World) -> None:
    world.file(**MINUTELY)
    for minute in range(20):
        world.tick(utc(f"2026-03-02T08:{minute:02}:10"))
        world.tick(host="beta")
    world.ticks(utc("2026-03-02T08:20:10"), utc("2026-03-02T08:50:10"), every=10 * MINUTE)
    why = '(on that host, "cronjobs doctor" says why)'
    assert found(world) == {"host:beta": f"host beta has not ticked for 31m, but other hosts have {why}"}
    assert alarm(world) == 1
    assert world.cronjobs("ack", "host:beta", "--why", "repair").code == 0
    assert alarm(world) == 0
    assert "quiet only acknowledged findings" in status(world)
    world.ticks(utc("2026-03-03T14:50:10"), utc("2026-03-03T14:52:10"))
    assert "A tick of host alpha made job" in world.ask("s", "--at", "2026-03-03T14:52")
    assert is_well(world)


# --- ends of jobs -----------------------------------------------------------------------------------------------------


def test_a_retry_that_waits_is_no_alarm(world: World) -> None:
    a_night(world)
    world.plan = [fail()]
    world.tick(utc("2026-11-20T07:15:12"))
    told = world.ask("nightly-report", "--at", "02:15")
    assert told.verdict == "enqueued"
    assert "Job 1 waits for another try (failed 1 of 10), due at 02:1" in told
    assert "0 due, 1 in the future, 1 of them retries" in status(world)
    assert is_well(world)


def test_a_job_that_is_not_due_yet(world: World) -> None:
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work", run_at=world.clock.now() + 10 * MINUTE)
    assert f"Job {job_id} waits for its turn, due at 08:10:30, in 10m." in world.ask(str(job_id))
    assert "0 due, 1 in the future" in status(world)
    assert is_well(world)


def test_a_timeout_longer_than_a_tick_needs_a_process_of_its_own_and_is_no_fault(world: World) -> None:
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work", timeout_s=55.0)
    assert "the next tick with a free worker will run it" in world.ask(str(job_id))
    assert is_well(world)


def test_a_job_that_was_cancelled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work")
    brake(world, "jobs", "cancel", str(job_id), "--why", "sent twice", monkeypatch=monkeypatch)
    told = world.ask(str(job_id))
    assert told.verdict == "cancelled"
    assert "It was cancelled by ada at 08:00:30 (why: sent twice)." in told
    assert is_well(world)


def test_a_cancel_that_was_rolled_back_leaves_no_trace(world: World) -> None:
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work")

    def change_of_mind() -> None:
        with world.database.write() as connection:
            cancel(connection, id=job_id)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        change_of_mind()
    told = world.ask(str(job_id))
    assert told.verdict == "waiting"
    assert "cancel" not in told
    assert is_well(world)


def test_a_job_that_is_running_and_asked_to_stop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work")
    world.leave_hanging(lease=5 * MINUTE)
    brake(world, "jobs", "cancel", str(job_id), monkeypatch=monkeypatch)
    told = world.ask(str(job_id))
    assert "It was asked to stop by ada at 08:00:30." in told
    assert "it was asked to stop" in told.steady[-1]
    assert "asked to stop" in status(world)
    assert is_well(world)


def test_a_cancel_that_its_handler_did_not_hear(world: World) -> None:
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work")

    def deaf() -> None:
        world.clock.advance(timedelta(seconds=5))
        with world.database.write() as connection:
            operating.cancel(connection, [job_id], OperatorAction("cancel", "ada", "alpha", "stop it"))
        world.clock.advance(timedelta(seconds=5))

    world.plan = [deaf]
    world.tick(utc("2026-03-02T08:01:10"))
    told = world.ask(str(job_id))
    assert "It was asked to stop by ada at 08:01:15 (why: stop it), but that had no effect, because attempt 1" in told
    assert "Attempt 1 succeeded at 08:01:20" in told
    assert is_well(world)


def test_deaths_that_are_acknowledged_for_eight_hours(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file("defaults: {retry: {max_attempts: 1}}\n")

    def dies(at: str) -> str:
        job_id = put(world.database, job_type="t.work", run_at=utc(at))
        world.plan = [fail()]
        world.tick(utc(at))
        return str(job_id)

    world.tick(utc("2026-03-02T08:00:10"))
    first = dies("2026-03-02T08:01:10")
    brake(world, "ack", "dead", "--for", "8h", "--why", "on it", monkeypatch=monkeypatch)
    assert (alarm(world), "acknowledged by ada" in status(world)) == (0, True)
    second = dies("2026-03-02T09:01:10")
    assert (alarm(world), found(world)) == (1, {"dead": "2 dead jobs that nobody has retried or dismissed"})
    brake(world, "jobs", "dismiss", second, monkeypatch=monkeypatch)
    assert "and was dismissed" in world.ask(second)
    assert "and was dismissed" not in world.ask(first)
    assert alarm(world) == 0
    world.tick(utc("2026-03-02T16:02:10"))
    assert (alarm(world), found(world)) == (1, ONE_DEAD)


def test_a_job_that_died_in_the_night(world: World) -> None:
    a_night(world, max_attempts="1")
    world.plan = [fail()]
    world.tick(utc("2026-11-20T07:15:12"))
    world.tick(utc("2026-11-20T13:00:12"))
    told = world.ask("nightly-report")
    assert "Attempt 1 failed at 02:15:12 on alpha, after" in told
    assert "Job 1 died at 02:15:12 after it failed 1 of 1 try." in told
    assert found(world) == ONE_DEAD
    assert "1 × ConnectionError: 503 from the provider" in status(world)
    assert alarm(world) == 1


def test_a_death_that_a_person_retried_under_a_changed_schedule(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    a_night(world, max_attempts="1")
    world.plan = [fail()]
    world.tick(utc("2026-11-20T07:15:12"))
    world.file(nightly_report='cron: "30 2 * * *", timezone: America/New_York')
    world.tick(utc("2026-11-20T08:00:00"))
    brake(world, "jobs", "retry", "1", "--why", "mended", monkeypatch=monkeypatch)
    world.tick(utc("2026-11-20T08:01:00"))
    told = world.ask("nightly-report", "--at", "02:15")
    assert "(15 2 * * *)" in told
    assert "It was retried by ada at 03:00:00 (why: mended)." in told
    assert "Attempt 2 succeeded at 03:01:00 on alpha" in told
    assert is_well(world)


def test_tries_that_ended_with_the_next_occurrence(world: World) -> None:
    world.file(s='cron: "* * * * *", retry_until: next_occurrence')
    world.tick(utc("2026-03-03T01:58:10"))
    world.plan = [fail(), fail()]
    world.ticks(utc("2026-03-03T01:59:10"), utc("2026-03-03T02:00:10"))
    told = world.ask("s", "--at", "01:59")
    assert "503 from the provider; the schedule's next occurrence comes first (retry_until: next_occurrence)" in told
    assert repr(told).count("retry_until") == 1
    assert found(world).keys() == {"dead"}
    assert alarm(world) == 1


def test_an_effect_of_which_nobody_knows(world: World) -> None:
    world.file()
    world.tick()

    def stop() -> None:
        with world.database.write() as connection:
            connection.execute(insert(tables.effects).values(key="pay:7", job_id=1, attempt=1, state="stopped"))
        raise EffectUnknown("pay:7")

    world.plan = [stop]
    put(world.database, job_type="t.work")
    world.tick(utc("2026-03-02T08:01:10"))
    told = world.ask("1")
    assert "First find out whether effect pay:7 happened" in told
    shown = " ".join(world.cronjobs("jobs", "show", "1").out.split())
    assert "First find out whether effect pay:7 happened" in shown
    assert "nobody knows whether an effect of job 1 happened" in found(world)["dead"]
    assert "1 × EffectUnknown" in status(world)


def test_an_effect_of_unknown_outcome_whose_job_died_of_another_error(world: World) -> None:
    world.file()
    world.tick()

    def begin() -> None:
        with world.database.write() as connection:
            connection.execute(insert(tables.effects).values(key="capture:3", job_id=1, attempt=1, state="begun"))
        raise ConnectionError("503 from the provider")

    def give_up() -> None:
        raise GiveUp("the order was cancelled")

    world.plan = [begin, give_up]
    put(world.database, job_type="t.work")
    world.tick(utc("2026-03-02T08:01:10"))
    waits = "Nobody knows whether its effect capture:3 happened; if you find out before its next try, record the answer"
    assert waits in world.ask("1")
    world.tick(utc("2026-03-02T08:05:10"))
    settle = "cronjobs effects settle capture:3 done"
    told = world.ask("1")
    assert "its handler raised GiveUp, which ends all tries. It does not run again by itself." in told
    assert told.steady[-2:] == [
        (
            "Nobody knows whether its effect capture:3 happened; if you find out, record the answer first: "
            f'"{settle}" (or not-done).'
        ),
        'Then "cronjobs jobs retry 1" runs it again.',
    ]
    shown = " ".join(world.cronjobs("jobs", "show", "1").out.split())
    assert f'record the answer first: "{settle}" (or not-done).' in shown
    assert found(world) == {
        "dead": "1 dead job that nobody has retried or dismissed; nobody knows whether an effect of job 1 happened "
        '(for details, run "cronjobs explain 1")'
    }
    assert f"Find out, then run: {settle} (or not-done)" in world.cronjobs("jobs", "dismiss", "1").out
    assert world.cronjobs("effects", "settle", "capture:3", "not-done", "--why", "no capture there").code == 0
    settled = "that effect capture:3 was not done (why: no capture there), so the next attempt to reach the effect may"
    assert f"{settled} perform it." in world.ask("1")
    history = world.cronjobs("history").out
    assert "1 effect settled" in history
    assert "settled      effect capture:3 of t.work #1 as not done, by " in history
    assert "First find out" not in world.ask("1")


def put_off(by: timedelta) -> Any:
    def raise_it() -> None:
        raise Snooze(by)

    return raise_it


def test_a_short_snooze_is_no_alarm(world: World) -> None:
    a_night(world)
    world.plan = [put_off(5 * MINUTE)]
    world.tick(utc("2026-11-20T07:15:12"))
    told = world.ask("nightly-report", "--at", "02:15")
    assert "Attempt 1 ended at 02:15:12 on alpha, after 0s: the handler asked to run again later." in told
    assert "Job 1 waits for another turn, due at 02:20:12" in told
    assert is_well(world)


def test_a_job_that_another_jobs_effect_puts_off_names_that_job(world: World) -> None:
    """Its handler asked for nothing."""
    a_night(world)

    def busy() -> None:
        raise EffectBusy("pay:7", 4711)

    world.plan = [busy, busy, busy]
    world.tick(utc("2026-11-20T07:15:12"))
    told = world.ask("nightly-report", "--at", "02:15")
    because = "job 4711 was performing the effect pay:7"
    assert f"Attempt 1 ended at 02:15:12 on alpha, after 0s: {because}, so this job waits for another turn." in told
    assert "handler asked" not in str(told)
    shown = world.cronjobs("jobs", "show", "1", "--json").json
    assert (shown["last_error"], shown["last_failed_at"]) == (None, None), "nothing has failed"
    assert (shown["runs"][0]["error_type"], shown["runs"][0]["error"]) == ("EffectBusy", because)
    world.tick(utc("2026-11-20T07:16:12"))
    world.tick(utc("2026-11-20T07:17:12"))
    told = world.ask("nightly-report", "--at", "02:15")
    assert f"Attempts 1 to 3 were put off, from 02:15:12 to 02:17:12; the last reason: {because}." in told


def test_a_nightly_job_that_snoozes_for_ever(world: World) -> None:
    a_night(world)
    world.plan = [put_off(26 * HOUR)] * 9
    for day in range(20, 25):
        world.ticks(utc(f"2026-11-{day}T07:15:12"), utc(f"2026-11-{day}T23:15:12"), every=4 * HOUR)
    told = world.ask("nightly-report", "--at", "2026-11-23T02:15")
    assert told.verdict == "skipped"
    assert "had snoozed the job, and the job was still waiting then." in told
    said = found(world)["not_run"]
    assert said.startswith(
        "nightly-report has not succeeded since it was due: job 1 of nightly-report was postponed, and is"
    )
    assert alarm(world) == 1


def test_what_a_backfill_a_trigger_and_a_spread_make_is_well(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file(s='cron: "0 * * * *", catch_up: none', t="every: 10m, spread: 4m")
    world.tick(utc("2026-03-02T20:30:00"))
    world.tick(utc("2026-03-02T22:05:00"))
    assert found(world)["missed"].startswith("s missed 2 runs,")
    at = "2026-03-02T22:00"
    brake(world, "backfill", "s", "--from", at, "--to", at, monkeypatch=monkeypatch)
    brake(world, "trigger", "t", monkeypatch=monkeypatch)
    world.ticks(utc("2026-03-02T22:06:00"), utc("2026-03-02T22:16:00"))
    assert "At 22:05:00, a backfill by ada made job" in world.ask("s", "--at", at)
    assert "schedule's spread setting delays the job's start until 22:1" in world.ask("t", "--at", "2026-03-02T22:10")
    assert is_well(world)


def test_busy_and_healthy_is_no_alarm(world: World) -> None:
    world.file(s='cron: "*/5 * * * *", grace: 4m', t="every: 10m, spread: 4m", u='cron: "* * * * *", overlap: wait')
    world.tick()
    for minute in range(1, 41):
        world.plan = [fail()] if minute % 6 == 1 else []
        world.tick(utc(f"2026-03-02T08:{minute:02}:10"))
        assert minute % 8 or found(world) == {}, minute
    summary = world.ask("u", "--from", "2026-03-02T08:01", "--to", "2026-03-02T08:35").found["summary"]
    assert summary.startswith("35 occurrences: ")
    assert not {"skipped", "missed", "pending"} & set(summary.split())
    assert alarm(world) == 0


def test_a_job_that_a_lingering_tick_ran_at_once_was_not_left_by_it(world: World) -> None:
    world.file()
    world.tick(utc("2026-03-02T08:01:10"))
    world.go(utc("2026-03-02T08:01:30"))
    at = world.clock.now()
    ended = {"status": "succeeded", "attempts": 1, "started_at": at, "finished_at": at}
    job_id = put(world.database, job_type="t.work", **ended)
    with world.database.write() as connection:
        connection.execute(update(tables.ticks).values(finished_at=utc("2026-03-02T08:02:00")))
        times = {"started_at": at, "finished_at": at, "runner": "alpha:boot:1:1:1:x"}
        run = {"job_id": job_id, "attempt": 1, "outcome": "succeeded"}
        connection.execute(insert(tables.job_runs).values(run | times))
    world.go(utc("2026-03-02T08:02:10"))
    told = world.ask(str(job_id))
    assert "It was due at 08:01:30 and started on time, at 08:01:30." in told
    assert "Attempt 1 succeeded at 08:01:30 on alpha" in told
    assert "did not start it" not in told
    assert is_well(world)


# --- names and numbers ------------------------------------------------------------------------------------------------


def test_a_pruned_job_and_a_number_of_nothing(world: World) -> None:
    world.file("retention: {succeeded: 1d}\n")
    world.tick()
    job_id = put(world.database, job_type="t.work", idempotency_key="invoice:42")
    plain = put(world.database, job_type="t.work")
    put(world.database, job_type="t.work", run_at=utc("2027-03-02T08:00:00"))
    world.tick(utc("2026-03-02T08:01:10"))
    world.ticks(utc("2026-03-05T08:00:00"), utc("2026-03-06T08:00:00"), every=12 * HOUR)
    assert world.ask(str(plain), code=1).verdict == "unknown"
    assert f"there is no job {plain}" in world.say(str(plain)).err
    assert "pruned" in world.say(str(plain)).err
    assert "there is no job 4711" in world.say("4711").err
    assert "the highest id" in world.say("4711").err
    assert f"Job {job_id} succeeded at 08:01:10; its attempts are pruned." in world.ask(str(job_id))
    assert "--key" in world.say("invoice:42").err
    assert is_well(world)


def refuse() -> None:
    raise GiveUp("no such customer")


def test_a_death_that_retention_removed_before_anybody_dealt_with_it(world: World) -> None:
    world.file("retention: {dead: 1d}\n", nightly='cron: "0 2 * * *"', other='cron: "0 0 1 1 *"')
    world.tick()
    world.plan = [refuse]
    world.tick(utc("2026-03-03T02:00:10"))
    put(world.database, job_type="t.shown", status="dead", finished_at=utc("2026-03-03T02:00:00"))
    put(world.database, job_type="t.shown", status="dead", finished_at=utc("2026-03-03T02:00:00"))
    world.cronjobs("jobs", "dismiss", "3")
    world.ticks(utc("2026-03-05T03:00:00"), utc("2026-03-05T05:00:00"), every=HOUR)

    def shown(*options: str) -> str:
        return " ".join(world.cronjobs("history", "--since", "7d", *options).out.split())

    gone = "removed t.work #1 by retention, although the job was dead and nobody had dealt with it"
    assert gone in shown()
    assert "removed t.shown #2 by retention" in shown()
    assert "2 dead jobs removed by retention" in shown()
    assert "1 dead job removed by retention" in shown("--schedule", "nightly")
    assert gone in shown("--schedule", "nightly", "--outcome", "dead")
    assert "retention" not in shown("--schedule", "other")
    assert "retention" not in shown("--outcome", "missed")
    assert "t.work #1" not in shown("--type", "t.shown")
    [entry] = world.cronjobs("history", "--since", "7d", "--type", "t.work", "--outcome", "dead", "--json").json
    assert (entry["kind"], entry["job_id"], entry["jobs"]) == ("pruned", 1, 1)


def test_an_occurrence_whose_job_is_pruned(world: World) -> None:
    world.file("retention: {succeeded: 1d}\n", s='cron: "0 9 * * *"')
    world.tick()
    world.tick(utc("2026-03-02T09:00:10"))
    for day in range(3, 6):
        world.tick(utc(f"2026-03-0{day}T09:00:10"))
    told = world.ask("s", "--at", "2026-03-02T09:00")
    assert told.steady[1:] == [
        "A tick of host alpha made job 1 for it, 10s late.",
        (
            "Its row is gone: it succeeded and was pruned (succeeded jobs are kept for 1d, others for 90d), unless "
            "someone deleted the row."
        ),
    ]
    assert is_well(world)


def test_a_job_whose_row_someone_deleted(world: World) -> None:
    world.file(s='cron: "0 9 * * *"')
    world.tick()
    world.tick(utc("2026-03-02T09:00:10"))
    with world.database.write() as connection:
        connection.execute(tables.jobs.delete())
    for asked in (("s", "--at", "09:00"), ("1",)):
        assert world.ask(*asked).steady[-1] == (
            "Its row is gone, although retention cannot have pruned it yet (succeeded jobs are kept for 14d, others "
            "for 90d): someone deleted it, or the retention was shorter until recently; how it ended is no longer "
            "recorded."
        )


def test_a_key_that_was_spent_and_is_forgotten(world: World) -> None:
    world.file()
    world.tick()
    put(world.database, job_type="t.work", idempotency_key="invoice:42")
    world.tick(utc("2026-03-02T08:01:10"))
    assert "Attempt 1 succeeded" in world.ask("--key", "invoice:42")
    world.ticks(utc("2027-03-10T08:00:00"), utc("2027-03-12T08:00:00"), every=DAY)
    assert 'no job has the idempotency key "invoice:42"' in world.say("--key", "invoice:42").err
    assert "365d" in world.say("--key", "invoice:42").err
    put(world.database, job_type="t.work", idempotency_key="invoice:42")
    assert "with the idempotency key invoice:42" in world.ask("--key", "invoice:42")
    assert is_well(world)


def test_schedules_list_names_the_next_run_that_status_names(world: World) -> None:
    world.file(s='cron: "0 * * * *"')
    world.tick(utc("2026-03-02T08:00:10"))
    world.tick(utc("2026-03-02T09:59:10"))  # this clock is an hour ahead
    world.tick(utc("2026-03-02T10:00:10"))
    world.go(utc("2026-03-02T09:01:10"))
    assert next_of(world) == (["2026-03-02T11:00:00+00:00"], "in 1h59m")
    world.go(utc("2026-03-02T13:01:10"))
    assert next_of(world) == (["2026-03-02T11:00:00+00:00"], "due 2h1m ago")
    assert "next       11:00:00 UTC, due 2h1m ago" in world.cronjobs("schedules", "show", "s").out


def next_of(world: World) -> tuple[list[str], str]:
    [listed] = world.cronjobs("schedules", "list", "--json").json
    line = world.cronjobs("schedules", "list").out.splitlines()[1]
    [said] = re.findall(r"active  (.*?)  ", line)
    assert said.removeprefix("in ") in world.cronjobs("status").out
    return listed["next"], said


def test_schedules_show_says_until_when_a_pause_lasts_and_that_it_skips(world: World) -> None:
    world.file(s='cron: "0 * * * *"', t='cron: "0 * * * *"')
    world.tick(utc("2026-03-02T08:00:10"))
    pause = ("pause", "--why", "stocktaking")
    assert world.cronjobs(*pause, "s", "--skip", "--until", "2026-03-02T12:00").code == 0
    assert world.cronjobs(*pause, "t").code == 0
    said = world.cronjobs("schedules", "show", "s").out
    assert ": stocktaking (until 12:00:00; what comes due is skipped)\n" in said
    assert ": stocktaking (until someone resumes it)\n" in world.cronjobs("schedules", "show", "t").out
