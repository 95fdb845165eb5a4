"""A job type that kills its runners is found at the second runner, and then harms no other job."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from sqlalchemy import insert
from support.hosts import Host, put
from support.lost import paying
from support.ticking import Project, events

from cronjobs.clock import SYSTEM, Clock
from cronjobs.desk.insight.findings import troubles
from cronjobs.desk.insight.gathering import look
from cronjobs.engine.config.settings import JobTypeSettings, RunSettings, Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import crashing_types
from cronjobs.engine.execution import attempt as worker
from cronjobs.engine.execution import child, handler, process
from cronjobs.engine.execution.attempt import InFlight
from cronjobs.engine.execution.child_protocol import Request
from cronjobs.engine.execution.command import Command
from cronjobs.engine.jobs.context import StopSignal
from cronjobs.engine.jobs.job_types import load
from cronjobs.engine.rules.crashing_types import CLEAN_ENDS, Crashing, EndCounts, after_death, count_ends, is_crash
from cronjobs.engine.store import crashing_types as store
from cronjobs.engine.store.claims import claim
from cronjobs.engine.tick.claim_planner import ClaimPlanner
from cronjobs.engine.tick.result import TickFilter
from cronjobs.model import (
    CancelledByRequest,
    Failed,
    Finished,
    Interrupted,
    Job,
    Lost,
    Outcome,
    Released,
    Succeeded,
    TimedOut,
)
from cronjobs.testing import FakeClock

NOW = datetime(2026, 3, 2, 8, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def runner(tick: str, boot: str = "boot", host: str = "web1") -> str:
    return f"{host}:{boot}:4026530000:77:1234:{tick}"


# --- decided ----------------------------------------------------------------------------------------------------------


def test_a_type_is_suspected_by_the_first_runner_and_found_by_the_second() -> None:
    first = after_death(None, "t", runner("a"), NOW)
    assert first == Crashing("t", NOW, runner("a"), suspected=True)
    assert after_death(first, "t", runner("a"), NOW + MINUTE) is None  # its other jobs
    found = after_death(first, "t", runner("b"), NOW + MINUTE)
    assert found == Crashing("t", NOW + MINUTE, runner("b"), suspected=False)
    assert after_death(found, "t", runner("c"), NOW + 2 * MINUTE) is None  # nor is its hour begun anew


def test_a_reboot_an_hour_or_a_name_that_is_none_of_ours_is_no_evidence() -> None:
    first = Crashing("t", NOW, runner("a"), suspected=True)
    rebooted = after_death(first, "t", runner("b", boot="another"), NOW + MINUTE)
    assert rebooted == Crashing("t", NOW + MINUTE, runner("b", boot="another"), suspected=True)
    late = after_death(first, "t", runner("b"), NOW + timedelta(hours=1))
    assert late is not None
    assert late.suspected
    assert after_death(first, "t", "someone", NOW + MINUTE) is None
    over = Crashing("t", NOW, runner("a"))
    again = after_death(over, "t", runner("b"), NOW + timedelta(hours=1))
    assert again is not None
    assert again.suspected


@pytest.mark.parametrize(
    ("outcome", "crashed"),
    [
        (Succeeded(), False),
        (Failed("no luck", "RuntimeError"), False),
        (Failed("killed by SIGSEGV", "SIGSEGV"), True),
        (Failed("its process ended", "exit-0"), True),
        (Failed("killed by signal 40", "signal 40"), True),
        (Failed("its launcher ended", "LauncherDied"), True),
        (TimedOut(), None),  # whether it held the interpreter nobody knows
        (Interrupted(), None),
        (CancelledByRequest(), None),
        (Released(), None),
        (Lost(), None),
    ],
)
def test_what_would_have_taken_a_tick_down_is_a_crash(outcome: Outcome, crashed: bool | None) -> None:
    assert is_crash(outcome) is crashed


def test_clean_ends_count_from_the_last_crash_on() -> None:
    good: Outcome = Succeeded()
    bad: Outcome = Failed("killed by SIGSEGV", "SIGSEGV")
    ended: list[tuple[str, Outcome]] = [("a", good), ("a", bad), ("a", good), ("b", good), ("b", good)]
    ended.append(("c", Interrupted()))
    assert count_ends(Finished(Job(1, name, {}), outcome) for name, outcome in ended) == {
        "a": EndCounts(1, crashed=True),
        "b": EndCounts(2),
    }


# --- on rows ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def ran() -> Iterator[list[str]]:
    with paying() as seen:
        yield seen


@pytest.fixture
def host(database: Database, tmp_path: Path, ran: list[str]) -> Host:
    return Host(database, tmp_path)


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which jobs were begun in child processes; here their handlers run in the thread all the same."""
    seen: list[str] = []

    def run_here(attempt: worker.Attempt, around: worker.WorkerContext, clock: Clock) -> tuple[Outcome, str | None]:
        seen.append(attempt.job.job_type)
        attempt.begun = True
        if attempt.job.max_attempts == 1:
            return Failed("killed by SIGSEGV", "SIGSEGV"), None
        return handler._run_handler(attempt, around, clock)

    monkeypatch.setattr(handler, "_run_apart", run_here)
    return seen


