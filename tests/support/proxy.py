"""A network that breaks at the worst moment: it loses a COMMIT, or the server's answer to a COMMIT."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sqlalchemy import make_url

COMMIT = b"COMMIT\0"


@dataclass
class Proxy:
    """A proxy in front of a PostgreSQL server. ``url`` leads to the proxy.

    ``lose`` has the numbers of the COMMITs to lose, counted from 1 over all connections. If ``forward``, the server
    gets such a COMMIT, and only its answer is lost. If ``close_then``, the proxy refuses all connections after that.
    """

    url: str
    target: tuple[str, int]
    lose: set[int] = field(default_factory=set)
    forward: bool = True
    close_then: bool = False
    commits: int = 0
    closed: bool = False
    sockets: list[socket.socket] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                if self.closed:
                    client.close()
                    continue
                server = socket.create_connection(self.target)
                self.sockets += [client, server]
                lost = threading.Event()  # when this is set, the server's answers reach nobody
                for pump, here, there in ((self._to_server, client, server), (self._to_client, server, client)):
                    self.threads.append(threading.Thread(target=pump, args=(here, there, lost)))
                    self.threads[-1].start()

    def _to_server(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if data.endswith(COMMIT) and self._is_to_be_lost():
                    if not self.forward:
                        break
                    lost.set()
                server.sendall(data)
        if not lost.is_set():
            shut(client, server)

    def _to_client(self, server: socket.socket, client: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while (data := server.recv(65536)) and not lost.is_set():
                client.sendall(data)
        shut(client, server)

    def _is_to_be_lost(self) -> bool:
        with self._lock:
            self.commits += 1
            lost = self.commits in self.lose
            self.closed = self.closed or (lost and self.close_then)
            return lost


def shut(*connections: socket.socket) -> None:
    for connection in connections:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied(url: str) -> Iterator[Proxy]:
    """Run a proxy in front of the server of *url*."""
    direct = make_url(url)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        through = direct.set(port=listener.getsockname()[1]).render_as_string(hide_password=False)
        proxy = Proxy(through, (str(direct.host), int(direct.port or 5432)))
        serving = threading.Thread(target=proxy.serve, args=(listener,))
        serving.start()
        try:
            yield proxy
        finally:
            shut(listener)
            serving.join()
            shut(*proxy.sockets)
            for thread in proxy.threads:
                thread.join()
            for connection in proxy.sockets:
                connection.close()
