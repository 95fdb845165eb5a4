"""Find due jobs that the options of all ticks (--queue, --only) exclude.

``--limit`` excludes no job. If a tick does not start a job because of --limit, a later tick starts the job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from sqlalchemy import Connection

from cronjobs.desk.store import explaining

LOOKED_BACK: Final = timedelta(hours=1)
GROUPS: Final = 50


@dataclass(frozen=True)
class BeyondOptions:
    """Due jobs of one queue and type that no tick may claim. ``options`` are texts such as "--queue mail on web1"."""

    queue: str
    job_type: str
    jobs: int
    since: datetime
    options: tuple[str, ...]


class LateJobs(Protocol):
    """Late jobs of one queue and type."""

    @property
    def queue(self) -> str: ...
    @property
    def job_type(self) -> str: ...
    @property
    def run_at(self) -> datetime: ...
    @property
    def late(self) -> int: ...


def out_of_reach(connection: Connection, late: Sequence[LateJobs], now: datetime) -> list[BeyondOptions]:
    """Return the groups of *late* jobs that the options of all ticks since ``run_at`` exclude."""
    if not late:
        return []
    begin = max(min(row.run_at for row in late), now - LOOKED_BACK)
    records = explaining.records_between(connection, begin, now)
    found = []
    for row in late[:GROUPS]:
        since_due = [tick for tick in records if tick.started_at >= row.run_at]
        place = {"queue": row.queue, "job_type": row.job_type}
        excluded = [(tick, options) for tick in since_due if (options := options_against(tick, place))]
        if excluded and len(excluded) == len(since_due):
            said = tuple(sorted({f"{text} on {tick.host}" for tick, text in excluded}))
            found.append(BeyondOptions(row.queue, row.job_type, row.late, row.run_at, said))
    return found


def options_against(tick: Any, place: Mapping[str, Any]) -> str | None:
    """Return the tick's options, as typed, that exclude jobs of the queue and type in *place*, or None."""
    options = tick.did.get("options") if isinstance(tick.did, dict) else None
    if not isinstance(options, dict):
        return None
    wants = {"queue": place["queue"], "only": place["job_type"]}
    against = [name for name, own in wants.items() if options.get(name, own) != own]
    return " ".join(f"--{name} {options[name]}" for name in against) or None
