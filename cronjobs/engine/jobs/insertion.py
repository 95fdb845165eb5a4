"""Insert jobs, and handle keys that are already in use, rows that another session has locked, and capped queues."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.clock import SYSTEM, sleep
from cronjobs.engine.rules.capacity import admit
from cronjobs.engine.store.enqueue import Existing, has_jobs, insert_rows, look, replace_rows
from cronjobs.engine.store.meta import database_name
from cronjobs.engine.store.queues import count_full, count_held, locked_room
from cronjobs.engine.store.sql import is_postgresql, schema_of
from cronjobs.errors import CronjobsError, JobHeld, QueueFull, QueueHeld, SchemaMissing, UsageError
from cronjobs.events import Event
from cronjobs.model import Status, duration_text

T = TypeVar("T")
OnConflict = Literal["keep", "replace"]
_ON_CONFLICT: Final = get_args(OnConflict)

BATCH: Final = 1000  # rows in one statement
# These pauses are long enough if a runner has locked the job, because a claim lasts only milliseconds.
PAUSES_S: Final = (0.01, 0.02, 0.03, 0.04)
# The pauses between tries to lock a capped queue.
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.02
# Wait at most this long in total for the lock on a capped queue. Another transaction keeps the lock until it ends.
QUEUE_PATIENCE_S: Final = 10.0
# The pauses between tries to enqueue into a full queue.
FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 1.0

_NUMBERS: Final = re.compile("([0-9]+)")

Place = str | int  # a job's key, or its index in the call if it has no key


class Inserted(NamedTuple):
    """The result for one of the jobs in a call. If ``id`` is None, a full queue dropped the job.

    ``had_key`` is the type of the job that had the same key before the call, or None if no job had the key.
    """

    id: int | None
    new: bool
    status: Status | None
    replaced: bool = False
    had_key: str | None = None


DROPPED: Final = Inserted(None, False, None)


class Writing:
    """Inserts the jobs of one call, as rows made by ``row_of``. If a row is locked, the next ``write`` tries it again.

    ``dropped`` counts, per queue, the jobs that the full queue dropped.
    """

    def __init__(self, rows: Sequence[dict[str, Any]], on_conflict: OnConflict) -> None:
        if on_conflict not in _ON_CONFLICT:
            raise UsageError(f"on_conflict {on_conflict!r} is not one of {', '.join(_ON_CONFLICT)}")
        self._replace = on_conflict == "replace"
        self._rows = rows
        # Keep only one row per key, because one INSERT statement cannot write the same key twice.
        self._places: list[Place] = [row.get("idempotency_key", n) for n, row in enumerate(rows)]
        self._left: dict[Place, dict[str, Any]] = {}
        for place, row in zip(self._places, rows, strict=True):
            if self._replace or place not in self._left:
                self._left[place] = row
        self._to_replace: dict[Place, Existing] = {}
        self._found: dict[Place, Inserted] = {}
        self._held: CronjobsError | None = None
        self._tries = 0
        self._waited_s = 0.0
        self.dropped: Counter[str] = Counter()

    def write(self, connection: Connection) -> bool:
        """Write the rows that are not written yet. Return whether all rows are written now.

        Raises QueueFull if a queue is full and does not drop jobs. In that case nothing has been written. Raises
        QueueHeld if another transaction has kept a queue's lock for too long.
        """
        self._held = None
        with naming_missing_tables(connection):
            self._to_replace = {}
            if len({row["queue"] for row in self._left.values()}) == 1:
                self._insert(connection, self._left, into_capped=False)
                if not self._left:
                    return True
            # Only rows for capped (or mixed) queues remain.
            self._pass_caps(connection)
            self._replace_found(connection)
        return not self._left

    def pause_s(self) -> float:
        """Return the seconds to wait before the next try. Raises JobHeld after the last try for a locked job."""
        assert self._held is not None
        if isinstance(self._held, QueueHeld):
            pause = random.uniform(SHORTEST_PAUSE_S, LONGEST_PAUSE_S)
            self._waited_s += pause
            return pause
        self._tries += 1
        if self._tries > len(PAUSES_S):
            raise self._held
        return PAUSES_S[self._tries - 1]

    def puts(self) -> list[Inserted]:
        """Return the result for each job, in the order of the call. Call this when all rows are written."""
        return [self._found[place] for place in self._places]

    def keys_of_other_types(self) -> list[Event]:
        """Return an event for each other job type that already used keys of this call. All types share their keys."""
        found: dict[tuple[str, str, bool], list[int]] = {}
        for row, put in zip(self._rows, self.puts(), strict=True):
            if put.id is not None and put.had_key is not None and put.had_key != row["job_type"]:
                found.setdefault((row["job_type"], put.had_key, put.replaced), []).append(put.id)
        return [events.key_of_another_type(*types, ids[0], len(ids)) for types, ids in found.items()]

    def _insert(self, connection: Connection, places: Iterable[Place], *, into_capped: bool) -> None:
        # SQLite has only one writer at a time, and it never waits for a key, so any order will do there.
        ordered = sorted(places, key=_in_order_of_keys) if is_postgresql(connection) else list(places)
        for batch in _batches(ordered):
            ids = insert_rows(connection, [self._left[place] for place in batch], into_capped=into_capped)
            for place, job_id in zip(batch, ids, strict=True):
                if job_id is not None:
                    self._settle(place, Inserted(job_id, True, Status.QUEUED))
            if self._left:
                self._look(connection, batch)

    def _look(self, connection: Connection, places: Iterable[Place]) -> None:
        """Look up which of *places* have a key that is already in use."""
        keyed = [place for place in places if isinstance(place, str) and place in self._left]
        if not keyed:
            return
        for place, there in look(connection, [self._left[place] for place in keyed]).items():
            if self._replace and there.not_started:
                self._to_replace[place] = there
            else:
                self._settle(place, Inserted(there.id, False, there.status, had_key=there.job_type))

    def _pass_caps(self, connection: Connection) -> None:
        """Write the jobs that need room in a capped queue: new jobs, and jobs that move from another queue."""
        if not (names := {self._left[place]["queue"] for place in self._needing_a_place()}):
            return
        with locked_room(connection, names) as room:
            if room.held:
                self._held = QueueHeld(room.held[0])
                if self._waited_s >= QUEUE_PATIENCE_S:
                    count_held(connection, room.held[0])
                    raise self._held
                return
            for batch in _batches([place for place, row in self._left.items() if row["queue"] in room.caps]):
                # A job needs no room if another job has taken its key in the meantime.
                self._look(connection, batch)
            asking = [(place, self._left[place]["queue"]) for place in self._needing_a_place()]
            let_in, dropped = admit(asking, room.caps, room.waiting)
            by_queue = Counter(self._left[place]["queue"] for place in dropped)
            for queue, count in sorted(by_queue.items()):
                count_full(connection, queue, "dropped", count)
            self.dropped += by_queue
            for place in dropped:
                self._settle(place, DROPPED)
            new = [place for place in let_in if place not in self._to_replace]
            self._insert(connection, new, into_capped=True)
            gone = [place for place in new if place in self._left and place not in self._to_replace]
            if gone:
                self._held = JobHeld(str(gone[0]), None)
            # Replace the jobs while the queue is locked. In autocommit mode, the end of this block releases the lock.
            self._replace_found(connection)

    def _needing_a_place(self) -> list[Place]:
        return [place for place in self._left if not self._stays(place)]

    def _stays(self, place: Place) -> bool:
        """Return whether the job at *place* replaces a job in the same queue. Such a job needs no room."""
        return place in self._to_replace and self._left[place]["queue"] == self._to_replace[place].queue

    def _replace_found(self, connection: Connection) -> None:
        if self._held is not None:
            return
        for batch in _batches(sorted(self._to_replace, key=_in_order_of_keys)):
            rows = [self._left[place] | {"stays": int(self._stays(place))} for place in batch]
            replaced = replace_rows(connection, rows)
            for place in batch:
                there = self._to_replace[place]
                if place in replaced:
                    self._settle(place, Inserted(there.id, False, there.status, True, there.job_type))
                else:
                    self._held = JobHeld(str(place), there.id)

    def _settle(self, place: Place, put: Inserted) -> None:
        self._found[place] = put
        del self._left[place]
        # The place is in ``_to_replace`` if the job was waiting when we looked, and a runner has claimed it since.
        self._to_replace.pop(place, None)


class RoomWait:
    """Waits, for one call, for room in a full queue whose ``on_full`` is "wait". The pauses grow, with some jitter.

    If *limit* is None, the call does not wait.
    """

    def __init__(self, limit: timedelta | None) -> None:
        self._limit = limit
        self._give_up_at = SYSTEM.monotonic() + (limit or timedelta(0)).total_seconds()
        self._pause_s: float = FIRST_WAIT_S

    def pause_s(self, full: QueueFull) -> float:
        """Return the seconds until the next try.

        Raises *full* if waiting cannot help. When the time is up, raises *full* with the waited time added to its
        message.
        """
        if self._limit is None or full.on_full != "wait" or full.wanted > full.max_waiting:
            raise full
        left_s = self._give_up_at - SYSTEM.monotonic()
        if left_s <= 0:
            raise full.after(duration_text(self._limit))
        pause = self._pause_s * random.uniform(0.5, 1)
        self._pause_s = min(LONGEST_WAIT_S, self._pause_s * 1.5)
        return min(pause, left_s)


def wait_for_room(do: Callable[[], T], patience: RoomWait) -> T:
    """Call *do*, which enqueues jobs. Repeat the call while its queue is full and *patience* lasts."""
    while True:
        try:
            return do()
        except QueueFull as full:
            sleep(patience.pause_s(full))


def _in_order_of_keys(place: Place) -> tuple[int, list[str | int], str]:
    """Return the sort key of *place*.

    Any fixed order prevents deadlocks. This order compares numbers inside keys by value, so most calls keep their own
    order.
    """
    if isinstance(place, int):
        return place, [], ""
    return -1, [int(part) if n % 2 else part for n, part in enumerate(_NUMBERS.split(place))], place


def _batches(places: Iterable[Place]) -> Iterator[list[Place]]:
    rest = iter(places)
    while batch := list(islice(rest, BATCH)):
        yield batch


# The PostgreSQL databases and schemas in which we have found the tables, so that we check each of them only once.
_seen: set[tuple[object, str | None]] = set()


def _database(connection: Connection) -> object:
    """Return an object that identifies the database. The object is cheaper to make than the rendered URL."""
    # A driver's own connection has no engine.
    engine = getattr(connection, "engine", None)
    if engine is None:
        return database_name(connection)
    url = engine.url
    return url.host, url.port, url.database, url.username


def _tables_missing(connection: Connection) -> SchemaMissing:
    # Imported only here, because apps that only enqueue need not import it.
    from cronjobs.engine.config import django_project

    alias = getattr(connection, "alias", None)  # of Django's connection
    command = None if alias is None else django_project.migrate_command(alias)
    return SchemaMissing(database_name(connection), *([] if command is None else [command]))


@contextmanager
def naming_missing_tables(connection: Connection) -> Iterator[None]:
    """Raise SchemaMissing if the tables do not exist.

    On PostgreSQL, look for the tables before the block runs, because an error in the block would abort the transaction.

    Raises SqliteTooOld if the app's SQLite is too old for our statements.
    """
    if connection.dialect.name == "postgresql":
        place = _database(connection), schema_of(connection)
        if place not in _seen:
            if not has_jobs(connection):
                raise _tables_missing(connection)
            _seen.add(place)
    try:
        yield
    except Exception as error:
        if connection.dialect.name == "sqlite":
            # Imported only here, because apps that only enqueue do not need this module.
            from cronjobs.engine.database.connection import require_sqlite

            require_sqlite(database_name(connection))
        origin = getattr(error, "orig", None) or error
        # Django wraps the driver's errors.
        state = getattr(origin, "sqlstate", None) or getattr(origin.__cause__, "sqlstate", None)
        if "no such table: cronjobs_" in str(origin) or state == "42P01":
            # "from None" keeps the statement and its payload out of the traceback.
            raise _tables_missing(connection) from None
        raise
