"""Runners that die, freeze, or lose their database in the middle of a job: what is recorded.

No work is lost or done twice.

Real ticks, killed and stopped by their pid; the effects file says how often handlers really ran.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from support.commands import until
from support.postgres import PostgresServer
from support.ticking import Project, Tick, a_day_passes, due_six_hours_ago, events, patched, rivals

from cronjobs.clock import SYSTEM
from cronjobs.engine.config.settings import RunSettings, Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.execution.output import divert_streams
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs import registry as jobs
from cronjobs.engine.schema import migrations
from cronjobs.engine.tick.result import Result, TickFilter
from cronjobs.engine.tick.tick import Tick as TickInProcess
from cronjobs.engine.tick.watchdog import Watchdog
from cronjobs.errors import DatabaseUnreachable
from cronjobs.events import Event

pytestmark = [pytest.mark.slow, pytest.mark.either]

NewProject = Callable[[str], Project]

SHORT_LEASE = "run: {workers: 2, lease: 4s}\n"

HANDLERS = '''
@job("c.frozen", timeout="10s")
def frozen(ctx):
    """Ends once the test opens the gate; the second attempt is quick."""
    say("start", ctx)
    wait_for(f"gate-{ctx.attempt}")
    say("end", ctx)
'''

WITHOUT_WATCHDOG = """
from cronjobs.engine.tick.watchdog import Watchdog
Watchdog.stand_at = lambda self, instant: None
"""

# The runner then writes its result first when it wakes. Otherwise it would renew its lease first.
WITHOUT_HEARTBEAT = (
    WITHOUT_WATCHDOG
    + """
