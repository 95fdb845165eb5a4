"""Write exec runs to the database. Each run is written once, even if both the recorder and the spool deliver it."""

from __future__ import annotations

from typing import Final

from cronjobs.clock import sleep
from cronjobs.contrib.exec import spool
from cronjobs.contrib.exec.due_by import due_by
from cronjobs.contrib.exec.run import ExecRun
from cronjobs.desk.store import exec_runs
from cronjobs.engine.database.connection import Database
from cronjobs.engine.probe.state_files import spooled
from cronjobs.engine.store import alerts
from cronjobs.errors import BadValue, DatabaseBusy
from cronjobs.model import Status

LOCKED_TRIES: Final = 20
# Deliver at most this many spooled runs per call, because a tick has other work too.
AT_ONCE: Final = 200


def begin(database: Database, run: ExecRun) -> None:
    row = run.row(due_by(run.name, run.cron))
    with database.write() as connection:
        exec_runs.begin(connection, row)


def end(database: Database, run: ExecRun) -> bool:
    """Write the run's outcome. Return False if a process has already written it. Raises DatabaseError."""
    row = run.row(due_by(run.name, run.cron))
    for _ in range(LOCKED_TRIES):
        with database.write() as connection:
            exec_runs.begin(connection, row)
            state = exec_runs.find(connection, run.key)
            if state.status != Status.RUNNING and not state.guessed:
                return False
            finish = run.finish(state.id)
            if exec_runs.end(connection, state, row, finish):
                alerts.look_soon(connection)  # look for findings, because the run may be dead, late or overlapping
                return True
        sleep(0.1)  # another session has locked the row, so try again
    raise DatabaseBusy(str(database.address), LOCKED_TRIES * 0.1)


def deliver(database: Database, where: str) -> None:
    """Write a batch of this project's spooled runs to the database. Raises DatabaseError.

    If the database refuses a run, set its file aside, write the other runs, and then raise BadValue.
    """
    refused: BadValue | None = None
    for name in spooled(where)[:AT_ONCE]:
        found = spool.read(name)
        if found is None:
            continue  # another process has just delivered this run
        try:
            run = ExecRun.read(found)
        except (KeyError, TypeError, ValueError):
            spool.remove(name)
            continue
        try:
            end(database, run)
        except BadValue as error:
            refused = BadValue(
                f"the database refused a run of exec. The run is kept as {spool.FOLDER}/{name}.refused: {error}"
            )
            spool.put_aside(name)
            continue
        spool.remove(name)
    if refused is not None:
        raise refused
