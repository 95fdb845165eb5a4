"""From what a worker returned to what the store writes: decide, and turn into storable values. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from cronjobs.model import (
    OUTCOME_WORDS,
    CancelledByRequest,
    Failed,
    Finished,
    Interrupted,
    Job,
    Lost,
    Outcome,
    Released,
    RetryPolicy,
    Status,
    Succeeded,
    TimedOut,
    Transition,
)
from cronjobs.rules.attempt_policy import AttemptPolicy
from cronjobs.rules.lease import Expired, Finish, Lease
from cronjobs.rules.payload import result_json
from cronjobs.rules.retry import decide
from cronjobs.text import OUTPUT_LIMIT, cap, clean

NOT_COMMITTED: Final = "NotCommitted"  # the error type if success depended on a transaction of the user's


@dataclass(frozen=True)
class Decided:
    """An attempt's end, its job's next state, and the row to write."""

    finished: Finished
    transition: Transition
    finish: Finish


def lease_of(job: Job) -> Lease:
    assert job.locked_by is not None
    return Lease(job.id, job.attempt, job.locked_by)


def decide_end(
    finished: Finished,
    policy: RetryPolicy,
    now: datetime,
    *,
    ended_ago: timedelta = timedelta(0),
    max_losses: int,
    every: timedelta = timedelta(minutes=1),
) -> Decided:
    """Decide about one ended attempt; *now* is the database's clock, *ended_ago* how long the end waited for us."""
    job, outcome = finished.job, finished.outcome
    transition = decide(job, outcome, policy, now, random.uniform(-1, 1), max_losses=max_losses, every=every)
    return Decided(finished, transition, _finish(finished, transition, ended_ago))


def _finish(finished: Finished, transition: Transition, ended_ago: timedelta) -> Finish:
    outcome = finished.outcome
    result, note = result_json(outcome.result) if isinstance(outcome, Succeeded) else (None, None)
    if isinstance(outcome, Succeeded):
        note = outcome.note or note
    return Finish(
        lease=lease_of(finished.job),
        status=transition.status,
        failures=transition.failures,
        losses=transition.losses,
        interruptions=transition.interruptions,
        outcome=OUTCOME_WORDS.get(type(outcome)),
        run_at=transition.run_at,
        ended_ago=ended_ago,
        duration=finished.duration,
        worker=finished.worker or None,
        error_type=_error_type(outcome),
        error=_stored(getattr(outcome, "error", None) or note),
        traceback=_stored(getattr(outcome, "traceback", None)),
        output=_stored(finished.output),
        result=result,
    )


def as_stopped(outcome: Outcome, reason: str | None, *, process: bool, late: TimedOut | None) -> Outcome:
    """The outcome that counts, given why the attempt had been asked to stop; None: it had not been.

    *process*: it ran in one. *late*: it was recorded as timed out while it still ran. A result counts in any case.
    """
    if reason == "cancelled" and isinstance(outcome, Failed | Interrupted | TimedOut):
        return CancelledByRequest()  # it was cancelled, so what it raised on its way out does not matter
    if reason == "shutdown" and process and _was_terminated(outcome):
        return Interrupted()  # stopping a whole service (systemd) also signals the runner's children
    if late is not None and isinstance(outcome, Failed | Interrupted):
        return late
    return outcome


