"""Parse the command line of ``cronjobs exec``.

This module does not import typer, because typer is slow to import and would delay the start of the command.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LONGEST_NAME = 100
USAGE = "cronjobs exec NAME [--cron '…'] [--config FILE] -c 'LINE'  or  cronjobs exec NAME -- PROGRAM ARGUMENT…"
_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-")
_VALUES = {"--config": "config", "--database-url": "database_url", "--cron": "cron", "-c": "line"}
_FLAGS = ("-v", "--verbose", "-q", "--quiet")


class ExecArguments:
    """The command to run, the name of its runs, and the project that records the runs."""

    def __init__(self) -> None:
        self.name = ""
        self.config: str | None = None
        self.database_url: str | None = None
        self.cron: str | None = None
        self.line: str | None = None
        self.words: list[str] = []

    @property
    def argv(self) -> list[str]:
        """The argv to execute. $SHELL runs a ``-c`` line, or /bin/sh if $SHELL is unset."""
        if self.line is None:
            return self.words
        return [os.environ.get("SHELL") or "/bin/sh", "-c", self.line]


class WrongArguments(Exception):
    """The command line of ``cronjobs exec`` is invalid. The message says why."""


def wants_help(arguments: Sequence[str]) -> bool:
    """Whether *arguments* ask for help, which typer prints."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(word in ("-h", "--help") and (at == 0 or ours[at - 1] != "-c") for at, word in enumerate(ours))


def read_arguments(arguments: Sequence[str]) -> ExecArguments:
    """Parse all words after ``cronjobs``. Raises WrongArguments."""
    found = ExecArguments()
    words = iter(arguments)
    seen_exec = False
    for word in words:
        option, equals, value = word.partition("=")
        if word == "--":
            found.words = list(words)
        elif option in _VALUES and (equals == "" or option.startswith("--")):
            setattr(found, _VALUES[option], value if equals else _next(words, option))
        elif word in _FLAGS:
            continue
        elif word.startswith("-"):
            raise WrongArguments(f"there is no option {word}")
        elif not seen_exec:
            seen_exec = True
        elif not found.name:
            found.name = word
        else:
            raise WrongArguments(
                f'unexpected "{word}" after the name: write -- before the program, or -c before a line'
            )
    _check(found)
    return found


def _next(words: Iterator[str], option: str) -> str:
    for word in words:
        return word
    raise WrongArguments(f"{option} needs a value")


def _check(found: ExecArguments) -> None:
    if not found.name:
        raise WrongArguments("the run needs a name")
    if len(found.name) > LONGEST_NAME or not _CHARACTERS.issuperset(found.name):
        raise WrongArguments(
            f'"{found.name}" is not a valid name: use up to {LONGEST_NAME} of the characters A–Z a–z 0–9 _ . : -'
        )
    if (found.line is None) == (not found.words):
        raise WrongArguments("give the command once: -c 'LINE', or -- PROGRAM ARGUMENT…")
