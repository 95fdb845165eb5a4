"""Decide what happens to a job after an attempt: its next state, when the job is due again, and the row to write.

Pure, except that the wait before a retry has a random part.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cronjobs.engine.rules.lease import Expired, Finish, lease_of
from cronjobs.engine.rules.misfits import WAIT, Refusals, is_misfit
from cronjobs.engine.rules.payload import result_json
from cronjobs.engine.rules.recovery_policy import NOT_READ, AttemptPolicy
from cronjobs.engine.rules.retry import SOONEST_RETRY, permanent, retry_delay
from cronjobs.errors import EffectBusy
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
    Snoozed,
    Status,
    Succeeded,
    TimedOut,
    Transition,
)
from cronjobs.reserved import EXEC_KILLED, EXEC_PREFIX
from cronjobs.text import ERROR_LIMIT, OUTPUT_LIMIT, cap, clean, one_line

# The error type if ``ctx.finish()`` was called, but its transaction was not committed.
NOT_COMMITTED: Final = "NotCommitted"


class Decided(NamedTuple):
    """An attempt's end, its job's next state, and the row to write."""

    finished: Finished
    transition: Transition
    finish: Finish


def decide_end(
    finished: Finished,
    policy: RetryPolicy,
    now: datetime,
    *,
    ended_ago: timedelta = timedelta(0),
    max_losses: int,
    every: timedelta = timedelta(minutes=1),
    misfits: Refusals | None = None,
    why_not_again: str | None = None,
) -> Decided:
    """Decide what happens after one attempt.

    *now* is the database's time. *ended_ago* is how long ago the attempt ended.

    If the job becomes dead although it has tries left, the error in the result says why.
    """
    job, outcome = finished.job, finished.outcome
    transition = decide(
        job,
        outcome,
        policy,
        now,
        random.uniform(-1, 1),
        max_losses=max_losses,
        every=every,
        misfits=misfits,
        why_not_again=why_not_again,
    )
    if transition.why is not None and isinstance(outcome, Failed | TimedOut | Interrupted | Lost):
        said = f"{one_line(outcome.error, ERROR_LIMIT - len(transition.why) - 2)}; {transition.why}"
        finished = finished._replace(outcome=replace(outcome, error=said))
    return Decided(finished, transition, _finish(finished, transition, ended_ago))


def _finish(finished: Finished, transition: Transition, ended_ago: timedelta) -> Finish:
    outcome = finished.outcome
    status, failures, losses, interruptions, run_at, *_ = transition
    finish = Finish(
        lease_of(finished.job),
        status,
        failures,
        losses,
        interruptions,
        OUTCOME_WORDS.get(type(outcome)),
        run_at,
        ended_ago,
        finished.duration,
        finished.worker or None,
    )
    result, error = None, getattr(outcome, "error", None)
    if isinstance(outcome, Succeeded):
        if outcome.result is None and outcome.note is None and finished.output is None:
            return finish  # the common case
        result, note = result_json(outcome.result)
        error = outcome.note or note
    return finish._replace(
        error_type=_error_type(outcome),
        error=_stored(error),
        traceback=_stored(getattr(outcome, "traceback", None)),
        output=_stored(finished.output),
        result=result,
    )


def as_stopped(outcome: Outcome, reason: str | None, *, process: bool, late: TimedOut | None) -> Outcome:
    """Return the outcome to record. *reason* is why the attempt was asked to stop, or None if it was not asked.

    *process* is True if the attempt ran in its own process. If a timeout was recorded while the attempt was still
    running, *late* is the recorded outcome. A success always counts.
    """
    if reason == "cancelled" and isinstance(outcome, Failed | Interrupted | TimedOut):
        # The job was cancelled, so it does not matter what the handler raised while it stopped.
        return CancelledByRequest()
    if reason == "shutdown" and process and isinstance(outcome, Failed) and outcome.error_type in ("SIGTERM", "SIGINT"):
        # If systemd stops a whole service, the runner's children get the signal too. Such a child did not fail by
        # itself.
        return Interrupted()
    if late is not None and isinstance(outcome, Failed | Interrupted):
        return late
    return outcome


def plain_end(finished: Finished, why: str) -> Finished:
    """Return the same end with plain values only, for an end that could not be decided or written.

    A success stays a success. Any other outcome becomes a failure, which the default policy retries.
    """
    said = f"the outcome could not be recorded in full: {why}"
    match finished.outcome:
        case Succeeded():
            outcome: Outcome = Succeeded(None, said)
        case Released() | CancelledByRequest():
            outcome = finished.outcome
        case other:
            permanent = isinstance(other, Failed) and other.permanent
            outcome = Failed(said, "EndNotRecorded", permanent=permanent)
    return finished._replace(outcome=outcome, output=None)


def as_cancelled(decided: Decided, said: str) -> Decided:
    """Return *decided* for a job that was cancelled during its attempt: cancelled, whatever the attempt's outcome."""
    return decided._replace(
        finished=decided.finished._replace(outcome=CancelledByRequest(said)),
        transition=decided.transition._replace(status=Status.CANCELLED, run_at=None, delay=None),
    )


