"""Configuration by Django's settings, with a file and without one, and the command manage.py cronjobs."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command  # type: ignore[import-untyped]
from django.db import connections  # type: ignore[import-untyped]
from django.test import override_settings  # type: ignore[import-untyped]
from django.test.utils import setup_test_environment, teardown_test_environment  # type: ignore[import-untyped]
from support.commands import until
from support.databases import in_psql
from support.django_project import django_project
from support.djangos import configured
from support.inboxes import Web
from support.inboxes import web as web
from support.postgres import SUPERUSER, as_role

from cronjobs import enqueue, masking
from cronjobs.desk.insight.effective_settings import Overrides, effective
from cronjobs.engine.config import django_project as config
from cronjobs.engine.config.import_path import variables
from cronjobs.engine.config.load import load
from cronjobs.engine.config.reader import FieldError
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.probe.inputs import Start
from cronjobs.engine.tick.idle_inputs import inputs_of
from cronjobs.errors import ConfigError

MANAGE = """\
import os, sys
from django.core.management import execute_from_command_line
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "site_settings")
execute_from_command_line(sys.argv)
"""
SETTINGS = """\
from pathlib import Path
print("settings are read", file=open(Path(__file__).parent / "read", "a"))
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": {name!r}}}}}
INSTALLED_APPS = ["cronjobs.contrib.django", "orders"]
TIME_ZONE = "Europe/Berlin"
USE_TZ = True
"""


@pytest.fixture(autouse=True)
def outside_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test runner of Django's is active, although Django's test client may have been used before in this process."""
    monkeypatch.delattr("django.core.mail.outbox", raising=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(masking, "_remembered", frozenset())
    for name in ("CRONJOBS_CONFIG", "CRONJOBS_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def site(folder: Path, sqlite_migrated: str) -> Path:
    """A project on disk, which tests run in processes of their own."""
    (folder / "manage.py").write_text(MANAGE)
    (folder / "site_settings.py").write_text(SETTINGS.format(name=sqlite_migrated))
    (folder / "orders").mkdir()
    (folder / "orders/__init__.py").touch()
    (folder / "orders/jobs.py").write_text(
        'from cronjobs import job\n@job("orders.pay")\ndef pay(n: int) -> int:\n    return n + 1\n'
        '@job("orders.apart", isolation="process")\ndef apart() -> str:\n    from django.db import connection\n'
        "    return connection.vendor\n"
        '@job("orders.long", timeout="10m")\ndef long() -> str:\n    from django.contrib.auth.models import User\n'
        "    return User._meta.label\n"
    )
    return folder


def python(folder: Path, *words: str, code: int = 0, **env: str) -> str:
    """Run Python as cron or a person does, with next to no environment."""
    bare = {"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")} | env
    done = subprocess.run([sys.executable, *words], cwd=folder, env=bare, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


# --- which database ---------------------------------------------------------------------------------------------------

POSTGRESQL = {"USER": "ada", "PASSWORD": "p@ss/w:rd", "HOST": "db.example", "PORT": 5433, "NAME": "shop", "OPTIONS": {}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "postgresql://ada:p%40ss%2Fw%3Ard@db.example:5433/shop"),
        ({"PASSWORD": "", "PORT": ""}, "postgresql://ada@db.example/shop"),
        ({"USER": "", "PASSWORD": "", "HOST": "", "PORT": ""}, "postgresql:///shop"),
        (
            {"HOST": "/run/postgresql", "PASSWORD": "", "PORT": "5433"},
            "postgresql://ada@/shop?host=%2Frun%2Fpostgresql&port=5433",
        ),
        (
            {"USER": "", "PASSWORD": "", "HOST": "", "PORT": "", "NAME": "", "OPTIONS": {"service": "shop"}},
            "postgresql://?service=shop",
        ),
        (
            {"OPTIONS": {"sslmode": "require", "pool": True, "isolation_level": 2, "connect_timeout": 3}},
            "postgresql://ada:p%40ss%2Fw%3Ard@db.example:5433/shop?connect_timeout=3&sslmode=require",
        ),
        (
            {"PASSWORD": "", "OPTIONS": {"assume_role": "jobs"}},
            "postgresql://ada@db.example:5433/shop?options=-c+role%3Djobs",
        ),
    ],
)
def test_a_url_is_made_of_databases(changes: dict[str, Any], expected: str) -> None:
    url = config._of_postgresql(POSTGRESQL | changes)
    assert sorted(url.partition("?")[2].split("&")) == sorted(expected.partition("?")[2].split("&"))
    assert url.partition("?")[0] == expected.partition("?")[0]
    parse_url(url)


