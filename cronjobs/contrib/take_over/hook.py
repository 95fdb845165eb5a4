"""The take-over's hook in ticks: it finds crontab lines whose work the ticks do, too."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from cronjobs.desk.crontab import host
from cronjobs.desk.crontab.other_blocks import runs_twice
from cronjobs.engine.tick.extras import LookingHook

WITHIN_S: Final = 1.5  # shorter than a tick waits for an extra
MOST_NOTED: Final = 20  # lines


class TakeOverHook(LookingHook):
    def facts(self) -> Mapping[str, Any]:
        """Return the doubled lines of this user's crontab, for the finding ``doubled``.

        crontab(1) is asked when the tick's work has ended, so that no job waits for it.
        """
        twice = runs_twice(self.context.settings, WITHIN_S)
        if twice is None:
            return {}
        lines = dict(islice(twice.lines.items(), MOST_NOTED))
        return {"doubled": {"user": host.user().pw_name, "lines": lines, "wrapped": bool(twice.wrapped)}}


hook = TakeOverHook