def die(host: Host, tick: str, *job_types: str, boot: str = "boot", without_database: bool = False) -> None:
    """A tick takes a job of each type, dies, and is found. It may have died because it lost the database."""
    ids = [put(host.database, job_type=name, queue="held", max_attempts=99) for name in job_types]
    types = load(host.settings)
    with host.database.write() as connection:
        found = store.crashing(connection)
        isolated = types.isolating({each.job_type for each in found})
        admission = ClaimPlanner(host.settings, isolated, TickFilter("held"), 4, runner=MINUTE).admission(
            MINUTE, InFlight()
        )
        claimed = claim(connection, limit=9, locked_by=runner(tick, boot), lease=MINUTE, admission=admission).jobs
    assert {job.id for job in claimed} >= set(ids)
    began = host.database.clock.now()
    host.database.clock.advance(2 * MINUTE)  # type: ignore[attr-defined]
    outage = {"since": began.isoformat(), "until": (began + MINUTE).isoformat(), "why": "cannot be reached"}
    # This tick recovers jobs and runs none.
    host.tick(queue="none", unrecorded_before=[outage] if without_database else [])


def crashing_now(host: Host) -> list[str]:
    with host.database.read() as connection:
        return [each.job_type for each in store.crashing(connection)]


def test_the_second_runner_that_dies_with_it_is_enough(host: Host, apart: list[str], ran: list[str]) -> None:
    die(host, "first", "pay.tries")
    assert crashing_now(host) == []
    die(host, "second", "pay.tries", "pay.single")
    assert crashing_now(host) == ["pay.tries"]
    [said] = host.said("job_type.crashing")
    assert said.facts["job_type"] == "pay.tries"
    for name in ("pay.tries", "pay.single"):
        put(host.database, job_type=name, queue="other")
    host.tick(50, queue="other")
    assert apart == ["pay.tries"]
    assert sorted(ran) == ["pay.single", "pay.tries"]


def test_a_runner_that_lost_the_database_did_not_crash(host: Host) -> None:
    die(host, "first", "pay.tries", without_database=True)
    die(host, "second", "pay.tries")
    die(host, "third", "pay.tries", without_database=True)
    assert crashing_now(host) == []
    die(host, "fourth", "pay.tries")
    assert crashing_now(host) == ["pay.tries"]


def test_the_two_may_not_be_of_different_boots(host: Host) -> None:
    die(host, "first", "pay.tries", boot="one")
    die(host, "second", "pay.tries", boot="two")
    assert crashing_now(host) == []
    die(host, "third", "pay.tries", boot="two")
    assert crashing_now(host) == ["pay.tries"]


