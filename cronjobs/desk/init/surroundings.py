"""Read the facts that ``cronjobs init`` plans from. The facts never contain a variable's value."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from cronjobs.desk.crontab import lines, program
from cronjobs.desk.init.app_alembic import EnvFile, env_files
from cronjobs.desk.init.app_files import (
    AppPackage,
    DjangoProject,
    app_package,
    dependencies,
    django_project,
    project_names,
)
from cronjobs.engine.config.host_timezone import host_timezone
from cronjobs.engine.config.reader import FieldError
from cronjobs.engine.config.sources import checked_url
from cronjobs.engine.config.variables import read_env_file, text_of
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.host.files import names_in, open_regular, read_text
from cronjobs.errors import CronjobsError

DOTENV: Final = ".env"
# Files that a project creates beside its code. Maps each .gitignore pattern to the names that it must match.
LEFT_BEHIND: Final = {
    "cronjobs.db*": ("cronjobs.db", "cronjobs.db-wal", "cronjobs.db-turn"),
    "cronjobs.log*": ("cronjobs.log", "cronjobs.log.1"),
    DOTENV: (DOTENV,),
    # These files lie beside an app's SQLite file: SQLite's own files, and the lock files of waiting writers.
    **{f"*{suffix}-*": (f"x{suffix}-wal", f"x{suffix}-turn") for suffix in (".db", ".sqlite", ".sqlite3")},
}
_GIT_PATIENCE_S: Final = 5
_DATABASE_VARIABLE: Final = re.compile(r"(?:[A-Z0-9_]+_)?DATABASE_(?:URL|URI|DSN)")


@dataclass(frozen=True)
class DatabaseVariable:
    """A variable that names the app's database, without its value.

    ``suffix``: the suffix of a SQLite file's name, such as ".db", or "" for another database. ``why_not``: why the
    variable's database cannot be the jobs database, or None if it can.
    """

    name: str
    suffix: str = ""
    is_sqlite: bool = False
    is_async: bool = False
    why_not: str | None = None


@dataclass(frozen=True)
class DotEnv:
    """The app's .env file. ``problem`` says why it cannot be an ``env_file``, or is None if it can."""

    urls: tuple[DatabaseVariable, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Surroundings:
    """The facts that ``cronjobs init`` plans from.

    ``crontab_lines`` counts the commands in this user's crontab, except our own blocks and runs of ``cronjobs exec``.
    ``unignored`` are the patterns of LEFT_BEHIND that git does not ignore, or None outside a repository.
    """

    project: str
    timezone: str
    dotenv: DotEnv | None = None
    shell: tuple[DatabaseVariable, ...] = ()
    package: AppPackage | None = None
    django: DjangoProject | None = None
    dependencies: frozenset[str] = frozenset()
    alembic: tuple[EnvFile, ...] = ()
    crontab_lines: int = 0
    unignored: frozenset[str] | None = None
    has_postgresql_driver: bool = True


def look_around(folder: Path, environ: Mapping[str, str]) -> Surroundings:
    """Read the facts about *folder*, which need not exist. None of the app's code is imported or run."""
    django = django_project(folder)
    return Surroundings(
        project=project_name(folder),
        timezone=(django and django.timezone) or host_timezone(),
        dotenv=_dotenv(folder),
        shell=tuple(_variables(environ)),
        package=app_package(folder, django),
        django=django,
        dependencies=dependencies(folder),
        # Leave out an alembic in a parent folder, since init edits only files in the given folder.
        alembic=tuple(each for each in env_files(folder) if each.path.is_relative_to(folder)),
        crontab_lines=sum(lines.exec_name(line) is None for line in program.lines_of_user() or ()),
        unignored=_unignored(folder),
        has_postgresql_driver=find_spec("psycopg") is not None,
    )


def project_name(folder: Path) -> str:
    """Return the name in the packaging files, else the folder's, reduced to what a project name allows."""
    found = next(filter(None, project_names(folder)), folder.resolve().name)
    name = "".join(character for character in found if character.isprintable())
    return name.encode(errors="ignore").decode()[:100].strip() or "jobs"


# --- the app's database -----------------------------------------------------------------------------------------------


def _dotenv(folder: Path) -> DotEnv | None:
    file = folder / DOTENV
    if DOTENV not in names_in(folder):
        return None
    try:
        # open_regular() refuses a FIFO, since opening one would block.
        with os.fdopen(open_regular(file, os.O_RDONLY), "rb") as opened:
            variables, wrong = read_env_file(text_of(opened.read()))
    except OSError as error:
        return DotEnv(problem=f"the file cannot be read: {error.strerror}")
    except ValueError:
        return DotEnv(problem="the file is not UTF-8 text")
    if wrong:
        line, message = wrong[0]
        return DotEnv(problem=f"line {line}: {message}")
    return DotEnv(tuple(_variables(variables)))


def _variables(variables: Mapping[str, str]) -> Iterable[DatabaseVariable]:
    """Yield the variables that name the app's databases, DATABASE_URL first. Leave out test databases and our own."""
    for name in sorted(variables, key=lambda name: (name != "DATABASE_URL", name)):
        if _DATABASE_VARIABLE.fullmatch(name) and "TEST" not in name and name != "CRONJOBS_DATABASE_URL":
            yield database_variable(name, variables[name])


def database_variable(name: str, url: str) -> DatabaseVariable:
    """Return facts about *url* without the URL itself, which may contain a password."""
    scheme = url.partition("://")[0]
    try:
        if "${" in url or re.search(r"\$[A-Za-z_]", url):
            raise FieldError("the URL refers to other variables, which cronjobs does not expand")
        address = parse_url(checked_url(url, Path("/")))
    except (CronjobsError, FieldError) as error:
        return DatabaseVariable(name, why_not=str(error))
    is_async = bool(re.search(r"\+(?:asyncpg|aiosqlite|psycopg_async)$", scheme))
    suffix = Path(str(address.url.database)).suffix if address.is_sqlite else ""
    return DatabaseVariable(name, suffix, address.is_sqlite, is_async)


# --- git --------------------------------------------------------------------------------------------------------------


def _unignored(folder: Path) -> frozenset[str] | None:
    """Return the patterns of LEFT_BEHIND that git does not ignore, or None outside a repository.

    If git cannot be run, read the folder's own .gitignore.
    """
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir())
    if not any(".git" in names_in(each) for each in (there, *there.parents)):
        return None
    written = read_text(folder / ".gitignore").split()
    missing = {pattern for pattern in LEFT_BEHIND if pattern not in written}
    prefix = folder.absolute().relative_to(there)
    paths = [str(prefix / name) for names in LEFT_BEHIND.values() for name in names]
    try:
        # -z allows any characters in names. --no-index also reports ignored files that are tracked.
        done = subprocess.run(
            ["git", "-C", str(there), "check-ignore", "--no-index", "-z", "--stdin"],
            input="\0".join(paths).encode(errors="surrogateescape"),
            capture_output=True,
            timeout=_GIT_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return frozenset(missing)
    if done.returncode in (0, 1):
        ignored = set(done.stdout.decode(errors="surrogateescape").split("\0"))
        missing &= {
            pattern
            for pattern, names in LEFT_BEHIND.items()
            if any(str(prefix / name) not in ignored for name in names)
        }
    return frozenset(missing)
