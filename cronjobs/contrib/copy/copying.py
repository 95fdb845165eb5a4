"""Check that a copy is safe, close the old side, and write everything, or only late jobs, to the new side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs.clock import sleep
from cronjobs.contrib.copy import statements as store
from cronjobs.contrib.copy.conversion import fit
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import audit, job_runs, jobs, schedules
from cronjobs.engine.database.tables import ticks as ticks_table
from cronjobs.engine.store import ticks
from cronjobs.engine.store.meta import MOVED, Meta, adopt, is_ours, read_meta, reopen, require_ours, require_schema
from cronjobs.engine.store.pruning import set_pruned_at
from cronjobs.errors import CronjobsError, UsageError

ACTION: Final = "copy"  # the action of the new side's audit entry about a copy
POLL_S: Final = 0.2

# A database is in use if one of these tables has a row. Even an unused database may have pauses, queues and audit
# entries.
_LIFE: Final = (jobs, job_runs, schedules, ticks_table)

Progress = Callable[[str, int, int], None]
"""Called with a table's name, the number of rows done, and the total number of rows."""


class CopyRefused(CronjobsError):
    """The copy is not safe in the current state of the two databases. Nothing was changed."""


@dataclass(frozen=True)
class CopyMark:
    """The new side's audit entry about a copy. ``jobs`` and ``audit`` are the highest ids read from ``source``.

    ``here`` is the result of ``_life`` for the new side after the copy, or None if the new side was already in use.
    """

    id: int
    source: str
    jobs: int
    audit: int
    here: dict[str, int] | None


@dataclass
class CopyReport:
    """What a copy did. ``copied`` counts the rows written, by table.

    If ``late``, only jobs enqueued on the old side since an earlier copy were copied. ``known`` counts late jobs that
    were not copied, because the new side already had a job with their key. ``odd`` describes values that could not be
    copied unchanged. ``left`` counts jobs enqueued on the old side during the copy.
    """

    copied: dict[str, int] = field(default_factory=dict)
    late: bool = False
    known: int = 0
    odd: list[str] = field(default_factory=list)
    left: int = 0


def copy(
    source: Database,
    target: Database,
    settings: Settings,
    *,
    actor: str,
    wait: timedelta | None = None,
    progress: Progress = lambda *_: None,
) -> CopyReport:
    """Copy everything from *source* to *target*. If *target* holds an earlier copy, bring that copy up to date.

    *wait* is how long to wait for running jobs on the old side; if None, refuse to copy while a job is running. Raises
    CopyRefused, ForeignDatabase or DatabaseError.

    At most one side is open at any time. If the copy fails before COMMIT, nothing is written to the new side. In that
    case the copy also reopens the old side, if this copy had closed it and no other copy has begun since. After COMMIT,
    the old side stays closed.
    """
    if not source.is_sqlite or target.is_sqlite:
        raise UsageError("db copy copies only from SQLite to PostgreSQL; for others, use the database's own tools")
    where = moved_to(target)
    with source.read() as connection:
        before = require_schema(connection)
    closed = before.environment == where
    if not closed:
        is_ours(settings, before.project, before.environment)
    with target.read() as connection:
        require_ours(connection, settings)
        _decide(connection, _last_mark(connection), str(source.address), closed=closed)
    closing = _close(source, before, where, actor, wait is not None)
    reopens = not closed
    try:
        _wait_until_quiet(source, wait or timedelta(0))
        with ExitStack() as gate, source.read() as old, target.write() as new:
            report = _copy(old, new, source, settings, actor, progress, closed=closed)
            _hold_closed(gate.enter_context(source.write()), where)
            reopens = False  # after this line, the new side's COMMIT may take effect even if it reports an error
    except BaseException:
        if reopens:
            _reopen(source, before, closing, actor)
        raise
    with source.read() as old, target.read() as new:
        mark = _last_mark(new)
        report.left = 0 if mark is None else max(0, store.newest(old, jobs) - mark.jobs)
    return report


# --- is it safe? ------------------------------------------------------------------------------------------------------


def _decide(connection: Connection, mark: CopyMark | None, source: str, *, closed: bool) -> bool:
    """Return True if everything has to be copied (again), or False if only late jobs have to be copied.

    Raises CopyRefused if neither kind of copy is safe.
    """
    if mark is None:
        there = [f"{rows} in {table.name}" for table in _LIFE if (rows := store.count(connection, table))]
        if there:
            raise CopyRefused(
                f"the new database is in use already ({', '.join(there)}): copy into an empty one, created with "
                '"cronjobs db upgrade"'
            )
        return True
    if _is_unused(connection, mark):
        if mark.source != source:
            raise CopyRefused(
                f"the new database holds a copy of {mark.source}: copy from that database again, or copy into another "
                "new database"
            )
        return True
    if not closed:
        raise CopyRefused(
            "both databases have been used since the last copy, so jobs may have run twice: keep one, and "
            "enqueue in it the jobs that only the other has"
        )
    return False


def _life(connection: Connection) -> dict[str, int]:
    """Return row counts and highest ids. They differ after somebody has used the database."""
    return {
        "jobs": store.newest(connection, jobs),
        "runs": store.count(connection, job_runs),
        "ticks": store.newest(connection, ticks_table),
        "leased": len(store.leased(connection)),
    }


