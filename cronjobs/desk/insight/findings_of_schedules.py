"""Findings about schedules, and about pauses that hold schedules back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from cronjobs.desk.insight.finding import (
    NAMED,
    Covered,
    Finding,
    Severity,
    for_the_file_here,
    given_up_text,
    one_after_another,
    several,
    typed,
)
from cronjobs.desk.insight.formatting import counted
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.same_cause import (
    FAILED_IN_A_ROW,
    FailingRuns,
    SameCause,
    behind,
    covered_failing,
    failing_runs,
    how_they_ended,
)
from cronjobs.desk.insight.watched import Watched, since_a_run, was_put_off, without_a_run
from cronjobs.desk.rules.occurrence_results import JobNow, OccurrenceResult, UnrunOccurrences
from cronjobs.desk.rules.pausing import what
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.rules.occurrences import HELD_BACK
from cronjobs.engine.schedules.applying import silence_after
from cronjobs.engine.schedules.pauses import owed_by, pauses_of
from cronjobs.engine.schedules.planning import held_back
from cronjobs.engine.store.given_up import DROPPED
from cronjobs.engine.store.schedules import StoredSchedule
from cronjobs.model import rough

FORGOTTEN_PAUSE: Final = timedelta(days=1)


def schedule_findings(health: Health, settings: Settings, same: SameCause) -> Iterator[Finding]:
    if health.ticking(settings.run.every):
        for off in _schedules_off(health, settings.run.every):
            yield for_the_file_here(off, settings)
    late = behind(health, settings.run.every)
    yield from _behind({name: since for name, since in late.items() if name not in same.not_behind})
    missing = {each.name: each for each in _missing(health.watch)}
    failing = failing_runs(health.watch)
    for name, found in health.watch.without_run.items():
        if name in same.not_late:
            continue
        missed_too = [Covered("missed", (name,))] if missing.pop(name, None) else []
        fails = name in same.failing_and_late
        runs = f", and its last runs {how_they_ended([failing[name]])}" if fails else ""
        text = f"{name} has not {'succeeded' if found.ran else 'run'} within its grace; {found.why}{runs}"
        yield Finding(
            "schedule",
            text,
            Severity.CRITICAL,
            since=found.since,
            # Without --at, explain takes the newest occurrence.
            command=typed("cronjobs explain", name, *(["--at", at.isoformat()] if (at := found.not_newest) else [])),
            subject=name,
            covers=(Covered("not_run", (name,)), *missed_too, *covered_failing([name] if fails else [], same)),
            job_id=found.job_id,
            grew_at=found.grew_at,
        )
    yield from _failing(health, same)
    if missing:
        names = tuple(sorted(missing, key=lambda name: (missing[name].since, name)))
        held = [name for name in names if missing[name].held_back]
        outages = [name for name in names if missing[name].outages and name not in held]
        early = [name for name in names if missing[name].early]
        they_were = "it was" if len(early) == 1 else "they were"
        parts = [f"{several(outages)} missed {_runs(missing, outages)}"] if outages else []
        parts += [f"{several(held)} missed {_runs(missing, held)} that a pause had held back"] if held else []
        parts += [f"{several(early)} ran before {they_were} due, because a clock was ahead"] if early else []
        text = f"{'; '.join(parts)}, and no later run succeeded"
        named = {name for part in (outages, held, early) for name in part[:NAMED]}
        shown = [missing[name] for name in names if name in named]
        for each in shown:
            if each.awaited is not None:
                text += f"; someone has since triggered job {each.awaited.id} of {each.name}, which has not ended"
            elif each.put_off is not None:
                text += f"; job {each.put_off.id} of {each.name} was postponed"
        # A command for each schedule would be too long to type, and views cut a long command.
        listing = [
            f"cronjobs history --outcome {outcome} --since {missing[names[0]].since.isoformat()}"
            for outcome, part in (("missed", [*outages, *held]), ("early", early))
            if any(name not in named for name in part)
        ]
        only = shown[0].awaited or shown[0].put_off if len(names) == 1 else None
        yield Finding(
            "missed",
            text,
            since=shown[0].since,
            command=one_after_another(listing or map(_make_up, shown)),
            rows=names,
            job_id=None if only is None else only.id,
            grew_at=max(each.decided_at for each in missing.values()),
        )
    yield from _not_run(health, settings.run.every, same)
    if (lost := health.watch.given_up.get(DROPPED)) is not None:
        what = given_up_text(lost, "occurrence")
        was = "was" if what.startswith("1 ") else "were"
        text = (
            f"{what} of {several(sorted(lost.by_name))} {was} dropped, because more were due than catch_up_limit "
            'allows; "cronjobs backfill" runs those that nobody has backfilled yet, and "cronjobs ack dropped" ends '
            "this finding"
        )
        command = "cronjobs audit --action dropped"
        yield Finding("dropped", text, since=lost.since, command=command, rows=tuple(map(str, lost.ids)))
    for run in health.slower:
        runs = "has been running for" if run.running else "ran for"
        text = f"{run.schedule} {runs} {rough(run.took)}; it usually takes {rough(run.usual)}"
        severity = Severity.WARNING if run.running else Severity.NOTICE
        command = f"cronjobs jobs show {run.job_id}" if run.job_id else typed("cronjobs explain", run.schedule)
        yield Finding(
            "slower", text, severity, since=run.since, command=command, subject=run.schedule, job_id=run.job_id
        )
    yield from _held_back(health.watch, health.pauses, health.now)


def _schedules_off(health: Health, every: timedelta) -> Iterator[Finding]:
    if health.watch.fires or not health.schedules.active:
        return
    span = rough(silence_after(every))
    yield Finding(
        "schedules_off",
        f"no tick in the last {span} fired schedules: CRONJOBS_SCHEDULES is off on every host that ticks",
        Severity.CRITICAL,
        since=health.watch.fired_at,
        command="cronjobs crontab show",
    )


def _behind(late: Mapping[str, datetime]) -> Iterator[Finding]:
    if names := list(late):
        yield Finding(
            "behind",
            f"no tick has fired the due occurrences of {several(names)}",
            Severity.CRITICAL,
            since=late[names[0]],
            command=one_after_another(typed("cronjobs explain", name) for name in names[:NAMED]),
            rows=tuple(names),
            grew_at=max(late.values()),
        )


def _failing(health: Health, same: SameCause) -> Iterator[Finding]:
    """Find schedules whose last runs failed. Schedules with the same ``warn_after_failures`` share a finding."""
    found: dict[int, dict[str, FailingRuns]] = {}
    for name, runs in failing_runs(health.watch).items():
        if name not in same.not_failing:
            found.setdefault(runs.most, {})[name] = runs
    for most, failed in sorted(found.items()):
        names = tuple(sorted(failed, key=lambda name: (failed[name].since, name)))
        ended = how_they_ended(failed.values(), "was" if most == 1 else "were")
        only_lost = "failed" not in ended
        run = "attempt" if only_lost else "run"
        last = f"the last {run}" if most == 1 else f"the last {most} {run}s"
        # Add that the runners died, since a runner's death proves nothing against the handler.
        if only_lost:
            ended += ": its runner died or lost its lease" if most == 1 else ": their runners died or lost their leases"
        waits = tuple(name for name in names if name in same.waiting)
        why = [_why_not(each, same.waiting[each][0], health) for each in waits[:1]]
        yield Finding(
            "failing",
            "; ".join([f"{last} of {several(names)} {ended}", *why]),
            since=failed[names[0]].since,
            command=one_after_another(
                f"{typed('cronjobs history --schedule', name)} --since 7d" for name in names[:NAMED]
            ),
            subject="" if most == FAILED_IN_A_ROW else str(most),
            rows=names,
            covers=(Covered("not_run", waits),) if waits else (),
            grew_at=max(runs.began_at for runs in failed.values()),
        )


@dataclass(frozen=True)
class _ScheduleMissing:
    """A schedule that missed runs in ``outages`` (newest first), or ran ``early`` because of a wrong clock.

    ``awaited``: an unfinished job that somebody has triggered since. ``put_off``: the schedule's own job, if it
    snoozes.
    """

    name: str
    outages: Sequence[OccurrenceResult]
    early: OccurrenceResult | None
    awaited: JobNow | None
    put_off: JobNow | None

    @property
    def since(self) -> datetime:
        return min(row.first_for for row in (*self.outages, self.early) if row is not None)

    @property
    def decided_at(self) -> datetime:
        """When a tick wrote the newest row. That is after the outage, so the row's occurrence may be older."""
        return max(max(row.decided_at, row.last_for) for row in (*self.outages, self.early) if row is not None)

    @property
    def held_back(self) -> bool:
        return bool(self.outages) and (self.outages[0].reason or "").startswith(HELD_BACK)


