"""Write many rows in few transactions. If the database refuses one of the rows, find out which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from cronjobs.engine.database.retrying import fails_every_statement
from cronjobs.errors import BadValue, DatabaseBusy, DatabaseError, TransientTrouble

T = TypeVar("T")

CHUNK: Final = 500  # One transaction settles at most this many schedules.
# One transaction creates at most this many jobs. A single schedule may create more.
CHUNK_JOBS: Final = 2_000
# The payloads of one transaction's jobs have at most this many bytes. The jobs of a single schedule may have more.
CHUNK_BYTES: Final = 8_000_000
# After this many lock errors for single schedules, we assume that the whole table is locked.
LOCKS_IN_A_ROW: Final = 2
# The pauses between tries while an enqueuer holds the lock on a capped queue.
PAUSES_S: Final = (0.01, 0.02, 0.04, 0.08, 0.16)


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
    """Writes one chunk after another. A chunk that fails is retried in smaller parts, until the row that causes the
    error is alone.

    If the database refuses a row's values, ``write`` calls *refused* with the row and the reason. ``trouble`` keeps the
    last transient error until the end, so that the other rows are still written. If the caller then makes a new
    plan and writes again, only the rows that failed are written, because the other rows are no longer in the plan.
    """

    def __init__(self, *, is_sqlite: bool) -> None:
        self.is_sqlite = is_sqlite
        self.trouble: DatabaseError | None = None
        self._locks = 0

    def write(
        self, chunk: Sequence[T], write: Callable[[Sequence[T]], None], refused: Callable[[T, str], None]
    ) -> None:
        """Call *write* with *chunk*, or with parts of it. Raises an error only if it affects all rows."""
        try:
            write(chunk)
        except (BadValue, TransientTrouble) as error:
            if fails_every_statement(error, is_sqlite=self.is_sqlite) or not chunk:
                raise
            if len(chunk) > 1:
                for part in _parts(chunk, error):
                    self.write(part, write, refused)
            elif isinstance(error, BadValue):
                # Leave out the row's values: they may be secret, and they differ each time, so the message would never
                # repeat.
                refused(chunk[0], str(error).partition(" DETAIL:")[0])
            else:
                self.trouble = error
                self._locks += isinstance(error, DatabaseBusy)
                if self._locks >= LOCKS_IN_A_ROW:
                    raise
        else:
            self._locks = 0


def _parts(chunk: Sequence[T], error: DatabaseError) -> list[Sequence[T]]:
    """Return the parts in which to retry a failed chunk. Halving finds one bad row among many in a few tries.

    After a lock error, the first row and the last row are retried alone, before the other rows. Each try waits for
    the lock timeout. If both rows are locked, the whole table is probably locked, and the other parts would only wait
    and fail as well.
    """
    half = len(chunk) // 2
    if isinstance(error, DatabaseBusy) and len(chunk) > 3:
        return [chunk[:1], chunk[-1:], chunk[1:half], chunk[half:-1]]
    return [chunk[:half], chunk[half:]]
