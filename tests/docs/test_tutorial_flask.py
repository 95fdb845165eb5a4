"""docs/tutorials/flask.md, played from its first line to its last."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.pages import Page
from support.tutorial import Tutorial

PAGE = Page("docs/tutorials/flask.md")
REQUEST = """
import sys
from club import create_app
path = sys.argv[2].removeprefix("http://localhost:5000")
print(create_app().test_client().open(path, method=sys.argv[1], base_url="https://club.example.com").text, end="")
"""


@pytest.mark.either
def test_no_link_is_dead() -> None:
    assert PAGE.dead_links() == []


@pytest.mark.slow
@pytest.mark.either
def test_a_newcomer_comes_from_the_app_to_a_job_that_cron_runs(tmp_path: Path) -> None:
    folder = tmp_path / "club"
    folder.mkdir()
    Tutorial(PAGE, folder, REQUEST).play()
    assert "run-due --config" in (tmp_path / "club-bin/crontab.lines").read_text()
