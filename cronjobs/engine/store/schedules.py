"""The tables of schedules: definitions, watermarks, the occurrence ledger, pauses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, or_, select, update

from cronjobs.engine.database.tables import audit, occurrences, pauses, schedules
from cronjobs.engine.probe.idle_conditions import IN_FORCE, SCHEDULE_DUE, STOPS_SCHEDULE
from cronjobs.engine.probe.sql_text import JOBS, META, NOW, OCCURRENCES, PAUSES, SCHEDULES, either
from cronjobs.engine.store.counts import count_occurrences
from cronjobs.engine.store.sql import (
    AMONG_IDS,
    AMONG_NAMES,
    JSON_TYPE,
    LOCK,
    WAIT_FOR_LOCK,
    among,
    group,
    inserted_into,
    is_postgresql,
    json_text,
    kinds,
    run,
)

# A watermark, and the occurrences of earlier definitions that still have to be settled.
Settled = tuple[datetime, list[Any] | None]


@dataclass(frozen=True)
class StoredSchedule:
    """A row of ``cronjobs_schedules``, with the pauses that affect it.

    ``owed`` are the occurrences of earlier definitions that are still to be settled (``schedules.planning``). If a
    pause of everything or of this schedule is in force, ``paused`` says who paused it and why. ``pauses`` are all
    present and past pauses that affect the schedule, as ``pauses_of_schedules`` returns them.
    """

    id: int
    name: str
    definition: dict[str, Any]
    fingerprint: str
    status: str
    seen_until: datetime
    next_at: datetime | None
    owed: list[Any] | None = None
    paused: str | None = None
    read_at: datetime | None = None  # when the row was read, by the database's clock
    pauses: Sequence[Row[Any]] = ()

    @property
    def settled(self) -> Settled:
        return self.seen_until, self.owed


@dataclass(frozen=True)
class LedgerRow:
    """The outcome of *count* occurrences from *first_for* to *last_for*."""

    schedule_id: int
    first_for: datetime
    last_for: datetime
    count: int
    outcome: str
    reason: str | None = None
    job_id: int | None = None
    # None means the time at which the row is written.
    decided_at: datetime | None = None
    # The id of the tick that decided the outcome.
    tick: int | None = None


_ABOVE: Final = "c.schedule_id = r.schedule_id AND c.last_for > r.above"

_LEDGER_ROWS: Final = group("rows", kinds(occurrences))
# The LIMIT prevents PostgreSQL from planning a join, which would read the whole ledger.
_ROWS_ABOVE: Final = either(
    postgresql=f"LATERAL (SELECT c.* FROM {OCCURRENCES} c WHERE {_ABOVE} ORDER BY c.last_for LIMIT {1 << 31}) c",
    sqlite=f"{OCCURRENCES} c WHERE {_ABOVE}",
)
_LEDGER_LIMITS: Final = group("rows", {"schedule_id": "bigint", "above": "timestamptz"})
_DEFINITION_ROWS: Final = group("rows", kinds(schedules, "name", "definition", "fingerprint", "seen_until", "next_at"))
_RENAMED_ROWS: Final = group("rows", {"old": "text", "new": "text", "type": "text"})
_WATERMARK_ROWS: Final = group("rows", {"schedule_id": "bigint", "seen_until": "timestamptz", "next_at": "timestamptz"})
_PAUSED_WORDS: Final = "coalesce('paused by ' || p.by, 'paused') || coalesce(': ' || p.why, '')"
PAUSED_BY: Final = f"(SELECT {_PAUSED_WORDS} FROM {PAUSES} p WHERE {STOPS_SCHEDULE} ORDER BY p.scope LIMIT 1)"
SCHEDULE_COLUMNS: Final = f"""
      j.id, j.name, j.definition, j.fingerprint, j.status, j.seen_until, j.next_at, j.owed,
      {PAUSED_BY} AS paused, {NOW} AS read_at"""
_DUE_SINCE: Final = "coalesce(j.next_at, j.seen_until)"


def stored_schedules(connection: Connection, rows: Sequence[Row[Any]]) -> list[StoredSchedule]:
    """Return rows of ``SCHEDULE_COLUMNS`` as objects, with their pauses."""
    if not rows:
        return []
    of_everything: list[Row[Any]] = []
    by_name: dict[str, list[Row[Any]]] = {}
    for pause in pauses_of_schedules(connection):
        (of_everything if pause.scope == "all" else by_name.setdefault(pause.name, [])).append(pause)
    # Pass the columns by position. Passing them by name takes twice as long, and there may be ten thousand schedules.
    return [_schedule(*row, pauses=[*of_everything, *by_name.get(row.name, ())]) for row in rows]


_schedule: Any = StoredSchedule  # mypy does not know how many columns a row has


def all_schedules(connection: Connection) -> list[StoredSchedule]:
    """Return every schedule in the database, including retired ones, ordered by name."""
    return stored_schedules(
        connection, run(connection, f"SELECT {SCHEDULE_COLUMNS} FROM {SCHEDULES} j ORDER BY j.name").all()
    )


def due_schedules(
    connection: Connection,
    but: Collection[str] = (),
    *,
    after: StoredSchedule | None = None,
    limit: int | None = None,
) -> list[StoredSchedule]:
    """Return schedules that are due and not paused, those that have been due longest first. Locks nothing.

    Leaves out the names in *but* and, if *after* is given, all schedules up to that one in this order. A schedule whose
    watermark is in the future, because a clock was wrong, also counts as due, so that the watermark can be corrected. A
    schedule that is not paused also counts as due, even if it is retired, as long as occurrences of its earlier
    definitions are still to be settled.
    """
    behind = "" if after is None else f"AND ({_DUE_SINCE}, j.id) > (:after_at, :after_id) "
    place = {} if after is None else {"after_at": after.next_at or after.seen_until, "after_id": after.id}
    rows = run(
        connection,
        f"SELECT {SCHEDULE_COLUMNS} FROM {SCHEDULES} j WHERE {SCHEDULE_DUE} AND NOT j.name {among('but')} "
        + behind
        + f"ORDER BY {_DUE_SINCE}, j.id LIMIT :limit",
        but=sorted(but),
        limit=1 << 31 if limit is None else limit,
        **place,
    ).all()
    return stored_schedules(connection, rows)


def lock_rows(connection: Connection, ids: Collection[int]) -> dict[int, Settled]:
    """Lock the rows of these schedules that no other session has locked. Return how far each locked schedule is
    settled.
    """
    rows = run(
        connection,
        f"SELECT j.id, j.seen_until, j.owed FROM {SCHEDULES} j WHERE j.id {AMONG_IDS} ORDER BY j.id {LOCK}",
        ids=sorted(ids),
    ).all()
    return {row.id: (row.seen_until, row.owed) for row in rows}


def lock_schedules(connection: Connection, stored: Sequence[StoredSchedule]) -> set[int]:
    """Lock the schedules whose ``settled`` value has not changed since we read it. Return their ids.

    Schedules that another tick has locked are left out. Because the value has not changed, the transaction may safely
    write results that were computed before the transaction began.
    """
    locked = lock_rows(connection, [each.id for each in stored])
    return {each.id for each in stored if locked.get(each.id) == each.settled}


def wait_for_schedule(connection: Connection, name: str) -> None:
    """Lock a schedule's row until the transaction ends.

    If another transaction has locked the row, wait for it. (A tick would skip the row instead.)
    """
    run(connection, f"SELECT j.id FROM {SCHEDULES} j WHERE j.name = :name {WAIT_FOR_LOCK}", name=name)


def lock_definitions(connection: Connection) -> bool:
    """Lock the definitions until the transaction ends. Return False if another tick has locked them."""
    if not is_postgresql(connection):
        return True
    return run(connection, f"SELECT j.id FROM {META} j {LOCK}").first() is not None


@dataclass(frozen=True)
class Watermark:
    """How far a schedule's occurrences are settled, and when a tick must next look at the schedule."""

    schedule_id: int
    seen_until: datetime
    next_at: datetime | None


