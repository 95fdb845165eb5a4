"""docs/tutorials/fastapi.md, played from its first line to its last."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.pages import Page
from support.tutorial import Tutorial

PAGE = Page("docs/tutorials/fastapi.md")
REQUEST = """
import sys
from fastapi.testclient import TestClient
from shop.main import app
print(TestClient(app).request(sys.argv[1], sys.argv[2].removeprefix("http://localhost:8000")).text)
"""


@pytest.mark.either
def test_no_link_is_dead() -> None:
    assert PAGE.dead_links() == []


@pytest.mark.slow
@pytest.mark.either
def test_a_newcomer_comes_from_the_app_to_a_job_that_cron_runs(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    Tutorial(PAGE, folder, REQUEST).play()
    assert "run-due --config" in (tmp_path / "shop-bin/crontab.lines").read_text()
