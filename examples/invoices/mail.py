"""Mail the invoice. Decide which failures are retried, which are final, and which leave the outcome unknown."""

from __future__ import annotations

import os
import smtplib
from contextlib import closing
from email.message import EmailMessage
from email.policy import SMTP
from typing import TYPE_CHECKING

import pdf
from shop import Order

from cronjobs import Context, GiveUp, RetryLater

if TYPE_CHECKING:
    from cronjobs import Effect

HOST, PORT = os.environ.get("SMTP_HOST", "127.0.0.1"), int(os.environ.get("SMTP_PORT", "8025"))
PATIENCE_S = float(os.environ.get("SMTP_PATIENCE_S", "10"))  # wait this long for each answer before the message
SENDER = "shop@shop.example"


def message_id(key: str) -> str:
    """Return the Message-ID.

    It is the same in every attempt, so a person can find the mail in the mail server's log.
    """
    return f"<{key.replace(':', '.')}@shop.example>"


def letter(order: Order, invoice: bytes, key: str) -> bytes:
    mail = EmailMessage()
    mail["From"] = SENDER
    mail["To"] = order.email
    mail["Subject"] = f"Your invoice {order.number}"
    mail["Message-ID"] = message_id(key)
    mail.set_content("Thank you. Your invoice is attached.\n")
    mail.add_attachment(invoice, maintype="application", subtype="pdf", filename=f"{order.number}.pdf")
    return mail.as_bytes(policy=SMTP)  # the policy ends lines as SMTP requires


def send(ctx: Context, order: Order) -> dict[str, str]:
    """Mail the invoice of *order* once. Return the server's answer, or raise RetryLater or GiveUp.

    Before the message itself is sent, no mail can have gone out. So only that last step is the effect.
    """
    key = f"invoice-mail:{order.id}"
    if not order.email.isascii() or not order.email.isprintable() or order.email.count("@") != 1:
        raise GiveUp(f"{order.email!r} is not an address")
    invoice = (pdf.FOLDER / f"{order.number}.pdf").read_bytes()
    try:
        # Use closing(), not quit(): an error in quit() would hide the answer that matters.
        with closing(smtplib.SMTP(HOST, PORT, timeout=min(PATIENCE_S, max(0.1, ctx.remaining_s)))) as server:
            # A real server needs server.starttls() and server.login(…) here.
            server.ehlo_or_helo_if_needed()
            accepted(server.mail(SENDER))
            accepted(server.rcpt(order.email))
            content = letter(order, invoice, key)
            server.sock.settimeout(max(0.1, ctx.remaining_s))  # without this answer, a person has to look
            with ctx.effect(key, on_unknown="stop") as effect:
                if not effect.done:
                    effect.result = {"answer": hand_over(server, content, effect), "message_id": message_id(key)}
            return effect.result or {"answer": "settled by hand"}
    except smtplib.SMTPResponseException as refusal:
        said = f"the mail server said {refusal.smtp_code}: {text(refusal.smtp_error)}"
        if 400 <= refusal.smtp_code < 500:
            raise RetryLater(said) from refusal
        raise GiveUp(f"{order.email}: {said}") from refusal
    except OSError as trouble:  # there is no connection, it was lost, or no answer came in time
        raise RetryLater(f"the mail server: {trouble or type(trouble).__name__}") from trouble


def hand_over(server: smtplib.SMTP, content: bytes, effect: Effect) -> str:
    """Send the message. If the server refuses it, no mail went out. If no answer comes, the outcome is unknown."""
    try:
        return accepted(server.data(content))
    except smtplib.SMTPResponseException:
        effect.did_nothing()
        raise


def accepted(answer: tuple[int, bytes]) -> str:
    code, said = answer
    if code >= 400:
        raise smtplib.SMTPResponseException(code, said)
    return text(said)


def text(said: bytes | str) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said
