"""Makes calls of ``ctx.map``, one after another: ``python -m`` this module, with a descriptor to talk over.

It first gets a ``CallerFacts``, imports the user's modules once, and then gets one call at a time. When the other end
is closed, the job is over: so is this process. SIGTERM asks the call that runs to stop.
"""

from __future__ import annotations

import faulthandler
import io
import json
import logging
import os
import signal
import socket
import sys
from dataclasses import dataclass, replace
from types import FrameType
from typing import Final

from cronjobs.clock import SYSTEM
from cronjobs.execution.child_protocol import Request
from cronjobs.execution.lines import Lines
from cronjobs.execution.one_call import make_call
from cronjobs.execution.output import log_to
from cronjobs.execution.raised import said
from cronjobs.jobs import job_types
from cronjobs.jobs.context import StopSignal
from cronjobs.rules import calls
from cronjobs.rules.calls import Call, CallEnd
from cronjobs.text import cap

MODULE: Final = "cronjobs.execution.call_worker"
MOST_PRINTED: Final = 16 * 1024  # bytes of what one call prints on another host; the end of it is kept


@dataclass(frozen=True)
class CallerFacts:
    """The attempt that makes the calls. ``keeps_output``: standard output is a file, and each call's part travels."""

    request: Request
    keeps_output: bool = False

    @classmethod
    def of(cls, request: Request, keeps_output: bool = False) -> CallerFacts:
        """Those of an attempt. A call has no use for the database's URL."""
        plain = replace(request.settings, database="")
        job = request.job._replace(payload={})
        return cls(replace(request, settings=plain, job=job), keeps_output)

    def encode(self) -> str:
        return json.dumps([self.request.encode().decode(), self.keeps_output])

    @classmethod
    def decode(cls, text: str | bytes) -> CallerFacts:
        request, keeps_output = json.loads(text)
        return cls(Request.decode(request.encode()), keeps_output)


class CallWorker:
    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._stop: StopSignal | None = None  # of the call that runs
        self._unread: list[bytes] = []

    def on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        if self._stop is None:
            os._exit(0)
        self._stop.set("cancelled")

    def run(self) -> None:
        caller = CallerFacts.decode(self._next())
        request = caller.request
        faults = job_types.import_handlers(request.settings)
        unknown = f": {faults[0].where} {faults[0].what}" if faults else ""
        while True:
            call = Call.decode(self._next())
            printed_before = os.fstat(1).st_size if caller.keeps_output else 0
            began, self._stop = SYSTEM.monotonic(), StopSignal()
            try:
                end = make_call(
                    call,
                    request.job,
                    remaining_s=request.ends_at - SYSTEM.monotonic(),
                    stop=self._stop,
                    around=request.settings.around,
                    unknown=unknown,
                )
            except BaseException as error:  # a KeyboardInterrupt that the handler raises
                end = calls.failed(call.number, type(error).__name__, said(error))
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            if caller.keeps_output:
                end = end._replace(printed=_printed_since(printed_before))
            self._stop = None
            self._send(end._replace(took_s=SYSTEM.monotonic() - began))

    def _next(self) -> bytes:
        while not self._unread:
            found = self._lines.receive()
            if found is None:
                os._exit(0)
            self._unread += found
        return self._unread.pop(0)

    def _send(self, end: CallEnd) -> None:
        try:
            self._lines.send(end.encode())
        except OSError:  # the job is over
            os._exit(0)


def _printed_since(start: int) -> str:
    """What standard output, a file, has had since it was as long as *start*; of more than is kept, the end."""
    size = os.fstat(1).st_size
    first = max(start, size - MOST_PRINTED)
    if size <= start:
        return ""
    text = os.pread(1, size - first, first).decode(errors="replace")
    return cap(text, MOST_PRINTED) if first == start else f"[…]{text}"


def main() -> None:
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)
    worker = CallWorker(Lines(end))
    signal.signal(signal.SIGTERM, worker.on_sigterm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the process that makes the calls
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Whole lines at a time: the processes of a pool share one file, and print() writes each word by itself.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True, write_through=False)
    log_to(logging.StreamHandler(sys.stderr))
    worker.run()


if __name__ == "__main__":
    main()