def move_watermarks(connection: Connection, moved: Sequence[Watermark]) -> None:
    """Write the watermarks of schedules that ``lock_schedules`` has locked."""
    run(
        connection,
        f"""UPDATE {SCHEDULES} AS j SET seen_until = r.seen_until, next_at = r.next_at
           FROM {_WATERMARK_ROWS} r WHERE j.id = r.schedule_id""",
        rows=[vars(watermark) for watermark in moved],
    )


def put_owed(connection: Connection, schedule_id: int, owed: list[dict[str, Any]] | None) -> None:
    """Write the time ranges in which occurrences of a locked schedule's earlier definitions are not settled yet."""
    connection.execute(update(schedules).where(schedules.c.id == schedule_id).values(owed=owed))


# --- the ledger -------------------------------------------------------------------------------------------------------


def ledger_between(connection: Connection, schedule_id: int, first: datetime, last: datetime) -> list[LedgerRow]:
    """Return a schedule's ledger rows that touch the range from *first* to *last*, oldest first."""
    columns = occurrences.c
    rows = connection.execute(
        select(*(columns[name] for name in LedgerRow.__dataclass_fields__))
        .where(columns.schedule_id == schedule_id, columns.last_for >= first, columns.first_for <= last)
        .order_by(columns.last_for)
    )
    return [LedgerRow(**row._mapping) for row in rows]


