"""Gather the database's facts about jobs, for ``explain`` to describe."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.desk.insight.explain_facts import (
    AttemptFacts,
    AuditEntry,
    DoubtfulEffect,
    Excluded,
    JobFacts,
    JobLife,
    KilledTicks,
    LateTry,
    LedgerFacts,
    NotStartedRecord,
    Now,
    OccurrenceOfJob,
    PauseFacts,
    TickFacts,
    Triggered,
    TypeFacts,
)
from cronjobs.desk.insight.explain_phrases import missing_because
from cronjobs.desk.insight.formatting import counted, is_over
from cronjobs.desk.insight.judged_types import judged_types
from cronjobs.desk.insight.kept_from_starting import (
    kept_from_starting,
    kept_from_starting_here,
    recorded_causes,
    recorded_outage,
)
from cronjobs.desk.insight.releasing import Holders
from cronjobs.desk.insight.same_cause import faults_here, faults_of_type, possible_causes, recorded_faults
from cronjobs.desk.insight.schedule_history import (
    ends_at,
    in_force,
    pause_from,
    pauses_over_time,
)
from cronjobs.desk.insight.waiting import options_against
from cronjobs.desk.insight.watched import last_ticking, quiet_after
from cronjobs.desk.rules.occurrence_results import JobNow, overrun_since, why_not_run
from cronjobs.desk.rules.pausing import of_queue
from cronjobs.desk.rules.schedule_names import Name, names_of
from cronjobs.desk.rules.settling import settled_effect
from cronjobs.desk.rules.tick_rows import did_of, outages_in, texts_in, was_importing
from cronjobs.desk.store import explaining, trail
from cronjobs.desk.store.status_facts import triggered
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.crontime.zone_names import zone_exists
from cronjobs.engine.execution.foreground_claim import WORKER, is_by_hand
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs.job_types import JobType, JobTypes
from cronjobs.engine.probe.linger import BEGAN
from cronjobs.engine.rules.concurrency import Limit, reached
from cronjobs.engine.rules.occurrences import ON_TIME_WITHIN
from cronjobs.engine.rules.progress import reported_of
from cronjobs.engine.rules.recovery_policy import seconds
from cronjobs.engine.store import operating, schedules
from cronjobs.engine.store.concurrency import running_by_key
from cronjobs.engine.store.effects import doubtful_of
from cronjobs.engine.store.given_up import pruned_dead
from cronjobs.engine.store.job_types import present_types, remembered
from cronjobs.engine.store.meta import is_ours, read_meta
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.store.ticks import last_ticks
from cronjobs.engine.tick.not_started import (
    ELSEWHERE,
    LONG_OFF,
    NO_PLACE,
    NO_PROCESS,
    NO_ROOM,
    OUT_OF_TIME,
    PASSED_OVER,
    TOO_SHORT,
    UNKNOWN_TYPE,
    entry_for,
    in_words,
    why_it_must_fit,
)
from cronjobs.engine.tick.result import as_noted
from cronjobs.errors import ForeignDatabase, MovedDatabase
from cronjobs.model import Status
from cronjobs.reserved import EXEC_PREFIX
from cronjobs.text import one_line

NOT_DONE: Final = (Status.DEAD, Status.CANCELLED)
ACTS_ON_JOBS: Final = ("cancel", "retry", "release", "reschedule", "dismiss")
LATE_TRIES: Final = 10  # find out for at most this many attempts why they started late

HOLDERS_NAMED: Final = 3
# These reasons keep only this tick from running the job: a tick on another host, or with other options, may run it.
NOT_BY_THIS_TICK: Final = (ELSEWHERE, "--queue", "--only")
_HAD_A_WORKER: Final = "the tick had a free worker, but passed the job over"


def surroundings(connection: Connection, settings: Settings) -> Now:
    newest = explaining.newest_tick(connection)
    return Now(
        now=database_now(connection),
        last_tick=None if newest is None else tick_facts(newest),
        every=settings.run.every,
        quiet_after=quiet_after(settings.run.every),
        succeeded_kept=settings.retention.succeeded,
        dead_kept=settings.retention.dead,
        ledger_kept=settings.retention.occurrences,
        foreign=_foreign(connection, settings),
        kept_from_starting=kept_from_starting_here(settings),
    )


def _foreign(connection: Connection, settings: Settings) -> str | None:
    whose = read_meta(connection)
    try:
        is_ours(settings, whose.project, whose.environment)
    except (ForeignDatabase, MovedDatabase) as error:
        return None if settings.broken or settings.without_project else str(error)
    return None


def tick_facts(row: Any) -> TickFacts:
    entries = tuple(texts_in(row.did, "broken").items())
    kept = kept_from_starting(row.did)
    # Skip outages that ended before this tick began: this tick recorded them for an earlier tick that could not.
    away = next((each.why for each in outages_in(row.did) if each.ended >= row.started_at), None)
    importing = was_importing(row.did)
    missing = tuple(texts_in(row.did, "not_loaded").items())
    off = row.schedules_on == 0
    return TickFacts(row.host, row.started_at, row.finished_at, entries, kept, off, away, importing, missing)


def settler_of(connection: Connection, row: Any) -> TickFacts | None:
    """Return the tick that settled a ledger row. Return None if an operator settled it, or if the tick is pruned."""
    if row.tick is None:
        return None
    found = explaining.ticks_of(connection, {row.tick}).get(row.tick)
    return None if found is None else tick_facts(found)


def count_of(row: Any) -> int:
    """Return the value of the column ``count``. ``row.count`` would be the method that rows inherit from tuple."""
    return int(row._mapping["count"])


def ledger_facts(row: Any) -> LedgerFacts:
    when = (row.first_for, row.last_for, count_of(row), row.decided_at)
    return LedgerFacts(row.outcome, row.reason, row.job_id, *when, tick=row.tick)


def job_facts(
    connection: Connection,
    job_ids: Collection[int],
    settings: Settings,
    types: Callable[[], JobTypes],
    around: Now,
    pause_rows: Iterable[Any],
) -> dict[int, JobFacts]:
    """Return the facts about those jobs that still have a row.

    Import the user's modules only if one of these jobs waits.
    """
    if not job_ids:
        return {}
    rows = explaining.jobs_of(connection, job_ids)
    attempts: dict[int, list[AttemptFacts]] = {}
    last_runner: dict[int, str] = {}
    for run in explaining.attempts_of(connection, job_ids):
        before = attempts.setdefault(run.job_id, [])
        last_runner[run.job_id] = run.runner
        attempt = AttemptFacts(
            run.attempt,
            run.outcome,
            run.started_at,
            run.finished_at,
            _host(run.runner),
            run.error_type,
            run.error,
            by_hand=run.worker == WORKER,
        )
        before.append(replace(attempt, released=run.attempt - 1 - (before[-1].number if before else 0)))
    doubtful: dict[int, list[DoubtfulEffect]] = {}
    for row in doubtful_of(connection, job_ids):
        effect = DoubtfulEffect(row.key, row.attempt, row.begun_at, row.repeats, bool(row.skipped))
        doubtful.setdefault(row.job_id, []).append(effect)
    brakes = [pause for pause in map(pause_from, pause_rows) if in_force(pause, around.now)]
    running = running_by_key(connection) if settings.limits else {}
    on_clusters = explaining.workers_of(connection, [row.id for row in rows if row.status == "running"])
    passed, beyond = _passed_over(connection, rows, attempts, around)
    holders, budget = Holders(), settings.run.budget
    any_waits = any(row.status in ("queued", "failed") for row in rows)
    judged = judged_types(connection, settings.run.every, types()) if any_waits else None
    of_types: dict[str, TypeFacts] = {}
    over = operating.states(connection, [row.id for row in rows if row.status in NOT_DONE])
    found = {}
    for row in rows:
        waits = row.status in ("queued", "failed")
        job_type = types().types.get(row.job_type) if waits else None
        unknown = judged is not None and waits and (job_type is None or not judged.knows_for(row, around.now))
        if unknown and row.job_type not in of_types:
            of_types[row.job_type] = type_facts(connection, row.job_type, settings, types())
        stopped_by = reached(settings.limits, running, row.concurrency_key) if waits else None
        paused = of_queue(brakes, row.queue)
        found[row.id] = JobFacts(
            **{name: row._mapping[name] for name in _SAME},
            attempt=row.attempts,
            dismissed=bool(row.dismissed),
            unfit_to_retry=over[row.id].unfit_to_retry if row.id in over else None,
            reported=reported_of(row.progress) if row.status == "running" else None,
            most=row.max_attempts or (job_type.retry.max_attempts if job_type else None),
            host=_host(row.locked_by) if row.locked_by else None,
            by_hand=is_by_hand(row.runner_s),
            runner_gone=row.status == "running" and holders.is_gone(row.locked_by or "") is True,
            overrun_since=overrun_since(row.started_at, seconds(row.runner_s), around.now),
            attempts=tuple(attempts.get(row.id, ())),
            released=_released_last(row, attempts.get(row.id, ())),
            released_because=_released_because(row, attempts.get(row.id, ())),
            doubtful=tuple(doubtful.get(row.id, ())),
            paused=paused[0] if waits and paused else None,
            limit=_limit(connection, stopped_by, row.concurrency_key) if stopped_by else None,
            known=not waits or job_type is not None,
            type_facts=of_types.get(row.job_type) if waits else None,
            passed_over=unless_it_waited_for(stopped_by, passed.get(row.id)),
            out_of_reach=beyond.get(row.id),
            killed=(
                _killed(connection, row, attempts.get(row.id, ()), last_runner.get(row.id), around, budget)
                if len(rows) == 1
                else None
            ),
            cluster_worker=on_clusters.get(row.id),
            executor=job_type.executor if job_type is not None else None,
            long_places=(
                settings.run.long_jobs
                if waits and _is_long(settings.run.longest_in_tick, row.timeout_s, job_type)
                else None
            ),
        )
    return found


def _released_last(row: Any, attempts: Sequence[AttemptFacts]) -> int:
    """Return how many claims after the last of *attempts* were released before they began.

    If an ended job has no attempts, retention removed them, so nothing is known about its claims.
    """
    if not attempts and row.status not in ("queued", "failed", "running"):
        return 0
    ended = row.attempts - (row.status == "running")
    return int(max(0, ended - (attempts[-1].number if attempts else 0)))


def _released_because(row: Any, attempts: Sequence[AttemptFacts]) -> str | None:
    """Return why the last claim was released. A release without a reason leaves the last attempt's error in the row."""
    if row.status != "queued" or not _released_last(row, attempts) or None in (row.last_failed_at, row.started_at):
        return None
    return str(row.last_error or "") if row.last_failed_at >= row.started_at else None


