"""Read the facts that show whether ticks and schedules run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from itertools import takewhile
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.desk.insight.formatting import in_full
from cronjobs.desk.insight.run_watch import (
    as_ledger_row,
    covered_by_hand,
    grace_of,
    newest_rows,
    not_run,
    ran_by_hand,
)
from cronjobs.desk.rules.occurrence_results import (
    ByHand,
    JobNow,
    OccurrenceResult,
    UnrunOccurrences,
    failed_runs,
    waited_for,
)
from cronjobs.desk.rules.pausing import what
from cronjobs.desk.rules.schedule_names import Name, names_of
from cronjobs.desk.rules.tick_rows import did_of
from cronjobs.desk.store import status_facts as store
from cronjobs.desk.store.schedule_health import ScheduleSurvey, schedules_by_id
from cronjobs.desk.store.status_facts import Deaths, Killed, Misdated, Overrunning, WithoutProcess
from cronjobs.engine.crontime.timing import newest_between, next_after
from cronjobs.engine.rules.occurrences import CRON_RAN, ran_early
from cronjobs.engine.schedules.applying import silence_after
from cronjobs.engine.schedules.planning import TIMING, read
from cronjobs.engine.schedules.wrong_clock import FUTURE_WATERMARK
from cronjobs.engine.store.effects import left_unknown
from cronjobs.engine.store.given_up import KINDS, GivenUp, given_up
from cronjobs.engine.store.schedules import StoredSchedule, ledger_between
from cronjobs.engine.store.schedules import renames as all_renames
from cronjobs.engine.store.ticks import file_in_force
from cronjobs.model import Status, rough

DIFFERENT_FILES: Final = timedelta(minutes=15)
LONGEST_GRACE: Final = timedelta(days=366)
ONE_TICK: Final = timedelta(minutes=1)
# If a host ticked this often within FORGOTTEN, it is expected to go on ticking.
STEADY_TICKS: Final = 10
FORGOTTEN: Final = timedelta(days=1)  # a host that is silent for longer counts as switched off
KILLED_WITHIN: Final = 20  # look for killed ticks within this many times run.every
KILLED_TICKS: Final = 2  # report a finding if at least this many ticks of a host were killed in that time


# --- when ticks are expected ------------------------------------------------------------------------------------------


def late_after(every: timedelta) -> timedelta:
    """Return how long a job may be due without being late. That is two minutes if cron starts a tick each minute."""
    return every + timedelta(minutes=1)


def quiet_after(every: timedelta) -> timedelta:
    """Return how long ticks may be absent without a finding. That is 3 minutes if cron starts a tick each minute."""
    return 2 * every + timedelta(minutes=1)


def last_sign(ticks: Sequence[Mapping[str, Any]]) -> datetime | None:
    """Return when a tick last wrote its row. A tick writes its row when it starts to work and when it ends.

    Ticks that began after the tick with the highest id are ignored. Otherwise a single tick whose clock was years ahead
    would hide an outage for years.
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


def ticking(ticks: Sequence[dict[str, Any]], now: datetime, every: timedelta) -> list[dict[str, Any]]:
    """Return the last ticks of the hosts that are ticking now."""
    return [tick for tick in ticks if abs(now - (tick["finished_at"] or tick["started_at"])) <= quiet_after(every)]


def last_ticking(ticks: Sequence[dict[str, Any]], now: datetime, every: timedelta) -> list[dict[str, Any]]:
    """Return the last ticks of the hosts that are ticking now. If there are none, use the hosts that ticked last."""
    last = last_sign(ticks)
    return ticking(ticks, now, every) or ([] if last is None else ticking(ticks, last, every))


def silent_hosts(
    connection: Connection, last_ticks: Sequence[Mapping[str, Any]], now: datetime, every: timedelta
) -> dict[str, datetime]:
    """Find hosts that ticked steadily within the last day and then stopped, while another host went on.

    Map each host to the time of its last tick. If all hosts stopped together, none has stopped while another went on. A
    container with a new random name for each tick never counts as steady. CRONJOBS_HOST gives such a container a fixed
    name.
    """
    signs = {tick["host"]: tick["finished_at"] or tick["started_at"] for tick in last_ticks}
    newest = max(signs.values(), default=now)
    return {
        host: last
        for host, last in signs.items()
        if quiet_after(every) < now - last < FORGOTTEN
        and newest - last > every
        and store.ticked_at_least(connection, host, STEADY_TICKS)
    }


