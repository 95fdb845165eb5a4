"""docs/how-to/testing.md: its tests run in projects made of its files, for FastAPI and Django on both databases."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.pages import Page
from support.targets import plain_url

PAGE = Page("docs/how-to/testing.md")
NAMED = re.compile(r"# ([\w/]+\.\w+)\n")


def write(folder: Path, *headings: str) -> None:
    """The named files under *headings*; what stands above the first heading counts for all."""
    for block in PAGE.blocks():
        named = NAMED.match(block.text)
        if named and block.heading in headings:
            file = folder / named[1]
            file.parent.mkdir(exist_ok=True)
            assert not file.exists(), f"two files {named[1]} under {headings}"
            file.write_text(block.text)


def run(folder: Path, *argv: str, **env: str) -> str:
    """Run Python in *folder*, as a user does; it must succeed."""
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "CRONJOBS"))}
    done = subprocess.run(
        [sys.executable, *argv], cwd=folder, env=quiet | env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")


def test_every_block_is_a_file_of_a_project_that_is_run() -> None:
    assert PAGE.counts() == {"python": 19, "yaml": 1, "console": 1}
    unnamed = [block.text for block in PAGE.blocks() if block.language != "console" and not NAMED.match(block.text)]
    assert unnamed == []
    assert PAGE.dead_links() == []


@pytest.mark.slow
def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    one = ("", "One handler", "In your test's own transaction", "What was enqueued", "Schedules and time")
    write(tmp_path, *one)
    # Without DATABASE_URL: no test may touch what the file names.
    assert "11 passed" in run(tmp_path, *PYTEST)


@pytest.fixture(params=["sqlite", "postgresql"])
def app_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    new: Callable[..., str] = request.getfixturevalue("new_postgres_url")
    return plain_url(new())


@pytest.mark.slow
def test_the_fastapi_project_passes_its_own_tests(tmp_path: Path, app_url: str) -> None:
    write(tmp_path, "FastAPI and SQLAlchemy")
    assert "3 passed" in run(tmp_path, *PYTEST, DATABASE_URL=app_url)


@pytest.mark.slow
def test_the_async_project_passes_its_own_tests(tmp_path: Path, app_url: str) -> None:
    write(tmp_path, "FastAPI with an AsyncSession")
    of_async = app_url.replace("sqlite:", "sqlite+aiosqlite:").replace("postgresql+psycopg:", "postgresql+asyncpg:")
    assert of_async != app_url
    assert "2 passed" in run(tmp_path, *PYTEST, DATABASE_URL=app_url, ASYNC_DATABASE_URL=of_async)


@pytest.mark.slow
def test_the_django_project_passes_its_own_tests(tmp_path: Path, app_url: str) -> None:
    write(tmp_path, "Django")
    (tmp_path / "orders/__init__.py").touch()
    command = PAGE.block("console", "django test").removeprefix("$ DJANGO_SETTINGS_MODULE=settings python ")
    told = run(tmp_path, *command.split(), DATABASE_URL=app_url, DJANGO_SETTINGS_MODULE="settings")
    assert "Ran 2 tests" in told


# What pytest-django does with a test that has ``db``, or the mark ``django_db(transaction=True)``. The tests do not
# install pytest-django, because its plugin would be loaded into all of them.
LIKE_PYTEST_DJANGO = """
import django, pytest

django.setup()

from django.db import transaction
from django.test import Client
from django.test.utils import setup_databases


@pytest.fixture(scope="session")
def databases():
    setup_databases(0, False)


@pytest.fixture
def db(databases):
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.fixture(autouse=True)
def marked(request):
    if request.node.get_closest_marker("django_db"):
        request.getfixturevalue("databases")


@pytest.fixture
def client():
    return Client()


def pytest_configure(config):
    config.addinivalue_line("markers", "django_db(transaction)")
"""


@pytest.mark.slow
def test_the_tests_for_pytest_django_pass(tmp_path: Path) -> None:
    write(tmp_path, "Django", "pytest-django")
    (tmp_path / "orders/__init__.py").touch()
    (tmp_path / "like_pytest_django.py").write_text(LIKE_PYTEST_DJANGO)
    env = {"DATABASE_URL": "sqlite:///orders.db", "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": "."}
    assert "2 passed" in run(tmp_path, *PYTEST, "-p", "like_pytest_django", "test_orders.py", **env)
