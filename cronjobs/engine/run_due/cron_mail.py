"""The output of a tick: events on a terminal, the log, the JSON, and the text that cron mails.

``tick/mail_throttle.py`` decides which causes are mailed now, and writes the sentences about causes that are repeated
or over.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, Final

from cronjobs import events, masking
from cronjobs.clock import SYSTEM
from cronjobs.engine.command import fault
from cronjobs.engine.command.printing import coloured, complain
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.rules.failed_job import absolute
from cronjobs.engine.tick.log import Log
from cronjobs.engine.tick.mail_throttle import (
    CODE,
    DATABASE,
    Alarm,
    Deaths,
    alarms_of,
    all_kept_from_starting,
    known_log,
    remember_log,
    take_messages,
)
from cronjobs.engine.tick.result import NOTHING_DUE, Result, did_in_words
from cronjobs.errors import CronjobsError, DatabaseError
from cronjobs.model import rough
from cronjobs.text import one_line, visible

MOST_WAITING: Final = 256 * 1024  # the most output that waits for a reader, in bytes
# This is PIPE_BUF. According to POSIX, a pipe that is ready accepts this many bytes without blocking.
AT_ONCE: Final = 512
# When the tick ends, wait at most this long for the reader of the output.
PATIENCE_S: Final = 0.5
# For --json, keep at most this many events of level INFO.
MOST_KEPT: Final = 1000
OF_DATABASE: Final = "database.trouble"
UNKNOWN_TYPE: Final = "jobs.unknown_type"
OF_CODE: Final = ("config.fault", UNKNOWN_TYPE)
# One mail names at most this many causes of deaths. Deaths of further causes are only counted.
CAUSES_NAMED: Final = 10
# During the tick, decide for at most this many causes whether to mail them. Most may have been mailed before.
DECIDED_AT_ONCE: Final = 10 * CAUSES_NAMED
IDS_NAMED: Final = 5  # a line names at most this many jobs that died of the same cause
TYPES_NAMED: Final = 10  # a line names at most this many job types that no host knows
# Returns which of the given jobs nobody has retried or dismissed, or None if the database does not answer.
StillDead = Callable[[Collection[int]], Collection[int] | None]


class Outlet:
    """Prints as much as the reader accepts, keeps the rest for the next call, and counts the lines it has to drop.

    While the tick runs, it never waits for the reader, because the tick's loop has leases to renew. A pipe that nobody
    reads (``run-due -v | less``, left alone) accepts no output, and neither does a terminal after Ctrl-S.
    """

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
        self._waiting = bytearray()
        self._left_out = 0
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)

    def say(self, text: str) -> None:
        if len(self._waiting) < MOST_WAITING:
            self._waiting += (masking.hide(text) + "\n").encode(self._encoding, "backslashreplace")
        else:
            self._left_out += 1
        self._write(0)

    def end(self) -> None:
        """Print the remaining output, and give the reader a last chance to read it."""
        if self._left_out:
            self._waiting += f"({self._left_out} more lines were dropped because nobody read the output)\n".encode()
            self._left_out = 0
        self._write(PATIENCE_S)

    def _write(self, patience_s: float) -> None:
        give_up_at = SYSTEM.monotonic() + patience_s
        try:
            while self._waiting and self._poll.poll(max(0.0, give_up_at - SYSTEM.monotonic()) * 1000):
                del self._waiting[: os.write(self._descriptor, self._waiting[:AT_ONCE])]
        # The reader is gone, or the disk is full.
        except OSError:
            self._waiting.clear()


class Reporter:
    """Sends a tick's events to the log and the terminal, and collects them for the mail and the JSON."""

    def __init__(self, log: Log, talk: bool, on_death: Callable[[events.Event], None]) -> None:
        self.log = log
        self.talk = talk
        self._on_death = on_death
        self.outlet = Outlet()
        self.kept: list[events.Event] = []
        self._succeeded: set[str] = set()

    def note(self, event: events.Event) -> None:
        # Progress is useful only on a terminal.
        if event.name == "job.progress":
            if self.talk:
                self._print(event)
            return
        self.log.write(event)
        if event.name == "job.succeeded":
            self._succeeded.add(event.facts["job_type"])
        elif event.name == "alert.sent":
            self._succeeded.add(_channel(event))
        keep = event.level != events.INFO or len(self.kept) < MOST_KEPT
        # Skip an event that nobody would read, because a busy tick has thousands of such events.
        if not event.printed or not (keep or self.talk):
            return
        event = event._replace(facts=masking.hide_in(event.facts))
        if keep:
            self.kept.append(event)
        if self.talk:
            self._print(event)
        elif event.name == "job.dead":
            self._on_death(event)

    def _print(self, event: events.Event) -> None:
        colour = {events.WARNING: "yellow", events.ERROR: "red"}.get(event.level)
        name, _, facts = events.line(event).partition(" ")
        self.outlet.say(f"{coloured(name, colour)} {facts}")

    @property
    def well(self) -> set[str]:
        """The job types of the jobs that succeeded, and the alert channels that delivered a message."""
        return {masking.hide(name) for name in self._succeeded}

    def ended(self, result: Result, took: timedelta, verbose: bool) -> None:
        # Do not log an idle tick. It has a row in the database, and a log line every minute would say nothing more.
        if result.did() or result.ended != NOTHING_DUE:
            self.note(events.tick_ended(result.did(), result.ended, took))
        if result.fault is not None:
            text = fault.text_of(result.fault)
            self.log.write(events.traceback_of_ours(), text)
            if verbose:
                complain(text)