def test_runners_that_are_found_dead_together_are_one(host: Host, clock: FakeClock) -> None:
    """All jobs that ran at that moment died, as by a reboot."""
    types = load(host.settings)
    admission = ClaimPlanner(host.settings, types, TickFilter(), 4, runner=MINUTE).admission(MINUTE, InFlight())
    for tick in ("a", "b", "c"):
        put(host.database, job_type="pay.tries")
        with host.database.write() as connection:
            claim(connection, limit=1, locked_by=runner(tick), lease=MINUTE, admission=admission)
    clock.advance(2 * MINUTE)
    assert host.tick(queue="none").recovered == 3
    assert crashing_now(host) == []


def test_a_type_in_processes_of_its_own_is_not_to_blame(host: Host) -> None:
    host.carry(job_types={"pay.tries": JobTypeSettings("pay.tries", isolation="process")})
    for tick in ("a", "b", "c"):
        die(host, tick, "pay.tries")
    assert crashing_now(host) == []


def found(host: Host, job_type: str, clean_ends: int = 0) -> None:
    with host.database.write() as connection:
        values = {"job_type": job_type, "found_at": host.database.clock.now(), "clean_ends": clean_ends}
        connection.execute(insert(crashing_types).values(values))


def test_it_leaves_that_state_after_twenty_clean_ends_within_a_tick(
    host: Host, apart: list[str], ran: list[str]
) -> None:
    host.carry(run=RunSettings(workers=1))  # which claims none ahead
    found(host, "pay.tries")
    for _ in range(CLEAN_ENDS + 10):
        put(host.database, job_type="pay.tries")
    host.tick(50)
    assert len(ran) == CLEAN_ENDS + 10
    assert CLEAN_ENDS <= len(apart) < CLEAN_ENDS + 10
    assert crashing_now(host) == []
    assert host.said("job_type.cleared")


def test_a_healthy_backlog_clears_a_suspicion_between_two_ticks_that_are_killed(
    host: Host, apart: list[str], ran: list[str]
) -> None:
    for tick in ("a", "b", "c"):
        die(host, tick, "pay.tries")
        put(host.database, job_type="pay.tries", queue="other")
        host.tick(50, queue="other")
    assert crashing_now(host) == []
    assert (len(ran), apart) == (3, [])
    die(host, "d", "pay.tries")
    die(host, "e", "pay.tries")
    assert crashing_now(host) == ["pay.tries"]


def test_it_is_begun_as_long_as_its_timeout_fits_into_the_tick(
    host: Host, apart: list[str], ran: list[str], clock: FakeClock
) -> None:
    host.carry(job_types={"pay.tries": JobTypeSettings("pay.tries", timeout=timedelta(seconds=49.5))})
    found(host, "pay.tries")
    put(host.database, job_type="pay.tries")
    host.tick(51)  # with the grace of a process, the job would not fit into this tick
    assert (apart, ran) == (["pay.tries"], ["pay.tries"])


@pytest.mark.parametrize("for_crashes", [True, False])
def test_the_start_of_an_interpreter_that_only_crashes_call_for_costs_no_timeout(
    host: Host, ran: list[str], monkeypatch: pytest.MonkeyPatch, for_crashes: bool
) -> None:
    """On a busy host it takes seconds, and a job that is well in a thread would time out until it is dead."""
    seen: list[tuple[float, float, timedelta]] = []
    before = SYSTEM.monotonic()

    def note(command: Command, *_: Any, **__: Any) -> tuple[Outcome, None]:
        request = Request.decode(command.stdin)
        seen.append((request.ends_at - host.clock.monotonic(), request.timeout_s, command.timeout))
        return Succeeded(), None

    monkeypatch.setattr(process, "run_handler", note)
    isolation: Literal["thread", "process"] = "thread" if for_crashes else "process"
    declared = JobTypeSettings("pay.tries", timeout=timedelta(seconds=3), isolation=isolation)
    host.carry(job_types={"pay.tries": declared})
    if for_crashes:
        found(host, "pay.tries")
    put(host.database, job_type="pay.tries")
    host.tick(51)
    [(left_s, timeout_s, timeout)] = seen
    allowed_s = 8 if for_crashes else 3
    assert left_s == pytest.approx(allowed_s, abs=1 + SYSTEM.monotonic() - before)
    assert (timeout_s, timeout) == (3, timedelta(seconds=allowed_s))


