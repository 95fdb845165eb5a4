"""A COMMIT without an answer: the tick checks whether it took effect, and nothing is done or reported twice.

Real ticks and commands behind a network that breaks at each COMMIT in turn, before it reaches the server or after.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, event, text
from support.databases import opened, until
from support.postgres import PostgresServer
from support.proxy import Proxy, proxied
from support.ticking import Project, Tick, a_day_passes, due_six_hours_ago, events

from cronjobs.errors import CommitUnknown, DatabaseUnreachable

NewProject = Callable[[str], Project]

SCHEDULES = f"schedules:\n  daily: {{{due_six_hours_ago()}, job: t.quick}}\n"
BROKEN = pytest.mark.parametrize("forward", [True, False], ids=["answer lost", "commit lost"])


@pytest.fixture
def proxy(postgres_migrated: str) -> Iterator[Proxy]:
    with proxied(postgres_migrated) as made:
        yield made


def behind(proxy: Proxy, project: Project, yaml: str) -> None:
    """Its next ticks go through the proxy; the test itself goes straight to the server."""
    direct, project.url = project.url, proxy.url
    project.configure(yaml)
    project.url = direct


# recover, materialise, sync; claim, finish and claim the next, finish and look for more; prune, record
COMMITS = 8


@pytest.mark.slow
@BROKEN
@pytest.mark.parametrize("number", range(1, COMMITS + 1))
def test_whichever_commit_of_a_tick_is_lost_everything_is_done_and_told_once(
    postgres_migrated: str, new_project: NewProject, proxy: Proxy, number: int, forward: bool
) -> None:
    project = new_project(postgres_migrated).configure(SCHEDULES)
    assert project.tick().wait() == 0
    a_day_passes(project)
    project.sql("UPDATE cronjobs_meta SET pruned_at = NULL")
    old_id = project.add("t.quick", status="succeeded", finished_at="2020-01-01")
    lost_id = project.add(
        "t.quick", status="running", attempts=1, locked_by="a:b:1:2:3:4", locked_until="2020-01-01", run_at="2020-01-01"
    )
    behind(proxy, project, "run: {workers: 1}\n" + SCHEDULES + "  second: {cron: '15 2 29 2 *', job: t.quick}\n")
    before = project.log()
    proxy.lose, proxy.forward = {number}, forward
    assert project.tick().wait() == 0
    assert proxy.commits >= number

    log = project.log().removeprefix(before)
    assert len(events(log, "job.lost")) == 1
    assert len(events(log, "schedule.enqueued")) == 1
    assert len(events(log, "schedules.applied")) == 1
    [made_id] = [row[0] for row in project.sql("SELECT id FROM cronjobs_jobs WHERE schedule IS NOT NULL")]
    assert project.times_ran() == {made_id: 1, lost_id: 1}
    assert project.outcomes(made_id) == ["succeeded"]
    assert project.outcomes(lost_id) == ["lost", "succeeded"]
    assert project.job(lost_id)["losses"] == 1
    assert project.value(f"SELECT count(*) FROM cronjobs_jobs WHERE id = {old_id}") == 0
    assert project.value("SELECT count(*) FROM cronjobs_audit WHERE action = 'sync'") == 2
    assert project.value("SELECT count(*) FROM cronjobs_occurrences") == 1
    [_, (did,)] = project.sql("SELECT did FROM cronjobs_ticks WHERE finished_at IS NOT NULL ORDER BY id")
    assert (did["recovered"], did["pruned"], did["occurrences"]) == (1, 1, {"enqueued": 1})


# --- commands ---------------------------------------------------------------------------------------------------------


def enqueue(project: Project, *options: str) -> Tick:
    """A second one would do the work twice: the caller must be told the truth."""
    argv = [sys.executable, "-m", "cronjobs", "enqueue", "t.quick", "--config", str(project.folder / "cronjobs.yaml")]
    return project.tick(argv=[*argv, *options])


@pytest.mark.needs("desk")
def test_an_enqueued_job_whose_answer_was_lost_is_told_by_its_id(
    postgres_migrated: str, new_project: NewProject, proxy: Proxy
) -> None:
    project = new_project(postgres_migrated)
    behind(proxy, project, "")
    proxy.lose = {1}
    command = enqueue(project)
    assert (command.wait(), command.stderr) == (0, "")
    assert command.stdout.startswith(f"job {project.value('SELECT id FROM cronjobs_jobs')} enqueued")


@pytest.mark.needs("desk")
def test_a_job_that_was_not_enqueued_is_told_so(postgres_migrated: str, new_project: NewProject, proxy: Proxy) -> None:
    project = new_project(postgres_migrated)
    behind(proxy, project, "")
    proxy.lose, proxy.forward = {1}, False
    command = enqueue(project)
    assert (command.wait(), command.stdout) == (4, "")
    assert "nothing was written" in command.stderr
    assert project.value("SELECT count(*) FROM cronjobs_jobs") == 0


def test_where_nobody_can_be_asked_it_is_said_that_nobody_knows(
    postgres_migrated: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cronjobs.engine.database.connection.SETTLE_S", 0.3)
    proxy.lose, proxy.close_then = {1}, True
    with (
        opened(proxy.url) as database,
        pytest.raises(CommitUnknown, match="check whether the change was saved"),
        database.write() as connection,
    ):
        connection.execute(text("INSERT INTO cronjobs_jobs (job_type) VALUES ('t')"))


@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken by others"])
def test_after_a_crash_somebody_elses_commit_is_not_taken_for_ours(
    own_postgres_server: PostgresServer, taken: bool
) -> None:
    """The server forgets the numbers of transactions that it never committed, and gives them to the next ones."""
    own_postgres_server.start()
    with opened(own_postgres_server.url()) as database:
        with database.write() as connection:
            connection.execute(text("CREATE TABLE t (n int)"))

        def crash(_: Connection) -> None:
            own_postgres_server.kill()
            own_postgres_server.start()
            if taken:
                own_postgres_server.execute(*["SELECT pg_current_xact_id()"] * 20)

        event.listen(database.engine, "commit", crash)
        with pytest.raises(DatabaseUnreachable) as caught, database.write() as connection:
            connection.execute(text("INSERT INTO t VALUES (1)"))
        event.remove(database.engine, "commit", crash)
        assert isinstance(caught.value, CommitUnknown) == taken
        with database.read() as connection:
            assert connection.execute(text("SELECT count(*) FROM t")).scalar() == 0


@pytest.mark.slow
def test_a_killed_backend_is_a_crash_of_the_server(own_postgres_server: PostgresServer) -> None:
    """PostgreSQL then starts anew by itself, under the same postmaster."""
    own_postgres_server.start()
    with opened(own_postgres_server.url()) as database:
        with database.write() as connection:
            connection.execute(text("CREATE TABLE t (n int)"))

        def kill_backend(connection: Connection) -> None:
            os.kill(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one(), signal.SIGKILL)
            until(own_postgres_server._takes_connections)
            own_postgres_server.execute(*["SELECT pg_current_xact_id()"] * 20)

        event.listen(database.engine, "commit", kill_backend)
        with pytest.raises(CommitUnknown), database.write() as connection:
            connection.execute(text("INSERT INTO t VALUES (1)"))
