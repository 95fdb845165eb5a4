"""``explain`` names the cause that it finds in a tick's row, in the local file, or in the audit trail."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select, update
from support.explained import MINUTE, MINUTELY, World, a_night, an_outage, brake, fail, no_room, utc
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world
from support.hosts import put

from cronjobs import GiveUp, RetryPolicy, cancel
from cronjobs.desk.rules.schedule_names import names_of
from cronjobs.desk.store import status_facts
from cronjobs.desk.store.status_facts import DEATHS_NAMED, TRIGGERS_READ, triggered
from cronjobs.engine.database import tables
from cronjobs.engine.execution.foreground_claim import begin_existing, begin_new
from cronjobs.engine.jobs import job_types, registry
from cronjobs.engine.rules.ending import running_row
from cronjobs.engine.rules.lease import Finish, Lease
from cronjobs.engine.store import claims, leases, operating, schedules
from cronjobs.engine.store.enqueue import NewJob
from cronjobs.engine.store.operating import OperatorAction
from cronjobs.engine.tick.not_started import entry_for
from cronjobs.errors import EffectUnknown
from cronjobs.model import Status, TimedOut


def test_ticks_that_fire_no_schedules_are_named(world: World) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:10"))
    host = world.hosts["alpha"]
    for at in ("2026-03-03T01:59:10", "2026-03-03T02:03:10"):
        world.go(utc(at))
        host.tick(fire_schedules=False, queue="nothing")
    told = world.ask("s", "--at", "02:01")
    assert told.verdict == "pending"
    assert "but left it unsettled; that tick fired no schedules (CRONJOBS_SCHEDULES=off on its host)" in told
    world.tick(utc("2026-03-03T02:10:10"))
    told = world.ask("s", "--at", "02:01")
    assert "did not settle it; that tick fired no schedules (CRONJOBS_SCHEDULES=off on its host)" in told


def test_a_database_of_another_project_is_the_cause_for_a_schedule_and_for_a_job(world: World) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:10"))
    assert world.cronjobs("enqueue", "t.work").code == 0
    file = world.folder / "cronjobs.yaml"
    file.write_text(file.read_text().replace("project: shop", "project: books"))
    world.go(utc("2026-03-03T02:05:00"))
    refused = "Ticks that use the file here refuse this database:"
    told = world.ask("s", "--at", "02:01")
    assert refused in told
    assert "shop" in told
    assert refused.lower() in repr(world.ask("1")).lower()


def test_a_file_that_has_a_retired_schedule_is_not_in_force(world: World) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:10"))
    world.file(other='cron: "0 0 1 1 *"')
    world.tick(utc("2026-03-03T01:59:10"))
    assert world.cronjobs("sync", "--allow-removals").code == 0
    world.file(**MINUTELY)
    world.go(utc("2026-03-03T02:05:00"))
    told = world.ask("s", "--at", "02:03")
    assert told.verdict == "retired"
    unapplied = "The file here has the schedule, but no tick has applied that file since"
    assert f"{unapplied}, so the schedule is not in force." in told


def test_a_pause_that_ended_without_a_tick(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:20"))
    brake(world, "pause", "--all", "--for", "20m", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T02:48:00"))
    told = world.ask("s", "--at", "02:05")
    assert "everything was paused by ada from 01:58:20 to 02:18:20" in told
    assert "No tick settled it between the end of the pause and 02:48:00." in told


@pytest.mark.parametrize("skip", [False, True])
def test_each_pause_that_held_an_occurrence_back_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, skip: bool
) -> None:
    second = ("s", "--skip") if skip else ("--all",)
    world.file(s='cron: "5 * * * *"')
    world.tick(utc("2026-03-03T02:03:00"))
    brake(world, "pause", "s", monkeypatch=monkeypatch)
    world.go(utc("2026-03-03T02:10:00"))
    brake(world, "pause", *second, monkeypatch=monkeypatch, who="bob")
    if not skip:
        world.go(utc("2026-03-03T02:15:00"))
        brake(world, "resume", "s", monkeypatch=monkeypatch)
    world.ticks(utc("2026-03-03T02:20:00"), utc("2026-03-03T02:24:00"))
    first = f"the schedule was paused by ada from 02:03:00 to 02:1{'0' if skip else '5'}:00"
    what = "the schedule" if skip else "everything"
    told = world.ask("s", "--at", "02:05")
    assert f"It is held back: {first}, then {what} has been paused by bob since 02:10:00, until" in told
    world.go(utc("2026-03-03T02:30:00"))
    brake(world, "resume", second[0], monkeypatch=monkeypatch, who="bob")
    world.tick(utc("2026-03-03T02:33:00"))
    told = world.ask("s", "--at", "02:05")
    assert f"It was held back: {first}, then {what} was paused by bob from 02:10:00 to 02:30:00." in told
    assert "No tick" not in told


@pytest.mark.parametrize("skips", ["only", "--all"])
def test_no_pause_holds_back_what_another_pause_skips(
    world: World, monkeypatch: pytest.MonkeyPatch, skips: str
) -> None:
    holds, what = ("--all", "the schedule") if skips == "only" else ("only", "everything")
    world.file(only='cron: "0,30 3 * * *"')
    world.tick(utc("2026-03-03T02:20:00"))
    brake(world, "pause", holds, "--for", "2h", monkeypatch=monkeypatch)
    world.go(utc("2026-03-03T02:50:00"))
    brake(world, "pause", skips, "--skip", "--for", "20m", monkeypatch=monkeypatch)
    for at, was in (("03:05:00", "has been"), ("03:40:00", "was")):
        world.tick(utc(f"2026-03-03T{at}"))
        told = world.ask("only", "--at", "03:00")
        assert told.verdict == "pending"
        assert f"It will be recorded as skipped, because {what} {was} paused by ada " in told
        assert "held back" not in told
        assert "catch_up" not in told
        listed = world.ask("only", "--from", "02:25").found["occurrences"]
        assert ["skipped_by" in each["facts"] for each in listed] == ([True] if at == "03:05:00" else [True, False])
        assert ("holds back only" in " ".join(world.cronjobs("status").out.split())) == (at == "03:40:00")
    assert f"will be recorded as skipped: {what} was paused" in world.say("only", "--from", "02:25").out
    world.go(utc("2026-03-03T04:25:00"))
    assert f"The next tick will record it as skipped: {what} was paused by ada from 02:50:00" in world.ask(
        "only", "--at", "03:00"
    )
    world.tick()
    assert world.ask("only", "--at", "03:00").verdict == "paused"


@pytest.mark.parametrize("settles", ["tick", "resume"])
def test_a_short_pause_is_not_blamed_for_the_outage_before_it(
    world: World, monkeypatch: pytest.MonkeyPatch, settles: str
) -> None:
    world.file(s='cron: "5 2 * * *"')
    put(world.database, job_type="t.work", run_at=utc("2026-03-03T02:05:00"))
    world.tick(utc("2026-03-03T02:03:00"))
    world.go(utc("2026-03-03T04:50:00"))
    brake(world, "pause", "--all", monkeypatch=monkeypatch)
    assert "The last tick began at 02:03:00 on host alpha. It is held back" in world.ask("s", "--at", "02:05")
    world.go(utc("2026-03-03T04:58:00"))
    if settles == "resume":
        resumed = world.cronjobs("resume", "--all").out
        assert resumed.startswith("s: 1 occurrence waited, 2026-03-03 02:05:00 UTC")
    else:
        brake(world, "pause", "--all", "--for", "1s", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T04:59:00"))
    until = "04:58:00" if settles == "resume" else "04:59:00"
    quiet = f"o tick reached the database between 02:03:00 and {until}"
    told = world.ask("s", "--at", "02:05")
    assert f"N{quiet}." in told
    assert f"(n{quiet})" in " ".join(world.say("s", "--since", "4h").out.split())
    assert "paused" not in told
    assert "paused" not in world.ask("1")


def test_an_outage_and_the_pause_that_was_on_at_its_end_are_both_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.file(s='cron: "5 2 * * *"')
    world.tick(utc("2026-03-03T02:03:00"))
    world.go(utc("2026-03-03T04:50:00"))
    brake(world, "pause", "s", monkeypatch=monkeypatch)
    world.ticks(utc("2026-03-03T04:55:00"), utc("2026-03-03T04:58:00"))
    brake(world, "resume", "s", monkeypatch=monkeypatch)
    said = (
        "No tick reached the database between 02:03:00 and 04:55:00. It was held back: the schedule was paused by ada"
    )
    assert said in world.ask("s", "--at", "02:05")


def test_a_pause_that_someone_changed_is_still_by_whoever_began_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.file(s='cron: "5 * * * *"')
    world.tick(utc("2026-03-03T02:03:00"))
    brake(world, "pause", "s", "--why", "one", monkeypatch=monkeypatch)
    world.go(utc("2026-03-03T02:10:00"))
    brake(world, "pause", "s", "--why", "two", monkeypatch=monkeypatch, who="bob")
    said = "the schedule has been paused by ada (changed by bob) since 02:03:00, until someone resumes it (why: two)"
    assert said in world.ask("s", "--at", "02:05")
    assert "paused       schedule s by ada, changed by bob, and is still paused: two" in world.cronjobs("history").out


def test_why_a_tick_left_an_occurrence_is_its_outage(world: World) -> None:
    world.file(s='cron: "20 * * * *"')
    world.tick(utc("2026-03-03T02:18:00"))
    at = utc("2026-03-03T02:21:00")
    away = {"since": at.isoformat(), "until": at.isoformat(), "why": "was locked by another connection"}
    with world.database.write() as connection:
        row = {"tick": "t", "host": "alpha", "boot_id": "b", "pid": 1, "version": "1", "started_at": at}
        connection.execute(insert(tables.ticks).values(row | {"finished_at": at, "did": {"outages": [7, away]}}))
    world.go(utc("2026-03-03T02:22:00"))
    why = "that tick could not use the database for some time: was locked by another connection."
    assert f"left it unsettled; {why}" in world.ask("s")
    world.tick(utc("2026-03-03T02:24:00"))
    assert f"that tick did not settle it; {why}" in world.ask("s")


def test_a_pause_that_ended_and_the_next_tick_is_still_to_come(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file(s='cron: "20 * * * *"')
    world.tick(utc("2026-03-03T02:18:00"))
    brake(world, "pause", "s", "--for", "5m", "--why", "short", monkeypatch=monkeypatch)
    world.ticks(utc("2026-03-03T02:19:00"), utc("2026-03-03T02:22:50"))
    world.go(utc("2026-03-03T02:23:30"))
    told = world.ask("s")
    assert told.verdict == "pending"
    assert "It was held back: the schedule was paused by ada from 02:18:00 to 02:23:00 (why: short)." in told
    assert "The last tick began at 02:22:00 on host alpha." in told
    assert "the reason is not recorded" not in told


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({"on_lost": "dead"}, "no automatic retry (on_lost: dead)"),
        ({"max_losses": 1}, "no automatic retry after so many losses (run.max_losses)"),
        ({"on_lost": "dead", "made_by_hand": True}, "no automatic retry of a job that was started by hand"),
    ],
)
def test_what_ends_a_lost_job_is_named(world: World, policy: dict[str, Any], why: str) -> None:
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work")
    world.leave_hanging(**policy)
    world.clock.advance(timedelta(minutes=2))
    world.tick()
    told = world.ask(str(job_id))
    assert told.verdict == "dead"
    assert f" after it was lost once: {why}." in told


LOGGED = ' The log names a reason that lay outside the job ("job.not_begun").'


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        (1, "Attempt 1 was released before it began. Attempt 2 succeeded"),
        (3, f"Attempts 1 to 3 were released before they began.{LOGGED} Attempt 4 succeeded"),
    ],
)
def test_claims_that_were_released_before_they_began_are_named(world: World, claims: int, said: str) -> None:
    world.file()
    job_id = put(world.database, job_type="t.work", attempts=claims)
    world.tick()
    assert said in world.ask(str(job_id))


def test_claims_that_were_released_after_the_last_attempt_are_named(world: World) -> None:
    world.file()
    job_id = put(world.database, job_type="t.work")

    def claim() -> Lease:
        world.clock.advance(timedelta(minutes=1))
        assert world.leave_hanging() == job_id
        with world.database.read() as connection:
            row = connection.execute(select(tables.jobs).where(tables.jobs.c.id == job_id)).one()
        return Lease(job_id, row.attempts, row.locked_by)

    def release() -> None:
        lease = claim()
        with world.database.write() as connection:
            assert leases.finish(connection, [Finish(lease, Status.QUEUED, 0, 0, 0, None)]).written

    release()
    told = world.ask(str(job_id))
    assert " Attempt 1 was released before it began. Job " in told
    assert "waits for another turn" in told
    claim()
    assert " Attempt 1 was released before it began. It was due at 08:00:30 and started 2m late" in world.ask(
        str(job_id)
    )
    world.clock.advance(timedelta(minutes=2))
    world.plan = [fail()]
    world.tick()  # the runner is gone, and this tick runs attempt 3
    assert "Attempt 1 was released before it began. Attempt 2, begun at " in world.ask(str(job_id))
    world.clock.advance(timedelta(minutes=10))
    release()
    release()
    told = world.ask(str(job_id))
    assert "Attempts 4 to 5 were released before they began. Job " in told
    assert told.text.index("Attempt 3 failed") < told.text.index("Attempts 4 to 5")
    world.clock.advance(timedelta(minutes=1))
    assert world.cronjobs("jobs", "cancel", str(job_id)).code == 0
    assert "Attempts 4 to 5 were released before they began. It was cancelled by " in world.ask(str(job_id))


def test_an_ended_job_without_recorded_attempts_names_no_released_claims(world: World) -> None:
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work", status="succeeded", finished_at=world.clock.now(), attempts=3)
    assert "released" not in world.ask(str(job_id))


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ([], ""),
        ([{"priority": 0}] * 3, "3 due jobs with a better priority come first; after them "),
        ([{"priority": 0}], "1 due job with a better priority comes first; after it "),
        ([{}] * 2, "2 due jobs that became due earlier come first; after them "),
        ([{}] * 51, "at least 50 due jobs that became due earlier come first; after them "),
        ([{"priority": 4}, {}], "2 due jobs come first, 1 of them with a better priority; after them "),
        ([{"priority": 6}, {"priority": 0, "queue": "held"}, {"priority": 0, "concurrency_key": "api:1"}], ""),
        ([{"priority": 0, "run_at": utc("2026-03-03T09:00:00")}], ""),
        # Only as many come first as their limit has room for.
        (
            [{"priority": 0, "concurrency_key": "web:1"}] * 60,
            "at least 1 due job with a better priority comes first; after it ",
        ),
        ([{"concurrency_key": "web:1"}] * 3, "1 due job that became due earlier comes first; after it "),
        ([{"priority": 0}] * 60, "at least 50 due jobs with a better priority come first; after them "),
    ],
)
def test_the_jobs_that_come_before_a_job_are_counted(
    world: World, monkeypatch: pytest.MonkeyPatch, before: list[dict[str, Any]], said: str
) -> None:
    world.file('limits: {"api:": 1, "web:": {each: 1}}\n', s='cron: "0 2 * * *"')
    world.tick(utc("2026-03-03T01:57:00"))
    brake(world, "pause", "--queue", "held", monkeypatch=monkeypatch)
    put(world.database, job_type="t.work", concurrency_key="api:0")
    world.leave_hanging()
    for columns in before:
        put(world.database, **({"job_type": "t.work"} | columns))
    world.go(utc("2026-03-03T01:58:00"))
    mine = put(world.database, job_type="t.work")
    world.go(utc("2026-03-03T01:58:30"))
    put(world.database, job_type="t.work")
    waits = f"Job {mine} waits for its turn, due since 01:58:00, for 30s: {said}the next tick with a free worker will"
    assert waits in world.ask(str(mine))


@pytest.mark.parametrize(
    ("limit", "was", "now"),
    [
        (
            "0",
            'limit "api:" in the file was bad, so the limited jobs did not start.',
            'limit "api:" in the file is bad ("cronjobs check" says why), so the limited jobs do not start.',
        ),
        (
            "1",
            'limit "api:" was reached (1 at once).',
            'limit "api:" is reached (1 at once) by job {holder} on beta.',
        ),
    ],
)
def test_what_a_limit_was_for_a_past_tick_is_not_said_of_now(world: World, limit: str, was: str, now: str) -> None:
    world.file(f'limits: {{"api:": {limit}}}\n')
    world.tick(utc("2026-03-03T01:57:00"))
    holder = put(world.database, job_type="t.work", concurrency_key="api:0")
    world.leave_hanging(lease=timedelta(minutes=9))
    job_id = put(world.database, job_type="t.work", concurrency_key="api:1")
    world.tick(utc("2026-03-03T01:58:00"))
    told, now = world.ask(str(job_id)), now.format(holder=holder)
    assert f"The tick that began at 01:58:00 on alpha did not start it: {was}" in told
    assert told.steady[-1].endswith(f": {now}")
    world.file('limits: {"api:": 2}\n')
    world.tick(utc("2026-03-03T01:59:00"))
    told = world.ask(str(job_id))
    assert f"did not start it: {was}" in told
    assert now not in told


def test_runs_of_exec_with_the_name_of_a_schedule_are_mentioned(world: World) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:10"))
    world.tick(utc("2026-03-03T01:59:10"))
    assert "exec" not in world.ask("s").text
    at = world.database.clock.now()
    ended = {"status": "succeeded", "attempts": 1, "started_at": at, "finished_at": at}
    put(world.database, job_type="exec:s", **ended)
    said = '"cronjobs exec" has recorded runs with the name s, too; see "cronjobs explain exec:s".'
    assert world.ask("s").steady[-1] == world.ask("s", "--at", "01:59").steady[-1] == said
    assert "cronjobs exec s" in world.ask("exec:s")


@pytest.mark.parametrize("asked", ["2", "s"])
def test_the_job_of_its_schedule_that_a_job_waits_for_is_named(world: World, asked: str) -> None:
    world.file(s='cron: "* * * * *", overlap: wait')
    world.tick(utc("2026-03-03T01:58:10"))
    world.go(utc("2026-03-03T01:59:00"))
    no_room(world)
    world.leave_hanging(lease=timedelta(minutes=9))
    world.tick(utc("2026-03-03T02:00:00"))
    waits = "Job 2 waits for its turn, due since 02:00:00, for 300ms:"
    assert f"{waits} job 1 of schedule s has begun, and must end first." in world.ask(asked)
    back = {"status": "queued", "locked_by": None, "locked_until": None, "started_at": None, "policy": None}
    with world.database.write() as connection:
        connection.execute(update(tables.jobs).where(tables.jobs.c.id == 1).values(**back))
    assert f"{waits} job 1 of schedule s comes first." in world.ask(asked)
    with world.database.write() as connection:
        connection.execute(update(tables.jobs).where(tables.jobs.c.id == 2).values(meta={"cronjobs.overlap": "allow"}))
    assert "of schedule s" not in world.ask("2").steady[-1]


def fails_in_an_effect(world: World) -> None:
    """Job 1 begins the effect pay:7, and fails before it has recorded an outcome."""
    a_night(world)

    def begin_and_fail() -> None:
        with world.database.write() as connection:
            connection.execute(insert(tables.effects).values(key="pay:7", job_id=1, attempt=1, state="begun"))
        raise ValueError("no answer")

    world.plan = [begin_and_fail]
    world.tick(utc("2026-11-20T07:15:12"))


def test_a_waiting_job_names_its_unknown_effect(world: World) -> None:
    fails_in_an_effect(world)
    assert world.ask("1").steady[-1] == (
        "Nobody knows whether its effect pay:7 happened; if you find out before its next try, record the answer: "
        '"cronjobs effects settle pay:7 done" (or not-done).'
    )
    assert world.cronjobs("effects", "settle", "pay:7", "done").code == 0
    assert "pay:7 happened" not in " ".join(world.ask("1").steady)


@pytest.mark.parametrize("end", ["cancelled", "dead"])
def test_a_job_that_did_not_succeed_names_the_effect_that_it_had_done(world: World, end: str) -> None:
    """The effect was done, and what the handler books after it was not."""
    a_night(world)

    def charge() -> None:
        at = world.clock.now()
        done = {"attempt": 1, "state": "recorded", "begun_at": at, "recorded_at": at}
        with world.database.write() as connection:
            connection.execute(insert(tables.effects).values(key="pay:7", job_id=1, **done))
            connection.execute(insert(tables.effects).values(key="job:1:step:render", job_id=1, **done))
        if end == "dead":
            raise GiveUp("the ledger is closed")
        with world.database.write() as connection:
            operating.cancel(connection, [1], OperatorAction("cancel", "ada", "alpha", None))
        raise RuntimeError("stopped")

    world.plan = [charge]
    world.tick(utc("2026-11-20T07:15:12"))
    told = world.ask("1")
    assert told.verdict == end
    said = "The effect pay:7, which attempt 1 began, was recorded as done at 02:15:12: a retry does not repeat it, but"
    assert [each for each in told.steady if "effect" in each] == [f"{said} runs what follows it in the handler."]
    assert said in world.ask("nightly-report", "--at", "02:15")


def test_an_effect_that_was_skipped_may_never_have_happened(world: World) -> None:
    a_night(world)

    def skip() -> None:
        row = {"key": "pay:7", "job_id": 1, "attempt": 1, "state": "skipped", "begun_at": world.clock.now()}
        with world.database.write() as connection:
            connection.execute(insert(tables.effects).values(row))

    world.plan = [skip]
    world.tick(utc("2026-11-20T07:15:12"))
    [said] = [sentence for sentence in world.ask("1").steady if "pay:7" in sentence]
    begun = "Attempt 1 began the effect pay:7 at 02:15:12"
    assert said.startswith(f"{begun}, and nobody knows whether the effect happened.")
    assert said.endswith("so the effect may never have happened.")


def test_a_cancelled_job_names_its_unknown_effect(world: World) -> None:
    """Before the cancel, explain named it. Afterwards only the list of effects did."""
    fails_in_an_effect(world)
    cancelled = world.cronjobs("jobs", "cancel", "1")
    unknown = "Nobody knows whether its effect pay:7 happened. Find out, then run: cronjobs effects settle pay:7 done"
    assert (cancelled.code, unknown in " ".join(cancelled.out.split())) == (0, True)
    told = world.ask("1").steady
    assert 'if you find out, record the answer first: "cronjobs effects settle pay:7 done"' in told[-2]
    assert world.cronjobs("effects", "settle", "pay:7", "not-done").code == 0
    assert "find out" not in " ".join(world.ask("1").steady)


@pytest.mark.parametrize("how", ["1", "--type t.work --yes", "--all --yes", "by the app", "at a terminal, in SQL"])
def test_however_a_job_was_cancelled_its_unknown_effect_is_a_finding_until_somebody_settles_it(
    world: World, how: str
) -> None:
    fails_in_an_effect(world)
    if how == "by the app":
        with world.database.write() as connection:
            assert cancel(connection, id=1) == Status.CANCELLED
    elif how == "at a terminal, in SQL":
        with world.database.write() as connection:
            gone = {"status": "cancelled", "finished_at": world.clock.now()}
            connection.execute(update(tables.jobs).values(gone))
    else:
        told = world.cronjobs("jobs", "cancel", *how.split())
        assert (told.code, "obody knows whether" in told.out + told.err) == (0, True)
    with world.database.write() as connection:  # later cancels of jobs without effects, which is no matter
        ended = {"job_type": "t.work", "status": "cancelled", "finished_at": world.clock.now() + MINUTE}
        connection.execute(insert(tables.jobs), [ended] * 20)
    [found] = [each for each in world.cronjobs("status", "--json").json["findings"] if each["kind"] == "effect"]
    assert found["text"].startswith(
        "nobody knows whether the effect pay:7 of job 1 happened, and the job was cancelled"
    )
    assert world.cronjobs("effects", "settle", "pay:7", "done").code == 0
    assert "effect" not in [each["kind"] for each in world.cronjobs("status", "--json").json["findings"]]


def test_thousands_of_later_cancels_and_effects_hide_no_job_that_was_cancelled_in_its_effect(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_in_an_effect(world)
    now = world.clock.now()
    monkeypatch.setattr(status_facts, "EFFECTS_READ", 0)  # as if many began later
    with world.database.write() as connection:
        gone = {"status": "cancelled", "finished_at": now, "cancel_requested_at": now}
        connection.execute(update(tables.jobs).values(gone))
        later = {"job_type": "t.work", "status": "cancelled", "finished_at": now + MINUTE}
        connection.execute(insert(tables.jobs), [later] * (DEATHS_NAMED + 1))
    assert [each["kind"] for each in world.cronjobs("status", "--json").json["findings"]] == ["effect"]


@pytest.mark.parametrize("pruned", [False, True], ids=["kept", "pruned"])
@pytest.mark.parametrize("over", ["succeeded", "cancelled", "dead", "stopped", "dismissed"])
def test_an_unknown_effect_outlives_its_job_until_somebody_deals_with_it(world: World, over: str, pruned: bool) -> None:
    fails_in_an_effect(world)
    now = world.clock.now()
    is_dead = over in ("dead", "stopped", "dismissed")
    ended = {"status": "dead" if is_dead else over, "finished_at": now}
    ended |= {"dismissed_at": now} if over == "dismissed" else {}
    with world.database.write() as connection:
        connection.execute(update(tables.jobs).values(ended))
        if over == "succeeded":  # a step matters only if the job runs again
            step = {"key": "job:1:step:render", "job_id": 1, "attempt": 1, "begun_at": now}
            connection.execute(insert(tables.effects).values(step))
        if over == "stopped":  # on_unknown: stop
            connection.execute(update(tables.effects).values(state="stopped"))
    if not pruned:
        settle = '"cronjobs effects settle pay:7 done"'
        assert settle in " ".join(world.ask("1").steady) or is_dead
        assert (settle in world.cronjobs("jobs", "show", "1", "--json").json["next"]) or is_dead
    else:
        world.clock.advance(timedelta(days=91))
        assert world.cronjobs("prune").code == 0
        with world.database.read() as connection:
            assert connection.execute(select(tables.jobs.c.id)).first() is None
    findings = world.cronjobs("status", "--json").json["findings"]
    found = [each for each in findings if each["kind"] == "effect"]
    if over == "dismissed" or (is_dead and not pruned):
        assert found == []  # the finding "dead" reports the death, and a dismissal ends the reports
        return
    if is_dead:
        [gone] = [each["text"] for each in findings if each["kind"] == "pruned"]
        settle = 'run "cronjobs effects settle pay:7 done" (or not-done)'
        assert f"the effect pay:7 of job 1: find out whether the effect happened, and {settle}" in gone
        assert found[0]["text"].endswith(settle)
        assert world.cronjobs("ack", "pruned").code == 0
        assert "all well" not in world.cronjobs("status").out
    why = "the job was cancelled" if over == "cancelled" else "the job succeeded"
    why = "retention removed the job" if pruned else why
    assert found[0]["text"].startswith(f"nobody knows whether the effect pay:7 of job 1 happened, and {why}")
    assert world.cronjobs("effects", "settle", "pay:7", "done").code == 0
    assert "effect" not in [each["kind"] for each in world.cronjobs("status", "--json").json["findings"]]


@pytest.mark.parametrize("status", ["dead", "cancelled"])
@pytest.mark.parametrize("effect", [None, "pay:7"])
def test_no_view_advises_a_retry_of_a_job_whose_payload_is_gone(world: World, status: str, effect: str | None) -> None:
    fails_in_an_effect(world)
    now = world.clock.now()
    with world.database.write() as connection:
        ended = {"status": status, "finished_at": now, "idempotency_key": "order-7", "job_type": "t.work"}
        connection.execute(update(tables.jobs).values(ended))
        connection.execute(delete(tables.effects) if effect is None else update(tables.effects).values(key=effect))
    world.clock.advance(timedelta(days=91))
    assert world.cronjobs("prune").code == 0
    refused = world.cronjobs("jobs", "retry", "1")
    why = "retention has removed its payload and kept only its key"
    assert (refused.code, f"is {status}, and {why}" in refused.err) == (1, True)
    told = [
        " ".join(world.ask("1").steady),
        str(world.cronjobs("jobs", "show", "1", "--json").json["next"]),
        world.cronjobs("enqueue", "t.work", "--idempotency-key", "order-7", "--no-import").err,
    ]
    for said in told:
        assert "jobs retry" not in said, said
        assert f"because {why}" in said
    for said in told[:2]:
        assert (effect is not None) == ('"cronjobs effects settle pay:7 done" (or not-done)' in said)
        assert (status == "dead") == ('"cronjobs jobs dismiss 1" ends the reports about this death' in said)
    if effect is not None:
        settled = world.cronjobs("effects", "settle", effect, "done")
        assert (settled.code, settled.out.count("\n")) == (0, 1), settled.out


@pytest.mark.parametrize(("repeats", "most"), [(0, None), (1, "twice"), (3, "up to 4 times")])
def test_an_effect_that_may_have_happened_more_than_once_is_named(world: World, repeats: int, most: str | None) -> None:
    a_night(world)

    def repeat() -> None:
        row = {"key": "pay:7", "job_id": 1, "attempt": 2, "state": "recorded", "repeats": repeats}
        with world.database.write() as connection:
            row |= {"begun_at": world.clock.now(), "recorded_at": world.clock.now()}
            connection.execute(insert(tables.effects).values(row))

    world.plan = [fail(), repeat]
    world.tick(utc("2026-11-20T07:15:12"))
    world.tick(utc("2026-11-20T07:17:00"))
    said = [sentence for sentence in world.ask("1").steady if "pay:7" in sentence]
    why = "because its outcome was unknown: the effect may have happened"
    assert said == ([f"Attempt 2 repeated the effect pay:7 at 02:17:00, {why} {most}."] if most else [])


@pytest.mark.parametrize(
    ("key", "asked"),
    [
        ("pay:7", ["nightly-report", "--at", "02:15"]),
        (f"receipt:{'9' * 200}", ["1"]),
        ("it's for ada; rm -r x", ["1"]),
    ],
    ids=["short", "long", "quoted"],
)
@pytest.mark.parametrize("earlier", [None, "attempt 1, which began it, timed out"])
def test_an_unknown_effect_is_settled_before_its_job_is_retried(
    world: World, key: str, asked: list[str], earlier: str | None
) -> None:
    a_night(world)

    def stop() -> None:
        with world.database.write() as connection:
            connection.execute(insert(tables.effects).values(key=key, job_id=1, attempt=1, state="stopped"))
        raise EffectUnknown(key, earlier)

    world.plan = [stop]
    world.tick(utc("2026-11-20T07:15:12"))
    settle = f"cronjobs effects settle {shlex.quote(key)} done"
    assert world.ask(*asked).steady[-3:] == [
        "Job 1 died at 02:15:12 after it failed 1 of 10 tries. It does not run again by itself.",
        f'First find out whether effect {key} happened, and record the answer: "{settle}" (or not-done).',
        'Then "cronjobs jobs retry 1" runs it again.',
    ]
    shown = world.cronjobs("jobs", "show", "1", "--json").json["next"]
    assert shown.endswith(" ".join(world.ask(*asked).steady[-2:]))

    assert world.cronjobs(*shlex.split(settle)[1:]).code == 0
    told = world.ask(*asked).steady[-1]
    assert told.endswith('after it failed 1 of 10 tries. It runs again only if someone types "cronjobs jobs retry 1".')
    shown = world.cronjobs("jobs", "show", "1", "--json").json["next"]
    assert shown.endswith('after it failed 1 of 10 tries. It runs again only if someone types "cronjobs jobs retry 1".')
    assert world.cronjobs("jobs", "retry", "1").code == 0


def give_up() -> None:
    raise GiveUp("no such account")


def test_what_people_did_to_its_job_stands_in_the_explanation_of_an_occurrence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:10"))
    world.plan = [give_up]
    world.tick(utc("2026-03-03T01:59:10"))
    world.go(utc("2026-03-03T02:00:00"))
    brake(world, "jobs", "retry", "1", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T02:00:10"))
    for asked in (["1"], ["s", "--at", "01:59"]):
        assert "It was retried by ada at 02:00:00" in world.ask(*asked), asked


@pytest.mark.parametrize("stopped", [False, True])
def test_a_cancel_that_the_handler_did_not_hear_had_no_effect(world: World, stopped: bool) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:10"))

    def work() -> None:
        world.clock.advance(timedelta(seconds=5))
        with world.database.write() as connection:
            operating.cancel(connection, [1], OperatorAction("cancel", "ada", "alpha", None))
        world.clock.advance(timedelta(seconds=5))
        if stopped:
            raise RuntimeError("stopped")

    world.plan = [work]
    world.tick(utc("2026-03-03T01:59:10"))
    told = world.ask("s", "--at", "01:59")
    assert "It was asked to stop by ada at 01:59:15" in told
    assert (", but that had no effect, because attempt 1 did not stop." in told) is not stopped


def test_a_lease_whose_process_is_gone_is_shown_so_everywhere(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt timed out in a thread, and its tick has ended: nothing runs, and the lease is still in force."""
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work")
    world.leave_hanging()
    left = put(world.database, job_type="t.work")
    row = {"tick": "dead", "host": "beta", "boot_id": "boot", "pid": 1, "version": "1", "started_at": world.clock.now()}
    row["did"] = {"runner": "beta:boot:1:1:1:dead"}
    with world.database.write() as connection:
        connection.execute(insert(tables.ticks).values(row))
        [job] = claims.held_by(connection, "beta:boot:1:1:1:dead")
        overdue = running_row(job, TimedOut("timed out after 2s"), timedelta(seconds=2), "1")
        leases.record_overdue(connection, [overdue])
    shown = world.cronjobs("status").out
    assert "no end recorded yet" in shown
    assert "all well" in shown
    never = "never recorded"
    assert never not in world.cronjobs("history").out
    assert never not in world.ask(str(left))
    monkeypatch.setattr("cronjobs.desk.insight.releasing.is_gone", lambda *_: True)
    assert "a tick of host beta never recorded its end: it was killed" in world.cronjobs("history").out
    assert "1 tick did not start it, and never recorded an end: it was killed" in world.ask(str(left))
    gone = "the process is gone, so the next tick on that host should record"
    assert f"Job {job_id} is still leased for attempt 1 on beta; {gone} the outcome." in world.ask(str(job_id))
    assert gone in " ".join(world.cronjobs("jobs", "show", str(job_id)).out.split())
    world.file('limits: {"api:": 1}\n')
    with world.database.write() as connection:
        connection.execute(update(tables.jobs).values(concurrency_key="api:0"))
    waits = put(world.database, job_type="t.work", concurrency_key="api:1")
    assert f"by job {job_id} on beta, whose process is gone" in world.ask(str(waits))
    shown = world.cronjobs("status").out
    assert "its process is gone" in shown
    assert "no end recorded yet" not in shown
    assert "all well" not in shown
    assert "so far" in shown
    world.clock.advance(timedelta(hours=1))
    assert "so far" not in world.cronjobs("status").out, "there are findings, such as no_tick"


