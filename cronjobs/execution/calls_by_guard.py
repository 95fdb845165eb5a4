"""The calls of ``ctx.map`` on a cluster, as the handler's process sees them: its guard makes them, over a socket pair.

To the guard: ``["map", number, how many, at_once]``, then ``["call", call]`` for each; ``["stop"]`` if nobody waits for
them any more. From it: ``[number, end]``. See ``rules.calls`` for a call and an end. The guard reads at any time.
"""

from __future__ import annotations

import json
import select
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from cronjobs.execution.lines import Lines
from cronjobs.rules.calls import Call, CallEnd

POLL_S: Final = 0.05  # how late a stop is noticed


class CallsByGuard:
    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._number = 0

    def make(
        self, these: Sequence[Call], at_once: int | None, ended: Callable[[CallEnd], None], check: Callable[[], None]
    ) -> None:
        self._number += 1
        asking = threading.Thread(target=self._ask, args=(self._number, these, at_once), daemon=True)
        asking.start()
        try:
            self._hear({call.number for call in these}, ended, check)
        except BaseException:
            asking.join()
            with suppress(OSError):
                self._lines.send(json.dumps(["stop"]))
            raise

    def _ask(self, number: int, these: Sequence[Call], at_once: int | None) -> None:
        with suppress(OSError):  # the guard is gone, and so will this process be
            self._lines.send(json.dumps(["map", number, len(these), at_once]))
            for call in these:
                self._lines.send(json.dumps(["call", call.encode()]))

    def _hear(self, unended: set[int], ended: Callable[[CallEnd], None], check: Callable[[], None]) -> None:
        while unended:
            check()
            if not select.select([self._lines], [], [], POLL_S)[0]:
                continue
            found = self._lines.receive()
            if found is None:
                raise ConnectionError("the guard of this attempt is gone")
            for line in found:
                number, text = json.loads(line)
                if number == self._number:  # else of a map that nobody waits for any more
                    end = CallEnd.decode(text)
                    unended.discard(end.number)
                    ended(end)

    def close(self) -> None:
        self._lines.close()
