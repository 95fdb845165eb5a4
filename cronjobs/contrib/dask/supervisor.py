"""The supervisor of one executor on this host. A tick starts this module with ``python -m`` (``tick.executors``).

A supervisor is a tick's loop whose workers are a cluster. It claims jobs of the executor's types, submits them to the
cluster, renews their leases together, and records their outcomes. A supervisor has no deadline, and exits after a while
without work. After a deploy (the file or the handlers' modules have changed), it claims nothing more, and the next tick
starts another supervisor. Like a tick's watchdog, a supervisor's watchdog fires before a lease ends.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from cronjobs import masking
from cronjobs.clock import SYSTEM
from cronjobs.contrib.dask.code_on_disk import CodeOnDisk
from cronjobs.contrib.dask.supervising import supervise
from cronjobs.engine.config import load
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs import job_types
from cronjobs.engine.tick import mail_throttle
from cronjobs.engine.tick.executors import Supervision, SupervisorLock
from cronjobs.engine.tick.trouble import place
from cronjobs.engine.tick.watchdog import Watchdog
from cronjobs.errors import EX_SOFTWARE, CronjobsError
from cronjobs.text import one_line

TAG: Final = "cluster-"  # the prefix of the tick's part in a supervisor's locked_by
START_UP_S: Final = 120.0  # seconds allowed to import the handlers and reach the database


def main() -> None:
    """Run the supervisor and exit.

    The exit code is 0 after a normal end, 4 if the database could not be reached, else the code of the error.
    """
    supervision = Supervision.decode(sys.stdin.buffer.read())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # ignore the SIGHUP that a closing terminal sends
    lock = SupervisorLock.take(supervision)
    if lock is None:
        os._exit(0)
    watchdog = Watchdog(SYSTEM)
    watchdog.stand_at(SYSTEM.monotonic() + START_UP_S)
    config = Path(supervision.config)
    try:
        settings = load.load(config, environ=os.environ, database_url=supervision.database)
        masking.remember(settings.secrets)
        os._exit(_supervise(supervision, settings, lock, watchdog))
    except Exception as error:
        _leave_error(config, supervision.executor, error)
        os._exit(error.exit_code if isinstance(error, CronjobsError) else EX_SOFTWARE)


def _supervise(supervision: Supervision, settings: Settings, lock: SupervisorLock, watchdog: Watchdog) -> int:
    executor = settings.executors.get(supervision.executor)
    if executor is None:
        raise CronjobsError("the file no longer has this executor")
    watchdog.harden(settings.run.lease)
    types, identity = job_types.load(settings), Identity.here()
    mine = [each.registration for each in types.types.values() if each.executor == executor.name]
    loop = supervise(
        settings,
        executor,
        queue=supervision.queue,
        types=types,
        locked_by=str(replace(identity, tick=TAG + identity.tick)),
        has_changed=CodeOnDisk.of(settings, [each for each in mine if each is not None]).has_changed,
        database=Database(parse_url(settings.database, settings.schema), connections=4),
        release_lock=lock.release,
        watchdog=watchdog,
    )
    if loop.outage.error is not None:
        return 4
    return EX_SOFTWARE if loop.net.error is not None else 0


def _leave_error(config: Path, executor: str, error: Exception) -> None:
    """Leave the error for the next tick to print.

    cron mails the output of ticks, but not the output of supervisors.
    """
    why = str(error).partition("\n")[0]
    if not isinstance(error, CronjobsError):
        why = f"an internal error in cronjobs, {type(error).__name__}: {why} ({place(error)})"
    word = one_line(masking.mask_urls(f"the supervisor of executor {executor} exited: {why}"), 1000)
    mail_throttle.leave_message(config, word)


if __name__ == "__main__":
    main()