from cronjobs.engine.rules import lease
assert lease.heartbeat_s
lease.heartbeat_s = lambda lease_s: 1000.0
"""
)

KILLED_AFTER_CLAIM = """
import os, signal
from cronjobs.engine.execution.worker_threads import Workers
Workers.hand = lambda self, attempt: os.kill(os.getpid(), signal.SIGKILL)
"""


def began(project: Project, tick: Tick) -> bool:
    return any(effect.pid == tick.pid for effect in project.effects("start"))


def ran_or_ended(project: Project, tick: Tick, jobs: int) -> bool:
    return len(project.times_ran()) >= jobs or tick.process.poll() is not None


# --- kill -9 ----------------------------------------------------------------------------------------------------------


ELSEWHERE: dict[str, Any] = {"env": {"CRONJOBS_HOST": "elsewhere"}}  # from where no death here can be proven


def test_a_tick_killed_in_mid_job_leaves_it_lost_and_other_hosts_run_it_after_its_lease(project: Project) -> None:
    project.configure(SHORT_LEASE)
    quick_id, gated_id = project.add("t.quick"), project.add("t.gated")
    tick = project.start()
    until(lambda: project.effects("start") and project.outcomes(quick_id))
    tick.send(signal.SIGKILL)
    assert tick.wait() == -signal.SIGKILL
    neighbour_id = project.add("t.quick")
    early = project.tick(**ELSEWHERE)
    assert early.wait() == 0
    assert project.times_ran("start") == {gated_id: 1}  # the job's lease is still in force
    assert project.outcomes(neighbour_id) == ["succeeded"]
    project.open()
    until(project.lease_ended)
    assert project.tick(**ELSEWHERE).wait() == 0
    assert project.outcomes(gated_id) == ["lost", "succeeded"]
    after = project.job(gated_id)
    assert (after["status"], after["failures"], after["losses"]) == ("succeeded", 0, 1)
    assert project.times_ran() == {quick_id: 1, neighbour_id: 1}
    assert events(project.log(), "job.lost")


def test_a_tick_killed_in_mid_job_is_recovered_by_the_next_of_its_host_at_once(project: Project) -> None:
    project.configure("run: {lease: 1h}\n")
    job_id = project.add("t.gated")
    tick = project.start()
    until(lambda: project.effects("start"))
    tick.send(signal.SIGKILL)
    tick.wait()
    project.open()
    assert project.tick().wait() == 0
    assert project.outcomes(job_id) == ["lost", "succeeded"]
    assert project.times_ran("end") == {job_id: 1}


def test_a_tick_killed_between_the_claim_and_the_start_leaves_it_lost_and_not_begun(project: Project) -> None:
    project.configure(SHORT_LEASE)
    job_id = project.add("t.quick")
    assert project.tick(**patched(project, KILLED_AFTER_CLAIM)).wait() == -signal.SIGKILL
    assert project.effects() == []
    assert project.job(job_id)["status"] == "running"
    until(project.lease_ended)
    assert project.tick().wait() == 0
    assert project.outcomes(job_id) == ["lost", "succeeded"]
    assert project.times_ran() == {job_id: 1}


def test_a_crash_in_mid_run_holds_its_schedule_back_no_longer_than_its_lease(project: Project) -> None:
    project.configure(SHORT_LEASE + f"schedules:\n  s: {{{due_six_hours_ago()}, job: t.gated, overlap: skip}}\n")
    assert project.tick().wait() == 0
    a_day_passes(project)
    tick = project.start()
    until(lambda: project.effects("start"))
    tick.send(signal.SIGKILL)
    tick.wait()
    a_day_passes(project)
    assert project.tick(**ELSEWHERE).wait() == 0  # the job's row still says running, so this occurrence gives way
    project.open()
    until(project.lease_ended)
    assert project.tick(**ELSEWHERE).wait() == 0
    a_day_passes(project)
    assert project.tick().wait() == 0
    settled = project.sql("SELECT outcome FROM cronjobs_occurrences ORDER BY last_for")
    assert [outcome for (outcome,) in settled] == ["enqueued", "skipped", "enqueued"]
    assert set(project.statuses()) == {"succeeded"}


def test_a_job_whose_runners_always_die_is_dead_after_max_losses(project: Project) -> None:
    project.configure("run: {workers: 1, lease: 4s, max_losses: 2}\n")
    job_id, quick_id = project.add("t.gated"), project.add("t.quick", priority=6)
    for _ in range(2):
        tick = project.start()
        until(partial(began, project, tick))
        tick.send(signal.SIGKILL)
        tick.wait()
        project.let_leases_end()
    assert project.tick().wait() == 1
    assert project.job(job_id)["status"] == "dead"
    assert project.outcomes(job_id) == ["lost", "lost"]
    assert project.outcomes(quick_id)[-1] == "succeeded"


# --- frozen past the lease --------------------------------------------------------------------------------------------


def freeze_past_the_lease(project: Project, **changes: Any) -> tuple[Tick, int]:
    """A tick that slept through its lease, while another one ran the job."""
    project.configure(SHORT_LEASE, HANDLERS)
    job_id = project.add("c.frozen")
    tick = project.start(**changes)
    until(lambda: project.effects("start"))
    tick.send(signal.SIGSTOP)
    until(project.lease_ended)
    project.open("gate-2")
    assert project.tick().wait() == 0
    assert project.outcomes(job_id) == ["lost", "succeeded"]
    project.open("gate-1")
    return tick, job_id


def test_a_tick_frozen_past_its_lease_dies_before_that_ends_and_changes_nothing(project: Project) -> None:
    tick, _ = freeze_past_the_lease(project)
    before = project.everything()
    tick.send(signal.SIGCONT)
    assert tick.wait() == -signal.SIGKILL  # SIGALRM waits for whoever is stopped
    assert project.everything() == before


@pytest.mark.parametrize("patch", [WITHOUT_WATCHDOG, WITHOUT_HEARTBEAT], ids=["renewing", "finishing"])
def test_a_tick_frozen_past_its_lease_without_a_watchdog_is_refused_by_the_fence_and_says_so(
    project: Project, patch: str
) -> None:
    tick, job_id = freeze_past_the_lease(project, **patched(project, patch))
    before = project.everything()
    tick.send(signal.SIGCONT)
    assert tick.wait() == 0
    assert project.everything()[:2] == before[:2]
    [said] = events(project.log(), "job.lease_lost")
    assert f"job_id={job_id}" in said
    assert "job.lease_lost" in tick.stderr


@pytest.mark.parametrize("patch", [WITHOUT_WATCHDOG, WITHOUT_HEARTBEAT], ids=["renewing", "finishing"])
def test_a_job_that_runs_again_elsewhere_is_not_touched_by_its_first_runner(project: Project, patch: str) -> None:
    """The job is in its second attempt when the first runner wakes.

    A check of the status alone would accept that runner's result.
    """
    project.configure(SHORT_LEASE, HANDLERS)
    job_id = project.add("c.frozen")
    first = project.start(**patched(project, patch))
    until(lambda: project.effects("start"))
    first.send(signal.SIGSTOP)
    until(project.lease_ended)
    second = project.start()
    until(lambda: len(project.effects("start")) == 2)
    project.open("gate-1")
    first.send(signal.SIGCONT)
    assert first.wait() == 0
    assert events(project.log(), "job.lease_lost")
    assert project.job(job_id)["attempts"] == 2
    assert project.outcomes(job_id) == ["lost"]
    project.open("gate-2")
    assert second.wait() == 0
    assert project.outcomes(job_id) == ["lost", "succeeded"]
    [[runner]] = project.sql(f"SELECT runner FROM cronjobs_job_runs WHERE job_id = {job_id} AND attempt = 2")
    assert f":{second.pid}:" in runner


# --- an answer that never came ----------------------------------------------------------------------------------------


class LosesAnswers(Database):
    """Commits, and then says that the connection broke: for the transactions that the test names by their number."""

    def __init__(self, url: str) -> None:
        super().__init__(parse_url(url))
        self.writes = 0
        self.lose: set[int] = set()
        self.refuse: set[int] = set()

    @contextmanager
    def write(self, *, patience: float = 10.0, next_in_line: bool = False) -> Iterator[Connection]:
        self.writes += 1
        number = self.writes
        if number in self.refuse:
            raise DatabaseUnreachable("test", "it was away")
        with super().write(patience=patience, next_in_line=next_in_line) as connection:
            yield connection
        if number in self.lose:
            raise DatabaseUnreachable("test", "the answer to COMMIT was lost")


class NoWatchdog(Watchdog):
    def __init__(self) -> None:
        self.stood_at: list[float] = []

    def stand_at(self, instant: float) -> None:
        self.stood_at.append(instant)


@pytest.fixture
def ran() -> Iterator[list[int]]:
    """Ids of the jobs that a handler in this process ran."""
    before = dict(jobs._registered)
    seen: list[int] = []

    @jobs.job("in.process", timeout="2s")
    def in_process(ctx: Any) -> dict[str, int]:
        seen.append(ctx.job_id)
        return {"id": ctx.job_id}

    yield seen
    jobs._registered.clear()
    jobs._registered.update(before)


def tick_here(database: Database, folder: Path, said: list[Event], workers: int = 2, budget_s: float = 50) -> Result:
    settings = Settings(
        file=folder / "cronjobs.yaml", folder=folder, run=RunSettings(workers=workers, lease=timedelta(minutes=1))
    )
    now = SYSTEM.monotonic()
    return TickInProcess(
        settings=settings,
        database=database,
        identity=Identity.here(),
        clock=SYSTEM,
        watchdog=NoWatchdog(),
        began=now,
        deadline=now + budget_s,
        emit=said.append,
        limits=TickFilter(),
    ).run()


@pytest.mark.parametrize("lost", range(1, 6))
def test_a_lost_answer_to_any_commit_is_settled_by_reading(
    database_url: str, tmp_path: Path, ran: list[int], lost: int
) -> None:
    """One worker and two jobs: claim, finish and claim, finish, record; each of their answers is lost once."""
    project = Project(tmp_path, database_url)
    ids = [project.add("in.process") for _ in range(2)]
    database = LosesAnswers(database_url)
    database.lose = {lost}
    said: list[Event] = []
    result = tick_here(database, tmp_path, said, workers=1)
    database.close()
    assert ran == ids
    assert [project.outcomes(job_id) for job_id in ids] == [["succeeded"]] * 2
    assert project.value("SELECT max(attempts) FROM cronjobs_jobs") == 1
    assert (result.counts.succeeded, result.counts.lease_lost, result.trouble) == (2, 0, None)
    assert project.value("SELECT count(*) FROM cronjobs_ticks WHERE finished_at IS NOT NULL") == 1


def test_a_claim_whose_answer_was_lost_is_renewed_when_it_is_found(
    database_url: str, tmp_path: Path, ran: list[int]
) -> None:
    """The lease began when the answer was lost, not when the rows were read later."""
    project = Project(tmp_path, database_url)
    project.add("in.process")
    project.add_many("in.process", 3)
    database = LosesAnswers(database_url)
    database.lose, database.refuse = {1}, {2, 3, 4}
    result = tick_here(database, tmp_path, [])
    database.close()
    assert (result.counts.succeeded, len(ran)) == (4, 4)


def test_one_bad_value_in_a_batch_costs_only_its_own_texts(
    database_url: str, tmp_path: Path, ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text is cleaned before; should anything slip through, the others of its batch are recorded whole."""
    project = Project(tmp_path, database_url)
    together = set(range(3))

    @jobs.job("in.bad", timeout="2s")
    def bad(ctx: Any, n: int) -> None:
        together.discard(n)
        until(lambda: not together)
        print("POISON" if n == 1 else "fine")

    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    divert_streams()
    poison = "refused" if project.is_sqlite else "\x00"
    monkeypatch.setattr(
        "cronjobs.engine.rules.ending._stored", lambda text: poison if text and "POISON" in text else text
    )
    if project.is_sqlite:
        project.sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON cronjobs_job_runs WHEN NEW.output = 'refused' "
            "BEGIN SELECT RAISE(ABORT, 'bad value'); END"
        )
    ids = [project.add("in.bad", f'{{"n": {n}}}') for n in range(3)]
    database = Database(parse_url(database_url))
    said: list[Event] = []
    result = tick_here(database, tmp_path, said, workers=3)
    database.close()
    assert result.counts.succeeded == 3
    assert project.statuses() == {"succeeded": 3}
    outputs = [project.value(f"SELECT output FROM cronjobs_job_runs WHERE job_id = {job_id}") for job_id in ids]
    assert outputs == ["fine\n", None, "fine\n"]
    assert project.value(f"SELECT error FROM cronjobs_job_runs WHERE job_id = {ids[1]}")


