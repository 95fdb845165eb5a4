"""Show the output of a foreground job live, and record that output at the same time."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from cronjobs.engine.execution.output import log_to
from cronjobs.text import CappedText


class LiveStream(io.TextIOBase):
    """A stream that shows each text at once. While the stream has a ``sink``, the text is also recorded there.

    In all other ways, the stream behaves like the real stream behind it. So ``input()`` and pdb see a terminal if the
    real stream is one.
    """

    def __init__(self, outside: Any) -> None:
        self.outside = outside
        self.sink: CappedText | None = None
        # Called with each piece of text before the piece is shown.
        self.before: Callable[[str], None] | None = None

    def write(self, text: str) -> int:
        if self.sink is not None:
            self.sink.write(text)
        self.show(text)
        return len(text)

    def show(self, text: str) -> None:
        # A closed or full stdout must not fail the job.
        with suppress(OSError, ValueError):
            if self.outside is not None:
                if self.before is not None:
                    self.before(text)
                self.outside.write(text)
                if "\n" in text:
                    self.outside.flush()

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            if self.outside is not None:
                self.outside.flush()

    def isatty(self) -> bool:
        return bool(self.outside is not None and self.outside.isatty())

    def fileno(self) -> int:
        if self.outside is None:
            raise io.UnsupportedOperation("fileno")
        return int(self.outside.fileno())

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self.outside, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return getattr(self.outside, "errors", None) or "backslashreplace"

    @property
    def buffer(self) -> Any:
        return self.outside.buffer


@dataclass(frozen=True)
class Streams:
    """The process's stdout and stderr as live streams. ``say`` prints a line to stderr that is not job output."""

    out: LiveStream
    err: LiveStream

    def say(self, text: str) -> None:
        self.err.show(text + "\n")

    @contextmanager
    def recorded(self) -> Iterator[CappedText]:
        sink = CappedText()
        self.out.sink = self.err.sink = sink
        try:
            yield sink
        finally:
            self.out.sink = self.err.sink = None


@contextmanager
def live_streams() -> Iterator[Streams]:
    """Replace stdout and stderr with live streams. Log records also go to stderr.

    Call this before importing handler modules, which may keep references to the streams.
    """
    before = sys.stdout, sys.stderr
    streams = Streams(LiveStream(sys.stdout), LiveStream(sys.stderr))
    sys.stdout, sys.stderr = streams.out, streams.err
    root = logging.getLogger()
    handler, level = logging.StreamHandler(streams.err), root.level
    # If the root logger has handlers, the app has configured logging itself. Leave that configuration unchanged.
    if not root.handlers:
        log_to(handler)
    try:
        yield streams
    finally:
        if handler in root.handlers:
            root.removeHandler(handler)
            root.setLevel(level)
        sys.stdout, sys.stderr = before
