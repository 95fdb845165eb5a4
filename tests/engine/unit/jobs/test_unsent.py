"""Which errors show that a single call did nothing, with clients on real sockets, and how its effect then ends."""

from __future__ import annotations

import asyncio
import errno
import http.client
import smtplib
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest
import requests
import urllib3
from requests.adapters import HTTPAdapter

from cronjobs.engine.jobs.unsent import did_nothing
from cronjobs.testing import UNKNOWN, context


@pytest.fixture
def closed_port() -> int:
    """Nobody listens there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def open_port() -> Iterator[int]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


@pytest.fixture
def full_port() -> Iterator[int]:
    """A listener with a full backlog, so the kernel answers no further connection."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield int(server.getsockname()[1])


@pytest.fixture
def once() -> Iterator[int]:
    """Takes one connection, answers nothing, and refuses all others."""
    server, over = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def serve() -> None:
        taken, _ = server.accept()
        server.close()
        over.wait(60)
        taken.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield int(server.getsockname()[1])
    over.set()
    thread.join(60)


def error_of(work: Callable[[], Any]) -> Exception:
    try:
        work()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def shows_it(work: Callable[[], Any]) -> bool:
    return did_nothing(error_of(work))


class MailError(Exception):
    pass


def raising_from(work: Callable[[], Any]) -> None:
    try:
        work()
    except OSError as error:
        raise MailError("no mail server") from error


def raising_during(work: Callable[[], Any]) -> None:
    try:
        work()
    except OSError:
        raise MailError("no mail server")  # noqa: B904


def smtp(port: int, host: str = "127.0.0.1", timeout: float = 5) -> None:
    smtplib.SMTP(host, port, timeout=timeout)


