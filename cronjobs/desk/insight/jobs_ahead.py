"""Count the due jobs that ticks start before a given job. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import NamedTuple

from cronjobs.desk.insight.explain_facts import JobsAhead
from cronjobs.engine.jobs.job_types import JobType
from cronjobs.engine.rules.concurrency import Candidate, Limit, choose
from cronjobs.engine.store.not_started import COUNTED, WaitingLane


class Place(NamedTuple):
    """A job's place in the order in which ticks start due jobs."""

    priority: int
    run_at: datetime
    id: int


def claimed_by_ticks(
    lanes: Sequence[WaitingLane], types: Mapping[str, JobType], runnable: Collection[str] | None
) -> list[WaitingLane]:
    """Return the *lanes* whose jobs a tick may start. Ticks do not claim the jobs of executors."""
    return [
        lane
        for lane in lanes
        if not lane.paused
        and (runnable is None or lane.job_type in runnable)
        and (lane.job_type not in types or types[lane.job_type].executor is None)
    ]


def jobs_ahead(
    place: Place, lanes: Sequence[WaitingLane], limits: Sequence[Limit], running: Mapping[str, int], workers: int
) -> JobsAhead | None:
    """Return how many jobs in *lanes* start before the job at *place*, or None if none does.

    *running* counts the running jobs by concurrency key. *workers* counts the workers of all hosts together.
    """
    lanes = [lane for lane in lanes if lane.priority <= place.priority]
    ahead = [[row for row in lane.rows if Place(lane.priority, row.run_at, row.id) < place] for lane in lanes]
    candidates = [[Candidate(row.id, row.concurrency_key) for row in rows if row.its_turn] for rows in ahead]
    holding = limits
    if len(choose(list(chain.from_iterable(candidates)), limits, {}, before=0, free=0).taken) >= max(1, workers):
        # These jobs can keep all workers busy: when one of them ends, its limit has room for the next. So only limits
        # of 0 leave a worker free for later jobs.
        holding = [limit for limit in limits if limit.most == 0]
    better = earlier = 0
    more = False
    for lane, rows, could_start in zip(lanes, ahead, candidates, strict=True):
        choice = choose(could_start, holding, running, before=0, free=0)
        could, running = len(choice.taken), choice.running
        if lane.priority == place.priority:
            earlier += could
            more |= lane.count > len(lane.rows) == len(rows)
        # The rows are a sample. If all jobs in the sample can start, and there are no limits, then the other jobs of
        # the lane can start, too.
        elif could == len(lane.rows) and not limits:
            better += lane.count
            more |= lane.count >= COUNTED
        else:
            better += could
            more |= lane.count > len(lane.rows)
    return JobsAhead(better, earlier, more) if better or earlier else None
