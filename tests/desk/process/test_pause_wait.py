"""``pause --wait``: no job begins from then on, not even in a running tick. It returns when no job is running."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy import event
from support import forked
from support.commands import until
from support.databases import opened
from support.ticking import CRONS, Project, cli

from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.store.claims import ClaimFilter, claim, claim_warily
from cronjobs.engine.store.operating import claims_in_flight


@pytest.fixture
def project(project: Project) -> Project:
    return project.configure("run: {workers: 1}\n")


def pausing(project: Project, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "cronjobs", "pause", *words, "--config", str(project.folder / "cronjobs.yaml")]
    return forked.start(argv, env=CRONS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def is_paused(project: Project) -> bool:
    return bool(project.value("SELECT count(*) FROM cronjobs_pauses"))


@pytest.mark.slow
def test_it_returns_once_what_ran_has_ended_and_a_running_tick_begins_nothing_more(project: Project) -> None:
    first, second = project.add("t.gated"), project.add("t.gated")
    tick = project.start()
    until(lambda: project.effects("start"))
    with pausing(project, "--all", "--wait", "60s", "--why", "deploy") as pause:
        until(lambda: is_paused(project))
        assert pause.poll() is None
        project.open()
        out, err = pause.communicate(timeout=30)
    assert pause.returncode == 0
    assert out.startswith("everything is paused by ")
    assert "nothing is running" in err
    assert project.statuses() == {"succeeded": 1, "queued": 1}
    # This tick could have started the second job: it had a free worker and time left. Only the pause prevented that.
    assert tick.wait() == 0
    assert {effect.job_id for effect in project.effects("start")} == {first}
    cli(project, "resume", "--all")
    assert project.tick().wait() == 0
    assert {effect.job_id for effect in project.effects("end")} == {first, second}


def test_when_the_time_is_up_it_says_what_still_runs_and_the_pause_stays(project: Project) -> None:
    job_id = project.add("t.gated")
    tick = project.start()
    until(lambda: project.effects("start"))
    said = cli(project, "pause", "--all", "--wait", "600ms", code=1)
    assert "1 job still running" in said
    assert f"{job_id}  t.gated" in said
    assert '"cronjobs resume --all" ends the pause' in said
    assert is_paused(project)
    project.open()
    assert tick.wait() == 0
    assert "quiet" in cli(project, "pause", "--all", "--wait", "0s")


def test_jobs_of_other_queues_are_not_waited_for(project: Project) -> None:
    project.add("t.gated")
    tick = project.start()
    until(lambda: project.effects("start"))
    project.add("t.quick", queue="mail")
    assert "quiet" in cli(project, "pause", "--queue", "mail", "--wait", "5s")
    assert "1 job still running" in cli(project, "pause", "--queue", "default", "--wait", "100ms", code=1)
    project.open()
    assert tick.wait() == 0


def test_ctrl_c_ends_the_wait_and_not_the_pause(project: Project) -> None:
    project.add("t.gated")
    tick = project.start()
    until(lambda: project.effects("start"))
    with pausing(project, "--all", "--wait", "60s") as pause:
        assert pause.stdout is not None
        assert pause.stdout.readline()  # printed before it waits
        signalled = threading.Event()

        def interrupt() -> None:
            while not signalled.wait(0.2):  # it may not have come to the waiting yet
                pause.send_signal(signal.SIGINT)
                signalled.set()

        thread = threading.Thread(target=interrupt)
        thread.start()
        _, err = pause.communicate(timeout=30)
        signalled.set()
        thread.join()
    assert pause.returncode == 130
    assert 'the pause is still in effect, and "cronjobs resume --all" ends the pause' in err
    assert is_paused(project)
    project.open()
    assert tick.wait() == 0


def test_a_job_whose_runner_is_gone_is_named_with_the_way_out(project: Project) -> None:
    job_id = project.add("t.gated")
    tick = project.start()
    until(lambda: project.effects("start"))
    tick.send(signal.SIGKILL)
    tick.wait()
    said = cli(project, "pause", "--all", "--wait", "0s", code=1)
    assert f"cronjobs jobs release {job_id}" in " ".join(said.split())


@pytest.mark.parametrize("words", [["some-schedule", "--wait", "5s"], ["--all", "--wait", "soon"], ["--wait", "5s"]])
def test_a_wait_that_cannot_be_meant_pauses_nothing(project: Project, words: list[str]) -> None:
    cli(project, "db", "upgrade")
    assert cli(project, "pause", *words, code=2)
    assert not is_paused(project)


@pytest.mark.parametrize("limits", [(), (Limit("k:", 2),)])
@pytest.mark.parametrize("claiming", [partial(claim, limit=1), claim_warily])
def test_a_claim_is_in_flight_from_when_it_asked_for_pauses_until_it_ends(
    postgres_project: Project, claiming: Callable[..., Any], limits: Sequence[Limit]
) -> None:
    """A claim under limits, or row by row, first locks rows and only later leases them."""
    postgres_project.add("t.quick", concurrency_key="k:1")
    admission = ClaimFilter(known=["t.quick"], fitting=["t.quick"], remaining_s=60, longest_s=60, limits=limits)
    seen: list[bool] = []
    with opened(postgres_project.url) as database, opened(postgres_project.url) as other:

        def look(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if seen or "cronjobs_pauses" in statement:
                with other.read() as connection:
                    seen.append(bool(claims_in_flight(connection)))

        with database.write() as connection:
            event.listen(database.engine, "after_cursor_execute", look)
            found = claiming(connection, locked_by="someone", lease=timedelta(seconds=60), admission=admission)
            assert found.jobs or found.unread
            event.remove(database.engine, "after_cursor_execute", look)
        with other.read() as connection:
            assert not claims_in_flight(connection)
    assert seen
    assert all(seen)


def test_a_claim_that_began_before_the_pause_is_waited_for(postgres_project: Project) -> None:
    """The claim's transaction is open, so nobody sees its leases yet. (On SQLite, claims never overlap.)"""
    project = postgres_project
    project.add("t.quick")
    database = Database(parse_url(project.url))
    admission = ClaimFilter(known=["t.quick"], fitting=["t.quick"], remaining_s=60, longest_s=60)
    with database.write() as connection:
        claim(connection, limit=1, locked_by="someone", lease=timedelta(seconds=60), admission=admission)
        said = cli(project, "pause", "--all", "--wait", "300ms", code=1)
        assert "a claim made before the pause is still being committed" in said
    database.close()
    assert "1 job still running" in cli(project, "pause", "--all", "--wait", "0s", code=1)
    with psycopg.connect(project.url) as reader:  # pg_dump reads all tables, for hours
        reader.execute("SELECT count(*) FROM cronjobs_pauses, cronjobs_jobs")
        project.sql("DELETE FROM cronjobs_jobs")
        assert "quiet" in cli(project, "pause", "--all", "--wait", "0s")