# --- the facts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScheduleWithoutRun:
    """A schedule past its grace.

    ``since``: when the grace ended, or None if unknown. ``job_id``: the occurrence's job. ``ran``: whether that job
    began after the occurrence was due. ``grew_at``: when the job that causes this was due. ``not_newest``: the
    occurrence past its grace, or None if it is the newest due occurrence.
    """

    why: str
    since: datetime | None = None
    # The existing jobs of the occurrence that has no run, and of later occurrences.
    jobs: tuple[JobNow, ...] = ()
    job_id: int | None = None
    ran: bool = False
    grew_at: datetime | None = None
    not_newest: datetime | None = None


@dataclass(frozen=True)
class TwoFiles:
    """The files between which one host's ticks alternate. Ticks do not apply the files in ``waiting``.

    ``long``: whether the host has ticked with these files for more than DIFFERENT_FILES.
    """

    waiting: tuple[str, ...]
    others: tuple[str, ...]
    long: bool


@dataclass(frozen=True)
class Watched:
    """The facts that ``watch`` reads.

    ``lately``: maps schedules whose newest run did not succeed, by id, to their newest ledger rows.
    """

    schedules: Sequence[StoredSchedule] = ()  # the schedules that may have a problem, ordered by name
    deaths: Deaths = field(default_factory=lambda: Deaths(0, None))
    # Jobs with an unknown effect that succeeded, were cancelled or are pruned, most recently ended first: id, status,
    # ended_at and key.
    left_unknown: Sequence[Any] = ()
    lately: dict[int, list[OccurrenceResult]] = field(default_factory=dict)
    # Maps a schedule's id to the runs that a person triggered, in the form of ledger rows.
    by_trigger: dict[int, list[OccurrenceResult]] = field(default_factory=dict)
    # Maps a schedule to the time up to which a triggered run makes up for missed runs.
    covered: dict[str, datetime] = field(default_factory=dict)
    # Maps a schedule that missed a run to an unfinished run that someone has triggered.
    awaited: dict[str, ByHand] = field(default_factory=dict)
    # Maps a failed schedule to the time when someone triggered a run that succeeded.
    by_hand: dict[str, datetime] = field(default_factory=dict)
    fires: bool = True  # whether a recent tick ran without CRONJOBS_SCHEDULES=off
    fired_at: datetime | None = None
    # Maps a host that refuses its file to the reason and the time when the refusals began.
    refused: dict[str, tuple[str, datetime | None]] = field(default_factory=dict)
    # Maps a host to when it began to record bad entries.
    misconfigured: dict[str, datetime | None] = field(default_factory=dict)
    # Maps a host to when some code there began to fail to import.
    not_loaded: dict[str, datetime | None] = field(default_factory=dict)
    # Maps a host to when its ticks began to fail.
    ended_badly: dict[str, datetime | None] = field(default_factory=dict)
    # Maps a host to when its clock became wrong.
    wrong_clocks: dict[str, datetime | None] = field(default_factory=dict)
    killed: dict[str, Killed] = field(default_factory=dict)  # maps a host to its killed ticks
    # Maps a host to its last ticks, if they could not start the process of a long job.
    without_process: dict[str, WithoutProcess] = field(default_factory=dict)
    overrunning: Sequence[Overrunning] = ()  # jobs that are leased beyond their time limits
    misdated: Sequence[Misdated] = ()  # jobs that are due too late, because a clock was ahead
    # Whether the hosts' files and the file in force have differed for more than DIFFERENT_FILES.
    differ_long: bool = False
    in_force: str | None = None  # the fingerprint of the file that was applied last
    # When the present files and the file in force began to differ, or None if unknown.
    differ_since: datetime | None = None
    # Maps a host whose ticks alternate between several files to these files.
    two_files: dict[str, TwoFiles] = field(default_factory=dict)
    # Maps a queue to when the oldest of its due jobs became due. Only jobs that schedules made count.
    waiting: dict[str, datetime] = field(default_factory=dict)
    # Maps a schedule past its grace to the facts about it.
    without_run: dict[str, ScheduleWithoutRun] = field(default_factory=dict)
    # Maps a schedule with occurrences that did not run to the facts about them, for each reason and job.
    not_run: Mapping[str, tuple[UnrunOccurrences, ...]] = field(default_factory=dict)
    # Maps a kind of finding to the entries that nobody has acknowledged.
    given_up: dict[str, GivenUp] = field(default_factory=dict)


