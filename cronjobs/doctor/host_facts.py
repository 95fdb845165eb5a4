"""Gather the facts about this host: its crontab, folders, disks, and the app's alembic."""

from __future__ import annotations

import ast
import configparser
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cronjobs.config.settings import Settings
from cronjobs.crontab import block, host, program
from cronjobs.database.address import parse_url
from cronjobs.doctor.host_verdicts import CronLine, MailSetUp, StateFolder, Volume
from cronjobs.errors import CronjobsError
from cronjobs.host.files import open_regular
from cronjobs.host.mounts import filesystem_of
from cronjobs.host.state_folder import State, state_folder
from cronjobs.probe import state_files

LONGEST_FILE: Final = 1 << 20
LEVELS_UP: Final = 3
PROBE: Final = "doctor"  # the file that is written to see whether one can be kept
SKIPPED: Final = frozenset({"node_modules", "venv", "__pycache__", "site-packages"})


def cron_line(file: Path, settings: Settings | None, root: Path) -> CronLine:
    """What the crontab of this user has of *file*; without *settings* nobody knows how often a tick is due."""
    daemon = host.daemon_runs(root)
    try:
        text = program.read()
        found = block.find(text, file)
        if found is None:
            return CronLine("missing", f"the crontab of {host.user().pw_name} has no line of {file}", daemon)
        if settings is None:
            same = block.command(file, program.interpreter()) in found.text
        else:
            wanted = block.block(file, program.interpreter(), every=settings.run.every)
            same = block.install(text, wanted, file) == text
    except block.BlockBroken as error:
        return CronLine("broken", str(error), daemon)
    except CronjobsError as error:
        return CronLine("unknown", str(error), daemon)
    said = "has exactly this line" if same else "has another line of this file than this version would write"
    return CronLine("same" if same else "differs", f"the crontab {said}", daemon, block.same_file(text, file))


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
    return MailSetUp(shown, mailto, logs)


def kept_state(root: Path) -> StateFolder:
    folder = state_folder()
    state, fault = State(folder), None
    state.write(PROBE, "kept\n")
    if state.take(PROBE) is None:
        fault = "nothing can be kept there: it is not ours alone, or cannot be written"
    return StateFolder(str(folder), state_files.lasting_folder() is not None, fault, filesystem_of(folder, root))


def volumes(settings: Settings | None) -> list[Volume]:
    """Where cronjobs writes on this host, each disk once."""
    places = [("state", state_folder())]
    if settings is not None:
        if settings.log is not None:
            places.insert(0, ("log", settings.log.parent))
        if settings.database:
            address = parse_url(settings.database, settings.schema)
            if address.is_sqlite:
                places.insert(0, ("database", Path(str(address.url.database)).parent))
    found: dict[int, Volume] = {}
    for what, folder in places:
        there = next((each for each in (folder, *folder.parents) if each.is_dir()), Path("/"))
        usage = shutil.disk_usage(there)
        found.setdefault(there.stat().st_dev, Volume(what, str(there), usage.free, usage.total))
    return list(found.values())


# --- the app's alembic ------------------------------------------------------------------------------------------------


def env_files(folder: Path, but: Path) -> list[tuple[str, bool]]:
    """Each env.py of an alembic.ini near *folder*, and whether it keeps autogenerate off our tables; without *but*."""
    found = {}
    for ini in _inis(folder):
        env = _script_folder(ini) / "env.py"
        if env.is_file() and env.parent.resolve() != but.resolve():
            found[str(env)] = filters(_text(env))
    return sorted(found.items())


def filters(source: str) -> bool:
    """Whether an env.py gives alembic a filter, and has to do with cronjobs; what is a comment does not count."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    names = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    names |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    ours = any("cronjobs" in str(name) for name in names | modules)
    return ours and bool(names & {"include_object", "include_name"})


def _inis(folder: Path) -> Iterator[Path]:
    """In the folder, in those above it up to the repository's, and in those directly below."""
    around = [folder, *list(folder.parents)[:LEVELS_UP]]
    for place in around:
        yield from _here(place)
        if (place / ".git").exists():
            break
    for below in sorted(folder.iterdir()):
        if below.is_dir() and not below.name.startswith(".") and below.name not in SKIPPED:
            yield from _here(below)


def _here(folder: Path) -> list[Path]:
    return [folder / "alembic.ini"] if (folder / "alembic.ini").is_file() else []


def _script_folder(ini: Path) -> Path:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(_text(ini))
        written = parser.get("alembic", "script_location", fallback="alembic")
    except configparser.Error:
        written = "alembic"
    return ini.parent / written.replace("%(here)s", str(ini.parent))


def _text(file: Path) -> str:
    try:
        with os.fdopen(open_regular(file, os.O_RDONLY), "rb") as opened:
            return opened.read(LONGEST_FILE).decode(errors="replace")
    except OSError:
        return ""
