"""docs/how-to/enqueue.md, executed: a batch and its summary, from the enqueue to the report, on both databases."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from sqlalchemy import text
from support.pages import Page
from support.receivers import Answer, Call, WebServer, web_server
from support.targets import plain_url
from support.ticking import Project, cli

from cronjobs.engine.jobs import registry

PAGE = Page("docs/how-to/enqueue.md")
BATCH = PAGE.block("python", "# fetching.py")
NIGHT = r"2026-11-29T02:15 a_b 50%\1"  # any name will do


class Api:
    """Customer 2 is always refused, 3 the first time, 4 has to wait the first time; 5 gets no JSON until mended."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.mended = False

    def __call__(self, call: Call) -> Answer:
        self.asked.append(customer := call.path.rpartition("/")[2])
        first = self.asked.count(customer) == 1
        if customer == "2" or (customer == "3" and first):
            return 503, {}, {}
        if customer == "4" and first:
            return 429, {"Retry-After": format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True)}, {}
        return (204, {}, {}) if customer == "5" and not self.mended else (200, {}, {"paid": int(customer)})


@pytest.fixture
def api() -> Iterator[WebServer]:
    with web_server(Api()) as web:
        yield web


@pytest.fixture
def started(project: Project, api: WebServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names of the page's module, whose batch of five customers is enqueued."""
    env = {"DATABASE_URL": plain_url(project.url), "API_URL": api.url, "no_proxy": "*"}
    project.configure(f"env: {json.dumps(env)}\n", imports="[fetching]")
    (project.folder / "fetching.py").write_text(BATCH)
    project.admin_sql(PAGE.block("sql", "CREATE TABLE"))
    if not project.is_sqlite:
        project.admin_sql("GRANT ALL ON fetches TO PUBLIC")
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setenv("DATABASE_URL", env["DATABASE_URL"])
    names: dict[str, Any] = {"__name__": "fetching"}
    exec(compile(BATCH, "fetching.py", "exec", dont_inherit=True), names)
    names["start"]("a night without customers", [])  # makes no job
    names["start"](NIGHT, [1, 2, 3, 4, 5])
    yield names
    names["engine"].dispose()


@pytest.mark.slow
def test_the_summary_waits_for_every_job_and_reports_each(
    project: Project, started: dict[str, Any], api: WebServer
) -> None:
    [summary] = ids_of(project, "api.summary")
    fetch_5 = ids_of(project, "api.fetch")[4]
    for _ in range(started["TRIES"]):
        assert project.job(summary)["result"] is None
        assert {row[0] for row in project.sql("SELECT status FROM fetches")} == {None}
        project.make_due()
        assert project.tick().wait() in (0, 1)  # 1: a job died
    project.make_due()
    project.tick()
    job = project.job(summary)
    assert (job["status"], job["failures"], set(project.outcomes(summary))) == (
        "succeeded",
        0,
        {"snoozed", "succeeded"},
    )
    assert parsed(job["result"]) == {"jobs": 5, "failed": 1, "empty": 0, "dead": 1, "cancelled": 0}
    report = {
        customer: (status, attempts, parsed(result))
        for customer, status, attempts, result in project.sql("SELECT customer, status, attempts, result FROM fetches")
    }
    assert report == {
        1: ("succeeded", 1, {"orders": {"paid": 1}}),
        2: ("succeeded", 3, {"failed": "HTTP Error 503: Service Unavailable"}),
        3: ("succeeded", 2, {"orders": {"paid": 3}}),
        4: ("succeeded", 2, {"orders": {"paid": 4}}),
        5: ("dead", 3, None),
    }
    assert project.outcomes(ids_of(project, "api.fetch")[3]) == ["snoozed", "succeeded"]
    assert project.value("SELECT last_error FROM fetches WHERE customer = 5").startswith("Expecting value")

    # What died is mended and retried, and the page's command writes the report again.
    assert isinstance(api.act, Api)
    api.act.mended = True
    [cause] = re.findall(r"--cause\s+(\w+)", cli(project, "status"))
    cli(project, "jobs", "retry", "--cause", cause, "--yes")
    [command] = re.findall(r"`(cronjobs enqueue api\.summary .*?)`", " ".join(PAGE.text.split()))
    cli(project, *(word.replace("2026-11-28", json.dumps(NIGHT)[1:-1]) for word in shlex.split(command)[1:]))
    for _ in range(2):
        project.make_due()
        project.tick()
    again = project.job(ids_of(project, "api.summary")[1])
    assert parsed(again["result"]) == {"jobs": 5, "failed": 1, "empty": 0, "dead": 0, "cancelled": 0}
    assert project.sql("SELECT status, attempts FROM fetches WHERE customer = 5") == [("succeeded", 4)]
    assert project.job(fetch_5)["status"] == "succeeded"
    project.sql(f"UPDATE cronjobs_jobs SET result = NULL WHERE id = {fetch_5}")  # as if it had been too long
    assert counted(started, NIGHT)["empty"] == 1


def test_a_batch_started_twice_is_one_and_another_has_jobs_of_its_own(
    project: Project, started: dict[str, Any]
) -> None:
    started["start"](NIGHT, [1, 2, 3, 4, 5])
    assert project.statuses() == {"queued": 6}
    started["start"](NIGHT.replace("_", "x"), [1, 2, 3])
    assert project.statuses() == {"queued": 10}
    started["start"](NIGHT, [5, 6])
    assert project.statuses() == {"queued": 11}
    assert counted(started, NIGHT) == {"jobs": 6, "open": 6, "failed": 0, "empty": 0, "dead": 0, "cancelled": 0}
    progress = PAGE.block("sql", "GROUP BY j.status").replace("2026-11-28", NIGHT)
    assert project.sql(progress) == [("queued", 6)]


@pytest.mark.slow
def test_a_job_cancelled_before_it_began_is_reported_until_a_second_start_replaces_it(
    project: Project, started: dict[str, Any]
) -> None:
    assert cli(project, "jobs", "cancel", "--queue", f"fetch-{NIGHT}", "--yes")
    assert project.statuses() == {"cancelled": 5, "queued": 1}
    assert counted(started, NIGHT) == {"jobs": 5, "open": 0, "failed": 0, "empty": 0, "dead": 0, "cancelled": 5}
    project.tick()
    report = project.sql("SELECT DISTINCT status, attempts, last_error FROM fetches")
    assert [row[:2] for row in report] == [("cancelled", 0)]
    assert "cancelled by" in report[0][2]
    started["start"](NIGHT, [1, 2])
    assert counted(started, NIGHT) == {"jobs": 5, "open": 2, "failed": 0, "empty": 0, "dead": 0, "cancelled": 3}


@pytest.mark.slow
def test_a_summary_that_finds_no_jobs_fails(project: Project, started: dict[str, Any]) -> None:
    project.sql("DELETE FROM cronjobs_jobs WHERE job_type = 'api.fetch'")
    project.tick()
    [summary] = ids_of(project, "api.summary")
    job = project.job(summary)
    assert (job["status"], job["attempts"]) == ("dead", 1)
    assert job["last_error"].endswith(f"no jobs of batch {NIGHT!r}")


@pytest.mark.slow
def test_a_failure_that_was_returned_cannot_be_retried_and_keeps_its_key(
    project: Project, started: dict[str, Any]
) -> None:
    for _ in range(started["TRIES"]):
        project.make_due()
        project.tick()
    returned = ids_of(project, "api.fetch")[1]
    assert "succeeded" in cli(project, "jobs", "retry", str(returned), code=1)
    assert project.job(returned)["status"] == "succeeded"
    started["start"](NIGHT, [2])
    assert sum(project.statuses().values()) == 6


def test_without_the_batch_in_the_key_a_second_batch_counts_the_job_of_the_first(
    project: Project, started: dict[str, Any]
) -> None:
    names: dict[str, Any] = {"__name__": "fetching"}
    registry._registered.clear()
    exec(BATCH.replace('("fetch", batch, n)', '("fetch", n)'), names)
    names["start"]("first", [11, 12])
    names["start"]("second", [12, 13])
    names["engine"].dispose()
    assert len(ids_of(project, "api.fetch")) == 5 + 3
    assert counted(started, "second")["jobs"] == 2


def ids_of(project: Project, job_type: str) -> list[int]:
    return [row[0] for row in project.sql(f"SELECT id FROM cronjobs_jobs WHERE job_type = '{job_type}' ORDER BY id")]


def counted(names: dict[str, Any], batch: str) -> dict[str, int]:
    """What the summary would count now."""
    with names["engine"].connect() as connection:
        return dict(connection.execute(text(names["COUNT"]), {"batch": batch}).mappings().one())


def parsed(result: Any) -> Any:
    """A result, which the report, and SQLite, have as text."""
    return json.loads(result) if isinstance(result, str) else result
