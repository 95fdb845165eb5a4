"""The release checklist: which items are ok, which are to do, and which a person is asked."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cronjobs.contrib.doctor.diagnosis import not_applicable, ok, problem, warning
from cronjobs.contrib.doctor.release import JUDGED, QUESTIONS, ReleaseFacts, ReleaseItem, checklist
from cronjobs.engine.config.settings import (
    AlertChannel,
    AlertSettings,
    CommandChannel,
    RunSettings,
    ScheduleSettings,
    Settings,
)
from cronjobs.engine.jobs.job_types import JobType, JobTypes
from cronjobs.model import RetryPolicy

pytestmark = pytest.mark.either

CHANNEL = AlertChannel("ops", CommandChannel(("/usr/bin/page",)))
FILE = Settings(
    Path("/srv/shop/cronjobs.yaml"),
    Path("/srv/shop"),
    project="shop",
    environment="production",
    timezone="Europe/Berlin",
    log=Path("/srv/shop/cronjobs.log"),
    alerts=AlertSettings({"ops": CHANNEL}),
    run=RunSettings(ping="https://ping.example/1"),
    positions={"retention": (9, 1), "timezone": (3, 1)},
)
MAIL = JobType("mail", timedelta(seconds=20), RetryPolicy(), on_lost="dead")
READY = ReleaseFacts(FILE, JobTypes({"mail": MAIL}), [], {"ops"}, 2, ["/etc/logrotate.d/shop"])


def item(facts: ReleaseFacts, name: str) -> ReleaseItem:
    [found] = [each for judge in JUDGED if (each := judge(facts)).item == name]
    return found


def in_file(**changes: Any) -> ReleaseFacts:
    return replace(READY, settings=replace(FILE, **changes))


def with_type(**changes: Any) -> ReleaseFacts:
    return replace(READY, types=JobTypes({"mail": replace(MAIL, **changes)}))


def test_a_project_that_is_ready_has_nothing_to_do_and_only_peoples_questions() -> None:
    assert {each.answer for judge in JUDGED for each in [judge(READY)]} == {"ok"}
    answers = checklist(READY, [], [])
    assert [each.item for each in answers if each.answer != "ok"] == [each.item for each in QUESTIONS]
    assert {each.answer for each in QUESTIONS} == {"ask"}


NIGHTLY = ScheduleSettings("nightly", "mail", cron="0 2 * * *")


@pytest.mark.parametrize(
    ("facts", "name", "answer", "says"),
    [
        (replace(READY, findings=["1 dead job"]), "findings", "to do", "1 dead job"),
        (replace(READY, findings=None), "findings", "to do", "cannot be read"),
        (in_file(project=""), "names", "to do", 'without "project" in the file, a copy'),
        (in_file(project="", environment=""), "names", "to do", 'without "project" and "environment" in the file, a'),
        (
            in_file(timezone="UTC", positions={}, schedules={"nightly": NIGHTLY}),
            "time zone",
            "ask",
            "use UTC: nightly",
        ),
        (in_file(timezone="UTC", schedules={"nightly": NIGHTLY}), "time zone", "ok", "UTC"),
        (with_type(timeout_declared=False), "time limits", "ask", "s, applies to mail"),
        (with_type(retry=RetryPolicy(max_attempts=100)), "retries", "ask", "mail (100)"),
        (with_type(on_lost="retry"), "lost runs", "ask", "are retried automatically: mail"),
        (in_file(log=None), "log", "to do", "there is no log"),
        (replace(READY, rotations=[]), "log", "ask", "may grow forever"),
        (in_file(alerts=None), "alerts", "to do", "no alerts are sent"),
        (in_file(alerts=AlertSettings()), "alerts", "to do", "no alerts are sent"),
        (replace(READY, delivered=[]), "alerts", "ask", "an alert: ops. Has a test message arrived?"),
        (replace(READY, delivered=None), "alerts", "ask", "an alert: ops. Has a test message arrived?"),
        (in_file(run=RunSettings()), "silence", "ask", "a stopped tick cannot report itself"),
        (in_file(positions={}), "retention", "ask", "succeeded jobs for 14d"),
    ],
)
def test_what_is_missing_is_said(facts: ReleaseFacts, name: str, answer: str, says: str) -> None:
    found = item(facts, name)
    assert found.answer == answer
    assert says in found.text
    assert (found.do is None) is (answer == "ok")


def test_a_schedules_own_timeout_is_one() -> None:
    silent = with_type(timeout_declared=False)
    limited = replace(NIGHTLY, timeout=timedelta(seconds=9))
    settings = replace(FILE, schedules={"nightly": limited})
    assert item(replace(silent, settings=settings), "time limits").answer == "ok"
    settings = replace(FILE, schedules={"nightly": limited, "weekly": replace(NIGHTLY, name="weekly")})
    assert item(replace(silent, settings=settings), "time limits").answer == "ask"


def test_many_names_are_counted() -> None:
    many = JobTypes({f"t{n}": replace(MAIL, name=f"t{n}", on_lost="retry") for n in range(9)})
    text = item(replace(READY, types=many), "lost runs").text
    assert "t5 and 3 more." in text
    assert "t6" not in text


def test_the_doctors_problems_are_to_do_and_its_warnings_are_asked() -> None:
    examined = [
        ("clocks", "?", problem("2 min apart", "ntp")),
        ("mail", "?", warning("lost", "postfix")),
        ("disk", "?", ok("room")),
        ("locks", "?", not_applicable("SQLite")),
    ]
    found = {each.item: (each.answer, each.do) for each in checklist(READY, examined, ["cronjobs.yaml:3: x"])}
    assert found["check"][0] == "to do"
    assert found["clocks"] == ("to do", "ntp")
    assert found["mail"] == ("ask", "postfix")
    assert found["disk"] == ("ok", None)
    assert "locks" not in found


def test_no_item_is_there_twice() -> None:
    names = [each.item for each in checklist(READY, [], [])]
    assert len(names) == len(set(names))