def _limit(connection: Connection, limit: Limit, key: str) -> str:
    """Return why a job with this key waits for *limit*, and which jobs run under that limit."""
    holders = explaining.jobs_under(connection, limit.prefix, key, HOLDERS_NAMED + 1) if limit.most != 0 else []
    runners = Holders()
    named = []
    for each in holders[:HOLDERS_NAMED]:
        gone = ", whose process is gone" if runners.is_gone(each.locked_by) else ""
        named.append(f"job {each.id} on {_host(each.locked_by)}{gone}")
    more = " and others" if len(holders) > HOLDERS_NAMED else ""
    return f"{limit.reached} by {', '.join(named)}{more}" if named else limit.reached


def _passed_over(
    connection: Connection, rows: Sequence[Any], attempts: Mapping[int, Sequence[AttemptFacts]], around: Now
) -> tuple[dict[int, NotStartedRecord], dict[int, Excluded]]:
    """Return two maps by job id: the last tick that recorded why it left the job, and the options that exclude the job.

    The second map has only the jobs that are excluded by the options of all ticks. If *rows* has a single job, the
    first map includes the job even if its last attempt has started since.
    """
    now = around.now
    due = {row.id: now for row in rows if _waits_due(row, now)}
    waiting = due.keys()
    before = {row.id: attempts.get(row.id, ()) for row in rows}
    if not due and len(rows) == 1 and (begun := _begun(rows[0], before[rows[0].id])):
        due, before = {rows[0].id: begun[-1]}, {rows[0].id: before[rows[0].id][: len(begun) - 1]}
    asked = [row for row in rows if row.id in due]
    if not asked:
        return {}, {}
    begin = min(row.run_at for row in asked) - explaining.LONGEST_TICK
    records = explaining.records_between(connection, begin, max(due.values()))
    found: dict[int, NotStartedRecord] = {}
    beyond: dict[int, Excluded] = {}
    for row in asked:
        # A job may be younger than its due time, for example if a backfill made it.
        since = max(row.run_at, row.created_at, *(attempt.finished_at for attempt in before[row.id]))
        since_due = [tick for tick in records if since <= tick.finished_at <= due[row.id]]
        begun_since = [tick for tick in since_due if tick.started_at >= max(row.run_at, row.created_at)]
        excluded = [(tick, options) for tick in begun_since if (options := options_against(tick, _place(row)))]
        if row.id in waiting and excluded and len(excluded) == len(begun_since):
            by_host = {tick.host: options for tick, options in reversed(excluded)}
            beyond[row.id] = Excluded(min(tick.started_at for tick, _ in excluded), tuple(sorted(by_host.items())))
        last = _last_at_work(since_due, around.quiet_after)
        off = _long_jobs_off(last, row)
        whys = {entry["why"] for tick in last.values() if (entry := entry_for(tick.not_started, **_place(row)))}
        for tick in since_due:
            if tick.host not in last:
                continue  # this host no longer ticks, so its record does not explain why the job still waits
            entry = entry_for(tick.not_started, **_place(row))
            if entry is not None and entry["why"] == LONG_OFF and not off:
                continue  # another host that ticks may run the job
            if entry is not None and (why := in_words(entry)) is not None:
                passed_over = entry["why"] == PASSED_OVER and tick in begun_since
                found[row.id] = NotStartedRecord(
                    tick_facts(tick),
                    _HAD_A_WORKER if passed_over else why + _more(entry["why"], tick, row) + why_it_must_fit(entry),
                    too_short=entry["why"] == TOO_SHORT,
                    again=any(_ran_in(tick, each) for each in attempts.get(row.id, ())),
                    no_room=entry["why"] in NO_ROOM,
                    out_of_time=entry["why"] == OUT_OF_TIME,
                    no_place=entry["why"] == NO_PLACE,
                    passed_over=passed_over,
                    not_by_any_tick=not whys.isdisjoint(NOT_BY_THIS_TICK),
                    no_process=entry["why"] == NO_PROCESS,
                    long_off=off if entry["why"] == LONG_OFF else (),
                )
                break
    return found, beyond