def _missing(found: Watched) -> Iterator[_ScheduleMissing]:
    """Find schedules with missed or early runs and no successful run since."""
    for schedule in found.schedules:
        by_hand = found.covered.get(schedule.name)
        since = filter(without_a_run, since_a_run(found.lately.get(schedule.id, [])))
        rows = [row for row in since if (by_hand is None or by_hand < row.last_for)]
        outages = [row for row in rows if not row.ran_early]
        early = next((row for row in reversed(rows) if row.ran_early), None)
        if rows:
            run = found.awaited.get(schedule.name)
            awaited = run.job if run is not None and run.at >= rows[0].last_for else None
            unrun = found.not_run.get(schedule.name, ())
            put_off = next((each.job for each in unrun if each.why == "put off"), None)
            yield _ScheduleMissing(schedule.name, outages, early, awaited, put_off)


def _runs(missing: Mapping[str, _ScheduleMissing], names: Sequence[str]) -> str:
    """Return text such as "5 runs" for the runs that these schedules missed."""
    return counted(sum(row.count for name in names for row in missing[name].outages), "run")


def _make_up(missing: _ScheduleMissing) -> str:
    """Return the command that runs the missed occurrences. A trigger would instead make one job that is due now.

    While a triggered job waits, or the schedule's job snoozes, return a command that only explains that job, since a
    second job would do the work twice.
    """
    if (job := missing.awaited or missing.put_off) is not None:
        return f"cronjobs explain {job.id}"
    # Without an outage, the occurrence ran, though early, so a backfill would not run it again.
    if not missing.outages:
        return typed("cronjobs trigger", missing.name)
    first, last = missing.outages[-1].first_for.isoformat(), missing.outages[0].last_for.isoformat()
    return f"{typed('cronjobs backfill', missing.name)} --from {first} --to {last}"


