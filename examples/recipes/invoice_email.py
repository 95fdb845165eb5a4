"""An email that must not go out twice.

The effect's row is written before the mail server hears anything, and the message id is kept in it once the server has
taken the mail. Not ``email.py``: a module of that name would hide the standard library's.
"""

from __future__ import annotations

import os
import smtplib
from contextlib import closing
from email.message import EmailMessage
from email.policy import SMTP  # ends lines as SMTP wants them

from cronjobs import Context, Effect, GiveUp, RetryLater, RetryPolicy, job

RETRY = RetryPolicy(delays=["15s", "1m", "5m", "30m", "2h"], max_attempts=20)
PATIENCE_S = 10.0  # with one answer of the mail server


@job("invoices.email", timeout="20s", retry=RETRY)
def email_invoice(ctx: Context, invoice_id: int, to: str) -> dict[str, str]:
    # SMTP has no idempotency key, so nothing but a person can settle "sent, and the answer was lost": "stop". For mail
    # that nobody misses say "skip"; where a second copy does no harm, "again".
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
    # From the key, so the same in every attempt: by it the mail is found in the mail server's log, and a mail program
    # may know a second copy for what it is.
    mail["Message-ID"] = f"<{key.replace(':', '.')}@shop.example>"
    mail.set_content(f"Here is your invoice {invoice_id}.\n")
    return mail


def send(mail: EmailMessage, effect: Effect, patience_s: float) -> dict[str, str]:
    """Hand *mail* over; raise what is to be done about any other end.

    Nothing has happened before the message is on its way, nor if the server refuses it: ``did_nothing()``, and the next
    attempt begins anew. Once it is on its way and no answer comes, nobody here knows.
    """
    on_its_way = False
    try:
        host, port = os.environ.get("SMTP_HOST", "localhost"), int(os.environ.get("SMTP_PORT", "25"))
        # closing(), not quit(): its answer comes after the one that counts, and could only spoil it.
        with closing(smtplib.SMTP(host, port, timeout=patience_s)) as server:
            server.ehlo_or_helo_if_needed()  # a real one wants server.starttls() and server.login(…) here
            accepted(server.mail(mail["From"]))
            accepted(server.rcpt(mail["To"]))
            on_its_way = True
            accepted(server.data(mail.as_bytes(policy=SMTP)))
    except Refused as refusal:
        effect.did_nothing()
        if refusal.code >= 500:  # no such mailbox: it will be the same in an hour
            raise GiveUp(str(refusal)) from None
        raise RetryLater(str(refusal)) from None
    except OSError as trouble:  # no connection, a lost one, no answer in time; also what smtplib itself raises
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
