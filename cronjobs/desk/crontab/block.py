"""Edit one marked block in a crontab's text. All other bytes stay unchanged. All functions here are pure.

A crontab is decoded as UTF-8 with surrogateescape and split at "\\n" only, so that any content survives unchanged.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

from cronjobs.errors import CronjobsError, UsageError
from cronjobs.text import visible

# The longest command, in bytes. Debian's cron accepts 998 and reports "command too long" for 999 (MAX_COMMAND is 1000;
# measured with "crontab -n", cron 3.0pl1-162). Cronie accepts 131,072.
LONGEST_COMMAND: Final = 998

_MARK: Final = re.compile(r"# cronjobs (begin|end) (/.*)")
# ``swapping`` puts this prefix before a line that cronjobs now runs instead of cron.
SWAPPED: Final = "# cronjobs swapped "


class CrontabError(CronjobsError):
    """The crontab, or the crontab program, cannot be used as requested."""


class BlockBroken(CrontabError):
    def __init__(self, *, line: int, what: str) -> None:
        super().__init__(
            f"line {line} of the crontab: {what}, so it is not clear which lines belong to cronjobs. "
            'Nothing was changed: correct the crontab with "crontab -e"'
        )


def tick_words(config: Path, interpreter: Path) -> list[str]:
    """Return the command that starts a tick, for cron, systemd and others.

    Without ``-P``, "-m" puts the working directory on the import path. Under cron that is HOME, where a stray
    ``cronjobs.py`` or ``yaml.py`` would be imported instead. ``-I`` would also hide packages installed with "pip
    install --user" and a PYTHONPATH that the user set in the crontab. The ``cronjobs`` script is not used, since it may
    not exist, and its "#!" line has a length limit.
    """
    return [str(interpreter), "-P", "-m", "cronjobs", "run-due", "--config", str(config)]


def command(config: Path, interpreter: Path) -> str:
    """Return the tick's command for a crontab line: quoted for the shell, with "%" escaped for cron.

    The command needs no "cd" (the tick finds everything from the configuration's folder), no PATH (``env:`` in the YAML
    sets it) and no lock (ticks may overlap). Raises UsageError if cron cannot carry a path, or if the command is too
    long for cron.
    """
    text = shell_words(tick_words(config, interpreter))
    size = len(bytes_of(text))
    if size > LONGEST_COMMAND:
        raise UsageError(
            f"the cron line would be {size} bytes long, but cron accepts at most {LONGEST_COMMAND}: use shorter paths, "
            "or a symlink to the folder"
        )
    return text


def shell_words(words: Sequence[str]) -> str:
    """Join *words* for a crontab line, quoted for the shell and with "%" escaped for cron.

    Raises UsageError if cron cannot carry a word.
    """
    for word in words:
        _check_portable(word)
    return " ".join(_quote(word) for word in words)


def _check_portable(word: str) -> None:
    r"""Raise UsageError for characters that some versions of cron change even inside quotes.

    A newline ends the entry. Debian's cron turns "\\" into "\" and cronie does not (measured; do_command.c). Debian's
    ``crontab -l`` prints a carriage return as "\r", so a block with a carriage return could not be found again.
    """
    if "\\" in word or not word.isprintable():
        raise UsageError(
            f"a crontab line cannot contain the path {word!r}: it has a backslash or an unprintable character"
        )


def _quote(word: str) -> str:
    # Put "\%" outside quotes, where it always becomes "%". According to crontab(5), cron removes the backslash.
    # Busybox's cron does not, but then the shell removes it. Inside quotes the shell would keep the backslash.
    return r"\%".join(shlex.quote(part) if part else "" for part in word.split("%")) or "''"


def unescaped(text: str) -> str:
    r"""Return the result of :func:`command` as cron passes it to the shell: "\%" becomes "%". crontab(5)"""
    return text.replace(r"\%", "%")


def when(every: timedelta) -> str:
    """Return the five cron fields for *every*. Raises UsageError if *every* divides neither an hour nor a day."""
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
        f"cron cannot start ticks at the interval {every} (run.every); use 1m, 2m, 3m, 4m, 5m, 6m, "
        "10m, 12m, 15m, 20m, 30m, 1h, 2h, 3h, 4h, 6h, 8h or 12h"
    )


def block(config: Path, interpreter: Path, *, every: timedelta = timedelta(minutes=1)) -> str:
    """Return the crontab block for *config*, marked with its path. Both paths are absolute and keep their symlinks.

    The block has no ``MAILTO=``, ``PATH=`` or ``SHELL=`` line. Such a setting applies to every entry below it
    (crontab(5)), so it would change the user's own entries.
    """
    return f"# cronjobs begin {config}\n{when(every)} {command(config, interpreter)}\n# cronjobs end {config}\n"


@dataclass(frozen=True)
class Mark:
    """A comment line that begins or ends a configuration's block."""

    kind: Literal["begin", "end"]
    config: str


