"""Writes many rows in few transactions: how many rows go into one, and how to find a row that the database refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from cronjobs.engine.database.retrying import fails_every_statement
from cronjobs.errors import BadValue, DatabaseBusy, DatabaseError, TransientTrouble

T = TypeVar("T")

CHUNK: Final = 500  # at most this many schedules in one transaction
CHUNK_JOBS: Final = 2_000  # at most this many jobs created in one transaction, unless one schedule alone creates more
CHUNK_BYTES: Final = 8_000_000  # at most this many bytes in their payloads, with the same exception
LOCKS_IN_A_ROW: Final = 2  # after this many lock errors for single schedules, assume that the whole table is locked
PAUSES_S: Final = (0.01, 0.02, 0.04, 0.08, 0.16)  # between tries while an enqueuer has locked a capped queue


def chunks(items: Sequence[T], weigh: Callable[[T], tuple[int, int]]) -> Iterator[list[T]]:
    """Split *items* into chunks, one per transaction. *weigh* returns how many jobs and bytes an item creates."""
    chunk: list[T] = []
    jobs = size = 0
    for item in items:
        more_jobs, more_bytes = weigh(item)
        if chunk and (len(chunk) >= CHUNK or jobs + more_jobs > CHUNK_JOBS or size + more_bytes > CHUNK_BYTES):
            yield chunk
            chunk, jobs, size = [], 0, 0
        chunk.append(item)
        jobs, size = jobs + more_jobs, size + more_bytes
    if chunk:
        yield chunk


class ChunkWriter:
    """Writes one chunk after another. A chunk that fails is retried in parts, down to the row that causes the error.

    For a row whose values the database refuses, ``refused`` is called with the row and the reason. The last transient
    error is kept in ``trouble`` until the end, so that the other rows are still written. A caller that plans
    again and repeats writes only the rows that failed, because the others are no longer in its plan.
    """

    def __init__(self, *, is_sqlite: bool) -> None:
        self.is_sqlite = is_sqlite
        self.trouble: DatabaseError | None = None
        self._locks = 0

    def write(
        self, chunk: Sequence[T], write: Callable[[Sequence[T]], None], refused: Callable[[T, str], None]
    ) -> None:
        """Call *write* with *chunk*, or with parts of it. Raises errors that affect all rows."""
        try:
            write(chunk)
        except (BadValue, TransientTrouble) as error:
            if fails_every_statement(error, is_sqlite=self.is_sqlite) or not chunk:
                raise
            if len(chunk) > 1:
                for part in _parts(chunk, error):
                    self.write(part, write, refused)
            elif isinstance(error, BadValue):
                # Leave out the row's values: they may be secret, and they differ each time.
                refused(chunk[0], str(error).partition(" DETAIL:")[0])
            else:
                self.trouble = error
                self._locks += isinstance(error, DatabaseBusy)
                if self._locks >= LOCKS_IN_A_ROW:
                    raise
        else:
            self._locks = 0


def _parts(chunk: Sequence[T], error: DatabaseError) -> list[Sequence[T]]:
    """Return the parts in which to retry a failed chunk. Halves find one bad row among many in a few tries.

    After a lock error, the first row and the last row are retried alone, before the rest. Each try waits for the lock
    timeout, and if the whole table is locked, the other parts would fail too.
    """
    half = len(chunk) // 2
    if isinstance(error, DatabaseBusy) and len(chunk) > 3:
        return [chunk[:1], chunk[-1:], chunk[1:half], chunk[half:-1]]
    return [chunk[:half], chunk[half:]]
