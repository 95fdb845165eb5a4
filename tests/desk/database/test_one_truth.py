"""Commands that show things say nothing false, and do not contradict each other."""

from __future__ import annotations

import pytest
from support.explained import HOUR, MINUTE, World, fail, utc
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world
from support.hosts import put

from cronjobs import Snooze
from cronjobs.engine.database import tables

pytestmark = pytest.mark.either


def test_an_exit_status_is_said_once_wherever_errors_are_shown(world: World) -> None:
    command = "[sh, -c, 'echo no space left; exit 3']"
    retry = "retry: {max_attempts: 4, delays: [1m]}"
    world.file(f"job_types: {{backup: {{command: {command}, {retry}}}}}\n", nightly='cron: "15 2 * * *", job: backup')
    world.tick(utc("2026-03-03T02:10:00"))
    world.tick(utc("2026-03-03T02:15:00"))
    [shown] = [line for line in world.cronjobs("explain", "1").out.splitlines() if line.startswith("Attempt 1 failed")]
    assert shown.endswith(": exit status 3: no space left.")
    world.ticks(utc("2026-03-03T02:17:00"), utc("2026-03-03T02:23:00"))
    for command in ("explain 1", "history --since 2h", "jobs show 1", "jobs list --group-by error", "status"):
        out = world.cronjobs(*command.split()).out
        assert "exit status 3: no space left" in out, command
        assert "exit-3" not in out, command


def test_history_says_that_a_clock_was_ahead_and_what_ran_early(world: World) -> None:
    world.file(nightly='cron: "15 2 * * *"', sync="every: 10m, catch_up: none")
    world.ticks(utc("2026-03-03T00:58:00"), utc("2026-03-03T00:59:00"))
    for at in ("02:00", "02:10", "02:15", "02:30"):  # true 01:00 to 01:30
        world.tick(utc(f"2026-03-03T{at}:00"))
    world.ticks(utc("2026-03-03T01:31:00"), utc("2026-03-03T01:33:00"))
    world.go(utc("2026-03-03T01:33:20"))
    shown = " ".join(world.cronjobs("history", "--since", "1h").out.split())
    assert "1 clock set back" in shown
    assert (
        "01:31:00 clock was at least 59m ahead, and was set back; events between 01:31:00 and 02:30:00 may have "
        "happened up to 59m earlier"
    ) in shown
    assert (
        "02:15:00 ran early nightly (job 3): at 01:31:00 or before, because of a wrong clock that showed 02:15:00"
        in shown
    )
    assert "4 ran early" in shown
    only = world.cronjobs("history", "--since", "1h", "--outcome", "early", "--json").json
    assert [(row["schedule"], row["outcome"]) for row in only] == [
        ("sync", "early"),
        ("sync", "early"),
        ("nightly", "early"),
        ("sync", "early"),
    ]
    world.ticks(utc("2026-03-03T01:34:00"), utc("2026-03-03T02:33:00"), 3 * MINUTE)
    again = [row for row in world.cronjobs("history", "--since", "10m", "--json").json if row["kind"] == "clock"]
    assert [row["started_at"][:19] for row in again] == ["2026-03-03T01:31:00"]


def test_a_tick_that_was_frozen_is_no_clock_that_was_set_back(world: World) -> None:
    world.file(sync="every: 10m")
    world.ticks(utc("2026-03-03T01:00:00"), utc("2026-03-03T01:20:00"))
    with world.database.write() as connection:
        frozen = {"started_at": utc("2026-03-03T01:01:00"), "finished_at": utc("2026-03-03T01:20:30")}
        fixed = {"tick": "frozen", "host": "beta", "pid": 7, "version": "0.2.0"}
        connection.execute(tables.ticks.insert().values(**fixed, **frozen))
    world.tick(utc("2026-03-03T01:21:00"))
    found = world.cronjobs("history", "--since", "1h", "--json").json
    assert [row for row in found if row["kind"] == "clock"] == []


