"""All events of a tick. An event has a constant name and facts, and can be written as a line of text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from shlex import quote
from typing import Any, Final, NamedTuple

from cronjobs.engine.rules.failed_job import described, error_line, last_own_line
from cronjobs.model import Finished, Job, Lost, RetryPolicy, Status, Transition, duration_text, rough, seconds_text
from cronjobs.text import one_line
from cronjobs.version import __version__

INFO: Final = "info"
WARNING: Final = "warning"
ERROR: Final = "error"

VALUE_LIMIT: Final = 500  # a fact in a line is cut to this many characters


class Event(NamedTuple):
    """A constant name and its facts.

    ``printed`` says whether the event is printed on a terminal. ``cause`` is the text by which we recognise a problem
    that cron has already mailed. If ``cause`` is None, the event's line serves as the cause.
    """

    name: str
    facts: dict[str, Any] = {}  # noqa: RUF012 nobody changes it
    level: str = INFO
    printed: bool = True
    cause: str | None = None


def _of(job: Job, worker: str, **more: Any) -> dict[str, Any]:
    return {"job_id": job.id, "job_type": job.job_type, "worker": worker, "attempt": job.attempt, **more}


def job_claimed(job: Job) -> Event:
    return Event("job.claimed", _of(job, ""), printed=False)


def job_started(job: Job, worker: str) -> Event:
    """The job's code is about to run. The thread of the job's worker emits this event."""
    return Event("job.started", _of(job, worker), printed=False)


def job_progress(job: Job, worker: str, progress: str) -> Event:
    """The job's progress, for a person at a terminal. The log contains no progress, only the job's start and end."""
    return Event("job.progress", _of(job, worker, progress=progress))


def job_released(job: Job) -> Event:
    """A job that was claimed ahead is released: no worker would have been free soon, or the tick is ending."""
    return Event("job.released", _of(job, ""), printed=False)


def job_not_begun(job: Job, error: str) -> Event:
    """A job could not be started, for a reason outside the job. The job is released, and no try is used up."""
    return Event("job.not_begun", _of(job, "", error=error), ERROR)


def worker_not_started(error: str, workers: int) -> Event:
    others = "1 worker" if workers == 1 else f"{workers} workers"
    rest = f"the tick continues with {others}" if workers else "nothing can run in this tick"
    return Event("worker.not_started", {"workers": workers, "error": f"cannot start a thread: {error}; {rest}"}, ERROR)


def job_ended(end: Finished, transition: Transition, policy: RetryPolicy, folder: Path) -> Event:
    """Return the event for the job's next state: succeeded, retried, dead, cancelled, interrupted or snoozed.

    *folder* is the folder of the user's own code, which is needed to find the line at which a dead job failed.
    """
    job = end.job
    facts = _of(job, end.worker, duration_ms=_ms(end.duration))
    error = getattr(end.outcome, "error", None)
    match transition.status:
        case Status.SUCCEEDED:
            note = getattr(end.outcome, "note", None)
            return Event("job.succeeded", facts | ({"note": note} if note else {}), WARNING if note else INFO)
        case Status.CANCELLED:
            return Event("job.cancelled", facts | {"error": error}, WARNING)
        case Status.DEAD:
            at = last_own_line(getattr(end.outcome, "traceback", None), folder)
            kind = getattr(end.outcome, "error_type", None)
            of_death = {"error_type": kind, "error": error, "at": at, "tries": _tries(job, transition, policy)}
            return Event("job.dead", facts | of_death, ERROR)
        case Status.FAILED:
            wait = _whole_ms(transition.delay)
            of_retry = {"error": error, "tries": _tries(job, transition, policy), "next_delay_ms": wait}
            return Event("job.retried", facts | of_retry, WARNING)
        case _ if transition.delay is not None:
            return Event("job.snoozed", facts | {"next_delay_ms": _whole_ms(transition.delay)})
        case _:
            return Event("job.interrupted", facts | {"error": error}, WARNING)


def _tries(job: Job, transition: Transition, policy: RetryPolicy) -> str:
    most = job.max_attempts or policy.max_attempts
    return f"{transition.failures} of {most}" + (", permanent" if transition.permanent else "")


def job_lost(job: Job, transition: Transition, error: str) -> Event:
    facts = _of(job, "", error=error, losses=transition.losses, last_runner=job.locked_by)
    if transition.status is Status.DEAD:
        return Event("job.dead", facts | {"error_type": Lost.error_type}, ERROR)
    return Event("job.lost", facts, WARNING)


def job_died_unreported(job_id: int, job_type: str, error_type: str | None, error: str | None) -> Event:
    """A process recorded this death, and was killed before it could report it."""
    note = "the process that recorded this was killed"
    facts = {"job_id": job_id, "job_type": job_type, "error_type": error_type, "error": error, "note": note}
    return Event("job.dead", facts, ERROR)


def type_crashing(job_type: str) -> Event:
    error = (
        "two runners died or lost the database within an hour while they held jobs of this type. In case their "
        "code crashed the runners, these jobs now run in child processes, where a crash harms no other job. This ends "
        "when 20 jobs in a row have ended without a crash, or after an hour"
    )
    return Event("job_type.crashing", {"job_type": job_type, "error": error}, WARNING)


def type_cleared(job_type: str) -> Event:
    return Event("job_type.cleared", {"job_type": job_type, "note": "20 jobs in a row ended without a crash"})


def lease_cut(job_id: int, job_type: str, locked_until: datetime, left: timedelta) -> Event:
    error = (
        f"the job's lease was set to end at {locked_until.isoformat()}. No host with a correct clock sets a lease that "
        f"ends so late. The lease now ends in {rough(left)}, unless its runner renews it"
    )
    return Event("job.lease_cut", {"job_id": job_id, "job_type": job_type, "error": error}, WARNING)


def job_timed_out(job: Job, worker: str, timeout: timedelta) -> Event:
    """The job has timed out, but its thread is still running. The thread occupies a worker until the tick ends."""
    error = f"still running after its timeout of {duration_text(timeout)}"
    return Event("job.timed_out", _of(job, worker, error=error, duration_ms=_ms(timeout)), WARNING)


def job_still_running(job: Job, worker: str, why: str) -> Event:
    return Event("job.still_running", _of(job, worker, error=f"did not stop in time ({why})"), WARNING)


def job_handed_over(job: Job, timeout: timedelta) -> Event:
    """The job's timeout is longer than a tick has time for, so the job's own process has taken over the lease."""
    return Event("job.handed_over", _of(job, "", timeout_s=round(timeout.total_seconds())))


def not_handed_over(job: Job, why: str) -> Event:
    error = f"the job needs its own process, which could not be started, so the job is released: {why}"
    return Event("job.not_handed_over", _of(job, "", error=error), ERROR)


def supervisor_started(executor: str, pid: int) -> Event:
    """A supervisor has been started, because jobs for the executor are due and none was running on this host."""
    return Event("executor.started", {"executor": executor, "pid": pid})


def supervisor_not_started(executor: str, why: str) -> Event:
    return Event("executor.not_started", {"executor": executor, "error": why}, ERROR)


def supervisor_ended(executor: str, why: str) -> Event:
    return Event("executor.ended", {"executor": executor, "why": why})


def cluster_away(executor: str, address: str, why: str) -> Event:
    """The cluster cannot be reached. While it is away, no job is claimed for it.

    Jobs that already run on the cluster keep running for as long as their permits are confirmed.
    """
    return Event(
        "executor.away", {"executor": executor, "error": f"the scheduler {address} cannot be reached: {why}"}, ERROR
    )


def cluster_back(executor: str, address: str) -> Event:
    return Event("executor.back", {"executor": executor, "address": address})


def lease_lost(job: Job, worker: str) -> Event:
    error = "another runner took over the lease, or it expired; this attempt recorded nothing"
    return Event("job.lease_lost", _of(job, worker, error=error), ERROR)


def end_not_recorded(job: Job, worker: str, why: str) -> Event:
    error = (
        f"the attempt ended, but {why}: a later tick will record the attempt as lost, and the job's on_lost "
        "setting decides whether the job runs again"
    )
    return Event("job.end_not_recorded", _of(job, worker, error=error), ERROR)


def occurrence_recorded(
    schedule: str, outcome: str, count: int, last_for: datetime, reason: str | None, job_id: int | None
) -> Event:
    facts = {"schedule": schedule, "for": last_for.isoformat(), "count": count, "reason": reason, "job_id": job_id}
    match outcome:
        case "enqueued":
            return Event("schedule.enqueued", facts)
        case "skipped":
            return Event("schedule.skipped", facts, INFO if (reason or "").startswith("paused") else WARNING)
        case "missed":
            return Event("schedule.missed", facts, WARNING)
        case _:
            return Event("schedule.coalesced", facts, WARNING)


def jobs_dropped(job_type: str, queue: str, count: int) -> Event:
    """A full queue has dropped jobs. The program that enqueued them emits this event, through Python's logging."""
    facts = {"job_type": job_type, "queue": queue, "count": count}
    return Event("queue.dropped", facts | {"error": "the queue is full and drops jobs (on_full: drop)"}, WARNING)