# --- foreign locks ----------------------------------------------------------------------------------------------------


@contextmanager
def psql_holds(project: Project, statement: str) -> Iterator[None]:
    """Someone's open psql session."""
    connection = project.connect()
    connection.execute("BEGIN")
    connection.execute(statement)
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def test_a_row_locked_by_psql_for_the_whole_tick_stops_nobody_else(postgres_project: Project) -> None:
    """Of the jobs whose rows are locked, one ends, one exceeds its timeout and one waits. All other jobs go on."""
    project = postgres_project.configure(
        "run: {workers: 4, lease: 8s}\n",
        """
@job("c.slow", timeout="1s")
def slow(ctx):
    say("start", ctx)
    time.sleep(60)
""",
    )
    ends_id, slow_id = project.add("t.gated", timeout_s=15), project.add("c.slow")
    other_id = project.add("t.gated", '{"gate": "other"}', timeout_s=15)
    tick = project.start("--budget", "20s")
    until(lambda: len(project.effects("start")) == 3)
    renewed = f"SELECT locked_until FROM cronjobs_jobs WHERE id = {other_id}"
    with psql_holds(project, f"SELECT * FROM cronjobs_jobs WHERE id IN ({ends_id}, {slow_id}) FOR UPDATE"):
        project.open()
        first = project.value(renewed)
        quick_ids = [project.add("t.quick", timeout_s=1) for _ in range(3)]
        until(lambda: all(project.outcomes(job_id) == ["succeeded"] for job_id in quick_ids), 5)
        until(lambda: project.value(renewed) > first, 5)
        until(lambda: events(project.log(), "job.timed_out"), 5)
        late_id = project.add("t.quick", timeout_s=1)
        until(lambda: project.outcomes(late_id) == ["succeeded"], 5)  # also while an overdue row cannot be written
        assert project.outcomes(ends_id) == project.outcomes(slow_id) == []
    until(lambda: project.outcomes(ends_id) == ["succeeded"], 5)
    until(lambda: project.outcomes(slow_id) == ["timed_out"], 5)
    project.open("other")
    assert tick.wait() == 0
    assert project.times_ran() == dict.fromkeys([*quick_ids, late_id], 1)
    assert not events(project.log(), "database.trouble")


