"""Alerts if two processes act at once, or if one process is overtaken by another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.alerted import MINUTE, Stage, alerting, webhook
from support.inboxes import Web
from support.inboxes import web as web

from cronjobs.contrib.alerts import alert_rounds
from cronjobs.contrib.alerts import statements as store
from cronjobs.contrib.alerts.alert_rounds import Alerting
from cronjobs.desk.insight import findings
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.store.alerts import look_soon
from cronjobs.engine.store.sql import database_now


def told(web: Web) -> list[tuple[str, bool]]:
    return [(each["finding"], each["over"]) for message in web.messages for each in message["findings"]]


def found(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A death that a look has found, and of which no alert was sent yet."""
    stage.kill_a_job()
    with monkeypatch.context() as patch:
        patch.setattr(Alerting, "send", lambda *_: None)
        stage.tick()


def test_what_one_host_is_sending_nobody_else_sends(
    database: Database, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)), hosts=2)
    found(stage, monkeypatch)
    with database.write() as connection:
        assert len(store.lease_due(connection, "hook", "one")) == 1
    with database.write() as connection:
        assert store.lease_due(connection, "hook", "other") == []
    stage.minutes(1)
    assert web.got == []
    stage.minutes(4)
    assert told(web) == [("dead", False)], "its lease is over"


def test_who_lost_the_lease_marks_nothing(
    database: Database, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)))
    found(stage, monkeypatch)
    with database.write() as connection:
        [first] = store.lease_due(connection, "hook", "one")
    stage.clock.advance(3 * MINUTE)  # type: ignore[attr-defined]
    with database.write() as connection:
        [second] = store.lease_due(connection, "hook", "other")
        now = database_now(connection)
        assert not store.mark_sent(connection, first, "one", now, None)
        store.mark_failed(connection, first, "one", now, next_at=now, error="x")
        assert store.mark_sent(connection, second, "other", now, None)
    [row] = stage.rows(tables.alerts)
    assert (row.sent, row.failures) == (1, 0)


@pytest.mark.parametrize("delivered", [True, False])
def test_an_end_that_comes_while_the_message_is_on_its_way_is_told_if_that_arrived(
    database: Database, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch, delivered: bool
) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)), hosts=2)
    first, second = stage.hosts
    mark, ended = Alerting._mark, []

    def end_first(alerting_here: Alerting, *given: Any) -> None:  # runs in a thread of the tick
        monkeypatch.setattr(Alerting, "_mark", mark)
        stage.settle_deaths()
        Alerting(second.settings, database, second.name, "another", lambda _: None).look(None, anyway=True)
        ended.append(stage.rows(tables.findings)[0].ended_at)
        mark(alerting_here, *given)

    stage.kill_a_job()
    monkeypatch.setattr(Alerting, "_mark", end_first)
    web.status = 200 if delivered else 500
    first.tick()
    assert ended
    assert ended[0] is not None
    web.status = 200
    stage.minutes(4)
    assert told(web) == [("dead", False), ("dead", True)][: 1 + delivered]
    assert [row.due_at is None for row in stage.rows(tables.alerts)] == [True]


def test_a_job_that_ends_during_a_look_does_not_delay_the_alert(
    database: Database, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)))
    ends = iter([True, True])

    def another_job_ends(*given: Any) -> Any:
        seen = findings.judge(*given)
        if next(ends, False):
            with database.write() as connection:
                look_soon(connection)
        return seen

    stage.kill_a_job()
    monkeypatch.setattr(alert_rounds, "judge", another_job_ends)
    stage.tick()
    assert told(web) == [("dead", False)]


def test_facts_that_change_all_the_time_delay_only_the_end_of_a_finding(
    database: Database, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)))
    looks: list[Any] = []

    def another_job_ends(*given: Any) -> Any:
        looks.append(given)
        with database.write() as connection:
            look_soon(connection)
        return findings.judge(*given)

    stage.kill_a_job()
    monkeypatch.setattr(alert_rounds, "judge", another_job_ends)
    stage.tick()
    assert (len(looks), told(web)) == (alert_rounds.LOOKS, [("dead", False)])
    stage.settle_deaths()
    stage.minutes(1)
    assert told(web) == [("dead", False)], "it may have begun again"
    monkeypatch.setattr(alert_rounds, "judge", findings.judge)
    stage.minutes(1)
    assert told(web) == [("dead", False), ("dead", True)]


def test_an_overtaken_look_adds_nothing_while_another_process_looks(
    database: Database, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)))

    def another_looks(*given: Any) -> Any:
        stage.clock.advance(MINUTE / 60)  # type: ignore[attr-defined]
        with database.write() as connection:
            look_soon(connection)
            assert store.begin_look(connection, anyway=False) is not None
        return findings.judge(*given)

    stage.kill_a_job()
    monkeypatch.setattr(alert_rounds, "LOOKS", 1)
    monkeypatch.setattr(alert_rounds, "judge", another_looks)
    stage.tick()
    assert stage.rows(tables.findings) == []


def test_a_look_that_facts_overtook_is_done_again(
    database: Database, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)))
    stage.kill_a_job()
    stage.hosts[0].carry(alerts=None)
    stage.tick()

    def overtaken(*given: Any) -> Any:
        seen = findings.judge(*given)
        stage.settle_deaths()
        return seen

    here = Alerting(stage.hosts[0].carry(alerts=alerting(webhook(web))), database, "host0", "me", lambda _: None)
    monkeypatch.setattr(alert_rounds, "judge", overtaken)
    here.look(None, anyway=True)
    monkeypatch.setattr(alert_rounds, "judge", findings.judge)
    assert stage.rows(tables.findings) == [], "it is over already"
    stage.minutes(1)
    assert web.got == []
    [meta] = stage.rows(tables.meta)
    assert meta.look_at is not None
