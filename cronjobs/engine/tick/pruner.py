"""Remove old rows in short batches while the tick has time. If time runs out, the next tick continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from cronjobs.clock import Clock, sleep
from cronjobs.engine.config.settings import Retention
from cronjobs.engine.database.column_types import EPOCH
from cronjobs.engine.database.connection import Database
from cronjobs.engine.store import pruning as store
from cronjobs.engine.store.alerts import past_findings, remove_findings
from cronjobs.engine.store.pruning import BEGINNING, OldJob, PrunePosition

FIRST_BATCH: Final = 100
SMALLEST_BATCH: Final = 20
LARGEST_BATCH: Final = 1000
# A batch should take this many seconds. On SQLite it blocks all writers, on PostgreSQL only those of its own rows.
SHARE_S: Final = {"sqlite": 0.01, "postgresql": 0.2}
# Wait at most this long for SQLite's write lock, because any other writer is more urgent.
PATIENCE_S: Final = 1.0


@dataclass(frozen=True)
class Before:
    """For each kind of row, the instant before which rows of that kind may be removed."""

    succeeded: datetime
    dead: datetime
    keys: datetime
    occurrences: datetime
    effects: datetime

    @classmethod
    def of(cls, retention: Retention, now: datetime) -> Before:
        return cls(**{name: now - getattr(retention, name) for name in cls.__dataclass_fields__})

    @property
    def jobs(self) -> tuple[tuple[str, datetime], ...]:
        """The statuses of ended jobs, each with the instant before which these jobs may be removed."""
        return (("succeeded", self.succeeded), ("dead", self.dead), ("cancelled", self.dead))


def would_go(connection: Connection, before: Before) -> dict[str, store.Past]:
    """Return, by kind, how many rows a ``Pruner`` would remove now, and the time of the oldest of them.

    Counts locked rows, too, although a ``Pruner`` would skip them. Writes nothing.
    """
    found: dict[str, store.Past] = {}
    for status, limit in before.jobs:
        for kind, (rows, oldest) in store.past_jobs(connection, status, limit, before.keys).items():
            more, older = found.get(kind, (0, None))
            found[kind] = (rows + more, min((at for at in (oldest, older) if at is not None), default=None))
    found["occurrences"] = store.past_occurrences(connection, before.occurrences)
    found["ticks"] = store.past_ticks(connection, before.occurrences)
    found["findings"] = past_findings(connection, before.occurrences)
    found["effects"] = store.past_effects(connection, before.effects, before.dead, before.keys)
    found["job_type_lists"] = store.past_job_type_lists(connection, before.occurrences)
    return found


def next_batch(rows: int, took_s: float, share_s: float) -> int:
    """Return the size of the next batch. The last batch removed *rows* rows in *took_s* seconds."""
    if took_s > share_s:
        return max(SMALLEST_BATCH, rows // 2)
    return min(LARGEST_BATCH, rows * 2) if took_s < share_s / 3 else rows


@dataclass
class Pruner:
    """Removes rows older than *before* in batches while *go_on* returns True.

    ``counts`` contains the number of rows removed of each kind in ``store.pruning.KINDS``.
    """

    database: Database
    before: Before
    clock: Clock
    go_on: Callable[[], bool]
    before_writing: Callable[[Connection], None] = lambda _: None
    counts: Counter[str] = field(default_factory=Counter)
    _batch: int = FIRST_BATCH
    _places: dict[str, datetime] = field(default_factory=dict)

    @property
    def gone(self) -> int:
        """The number of rows removed, without attempts and without jobs that were only stripped."""
        return self.counts.total() - self.counts["stripped"] - self.counts["attempts"]

    def run(self) -> bool:
        """Prune, and return whether no old row is left. The next call continues here. Raises DatabaseError."""
        with self.database.read() as connection:
            self._places = store.prune_from(connection)
        found = dict(self._places)
        done = all(self._parts())
        if self._places != found:
            with self._write() as connection:
                store.set_prune_from(connection, self._places)
        return done

    def _parts(self) -> Iterator[bool]:
        before = self.before
        for status, limit in before.jobs:
            yield self._ended_jobs(status, limit)
            yield self._keyed_jobs(status, min(before.keys, limit))
        yield self._rows("occurrences", store.remove_occurrences, before.occurrences)
        yield self._rows("ticks", store.remove_ticks, before.occurrences)
        yield self._rows("findings", remove_findings, before.occurrences)
        yield self._effects()
        yield self._job_type_lists()

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _ended_jobs(self, status: str, before: datetime) -> bool:
        """Delete ended jobs without a key, and strip those with one. The next round starts after the stripped jobs."""
        place = PrunePosition(self._places.get(status, EPOCH), 0)
        # The end time of the first job that was locked, so that it could not be removed. The next round starts there.
        stuck: datetime | None = None
        while self.go_on():
            page = self._page(status, before, place)
            if not page:
                return True
            wanted = [job for job in page if not (job.keyed and job.stripped)]
            left = self._remove(wanted, status, before) if wanted else []
            if not self.go_on() and left:
                # Perhaps these jobs are left only because time was up, and are not locked.
                return False
            if left and stuck is None:
                stuck = left[0].finished_at
            place = PrunePosition(page[-1].finished_at, page[-1].id)
            # If no job is locked or has a key, all rows of the page are gone, and there is nothing to skip.
            if stuck is not None or any(job.keyed for job in page):
                self._places[status] = place.finished_at if stuck is None else stuck
        return False

    def _page(self, status: str, before: datetime, place: PrunePosition) -> list[OldJob]:
        with self.database.read() as connection:
            return list(store.old_jobs(connection, status, before, place, self._batch))

    def _remove(self, jobs: list[OldJob], status: str, before: datetime) -> list[OldJob]:
        """Delete or strip these jobs, however many attempts they have. Return the jobs that are left."""
        left = {job.id: job for job in jobs}
        while left and self.go_on():
            with self._write() as connection:
                runs = store.remove_runs(connection, left, status, before, self._batch)
                keyed = [job.id for job in left.values() if job.keyed]
                done = store.strip_jobs(connection, keyed, status, before) if keyed else set()
                if len(keyed) < len(left):
                    done |= store.delete_jobs(connection, left.keys() - set(keyed), status, before)
            self.counts["attempts"] += runs
            for job in [left.pop(id_) for id_ in done]:
                if not job.keyed:
                    self.counts[status] += 1
                # Count the job as stripped only if its key is still valid. Otherwise this round deletes the row later.
                elif job.finished_at >= self.before.keys:
                    self.counts["stripped"] += 1
            if not runs and not done:
                break
        return list(left.values())

    def _keyed_jobs(self, status: str, before: datetime) -> bool:
        """Delete stripped jobs whose key has expired. Other jobs of that age have already been deleted."""
        place = BEGINNING
        while self.go_on():
            page = self._page(status, before, place)
            if not page:
                return True
            place = PrunePosition(page[-1].finished_at, page[-1].id)
            keyed = [OldJob(job.id, job.finished_at, keyed=False, stripped=True) for job in page if job.stripped]
            if keyed:
                self._remove(keyed, status, before)
        return False

    # --- other rows ---------------------------------------------------------------------------------------------------

    def _rows(
        self,
        kind: str,
        remove: Callable[[Connection, datetime, datetime, int], Sequence[datetime]],
        before: datetime,
    ) -> bool:
        after = EPOCH
        while self.go_on():
            with self._write() as connection:
                gone = remove(connection, before, after, self._batch)
            if not gone:
                return True
            self.counts[kind] += len(gone)
            after = max(gone)
        return False

    def _effects(self) -> bool:
        after = EPOCH
        while self.go_on():
            with self.database.read() as connection:
                found = store.old_effects(connection, self.before.effects, after, self._batch)
            if not found:
                return True
            with self._write() as connection:
                gone = store.remove_effects(connection, [row.key for row in found], self.before.effects)
            self.counts["effects"] += gone
            if gone == 0 and after == found[-1].begun_at:
                # All effects that began at this instant are locked.
                return True
            after = found[-1].begun_at
        return False

    def _job_type_lists(self) -> bool:
        while self.go_on():
            with self.database.read() as connection:
                found = store.old_job_type_lists(connection, self.before.occurrences, SMALLEST_BATCH)
            if not found:
                return True
            with self._write() as connection:
                gone = store.remove_job_type_lists(connection, found, self.before.occurrences)
            self.counts["job_type_lists"] += gone
            if gone == 0:
                return True
        return False

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        """Write in a short transaction, then let others write. The time that the write takes decides how large the next
        batch is.
        """
        is_sqlite = self.database.is_sqlite
        with self.database.write(patience=PATIENCE_S) as connection:
            began = self.clock.monotonic()
            self.before_writing(connection)
            yield connection
            took_s = self.clock.monotonic() - began
        self._batch = next_batch(self._batch, took_s, SHARE_S["sqlite" if is_sqlite else "postgresql"])
        if is_sqlite and took_s:
            # Other writers try SQLite again at least every 100 ms. Without pauses here, they would rarely find it free.
            sleep(min(self.clock.monotonic() - began, 0.05))
