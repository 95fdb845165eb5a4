"""Work in many short steps for a person who waits: progress on a terminal, a Ctrl-C that comes between two steps."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, TextIO


def is_interactive() -> bool:
    """Whether there is someone who can be asked, and sees the question."""
    return _is_terminal(sys.stdin) and _is_terminal(sys.stderr)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


class Interruptible:
    """Inside, the first Ctrl-C only sets what the block asks for; the second one is a KeyboardInterrupt as ever."""

    def __init__(self) -> None:
        self._interrupted = False
        self._before: Any = None

    def __enter__(self) -> Callable[[], bool]:
        self._before = signal.signal(signal.SIGINT, self._note)
        return lambda: self._interrupted

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)


class Progress:
    """One line on stderr that is written over, on a terminal only, and gone at the end."""

    def __init__(self, total: int | None = None) -> None:
        self._total = total
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def at(self, done: int) -> None:
        if self._total is not None and done < self._total:
            self.say(f"{done:,} of {self._total:,}")

    def say(self, text: str) -> None:
        if not _is_terminal(sys.stderr):
            return
        padding = " " * max(0, self._width - len(text))
        self._width = len(text)
        with suppress(OSError):
            sys.stderr.write(f"\r{text}{padding}")
            sys.stderr.flush()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._width:
            self.say("")
            with suppress(OSError):
                sys.stderr.write("\r")
                sys.stderr.flush()