def unless_it_waited_for(obstacle: object, passed_over: NotStartedRecord | None) -> NotStartedRecord | None:
    """Return *passed_over*, or None if the record is about other jobs and an *obstacle* keeps this job waiting.

    If many jobs wait, a tick looks at only a few of them, and records why it did not start the first ones. For a job
    behind them, that reason may be wrong.
    """
    return None if obstacle is not None and passed_over is not None and passed_over.no_room else passed_over


def _waits_due(job: Any, now: datetime) -> bool:
    return bool(job.status in ("queued", "failed") and job.run_at <= now)


def _begun(job: Any, attempts: Sequence[AttemptFacts]) -> list[datetime]:
    """Return when each attempt of the job began. The running attempt, which has no record yet, comes last."""
    runs = job.status == "running" and job.started_at and (not attempts or attempts[-1].number < job.attempts)
    return [*(each.started_at for each in attempts), *([job.started_at] if runs else [])]


def _killed(
    connection: Connection, job: Any, attempts: Sequence[AttemptFacts], last: str | None, around: Now, budget: timedelta
) -> KilledTicks | None:
    """Count the killed ticks that could have started the job, until now or until its only attempt began.

    The tick that runs that attempt did start it, and so did the tick of *last*, the runner of the last ended attempt.
    """
    *_, starter = (job.locked_by or last or "").rpartition(":")
    begun = _begun(job, attempts)
    until = around.now if _waits_due(job, around.now) else begun[0] if len(begun) == 1 else None
    if until is None:
        return None
    holders = Holders()
    killed = []
    for tick in explaining.unended_between(connection, max(job.run_at, job.created_at), until):
        gone = holders.tick_is_gone(tick._mapping)
        # If nobody can check the tick's process, only a later tick of the same host shows that the tick is over.
        over = is_over(tick._mapping, around.now, budget, gone=gone) and (gone or tick.followed)
        # The full ticks of a lingering process have rows of their own. One of them may have begun the attempt.
        lingered = BEGAN in tick.tick and bool(begun) and begun[0] - tick.started_at < budget
        if over and tick.tick != starter and not lingered:
            killed.append(tick)
    return KilledTicks(len(killed), sum(was_importing(tick.did) for tick in killed)) if killed else None


