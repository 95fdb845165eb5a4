"""The parts of JSON Schema that the configuration's readers declare, for editors that check a file as it is typed.

They accept everything that the readers accept, including ``${NAME}``, and refuse other values as far as a pattern can.
The readers treat every scalar as text, so where text is allowed, a value that looks like a number is allowed, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from cronjobs.engine.rules.database_url import SCHEMES

Schema = Mapping[str, Any]

# Allow ${NAME} and ${file:…} everywhere, because an editor does not know their values.
_VARIABLE: Final = r"\$\{"
_SCALAR: Final = ["string", "number", "boolean"]
TEXT: Final[Schema] = {"type": _SCALAR}


def _or_variable(pattern: str) -> str:
    return rf"^(?:{pattern})$|{_VARIABLE}"


def text(pattern: str) -> Schema:
    """Text that matches *pattern* as a whole. *pattern* must match the same texts in Python and in JavaScript."""
    return {"type": _SCALAR, "pattern": _or_variable(pattern)}


DOTTED: Final = text(r"[^\s:./]+(\.[^\s:./]+)*")
DURATION: Final[Schema] = {
    "type": "string",
    "pattern": _or_variable(
        r"\s*([0-9]+(\.[0-9]*)?|\.[0-9]+)(ms|[smhdw])(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ms|[smhdw]))*\s*"
    ),
}
SIZE: Final[Schema] = {
    "type": ["integer", "string"],
    "pattern": _or_variable(r"[0-9]{1,15}(\.[0-9]{1,3}(?=[KMGT]))?([KMGT]i?B)?"),
}
FLAG: Final[Schema] = {"type": ["boolean", "string"], "pattern": _or_variable("true|false")}

FLAG_OR_DURATION: Final[Schema] = {
    "type": ["boolean", "string"],
    "pattern": f"{FLAG['pattern']}|{DURATION['pattern']}",
}
DATABASE: Final[Schema] = {
    "type": "string",
    "pattern": rf"^({'|'.join(SCHEMES)})(\+\w+)?://|^django$|{_VARIABLE}",
}

WEB_ADDRESS: Final[Schema] = {"type": "string", "pattern": rf"^https?://\S+$|{_VARIABLE}"}


def number(kind: str, low: float, high: float) -> Schema:
    return {
        "type": [kind, "string"],
        "minimum": low,
        "maximum": high,
        "pattern": _or_variable(r"[-+]?[0-9]+(\.[0-9]*)?" if kind == "number" else "[-+]?[0-9]+"),
    }


def choice(words: Collection[str]) -> Schema:
    """One of *words*. Editors suggest these words."""
    return {"anyOf": [{"enum": [*words]}, {"type": "string", "pattern": _VARIABLE}]}


def cron(names: Collection[str]) -> Schema:
    field = r"[0-9A-Za-z*,/-]+"
    return {"type": "string", "pattern": _or_variable(rf"[ \t]*({'|'.join(names)}|({field}[ \t]+){{4}}{field})[ \t]*")}


def list_of(item: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": item, **more}


def one_or_list(item: Schema) -> Schema:
    return {"anyOf": [item, list_of(item, minItems=1)]}


def mapping_of(name: str, value: Schema) -> Schema:
    """A mapping whose keys match the pattern *name* and whose values match *value*. The mapping may be empty."""
    return {"type": ["object", "null"], "propertyNames": {"pattern": f"^(?:{name})$"}, "additionalProperties": value}


def or_null(schema: Schema) -> Schema:
    """Allow what *schema* allows, or no value."""
    kinds = schema["type"]
    return {**schema, "type": [*([kinds] if isinstance(kinds, str) else kinds), "null"]}


def exactly_one(*names: str) -> Schema:
    """Exactly one of the keys *names* must be written.

    This does not use "oneOf": if two keys were written, an editor would only report "matches multiple schemas", without
    a position.
    """
    alone = [
        {"if": {"required": [name]}, "then": {"properties": dict.fromkeys(names[at:], False)}}
        for at, name in enumerate(names[:-1], 1)
    ]
    return {"anyOf": [{"required": [name]} for name in names], "allOf": alone}


def needs(*names: str) -> Schema:
    return {"required": [*names]}
