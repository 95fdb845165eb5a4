"""Work in many short steps for a person who waits: progress on a terminal, a Ctrl-C that comes between two steps."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from cronjobs.cli.output import fit, is_terminal, safe


def is_interactive() -> bool:
    """Whether there is someone who can be asked, and sees the question."""
    return is_terminal("stdin") and is_terminal("stderr")


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C only sets what the block asks for; the second one is a KeyboardInterrupt as ever."""
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


class Progress:
    """One line on stderr that is written over, on a terminal only, and gone at the end."""

    def __enter__(self) -> Progress:
        return self

    def say(self, text: str) -> None:
        if is_terminal("stderr"):
            with suppress(OSError):
                # A line that wraps could not be written over.
                room = (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1
                sys.stderr.write(f"\r{fit(safe(text), room)}\x1b[K")
                sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        self.say("")
