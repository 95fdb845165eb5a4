"""The progress of running jobs: a bar, the words beside the bar, and the estimated end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cronjobs.desk.insight.formatting import safe
from cronjobs.engine.rules.progress import in_words, reported_of, time_left


@dataclass(frozen=True)
class Progress:
    """A job's progress. Without the total ``of`` the page shows no bar. ``end_at`` is None if it is unknown."""

    words: str
    done: float
    of: float | None
    end_at: datetime | None


def progress_of(column: Any, started_at: datetime | None, now: datetime) -> Progress | None:
    """Return the progress in a job's *column*, or None if the attempt has reported none.

    The estimated end is never before *now*.
    """
    reported = reported_of(column)
    if reported is None or reported.progress.done is None:
        return None
    done, of = reported.progress.done, reported.progress.of
    left = time_left(reported, started_at, now) if started_at is not None else None
    try:
        end_at = None if left is None else now + left
    except OverflowError:  # at its pace so far, the job would take thousands of years
        end_at = None
    return Progress(safe(in_words(reported.progress)), done if of is None else min(done, of), of, end_at)


def progress_by_id(rows: Iterable[Any], columns: Mapping[int, Any], now: datetime) -> dict[int, Progress]:
    """Return the progress of the running jobs in *rows*, by id. Leave out jobs that have reported no progress."""
    found = {row.id: progress_of(columns.get(row.id), row.started_at, now) for row in rows}
    return {job_id: progress for job_id, progress in found.items() if progress is not None}
