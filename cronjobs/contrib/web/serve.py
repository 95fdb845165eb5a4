"""Serve the pages with waitress, and add the limits that waitress lacks (docs/adr/0032).

waitress reads a whole request before it hands it to a thread, so a slow client occupies no thread. This module adds a
deadline for the whole request. If there are too many connections, it closes the one that has waited longest.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from cronjobs import masking
from cronjobs.clock import SYSTEM
from cronjobs.contrib.web.not_installed import WebMissing
from cronjobs.contrib.web.request import LONGEST_FORM
from cronjobs.text import one_line

try:
    from waitress import wasyncore
    from waitress.adjustments import Adjustments
    from waitress.channel import HTTPChannel
    from waitress.parser import HTTPRequestParser, TransferEncodingNotImplemented
    from waitress.server import TcpWSGIServer
except ModuleNotFoundError:
    raise WebMissing from None

THREADS: Final = 8
# A client must send a whole request within this time. It has the same time again to read a ready answer and send the
# next request.
TIMEOUT_S: Final = 30.0
LONGEST_HEAD: Final = 32 * 1024  # bytes
MOST_WAITING: Final = 500  # at most this many connections may wait for the rest of a request
LEAVING_S: Final = 3.0  # how long running requests may take after stop()


class Parser(HTTPRequestParser):
    def parse_header(self, header_plus: bytes) -> None:
        super().parse_header(header_plus)
        # Browsers never send a form in chunks, and waitress keeps the first line of a chunk in memory at any length.
        if self.chunked:
            raise TransferEncodingNotImplemented("Transfer-Encoding requested is not supported.")


class Channel(HTTPChannel):
    """A connection. If no whole request has arrived by ``until``, the server closes the connection."""

    parser_class = Parser

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.until = SYSTEM.monotonic() + TIMEOUT_S

    def service(self) -> None:
        super().service()
        self.until = SYSTEM.monotonic() + TIMEOUT_S

    @property
    def waits(self) -> bool:
        return not self.requests and not self.will_close


class Server(TcpWSGIServer):
    """The web server. ``serve`` returns after ``stop`` is called. A signal handler may call ``stop``."""

    channel_class = Channel

    def __init__(self, host: str, port: int, application: Callable[[dict[str, Any], Any], Iterable[bytes]]) -> None:
        """Listen on *host* and *port*. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
        except OSError:
            listening.close()
            raise
        adjustments = Adjustments(
            sockets=[listening],
            threads=THREADS,
            ident="cronjobs",
            backlog=128,
            cleanup_interval=1,
            connection_limit=MOST_WAITING + 100,  # those that wait for a request, and those that are being answered
            log_socket_errors=False,
            outbuf_overflow=1 << 26,  # in bytes; waitress would write a longer page to a temporary file
            max_request_header_size=LONGEST_HEAD,
            max_request_body_size=LONGEST_FORM + 1,  # waitress refuses a longer body without reading it
            clear_untrusted_proxy_headers=False,  # keep these headers; the application reads them only behind a proxy
        )
        about = (family, listening.type, listening.proto, listening.getsockname())
        super().__init__(application, _sock=listening, adj=adjustments, sockinfo=about, bind_socket=False)
        self._stopped = False
        logging.getLogger("waitress.queue").setLevel(logging.CRITICAL)
        logger = logging.getLogger("waitress")
        logger.propagate, logger.handlers = False, [StderrHandler()]

    @property
    def port(self) -> int:
        return int(self.effective_port)

    def stop(self) -> None:
        # When a second signal comes, the trigger may be closed, and its descriptor may belong to another file.
        if not self._stopped:
            self._stopped = True
            self.pull_trigger()

    def serve(self) -> None:
        while not self._stopped:
            self._turn(1.0)
        give_up_at = SYSTEM.monotonic() + LEAVING_S
        self.accepting = False
        while SYSTEM.monotonic() < give_up_at and any(
            channel.requests or channel.total_outbufs_len for channel in self.active_channels.values()
        ):
            self._turn(0.1)
        self.task_dispatcher.shutdown(timeout=max(0.0, give_up_at - SYSTEM.monotonic()))
        wasyncore.close_all(self._map)

    def _turn(self, seconds: float) -> None:
        wasyncore.loop(seconds, use_poll=True, map=self._map, count=1)

    # --- what waitress calls, in the thread of serve ------------------------------------------------------------------

    def maintenance(self, _now: float) -> None:
        for channel in self.active_channels.values():
            if channel.waits and channel.until <= SYSTEM.monotonic():
                channel.will_close = True

    def accept(self) -> Any:
        try:
            return super().accept()
        except OSError:  # out of descriptors
            self._drop_oldest()
            return None

    def handle_accept(self) -> None:
        super().handle_accept()
        if sum(channel.waits for channel in self.active_channels.values()) > MOST_WAITING:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        waiting = [channel for channel in self.active_channels.values() if channel.waits]
        if waiting:
            min(waiting, key=lambda channel: channel.until).will_close = True


class StderrHandler(logging.Handler):
    """Prints one line for each error that waitress logs, without the request's address, which may hold private data."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        words = record.getMessage() if error is None else f"{type(error).__name__}: {error}"
        print(f"cronjobs web: {one_line(masking.hide(words), 500)}", file=sys.stderr)  # noqa: T201