def key_of_another_type(job_type: str, existing_type: str, replaced: bool, job_id: int, count: int) -> Event:
    """A program used idempotency keys that jobs of another type already had. The program emits this event, through
    Python's logging.
    """
    became = "had the same idempotency key and was replaced" if replaced else "has the same idempotency key"
    kept = "" if replaced else f", so no {job_type} job was enqueued"
    facts = {"job_type": job_type, "existing_type": existing_type, "job_id": job_id, "count": count}
    share = "all job types share one set of idempotency keys, so begin each key with the job's type"
    error = f"job {job_id} ({existing_type}) {became}{kept}; {share}"
    return Event("enqueue.key_of_another_type", facts | {"error": error}, WARNING)


def schedules_applied(fingerprint: str, changes: dict[str, list[str]]) -> Event:
    facts = {
        "fingerprint": fingerprint,
        "add": changes.get("add"),
        "change": changes.get("change"),
        "remove": changes.get("remove"),
        "rename": changes.get("rename"),
        "queues": changes.get("queues"),
    }
    return Event("schedules.applied", {name: value for name, value in facts.items() if value})


def sync_unfinished(fingerprint: str, left: Collection[str]) -> Event:
    why = (
        "only part of the file was applied: other transactions have locked the rest, or time ran out; the next "
        "tick will continue with the rest"
    )
    some = [*list(left)[:5], *(["…"] if len(left) > 5 else [])]
    return Event("sync.unfinished", {"fingerprint": fingerprint, "left": some, "error": why}, WARNING)


