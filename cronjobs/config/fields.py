"""Readers of single values: a node of the YAML tree → a checked value, or a FieldError that says what to write.

A reader is called with the Reading, a node and its dotted path. A field knows what it expects, so a word is never
guessed to be a number or a boolean; only payloads have no expectation, and there what could be misread is refused.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

from cronjobs.config.reader import FieldError, Reader, Reading, ReportedError, as_written, nearest, shown
from cronjobs.config.yaml_nodes import Mapping, Node, Scalar, Sequence
from cronjobs.crontime import grammar
from cronjobs.errors import CronError
from cronjobs.model import KIND, KIND_RULE, duration, size
from cronjobs.rules.concurrency import Limit
from cronjobs.text import one_line

MAX_PAYLOAD_BYTES: Final = 256 * 1024

# --- numbers, durations, words ----------------------------------------------------------------------------------------


def integer(low: int, high: int) -> Reader:
    def read(reading: Reading, node: Node, path: str) -> int:
        text = reading.text(node)
        if not re.fullmatch(r"[-+]?[0-9]+", text):
            raise FieldError(f"{shown(node)} is not a whole number: write one in {low}–{high}")
        if re.fullmatch(r"[-+]?0[0-9]+", text):
            raise FieldError(f"{shown(node)} is octal to some readers of YAML: write it without the 0 in front")
        if len(text) > 18 or not low <= int(text) <= high:
            raise FieldError(f"{shown(node)} is not in {low}–{high}")
        return int(text)

    return read


def number(low: float, high: float) -> Reader:
    def read(reading: Reading, node: Node, path: str) -> float:
        text = reading.text(node)
        if not re.fullmatch(r"[-+]?(0|[1-9][0-9]{0,15})(\.[0-9]{0,15})?", text):
            raise FieldError(f"{shown(node)} is not a number: write one in {low:g}–{high:g}")
        if not low <= float(text) <= high:
            raise FieldError(f"{shown(node)} is not in {low:g}–{high:g}")
        return float(text)

    return read


def span(low: str, high: str, *, whole_seconds: bool = False) -> Reader:
    """A duration with its unit: "90" may be meant in minutes, and YAML 1.1 reads 1:30 as 90."""
    shortest, longest = duration(low), duration(high)

    def read(reading: Reading, node: Node, path: str) -> timedelta:
        text = reading.text(node)
        quoted = shown(node)
        if clock := re.fullmatch(r"([0-9]{1,4}):([0-9]{1,2})", text):
            meant = f"{clock[1]}m{clock[2]}s or {clock[1]}h{clock[2]}m" if as_written(node, text) else "1m30s or 1h30m"
            raise FieldError(f"{quoted} can be read in several ways, YAML 1.1 makes a number of it: write {meant}")
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
    """A size in bytes, as 512MiB."""
    least, most = size(low), size(high)

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


def flag(reading: Reading, node: Node, path: str) -> bool:
    said = reading.text(node)
    if said not in ("true", "false"):
        raise FieldError(f"{shown(node)} is neither true nor false")
    return said == "true"


def choice(*words: str) -> Reader:
    def read(reading: Reading, node: Node, path: str) -> str:
        text = reading.text(node)
        if text not in words:
            raise FieldError(f"{shown(node)} is not one of {', '.join(words)}")
        return text

    return read


def matching(pattern: str, rule: str) -> Reader:
    """Text that *pattern* matches as a whole; *rule* says in words what it asks for."""
    compiled = re.compile(pattern)

    def read(reading: Reading, node: Node, path: str) -> str:
        text = reading.text(node)
        if not compiled.fullmatch(text):
            raise FieldError(f"{shown(node)} is not {rule}")
        return text

    return read


NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
NAME_RULE: Final = "a name: up to 100 of A–Z a–z 0–9 _ . : -"
name: Final = matching(NAME.pattern, NAME_RULE)
title: Final = matching(r"(?=\S)[^\x00-\x1f\x7f]{1,100}(?<=\S)", "a name of 1–100 characters without spaces around it")
module: Final = matching(
    r"[^\W\d]\w*(\.[^\W\d]\w*)*", "a module: write it as in an import statement, billing.jobs for billing/jobs.py"
)
function: Final = matching(r"[^\W\d]\w*(\.[^\W\d]\w*)+", "a function in a module: write it like django.setup")
hook: Final = matching(
    r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", "a function in a module: write it like billing.tracing:span"
)
kind: Final = matching(KIND.pattern, KIND_RULE)
database_schema: Final = matching(
    r"(?!pg_)[A-Za-z_][A-Za-z0-9_]{0,62}", "a PostgreSQL schema: up to 63 letters, digits and _, not beginning with pg_"
)


# --- paths, time zones, cron ------------------------------------------------------------------------------------------


def path_beside_file(reading: Reading, node: Node, path: str) -> Path:
    """A path, resolved against the folder of the file: cron's working directory is not the user's."""
    text = reading.text(node)
    if text.startswith("~"):
        raise FieldError(f"{shown(node)} begins with ~, and cron may have no home: write the path out")
    return reading.folder / text


def folder(reading: Reading, node: Node, path: str) -> Path:
    found: Path = path_beside_file(reading, node, path)
    if not found.is_dir():
        raise FieldError(f"{shown(node)} is no folder beside {Path(reading.file).name}")
    return found


def log_file(reading: Reading, node: Node, path: str) -> Path | None:
    if isinstance(node, Scalar) and node.plain and (node.is_null or node.text == "none"):
        return None
    return path_beside_file(reading, node, path)


def zone(reading: Reading, node: Node, path: str) -> str:
    text = reading.text(node)
    if not zone_exists(text):
        meant = _zone_meant(text) if reading.may_guess and as_written(node, text) else None
        raise FieldError(
            f"{shown(node)} is not a time zone: "
            + (f"did you mean {meant}?" if meant else "write UTC or Europe/Berlin")
        )
    return text


@cache
def zone_exists(name: str) -> bool:
    """Whether *name* is a time zone that is the same on every host."""
    # On Debian these follow the host's own zone or count leap seconds.
    if name.startswith(("localtime", "posixrules", "posix/", "right/", "Factory")):
        return False
    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError):  # ".." or "/…", a folder such as "America", not there
        return False
    return True


@cache
def _zone_meant(word: str) -> str | None:
    from zoneinfo import available_timezones  # reads the whole tree of zone files

    known = sorted(zone for zone in available_timezones() if zone_exists(zone))
    if any(zone.startswith(f"{word}/") for zone in known):
        return None  # a whole continent
    cities = {zone.rpartition("/")[2]: zone for zone in known if "/" in zone}
    in_known = nearest(word, known)
    city = nearest(word.rpartition("/")[2].replace(" ", "_"), cities)
    return in_known or (cities[city] if city else None)


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
    """A list as a tuple. *keep_good*: a bad item is left out; otherwise it makes the whole list bad."""

    def read(reading: Reading, node: Node, path: str) -> tuple[Any, ...]:
        if isinstance(node, Scalar) and node.is_null and keep_good:
            return ()
        if not isinstance(node, Sequence):
            example = f": [{one_line(node.text, 60)}]" if isinstance(node, Scalar) and node.text else ""
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
    """A list with at least one entry; *otherwise* says what to write instead of none."""
    read_list = list_of(item)

    def read(reading: Reading, node: Node, path: str) -> tuple[Any, ...]:
        values: tuple[Any, ...] = read_list(reading, node, path)
        if not values:
            raise FieldError(f"the list is empty: {otherwise}")
        return values

    return read


def argument(reading: Reading, node: Node, path: str) -> str:
    return reading.text(node, secret=True)


def command(reading: Reading, node: Node, path: str) -> tuple[str, ...]:
    """An argument list; no shell ever sees it."""
    if isinstance(node, Scalar) and not node.is_null:
        words = ", ".join(one_line(node.text, 80).split())
        raise FieldError(f"a command is a list, without a shell: write [{words}]")
    arguments: tuple[str, ...] = list_of(argument)(reading, node, path)
    if not arguments or not arguments[0].strip():
        raise FieldError("the command is empty: write a list such as [pg_dump, app]")
    return arguments


def standard_input(reading: Reading, node: Node, path: str) -> str:
    """What a command reads from standard input; "", or none without quotes: nothing."""
    if isinstance(node, Scalar) and node.plain and node.text == "none":
        return ""
    return reading.text(node, secret=True)


_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


variable: Final = matching(_VARIABLE.pattern, "the name of a variable: write letters, digits and _")


def variables(reading: Reading, node: Node, path: str) -> tuple[tuple[str, str], ...]:
    """An ``env:`` mapping; a bad variable is left out. A number or ``yes`` is the text that is written."""
    if isinstance(node, Scalar) and node.is_null:
        return ()
    if not isinstance(node, Mapping):
        raise FieldError("write it as a mapping: {NAME: value}")

    def entry(key: Scalar, value: Node, here: str) -> Any:
        if not _VARIABLE.fullmatch(key.text):
            raise FieldError(f"{shown(key)} is not the name of a variable: write letters, digits and _")
        return reading.read(argument, value, here)

    return tuple(reading.entries(node, path, entry).values.items())


# --- limits -----------------------------------------------------------------------------------------------------------

UNREADABLE_LIMITS: Final = (Limit("", most=0),)  # of every job with a concurrency_key none begins
_PREFIX: Final = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


def limits(reading: Reading, node: Node, path: str) -> tuple[Limit, ...]:
    """Limits by the beginning of a concurrency_key. A bad one lets none of its jobs begin, else too many would."""
    if isinstance(node, Scalar) and node.is_null:
        return ()
    if not isinstance(node, Mapping):
        raise FieldError('write it as a mapping: {"smtp:": 4}, the beginning of a concurrency_key and how many at once')

    def entry(key: Scalar, value: Node, here: str) -> Limit:
        if not _PREFIX.fullmatch(key.text):
            raise FieldError(f"{shown(key)} is not the beginning of a concurrency_key: write 1–200 characters")
        return Limit(key.text, **reading.read(_limit, value, here))

    found = reading.entries(node, path, entry).values
    return tuple(found.get(prefix) or Limit(prefix, most=0) for prefix in node.entries)


def _limit(reading: Reading, node: Node, path: str) -> dict[str, int]:
    """``4``, all together, or ``{most: 4, each: 1}``."""
    if not isinstance(node, Mapping):
        return {"most": _at_once(reading, node, path)}
    values, bad = reading.fields(node, path, {"most": _at_once, "each": _at_once})
    if bad:
        raise ReportedError
    if not values:
        raise FieldError("a limit says most: (of all together), each: (of one key), or both")
    return values


def _at_once(reading: Reading, node: Node, path: str) -> int:
    if reading.text(node) == "0":
        raise FieldError('0 would let none begin: to stop jobs for a while, "cronjobs pause --queue NAME"')
    count: int = integer(1, 10_000)(reading, node, path)
    return count


# --- payloads ---------------------------------------------------------------------------------------------------------


def payload(reading: Reading, node: Node, path: str) -> dict[str, Any]:
    """A JSON object. Only here words have no expected type, so what YAML 1.1 and 1.2 read differently is refused."""
    import json

    if isinstance(node, Scalar) and node.is_null:
        return {}
    if not isinstance(node, Mapping):
        raise FieldError("a payload is a mapping: {invoice_id: 42}")
    value: dict[str, Any] = _json(reading, node, path)
    size = len(json.dumps(value, ensure_ascii=False).encode())
    if size > MAX_PAYLOAD_BYTES:
        raise FieldError(
            f"a payload is at most 256 KiB of JSON, this one {size // 1024} KiB: store it elsewhere and pass its key"
        )
    return value


def _json(reading: Reading, node: Node, path: str) -> Any:
    """Recursion is safe: the tree is at most 20 levels deep."""
    match node:
        case Scalar():
            return _json_scalar(reading, node)
        case Sequence():
            return list(list_of(_json)(reading, node, path))
    found, bad = reading.entries(node, path, lambda key, value, here: reading.read(_json, value, here))
    if bad:
        raise ReportedError
    return found


_KEYWORDS: Final = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_BOOLEANS_OF_YAML_1_1: Final = {
    **dict.fromkeys(("yes", "Yes", "YES", "on", "On", "ON"), "true"),
    **dict.fromkeys(("no", "No", "NO", "off", "Off", "OFF"), "false"),
}
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
# Octal (010, 0o10), binary, sexagesimal (1:30), thousands (1_000): numbers to one version of YAML, text to the other.
_DISPUTED: Final = re.compile(
    r"[-+]?(0[0-9_]+|0o[0-7]+|0b[01_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?|[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?)"
)


def _json_scalar(reading: Reading, node: Scalar) -> Any:
    if not node.plain or "${" in node.text:
        return reading.text(node, secret=True)  # never a number: what a variable holds must not change a type
    text = node.text
    if node.is_null:
        return None
    if text in _KEYWORDS:
        return _KEYWORDS[text]
    if boolean := _BOOLEANS_OF_YAML_1_1.get(text):
        raise FieldError(f'{text} is read differently by versions of YAML: write {boolean}, or "{text}" for the word')
    if _DISPUTED.fullmatch(text):
        raise FieldError(
            f'{text} is read differently by versions of YAML: write "{text}" for the text, or a plain number'
        )
    if re.fullmatch(r"0x[0-9a-fA-F]{1,15}", text):
        return int(text, 16)
    if _INTEGER.fullmatch(text):
        if len(text) > 19 or not -(2**63) <= int(text) < 2**63:
            raise FieldError(f"{shown(node)} is too large for a number: write it as text, in quotes")
        return int(text)
    if _FLOAT.fullmatch(text):
        if abs(value := float(text)) == float("inf"):
            raise FieldError(f"{shown(node)} is too large for a number: write it as text, in quotes")
        return value
    if text.lower().lstrip("+-") in {".inf", ".nan"}:
        raise FieldError(f"{text} is not JSON: write a number, or quote it")
    return text
