"""docs/explanation/time.md: the test of its project passes, and its table's conditions are computed."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from support.pages import Page

from cronjobs.engine.crontime.timing import fire_times

PAGE = Page("docs/explanation/time.md")
pytestmark = pytest.mark.either


def test_every_block_is_executed_here() -> None:
    assert PAGE.counts() == {"yaml": 2, "console": 1, "python": 2}  # test_page_time.py
    assert PAGE.dead_links() == []


def test_the_first_workday_is_one_of_the_days_that_the_schedule_is_due() -> None:
    names: dict[str, object] = {"__name__": "jobs_of_the_page"}
    exec(PAGE.block("python", "# jobs.py").split("@job(")[0], names)
    is_first_workday = names["is_first_workday"]
    assert callable(is_first_workday)
    days = [date(2026, 8, 1) + timedelta(days=n) for n in range(365)]
    assert [str(day) for day in days if is_first_workday(day)] == [
        *("2026-08-03", "2026-09-01", "2026-10-01", "2026-11-02", "2026-12-01", "2027-01-04"),
        *("2027-02-01", "2027-03-01", "2027-04-01", "2027-05-03", "2027-06-01", "2027-07-01"),
    ]


@pytest.mark.parametrize(
    ("due", "days"),
    [
        ("the last day of the month", ["2027-01-31", "2027-02-28", "2027-03-31"]),
        ("the last workday of the month", ["2027-01-29", "2027-02-26", "2027-03-31"]),
        ("every second Monday", ["2027-01-04", "2027-01-18", "2027-02-01"]),
        ("the third Thursday of the month", ["2027-01-21", "2027-02-18", "2027-03-18"]),
    ],
)
def test_the_conditions_of_the_table_choose_these_days(due: str, days: list[str]) -> None:
    [row] = [row for row in PAGE.table("Others") if row["due"] == due]
    [condition] = re.findall(r"`([^`]+)`", row["the handler goes on if"])
    asked = fire_times(row["`cron`"].strip('`"'), "UTC", after=datetime(2027, 1, 1, tzinfo=UTC))
    chosen = (at.date() for at in asked if eval(condition, {"day": at.date(), "date": date, "timedelta": timedelta}))
    assert [str(next(chosen)) for _ in days] == days


@pytest.mark.slow
def test_the_pages_own_test_passes(tmp_path: Path) -> None:
    for language, name in (("yaml", "cronjobs.yaml"), ("python", "jobs.py"), ("python", "test_monthly.py")):
        (tmp_path / name).write_text(PAGE.block(language, f"# {name}"))
    pytest_alone = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run([sys.executable, *pytest_alone], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
