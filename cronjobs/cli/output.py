"""How commands print: instants for people, tables that fit, JSON for programs, nothing that acts.

Texts in the rows were written by anybody. ``safe`` takes the power of control characters away, and JSON is ASCII.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar
from zoneinfo import ZoneInfo

from cronjobs import masking
from cronjobs.errors import CronjobsError, UsageError
from cronjobs.model import duration, duration_text, in_zone
from cronjobs.text import one_line, visible

if TYPE_CHECKING:
    from cronjobs.config.settings import Settings
    from cronjobs.insight.findings import Finding

_T = TypeVar("_T")

CELL_LIMIT: Final = 300  # characters of a text that are looked at for one cell

SGR: Final = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bright_black": 90}  # ECMA-48

# The colour of a word, wherever it stands in a table.
COLOURS: Final = {
    "succeeded": "green",
    "running": "cyan",
    "failed": "yellow",
    "retrying": "yellow",
    "timed_out": "yellow",
    "lost": "yellow",
    "interrupted": "yellow",
    "skipped": "yellow",
    "paused": "yellow",
    "new": "yellow",
    "retired": "bright_black",
    "cancelled": "bright_black",
    "missed": "red",
    "dead": "red",
    "disabled": "red",
    "OVERDUE": "red",
}

# What a tick did, as its row counts it.
DID: Final = {
    "succeeded": "succeeded",
    "failed": "will retry",
    "dead": "dead",
    "cancelled": "cancelled",
    "lost": "lost",
    "interrupted": "interrupted",
    "snoozed": "snoozed",
    "timed_out": "timed out",
    "handed_over": "handed over",
    "released": "given back",
    "recovered": "recovered",
}


# --- plain lines ----------------------------------------------------------------------------------------------------


def echo(text: str) -> None:
    """Print to stdout; a closed or full stdout never changes what a command does."""
    _print(sys.stdout, text)


def complain(text: str, *, is_safe: bool = False) -> None:
    """Print to stderr, likewise. It goes into mails, so nothing in it acts on who reads it.

    *is_safe*: lines of ``table``, whose cells are, and which may have colours.
    """
    _print(sys.stderr, text if is_safe else visible(text))


def _print(stream: TextIO | None, text: str) -> None:
    if stream is None:
        return
    text = masking.hide(text)
    with suppress(OSError):
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:  # cron's locale is C: what ASCII cannot say is escaped, not lost
            stream.write(text.encode("ascii", "backslashreplace").decode() + "\n")
        except ValueError:  # closed
            return
        stream.flush()


def echo_json(value: Any) -> None:
    echo(json_text(value))


def json_text(value: Any) -> str:
    """*value* as JSON: instants in ISO 8601, UTC. ASCII, so that no stored text can act on a terminal."""
    return json.dumps(masking.hide_in(value), default=_encode, indent=2)


def _encode(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    reason = getattr(value, "reason", None)  # payload.BadJson: plain SQL wrote what nobody can read
    return {"unreadable": reason} if reason is not None else str(value)


def is_terminal(name: str = "stdout") -> bool:
    try:
        stream = getattr(sys, name)
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def status_word(status: str) -> str:
    """A job's status as people read it: the column's "failed" means that it will be tried again."""
    return "retrying" if status == "failed" else status


def coloured(text: str, colour: str | None, stream: str = "stdout") -> str:
    """Colour only on a terminal, and never against NO_COLOR (no-color.org)."""
    if colour is None or not is_terminal(stream) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{SGR[colour]}m{text}\x1b[0m"


# --- instants ---------------------------------------------------------------------------------------------------------


def local(settings: Settings, instant: datetime) -> str:
    """*instant* on the clocks of the file's time zone."""
    return in_zone(instant, ZoneInfo(settings.timezone)).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Times:
    """Instants as people read them: on the clocks of *timezone*, and how far from *now*, the database's."""

    now: datetime
    timezone: str

    def clock(self, instant: datetime) -> str:
        """ "14:03:07" on the day of now, else with its date; in a doubled hour with the offset that tells which."""
        local = self.local(instant)
        text = f"{local:%H:%M:%S}"
        if local.date() != self.local(self.now).date():
            text = f"{local:%Y-%m-%d} {text}"
        first, second = (local.replace(fold=fold).utcoffset() for fold in (0, 1))
        return f"{text} {local:%z}" if first is not None and second is not None and first > second else text

    def local(self, instant: datetime) -> datetime:
        return in_zone(instant, ZoneInfo(self.timezone))

    def ago(self, instant: datetime) -> str:
        """ "3 min ago", "in 4 h", "now"."""
        span = self.now - instant
        if abs(span) < timedelta(seconds=1):
            return "now"
        return f"{rough(span)} ago" if span > timedelta(0) else f"in {rough(span)}"

    def both(self, instant: datetime) -> str:
        return f"{self.ago(instant)} ({self.clock(instant)})"

    @property
    def said(self) -> str:
        return f"{self.local(self.now):%Y-%m-%d %H:%M:%S} {self.timezone}"


