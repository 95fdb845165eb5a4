"""No alert, ping or channel error shows a secret, in any of its usual spellings, and wherever a text is cut."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.alerted import Stage, alerting, mail, webhook
from support.hosts import put
from support.inboxes import Smtp, Web
from support.inboxes import smtp as smtp
from support.inboxes import web as web
from support.spellings import ODD, SPELLINGS, seen_in

from cronjobs.clock import SYSTEM
from cronjobs.contrib.alerts import deliver
from cronjobs.contrib.alerts.pings import Pings
from cronjobs.contrib.alerts.texts import note
from cronjobs.engine.config.settings import (
    AlertChannel,
    CommandChannel,
    RunSettings,
    Settings,
)
from cronjobs.engine.database.connection import Database
from cronjobs.engine.store.alerts import look_soon
from cronjobs.errors import MESSAGE_LIMIT
from cronjobs.events import Event
from cronjobs.masking import remember

SPELT = {name: spell(ODD) for name, spell in SPELLINGS.items()}
TEXTS = {
    f"{name}-{cut}": before + spelt
    for name, spelt in SPELT.items()
    for cut, before in (("whole", ""), *((str(left), "e" * (MESSAGE_LIMIT - left)) for left in (3, 9, 17)))
}


@pytest.fixture
def remembered() -> Iterator[None]:
    """Remember the secrets to mask, as each command does with those of its configuration."""
    remember({ODD})
    yield
    remember(())


@pytest.mark.slow
@pytest.mark.either
@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("said", TEXTS.values(), ids=TEXTS)
def test_no_channel_shows_what_a_job_said_of_a_secret(
    database: Database, tmp_path: Path, web: Web, smtp: Smtp, said: str
) -> None:
    page = AlertChannel("page", CommandChannel(("sh", "-c", "cat >> told.json")))
    stage = Stage(database, tmp_path, alerting(webhook(web), mail(smtp), page))
    [host] = stage.hosts
    host.carry(secrets=frozenset({ODD}))
    now = database.clock.now()
    # another host wrote this row
    put(database, job_type="t.fail", status="dead", started_at=now, finished_at=now, last_error=said)
    with database.write() as connection:
        look_soon(connection)
    stage.tick()
    [sent] = smtp.mails
    [hook] = web.messages
    told = "\n".join((str(sent["Subject"]), sent.get_content(), json.dumps(hook), (tmp_path / "told.json").read_text()))
    assert told.count("t.fail") >= 3
    assert seen_in(told, SPELT) == set()


@pytest.mark.parametrize("lines", [False, True], ids=["one line", "several lines"])
@pytest.mark.parametrize("name", SPELT)
def test_no_error_of_a_channel_shows_a_secret(tmp_path: Path, name: str, lines: bool) -> None:
    """A program prints it; what a server answers goes the same way."""
    secret = ODD.replace(" ", "\n") if lines else ODD
    spelt = SPELLINGS[name](secret)
    for before, behind in ((0, 0), (280, 0), (290, 0), (4090, 0), (0, 4080), (0, 4090), (0, 65_000)):
        program = f"import sys; print('o' * {before} + {spelt!r} + 'o' * {behind}, end=''); sys.exit(3)"
        channel = AlertChannel("page", CommandChannel((sys.executable, "-c", program)))
        settings = Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path, secrets=frozenset({secret}))
        message = note("a test", settings, "here", SYSTEM.now())
        [(_, error)] = deliver.deliver({"page": message}, {"page": channel}, tmp_path, 60)
        assert error is not None
        assert error.startswith("CommandRefused: exit status 3: ")
        assert seen_in(error, {part: part for part in (spelt, *spelt.splitlines())}) == set()


@pytest.mark.parametrize("said", TEXTS.values(), ids=TEXTS)
def test_no_ping_shows_a_secret(web: Web, tmp_path: Path, said: str) -> None:
    settings = Settings(
        file=tmp_path / "cronjobs.yaml",
        folder=tmp_path,
        run=RunSettings(ping=f"{web.url}/ping"),
        secrets=frozenset({ODD}),
    )
    events: list[Event] = []
    pings = Pings(settings, events.append)
    pings.tick_ended(3, said)
    pings.flush(60)
    [(_, body)] = web.got
    assert body
    assert seen_in(body.decode(), SPELT) == set()
    assert events == []


def test_a_ping_that_is_not_sent_shows_no_part_of_its_address(web: Web, tmp_path: Path) -> None:
    web.status = 503
    key = "k7391-of-the-ping-9120"
    settings = Settings(
        file=tmp_path / "cronjobs.yaml",
        folder=tmp_path,
        run=RunSettings(ping=f"{web.url}/{key}"),
        secrets=frozenset({f"{web.url}/{key}", key}),
    )
    events: list[Event] = []
    pings = Pings(settings, events.append)
    pings.tick_ended(0)
    pings.flush(60)
    [not_sent] = events
    assert "503" in not_sent.facts["error"]
    assert key not in str(not_sent.facts)
