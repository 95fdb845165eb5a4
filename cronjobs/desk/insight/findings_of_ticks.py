"""Findings about hosts, their ticks and their files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from shlex import quote
from typing import Any

from cronjobs.desk.insight.finding import Covered, Finding, Severity, for_the_file_here, several, typed, waiting_words
from cronjobs.desk.insight.formatting import counted, host_of
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.judged_types import FIXED_OR_ENVIRONMENT
from cronjobs.desk.insight.kept_from_starting import did_not_start, others_work
from cronjobs.desk.insight.same_cause import (
    SameCause,
    covered_by_type,
    faults_of_imports,
    names_schedule,
    others_at_fault,
    recorded_faults,
)
from cronjobs.desk.insight.waiting import entries_of
from cronjobs.desk.insight.watched import TwoFiles, last_sign, quiet_after
from cronjobs.desk.rules.tick_rows import did_of, no_end
from cronjobs.engine.config.keys import FILE
from cronjobs.engine.config.load import DISABLED
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.store.meta import MOVED
from cronjobs.engine.tick.not_started import LIMITED
from cronjobs.engine.tick.result import as_noted
from cronjobs.errors import MovedDatabase, shown_path
from cronjobs.model import duration_text, rough
from cronjobs.text import nearest

_SHOW_CRON = "cronjobs crontab show"
_DOCTOR = "cronjobs doctor"
_LOOK_BACK = timedelta(hours=1)
_ALSO = "host "  # a row with this prefix names another host that has the same faults
LONG = " for more than 15 minutes"
_CODES = {4: "the database failed", 70: "a bug in cronjobs"}


def tick_findings(health: Health, settings: Settings, same: SameCause) -> Iterator[Finding]:
    foreign = list(_foreign(health, settings.project, settings.environment))
    yield from foreign
    # Do not report missing ticks if this configuration explains them: it has no project, or its database belongs to
    # another project.
    if not settings.without_project and not foreign:
        for found in _no_tick(health, settings.run.every):
            yield for_the_file_here(found, settings)
    for host, since in health.silent.items():
        quiet = f"host {host} has not ticked for {rough(health.now - since)}, but other hosts have"
        # There is no command, because a command typed here would show this host's crontab, and not that of *host*.
        text = f'{quiet} (on that host, "cronjobs doctor" says why)'
        yield Finding("host", text, since=since, subject=host)
    at_work = health.ticking(settings.run.every)
    yield from _endings(health, at_work)
    for tick in at_work:
        skew = did_of(tick["did"]).get("skew_s")
        if isinstance(skew, int | float) and not isinstance(skew, bool):
            off = rough(timedelta(seconds=skew))
            text = f"the clock of host {tick['host']} is {off} {'ahead of' if skew > 0 else 'behind'} the database's"
            begun = health.watch.wrong_clocks.get(tick["host"])
            yield Finding("clock", text, since=begun, command="timedatectl", subject=tick["host"])
    yield from _misdated(health)
    yield from _config(health, settings, same, health.last_ticking(settings.run.every))
    without_room = dict(same.no_room)
    for job_type, problem in health.never_begin:
        held = sum(without_room.pop(place) for place in list(without_room) if place[1] == job_type)
        yield _fault(str(problem), (), (str(problem),), {}, (), held, health, same)
    # Jobs whose payloads do not fit have a finding of their own.
    misfits = {found.job_type for found in health.misfits}
    for job_type, problem in health.schedule_misfits:
        if job_type not in misfits:
            yield Finding("config", str(problem), command="cronjobs check", rows=(str(problem),))
    for host, (why, begun) in sorted(health.watch.refused.items()):
        text = f"host {host} refuses its file and keeps using the previous definitions: {why}"
        yield Finding("refused", text, since=begun, command="cronjobs sync --plan", subject=host)
    yield from _files(health, at_work)
    for host, ticked in sorted(health.watch.two_files.items()):
        yield _two_files(host, ticked)


def _foreign(health: Health, project: str, environment: str) -> Iterator[Finding]:
    theirs, ours = (health.project, health.environment), (project, environment)
    if theirs in (("", ""), ours):
        return
    if health.environment.startswith(MOVED):
        # There is no command, because the user has to edit the file. With "db adopt", ticks would claim jobs from both
        # the old and the new database.
        yield Finding("foreign", str(MovedDatabase(health.environment.removeprefix(MOVED))), Severity.CRITICAL)
        return
    text = (
        f"this database belongs to {_name(*theirs)}, but the configuration is for {_name(*ours)}, so ticks start no "
        'jobs. Correct the file. If the file is right, and the database should belong to it: "cronjobs db adopt"'
    )
    # The command is not "db adopt", because on a staging host that would take over production's database.
    yield Finding("foreign", text, Severity.CRITICAL, command="cronjobs config show")


def _name(project: str, environment: str) -> str:
    return f'project "{project}", environment "{environment}"'


def _no_tick(health: Health, every: timedelta) -> Iterator[Finding]:
    last = last_sign(health.ticks)
    if last is not None and abs(health.now - last) <= quiet_after(every):
        return
    kept = health.kept_from_starting
    why = f"; {did_not_start('this host', kept)}" if kept else ""
    # If ticks failed to start, cron did call them: the crontab line works, and doctor finds out more.
    answer = _DOCTOR if kept else None
    if last is None:
        text = f"no tick has ever reached this database{why or '; cron should run one each minute'}"
        yield Finding("no_tick", text, Severity.CRITICAL, command=answer or "cronjobs crontab install")
    elif last > health.now:
        text = f"the newest tick is dated {rough(last - health.now)} in the future: a host's clock is or was wrong"
        yield Finding("no_tick", text, Severity.CRITICAL, command=_history(_LOOK_BACK))
    else:
        text = f"no tick has reached this database for {rough(health.now - last)}{why}"
        yield Finding("no_tick", text, Severity.CRITICAL, since=last, command=answer or _SHOW_CRON)


def _history(since: timedelta) -> str:
    return f"cronjobs history --since {duration_text(since)}"


def _endings(health: Health, at_work: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Find ticks and runners that were killed, and ticks that ended with a database error or an internal error."""
    for found in health.watch.overrunning:
        host = host_of(found.locked_by)
        text = (
            f"the runner of job {found.job_id} ({found.job_type}) on host {host} should have stopped the job "
            f"{rough(health.now - found.since)} ago, but leases it for another "
            f"{rough(found.locked_until - health.now)}: the runner died or hangs"
        )
        command = f"cronjobs explain {found.job_id}"
        yield Finding("ending", text, since=found.since, command=command, subject=host, rows=(str(found.job_id),))
    for host, killed in sorted(health.watch.killed.items()):
        text = (
            f"in the last {rough(killed.within)}, {killed.ticks} ticks of host {host} never recorded their end: "
            f"{no_end(killed.ticks, killed.importing)}"
        )
        # Look back twice as far, so that the command still shows these ticks if someone types it later.
        command = _history(max(_LOOK_BACK, 2 * killed.within))
        yield Finding("ending", text, since=killed.since, command=command, subject=host)
    for tick in at_work:
        code = did_of(tick["did"]).get("code")
        if code in _CODES and tick["host"] not in health.watch.killed:
            text = f"the last tick of host {tick['host']} ended with exit code {code}: {_CODES[code]}"
            severity = Severity.CRITICAL if code == 70 else Severity.WARNING
            since = health.watch.ended_badly.get(tick["host"])
            yield Finding("ending", text, severity, since=since, command="cronjobs run-due", subject=tick["host"])


