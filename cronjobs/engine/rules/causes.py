"""Group deaths of jobs by cause. Deaths with the same job type, error class and normalised error text share a cause.

Commands, alerts and cron's mail all use this rule. Pure, and linear in the number of rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple

from cronjobs.engine.rules.error_groups import class_and_text, normalised, shown_line
from cronjobs.errors import EffectUnknown

KEY_DIGITS: Final = 12  # hexadecimal digits
_SETTLE, _DONE = str(EffectUnknown("KEY")).split("KEY")


class CauseName(NamedTuple):
    """The name of a cause. ``message`` is the first line of its deaths' error, masked and ``normalised``."""

    job_type: str
    error_type: str | None
    message: str

    @property
    def key(self) -> str:
        """A short name for people to type. All processes that mask the same secrets compute the same key."""
        return sha256(json.dumps(self).encode()).hexdigest()[:KEY_DIGITS]

    @property
    def error(self) -> str:
        """The error's class and message, such as "GiveUp: there is no invoice <n>".

        The text of an EffectUnknown contains a command. Leave that command out, because normalising has removed the
        numbers of the effect's key, so nobody can type it.
        """
        message = self.message
        if self.error_type == EffectUnknown.__name__ and message.startswith(_SETTLE):
            key, _, earlier = message.removeprefix(_SETTLE).rpartition(_DONE)
            message = f"{_SETTLE.partition(':')[0]}: {key}{earlier}"
        return class_and_text(self.error_type, message) or "(no message)"


def cause_of(job_type: str, error_type: str | None, error: str | None) -> CauseName:
    """Return the cause of a death. *error* may be cut, but must have the beginning that ``normalised`` reads."""
    return CauseName(job_type, error_type, normalised(error or ""))


@dataclass(frozen=True)
class Cause:
    """The open dead jobs of one cause. Open means that nobody has retried or dismissed the job.

    ``first_job_id`` and ``last_job_id`` are the smallest and the largest id. ``sample_job_id`` is the job that died
    last. ``new`` is True if no stored job had died of this cause before the last change of the configuration file.
    ``error`` is the text to show to people. If all these deaths have the same error text, it is that text in full.
    Otherwise it is ``name.error``.
    """

    name: CauseName
    key: str
    jobs: int
    first_died_at: datetime
    last_died_at: datetime
    first_job_id: int
    last_job_id: int
    sample_job_id: int
    new: bool
    error: str


def causes(deaths: Iterable[Any], changed_at: datetime | None, before: Iterable[Any] = ()) -> list[Cause]:
    """Group *deaths* by cause, the largest group first. *deaths* are rows of the store's ``newest_deaths``.

    *changed_at* is when the configuration file was last changed. If it is None, the file has never been changed, and no
    cause is new. *before* contains the deaths up to that instant, including deaths that a person has already dealt
    with.
    """
    groups: dict[CauseName, list[Any]] = {}
    for row in deaths:
        groups.setdefault(cause_of(row.job_type, row.error_type, row.error), []).append(row)
    known = {cause_of(row.job_type, row.error_type, row.error) for row in before}
    found = [_cause(name, rows, changed_at, is_known=name in known) for name, rows in groups.items()]
    found.sort(key=lambda cause: (-cause.jobs, -cause.last_died_at.timestamp(), cause.key))
    return found


def _cause(name: CauseName, rows: list[Any], changed_at: datetime | None, *, is_known: bool) -> Cause:
    first = min(row.finished_at for row in rows)
    last = max(rows, key=lambda row: (row.finished_at, row.id))
    ids = [row.id for row in rows]
    is_new = changed_at is not None and first > changed_at and not is_known
    texts = {shown_line(row.error or "") for row in rows}
    error = name.error if len(texts) > 1 else class_and_text(name.error_type, *texts) or name.error
    return Cause(name, name.key, len(rows), first, last.finished_at, min(ids), max(ids), last.id, is_new, error)
