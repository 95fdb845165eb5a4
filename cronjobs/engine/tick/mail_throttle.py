"""Use cron's mail as an alarm: report a repeating cause at once, then hourly, then daily, and report its end once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from cronjobs import events, masking
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.host.state_folder import State
from cronjobs.engine.probe.fast_path import QUIET_UNTIL
from cronjobs.engine.rules.repeating import DAILY, HOURLY, silence
from cronjobs.errors import CronjobsError
from cronjobs.model import rough
from cronjobs.text import one_line

CAUSES_KEPT: Final = 500
JOBS_KEPT: Final = 20  # for each cause of deaths
MOST_UNRECORDED: Final = 5  # record at most this many outages of a database, which may be away for weeks
LONGEST_MESSAGE: Final = 4000  # in characters; for the next tick
LONGEST_FACT: Final = 1000  # in characters
# The facts of a job's end that cron's mail needs.
FACTS_KEPT: Final = ("job_id", "job_type", "error_type", "error", "at", "tries", "note")

# The values of *about*: where the fault of a cause lies.
CODE: Final = "code"
DATABASE: Final = "database"


class Deaths(NamedTuple):
    """The deaths of one cause in this tick: the jobs, and whether cron mails them now."""

    jobs: Sequence[int]
    reported: bool


class Alarm:
    """Remembers, in the user's state folder, which causes were reported for one configuration file and one *database*.

    The file may take its database from a variable, and a cause may be over in one database and not in another. If
    *database* is "", the causes are those of ticks that could not find out which database they use (see
    ``database_name``).

    Never raises. If nothing can be stored, every cause is reported every time.
    """

    def __init__(
        self, config: Path, folder: Path | None = None, *, database: str = "", name: str | None = None
    ) -> None:
        self._state = State(folder)
        self._name = name or alarm_name(config, database)

    def causes(self) -> list[str]:
        """Return the causes that were reported and have not ended."""
        return list(self._load())

    def forget(self, cause: str) -> None:
        """Forget *cause*, as if the alarm had never reported it."""
        known = self._load()
        if known.pop(cause, None) is not None:
            self._store(known)

    def kept_from_starting(self) -> list[dict[str, Any]]:
        """Return the causes that have kept ticks from starting since a tick last started.

        Each cause has ``ticks``, ``since`` and ``why``. ``since`` is an instant of this host's clock as ISO 8601 text.
        """
        return [
            {"ticks": entry["not_started"], "since": entry["since"], "why": str(entry.get("said", cause))}
            for cause, entry in self._load().items()
            if "not_started" in entry
        ]

    def unrecorded(self) -> list[dict[str, str]]:
        """Return the times in which ticks could not use the database and could not record that, oldest first.

        They have the form that ``noted_outages`` returns. When a tick can use the database again, the alarm forgets the
        cause and its times.
        """
        found = (entry.get("unrecorded") for entry in self._load().values())
        return [each for times in found if isinstance(times, list) for each in times][:MOST_UNRECORDED]

    def code_at_fault(self) -> bool:
        """Return whether a fault in the code was reported and has not ended."""
        return any(entry.get("about") == CODE for entry in self._load().values())

    def waits_for(self, job_type: str) -> bool:
        """Return whether a success of *job_type* may end a cause."""
        return any(entry.get("ended_by") == job_type and not entry.get("well") for entry in self._load().values())

    def is_due(self, cause: str, now: datetime) -> bool:
        """Return whether to report *cause* if it occurs now. Record nothing."""
        entry = self._load().get(cause)
        return entry is None or now >= datetime.fromisoformat(entry["next"])

    def worth_mailing(
        self,
        cause: str,
        now: datetime,
        *,
        said: str | None = None,
        ended_by: str | None = None,
        about: str | None = None,
        not_started: bool = False,
        unrecorded: Sequence[dict[str, str]] = (),
        alike: str | None = None,
        say: Callable[[int], object] | None = None,
    ) -> bool:
        """Record that *cause* has occurred, and return whether to report it now.

        *said* is the text that is reported, if it differs from *cause*. *ended_by* is the job type or the alert channel
        whose next success ends the cause (``over`` explains when). If *ended_by* is None, the cause ends as soon as a
        tick no longer sees it. If *about* is CODE or DATABASE, only a tick that checks the code or the database can end
        the cause. *not_started* is True if the cause kept a tick from starting or from writing its row (see
        ``kept_from_starting``). For *unrecorded* see the method ``unrecorded``. Of the causes with the same *alike*
        that end at the same time, ``over`` names one and counts the others.

        To report the cause now, the alarm calls *say* with the number of occurrences since the last report. It records
        the report only afterwards, because a tick that is killed in between must not silence the next ticks.
        """
        known = self._load()
        at = now.isoformat()
        entry = known.setdefault(cause, {"since": at, "next": at, "told": 0, "seen": 0, "quiet": 0})
        if said is not None:
            entry.setdefault("said", one_line(said, 1000))
        entry |= {"seen": entry["seen"] + 1, "last": at}
        if about is not None:
            entry["about"] = about
        if not_started:
            entry["not_started"] = entry.get("not_started", 0) + 1
        if unrecorded:
            entry["unrecorded"] = [*entry.get("unrecorded", ()), *unrecorded][:MOST_UNRECORDED]
        if alike is not None:
            entry["alike"] = alike
        if ended_by is not None:
            entry |= {"ended_by": ended_by, "well": False}
        worth = now >= datetime.fromisoformat(entry["next"])
        if worth:
            if say is not None:
                say(int(entry.get("quiet", 0)))
            _note_report(entry, now)
        else:
            entry["quiet"] = entry.get("quiet", 0) + 1
        self._store(known)
        return worth

    def jobs(self, causes: Iterable[str]) -> dict[str, list[int]]:
        """Return, by cause, the newest jobs that ``count`` has remembered. Leave out causes without such jobs."""
        known = self._load()
        return {cause: jobs for cause in causes if (jobs := _jobs(known.get(cause, {})))}

    def count(self, deaths: Mapping[str, Deaths]) -> None:
        """Count the deaths of each cause, of which ``worth_mailing`` has just judged the first. Remember the jobs."""
        known = self._load()
        for cause, died in deaths.items():
            if (entry := known.get(cause)) is not None:
                others = len(died.jobs) - 1
                entry["seen"] += others
                if not died.reported:
                    entry["quiet"] = entry.get("quiet", 0) + others
                entry["jobs"] = [*_jobs(entry), *died.jobs][-JOBS_KEPT:]
        if deaths:
            self._store(known)

    def report_counted(self, now: datetime, say: Callable[[str], object]) -> None:
        """Call *say* with a sentence for each counted cause whose next report is due.

        A cause with ``ended_by`` might never occur again. Without this call, ``worth_mailing`` would then never report
        what it has counted. As in ``worth_mailing``, the alarm records each report only after making it.
        """
        known, changed = self._load(), False
        for cause, entry in known.items():
            quiet, due = entry.get("quiet", 0), datetime.fromisoformat(entry["next"])
            if "ended_by" in entry and quiet and now >= due:
                say(f"{quiet:,} more with the same cause since the last report: {entry.get('said', cause)}")
                _note_report(entry, now)
                changed = True
        if changed:
            self._store(known)

    def over(
        self, still: Collection[str], now: datetime, well: Collection[str] = (), *, unknown: Collection[str] = ()
    ) -> list[str]:
        """Forget the causes that have ended, which are those not in *still*.

        Return a sentence for each ended cause that had occurred more than once, and only one sentence for causes that
        are alike. *unknown* names what this tick could not check: CODE, DATABASE or both. The alarm keeps causes
        about these.

        A cause with ``ended_by`` has ended when it has not occurred for an hour and its job type or channel has
        succeeded since. *well* contains the job types and channels that succeeded in this tick. If there is no success,
        the cause is forgotten a day after that hour, and its end is not reported.
        """
        known = self._load()
        ended: dict[str, list[str]] = {}
        changed = False
        for cause, entry in list(known.items()):
            if cause in still or entry.get("about") in unknown:
                continue
            if "ended_by" in entry:
                if entry["ended_by"] in well and not entry.get("well"):
                    entry["well"] = changed = True
                silent = abs(now - datetime.fromisoformat(entry.get("last", entry["since"])))
                if silent < HOURLY or (not entry.get("well") and silent <= DAILY + HOURLY):
                    continue
            del known[cause]
            changed = True
            lasted = max(timedelta(0), now - datetime.fromisoformat(entry["since"]))
            # A cause that occurred only once needs no report of its end.
            if entry["seen"] > 1 and ("ended_by" not in entry or entry.get("well")):
                # Causes that ticks find again and again need no count.
                quiet = entry.get("quiet", 0) if "ended_by" in entry else 0
                counted = f" ({quiet:,} more since the last report)" if quiet else ""
                sentence = f"over after {rough(lasted)}: {entry.get('said', cause)}{counted}"
                ended.setdefault(str(entry.get("alike", cause)), []).append(sentence)
        if changed:
            self._store(known)
        return [
            f"{first} (and {len(others):,} more like this)" if others else first for first, *others in ended.values()
        ]

    def _load(self) -> dict[str, Any]:
        try:
            known = json.loads(self._state.read(self._name) or "{}")
            return {cause: entry for cause, entry in known.items() if _is_sound(entry)}
        except (ValueError, AttributeError, RecursionError):
            return {}

    def _store(self, known: dict[str, Any]) -> None:
        newest = sorted(known, key=lambda cause: str(known[cause].get("last", "")))[-CAUSES_KEPT:]
        kept = {cause: known[cause] for cause in newest}
        self._state.write(self._name, json.dumps(_quiet_until(kept) | kept))


def _note_report(entry: dict[str, Any], now: datetime) -> None:
    lasted = now - datetime.fromisoformat(entry["since"])
    entry |= {"next": (now + silence(lasted)).isoformat(), "told": entry["told"] + 1, "quiet": 0}


def _jobs(entry: Mapping[str, Any]) -> list[int]:
    jobs = entry.get("jobs")
    return jobs if isinstance(jobs, list) and all(isinstance(job, int) for job in jobs) else []


def all_kept_from_starting(*alarms: Alarm | None) -> list[dict[str, Any]]:
    """Return ``Alarm.kept_from_starting`` of *alarms*. The cause that began first comes first."""
    found = (cause for each in alarms if each is not None for cause in each.kept_from_starting())
    return sorted(found, key=lambda cause: str(cause["since"]))


def _quiet_until(known: dict[str, Any]) -> dict[str, int]:
    """Return the instant before which a tick without work reports none of these causes. The fast path uses it.

    Return {} if any cause has no ``ended_by``, because such a cause may end at any time. Any other cause ends an hour
    after it last occurred if its job type or channel has succeeded since, and otherwise a day after that hour. Before
    that, ``report_counted`` may report it.
    """
    ends = [
        datetime.fromisoformat(entry.get("last", entry["since"])) + (HOURLY if entry.get("well") else DAILY + HOURLY)
        for entry in known.values()
        if "ended_by" in entry and "about" not in entry
    ]
    if not ends or len(ends) < len(known):
        return {}
    reports = [datetime.fromisoformat(entry["next"]) for entry in known.values() if entry.get("quiet")]
    return {QUIET_UNTIL: int(min(ends + reports).timestamp())}


def _is_sound(entry: Any) -> bool:
    try:
        instants = [datetime.fromisoformat(entry[name]) for name in ("since", "next")]
        instants.append(datetime.fromisoformat(entry.get("last", entry["since"])))
        counts = (entry["told"], entry["seen"], entry.get("not_started", 0), entry.get("quiet", 0))
        return all(at.tzinfo for at in instants) and all(isinstance(count, int) for count in counts)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


# --- messages for the next tick ---------------------------------------------------------------------------------------


def leave_message(config: Path, line: str) -> None:
    """Keep *line* for the next tick of *config* to print, because nobody reads the output of this process."""
    State().append(messages_name(config), one_line(line, LONGEST_MESSAGE) + "\n")


def leave_end(settings: Settings, event: events.Event) -> None:
    """Keep the end of a job for the next tick, which mails it as if the job had ended in that tick.

    Keeps only deaths, and successes that may end a cause of deaths, because each kept event costs a full tick.
    """
    facts = masking.hide_in({name: event.facts[name] for name in FACTS_KEPT if event.facts.get(name) is not None})
    if event.name == "job.dead" or (
        event.name == "job.succeeded" and alarms_of(settings)[0].waits_for(facts["job_type"])
    ):
        kept = {name: one_line(fact, LONGEST_FACT) if isinstance(fact, str) else fact for name, fact in facts.items()}
        State().append(messages_name(settings.file), json.dumps([event.name, kept]) + "\n")


def take_messages(config: Path) -> tuple[list[str], list[events.Event]]:
    """Remove and return the kept lines, for the caller to print, and the kept ends of jobs."""
    lines, ends = [], []
    for line in (State().take(messages_name(config)) or "").splitlines():
        try:
            name, facts = json.loads(line)
            ends.append(events.Event(str(name), {"job_id": facts["job_id"], "job_type": facts["job_type"]} | facts))
        except (ValueError, TypeError, LookupError, RecursionError):
            lines.append(line)
    return lines, ends


# --- the log of a file that can no longer be read ---------------------------------------------------------------------


def remember_log(config: Path, log: Path | None) -> None:
    """Remember where ticks of *config* write their log, for a later tick that cannot read *config*."""
    state, name = State(), f"log-{_name(config)}"
    if (state.read(name) or "") != str(log or ""):
        state.write(name, str(log or ""))


def known_log(config: Path) -> Path | None:
    """Return where ticks of *config* wrote their log when *config* could last be read, or None if unknown."""
    kept = State().read(f"log-{_name(config)}")
    return Path(kept) if kept and Path(kept).is_absolute() and Path(kept).exists() else None


def database_name(settings: Settings) -> str:
    """Return the URL of the file's database without secrets, or "" if there is none.

    A new password does not change it.
    """
    from cronjobs.engine.database.address import parse_url  # commands without a database do not need SQLAlchemy

    try:
        return str(parse_url(settings.database, settings.schema)) if settings.database else ""
    except CronjobsError:
        return ""


def alarms_of(settings: Settings) -> tuple[Alarm, Alarm | None]:
    """Return the alarm of the file and its database, and that of the file alone, or None if both are the same.

    When a tick starts, the causes of both may be over.
    """
    database = database_name(settings)
    return Alarm(settings.file, database=database), Alarm(settings.file) if database else None


def alarm_name(config: Path, database: str = "") -> str:
    """The name of the file that lists the reported causes."""
    return f"alarm-{_name(config, database)}.json"


def away_name(config: Path) -> str:
    """The name of the file that lists the channels to which the alert "no tick can start here" was sent.

    The name does not depend on the database. So if somebody corrects the database in the configuration file, the next
    tick still finds the list, and reports that the outage is over.
    """
    return f"away-{_name(config)}.json"


def messages_name(config: Path) -> str:
    """The name of the file with the lines that the next tick prints."""
    return f"word-{_name(config)}"


def unreported_name(config: Path) -> str:
    """The name of the file that lists the ticks that may not have reported all deaths (``tick.unreported``)."""
    return f"unreported-{_name(config)}"


def _name(config: Path, database: str = "") -> str:
    return sha256(os.fsencode(config) + (f"\0{database}".encode() if database else b"")).hexdigest()[:16]
