"""What the pages' server adds to waitress, and what it leaves to waitress, with real connections in this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from cronjobs.contrib.web import serve
from cronjobs.contrib.web.serve import Server

HALF = b"GET / HTTP/1.1\r\nHost: here\r\n"
WHOLE = b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
PATIENCE_S = 20.0  # far more than anything here takes


class App:
    """Answers with what it was asked; waits before that while it is ``held``."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.reached = threading.Semaphore(0)
        self.size = 3

    def __call__(self, environ: dict[str, Any], start: Any) -> list[bytes]:
        self.asked.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} {environ['wsgi.input'].read().decode()}")
        self.reached.release()
        assert self.go_on.wait(PATIENCE_S)
        if environ["PATH_INFO"] == "/broken":
            raise LookupError("secret-free")
        start("200 OK", [("Content-Length", str(self.size))])
        return [b"x" * self.size]


@pytest.fixture
def app() -> App:
    return App()


@contextmanager
def running(app: App) -> Iterator[Server]:
    server = Server("127.0.0.1", 0, app)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def connected(server: Server, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
    connection.sendall(sent)
    return connection


def all_of(connection: socket.socket) -> bytes:
    """What is read until the other side closes."""
    found = b""
    try:
        while piece := connection.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


def asked(server: Server, sent: bytes) -> bytes:
    with closing(connected(server, sent)) as connection:
        return all_of(connection)


def test_a_request_that_trickles_in_is_closed_at_its_deadline(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that sends a byte now and then, which waitress itself takes for a busy one."""
    monkeypatch.setattr(serve, "TIMEOUT_S", 0.5)
    with running(app) as server, ExitStack() as stack:
        open_ones = [
            stack.enter_context(closing(connected(server, sent)))
            for sent in (b"", HALF, b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\na")
        ]
        for connection in open_ones:
            connection.settimeout(0.05)
        left = set(open_ones)
        for _ in range(int(PATIENCE_S / 0.05)):
            for connection in [*left]:
                try:
                    connection.sendall(b"A")
                    if connection.recv(1000) == b"":
                        left.discard(connection)
                except TimeoutError:
                    pass
                except OSError:
                    left.discard(connection)
            if not left:
                break
        assert left == set()
        assert app.asked == []
        assert asked(server, WHOLE).startswith(b"HTTP/1.1 200 OK")


def test_a_connection_that_is_kept_has_a_deadline_for_its_next_request(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "TIMEOUT_S", 0.5)
    with running(app) as server, closing(connected(server, WHOLE.replace(b"close", b"keep-alive"))) as connection:
        assert all_of(connection).endswith(b"xxx")  # and then it ends


def test_a_request_that_is_worked_on_has_no_deadline(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "TIMEOUT_S", 0.0)
    app.go_on.clear()
    with running(app) as server, closing(connected(server, WHOLE)) as connection:
        if not app.reached.acquire(timeout=PATIENCE_S):
            pytest.fail("the request was not even begun")
        server.maintenance(0.0)
        [channel] = server.active_channels.values()
        assert not channel.will_close
        app.go_on.set()
        monkeypatch.setattr(serve, "TIMEOUT_S", PATIENCE_S)
        assert all_of(connection).startswith(b"HTTP/1.1 200 OK")


def test_of_too_many_that_wait_the_oldest_is_closed(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MOST_WAITING", 5)
    with running(app) as server, ExitStack() as stack:
        waiting = [stack.enter_context(closing(connected(server, HALF))) for _ in range(12)]
        assert asked(server, WHOLE).startswith(b"HTTP/1.1 200 OK")
        assert [all_of(connection) for connection in waiting[:7]] == [b""] * 7
        for connection in waiting[8:]:  # these are still there
            connection.sendall(b"Connection: close\r\n\r\n")
            assert all_of(connection).startswith(b"HTTP/1.1 200 OK")


def test_senders_who_wait_keep_no_thread(app: App) -> None:
    """Twice as many bodies as threads are on their way, and a page is served."""
    unsent = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\n"
    with running(app) as server, ExitStack() as stack:
        for _ in range(2 * serve.THREADS):
            stack.enter_context(closing(connected(server, unsent)))
        assert asked(server, WHOLE).startswith(b"HTTP/1.1 200 OK")
        assert app.asked == ["GET / "]


@pytest.mark.parametrize("length", [64 * 1024 + 1, 600_000_000, 10**30])
def test_a_body_longer_than_any_form_is_refused_and_not_read(app: App, length: int) -> None:
    sent = f"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: {length}\r\n\r\n".encode()
    with running(app) as server:
        assert asked(server, sent).startswith(b"HTTP/1.1 413 ")
    assert app.asked == []


def test_no_body_comes_in_chunks(app: App) -> None:
    sent = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000
    with running(app) as server:
        assert asked(server, sent).startswith(b"HTTP/1.1 501 ")
    assert app.asked == []


def test_a_head_of_any_length_is_not_read(app: App) -> None:
    with running(app) as server:
        assert asked(server, HALF + b"X: " + b"a" * 40_000).startswith(b"HTTP/1.0 431 ")
    assert app.asked == []


def test_a_request_in_pieces_is_read_whole_and_served_by_us(app: App) -> None:
    pieces = (b"POST /a HTT", b"P/1.1\r\nHost: here\r\nConnection: close\r\nContent-", b"Length: 3\r\n\r\na", b"=b")
    with running(app) as server, closing(connected(server)) as connection:
        for piece in pieces:
            connection.sendall(piece)
        answer = all_of(connection)
    assert app.asked == ["POST /a a=b"]
    assert b"\r\nServer: cronjobs\r\n" in answer
    assert b"waitress" not in answer


def test_it_stops_at_once_and_lets_what_it_answers_end(app: App) -> None:
    app.go_on.clear()
    app.size = 3_000_000
    with running(app) as server, closing(connected(server, WHOLE)) as connection, closing(connected(server, HALF)):
        if not app.reached.acquire(timeout=PATIENCE_S):
            pytest.fail("the request was not even begun")
        server.stop()
        app.go_on.set()
        assert len(all_of(connection)) > app.size


def test_an_unexpected_error_is_one_line_without_the_address(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    with running(app) as server:
        answer = asked(server, WHOLE.replace(b"GET / ", b"GET /broken?once=canary "))
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert b"secret-free" not in answer
    assert capsys.readouterr().err == "cronjobs web: LookupError: secret-free\n"


def test_many_at_once_are_answered_without_a_word(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    app.go_on.clear()
    with running(app) as server, ExitStack() as stack:
        many = [stack.enter_context(closing(connected(server, WHOLE))) for _ in range(3 * serve.THREADS)]
        for _ in range(serve.THREADS):
            assert app.reached.acquire(timeout=PATIENCE_S)
        app.go_on.set()
        assert all(all_of(connection).startswith(b"HTTP/1.1 200 OK") for connection in many)
    assert capsys.readouterr().err == ""
