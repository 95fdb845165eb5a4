"""Random nights: whatever else happened, every fault is shown, and each figure matches the rows."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert
from support.lookingrows import HOLDER, NOW, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows

from cronjobs.desk.cli import history as command
from cronjobs.desk.insight.shortened_history import (
    ACTS,
    BROKE,
    QUIET,
    each_alone,
    number_of,
    outcome_of,
    story,
    totals,
    when,
)
from cronjobs.engine.database import tables
from cronjobs.engine.rules.error_groups import normalised
from cronjobs.testing import FakeClock

OF_ATTEMPTS = ["succeeded"] * 30 + ["snoozed"] * 3 + ["failed", "timed_out", "lost", "interrupted", "cancelled"]
LINE = re.compile(r"(?:\d\d:\d\d:\d\d| {8}) {5}(\w+(?: out| tick)?)  +(.*)")
MINUTE = timedelta(minutes=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


# --- the decision -----------------------------------------------------------------------------------------------------


def random_entries(dice: random.Random) -> list[dict[str, Any]]:
    found = []
    for number in range(dice.randrange(0, 120)):
        began = NOW - timedelta(hours=30) * dice.random()
        kind = dice.choice(["attempt"] * 9 + ["death", "occurrence", "pruned", "gap", "tick", "pause", "deploy", "act"])
        entry: dict[str, Any] = {"kind": kind, "job_id": number, "started_at": began, "finished_at": began}
        if kind in ("attempt", "death"):
            entry |= {"schedule": dice.choice([None, "a", "b"]), "job_type": dice.choice(["t", "u"])}
            entry |= {"error": dice.choice([None, f"503 for invoice {number}", "OSError"])}
        if kind == "attempt":
            entry["outcome"] = dice.choice(OF_ATTEMPTS)
        if kind == "occurrence":
            entry |= {"outcome": dice.choice(["missed", "skipped"]), "count": dice.randrange(1, 9), "last_for": began}
            entry |= {"schedule": dice.choice("ab"), "reason": "no tick fired it in time"}
        if kind == "pruned":
            entry |= {"jobs": dice.randrange(1, 9), "job_type": "t", "schedule": None}
        if kind == "act":
            entry |= {"action": dice.choice(list(ACTS)), "jobs": dice.randrange(1, 9), "by": dice.choice("ab")}
            entry |= {
                "schedule": dice.choice([None, "a"]),
                "job_type": "t",
                "why": dice.choice([None, f"not {number}"]),
            }
        found.append(entry)
    return found


def of_act(entry: dict[str, Any]) -> str:
    return f"{entry['by']}: {entry['why'] or ''}" if entry["kind"] == "act" else ""


def tallied(entries: Iterable[dict[str, Any]], dice: random.Random) -> list[dict[str, Any]]:
    """Sum the entries as the database does. For some outcomes leave out the smallest groups."""
    sums: Counter[tuple[str, Any]] = Counter()
    for entry in entries:
        if entry["kind"] in ("attempt", "death", "occurrence"):
            sums[outcome_of(entry), entry.get("schedule") or entry.get("job_type")] += number_of(entry)
    in_all = Counter[str]()
    for (outcome, _), number in sums.items():
        in_all[outcome] += number
    most = dice.choice([1, 99])
    found = []
    for outcome, total in in_all.items():
        largest = sorted(((number, who) for (word, who), number in sums.items() if word == outcome), reverse=True)
        at = NOW - timedelta(hours=30) * dice.random()
        found += [
            {"outcome": outcome, "schedule": who, "number": number, "in_all": total, "first_at": at}
            for number, who in largest[:most]
        ]
    return found


@pytest.mark.parametrize("tell", [story, each_alone])
def test_what_broke_comes_before_what_went_well_and_what_is_left_out_is_counted(tell: Any) -> None:
    cut = whole = 0
    for seed in range(600):
        dice = random.Random(seed)
        entries = random_entries(dice)
        tallies, limit = tallied(entries, dice), dice.choice([1, 5, 20, 50, 200])
        found = tell(entries, tallies, limit)
        assert len(found.lines) + len(found.tallies) <= limit
        shown = [entry for line in found.lines for entry in line]
        assert len({id(entry) for entry in shown}) == len(shown)
        counts = Counter[str]()
        for entry in shown:
            counts[outcome_of(entry)] += number_of(entry)
        for tally in found.tallies:
            counts[tally["outcome"]] += tally["number"]
        in_all = totals(entries, tallies)
        assert in_all.total() == sum(map(number_of, entries))
        assert counts + found.left_out == in_all
        # Nothing is left out for something that matters less.
        ranks = [(*BROKE, *QUIET).index(outcome) for outcome in found.left_out if outcome in BROKE]
        least = max((((*BROKE, *QUIET).index(outcome)) for outcome in counts), default=0)
        assert least <= min(ranks, default=99)
        # In order of time, and those that share a line are alike, and share it only for want of room.
        assert [when(line[0]) for line in found.lines] == sorted(when(line[0]) for line in found.lines)
        for line in found.lines:
            assert len({(outcome_of(entry), entry.get("schedule") or entry.get("job_type")) for entry in line}) == 1
            assert line == sorted(line, key=when)
        broke = [entry for entry in entries if outcome_of(entry) in BROKE]
        dead = [entry for entry in broke if outcome_of(entry) == "dead"]
        alike = {
            (
                outcome_of(entry),
                entry.get("schedule") or entry.get("job_type"),
                normalised(of_act(entry) or entry.get("error") or ""),
            )
            for entry in broke
            if entry not in dead
        }
        if len(dead) + len(alike) <= limit:
            assert [found.lines.count([entry]) for entry in dead] == [1] * len(dead)
        if len(broke) <= limit:
            whole += 1
            assert {id(entry) for entry in broke} <= {id(entry) for entry in shown}
            assert all(len(line) == 1 for line in found.lines)
        cut += bool(found.left_out)
    assert min(cut, whole) > 100


# --- the command ------------------------------------------------------------------------------------------------------


class Night:
    """Rows of a night, and beside them what a reader is to find: ``facts`` by outcome."""

    def __init__(self, rows: Rows, dice: random.Random) -> None:
        self.rows, self.dice, self.facts, self.job = rows, dice, Counter[str](), 0
        self.jobs: list[dict[str, Any]] = []
        self.runs: list[dict[str, Any]] = []
        self.by_name: Counter[tuple[str, str]] = Counter()

    def attempts(self, name: str | None, job_type: str, outcomes: list[str], *, dies: bool = False) -> None:
        """A job that had these attempts."""
        self.job += 1
        began = ago(hours=20) + self.dice.random() * timedelta(hours=19)
        common = {"id": self.job, "job_type": job_type, "schedule": name, "created_at": began, "run_at": began}
        ended = began + len(outcomes) * MINUTE
        error = "GiveUp: there is no invoice" if dies else None
        state = {"status": "dead" if dies else "succeeded", "finished_at": ended, "last_error": error}
        self.jobs.append(common | state | {"attempts": len(outcomes)})
        for number, outcome in enumerate(outcomes):
            at = began + number * MINUTE
            run = {"job_id": self.job, "attempt": number + 1, "outcome": outcome, "runner": HOLDER}
            self.runs.append(run | {"started_at": at, "finished_at": at + 20 * MINUTE / 60, "error": None})
            self.facts[outcome] += 1
            self.by_name[name or job_type, outcome] += 1
        self.facts["dead"] += dies

    def write(self) -> None:
        with self.rows.database.write() as connection:
            connection.execute(insert(tables.jobs), self.jobs)
            connection.execute(insert(tables.job_runs), self.runs)

    def act(self, at: datetime, action: str, subject: str, **values: Any) -> None:
        self.rows.put(tables.audit, at=at, actor="ada", host="web1", action=action, subject=subject, **values)


def a_random_night(rows: Rows, dice: random.Random, successes: int) -> Night:
    night = Night(rows, dice)
    names = [("nightly-report", "reports.nightly"), ("sync-stock", "stock.sync"), (None, "mail.send"), (None, "poll")]
    for _ in range(successes):
        night.attempts(*dice.choice(names), ["succeeded"])
    for _ in range(dice.randrange(0, 12)):
        outcomes = dice.choices(OF_ATTEMPTS[30:], k=dice.randrange(1, 5))
        night.attempts(*dice.choice(names), outcomes, dies=dice.random() < 0.7)
    night.attempts(None, "poll", ["snoozed"] * 41)
    schedule = rows.schedule("sync-stock")
    for number in range(dice.randrange(0, 60)):
        at = ago(hours=15) + number * 3 * MINUTE
        outcome, count = dice.choice(["skipped", "skipped", "missed", "coalesced"]), dice.randrange(1, 4)
        rows.occurrence(schedule, at, outcome, first_for=at - MINUTE, count=count, job_id=1, reason="overlap: job 1")
        night.facts[outcome] += count
    rows.tick("web1", ago(hours=30))
    many = dice.randrange(1, 5)
    for number in reversed(range(many)):
        rows.tick("web1", ago(hours=1 + number))
        night.facts["no tick"] += 1
    # Due before the period, in a time without ticks: what the tick that ended that time settled is found.
    for number in range(dice.randrange(0, 4)):
        late = dice.choice([True, False])
        due = ago(hours=29) + number * MINUTE
        rows.occurrence(schedule, due, "missed", decided_at=ago(hours=many) if late else due + MINUTE)
        night.facts["missed"] += late
    rows.occurrence(schedule, ago(hours=31), "missed", decided_at=ago(hours=many))
    rows.tick()
    night.facts["no tick"] += 1
    for number in range(dice.randrange(0, 4)):
        night.act(ago(hours=9) + number * MINUTE, "pause", f"queue q{number}")
        night.act(ago(hours=8), "resume", f"queue q{number}")
        night.facts["pause"] += 1
    for number in range(dice.randrange(0, 4)):
        night.act(ago(hours=7) + number * MINUTE, "sync", f"f{number}", detail={"add": ["a"]})
        night.facts["deploy"] += 1
    for number in range(dice.randrange(0, 4)):
        action, ids = dice.choice(list(ACTS)), list(range(1, dice.randrange(2, 9)))
        night.act(ago(hours=6 - number), action, "jobs", why="enough", detail={"filter": {}, "ids": ids})
        night.facts[action] += len(ids)
    night.write()
    return night


def read(out: str) -> tuple[Counter[str], list[tuple[str, str]]]:
    """The lines of the text: how many of each outcome they speak of, and outcome and text of each."""
    lines: list[tuple[str, str]] = []
    for line in out.splitlines():
        if match := LINE.fullmatch(line):
            lines.append((match[1].replace("_", " "), match[2]))
        elif lines and line.startswith(" " * 26):
            lines[-1] = (lines[-1][0], f"{lines[-1][1]} {line.strip()}")
    found = Counter[str]()
    for word, text in lines:
        number = re.match(r"([\d,]+) similar|([\d,]+) jobs?\b|\S+ ×([\d,]+)|.*?, ([\d,]+) occurrences", text)
        many = next(filter(None, number.groups()), "1") if number else "1"
        acted = re.search(r" by ada\b", text) and word != "paused"
        found[f"job {word}" if acted else word] += int(many.replace(",", ""))
    return found, lines


def said(text: str) -> Counter[str]:
    """The figures of the first line, or of what is left out, by the words of the lines."""
    found = Counter[str]()
    words = r"(\d[\d,]*) (\w+(?: out|s? without ticks| \w+ed)?)(?=,|$|:|;)"
    for number, word in re.findall(words, " ".join(text.split())):
        plain = {"time without ticks": "no tick", "times without ticks": "no tick", "deploys": "deploy"}
        word = re.sub("^jobs ", "job ", word)
        found[{"pauses": "pause"}.get(word, plain.get(word, word))] += int(number.replace(",", ""))
    return found


def in_words(facts: Counter[str]) -> Counter[str]:
    told = {word: f"job {done}" for word, done in ACTS.items()}
    return Counter({told.get(word, word.replace("_", " ")): number for word, number in facts.items() if number})


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limit", [10, 200])
def test_a_night_is_told_without_losing_what_broke(cronjobs: Cronjobs, rows: Rows, seed: int, limit: int) -> None:
    dice = random.Random(seed)
    night = a_random_night(rows, dice, successes=dice.choice([3, 400]))
    answer = cronjobs("history", "--limit", str(limit))
    facts = in_words(night.facts)
    found, lines = read(answer.out)
    head = answer.out.split("\n\n")[0].partition("Europe/Berlin:")[2]
    assert said(head) == facts
    assert len(lines) <= limit
    plain = Counter({{"deployed": "deploy", "paused": "pause"}.get(word, word): n for word, n in found.items()})
    left_out = said(answer.err.partition("left out: ")[2].partition(": --limit")[0])
    assert plain + left_out == facts
    if limit == 200:
        assert not left_out
        assert answer.err == ""
        assert {word for word, text in lines if " similar until " in text} == set()
        tallied = {
            (match[1], word.replace(" ", "_")): int((match[2] or "1").replace(",", ""))
            for word, text in lines
            if word in ("succeeded", "snoozed") and (match := re.match(r"(\S+?)(?: ×([\d,]+))?(?:,| \()", text))
        }
        assert tallied == {key: number for key, number in night.by_name.items() if key[1] in ("succeeded", "snoozed")}
    each = cronjobs("history", "--json", "--limit", "100000").json
    counted = Counter[str]()
    for entry in each:
        counted[outcome_of(entry)] += number_of(entry)
    assert in_words(counted) == facts
    alone = read(cronjobs("history", "--all", "--limit", "100000").out)[1]
    assert len(alone) == len(each)


@pytest.mark.slow
def test_twelve_thousand_successes_hide_none_of_29_deaths(cronjobs: Cronjobs, rows: Rows) -> None:
    night = Night(rows, random.Random(7))
    for number in range(11_854):
        night.attempts(None, f"billing.invoice{number % 3}", ["succeeded"])
    for _ in range(29):
        night.attempts(None, "billing.invoice0", ["failed"], dies=True)
    night.write()
    rows.tick()
    answer = cronjobs("history")
    assert answer.out.startswith("since 2026-06-30 14:03:07 Europe/Berlin: 29 dead, 29 failed, 11,854 succeeded\n")
    assert [answer.out.count(f"  {word}  ") for word in ("dead     ", "failed     ", "succeeded  ")] == [29, 29, 3]
    assert "billing.invoice0 ×3,952, 20s on average: " in answer.out
    assert answer.err == ""
    json = cronjobs("history", "--json")
    assert [entry["kind"] for entry in json.json].count("death") == 29
    assert len(json.json) == 200
    assert json.err == "left out: 11,712 succeeded; raise --limit, or choose a shorter period\n"


def test_many_failures_leave_each_death_its_line(cronjobs: Cronjobs, rows: Rows) -> None:
    night = Night(rows, random.Random(7))
    for number in range(200):
        night.attempts(None, "mail.send", ["failed", "succeeded"])
        if number < 29:
            night.attempts(None, "billing.invoice", ["failed"], dies=True)
    night.write()
    rows.tick()
    answer = cronjobs("history").out
    assert [answer.count(f"  {word}  ") for word in ("dead     ", "failed     ", "succeeded  ")] == [29, 2, 1]
    assert "failed       200 similar until " in answer


def test_more_of_what_broke_than_there_are_lines_is_one_line_of_those_alike(cronjobs: Cronjobs, rows: Rows) -> None:
    night = Night(rows, random.Random(7))
    for _ in range(50):
        night.attempts(None, "mail.send", ["failed"], dies=True)
    night.write()
    rows.tick()
    answer = " ".join(cronjobs("history", "--limit", "20").out.split())
    assert len(re.findall(r" 50 similar until 2026-07-01 [\d:]+, the first: mail.send #", answer)) == 2


def test_only_so_many_are_counted_and_it_says_from_when_on(
    cronjobs: Cronjobs, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "COUNTED_AT_MOST", 3)
    for number in range(5):
        at = ago(minutes=10 - number)
        rows.attempt(rows.job(status="succeeded", finished_at=at), started_at=at, finished_at=at)
    rows.tick()
    answer = cronjobs("history")
    assert answer.out.splitlines()[0].endswith(": 3 succeeded")
    assert answer.err == "only the newest 3 attempts are counted, back to 13:55:07\n"
    assert cronjobs("history", "--until", "8m30s").err == ""
    assert cronjobs("history", "--since", "8m30s").err == ""  # exactly three


def test_a_failure_comes_before_the_death_that_it_led_to_and_both_say_what_it_was(
    cronjobs: Cronjobs, rows: Rows
) -> None:
    at = ago(minutes=9)
    for seconds, (outcome, kind, error) in enumerate(
        [("failed", "RuntimeError", "boom"), ("failed", "KeyError", None), ("timed_out", "TimedOut", "after 2s")]
    ):
        ended = at + timedelta(seconds=seconds)
        job_id = rows.job(status="dead", finished_at=ended, error_type=kind, last_error=error)
        later = ended + timedelta(milliseconds=2)  # SQLite's clock is read once more for the attempt
        rows.attempt(job_id, outcome, error_type=kind, error=error, started_at=later, finished_at=later)
    rows.tick()
    lines = [
        ("failed", "mail.send #1, took 0s on web1: RuntimeError: boom"),
        ("dead", "mail.send #1, and nobody has dealt with it: RuntimeError: boom"),
        ("failed", "mail.send #2, took 0s on web1: KeyError"),
        ("dead", "mail.send #2, and nobody has dealt with it: KeyError"),
        ("timed out", "mail.send #3, took 0s on web1: after 2s"),
        ("dead", "mail.send #3, and nobody has dealt with it: after 2s"),
    ]
    assert read(cronjobs("history").out)[1] == lines
    kinds = [entry["kind"] for entry in cronjobs("history", "--json").json]
    assert kinds == ["attempt", "death"] * 3


def test_a_lost_attempt_has_no_length(cronjobs: Cronjobs, rows: Rows) -> None:
    job_id = rows.job(status="dead", error_type="Lost")
    rows.attempt(job_id, "lost")
    rows.tick()
    assert "lost         mail.send #1, found 1m after it began on web1\n" in cronjobs("history").out
    shown = cronjobs("jobs", "show", "1").out
    assert "found 1m after it began, on web1" in shown
    assert "took" not in shown
    assert "after 1m\n" not in shown


def test_reasons_have_the_times_of_the_reader(cronjobs: Cronjobs, rows: Rows) -> None:
    schedule = rows.schedule("sync")
    reason = "the occurrence of 2026-07-01T01:24:00+00:00 stands for it"
    rows.occurrence(schedule, ago(hours=11), "coalesced", reason=reason)
    rows.occurrence(schedule, ago(hours=10), "missed", reason=reason)
    rows.tick()
    rows.occurrence(schedule, ago(hours=9), "missed", reason="what of 2026-99-01T01:24:00+00:00?")
    for arguments in (["history"], ["history", "--all"], ["schedules", "show", "sync"]):
        out = " ".join(cronjobs(*arguments).out.split())
        assert "2026-07-01T01:24" not in out
    missed = " ".join(cronjobs("history", "--outcome", "missed").out.split())
    assert "sync: the occurrence of 03:24:00 stands for it" in missed
    assert "sync: what of 2026-99-01T01:24:00+00:00?" in missed


def test_pauses_and_deploys_are_in_the_night(cronjobs: Cronjobs, rows: Rows) -> None:
    night = Night(rows, random.Random(1))
    night.act(ago(days=3), "pause", "all", why="moving")
    night.act(ago(days=2), "resume", "all")
    night.act(ago(days=2), "pause", "queue mail", why="provider down")
    night.act(ago(hours=10), "resume", "queue mail")
    night.act(ago(hours=9), "pause", "schedule sync", detail={"skip": True})
    night.act(ago(hours=8), "pause", "schedule other", detail={"until": (ago(hours=7)).isoformat()})
    night.act(ago(hours=6), "sync", "3f2a9c1b00000000", detail={"add": [], "change": ["sync"], "rename": ["a → b"]})
    night.act(ago(hours=5), "sync", "3f2a9c1b00000000", detail={"add": [], "change": []})  # the same file again
    rows.schedule("sync")
    rows.tick()
    assert (
        cronjobs("history").out
        == """\
