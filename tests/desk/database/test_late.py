"""``late`` counts only jobs that could run, so it does not blame ticks for other jobs."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from support.postgres import OWNER
from support.yard import MINUTE, START

from cronjobs.desk.cli.status_lines import _waiting_lines
from cronjobs.desk.insight.acking import acknowledge
from cronjobs.desk.insight.explain_named import explain_id
from cronjobs.desk.insight.finding import Finding, Severity
from cronjobs.desk.insight.findings import judge, troubles
from cronjobs.desk.insight.formatting import Times
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.health import Health
from cronjobs.desk.store import trends
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import Fault, JobType, JobTypes
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.store.job_types import Loaded, record_types
from cronjobs.engine.tick.mail_throttle import Alarm
from cronjobs.errors import Problem
from cronjobs.model import RetryPolicy
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.connects_as(OWNER)  # who may fill the tables


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@dataclass
class World:
    """A host that ticks, and knows one type."""

    database: Database
    folder: Path
    limits: tuple[Limit, ...] = (Limit("smtp", most=1),)

    def put(self, table: Any = tables.jobs, **values: Any) -> None:
        now = self.database.clock.now()
        if table is tables.jobs:
            values = {"job_type": "t.known", "run_at": now - 10 * MINUTE, "created_at": now - 10 * MINUTE} | values
        with self.database.write() as connection:
            connection.execute(insert(table).values(values))

    def tick(self, **values: Any) -> None:
        now = self.database.clock.now()
        with self.database.write() as connection:
            known = record_types(connection, Loaded(["t.known"]))
        row = {"host": "web1", "pid": 1, "version": "0", "fingerprint": "f", "schedules_on": 1, "job_types": known}
        times = {"started_at": now, "finished_at": now}
        self.put(tables.ticks, tick=secrets.token_hex(4), **(row | times | values))

    def running(self, **values: Any) -> None:
        held = {"locked_by": "web1:b:1:1:1:t", "locked_until": self.database.clock.now() + MINUTE, "attempts": 1}
        self.put(status="running", started_at=self.database.clock.now(), **held, **values)

    @property
    def settings(self) -> Settings:
        return Settings(file=self.folder / "f", folder=self.folder, limits=self.limits)

    def look(self) -> Health:
        with self.database.read() as connection:
            return look(connection, self.settings, JobTypes())

    def all(self) -> dict[str, Finding]:
        return {each.kind: each for each in troubles(self.look(), self.settings)}

    def found(self) -> dict[str, str]:
        return {kind: each.text for kind, each in self.all().items()}


def schedule(world: World, **definition: Any) -> None:
    at = world.database.clock.now() + timedelta(hours=1)
    given = {"cron": "0 0 1 1 *", "timezone": "UTC", "job": "t.known"} | definition
    world.put(tables.schedules, name="s", definition=given, fingerprint="f", seen_until=START, next_at=at)


def of_an_unknown_type(world: World) -> None:
    world.tick()
    world.put(job_type="t.misspelt")


def in_a_paused_queue(world: World) -> None:
    world.tick()
    world.put(tables.pauses, scope="queue", name="default", paused_at=START)
    world.put()


def behind_a_limit(world: World) -> None:
    world.tick()
    world.running(concurrency_key="smtp:1")
    world.put(concurrency_key="smtp:2")


def behind_its_schedule(world: World) -> None:
    world.tick()
    schedule(world)
    world.running(schedule="s")
    world.put(schedule="s")
    world.put(schedule="s")


def behind_both(world: World) -> None:
    world.tick()
    schedule(world)
    world.running(schedule="s", concurrency_key="smtp:1")
    world.put(schedule="s", concurrency_key="smtp:2")
    world.put(schedule="s", concurrency_key="smtp:3")


def without_a_tick(world: World) -> None:
    world.put()


@pytest.mark.parametrize(
    ("delay_s", "claims", "late"), [(10, 5, False), (10, 13, True), (300, 2, False), (300, 3, True)]
)
def test_a_released_job_is_late_once_its_releases_have_put_it_off_for_two_minutes(
    database: Database, tmp_path: Path, delay_s: int, claims: int, late: bool
) -> None:
    world = World(database, tmp_path)
    world.tick()
    now = world.database.clock.now()
    released = {"attempts": claims, "started_at": now, "last_failed_at": now, "last_error": "no process"}
    world.put(**released, run_at=now + timedelta(seconds=delay_s))
    assert world.found().keys() == ({"late"} if late else set())


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (of_an_unknown_type, {"unresolved"}),
        (in_a_paused_queue, set()),
        (behind_a_limit, set()),
        (behind_its_schedule, set()),
        (behind_both, set()),
        (without_a_tick, {"no_tick"}),
    ],
)
def test_a_job_that_could_not_run_is_not_late(
    database: Database, tmp_path: Path, make: Callable[[World], None], kinds: set[str]
) -> None:
    world = World(database, tmp_path)
    make(world)
    assert set(world.found()) - {"unresolved", "no_tick"} == set()
    assert kinds <= set(world.found())


def test_of_several_only_those_that_could_run_are_late(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    behind_both(world)
    world.put(job_type="t.misspelt")
    world.put(concurrency_key="other")
    world.put()
    assert world.found()["late"] == (
        "2 jobs have been due for more than 2m and have not started: the last ticks recorded no reason"
    )


def test_a_job_of_a_schedule_that_allows_overlap_is_late(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    world.tick()
    schedule(world, overlap="allow")
    world.running(schedule="s")
    world.put(schedule="s")
    assert world.found()["late"].startswith("1 job has")


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("long jobs", "all places for long jobs are taken (run.long_jobs)"),
        ("budget", "its timeout was longer than the time left in recent ticks (run.budget, --budget)"),
        ("slots", "the ticks are saturated: all their workers were busy until the end (run.workers)"),
        ("--limit", "recent ticks started as many jobs as --limit allows"),
        (
            "late",
            (
                "ticks with a free worker passed over 1 job of t.known; another transaction may hold its row (on "
                "PostgreSQL, see pg_stat_activity)"
            ),
        ),
    ],
)
def test_what_the_last_tick_says_of_them_is_the_reason(
    database: Database, tmp_path: Path, why: str, words: str
) -> None:
    world = World(database, tmp_path)
    world.tick(not_started=[{"why": why, "job_type": "t.known", "queue": "default", "jobs": 1}])
    world.put()
    assert world.found()["late"].endswith(f"has not started: {words}")


def test_an_ack_of_one_late_job_hides_no_late_job_of_another_queue_or_type(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    world.put()
    world.tick()
    finding, now = world.all()["late"], database.clock.now()
    with database.write() as connection:
        acknowledge(connection, finding, until=now + 60 * MINUTE, now=now, by="ada", host="web1", why=None)
    world.put()

    def is_alarm() -> bool:
        return next(each.alarm for each in judge(world.look(), world.settings) if each.kind == "late")

    assert not is_alarm(), "a job of the same queue and type"
    world.put(queue="other")
    assert is_alarm()


def held(world: World, why: str, jobs: Any = 1, **more: Any) -> None:
    """A tick that could take none of so many jobs, as they waited for others."""
    world.tick(not_started=[{"why": why, "job_type": "t.known", "queue": "default", "jobs": jobs, **more}])


@pytest.mark.parametrize("why", ["limits", "overlap"])
def test_until_the_next_tick_no_job_could_run_that_waited_for_others_in_the_last(
    database: Database, tmp_path: Path, why: str
) -> None:
    world = World(database, tmp_path)
    world.put()
    held(world, why)
    assert world.found().keys() == set()
    world.put()
    assert world.found()["late"].startswith("1 job has"), "the other one did not"
    world.tick()
    assert world.found()["late"].startswith("2 jobs have")


@pytest.mark.parametrize("jobs", [None, "1", [1]])
def test_a_record_that_is_no_count_excuses_no_job(database: Database, tmp_path: Path, jobs: Any) -> None:
    world = World(database, tmp_path)
    world.put()
    held(world, "limits", jobs)
    assert "late" in world.found()


def test_a_run_of_the_past_counts_from_when_it_was_made(database: Database, tmp_path: Path, clock: FakeClock) -> None:
    """A tick, a person who resumes a schedule, or one who backfills makes it: before, no tick could run it."""
    world = World(database, tmp_path)
    schedule(world, overlap="allow")
    for _ in range(2):
        world.put(schedule="s", run_at=START - timedelta(hours=1), created_at=START)
    world.tick()
    assert "late" not in world.found()
    clock.advance(2.5 * MINUTE)
    world.tick()
    found = world.all()["late"]
    assert found.text.startswith("2 jobs have")
    assert found.since == START + 2 * MINUTE


def resume(world: World, subject: str, ago: timedelta) -> None:
    at = world.database.clock.now() - ago
    world.put(tables.audit, action="resume", subject=subject, at=at)


@pytest.mark.parametrize(
    ("subject", "ago", "late"),
    [
        ("queue default", MINUTE, False),
        ("all", MINUTE, False),
        ("queue mail", MINUTE, True),
        ("schedule default", MINUTE, True),
        ("queue default", 3 * MINUTE, True),
    ],
)
def test_until_a_resume_no_job_could_run(
    database: Database, tmp_path: Path, subject: str, ago: timedelta, late: bool
) -> None:
    world = World(database, tmp_path)
    world.put()
    world.tick()
    resume(world, subject, ago)
    assert ("late" in world.found()) is late


@pytest.mark.parametrize(("ago", "late"), [(MINUTE, False), (3 * MINUTE, True), (-MINUTE, False)])
def test_until_the_end_of_a_pause_no_job_could_run(
    database: Database, tmp_path: Path, ago: timedelta, late: bool
) -> None:
    world = World(database, tmp_path)
    world.put()
    world.tick()
    now = world.database.clock.now()
    world.put(tables.pauses, scope="queue", name="default", until=now - ago, paused_at=now - 30 * MINUTE)
    assert ("late" in world.found()) is late


def drains(world: World, jobs: int, **values: Any) -> None:
    """Add *jobs* jobs that have succeeded within the last minute."""
    now = world.database.clock.now()
    for _ in range(jobs):
        ended = {"started_at": now - MINUTE, "finished_at": now - MINUTE, "attempts": 1}
        world.put(status="succeeded", **ended, **values)


@pytest.mark.parametrize("why", ["budget", "slots"])
def test_a_batch_that_drains_is_named_a_backlog(database: Database, tmp_path: Path, why: str) -> None:
    """The last jobs of the batch do not fit into a tick, because earlier ones take its time."""
    world = World(database, tmp_path)
    for _ in range(4):
        world.put()
    drains(world, 4)
    world.tick(not_started=[{"why": why, "job_type": "t.known", "queue": "default", "jobs": 4}])
    backlog = 'a backlog in queue "default" (run.workers: 4); of these jobs, 2 a minute succeeded lately'
    assert world.found()["late"].endswith(f"4 jobs have been due for more than 2m and have not started: {backlog}")
    world.put(queue="other")
    assert "a backlog" not in world.found()["late"], "one whose jobs do not succeed has another cause"


@pytest.mark.parametrize("recorded", [["budget"], [], ["stopped"]])
def test_jobs_behind_a_batch_that_takes_all_workers_wait_for_the_batch(
    database: Database, tmp_path: Path, recorded: list[str]
) -> None:
    """The limit has as many places as there are workers, so a full limit leaves no worker to other jobs."""
    world = World(database, tmp_path, limits=(Limit("api:", most=4),))
    left = [{"why": why, "job_type": "t.summary", "queue": "default", "jobs": 1} for why in recorded]
    with database.write() as connection:
        known = record_types(connection, Loaded(["t.known", "t.summary"]))
    world.tick(job_types=known, not_started=left)
    for _ in range(6):
        world.put(concurrency_key="api:x")
    for _ in range(4):
        world.running(concurrency_key="api:x")
    world.put(job_type="t.summary", timeout_s=20)
    drains(world, 4, concurrency_key="api:x")
    summary = JobType("t.summary", timeout=MINUTE / 3, retry=RetryPolicy())
    behind = "jobs that come before it keep all workers busy (run.workers: 4)"
    assert world.found()["late"] == f"1 job has been due for more than 2m and has not started: {behind}"
    with database.read() as connection:
        job_id = connection.execute(select(tables.jobs.c.id).where(tables.jobs.c.job_type == "t.summary")).scalar_one()
        explained = explain_id(connection, job_id, world.settings, lambda: JobTypes({"t.summary": summary}))
    assert explained is not None
    why = " ".join(explained.sentences)
    assert "6 due jobs that became due earlier come first; after them the next tick with a free worker" in why
    assert "did not fit" not in why
    world.limits = (Limit("api:", most=3),)
    assert behind not in world.found()["late"], "the batch leaves a worker to other jobs"


def test_jobs_that_ticks_with_a_free_worker_pass_over_are_no_backlog(database: Database, tmp_path: Path) -> None:
    """Others of their queue and type succeed. The tick that still runs has recorded nothing yet."""
    world = World(database, tmp_path)
    world.put()
    drains(world, 2)
    world.tick(not_started=[{"why": "late", "job_type": "t.known", "queue": "default", "jobs": 1}])
    now = database.clock.now()
    row = {"host": "web1", "pid": 2, "version": "0", "fingerprint": "f", "schedules_on": 1, "tick": "running"}
    world.put(tables.ticks, started_at=now, **row)
    passed_over = "ticks with a free worker passed over 1 job of t.known; another transaction may hold its row"
    assert f"not started: {passed_over}" in world.found()["late"]
    world.put(queue="other")
    drains(world, 2, queue="other")
    backlog = 'a backlog in queue "other" (run.workers: 4); of these jobs, 1 a minute succeeded lately'
    assert f"not started: {backlog}" in world.found()["late"]
    assert f"; {passed_over}" in world.found()["late"]


def test_a_job_that_came_due_as_the_tick_ended_was_not_passed_over(
    database: Database, tmp_path: Path, clock: FakeClock
) -> None:
    world = World(database, tmp_path)
    world.tick(not_started=[{"why": "late", "job_type": "t.known", "queue": "default", "jobs": 1}])
    clock.advance(2.5 * MINUTE)
    world.put(run_at=START + timedelta(seconds=1), created_at=START)
    assert world.found()["late"].endswith("not started: the last ticks recorded no reason")


def test_what_only_limit_leaves_waiting_is_within_reach(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    for _ in range(2):
        world.put()
    left = [{"why": "--limit", "job_type": "t.known", "queue": "default", "jobs": 2}]
    world.tick(did={"options": {"limit": 1}}, not_started=left)
    why = "recent ticks started as many jobs as --limit allows"
    assert world.found() == {"late": f"2 jobs have been due for more than 2m and have not started: {why}"}
    drains(world, 2)
    assert list(world.found()) == ["late"]
    assert "a backlog" in world.found()["late"]


def test_a_rate_below_one_a_minute_is_by_the_hour(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    world.put()
    drains(world, 1)
    world.tick()
    assert "of these jobs, 30 an hour succeeded lately" in world.found()["late"]


@pytest.mark.parametrize(("most", "each"), [(4, None), (None, 4)])
def test_a_batch_that_its_limit_lets_drain_is_not_late_between_two_ticks(
    database: Database, tmp_path: Path, most: int | None, each: int | None
) -> None:
    """When a tick ends, the limit has room, but no time is left."""
    world = World(database, tmp_path, limits=(Limit("smtp", most=most, each=each),))
    world.put(concurrency_key="smtp:1")
    world.tick(not_started=[{"why": "budget", "job_type": "t.known", "queue": "default", "jobs": 1}])
    assert "late" in world.found()
    drains(world, 1, concurrency_key="smtp:1")
    assert "late" not in world.found()
    world.limits = (Limit("smtp", most=most and 5, each=each and 5),)
    assert "late" in world.found(), "a limit above run.workers holds back no job"


def test_a_batch_behind_a_limit_has_a_pace(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, limits=(Limit("smtp:", most=1), Limit("api:", most=1)))
    for key in ("smtp:1", "api:1"):
        world.running(concurrency_key=key)
        world.put(concurrency_key=key)
    drains(world, 4, concurrency_key="smtp:2")
    drains(world, 4)
    world.tick()
    health = world.look()
    assert health.waiting.limited == dict.fromkeys(world.limits, 1)
    assert health.waiting.limits_a_minute == {world.limits[0]: 2, world.limits[1]: 0}
    assert _waiting_lines(health, world.settings.run.every, Times(health.now, "UTC"), 200)[2:] == [
        '1 due: limit "smtp:" is reached (1 at once); 2 a minute succeeded lately',
        '1 due: limit "api:" is reached (1 at once)',
    ]
    world.limits = (Limit("smtp:", most=0),)
    [bad] = _waiting_lines(world.look(), world.settings.run.every, Times(health.now, "UTC"), 200)[2:]
    assert bad.endswith("so the limited jobs do not start"), "the jobs that succeeded began before the fault"


@pytest.mark.parametrize(("scope", "name", "left"), [("queue", "default", 1), ("queue", "b", 1), ("all", "", 0)])
def test_a_job_of_a_paused_queue_waits_for_no_limit(
    database: Database, tmp_path: Path, scope: str, name: str, left: int
) -> None:
    world = World(database, tmp_path)
    world.running(concurrency_key="smtp:1")
    for queue in ("default", "b"):
        world.put(queue=queue, concurrency_key="smtp:1")
    assert world.look().waiting.limited == {world.limits[0]: 2}
    world.put(tables.pauses, scope=scope, name=name, paused_at=database.clock.now(), skip=0)
    assert world.look().waiting.limited == ({world.limits[0]: left} if left else {})


def test_a_job_that_a_tick_claims_during_the_reads_is_not_late(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL each statement may see another state: the late jobs and those behind a limit are counted in one."""
    world = World(database, tmp_path, limits=(Limit("smtp", most=4),))
    for _ in range(3):
        world.put(concurrency_key="smtp:1")
    world.put(queue="other")
    drains(world, 1, concurrency_key="smtp:1")
    world.tick()
    succeeded_lately = trends.succeeded_lately

    def while_one_begins(*given: Any) -> list[trends.SucceededLately]:
        jobs, now = tables.jobs, world.database.clock.now()
        waits = select(jobs.c.id).where(jobs.c.status == "queued", jobs.c.queue == "default").limit(1).scalar_subquery()
        held = {"locked_by": "web1:b:1:1:1:t", "locked_until": now + MINUTE, "attempts": 1, "started_at": now}
        with world.database.write() as connection:
            connection.execute(update(jobs).where(jobs.c.id == waits).values(status="running", **held))
        return succeeded_lately(*given)

    monkeypatch.setattr(trends, "succeeded_lately", while_one_begins)
    assert world.found()["late"].startswith("1 job has"), "only the one in the other queue could run"


