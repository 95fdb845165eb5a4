"""A night in few lines: what broke comes first, and what went well is only counted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from cronjobs.engine.rules.error_groups import normalised

Entry = Mapping[str, Any]  # of the history, with its "kind": attempt, death, occurrence, gap, pause or deploy
Tally = Mapping[str, Any]  # how many entries of an outcome a schedule, or a job type, has: a row of listing.tallies

# The most important first: where there is no room for all, the last are left out. QUIET ones need nobody's attention.
BROKE: Final = (
    "dead",
    "no tick",
    "missed",
    "pause",
    "deploy",
    "lost",
    "timed_out",
    "failed",
    "interrupted",
    "cancelled",
)
QUIET: Final = ("skipped", "coalesced", "snoozed", "succeeded")
_RANK: Final = {outcome: rank for rank, outcome in enumerate((*BROKE, *QUIET))}


class Story(NamedTuple):
    """``lines``: the entries of each, in order of time; ``tallies``: what is only counted, in order of time.

    ``left_out``: how many of each outcome are in neither.
    """

    lines: list[list[Entry]]
    tallies: list[Tally]
    left_out: Counter[str]


def when(entry: Entry) -> datetime:
    """When it began; of occurrences the last, of a death its end."""
    at: datetime = entry[{"occurrence": "last_for", "death": "finished_at"}.get(entry["kind"], "started_at")]
    return at


def outcome_of(entry: Entry) -> str:
    """ "succeeded", "dead", "missed", "no tick", "pause" …"""
    word: str = {"death": "dead", "gap": "no tick"}.get(entry["kind"]) or entry.get("outcome") or entry["kind"]
    return word


def number_of(entry: Entry) -> int:
    number: int = entry["count"] if entry["kind"] == "occurrence" else 1
    return number


def totals(entries: Iterable[Entry], tallies: Iterable[Tally]) -> Counter[str]:
    """How many there are of each outcome: *tallies* know that of attempts, deaths and occurrences."""
    found = Counter(outcome_of(entry) for entry in entries if entry["kind"] in ("gap", "pause", "deploy"))
    for tally in tallies:
        found[tally["outcome"]] = tally["in_all"]
    return found


def story(entries: Sequence[Entry], tallies: Sequence[Tally], limit: int) -> Story:
    """What happened, in at most *limit* lines: a line for each of *entries* that broke, then the quiet *tallies*.

    Entries that are alike share a line only if there are too many, those that matter least first.
    """
    broke = [[entry] for entry in entries if outcome_of(entry) not in QUIET]
    for outcome in reversed(BROKE):
        if len(broke) > limit:
            others = [line for line in broke if outcome_of(line[0]) != outcome]
            broke = others + _alike(entry for entry in entries if outcome_of(entry) == outcome)
    lines = _chosen(broke, limit)
    quiet = [tally for tally in tallies if tally["outcome"] in QUIET]
    room = limit - len(lines)
    counted = sorted(sorted(quiet, key=_rank_of_tally)[:room], key=lambda tally: tally["first_at"])
    return Story(lines, counted, _left_out(totals(entries, tallies), lines, counted))


def each_alone(entries: Sequence[Entry], tallies: Sequence[Tally], limit: int) -> Story:
    """At most *limit* of *entries*, each in a line of its own: what broke, then the newest of the others."""
    lines = _chosen([[entry] for entry in entries], limit)
    return Story(lines, [], _left_out(totals(entries, tallies), lines, []))


def _chosen(lines: list[list[Entry]], limit: int) -> list[list[Entry]]:
    newest_first = sorted(lines, key=lambda line: when(line[-1]), reverse=True)
    kept = sorted(newest_first, key=lambda line: _RANK.get(outcome_of(line[0]), 0))[:limit]
    # Of one instant the attempt before the death that it led to.
    return sorted(kept, key=lambda line: (when(line[0]), -_RANK.get(outcome_of(line[0]), 0)))


def _rank_of_tally(tally: Tally) -> tuple[int, int]:
    return _RANK[tally["outcome"]], -tally["number"]


def _alike(entries: Iterable[Entry]) -> list[list[Entry]]:
    """*entries* of one outcome by schedule, else by job type, and by error, each in order of time."""
    groups: dict[Hashable, list[Entry]] = {}
    for entry in sorted(entries, key=when):
        what = entry.get("schedule") or entry.get("job_type") or entry.get("name")
        error = normalised(str(entry.get("error") or entry.get("reason") or ""))
        groups.setdefault((what, error), []).append(entry)
    return list(groups.values())


def _left_out(found: Counter[str], lines: Iterable[Sequence[Entry]], tallies: Iterable[Tally]) -> Counter[str]:
    shown: Counter[str] = Counter()
    for line in lines:
        for entry in line:
            shown[outcome_of(entry)] += number_of(entry)
    for tally in tallies:
        shown[tally["outcome"]] += tally["number"]
    return found - shown
