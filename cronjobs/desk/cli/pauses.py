"""The parts that ``pause`` and ``resume`` share: the target, the audit entry, the list of pauses in force."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from sqlalchemy import Connection

from cronjobs.desk.cli.options import schedule_names
from cronjobs.desk.cli.project_database import by_hand
from cronjobs.desk.insight.formatting import in_full
from cronjobs.desk.rules import pausing
from cronjobs.engine.command.printing import complain, echo, echo_json
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.checking import name_fault
from cronjobs.engine.store.schedules import pauses_in_force
from cronjobs.engine.store.ticks import record
from cronjobs.errors import UsageError
from cronjobs.text import one_line

ScheduleArgument = Annotated[
    str | None,
    typer.Argument(metavar="SCHEDULE", autocompletion=schedule_names, help="Only this schedule.", show_default=False),
]
PauseAllOption = Annotated[bool, typer.Option("--all", help="Pause everything: no job starts, and no schedule fires.")]
PauseQueueOption = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="Pause one queue: its jobs wait.", show_default=False)
]
ResumeAllOption = Annotated[bool, typer.Option("--all", help='End the pause of everything ("pause --all").')]
ResumeQueueOption = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="End the pause of this queue.", show_default=False)
]


def target(everything: bool, queue: str | None, schedule: str | None) -> tuple[str, str]:
    """Return the pause's scope and name. The name is "" for --all."""
    given = [("all", "")] * everything + [("queue", queue)] * (queue is not None)
    given += [("schedule", schedule)] * (schedule is not None)
    if len(given) != 1:
        raise UsageError("give one of: --all, --queue NAME, or a SCHEDULE")
    scope, name = given[0]
    if scope != "all" and (fault := name_fault(name)):
        raise UsageError(f"{scope} {name!r} {fault}")
    return scope, str(name)


def record_change(
    connection: Connection, action: str, scope: str, name: str, *, why: str | None, at: datetime, **detail: Any
) -> None:
    """Append "pause" or "resume" to the audit trail. Values of *detail* that are None or False are left out."""
    said = {key: value for key, value in detail.items() if value}
    subject = f"{scope} {name}".strip()
    record(connection, action=action, subject=subject, why=why, detail=said or None, at=at, **by_hand())


def print_in_force(database: Database, timezone: str, as_json: bool) -> None:
    with database.read() as connection:
        pauses = pauses_in_force(connection)
    if as_json:
        echo_json([dict(pause._mapping) for pause in pauses])
        return
    if not pauses:
        complain("nothing is paused")
    for line in pause_lines(pauses, timezone):
        echo(line)


def pause_lines(pauses: Sequence[Any], timezone: str) -> list[str]:
    """Describe each pause in one line."""
    lines = []
    for pause in pauses:
        until = f"until {in_full(pause.until, timezone)}" if pause.until is not None else "until someone resumes it"
        by = f" by {pause.by}" if pause.by else ""
        why = f": {pause.why}" if pause.why else ""
        skips = ", and skips the occurrences that come due meanwhile" if pause.skip else ""
        lines.append(one_line(f"{pausing.what(pause.scope, pause.name)} is paused{by} {until}{skips}{why}", 1000))
    return lines


def say_paused(scope: str | None) -> None:
    """Print that a pause of *scope* holds back the job that was just enqueued. If *scope* is None, print nothing."""
    if scope is not None:
        complain(f"the job waits, because {'everything' if scope == 'all' else 'its queue'} is paused")
