"""Convert rows for PostgreSQL. In SQLite, hand-written SQL may have stored any type in any column."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from sqlalchemy import Float, Integer, SmallInteger, Table, Text

from cronjobs.engine.database.column_types import Json
from cronjobs.engine.rules.payload import LARGEST, LIMIT_DIGITS, MOST_FETCHED, NOT_UTF8
from cronjobs.text import BrokenText, clean, decoded


def fit(table: Table, row: Mapping[str, Any], odd: list[str]) -> dict[str, Any]:
    return {name: _fit_value(table, row, name, value, odd) for name, value in row.items() if value is not None}


def _fit_value(table: Table, row: Mapping[str, Any], name: str, value: Any, odd: list[str]) -> Any:
    key = next(iter(table.primary_key)).name
    match table.c[name].type:
        case Json():
            text, why = as_jsonb(_text(value))
            if why is not None:
                odd.append(f"{table.name} {key} {row[key]}: {name} was copied as text: {why}")
            return text
        case Text():
            if isinstance(value, BrokenText):
                odd.append(f"{table.name} {key} {row[key]}: {name} was copied with replacement characters: {NOT_UTF8}")
            return clean(_text(value))
        case Float():
            return max(-1e300, min(1e300, float(value)))
        case Integer() as kind:  # BigInteger holds every SQLite integer
            bits = 15 if isinstance(kind, SmallInteger) else 63 if type(kind) is not Integer else 31
            return max(-(2**bits), min(2**bits - 1, int(value)))
    return value


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return decoded(value)
    return value if isinstance(value, str) else str(value)


def as_jsonb(text: str) -> tuple[str, str | None]:
    """Return *text* and None if jsonb takes it with all digits of its numbers, else *text* as a JSON string, and why.

    If jsonb refuses a job's payload, the job dies when it is due, on either side, with an error that says why.
    """
    try:
        if isinstance(text, BrokenText):
            raise ValueError(NOT_UTF8)
        if len(text) > MOST_FETCHED:  # parsing the text may need a hundred times its size in memory
            raise ValueError(f"the value is larger than {MOST_FETCHED:,} bytes")
        found = json.loads(text, parse_constant=_refuse, parse_float=_number, parse_int=_number)
        json.dumps(found, default=str, ensure_ascii=False).encode()  # raises UnicodeEncodeError for a lone surrogate
        if re.search(r"(?<!\\)(\\\\)*\\u0000", text):
            raise ValueError("the value holds the character NUL")
    except RecursionError:
        why = "the value is nested too deeply"
    except (ValueError, InvalidOperation) as error:
        why = f"{error}".partition(" (")[0]
    else:
        return text, None
    return json.dumps(clean(text)), why


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _number(text: str) -> Decimal:
    number = Decimal(text)
    # The limits of the table's CHECK. PostgreSQL's numeric holds 131,072 digits before the point and 16,383 after it.
    if number.copy_abs() > LARGEST or -int(number.as_tuple().exponent) > LIMIT_DIGITS:
        raise ValueError("the value holds a number that is out of range")
    return number
