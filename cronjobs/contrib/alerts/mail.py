"""Alerts by SMTP."""

from __future__ import annotations

import smtplib
import ssl
from contextlib import suppress
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from typing import Final

from cronjobs.contrib.alerts.texts import Message, body, subject
from cronjobs.engine.config.settings import MailChannel

PORTS: Final = {"starttls": 587, "tls": 465, "none": 25}


def send(channel: MailChannel, message: Message, timeout_s: float) -> None:
    """Hand the message to the server for all recipients. Raises OSError, which includes smtplib's errors."""
    context = ssl.create_default_context()
    port = channel.port or PORTS[channel.tls]
    smtp: smtplib.SMTP
    if channel.tls == "tls":
        smtp = smtplib.SMTP_SSL(channel.host, port, timeout=timeout_s, context=context)
    else:
        smtp = smtplib.SMTP(channel.host, port, timeout=timeout_s)
    try:
        if channel.tls == "starttls":
            smtp.starttls(context=context)
        if channel.user is not None and channel.password is not None:
            smtp.login(channel.user, channel.password)
        refused = smtp.send_message(as_mail(channel, message), channel.sender, channel.to)
        # Fail even if only one recipient was refused: the retry may reach that recipient, although the others then get
        # a duplicate.
        if refused:
            raise smtplib.SMTPRecipientsRefused(refused)
        with suppress(OSError):  # an error is harmless now, because the server has accepted the mail
            smtp.quit()
    finally:
        smtp.close()


def as_mail(channel: MailChannel, message: Message) -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"] = subject(message)
    mail["From"] = channel.sender
    mail["To"] = ", ".join(channel.to)
    mail["Date"] = format_datetime(message.sent_at)
    mail["Message-ID"] = make_msgid(domain=channel.sender.rpartition("@")[2])
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no automatic replies
    mail.set_content(body(message))
    return mail
