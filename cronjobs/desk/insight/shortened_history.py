"""Shorten a history: failures have a line each, and successes are only counted. All functions here are pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from cronjobs.desk.rules.settling import settled_effect
from cronjobs.engine.rules.error_groups import normalised
from cronjobs.engine.rules.occurrences import BACKFILLED

# An entry of the history. Its "kind" is attempt, death, occurrence, pruned, gap, schedules_off, tick, clock, outage,
# fault, pause, deploy or act.
Entry = Mapping[str, Any]
# A row of history.tallies, which says how often a schedule or job type had an outcome.
Tally = Mapping[str, Any]

# Maps the audit trail's word for an action on jobs to its past tense.
ACTS: Final = {
    "cancel": "cancelled",
    "retry": "retried",
    "dismiss": "dismissed",
    "release": "released",
    "reschedule": "rescheduled",
    "settle": "settled",
    "trigger": "triggered",
    "backfill": "backfilled",
}
# The word for the cancel of a running job, since the job may have succeeded anyway.
ASKED: Final = "asked"
# Merge one actor's similar actions if no more than this time is between them.
ONE_ACT: Final = timedelta(minutes=10)

# Outcomes, most important first. If there is no room for all, we leave out the least important. QUIET outcomes need no
# attention.
BROKE: Final = (
    "dead",
    "pruned",
    "no tick",
    "not fired",
    "no end",
    "clock",
    "no database",
    "fault",
    "missed",
    "early",
    "pause",
    "deploy",
    "lost",
    "timed_out",
    "failed",
    "interrupted",
    "cancelled",
    *ACTS,
    ASKED,
)
QUIET: Final = ("skipped", "coalesced", "snoozed", "succeeded")
_RANK: Final = {outcome: rank for rank, outcome in enumerate((*BROKE, *QUIET))}


class Story(NamedTuple):
    """A shortened history.

    ``lines`` are the entries of each line, oldest first. ``tallies`` are outcomes that are only counted, oldest first.
    ``left_out`` says how many entries of each outcome are neither in ``lines`` nor in ``tallies``.
    """

    lines: list[list[Entry]]
    tallies: list[Tally]
    left_out: Counter[str]


def when(entry: Entry) -> datetime:
    """Return when the entry began.

    For occurrences, return when the last of them was due. For a death, return when the job died.
    """
    at: datetime = entry[{"occurrence": "last_for", "death": "finished_at"}.get(entry["kind"], "started_at")]
    return at


def outcome_of(entry: Entry) -> str:
    """Return text such as "succeeded", "dead", "missed", "no tick", "pause" or "cancel"."""
    act = ASKED if entry.get("asked_to_stop") else entry.get("action")
    words = {
        "death": "dead",
        "gap": "no tick",
        "schedules_off": "not fired",
        "tick": "no end",
        "outage": "no database",
        "act": act,
    }
    word: str = words.get(entry["kind"]) or entry.get("outcome") or entry["kind"]
    return word


def number_of(entry: Entry) -> int:
    several = {"occurrence": "count", "pruned": "jobs", "act": "jobs"}.get(entry["kind"])
    number: int = 1 if several is None else entry[several]
    return number


def totals(entries: Iterable[Entry], tallies: Iterable[Tally]) -> Counter[str]:
    """Count entries by outcome, for the first line.

    The counts of attempts, deaths and occurrences come from *tallies*.
    """
    found = Counter[str]()
    for entry in entries:
        if entry["kind"] not in ("attempt", "death", "occurrence"):
            found[outcome_of(entry)] += number_of(entry)
    for tally in tallies:
        found[tally["outcome"]] = tally["in_all"]
    return found


def acts_on_jobs(
    rows: Iterable[tuple[Any, Collection[int]]],
    jobs: Mapping[int, tuple[str, str | None]],
    at_work: Mapping[int, Sequence[tuple[datetime, datetime | None]]],
) -> list[dict[str, Any]]:
    """Return actions on jobs as entries, oldest first. An actor's consecutive similar actions are merged.

    *rows*: audit entries, each with its jobs' ids. *jobs*: the known jobs' types and schedules. *at_work*: the result
    of ``spans_at_work``. In these spans, a cancel only asks a job to stop (``asked_to_stop``). If the actions of an
    entry concern several jobs, types or schedules, its ``job_id``, ``job_type`` or ``schedule`` is None. ``were_dead``
    counts the jobs that were dead before the action.
    """
    found: list[tuple[dict[str, Any], set[int]]] = []
    last: dict[Hashable, tuple[dict[str, Any], set[int]]] = {}
    for row, asked, ids in _cancels_split(rows, at_work):
        settled = settled_effect(row)
        key = (row.action, asked, row.actor, row.host, row.why, settled)
        if key not in last or row.at - last[key][0]["finished_at"] > ONE_ACT:
            facts = {"action": row.action, "by": row.actor, "host": row.host, "why": row.why, "started_at": row.at}
            facts |= {"were_dead": 0, "asked_to_stop": asked}
            facts |= {"effect": settled[0], "verdict": settled[1]} if settled is not None else {}
            last[key] = ({"kind": "act"} | facts, set())
            found.append(last[key])
        last[key][0]["finished_at"] = row.at
        last[key][0]["were_dead"] += _were_dead(row.detail, set(ids) - last[key][1])
        last[key][1].update(ids)
    for entry, ids in found:
        known = [jobs.get(id_, (None, None)) for id_ in ids]
        job_types, schedules = ({each[place] for each in known} for place in (0, 1))
        entry |= {"jobs": len(ids), "job_id": min(ids) if len(ids) == 1 else None}
        entry |= {"job_type": job_types.pop() if len(job_types) == 1 else None}
        entry |= {"schedule": schedules.pop() if len(schedules) == 1 else None}
    return [entry for entry, _ in found]


def _cancels_split(
    rows: Iterable[tuple[Any, Collection[int]]], at_work: Mapping[int, Sequence[tuple[datetime, datetime | None]]]
) -> Iterator[tuple[Any, bool, Collection[int]]]:
    """Yield *rows*, and whether their jobs were asked to stop. A cancel of waiting and running jobs gives two rows."""
    for row, ids in rows:
        running = {
            id_
            for id_ in ids
            if row.action == "cancel"
            and any(begun <= row.at and (end is None or row.at <= end) for begun, end in at_work.get(id_, ()))
        }
        for asked, among in ((False, set(ids) - running), (True, running)):
            if among:
                yield row, asked, among


def _were_dead(detail: Any, ids: Collection[int]) -> int:
    dead = detail.get("dead") if isinstance(detail, dict) else None
    return sum(id_ in ids for id_ in dead) if isinstance(dead, list) else 0


def merge_backfills(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Merge the occurrences that one backfill ran for a schedule into one entry. Each occurrence has its own row."""
    found: list[dict[str, Any]] = []
    last: dict[Hashable, dict[str, Any]] = {}
    for entry in sorted(entries, key=when):
        if entry["kind"] != "occurrence" or not str(entry["reason"]).startswith(BACKFILLED):
            found.append(dict(entry))
            continue
        key = (entry["schedule"], entry["outcome"], entry["reason"])
        if key not in last:
            last[key] = dict(entry) | {"count": 0}
            found.append(last[key])
        else:
            last[key] |= {"last_for": entry["last_for"], "job_id": None}
        last[key]["count"] += entry["count"]
    return found


