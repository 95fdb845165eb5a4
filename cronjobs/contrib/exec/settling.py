"""Clean up after exec: settle runs whose exec was killed, and follow changes to the crontab."""

from __future__ import annotations

from contextlib import closing, suppress
from datetime import timedelta
from typing import Final

from cronjobs.contrib.exec.delivery import deliver
from cronjobs.contrib.exec.due_by import due_by, names_in_crontab
from cronjobs.contrib.exec.run import lost
from cronjobs.contrib.exec.target import has_runs, no_project, open_target
from cronjobs.desk.store import exec_runs
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.caller import os_user
from cronjobs.engine.host.identity import Identity, is_gone
from cronjobs.engine.probe.state_files import spool_address
from cronjobs.engine.store import counts, leases
from cronjobs.engine.store.sql import database_now
from cronjobs.errors import CronjobsError, DatabaseBusy
from cronjobs.model import FINAL

KEPT: Final = dict.fromkeys(FINAL, timedelta(days=90))


def recorded() -> Settings | None:
    """Return the settings of the user's own database, or None if exec has recorded nothing there.

    First deliver spooled runs to it, settle runs whose exec was killed, and follow the crontab. Ticks do not open this
    database, and exec stops opening it once the runs of all crontab lines are recorded for a project. Errors are
    ignored.
    """
    if not has_runs():
        return None
    settings = no_project()
    with suppress(CronjobsError), closing(open_target(settings)) as database:
        settle(database, spool_address(None, None))
        follow_crontab(database, None)
    return settings


def settle(database: Database, spool: str) -> None:
    """Write the outcomes that *database* lacks: those in *spool*, and those of runs whose exec was killed."""
    deliver(database, spool)
    settle_lost(database)


def tidy(database: Database, config: str | None, *, local: bool) -> None:
    """Settle this host's runs whose exec was killed, and follow the crontab.

    *config* is the project that *database* belongs to, if any. If *local*, *database* is the user's own database, which
    no tick prunes, so prune it too.
    """
    with suppress(DatabaseBusy):
        settle_lost(database)
        follow_crontab(database, config)
        if local:
            with database.write() as connection:
                exec_runs.prune(connection, KEPT)
                counts.fold(connection)
                counts.remove_old_hours(connection)


def settle_lost(database: Database) -> None:
    """Mark this host's runs as dead if their exec was killed or began before the last boot."""
    here = Identity.here()
    with database.read() as connection:
        rows = exec_runs.running_here(connection, here.host)
    gone = [row for row in rows if is_gone(row.locked_by, here) or _before_boot(row.locked_by, here)]
    if gone:
        with database.write() as connection:
            now = database_now(connection)
            leases.finish(connection, [lost(row.id, row.job_type, row.locked_by, row.attempts, now) for row in gone])


def follow_crontab(database: Database, config: str | None) -> None:
    """Expect runs of the lines of this user's crontab, and of no line that the user has removed.

    If a line's runs are recorded for a project other than *config*, the line counts as removed. ``unwrap`` removes all
    lines, and a later ``wrap`` brings them back: a line that is back is expected from now on.
    """
    host, user = Identity.here().host, os_user()
    with database.read() as connection:
        newest = {runs[0].job_type.partition(":")[2]: runs[0] for runs in exec_runs.latest(connection).values()}
    ours = {
        name: run
        for name, run in newest.items()
        if (run.meta.get("host"), run.meta.get("user"), run.meta.get("from")) == (host, user, "crontab")
    }
    named = names_in_crontab(config) if ours else None
    if named is None:
        return
    gone = [run.id for name, run in ours.items() if run.meta.get("cron") and name not in named]
    back = {run.id: due_by(name, None) for name, run in ours.items() if not run.meta.get("cron") and name in named}
    if gone or any(back.values()):
        with database.write() as connection:
            exec_runs.expect_no_more(connection, gone)
            exec_runs.expect_again(connection, {id_: times for id_, times in back.items() if times})


def _before_boot(locked_by: str, here: Identity) -> bool:
    holder = Identity.parse(locked_by)
    return holder is not None and holder.boot_id != here.boot_id
