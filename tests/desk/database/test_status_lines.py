"""The lines of ``status``: they fit the terminal's width, the worst come first, and trends match the rows."""

from __future__ import annotations

import random
import sys
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, delete, insert
from support.lookingrows import NOW, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows

from cronjobs.desk.cli import output
from cronjobs.desk.cli.last_runs import BLOCKS, LETTERS, legend, strip
from cronjobs.desk.cli.output import _columns, wrapped
from cronjobs.desk.insight.queue_trends import trend_of
from cronjobs.desk.store import schedule_runs, trends, workload
from cronjobs.engine.command import printing
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.testing import FakeClock

MINUTE = timedelta(minutes=1)
NAMES = [
    "nightly-report",
    "日本語のジョブの名前" * 3,
    "a\x1b[2J\x9b31m\u202eb\nFORGED\r\x07",
    "x" * 300,
    "[red]markup[/]",
    "e\u0301" * 40,
    "two  words\tand a tab",
    "👩‍👩‍👧 family",
    "<script>alert(1)</script>",
]
STATUSES = ["succeeded"] * 6 + ["failed", "dead", "cancelled", "running", "queued"]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


def random_world(rows: Rows, dice: random.Random) -> None:
    for name in dice.sample(NAMES, 7):
        schedule = rows.schedule(
            name, next_at=dice.choice([None, NOW + MINUTE, ago(minutes=9), NOW + timedelta(days=900)])
        )
        for number in range(dice.choice([0, 1, 25])):
            at, status = ago(minutes=10 * number + 1), dice.choice(STATUSES)
            if dice.random() < 0.2:
                rows.occurrence(schedule, at, dice.choice(["missed", "skipped", "coalesced"]), reason=name)
                continue
            extra: dict[str, Any] = {"queue": dice.choice(NAMES)[:200], "schedule": name}
            if status in ("succeeded", "dead", "cancelled"):
                extra |= {"started_at": at, "finished_at": at + MINUTE * dice.choice([0.001, 1, 50_000])}
            if status == "running":
                extra |= {"locked_by": dice.choice(NAMES), "started_at": at, "locked_until": at + 2 * MINUTE}
            job_id = rows.job(dice.choice(NAMES), status, **extra)
            if status == "succeeded":
                rows.attempt(job_id, started_at=at, finished_at=extra["finished_at"])
            rows.occurrence(schedule, at, job_id=dice.choice([job_id, job_id, 10**9]))
    for name in dice.sample(NAMES, 4):
        rows.tick(name, ago(minutes=dice.choice([0, 1, 300])), ended=name, version=name, did={"refused": name})
        rows.pause("queue", name[:200], by=name, why=name * 3)
        ack = {"severity": "critical", "rows": [], "until": NOW + MINUTE, "by": name, "why": name}
        rows.put(tables.acks, finding=dice.choice(["late", "dead", "missed", "failing"]) + name, **ack)
    ack = {"severity": "critical", "rows": [], "until": NOW + MINUTE, "by": "x" * 200, "why": "日本" * 90}
    rows.put(tables.acks, finding="late", **ack)
    with rows.database.write() as connection:
        caps = [{"name": name[:200], "max_waiting": 1, "dropped": 10**12} for name in dice.sample(NAMES, 3)]
        connection.execute(insert(tables.queues), caps)


