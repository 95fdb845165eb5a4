"""A proxy that imitates a slow network. It forwards each piece of data after a delay, and counts what clients send."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass
class Delay:
    """A proxy on ``port``. It delays data by ``one_way_s``. ``asked`` counts how often clients sent something."""

    one_way_s: float
    target: tuple[str, int]
    port: int = 0
    asked: int = 0
    sent_bytes: int = 0

    async def serve(self, ready: threading.Event, end: asyncio.Event) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await end.wait()
        server.close()

    async def _connected(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        server_in, server_out = await asyncio.open_connection(*self.target)
        ways = self._pump(client_in, server_out, counted=True), self._pump(server_in, client_out, counted=False)
        with suppress(asyncio.CancelledError):  # raised at the block's end; asyncio would report it
            await asyncio.gather(*ways)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counted: bool) -> None:
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            while piece := await source.read(65536):
                self.asked += counted
                self.sent_bytes += len(piece) * counted
                if self.one_way_s:
                    loop.call_later(self.one_way_s, sink.write, piece)
                else:
                    sink.write(piece)
        if self.one_way_s:
            await asyncio.sleep(self.one_way_s * 2)  # let the data in transit arrive first
        sink.close()


@contextmanager
def delayed(host: str, port: int, one_way_s: float) -> Iterator[Delay]:
    """Run a proxy in front of *host* and *port* until the block ends."""
    made = Delay(one_way_s, (host, port))
    ready, end = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    def run() -> None:
        loop.run_until_complete(made.serve(ready, end))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