def _last_at_work(ticks: Sequence[Any], within: timedelta) -> dict[str, Any]:
    """Map each host to its last tick in *ticks*, which are newest first.

    Leave out hosts that stopped more than *within* before the newest tick.
    """
    return {tick.host: tick for tick in reversed(ticks) if ticks[0].finished_at - tick.finished_at <= within}


def _long_jobs_off(last: Mapping[str, Any], job: Any) -> tuple[str, ...]:
    """Return the hosts in *last* if the last tick of each left the job because long jobs are off, else ()."""
    entries = [entry_for(tick.not_started, **_place(job)) for tick in last.values()]
    return tuple(sorted(last)) if all(entry and entry["why"] == LONG_OFF for entry in entries) else ()


def _more(why: str, tick: Any, job: Any) -> str:
    """Return the details in the tick's row about why the tick did not start the job."""
    if why == OUT_OF_TIME:
        return _after_others(tick.did)
    if why == UNKNOWN_TYPE and (faults := _possible(job.job_type, tick, inline=job.schedule == job.job_type)):
        return f"; on {one_line(tick.host, 120)} {missing_because(list(faults.items()))}"
    return ""


def _possible(job_type: str, tick: Any, *, inline: bool) -> dict[str, str]:
    """Return the faults that the tick recorded and that may be why its host does not know the type."""
    faults = recorded_faults(tick._mapping)
    return {where: faults[where] for where in possible_causes(job_type, faults, inline=inline)}


