"""``cronjobs enqueue``: add one job by hand, or from a script in any language."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, cast

import typer

from cronjobs import events
from cronjobs.clock import SYSTEM
from cronjobs.desk.cli import parse_values
from cronjobs.desk.cli.known_types import refuse_unfit, refuse_unknown, warn_if_unfit
from cronjobs.desk.cli.options import JsonOption, Source, type_names
from cronjobs.desk.cli.pauses import say_paused
from cronjobs.desk.cli.project_database import operator, our_database
from cronjobs.desk.insight.formatting import in_full, status_word
from cronjobs.engine.command import leaving
from cronjobs.engine.command.printing import complain, echo, echo_json
from cronjobs.engine.jobs.checking import new_job
from cronjobs.engine.jobs.enqueue import put_job
from cronjobs.engine.jobs.insertion import Inserted, OnConflict, RoomWait, wait_for_room
from cronjobs.engine.store.operating import states
from cronjobs.engine.store.queues import count_full, paused_scope
from cronjobs.errors import DatabaseError, QueueFull, UsageError
from cronjobs.model import duration_text


def enqueue(
    source: Source,
    job_type: Annotated[
        str, typer.Argument(metavar="TYPE", autocompletion=type_names, help="The job type, e.g. billing.send_invoice.")
    ],
    payload: Annotated[
        str, typer.Option(metavar="JSON", help='Keyword arguments: JSON, @FILE, or "-" to read stdin.')
    ] = "{}",
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=(
                "Run no earlier than this time, e.g. 2026-11-20T09:00+01:00. A time without an offset is in the file's "
                "timezone."
            ),
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option("--in", metavar="DURATION", help="Wait at least this long before running, e.g. 5m or 24h."),
    ] = None,
    queue: Annotated[str, typer.Option(help="The queue in which the job waits.")] = "default",
    priority: Annotated[int, typer.Option(metavar="N", min=0, max=9, help="0 goes first, 9 last.")] = 5,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Create no second job with this key. If a job is cancelled before it begins, its key is free again.",
        ),
    ] = None,
    on_conflict: Annotated[
        str, typer.Option(metavar="keep|replace", help="What to do if a job with this key exists and has not begun.")
    ] = "keep",
    concurrency_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help='"limits" in the file count running jobs by this key.', show_default=False),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of tries. Default: the job type's.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time limit. Default: the job type's.")
    ] = None,
    meta: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A string to pass along, e.g. trace=abc; repeatable.")
    ] = None,
    wait: Annotated[
        str,
        typer.Option(metavar="DURATION", help='How long to wait if the queue is full and has "on_full: wait".'),
    ] = "30s",
    force: Annotated[
        bool, typer.Option("--force", help="Accept a TYPE without a handler, or a payload that does not fit.")
    ] = False,
    no_import: Annotated[
        bool, typer.Option("--no-import", help="Do not import handlers, and do not check that TYPE has one.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Enqueue one job; a tick runs it when it is due.

    The command refuses a TYPE if neither this host nor any host that ticked recently has a handler for it. It also
    refuses a payload that does not fit the handler on this host. --force enqueues the job anyway. A full queue
    (max_waiting in the file) refuses the job, drops it, or makes the command wait. A dropped job is reported and
    counted.

    Exit codes: 0 enqueued, already exists, or dropped by its queue; 1 its queue is full; 2 refused: nothing was
    written; 3 configuration; 4 database.
    """
    arguments = parse_values.payload(payload)
    if at is not None and delay is not None:
        raise UsageError("give --at or --in, not both")
    for option, key in (("--idempotency-key", idempotency_key), ("--concurrency-key", concurrency_key)):
        if key is not None and not key.strip():
            raise UsageError(f"{option} is empty: is the variable set?")
    with our_database(source) as (settings, database):
        run_at = None if at is None else parse_values.instant(at, settings.timezone, "--at")
        later = None if delay is None else parse_values.span(delay, "--in")
        limit = None if timeout is None else parse_values.span(timeout, "--timeout", above_zero=True)
        new = new_job(
            job_type,
            arguments,
            run_at=run_at,
            delay=later,
            queue=queue,
            priority=priority,
            idempotency_key=idempotency_key,
            concurrency_key=concurrency_key,
            max_attempts=max_attempts,
            timeout=limit,
            meta=parse_values.pairs(meta or []),
        )
        new = replace(new, enqueued_by=f"cli:{operator()}")
        if not force and not no_import:
            refuse_unknown(settings, database, job_type)
            refuse_unfit(settings, job_type, arguments)

        def put_it() -> tuple[Inserted, str | None]:
            with database.write() as connection:
                return put_job(connection, new, cast("OnConflict", on_conflict)), paused_scope(connection, queue)

        try:
            put, paused = wait_for_room(put_it, RoomWait(parse_values.span(wait, "--wait")))
        except QueueFull as full:
            with suppress(DatabaseError), database.write() as connection:
                count_full(connection, full.queue, "refused", full.wanted)
            raise
        unfit = None
        if put.id is not None and not put.new and put.status in ("dead", "cancelled"):
            with database.read() as connection:
                state = states(connection, [put.id]).get(put.id)
            unfit = None if state is None else state.unfit_to_retry
    if as_json:
        echo_json({"id": put.id, "new": put.new, "status": put.status})
    elif put.id is None:
        echo(f'dropped: queue "{queue}" is full, and its "on_full" is "drop"')
    elif put.new or put.replaced:
        echo(f"job {put.id} {'enqueued' if put.new else 'replaced'}, due {_due(run_at, later, settings.timezone)}")
    else:
        echo(f"job {put.id} existed already ({put.had_key}, {status_word(put.status or '')})")
    if put.id is not None and put.had_key is not None and put.had_key != job_type:
        complain(str(events.key_of_another_type(job_type, put.had_key, put.replaced, put.id, 1).facts["error"]))
    elif not put.new and put.status in ("dead", "cancelled"):
        again = f'to run that job again: "cronjobs jobs retry {put.id}"'
        if unfit is not None:
            again = f"that job cannot be retried, because {unfit}"
        complain(f"job {put.id} has used the key, so no new job was enqueued; {again}")
    say_paused(paused if put.new or put.replaced else None)
    if put.id is not None and (put.new or put.replaced) and not no_import:
        warn_if_unfit(settings, job_type, arguments, f"Job {put.id} waits", f"cronjobs jobs cancel {put.id}")
    leaving.leave(0, stuck=False)


def _due(run_at: datetime | None, later: timedelta | None, timezone: str) -> str:
    if run_at is not None:
        passed = ". This time has passed, so the job is due now" if run_at <= SYSTEM.now() else ""
        return in_full(run_at, timezone) + passed
    return f"in {duration_text(later)}" if later else "now"