def test_a_backfill_leaves_to_the_ticks_what_they_have_not_settled(world: World) -> None:
    world.file(hourly='cron: "0 * * * *", catch_up: none')
    world.ticks(utc("2026-03-03T01:54:00"), utc("2026-03-03T01:55:00"))
    world.ticks(utc("2026-03-03T03:30:00"), utc("2026-03-03T03:31:00"))
    till_now = world.cronjobs("backfill", "hourly", "--from", "02:00", "--to", "NOW", "--dry-run")
    assert "2 jobs would be enqueued" in till_now.out
    assert "settled" not in till_now.err
    assert "existed" not in till_now.out
    before = world.cronjobs("backfill", "hourly", "--from", "01:00", "--to", "NOW", "--dry-run").out
    said = "1 of these jobs is for a time before hourly existed, or when it was retired"
    assert said in " ".join(before.split())
    till_tomorrow = world.cronjobs("backfill", "hourly", "--from", "02:00", "--to", "2026-03-04")
    assert "2 jobs enqueued" in till_tomorrow.out
    assert "Ticks have settled hourly only up to then, and will run the later" in " ".join(till_tomorrow.err.split())


def test_what_was_missed_stays_in_the_history_after_a_backfill(world: World) -> None:
    world.file(hourly='cron: "0 * * * *", catch_up: none')
    world.ticks(utc("2026-03-03T01:54:00"), utc("2026-03-03T01:55:00"))
    world.ticks(utc("2026-03-03T03:30:00"), utc("2026-03-03T03:31:00"))
    before = " ".join(world.cronjobs("history", "--since", "3h").out.split())
    why = "no tick fired it in time (catch_up: none)"
    assert f"03:00:00 missed hourly, 2 occurrences from 02:00:00 to 03:00:00: {why}" in before
    for jobs in (2, 0):  # the jobs of the first backfill wait when the second one comes
        filled = world.cronjobs("backfill", "hourly", "--from", "02:00", "--to", "03:00")
        assert f"{jobs} jobs enqueued; {2 - jobs} of the occurrences in the range already had a job" in filled.out
    world.ticks(utc("2026-03-03T03:32:00"), utc("2026-03-03T03:34:00"))
    after = " ".join(world.cronjobs("history", "--since", "3h").out.split())
    assert (
        f"03:00:00 missed hourly, 2 occurrences from 02:00:00 to 03:00:00: {why}; later enqueued by a backfill by"
        in after
    )
    assert "2 missed" in after
    assert "2 jobs backfilled" in after
    found = world.cronjobs("history", "--since", "3h", "--outcome", "missed", "--json").json
    assert [row["last_for"][:19] for row in found] == ["2026-03-03T02:00:00", "2026-03-03T03:00:00"]
    assert [row["job_id"] for row in found] == [1, 2]


def test_what_a_full_queue_skipped_keeps_its_reason_in_the_counts_after_a_backfill(world: World) -> None:
    world.file(hourly='cron: "0 * * * *"')
    world.tick(utc("2026-03-03T01:54:00"))
    world.ticks(utc("2026-03-03T02:00:00"), utc("2026-03-03T03:00:00"), HOUR)
    with world.database.write() as connection:
        connection.execute(tables.jobs.delete())
        full = {"outcome": "skipped", "job_id": None, "reason": "full: queue capped was at its limit"}
        connection.execute(tables.occurrences.update().values(**full))
    skipped = "skipped hourly ×2, full: queue capped was at its limit: "
    assert skipped in " ".join(world.cronjobs("history").out.split())
    for at in ("02:00", "03:00"):
        assert world.cronjobs("backfill", "hourly", "--from", at, "--to", at).code == 0
        assert skipped in " ".join(world.cronjobs("history").out.split())


def an_hour_ahead(world: World) -> None:
    """The clock shows 02:00 to 02:30 from 01:00 to 01:30, and is right from 01:31 on; ticks each few minutes."""
    world.file(nightly='cron: "15 2 * * *"', sync="every: 10m")
    world.ticks(utc("2026-03-03T00:56:00"), utc("2026-03-03T00:59:00"))
    world.ticks(utc("2026-03-03T02:00:00"), utc("2026-03-03T02:30:00"), 5 * MINUTE)
    world.ticks(utc("2026-03-03T01:31:00"), utc("2026-03-03T01:39:00"), 2 * MINUTE)
    world.go(utc("2026-03-03T01:40:20"))


