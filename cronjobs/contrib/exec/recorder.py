"""The recorder: a separate process that writes an exec run to the database."""

from __future__ import annotations

import marshal
import os
import select
import signal
from contextlib import closing, suppress
from typing import Any, Final

from cronjobs.clock import SYSTEM
from cronjobs.contrib.exec import RECORDED, delivery, settling
from cronjobs.contrib.exec.refusals import refusals
from cronjobs.contrib.exec.run import ExecRun
from cronjobs.contrib.exec.target import open_target, target_settings
from cronjobs.engine.probe.state_files import spool_address

# The recorder waits this many seconds for the command to end. Then it exits, to free its memory.
LINGER_S: Final = 20.0
LONGEST_S: Final = 180  # SIGALRM kills the recorder after this many seconds, even if it hangs


def record(facts: dict[str, Any], config: str | None, url: str | None, orders: int, reply: int) -> None:
    """Record that the run in *facts* has begun. If the command ends within LINGER_S, record the outcome too.

    exec sends the outcome through the pipe *orders*. Once the outcome is written, the recorder answers RECORDED through
    the pipe *reply*. If the run cannot be recorded, raises the error that prevents it.
    """
    signal.alarm(LONGEST_S)
    settings = target_settings(config, url)
    with closing(open_target(settings)) as database:
        received = b""
        if not _is_there(orders, 0):
            delivery.begin(database, ExecRun.read(facts))
            if not _is_there(orders, LINGER_S):
                return
        while more := os.read(orders, 1 << 20):
            received += more
        run = ExecRun.read(marshal.loads(received)) if received else ExecRun.read(facts).killed()
        delivery.end(database, run)
        with suppress(OSError):
            os.write(reply, RECORDED)
        os.close(reply)
        delivery.deliver(database, spool_address(config, url))
        refusals(config, url).over((), SYSTEM.now())
        settling.tidy(database, config, local=config is None and url is None)


def _is_there(orders: int, within_s: float) -> bool:
    """Wait up to *within_s* for the outcome, or for exec to exit. Return False if neither happens in that time."""
    ready, _, _ = select.select([orders], [], [], within_s)
    return bool(ready)