@pytest.mark.parametrize("seed", range(2))
def test_no_line_is_wider_than_the_terminal_whatever_the_rows_hold(
    cronjobs: Cronjobs, rows: Rows, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_world(rows, random.Random(seed))
    for command in ("status", "status --all", "history", "history --all"):
        for columns in (60, 80, 200) if command == "status" else (80,):
            monkeypatch.setenv("COLUMNS", str(columns))
            out = cronjobs(*command.split()).out
            wide = {line: _columns(line) for line in out.split("\n") if _columns(line) > columns}
            assert not wide, command
            assert not any(character in out for character in "\x1b\x9b\r\x07\u202e\t")
            assert not any(line.startswith("FORGED") for line in out.split("\n"))


def test_in_a_pipe_nothing_is_cut(cronjobs: Cronjobs, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    name = "a-schedule-" + "x" * 150
    schedule = rows.schedule(name, next_at=NOW + MINUTE)
    rows.occurrence(schedule, ago(minutes=1), job_id=rows.job(status="running", locked_by="h" * 30 + ":1"))
    rows.tick("host-" + "y" * 60)
    rows.job(queue="q" * 60, run_at=ago(minutes=5))
    out = cronjobs("status").out
    assert "…" not in out
    for text in (name, "host-" + "y" * 60, "q" * 60, "h" * 30):
        assert text in out


def test_without_block_characters_the_strip_is_of_letters(
    cronjobs: Cronjobs, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = rows.schedule("nightly-report", next_at=NOW + MINUTE)
    for number, status in enumerate(["dead", "failed", "succeeded", "succeeded"]):
        rows.occurrence(schedule, ago(minutes=number + 1), job_id=rows.job(status=status))
    rows.occurrence(schedule, ago(minutes=9), "missed")
    assert "▓▁▁▄█" in cronjobs("status").out
    monkeypatch.setattr(output, "printable", lambda text, instead: instead)
    monkeypatch.setattr("cronjobs.desk.cli.last_runs.printable", lambda text, instead: instead)
    out = cronjobs("status").out
    assert "M..fD" in out
    assert ". succeeded  f retrying  D dead  M missed" in out


def test_each_outcome_has_a_sign_of_its_own_with_and_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    assert BLOCKS.keys() == LETTERS.keys()
    for signs in (BLOCKS, LETTERS):
        assert len(set(signs.values())) == len(signs)
        assert all(len(sign) == 1 == _columns(sign) for sign in signs.values())
    "".join(LETTERS.values()).encode("ascii")
    cell = strip(["succeeded", "dead"], 20)
    assert cell == cell.painted
    monkeypatch.setattr(printing, "is_terminal", lambda *_: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    painted = strip(["dead", "succeeded", "dead"], 2)
    assert (len(painted), painted.painted) == (2, f"\x1b[32m{painted[0]}\x1b[0m\x1b[31m{painted[1]}\x1b[0m")
    assert legend(["dead"]).split() == [painted[1], "dead"]
    assert sys.stdout.encoding


def test_the_worst_come_first_then_those_that_run_next(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.tick()
    wanted = ["died", "missed-a", "missed-b", "fails", "gave-way", "next-1", "next-2", "paused", "never"]
    next_at = {name: NOW + timedelta(hours=20 - number) for number, name in enumerate(wanted[:5])}
    next_at |= {"missed-a": NOW + MINUTE, "missed-b": NOW + 2 * MINUTE}
    next_at |= {"next-1": NOW + 3 * MINUTE, "next-2": NOW + 4 * MINUTE, "paused": NOW + 5 * MINUTE}
    newest = {"died": "dead", "fails": "failed"} | dict.fromkeys(["next-1", "next-2", "paused", "never"], "succeeded")
    for name in reversed(wanted):
        schedule = rows.schedule(name, next_at=next_at.get(name))
        if status := newest.get(name):
            rows.occurrence(schedule, ago(minutes=5), job_id=rows.job(status=status, run_at=NOW + MINUTE))
        else:
            rows.occurrence(schedule, ago(minutes=5), "skipped" if name == "gave-way" else "missed")
    rows.pause("schedule", "paused")
    out = cronjobs("status").out.splitlines()
    begin = next(number for number, line in enumerate(out) if line.startswith("schedule "))
    assert [line.split()[0] for line in out[begin + 1 : begin + 10]] == wanted
    assert [line.split()[-1] for line in out[begin + 8 : begin + 10]] == ["paused", "never"]
    seen = cronjobs("status", "--json").json["schedules"]
    assert [schedule["name"] for schedule in seen if "strip" in schedule] == sorted(wanted)


def test_in_a_pipe_the_first_twenty_are_shown_and_the_rest_counted(cronjobs: Cronjobs, rows: Rows) -> None:
    for number in range(25):
        rows.schedule(f"s{number:02}", next_at=NOW + (number + 1) * MINUTE)
    out = cronjobs("status").out
    assert "\n… and 5 more (--all shows them)\n" in out
    assert ("s19 " in out, "s20 " in out) == (True, False)
    assert "s24 " in cronjobs("status", "--all").out
    for words, shown in (((), 20), (("--all",), 25)):
        seen = cronjobs("status", "--json", *words).json["schedules"]
        assert (len(seen), sum("strip" in schedule for schedule in seen)) == (25, shown)


def test_all_of_it_is_about_one_moment(cronjobs: Cronjobs, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that died between two statements was a finding beside "dead: none"."""
    rows.tick()
    count = workload.dead_counts

    def and_another_dies(connection: Connection) -> dict[str, int]:
        counted = count(connection)
        rows.job("mail.send", "dead")
        return counted

    monkeypatch.setattr(workload, "dead_counts", and_another_dies)
    first, second = (cronjobs("status", "--json").json for _ in range(2))
    assert (first["dead"]["total"], [each["key"] for each in first["findings"]]) == (0, [])
    assert (second["dead"]["total"], [each["key"] for each in second["findings"]]) == (1, ["dead"])
    assert second["findings"][0]["rows"] == ["1"]


def test_a_tick_at_work_is_shown_beside_a_later_one_that_has_ended(cronjobs: Cronjobs, rows: Rows) -> None:
    unended: dict[str, Any] = {"finished_at": None, "ended": None}
    rows.tick("web2", ago(seconds=50), **unended)  # this tick's host is not listed
    for number in range(5):
        rows.tick(f"web1{number}", ago(seconds=10 + number))
    rows.tick("web10", ago(seconds=40), id=1000, **unended)
    rows.tick("web10", ago(minutes=9), id=1001, **unended)  # this tick was killed
    rows.tick("web10", ago(seconds=5), id=1002)
    out = cronjobs("status").out
    shown = [" ".join(line.split()) for line in out[out.index("\nticks ") :].splitlines()[2:]]
    assert shown[0] == "web10 5s ago 310ms 0.1.0 3f2a9c1b no job was due"
    assert [line.split()[0] for line in shown] == ["web10", "web11", "web12", "web13", "web14", "web10", "…"]
    assert shown[-2:] == ["web10 40s ago 0.1.0 3f2a9c1b no end recorded yet", "… and 1 host more"]


# --- trends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_changes_of_queues_are_what_python_counts(
    database: Database, rows: Rows, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, found, ended_at = random.Random(seed), [], []
    monkeypatch.setattr(trends, "ENDS_READ", dice.choice([7, 2000]))
    for _ in range(80):
        due, queue = ago(minutes=dice.uniform(-5, 30)), dice.choice(["a", "b"])
        began = due + MINUTE * dice.choice([0.01, 3, 12])
        ended = began + MINUTE * dice.choice([0.01, 5])
        more: dict[str, Any] = {"run_at": due, "queue": queue, "priority": dice.randrange(10), "started_at": began}
        if ended < NOW:
            ended_at.append((dice.choice(["succeeded", "dead", "cancelled"]), ended))
            rows.job(status=ended_at[-1][0], finished_at=ended, **more)
        elif began < NOW:
            rows.job(status="running", **more)
        else:
            rows.job(status=dice.choice(["queued", "failed"]), **(more | {"started_at": None}))
        found.append((queue, due, began, ended))
    with database.read() as connection:
        since = trends.compared_with(connection)
        told = trends.changes(connection, ["a", "b", "empty"], since)
    ends: dict[str, list[datetime]] = {}
    for status, ended in ended_at:
        if ended >= ago(minutes=10):
            ends.setdefault(status, []).append(ended)
    full = [sorted(each)[-trends.ENDS_READ] for each in ends.values() if len(each) >= trends.ENDS_READ]
    assert abs(since - max([ago(minutes=10), *full])) < timedelta(seconds=1)

    def due_at(moment: datetime, queue: str) -> int:
        return sum(name == queue and due <= moment < began for name, due, began, _ in found)

    assert told == {queue: due_at(NOW, queue) - due_at(since, queue) for queue in ("a", "b", "empty")}
    with database.write() as connection:
        connection.execute(delete(tables.jobs))


def test_a_queue_with_more_new_jobs_than_are_read_has_no_trend(
    database: Database, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise such a queue would be reported as growing, however fast it shrinks."""
    monkeypatch.setattr(trends, "CAME_READ", 2)
    for queue, jobs in (("few", 2), ("many", 3)):
        for _ in range(jobs):
            rows.job(queue=queue, run_at=ago(minutes=5))
    with database.read() as connection:
        assert trends.changes(connection, ["few", "many"], ago(minutes=10)) == {"few": 2}


def test_a_job_that_is_due_again_after_an_attempt_is_not_new(database: Database, rows: Rows) -> None:
    """Otherwise a batch that drains would be said to grow if many of its calls are snoozed."""
    tried: dict[str, Any] = {"run_at": ago(minutes=1), "started_at": ago(minutes=5)}
    for status in ("queued", "failed"):
        rows.job(status=status, created_at=ago(minutes=30), **tried)
    rows.job(status="failed", created_at=ago(minutes=9), **tried)  # it came, and failed since
    rows.job(status="failed", created_at=ago(minutes=30), run_at=ago(minutes=1), started_at=ago(minutes=20))
    with database.read() as connection:
        assert trends.changes(connection, ["default"], ago(minutes=10)) == {"default": 2}


def test_a_lost_attempt_has_no_length(database: Database, rows: Rows) -> None:
    """The rows say only when a tick found the attempt lost, not when it ended."""
    schedule = rows.schedule("nightly")
    for hours, outcome in ((2, "failed"), (1, "lost")):
        job = rows.job(status="dead", schedule="nightly")
        rows.attempt(job, outcome)
        rows.occurrence(schedule, ago(hours=hours), "enqueued", job_id=job)
    with database.read() as connection:
        lost, failed = schedule_runs.newest_runs(connection, [schedule], 2)[schedule]
    assert (lost.took, failed.took) == (None, MINUTE)


@pytest.mark.parametrize(
    ("due", "change", "told"),
    [
        (100, 0, "steady"),
        (100, 4, "steady"),
        (100, 5, "growing: +5 in 10m"),
        (3, -40, "shrinking: -40 in 10m"),
        (2000, 1500, "growing: +1,500 in 10m"),
        (1, None, ""),
        (1142, 1142, ""),  # what is left of a batch
        (1000, 951, ""),
        (1000, 950, "growing: +950 in 10m"),
    ],
)
def test_a_small_change_is_none(due: int, change: int | None, told: str) -> None:
    assert trend_of(due, change, 10 * MINUTE) == told


# --- texts ------------------------------------------------------------------------------------------------------------


def test_a_text_of_wide_characters_is_wrapped_by_columns_and_loses_none() -> None:
    dice = random.Random(4)
    for _ in range(300):
        words = [
            "".join(dice.choice("ab日本e\u0301…👧") for _ in range(dice.randrange(1, 30)))
            for _ in range(dice.randrange(9))
        ]
        lines = wrapped(" ".join(words), 20, "  ")
        assert all(_columns(line) <= 20 for line in lines)
        assert "".join("".join(lines).split()) == "".join(words)