def test_explain_does_not_blame_ticks_for_what_a_clock_ahead_had_settled(world: World) -> None:
    an_hour_ahead(world)
    told = world.ask("sync", "--at", "01:10")
    assert told.verdict == "coalesced"
    assert "The tick that settled it had a clock that was ahead and showed 02:00:00." in told
    assert "the reason is not recorded" not in told.text
    assert "No tick" not in told.text
    listed = world.say("sync", "--from", "01:00", "--to", "01:20").out
    assert "the reason is not recorded" not in listed
    job = world.ask("4")
    assert "ran early at 01:31:00 or before, because of a wrong clock that showed 02:20:00." in job


def test_status_says_of_a_run_that_a_clock_ahead_made_that_it_was_early(world: World) -> None:
    an_hour_ahead(world)
    world.ticks(utc("2026-03-03T01:41:00"), utc("2026-03-03T02:19:00"), 2 * MINUTE)
    world.go(utc("2026-03-03T02:20:20"))
    lines = world.cronjobs("status").out.splitlines()
    [nightly] = [line.split() for line in lines if line.startswith("nightly ")]
    assert nightly[1:4] == ["ran", "early", "49m"]  # by 01:31, when the first tick by the right clock found it
    assert any("ran early" in line and "succeeded" in line for line in lines)  # what the strip means
    shown = {each["name"]: each for each in world.cronjobs("status", "--json").json["schedules"]}
    last = shown["nightly"]["last"]
    assert (last["outcome"], last["at"][:19], last["due_at"][:19]) == (
        "early",
        "2026-03-03T01:31:00",
        "2026-03-03T02:15:00",
    )
    assert shown["nightly"]["strip"] == ["early"]
    assert world.cronjobs("trigger", "nightly").code == 0
    world.tick(utc("2026-03-03T02:21:00"))
    [nightly] = [line.split() for line in world.cronjobs("status").out.splitlines() if line.startswith("nightly ")]
    assert nightly[1] == "succeeded"


def test_the_first_occurrence_after_a_skipped_hour_is_the_next_one_of_it(world: World) -> None:
    world.file(half='cron: "0,30 * * * *", timezone: Europe/Berlin')
    world.ticks(utc("2027-03-28T00:29:00"), utc("2027-03-28T02:05:00"), 5 * MINUTE)
    told = world.ask("half", "--at", "2027-03-28T02:30")
    assert told.verdict == "not_due"
    assert "The previous occurrence was 2027-03-28 01:30:00, the next one was 2027-03-28 03:00:00." in told


def test_history_tells_the_two_passes_of_a_doubled_hour_apart(world: World) -> None:
    world.file("timezone: Europe/Berlin\n", half="every: 30m")
    for at in ("2026-10-24T23:29", "2026-10-25T00:30", "2026-10-25T01:30", "2026-10-25T02:00"):
        world.tick(utc(f"{at}:00"))
    shown = [
        " ".join(line.split()[:3]) for line in world.cronjobs("history", "--since", "3h", "--all").out.splitlines()
    ]
    assert [line for line in shown if " succeeded" in line] == [
        "02:30:00 +0200 succeeded",
        "02:30:00 +0100 succeeded",
        "03:00:00 succeeded t.work",
    ]


def test_what_stands_for_others_says_that_it_died_and_status_that_this_was_dismissed(world: World) -> None:
    world.file(more="job_types: {t.work: {retry: {max_attempts: 1}}}\n", bill='cron: "0 * * * *"')
    world.tick(utc("2026-03-03T01:55:00"))
    world.plan = [fail()]
    world.ticks(utc("2026-03-03T04:02:00"), utc("2026-03-03T04:04:00"))
    listed = world.say("bill", "--from", "02:00", "--to", "04:03").out
    assert "stands for them: dead" in listed, listed
    assert "1 in all, 1 in the last 24 h\n" in world.cronjobs("status").out
    assert world.cronjobs("jobs", "dismiss", "1", "--why", "known").code == 0
    shown = world.cronjobs("status").out
    assert "no job is late, no dead job needs attention" in shown
    assert "1 in all, 1 in the last 24 h, dismissed\n" in shown
    assert "stands for them: dead" in world.say("bill", "--from", "02:00", "--to", "04:03").out


