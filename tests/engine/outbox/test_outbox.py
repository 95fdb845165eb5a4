"""The outbox under fire, with real processes: short forms. The long ones: ``python -m tests.engine.outbox``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.postgres import OWNER
from support.rounds import rounds

from engine.outbox.hour import WRONG, hour
from engine.outbox.kills import kills
from engine.outbox.stage import Stage, new_stage

# The shop makes its own tables beside those of the jobs.
pytestmark = [pytest.mark.slow, pytest.mark.connects_as(OWNER)]


@pytest.fixture
def stage(tmp_path: Path, database_url: str) -> Iterator[Stage]:
    stage = new_stage(tmp_path / "shop", database_url)
    with stage.providers():
        yield stage


def test_exactly_the_paid_orders_are_invoiced_each_once_while_ticks_are_killed(stage: Stage) -> None:
    report = kills(stage, orders=40, least=3, most=rounds(5, 8), seed=20_261_120, pace_s=0.1)
    print(json.dumps(report, indent=1))
    assert report["violations"] == []
    assert report["orders"] == {"PAID": 20, "sold out": 20}


@pytest.mark.either
def test_an_hour_without_mail_server_delays_a_thousand_mails_and_loses_or_doubles_none(stage: Stage) -> None:
    """Fifty of them, for the sake of time; the long form has a thousand."""
    report = hour(stage, 50)
    print(json.dumps(report, indent=1))
    assert report["violations"] == []
    assert report["tries that failed"] > 5 * report["orders"]
    assert report["timed out"] > 0

    # The one whose address is wrong: listed with its reason, mended, retried, and then it has its mail, too.
    [dead] = stage.cronjobs("jobs", "list", "--status", "dead")
    assert WRONG in dead["last_error"]
    assert "550 " in dead["last_error"].replace(":", " ")
    order_id = dead["payload"]["order_id"]
    stage.python("mend.py", str(order_id), "somebody@example.com")
    before = len(stage.mails())
    stage.python("-m", "cronjobs", "jobs", "retry", str(dead["id"]))
    tick = stage.tick()
    assert (tick.wait(), tick.stdout, tick.stderr) == (0, "", "")
    [mail] = stage.mails()[before:]
    assert (mail["to"], mail["message_id"]) == ("somebody@example.com", f"<invoice-mail.{order_id}@shop.example>")
    assert stage.cronjobs("jobs", "list", "--status", "dead") == []
