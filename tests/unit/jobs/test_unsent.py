"""Which errors prove that nothing was sent, tried on real sockets; and what the ledger makes of an effect then."""

from __future__ import annotations

import errno
import smtplib
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import httpx
import pytest

from cronjobs.jobs.unsent import Watch
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
    """Its backlog is full, so that the kernel answers no further connection."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield int(server.getsockname()[1])


def proven(work: Callable[[], Any]) -> bool:
    watch = Watch().begin()
    try:
        work()
    except Exception as error:
        watch.end()
        return watch.proves_nothing_sent(error)
    finally:
        watch.end()
        watch.forget()
    raise AssertionError("nothing was raised")


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
        raise MailError("something else, while the first was handled")  # noqa: B904


def smtp(port: int, host: str = "127.0.0.1", timeout: float = 5) -> None:
    smtplib.SMTP(host, port, timeout=timeout)


@pytest.mark.parametrize(
    "call",
    [
        smtp,
        lambda port: socket.create_connection(("localhost", port)),  # both of its addresses
        lambda port: urllib.request.urlopen(f"http://127.0.0.1:{port}/"),
        lambda port: httpx.post(f"http://127.0.0.1:{port}/", content="x"),
        lambda port: raising_from(lambda: smtp(port)),
    ],
)
def test_a_refused_connection_proves_it(closed_port: int, call: Callable[[int], Any]) -> None:
    assert proven(lambda: call(closed_port))


def test_a_timeout_while_connecting_proves_it_and_one_while_waiting_for_an_answer_does_not(
    full_port: int, open_port: int
) -> None:
    assert proven(lambda: smtp(full_port, timeout=0.1))
    assert not proven(lambda: smtp(open_port, timeout=0.1))
    assert not proven(lambda: urllib.request.urlopen(f"http://127.0.0.1:{open_port}/", timeout=0.1))
    assert not proven(lambda: httpx.get(f"http://127.0.0.1:{open_port}/", timeout=0.1))


@pytest.mark.parametrize("name", ["no such name.", "a" * 70])
def test_a_name_that_cannot_be_looked_up_proves_it_if_it_is_an_error_of_the_look_up(name: str) -> None:
    """The first by the resolver, without asking anybody; the other is refused before it, with no OSError."""
    assert proven(lambda: smtp(25, host=name)) is (name == "no such name.")


def test_another_call_in_the_block_that_may_have_gone_through_disproves_it(closed_port: int, open_port: int) -> None:
    def two() -> None:
        with socket.create_connection(("127.0.0.1", open_port)) as first:
            first.sendall(b"a payment")
        smtp(closed_port)

    def two_by_hand() -> None:
        with socket.socket() as first:
            first.connect(("127.0.0.1", open_port))
        smtp(closed_port)

    def datagram() -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as first:
            first.sendto(b"a payment", ("127.0.0.1", 9))
        smtp(closed_port)

    def program() -> None:
        subprocess.run(["true"], check=True)
        smtp(closed_port)

    def retried() -> None:
        with suppress(OSError):
            smtp(open_port, timeout=0.05)
        smtp(closed_port)

    for work in (two, two_by_hand, datagram, program, retried):
        assert not proven(work), work


def test_what_only_looks_like_it_does_not_prove_it(closed_port: int) -> None:
    def by_hand() -> None:
        with socket.socket() as one:
            one.connect(("127.0.0.1", closed_port))

    def elsewhere() -> None:
        """The error of another thread: what that thread had sent before nobody has seen."""
        raised: list[OSError] = []

        def work() -> None:
            try:
                smtp(closed_port)
            except OSError as error:
                raised.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        raise raised[0]

    def made(error: BaseException) -> Callable[[], None]:
        def work() -> None:
            raise error

        return work

    for work in (
        by_hand,
        elsewhere,
        made(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")),
        made(TimeoutError("timed out")),
        made(ConnectionResetError()),
        made(socket.gaierror(socket.EAI_AGAIN, "try again")),
        lambda: raising_during(lambda: smtp(closed_port)),
    ):
        assert not proven(work), work


# --- in the ledger ----------------------------------------------------------------------------------------------------


def entered(ctx: Any, work: Callable[[Any], Any], on_unknown: Any = "stop") -> None:
    with ctx.effect("mail", on_unknown=on_unknown) as effect:
        work(effect)


def test_an_effect_whose_connection_was_refused_was_never_begun(closed_port: int) -> None:
    ctx = context()
    with pytest.raises(ConnectionRefusedError):
        entered(ctx, lambda _: smtp(closed_port))
    assert ctx.effects == {}
    entered(ctx, lambda effect: setattr(effect, "result", "sent"))
    assert ctx.effects == {"mail": "sent"}


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


def test_a_call_that_was_sent_before_leaves_the_effect_unknown(closed_port: int, open_port: int) -> None:
    ctx = context()

    def work(_effect: Any) -> None:
        with closing(socket.create_connection(("127.0.0.1", open_port))) as first:
            first.sendall(b"a payment")
        smtp(closed_port)

    with pytest.raises(ConnectionRefusedError):
        entered(ctx, work)
    assert ctx.effects == {"mail": UNKNOWN}
