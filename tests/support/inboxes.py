"""Servers in this process that receive alerts and pings: an SMTP server and a web server.

They can be down, slow or broken.
"""

from __future__ import annotations

import email
import email.policy
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

import pytest

Server = TypeVar("Server", bound=socketserver.BaseServer)


class Web(ThreadingHTTPServer):
    """``got`` has the (path, body) of each POST.

    ``status`` is the answer. With ``hold``, it answers only when ``go_on`` is set.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.got: list[tuple[str, bytes]] = []
        self.status = 200
        self.location: str | None = None
        self.hold = False
        self.go_on = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def messages(self) -> list[Any]:
        return [json.loads(body) for _, body in self.got]

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.got]


class _Post(BaseHTTPRequestHandler):
    server: Web

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.got.append((self.path, body))
        if self.server.hold:
            self.server.go_on.wait(30)
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815 its name

    def log_message(self, *_: Any) -> None:
        pass


class Smtp(socketserver.ThreadingTCPServer):
    """``mails`` has the accepted mails.

    ``manner`` is "up", "refuses" (each recipient), "silent", or "wrong" (no SMTP at all).
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.mails: list[EmailMessage] = []
        self.manner = "up"
        self.go_on = threading.Event()

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Session(socketserver.StreamRequestHandler):
    server: Smtp

    def handle(self) -> None:
        if self.server.manner == "silent":
            self.server.go_on.wait(30)
            return
        if self.server.manner == "wrong":
            self.wfile.write(b"HTTP/1.0 400 what is this\r\n\r\n")
            return
        self._say("220 test")
        for line in self.rfile:
            word = line.split()[0].upper() if line.split() else b""
            if word in (b"EHLO", b"HELO"):
                self._say("250 test")
            elif word == b"RCPT" and self.server.manner == "refuses":
                self._say("550 nobody of this name here")
            elif word == b"DATA":
                self._say("354 go on")
                self._take()
                self._say("250 taken")
            elif word == b"QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 fine")

    def _take(self) -> None:
        lines = []
        for line in self.rfile:
            if line == b".\r\n":
                break
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        mail = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
        assert isinstance(mail, EmailMessage)
        self.server.mails.append(mail)

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@contextmanager
def served(server: Server) -> Iterator[Server]:
    """Let *server* answer in a thread until the block ends."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        if isinstance(server, Web | Smtp):
            server.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


def closed_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def web() -> Iterator[Web]:
    with served(Web()) as server:
        yield server


@pytest.fixture
def smtp() -> Iterator[Smtp]:
    with served(Smtp()) as server:
        yield server
