"""Describe one job's life: who made it, each attempt, its state now, and what happens next.

All functions here are pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Final

from cronjobs.desk.insight.explain_facts import (
    AttemptFacts,
    AuditEntry,
    DoneEffect,
    DoubtfulEffect,
    Explanation,
    JobFacts,
    JobLife,
    JobsAhead,
    LateTry,
    Now,
    OccurrenceOfJob,
    TickFacts,
    TypeFacts,
    plain,
)
from cronjobs.desk.insight.explain_phrases import (
    between,
    capital,
    enqueued_by,
    from_to,
    late,
    left_to_another_tick,
    made_by_hand,
    missing_because,
    name,
    pause,
    ran_early_words,
    started,
    triggered,
    who,
)
from cronjobs.desk.insight.finding import no_longer_in_file, several
from cronjobs.desk.insight.formatting import LocalTimes, counted, long_jobs_off
from cronjobs.desk.insight.judged_types import FIXED_OR_ENVIRONMENT
from cronjobs.desk.insight.kept_from_starting import did_not_start
from cronjobs.desk.insight.stopped_jobs import settling
from cronjobs.desk.rules.tick_rows import no_end
from cronjobs.desk.store.workload import OFTEN_RELEASED
from cronjobs.engine.rules.concurrency import in_the_past
from cronjobs.engine.rules.ending import GAVE_UP
from cronjobs.engine.rules.error_groups import class_and_text, says_class
from cronjobs.engine.rules.misfits import FAILS_AGAIN, LEAST, MISFIT, MOST, OUTLIVED
from cronjobs.engine.rules.occurrences import BEFORE, ON_TIME_WITHIN
from cronjobs.engine.rules.progress import in_words, time_left
from cronjobs.engine.rules.recovery_policy import MADE_BY_HAND, MAX_LOSSES, ON_LOST
from cronjobs.errors import EffectUnknown, GiveUp
from cronjobs.model import duration_text, rough
from cronjobs.reserved import EXEC_PREFIX
from cronjobs.text import one_line

# A tick cannot see a job whose enqueue is not committed yet. By then, its due time and its creation may be long past.
_COMMITTED_LATE: Final = "on PostgreSQL, a transaction may have enqueued the job long before its COMMIT"
_OUTCOMES: Final = {
    "succeeded": "succeeded",
    "failed": "failed",
    "timed_out": "timed out",
    "lost": "lost (each time, the runner died or lost its lease)",
    "interrupted": "interrupted by the end of their ticks",
    "cancelled": "cancelled",
    "snoozed": "postponed by the handler",
}


def explain_job(life: JobLife) -> Explanation:
    """Describe one job's life, up to its state now and what will happen next."""
    job, made = life.job, next((row for row in life.rows if row.ledger.outcome == "enqueued"), None)
    first = made.ledger.whole_last if made else job.created_at if job else life.around.now
    # A job that ran early may have run before the day when it was due, so print the date of every time that is not
    # today.
    early = made is not None and made.ledger.early
    times = LocalTimes(life.around.now if early else first, life.timezone)
    sentences = [_origin(life, job, made, times), *left_to_another_tick(life.settler, job)]
    if job is None:
        sentences += in_order(_others(life, times))
        settled = max((row.ledger.decided_at for row in life.rows), default=None)
        sentences.append(row_gone(life.pruned_dead, None if early else settled, times, life.around))
        verdict = "pruned"
    else:
        # A job that ran early was not late. Its times may suggest that it was late, since a clock was wrong.
        begin = [] if early else _begin(job, times)
        sentences += in_order([*begin, *_others(life, times), *_happened(job, times)])
        sentences += _state(job, times, life.around)
        verdict = "waiting" if job.status in ("queued", "failed") else job.status
    facts = {key: value for key, value in plain(life).items() if key != "around"}
    at = job.scheduled_for or job.run_at if job else first
    return Explanation(f"job {life.job_id}", at, verdict, tuple(sentences), facts=facts)


def row_gone(pruned_dead: datetime | None, made_at: datetime | None, times: LocalTimes, around: Now) -> str:
    """Return the sentence about a job whose row is gone. *made_at*: when the job was made, or None if unknown."""
    if pruned_dead is not None:
        when = times.clock(pruned_dead)
        return f"It was dead, nobody had dealt with it, and retention removed its row at {when}."
    succeeded, others = around.succeeded_kept, around.dead_kept
    kept = f"succeeded jobs are kept for {duration_text(succeeded)}, others for {duration_text(others)}"
    unknown = "how it ended is no longer recorded"
    age = max(succeeded, others) if made_at is None else around.now - made_at
    if age < min(succeeded, others):
        return (
            f"Its row is gone, although retention cannot have pruned it yet ({kept}): someone deleted it, or the "
            f"retention was shorter until recently; {unknown}."
        )
    if succeeded <= age < others:
        return f"Its row is gone: it succeeded and was pruned ({kept}), unless someone deleted the row."
    return f"Its row is gone ({kept}), so {unknown}."


