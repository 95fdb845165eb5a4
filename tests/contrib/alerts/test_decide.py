"""When messages are due, for any history of a finding."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from cronjobs.contrib.alerts import decide
from cronjobs.contrib.alerts.statements import AlertState, DueAlert, Episode
from cronjobs.desk.insight.finding import Covered
from cronjobs.desk.insight.findings import Ack, Finding, Severity
from cronjobs.engine.config.settings import AlertChannel, AlertFilter, CommandChannel
from cronjobs.engine.rules.repeating import HOURLY
from cronjobs.engine.schedules.decide import spread_offset
from cronjobs.engine.schedules.definition import schedule_from_definition
from cronjobs.engine.store.schedules import StoredSchedule

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
EARLIER = NOON - MINUTE


def episode(finding: Finding, id_: int = 1, host: str = "") -> Episode:
    kept = decide.kept_rows(finding)
    facts = (finding.key, finding.kind, str(finding.severity), finding.text, finding.command, kept, host)
    return Episode(id_, *facts, NOON, NOON, None)


def sent(state: AlertState | None, finding: Finding, now: datetime) -> AlertState:
    before = state or AlertState(1, "ops")
    alert = DueAlert(before, episode(finding))
    return AlertState(
        1,
        "ops",
        decide.after_sending(alert, now),
        severity=str(finding.severity),
        rows=finding.rows,
        first_at=before.first_at or now,
        sent_at=now,
        sent=before.sent + 1,
    )


@pytest.mark.parametrize("seed", range(20))
def test_messages_come_at_once_when_it_gets_worse_and_else_an_hour_or_a_day_apart(seed: int) -> None:
    chance = random.Random(seed)
    severity, rows, state = Severity.WARNING, ["1"], None
    told: list[tuple[datetime, str]] = []
    for minute in range(4 * 24 * 60):
        now = NOON + minute * MINUTE
        if chance.random() < 0.001:
            rows.append(str(minute))
        worse = severity is Severity.WARNING and chance.random() < 0.0005
        severity = Severity.CRITICAL if worse else severity
        finding = Finding("dead", "text", severity, rows=tuple(rows))
        due = decide.due_at(finding, state, now)
        assert due >= now or state is None or state.due_at == due
        if worse and told:
            assert due == now
        if due <= now:
            why = "worse" if worse else "new row" if state and set(rows) - set(state.rows) else "time"
            told.append((now, why))
            state = sent(state, finding, now)
    assert told[0][0] == NOON
    first = told[0][0]
    for (one, _), (other, why) in itertools.pairwise(told):
        if why != "worse":
            assert other - one >= HOURLY
        if why == "time":
            assert other - one <= timedelta(hours=24)
            if one - first >= timedelta(hours=24):
                assert other - one == timedelta(hours=24)


def test_what_could_not_be_delivered_is_tried_again_ever_more_rarely() -> None:
    finding = Finding("dead", "text")
    waits = []
    for failures in range(8):
        alert = DueAlert(AlertState(1, "ops", NOON, failures=failures), episode(finding))
        again = decide.after_failing(alert, NOON)
        waits.append(round((again - NOON) / MINUTE))
        state = AlertState(1, "ops", again, failures=failures + 1, first_at=NOON, sent_at=NOON, sent=1)
        assert decide.due_at(finding, state, NOON) == again
    assert waits == [1, 2, 4, 8, 15, 15, 15, 15]


def test_over_is_said_to_whom_it_was_told_or_is_being_told() -> None:
    assert decide.over_at(AlertState(1, "ops", sent=1), NOON) == NOON
    assert decide.over_at(AlertState(1, "ops", NOON + MINUTE, sent=1, failures=1), NOON) == NOON
    assert decide.over_at(AlertState(1, "ops", None, locked_until=NOON), NOON) == NOON
    assert decide.over_at(AlertState(1, "ops", NOON + MINUTE, failures=1), NOON) is None, "it was not delivered"
    assert decide.over_at(AlertState(1, "ops", NOON), NOON) is None, "it was not sent"
    assert decide.over_at(AlertState(1, "ops", NOON + HOURLY), NOON) is None, "it waited, as it had come and gone"
    assert decide.over_at(AlertState(1, "ops", None), NOON) is None


WANTED = [
    (AlertFilter(), Finding("dead", ""), True),
    (AlertFilter(), Finding("full", "", Severity.NOTICE), False),
    (AlertFilter("notice"), Finding("full", "", Severity.NOTICE), True),
    (AlertFilter("critical"), Finding("dead", ""), False),
    (AlertFilter(findings=("host",)), Finding("host", "", subject="web2"), True),
    (AlertFilter(findings=("host:web1",)), Finding("host", "", subject="web2"), False),
    (AlertFilter(ignore=("host:web2",)), Finding("host", "", subject="web2"), False),
    (AlertFilter(), Finding("dead", "", ack=Ack("ann", None, NOON, NOON)), False),
    (AlertFilter(), Finding("alert", "", subject="ops"), False),
    (AlertFilter(), Finding("alert", "", subject="chat"), True),
]


@pytest.mark.parametrize(("only", "finding", "wanted"), WANTED)
def test_a_channel_wants_what_it_asks_for(only: AlertFilter, finding: Finding, wanted: bool) -> None:
    channel = AlertChannel("ops", CommandChannel(("true",)), only)
    assert decide.wants(channel, finding) is wanted


def test_findings_of_one_key_are_one_and_those_of_this_host_are_called_after_it() -> None:
    found = decide.merged(
        [
            Finding("config", "a", rows=("a",)),
            Finding("config", "b", Severity.CRITICAL, rows=("b",)),
            Finding("dead", ""),
        ],
        "web1",
    )
    assert [(each.key, each.text) for each in found] == [
        ("config:web1", "b (and 1 more of this kind)"),
        ("dead", ""),
    ]
    assert found[0].rows == ("a", "b")


@pytest.mark.parametrize(
    ("host", "sees_all", "ends"), [("web1", True, True), ("web1", False, False), ("web2", True, False)]
)
def test_only_a_host_that_has_loaded_its_handlers_ends_what_is_wrong_with_them(
    host: str, sees_all: bool, ends: bool
) -> None:
    wrong = episode(Finding("config", "a", subject="web1"), host="web1")
    shared = episode(Finding("dead", ""), id_=2)
    changes = decide.compare([], [wrong, shared], host, sees_all=sees_all, ticking={"web1", "web2"})
    assert changes.ended == ([wrong, shared] if ends else [shared])
    assert decide.compare([], [wrong], "web2", sees_all=True, ticking={"web2"}).ended == [wrong], "it ticks no more"


def test_what_another_finding_stands_for_now_is_not_over() -> None:
    failing = episode(Finding("failing", "", rows=("a", "b")))
    fails, waits = episode(Finding("failing_type", "", subject="t"), id_=2), episode(Finding("late", ""), id_=3)
    covers, follows = (Covered("failing", ("b",)),), (Covered("failing_type:t", until=NOON),)
    found = Finding("dead", "", covers=covers, follows=follows)
    changes = decide.compare([found], [failing, fails, waits], "web1", sees_all=True, ticking={"web1"})
    assert (changes.ended, changes.replaced, changes.opened) == ([waits], [failing, fails], [found])


@pytest.mark.parametrize(
    "behind", [Covered("failing", ("c",)), Covered("failing:1"), Covered("failing", until=EARLIER)]
)
def test_what_it_does_not_stand_for_is_over(behind: Covered) -> None:
    failing = episode(Finding("failing", "", rows=("a", "b")))
    changes = decide.compare(
        [Finding("dead", "", covers=(behind,))], [failing], "web1", sees_all=True, ticking={"web1"}
    )
    assert (changes.ended, changes.replaced) == ([failing], [])


@pytest.mark.parametrize(
    ("only", "told"),
    [
        (AlertFilter(), True),
        (AlertFilter(findings=("failing",)), True),
        (AlertFilter(findings=("failing:1",)), True),
        (AlertFilter(findings=("failing_type",)), False),
        (AlertFilter(ignore=("dead",)), True),
        (AlertFilter(ignore=("dead", "failing")), False),
    ],
)
def test_who_asks_for_what_a_finding_stands_for_is_told(only: AlertFilter, told: bool) -> None:
    finding = Finding("dead", "", covers=(Covered("failing:1"),), follows=(Covered("failing_type:t"),))
    assert decide.wants(AlertChannel("ops", CommandChannel(("true",)), only), finding) == told


def test_a_grace_that_ends_is_a_reason_to_look_when_its_share_of_the_spread_is_over_too() -> None:
    now = datetime(2026, 3, 2, 9, 0, 30, tzinfo=UTC)
    minutes = timedelta(minutes=1)
    definition = {"job": "t", "cron": "0 9 * * *", "timezone": "UTC", "grace_s": 600, "spread_s": 86400}
    share = spread_offset(schedule_from_definition("s", definition))
    assert share > minutes
    stored = StoredSchedule(1, "s", definition, "f", "active", now, now)
    assert decide._grace_ends(stored, now) == now.replace(second=0) + share + 10 * minutes
    assert decide._grace_ends(replace(stored, status="retired"), now) is None
    del definition["grace_s"]
    assert decide._grace_ends(replace(stored, definition=definition), now) is None


HALF_PAST = NOON + 30 * MINUTE


def test_a_finding_whose_rows_are_all_newer_than_its_beginning_has_begun_again() -> None:
    before = episode(Finding("dead", "", rows=("50", "51")))
    again = Finding("dead", "", rows=("60",), since=HALF_PAST)
    changes = decide.compare([again], [before], "web1", sees_all=True, ticking={"web1"})
    assert (changes.ended, changes.opened, changes.lasting) == ([before], [again], {})


@pytest.mark.parametrize(
    "still",
    [
        Finding("dead", "", rows=("51", "60"), since=HALF_PAST),
        Finding("dead", "", rows=("60",), since=NOON),
        Finding("dead", "", rows=("60",)),
        Finding("dead", "", since=HALF_PAST),
    ],
    ids=["one row is left", "the oldest row is left", "nobody knows since when", "no rows"],
)
def test_a_finding_that_may_have_lasted_has_not_begun_again(still: Finding) -> None:
    before = episode(Finding("dead", "", rows=("50", "51")))
    changes = decide.compare([still], [before], "web1", sees_all=True, ticking={"web1"})
    assert (changes.ended, changes.opened, changes.lasting) == ([], [], {1: still})


def test_what_came_often_waits_an_hour_unless_it_names_another_dead_job() -> None:
    dead, late = Finding("dead", "", rows=("50", "60")), Finding("late", "", rows=("mail/t",))
    waits = AlertState(1, "ops", NOON + HOURLY)
    for finding, heard, news in [(dead, {"50"}, True), (dead, {"50", "60"}, False), (late, set[str](), False)]:
        assert decide.is_news(finding, heard) is news
        due = NOON if news else NOON + HOURLY
        assert decide.due_at(finding, None, NOON, came_often=True, news=news) == due
        assert decide.due_at(finding, waits, NOON, news=news) == due, "it was delayed, and got this row later"
        failed = replace(waits, failures=2)
        assert decide.due_at(finding, failed, NOON, came_often=True, news=news) == NOON + HOURLY, (
            "its retry is due then"
        )
