"""An email that must not go out twice.

The job writes the effect's row before it contacts the mail server. When the server has accepted the mail, the row gets
the message id. The file is not called ``email.py``, because that name would hide the standard library's module.
"""

from __future__ import annotations

import os
import smtplib
from contextlib import closing
from email.message import EmailMessage
from email.policy import SMTP  # this policy ends lines as SMTP requires

from cronjobs import Context, Effect, GiveUp, RetryLater, RetryPolicy, job

RETRY = RetryPolicy(delays=["15s", "1m", "5m", "30m", "2h"], max_attempts=20)
PATIENCE_S = 10.0  # wait this many seconds for each answer of the mail server


@job("invoices.email", timeout="20s", retry=RETRY)
def email_invoice(ctx: Context, invoice_id: int, to: str) -> dict[str, str]:
    # Use "stop" here. SMTP has no idempotency key, so if an answer was lost, only a person can find out whether the
    # mail was sent. Use "skip" for mail that nobody misses. Use "again" if a second copy does no harm.
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
    # Make the Message-ID from the key, so that it is the same in every attempt. A person can find the mail by it in the
    # mail server's log, and a mail program can recognise a second copy.
    mail["Message-ID"] = f"<{key.replace(':', '.')}@shop.example>"
    mail.set_content(f"Here is your invoice {invoice_id}.\n")
    return mail


def send(mail: EmailMessage, effect: Effect, patience_s: float) -> dict[str, str]:
    """Send *mail*. Raise RetryLater or GiveUp if the server does not accept it.

    If the message was not sent yet, or if the server refuses it, nothing has happened. Then this calls
    ``did_nothing()``, and the next attempt starts over. If the message was sent but no answer came, the outcome is
    unknown.
    """
    on_its_way = False
    try:
        host, port = os.environ.get("SMTP_HOST", "localhost"), int(os.environ.get("SMTP_PORT", "25"))
        # Use closing(), not quit(): an error in quit() would hide the answer that matters.
        with closing(smtplib.SMTP(host, port, timeout=patience_s)) as server:
            server.ehlo_or_helo_if_needed()  # a real server needs server.starttls() and server.login(…) here
            accepted(server.mail(mail["From"]))
            accepted(server.rcpt(mail["To"]))
            on_its_way = True
            accepted(server.data(mail.as_bytes(policy=SMTP)))
    except smtplib.SMTPResponseException as refusal:  # to a command, or to the whole message
        effect.did_nothing()
        said = f"the mail server said {refusal.smtp_code}: {text(refusal.smtp_error)}"
        if refusal.smtp_code >= 500:  # for example, there is no such mailbox, so a retry would not help
            raise GiveUp(said) from None
        raise RetryLater(said) from None
    except OSError as trouble:  # no connection, a lost connection, no answer in time, or another error of smtplib
        if not on_its_way:
            effect.did_nothing()
        raise RetryLater(f"the mail server: {trouble or type(trouble).__name__}") from trouble
    return {"message_id": mail["Message-ID"]}


def accepted(answer: tuple[int, bytes]) -> None:
    code, said = answer
    if code >= 400:
        raise smtplib.SMTPResponseException(code, said)


def text(said: bytes | str) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said