def _origin(life: JobLife, job: JobFacts | None, made: OccurrenceOfJob | None, times: LocalTimes) -> str:
    if job is not None and job.job_type.startswith(EXEC_PREFIX):
        by = f", by {name(job.enqueued_by)}" if job.enqueued_by else ""
        return f"Job {life.job_id} is a run of cronjobs exec {name(job.job_type.removeprefix(EXEC_PREFIX))}{by}."
    kind = f" ({name(job.job_type)})" if job else ""
    who_ = f"Job {life.job_id}{kind}"
    had = (job.idempotency_key or job.released_key) if job else None
    key = f", with the idempotency key {name(had)}" if had else ""
    if made is not None:
        row = made.ledger
        tick = who(life.settler)
        by = f" by {tick}" if tick else f" at {times.clock(row.decided_at)}"
        if row.early:
            of = f"the occurrence of {name(made.schedule)} at {times.with_utc(row.whole_last)}"
            return f"{who_} was made for {of}{key}: it {ran_early_words(row.reason or '', times)}."
        if row.backfilled:
            fill, of = one_line(row.reason or "", 400).partition(BEFORE)[0], times.with_utc(row.whole_last)
            when = times.clock(row.decided_at)
            return f"{who_} was made by a {fill} at {when} for the occurrence of {name(made.schedule)} at {of}{key}."
        return (
            f"{who_} was made{by} for the occurrence of {name(made.schedule)} at {times.with_utc(row.whole_last)}, "
            f"{late(row.decided_at - row.whole_last)}{key}."
        )
    if job is None:
        return f"{who_} is in the ledger; who made it is not recorded."
    by = f" {enqueued_by(job.enqueued_by)}" if job.enqueued_by else " enqueued"
    of = f" for schedule {name(job.schedule)}" if job.schedule else ""
    queue = f", in queue {name(job.queue)}" if job.queue != "default" else ""
    return f"{who_} was{by}{of} at {times.with_utc(job.created_at)}{queue}{key}."


def _late_begin(job: JobFacts, times: LocalTimes) -> list[tuple[datetime, str]]:
    """Return the sentences of ``_begin`` if the job existed when it was due and started late, else []."""
    begin = [] if job.job_type.startswith(EXEC_PREFIX) else _begin(job, times)
    return begin if begin and begin[0][0] - max(job.run_at, job.created_at) > ON_TIME_WITHIN else []


def _begin(job: JobFacts, times: LocalTimes) -> list[tuple[datetime, str]]:
    """Describe when the job was due and when it started. Return [] if a retry has overwritten the job's ``run_at``."""
    if job.job_type.startswith(EXEC_PREFIX):
        # The row may be a little younger than the attempt, because exec starts the command first.
        first = min([job.created_at, *(each.started_at for each in job.attempts)])
        return [(first, f"It began at {times.with_utc(job.run_at)}.")]
    begun = job.attempts[0].started_at if job.attempts else job.started_at if job.status == "running" else None
    if begun is None or job.failures or job.losses or len(job.attempts) > 1:
        return []
    # run_at may have changed although no failure was counted. This happens if the job was interrupted, snoozed or
    # retried by hand, or if its payload did not fit.
    if job.attempts and (job.attempts[0].outcome != job.status or job.status == "failed"):
        return []
    by_hand = job.attempts[0].by_hand if job.attempts else job.by_hand
    behind = begun - job.run_at
    if behind < timedelta(0):
        how = 'Someone started it with "cronjobs run"' if by_hand else "It started"
        return [(begun, f"{how} at {times.clock(begun)}, before it was due at {times.clock(job.run_at)}.")]
    said = started("It", job.run_at, begun, times, by_hand=by_hand)
    if made_by_hand(job.enqueued_by) and not by_hand:
        said = f"It was due at once, and started {rough(behind)} later, at {times.clock(begun)}"
    if job.quiet is not None and not by_hand:
        said += f": {_without_ticks(job.quiet, times)}"
    elif _is_unexplained(job, behind) and not by_hand:
        said += f"; no tick recorded a reason ({_COMMITTED_LATE})"
    return [(begun, sentence) for sentence in (*_passed_over(job, times), f"{said}.")]


def _is_unexplained(job: JobFacts, behind: timedelta) -> bool:
    """Return whether nothing explains why ticks left a due job for so long. Ticks themselves make a schedule's jobs."""
    at_once = job.schedule is None and job.run_at - job.created_at < ON_TIME_WITHIN
    return at_once and behind > ON_TIME_WITHIN and job.passed_over is None and job.killed is None


def _without_ticks(quiet: tuple[datetime, datetime], times: LocalTimes) -> str:
    return f"no tick reached the database {between(*quiet, times)}"


def _passed_over(job: JobFacts, times: LocalTimes) -> list[str]:
    """Explain why the ticks that found the job due did not start it."""
    killed = []
    if job.killed is not None:
        ticks, why = counted(job.killed.ticks, "tick"), no_end(*job.killed)
        killed = [f"{ticks} did not start it, and never recorded an end: {why}."]
    if job.passed_over is None:
        return killed
    tick = job.passed_over.tick
    again = " again" if job.passed_over.again else ""
    return [
        *killed,
        f"{capital(tick_that_began(tick, times))} did not start it{again}: {in_the_past(job.passed_over.why)}.",
    ]


