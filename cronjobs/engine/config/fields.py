"""Readers for single values. A reader turns a node of the YAML tree into a checked value, or raises a FieldError.

A reader is called with the Reading, a node and its dotted path. The error's message says what to write instead. Every
field expects a certain type, so we never guess whether a word is a number or a boolean. Only payload values have no
expected type. A payload value that two YAML versions read differently is refused.
"""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from cronjobs.engine.config import schema_parts
from cronjobs.engine.config.reader import (
    FieldError,
    Fields,
    Reader,
    Reading,
    ReportedError,
    as_written,
    shown,
    taken_as,
)
from cronjobs.engine.config.yaml_nodes import Node, Scalar, Sequence
from cronjobs.engine.crontime import grammar
from cronjobs.engine.crontime.zone_names import zone_exists, zone_meant
from cronjobs.engine.rules.shell_words import list_for
from cronjobs.errors import CronError
from cronjobs.masking import long_enough
from cronjobs.model import KIND, KIND_RULE, duration, size
from cronjobs.reserved import EXEC_PREFIX
from cronjobs.text import one_line


def later(reading: Reading, node: Node, path: str) -> Node:
    """Return *node* without reading it. ``load`` reads it later, after the sections on which the node depends."""
    return node


# --- numbers, durations, words ----------------------------------------------------------------------------------------


def integer(low: int, high: int) -> Reader:
    @taken_as(f"whole number, {low}–{high}", schema_parts.number("integer", low, high))
    def read(reading: Reading, node: Node, path: str) -> int:
        text = reading.text(node)
        if not re.fullmatch(r"[-+]?[0-9]+", text):
            raise FieldError(f"{shown(node)} is not a whole number: write a number in {low}–{high}")
        if re.fullmatch(r"[-+]?0[0-9]+", text):
            raise FieldError(f"{shown(node)} is octal to some YAML readers: write it without the leading 0")
        if len(text) > 18 or not low <= int(text) <= high:
            raise FieldError(f"{shown(node)} is not in {low}–{high}")
        return int(text)

    return read


def number(low: float, high: float) -> Reader:
    @taken_as(f"number, {low:g}–{high:g}", schema_parts.number("number", low, high))
    def read(reading: Reading, node: Node, path: str) -> float:
        text = reading.text(node)
        if not re.fullmatch(r"[-+]?(0|[1-9][0-9]{0,15})(\.[0-9]{0,15})?", text):
            raise FieldError(f"{shown(node)} is not a number: write a number in {low:g}–{high:g}")
        if not low <= float(text) <= high:
            raise FieldError(f"{shown(node)} is not in {low:g}–{high:g}")
        return float(text)

    return read


def span(low: str, high: str, *, whole_seconds: bool = False) -> Reader:
    """A duration with a unit: "90" could mean seconds or minutes, and YAML 1.1 reads 1:30 as the number 90."""
    shortest, longest = duration(low), duration(high)

    @taken_as(f"duration, {low}–{high}", schema_parts.DURATION)
    def read(reading: Reading, node: Node, path: str) -> timedelta:
        text = reading.text(node)
        quoted = shown(node)
        if clock := re.fullmatch(r"([0-9]{1,4}):([0-9]{1,2})", text):
            meant = f"{clock[1]}m{clock[2]}s or {clock[1]}h{clock[2]}m" if as_written(node, text) else "1m30s or 1h30m"
            raise FieldError(f"{quoted} is ambiguous (YAML 1.1 reads it as a number): write {meant}")
        if re.fullmatch(r"[0-9.]+", text):
            raise FieldError(f"{quoted} has no unit: write it as 55s, 10m, 24h or 7d")
        try:
            value = duration(text)
        except ValueError:
            raise FieldError(f"{quoted} is not a duration: write it as 55s, 10m, 24h or 7d") from None
        if not shortest <= value <= longest:
            raise FieldError(f"{quoted} is not in {low}–{high}")
        if whole_seconds and value.microseconds:
            raise FieldError(f"{quoted} is not a whole number of seconds")
        return value

    return read


