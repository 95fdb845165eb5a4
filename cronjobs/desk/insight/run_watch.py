"""Find schedules whose occurrences did not run, while reading as few ledger rows as possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs.desk.rules.occurrence_results import (
    DEFAULT_GRACE,
    SAID_ELSEWHERE,
    ByHand,
    JobNow,
    OccurrenceResult,
    UnrunOccurrences,
    covered_by,
    standing,
    waited_for,
    why_not_run,
)
from cronjobs.desk.store import status_facts as store
from cronjobs.engine.config.settings import ScheduleSettings
from cronjobs.engine.schedules.decide import spread_offset
from cronjobs.engine.schedules.definition import schedule_from_definition
from cronjobs.engine.store.schedules import StoredSchedule

# Read this many rows of a schedule whose newest run did not succeed.
RUNS_LOOKED_AT: Final = 10
# Read this many rows first. They are nearly always enough: one row for a running job, and one for a successful run.
FEW: Final = 2
ASKED_AT_ONCE: Final = 2000  # a statement asks for at most this many schedules
PAGE: Final = 100  # when reading further back, read this many rows at a time
# Read at most this many pages. Only a schedule without any success needs this many, if operators dealt with all of its
# runs.
PAGES: Final = 50


def newest_rows(connection: Connection, schedules: Sequence[StoredSchedule]) -> dict[int, list[OccurrenceResult]]:
    """Map each schedule's id to its newest ledger rows, back to the last success, but at most RUNS_LOOKED_AT."""
    found: dict[int, list[OccurrenceResult]] = {}
    ids = [each.id for each in schedules]
    for rows in (FEW, RUNS_LOOKED_AT):
        for first in range(0, len(ids), ASKED_AT_ONCE):
            found |= store.lately(connection, ids[first : first + ASKED_AT_ONCE], rows)
        ids = [id_ for id_ in ids if len(its := found.get(id_, [])) == FEW and not any(map(_ran_well, its))]
    return found


def _ran_well(row: OccurrenceResult) -> bool:
    """Return whether this row is a success, so that findings need no older rows."""
    return row.went_well and row.outcome == "enqueued"


def not_run(
    connection: Connection,
    schedules: Sequence[StoredSchedule],
    lately: dict[int, list[OccurrenceResult]],
    by_hand: Callable[[str], Sequence[ByHand]],
    now: datetime,
) -> dict[str, tuple[UnrunOccurrences, ...]]:
    """Find schedules with an occurrence that did not run and that nobody has dealt with. Return facts by name.

    There is an entry for each reason and job, the newest first. Missed runs and dead jobs are left out, since they have
    their own findings.

    *lately* maps schedule ids to their newest ledger rows. If these rows do not decide the question, older rows are
    added to *lately*. *by_hand* reads the runs of a schedule that people triggered.
    """
    asked = [each for each in schedules if lately.get(each.id)]
    heads: dict[str, JobNow] = {}
    for first in range(0, len(asked), ASKED_AT_ONCE):
        heads |= store.heads(connection, [each.name for each in asked[first : first + ASKED_AT_ONCE]])
    found: dict[str, tuple[UnrunOccurrences, ...]] = {}
    for each in asked:
        head, grace = _of(each, heads)
        judged = standing(lately[each.id], head, now, grace)
        if not judged.certain and not judged.ended and len(lately[each.id]) >= RUNS_LOOKED_AT:
            lately[each.id] += _further_back(connection, each.id, lately[each.id], head, now, grace)
            judged = standing(lately[each.id], head, now, grace)
        if all(entry.why in SAID_ELSEWHERE for entry in judged.not_run):
            continue
        covered = covered_by(_making_up(by_hand(each.name), judged.not_run), now, grace)
        judged = standing(lately[each.id], head, now, grace, covered)
        if entries := tuple(entry for entry in judged.not_run if entry.why not in SAID_ELSEWHERE):
            found[each.name] = entries
    return found


def covered_by_hand(
    stored: StoredSchedule, runs: Sequence[ByHand], not_run: Sequence[UnrunOccurrences], now: datetime
) -> datetime | None:
    """Return the time up to which a run triggered by hand makes up for occurrences, or None without such a run."""
    return covered_by(_making_up(runs, not_run), now, _of(stored, {})[1])


def _making_up(runs: Sequence[ByHand], not_run: Sequence[UnrunOccurrences]) -> list[ByHand]:
    """Leave out the triggered runs whose jobs were put off beyond later occurrences. *not_run* lists such jobs."""
    waiting = {each.job.id for each in not_run if each.job is not None and each.why == "put off"}
    return [run for run in runs if run.job_id not in waiting]


def as_ledger_row(schedule_id: int, run: ByHand) -> OccurrenceResult | None:
    """Return a run triggered by hand as a ledger row, or None if its job was pruned."""
    if run.job is None:
        return None
    return OccurrenceResult(schedule_id, run.at, run.at, "enqueued", None, run.at, run.job.id, run.job)


def ran_by_hand(runs: Sequence[ByHand]) -> datetime | None:
    """Return when a person triggered the newest run that succeeded, or None. A run whose job is pruned counts, too."""
    return max((each.at for each in runs if each.job is None or each.job.status == "succeeded"), default=None)


def grace_of(schedule: ScheduleSettings) -> timedelta:
    """Return the time within which an occurrence must have run: the delay by ``spread:`` plus the grace."""
    return spread_offset(schedule) + (DEFAULT_GRACE if schedule.grace is None else schedule.grace)


def _of(stored: StoredSchedule, heads: Mapping[str, JobNow]) -> tuple[JobNow | None, timedelta]:
    """Return the schedule's head (the job that its other jobs wait for), if any, and the schedule's grace."""
    try:
        schedule = schedule_from_definition(stored.name, stored.definition)
    except ValueError:
        return heads.get(stored.name), DEFAULT_GRACE
    head = None if schedule.overlap == "allow" else heads.get(stored.name)
    return head, grace_of(schedule)


def _further_back(
    connection: Connection,
    schedule_id: int,
    rows: Sequence[OccurrenceResult],
    head: JobNow | None,
    now: datetime,
    grace: timedelta,
) -> list[OccurrenceResult]:
    """Read rows older than *rows*, back to a row that decides whether something did not run."""
    more: list[OccurrenceResult] = []
    page = list(rows)
    known: set[int] = set()  # jobs that may have made the schedule skip any number of occurrences
    for _ in range(PAGES):
        judged = standing(page, head, now, grace)
        known |= {entry.job.id for entry in judged.not_run if entry.job is not None}
        known |= {row.job_id for row in page if row.job_id is not None and _is_well(row, head, now, grace)}
        page = store.further_back(connection, schedule_id, page[-1].last_for, known, PAGE)
        more += page
        judged = standing(page, head, now, grace)
        if len(page) < PAGE or judged.ended or judged.certain:
            break
    return more


def _is_well(row: OccurrenceResult, head: JobNow | None, now: datetime, grace: timedelta) -> bool:
    """Return whether all is well with this row's job, or the row has no job.

    If all is well with the job, then occurrences that were skipped because of it need not be checked either.
    """
    if row.ran_early:
        return False
    if row.job is None:
        return True
    # A job of an occurrence that is not due yet was made by a wrong clock.
    if row.job.scheduled_for is not None and row.job.scheduled_for <= now < row.job.scheduled_for + grace:
        return True  # the job is still within its grace
    return why_not_run(waited_for(row.job, head), row.first_for, now, grace) is None
