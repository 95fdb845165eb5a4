"""Which facts show that ticks come and schedules run, as ``health`` gathers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from cronjobs.config.settings import Settings
from cronjobs.crontime.timing import newest_between
from cronjobs.model import Status, in_zone
from cronjobs.schedules.applying import silence_after
from cronjobs.schedules.definition import schedule_from_definition
from cronjobs.schedules.planning import read
from cronjobs.store import listing
from cronjobs.store import unresolved as store
from cronjobs.store.enqueue import job_status
from cronjobs.store.schedules import StoredSchedule, ledger_between
from cronjobs.store.unresolved import Deaths, Happened

DIFFERENT_FILES: Final = timedelta(minutes=15)
RUNS_LOOKED_AT: Final = 10  # of a schedule, if its newest run did not go well
ASKED_AT_MOST: Final = 2000  # schedules whose newest run did not go well
LONGEST_GRACE: Final = timedelta(days=366)
ONE_TICK: Final = timedelta(minutes=1)


# --- when ticks are expected ------------------------------------------------------------------------------------------


def late_after(settings: Settings) -> timedelta:
    """A due job is late after this: two minutes if cron starts a tick each minute."""
    return settings.run.every + timedelta(minutes=1)


def quiet_after(settings: Settings) -> timedelta:
    """Without a tick for so long something is wrong: three minutes if cron starts one each minute."""
    return 2 * settings.run.every + timedelta(minutes=1)


def last_sign(ticks: Sequence[Mapping[str, Any]]) -> datetime | None:
    """When a tick last showed signs of life: its row is written as it starts to work, and as it ends.

    Looks at the last tick by id and those before it in time: a tick whose clock was years ahead would count for years.
    """
    newest = max(ticks, key=lambda tick: tick["id"], default=None)
    if newest is None:
        return None
    signs: list[datetime] = [
        tick["finished_at"] or tick["started_at"]
        for tick in ticks
        if tick["started_at"] - newest["started_at"] <= ONE_TICK
    ]
    return max(signs)


def ticking(ticks: Sequence[dict[str, Any]], now: datetime, settings: Settings) -> list[dict[str, Any]]:
    """The last ticks of the hosts that tick now."""
    return [tick for tick in ticks if abs(now - (tick["finished_at"] or tick["started_at"])) <= quiet_after(settings)]


# --- the facts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watched:
    """The facts. ``lately`` has the newest ledger rows of the schedules whose newest one did not go well."""

    deaths: Deaths = field(default_factory=lambda: Deaths(0, None))
    lately: dict[int, list[Happened]] = field(default_factory=dict)
    dealt_with: dict[str, datetime] = field(default_factory=dict)  # last triggered or backfilled by hand
    fires: bool = True  # a tick with schedules switched on came lately
    fired_at: datetime | None = None
    refused: dict[str, tuple[str, datetime | None]] = field(default_factory=dict)  # host → why, since
    differ_long: bool = False
    waiting: dict[str, datetime] = field(default_factory=dict)  # queue → since when a schedule's job is due there
    without_run: dict[str, str] = field(default_factory=dict)  # schedules past their grace: why, if it is known


def watch(
    connection: Connection,
    settings: Settings,
    schedules: Sequence[StoredSchedule],
    ticks: Sequence[Mapping[str, Any]],
    pauses: Sequence[Mapping[str, Any]],
    now: datetime,
) -> Watched:
    """Gather the facts in a few indexed statements; *ticks* are the last ones of each host that ticks now."""
    went_badly = store.went_badly(connection)
    unwell = [each.id for each in schedules if each.status == "active" and each.id in went_badly][:ASKED_AT_MOST]
    lately = store.lately(connection, unwell, RUNS_LOOKED_AT) if unwell else {}
    names = {schedule.id: schedule.name for schedule in schedules}
    missing = [names[id_] for id_, rows in lately.items() if missed(rows)]
    dealt_with = {name: at for name in missing if (at := store.dealt_with_at(connection, name)) is not None}
    fires = store.fired_lately(connection, silence_after(settings))
    refused = {
        tick["host"]: tick["did"]["refused"]
        for tick in ticks
        if isinstance(tick["did"], Mapping) and "refused" in tick["did"]
    }
    queue_paused = any(pause["scope"] in ("all", "queue") for pause in pauses)
    return Watched(
        deaths=store.deaths(connection),
        lately=lately,
        dealt_with=dealt_with,
        fires=fires,
        fired_at=None if fires else store.last_fired_at(connection),
        refused={host: (str(why), store.refused_since(connection, host)) for host, why in refused.items()},
        differ_long=_differ_long(connection, settings, ticks),
        waiting=store.scheduled_and_waiting(connection) if queue_paused else {},
        without_run={
            schedule.name: why
            for schedule in schedules
            if schedule.status == "active" and (why := _without_run(connection, schedule, now))
        },
    )


def _differ_long(connection: Connection, settings: Settings, ticks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the files that differ now differed fifteen minutes ago: during a deploy they do for one or two."""
    if len({tick["fingerprint"] for tick in ticks if tick["fingerprint"]}) < 2:
        return False
    window = silence_after(settings)
    now = store.files_between(connection, window, timedelta(0))
    before = store.files_between(connection, DIFFERENT_FILES + window, DIFFERENT_FILES)
    return len(now & before) > 1


def missed(rows: Sequence[Happened]) -> Happened | None:
    """The newest row of missed runs, if no run has gone well since."""
    for row in rows:
        if row.went_well:
            return None
        if row.outcome == "missed":
            return row
    return None


def _without_run(connection: Connection, stored: StoredSchedule, now: datetime) -> str | None:
    """Why a schedule with a ``grace`` has not run for its last occurrence or any later one; None: it has."""
    if isinstance(stored.definition, dict) and "grace_s" not in stored.definition:
        return None  # like nearly all, of which there may be ten thousand
    try:
        schedule = schedule_from_definition(stored.name, stored.definition)
        if schedule.grace is None:
            return None
        when = read(stored.name, stored.definition).when
    except ValueError as error:
        return f"its definition cannot be read: {error}"
    began = listing.defined_at(connection, stored.name) or now
    last = newest_between(when, max(began, now - LONGEST_GRACE), now - schedule.grace, 1)
    if not last:
        return None
    rows = ledger_between(connection, stored.id, last[0], now)
    states = [(row, None if row.job_id is None else job_status(connection, row.job_id)) for row in rows]
    if any(row.outcome in ("enqueued", "coalesced") and state in (Status.SUCCEEDED, None) for row, state in states):
        return None  # None: pruned, so it ended long ago
    due = f"due {in_zone(last[0], ZoneInfo(schedule.timezone)).isoformat(timespec='minutes')}"
    if not states:
        return f"{due}: held back, {stored.paused}" if stored.paused else f"{due}: no tick has settled it"
    row, state = states[-1]
    if row.outcome == "enqueued":
        return f"{due}: job {row.job_id} is {state}"
    return f"{due}: {row.outcome} ({row.reason})"
