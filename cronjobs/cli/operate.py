"""``cronjobs jobs retry`` and ``jobs cancel``: what an operator does to jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cronjobs.cli.setting import ConfigOption, UrlOption, complain, echo
from cronjobs.model import Status

if TYPE_CHECKING:
    from sqlalchemy import Connection

IdsArgument = Annotated[list[int], typer.Argument(metavar="ID…", help="The jobs, by id.", show_default=False)]
WhyOption = Annotated[str | None, typer.Option("--why", metavar="TEXT", help="Kept in the audit trail.")]


def retry(
    ctx: typer.Context,
    ids: IdsArgument,
    why: WhyOption = None,
    config: ConfigOption = None,
    database_url: UrlOption = None,
) -> None:
    """Put dead, cancelled or waiting failed jobs back: due now, with all their tries again.

    Their history stays. Exit code 1: one of them is running, has succeeded, or is not there.
    """
    from cronjobs.store import operating

    def one(connection: Connection, job_id: int, _said: str) -> tuple[str, bool]:
        match operating.retry(connection, job_id):
            case Status.DEAD | Status.CANCELLED | Status.FAILED:
                return "is queued again, due now", True
            case Status.QUEUED:
                return "waits already, nothing to do", False
            case was:
                return _cannot(was, "retry"), False

    _each(ctx, ids, "retry", why, config, database_url, one)


def cancel(
    ctx: typer.Context,
    ids: IdsArgument,
    why: WhyOption = None,
    config: ConfigOption = None,
    database_url: UrlOption = None,
) -> None:
    """Call jobs off: waiting ones at once, running ones at their runner's next heartbeat.

    A command is stopped then, with everything it started; a handler is told by ctx.check() and ctx.cancelled. Exit code
    1: one of them has ended already, or is not there; that changes nothing.
    """
    from cronjobs.store import operating

    def one(connection: Connection, job_id: int, said: str) -> tuple[str, bool]:
        match operating.cancel(connection, job_id, said):
            case Status.QUEUED | Status.FAILED:
                return "is cancelled", True
            case Status.RUNNING:
                return "is running: it is asked to stop at its runner's next heartbeat", True
            case was:
                return _cannot(was, "cancel"), False

    _each(ctx, ids, "cancel", why, config, database_url, one)


def _cannot(was: Status | None, action: str) -> str:
    return "is not there" if was is None else f"is {was}: nothing to {action}"


def _each(
    ctx: typer.Context,
    ids: list[int],
    action: str,
    why: str | None,
    config: Path | None,
    database_url: str | None,
    one: Callable[[Connection, int, str], tuple[str, bool]],
) -> None:
    from cronjobs.cli.ours import operator, our_database
    from cronjobs.identity import Identity
    from cronjobs.store.sql import database_now
    from cronjobs.store.ticks import record
    from cronjobs.text import clean, one_line

    reason = None if why is None else one_line(clean(why), 500)
    said = f"cancelled by {operator()}" + (f": {reason}" if reason else "")
    done = True
    with our_database(ctx, config, database_url) as (_, database):
        for job_id in dict.fromkeys(ids):
            with database.write() as connection:
                told, went = one(connection, job_id, said)
                if went:
                    record(
                        connection,
                        action=action,
                        subject=f"job {job_id}",
                        actor=operator(),
                        host=Identity.here().host,
                        why=reason,
                        at=database_now(connection),
                    )
            (echo if went else complain)(f"job {job_id} {told}")
            done = done and went
    if not done:
        raise typer.Exit(1)
