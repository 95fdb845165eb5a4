"""Problems that have not been dealt with: pure functions over facts that ``store.unresolved`` reads.

Each finding has its start, and a command to type. It disappears when its cause is over: the death is retried, cancelled
or dismissed; the schedule's next run succeeds; the pause ends; a tick fires schedules again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.config.settings import Settings
from cronjobs.errors import MESSAGE_LIMIT
from cronjobs.rules.pausing import what
from cronjobs.store import listing
from cronjobs.store import unresolved as store
from cronjobs.store.schedules import StoredSchedule
from cronjobs.store.sql import database_now
from cronjobs.store.unresolved import Deaths, Happened
from cronjobs.text import one_line

FORGOTTEN_PAUSE: Final = timedelta(days=1)
LEAST_SILENCE: Final = timedelta(minutes=5)
DIFFERENT_FILES: Final = timedelta(minutes=15)
RUNS_LOOKED_AT: Final = 10  # of a schedule, if its newest run did not go well
FAILED_IN_A_ROW: Final = 3
NAMED: Final = 3  # of several schedules with the same problem; the rest are counted
ASKED_AT_MOST: Final = 2000  # schedules whose newest run did not go well


@dataclass(frozen=True)
class Finding:
    """A problem that a person has to fix. ``kind`` is for programs, ``text`` one sentence for people.

    ``since`` and ``command`` (what to type) are set if they are known and not in the text. ``alarm`` False: worth a
    look, but normal in the middle of a deploy.
    """

    kind: str
    text: str
    alarm: bool = True
    since: datetime | None = None
    command: str | None = None

    def __post_init__(self) -> None:
        # The text quotes names that anyone may have written.
        object.__setattr__(self, "text", one_line(self.text, MESSAGE_LIMIT))


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


def silence_after(settings: Settings) -> timedelta:
    """Without a tick that fires schedules for so long something is wrong: five minutes if cron ticks each minute."""
    return max(LEAST_SILENCE, 2 * settings.run.every)


def watch(
    connection: Connection,
    settings: Settings,
    schedules: Sequence[StoredSchedule],
    ticks: Sequence[Mapping[str, Any]],
    pauses: Sequence[Mapping[str, Any]],
) -> Watched:
    """Gather the facts in a few indexed statements; *ticks* are the last ones of each host that ticks now."""
    newest = store.newest_of_each(listing.last_occurrences(connection))
    now = database_now(connection)
    unwell = [
        schedule.id
        for schedule in schedules
        if schedule.status == "active" and schedule.id in newest and not _went_well(newest[schedule.id], now)
    ][:ASKED_AT_MOST]
    lately = store.lately(connection, unwell, RUNS_LOOKED_AT) if unwell else {}
    names = {schedule.id: schedule.name for schedule in schedules}
    missing = [names[id_] for id_, rows in lately.items() if _missed(rows)]
    dealt_with = {name: at for name in missing if (at := store.dealt_with_at(connection, name)) is not None}
    fires = store.fired_lately(connection, silence_after(settings))
    refused = {tick["host"]: tick["did"]["refused"] for tick in ticks if "refused" in _did(tick)}
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
    )


def _did(tick: Mapping[str, Any]) -> Mapping[str, Any]:
    return tick["did"] if isinstance(tick["did"], Mapping) else {}


def _went_well(row: Any, now: datetime) -> bool:
    """Whether a schedule's newest row needs no closer look; one in the future proves nothing, as a clock was wrong."""
    return row.last_for <= now and row.outcome in ("enqueued", "coalesced") and row.job_status in ("succeeded", None)