def _was_terminated(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and outcome.error_type in ("SIGTERM", "SIGINT")


def plain_end(finished: Finished, why: str) -> Finished:
    """The same end in plain values of our own, for one that could not be decided about or written as it is.

    Work that was done stays done; anything else is a failure, which the default policy retries.
    """
    said = f"its end could not be recorded as it was: {why}"
    match finished.outcome:
        case Succeeded():
            outcome: Outcome = Succeeded(None, said)
        case Released() | CancelledByRequest():
            outcome = finished.outcome
        case other:
            permanent = isinstance(other, Failed) and other.permanent
            outcome = Failed(said, "EndNotRecorded", permanent=permanent)
    return replace(finished, outcome=outcome, output=None)


def as_cancelled(decided: Decided, said: str) -> Decided:
    """The same end for a job that was cancelled meanwhile: it is cancelled, whatever the attempt's outcome was."""
    return replace(
        decided,
        finished=replace(decided.finished, outcome=CancelledByRequest(said)),
        transition=replace(decided.transition, status=Status.CANCELLED, run_at=None, delay=None),
    )


def succeeded_itself(decided: Decided) -> Decided:
    """The same end for a job whose own attempt had committed its success: what came after changes nothing."""
    outcome, note = decided.finished.outcome, None
    error = getattr(outcome, "error", None)
    if isinstance(outcome, Succeeded):
        note = outcome.note
    elif error is not None and not _is_moot(decided.finish):
        note = f"its transaction was committed; then: {error}"
    return replace(
        decided,
        finished=replace(decided.finished, outcome=Succeeded(None, note)),
        transition=replace(decided.transition, status=Status.SUCCEEDED, run_at=None, delay=None, permanent=False),
    )


def late_output(finish: Finish) -> Finish | None:
    """What *finish* adds to the history of an attempt that succeeded by its own transaction; None: nothing."""
    if _is_moot(finish) or finish.outcome == "succeeded":
        finish = replace(finish, error=None, error_type=None, traceback=None)
    return finish if finish.error or finish.output else None


def _is_moot(finish: Finish) -> bool:
    return finish.error_type == NOT_COMMITTED


def running_row(job: Job, outcome: Outcome, duration: timedelta, worker: str) -> Finish:
    """The history row of an attempt that still runs, for the next tick to read after its lease has expired."""
    return Finish(
        lease=lease_of(job),
        status=Status.RUNNING,
        failures=job.failures,
        losses=job.losses,
        interruptions=job.interruptions,
        outcome=OUTCOME_WORDS[type(outcome)],
        duration=duration,
        worker=worker or None,
        error_type=_error_type(outcome),
        error=_stored(getattr(outcome, "error", None)),
    )


def settle_expired(expired: Expired, policy: AttemptPolicy, now: datetime, every: timedelta) -> Decided:
    """Decide about an attempt whose runner is gone, by *policy* alone: the recovering host may not know its type."""
    job = replace(expired.job, retry_until=policy.retry_until)
    finished = Finished(job, outcome_of_expired(expired))
    end = decide_end(finished, policy.retry, now, max_losses=policy.most_losses, every=every)
    # The history row has its start; without one, the best guess is when it was claimed.
    finish = replace(end.finish, outcome=None if expired.outcome else end.finish.outcome, duration=None)
    return replace(end, finish=finish)


def outcome_of_expired(expired: Expired) -> Outcome:
    """The outcome in the history row of an attempt whose lease expired; if there is none, it is lost."""
    match expired.outcome:
        case None | "lost":
            return Lost()
        case "timed_out":
            return TimedOut(expired.error or "timed out")
        case "interrupted":
            return Interrupted(expired.error or "interrupted by shutdown")
        case other:
            # Written by a newer version: the attempt did end, so it is charged as a failure and not simply run again.
            return Failed(expired.error or f"ended as {other}", expired.error_type or "Unknown")


def without_texts(finish: Finish) -> Finish:
    """The same end without texts of people or programs, for when one of them is a value that the database refuses."""
    error = (
        "its error, output or result could not be stored" if finish.error or finish.output or finish.result else None
    )
    return replace(finish, error=error, traceback=None, output=None, result=None)


def _error_type(outcome: Outcome) -> str | None:
    match outcome:
        case Failed(error_type=error_type):
            return clean(error_type)[:200]
        case TimedOut():
            return "TimedOut"
        case Lost():
            return "Lost"
        case _:
            return None


def _stored(text: str | None) -> str | None:
    return None if text is None else cap(text, OUTPUT_LIMIT)