def watermark_reset(schedule: str, seen_until: datetime) -> Event:
    why = (
        f"because a clock was wrong, a tick settled the schedule up to {seen_until.isoformat()}, which is in the "
        "future. The tick withdraws the jobs that were created too early"
    )
    return Event("schedule.watermark_reset", {"schedule": schedule, "error": why}, WARNING)


def jobs_taken_back(jobs: int) -> Event:
    why = (
        "a clock that was ahead created these jobs too early; they had not started, and will be created again "
        "when they are due"
    )
    return Event("jobs.taken_back", {"jobs": jobs, "error": why}, WARNING)


def ran_early(schedule: str, instants: list[datetime], job_ids: list[int]) -> Event:
    """A wrong clock ran these occurrences early. Cron mails this once, because ticks enqueue no other job for them."""
    due = ", ".join(instant.isoformat(timespec="minutes") for instant in instants[:5])
    more = f" and {len(instants) - 5} more" if len(instants) > 5 else ""
    why = (
        f"the occurrences of {due}{more} ran too early, because a clock was ahead. Ticks enqueue no other jobs for "
        "them. Only a job that has not ended, such as one that failed, still runs again. To see how the first of these "
        "jobs ended, and what to do: "
        f'"cronjobs explain {quote(schedule)} --at {instants[0].isoformat(timespec="seconds")}"'
    )
    return Event("schedule.ran_early", {"schedule": schedule, "job_ids": job_ids[:5], "error": why}, ERROR)


def held_back(schedule: str, held: int, first: datetime, last: datetime, by: str) -> Event:
    """A pause has ended. The occurrences that it held back are being settled."""
    span = {"from": first.isoformat(), "to": last.isoformat()}
    return Event("schedule.held_back", {"schedule": schedule, "held_back": held} | span | {"reason": by})


