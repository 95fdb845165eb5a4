"""Many ticks at once, ticks in a strict order, and ticks with nothing to do."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from support.ticking import Project

from cronjobs.clock import SYSTEM
from cronjobs.engine.config.settings import Overlap, RunSettings, ScheduleSettings, Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs import registry
from cronjobs.engine.run_due import cron_mail as report
from cronjobs.engine.store import claims, sql
from cronjobs.engine.tick.tick import Tick
from cronjobs.engine.tick.watchdog import Unarmed
from cronjobs.testing import FakeClock

JOBS, SCHEDULES, PROCESSES = 2000, 50, 8

SCHEDULE = "  s{n}: {{every: 1m, job: t.scheduled, payload: {{n: {n}}}, overlap: allow}}\n"
HANDLERS = """
@job("t.scheduled")
def scheduled(ctx, n):
    say("scheduled", ctx)
"""


def set_back(project: Project) -> None:
    """Move the watermarks of all schedules 90 seconds into the past."""
    if project.is_sqlite:
        project.sql("UPDATE cronjobs_schedules SET seen_until = seen_until - 90000000, next_at = next_at - 90000000")
    else:
        back = "interval '90 seconds'"
        project.sql(f"UPDATE cronjobs_schedules SET seen_until = seen_until - {back}, next_at = next_at - {back}")


@pytest.mark.either
def test_the_trial_tick_of_a_swap_runs_nothing_that_cron_has_run(project: Project) -> None:
    """Two schedules are owed, and cron had the line of only one of them."""
    project.configure("schedules:\n" + "".join(SCHEDULE.format(n=n) for n in range(2)), HANDLERS)
    assert project.tick().wait() == 0
    set_back(project)
    assert project.tick("--json", env={"CRONJOBS_RUN_BY_CRON": "s0 gone"}).wait() == 0
    outcomes = (
        "SELECT DISTINCT outcome FROM cronjobs_occurrences WHERE schedule_id = (SELECT id FROM {} WHERE name = '{}')"
    )
    assert project.sql(outcomes.format("cronjobs_schedules", "s0")) == [("skipped",)]
    assert ("enqueued",) in project.sql(outcomes.format("cronjobs_schedules", "s1"))


@pytest.mark.slow
def test_eight_ticks_at_once_do_each_job_and_each_occurrence_once(project: Project) -> None:
    yaml = "run: {workers: 2}\nschedules:\n" + "".join(SCHEDULE.format(n=n) for n in range(SCHEDULES))
    project.configure(yaml, HANDLERS)
    assert project.tick().wait() == 0  # the schedules are known; now each of them is owed
    set_back(project)
    project.add_many("t.quick", JOBS)
    ticks = [project.start() for _ in range(PROCESSES)]
    for tick in ticks:
        assert tick.wait(60) == 0
        assert (tick.stdout, tick.stderr) == ("", "")
        assert tick.took_s < 40
    assert project.statuses().keys() == {"succeeded"}
    ran = project.times_ran()
    assert len(ran) == JOBS
    assert set(ran.values()) == {1}
    [[occurrences, schedules, together]] = project.sql(
        "SELECT count(*), count(DISTINCT schedule_id), sum(count) FROM cronjobs_occurrences WHERE outcome = 'enqueued'"
    )
    assert schedules == SCHEDULES
    assert occurrences == together
    assert len(project.times_ran("scheduled")) == occurrences
    assert set(project.times_ran("scheduled").values()) == {1}
    assert project.value("SELECT count(*) FROM cronjobs_job_runs") == JOBS + occurrences
    # A job may have run at a later claim: on a busy machine, a tick gives back what waits too long for its workers.
    assert project.value("SELECT count(*) FROM cronjobs_job_runs WHERE outcome <> 'succeeded'") == 0
    assert project.value("SELECT max(count) FROM cronjobs_occurrences") == 1 or occurrences
    # The ticks ran jobs at the same time: none waited for another to end.
    assert len({effect.pid for effect in project.effects("ran")}) >= 2
    assert project.value("SELECT count(*) FROM cronjobs_ticks WHERE finished_at IS NULL") == 0


class Slow(Database):
    """Between what a tick read and its first write something else happens."""

    meanwhile: Callable[[], object] | None = None

    @contextmanager
    def write(self, *, patience: float = 10.0, next_in_line: bool = False) -> Iterator[Connection]:
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            happens()
        with super().write(patience=patience, next_in_line=next_in_line) as connection:
            yield connection


@pytest.mark.parametrize("overlap", ["allow", "skip"])
def test_what_another_tick_settled_since_it_was_read_is_not_settled_again(
    database_url: str, tmp_path: Path, overlap: Overlap
) -> None:
    clock = FakeClock(datetime(2026, 3, 2, 8, 0, 30, tzinfo=UTC))
    slow, quick = Slow(parse_url(database_url), clock=clock), Database(parse_url(database_url), clock=clock)
    names = [f"s{n}" for n in range(3)]
    schedules = {n: ScheduleSettings(n, "t.none", every=timedelta(minutes=1), overlap=overlap) for n in names}
    settings = Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path, schedules=schedules)
    results = []

    def tick(database: Database) -> None:
        now = clock.monotonic()
        tick = Tick(
            settings=settings,
            database=database,
            identity=Identity.here(),
            clock=clock,
            watchdog=Unarmed(),
            began=now,
            deadline=now + 30,
            emit=lambda _: None,
        )
        results.append(tick.run())

    tick(quick)
    clock.advance(timedelta(minutes=1))
    slow.meanwhile = lambda: tick(quick)
    tick(slow)
    slow.close()
    quick.close()
    assert [result.trouble for result in results] == [None] * 3
    assert sorted(result.occurrences.get("enqueued", 0) for result in results) == [0, 0, 3]
    project = Project(tmp_path, database_url)
    assert project.value("SELECT count(*) FROM cronjobs_occurrences") == 3
    assert project.value("SELECT count(*) FROM cronjobs_jobs") == 3


@pytest.mark.slow
def test_two_ticks_at_once_with_one_worker_each_never_take_the_same_job(project: Project) -> None:
    project.configure("run: {workers: 1}\n")
    project.add_many("t.quick", 150)
    ticks = [project.start() for _ in range(2)]
    assert [tick.wait(60) for tick in ticks] == [0, 0]
    assert project.statuses() == {"succeeded": 150}
    assert set(project.times_ran().values()) == {1}


NO_HASH = ("hashjoin", "mergejoin")
ROW_BY_ROW = (*NO_HASH, "hashagg", "sort", "material", "indexscan", "bitmapscan")


@pytest.mark.parametrize("without", [(), NO_HASH, ROW_BY_ROW], ids=["as it comes", "no hash", "row by row"])
def test_a_claim_takes_no_more_than_its_limit_by_whatever_plan(
    postgres_project: Project, without: tuple[str, ...]
) -> None:
    """A locking subquery under IN may be run again per row: 2,000 rows for a limit of 1 (PostgreSQL bug 15715)."""
    postgres_project.add_many("t.quick", 200)
    database = Database(parse_url(postgres_project.url))
    for limit in (1, 7):
        with database.write() as connection:
            for way in without:
                connection.exec_driver_sql(f"SET LOCAL enable_{way} = off")
            claimed = claims.claim(
                connection,
                limit=limit,
                locked_by="test",
                lease=timedelta(minutes=1),
                admission=claims.ClaimFilter(["t.quick"], ["t.quick"], 60, 60),
            ).jobs
            assert len(claimed) == limit
    database.close()
    assert postgres_project.statuses() == {"running": 8, "queued": 192}


def test_the_rows_of_a_claim_are_locked_by_a_part_that_runs_once(postgres_project: Project) -> None:
    """Whatever the planner would make of it: the part with the row locks is computed on its own, then read."""
    database = Database(parse_url(postgres_project.url))
    with database.read() as connection:
        plan = "\n".join(
            sql.run(
                connection,
                "EXPLAIN " + claims.CLAIM_POSTGRESQL,
                limit=1,
                queue=None,
                known="[]",
                fitting="[]",
                no_prefetch="[]",
                expected="[]",
                doubtful=False,
                free=1,
                remaining=1.0,
                longest=1e300,
                runnable=None,
                policies="{}",
                usual_policy="{}",
                locked_by="test",
                lease_s=60.0,
            ).scalars()
        )
    database.close()
    part = plan.partition("CTE shared")[2].partition("CTE placed")[0]  # shared and picked
    assert "LockRows" in part, plan
    assert part.count("LockRows") == plan.count("LockRows"), plan


@pytest.mark.parametrize("queues", [("default",), ("b", "a", "c")])
def test_one_worker_runs_jobs_in_the_order_of_priority_run_at_and_id(project: Project, queues: tuple[str, ...]) -> None:
    project.configure("run: {workers: 1}\n")
    for n in range(45):
        minute = 1_600_000_000 + 60 * (n * 7 % 5)
        run_at = minute * 1_000_000 if project.is_sqlite else f"{2020 + n * 7 % 5}-01-01"
        project.add("t.quick", priority=n * 11 % 4, run_at=run_at, queue=queues[n % len(queues)])
    expected = [row[0] for row in project.sql("SELECT id FROM cronjobs_jobs ORDER BY priority, run_at, id")]
    assert project.tick().wait() == 0
    assert [effect.job_id for effect in project.effects("ran")] == expected
    assert expected != sorted(expected)


# --- nothing to do ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_idle_ticks_print_nothing_under_cron(project: Project) -> None:
    """In cron's own environment; ten on each kind of database."""
    project.configure("schedules:\n  nightly: {cron: '15 2 29 2 *', job: t.quick}\n")
    command = [sys.executable, "-m", "cronjobs", "run-due", "--config", str(project.folder / "cronjobs.yaml")]

    def tick(_: int) -> tuple[int, bytes, bytes]:
        cron = ["env", "-i", "PATH=/usr/bin:/bin", *command]
        done = subprocess.run(cron, cwd="/", stdin=subprocess.DEVNULL, capture_output=True)
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor(4) as hosts:
        assert list(hosts.map(tick, range(10))) == [(0, b"", b"")] * 10
    assert project.value("SELECT count(*) FROM cronjobs_ticks") == 10


