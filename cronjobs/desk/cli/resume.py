"""``cronjobs resume``: end a pause, and report what becomes of the occurrences that it held back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cronjobs.desk.cli.options import JsonOption, Source, WhyOption
from cronjobs.desk.cli.pauses import (
    ResumeAllOption,
    ResumeQueueOption,
    ScheduleArgument,
    print_in_force,
    record_change,
    target,
)
from cronjobs.desk.cli.project_database import our_database
from cronjobs.desk.insight.formatting import counted, in_full, safe
from cronjobs.desk.rules import pausing
from cronjobs.engine.command.printing import complain, echo
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.rules.occurrences import Range
from cronjobs.engine.schedules.materialise import materialise
from cronjobs.engine.schedules.pauses import held_back_now
from cronjobs.engine.store import schedules as store
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.tick.log import Log
from cronjobs.errors import DatabaseError
from cronjobs.events import Event


def resume(
    source: Source,
    schedule: ScheduleArgument = None,
    everything: ResumeAllOption = False,
    queue: ResumeQueueOption = None,
    why: WhyOption = None,
    as_json: JsonOption = False,
) -> None:
    """End one pause (of everything, a queue or a schedule); other pauses stay.

    The next tick runs the jobs that waited. Each schedule's catch_up decides what becomes of the occurrences that
    waited. The command prints the outcome, and then the pauses that are still in force.
    """
    scope, name = target(everything, queue, schedule)
    with our_database(source) as (settings, database):
        with database.write() as connection:
            now = database_now(connection)
            held = {} if scope == "queue" else held_back_now(connection)
            was_on = store.resume(connection, scope=scope, name=name, now=now)
            if was_on:
                record_change(connection, "resume", scope, name, why=why, at=now)
        what = pausing.what(scope, name)
        then = "" if scope == "schedule" else "; the next tick starts the jobs that waited"
        complain(f"resumed: {what}{then}" if was_on else f"nothing to resume: no pause of {what} is in force")
        if was_on and held:
            for line in _settle_held(database, settings, held, None if scope == "all" else name):
                (complain if as_json else echo)(line)
        print_in_force(database, settings.timezone, as_json)


def _settle_held(database: Database, settings: Settings, held: Mapping[str, Range], name: str | None) -> list[str]:
    """Settle the occurrences that were held back, and return a line for each schedule that had such occurrences.

    If *name* is given, return only this schedule's line.
    """
    log, events = Log(settings.log), []

    def emit(event: Event) -> None:
        events.append(event)
        log.write(event)

    try:
        materialise(database, emit, but=settings.disabled_schedules)
        with database.read() as connection:
            still = held_back_now(connection)
    except DatabaseError:
        complain("the pause has ended; the next tick will settle the occurrences that the pause held back")
        raise
    lines = []
    for schedule, what in sorted(held.items()):
        if name not in (None, schedule):
            continue
        its = [event for event in events if "count" in event.facts and event.facts["schedule"] == schedule]
        became = [event.facts | {"outcome": event.name.partition(".")[2]} for event in its]
        lines.append(_held_line(settings.timezone, schedule, what, became, still=schedule in still))
    return lines


def _held_line(timezone: str, schedule: str, what: Range, became: Sequence[Mapping[str, Any]], *, still: bool) -> str:
    """Return text such as "nightly: 3 occurrences waited, from … to …: 2 coalesced, 1 enqueued (job 17)"."""
    span = in_full(what.last, timezone)
    if what.count > 1:
        span = f"from {in_full(what.first, timezone)} to {span}"
    counts: dict[str, int] = {}
    for facts in became:
        counts[facts["outcome"]] = counts.get(facts["outcome"], 0) + facts["count"]
    parts = [f"{count:,} {outcome}" for outcome, count in counts.items()]
    if jobs := [str(facts["job_id"]) for facts in became if facts["outcome"] == "enqueued"]:
        parts[-1] += f" (job {', '.join(jobs[:5])}{', …' if len(jobs) > 5 else ''})"
    then = ", ".join(parts) or ("still held back by another pause" if still else "a tick is settling them")
    # Write "waited" and not "held back": some occurrences may have been due before the pause, during an outage.
    return safe(f"{schedule}: {counted(what.count, 'occurrence')} waited, {span}: {then}", 1000)
