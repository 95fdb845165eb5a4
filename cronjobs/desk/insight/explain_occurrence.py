"""Describe what became of an occurrence: facts in, sentences out.

All functions here are pure. All wording about occurrences is here.

A verdict is one word for programs. The sentences are for people: times are in the schedule's zone, causes come before
consequences, and nothing is claimed that the rows do not show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import Final

from cronjobs.desk.insight.explain_facts import (
    AuditEntry,
    DefinitionFacts,
    Explanation,
    JobFacts,
    LedgerFacts,
    OccurrenceFacts,
    PauseFacts,
    TickFacts,
    plain,
)
from cronjobs.desk.insight.explain_job import attempt_sentence, brief_job, job_sentences, row_gone
from cronjobs.desk.insight.explain_phrases import (
    between,
    capital,
    enqueued_by,
    late,
    left_to_another_tick,
    name,
    pause,
    ran_early_words,
    triggered,
    who,
)
from cronjobs.desk.insight.formatting import LocalTimes, counted
from cronjobs.desk.insight.kept_from_starting import did_not_start
from cronjobs.engine.rules.occurrences import BEFORE, CRON_RAN, NOT_MADE_UP, ON_TIME_WITHIN, ran_early
from cronjobs.model import duration_text, rough
from cronjobs.text import one_line

OCCURRENCE_VERDICTS: Final = {
    "enqueued": "the schedule enqueued a job for it",
    "skipped": "a job of the schedule was still unfinished (overlap), the queue was full, or cron itself ran the line",
    "missed": "no tick ran in time, and the schedule's catch_up setting excluded a late run",
    "coalesced": "one run stands for several occurrences, including this one",
    "paused": "the schedule, or everything, was paused with --skip",
    "pending": "no tick has settled it yet, a pause holds it back, or it is not due yet",
    "not_due": "the schedule had no occurrence at that time",
    "not_yet_defined": "the schedule did not exist yet",
    "retired": "the schedule was not in force: the file that was applied did not have it",
    "beyond_retention": "the occurrence was due, but the ledger does not go back that far",
    "unknown": "there is no such schedule, or the outcome is not recorded",
}


# --- an occurrence ----------------------------------------------------------------------------------------------------


def verdict(facts: OccurrenceFacts) -> str:
    """Return the verdict, one of OCCURRENCE_VERDICTS."""
    row = facts.ledger
    if row is not None:
        return "paused" if row.outcome == "skipped" and (row.reason or "").startswith("paused") else row.outcome
    if facts.existence != "defined":
        return {"not_yet": "not_yet_defined", "retired": "retired", "unreadable": "unknown"}[facts.existence]
    if not facts.due:
        return "not_due"
    if facts.owed or facts.settled_until is None or facts.last_for > facts.settled_until:
        return "pending"
    return "beyond_retention" if facts.beyond_retention else "unknown"


def explain_occurrence(facts: OccurrenceFacts) -> Explanation:
    """Explain what became of an occurrence, or why there was none. Facts about a range become one explanation."""
    found, row = verdict(facts), facts.ledger
    # A job that ran early may have run before the day when it was due, so print the date of every time that is not
    # today.
    early = row is not None and row.early
    times = LocalTimes(facts.around.now if early else facts.first_for, facts.timezone)
    sentences = []
    if facts.renamed_from is not None:
        sentences.append(f"{name(facts.renamed_from)} is called {name(facts.schedule)} now.")
    if facts.renamed_to is not None:
        renames = f"The file here renames {name(facts.schedule)} to {name(facts.renamed_to)}"
        sentences.append(
            f"{renames}: the next tick will apply this, and the schedule keeps its history under the new name."
        )
    if found == "not_due":
        sentences += _not_due(facts, times)
    elif facts.existence in ("not_yet", "retired", "unreadable") and row is None:
        sentences += _without_definition(facts, times)
    else:
        sentences += _due(facts, times)
        if row is not None and found in _SETTLED:
            sentences += _SETTLED[found](facts, row, times)
            by_hand = triggered(facts.triggered, times)
            sentences += [by_hand.said] if by_hand else []
        elif found == "pending":
            sentences += _pending(facts, times)
        elif found == "beyond_retention":
            kept = duration_text(facts.around.ledger_kept)
            sentences.append(
                f"What became of {_it(facts)} is no longer recorded: the ledger and the records of ticks are kept for "
                f"{kept}."
            )
        else:
            sentences.append(
                "Ticks have settled this schedule's occurrences up to "
                f"{times.dated(facts.settled_until or facts.last_for)}, so the ledger should have a row for "
                f"{_it(facts)}, but it has none."
            )
        sentences += _grace(facts, times)
    if facts.due_by is not None:
        timing = f"{one_line(facts.due_by.timing, 100)}, {facts.due_by.timezone}"
        applied = _applied(facts.due_by, times)
        sentences.append(f"Under the definition applied on {applied} ({timing}) it would have been due.")
    sentences += _standing(facts, times)
    shown = {name: value for name, value in plain(facts).items() if name != "around"}
    return Explanation(
        facts.schedule,
        facts.last_for,
        found,
        tuple(sentences),
        brief=_brief(facts, found, times),
        usual=_usual(facts, found),
        facts=shown | {"count": facts.count},
    )


def _usual(facts: OccurrenceFacts, found: str) -> bool:
    """Return whether the occurrence's own job ran in time and succeeded at the first attempt.

    A list merges such answers.
    """
    job, row = facts.job, facts.ledger
    if found != "enqueued" or job is None or row is None or row.early:
        return False
    in_time = row.decided_at - facts.last_for <= ON_TIME_WITHIN and facts.stands_for == 1 and facts.remark is None
    return in_time and not _began_late(facts) and job.status == "succeeded" and job.attempt == 1


def _began_late(facts: OccurrenceFacts) -> timedelta | None:
    """Return how late the first attempt began, or None if it was on time. A ``spread:`` delay does not count."""
    first = facts.job.attempts[0].started_at if facts.job is not None and facts.job.attempts else None
    later = facts.decided_by.starts_later_by if facts.decided_by else timedelta(0)
    delay = None if first is None else first - facts.last_for - later
    return delay if delay is not None and delay > ON_TIME_WITHIN else None


def _it(facts: OccurrenceFacts) -> str:
    return "it" if facts.count == 1 else "them"


def _due(facts: OccurrenceFacts, times: LocalTimes) -> list[str]:
    future = facts.first_for > facts.around.now
    by = _by_definition(facts.definition, times, facts.last_for)
    if facts.existence in ("not_yet", "retired"):
        # No definition was in force, but a backfill wrote a ledger row.
        gone = "did not exist yet" if facts.existence == "not_yet" else "was retired"
        sentences = [f"{name(facts.schedule)} {gone} at {times.with_utc(facts.last_for)}."]
    elif facts.count == 1:
        said = "will be due" if future else "was due"
        sentences = [f"{name(facts.schedule)} {said} at {times.with_utc(facts.last_for)}{by}."]
    else:
        said = "will be due" if future else "were due"
        first, last = times.with_utc(facts.first_for), times.with_utc(facts.last_for)
        sentences = [f"{facts.count:,} occurrences of {name(facts.schedule)} {said} from {first} to {last}{by}."]
    if facts.edited is not None:
        decides = "decides what becomes" if facts.ledger is None else "decided what became"
        applied = _applied(facts.edited, times)
        sentences.append(
            f"The schedule has been edited since: the definition applied on {applied} {decides} of {_it(facts)}."
        )
    if facts.remark is not None:
        sentences.append(f"The clocks changed: {facts.remark}.")
    if facts.clock_change == "doubled" and facts.remark is not None and "two runs" in facts.remark:
        other = times.dated(times.local(facts.last_for).replace(fold=1))
        sentences.append(f"The other run of {facts.asked} is at {other}.")
    return sentences


def _by_definition(definition: DefinitionFacts | None, times: LocalTimes, due: datetime | None = None) -> str:
    """Name the definition. *due* is an occurrence that this definition settled, so the definition was in force then."""
    if definition is None:
        return ""
    timing = one_line(definition.timing, 100)
    if definition.applied is None:
        return f", by its definition ({timing}; applied at an unknown time)"
    applied = _applied(definition, times)
    if due is not None and definition.applied.at > due:
        return f", by the definition ({timing}) applied on {applied}, when a clock was ahead"
    return f", by the definition applied on {applied} ({timing})"


def _applied(definition: DefinitionFacts, times: LocalTimes) -> str:
    if definition.applied is None:
        return "an unrecorded day"
    host = f" by host {name(definition.applied.host)}" if definition.applied.host else ""
    return f"{times.dated(definition.applied.at)}{host}"


def _enqueued(facts: OccurrenceFacts, row: LedgerFacts, times: LocalTimes) -> list[str]:
    if row.backfilled:
        by, _, before = one_line(row.reason or "", 400).partition(BEFORE)
        first = f"It did not run when it was due: {before}." if before else "It did not run when it was due."
        said = f"At {times.clock(row.decided_at)}, a {by} made job {row.job_id} for it."
        return [*_outage(facts, row, times), first, said, *_fate(facts, row, times)]
    if row.early:
        early = ran_early_words(row.reason or "", times)
        said = f"Its job, {row.job_id}, {early}: a clock was ahead then and was later set back."
        then = f'It does not run again by itself: to enqueue a job now, run "cronjobs trigger {quote(facts.schedule)}".'
        ended = facts.job is None or facts.job.status not in ("queued", "failed", "running")
        again = [one_line(then, 300)] if ended and _ran_early(facts, row) else []
        return [said, *again, *_fate(facts, row, times)]
    delay = row.decided_at - facts.last_for
    sentences = _why_late(facts, row, times)
    tick = who(facts.settler)
    made = f"{capital(tick)} made job {row.job_id} for it" if tick else f"Job {row.job_id} was made for it"
    at = f" at {times.clock(row.decided_at)}" if delay > ON_TIME_WITHIN or tick is None else ""
    more = f" ({one_line(row.reason, 200)})" if row.reason else ""
    sentences.append(f"{made}{at}, {late(delay)}{more}.")
    sentences += left_to_another_tick(facts.settler, facts.job)
    if facts.stands_for > 1:
        sentences.append(f"That run stands for {counted(facts.stands_for - 1, 'other occurrence')} too.")
    later = facts.decided_by.starts_later_by if facts.decided_by else timedelta(0)
    if later:
        until = times.clock(facts.last_for + later)
        sentences.append(f"The schedule's spread setting delays the job's start until {until}.")
    return sentences + _fate(facts, row, times)


def _ran_early(facts: OccurrenceFacts, row: LedgerFacts) -> bool:
    attempts, began_at = (None, None) if facts.job is None else (facts.job.attempt, facts.job.started_at)
    return ran_early(row.reason, facts.last_for, attempts, began_at)


def _fate(facts: OccurrenceFacts, row: LedgerFacts, times: LocalTimes) -> list[str]:
    """Describe what became of the job, or that its row is gone."""
    if facts.job is None:
        # A job runs early only if a clock was wrong.
        return [row_gone(facts.pruned_dead, None if row.early else row.decided_at, times, facts.around)]
    return job_sentences(facts.job, times, facts.around)


def _why_late(facts: OccurrenceFacts, row: LedgerFacts, times: LocalTimes) -> list[str]:
    """Explain why no earlier tick settled the occurrence. Return [] if it was settled in time."""
    after = facts.tick_after
    brake = facts.pause if facts.pause is not None and _holds(facts.pause, facts) else None
    if row.decided_at - facts.last_for <= ON_TIME_WITHIN and brake is None:
        # The occurrence counts as settled in time, but an earlier tick may have failed to start.
        in_time = after is None or after.started_at - facts.last_for <= facts.around.every
        return [] if in_time else _kept_from_starting(after)
    if facts.settled_ahead:
        return [f"The tick that settled it had a clock that was ahead and showed {times.clock(row.decided_at)}."]
    if brake is not None:
        held = f"{capital(_it_was(facts))} held back: {_pauses(facts, times)}."
        first, ended = (*facts.held_before, brake)[0], brake.ended_at
        sentences = [*(_outage(facts, row, times) if first.since > facts.last_for else []), held]
        if ended is None or row.decided_at - ended <= ON_TIME_WITHIN:
            return sentences
        until = times.clock(row.decided_at)
        return [*sentences, f"No tick settled {_it(facts)} between the end of the pause and {until}."]
    if after is not None and after != facts.settler and after.last_sign_at < row.decided_at:
        which = "it" if facts.count == 1 else "the last of them"
        why = _left_by(facts, after) or "the reason is not recorded"
        return [
            (
                f"A tick had already reached the database at {times.clock(after.started_at)}, but that tick did not "
                f"settle {which}; {why}."
            )
        ]
    return _outage(facts, row, times)


def _holds(brake: PauseFacts, facts: OccurrenceFacts) -> bool:
    """Return whether the pause holds back the occurrence.

    A pause that skips occurrences holds back only those that were due before the pause began. No pause holds back an
    occurrence that another pause skips.
    """
    return facts.skipped_by is None and (not brake.skip or facts.owed or facts.last_for < brake.since)


def _pauses(facts: OccurrenceFacts, times: LocalTimes) -> str:
    """Return text such as "the schedule was paused by ada from … to …, then everything was paused by bob …"."""
    return ", then ".join(pause(each, times) for each in (*facts.held_before, facts.pause) if each is not None)


def _outage(facts: OccurrenceFacts, row: LedgerFacts, times: LocalTimes) -> list[str]:
    """Describe the time without ticks in which the occurrence was due, even if an operator settled it later.

    Return [] if that time was no longer than the usual time between ticks.
    """
    before, after = facts.tick_before, facts.tick_after
    until = after.started_at if after is not None and after.started_at <= row.decided_at else row.decided_at
    if until - facts.last_for <= ON_TIME_WITHIN:
        return []
    if before is None:
        return [f"No tick reached the database until {times.clock(until)}.", *_kept_from_starting(after)]
    at_work = before.last_sign_at > facts.last_for
    first, what = (before.started_at, "began") if at_work else (before.last_sign_at, "reached the database")
    if until - first <= facts.around.quiet_after:
        return []
    return [f"No tick {what} {between(first, until, times)}.", *_kept_from_starting(after)]


def _kept_from_starting(after: TickFacts | None) -> list[str]:
    """Explain why ticks could not start until the tick *after* did. Return [] if that tick recorded no reason."""
    if after is None or not after.kept_from_starting:
        return []
    return [f"{capital(did_not_start(f'host {name(after.host)}', after.kept_from_starting))}."]


def _left_by(facts: OccurrenceFacts, tick: TickFacts) -> str | None:
    """Explain why a tick left the occurrence unsettled, or return None if the reason is unknown.

    The known reasons: schedules were switched off on the tick's host, the schedule's entry in the tick's file was
    broken, or the tick could not use the database for some time.
    """
    if tick.schedules_off:
        return "that tick fired no schedules (CRONJOBS_SCHEDULES=off on its host)"
    entries = tuple(f"schedules.{each}." for each in (facts.schedule, facts.renaming_entry) if each is not None)
    for where, what in tick.broken:
        if f"{where}.".startswith(entries):
            return f"the schedule's entry in the file of that host was broken: {one_line(what, 300)}"
    return (
        None if tick.away is None else f"that tick could not use the database for some time: {one_line(tick.away, 300)}"
    )


def _coalesced(facts: OccurrenceFacts, row: LedgerFacts, times: LocalTimes) -> list[str]:
    for_ = f", for {times.clock(facts.job_for)}" if facts.job_for else ""
    others = row.whole_count - facts.count
    also = f" and {others:,} more" if others else ""
    if _joined(facts, row):
        for_ += "," if for_ else ""
        already = f"Job {row.job_id} of the schedule{for_} was already waiting at {times.clock(row.decided_at)}"
        said = f"{already}: that job stands for {_it(facts)} too (overlap: wait)."
        return [*_why_late(facts, row, times), said, *_fate(facts, row, times)]
    said = f"The run at {times.clock(row.decided_at)} (job {row.job_id}{for_}) stands for {_it(facts)}{also}."
    return [*_why_late(facts, row, times), said, *_fate(facts, row, times)]


def _joined(facts: OccurrenceFacts, row: LedgerFacts) -> bool:
    """Return whether the occurrence, when it was settled, was coalesced into a job that was already waiting."""
    older = facts.job is not None and facts.job.created_at < row.decided_at - timedelta(seconds=1)
    return older or (row.reason or "").startswith("overlap")


def _skipped(facts: OccurrenceFacts, row: LedgerFacts, times: LocalTimes) -> list[str]:
    if row.job_id is None:
        why = (row.reason or "no reason is recorded").removeprefix("full: ")
        backfill = [] if why == CRON_RAN else _backfill(facts)  # cron has run it, so a backfill would repeat it
        return [f"{capital(_it_was(facts))} skipped: {one_line(why, 300)}.", *backfill]
    for_ = f", made for {times.dated(facts.job_for)}," if facts.job_for else ""
    if not for_ and facts.job is not None and facts.job.enqueued_by:
        for_ = f", {enqueued_by(facts.job.enqueued_by)},"
    said = (
        f"{capital(_it_was(facts))} skipped at {times.clock(row.decided_at)}, because job {row.job_id}{for_} was still"
    )
    sentences = [*_why_late(facts, row, times), f"{said} unfinished (overlap: skip)."]
    job = facts.job
    if job is None:
        return [*sentences, f"The row of job {row.job_id} is gone, so nothing records what the job was doing then."]
    since = job_sentences(job, times, facts.around, after=row.decided_at)
    return [*sentences, *_doing_then(job, row.decided_at, times, facts.around.now), *since]


def _backfill(facts: OccurrenceFacts) -> list[str]:
    first, last = (at.astimezone(UTC).isoformat().replace("+00:00", "Z") for at in (facts.first_for, facts.last_for))
    command = f"cronjobs backfill {quote(facts.schedule)} --from {first} --to {last}"
    return [f'Nothing runs {_it(facts)} later, unless someone runs "{one_line(command, 300)}".']


def _it_was(facts: OccurrenceFacts) -> str:
    return "it was" if facts.count == 1 else "they were"


def _doing_then(job: JobFacts, moment: datetime, times: LocalTimes, now: datetime) -> list[str]:
    """Say what the job was doing at *moment*. If it waited after an attempt, say how that attempt ended, too."""
    if job.attempts and job.attempts[-1].started_at > now:
        return ["Nobody knows what it was doing then, because a clock was ahead when it ran."]
    for attempt in job.attempts:
        if attempt.started_at <= moment < attempt.finished_at:
            begun = f"begun at {times.clock(attempt.started_at)} on {name(attempt.host)}"
            return [f"Its attempt {attempt.number} was running then, {begun}."]
    if job.status == "running" and job.started_at is not None and job.started_at <= moment:
        return [f"Its attempt {job.attempt} had begun at {times.clock(job.started_at)}, and no end is recorded."]
    tried = [attempt for attempt in job.attempts if attempt.finished_at <= moment]
    if not tried:
        return ["It was waiting for its first try then."]
    if tried[-1].outcome == "snoozed":
        return [f"Its attempt {tried[-1].number} had snoozed the job, and the job was still waiting then."]
    turn = "another try" if tried[-1].outcome in ("failed", "timed_out") else "another turn"
    waited = f"After {counted(len(tried), 'attempt')} it was waiting for {turn} then."
    return [attempt_sentence(tried[-1], times), waited]


def _missed(facts: OccurrenceFacts, row: LedgerFacts, times: LocalTimes) -> list[str]:
    tick = who(facts.settler)
    age = rough(row.decided_at - facts.last_for)
    settled = f"{tick} settled {_it(facts)}" if tick else f"{_it_was(facts)} settled"
    sentence = f"When {settled}, at {times.clock(row.decided_at)}, "
    sentence += f"{'it was' if facts.count == 1 else 'the newest of them was'} {age} old, "
    why = _not_made_up(facts, row)
    if why == "catch_up: none":
        why = f'"{why}" makes up only for occurrences younger than {rough(ON_TIME_WITHIN)}'
    sentence += why if why.startswith("beyond") else f"and {why}"
    others = row.whole_count - facts.count
    also = f", with {others:,} more" if others else ""
    return [*_why_late(facts, row, times), f"{sentence}. It was recorded as missed{also}; no job was made."]


def _not_made_up(facts: OccurrenceFacts, row: LedgerFacts) -> str:
    """Explain why no run makes up for the missed occurrences."""
    definition = facts.decided_by
    if definition is not None and definition.catch_up == "none":
        return "catch_up: none"
    if (row.reason or "").startswith(NOT_MADE_UP):
        return one_line(row.reason or "", 300)
    if definition is not None and definition.catch_up == "latest":
        return f"beyond catch_up_within ({duration_text(definition.catch_up_within)})"
    return one_line(row.reason or "the schedule's catch_up setting excludes a later run", 200)


def _paused(facts: OccurrenceFacts, row: LedgerFacts, times: LocalTimes) -> list[str]:
    if facts.pause is None:
        return [f"{capital(_it_was(facts))} skipped: {one_line(row.reason or 'paused', 300)}."]
    return [f"{capital(_it_was(facts))} skipped, because {pause(facts.pause, times)}."]


_SETTLED: Final = {
    "enqueued": _enqueued,
    "coalesced": _coalesced,
    "skipped": _skipped,
    "missed": _missed,
    "paused": _paused,
}


def _pending(facts: OccurrenceFacts, times: LocalTimes) -> list[str]:
    now, last, brake = facts.around.now, facts.around.last_tick, facts.pause
    # could_since: the first instant at which ticks could have settled the occurrence.
    was_held, could_since = [], facts.last_for
    if brake is not None and brake.ended_at is not None:
        was_held = [f"{capital(_it_was(facts))} held back: {_pauses(facts, times)}."]
        could_since, brake = brake.ended_at, None
    skipped_by = facts.skipped_by
    if facts.first_for > now:
        brake = skipped_by or brake
        first = "It" if facts.count == 1 else "The first"
        sentences = [f"{first} is due in {rough(facts.first_for - now)}."]
        if brake is not None:
            they_are = "it is" if facts.count == 1 else "they are"
            then = "skipped" if brake.skip else f"held back, and when the pause ends, {_decides(facts)}"
            sentences += [f"{capital(pause(brake, times))}.", f"If the pause lasts until then, {they_are} {then}."]
    elif brake is not None and _holds(brake, facts):
        held = "is held back" if facts.count == 1 else "are held back"
        them = "it" if facts.count == 1 else "they"
        sentences = [f"{capital(them)} {held}: {_pauses(facts, times)}.", f"When the pause ends, {_decides(facts)}."]
        if last is not None and last.started_at <= facts.last_for < brake.since:
            sentences.insert(0, _last_tick(last, times))
    elif brake is not None and skipped_by is not None and not brake.skip:
        sentences = [
            f"{capital(_it(facts))} will be recorded as skipped, because {pause(skipped_by, times)}.",
            f"A tick will record this when another pause ends: {pause(brake, times)}.",
        ]
    else:
        waits = "It waits" if facts.count == 1 else "They wait"
        sentences = [*was_held, f"{waits} for a tick to settle {_it(facts)}; the time now is {times.clock(now)}."]
        if last is None:
            sentences.append("No tick has ever reached this database.")
        if facts.around.foreign is not None:
            sentences.append(
                f"Ticks that use the file here refuse this database: {one_line(facts.around.foreign, 400)}."
            )
        elif last is not None and last.started_at <= could_since:
            sentences.append(_last_tick(last, times))
            if facts.around.kept_from_starting:
                sentences.append(f"{capital(did_not_start('this host', facts.around.kept_from_starting))}.")
        elif last is not None and brake is None and not facts.owed:
            why = _left_by(facts, last) or "the reason is not recorded"
            sentences.append(
                f"A tick of host {name(last.host)} has begun since then, at {times.clock(last.started_at)}, but left "
                f"{_it(facts)} unsettled; {why}."
            )
        if skipped_by is not None:
            sentences.append(f"The next tick will record {_it(facts)} as skipped: {pause(skipped_by, times)}.")
    if facts.file_fault is not None:
        entry = "The schedule's entry in the file here"
        if facts.renaming_entry is not None:
            entry = f"The file here renames {name(facts.schedule)} to {name(facts.renaming_entry)}, whose entry"
        sentences.append(
            f"{entry} is broken, so ticks that use this file leave the schedule alone: "
            f"{one_line(facts.file_fault, 400)}."
        )
    return sentences


def _last_tick(last: TickFacts, times: LocalTimes) -> str:
    return f"The last tick began at {times.clock(last.started_at)} on host {name(last.host)}."


def _decides(facts: OccurrenceFacts) -> str:
    """Return text such as '"catch_up: latest" decides what becomes of it'."""
    policy = f'"catch_up: {facts.decided_by.catch_up}"' if facts.decided_by is not None else "catch_up"
    return f"{policy} decides what becomes of {_it(facts)}"


def _not_due(facts: OccurrenceFacts, times: LocalTimes) -> list[str]:
    said = "will not be due" if facts.last_for > facts.around.now else "was not due"
    at = times.with_utc(facts.last_for)
    sentences = []
    if facts.clock_change == "gap" and facts.asked is not None:
        if facts.remark is None:
            sentences.append(f"{facts.asked} did not exist in {facts.timezone}: the clocks went forward.")
        at = f"{facts.asked} {facts.timezone}"
    sentences.append(f"{name(facts.schedule)} {said} at {at}{_by_definition(facts.definition, times)}.")
    if facts.remark is not None:
        sentences.append(f"The clocks changed: {facts.remark}.")
    around = []
    if facts.previous is not None:
        around.append(f"the previous occurrence was {times.dated(facts.previous)}")
    if facts.next is not None:
        coming = "is" if facts.next > facts.around.now else "was"
        around.append(f"the next one {coming} {times.dated(facts.next)}")
    if around:
        sentences.append(capital(", ".join(around)) + ".")
    return sentences


def _without_definition(facts: OccurrenceFacts, times: LocalTimes) -> list[str]:
    schedule = name(facts.schedule)
    at = times.with_utc(facts.last_for) if facts.count == 1 else times.with_utc(facts.first_for)
    match facts.existence:
        case "not_yet":
            first = facts.first_defined
            host = f" by host {name(first.host)}" if first and first.host else ""
            ahead = ", when a clock was ahead" if first and first.at > facts.around.now else ""
            since = f": the schedule was first applied on {times.dated(first.at)}{host}{ahead}" if first else ""
            sentences = [
                f"{schedule} did not exist yet at {at}{since}.",
                "A new schedule never fires for times before it existed.",
            ]
        case "retired":
            returned = facts.returned
            until = f"; it came back at {times.dated(returned.at)}" if returned else ""
            when = (
                f"at {at}" if facts.count else f"from {times.dated(facts.first_for)} to {times.dated(facts.last_for)}"
            )
            sentences = [f"{schedule} was not in force {when}{_retired_by(facts.retired, times)}{until}."]
            if returned is None:
                sentences += _in_the_file(facts)
            else:
                sentences.append(
                    "A schedule that returns to the file does not make up for the occurrences it missed in between."
                )
        case _:
            sentences = [f"This version of cronjobs cannot read the definition that {schedule} had at {at}."]
    return sentences


def _retired_by(act: AuditEntry | None, times: LocalTimes) -> str:
    """Return text such as ": a tick on host alpha retired it at 2026-11-20 02:15:00, because the file …"."""
    if act is None:
        return ""
    by = "a tick" if act.by in (None, "tick") else name(act.by or "")
    host = f" on host {name(act.host)}" if act.host else ""
    which = "the file that was applied then did not have the schedule for this environment"
    return f": {by}{host} retired it at {times.dated(act.at)}, because {which}"


def _in_the_file(facts: OccurrenceFacts) -> list[str]:
    """Report that the file here has the retired schedule. Return [] if the file does not have the schedule."""
    sentences = []
    if facts.in_file:
        sentences.append(
            "The file here has the schedule, but no tick has applied that file since, so the schedule is not in force."
        )
    if facts.elsewhere is not None:
        here = f'environment "{name(facts.elsewhere)}"' if facts.elsewhere else 'the file has no key "environment"'
        sentences.append(f"The file here has the schedule only for environments other than this one ({here}).")
    return sentences


def _grace(facts: OccurrenceFacts, times: LocalTimes) -> list[str]:
    """Describe the schedule's grace if the occurrence was due and no run succeeded within that grace.

    A finding reports such an occurrence, too.
    """
    definition, row, job = facts.decided_by, facts.ledger, facts.job
    if definition is None or definition.grace is None or facts.count != 1 or facts.first_for > facts.around.now:
        return []
    if row is not None and row.reason == CRON_RAN:
        return []
    over, grace = facts.last_for + definition.starts_later_by + definition.grace, duration_text(definition.grace)
    early = row is not None and _ran_early(facts, row)
    if row is not None and row.job_id is not None and not early:
        # The job's row is gone. If the job was dead, another sentence reports that.
        if job is None:
            return []
        if job.status == "succeeded":
            late_by = job.finished_at - over if job.finished_at is not None else timedelta(0)
            return [f"Its grace of {grace} had ended at {times.clock(over)}."] if late_by > timedelta(0) else []
    by_hand = (*facts.triggered, *(job.triggered if job is not None else ()))
    if any(each.status == "succeeded" and each.finished_at and each.finished_at <= over for each in by_hand):
        return []
    if facts.around.now <= over:
        return [f"Its grace of {grace} ends at {times.clock(over)}."]
    return [f"Its grace of {grace} ended at {times.clock(over)} without a run that succeeded."]


def _standing(facts: OccurrenceFacts, times: LocalTimes) -> list[str]:
    """Describe what has changed for the schedule since that occurrence."""
    now = facts.standing
    if now is None:
        return []
    if now.retired:
        if facts.existence == "retired":
            return []
        return [f"{name(facts.schedule)} is retired now{_retired_by(now.act, times)}.", *_in_the_file(facts)]
    sentences = []
    before, after = facts.definition, now.definition
    if before and after and before.times != after.times:
        timing = one_line(after.timing, 100) + (f", {after.timezone}" if after.timezone != before.timezone else "")
        coming = f"It is due next at {times.dated(now.next)}." if now.next else "It is never due again."
        sentences.append(f"The schedule now has the timing {timing}, applied on {_applied(after, times)}. {coming}")
    if now.pause is not None and now.pause != facts.pause:
        then = "skipped" if now.pause.skip else "held back"
        sentences += [f"{capital(pause(now.pause, times))}.", f"What comes due during the pause is {then}."]
    return sentences


# --- in a list --------------------------------------------------------------------------------------------------------


def _brief(facts: OccurrenceFacts, found: str, times: LocalTimes) -> str:
    row = facts.ledger
    match found:
        case "enqueued" if row is not None:
            gone = (
                "the job's row is gone"
                if facts.pruned_dead is None
                else "dead, and pruned before anybody dealt with it"
            )
            ended = brief_job(facts.job) if facts.job else gone
            if _ran_early(facts, row):
                return f"job {row.job_id}, ran early, because a clock was ahead: {ended}"
            if row.backfilled:
                return f"job {row.job_id}: {ended}; {one_line(row.reason or '', 200)}"
            after, began = row.decided_at - facts.last_for, _began_late(facts)
            begun = f", begun {rough(began)} late" if began is not None and began - after > ON_TIME_WITHIN else ""
            return (
                f"job {row.job_id}, {'made ' if begun else ''}{late(after)}{begun}: {ended}{_delay(facts, row, times)}"
            )
        case "coalesced" if row is not None:
            made = row.decided_at if not _joined(facts, row) else facts.job.created_at if facts.job else None
            at = f", made at {times.clock(made)}," if made else ""
            fate = f": {brief_job(facts.job)}" if facts.job and facts.job.status != "succeeded" else ""
            return f"job {row.job_id}{at} stands for {_it(facts)}{fate}{_delay(facts, row, times)}"
        case "skipped" if row is not None and row.job_id is not None:
            return f"job {row.job_id} was still unfinished"
        case "missed" if row is not None:
            gap = next(iter(_why_late(facts, row, times)), f"settled at {times.clock(row.decided_at)}")
            return f"{_not_made_up(facts, row)}; {_as_clause(gap)}"
        case "paused" if facts.pause is not None:
            return pause(facts.pause, times)
        case "pending":
            if facts.first_for > facts.around.now:
                return "still to come"
            if facts.skipped_by is not None:
                return f"will be recorded as skipped: {pause(facts.skipped_by, times)}"
            held = facts.pause is not None and _holds(facts.pause, facts)
            return f"held back: {_pauses(facts, times)}" if held else "no tick has settled it yet"
        case "unknown" if facts.existence == "defined":
            return f"the ledger should have a row for {_it(facts)} but has none"
        case "not_yet_defined" | "retired" | "unknown" | "beyond_retention":
            return OCCURRENCE_VERDICTS[found]
        case _:
            return one_line(row.reason, 200) if row is not None and row.reason else ""


def _delay(facts: OccurrenceFacts, row: LedgerFacts, times: LocalTimes) -> str:
    """Return the first reason for a late settlement, in parentheses."""
    why = next(iter(_why_late(facts, row, times)), "")
    return f" ({_as_clause(why)})" if why else ""


def _as_clause(sentence: str) -> str:
    return f"{sentence[:1].lower()}{sentence[1:].rstrip('.')}"


def counts_of(explanations: Iterable[Explanation]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for each in explanations:
        counts[each.verdict] += each.facts["count"]
    return counts


def summary(counts: Counter[str], left_out: bool) -> str:
    """Return text such as "3 occurrences: 2 enqueued, 1 missed"."""
    total, older = counts.total(), "; older ones are left out" if left_out else ""
    if not total:
        return f"no occurrence{older}"
    others = [word for word in counts if word not in OCCURRENCE_VERDICTS]  # these are verdicts of exec runs
    parts = [f"{counts[word]:,} {word.replace('_', ' ')}" for word in (*OCCURRENCE_VERDICTS, *others) if counts[word]]
    return f"{counted(total, 'occurrence')}: {', '.join(parts)}{older}"
