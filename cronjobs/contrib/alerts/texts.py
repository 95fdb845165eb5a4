"""The texts of alerts for mail, chat and programs. All values are masked and free of markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from cronjobs.contrib.alerts.statements import DueAlert, FailedJob
from cronjobs.desk.insight.causes import cause_object, cause_text
from cronjobs.desk.insight.finding import Severity
from cronjobs.desk.insight.formatting import LocalTimes, counted, in_full
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.rules.causes import Cause
from cronjobs.engine.rules.failed_job import LINE, absolute, described, error_line, last_own_line
from cronjobs.errors import MESSAGE_LIMIT
from cronjobs.masking import mask
from cronjobs.model import rough
from cronjobs.text import one_line, visible

DEAD: Final = "dead"  # for this kind of finding, a message lists the causes
MOST: Final = 20  # list at most this many findings in one message, and only count the others
OUTPUT_LINES: Final = 5
CAUSES: Final = 5  # list at most this many causes per finding
SUBJECT: Final = 180


@dataclass(frozen=True)
class ReportedFinding:
    """A finding in a message, with its secrets masked. ``ended_at`` is None while the finding lasts."""

    finding: str
    kind: str
    severity: str
    text: str
    command: str | None
    began_at: datetime
    ended_at: datetime | None
    jobs: tuple[dict[str, Any], ...]
    times: int  # how many messages about this finding were sent before
    causes: tuple[dict[str, Any], ...]  # why the jobs are dead, the most common cause first
    more_causes: int


@dataclass(frozen=True)
class Message:
    """A message to one channel. ``left_out`` is the number of findings that the message counts but does not list."""

    project: str
    environment: str
    host: str
    sent_at: datetime
    findings: Sequence[ReportedFinding] = ()
    left_out: int = 0
    zone: str = "UTC"
    note: str = ""  # a sentence that replaces the list of findings
    secrets: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def lasting(self) -> list[ReportedFinding]:
        return [each for each in self.findings if each.ended_at is None]

    @property
    def over(self) -> list[ReportedFinding]:
        return [each for each in self.findings if each.ended_at is not None]


def message(
    alerts: Sequence[DueAlert],
    jobs: dict[int, list[FailedJob]],
    settings: Settings,
    host: str,
    now: datetime,
    why: Sequence[Cause],
) -> Message:
    """Compose a channel's message from *alerts*, the worst first and ended findings last.

    *jobs* maps episode ids to jobs. *why* lists the causes of death of the jobs in the finding ``dead``.
    """
    ordered = sorted(
        alerts,
        key=lambda alert: (alert.state.over, Severity(alert.episode.severity).rank, alert.episode.began_at),
    )
    findings = [_reported(alert, jobs.get(alert.episode.id, []), why, settings, now) for alert in ordered[:MOST]]
    return Message(
        settings.project,
        settings.environment,
        host,
        now,
        findings,
        len(ordered) - len(findings),
        settings.timezone,
        secrets=settings.secrets,
    )


def _reported(
    alert: DueAlert, jobs: Sequence[FailedJob], why: Sequence[Cause], settings: Settings, now: datetime
) -> ReportedFinding:
    episode, over = alert.episode, alert.state.over
    causes = why if episode.kind == DEAD and not over else ()
    return ReportedFinding(
        episode.finding,
        episode.kind,
        episode.severity,
        one_line(mask(episode.text, settings.secrets), MESSAGE_LIMIT),
        None if episode.command is None else absolute(mask(episode.command, settings.secrets), settings.file),
        episode.began_at,
        episode.ended_at if over else None,
        tuple(_of_job(job, settings) for job in jobs) if not over else (),
        alert.state.sent,
        tuple(_of_cause(cause, settings, now) for cause in causes[:CAUSES]),
        max(0, len(causes) - CAUSES),
    )


def _of_cause(cause: Cause, settings: Settings, now: datetime) -> dict[str, Any]:
    def masked(text: str | None) -> str | None:
        return None if text is None else one_line(mask(text, settings.secrets), MESSAGE_LIMIT)

    facts = cause_object(cause)
    facts |= {name: masked(facts[name]) for name in ("job_type", "error_type", "message")}
    facts |= {name: facts[name].isoformat() for name in ("first_died_at", "last_died_at")}
    text = masked(cause_text(cause, LocalTimes(now, settings.timezone)))
    return {"text": text, **facts, "command": absolute(f"cronjobs jobs list --cause {cause.key}", settings.file)}


def note(text: str, settings: Settings, host: str, now: datetime) -> Message:
    """Return a message with one sentence and no findings, such as a test message or the report of an outage."""
    words = one_line(mask(text, settings.secrets), MESSAGE_LIMIT)
    return Message(settings.project, settings.environment, host, now, note=words, secrets=settings.secrets)


def _of_job(job: FailedJob, settings: Settings) -> dict[str, Any]:
    def masked(text: str) -> str:
        return mask(text, settings.secrets)

    at = last_own_line(job.traceback, settings.folder)
    lines = [line for line in masked(job.output or "").splitlines() if line.strip()]
    return described(job.id, job.job_type, job.error_type, job.error, at, settings.file, masked) | {
        "schedule": None if job.schedule is None else one_line(masked(job.schedule), LINE),
        "failures": job.failures,
        "losses": job.losses,
        "output": [one_line(line, LINE) for line in lines[-OUTPUT_LINES:]],
    }


# --- as text ----------------------------------------------------------------------------------------------------------


def subject(message: Message) -> str:
    """Return the subject line: the project, the worst finding, and the number of other findings."""
    where = " ".join(word for word in (message.project, message.environment) if word) or message.host
    said = message.note
    if not said:
        shown = message.lasting or message.over
        how = shown[0].severity if message.lasting else "over"
        more = len(shown) + message.left_out - 1
        said = f"{how}: {shown[0].text}" + (f" (and {more} more)" if more else "")
    return one_line(f"[cronjobs {where}] {said}", SUBJECT)


def body(message: Message) -> str:
    """Return the message as plain text that ends in a newline."""
    lines = [message.note, ""] if message.note else []
    for each in message.lasting:
        lines += [*_finding_lines(each, message.zone), ""]
    for each in message.over:
        assert each.ended_at is not None
        lasted, ended = rough(each.ended_at - each.began_at), in_full(each.ended_at, message.zone)
        lines += [f"OVER since {ended}, after {lasted}. The finding was: {each.text}", ""]
    if message.left_out:
        lines += [f"… and {message.left_out} more (to list all: cronjobs status)", ""]
    lines.append(f"-- cronjobs on {one_line(message.host, 100)}")
    return visible("\n".join(lines)) + "\n"


def _finding_lines(each: ReportedFinding, zone: str) -> list[str]:
    again = f", sent {each.times} times before" if each.times > 1 else ", sent before" if each.times else ""
    lines = [f"{each.severity.upper()} since {in_full(each.began_at, zone)}{again}", each.text]
    lines += [f"  {cause['text']}" for cause in each.causes]
    lines += [f"  … and {each.more_causes:,} more causes (to list them: cronjobs status)"] if each.more_causes else []
    for job in each.jobs:
        of = f", schedule {job['schedule']}" if job["schedule"] else ""
        ended = [("failed", job["failures"]), ("lost", job["losses"])]
        how = "".join(f", {word} {counted(times, 'time')}" for word, times in ended if times)
        lines.append(f"  job {job['id']} {job['job_type']}{of}{how}")
        lines += [f"    {error}"] if (error := error_line(job)) else []
        lines += [f"    at {job['at']}"] if job["at"] else []
        lines += [f"    | {line}" for line in job["output"]]
        lines.append(f"    {job['command']}")
    if each.command:
        lines.append(f"  next step: {each.command}")
    return lines


def as_json(message: Message) -> dict[str, Any]:
    """Return the JSON for a webhook's body or a command's stdin."""
    return {
        "project": message.project,
        "environment": message.environment,
        "host": message.host,
        "sent_at": message.sent_at.isoformat(),
        "summary": subject(message),
        "note": message.note or None,
        "left_out": message.left_out,
        "findings": [
            {
                "finding": each.finding,
                "kind": each.kind,
                "severity": each.severity,
                "text": each.text,
                "command": each.command,
                "began_at": each.began_at.isoformat(),
                "ended_at": None if each.ended_at is None else each.ended_at.isoformat(),
                "over": each.ended_at is not None,
                "told_before": each.times,
                "causes": list(each.causes),
                "jobs": list(each.jobs),
            }
            for each in message.findings
        ],
    }


# --- about alerts themselves ------------------------------------------------------------------------------------------


def test_words(channel: str) -> str:
    return f'this is a test of the channel "{channel}": alerts of this project arrive here'


def away(error: str) -> str:
    return f"the database cannot be used, so this host runs no jobs: {error}"


def unusable(error: str) -> str:
    return f"the configuration cannot be used, so this host runs no jobs: {error}"


def back() -> str:
    return "over: this host runs jobs again"
