"""An email that must not go out twice.

The effect's row is written before the mail server is contacted. Once the server has accepted the mail, the row keeps
the message id. The file is not called ``email.py``, because that name would hide the standard library's module.
"""

from __future__ import annotations

import os
import smtplib
from contextlib import closing
from email.message import EmailMessage
from email.policy import SMTP  # ends lines as SMTP requires

from cronjobs import Context, Effect, GiveUp, RetryLater, RetryPolicy, job

RETRY = RetryPolicy(delays=["15s", "1m", "5m", "30m", "2h"], max_attempts=20)
PATIENCE_S = 10.0  # how long to wait for an answer of the mail server


@job("invoices.email", timeout="20s", retry=RETRY)
def email_invoice(ctx: Context, invoice_id: int, to: str) -> dict[str, str]:
    # SMTP has no idempotency key, so only a person can find out whether a mail was sent if the answer was lost: "stop".
    # Use "skip" for mail that nobody misses, and "again" where a second copy does no harm.
    with ctx.effect(("invoice-email", invoice_id), on_unknown="stop") as effect:
        if not effect.done:
            mail = invoice_mail(invoice_id, to, effect.key)
            effect.result = send(mail, effect, min(PATIENCE_S, ctx.remaining_s))
    return effect.result or {"message_id": "settled by hand"}


def invoice_mail(invoice_id: int, to: str, key: str) -> EmailMessage:
    mail = EmailMessage()
    mail["From"] = "billing@shop.example"
    mail["To"] = to
    mail["Subject"] = f"Your invoice {invoice_id}"
    # Made from the key, so it is the same in every attempt. It finds the mail in the mail server's log, and lets a mail
    # program recognise a second copy.
    mail["Message-ID"] = f"<{key.replace(':', '.')}@shop.example>"
    mail.set_content(f"Here is your invoice {invoice_id}.\n")
    return mail


def send(mail: EmailMessage, effect: Effect, patience_s: float) -> dict[str, str]:
    """Send *mail*. Raise RetryLater or GiveUp if the server does not accept it.

    Until the message itself is sent, and also if the server refuses it, nothing has happened: this calls
    ``did_nothing()``, and the next attempt starts again. If the message is sent and no answer comes, the outcome is
    unknown.
    """
    on_its_way = False
    try:
        host, port = os.environ.get("SMTP_HOST", "localhost"), int(os.environ.get("SMTP_PORT", "25"))
        # closing(), not quit(): an error in quit() would hide the answer that counts.
        with closing(smtplib.SMTP(host, port, timeout=patience_s)) as server:
            server.ehlo_or_helo_if_needed()  # a real server needs server.starttls() and server.login(…) here
            accepted(server.mail(mail["From"]))
            accepted(server.rcpt(mail["To"]))
            on_its_way = True
            accepted(server.data(mail.as_bytes(policy=SMTP)))
    except Refused as refusal:
        effect.did_nothing()
        if refusal.code >= 500:  # no such mailbox: a retry would not help
            raise GiveUp(str(refusal)) from None
        raise RetryLater(str(refusal)) from None
    except OSError as trouble:  # no connection, a lost connection, no answer in time; also smtplib's own errors
        if not on_its_way:
            effect.did_nothing()
        raise RetryLater(f"the mail server: {trouble or type(trouble).__name__}") from trouble
    return {"message_id": mail["Message-ID"]}


class Refused(Exception):
    def __init__(self, code: int, said: bytes) -> None:
        super().__init__(f"the mail server said {code}: {said.decode(errors='replace')}")
        self.code = code


def accepted(answer: tuple[int, bytes]) -> None:
    code, said = answer
    if code >= 400:
        raise Refused(code, said)