def schedule_broken(schedule: str, reason: str) -> Event:
    return Event("schedule.broken", {"schedule": schedule, "error": reason}, ERROR)


def schedules_left() -> Event:
    why = (
        "half of the tick's time was used and some schedules are still due: the next tick will start with those that "
        "have been due longest"
    )
    return Event("schedules.left", {"error": why}, WARNING)


def unresolved(job_type: str, waiting: int) -> Event:
    why = "no handler or command of this name is registered on this host; the jobs wait"
    return Event("jobs.unresolved", {"job_type": job_type, "waiting": waiting, "error": why}, WARNING)


def unknown_type(job_type: str, schedules: list[str], *, not_loaded: bool) -> Event:
    """*not_loaded* is whether this tick has reported that a module of handlers could not be loaded."""
    renamed = ": was the handler renamed, or is its module not imported?"
    hint = " (see the module that could not be loaded)" if not_loaded else renamed
    why = f"no host knows this job type, so its jobs wait{hint}"
    return Event("jobs.unknown_type", {"job_type": job_type, "schedules": schedules or None, "error": why}, ERROR)


def fault(where: str, what: str) -> Event:
    return Event("config.fault", {"where": where, "error": what}, ERROR)


def fault_of_ours(error: BaseException, where: str) -> Event:
    """An unexpected error in cronjobs. The tick claims no more jobs, and finishes its running attempts."""
    what = f"an internal error in cronjobs {__version__}, {type(error).__name__}: {error}"
    return Event("tick.fault", {"error": what, "where": where}, ERROR)


def traceback_of_ours() -> Event:
    """The traceback of the error that ``fault_of_ours`` has reported. Only the log contains it."""
    return Event("tick.traceback", printed=False)


def clock_skew(seconds: float) -> Event:
    why = "this host's clock differs from the database's clock; cronjobs uses the database's clock"
    return Event("clock.skew", {"seconds": round(seconds, 1), "error": why}, WARNING)


def tick_not_started(error: str) -> Event:
    """The tick could not start, because of its file, its database, or the project that owns the database."""
    return Event("tick.not_started", {"error": error}, ERROR)


def signalled(name: str) -> Event:
    return Event("tick.stopping", {"signal": name}, WARNING)


def not_started(job_type: str, waiting: int, timeout_s: float, remaining_s: float) -> Event:
    """Due jobs did not fit into the remaining time of the tick. Printed only on a terminal, or with -v or --json."""
    timeout, left = seconds_text(timeout_s), rough(timedelta(seconds=max(0.0, remaining_s)))
    why = f"the timeout of {timeout} does not fit into the {left} that are left in this tick"
    return Event("job.not_started", {"job_type": job_type, "waiting": waiting, "error": why}, INFO)


def database_trouble(error: str, cause: str | None = None) -> Event:
    return Event("database.trouble", {"error": error}, ERROR, cause=cause)


def database_tried_again(error: str, failures: int, pause_s: float) -> Event:
    """A transient error. Cron mails it only if it persists."""
    return Event(
        "database.tried_again", {"error": error, "failures": failures, "next_delay_ms": round(pause_s * 1000)}, WARNING
    )


def pruning_put_off(error: str) -> Event:
    return Event("prune.put_off", {"error": error}, WARNING)


def extra_failed(extra: str, error: str) -> Event:
    """An extra failed. Cron mails this event, but it is not a fault of the tick, whose jobs ran."""
    return Event("extra.failed", {"extra": extra, "error": error}, ERROR, cause=f"extra.failed {extra}")


def extra_left_behind(extra: str, after_s: float) -> Event:
    """An extra took too long. The tick continued without the extra, and does not call it again."""
    facts = {"extra": extra, "after_ms": round(after_s * 1000)}
    return Event("extra.left_behind", facts, ERROR, cause=f"extra.left_behind {extra}")


def metrics_not_written(error: str) -> Event:
    """The metrics could not be written. Cron mails this event, but it is not a fault of the tick, whose jobs ran."""
    return Event("metrics.not_written", {"error": error}, ERROR)


def alert_sent(channel: str, findings: int) -> Event:
    return Event("alert.sent", {"channel": channel, "findings": findings})


