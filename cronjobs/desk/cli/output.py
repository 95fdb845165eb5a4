"""How commands print: findings, tables that fit the terminal, JSON.

Anyone may have written the texts in database rows, so ``safe`` neutralizes control characters, and JSON is printed as
ASCII.
"""

from __future__ import annotations

import os
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cronjobs import masking
from cronjobs.desk.insight.formatting import Times, safe
from cronjobs.engine.command.printing import coloured, complain, is_terminal, json_text
from cronjobs.engine.rules.progress import HowFar, in_words
from cronjobs.errors import CronjobsError
from cronjobs.text import visible

if TYPE_CHECKING:
    from cronjobs.desk.insight.finding import Finding

_T = TypeVar("_T")

LAST_AT_LEAST: Final = 8  # the last column of a table is at least this wide
UNCUT: Final = 2000  # the width of a line in a pipe

# The colour of each status word in tables.
COLOURS: Final = {
    "succeeded": "green",
    "running": "cyan",
    "failed": "yellow",
    "retrying": "yellow",
    "timed_out": "yellow",
    "lost": "yellow",
    "interrupted": "yellow",
    "skipped": "yellow",
    "ran early": "yellow",
    "paused": "yellow",
    "new": "yellow",
    "retired": "bright_black",
    "cancelled": "bright_black",
    "missed": "red",
    "dead": "red",
    "disabled": "red",
    "OVERDUE": "red",
}


def sentence(trouble: Finding, times: Times) -> str:
    """Format a finding: what is wrong, when it began, and which command to run."""
    since = f", since {times.clock(trouble.since)}" if trouble.since else ""
    command = f': "{safe(trouble.command)}"' if trouble.command else ""
    return f"{safe(trouble.text, 400)}{since}{command}"


# --- text for people --------------------------------------------------------------------------------------------------


def width() -> int:
    """Return the line width: $COLUMNS or the terminal's width, at least 60. In a pipe without $COLUMNS it is 120."""
    import shutil  # shutil imports bz2 and lzma, which ticks do not need

    return max(60, shutil.get_terminal_size((120, 24)).columns)


def is_cut() -> bool:
    """Return whether lines are cut at ``width``. Lines are cut on a terminal, and if $COLUMNS is set."""
    return is_terminal() or "COLUMNS" in os.environ


def name_text(name: object) -> str:
    """Format the name of a job type or schedule: shortened on a terminal, in full in a pipe."""
    return safe(name, 60 if is_cut() else UNCUT)