def succeeded_itself(decided: Decided) -> Decided:
    """Return *decided* as a success, because the attempt committed its own success. A later error becomes a note."""
    outcome, note = decided.finished.outcome, None
    error = getattr(outcome, "error", None)
    if isinstance(outcome, Succeeded):
        note = outcome.note
    elif error is not None and not _is_moot(decided.finish):
        note = f"the handler's transaction was committed; then this error followed: {error}"
    return decided._replace(
        finished=decided.finished._replace(outcome=Succeeded(None, note)),
        transition=decided.transition._replace(status=Status.SUCCEEDED, run_at=None, delay=None, permanent=False),
    )


def late_output(finish: Finish) -> Finish | None:
    """Return the history row to add for an attempt that succeeded in its own transaction, or None if none is needed."""
    if _is_moot(finish) or finish.outcome == "succeeded":
        finish = finish._replace(error=None, error_type=None, traceback=None)
    return finish if finish.error or finish.output else None


def _is_moot(finish: Finish) -> bool:
    return finish.error_type == NOT_COMMITTED


def running_row(job: Job, outcome: Outcome, duration: timedelta, worker: str, output: str | None = None) -> Finish:
    """Return the history row of an attempt that is still running. *output* is its output so far, masked.

    If the lease expires, the next tick reads this row.
    """
    unchanged = Transition(Status.RUNNING, job.failures, job.losses, job.interruptions)
    return _finish(Finished(job, outcome, duration, worker, output), unchanged, timedelta(0))


def settle_expired(expired: Expired, policy: AttemptPolicy, now: datetime, every: timedelta) -> Decided:
    """Decide the end of an attempt whose runner is gone, by *policy* alone: this host may not know the job type."""
    job = expired.job._replace(retry_until=policy.retry_until)
    finished = Finished(job, outcome_of_expired(expired))
    # Give no reason for a run of "cronjobs exec": cron starts the next run anyway, whatever the result of this one.
    by_exec = job.job_type.startswith(EXEC_PREFIX)
    why = None if by_exec else policy.why_not_again
    end = decide_end(finished, policy.retry, now, max_losses=policy.most_losses, every=every, why_not_again=why)
    # No duration is known, so the attempt's start comes from the history row or, if none exists, from the claim.
    finish = end.finish._replace(outcome=None if expired.outcome else end.finish.outcome, duration=None)
    return end._replace(finish=finish)


def outcome_of_expired(expired: Expired) -> Outcome:
    """Return the outcome of an attempt whose lease expired, as its history row gives it.

    If there is no history row, and the attempt may have begun, its outcome is Lost.
    """
    match expired.outcome:
        case None if expired.unbegun:
            return Released()
        case None if expired.policy is not None and expired.policy.unread:
            return Failed(NEVER_READ, NOT_READ, permanent=True) if expired.doubtful else FIRST_UNREAD
        case None | "lost":
            return Lost(EXEC_KILLED) if expired.job.job_type.startswith(EXEC_PREFIX) else Lost()
        case "timed_out":
            return TimedOut(expired.error or "timed out", expired.traceback)
        case "interrupted":
            return Interrupted(expired.error or "interrupted by shutdown")
        case other:
            # A newer version of cronjobs wrote this outcome. The attempt did end. If we called it lost, the job would
            # run again without costing a try.
            return Failed(expired.error or f"ended as {other}", expired.error_type or "Unknown")


FIRST_UNREAD: Final = Released(
    "a tick died or ran out of time while reading this job's row; a later tick will claim the job alone, after all "
    "others",
    timedelta(0),
    NOT_READ,
)
NEVER_READ: Final = (
    "a tick died or ran out of time while reading this job's row, and so did a later tick that claimed only this job"
)


def in_words(outcome: Outcome) -> str:
    """Return the outcome and its error in one line, for a person who waits for the result."""
    error = getattr(outcome, "error", None)
    return OUTCOME_WORDS.get(type(outcome), "released") + (f": {one_line(error, 1000)}" if error else "")


