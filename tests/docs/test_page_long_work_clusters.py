"""docs/how-to/long-work.md: its file means what the page says, and its numbers are those of the code."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

from support.pages import Page

from cronjobs import events
from cronjobs.contrib.dask.cluster_workers import IDLE_S
from cronjobs.contrib.dask.rules import DIFFERS_AGAIN, DIFFERS_FOR
from cronjobs.contrib.dask.worker_home import TOKEN_URL
from cronjobs.engine.config.load import load
from cronjobs.engine.jobs.job_types import PROCESS_GRACE
from cronjobs.engine.tick.executors import PROGRAM

PAGE = Page("docs/how-to/long-work.md")


def test_the_file_on_the_page_says_what_its_comments_say(tmp_path: Path) -> None:
    text = PAGE.block("yaml", "executors:")
    file = tmp_path / "cronjobs.yaml"
    file.write_text(text)
    settings = load(file, environ={})
    assert settings.problems == ()
    executor = settings.executors["cluster"]
    assert (executor.dask, executor.in_flight) == ("tls://scheduler:8786", 200)
    assert (executor.queue_wait, executor.resources) == (timedelta(minutes=10), (("GPU", 1.0),))
    assert settings.job_types["reports.train"].executor == "cluster"


def test_the_numbers_on_the_page_are_those_of_the_code() -> None:
    words = " ".join(PAGE.text.split())
    assert f"idle for {IDLE_S:g} s" in words
    assert f"SIGKILL {PROCESS_GRACE.total_seconds():g} s later" in words
    assert f"every {DIFFERS_AGAIN.total_seconds():g} s. After {DIFFERS_FOR.total_seconds() / 60:g} minutes" in words
    assert TOKEN_URL in words
    assert PROGRAM in words


def test_the_events_on_the_page_exist() -> None:
    there = Path(events.__file__).read_text()
    for name in set(re.findall(r"`((?:executor|job)\.\w+)`", PAGE.text)):
        assert f'"{name}"' in there, name