def _others(life: JobLife, times: LocalTimes) -> list[tuple[datetime, str]]:
    """Name the occurrences that the job also ran for, or that were skipped because of the job.

    Each sentence is dated with the instant at which the first of its occurrences was settled.
    """
    # If one decision settled the occurrences and made the job, the sentence about the occurrences comes first. By the
    # host's clock, the job's first attempt may begin just before that decision.
    made_at = datetime.min.replace(tzinfo=UTC)
    decided = next((row.ledger.decided_at for row in life.rows if row.ledger.outcome == "enqueued"), None)
    sentences = []
    said = {
        "coalesced": ("The job also stands for {} of {}", "more occurrence"),
        "skipped": ("Because of this job, {} of {} {} skipped", "occurrence"),
    }
    for outcome, (text, what) in said.items():
        rows = [row for row in life.rows if row.ledger.outcome == outcome]
        if rows:
            count = sum(row.ledger.whole_count for row in rows)
            first, last = rows[0].ledger.whole_first, rows[-1].ledger.whole_last
            where = f"at {times.clock(last)}" if count == 1 else from_to(first, last, times)
            was = "was" if count == 1 else "were"
            sentence = f"{text.format(counted(count, what), name(rows[0].schedule), was)}, {where}."
            settled = min(row.ledger.decided_at for row in rows)
            sentences.append((made_at if settled == decided else settled, sentence))
    return sentences


# --- attempts and state -----------------------------------------------------------------------------------------------


def job_sentences(job: JobFacts, times: LocalTimes, around: Now, after: datetime | None = None) -> list[str]:
    """Describe the job's attempts (similar ones merged) and operators' actions in order, its state, and what is next.

    If *after* is given, leave out everything that had ended by that instant. Otherwise, also explain a late start.
    """
    if after is not None:
        later = tuple(each for each in job.attempts if each.finished_at > after)
        acts = tuple(pair for pair in job.acts if pair[1].at > after)
        doubtful = tuple(effect for effect in job.doubtful if effect.begun_at > after)
        done = tuple(effect for effect in job.done if effect.recorded_at > after)
        tries = tuple(each for each in job.late_tries if each.begun_at > after)
        released = job.released if _last_claimed_at(job) > after else 0
        then = replace(
            job, attempts=later, acts=acts, doubtful=doubtful, done=done, late_tries=tries, released=released
        )
        return [*in_order(_happened(then, times)), *_state(job, times, around)]
    return [*in_order([*_late_begin(job, times), *_happened(job, times)]), *_state(job, times, around)]


def in_order(dated: Iterable[tuple[datetime, str]]) -> list[str]:
    return [sentence for _, sentence in sorted(dated, key=lambda pair: pair[0])]


def _happened(job: JobFacts, times: LocalTimes) -> list[tuple[datetime, str]]:
    """Describe attempts and actions, with instants. An action separates the attempts before and after it."""
    acts = [(act.at, sentence) for (_, act), sentence in zip(job.acts, _acts(job, times), strict=True)]
    sentences = list(acts)
    if job.held is not None:
        sentences.append((job.held[0], f"It was held back: {pause(job.held[1], times)}."))
    sentences += [(effect.begun_at, _doubtful(effect, times)) for effect in job.doubtful]
    sentences += [(each.begun_at, said) for each in job.late_tries for said in _late_try(job, each, times)]
    settled = {act.settled[0] for _, act in job.acts if act.settled is not None}
    sentences += [(each.recorded_at, _done_effect(each, times)) for each in job.done if each.key not in settled]
    instants = sorted(at for at, _ in acts)
    for _, group in groupby(job.attempts, key=lambda each: bisect_left(instants, each.finished_at)):
        sentences += _attempt_sentences(tuple(group), times)
    if job.released:
        last = job.attempt - (job.status == "running")
        sentences.append((_last_claimed_at(job), _released(last, job.released, job.released_because)))
    return sentences


def _last_claimed_at(job: JobFacts) -> datetime:
    """Return when the job was last claimed. If the first attempt is running, return a time before its start."""
    first_runs = job.status == "running" and not job.attempts
    return job.created_at if first_runs or job.started_at is None else job.started_at


def _late_try(job: JobFacts, late_try: LateTry, times: LocalTimes) -> list[str]:
    why = [pause(late_try.held, times)] if late_try.held else []
    why += [_without_ticks(late_try.quiet, times)] if late_try.quiet else []
    if late_try.due_at is None:
        return [f"Before attempt {late_try.number} began, {'; '.join(why)}."]
    what = f"Attempt {late_try.number}"
    said = started(what, late_try.due_at, late_try.begun_at, times, by_hand=late_try.by_hand)
    return [*_passed_over(job, times), f"{said}{': ' if why else ''}{'; '.join(why)}."]