since 2026-06-30 14:03:07 Europe/Berlin: 3 pauses, 1 deploy

Monday 2026-06-29
14:03:07     paused       queue mail by ada until 2026-07-01 04:03:07: provider
                          down

Wednesday 2026-07-01
05:03:07     paused       schedule sync by ada and is still paused, and what
                          came due was skipped
06:03:07     paused       schedule other by ada until 07:03:07
08:03:07     deployed     file 3f2a9c1b0000 applied by web1 (change: sync,
                          rename: a → b)
"""
    )
    found = [entry["kind"] for entry in cronjobs("history", "--json", "--schedule", "sync").json]
    assert found == ["pause", "pause", "deploy"]
    [pause] = cronjobs("history", "--json", "--until", "8h30m", "--since", "9h30m").json
    assert pause == {
        "kind": "pause",
        "scope": "schedule",
        "name": "sync",
        "by": "ada",
        "changed_by": None,
        "why": None,
        "started_at": ago(hours=9).isoformat(),
        "until": None,
        "skip": True,
        "finished_at": None,
    }
    assert cronjobs("history", "--json", "--type", "mail.send").json == []


def test_what_somebody_does_to_jobs_is_in_the_night(cronjobs: Cronjobs, rows: Rows) -> None:
    night, at = Night(rows, random.Random(1)), ago(hours=6)
    many = [rows.job("flood", "cancelled") for _ in range(275)]
    one, other = rows.job("reports.nightly", "cancelled", schedule="nightly"), rows.job("mail.send", schedule="other")
    for number, ids in enumerate((many[:200], many[200:])):
        detail = {"filter": {"type": "flood"}, "ids": ids}
        night.act(at + number * MINUTE, "cancel", "jobs", why="too many", detail=detail)
        night.act(at + number * MINUTE, "cancel", f"job {one + number}", why="not yet")
    night.act(ago(hours=5), "cancel", "job 9999", why="not yet")
    night.act(ago(hours=4), "retry", "jobs", detail={"ids": [many[0], other, "x", None, 10**30], "dead": [other, "x"]})
    night.act(ago(hours=3), "dismiss", "jobs", detail={"ids": "x"})
    night.act(ago(hours=3), "release", "job x")
    night.act(ago(hours=3), "trigger", "nightly", detail={"job_id": one})
    night.act(ago(hours=2), "backfill", "other", detail={"from": "x", "to": "x", "jobs": 1, "ids": [other]})
    rows.tick()
    assert (
        cronjobs("history").out
        == """\
