"""What a finding is: a problem that a person has to fix."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from cronjobs import masking
from cronjobs.engine.store.given_up import GivenUp
from cronjobs.errors import MESSAGE_LIMIT
from cronjobs.text import one_line

WELL: Final = "ticks come, nothing is late or dead, no schedule is behind"  # said where there is no finding
NAMED: Final = 3  # of several with the same problem; the rest are counted


class Severity(StrEnum):
    """How bad it is. A notice is worth a look, but normal in the middle of a deploy, and no alarm."""

    CRITICAL = "critical"  # something that was due does not happen, or nothing does
    WARNING = "warning"
    NOTICE = "notice"

    @property
    def rank(self) -> int:
        """0 is the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Ack:
    """A person knows about it: ``by`` whom, ``why``, and ``until`` when it stays quiet."""

    by: str | None
    why: str | None
    at: datetime
    until: datetime


@dataclass(frozen=True)
class Covered:
    """A finding for which another one stands: its key, and which of its ``rows``; (): all.

    ``until``: only if it began by then; None: whenever it began.
    """

    key: str
    rows: tuple[str, ...] = ()
    until: datetime | None = None

    def is_all_of(self, finding: Finding) -> bool:
        """Whether nothing of *finding* is left without this."""
        in_time = self.until is None or (finding.since is not None and finding.since <= self.until)
        return self.key == finding.key and in_time and (not self.rows or set(finding.rows) <= set(self.rows))


@dataclass(frozen=True)
class Finding:
    """A problem that a person has to fix. ``kind`` is for programs, ``text`` one sentence for people.

    ``since`` and ``command`` (what to type) are set if they are known and not in the text. ``subject``: which host,
    queue or job type it is about, if there may be several of a kind. ``rows``: the ids or names behind it; an ack
    covers these. ``ack``: who acknowledged it, while that holds. ``covers``: findings that it stands for, as it has the
    same cause: see ``same_cause``; ``follows``: what there is no more because this came of it. ``job_id``: the job that
    it is about, if that is one.
    """

    kind: str
    text: str
    severity: Severity = Severity.WARNING
    since: datetime | None = None
    command: str | None = None
    subject: str = ""
    rows: tuple[str, ...] = ()
    ack: Ack | None = None
    covers: tuple[Covered, ...] = ()
    follows: tuple[Covered, ...] = ()
    job_id: int | None = None

    def __post_init__(self) -> None:
        # The text quotes names that anyone may have written.
        object.__setattr__(self, "text", one_line(masking.hide(self.text), MESSAGE_LIMIT))

    @property
    def key(self) -> str:
        """Its name for ``cronjobs ack``: "dead", "host:web2"."""
        return f"{self.kind}:{self.subject}" if self.subject else self.kind

    @property
    def alarm(self) -> bool:
        """Whether somebody has to look now."""
        return self.severity is not Severity.NOTICE and self.ack is None


def together(group: Sequence[Finding]) -> Finding:
    """One finding for several with the same key: the worst that nobody has acknowledged, with the rows of all."""
    if len(group) == 1:
        return group[0]
    worst = min(group, key=lambda finding: (finding.ack is not None, finding.severity.rank))
    began = [finding.since for finding in group if finding.since is not None]
    return replace(
        worst,
        text=f"{worst.text} (and {len(group) - 1} more of this kind)",
        rows=tuple(dict.fromkeys(row for finding in group for row in finding.rows)),
        since=min(began, default=None),
        covers=tuple(each for finding in group for each in finding.covers),
        follows=tuple(each for finding in group for each in finding.follows),
    )


def for_the_file_here(finding: Finding) -> Finding:
    """The same, where ticks refuse the file here: that is most likely why they do not come, or fire nothing."""
    return replace(finding, text=f"{finding.text}; ticks refuse the file here", command="cronjobs check")


# --- wording ----------------------------------------------------------------------------------------------------------


def several(names: Sequence[str]) -> str:
    """ "a, b, c and 2 more"."""
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"


def typed(command: str, *names: str) -> str:
    """A command to type, with *names* quoted for a shell."""
    return " ".join([command, *map(shlex.quote, names)])


def given_up_text(found: GivenUp, what: str) -> str:
    """ "12 occurrences", "1,000 or more dead jobs"."""
    count = sum(found.by_name.values())
    return f"{count:,} or more {what}s" if found.more else jobs_text(count, what)


def jobs_text(count: int, what: str = "job") -> str:
    return f"1 {what}" if count == 1 else f"{count:,} {what}s"


def waiting_words(due: int, schedules: Sequence[str]) -> list[str]:
    """What a job type that nobody knows keeps back: "2 due jobs wait", "schedules a, b cannot run"."""
    found = []
    if due:
        found.append("1 due job waits" if due == 1 else f"{due:,} due jobs wait")
    if schedules:
        more = ", …" if len(schedules) > NAMED else ""
        word = "schedule" if len(schedules) == 1 else "schedules"
        found.append(f"{word} {', '.join(schedules[:NAMED])} cannot run{more}")
    return found