def _done_effect(effect: DoneEffect, times: LocalTimes) -> str:
    of = f"The effect {one_line(effect.key, 600)}, which attempt {effect.attempt} began,"
    again = "a retry does not repeat it, but runs what follows it in the handler"
    return f"{of} was recorded as done at {times.clock(effect.recorded_at)}: {again}."


def _doubtful(effect: DoubtfulEffect, times: LocalTimes) -> str:
    if effect.skipped:
        return (
            f"Attempt {effect.attempt} began the effect {one_line(effect.key, 600)} at {times.clock(effect.begun_at)}, "
            "and nobody knows whether the effect happened. A later attempt counted the effect as done (on_unknown), so "
            "the effect may never have happened."
        )
    most = "twice" if effect.repeats == 1 else f"up to {effect.repeats + 1:,} times"
    return (
        f"Attempt {effect.attempt} repeated the effect {one_line(effect.key, 600)} at {times.clock(effect.begun_at)}, "
        f"because its outcome was unknown: the effect may have happened {most}."
    )


def _attempt_sentences(attempts: tuple[AttemptFacts, ...], times: LocalTimes) -> list[tuple[datetime, str]]:
    sentences = [(each.started_at, _released(each.number - 1, each.released)) for each in attempts if each.released]
    for (outcome, error_type), alike in groupby(attempts, key=lambda each: (each.outcome, each.error_type)):
        group = list(alike)
        if len(group) < 3:
            sentences += [(each.finished_at, attempt_sentence(each, times)) for each in group]
            continue
        first, last = group[0], group[-1]
        what = _OUTCOMES.get(outcome, outcome)
        if outcome in ("lost", "interrupted", "cancelled", "snoozed"):
            what = f"were {what}"
        named = outcome == "failed" and error_type and not says_class(error_type, last.error)
        kind = f" with {name(error_type or '')}" if named else ""
        if outcome == "snoozed" and last.error:
            what = "were put off"
        said = {"failed": "; the last error: ", "snoozed": "; the last reason: "}.get(outcome)
        error = f"{said}{one_line(last.error.rstrip(), 300)}" if said and last.error else ""
        # A released attempt uses up a number but has no outcome. So the group may have fewer attempts than their
        # numbers suggest.
        numbers = f"{len(group):,} attempts, from {first.number} to {last.number},"
        if last.number - first.number + 1 == len(group):
            numbers = f"Attempts {first.number} to {last.number}"
        span = from_to(first.started_at, last.finished_at, times)
        sentences.append((first.finished_at, f"{numbers} {what}{kind}, {span}{error}."))
    return sentences


def _released(last: int, count: int, because: str | None = None) -> str:
    """Return a sentence about *count* released claims. *last*: the number of the last of them.

    The database has a reason only for the job's last claim (*because*). Some jobs never begin, and are released again
    and again: for example, the process of a long job may lack the job's handler.
    """
    first = last - count + 1
    which = f"Attempt {last} was" if first == last else f"Attempts {first} to {last} were"
    said = ' The log names a reason that lay outside the job ("job.not_begun").' if count >= OFTEN_RELEASED else ""
    if because:
        said = f" The last reason: {one_line(because.rstrip().removesuffix('.'), 300)}."
    return f"{which} released before {'it' if first == last else 'they'} began.{said}"


def attempt_sentence(attempt: AttemptFacts, times: LocalTimes) -> str:
    took = rough(attempt.finished_at - attempt.started_at)
    on, at = f" on {name(attempt.host)}" if attempt.host else "", times.clock(attempt.finished_at)
    error = one_line(attempt.error.rstrip().removesuffix("."), 300) if attempt.error else ""
    subject = f"Attempt {attempt.number}"
    match attempt.outcome:
        case "succeeded":
            said = f"{subject} succeeded at {at}{on}, after {took}"
            # The handler had committed the success itself, and then raised this error.
            if error and attempt.error_type:
                return f"{said}; then this error followed: {class_and_text(name(attempt.error_type), error)}."
            return f"{said} ({error})." if error else f"{said}."
        case "failed":
            kind = name(attempt.error_type) if attempt.error_type else None
            said = class_and_text(kind, error or "no error was recorded")
            return f"{subject} failed at {at}{on}, after {took}: {said}."
        case "timed_out":
            return f"{subject} timed out after {took}{on}, at {at}."
        case "lost":
            begun = times.clock(attempt.started_at)
            # The loss was recorded by a tick, or by exec's own recorder, which notices that exec was killed.
            said = f"{subject}, begun at {begun}{on}, was lost: its runner died or lost its lease, as recorded at {at}."
            kept = attempt.kept_from_starting
            if attempt.away is not None:
                why = one_line(attempt.away, 300)
                said = f"{said} Meanwhile host {name(attempt.host)} could not use the database: {why}."
            return f"{said} Meanwhile {did_not_start(f'host {name(attempt.host)}', kept)}." if kept else said
        case "interrupted":
            return f"{subject} was interrupted at {at}{on}, after {took}: {error or 'its tick ended'}."
        case "snoozed":
            why = f"{error}, so this job waits for another turn" if error else "the handler asked to run again later"
            return f"{subject} ended at {at}{on}, after {took}: {why}."
        case other:
            what = "was cancelled" if other == "cancelled" else f"ended as {name(other)}"
            return f"{subject} {what} at {at}{on}, after {took}."