since 2026-06-30 14:03:07 Europe/Berlin: 278 jobs cancelled, 2 jobs retried, 1
job triggered, 1 job backfilled

Wednesday 2026-07-01
08:03:07     cancelled    275 jobs of flood by ada, the last at 08:04:07: too
                          many
08:03:07     cancelled    2 jobs by ada, the last at 08:04:07: not yet
09:03:07     cancelled    job #9999 by ada: not yet
10:03:07     retried      2 jobs, 1 of them dead until then, by ada
11:03:07     triggered    reports.nightly #276 of nightly by ada
12:03:07     backfilled   mail.send #277 of other by ada
"""
    )
    assert (
        "cancelled    reports.nightly #276 of nightly by ada: not yet\n"
        in cronjobs("history", "--type", "reports.nightly").out
    )
    [cancelled, retried, backfilled] = cronjobs("history", "--schedule", "other", "--json").json
    assert (cancelled["jobs"], cancelled["job_id"], retried["job_type"]) == (1, other, "mail.send")
    assert (retried["jobs"], retried["were_dead"]) == (1, 1)
    assert (backfilled["action"], backfilled["job_id"]) == ("backfill", other)
    [cancelled] = cronjobs("history", "--type", "flood", "--json", "--until", "5h").json
    assert cancelled == {
        "kind": "act",
        "action": "cancel",
        "jobs": 275,
        "job_id": None,
        "job_type": "flood",
        "schedule": None,
        "by": "ada",
        "host": "web1",
        "why": "too many",
        "started_at": at.isoformat(),
        "finished_at": (at + MINUTE).isoformat(),
        "were_dead": 0,
        "asked_to_stop": False,
    }
    cancels = cronjobs("history", "--outcome", "cancelled", "--json").json
    assert [(each["action"], each["jobs"]) for each in cancels] == [("cancel", 275), ("cancel", 2), ("cancel", 1)]
    assert (
        cronjobs("history", "--limit", "2").err
        == "left out: 2 jobs retried, 1 job triggered, 1 job backfilled; raise --limit, or choose a shorter period\n"
    )


def test_a_cancel_of_a_running_job_is_a_request_and_counts_as_one(cronjobs: Cronjobs, rows: Rows) -> None:
    night, at = Night(rows, random.Random(1)), ago(hours=6)
    deaf, waited, runs = rows.job("deaf", "succeeded"), rows.job("mail.send", "cancelled"), rows.job("poll", "running")
    rows.attempt(deaf, started_at=at - MINUTE, finished_at=at + MINUTE)
    rows.attempt(waited, "failed", started_at=at - 3 * MINUTE, finished_at=at - 2 * MINUTE)
    for job_id in (deaf, waited):
        night.act(at, "cancel", f"job {job_id}", why="wrong")
    night.act(ago(seconds=5), "cancel", "jobs", detail={"ids": [runs], "filter": {"type": "poll"}})
    rows.tick()
    said = cronjobs("history").out
    assert "1 job cancelled, 2 jobs asked to stop" in " ".join(said.split())
    assert f"asked        deaf #{deaf} to stop, by ada: wrong\n" in said
    assert f"cancelled    mail.send #{waited} by ada: wrong\n" in said
    assert f"asked        poll #{runs} to stop, by ada\n" in said
    acts = [each for each in cronjobs("history", "--json").json if each["kind"] == "act"]
    assert [(each["job_id"], each["action"], each["asked_to_stop"]) for each in acts] == [
        (deaf, "cancel", True),
        (waited, "cancel", False),
        (runs, "cancel", True),
    ]


@pytest.mark.parametrize("outcome", ["lost", "failed", "cancelled"])
def test_a_cancel_that_ended_a_job_is_a_cancel_whatever_its_attempt_came_to(
    cronjobs: Cronjobs, rows: Rows, outcome: str
) -> None:
    """If the attempt has the outcome "cancelled", its own line says so."""
    night, at = Night(rows, random.Random(1)), ago(hours=6)
    job_id = rows.job("poll", "cancelled", attempts=2, started_at=at - MINUTE, finished_at=at + 2 * MINUTE)
    rows.attempt(job_id, "failed", started_at=at - 9 * MINUTE, finished_at=at - 8 * MINUTE)
    rows.attempt(job_id, outcome, attempt=2, started_at=at - MINUTE, finished_at=at + 2 * MINUTE)
    night.act(at, "cancel", f"job {job_id}", why="wrong")
    night.act(at - 8.5 * MINUTE, "cancel", f"job {job_id}", why="not this time")
    rows.tick()
    said = cronjobs("history").out
    act = "asked        poll #{} to stop, by ada: wrong" if outcome == "cancelled" else "cancelled    poll #{} by ada"
    assert act.format(job_id) in said, said
    assert said.count("asked        ") == 1 + (outcome == "cancelled")
    assert "1 cancelled" in said if outcome == "cancelled" else "1 job cancelled" in said, said


def test_a_death_that_a_retry_has_ended_is_told_by_the_retry(cronjobs: Cronjobs, rows: Rows) -> None:
    one, two = (rows.job("mail.send", "dead") for _ in range(2))
    rows.job("mail.send", "cancelled")
    rows.tick()
    assert cronjobs("jobs", "retry", str(one), "--why", "mended").code == 0
    assert cronjobs("jobs", "retry", "--type", "mail.send", "--why", "all", "--yes").code == 0
    said = " ".join(cronjobs("history").out.split())
    assert re.search(rf"retried mail\.send #{one}, dead until then, by \w+: mended", said)
    assert re.search(r"retried 2 jobs of mail\.send, 1 of them dead until then, by \w+: all", said)
    assert cronjobs("jobs", "cancel", str(two)).code == 0
    assert [each["were_dead"] for each in cronjobs("history", "--json").json if each["kind"] == "act"] == [1, 1, 0]


def test_only_so_many_acts_on_jobs_are_counted_and_it_says_from_when_on(
    cronjobs: Cronjobs, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "READ_AT_MOST", 3)
    night = Night(rows, random.Random(1))
    for number in range(5):
        night.act(ago(minutes=10 - number), "cancel", f"job {number + 1}")
    rows.tick()
    answer = cronjobs("history")
    assert answer.out.splitlines()[0].endswith(": 3 jobs cancelled")
    assert answer.err == "only the newest 3 actions on jobs are counted, back to 13:55:07\n"


def test_dates_are_left_out_only_where_they_stand_above_the_line(cronjobs: Cronjobs, rows: Rows) -> None:
    for hours in (30, 20, 19, 3, 0):  # jobs on two days
        rows.tick("web1", ago(hours=hours))
    schedule = rows.schedule("sync")
    rows.occurrence(schedule, ago(hours=15), "missed", first_for=ago(hours=16), count=2)
    rows.occurrence(schedule, ago(hours=13), "missed", first_for=ago(hours=15), count=2)
    lines = [text for word, text in read(cronjobs("history", "--since", "40h").out)[1] if word != "deployed"]
    assert lines == [
        "reached the database between 08:03:07 and 18:03:07",
        "reached the database between 18:03:07 and 19:03:07",
        "reached the database between 19:03:07 and 2026-07-01 11:03:07",
        "sync, 2 occurrences from 22:03:07 to 23:03:07",
        "sync, 2 occurrences from 2026-06-30 23:03:07 to 2026-07-01 01:03:07",
        "reached the database between 11:03:07 and 14:03:07",
    ]
    head = cronjobs("history", "--since", "40h", "--until", "20h").out
    assert head.startswith("since 2026-06-29 22:03:07 until 2026-06-30 18:03:07 Europe/Berlin")
    head = cronjobs("history", "--since", "20h", "--until", "19h").out
    assert head.startswith("since 2026-06-30 18:03:07 until 19:03:07 Europe/Berlin")


def test_a_time_without_ticks_whose_begin_is_no_longer_kept_is_shown_at_its_end(cronjobs: Cronjobs, rows: Rows) -> None:
    for minutes in range(120, -1, -2):
        rows.tick("web1", ago(minutes=minutes))
    schedule = rows.schedule("sync")
    rows.occurrence(schedule, ago(hours=1))
    assert "no tick" not in cronjobs("history").out
    waited = {"first_for": ago(hours=9), "count": 7, "decided_at": ago(minutes=120) + timedelta(seconds=2)}
    rows.occurrence(schedule, ago(hours=3), "coalesced", **waited)
    for since in ("24h", "5d"):
        assert "no tick      reached the database until 12:03:07\n" in cronjobs("history", "--since", since).out
    assert "no tick" not in cronjobs("history", "--since", "1h").out


def test_other_code_on_a_host_is_a_deploy(cronjobs: Cronjobs, rows: Rows) -> None:
    for number, names in enumerate((["a", "b"], ["a", "c"], ["a", "c"])):
        rows.put(tables.job_type_lists, hash=f"code{number}", names=names)
    told = [("web1", "code0", "0.2.0"), ("web2", "code0", "0.2.0"), ("web1", "code1", "0.2.0"), ("web1", None, "0.2.0")]
    told += [("web1", "code1", "0.2.0"), ("web2", "code1", "0.3.0"), ("web1", "code2", "0.2.0")]
    told += [("web1", "code2", "0.2.1")]
    for number, (host, code, version) in enumerate(told):
        rows.tick(host, ago(minutes=8 - number), job_types=code, version=version)
    rows.tick()
    assert (
        cronjobs("history").out
        == """\