def test_a_process_that_started_soon_gives_its_job_no_more_than_its_timeout(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[timedelta] = []

    def refuse(attempt: worker.Attempt) -> Outcome:
        seen.append(attempt.timeout)
        return Succeeded()

    monkeypatch.setattr(child, "registered", lambda: {"t": SimpleNamespace(source=None)})
    monkeypatch.setattr(worker.Attempt, "refusal", refuse)
    ends_at = SYSTEM.monotonic() + 8
    request = Request(Job(1, "t", {}), Settings(Path("cronjobs.yaml"), Path(), sqlite_url), ends_at, timeout_s=3)
    with tempfile.TemporaryFile() as told:
        assert child.run(request, StopSignal(), told.fileno()) == Succeeded()
    assert seen == [timedelta(seconds=3)]


def test_a_crash_begins_the_count_anew(host: Host, apart: list[str], clock: FakeClock) -> None:
    found(host, "pay.tries", clean_ends=CLEAN_ENDS - 1)
    put(host.database, job_type="pay.tries", max_attempts=1)
    host.tick(50)
    put(host.database, job_type="pay.tries")
    host.tick(50)
    assert crashing_now(host) == ["pay.tries"]


def test_after_an_hour_it_is_over(host: Host, apart: list[str], clock: FakeClock, ran: list[str]) -> None:
    found(host, "pay.tries")
    clock.advance(timedelta(minutes=59))
    assert crashing_now(host) == ["pay.tries"]
    clock.advance(MINUTE)
    assert crashing_now(host) == []
    put(host.database, job_type="pay.tries")
    host.tick(50)
    assert (apart, ran) == ([], ["pay.tries"])


def test_a_loss_after_it_left_is_a_first_one_again(host: Host, apart: list[str]) -> None:
    die(host, "first", "pay.tries")
    die(host, "second", "pay.tries")
    with host.database.write() as connection:
        assert store.note_ends(connection, {"pay.tries": EndCounts(CLEAN_ENDS)}) == ["pay.tries"]
    die(host, "third", "pay.tries")
    assert crashing_now(host) == []


def test_status_names_it(host: Host) -> None:
    found(host, "pay.tries", clean_ends=7)
    with host.database.read() as connection:
        health = look(connection, host.settings, load(host.settings))
    [trouble] = [each for each in troubles(health, host.settings) if each.kind == "crashing"]
    assert "pay.tries" in trouble.text
    assert "7 so far" in trouble.text


# --- with real processes ----------------------------------------------------------------------------------------------

MANY = """
@job("c.crash", timeout="10s", retry=RetryPolicy(base="1h", cap="2h"))
def crash(ctx): os._exit(1)

@job("t.good", timeout="10s")
def good(ctx): say("ran", ctx)
"""


@pytest.mark.slow
def test_many_jobs_that_crash_keep_the_good_ones_waiting_for_two_ticks(sqlite_project: Project) -> None:
    project = sqlite_project.configure("run: {budget: 20s}\n", MANY)
    for _ in range(8):
        project.add("c.crash", timeout_s=5)
        project.add("t.good")
    ticks = 0
    while project.value("SELECT count(*) FROM cronjobs_jobs WHERE job_type = 't.good' AND status <> 'succeeded'"):
        ticks += 1
        assert ticks <= 5, project.statuses()
        project.tick(within_s=60)
        if ticks >= 3:
            assert project.times_ran()  # the first of them, in the third tick at the latest
    assert {name for (name,) in project.sql("SELECT job_type FROM cronjobs_crashing_types WHERE suspected = 0")} >= {
        "c.crash"
    }
    assert any("c.crash" in line for line in events(project.log(), "job_type.crashing"))
    assert set(project.times_ran().values()) == {1}
