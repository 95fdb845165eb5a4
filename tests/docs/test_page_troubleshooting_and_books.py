"""troubleshooting.md lists the doctor's checks, and seeing.md the columns of the books.

The commands of both pages run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.lookingrows import NOW, Cronjobs
from support.lookingrows import cronjobs as cronjobs
from support.pages import Page

from cronjobs.contrib.books import cli as books_command
from cronjobs.contrib.books.judging import BESIDE, SETTLED
from cronjobs.contrib.doctor.examine import CHECKS
from cronjobs.engine.database.connection import Database
from cronjobs.testing import FakeClock

DOCTOR, BOOKS = Page("docs/how-to/troubleshooting.md"), Page("docs/how-to/seeing.md")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


def test_the_page_lists_the_checks_in_their_order() -> None:
    assert [row["check"] for row in DOCTOR.table("The checks")] == [check.name for check in CHECKS]


def test_the_page_lists_the_columns_in_their_order() -> None:
    always, sometimes = (BOOKS.table("The columns", nth) for nth in (0, 1))
    assert [row["column"] for row in always] == ["due", *SETTLED, "open", "wrong"]
    assert [row["column"] for row in sometimes] == list(BESIDE)


@pytest.mark.parametrize(("page", "says"), [(DOCTOR, "doctor --json"), (BOOKS, "cronjobs books")])
def test_the_examples_can_be_typed(
    database: Database, cronjobs: Cronjobs, page: Page, says: str, tmp_path: Path
) -> None:
    for line in page.block("console", says).splitlines():
        words = line.removeprefix("$ cronjobs ").partition("#")[0].split()
        answer = cronjobs(*words)
        if words[0] == "books" and "--schedule" in words:
            assert "had nothing due" in answer.err  # no tick has applied the file
        else:
            assert "Traceback" not in answer.err
            assert answer.code in (0, 1), answer
            assert answer.out


def test_the_help_names_the_default(cronjobs: Cronjobs) -> None:
    assert books_command.books.__doc__ is not None
    assert "7d" in cronjobs("books", "--help").out
