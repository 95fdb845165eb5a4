"""Write a run of exec to the database, in a process that nobody has to wait for."""

from __future__ import annotations

import marshal
import os
import select
import signal
from contextlib import closing, suppress
from typing import Any, Final

from cronjobs.contrib.exec import RECORDED, delivery, settling
from cronjobs.contrib.exec.run import ExecRun
from cronjobs.contrib.exec.target import open_target, target_settings
from cronjobs.engine.probe.state_files import spool_address

LINGER_S: Final = 20.0  # how long to wait for the command's end; after that, free the memory
LONGEST_S: Final = 180  # the process's longest life, whatever hangs


def record(facts: dict[str, Any], config: str | None, url: str | None, orders: int, reply: int) -> None:
    """Record that the run of *facts* has begun, and its outcome if it ends within LINGER_S.

    *orders*: where the outcome is read from; *reply*: where the result is written. Raises what prevented the record.
    """
    signal.alarm(LONGEST_S)
    settings = target_settings(config, url)
    with closing(open_target(settings)) as database:
        told = b""
        if not _is_there(orders, 0):
            delivery.begin(database, ExecRun.read(facts))
            if not _is_there(orders, LINGER_S):
                return
        while more := os.read(orders, 1 << 20):
            told += more
        run = ExecRun.read(marshal.loads(told)) if told else ExecRun.read(facts).killed()
        delivery.end(database, run)
        with suppress(OSError):
            os.write(reply, RECORDED)
        os.close(reply)
        delivery.deliver(database, spool_address(config, url))
        settling.tidy(database, local=config is None and url is None)


def _is_there(orders: int, within_s: float) -> bool:
    """Wait for the outcome, or for exec's exit; return whether either came in time."""
    ready, _, _ = select.select([orders], [], [], within_s)
    return bool(ready)
