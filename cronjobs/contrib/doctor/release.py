"""The release checklist: judge the facts that a program can see, and ask what only a person can answer. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cronjobs.contrib.doctor.diagnosis import Diagnosis, listed
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.model import duration_text

Answer = Literal["ok", "to do", "ask"]

MANY_TRIES: Final = 25  # with the default delays, this many tries take eleven hours
SHOWN: Final = 6


@dataclass(frozen=True)
class ReleaseItem:
    """One item of the checklist. If ``answer`` is "ask", only a person knows the answer.

    ``do`` is the command or instruction that fixes the item, or None if ``answer`` is "ok".
    """

    item: str
    about: str
    answer: Answer
    text: str
    do: str | None = None


@dataclass(frozen=True)
class ReleaseFacts:
    """The facts to judge. ``findings`` and ``delivered`` are None if the database is unreadable.

    ``delivered`` lists channels that have delivered an alert. ``rotations`` lists the logrotate files that name the
    project's log.
    """

    settings: Settings
    types: JobTypes
    findings: Sequence[str] | None
    delivered: Collection[str] | None
    hosts: int
    rotations: Sequence[str]


def checklist(
    facts: ReleaseFacts, examined: Sequence[tuple[str, str, Diagnosis]], config: Sequence[str]
) -> list[ReleaseItem]:
    """Return all items. *config* lists the findings of "check".

    *examined* lists the name, question and diagnosis of each check of "doctor".
    """
    return [
        _config(config),
        *(item for name, about, diagnosis in examined if (item := _examined(name, about, diagnosis)) is not None),
        *(judge(facts) for judge in JUDGED),
        *QUESTIONS,
    ]


def _config(findings: Sequence[str]) -> ReleaseItem:
    about = 'Does "cronjobs check" pass?'
    if findings:
        return ReleaseItem(
            "check", about, "to do", listed(findings), '"cronjobs check" lists all problems, with line and column'
        )
    return ReleaseItem("check", about, "ok", "names, payloads, time limits, commands and files are valid")


def _examined(name: str, about: str, diagnosis: Diagnosis) -> ReleaseItem | None:
    """Turn a diagnosis into an item. A warning becomes a question: a person decides whether it blocks the release."""
    match diagnosis.status:
        case "not applicable":
            return None
        case "ok":
            return ReleaseItem(name, about, "ok", diagnosis.text)
        case "problem":
            return ReleaseItem(name, about, "to do", diagnosis.text, diagnosis.fix)
        case "warning":
            return ReleaseItem(name, about, "ask", diagnosis.text, diagnosis.fix)


# --- what the configuration and the database say ----------------------------------------------------------------------


def _findings(facts: ReleaseFacts) -> ReleaseItem:
    about = "Is anything wrong now?"
    if facts.findings is None:
        fix = "correct what the checks above found, then run this command again"
        return ReleaseItem("findings", about, "to do", "the database cannot be read", fix)
    if facts.findings:
        return ReleaseItem("findings", about, "to do", listed(facts.findings), "cronjobs status")
    return ReleaseItem("findings", about, "ok", "there are no unacknowledged findings")


def _names(facts: ReleaseFacts) -> ReleaseItem:
    about = "Would a copy of this database stay idle if someone restored it elsewhere?"
    project, environment = facts.settings.project, facts.settings.environment
    if project and environment:
        return ReleaseItem("names", about, "ok", f"project {project}, environment {environment}")
    missing = " and ".join(key for key, value in (('"project"', project), ('"environment"', environment)) if not value)
    return ReleaseItem(
        "names",
        about,
        "to do",
        f"without {missing} in the file, a copy of this database, restored for staging, runs production's jobs",
        f"add {missing} to the file",
    )


def _timezone(facts: ReleaseFacts) -> ReleaseItem:
    about = "Which time zone do the schedules use?"
    in_utc = [name for name, each in facts.settings.schedules.items() if each.cron and each.timezone == "UTC"]
    if in_utc and "timezone" not in facts.settings.positions:
        text = f'the file has no key "timezone", so these schedules use UTC: {_names_of(in_utc)}'
        return ReleaseItem(
            "time zone", about, "ask", text, 'add "timezone: Europe/Berlin" to the file, or "timezone: UTC"'
        )
    return ReleaseItem("time zone", about, "ok", f"{facts.settings.timezone}, unless a schedule names another zone")


def _timeouts(facts: ReleaseFacts) -> ReleaseItem:
    about = "Does each job type have a suitable time limit?"
    silent = [
        name for name, each in facts.types.types.items() if not each.timeout_declared and not _overridden(facts, name)
    ]
    if silent:
        usual = duration_text(facts.settings.run.default_timeout)
        return ReleaseItem(
            "time limits",
            about,
            "ask",
            f"the default limit, {usual}, applies to {_names_of(silent)}",
            'set "timeout" in the file',
        )
    return ReleaseItem("time limits", about, "ok", "each job type declares a timeout")


def _overridden(facts: ReleaseFacts, job_type: str) -> bool:
    """Whether the job type has schedules that all set a timeout."""
    found = [each.timeout for each in facts.settings.schedules.values() if each.job == job_type]
    return bool(found) and None not in found


def _tries(facts: ReleaseFacts) -> ReleaseItem:
    about = "Do retries end?"
    many = {name: each.retry.max_attempts for name, each in facts.types.types.items()}
    excessive = [f"{name} ({tries})" for name, tries in many.items() if tries > MANY_TRIES]
    if excessive:
        text = f"more than {MANY_TRIES} tries: {_names_of(excessive)}"
        return ReleaseItem(
            "retries", about, "ask", text, 'set "retry: {max_attempts: …}", or an alert for jobs that fail this often'
        )
    return ReleaseItem(
        "retries", about, "ok", f"every job gives up after at most {max(many.values(), default=10)} tries"
    )


def _concurrency(facts: ReleaseFacts) -> ReleaseItem:
    run = facts.settings.run
    many = f" on each of {facts.hosts} hosts" if facts.hosts > 1 else ""
    text = f"{run.workers} jobs at a time{many} (run.workers), and {run.long_jobs} long jobs (run.long_jobs)"
    return ReleaseItem("concurrency", "How much runs at once?", "ok", text)


def _lost(facts: ReleaseFacts) -> ReleaseItem:
    about = "May each job run again if its runner dies?"
    again = [name for name, each in facts.types.types.items() if each.on_lost == "retry"]
    if not again:
        return ReleaseItem(
            "lost runs",
            about,
            "ok",
            "no job is retried automatically when its runner dies (on_lost: dead), so a person decides",
        )
    return ReleaseItem(
        "lost runs",
        about,
        "ask",
        f"these job types are retried automatically: {_names_of(again)}. If something must not happen twice, does the "
        "handler use an effect, a transaction or a key of the provider?",
        'see docs/how-to/effects.md, or set "on_lost: dead"',
    )


def _log(facts: ReleaseFacts) -> ReleaseItem:
    about = "Does a log record the id, attempt, duration and reason of each job?"
    if facts.settings.log is None:
        return ReleaseItem("log", about, "to do", "there is no log", 'add "log: cronjobs.log" to the file')
    if not facts.rotations:
        text = f"{facts.settings.log}: no file in /etc/logrotate.d names this log, so it may grow forever"
        return ReleaseItem("log", about, "ask", text, "examples/deploy/logrotate")
    return ReleaseItem("log", about, "ok", f"{facts.settings.log}, rotated by {listed(facts.rotations)}")


def _alerts(facts: ReleaseFacts) -> ReleaseItem:
    about = "Does someone get an alert when a job dies?"
    alerts = facts.settings.alerts
    if alerts is None or not alerts.channels:
        do = 'add "alerts" to the file; see docs/how-to/alerts.md'
        return ReleaseItem(
            "alerts", about, "to do", "no alerts are sent, so a failure is noticed only if somebody looks", do
        )
    untried = sorted(set(alerts.channels) - set(facts.delivered or ()))
    if untried:
        text = f"these channels have never delivered an alert: {_names_of(untried)}. Has a test message arrived?"
        return ReleaseItem(
            "alerts", about, "ask", text, '"cronjobs alerts test" sends a test message, but records no delivery'
        )
    return ReleaseItem(
        "alerts", about, "ok", f"these channels have delivered alerts: {_names_of(sorted(alerts.channels))}"
    )


def _silence(facts: ReleaseFacts) -> ReleaseItem:
    about = "Does someone get an alert when ticks stop?"
    if facts.settings.run.ping:
        return ReleaseItem("silence", about, "ok", "each tick pings a monitoring service (run.ping)")
    text = (
        "a stopped tick cannot report itself: does your app call cronjobs.health(), or does a monitor "
        "run cronjobs check --live?"
    )
    return ReleaseItem("silence", about, "ask", text, "set run.ping, or see docs/how-to/alerts.md")


def _retention(facts: ReleaseFacts) -> ReleaseItem:
    about = "How long are jobs and their payloads kept?"
    kept = facts.settings.retention
    succeeded, dead, keys = map(duration_text, (kept.succeeded, kept.dead, kept.keys))
    text = f"succeeded jobs for {succeeded}, dead jobs for {dead}, keys for {keys}"
    if "retention" in facts.settings.positions:
        return ReleaseItem("retention", about, "ok", text)
    return ReleaseItem(
        "retention", about, "ask", f"by default: {text}", 'in the file, add "retention:" with the times that you want'
    )


def _names_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


JUDGED: Final[tuple[Callable[[ReleaseFacts], ReleaseItem], ...]] = (
    _findings,
    _names,
    _timezone,
    _timeouts,
    _tries,
    _concurrency,
    _lost,
    _log,
    _alerts,
    _silence,
    _retention,
)

# --- what only people know --------------------------------------------------------------------------------------------


# Each question has an item, a text and an instruction.
_ASKED: Final = (
    (
        "backup",
        "Has a backup of this database been restored and checked?",
        "docs/how-to/operating.md#back-up-and-restore",
    ),
    (
        "rehearsal",
        'Has this release passed "cronjobs drill", which kills runners and counts the mails that arrive?',
        "cronjobs drill",
    ),
    (
        "deploy",
        "Does the deploy pause cronjobs first, or leave running ticks enough time to finish?",
        'cronjobs pause --all --wait 60s --why deploy; after the deploy, "cronjobs resume --all"',
    ),
    (
        "roll-back",
        "Can the previous code run the waiting jobs if you roll back?",
        "docs/how-to/operating.md#upgrade-and-go-back",
    ),
    (
        "secrets",
        "Are payloads free of confidential data? Every role that reads jobs sees them.",
        "docs/explanation/security.md",
    ),
    (
        "on call",
        'Does whoever is on call know the one command that answers "where is this job now"?',
        "cronjobs explain 17; docs/how-to/troubleshooting.md",
    ),
)
FOR_A_PERSON: Final = "a machine cannot know"  # the text of an item that has only a question
QUESTIONS: Final = tuple(ReleaseItem(item, text, "ask", FOR_A_PERSON, do) for item, text, do in _ASKED)