_DONE: Final = {
    "retry": "retried",
    "cancel": "cancelled",
    "release": "released",
    "reschedule": "rescheduled",
    "dismiss": "dismissed",
}


def _acts(job: JobFacts, times: LocalTimes) -> list[str]:
    return [
        _settled(act, *act.settled, times)
        if act.settled is not None
        else f"It was {_done(job, action, act.at)} by {name(act.by or 'somebody')} at {times.clock(act.at)}"
        + (f", from {times.clock(act.moved[0])} to {times.clock(act.moved[1])}" if act.moved else "")
        + (f" (why: {one_line(act.why, 300)})" if act.why else "")
        + (_in_vain(job, act.at) if action == "cancel" else "")
        + "."
        for action, act in job.acts
    ]


def _settled(act: AuditEntry, key: str, verdict: str, times: LocalTimes) -> str:
    so = "no attempt repeats the effect" if verdict == "done" else "the next attempt to reach the effect may perform it"
    why = f" (why: {one_line(act.why, 300)})" if act.why else ""
    by, was = name(act.by) if act.by else "Somebody", verdict.replace("-", " ")
    return f"{by} recorded at {times.clock(act.at)} that effect {one_line(key, 600)} was {was}{why}, so {so}."


def _done(job: JobFacts, action: str, at: datetime) -> str:
    if action == "cancel" and (_ran_at(job, at) or (job.status == "running" and job.cancel_requested_at)):
        return "asked to stop"
    return _DONE.get(action, name(action))


def _in_vain(job: JobFacts, at: datetime) -> str:
    """Return a clause if the running attempt succeeded anyway, so that the cancel had no effect, else ""."""
    ran = _ran_at(job, at)
    if ran is None or ran.outcome != "succeeded":
        return ""
    return f", but that had no effect, because attempt {ran.number} did not stop"


def _ran_at(job: JobFacts, at: datetime) -> AttemptFacts | None:
    return next((each for each in job.attempts if each.started_at <= at <= each.finished_at), None)


def what_comes_next(job: JobFacts, times: LocalTimes, around: Now) -> list[str]:
    """Describe the job's state now, and what happens next."""
    at = times.clock(job.finished_at or job.run_at)
    if job.status == "succeeded":
        return [f"Job {job.id} succeeded at {at}.", *_left_unknown(job)]
    return _state(job, times, around)


def _state(job: JobFacts, times: LocalTimes, around: Now) -> list[str]:
    match job.status:
        case "succeeded":
            at, unknown = times.clock(job.finished_at or job.run_at), _left_unknown(job)
            if any(attempt.outcome == "succeeded" for attempt in job.attempts):
                return unknown
            return [f"Job {job.id} succeeded at {at}; its attempts are pruned.", *unknown]
        case "dead":
            at = times.clock(job.finished_at or job.run_at)
            tries = "" if not job.most else " try" if job.most == 1 else " tries"
            ends = [f"failed {_of(job)}{tries}"] if job.failures else []
            ends += [f"was lost {_times(job.losses)}"] if job.losses else []
            ended = f" after it {' and '.join(ends)}" if ends else ""
            error = "" if job.attempts or not job.last_error else f": {one_line(job.last_error.rstrip(), 300)}"
            if job.attempts:
                error = _why_dead(job)
            dismissed = ", and was dismissed" if job.dismissed else ""
            return _over(job, f"Job {job.id} died at {at}{ended}{error}{dismissed}", times)
        case "cancelled":
            has = f"job {job.key_owner} uses that key now" if job.key_owner else "another job can use that key"
            free = f" before its first attempt. The cancellation released its key: {has}" if job.released_key else ""
            return _over(
                job, f"Job {job.id} was cancelled at {times.clock(job.finished_at or job.run_at)}{free}", times
            )
        case "running":
            return [_running(job, times, around.now), *_reported(job, around.now)]
    return _waiting(job, times, around)


def _left_unknown(job: JobFacts) -> list[str]:
    """Return what to do about an effect that the job has left unknown, and that no later attempt will enter."""
    if job.unsettled is None:
        return []
    although = ", although the job succeeded" if job.status == "succeeded" else ""
    unknown = f"Nobody knows whether its effect {one_line(job.unsettled, 600)} happened{although}."
    return [unknown, f'Find out, and record the answer: "{settling(job.unsettled)}" (or not-done).']


