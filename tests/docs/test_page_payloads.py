"""docs/how-to/payloads.md, executed: its handler, its enqueues, the refused payloads, and the check before a deploy."""

from __future__ import annotations

import importlib
import io
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from support.pages import Page
from support.project import Project

from cronjobs import enqueue, job
from cronjobs.engine.jobs import registry
from cronjobs.engine.jobs.registry import Registration
from cronjobs.errors import PayloadError
from cronjobs.testing import drain

PAGE = Page("docs/how-to/payloads.md")


@pytest.fixture
def project(tmp_path: Path, sqlite_migrated: str) -> Iterator[Project]:
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    (tmp_path / "shop_jobs.py").write_text(PAGE.block("python", "# shop_jobs.py"))
    (tmp_path / "cronjobs.yaml").write_text(f"project: shop\ndatabase: {project.url}\nimports: [shop_jobs]\n")
    before = dict(registry._registered)
    registry._registered.clear()  # other tests of this process may have a handler of the same name
    yield project
    registry._registered.clear()
    registry._registered.update(before)


@pytest.fixture
def names(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.syspath_prepend(str(project.folder))
    importlib.import_module("shop_jobs")
    engine = create_engine(project.url)
    yield {"enqueue": enqueue, "date": date, "Decimal": Decimal, "PayloadError": PayloadError, "session": engine}
    engine.dispose()
    sys.modules.pop("shop_jobs", None)


def execute(says: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(PAGE.block("python", says), "docs/how-to/payloads.md", "exec", dont_inherit=True), names)
    return out.getvalue()


def test_every_block_of_the_page_is_executed_here() -> None:
    assert PAGE.counts() == {"python": 4, "text": 1, "console": 1}
    assert PAGE.dead_links() == []


def test_both_ways_write_one_payload_and_the_handler_gets_its_types(project: Project, names: dict[str, Any]) -> None:
    execute("invoice.enqueue", names)
    one, other = project.jobs()
    assert one["payload"] == other["payload"]
    with names["session"].begin() as connection:
        drain(connection, raise_errors=True)
    assert [job["result"] for job in project.jobs()] == ["23 November: 4.50 USD"] * 2


def test_what_is_refused_is_said_as_the_page_shows_it(names: dict[str, Any]) -> None:
    assert execute("except PayloadError", names) == PAGE.block("text", "does not fit")


def test_the_gate_says_what_the_page_shows(project: Project, names: dict[str, Any]) -> None:
    enqueue(names["session"], "billing.invoice", {"customer_id": 7, "day": "2026-11-23", "lines": []})
    enqueue(names["session"], "billing.remind", {})
    code = project.folder / "shop_jobs.py"
    code.write_text(code.read_text().replace("customer_id: int", "customer_id: str"))
    del sys.modules["shop_jobs"]
    registry._registered.clear()
    command, *shown = PAGE.block("console", "--against").splitlines()
    assert command == '$ cronjobs check --against "$PRODUCTION_URL"'
    answer = project.call("check", "--against", project.url)
    assert answer.out.splitlines() == shown
    assert answer.code == 1


# Imported by Python as it starts: an environment without pydantic, as far as installed distributions tell.
MISSING = """
import importlib.metadata as metadata
def version(name):
    raise metadata.PackageNotFoundError(name)
metadata.version = version
"""
COUNT = '@job("t.count")\ndef count(ids: list[int]) -> bool:\n    import sys; return "pydantic" in sys.modules\n'


def test_without_pydantic_the_type_is_at_fault_alone_and_waits(project: Project, names: dict[str, Any]) -> None:
    with (project.folder / "shop_jobs.py").open("a") as code:
        code.write(COUNT)
    (project.folder / "sitecustomize.py").write_text(MISSING)
    enqueue(names["session"], "billing.invoice", {"customer_id": 7, "day": "2026-11-23", "lines": []})
    enqueue(names["session"], "t.count", {"ids": [1, 2]})
    for env, exit_code, became in (({"PYTHONPATH": str(project.folder)}, 3, "queued"), ({}, 0, "succeeded")):
        done = project.run("run-due", env=env)
        assert (done.code, "pip install 'cronjobs[types]'" in done.err) == (exit_code, bool(env))
        assert [row["status"] for row in project.jobs()] == [became, "succeeded"]
    assert project.jobs()[1]["result"] is False, "to run it imported no pydantic"


def test_the_table_tells_what_is_taken() -> None:
    """Its examples of JSON are taken, become what the row names, and need pydantic where it says so."""
    examples: dict[Any, list[str]] = {
        Decimal: ['"19.99"', "20"],
        timedelta: ['"90s"', '"1h30m"'],
        date: ['"2026-11-23"'],
        bool: ["true"],
    }
    rows = {row["annotation"]: row for row in PAGE.table("What JSON an annotation takes")}
    for annotation, values in examples.items():
        [row] = [row for name, row in rows.items() if f"`{annotation.__name__}`" in name]
        handler = Registration("t.h", lambda p: None)
        handler.handler.__annotations__ = {"p": annotation}
        assert bool(handler.accepts.needs_pydantic) == (row["`[types]`"] == "yes")
        for value in values:
            decoded, misfits = handler.decoded({"p": json.loads(value)})
            assert (type(decoded["p"]), misfits.count, value in row["JSON"]) == (annotation, 0, True)


def test_a_renamed_handler_runs_under_both_names_and_enqueues_under_the_new_one(
    project: Project, names: dict[str, Any]
) -> None:
    names["job"] = job
    execute('@job("billing.charge"', names)
    assert {"billing.charge", "billing.collect"} <= registry._registered.keys()
    names["charge"].enqueue(names["session"], invoice_id=42)
    assert [row["job_type"] for row in project.jobs()] == ["billing.charge"]