def _after_others(did: Any) -> str:
    """Report how many other jobs the tick had begun before it ran out of time. *did*: what the tick recorded."""
    begun = did_of(did).get("claimed")
    if not isinstance(begun, int) or begun < 1:
        return ""
    return f", which had begun {counted(begun, 'job')}"


def _ran_in(tick: Any, attempt: AttemptFacts) -> bool:
    return bool(tick.host == attempt.host and tick.started_at <= attempt.started_at <= tick.finished_at)


def _place(job: Any) -> dict[str, Any]:
    """Return the job's type, queue, schedule, key and timeout in the form that ticks record."""
    return {
        "job_type": job.job_type,
        "queue": job.queue,
        "schedule": job.schedule,
        "key": job.concurrency_key,
        "timeout_s": job.timeout_s,
    }


def type_facts(connection: Connection, job_type: str, settings: Settings, types: JobTypes) -> TypeFacts:
    """Return what ticks recorded about a job type: whether some host can run it, and if not, why not."""
    runnable = present_types(connection, remembered(settings.run.every))
    known = None if runnable is None else job_type in runnable
    since, silent_since = None, None
    recorded: dict[str, dict[str, str]] = {}
    inline = False
    row = explaining.last_tick_that_knew(connection, job_type)
    if not known or job_type not in types.types:
        inline = explaining.is_inline(connection, job_type)
        newest = {tick.host: tick for tick in reversed(explaining.newest_ticks_with_types(connection))}
        recorded = {host: _possible(job_type, tick, inline=inline) for host, tick in newest.items()}
        # Reading the last tick of each host takes long if there are many hosts, so read them only if they matter.
        matter = row is not None or any(recorded.values())
        now, ticks = database_now(connection), last_ticks(connection) if matter else []
        if row is not None:
            since = explaining.first_tick_without(connection, row)
            signs = [tick.finished_at or tick.started_at for tick in ticks if tick.host == row.host]
            quiet = bool(signs) and now - max(signs) > quiet_after(settings.run.every)
            silent_since = max(signs) if quiet else None
        at_work = last_ticking([dict(tick._mapping) for tick in ticks], now, settings.run.every)
        still = {tick["host"] for tick in at_work}
        recorded = {host: faults for host, faults in recorded.items() if host in still}
    here = dict(faults_here(types.faults, settings.problems))
    causes = possible_causes(job_type, here, inline=inline) if job_type not in types.types else ()
    problems = [problem for problem in settings.problems if faults_of_type(job_type, [problem.path], inline)]
    in_file = {as_noted(problem.path, problem.message) for problem in problems}
    on_this_host = Identity.here().host
    listed = {pair for faults in recorded.values() for pair in faults.items()} | in_file
    recorded_here = recorded.get(on_this_host, {}).keys()
    return TypeFacts(
        job_type,
        known,
        None if row is None else tick_facts(row),
        since,
        silent_since,
        tuple(
            (host, *fault)
            for host, faults in recorded.items()
            for fault in faults.items()
            if host != on_this_host or fault not in in_file
        ),
        # A broken file is no evidence that the type is missing.
        here=job_type in types.types or (None if settings.broken else False),
        not_loaded_here=tuple((where, here[where]) for where in causes if as_noted(where, here[where]) not in listed),
        file_fault="; ".join(map(str, problems)) or None,
        loads_only_here=bool(recorded_here) and job_type in types.types and recorded_here.isdisjoint(here),
        removed_schedules=(
            () if known else tuple(explaining.removed_schedules(connection, [job_type]).get(job_type, ()))
        ),
    )