def sentence(trouble: Finding, times: Times) -> str:
    """What is wrong, since when, and what to type."""
    since = f", since {times.clock(trouble.since)}" if trouble.since else ""
    command = f': "{safe(trouble.command)}"' if trouble.command else ""
    return f"{safe(trouble.text, 400)}{since}{command}"


def rough(span: timedelta) -> str:
    """A span in one unit: "42 s", "3 min", "5 h", "9 d"."""
    seconds = abs(span.total_seconds())
    for unit, size, enough in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 36)):
        if round(seconds / size) < enough:
            return f"{round(seconds / size)} {unit}"
    return f"{round(seconds / 86400)} d"


def took(started_at: datetime | None, finished_at: datetime | None) -> str:
    """How long something ran: "31 ms", "3.21 s", "1m5s"; "" when it is not known."""
    if started_at is None or finished_at is None:
        return ""
    seconds = (finished_at - started_at).total_seconds()
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    return f"{seconds:.2f} s" if seconds < 10 else duration_text(timedelta(seconds=round(seconds)))


def iso_instant(text: str, timezone: str) -> datetime:
    """An ISO time in UTC; without an offset it is meant in *timezone*. Raises ValueError or OverflowError."""
    read = datetime.fromisoformat(text.strip())
    return (read if read.tzinfo is not None else read.replace(tzinfo=ZoneInfo(timezone))).astimezone(UTC)


def since_instant(text: str, now: datetime, timezone: str) -> datetime:
    """Read ``--since``: a duration back from *now*, or an ISO instant, in *timezone* unless it says another."""
    try:
        return now - duration(text)
    except (ValueError, OverflowError):
        pass
    try:
        return iso_instant(text, timezone)
    except (ValueError, OverflowError):
        raise UsageError(
            f"--since: {one_line(text, 60)!r} is neither a duration (90m, 24h, 7d) nor an instant (2026-03-29T02:00)"
        ) from None


# --- text for people --------------------------------------------------------------------------------------------------


def width() -> int:
    """Columns to fill: those of the terminal or of $COLUMNS, at least 60; 120 in a pipe."""
    return max(60, shutil.get_terminal_size((120, 24)).columns)


def safe(value: object, limit: int = CELL_LIMIT) -> str:
    """*value* as one line that does nothing to a terminal; "" for None."""
    return "" if value is None else one_line(masking.hide(str(value)), limit)


def block(text: str, indent: str) -> list[str]:
    """A text of several lines, harmless and indented."""
    return [(indent + line).rstrip() for line in visible(masking.hide(text)).rstrip("\n").split("\n")]


def fit(text: str, columns: int) -> str:
    """Cut *text* to *columns* of the terminal."""
    if _columns(text) <= columns:
        return text
    ends = accumulate(map(_columns, text))
    return text[: sum(end < columns for end in ends)] + "…"


