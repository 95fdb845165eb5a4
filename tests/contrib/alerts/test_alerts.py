"""Alerts: what is sent, to whom and how often. No alert is lost, and only one of several hosts sends it."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from sqlalchemy import Connection, update
from support.alerted import HOUR, MINUTE, TYPES, Stage, alerting, mail, webhook
from support.databases import until
from support.hosts import Host, put
from support.inboxes import Smtp, Web, closed_port
from support.inboxes import smtp as smtp
from support.inboxes import web as web

from cronjobs.clock import SYSTEM, Clock
from cronjobs.contrib.alerts import alert_rounds, command, deliver
from cronjobs.contrib.alerts import hook as alert_hook
from cronjobs.contrib.alerts.texts import note
from cronjobs.desk.insight.causes import Causes, find_causes
from cronjobs.engine.config.settings import (
    AlertChannel,
    AlertFilter,
    AlertThreshold,
    CommandChannel,
    RunSettings,
    ScheduleSettings,
    Settings,
    WebhookChannel,
)
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.execution import strays
from cronjobs.engine.store.acks import StoredAck, put_ack
from cronjobs.engine.store.alerts import look_soon
from cronjobs.engine.store.schedules import pause
from cronjobs.engine.tick.extras import RunSummary
from cronjobs.engine.tick.mail_throttle import Alarm, away_name
from cronjobs.errors import DatabaseBusy, DatabaseError, Problem


@pytest.mark.slow
@pytest.mark.either
def test_a_death_is_told_at_once_then_hourly_then_daily_and_its_end_once(
    database: Database, tmp_path: Path, web: Web
) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)))
    assert web.got == []
    stage.kill_a_job()
    stage.tick()
    [first] = web.messages
    [told] = first["findings"]
    assert (told["finding"], told["over"], told["jobs"][0]["job_type"]) == ("dead", False, "t.fail")
    assert told["command"].startswith("/")
    assert f"--config {tmp_path}/cronjobs.yaml" in told["command"]
    stage.minutes(59)
    assert len(web.got) == 1
    stage.minutes(4)
    assert len(web.got) == 2
    stage.minutes(24 * 6, each=10 * MINUTE)
    hourly = len(web.got)
    assert 24 <= hourly <= 26
    stage.minutes(24 * 2, each=HOUR)
    assert 1 <= len(web.got) - hourly <= 2
    before = len(web.got)
    stage.settle_deaths()
    stage.tick()
    stage.minutes(30)
    over = web.messages[before:]
    assert [[(each["finding"], each["over"]) for each in message["findings"]] for message in over] == [[("dead", True)]]
    [episode] = stage.rows(tables.findings)
    assert episode.ended_at is not None


def test_a_type_that_fails_until_a_job_of_it_dies_is_not_said_to_be_over(
    database: Database, tmp_path: Path, web: Web
) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web, severity="warning")))
    put(database, job_type="t.fail", max_attempts=4)
    stage.minutes(60)
    told = [(each["finding"], each["over"]) for message in web.messages for each in message["findings"]]
    assert told == [("failing_type:t.fail", False), ("dead", False)]
    stage.settle_deaths()
    stage.minutes(3)
    told = [(each["finding"], each["over"]) for message in web.messages for each in message["findings"]]
    assert told[2:] == [("dead", True)]
    assert all(row.ended_at is not None for row in stage.rows(tables.findings))
    assert all(row.due_at is None for row in stage.rows(tables.alerts))


def test_three_hosts_send_one_alert(database: Database, tmp_path: Path, web: Web) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)), hosts=3)
    stage.kill_a_job()
    stage.minutes(5)
    assert len(web.got) == 1


def test_hosts_that_tick_at_the_same_moment_send_one_alert(database: Database, tmp_path: Path, web: Web) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)), hosts=3)
    stage.kill_a_job()
    ready = threading.Barrier(3)

    def send(host: Host) -> None:
        alerting_here = alert_rounds.Alerting(
            host.settings, database, host.name, f"{host.name}:tick", host.events.append
        )
        ready.wait()
        for _ in range(3):
            alerting_here.look(None, anyway=True)
            alerting_here.send(lambda: 20)

    plain = Host(database, tmp_path, "plain")
    plain.carry(job_types=TYPES, project="shop", environment="production")
    plain.tick()
    threads = [threading.Thread(target=send, args=(host,)) for host in stage.hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stage.minutes(4)
    assert len(web.got) == 1


def test_who_is_killed_between_sending_and_marking_sends_again(
    database: Database, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)))
    stage.kill_a_job()
    with monkeypatch.context() as patch:
        patch.setattr(alert_rounds.Alerting, "_mark", lambda *_: None)  # as after kill -9
        stage.tick()
    assert len(web.got) == 1
    stage.minutes(1)
    assert len(web.got) == 1, "the lease lasts two minutes"
    stage.minutes(4)
    assert len(web.got) == 2
    stage.minutes(20)
    assert len(web.got) == 2


def test_a_server_that_is_down_gets_it_later_and_is_a_finding_until_then(
    database: Database, tmp_path: Path, web: Web
) -> None:
    down = AlertChannel("down", WebhookChannel(f"http://127.0.0.1:{closed_port()}/secret-path"))
    stage = Stage(database, tmp_path, alerting(down, webhook(web)))
    stage.kill_a_job()
    stage.minutes(6)
    told = [each["finding"] for message in web.messages for each in message["findings"]]
    assert told == ["dead", "alert:down"]
    assert stage.hosts[0].said("alert.not_sent")
    assert all(host.tick().exit_code() == 0 for host in stage.hosts), "it fails nothing"
    up = AlertChannel("down", WebhookChannel(f"{web.url}/again"))
    stage.hosts[0].carry(alerts=alerting(up, webhook(web)))
    stage.minutes(20)
    later = [
        (path, each["finding"], each["over"])
        for (path, _), message in zip(web.got, web.messages, strict=True)
        for each in message["findings"]
    ][2:]
    assert ("/again", "dead", False) in later
    assert ("/", "alert:down", True) in later


def test_a_channel_that_works_again_gets_at_once_all_that_waits_for_another_try(
    database: Database, tmp_path: Path, web: Web
) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web, severity="warning")))
    web.status = 503
    stage.kill_a_job()
    stage.minutes(10)  # by now the next try is minutes away
    web.status = 200
    before = len(web.got)
    stage.minutes(1)
    assert len(web.got) == before, "the death waits for its next try"
    with database.write() as connection:
        two_days_ago = database.clock.now() - 48 * HOUR
        pause(connection, scope="queue", name="mail", until=None, by="ada", why="deploy", now=two_days_ago)
        look_soon(connection)
    stage.minutes(1)
    told = [[each["finding"] for each in message["findings"]] for message in web.messages[before:]]
    assert told == [["pause:queue/mail"], ["dead"]]
    stage.minutes(3)
    assert [row.finding for row in stage.rows(tables.findings) if row.ended_at is None] == ["dead", "pause:queue/mail"]


@pytest.mark.parametrize("status", [302, 403, 500])
def test_an_answer_other_than_2xx_is_tried_again(database: Database, tmp_path: Path, web: Web, status: int) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)))
    web.status, web.location = status, f"{web.url}/elsewhere"
    stage.kill_a_job()
    stage.tick()
    web.status = 200
    stage.minutes(3)
    assert len(web.got) == 2
    assert web.paths == ["/", "/"]


def test_a_mail_names_the_job_its_error_and_what_to_type(database: Database, tmp_path: Path, smtp: Smtp) -> None:
    stage = Stage(database, tmp_path, alerting(mail(smtp)))
    job = stage.kill_a_job()
    stage.tick()
    [sent] = smtp.mails
    assert re.match(r"\[cronjobs shop production\] (critical|warning): 1 dead job", sent["Subject"])
    assert sent["To"] == "ops@example.com, b@example.com"
    text = sent.get_content()
    assert f"job {job} t.fail, failed 1 time\r\n" in text
    assert "    exit status 1" in text.splitlines()
    assert f"jobs show {job}" in text


def test_an_alert_tells_failures_from_losses(database: Database, tmp_path: Path, smtp: Smtp, web: Web) -> None:
    stage = Stage(database, tmp_path, alerting(mail(smtp), webhook(web)))
    job = put(database, job_type="t.fail", max_attempts=1, attempts=1, losses=1)
    stage.tick()
    [sent] = smtp.mails
    assert f"job {job} t.fail, failed 1 time, lost 1 time\r\n" in sent.get_content()
    [told] = [each for finding in web.messages[0]["findings"] for each in finding["jobs"]]
    assert (told["id"], told["failures"], told["losses"]) == (job, 1, 1)


@pytest.mark.parametrize("manner", ["refuses", "silent", "wrong"])
def test_a_mail_server_in_trouble_gets_it_later(
    database: Database, tmp_path: Path, smtp: Smtp, manner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_rounds, "CHANNEL_S", 1.0)
    stage = Stage(database, tmp_path, alerting(mail(smtp)))
    smtp.manner = manner
    stage.kill_a_job()
    stage.tick()
    assert smtp.mails == []
    assert stage.hosts[0].said("alert.not_sent")
    smtp.manner = "up"
    smtp.go_on.set()
    stage.minutes(3)
    assert len(smtp.mails) == 1


def test_a_command_gets_the_message_on_its_standard_input(database: Database, tmp_path: Path) -> None:
    told = AlertChannel("page", CommandChannel(("sh", "-c", "cat > told.json")))
    broken = AlertChannel("broken", CommandChannel(("sh", "-c", "echo no such pager >&2; exit 3")))
    stage = Stage(database, tmp_path, alerting(told, broken))
    stage.kill_a_job()
    stage.tick()
    assert '"finding": "dead"' in (tmp_path / "told.json").read_text()
    [failed] = stage.hosts[0].said("alert.not_sent")
    assert failed.facts["error"].endswith("exit status 3: no such pager")


def test_a_command_that_hangs_is_killed(tmp_path: Path) -> None:
    began = SYSTEM.monotonic()
    [(name, error)] = delivered(
        tmp_path, 0.5, AlertChannel("page", CommandChannel(("sh", "-c", "sleep 60 & sleep 60")))
    )
    assert name == "page"
    assert error is not None
    assert SYSTEM.monotonic() - began < 50  # the command itself sleeps for 60 s


def test_a_command_is_killed_before_the_sender_stops_waiting_for_it(tmp_path: Path) -> None:
    message = note("a test", Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path), "here", SYSTEM.now())
    with pytest.raises(command.CommandRefused, match=r"did not exit within 500ms"):
        command.send(CommandChannel(("sleep", "60")), message, 1.0, tmp_path)


def test_a_command_is_not_named_as_what_a_handler_left_behind(tmp_path: Path) -> None:
    message = note("a test", Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path), "here", SYSTEM.now())

    def send() -> None:
        with pytest.raises(command.CommandRefused, match="exit status -9"):
            command.send(CommandChannel(("sh", "-c", "echo $$ > pid; exec sleep 60")), message, 50.0, tmp_path)

    file = tmp_path / "pid"
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send)
        until(lambda: file.exists() and file.read_text().endswith("\n"))
        pid = int(file.read_text())  # another test's command may still be ending
        until(lambda: pid in strays.OUR_PROCESSES)
        left = strays.left_behind(())
        os.kill(pid, signal.SIGKILL)
        sent.result()
    assert not [each for each in left if each.endswith(f"(pid {pid})")]
    assert pid not in strays.OUR_PROCESSES


def delivered(folder: Path, timeout_s: float, *channels: AlertChannel) -> list[tuple[str, str | None]]:
    """How each channel that got a message ended, in the order in which they ended."""
    by_name = {channel.name: channel for channel in channels}
    message = note("a test", Settings(file=folder / "cronjobs.yaml", folder=folder), "here", SYSTEM.now())
    return list(deliver.deliver(dict.fromkeys(by_name, message), by_name, folder, timeout_s))


def answering_when_all_are_asked(web: Web, channels: int) -> threading.Thread:
    """Let *web* answer only after it has received so many requests."""
    web.hold = True

    def let_go() -> None:
        until(lambda: len(set(web.paths)) == channels)
        web.go_on.set()

    thread = threading.Thread(target=let_go)
    thread.start()
    return thread


def waiting(folder: Path, web: Web) -> list[AlertChannel]:
    """Channels of each kind that wait until *web* answers."""
    ask = f"import urllib.request; urllib.request.urlopen('{web.url}/command', data=b'x', timeout=20)"
    return [
        AlertChannel("first", WebhookChannel(f"{web.url}/first")),
        AlertChannel("page", CommandChannel((sys.executable, "-c", ask))),
        AlertChannel("last", WebhookChannel(f"{web.url}/last")),
    ]


def test_a_channel_that_hangs_delays_no_other(database: Database, tmp_path: Path, web: Web) -> None:
    """The server answers only after all channels have sent their requests."""
    stage = Stage(database, tmp_path, alerting(*waiting(tmp_path, web)))
    stage.kill_a_job()
    asked = answering_when_all_are_asked(web, 3)
    stage.tick()
    asked.join()
    assert {event.facts["channel"] for event in stage.hosts[0].said("alert.sent")} == {"first", "page", "last"}
    assert stage.hosts[0].said("alert.not_sent") == []


def test_a_channel_that_hangs_keeps_nobody_from_hearing_that_the_database_is_away(tmp_path: Path, web: Web) -> None:
    settings = Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path, alerts=alerting(*waiting(tmp_path, web)))
    asked = answering_when_all_are_asked(web, 3)
    alert_hook.not_started(settings, DatabaseError("it is away"), SYSTEM.monotonic() + 30)
    asked.join()
    assert sorted(Alarm(settings.file, name=away_name(settings.file)).causes()) == ["first", "last", "page"]


def test_an_outage_counts_as_reported_only_once_its_alert_was_sent(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a tick that is killed while it sends leaves the alert to the next tick."""
    settings = Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path, alerts=alerting(webhook(web)))
    recorded: list[list[str]] = []

    def delivering(*given: Any) -> Any:
        recorded.append(Alarm(settings.file, name=away_name(settings.file)).causes())
        return deliver.deliver(*given)

    monkeypatch.setattr(alert_hook, "deliver", delivering)
    for _ in range(2):
        alert_hook.not_started(settings, DatabaseError("it is away"), SYSTEM.monotonic() + 30)
    assert recorded == [[], ["hook"]]
    assert len(web.got) == 1


