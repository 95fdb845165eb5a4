"""The command line of cron: ``run-due`` with plain options, read without typer, whose import takes a third of a tick.

Whatever is not plain (a help text, a mistake, ``--option=value``) is typer's to read and to explain.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cronjobs.probe.state_files import spool_address
from cronjobs.tick.result import TickFilter

FLAGS: Final = {
    "--dry-run": "dry_run",
    "--wait": "wait",
    "--json": "as_json",
    "--verbose": "verbose",
    "-v": "verbose",
    "--quiet": "quiet",
    "-q": "quiet",
}
TEXTS: Final = {
    "--database-url": "database_url",
    "--budget": "budget",
    "--queue": "queue",
    "--only": "only",
}
NUMBERS: Final = {"--workers": ("workers", 64), "--limit": ("limit", 10**9)}
FAIL_ON: Final = ("dead", "any", "never")
ROOT: Final = {"--config", "--database-url", "-v", "--verbose", "-q", "--quiet"}  # these may also stand before run-due


@dataclass(frozen=True)
class TickOptions:
    """What the command line of run-due may say; see ``run_due`` for each."""

    config: Path | None = None
    database_url: str | None = None
    workers: int | None = None
    budget: str | None = None
    queue: str | None = None
    only: str | None = None
    limit: int | None = None
    dry_run: bool = False
    wait: bool = False
    as_json: bool = False
    fail_on: str = "dead"  # or "any", "never"
    verbose: bool = False
    quiet: bool = False

    @property
    def config_path(self) -> Path:
        return Path(self.config or os.environ.get("CRONJOBS_CONFIG") or "cronjobs.yaml").absolute()

    @property
    def spool(self) -> str:
        """What marks the runs of exec that wait for this tick's database."""
        return spool_address(str(self.config_path), self.database_url or os.environ.get("CRONJOBS_DATABASE_URL"))

    @property
    def limits(self) -> TickFilter:
        return TickFilter(queue=self.queue, only=self.only, jobs=self.limit)


def tick_options(arguments: Sequence[str]) -> TickOptions | None:
    """The options of a plain ``run-due``; None: this is for typer."""
    if "_CRONJOBS_COMPLETE" in os.environ:  # a shell that asks for completions
        return None
    found: dict[str, Any] = {}
    named = False
    words = iter(arguments)
    for word in words:
        if word == "run-due" and not named:
            named = True
        elif not named and word not in ROOT:
            return None
        elif word in FLAGS:
            found[FLAGS[word]] = True
        else:
            value = next(words, "")
            if not value or value.startswith("-") or not _take(word, value, found):
                return None
    return TickOptions(**found) if named else None


def _take(word: str, value: str, found: dict[str, Any]) -> bool:
    if word == "--config":
        found["config"] = Path(value)
    elif word in TEXTS:
        found[TEXTS[word]] = value
    elif word == "--fail-on" and value in FAIL_ON:
        found["fail_on"] = value
    elif word in NUMBERS and value.isascii() and value.isdigit() and len(value) < 10:
        name, most = NUMBERS[word]
        if not 1 <= int(value) <= most:
            return False
        found[name] = int(value)
    else:
        return False
    return True
