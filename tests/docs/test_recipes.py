"""examples/recipes: how often each side effect arrives at a real receiver, attempt by attempt, on both databases.

An attempt that ends in the middle is one whose end is not recorded; test_recipes_killed has processes that are killed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from support.ledger import Jobs
from support.receivers import Call, MailServer, Provider, WebServer, mail_server, web_server
from support.recipes import recipe

from cronjobs import EffectUnknown, GiveUp, RetryLater
from cronjobs.engine.database.connection import Database
from cronjobs.model import Job
from cronjobs.testing import FakeClock

# What an answer means has nothing to do with the database.
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


class Work:
    """One job of a recipe, attempt after attempt, each on another host."""

    def __init__(self, jobs: Jobs, handler: Callable[..., Any], **payload: Any) -> None:
        self.jobs, self.handler, self.payload = jobs, handler, payload
        self.job: Job | None = None
        self.enqueued_at: datetime | None = None
        self.idempotency_key: str | None = None

    def attempt(self) -> Any:
        self.job = self.jobs.claimed() if self.job is None else self.jobs.taken_over(self.job)
        ctx = self.jobs.context(self.job)
        ctx.enqueued_at = self.enqueued_at or ctx.enqueued_at
        ctx.idempotency_key = self.idempotency_key or ctx.idempotency_key
        return self.handler(ctx, **self.payload)

    def attempt_that_dies(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An attempt that does everything, and dies before the end of the effect is recorded."""
        with monkeypatch.context() as patch:
            patch.setattr("cronjobs.engine.jobs.effects.Ledger.record", _die)
            with pytest.raises(Died):
                self.attempt()

    def states(self) -> dict[str, str]:
        return {key: row[0] for key, row in self.jobs.effects().items()}


class Died(BaseException):
    pass


def _die(*_: Any) -> None:
    raise Died


@pytest.fixture
def jobs(database: Database, clock: FakeClock) -> Jobs:
    return Jobs(database, clock)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


# --- email ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def mail(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    with mail_server() as server:
        monkeypatch.setenv("SMTP_HOST", "127.0.0.1")
        monkeypatch.setenv("SMTP_PORT", str(server.port))
        yield server


@pytest.fixture
def email(jobs: Jobs, mail: MailServer) -> Work:
    return Work(jobs, recipe("invoice_email").email_invoice, invoice_id=7, to="ada@example.com")


MESSAGE_ID = "<invoice-email.7@shop.example>"


def test_an_email_is_sent_once_and_its_message_id_kept(email: Work, mail: MailServer) -> None:
    assert email.attempt() == email.attempt() == {"message_id": MESSAGE_ID}
    assert mail.mailbox == [MESSAGE_ID]
    assert email.states() == {"invoice-email:7": "recorded"}


@ON_SQLITE
@pytest.mark.parametrize(
    ("answers", "raised"),
    [
        ({"RCPT": ["450 4.2.1 later"]}, RetryLater),
        ({"DATA": ["451 4.3.0 later"]}, RetryLater),
        ({"RCPT": ["550 5.1.1 no such mailbox"]}, GiveUp),
        ({"DATA": ["554 5.7.1 not this"]}, GiveUp),
        ({"RCPT": [""]}, RetryLater),  # hung up before the message
        ({"RCPT": ["250 but forgotten"]}, GiveUp),  # so the command DATA is refused
    ],
    ids=lambda given: str(given) if isinstance(given, dict) else given.__name__,
)
def test_a_mail_server_that_refuses_did_nothing_so_the_next_attempt_sends(
    email: Work, mail: MailServer, answers: dict[str, list[str]], raised: type[Exception]
) -> None:
    mail.answers = {command: list(said) for command, said in answers.items()}
    with pytest.raises(raised):
        email.attempt()
    assert (mail.mailbox, email.states()) == ([], {})
    assert email.attempt() == {"message_id": MESSAGE_ID}
    assert mail.mailbox == [MESSAGE_ID]


