r"""Put ``cronjobs exec`` before the commands of a crontab, and remove it again, byte for byte. Pure.

Cron parses the wrapped line too. So the input after the first "%" without a backslash stays where it is, and "\%" stays
as it is. Within single quotes, only "'" has to be escaped, and cron does not change that escape.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cronjobs.desk.crontab.block import LONGEST_COMMAND, bytes_of
from cronjobs.desk.crontab.lines import CrontabEntry, exec_name, job_lines, starts_ticks, unwrapped
from cronjobs.desk.crontab.naming import name_of, unused

# The text up to the first "%" without a backslash, which ends the command (cron's do_command.c).
_BARE_PERCENT: Final = re.compile(r"(?:[^\\%]|\\.|\\$)*", re.DOTALL)
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "busybox"})


@dataclass(frozen=True)
class Change:
    """A line that was rewritten."""

    line: CrontabEntry
    name: str
    command: str


@dataclass(frozen=True)
class LineLeftAlone:
    """A line that stays unchanged, and the reason."""

    line: CrontabEntry
    why: str


@dataclass(frozen=True)
class Rewritten:
    """A crontab after ``wrap`` or ``unwrap``."""

    text: str
    changes: tuple[Change, ...]
    left: tuple[LineLeftAlone, ...]


def wrap(crontab: str, program: str, config: str | None) -> Rewritten:
    """Put exec before each command. *program* and *config* must be quoted already (``block.shell_words``)."""
    lines = job_lines(crontab)
    taken = {name for line in lines if (name := exec_name(line)) is not None}
    changes, left = [], []
    for line in lines:
        if exec_name(line) is not None or starts_ticks(line):
            continue
        if (why := _why_left(line)) is not None:
            left.append(LineLeftAlone(line, why))
            continue
        name = unused(name_of(line.command), taken)
        command = wrapped(line.written, name, program, config)
        if (size := len(bytes_of(command))) > LONGEST_COMMAND:
            why = (
                f"with exec before it, the line would be {size} bytes long, and cron accepts at most {LONGEST_COMMAND}"
            )
            left.append(LineLeftAlone(line, f"{why}: put the command into a script"))
            continue
        taken.add(name)
        changes.append(Change(line, name, command))
    return Rewritten(_with(crontab, changes), tuple(changes), tuple(left))


def unwrap(crontab: str) -> Rewritten:
    """Remove what ``wrap`` wrote. Leave lines that run exec in any other form unchanged."""
    changes, left = [], []
    for line in job_lines(crontab):
        name = exec_name(line)
        if (before := unwrapped(line)) is not None:
            changes.append(Change(line, name or "", before.written))
        elif name is not None:
            left.append(LineLeftAlone(line, 'the line runs "cronjobs exec", but "crontab wrap" did not write it'))
    return Rewritten(_with(crontab, changes), tuple(changes), tuple(left))


def wrapped(command: str, name: str, program: str, config: str | None) -> str:
    """Put exec before *command*, which is in crontab syntax."""
    end = _BARE_PERCENT.match(command)
    assert end is not None  # the pattern always matches, because it matches the empty string
    line, rest = command[: end.end()], command[end.end() :]
    quoted = "'" + line.replace("'", r"'\''") + "'"
    project = "" if config is None else f" --config {config}"
    return f"{program} exec {name}{project} -c {quoted}{rest}"


def _why_left(line: CrontabEntry) -> str | None:
    if line.when.lower() == "@reboot":
        return "the line runs at boot, so it has no due time"
    shell = dict(line.settings).get("SHELL", "/bin/sh")
    if shell.rpartition("/")[2] not in _SHELLS:
        return f"SHELL={shell}: crontab wrap can quote a line only for sh and similar shells"
    if "\0" in line.written or line.written.endswith("\r"):
        return "the line contains a carriage return or a NUL byte"
    return None


def _with(crontab: str, changes: list[Change]) -> str:
    lines = crontab.split("\n")
    for change in changes:
        lines[change.line.number - 1] = change.line.text.removesuffix(change.line.written) + change.command
    return "\n".join(lines)
