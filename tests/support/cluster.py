"""A PostgreSQL primary and its standby, both from the wheel.

After a promotion, the new primary gets a standby again.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from typing import Any, LiteralString

import psycopg

from support.postgres import SUPERUSER, PostgresServer, as_nobody

PATIENCE_S = 30.0


class Standby(PostgresServer):
    """A copy of *primary* that follows it."""

    def __init__(self, primary: PostgresServer) -> None:
        self._primary = primary
        super().__init__()

    def _initialise(self) -> None:
        self.password = self._primary.password
        self.copy(self._primary)

    def copy(self, primary: PostgresServer) -> None:
        """Start again as a new copy of *primary*."""
        shutil.rmtree(self.data, ignore_errors=True)
        done = subprocess.run(
            [
                *(self.bin / "pg_basebackup", "-D", self.data, "-d", primary.url()),
                *("-R", "-X", "stream", "-c", "fast", "--no-sync"),
            ],
            capture_output=True,
            text=True,
            **as_nobody(),
        )
        if done.returncode:
            raise RuntimeError(f"pg_basebackup failed:\n{done.stdout}{done.stderr}")


class Cluster:
    """Two servers, one of which is the primary. ``url()`` names both, and libpq finds the one that accepts writes.

    If *synchronous*, a COMMIT waits until the standby has it.
    """

    def __init__(self, *, synchronous: bool = True) -> None:
        self.synchronous = synchronous
        self.primary: Any = PostgresServer()
        self.standby: Any = None
        self._frozen: list[int] = []

    def start(self) -> None:
        self.primary.start()
        if self.synchronous:  # the standby gets a copy of this, for when it becomes the primary
            self.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        self.standby = Standby(self.primary)
        self.standby.start()
        self._until_followed()

    def url(self, database: str = "postgres", role: str = SUPERUSER) -> str:
        ports = sorted((self.primary.port, self.standby.port))
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"postgresql://{role}:{self.primary.password}@{hosts}/{database}?target_session_attrs=read-write"

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the primary, as ``PostgresServer.stop`` does."""
        self.primary.stop(how)

    def promote(self) -> None:
        """Make the standby the primary, and make the old primary its standby.

        Stop the old primary first: two servers that accept writes would diverge.
        """
        os.kill(self.primary.pid, signal.SIGQUIT)
        for pid in self._frozen:  # changes that were not sent to the standby are lost
            os.kill(pid, signal.SIGKILL)
        self._frozen = []
        self.primary.kill()
        self.primary, self.standby = self.standby, self.primary
        self.primary.execute("SELECT pg_promote()")
        former = self.standby
        if not isinstance(former, Standby):
            former.__class__ = Standby  # from now on the old primary is a copy, too
        former.copy(self.primary)
        former.start()
        self._until_followed()

    def pause(self) -> None:
        """Stop sending changes to the standby. From now on, a synchronous COMMIT waits."""
        self._frozen = self._pids("SELECT pid FROM pg_stat_replication")
        for pid in self._frozen:
            os.kill(pid, signal.SIGSTOP)

    def remove(self) -> None:
        for pid in self._frozen:
            os.kill(pid, signal.SIGKILL)
        for server in (self.standby, self.primary):
            if server is not None:
                server.stop(signal.SIGQUIT)
                server.remove()

    def waiting_for_standby(self) -> list[int]:
        """Return the processes of the primary whose COMMIT waits for the standby."""
        return self._pids("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")

    def _until_followed(self) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        state: LiteralString = "sync" if self.synchronous else "async"
        question = f"SELECT pid FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = '{state}'"
        while not self._pids(question):
            if time.monotonic() > give_up_at:
                raise RuntimeError("no standby follows the primary")
            time.sleep(0.02)

    def _pids(self, question: LiteralString) -> list[int]:
        with psycopg.connect(self.primary.url(), autocommit=True) as connection:
            return [pid for (pid,) in connection.execute(question).fetchall()]
