"""Parse YAML text to a tree of values with their lines and columns. Refuse YAML's ambiguous features.

This module reads only the structure. Every scalar stays text. Later, the reader of the field converts the text to the
expected type. So ``on:``, ``010``, ``1:30`` and ``yes`` never silently turn into something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import yaml

from cronjobs.engine.crontime.grammar import NAMES

MAX_BYTES: Final = 1024 * 1024
MAX_DEPTH: Final = 20
# Marks a scalar that could not be read, and whose flaw has been reported. The mark replaces one character of the text,
# so columns stay correct.
UNREADABLE: Final = "\ue000"
_MAX_REPAIRS: Final = 50
# All repairs of one file together may parse at most this many characters again.
_MAX_READ_AGAIN: Final = 5_000_000

# Use libyaml if PyYAML was built with it, because libyaml is ten times as fast, and a tick reads its file every minute.
_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Flaw:
    """The reason why a text cannot be parsed. ``line`` and ``column`` count from 1. 0 means the whole text."""

    line: int
    column: int
    message: str


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value as written, without its quotes.

    ``plain`` is True if the value had no quotes. ``inside`` is the column of the value's first character, or None if
    the value was folded or escaped.
    """

    text: str
    line: int
    column: int
    plain: bool = True
    inside: int | None = None

    @property
    def is_null(self) -> bool:
        return self.plain and self.text in {"", "~", "null", "Null", "NULL"}


@dataclass(frozen=True, slots=True)
class Sequence:
    line: int
    column: int
    items: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping in the order of the file. ``duplicates`` has repeated keys, each with the line of its first use."""

    line: int
    column: int
    entries: dict[str, tuple[Scalar, Node]] = field(default_factory=dict)
    duplicates: list[tuple[Scalar, int]] = field(default_factory=list)


Node = Scalar | Sequence | Mapping


def with_defaults(node: Node, defaults: Mapping | None) -> Node:
    """Return *node* with those entries of *defaults* that it lacks, or unchanged if it is not a mapping."""
    if defaults is None or not isinstance(node, Mapping):
        return node
    return replace(node, entries=defaults.entries | node.entries)


def decode(data: bytes) -> str | Flaw:
    """Return a file's text without its byte order mark, or a Flaw: too long, not UTF-8, or control characters."""
    if len(data) > MAX_BYTES:
        return Flaw(0, 0, "the file is larger than 1 MiB")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Flaw(0, 0, "the file is UTF-16: save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The decoder's offsets do not count the byte order mark, so remove the mark here, too.
        before = data.removeprefix(b"\xef\xbb\xbf")[: error.start].decode("utf-8", errors="replace")
        return Flaw(*_place(before), "this is not UTF-8: save the file as UTF-8")
    # Most files have only characters that Python calls printable, so skip the pattern, which takes 5 ms to compile.
    in_one_line = text.replace("\n", "").replace("\t", "").replace("\r", "")
    if not in_one_line.isprintable() and (odd := _CONTROL.search(text)):
        return Flaw(*_place(text[: odd.start()]), f"the character U+{ord(odd[0]):04X} is not allowed: delete it")
    return text


def parse(text: str) -> tuple[Node | None, list[Flaw]]:
    """Return the tree of *text* and all flaws.

    If there are flaws, use the tree only to find more problems to report. If no tree could be built, the tree is None.

    A YAML parser cannot continue after an unquoted cron expression. So we mark each such expression as unreadable, and
    parse the text again. In this way, a user who forgot ten pairs of quotes sees all ten mistakes at once.
    """
    repairs: list[Flaw] = []
    while True:
        # Use events and not yaml.compose(), which recurses in C, so that 200 kB of "[" would crash the process.
        tree = _Tree(yaml.parse(text, Loader=_Loader))
        try:
            return tree.read(), repairs + tree.flaws
        except _TooDeep:
            return None, repairs + tree.flaws
        except yaml.YAMLError as error:
            flaw, start = _explain(error, text)
        # PyYAML without libyaml raises these errors for escapes such as "\UFFFFFFFF".
        except (ValueError, OverflowError):
            flaw, start = Flaw(0, 0, "the file contains an invalid character escape"), None
        repairs.append(flaw)
        if start is None or len(repairs) > _MAX_REPAIRS or len(repairs) * len(text) > _MAX_READ_AGAIN:
            return None, repairs + tree.flaws
        text = text[:start] + UNREADABLE + text[start + 1 :]


# All characters that YAML 1.2 does not call printable. We refuse them before parsing.
_CONTROL: Final = yaml.reader.Reader.NON_PRINTABLE
# Neither the text itself nor an escape sequence may give one of these characters.
_NO_CHARACTER: Final = re.compile("[\x00\ud800-\udfff]")
_TAGS: Final = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq"))
_DEEP: Final = f"values are nested deeper than {MAX_DEPTH} levels"


class _TooDeep(Exception):
    """The tree is nested too deeply. The reported flaws say where."""


class _Tree:
    """Builds nodes from YAML events. MAX_DEPTH limits the recursion."""

    def __init__(self, events: Iterator[Any]) -> None:
        self.flaws: list[Flaw] = []
        self._events = events

    def read(self) -> Node | None:
        root = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    self._flaw(event, "a second document begins here: put it into a file of its own")
                    return None
                root = self._node(next(self._events))
        return root

    def _flaw(self, event: Any, message: str) -> None:
        self.flaws.append(Flaw(*_start(event), message))

    def _node(self, event: Any, depth: int = 0, *, is_key: bool = False) -> Node:
        if event.anchor is not None:
            what = "alias (*)" if isinstance(event, yaml.AliasEvent) else "anchor (&)"
            self._flaw(event, f"an {what} is not allowed: write the value out, or quote it")
        if isinstance(event, yaml.AliasEvent):
            return Scalar(UNREADABLE, *_start(event))
        if event.tag not in (None, "!", *_TAGS):
            self._flaw(event, f"the tag {event.tag.replace('tag:yaml.org,2002:', '!!')} is not allowed: delete it")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, is_key)
        if is_key:
            self._flaw(event, "a key is plain text: quote it if it begins with [ or {")
        if depth == MAX_DEPTH:
            self._flaw(event, _DEEP)
            raise _TooDeep
        if isinstance(event, yaml.SequenceStartEvent):
            sequence = Sequence(*_start(event))
            while not isinstance(item := next(self._events), yaml.SequenceEndEvent):
                sequence.items.append(self._node(item, depth + 1))
            return sequence
        mapping = Mapping(*_start(event))
        while not isinstance(item := next(self._events), yaml.MappingEndEvent):
            key = self._node(item, depth + 1, is_key=True)
            if not isinstance(key, Scalar):
                key = Scalar("", key.line, key.column)
            value = self._node(next(self._events), depth + 1)
            if first := mapping.entries.get(key.text):
                mapping.duplicates.append((key, first[0].line))
            else:
                mapping.entries[key.text] = (key, value)
        return mapping

    def _scalar(self, event: Any, is_key: bool) -> Scalar:
        if _NO_CHARACTER.search(event.value):
            self._flaw(event, "an escape sequence in this value does not stand for a valid character: delete it")
        line, column = _start(event)
        plain = not event.style and event.tag not in ("!", "tag:yaml.org,2002:str")
        if is_key and plain and event.value == "<<":
            self._flaw(event, "merge keys (<<) are not allowed: write the keys out")
        quotes = 1 if event.style else 0
        one_line = event.start_mark.line == event.end_mark.line
        verbatim = one_line and event.end_mark.column - event.start_mark.column == len(event.value) + 2 * quotes
        return Scalar(event.value, line, column, plain, column + quotes if verbatim else None)


