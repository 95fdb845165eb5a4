"""List what this project leaves outside the database, for uninstalling."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cronjobs.desk.crontab import block, lines, program, swapping
from cronjobs.desk.crontab.other_blocks import other_blocks
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import Address
from cronjobs.engine.host.state_folder import state_folder
from cronjobs.errors import CronjobsError

BESIDE_SQLITE: Final = ("-wal", "-shm", "-turn", "-next")
UNIT_FOLDERS: Final = ("/etc/systemd/system", "~/.config/systemd/user")
SHOWN: Final = 10
SYSTEM_CRONTAB: Final = Path("/etc/crontab")
CRON_D: Final = Path("/etc/cron.d")
LOGROTATE: Final = Path("/etc/logrotate.d")


@dataclass(frozen=True)
class Leftover:
    """One thing that the project leaves. ``remove``: the command or instruction that removes it."""

    what: str
    where: str
    remove: str


DJANGOS: Final = Leftover(
    "Django's record",
    "the rows in django_migrations that record cronjobs' migrations",
    "python manage.py migrate cronjobs zero --fake; otherwise, a later migrate creates no tables",
)


def what_is_outside(
    settings: Settings, address: Address, other_hosts: Sequence[str], *, is_shared_file: bool, in_django: bool
) -> list[Leftover]:
    """List what the project leaves on this host, and name *other_hosts*, which cannot be inspected from here.

    *is_shared_file*: whether the SQLite file also has other tables. *in_django*: whether Django's migration history
    lists our migrations.
    """
    there = ", ".join(other_hosts[:SHOWN]) + (" …" if len(other_hosts) > SHOWN else "")
    return [
        *_crontab(settings.file),
        *_units(settings.file),
        *_files(settings, address, is_shared_file),
        *([DJANGOS] if in_django else []),
        *([] if address.is_sqlite else _server(settings.schema)),
        *(
            [Leftover("other hosts", there, "also remove from each of them: crontab line, units, state folder, log")]
            if there
            else []
        ),
        Leftover("your code", "each place that enqueues", "enqueue() now fails, because the tables are gone"),
    ]


def rotations_of(log: Path) -> list[Path]:
    """Find the logrotate files that name *log*, or a pattern for all logs in the folder of *log*."""
    names = (str(log), f"{log.parent}/*{log.suffix}")
    return [each for each in sorted(LOGROTATE.glob("*")) if any(name in _text(each) for name in names)]


def _crontab(file: Path) -> Iterator[Leftover]:
    try:
        text = program.read()
        config = f"--config {shlex.quote(str(file))}"
        for path in swapping.swapped_to(text):
            yield _swapped(Path(path), file)
        if block.find(text, file) is not None:
            yield Leftover("the crontab's line", f"for {file}", f"cronjobs crontab remove {config}")
        for other in other_blocks(text, file):
            yield Leftover("another block of the crontab", f"for {other.config}, {other.why}", other.removal)
        if any(lines.exec_name(each) is not None for each in lines.job_lines(text)):
            yield Leftover('lines that run "cronjobs exec"', "in the crontab", "cronjobs crontab unwrap")
    except CronjobsError:
        yield Leftover("the crontab", "cannot be read here", "cronjobs crontab show")
    for system in (SYSTEM_CRONTAB, *sorted(CRON_D.glob("*"))):
        for each in lines.job_lines(_text(system)):
            if str(file) in each.command and (lines.starts_ticks(each) or lines.exec_name(each) is not None):
                remove = "delete the line, or remove cronjobs exec from it"
                yield Leftover("a line of a system crontab", f"{system}, line {each.number}", remove)


def _swapped(config: Path, file: Path) -> Leftover:
    """Describe the swapped lines of *config*.

    *config* differs from *file* if the project was moved, or if another project swapped the lines.
    """
    where = "comments in the crontab" + (f" that name {config}" if config != file else "")
    goes_on = config != file and config.exists()
    when = "; leave them if that configuration's ticks still run them" if goes_on else "; until then, nothing runs them"
    command = f"cronjobs crontab restore --config {shlex.quote(str(config))}{when}"
    return Leftover("your lines that swap took over", where, command)


def _units(file: Path) -> Iterator[Leftover]:
    for folder in UNIT_FOLDERS:
        for unit in sorted(Path(folder).expanduser().glob("*.service")):
            text = _text(unit)
            if "run-due" in text and str(file).replace("%", "%%") in text:
                control = "systemctl --user" if folder.startswith("~") else "systemctl"
                timer = unit.with_suffix(".timer")
                yield Leftover(
                    "systemd units", str(unit), f"{control} disable --now {timer.name}; rm {_words(unit, timer)}"
                )


def _files(settings: Settings, address: Address, is_shared_file: bool) -> Iterator[Leftover]:
    if address.is_sqlite:
        database = str(address.url.database)
        ours = ("-turn", "-next") if is_shared_file else ("", *BESIDE_SQLITE)
        there = [file for end in ours if (file := Path(f"{database}{end}")).exists()]
        remove = [f"rm {_words(*there)}"] if there else []
        if is_shared_file:
            remove.append(
                "keep the file, because it has other tables, but VACUUM it: until then, payloads can still be read in "
                "the file"
            )
        if remove:
            yield Leftover("SQLite's files", database, "; ".join(remove))
    if settings.log is not None and settings.log.exists():
        yield Leftover("the log", str(settings.log), f"rm {_words(settings.log)}, and its rotated copies")
    for each in rotations_of(settings.log) if settings.log is not None else []:
        yield Leftover("its rotation", str(each), f"rm {_words(each)}")
    if (metrics := settings.metrics.textfile) is not None and metrics.exists():
        yield Leftover(
            "metrics", str(metrics), f"rm {_words(metrics)}; otherwise, Prometheus keeps scraping the last figures"
        )
    if (state := state_folder()).is_dir():
        yield Leftover(
            "the state folder",
            f"{state}: ticks' state files, the history of cronjobs exec without a project (exec.db), exec runs not yet "
            "written to a database, copies of your crontabs",
            f"rm -r {_words(state)}, if no other project of this user ticks here, and nobody needs its history",
        )
    yield Leftover("the configuration", str(settings.file), "yours to keep or remove, like your handlers")
    if settings.env_file is not None and settings.env_file.exists():
        yield Leftover("its env_file", str(settings.env_file), "may contain passwords")


def _server(schema: str | None) -> Iterator[Leftover]:
    if schema is not None:
        yield Leftover("the schema", schema, f'DROP SCHEMA "{schema}", if nothing else is in it')
    yield Leftover(
        "roles",
        "those of cronjobs db grants, if you created them",
        "DROP OWNED BY cronjobs_run; DROP ROLE cronjobs_run; …",
    )


def _words(*files: Path) -> str:
    return " ".join(shlex.quote(str(file)) for file in files)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
