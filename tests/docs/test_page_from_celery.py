"""docs/tutorials/from-celery.md: its project runs, and each call and setting that its tables name exists."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.databases import opened
from support.django_project import django_project
from support.pages import Page
from support.project import BARE, Project

import cronjobs
from cronjobs import Context, RetryPolicy
from cronjobs.engine.config.load import load
from cronjobs.engine.crontime.timing import timing
from cronjobs.testing import create_tables, drain

PAGE = Page("docs/tutorials/from-celery.md")
TABLES = ("Calls", "In the task", "Beat", "At the command line")
pytestmark = pytest.mark.either


def test_every_block_is_executed_here() -> None:
    assert PAGE.counts() == {"text": 2, "python": 3, "yaml": 1}  # text: Celery's own
    assert PAGE.dead_links() == []


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path, f"sqlite:///{tmp_path}/cronjobs.db")
    for language, name in (("yaml", "cronjobs.yaml"), ("python", "jobs.py"), ("python", "shop.py")):
        (tmp_path / name).write_text(PAGE.block(language, f"# {name}"))
    return made


def test_the_app_makes_a_job_that_the_handler_runs(project: Project) -> None:
    environ = BARE | {"DATABASE_URL": project.url}
    assert project.run("db", "upgrade", env=environ).code == 0
    paying = [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", "import shop; print(shop.pay(42))"]
    assert subprocess.run(paying, cwd=project.folder, env=environ, stdout=subprocess.PIPE, check=True).stdout == b"1\n"
    assert project.run("run", "1", env=environ).code == 0
    [job] = project.jobs()
    assert (job["status"], job["result"]["sent"]) == ("succeeded", 42)
    assert job["run_at"] - job["created_at"] == pytest.approx(timedelta(minutes=5), abs=timedelta(seconds=5))


def test_a_busy_provider_is_asked_again_after_90_seconds(project: Project) -> None:
    environ = BARE | {"DATABASE_URL": project.url}
    payload = '{"order_id": 1, "busy": true}'
    assert project.run("enqueue", "shop.send_receipt", "--payload", payload, env=environ).code == 0
    assert project.run("run-due", env=environ).code == 0
    [job], [run] = project.jobs(), project.rows("job_runs")
    assert (job["status"], job["failures"]) == ("failed", 1)
    assert job["run_at"] - run["finished_at"] == pytest.approx(timedelta(seconds=90), abs=timedelta(seconds=2))


def test_a_shared_task_of_django_becomes_a_handler(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/cronjobs.db"
    with opened(url) as database, database.write() as connection:
        create_tables(connection)
    with django_project(url, EMAIL_BACKEND="django.core.mail.backends.locmem.EmailBackend"):
        from django.core import mail  # type: ignore[import-untyped]
        from django.db import connection as djangos  # type: ignore[import-untyped]
        from django.db import transaction

        mail.outbox = []
        shop: dict[str, Any] = {}
        exec(compile(PAGE.block("python", "# shop/jobs.py"), str(PAGE), "exec"), shop)
        shop["pay"](42)
        with transaction.atomic():
            [ran] = drain(djangos, raise_errors=True).succeeded
        assert ran.job_type == "shop.thank"
        assert [sent.body for sent in mail.outbox] == ["We have your order 42."]


def test_the_schedules_are_due_as_beat_had_them(project: Project) -> None:
    environ = {"DATABASE_URL": project.url}
    schedules = load(project.folder / "cronjobs.yaml", environ=environ).schedules
    assert {name: (each.cron, each.every) for name, each in schedules.items()} == {
        "nightly-receipt": ("15 2 * * mon-fri", None),
        "every-ten-minutes": (None, timedelta(minutes=10)),
    }
    for row in PAGE.table("Beat"):
        for expression in re.findall(r'cron: "([^"]+)"', row["cronjobs"]):
            assert timing(expression, None, "UTC")


def test_what_the_tables_name_exists() -> None:
    text = "".join(row["cronjobs"] for name in TABLES for row in PAGE.table(name))
    called = set(re.findall(r"(?<![\w.])(\w+)\(", text)) - {"group"}
    assert called == {"enqueue", "enqueue_many", "find", "wait", "cancel", "RetryPolicy", "GiveUp", "RetryLater"} | {
        "check" for _ in re.findall(r"(?<![\w.])check\(", text)
    }
    assert called <= set(cronjobs.__all__)
    policy = RetryPolicy(
        retry_on=[ConnectionError], give_up_on=[ValueError], max_attempts=6, base="1m", cap="30m", jitter=0.2
    )
    assert policy.max_attempts == 6
    for method in re.findall(r"ctx\.(\w+)\(", text):
        assert callable(getattr(Context, method))
    options = set(inspect.signature(cronjobs.enqueue).parameters)
    assert {"delay", "run_at", "queue", "priority", "idempotency_key"} <= options
