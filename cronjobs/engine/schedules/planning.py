"""Plan how a schedule settles the occurrences that it still "owes". Pure.

The plan follows from the schedule's watermark, its pauses and its older definitions. An ordinary pause postpones
occurrences: until it ends, ticks settle nothing for the paused schedules. Then ``catch_up`` decides once about the
whole span, as after an outage. If a definition ends during the pause, because the schedule is removed or its times
change, it leaves a ``Piece``: the time range that still has to be settled under that definition. A pause with ``skip``
postpones nothing: ticks record the occurrences that become due during it as skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from cronjobs.engine.config.settings import ScheduleSettings
from cronjobs.engine.rules.occurrences import ON_TIME_WITHIN, Range, dropped_reason, ledger_reason
from cronjobs.engine.schedules.definition import schedule_from_definition
from cronjobs.errors import CronjobsError

# Only functions import crontime, because an idle tick does not need it.
if TYPE_CHECKING:
    from cronjobs.engine.crontime.timing import Timing

# If one of these keys changes, the schedule is due at other times.
TIMING: Final = ("cron", "every_s", "timezone")
MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True)
class Pause:
    """A present or past pause of one schedule or of everything. It covers the time from ``since`` up to, but not
    including, ``until``.
    """

    since: datetime
    # None means that the pause lasts until someone resumes.
    until: datetime | None
    skip: bool
    said: str  # for example "paused by ada: deploy"

    def in_force(self, now: datetime) -> bool:
        return self.until is None or self.until > now

    def covers(self, instant: datetime) -> bool:
        return self.since <= instant and (self.until is None or instant < self.until)


@dataclass(frozen=True)
class Piece:
    """A time range in which an earlier definition's occurrences still have to be settled. Excludes ``start``, includes
    ``end``.
    """

    definition: Mapping[str, Any]
    start: datetime
    end: datetime


@dataclass(frozen=True)
class Owed:
    """A schedule's state. All occurrences up to ``seen_until`` are settled, except those in the ``pieces`` (oldest
    first).

    After ``seen_until`` the ``definition`` applies. If ``definition`` is None, the schedule is retired.
    """

    name: str
    definition: Mapping[str, Any] | None
    seen_until: datetime
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Part:
    """The outcomes of one span: its occurrences are ``missed``, are ``coalesced`` into ``into``, or will ``run``.

    Each occurrence in ``run`` (oldest first) becomes one job, if overlap allows it. If ``skipped`` is set, there are no
    other outcomes. ``dropped`` are occurrences that ``catch_up: all`` could not run because of its limit. They also
    count as missed, and must be reported.
    """

    schedule: ScheduleSettings
    missed: Range | None = None
    coalesced: Range | None = None
    # The occurrence, in this part or in a later one, whose job stands for ``coalesced``.
    into: datetime | None = None
    run: tuple[datetime, ...] = ()
    skipped: Range | None = None
    why: str = ""  # why occurrences are missed or skipped
    dropped: Range | None = None
    why_dropped: str = ""

    @property
    def empty(self) -> bool:
        return not (self.missed or self.dropped or self.coalesced or self.run or self.skipped)


@dataclass(frozen=True)
class HeldOccurrences:
    """Occurrences that a pause held back. ``by`` describes the pause."""

    what: Range
    by: str


@dataclass(frozen=True)
class Plan:
    """What to write: the ``parts`` (oldest first), and the new state of the schedule.

    ``held``, for the log, lists the occurrences that pauses held back, if these pauses are now over. ``faults`` says
    why definitions cannot be read. Occurrences under unreadable definitions still have to be settled later.
    """

    parts: tuple[Part, ...]
    seen_until: datetime
    next_at: datetime | None
    pieces: tuple[Piece, ...]
    held: tuple[HeldOccurrences, ...] = ()
    faults: tuple[str, ...] = ()


def settle(owed: Owed, pauses: Iterable[Pause], now: datetime, *, leaving: bool = False) -> Plan | None:
    """Decide about all occurrences up to *now*. Return None if nothing is to be written.

    *pauses* contains all pauses that apply to the schedule, including past pauses. *leaving* is True if the definition
    is about to end. Then the occurrences that a pause holds back become a piece.
    """
    from cronjobs.engine.crontime.timing import next_after

    pauses = list(pauses)
    in_force = [pause for pause in pauses if pause.in_force(now)]
    if any(not pause.skip for pause in in_force) and not leaving:
        return None
    faults: list[str] = []
    current = None if owed.definition is None else _read(owed.name, owed.definition, faults)
    spans = [] if current is None else _spans(current, owed.seen_until, now, pauses)
    skipped = [part for span in spans if (part := _skipped(span)) is not None]
    if in_force and not leaving and not any(span.skip for span in spans):
        # While a pause is in force, no job is created, not even for an occurrence from before the pause.
        return None
    due = [span for span in spans if span.skip is None]
    kept: list[Piece] = []
    held: list[HeldOccurrences] = []
    parts: list[Part] = []
    if in_force:
        kept = [
            *owed.pieces,
            *(Piece(span.timed.definition, span.start, span.end) for span in due if span.all is not None),
        ]
    else:
        old, kept = _old(owed, now, faults)
        held = _held([*old, *due], pauses)
        parts = _caught_up([*old, *due], held, now)
    seen_until = owed.seen_until if current is None else max(now, owed.seen_until)
    return Plan(
        parts=tuple(sorted([*skipped, *parts], key=_begin)),
        seen_until=seen_until,
        next_at=None if current is None else next_after(current.when, seen_until),
        pieces=tuple(kept),
        held=tuple(held),
        faults=tuple(faults),
    )


def held_back(owed: Owed, pauses: Iterable[Pause], now: datetime) -> Range | None:
    """Return the occurrences that pauses hold back now, or None if no occurrence is held back."""
    pauses = list(pauses)
    if not any(pause.in_force(now) for pause in pauses):
        return None
    faults: list[str] = []
    old, _ = _old(owed, now, faults)
    current = None if owed.definition is None else _read(owed.name, owed.definition, faults)
    spans = [] if current is None else _spans(current, owed.seen_until, now, pauses)
    return joined([found for span in [*old, *spans] if span.skip is None and (found := span.all) is not None])


def joined(ranges: Sequence[Range]) -> Range | None:
    """Return one range from the first occurrence to the last, with the total count. The range may contain gaps."""
    if not ranges:
        return None
    count = sum(each.count for each in ranges)
    return Range(min(each.first for each in ranges), max(each.last for each in ranges), count)


# --- spans ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimedDefinition:
    """A readable definition, with its schedule and its times."""

    definition: Mapping[str, Any]
    schedule: ScheduleSettings
    when: Timing


@dataclass(frozen=True)
class _Span:
    """A time range under one definition. ``skip`` is the pause that skips its occurrences, or None."""

    timed: TimedDefinition
    start: datetime
    end: datetime
    skip: Pause | None = None
    # True if the span is a piece. Only pauses leave pieces.
    was_held: bool = False

    @property
    def all(self) -> Range | None:
        return self.count(self.start, self.end)

    def count(self, after: datetime, until: datetime) -> Range | None:
        return occurrences(self.timed.when, after, until)


def occurrences(when: Timing, after: datetime, until: datetime) -> Range | None:
    """Return the occurrences later than *after*, up to and including *until*.

    Return None if there are none.
    """
    count, first, last = when.span(after, until)
    return None if first is None or last is None else Range(first, last, count)


def read(name: str, definition: Mapping[str, Any]) -> TimedDefinition:
    """Parse a stored definition into its schedule and its times.

    Raises ValueError if this version cannot read the definition: a newer version or a person may have written it.
    """
    from cronjobs.engine.crontime.timing import timing

    try:
        schedule = schedule_from_definition(name, definition)
        return TimedDefinition(definition, schedule, timing(schedule.cron, schedule.every, schedule.timezone))
    except (CronjobsError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise ValueError(str(error)) from error


def _read(name: str, definition: Mapping[str, Any], faults: list[str]) -> TimedDefinition | None:
    try:
        return read(name, definition)
    except ValueError as error:
        faults.append(str(error))
        return None


def cut(pieces: Sequence[Piece], now: datetime) -> tuple[Piece, ...]:
    """Return *pieces*, cut off at *now*. A clock that was ahead may have made a piece too long."""
    return tuple(replace(piece, end=min(piece.end, now)) for piece in pieces if piece.start < now)


def _old(owed: Owed, now: datetime, faults: list[str]) -> tuple[list[_Span], list[Piece]]:
    """Return the pieces as spans, and separately the unreadable pieces, which are kept so that nothing is lost."""
    spans, unread = [], []
    for piece in cut(owed.pieces, now):
        timed = _read(owed.name, piece.definition, faults)
        if timed is None:
            unread.append(piece)
        else:
            spans.append(_Span(timed, piece.start, piece.end, was_held=True))
    return spans, unread


def _spans(current: TimedDefinition, start: datetime, now: datetime, pauses: Sequence[Pause]) -> list[_Span]:
    """Return the time from *start* to *now* as spans.

    A new span begins wherever a pause with ``skip`` begins or ends.
    """
    skips = [pause for pause in pauses if pause.skip and pause.since <= now]
    edges = {edge - MICROSECOND for pause in skips for edge in (pause.since, pause.until) if edge is not None}
    cuts = [start, *sorted(edge for edge in edges if start < edge < now), now]
    return [
        _Span(current, after, until, next((pause for pause in skips if pause.covers(until)), None))
        for after, until in pairwise(cuts)
        if after < until
    ]


# --- deciding the outcomes --------------------------------------------------------------------------------------------


def _skipped(span: _Span) -> Part | None:
    found = span.all
    return None if span.skip is None or found is None else Part(span.timed.schedule, skipped=found, why=span.skip.said)


def _held(spans: Sequence[_Span], pauses: Sequence[Pause]) -> list[HeldOccurrences]:
    """Return the occurrences of *spans* that pauses held back, if these pauses are over. Each occurrence is counted
    once.
    """
    over = sorted((pause for pause in pauses if not pause.skip), key=lambda pause: pause.since)
    found = []
    for span in spans:
        if span.was_held:
            by = [pause.said for pause in over if pause.covers(span.end)]
            found += [HeldOccurrences(all_, by[0] if by else "paused")] if (all_ := span.all) else []
            continue
        after = span.start
        for pause in over:
            until = span.end if pause.until is None else min(span.end, pause.until - MICROSECOND)
            after = max(after, pause.since - MICROSECOND)
            if after < until:
                found += [HeldOccurrences(held, pause.said)] if (held := span.count(after, until)) else []
                after = until
    return found


def _caught_up(spans: Sequence[_Span], held: Sequence[HeldOccurrences], now: datetime) -> list[Part]:
    """Decide which occurrences of *spans* run. Return the outcomes, oldest first.

    An occurrence at most two minutes old is on time. Anything older than ``catch_up_within`` is missed. Of the other
    late occurrences, ``catch_up: latest`` runs only the newest, which stands for the others. ``all`` runs the newest
    ones, at most ``catch_up_limit``, oldest first. ``none`` runs none of them. Spans whose definitions differ only in
    their times share one decision. Any other difference starts a new one.
    """
    from cronjobs.engine.crontime.timing import newest_between

    parts: list[Part] = []
    work, left, into = None, 0, None
    for span in reversed(spans):
        schedule = span.timed.schedule
        if work != (work := {key: value for key, value in span.timed.definition.items() if key not in TIMING}):
            left, into = schedule.catch_up_limit if schedule.catch_up == "all" else 1, None
        reach = ON_TIME_WITHIN if schedule.catch_up == "none" else max(schedule.catch_up_within, ON_TIME_WITHIN)
        reach_from = min(max(span.start, now - reach), span.end)
        run = tuple(newest_between(span.timed.when, reach_from, span.end, left))
        left -= len(run)
        into = run[0] if run else into
        before_run = run[0] - MICROSECOND if run else span.end
        missed, rest = span.count(span.start, reach_from), span.count(reach_from, before_run)
        dropped, coalesced = (rest, None) if schedule.catch_up == "all" else (None, rest if into else None)
        parts.append(
            Part(
                schedule,
                missed,
                coalesced,
                into,
                run,
                why=ledger_reason(schedule.catch_up, paused=_was_held(missed, held)),
                dropped=dropped,
                why_dropped=dropped_reason(paused=_was_held(dropped, held)),
            )
        )
    return [part for part in reversed(parts) if not part.empty]


def _was_held(what: Range | None, held: Sequence[HeldOccurrences]) -> bool:
    return what is not None and any(each.what.first <= what.last <= each.what.last for each in held)


def _begin(part: Part) -> datetime:
    ranges = (part.skipped, part.missed, part.dropped, part.coalesced)
    return min([found.first for found in ranges if found is not None] + list(part.run[:1]))


# --- pieces as JSON ---------------------------------------------------------------------------------------------------


def pieces_from(stored: Any) -> tuple[Piece, ...]:
    """Return the pieces from *stored*, which ``stored_pieces`` wrote. Raises ValueError if *stored* cannot be read."""
    try:
        return tuple(
            Piece(dict(each["definition"]), _instant(each["from"]), _instant(each["to"])) for each in stored or ()
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f'this version cannot read the column "owed" ({error!r})') from error


def stored_pieces(pieces: Sequence[Piece]) -> list[dict[str, Any]] | None:
    return [
        {"definition": dict(piece.definition), "from": piece.start.isoformat(), "to": piece.end.isoformat()}
        for piece in pieces
    ] or None


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return instant
