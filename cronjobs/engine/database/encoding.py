"""The characters that a database's encoding can hold: all of Unicode (UTF8), or a part of it (LATIN1)."""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.engine.probe.sql_text import either

UTF8: Final = "UTF8"


def server_encoding(connection: Connection) -> str:
    """PostgreSQL's name for the database's encoding, on any connection an enqueue may get. SQLite's texts are UTF-8."""
    if connection.dialect.name != "postgresql":
        return UTF8
    raw = getattr(getattr(connection, "connection", None), "driver_connection", None)
    status = getattr(getattr(raw, "info", None), "parameter_status", None)  # of psycopg and of psycopg2
    found = status("server_encoding") if status is not None else None
    return str(found) if found else _asked(connection)


def _asked(connection: Connection) -> str:
    """Ask the server, if the driver does not pass on what the server reported."""
    remembered: dict[Any, Any] = getattr(connection, "info", {})
    if "server_encoding" not in remembered:
        remembered["server_encoding"] = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    return str(remembered["server_encoding"])


@lru_cache(maxsize=16)
def _codec(encoding: str) -> str | None:
    """Python's name of an encoding smaller than Unicode, or None if it holds all that we write, or is unknown."""
    if encoding == UTF8:
        return None
    name = re.sub(r"^WIN(?=\d)", "cp", encoding).replace("KOI8", "KOI8-").lower()
    try:
        return codecs.lookup(name).name
    except LookupError:
        return None


def unfit_character(encoding: str, text: str) -> str | None:
    """The first character of *text* that a database with that *encoding* cannot hold, or None."""
    codec = _codec(encoding)
    if codec is None:
        return None
    try:
        text.encode(codec)
    except UnicodeEncodeError as error:
        return text[error.start]
    return None


def fitted(connection: Connection, text: str) -> str:
    """*text* with escapes for what the database cannot hold: a handler's output is worth keeping even so."""
    if text.isascii():
        return text
    codec = _codec(server_encoding(connection))
    return text if codec is None else text.encode(codec, "backslashreplace").decode(codec)


def in_ascii(column: str) -> str:
    """A text *column* in a form that a client can read in any encoding: see ``from_ascii``."""
    return either(postgresql=f"encode(convert_to({column}, getdatabaseencoding()), 'hex')", sqlite=column)


def from_ascii(connection: Connection, told: str) -> str:
    if connection.dialect.name != "postgresql":
        return told
    return bytes.fromhex(told).decode(_codec(server_encoding(connection)) or "utf-8", "replace")