@pytest.mark.parametrize("runner", ["alive", "gone", "without a lease", "beyond its limit"])
@pytest.mark.parametrize("by_hand", [False, True], ids=["by its schedule", "triggered"])
def test_no_view_calls_a_job_running_whose_runner_died_or_hangs(
    world: World, monkeypatch: pytest.MonkeyPatch, runner: str, by_hand: bool
) -> None:
    world.file(s=f'cron: "0 {1 if by_hand else 2} * * *", catch_up: none')
    world.tick(utc("2026-03-02T22:58:00"))
    world.tick(utc("2026-03-03T01:58:00"))
    world.go(utc("2026-03-03T02:00:00"))
    if by_hand:
        brake(world, "trigger", "s", monkeypatch=monkeypatch)
        world.go(utc("2026-03-03T02:00:00"))
    else:
        no_room(world)
    lease = timedelta(minutes=5) if runner == "without a lease" else timedelta(hours=6)
    job_id = world.leave_hanging(lease=lease, runner_s=20.0)
    monkeypatch.setattr("cronjobs.desk.insight.releasing.is_gone", lambda *_: True if runner == "gone" else None)
    world.go(utc("2026-03-03T02:04:00" if runner == "alive" else "2026-03-03T02:06:00"))
    asked = [["explain", str(job_id)], ["explain", "s"], ["jobs", "show", str(job_id)]]
    for command in asked:
        said = " ".join(world.cronjobs(*command).out.split())
        assert ("is running now" in said) == (runner == "alive"), command
        if by_hand and command == ["explain", "s"] and runner != "alive":
            assert f"Job {job_id}, which ada triggered at 02:00:00, began, but its runner died or hangs." in said
    noted = {"alive": "on beta, lease", "beyond its limit": "should have been stopped 5m40s ago, lease"}
    ended = {"gone": "the runner's process is gone", "without a lease": "OVERDUE: lease ended"}
    assert (noted | ended)[runner] in world.cronjobs("jobs", "list").out


