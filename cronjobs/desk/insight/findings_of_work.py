"""Findings about jobs, queues and job types."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from cronjobs.desk.insight.finding import (
    NAMED,
    Covered,
    Finding,
    Severity,
    given_up_text,
    no_longer_in_file,
    several,
    typed,
    wait_words,
    waiting_words,
)
from cronjobs.desk.insight.formatting import counted, long_jobs_off, pace_lately
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.kept_from_starting import did_not_start
from cronjobs.desk.insight.same_cause import (
    SameCause,
    covered_by_type,
    covered_failing,
    failing_runs,
    how_they_ended,
)
from cronjobs.desk.insight.slow_types import RUNS_IN_A_LEASE
from cronjobs.desk.insight.stopped_jobs import settling
from cronjobs.desk.insight.waiting import LateGroup, entries_of
from cronjobs.desk.insight.watched import late_after
from cronjobs.desk.store.failing_types import IN_A_ROW
from cronjobs.desk.store.status_facts import DEATHS_COUNTED
from cronjobs.engine.config.settings import RunSettings
from cronjobs.engine.rules.crashing_types import CLEAN_ENDS
from cronjobs.engine.store.given_up import PRUNED
from cronjobs.engine.store.misfits import WaitingMisfits
from cronjobs.engine.tick.not_started import (
    AT_LIMIT,
    LONG_OFF,
    NO_PLACE,
    NO_PROCESS,
    NO_WORKER,
    OUT_OF_TIME,
    PASSED_OVER,
    TOO_SHORT,
)
from cronjobs.model import duration_text, rough
from cronjobs.text import one_line

NEARLY_FULL: Final = 0.8
_WHEN_FULL: Final = {
    "error": "it refuses new jobs",
    "drop": "it drops new jobs",
    "wait": "enqueuers wait or are refused",
}
_WHY_LATE: Final = {
    NO_PLACE: "all places for long jobs are taken (run.long_jobs)",
    TOO_SHORT: "{their} timeout is longer than a whole tick (run.budget, --budget)",
    OUT_OF_TIME: "{their} timeout was longer than the time left in recent ticks (run.budget, --budget)",
    NO_WORKER: "the ticks are saturated: all their workers were busy until the end (run.workers)",
    AT_LIMIT: "recent ticks started as many jobs as --limit allows",
    # This entry stays last: the first reason that fits is reported, and another host may run long jobs.
    LONG_OFF: "{their} timeout is longer than a tick allows, and {off}",
}


def work_findings(health: Health, run: RunSettings, same: SameCause) -> Iterator[Finding]:
    yield from _late(health, run, same)
    for job_type in sorted((health.waiting.unresolved.keys() | health.unknown_schedules.keys()) - same.not_unresolved):
        yield replace(_unknown_type(job_type, health), covers=covered_by_type(job_type, same))
    if health.waiting.more_types:
        wait = wait_words(health.waiting.more_unresolved, "due job")
        types = counted(health.waiting.more_types, "more job type")
        text = f"{wait} for {types} that no host has; only the oldest types are listed one by one"
        yield Finding("unresolved", text, Severity.CRITICAL, command="cronjobs jobs list --status queued")
    yield from map(_misfit, health.misfits)
    for failing in health.failing_types:
        if failing.job_type in same.types or failing.job_type in same.unknown_types:
            continue
        wait = f"{counted(failing.jobs, 'job')} of this type {'waits' if failing.jobs == 1 else 'wait'} for another try"
        text = f"the last {IN_A_ROW} runs of {failing.job_type} failed, with no success in between; {wait}"
        command = typed(f"cronjobs jobs list --status {failing.status} --type", failing.job_type)
        yield Finding("failing_type", text, since=failing.since, command=command, subject=failing.job_type)
    yield from _deaths(health, same)
    yield from _left_unknown(health)
    if (gone := health.watch.given_up.get(PRUNED)) is not None:
        what = given_up_text(gone, "dead job")
        them = "it" if what.startswith("1 ") else "them"
        text = (
            f"retention removed {what} of {several(sorted(gone.by_name))} before anybody retried, cancelled or "
            f'dismissed {them}; "cronjobs ack pruned" ends this finding'
        )
        if unknown := [each for each in health.watch.left_unknown if each.id in gone.jobs]:
            text += (
                f", but not the finding about the effect {one_line(unknown[0].key, 200)} of job {unknown[0].id}: find "
                f'out whether the effect happened, and run "{settling(unknown[0].key)}" (or not-done)'
            )
        command = "cronjobs audit --action pruned"
        yield Finding("pruned", text, since=gone.since, command=command, rows=tuple(map(str, gone.ids)))
    yield from _queues(health)
    for each in health.crashing:
        text = (
            f"two runners of {each.job_type} died or lost the database. In case its code crashed them, jobs of this "
            f"type now run in child processes until {CLEAN_ENDS} in a row have ended without a crash "
            f"({each.clean_ends} so far) or an hour has passed"
        )
        command = typed("cronjobs history --type", each.job_type)
        yield Finding("crashing", text, since=each.found_at, command=command, subject=each.job_type)
    for job_type, took in health.slow.items():
        lease = duration_text(run.lease)
        enough = duration_text(timedelta(seconds=math.ceil(RUNS_IN_A_LEASE * took / timedelta(seconds=1))))
        text = (
            f"{job_type} typically runs for {rough(took)}, and run.lease is {lease}: set run.lease to at least "
            f"{enough} ({RUNS_IN_A_LEASE} such runs), or a run can lose its lease after a few late heartbeats"
        )
        yield Finding("lease", text, Severity.NOTICE, command="cronjobs config show run.lease", subject=job_type)


def _late(health: Health, run: RunSettings, same: SameCause) -> Iterator[Finding]:
    at_work = health.ticking(run.every)
    kept = _kept_from_beginning(health, at_work)
    groups = [group for group in health.waiting.late if (group.queue, group.job_type) not in same.no_room]
    late = sum(group.late for group in groups) + health.waiting.more_late
    # An ack covers these queues and types, so a job of another queue or type that becomes late reopens the finding.
    places = {(group.queue, group.job_type) for group in groups} | kept.places
    rows = tuple(sorted(f"{queue}/{job_type}" for queue, job_type in places))
    since = min((at for at in (health.waiting.late_since, kept.since) if at is not None), default=None)
    grew_at = max((at for at in (health.waiting.late_since, kept.grew_at) if at is not None), default=None)
    command = "cronjobs jobs list --status queued"
    found = Finding("late", "", since=since, command=command, rows=rows, grew_at=grew_at)
    # If no tick runs, jobs are late for that reason, and another finding reports it.
    if late and at_work:
        apart = [each.group for each in health.stranded]
        could = [group for group in groups if group not in apart]
        runnable = sum(group.late for group in could) + health.waiting.more_late
        jobs, have = ("1 job", "has") if late == 1 else (f"{late:,} jobs", "have")
        text = f"{jobs} {have} been due for more than {duration_text(late_after(run.every))}"
        why = list(_why_stranded(health))
        if runnable:
            text += f" and {have} not started" if runnable == late else f", and {runnable:,} of them could run"
            causes = health.why_none_starts(run.every)
            others = [group for group in could if (group.queue, group.job_type) not in kept.places]
            if causes:
                why.insert(0, did_not_start("this host", causes))
            elif health.dies_importing(run.every):
                why.insert(0, "the last ticks were killed while importing the handlers")
            elif others or health.waiting.more_late or not kept.places:
                why.insert(0, _why_late(others, at_work, run.workers))
        yield replace(found, text=f"{text}: {'; '.join([*kept.why, *why])}")
    elif kept.places:  # do not wait until the jobs are late: no later tick will start them
        text = f"{counted(kept.jobs, 'due job')} {'has' if kept.jobs == 1 else 'have'} not started"
        yield replace(found, text=f"{text}: {'; '.join(kept.why)}")
    for beyond in health.waiting.out_of_reach:
        waits, options = wait_words(beyond.jobs, "due job"), ", ".join(beyond.options)
        text = (
            f'{waits} in queue "{beyond.queue}", type {beyond.job_type}: the options of every tick exclude '
            f"{'it' if beyond.jobs == 1 else 'them'}; all ticks ran with {options}"
        )
        command = typed("cronjobs jobs list --queue", beyond.queue)
        subject = f"{beyond.queue}/{beyond.job_type}"
        yield Finding("out_of_reach", text, since=beyond.since, command=command, subject=subject)


class _KeptFromBeginning(NamedTuple):
    """Due jobs that runners could not begin: their queues and types, how many, why, and since when, if known.

    ``grew_at``: when the oldest of the often released jobs was created, which is before its first release.
    """

    places: frozenset[tuple[Any, Any]] = frozenset()
    jobs: int = 0
    why: tuple[str, ...] = ()
    since: datetime | None = None
    grew_at: datetime | None = None


def _kept_from_beginning(health: Health, at_work: Sequence[Mapping[str, Any]]) -> _KeptFromBeginning:
    """Return the long jobs whose processes the last ticks could not start, and the jobs that were released often."""
    without = _without_process(health, at_work)
    released = [each for each in health.waiting.released if at_work and each[:2] not in without.places]
    why = (
        f"runners released {counted(each.jobs, 'job')} of {each.job_type} before {'it' if each.jobs == 1 else 'they'} "
        f"began, {each.times:,} times in a row; the last reason: {one_line(each.error, 200)}"
        for each in released[:NAMED]
    )
    more = sum(each.jobs for each in released[NAMED:])
    return without._replace(
        places=without.places | {each[:2] for each in released},
        jobs=without.jobs + sum(each.jobs for each in released),
        why=(*without.why, *why, *([f"and {counted(more, 'job')} of other types"] if more else ())),
        grew_at=min((each.created_at for each in released), default=None),
    )


def _without_process(health: Health, at_work: Sequence[Mapping[str, Any]]) -> _KeptFromBeginning:
    found = [
        (tick["host"], entry)
        for tick in at_work
        for entry in entries_of(tick)
        if entry.get("why") == NO_PROCESS
        and tick["host"] in health.watch.without_process
        and health.waiting.of(str(entry.get("queue"))).due
    ]
    why = []
    for host, entry in dict(reversed(found)).items():
        ticks = health.watch.without_process[host].ticks
        last = "the last tick" if ticks == 1 else f"the last {ticks:,} ticks"
        why.append(
            f"{last} of host {host} could not start a process for {entry.get('job_type')}: {entry.get('error')} "
            "(see cron's mail or the log)"
        )
    return _KeptFromBeginning(
        frozenset((entry.get("queue"), entry.get("job_type")) for _, entry in found),
        max((sum(_jobs(entry) for of, entry in found if of == host) for host, _ in found), default=0),
        tuple(why),
        min((health.watch.without_process[host].since for host, _ in found), default=None),
    )


def _jobs(entry: Mapping[str, Any]) -> int:
    jobs = entry.get("jobs")
    return jobs if isinstance(jobs, int) else 1


def _why_late(late: Sequence[LateGroup], ticks: Sequence[Mapping[str, Any]], workers: int) -> str:
    """Return why the last ended ticks left these jobs waiting, from what those ticks recorded."""
    passed_over = [group for group in late if group.recorded == {PASSED_OVER}]
    if passed_over and (others := [group for group in late if group not in passed_over]):
        return f"{_why_late(others, ticks, workers)}; {_why_late(passed_over, ticks, workers)}"
    if passed_over:
        count = sum(group.late for group in late)
        jobs, types = counted(count, "job"), several(sorted({group.job_type for group in late}))
        rows = "its row" if count == 1 else "their rows"
        return (
            f"ticks with a free worker passed over {jobs} of {types}; another transaction may hold {rows} "
            "(on PostgreSQL, see pg_stat_activity)"
        )
    for why, words in _WHY_LATE.items():
        # If jobs of all these groups are succeeding, a backlog is the only reason why ticks run out of time.
        if why == OUT_OF_TIME and late and all(group.a_minute for group in late):
            return _backlog(late, workers)
        if why == OUT_OF_TIME and late and all(group.a_minute or group.behind for group in late):
            it = "it" if sum(group.late for group in late) == 1 else "them"
            return f"jobs that come before {it} keep all workers busy (run.workers: {workers})"
        if late and all(why in group.recorded for group in late):
            hosts = {tick["host"] for tick in ticks if any(each.get("why") == LONG_OFF for each in entries_of(tick))}
            their = "their" if sum(group.late for group in late) > 1 else "its"
            return words.format(their=their, off=long_jobs_off(hosts, no_other=len(hosts) == len(ticks)))
    if any(group.recorded for group in late):
        return "the last ticks recorded different reasons for them"
    return "the last ticks recorded no reason"


def _backlog(late: Sequence[LateGroup], workers: int) -> str:
    queues = several([f'"{name}"' for name in sorted({group.queue for group in late})])
    queues = f"queue {queues}" if len({group.queue for group in late}) == 1 else f"queues {queues}"
    pace = pace_lately(sum(group.a_minute for group in late))
    return f"a backlog in {queues} (run.workers: {workers}); of these jobs, {pace}"


def _why_stranded(health: Health) -> Iterator[str]:
    if types := sorted({each.group.job_type for each in health.stranded}):
        yield f"no ticking host can run {several(types)}"
    it = "it" if sum(each.group.late for each in health.stranded) == 1 else "them"
    hosts = {each.host: each.at for each in health.stranded if each.host is not None and each.at is not None}
    for host, at in sorted(hosts.items()):
        yield f"{host}, which could run {it}, has not ticked for {rough(health.now - at)}"


def _unknown_type(job_type: str, health: Health) -> Finding:
    count, names = health.waiting.unresolved.get(job_type, 0), health.unknown_schedules.get(job_type, [])
    why = f'no handler or command "{job_type}" is registered here'
    if health.judged_by_ticks:
        why = f'no host that ticks has a handler or command "{job_type}"'
    if removed := health.removed_schedules.get(job_type):
        why += f"; {no_longer_in_file(several(removed), len(removed))}"
    text = f"{' and '.join(waiting_words(count, names))}: {why}"
    return Finding(
        "unresolved",
        text,
        Severity.CRITICAL,
        since=health.unknown_since.get(job_type),
        command="cronjobs check" if names else typed("cronjobs explain --type", job_type),
        subject=job_type,
        rows=tuple(names),
    )


def _misfit(found: WaitingMisfits) -> Finding:
    what = found.error.removeprefix("payload does not fit ").removeprefix(f"{found.job_type}:").strip()
    jobs = "payload of 1 job does not fit" if found.jobs == 1 else f"payloads of {found.jobs:,} jobs do not fit"
    reasons = f", for {found.reasons:,} reasons; one of them" if found.reasons > 1 else ""
    return Finding(
        "misfit",
        f"the {jobs} the handler of {found.job_type}{reasons}: {what}",
        since=found.since,
        command=f"cronjobs explain {found.first}",
        subject=found.job_type,
        rows=(str(found.newest),),
    )


def _deaths(health: Health, same: SameCause) -> Iterator[Finding]:
    found = health.watch.deaths
    if not found.count:
        return
    more = f"{found.count:,} or more" if found.count == DEATHS_COUNTED else f"{found.count:,}"
    jobs = "1 dead job that nobody has" if found.count == 1 else f"{more} dead jobs that nobody has"
    yield Finding(
        "dead",
        "; ".join(
            [f"{jobs} retried or dismissed", *_unknown_effects(found.unknown_effects), *_what_died(health, same)]
        ),
        Severity.CRITICAL,
        since=found.since,
        command="cronjobs jobs list --status dead",
        rows=tuple(map(str, found.newest)),
        grew_at=max(found.last_of.values(), default=None),  # a retried job that dies again is no new row
        covers=(
            *(Covered(f"schedule:{name}") for name in same.late),
            *covered_failing(same.failing, same),
            *(Covered(f"failing_type:{job_type}") for job_type in same.types),
        ),
        follows=(
            *([Covered("not_run", same.died)] if same.died else []),
            *(
                Covered(f"{kind}:{job_type}", until=at)
                for job_type, at in found.last_of.items()
                for kind in ("failing_type", "misfit")
            ),
        ),
    )


def _unknown_effects(jobs: Sequence[int]) -> Iterator[str]:
    """Report the dead jobs that have an effect with an unknown outcome. They may have died for another reason."""
    if jobs:
        unknown = f"nobody knows whether an effect of job {jobs[0]} happened"
        if len(jobs) > 1:
            unknown = f"for {len(jobs):,} of them, such as job {jobs[0]}, nobody knows whether an effect happened"
        yield f'{unknown} (for details, run "cronjobs explain {jobs[0]}")'


_JOB_IS_OVER: Final = {"cancelled": "the job was cancelled", "succeeded": "the job succeeded without recording it"}


def _left_unknown(health: Health) -> Iterator[Finding]:
    if not (found := health.watch.left_unknown):
        return
    last = found[0]
    effect = f"whether the effect {one_line(last.key, 200)} of job {last.id} happened"
    more = f" ({counted(len(found) - 1, 'more job')} left an unknown effect, too)" if len(found) > 1 else ""
    over = _JOB_IS_OVER.get(last.status, "retention removed the job")
    settle = "settle the effect" if last.status is not None else f'run "{settling(last.key)}" (or not-done)'
    text = f"nobody knows {effect}, and {over}{more}; find out, and {settle}"
    alone = len(found) == 1 and last.status is not None
    yield Finding(
        "effect",
        text,
        since=found[-1].ended_at,
        command=f"cronjobs explain {last.id}" if alone else "cronjobs effects list --state unknown",
        rows=tuple(str(job.id) for job in reversed(found)),
        grew_at=last.ended_at,
        job_id=last.id if alone else None,
    )


def _what_died(health: Health, same: SameCause) -> Iterator[str]:
    """Describe which schedules and types the dead jobs affect."""
    if same.late:
        have, its = ("has", "its") if len(same.late) == 1 else ("have", "their")
        ran = all(health.watch.without_run[name].ran for name in same.late)
        yield f"{several(same.late)} {have} not {'succeeded' if ran else 'run'} within {its} grace"
    if failing := [name for name in same.failing if name not in same.late]:
        runs = failing_runs(health.watch)
        yield f"the last runs of {several(failing)} {how_they_ended([runs[name] for name in failing])}"
    if same.types:
        yield f"other jobs of {several(same.types)} are failing, too"


def _queues(health: Health) -> Iterator[Finding]:
    for name, queue in health.waiting.queues.items():
        if not isinstance(queue.max_waiting, int) or queue.waiting < NEARLY_FULL * queue.max_waiting:
            continue
        then = _WHEN_FULL[queue.on_full or "error"]
        filled = f"({queue.waiting:,} of {queue.max_waiting:,})"
        text = f'queue "{name}" is full {filled}: {then}'
        if not queue.full:
            text = f'queue "{name}" is nearly full {filled}; once it is full, {then}'
        command = typed("cronjobs jobs list --queue", name)
        yield Finding("full", text, Severity.NOTICE, command=command, subject=name)