def ledger_above(connection: Connection, limits: Mapping[int, datetime]) -> dict[int, list[LedgerRow]]:
    """Return, by schedule id, the ledger rows that end after the schedule's instant in *limits*, oldest first.

    Schedules without such rows are left out. Normally no ledger row is above a watermark.
    """
    found: dict[int, list[LedgerRow]] = {}
    rows = [{"schedule_id": schedule_id, "above": instant} for schedule_id, instant in limits.items()]
    statement = (
        "SELECT "
        + ", ".join(f"c.{name}" for name in LedgerRow.__dataclass_fields__)
        + f" FROM {_LEDGER_LIMITS} r CROSS JOIN {_ROWS_ABOVE} ORDER BY c.schedule_id, c.last_for"
    )
    for row in run(connection, statement, rows=rows).all():
        found.setdefault(row.schedule_id, []).append(LedgerRow(**row._mapping))
    return found


def forget_occurrences(connection: Connection, rows: Sequence[LedgerRow]) -> None:
    """Delete ledger rows because their occurrences are about to be written again.

    The old outcomes stay in the counts.
    """
    if rows:
        from cronjobs.engine.store.quarters import forget_hours

        names = ("schedule_id", "first_for", "last_for")
        forget_hours(connection, [{name: getattr(row, name) for name in names} for row in rows])
        run(
            connection,
            f"""DELETE FROM {OCCURRENCES} WHERE (schedule_id, last_for) IN (
                 SELECT r.schedule_id, r.last_for FROM {_LEDGER_ROWS} r)""",
            rows=[vars(row) for row in rows],
        )


def record_occurrences(
    connection: Connection, rows: Sequence[LedgerRow], now: datetime, tick: int | None = None
) -> None:
    """Insert ledger rows. If an occurrence already has a row, the primary key makes the transaction fail.

    Rows without a ``decided_at`` get *now* and *tick*. A row that replaces a part of an earlier row keeps that row's
    values.
    """
    if rows:
        here = {"decided_at": now, "tick": tick}
        written = [vars(row) | (here if row.decided_at is None else {}) for row in rows]
        run(
            connection,
            f"""INSERT INTO {OCCURRENCES}
                 (schedule_id, first_for, last_for, count, outcome, reason, job_id, decided_at, tick)
               SELECT r.schedule_id, r.first_for, r.last_for, r.count, r.outcome, r.reason, r.job_id, r.decided_at,
                 r.tick
               FROM {_LEDGER_ROWS} r""",
            rows=written,
        )
        count_occurrences(connection, ((row.schedule_id, row.outcome, row.count) for row in rows if not row.decided_at))


