"""Read configuration from a Django project: ``database: django`` in the file, and ``CRONJOBS`` in Django's settings.

Django is imported only if the file asks for it. If Django is already set up in this process, that set-up is used
unchanged.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from traceback import extract_tb
from typing import Any, Final

from cronjobs.engine.config.import_path import MODULE, RefusingExit, is_installed, prepare_imports, variables
from cronjobs.engine.config.reader import FieldError
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.config.sources import checked_url
from cronjobs.engine.config.yaml_nodes import Mapping as YamlMapping
from cronjobs.engine.config.yaml_nodes import parse
from cronjobs.errors import ConfigError, Problem
from cronjobs.masking import named_secrets
from cronjobs.text import error_text, one_line

APP: Final = "cronjobs.contrib.django"
SETUP: Final = "django.setup"
# CLEAN is a string, because importing the class requires Django.
CLEAN: Final = f"{APP}.clean:CleanConnections"
ALIAS: Final = "default"

# The OPTIONS in DATABASES that Django's backend handles itself. All others are passed to libpq.
_NOT_LIBPQS: Final = frozenset(
    {"assume_role", "isolation_level", "pool", "server_side_binding", "cursor_factory", "context", "row_factory"}
)


def settings_of_django() -> Any:
    """Return Django's settings if this process has already configured them, else None. Imports nothing."""
    found = sys.modules.get("django.conf")
    return found.settings if found is not None and found.settings.configured else None


def is_host() -> bool:
    """Return whether this process, such as manage.py or a web server, runs a Django project with our app."""
    if settings_of_django() is None:
        return False
    apps = sys.modules.get("django.apps")
    return apps is not None and bool(apps.apps.app_configs) and apps.apps.is_installed(APP)


def cronjobs_settings(settings: Any) -> Mapping[str, Any]:
    """Return the setting ``CRONJOBS`` from Django's *settings*. ``manage.py check`` reports errors in that setting."""
    found = getattr(settings, "CRONJOBS", None)
    return found if isinstance(found, Mapping) else {}


def alias(settings: Any) -> str:
    return str(cronjobs_settings(settings).get("database", ALIAS))


def in_tests() -> bool:
    """Whether Django's test runner is active. If so, the tests use a separate database."""
    return hasattr(sys.modules.get("django.core.mail"), "outbox")


def migrate_command(used: str) -> str | None:
    """Return the command that creates our tables, for an app that enqueues on the alias *used*.

    In a test, return a Python call instead: the test database lacks our tables because the tests do not run migrations.
    Return None if the process does not belong to a Django project with our app.
    """
    if not is_host():
        return None
    jobs = alias(settings_of_django())
    if used == jobs and in_tests():
        return '"cronjobs.testing.create_tables(connection)" at the start of the test, or run the tests with migrations'
    command = '"python manage.py migrate"' if jobs == ALIAS else f'"python manage.py migrate --database {jobs}"'
    return command if used == jobs else f"{command}, and enqueue on connections[{jobs!r}], the jobs database"


def config_file(settings: Any) -> Path | None:
    """Return the configuration file named by Django's *settings*, or None if they name none."""
    found = cronjobs_settings(settings).get("config") or getattr(settings, "CRONJOBS_CONFIG", None)
    return None if found is None else Path(found)


def other_module(settings: Settings, module: str | None) -> str | None:
    """Return what to do if ``env:`` in the file names other Django settings than *module*, or None if it does not.

    *module* is the value of DJANGO_SETTINGS_MODULE that this process uses.
    """
    written = dict(settings.env).get(MODULE)
    if not (module and written) or module == written:
        return None
    return (
        f"{MODULE} is {module} here and {written} in {settings.file.name}. Cron's environment does not have this "
        f"shell's variables, so a tick uses {written} unless its crontab sets the variable. Make the two values equal, "
        "or set the variable in the crontab and "
        f'write {MODULE}: "${{{MODULE}:-{written}}}" in the file'
    )


def instead_of_file() -> tuple[YamlMapping | None, list[Problem]]:
    """Return the configuration of a Django project without a cronjobs.yaml, as the tree that a file would give."""
    zone = getattr(settings_of_django(), "TIME_ZONE", None) or "UTC"
    tree, _ = parse(f"timezone: {zone}\n")
    assert isinstance(tree, YamlMapping)
    return tree, []


