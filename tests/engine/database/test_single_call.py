"""After an hour without a mail server, no effect is left for a person to settle, and each mail is sent once."""

from __future__ import annotations

import smtplib
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, text
from support.receivers import mail_server

from cronjobs import Context, enqueue, job
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs import registry
from cronjobs.testing import drain

MINUTE = timedelta(minutes=1)
BEGAN = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
MAILS = 8


class Server:
    port = 0


@pytest.fixture(autouse=True)
def _mail_job() -> Iterator[None]:
    before = dict(registry._registered)

    @job("mail.invoice", timeout="5s")
    def invoice(ctx: Context, invoice_id: int, single_call: bool = True) -> None:
        with ctx.effect(("invoice", invoice_id), on_unknown="stop", single_call=single_call) as effect:
            if not effect.done:
                with closing(smtplib.SMTP("127.0.0.1", Server.port, timeout=5)) as server:
                    server.sendmail("a@shop.example", "b@shop.example", f"Message-ID: <{invoice_id}>\n\n.")

    yield
    registry._registered.clear()
    registry._registered.update(before)


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with database.engine.connect() as connection, connection.begin() as transaction:
        yield connection
        transaction.rollback()


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def statuses(connection: Connection) -> Counter[str]:
    return Counter(connection.execute(text("SELECT status FROM cronjobs_jobs")).scalars())


def test_an_hour_without_a_mail_server_leaves_no_job_dead(connection: Connection, closed_port: int) -> None:
    for number in range(MAILS):
        enqueue(connection, "mail.invoice", {"invoice_id": number}, run_at=BEGAN)
    tries = 0
    Server.port = closed_port
    for minute in range(0, 60, 4):
        tries += len(drain(connection, at=BEGAN + minute * MINUTE).ran)
    assert tries >= 5 * MAILS
    assert statuses(connection) == {"failed": MAILS}
    assert connection.execute(text("SELECT count(*) FROM cronjobs_effects")).scalar() == 0
    with mail_server() as server:
        Server.port = server.port
        for minute in range(60, 120, 4):
            drain(connection, at=BEGAN + minute * MINUTE)
        assert Counter(server.mailbox) == Counter(f"<{number}>" for number in range(MAILS))
    assert statuses(connection) == {"succeeded": MAILS}


def test_without_single_call_the_second_try_stops_for_a_person(connection: Connection, closed_port: int) -> None:
    enqueue(connection, "mail.invoice", {"invoice_id": 1, "single_call": False}, run_at=BEGAN)
    Server.port = closed_port
    for minute in range(10):
        drain(connection, at=BEGAN + minute * MINUTE)
    [(status, kind)] = connection.execute(text("SELECT status, error_type FROM cronjobs_jobs")).all()
    assert (status, kind) == ("dead", "EffectUnknown")