@pytest.mark.parametrize("skip", [False, True])
def test_a_pause_that_skips_holds_nothing_back(world: World, monkeypatch: pytest.MonkeyPatch, skip: bool) -> None:
    world.file(**MINUTELY)
    world.tick(utc("2026-03-03T01:58:20"))
    brake(world, "pause", "s", *(["--skip"] if skip else []), monkeypatch=monkeypatch)
    world.go(utc("2026-03-03T01:59:20"))  # due, and no tick has come yet
    said = " ".join(world.cronjobs("status").out.split())
    assert ("the pause holds back s" in said) is not skip
    assert f"schedule s until someone resumes it{', skipping what comes due' if skip else ''}, by ada" in said


@pytest.mark.parametrize("asked", [["1"], ["nightly-report", "--at", "02:15"]])
def test_a_run_by_hand_after_a_death_is_named_before_the_work_is_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    a_night(world, max_attempts="1")
    world.plan = [fail()]
    world.tick(utc("2026-11-20T07:15:12"))
    world.go(utc("2026-11-20T07:30:00"))
    brake(world, "trigger", "nightly-report", monkeypatch=monkeypatch)
    dead = "Job 1 died at 02:15:12 after it failed 1 of 1 try."
    repeats = 'If that was the same work, "cronjobs jobs retry 1" would do the work a second time.'
    ends = '"cronjobs jobs dismiss 1" ends the reports about this death.'
    assert world.ask(*asked).steady[-4:] == [dead, "Job 2, which ada triggered at 02:30:00, waits.", repeats, ends]
    world.tick(utc("2026-11-20T07:31:00"))
    succeeded = "Job 2, which ada triggered at 02:30:00, succeeded at 02:31:00."
    assert world.ask(*asked).steady[-4:] == [dead, succeeded, repeats, ends]
    brake(world, "jobs", "dismiss", "1", monkeypatch=monkeypatch)
    told = world.ask(*asked).steady
    assert "Job 1 died at 02:15:12 after it failed 1 of 1 try, and was dismissed." in told
    assert told[-1] == repeats


