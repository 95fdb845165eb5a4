"""One message out by one channel, within its time, whatever servers and name servers do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from cronjobs.alerts.texts import Message
from cronjobs.config.settings import AlertChannel, CommandChannel, MailChannel, Settings
from cronjobs.masking import mask
from cronjobs.text import one_line

CHANNEL_S: Final = 10.0
LONGEST_ERROR: Final = 300


def deliver(channel: AlertChannel, message: Message, settings: Settings, timeout_s: float = CHANNEL_S) -> str | None:
    """Send *message*; return why that failed, masked, or None. Never raises."""
    way = channel.way

    def send() -> None:
        # Modules of a channel are loaded where it is used: ssl and the mail package take longer than the tick.
        if isinstance(way, MailChannel):
            from cronjobs.alerts import mail

            mail.send(way, message, timeout_s)
        elif isinstance(way, CommandChannel):
            from cronjobs.alerts import command

            command.send(way, message, timeout_s, settings.folder)
        else:
            from cronjobs.alerts import webhook

            webhook.send(way, message, timeout_s)

    error = within(timeout_s, send)
    return None if error is None else one_line(mask(error, settings.secrets), LONGEST_ERROR)


def within(seconds: float, send: Callable[[], None]) -> str | None:
    """Call *send* in a thread; return what was wrong, or None.

    A thread, as looking up a name has no time limit, and a server that sends a byte a second meets every limit of a
    socket. One that hangs is left behind: the process ends without it. What it sends after all is sent again.
    """
    errors: list[str] = ["no answer came in time"]

    def run() -> None:
        try:
            send()
            errors.clear()
        except Exception as error:  # whatever a library makes of what a server says
            errors[0] = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

    thread = threading.Thread(target=run, name="cronjobs-alert", daemon=True)
    thread.start()
    thread.join(seconds)
    found = list(errors)
    if thread.is_alive():
        return f"no answer within {seconds:.0f} s"
    return found[0] if found else None
