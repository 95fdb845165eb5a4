"""Sending one mail from a job: which failures are worth another try, and which are not."""

from __future__ import annotations

import mailbox
import os
import smtplib
from email.message import EmailMessage

from app import HERE

from cronjobs import Context, GiveUp

OUTBOX = HERE / "outbox"  # a Maildir, for when there is no mail server


def send(ctx: Context, to: str, subject: str, text: str) -> None:
    """Send through SMTP_HOST; without one, put the mail into the folder outbox/."""
    message = EmailMessage()
    message["From"] = "The shop <shop@shop.example>"
    message["To"] = to
    message["Subject"] = subject
    # The same in every attempt, so a mail that did go out twice can be told from two mails.
    message["Message-ID"] = f"<{ctx.idempotency_key.replace(':', '.')}@shop.example>"
    message.set_content(text)

    ctx.check()  # cancelled, shutting down, out of time: now is the last moment to leave it
    host = os.environ.get("SMTP_HOST")
    if host is None:
        mailbox.Maildir(OUTBOX).add(message)
        return
    try:
        # A real server wants server.starttls() and server.login(…) before the message.
        with smtplib.SMTP(host, int(os.environ.get("SMTP_PORT", "25")), timeout=ctx.remaining_s) as server:
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as refused:
        [(code, said)] = refused.recipients.values()
        if code >= 500:  # no such mailbox: it will be the same in an hour
            raise GiveUp(f"{to} was refused: {code} {said.decode(errors='replace')}") from None
        raise
    # Whatever else is raised (4xx, no connection, a time-out) is tried again by the job type's retry policy.