def _not_run(health: Health, every: timedelta, same: SameCause) -> Iterator[Finding]:
    """Find schedules with occurrences that did not run, unless another finding reports why."""
    unreported = {
        name: [
            each
            for each in entries
            if each not in same.waiting.get(name, ()) and not _is_reported_elsewhere(each.job, health, every)
        ]
        for name, entries in health.watch.not_run.items()
        if name not in health.watch.without_run or name in same.not_late
    }
    # Give the newest reason, and the time of the oldest occurrence.
    found = {
        name: replace(entries[0], since=min(each.since for each in entries))
        for name, entries in unreported.items()
        if entries
    }
    if not found:
        return
    names = tuple(sorted(found, key=lambda name: (found[name].since, name)))
    oldest = found[names[0]]
    have, was = ("has", "it was") if len(names) == 1 else ("have", "they were")
    ran = all(each.job is not None and each.job.attempts for each in found.values())
    done = "succeeded" if ran else "run"
    yield Finding(
        "not_run",
        f"{several(names)} {have} not {done} since {was} due: {_why_not(names[0], oldest, health)}",
        since=oldest.since,
        command=one_after_another(typed("cronjobs explain", name) for name in names[:NAMED]),
        rows=names,
        job_id=None if oldest.job is None or len(names) > 1 else oldest.job.id,
        grew_at=max(each.since for each in found.values()),
    )


