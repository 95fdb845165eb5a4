"""docs/explanation/failure.md: the outcome of a job for each exception of its handler, and the figures in the text."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.pages import Page
from support.project import Project

from cronjobs import RetryLater, RetryPolicy, Snooze
from cronjobs.engine.config.settings import RunSettings
from cronjobs.engine.jobs import registry
from cronjobs.engine.rules.retry import backoff
from cronjobs.testing import context

PAGE = Page("docs/explanation/failure.md")

RAISING = """
from cronjobs import GiveUp, RetryLater, Snooze, job

@job("first")
def first():
    raise RuntimeError("anything")

@job("give-up")
def give_up():
    raise @GiveUp@

@job("later")
def later():
    raise @RetryLater@

@job("snooze")
def snooze():
    raise @Snooze@

@job("exit")
def exits():
    raise SystemExit(0)

@job("slow", timeout="100ms")
def slow(ctx):
    while True:
        ctx.check()
"""


def test_what_a_handler_raises_decides_as_the_table_says(tmp_path: Path) -> None:
    means = {row["raised"].strip("`"): row["means"] for row in PAGE.table("What becomes of a job")}
    assert len(means) == 6
    handlers = RAISING
    for name in ("GiveUp", "RetryLater", "Snooze"):
        [code] = [shown for shown in means if shown.startswith(name)]
        handlers = handlers.replace(f"@{name}@", code)
    project = Project(tmp_path, f"sqlite:///{tmp_path}/cronjobs.db")
    project.write(handlers=handlers)
    for job_type in ("first", "give-up", "later", "snooze", "exit", "slow"):
        assert project.run("enqueue", job_type).code == 0
    assert project.run("run-due", "--fail-on", "never").code == 0

    jobs = {job["job_type"]: job for job in project.jobs()}
    ended = {run["job_id"]: run for run in project.rows("job_runs")}
    state = {name: (job["status"], job["failures"], ended[job["id"]]["outcome"]) for name, job in jobs.items()}
    assert state == {
        "first": ("failed", 1, "failed"),  # "failed; retried by the policy"
        "give-up": ("dead", 1, "failed"),  # "permanent: dead at once"
        "later": ("failed", 1, "failed"),  # "failed; retried after that time"
        "snooze": ("queued", 0, "snoozed"),  # "not a failure: the job runs again after that time"
        "exit": ("failed", 1, "failed"),  # "even with code 0"
        "slow": ("failed", 1, "timed_out"),  # "timed out; retried"
    }
    for name, delay in (("later", timedelta(seconds=90)), ("snooze", timedelta(minutes=10))):
        waits = jobs[name]["run_at"] - ended[jobs[name]["id"]]["finished_at"]
        assert abs(waits - delay) < timedelta(seconds=2)


@pytest.mark.parametrize(
    ("headers", "until"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "Sun, 29 Nov 2026 08:00:00 GMT"}, datetime(2026, 11, 29, 8, tzinfo=UTC)),
        ({}, 60),
    ],
)
def test_a_429_snoozes_without_a_try_fifty_times(
    monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], until: object
) -> None:
    busy = SimpleNamespace(get=lambda *_, **__: SimpleNamespace(status=429, headers=headers))
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(api=busy))
    names: dict[str, Any] = {"__name__": "fetching"}
    exec(compile(PAGE.block("python", "Retry-After"), PAGE.path, "exec", dont_inherit=True), names)
    with pytest.raises(Snooze) as snoozed:
        names["fetch"](context(attempt=50), customer=1)
    assert snoozed.value.until == until
    with pytest.raises(RetryLater, match="still 429 after 50 attempts"):
        names["fetch"](context(attempt=51), customer=1)


@pytest.mark.slow
def test_a_result_that_cannot_be_stored_is_dropped_and_only_shown(tmp_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path}/cronjobs.db")
    values = {"date": "datetime.now()", "money": "Decimal(1)", "long": "'x' * 262_145"}
    handlers = "".join(
        f"\n@job('{name}')\ndef {name}():\n    return {{'v': {value}}}\n" for name, value in values.items()
    )
    imports = "from datetime import datetime\nfrom decimal import Decimal\nfrom cronjobs import job\n"
    project.write("log: tick.log\n", handlers=imports + handlers)
    for name in values:
        assert project.run("enqueue", name).code == 0
    answer = project.run("run-due")
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    for job in project.jobs():
        assert (job["status"], job["result"]) == ("succeeded", None)
        for said in (project.run("explain", str(job["id"])).out, project.run("jobs", "show", str(job["id"])).out):
            assert "the result was not kept" in " ".join(said.split())
    assert (tmp_path / "tick.log").read_text().count("the result was not kept") == 3


def test_the_figures_of_the_text_are_those_of_the_code() -> None:
    text = " ".join(PAGE.text.split())
    policy = RetryPolicy()
    [tries, minutes, jitter] = re.findall(
        r"By default a job is tried (\d+) times\. The delays between the tries are ([\d, a-z]+) minutes, each ±(\d+) %",
        text,
    )[0]
    delays = [timedelta(minutes=int(minute)) for minute in re.findall(r"\d+", minutes)]
    assert policy.max_attempts == int(tries)
    assert [backoff(policy, failures, 0) for failures in range(1, len(delays) + 1)] == delays
    assert backoff(policy, policy.max_attempts, 0) == delays[-1]
    assert policy.jitter * 100 == pytest.approx(int(jitter))
    assert (
        "The default timeout is a third of the *budget*, the time that a tick may take (`run.budget`), "
        "and at most 30 s." in text
    )
    assert RunSettings().default_timeout == min(timedelta(seconds=30), RunSettings().budget / 3)
    assert RunSettings(budget=timedelta(minutes=5)).default_timeout == timedelta(seconds=30)
