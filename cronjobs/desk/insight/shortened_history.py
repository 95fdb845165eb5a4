"""A night in few lines: repeated successes of a schedule are one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Any

Entry = Mapping[str, Any]  # of the history: a row, and its "kind": attempt, death, occurrence or gap


def when(entry: Entry) -> datetime:
    """When it began; of occurrences the last, of a death its end."""
    at: datetime = entry[{"occurrence": "last_for", "death": "finished_at"}.get(entry["kind"], "started_at")]
    return at


def outcome_of(entry: Entry) -> str:
    """ "succeeded", "dead", "missed" …; "gap": ticks did not come."""
    outcome: str = {"death": "dead", "gap": "gap"}.get(entry["kind"]) or entry["outcome"]
    return outcome


def collapsed(entries: Sequence[Entry], day_of: Callable[[datetime], date]) -> list[list[Entry]]:
    """*entries*, in order of time, as one list for each line; each is in exactly one, and lines go by their first.

    Successes of a schedule share a line until anything else happens to that schedule, or a day ends.
    """
    lines: list[list[Entry]] = []
    open_lines: dict[str, list[Entry]] = {}
    for entry in entries:
        schedule = entry.get("schedule")
        line = open_lines.get(schedule) if schedule else None
        if schedule is None or outcome_of(entry) != "succeeded":
            open_lines.pop(schedule or "", None)
            lines.append([entry])
        elif line is not None and day_of(when(line[0])) == day_of(when(entry)):
            line.append(entry)
        else:
            open_lines[schedule] = [entry]
            lines.append(open_lines[schedule])
    return lines


def totals(entries: Sequence[Entry]) -> Counter[str]:
    """How many attempts, deaths and occurrences there are, by outcome."""
    found: Counter[str] = Counter()
    for entry in entries:
        found[outcome_of(entry)] += entry["count"] if entry["kind"] == "occurrence" else 1
    return found