@pytest.fixture
def tick_here(database_url: str, tmp_path: Path) -> Iterator[Callable[[], report.Reporter]]:
    """Ticks in this process, which say what a real one would say."""
    before = dict(registry._registered)
    database = Database(parse_url(database_url))
    settings = Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path, run=RunSettings(budget=timedelta(seconds=30)))

    def tick() -> report.Reporter:
        mail = report.CronMail(settings.file, throttle=False)
        reporter = mail.reporter(None, talk=False)
        now = SYSTEM.monotonic()
        Tick(
            settings=settings,
            database=database,
            identity=Identity.here(),
            clock=SYSTEM,
            watchdog=Unarmed(),
            began=now,
            deadline=now + 30,
            emit=reporter.note,
        ).run()
        mail.print_causes(reporter)
        mail.send()
        return reporter

    yield tick
    database.close()
    registry._registered.clear()
    registry._registered.update(before)


@pytest.mark.slow
def test_a_thousand_idle_ticks_say_nothing_and_leave_a_row_each(
    tick_here: Callable[[], report.Reporter], database_url: str, tmp_path: Path
) -> None:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        told = [tick_here().kept for _ in range(1000)]
    assert (out.getvalue(), err.getvalue()) == ("", "")
    assert told == [[]] * 1000
    assert Project(tmp_path, database_url).value("SELECT count(*) FROM cronjobs_ticks") == 1000


