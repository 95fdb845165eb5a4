"""What ``init`` reads in a folder: facts, but never the value of a variable."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from cronjobs.desk.crontab.block import CrontabError
from cronjobs.desk.init.surroundings import LEFT_BEHIND, database_variable, look_around

pytestmark = pytest.mark.either

SECRET = "s3cret"


def laid_out(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(autouse=True)
def nobodys_crontab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cronjobs.desk.init.surroundings.program.read", lambda: "")


@pytest.mark.parametrize(
    ("files", "path"),
    [
        (["shop/__init__.py"], "shop"),
        (["src/shop/__init__.py", "other/__init__.py"], "src/shop"),
        (["app/main.py"], "app"),
        (["app/main.py", "models/__init__.py"], "models"),
        (["app/__init__.py", "tests/__init__.py", "migrations/__init__.py", "docs/conf.py"], "app"),
        (["one/__init__.py", "two/__init__.py"], None),
        (["shop.py", "no-name/__init__.py", "jobs/__init__.py"], None),
        ([], None),
    ],
)
def test_the_package_is_found_where_there_is_one(tmp_path: Path, files: list[str], path: str | None) -> None:
    package = look_around(laid_out(tmp_path, dict.fromkeys(files, "")), {}).package
    assert (package.path if package else None) == path


@pytest.mark.parametrize(
    "names",
    [
        {"pyproject.toml": '[project]\nname = "My-Shop"\n'},
        {"pyproject.toml": '[tool.poetry]\nname = "my.shop"\n'},
        {"setup.cfg": "[metadata]\nname = my_shop\n"},
        {"manage.py": 'os.environ.setdefault("DJANGO_SETTINGS_MODULE", "my_shop.settings.prod")\n'},
    ],
)
def test_of_several_packages_it_is_the_one_that_is_named(tmp_path: Path, names: dict[str, str]) -> None:
    there = dict.fromkeys(["a/__init__.py", "my_shop/__init__.py", "my_shop/jobs.py", "z/__init__.py"], "")
    package = look_around(laid_out(tmp_path, {**there, **names}), {}).package
    assert package is not None
    assert package.path == "my_shop"
    assert "jobs" in package.modules


def test_the_project_has_the_name_of_its_distribution_else_of_its_folder(tmp_path: Path) -> None:
    assert look_around(tmp_path, {}).project == tmp_path.name
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "My-Shop"\n')
    assert look_around(tmp_path, {}).project == "My-Shop"


@pytest.mark.parametrize(
    "files",
    [
        {"requirements.txt": "# web\nFastAPI[standard]>=0.1 ; python_version > '3'\n-r other.txt\n"},
        {"requirements/base.txt": "fastapi\n"},
        {"pyproject.toml": '[project]\nname = "x"\ndependencies = ["fastapi>=0.1"]\n'},
        {"pyproject.toml": '[dependency-groups]\nweb = ["fastapi", {include-group = "x"}]\n'},
        {"pyproject.toml": '[tool.poetry.dependencies]\npython = "^3.11"\nfastapi = {version = "*"}\n'},
        {"Pipfile": '[packages]\nfastapi = "*"\n'},
        {"main.py": "import os\nfrom fastapi import FastAPI\n", ".env": "", "requirements.txt": "# none yet\n"},
        {"shop/web.py": "import fastapi.testclient\n"},
        {"setup.cfg": "[options]\ninstall_requires =\n    fastapi>=0.1\n    flask_sqlalchemy\n"},
    ],
)
def test_dependencies_are_read_wherever_they_are_declared(tmp_path: Path, files: dict[str, str]) -> None:
    assert "fastapi" in look_around(laid_out(tmp_path, files), {}).dependencies


@pytest.mark.parametrize("text", ["[project", "project = 3", '[project]\nname = 3\ndependencies = "x"', "\x00", "é"])
def test_files_that_are_broken_say_nothing(tmp_path: Path, text: str) -> None:
    for name in ("pyproject.toml", "setup.cfg", "Pipfile", "alembic.ini", "manage.py"):
        (tmp_path / name).write_text(text)
    found = look_around(tmp_path, {})
    assert (found.package, found.django, found.alembic) == (None, None, ())


def test_djangos_settings_and_their_sqlite_file(tmp_path: Path) -> None:
    manage = {"manage.py": "os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'shop.settings')"}
    engine = '"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"'
    django = look_around(laid_out(tmp_path, {**manage, "shop/settings.py": engine}), {}).django
    assert django is not None
    assert (django.settings, django.sqlite, django.timezone) == ("shop.settings", "db.sqlite3", None)
    (tmp_path / "shop/settings.py").write_text(engine.replace("sqlite3", "postgresql", 1))
    django = look_around(tmp_path, {}).django
    assert django is not None
    assert django.sqlite is None
    (tmp_path / "shop/settings.py").write_text("#TIME_ZONE = 'UTC'\nTIME_ZONE = 'Europe/Berlin'\n")
    assert look_around(tmp_path, {}).timezone == "Europe/Berlin"


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ('INSTALLED_APPS = ["django.contrib.admin", "shop", "crm"]', "shop"),
        ('INSTALLED_APPS = ["django.contrib.admin"]\nINSTALLED_APPS += ["cronjobs.contrib.django", "shop"]', "shop"),
        ('INSTALLED_APPS = ["shop.apps.ShopConfig"]', "shop"),
        ('LOCAL_APPS = ["apps.orders"]\nINSTALLED_APPS = ["django.contrib.admin"] + LOCAL_APPS', "apps/orders"),
        ('INSTALLED_APPS = ["django.contrib.admin"]', "mysite"),
        ("INSTALLED_APPS = [", "mysite"),
        ("raise SystemExit('init runs nothing')\nINSTALLED_APPS = ['../up', 'shop']", "shop"),
    ],
)
def test_djangos_first_app_is_the_package(tmp_path: Path, settings: str, path: str) -> None:
    files = dict.fromkeys(["mysite/__init__.py", "shop/apps.py", "crm/apps.py", "apps/orders/apps.py"], "")
    files["manage.py"] = "os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'mysite.settings')"
    for name in ("mysite/settings.py", "mysite/settings/base.py"):
        laid_out(tmp_path / str(name.count("/")), {**files, name: settings})
    laid_out(tmp_path / "2", {"mysite/settings/__init__.py": "from .base import *\n"})
    for folder in ("1", "2"):
        package = look_around(tmp_path / folder, {}).package
        assert package is not None
        assert package.path == path
        django = look_around(tmp_path / folder, {}).django
        assert django is not None
        assert django.has_cronjobs == ("cronjobs.contrib.django" in settings)


def test_no_value_of_a_variable_is_among_the_facts(tmp_path: Path) -> None:
    url = f"postgresql+asyncpg://app:{SECRET}@db/{SECRET}"
    lines = (
        f"DATABASE_URL={url}\nMYSQL_DATABASE_URL=mysql://{SECRET}@db/x\nTEST_DATABASE_URL={url}\nSECRET_KEY={SECRET}\n"
    )
    found = look_around(
        laid_out(tmp_path, {".env": lines}), {"SHOP_DATABASE_URL": f"nonsense:{SECRET}", "HOME": SECRET}
    )
    assert SECRET not in repr(found)
    assert found.dotenv is not None
    assert [each.name for each in found.dotenv.urls] == ["DATABASE_URL", "MYSQL_DATABASE_URL"]
    assert [each.why_not is None for each in found.dotenv.urls] == [True, False]
    assert [each.name for each in found.shell] == ["SHOP_DATABASE_URL"]


@pytest.mark.parametrize(
    ("url", "is_sqlite", "is_async", "usable"),
    [
        ("postgres://u:p@h/d", False, False, True),
        ("postgresql+psycopg2://u:p@h/d?sslmode=require", False, False, True),
        ("postgresql+asyncpg://u:p@h/d", False, True, True),
        ("sqlite:///./app.db", True, False, True),
        ("sqlite+aiosqlite:////srv/app.db", True, True, True),
        ("sqlite://", False, False, False),
        ("sqlite:///:memory:", False, False, False),
        ("mysql+pymysql://u:p@h/d", False, False, False),
        ("postgresql://${USER}:x@h/d", False, False, False),
        ("postgresql://$USER@h/d", False, False, False),
        ("postgresql://u:p@h:port/d", False, False, False),
        ("", False, False, False),
        ("app.db", False, False, False),
    ],
)
def test_which_urls_can_be_the_jobs_database(url: str, is_sqlite: bool, is_async: bool, usable: bool) -> None:
    found = database_variable("DATABASE_URL", url)
    assert (found.is_sqlite, found.is_async, found.why_not is None) == (is_sqlite, is_async, usable)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"A=1\nwhat\n", "line 2: this is not KEY=value"), (b"\xff=1", "the file is not UTF-8 text")],
)
def test_what_keeps_the_env_file_from_being_one(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / ".env").write_bytes(content)
    dotenv = look_around(tmp_path, {}).dotenv
    assert dotenv is not None
    assert dotenv.problem == problem


def test_a_pipe_for_an_env_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".env")
    dotenv = look_around(tmp_path, {}).dotenv
    assert dotenv is not None
    assert dotenv.problem == "the file cannot be read: this is not a regular file"


def test_alembic_is_found_below_the_folder_and_not_above(tmp_path: Path) -> None:
    for place in ("alembic", "app/db"):
        laid_out(tmp_path, {f"{place}/env.py": ""})
    laid_out(tmp_path, {"alembic.ini": "[alembic]\n", "app/alembic.ini": "[alembic]\nscript_location = db\n"})
    assert [each.path.parent for each in look_around(tmp_path / "app", {}).alembic] == [tmp_path / "app/db"]
    assert len(look_around(tmp_path, {}).alembic) == 2


def test_what_cannot_be_listed_is_as_if_it_were_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may list everything, so the refusal is a pretended one."""
    laid_out(tmp_path, {"shop/__init__.py": "", "closed/__init__.py": "", "closed/alembic.ini": "", ".env": "A=1"})
    listdir = os.listdir

    def refused(folder: Path) -> list[str]:
        if Path(folder).name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return listdir(folder)

    monkeypatch.setattr("os.listdir", refused)
    found = look_around(tmp_path, {})
    assert found.package is not None
    assert found.package.name == "shop"
    assert found.alembic == ()