def test_a_run_by_hand_that_died_too_did_not_do_the_work(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    a_night(world, max_attempts="1")
    world.plan = [fail(), fail()]
    world.tick(utc("2026-11-20T07:15:12"))
    brake(world, "trigger", "nightly-report", monkeypatch=monkeypatch)
    world.tick(utc("2026-11-20T07:31:00"))
    assert world.ask("1").steady[-2:] == [
        (
            "Job 1 died at 02:15:12 after it failed 1 of 1 try. It runs again only if someone types "
            '"cronjobs jobs retry 1".'
        ),
        "Job 2, which ada triggered at 02:15:12, died at 02:31:00.",
    ]
    assert "triggered" not in repr(world.ask("2").steady[-1])  # the one before it
    world.cronjobs("jobs", "dismiss", "2")
    assert world.ask("1").steady[-1] == "Job 2, which ada triggered at 02:15:12, died at 02:31:00, and was dismissed."


def test_a_run_by_hand_for_what_was_missed_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    an_outage(world, catch_up="none")
    brake(world, "trigger", "s", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T02:31:40"))
    said = ["Job 4, which ada triggered at 02:31:12, succeeded at 02:31:40."]
    assert world.ask("s", "--at", "02:15").steady[-1:] == said
    [missed] = world.ask("s", "--from", "2026-03-03T02:15", "--to", "2026-03-03T02:15").found["occurrences"]
    assert missed["sentences"][-1:] == said


def dies_is_triggered_and_renamed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run of 08:15 dies, ada triggers another one, and then "old" becomes "new"."""
    world.file(old='cron: "15 * * * *", max_attempts: 1')
    world.tick()
    world.plan = [fail()]
    world.tick(utc("2026-03-02T08:15:10"))
    brake(world, "trigger", "old", monkeypatch=monkeypatch)
    world.file(new='cron: "15 * * * *", max_attempts: 1, renamed_from: old')
    world.tick(utc("2026-03-02T08:20:00"))


def test_a_run_by_hand_under_the_old_name_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    dies_is_triggered_and_renamed(world, monkeypatch)
    for asked in (["1"], ["new", "--at", "08:15"]):
        assert "Job 2, which ada triggered at 08:15:10, succeeded at 08:20:00." in world.ask(*asked), asked


def test_the_runs_of_another_schedule_that_has_the_old_name_now_are_not_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the newest entries of a name were read, and those of the other schedule were dropped only afterwards."""
    dies_is_triggered_and_renamed(world, monkeypatch)
    world.go(utc("2026-03-02T08:40:00"))
    entry = {"action": "trigger", "subject": "old", "actor": "eve", "host": "alpha", "detail": {"job_id": 2}}
    with world.database.write() as connection:
        rows = [
            entry | {"at": utc("2026-03-02T08:30:00") + timedelta(seconds=number)} for number in range(TRIGGERS_READ)
        ]
        connection.execute(insert(tables.audit).values(rows))
    with world.database.read() as connection:
        names = names_of("new", schedules.renames(connection))
        assert len(triggered(connection, names)) == 1
    for asked in (["1"], ["new", "--at", "08:15"]):
        assert "Job 2, which ada triggered at 08:15:10, succeeded at 08:20:00." in world.ask(*asked), asked


def left_by_the_last_tick(world: World, why: str, **facts: Any) -> None:
    entry = {"why": why, "job_type": "t.work", "queue": "default", "jobs": 1} | facts
    with world.database.write() as connection:
        newest = select(func.max(tables.ticks.c.id)).scalar_subquery()
        connection.execute(update(tables.ticks).where(tables.ticks.c.id == newest).values(not_started=[entry]))


def test_a_long_job_waits_for_a_place_only_if_a_tick_found_none(world: World) -> None:
    world.file("run: {budget: 40s}\n")
    world.tick()
    job_id = str(put(world.database, job_type="t.work", timeout_s=3600.0))
    later = str(put(world.database, job_type="t.work", timeout_s=3600.0, run_at=utc("2026-03-02T08:30:00")))
    for asked in (job_id, later):
        assert "needs its own process" not in world.ask(asked)
    assert "the next tick with a free worker will run it" in world.ask(job_id)
    world.go(utc("2026-03-02T08:01:10"))
    no_room(world)
    left_by_the_last_tick(world, "long jobs")
    told = world.ask(job_id)
    assert "that host was already running as many long jobs as run.long_jobs allows" in told
    assert "a host runs at most 4 of these at once (run.long_jobs)" in told
    world.file("run: {budget: 40s, long_jobs: 0}\n")
    for asked in (job_id, later):
        assert "long jobs are off here (run.long_jobs: 0)" in world.ask(asked)


@pytest.mark.parametrize(("began", "again"), [("2026-03-02T08:01:10", " again"), ("2026-03-02T08:00:50", "")])
def test_the_tick_that_ran_an_attempt_did_not_start_the_job_again(world: World, began: str, again: str) -> None:
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work")
    world.go(utc("2026-03-02T08:01:10"))
    no_room(world)
    left_by_the_last_tick(world, "stopped")
    with world.database.write() as connection:
        tick = connection.execute(select(tables.ticks).order_by(tables.ticks.c.id.desc()).limit(1)).one()
        at = tick.started_at if again else utc(began)
        times = {"started_at": at, "finished_at": at}
        of = {"job_id": job_id, "attempt": 1, "outcome": "interrupted", "runner": "alpha:boot:1:1:1:x"}
        connection.execute(tables.job_runs.insert().values(of | times))
        connection.execute(update(tables.jobs).values(attempts=1, interruptions=1, started_at=at))
    assert f"on alpha did not start it{again}: the tick was asked to stop." in world.ask(str(job_id))


def test_what_a_person_started_is_not_late(world: World) -> None:
    """A run by hand was said to be late, although no schedule was due then."""
    world.file('job_types: {t.by_hand: {command: ["true"], timeout: 1s}}\n', s='cron: "0 * * * *", job: t.by_hand')
    world.ticks(utc("2026-03-02T08:58:10"), utc("2026-03-02T09:00:10"))
    world.go(utc("2026-03-02T09:07:00"))
    due = put(world.database, job_type="t.by_hand", run_at=utc("2026-03-02T09:02:00"))
    coming = put(world.database, job_type="t.by_hand", run_at=utc("2026-03-02T12:00:00"))
    for command in (
        ("run", str(due)),
        ("run", str(coming)),
        ("trigger", "s"),
        ("backfill", "s", "--from", "2026-03-02T08:00Z", "--to", "2026-03-02T08:01Z"),
    ):
        assert world.cronjobs(*command).code == 0
    world.tick(utc("2026-03-02T09:14:10"))
    said = {
        due: 'It was due at 09:02:00, and someone started it with "cronjobs run" at 09:07:00.',
        coming: 'Someone started it with "cronjobs run" at 09:07:00, before it was due at 12:00:00.',
        coming + 1: "It was due at once, and started 7m",
        coming + 2: "It was due at once, and started 7m",
    }
    for job_id, sentence in said.items():
        told = world.ask(str(job_id))
        assert sentence in told
        assert "late" not in told.text.replace("later", "")
    made = "was made by a backfill by "
    assert made in told
    assert " at 09:07:00 for the occurrence of s at 2026-03-02 08:00:00 UTC." in told


def test_a_job_that_someone_runs_now_is_said_to_be_run_by_hand(world: World) -> None:
    """A run by hand was said to be late. A new job's run was said to have failed, and its job to be "still leased"."""
    known = job_types.JobTypes({"t.work": job_types.JobType("t.work", timedelta(seconds=20), RetryPolicy())})
    world.file()
    world.tick()
    waits = put(world.database, job_type="t.work", run_at=utc("2026-03-02T08:00:00"))
    world.go(utc("2026-03-02T08:07:00"))
    settings, held = world.hosts["alpha"].settings, "alpha:boot:1:1:1:x"
    begin_existing(world.database, waits, settings, known, locked_by=held)
    new = begin_new(world.database, NewJob("t.work"), settings.run, known, locked_by=held, alone=False, actor="ada").id
    for job_id in (waits, new):
        told = world.ask(str(job_id))
        assert 'someone started it with "cronjobs run" at 08:07:00.' in told
        assert f'Job {job_id} is running now: attempt 1 by "cronjobs run" on alpha, begun at 08:07:00' in told
        assert "late" not in told
        assert "failed" not in told


@pytest.mark.parametrize("room", [False, True], ids=["the limit is full", "the limit has room"])
def test_the_reason_of_a_backlog_is_not_that_of_a_job_whose_limit_is_full(world: World, room: bool) -> None:
    """A tick records the reason of the few jobs that come first. It was said of all jobs of their queue and type."""
    world.file(f'limits: {{"api:": {2 if room else 1}}}\n')
    world.tick()
    put(world.database, job_type="t.work", concurrency_key="api:0")
    world.leave_hanging(lease=timedelta(minutes=9))
    job_id = put(world.database, job_type="t.work", concurrency_key="api:1")
    world.go(utc("2026-03-02T08:01:10"))
    no_room(world)
    left_by_the_last_tick(world, "slots")
    told = world.ask(str(job_id))
    assert ("did not start it: all workers of the tick were busy" in told) == room
    assert ('limit "api:" is reached (1 at once) by job 1 on beta.' in told) != room


def test_a_limit_on_the_jobs_key_comes_before_the_reason_of_others() -> None:
    place = {"job_type": "t.work", "queue": "default"}
    busy, limited = place | {"why": "slots"}, place | {"why": "limits", "prefix": "api:", "limit": "full"}
    job: dict[str, Any] = place | {"schedule": None, "timeout_s": None}
    assert entry_for([busy, limited], **job, key="api:1") == limited
    assert entry_for([limited, busy], **job, key="web:1") == busy


@pytest.mark.parametrize("known", [False, True])
def test_a_job_committed_late_is_not_blamed_on_the_ticks_that_could_not_see_it(world: World, known: bool) -> None:
    world.file()
    world.tick()
    begun = world.clock.now()
    world.ticks(begun + MINUTE, begun + 4 * MINUTE)
    # The row of an enqueue at that time, which was committed only now.
    job_id = put(world.database, job_type="t.work", run_at=begun, created_at=begun)
    world.go(begun + 4 * MINUTE + timedelta(seconds=10))
    if known:
        left_by_the_last_tick(world, "stopped")
    late = "o tick recorded a reason (on PostgreSQL, a transaction may have enqueued the job long before its COMMIT)"
    assert (late in " ".join(world.ask(str(job_id)).steady)) is not known
    world.tick(begun + 5 * MINUTE)
    assert (late in " ".join(world.ask(str(job_id)).steady)) is not known


@pytest.mark.parametrize("ended", [False, True])
def test_ticks_that_did_not_start_a_job_are_named_and_not_the_tick_that_did(
    world: World, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """What had delayed a first attempt was named only when the attempt had ended."""
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work", run_at=utc("2026-03-02T08:00:00"))
    row: dict[str, Any] = {"host": "alpha", "boot_id": "boot", "pid": 1, "version": "1", "did": {}, "tick": "killed"}
    with world.database.write() as connection:
        connection.execute(insert(tables.ticks).values(row | {"started_at": utc("2026-03-02T08:02:00")}))
    world.go(utc("2026-03-02T08:03:10"))
    no_room(world)
    left_by_the_last_tick(world, "stopped")
    begun = utc("2026-03-02T08:04:10")
    world.go(begun)
    lease = {"locked_by": "alpha:boot:1:1:1:x", "locked_until": begun + timedelta(minutes=1)}
    with world.database.write() as connection:
        running = update(tables.jobs).where(tables.jobs.c.id == job_id)
        connection.execute(running.values(lease | {"status": "running", "attempts": 1, "started_at": begun}))
        starter: dict[str, Any] = {"tick": "x", "started_at": begun - timedelta(seconds=1)}  # it was killed later
        starter["did"] = {"runner": lease["locked_by"]}
        connection.execute(insert(tables.ticks).values(row | starter))
        # The tick that lingered, and started *starter*.
        lingering: dict[str, Any] = {"tick": "0123456789ab-1772438648", "started_at": begun - timedelta(seconds=2)}
        lingering["did"] = {"runner": f"alpha:boot:1:1:1:{lingering['tick']}"}
        connection.execute(insert(tables.ticks).values(row | lingering))
        if ended:
            over = {"status": "succeeded", "finished_at": begun, "locked_by": None, "locked_until": None}
            connection.execute(running.values(over))
            run = {"job_id": job_id, "attempt": 1, "outcome": "succeeded", "runner": lease["locked_by"]}
            connection.execute(insert(tables.job_runs).values(run | {"started_at": begun, "finished_at": begun}))
    world.go(utc("2026-03-02T08:04:30"))
    monkeypatch.setattr("cronjobs.desk.insight.releasing.is_gone", lambda *_: True)
    told = world.ask(str(job_id))
    assert "on alpha did not start it: the tick was asked to stop." in told
    assert "1 tick did not start it, and never recorded an end: it was killed or lost the database." in told


@pytest.mark.parametrize("then", ["created", "interrupted", "another host ticks"])
def test_a_tick_before_the_job_could_start_or_of_a_host_that_has_gone_is_not_why_it_waits(
    world: World, then: str
) -> None:
    """A tick was named that had ended before the job existed, and one of a host that had ticked long before."""
    world.file()
    world.tick()
    world.tick(host="beta")
    created = utc("2026-03-02T08:05:00") if then == "created" else utc("2026-03-02T08:00:00")
    due = utc("2026-03-02T08:00:00")
    job_id = str(put(world.database, job_type="t.work", run_at=due, created_at=created))
    world.go(utc("2026-03-02T08:01:10"))
    no_room(world)
    left_by_the_last_tick(world, "stopped")
    assert ("did not start it: the tick was asked to stop" in world.ask(job_id)) == (then != "created")
    if then == "interrupted":
        begun, ended = utc("2026-03-02T08:02:10"), utc("2026-03-02T08:02:20")
        with world.database.write() as connection:
            of = {"job_id": int(job_id), "attempt": 1, "outcome": "interrupted", "runner": "alpha:boot:1:1:1:x"}
            connection.execute(tables.job_runs.insert().values(of | {"started_at": begun, "finished_at": ended}))
            connection.execute(update(tables.jobs).values(attempts=1, interruptions=1, started_at=begun))
    if then == "another host ticks":
        for minute in range(2, 9):
            world.go(utc(f"2026-03-02T08:0{minute}:10"))
            no_room(world, "beta")
            left_by_the_last_tick(world, "stopped", job_type="t.other")
    told = world.ask(job_id)
    assert "did not start it" not in told
    assert "waits for" in told


def test_a_pause_that_is_over_is_why_a_job_began_late(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file(s='cron: "* * * * *", queue: mail')
    world.tick(utc("2026-03-03T01:58:10"))
    brake(world, "pause", "--queue", "mail", "--why", "provider down", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T01:59:10"))
    world.go(utc("2026-03-03T02:04:30"))
    brake(world, "resume", "--queue", "mail", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T02:05:10"))
    held = "It was held back: queue mail was paused by ada from 01:58:10 to 02:04:30 (why: provider down)."
    for asked in (["s", "--at", "01:59"], ["1"]):
        said = world.ask(*asked).steady
        assert said.index(held) < said.index("Attempt 1 succeeded at 02:05:10 on alpha, after a moment."), asked
    world.tick(utc("2026-03-03T02:06:10"))
    assert "held back" not in world.ask("s", "--at", "02:06")


def test_a_pause_that_ended_before_the_job_was_made_did_not_hold_it_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.file(s='cron: "59 1 * * *", queue: mail')
    world.tick(utc("2026-03-03T01:58:10"))
    brake(world, "pause", "--queue", "mail", monkeypatch=monkeypatch)
    brake(world, "pause", "s", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T01:59:10"))
    world.go(utc("2026-03-03T02:04:30"))
    brake(world, "resume", "--queue", "mail", monkeypatch=monkeypatch)
    world.go(utc("2026-03-03T02:06:30"))
    brake(world, "resume", "s", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-03T02:07:10"))
    said = " ".join(world.ask("1").steady)
    assert "was made at 02:06:30 for the occurrence of s at 2026-03-03 01:59:00" in said
    assert "queue mail was paused" not in said


def test_a_death_says_whether_its_tries_or_its_handler_ended_it(world: World) -> None:
    world.file("defaults: {retry: {max_attempts: 2, delays: [1s]}}\n", s='cron: "* * * * *"')
    world.tick(utc("2026-03-03T01:58:10"))
    world.plan = [give_up, fail(), fail()]
    world.ticks(utc("2026-03-03T01:59:10"), utc("2026-03-03T02:01:10"))
    gave_up = "after it failed 1 of 2 tries: its handler raised GiveUp, which ends all tries."
    assert gave_up in world.ask("s", "--at", "01:59")
    assert "after it failed 2 of 2 tries." in world.ask("s", "--at", "02:00")


@pytest.mark.parametrize("due", ["run_at", None])
def test_a_pause_that_delayed_a_retry_by_a_minute_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, due: str | None
) -> None:
    world.file("defaults: {retry: {delays: [1m], jitter: 0}}\n")
    world.plan = [fail()] if due else [fail(), fail()]
    put(world.database, job_type="t.work")
    world.tick(utc("2026-03-02T09:00:10"))
    brake(world, "pause", "--queue", "default", "--why", "deploy", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-02T09:01:40"))
    brake(world, "resume", "--queue", "default", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-02T09:02:10"))
    world.tick(utc("2026-03-02T09:04:10"))
    said = "Attempt 2 was due at 09:01:10 and started 1m late, at 09:02:10: " if due else "Before attempt 2 began, "
    assert f"{said}queue default was paused by ada from 09:00:10 to 09:01:4" in world.ask("1")


@pytest.mark.parametrize("made", ["due at once", "due later", "triggered", "held back until then"])
def test_why_a_first_attempt_started_hours_late(world: World, monkeypatch: pytest.MonkeyPatch, made: str) -> None:
    world.file(s='cron: "0 0 1 1 *"')
    world.ticks(utc("2026-03-02T08:59:10"), utc("2026-03-02T09:00:10"))
    world.go(utc("2026-03-02T09:00:40"))
    if made == "triggered":
        brake(world, "trigger", "s", monkeypatch=monkeypatch)
    else:
        put(
            world.database,
            job_type="t.work",
            run_at=utc(f"2026-03-02T09:{'40:00' if made == 'due later' else '00:40'}"),
        )
    if made == "held back until then":
        brake(world, "pause", "--queue", "default", "--until", "2026-03-02T11:30", monkeypatch=monkeypatch)
        world.ticks(utc("2026-03-02T09:01:10"), utc("2026-03-02T11:29:10"), every=timedelta(minutes=2))
    world.tick(utc("2026-03-02T11:30:10"))
    told = world.ask("1")
    quiet = ", at 11:30:10: no tick reached the database between 09:00:10 and 11:30:10."
    assert (quiet in told) == (made != "held back until then")
    assert ("It was held back: queue default was paused" in told) == (made == "held back until then")


def test_why_a_retry_started_hours_late(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file("defaults: {retry: {delays: [4m]}}\n")
    world.plan = [fail(), fail(), fail()]
    put(world.database, job_type="t.work")
    world.tick(utc("2026-03-02T09:00:10"))
    world.go(utc("2026-03-02T09:01:00"))
    brake(world, "pause", "--all", monkeypatch=monkeypatch)
    world.ticks(utc("2026-03-02T09:01:10"), utc("2026-03-02T10:00:10"))
    world.go(utc("2026-03-02T10:00:30"))
    brake(world, "resume", "--all", monkeypatch=monkeypatch)
    world.tick(utc("2026-03-02T10:01:10"))  # attempt 2
    world.tick(utc("2026-03-02T13:00:10"))  # attempt 3
    told = world.ask("1")
    assert "Before attempt 2 began, everything was paused by ada from 09:01:00 to 10:00:3" in told
    assert "Before attempt 3 began, no tick reached the database between 10:01:10 and 13:00:10." in told
    registered = registry._registered.pop("t.work")
    world.ticks(utc("2026-03-02T13:01:10"), utc("2026-03-02T13:20:10"))
    registry._registered["t.work"] = registered
    world.tick(utc("2026-03-02T16:21:10"))  # attempt 4
    [*_, passed_over, late, last] = world.ask("1").steady
    assert passed_over.startswith(
        "The tick that began at 13:20:10 on alpha did not start it: no host knew the job type"
    )
    assert re.sub(r"at 13:0\d:\d\d and started \dh\d\dm late", "at … and started … late", late) == (
        "Attempt 4 was due at … and started … late, at 16:21:10: no tick reached the database between 13:20:10 and "
        "16:21:10."
    )
    assert last == "Attempt 4 succeeded at 16:21:10 on alpha, after a moment."
