"""Name crontab lines after the programs they run.

"import" and "wrap" give a line the same name. All functions here are pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from pathlib import PurePath
from typing import Final

_SETTING_UP: Final = (
    r"(?:cd|test|\[|command\s+-v|umask|\.|source|sleep|mkdir|export|echo|printf)\s"
    r"""(?:"[^"]*"|'[^']*'|[^;&|"'])*(?:&&|\|\||;)"""
)
# Matches a command such as: flock -n /tmp/lock sh -c 'sleep 3; backup'
_SHELL: Final = re.compile(
    r"""(?:[^;&|<>"']*[\s/])?(?:ba|da|z|k)?sh\s+-\w*c\s+(?P<quote>["'])(?P<command>.+?)(?P=quote)""", re.DOTALL
)
_LEADING: Final = re.compile(
    rf"""\s*(?:{_SETTING_UP}|if\s[^;]*;\s*then\s|[A-Za-z_]\w*=(?:"[^"]*"|'[^']*'|\S*)\s|[(!{{]\s*)"""
)
_RUNNERS: Final = frozenset(
    {"command", "chronic", "env", "exec", "flock", "ionice", "nice", "nohup"}
    | {"setsid", "sudo", "systemd-cat", "time", "timeout"}
)
_INTERPRETERS: Final = re.compile(r"(?:ba|da|z|k)?sh|(?:python|php|perl|ruby|node|java|Rscript)[0-9.]*|run-parts")
_OPTIONS_WITH_VALUE: Final = frozenset({"-n", "-c", "-u", "-t", "-w", "-d"})


def name_of(command: str) -> str:
    """Return a name made of the program that *command* runs and the program's first argument."""
    while found := _LEADING.match(command):
        command = command[found.end() :]
    if inside := _SHELL.match(command):
        return name_of(inside["command"])
    first = re.split(r"[;&|<>\n]", command, maxsplit=1)[0]
    try:
        words = shlex.split(first)
    except ValueError:
        words = first.split()
    while words and PurePath(words[0]).name in _RUNNERS:
        words = words[1:]
        while words and (words[0].startswith("-") or re.fullmatch(r"[0-9.]+[smhd]?|/\S*lock\S*", words[0])):
            words = words[2 if words[0] in _OPTIONS_WITH_VALUE else 1 :]
    parts = [PurePath(words[0]).name if words else ""]
    operands = [word for word in words[1:] if not word.startswith("-")]
    if operands and _INTERPRETERS.fullmatch(parts[0]):
        script = PurePath(operands[0]).name
        parts = [parts[0], script] if parts[0] == "run-parts" else [script]
        operands = operands[1:]
    parts[-1] = re.sub(r"\.(py|php|pl|rb|js|jar|sh|bash)$", "", parts[-1])
    if operands and re.fullmatch(r"[a-z][a-z0-9:_-]{1,30}", operands[0]):
        parts.append(operands[0])
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(parts)).strip("-.")[:60]
    return name or "line"


def unused(name: str, names: Collection[str]) -> str:
    """Return *name*, with a number appended if *names* already contains it."""
    number, found = 1, name
    while found in names:
        number += 1
        found = f"{name}-{number}"
    return found
