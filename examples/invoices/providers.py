"""A mail server and a receiver of events for trying the example, both real and on this machine.

    python providers.py

They write each mail to mails.jsonl and each event to events.jsonl. While a file ``mail-is-down`` or ``webhook-is-down``
exists beside this one, the mail server or the receiver is down.
"""

from __future__ import annotations

import asyncio
import email
import itertools
import json
import logging
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller

HERE = Path(__file__).resolve().parent
MAILS, EVENTS = HERE / "mails.jsonl", HERE / "events.jsonl"
MAIL_IS_DOWN, WEBHOOK_IS_DOWN = HERE / "mail-is-down", HERE / "webhook-is-down"
# While the mail server is down, one in this many connections gets no answer at all.
SILENT = 200


def note(file: Path, **facts: Any) -> None:
    line = json.dumps(facts) + "\n"
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


class MailServer:
    """Accepts every mail, even a repeated one, as mail servers do. Addresses that begin with ``nobody`` do not exist.

    While the server is down, it refuses in several ways, one after another, or does not answer.
    """

    def __init__(self) -> None:
        self.count = itertools.count(1)

    async def handle_EHLO(  # noqa: N802
        self, _server: Any, session: Any, _envelope: Any, name: str, answers: list[str]
    ) -> list[str]:
        session.host_name, session.away = name, None
        if not MAIL_IS_DOWN.exists():
            return answers
        number = next(self.count)
        if number % SILENT == 0:
            await asyncio.sleep(3600)  # the sender gives up long before that
        session.away = number % 3
        return ["421 4.3.2 shutting down for maintenance"] if session.away == 0 else answers

    async def handle_HELO(self, _server: Any, session: Any, _envelope: Any, name: str) -> str:  # noqa: N802
        session.host_name, session.away = name, None
        return "421 4.3.2 shutting down for maintenance" if MAIL_IS_DOWN.exists() else "250 here"

    async def handle_RCPT(  # noqa: N802
        self, _server: Any, session: Any, envelope: Any, address: str, _options: list[str]
    ) -> str:
        if session.away == 1:
            return "450 4.2.1 try again later"
        if address.startswith("nobody"):
            return f"550 5.1.1 {address} is not known here"
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 OK"

    async def handle_DATA(self, _server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        if session.away == 2:
            return "451 4.3.0 no room for it just now"
        mail = email.message_from_bytes(envelope.original_content)
        attached = [part.get_filename() for part in mail.walk() if part.get_filename()]
        note(MAILS, message_id=str(mail["Message-ID"]), to=envelope.rcpt_tos[0], attached=attached)
        return "250 2.0.0 taken"


class Receiver(BaseHTTPRequestHandler):
    """Accepts each event once, by its id. It answers 200 to a repeated event too."""

    protocol_version = "HTTP/1.1"
    seen: set[str] = set()  # noqa: RUF012
    lock = threading.Lock()

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:
            return  # the sender was killed while it was sending; it will send the event again
        event_id = self.headers.get("X-Event-Id")
        if WEBHOOK_IS_DOWN.exists():
            self.answer(503, "come back later", {"Retry-After": "90"})
        elif event_id is None:
            self.answer(400, "an event needs an X-Event-Id")
        else:
            with self.lock:
                new = event_id not in self.seen
                self.seen.add(event_id)
                note(EVENTS, id=event_id, new=new, body=json.loads(body))
            self.answer(200, "taken" if new else "had it already")

    def answer(self, code: int, said: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(said)), "Connection": "close", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(said.encode())

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 100

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # ignore it if the sender was killed
            super().handle_error(request, client_address)


class OnAnyPort(Controller):
    """Listens on any free port if the port is 0. Afterwards ``port`` is the number of that port."""

    def _trigger_server(self) -> None:
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


def main() -> None:
    logging.getLogger("mail.log").setLevel(logging.CRITICAL + 1)  # do not log senders that vanish
    if EVENTS.exists():
        Receiver.seen.update(json.loads(line)["id"] for line in EVENTS.read_text().splitlines())
    mail = OnAnyPort(MailServer(), hostname="127.0.0.1", port=int(os.environ.get("SMTP_PORT", "8025")))
    mail.start()
    receiver = Server(("127.0.0.1", int(os.environ.get("WEBHOOK_PORT", "8026"))), Receiver)
    print(f"mail server on port {mail.port}, events on port {receiver.server_address[1]}; Ctrl-C ends both", flush=True)
    try:
        receiver.serve_forever()
    except KeyboardInterrupt:
        mail.stop()


if __name__ == "__main__":
    main()
