"""Write a systemd service and timer that start ticks as the crontab line does.

All functions here are pure. systemd.service(5)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from cronjobs.desk.crontab.block import tick_words, when
from cronjobs.errors import UsageError

# This is systemd's DefaultTimeoutStopSec, the time after which systemd kills a service that is stopping.
STOP: Final = timedelta(seconds=90)
# A tick needs this long after its shutdown grace, as docs/how-to/long-work.md explains.
CLOSING: Final = timedelta(seconds=5)

_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:=@,+-]+")


@dataclass(frozen=True)
class Units:
    """The text of the two files, ``name``.service and ``name``.timer."""

    name: str
    service: str
    timer: str

    def files(self) -> dict[str, str]:
        return {f"{self.name}.service": self.service, f"{self.name}.timer": self.timer}


def unit_name(project: str) -> str:
    """Return the units' name: "cronjobs-shop" for project shop, "cronjobs" without a project."""
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", project).strip("-.")
    return f"cronjobs-{safe}" if safe else "cronjobs"


def units(
    config: Path, interpreter: Path, *, name: str, user: str | None, every: timedelta, shutdown_grace: timedelta
) -> Units:
    """Return the units for *config*. If *user* is None, they are for the user's own service manager, without User=.

    Raises UsageError for paths that a unit cannot contain, and for an *every* that cron cannot express.
    """
    lines = [
        "[Unit]",
        f"Description=One tick of cronjobs: {_specifiers(_printable(str(config)))}",
        "",
        "[Service]",
        "Type=oneshot",
        *([f"User={user}"] if user is not None else []),
        f"ExecStart={command_line(tick_words(config, interpreter))}",
        "# Like cron, use the home folder and this PATH. Handlers get other variables from env: in the configuration.",
        "WorkingDirectory=-~",
        "Environment=PATH=/usr/bin:/bin SHELL=/bin/sh",
        '# 1: the tick worked, but a job died ("cronjobs status" and alerts report it). 143: the tick was stopped.',
        "SuccessExitStatus=1 143",
        "# Long jobs have processes of their own, which outlive the tick. So systemd must not end them with the tick.",
        "KillMode=process",
        "# If one job takes too much memory, systemd must not end the whole tick.",
        "OOMPolicy=continue",
    ]
    if (stop := shutdown_grace + CLOSING) > STOP:
        lines.append(f"TimeoutStopSec={stop.total_seconds():.0f}")
    timer = [
        "[Unit]",
        f"Description=Timer that starts ticks of cronjobs: {_specifiers(_printable(str(config)))}",
        "",
        "[Timer]",
        f"OnCalendar={calendar(every)}",
        "# Without this line, systemd may start the tick up to a minute late, to save power.",
        "AccuracySec=1s",
        "",
        "[Install]",
        "WantedBy=timers.target",
    ]
    return Units(name, "\n".join(lines) + "\n", "\n".join(timer) + "\n")


def calendar(every: timedelta) -> str:
    """Return the OnCalendar= value for the times at which the crontab line fires. systemd.time(7)"""
    minute, hour, *_ = when(every).split()
    return f"*-*-* {hour.replace('*/', '0/')}:{minute.replace('*/', '0/')}:00"


def command_line(words: Sequence[str]) -> str:
    """Quote *words* for ExecStart=, so that each word reaches the program unchanged.

    "%" begins a specifier in every word. "$" begins a variable in all words but the first, and in the first word "$$"
    is not an escape. So if any word contains a "$", we put a ":" before the program, which turns variables off.
    """
    text = " ".join(_quoted(_specifiers(_printable(word))) for word in words)
    return f":{text}" if "$" in text else text


def _specifiers(text: str) -> str:
    return text.replace("%", "%%")


def _printable(text: str) -> str:
    if not text.isprintable():
        raise UsageError(f"a unit file cannot contain the path {text!r}: it has an unprintable character")
    return text


def _quoted(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
