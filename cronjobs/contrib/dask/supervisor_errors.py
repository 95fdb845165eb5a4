"""Leave a supervisor's error for the next tick to print. cron mails the output of ticks, not that of supervisors."""

from __future__ import annotations

from pathlib import Path

from cronjobs import masking
from cronjobs.engine.tick import mail_throttle
from cronjobs.engine.tick.trouble import place
from cronjobs.errors import CronjobsError
from cronjobs.text import one_line


def leave_error(config: Path, executor: str, error: Exception) -> None:
    why = str(error).partition("\n")[0]
    if not isinstance(error, CronjobsError):
        why = f"an internal error in cronjobs, {type(error).__name__}: {why} ({place(error)})"
    word = one_line(masking.mask_urls(f"the supervisor of executor {executor} exited: {why}"), 1000)
    mail_throttle.leave_message(config, word)
