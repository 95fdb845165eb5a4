"""The tick's own row. The first write inserts the row, so a killed tick leaves a trace. The last write completes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from cronjobs.engine.host.identity import Identity, is_gone
from cronjobs.engine.probe.kernel_facts import UNKNOWN
from cronjobs.engine.probe.linger import BEGAN
from cronjobs.engine.store import ticks
from cronjobs.engine.store.alerts import look_soon
from cronjobs.engine.tick.result import Result
from cronjobs.version import __version__

if TYPE_CHECKING:
    from cronjobs.engine.store.job_types import Loaded


@dataclass
class TickRow:
    """The contents of a tick's row. ``fingerprint`` identifies the definitions that the tick found or applied.

    ``fingerprint`` is None if the tick waits to apply its file (``applying.Verdict``), so that the next tick decides
    again. ``loaded`` has the tick's job types and the version of their code, or is None if the tick did not load
    handlers. ``importing`` is True while the tick imports the handlers.
    """

    identity: Identity
    config: str
    schedules_on: bool
    started_at: datetime | None = None
    fingerprint: str | None = None
    loaded: Loaded | None = None
    importing: bool = False
    # Called before each statement that inserts the row. After the commit the tick may have recorded deaths.
    before_insert: Callable[[], None] = lambda: None
    written: bool = False  # whether a statement has written the row
    _recorded: tuple[bool, bool] | None = None  # the state that was written last, see ``_state``
    _ended: bool = False

    def begin(self, connection: Connection) -> None:
        """Insert the row in the transaction of the first write. Update it when the import begins, and when it ends."""
        if not self._ended and self._recorded != self._state:
            # Even if this transaction rolls back, the last write writes the whole row.
            self.insert(connection)

    @property
    def _state(self) -> tuple[bool, bool]:
        return self.importing, self.loaded is not None

    def insert(self, connection: Connection) -> int:
        """Write the row, and return its id.

        Each transaction that writes ledger rows calls this method, because the ledger rows refer to the tick's id. This
        method writes the tick's row again, because the previous transaction may have been rolled back.
        """
        self._recorded = self._state
        self.before_insert()
        id_ = ticks.begin_tick(connection, self._facts(connection))
        self.written = True
        return id_

    def end(self, connection: Connection, finished_at: datetime, result: Result) -> None:
        """Write the whole row, whether or not ``begin`` has written it."""
        ends = {
            "finished_at": finished_at,
            "did": result.did(),
            "ended": result.ended,
            "not_started": result.left() or None,
        }
        # An extra may import the handlers after this.
        self._ended = True
        ticks.end_tick(connection, self._facts(connection) | ends)
        self.written = True
        if ends["did"]:
            look_soon(connection)

    def of_lingering(self, runner: str, host_now: datetime) -> dict[str, Any] | None:
        """Return the row of the lingering tick that left the line *runner* (``probe.linger.Trace``) and was killed.

        Return None if *runner* did not linger, or if this host cannot prove that it has ended. *host_now* is the
        time now on this host's clock.
        """
        killed = Identity.parse(runner)
        if killed is None or self.started_at is None or not (began := killed.tick.partition(BEGAN)[2]).isdecimal():
            return None
        boots = {killed.boot_id, self.identity.boot_id}
        rebooted = killed.host == self.identity.host and len(boots) == 2 and UNKNOWN not in boots
        if not rebooted and not is_gone(runner, self.identity):
            return None
        return {
            "tick": killed.tick,
            "host": killed.host,
            "boot_id": killed.boot_id,
            "pid": killed.pid,
            "version": __version__,
            "config": self.config,
            "fingerprint": self.fingerprint,
            "schedules_on": int(self.schedules_on),
            "started_at": self.started_at - max(timedelta(0), host_now - datetime.fromtimestamp(int(began), UTC)),
            "did": {"runner": runner},
        }

    def _facts(self, connection: Connection) -> dict[str, Any]:
        return {
            "tick": self.identity.tick,
            "host": self.identity.host,
            "boot_id": self.identity.boot_id,
            "pid": self.identity.pid,
            "version": __version__,
            "config": self.config,
            "fingerprint": self.fingerprint,
            "schedules_on": int(self.schedules_on),
            "started_at": self.started_at,
            # If the tick never ends, this host can prove with "runner" that the tick is gone, and "importing" says
            # where it ended. ``end`` replaces both entries.
            "did": {"runner": str(self.identity)} | ({"importing": True} if self.importing else {}),
            "job_types": self._recorded_types(connection),
        }

    def _recorded_types(self, connection: Connection) -> Any:
        if self.loaded is None:
            return None
        from cronjobs.engine.store.job_types import record_types

        return record_types(connection, self.loaded)