@pytest.mark.parametrize("other_host", ["", "ticks", "ticked before"])
def test_while_ticks_here_refuse_the_file_due_work_waits_for_the_fix(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_host: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("CRONJOBS_HOST", "web2" if other_host == "ticks" else "web1")
    world = World(database, tmp_path)
    world.tick()
    if other_host == "ticked before":
        world.tick(host="web2")
    world.put()
    problem = Problem("f", 3, 1, "shedules", "unknown key")
    Alarm(tmp_path / "f").worth_mailing(str(problem), database.clock.now(), not_started=True)
    settings = Settings(file=tmp_path / "f", folder=tmp_path, broken=True, problems=(problem,))
    with database.read() as connection:
        found = {each.kind: each for each in troubles(look(connection, settings, JobTypes()), settings)}
    config, late = found["config"], found["late"]
    if other_host == "ticks":
        assert config.severity is Severity.WARNING
        assert late.text.endswith("the last ticks recorded no reason")
    else:
        said = f"{problem}; nothing runs with this file; 1 due job waits because of this fault"
        assert (config.severity, config.text) == (Severity.CRITICAL, said)
        assert late.text.endswith(f"not started: ticks of this host did not start: {problem} (once)")


@pytest.mark.parametrize("other_host", [False, True])
@pytest.mark.parametrize("importing", [False, True])
@pytest.mark.parametrize("fault", [False, True])
def test_while_ticks_die_in_the_import_due_work_waits_for_the_fix(
    database: Database, tmp_path: Path, clock: FakeClock, other_host: bool, importing: bool, fault: bool
) -> None:
    world = World(database, tmp_path)
    for _ in range(4):
        did = {"runner": "web1:b:1:1:1:t"} | ({"importing": True} if importing else {})
        world.tick(did=did, job_types=None, finished_at=None)
        clock.advance(MINUTE)
    before = clock.now() - (timedelta(0) if other_host else 10 * MINUTE)
    world.tick(host="web2", started_at=before, finished_at=before)
    world.put()
    hangs = Fault("module shop.jobs", "cannot be imported: ImportTimeout")
    health = replace(world.look(), faults=(hangs,) if fault else ())
    found = {each.kind: each for each in troubles(health, world.settings)}
    dies = importing and not other_host
    why = "the last ticks were killed while importing the handlers" if dies else "the last ticks recorded no reason"
    assert found["late"].text.endswith(why)
    assert "ending" in found
    if fault:
        assert found["config"].severity is (Severity.CRITICAL if dies else Severity.WARNING)
        assert found["config"].text.endswith("; 1 due job waits because of this fault") is dies
