"""docs/how-to/enqueue.md, executed: a batch and its summary, from its enqueue to its report, on both databases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.pages import Page
from support.receivers import Answer, Call, WebServer, web_server
from support.targets import plain_url
from support.ticking import Project, cli

from cronjobs.engine.jobs import registry

PAGE = Page("docs/how-to/enqueue.md")
BATCH = PAGE.block("python", "# fetching.py")
REPORT = (
    "CREATE TABLE fetch_report (id text PRIMARY KEY, status text, attempts int, failures int, losses int, result text)"
)


class Api:
    """Customer 2 is always refused, customer 3 the first time."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, call: Call) -> Answer:
        self.asked.append(customer := call.path.rpartition("/")[2])
        refused = customer == "2" or (customer == "3" and self.asked.count("3") == 1)
        return (503, {}, {}) if refused else (200, {}, {"paid": int(customer)})


@pytest.fixture
def api() -> Iterator[WebServer]:
    with web_server(Api()) as web:
        yield web


@pytest.fixture
def started(project: Project, api: WebServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names of the page's module, whose batch of three customers is enqueued."""
    env = {"DATABASE_URL": plain_url(project.url), "API_URL": api.url, "no_proxy": "*"}
    project.configure(f"env: {json.dumps(env)}\n", imports="[fetching]")
    (project.folder / "fetching.py").write_text(BATCH)
    project.admin_sql(REPORT)
    if not project.is_sqlite:
        project.admin_sql("GRANT ALL ON fetch_report TO PUBLIC")
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setenv("DATABASE_URL", env["DATABASE_URL"])
    names: dict[str, Any] = {"__name__": "fetching"}
    exec(compile(BATCH, "fetching.py", "exec", dont_inherit=True), names)
    names["start"]("2026-11-28", [1, 2, 3])
    yield names
    names["engine"].dispose()


@pytest.mark.slow
def test_the_summary_waits_for_every_job_and_reports_each(project: Project, started: dict[str, Any]) -> None:
    [summary] = [row[0] for row in project.sql("SELECT id FROM cronjobs_jobs WHERE job_type = 'api.summary'")]
    for _ in range(started["TRIES"]):
        assert project.job(summary)["result"] is None
        assert project.sql("SELECT * FROM fetch_report") == []
        project.make_due()
        assert project.tick().wait() == 0
    project.make_due()
    project.tick()
    job = project.job(summary)
    assert (job["status"], job["failures"], set(project.outcomes(summary))) == (
        "succeeded",
        0,
        {"snoozed", "succeeded"},
    )
    assert parsed(job["result"]) == {"jobs": 3, "dead": 0}
    report = {row[0]: row[1:] for row in project.sql("SELECT * FROM fetch_report")}
    assert {key: row[:4] for key, row in report.items()} == {
        "fetch:2026-11-28:1": ("succeeded", 1, 0, 0),
        "fetch:2026-11-28:2": ("succeeded", 3, 2, 0),
        "fetch:2026-11-28:3": ("succeeded", 2, 1, 0),
    }
    results = [json.loads(report[f"fetch:2026-11-28:{n}"][4]) for n in (1, 2, 3)]
    assert results == [
        {"orders": {"paid": 1}},
        {"failed": "HTTP Error 503: Service Unavailable"},
        {"orders": {"paid": 3}},
    ]


def test_a_batch_started_twice_is_one_and_another_has_a_prefix_of_its_own(
    project: Project, started: dict[str, Any]
) -> None:
    started["start"]("2026-11-28", [1, 2, 3])
    assert project.statuses() == {"queued": 4}
    started["start"]("2026-11-28b", [1, 2, 3])
    assert project.statuses() == {"queued": 8}


@pytest.mark.slow
def test_a_failure_that_was_returned_cannot_be_retried_and_keeps_its_key(
    project: Project, started: dict[str, Any]
) -> None:
    for _ in range(started["TRIES"]):
        project.make_due()
        project.tick()
    [returned] = [row[0] for row in project.sql("SELECT id FROM cronjobs_jobs WHERE failures = 2")]
    assert "succeeded" in cli(project, "jobs", "retry", str(returned), code=1)
    assert project.job(returned)["status"] == "succeeded"
    started["start"]("2026-11-28", [2])
    assert sum(project.statuses().values()) == 4


def parsed(result: Any) -> Any:
    """A result, which SQLite has as text."""
    return json.loads(result) if isinstance(result, str) else result
