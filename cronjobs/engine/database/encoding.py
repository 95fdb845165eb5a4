"""Find out which characters a database can store.

A database's encoding covers all of Unicode (UTF8) or only a part of it (such as LATIN1).
"""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.engine.probe.sql_text import either

UTF8: Final = "UTF8"


def server_encoding(connection: Connection) -> str:
    """Return PostgreSQL's name for the database's encoding, for any connection that can enqueue.

    SQLite stores UTF-8.
    """
    if connection.dialect.name != "postgresql":
        return UTF8
    raw = getattr(getattr(connection, "connection", None), "driver_connection", None)
    # The connections of psycopg and psycopg2 have this attribute.
    status = getattr(getattr(raw, "info", None), "parameter_status", None)
    found = status("server_encoding") if status is not None else None
    return str(found) if found else _asked(connection)


def _asked(connection: Connection) -> str:
    """Ask the server for the database's encoding.

    Use this for drivers that do not expose the encoding that the server reported when they connected.
    """
    remembered: dict[Any, Any] = getattr(connection, "info", {})
    if "server_encoding" not in remembered:
        remembered["server_encoding"] = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    return str(remembered["server_encoding"])


@lru_cache(maxsize=16)
def _codec(encoding: str) -> str | None:
    """Return Python's name for an encoding that covers only part of Unicode.

    Return None for UTF8 and unknown encodings.
    """
    if encoding == UTF8:
        return None
    name = re.sub(r"^WIN(?=\d)", "cp", encoding).replace("KOI8", "KOI8-").lower()
    try:
        return codecs.lookup(name).name
    except LookupError:
        return None


def unfit_character(encoding: str, text: str) -> str | None:
    """Return the first character of *text* that a database with *encoding* cannot store, or None."""
    codec = _codec(encoding)
    if codec is None:
        return None
    try:
        text.encode(codec)
    except UnicodeEncodeError as error:
        return text[error.start]
    return None


def fitted(connection: Connection, text: str) -> str:
    """In *text*, replace characters that the database cannot store with escapes, so that no output is lost."""
    if text.isascii():
        return text
    codec = _codec(server_encoding(connection))
    return text if codec is None else text.encode(codec, "backslashreplace").decode(codec)


def in_ascii(column: str) -> str:
    """Return SQL for a text *column* as ASCII, which works with any client encoding. ``from_ascii`` decodes it."""
    return either(postgresql=f"encode(convert_to({column}, getdatabaseencoding()), 'hex')", sqlite=column)


def from_ascii(connection: Connection, ascii_text: str) -> str:
    if connection.dialect.name != "postgresql":
        return ascii_text
    return bytes.fromhex(ascii_text).decode(_codec(server_encoding(connection)) or "utf-8", "replace")
