"""The checks of the file and this host. Each check gathers facts, and a function of ``host_verdicts`` judges them."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from sqlalchemy import Connection

from cronjobs.clock import SYSTEM
from cronjobs.contrib.doctor import host_verdicts as judge
from cronjobs.contrib.doctor import statements
from cronjobs.contrib.doctor.diagnosis import Diagnosis
from cronjobs.contrib.doctor.host_verdicts import CronLine, MailSetUp, StateFolder, TickTimes, Volume
from cronjobs.contrib.doctor.mounts import filesystem_of
from cronjobs.contrib.doctor.patient import ExaminedSite
from cronjobs.desk.cli.other_hosts import listed, ticking_besides
from cronjobs.desk.crontab import block, host, program
from cronjobs.desk.crontab.double_runs import DoubleRuns, doubled
from cronjobs.desk.crontab.lines import line_that_sets
from cronjobs.desk.crontab.other_blocks import lines_by_hand, other_blocks
from cronjobs.desk.init.app_alembic import env_files
from cronjobs.desk.insight import check_config
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.judged_types import waiting_without_handler
from cronjobs.desk.insight.kept_from_starting import kept_from_starting_here
from cronjobs.desk.insight.pace import at_their_pace
from cronjobs.desk.insight.waiting import MOST_TYPES
from cronjobs.desk.insight.watched import STEADY_TICKS, quiet_after
from cronjobs.desk.store.upgrade_warnings import migrated_by_an_app
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.host.state_folder import State
from cronjobs.engine.host.state_folder import state_folder as folder_of_state
from cronjobs.engine.host.temporary import sqlite_temporary_folder
from cronjobs.engine.probe import state_files
from cronjobs.engine.probe.kernel_facts import host_name
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.store.ticks import last_ticks
from cronjobs.errors import CronjobsError
from cronjobs.masking import hide
from cronjobs.text import one_line

PROBE: Final = "doctor"  # the name of the file that doctor writes to test the state folder


# --- the configuration ------------------------------------------------------------------------------------------------


def configuration(patient: ExaminedSite) -> Diagnosis:
    # If the file is unusable, patient.settings may hold only the database's address, for the database checks.
    if patient.settings is None or patient.unusable:
        return judge.unreadable(str(patient.file), patient.unusable)
    found = check_config.check(patient.settings, None, file=patient.file.name, environ=patient.environ, now=patient.now)
    problems = [str(finding.problem) for finding in found.findings]
    return judge.configuration(str(patient.file), problems, is_misread=bool(patient.settings.problems))


def handlers(patient: ExaminedSite) -> Diagnosis:
    faults = [f"{fault.where}: {fault.what}" for fault in patient.types.faults]
    return judge.handlers(len(patient.types.types), faults)


def job_types(patient: ExaminedSite) -> Diagnosis:
    unknown = check_config.wrong_names(patient.config, patient.types)
    waiting: dict[str, int] = {}
    due: set[str] = set()
    if patient.database is not None and patient.tables:
        with patient.database.read() as connection:
            due = set(look(connection, patient.config, patient.types).waiting.unresolved)
            waiting = waiting_without_handler(connection, patient.config, patient.types, patient.host, MOST_TYPES)
    return judge.job_types([str(each) for each in unknown], sorted(due - waiting.keys()), waiting)


def timeouts(patient: ExaminedSite) -> Diagnosis:
    never = check_config.never_begin(patient.config, patient.types)
    return judge.timeouts([str(each.problem) for each in never])


# --- cron -------------------------------------------------------------------------------------------------------------


def crontab(patient: ExaminedSite) -> Diagnosis:
    is_ticking: bool | None = None
    elsewhere = ""
    if patient.database is not None and patient.settings is not None and patient.tables:
        with patient.database.read() as connection:
            every = at_their_pace(connection, patient.settings).run.every
            found = _fired(connection, every, patient.host)
            begun = [tick.started_at for tick in statements.ticks_of_host(connection, patient.host)]
        # Ignore ticks from before the crontab's last change, since a line that is now gone may have started them.
        changed = program.changed_at()
        still = found.last_at is not None and found.now - found.last_at <= found.quiet_after
        is_ticking = still and len(begun) >= STEADY_TICKS and (changed is None or changed < max(begun))
        elsewhere = found.elsewhere
    return judge.crontab(_cron_line(patient), ticks=is_ticking, elsewhere=elsewhere)


def _cron_line(patient: ExaminedSite) -> CronLine:
    """Return the state of the file's block in this user's crontab.

    If the file is unusable, compare only the command in the block.
    """
    file, settings = patient.file, None if patient.unusable else patient.settings
    daemon = host.daemon_runs(patient.root)
    try:
        text = program.read()
        found, by_hand = block.find(text, file), lines_by_hand(text, file)
        double = DoubleRuns({}, {}, {}) if settings is None else doubled(text, settings)
        if found is None:
            said = f"the crontab of {host.user().pw_name} has no line for {file}"
            return CronLine("missing", said, daemon, double=double, by_hand=by_hand)
        if settings is None:
            same = block.command(file, program.interpreter()) in found.text
        else:
            wanted = block.block(file, program.interpreter(), every=settings.run.every)
            same = block.install(text, wanted, file) == text
    except block.BlockBroken as error:
        return CronLine("broken", str(error), daemon)
    except CronjobsError as error:
        return CronLine("unknown", str(error), daemon)
    said = "has exactly this line" if same else "has a line for this file that differs from what this version writes"
    others = other_blocks(text, file, root=patient.root)
    return CronLine("same" if same else "differs", f"the crontab {said}", daemon, others, double, by_hand)


def _fired(connection: Connection, every: timedelta, host: str) -> TickTimes:
    last = {row.host: row.finished_at or row.started_at for row in last_ticks(connection)}
    others = ticking_besides({host, host_name()}, connection, every)
    return TickTimes(host, database_now(connection), every, quiet_after(every), last.get(host), listed(others))


def ticks(patient: ExaminedSite) -> Diagnosis:
    with patient.db.read() as connection:
        found = _fired(connection, patient.config.run.every, patient.host)
    return judge.firing(found, _cron_line(patient), kept_from_starting_here(patient.config))


def overlapping(patient: ExaminedSite) -> Diagnosis:
    with patient.db.read() as connection:
        found = statements.ticks_of_host(connection, patient.host)
    run = patient.config.run
    return judge.overlapping(found, run.every, lingers=run.linger is not None)


def mail(patient: ExaminedSite) -> Diagnosis:
    mail_program = host.mail_program(patient.root)
    shown = None if mail_program is None else str(mail_program)
    logs = patient.settings is not None and patient.settings.log is not None
    try:
        text = program.read()
        found = block.find(text, patient.file)
        environment = host.environment(text, patient.file, root=patient.root)
    except CronjobsError:
        return judge.mail(MailSetUp(shown, None, logs))
    mailto = environment.get("MAILTO", environment["LOGNAME"]) if found is not None else None
    return judge.mail(MailSetUp(shown, mailto, logs, line_that_sets("MAILTO", text, patient.file)))


# --- the app's alembic ------------------------------------------------------------------------------------------------


def alembic(patient: ExaminedSite) -> Diagnosis:
    found = env_files(patient.file.parent)
    same = None
    if found and patient.database is not None:
        with patient.database.read() as connection:
            same = migrated_by_an_app(connection)
    return judge.alembic(found, same_database=same)


# --- folders and disks ------------------------------------------------------------------------------------------------


def state_folder(patient: ExaminedSite) -> Diagnosis:
    folder = folder_of_state()
    state, fault = State(folder), None
    state.write(PROBE, "kept\n")
    if state.take(PROBE) is None:
        fault = "ticks cannot use this folder, because other users can write to it, or because it is read-only"
    began = {name: at for name in state_files.spooled(None) if (at := state_files.spooled_at(name))}
    oldest = min(began, key=began.__getitem__, default=None)
    longest = timedelta(0) if oldest is None else SYSTEM.now() - datetime.fromtimestamp(began[oldest], UTC)
    why = "" if oldest is None else _why_spooled(oldest)
    lasting = state_files.lasting_folder() is not None
    kind = filesystem_of(folder, patient.root)
    return judge.state_folder(StateFolder(str(folder), lasting, fault, kind, len(began), longest, why))


def _why_spooled(name: str) -> str:
    """Return why exec could not write the run in the spool file *name*, or "" if the file does not say why."""
    try:
        run = json.loads(State(folder_of_state() / state_files.SPOOL).read(name) or "{}")
        config = run.get("config")
        gone = isinstance(config, str) and not Path(config).exists()
        why = f"{run['name']} ran for the configuration {config}, which does not exist" if gone else run["why"]
        return one_line(hide(str(why)), 300)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def disk_space(patient: ExaminedSite) -> Diagnosis:
    return judge.disk_space(volumes(patient.settings))


def volumes(settings: Settings | None) -> list[Volume]:
    """Return the disks on this host that cronjobs writes to."""
    places = [("state", folder_of_state())]
    if settings is not None:
        if settings.log is not None:
            places.insert(0, ("log", settings.log.parent))
        if settings.database:
            address = parse_url(settings.database, settings.schema)
            if address.is_sqlite:
                places.insert(0, ("database", Path(str(address.url.database)).parent))
                places.append(("SQLite's temporary files", sqlite_temporary_folder()))
    found: dict[int, Volume] = {}
    for what, folder in places:
        there = next((each for each in (folder, *folder.parents) if each.is_dir()), Path("/"))
        usage = shutil.disk_usage(there)
        found.setdefault(there.stat().st_dev, Volume(what, str(there), usage.free, usage.total))
    return list(found.values())
