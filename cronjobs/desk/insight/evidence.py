"""Gather the database's facts about an occurrence, for ``explain`` to describe.

The audit trail shows which definition was in force. The ledger shows what became of an occurrence. The ticks show which
host settled the occurrence. A fact is None if no row shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from cronjobs.desk.insight.explain_facts import (
    DefinitionFacts,
    OccurrenceFacts,
    PauseFacts,
    Standing,
    TickFacts,
)
from cronjobs.desk.insight.instants import Asked
from cronjobs.desk.insight.job_evidence import (
    could_delay,
    count_of,
    in_detail,
    job_facts,
    ledger_facts,
    surroundings,
    tick_facts,
    ticked_in,
    triggered_since,
    with_triggered,
)
from cronjobs.desk.insight.kept_from_starting import FIRST, kept_before
from cronjobs.desk.insight.schedule_history import (
    JUST_BEFORE,
    DefinitionPeriod,
    defined,
    due_on_the_clock,
    ends_at,
    eras,
    held_back,
    in_force,
    is_due,
    pause_from,
    pauses_over_time,
    runs_after_a_gap,
)
from cronjobs.desk.rules.pausing import of_schedule
from cronjobs.desk.rules.schedule_names import names_of
from cronjobs.desk.store import explaining, trail
from cronjobs.engine.config.settings import ScheduleSettings, Settings
from cronjobs.engine.crontime.timing import Timing, clock_changes, newest_between, next_after, remarks
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.occurrences import BACKFILLED, Range
from cronjobs.engine.schedules.planning import Piece, occurrences, pieces_from
from cronjobs.engine.schedules.wrong_clock import FUTURE_WATERMARK
from cronjobs.engine.store import schedules
from cronjobs.engine.store.given_up import pruned_dead
from cronjobs.engine.store.schedules import StoredSchedule
from cronjobs.errors import CronjobsError

# A schedule for 29 February may wait this long: from 2096-02-29 to 2104-02-29.
LOOK_BACK: Final = timedelta(days=366 * 8 + 2)


class ScheduleEvidence:
    """The facts about one schedule, read once. The methods answer questions from these facts. Raises NoSuchSchedule."""

    def __init__(self, connection: Connection, name: str, settings: Settings, types: Callable[[], JobTypes]) -> None:
        self.connection, self.settings, self.types = connection, settings, types
        renames = schedules.renames(connection)
        stored = explaining.schedule_named(connection, name)
        if stored is None and name in settings.schedules:
            stored = explaining.schedule_named(connection, settings.schedules[name].renamed_from or "")
            stored = stored if stored is not None and renaming(settings.schedules, stored) == name else None
        self.renamed_from = name if stored is None else None
        if stored is None:
            stored = explaining.schedule_named(connection, schedules.name_now(name, renames))
        if stored is None:
            raise NoSuchSchedule(name, explaining.schedule_names(connection))
        self.stored = stored
        known = renaming(settings.schedules, stored)
        self.renamed_to = None if known is None or explaining.schedule_named(connection, known) else known
        self.around = surroundings(connection, settings)
        self.names = names = names_of(stored.name, renames)
        acts = trail.entries(connection, ("define", "retire"), {each.name for each in names})
        self.eras = eras([row for row in acts if any(each.holds(row.subject, row.at) for each in names)], stored)
        subjects = ["all", *(f"schedule {each.name}" for each in names)]
        self.pauses = [
            replace(pause, ended_at=pause.until)
            if pause.ended_at is None and pause.until is not None and pause.until <= self.around.now
            else pause
            for pause in pauses_over_time(trail.entries(connection, ("pause", "resume"), subjects), names)
        ]
        self.ticked_in = ticked_in(connection, self.pauses)
        self.pause_rows = explaining.pause_rows(connection)
        self.owed = _pieces(stored)
        first_tick = explaining.first_tick_at(connection)
        self.horizon = self.around.now - settings.retention.occurrences
        if first_tick is not None and first_tick > self.horizon:
            self.horizon = first_tick

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def now(self) -> datetime:
        return self.around.now

    @property
    def timezone(self) -> str:
        """The time zone for times without an offset: the zone of the present or last definition."""
        defined = [era.facts.timezone for era in self.eras if era.facts is not None]
        return defined[-1] if defined else self.settings.timezone

    def at(self, asked: Asked) -> OccurrenceFacts:
        """Return the facts about one instant."""
        row = explaining.row_from(self.connection, self.stored.id, asked.at)
        exact = row is not None and row.last_for == asked.at
        era = self._era_of(row) if exact else self._era(asked.at)
        due = exact or (era.timing is not None and is_due(era.timing, asked.at))
        # If the clocks skipped the time asked about, an occurrence is due at that time only if the schedule runs at the
        # end of the gap.
        if not asked.exists:
            due = due and era.timing is not None and runs_after_a_gap(era.timing, asked.wall)
        wall = None if asked.wall is None else f"{asked.wall:%Y-%m-%d %H:%M}"
        if not due or row is None or row.first_for > asked.at:
            row = None
        facts = replace(
            self._facts(era, Range(asked.at, asked.at, 1), due, row),
            asked=wall,
            clock_change=None if wall is None else "doubled" if asked.exists else "gap",
            remark=self._remark(era, asked, due),
            due_by=None if due else self._due_by_another(era, asked.at),
        )
        if not due and era.timing is not None:
            # If the clocks skipped the time, asked.at is the first instant after the gap, which may be an occurrence.
            # In that case it is the next occurrence, not the previous one.
            upto = asked.at if asked.exists else asked.at - JUST_BEFORE
            previous, following = self._neighbours(era, era.timing, upto)
            facts = replace(facts, previous=previous, next=following)
        [found] = self._with_rows([(facts, row)])
        if found.job is not None:
            return replace(found, job=in_detail(self.connection, found.job, self.types, self.around))
        return found

    def latest(self) -> Asked:
        """Return the last occurrence, settled or not, or the next occurrence if there was none."""
        row = explaining.rows_between(
            self.connection, self.stored.id, self.stored.seen_until - LOOK_BACK, self.around.now, 1
        )
        found = [row[0].last_for] if row else []
        found += [
            at
            for when, after, until in self._unsettled(self.around.now)
            for at in newest_between(when, after, until, 1)
        ]
        if found:
            return Asked(max(found))
        era = self._era(self.around.now)
        coming = next_after(era.timing, self.around.now) if era.timing is not None else None
        return Asked(coming or self.around.now)

    def now_and_last(self) -> OccurrenceFacts:
        """Return the facts about the last occurrence, and the schedule's present state."""
        now, era = self.around.now, self.eras[-1]
        standing = Standing(
            retired=era.existence == "retired",
            act=era.act,
            definition=era.facts,
            next=next_after(era.timing, now) if era.timing is not None else None,
            pause=self._pause(now),
        )
        return replace(self.at(self.latest()), standing=standing)

    def between(self, begin: datetime, end: datetime, limit: int) -> tuple[list[OccurrenceFacts], bool]:
        """Return facts from *begin* to *end*, one per ledger row (the newest *limit*), and whether older rows exist.

        The facts also cover spans too old for the ledger, occurrences that wait for a tick, and spans without a
        definition.
        """
        rows = list(explaining.rows_between(self.connection, self.stored.id, begin, end, limit + 1))
        left_out = len(rows) > limit
        rows = rows[-limit:]
        beyond = explaining.row_from(self.connection, self.stored.id, end + JUST_BEFORE)
        if beyond is not None and beyond.first_for <= end and beyond.decided_at <= self.around.now + FUTURE_WATERMARK:
            rows.append(beyond)  # this row begins in the range and ends after the range
        if left_out:
            begin = rows[0].first_for
        found: list[tuple[OccurrenceFacts, Any]] = []
        for row in rows:
            era = self._era_of(row)
            span = Range(max(row.first_for, begin), row.last_for, count_of(row))
            if era.timing is not None and (row.first_for < begin or row.last_for > end):
                part = occurrences(era.timing, span.first - JUST_BEFORE, min(span.last, end))
                if part is None:
                    continue
                span = part
            facts = self._facts(era, span, True, row)
            remark = self._remark(era, Asked(span.last), True) if span.count == 1 else None
            found.append((replace(facts, remark=remark), row))
        found += [(facts, None) for facts in self._missing_from_ledger(rows, begin, end)]
        known_from = min([self.horizon, *(row.first_for for row in rows)])
        for era in self.eras:
            if era.existence == "not_yet" and (lived := [row.first_for for row in rows if not _asked_for(row)]):
                era = replace(era, until=min([*lived, *([era.until] if era.until else [])]))
            found += [(facts, None) for facts in self._without_row(era, begin, end, known_from)]
        for when, after, until in self._unsettled(end):
            if part := occurrences(when, max(after, begin - JUST_BEFORE), min(until, end)):
                found.append((self._facts(self._era(part.last), part, True), None))
        found.sort(key=lambda pair: (pair[0].first_for, pair[0].last_for))
        left_out = left_out or len(found) > limit
        return self._with_rows(found[-limit:]), left_out

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _without_row(
        self, era: DefinitionPeriod, begin: datetime, end: datetime, known_from: datetime
    ) -> list[OccurrenceFacts]:
        span = era.clipped(begin, end)
        if span is None:
            return []
        if era.timing is None:
            # Leave out a span shorter than a second, since the text would show it as empty.
            if span[1] - max(span[0], begin) < timedelta(seconds=1):
                return []
            return [self._facts(era, Range(max(span[0], begin), span[1], 0), False)]
        found = []
        until = min(span[1], known_from - JUST_BEFORE)
        if span[0] < known_from and (part := occurrences(era.timing, span[0], until)):
            found.append(replace(self._facts(era, part, True), beyond_retention=True))
        return found

    def _unsettled(self, end: datetime) -> list[tuple[Timing, datetime, datetime]]:
        """Return the spans (after, until] up to *end* whose occurrences no tick has settled, each with its timing.

        After the watermark, ticks apply the present definition, even to occurrences that were due before an edit made
        that definition. As in a tick, a new span begins wherever a pause that skips occurrences begins or ends.
        """
        spans = [(when, piece.start, piece.end) for when, piece in self.owed]
        if (when := self.eras[-1].timing) is not None:
            begin = self.stored.seen_until
            now = max(self.around.now, begin)
            edges = [edge for pause in self.pauses if pause.skip for edge in (pause.since, ends_at(pause)) if edge]
            cuts = sorted(edge - JUST_BEFORE for edge in edges if begin < edge - JUST_BEFORE < now)
            spans += [(when, after, until) for after, until in pairwise([begin, *cuts, now, end])]
        return spans

    def _missing_from_ledger(self, rows: Sequence[Any], begin: datetime, end: datetime) -> list[OccurrenceFacts]:
        """Return facts about settled occurrences for which the ledger should have a row, but *rows* have none."""
        accounted = sorted(
            [(row.first_for - JUST_BEFORE, row.last_for) for row in rows]
            + [(piece.start, piece.end) for _, piece in self.owed]
        )
        found = []
        for era in self.eras:
            span = era.clipped(max(begin, self.horizon), min(end, self.stored.seen_until))
            if era.timing is None or span is None:
                continue
            after, until = span
            for first, last in [*accounted, (until, until)]:
                if after < min(first, until) and (part := occurrences(era.timing, after, min(first, until))):
                    found.append(self._facts(era, part, True))
                after = max(after, last)
        return found

    def _facts(self, era: DefinitionPeriod, span: Range, due: bool, row: Any = None) -> OccurrenceFacts:
        last = span.last
        defined = [each for each in self.eras if each.existence == "defined"]
        later = [each for each in defined if each.since and last <= each.since]
        fault = None
        if self.stored.name in self.settings.disabled_schedules:
            fault = "; ".join(map(str, self.settings.problems_of(self.stored.name))) or "the entry cannot be used"
        owed = due and any(piece.start < last <= piece.end for _, piece in self.owed)
        open_ = row is None and (owed or last > self.stored.seen_until)
        decided_at = self.now if open_ else None if row is None or _asked_for(row) else row.decided_at
        return OccurrenceFacts(
            schedule=self.stored.name,
            first_for=span.first,
            last_for=last,
            count=span.count,
            timezone=self._zone(era),
            around=self.around,
            existence=era.existence,
            due=due,
            definition=era.facts,
            edited=self._edited(era, decided_at) if due and decided_at is not None else None,
            settled_until=self.stored.seen_until,
            owed=owed,
            beyond_retention=due and last < self.horizon and last <= self.stored.seen_until and not owed,
            first_defined=defined[0].act if defined else None,
            retired=era.act if era.existence == "retired" else None,
            returned=later[0].act if later and era.existence == "retired" else None,
            renamed_from=self.renamed_from,
            renamed_to=self.renamed_to,
            file_fault=fault,
            renaming_entry=self.settings.disabled_renames.get(self.stored.name),
            in_file=self.stored.name in self.settings.schedules,
            elsewhere=self.settings.environment if self.stored.name in self.settings.elsewhere else None,
        )

    def _edited(self, era: DefinitionPeriod, decided_at: datetime) -> DefinitionFacts | None:
        """Return the definition in force at *decided_at*, if edits had changed that of *era* but kept its times.

        Return None if the edits changed nothing that an explanation names.
        """
        if (was := era.facts) is None:
            return None
        now = was
        for later in self.eras[self.eras.index(era) + 1 :]:
            facts = later.facts
            if facts is None or later.since is None or later.since >= decided_at or facts.times != was.times:
                break
            now = facts
        return None if replace(now, applied=was.applied) == was else now

    def _era(self, at: datetime) -> DefinitionPeriod:
        return next((era for era in reversed(self.eras) if era.since is None or era.since < at), self.eras[0])

    def _era_of(self, row: Any) -> DefinitionPeriod:
        """Return the definition that made a ledger row.

        The definition may be dated after the row, if a host's clock was ahead.
        """
        era = self._era(row.last_for)
        if _asked_for(row) or (era.timing is not None and is_due(era.timing, row.last_for)):
            return era
        later = self.eras[self.eras.index(era) + 1 :]
        return next((each for each in later if each.timing is not None and is_due(each.timing, row.last_for)), era)

    def _due_by_another(self, era: DefinitionPeriod, at: datetime) -> DefinitionFacts | None:
        """Of the other definitions with an occurrence at *at*, return the one nearest to *era* in the history."""
        place = self.eras.index(era)
        near = sorted(range(len(self.eras)), key=lambda number: abs(number - place))
        for number in near[:20]:
            other = self.eras[number]
            if other is not era and other.timing is not None and is_due(other.timing, at):
                return other.facts
        return None

    def _remark(self, era: DefinitionPeriod, asked: Asked, due: bool) -> str | None:
        if era.timing is None:
            return None
        if asked.wall is None:
            wall = asked.at.astimezone(ZoneInfo(self._zone(era))).replace(tzinfo=None)
            return remarks(era.timing, asked.at) if due or due_on_the_clock(era.timing, wall) else None
        if asked.exists:
            return remarks(era.timing, asked.at) if due_on_the_clock(era.timing, asked.wall) else None
        changes = dict(clock_changes(era.timing, asked.at - JUST_BEFORE, asked.at))
        return changes.get(asked.at) if due_on_the_clock(era.timing, asked.wall) else None

    def _zone(self, era: DefinitionPeriod) -> str:
        return era.facts.timezone if era.facts else self.timezone

    def _neighbours(self, era: DefinitionPeriod, when: Timing, at: datetime) -> tuple[datetime | None, datetime | None]:
        """Return the occurrences of *era*'s definition just before and after *at*, within *era*."""
        oldest = at - LOOK_BACK
        before = newest_between(when, max(oldest, era.since or oldest), at - JUST_BEFORE, 1)
        after = next_after(when, at)
        if after is not None and era.until is not None and after > era.until:
            after = None
        return before[0] if before else None, after

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _with_rows(self, found: Sequence[tuple[OccurrenceFacts, Any]]) -> list[OccurrenceFacts]:
        """Complete the facts of each occurrence with the ticks, jobs and pauses that its ledger row refers to."""
        connection = self.connection
        moments = [
            {"number": number, "due_at": facts.last_for}
            for number, (facts, _) in enumerate(found)
            if facts.due and facts.count
        ]
        facts_of: dict[int, TickFacts] = {}
        pairs: dict[int, tuple[int | None, int | None]] = {}
        if moments:
            pairs = explaining.ticks_beside(connection, moments)
            ids = {id_ for pair in pairs.values() for id_ in pair if id_ is not None}
            ids |= {row.tick for _, row in found if row is not None and row.tick is not None}
            ticks = explaining.ticks_of(connection, ids)
            facts_of = {id_: tick_facts(row) for id_, row in ticks.items()}
            for last, then in pairs.values():
                if last in facts_of and then in facts_of:
                    facts_of[then] = self._with_causes(facts_of[last], facts_of[then], ticks[then].did)
        job_ids = {row.job_id for _, row in found if row is not None and row.job_id is not None}
        jobs = job_facts(connection, job_ids, self.settings, self.types, self.around, self.pause_rows)
        pruned = pruned_dead(connection, job_ids - jobs.keys())
        made = {row.job_id: row for row in explaining.rows_naming(connection, job_ids, "enqueued")} if job_ids else {}
        stands: dict[int, int] = {}
        for row in explaining.rows_naming(connection, job_ids, "coalesced") if job_ids else ():
            stands[row.job_id] = stands.get(row.job_id, 1) + count_of(row)
        complete = []
        # The runs triggered by hand since the oldest of the rows was settled.
        since = min((row.decided_at for _, row in found if row is not None), default=None)
        triggered = [] if since is None else triggered_since(connection, self.names, since, self.now)
        for number, (facts, row) in enumerate(found):
            before, after = pairs.get(number, (None, None))
            # If a clock was ahead at the tick *after*, that tick really ran before the tick *before*.
            following = None if _set_back(after, before, facts_of) else facts_of.get(after or 0)
            facts = replace(facts, tick_before=facts_of.get(before or 0), tick_after=following)
            if row is not None:
                job = jobs.get(row.job_id)
                maker = made.get(row.job_id)
                facts = replace(
                    facts,
                    ledger=ledger_facts(row),
                    settler=facts_of.get(row.tick or 0),
                    settled_ahead=_set_back(row.tick, after, facts_of),
                    job=job and with_triggered(job, triggered),
                    pruned_dead=pruned.get(row.job_id),
                    triggered=tuple(each for each in triggered if row.job_id is None and each.at >= row.decided_at),
                    job_for=maker.last_for if maker else None,
                    stands_for=stands.get(row.job_id, 1) if row.outcome == "enqueued" else 1,
                )
                facts = self._with_pauses(facts, row)
            elif facts.due and facts.count and (facts.owed or facts.last_for > self.stored.seen_until):
                due = facts.last_for
                held, now = self._held_back(due, self.now), self._pause(self.now, due)
                earlier = tuple(pause for pause in held if pause.ended_at is not None) if now else held[:-1]
                skipped_by = None if facts.owed else self._skipped_by(due)
                pause = now or (held[-1] if held else None)
                facts = replace(facts, pause=pause, held_before=earlier, skipped_by=skipped_by)
            complete.append(facts)
        return complete

    def _with_causes(self, before: TickFacts, after: TickFacts, did: Any) -> TickFacts:
        """Return *after* with the causes that kept ticks from starting between *before* and *after*.

        *did* is the column of the row of *after*. If that row has no causes, look at later ticks' rows, but only if
        there was a time without ticks.
        """
        within = self.around.quiet_after
        if not after.kept_from_starting and after.started_at - before.last_sign_at <= within:
            return after
        since = before.started_at if before.host == after.host else FIRST
        causes = kept_before(self.connection, after.host, after.started_at, did, within, since)
        return replace(after, kept_from_starting=causes)

    def _with_pauses(self, facts: OccurrenceFacts, row: Any) -> OccurrenceFacts:
        """Add the pause that skipped the occurrence, or the pauses that held it back until it was settled."""
        if row.outcome == "skipped" and row.job_id is None:
            return replace(facts, pause=self._skipped_by(facts.last_for) or self._pause(row.decided_at))
        *before, last = self._held_back(facts.last_for, row.decided_at) or (None,)
        return replace(facts, pause=last, held_before=tuple(before))

    def _skipped_by(self, due: datetime) -> PauseFacts | None:
        """Return the pause that skips the occurrence at *due*, whatever other pauses are in force, or None."""
        return next((pause for pause in self.pauses if pause.skip and in_force(pause, due)), None)

    def _held_back(self, due: datetime, settled: datetime) -> tuple[PauseFacts, ...]:
        """Return the pauses that held back the occurrence at *due*, which was settled at *settled*.

        Each pause ends later than the pause before it. If several pauses were in force when the occurrence was due, the
        result begins with the pause that ended last among them.
        """

        def end(pause: PauseFacts) -> datetime:
            return ends_at(pause) or settled

        held = [
            pause for pause in self.pauses if held_back(pause, due, settled) and could_delay(pause, due, self.ticked_in)
        ]
        found = [max(held, key=lambda pause: (pause.since <= due, end(pause)))] if held else []
        for pause in sorted(held, key=lambda pause: pause.since):
            if end(pause) > end(found[-1]):
                found.append(pause)
        return tuple(found)

    def _pause(self, moment: datetime, due: datetime | None = None) -> PauseFacts | None:
        """Return the pause that stops this schedule at *moment*.

        If several pauses stop it, prefer a pause that postpones to a pause that skips. Among pauses of the same kind,
        prefer a pause that was in force at *due* to a pause that began later.
        """
        on = [pause for pause in self.pauses if in_force(pause, moment)]
        if not on:
            on = [
                pause
                for pause in of_schedule(map(pause_from, self.pause_rows), self.stored.name)
                if in_force(pause, moment)
            ]
        return min(on, key=lambda pause: (pause.skip, due is not None and pause.since > due, pause.scope), default=None)


