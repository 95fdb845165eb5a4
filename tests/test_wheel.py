"""The wheel, as users install it: in a new environment, run from an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cronjobs.engine.database.tables import SCHEMA_REVISION
from cronjobs.version import __version__

ROOT = Path(__file__).parents[1]

MIGRATE = """
import sys
from cronjobs.engine.schema import migrations
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
database = Database(parse_url(sys.argv[1]))
print(*migrations.upgrade(database), migrations.check(database))
database.close()
"""


def run(*command: str | Path, cwd: Path) -> str:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CRONJOBS_", "VIRTUAL"))
    }
    done = subprocess.run([*command], cwd=cwd, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]  # one worker, so that it is built and installed once


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT, cwd=folder)
    [file] = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Run the Python of a venv that holds nothing but the wheel and what it asks for, in an empty folder."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder)  # without a pip of its own, which takes longer than what it would install
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "-q", "--no-compile", f"{wheel}[postgres]", cwd=folder)
    empty = tmp_path_factory.mktemp("empty")
    return lambda *arguments: run(python, "-W", "error", *arguments, cwd=empty)


def test_the_wheel_holds_the_package_its_types_and_the_migrations(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert wheel.name.startswith(f"cronjobs-{__version__}-")
    migrations = {f"cronjobs/{file.relative_to(ROOT)}" for file in ROOT.glob("alembic/versions/*.py")}
    assert names >= {"cronjobs/py.typed", "cronjobs/alembic/env.py", "cronjobs/alembic/script.py.mako"} | migrations
    assert names >= {"cronjobs/contrib/web/static/style.css", "cronjobs/contrib/web/static/icon.svg"}
    assert names >= {
        "cronjobs/contrib/web/templates/base.html",
        "cronjobs/contrib/django/templates/cronjobs/admin_index.html",
    }
    assert f"cronjobs-{__version__}.dist-info/sboms/cronjobs.cdx.json" in names
    folders = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert folders == {"cronjobs"}
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".db"))]
    assert "cronjobs/alembic/__init__.py" not in names


def test_the_installed_package_is_imported_from_an_empty_folder(installed: Callable[..., str]) -> None:
    where = installed("-c", "import cronjobs, alembic; print(cronjobs.__file__, alembic.__file__)")
    assert str(ROOT / "cronjobs") not in where
    assert where.count("site-packages") == 2


def test_the_installed_package_migrates_both_databases(installed: Callable[..., str], empty_url: str) -> None:
    assert installed("-c", MIGRATE, empty_url) == f"None {SCHEMA_REVISION} []\n"
    assert installed("-c", MIGRATE, empty_url) == f"{SCHEMA_REVISION} {SCHEMA_REVISION} []\n"


def test_the_installed_commands_that_live_beside_the_package_start(installed: Callable[..., str]) -> None:
    assert "--wait" in installed("-m", "cronjobs", "db", "copy", "--help")
    assert "Everything went as it should" in installed("-m", "cronjobs", "demo")
