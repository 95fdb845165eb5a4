"""Handlers of the drill, and an example: how to send an email that must not go out twice.

The drill copies this file into its folder. Only the last two handlers, which do what a handler should not, are for the
drill alone.
"""

from __future__ import annotations

import os
import signal
import smtplib
import threading
from contextlib import closing
from email.message import EmailMessage
from email.policy import SMTP  # ends lines as SMTP wants them
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cronjobs import Context, GiveUp, RetryLater, RetryPolicy, job

if TYPE_CHECKING:
    from cronjobs.jobs.effects import Effect

HOST, PORT = "127.0.0.1", int(os.environ.get("DRILL_SMTP_PORT", "25"))
PATIENCE_S = 3.0  # with one answer of the mail server
FOLDER = Path(__file__).parent


@job("drill.receipt", timeout="5s", retry=RetryPolicy(delays=["1s"], max_attempts=20))
def send_receipt(ctx: Context, receipt: int) -> dict[str, str]:
    """Send a receipt once, whatever dies: two receipts are worse than one that waits until somebody has looked."""
    with ctx.effect(("receipt", receipt), on_unknown="stop") as effect:
        if not effect.done:
            effect.result = hand_over(receipt_mail(receipt, effect.key), effect, min(PATIENCE_S, ctx.remaining_s))
    # None: done on somebody's word, who looked into the mailbox after an attempt that never heard the answer.
    return effect.result or {"answer": "settled by hand"}


def receipt_mail(receipt: int, key: str) -> EmailMessage:
    mail = EmailMessage()
    mail["From"] = "shop@drill.example"
    mail["To"] = f"customer-{receipt}@drill.example"
    mail["Subject"] = f"Your receipt {receipt}"
    # From the key, so the same in every attempt: by it a mail is found in the mailbox, and a mail server or a mail
    # program may know the second copy for what it is.
    mail["Message-ID"] = f"<{key.replace(':', '.')}@drill.example>"
    mail.set_content(f"Thank you. This is receipt {receipt}.")
    return mail


def hand_over(mail: EmailMessage, effect: Effect, patience_s: float) -> dict[str, str]:
    """Give *mail* to the server, and return its answer; raise what is to be done about any other end.

    Until the message itself is on its way nothing can have happened, and an answer that refuses it says the same: then
    ``effect.did_nothing()``, and the next attempt begins anew. Once it is on its way and the answer does not come,
    nobody here knows: then the effect stays unknown, and ``on_unknown`` decides.
    """
    on_its_way = False
    try:
        # closing(), not quit(): the answer to that comes after the one that matters, and could only spoil it.
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
    except OSError as trouble:  # no connection, a lost one, no answer in time
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


# --- what has to be stopped -------------------------------------------------------------------------------------------


@job("drill.hang", timeout="2s", isolation="process", retry=RetryPolicy(max_attempts=1))
def hang() -> NoReturn:
    """Never returns, and takes no notice of SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    work_for_ever("hang")


@job("drill.endless", timeout="10m")
def endless() -> NoReturn:
    """Longer than any tick, so it has a process of its own; never asks whether it is still wanted."""
    work_for_ever("endless")


def work_for_ever(name: str) -> NoReturn:
    """Leave a process id, and a sign of life every 50 ms, by which the drill sees when the work really ended."""
    (FOLDER / f"{name}.pid").write_text(f"{os.getpid()}\n")
    with (FOLDER / f"{name}.alive").open("w") as alive:
        while True:
            alive.write(".")
            alive.flush()
            threading.Event().wait(0.05)