def refusing(connection: Connection, ticks: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, datetime | None]]:
    """Map each host that refuses its file to the reason and the beginning of the refusals.

    *ticks*: the last tick of each host that is ticking now.
    """
    refused = {tick["host"]: why for tick in ticks if (why := did_of(tick["did"]).get("refused")) is not None}
    return {host: (str(why), store.recorded_since(connection, host, "refused")) for host, why in refused.items()}


def watch(
    connection: Connection,
    every: timedelta,
    surveyed: ScheduleSurvey,
    ticks: Sequence[Mapping[str, Any]],
    last_ticks: Sequence[Mapping[str, Any]],
    pauses: Sequence[Mapping[str, Any]],
    now: datetime,
) -> Watched:
    """Gather the facts in a few indexed statements.

    *ticks*: the last tick of each host that is ticking now. *last_ticks*: the result of ``last_ticking``.
    """
    retrying = store.retrying(connection)
    schedules = schedules_by_id(connection, surveyed.doubtful | retrying)
    renames = all_renames(connection) if schedules else []
    active = [each for each in schedules if each.status == "active"]
    unwell = [each for each in active if each.id in surveyed.went_badly | retrying]
    lately = newest_rows(connection, unwell)
    names = {each.name: names_of(each.name, renames) for each in active}
    triggered = cache(lambda name: store.triggered(connection, names[name]))
    no_run = not_run(connection, unwell, lately, triggered, now)
    missing = [each for each in unwell if missed(lately.get(each.id, []))]
    by_trigger = {
        each.id: [row for run in triggered(each.name) if (row := as_ledger_row(each.id, run))]
        for each in unwell
        if each.id in retrying
    }
    failed = [each for each in unwell if failed_runs([*by_trigger.get(each.id, []), *lately.get(each.id, [])], 1)]
    fires = store.fired_lately(connection, silence_after(every))
    in_force = file_in_force(connection)
    files = {tick["host"]: tick["fingerprint"] for tick in ticks if tick["fingerprint"]}
    differ_long, differ_since = _files_differ(connection, every, files, in_force, now)
    queue_paused = any(pause["scope"] in ("all", "queue") for pause in pauses)
    return Watched(
        schedules=schedules,
        deaths=store.deaths(connection),
        left_unknown=left_unknown(connection, store.DEATHS_NAMED, store.EFFECTS_READ),
        lately=lately,
        by_trigger=by_trigger,
        covered={
            each.name: at
            for each in missing
            if (at := covered_by_hand(each, triggered(each.name), no_run.get(each.name, ()), now)) is not None
        },
        awaited={
            each.name: run
            for each in missing
            if (run := next((run for run in triggered(each.name) if run.unfinished), None)) is not None
        },
        by_hand={each.name: at for each in failed if (at := ran_by_hand(triggered(each.name))) is not None},
        fires=fires,
        fired_at=None if fires else store.last_fired_at(connection),
        refused=refusing(connection, ticks),
        misconfigured=_since(connection, last_ticks, "broken", "not_loaded"),
        not_loaded=_since(connection, last_ticks, "not_loaded"),
        ended_badly=_since(connection, ticks, "code"),
        wrong_clocks=_since(connection, ticks, "skew_s"),
        killed=store.killed_lately(connection, KILLED_WITHIN * every, late_after(every), KILLED_TICKS),
        without_process={
            tick["host"]: no_process
            for tick in ticks
            if "without_process" in did_of(tick["did"])
            and (no_process := store.without_process(connection, tick["host"])) is not None
        },
        overrunning=store.overrunning(connection, now),
        misdated=store.misdated(connection, FUTURE_WATERMARK),
        differ_long=differ_long,
        in_force=in_force,
        differ_since=differ_since,
        two_files=_two_files(connection, every),
        waiting=store.scheduled_and_waiting(connection) if queue_paused else {},
        without_run={
            each.name: why
            for each in active
            if (why := _without_run(connection, each, names[each.name], triggered, pauses, now))
        },
        not_run=no_run,
        given_up={kind: found for kind in KINDS if (found := given_up(connection, kind)) is not None},
    )


