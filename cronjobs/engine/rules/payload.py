"""The rules for payloads, meta and results: small, plain JSON that every database and language can read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import date, time
from typing import Any, Final

from cronjobs.errors import PayloadError
from cronjobs.text import BrokenText, decoded, error_text, one_line

LIMIT_BYTES: Final = 256 * 1024
LIMIT_DEPTH: Final = 32
DEEPEST_READ: Final = 4 * LIMIT_DEPTH
# A number may have at most this many digits before its decimal point, and as many after it. Other JSON readers do not
# accept even half as many digits.
LIMIT_DIGITS: Final = 400
LARGEST: Final = 10**LIMIT_DIGITS
META_LIMIT_BYTES: Final = 8 * 1024
# Keep one encoder, because json.dumps would make a new one for each call.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class BadJson:
    """Stands in for an unreadable JSON value from plain SQL, so that one such row never stops other jobs."""

    reason: str
    what: str = "payload"


NOT_UTF8: Final = "not UTF-8"

# Escapes and blanks can make the text of a 256 KiB payload four times as long.
MOST_FETCHED: Final = 1024 * 1024
# The database returns this instead of a value that is larger than MOST_FETCHED.
TOO_LARGE: Final = "cronjobs too large"
# The database returns this instead of a value in which a number has too many digits.
ODD_NUMBER: Final = "cronjobs odd number"


def read_json(value: str | bytes) -> Any:
    """Parse JSON that anyone may have written. Returns ``BadJson`` if it is unreadable."""
    # Most ``meta`` values and many payloads are {}, so answer these without parsing.
    if value in ("{}", b"{}"):
        return {}
    text = value if isinstance(value, str) else decoded(value)
    if isinstance(text, BrokenText):
        return BadJson(NOT_UTF8)
    if text == f'"{TOO_LARGE}"':
        return BadJson(f"larger than {MOST_FETCHED:,} bytes")
    if text == f'"{ODD_NUMBER}"':
        return BadJson(
            f"unreadable: it has a number beyond ±1e{LIMIT_DIGITS}, or one with over {LIMIT_DIGITS} decimal places"
        )
    try:
        value = _DECODER.decode(text)
        return BadJson("nested too deeply") if too_deep(text, value) else value
    except RecursionError:
        return BadJson("nested too deeply")
    except MemoryError:
        return BadJson("too large for this host's memory")
    except ValueError as error:
        return BadJson(f"not JSON: {error}")


def too_deep(text: str, value: Any) -> bool:
    """Return whether *value*, parsed from *text*, is nested too deeply for code that recurses once per level.

    The JSON parser may accept such a value: since Python 3.12, it may recurse deeper than Python functions.
    """
    if text.count("[") + text.count("{") <= DEEPEST_READ:
        return False
    level = [value]
    for _ in range(DEEPEST_READ):
        level = [
            item
            for outer in level
            if isinstance(outer, dict | list)
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def payload_fault(payload: Any) -> str | None:
    """Return what is wrong with *payload*, or None. Used before a job is written, and for rows that plain SQL wrote."""
    if isinstance(payload, BadJson):
        return f"{payload.what} is {payload.reason}"
    if not isinstance(payload, dict):
        return f"payload must be a JSON object, not {_kind(payload)}"
    fault = _fault(payload, "payload", 1)
    if fault:
        return fault
    size = len(_ENCODER.encode(payload).encode())
    if size > LIMIT_BYTES:
        return (
            f"payload has {size:,} bytes, but the limit is {LIMIT_BYTES:,}: store the data elsewhere and pass a "
            "reference"
        )
    return None


def check_payload(payload: Any) -> dict[str, Any]:
    """Return *payload* if it can be stored. Raises PayloadError, which names the faulty part."""
    fault = payload_fault(payload)
    if fault:
        raise PayloadError(fault)
    return dict(payload)


def check_meta(meta: Any) -> dict[str, str]:
    """Return *meta* if it is a small mapping of strings. Raises PayloadError."""
    if not isinstance(meta, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in meta.items()):
        raise PayloadError("meta must map strings to strings")
    fault = _fault(meta, "meta", 1)
    if fault:
        raise PayloadError(fault)
    if len(json.dumps(meta)) > META_LIMIT_BYTES:
        raise PayloadError(f"meta has more than {META_LIMIT_BYTES:,} bytes: it is meant for trace ids and the like")
    return dict(meta)


def result_json(result: Any) -> tuple[str | None, str | None]:
    """Return a handler's result as JSON text, or None and why it was not kept. Never raises: the work is done."""
    if result is None:
        return None, None
    try:
        fault = _fault(result, "result", 1)
        written = "" if fault else _ENCODER.encode(result)
    # Catch everything, because the handler may return its own subclass of dict, which may do anything when it is read.
    except BaseException as error:
        fault = f"reading it raised {error_text(error)}"
    if fault:
        return None, f"the result was not kept: {fault}"
    if len(written.encode()) > LIMIT_BYTES:
        return None, f"the result was not kept: it is larger than {LIMIT_BYTES:,} bytes"
    return written, None


def text_fault(value: str) -> str | None:
    """Return what is wrong with a text, or None. PostgreSQL can store neither a NUL nor half of a surrogate pair."""
    if "\x00" in value:
        return "contains a NUL character"
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        return "contains half of a surrogate pair"
    return None


class _Room:
    """How many more characters and values one check may visit.

    A list that occurs 1,000 times in a value counts 1,000 times.
    """

    def __init__(self) -> None:
        self.left = 8 * LIMIT_BYTES

    def take(self, count: int) -> bool:
        self.left -= count
        return self.left >= 0


def _fault(value: Any, where: str, depth: int, room: _Room | None = None) -> str | None:
    room = room or _Room()
    if depth > LIMIT_DEPTH:
        return f"{where} is nested deeper than {LIMIT_DEPTH} levels"
    if not room.take(1 + len(value) if isinstance(value, str) else 1):
        return f"{where.partition('.')[0].partition('[')[0]} has more than {LIMIT_BYTES:,} bytes"
    match value:
        case None | bool():
            return None
        case str():
            fault = text_fault(value)
            return f"{where} {fault}" if fault else None
        case int():
            return f"{where} is a number beyond ±1e{LIMIT_DIGITS}: pass it as text" if abs(value) > LARGEST else None
        case float():
            return None if math.isfinite(value) else f"{where} is {value}, which is not JSON"
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    return f"{where} has the key {key!r}, which is not a string"
                fault = text_fault(key)
                if fault:
                    return f"a key of {where} {fault}"
                room.take(len(key))
                fault = _fault(item, f"{where}.{one_line(key, 60)}", depth + 1, room)
                if fault:
                    return fault
            return None
        case list() | tuple():
            return next(
                (fault for i, item in enumerate(value) if (fault := _fault(item, f"{where}[{i}]", depth + 1, room))),
                None,
            )
        case _:
            return f"{where} is a {type(value).__name__}, which is not JSON: {_instead(value)}"


def _instead(value: Any) -> str:
    if isinstance(value, date | time):  # a datetime is a date
        return "write value.isoformat()"
    if isinstance(value, set | frozenset):
        return "write a list"
    return "write it as text, or with numbers, lists and dicts"


def _kind(value: Any) -> str:
    names = {
        type(None): "null",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
    }
    return names.get(type(value), f"a {type(value).__name__}")
