"""What is wrong, from the facts of ``health``: a sentence each, since when, and what to type. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from cronjobs import masking
from cronjobs.config.settings import Settings
from cronjobs.errors import MESSAGE_LIMIT
from cronjobs.insight.health import RUNS_IN_A_LEASE, Health
from cronjobs.insight.watched import (
    DIFFERENT_FILES,
    Watched,
    last_sign,
    late_after,
    missed,
    quiet_after,
    ticking,
)
from cronjobs.model import duration_text
from cronjobs.rules.crashing_types import CLEAN_ENDS
from cronjobs.rules.pausing import what
from cronjobs.schedules.applying import silence_after
from cronjobs.store.schedules import StoredSchedule
from cronjobs.store.unresolved import DEATHS_COUNTED, Happened
from cronjobs.text import one_line

FORGOTTEN_PAUSE: Final = timedelta(days=1)
FAILED_IN_A_ROW: Final = 3
NAMED: Final = 3  # of several schedules with the same problem; the rest are counted
_WHEN_FULL: Final = {
    "error": "whoever enqueues there is refused",
    "drop": "what is enqueued there is dropped",
    "wait": "whoever enqueues there waits, or is refused",
}


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
        object.__setattr__(self, "text", one_line(masking.hide(self.text), MESSAGE_LIMIT))


def troubles(health: Health, settings: Settings) -> list[Finding]:
    """What is wrong, the worst first; empty when all is well."""
    found: list[Finding] = []
    theirs, ours = (health.project, health.environment), (settings.project, settings.environment)
    if theirs not in (("", ""), ours):
        found.append(
            Finding(
                "foreign",
                f"this database belongs to {_name(*theirs)}, and the configuration says {_name(*ours)}: ticks claim "
                'nothing; "cronjobs db adopt" hands it over',
            )
        )
    found += _no_tick(health, settings)
    if len(health.silent) < len(health.ticks):
        for host, since in health.silent.items():
            found.append(Finding("host", f"host {host} has not ticked for {_span(health.now - since)}, others do"))
    at_work = ticking(health.ticks, health.now, settings)
    if at_work:
        off = list(_schedules_off(health.watch, health.schedules, settings))
        found += off or _behind(health.schedules, health.now, quiet_after(settings))
    for name, why in health.watch.without_run.items():
        found.append(Finding("schedule", f"{name} has not run within its grace; {why}"))
    if late := health.total("late"):
        jobs = "1 job has" if late == 1 else f"{late:,} jobs have"
        minutes = round(late_after(settings).total_seconds() / 60)
        why = "the ticks do not keep up, or do not run"
        if limited := sum(health.limited.values()):
            why += f"; {limited:,} of those due wait for a limit"
        found.append(Finding("late", f"{jobs} been due for more than {minutes} minutes: {why}"))
    for job_type in sorted(health.unresolved.keys() | health.unknown_schedules.keys()):
        found.append(_unknown_type(job_type, health))
    for left in health.left_alone:
        attempts = "a lost attempt of" if left.jobs == 1 else f"{left.jobs:,} lost attempts of"
        text = (
            f"{attempts} {left.job_type} by an older version: without its handler nobody knows whether it may run again"
        )
        found.append(Finding("left_alone", text, since=left.since, command=f"cronjobs jobs cancel {left.sample}"))
    found += _deaths(health.watch)
    found += _unwell(health.watch, health.schedules)
    for host, (why, since_) in sorted(health.watch.refused.items()):
        text = f"host {host} refuses its file, and fires what was in force before: {why}"
        found.append(Finding("refused", text, since=since_, command="cronjobs sync --plan"))
    found += _held_back(health.watch, health.pauses, health.schedules, health.now)
    found += [Finding("config", f"{fault.where}: {fault.what}") for fault in health.faults]
    found += [Finding("config", str(problem)) for problem in settings.problems]
    files: dict[str, list[str]] = {}
    for tick in at_work:
        if tick["fingerprint"]:
            files.setdefault(tick["fingerprint"], []).append(tick["host"])
    if len(files) > 1:
        said = "; ".join(
            f"{fingerprint[:8]} on {', '.join(sorted(hosts))}" for fingerprint, hosts in sorted(files.items())
        )
        long = health.watch.differ_long
        text = f"hosts carry different files{' for more than 15 minutes' if long else ''}: {said}"
        begun = health.now - DIFFERENT_FILES if long else None
        found.append(Finding("files", text, alarm=long, since=begun, command="cronjobs sync --plan" if long else None))
    for name, queue in health.queues.items():
        if queue.full:
            then = _WHEN_FULL[queue.on_full or "error"]
            text = f'queue "{name}" is full ({queue.waiting:,} of {queue.max_waiting:,}): {then}'
            found.append(Finding("full", text, alarm=False))
    for each in health.crashing:
        text = (
            f"{each.job_type} takes its runners down: its jobs run in child processes until {CLEAN_ENDS} in a row have "
            f"ended without a crash ({each.clean_ends} so far), or for an hour"
        )
        found.append(Finding("crashing", text, alarm=False))
    for job_type, took in health.slow.items():
        lease = duration_text(settings.run.lease)
        text = (
            f"{job_type} typically runs for {duration_text(took)}, and run.lease is {lease}: "
            f"{RUNS_IN_A_LEASE} runs should fit into a lease, or a few late heartbeats cost a run its job"
        )
        found.append(Finding("lease", text, alarm=False))
    return found


def _unknown_type(job_type: str, health: Health) -> Finding:
    count, names = health.unresolved.get(job_type, 0), health.unknown_schedules.get(job_type, [])
    what = []
    if count:
        what.append("1 due job waits" if count == 1 else f"{count:,} due jobs wait")
    if names:
        what.append(f"{'schedule' if len(names) == 1 else 'schedules'} {', '.join(names[:3])} cannot run")
        what[-1] += ", …" if len(names) > 3 else ""
    why = f'no handler or command "{job_type}" is registered here'
    if health.judged_by_ticks:
        why = f'no tick of the last minutes knew a handler or command "{job_type}"; "cronjobs check" lists all'
    return Finding("unresolved", f"{' and '.join(what)}: {why}")


def _no_tick(health: Health, settings: Settings) -> list[Finding]:
    last = last_sign(health.ticks)
    if last is None:
        text = 'no tick has ever reached this database: "cronjobs crontab install" lets cron run one each minute'
        return [Finding("no_tick", text, command="cronjobs crontab install")]
    if abs(health.now - last) <= quiet_after(settings):
        return []
    if last > health.now:
        text = "the last tick began in the future: a clock is wrong, or was"
        return [Finding("no_tick", text, since=last, command="cronjobs history --since 1h")]
    text = f"no tick has reached this database for {_span(health.now - last)}"
    return [Finding("no_tick", text, since=last, command="cronjobs crontab show")]


def _span(span: timedelta) -> str:
    minutes = round(span.total_seconds() / 60)
    return f"{minutes} minutes" if minutes < 180 else f"{round(minutes / 60)} hours"


def _name(project: str, environment: str) -> str:
    return f'project "{project}", environment "{environment}"'


# --- schedules, pauses, deaths ----------------------------------------------------------------------------------------


def _deaths(found: Watched) -> Iterator[Finding]:
    count = found.deaths.count
    if count:
        more = f"{count:,} or more" if count == DEATHS_COUNTED else f"{count:,}"
        jobs = "1 dead job that nobody has" if count == 1 else f"{more} dead jobs that nobody has"
        text = f"{jobs} retried or dismissed"
        yield Finding("dead", text, since=found.deaths.since, command="cronjobs jobs list --status dead")


def _schedules_off(found: Watched, schedules: Sequence[StoredSchedule], settings: Settings) -> Iterator[Finding]:
    if found.fires or not any(schedule.status == "active" for schedule in schedules):
        return
    minutes = round(silence_after(settings).total_seconds() / 60)
    yield Finding(
        "schedules_off",
        f"no tick of the last {minutes} minutes fires schedules: CRONJOBS_SCHEDULES is off wherever ticks come from",
        since=found.fired_at,
        command="cronjobs crontab show",
    )


def _behind(schedules: Sequence[StoredSchedule], now: datetime, patience: timedelta) -> Iterator[Finding]:
    """Schedules that were due a while ago and that ticks do not fire, perhaps for an unreadable definition."""
    late = sorted(
        (schedule.next_at, schedule.name)
        for schedule in schedules
        if schedule.status == "active"
        and not schedule.paused
        and schedule.next_at
        and now - schedule.next_at > patience
    )
    if late:
        yield Finding(
            "behind",
            f"{_several([name for _, name in late])} was due, and ticks come and do not fire it",
            since=late[0][0],
            command=f"cronjobs explain {late[0][1]}",
        )


def _unwell(found: Watched, schedules: Sequence[StoredSchedule]) -> Iterator[Finding]:
    """Schedules whose last three runs failed, and runs that were missed in an outage."""
    failing: list[tuple[datetime, str]] = []
    gone: list[tuple[datetime, str]] = []
    for schedule in schedules:
        rows = found.lately.get(schedule.id, [])
        if since := _failing(rows):
            failing.append((since, schedule.name))
        row = missed(rows)
        if row is not None and found.dealt_with.get(schedule.name, row.decided_at) <= row.decided_at:
            gone.append((row.first_for, schedule.name))
    if failing:
        since, name = min(failing)
        text = f"the last {FAILED_IN_A_ROW} runs of {_several([name for _, name in sorted(failing)])} failed"
        yield Finding("failing", text, since=since, command=f"cronjobs history --schedule {name} --since 7d")
    if gone:
        since, name = min(gone)
        names = _several([name for _, name in sorted(gone)])
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


def _held_back(
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