def _is_long(longest: timedelta, timeout_s: float | None, job_type: JobType | None) -> bool:
    if job_type is not None and job_type.executor is not None:
        return False
    if timeout_s is None:
        return job_type is not None and job_type.is_long(longest)
    return timeout_s > longest.total_seconds()


# The fields of JobFacts that have the name of a column in ``explaining.jobs_of``.
_SAME: Final = (
    *("id", "job_type", "status", "queue", "run_at", "created_at", "failures", "losses", "enqueued_by"),
    *(
        "idempotency_key",
        "released_key",
        "key_owner",
        "schedule",
        "scheduled_for",
        "started_at",
        "finished_at",
        "last_error",
        "misfit_since",
        "locked_until",
    ),
    *("cancel_requested_at", "timeout_s"),
)


def _host(holder: str | None) -> str:
    return (holder or "").partition(":")[0]


def job_life(connection: Connection, job_id: int, settings: Settings, types: Callable[[], JobTypes]) -> JobLife | None:
    """Return the facts about one job, or None if neither the jobs nor the ledger has it."""
    around = surroundings(connection, settings)
    job = job_facts(connection, [job_id], settings, types, around, explaining.pause_rows(connection)).get(job_id)
    rows = explaining.rows_naming(connection, [job_id])
    if job is None and not rows:
        return None
    if job is not None:
        job = with_triggered(in_detail(connection, job, types, around), _triggered_since(connection, job, around.now))
    made_for = tuple(
        OccurrenceOfJob(row.schedule, _zone_of(row.definition, settings.timezone), ledger_facts(row)) for row in rows
    )
    maker = next((row for row in rows if row.outcome == "enqueued"), None)
    settler = None if maker is None else settler_of(connection, maker)
    zone = made_for[0].timezone if made_for else settings.timezone
    removed = pruned_dead(connection, [job_id]).get(job_id) if job is None else None
    return JobLife(job_id, zone, around, job, made_for, settler, removed)


def _triggered_since(connection: Connection, job: JobFacts, now: datetime) -> list[Triggered]:
    if job.schedule is None or job.status not in NOT_DONE:
        return []
    renames = schedules.renames(connection)
    names = names_of(schedules.name_now(job.schedule, renames), renames)
    return triggered_since(connection, names, job.created_at, now)


def triggered_since(connection: Connection, names: Sequence[Name], since: datetime, now: datetime) -> list[Triggered]:
    """Return a schedule's runs triggered by hand since *since*, newest first. *names*: all of the schedule's names."""
    holders = Holders()

    def no_runner(job: JobNow) -> bool:
        if job.status != Status.RUNNING:
            return False
        return (
            why_not_run(job, job.run_at, now, timedelta(0)) is not None or holders.is_gone(job.locked_by or "") is True
        )

    return [
        Triggered(run.job_id, run.at, run.by, job.status, job.finished_at, job.dismissed, no_runner(job))
        if (job := run.job) is not None
        else Triggered(run.job_id, run.at, run.by)
        for run in triggered(connection, names)
        if run.at >= since
    ]


