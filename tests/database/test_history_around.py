"""``history --around``: one instant, from random pasts; and what cannot be known about it."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import inspect, text
from support.lookingrows import NOW, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows
from support.postgres import OWNER

from cronjobs.database.connection import Database
from cronjobs.database.tables import audit
from cronjobs.testing import FakeClock

MINUTE = timedelta(minutes=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.mark.parametrize("seed", range(2))
def test_what_ran_waited_was_settled_and_paused_is_what_python_finds(cronjobs: Cronjobs, rows: Rows, seed: int) -> None:
    dice = random.Random(seed)
    attempts: list[tuple[int, datetime, datetime, datetime | None]] = []
    ledger, waiting, pauses = [], [], []
    schedule = rows.schedule("nightly-report")
    for number in range(60):
        due = ago(minutes=dice.randrange(1, 90))
        began = due + MINUTE * dice.choice([0, 0, 3, 20])
        ended = began + MINUTE * dice.choice([0.1, 1, 10, 40])
        if ended < NOW:
            job_id = rows.job(status="succeeded", run_at=due, created_at=due, started_at=began, finished_at=ended)
            rows.attempt(job_id, started_at=began, finished_at=ended)
            attempts.append((job_id, due, began, ended))
        elif began < NOW:
            job_id = rows.job(status="running", run_at=due, created_at=due, started_at=began)
            attempts.append((job_id, due, began, None))
        else:
            waiting.append(due)
            rows.job(run_at=due, created_at=due)
        settled = due + MINUTE * dice.choice([0, 0, 30])
        if number % 2:
            at = ago(minutes=number, seconds=dice.randrange(60))
            rows.occurrence(schedule, at, "skipped", decided_at=at + (settled - due), reason="overlap")
            ledger.append((at, at + (settled - due)))
    for number in range(12):
        at, action = ago(minutes=90 - 7 * number), dice.choice(["pause", "resume"])
        subject = dice.choice(["all ", "queue mail", "schedule s"])
        rows.put(audit, at=at, action=action, subject=subject, actor="ada", detail={})
        pauses.append((at, action, subject))
    for minutes in (2, 11.5, 33, 61):
        at = ago(minutes=minutes)
        seen = cronjobs("history", "--around", at.isoformat(), "--json").json
        assert {run["job_id"] for run in seen["running"]} == {
            job_id for job_id, _, began, ended in attempts if began <= at and (ended is None or ended > at)
        }
        waited = [due for _, due, began, _ in attempts if due <= at < began] + [due for due in waiting if due <= at]
        assert seen["waiting"] == {"jobs": len(waited), "since": min(waited).isoformat() if waited else None}
        assert {entry["job_id"] for entry in seen["ended"]} == {
            job_id for job_id, _, _, ended in attempts if ended is not None and at - MINUTE <= ended < at + MINUTE
        }
        assert sorted(entry["last_for"] for entry in seen["settled"]) == sorted(
            due.isoformat() for due, decided in ledger if at - MINUTE <= decided < at + MINUTE and due < at + MINUTE
        )
        on: set[str] = set()
        for when, action, subject in pauses:
            if when <= at:
                on = on | {subject} if action == "pause" else on - {subject}
        assert {f"{pause['scope']} {pause['name']}" for pause in seen["pauses"]} == on


AROUND = """\
around     2026-07-01 13:33:07 Europe/Berlin, 30 min ago

wrong      - no tick reached the database between 13:13:07 and 13:53:07
           - everything was paused by ada, since 13:23:07: the provider is down
           - 1 job due and not begun, the oldest for 28 min
           - 1 job dead that nobody has dealt with to this day, the first since
             13:23:07
running    mail.send #1 of nightly-report on web1, begun 10 min before; lost
             13:43:07
           mail.send #3 on web1, begun 0 s before; failed 13:33:37
ended      13:33:37 failed: mail.send #3, 30s: 503 from the mail provider
settled    13:32:37 skipped: nightly-report, due 13:32:07: paused
ticks      web1 from 13:13:07 to 13:13:07, the last before
           web1 from 13:53:07 to 13:53:07, the next
unknown    it is between two ticks: the rows have what ticks wrote before and
             after
           findings are not stored here: what was wrong is concluded from rows
             alone
           jobs that died before it and were retried or dismissed since are not
             counted as dead
