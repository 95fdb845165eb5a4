"""Brings runs of exec into the database, each once: by exec's recorder, and by a tick what waits in the spool."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Final

from cronjobs.clock import sleep
from cronjobs.database.connection import Database
from cronjobs.errors import DatabaseBusy
from cronjobs.exec import spool
from cronjobs.exec.due_by import due_by, lines_with
from cronjobs.exec.run import POLICY, ExecRun
from cronjobs.exec.watching import watch_exec
from cronjobs.host.caller import os_user
from cronjobs.host.identity import Identity, is_gone
from cronjobs.model import Finished, Job, Lost, Status
from cronjobs.rules.ending import decide_end
from cronjobs.store import alerts, exec_runs, leases
from cronjobs.store.sql import database_now

KEPT: Final = {
    Status.SUCCEEDED: timedelta(days=90),
    Status.DEAD: timedelta(days=90),
    Status.CANCELLED: timedelta(days=90),
}
LOCKED_TRIES: Final = 20
AT_ONCE: Final = 200  # of the spool: a tick has more to do


def spool_of(config: str | None, url: str | None) -> str:
    """Where runs of this project wait."""
    return spool.address(config, url)


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
                if finish.status == Status.DEAD:
                    alerts.look_soon(connection)
                return True
        sleep(0.1)  # someone has the row locked
    raise DatabaseBusy(str(database.address), LOCKED_TRIES * 0.1)


def deliver(database: Database, where: str) -> int:
    """Write the runs that wait in the spool for this project, so many at a time; return how many were new.

    Raises DatabaseError.
    """
    delivered = 0
    for name in spool.waiting(where)[:AT_ONCE]:
        found = spool.read(name)
        if found is None:
            continue  # another process has just delivered it
        try:
            run = ExecRun.read(found)
        except (KeyError, TypeError, ValueError):
            spool.remove(name)
            continue
        delivered += end(database, run)
        spool.remove(name)
    return delivered


def tidy(database: Database, *, local: bool) -> None:
    """Settle the runs of this host whose exec is gone, and forget lines that are gone from the crontab.

    Of the user's own database also prune, as no tick does.
    """
    with suppress(DatabaseBusy):
        settle_lost(database)
        forget_lines(database)
        if local:
            with database.write() as connection:
                exec_runs.prune(connection, KEPT)


def settle_lost(database: Database) -> int:
    """Write as dead the runs whose exec was killed on this host, or before its last boot; return how many."""
    here = Identity.here()
    with database.read() as connection:
        rows = exec_runs.running_here(connection, here.host)
    gone = [row for row in rows if is_gone(row.locked_by, here) or _before_boot(row.locked_by, here)]
    if not gone:
        return 0
    with database.write() as connection:
        now = database_now(connection)
        ends = []
        for row in gone:
            job = Job(row.id, row.job_type, {}, attempt=row.attempts, locked_by=row.locked_by)
            lost = Finished(job, Lost())
            end_of_it = decide_end(lost, POLICY.retry, now, max_losses=POLICY.most_losses)
            ends.append(end_of_it.finish._replace(duration=None))
        return len(leases.finish(connection, ends).written)


def forget_lines(database: Database) -> None:
    """Expect no more runs of what this user's crontab on this host no longer has, as far as it had said when."""
    host, user = Identity.here().host, os_user()
    with database.read() as connection:
        absent = watch_exec(connection, database_now(connection)).absent
        newest = {runs[0].job_type.partition(":")[2]: runs[0] for runs in exec_runs.latest(connection).values()}
    gone = [
        newest[name].id
        for name in absent
        if (newest[name].meta.get("host"), newest[name].meta.get("user")) == (host, user)
        and newest[name].meta.get("from") == "crontab"
        and lines_with(name) == []
    ]
    if gone:
        with database.write() as connection:
            exec_runs.expect_no_more(connection, gone)


def _before_boot(locked_by: str, here: Identity) -> bool:
    holder = Identity.parse(locked_by)
    return holder is not None and holder.boot_id != here.boot_id