def _over(job: JobFacts, said: str, times: LocalTimes) -> list[str]:
    """Return *said*, which reports that the job did not succeed, and sentences about what to do next.

    These sentences say how to run the job again, and which triggered run may already have done its work.
    """
    dismiss = f'"cronjobs jobs dismiss {job.id}" ends the reports about this death'
    report = job.status == "dead" and not job.dismissed
    if job.job_type.startswith(EXEC_PREFIX):
        return [f"{said}; cron runs its crontab line again when the line is due{f'; {dismiss}' if report else ''}."]
    again = triggered(job.triggered, times)
    if job.unfit_to_retry is not None:
        return [
            f"{said}. It cannot be retried, because {job.unfit_to_retry}.",
            *([again.said] if again else []),
            *_left_unknown(job),
            *([f"{dismiss}."] if report else []),
        ]
    if job.unsettled is not None:
        effect = f"effect {one_line(job.unsettled, 600)} happened"
        # If an effect stopped the job, the job has to wait for a person. Any other job may repeat its effect.
        stopped = bool(job.attempts) and job.attempts[-1].error_type == EffectUnknown.__name__
        first = f"First find out whether {effect}, and record the answer"
        first = first if stopped else f"Nobody knows whether its {effect}; if you find out, record the answer first"
        return [
            f"{said}. It does not run again by itself.",
            *([again.said] if again else []),
            f'{first}: "{settling(job.unsettled)}" (or not-done).',
            f'Then "cronjobs jobs retry {job.id}" runs it again.',
        ]
    if again is not None and again.does_it:
        repeats = f'If that was the same work, "cronjobs jobs retry {job.id}" would do the work a second time.'
        return [f"{said}.", again.said, repeats, *([f"{dismiss}."] if report else [])]
    only = f'It runs again only if someone types "cronjobs jobs retry {job.id}".'
    if job.attempts and job.attempts[-1].error_type == MISFIT:
        only = f"{only[:-1]}, and {FAILS_AGAIN}."
    if job.key_owner is not None:
        only = (
            f'Job {job.id} does not run again: "cronjobs jobs retry {job.id}" is refused while job {job.key_owner} '
            "has the key."
        )
    return [f"{said}. {only}", *([again.said] if again else [])]


_WHY_DEAD: Final = (OUTLIVED, GAVE_UP, ON_LOST, MADE_BY_HAND, MAX_LOSSES)


def _why_dead(job: JobFacts) -> str:
    """Explain why the job has no tries left, unless the sentence about its last attempt already explains it."""
    last = job.attempts[-1]
    said = last.error if last.outcome == "failed" else None
    error = job.last_error or ""
    if last.outcome == "failed" and last.error_type == GiveUp.__name__:
        return ": its handler raised GiveUp, which ends all tries"
    return next((f": {why}" for why in _WHY_DEAD if error.endswith(why) and not (said or "").endswith(why)), "")


def _of(job: JobFacts) -> str:
    return f"{job.failures} of {job.most}" if job.most else _times(job.failures)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _running(job: JobFacts, times: LocalTimes, now: datetime) -> str:
    begun = f", begun at {times.clock(job.started_at)}" if job.started_at else ""
    if job.started_at is not None:
        begun += f", {rough(now - job.started_at)} ago" if job.started_at <= now else " (a clock was ahead)"
    stop = "; it was asked to stop" if job.cancel_requested_at else ""
    runs = "was running"
    if job.runner_gone:
        lease = "; the process is gone, so the next tick on that host should record the outcome"
    elif job.locked_until is not None and job.locked_until < now:
        over = rough(now - job.locked_until)
        lease = f"; its lease ended {over} ago, so the next tick should record its outcome"
    elif job.overrun_since is not None and job.locked_until is not None:
        lease = (
            f"; its runner should have stopped it {rough(now - job.overrun_since)} ago, so the runner died or hangs. "
            f"When its lease ends, in {rough(job.locked_until - now)}, a tick should record its outcome"
        )
    else:
        left = rough(job.locked_until - now) if job.locked_until else "no time"
        runs, lease = "is running now", f"; its lease has {left} left"
    by = 'by "cronjobs run" ' if job.by_hand else ""
    where = f"{by}on {name(job.host or '?')}"
    if job.cluster_worker == "":
        where, begun = f"on its cluster, where no worker has started it yet (submitted by {name(job.host or '?')})", ""
    elif job.cluster_worker is not None:
        where = f"on worker {name(job.cluster_worker)} of its cluster, for {name(job.host or '?')}"
    # The attempt's outcome is recorded, but its thread may still be running.
    if job.attempts and job.attempts[-1].number == job.attempt:
        return f"Job {job.id} is still leased for attempt {job.attempt} {where}{lease}."
    return f"Job {job.id} {runs}: attempt {job.attempt} {where}{begun}{stop}{lease}."


def _reported(job: JobFacts, now: datetime) -> list[str]:
    if job.reported is None or job.reported.progress.done is None or job.started_at is None:
        return []
    said_at = job.started_at + timedelta(seconds=job.reported.ran_s)
    left = time_left(job.reported, job.started_at, now)
    rest = f"; at this pace, it will need {rough(left)} more" if left is not None else ""
    said = one_line(in_words(job.reported.progress), 300)
    return [f"Its progress is {said} (reported {rough(max(timedelta(0), now - said_at))} ago){rest}."]