def _is_unused(connection: Connection, mark: CopyMark) -> bool:
    """Whether the new side has had no tick, no new job and no audit entry since the copy of *mark*."""
    return mark.here == _life(connection) and store.newest(connection, audit) == mark.id


def _last_mark(connection: Connection) -> CopyMark | None:
    found = connection.execute(audit.select().where(audit.c.action == ACTION).order_by(audit.c.id.desc()).limit(1))
    row = found.first()
    return None if row is None else CopyMark(id=row.id, **row.detail)


# --- the old side -----------------------------------------------------------------------------------------------------


def moved_to(target: Database) -> str:
    """Return the environment name that marks the old side as moved to *target*."""
    return MOVED + str(target.address)


def is_closed(source: Database, target: Database) -> bool:
    with source.read() as connection:
        return read_meta(connection).environment == moved_to(target)


def _close(source: Database, before: Meta, where: str, actor: str, waits: bool) -> int:
    """Close the old side, or keep it closed. Return the id of the audit entry about the closing."""
    with source.write() as connection:
        found = read_meta(connection)
        if (found.project, found.environment) != (before.project, before.environment):
            raise CopyRefused(
                'another "cronjobs db copy" from the old database has just started or ended: run this command again'
            )
        running = store.leased(connection)
        if running and not waits:
            raise CopyRefused(f"{_named(running)} in the old database: to wait until no job runs, add --wait 60s")
        store.put_fences(connection)
        adopt(connection, before.project, where, actor, again=True)
        return store.last_closing(connection)


def _hold_closed(old: Connection, where: str) -> None:
    """Check that the old side is closed. The caller's write transaction keeps it closed until the new side commits.

    That COMMIT may take long if it waits for a synchronous standby.
    """
    if read_meta(old).environment != where:
        raise CopyRefused('"cronjobs db adopt" reopened the old database meanwhile; nothing was copied')


def _reopen(source: Database, before: Meta, closing: int, actor: str) -> None:
    """Reopen the old side, unless another copy has closed it since the audit entry *closing*."""
    with source.write() as connection:
        if store.last_closing(connection) == closing:
            reopen(connection, before.project, before.environment, actor)


def _wait_until_quiet(source: Database, patience: timedelta) -> None:
    give_up_at = source.clock.monotonic() + patience.total_seconds()
    while True:
        with source.read() as connection:
            running = store.leased(connection)
        if not running:
            return
        if source.clock.monotonic() >= give_up_at:
            raise CopyRefused(
                f"{_named(running)} in the old database after the wait; nothing was copied: use a longer --wait"
            )
        sleep(POLL_S)


def _named(running: Sequence[int]) -> str:
    ids = ", ".join(map(str, running[:10])) + (" …" if len(running) > 10 else "")
    return f"job {ids} still runs" if len(running) == 1 else f"{len(running)} jobs still run ({ids})"


# --- the copy ---------------------------------------------------------------------------------------------------------


def _copy(
    old: Connection,
    new: Connection,
    source: Database,
    settings: Settings,
    actor: str,
    progress: Progress,
    *,
    closed: bool,
) -> CopyReport:
    """Copy everything, or only late jobs. *closed* is whether the old side was closed before this copy began."""
    if store.leased(old):
        raise CopyRefused("a job has just started in the old database: run this command again")
    mark = _last_mark(new)
    if mark is not None and not _is_unused(new, mark):
        store.take_turn(new)
    else:
        store.take_alone(new)
    mark = _last_mark(new)  # read the mark again, now that the lock is held
    report = CopyReport()
    if _decide(new, mark, str(source.address), closed=closed):
        _copy_all(old, new, mark, report, progress)
        adopt(new, settings.project, settings.environment, actor)
        set_pruned_at(new, require_schema(old).pruned_at or source.clock.now())
        here = _life(new)
    else:
        assert mark is not None, "without a mark of an earlier copy, everything is copied"
        report.late = True
        _copy_late(old, new, mark, report)
        here = None
    name = str(source.address)
    reached = {"source": name, "jobs": store.newest(old, jobs), "audit": store.newest(old, audit), "here": here}
    ticks.record(new, action=ACTION, subject=name, actor=actor, detail=reached)
    return report


def _copy_all(old: Connection, new: Connection, mark: CopyMark | None, report: CopyReport, progress: Progress) -> None:
    if mark is not None:
        store.empty(new)
    for table in store.TABLES:
        # The audit trail is append-only. So keep the new side's entries, and add only the old side's newer entries.
        above = mark.audit if mark is not None and table is audit else 0
        total, done = store.count(old, table), 0
        for rows in store.batches(old, table, above):
            store.insert(new, table, [fit(table, row, report.odd) for row in rows])
            done += len(rows)
            progress(table.name, done, total)
        report.copied[table.name] = done
    for table in store.WITH_IDS:
        store.count_on(new, table, store.spent(old, table))


def _copy_late(old: Connection, new: Connection, mark: CopyMark, report: CopyReport) -> None:
    done = 0
    for rows in store.batches(old, jobs, mark.jobs or -1):
        written = store.insert_late(new, [fit(jobs, row, report.odd) for row in rows])
        done += written
        report.known += len(rows) - written
    report.copied[jobs.name] = done
