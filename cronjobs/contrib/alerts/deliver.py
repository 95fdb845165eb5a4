"""Deliver messages through all channels in parallel, within a time limit, however slow servers and DNS are."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from cronjobs.clock import SYSTEM
from cronjobs.contrib.alerts.texts import Message
from cronjobs.engine.config.settings import AlertChannel, CommandChannel, MailChannel
from cronjobs.masking import mask
from cronjobs.model import rough
from cronjobs.text import one_line

CHANNEL_S: Final = 10.0
LEAST_S: Final = 1.0  # with less time than this left, try no channel
LONGEST_ERROR: Final = 300


def deliver(
    messages: Mapping[str, Message],
    channels: Mapping[str, AlertChannel],
    folder: Path,
    timeout_s: float = CHANNEL_S,
) -> Iterator[tuple[str, str | None]]:
    """Send *messages* (channel name → message) in parallel. Never raises.

    As soon as a channel is done, yield its name with the masked error, or with None if the message was delivered.

    Each channel has its own thread, since a DNS lookup has no time limit, and a server that sends a byte a second never
    lets a socket time out. The process exits without waiting for a thread that hangs. If that thread still delivers its
    message, the message is sent twice, because it was marked as failed.
    """
    give_up_at = SYSTEM.monotonic() + timeout_s
    answers: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()
    no_answer = f"no answer within {rough(timedelta(seconds=timeout_s))}"

    def run(name: str) -> None:
        error: str | None = "the channel's thread ended without a result"
        try:
            _send(channels[name], messages[name], folder, timeout_s)
            error = None
        except Exception as failure:  # a library may raise any exception on a bad response
            # The socket may time out first. urllib wraps that error in its own, as `reason`.
            gave_up = isinstance(getattr(failure, "reason", failure), TimeoutError)
            error = no_answer if gave_up else _in_words(failure)
        finally:
            answers.put((name, error))

    for name in messages:
        thread = threading.Thread(target=run, args=(name,), name=f"cronjobs-alert-{name}", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as failure:  # the process or memory limit is reached
            answers.put((name, _in_words(failure)))
    waiting = list(messages)
    while waiting:
        try:
            name, error = answers.get(timeout=max(0.0, give_up_at - SYSTEM.monotonic()))
        except queue.Empty:
            break
        waiting.remove(name)
        yield name, None if error is None else one_line(mask(error, messages[name].secrets), LONGEST_ERROR)
    yield from ((name, no_answer) for name in waiting)


def _send(channel: AlertChannel, message: Message, folder: Path, timeout_s: float) -> None:
    # Import here: ssl and email take longer to import than a whole tick.
    way = channel.way
    if isinstance(way, MailChannel):
        from cronjobs.contrib.alerts import mail

        mail.send(way, message, timeout_s)
    elif isinstance(way, CommandChannel):
        from cronjobs.contrib.alerts import command

        command.send(way, message, timeout_s, folder)
    else:
        from cronjobs.contrib.alerts import webhook

        webhook.send(way, message, timeout_s)


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