@dataclass
class _Deaths:
    """The deaths of jobs in this tick that share one cause. ``event`` is the first death. ``jobs`` are the jobs' ids.

    ``is_news`` says whether to mail these deaths. It is None until that is decided. ``is_named`` says whether a line
    about the first death was printed.
    """

    event: events.Event
    jobs: list[int] = field(default_factory=list)
    is_news: bool | None = None
    is_named: bool = False

    @property
    def number(self) -> int:
        return len(self.jobs)

    @property
    def others(self) -> str:
        """Return text such as "3 more jobs died of the same cause as job 7: 8, 9, 12"."""
        first, *others = self.jobs
        left = len(others) - IDS_NAMED
        more = f" and {left:,} more" if left > 0 else ""
        jobs = "job" if len(others) == 1 else "jobs"
        ids = ", ".join(map(str, others[:IDS_NAMED]))
        return f"{len(others):,} more {jobs} died of the same cause as job {first}: {ids}{more}"


def _channel(event: events.Event) -> str:
    return f"channel {event.facts['channel']}"  # a job type's name has no space, so it never equals this


@dataclass
class CronMail:
    """Prints the problems of a tick to stderr if nobody is watching. Cron mails this output."""

    config: Path
    throttle: bool

    def __post_init__(self) -> None:
        self._causes: dict[str, str] = {}  # for each cause, the text that was reported
        # For each cause, a command that explains the cause. The command works in any folder.
        self._looks: dict[str, str] = {}
        # For each cause about the code or the database: CODE or DATABASE. Only a tick that has checked the code or the
        # database knows that the cause has ended.
        self._about: dict[str, str] = {}
        # For each cause that is an unknown job type, the type. The mail has one line for all of them.
        self._types: dict[str, str] = {}
        # For each cause that is the failure of an alert channel, the channel. Only its next success ends the cause,
        # because most ticks do not use the channel.
        self._channels: dict[str, str] = {}
        self._stderr = Outlet(2)
        self._deaths: dict[str, _Deaths] = {}  # the key is the cause
        self._named = 0  # the number of causes that were named
        self._well: set[str] = set()
        self._started = True  # True if the tick could start
        self._alarm = Alarm(self.config)
        # The alarm that remembers the causes from before the database was known. It is set once the database is known.
        self._alarm_of_file: Alarm | None = None
        fault.circumstances.alarm = self._alarm if self.throttle else None
        # True if the tick had anything to report, even if it was not mailed again.
        self.said = False

    def know(self, settings: Settings) -> None:
        """From now on, remember causes for the database of *settings*, and not only for the file."""
        self._alarm, self._alarm_of_file = alarms_of(settings)
        fault.circumstances.alarm = self._alarm if self.throttle else None

    def reporter(self, log: Path | None, talk: bool) -> Reporter:
        """Return the tick's reporter. Remember *log* for a later tick that cannot read the configuration file."""
        remember_log(self.config, log)
        return Reporter(Log(log), talk, self._report_death)

    def not_started(self, error: CronjobsError) -> None:
        self._started = False
        log = Log(fault.circumstances.log or known_log(self.config))
        for line in error.lines:
            log.write(events.tick_not_started(line))
            self.trouble(line, error.cause if isinstance(error, DatabaseError) else line)
            if isinstance(error, DatabaseError):
                self._about[error.cause] = DATABASE
        self.send()

    def trouble(self, said: str, cause: str | None = None) -> None:
        """Report a problem that lasts until someone fixes it. *cause* identifies the problem, even if the next tick
        describes it in other words.
        """
        self._causes.setdefault(cause or said, said)

    def print_causes(self, reporter: Reporter) -> None:
        self._well |= reporter.well
        for event in reporter.kept:
            if event.level == events.ERROR and event.name != "job.dead":
                line = events.line(event)
                cause = event.cause or line
                self.trouble(line, cause)
                if event.name in OF_CODE:
                    self._about[cause] = CODE
                    self._looks[cause] = f"; look: {absolute(self._command(event), self.config)}"
                if event.name == UNKNOWN_TYPE:
                    self._types[cause] = event.facts["job_type"]
                if event.name == OF_DATABASE:
                    self._about[cause] = DATABASE
                if event.name == "alert.not_sent":
                    self._channels[cause] = _channel(event)

    def _command(self, fault_of_code: events.Event) -> str:
        # The tick refuses the whole file, although each of its entries is good.
        if fault_of_code.facts.get("where") == str(self.config.absolute()):
            return "cronjobs sync --plan"
        job_type = fault_of_code.facts.get("job_type")
        return "cronjobs check" if job_type is None else f"cronjobs explain {quote(job_type)}"

    def _report_death(self, event: events.Event) -> None:
        """Report the first death of a cause at once, if the cause is new, or has not been reported for some time.

        If the tick is killed later, cron still mails what it has printed. At the end of the tick, one line counts the
        other deaths of the cause.
        """
        cause = events.death_cause(event)
        died = self._deaths.setdefault(cause, _Deaths(event))
        died.jobs.append(event.facts["job_id"])
        # Each decision costs a file access, so decide about further causes only at the end of the tick.
        if died.number == 1 and len(self._deaths) <= DECIDED_AT_ONCE and self._named < CAUSES_NAMED:
            self._decide(cause, died, partial(self._name, died))

    def _name(self, died: _Deaths, untold: int) -> None:
        """Print a line about the first death of a cause. *untold* earlier deaths of this cause were not mailed."""
        died.is_named = True
        self._named += 1
        self._stderr.say(visible(f"cronjobs: a job is dead: {events.death_line(died.event, self.config)}"))
        if untold:
            self._stderr.say(f"  and {untold} more with the same cause since the last report")

    def _decide(self, cause: str, died: _Deaths, say: Callable[[int], None] | None = None) -> None:
        """Decide whether to mail the deaths of *cause*, and set ``is_news``. *say* is called if they are mailed."""
        if self.throttle:
            died.is_news = self._alarm.worth_mailing(
                cause, SYSTEM.now(), ended_by=died.event.facts["job_type"], say=say
            )
            return
        died.is_news = True
        if say is not None:
            say(0)

    def _tell_anew(self, still_dead: StillDead) -> None:
        """Report a known cause as new if all its earlier deaths have been retried or dismissed since.

        That also holds if the database was made anew: the earlier deaths are not in it.
        """
        known = self._alarm.jobs(cause for cause, died in self._deaths.items() if died.is_news is False)
        earlier = {cause: {*jobs} - {*self._deaths[cause].jobs} for cause, jobs in known.items()}
        if not earlier or (dead := still_dead(set().union(*earlier.values()))) is None:
            return
        for cause, jobs in earlier.items():
            if jobs.isdisjoint(dead):
                died = self._deaths[cause]
                self._alarm.forget(cause)
                self._decide(cause, died, partial(self._name, died) if self._named < CAUSES_NAMED else None)

    def _count_deaths(self, still_dead: StillDead | None) -> None:
        """Print how many deaths each named cause has. If other causes have deaths to mail, also print the total."""
        for cause, died in self._deaths.items():
            if died.is_news is None:
                self._decide(cause, died)
        if still_dead is not None:
            self._tell_anew(still_dead)
        if self.throttle:
            self._alarm.count({cause: Deaths(died.jobs, bool(died.is_news)) for cause, died in self._deaths.items()})
        news = [died for died in self._deaths.values() if died.is_news]
        lines = [died.others for died in news if died.is_named and died.number > 1]
        number, counted = sum(died.number for died in news), sum(died.number for died in news if died.is_named)
        if number > counted:
            jobs = "1 job is" if number == 1 else f"{number:,} jobs are"
            lines.append(f"{jobs} dead; the causes of {number - counted:,} of them are not listed here")
        for line in lines[:-1]:
            self._stderr.say(f"cronjobs: {line}")
        for line in lines[-1:]:
            all_of_them = absolute("cronjobs jobs list --status dead", self.config)
            self._stderr.say(f"cronjobs: {line}; to list all: {all_of_them}")
        self._stderr.end()

    @staticmethod
    def _complain(line: str, _untold: int) -> None:
        complain(line)

    def _report_counted(self, sentence: str) -> None:
        complain(f"cronjobs: {sentence}; look: {absolute('cronjobs status', self.config)}")

    def _others(self, causes: Sequence[str]) -> str:
        """Return text such as " (the same holds for mail.send)" about further unknown types, or ""."""
        if not causes:
            return ""
        names = ", ".join(one_line(self._types[cause], 200) for cause in causes[:TYPES_NAMED])
        more = f" and {len(causes) - TYPES_NAMED:,} more" if len(causes) > TYPES_NAMED else ""
        return f" (the same holds for {names}{more})"

    def code_at_fault(self) -> bool:
        """Return whether a fault in the user's code has been mailed and has not ended yet."""
        return self.throttle and self._alarm.code_at_fault()

    def kept_from_starting(self) -> list[dict[str, Any]]:
        """Return, for the tick's row, why earlier ticks of this crontab line did not start."""
        return all_kept_from_starting(self._alarm, self._alarm_of_file) if self.throttle else []

    def unrecorded(self) -> list[dict[str, str]]:
        """Return, for the tick's row, the times in which earlier ticks of this crontab line had no database.

        Those ticks could not record these times themselves.
        """
        return self._alarm.unrecorded() if self.throttle else []

    def send(
        self,
        *,
        knows_code: bool = False,
        left_row: bool = False,
        unrecorded: Sequence[dict[str, str]] = (),
        still_dead: StillDead | None = None,
    ) -> None:
        """Mail what should be mailed.

        *knows_code* is True if the tick has loaded the handlers, so that it knows which faults have ended. *left_row*
        is True if the tick has a row in the database. A tick that has no row because of a database problem counts as
        not started. If the tick could not complete its row, *unrecorded* are the times in which it could not use the
        database; the next tick records them. Without *still_dead*, no known cause is reported as new.
        """
        now = SYSTEM.now()
        lines, ends = take_messages(self.config)
        for end in ends:
            if end.name == "job.dead":
                self._report_death(end)
            else:
                self._well.add(end.facts["job_type"])
        self._count_deaths(still_dead)
        self.said = bool(lines or self._causes or self._named)
        for line in lines:
            complain(f"cronjobs: {line}")
        types = [cause for cause in self._types if not self.throttle or self._alarm.is_due(cause, now)]
        others = set(types[1:])
        for cause, said in self._causes.items():
            about = self._about.get(cause)
            not_started = not self._started or (about == DATABASE and not left_row)
            # The line of the first unknown type names the others.
            more = self._others(types[1:]) if types[:1] == [cause] else ""
            say = None if cause in others else partial(self._complain, said + more + self._looks.get(cause, ""))
            if not self.throttle:
                if say is not None:
                    say(0)
                continue
            self._alarm.worth_mailing(
                cause,
                now,
                said=said,
                ended_by=self._channels.get(cause),
                about=about,
                not_started=not_started,
                unrecorded=unrecorded if about == DATABASE else (),
                alike=UNKNOWN_TYPE if cause in self._types else None,
                say=say,
            )
        if self.throttle:
            self._alarm.report_counted(now, self._report_counted)
        # A tick that did not start cannot know that a cause has ended.
        if self.throttle and self._started:
            # While a database is unreachable, nobody knows whether its other problems, such as a full disk, have ended.
            unknown = {DATABASE} & {*self._about.values()} | (set() if knows_code else {CODE})
            ended = self._alarm_of_file.over((), now) if self._alarm_of_file is not None else []
            for sentence in [*ended, *self._alarm.over(set(self._causes), now, self._well, unknown=unknown)]:
                complain(f"cronjobs: {sentence}")


def as_object(
    settings: Settings, database: str, result: Result, code: int, took: timedelta, reporter: Reporter
) -> dict[str, Any]:
    return {
        "exit_code": code,
        "ended": result.ended,
        "database": database,
        "config": str(settings.file),
        "duration_ms": round(took.total_seconds() * 1000),
        **vars(result.counts),
        "recovered": result.recovered,
        "occurrences": result.occurrences,
        "pruned": result.pruned,
        "trouble": result.trouble,
        "problems": [str(problem) for problem in settings.problems],
        "events": [{"event": event.name} | event.facts for event in reporter.kept],
    }


def summary(result: Result, took: timedelta) -> str:
    text = f"{did_in_words(vars(result.counts)) or 'no job ran'} in {rough(took)}; {result.ended}"
    return coloured(text, "red" if result.counts.dead or result.trouble else "green")
