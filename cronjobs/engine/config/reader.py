"""The state while a file is read: its problems, the position of each value, and values from outside the file.

Messages quote the file as written, including ``${NAME}``. They never quote the value of a variable.
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
from cronjobs.text import nearest, one_line

# After this many problems, suggest nothing: suggestions take time, and nobody reads so many problems.
_ENOUGH_PROBLEMS: Final = 50
_MAX_PROBLEMS: Final = 200
NAMED_ENTRIES: Final = "write it as a mapping: each name, with its settings below it"


class FieldError(Exception):
    """The value cannot be used. ``column`` is the column of the mistake, or None if the mistake is where the value
    begins.
    """

    def __init__(self, message: str = "", column: int | None = None) -> None:
        super().__init__(message)
        self.column = column


class UnsetError(FieldError):
    """The value refers to a variable that is not set."""


class ReportedError(FieldError):
    """The value cannot be used, and the problem has already been reported."""


class Fields(NamedTuple):
    """The content of a mapping: the values that were read, and the keys that are bad.

    A known key that is missing also counts as bad if the file has an unknown key that is probably a misspelling of it.
    """

    values: dict[str, Any]
    bad: set[str]


@dataclass
class Reading:
    """Collects a file's problems and positions while we read it, and the values from outside the file."""

    file: str  # as the user wrote it
    folder: Path
    variables: Variables
    problems: list[Problem] = field(default_factory=list)
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)
    # True if the file names third-party extras, which may define kinds of findings that we do not know.
    extras: bool = False
    # Why the file gives no URL for the database. Only a command that needs a database reports it.
    database_unset: str = ""
    _came_in: set[str] = field(default_factory=set)

    def report(self, node: Node, path: str, message: str, column: int | None = None) -> None:
        # A path or message that contains a newline must not add lines to the output.
        place = Problem(self.file, node.line, column or node.column, one_line(path, 250), one_line(message, 1000))
        self.problems.append(place)

    def read(self, reader: Read, node: Node, path: str) -> Any:
        """Read *node* with *reader*. If the node is bad, add the problem and raise ReportedError."""
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
        """Read a mapping as the table *keys* defines it, and report its problems. An empty node reads as {}."""
        if is_unreadable(node):
            return Fields({}, set(keys))
        meant: set[str] = set()

        def entry(key: Scalar, value: Node, here: str) -> Any:
            if key.text in keys:
                return self.read(keys[key.text].reader, value, here)
            meant.update(self._unknown(key, here, list(keys)))
            raise ReportedError

        try:
            values, bad = self.entries(node, path, entry, f"write it as a mapping: {next(iter(keys))}: …")
        except FieldError as error:
            self.report(node, path, str(error))
            return Fields({}, set(keys))
        return Fields(values, bad | meant)

    def entries(
        self, node: Node, path: str, read: Callable[[Scalar, Node, str], Any], otherwise: str = NAMED_ENTRIES
    ) -> Fields:
        """Read each entry of a mapping with *read(key, value, path)*. An empty node has no entries.

        Reports repeated keys, and FieldErrors from *read*, at the position of the entry's key. Raises FieldError with
        the message *otherwise* if *node* is not a mapping.
        """
        if isinstance(node, Scalar) and node.is_null:
            return Fields({}, set())
        if not isinstance(node, YamlMapping):
            raise FieldError(otherwise)
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
        """Report an unknown key. Return the key that the user probably meant or, after many problems, all keys."""
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
        """Return the text of a scalar with its variables filled in.

        With *secret*, the values of the variables are masked everywhere.
        """
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
        """Return the problems in line order. Mask values from outside the file, which no message should quote."""
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
    """A kind of value: how to read such a value, and how the reference and the editor's schema describe it.

    ``words`` describes the kind of value for people. ``schema`` describes it in JSON Schema, as far as JSON Schema can.
    The reader of a mapping has either ``keys``, the table of the mapping's keys, or ``each``, the reader of its named
    entries. ``defaults`` is an object whose attributes are the defaults of the keys.
    """

    read: Read
    words: str
    schema: Mapping[str, Any]
    keys: Keys = field(default_factory=dict)
    each: Reader | None = None
    defaults: object = None
    secret: bool = False  # True if the values are never shown

    def __call__(self, reading: Reading, node: Node, path: str) -> Any:
        return self.read(reading, node, path)


class ReaderOfExtra:
    """Stands in for the Reader *name* in the *module* of an extra. The module is imported when the section is read."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __call__(self, reading: Reading, node: Node, path: str) -> Any:
        return self._reader(reading, node, path)

    # Return the attributes of the real Reader, such as words, schema and keys.
    def __getattr__(self, name: str) -> Any:
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
    """One key of the file. ``example`` is a value as written in YAML. ``sentence`` says what the key controls.

    ``unset`` says in words what applies if the file omits the key. If ``unset`` is empty, ``Reader.defaults`` contains
    the key's default.
    """

    reader: Reader | ReaderOfExtra
    example: str
    sentence: str
    unset: str = ""


Keys = Mapping[str, ConfigKey]


def taken_as(words: str, schema: Mapping[str, Any], **more: Any) -> Callable[[Read], Reader]:
    """Decorate a read function to make it a Reader. *words* and *schema* describe the values that it accepts."""
    return lambda read: Reader(read, words, schema, **more)


def is_unreadable(node: Node) -> bool:
    """Return whether the node's YAML could not be read. The problem of an unreadable node has already been reported."""
    return isinstance(node, Scalar) and node.text.startswith(UNREADABLE)


def as_written(node: Node, text: str) -> bool:
    """Return whether the file contains exactly *text* at *node*. A message must not quote text from a variable."""
    return isinstance(node, Scalar) and node.text == text


def shown(node: Node) -> str:
    """Return the value of *node* as written in the file, in quotes, shortened to one line."""
    return f'"{one_line(node.text, 60)}"' if isinstance(node, Scalar) else "this"
