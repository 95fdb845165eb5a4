"""Write the files that ``cronjobs init`` has planned: all of them, or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from cronjobs.desk.init.plan import YAML, InitPlan
from cronjobs.desk.init.starter import OWN_FILE
from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.files import make_folder, open_regular
from cronjobs.engine.host.known_databases import forget, remember, require_still_there
from cronjobs.engine.schema import migrations
from cronjobs.errors import CronjobsError
from cronjobs.text import visible

# The umask may reduce this mode. Other users must not be able to write the file, since they could then run commands as
# us.
MODE: Final = 0o644
PRIVATE: Final = 0o600
GITIGNORE: Final = ".gitignore"
BESIDE_DATABASE: Final = ("", "-wal", "-shm", "-journal", "-turn", "-next")


def refuse_what_is_there(folder: Path, names: Collection[str]) -> None:
    """Raise if one of the files exists already, or if Python would import a package in place of jobs.py."""
    for name in names:
        if os.path.lexists(folder / name):
            raise CronjobsError(
                f"{visible(str(folder / name))} already exists, and init overwrites no file: nothing was written"
            )
    package = folder / "jobs"
    if "jobs.py" in names and (package / "__init__.py").exists():
        raise CronjobsError(
            f"{visible(str(package))} is a package, and would be imported instead of jobs.py: nothing was written. "
            'Choose another folder. Or run "cronjobs init" in another folder, copy its cronjobs.yaml to this one, and '
            "adapt the copy"
        )


def write(folder: Path, planned: InitPlan) -> list[str]:
    """Write the plan and return a line for each change. After a CronjobsError, nothing is left behind."""
    undo: list[Callable[[], object]] = []
    try:
        make_folder(folder)
        return list(_steps(folder, planned, undo))
    except BaseException as error:
        for step in reversed(undo):
            with suppress(OSError):
                step()
        if isinstance(error, OSError):
            where = visible(str(error.filename or folder))
            raise CronjobsError(f"{where}: {error.strerror}: nothing was written") from None
        if isinstance(error, CronjobsError):  # for example, the folder contains a cronjobs.py
            raise CronjobsError(f"{error}: nothing was written") from None
        raise


def _steps(folder: Path, planned: InitPlan, undo: list[Callable[[], object]]) -> Iterable[str]:
    """Write new files, create tables, and edit the user's own files last."""
    for name, text in planned.files.items():
        file = folder / name
        mode = PRIVATE if name in planned.private else MODE
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        undo.append(file.unlink)
        with open(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
        yield f"wrote {visible(str(file))}"
    # Read the URL only if tables are to be created: "database: django" would import the app's settings.
    url = None if planned.makes_tables else f"sqlite:///{OWN_FILE}"
    settings = load(folder / YAML, environ={}, need_database=False, database_url=url)
    if planned.makes_tables:
        yield _make_tables(settings, folder, undo)
    for file, text in planned.edits.items():
        _replace(file, text.encode(), undo)
        yield f"edited {visible(str(file))}: autogenerate leaves the tables of cronjobs alone"
    if planned.ignore:
        yield _add_ignored(folder / GITIGNORE, planned.ignore, undo)


def _make_tables(settings: Settings, folder: Path, undo: list[Callable[[], object]]) -> str:
    """Create the tables now, so that a job can be enqueued before the first tick."""
    address = parse_url(settings.database, settings.schema)
    file = Path(str(address.url.database))
    if file == folder.absolute() / OWN_FILE:
        # This is a new project, so forget the file of an earlier project in this folder.
        forget(settings.folder, address)
    require_still_there(settings.folder, address)
    is_new = not os.path.lexists(file)
    if is_new:
        undo += [Path(f"{file}{ending}").unlink for ending in BESIDE_DATABASE]
    with closing(Database(address, connections=1)) as database:
        before, newest = migrations.upgrade(database)
    remember(settings.folder, address)
    undo.append(lambda: forget(settings.folder, address))
    shown = file.relative_to(folder.absolute()) if file.is_relative_to(folder.absolute()) else file
    where = visible(str(folder / shown))
    if before == newest:  # "db upgrade" or Django's migrate has created the tables already
        return f"the tables are in {where} already"
    return f"{'wrote' if is_new else 'migrated the tables in' if before else 'added the tables to'} {where}"


def _add_ignored(file: Path, lines: Iterable[str], undo: list[Callable[[], object]]) -> str:
    added = "".join(f"{line}\n" for line in lines)
    said = f"{visible(str(file))}: {', '.join(lines)}"
    try:
        before = _content(file)
    except FileNotFoundError:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
        undo.append(file.unlink)
        with open(descriptor, "w", encoding="utf-8") as opened:
            opened.write(added)
        return f"wrote {said}"
    end = b"" if not before or before.endswith(b"\n") else b"\n"
    _replace(file, before + end + added.encode(), undo)
    return f"added to {said}"


def _replace(file: Path, content: bytes, undo: list[Callable[[], object]]) -> None:
    """Replace the file's content atomically, keeping its mode and any symlink to it."""
    real = file.resolve()
    before = _content(real)
    _put(real, content)
    undo.append(lambda: _put(real, before))


def _content(file: Path) -> bytes:
    """Read the file. Raises OSError for a device or pipe, since replacing /dev/null would affect the whole system."""
    try:
        descriptor = open_regular(file, os.O_RDONLY)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from None
    with open(descriptor, "rb") as opened:
        return opened.read()


def _put(file: Path, content: bytes) -> None:
    fresh = file.with_name(f"{file.name}.cronjobs-{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
    try:
        with open(descriptor, "wb") as opened:
            opened.write(content)
            os.fchmod(opened.fileno(), file.stat().st_mode & 0o7777)
        fresh.replace(file)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise
