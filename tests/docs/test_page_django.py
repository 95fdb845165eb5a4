"""docs/tutorials/django.md: the project that it builds is built, run and tested, command by command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import django  # type: ignore[import-untyped]
import pytest
from support.django_project import django_project
from support.pages import Page

PAGE = Page("docs/tutorials/django.md")
NAMED = re.compile(r"# ([\w/]+\.\w+)(, at its end)?\n")
NOT_HERE = ("pip install",)


def run(folder: Path, command: str) -> str:
    """A line of the page, as its reader types it; it must succeed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CRONJOBS", "DJANGO", "PYTEST"))}
    env = kept | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "200"}
    env |= {"XDG_STATE_HOME": str(folder / "state"), "TZ": "UTC"}
    typed = command.replace("django-admin", "python -m django", 1)
    typed = f"python -m {typed}" if typed.startswith("cronjobs ") else typed
    done = subprocess.run(typed, shell=True, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
    return done.stdout


def words(text: str) -> str:
    return " ".join(text.split())


def write(folder: Path, text: str) -> None:
    """A file of the page; on Django 5.2 with the tasks that it has there."""
    named = NAMED.match(text)
    assert named is not None, text
    if django.VERSION < (6,):
        text = text.replace("from django.tasks import", "from django_tasks import")
    file = folder / named[1]
    file.write_text((file.read_text() if named[2] else "") + text)


@pytest.mark.slow
def test_the_project_of_the_page_is_built_run_and_tested(tmp_path: Path) -> None:
    last_files = ""
    for block in PAGE.blocks():
        if block.language != "console":
            if NAMED.match(block.text):
                write(tmp_path, block.text)
                last_files = block.text
            continue
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
            if command.startswith(NOT_HERE):
                continue
            said = run(tmp_path, command)
            for line in expected.splitlines():  # how wide a column is depends on what it shows: "now", "2s ago"
                assert words(line.rstrip("…")) in words(said), f"$ {command}\n{said}"
    assert "class Paying" in last_files  # the tests of the page came last
    assert "run-due --config" in run(tmp_path, "cronjobs crontab show")


def test_no_block_of_the_page_is_left_out_and_no_link_is_dead() -> None:
    assert PAGE.counts() == {"console": 6, "python": 10, "yaml": 3}
    unnamed = [block.text for block in PAGE.blocks() if block.language != "console" and not NAMED.match(block.text)]
    assert [text.splitlines()[0] for text in unnamed] == [
        "database: ${DATABASE_URL}",
        'env: {DJANGO_SETTINGS_MODULE: "${DJANGO_SETTINGS_MODULE:-mysite.settings}"}',
    ]
    assert PAGE.dead_links() == []


def test_the_file_with_the_url_itself_is_one(tmp_path: Path) -> None:
    from cronjobs.engine.config.load import load

    (tmp_path / ".env").write_text("DATABASE_URL=sqlite:///db.sqlite3\n")
    (tmp_path / "cronjobs.yaml").write_text(PAGE.block("yaml", "${DATABASE_URL}"))
    settings = load(tmp_path / "cronjobs.yaml", environ={})
    assert (settings.problems, settings.setup, settings.by_django) == ((), "django.setup", False)


def tables() -> list[list[list[str]]]:
    """The rows of each table of the page, without the header's line; a comment in its code looks like a heading."""
    found = re.findall(r"(?:^\|.*\|\n)+", PAGE.text, re.MULTILINE)
    split = [[line.strip("|").split("|") for line in table.splitlines()] for table in found]
    return [[[cell.strip() for cell in row] for n, row in enumerate(table) if n != 1] for table in split]


def test_the_tables_of_the_page_are_what_the_code_says(sqlite_url: str) -> None:
    with django_project(sqlite_url):
        from cronjobs.contrib.django.checks import KEYS
        from cronjobs.contrib.django.tasks import STATUSES, level_of

    statuses, priorities, settings = tables()
    assert [row[0] for row in settings[1:]] == [f"`{key}`" for key in KEYS]
    told = {word.strip(","): row[1] for row in statuses[1:] for word in row[0].split(", ")}
    assert {status: told[status] for status in STATUSES} == {status: str(of) for status, of in STATUSES.items()}
    spans = zip(priorities[0][1:], priorities[1][1:], strict=True)
    for span, level in spans:
        low, high = (int(end.replace("−", "-")) for end in re.findall(r"−?\d+", span))
        assert {level_of(priority) for priority in range(low, high + 1)} == {int(level)}, span
    assert len(priorities[0]) == 11
