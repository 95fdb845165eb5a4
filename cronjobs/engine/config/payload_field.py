"""Read the ``payload:`` of a schedule. A payload is a JSON object written in YAML."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from cronjobs.engine.config import schema_parts
from cronjobs.engine.config.fields import list_of
from cronjobs.engine.config.reader import FieldError, Reader, Reading, ReportedError, shown, taken_as
from cronjobs.engine.config.yaml_nodes import Mapping, Node, Scalar, Sequence
from cronjobs.engine.rules.payload import LIMIT_BYTES


@taken_as("mapping: the handler's keyword arguments, at most 256 KiB of JSON", schema_parts.or_null({"type": "object"}))
def payload(reading: Reading, node: Node, path: str) -> dict[str, Any]:
    """A JSON object. Its values have no expected type, so those that YAML 1.1 and 1.2 read differently are refused."""
    if isinstance(node, Scalar) and node.is_null:
        return {}
    if not isinstance(node, Mapping):
        raise FieldError("a payload is a mapping: {invoice_id: 42}")
    value: dict[str, Any] = _json(reading, node, path)
    size = len(json.dumps(value, ensure_ascii=False).encode())
    if size > LIMIT_BYTES:
        raise FieldError(
            f"a payload is at most {LIMIT_BYTES:,} bytes of JSON, and this one has {size:,}: store the data "
            "elsewhere and pass its key"
        )
    return value


def _json(reading: Reading, node: Node, path: str) -> Any:
    """Return *node* as a JSON value. The recursion is safe, because the tree of a file is at most 20 levels deep."""
    match node:
        case Scalar():
            return _json_scalar(reading, node)
        case Sequence():
            return list(list_of(_ANY_JSON)(reading, node, path))
    found, bad = reading.entries(node, path, lambda key, value, here: reading.read(_json, value, here))
    if bad:
        raise ReportedError
    return found


_ANY_JSON: Final = Reader(_json, "JSON", {})
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
# These forms are numbers in one YAML version and text in the other: octal (010, 0o10), binary, sexagesimal (1:30) and
# digits with underscores (1_000).
_DISPUTED: Final = re.compile(
    r"[-+]?(0[0-9_]+|0o[0-7]+|0b[01_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?|[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?)"
)


def _json_scalar(reading: Reading, node: Scalar) -> Any:
    if not node.plain or "${" in node.text:
        # Quoted values and values with ``${…}`` are text, so the content of a variable cannot change a value's type.
        return reading.text(node, secret=True)
    text = node.text
    if node.is_null:
        return None
    if text in _KEYWORDS:
        return _KEYWORDS[text]
    if boolean := _BOOLEANS_OF_YAML_1_1.get(text):
        raise FieldError(
            f'{text} means different things in different YAML versions: write {boolean}, or "{text}" for the word'
        )
    if _DISPUTED.fullmatch(text):
        raise FieldError(
            f'{text} means different things in different YAML versions: write "{text}" for the text, or a plain number'
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