def without_texts(finish: Finish) -> Finish:
    """Return the same end without any text from people or programs, because the database has refused such a text."""
    error = (
        "the attempt's error, output or result could not be stored"
        if finish.error or finish.output or finish.result
        else None
    )
    return finish._replace(error=error, traceback=None, output=None, result=None)


def _error_type(outcome: Outcome) -> str | None:
    if isinstance(outcome, Snoozed):
        return None if outcome.error is None else EffectBusy.__name__
    error_type = getattr(outcome, "error_type", None)
    return None if error_type is None else clean(error_type)[:200]


def _stored(text: str | None) -> str | None:
    return None if text is None else cap(text, OUTPUT_LIMIT)


# --- the next state ---------------------------------------------------------------------------------------------------

GAVE_UP: Final = "the schedule's next occurrence comes first (retry_until: next_occurrence)"
# This many interruptions in a row cost no try. Each further interruption costs one. Otherwise a job that takes longer
# than the time between two deploys would be restarted forever.
FREE_INTERRUPTIONS: Final = 3


def decide(
    job: Job,
    outcome: Outcome,
    policy: RetryPolicy,
    now: datetime,
    jitter: float,
    *,
    max_losses: int = 10,
    every: timedelta = timedelta(minutes=1),
    misfits: Refusals | None = None,
    why_not_again: str | None = None,
) -> Transition:
    """Return the next state of *job* after an attempt ended with *outcome*.

    *now* is the database's time, *jitter* is a random number in [-1, 1], and *every* is the time between ticks.
    Failures and timeouts cost a try. Interruptions cost a try only after the third in a row. Losses, snoozes and
    misfits cost none, because they do not show that the work failed. If the payload does not fit, *misfits* contains
    its refusals, or is None if it is too early to give up on the job. If the job is dead because it was lost
    *max_losses* times, *why_not_again* names the rule that ended it.
    """
    failures, losses = job.failures, job.losses
    match outcome:
        case Succeeded():
            return Transition(Status.SUCCEEDED, failures, losses, interruptions=0)
        case CancelledByRequest():
            return Transition(Status.CANCELLED, failures, losses, interruptions=0)
        # Neither of these outcomes says anything about the job, so the job keeps its due time.
        case Released(error=None) | Interrupted(by_hand=True):
            return Transition(Status.QUEUED, failures, losses, job.interruptions)
        case Released(after=after):
            return Transition(Status.QUEUED, failures, losses, job.interruptions, run_at=now + after, delay=after)
        case Snoozed(until=until):
            wait = max(until - now, SOONEST_RETRY)
            return Transition(Status.QUEUED, failures, losses, interruptions=0, run_at=now + wait, delay=wait)
        case Lost():
            losses += 1
            status = Status.DEAD if losses >= max_losses else Status.FAILED
            if status is Status.DEAD:
                return Transition(status, failures, losses, interruptions=0, delay=timedelta(0), why=why_not_again)
            return Transition(status, failures, losses, interruptions=0, run_at=now, delay=timedelta(0))
        case Interrupted() if job.interruptions < FREE_INTERRUPTIONS:
            return Transition(Status.QUEUED, failures, losses, job.interruptions + 1, run_at=now)
        case Failed() if is_misfit(outcome):
            if misfits is not None and (why := misfits.end(now)) is not None:
                return Transition(Status.DEAD, failures, losses, interruptions=0, why=why)
            return Transition(Status.FAILED, failures, losses, interruptions=0, run_at=now + WAIT, delay=WAIT)
        case Failed() | TimedOut() if permanent(policy, outcome):
            return Transition(Status.DEAD, failures + 1, losses, interruptions=0, permanent=True)
        case Failed() | TimedOut() | Interrupted():
            failures += 1
            if failures >= (job.max_attempts or policy.max_attempts):
                return Transition(Status.DEAD, failures, losses, interruptions=0)
            delay = retry_delay(job, outcome, policy, failures, now, jitter)
            if job.gives_up_at is not None and next_tick(now + delay, every) >= job.gives_up_at:
                return Transition(Status.DEAD, failures, losses, interruptions=0, why=GAVE_UP)
            return Transition(Status.FAILED, failures, losses, interruptions=0, run_at=now + delay, delay=delay)


def next_tick(instant: datetime, every: timedelta) -> datetime:
    """Return the start of the tick that will run a job due at *instant*. Cron starts ticks at multiples of *every*."""
    return instant + (-(instant - _EPOCH) % every)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