def memory(low: str, high: str) -> Reader:
    """A size in bytes, such as 512MiB."""
    least, most = size(low), size(high)

    @taken_as(f"size, {low}–{high}", schema_parts.SIZE)
    def read(reading: Reading, node: Node, path: str) -> int:
        text = reading.text(node)
        try:
            value = size(text)
        except ValueError:
            raise FieldError(f"{shown(node)} is not a size: write it as 512MiB, 2GiB or 500MB") from None
        if not least <= value <= most:
            unit = " bytes" if text.isdecimal() else ""
            raise FieldError(f"{shown(node)}{unit} is not in {low}–{high}")
        return value

    return read


@taken_as("true or false", schema_parts.FLAG)
def flag(reading: Reading, node: Node, path: str) -> bool:
    said = reading.text(node)
    if said not in ("true", "false"):
        raise FieldError(f"{shown(node)} is neither true nor false")
    return said == "true"


def choice(*words: str) -> Reader:
    @taken_as(f"one of {', '.join(words)}", schema_parts.choice(words))
    def read(reading: Reading, node: Node, path: str) -> str:
        text = reading.text(node)
        if text not in words:
            raise FieldError(f"{shown(node)} is not one of {', '.join(words)}")
        return text

    return read


def matching(pattern: str, rule: str, *, words: str, schema: schema_parts.Schema | None = None) -> Reader:
    """Text that matches *pattern* as a whole. *rule* describes in words what is expected.

    Pass *schema* if JSON Schema, which uses JavaScript's patterns, would read *pattern* differently from Python.
    """
    compiled = re.compile(pattern)

    @taken_as(words, schema or schema_parts.text(pattern))
    def read(reading: Reading, node: Node, path: str) -> str:
        text = reading.text(node)
        if not compiled.fullmatch(text):
            raise FieldError(f"{shown(node)} is not {rule}")
        return text

    return read


NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
NAME_RULE: Final = "a name: up to 100 of A–Z a–z 0–9 _ . : -"
name: Final = matching(NAME.pattern, NAME_RULE, words="name: 1–100 of A–Z a–z 0–9 _ . : -")
type_name: Final = matching(
    rf"(?!{EXEC_PREFIX}){NAME.pattern}",
    f'{NAME_RULE} that does not begin with "{EXEC_PREFIX}", which is reserved for "cronjobs exec"',
    words="name: 1–100 of A–Z a–z 0–9 _ . : -",
)
title: Final = matching(
    r"(?=\S)[^\x00-\x1f\x7f]{1,100}(?<=\S)",
    "a name of 1–100 characters without leading or trailing spaces",
    words="text, 1–100 characters",
    schema=schema_parts.text(r"\S(.{0,98}\S)?"),
)
user: Final = matching(
    r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,99}",
    "a user of this host, by name or number",
    words="user",
)
module: Final = matching(
    r"[^\W\d]\w*(\.[^\W\d]\w*)*",
    "a module: write it as in an import statement, billing.jobs for billing/jobs.py",
    words="module",
    schema=schema_parts.DOTTED,
)
function: Final = matching(
    r"[^\W\d]\w*(\.[^\W\d]\w*)+",
    "a function in a module: write it like django.setup",
    words="function: module.name",
    schema=schema_parts.DOTTED,
)
hook: Final = matching(
    r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*",
    "a function in a module: write it like billing.tracing:span",
    words="function: module:name",
    schema=schema_parts.text(r"[^\s:]+:[^\s:.]+"),
)
kind: Final = matching(
    KIND.pattern,
    KIND_RULE,
    words="kind of failure: ValueError, billing.CardDeclined, exit-3, SIGKILL, TimedOut",
    schema=schema_parts.text(r"[^\s:]+"),
)
database_schema: Final = matching(
    r"(?!pg_)[A-Za-z_][A-Za-z0-9_]{0,62}",
    "a PostgreSQL schema: up to 63 letters, digits and _, not beginning with pg_",
    words="PostgreSQL schema",
)
anything: Final = Reader(lambda reading, node, path: reading.text(node), "text", schema_parts.TEXT)


# --- paths, time zones, cron ------------------------------------------------------------------------------------------


@taken_as("path", schema_parts.text(r"[^~].*"))
def path_beside_file(reading: Reading, node: Node, path: str) -> Path:
    """A path, relative to the folder of the configuration file, because cron's working directory is not the user's."""
    text = reading.text(node)
    if text.startswith("~"):
        raise FieldError(f"{shown(node)} begins with ~, but HOME might not be set under cron: write the full path")
    return reading.folder / text