def _start(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _place(before: str) -> tuple[int, int]:
    """Return the line and the column, both counted from 1, of the position after the text *before*."""
    lines = before.split("\n")
    return len(lines), len(lines[-1]) + 1


# Matches an unquoted cron expression after "key: " or "- ". That is five fields of which the first begins with "*", or
# a name such as @daily. All repetitions in the pattern are limited, because a line may be a megabyte long.
_EXPRESSION: Final = re.compile(
    r"(?:^|[\s:,\[{-])"
    rf"(?P<cron>\*[\w*/,-]{{0,60}}(?:[ \t]{{1,20}}[\w*/,-]{{1,60}}){{4}}|(?:{'|'.join(NAMES)}))"
    r"(?:\s*$|[\s,\]}])"
)


def _explain(error: yaml.YAMLError, text: str) -> tuple[Flaw, int | None]:
    """Return the flaw to report for *error*, and where in *text* to put a mark, or None if the parser must stop."""
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or "this is not YAML")
    context = str(getattr(error, "context", None) or "")
    if mark is None:
        return Flaw(0, 0, f"YAML: {problem}"), None
    starts = [0, *(end.end() for end in _LINE_END.finditer(text)), len(text), len(text)]
    start = starts[min(mark.line, len(starts) - 1)]
    line = _LINE_END.split(text[start : starts[min(mark.line + 1, len(starts) - 1)]])[0]
    for cron in _expressions(line[:2000]):
        if cron.start("cron") <= mark.column <= cron.end("cron"):
            written = cron["cron"].rstrip(",")
            flaw = Flaw(mark.line + 1, cron.start("cron") + 1, f'a cron expression must be quoted: cron: "{written}"')
            return flaw, start + cron.start("cron")
    at, character = mark.column, line[mark.column : mark.column + 1]
    if "an alias" in context and at and line[at - 1] == "*":
        at, character = at - 1, "*"
    return Flaw(mark.line + 1, at + 1, _sentence(problem, context, character, line, error)), None


_LINE_END: Final = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # the line ends of libyaml


def _expressions(line: str) -> Iterator[re.Match[str]]:
    position = 0
    while found := _EXPRESSION.search(line, position):
        yield found
        position = found.end("cron")


def _sentence(problem: str, context: str, character: str, line: str, error: yaml.YAMLError) -> str:
    if character == "\t" or "tab character" in problem:
        return "a tab is not allowed here: indent with spaces"
    if character and character in "*@`%" and ("cannot start any token" in problem or "an alias" in context):
        return f'a value that begins with {character} must be quoted: "{character}…"'
    if "flow" in context and "${" in line:
        return 'inside {…} and […] a variable must be quoted: "${NAME}"'
    if "mapping values are not allowed" in problem:
        return 'a second ": " in this line, or wrong indentation: quote the value, or line the keys up'
    # libyaml has its own limit on nesting, which it may reach before it returns the first event.
    if "nesting depth" in problem:
        return _DEEP
    where = getattr(error, "context_mark", None)
    begun = f" {context} that begins in line {where.line + 1}" if where is not None and context else ""
    return f"YAML:{begun + ':' if begun else ''} {problem}"
