"""Collect the findings of extras. A missing or failing extra becomes a finding and does not stop the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from importlib import import_module
from typing import NamedTuple

from sqlalchemy import Connection

from cronjobs.desk import doors
from cronjobs.desk.insight.finding import Finding
from cronjobs.engine.config import django_project
from cronjobs.engine.config.import_path import prepare_imports
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.user_connections import savepoint
from cronjobs.engine.store.sql import is_lost
from cronjobs.engine.tick import extras
from cronjobs.errors import DatabaseError
from cronjobs.installed import if_installed


class Findings(NamedTuple):
    """An extra's findings.

    ``again_at``: the next instant at which a finding may appear just because time passes, or None.
    """

    findings: Sequence[Finding] = ()
    again_at: datetime | None = None


def findings_of_extras(connection: Connection, settings: Settings, now: datetime) -> Findings:
    """Return the findings of our extras and of those named in the file."""
    by_extra = [Findings(list(_not_installed(settings)))]
    if settings.extras:
        prepare_imports(settings)
    for module in (*doors.FINDINGS, *settings.extras):
        try:
            there = import_module(module) if module in settings.extras else if_installed(module)
            if (found := getattr(there, "found", None)) is not None:
                with savepoint(connection):
                    by_extra.append(Findings(*found(connection, settings, now)))
        except DatabaseError:
            raise
        except (Exception, SystemExit) as error:
            if is_lost(error):
                raise
            text = f"{module} cannot report its findings: {type(error).__name__}: {error}"
            # No start time is known, so make the text a row of the finding. Then an ack covers only this error.
            by_extra.append(Findings([Finding("extra", text, subject=module, rows=(text,))]))
    again = [each.again_at for each in by_extra if each.again_at is not None]
    return Findings([finding for each in by_extra for finding in each.findings], min(again, default=None))


def _not_installed(settings: Settings) -> Iterator[Finding]:
    """Report the extras that the file uses although they are not installed."""
    wanted = {name: door.module.rpartition(".")[0] for name, door in extras.DOORS.items() if door.wanted(settings, "-")}
    if settings.setup == django_project.SETUP:
        wanted[settings.setup] = django_project.APP
    if settings.executors:
        wanted["executors"] = doors.EXECUTORS.rpartition(".")[0]
    for name, package in wanted.items():
        if if_installed(package) is None:
            text = f"{settings.file.name} uses {name}, which is not installed: {package}"
            yield Finding("extra", text, command="pip install --force-reinstall cronjobs", subject=name)