def with_triggered(job: JobFacts, triggered: Iterable[Triggered]) -> JobFacts:
    """Return *job*. If the job did not succeed, add the later runs that were triggered by hand."""
    if job.status not in NOT_DONE:
        return job
    later = tuple(each for each in triggered if each.job_id != job.id and each.at >= job.created_at)
    return replace(job, triggered=later)


def in_detail(connection: Connection, job: JobFacts, types: Callable[[], JobTypes], around: Now) -> JobFacts:
    """Return *job* with facts that are too costly to read for each job of a list."""
    most = job.most
    if job.status == Status.DEAD and job.failures and most is None and not job.job_type.startswith(EXEC_PREFIX):
        job_type = types().types.get(job.job_type)
        most = None if job_type is None else job_type.retry.max_attempts
    pauses = pauses_over_time(trail.entries(connection, ("pause", "resume"), ["all", f"queue {job.queue}"]))
    ticked = ticked_in(connection, pauses)
    attempts = tuple(_with_causes(connection, each, around) for each in job.attempts)
    held, late_tries = _held(job, pauses, ticked), tuple(_late_tries(connection, job, around, pauses, ticked))
    job = replace(_with_acts(connection, job), attempts=attempts)
    return replace(job, most=most, held=held, quiet=_quiet(connection, job, around), late_tries=late_tries)


def _with_causes(connection: Connection, attempt: AttemptFacts, around: Now) -> AttemptFacts:
    """Return *attempt*. If it was lost, add what kept its host's ticks from starting or from using the database.

    Later ticks of that host recorded this.
    """
    if attempt.outcome != "lost":
        return attempt
    begin, end = attempt.started_at, attempt.finished_at
    causes = recorded_causes(connection, attempt.host, begin, end + around.quiet_after, began=(begin, end))
    away = recorded_outage(connection, attempt.host, begin, end, around.quiet_after)
    return replace(attempt, kept_from_starting=causes, away=away)


def ticked_in(connection: Connection, pauses: Sequence[PauseFacts]) -> Collection[PauseFacts]:
    """Return the *pauses* during which a tick began.

    The other pauses delayed nothing that was already due when they began.
    """
    moments = [{"number": number, "due_at": pause.since} for number, pause in enumerate(pauses)]
    first = {number: after for number, (_, after) in explaining.ticks_beside(connection, moments).items() if after}
    ticks = explaining.ticks_of(connection, set(first.values()))
    return {pauses[number] for number, tick in first.items() if in_force(pauses[number], ticks[tick].started_at)}


def could_delay(pause: PauseFacts, due: datetime, ticked: Collection[PauseFacts]) -> bool:
    """Return whether the pause could delay what was due at *due*: it was in force then, or it is in *ticked*."""
    return pause.since <= due or pause in ticked


def _held(
    job: JobFacts, pauses: Sequence[PauseFacts], ticked: Collection[PauseFacts]
) -> tuple[datetime, PauseFacts] | None:
    """Return when a pause began to delay the first attempt, and the pause. If several did, take the last to end."""
    begun = job.attempts[0].started_at if job.attempts else job.started_at
    if begun is None:
        return None
    # If run_at is later than the first attempt, a retry has overwritten run_at. No pause can have held the job back
    # before the job was created.
    due = max(job.created_at, job.run_at if job.run_at <= begun else job.scheduled_for or job.created_at)
    pause = _pause_until(pauses, ticked, due, begun)
    return None if pause is None else (max(due, pause.since), pause)


def _pause_until(
    pauses: Sequence[PauseFacts], ticked: Collection[PauseFacts], due: datetime, begun: datetime
) -> PauseFacts | None:
    """Of the pauses that delayed the start from *due* to *begun*, return the pause that ended last, or None."""
    over = [
        (end, pause)
        for pause in pauses
        if (end := ends_at(pause)) and due < end <= begun and could_delay(pause, due, ticked)
    ]
    if not over:
        return None
    end, pause = max(over, key=lambda pair: pair[0])
    return replace(pause, ended_at=end)


