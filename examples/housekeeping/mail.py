"""Send one mail from a job, and decide which failures are retried."""

from __future__ import annotations

import mailbox
import os
import smtplib
from email.message import EmailMessage

from app import HERE

from cronjobs import Context, GiveUp

OUTBOX = HERE / "outbox"  # a Maildir that gets the mails if there is no mail server


def send(ctx: Context, to: str, subject: str, text: str) -> None:
    """Send the mail through SMTP_HOST. If SMTP_HOST is not set, put the mail into the folder outbox/."""
    message = EmailMessage()
    message["From"] = "The shop <shop@shop.example>"
    message["To"] = to
    message["Subject"] = subject
    # The Message-ID is the same in every attempt, so that mail programs recognise a mail that was sent twice.
    message["Message-ID"] = f"<{ctx.idempotency_key.replace(':', '.')}@shop.example>"
    message.set_content(text)

    ctx.check()  # if the job was cancelled or its time is up, do not start to send
    host = os.environ.get("SMTP_HOST")
    if host is None:
        mailbox.Maildir(OUTBOX).add(message)
        return
    try:
        # A real server needs server.starttls() and server.login(…) before the message.
        with smtplib.SMTP(host, int(os.environ.get("SMTP_PORT", "25")), timeout=ctx.remaining_s) as server:
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as refused:
        [(code, said)] = refused.recipients.values()
        if code >= 500:  # for example, there is no such mailbox, so a retry would not help
            raise GiveUp(f"{to} was refused: {code} {said.decode(errors='replace')}") from None
        raise
    # Any other error (4xx, no connection, a timeout) reaches cronjobs, which applies the job type's retry policy.
