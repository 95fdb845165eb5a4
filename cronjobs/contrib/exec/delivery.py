"""Brings runs of exec into the database, each once: by exec's recorder, and by a tick what waits in the spool."""

from __future__ import annotations

from typing import Final

from cronjobs.clock import sleep
from cronjobs.contrib.exec import spool
from cronjobs.contrib.exec.due_by import due_by
from cronjobs.contrib.exec.run import ExecRun
from cronjobs.engine.database.connection import Database
from cronjobs.engine.probe.state_files import spooled
from cronjobs.engine.store import alerts, exec_runs
from cronjobs.errors import BadValue, DatabaseBusy
from cronjobs.model import Status

LOCKED_TRIES: Final = 20
AT_ONCE: Final = 200  # of the spool: a tick has more to do


def begin(database: Database, run: ExecRun) -> None:
    """Write that it runs."""
    row = run.row(due_by(run.name, run.cron))
    with database.write() as connection:
        exec_runs.begin(connection, row)


def end(database: Database, run: ExecRun) -> bool:
    """Write how it ended, unless that is written; return whether it was us. Raises DatabaseError."""
    row = run.row(due_by(run.name, run.cron))
    for _ in range(LOCKED_TRIES):
        with database.write() as connection:
            exec_runs.begin(connection, row)
            state = exec_runs.find(connection, run.key)
            if state.status != Status.RUNNING and not state.guessed:
                return False
            finish = run.finish(state.id)
            if exec_runs.end(connection, state, row, finish):
                alerts.look_soon(connection)  # it may be dead, or what was expected, or overlap
                return True
        sleep(0.1)  # someone has the row locked
    raise DatabaseBusy(str(database.address), LOCKED_TRIES * 0.1)


def deliver(database: Database, where: str) -> None:
    """Write the runs that wait in the spool for this project, so many at a time. Raises DatabaseError.

    A run that the database refuses stops no other: it is put aside, and that is raised, once.
    """
    refused: BadValue | None = None
    for name in spooled(where)[:AT_ONCE]:
        found = spool.read(name)
        if found is None:
            continue  # another process has just delivered it
        try:
            run = ExecRun.read(found)
        except (KeyError, TypeError, ValueError):
            spool.remove(name)
            continue
        try:
            end(database, run)
        except BadValue as error:
            refused = BadValue(f"a run of exec is refused, and kept as {spool.FOLDER}/{name}.refused: {error}")
            spool.put_aside(name)
            continue
        spool.remove(name)
    if refused is not None:
        raise refused