@taken_as("folder", path_beside_file.schema)
def folder(reading: Reading, node: Node, path: str) -> Path:
    found: Path = path_beside_file(reading, node, path)
    if not found.is_dir():
        raise FieldError(
            f"{shown(node)} is not a folder (a relative path starts at the folder of {Path(reading.file).name})"
        )
    return found


@taken_as("path, or none", schema_parts.or_null(path_beside_file.schema))
def log_file(reading: Reading, node: Node, path: str) -> Path | None:
    if isinstance(node, Scalar) and node.plain and (node.is_null or node.text == "none"):
        return None
    found: Path = path_beside_file(reading, node, path)
    return found


_OFFSET: Final = re.compile(r"(?:UTC|GMT|Z)?\s*([+-])([0-9]{1,2})(?::?([0-9]{2}))?", re.IGNORECASE)


@taken_as("time zone", schema_parts.text(r"[A-Za-z][\w+/-]*"))
def zone(reading: Reading, node: Node, path: str) -> str:
    text = reading.text(node)
    if not zone_exists(text):
        offset = _OFFSET.fullmatch(text) if as_written(node, text) else None
        meant = zone_meant(text) if reading.may_guess and as_written(node, text) and not offset else None
        hint = f"did you mean {meant}?" if meant else "write UTC or Europe/Berlin"
        if offset:
            # In the names Etc/GMT… the sign is reversed: Etc/GMT-1 is one hour ahead of UTC.
            fixed = f"Etc/GMT{'-' if offset[1] == '+' else '+'}{int(offset[2])}"
            always = f", or {fixed} for this offset all year" if zone_exists(fixed) and not offset[3] else ""
            hint = f"a fixed offset has no summer time: write a place, such as Europe/Berlin{always}"
        raise FieldError(f"{shown(node)} is not a time zone: {hint}")
    return text


@taken_as("cron expression, quoted: five fields, or @daily and the like", schema_parts.cron(grammar.NAMES))
def cron(reading: Reading, node: Node, path: str) -> str:
    text = reading.text(node)
    try:
        grammar.parse(text)
    except CronError as error:
        if not as_written(node, text):
            raise FieldError(f"the value of {shown(node)} is not a cron expression") from None
        inside = node.inside if isinstance(node, Scalar) else None
        column = inside + error.column - 1 if inside else None
        raise FieldError(str(error), column) from None
    return text


# --- lists and mappings -----------------------------------------------------------------------------------------------


def list_of(item: Reader, *, keep_good: bool = False) -> Reader:
    """A list, returned as a tuple. A bad item makes the list bad or, with *keep_good*, is left out."""
    written = schema_parts.list_of(item.schema)

    @taken_as(f"list, each: {item.words}", schema_parts.or_null(written) if keep_good else written)
    def read(reading: Reading, node: Node, path: str) -> tuple[Any, ...]:
        if isinstance(node, Scalar) and node.is_null and keep_good:
            return ()
        if not isinstance(node, Sequence):
            text = node.text if isinstance(node, Scalar) else ""
            example = f": [{one_line(text.removesuffix('.py') if item is module else text, 60)}]" if text else ""
            raise FieldError(f"write a list{example}")
        values, bad = [], False
        for index, entry in enumerate(node.items):
            try:
                values.append(reading.read(item, entry, f"{path}[{index}]"))
            except ReportedError:
                bad = True
        if bad and not keep_good:
            raise ReportedError
        return tuple(values)

    return read


def some_of(item: Reader, otherwise: str) -> Reader:
    """A list with at least one entry. *otherwise* says what to write instead of an empty list."""
    read_list = list_of(item)

    @taken_as(f"{read_list.words}; not empty", {**read_list.schema, "minItems": 1})
    def read(reading: Reading, node: Node, path: str) -> tuple[Any, ...]:
        values: tuple[Any, ...] = read_list(reading, node, path)
        if not values:
            raise FieldError(f"the list is empty: {otherwise}")
        return values

    return read


