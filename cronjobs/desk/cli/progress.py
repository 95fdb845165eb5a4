"""For long work in short steps: show progress on a terminal, and stop on Ctrl-C between two steps."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, TextIO

from cronjobs.clock import SYSTEM
from cronjobs.desk.cli.output import fit
from cronjobs.desk.insight.formatting import safe
from cronjobs.engine.command.printing import is_terminal
from cronjobs.engine.rules.progress import HowFar, in_words


def is_interactive() -> bool:
    """Return whether a user can see a question and answer it: stdin and stderr are terminals."""
    return is_terminal("stdin") and is_terminal("stderr")


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed. Only a second Ctrl-C raises KeyboardInterrupt."""
    interrupted = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: interrupted
    finally:
        signal.signal(signal.SIGINT, before)


BAR: Final = 20  # the bar's width in characters
PLAIN_EVERY_S: Final = 10.0


class Bar:
    """Shows a job's progress.

    On a terminal, the progress is a line below the output. Elsewhere a new line is printed now and then.
    """

    def __init__(self, print_line: Callable[[str], None], stream: TextIO | None) -> None:
        """*stream* is the real stderr, since sys.stderr is captured as output while a job runs."""
        self._print_line = print_line
        self._line = Progress(stream)
        self._drawn = self._in_line = False
        self._said_at = -math.inf
        self._said: HowFar | None = None
        # Two threads print, so they need a lock: the job's thread prints the job's output, and the loop's thread prints
        # delayed progress reports.
        self._turn = threading.RLock()

    def show(self, how_far: HowFar) -> None:
        with self._turn:
            self._show(how_far)

    def _show(self, how_far: HowFar) -> None:
        every_s = 0.1 if is_terminal("stderr") else PLAIN_EVERY_S
        now, ready = SYSTEM.monotonic(), how_far.of is not None and (how_far.done or 0) >= how_far.of
        if how_far is self._said or self._in_line or (now < self._said_at + every_s and not ready):
            return
        self._said_at, self._said = now, how_far
        if is_terminal("stderr"):
            self._drawn = True
            self._line.say(f"{bar(how_far)}{in_words(how_far)}")
        else:
            self._print_line(f"progress: {safe(in_words(how_far))}")

    def make_way(self, text: str) -> None:
        """Erase the bar, since *text* is about to be printed."""
        with self._turn:
            if self._drawn:
                self._drawn = False
                self._line.say("")
            self._in_line = bool(text) and not text.endswith("\n")


def bar(how_far: HowFar) -> str:
    """Return text such as "[######..............] ", or "" if there is no total."""
    if how_far.of is None or how_far.done is None:
        return ""
    full = min(BAR, int(BAR * how_far.done / how_far.of))
    return f"[{'#' * full}{'.' * (BAR - full)}] "


class Progress:
    """A progress line on stderr, rewritten in place and erased at the end. Without a terminal, nothing is printed."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream, self._shown = stream, ""

    def __enter__(self) -> Progress:
        return self

    def say(self, text: str) -> None:
        if is_terminal("stderr") and (text or self._shown):
            self._shown = text
            with suppress(OSError):
                # Cut the line: if it wrapped, it could not be overwritten.
                stream = self._stream or sys.stderr
                room = (os.get_terminal_size(stream.fileno()).columns or 80) - 1
                stream.write(f"\r{fit(safe(text), room)}\x1b[K")
                stream.flush()

    def __exit__(self, *_: object) -> None:
        self.say("")
