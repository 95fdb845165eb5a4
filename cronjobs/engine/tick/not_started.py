"""The due jobs that a tick did not start, and why: for the tick's row, its log, and ``explain``. Pure.

A record is a JSON list of entries. An entry contains ``why`` (a key of WHY), ``job_type``, ``queue``, the number of
``jobs`` (there may be more if ``more`` is set), and the facts that the text of its reason needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Row

from cronjobs.engine.jobs.job_types import JobType, JobTypes
from cronjobs.engine.rules.concurrency import Limit, reached
from cronjobs.engine.store.not_started import WaitingLane
from cronjobs.model import rough
from cronjobs.text import one_line

UNKNOWN_TYPE: Final = "unknown type"
ELSEWHERE: Final = "other hosts"
BEHIND_ANOTHER: Final = "overlap"
LIMITED: Final = "limits"
OUT_OF_TIME: Final = "budget"
TOO_SHORT: Final = "short tick"
NO_PLACE: Final = "long jobs"
LONG_OFF: Final = "no long jobs"
NO_PROCESS: Final = "process"
NO_WORKER: Final = "slots"
AT_LIMIT: Final = "--limit"
PASSED_OVER: Final = "late"
STOPPED: Final = "stopped"
# The tick had no room, or no time, for a job that it could have started otherwise.
NO_ROOM: Final = (OUT_OF_TIME, NO_WORKER, AT_LIMIT, PASSED_OVER, STOPPED)
WHY: Final = {
    "paused": "the job's queue, or everything, was paused",
    "--queue": "the tick was only for queue {only}",
    "--only": "the tick was only for jobs of type {only}",
    UNKNOWN_TYPE: "no host knew the job type",
    ELSEWHERE: "the job type cannot run on that host",
    BEHIND_ANOTHER: "another job of schedule {schedule} was running, or came first",
    LIMITED: "{limit}",
    NO_PLACE: (
        "the timeout is longer than a tick, and that host was already running as many long jobs as run.long_jobs allows"
    ),
    NO_PROCESS: "the timeout is longer than a tick, and that host could not start a process for a long job: {error}",
    AT_LIMIT: "the tick had already started as many jobs as --limit allows",
    STOPPED: "the tick was asked to stop",
    OUT_OF_TIME: "the {default}timeout of {timeout_s}{stop} did not fit into the {left_s} left in the tick",
    TOO_SHORT: "the {default}timeout of {timeout_s}{stop} is longer than the {whole_s} of a whole tick (--budget)",
    LONG_OFF: (
        "the {default}timeout of {timeout_s}{stop} is longer than the {whole_s} of a whole tick, and long jobs are off "
        "on that host (run.long_jobs: 0)"
    ),
    NO_WORKER: "all workers of the tick were busy until it ended",
    PASSED_OVER: (
        "a worker was free, but the job came due as the tick ended, or another runner or transaction held it"
    ),
}
MOST_ENTRIES: Final = 50
LONGEST_NAME: Final = 200  # in characters


@dataclass(frozen=True)
class TickState:
    """The capacity that a tick had left when it ended.

    A job that may take longer than ``longest_s`` is a long job, and runs only if the host may run another long job. If
    the host may not run any (``long_jobs_off``), such a job runs only if its timeout fits into a tick. ``left`` is how
    many more jobs --limit allowed. ``slots`` says whether a worker was free. ``running`` counts the running jobs by
    concurrency key. ``without_process`` is why the tick could not start the process of a long job. After such an error
    the tick does not try to start another long job.
    """

    types: JobTypes
    longest_s: float
    remaining_s: float
    long_jobs_off: bool
    long_place: bool  # whether the host could have run one more long job
    whole_s: float  # how long a tick may take if it is not part of a lingering tick
    queue: str | None
    only: str | None
    left: int
    slots: bool
    stopped: bool
    limits: Sequence[Limit]
    running: Mapping[str, int]
    is_distrusted: Callable[[JobType], bool]  # see ``Experience``
    without_process: str | None


def why(lane: WaitingLane, row: Row[Any], tick: TickState) -> dict[str, Any]:
    """Return the first reason that applies to the job of *row*, with the facts that its sentence needs."""
    known = tick.types.types.get(lane.job_type)
    if lane.paused:
        return {"why": "paused"}
    if tick.queue not in (None, lane.queue):
        return {"why": "--queue", "only": tick.queue}
    if known is None:
        runnable = tick.types.runnable
        return {"why": ELSEWHERE if runnable is None or lane.job_type in runnable else UNKNOWN_TYPE}
    if tick.only not in (None, lane.job_type):
        return {"why": "--only", "only": tick.only}
    if not row.its_turn:
        return {"why": BEHIND_ANOTHER, "schedule": row.schedule}
    limit = reached(tick.limits, tick.running, row.concurrency_key)
    if limit is not None:
        return {"why": LIMITED, "limit": limit.reached, "prefix": limit.prefix}
    if tick.left <= 0:
        return {"why": AT_LIMIT}
    if tick.stopped:
        return {"why": STOPPED}
    own = row.timeout_s is not None
    timeout_s = row.timeout_s if own else known.timeout.total_seconds()
    stop_s = 0.0 if own else known.stop_grace.total_seconds()
    default = not own and not known.timeout_declared
    its = {"timeout_s": round(timeout_s, 3), "stop_s": stop_s or None, "default": default or None}
    is_long = timeout_s > tick.longest_s
    if is_long and not tick.long_jobs_off:
        if tick.without_process is not None:
            return {"why": NO_PROCESS, "error": one_line(tick.without_process, LONGEST_NAME)}
        return {"why": PASSED_OVER if tick.long_place else NO_PLACE}
    if timeout_s + stop_s > tick.whole_s:
        return {"why": LONG_OFF if is_long else TOO_SHORT, **its, "whole_s": round(tick.whole_s, 1)}
    if timeout_s + stop_s > tick.remaining_s:
        its |= {"overran": (default and tick.is_distrusted(known)) or None}
        return {"why": OUT_OF_TIME, **its, "left_s": math.floor(max(0.0, tick.remaining_s) * 10) / 10}
    return {"why": PASSED_OVER if tick.slots else NO_WORKER}


def record(lanes: Iterable[WaitingLane], tick: TickState) -> list[dict[str, Any]]:
    """Return the entries for the jobs waiting in *lanes*."""
    entries: dict[tuple[Any, ...], dict[str, Any]] = {}
    for lane in lanes:
        known = tick.types.types.get(lane.job_type)
        if known is not None and known.executor is not None:
            # A supervisor runs these jobs, so a tick does not have to explain why it did not start them.
            continue
        counts: dict[tuple[Any, ...], int] = {}
        for row in lane.rows:
            reason = {key: value for key, value in why(lane, row, tick).items() if value is not None}
            place = {"job_type": one_line(lane.job_type, LONGEST_NAME), "queue": one_line(lane.queue, LONGEST_NAME)}
            entry = {"why": reason.pop("why")} | place | reason
            key = tuple(entry.items())
            entries.setdefault(key, entry | {"jobs": 0})
            counts[key] = counts.get(key, 0) + 1
        more_due = lane.count - len(lane.rows)
        for key, count in counts.items():
            entries[key]["jobs"] += count + (more_due if len(counts) == 1 else 0)
            if more_due and len(counts) > 1:
                entries[key]["more"] = True
    return list(entries.values())[:MOST_ENTRIES]


def counted(lanes: Iterable[WaitingLane]) -> dict[str, int]:
    """Return how many due jobs are waiting, by job type."""
    counts: dict[str, int] = {}
    for lane in lanes:
        counts[lane.job_type] = counts.get(lane.job_type, 0) + lane.count
    return counts


def unknown_type(job_type: str, schedules: Sequence[str]) -> dict[str, Any]:
    """Return the entry for a job type that *schedules* use but that no tick knows."""
    names = [one_line(name, LONGEST_NAME) for name in schedules[:MOST_ENTRIES]]
    return {"why": UNKNOWN_TYPE, "job_type": one_line(job_type, LONGEST_NAME), "schedules": names}


def entry_for(
    entries: Any, *, job_type: str, queue: str, schedule: str | None, key: str | None, timeout_s: float | None
) -> Mapping[str, Any] | None:
    """Return the entry that applies to a job with these values, or None. An entry about a limit on the job's key comes
    first.

    Any version of cronjobs may have written *entries*.
    """
    found: Mapping[str, Any] | None = None
    here = (one_line(job_type, LONGEST_NAME), one_line(queue, LONGEST_NAME))
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or str(entry.get("why")) not in WHY:
            continue
        if (entry.get("job_type"), entry.get("queue")) != here:
            continue
        if "schedule" in entry and entry["schedule"] != schedule:
            continue
        if timeout_s is not None and entry.get("timeout_s", timeout_s) != round(timeout_s, 3):
            continue
        if "prefix" in entry:
            if (key or "").startswith(str(entry["prefix"])):
                return entry
        elif found is None:
            found = entry
    return found


def in_words(entry: Mapping[str, Any]) -> str | None:
    """Return an entry as a sentence, or None if the entry lacks a fact."""
    try:
        spans = {name: rough(timedelta(seconds=value)) for name, value in entry.items() if name.endswith("_s")}
        # Rounded to whole seconds, both times would look the same, as if the timeout fitted. So show a decimal.
        if spans.get("left_s") == spans.get("timeout_s"):
            spans |= {name: f"{entry[name]:.1f}s" for name in ("left_s", "timeout_s") if name in spans}
        stop = f", with {spans['stop_s']} to stop its process," if "stop_s" in spans else ""
        default = "default " if entry.get("default") else ""
        facts = {**entry, **spans, "stop": stop, "default": default}
        return one_line(WHY[str(entry["why"])].format_map(facts), 300)
    except (KeyError, ValueError, TypeError, OverflowError):
        return None


def why_it_must_fit(entry: Mapping[str, Any]) -> str:
    """Return text to append to ``in_words`` if the timeout counts only because a tick interrupted a job of the type."""
    return _INTERRUPTED if entry.get("overran") else ""


_INTERRUPTED: Final = (
    "; the type declares no timeout, and a tick had to interrupt a job of this type in the last 24 hours, so the "
    "whole default timeout must fit. If you declare a short timeout, jobs of this type can also begin late in a tick"
)
