"""``cronjobs effects …``: list recorded side effects, and settle those with an unknown outcome."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from sqlalchemy import Connection

from cronjobs.desk.cli.commands import Commands
from cronjobs.desk.cli.options import JsonOption, Source, WhyOption
from cronjobs.desk.cli.output import columns_of, table, width, write_list
from cronjobs.desk.cli.project_database import by_hand, our_database, snapshot
from cronjobs.desk.insight.formatting import Times, counted, safe
from cronjobs.desk.insight.releasing import Holders
from cronjobs.engine.command.printing import complain, echo
from cronjobs.engine.rules.payload import BadJson, result_json
from cronjobs.engine.store import effects as ledger
from cronjobs.engine.store import operating
from cronjobs.engine.store.effects import Record
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.store.ticks import record
from cronjobs.errors import CronjobsError, EffectUnknown, UsageError
from cronjobs.masking import hidden_json
from cronjobs.text import ERROR_LIMIT, one_line

app = Commands("List side effects, and settle those with an unknown outcome.")

LISTED_JOBS = 1000


class Standing(StrEnum):
    """The state of an effect, as the list shows it."""

    # an attempt began the effect, but the attempt or its process ended before it recorded an outcome
    UNKNOWN = "unknown"
    STOPPED = "stopped"  # the effect's outcome is unknown, and a job died because of that
    SKIPPED = "skipped"  # the effect's outcome is unknown, but on_unknown counted the effect as done
    RUNNING = "running"
    DONE = "done"


class Verdict(StrEnum):
    DONE = "done"
    NOT_DONE = "not-done"


# --- list -------------------------------------------------------------------------------------------------------------


@app.command("list", epilog="For example: cronjobs effects list --state unknown")
def list_effects(
    source: Source,
    state: Annotated[
        Standing | None,
        typer.Option(metavar="STATE", help=f"Only effects in this state: {', '.join(Standing)}. Default: all."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="TEXT", help="Only effects whose key has this prefix.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1_000_000, help="Show at most this many.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List effects, the most recently begun first.

    An unknown effect was begun, but its outcome was never recorded. A stopped effect is an unknown effect that made its
    job die. If the job died for another reason or was cancelled, the effect stays unknown. A skipped effect is unknown,
    but was counted as done. "Repeats" counts how often the effect was repeated because its outcome was
    unknown; a repeated effect may have happened more than once. --json prints an array with one object per effect; the
    keys are the columns of cronjobs_effects, and "standing" is the state shown in this list.
    """
    with snapshot(source, only_database=True) as (_, connection, times):
        holders = Holders()
        gone = [job.id for job in ledger.performers(connection) if holders.is_gone(job.locked_by)]
        rows = ledger.list_effects(connection, standing=state, prefix=key, gone=gone, limit=limit + 1)
    nothing = "no effect" if state is None and key is None else "no such effect"
    write_list([columns_of(row) for row in rows], limit, as_json, lambda shown: _table(shown, times), nothing)