def printable(text: str, instead: str) -> str:
    """Return *text*, or *instead* if stdout's encoding cannot represent it."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return instead
    return text


def block(text: str, indent: str) -> list[str]:
    """Indent a multi-line text, and neutralize its control characters."""
    return [(indent + line).rstrip() for line in visible(masking.hide(text)).rstrip("\n").split("\n")]


def fit(text: str, columns: int) -> str:
    """Cut *text* to *columns* terminal columns."""
    if _columns(text) <= columns:
        return text
    ends = accumulate(map(_columns, text))
    return text[: sum(end < columns for end in ends)] + "…"


class ColouredCell(str):
    """A table cell with colours.

    ``painted``, the coloured form, is printed if the cell fits. The plain text gives the width.
    """

    painted: str


def table(
    rows: Sequence[Sequence[str]], header: Sequence[str], *, room: int, at_most: Mapping[int, int] | None = None
) -> list[str]:
    """Format *rows* under *header*, at most *room* wide. The last column gets the remaining width.

    If too little remains, the widest text columns shrink. Numbers are never cut. In a pipe nothing is cut, since a
    program or a file has no line width.

    *at_most*: column number → maximum width. A header that begins with ">" aligns its column right, for numbers.
    """
    # We do not use rich (15.0). rich would need as much code here, takes 30 ms to import, is 6 times as slow, and drops
    # the ids at a width of 80 columns.
    if not rows:
        return []
    if not is_cut():
        room, at_most = UNCUT, None
    names, limits = [name.lstrip(">") for name in header], at_most or {}
    widths = [max(map(_columns, column)) for column in zip(names, *rows, strict=True)][:-1]
    widths = [min(width, limits.get(number, room)) for number, width in enumerate(widths)]
    last = 2 * len(widths) + LAST_AT_LEAST
    texts = [number for number in range(len(widths)) if not header[number].startswith(">")]
    while sum(widths) + last > room and texts and max(widths[number] for number in texts) > LAST_AT_LEAST // 2:
        widths[max(texts, key=lambda number: widths[number])] -= 1
    widths.append(max(LAST_AT_LEAST, room - sum(widths) - 2 * len(widths)))

    def line(cells: Sequence[str], paint: bool) -> str:
        parts = []
        for cell, space, name in zip(cells, widths, header, strict=True):
            text = fit(cell, space)
            padding = " " * (space - _columns(text))
            colour = COLOURS.get("OVERDUE" if text.startswith("OVERDUE") else text) if paint else None
            shown = (
                cell.painted if paint and isinstance(cell, ColouredCell) and text == cell else coloured(text, colour)
            )
            parts.append(padding + shown if name.startswith(">") else shown + padding)
        return "  ".join(parts).rstrip()

    return [coloured(line(names, paint=False), "bright_black"), *(line(row, paint=True) for row in rows)]


def labelled(label: str, lines: Iterable[str], colour: str | None = None) -> list[str]:
    """Put a label before the first of *lines*, and indent the others. If *lines* is empty, return []."""
    shown = []
    for number, line in enumerate(lines):
        name = f"{label if number == 0 else '':<11}"
        shown.append(coloured(name, colour) + line)
    return [line.rstrip() for line in shown]


def wrapped(text: str, room: int, indent: str = "") -> list[str]:
    """Wrap a sentence into lines of *room* columns."""
    if text.isascii():
        return textwrap.wrap(text, room, subsequent_indent=indent, break_on_hyphens=False) or [""]
    # Count columns: some characters take two.
    lines, line = [], ""
    for word in text.split(" "):
        if line.strip() and _columns(line) + 1 + _columns(word) > room:
            lines.append(line)
            line = indent
        line = f"{line} {word}" if line.strip() else line + word
        while _columns(line) > room:
            count = max(len(indent) + 1, sum(end <= room for end in accumulate(map(_columns, line))))
            lines.append(line[:count])
            line = indent + line[count:]
    return [*lines, line]


def first(lines: Sequence[str], count: int) -> list[str]:
    """Return at most *count* lines. If more exist, the last line counts those left out."""
    if len(lines) <= count:
        return list(lines)
    return [*lines[: count - 1], f"… and {len(lines) - count + 1} more"]


def _columns(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


# --- output -----------------------------------------------------------------------------------------------------------


def write(lines: Iterable[str]) -> None:
    """Print to stdout. A closed pipe is not an error, but a full disk is."""
    if sys.stdout is None:
        return
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        # In an encoding without "…", print \u2026 instead.
        reconfigure(errors="backslashreplace")
    try:
        sys.stdout.write(masking.hide("".join(line + "\n" for line in lines)))
        sys.stdout.flush()
    except OSError as error:
        _let_go_of_stdout()
        if not isinstance(error, BrokenPipeError):
            raise CronjobsError(f"stdout cannot be written: {error.strerror}") from None


def _let_go_of_stdout() -> None:
    """Point stdout at /dev/null. Otherwise the interpreter would fail when it flushes the buffer at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass


def write_list(
    rows: Sequence[_T], limit: int, as_json: bool, lines: Callable[[Sequence[_T]], Iterable[str]], nothing: str
) -> None:
    """Print at most *limit* of *rows*, as JSON or as *lines*. Report on stderr if there are more rows, or no rows."""
    write([json_text(rows[:limit])] if as_json else lines(rows[:limit]))
    if not rows and not as_json:
        complain(nothing)
    if len(rows) > limit:
        complain(f"only the first {limit} are shown: raise --limit for more")


def columns_of(row: Any) -> dict[str, Any]:
    """Return a row as a JSON object keyed by column name."""
    return dict(row._mapping)


def progress_text(progress: HowFar) -> str:
    """Return text such as "37 of 120 (30 %): Berlin", or "" if the handler reported nothing."""
    return safe(in_words(progress))
