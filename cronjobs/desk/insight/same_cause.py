"""Decide which findings a worse or clearer finding replaces, so that each cause has one finding.

All functions here are pure.

The finding about dead jobs replaces findings about their schedules and types. The finding about a schedule past its
grace replaces the findings about the schedule's failures and waiting jobs. The finding about a failing schedule
replaces the finding about its waiting retry. The finding about a type that no tick knows replaces the findings about
schedules that wait for the type. The finding about a module that fails to import replaces the findings about the
module's types.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import starmap, takewhile
from typing import Any, Final

from cronjobs.desk.insight.finding import Covered
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.waiting import entries_of
from cronjobs.desk.insight.watched import Watched, quiet_after
from cronjobs.desk.rules.occurrence_results import JobNow, OccurrenceResult, UnrunOccurrences, failed_runs
from cronjobs.desk.rules.tick_rows import texts_in
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs.job_types import Fault
from cronjobs.engine.store.schedules import StoredSchedule
from cronjobs.engine.tick.not_started import LONG_OFF, NO_PLACE, OUT_OF_TIME, TOO_SHORT
from cronjobs.engine.tick.result import as_noted
from cronjobs.errors import Problem

FAILED_IN_A_ROW: Final = 3  # the default of warn_after_failures
# If several hosts record within this time that a job type has become unknown, they report the same change.
SHORTLY: Final = timedelta(minutes=10)
# If code could not be imported, the place ``where`` of the fault (see jobs.job_types) is "imports", or begins with one
# of these.
_OF_IMPORTS: Final = ("module ", "setup ", "imports[")

_Places = dict[str, tuple[str, ...]]  # maps hosts ("" for this one) to the unusable parts of their file and code


@dataclass(frozen=True)
class SameCause:
    """The schedules and job types that other findings already report.

    The finding ``dead`` covers ``late`` (schedules past their grace), ``failing`` (failing schedules) and ``types``
    (failing job types). ``hosts`` maps a host ("" for this host) to its unknown types, and each of these types to its
    ``possible_causes``. A type is unknown to a host that cannot import a module, or cannot use the type's entry in the
    file. ``entries`` maps a host to the schedules that it does not fire, because it cannot use their entries in the
    file.
    """

    late: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    died: tuple[str, ...] = ()  # schedules with a dead job since their last success
    failing_and_late: tuple[str, ...] = ()  # schedules whose failures are covered by the finding ``schedule``
    # Maps a schedule to the facts about its waiting jobs, which are covered by the finding ``failing``.
    waiting: Mapping[str, tuple[UnrunOccurrences, ...]] = field(default_factory=dict)
    # Maps each type that no tick knows to its schedules past their grace.
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Maps each type that no tick knows to its failing schedules.
    unknown_failing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unknown_types: tuple[str, ...] = ()  # failing types that no tick knows
    hosts: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    # Maps a host to the schedules that are behind there, and each of these schedules to when it fell behind.
    entries: Mapping[str, Mapping[str, datetime]] = field(default_factory=dict)
    # Maps a queue and type to the number of late jobs that ticks had no room for.
    no_room: Mapping[tuple[str, str], int] = field(default_factory=dict)
    # Maps a failing schedule to the key of its finding ``failing``.
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def not_late(self) -> frozenset[str]:
        """Schedules that get no finding ``schedule``."""
        return frozenset(self.late).union(*self.unknown.values())

    @property
    def not_failing(self) -> frozenset[str]:
        """Schedules that the finding ``failing`` leaves out."""
        return frozenset([*self.failing, *self.failing_and_late]).union(*self.unknown_failing.values())

    @property
    def not_unresolved(self) -> frozenset[str]:
        """Types that get no finding ``unresolved``."""
        return frozenset[str]().union(*self.hosts.values())

    @property
    def not_behind(self) -> frozenset[str]:
        """Schedules that the finding ``behind`` leaves out."""
        return frozenset[str]().union(*self.entries.values())


def covered_by_type(job_type: str, same: SameCause) -> tuple[Covered, ...]:
    """Return the findings that are covered by the finding about this unknown type."""
    late = (Covered(f"schedule:{name}") for name in same.unknown.get(job_type, ()))
    failing = covered_failing(same.unknown_failing.get(job_type, ()), same)
    of_type = (Covered(f"failing_type:{each}") for each in same.unknown_types if each == job_type)
    return (*of_type, *late, *failing)


def covered_failing(names: Collection[str], same: SameCause) -> Iterator[Covered]:
    """Yield the findings ``failing`` that would include these schedules."""
    for key in sorted({same.keys[name] for name in names}):
        yield Covered(key, tuple(sorted(name for name in names if same.keys[name] == key)))


def same_cause(health: Health, settings: Settings) -> SameCause:
    watch = health.watch
    failing = failing_runs(watch)
    died = {name for name, why in watch.without_run.items() if any(map(_is_dead, why.jobs))}
    died_failing = {name for name, runs in failing.items() if any(_is_dead(row.job) for row in runs.rows)}
    # Deaths are read a moment after the rows. If none is left, someone has dealt with these deaths in between.
    if not watch.deaths.count:
        died = died_failing = set()
    unknown: dict[str, list[str]] = {}
    unknown_failing: dict[str, list[str]] = {}
    for name, why in sorted(watch.without_run.items()):
        if name not in died and (job_type := _unknown(why.jobs, health)):
            unknown.setdefault(job_type, []).append(name)
    late = watch.without_run.keys() - died - {name for names in unknown.values() for name in names}
    for name, runs in sorted(failing.items()):
        jobs = tuple(row.job for row in runs.rows if row.job is not None)
        if name not in died_failing and name not in late and (job_type := _unknown(jobs, health)):
            unknown_failing.setdefault(job_type, []).append(name)
    left = failing.keys() - died_failing - late - {name for names in unknown_failing.values() for name in names}
    every, places = settings.run.every, _places(health, settings)
    return SameCause(
        late=tuple(sorted(died)),
        failing=tuple(sorted(died_failing)),
        types=tuple(each.job_type for each in health.failing_types if _died(each.job_type, each.since, watch)),
        died=tuple(each.name for each in watch.schedules if _has_died(watch.lately.get(each.id, []))),
        failing_and_late=tuple(sorted(failing.keys() & late - died_failing)),
        waiting={
            name: covered
            for name in sorted(left & watch.not_run.keys())
            if (covered := _of_failed_jobs(watch.not_run[name], failing[name]))
        },
        unknown={job_type: tuple(names) for job_type, names in unknown.items()},
        unknown_failing={job_type: tuple(names) for job_type, names in unknown_failing.items()},
        unknown_types=tuple(
            each.job_type for each in health.failing_types if each.job_type in health.waiting.unresolved
        ),
        hosts=_without_their_module(health, every, places),
        entries=_with_a_bad_entry(health, every, places),
        no_room=without_room(health, every),
        keys={name: runs.key for name, runs in failing.items()},
    )


def _of_failed_jobs(entries: Sequence[UnrunOccurrences], runs: FailingRuns) -> tuple[UnrunOccurrences, ...]:
    jobs = [row.job for row in runs.rows]
    return tuple(entry for entry in entries if entry.job in jobs)


def _has_died(rows: Sequence[OccurrenceResult]) -> bool:
    since = takewhile(lambda row: not row.succeeded, rows)
    return any(_is_dead(row.job) for row in since)


def _is_dead(job: JobNow | None) -> bool:
    return job is not None and job.status == "dead" and not job.dismissed


def _unknown(jobs: tuple[JobNow, ...], health: Health) -> str | None:
    """Return the unknown type that one of these jobs waits for, or None if there is none."""
    waits = (job.job_type for job in jobs if job.waiting and job.run_at <= health.now)
    return next((job_type for job_type in waits if job_type in health.waiting.unresolved), None)


def _died(job_type: str, since: datetime, watch: Watched) -> bool:
    """Return whether a job of the type has died since the type began to fail."""
    last = watch.deaths.last_of.get(job_type)
    return last is not None and last >= since


# --- schedules that fail ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FailingRuns:
    """A schedule's last runs, all failed, newest first. ``most``: the ``warn_after_failures`` that they reached.

    ``began_at``: when the schedule began to fail. That is the latest of three instants: the due time of the first
    failed run, the end of the good run before it, and the time when someone triggered a run that succeeded.
    """

    rows: list[OccurrenceResult]
    most: int
    began_at: datetime

    @property
    def since(self) -> datetime:
        return self.rows[-1].last_for

    @property
    def key(self) -> str:
        return "failing" if self.most == FAILED_IN_A_ROW else f"failing:{self.most}"


def how_they_ended(several: Collection[FailingRuns], were: str = "were") -> str:
    """Return "failed", "were lost" or "failed or were lost", whichever is true of all these runs together."""
    rows = [row for runs in several for row in runs.rows]
    lost = any(row.losses for row in rows)
    # A job may be dead without a counted failure.
    failed = any(row.failures or not row.losses for row in rows)
    return " or ".join([*(["failed"] if failed else []), *([f"{were} lost"] if lost else [])])


def failing_runs(watch: Watched) -> dict[str, FailingRuns]:
    """Map the names of failing schedules to their failed runs."""
    found = {}
    for schedule in watch.schedules:
        most = _warn_after(schedule)
        by_hand = watch.by_hand.get(schedule.name)
        rows = [*watch.by_trigger.get(schedule.id, []), *watch.lately.get(schedule.id, [])]
        since = [row for row in rows if by_hand is None or row.last_for > by_hand]
        since.sort(key=lambda row: row.last_for, reverse=True)
        if rows := failed_runs(since, most):
            before = next((row.job for row in since if row.last_for < rows[-1].last_for and row.went_well), None)
            ended = [at for at in (by_hand, before.finished_at if before is not None else None) if at is not None]
            found[schedule.name] = FailingRuns(rows, most, max([rows[-1].last_for, *ended]))
    return found


def _warn_after(schedule: StoredSchedule) -> int:
    stored = schedule.definition.get("warn_after_failures") if isinstance(schedule.definition, dict) else None
    return stored if isinstance(stored, int) and not isinstance(stored, bool) and stored > 0 else FAILED_IN_A_ROW


# --- schedules that ticks do not fire ---------------------------------------------------------------------------------


def behind(health: Health, every: timedelta) -> dict[str, datetime]:
    """Find schedules that ticks do not fire although they could.

    Map each schedule to when that began, longest first.
    """
    if not health.watch.fires or not health.ticking(every):
        return {}
    found = {
        schedule.name: since
        for schedule in health.watch.schedules
        if schedule.status == "active"
        and not schedule.paused
        and (since := _could_fire_since(schedule))
        and health.now - since > quiet_after(every)
    }
    return dict(sorted(found.items(), key=lambda pair: (pair[1], pair[0])))


def _could_fire_since(schedule: StoredSchedule) -> datetime | None:
    """Return when the next occurrence became due and was no longer held back, or None if there is none."""
    ends = [pause.until for pause in schedule.pauses if pause.until and not pause.skip]
    return max([schedule.next_at, *ends]) if schedule.next_at else None


def _with_a_bad_entry(health: Health, every: timedelta, places: _Places) -> dict[str, dict[str, datetime]]:
    """Map hosts ("" for this one) to the schedules that are behind because their entries in the host's file are bad."""
    late, found = behind(health, every), dict[str, dict[str, datetime]]()
    for place, wheres in places.items():
        if its := {name: since for name, since in late.items() if names_schedule(wheres, name)}:
            found[place] = its
            late = {name: since for name, since in late.items() if name not in its}
    return found