def _table(effects: Sequence[Mapping[str, Any]], times: Times) -> list[str]:
    room = width()
    rows = [
        [
            safe(effect["key"]),
            effect["standing"],
            safe(effect["job_id"]),
            times.ago(effect["begun_at"]),
            "" if effect["recorded_at"] is None else times.ago(effect["recorded_at"]),
            str(effect["repeats"] or ""),
            "" if effect["result"] is None else safe(_plain(effect["result"])),
        ]
        for effect in effects
    ]
    head = ["key", "state", ">job", "begun", "recorded", ">repeats", "result"]
    return table(rows, head, room=room, at_most={0: room // 2})


def _plain(result: Any) -> str:
    return "cannot be read" if isinstance(result, BadJson) else hidden_json(result)


# --- settle -----------------------------------------------------------------------------------------------------------


@app.command(epilog="For example: cronjobs effects settle invoice-email:42 done --why 'it is in the outbox'")
def settle(
    source: Source,
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help='The keys, as "cronjobs effects list" prints them.')],
    verdict: Annotated[Verdict, typer.Argument(metavar="done|not-done", help="Whether the effects happened.")],
    result: Annotated[
        str | None, typer.Option("--result", metavar="JSON", help='The result for later attempts; only with "done".')
    ] = None,
    why: WhyOption = None,
) -> None:
    """Record whether effects with an unknown outcome happened.

    With done, an effect counts as recorded, and no attempt repeats it. With not-done, the effect counts as never begun,
    and the next attempt performs it. The command lists the jobs that died because of the effects, and the dead or
    cancelled jobs that began them. These jobs run again only when you retry them. "done --result" also adds a result to
    an effect that is recorded without one. Exit code 1: an effect is recorded already, a job is performing an effect
    now, or an effect does not exist. In these cases the command changes nothing.
    """
    written = _result(result, verdict)
    dead: dict[int, None] = {}
    began: dict[int, None] = {}  # jobs that began an effect, and then ended for another reason
    with our_database(source) as (_, database), database.write() as connection:
        for key in dict.fromkeys(keys):
            found = _settled(connection, key, verdict, written)
            record(
                connection,
                action="settle",
                subject=f"effect {found.key}",
                why=why,
                detail={"as": str(verdict), "was": found.state, "job_id": found.job_id, "attempt": found.attempt},
                at=database_now(connection),
                **by_hand(),
            )
            # Find the jobs by their error, which is the text of EffectUnknown, truncated as the worker stores it.
            dead |= dict.fromkeys(ledger.dead_of(connection, one_line(str(EffectUnknown(found.key)), ERROR_LIMIT // 2)))
            if found.job_id is not None:
                began[found.job_id] = None
        states = operating.states(connection, [*dead, *began])
        fit = {
            job_id
            for job_id, state in states.items()
            if state.status in ("dead", "cancelled") and state.unfit_to_retry is None
        }
    without = ", without a result" if written is None else ""
    done = f"is recorded as done{without}: no attempt will repeat it"
    undone = "counts as never begun: if there is a later attempt, it will perform the effect"
    for key in dict.fromkeys(keys):
        echo(f"effect {safe(key)} {done if verdict is Verdict.DONE else undone}")
    its = "this effect" if len(keys) == 1 else "one of these effects"
    _say_retry([job_id for job_id in dead if job_id in fit], f"died because of {its}")
    _say_retry([job_id for job_id in began if job_id in fit and job_id not in dead], f"began {its} and did not succeed")


def _say_retry(ids: Sequence[int], what: str) -> None:
    """Say which jobs can run again, in one command that retries all of them."""
    if not ids:
        return
    which, them = (f"job {ids[0]}", "the job") if len(ids) == 1 else (f"{len(ids):,} jobs", "them")
    echo(f"{which} {what}. To run {them} again: cronjobs jobs retry {' '.join(map(str, ids[:LISTED_JOBS]))}")
    if len(ids) > LISTED_JOBS:
        left = counted(len(ids) - LISTED_JOBS, "more job")
        complain(f"this command leaves out {left}. To list all dead jobs: cronjobs jobs list --status dead")


def _settled(connection: Connection, key: str, verdict: Verdict, result: str | None) -> Record:
    """Write the verdict, and return the effect as it was before. Raises CronjobsError if there is nothing to settle."""
    found = ledger.find(connection, key)
    if found is None:
        raise CronjobsError(f'there is no effect {safe(key)}: "cronjobs effects list" lists all effects')
    adds_result = verdict is Verdict.DONE and result is not None and found.result is None
    if found.state == "recorded" and not adds_result:
        raise CronjobsError(
            f"the effect {safe(key)} is recorded as done and is never repeated: nothing was changed. To do it "
            "again, use a new key"
        )
    if found.running and found.state == "begun":
        [holder] = [job.locked_by for job in ledger.performers(connection) if job.id == found.job_id]
        if Holders().is_gone(holder):
            raise CronjobsError(
                f"job {found.job_id} began the effect {safe(key)}, and the job's process is gone: wait until a tick "
                f"has recorded the loss, or type: cronjobs jobs release {found.job_id}"
            )
        raise CronjobsError(f"job {found.job_id} is performing the effect {safe(key)} now: wait until the job ends")
    if verdict is Verdict.DONE:
        ledger.settle(connection, key, result)
    else:
        ledger.remove(connection, key)
    return found


def _result(given: str | None, verdict: Verdict) -> str | None:
    """Return ``--result`` as JSON text, validated like a handler's result."""
    if given is None:
        return None
    if verdict is Verdict.NOT_DONE:
        raise UsageError('--result goes only with "done": an effect that was not done has no result')
    try:
        written, fault = result_json(json.loads(given))
    except (ValueError, RecursionError):
        raise UsageError("""--result is not JSON: write it like --result '{"message_id": "a1"}'""") from None
    if fault:
        raise UsageError(f"--result: {fault.removeprefix('the result was not kept: ')}")
    return written