def story(entries: Sequence[Entry], tallies: Sequence[Tally], limit: int) -> Story:
    """Return at most *limit* lines: a line for each failure in *entries*, then the quiet *tallies*.

    If there are too many failures, similar failures share a line, beginning with the least important outcome.
    """
    broke = [[entry] for entry in entries if outcome_of(entry) not in QUIET]
    for outcome in reversed(BROKE):
        if len(broke) > limit:
            others = [line for line in broke if outcome_of(line[0]) != outcome]
            broke = others + _alike(entry for entry in entries if outcome_of(entry) == outcome)
    lines = _chosen(broke, limit)
    quiet = [tally for tally in tallies if tally["outcome"] in QUIET]
    room = limit - len(lines)
    most_important = sorted(quiet, key=lambda tally: (_RANK[tally["outcome"]], -tally["number"]))[:room]
    counted = sorted(most_important, key=lambda tally: tally["first_at"])
    return Story(lines, counted, _left_out(totals(entries, tallies), lines, counted))


def each_alone(entries: Sequence[Entry], tallies: Sequence[Tally], limit: int) -> Story:
    """Return at most *limit* of *entries*, a line for each. Failures are kept first, then the newest other entries."""
    lines = _chosen([[entry] for entry in entries], limit)
    return Story(lines, [], _left_out(totals(entries, tallies), lines, []))


def _chosen(lines: list[list[Entry]], limit: int) -> list[list[Entry]]:
    newest_first = sorted(lines, key=lambda line: when(line[-1]), reverse=True)
    kept = sorted(newest_first, key=lambda line: _RANK.get(outcome_of(line[0]), 0))[:limit]
    begun: dict[int, datetime] = {}
    for entry in (entry for line in kept for entry in line if entry["kind"] == "attempt"):
        begun[entry["job_id"]] = max(when(entry), begun.get(entry["job_id"], when(entry)))

    def place(line: list[Entry]) -> tuple[datetime, int]:
        """Return a key that sorts a death after its attempts. On SQLite, each instant is a separate clock read."""
        at, first = when(line[0]), line[0]
        led_to_it = begun.get(first["job_id"], at) if first["kind"] == "death" else at
        return max(at, led_to_it), -_RANK.get(outcome_of(first), 0)

    return sorted(kept, key=place)


def _alike(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Group *entries* of one outcome by schedule (or job type) and by error. Each group is oldest first."""
    groups: dict[Hashable, list[Entry]] = {}
    for entry in sorted(entries, key=when):
        of_host = entry.get("host") if entry["kind"] in ("gap", "outage", "fault") else None
        what = entry.get("schedule") or entry.get("job_type") or entry.get("name") or of_host
        of_act = f"{entry['by']}: {entry['why'] or ''}" if entry["kind"] == "act" else ""
        error = normalised(str(entry.get("error") or entry.get("reason") or of_act))
        groups.setdefault((what, entry.get("error_type"), error), []).append(entry)
    return list(groups.values())


def _left_out(found: Counter[str], lines: Iterable[Sequence[Entry]], tallies: Iterable[Tally]) -> Counter[str]:
    shown: Counter[str] = Counter()
    for line in lines:
        for entry in line:
            shown[outcome_of(entry)] += number_of(entry)
    for tally in tallies:
        shown[tally["outcome"]] += tally["number"]
    return found - shown