def table(
    rows: Sequence[Sequence[str]], header: Sequence[str], *, room: int, at_most: Mapping[int, int] | None = None
) -> list[str]:
    """Lines of columns under *header*, no wider than *room*: the last column takes what the others leave.

    *at_most* limits other columns (by number). A header that begins with ">" is of a column of numbers.
    """
    # Not by rich: no shorter than this, 60 ms to load, 100 times as slow, and in a narrow terminal it cuts ids.
    if not rows:
        return []
    names, limits = [name.lstrip(">") for name in header], at_most or {}
    widths = [max(map(_columns, column)) for column in zip(names, *rows, strict=True)][:-1]
    widths = [min(width, limits.get(number, room)) for number, width in enumerate(widths)]
    widths.append(max(8, room - sum(widths) - 2 * len(widths)))

    def line(cells: Sequence[str], paint: bool) -> str:
        parts = []
        for cell, space, name in zip(cells, widths, header, strict=True):
            text = fit(cell, space)
            padding = " " * (space - _columns(text))
            colour = COLOURS.get("OVERDUE" if text.startswith("OVERDUE") else text) if paint else None
            shown = coloured(text, colour)
            parts.append(padding + shown if name.startswith(">") else shown + padding)
        return "  ".join(parts).rstrip()

    return [coloured(line(names, paint=False), "bright_black"), *(line(row, paint=True) for row in rows)]


def labelled(label: str, lines: Iterable[str], colour: str | None = None) -> list[str]:
    """*lines* beside a label, as status and ``jobs show`` print their parts; nothing when there are none."""
    shown = []
    for number, line in enumerate(lines):
        name = f"{label if number == 0 else '':<11}"
        shown.append(coloured(name, colour) + line)
    return [line.rstrip() for line in shown]


def wrapped(text: str, room: int, indent: str = "") -> list[str]:
    """*text* (a sentence) over as many lines as it needs."""
    return textwrap.wrap(text, room, subsequent_indent=indent, break_on_hyphens=False) or [""]


def first(lines: Sequence[str], count: int) -> list[str]:
    """At most *count* lines, the last of them saying how many were left out."""
    if len(lines) <= count:
        return list(lines)
    return [*lines[: count - 1], f"… and {len(lines) - count + 1} more"]


def counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _columns(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


# --- output -----------------------------------------------------------------------------------------------------------


def write(lines: Iterable[str]) -> None:
    """Print to stdout. A reader that left early is no error; a disk that is full is one."""
    if sys.stdout is None:
        return
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")  # a terminal that knows no "…" gets \u2026, not nothing
    try:
        sys.stdout.write(masking.hide("".join(line + "\n" for line in lines)))
        sys.stdout.flush()
    except OSError as error:
        _let_go_of_stdout()
        if not isinstance(error, BrokenPipeError):
            raise CronjobsError(f"stdout cannot be written: {error.strerror}") from None


def _let_go_of_stdout() -> None:
    """What is still buffered would make the interpreter stumble as it ends."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass


def write_list(
    rows: Sequence[_T], limit: int, as_json: bool, lines: Callable[[Sequence[_T]], Iterable[str]], nothing: str
) -> None:
    """Print at most *limit* of *rows*, as JSON or as *lines* of them, and note on stderr if there are more, or none."""
    write([json_text(rows[:limit])] if as_json else lines(rows[:limit]))
    if not rows and not as_json:
        complain(nothing)
    if len(rows) > limit:
        complain(f"the first {limit} are shown; there are more: --limit")


def columns_of(row: Any) -> dict[str, Any]:
    """A row as its JSON object: the columns' names are the keys."""
    return dict(row._mapping)


# --- what only the configuration knows --------------------------------------------------------------------------------


def tries(failures: int, most: int | None) -> str:
    """ "failed 3 of 10": what people are told instead of the fence."""
    if not failures:
        return ""
    return f"failed {failures} of {most}" if most is not None else f"failed {counted(failures, 'time')}"


def did(counts: Mapping[str, Any]) -> str:
    """ "3 succeeded, 1 dead": a tick's counts; "" for none."""
    return ", ".join(f"{counts[name]} {word}" for name, word in DID.items() if counts.get(name))


def host_of(holder: str | None) -> str:
    """The host in ``locked_by`` or ``runner``."""
    return safe((holder or "").partition(":")[0], 40)
