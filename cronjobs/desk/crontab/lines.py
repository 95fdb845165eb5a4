"""Parse a user's crontab as cron does: settings, entries, and the input after a "%". All functions here are pure.

Debian's cron (3.0pl1) and cronie differ in details. The parsers take *cron*, which says whose rules to follow. The
rules come from env.c, entry.c, misc.c and do_command.c of both crons.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

from cronjobs.desk.crontab.block import LONGEST_COMMAND, SWAPPED, bytes_of, find, parse_mark, unquoted
from cronjobs.text import one_line

Cron = Literal["debian", "cronie"]
# The longest command in bytes, including its input after "%". This is each cron's MAX_COMMAND.
LONGEST: Final[dict[Cron, int]] = {"debian": LONGEST_COMMAND, "cronie": 131_071}
_BLANK: Final = " \t"
_SPACES: Final = " \t\n\v\f\r"  # the characters for which isspace(3) is true
# Matches a line that runs "cronjobs exec", in any spelling, and captures the name of the run.
_EXEC: Final = re.compile(
    r"(?:^|[;&|]\s*|/|-m\s+)cronjobs(?:\s[^'\"&|;]*?)?\s+exec\s+(?P<name>[A-Za-z0-9_.:-]+)(?=\s|$)"
)

_RUN_DUE: Final = re.compile(r"\bcronjobs\b[^;&|]*\brun-due\b")

_WORD: Final = r"(?:[^\s'\"\\]|\\.|'[^']*')+"
# Matches the command of a line that "crontab wrap" has rewritten.
_WRAPPED: Final = re.compile(
    rf"(?:{_WORD}/cronjobs|{_WORD} -P -m cronjobs) exec [\w.:-]+(?: --config {_WORD})? -c "
    r"'(?P<command>(?:[^']|'\\'')*)'(?P<input>%.*)?",
    re.DOTALL,
)


@dataclass(frozen=True)
class CrontabEntry:
    r"""A line that runs a command.

    ``when``: the five fields with single spaces between them, or the @ name. ``written``: the rest of the line, with
    "%" and "\%" not yet interpreted. ``stdin``: the text that cron writes to the command's standard input, or "" for
    none. ``settings``: the environment settings above the line. ``comments``: the comment lines directly above the
    line.
    """

    number: int
    text: str
    when: str
    written: str
    command: str
    stdin: str
    settings: tuple[tuple[str, str], ...]
    comments: tuple[str, ...] = ()


@dataclass(frozen=True)
class NoEntry:
    """A line that cron rejects, and why. Debian's cron then ignores the whole crontab, cronie only the line."""

    number: int
    text: str
    why: str


def read(crontab: str, cron: Cron) -> list[CrontabEntry | NoEntry]:
    """Return the entries of *crontab* in order, except those in our own blocks."""
    return list(_entries(crontab, cron))


def as_shown(line: str, limit: int) -> str:
    """Return *line* for a message: a tab is shown as a space, and the rest as ``one_line`` does."""
    return one_line(line.replace("\t", " "), limit)


def job_lines(crontab: str) -> list[CrontabEntry]:
    """Return the lines that run a command, except those in our own blocks."""
    return [line for line in read(crontab, "debian") if isinstance(line, CrontabEntry)]


def unwrapped(line: CrontabEntry) -> CrontabEntry | None:
    """Return *line* as it was before ``crontab wrap`` put exec in front of it, or None if wrap did not write *line*."""
    found = _WRAPPED.fullmatch(line.written)
    if found is None:
        return None
    written = found["command"].replace(r"'\''", "'") + (found["input"] or "")
    command, stdin = split(written, "debian")
    return replace(line, written=written, command=command, stdin=stdin)


def starts_ticks(line: CrontabEntry) -> bool:
    """Return whether the line runs "cronjobs run-due"."""
    return _RUN_DUE.search(line.command) is not None


def exec_name(line: CrontabEntry) -> str | None:
    """Return the name that the line passes to ``cronjobs exec``, or None if the line runs something else."""
    found = _EXEC.search(line.written)
    return None if found is None else found["name"]


def exec_config(line: CrontabEntry) -> str | None:
    """Return the absolute path of the project that the line gives to ``cronjobs exec``, or None if there is none."""
    try:
        words = shlex.split(line.command)
    except ValueError:
        return None
    given = dict(line.settings).get("CRONJOBS_CONFIG")
    for word, following in pairwise(words[: words.index("-c")] if "-c" in words else words):
        given = following if word == "--config" else given
        given = word.removeprefix("--config=") if word.startswith("--config=") else given
    return given if given is not None and given.startswith("/") else None


def _entries(crontab: str, cron: Cron) -> Iterator[CrontabEntry | NoEntry]:
    settings: dict[str, str] = {}
    comments: list[str] = []
    ours: str | None = None  # the configuration whose block contains this line, or None
    for number, text in enumerate(crontab.split("\n"), 1):
        if mark := parse_mark(text):
            ours = mark.config if mark.kind == "begin" else None
        line = text.lstrip(_BLANK)
        if not line or line.startswith("#"):
            comments = [] if not line or mark or line.startswith(SWAPPED) else [*comments, line]
            continue
        above, comments = tuple(comments), []
        if found := setting(line, cron):
            settings[found[0]] = found[1]
        elif ours is None:
            yield _entry(number, text, line, cron, tuple(settings.items()), above)