def test_the_url_reaches_the_database_that_django_has(database_url: str, folder: Path) -> None:
    with django_project(database_url):
        assert connections["default"].vendor in database_url
        found = load(None, environ={})
    assert parse_url(found.database).url.database == parse_url(database_url).url.database
    assert parse_url(found.database).url.password == parse_url(database_url).url.password
    password = parse_url(database_url).url.password
    assert password is None or password in found.secrets
    assert found.by_django


def test_what_is_written_goes_before_what_django_has(folder: Path, sqlite_url: str) -> None:
    file = folder / "cronjobs.yaml"
    with django_project(sqlite_url):
        file.write_text("database: sqlite:///own.db\n")
        own = load(None, environ={})
        file.write_text("timezone: UTC\n")
        djangos = load(None, environ={})
        given = load(None, environ={}, database_url="sqlite:///given.db")
        named = load(None, environ={"CRONJOBS_DATABASE_URL": "sqlite:///named.db"})
    assert own.database == f"sqlite:///{folder / 'own.db'}"
    assert djangos.database == sqlite_url
    assert (given.database, named.database) == (f"sqlite:///{folder / 'given.db'}", f"sqlite:///{folder / 'named.db'}")
    assert [each.by_django for each in (own, djangos, given, named)] == [False, True, False, False]
    with pytest.raises(ConfigError, match="no database is set"):  # no Django project any more
        load(None, environ={})


def test_without_a_file_the_defaults_hold_in_the_projects_time_zone(folder: Path, sqlite_url: str) -> None:
    with django_project(sqlite_url, TIME_ZONE="Asia/Kolkata"):
        found = load(None, environ={})
        assert (found.timezone, found.setup, found.schedules) == ("Asia/Kolkata", "django.setup", {})
        with pytest.raises(ConfigError, match="no such file"):
            load(Path("cronjobs.yaml"), environ={})
        with pytest.raises(ConfigError, match="no such file"):
            load(None, environ={"CRONJOBS_CONFIG": "elsewhere.yaml"})


def test_the_fast_path_is_not_taken_where_it_cannot_see_a_change(folder: Path, sqlite_url: str) -> None:
    (folder / "cronjobs.yaml").write_text(f"# not {sqlite_url}\ndatabase: django\n")
    with django_project(sqlite_url):
        settings = load(None, environ={})
    address: Any = parse_url(settings.database)
    seen: Any = type("Seen", (), {"schema_revision": "1", "oldest_code": "1"})
    assert inputs_of(Start([]), settings, address, seen, "") is None
    assert inputs_of(Start([]), replace(settings, by_django=False), address, seen, "") is not None


def test_what_cannot_be_used_is_said_with_its_place_and_without_a_password(folder: Path, sqlite_url: str) -> None:
    file = folder / "cronjobs.yaml"
    file.write_text("timezone: UTC\ndatabase: django\n")
    with django_project(sqlite_url, CRONJOBS={"database": "nowhere"}):
        with pytest.raises(ConfigError, match=r'cronjobs\.yaml:2:11: database: .*no entry "nowhere"'):
            load(None, environ={})
        assert load(None, environ={}, need_database=False).database == ""
    with django_project("sqlite:///:memory:"), pytest.raises(ConfigError, match="in-memory"):
        load(None, environ={})


