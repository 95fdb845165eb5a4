"""``cronjobs ack``: quiet a finding for a while."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from cronjobs.desk.cli import parse_values
from cronjobs.desk.cli.known_types import known_types
from cronjobs.desk.cli.options import JsonOption, Source, WhyOption
from cronjobs.desk.cli.output import sentence
from cronjobs.desk.cli.project_database import by_hand, jobs_database, operator, our_database
from cronjobs.desk.insight.acking import LONGEST, USUAL, acknowledge, take_ack_back
from cronjobs.desk.insight.finding import finding_object, together
from cronjobs.desk.insight.findings import Finding, judge
from cronjobs.desk.insight.formatting import Times, counted, safe
from cronjobs.desk.insight.gathering import look
from cronjobs.engine.command import leaving
from cronjobs.engine.command.printing import complain, echo, echo_json
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.store.given_up import KINDS
from cronjobs.errors import UsageError
from cronjobs.text import nearest


def ack(
    source: Source,
    finding: Annotated[
        str | None,
        typer.Argument(
            metavar="FINDING",
            help='The finding\'s key, such as "dead" or "host:web2". Without a key, "cronjobs ack" lists all findings.',
            show_default=False,
        ),
    ] = None,
    span: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long the ack lasts: 8h, 3d.")] = USUAL,
    why: WhyOption = None,
    remove: Annotated[bool, typer.Option("--remove", help="Withdraw the ack: the finding is an alarm again.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Acknowledge a finding as it stands now; without FINDING, list the findings.

    While the ack lasts, the finding raises no alarm and is shown as acknowledged. The ack covers only what began before
    the ack. The ack ends at once if the finding gets worse, if the finding disappears and comes back, or if another
    job, schedule or missed run joins the finding. An ack fixes nothing: you still have to retry or dismiss the jobs, or
    fix the cause.
    """
    # A list works even while the file is broken, as "status" does.
    lists = finding is None and not remove
    opened = (
        jobs_database(source, only_database=True, without_project=True, only_reads=True)
        if lists
        else our_database(source, without_project=True)
    )
    with opened as (settings, database):
        if remove:
            if finding is None:
                raise UsageError("--remove needs a FINDING")
            _remove(database, finding, why)
        found, now = _findings(database, settings)
        if finding is not None and not remove:
            ends = now + parse_values.span(span, "--for", above_zero=True)
            if ends - now > LONGEST:
                raise UsageError(f"--for {span}: at most {LONGEST.days}d")
            meant, host = _named(found, finding), by_hand()["host"]
            with database.write() as connection:
                acknowledge(connection, meant, until=ends, now=now, by=operator(), host=host, why=why)
            found, now = _findings(database, settings)
            # A finding of these kinds is about past events, so the ack ends the finding for good.
            if meant.kind in KINDS and not as_json:
                complain(f"{safe(finding)}: acknowledged for good")
                leaving.leave(0, stuck=False)
    done = None if finding is None or remove else finding
    _print(found, Times(now, settings.timezone), as_json, done)
    leaving.leave(0, stuck=False)  # do not wait for threads that the user's modules started


def _findings(database: Database, settings: Settings) -> tuple[list[Finding], datetime]:
    types = known_types(settings)
    with database.read() as connection:
        health = look(connection, settings, types)
    return judge(health, settings), health.now


def _named(found: Sequence[Finding], key: str) -> Finding:
    if named := [finding for finding in found if finding.key == key]:
        return together(named)
    keys = {finding.key for finding in found}
    meant = next((each for each in sorted(keys) if each.startswith(f"{key}:")), None) or nearest(key, keys)
    guess = f', did you mean "{meant}"?' if meant else '; "cronjobs ack" lists the findings'
    raise UsageError(f'there is no finding "{safe(key)}" now{guess}')


def _remove(database: Database, key: str, why: str | None) -> None:
    with database.write() as connection:
        there = take_ack_back(connection, key, by=operator(), host=by_hand()["host"], why=why)
    complain(f"{safe(key)}: no longer acknowledged" if there else f"{safe(key)}: was not acknowledged, nothing to do")


def _print(found: Sequence[Finding], times: Times, as_json: bool, done: str | None) -> None:
    """Print the findings. *done*: the key of the finding that was acknowledged just now, if any."""
    if as_json:
        echo_json([finding_object(finding) for finding in found])
        return
    if not found:
        complain("all is well: there is nothing to acknowledge")
    for finding in found:
        echo(f"{safe(finding.key)}  {sentence(finding, times)}")
        if finding.ack is not None:
            echo(f"    {ack_text(finding, times)}")
    if done is not None:
        complain(f"{safe(done)}: acknowledged")
    elif quiet := sum(finding.ack is not None for finding in found):
        complain(f"{counted(quiet, 'finding')} acknowledged")


def ack_text(finding: Finding, times: Times) -> str:
    """Return text such as "acknowledged by ada until 18:00:00: the provider is down"."""
    assert finding.ack is not None
    by = f" by {safe(finding.ack.by, 60)}" if finding.ack.by else ""
    why = f": {safe(finding.ack.why, 200)}" if finding.ack.why else ""
    return f"acknowledged{by} until {times.clock(finding.ack.until)}{why}"
