"""Pings. Also: no message contains secrets, or text that acts as markup or mentions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import select
from support.alerted import HOUR, MINUTE, TYPES, Stage, alerting, mail, webhook
from support.hosts import Host, put
from support.inboxes import Smtp, Web, closed_port
from support.inboxes import smtp as smtp
from support.inboxes import web as web

from cronjobs import health
from cronjobs.desk.insight.findings import troubles
from cronjobs.desk.insight.gathering import look
from cronjobs.engine.config.settings import (
    AlertChannel,
    AlertFilter,
    CommandChannel,
    JobTypeSettings,
    RunSettings,
    ScheduleSettings,
    WebhookChannel,
)
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store.alerts import look_soon

# --- pings ------------------------------------------------------------------------------------------------------------


def pinged(web: Web) -> list[tuple[str, str]]:
    """Each ping in order: its path, and the id of its run."""
    found = []
    for path in web.paths:
        said, _, rid = path.partition("?rid=")
        found.append((said, rid))
    return found


def pinging(database: Database, folder: Path, web: Web, job: str, **more: Any) -> Host:
    host = Host(database, folder)
    schedule = ScheduleSettings("nightly", job, every=HOUR, ping=f"{web.url}/check/", **more)
    host.carry(job_types=TYPES, schedules={"nightly": schedule})
    host.tick()
    return host


def test_a_run_of_a_schedule_pings_at_its_start_and_its_end(database: Database, tmp_path: Path, web: Web) -> None:
    host = pinging(database, tmp_path, web, "t.say")
    assert web.got == []
    database.clock.advance(HOUR)  # type: ignore[attr-defined]
    host.tick()
    [(start, one), (end, other)] = pinged(web)
    assert (start, end) == ("/check/start", "/check/")
    assert one == other
    assert len(one) == 36
    with database.read() as connection:
        assert "/check" not in str(connection.execute(select(tables.schedules)).all()), (
            "it is no part of the definition"
        )


def test_a_failure_is_an_alarm_when_no_try_is_left(database: Database, tmp_path: Path, web: Web) -> None:
    host = pinging(database, tmp_path, web, "t.fail", max_attempts=2)
    database.clock.advance(HOUR)  # type: ignore[attr-defined]
    host.tick()
    database.clock.advance(10 * MINUTE)  # type: ignore[attr-defined]
    host.tick()
    assert [said for said, _ in pinged(web)] == ["/check/start", "/check/log", "/check/start", "/check/1"]
    assert web.got[1][1] == b"failed, will be retried: exit status 1"
    assert len({rid for _, rid in pinged(web)}) == 2


def test_a_tick_pings_and_a_server_that_is_away_costs_it_nothing(database: Database, tmp_path: Path, web: Web) -> None:
    host = Host(database, tmp_path)
    host.carry(run=RunSettings(workers=2, ping=f"{web.url}/tick?create=1"))
    assert host.tick().exit_code() == 0
    assert [path.partition("&")[0] for path in web.paths] == ["/tick/start?create=1", "/tick?create=1"]
    host.carry(run=RunSettings(workers=2, ping=f"http://127.0.0.1:{closed_port()}/tick"))
    assert host.tick().exit_code() == 0
    assert host.said("ping.not_sent")


def test_when_cron_stops_the_ping_stays_away_and_the_app_says_so(database: Database, tmp_path: Path, web: Web) -> None:
    stage = Stage(database, tmp_path, alerting(webhook(web)))
    [host] = stage.hosts
    host.carry(run=RunSettings(workers=2, ping=f"{web.url}/tick"))

    def seen() -> tuple[list[str], list[str], bool, int]:
        """What status finds, what the app's health check finds, whether it is well, and how many ticks have pinged."""
        with database.read() as connection:
            found, check = troubles(look(connection, host.settings, JobTypes()), host.settings), health(connection)
        pings = sum(path.startswith("/tick?") for path in web.paths)
        return [each.kind for each in found], [each.kind for each in check.findings], check.ok, pings

    def pass_by(minutes: int) -> None:
        database.clock.advance(minutes * MINUTE)  # type: ignore[attr-defined]

    stage.minutes(3)
    assert seen() == ([], [], True, 3)
    pass_by(2)
    assert seen() == ([], [], True, 3)
    pass_by(2)
    assert seen() == (["no_tick"], ["no_tick"], False, 3)
    pass_by(600)
    assert seen() == (["no_tick"], ["no_tick"], False, 3)
    stage.minutes(1)
    assert seen() == ([], [], True, 4)
    stage.minutes(2)
    assert seen() == ([], [], True, 6)
    assert [path for path in web.paths if not path.startswith("/tick")] == []  # nobody was there to send an alert


# --- secrets ----------------------------------------------------------------------------------------------------------

CANARY = "canary-4711-secret"


def test_no_secret_is_in_a_message(database: Database, tmp_path: Path, web: Web, smtp: Smtp) -> None:
    channels = [
        AlertChannel("slack", WebhookChannel(f"{web.url}/{CANARY}", "slack")),
        AlertChannel("teams", WebhookChannel(f"{web.url}/t", "teams")),
        AlertChannel("json", WebhookChannel(f"{web.url}/j")),
        mail(smtp),
        AlertChannel("down", WebhookChannel(f"http://127.0.0.1:{closed_port()}/{CANARY}")),
        AlertChannel("page", CommandChannel(("sh", "-c", f"echo {CANARY}; exit 1"))),
    ]
    stage = Stage(database, tmp_path, alerting(*channels))
    types = {
        "t.leak": JobTypeSettings("t.leak", command=("sh", "-c", f"echo out {CANARY}; exit 1"), timeout=MINUTE / 60)
    }
    for host in stage.hosts:
        host.carry(job_types=types, secrets=frozenset({CANARY}))
    put(database, job_type="t.leak", max_attempts=1, payload={"card": CANARY})
    stage.minutes(4)
    said = [body.decode() for _, body in web.got] + [str(sent) for sent in smtp.mails]
    assert len(said) >= 5
    assert not [text for text in said if CANARY in text]
    assert any("out ***" in text for text in said)
    kept = str([stage.rows(table) for table in (tables.findings, tables.alerts)])
    assert CANARY not in kept
    assert CANARY not in str(stage.hosts[0].events)


def test_hostile_texts_stay_inert(database: Database, tmp_path: Path, web: Web, smtp: Smtp) -> None:
    hostile = "<!channel> \x1b[2J\r\nSubject: x\u202e <b>"
    stage = Stage(
        database,
        tmp_path,
        alerting(mail(smtp), AlertChannel("slack", WebhookChannel(web.url, "slack"), AlertFilter("notice"))),
    )
    put(database, job_type=hostile, status="dead", finished_at=stage.clock.now(), last_error=hostile)
    with database.write() as connection:
        look_soon(connection)
    stage.minutes(1)
    text = web.messages[0]["text"]
    assert "<!channel>" not in text
    assert "&lt;!channel&gt;" in text
    [sent] = smtp.mails
    assert sent["Subject"].startswith("[cronjobs")
    assert not set("\x1b\r\u202e") & set(sent.get_content().replace("\r\n", "\n"))
