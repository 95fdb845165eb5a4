"""Fill in ``${NAME}``, ``${NAME:-default}`` and ``${file:/path}`` in values, and read env files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cronjobs.engine.host.files import open_regular

_MAX_SECRET_FILE: Final = 64 * 1024


class UnsetVariableError(ValueError):
    """The variable of a ``${NAME}`` is not set, and the reference has no default."""


@dataclass(frozen=True)
class Variables:
    """The sources of ``${…}``: the environment, and files. A relative ``${file:…}`` path starts from *folder*.

    ``names`` collects the variables that were used, whether set or not. ``files`` collects the files that were read.
    """

    environ: Mapping[str, str]
    folder: Path
    names: set[str] = field(default_factory=set)
    files: dict[Path, bytes] = field(default_factory=dict)

    def fill(self, text: str) -> tuple[str, list[str]]:
        """Return *text* with each ``${…}`` filled in and ``$${`` turned into ``${``, and the filled-in values.

        A ``${…}`` inside a value is not expanded. Raises UnsetVariableError for a variable that is not set, and
        ValueError for an invalid reference. Neither error quotes a value.
        """
        if "${" not in text:
            return text, []
        came_in: list[str] = []
        return REFERENCE.sub(lambda reference: self._value(reference, came_in), text), came_in

    def _value(self, reference: re.Match[str], came_in: list[str]) -> str:
        if reference["escaped"]:
            return "${"
        if reference["name"] is None and reference["file"] is None:
            raise ValueError(
                "this is not a variable: write ${NAME}, ${NAME:-default}, ${file:/path}, or $${ for a plain ${"
            )
        if reference["file"]:
            value: str | None = self._file(reference["file"])
        else:
            self.names.add(reference["name"])
            value = self.environ.get(reference["name"])
        if not value and reference["default"] is not None:
            # As in the shell, the default also replaces an empty value.
            return reference["default"]
        if value is None:
            raise UnsetVariableError(
                f"${{{reference['name']}}} is not set: cron does not read your shell's variables; "
                "set the variable in the env_file, or in the crontab's line"
            )
        if "\x00" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError(f"the value of {reference[0]} is not UTF-8 text")
        came_in.append(value)
        return value

    def _file(self, name: str) -> str:
        try:
            with open(open_regular(self.folder / name, os.O_RDONLY), "rb") as opened:
                content = opened.read(_MAX_SECRET_FILE + 1)
            value = text_of(content)
        except OSError as error:
            raise ValueError(f"${{file:{name}}} cannot be read: {error.strerror}") from None
        except ValueError:
            raise ValueError(f"${{file:{name}}} is not UTF-8 text") from None
        if len(content) > _MAX_SECRET_FILE:
            raise ValueError(f"${{file:{name}}} is larger than 64 KiB")
        self.files[self.folder / name] = content
        return value.removesuffix("\n")


REFERENCE: Final = re.compile(
    r"(?P<escaped>\$\$\{)"
    r"|\$\{(?:file:(?P<file>[^{}]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?)\}"
    r"|\$\{"
)


def text_of(content: bytes) -> str:
    """Decode *content* as UTF-8, with all line ends converted to \\n. Raises ValueError if *content* is not UTF-8."""
    return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def read_env_file(text: str) -> tuple[dict[str, str], list[tuple[int, str]]]:
    """Return the variables of a ``KEY=value`` file, and a (line, message) pair for each line that is not valid.

    A leading ``export``, blank lines and ``#`` comments are accepted. In single quotes, every character is kept. In
    double quotes, \\n, \\t, \\r, \\", \\\\ and \\$ are escapes. A quoted value of either kind may span several lines.
    ``$NAME`` is not replaced by the variable's value.
    """
    variables: dict[str, str] = {}
    problems: list[tuple[int, str]] = []
    position = 0
    while position < len(text):
        if blank := _BLANK.match(text, position):
            position = blank.end()
            continue
        line = text.count("\n", 0, position) + 1
        if found := _ASSIGNMENT.match(text, position):
            position = found.end()
            if found["double"] is not None:
                variables[found["name"]] = _ESCAPE.sub(lambda seen: _ESCAPES.get(seen[1], seen[0]), found["double"])
            else:
                variables[found["name"]] = found["single"] or (found["bare"] or "").strip()
        else:
            problems.append((line, "this is not KEY=value" if "=" not in _rest(text, position) else _NOT_CLOSED))
            position += len(_rest(text, position)) + 1
    return variables, problems


_NOT_CLOSED: Final = "this is not KEY=value: a name may contain only letters, digits and _, and quotes must be closed"
_BLANK: Final = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_ASSIGNMENT: Final = re.compile(
    r"[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"
    r"""(?:'(?P<single>[^']*)'|"(?P<double>(?:\\.|[^"\\])*)"|(?P<bare>(?!["'#])[^\n]*?)|)"""
    r"[ \t]*(?:(?<=[ \t=])#[^\n]*)?(?:\n|\Z)",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "$": "$"}


def _rest(text: str, position: int) -> str:
    return text[position:].partition("\n")[0]
