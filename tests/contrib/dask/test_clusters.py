"""Jobs on a Dask cluster of real processes: whatever dies, each attempt runs once, and its outcome is recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import make_url
from support.clusters import DaskProcesses, supervisors, wait_until
from support.far import LEASE_S, Far, end, is_alive, is_running, parents
from support.postgres import SUPERUSER, PostgresServer, as_role
from support.ticking import Project, cli, events

from cronjobs.clock import SYSTEM
from cronjobs.engine.host.state_folder import State
from cronjobs.engine.schema.grants import Role, statements
from cronjobs.engine.tick.executors import PROGRAM, Supervision

pytestmark = pytest.mark.slow


@pytest.fixture
def far(project: Project) -> Iterator[Far]:
    found = Far(project, DaskProcesses(project.folder / "dask", {"CRONJOBS_DATABASE_URL": project.url}))
    found.configure()
    try:
        yield found
    finally:
        end(found)


def test_a_handler_runs_on_a_worker_and_its_end_comes_back(far: Far) -> None:
    far.begin()
    ids = [far.project.add("far.quick", f'{{"n": {n}}}') for n in range(5)]
    effect = far.project.add("far.effect")
    far.project.tick()
    for job_id in [*ids, effect]:
        far.until("succeeded", job_id)
    assert [far.project.times_ran()[job_id] for job_id in ids] == [1] * 5
    output, worker = far.project.sql(f"SELECT output, worker FROM cronjobs_job_runs WHERE job_id = {ids[3]}")[0]
    assert output == "said on the worker 3\n"
    assert worker.startswith("cluster tcp://127.0.0.1:")
    assert '"n":3' in str(far.project.job(ids[3])["result"]).replace(" ", "").replace("'", '"')
    assert far.project.sql("SELECT count(*) FROM cronjobs_tokens") == [(0,)]
    assert len(supervisors(far.project)) == 1
    far.project.add("far.quick")
    far.project.tick()
    assert len(events(far.project.log(), "executor.started")) == 1, "the one that is there takes it"


@pytest.mark.either
def test_a_secret_that_only_a_worker_has_is_stored_nowhere(project: Project) -> None:
    secret = "only-the-worker-knows-4711"
    here = {"CRONJOBS_DATABASE_URL": project.url, "FAR_PASSWORD": secret}
    far = Far(project, DaskProcesses(project.folder / "dask", here))
    try:
        far.configure()
        far.begin()
        job_id = far.project.add("far.tells", max_attempts=1)
        far.project.tick()
        wait_until(lambda: "notes " in str(far.project.sql("SELECT * FROM cronjobs_jobs")))
        assert "notes ***" in str(far.project.sql("SELECT * FROM cronjobs_jobs"))
        far.project.open()
        far.until("dead", job_id)
        stored = str([far.project.sql(f"SELECT * FROM cronjobs_{table}") for table in ("jobs", "job_runs")])
        shown = cli(far.project, "jobs", "show", str(job_id)) + far.project.log()
    finally:
        end(far)
    for said in ("prints ***", "raises ***"):
        assert said in stored
    assert secret not in stored + shown


@pytest.mark.either
def test_a_cancel_frees_the_worker(far: Far) -> None:
    far.begin()
    job_id = far.project.add("far.gated")
    far.project.tick()
    far.until_said("start")
    cli(far.project, "jobs", "cancel", str(job_id))
    far.until("cancelled", job_id, LEASE_S / 4 + 2 + 2 + 3)
    [pid] = [effect.pid for effect in far.project.effects("start")]
    assert not is_alive(pid)
    other = far.project.add("far.quick")
    far.until("succeeded", other)


@pytest.mark.either
def test_a_timeout_counts_from_the_token_and_ends_the_handler(far: Far) -> None:
    far.begin()
    job_id = far.project.add("far.gated", '{"stubborn": true}', timeout_s=8)  # an interpreter starts in that time, too
    far.project.tick()
    far.until_said("start")
    [start] = far.project.effects("start")
    far.until("failed", job_id, 40)
    assert SYSTEM.monotonic() - start.at < 8 + 2 + 2 + 3
    assert not is_alive(start.pid)
    assert far.project.outcomes(job_id) == ["timed_out"]


@pytest.mark.either
def test_a_killed_worker_loses_its_attempt_once_its_permit_has_run_out(far: Far) -> None:
    """Dask runs the task again, on the other worker: its guard finds the token taken, and runs nothing."""
    far.begin(workers=2)
    job_id = far.project.add("far.gated")
    far.project.tick()
    far.until_said("start")
    [start] = far.project.effects("start")
    [running] = [worker for worker in far.cluster.workers if str(worker.pid) in parents(start.pid)]
    running.kill()
    far.until_said("start", 2)
    again = far.project.effects("start")[1]
    assert again.attempt == 2
    assert again.at > start.at + LEASE_S / 2
    far.project.open()
    far.until("succeeded", job_id)
    assert far.project.outcomes(job_id) == ["lost", "succeeded"]
    assert far.project.job(job_id)["failures"] == 0


@pytest.mark.either
def test_a_killed_supervisor_takes_its_attempts_with_it_and_none_runs_twice(far: Far) -> None:
    far.begin()
    job_id = far.project.add("far.gated")
    far.project.tick()
    far.until_said("start")
    [start] = far.project.effects("start")
    [pid] = supervisors(far.project)
    os.kill(pid, signal.SIGKILL)
    refused = cli(far.project, "jobs", "release", str(job_id), code=1)
    assert "which has exited; a cluster worker may still be running the job until" in refused
    far.project.tick()
    assert far.project.job(job_id)["status"] == "running", "its handler may still run, until its permit ends"
    wait_until(lambda: not is_alive(start.pid), LEASE_S + 2)
    wait_until(lambda: far.project.tick() and far.project.job(job_id)["losses"] == 1, 20)
    far.project.open()
    far.project.make_due()
    far.project.tick()
    far.until("succeeded", job_id)
    assert far.project.outcomes(job_id) == ["lost", "succeeded"]


@pytest.mark.either
def test_a_supervisor_that_is_told_to_end_interrupts_what_runs_and_releases_what_waits(far: Far) -> None:
    far.cluster.threads = 1
    far.begin()
    first = far.project.add("far.gated", priority=1)
    second = far.project.add("far.gated", priority=2)
    far.project.tick()
    far.until_said("start")
    [pid] = supervisors(far.project)
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not supervisors(far.project), 15)
    assert far.project.job(first)["status"] == far.project.job(second)["status"] == "queued"
    assert far.project.outcomes(first) == ["interrupted"]
    assert far.project.outcomes(second) == []
    assert [effect.job_id for effect in far.project.effects("start")] == [first]


@pytest.mark.either
def test_a_scheduler_that_is_away_costs_nothing(far: Far) -> None:
    job_id = far.project.add("far.quick")
    far.project.tick()
    wait_until(lambda: events(far.project.log(), "executor.away"), 30)
    assert far.project.job(job_id)["status"] == "queued"
    far.begin()
    far.until("succeeded", job_id)
    assert far.project.outcomes(job_id) == ["succeeded"]


@pytest.mark.either
def test_what_waits_too_long_for_a_resource_goes_back_uncharged(far: Far) -> None:
    far.configure(queue_wait="5s", resources="{GPU: 1}")
    far.begin()
    job_id = far.project.add("far.quick")
    far.project.tick()
    wait_until(lambda: events(far.project.log(), "job.not_begun"), 30)
    assert "every worker of executor cluster was busy" in events(far.project.log(), "job.not_begun")[0]
    assert (far.project.job(job_id)["failures"], far.project.outcomes(job_id)) == (0, [])
    far.cluster.start_worker("--resources", "GPU=1")
    far.cluster.wait_for_workers(2)
    far.project.make_due()
    far.until("succeeded", job_id)


@pytest.mark.either
def test_a_worker_without_a_database_refuses_with_a_sentence(far: Far) -> None:
    far.cluster.env = {}
    far.begin()
    job_id = far.project.add("far.quick")
    far.project.tick()
    wait_until(lambda: events(far.project.log(), "job.not_begun"), 30)
    assert "has no CRONJOBS_TOKEN_URL, no" in events(far.project.log(), "job.not_begun")[0]
    assert far.project.job(job_id)["failures"] == 0


@pytest.mark.either
def test_a_frozen_worker_has_no_handler_once_its_permit_is_over_and_the_next_attempt_waits_for_that(far: Far) -> None:
    """Nothing of ours in that process can run: the launcher ends the handler."""
    far.begin(workers=2)
    job_id = far.project.add("far.gated")
    far.project.tick()
    far.until_said("start")
    [start] = far.project.effects("start")
    [running] = [worker for worker in far.cluster.workers if str(worker.pid) in parents(start.pid)]
    running.send_signal(signal.SIGSTOP)
    far.until("succeeded", far.project.add("far.quick"))  # idle workers take turns: the next would be the frozen one's
    wait_until(lambda: not is_running(start.pid), LEASE_S + 5)
    gone_at = SYSTEM.monotonic()
    far.until_said("start", 2)
    assert far.project.effects("start")[1].at > gone_at - 0.5
    running.send_signal(signal.SIGCONT)
    far.project.open()
    far.until("succeeded", job_id)
    assert far.project.outcomes(job_id) == ["lost", "succeeded"]


def test_a_worker_with_the_role_of_tokens_alone_runs_handlers_and_no_effects(
    postgres_project: Project, postgres_server: PostgresServer
) -> None:
    """The URL that a worker has opens two functions and no table."""
    name = "cluster_worker"
    url = as_role(postgres_project.url, name)
    with psycopg.connect(as_role(postgres_project.url, SUPERUSER), autocommit=True) as connection:
        connection.execute(statements("public", {Role.TOKEN: name}).encode())
        connection.execute(f"ALTER ROLE {name} LOGIN PASSWORD '{make_url(url).password}'".encode())
    far = Far(postgres_project, DaskProcesses(postgres_project.folder / "dask", {"CRONJOBS_TOKEN_URL": url}))
    try:
        far.configure()
        far.begin()
        quick, effect = far.project.add("far.quick"), far.project.add("far.effect")
        far.project.tick()
        far.until("succeeded", quick)
        far.until("failed", effect)
        assert "CRONJOBS_DATABASE_URL or a cronjobs.yaml" in far.project.job(effect)["last_error"]
        assert "executor cluster" not in cli(far.project, "check", "--live", "--no-import")
    finally:
        end(far)
        with psycopg.connect(as_role(postgres_project.url, SUPERUSER), autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [name])
            connection.execute(f"DROP OWNED BY {name}".encode())
            connection.execute(f"DROP ROLE {name}".encode())


@pytest.mark.either
def test_a_handler_that_ends_its_job_in_a_transaction_goes_on_to_its_own_end(far: Far) -> None:
    far.begin()
    job_id = far.project.add("far.booked")
    far.project.tick()
    far.until_said("booked")
    far.until_said("end")
    far.until("succeeded", job_id)
    said = "and its end was awaited\n"
    wait_until(lambda: far.project.value("SELECT output FROM cronjobs_job_runs") == said)
    assert far.project.sql("SELECT outcome, error FROM cronjobs_job_runs") == [("succeeded", None)]
    assert far.project.sql("SELECT count(*) FROM cronjobs_tokens") == [(0,)]


@pytest.mark.either
def test_a_deploy_lets_the_old_supervisor_end_and_the_next_tick_starts_another(far: Far) -> None:
    far.begin()
    job_id = far.project.add("far.gated")
    far.project.tick()
    far.until_said("start")
    [old] = supervisors(far.project)
    far.configure(more="timezone: Europe/Berlin\n")
    sleep_until = SYSTEM.monotonic() + 3
    wait_until(lambda: SYSTEM.monotonic() > sleep_until)
    other = far.project.add("far.quick")
    far.project.tick()
    far.until("succeeded", other)
    assert {old} < set(supervisors(far.project)), "the old one waits for its attempt"
    far.project.open()
    far.until("succeeded", job_id)
    wait_until(lambda: old not in supervisors(far.project), 20)
    assert far.project.outcomes(job_id) == ["succeeded"]


@pytest.mark.either
def test_check_live_and_explain_look_at_the_cluster(far: Far) -> None:
    said = cli(far.project, "check", "--live", code=1)
    assert "executor cluster: the scheduler tcp://127.0.0.1:" in said
    assert "cannot be reached" in said
    far.begin()
    job_id = far.project.add("far.gated")
    far.project.tick()
    far.until_said("start")
    assert "executor cluster" not in cli(far.project, "check", "--live", code=0)
    wait_until(lambda: "on worker tcp://127.0.0.1:" in cli(far.project, "explain", str(job_id)), 10)
    far.project.open()
    far.until("succeeded", job_id)


def test_without_an_executor_nothing_of_clusters_is_imported(sqlite_project: Project) -> None:
    sqlite_project.configure(
        handlers="""