def parse_mark(line: str) -> Mark | None:
    """Return the mark on *line*, or None if there is none. A carriage return that an editor added is ignored."""
    found = _MARK.fullmatch(line.removesuffix("\r"))
    if found is None:
        return None
    return Mark("begin" if found[1] == "begin" else "end", found[2])


@dataclass(frozen=True)
class FoundBlock:
    """A block's text and its position: ``text`` is ``crontab[start:stop]``."""

    text: str
    start: int
    stop: int


def find(crontab: str, config: Path) -> FoundBlock | None:
    """Return the block of *config*, or None if there is none.

    Raises BlockBroken if the marks of *config* are not one begin mark and then one end mark, or if a mark of another
    configuration is between them.
    """
    marks: list[tuple[int, int, int, Mark]] = []  # each item is a line number, a start, a stop and a mark
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
        raise BlockBroken(line=marks[own[1]][0], what=f"the block of {config} appears more than once")
    if own[1] != own[0] + 1:
        raise BlockBroken(
            line=marks[own[0] + 1][0], what=f"the block of {config} contains a begin or end line of another block"
        )
    text = crontab[first[1] : last[2]]
    return FoundBlock(text, first[1], last[2])


def install(old: str, block: str, config: Path, at: int | None = None) -> str:
    """Return *old* with *block* in place of the earlier block of *config*.

    If there is no earlier block, *block* goes to *at*, the start of a line (see ``lines.place_of_block``). None stands
    for the end, below all of the user's settings. All other lines stay the same, byte for byte. Raises BlockBroken
    rather than guess.
    """
    found = find(old, config)
    if found is not None:
        new = old[: found.start] + block + old[found.stop :]
        return new if new == old else _ended(new)
    return _ended(old) + block if at is None else old[:at] + block + old[at:]


def remove(old: str, config: Path) -> str:
    """Return *old* without the block of *config*, byte for byte as it was before :func:`install`.

    Only a missing final newline is added. Raises BlockBroken rather than guess.
    """
    found = find(old, config)
    return old if found is None else _ended(old[: found.start] + old[found.stop :])


def _ended(text: str) -> str:
    """Add the final newline that crontab(1) requires ("missing newline before EOF")."""
    return text + "\n" if text and not text.endswith("\n") else text


def diff(old: str, new: str) -> list[str]:
    """Return the lines of a unified diff of two crontabs, safe to print. The list is empty if they are equal."""
    lines = []
    before, after = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (old, new))
    for line in difflib.unified_diff(before, after, "crontab", "crontab, changed", lineterm="\n"):
        lines.append(visible(line.removesuffix("\n")))
        if not line.endswith("\n"):
            lines.append("\\ No newline at end of file")
    return lines


def unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def text_of(output: bytes) -> str:
    return output.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """Undo ``text_of``. ``os.fsencode`` would fail in a Latin-1 locale, since it cannot encode "€" there."""
    return text.encode("utf-8", "surrogateescape")


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
