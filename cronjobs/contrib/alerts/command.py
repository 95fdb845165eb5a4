"""Alerts through a user's program, which gets the message as JSON on stdin."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from cronjobs.contrib.alerts.texts import Message, as_json
from cronjobs.engine.config.settings import CommandChannel
from cronjobs.engine.execution import strays
from cronjobs.masking import mask
from cronjobs.model import rough


class CommandRefused(OSError):
    """The program did not exit in time, or exited with a nonzero status."""


# Kill the program this long before the caller's time limit, so that the caller gets the error in time.
KILLED_BEFORE_S: Final = 0.5


def send(channel: CommandChannel, message: Message, timeout_s: float, folder: Path) -> None:
    """Run the channel's program in *folder*, in its own session, with the message as JSON on its stdin.

    If the program does not exit in time, kill its whole session. Raises OSError.
    """
    timeout_s = max(KILLED_BEFORE_S, timeout_s - KILLED_BEFORE_S)
    process = subprocess.Popen(
        channel.arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        start_new_session=True,
    )
    strays.OUR_PROCESSES.add(process.pid)
    try:
        said, _ = process.communicate(json.dumps(as_json(message)).encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        raise CommandRefused(f"the program did not exit within {rough(timedelta(seconds=timeout_s))}") from None
    finally:
        _reap(process)
    if process.returncode:
        # Mask before picking the last line, since a secret may span several lines.
        shown = mask(said.decode(errors="replace"), message.secrets)
        last = next((line for line in reversed(shown.splitlines()) if line.strip()), "")
        raise CommandRefused(f"exit status {process.returncode}" + (f": {last.strip()}" if last else ""))


def _reap(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    process.wait()
    strays.OUR_PROCESSES.discard(process.pid)
