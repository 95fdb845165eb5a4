"""The context that all parts of a tick share: its settings, database, time limit, row and result."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.clock import Clock
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.retrying import fails_every_statement, patiently
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.probe.inputs import Start
from cronjobs.engine.tick.result import Result, TickFilter, noted_causes
from cronjobs.engine.tick.tick_row import TickRow
from cronjobs.engine.tick.trouble import PastOutage, SafetyNet
from cronjobs.engine.tick.watchdog import Watchdog
from cronjobs.errors import CronjobsError, DatabaseError

if TYPE_CHECKING:
    from cronjobs.engine.tick.extras import Extras
    from cronjobs.engine.tick.unreported import Unreported

# During this share of the tick's time, the steps that come before its work may be retried.
PATIENT_SHARE: Final = 0.5


@dataclass
class TickContext:
    """One run of ``run-due``. ``began`` (the process's start) and ``deadline`` are seconds of the monotonic clock."""

    settings: Settings
    database: Database
    identity: Identity
    clock: Clock
    watchdog: Watchdog
    began: float
    deadline: float
    emit: Callable[[events.Event], None]
    limits: TickFilter = field(default_factory=TickFilter)
    say_not_started: bool = False
    tells_each: bool = True  # report every job's start and success, for a log or a terminal
    say_progress_s: float = math.inf  # seconds between progress lines on a terminal
    waits_for_long_jobs: bool = False  # if True, pass signals on to the long jobs
    # How this process was started. The fast path of the next tick compares this ``start`` with its own.
    start: Start | None = None
    # The address where runs of "cronjobs exec" wait for this project to record them (``state_files.spool_address``).
    spool: str = "-"
    code_at_fault: bool = False  # True if a fault in the user's code was reported and has not ended
    # Why earlier ticks of this host did not start, in the form that ``Alarm.kept_from_starting`` returns.
    kept_from_starting: Sequence[dict[str, Any]] = ()
    # The times in which earlier ticks of this host could not use the database, from ``Alarm.unrecorded``.
    unrecorded_before: Sequence[dict[str, str]] = ()
    fire_schedules: bool = True  # if False, definitions stay as they are and no occurrence is settled
    # Why the tick cannot write its log, or None. The tick's row records this as a fault of the file's key "log".
    log_unwritable: str | None = None
    # The killed ticks whose deaths this tick has to report, or None if this tick does not look for them.
    unreported: Unreported | None = None
    # How long a whole tick may take, if this one is only a part of a lingering tick.
    whole_s: float | None = None
    # Names of schedules whose crontab lines cron itself has run until now.
    run_by_cron: Collection[str] = ()
    # The database's time at the instant ``now_read_at`` of the monotonic clock. With repr=False, because
    # signal.signal() reads the repr of the old handler, and thus of the tick, perhaps before these fields are set.
    database_now: datetime = field(init=False, repr=False)
    now_read_at: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.net = SafetyNet(self.emit)
        self.emit = self.net.emit
        self.result = Result(kept_from_starting=noted_causes(self.kept_from_starting))
        self.row = TickRow(self.identity, str(self.settings.file), self.fire_schedules)
        if self.unreported is not None:
            self.row.before_insert = self.unreported.begin
        self.extras: Extras | None = None
        self.stop_requested: str | None = None
        self.database_gone = False
        self.recorded = False  # True once the tick's row has its end
        self.many_queues = False  # see ``Overview``
        # True if a part before the work was retried. The failed try may have created jobs that we do not know of.
        self.tried_again = False
        self.patient_until = self.end_of(PATIENT_SHARE)
        self.outages: list[PastOutage] = []  # the times in which this tick could not use the database

    def end_of(self, share: float) -> float:
        """Return the time on the monotonic clock at which this *share* of the tick's remaining time will be over."""
        now = self.clock.monotonic()
        return now + share * (self.deadline - now)

    def go_on(self) -> bool:
        return self.stop_requested is None and not self.database_gone and self.clock.monotonic() < self.deadline

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that first writes the tick's row, unless the row is already there."""
        with self.database.write() as connection:
            self.row.begin(connection)
            yield connection

    def try_part(self, do: Callable[[], None], *, retry_until: float | None = None) -> None:
        """Run one part of a tick.

        If the part fails with a database error, the other parts still run. The part must be safe to repeat. After a
        transient error, the part is retried until *retry_until*. If *retry_until* is None, it is retried only during
        the first share of the tick's time (PATIENT_SHARE), so that time is left for the work.
        """
        until = self.patient_until if retry_until is None else retry_until
        began = self.clock.monotonic()
        note = partial(self._note_retry, began)
        try:
            patiently(do, clock=self.clock, until=until, go_on=self.go_on, note=note)
        except DatabaseError as error:
            self._note_outage(began, error)
            self.database_gone = self.database_gone or fails_every_statement(error, is_sqlite=self.database.is_sqlite)
            self.result.trouble = str(error)
            self.emit(events.database_trouble(str(error), error.cause))
        except CronjobsError:
            raise
        # The error is unexpected, but the other parts still run.
        except Exception as error:
            self.net.catch(error)

    def _note_retry(self, began: float, error: DatabaseError, failures: int, pause_s: float) -> None:
        self.tried_again = True
        self._note_outage(began, error)
        self.emit(events.database_tried_again(str(error), failures, pause_s))

    def _note_outage(self, began: float, error: DatabaseError) -> None:
        """Note that a part of the tick has failed again. Its first try began at *began*."""
        if self.outages and self.outages[-1].began == began:
            self.outages.pop()
        self.outages.append(PastOutage(began, self.clock.monotonic(), str(error)))