def test_the_crontab_counts_what_is_not_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (
        "MAILTO=ops\n# a comment\n0 3 * * * backup\n@daily tidy\n"
        "* * * * * /v/bin/cronjobs exec nightly -c 'x'\n"
        "# cronjobs begin /srv/cronjobs.yaml\n* * * * * tick\n# cronjobs end /srv/cronjobs.yaml\n"
    )
    monkeypatch.setattr("cronjobs.desk.init.surroundings.program.read", lambda: text)
    assert look_around(tmp_path, {}).crontab_lines == 2

    def none() -> str:
        raise CrontabError("there is no crontab command")

    monkeypatch.setattr("cronjobs.desk.init.surroundings.program.read", none)
    assert look_around(tmp_path, {}).crontab_lines == 0


def test_git_knows_what_is_ignored_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = tmp_path / "repo" / "ä new" / "folder"
    assert look_around(new, {}).unignored is None  # in no repository
    (tmp_path / "repo").mkdir()
    subprocess.run(["git", "init", "-q", str(tmp_path / "repo")], check=True)
    assert look_around(new, {}).unignored == frozenset(LEFT_BEHIND)
    (tmp_path / "repo" / ".gitignore").write_text("*.db\n*.log*\n")
    assert look_around(new, {}).unignored == frozenset(LEFT_BEHIND) - {"cronjobs.log*"}  # -wal, -turn
    (tmp_path / "repo" / ".gitignore").write_text("*.db*\n*.log*\n.env*\n*.sqlite*\n")
    assert look_around(new, {}).unignored == frozenset()
    # Without the program git, only the exact lines in the folder's own .gitignore count.
    monkeypatch.setenv("PATH", str(tmp_path))
    new.mkdir(parents=True)
    (new / ".gitignore").write_text("cronjobs.log*\n")
    assert look_around(new, {}).unignored == frozenset(LEFT_BEHIND) - {"cronjobs.log*"}
