"""Parse a search for jobs, one line of text as typed on the web pages, into a Filter. All functions here are pure.

The options of commands accept some of the same values, which this module parses as well.

``type:billing status:dead error:"no invoice" since:24h key:invoice:42 queue:mail schedule:nightly cause:KEY 17 mail``
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

from cronjobs.desk.insight.formatting import Times, status_word
from cronjobs.desk.insight.instants import since_instant
from cronjobs.desk.store.listing import Filter
from cronjobs.engine.rules.causes import KEY_DIGITS
from cronjobs.errors import UsageError
from cronjobs.model import Status
from cronjobs.reserved import EXEC_PREFIX
from cronjobs.text import one_line

LONGEST: Final = 6_000  # a search has at most this many characters
MOST_IDS: Final = 500
STATUS_WORDS: Final = [status_word(status) for status in Status]
_NAME: Final = re.compile(r"([A-Za-z_]+):")
_BARE: Final = re.compile(r"\S+")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED: Final = re.compile(r'\\(["\\])')
_PLAIN: Final = re.compile(r'[^\s"\\]+')
_ID: Final = re.compile(r"[0-9]{1,19}")


class SearchError(UsageError):
    """A search that cannot be parsed. The message is for the user who typed the search."""


@dataclass(frozen=True)
class Search:
    """The words of a search as typed. A word that was not given is None.

    ``type`` and ``error`` match parts of a job's type and error.
    """

    type: str | None = None
    status: str | None = None
    error: str | None = None
    queue: str | None = None
    schedule: str | None = None
    key: str | None = None
    cause: str | None = None
    since: str | None = None
    ids: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return the search as text that parses to the same search."""
        named = ((each.name, getattr(self, each.name)) for each in fields(self) if each.name != "ids")
        words = [f"{name}:{_written(value)}" for name, value in named if value is not None]
        return " ".join([*words, *map(str, self.ids)])

    def wanted(self, times: Times) -> Filter:
        """Return the Filter. Raises SearchError for an invalid instant or contradictory words."""
        status = None if self.status is None else read_status(self.status)
        if self.cause is not None and status not in (None, Status.DEAD):
            raise SearchError(
                f'"cause:" finds only dead jobs, so it cannot be combined with status:{status_word(status or "")}'
            )
        since = None if self.since is None else since_instant(self.since, times.now, times.timezone, "since:")
        return Filter(
            statuses=() if status is None else (status,),
            queue=self.queue,
            schedule=self.schedule,
            since=since,
            cause=self.cause,
            type_part=self.type,
            error_part=self.error,
            key=self.key,
            ids=self.ids,
        )


NAMES: Final = tuple(each.name for each in fields(Search) if each.name != "ids")


def search(text: str) -> Search:
    """Parse a search. Raises only SearchError."""
    if len(text) > LONGEST:
        raise SearchError(f"a search has at most {LONGEST:,} characters")
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise SearchError("this search contains characters that cannot be stored")
    given: dict[str, str] = {}
    ids: dict[int, None] = {}
    for name, value in _words(text):
        if name == "id":
            ids |= dict.fromkeys(_ids(value))
        elif name in given:
            raise SearchError(f'"{name}:" is given twice')
        elif not value.strip():
            raise SearchError(f'"{name}:" has no value')
        else:
            given[name] = value
    if len(ids) > MOST_IDS:
        raise SearchError(f"a search has at most {MOST_IDS} ids")
    if "status" in given:
        given["status"] = status_word(read_status(given["status"]))
    if "cause" in given:
        given["cause"] = read_cause(given["cause"])
    return Search(**given, ids=tuple(ids))


def _words(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while True:
        place += len(text[place:]) - len(text[place:].lstrip())
        if place == len(text):
            return
        name, found = "", _NAME.match(text, place)
        if found and found[1].lower() in (*NAMES, "id"):
            name, place = found[1].lower(), found.end()
        elif found and not text.startswith(EXEC_PREFIX, place):
            raise SearchError(
                f'a search has no field "{one_line(found[1], 40)}:", only '
                f"{', '.join(f'{each}:' for each in NAMES)} and id:"
            )
        if text.startswith('"', place):
            quoted = _QUOTED.match(text, place)
            if quoted is None:
                raise SearchError('a " is not closed')
            value, place = _ESCAPED.sub(r"\1", quoted[1]), quoted.end()
            if text[place : place + 1].strip():
                raise SearchError('after the " that closes a value, write a space; inside a value, write \\" for a "')
            yield name or "type", value
            continue
        bare = _BARE.match(text, place)
        value, place = (bare[0], bare.end()) if bare else ("", place)
        yield name or ("id" if _ID.fullmatch(value) else "type"), value


def _ids(value: str) -> list[int]:
    found = [int(part) if _ID.fullmatch(part) else 0 for part in value.split(",")]
    if not all(1 <= number < 2**63 for number in found):
        raise SearchError(f"{one_line(value, 60)!r} is not a job id: write 17, or id:17,18")
    return found


def _written(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


# --- one value --------------------------------------------------------------------------------------------------------


def read_status(text: str) -> Status:
    try:
        return Status("failed" if text.lower() == "retrying" else text.lower())
    except ValueError:
        raise SearchError(f"{one_line(text, 60)!r} is not one of {', '.join(STATUS_WORDS)}") from None


def read_cause(text: str) -> str:
    key = text.strip().lower()
    if not re.fullmatch(rf"[0-9a-f]{{{KEY_DIGITS}}}", key):
        raise SearchError(
            f"{one_line(text, 60)!r} is not a cause: a cause has {KEY_DIGITS} hexadecimal digits, as status prints them"
        )
    return key