def _since(connection: Connection, ticks: Sequence[Mapping[str, Any]], *names: str) -> dict[str, datetime | None]:
    """Map each host whose last tick recorded one of *names* to when its ticks began to do so without a break."""
    return {
        tick["host"]: store.recorded_since(connection, tick["host"], *names)
        for tick in ticks
        if not did_of(tick["did"]).keys().isdisjoint(names)
    }


def _files_differ(
    connection: Connection, every: timedelta, files: Mapping[str, str], in_force: str | None, now: datetime
) -> tuple[bool, datetime | None]:
    """Return whether the hosts' *files* and the file in force have differed for DIFFERENT_FILES, and since when.

    During a deploy they differ for a minute or two. The time is None if it is unknown, or if they do not differ.
    """
    if not files or len({in_force, *files.values()} - {None}) < 2:
        return False, None
    applied_at = None if in_force is None else store.in_force_since(connection, in_force)
    window = silence_after(every)
    before = store.files_between(connection, DIFFERENT_FILES + window, DIFFERENT_FILES)
    lasting = before & store.files_between(connection, window, timedelta(0))
    # The file in force counts even if no host has it.
    if in_force is not None and applied_at is not None and applied_at <= now - DIFFERENT_FILES:
        lasting.add(in_force)
    long = len(lasting) > 1
    carried = ((store.carried_since(connection, host, mark), mark) for host, mark in files.items())
    began = sorted((at, mark) for at, mark in (*carried, (applied_at, str(in_force))) if at is not None)
    # If the files have differed for long, a host that has had its file for a shorter time has replaced another host.
    latest = now - DIFFERENT_FILES if long else now
    return long, next((at for at, mark in began if mark != began[0][1] and at <= latest), None)


def _two_files(connection: Connection, every: timedelta) -> dict[str, TwoFiles]:
    """Find the hosts whose ticks alternate between several files, so that ticks do not apply all of the files."""
    # Look back by two more ticks: ``judge_file`` measures the silence of the file in force from the host's last tick,
    # and decides at the host's next tick.
    window = silence_after(every) + 2 * every
    now = _with_several(store.configs_between(connection, window, timedelta(0)))
    before = _with_several(store.configs_between(connection, DIFFERENT_FILES + window, DIFFERENT_FILES)) if now else {}
    found = {}
    for host, files in now.items():
        waiting = tuple(sorted(path for path, waits in files.items() if waits))
        found[host] = TwoFiles(waiting, tuple(sorted(files.keys() - set(waiting))), before.get(host) == files)
    return found


def _with_several(hosts: Mapping[str, Mapping[str, bool]]) -> dict[str, Mapping[str, bool]]:
    return {host: files for host, files in hosts.items() if len(files) > 1 and any(files.values())}


def missed(rows: Sequence[OccurrenceResult]) -> OccurrenceResult | None:
    """Return the newest row that was missed or that a wrong clock ran early, or None if a run has succeeded since."""
    return next(filter(without_a_run, since_a_run(rows)), None)


def since_a_run(rows: Sequence[OccurrenceResult]) -> Iterator[OccurrenceResult]:
    """Yield *rows* (newest first) back to the last success."""
    return takewhile(lambda row: not row.went_well, rows)


def without_a_run(row: OccurrenceResult) -> bool:
    """Return whether nothing ran when the occurrence was due: it was missed, or a wrong clock ran it early."""
    return row.outcome == "missed" or row.ran_early


_BECAME: Final = {"queued": "waits", "failed": "waits for another try", "running": "runs"}


def was_put_off(job: JobNow, now: datetime) -> str:
    due = f"is due in {rough(job.run_at - now)}"
    ahead = ", because a clock was ahead" if job.started_at is not None and job.started_at > now else ""
    return f"failed, and its next try {due}{ahead}" if job.status == "failed" else f"was postponed, and {due}{ahead}"


def _cause(job: JobNow, pauses: Sequence[Mapping[str, Any]], now: datetime, timezone: str) -> str:
    """Describe what keeps *job* from ending, and so holds up later occurrences of its schedule."""
    if job.status == "running" and job.started_at is not None:
        since = in_full(job.started_at, timezone)
        said = f"job {job.id} has been running since {since} ({rough(now - job.started_at)})"
        return said if job.locked_until is None or job.locked_until > now else f"{said}, but its lease ran out"
    put_off = job.waiting and job.run_at > now
    became = f"job {job.id} {was_put_off(job, now) if put_off else _BECAME.get(job.status, f'is {job.status}')}"
    scopes = (("all", ""), ("queue", job.queue))
    pause = next((each for each in pauses if (each["scope"], each["name"]) in scopes), None)
    if pause is None or not job.waiting:
        return became
    by = f" by {pause['by']}" if pause["by"] else ""
    paused = f"{what(pause['scope'], pause['name'])} is paused{by} since {in_full(pause['paused_at'], timezone)}"
    return f"{became}: {paused}"