def _differ_long(connection: Connection, settings: Settings, ticks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the files that differ now differed fifteen minutes ago: during a deploy they do for one or two."""
    if len({tick["fingerprint"] for tick in ticks if tick["fingerprint"]}) < 2:
        return False
    window = silence_after(settings)
    now = store.files_between(connection, window, timedelta(0))
    before = store.files_between(connection, DIFFERENT_FILES + window, DIFFERENT_FILES)
    return len(now & before) > 1


# --- what is wrong ----------------------------------------------------------------------------------------------------


def deaths(found: Watched) -> Iterator[Finding]:
    count = found.deaths.count
    if count:
        more = f"{count:,} or more" if count == store.DEATHS_COUNTED else f"{count:,}"
        jobs = "1 dead job that nobody has" if count == 1 else f"{more} dead jobs that nobody has"
        text = f"{jobs} retried or dismissed"
        yield Finding("dead", text, since=found.deaths.since, command="cronjobs jobs list --status dead")


def schedules_off(found: Watched, schedules: Sequence[StoredSchedule], settings: Settings) -> Iterator[Finding]:
    if found.fires or not any(schedule.status == "active" for schedule in schedules):
        return
    minutes = round(silence_after(settings).total_seconds() / 60)
    yield Finding(
        "schedules_off",
        f"no tick of the last {minutes} minutes fires schedules: CRONJOBS_SCHEDULES is off wherever ticks come from",
        since=found.fired_at,
        command="cronjobs crontab show",
    )


def behind(
    schedules: Sequence[StoredSchedule], now: datetime, patience: timedelta, *, ticking: bool
) -> Iterator[Finding]:
    """Schedules that were due a while ago and that ticks do not fire, perhaps for an unreadable definition."""
    late = sorted(
        (schedule.next_at, schedule.name)
        for schedule in schedules
        if schedule.status == "active"
        and not schedule.paused
        and schedule.next_at
        and now - schedule.next_at > patience
    )
    if late and ticking:
        yield Finding(
            "behind",
            f"{_several([name for _, name in late])} was due, and ticks come and do not fire it",
            since=late[0][0],
            command=f"cronjobs explain {late[0][1]}",
        )


def unwell(found: Watched, schedules: Sequence[StoredSchedule]) -> Iterator[Finding]:
    """Schedules whose last three runs failed, and runs that were missed in an outage."""
    failing: list[tuple[datetime, str]] = []
    missed: list[tuple[datetime, str]] = []
    for schedule in schedules:
        rows = found.lately.get(schedule.id, [])
        if since := _failing(rows):
            failing.append((since, schedule.name))
        row = _missed(rows)
        if row is not None and found.dealt_with.get(schedule.name, row.decided_at) <= row.decided_at:
            missed.append((row.first_for, schedule.name))
    if failing:
        since, name = min(failing)
        text = f"the last {FAILED_IN_A_ROW} runs of {_several([name for _, name in sorted(failing)])} failed"
        yield Finding("failing", text, since=since, command=f"cronjobs history --schedule {name} --since 7d")
    if missed:
        since, name = min(missed)
        names = _several([name for _, name in sorted(missed)])
        text = f"{names} missed runs, and none has gone well since"
        yield Finding("missed", text, since=since, command=f"cronjobs trigger {name}")


def _failing(rows: Sequence[Happened]) -> datetime | None:
    """Since which occurrence runs have failed, if the last three did; each try of a job is a run."""
    failed, since = 0, None
    for row in rows:
        if row.outcome != "enqueued":
            continue
        if row.went_well or row.dismissed or row.status == "cancelled":
            break
        if not row.failures:
            if row.status == "dead":  # without a try, for example because its payload is unreadable
                failed, since = failed + 1, row.last_for
            continue  # it waits or runs, so the result is open
        failed, since = failed + row.failures, row.last_for
    return since if failed >= FAILED_IN_A_ROW else None


def _missed(rows: Sequence[Happened]) -> Happened | None:
    """The newest row of missed runs, if no run has gone well since."""
    for row in rows:
        if row.went_well:
            return None
        if row.outcome == "missed":
            return row
    return None


def refused(found: Watched) -> Iterator[Finding]:
    for host, (why, since) in sorted(found.refused.items()):
        text = f"host {host} refuses its file, and fires what was in force before: {why}"
        yield Finding("refused", text, since=since, command="cronjobs sync --plan")


def held_back(
    found: Watched, pauses: Sequence[Mapping[str, Any]], schedules: Sequence[StoredSchedule], now: datetime
) -> Iterator[Finding]:
    """Pauses that may have been forgotten: older than a day, or holding back something of a schedule."""
    for pause in pauses:
        scope, name = pause["scope"], pause["name"]
        option = {"all": "--all", "queue": f"--queue {name}", "schedule": name}[scope]
        names = [] if scope == "queue" else sorted(_behind_pause(found, pause, schedules, now))
        waits = bool(found.waiting) if scope == "all" else scope == "queue" and name in found.waiting
        if names:
            why = f"it holds back {_several(names)}"
        elif waits:
            why = "jobs of schedules wait behind it"
        elif now - pause["paused_at"] > FORGOTTEN_PAUSE:
            why = "for more than a day"
        else:
            continue
        text = f"{what(scope, name)} is paused{' by ' + pause['by'] if pause['by'] else ''}: {why}"
        yield Finding("pause", text, since=pause["paused_at"], command=f"cronjobs resume {option}")


def _behind_pause(
    found: Watched, pause: Mapping[str, Any], schedules: Sequence[StoredSchedule], now: datetime
) -> Iterator[str]:
    for schedule in schedules:
        if pause["scope"] == "schedule" and pause["name"] != schedule.name:
            continue
        if schedule.owed:  # owed by a definition that ended meanwhile, also of a retired schedule
            yield schedule.name
            continue
        if schedule.status != "active":
            continue
        rows = found.lately.get(schedule.id, [])
        skipped = any(row.outcome == "skipped" and row.decided_at >= pause["paused_at"] for row in rows[:1])
        if (schedule.next_at and schedule.next_at <= now) or (skipped and (rows[0].reason or "").startswith("paused")):
            yield schedule.name


def _several(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"