def alert_not_sent(channel: str, findings: int, error: str) -> Event:
    """An alert could not be sent. A later tick will try again. Cron mails this, but it is not a fault of the tick."""
    facts = {"channel": channel, "findings": findings, "error": error}
    return Event("alert.not_sent", facts, ERROR, cause=f"alert.not_sent {channel}")


def alerts_failed(error: str) -> Event:
    """The findings could not be evaluated, or the database could not be queried. The next tick tries again."""
    return Event("alert.failed", {"error": error}, WARNING)


def ping_not_sent(what: str, error: str) -> Event:
    return Event("ping.not_sent", {"of": what, "error": error}, WARNING)


def left_behind(processes: list[str]) -> Event:
    """Processes still run as the tick ends. Nobody knows which thread started them, so they are only reported."""
    why = (
        'a handler thread started these processes, and they are still running; with "isolation: process", cronjobs '
        "would kill them"
    )
    return Event("tick.left_behind", {"processes": processes, "error": why}, WARNING)


def tick_ended(did: dict[str, Any], ended: str, duration: timedelta) -> Event:
    """The tick has ended. The nested values of *did* (``Result.did``) become plain facts that fit on a line."""
    facts: dict[str, Any] = {}
    for name, value in did.items():
        if name in ("occurrences", "options"):
            facts |= {f"{name}_{key}": each for key, each in value.items()}
        elif name == "kept_from_starting":
            facts[name] = sum(cause["ticks"] for cause in value)
            facts |= {f"{name}_since": value[0]["since"], f"{name}_why": [cause["why"] for cause in value]}
        elif name == "outages":
            facts[name] = [f"{each['since']} to {each['until']}: {each['why']}" for each in value]
        elif isinstance(value, dict):
            facts[name] = [f"{where}: {what}" for where, what in value.items()]
        else:
            facts[name] = value
    return Event("tick.ended", {"ended": ended, "duration_ms": _ms(duration)} | facts, printed=False)


def line(event: Event) -> str:
    """Return one line such as ``job.retried job_id=17 job_type=mail.send … error="503 from provider"``."""
    return " ".join(
        [event.name, *(f"{key}={_value(value)}" for key, value in event.facts.items() if value not in (None, ""))]
    )


def death_line(event: Event, config: Path) -> str:
    """Return one line that describes a ``job.dead`` event to a person.

    The line is masked, whatever the job's type and error are. *config* is the project's configuration file. The command
    in the line contains its path, so that it works in every folder.
    """
    facts = event.facts
    job = described(
        facts["job_id"], facts["job_type"], facts.get("error_type"), facts.get("error"), facts.get("at"), config
    )
    tries = f" (failed {facts['tries']})" if facts.get("tries") else ""
    at = f", at {job['at']}" if job["at"] else ""
    note = f"; {facts['note']}" if facts.get("note") else ""
    return f"job {job['id']} {job['job_type']}: {error_line(job)}{tries}{at}{note}; look: {job['command']}"


def death_cause(event: Event) -> str:
    """Return the cause of a death in one line. Deaths with the same cause have the same line."""
    from cronjobs.engine.rules.causes import cause_of

    facts = event.facts
    cause = cause_of(str(facts["job_type"]), facts.get("error_type"), str(facts.get("error") or ""))
    return f"{one_line(cause.job_type, VALUE_LIMIT)} dies: {one_line(cause.error, VALUE_LIMIT)}"


def json_line(event: Event, at: datetime) -> str:
    return json.dumps({"at": at.isoformat(), "event": event.name} | event.facts, default=str, ensure_ascii=True)


def _value(value: Any) -> str:
    if isinstance(value, bool | int | float):
        return str(value)
    each = [
        json.dumps(one, default=str, ensure_ascii=False) if isinstance(one, dict) else str(one)
        for one in (value if isinstance(value, list) else [value])
    ]
    text = one_line(", ".join(each), VALUE_LIMIT)
    if text and all(character.isalnum() or character in "._:/+-@*" for character in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _ms(span: timedelta | None) -> int | None:
    return None if span is None else round(span.total_seconds() * 1000)


def _whole_ms(delay: timedelta | None) -> int | None:
    """Return the milliseconds after which the job is surely due."""
    return None if delay is None else -(-delay // timedelta(milliseconds=1))
