"""Edit one marked block in the text of a crontab; all other bytes stay. Pure.

A crontab is handled as UTF-8 with surrogateescape, split at "\\n" only, so that any content comes out unchanged.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

from cronjobs.errors import CronjobsError, UsageError
from cronjobs.text import visible

# Bytes of a command. Debian's cron accepts 998 and reports "command too long" for 999 (MAX_COMMAND is 1000; measured
# with "crontab -n", cron 3.0pl1-162); cronie accepts 131,072.
LONGEST_COMMAND: Final = 998

_MARK: Final = re.compile(r"# cronjobs (begin|end) (/.*)")
SWAPPED: Final = "# cronjobs swapped "  # prefix of a line that cronjobs runs in cron's place; see ``swapping``


class CrontabError(CronjobsError):
    """The crontab, or the crontab program, cannot be used as asked."""


class BlockBroken(CrontabError):
    def __init__(self, *, line: int, what: str) -> None:
        super().__init__(
            f"line {line} of the crontab: {what}, so it is not clear which lines belong to cronjobs. "
            'Nothing was changed: put it right with "crontab -e"'
        )


def tick_words(config: Path, interpreter: Path) -> list[str]:
    """Return the command that starts a tick, for cron, systemd and others.

    ``-P``: "-m" alone puts the working directory on the import path, and under cron that is HOME, where a stray
    ``cronjobs.py`` or ``yaml.py`` would be imported instead. Not ``-I``, which also hides packages installed with "pip
    install --user" and a PYTHONPATH that the user set in the crontab. Not the ``cronjobs`` script: it may not exist,
    and its "#!" line has a length limit.
    """
    return [str(interpreter), "-P", "-m", "cronjobs", "run-due", "--config", str(config)]


def command(config: Path, interpreter: Path) -> str:
    """Return the command as a crontab line has it: quoted for the shell, "%" escaped for cron.

    No "cd" (the tick finds everything from the configuration's folder), no PATH (``env:`` in the YAML), no lock (ticks
    may overlap). Raises UsageError for a path that cron cannot carry, or a command too long for it.
    """
    text = shell_words(tick_words(config, interpreter))
    size = len(os.fsencode(text))
    if size > LONGEST_COMMAND:
        raise UsageError(
            f"the cron line would be {size} bytes long and cron takes {LONGEST_COMMAND}: "
            "use shorter paths, or a symlink to the folder"
        )
    return text


def shell_words(words: Sequence[str]) -> str:
    """Join *words* for a crontab line: quoted for the shell, "%" escaped for cron. Raises UsageError."""
    for word in words:
        _check_portable(word)
    return " ".join(_quote(word) for word in words)


def _check_portable(word: str) -> None:
    r"""Raise UsageError for characters that some cron alters however they are quoted.

    A newline ends the entry. Debian's cron turns "\\" into "\" and cronie does not (measured; do_command.c), and
    Debian's ``crontab -l`` writes a carriage return as "\r", so a command with these could not be found again.
    """
    if "\\" in word or not word.isprintable():
        raise UsageError(
            f"cron cannot carry the path {word!r}: it has a backslash or a character that is not printable"
        )


def _quote(word: str) -> str:
    # Outside quotes "\%" means "%" to a cron that knows the escape, crontab(5), and to the shell of one that does not
    # (busybox). Inside quotes that shell would keep the backslash.
    return r"\%".join(shlex.quote(part) if part else "" for part in word.split("%")) or "''"


def unescaped(text: str) -> str:
    r"""Return what cron passes to the shell for a command of :func:`command`: "\%" becomes "%". crontab(5)"""
    return text.replace(r"\%", "%")


def when(every: timedelta) -> str:
    """Return the five cron fields for *every*. Raises UsageError if it divides neither an hour nor a day."""
    minutes, rest = divmod(every, timedelta(minutes=1))
    if not rest and minutes == 1:
        return "* * * * *"
    if not rest and 1 < minutes < 60 and 60 % minutes == 0:
        return f"*/{minutes} * * * *"
    hours, rest = divmod(every, timedelta(hours=1))
    if not rest and hours == 1:
        return "0 * * * *"
    if not rest and 1 < hours <= 12 and 24 % hours == 0:
        return f"0 */{hours} * * *"
    raise UsageError(
        f"run.every: {every}: cron cannot start ticks at equal intervals of that; use 1m, 2m, 3m, 4m, 5m, 6m, "
        "10m, 12m, 15m, 20m, 30m, 1h, 2h, 3h, 4h, 6h, 8h or 12h"
    )


def block(config: Path, interpreter: Path, *, every: timedelta = timedelta(minutes=1)) -> str:
    """Return the lines for *config*, marked by its path. Both paths are absolute and keep their symlinks.

    No ``MAILTO=``, ``PATH=`` or ``SHELL=`` line: a setting holds for every entry below it (crontab(5)), so it would
    change the user's own entries.
    """
    return f"# cronjobs begin {config}\n{when(every)} {command(config, interpreter)}\n# cronjobs end {config}\n"


@dataclass(frozen=True)
class Mark:
    """A comment line that begins or ends a configuration's block."""

    kind: Literal["begin", "end"]
    config: str