def test_mysql_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> None:
    with django_project(sqlite_url):
        monkeypatch.setattr(type(connections["default"]), "vendor", "mysql")
        with pytest.raises(FieldError, match="is mysql: cronjobs runs on PostgreSQL and SQLite"):
            config.database_url()


def test_root_does_not_import_settings_that_others_may_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cronjobs.engine.config import trust

    (folder / "loose.py").write_text("raise AssertionError('imported')")
    (folder / "loose.py").chmod(0o666)
    monkeypatch.setattr(config, "settings_of_django", lambda: None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    settings = Settings(folder / "cronjobs.yaml", folder, env=(("DJANGO_SETTINGS_MODULE", "loose"),))
    with pytest.raises(trust.UntrustedFiles, match=r"loose\.py is writable by everyone"):
        config.with_its_database(settings, "cronjobs.yaml", {}, need=True)


# --- checks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "ids"),
    [
        ({}, []),
        ({"config": "cronjobs.yaml", "database": "default"}, []),
        ({"configuration": "x"}, ["cronjobs.E002"]),
        ({"database": "nowhere"}, ["cronjobs.E003"]),
        ("cronjobs.yaml", ["cronjobs.E001"]),
    ],
)
def test_djangos_check_knows_the_setting(said: Any, ids: list[str], sqlite_url: str) -> None:
    from cronjobs.contrib.django.checks import settings_fit

    with django_project(sqlite_url, CRONJOBS=said):
        assert [each.id for each in settings_fit(None)] == ids


class KeepsOut:
    """A router as many projects have one: what it does not know of goes nowhere else."""

    def allow_migrate(self, db: str, app_label: str, **_: Any) -> bool:
        return app_label == "auth"


@pytest.mark.either
def test_djangos_check_warns_of_a_router_that_keeps_our_tables_out(sqlite_url: str) -> None:
    from cronjobs.contrib.django.checks import settings_fit

    with django_project(sqlite_url, DATABASE_ROUTERS=[f"{__name__}.KeepsOut"]):
        assert [each.id for each in settings_fit(None)] == ["cronjobs.W002"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (None, "there is no such file"),
        ("database: [\n", "cronjobs.yaml:"),
        ("", "the file is empty"),
        ("nonsense: 1\n", None),  # "cronjobs check" reports it
    ],
)
def test_check_warns_of_a_file_that_no_tick_can_use(
    written: str | None, said: str | None, folder: Path, sqlite_url: str
) -> None:
    from cronjobs.contrib.django.checks import file_is_read

    file = folder / "cronjobs.yaml"
    file.unlink(missing_ok=True)
    if written is not None:
        file.write_text(written)
    with django_project(sqlite_url, CRONJOBS={"config": file}):
        found = file_is_read(None)
        assert [each.id for each in found] == (["cronjobs.W006"] if said else [])
        assert all(f"given in Django's settings: {file}" in each.msg and str(said) in each.msg for each in found)
    with django_project(sqlite_url):
        assert file_is_read(None) == []


@pytest.mark.parametrize(
    ("written", "ids"),
    [
        ("database: sqlite:///other.db\n", ["cronjobs.W001"]),
        ("database: postgresql://ada:secret-7@db/shop\n", ["cronjobs.W001"]),
        ("database: sqlite:///cronjobs.db\n", []),
        ("database: django\n", []),
        ("timezone: UTC\n", []),
        ("database: [\n", []),
    ],
)
def test_check_warns_where_ticks_go_to_another_database(
    written: str, ids: list[str], folder: Path, sqlite_url: str
) -> None:
    from cronjobs.contrib.django.checks import same_database

    (folder / "cronjobs.yaml").write_text(written)
    with django_project(sqlite_url):
        found = same_database(None)
        assert [each.id for each in found] == ids
        setup_test_environment()
        try:
            assert same_database(None) == []  # tests have a database of their own
        finally:
            teardown_test_environment()
    assert "secret-7" not in str(found)