@ON_SQLITE
def test_without_a_mail_server_nothing_was_done(email: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMTP_PORT", "1")
    with pytest.raises(RetryLater):
        email.attempt()
    assert email.states() == {}


@ON_SQLITE
def test_an_email_whose_answer_was_lost_waits_for_a_person(email: Work, mail: MailServer) -> None:
    mail.answers = {"DATA": [""]}
    with pytest.raises(RetryLater):
        email.attempt()
    with pytest.raises(EffectUnknown, match="cronjobs effects settle invoice-email:7 done"):
        email.attempt()
    assert mail.mailbox == [MESSAGE_ID]


def test_an_email_whose_sender_died_waits_for_a_person(
    email: Work, mail: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    email.attempt_that_dies(monkeypatch)
    with pytest.raises(EffectUnknown):
        email.attempt()
    assert mail.mailbox == [MESSAGE_ID]


# --- an order at a partner without keys -------------------------------------------------------------------------------


@pytest.fixture
def partner(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    with web_server(lambda _: (201, {}, {"id": "A-1"})) as web:
        monkeypatch.setenv("PARTNER_URL", web.url)
        yield web


@pytest.fixture
def order(jobs: Jobs, partner: WebServer) -> Work:
    return Work(jobs, recipe("partner").place_order, order_id=7, items=[{"sku": "x"}])


def test_an_order_is_placed_once(order: Work, partner: WebServer) -> None:
    assert order.attempt() == order.attempt() == {"partner_id": "A-1"}
    [call] = partner.calls
    assert (call.path, call.body) == ("/orders", {"reference": "partner-order:7", "items": [{"sku": "x"}]})


@ON_SQLITE
@pytest.mark.parametrize(("status", "raised"), [(429, RetryLater), (503, RetryLater), (422, GiveUp)])
def test_an_answer_that_says_that_no_order_was_placed_lets_the_next_attempt_place_it(
    order: Work, partner: WebServer, status: int, raised: type[Exception]
) -> None:
    partner.answers = [(status, {"Retry-After": "60"}, {})]
    with pytest.raises(raised):
        order.attempt()
    assert order.states() == {}
    assert order.attempt() == {"partner_id": "A-1"}


@ON_SQLITE
@pytest.mark.parametrize("answer", [(500, {}, {}), (502, {}, {}), (504, {}, {}), (408, {}, {}), None])
def test_an_order_of_which_nobody_knows_whether_it_was_placed_waits_for_a_person(
    order: Work, partner: WebServer, answer: Any
) -> None:
    partner.answers = [answer]
    with pytest.raises(RetryLater):
        order.attempt()
    with pytest.raises(EffectUnknown, match="cronjobs effects settle partner-order:7 done"):
        order.attempt()
    assert len(partner.calls) == 1


@ON_SQLITE
def test_without_a_connection_to_the_partner_no_order_was_placed(order: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PARTNER_URL", "http://127.0.0.1:1")
        with pytest.raises(RetryLater):
            order.attempt()
    assert order.states() == {}
    assert order.attempt() == {"partner_id": "A-1"}


def test_an_order_whose_runner_died_waits_for_a_person(
    order: Work, partner: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    order.attempt_that_dies(monkeypatch)
    with pytest.raises(EffectUnknown):
        order.attempt()
    assert len(partner.calls) == 1


# --- webhook ----------------------------------------------------------------------------------------------------------


class Receiver:
    """An app that acts on events, with the receiver's recipe."""

    def __init__(self, file: Path) -> None:
        self.recipe = recipe("webhook_receiver")
        self.engine = create_engine(f"sqlite:///{file}")
        with self.engine.begin() as connection:
            connection.execute(text(self.recipe.TABLE))
        self.acted: list[Any] = []

    def __call__(self, call: Call) -> tuple[int, dict[str, str], dict[str, Any]]:
        with self.engine.begin() as connection:
            if self.recipe.is_new(connection, call.headers["Webhook-Id"]):
                self.acted.append(call.body)
        return 204, {}, {}


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    receiver = Receiver(tmp_path / "receiver.db")
    yield receiver
    receiver.engine.dispose()


@pytest.fixture
def web(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    with web_server(receiver) as web:
        monkeypatch.setenv("WEBHOOK_URL", f"{web.url}/hook")
        yield web


@pytest.fixture
def webhook(jobs: Jobs, web: WebServer) -> Work:
    return Work(jobs, recipe("webhook").deliver, event_id="evt-1", event={"paid": 7})


def test_a_webhook_is_called_once_with_its_event_id(webhook: Work, web: WebServer, receiver: Receiver) -> None:
    webhook.attempt()
    webhook.attempt()
    assert [(call.path, call.headers["Webhook-Id"], call.body) for call in web.calls] == [
        ("/hook", "evt-1", {"paid": 7})
    ]
    assert receiver.acted == [{"paid": 7}]


def test_a_webhook_that_arrives_twice_is_acted_on_once(
    webhook: Work, web: WebServer, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook.attempt_that_dies(monkeypatch)
    assert webhook.states() == {"webhook:evt-1": "begun"}
    webhook.attempt()
    assert [call.headers["Webhook-Id"] for call in web.calls] == ["evt-1", "evt-1"]
    assert receiver.acted == [{"paid": 7}]
    assert webhook.states() == {"webhook:evt-1": "recorded"}


IN_TWO_HOURS = format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True)  # the whole suite takes less


@ON_SQLITE
@pytest.mark.parametrize(
    ("status", "headers", "after", "known"),
    [
        (429, {"Retry-After": "30"}, (30, 30), {}),
        (429, {"Retry-After": IN_TWO_HOURS}, (1, 7200), {}),
        (429, {"Retry-After": "Thu, 01 Jan 2026 00:00:00 GMT"}, (0, 0), {}),
        (429, {"Retry-After": "99999999999"}, (6 * 3600, 6 * 3600), {}),
        (429, {"Retry-After": "soon"}, None, {}),
        (503, {"Retry-After": "5"}, (5, 5), {"webhook:evt-1": "begun"}),
        (500, {}, None, {"webhook:evt-1": "begun"}),
    ],
)
def test_a_receiver_that_cannot_now_is_asked_later_after_what_it_says(
    webhook: Work,
    web: WebServer,
    receiver: Receiver,
    status: int,
    headers: dict[str, str],
    after: tuple[float, float] | None,
    known: dict[str, str],
) -> None:
    web.answers = [(status, headers, {})]
    with pytest.raises(RetryLater, match=f"said {status}") as later:
        webhook.attempt()
    wait = later.value.after
    assert (wait is None) if after is None else (isinstance(wait, float) and after[0] <= wait <= after[1])
    assert webhook.states() == known
    webhook.attempt()
    assert receiver.acted == [{"paid": 7}]


@ON_SQLITE
def test_an_answer_that_never_comes_is_asked_for_again(webhook: Work, web: WebServer, receiver: Receiver) -> None:
    web.answers = [None]
    with pytest.raises(RetryLater):
        webhook.attempt()
    assert webhook.states() == {"webhook:evt-1": "begun"}
    webhook.attempt()
    assert receiver.acted == [{"paid": 7}]


@ON_SQLITE
@pytest.mark.parametrize("status", [400, 410])
def test_a_receiver_that_never_will_ends_the_job(webhook: Work, web: WebServer, status: int) -> None:
    web.answers = [(status, {}, {"error": "unknown event"})]
    with pytest.raises(GiveUp, match=f"said {status}: .*unknown event"):
        webhook.attempt()
    assert webhook.states() == {}


@ON_SQLITE
def test_a_redirect_is_refused_rather_than_followed_as_a_get(webhook: Work, web: WebServer) -> None:
    web.answers = [(302, {"Location": f"{web.url}/elsewhere"}, {})]
    with pytest.raises(GiveUp, match="said 302"):
        webhook.attempt()
    assert [call.path for call in web.calls] == ["/hook"]
    assert webhook.states() == {"webhook:evt-1": "begun"}, "a redirect may answer a request that was carried out"


@ON_SQLITE
def test_without_a_receiver_nothing_was_done(webhook: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_URL", "http://127.0.0.1:1/hook")
    with pytest.raises(RetryLater):
        webhook.attempt()
    assert webhook.states() == {}


# --- payment ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def bank(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    with web_server(provider) as web:
        monkeypatch.setenv("PAYMENT_URL", web.url)
        yield web


@pytest.fixture
def payment(jobs: Jobs, bank: WebServer) -> Work:
    handler = recipe("payment").charge
    work = Work(jobs, handler, payment_id=9, cents=4900, currency="eur", source="card_1")
    work.idempotency_key = "charge:9"
    return work


def test_a_payment_is_charged_once_and_its_charge_kept(payment: Work, provider: Provider, bank: WebServer) -> None:
    assert payment.attempt() == payment.attempt() == {"charge_id": "ch_1"}
    assert [call.headers["Idempotency-Key"] for call in bank.calls] == ["charge:9"]
    assert [charge["amount"] for charge in provider.charges] == [4900]


def test_a_payment_asked_for_twice_is_charged_once(
    payment: Work, provider: Provider, bank: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    payment.attempt_that_dies(monkeypatch)
    assert payment.attempt() == {"charge_id": "ch_1"}
    assert (len(bank.calls), len(provider.charges)) == (2, 1)


@ON_SQLITE
@pytest.mark.parametrize(
    ("answer", "raised"), [((429, {}, {}), RetryLater), ((409, {}, {}), RetryLater), (None, RetryLater)]
)
def test_a_provider_that_did_not_answer_is_asked_again_with_the_same_key(
    payment: Work, provider: Provider, bank: WebServer, answer: Any, raised: type[Exception]
) -> None:
    bank.answers = [answer]
    with pytest.raises(raised):
        payment.attempt()
    payment.attempt()
    assert [call.headers["Idempotency-Key"] for call in bank.calls] == ["charge:9", "charge:9"]
    assert len(provider.charges) == 1


@ON_SQLITE
def test_a_payment_whose_amount_changed_under_its_key_ends_instead_of_charging(
    payment: Work, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    payment.attempt_that_dies(monkeypatch)
    payment.payload["cents"] = 5900
    with pytest.raises(GiveUp, match=r"said 422: .*another request"):
        payment.attempt()
    assert [charge["amount"] for charge in provider.charges] == [4900]
    assert payment.states() == {"charge:9": "begun"}  # what the first attempt did is still not known


@ON_SQLITE
def test_a_declined_card_is_the_payments_result_and_another_one_is_another_payment(
    payment: Work, bank: WebServer
) -> None:
    bank.answers = [(402, {}, {"error": "card declined"})]
    declined = {"declined": '{"error": "card declined"}'}
    assert payment.attempt() == payment.attempt() == declined
    assert payment.states() == {"charge:9": "recorded"}
    payment.payload |= {"payment_id": 10, "source": "card_2"}
    payment.idempotency_key = "charge:10"
    payment.attempt()
    assert [call.headers["Idempotency-Key"] for call in bank.calls] == ["charge:9", "charge:10"]


def test_a_payment_older_than_the_providers_memory_waits_for_a_person(
    payment: Work, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    payment.attempt_that_dies(monkeypatch)
    provider.forget()
    payment.enqueued_at = datetime.now(UTC) - timedelta(hours=21)
    with pytest.raises(EffectUnknown):
        payment.attempt()
    assert len(provider.charges) == 1


@ON_SQLITE
def test_a_second_job_for_a_payment_charges_nothing(payment: Work, bank: WebServer) -> None:
    payment.idempotency_key = "charge:9:again"
    with pytest.raises(GiveUp, match=r'enqueue this job with idempotency_key=\("charge", 9\)'):
        payment.attempt()
    assert (bank.calls, payment.states()) == ([], {})


# --- file -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "export"
    folder.mkdir()
    monkeypatch.setenv("EXPORT_FOLDER", str(folder))
    return folder


@pytest.fixture
def export(jobs: Jobs, folder: Path) -> Work:
    return Work(jobs, recipe("files").export_report, day="2026-03-02")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_once_and_nothing_else_is_left(export: Work, folder: Path) -> None:
    first = export.attempt()
    file = folder / "report-2026-03-02.csv"
    assert first == {"file": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    inode = file.stat().st_ino
    assert export.attempt() == first
    assert (names(folder), file.stat().st_ino) == ([file.name], inode)


def test_a_file_whose_writer_died_is_written_again_whole(
    export: Work, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export.attempt_that_dies(monkeypatch)
    (folder / ".report-2026-03-02.csv.1-1.part").write_bytes(b"half")  # as it leaves one that dies a little earlier
    assert export.attempt()["file"] == "report-2026-03-02.csv"
    assert names(folder) == ["report-2026-03-02.csv"]


@ON_SQLITE
def test_a_full_disk_leaves_the_old_file(export: Work, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "report-2026-03-02.csv"
    file.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            export.attempt()
    assert file.read_bytes() == b"old"
    export.attempt()
    assert names(folder) == [file.name]
