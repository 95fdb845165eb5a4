"""A finding: a problem that someone has to fix."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from cronjobs import masking
from cronjobs.desk.insight.formatting import counted
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.store.given_up import GivenUp
from cronjobs.errors import MESSAGE_LIMIT
from cronjobs.text import one_line

NAMED: Final = 3  # a finding lists this many names, and counts the rest


class Severity(StrEnum):
    """How bad a finding is. A notice is worth a look but raises no alarm. During a deploy, notices are normal."""

    CRITICAL = "critical"  # ticks do not do the due work, or do nothing at all
    WARNING = "warning"
    NOTICE = "notice"

    @property
    def rank(self) -> int:
        """Return a number for sorting. 0 is the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Ack:
    """An acknowledgement: ``by`` whom, ``why``, and ``until`` when the finding stays quiet."""

    by: str | None
    why: str | None
    at: datetime
    until: datetime


@dataclass(frozen=True)
class Covered:
    """A finding that another finding also reports: the ``key`` of the covered finding, and which ``rows`` of it.

    If ``rows`` is empty, all rows are covered. ``until``: the finding is covered only if it began by this instant. None
    means that its beginning does not matter.
    """

    key: str
    rows: tuple[str, ...] = ()
    until: datetime | None = None

    def is_all_of(self, finding: Finding) -> bool:
        """Return whether this object covers all rows of *finding*."""
        in_time = self.until is None or (finding.since is not None and finding.since <= self.until)
        return self.key == finding.key and in_time and (not self.rows or set(finding.rows) <= set(self.rows))


@dataclass(frozen=True)
class Finding:
    """A problem that someone has to fix. ``kind`` is for programs, and ``text`` is one sentence for people.

    ``since`` and ``command`` (what to type) are set if they are known and not already in the text. If the text names
    several schedules, ``command`` contains a command for each of them. ``subject``: the host, queue or job type, for
    kinds with several findings. ``rows``: the ids or names that the finding is about, which an ack covers. ``ack``: the
    ack in force, or None. ``covers``: findings with the same cause, which this finding replaces (see ``same_cause``).
    ``follows``: earlier findings that turned into this finding. ``job_id``: the job, if the finding is about a single
    job. ``grew_at``: when the finding's newest part began (a death, a missed run, another schedule), if that may be
    later than ``since``. An ack covers only what began before the ack.
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
    grew_at: datetime | None = None

    def __post_init__(self) -> None:
        # The text quotes names from rows, and anyone may have written these names. So mask secrets, and keep the text
        # on one line.
        object.__setattr__(self, "text", one_line(masking.hide(self.text), MESSAGE_LIMIT))

    @property
    def key(self) -> str:
        """The finding's name for ``cronjobs ack``: "dead", "host:web2"."""
        return f"{self.kind}:{self.subject}" if self.subject else self.kind

    @property
    def newest_at(self) -> datetime | None:
        """When the newest part of the finding began, or None if nothing records it."""
        return max((at for at in (self.since, self.grew_at) if at is not None), default=None)

    @property
    def alarm(self) -> bool:
        """Whether someone has to look now: the finding is not a notice, and nobody has acknowledged it."""
        return self.severity is not Severity.NOTICE and self.ack is None


def finding_object(finding: Finding) -> dict[str, Any]:
    return asdict(finding) | {"key": finding.key, "alarm": finding.alarm}


def together(group: Sequence[Finding]) -> Finding:
    """Merge findings with the same key. The result is the worst finding that nobody has acknowledged, with all rows."""
    if len(group) == 1:
        return group[0]
    worst = min(group, key=lambda finding: (finding.ack is not None, finding.severity.rank))
    began = [finding.since for finding in group if finding.since is not None]
    return replace(
        worst,
        text=f"{worst.text} (and {len(group) - 1} more of this kind)",
        rows=tuple(dict.fromkeys(row for finding in group for row in finding.rows)),
        since=min(began, default=None),
        grew_at=max((finding.newest_at for finding in group if finding.newest_at is not None), default=None),
        covers=tuple(each for finding in group for each in finding.covers),
        follows=tuple(each for finding in group for each in finding.follows),
    )


def for_the_file_here(finding: Finding, settings: Settings) -> Finding:
    """Return *finding*. If ticks refuse the file here, add that to the text, as it is most likely the cause.

    If there is no file here, add nothing: the ticks may run in another folder or on another host.
    """
    if not settings.broken or settings.file not in settings.contents:
        return finding
    return replace(finding, text=f"{finding.text}; ticks refuse the file here", command="cronjobs check")


# --- wording ----------------------------------------------------------------------------------------------------------


def several(names: Sequence[str]) -> str:
    """Return text such as "a, b, c and 2 more"."""
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"


def waits_for_handler(job_type: str, jobs: int) -> str:
    return f"{wait_words(jobs, 'job')} for a handler of type {job_type}, which this project does not have"


def no_longer_in_file(names: str, count: int) -> str:
    """Return advice about waiting jobs of an unknown type. *names* lists the *count* schedules that used the type."""
    which, them = ("schedule", "it") if count == 1 else ("schedules", "them")
    return (
        f"{which} {names} used this type, but the file no longer has {them}: put {them} back, or cancel the waiting "
        "jobs"
    )


def typed(command: str, *names: str) -> str:
    """Return a command to type, with *names* quoted for a shell."""
    return " ".join([command, *map(shlex.quote, names)])


def one_after_another(commands: Iterable[str]) -> str:
    """Return one line for a shell that runs these commands, each once."""
    return "; ".join(dict.fromkeys(commands))


def given_up_text(found: GivenUp, what: str) -> str:
    """Return text such as "12 occurrences" or "1,000 or more dead jobs"."""
    count = sum(found.by_name.values())
    return f"{count:,} or more {what}s" if found.more else counted(count, what)


def wait_words(count: int, what: str) -> str:
    """Return text such as "2 due jobs wait"."""
    return f"{counted(count, what)} {'waits' if count == 1 else 'wait'}"


def waiting_words(due: int, schedules: Sequence[str]) -> list[str]:
    """Return what waits for an unknown job type, such as "2 due jobs wait" and "schedules a, b cannot run"."""
    found = []
    if due:
        found.append(wait_words(due, "due job"))
    if schedules:
        more = ", …" if len(schedules) > NAMED else ""
        word = "schedule" if len(schedules) == 1 else "schedules"
        found.append(f"{word} {', '.join(schedules[:NAMED])} cannot run{more}")
    return found
