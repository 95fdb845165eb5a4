"""The page of job types: how often the jobs of each type end, fail and die, and how long they run and wait."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs.contrib.web.charts import HOURS, average, hour_of
from cronjobs.contrib.web.view import View
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store.counts import OTHER, TypeSum, by_type

SHOWN: Final = 200


def job_types(connection: Connection, view: View, _types: JobTypes) -> str:
    span = "30d" if view.query.get("span") == "30d" else "24h"
    found = by_type(connection, hour_of(view.times.now) - HOURS[span] + 1)
    found.sort(key=lambda each: (-each.run_micros, -each.ended, each.name))
    whole = sum(each.run_micros for each in found)
    return view.page(
        "job_types.html",
        span=span,
        job_types=[(each, _times(each), _share(each, whole)) for each in found[:SHOWN]],
        more=len(found) - SHOWN,
        other=OTHER,
    )


def _times(each: TypeSum) -> list[timedelta | None]:
    """Return the average run, longest run, average wait and longest wait of a type's jobs. Unknown values are None."""
    return [
        average(each.run_micros, each.ran),
        _span(each.longest_run),
        average(each.wait_micros, each.waited),
        _span(each.longest_wait),
    ]


def _span(micros: int | None) -> timedelta | None:
    return None if micros is None else timedelta(microseconds=micros)


def _share(each: TypeSum, whole: float) -> str:
    """Return the type's share of the time that all jobs ran, or "" if no job ran."""
    return f"{100 * each.run_micros / whole:.0f} %" if whole else ""