@pytest.mark.slow
def test_an_idle_tick_imports_nothing_that_it_does_not_need(project: Project) -> None:
    project.configure("schedules:\n  nightly: {cron: '15 2 29 2 *', job: t.quick}\n")
    assert project.tick().wait() == 0  # the schedule is known
    look = (
        "import sys, atexit, pathlib\n"
        "sys.argv[1:] = ['run-due', '--config', sys.argv[1]]\n"
        "atexit.register(lambda: pathlib.Path('modules').write_text(' '.join(sys.modules)))\n"
        "from cronjobs.__main__ import main\n"
        "main()\n"
    )
    argv = [sys.executable, "-c", look, str(project.folder / "cronjobs.yaml")]
    tick = project.tick(argv=argv, cwd=project.folder)
    assert (tick.wait(), tick.stderr) == (0, "")
    modules = set((project.folder / "modules").read_text().split())
    assert "cronjobs.engine.tick.tick" in modules
    assert not modules & {"alembic", "rich", "croniter", "handlers"}
    project.add("t.quick")
    assert project.tick(argv=argv, cwd=project.folder).wait() == 0
    assert "handlers" in (project.folder / "modules").read_text().split()


def test_an_idle_tick_on_sqlite_writes_exactly_one_row(sqlite_project: Project) -> None:
    project = sqlite_project
    assert project.tick().wait() == 0
    assert project.tick().wait() == 0
    tables = [row[0] for row in project.sql("SELECT name FROM sqlite_master WHERE type = 'table'")]

    def rows() -> dict[str, list[Any]]:
        return {table: project.sql(f"SELECT * FROM {table}") for table in tables}

    before = rows()
    assert project.tick().wait() == 0
    after = rows()
    changed = {table for table in tables if before[table] != after[table]} - {"sqlite_sequence"}
    assert changed == {"cronjobs_ticks"}
    assert after["cronjobs_ticks"][:-1] == before["cronjobs_ticks"]