def _waiting(job: JobFacts, times: LocalTimes, around: Now) -> list[str]:
    now = around.now
    turn = "another try" if job.status == "failed" or job.failures else "another turn" if job.attempt else "its turn"
    ends = []
    if job.misfit_since is not None:
        turn = "code that accepts its payload"
        earliest, latest = job.misfit_since + LEAST, times.clock(job.misfit_since + MOST)
        at = "its next try" if earliest <= job.run_at else f"its first try after {times.clock(earliest)}"
        ends = [
            f'After a deploy of such code, "cronjobs jobs retry {job.id}" starts the job with the next tick.',
            (
                f"The job dies at {at} if every version of the code that runs ticks has refused the payload by "
                f"then. Otherwise the job dies after {latest}."
            ),
        ]
    types = job.type_facts
    if types is not None and types.here is False and types.last is None and types.file_fault is None:
        ends.append(f'If no handler will ever have this name, type "cronjobs jobs cancel {job.id}".')
    if job.unsettled is not None:
        unknown = f"Nobody knows whether its effect {one_line(job.unsettled, 600)} happened"
        settle = f'"{settling(job.unsettled)}" (or not-done)'
        ends.append(f"{unknown}; if you find out before its next try, record the answer: {settle}.")
    failed = f" (failed {_of(job)})" if job.failures else ""
    waits, why = f"Job {job.id} waits for {turn}{failed}", "; ".join(_reasons(job, times, around))
    if job.run_at > now:
        sentence = f"{waits}, due at {times.clock(job.run_at)}, in {rough(job.run_at - now)}."
        if job.misdated is not None:
            clock = "This time is too late: a clock was ahead when it was set."
            ends = [f'{clock} To run the job sooner, type "{job.misdated}".', *ends]
        elif job.scheduled_for is not None and job.scheduled_for > now:
            # If the job ran now, it would run too early again. So suggest leaving it alone, unless later occurrences
            # wait for it.
            early = "A clock was ahead when this job was made: its occurrence is not due yet."
            cancel = f'"cronjobs jobs cancel {job.id}" lets the schedule go on now'
            ends = [early, f"{cancel}, but this occurrence then does not run by itself.", *ends]
        return [sentence, *ends] + ([f"When it is due, it will still wait: {why}."] if why else [])
    if not why:
        last = around.last_tick
        at = f"at {times.clock(last.started_at)} on {name(last.host)}" if last else ""
        doing = ", and last recorded that it was importing the handlers" if last and last.importing else ""
        began = f" (the last tick began {at}{doing})" if last else ""
        only = job.passed_over is not None and job.passed_over.not_by_any_tick
        which = ", on a host and with options that allow the job," if only else ""
        why = f"{_ahead(job.ahead)}the next tick with a free worker{which} will run it{began}"
        if last and job.ahead is None and _is_unexplained(job, last.started_at - job.run_at):
            why += f". No tick recorded a reason ({_COMMITTED_LATE})"
        if job.passed_over is not None and job.passed_over.too_short:
            why = (
                "the job's timeout is too long for the tick that passed the job over. Shorten the timeout, or allow "
                "longer ticks"
            )
        elif last and last.importing and job.killed is not None and job.killed.importing:
            why = f'ticks are killed while they import the handlers{began}. "cronjobs check" shows which import'
        elif job.passed_over is not None and job.passed_over.passed_over:
            why = (
                "another transaction may hold its row (on PostgreSQL, see pg_stat_activity); the next tick that finds "
                f"the row free will run it{began}"
            )
    since = f"due since {times.clock(job.run_at)}, for {rough(now - job.run_at)}"
    # A tick records why it stopped starting jobs of a type. If other jobs come before this job, the record is about
    # those jobs.
    behind = job.ahead is not None and job.passed_over is not None and job.passed_over.out_of_time
    return [*([] if behind else _passed_over(job, times)), f"{waits}, {since}: {why}.", *ends]


def _ahead(ahead: JobsAhead | None) -> str:
    """Return text such as "275 due jobs with a better priority come first; after them "."""
    if ahead is None:
        return ""
    count = ahead.better + ahead.earlier
    number = f"{'at least ' if ahead.more else ''}{counted(count, 'due job')}"
    come = "comes" if count == 1 else "come"
    which = " with a better priority" if not ahead.earlier else " that became due earlier" if not ahead.better else ""
    among = f", {ahead.better:,} of them with a better priority" if not which else ""
    return f"{number}{which} {come} first{among}; after {'it' if come == 'comes' else 'them'} "


def tick_that_began(tick: TickFacts, times: LocalTimes) -> str:
    return f"the tick that began at {times.clock(tick.started_at)} on {name(tick.host)}"


