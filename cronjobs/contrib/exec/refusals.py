"""Remember that exec reported a configuration that cannot be used, so that cron does not mail it after every run."""

from __future__ import annotations

from pathlib import Path

from cronjobs.engine.probe.state_files import spool_address
from cronjobs.engine.tick.mail_throttle import Alarm


def refusals(config: str | None, url: str | None) -> Alarm:
    return Alarm(Path(config or ""), name=f"exec-refused-{spool_address(config, url)}.json")
