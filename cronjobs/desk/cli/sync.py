"""``cronjobs sync``: apply the file's schedules, or show what would change."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from typing import Annotated, Any

import typer
from sqlalchemy import Connection

from cronjobs.desk.cli.loading import load_settings
from cronjobs.desk.cli.options import JsonOption, Source
from cronjobs.desk.cli.project_database import by_hand, missing_file, our_database
from cronjobs.engine.command.database import open_database
from cronjobs.engine.command.printing import coloured, complain, echo, echo_json
from cronjobs.engine.config.settings import ScheduleSettings, Settings
from cronjobs.engine.schedules import sync as core
from cronjobs.engine.schedules.changes import SyncPlan, compare
from cronjobs.engine.schedules.definition import definition
from cronjobs.engine.store import queues
from cronjobs.engine.store.meta import require_ours
from cronjobs.engine.store.schedules import StoredSchedule, all_schedules
from cronjobs.engine.tick.log import Log
from cronjobs.errors import SchemaMissing
from cronjobs.model import duration_text


def sync(
    source: Source,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would change; change nothing.")] = False,
    allow_removals: Annotated[
        bool,
        typer.Option(
            "--allow-removals",
            help="Apply the file even if it would retire all schedules, or at least three and more than half of them.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Apply the file's schedules now, without waiting for a tick.

    A tick does the same by itself when a host's file is new or has changed. The command first settles the occurrences
    that are due under an old definition. Existing jobs stay. The command prints "+" for a new schedule, "~" with the
    changes for a changed schedule, ">" for a renamed schedule, "-" for a schedule that no longer fires, and "~" for a
    queue whose cap changes.

    Exit codes: 0 done or planned, 1 refused, 3 an entry of the file is bad (the others are applied), 4 database.
    """
    applied = False
    left: tuple[str, ...] = ()
    if plan:
        settings = load_settings(source)
        stored, todo = planned(settings)
    else:
        with our_database(source, adopt=True) as (settings, database):
            with database.read() as connection:
                stored = _stored(connection)
            emit = Log(settings.log).write
            done = core.sync(database, settings, emit, allow_removals=allow_removals, **by_hand())
            todo, applied, left = done.plan, done.applied, done.left
    refused = None if allow_removals else todo.refused
    was = {new: old for old, new in todo.rename}
    changes = {name: _changes(settings.schedules, stored[was.get(name, name)].definition, name) for name in todo.change}
    if as_json:
        facts = {"add": todo.add, "change": changes, "remove": todo.remove, "rename": renamed(todo), "refused": refused}
        facts |= {"cap": [vars(cap) for cap in todo.cap], "uncap": todo.uncap}
        echo_json({"applied": applied} | facts | {"problems": [str(problem) for problem in settings.problems]})
    else:
        _print_plan(settings.schedules, todo, changes)
    for problem in settings.problems:
        complain(str(problem))
    if refused:
        complain(refused)
    elif not plan and not applied:
        some = f"{', '.join(left[:10])}{', …' if len(left) > 10 else ''}" or "all"
        complain(
            f"only part of the file was applied; not yet applied: {some}. The reason: a tick is settling due "
            "occurrences, or an open transaction holds a capped queue. The next tick with this file will apply the "
            "rest. To apply the rest sooner, run this command again"
        )
    if refused or not (plan or applied):
        raise typer.Exit(1)
    if todo.empty and not as_json:
        complain("no schedule changes, and no queue's cap changes")
    if settings.problems:
        raise typer.Exit(3)


def planned(settings: Settings) -> tuple[dict[str, StoredSchedule], SyncPlan]:
    """Return the definitions in force and the planned changes. Nothing is created, not even a SQLite file."""
    stored, caps = {}, {}
    if missing_file(settings) is None:
        with closing(open_database(settings)) as database, database.read() as connection:
            try:
                require_ours(connection, settings)
                stored, caps = _stored(connection), queues.caps_in_force(connection)
            except SchemaMissing:
                if not database.is_sqlite:
                    raise
    return stored, compare(settings, stored.values(), caps)


def _stored(connection: Connection) -> dict[str, StoredSchedule]:
    return {schedule.name: schedule for schedule in all_schedules(connection)}


def _changes(schedules: Mapping[str, ScheduleSettings], stored: Any, name: str) -> dict[str, Any]:
    """Map each changed key to its old and new value. A payload's values are left out, since they may be secret."""
    written = definition(schedules[name])
    stored = stored if isinstance(stored, dict) else {}  # another program may have written an unreadable definition
    found: dict[str, Any] = {}
    for key in written:
        if stored.get(key) == written[key]:
            continue
        if key in ("payload", "secret_keys"):
            found["payload"] = "changed"
        else:
            found[key] = {"from": stored.get(key), "to": written[key]}
    return found


def _print_plan(
    schedules: Mapping[str, ScheduleSettings], todo: SyncPlan, changes: Mapping[str, dict[str, Any]]
) -> None:
    for name in todo.add:
        echo(coloured(f"+ {name}: {_when(schedules, name)} → {schedules[name].job}", "green"))
    for old, new in todo.rename:
        echo(coloured(f"> {old} → {new}", "yellow"))
    for name in todo.change:
        said = [_change(key, value) for key, value in changes.get(name, {}).items()]
        echo(coloured(f"~ {name}: {'; '.join(said)}", "yellow"))
    for name in todo.remove:
        echo(coloured(f"- {name}", "red"))
    for cap in todo.cap:
        echo(coloured(f"~ queue {cap}", "yellow"))
    for name in todo.uncap:
        echo(coloured(f"~ queue {name}: no cap", "yellow"))


def _change(key: str, value: Any) -> str:
    name = key.removesuffix("_s")
    if value == "changed":
        return f"{name} changed"
    sides = [
        duration_text(timedelta(seconds=side)) if name != key and side is not None else side
        for side in (value["from"], value["to"])
    ]
    return f"{name} {' → '.join('none' if side is None else str(side) for side in sides)}"


def renamed(todo: SyncPlan) -> list[dict[str, str]]:
    return [{"from": old, "to": new} for old, new in todo.rename]


def _when(schedules: Mapping[str, ScheduleSettings], name: str) -> str:
    schedule = schedules[name]
    if schedule.every is not None:
        return f"every {duration_text(schedule.every)}"
    return f'"{schedule.cron}" {schedule.timezone}'