def test_what_one_channel_answers_is_known_while_another_hangs(tmp_path: Path, web: Web) -> None:
    web.hold = True
    prompt = AlertChannel("prompt", CommandChannel(("true",)))
    settings = Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path)
    message = note("a test", settings, "here", SYSTEM.now())
    channels = {"hook": webhook(web), "prompt": prompt}
    ends = deliver.deliver(dict.fromkeys(channels, message), channels, tmp_path, 20)
    assert next(ends) == ("prompt", None)
    web.go_on.set()
    assert [*ends] == [("hook", None)]


@pytest.mark.parametrize("error", [TimeoutError("timed out"), URLError(TimeoutError("timed out"))])
def test_a_socket_that_gives_up_first_says_what_the_channel_would_say(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def give_up(*_: object) -> None:
        raise error

    monkeypatch.setattr(deliver, "_send", give_up)
    channels = {"hook": webhook(web)}
    settings = Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path)
    messages = {"hook": note("a test", settings, "here", SYSTEM.now())}
    assert [*deliver.deliver(messages, channels, tmp_path, 20)] == [("hook", "no answer within 20s")]


def test_a_thread_that_cannot_be_started_is_the_failure_of_its_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.endswith("-a"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    channels = [AlertChannel(name, CommandChannel(("true",))) for name in ("a", "b")]
    assert sorted(delivered(tmp_path, 20, *channels)) == [("a", "RuntimeError: can't start new thread"), ("b", None)]


def test_a_channel_for_which_no_time_was_left_is_tried_by_the_next_tick(
    database: Database, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)))
    stage.kill_a_job()
    send = alert_rounds.Alerting.send
    with monkeypatch.context() as patch:
        patch.setattr(alert_rounds.Alerting, "send", lambda here, _: send(here, lambda: 0.9))
        stage.tick()
    assert web.got == []
    stage.tick()
    assert len(web.got) == 1