def _why_not(schedule: str, found: UnrunOccurrences, health: Health) -> str:
    job, now = found.job, health.now
    if job is None:
        stored = next((each for each in health.watch.schedules if each.name == schedule), None)
        queue = stored.definition.get("queue") if stored and isinstance(stored.definition, dict) else None
        return f"queue {queue if isinstance(queue, str) else 'default'} was full when {schedule} was due"
    its = f"job {job.id} of {schedule}"
    match found.why:
        case "put off":
            return f"{its} {was_put_off(job, now)}"
        case "lease ran out":
            return f"{its} is running, but its lease ran out"
        case "overruns":
            return f"{its} runs for longer than its timeout"
        case "overdue":
            return f"the retry of {its} has been due for {rough(now - job.run_at)}"
    return f"{its} has been due and waiting for {rough(now - job.run_at)}"


def _is_reported_elsewhere(job: JobNow | None, health: Health, every: timedelta) -> bool:
    """Return whether another finding reports why *job* did not run."""
    if job is None:
        return False
    if job.status == "running":
        return not health.ticking(every)
    if job.waiting and job.job_type in {misfit.job_type for misfit in health.misfits}:
        return True
    if not job.waiting or job.run_at > health.now:
        return False
    queue = health.waiting.queues.get(job.queue)
    return (
        not health.ticking(every)
        or (queue is not None and queue.paused and job.queue in health.watch.waiting)
        or job.job_type in health.waiting.unresolved
        or any((job.queue, job.job_type) == (each.queue, each.job_type) for each in health.waiting.out_of_reach)
        or (job.queue, job.job_type) in health.waiting.late_groups
    )


# --- pauses -----------------------------------------------------------------------------------------------------------


def _held_back(found: Watched, pauses: Sequence[Mapping[str, Any]], now: datetime) -> Iterator[Finding]:
    """Find pauses that may have been forgotten: they are older than a day, or they hold back occurrences."""
    for pause in pauses:
        scope, name = pause["scope"], pause["name"]
        names = [] if scope == "queue" else sorted(_behind_pause(found, pause, now))
        waits = bool(found.waiting) if scope == "all" else scope == "queue" and name in found.waiting
        if names:
            were = "was" if len(names) == 1 else "were"
            due = f", which {were} due before the pause began" if pause["skip"] else ""
            why = f"the pause holds back {several(names)}{due}"
        elif waits:
            why = "jobs that schedules created are waiting"
        elif now - pause["paused_at"] > FORGOTTEN_PAUSE:
            why = (
                "occurrences have been skipped for more than a day"
                if pause["skip"]
                else "the pause is more than a day old"
            )
        else:
            continue
        text = f"{what(scope, name)} is paused{' by ' + pause['by'] if pause['by'] else ''}: {why}"
        options = {"all": ["--all"], "queue": ["--queue", name], "schedule": [name]}[scope]
        yield Finding(
            "pause",
            text,
            since=pause["paused_at"],
            command=typed("cronjobs resume", *options),
            subject=scope if scope == "all" else f"{scope}/{name}",
            rows=tuple(names),
        )


def _behind_pause(found: Watched, pause: Mapping[str, Any], now: datetime) -> Iterator[str]:
    for schedule in found.schedules:
        if pause["scope"] == "schedule" and pause["name"] != schedule.name:
            continue
        # Occurrences of a former definition wait, even if the schedule is retired.
        if schedule.owed:
            yield schedule.name
            continue
        if schedule.status != "active":
            continue
        if schedule.next_at and schedule.next_at <= now and not _only_skips(schedule, now):
            yield schedule.name


def _only_skips(schedule: StoredSchedule, now: datetime) -> bool:
    """Return whether pauses only skip the due occurrences, because all of them became due during a ``pause --skip``."""
    skips = any(pause.skip for pause in schedule.pauses)
    return skips and held_back(owed_by(replace(schedule, owed=None)), pauses_of(schedule), now) is None
