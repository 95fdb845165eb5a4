"""Phrases that explanations share: who acted, what was paused, which triggered run made up for an occurrence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cronjobs.desk.insight.explain_facts import JobFacts, PauseFacts, TickFacts, Triggered
from cronjobs.desk.insight.formatting import LocalTimes, on_the_clock
from cronjobs.engine.jobs.job_types import NOT_IMPORTED
from cronjobs.engine.rules.occurrences import early_words
from cronjobs.model import Status, rough
from cronjobs.text import one_line

_MADE_BY_HAND: Final = ("trigger ", "backfill ")


def made_by_hand(enqueued_by: str | None) -> bool:
    """Return whether a person made the job of a schedule. Such a job was due at once, whatever the schedule says."""
    return (enqueued_by or "").startswith(_MADE_BY_HAND)


def started(what: str, due: datetime, begun: datetime, times: LocalTimes, *, by_hand: bool) -> str:
    """Return text such as "It was due at 08:00:00 and started 7m late, at 08:07:00".

    *by_hand*: whether "cronjobs run" started the attempt. A person chose that time, so it does not count as late.
    """
    was_due = f"{what} was due at {times.clock(due)}"
    if by_hand:
        return f'{was_due}, and someone started it with "cronjobs run" at {times.clock(begun)}'
    return f"{was_due} and started {late(begun - due)}, at {times.clock(begun)}"


def late(by: timedelta) -> str:
    return "on time" if by < timedelta(seconds=1) else f"{rough(by)} late"


def ran_early_words(reason: str, times: LocalTimes) -> str:
    """Return text such as "ran early at 01:31:04 or before, because of a wrong clock that showed 02:15:04"."""
    return one_line(on_the_clock(early_words(reason), times), 200)


def name(text: str) -> str:
    return one_line(text, 120)


def enqueued_by(by: str) -> str:
    """Return text such as "enqueued by app/web", or "triggered by ada" for a job of "cronjobs trigger"."""
    person = by.removeprefix("trigger ")
    return f"{'enqueued' if person == by else 'triggered'} by {name(person)}"


def missing_because(faults: Sequence[tuple[str, str]]) -> str:
    """Return why a job type may be missing. *faults* has at least one pair of a fault's place and its reason."""
    shown = [(one_line(where, 120), one_line(what, 200)) for where, what in faults]
    if len(shown) > 1:
        return f"the type is missing because of one of these: {', '.join(f'{where} ({what})' for where, what in shown)}"
    [(where, what)] = shown
    return f"{where} {what}" if what.startswith(NOT_IMPORTED) else f"{where}: {what}"


def who(tick: TickFacts | None) -> str | None:
    """Return text such as "a tick of host alpha", or None if no tick is on record."""
    return None if tick is None else f"a tick of host {name(tick.host)}"


def left_to_another_tick(maker: TickFacts | None, job: JobFacts | None) -> list[str]:
    """Return a sentence if *maker*, the tick that made *job*, may have been unable to run it.

    Return [] if the tick could load all code, if the job began before that tick ended, or if the recorded reason why
    the job did not start already names the fault.
    """
    if maker is None or not maker.not_loaded or job is None:
        return []
    begun = job.attempts[0].started_at if job.attempts else job.started_at
    if begun is not None and begun <= maker.last_sign_at:
        return []
    where, what = maker.not_loaded[0]
    if job.passed_over is not None and where in job.passed_over.why:
        return []
    left = "so it may have had to leave the job to another host"
    return [f"That tick could not load {one_line(where, 200)} ({one_line(what, 300)}), {left}."]


def pause(pause: PauseFacts, times: LocalTimes) -> str:
    """Return text such as "everything was paused by ada from … to … (why: deploy)"."""
    what = {"all": "everything", "schedule": "the schedule", "queue": f"queue {name(pause.name)}"}[pause.scope]
    by = f" by {name(pause.by)}" if pause.by else ""
    by += f" (changed by {name(pause.changed_by)})" if pause.changed_by else ""
    why = f" (why: {one_line(pause.why, 300)})" if pause.why else ""
    if pause.ended_at is not None:
        return f"{what} was paused{by} {from_to(pause.since, pause.ended_at, times)}{why}"
    until = f"until {times.clock(pause.until)}" if pause.until else "until someone resumes it"
    return f"{what} has been paused{by} since {times.clock(pause.since)}, {until}{why}"


@dataclass(frozen=True)
class TriggeredRun:
    """A run that a person triggered.

    ``said``: a sentence about it. ``does_it``: whether the run succeeded or can still succeed.
    """

    said: str
    does_it: bool


def triggered(runs: Sequence[Triggered], times: LocalTimes) -> TriggeredRun | None:
    """Return the newest successful run by hand, else the newest run by hand, or None if there is none.

    An explanation mentions such a run, since the reader may then not need to repeat the work.
    """
    best = next((each for each in runs if each.status == Status.SUCCEEDED), runs[0] if runs else None)
    if best is None:
        return None
    at = f" at {times.clock(best.finished_at)}" if best.finished_at else ""
    became = {
        Status.SUCCEEDED: f"succeeded{at}",
        Status.DEAD: f"died{at}{', and was dismissed' if best.dismissed else ''}",
        Status.CANCELLED: f"was cancelled{at}",
        Status.RUNNING: "began, but its runner died or hangs" if best.no_runner else "is running now",
        Status.QUEUED: "waits",
        Status.FAILED: "waits for another try",
    }
    ended = became[Status(best.status)] if best.status else "has ended; its row has been deleted"
    by = f"{name(best.by)} triggered" if best.by else "was triggered"
    said = f"Job {best.job_id}, which {by} at {times.clock(best.at)}, {ended}."
    return TriggeredRun(said, best.status not in (Status.DEAD, Status.CANCELLED))


def between(first: datetime, last: datetime, times: LocalTimes) -> str:
    """Return text such as "between 01:58:00 and 02:31:12". If the dates differ, both are included."""
    begin, end = _ends(first, last, times)
    return f"between {begin} and {end}"


def from_to(first: datetime, last: datetime, times: LocalTimes) -> str:
    """Return text such as "from 01:58:00 to 02:31:12". If the dates differ, both are included."""
    begin, end = _ends(first, last, times)
    return f"from {begin} to {end}"


def _ends(first: datetime, last: datetime, times: LocalTimes) -> tuple[str, str]:
    if times.local(first).date() != times.local(last).date():
        return times.dated(first), times.dated(last)
    return times.clock(first), LocalTimes(first, times.timezone).clock(last)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
