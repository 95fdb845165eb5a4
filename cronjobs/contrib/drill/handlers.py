"""The handlers of ``cronjobs drill``, and an example of how to send an email that must not go out twice.

The drill copies this file into its folder. The last two handlers misbehave on purpose, for the drill only.
"""

from __future__ import annotations

import os
import signal
import smtplib
import threading
from contextlib import closing
from email.message import EmailMessage
from email.policy import SMTP  # this policy ends lines as SMTP requires
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cronjobs import Context, GiveUp, RetryLater, RetryPolicy, job

if TYPE_CHECKING:
    from cronjobs.engine.jobs.effects import Effect

HOST, PORT = "127.0.0.1", int(os.environ.get("DRILL_SMTP_PORT", "25"))
PATIENCE_S = 3.0  # wait this many seconds for one answer from the mail server
FOLDER = Path(__file__).parent


@job("drill.receipt", timeout="5s", retry=RetryPolicy(delays=["1s"], max_attempts=20))
def send_receipt(ctx: Context, receipt: int) -> dict[str, str]:
    """Send a receipt once, whatever crashes. If it is unknown whether the mail was sent, the job waits for a person."""
    with ctx.effect(("receipt", receipt), on_unknown="stop") as effect:
        if not effect.done:
            effect.result = hand_over(receipt_mail(receipt, effect.key), effect, min(PATIENCE_S, ctx.remaining_s))
    # The result is None if the server gave no answer, and a person then found the mail and settled the effect.
    return effect.result or {"answer": "settled by hand"}


def receipt_mail(receipt: int, key: str) -> EmailMessage:
    mail = EmailMessage()
    mail["From"] = "shop@drill.example"
    mail["To"] = f"customer-{receipt}@drill.example"
    mail["Subject"] = f"Your receipt {receipt}"
    # The key makes the Message-ID the same in every attempt. So a person can find the mail by it, and mail servers and
    # clients can detect a duplicate.
    mail["Message-ID"] = f"<{key.replace(':', '.')}@drill.example>"
    mail.set_content(f"Thank you. This is receipt {receipt}.")
    return mail


def hand_over(mail: EmailMessage, effect: Effect, patience_s: float) -> dict[str, str]:
    """Send *mail* and return the server's answer. An exception says whether to retry the job or give up.

    If the message was not sent, or the server refused it, nothing has happened. Then ``effect.did_nothing()`` lets the
    next attempt start over. If the message was sent but no answer came, the effect stays unknown, and ``on_unknown``
    decides what happens next.
    """
    on_its_way = False
    try:
        # closing() instead of quit(), whose error must not change the result once the server has accepted the mail.
        with closing(smtplib.SMTP(HOST, PORT, timeout=patience_s)) as server:
            server.ehlo_or_helo_if_needed()
            accepted(server.mail(mail["From"]))
            accepted(server.rcpt(mail["To"]))
            on_its_way = True
            answer = accepted(server.data(mail.as_bytes(policy=SMTP)))
    except smtplib.SMTPResponseException as refusal:
        effect.did_nothing()
        said = f"the mail server said {refusal.smtp_code}: {text(refusal.smtp_error)}"
        if 400 <= refusal.smtp_code < 500:
            raise RetryLater(said) from refusal
        raise GiveUp(said) from refusal
    except OSError as trouble:  # no connection, a lost connection, or no answer in time
        if not on_its_way:
            effect.did_nothing()
        raise RetryLater(f"the mail server: {trouble or type(trouble).__name__}") from trouble
    return {"answer": answer, "message_id": mail["Message-ID"]}


def accepted(answer: tuple[int, bytes]) -> str:
    code, said = answer
    if code >= 400:
        raise smtplib.SMTPResponseException(code, said)
    return text(said)


def text(said: bytes | str) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said


# --- handlers to be stopped -------------------------------------------------------------------------------------------


@job("drill.hang", timeout="2s", isolation="process", retry=RetryPolicy(max_attempts=1))
def hang() -> NoReturn:
    """Never return, and ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    work_for_ever("hang")


@job("drill.endless", timeout="10m")
def endless() -> NoReturn:
    """Run longer than any tick, in a process of its own. Never check whether to stop."""
    work_for_ever("endless")


def work_for_ever(name: str) -> NoReturn:
    """Write the pid once, then a heartbeat every 50 ms. The last heartbeat shows when the work really ended."""
    (FOLDER / f"{name}.pid").write_text(f"{os.getpid()}\n")
    with (FOLDER / f"{name}.alive").open("w") as alive:
        while True:
            alive.write(".")
            alive.flush()
            threading.Event().wait(0.05)