def _quiet(connection: Connection, job: JobFacts, around: Now) -> tuple[datetime, datetime] | None:
    """Return the longest time without ticks that delayed the first attempt.

    Return None if ticks were killed, since the explanation names those ticks instead.
    """
    begun = job.attempts[0].started_at if job.attempts else job.started_at
    due = max(job.created_at, job.run_at)
    if begun is None or begun - due <= ON_TIME_WITHIN or job.killed is not None:
        return None
    before_id, _ = explaining.ticks_beside(connection, [{"number": 0, "due_at": due}])[0]
    before = [tick_facts(tick).last_sign_at for tick in explaining.ticks_of(connection, {before_id or 0}).values()]
    return _longest_quiet(connection, min([due, *before]), begun, around)


def _longest_quiet(
    connection: Connection, first: datetime, last: datetime, around: Now
) -> tuple[datetime, datetime] | None:
    ticks = explaining.records_between(connection, first, last)
    spans = [(tick.started_at, tick.finished_at) for tick in ticks]
    known_from = None if len(ticks) == explaining.TICKS_READ else first
    return longest_quiet(spans, known_from, last, around.quiet_after)


def _late_tries(
    connection: Connection, job: JobFacts, around: Now, pauses: Sequence[PauseFacts], ticked: Collection[PauseFacts]
) -> Iterable[LateTry]:
    """Find out what delayed the last attempts, oldest first. Leave out the job's first attempt."""
    ended = [(each.number, each.started_at, each.finished_at, each.by_hand) for each in job.attempts[-LATE_TRIES - 1 :]]
    if job.status == Status.RUNNING and job.started_at and (not ended or ended[-1][0] < job.attempt):
        ended.append((job.attempt, job.started_at, job.started_at, job.by_hand))
    for (_, _, before, _), (number, begun, _, by_hand) in pairwise(ended):
        is_last = number == job.attempt and job.status not in (Status.QUEUED, Status.FAILED)
        due = job.run_at if is_last and before <= job.run_at <= begun else None
        since = due or before
        held = _pause_until(pauses, ticked, since, begun)
        if held is None and begun - since <= ON_TIME_WITHIN:
            continue
        quiet = _longest_quiet(connection, before, begun, around)
        # If ticks came back before the attempt became due, the time without ticks did not delay the attempt.
        quiet = None if quiet is None or quiet[1] <= since else quiet
        if due or quiet or held:
            yield LateTry(number, begun, due, by_hand, held, quiet)


def longest_quiet(
    spans: Iterable[tuple[datetime, datetime]], first: datetime | None, last: datetime, longer: timedelta
) -> tuple[datetime, datetime] | None:
    """Return the longest time between *first* and *last* without a tick, or None if it does not exceed *longer*.

    *spans*: when each tick began and ended. If *first* is None, the time to look at begins with the first tick.
    """
    found, quiet_from = None, first
    for begun, finished in [*sorted(spans), (last, last)]:
        if quiet_from is not None and begun - quiet_from > longer:
            longer, found = begun - quiet_from, (quiet_from, begun)
        quiet_from = finished if quiet_from is None else max(quiet_from, finished)
    return found


def _with_acts(connection: Connection, job: JobFacts) -> JobFacts:
    acts = [
        (row.action, AuditEntry(row.at, row.actor, row.host, row.why, _moved(row.detail)))
        for row in trail.entries(connection, ACTS_ON_JOBS, about=str(job.id))
    ]
    acts += [
        ("settle", AuditEntry(row.at, row.actor, row.host, row.why, settled=settled))
        for row in trail.entries(connection, ["settle"], since=job.created_at)
        if (settled := settled_effect(row)) and row.detail.get("job_id") == job.id
    ]
    return replace(job, acts=tuple(sorted(acts, key=lambda act: act[1].at)))


def _moved(detail: Any) -> tuple[datetime, datetime] | None:
    """Return a reschedule's old and new time, or None if *detail*, which any program may have written, lacks them."""
    if not isinstance(detail, dict):
        return None
    try:
        before, after = (datetime.fromisoformat(detail[word]) for word in ("from", "to"))
    except (KeyError, TypeError, ValueError):
        return None
    return (before, after) if before.tzinfo and after.tzinfo else None


def _zone_of(definition: Any, otherwise: str) -> str:
    zone = definition.get("timezone") if isinstance(definition, dict) else None
    return str(zone) if zone and zone_exists(str(zone)) else otherwise