def names_schedule(wheres: Collection[str], name: str) -> bool:
    """Return whether one of these faults is in the schedule's entry in the file."""
    return any(f"{where}.".startswith(f"schedules.{name}.") for where in wheres)


# --- types that a fault in the file or the code makes unknown ---------------------------------------------------------


def _without_their_module(health: Health, every: timedelta, places: _Places) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return ``SameCause.hosts``."""
    on_ticks = [recorded_faults(tick) for tick in health.last_ticking(every)]
    module_gone = not health.judged_by_ticks or any(map(faults_of_imports, on_ticks))
    began = health.watch.not_loaded or health.watch.misconfigured
    since = min((at for at in began.values() if at is not None), default=None)
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for job_type in sorted(health.waiting.unresolved.keys() | health.unknown_schedules.keys()):
        inline = job_type in health.unknown_schedules.get(job_type, ())
        of_type = {place: its for place, wheres in places.items() if (its := faults_of_type(job_type, wheres, inline))}
        if not of_type and module_gone and not _gone_before(job_type, since, health):
            of_type = {place: its for place, wheres in places.items() if (its := faults_of_imports(wheres))}
        for place, causes in list(of_type.items())[:1]:
            found.setdefault(place, {})[job_type] = causes
    return found


def without_room(health: Health, every: timedelta) -> dict[tuple[str, str], int]:
    """Map (queue, type) to its number of late jobs that ticks had no room for, because their timeout is too long."""
    types = {each.job_type for each in health.never_begin}
    entries = [entry for tick in health.ticking(every) for entry in entries_of(tick)]
    found = {}
    for group in health.waiting.late:
        place = (group.queue, group.job_type)
        whys = {entry.get("why") for entry in entries if (entry.get("queue"), entry.get("job_type")) == place}
        if group.job_type in types and whys and whys <= {TOO_SHORT, LONG_OFF, NO_PLACE, OUT_OF_TIME}:
            found[place] = group.late
    return found


def _places(health: Health, settings: Settings) -> _Places:
    """Map hosts ("" for this host) to the unusable parts of their file and code, which ``config`` also reports."""
    here = tuple(where for where, _ in faults_here(health.faults, (*settings.problems, *health.log)))
    return ({"": here} if here else {}) | {
        tick["host"]: tuple(recorded_faults(tick)) for tick in others_at_fault(health, settings)
    }


def faults_here(faults: Iterable[Fault], problems: Iterable[Problem]) -> list[tuple[str, str]]:
    """Return the unusable parts of the file and the code here, as pairs of where and why. *faults* are in the code."""
    found = [(fault.where, fault.what) for fault in faults]
    return [*found, *((problem.path, problem.message) for problem in problems)]


def others_at_fault(health: Health, settings: Settings) -> list[Mapping[str, Any]]:
    """Return the ticks of ``last_ticking`` that recorded faults other than those here."""
    here = dict(starmap(as_noted, faults_here(health.faults, (*settings.problems, *health.log))))
    last = health.last_ticking(settings.run.every)
    # If no tick starts with the file here, this host's last tick recorded the faults of an earlier file.
    none_starts = settings.broken and not health.ticking(settings.run.every)
    outdated = Identity.here().host if none_starts else None
    return [tick for tick in last if tick["host"] != outdated and not recorded_faults(tick).items() <= here.items()]


def recorded_faults(tick: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts of a tick's file ("broken") and code ("not_loaded") that it could not use, with the reasons."""
    return texts_in(tick["did"], "broken") | texts_in(tick["did"], "not_loaded")


