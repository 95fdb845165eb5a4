"""The README is right: its commands, its example, and the picture of the morning."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
from support.pages import Page
from support.project import BARE
from support.shop import PAGE as FIRST_JOB
from support.shop import Shop, commands
from support.shop import shop as shop

from cronjobs.desk.cli.commands import Listed
from cronjobs.desk.cli.main import app

ROOT = Path(__file__).parents[2]
PAGE = Page("README.md")
README = PAGE.text
NAMING = [
    PAGE,
    FIRST_JOB,
    *(
        Page(f"docs/{name}.md")
        for name in (
            "explanation/time",
            "explanation/failure",
            "how-to/seeing",
            "how-to/operating",
            "tutorials/from-celery",
        )
    ),
]


# --- the first screen -------------------------------------------------------------------------------------------------


def test_ci_finds_the_two_commands_that_the_first_screen_shows() -> None:
    """By the function of ``.ci/run`` itself, which executes what it finds."""
    [function] = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("readme_command()")]
    shown = [line.removeprefix("$ ") for one in PAGE.blocks("console")[:2] for line in one.text.splitlines()]
    assert len(shown) == 2
    for says, command in zip(("cronjobs.contrib.demo", "pytest"), shown, strict=True):
        found = subprocess.run(
            ["bash", "-c", f"{function}\nreadme_command '{says}'"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert found.stdout == command + "\n"
        assert f"$ {command}" in README.splitlines()[:25]
        subprocess.run(["bash", "-n", "-c", command], check=True)


def test_what_pip_is_told_to_install_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"(?:cronjobs|\.)\[(\w+)\]", README)
    assert named
    assert set(named) <= set(extras)


def test_every_link_leads_somewhere() -> None:
    assert PAGE.dead_links() == []


def test_every_block_is_executed_by_a_test_of_this_file() -> None:
    """A new block needs a test."""
    assert PAGE.counts() == {"console": 2, "python": 2, "yaml": 1, "crontab": 1, "": 1}


def test_the_picture_of_status_is_part_of_the_one_that_is_tested() -> None:
    picture = PAGE.block("", "TROUBLE")
    assert picture in Page("docs/how-to/seeing.md").block("console", "TROUBLE")


# --- the whole of it --------------------------------------------------------------------------------------------------


def test_the_handler_the_schedule_and_the_job_of_the_app_run_as_they_stand(shop: Shop) -> None:
    (shop.folder / "jobs.py").write_text(PAGE.block("python", "# jobs.py"))
    (shop.folder / "cronjobs.yaml").write_text(PAGE.block("yaml", "# cronjobs.yaml"))
    shop.does("check")
    shop.does("run-due")
    enqueue = [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", PAGE.block("python", "enqueue(")]
    for _ in range(2):  # the key is spent with the first
        subprocess.run(enqueue, cwd=shop.folder, env=BARE, check=True)
    [job] = shop.jobs()
    assert (job["job_type"], job["status"]) == ("billing.send_invoice", "queued")
    shop.does("run", str(job["id"]))
    (shop.folder / "uploads").mkdir()
    shop.does("trigger", "nightly-backup")
    shop.does("enqueue", "billing.send_invoice", "--payload", '{"invoice_id": -1}')
    shop.does("run-due", code=1)
    assert [(job["status"], job["result"]) for job in shop.jobs()] == [
        ("succeeded", {"sent": 42}),
        ("succeeded", None),
        ("dead", None),
    ]
    assert (shop.folder / "uploads.tgz").exists()


def test_the_line_for_cron_is_the_one_of_the_example_crontab() -> None:
    [line] = PAGE.block("crontab", "run-due").splitlines()
    assert line in (ROOT / "crontab.example").read_text().splitlines()


# --- commands that are named ------------------------------------------------------------------------------------------


def named_commands() -> list[list[str]]:
    """Every ``cronjobs …`` of the README and of the pages that it begins with, as words."""
    spans = [span for page in NAMING for span in re.findall(r"`(cronjobs [^`]+)`", page.text.replace("\n", " "))]
    typed = [*commands(FIRST_JOB, "Five minutes"), *commands(Page("docs/how-to/seeing.md"), "The commands")]
    return [shlex.split(command, comments=True)[1:] for command in [*spans, *typed] if command.startswith("cronjobs ")]


@pytest.mark.parametrize("words", named_commands(), ids=" ".join)
def test_every_command_and_option_that_is_named_exists(words: list[str]) -> None:
    found: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(found, "commands") and rest:
        assert rest[0] in found.commands, f"cronjobs {' '.join(words)}"
        found = found.commands[rest.pop(0)]
        found = found.load() if isinstance(found, Listed) else found
    options = {name for parameter in found.params for name in parameter.opts}
    assert {word for word in rest if word.startswith("-")} <= options