def test_a_row_locked_to_the_very_end_does_not_hold_the_tick_and_is_told(postgres_project: Project) -> None:
    project = postgres_project.configure("run: {workers: 2}\n")
    locked_id, quick_id = project.add("t.gated", timeout_s=1), project.add("t.quick", timeout_s=1)
    tick = project.start("--budget", "3s")
    until(lambda: project.effects("start"))
    with psql_holds(project, f"SELECT * FROM cronjobs_jobs WHERE id = {locked_id} FOR UPDATE"):
        project.open()
        cpu = os.times()
        assert tick.wait() == 0
    assert tick.took_s < 4
    spent = os.times()
    # Waiting for the lock is no busy loop: the start of Python is most of it.
    assert spent.children_user + spent.children_system - cpu.children_user - cpu.children_system < 1.5
    assert "job.end_not_recorded" in tick.stderr
    assert project.outcomes(quick_id) == ["succeeded"]
    project.let_leases_end()
    assert project.tick().wait() == 0
    assert project.outcomes(locked_id) == ["lost", "succeeded"]


def test_a_caller_who_holds_an_idempotency_key_open_stops_nobody(postgres_project: Project) -> None:
    project = postgres_project.configure("run: {workers: 2}\n")
    ids = [project.add("t.quick") for _ in range(5)]
    insert = "INSERT INTO cronjobs_jobs (job_type, idempotency_key) VALUES ('t.quick', 'order:1')"
    with psql_holds(project, insert):
        tick = project.tick()
        assert tick.wait() == 0
        assert tick.took_s < 5
    assert project.times_ran() == dict.fromkeys(ids, 1)