def parse_mark(line: str) -> Mark | None:
    """Return the mark on *line* (an editor may have added a carriage return), or None."""
    found = _MARK.fullmatch(line.removesuffix("\r"))
    if found is None:
        return None
    return Mark("begin" if found[1] == "begin" else "end", found[2])


@dataclass(frozen=True)
class FoundBlock:
    """The position of a block: ``crontab[start:stop]``."""

    text: str
    start: int
    stop: int


def find(crontab: str, config: Path) -> FoundBlock | None:
    """Return the block of *config*, or None if there is none.

    Raises BlockBroken unless there is one begin and one end, with no other configuration's mark in between.
    """
    marks: list[tuple[int, int, int, Mark]] = []  # line number, start, stop, mark
    start = 0
    for number, line in enumerate(crontab.split("\n"), 1):
        stop = start + len(line) + 1
        if mark := parse_mark(line):
            marks.append((number, start, min(stop, len(crontab)), mark))
        start = stop
    own = [index for index, entry in enumerate(marks) if entry[3].config == str(config)]
    if not own:
        return None
    first, last = marks[own[0]], marks[own[-1]]
    if first[3].kind == "end":
        raise BlockBroken(line=first[0], what=f'"# cronjobs end {config}" has no begin before it')
    if len(own) == 1:
        raise BlockBroken(line=first[0], what=f'"# cronjobs begin {config}" has no end after it')
    if len(own) > 2 or last[3].kind == "begin":
        raise BlockBroken(line=marks[own[1]][0], what=f"the block of {config} is there more than once")
    if own[1] != own[0] + 1:
        raise BlockBroken(line=marks[own[0] + 1][0], what=f"a mark stands inside the block of {config}")
    text = crontab[first[1] : last[2]]
    return FoundBlock(text, first[1], last[2])


def install(old: str, block: str, config: Path) -> str:
    """Return *old* with *block* in place of its predecessor, else at the end, below all of the user's settings.

    All other lines stay byte for byte. Raises BlockBroken rather than guess.
    """
    found = find(old, config)
    if found is not None:
        new = old[: found.start] + block + old[found.stop :]
        return new if new == old else _ended(new)
    return _ended(old) + block


def remove(old: str, config: Path) -> str:
    """Return *old* without the block of *config*: byte for byte as before :func:`install`.

    Only a missing newline at its end is added. Raises BlockBroken.
    """
    found = find(old, config)
    return old if found is None else _ended(old[: found.start] + old[found.stop :])


def _ended(text: str) -> str:
    """Add the final newline that crontab(1) requires ("missing newline before EOF")."""
    return text + "\n" if text and not text.endswith("\n") else text


def diff(old: str, new: str) -> list[str]:
    """Return a unified diff of two crontabs, its lines safe to print; empty if they are equal."""
    lines = []
    before, after = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (old, new))
    for line in difflib.unified_diff(before, after, "crontab", "crontab, changed", lineterm="\n"):
        lines.append(visible(line.removesuffix("\n")))
        if not line.endswith("\n"):
            lines.append("\\ No newline at end of file")
    return lines


def same_file(crontab: str, config: Path) -> list[str]:
    """Return other paths to the same file that have a block: each minute would start two ticks (harmless)."""
    marks = (parse_mark(line) for line in crontab.split("\n"))
    begun = {mark.config for mark in marks if mark is not None and mark.kind == "begin"} - {str(config)}
    return sorted(path for path in begun if os.path.realpath(path) == os.path.realpath(config))


def unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def text_of(output: bytes) -> str:
    return output.decode("utf-8", "surrogateescape")


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
