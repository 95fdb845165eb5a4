"""System checks for ``manage.py check``: the setting CRONJOBS, the databases, and the pages' URL."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final

from django.conf import settings  # type: ignore[import-untyped]
from django.core.checks import Error, Tags, register  # type: ignore[import-untyped]
from django.core.checks import Warning as CheckWarning
from django.db import DatabaseError, connections, router  # type: ignore[import-untyped]
from django.db.utils import ConnectionDoesNotExist  # type: ignore[import-untyped]
from django.urls import NoReverseMatch, Resolver404, get_script_prefix, resolve, reverse  # type: ignore[import-untyped]

from cronjobs.contrib.django.connections import VENDORS
from cronjobs.engine.config.django_project import APP, alias, config_file, database_url, in_tests, other_module
from cronjobs.engine.config.load import load
from cronjobs.engine.config.reader import FieldError
from cronjobs.engine.config.sources import read_file
from cronjobs.engine.database.address import Address, parse_url
from cronjobs.engine.database.tables import meta
from cronjobs.errors import CronjobsError

KEYS: Final = ("config", "database")
LABEL: Final = "cronjobs"
PAGES: Final = "cronjobs"  # the URL name of the pages, in urls.py


@register
def file_is_read(app_configs: Any, **_: Any) -> list[CheckWarning]:
    """Check that the file given in Django's settings exists and is YAML. "cronjobs check" reports its other faults."""
    file = config_file(settings)
    if in_tests() or file is None:
        return []
    flaws = read_file(file, {})[1]
    if not flaws:
        return []
    hint = 'Correct the file, or name another one: CRONJOBS = {"config": BASE_DIR / "cronjobs.yaml"}'
    said = f"ticks cannot use the configuration file given in Django's settings: {flaws[0]}"
    return [CheckWarning(said, hint=hint, id="cronjobs.W006")]


@register
def same_database(app_configs: Any, **_: Any) -> list[CheckWarning]:
    """Check that ticks use the database that this project enqueues to.

    cronjobs.yaml may name another database, or another settings module.
    """
    if in_tests():
        return []
    try:
        ticks = load(config_file(settings), environ=os.environ, only_database=True)
        djangos = parse_url(database_url())
        theirs = parse_url(ticks.database)
    except (CronjobsError, FieldError):  # file_is_read() and "cronjobs check" report faults in the file
        return []
    said = other_module(ticks, getattr(settings, "SETTINGS_MODULE", None))
    found = [CheckWarning(said, id="cronjobs.W004")] if said else []
    if ticks.by_django or _place(theirs) == _place(djangos):
        return found
    said = f"this project enqueues into {djangos}, but by {ticks.file.name} ticks run the jobs in {theirs}"
    hint = (
        'Write "database: django" in that file, or name the entry of DATABASES that the file uses: '
        'CRONJOBS = {"database": …}'
    )
    return [*found, CheckWarning(said, hint=hint, id="cronjobs.W001")]


def _place(address: Address) -> tuple[str, str | None]:
    """Return the parts of an address that have only one spelling. A host may have several names."""
    return address.url.get_backend_name(), address.url.database


@register
def settings_fit(app_configs: Any, **_: Any) -> list[Error | CheckWarning]:
    """Check the keys of the setting ``CRONJOBS``, and that its database is known, supported and open to migrations."""
    given = getattr(settings, "CRONJOBS", {})
    if not isinstance(given, dict):
        hint = 'CRONJOBS = {"config": BASE_DIR / "cronjobs.yaml"}'
        return [Error("CRONJOBS is not a dict", hint=hint, id="cronjobs.E001")]
    found: list[Error | CheckWarning] = [
        Error(f"CRONJOBS has an unknown key: {key!r}", hint=f"Allowed: {', '.join(KEYS)}", id="cronjobs.E002")
        for key in given
        if key not in KEYS
    ]
    name = alias(settings)
    if name not in connections.settings:
        return [
            *found,
            Error(f"CRONJOBS names the database {name!r}, which is not in DATABASES", id="cronjobs.E003"),
        ]
    vendor = connections[name].vendor
    if vendor not in VENDORS:
        hint = 'Name a database that is PostgreSQL or SQLite: CRONJOBS = {"database": …}'
        found.append(
            Error(f"cronjobs runs on PostgreSQL and SQLite, and {name!r} is {vendor}", hint=hint, id="cronjobs.E004")
        )
    elif not router.allow_migrate(name, LABEL):
        said = f"DATABASE_ROUTERS does not let migrate create the cronjobs tables in {name!r}, the jobs database"
        hint = (
            f"For app_label {LABEL!r}, let allow_migrate return True or None for that database, or choose "
            f'another database: CRONJOBS = {{"database": …}}'
        )
        found.append(CheckWarning(said, hint=hint, id="cronjobs.W002"))
    return found


@register(Tags.database)
def no_tables_elsewhere(app_configs: Any, databases: Collection[str] | None = None, **_: Any) -> list[CheckWarning]:
    """Check that only the jobs database has our tables. A job in another database would never run."""
    jobs = alias(settings)
    return [
        CheckWarning(
            f"the database {name!r} has cronjobs tables, but the jobs database is {jobs!r}, so no tick of this project "
            f"runs what is enqueued on connections[{name!r}]",
            hint="If these tables are left over, drop them: cronjobs db drop --database-url …. If another project uses "
            'them, silence this check: SILENCED_SYSTEM_CHECKS = ["cronjobs.W005"]',
            id="cronjobs.W005",
        )
        for name in databases or ()
        if name != jobs and connections[name].vendor in VENDORS and _are_other_tables(connections[name], jobs)
    ]


def _are_other_tables(connection: Any, jobs: str) -> bool:
    """Whether *connection* finds tables of ours, but not those of the alias *jobs*."""
    if meta.name not in connection.introspection.table_names():
        return False
    with suppress(DatabaseError, ConnectionDoesNotExist):  # the warning stands if nothing can be compared
        return _our_tables(connection) != _our_tables(connections[jobs])
    return True


def _our_tables(connection: Any) -> tuple[Any, ...]:
    """Return what identifies our tables in the database of *connection*.

    Settings do not identify the tables: several aliases may lead to the same tables, with another role, through a
    pooler or on a standby.
    """
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("SELECT file FROM pragma_database_list WHERE name = 'main'")
        else:
            cursor.execute(
                "SELECT system_identifier, current_database(), to_regclass(%s)::oid FROM pg_control_system()",
                [meta.name],
            )
        found: tuple[Any, ...] = cursor.fetchone()
    return found


@register(Tags.urls)
def pages_are_reached(app_configs: Any, **_: Any) -> list[CheckWarning]:
    """Check that the pages' URL leads to the pages. The admin, if it comes first, catches every URL below its own."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    try:
        place = reverse(PAGES, kwargs={"path": ""})
    except NoReverseMatch:
        return []
    try:
        found = resolve("/" + place.removeprefix(get_script_prefix()))
    except Resolver404:
        return []
    if found.url_name == PAGES:
        return []
    said = f"the cronjobs pages cannot be reached: {found.route!r} matches {place} first"
    hint = f"In urlpatterns, put the path of {APP}.urls before the path that matches now, such as the admin's"
    return [CheckWarning(said, hint=hint, id="cronjobs.W003")]