@job("t.modules")
def modules():
    far = [name for name in sys.modules if name.startswith(("cronjobs.contrib.dask", "cronjobs.engine.tick.executors"))]
    return [*far, *(name for name in sys.modules if name.partition(".")[0] in ("distributed", "dask"))]
"""
    )
    job_id = sqlite_project.add("t.modules")
    sqlite_project.tick(fresh=True)
    assert sqlite_project.job(job_id)["status"] == "succeeded"
    assert sqlite_project.job(job_id)["result"] == "[]"


@pytest.mark.either
def test_the_next_tick_prints_what_died_on_a_cluster(far: Far) -> None:
    far.begin()
    job_id = far.project.add("far.hopeless")
    far.project.tick()
    far.until("dead", job_id)
    wait_until(lambda: events(far.project.log(), "job.dead"))
    printed = far.project.tick()
    told = f"cronjobs: a job is dead: job {job_id} far.hopeless: GiveUp: no such thing"
    assert told in printed.stdout + printed.stderr


@pytest.mark.either
def test_the_next_tick_prints_why_a_supervisor_could_not_begin(far: Far) -> None:
    far.project.tick()
    given = Supervision(str(far.project.folder / "nowhere.yaml"), far.project.url, "cluster")
    env = {**os.environ, "XDG_STATE_HOME": str(far.project.folder)}
    argv = [sys.executable, "-P", "-m", PROGRAM]
    done = subprocess.run(argv, input=given.encode(), env=env, check=False, timeout=60)
    assert done.returncode == 3
    taken = State(far.project.folder / "cronjobs")
    assert any("the supervisor of executor cluster exited" in (taken.read(each.name) or "") for each in
               (far.project.folder / "cronjobs").iterdir())  # fmt: skip
