"""docs/how-to/operating.md: deploys, copies of the database and exit codes, with real ticks."""

from __future__ import annotations

import os
import re
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest
from support.pages import Page
from support.shop import JOBS, Shop
from support.shop import busy_shop as busy_shop
from support.shop import shop as shop
from support.ticking import Project as Ticking

from cronjobs.engine.config.settings import RunSettings

PAGE = Page("docs/how-to/operating.md")

ENDS = """
import time
from cronjobs import GiveUp, job

@job("fails")
def fails():
    raise RuntimeError

@job("dies")
def dies():
    raise GiveUp("no")

@job("patient", timeout="5s")
def patient(ctx):
    open("started", "w").close()
    while True:
        time.sleep(0.01)
        ctx.check()
"""


@pytest.fixture
def ticking(project: Ticking) -> Ticking:
    return project.configure()


@pytest.mark.slow
def test_run_due_ends_with_the_exit_codes_of_the_table(ticking: Ticking, tmp_path: Path) -> None:
    """Of troubleshooting.md; 142 and 137: tests/engine/process/test_time_limit.py."""
    ticking.configure(handlers=ENDS)
    assert ticking.tick().wait() == 0
    ticking.add("fails")
    assert ticking.tick().wait() == 0
    ticking.add("dies")
    assert ticking.tick().wait() == 1
    assert ticking.tick("--budget", "soon").wait() == 2
    ticking.configure("schedules: {bad: {cron: '61 * * * *', job: x}}\n", ENDS)
    assert ticking.tick().wait() == 3
    ticking.configure(handlers=ENDS)
    assert ticking.tick("--database-url", f"sqlite:///{tmp_path}/no/such/folder/x.db").wait() == 4


def test_a_tick_that_is_stopped_gives_its_job_back_and_ends_with_128_and_the_signal(shop: Shop) -> None:
    """SIGTERM "stops the intake, tells handlers through their context, waits up to 10 s, and gives the rest back"."""
    (shop.folder / "jobs.py").write_text(JOBS + ENDS)
    shop.does("enqueue", "patient")
    tick = shop.start("run-due")
    while not (shop.folder / "started").exists():
        assert tick.poll() is None
        os.sched_yield()
    tick.terminate()
    tick.communicate(timeout=60)
    assert tick.returncode == 128 + 15
    assert [job["status"] for job in shop.jobs()] == ["queued"]


@pytest.mark.slow
def test_the_brake_stops_claims_until_it_is_let_go(busy_shop: Shop) -> None:
    time = Page("docs/explanation/time.md").text
    for_people = re.findall(r"`(cronjobs pause [^`]+)`", time)
    for_scripts, resume = (line.removeprefix("$ ") for line in PAGE.block("console", "pause --all").splitlines())
    assert f"`{resume}`" in time
    pauses = [*for_people, for_scripts]
    assert len(pauses) == 2
    for pause in pauses:
        assert busy_shop.shell(pause).code == 0
        busy_shop.does("run-due")
        assert {job["status"] for job in busy_shop.jobs()} == {"queued"}
        assert busy_shop.shell(resume).code == 0
    busy_shop.does("run-due")
    assert {job["status"] for job in busy_shop.jobs()} == {"succeeded"}


def test_a_copy_under_another_name_claims_nothing_until_it_is_adopted(busy_shop: Shop) -> None:
    file = busy_shop.folder / "cronjobs.yaml"
    file.write_text(file.read_text().replace("project: shop", "project: staging"))
    assert "cronjobs db adopt" in busy_shop.does("run-due", code=3).err
    assert {job["status"] for job in busy_shop.jobs()} == {"queued"}
    assert "hosts still tick for" in busy_shop.does("db", "adopt", code=1).err
    with sqlite3.connect(busy_shop.folder / "cronjobs.db") as connection:
        connection.execute("UPDATE cronjobs_ticks SET started_at = 1600000000000000, finished_at = NULL")
    connection.close()
    assert busy_shop.run("db", "adopt").code == 0
    busy_shop.does("run-due")
    assert {job["status"] for job in busy_shop.jobs()} == {"succeeded"}


def test_a_tick_waits_for_handlers_as_long_as_the_page_says() -> None:
    assert "waits up to 10 s" in " ".join(PAGE.text.split())
    assert RunSettings().shutdown_grace == timedelta(seconds=10)
