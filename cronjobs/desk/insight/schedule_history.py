"""Read a schedule's history from the audit trail: its definitions, pauses and names over time.

Pure: the functions take rows and return spans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cronjobs.desk.insight.explain_facts import AuditEntry, DefinitionFacts, Existence, PauseFacts
from cronjobs.desk.rules.schedule_names import Name, names_of
from cronjobs.engine.crontime.timing import CronTiming, Timing
from cronjobs.engine.schedules.decide import spread_offset
from cronjobs.engine.schedules.planning import read
from cronjobs.engine.store.schedules import StoredSchedule, name_now
from cronjobs.model import duration_text

JUST_BEFORE: Final = timedelta(microseconds=1)


# --- names ------------------------------------------------------------------------------------------------------------


def names_of_its_own(name: str, renames: Sequence[tuple[datetime, str, str]], known: Collection[str]) -> frozenset[str]:
    """Return the present and former names of the schedule that is or was called *name*.

    *known*: the names that schedules have now. The result leaves out a name that another schedule also has or had,
    since rows with such a name may belong to either schedule.
    """
    now = name if name in known else name_now(name, renames)
    left = Counter(old for _, old, _ in renames)
    old_names = (each.name for each in names_of(now, renames))
    return frozenset({now, *(each for each in old_names if each not in known and left[each] == 1)})


# --- definitions over time --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DefinitionPeriod:
    """A span (``since``, ``until``] with one definition of a schedule, or without any.

    A bound of None means no limit.
    """

    existence: Existence
    since: datetime | None
    until: datetime | None
    facts: DefinitionFacts | None = None
    timing: Timing | None = None
    act: AuditEntry | None = None  # the audit entry of the action that began this period

    def clipped(self, begin: datetime, end: datetime) -> tuple[datetime, datetime] | None:
        """Return the part of [*begin*, *end*] that is in this span, as (first, last], or None if no part is."""
        first = max(begin - JUST_BEFORE, self.since) if self.since else begin - JUST_BEFORE
        last = min(end, self.until) if self.until else end
        return (first, last) if first < last else None


def eras(trail: Iterable[Any], stored: StoredSchedule) -> list[DefinitionPeriod]:
    """Return a schedule's periods from its audit *trail*.

    If the trail has no definition, use the present definition.
    """
    found: list[DefinitionPeriod] = []
    for row in trail:
        act = AuditEntry(row.at, row.actor, row.host, row.why)
        if not found:
            found.append(DefinitionPeriod("not_yet", None, row.at))
        found[-1] = replace(found[-1], until=row.at)
        if row.action == "retire":
            found.append(DefinitionPeriod("retired", row.at, None, act=act))
        else:
            found.append(defined(stored.name, row.detail, act))
    if not any(era.existence in ("defined", "unreadable") for era in found):
        return [defined(stored.name, stored.definition, None)]
    return found


def defined(name: str, written: Any, act: AuditEntry | None) -> DefinitionPeriod:
    since = None if act is None else act.at
    try:
        timed = read(name, written)
    except ValueError:
        return DefinitionPeriod("unreadable", since, None, act=act)
    schedule = timed.schedule
    timing = schedule.cron if schedule.every is None else f"every {duration_text(schedule.every)}"
    facts = DefinitionFacts(
        timing=str(timing),
        timezone=schedule.timezone,
        catch_up=schedule.catch_up,
        catch_up_within=schedule.catch_up_within,
        overlap=schedule.overlap,
        starts_later_by=spread_offset(schedule),
        grace=schedule.grace,
        applied=act,
    )
    return DefinitionPeriod("defined", since, None, facts, timed.when, act)


def is_due(when: Timing, at: datetime) -> bool:
    return when.span(at - JUST_BEFORE, at)[0] == 1


def due_on_the_clock(when: Timing, wall: datetime) -> bool:
    """Return whether the expression matches *wall* (naive local time), even if that time does not exist."""
    if not isinstance(when, CronTiming):
        return False
    return is_due(CronTiming(when.expression, "UTC"), wall.replace(tzinfo=UTC))


def runs_after_a_gap(when: Timing, wall: datetime | None) -> bool:
    """Return whether an occurrence at *wall*, a time in a DST gap, runs at the gap's end.

    By Debian's rule, only fixed times do.
    """
    fixed = isinstance(when, CronTiming) and when.expression.fixed_time
    return fixed and wall is not None and due_on_the_clock(when, wall)


# --- pauses -----------------------------------------------------------------------------------------------------------


def pauses_over_time(
    trail: Iterable[Any], names: Sequence[Name] = (), renames: Sequence[tuple[datetime, str, str]] = ()
) -> list[PauseFacts]:
    """Return pauses with their ends, from the audit trail. A pause that was changed appears once, in its last form.

    *names*: if the trail is about one schedule, all of its names. A pause under one name is then matched with its end
    under another name. *renames*: if the trail is about many schedules, every renaming, oldest first. Each pause then
    gets its schedule's present name.
    """
    found: list[PauseFacts] = []
    on: dict[str, PauseFacts] = {}
    for row in trail:
        scope, _, name = row.subject.partition(" ")
        if scope == "schedule" and names:
            if not any(each.holds(name, row.at) for each in names):
                # At that time, another schedule had this name.
                continue
            name = names[0].name
        elif scope == "schedule":
            name = name_now(name, [each for each in renames if each[0] >= row.at])
        subject = f"{scope} {name}"
        pause = on.pop(subject, None)
        if pause is not None and pause.until is not None and pause.until <= row.at:
            found.append(replace(pause, ended_at=pause.until))
            pause = None
        if row.action == "resume":
            if pause is not None:
                found.append(replace(pause, ended_at=row.at))
            continue
        detail = row.detail if isinstance(row.detail, dict) else {}
        written, skip = detail.get("until"), bool(detail.get("skip"))
        until = datetime.fromisoformat(written) if isinstance(written, str) else None
        if pause is not None and pause.skip != skip:
            found.append(replace(pause, ended_at=row.at))
            pause = None
        begun = PauseFacts(scope, name, row.actor, None, row.at, skip=skip) if pause is None else pause
        changed_by = None if row.actor == begun.by else row.actor
        on[subject] = replace(begun, why=row.why, until=until, changed_by=changed_by)
    return found + list(on.values())


def pause_from(row: Any) -> PauseFacts:
    return PauseFacts(row.scope, row.name, row.by, row.why, row.paused_at, row.until, skip=bool(row.skip))


def ends_at(pause: PauseFacts) -> datetime | None:
    """Return when the pause ended or will expire, or None if unknown."""
    return min((end for end in (pause.until, pause.ended_at) if end is not None), default=None)


def in_force(pause: PauseFacts, moment: datetime) -> bool:
    end = ends_at(pause)
    return pause.since <= moment and (end is None or moment < end)


def held_back(pause: PauseFacts, due: datetime, settled: datetime) -> bool:
    """Return whether the pause held back the occurrence at *due*, at some time before *settled*.

    A pause that skips occurrences holds back only those that were due before the pause began.
    """
    end = ends_at(pause)
    return (not pause.skip or due < pause.since) and pause.since < settled and (end is None or due < end)
