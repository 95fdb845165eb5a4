"""Judge the facts about this host: its cron, mail, folders and disks, and the app's alembic. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, Literal

from cronjobs.contrib.doctor.diagnosis import Diagnosis, listed, not_applicable, ok, problem, warning
from cronjobs.contrib.doctor.statements import TickSpan
from cronjobs.desk.crontab.double_runs import DoubleRuns
from cronjobs.desk.crontab.other_blocks import OtherBlock
from cronjobs.desk.init.app_alembic import HOW_TO_FILTER, EnvFile
from cronjobs.desk.insight.finding import typed, waits_for_handler
from cronjobs.desk.insight.formatting import in_full
from cronjobs.desk.insight.kept_from_starting import Causes, did_not_start
from cronjobs.model import duration_text, rough

MIB: Final = 1 << 20
GIB: Final = 1 << 30
FULL: Final = 100 * MIB  # less free space than this is a problem
NEARLY_FULL: Final = GIB  # less free space than this, and than a twentieth of the disk, is a warning
# File systems whose locks SQLite cannot rely on, named as in /proc/self/mountinfo.
_NETWORK: Final = """
  nfs nfs4 cifs smb3 smbfs afs ceph 9p glusterfs lustre beegfs gpfs ocfs2 gfs2 davfs ncpfs
  fuse.sshfs fuse.glusterfs fuse.ceph-fuse fuse.s3fs fuse.gcsfuse fuse.rclone fuse.davfs"""
ON_A_NETWORK: Final = frozenset(_NETWORK.split())
IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
LONG_FOR_A_RUN: Final = timedelta(minutes=10)  # a tick or exec should deliver a spooled run within this time
OFTEN: Final = 3  # an event that happened fewer times than this may be a coincidence


# --- the configuration ------------------------------------------------------------------------------------------------


def configuration(file: str, findings: Sequence[str], *, is_misread: bool) -> Diagnosis:
    """Judge the configuration. If *is_misread*, a part of the file cannot be read, so ticks fail."""
    if not findings:
        return ok(f"{file} is valid")
    until = "; until the file is corrected, ticks exit with 3" if is_misread else ""
    return problem(f"{file}: {listed(findings)}", f'"cronjobs check" lists all problems, with line and column{until}')


def unreadable(file: str, why: str) -> Diagnosis:
    return problem(
        f"{file} cannot be used, so nothing runs: {why}", 'correct the file; "cronjobs check" names the line and column'
    )


def handlers(types: int, faults: Sequence[str]) -> Diagnosis:
    """Judge the handlers. *faults* lists modules and handlers that failed to import or register, and why."""
    if not faults:
        return ok(f"the handlers are imported (job types: {types})")
    return problem(
        f"this host cannot import or register these handlers, so their jobs wait for a host that can: {listed(faults)}",
        '"cronjobs check" shows the traceback. Does cron use the same Python as your app (cronjobs crontab show)?',
    )


def job_types(unknown: Sequence[str], not_ticked: Sequence[str], waiting: Mapping[str, int]) -> Diagnosis:
    """Judge the job types. *unknown* lists names in the file that have no handler.

    *waiting* maps each type without a handler to the number of its waiting jobs. *not_ticked* lists types that have due
    jobs and a handler on this host, but that no tick knows.
    """
    found = [
        *unknown,
        *(waits_for_handler(name, jobs) for name, jobs in waiting.items()),
        *(f"due jobs of type {name}, which no ticking host can run" for name in not_ticked),
    ]
    if not found:
        return ok("every job type in use has a handler")
    named = [*waiting, *not_ticked]
    name = named[0] if len(named) == 1 else "TYPE"
    fixes = []
    if unknown or waiting:
        cancel = f", or cancel the jobs: {typed('cronjobs jobs cancel --type', name)}" if waiting else ""
        fixes.append(f"register the handler, or correct the name{cancel}")
    if not_ticked:
        fixes.append("compare the ticks' code and environment with yours (cronjobs crontab show, cronjobs config show)")
    shows = "which host had the handler" if not not_ticked else "why ticks lack the handler"
    return problem(listed(found), "; ".join([*fixes, f"{typed('cronjobs explain', name)} shows {shows}"]))


def timeouts(never: Sequence[str]) -> Diagnosis:
    """Judge the timeouts. *never* lists jobs that can never start, and why."""
    if not never:
        return ok("every job's timeout fits into a tick, or the job gets a process of its own")
    return problem(listed(never), "follow the advice for each job")


# --- cron -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CronLine:
    """The line that starts ticks. ``state`` is the state that ``cronjobs crontab show`` reports.

    ``daemon`` is whether a cron daemon is running, or None if that is unknown.
    """

    state: Literal["same", "differs", "missing", "broken", "unknown"]
    said: str
    daemon: bool | None
    others: Sequence[OtherBlock] = ()  # other blocks that tick for the same database, or cannot tick
    double: DoubleRuns = DoubleRuns({}, {}, {})  # noqa: RUF009 DoubleRuns is frozen, so sharing it is safe
    by_hand: Sequence[int] = ()  # the numbers of the lines outside our block that start ticks with this file


def crontab(found: CronLine, *, ticks: bool | None, elsewhere: str = "") -> Diagnosis:
    """Judge the crontab. *ticks* is whether this host ticks steadily, by cron or otherwise, or None if unknown.

    *elsewhere* names the other hosts that tick for this project.
    """
    if found.state == "unknown":
        return not_applicable(found.said) if ticks else warning(found.said, '"cronjobs crontab show" prints the line')
    if found.state == "broken":
        return problem(found.said, 'correct the block with "crontab -e", then run "cronjobs crontab install"')
    double, hand_over = found.double, f"to hand those lines over to ticks: {found.double.hand_over}"
    here = ticks or found.state != "missing"
    if double.lines and (here or elsewhere):
        return problem(
            f"{double.sentence}, and ticks {'' if here else f'on {elsewhere} '}run the same commands",
            hand_over + ("" if here else "; to leave them to cron, stop the ticks on the other hosts"),
        )
    if double.changed and (here or elsewhere):
        return warning(
            double.sentence_changed, f"{double.settle_changed}; if both commands should run, rename the schedule"
        )
    if found.by_hand:
        line = f"line {found.by_hand[0]} of your crontab"
        mend = f'delete line {found.by_hand[0]} with "crontab -e"'
        if found.state == "missing":
            return (warning if ticks else problem)(
                f"{line} starts ticks with this file, but cronjobs did not write that line, so nothing checks it",
                f'{mend}, then run "cronjobs crontab install"',
            )
        return warning(f"{line} also starts ticks with this file, so two ticks start each time", mend)
    if found.state == "missing":
        if double.lines:
            return not_applicable(f"{double.sentence}; {hand_over}")
        if ticks:
            return not_applicable("your crontab has no line for this file; something else starts ticks on this host")
        if ticks is None:
            return warning(found.said, "unless something else starts ticks, run cronjobs crontab install")
        return problem(f"nothing starts ticks on this host: {found.said}", "cronjobs crontab install")
    if found.daemon is False:
        return problem(
            "the line is in your crontab, but no cron daemon runs here", "start cron (Debian: service cron start)"
        )
    if found.state == "differs":
        return warning(found.said, "cronjobs crontab install --dry-run, then cronjobs crontab install")
    if found.others:
        return warning(listed([each.sentence for each in found.others]), found.others[0].removal)
    return ok('your crontab has exactly the line that "cronjobs crontab install" writes')


@dataclass(frozen=True)
class TickTimes:
    """When ticks last ran on this host (``last_at``; None means never), and which other hosts tick (``elsewhere``)."""

    host: str
    now: datetime
    every: timedelta
    quiet_after: timedelta
    last_at: datetime | None
    elsewhere: str = ""  # for example "web2 (20 seconds ago)"


def firing(found: TickTimes, cron: CronLine, kept: Causes = ()) -> Diagnosis:
    """Judge whether ticks run on this host.

    *cron* is the state of this host's crontab. *kept* says why the last ticks of the file did not start on this host.
    """
    every = duration_text(found.every)
    if found.last_at is not None and found.now - found.last_at <= found.quiet_after:
        return ok(f"ticks run on {found.host}")
    if found.last_at is None and found.elsewhere:
        return not_applicable(f"{found.host} has never ticked; other hosts tick")
    since = "never" if found.last_at is None else f"the last was at {in_full(found.last_at, 'UTC')}"
    text = f"no ticks are running on {found.host} ({since}), although a tick is due every {every}"
    if kept:
        return problem(f"{text}; {did_not_start('this host', kept)}", "correct the cause; the next tick then starts")
    if cron.state == "missing" and cron.double.lines:
        return not_applicable(f"no ticks are running on {found.host} ({since}), and {cron.double.sentence}")
    if found.elsewhere:
        return warning(f"{text}; other hosts tick", "look at cronjobs crontab show, then at journalctl -u cron")
    return problem(f"{text}: nothing runs", "cronjobs crontab install; then look at cron's log (journalctl -u cron)")


@dataclass(frozen=True)
class MailSetUp:
    """How cron mails output. ``mailto`` is "" if nobody gets the mail, or None if the crontab lacks our line."""

    program: str | None
    mailto: str | None
    logs: bool  # whether the file sets log:
    mailto_line: int | None = None  # the number of the line that sets MAILTO for our line


def mail(found: MailSetUp) -> Diagnosis:
    fix = (
        'make sure that somebody notices a failing tick: run "cronjobs check --live" in your monitoring, and set "log" '
        "in the configuration"
    )
    if found.mailto is None:
        return not_applicable("your crontab has no line for this file, so cron mails nothing about its ticks")
    if found.program is None:
        return warning(
            "this host cannot send mail (cron calls /usr/sbin/sendmail, which does not exist), so the output of "
            "a failing tick is lost",
            f"install a mail program, or {fix}",
        )
    if not found.mailto and found.mailto_line is None:
        return warning("MAILTO is empty in cron's environment: cron does not mail the output of a failing tick", fix)
    if not found.mailto:
        return warning(
            f'line {found.mailto_line} of the crontab sets MAILTO="" above our line: cron does not mail the output of '
            "a failing tick",
            f"move our block above that line, or {fix}",
        )
    return ok(f"cron mails the output of a failing tick to {found.mailto}")


def overlapping(ticks: Sequence[TickSpan], every: timedelta, *, lingers: bool = False) -> Diagnosis:
    """Judge whether this host's ticks overlap or begin too close together. *ticks* may be in any order.

    A lingering tick starts full ticks one after another, so if this host *lingers*, only an overlap is suspicious.
    """
    ordered = sorted(ticks, key=lambda tick: tick.started_at)
    pairs = list(pairwise(ordered))
    if len(ordered) < 2:
        return not_applicable("this host has not ticked twice yet")
    close = 0 if lingers else sum(after.started_at - before.started_at < every / 4 for before, after in pairs)
    over = sum(before.finished_at is not None and after.started_at < before.finished_at for before, after in pairs)
    if close >= max(OFTEN, len(pairs) // 4):
        return warning(
            f"{close} of the last {len(ordered)} ticks began right after the previous one. Possible causes: two "
            "crontab lines start ticks; two containers share a host name; somebody runs ticks by hand (crontab install "
            "and swap each run a tick, too). Each job still runs only once",
            "look at all crontabs, /etc/cron.d and systemd timers of this host",
        )
    if over >= OFTEN:
        return warning(
            f"{over} of the last {len(ordered)} ticks began while the previous one was still running: each job still "
            "runs only once, but this host may run up to twice run.workers jobs at a time",
            "make run.budget shorter than run.every, or jobs' timeouts shorter",
        )
    return ok("a tick ends before the next one begins")


# --- folders and disks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StateFolder:
    """The state folder. If not ``lasting``, it is in the temporary folder, because the home folder is not writable."""

    path: str
    lasting: bool
    fault: str | None  # why ticks cannot write to the folder, or None if they can
    filesystem: str | None
    runs: int = 0  # number of exec runs of all projects that wait in the folder to be written to their database
    longest: timedelta = timedelta(0)  # how long ago the oldest of these runs began
    why: str = ""  # why exec could not write the oldest of these runs


def state_folder(found: StateFolder) -> Diagnosis:
    loses = (
        "cron's mails are not throttled, and idle ticks send needless queries. A tick that finds no SQLite file "
        "creates an empty one, because it cannot know that there was a file before"
    )
    if found.fault:
        return problem(
            f"{found.path}: {found.fault}. Without the folder, {loses}",
            f'chown "$USER" {found.path} and chmod 700 {found.path}, or set XDG_STATE_HOME',
        )
    if not found.lasting:
        return warning(
            f"there is no writable home folder, so ticks keep their state in {found.path}, which a reboot empties. "
            f"After a reboot, {loses}",
            "set XDG_STATE_HOME in the crontab to a folder of this user",
        )
    if found.filesystem in IN_MEMORY:
        return warning(
            f"{found.path} is in memory ({found.filesystem}), so it is gone after a reboot",
            "set XDG_STATE_HOME elsewhere",
        )
    if found.runs and found.longest > LONG_FOR_A_RUN:
        return warning(
            f"runs of exec that are not in the database yet: {found.runs:,} in {found.path}; the oldest began "
            f"{rough(found.longest)} ago{f', and could not be written: {found.why}' if found.why else ''}",
            "the next tick or exec of the same project writes these runs to the database, or reports why it cannot. If "
            "the project is gone or has moved, wrap its lines again (cronjobs crontab unwrap, then wrap in the "
            "project's folder) and delete the files of these runs",
        )
    return ok(f"{found.path} belongs to this user alone, and survives a restart")


@dataclass(frozen=True)
class Volume:
    """A disk that cronjobs writes to. ``free`` and ``size`` are in bytes."""

    what: str  # what cronjobs writes to the disk, such as "log"
    path: str
    free: int
    size: int


def disk_space(volumes: Sequence[Volume]) -> Diagnosis:
    def said(volume: Volume) -> str:
        return f"{volume.what} ({volume.path}): {volume.free // MIB:,} MiB free"

    full = [said(volume) for volume in volumes if volume.free < FULL]
    nearly = [said(volume) for volume in volumes if volume.free < NEARLY_FULL and volume.free * 20 < volume.size]
    fix = 'free some space: "cronjobs prune --dry-run" shows which rows are past their retention'
    if full:
        return problem(listed(full), fix)
    return warning(listed(nearly), fix) if nearly else ok(listed([said(volume) for volume in volumes]))


# --- the app's alembic ------------------------------------------------------------------------------------------------


def alembic(found: Sequence[EnvFile], *, same_database: bool | None) -> Diagnosis:
    """Judge the env.py files of the app's alembic. *same_database* is whether it migrates our database, if known."""
    without = [str(each.path) for each in found if not each.filtered]
    if not found:
        return not_applicable("no alembic.ini was found near the project")
    if not without:
        return ok("the app's alembic leaves our tables alone")
    if same_database is False:
        return ok("the app's alembic migrates another database: no alembic_version is in this one")
    text = (
        f"{listed(without)} does not use the cronjobs filter: alembic revision --autogenerate would drop "
        "the cronjobs_ tables"
    )
    if same_database is None:
        return warning(f"{text} if this alembic migrates this database", HOW_TO_FILTER)
    return problem(text, HOW_TO_FILTER)
