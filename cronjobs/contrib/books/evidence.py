"""Gather the evidence for the books: the audit trail, the ledger, and the jobs that are named in no ledger row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from cronjobs.contrib.books import statements as store
from cronjobs.contrib.books.judging import Account, Book, Doubt, Period, keep
from cronjobs.contrib.books.statements import UnnamedJob
from cronjobs.desk.insight.schedule_history import DefinitionPeriod, eras
from cronjobs.desk.rules.schedule_names import Name, names_of
from cronjobs.desk.store import explaining, status_facts, trail
from cronjobs.engine.config.settings import Retention, Settings
from cronjobs.engine.database.column_types import from_microseconds
from cronjobs.engine.schedules.applying import silence_after
from cronjobs.engine.schedules.planning import pieces_from, read
from cronjobs.engine.schedules.wrong_clock import FUTURE_WATERMARK
from cronjobs.engine.store import schedules
from cronjobs.engine.store.schedules import StoredSchedule
from cronjobs.engine.store.sql import database_now

UNNAMED_AT_MOST = 1000
ACTIONS = ("define", "retire", "backfill")


@dataclass(frozen=True)
class ScheduleAct:
    """An audit trail entry about a schedule."""

    at: datetime
    actor: str | None
    host: str | None
    why: str | None
    action: str
    detail: Any


def books(
    connection: Connection, settings: Settings, begin: datetime, end: datetime, only: str | None = None
) -> list[Book]:
    """Return the books of the schedules due from *begin* to *end*, sorted by name.

    *only* is the current or a former name of the one schedule to return. If it is None, return all schedules' books.
    """
    now = database_now(connection)
    period = _period(connection, settings.retention, begin, min(end, now), now)
    stored, renames = schedules.all_schedules(connection), schedules.renames(connection)
    if only is not None:
        name = only if only in {each.name for each in stored} else schedules.name_now(only, renames)
        stored = [each for each in stored if each.name == name]
    names = {each.name: names_of(each.name, renames) for each in stored}
    subjects = sorted({name.name for several in names.values() for name in several})
    trails: dict[str, list[Any]] = {}
    for row in trail.entries(connection, ACTIONS, subjects):
        trails.setdefault(row.subject, []).append(row)
    unnamed: dict[str, list[UnnamedJob]] = {}
    for job in store.unnamed_jobs(connection, period.begin, period.end, UNNAMED_AT_MOST):
        if owner := _owner(job, names):
            unnamed.setdefault(owner, []).append(job)
    # Cache clock_set_back, because many audit entries have the same time.
    set_back = cache(partial(store.clock_set_back, connection, period.begin))
    kept = []
    unsettled = _unsettled_because(connection, settings.run.every)
    for each in stored:
        open_because = _open_because(each, settings.disabled_schedules) or unsettled
        account = _account(
            connection, settings.timezone, each, names[each.name], trails, unnamed, set_back, period, now, open_because
        )
        book = keep(account, period)
        if book.days or book.differences or book.notes:
            kept.append(book)
    return kept


def _period(connection: Connection, retention: Retention, begin: datetime, end: datetime, now: datetime) -> Period:
    """Return the period, and the instants from which ledger rows and jobs are complete.

    If the retention was shorter in the past, the oldest rows are younger than today's retention allows. So look at the
    oldest rows, too.
    """
    first_tick = explaining.first_tick_at(connection)
    oldest = store.oldest_succeeded(connection)
    ledger_from: datetime = now - retention.occurrences
    kept_from: datetime = now - min(retention.succeeded, retention.dead)
    return Period(
        begin,
        end,
        ledger_from if first_tick is None else max(ledger_from, first_tick),
        kept_from if oldest is None else max(kept_from, oldest),
        now - retention.dead,
        kept_from,
    )


def _account(
    connection: Connection,
    timezone: str,
    stored: StoredSchedule,
    names: Sequence[Name],
    trails: Mapping[str, Sequence[Any]],
    unnamed: Mapping[str, Sequence[UnnamedJob]],
    set_back: Callable[[datetime], datetime | None],
    period: Period,
    now: datetime,
    open_because: str,
) -> Account:
    rows = [row for name in {each.name for each in names} for row in trails.get(name, ())]
    rows = sorted(
        (row for row in rows if any(each.holds(row.subject, row.at) for each in names)), key=lambda row: row.id
    )
    acts, doubts = in_order([row for row in rows if row.action != "backfill"], period.begin, now, set_back)
    periods = eras(acts, stored)
    doubts += [
        Doubt(began, act.at + FUTURE_WATERMARK, "the clock was set back when the schedule's definition changed")
        for act in acts
        if period.begin <= act.at + FUTURE_WATERMARK and (began := set_back(act.at)) is not None
    ]
    doubts += [
        Doubt(era.since or period.begin, era.until or now, "the definition in force cannot be read")
        for era in periods
        if era.existence == "unreadable"
    ]
    owed, unread = _owed(stored)
    if unread:
        doubts.append(
            Doubt(period.begin, stored.seen_until, "the list of occurrences that a pause holds back cannot be read")
        )
    entries = store.entries(connection, stored.id, period.begin, period.end)
    early = any(entry.by == "early" for entry in entries)
    return Account(
        stored.name,
        _timezone(periods, timezone),
        periods,
        entries,
        stored.seen_until,
        owed,
        doubts,
        [span for row in rows if row.action == "backfill" and (span := _span(row.detail))],
        unnamed.get(stored.name, ()),
        open_because,
        store.ran_early_at(connection, stored.id, period.begin, period.end) if early else (),
    )


def in_order(
    rows: Sequence[Any], begin: datetime, now: datetime, set_back: Callable[[datetime], datetime | None]
) -> tuple[list[ScheduleAct], list[Doubt]]:
    """Return the audit entries in the order in which they were written, and the spans in which times are uncertain.

    An entry's time is wrong if it is later than the next entry's time or than *now*. Such an entry was written at some
    time after its predecessor. If it has no predecessor, it was written after *begin*, or, if ticks show that the clock
    was set back, after the time that *set_back* returns.
    """
    acts: list[ScheduleAct] = []
    doubts: list[Doubt] = []
    limit: datetime = now
    for place in range(len(rows) - 1, -1, -1):
        row = rows[place]
        if row.at > limit:
            if place:
                before = min(limit, rows[place - 1].at)
            else:
                shown = set_back(row.at)
                before = shown if shown is not None and shown < limit else begin
            doubts.append(Doubt(before, row.at, "a clock was wrong when the schedule's definition changed"))
        limit = min(limit, row.at)
        acts.append(ScheduleAct(limit, row.actor, row.host, row.why, row.action, row.detail))
    return acts[::-1], doubts


def _owner(job: UnnamedJob, names: Mapping[str, Sequence[Name]]) -> str | None:
    """Return the current name of the schedule that was called ``job.schedule`` when the job was due.

    If no schedule had that name then, choose one that had it at another time.
    """
    owners = [now for now, several in names.items() if any(each.name == job.schedule for each in several)]
    at = from_microseconds(job.at)
    then = [now for now in owners if any(each.holds(job.schedule, at) for each in names[now])]
    return next(iter(then or owners), None)


def _timezone(periods: Sequence[DefinitionPeriod], otherwise: str) -> str:
    """Return the zone of the newest definition whose zone is valid. Plain SQL may have written an invalid zone."""
    for era in reversed(periods):
        with suppress(KeyError, ValueError, OSError):
            if era.facts is not None:
                return ZoneInfo(era.facts.timezone).key
    return otherwise


def _owed(stored: StoredSchedule) -> tuple[list[tuple[datetime, datetime]], bool]:
    """Return the spans that a pause holds back under earlier definitions, and whether the row was unreadable."""
    try:
        return [(piece.start, piece.end) for piece in pieces_from(stored.owed)], False
    except ValueError:
        return [], True


def _span(detail: Any) -> tuple[datetime, datetime] | None:
    try:
        first, last = (datetime.fromisoformat(detail[key]) for key in ("from", "to"))
    except (TypeError, KeyError, ValueError):
        return None
    return None if first.tzinfo is None or last.tzinfo is None else (first, last)


def _unsettled_because(connection: Connection, every: timedelta) -> str:
    """Return why ticks have not settled occurrences, for schedules that are not themselves the reason."""
    newest = explaining.newest_tick(connection)
    off = newest is not None and newest.schedules_on == 0
    if off and not status_facts.fired_lately(connection, silence_after(every)):
        return "ticks fire no schedules (CRONJOBS_SCHEDULES=off)"
    return "no tick has settled them yet"


def _open_because(stored: StoredSchedule, disabled: Collection[str]) -> str | None:
    """Return why ticks do not settle this schedule, or None if the schedule itself is not the reason."""
    if stored.paused is not None:
        return stored.paused
    if stored.name in disabled:
        return "the schedule's entry in the file is broken"
    try:
        read(stored.name, stored.definition)
    except ValueError as error:
        return f"the schedule's definition in the database cannot be read: {error}"
    return None
