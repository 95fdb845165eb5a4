"""``cronjobs audit``: who did what, newest last, within 80 columns, whatever the entries contain."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, text
from support.explained import MINUTELY, World
from support.explained import world as world
from support.lookingrows import NOW, Cronjobs
from support.lookingrows import cronjobs as cronjobs
from support.postgres import OWNER

from cronjobs.desk.store.trail import entries
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.testing import FakeClock

MINUTE = timedelta(minutes=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


def put(database: Database, *acts: dict[str, Any]) -> None:
    with database.write() as connection:
        for number, act in enumerate(acts):
            values = {"at": NOW - (len(acts) - number) * MINUTE, "actor": "ada", "host": "web1"} | act
            connection.execute(insert(tables.audit).values(values))


ACTS: list[dict[str, Any]] = [
    {"action": "pause", "subject": "schedule nightly", "why": "the mail provider is down", "at": NOW - 2000 * MINUTE},
    {"action": "define", "subject": "nightly", "actor": "file", "detail": {"cron": "15 2 * * *", "payload": {}}},
    {"action": "cancel", "subject": "job 17", "detail": None},
    {"action": "retry", "subject": "jobs", "detail": {"filter": {"queue": "mail"}, "ids": [3, 17, 18]}},
    {"action": "settle", "subject": "effect card:42", "actor": "eve", "host": None},
]


def test_newest_last_by_day_in_80_columns(database: Database, cronjobs: Cronjobs) -> None:
    put(database, *ACTS)
    assert cronjobs("audit").out.splitlines() == [
        "times are Europe/Berlin",
        "",
        "Tuesday 2026-06-30",
        "04:43:07  pause       schedule nightly by ada on web1: the mail provider is down",
        "",
        "Wednesday 2026-07-01",
        "13:59:07  define      nightly by file on web1 (cron: 15 2 * * *)",
        "14:00:07  cancel      job 17 by ada on web1",
        '14:01:07  retry       jobs by ada on web1 (jobs: 3, filter: {"queue": "mail"})',
        "14:02:07  settle      effect card:42 by eve",
    ]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ((), "pause define cancel retry settle"),
        (("--limit", "2"), "retry settle"),
        (("--since", "1h"), "define cancel retry settle"),
        (("--since", "2026-07-01T14:01"), "retry settle"),
        (("--since", "14:01"), "retry settle"),
        (("--subject", "nightly"), "pause define"),
        (("--subject", "17"), "cancel retry"),
        (("--subject", "job 17"), "cancel retry"),
        (("--subject", "1"), ""),
        (("--subject", "card:42"), "settle"),
        (("--subject", "99999999999999999999999"), ""),
        (("--subject", "\u0663"), ""),
        (("--actor", "eve"), "settle"),
        (("--action", "cancel", "--actor", "ada"), "cancel"),
        (("--action", "dance"), ""),
    ],
)
def test_filters(database: Database, cronjobs: Cronjobs, options: tuple[str, ...], found: str) -> None:
    put(database, *ACTS)
    answer = cronjobs("audit", "--json", *options)
    assert [entry["action"] for entry in answer.json] == found.split()
    assert (answer.code, "raise --limit" in answer.err) == (0, "--limit" in options)


def test_dates_are_left_out_only_where_they_stand_above_the_line(database: Database, cronjobs: Cronjobs) -> None:
    began, ends = NOW - 2000 * MINUTE, [(NOW - minutes * MINUTE).isoformat() for minutes in (1900, 10)]
    put(database, *({"action": "pause", "subject": "all", "at": began, "detail": {"until": end}} for end in ends))
    assert [line.partition("(")[2] for line in cronjobs("audit").out.splitlines()[3:]] == [
        "until: 06:23:07)",
        "until: 2026-07-01 13:53:07)",
    ]


def test_an_ack_that_is_for_good_has_no_end(database: Database, cronjobs: Cronjobs) -> None:
    detail = {"until": (NOW + 7 * 1440 * MINUTE).isoformat()}
    put(
        database,
        {"action": "ack", "subject": "pruned", "detail": detail | {"up_to": 4, "text": "1 dead job"}},
        {"action": "ack", "subject": "dropped", "detail": {}},
        {"action": "ack", "subject": "dropped", "detail": None},
        {"action": "ack", "subject": "dead", "detail": detail},
    )
    said = " ".join(cronjobs("audit").out.split())
    assert "ack pruned by ada on web1 (holds: for good, text: 1 dead job) " in said
    assert "ack dropped by ada on web1 (holds: for good) " in said
    assert "ack dead by ada on web1 (until: 2026-07-08 14:03:07)" in said


def test_json_has_the_columns(database: Database, cronjobs: Cronjobs) -> None:
    put(database, ACTS[3])
    [entry] = cronjobs("audit", "--json").json
    assert list(entry) == list(tables.audit.c.keys())
    assert entry["detail"] == ACTS[3]["detail"]


def test_an_empty_trail_and_nonsense(database: Database, cronjobs: Cronjobs) -> None:
    answer = cronjobs("audit")
    assert (answer.code, answer.out, answer.err) == (0, "", "no entry\n")
    assert cronjobs("audit", "--actor", "x").err == "no such entry\n"
    assert cronjobs("audit", "--json").json == []
    for options in (("--since", "soon"), ("--limit", "0"), ("--limit", "x"), ("nightly",)):
        assert cronjobs("audit", *options).code == 2


@pytest.mark.connects_as(OWNER)
def test_rows_that_nobody_but_an_enemy_would_write(database: Database, cronjobs: Cronjobs) -> None:
    hostile = "x\x1b[2J\r\nFORGED\u202e" + "y" * 3000
    put(
        database,
        {"action": hostile, "subject": hostile, "actor": hostile, "why": hostile, "detail": {hostile: [hostile]}},
    )
    put(database, {"action": "retry", "subject": "jobs", "detail": {"ids": "all"}})
    put(database, {"action": "retry", "subject": "jobs", "actor": None, "detail": [1, {"a": None}]})
    if database.is_sqlite:
        with database.write() as connection:
            connection.execute(
                text("INSERT INTO cronjobs_audit (action, subject, detail) VALUES ('retry', 'jobs', '{\"ids\": [')")
            )
    answer = cronjobs("audit")
    assert answer.code == 0
    assert "\x1b" not in answer.out
    assert not any(line.startswith("FORGED") for line in answer.out.splitlines())
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "by somebody on web1" in answer.out
    assert cronjobs("audit", "--subject", "17").code == cronjobs("audit", "--json").code == 0
    assert cronjobs("audit", "--json", "--subject", "17").json == []


def test_what_people_and_ticks_do_is_there(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.cronjobs("pause", "s", "--why", "deploy")
    world.cronjobs("resume", "s")
    world.cronjobs("trigger", "s", "--why", "the first run failed")
    entries = world.cronjobs("audit", "--json", "--subject", "s").json
    assert [entry["action"] for entry in entries] == ["define", "pause", "resume", "trigger"]
    assert entries[-1]["why"] == "the first run failed"


@pytest.mark.connects_as(OWNER)
def test_a_long_trail_is_read_from_its_end(database: Database) -> None:
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
    with database.write() as connection:
        connection.execute(
            text(f"{numbers} INSERT INTO cronjobs_audit (action, subject) SELECT 'cancel', 'job ' || i FROM n")
        )
    with database.read() as connection:
        assert [row.subject for row in entries(connection, limit=2)] == ["job 19999", "job 20000"]
        assert [row.id for row in entries(connection, about="7", limit=5)] == [7]


def test_limits_that_change_are_a_deploy_also_in_a_file_without_schedules(world: World) -> None:
    for most in (4, 4, 2):
        world.clock.advance(MINUTE)
        world.file(f'limits: {{"api:": {most}}}\n')
        world.tick()
    world.clock.advance(MINUTE)
    assert [each["action"] for each in world.cronjobs("audit", "--action", "sync", "--json").json] == ["sync"] * 2
    assert [each["kind"] for each in world.cronjobs("history", "--json").json] == ["deploy"] * 2
