"""``cronjobs prune``: delete at once the rows that ticks would delete in spare time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from cronjobs.desk.cli.options import JsonOption, Source
from cronjobs.desk.cli.output import table, width, write
from cronjobs.desk.cli.progress import Progress, interruptible, is_interactive
from cronjobs.desk.cli.project_database import by_hand, our_database
from cronjobs.desk.insight.formatting import Times, counted
from cronjobs.engine.command.printing import complain, json_text
from cronjobs.engine.config.settings import Retention
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.retrying import patiently
from cronjobs.engine.store.pruning import KINDS, Past, last_tick_at, set_pruned_at
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.store.ticks import record
from cronjobs.engine.tick.pruner import Before, Pruner, would_go
from cronjobs.engine.tick.pruning import clock_jumped
from cronjobs.errors import DatabaseError
from cronjobs.model import duration_text

PATIENT_S: Final = 20.0  # how long to wait for another session's lock

WHAT: Final = {
    "succeeded": "succeeded jobs",
    "dead": "dead jobs",
    "cancelled": "cancelled jobs",
    "stripped": "payloads of keyed jobs",
    "attempts": "attempts of pruned jobs",
    "job_type_lists": "lists of job types",
}


def prune(
    source: Source,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count the rows that would be deleted, and show how old they are.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete rows past their retention now, as ticks do in their spare time.

    Like a tick, the command deletes rows in short batches, so that ticks and enqueuers can go on meanwhile. A job with
    an idempotency key first loses its payload and attempts, and is deleted once retention.keys has passed. Rows that
    another session has locked are left for the next tick. Ctrl-C stops after a batch (exit code 130). Deleted rows stay
    deleted.

    --json prints one object with dry_run, done and rows. "done" is false if Ctrl-C stopped the command. With --dry-run
    "done" is true. "rows" has one object per kind of row: table, what, rows, before, and with --dry-run oldest.
    """
    with our_database(source) as (settings, database):
        with database.read() as connection:
            now = database_now(connection)
            before, times = Before.of(settings.retention, now), Times(now, settings.timezone)
            last_tick = last_tick_at(connection)
            found = would_go(connection, before) if dry_run else {}
        done = True
        if not dry_run:
            if clock_jumped(last_tick, now):
                _doubt(times, last_tick)
            done, found = _prune(database, before, now)
    rows = _rows(found, before)
    if as_json:
        shown = rows if dry_run else [{name: value for name, value in row.items() if name != "oldest"} for row in rows]
        write([json_text({"dry_run": dry_run, "done": done, "rows": shown})])
    elif any(row["rows"] for row in rows):
        write(_lines(rows, times, settings.retention, dry_run))
    else:
        complain("nothing is older than its retention")
    if not done:
        complain("stopped; the next ticks will delete the rest")
        raise typer.Exit(130)


def _doubt(times: Times, last_tick: datetime | None) -> None:
    """Report the gap since the last tick. On a terminal, ask whether the clock is right.

    If the clock is far ahead, every row looks old.
    """
    assert last_tick is not None
    complain(f"the database's clock says {times.now_text}, and the last tick began {times.ago(last_tick)}")
    if is_interactive():
        typer.confirm("Is the clock right, and should the old rows be deleted?", abort=True, err=True)


def _prune(database: Database, before: Before, now: datetime) -> tuple[bool, dict[str, Past]]:
    """Prune. Return whether nothing is left to delete, and what was deleted. Ctrl-C stops after a batch."""
    with interruptible() as interrupted, Progress() as progress:

        def go_on() -> bool:
            progress.say(f"{counted(pruner.counts.total(), 'row')} deleted … (Ctrl-C stops)")
            return not interrupted()

        pruner = Pruner(database, before, database.clock, go_on)
        until = database.clock.monotonic() + PATIENT_S
        try:
            done = patiently(pruner.run, clock=database.clock, until=until, go_on=lambda: not interrupted())
        except DatabaseError:
            complain(f"{counted(pruner.counts.total(), 'row')} deleted before this error:")
            raise
    gone = {kind: rows for kind, rows in pruner.counts.items() if rows}
    with database.write() as connection:
        if gone:
            record(connection, action="prune", detail=gone, at=database_now(connection), **by_hand())
        if done:
            set_pruned_at(connection, now)
    return done, {kind: (rows, None) for kind, rows in gone.items()}


def _rows(found: Mapping[str, Past], before: Before) -> list[dict[str, Any]]:
    """Return a JSON object per kind of row."""
    rows = []
    for kind, (name, kept) in KINDS.items():
        count, oldest = found.get(kind, (0, None))
        limit = getattr(before, kept) if kept else None
        rows.append({"table": name, "what": kind, "rows": count, "oldest": oldest, "before": limit})
    return rows


def _lines(rows: Sequence[Mapping[str, Any]], times: Times, retention: Retention, dry_run: bool) -> list[str]:
    header = ["what", ">rows", "oldest", "kept"] if dry_run else ["what", ">rows", "kept"]
    lines = []
    for row in rows:
        if row["rows"]:
            setting = KINDS[row["what"]][1]
            kept = f"{duration_text(getattr(retention, setting))} (retention.{setting})" if setting else ""
            cells = [WHAT.get(row["what"], row["what"]), f"{row['rows']:,}", kept]
            if dry_run:
                cells.insert(2, times.clock(row["oldest"]))
            lines.append(cells)
    said = "are past their retention and would be deleted" if dry_run else "were past their retention and are deleted"
    return [f"these rows {said}, as of {times.now_text}:", *table(lines, header, room=width())]
