"""Real servers on this machine for the side effects of handlers.

They count what arrives, and answer as a test wants.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from typing import Any

from aiosmtpd.controller import Controller

Answer = tuple[int, dict[str, str], dict[str, Any]]  # the status, headers and body


class Gate:
    """A gate. While it is shut, a server does what is asked but holds back the answer."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.waiting = 0

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        if not self._open.is_set():
            self.waiting += 1
            self._open.wait(60)

    async def passed(self) -> None:
        if not self._open.is_set():
            self.waiting += 1
            while not self._open.is_set():
                await asyncio.sleep(0.005)


# --- HTTP -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass
class WebServer:
    """Calls *act* for each request. If ``answers`` has entries, the next one is the answer instead. None hangs up."""

    act: Callable[[Call], Answer] = lambda _: (204, {}, {})
    calls: list[Call] = field(default_factory=list)
    answers: list[Answer | None] = field(default_factory=list)
    gate: Gate = field(default_factory=Gate)
    url: str = ""

    def take(self, call: Call) -> Answer | None:
        self.calls.append(call)
        if self.answers:
            return self.answers.pop(0)
        answer = self.act(call)
        self.gate.pass_through()
        return answer


@contextmanager
def web_server(act: Callable[[Call], Answer] = WebServer.act) -> Iterator[WebServer]:
    web = WebServer(act)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._take(Call(self.path, dict(self.headers), json.loads(body)))

        def do_GET(self) -> None:
            self._take(Call(self.path, dict(self.headers), None))

        def _take(self, call: Call) -> None:
            answer = web.take(call)
            if answer is not None:
                self._say(*answer)

        def _say(self, status: int, headers: dict[str, str], body: dict[str, Any]) -> None:
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode() if status != 204 else b"")
            except ConnectionError:  # the client was killed
                pass

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    web.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
    thread.start()
    try:
        yield web
    finally:
        web.gate.open()
        server.shutdown()
        server.server_close()
        thread.join()


class Provider:
    """A payment provider.

    An idempotency key stands for one charge, and only for the request with which it first came.
    """

    def __init__(self) -> None:
        self.charges: list[dict[str, Any]] = []
        self._by_key: dict[str, dict[str, Any]] = {}

    def __call__(self, call: Call) -> Answer:
        key = call.headers["Idempotency-Key"]
        known = self._by_key.get(key)
        if known is None:
            known = call.body | {"id": f"ch_{len(self.charges) + 1}"}
            self.charges.append(known)
            self._by_key[key] = known
        if known != call.body | {"id": known["id"]}:
            return 422, {}, {"error": "this key belongs to another request"}
        return 201, {}, known

    def forget(self) -> None:
        """Forget all keys, as the provider does after a day."""
        self._by_key.clear()


# --- mail -------------------------------------------------------------------------------------------------------------


@dataclass
class MailServer:
    """``mailbox`` has the Message-ID of each accepted mail.

    ``answers`` replace the normal answers to RCPT or DATA. The answer "" hangs up. To DATA, it hangs up after the mail
    has been accepted.
    """

    port: int = 0
    mailbox: list[str] = field(default_factory=list)
    answers: dict[str, list[str]] = field(default_factory=dict)
    gate: Gate = field(default_factory=Gate)

    def _instead(self, command: str, server: Any) -> str | None:
        waiting = self.answers.get(command)
        if not waiting:
            return None
        answer = waiting.pop(0)
        if answer == "":
            server.transport.abort()
            return "421 gone"
        return answer

    async def handle_RCPT(self, server: Any, _: Any, envelope: Any, address: str, __: Any) -> str:  # noqa: N802
        answer = self._instead("RCPT", server)
        if answer is None:
            envelope.rcpt_tos.append(address)
        return answer or "250 OK"

    async def handle_DATA(self, server: Any, _: Any, envelope: Any) -> str:  # noqa: N802
        if not self.answers.get("DATA") or self.answers["DATA"][0] == "":
            self.mailbox.append(str(message_from_bytes(envelope.original_content)["Message-ID"]))
        answer = self._instead("DATA", server)
        await self.gate.passed()
        return answer or "250 taken"


@contextmanager
def mail_server() -> Iterator[MailServer]:
    mail = MailServer()

    class OnFreePort(Controller):
        def _trigger_server(self) -> None:
            server: Any = self.server
            mail.port = self.port = server.sockets[0].getsockname()[1]  # the port was chosen by the system
            super()._trigger_server()  # type: ignore[no-untyped-call]

    # Do not log clients that vanish, because the tests make them vanish.
    logging.getLogger("mail.log").setLevel(logging.CRITICAL + 1)
    controller = OnFreePort(mail, hostname="127.0.0.1", port=0)
    controller.start()
    try:
        yield mail
    finally:
        mail.gate.open()
        controller.stop()
