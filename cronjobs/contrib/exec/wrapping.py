r"""Put ``cronjobs exec`` before the commands of a crontab, and remove it again, byte for byte. Pure.

Cron still parses the line: the input after the first bare "%" stays there, and "\%" stays as it is. Within single
quotes only "'" needs escaping, which cron's own unescaping does not touch.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from cronjobs.contrib.exec.arguments import LONGEST_NAME
from cronjobs.desk.crontab.block import LONGEST_COMMAND
from cronjobs.desk.crontab.lines import CrontabEntry, exec_name, job_lines

_BARE_PERCENT: Final = re.compile(r"(?:[^\\%]|\\.|\\$)*", re.DOTALL)  # text before the first bare "%"; do_command.c
_WORD: Final = r"(?:[^\s'\"\\]|\\.|'[^']*')+"
_QUOTED: Final = r"'((?:[^']|'\\'')*)'"
_WRAPPED: Final = re.compile(
    rf"(?:{_WORD}/cronjobs|{_WORD} -P -m cronjobs) exec (?P<name>[\w.:-]+)(?: --config {_WORD})? -c "
    rf"{_QUOTED}(?P<input>%.*)?",
    re.DOTALL,
)
_RUN_DUE: Final = re.compile(r"\bcronjobs\b.*\brun-due\b")
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "busybox"})


@dataclass(frozen=True)
class Change:
    """A line that was rewritten."""

    line: CrontabEntry
    name: str
    command: str


@dataclass(frozen=True)
class LineLeftAlone:
    """A line that stays unchanged, and why."""

    line: CrontabEntry
    why: str


@dataclass(frozen=True)
class Rewritten:
    """A crontab after ``wrap`` or ``unwrap``."""

    text: str
    changes: tuple[Change, ...]
    left: tuple[LineLeftAlone, ...]


def wrap(crontab: str, program: str, config: str | None) -> Rewritten:
    """Put exec before each command. *program* and *config* are shell words, already quoted (``shell_word``)."""
    lines = job_lines(crontab)
    taken = {name for line in lines if (name := exec_name(line)) is not None}
    changes, left = [], []
    for line in lines:
        if exec_name(line) is not None or _RUN_DUE.search(line.written):
            continue
        if (why := _why_left(line)) is not None:
            left.append(LineLeftAlone(line, why))
            continue
        name = _free(name_for(line.written), taken)
        command = wrapped(line.written, name, program, config)
        if (size := len(os.fsencode(command))) > LONGEST_COMMAND:
            why = f"with exec before it, it would be {size} bytes long, and cron takes {LONGEST_COMMAND}"
            left.append(LineLeftAlone(line, f"{why}: put the command into a script"))
            continue
        taken.add(name)
        changes.append(Change(line, name, command))
    return Rewritten(_with(crontab, changes), tuple(changes), tuple(left))


def unwrap(crontab: str) -> Rewritten:
    """Remove what ``wrap`` wrote; leave lines that run exec in another form."""
    changes, left = [], []
    for line in job_lines(crontab):
        if (found := _WRAPPED.fullmatch(line.written)) is not None:
            command = found[2].replace(r"'\''", "'") + (found["input"] or "")
            changes.append(Change(line, found["name"], command))
        elif exec_name(line) is not None:
            left.append(LineLeftAlone(line, "wrap did not write it"))
    return Rewritten(_with(crontab, changes), tuple(changes), tuple(left))


def wrapped(command: str, name: str, program: str, config: str | None) -> str:
    """Put exec before *command*, which is in crontab syntax."""
    end = _BARE_PERCENT.match(command)
    assert end is not None  # it also matches the empty string
    line, rest = command[: end.end()], command[end.end() :]
    quoted = "'" + line.replace("'", r"'\''") + "'"
    project = "" if config is None else f" --config {config}"
    return f"{program} exec {name}{project} -c {quoted}{rest}"


def _why_left(line: CrontabEntry) -> str | None:
    if line.when.lower() == "@reboot":
        return "it runs at boot, so it has no due time"
    shell = dict(line.settings).get("SHELL", "/bin/sh")
    if shell.rpartition("/")[2] not in _SHELLS:
        return f"SHELL={shell}: exec's quoting is for the shells of the Bourne family"
    if "\0" in line.written or line.written.endswith("\r"):
        return "it has a carriage return or a NUL byte"
    return None


def _with(crontab: str, changes: list[Change]) -> str:
    lines = crontab.split("\n")
    for change in changes:
        lines[change.line.number - 1] = change.line.text.removesuffix(change.line.written) + change.command
    return "\n".join(lines)


# --- names ------------------------------------------------------------------------------------------------------------

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=(?:'[^']*'|\"[^\"]*\"|[^\s;&|'\"])*\s+")
_PREFIXES: Final = (
    re.compile(r"[({!]\s*"),
    _ASSIGNMENT,
    re.compile(r"(?:cd|test|\[|umask|\.|source|sleep|mkdir|export)\s[^;&|]*(?:&&|\|\||;)\s*"),
    re.compile(r"command\s+-v\s[^;&|]*(?:&&|\|\||;)\s*"),
    re.compile(r"(?:\S*/)?(?:nice|ionice|chrt|timeout|env|sudo|chronic|exec|nohup|setsid|command|time|flock|if)\s+"),
    re.compile(r"-\S+\s+"),  # an option of such a wrapper program
    re.compile(r"\d+[smhd]?\s+"),  # its numeric argument
    re.compile(r"\S+\.(?:lock|pid)\s+"),  # flock's lock file
)
_INTERPRETERS: Final = re.compile(r"(?:python|php|perl|ruby|node|java|bash|sh|dash|zsh|ksh|Rscript)[\d.]*")
_EXTENSION: Final = re.compile(r"\.(?:sh|py|pl|php|rb|js|jar|bash)$")
_UNNAMED: Final = "line"


def name_for(command: str) -> str:
    """Guess a name from the program that *command* runs."""
    rest = command.strip()
    while True:
        shorter = next((rest[m.end() :] for each in _PREFIXES if (m := each.match(rest)) and m.end()), rest)
        if shorter == rest or not shorter:
            break
        rest = shorter
    words = re.findall(r"[^\s;&|<>()'\"`$%\\]+", rest)
    word = words[0] if words else _UNNAMED
    if _INTERPRETERS.fullmatch(word.rpartition("/")[2]):
        scripts = [each for each in words[1:] if not each.startswith("-")]
        word = scripts[0] if scripts else word
        if word.endswith("manage.py") and len(scripts) > 1:
            word = scripts[1]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", _EXTENSION.sub("", word.rstrip("/").rpartition("/")[2]))
    return name.strip("-.")[: LONGEST_NAME - 10] or _UNNAMED


def _free(name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"