# --- definitions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Definition:
    """A schedule as a file defines it, with its new watermark and next instant."""

    name: str
    definition: dict[str, Any]
    fingerprint: str
    seen_until: datetime
    next_at: datetime | None


def put_definitions(connection: Connection, definitions: Sequence[Definition]) -> None:
    """Insert schedules, or replace the definitions of existing ones, and make them all active."""
    if not definitions:
        return
    rows = [vars(each) | {"definition": json_text(each.definition)} for each in definitions]
    run(
        connection,
        f"""INSERT INTO {SCHEDULES} (name, definition, fingerprint, status, seen_until, next_at)
           SELECT r.name, CAST(r.definition AS {JSON_TYPE}), r.fingerprint, 'active', r.seen_until, r.next_at
           FROM {_DEFINITION_ROWS} r WHERE true
           ON CONFLICT (name) DO UPDATE SET definition = excluded.definition, fingerprint = excluded.fingerprint,
             status = excluded.status, seen_until = excluded.seen_until, next_at = excluded.next_at""",
        rows=rows,
    )


def rename(connection: Connection, names: Mapping[str, str], commands: Collection[str] = ()) -> None:
    """Rename schedules. Also change the name in their unfinished jobs and in their pauses. *names* maps old to new
    names.

    *commands* are the old names of schedules with a command of their own. The job type of such a command is the
    schedule's name, so their unfinished jobs get the new type. No host could run the old one.

    The ledger and the watermark refer to a schedule's id, so they need no change.
    """
    if not names:
        return
    rows = [{"old": old, "new": new, "type": old if old in commands else None} for old, new in names.items()]
    run(connection, f"UPDATE {SCHEDULES} AS j SET name = r.new FROM {_RENAMED_ROWS} r WHERE j.name = r.old", rows=rows)
    run(
        connection,
        f"""UPDATE {JOBS} AS j SET schedule = r.new,
             job_type = CASE WHEN j.job_type = r.type THEN r.new ELSE j.job_type END
           FROM {_RENAMED_ROWS} r WHERE j.schedule IS NOT NULL AND j.finished_at IS NULL AND j.schedule = r.old""",
        rows=rows,
    )
    paused = {row.name for row in pauses_of_schedules(connection) if row.scope == "schedule"}
    for old in paused.intersection(names):
        _move_pause(connection, old, names[old])


def renames(connection: Connection) -> list[tuple[datetime, str, str]]:
    """Return every renaming, oldest first, as (when, old name, new name)."""
    rows = connection.execute(select(audit).where(audit.c.action == "rename").order_by(audit.c.at, audit.c.id)).all()
    return [
        (row.at, str(row.detail["from"]), row.subject)
        for row in rows
        if isinstance(row.detail, dict) and "from" in row.detail
    ]


def name_now(name: str, renamed: Sequence[tuple[datetime, str, str]]) -> str:
    """Return the present name of the schedule that was once called *name*.

    *renamed* is every renaming, oldest first.
    """
    for _, old, new in renamed:
        if old == name:
            name = new
    return name


def follow_renames(connection: Connection, ids: Collection[int]) -> None:
    """Give these jobs their schedule's present name.

    These jobs may run again, and the overlap rules find a schedule's jobs by its present name.
    """
    gone = run(
        connection,
        f"SELECT DISTINCT j.schedule FROM {JOBS} j WHERE j.id {AMONG_IDS} AND j.schedule IS NOT NULL "
        f"AND NOT EXISTS (SELECT 1 FROM {SCHEDULES} s WHERE s.name = j.schedule)",
        ids=sorted(ids),
    ).scalars()
    if not (old_names := list(gone)):
        return
    renamed = renames(connection)
    rows = [{"old": old, "new": name_now(old, renamed)} for old in old_names]
    run(
        connection,
        f"UPDATE {JOBS} AS j SET schedule = r.new FROM {_RENAMED_ROWS} r WHERE j.id {AMONG_IDS} AND j.schedule = r.old",
        rows=rows,
        ids=sorted(ids),
    )