def type_reasons(facts: TypeFacts, times: LocalTimes) -> list[str]:
    """Explain why jobs of this type do not start, if the type is the reason."""
    reasons = []
    if facts.known is False:
        had = "no tick on record has ever known this type"
        if facts.last is not None:
            # Idle ticks load no handlers, so the type may have disappeared long before *since*.
            since = f" since {times.clock(facts.since)}" if facts.since else ""
            last = (
                f"the last tick that loaded it began at {times.clock(facts.last.started_at)} on {name(facts.last.host)}"
            )
            had = f"no tick that loaded handlers has known this type{since} ({last})"
        reasons.append(f'no ticking host can run type "{name(facts.name)}": {had}')
    if facts.removed_schedules:
        names = [name(each) for each in facts.removed_schedules]
        reasons.append(no_longer_in_file(several(names), len(names)))
    if facts.here is False:
        other = ""
        # A tick loaded the type, although this configuration lacks it: that tick ran on another host, with another
        # file, or before the code here changed.
        if facts.known and facts.last is not None:
            other = f", but {tick_that_began(facts.last, times)} loaded it"
            if facts.silent_since is not None:
                other += f" ({name(facts.last.host)} has not ticked since {times.clock(facts.silent_since)})"
        reasons.append(f'no handler or command "{name(facts.name)}" is registered in this configuration{other}')
    if facts.file_fault is not None:
        reasons.append(f"the type's entry in the file here is broken: {one_line(facts.file_fault, 300)}")
    if facts.not_loaded_here:
        reasons.append(f"{missing_because(facts.not_loaded_here)} (in this configuration)")
    for host, faults in groupby(facts.not_loaded, key=lambda fault: fault[0]):
        reasons.append(f"on {name(host)} {missing_because([(where, what) for _, where, what in faults])}")
    if facts.loads_only_here:
        compare = 'compare "cronjobs config show" and "cronjobs crontab show"'
        reasons.append(f"on this host, this command could load it, so {FIXED_OR_ENVIRONMENT}: {compare}")
    return reasons


def _reasons(job: JobFacts, times: LocalTimes, around: Now) -> list[str]:
    """Explain why the job waits, apart from its due time."""
    reasons = []
    if around.foreign is not None:
        reasons.append(f"ticks that use the file here refuse this database: {one_line(around.foreign, 300)}")
    if job.paused is not None:
        reasons.append(pause(job.paused, times))
    if job.turn_after is not None:
        of = f"job {job.turn_after.job_id} of schedule {name(job.schedule or '')}"
        reasons.append(f"{of} has begun, and must end first" if job.turn_after.running else f"{of} comes first")
    if job.type_facts is not None:
        reasons += type_reasons(job.type_facts, times)
    # ``type_reasons`` has named the host if the type is not registered here.
    if job.only_elsewhere is not None and job.type_facts is None:
        could = ""
        if job.only_elsewhere.host is not None and job.only_elsewhere.at is not None:
            host, at = name(job.only_elsewhere.host), times.clock(job.only_elsewhere.at)
            could = f"; {host}, which could run it, has not ticked since {at}"
        reasons.append(f"no ticking host can run {name(job.job_type)}{could}")
    if job.out_of_reach is not None:
        with_ = ", ".join(f"{name(host)} with {one_line(options, 200)}" for host, options in job.out_of_reach.options)
        since = times.clock(job.out_of_reach.since)
        reasons.append(f"the options of every tick exclude the job: since {since}, all ticks ran on {with_}")
    if job.limit is not None:
        reasons.append(one_line(job.limit, 300))
    if job.executor is not None:
        reasons.append(
            f"the job waits for the Dask scheduler of executor {name(job.executor)}: the supervisor submits the job as "
            "soon as the scheduler answers and the executor's in_flight limit allows one more attempt"
        )
    silent = _no_tick(around, times)
    if job.passed_over is not None and job.passed_over.long_off:
        off = long_jobs_off(job.passed_over.long_off, no_other=not silent)
        reasons.append(f"the job's timeout is longer than a tick allows, and {off}")
    elif job.long_places == 0:
        reasons.append("the job's timeout is longer than a tick allows, and long jobs are off here (run.long_jobs: 0)")
    elif job.long_places is not None and job.passed_over is not None and job.passed_over.no_place:
        reasons.append(
            "this is a long job (its timeout is longer than a tick allows), and a host runs at most "
            f"{job.long_places} of these at once (run.long_jobs)"
        )
    elif job.passed_over is not None and job.passed_over.no_process:
        reasons.append("this is a long job (its timeout is longer than a tick allows), and its process does not start")
    return [*reasons, *silent]


def _no_tick(around: Now, times: LocalTimes) -> list[str]:
    last = around.last_tick
    if last is None:
        said = "no tick has ever reached this database"
    elif around.now - last.last_sign_at > around.quiet_after:
        quiet = f"since {times.clock(last.last_sign_at)}, for {rough(around.now - last.last_sign_at)}"
        said = f"no tick has reached the database {quiet}"
    else:
        return []
    kept = around.kept_from_starting
    return [said, did_not_start("this host", kept)] if kept else [said]


# --- in a list --------------------------------------------------------------------------------------------------------


def brief_job(job: JobFacts) -> str:
    if job.status == "succeeded":
        return "succeeded" if job.attempt <= 1 else f"succeeded at attempt {job.attempt}"
    error = f": {one_line(job.last_error.rstrip(), 120)}" if job.last_error and job.status in ("dead", "failed") else ""
    return {"queued": "waits", "failed": "waits for another try"}.get(job.status, job.status) + error