def test_what_could_not_be_marked_is_marked_with_the_next_answer(
    database: Database, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not sent again, though a writer was in the way for a moment."""
    channels = [AlertChannel(name, WebhookChannel(f"{web.url}/{name}")) for name in ("a", "b", "c")]
    stage = Stage(database, tmp_path, alerting(*channels))
    stage.kill_a_job()
    mark, tries = alert_rounds.Alerting._mark, iter([DatabaseBusy("here", 2.0), DatabaseBusy("here", 2.0)])

    def busy_at_first(*given: Any) -> None:
        if (error := next(tries, None)) is not None:
            raise error
        mark(*given)

    monkeypatch.setattr(alert_rounds.Alerting, "_mark", busy_at_first)
    stage.tick()
    stage.minutes(20)
    assert sorted(web.paths) == ["/a", "/b", "/c"]


def test_what_is_acknowledged_is_not_repeated_and_speaks_up_when_it_gets_worse(
    database: Database, tmp_path: Path, web: Web
) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)))
    stage.kill_a_job()
    stage.tick()
    now = stage.clock.now()
    with database.write() as connection:
        put_ack(connection, StoredAck("dead", "critical", ["1"], now + 8 * HOUR, "ann", None, now))
        look_soon(connection)
    stage.minutes(18, each=20 * MINUTE)
    assert len(web.got) == 1
    stage.minutes(12, each=20 * MINUTE)
    assert len(web.got) > 1, "the ack is over"


def test_a_channel_gets_what_it_asks_for(database: Database, tmp_path: Path, web: Web) -> None:
    stage = Stage(
        database,
        tmp_path,
        alerting(
            AlertChannel("all", WebhookChannel(f"{web.url}/all"), AlertFilter("notice")),
            AlertChannel("late", WebhookChannel(f"{web.url}/late"), AlertFilter(findings=("late", "host:web2"))),
            AlertChannel("not", WebhookChannel(f"{web.url}/not"), AlertFilter(ignore=("dead",))),
        ),
    )
    stage.kill_a_job()
    stage.minutes(2)
    assert set(web.paths) == {"/all"}


def test_a_message_about_deaths_says_why_they_died_and_names_a_job_of_each_cause(
    database: Database, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Connection] = []

    def find(connection: Connection) -> Causes:
        looked.append(connection)
        return find_causes(connection)

    monkeypatch.setattr("cronjobs.contrib.alerts.alert_rounds.find_causes", find)
    stage = Stage(database, tmp_path, alerting(webhook(web)))
    put(database, job_type="t.say")
    stage.minutes(3)
    assert looked == [], "only for a message about deaths"
    ids = [stage.kill_a_job() for _ in range(4)]
    stage.tick()
    for number in range(6):
        other = stage.kill_a_job()
        values: dict[str, Any] = {"error_type": "OSError", "last_error": "no disk " + "x" * number, "status": "dead"}
        values["finished_at"] = stage.clock.now()
        with database.write() as connection:
            connection.execute(update(tables.jobs).where(tables.jobs.c.id == other).values(values))
    stage.minutes(70)
    [told] = web.messages[-1]["findings"]
    first, *others = told["causes"]
    assert first["text"].startswith("4 × ")
    assert (first["job_type"], first["jobs"], first["first_job_id"]) == ("t.fail", 4, ids[0])
    assert f"jobs list --cause {first['key']}" in first["command"]
    assert [each["jobs"] for each in others] == [1] * 4
    assert len({job["error"] for job in told["jobs"]}) == 3
    assert len(looked) == len(web.got)


def test_more_than_twenty_findings_are_counted(database: Database, tmp_path: Path, web: Web) -> None:
    thresholds = {f"t{n}": AlertThreshold(f"t{n}", "dead", 0, HOUR) for n in range(30)}
    stage = Stage(database, tmp_path, alerting(webhook(web), **thresholds))
    stage.kill_a_job()
    stage.tick()
    [message] = web.messages
    assert len(message["findings"]) == 20
    assert message["left_out"] == 11
    stage.minutes(10)
    assert len(web.got) == 1


def test_what_no_message_could_tell_of_is_not_said_to_be_over(database: Database, tmp_path: Path, web: Web) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web, findings=("dead",))))
    web.status = 500
    stage.kill_a_job()
    stage.minutes(3)
    assert len(web.got) > 1, "the read is repeated"
    stage.settle_deaths()
    stage.minutes(2)
    web.status, web.got[:] = 200, []
    stage.minutes(40)
    assert web.got == []
    assert [row.due_at for row in stage.rows(tables.alerts)] == [None]
    assert stage.findings() == [], "nothing waits for the channel"


def test_a_threshold_counts_within_its_time(database: Database, tmp_path: Path, web: Web) -> None:
    many = AlertThreshold("many", "dead", 2, HOUR)
    failed = AlertThreshold("failed", "failed", 3, HOUR, job_type="t.fail")
    stage = Stage(database, tmp_path, alerting(webhook(web, findings=("threshold",)), many=many, failed=failed))
    for _ in range(2):
        stage.kill_a_job()
    stage.minutes(13, each=5 * MINUTE)
    assert web.got == []
    for _ in range(3):
        stage.kill_a_job()
    stage.minutes(1)
    [message] = web.messages
    assert [each["finding"] for each in message["findings"]] == ["threshold:many"]
    [crossed] = [each for each in stage.findings() if each.kind == "threshold"]
    assert crossed.since is not None
    assert crossed.since.isoformat() == message["findings"][0]["began_at"]
    stage.minutes(14, each=5 * MINUTE)
    assert web.messages[-1]["findings"][0]["over"]


@pytest.mark.slow
@pytest.mark.either
def test_a_quiet_week_sends_nothing(database: Database, tmp_path: Path, web: Web) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)), hosts=2)
    schedules = {
        f"s{n}": ScheduleSettings(f"s{n}", "t.say", cron=f"{n} */6 * * *", overlap="allow") for n in range(0, 40, 10)
    }
    for host in stage.hosts:
        host.carry(schedules=schedules, run=RunSettings(workers=2, every=6 * HOUR))
    stage.minutes(7 * 4, each=6 * HOUR)
    assert web.got == []
    assert [row.finding for row in stage.rows(tables.findings) if row.severity != "notice"] == []


def test_a_host_without_alerts_lets_the_others_look(database: Database, tmp_path: Path, web: Web) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)))
    plain = Host(database, tmp_path, "plain")
    plain.carry(job_types=TYPES, project="shop", environment="production")
    stage.kill_a_job()
    plain.tick()
    stage.tick()
    assert len(web.got) == 1


def test_what_one_host_has_in_its_file_is_told_once_and_ends_by_its_own_word(
    database: Database, tmp_path: Path, web: Web
) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)), hosts=2)
    broken = stage.hosts[1]
    stage.hosts[1].carry(problems=(Problem("cronjobs.yaml", 3, 1, "schedules.x", "what is this"),))
    stage.minutes(8)
    told = [(each["finding"], each["over"]) for message in web.messages for each in message["findings"]]
    assert told == [(f"config:{broken.name}", False)], "the other host's looks do not end it"
    broken.carry(problems=())
    stage.minutes(8)
    told = [(each["finding"], each["over"]) for message in web.messages for each in message["findings"]]
    assert told[1:] == [(f"config:{broken.name}", True)]


def test_ticks_that_never_have_time_left_look_before_their_work(
    database: Database, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)))
    stage.kill_a_job()
    with monkeypatch.context() as patch:
        patch.setattr(alert_hook, "LEAST_LEFT_S", 1000)  # so no tick has time to look
        stage.tick()
        for _ in range(3):
            put(database)
            stage.minutes(1)
    assert web.got == []
    early: list[object] = []
    look_early = alert_hook.AlertHook.look_early

    def noting(hook: alert_hook.AlertHook) -> None:
        early.append(hook)
        look_early(hook)

    monkeypatch.setattr(alert_hook.AlertHook, "look_early", noting)
    put(database)
    stage.minutes(1)
    assert len(early) == 1
    assert len(web.got) == 1
    put(database)
    stage.minutes(1, each=HOUR)
    assert len(early) == 1, "after an outage the work goes first"


@dataclass
class Running:
    """A clock that also runs a little between two readings."""

    of_test: Clock
    ran_s: float = 0.0

    def now(self) -> datetime:
        return self.of_test.now()

    def monotonic(self) -> float:
        self.ran_s += 0.001
        return self.of_test.monotonic() + self.ran_s

    @property
    def stands_at(self) -> datetime | None:
        return self.of_test.stands_at


@pytest.mark.parametrize("budget_s", [6.0, 15.0, 55.0])
def test_under_a_steady_load_a_finding_is_told_within_two_minutes(
    database: Database, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch, budget_s: float
) -> None:
    def without_time(hook: alert_hook.AlertHook, _summary: RunSummary) -> None:
        if hook._early is not None:
            hook._early.join()

    stage = Stage(database, tmp_path, alerting(webhook(web)))
    monkeypatch.setattr(alert_hook.AlertHook, "end", without_time)
    [host] = stage.hosts
    host.clock = Running(host.clock)
    stage.kill_a_job()
    for seconds in (0, 59, 61):
        assert web.got == []
        stage.clock.advance(timedelta(seconds=seconds))  # type: ignore[attr-defined]
        put(database)
        host.tick(budget_s)
    assert len(web.got) == 1


def test_a_look_is_overdue_where_ticks_come_and_none_has_ever_looked() -> None:
    now, minute = datetime(2026, 11, 24, 2, tzinfo=UTC), timedelta(minutes=1)
    assert alert_hook.is_overdue(None, now - minute, now, minute)
    assert not alert_hook.is_overdue(None, None, now, minute), "the first tick of all"
    assert not alert_hook.is_overdue(None, now - HOUR, now, minute), "after an outage the work goes first"
    assert not alert_hook.is_overdue(now - minute, now - minute, now, minute)
