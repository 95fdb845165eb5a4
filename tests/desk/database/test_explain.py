"""What ``explain`` says about runs that happened, were missed or were skipped, after real ticks on both databases."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from support.explained import (
    DAY,
    HOUR,
    MINUTE,
    MINUTELY,
    NIGHTLY,
    World,
    a_night,
    an_outage,
    brake,
    fail,
    no_room,
    retire_all,
    utc,
)
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world

from cronjobs import Snooze
from cronjobs.engine.database import tables
from cronjobs.engine.rules.occurrences import CRON_RAN
from cronjobs.engine.schedules import materialise
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases

# --- it ran -----------------------------------------------------------------------------------------------------------


def test_a_night_like_any_other(world: World) -> None:
    a_night(world)
    world.tick(utc("2026-11-20T07:15:12"))
    told = world.ask("nightly-report", "--at", "2026-11-20T02:15")
    assert told.verdict == "enqueued"
    assert told.steady == [
        (
            "nightly-report was due at 2026-11-20 02:15:00 America/New_York (07:15:00 UTC), by the definition "
            "applied on 2026-11-19 12:00:00 by host alpha (15 2 * * *)."
        ),
        "A tick of host alpha made job 1 for it, 12s late.",
        "Attempt 1 succeeded at 02:15:12 on alpha, after a moment.",
    ]
    assert told.found["at"] == "2026-11-20T07:15:00+00:00"
    assert told.facts["ledger"]["job_id"] == told.facts["job"]["id"] == 1
    assert told.facts["definition"]["applied"]["host"] == "alpha"
    assert [attempt["outcome"] for attempt in told.facts["job"]["attempts"]] == ["succeeded"]


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("02:15", "2026-11-20T07:15"),
        ("today 02:15", "2026-11-20T07:15"),
        ("yesterday 02:15", "2026-11-19T07:15"),
        ("23:00", "2026-11-20T04:00"),
        ("2026-11-20T07:15Z", "2026-11-20T07:15"),
        ("2026-11-20 02:15", "2026-11-20T07:15"),
        ("2026-11-20T08:15+01:00", "2026-11-20T07:15"),
    ],
)
def test_times_are_read_as_people_say_them(world: World, asked: str, meant: str) -> None:
    a_night(world)
    world.tick(utc("2026-11-20T07:15:12"))
    assert world.ask("nightly-report", "--at", asked).found["at"] == meant + ":00+00:00"


def test_without_a_time_it_is_the_last_occurrence(world: World) -> None:
    a_night(world)
    # nothing has run yet, so the answer is about the next occurrence
    assert world.ask("nightly-report").verdict == "pending"
    world.tick(utc("2026-11-20T07:15:12"))
    world.clock.advance(3 * HOUR)
    told = world.ask("nightly-report")
    assert (told.verdict, told.found["at"]) == ("enqueued", "2026-11-20T07:15:00+00:00")
    world.clock.advance(DAY)
    assert world.ask("nightly-report").found["at"] == "2026-11-21T07:15:00+00:00"


def test_attempts_that_failed_before_one_succeeded(world: World) -> None:
    a_night(world)
    world.plan = [fail(), fail("504 from the provider.")]
    world.tick(utc("2026-11-20T07:15:12"))
    world.tick(utc("2026-11-20T07:17:00"))
    world.tick(utc("2026-11-20T07:20:00"))
    told = world.ask("nightly-report", "--at", "02:15")
    assert told.steady[2:] == [
        "Attempt 1 failed at 02:15:12 on alpha, after a moment: ConnectionError: 503 from the provider.",
        "Attempt 2 failed at 02:17:00 on alpha, after a moment: ConnectionError: 504 from the provider.",
        "Attempt 3 succeeded at 02:20:00 on alpha, after a moment.",
    ]


def test_a_job_that_died_of_the_same_error_again_and_again(world: World) -> None:
    a_night(world, max_attempts="4")
    world.plan = [fail(f"503 number {number}") for number in range(4)]
    for minute in (15, 20, 30, 50):
        world.tick(utc(f"2026-11-20T07:{minute}:20"))
    told = world.ask("nightly-report", "--at", "02:15")
    late = ("Before attempt ", "Attempt 4 was due ")  # no tick came between these four
    assert [sentence for sentence in told.steady[2:] if not sentence.startswith(late)] == [
        "Attempts 1 to 4 failed with ConnectionError, from 02:15:20 to 02:50:20; the last error: 503 number 3.",
        (
            "Job 1 died at 02:50:20 after it failed 4 of 4 tries. It runs again only if someone types "
            '"cronjobs jobs retry 1".'
        ),
    ]


@pytest.mark.parametrize("clock", [FakeClock], indirect=True)  # a time-out takes real seconds
def test_an_attempt_that_timed_out(world: World) -> None:
    world.file("job_types: {slow: {command: [sleep, '30'], timeout: 1s}}\n", s='cron: "0 9 * * *", job: slow')
    world.tick()
    world.tick(utc("2026-03-02T09:00:05"))
    told = world.ask("s", "--at", "09:00")
    assert "Attempt 1 timed out after 1" in told
    assert told.facts["job"]["attempts"][0]["outcome"] == "timed_out"


def test_an_attempt_whose_runner_died(world: World) -> None:
    a_night(world)
    world.go(utc("2026-11-20T07:15:05"))
    world.file("run: {workers: 1}\n", nightly_report=NIGHTLY)
    no_room(world)
    job_id = world.leave_hanging()
    told = world.ask("nightly-report", "--at", "02:15")
    assert f"Job {job_id} is running now: attempt 1 on beta, begun at 02:15:05" in told
    world.clock.advance(2 * MINUTE)
    assert "its lease ended 1m ago, so the next tick should record its outcome" in world.ask(
        "nightly-report", "--at", "02:15"
    )
    no_room(world)
    world.clock.advance(timedelta(seconds=1))
    world.tick()
    told = world.ask("nightly-report", "--at", "02:15")
    assert "Attempt 1, begun at 02:15:05 on beta, was lost: its runner died or lost its lease, as recorded at" in told
    assert "Attempt 2 succeeded at 02:17:06 on alpha" in told


def test_every_and_spread(world: World) -> None:
    world.file(s="every: 10m, spread: 8m")
    world.tick()
    world.tick(utc("2026-03-02T08:10:20"))
    told = world.ask("s", "--at", "08:10")
    assert (
        "s was due at 2026-03-02 08:10:00 UTC, by the definition applied on 2026-03-02 08:00:30 by host alpha" in told
    )
    assert "(every 10m)" in told
    assert "The schedule's spread setting delays the job's start until 08:1" in told


def test_of_two_hosts_the_one_that_made_it_is_named(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.tick(host="beta")
    world.tick(utc("2026-03-02T08:01:10"))
    world.tick(utc("2026-03-02T08:02:10"), host="beta")
    assert "A tick of host alpha made job 1" in world.ask("s", "--at", "08:01")
    with world.database.write() as connection:  # as if alpha's had been killed in its first second
        killed = {"tick": "killed", "host": "alpha", "pid": 1, "version": "0", "started_at": utc("2026-03-02T08:02:09")}
        connection.execute(tables.ticks.insert().values(killed))
    assert "A tick of host beta made job 2" in world.ask("s", "--at", "08:02")


# --- it gave way ------------------------------------------------------------------------------------------------------


def test_skipped_while_an_earlier_job_waited_for_another_try(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.plan = [fail()]
    world.tick(utc("2026-03-02T08:01:10"))
    world.go(utc("2026-03-02T08:02:05"))
    no_room(world)
    world.tick(utc("2026-03-02T08:02:10"))
    told = world.ask("s", "--at", "08:02")
    assert told.verdict == "skipped"
    assert "Attempt 1 failed at 08:01:10 on alpha, after " in told
    assert "from the provider. After 1 attempt it was waiting for another try then." in told
    assert "Attempt 2 succeeded at 08:02:10 on alpha" in told
    assert told.facts["job"]["id"] == 1


def test_skipped_for_a_full_queue_names_the_command_that_makes_up_for_it(world: World) -> None:
    world.file(more="queues: {default: {max_waiting: 1}}\n", s='cron: "15 2 * * *", timezone: America/New_York')
    world.tick(utc("2026-03-03T07:10:00"))
    assert world.cronjobs("pause", "--queue", "default").code == 0
    assert world.cronjobs("enqueue", "t.work").code == 0
    world.tick(utc("2026-03-03T07:15:10"))
    told = world.ask("s")
    assert told.verdict == "skipped"
    command = "cronjobs backfill s --from 2026-03-03T07:15:00Z --to 2026-03-03T07:15:00Z"
    assert told.steady[1:] == [
        "It was skipped: queue default was at its limit of waiting jobs, 1 (max_waiting).",
        f'Nothing runs it later, unless someone runs "{command}".',
    ]
    assert "1 job enqueued" in world.cronjobs(*command.split()[1:]).out


@pytest.mark.parametrize("grace", ["", ", grace: 1m"])
def test_nobody_is_told_that_what_cron_ran_did_not_run(world: World, grace: str) -> None:
    world.file("job_types: {t.work: {retry: {max_attempts: 1}}}\n", s='cron: "15 2 * * *"' + grace)
    world.tick(utc("2026-03-02T02:10:00"))
    world.plan = [fail()]
    world.tick(utc("2026-03-02T02:15:10"))
    world.go(utc("2026-03-03T02:20:00"))
    assert materialise.skip_runs_of_cron(world.database, lambda _: None, ["s"])
    told = world.ask("s")
    assert told.verdict == "skipped"
    assert told.steady[1] == f"It was skipped: {CRON_RAN}."
    assert "backfill" not in told.text
    world.tick(utc("2026-03-03T05:00:00"))
    assert [found["kind"] for found in world.cronjobs("status", "--json").json["findings"]] == ["dead"]


def test_skipped_for_a_job_that_is_pruned_since(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.plan = [fail()]
    world.tick(utc("2026-03-02T08:01:10"))
    world.tick(utc("2026-03-02T08:02:10"))
    retire_all(world)
    world.ticks(utc("2026-03-02T08:03:10"), utc("2026-03-20T08:03:10"), every=20 * HOUR)
    told = world.ask("s", "--at", "2026-03-02T08:02")
    assert told.verdict == "skipped"
    assert "The row of job 1 is gone, so nothing records what the job was doing then." in told


def test_overlap_wait_is_coalesced_into_the_job_that_waits(world: World) -> None:
    world.file(s='cron: "* * * * *", overlap: wait')
    world.tick()
    world.plan = [fail()]
    world.tick(utc("2026-03-02T08:01:10"))
    world.tick(utc("2026-03-02T08:02:05"))
    told = world.ask("s", "--at", "08:02")
    assert told.verdict == "coalesced"
    waiting = "Job 1 of the schedule, for 08:01:00, was already waiting at 08:02:05"
    assert f"{waiting}: that job stands for it too (overlap: wait)." in told


def test_a_list_says_when_the_job_was_made_that_waited_already(world: World) -> None:
    world.file(s='cron: "* * * * *", overlap: wait')
    world.tick()
    world.plan = [fail()]
    world.tick(utc("2026-03-02T08:01:10"))
    world.tick(utc("2026-03-02T08:05:05"))
    rows = [line for line in world.say("s", "--since", "10m").out.splitlines() if " coalesced  " in line]
    assert [line.split("  ")[-1] for line in rows] == [
        "job 1, made at 08:01:10, stands for them",
        "job 1, made at 08:01:10, stands for it",
    ]
    assert "Job 1 of the schedule, for 08:01:00, was already waiting at 08:05:05" in world.ask("s", "--at", "08:03")


def put_off() -> None:
    raise Snooze(timedelta(minutes=5))


def test_a_job_that_put_itself_off_waited_for_no_try(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.plan = [put_off]
    world.tick(utc("2026-03-02T08:01:10"))
    world.tick(utc("2026-03-02T08:02:10"))
    told = world.ask("s", "--at", "08:02")
    assert told.verdict == "skipped"
    assert "Its attempt 1 had snoozed the job, and the job was still waiting then." in told
    assert "try" not in told.text


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            {"catch_up": "all", "catch_up_limit": "3"},
            "more were due than catch_up_limit allows",
        ),
        ({"catch_up_within": "10m"}, "beyond catch_up_within (10m)"),
        ({"catch_up": "none"}, "catch_up: none"),
    ],
)
def test_a_list_says_why_what_was_missed_is_not_made_up_for(world: World, more: dict[str, str], why: str) -> None:
    an_outage(world, **more)
    [row] = [line for line in world.say("s", "--from", "2026-03-03T01:57").out.splitlines() if " missed  " in line]
    assert row.endswith(f"{why}; no tick reached the database between 01:58:00 and 02:31:12")


def test_a_time_without_ticks_over_midnight_has_both_dates(world: World) -> None:
    world.file(s='cron: "0 * * * *", catch_up: none')
    world.tick(utc("2026-03-02T22:01:01"))
    world.tick(utc("2026-03-03T05:12:01"))
    gap = "o tick reached the database between 2026-03-02 22:01:01 and 2026-03-03 05:12:01"
    assert gap in world.ask("s", "--at", "2026-03-03T02:00")
    assert gap in world.say("s", "--since", "9h").out


def test_overlap_allow_runs_beside(world: World) -> None:
    world.file(s='cron: "* * * * *", overlap: allow')
    world.tick()
    world.plan = [fail()]
    world.tick(utc("2026-03-02T08:01:10"))
    world.tick(utc("2026-03-02T08:02:10"))
    assert world.ask("s", "--at", "08:02").verdict == "enqueued"


# --- no tick came -----------------------------------------------------------------------------------------------------


def test_coalesced_into_the_run_after_an_outage(world: World) -> None:
    an_outage(world)
    told = world.ask("s", "--at", "02:15")
    assert told.verdict == "coalesced"
    assert told.steady[1:] == [
        "No tick reached the database between 01:58:00 and 02:31:12.",
        "The run at 02:31:12 (job 3, for 02:31:00) stands for it and 31 more.",
        "Attempt 1 succeeded at 02:31:12 on alpha, after a moment.",
    ]
    assert told.facts["ledger"]["whole_count"] == 32


def test_the_run_that_stands_for_an_outage(world: World) -> None:
    an_outage(world)
    told = world.ask("s", "--at", "02:31")
    assert told.steady[1:3] == [
        "A tick of host alpha made job 3 for it, 12s late.",
        "That run stands for 32 other occurrences too.",
    ]


def test_a_late_run_says_why_it_was_late(world: World) -> None:
    a_night(world)
    world.tick(utc("2026-11-20T09:40:00"))
    told = world.ask("nightly-report", "--at", "02:15")
    assert told.steady[1:3] == [
        "No tick reached the database between 01:58:00 and 04:40:00.",
        "A tick of host alpha made job 1 for it at 04:40:00, 2h25m late.",
    ]


def test_missed_beyond_catch_up_within(world: World) -> None:
    an_outage(world, catch_up_within="10m")
    told = world.ask("s", "--at", "02:15")
    assert told.verdict == "missed"
    assert told.steady[1:] == [
        "No tick reached the database between 01:58:00 and 02:31:12.",
        (
            "When a tick of host alpha settled it, at 02:31:12, it was 16m old, beyond catch_up_within "
            "(10m). It was recorded as missed, with 22 more; no job was made."
        ),
    ]


def test_missed_with_catch_up_none(world: World) -> None:
    an_outage(world, catch_up="none")
    told = world.ask("s", "--at", "02:15")
    assert told.verdict == "missed"
    assert 'and "catch_up: none" makes up only for occurrences younger than 2m. It was recorded as missed' in told.text


def test_a_broken_entry_that_renames_the_schedule_is_named(world: World) -> None:
    """The explanation spoke of an entry under the old name, which the file no longer has."""
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:00"))
    world.file(new='cron: "61 * * * *", renamed_from: s')
    world.ticks(utc("2026-03-03T01:59:10"), utc("2026-03-03T02:03:10"))
    told = world.ask("s", "--at", "02:01")
    assert "left it unsettled; the schedule's entry in the file of that host was broken: minute 61 is not in" in told
    renames = (
        "The file here renames s to new, whose entry is broken, so ticks that use this file leave the schedule alone: "
    )
    assert f"{renames}cronjobs.yaml:" in told


def test_ticks_that_came_and_left_it_alone(world: World) -> None:
    world.file(**MINUTELY)
    world.ticks(utc("2026-03-03T01:56:00"), utc("2026-03-03T01:58:00"))
    world.file(s='cron: "61 * * * *"')
    world.ticks(utc("2026-03-03T01:59:10"), utc("2026-03-03T02:03:10"))
    told = world.ask("s", "--at", "02:01")
    assert told.verdict == "pending"
    broken = "the schedule's entry in the file of that host was broken: minute 61 is not in 0–59"
    assert f"A tick of host alpha has begun since then, at 02:03:10, but left it unsettled; {broken}" in told
    assert (
        "The schedule's entry in the file here is broken, so ticks that use this file leave the schedule alone:" in told
    )
    assert "minute 61 is not in 0–59" in told
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T02:10:10"))
    told = world.ask("s", "--at", "02:01")
    assert told.verdict == "coalesced"
    assert "A tick had already reached the database at 02:01:10, but that tick did not settle it; " + broken in told


def test_made_up_for_by_a_backfill(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    an_outage(world, catch_up="none")
    assert world.ask("s", "--at", "02:15").verdict == "missed"
    monkeypatch.setenv("LOGNAME", "ada")
    assert world.cronjobs("backfill", "s", "--from", "2026-03-03T02:15", "--to", "2026-03-03T02:15").code == 0
    world.clock.advance(timedelta(seconds=1))
    world.tick()
    told = world.ask("s", "--at", "02:15")
    assert told.verdict == "enqueued"
    assert told.steady[1:] == [
        "No tick reached the database between 01:58:00 and 02:31:12.",
        "It did not run when it was due: missed (no tick fired it in time (catch_up: none)).",
        "At 02:31:12, a backfill by ada made job 4 for it.",
        "Attempt 1 succeeded at 02:31:13 on alpha, after a moment.",
    ]
    found = world.ask("s", "--from", "2026-03-03T01:55").found
    assert found["summary"] == "35 occurrences: 4 enqueued, 30 missed, 1 coalesced"
    assert "job 4: succeeded; backfill by ada; before: missed" in world.say("s", "--from", "2026-03-03T01:55").out


def test_skipped_for_a_job_that_somebody_triggered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file(**MINUTELY)
    world.tick()
    monkeypatch.setenv("LOGNAME", "ada")
    assert world.cronjobs("trigger", "s").code == 0
    world.tick(utc("2026-03-02T08:01:10"))
    told = world.ask("s", "--at", "08:01")
    assert "because job 1, triggered by ada, was still unfinished (overlap: skip)." in told
    assert "Job 1 (t.work) was triggered by ada for schedule s at" in world.ask("1")


# --- a brake was on ---------------------------------------------------------------------------------------------------


def test_held_back_by_somebody_who_said_why(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file(**MINUTELY)
    world.ticks(utc("2026-03-03T01:56:00"), utc("2026-03-03T01:58:00"))
    world.go(utc("2026-03-03T01:58:20"))
    brake(world, "pause", "--all", "--why", "deploy", monkeypatch=monkeypatch)
    world.ticks(utc("2026-03-03T01:59:10"), utc("2026-03-03T02:04:10"))
    told = world.ask("s", "--at", "02:01")
    assert told.verdict == "pending"
    assert told.steady[1:] == [
        "It is held back: everything has been paused by ada since 01:58:20, until someone resumes it (why: deploy).",
        'When the pause ends, "catch_up: latest" decides what becomes of it.',
    ]
    world.go(utc("2026-03-03T02:04:30"))
    brake(world, "resume", "--all", monkeypatch=monkeypatch)
    world.ticks(utc("2026-03-03T02:05:10"), utc("2026-03-03T02:06:10"))
    told = world.ask("s", "--at", "02:01")
    assert told.verdict == "coalesced"
    assert told.steady[1] == "It was held back: everything was paused by ada from 01:58:20 to 02:04:30 (why: deploy)."
    assert told.facts["pause"]["by"] == "ada"
    assert world.ask("s", "--at", "02:06").verdict == "enqueued"


def test_skipped_by_somebody_who_said_why(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file(**MINUTELY)
    world.ticks(utc("2026-03-03T01:56:00"), utc("2026-03-03T01:58:00"))
    world.go(utc("2026-03-03T01:58:20"))
    brake(world, "pause", "--all", "--skip", "--why", "deploy", monkeypatch=monkeypatch)
    world.ticks(utc("2026-03-03T01:59:10"), utc("2026-03-03T02:02:10"))
    assert (
        "It was skipped, because everything has been paused by ada since 01:58:20, until someone resumes it "
        "(why: deploy)." in (world.ask("s", "--at", "02:01"))
    )
    world.go(utc("2026-03-03T02:02:30"))
    brake(world, "resume", "--all", monkeypatch=monkeypatch)
    world.ticks(utc("2026-03-03T02:03:10"), utc("2026-03-03T02:04:10"))
    told = world.ask("s", "--at", "02:01")
    assert told.verdict == "paused"
    assert told.steady[1:] == [
        "It was skipped, because everything was paused by ada from 01:58:20 to 02:02:30 (why: deploy)."
    ]
    assert world.ask("s", "--at", "02:03").verdict == "enqueued"


def test_a_pause_of_one_schedule_that_ended_by_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file(s='cron: "* * * * *"', other='cron: "* * * * *"')
    world.tick(utc("2026-03-03T01:58:20"))
    brake(world, "pause", "s", "--for", "2m", "--skip", monkeypatch=monkeypatch)
    world.ticks(utc("2026-03-03T01:59:10"), utc("2026-03-03T02:02:10"))
    brake(world, "pause", "s", "--for", "1h", monkeypatch=monkeypatch, who="bob")
    told = world.ask("s", "--at", "02:00")
    assert told.verdict == "paused"
    assert "the schedule was paused by ada from 01:58:20 to 02:00:20." in told
    assert world.ask("s", "--at", "02:01").verdict == "enqueued"
    assert world.ask("other", "--at", "02:00").verdict == "enqueued"


def test_due_before_the_pause_and_held_back_by_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    a_night(world)
    world.go(utc("2026-11-20T07:20:00"))
    brake(world, "pause", "--all", "--skip", monkeypatch=monkeypatch)
    world.tick(utc("2026-11-20T07:30:00"))
    told = world.ask("nightly-report", "--at", "02:15")
    assert told.verdict == "pending"
    assert "It is held back: everything has been paused by ada since 02:20:00, until someone resumes it." in told


# --- a clock was ahead ------------------------------------------------------------------------------------------------


def test_ticks_whose_clock_was_ahead_leave_no_gap_and_none_of_them_is_the_last(world: World) -> None:
    world.file(sync="every: 10m")
    world.ticks(utc("2026-03-03T00:50:00"), utc("2026-03-03T00:59:00"))
    world.ticks(utc("2026-03-03T02:00:00"), utc("2026-03-03T02:30:00"))  # true 01:00 to 01:30
    world.ticks(utc("2026-03-03T01:31:00"), utc("2026-03-03T01:38:00"))
    world.go(utc("2026-03-03T01:40:20"))
    assert [row for row in world.cronjobs("history", "--since", "2h", "--json").json if row["kind"] == "gap"] == []
    waiting = world.ask("sync", "--at", "01:40")
    assert "The last tick began at 01:38:00 on host alpha" in waiting
    assert "02:30" not in waiting.text
    world.tick(utc("2026-03-03T01:50:00"))
    [gap] = [row for row in world.cronjobs("history", "--since", "2h", "--json").json if row["kind"] == "gap"]
    assert gap["started_at"].startswith("2026-03-03T01:38:00")
    assert gap["finished_at"].startswith("2026-03-03T01:50:00")


def test_what_a_wrong_clock_ran_before_its_time_is_told_by_explain_and_by_one_mail(world: World) -> None:
    world.file(nightly='cron: "15 2 * * *"')
    world.tick(utc("2026-03-03T12:00:00"))
    ahead = world.tick(utc("2026-03-06T02:15:10"))
    assert ahead.counts.succeeded == 1
    host = world.hosts["alpha"]
    world.tick(utc("2026-03-03T12:05:00"))
    told = world.ask("nightly", "--at", "2026-03-06T02:15")
    assert told.verdict == "enqueued"
    assert "ran early at 12:05:00" in told
    assert "cronjobs trigger nightly" in told
    assert "Attempt 1 succeeded at 2026-03-06 02:15:10" in told
    said = world.ask(str(told.facts["job"]["id"]))
    assert "ran early at 12:05:00" in said
    assert "at 2026-03-06 02:15:10" in said
    assert "It was due at" not in said.text
    gaps = [row for row in world.cronjobs("history", "--since", "24h", "--json").json if row["kind"] == "gap"]
    assert not [gap for gap in gaps if (gap["finished_at"] or "") > "2026-03-04"]
    for day in (4, 5, 6, 7):
        world.tick(utc(f"2026-03-0{day}T02:15:10"))
    errors = [event for event in host.events if event.level == "error"]
    assert [event.name for event in errors] == ["schedule.ran_early"]
    assert world.ask("nightly", "--at", "2026-03-05T02:15").verdict == "enqueued"
    assert world.ask("nightly", "--at", "2026-03-07T02:15").verdict == "enqueued"


@pytest.mark.parametrize("fails", [False, True])
def test_the_mail_about_an_early_run_asks_for_no_second_one_while_the_first_has_a_try_left(
    world: World, fails: bool
) -> None:
    world.file(nightly='cron: "15 2 * * *"')
    world.tick(utc("2026-03-03T12:00:00"))
    world.plan = [fail()] if fails else []
    world.tick(utc("2026-03-06T02:15:10"))
    world.tick(utc("2026-03-03T12:05:00"))
    [mailed] = [str(event.facts["error"]) for event in world.hosts["alpha"].events if event.name.endswith("ran_early")]
    assert "trigger" not in mailed
    [command] = re.findall('"cronjobs explain (.*?)"', mailed)
    assert ('run "cronjobs trigger nightly"' in world.ask(*command.split())) == (not fails)


def test_the_grace_of_a_schedule_is_named_until_a_run_succeeds_within_it(world: World) -> None:
    world.file(strict='cron: "0 2 * * *", grace: 30m', plain='cron: "0 2 * * *"')
    world.tick(utc("2026-03-02T08:00:00"))
    world.plan = [fail()]
    world.go(utc("2026-03-03T02:10:00"))
    asked = ("strict", "--at", "2026-03-03T02:00")
    assert "Its grace of 30m ends at 02:30:00." in world.ask(*asked).steady
    world.tick(utc("2026-03-03T02:29:50"))
    world.go(utc("2026-03-03T02:30:10"))
    assert "Its grace of 30m ended at 02:30:00 without a run that succeeded." in world.ask(*asked).steady
    assert "grace" not in repr(world.ask("plain", "--at", "2026-03-03T02:00").steady)
    world.tick(utc("2026-03-03T02:32:00"))
    assert "Its grace of 30m had ended at 02:30:00." in world.ask(*asked).steady
    world.tick(utc("2026-03-04T02:00:10"))
    assert "grace" not in repr(world.ask("strict", "--at", "2026-03-04T02:00").steady)


def test_a_success_by_hand_within_the_grace_is_one(world: World) -> None:
    world.file(strict='cron: "0 2 * * *", grace: 30m, catch_up: none')
    world.tick(utc("2026-03-02T08:00:00"))
    world.tick(utc("2026-03-03T02:10:00"))
    asked = ("strict", "--at", "2026-03-03T02:00")
    assert "Its grace of 30m ends at 02:30:00." in world.ask(*asked).steady
    world.cronjobs("trigger", "strict")
    world.tick(utc("2026-03-03T02:11:00"))
    world.go(utc("2026-03-03T02:40:00"))
    assert "grace" not in repr(world.ask(*asked).steady)


def test_status_names_what_a_wrong_clock_ran_early_once_it_is_due_until_a_later_run(world: World) -> None:
    world.file(nightly='cron: "0 2 * * *"', strict='cron: "0 2 * * *", grace: 30m', due='cron: "0 0 1 1 *"')
    world.tick(utc("2026-03-02T08:00:00"))
    world.tick(utc("2026-03-03T08:03:00"))
    world.tick(utc("2026-03-02T08:06:00"))
    assert world.cronjobs("check", "--live").code == 0
    world.tick(utc("2026-03-03T02:00:10"))
    assert world.cronjobs("check", "--live").code == 1
    world.ticks(utc("2026-03-03T02:31:10"), utc("2026-03-03T02:33:10"))
    shown = " ".join(world.cronjobs("status").out.split())
    said = "nightly ran before it was due, because a clock was ahead, and no later run succeeded, since 02:00:00"
    assert f'warning missed: {said}: "cronjobs trigger nightly"' in shown
    assert (
        "strict has not run within its grace; due 2026-03-03 02:00:00 UTC: job 2 ran before that, because a clock"
        in shown
    )
    assert "nightly ran early 18h" in shown  # not "succeeded in 5h30m", by the wrong clock
    listed = world.cronjobs("explain", "nightly", "--since", "1h").out
    assert "job 1, ran early, because a clock was ahead: succeeded" in listed
    world.cronjobs("trigger", "nightly")
    world.tick()
    assert "missed" not in world.cronjobs("status").out
    assert world.cronjobs("check", "--live").code == 1
    world.ticks(utc("2026-03-04T02:00:10"), utc("2026-03-04T02:03:10"))
    assert world.cronjobs("check", "--live").code == 0


def test_status_names_the_next_occurrence_that_will_really_run(world: World) -> None:
    """A wrong clock had run an occurrence, and status still said "next in 18h" of that one."""
    world.file(nightly='cron: "0 2 * * *"', other='cron: "0 3 * * 1"')
    world.tick(utc("2026-03-02T08:00:00"))
    world.tick(utc("2026-03-03T02:03:00"))
    world.tick(utc("2026-03-02T08:06:00"))
    found = world.cronjobs("status", "--json").json
    of_each = {each["name"]: each["next_at"] for each in found["schedules"]}
    assert of_each == {"nightly": "2026-03-04T02:00:00+00:00", "other": "2026-03-09T03:00:00+00:00"}
    assert " 1d18h" in world.cronjobs("status").out


def test_what_catch_up_leaves_to_a_run_that_a_wrong_clock_made_early_says_so(world: World) -> None:
    world.file(h='cron: "0 * * * *"')
    world.tick(utc("2026-03-02T08:00:10"))
    world.tick(utc("2026-03-03T08:06:10"))
    world.tick(utc("2026-03-02T08:09:10"))
    world.tick(utc("2026-03-02T09:00:10"))
    world.ticks(utc("2026-03-03T08:07:10"), utc("2026-03-03T08:09:10"))
    told = world.ask("h", "--at", "2026-03-03T07:00")
    assert told.verdict == "missed"
    assert "No tick reached the database between 2026-03-02 09:00:10 and 2026-03-03 08:07:10." in told
    leaves = (
        "and catch_up: latest leaves it to the run for 2026-03-03T08:00:00+00:00, which ran early at 2026-03-02T08:09"
    )
    assert f"it was 1h7m old, {leaves}" in told
    assert "beyond" not in told
    listed = world.cronjobs("explain", "h", "--since", "23h").out
    assert "the reason is not recorded" not in listed
    assert "leaves it to the run for 2026-03-03T08:00:00+00:00" in " ".join(listed.split())
    text = "h missed 22 runs; h ran before it was due, because a clock was ahead, and no later run succeeded"
    assert text in " ".join(world.cronjobs("status").out.split())


def test_a_start_that_was_late_after_the_job_was_made_is_explained_as_for_the_job(world: World) -> None:
    """``explain`` of the occurrence said "2.8s late" and nothing of the ticks in which no host knew the type."""
    world.file("imports: [nowhere.at_all]\n", s='cron: "15 2 * * *", job: t.late')
    world.ticks(utc("2026-03-03T02:10:00"), utc("2026-03-03T02:17:00"))
    world.file('job_types: {t.late: {command: ["true"], timeout: 5s}}\n', s='cron: "15 2 * * *", job: t.late')
    world.tick(utc("2026-03-03T02:18:00"))
    of_job = world.ask("1").steady[1:3]
    assert "did not start it: no host knew the job type; on alpha module nowhere.at_all " in of_job[0]
    assert "No module named 'nowhere'" in of_job[0]
    assert of_job[1] == "It was due at 02:15:00 and started 3m late, at 02:18:00."
    assert world.ask("s", "--at", "02:15").steady[2:4] == of_job


def test_the_usual_time_between_two_ticks_is_no_cause(world: World) -> None:
    """With ``run: {every: 20m}`` each run came with the sentence "No tick reached the database …"."""
    world.file("run: {every: 20m}\n", s='cron: "5 * * * *"')
    world.ticks(utc("2026-03-03T01:00:00"), utc("2026-03-03T02:40:00"), every=20 * MINUTE)
    assert "No tick" not in world.ask("s", "--at", "02:05").text
    assert "no tick" not in world.cronjobs("history", "--since", "2026-03-03T01:30").out
    world.tick(utc("2026-03-03T04:20:00"))
    assert "No tick reached the database between 02:40:00 and 04:20:00." in world.ask("s", "--at", "03:05")
