"""More attacks on a real Dask cluster: handlers that fork, processes that freeze, workers with other code."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from support.clusters import DaskProcesses, supervisors, wait_until
from support.far import YAML, Far, end, is_running, parents
from support.ticking import Project, cli, events

from cronjobs.clock import SYSTEM

pytestmark = [pytest.mark.slow, pytest.mark.either]

FORKING = """
@job("far.forking", executor="cluster", timeout="60s")
def far_forking(ctx):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                say("stray", ctx)
                time.sleep(0.05)
        os._exit(0)
    say("start", ctx)
    time.sleep(50)
"""


@pytest.fixture
def far(project: Project) -> Iterator[Far]:
    found = Far(project, DaskProcesses(project.folder / "dask", {"CRONJOBS_DATABASE_URL": project.url}))
    found.configure()
    try:
        yield found
    finally:
        end(found)


def with_long_leases(far: Far) -> None:
    yaml = YAML.format(address=far.cluster.address, queue_wait="10m", resources="{}").replace("lease: 4s", "lease: 60s")
    text = (far.project.folder / "handlers.py").read_text()
    far.project.configure(yaml, handlers="")
    (far.project.folder / "handlers.py").write_text(text)


def test_a_cancel_ends_all_that_a_handler_started_within_its_grace_and_two_seconds(far: Far) -> None:
    """The lease is long: no confirmation comes in that time. Another worker is frozen, and answers nobody."""
    with_long_leases(far)
    handlers = far.project.folder / "handlers.py"
    handlers.write_text(handlers.read_text() + FORKING)
    far.begin(workers=2)
    job_id = far.project.add("far.forking")
    far.project.tick()
    far.until_said("stray")
    [start] = far.project.effects("start")
    stray = far.project.effects("stray")[0].pid
    [other] = [worker for worker in far.cluster.workers if str(worker.pid) not in parents(start.pid)]
    other.send_signal(signal.SIGSTOP)
    cli(far.project, "jobs", "cancel", str(job_id))
    asked = SYSTEM.monotonic()
    wait_until(lambda: not is_running(start.pid) and not is_running(stray))
    assert SYSTEM.monotonic() - asked < 15  # a confirmation of the lease would come after 15 s at the earliest
    far.until("cancelled", job_id, 20)


def test_a_killed_worker_takes_with_it_all_that_a_handler_started(far: Far) -> None:
    handlers = far.project.folder / "handlers.py"
    handlers.write_text(handlers.read_text() + FORKING)
    far.begin()
    far.project.add("far.forking")
    far.project.tick()
    far.until_said("stray")
    [start] = far.project.effects("start")
    stray = far.project.effects("stray")[0].pid
    far.cluster.workers[0].kill()
    wait_until(lambda: not is_running(start.pid) and not is_running(stray))


def test_a_frozen_scheduler_loses_nothing(far: Far) -> None:
    far.begin()
    job_id = far.project.add("far.gated")
    far.project.tick()
    far.until_said("start")
    assert far.cluster.scheduler is not None
    far.cluster.scheduler.send_signal(signal.SIGSTOP)
    frozen = SYSTEM.monotonic()
    wait_until(lambda: SYSTEM.monotonic() > frozen + 9)
    far.project.open()
    far.until("succeeded", job_id, 20)
    waiting = far.project.add("far.quick")
    far.project.tick()
    far.cluster.scheduler.send_signal(signal.SIGCONT)
    far.until("succeeded", waiting)
    assert far.project.outcomes(job_id) == ["succeeded"]
    assert [effect.attempt for effect in far.project.effects("start")] == [1]


def test_a_frozen_supervisor_records_nothing_of_what_it_lost(far: Far) -> None:
    far.begin()
    job_id = far.project.add("far.gated")
    far.project.tick()
    far.until_said("start")
    [first] = far.project.effects("start")
    [old] = supervisors(far.project)
    os.kill(old, signal.SIGSTOP)
    wait_until(lambda: not is_running(first.pid), 20)
    wait_until(lambda: far.project.tick() and far.project.job(job_id)["losses"] == 1, 20)
    os.kill(old, signal.SIGCONT)
    far.project.make_due()
    far.project.tick()
    far.until_said("start", 2)
    far.project.open()
    far.until("succeeded", job_id)
    assert far.project.outcomes(job_id) == ["lost", "succeeded"]
    wait_until(lambda: old not in supervisors(far.project), 20)


def test_other_source_or_no_module_on_the_worker_costs_nothing_and_is_named(far: Far) -> None:
    elsewhere = far.project.folder / "elsewhere"
    elsewhere.mkdir()
    theirs = (far.project.folder / "handlers.py").read_text()
    (elsewhere / "handlers.py").write_text(theirs.replace('print("said on the worker", n)', 'print("older", n)'))
    (elsewhere / "cronjobs.yaml").write_text("imports: [handlers]\n")
    far.cluster.start_scheduler()
    worker = far.cluster.start_worker(env={"CRONJOBS_CONFIG": str(elsewhere / "cronjobs.yaml")})
    far.cluster.wait_for_workers(1)
    job_id = far.project.add("far.quick")
    far.project.tick()
    wait_until(lambda: events(far.project.log(), "job.not_begun"), 30)
    assert "the source code of far.quick here differs" in events(far.project.log(), "job.not_begun")[0]
    (elsewhere / "cronjobs.yaml").write_text("imports: [not_there]\n")
    far.project.make_due()
    wait_until(lambda: len(events(far.project.log(), "job.not_begun")) > 1, 40)
    assert "not_there" in events(far.project.log(), "job.not_begun")[1]
    assert far.project.job(job_id)["failures"] == 0
    assert not far.project.effects("ran")
    worker.kill()
    far.cluster.start_worker()
    far.project.make_due()
    far.until("succeeded", job_id)


def test_tls_carries_jobs(far: Far) -> None:
    folder = far.project.folder
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", "client.key", "-out", "client.pem"], cwd=folder, check=True, capture_output=True)  # fmt: skip
    far.cluster.tls = folder
    far.project.configure(
        f'executors: {{cluster: {{dask: "tls://127.0.0.1:{far.cluster.port}", '
        "tls: {ca: client.pem, cert: client.pem, key: client.key}}}\n",
        handlers="@job('far.quick', executor='cluster', timeout='30s')\ndef far_quick(ctx):\n    say('ran', ctx)\n",
    )
    far.begin()
    job_id = far.project.add("far.quick")
    far.project.tick()
    far.until("succeeded", job_id)
    assert cli(far.project, "check", "--live", code=0)