since 2026-06-30 14:03:07 Europe/Berlin: 4 deploys

Wednesday 2026-07-01
13:57:07     deployed     other code on web1 (new job types: c, gone job types:
                          b)
14:00:07     deployed     other code on web2 (version: 0.2.0 → 0.3.0, new job
                          types: c, gone job types: b)
14:01:07     deployed     other code on web1
14:02:07     deployed     other code on web1 (version: 0.2.0 → 0.2.1)
"""
    )
    assert cronjobs("history", "--until", "3m").out.count("deployed") == 1
    # The first tick in the range is compared with its host's tick before the range.
    assert cronjobs("history", "--since", "390s").out.count("deployed") == 4


def test_however_many_job_types_there_are_totals_are_whole(
    cronjobs: Cronjobs, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "TALLIES_AT_MOST", 2)
    night = Night(rows, random.Random(7))
    for number in range(9):
        night.attempts(None, f"t{number % 4}", ["succeeded"])
    night.attempts(None, "poll", ["snoozed", "failed"], dies=True)
    night.write()
    rows.tick()
    answer = cronjobs("history")
    assert answer.out.startswith("since 2026-06-30 14:03:07 Europe/Berlin: 1 dead, 1 failed, 1 snoozed, 9\nsucceeded\n")
    assert read(answer.out)[0] == Counter({"succeeded": 5, "snoozed": 1, "failed": 1, "dead": 1})
    assert answer.err == "left out: 4 succeeded; raise --limit, or choose a shorter period\n"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--until 3d --since 1d", "--until is not after --since"),
        ("--until soon", "--until: 'soon' is neither a duration"),
    ],
)
def test_a_span_that_cannot_be_meant_is_refused(cronjobs: Cronjobs, rows: Rows, options: str, why: str) -> None:
    answer = cronjobs("history", *options.split())
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(why)


def test_until_is_a_time_of_day_or_a_duration(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.tick("web1", ago(hours=30))
    for number in range(5):
        began = datetime(2026, 7, 1, 1, 5 * number, tzinfo=UTC)
        job_id = rows.job(status="succeeded", schedule="sync_stock", started_at=began, finished_at=began)
        rows.attempt(job_id, started_at=began, finished_at=began + timedelta(seconds=1 + 19 * (number == 4)))
    text = "sync_stock ×5, 4.8s on average, the longest 20s: 03:00:00 to 03:20:00"
    assert text in " ".join(cronjobs("history").out.split())
    early = cronjobs("history", "--until", "03:07").out
    assert early == cronjobs("history", "--until", "2026-07-01T03:07").out
    assert "sync_stock ×2, 1s on average: 03:00:00 to 03:05:00\n" in early
    assert early.startswith("since 2026-06-30 14:03:07 until 2026-07-01 03:07:00 Europe/Berlin: 1 time")
    found = cronjobs("history", "--until", "11h", "--type", "mail.send", "--json").json
    assert [entry["job_id"] for entry in found] == [1]
