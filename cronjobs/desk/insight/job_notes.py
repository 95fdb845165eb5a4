"""Format the note that a list shows beside a job: its progress and its error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cronjobs.desk.insight.formatting import Times, counted, host_of, safe, took, tries
from cronjobs.desk.insight.releasing import Holders
from cronjobs.desk.rules.occurrence_results import overrun_since
from cronjobs.engine.rules.recovery_policy import seconds
from cronjobs.model import Status, rough


def note(
    job: Mapping[Any, Any], times: Times, holders: Holders, *, most: int | None, error: str, otherwise: str = ""
) -> str:
    """Return text such as "on web1, lease 48s left" or "failed 3 of 10, lost 1 time, queue mail: no disk".

    *most*: how many tries the job has, if known. *error*: the job's last error, or "". If *error* is "" or out of date,
    *otherwise* takes its place.
    """
    failed = tries(job["failures"], most)
    lost = f"lost {counted(job['losses'], 'time')}" if job["losses"] else ""
    queue = "" if job["queue"] == "default" else f"queue {safe(job['queue'], 80)}"
    last = otherwise
    match job["status"]:
        case Status.SUCCEEDED:
            parts = [took(job["started_at"], job["finished_at"]), failed, queue]
        case Status.RUNNING:
            parts = [
                f"on {host_of(job['locked_by'])}",
                _overrun(job, times, holders),
                holders.lease(job, times),
                failed,
                queue,
            ]
        case Status.QUEUED if not failed and not lost:
            # A queued job that has attempts was snoozed, interrupted, released, or retried by hand.
            parts = ["claimed before" if job["attempts"] else "", queue]
        case _:
            parts, last = [failed, lost, queue], error or otherwise
    summary = ", ".join(part for part in parts if part)
    return ": ".join(part for part in (summary, last) if part)


def _overrun(job: Mapping[Any, Any], times: Times, holders: Holders) -> str:
    policy = job["policy"] if isinstance(job["policy"], Mapping) else {}
    since = overrun_since(job["started_at"], seconds(policy.get("runner_s")), times.now)
    return (
        ""
        if since is None or holders.is_lost(job, times.now)
        else f"should have been stopped {rough(times.now - since)} ago"
    )


def is_dismissed(job: Mapping[Any, Any]) -> bool:
    """Return whether someone has dismissed the job since its last death.

    After a retry, a new death has to be dismissed again.
    """
    return (
        job["dismissed_at"] is not None and job["status"] == Status.DEAD and job["dismissed_at"] >= job["finished_at"]
    )
