"""Gather what ``doctor`` examines: the host, the file if it is usable, and the database if it answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path

from cronjobs.clock import SYSTEM
from cronjobs.desk.cli import project_database
from cronjobs.desk.cli.crontab import config_file
from cronjobs.desk.cli.known_types import known_types
from cronjobs.desk.cli.loading import load_settings
from cronjobs.desk.cli.options import Source
from cronjobs.desk.crontab import host, program
from cronjobs.engine.command.database import open_database
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.probe.kernel_facts import host_name
from cronjobs.engine.store.meta import require_schema
from cronjobs.errors import ConfigError, CronjobsError, DatabaseDamaged, DatabaseVanished


@dataclass(frozen=True)
class ExaminedSite:
    """The host, file and database to examine.

    ``unusable`` says why a tick could not use the file. ``settings`` is None if not even a database address is known.
    If ``database`` is None, ``unreachable`` may say why. ``no_file`` is true if the reason is that the SQLite file does
    not exist. ``tables`` is true if this version can use the database's tables. ``root`` is the root of the host's file
    system.
    """

    file: Path
    host: str
    now: datetime
    environ: Mapping[str, str]
    known_types: Callable[[Settings], JobTypes]
    settings: Settings | None = None
    unusable: str = ""
    database: Database | None = None
    unreachable: str = ""
    no_file: bool = False
    to_restore: bool = False  # whether the database is damaged, or existed before and is missing
    tables: bool = False
    root: Path = Path("/")

    @cached_property
    def types(self) -> JobTypes:
        return self.known_types(self.config)

    @property
    def config(self) -> Settings:
        assert self.settings is not None
        return self.settings

    @property
    def db(self) -> Database:
        assert self.database is not None
        return self.database

    @property
    def sqlite_path(self) -> Path:
        return Path(str(self.db.address.url.database))


def patient_of(source: Source, open_things: ExitStack) -> ExaminedSite:
    """Return the host, file and database to examine. The database stays open until *open_things* is closed."""
    file = config_file(source.ctx, source.config)
    patient = ExaminedSite(file, _host(file), SYSTEM.now(), os.environ, known_types)
    settings, unusable = _settings(source, file)
    patient = replace(patient, settings=settings, unusable=unusable)
    if settings is None:
        return patient
    if not settings.database:
        return replace(patient, unreachable=settings.database_unset or "the configuration names no database")
    try:
        if missing := project_database.missing_file(settings):
            return replace(patient, unreachable=f"the database {missing} does not exist yet", no_file=True)
        database = open_things.enter_context(closing(open_database(settings)))
        with database.read() as connection:
            connection.exec_driver_sql("SELECT 1")
    except CronjobsError as error:
        to_restore = isinstance(error, DatabaseDamaged | DatabaseVanished)
        return replace(patient, unreachable=str(error), to_restore=to_restore)
    patient = replace(patient, database=database)
    try:
        with database.read() as connection:
            require_schema(connection)
    except CronjobsError:
        return patient
    return replace(patient, tables=True)


def _host(file: Path) -> str:
    """Return this host's name in the ticks that cron starts for *file*. The crontab may set CRONJOBS_HOST."""
    environment: Mapping[str, str] = {}
    with suppress(CronjobsError):
        environment = host.environment(program.read(), file)
    return host_name({**os.environ, **environment})


def _settings(source: Source, file: Path) -> tuple[Settings | None, str]:
    """Return the settings, and why a tick could not use the file ("" if it could).

    The settings are None only if the file is unusable and no database address is given.
    """
    try:
        return load_settings(source, need_database=False, without_project=True), ""
    except ConfigError as error:
        why = "; ".join(map(str, error.problems))
    except CronjobsError as error:
        why = str(error)
    try:
        return load_settings(source, need_database=False, only_database=True), why
    except CronjobsError:
        pass
    address = source.given("database_url") or os.environ.get("CRONJOBS_DATABASE_URL")
    return (Settings(file=file, folder=file.parent, database=address), why) if address else (None, why)
