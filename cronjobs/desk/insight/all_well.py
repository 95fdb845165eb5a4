"""Choose the text that a view shows if there is no finding."""

from __future__ import annotations

from typing import Final

from cronjobs.desk.crontab.other_blocks import runs_twice
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.releasing import Holders
from cronjobs.engine.config.settings import Settings

ALL_WELL: Final = "all well"
WELL: Final = "ticks are running, no job is late, no dead job needs attention, no schedule is behind"
WELL_WITHOUT_PROJECT: Final = "no failed run of cronjobs exec needs attention, and no run is overdue"


def without_finding(health: Health, settings: Settings) -> tuple[str, str]:
    """Return ALL_WELL and a text, or "so far" and a text if something may be wrong although there is no finding.

    Something may be wrong if the process of this host's last tick has died, or if both cron and ticks run some lines of
    this user's crontab. The processes and crontabs of other hosts cannot be checked from here.
    """
    holders = Holders()
    for tick in health.ticking(settings.run.every):
        if tick["finished_at"] is None and holders.tick_is_gone(tick):
            return "so far", (
                f"no finding, but the last tick of host {tick['host']} died without recording its end; the next tick "
                "continues its work"
            )
    if twice := runs_twice(settings):
        return "so far", f"no finding, but {twice}"
    return ALL_WELL, WELL_WITHOUT_PROJECT if settings.without_project else WELL