def _entry(
    number: int, text: str, line: str, cron: Cron, settings: tuple[tuple[str, str], ...], comments: tuple[str, ...]
) -> CrontabEntry | NoEntry:
    if cron == "cronie" and line.startswith("-"):  # "-" means "do not log", and only root may use it
        line = line[1:]
    words = _NAMED.match(line) or _FIVE.match(line)
    if words is None:
        return NoEntry(number, text, "the line is neither a setting nor a job with five time fields")
    when, rest = " ".join(words["when"].split()), words["rest"]
    # Ignore "-n", which means "mail only if the command fails", since cronjobs does the same.
    if cron == "cronie" and (option := _MAIL_ON_ERROR.match(rest)):
        rest = rest[option.end() :]
    if not rest:
        return NoEntry(number, text, "the line has no command")
    if rest.startswith("*"):
        return NoEntry(number, text, 'the command begins with "*", so the line has one field too many')
    if len(bytes_of(rest)) > LONGEST[cron]:
        return NoEntry(number, text, f"the command is longer than the {LONGEST[cron]} bytes that cron accepts")
    command, stdin = split(rest, cron)
    return CrontabEntry(number, text, when, rest, command, stdin, settings, comments)


_NAMED: Final = re.compile(r"(?P<when>@[^ \t]*)[ \t]*(?P<rest>.*)", re.DOTALL)
_FIVE: Final = re.compile(r"(?P<when>[^ \t]+(?:[ \t]+[^ \t]+){4})[ \t]*(?P<rest>.*)", re.DOTALL)
_MAIL_ON_ERROR: Final = re.compile(r"-n[ \t]+")


# --- settings ---------------------------------------------------------------------------------------------------------


def setting(line: str, cron: Cron) -> tuple[str, str] | None:
    """Return the name and value if *line* is an environment setting, else None. crontab(5); load_env in env.c

    Name and value may be quoted. Both crons accept ``NAME=""``, but only cronie accepts ``NAME=``. Contrary to
    crontab(5), Debian's cron removes blanks from the end of a quoted value, and removes quotes inside quotes.
    """
    found = _SETTING.fullmatch(line.lstrip(_BLANK))
    if found is None:
        return None
    name = next(part for part in (found["double"], found["single"], found["bare"]) if part is not None)
    raw = found["value"]
    if not raw:
        return (name, "") if cron == "cronie" else None
    if raw[0] in "\"'":
        inside, quote, after = raw[1:].partition(raw[0])
        if not quote or after.strip(_SPACES):
            return None
        value = inside
    else:
        value = raw.rstrip(_SPACES)
    if cron == "debian":
        value = unquoted(value.rstrip(_SPACES))
    return name, value


def place_of_block(crontab: str) -> int | None:
    """Return where a new block should go: the start of a line, or None for the end of *crontab*.

    At the end, all settings of the crontab apply to the block. But if the last setting is ``MAILTO=""``, cron would not
    mail the output of a failing tick, so the block goes above that line.
    """
    start, inside = 0, False
    last: tuple[tuple[str, str] | None, int | None] = None, None
    for line in crontab.split("\n"):
        if mark := parse_mark(line):
            inside = mark.kind == "begin"
        # Cronie accepts more settings. A comment that contains "=" parses as a setting whose name begins with "#".
        if (found := setting(line, "cronie")) and not found[0].startswith("#"):
            last = found, None if inside else start
        start += len(line) + 1
    return last[1] if last[0] == ("MAILTO", "") else None


def settings_above(crontab: str, config: Path) -> dict[str, str]:
    """Return the settings above the block of *config*, which apply to the block. A later setting wins (crontab(5)).

    The function uses cronie's rules, which accept more settings, so that warnings and trial ticks do not miss a
    setting.
    """
    return {name: value for name, (_, value) in _settings_above(crontab, config).items()}


def line_that_sets(name: str, crontab: str, config: Path) -> int | None:
    """Return the number of the line whose setting of *name* applies to the block of *config*, or None."""
    found = _settings_above(crontab, config).get(name)
    return None if found is None else found[0]


def _settings_above(crontab: str, config: Path) -> dict[str, tuple[int, str]]:
    found = find(crontab, config)
    lines = crontab[: found.start if found else None].split("\n")
    # A comment that contains "=" parses as a setting whose name begins with "#".
    return {
        each[0]: (number, each[1])
        for number, line in enumerate(lines, 1)
        if (each := setting(line, "cronie")) and not each[0].startswith("#")
    }


_SETTING: Final = re.compile(
    r"""(?:"(?P<double>[^"=]*)"|'(?P<single>[^'=]*)'|(?P<bare>(?!["'])[^\s=]*))\s*=\s*(?P<value>.*)""",
    re.DOTALL | re.ASCII,
)


# --- "%" --------------------------------------------------------------------------------------------------------------


def split(rest: str, cron: Cron) -> tuple[str, str]:
    r"""Split at the first unescaped "%" into command and standard input. do_command.c

    In the command, "\%" becomes "%"; Debian's cron also turns "\\" into "\". In the input, "%" becomes a newline, "\%"
    becomes "%", and a missing final newline is added.
    """
    command = []
    position = 0
    while position < len(rest):
        character, following = rest[position], rest[position + 1 : position + 2]
        if character == "%":
            break
        if character == "\\" and following:
            undone = following == "%" or (following == "\\" and cron == "debian")
            command.append(following if undone else character + following)
            position += 2
        else:
            command.append(character)
            position += 1
    return "".join(command), _input(rest[position + 1 :])


def _input(text: str) -> str:
    found = _PERCENT.sub(lambda percent: "%" if percent[0] == "\\%" else "\n", text)
    last = found.rstrip("\\")[-1:]  # cron ignores trailing backslashes when it looks for the final newline
    return found + "\n" if last and last != "\n" else found


_PERCENT: Final = re.compile(r"\\?%")
