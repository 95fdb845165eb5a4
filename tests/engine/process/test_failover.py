"""A standby takes over: committed rows are there, and no job ran that the standby does not know."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from support.cluster import Cluster
from support.databases import opened, until
from support.ticking import Project, cli

from cronjobs.engine.database.retrying import patiently
from cronjobs.errors import CommitUnconfirmed
from engine.process.test_idle_tick import is_fast, modules_of

pytestmark = [pytest.mark.slow, pytest.mark.either]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    try:
        made.start()
        yield made
    finally:
        made.remove()


@pytest.fixture
def project(cluster: Cluster, new_project: Callable[[str], Project]) -> Project:
    made = new_project(cluster.url()).configure("run: {budget: 20s}\n")
    cli(made, "db", "upgrade")
    return made


def cancel_wait(cluster: Cluster) -> None:
    """End a COMMIT's wait for the standby, as our statement_timeout does after 15 s."""
    until(lambda: bool(cluster.waiting_for_standby()))
    with psycopg.connect(cluster.primary.url(), autocommit=True) as connection:
        for pid in cluster.waiting_for_standby():
            connection.execute("SELECT pg_cancel_backend(%s)", [pid])


def test_ticks_find_the_server_that_leads_and_keep_their_fast_path(cluster: Cluster, project: Project) -> None:
    for _ in range(2):
        job_id = project.add("t.quick")
        assert project.tick().wait() == 0
        assert project.times_ran()[job_id] == 1
        modules_of(project)  # with work, or the first of its kind: a full tick
        assert is_fast(modules_of(project))
        cluster.promote()


def test_a_lingering_tick_finds_the_new_primary_and_begins_each_job_once(cluster: Cluster, project: Project) -> None:
    project.configure("run: {linger: 100ms, budget: 50s}\n")
    assert project.tick().wait() == 0
    tick = project.start()
    for promoted in (False, True):
        if promoted:
            cluster.promote()
        job_id = project.add("t.quick")
        until(lambda job_id=job_id: project.times_ran()[job_id] == 1)  # type: ignore[misc]
    assert tick.process.poll() is None, "it stays"
    tick.send(signal.SIGTERM)
    tick.wait()
    assert [*project.times_ran().values()] == [1, 1]


def test_a_claim_that_no_standby_has_confirmed_begins_nothing(cluster: Cluster, project: Project) -> None:
    job_id = project.add("t.quick")
    cluster.pause()
    tick = project.start()
    while project.job(job_id)["status"] != "running":  # the claim is committed here, and only here
        cancel_wait(cluster)
    until(lambda: bool(cluster.waiting_for_standby()))  # the tick asks what became of its commit
    assert project.times_ran() == {}

    cluster.promote()  # to a server that has not heard of that claim
    tick.wait(60)
    project.let_leases_end()
    assert project.tick().wait() == 0
    assert project.times_ran() == {job_id: 1}
    assert project.outcomes(job_id) == ["succeeded"]


def test_a_commit_that_no_standby_has_confirmed_is_an_error(cluster: Cluster, project: Project) -> None:
    project.add("t.quick")
    cluster.pause()
    with opened(project.url) as database:

        def write() -> None:
            with database.write() as connection:
                connection.exec_driver_sql("UPDATE cronjobs_jobs SET priority = 1")

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            cancel_wait(cluster)
            with pytest.raises(CommitUnconfirmed, match="check the standby"):
                writing.result(30)
        cluster.promote()
        assert project.value("SELECT priority FROM cronjobs_jobs") == 5
        patiently(write)  # the pool knew only the old primary
    assert project.value("SELECT priority FROM cronjobs_jobs") == 1