async def by_asyncio(url: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.post(url, content="x")


CLIENTS: list[Callable[[str, int], Any]] = [
    lambda host, port: smtplib.SMTP(host, port, timeout=5),
    lambda host, port: socket.create_connection((host, port)),
    lambda host, port: urllib.request.urlopen(f"http://{host}:{port}/"),
    lambda host, port: http.client.HTTPConnection(host, port).request("POST", "/"),
    lambda host, port: httpx.Client(trust_env=False).post(f"http://{host}:{port}/", content="x"),
    lambda host, port: asyncio.run(by_asyncio(f"http://{host}:{port}/")),
    lambda host, port: requests.post(f"http://{host}:{port}/", data="x"),
    lambda host, port: urllib3.PoolManager().request("POST", f"http://{host}:{port}/", retries=False),
    lambda host, port: asyncio.run(asyncio.open_connection(host, port)),
    lambda host, port: raising_from(lambda: smtp(port, host)),
    lambda host, port: raising_during(lambda: smtp(port, host)),
]


def look_up(host: str | bytes | None, *more: Any, **named: Any) -> Any:
    if host is not None and "no-such-host" in str(host):  # without asking anybody
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return resolved(host, *more, **named)


resolved = socket.getaddrinfo


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_refused_connection_and_an_unknown_host_show_it(closed_port: int, client: Callable[[str, int], Any]) -> None:
    assert shows_it(lambda: client("127.0.0.1", closed_port))
    assert shows_it(lambda: client("no-such-host.example", closed_port))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_timeout_shows_nothing_not_even_one_while_connecting(full_port: int, open_port: int) -> None:
    for port in (full_port, open_port):
        url = f"http://127.0.0.1:{port}/"
        for work in (
            lambda port=port: smtp(port, timeout=0.1),
            lambda url=url: urllib.request.urlopen(url, timeout=0.1),
            lambda url=url: httpx.get(url, timeout=0.1),
            lambda url=url: requests.get(url, timeout=0.1),
        ):
            assert not shows_it(work)


@pytest.fixture
def redirecting(closed_port: int) -> Iterator[str]:
    """Takes an order, and answers with a redirect to a host that is down."""

    class Shop(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(303)
            self.send_header("Location", f"http://127.0.0.1:{closed_port}/receipt")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Shop) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join(60)


async def redirected_by_asyncio(url: str) -> None:
    async with httpx.AsyncClient(trust_env=False, follow_redirects=True) as client:
        await client.post(url, content="x")


@pytest.mark.parametrize(
    "send",
    [
        lambda url: urllib.request.urlopen(url, b"an order"),
        lambda url: requests.post(url, data="an order"),
        lambda url: httpx.post(url, content="an order", follow_redirects=True, trust_env=False),
        lambda url: asyncio.run(redirected_by_asyncio(url)),
    ],
    ids=["urllib", "requests", "httpx", "httpx, async"],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_call_that_was_redirected_shows_nothing_because_its_first_request_arrived(
    redirecting: str, send: Callable[[str], Any]
) -> None:
    assert not shows_it(lambda: send(redirecting))


class Stubborn:
    """A client that tries twice, and raises its second error while it handles the first."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(self) -> None:
        try:
            self._once()
        except OSError:
            try:
                self._once()
            except OSError as error:
                raise MailError("tried twice") from error

    def _once(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=0.2) as connection:
            connection.sendall(b"a payment")
            connection.recv(1)


def retrying_session() -> requests.Session:
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=urllib3.Retry(1, allowed_methods=None)))
    return session


@pytest.mark.parametrize(
    "send",
    [
        lambda port: Stubborn(port).send(),
        lambda port: retrying_session().post(f"http://127.0.0.1:{port}/", data="a payment", timeout=0.2),
        lambda port: urllib3.PoolManager().request(
            "POST", f"http://127.0.0.1:{port}/", timeout=0.2, retries=urllib3.Retry(1, allowed_methods=None)
        ),
    ],
    ids=["by hand", "requests", "urllib3"],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_client_that_retried_after_a_timeout_shows_nothing_though_it_was_refused_then(
    once: int, send: Callable[[int], Any]
) -> None:
    error = error_of(lambda: send(once))
    assert "refused" in str(error) + str(error.__cause__), "its last try was refused"
    assert not did_nothing(error)


def raised(error: BaseException, *, cause: BaseException | None = None, context: BaseException | None = None) -> Any:
    error.__cause__, error.__context__ = cause, context
    return error


def refused() -> ConnectionRefusedError:
    return ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


@pytest.mark.parametrize(
    ("error", "shows"),
    [
        (refused(), True),
        (OSError(errno.ECONNREFUSED, "Connection refused"), True),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), True),
        (raised(MailError(), cause=raised(MailError(), context=refused())), True),
        (raised(OSError("all failed"), cause=ExceptionGroup("", [refused(), refused()])), True),
        (raised(OSError("all failed"), cause=ExceptionGroup("", [refused(), TimeoutError()])), False),
        (raised(refused(), context=refused()), True),
        (raised(refused(), context=TimeoutError()), False),
        (raised(TimeoutError(), context=refused()), False),
        (raised(type("ReadTimeout", (Exception,), {})(), cause=refused()), False),
        (raised(refused(), context=ConnectionResetError()), False),
        (raised(ConnectionResetError(), context=refused()), False),
        (raised(refused(), context=smtplib.SMTPServerDisconnected("closed")), False),
        (raised(MailError(), cause=refused(), context=KeyError("x")), False),
        (OSError(errno.EHOSTUNREACH, "No route to host"), False),
        (ConnectionResetError(), False),
        (TimeoutError(), False),
        (MailError("Connection refused"), False),
    ],
    ids=repr,
)
def test_every_line_of_causes_has_to_begin_with_a_refusal(error: BaseException, shows: bool) -> None:
    assert did_nothing(error) is shows


def test_a_circle_of_causes_ends() -> None:
    one, other = refused(), MailError()
    one.__context__, other.__cause__ = other, one
    assert not did_nothing(one)


# --- in the ledger ----------------------------------------------------------------------------------------------------


def entered(ctx: Any, work: Callable[[Any], Any], on_unknown: Any = "stop", *, single_call: bool = True) -> None:
    with ctx.effect("mail", on_unknown=on_unknown, single_call=single_call) as effect:
        work(effect)


def test_a_single_call_that_was_refused_was_never_begun(closed_port: int) -> None:
    ctx = context()
    with pytest.raises(ConnectionRefusedError):
        entered(ctx, lambda _: smtp(closed_port))
    assert ctx.effects == {}
    entered(ctx, lambda effect: setattr(effect, "result", "sent"))
    assert ctx.effects == {"mail": "sent"}


def test_without_single_call_a_refusal_leaves_the_effect_unknown(closed_port: int) -> None:
    ctx = context()
    with pytest.raises(ConnectionRefusedError):
        entered(ctx, lambda _: smtp(closed_port), single_call=False)
    assert ctx.effects == {"mail": UNKNOWN}


def test_an_effect_that_was_unknown_stays_unknown(closed_port: int) -> None:
    ctx = context(effects={"mail": UNKNOWN})
    with pytest.raises(ConnectionRefusedError):
        entered(ctx, lambda _: smtp(closed_port), "again")
    assert ctx.effects == {"mail": UNKNOWN}


def test_a_result_that_was_set_says_that_something_was_done(closed_port: int) -> None:
    ctx = context()

    def work(effect: Any) -> None:
        effect.result = "half of it"
        smtp(closed_port)

    with pytest.raises(ConnectionRefusedError):
        entered(ctx, work)
    assert ctx.effects == {"mail": UNKNOWN}


def test_an_error_from_before_the_block_is_none_of_the_blocks(closed_port: int) -> None:
    """A second provider, after the first has timed out."""
    ctx = context()
    try:
        raise TimeoutError
    except TimeoutError:
        with pytest.raises(ConnectionRefusedError):
            entered(ctx, lambda _: smtp(closed_port))
    assert ctx.effects == {}


def test_an_error_from_before_the_block_that_is_raised_again_shows_nothing() -> None:
    ctx = context()

    def work(_: Any) -> None:
        raise earlier

    earlier = refused()
    try:
        raise earlier
    except ConnectionRefusedError:
        with pytest.raises(ConnectionRefusedError):
            entered(ctx, work)
    assert ctx.effects == {"mail": UNKNOWN}