@pytest.mark.parametrize("every", ["1h", "2m"])
@pytest.mark.parametrize("end", ["fails", "snoozes"])
def test_a_job_that_a_clock_ahead_made_for_later_is_reported_while_others_give_way_to_it(
    world: World, every: str, end: str
) -> None:
    def snooze() -> None:
        raise Snooze("2h")

    true, ahead = utc("2026-03-03T02:01:00"), utc("2026-04-12T05:00:30")
    world.file(s=f"every: {every}")
    world.tick(true)
    world.plan = [fail() if end == "fails" else snooze]
    world.tick(ahead)
    [job_id] = [job["id"] for job in world.cronjobs("jobs", "list", "--json").json if job["finished_at"] is None]
    for minutes in range(1, 122, 2):
        world.tick(true + minutes * MINUTE)
    [found] = [each for each in world.cronjobs("status", "--json").json["findings"] if each["kind"] == "not_run"]
    assert found["text"].startswith("s has not succeeded since it was due: ")
    assert found["text"].endswith(", because a clock was ahead")
    for told in (world.ask("s"), world.ask(str(job_id))):
        assert "A clock was ahead when this job was made: its occurrence is not due yet." in told
        assert f'"cronjobs jobs cancel {job_id}" lets the schedule go on now' in told
    assert "Nobody knows what it was doing then, because a clock was ahead when it ran." in world.ask("s")
    assert world.cronjobs("jobs", "cancel", str(job_id)).code == 0
    world.tick(true + 3 * HOUR)
    assert [each["kind"] for each in world.cronjobs("status", "--json").json["findings"]] == []


def test_jobs_that_are_due_too_late_because_a_clock_was_ahead_are_a_finding(world: World) -> None:
    def snooze() -> None:
        raise Snooze("2h")

    true, ahead = utc("2026-03-03T02:00:00"), utc("2026-03-03T05:00:00")
    world.file('defaults: {retry: {delays: ["30m"], jitter: 0}}\n')
    world.tick(true)
    world.go(ahead)
    world.plan = [fail(), snooze]
    for _ in range(2):
        put(world.database, job_type="t.work")
    world.tick(ahead)
    for more in ({}, {"run_at": ahead + HOUR}):  # the app chose the time of the last job
        put(world.database, job_type="t.work", **more)
    world.tick(true + MINUTE)
    [finding] = [each for each in world.cronjobs("status", "--json").json["findings"] if each["kind"] == "clock"]
    assert finding["text"] == (
        "some jobs are due too late, because a clock was ahead when their times were set: job 3 (t.work) in 2h59m, "
        'job 1 (t.work) in 3h29m, job 2 (t.work) in 4h59m (for each of 3, 2, run "cronjobs run ID")'
    )
    assert finding["command"] == "cronjobs jobs retry 1"
    ahead_then = "This time is too late: a clock was ahead when it was set."
    for number, command in enumerate(["jobs retry 1", "run 2", "run 3", None], 1):
        said = "" if command is None else f'{ahead_then} To run the job sooner, type "cronjobs {command}".'
        for told in (world.ask(str(number)).text, world.cronjobs("jobs", "show", str(number), "--json").json["next"]):
            assert (ahead_then in told, said in told) == (command is not None, True)
    world.plan = [fail()]
    assert world.cronjobs("jobs", "retry", "1").code == 0
    world.tick(true + 2 * MINUTE)  # this retry is planned by the right clock
    for job_id in ("2", "3"):
        [finding] = [each for each in world.cronjobs("status", "--json").json["findings"] if each["kind"] == "clock"]
        assert "job 1 " not in finding["text"]
        assert finding["command"] in ("cronjobs run 2", "cronjobs run 3")
        world.cronjobs("jobs", "cancel", job_id)
    assert [each for each in world.cronjobs("status", "--json").json["findings"] if each["kind"] == "clock"] == []
