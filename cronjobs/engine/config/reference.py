"""Make the reference of all settings from the tables of ``keys``: rows for people, and JSON Schema for editors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final, NamedTuple

import yaml

from cronjobs.engine.config import keys
from cronjobs.engine.config.reader import ConfigKey, Reader, ReaderOfExtra
from cronjobs.model import duration_text

# The placeholder for the name of an entry in a path.
NAME: Final = "NAME"


class Row(NamedTuple):
    """One key of a section. ``default`` says what applies if the file omits the key: a value in YAML, or words."""

    name: str
    key: ConfigKey
    default: str


class Section(NamedTuple):
    """The keys of one mapping, and the paths at which the mapping occurs in the file.

    The path "" is the file itself, and "schedules.NAME" is any entry of schedules.
    """

    paths: tuple[str, ...]
    rows: tuple[Row, ...]


def sections() -> list[Section]:
    """Return every key once, in the order of the tables. A mapping that occurs in several places has several paths."""
    paths: dict[int, list[str]] = {}
    readers: dict[int, Reader | ReaderOfExtra] = {}
    for path, reader in _mappings("", keys.file):
        paths.setdefault(id(reader.keys), []).append(path)
        readers.setdefault(id(reader.keys), reader)
    return [Section(tuple(found), tuple(_rows(readers[table]))) for table, found in paths.items()]


def _mappings(path: str, reader: Reader | ReaderOfExtra) -> Iterator[tuple[str, Reader | ReaderOfExtra]]:
    if reader.keys:
        yield path, reader
    for name, key in reader.keys.items():
        yield from _mappings(f"{path}.{name}" if path else name, key.reader)
    if reader.each is not None:
        yield from _mappings(f"{path}.{NAME}", reader.each)


def _rows(reader: Reader | ReaderOfExtra) -> Iterator[Row]:
    for name, key in reader.keys.items():
        yield Row(name, key, key.unset or as_written(default_of(reader, name)))


def default_of(reader: Reader | ReaderOfExtra, name: str) -> Any:
    """Return the default of the key *name*, as a value of Settings. Call this only for a key without ``unset``."""
    return getattr(reader.defaults, name)


def as_written(value: Any) -> str:
    """Return a setting as it would be written in the file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        return duration_text(value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


# --- JSON Schema ------------------------------------------------------------------------------------------------------


# SchemaStore would serve the schema at this address if the schema were published there.
SCHEMA_ID: Final = "https://json.schemastore.org/cronjobs.json"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of cronjobs.yaml: draft-07, as SchemaStore requires.

    The schema accepts every file that has no problems. It refuses the kinds of mistake that an editor can detect:
    unknown keys, values that are not among the allowed words, durations without a unit, a schedule without a time.
    ``cronjobs check`` also checks the ranges of durations, and everything that depends on the host (folders, time
    zones, modules).
    """
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": SCHEMA_ID,
        "title": "cronjobs.yaml",
        "description": "What runs, and when: the configuration of cronjobs.",
        **_schema(keys.file),
    }


def _schema(reader: Reader | ReaderOfExtra) -> dict[str, Any]:
    found = dict(reader.schema)
    if not reader.keys and reader.each is None:
        return found
    kinds = found.get("type", [])
    found["type"] = [*([kinds] if isinstance(kinds, str) else kinds), "object", "null"]
    if reader.keys:
        found["properties"] = {name: _property(reader, name, key) for name, key in reader.keys.items()}
    found["additionalProperties"] = _schema(reader.each) if reader.each is not None else False
    return found


def _property(reader: Reader | ReaderOfExtra, name: str, key: ConfigKey) -> dict[str, Any]:
    default = key.unset or as_written(default_of(reader, name))
    words = key.reader.words
    found = _schema(key.reader) | {
        "description": f"{key.sentence} {words[0].upper()}{words[1:]}. Default: {default}.",
        "examples": [yaml.safe_load(key.example)],
    }
    if not key.unset:
        found["default"] = yaml.safe_load(default)
    # For a wrong value, editors show this message instead of the pattern or the keyword of JSON Schema.
    if ("pattern" in found or found.get("type") == "array") and not key.reader.keys:
        found["errorMessage"] = f"Expected: {words}; for example {key.example}"
    return found