def possible_causes(job_type: str, wheres: Iterable[str], *, inline: bool) -> tuple[str, ...]:
    """Return the faults at *wheres* of one host that may be why the host does not know *job_type*.

    If there is a fault in the type's own entry or handler, that is the cause. If not, the handler may be in any of the
    modules that could not be imported. *inline*: whether the type is the command in the entry of the schedule of the
    same name.
    """
    wheres = tuple(wheres)
    return faults_of_type(job_type, wheres, inline) or faults_of_imports(wheres)


def faults_of_type(job_type: str, wheres: Iterable[str], inline: bool) -> tuple[str, ...]:
    """Return the faults in the type's own entry or handler."""
    entry = f"job_types.{job_type}"
    return tuple(
        where
        for where in wheres
        if where in (job_type, entry) or where.startswith(f"{entry}.") or (inline and names_schedule([where], job_type))
    )


def faults_of_imports(wheres: Iterable[str]) -> tuple[str, ...]:
    """Return the faults that kept some handlers from being imported."""
    return tuple(where for where in wheres if where == "imports" or where.startswith(_OF_IMPORTS))


def _gone_before(job_type: str, since: datetime | None, health: Health) -> bool:
    """Return whether the type was unknown well before the fault began, so that the fault cannot be the cause."""
    gone = health.gone.get(job_type)
    return since is not None and gone is not None and gone + SHORTLY < since
