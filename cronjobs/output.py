"""What a handler prints or logs goes to its own attempt's output, never to the tick's streams."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

from cronjobs.text import CappedText

_current: ContextVar[Callable[[str], Any] | None] = ContextVar("cronjobs_output", default=None)


class _Bytes(io.RawIOBase):
    """``sys.stdout.buffer``: bytes go the way of the text."""

    def __init__(self, text: io.TextIOBase) -> None:
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        written = bytes(data)
        self._text.write(written.decode(errors="backslashreplace"))
        return len(written)

    def flush(self) -> None:
        self._text.flush()


class _Dispatch(io.TextIOBase):
    """Stands in for sys.stdout and sys.stderr: each write goes to the attempt of the thread or task it comes from."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, outside: TextIO | None) -> None:
        self._outside = outside
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        sink = _current.get()
        if sink is not None:
            sink(text)
        elif self._outside is not None:
            self._outside.write(text)
        return len(text)

    def flush(self) -> None:
        if _current.get() is None and self._outside is not None:
            self._outside.flush()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True


class _LogToOutput(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        sink = _current.get()
        if sink is not None:
            sink(self.format(record) + "\n")


def divert_streams() -> None:
    """Put the dispatchers in place, before any handler module is imported and remembers the real streams."""
    if not isinstance(sys.stdout, _Dispatch):
        sys.stdout = _Dispatch(sys.stdout)
        sys.stderr = _Dispatch(sys.stderr)


def divert_logging() -> None:
    """Let log records reach the output too; an app that configured logging itself is left alone."""
    root = logging.getLogger()
    if not root.handlers:
        handler = _LogToOutput()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.setLevel(logging.INFO)


@contextmanager
def captured(sink: CappedText | None = None, also: Callable[[str], Any] | None = None) -> Iterator[CappedText]:
    """Collect what this thread prints and logs inside the block, capped; *also* sees it live."""
    text = sink or CappedText()

    def write(part: str) -> None:
        text.write(part)
        if also is not None:
            also(part)

    token = _current.set(write)
    try:
        yield text
    finally:
        _current.reset(token)
