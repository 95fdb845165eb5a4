"""The reading of one configuration file: its problems, the place of each value, and values from outside.

Messages quote what is written in the file, ``${NAME}`` included, and never what a variable held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from cronjobs.engine.config.variables import UnsetVariableError, Variables
from cronjobs.engine.config.yaml_nodes import UNREADABLE, Node, Scalar, Sequence
from cronjobs.engine.config.yaml_nodes import Mapping as YamlMapping
from cronjobs.errors import Problem
from cronjobs.installed import if_installed
from cronjobs.masking import long_enough, mask
from cronjobs.text import nearest as nearest
from cronjobs.text import one_line

_ENOUGH_PROBLEMS: Final = 50  # nobody reads suggestions beyond so many problems, and computing them takes time
_MAX_PROBLEMS: Final = 200


class FieldError(Exception):
    """A value cannot be used. ``column``: where in the line, if not at its beginning."""

    def __init__(self, message: str = "", column: int | None = None) -> None:
        super().__init__(message)
        self.column = column


class UnsetError(FieldError):
    """A variable is not set."""


class ReportedError(FieldError):
    """A value cannot be used, and the reason is already among the problems."""


class Fields(NamedTuple):
    """The content of a mapping: values that were read, and keys that were wrong, or that a wrong key probably meant."""

    values: dict[str, Any]
    bad: set[str]


@dataclass
class Reading:
    """One file being read: collects problems, positions and values from outside."""

    file: str  # as the user typed it
    folder: Path
    variables: Variables
    problems: list[Problem] = field(default_factory=list)
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)
    extras: bool = False  # the file names third-party extras, whose kinds of findings nobody here knows
    database_unset: str = ""  # which variable of the database's URL is not set, for a command that needs no database
    _came_in: set[str] = field(default_factory=set)

    def report(self, node: Node, path: str, message: str, column: int | None = None) -> None:
        # A name with a newline in it must not write lines of its own.
        place = Problem(self.file, node.line, column or node.column, one_line(path, 250), one_line(message, 1000))
        self.problems.append(place)

    def read(self, reader: Read, node: Node, path: str) -> Any:
        """Read *node* with *reader*. If it is bad, add the problem and raise ReportedError."""
        self.positions[path] = (node.line, node.column)
        if is_unreadable(node):
            raise ReportedError
        try:
            return reader(self, node, path)
        except ReportedError:
            raise
        except FieldError as bad:
            self.report(node, path, str(bad), bad.column)
            raise ReportedError from None

    def fields(self, node: Node, path: str, keys: Keys) -> Fields:
        """Read a mapping by the table *keys*, and report what is wrong in it. An empty node reads as {}."""
        if isinstance(node, Scalar) and node.is_null:
            return Fields({}, set())
        if is_unreadable(node):
            return Fields({}, set(keys))
        if not isinstance(node, YamlMapping):
            self.report(node, path, f"write it as a mapping: {next(iter(keys))}: …")
            return Fields({}, set(keys))
        meant: set[str] = set()

        def entry(key: Scalar, value: Node, here: str) -> Any:
            if key.text in keys:
                return self.read(keys[key.text].reader, value, here)
            meant.update(self._unknown(key, here, list(keys)))
            raise ReportedError

        values, bad = self.entries(node, path, entry)
        return Fields(values, bad | meant)

    def entries(self, node: YamlMapping, path: str, read: Callable[[Scalar, Node, str], Any]) -> Fields:
        """Read a mapping by *read(key, value, path)*; report its FieldError, and a repeated key, at the key."""
        values: dict[str, Any] = {}
        bad: set[str] = set()
        for name, (key, value) in node.entries.items():
            here = f"{path}.{name}" if path else name
            try:
                values[name] = read(key, value, here)
            except FieldError as error:
                if not isinstance(error, ReportedError):
                    self.report(key, here, str(error))
                bad.add(name)
        for key, first in node.duplicates:
            here = f"{path}.{key.text}" if path else key.text
            self.report(key, here, f"this key is already on line {first}: delete one of the two")
            bad.add(key.text)
            values.pop(key.text, None)
        return Fields(values, bad)

    def _unknown(self, key: Scalar, path: str, known: list[str]) -> list[str]:
        """Report an unknown key; return the key that was probably meant, or all that it could be."""
        guessed = self.may_guess
        meant = nearest(key.text, known) if guessed else None
        guess = f', did you mean "{meant}"?' if meant else f". Allowed here: {', '.join(sorted(known))}"
        self.report(key, path, f"unknown key{guess}")
        if not guessed:
            return known
        return [meant] if meant else []

    @property
    def may_guess(self) -> bool:
        return len(self.problems) < _ENOUGH_PROBLEMS

    def text(self, node: Node, *, secret: bool = False) -> str:
        """The text of a scalar with its variables filled in. *secret*: mask what came in wherever text is shown."""
        if isinstance(node, Sequence):
            raise FieldError("write one value, not a list")
        if isinstance(node, YamlMapping):
            raise FieldError("write one value, not a mapping")
        if node.is_null:
            raise FieldError("there is no value here: write one, or delete the key")
        try:
            text, came_in = self.variables.fill(node.text)
        except UnsetVariableError as missing:
            raise UnsetError(str(missing)) from None
        except ValueError as error:
            raise FieldError(str(error)) from None
        self._came_in.update(came_in)
        if secret:
            self.secrets |= long_enough(came_in)
        return text

    def masked_problems(self) -> list[Problem]:
        """The problems in line order. No message quotes a value from outside; if one ever did, it is masked."""
        hidden = self.secrets | long_enough(self._came_in)
        found = [replace(problem, message=mask(problem.message, hidden)) for problem in self.problems]
        found.sort(key=lambda problem: (problem.file == self.file, problem.line, problem.column))
        if len(found) > _MAX_PROBLEMS:
            more = Problem(self.file, 0, 0, "", f"and {len(found) - _MAX_PROBLEMS} more problems")
            return [*found[:_MAX_PROBLEMS], more]
        return found


Read = Callable[[Reading, Node, str], Any]


@dataclass(frozen=True, slots=True)
class Reader:
    """A kind of value: how it is read, and what the reference and the editor's schema say about it.

    ``words``: the type, for people. ``schema``: the same in JSON Schema, as far as it can say it. A mapping has
    ``keys``, its table, or ``each``, the reader of its named entries. ``defaults``: an object whose attributes have the
    names of the keys and hold their defaults.
    """

    read: Read
    words: str
    schema: Mapping[str, Any]
    keys: Keys = field(default_factory=dict)
    each: Reader | None = None
    defaults: object = None
    secret: bool = False  # its values are never shown

    def __call__(self, reading: Reading, node: Node, path: str) -> Any:
        return self.read(reading, node, path)


class ReaderOfExtra:
    """Stands for the Reader *name* in the *module* of an extra. The module is imported when its section is read."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __call__(self, reading: Reading, node: Node, path: str) -> Any:
        return self._reader(reading, node, path)

    def __getattr__(self, name: str) -> Any:  # words, schema, keys and the rest
        return getattr(self._reader, name)

    @cached_property
    def _reader(self) -> Reader:
        there = if_installed(self._module)
        found: Reader = Reader(self._refuse, "mapping", {}) if there is None else getattr(there, self._name)
        return found

    def _refuse(self, _reading: Reading, _node: Node, _path: str) -> Any:
        package = self._module.rpartition(".")[0]
        raise FieldError(f"{package} is not installed, so this entry does nothing")


class ConfigKey(NamedTuple):
    """One key of the file. ``example``: a value as written. ``sentence``: what it decides.

    ``unset``: in words, what applies if the key is not written, unless it is the default in ``Reader.defaults``.
    """

    reader: Reader | ReaderOfExtra
    example: str
    sentence: str
    unset: str = ""


Keys = Mapping[str, ConfigKey]


def taken_as(words: str, schema: Mapping[str, Any], **more: Any) -> Callable[[Read], Reader]:
    """Declare a function as the Reader of values that are *words* and match *schema*."""
    return lambda read: Reader(read, words, schema, **more)


def is_unreadable(node: Node) -> bool:
    """Whether its YAML was wrong, which has been reported."""
    return isinstance(node, Scalar) and node.text.startswith(UNREADABLE)


def as_written(node: Node, text: str) -> bool:
    """Whether *text* stands in the file exactly like that: only then may a message quote it."""
    return isinstance(node, Scalar) and node.text == text


def shown(node: Node) -> str:
    """Return the file's text for a value in quotes, short and on one line."""
    return f'"{one_line(node.text, 60)}"' if isinstance(node, Scalar) else "this"
