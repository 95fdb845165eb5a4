"""One instant of the past: what was running, what was settled then, what was wrong, and what the rows cannot show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.config.settings import Settings
from cronjobs.insight.facts import PauseFacts
from cronjobs.insight.schedule_history import in_force, pause_from, pauses_over_time
from cronjobs.insight.watched import quiet_after
from cronjobs.store import explaining, listing
from cronjobs.store import moment as store
from cronjobs.store.sql import database_now

AROUND: Final = timedelta(minutes=1)
SHOWN: Final = 200  # attempts that ended within it


@dataclass(frozen=True)
class Waiting:
    """Jobs that were due and had not begun: how many, and since when the oldest."""

    jobs: int
    since: datetime | None


@dataclass(frozen=True)
class TickSeen:
    host: str
    began_at: datetime
    ended_at: datetime | None  # None: it is at work, or was killed
    ended: str | None


@dataclass(frozen=True)
class Moment:
    """The facts, some as plain rows. ``before`` and ``after``: the ticks beside it, if none was at work."""

    at: datetime
    now: datetime
    running: list[dict[str, Any]]  # attempts, the longest first; finished_at None: it runs now
    ended: list[dict[str, Any]]  # attempts that ended up to a minute before or after
    settled: list[dict[str, Any]]  # ledger rows that were written then
    waiting: Waiting
    dead: Waiting  # jobs that had died by then, and that nobody has dealt with to this day
    ticks: list[TickSeen]  # at work
    before: TickSeen | None
    after: TickSeen | None
    quiet: bool  # no tick came for so long that this alone was wrong
    pauses: list[PauseFacts]
    findings: list[dict[str, Any]]
    findings_from: datetime | None  # since when they are stored; None: they are not
    ticks_from: datetime | None  # the oldest tick that is kept
    kept_from: dict[str, datetime]  # older jobs may be pruned: those that succeeded, those that died
    all_runs_read: bool


def look_around(connection: Connection, at: datetime, settings: Settings) -> Moment:
    """Gather what there is about *at*, which is not in the future."""
    now = database_now(connection)
    later = [dict(row._mapping) for row in store.ended_after(connection, at)]
    running_now = [dict(row._mapping) | {"outcome": None, "finished_at": None} for row in store.running_now(connection)]
    runs = [*later, *running_now]
    running = [run for run in runs if run["started_at"] <= at]
    waited = {run["job_id"]: run["run_at"] for run in runs if run["started_at"] > at and run["run_at"] <= at}
    still, oldest = store.still_waiting(connection, at)
    begin, end = at - AROUND, at + AROUND
    at_work, before, after = _ticks(connection, at)
    limit = quiet_after(settings)
    signs = [tick.ended_at or tick.began_at for tick in (before,) if tick is not None]
    findings_from, findings = store.findings_at(connection, at)
    return Moment(
        at=at,
        now=now,
        running=sorted(running, key=lambda run: (run["started_at"], run["job_id"])),
        ended=[dict(row._mapping) for row in listing.attempts_since(connection, begin, SHOWN, until=end)][::-1],
        settled=[dict(row._mapping) for row in store.settled_between(connection, begin, end)],
        waiting=Waiting(still + len(waited), min([*waited.values(), *([oldest] if oldest else [])], default=None)),
        dead=Waiting(*store.dead_by(connection, at)),
        ticks=at_work,
        before=before,
        after=after,
        quiet=not at_work and bool(signs) and (after.began_at if after else now) - signs[0] > limit,
        pauses=_pauses(connection, at),
        findings=[dict(row._mapping) for row in findings],
        findings_from=findings_from,
        ticks_from=explaining.first_tick_at(connection),
        kept_from={name: now - getattr(settings.retention, name) for name in ("succeeded", "dead")},
        all_runs_read=len(later) < store.RUNS_READ,
    )


def _ticks(connection: Connection, at: datetime) -> tuple[list[TickSeen], TickSeen | None, TickSeen | None]:
    """Those at work, and the ones beside *at*."""
    moment = [{"number": 0, "due_at": at, "decided_at": at}]
    beside = explaining.ticks_beside(connection, moment)[0]
    at_work = [number for _, number in explaining.ticks_at_work(connection, moment)]
    rows = explaining.ticks_of(connection, [number for number in (*beside, *at_work) if number is not None])
    found = {id_: TickSeen(row.host, row.started_at, row.finished_at, row.ended) for id_, row in rows.items()}
    before, after = (None if number is None else found.get(number) for number in beside)
    return [found[number] for number in at_work if number in found], before, after


def _pauses(connection: Connection, at: datetime) -> list[PauseFacts]:
    """Those in force then: by the audit trail, and those that plain SQL wrote."""
    found = [pause for pause in pauses_over_time(store.pause_trail(connection, at)) if in_force(pause, at)]
    told = {(pause.scope, pause.name) for pause in found}
    rows = [pause_from(row) for row in explaining.pause_rows(connection)]
    found += [pause for pause in rows if in_force(pause, at) and (pause.scope, pause.name) not in told]
    return sorted(found, key=lambda pause: (pause.scope, pause.name))


def unknown(moment: Moment) -> Sequence[tuple[str, datetime | None]]:
    """What cannot be known: a sentence, and the instant that it ends with."""
    told: list[tuple[str, datetime | None]] = []
    if moment.ticks_from is None:
        told.append(("no tick has ever been recorded: nothing shows what ticks did", None))
    elif moment.at < moment.ticks_from:
        told.append(("it is before the first tick that is kept: what ticks did is known since", moment.ticks_from))
    elif not moment.ticks:
        told.append(("it is between two ticks: the rows have what ticks wrote before and after", None))
    for name, since in moment.kept_from.items():
        if moment.at < since:
            word = "succeeded" if name == "succeeded" else "died or were cancelled"
            told.append((f"jobs that {word} may have been pruned, with their attempts, if they ended before", since))
    if moment.findings_from is None:
        told.append(("findings are not stored here: what was wrong is concluded from rows alone", None))
    elif moment.at < moment.findings_from:
        told.append(("findings are stored since", moment.findings_from))
    if moment.dead.jobs or moment.running:
        told.append(("jobs that died before it and were retried or dismissed since are not counted as dead", None))
    if not moment.all_runs_read:
        told.append((f"only the first {store.RUNS_READ:,} attempts that ended after it were looked at", None))
    return told
