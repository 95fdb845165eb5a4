"""One turn of the loop: write outcomes, renew leases and claim jobs in one transaction.

The caller applies a turn's result to its own memory only after the commit, so it can simply repeat a failed turn. The
objects in this module remember nothing but facts about the database.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.clock import Clock
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.retrying import patiently
from cronjobs.engine.execution.attempt import Ended
from cronjobs.engine.rules.crashing_types import count_ends
from cronjobs.engine.rules.ending import Decided, decide_end, without_texts
from cronjobs.engine.rules.lease import Finish, Lease, Report, lease_of
from cronjobs.engine.rules.misfits import is_misfit
from cronjobs.engine.store import claims, crashing_types, leases
from cronjobs.engine.store.alerts import look_soon
from cronjobs.engine.store.claims import NO_CLAIM, Claim, ClaimFilter
from cronjobs.engine.store.job_rows import fetch_by_itself
from cronjobs.engine.store.leases import FinishResult, Renewal, settle
from cronjobs.engine.store.misfits import known_misfits
from cronjobs.engine.store.sql import database_now
from cronjobs.errors import (
    BadValue,
    CommitUnconfirmed,
    DatabaseBusy,
    DatabaseDamaged,
    DatabaseError,
    DatabaseFull,
    DatabaseReadOnly,
    DatabaseUnreachable,
    TransientTrouble,
)
from cronjobs.model import Finished, Job, Released, RetryPolicy, Status

# Wait at most this long for SQLite's write lock. The loop checks the time before it tries again.
WRITE_PATIENCE_S: Final = 0.25

READ_AGAIN_S: Final = 1.0
READ_PAUSE_S: Final = 0.05
MOST_READS: Final = 20

_NO_ROWS_FAULT: Final = (DatabaseUnreachable, DatabaseBusy, DatabaseFull, DatabaseReadOnly, DatabaseDamaged)

End = tuple[Ended, Decided]


@dataclass(frozen=True)
class Batch:
    """The work of one turn, as decided at ``now`` on the monotonic clock.

    ``held`` contains all our leases if the turn needs them. ``room`` is how many jobs to claim.

    If ``unsettled`` is True, an earlier claim got no answer, and may have leased jobs to us that are neither in
    ``held`` nor in ``given_up``. The rows may still say that the leases in ``given_up`` are ours, but these leases must
    expire, because their attempts began.

    ``reports`` contains, by job id, the attempts' reports that the renewal writes.

    ``long`` is the filter for long jobs, of which at most ``long_jobs`` may run on ``host``. ``long_room`` is the most
    jobs that this turn may claim, long or not.
    """

    now: float
    ends: Sequence[End]
    overdue: Sequence[Finish]
    held: Sequence[Lease]
    renew: bool
    room: int
    admission: ClaimFilter
    long: ClaimFilter | None = None
    long_jobs: int = 0
    long_room: int = 0
    host: str = ""
    alone: bool = True  # True if this process holds no lease
    unsettled: bool = False
    given_up: Collection[Lease] = ()
    # Job types that crash their runners, or may do so. A type is cleared after enough of its jobs have ended well.
    watched: Collection[str] = ()
    reports: Mapping[int, Report] = field(default_factory=dict)
    # Called after everything else, in the last transaction of the tick.
    last: Callable[[Connection], None] | None = None


@dataclass(frozen=True)
class BatchResult:
    """The result of one committed transaction. ``sent`` is when its first statement was sent, on the monotonic clock.

    ``more_due`` says that there may be due jobs that the claim did not look at.
    """

    sent: float
    ends: Sequence[End] = ()
    written: FinishResult = field(default_factory=lambda: FinishResult(frozenset(), frozenset()))
    # The overdue jobs whose history rows were written.
    recorded: frozenset[int] = frozenset()
    renewal: Renewal | None = None
    # The COMMIT of an earlier claim got no reply. That claim leased these jobs, as their rows show, so they may start.
    settled: Sequence[Job] = ()
    # These jobs are leased, but must not start: another transaction has locked the row, or a failover may undo the
    # lease.
    unsure: Sequence[Job] = ()
    claimed: Sequence[Job] = ()
    long: Sequence[Job] = ()
    # The time that the claim read from the database, and the instant at which the claim's reply had arrived. A time
    # computed from both is never ahead of the database.
    database_now: datetime | None = None
    now_read_at: float = 0.0
    more_due: bool = False
    # The jobs that the database refused to lease, and why.
    refused: Mapping[int, str] = field(default_factory=dict)
    # The jobs that a wary claim leased and whose rows are still to be read.
    unread: Sequence[int] = ()
    # True if doubtful jobs are due. They are claimed only when nothing else is running here.
    postponed: bool = False
    # The types that need not be watched any more.
    cleared: Sequence[str] = ()


@dataclass
class Writer:
    """Writes to the database for one ``locked_by``."""

    database: Database
    clock: Clock
    locked_by: str
    lease: timedelta
    before_writing: Callable[[Connection], None]
    # True if a turn that claimed jobs has failed: we may hold leases that we do not know of.
    claim_unsettled: bool = False
    # True if a row has made a claim fail or may have killed a tick. From then on, the writer claims rows one at a time.
    warily: bool = False
    # After this many rows that were claimed one at a time, the writer claims several at once again.
    wary_rows: float = math.inf
    # True if some runners died before they had read a row that they claimed. The writer claims such rows last.
    doubtful: bool = False
    refused: set[int] = field(default_factory=set)
    # Leased jobs whose rows have content that cannot be read.
    suspects: set[int] = field(default_factory=set)
    # Jobs that the last turn leased, but whose leases no standby has confirmed.
    unconfirmed: list[Job] = field(default_factory=list)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self.database.write(patience=WRITE_PATIENCE_S, next_in_line=True) as connection:
            self.before_writing(connection)
            yield connection

    def write(self, order: Batch) -> BatchResult:
        """Write all of *order* or nothing, then read the rows that a wary claim leased. Raises DatabaseError."""
        try:
            return self._read_leased(self._write(order))
        except MemoryError:
            raise TransientTrouble("there was not enough memory for the claimed jobs") from None

    def _write(self, order: Batch) -> BatchResult:
        renewal: Renewal | None = None
        settled: list[Job] = []
        unsure: list[Job] = []
        claim = long = NO_CLAIM
        self.unconfirmed = []
        try:
            with self._writing() as connection:
                sent = self.clock.monotonic()
                ends = self._judged(connection, order.ends)
                written = self._finish(connection, [decided.finish for _, decided in ends])
                cleared = self._count_ends(connection, order, written)
                recorded = leases.record_overdue(connection, order.overdue)
                if order.renew and order.held:
                    renewal = leases.renew(connection, order.held, self.lease, order.reports)
                if order.unsettled:
                    self._give_back_unread(connection)
                    settled, unsure = self._settle_claim(connection, {*order.held, *order.given_up})
                if order.room:
                    self.claim_unsettled = True
                    claim = self._claim(connection, order.room, order.admission, alone=order.alone)
                now_read_at = self.clock.monotonic()
                if order.long is not None:
                    long = self._claim_long(connection, order, order.long, order.long_room - len(claim.jobs))
                if order.last is not None:
                    order.last(connection)
        except CommitUnconfirmed:
            self.unconfirmed = [*settled, *unsure, *claim.jobs, *long.jobs]
            # If a claim has leased rows that are not read yet, the next turn releases them.
            self.claim_unsettled = bool(claim.unread or long.unread)
            raise
        self.claim_unsettled = False
        return BatchResult(
            sent=sent,
            ends=ends,
            written=written,
            recorded=recorded,
            renewal=renewal,
            settled=settled,
            unsure=unsure,
            claimed=claim.jobs,
            long=long.jobs,
            database_now=claim.now,
            now_read_at=now_read_at,
            more_due=claim.more_due or long.more_due,
            postponed=claim.postponed,
            refused={**claim.refused, **long.refused},
            unread=[*claim.unread, *long.unread],
            cleared=cleared,
        )

    def _read_leased(self, turn: BatchResult) -> BatchResult:
        """Read the rows that a wary claim leased, each in its own transaction.

        If a row's content cannot be read, the job stays leased until recovery settles it. If a row could not be read
        for another reason, the next turn releases the job. Never raises, because the transaction of *turn* is already
        committed.
        """
        for job_id in turn.unread:
            try:
                job = self._read_one(job_id)
            except (DatabaseError, MemoryError) as error:
                why = (
                    f"the job's row could not be read: {error}"
                    if str(error)
                    else "the job's row needs more memory than is available"
                )
                turn = replace(turn, refused={**turn.refused, job_id: why})
            else:
                turn = replace(turn, claimed=[*turn.claimed, *([job] if job is not None else [])])
        return turn

    def _read_one(self, job_id: int) -> Job | None:
        """Read a leased row. Return None if the row is no longer leased to us, or was already read.

        While the database is busy or unreachable, try again for up to a second. If the connection is lost while the row
        itself is fetched, however, do not try again, because the row may have crashed the server's process.
        """
        fetching = False

        def read() -> Job | None:
            nonlocal fetching
            fetching = False
            with self._writing() as connection:
                if not claims.note_read(connection, job_id, self.locked_by):
                    return None
                fetching = True
                job = fetch_by_itself(connection, job_id, self.locked_by)
                fetching = False
            return job

        def no_rows_fault(error: Exception) -> bool:
            return isinstance(error, _NO_ROWS_FAULT) and not fetching

        def failed(*_: object) -> None:
            # If only the reply to the COMMIT was lost, the job is ours.
            self.claim_unsettled = True

        until = self.clock.monotonic() + READ_AGAIN_S
        pauses = repeat(READ_PAUSE_S, MOST_READS - 1)
        try:
            return patiently(read, clock=self.clock, until=until, worth=no_rows_fault, pauses=pauses, note=failed)
        except (DatabaseError, MemoryError) as error:
            failed()
            if not no_rows_fault(error):
                self.suspects.add(job_id)
            raise

    def may_work_row_by_row(self, error: Exception) -> bool:
        """Return whether claiming rows one at a time might succeed. If so, claim rows one at a time from now on."""
        if self.warily or not self.claim_unsettled or isinstance(error, _NO_ROWS_FAULT):
            return False
        self.warily, self.wary_rows = True, math.inf
        return True

    def _count_ends(self, connection: Connection, order: Batch, written: FinishResult) -> list[str]:
        if not order.watched:
            return []
        ends = count_ends(
            decided.finished
            for ended, decided in order.ends
            if ended.attempt.job.job_type in order.watched
            and ended.attempt.begun
            and ended.attempt.job.id in written.written
        )
        return crashing_types.note_ends(connection, ends) if ends else []

    def _claim(self, connection: Connection, room: int, admission: ClaimFilter, *, alone: bool) -> Claim:
        lease: dict[str, Any] = {"locked_by": self.locked_by, "lease": self.lease}
        admission = replace(admission, but=self.refused)
        if self.warily:
            found = claims.claim_warily(connection, **lease, admission=admission)
            self.wary_rows -= len(found.unread)
            self.warily = self.wary_rows > 0
        else:
            found = claims.claim(connection, limit=room, **lease, admission=admission)
        if self.doubtful and not found.jobs and not found.unread:
            # Reading a doubtful job's row may kill this process and all its jobs.
            if not alone:
                return found._replace(postponed=True)
            found = claims.claim_warily(connection, **lease, admission=replace(admission, doubtful=True))
        self.refused |= found.refused.keys()
        return found

    def _claim_long(self, connection: Connection, order: Batch, admission: ClaimFilter, room: int) -> Claim:
        if not admission.fitting and not claims.any_with_own_timeout(connection):
            # No job type can be long. Skip the claim, because the server would need 10 ms just to plan it.
            return NO_CLAIM
        room = min(room, order.long_jobs - leases.long_running(connection, order.host))
        if room <= 0:
            return NO_CLAIM
        self.claim_unsettled = True
        return self._claim(connection, room, admission, alone=order.alone)

    def write_alone(self, last: Callable[[Connection], None]) -> None:
        """Run only *last*, in a transaction."""
        with self._writing() as connection:
            last(connection)

    def write_one(self, end: End) -> BatchResult:
        """Write one end alone.

        If the database refuses the end, write it without its texts. Raises BadValue if that is refused, too.
        """
        try:
            return self._write_one(end, lambda finish: finish)
        except BadValue:
            return self._write_one(end, without_texts)

    def _write_one(self, end: End, form: Callable[[Finish], Finish]) -> BatchResult:
        with self._writing() as connection:
            sent = self.clock.monotonic()
            ends = self._judged(connection, [end])
            written = self._finish(connection, [form(decided.finish) for _, decided in ends])
        return BatchResult(sent, ends, written)

    def _judged(self, connection: Connection, ends: Sequence[End]) -> Sequence[End]:
        """Return *ends* after deciding, from what other ticks recorded, which misfit jobs to give up."""
        misfits = [ended.attempt.job.id for ended, decided in ends if is_misfit(decided.finished.outcome)]
        known = known_misfits(connection, misfits) if misfits else {}
        if not known:
            return ends
        now = database_now(connection)

        def judged(ended: Ended, decided: Decided) -> Decided:
            found = known.get(ended.attempt.job.id)
            if found is None:
                return decided
            ago = decided.finish.ended_ago
            return decide_end(decided.finished, RetryPolicy(), now, ended_ago=ago, max_losses=1, misfits=found)

        return [(ended, judged(ended, decided)) for ended, decided in ends]

    def _finish(self, connection: Connection, finishes: list[Finish]) -> FinishResult:
        """Finish the attempts.

        If the reply to an earlier COMMIT was lost, read from the rows what that transaction has already written.
        """
        if not finishes:
            return FinishResult(frozenset(), frozenset())
        written = settle(connection, finishes, leases.finish(connection, finishes))
        if any(finish.status is Status.DEAD for finish in finishes):
            # Call this here, because a loop may have no tick, and a tick may be killed before its end.
            look_soon(connection)
        return written

    def _give_back_unread(self, connection: Connection) -> None:
        """Release jobs that a wary claim leased and whose rows nobody read, except those in ``suspects``."""
        unread = [job for job in claims.unread_by(connection, self.locked_by) if job.id not in self.suspects]
        if unread:
            now = database_now(connection)
            ends = [decide_end(Finished(job, Released()), RetryPolicy(), now, max_losses=1) for job in unread]
            self._finish(connection, [end.finish for end in ends])

    def _settle_claim(self, connection: Connection, known: set[Lease]) -> tuple[list[Job], list[Job]]:
        """If the reply to a claim's COMMIT was lost, find the jobs that the claim leased to us, and renew their leases.

        Return the jobs whose leases were renewed, and the jobs whose rows another transaction has locked.
        """
        leased = claims.held_by(connection, self.locked_by, warily=self.warily)
        found = [job for job in leased if lease_of(job) not in known]
        if not found:
            return [], []
        renewal = leases.renew(connection, [lease_of(job) for job in found], self.lease)
        over = renewal.renewed | renewal.lost | renewal.succeeded
        return [job for job in found if job.id in renewal.renewed], [job for job in found if job.id not in over]
