"""The pages by the standard library's server: a few threads, and no connection keeps one before it has asked something.

Connections wait in the accepting thread until their request's head is there, for 30 seconds in all; so neither idle
ones nor those that send a byte now and then keep anybody waiting.
"""

from __future__ import annotations

import io
import selectors
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from socketserver import TCPServer
from typing import Any, Final
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer

from cronjobs import masking
from cronjobs.clock import SYSTEM
from cronjobs.text import one_line

THREADS: Final = 8
TIMEOUT_S: Final = 30.0
LONGEST_HEAD: Final = 32 * 1024  # bytes
MOST_WAITING: Final = 500  # connections without a request yet; of more than these the oldest is closed
LEAVING_S: Final = 3.0  # for requests that are being answered
_END: Final = b"\r\n\r\n"

ServerHandler.server_software = "cronjobs"


@dataclass
class WaitingConnection:
    """A connection whose request's head is not complete yet."""

    socket: socket.socket
    address: Any
    until: float
    head: bytearray = field(default_factory=bytearray)


class Handler(WSGIRequestHandler):
    """One request. Part of it, its head, was read before."""

    timeout = TIMEOUT_S
    server_version = "cronjobs"
    sys_version = ""
    head = b""

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Continued(self.head, self.rfile))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the library's word
        """No line for each request: an address may hold what is nobody's business."""

    def address_string(self) -> str:
        return str(self.client_address[0])


class _Continued(io.RawIOBase):
    """Bytes that were read before, then the rest."""

    def __init__(self, first: bytes, rest: Any) -> None:
        self._first, self._rest = first, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._first:
            part, self._first = self._first[: len(buffer)], self._first[len(buffer) :]
        else:
            part = self._rest.read1(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._rest.close()
        super().close()


class Server(WSGIServer):
    """``serve`` returns after ``stop``, which a signal handler may call."""

    request_queue_size = 128

    def __init__(self, host: str, port: int, application: Callable[[dict[str, Any], Any], Iterable[bytes]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler)
        self.set_app(application)
        self._ready: SimpleQueue[WaitingConnection | None] = SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._waiting: dict[socket.socket, WaitingConnection] = {}
        self._stopped = False
        self._wake, self._woken = socket.socketpair()
        self._threads = [
            threading.Thread(target=self._work, name=f"cronjobs-web-{n}", daemon=True) for n in range(THREADS)
        ]

    def server_bind(self) -> None:
        # Not WSGIServer's: it asks the name service for this host's name, which may take seconds.
        self.allow_reuse_address = True
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()

    def stop(self) -> None:
        self._stopped = True
        with suppress(OSError):
            self._wake.send(b"x")

    def serve(self) -> None:
        for thread in self._threads:
            thread.start()
        self.socket.setblocking(False)
        self._selector.register(self.socket, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        try:
            while not self._stopped:
                for key, _ in self._selector.select(self._patience()):
                    if key.fileobj is self.socket:
                        self._accept()
                    elif key.fileobj is not self._woken:
                        self._read(self._waiting[key.fileobj])  # type: ignore[index]
                self._give_up()
        finally:
            self._leave()

    # --- the accepting thread -----------------------------------------------------------------------------------------

    def _patience(self) -> float | None:
        if not self._waiting:
            return None
        return max(0.0, next(iter(self._waiting.values())).until - SYSTEM.monotonic())

    def _accept(self) -> None:
        try:
            connection, address = self.socket.accept()
        except OSError:  # it is gone again, or there are no more descriptors: those that wait too long free some
            self._drop_oldest()
            return
        connection.setblocking(False)
        self._waiting[connection] = WaitingConnection(connection, address, SYSTEM.monotonic() + TIMEOUT_S)
        self._selector.register(connection, selectors.EVENT_READ)
        if len(self._waiting) > MOST_WAITING:
            self._drop_oldest()

    def _read(self, waiting: WaitingConnection) -> None:
        try:
            part = waiting.socket.recv(LONGEST_HEAD)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        waiting.head += part
        if not part or (_END not in waiting.head and len(waiting.head) > LONGEST_HEAD):
            self._drop(waiting)
        elif _END in waiting.head:
            self._forget(waiting)
            self._ready.put(waiting)

    def _give_up(self) -> None:
        now = SYSTEM.monotonic()
        for waiting in [each for each in self._waiting.values() if each.until <= now]:
            self._drop(waiting)

    def _drop_oldest(self) -> None:
        if self._waiting:
            self._drop(next(iter(self._waiting.values())))

    def _drop(self, waiting: WaitingConnection) -> None:
        self._forget(waiting)
        waiting.socket.close()

    def _forget(self, waiting: WaitingConnection) -> None:
        self._selector.unregister(waiting.socket)
        del self._waiting[waiting.socket]

    def _leave(self) -> None:
        for waiting in list(self._waiting.values()):
            self._drop(waiting)
        self._selector.close()
        self.server_close()
        self._wake.close()
        self._woken.close()
        for _ in self._threads:
            self._ready.put(None)
        give_up_at = SYSTEM.monotonic() + LEAVING_S
        for thread in self._threads:
            thread.join(max(0.0, give_up_at - SYSTEM.monotonic()))

    # --- the others ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (waiting := self._ready.get()) is not None:
            try:
                waiting.socket.setblocking(True)
                # A class of its own for each: the library makes the object, and handles the request, in one call.
                handler = type("OneRequest", (Handler,), {"head": bytes(waiting.head)})
                handler(waiting.socket, waiting.address, self)
            except OSError:
                pass  # whoever asked is gone, or took too long
            except Exception as error:
                told = one_line(masking.hide(f"{type(error).__name__}: {error}"), 500)
                print(f"cronjobs web: {told}", file=sys.stderr)  # noqa: T201
            finally:
                with suppress(OSError):
                    self.shutdown_request(waiting.socket)
