"""The permit of an attempt on a worker. The handler may run only while the database keeps confirming the permit."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from cronjobs.clock import Clock
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.context import StopSignal
from cronjobs.engine.rules.lease import heartbeat_s, lease_margin_s
from cronjobs.engine.store import tokens
from cronjobs.engine.store.tokens import Permit, TokenKey
from cronjobs.errors import DatabaseError

AGAIN_S: Final = 1.0  # seconds between retries after a database error
FOR_GOOD_S: Final = 60 * 86_400.0  # twice the longest timeout
TAKE_TRIES: Final = 3
LAST_TRIES: Final = 3  # how many times to try to write the outcome


@dataclass
class HeldPermit:
    """The permit of one attempt. The attempt's handler must be gone by ``safe_until``, a monotonic instant.

    The launcher enforces this. A permit's time counts from when this process asked for the confirmation, so a delay
    here can only shorten the permit.
    """

    database: Database
    key: TokenKey
    holder: str
    lease_s: float
    clock: Clock
    stop: StopSignal
    safe_until: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)

    def take(self) -> Permit:
        """Take the attempt's token, and try again if the connection is lost. Raises DatabaseError.

        A call whose connection is lost may still have taken the token. If we then gave up, no worker could begin the
        attempt.
        """
        for left in reversed(range(TAKE_TRIES)):
            sent = self.clock.monotonic()
            try:
                with self.database.write() as connection:
                    found = tokens.take(connection, self.key, self.holder)
            except DatabaseError:
                if not left:
                    raise
                self._over.wait(AGAIN_S)
                continue
            if found.answer == "yours":
                self._holds(sent, found)
            break
        return found

    def watch(self) -> None:
        """Start a thread that renews the permit every quarter of a lease."""
        threading.Thread(target=self._confirm_again, name="cronjobs-permit", daemon=True).start()

    def confirm_no_more(self) -> None:
        """Stop renewing the permit, so that it expires."""
        self._over.set()

    def end(self, report: str) -> None:
        """Write the outcome, in case the cluster cannot reach the supervisor. First let the attempt's processes end."""
        if len(report) > tokens.MOST_ENDED:
            return
        for _ in range(LAST_TRIES):
            try:
                with self.database.write() as connection:
                    tokens.confirm(connection, self.key, report)
            except DatabaseError:
                continue
            return

    def _holds(self, sent: float, found: Permit) -> None:
        self.safe_until = sent + found.left_s - lease_margin_s(self.lease_s)

    def _confirm_again(self) -> None:
        pause_s = heartbeat_s(self.lease_s)
        while not self._over.wait(pause_s):
            sent = self.clock.monotonic()
            try:
                with self.database.write() as connection:
                    found = tokens.confirm(connection, self.key)
            except DatabaseError:
                pause_s = min(AGAIN_S, heartbeat_s(self.lease_s))
                if self.clock.monotonic() >= self.safe_until:
                    self.stop.set("lease lost")
                    return
                continue
            pause_s = heartbeat_s(self.lease_s)
            # The handler has ended its job itself, so no other attempt will begin, and this one may run to its timeout.
            if found.answer == "done":
                self.safe_until = self.clock.monotonic() + FOR_GOOD_S
                return
            if found.answer == "over":
                self.safe_until = 0.0
                self.stop.set("lease lost")
                return
            self._holds(sent, found)
            if found.answer == "cancelled":
                self.stop.set("cancelled")