def _set_back(first: int | None, then: int | None, facts_of: Mapping[int, TickFacts]) -> bool:
    """Return whether the clock was ahead at the tick *first*, and had been set back when the tick *then* began.

    A small difference does not count, since the rows of ticks that start at about the same time may be written in any
    order.
    """
    if first is None or then is None or first >= then or first not in facts_of:
        return False
    return facts_of[first].started_at - facts_of[then].started_at > FUTURE_WATERMARK


def _asked_for(row: Any) -> bool:
    """Return whether a backfill wrote the row. A backfill works even for a time at which no definition was in force."""
    return str(row.reason or "").startswith(BACKFILLED)


def renaming(schedules: Mapping[str, ScheduleSettings], stored: StoredSchedule) -> str | None:
    """Return the new name that the file here gives to an active schedule, or None if it is not renamed."""
    if stored.status != "active" or stored.name in schedules:
        return None
    return next((name for name, each in schedules.items() if each.renamed_from == stored.name), None)


def _pieces(stored: StoredSchedule) -> list[tuple[Timing, Piece]]:
    """Return the unsettled spans of earlier definitions. Leave out spans that this version cannot read."""
    found = []
    with suppress(ValueError):
        for piece in pieces_from(stored.owed):
            era = defined(stored.name, piece.definition, None)
            if era.timing is not None:
                found.append((era.timing, piece))
    return found


class NoSuchSchedule(CronjobsError):
    """No schedule has or had this name. ``known``: the existing names."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f'there is no schedule "{name}"')
        self.name, self.known = name, known