def with_its_database(settings: Settings, file: str, environ: Mapping[str, str], *, need: bool) -> Settings:
    """Return *settings* with the database URL from Django's settings.

    Raises ConfigError if the URL cannot be used and *need* is True. Django's settings are code, so a tick that runs as
    root does not import them if other users can write to their files.
    """
    if settings_of_django() is None:
        module = variables(settings.env, environ).get(MODULE) or environ.get(MODULE)
        modules = [module] if module else []
        prepare_imports(replace(settings, imports=(*settings.imports, *modules)))
    try:
        url = checked_url(database_url(), settings.folder)
    except FieldError as error:
        if not need:
            return replace(settings, database="", database_unset=str(error))
        line, column = settings.positions.get("database", (0, 0))
        # List the file's problems first: the cause may be an ``env:`` that could not be read.
        problem = Problem(file, line, column, "database" if line else "", str(error))
        raise ConfigError([*settings.problems, problem]) from None
    return replace(settings, database=url, by_django=True, secrets=settings.secrets | named_secrets({"": url}))


def database_url() -> str:
    """Import Django's settings, and return the URL of the jobs database.

    Raises FieldError with a message that quotes no value of the settings.
    """
    try:
        conf = importlib.import_module("django.conf")
    except ImportError:
        raise FieldError("Django is not installed here: pip install 'cronjobs[django]'") from None
    if not conf.settings.configured and not os.environ.get(MODULE):
        raise FieldError(
            f'cronjobs does not know which Django settings to use: write "env: {{{MODULE}: shop.settings}}" in this '
            "file"
        )
    try:
        # Output of the settings module must not appear before the JSON that we print.
        with redirect_stdout(sys.stderr), RefusingExit():
            databases = importlib.import_module("django.db").connections
            name = alias(conf.settings)
        if name not in databases.settings:
            raise FieldError(
                f'Django\'s DATABASES has no entry "{one_line(name, 60)}", although the CRONJOBS setting refers to it'
            )
        connection = databases[name]
    except FieldError:
        raise
    except (Exception, SystemExit) as error:  # a settings module may call sys.exit(0), which must not look like success
        raise FieldError(
            f"Django's settings{_named()} cannot be used: {error_text(error, 300)}{_place_of(error)}"
        ) from None
    if connection.vendor == "sqlite":
        return f"sqlite:///{connection.settings_dict['NAME']}"
    if connection.vendor == "postgresql":
        return _of_postgresql(connection.settings_dict)
    raise FieldError(f"Django's database is {connection.vendor}: cronjobs runs on PostgreSQL and SQLite")


def _named() -> str:
    module = os.environ.get(MODULE)
    return f" ({one_line(module, 100)})" if module else ""


def _place_of(error: BaseException) -> str:
    """Return the line of user code that raised *error*, or "". A SyntaxError names the line itself, so return ""."""
    for frame in () if isinstance(error, SyntaxError) else reversed(extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and not is_installed(file):
            return f" ({one_line(str(file), 200)}:{frame.lineno})"
    return ""


def _of_postgresql(settings: Mapping[str, Any]) -> str:
    # Imported only here, because commands without a database do not need SQLAlchemy.
    from sqlalchemy import URL

    options = {
        name: str(value)
        for name, value in (settings.get("OPTIONS") or {}).items()
        if name not in _NOT_LIBPQS and isinstance(value, str | int | float | Path) and not isinstance(value, bool)
    }
    role = (settings.get("OPTIONS") or {}).get("assume_role")
    if role:
        options["options"] = f"{options.get('options', '')} -c role={role}".strip()
    host = str(settings.get("HOST") or "")
    if host.startswith("/"):
        options["host"] = host
    port = str(settings.get("PORT") or "")
    if port and (host.startswith("/") or not host):
        options["port"] = port
    in_address = bool(host) and not host.startswith("/")
    url = URL.create(
        "postgresql",
        username=str(settings.get("USER") or "") or None,
        password=str(settings.get("PASSWORD") or "") or None,
        host=host if in_address else None,
        port=int(port) if port and in_address else None,
        database=str(settings.get("NAME") or "") or None,
        query=options,
    )
    return url.render_as_string(hide_password=False)
