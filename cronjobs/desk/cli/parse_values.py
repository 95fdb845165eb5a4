"""Parse what users type: payloads, instants, spans, key=value. Errors never repeat values that may be secret."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any, Final, NoReturn
from zoneinfo import ZoneInfo

from cronjobs.desk.insight.formatting import Times
from cronjobs.desk.insight.instants import asked_on_the_clock, since_instant
from cronjobs.engine.command.printing import complain
from cronjobs.engine.jobs.checking import FIRST_RUN_AT, LAST_RUN_AT
from cronjobs.engine.rules.payload import LIMIT_DIGITS, payload_fault
from cronjobs.errors import PayloadError, UsageError
from cronjobs.model import duration
from cronjobs.text import one_line

# Read at most this many bytes of JSON text. A stored payload, which has no whitespace, has at most 256 KiB.
READ_LIMIT: Final = 1024 * 1024
_OF_DAY: Final = re.compile(r"(?:(today|yesterday)\s+)?(\d{1,2}):(\d{2})(?::(\d{2}))?")
EXAMPLE: Final = """--payload '{"invoice_id": 42}'"""


def payload(given: str) -> dict[str, Any]:
    """Parse ``--payload``: JSON text, ``@FILE``, or ``-`` for stdin. Raises PayloadError."""
    value = _json(_text(given))
    fault = payload_fault(value)
    if fault:
        raise PayloadError(one_line(fault, 300))
    checked: dict[str, Any] = value
    return checked


def _text(given: str) -> str:
    if given != "-" and not given.startswith("@"):
        return given
    where = "stdin" if given == "-" else one_line(given[1:], 200)
    try:
        if given == "-":
            if sys.stdin is None:
                raise PayloadError("the payload cannot be read: stdin is closed")
            if sys.stdin.isatty():
                complain("reading the payload from the terminal; Ctrl-D ends it")
            data = sys.stdin.buffer.read(READ_LIMIT + 1)
        else:
            with Path(given[1:]).open("rb") as file:
                data = file.read(READ_LIMIT + 1)
    except (OSError, ValueError) as error:  # a ValueError means a closed stream or an invalid file name
        reason = getattr(error, "strerror", None) or "stdin is closed, or this is not a file name"
        raise PayloadError(f"the payload cannot be read from {where}: {reason}") from None
    if len(data) > READ_LIMIT:
        raise PayloadError(
            f"the payload from {where} is larger than {READ_LIMIT // 1024**2} MiB: store the data elsewhere and pass "
            "a reference"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PayloadError(f"the payload from {where} is not UTF-8 text") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant, parse_int=_integer)
    except RecursionError:
        raise PayloadError("payload is nested too deeply") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise PayloadError(f"payload is not JSON: {error.msg} ({place}). Write it like {EXAMPLE}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:  # JSON parsers disagree about which duplicate wins
            raise PayloadError(f"payload has the key {one_line(repr(key), 60)} twice: delete one")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise PayloadError(f"payload has {name}, which is not JSON: write null, or a string")


def _integer(digits: str) -> int:
    if len(digits) > LIMIT_DIGITS:  # int() refuses only numbers of 4,301 digits or more
        raise PayloadError(f"payload has a number with {len(digits):,} digits, more than {LIMIT_DIGITS:,}: quote it")
    return int(digits)


def instant(given: str, zone: str, option: str, *, past_until: datetime | None = None) -> datetime:
    """Convert the value of an instant option such as ``--at`` to UTC.

    A time without an offset is taken to be in *zone*, which stderr reports. If *past_until* is given, the option is
    about the past. In that case "now" means *past_until*, and a time of day means the last such time before
    *past_until* (see ``of_day``). A time that the zone's clocks skip or show twice is refused, since it does not name a
    single instant.
    """
    if past_until is not None and given.strip().lower() == "now":
        return past_until
    shown = one_line(given, 60)
    instead = {
        "--at": ", or --in 24h",
        "--until": ", or --for 24h",
        "--to": ", or now",
        "--from": ", or --since 24h",
    }.get(option, "")
    try:
        wall = None if past_until is None else of_day(given, past_until.astimezone(ZoneInfo(zone)))
        read = wall or datetime.fromisoformat(given.strip())
    except ValueError:
        raise UsageError(
            f"{option} {shown!r} is not an ISO time: write 2026-11-20T09:00, or 2026-11-20T09:00+01:00{instead}"
        ) from None
    try:
        aware = read if read.tzinfo is not None else _in_zone(read, zone, f"{option} {shown}")
        found = aware.astimezone(UTC)
        if not FIRST_RUN_AT <= found <= LAST_RUN_AT:
            raise OverflowError
    except OverflowError:
        raise UsageError(f"{option} {shown} is not between the years 1974 and 9999") from None
    if read.tzinfo is None:
        complain(f"{option} {shown} is taken as {zone} time, the configured timezone: {aware.isoformat()}")
    return found


def _in_zone(naive: datetime, zone: str, shown: str) -> datetime:
    here = naive.replace(tzinfo=ZoneInfo(zone), fold=0)
    again = here.replace(fold=1)
    if here.utcoffset() == again.utcoffset():
        return here
    exists = here.astimezone(UTC).astimezone(here.tzinfo).replace(tzinfo=None, fold=0) == naive.replace(fold=0)
    why = f"comes twice in {zone}" if exists else f"does not exist in {zone}"
    raise UsageError(f"{shown} {why}, because the clocks change then: write it with an offset, as {again.isoformat()}")


def of_day(text: str, now: datetime) -> datetime | None:
    """Parse a time of day: "02:15" means the last 02:15 before *now*, "yesterday 02:15" means 02:15 on the day before.

    *now* is an aware local time, and the result is a naive one. If the clocks show the time twice, its first pass
    decides whether it is before *now*. Returns None if *text* is not a time of day. Raises ValueError for an impossible
    time, such as 25:00.
    """
    found = _OF_DAY.fullmatch(text.strip().lower())
    if found is None:
        return None
    hour, minute, second = (int(part or 0) for part in found.groups()[1:])
    moment = datetime.combine(now.date(), time(hour, minute, second))
    # In the second pass of a repeated hour, the clock has already shown times that are later than what it shows now.
    first = min(moment.replace(tzinfo=now.tzinfo, fold=fold).astimezone(UTC) for fold in (0, 1))
    if found[1] == "yesterday" or (found[1] is None and first > now.astimezone(UTC)):
        moment -= timedelta(days=1)
    return moment


def since(text: str, times: Times, option: str = "--since") -> datetime:
    """Parse a duration (back from now), an instant, or a time of day (the last time that the clock showed it)."""
    with suppress(ValueError):
        wall = of_day(text, times.now.astimezone(ZoneInfo(times.timezone)))
        if wall is not None:
            return asked_on_the_clock(wall, times.timezone).at
    return since_instant(text, times.now, times.timezone, option)


def span(given: str, option: str, *, above_zero: bool = False) -> timedelta:
    """Parse a duration such as 90s, 5m, 1h30m."""
    try:
        found = duration(given)
    except ValueError:
        raise UsageError(
            f"{option} {one_line(given, 60)!r} is not a duration: write it as 55s, 10m, 24h or 7d"
        ) from None
    if above_zero and not found:
        raise UsageError(f"{option} must be above zero")
    return found


def pairs(given: Sequence[str]) -> dict[str, str]:
    """Parse the repeated option ``--meta key=value``."""
    found: dict[str, str] = {}
    for entry in given:
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise UsageError("--meta must have the form key=value")
        if key in found:
            raise UsageError(f"--meta has the key {one_line(repr(key), 60)} twice")
        found[key] = value
    return found