def _move_pause(connection: Connection, old: str, new: str) -> None:
    """Rename a schedule's pause. If the new name already has a pause, keep the one that ends later."""
    theirs, ours = (pause_row(connection, scope="schedule", name=name) for name in (old, new))
    assert theirs is not None
    ours_is_longer = ours is not None and (ours.until is None or bool(theirs.until and ours.until > theirs.until))
    this = pauses.c.scope == "schedule"
    connection.execute(delete(pauses).where(this, pauses.c.name == (old if ours_is_longer else new)))
    connection.execute(update(pauses).where(this, pauses.c.name == old).values(name=new))


def retire(connection: Connection, names: Collection[str]) -> None:
    """Stop firing these schedules. Their rows, ledger and jobs are kept."""
    if names:
        run(
            connection,
            f"UPDATE {SCHEDULES} SET status = 'retired', next_at = NULL WHERE name {AMONG_NAMES}",
            names=sorted(names),
        )


# --- pauses -----------------------------------------------------------------------------------------------------------


def pause(
    connection: Connection,
    *,
    scope: str,
    name: str,
    until: datetime | None,
    by: str,
    why: str | None,
    now: datetime,
    skip: bool = False,
) -> None:
    """Begin a pause, or change the pause in force. If *until* is None, the pause has no end.

    A pause that is changed keeps its beginning and the person who began it. If the value of *skip* changes, a new pause
    begins instead.
    """
    there = pause_row(connection, scope=scope, name=name)
    goes_on = there is not None and (there.until is None or there.until > now) and bool(there.skip) == skip
    values: dict[str, Any] = {"until": until, "by": by, "why": why, "skip": int(skip)}
    values["paused_at"] = now
    if there is not None and goes_on:
        values |= {"paused_at": there.paused_at, "by": there.by}
    connection.execute(
        inserted_into(connection, pauses)
        .values(scope=scope, name=name, **values)
        .on_conflict_do_update(index_elements=[pauses.c.scope, pauses.c.name], set_=values)
    )


def pause_row(connection: Connection, *, scope: str, name: str) -> Row[Any] | None:
    """Return the last pause of this scope and name, even if it has ended, or None if there was none."""
    return connection.execute(select(pauses).where(pauses.c.scope == scope, pauses.c.name == name)).first()


def resume(connection: Connection, *, scope: str, name: str, now: datetime) -> bool:
    """End a pause. Return whether it was in force.

    The row is kept, because the beginning and the end of the pause are needed to settle occurrences later.
    """
    ended = connection.execute(
        update(pauses)
        .where(pauses.c.scope == scope, pauses.c.name == name, or_(pauses.c.until.is_(None), pauses.c.until > now))
        .values(until=now)
        .returning(pauses.c.scope)
    ).all()
    return bool(ended)


def pauses_of_schedules(connection: Connection) -> Sequence[Row[Any]]:
    """Return every past and present pause that affects schedules, oldest first.

    ``said`` is the text with which the ledger names the pause.
    """
    return run(
        connection,
        f"SELECT p.scope, p.name, p.until, p.paused_at, p.skip, {_PAUSED_WORDS} AS said FROM {PAUSES} p "
        "WHERE p.scope IN ('all', 'schedule') ORDER BY p.paused_at, p.scope, p.name",
    ).all()


def pauses_in_force(connection: Connection) -> Sequence[Row[Any]]:
    return run(
        connection,
        f"SELECT scope, name, until, by, why, paused_at, skip FROM {PAUSES} p WHERE {IN_FORCE} ORDER BY scope, name",
    ).all()
