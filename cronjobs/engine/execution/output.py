"""Send everything that a handler prints or logs to the output of its own attempt, and not to the tick's streams.

Threads that a handler starts, and tasks that it submits to a thread pool, belong to the handler's attempt. Anything
that they print after the attempt has ended is dropped, because the attempt's output has already been written by then.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import wraps
from typing import Any, TextIO
from weakref import WeakKeyDictionary

from cronjobs.text import CappedText


class _Sink:
    """Collects one attempt's output until the attempt has ended."""

    def __init__(self, text: CappedText, also: Callable[[str], Any] | None) -> None:
        self._text, self._also = text, also
        self._open = True

    def write(self, part: str) -> None:
        if self._open:
            self._text.write(part)
            if self._also is not None:
                self._also(part)

    def close(self) -> None:
        self._open = False


_current: ContextVar[_Sink | None] = ContextVar("cronjobs_output", default=None)
# The sinks by thread. A context variable alone is not enough, because a new thread starts with an empty context, and a
# thread may switch contexts.
_of_threads: WeakKeyDictionary[threading.Thread, _Sink] = WeakKeyDictionary()


def _sink() -> _Sink | None:
    """Return the sink of the attempt to which the current thread or task belongs, or None if there is none."""
    sink = _current.get()
    return sink if sink is not None else _of_threads.get(threading.current_thread())


class _Bytes(io.RawIOBase):
    """Stands in for ``sys.stdout.buffer``. Bytes that are written here go to the same place as text."""

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
    """Replaces sys.stdout and sys.stderr. Each write goes to the attempt of the writing thread or task."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, outside: TextIO | None) -> None:
        self._outside = outside
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        sink = _sink()
        if sink is not None:
            sink.write(text)
        elif self._outside is not None:
            self._outside.write(text)
        return len(text)

    def flush(self) -> None:
        if self._outside is not None and _sink() is None:
            self._outside.flush()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True


class _LogToOutput(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        sink = _sink()
        if sink is not None:
            sink.write(self.format(record) + "\n")


def divert_streams() -> None:
    """Install the dispatchers. Call this before importing handler modules, which may keep references to the streams."""
    if not isinstance(sys.stdout, _Dispatch):
        sys.stdout = _Dispatch(sys.stdout)
        sys.stderr = _Dispatch(sys.stderr)
        follow_threads()


_follows = False


def follow_threads() -> None:
    """Make each new thread belong to the attempt that starts it, and each pool task to the attempt that submits it."""
    global _follows
    if _follows:
        return
    _follows = True
    start = threading.Thread.start
    submit: Any = ThreadPoolExecutor.submit

    @wraps(start)
    def start_for(thread: threading.Thread) -> None:
        sink = _sink()
        if sink is not None:
            _of_threads[thread] = sink
        start(thread)

    @wraps(submit)
    def submit_for(pool: ThreadPoolExecutor, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        sink = _sink()
        if sink is None:
            return submit(pool, function, *args, **kwargs)

        def run(*args: Any, **kwargs: Any) -> Any:
            # Set the sink for each task, because the pool may have started this thread for another attempt.
            token = _current.set(sink)
            try:
                return function(*args, **kwargs)
            finally:
                _current.reset(token)

        return submit(pool, run, *args, **kwargs)

    threading.Thread.start = start_for  # type: ignore[method-assign,assignment]
    ThreadPoolExecutor.submit = submit_for  # type: ignore[method-assign,assignment]


def divert_logging() -> None:
    """Also send log records to the attempt's output, unless the app configured logging itself."""
    if not logging.getLogger().handlers:
        log_to(_LogToOutput())


def log_to(handler: logging.Handler) -> None:
    """Also send log records of level INFO and above to *handler*."""
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)


class captured:  # noqa: N801 used as a function; each job of a drain has one, and a generator takes longer
    """Collect what this thread prints and logs inside the block, up to a cap. *also* gets each piece at once."""

    def __init__(self, also: Callable[[str], Any] | None) -> None:
        self._text = CappedText()
        self._sink = _Sink(self._text, also)

    def __enter__(self) -> CappedText:
        self._token = _current.set(self._sink)
        return self._text

    def __exit__(self, *_error: object) -> None:
        self._sink.close()
        _current.reset(self._token)
