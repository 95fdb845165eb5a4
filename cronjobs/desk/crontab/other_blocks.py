"""Find what else in a crontab starts ticks: other blocks for the same database, such as the block of an earlier
release, and lines outside the blocks.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from cronjobs.desk.crontab import host, program
from cronjobs.desk.crontab.block import find, parse_mark
from cronjobs.desk.crontab.double_runs import DoubleRuns, doubled
from cronjobs.desk.crontab.lines import job_lines, starts_ticks
from cronjobs.engine.config import load as configuration
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import Address, parse_url
from cronjobs.errors import CronjobsError


@dataclass(frozen=True)
class OtherBlock:
    """Another block of the crontab. ``why`` continues a sentence that names the block's file: "whose ticks reach …"."""

    config: str
    why: str

    @property
    def sentence(self) -> str:
        return f"the crontab also has a block for {self.config}, {self.why}"

    @property
    def removal(self) -> str:
        return f"cronjobs crontab remove --config {shlex.quote(self.config)}"


def other_blocks(crontab: str, config: Path, *, root: Path = Path("/")) -> list[OtherBlock]:
    """Return the other configurations' blocks that tick for the same project and database, or whose ticks fail.

    Each configuration file is read as the ticks of its block read it: with the variables that cron gives them.
    """
    paths = _other_paths(crontab, config)
    if not paths:
        return []
    ours = _target(crontab, config, root)
    found = ((path, _why(crontab, config, path, ours, root)) for path in paths)
    return [OtherBlock(path, why) for path, why in found if why]


def _other_paths(crontab: str, config: Path) -> list[str]:
    marks = (parse_mark(line) for line in crontab.split("\n"))
    return sorted({mark.config for mark in marks if mark is not None and mark.kind == "begin"} - {str(config)})


def blocks_that_run(crontab: str, restored: str, config: Path) -> list[tuple[str, DoubleRuns]]:
    """Return the other configurations' blocks whose ticks run lines that *restored* has and *crontab* lacks.

    Blocks whose file cannot be read are left out: their ticks run nothing.
    """
    found = []
    for path in _other_paths(restored, config):
        try:
            environment = host.environment(crontab, Path(path))
            settings = configuration.load(Path(path), environ=environment, need_database=False)
        except CronjobsError:
            continue
        before = doubled(crontab, settings)
        new = {name: line for name, line in doubled(restored, settings).lines.items() if name not in before.lines}
        if new:
            found.append((path, DoubleRuns(new, {}, {})))
    return found


def runs_twice(settings: Settings) -> str | None:
    """Name the lines of this user's crontab that both cron and ticks run, or return None if there are none.

    The ticks are those of the crontab's block for *settings*. This is not a finding, because no other host or user
    could see when the lines no longer run twice.
    """
    if not settings.schedules:
        return None
    try:
        text = program.read()
        twice = doubled(text, settings)
        ticks = find(text, program.absolute(settings.file)) is not None
    except CronjobsError:
        return None
    if not (ticks and twice.lines):
        return None
    return (
        f"{twice.sentence}, and ticks run the same commands: to hand these lines over to ticks, run {twice.hand_over}"
    )


def lines_by_hand(crontab: str, config: Path) -> list[int]:
    """Return the numbers of the lines outside the block of *config* that start ticks with this file.

    Raises BlockBroken if the block is broken.
    """
    found = find(crontab, config)
    if found is not None:
        crontab = crontab[: found.start] + "\n" * found.text.count("\n") + crontab[found.stop :]
    return [line.number for line in job_lines(crontab) if starts_ticks(line) and str(config) in line.command]


def _why(crontab: str, config: Path, path: str, ours: tuple[object, ...] | str, root: Path) -> str:
    if os.path.realpath(path) == os.path.realpath(config):
        return "which is the same file under another path, so two ticks start each time"
    theirs = _target(crontab, Path(path), root)
    if isinstance(theirs, str):
        return f"whose ticks fail ({theirs})"
    return "whose ticks reach the same project and database, with that file's schedules and code" * (theirs == ours)


def _target(crontab: str, config: Path, root: Path) -> tuple[object, ...] | str:
    """Return the project, environment and database that the block of *config* reaches, or why it cannot reach them."""
    try:
        settings = configuration.load(config, environ=host.environment(crontab, config, root=root))
        return settings.project, settings.environment, _place(parse_url(settings.database, settings.schema))
    except CronjobsError as error:
        return error.lines[0]


def _place(address: Address) -> tuple[object, ...]:
    """Return a value that identifies the database, whichever user connects to it."""
    url = address.url
    if address.is_sqlite:
        return (os.path.realpath(str(url.database)),)
    return url.host or url.query.get("host"), url.port or url.query.get("port", 5432), url.database, address.schema
