"""Find words in a command's arguments that only a shell understands: redirections, pipes and variables. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

# Matches > and 2>&1, >/dev/null, |, &&, ;, $HOME, $(date), `date`: nobody passes one of these as a literal argument on
# purpose.
_OPERATOR: Final = re.compile(r"[0-9]?&?(?:<{1,3}|>{1,2})(?:&?[\w./~-]+)?|\|{1,2}|&{1,2}|;{1,2}|\$[A-Za-z_{(].*|`.*`")
_LINE_FOLLOWS: Final = re.compile(r"-[a-z]*c")  # the option before a shell's line, as in: bash -lc LINE, su -c LINE
_NEEDS_SHELL: Final = re.compile(r"[|&;<>`$*?~]")
_PLAIN: Final = re.compile(r"[\w./=+-]+", re.ASCII)


def shell_word(arguments: Sequence[str]) -> str | None:
    """Return the first argument that only a shell would understand, and that no shell will read, or None."""
    words = ((each, before) for before, each in pairwise(arguments) if _OPERATOR.fullmatch(each))
    return next((each for each, before in words if not _LINE_FOLLOWS.fullmatch(before)), None)


def as_shell_line(arguments: Sequence[str]) -> str:
    """Return, as a YAML list, the command ``sh -c LINE``, where LINE is *arguments* written as one line for a shell."""
    line = " ".join(each if _OPERATOR.fullmatch(each) else shlex.quote(each) for each in arguments)
    return as_list(["sh", "-c", line])


def list_for(line: str) -> str:
    """Return a command, as a YAML list, that does the same as a shell that runs *line*."""
    words = words_of(line)
    return as_list(["sh", "-c", line] if words is None else words)


def words_of(line: str) -> list[str] | None:
    """Return the arguments that a shell makes of *line*, or None if the line does more than run one program."""
    if _NEEDS_SHELL.search(line):
        return None
    try:
        return shlex.split(line)
    # *line* contains a quote that is not closed.
    except ValueError:
        return line.split()


def as_list(arguments: Sequence[str]) -> str:
    """Return *arguments* as a YAML list."""
    return f"[{', '.join(one if _PLAIN.fullmatch(one) else json.dumps(one, ensure_ascii=False) for one in arguments)}]"