def _misdated(health: Health) -> Iterator[Finding]:
    """Find jobs that are due too late, because a clock was ahead.

    Ticks leave these times alone, because nobody can say when the jobs should run instead.
    """
    found = health.watch.misdated
    if not found:
        return
    which = several([f"job {job.job_id} ({job.job_type}) in {rough(job.run_at - health.now)}" for job in found])
    retries = [str(job.job_id) for job in found if job.verb != "run"]
    others = [str(job.job_id) for job in found if job.verb == "run"]
    text = f"some jobs are due too late, because a clock was ahead when their times were set: {which}"
    if retries and others:
        text += f' (for each of {several(others)}, run "cronjobs run ID")'
    command = f"cronjobs jobs retry {' '.join(retries)}" if retries else f"cronjobs run {others[0]}"
    yield Finding("clock", text, command=command, rows=(*retries, *others))


def _config(
    health: Health, settings: Settings, same: SameCause, at_work: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """Find faults in the file here, and the faults that other hosts' ticks recorded about their own files."""
    here = [(fault.where, fault.what, f"{fault.where}: {fault.what}") for fault in health.faults]
    here += [(problem.path, problem.message, str(problem)) for problem in (*settings.problems, *health.log)]
    types, late = dict(same.hosts.get("", {})), dict(same.entries.get("", {}))
    recorded, hosts = _recorded(dict(as_noted(where, what) for where, what, _ in here), health, at_work)
    closed = {limit.prefix: jobs for limit, jobs in health.waiting.limited.items() if limit.most == 0}
    every = settings.run.every
    refused = settings.broken and bool(health.why_none_starts(every))
    # Ticks will refuse the file here, which is broken or gone, even if no tick has tried to use it yet.
    useless = settings.broken and settings.file in settings.contents and not others_work(every, health.ticking(every))
    for wheres, what, text in _together(here):
        its = {name: types.pop(name) for name, causes in list(types.items()) if not {*causes}.isdisjoint(wheres)}
        held = sum(closed.pop(prefix) for prefix in list(closed) if any(_names_limit(w, prefix) for w in wheres))
        stops_all = (refused or useless) and text in map(str, settings.problems)
        dies = bool(faults_of_imports(wheres)) and health.dies_importing(every)
        if (stops_all and refused) or dies:
            held = sum(
                queue.due for queue in (*health.waiting.queues.values(), health.waiting.others) if not queue.paused
            )
        if stops_all:
            refused = useless = False  # say so once
        stuck = {name: late.pop(name) for name in list(late) if names_schedule(wheres, name)}
        began = _recorded_since(wheres[0], what, health, at_work)
        since, newest = min(stuck.values(), default=began), max(stuck.values(), default=began)
        known = dict(noted for where in wheres if (noted := as_noted(where, what)) in recorded.items())
        rows, subject = (_rows(known, hosts), hosts[0]) if known else ((text,), "")
        text = f"{text} (on hosts {several(sorted(hosts))})" if known and len(hosts) > 1 else text
        text = f"{text}; nothing runs with this file" if stops_all else text
        found = _fault(
            text, wheres, rows, its, tuple(stuck), held, health, same, since=since, grew_at=newest, subject=subject
        )
        yield replace(found, severity=Severity.CRITICAL) if stops_all else found
    alike: dict[frozenset[tuple[str, str]], list[Mapping[str, Any]]] = {}
    for tick in others_at_fault(health, settings):
        alike.setdefault(frozenset(recorded_faults(tick).items()), []).append(tick)
    for ticks in alike.values():
        yield _of_hosts(recorded_faults(ticks[0]), ticks, health, settings.file, same)


def _together(faults: Iterable[tuple[str, str, str]]) -> Iterator[tuple[list[str], str, str]]:
    """Yield the places, the message and the text of each fault.

    If one bad key disables several entries, that is one fault.
    """
    alike: dict[str, list[tuple[str, str, str]]] = {}
    for where, what, text in faults:
        alike.setdefault(what if what.startswith(DISABLED) else text, []).append((where, what, text))
    for same in alike.values():
        more = f" (and {counted(len(same) - 1, 'more entry', 'more entries')} like it)" if len(same) > 1 else ""
        yield [where for where, _, _ in same], same[0][1], f"{same[0][2]}{more}"


def _recorded_since(where: str, what: str, health: Health, at_work: Sequence[Mapping[str, Any]]) -> datetime | None:
    """Return when ticks began to record this fault, or None if no host's last tick recorded it."""
    fault = as_noted(where, what)
    began = [health.watch.misconfigured.get(tick["host"]) for tick in at_work if fault in recorded_faults(tick).items()]
    return min((at for at in began if at is not None), default=None)


def _recorded(
    here: Mapping[str, str], health: Health, at_work: Sequence[Mapping[str, Any]]
) -> tuple[Mapping[str, str], list[str]]:
    """Return the largest set of faults of *here* that a tick recorded, and the hosts that recorded exactly this set.

    A command on another host reports these faults through ``_of_hosts``, with the same rows.
    """
    ours = [tick for tick in at_work if recorded_faults(tick).items() <= here.items()]
    most = max((recorded_faults(tick) for tick in ours), key=len, default={})
    return most, _by_time([tick for tick in ours if most and recorded_faults(tick) == most], health)


def _by_time(ticks: Sequence[Mapping[str, Any]], health: Health) -> list[str]:
    """Return the hosts of *ticks*. The host that has had faults for longest comes first."""
    hosts = {tick["host"] for tick in ticks}
    return sorted(hosts, key=lambda host: (health.watch.misconfigured.get(host) or health.now, host))


def row_of(where: str, what: str) -> str:
    """Return a fault in a file as a row of the finding ``config``."""
    where, what = as_noted(where, what)
    return f"{shown_path(where)}: {what}"


def wrong(config: Finding) -> list[str]:
    """Return the rows of a finding ``config`` that are faults, not hosts."""
    return [row for row in config.rows if not row.startswith(_ALSO)]


def _rows(faults: Mapping[str, str], hosts: Sequence[str]) -> tuple[str, ...]:
    return (*(row_of(*fault) for fault in faults.items()), *(f"{_ALSO}{host}" for host in sorted(hosts[1:])))


def _of_hosts(
    faults: Mapping[str, str],
    ticks: Sequence[Mapping[str, Any]],
    health: Health,
    own_file: Path,
    same: SameCause,
) -> Finding:
    """Return one finding for all hosts whose last *ticks* recorded the same faults.

    The key names the host that has had the faults for longest, so the key stays the same when other hosts get the same
    faults. The other hosts are rows, so an ack does not cover a host that gets the faults later. The finding does not
    cover ``config:other``, since an alert about a host's file ends only when that host reports no fault.
    """
    hosts = _by_time(ticks, health)
    began = [at for host in hosts if (at := health.watch.misconfigured.get(host))]
    whose = (
        f"hosts {several(sorted(hosts))} can use only part of their"
        if len(hosts) > 1
        else f"host {hosts[0]} can use only part of its"
    )
    found = _fault(
        f"{whose} file: {several([row_of(*fault) for fault in faults.items()])}",
        tuple(faults) if len(faults) == 1 else (),
        _rows(faults, hosts),
        {job_type: causes for host in hosts for job_type, causes in same.hosts.get(host, {}).items()},
        tuple(name for host in hosts for name in same.entries.get(host, ())),
        # Every host counts the same jobs, so take the largest count and not the sum.
        max(_held_by_limits(tick, faults) for tick in ticks),
        health,
        same,
        since=min(began, default=None),
        grew_at=max(began, default=None),
        subject=hosts[0],
    )
    here = Identity.here().host
    others = [host for host in hosts if host != here]
    if others:
        # There is no command, because "cronjobs check" on this host would check this host's file, and not theirs.
        there = "there" if others == hosts else f"on {several(sorted(others))}"
        found = replace(found, text=f'{found.text} (for details, run "cronjobs check" {there})', command=None)
    for tick in ticks:
        if tick["host"] == here and (file := tick.get("config")) not in (None, str(own_file)):
            found = replace(found, command=typed("cronjobs check --config", str(file)))
        elif tick["host"] == here:
            shown = '"cronjobs config show" shows where values come from'
            absent = f'if "cronjobs check" does not find this on {here}, {FIXED_OR_ENVIRONMENT} ({shown})'
            found = replace(found, text=f"{found.text}; {absent}", command=_SHOW_CRON)
    return found


def _held_by_limits(tick: Mapping[str, Any], wheres: Collection[str]) -> int:
    """Count the due jobs that the tick left waiting because a fault in ``limits:`` closes their limit."""
    return sum(
        entry["jobs"]
        for entry in entries_of(tick)
        if entry.get("why") == LIMITED
        and isinstance(entry.get("jobs"), int)
        and any(_names_limit(where, str(entry.get("prefix"))) for where in wheres)
    )


def _names_limit(where: str, prefix: str) -> bool:
    """Return whether a fault closes the limit of this prefix.

    The prefix "" stands for all limits, if none could be parsed. Then the name of the section may be misspelt.
    """
    closes = f"{where}.".startswith(f"limits.{prefix}." if prefix else "limits.")
    return closes or (not prefix and nearest(where, FILE) == "limits")


def _fault(
    text: str,
    told: Collection[str],
    rows: tuple[str, ...],
    types: Mapping[str, Sequence[str]],
    stuck: tuple[str, ...],
    held: int,
    health: Health,
    same: SameCause,
    **more: Any,
) -> Finding:
    """Return a finding about a fault in a file.

    The fault may leave *types* unknown, schedules *stuck*, or due jobs *held* back. In these cases due work is not
    done, so the finding is critical. *types* has the possible causes of each type. The finding's text names these
    causes, unless *text* already describes all of them. *told* lists the faults that *text* describes.
    """
    severity = Severity.CRITICAL if types or stuck or held else Severity.WARNING
    if types:
        due = sum(health.waiting.unresolved.get(job_type, 0) for job_type in types)
        names = [name for job_type in types for name in health.unknown_schedules.get(job_type, ())]
        text = f"{text}; so {_missing(types, told)} cannot run: {' and '.join(waiting_words(due, names))}"
    if stuck:
        text = f"{text}; no tick has fired the due occurrences of {several(stuck)}"
    if held:
        text = f"{text}; {waiting_words(held, ())[0]} because of this fault"
    covers = [
        each for job_type in types for each in (Covered(f"unresolved:{job_type}"), *covered_by_type(job_type, same))
    ]
    covers += [Covered("behind", stuck)] if stuck else []
    return Finding("config", text, severity, command="cronjobs check", rows=rows, covers=tuple(covers), **more)


def _missing(types: Mapping[str, Sequence[str]], told: Collection[str]) -> str:
    """Return text such as "t.a, t.b (because of one of these: module a, module b)"."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for job_type, causes in types.items():
        alike.setdefault(() if {*causes} <= {*told} else tuple(map(shown_path, causes)), []).append(job_type)
    return " and ".join(
        several(names) + (f" (because of {'one of these: ' * (len(causes) > 1)}{several(causes)})" if causes else "")
        for causes, names in alike.items()
    )


def _files(health: Health, at_work: list[dict[str, Any]]) -> Iterator[Finding]:
    files: dict[str, list[str]] = {}
    for tick in at_work:
        if tick["fingerprint"]:
            files.setdefault(tick["fingerprint"], []).append(tick["host"])
    in_force = health.watch.in_force
    marks = {*files} if in_force is None else {*files, in_force}
    if not files or len(marks) < 2:
        return
    said = "; ".join(
        f"{mark[:8]}{', which is in force,' if mark == in_force else ''} on {', '.join(sorted(hosts))}"
        for mark, hosts in sorted(files.items())
    )
    long = health.watch.differ_long
    if len(files) > 1:
        what = f"hosts have {'had ' if long else ''}different files{LONG if long else ''}"
    elif long:
        # The host that had the file in force may have stopped only a moment ago.
        what = f"{LONG.strip()}, the hosts that tick have not had the file in force"
    else:
        what = "no host that ticks has the file in force"
    text = f"{what}: {said}"
    if in_force is not None and in_force not in files:
        # No tick applies a file with which its host has ticked before: ``judge_file`` leaves such a file alone.
        text += (
            f"; the file in force is {in_force[:8]}, and its schedules stay (to apply a host's file, run "
            '"cronjobs sync" on that host)'
        )
    yield Finding(
        "files",
        text,
        Severity.WARNING if long else Severity.NOTICE,
        since=health.watch.differ_since,
        command="cronjobs sync --plan",
        rows=tuple(sorted(marks)),
    )


def _two_files(host: str, found: TwoFiles) -> Finding:
    text = (
        f"host {host} {'has ticked' if found.long else 'ticks'} with {len(found.waiting) + len(found.others)} "
        f"files{LONG if found.long else ''}: no "
        f"tick applies the schedules of {several([shown_path(path) for path in found.waiting])}"
    )
    if found.others:
        text += f" as long as ticks use {several([shown_path(path) for path in found.others])}"
    return Finding(
        "files",
        text,
        Severity.WARNING if found.long else Severity.NOTICE,
        command=f"cronjobs crontab remove --config {quote(found.waiting[0])}",
        subject=host,
        rows=(*found.waiting, *found.others),
    )
