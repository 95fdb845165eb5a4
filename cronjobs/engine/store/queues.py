"""The rows of capped queues. Enqueuers lock these rows and count dropped jobs in them. Sync writes the caps to them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import Connection, Row

from cronjobs.engine.probe.idle_conditions import STOPS_QUEUE, WAITING
from cronjobs.engine.probe.sql_text import COUNT_FULL, JOBS, LOCK_QUEUES, PAUSES, QUEUES, QUEUES_HELD, either
from cronjobs.engine.rules.capacity import Cap
from cronjobs.engine.store.sql import AMONG_NAMES, group, is_postgresql, run

_ASKED_QUEUES: Final = group("rows", {"name": "text"})
_CAP_ROWS: Final = group("rows", {"name": "text", "max_waiting": "int", "on_full": "text"})
_THIS_TRANSACTION: Final = either(
    postgresql="CAST(pg_current_xact_id_if_assigned() AS text)", sqlite="CAST(NULL AS text)"
)
# An enqueue that expects no cap uses this condition. If the queue does have a cap, the enqueue writes nothing, and the
# caller uses ``locked_room``.
IS_CAPPED: Final = (
    f"EXISTS (SELECT 1 FROM {QUEUES} q WHERE q.name = CAST(:queue AS text) AND q.max_waiting IS NOT NULL)"
)

# Skip rows that another session has locked, so that nobody waits forever. The lock is taken in a separate statement,
# because the statement that counts must see everything that was committed before we had the lock. A function takes the
# lock, because an enqueuer's role has no right to update the row, and so cannot lock the row with a plain SELECT.
_LOCK_POSTGRESQL: Final = f"""
  SELECT q.name, q.max_waiting, q.on_full, q.mine, CAST(pg_current_xact_id() AS text) AS xact
  FROM {LOCK_QUEUES}(ARRAY(SELECT v FROM json_array_elements_text(CAST(:names AS json)) v), false) q"""

# This statement changes nothing, but takes SQLite's write lock. Because it begins with UPDATE, Python's sqlite3 opens a
# transaction for it.
_LOCK_SQLITE: Final = f"""
  UPDATE {QUEUES} SET dropped = dropped WHERE name {AMONG_NAMES} AND max_waiting IS NOT NULL
  RETURNING name, max_waiting, on_full, 1 AS mine, NULL AS xact"""

_COUNT: Final = f"""
  SELECT r.name, {_THIS_TRANSACTION} AS xact,
    (SELECT count(*) FROM (SELECT 1 FROM {JOBS} j WHERE j.queue = r.name AND j.{WAITING} LIMIT :most) w) AS waiting
  FROM {_ASKED_QUEUES} r"""


@dataclass(frozen=True)
class Room:
    """The ``caps`` in force for some queues, and how many jobs are waiting in each, counted up to the cap.

    ``held`` are the queues that another transaction has locked. If any queue is held, no jobs were counted.
    """

    caps: Mapping[str, Cap]
    waiting: Mapping[str, int]
    held: tuple[str, ...] = ()


@contextmanager
def locked_room(connection: Connection, names: Collection[str]) -> Iterator[Room]:
    """Lock the capped queues among *names* until the transaction ends, and yield the room that is left in them.

    If the connection is in autocommit mode, the block becomes one transaction.
    """
    room = _room(connection, names)
    if room is not None:
        yield room
        return
    run(connection, "BEGIN" if is_postgresql(connection) else "BEGIN IMMEDIATE")
    try:
        room = _room(connection, names)
        assert room is not None
        yield room
    except BaseException:
        run(connection, "ROLLBACK")
        raise
    run(connection, "COMMIT")


def _room(connection: Connection, names: Collection[str]) -> Room | None:
    """Return the room left in the queues.

    None means that the connection is in autocommit mode, so the lock was released as soon as its statement ended.
    """
    asked = sorted(names)
    statement = _LOCK_POSTGRESQL if is_postgresql(connection) else _LOCK_SQLITE
    locked = run(connection, statement, names=asked).all()
    caps = {row.name: Cap(row.name, row.max_waiting, row.on_full) for row in locked}
    held = tuple(row.name for row in locked if not row.mine)
    if held or not locked:
        return Room(caps, {}, held)
    counted = _count(connection, caps)
    if not _still_locked(connection, locked[0].xact, counted[0].xact):
        return None
    return Room(caps, {row.name: row.waiting for row in counted})


def room_now(connection: Connection, names: Collection[str], changed: Collection[Cap], lifted: Collection[str]) -> Room:
    """Return the room that the queues *names* would have if the caps *changed* were in force and the queues *lifted*
    had no cap.

    Locks nothing.
    """
    stored = caps_in_force(connection)
    caps = {name: cap for name, cap in stored.items() if name in names and name not in lifted}
    caps |= {cap.queue: cap for cap in changed if cap.queue in names}
    if not caps:
        return Room({}, {})
    return Room(caps, {row.name: row.waiting for row in _count(connection, caps)})


def _count(connection: Connection, caps: Mapping[str, Cap]) -> Sequence[Row[Any]]:
    most = max(cap.max_waiting for cap in caps.values())
    return run(connection, _COUNT, rows=[{"name": name} for name in caps], most=most).all()


def _still_locked(connection: Connection, locked_in: str | None, counted_in: str | None) -> bool:
    if is_postgresql(connection):
        return locked_in == counted_in
    return bool(connection.connection.driver_connection.in_transaction)  # type: ignore[union-attr]


def count_full(connection: Connection, queue: str, what: Literal["dropped", "refused"], jobs: int) -> None:
    """Add *jobs* to the number of jobs that a full queue has dropped or refused. The number stops growing at 2**62."""
    if is_postgresql(connection):
        statement = f"SELECT {COUNT_FULL}(CAST(:queue AS text), CAST(:what AS text), CAST(:jobs AS int))"
        run(connection, statement, queue=queue, what=what, jobs=min(jobs, (1 << 31) - 1))
    else:
        statement = f"UPDATE {QUEUES} SET {what} = {what} + :jobs WHERE name = :queue AND {what} < {1 << 62}"
        run(connection, statement, queue=queue, jobs=jobs)


def count_held(connection: Connection, queue: str) -> None:
    """Count an enqueue that gave up because another transaction held the queue. A rollback does not undo the count."""
    run(connection, f"SELECT {COUNT_FULL}(CAST(:queue AS text), 'held', 1)", queue=queue)


def held_so_far(connection: Connection) -> int:
    """Return how many enqueues have given up because another transaction held the queue.

    On SQLite no enqueue gives up: each one waits for its turn to write.
    """
    if not is_postgresql(connection):
        return 0
    statement = f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {QUEUES_HELD}"
    return int(run(connection, statement).scalar_one())


# --- what sync writes, what status shows ------------------------------------------------------------------------------


def caps_in_force(connection: Connection) -> dict[str, Cap]:
    rows = run(
        connection,
        f"SELECT name, max_waiting, on_full FROM {QUEUES} WHERE max_waiting IS NOT NULL ORDER BY name",
    )
    return {row.name: Cap(row.name, row.max_waiting, row.on_full) for row in rows}


def put_caps(connection: Connection, caps: Sequence[Cap], lifted: Collection[str]) -> set[str]:
    """Put *caps* in force, and remove the caps of the queues *lifted*. Keep the numbers of dropped jobs.

    Skips queues whose rows an enqueuer has locked. Returns the queues that it changed.
    """
    names = sorted({cap.queue for cap in caps} | set(lifted))
    if not names:
        return set()
    free = set(names)
    if is_postgresql(connection):
        there = set(run(connection, f"SELECT name FROM {QUEUES} WHERE name {AMONG_NAMES}", names=names).scalars())
        lock = f"SELECT q.name FROM {QUEUES} q WHERE q.name {AMONG_NAMES} ORDER BY q.name FOR NO KEY UPDATE SKIP LOCKED"
        free -= there.difference(run(connection, lock, names=names).scalars())
    if gone := sorted(free.intersection(lifted)):
        lift = f"UPDATE {QUEUES} SET max_waiting = NULL WHERE name {AMONG_NAMES}"
        run(connection, lift, names=gone)
    if put := [{"name": cap.queue} | vars(cap) for cap in caps if cap.queue in free]:
        run(
            connection,
            f"""INSERT INTO {QUEUES} (name, max_waiting, on_full)
               SELECT r.name, r.max_waiting, r.on_full FROM {_CAP_ROWS} r WHERE true
               ON CONFLICT (name) DO UPDATE SET max_waiting = excluded.max_waiting, on_full = excluded.on_full""",
            rows=put,
        )
    return free


def pressures(connection: Connection) -> Sequence[Row[Any]]:
    """Return queues that are capped or have dropped jobs, with their caps and the number of dropped jobs."""
    return run(
        connection,
        f"""
        SELECT q.name, q.max_waiting, q.on_full, q.dropped FROM {QUEUES} q
        WHERE q.max_waiting IS NOT NULL OR q.dropped > 0 ORDER BY q.name""",
    ).all()


def paused_scope(connection: Connection, queue: str) -> str | None:
    """Return the scope ("all" or "queue") of a pause that holds back the queue's jobs now, or None."""
    found = run(
        connection,
        f"""
        SELECT p.scope FROM {PAUSES} p CROSS JOIN (SELECT CAST(:queue AS text) AS queue) b
        WHERE {STOPS_QUEUE} ORDER BY p.scope""",
        queue=queue,
    ).scalar()
    return None if found is None else str(found)
