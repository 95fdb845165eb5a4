"""A running attempt's progress: how it is reported, stored and shown, and how much time is left. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from cronjobs.errors import UsageError
from cronjobs.text import clean, one_line

NOTE_LIMIT: Final = 200  # in characters
# A renewal of the lease also sends the end of the output, at most this many bytes.
LIVE_LIMIT: Final = 4 * 1024
LARGEST: Final = 1e15  # up to this number a float can count in steps of one

# Matches "::progress 37/120" or "::progress 12.5", possibly with a note. The line contains nothing else except spaces.
_LINE: Final = re.compile(r"\s*::progress[ \t]+(\d{1,15}(?:\.\d{1,6})?)(?:/(\d{1,15}(?:\.\d{1,6})?))?(?:[ \t]+(.*))?")


class HowFar(NamedTuple):
    """An attempt's progress: ``done`` of a total ``of``, and a ``note`` of one line.

    ``done`` is None if nothing was reported. ``of`` is None if the total is unknown.
    """

    done: float | None
    of: float | None = None
    note: str | None = None


def progress(done: float, of: float | None = None, note: str | None = None) -> HowFar:
    """Check the progress that a handler reports, and return it.

    Raises UsageError for a value that is not a number, is negative, or is too large.
    """
    return HowFar(
        _number("done", done, least=0),
        None if of is None else _number("of", of, least=0) or None,
        None if note is None else one_line(clean(str(note)), NOTE_LIMIT) or None,
    )


def _number(name: str, value: Any, *, least: float) -> float:
    try:
        # float() also accepts a Decimal, a Fraction and numpy's numbers.
        number = value if type(value) is int else float(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"ctx.progress({name}={one_line(repr(value), 60)}): it has to be a number") from None
    # This condition also refuses NaN.
    if not least <= number <= LARGEST:
        raise UsageError(f"ctx.progress({name}={one_line(repr(value), 60)}): it has to be from {least} to {LARGEST:g}")
    return int(number) if number == int(number) else number


def progress_line(line: str) -> HowFar | None:
    """Return the progress that a line of a command's output reports, or None if it is an ordinary line."""
    if "::progress" not in line[:40]:
        return None
    found = _LINE.fullmatch(line.rstrip("\r\n"))
    if found is None:
        return None
    return progress(float(found[1]), None if found[2] is None else float(found[2]), (found[3] or "").strip() or None)


# --- what the job's row stores ----------------------------------------------------------------------------------------


class Reported(NamedTuple):
    """The report of a running attempt.

    ``output_end`` is how many bytes the attempt had printed up to the end of its stored live output.

    ``ran_s`` and ``first_s`` are seconds after the claim. ``progress`` was reported at ``ran_s``. At ``first_s``,
    ``first`` units were done. Between these two times the total stayed the same and the progress never went back, so
    the pace can be computed.
    """

    progress: HowFar = HowFar(None)
    ran_s: float = 0.0
    first: float = 0.0
    first_s: float = 0.0
    output_end: int = 0


def row_value(reported: Reported) -> str:
    """Return *reported* as JSON for the job's row."""
    how_far = reported.progress
    facts: dict[str, Any] = {}
    if how_far.done is not None:
        facts |= {name: value for name, value in how_far._asdict().items() if value is not None}
        facts |= {"ran_s": round(reported.ran_s, 3), "first": reported.first, "first_s": round(reported.first_s, 3)}
    if reported.output_end:
        facts |= {"output_end": reported.output_end}
    return json.dumps(facts)


def reported_of(value: Any) -> Reported | None:
    """Return the report in *value*, the parsed column of a running attempt's row, or None if it has none."""
    if not isinstance(value, Mapping):
        return None
    number = {name: _readable(value.get(name)) for name in ("done", "of", "ran_s", "first", "first_s", "output_end")}
    note = value.get("note")
    said = HowFar(number["done"], number["of"] or None, one_line(note, NOTE_LIMIT) if isinstance(note, str) else None)
    return Reported(
        HowFar(None) if said.done is None else said,
        number["ran_s"] or 0.0,
        number["first"] or 0.0,
        number["first_s"] or 0.0,
        int(number["output_end"] or 0),
    )


def _readable(value: Any) -> float | None:
    """Return *value* if it is a number that we may have written, or None if plain SQL wrote something else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value <= LARGEST else None


# --- what people read -------------------------------------------------------------------------------------------------


def in_words(how_far: HowFar) -> str:
    """Return a text such as "37 of 120 (30 %): Berlin" or "1,200 done", or "" if nothing was reported.

    The note may contain any text, so the caller must escape the result before showing it.
    """
    if how_far.done is None:
        return ""
    done = _written(how_far.done)
    if how_far.of is None:
        words = f"{done} done"
    else:
        # Round down, so that "100 %" means complete.
        words = f"{done} of {_written(how_far.of)} ({min(999, math.floor(100 * how_far.done / how_far.of))} %)"
    return f"{words}: {how_far.note}" if how_far.note else words


def _written(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) or number == int(number) else f"{number:,.6g}"


# The attempt must have done this share of the total before its pace can be used for an estimate.
LEAST_SHARE: Final = 0.05
LEAST_S: Final = 20.0
# A report may always be this old, because reports are written only when the lease is renewed.
QUIET: Final = timedelta(minutes=2)


def time_left(reported: Reported, started_at: datetime, now: datetime) -> timedelta | None:
    """Return how long the remaining work will take at the pace so far, or None if an estimate would make no sense.

    An estimate needs a total. The attempt itself must have done at least a twentieth of the total, in at least 20 s.
    Work of an earlier attempt, which this attempt continues, does not count. The latest report must not be older than
    QUIET or a quarter of the time so far, whichever is longer.
    """
    how_far = reported.progress
    if how_far.done is None or how_far.of is None or how_far.done >= how_far.of:
        return None
    came, took_s = how_far.done - reported.first, reported.ran_s - reported.first_s
    if came < LEAST_SHARE * how_far.of or took_s < LEAST_S:
        return None
    silent_s = (now - started_at).total_seconds() - reported.ran_s
    if silent_s < -QUIET.total_seconds() or silent_s > max(QUIET.total_seconds(), took_s / 4):
        return None
    left_s = (how_far.of - how_far.done) * took_s / came - max(0.0, silent_s)
    return timedelta(seconds=max(0.0, left_s))
