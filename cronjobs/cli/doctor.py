"""``cronjobs doctor``: is everything around the jobs as it has to be?"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from cronjobs.cli.known_types import known_types, users_code
from cronjobs.cli.loading import load_settings
from cronjobs.cli.options import JsonOption, Source
from cronjobs.cli.output import safe, width, wrapped, write
from cronjobs.cli.project_database import missing_file
from cronjobs.clock import SYSTEM
from cronjobs.config.settings import Settings
from cronjobs.crontab import program
from cronjobs.doctor.diagnosis import Diagnosis
from cronjobs.doctor.examine import Examination, Patient, examine
from cronjobs.errors import ConfigError, CronjobsError
from cronjobs.host.identity import Identity
from cronjobs.run_due import leaving
from cronjobs.run_due.database import open_database
from cronjobs.run_due.printing import coloured, json_text
from cronjobs.store.meta import require_schema

COLOURS: Final = {"ok": "green", "warning": "yellow", "problem": "red", "not applicable": "bright_black"}
TEXT: Final = 600  # characters of a diagnosis


def doctor(source: Source, as_json: JsonOption = False) -> None:
    """Check everything around the jobs: file, handlers, database, cron, host; say what is wrong, and how to fix it.

    Each check is ok, a warning, a problem, or not applicable here. They work one by one: without a readable file or a
    database, those that need it say so, and the others go on. It changes nothing (but makes a small file in the state
    folder and removes it; on PostgreSQL it makes temporary tables to compare with, and rolls them back).

    --json prints one object: ok, host, checks (an object per check: check, about, status, text, fix), counts. Exit
    code 1: a check found a problem.
    """
    with ExitStack() as open_things:
        patient = patient_of(source, open_things)
        with users_code():
            found = examine(patient)
    counts: Counter[str] = Counter(diagnosis.status for _, diagnosis in found)
    if as_json:
        checks = [{"check": check.name, "about": check.about} | vars(diagnosis) for check, diagnosis in found]
        write([json_text({"ok": not counts["problem"], "host": patient.host, "checks": checks, "counts": counts})])
    else:
        write(_lines(found, counts))
    leaving.leave(1 if counts["problem"] else 0, stuck=False)  # whatever threads the user's modules began


def patient_of(source: Source, open_things: ExitStack) -> Patient:
    """What is examined; its database stays open until *open_things* are closed."""
    file = program.absolute(Path(source.given("config") or os.environ.get("CRONJOBS_CONFIG") or "cronjobs.yaml"))
    patient = Patient(file, Identity.here().host, SYSTEM.now(), os.environ, known_types)
    settings, unusable = _settings(source, file)
    patient = replace(patient, settings=settings, unusable=unusable)
    if settings is None or not settings.database:
        return patient if settings is None else replace(patient, unreachable="the configuration names no database")
    try:
        if missing := missing_file(settings):
            why = f'there is no database {missing} yet: the first "cronjobs run-due" makes it'
            return replace(patient, unreachable=why)
        database = open_things.enter_context(closing(open_database(settings)))
        with database.read() as connection:
            connection.exec_driver_sql("SELECT 1")
    except CronjobsError as error:
        return replace(patient, unreachable=str(error))
    patient = replace(patient, database=database)
    try:
        with database.read() as connection:
            require_schema(connection)
    except CronjobsError:
        return patient
    return replace(patient, tables=True)


def _settings(source: Source, file: Path) -> tuple[Settings | None, str]:
    """The settings, and why a tick could not use the file; if there is an address at all, there are settings, too."""
    try:
        return load_settings(source, need_database=False), ""
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


def _lines(found: Sequence[tuple[Examination, Diagnosis]], counts: Counter[str]) -> Iterator[str]:
    label = max(len(check.name) for check, _ in found)
    indent = " " * (label + 2)
    for check, diagnosis in found:
        word = coloured(diagnosis.status, COLOURS[diagnosis.status])
        head, *rest = wrapped(safe(diagnosis.text, TEXT), width() - len(indent) - len(diagnosis.status) - 2)
        yield f"{check.name:<{label}}  {word}: {head}"
        yield from (indent + line for part in rest for line in wrapped(part, width() - len(indent)))
        if diagnosis.fix:
            yield from (indent + line for line in wrapped(f"→ {safe(diagnosis.fix, TEXT)}", width() - len(indent)))
    said = [f"{counts[word]} {word if counts[word] == 1 or word == 'ok' else word + 's'}" for word in COUNTED]
    yield ""
    yield ", ".join(said)


COUNTED: Final = ("ok", "warning", "problem")
