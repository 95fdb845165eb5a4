"""Redraw a screen in place, as watch(1) does, and restore the terminal at the end."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final
from zoneinfo import ZoneInfo

from cronjobs import masking
from cronjobs.clock import SYSTEM
from cronjobs.desk.insight.formatting import safe
from cronjobs.engine.command.printing import coloured
from cronjobs.errors import CronjobsError
from cronjobs.model import in_zone

# Switch to the alternate screen, hide the cursor, and turn line wrap off.
ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"
LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
HOME: Final = "\x1b[H"
END_OF_LINE: Final = "\x1b[K"
BELOW: Final = "\x1b[J"
STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
QUIT: Final = b"qQ\x03"


class Screen:
    """Calls *look* every few seconds and draws the lines that it returns, until "q", Ctrl-C or SIGTERM.

    While *look* fails, the last lines stay on the screen, below the error.
    """

    def __init__(self, look: Callable[[], Sequence[str]], every_s: float, timezone: str = "UTC") -> None:
        self._look, self._every_s, self._timezone = look, every_s, timezone
        self._lines: Sequence[str] = []
        self._trouble: str | None = None
        self._since = ""
        self._modes: list[Any] = []
        self._stopped = self._resized = self._looking = False

    def run(self) -> None:
        # Remove these variables, so that shutil asks the terminal for its size, which may change.
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)
        self._modes = termios.tcgetattr(sys.stdin)
        with _signals(self._heard) as woken, _alternate_screen(self._modes):
            while not self._stopped:
                with suppress(KeyboardInterrupt):
                    self._look_once()
                    self._draw()
                    self._wait(woken)

    def _look_once(self) -> None:
        try:
            self._looking = True
            self._lines = self._look()
            self._trouble = None
        except CronjobsError as error:
            if self._trouble is None:
                now = in_zone(SYSTEM.now(), ZoneInfo(self._timezone))
                self._since = f"{now:%H:%M:%S} {self._timezone} by this host's clock"
            self._trouble = f"no data since {self._since}: {safe(' '.join(error.lines))}"
        finally:
            self._looking = False

    def _draw(self) -> None:
        size = shutil.get_terminal_size()
        lines = list(self._lines)
        if self._trouble is not None:
            what = [self._trouble[at : at + size.columns] for at in range(0, len(self._trouble), max(1, size.columns))]
            note = "state at the last refresh:" if lines else "the next refresh will try again"
            lines = [*(coloured(line, "red") for line in what[:4]), coloured(note, "bright_black"), *lines]
        if len(lines) > size.lines:
            left_out = len(lines) - size.lines + 1
            lines = [*lines[: size.lines - 1], coloured(f"… and {left_out} more lines", "bright_black")]
        text = masking.hide((END_OF_LINE + "\r\n").join(lines))
        _put(HOME + text + END_OF_LINE + BELOW)

    def _wait(self, woken: int) -> None:
        """Sleep until the next look. If the terminal changes size, return at once."""
        until = SYSTEM.monotonic() + self._every_s
        while not self._stopped and (left_s := until - SYSTEM.monotonic()) > 0:
            ready, _, _ = select.select([woken, sys.stdin], [], [], left_s)
            if woken in ready:
                os.read(woken, 512)
            if sys.stdin in ready:
                typed = os.read(sys.stdin.fileno(), 512)
                self._stopped = self._stopped or not typed or any(key in QUIT for key in typed)
            if self._resized:
                self._resized = False
                return

    def _heard(self, number: int, _frame: Any) -> None:
        if number in STOPPING:
            self._stopped = True
            # Interrupt look(), which may be waiting for a database that does not answer.
            if self._looking:
                raise KeyboardInterrupt
        elif number == signal.SIGTSTP:
            _leave(self._modes)
            os.kill(os.getpid(), signal.SIGSTOP)  # the process stops here until SIGCONT
            _enter()
            self._resized = True
        else:
            self._resized = True


@contextmanager
def _signals(heard: Callable[[int, Any], None]) -> Iterator[int]:
    """Pass signals to *heard*, and yield a descriptor that becomes readable when a signal arrives."""
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    before = {number: signal.signal(number, heard) for number in (*STOPPING, signal.SIGTSTP, signal.SIGWINCH)}
    wake_up_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(wake_up_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


@contextmanager
def _alternate_screen(modes: list[Any]) -> Iterator[None]:
    try:
        _enter()
        yield
    finally:
        _leave(modes)


def _enter() -> None:
    """Set the terminal to read single keys without echo."""
    tty.setcbreak(sys.stdin)
    _put(ENTER)


def _leave(modes: list[Any]) -> None:
    _put(LEAVE)
    with suppress(termios.error):  # the terminal may be gone
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)


def _put(text: str) -> None:
    """Write to the terminal. If the terminal is gone, ignore the error, since SIGHUP will end the program.

    This function bypasses the buffer of sys.stdout, which is not reentrant: a signal handler may draw in the middle of
    a write.
    """
    data = text.encode(sys.stdout.encoding or "ascii", "backslashreplace")
    with suppress(OSError, ValueError):
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]
