"""Group errors. Errors that differ only in numbers, ids and quoted values count as one error."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from cronjobs.masking import hide

# Keep at most this many groups in memory. The most frequent errors are read first, so few are left out.
GROUPS_AT_MOST: Final = 5000
# Read at most this many pairs of error type and error text. Jobs with any other pair are only counted.
ROWS_AT_MOST: Final = 20_000
# Each group lists at most this many of its most frequent job types.
TYPES_AT_MOST: Final = 50
# Read only this many characters of an error's text. They are enough to distinguish the error from others.
ERROR_READ: Final = 400
OTHERS: Final = "(other errors)"

_HTTP_OR_SMTP: Final = r"^[45]\d\d\b"
_CODE: Final = (
    r"\b(?:status|code|http(?:/\d(?:\.\d)?)?|errno|error|exit|signal|smtp)[ :=#(]*\[?\d{1,3}\b|\bsqlstate \w{5}\b"
)
# An enqueuer can choose the text of an error, so the match must never take quadratic time. Therefore a word is matched
# only from its beginning, and a quotation ends where the next quotation begins.
_PARTS: Final = re.compile(
    rf"""
      (?P<kept>{_HTTP_OR_SMTP}|{_CODE})
    | (?P<quoted>"[^"]*"|`[^`]*`|(?<!\w)'[^']*'(?!\w)|“[^“”]*”|«[^«»]*»)
    | (?P<email>(?<![\w.+-])[\w.+-]++@[\w-]++(?:\.[\w-]++)++)
    | (?P<word>(?<![\w-])(?=[\w-]*\d)[\w-]+)  # a word with a digit in it; the rest is passed over
    """,
    re.VERBOSE | re.IGNORECASE,
)
_NUMBER: Final = re.compile(r"\d+")
_NUMBERS_TOGETHER: Final = re.compile(r"<n>(?:[.,:/TZ+-]+<n>)+Z?")


def class_and_text(error_type: str | None, text: str | None) -> str:
    """Return a text such as "ValueError: no such invoice".

    For a command, returns only the text "exit status 3: …", because it already contains the error type "exit-3".
    """
    return ": ".join(word for word in (None if says_class(error_type, text) else error_type, text) if word)


def says_class(error_type: object, text: object) -> bool:
    """Return whether the beginning of *text* already says the *error_type*, as "exit status 3: …" does for "exit-3".

    SQLite may hold values of any type in these columns.
    """
    if not isinstance(error_type, str) or not isinstance(text, str):
        return False
    return text.startswith(error_type.replace("exit-", "exit status ", 1))


def normalised(error: str) -> str:
    """Return *error* without its numbers, ids and quoted values: "503 for invoice <n>", "no user <id>", "no key <…>".

    A number that identifies the error stays: an HTTP or SMTP status at the beginning, an exit status, or an error code.
    Secrets are masked before anything is replaced. Afterwards only parts of a secret might be left, which masking could
    not find. Only the first ERROR_READ characters count, so callers need to fetch only one character more. A longer
    text is cut, and "…" is added, so that ``hide`` recognises a secret whose end was cut off.
    """
    return _normalised(shown_line(error))


def shown_line(error: str) -> str:
    """Return the first line of *error* as people may see it: masked, and cut after ERROR_READ characters."""
    beginning = error if len(error) <= ERROR_READ else f"{error[:ERROR_READ]}…"
    return hide(beginning.strip().partition("\n")[0])


@lru_cache(maxsize=4096)
def _normalised(line: str) -> str:
    return _NUMBERS_TOGETHER.sub("<n>", _PARTS.sub(_placeholder, line))


def _placeholder(part: re.Match[str]) -> str:
    match part.lastgroup:
        case "kept":
            return part[0]
        case "quoted":
            return "<…>"
        case "email":
            return "<email>"
    return _word(part[0])


def _word(word: str) -> str:
    """Return the placeholder of a number or an id. In a name such as "utf8", replace only the digits."""
    letters = "".join(character for character in word if character.isalpha())
    if not letters:
        return "<n>"
    is_hex = not letters.strip("abcdefABCDEFxX") and len(word) >= 6
    is_mixed = len(_NUMBER.findall(word)) > 1 and len(word) >= 8
    return "<id>" if is_hex or is_mixed else _NUMBER.sub("<n>", word)


@dataclass
class ErrorGroup:
    """Jobs that share an error. ``sample_job_id`` is the id of a job that had the error most recently."""

    error_type: str | None
    message: str
    job_types: list[str] = field(default_factory=list)
    jobs: int = 0
    first_seen_at: datetime | None = None
    last_seen_at: datetime | None = None
    sample_job_id: int | None = None

    def add(self, row: Any) -> None:
        self.jobs += row.jobs
        if len(self.job_types) < TYPES_AT_MOST and row.job_type not in self.job_types:
            self.job_types.append(row.job_type)
        if self.first_seen_at is None or row.first_seen_at < self.first_seen_at:
            self.first_seen_at = row.first_seen_at
        if self.last_seen_at is None or row.last_seen_at > self.last_seen_at:
            self.last_seen_at, self.sample_job_id = row.last_seen_at, row.sample_job_id


def grouped(rows: Iterable[Any], at_most: int = GROUPS_AT_MOST) -> list[ErrorGroup]:
    """Group *rows*, as the store's ``error_groups`` returns them. The largest group comes first.

    All errors that fit none of the first *at_most* groups form one more group. That group also counts the jobs whose
    rows were not read: each row contains the number of all jobs.
    """
    groups: dict[tuple[str | None, str], ErrorGroup] = {}
    others = ErrorGroup(None, OTHERS)
    read = in_all = 0
    for row in rows:
        read, in_all = read + row.jobs, int(row.all_jobs)
        key = (row.error_type, normalised(row.error or ""))
        if key not in groups and len(groups) >= at_most:
            others.add(row)
        else:
            groups.setdefault(key, ErrorGroup(*key)).add(row)
    others.jobs += in_all - read
    found = sorted(groups.values(), key=lambda group: (-group.jobs, group.error_type or "", group.message))
    return [*found, *([others] if others.jobs else [])]