"""


def test_an_instant_is_told_on_one_screen(cronjobs: Cronjobs, rows: Rows, database: Database) -> None:
    for minutes in (50, 10, 1):
        rows.tick("web1", ago(minutes=minutes), finished_at=ago(minutes=minutes) + timedelta(milliseconds=300))
    rows.put(audit, at=ago(minutes=40), action="pause", subject="all ", actor="ada", why="the provider is down")
    rows.put(audit, at=ago(minutes=20), action="resume", subject="all ", actor="ada")
    schedule = rows.schedule("nightly-report")
    lost = rows.job(status="succeeded", schedule="nightly-report", started_at=ago(minutes=9), run_at=ago(minutes=9))
    rows.attempt(lost, "lost", started_at=ago(minutes=40), finished_at=ago(minutes=20))
    rows.job(status="dead", finished_at=ago(minutes=40), started_at=ago(minutes=41))
    failed = rows.job(status="failed", run_at=NOW + MINUTE)
    half = timedelta(seconds=30)
    rows.attempt(
        failed,
        "failed",
        started_at=ago(minutes=30),
        finished_at=ago(minutes=30) + half,
        error="503 from the mail provider",
    )
    rows.job(run_at=ago(minutes=58), created_at=ago(minutes=58))
    rows.occurrence(schedule, ago(minutes=31), "skipped", reason="paused", decided_at=ago(minutes=30) - half)
    answer = cronjobs("history", "--around", "30m")
    assert answer.out == AROUND


@pytest.mark.connects_as(OWNER)
def test_stored_findings_that_held_then_come_first(cronjobs: Cronjobs, rows: Rows, database: Database) -> None:
    rows.tick()
    kind = "bigint" if database.is_sqlite else "timestamptz"
    instants = ", ".join(f"{name} {kind}" for name in ("began_at", "found_at", "ended_at"))
    with database.write() as connection:
        if "cronjobs_findings" not in inspect(connection).get_table_names():
            connection.execute(
                text(
                    f"CREATE TABLE cronjobs_findings (id bigint, finding text, kind text, severity text, text text, "
                    f"command text, rows text, {instants})"
                )
            )
        for number, (began, ended) in enumerate([(60, 40), (50, 20), (45, None), (10, None)]):
            values: dict[str, Any] = {
                "began_at": ago(minutes=began),
                "found_at": ago(minutes=began),
                "ended_at": None if ended is None else ago(minutes=ended),
            }
            given = {
                name: at and (int(at.timestamp() * 1e6) if database.is_sqlite else at) for name, at in values.items()
            }
            connection.execute(
                text(
                    "INSERT INTO cronjobs_findings (id, finding, kind, severity, text, rows, began_at, found_at, "
                    f"ended_at) VALUES ({number}, 'kind{number}', 'kind', 'critical', 'text \x1b[2J {number}', '[]', "
                    ":began_at, :found_at, :ended_at)"
                ),
                given,
            )
    found = cronjobs("history", "--around", "30m", "--json").json
    assert [finding["finding"] for finding in found["findings"]] == ["kind1", "kind2"]
    assert not any("findings" in told for told in found["unknown"])
    out = cronjobs("history", "--around", "30m").out
    assert "- critical kind1: text \\x1b[2J 1, since 13:13:07 until 13:43:07" in out
    assert "- critical kind2: text \\x1b[2J 2, since 13:18:07, to this day" in out
    assert "findings are stored since 13:03:07" in cronjobs("history", "--around", "2h").out


@pytest.mark.parametrize(
    ("around", "told"),
    [
        ("2026-01-01", "jobs that succeeded may have been pruned, with their attempts, if they ended before"),
        ("2026-01-01", "it is before the first tick that is kept: what ticks did is known since 14:02:01"),
        ("30s", "it is between two ticks"),
    ],
)
def test_what_cannot_be_known_is_said(cronjobs: Cronjobs, rows: Rows, around: str, told: str) -> None:
    rows.tick("web1", NOW - timedelta(seconds=66))
    rows.tick()
    assert told in " ".join(cronjobs("history", "--around", around).out.split())


def test_without_a_tick_nothing_shows_what_ticks_did(cronjobs: Cronjobs, rows: Rows) -> None:
    assert "no tick has ever been recorded" in cronjobs("history", "--around", "1h").out


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--around 2026-07-01T14:04", "--around: 14:04:00 is in the future"),
        ("--around soon", "--around: 'soon' is neither"),
        ("--around 1h --type x", "--around shows one instant of everything"),
    ],
)
def test_an_instant_that_cannot_be_shown_is_refused(cronjobs: Cronjobs, rows: Rows, options: str, why: str) -> None:
    answer = cronjobs("history", *options.split())
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(why)
