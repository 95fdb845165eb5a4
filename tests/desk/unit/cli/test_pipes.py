"""In a pipe no column is cut. On a terminal, or with $COLUMNS, a table fits the width."""

from __future__ import annotations

import pytest

from cronjobs.desk.cli.output import name_text, table

LONG = "a" * 90
ROWS = [[LONG, "12", LONG], ["b", "3", ""]]


@pytest.fixture(autouse=True)
def in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("cronjobs.desk.cli.output.is_terminal", lambda name="stdout": False)


def test_in_a_pipe_every_cell_is_whole() -> None:
    assert table(ROWS, ["name", ">n", "note"], room=60, at_most={0: 10})[1] == f"{LONG}  12  {LONG}"
    assert name_text(LONG) == LONG


def test_where_columns_are_said_lines_keep_within_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = table(ROWS, ["name", ">n", "note"], room=60, at_most={0: 10})
    assert max(map(len, lines)) == 60
    assert lines[1].startswith("aaaaaaaaa…  12  aaa")
    assert name_text(LONG) == "a" * 59 + "…"
