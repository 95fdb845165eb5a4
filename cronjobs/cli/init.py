"""``cronjobs init``: a first cronjobs.yaml and jobs.py that run as they are."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from cronjobs.cli.output import echo
from cronjobs.config.host_timezone import host_timezone
from cronjobs.config.load import load
from cronjobs.config.starter import SCHEMA_FILE, starter_handlers, starter_schema, starter_yaml
from cronjobs.errors import ConfigError, CronjobsError
from cronjobs.host.files import make_folder
from cronjobs.text import visible

MODE = 0o644  # and less by the umask; never writable by others, who could then run commands as us


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder; made if missing.")] = Path(),
) -> None:
    """Write a commented cronjobs.yaml and a jobs.py to start with; they run as they are.

    Beside them it writes cronjobs.schema.json, by which editors complete and check the YAML; nothing else reads it.
    Never overwrites a file. The project gets the folder's name and this host's time zone.
    """
    files = {
        folder / "cronjobs.yaml": starter_yaml(timezone=host_timezone(), project=_project(folder)),
        folder / "jobs.py": starter_handlers(),
        folder / SCHEMA_FILE: starter_schema(),
    }
    _refuse_what_is_there(folder, list(files))
    try:
        make_folder(folder)
        _write(files)
    except OSError as error:
        where = visible(str(error.filename or folder))
        raise CronjobsError(f"{where}: {error.strerror}: nothing was written") from None
    for file in files:
        echo(f"wrote {visible(str(file))}")
    echo("next:")
    if folder.absolute() != Path.cwd():
        echo(f"  cd {visible(shlex.quote(str(folder)))}")
    for command in ("check", "run-due", "crontab install"):
        echo(f"  cronjobs {command}")


def _refuse_what_is_there(folder: Path, files: list[Path]) -> None:
    for file in files:
        if os.path.lexists(file):
            raise CronjobsError(
                f"{visible(str(file))} is there already, and nothing is ever overwritten: nothing was written"
            )
    package = folder / "jobs"
    if (package / "__init__.py").exists():
        raise CronjobsError(
            f"{visible(str(package))} is a package, and would be imported instead of jobs.py: nothing was written. "
            'Choose another folder, or begin with the file that "cronjobs init" writes there'
        )


def _write(files: dict[Path, str]) -> None:
    """Write all of *files*, none of which may exist, and see that they can be used; or none."""
    made: list[Path] = []
    try:
        for file, text in files.items():
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
            made.append(file)
            with open(descriptor, "w", encoding="utf-8") as opened:
                opened.write(text)
        load(next(iter(files)), environ={})
    except BaseException as error:
        for file in made:
            with suppress(OSError):
                file.unlink()
        if isinstance(error, ConfigError):  # a cronjobs.py beside it, say
            raise CronjobsError(f"{error}: nothing was written") from None
        raise


def _project(folder: Path) -> str:
    """The folder's name, as far as it can name a project."""
    name = "".join(character for character in folder.resolve().name if character.isprintable())
    return name.encode(errors="ignore").decode()[:100].strip() or "jobs"
