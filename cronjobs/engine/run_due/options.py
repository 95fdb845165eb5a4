"""The options of ``run-due``, declared once, and a parser for cron's command line that does not use typer.

Importing typer takes a third of a tick's time. So typer parses only what this parser does not accept: help,
mistakes, ``--option=value``. ``cli.run_due`` makes typer's options from the same fields.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, get_type_hints

from cronjobs.engine.probe.state_files import spool_address
from cronjobs.engine.tick.result import TickFilter

# ``crontab swap`` sets this variable for its trial tick. The value is a list of names of schedules.
RUN_BY_CRON: Final = "CRONJOBS_RUN_BY_CRON"
# ``dev`` sets this variable for its ticks, so that they report progress.
SHOWS_PROGRESS: Final = "CRONJOBS_PROGRESS_EVERY_S"


class FailOn(StrEnum):
    DEAD = "dead"
    ANY = "any"
    NEVER = "never"


class Option(NamedTuple):
    """A command-line option. ``read`` converts the text that follows the option. For a flag, ``read`` is None."""

    words: str
    read: Callable[[str], Any] | None = None
    metavar: str | None = None
    least: int | None = None
    most: int | None = None
    # True if the option may also come before "run-due".
    before: bool = False
    help: str = ""


def _number(text: str) -> int:
    # Check the text first, because int() accepts more spellings than typer does.
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


@dataclass(frozen=True)
class TickOptions:
    """The options of run-due, with their defaults."""

    # The next two options belong to all commands. Their help texts are in cli.options.
    config: Annotated[Path | None, Option("--config", Path, before=True)] = None
    database_url: Annotated[str | None, Option("--database-url", str, before=True)] = None

    workers: Annotated[
        int | None,
        Option(
            "--workers", _number, "N", least=1, most=64, help="Number of jobs to run at once. Default: run.workers."
        ),
    ] = None
    budget: Annotated[
        str | None, Option("--budget", str, "DURATION", help="This tick's time limit, e.g. 30s. Default: run.budget.")
    ] = None
    queue: Annotated[str | None, Option("--queue", str, help="Only jobs of this queue.")] = None
    only: Annotated[str | None, Option("--only", str, "TYPE", help="Only jobs of this type.")] = None
    limit: Annotated[int | None, Option("--limit", _number, "N", least=1, help="Start at most this many jobs.")] = None
    dry_run: Annotated[bool, Option("--dry-run", help="Print what would run; change nothing.")] = False
    wait: Annotated[bool, Option("--wait", help="Wait for the long jobs that this tick started.")] = False
    as_json: Annotated[bool, Option("--json", help="Print what the tick did as one JSON object.")] = False
    fail_on: Annotated[
        FailOn,
        Option(
            "--fail-on",
            FailOn,
            "WHICH",
            help='When to exit with 1: "dead" if a job died, "any" if any try failed, "never" in no case.',
        ),
    ] = FailOn.DEAD
    verbose: Annotated[
        bool,
        Option(
            "-v --verbose",
            before=True,
            help="Print a line for each finished job and each fault, even without a terminal.",
        ),
    ] = False
    quiet: Annotated[bool, Option("-q --quiet", before=True, help="Print only errors, even on a terminal.")] = False

    @property
    def config_path(self) -> Path:
        return Path(self.config or os.environ.get("CRONJOBS_CONFIG") or "cronjobs.yaml").absolute()

    @property
    def spool(self) -> str:
        """The address of the spooled runs of "cronjobs exec" that wait for this tick's database."""
        return spool_address(str(self.config_path), self.database_url or os.environ.get("CRONJOBS_DATABASE_URL"))

    @property
    def limits(self) -> TickFilter:
        return TickFilter(queue=self.queue, only=self.only, jobs=self.limit)


KINDS: Final = get_type_hints(TickOptions, include_extras=True)
OPTIONS: Final[dict[str, Option]] = {name: kind.__metadata__[0] for name, kind in KINDS.items()}
_NAMES: Final = {word: name for name, option in OPTIONS.items() for word in option.words.split()}


def tick_options(arguments: Sequence[str]) -> TickOptions | None:
    """Parse a plain ``run-due`` command line. Return None to leave the command line to typer."""
    # A shell is asking for completions, which only typer can give.
    if "_CRONJOBS_COMPLETE" in os.environ:
        return None
    found: dict[str, Any] = {}
    named = False
    words = iter(arguments)
    for word in words:
        if word == "run-due" and not named:
            named = True
            continue
        name = _NAMES.get(word)
        if name is None or not (named or OPTIONS[name].before):
            return None
        found[name] = _value(OPTIONS[name], words)
        if found[name] is None:
            return None
    return TickOptions(**found) if named else None


def _value(option: Option, words: Iterator[str]) -> Any:
    """Return True for a flag, else the option's value from *words*. Return None to leave the command line to typer."""
    if option.read is None:
        return True
    text = next(words, "")
    if not text or text.startswith("-"):
        return None
    try:
        value = option.read(text)
    except ValueError:
        return None
    least, most = option.least, option.most
    return None if (least is not None and value < least) or (most is not None and value > most) else value