def named(words: str, item: Reader) -> Reader:
    """A mapping of named entries, returned as a dict. Bad entries are reported and left out."""

    @taken_as(words, {}, each=item)
    def read(reading: Reading, node: Node, path: str) -> dict[str, Any]:
        def entry(key: Scalar, value: Node, here: str) -> Any:
            if not NAME.fullmatch(key.text):
                raise FieldError(f"{shown(key)} is not {NAME_RULE}")
            return reading.read(item, value, here)

        return reading.entries(node, path, entry).values

    return read


def require(values: dict[str, Any], bad: set[str], *names: str) -> None:
    """Raise an error if the mapping has *bad* entries, or if its *values* lack one of *names*."""
    if bad:
        raise ReportedError
    if missing := [name for name in names if name not in values]:
        keys = "this key" if len(missing) == 1 else "these keys"
        raise FieldError(f"{keys} must be given here: {', '.join(missing)}")


def is_loopback(host: str) -> bool:
    """Whether *host*, a name or an address without brackets, is this machine itself."""
    import ipaddress  # import here, because few files need it

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@taken_as("text", schema_parts.TEXT)
def argument(reading: Reading, node: Node, path: str) -> str:
    return reading.text(node, secret=True)


@taken_as("list: program and arguments, no shell", schema_parts.list_of(schema_parts.TEXT, minItems=1))
def command(reading: Reading, node: Node, path: str) -> tuple[str, ...]:
    """A command's argument list. No shell interprets it."""
    if isinstance(node, Scalar) and not node.is_null:
        raise FieldError(f"a command is a list, without a shell: write {list_for(one_line(node.text, 200))}")
    arguments: tuple[str, ...] = list_of(argument)(reading, node, path)
    if not arguments or not arguments[0].strip():
        raise FieldError("the command is empty: write a list such as [pg_dump, app]")
    return arguments


@taken_as("text, or none", schema_parts.TEXT)
def standard_input(reading: Reading, node: Node, path: str) -> str:
    """Text for a command's standard input. "", or an unquoted none, means empty input."""
    if isinstance(node, Scalar) and node.plain and node.text == "none":
        return ""
    return reading.text(node, secret=True)


_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


variable: Final = matching(
    _VARIABLE.pattern, "the name of a variable: write letters, digits and _", words="name of a variable"
)


@taken_as("mapping: variable and value", schema_parts.mapping_of(_VARIABLE.pattern, schema_parts.TEXT))
def variables(reading: Reading, node: Node, path: str) -> tuple[tuple[str, str], ...]:
    """An ``env:`` mapping, without its bad variables. A value such as ``1`` or ``yes`` stays text."""
    return tuple(_variables(reading, node, path).values.items())


@taken_as("mapping: variable and value", schema_parts.mapping_of(_VARIABLE.pattern, schema_parts.TEXT))
def all_variables(reading: Reading, node: Node, path: str) -> tuple[tuple[str, str], ...]:
    """The ``env:`` of a command. A bad variable disables the command, because without the variable the command might
    succeed and yet not do its work.
    """
    found = _variables(reading, node, path)
    if found.bad:
        raise ReportedError
    return tuple(found.values.items())


def _variables(reading: Reading, node: Node, path: str) -> Fields:
    def entry(key: Scalar, value: Node, here: str) -> Any:
        if not _VARIABLE.fullmatch(key.text):
            raise FieldError(f"{shown(key)} is not the name of a variable: write letters, digits and _")
        return reading.read(argument, value, here)

    return reading.entries(node, path, entry, "write it as a mapping: {NAME: value}")


@taken_as("text", schema_parts.TEXT, secret=True)
def secret(reading: Reading, node: Node, path: str) -> str:
    """A secret value. The value is masked wherever text is shown, even if it is written in the file itself."""
    text = reading.text(node, secret=True)
    reading.secrets |= long_enough([text])
    return text


@taken_as("address: https://…", schema_parts.WEB_ADDRESS, secret=True)
def web_address(reading: Reading, node: Node, path: str) -> str:
    text: str = secret(reading, node, path)
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good or not text.isascii() or any(character <= " " or character == "\x7f" for character in text):
        # The message does not quote the value, because an address may contain a secret.
        raise FieldError("this is not a web address: write https://…")
    return text
