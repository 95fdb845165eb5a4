"""Random nights: however history tells them, no run is lost, and each figure is that of the rows."""

from __future__ import annotations

import random
import re
from collections import Counter
from datetime import datetime, timedelta
from statistics import median
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from support.lookingrows import NOW, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows

from cronjobs.desk.cli.output import width
from cronjobs.desk.insight.shortened_history import collapsed, outcome_of, totals, when
from cronjobs.model import rough
from cronjobs.testing import FakeClock

BERLIN = ZoneInfo("Europe/Berlin")
OUTCOMES = ["succeeded"] * 12 + ["failed", "timed_out", "lost", "interrupted", "cancelled", "snoozed"]
LINE = re.compile(r"(\d\d:\d\d(?::\d\d)?)(?:–(\d\d:\d\d))? +(\w+(?: out| tick)?)  +(.*)")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


def random_entries(dice: random.Random) -> list[dict[str, Any]]:
    found = []
    for number in range(dice.randrange(0, 150)):
        began = NOW - timedelta(hours=30) * dice.random()
        kind = dice.choice(["attempt"] * 9 + ["death", "occurrence", "gap"])
        entry: dict[str, Any] = {"kind": kind, "job_id": number, "started_at": began, "finished_at": began}
        if kind != "gap":
            entry["schedule"] = dice.choice([None, "a", "b", "c"]) if kind != "occurrence" else "a"
        if kind == "attempt":
            entry["outcome"] = dice.choice(OUTCOMES)
        if kind == "occurrence":
            entry |= {"outcome": dice.choice(["missed", "skipped"]), "count": dice.randrange(1, 9), "last_for": began}
        found.append(entry)
    return sorted(found, key=when)


def day_of(at: datetime) -> Any:
    return at.astimezone(BERLIN).date()


def test_every_entry_is_on_exactly_one_line_and_only_successes_of_one_schedule_and_day_share_one() -> None:
    shared = 0
    for seed in range(300):
        entries = random_entries(random.Random(seed))
        lines: Any = collapsed(entries, day_of)
        assert sorted(id(entry) for line in lines for entry in line) == sorted(map(id, entries))
        assert [when(line[0]) for line in lines] == sorted(when(line[0]) for line in lines)
        for line in lines:
            shared += len(line) > 1
            if len(line) > 1:
                assert {(entry["kind"], entry["outcome"], entry["schedule"]) for entry in line} == {
                    ("attempt", "succeeded", line[0]["schedule"])
                }
                assert line[0]["schedule"] is not None
                assert len({day_of(when(entry)) for entry in line}) == 1
                between = entries[entries.index(line[0]) : entries.index(line[-1])]
                assert all(
                    outcome_of(entry) == "succeeded"
                    for entry in between
                    if entry.get("schedule") == line[0]["schedule"]
                )
        # As few lines as that allows: two neighbours of one schedule and day are never both successes.
        told: dict[str, Any] = {}
        for line in lines:
            schedule = line[0].get("schedule")
            if schedule is not None:
                key = (outcome_of(line[0]), day_of(when(line[0])))
                assert outcome_of(line[0]) != "succeeded" or told.get(schedule) != key
                told[schedule] = key
        assert totals(entries).total() == sum(entry.get("count", 1) for entry in entries)
    assert shared > 1000


@pytest.mark.parametrize("seed", range(2))
def test_a_night_is_told_without_losing_a_run(cronjobs: Cronjobs, rows: Rows, seed: int) -> None:
    dice = random.Random(seed)
    names = ["nightly-report", "sync stock ×3", "日本語"]
    ran: Counter[tuple[str, str]] = Counter()
    durations: dict[str, list[timedelta]] = {name: [] for name in names}
    rows.tick("web1", ago(hours=30))
    rows.tick()
    for number in range(60):
        name = dice.choice([*names, None])
        began = ago(hours=12) + timedelta(minutes=10 * number)
        took = timedelta(seconds=dice.choice([0.2, 1, 2.5]))
        outcome = dice.choice(OUTCOMES)
        job_id = rows.job(status="succeeded", schedule=name, started_at=began, finished_at=began + took)
        rows.attempt(job_id, outcome, started_at=began, finished_at=began + took)
        ran[name or "mail.send", outcome] += 1
        if name and outcome == "succeeded":
            durations[name].append(took)

    answer = cronjobs("history")
    each = cronjobs("history", "--json").json
    told: Counter[tuple[str, str]] = Counter()
    for line in answer.out.splitlines()[1:]:
        assert len(line) <= width()
        if (match := LINE.fullmatch(line)) is None or match[3] == "no tick":
            continue
        outcome = match[3].replace(" ", "_")
        if match[2]:
            name, count = re.fullmatch(r"(.+) ×([\d,]+), .*", match[4]).groups()  # type: ignore[union-attr]
            told[name, outcome] += int(count)
        else:
            name = found[1] if (found := re.search(r" of ([^,]+),", match[4])) else "mail.send"
            told[name, outcome] += 1
    assert told == ran
    head = " ".join(answer.out.splitlines()[:3])
    for outcome, count in Counter(key[1] for key in ran.elements()).items():
        assert f"{count} {outcome.replace('_', ' ')}" in head
    assert Counter(entry["outcome"] for entry in each if entry["kind"] == "attempt") == Counter(
        key[1] for key in ran.elements()
    )
    every = cronjobs("history", "--all").out
    assert "×" not in every.replace("stock ×3", "")
    assert sum(LINE.fullmatch(line) is not None for line in every.splitlines()) == len(each)


def test_repeated_successes_are_one_line_with_how_long_they_usually_took(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.tick("web1", ago(hours=30))
    durations = [1.0, 1.2, 1.4, 0.9, 20.0]
    for number, seconds in enumerate(durations):
        began = NOW.replace(hour=1, minute=0, second=0) + timedelta(minutes=5 * number)
        ended = began + timedelta(seconds=seconds)
        job_id = rows.job(status="succeeded", schedule="sync_stock", started_at=began, finished_at=ended)
        rows.attempt(job_id, started_at=began, finished_at=ended)
    usual = rough(timedelta(seconds=median(durations)))
    assert f"03:00–03:20  succeeded    sync_stock ×5, {usual} usual, the longest 20s\n" in cronjobs("history").out
    assert "03:20:00     succeeded    mail.send #5 of sync_stock, 20s on web1\n" in cronjobs("history", "--all").out
    early = cronjobs("history", "--until", "03:07").out
    assert early == cronjobs("history", "--until", "2026-07-01T03:07").out
    assert "03:00–03:05  succeeded    sync_stock ×2, 1.1s usual\n" in early
    assert early.startswith("since 2026-06-30 14:03:07 until 03:07:00 Europe/Berlin: 2 succeeded, 1 time")
    assert [
        entry["job_id"] for entry in cronjobs("history", "--until", "11h", "--type", "mail.send", "--json").json
    ] == [1]


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


def test_lines_are_limited_and_totals_are_not(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.tick()
    for number in range(12):
        began = ago(minutes=30 - number)
        job_id = rows.job(status="succeeded", schedule="s" if number < 10 else None)
        rows.attempt(job_id, started_at=began, finished_at=began)
    answer = cronjobs("history", "--limit", "2")
    assert answer.out.splitlines()[0].endswith(": 12 succeeded")
    assert [line.split()[2:4] for line in answer.out.splitlines()[3:]] == [["mail.send", "#11,"], ["mail.send", "#12,"]]
    assert "the newest 2 are shown; there are older ones" in answer.err
    assert len(cronjobs("history", "--json", "--limit", "2").json) == 2