def test_check_warns_of_tables_in_another_database(sqlite_migrated: str, tmp_path: Path) -> None:
    """What an app enqueues there is committed, and no tick ever looks at it."""
    from cronjobs.contrib.django.checks import no_tables_elsewhere

    with django_project(f"sqlite:///{sqlite_migrated}", alias="left"):
        for jobs in configured(f"sqlite:///{tmp_path / 'other.db'}", "jobs"):
            with override_settings(CRONJOBS={"database": jobs}):
                [warning] = no_tables_elsewhere(None, databases=["left", jobs])
                assert warning.id == "cronjobs.W005"
                assert "'left' has cronjobs tables, but the jobs database is 'jobs'" in warning.msg
                assert no_tables_elsewhere(None) == []  # without --database, no check may open a connection
        assert no_tables_elsewhere(None, databases=["default"]) == []


def test_check_does_not_warn_of_another_alias_of_the_jobs_database(database_url: str) -> None:
    from cronjobs.contrib.django.checks import no_tables_elsewhere

    with django_project(database_url):  # as the runner's role
        for app in configured(database_url, "app"):
            with override_settings(CRONJOBS={"database": app}):
                assert no_tables_elsewhere(None, databases=["default", app]) == []
            with override_settings(CRONJOBS={"database": "nowhere"}):
                assert [each.id for each in no_tables_elsewhere(None, databases=[app])] == ["cronjobs.W005"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_check_warns_if_nobody_may_compare_the_databases(database_url: str) -> None:
    from cronjobs.contrib.django.checks import no_tables_elsewhere

    in_psql(as_role(database_url, SUPERUSER), "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    with django_project(database_url):
        for app in configured(database_url, "app"):
            assert [each.id for each in no_tables_elsewhere(None, databases=[app])] == ["cronjobs.W005"]


# --- manage.py cronjobs -----------------------------------------------------------------------------------------------


def test_call_command_prints_and_returns_or_says_the_exit_code(
    database_url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with django_project(database_url):
        enqueue(connections["default"], "django_app.greet", {"name": "Ada"})
        call_command("cronjobs", "jobs", "list", "--json")
        assert '"django_app.greet"' in capsys.readouterr().out
        with pytest.raises(CommandError, match="ended with exit code 2") as told:
            call_command("cronjobs", "nonsense")
        assert told.value.returncode == 2
        with pytest.raises(CommandError, match="drain"):
            call_command("cronjobs", "run-due")


def test_djangos_own_options_are_not_ours() -> None:
    from cronjobs.contrib.django.management.commands.cronjobs import _without_djangos

    words = ["--settings", "a.b", "status", "--pythonpath=x", "--json", "--", "--settings=kept"]
    assert [*_without_djangos(words)] == ["status", "--json", "--", "--settings=kept"]


@pytest.mark.slow
def test_manage_py_passes_every_word_on_and_the_exit_code_back(site: Path) -> None:
    assert "Usage: cronjobs" in python(site, "manage.py", "cronjobs", "--help", "--settings=site_settings")
    assert "run-due" in python(site, "manage.py", "help", "cronjobs")
    python(site, "manage.py", "cronjobs", "enqueue", "orders.pay", "--payload", '{"n": 1}')
    python(site, "manage.py", "cronjobs", "enqueue", "orders.apart")
    assert python(site, "manage.py", "cronjobs", "run-due") == ""  # prints nothing, as it should under cron
    said = python(site, "manage.py", "cronjobs", "jobs", "list", "--json")
    assert said.count('"succeeded"') == 2
    assert "Europe/Berlin" in python(site, "manage.py", "cronjobs", "status")
    python(site, "manage.py", "cronjobs", "jobs", "retry", "4711", code=1)
    python(site, "manage.py", "cronjobs", "nonsense", code=2)


def recorded(file: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT job_type, status FROM cronjobs_jobs").fetchall() == [
                ("exec:backup", "succeeded")
            ]
    except sqlite3.OperationalError:  # the file or its tables are being made
        return False


@pytest.mark.slow
def test_what_exec_recorded_without_a_project_is_not_read_by_manage_py(site: Path) -> None:
    python(site.parent, "-m", "cronjobs", "exec", "backup", "--", "true", XDG_STATE_HOME=str(site / "state"))
    until(partial(recorded, site / "state/cronjobs/exec.db"))  # on a busy machine the recorder ends after exec
    for words in (["jobs", "list"], ["status"], ["history"], ["explain", "backup"], ["ack", "late"]):
        command = [sys.executable, "manage.py", "cronjobs", *words]
        env = {"PATH": os.environ["PATH"], "HOME": str(site), "XDG_STATE_HOME": str(site / "state")}
        done = subprocess.run(command, cwd=site, env=env, capture_output=True, text=True, timeout=60)
        assert "backup" not in (done.stdout + done.stderr).replace('"backup"', ""), words
        assert "exec.db" not in done.stdout + done.stderr, words


def test_a_tick_of_crons_bare_environment_goes_by_djangos_settings(site: Path) -> None:
    (site / "cronjobs.yaml").write_text("env: {DJANGO_SETTINGS_MODULE: site_settings}\ndatabase: django\n")
    elsewhere = site / "orders"
    config = str(site / "cronjobs.yaml")
    python(elsewhere, "-m", "cronjobs", "enqueue", "orders.pay", "--payload", '{"n": 1}', "--config", config)
    python(elsewhere, "-m", "cronjobs", "run-due", "--config", config)
    said = python(elsewhere, "-m", "cronjobs", "jobs", "show", "1", "--json", "--config", config)
    assert '"result": 2' in said
    (site / "cronjobs.yaml").write_text("database: django\n")
    words = ("-m", "cronjobs", "run-due", "--config", config)
    assert "cronjobs.yaml:1:11: database: cronjobs does not know which Django settings to use:" in python(
        elsewhere, *words, code=3
    )
    (site / "cronjobs.yaml").write_text("env: {DJANGO_SETTINGS_MODULE: nosuch}\ndatabase: django\n")
    assert "No module named 'nosuch'" in python(elsewhere, *words, code=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "file", "by_url"),
    [
        ("-m cronjobs", "database: django", False),
        ("-m cronjobs", "database: django", True),
        ("-m cronjobs", "database: django, setup: django.setup", False),
        ("manage.py cronjobs", "database: django", False),
        ("manage.py cronjobs", "project: shop", False),
    ],
)
def test_a_long_job_runs_in_a_process_that_sets_up_django_as_its_tick_does(
    site: Path, sqlite_migrated: str, program: str, file: str, by_url: bool
) -> None:
    (site / "cronjobs.yaml").write_text(f"{{env: {{DJANGO_SETTINGS_MODULE: site_settings}}, {file}}}\n")
    with (site / "site_settings.py").open("a") as settings:
        settings.write('INSTALLED_APPS += ["django.contrib.contenttypes", "django.contrib.auth"]\n')
    env: dict[str, Any] = {"CRONJOBS_DATABASE_URL": f"sqlite:///{sqlite_migrated}"} if by_url else {}
    words = program.split()
    python(site, *words, "enqueue", "orders.long", **env)
    assert python(site, *words, "run-due", "--wait", **env) == ""
    assert '"result": "auth.User"' in python(site, *words, "jobs", "show", "1", "--json", **env)


def test_the_environment_chooses_djangos_settings_as_for_manage_py(site: Path) -> None:
    """Otherwise an app enqueues by the variable into one database, while ticks read another by the file."""
    (site / "prod_settings.py").write_text(
        "from site_settings import *\nDATABASES['default']['NAME'] = '/var/lib/prod.sqlite3'\n"
    )
    (site / "cronjobs.yaml").write_text(f"{ENV_LINES[0]}\ndatabase: django\n")
    prod: dict[str, Any] = {"DJANGO_SETTINGS_MODULE": "prod_settings"}
    shown = json.loads(python(site, "-m", "cronjobs", "config", "show", "--json", **prod))
    values = {each["key"]: (each["value"], each["where"]) for each in shown}
    assert values["database"][0] == "sqlite:////var/lib/prod.sqlite3"
    assert values["env"] == (prod, "cronjobs.yaml:1, $DJANGO_SETTINGS_MODULE")
    differ = "DJANGO_SETTINGS_MODULE is prod_settings here and site_settings in cronjobs.yaml"
    told = python(site, "-m", "cronjobs", "check", code=1, **prod)
    assert f"cronjobs.yaml:1:31: env.DJANGO_SETTINGS_MODULE: {differ}" in told
    told = python(site, "manage.py", "check", **prod)
    assert f"(cronjobs.W004) {differ}" in told
    assert "cronjobs.W001" not in told
    (site / "cronjobs.yaml").write_text(f"{ENV_LINES[0]}\ndatabase: postgresql://db/shop\n")
    told = python(site, "manage.py", "check", **prod)
    assert f"(cronjobs.W004) {differ}" in told
    assert "but by cronjobs.yaml ticks run the jobs in postgresql://db/shop" in told
    (site / "cronjobs.yaml").write_text(
        'env: {DJANGO_SETTINGS_MODULE: "${DJANGO_SETTINGS_MODULE:-site_settings}"}\ndatabase: django\n'
    )
    assert differ not in python(site, "manage.py", "check", **prod)
    told = python(site, "-m", "cronjobs", "run-due", code=3, DJANGO_SETTINGS_MODULE="nosuch")
    assert "Django's settings (nosuch) cannot be used: ModuleNotFoundError" in told


def test_only_djangos_settings_module_overrides_the_files_env() -> None:
    settings = Settings(Path("cronjobs.yaml"), Path(), env=(("PATH", "/bin"), ("DJANGO_SETTINGS_MODULE", "dev")))
    prod, unset = {"PATH": "/usr/bin", "DJANGO_SETTINGS_MODULE": "prod"}, {"DJANGO_SETTINGS_MODULE": ""}
    assert variables(settings.env, prod) == {"PATH": "/bin", "DJANGO_SETTINGS_MODULE": "prod"}
    assert variables(settings.env, unset) == dict(settings.env)


ENV_LINES = ["env: {DJANGO_SETTINGS_MODULE: site_settings}", "env:\n  DJANGO_SETTINGS_MODULE: site_settings"]


@pytest.mark.parametrize("env", ENV_LINES)
def test_a_file_that_is_not_yaml_still_names_djangos_settings_to_readers(site: Path, env: str) -> None:
    (site / "cronjobs.yaml").write_text(f"imports: [orders\n{env}\ndatabase: django\n")
    told = python(site, "-m", "cronjobs", "status", code=0)
    assert "cronjobs.yaml:2:4: YAML: " in told
    assert "cronjobs does not know which Django settings to use" not in told
    assert "YAML: " in python(site, "-m", "cronjobs", "run-due", code=3)


def test_broken_settings_are_named_by_check_doctor_and_the_ping(site: Path, web: Web) -> None:
    file = site / "cronjobs.yaml"
    file.write_text(f'database: django\n{ENV_LINES[0]}\nrun: {{ping: "{web.url}/tick"}}\n')
    with (site / "site_settings.py").open("a") as settings:
        settings.write("x = (\n")
    real = "Django's settings (site_settings) cannot be used: SyntaxError: '(' was never closed"
    assert real in python(site, "-m", "cronjobs", "run-due", code=3)
    assert [path.partition("?")[0] for path in web.paths] == ["/tick/3"]
    live = python(site, "-m", "cronjobs", "check", "--live", code=3)
    assert f"cronjobs.yaml:1:11: database: {real}" in live
    checks = json.loads(python(site, "-m", "cronjobs", "doctor", "--json", code=1))["checks"]
    found = {each["check"]: each for each in checks}
    for name in ("configuration", "database"):
        assert found[name]["status"] == "problem"
        assert real in found[name]["text"]
    assert "the server" not in found["database"]["fix"]


def test_settings_that_raise_are_named_with_their_line_and_print_to_stderr(site: Path) -> None:
    (site / "cronjobs.yaml").write_text(f"{ENV_LINES[0]}\ndatabase: django\n")
    with (site / "site_settings.py").open("a") as settings:
        settings.write('print("debug is on")\n')
    bare = {"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(site / "state")}
    command = [sys.executable, "-m", "cronjobs", "jobs", "list", "--json"]
    done = subprocess.run(command, cwd=site, env=bare, capture_output=True, text=True, timeout=60)
    assert (json.loads(done.stdout), done.stderr) == ([], "debug is on\n")
    with (site / "site_settings.py").open("a") as settings:
        settings.write("x = {}\ny = x['KEY']\n")
    lines = (site / "site_settings.py").read_text().count("\n")
    told = python(site, "-m", "cronjobs", "jobs", "list", code=3)
    assert (
        f"Django's settings (site_settings) cannot be used: KeyError: 'KEY' ({site}/site_settings.py:{lines})" in told
    )


@pytest.mark.parametrize(
    ("ends", "told"),
    [("raise SystemExit(0)", "0"), ("__import__('os')._exit(0)", "os._exit(0) was called")],
)
def test_settings_that_end_the_process_do_not_end_a_tick_as_if_all_were_well(site: Path, ends: str, told: str) -> None:
    (site / "cronjobs.yaml").write_text(f"{ENV_LINES[0]}\ndatabase: django\n")
    lines = (site / "site_settings.py").read_text().count("\n") + 1
    with (site / "site_settings.py").open("a") as settings:
        settings.write(f"{ends}\n")
    real = f"Django's settings (site_settings) cannot be used: SystemExit: {told} ({site}/site_settings.py:{lines})"
    assert real in python(site, "-m", "cronjobs", "run-due", code=3)


def test_config_show_names_djangos_settings_as_the_source(folder: Path, sqlite_url: str) -> None:
    def shown() -> dict[str, tuple[Any, str]]:
        found = effective(load(None, environ={}), Overrides(None, None, {}))
        return {each.key: (each.value, each.where) for each in found}

    with django_project(sqlite_url, TIME_ZONE="Asia/Kolkata"):
        without = shown()
        (folder / "cronjobs.yaml").write_text("timezone: UTC\ndatabase: django\n")
        written = shown()
    assert without["database"] == (sqlite_url, "DATABASES of Django's settings")
    assert without["setup"][0] == "django.setup"
    assert without["timezone"][0] == "Asia/Kolkata"
    assert written["database"] == (sqlite_url, "cronjobs.yaml:2, DATABASES of Django's settings")


# --- tests of the project ---------------------------------------------------------------------------------------------

TICKS = """\
import sys
import django
from cronjobs import enqueue
from cronjobs.errors import UsageError
from cronjobs.testing import create_tables, tick
from sqlalchemy import create_engine
django.setup()
if sys.argv[2:]:
    from django.test.utils import setup_test_environment
    setup_test_environment()
engine = create_engine(sys.argv[1])
with engine.begin() as connection:
    create_tables(connection)
    enqueue(connection, "orders.pay", {"n": 1})
try:
    print(len(tick(sys.argv[1], imports=["orders.jobs"]).succeeded), "ran")
except UsageError as error:
    print(error)
"""


def test_tick_of_a_test_runs_no_handler_whose_orm_would_write_in_the_projects_database(
    site: Path, sqlite_migrated: str
) -> None:
    (site / "ticks.py").write_text(TICKS)
    call = partial(python, site, "ticks.py", DJANGO_SETTINGS_MODULE="site_settings")
    refused = call("sqlite:///of_the_test.db")
    assert f"their Django ORM would write in sqlite:///{sqlite_migrated}, the project's own database" in refused
    assert "manage.py test or pytest-django" in refused
    assert call("sqlite:///of_the_test.db", "in Django's test runner") == "2 ran\n", "with the refused one"
    assert call(f"sqlite:///{sqlite_migrated}") == "1 ran\n", "the database is the one that the settings name"