def _without_run(
    connection: Connection,
    stored: StoredSchedule,
    names: Sequence[Name],
    triggered: Callable[[str], Sequence[ByHand]],
    pauses: Sequence[Mapping[str, Any]],
    now: datetime,
) -> ScheduleWithoutRun | None:
    """Return the facts if the ``grace`` of the schedule's last occurrence ended without a successful run, else None."""
    if isinstance(stored.definition, dict) and "grace_s" not in stored.definition:
        return None
    try:
        timed = read(stored.name, stored.definition)
    except ValueError as error:
        why = f"the schedule's definition cannot be read: {error}"
        return ScheduleWithoutRun(why, store.defined_at(connection, names))
    schedule, when = timed.schedule, timed.when
    if schedule.grace is None:
        return None
    grace = grace_of(schedule)
    began = store.defined_at(connection, names, (*TIMING, "grace_s")) or now
    last = newest_between(when, max(began, now - LONGEST_GRACE), now - grace, 1)
    if not last:
        # An edit of the timing or the grace does not replace a missing run. So look for an occurrence from before the
        # edit.
        earlier = store.further_back(connection, stored.id, now - grace, (), 1)
        last = [row.last_for for row in earlier if row.last_for > now - LONGEST_GRACE]
    if not last:
        return None
    rows = ledger_between(connection, stored.id, last[0], now)
    named = {row.job_id for row in rows if row.job_id is not None}
    jobs = store.jobs_now(connection, named)
    # A skipped occurrence's row names the job that it gave way to. A job without a row is pruned, so it ended long ago
    # and counts as succeeded.
    succeeded = {id_ for id_ in named if id_ not in jobs or jobs[id_].status == Status.SUCCEEDED}
    tried: dict[int | None, tuple[int, datetime | None]] = {id_: (j.attempts, j.started_at) for id_, j in jobs.items()}
    early = {row.job_id for row in rows if ran_early(row.reason, row.last_for, *tried.get(row.job_id, (None, None)))}
    if succeeded - early or any(row.reason == CRON_RAN for row in rows):
        return None
    by_hand = ran_by_hand(triggered(stored.name))
    if by_hand is not None and by_hand >= last[0]:
        return None
    last_run = store.last_succeeded_for(connection, stored.id)
    after = max(at for at in (began, by_hand, last_run) if at is not None)
    first = min(next_after(when, after) or last[0], last[0])
    due, job_id, cause = last[0], None, None
    if not rows:
        # A tick has settled the earlier occurrences, perhaps as skipped by a pause. So begin with the first one after.
        due = first = min(max(first, next_after(when, stored.seen_until) or first), due)
        why = f"held back, {stored.paused}" if stored.paused else "no tick has settled it"
    else:
        # The first row belongs to this occurrence. Later rows say nothing about this occurrence.
        row = rows[0]
        cause = jobs.get(row.job_id) if row.job_id is not None else None
        if cause is not None and schedule.overlap != "allow":
            cause = waited_for(cause, store.heads(connection, [stored.name]).get(stored.name))
        job_id = row.job_id if row.outcome == "enqueued" else None
        if job_id is not None and job_id in early & succeeded:
            why = f"job {job_id} ran before that, because a clock was ahead"
        elif cause is not None and (job_id is not None or cause.waiting or cause.status == "running"):
            why = _cause(cause, pauses, now, schedule.timezone)
            due = last[0] if cause.id == job_id else first  # the job holds up all occurrences since the first
        else:
            why = f"{row.outcome} ({row.reason})"
    ran = job_id in jobs and job_id not in early and jobs[job_id].attempts > 0
    why = f"due {in_full(due, schedule.timezone)}: {why}"
    grew_at = None if cause is None else cause.scheduled_for
    following = next_after(when, due)
    not_newest = due if following is not None and following <= now else None
    return ScheduleWithoutRun(why, first + grace, tuple(jobs.values()), job_id, ran, grew_at, not_newest)