# --- a database that goes away ----------------------------------------------------------------------------------------


def test_postgresql_restarted_in_mid_tick_loses_and_doubles_nothing(
    own_postgres_server: PostgresServer, new_project: NewProject
) -> None:
    project = new_server_project(own_postgres_server, new_project, "run: {workers: 2, lease: 20s}\n")
    project.add_many("t.quick", 300)
    gated_id = project.add("t.gated", timeout_s=15, priority=0)
    tick = project.start()
    until(lambda: project.effects("start") and len(project.times_ran()) > 20)
    own_postgres_server.kill()
    own_postgres_server.start()
    project.open()
    assert tick.wait() in (0, 4)
    assert project.outcomes(gated_id) == ["succeeded"]
    project.let_leases_end()
    assert project.tick().wait() == 0
    assert project.statuses() == {"succeeded": 301}
    assert set(project.times_ran().values()) == {1}
    assert len(project.times_ran()) == 300


def test_a_database_away_for_longer_than_the_lease_ends_the_tick_before_the_lease(
    own_postgres_server: PostgresServer, new_project: NewProject
) -> None:
    project = new_server_project(own_postgres_server, new_project, SHORT_LEASE)
    job_id = project.add("t.gated", timeout_s=15)
    tick = project.start()
    until(lambda: project.effects("start"))
    away = SYSTEM.monotonic()
    own_postgres_server.kill()
    assert tick.wait() == -signal.SIGALRM
    assert tick.gone_at is not None
    assert tick.gone_at - away < 4  # its lease
    assert "database.trouble" in project.log()
    own_postgres_server.start()
    project.open()
    until(project.lease_ended)
    assert project.tick().wait() == 0
    assert project.outcomes(job_id) == ["lost", "succeeded"]
    assert [effect.pid for effect in project.effects("end")] == [project.ticks[-1].pid]


def test_a_stopped_tick_ends_within_its_grace_while_the_database_is_away(
    own_postgres_server: PostgresServer, new_project: NewProject
) -> None:
    project = new_server_project(own_postgres_server, new_project, "run: {shutdown_grace: 1s}\n")
    project.add("t.gated", timeout_s=30)
    tick = project.start()
    until(lambda: project.effects("start"))
    own_postgres_server.kill()
    stopped = SYSTEM.monotonic()
    tick.send(signal.SIGTERM)
    tick.wait()
    assert tick.gone_at is not None
    assert tick.gone_at - stopped < 20  # its budget would end later


def test_what_ended_while_the_database_was_away_is_no_time_out(
    own_postgres_server: PostgresServer, new_project: NewProject
) -> None:
    project = new_server_project(own_postgres_server, new_project)
    project.add("t.gated", timeout_s=4)
    tick = project.start("--budget", "8s")
    until(lambda: project.effects("start"))
    own_postgres_server.kill()
    project.open()
    until(lambda: project.effects("end"))
    assert tick.wait() == 4
    assert project.effects("end")
    assert not events(project.log(), "job.timed_out")
    assert "the database could not be reached" in project.log()


def test_a_database_away_while_nothing_is_held_ends_in_exit_4_with_one_line(
    own_postgres_server: PostgresServer, new_project: NewProject
) -> None:
    project = new_server_project(own_postgres_server, new_project)
    own_postgres_server.stop()
    tick = project.tick()
    assert tick.wait() == 4
    assert tick.stderr.count("\n") == 1
    assert own_postgres_server.password not in tick.stderr


def new_server_project(server: PostgresServer, new_project: NewProject, yaml: str = "") -> Project:
    server.start()
    server.execute("CREATE DATABASE shop")
    database = Database(parse_url(server.url("shop")))
    migrations.upgrade(database)
    database.close()
    return new_project(server.url("shop")).configure(yaml)


# --- more than one at a time ------------------------------------------------------------------------------------------


def test_ticks_killed_one_after_another_get_all_work_done_and_nothing_twice_at_once(project: Project) -> None:
    """Whoever is killed had at most a few in hand; each of those begins again only after the lease."""
    project.configure(SHORT_LEASE)
    project.add_many("t.quick", 400)
    for seen in (1, 60, 150):
        tick = project.start()
        # After two of them the type may be suspected, and twenty of its jobs run in child processes.
        until(partial(ran_or_ended, project, tick, seen), 60)
        tick.send(signal.SIGKILL)
        tick.wait()
    with rivals(project):
        until(lambda: project.statuses() == {"succeeded": 400}, 60)
    for job_id, times in project.times_ran().items():
        assert times <= 1 + project.job(job_id)["losses"]
    assert len(project.times_ran()) == 400
