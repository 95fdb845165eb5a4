"""Gather the facts about this host: its crontab, folders and disks."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cronjobs.clock import SYSTEM
from cronjobs.contrib.doctor.host_verdicts import CronLine, MailSetUp, StateFolder, Volume
from cronjobs.contrib.doctor.mounts import filesystem_of
from cronjobs.desk.crontab import block, host, program
from cronjobs.desk.crontab.double_runs import DoubleRuns, doubled
from cronjobs.desk.crontab.lines import line_that_sets
from cronjobs.desk.crontab.other_blocks import lines_by_hand, other_blocks
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.host.state_folder import State, state_folder
from cronjobs.engine.host.temporary import sqlite_temporary_folder
from cronjobs.engine.probe import state_files
from cronjobs.errors import CronjobsError
from cronjobs.masking import hide
from cronjobs.text import one_line

PROBE: Final = "doctor"  # the name of the file that doctor writes to test the state folder


def cron_line(file: Path, settings: Settings | None, root: Path) -> CronLine:
    """Return the state of *file*'s block in this user's crontab.

    If *settings* is None, compare only the command in the block.
    """
    daemon = host.daemon_runs(root)
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
    others = other_blocks(text, file, root=root)
    return CronLine("same" if same else "differs", f"the crontab {said}", daemon, others, double, by_hand)


def cron_mail(file: Path, settings: Settings | None, root: Path) -> MailSetUp:
    mail_program = host.mail_program(root)
    shown = None if mail_program is None else str(mail_program)
    logs = settings is not None and settings.log is not None
    try:
        text = program.read()
        found = block.find(text, file)
        environment = host.environment(text, file, root=root)
    except CronjobsError:
        return MailSetUp(shown, None, logs)
    mailto = environment.get("MAILTO", environment["LOGNAME"]) if found is not None else None
    return MailSetUp(shown, mailto, logs, line_that_sets("MAILTO", text, file))


def kept_state(root: Path) -> StateFolder:
    folder = state_folder()
    state, fault = State(folder), None
    state.write(PROBE, "kept\n")
    if state.take(PROBE) is None:
        fault = "ticks cannot use this folder, because other users can write to it, or because it is read-only"
    began = {name: at for name in state_files.spooled(None) if (at := state_files.spooled_at(name))}
    oldest = min(began, key=began.__getitem__, default=None)
    longest = timedelta(0) if oldest is None else SYSTEM.now() - datetime.fromtimestamp(began[oldest], UTC)
    why = "" if oldest is None else _why_spooled(oldest)
    lasting = state_files.lasting_folder() is not None
    return StateFolder(str(folder), lasting, fault, filesystem_of(folder, root), len(began), longest, why)


def _why_spooled(name: str) -> str:
    """Return why exec could not write the run in the spool file *name*, or "" if the file does not say it."""
    try:
        run = json.loads(State(state_folder() / state_files.SPOOL).read(name) or "{}")
        config = run.get("config")
        gone = isinstance(config, str) and not Path(config).exists()
        why = f"the configuration {config}, for which {run['name']} ran, does not exist" if gone else run["why"]
        return one_line(hide(str(why)), 300)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def volumes(settings: Settings | None) -> list[Volume]:
    """Return the disks on this host that cronjobs writes to."""
    places = [("state", state_folder())]
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
