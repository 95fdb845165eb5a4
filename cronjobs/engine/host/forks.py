"""Make sure that a forked copy of this process does no harm, and that it exits.

If a handler calls ``os.fork``, the copy inherits everything in this process, such as jobs that were claimed ahead,
database connections, lock files and cron's pipe. In the copy, only the handler's own code should run. When that code
returns, the copy exits. Every guard calls ``os.getpid``, because Python does not notice a fork in C code. After a fork
in Python, ``os.register_at_fork`` detaches the copy at once from kernel objects that both processes share.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn
from weakref import WeakSet

# This lock prevents a fork between the moment when a descriptor is opened and the moment when it is recorded.
_opening: Final = threading.Lock()
# The objects whose ``forked`` method is called in a forked copy.
_shared: Final[WeakSet[Any]] = WeakSet()
# In a forked copy, these objects are kept forever, because their destructors would use what both processes share.
_inherited: Final[list[Any]] = []
# The descriptors of the tick's own output streams, each with the file behind it.
_outlets: Final[dict[int, tuple[int, int]]] = {}


class OutOfReach(ABC):
    """An object that holds a resource, such as a connection or a lock, that a forked copy must not use.

    In the copy, ``forked`` is called before any other code runs.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        _shared.add(self)

    @property
    def is_copy(self) -> bool:
        """Whether this process is a forked copy of the process that created the object."""
        return self._pid != os.getpid()

    @abstractmethod
    def forked(self) -> None:
        """Make the object unusable in this forked copy, without affecting the original process."""


def undisturbed() -> threading.Lock:
    """Return a lock that prevents forks. Hold the lock while you open a descriptor and record it."""
    return _opening


def replace_by_nothing(descriptor: int) -> None:
    """In a forked copy, close the file behind *descriptor*, but keep the number, because other code may use it.

    This releases no flock: the lock belongs to the open file, which the original process still has open (flock(2)).
    """
    with suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.dup2(null, descriptor, inheritable=False)
        finally:
            os.close(null)


def keep_streams_from_copies() -> None:
    """Detach stdout and stderr in forked copies: cron waits until every process has closed its pipe."""
    for number in (1, 2):
        with suppress(OSError):
            _outlets[number] = _file_of(number)


def _file_of(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _in_the_copy() -> None:
    _opening.release()
    for each in list(_shared):
        _inherited.append(each)
        each.forked()
    for number, file in _outlets.items():
        with suppress(OSError):
            # If the file behind the descriptor has changed, pty.fork has already put a terminal there.
            if _file_of(number) == file:
                null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
                os.dup2(null, number)
                os.close(null)
    # Restore the default signal handlers. The tick's own handlers only set a flag for the loop, which does not run in
    # the copy.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        handler = signal.getsignal(number)
        if callable(handler) and str(getattr(handler, "__module__", "")).partition(".")[0] == "cronjobs":
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_in_the_copy)


class EndingCopies:
    """A block of user code. A forked copy that reaches the end of the block exits, with the exit code that a program
    would have.
    """

    def __enter__(self) -> None:
        self._pid = os.getpid()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._pid != os.getpid():
            _end_copy(error)


def _end_copy(error: BaseException | None) -> NoReturn:
    code: object = 0
    said = error
    while said is not None and not isinstance(said, SystemExit):
        # A forked copy cannot roll back, so leaving a transaction raises an error that hides the SystemExit.
        said = said.__context__
    if isinstance(said, SystemExit):
        code = said.code
        if code is not None and not isinstance(code, int):
            _print(lambda: sys.stderr.write(f"{code}\n"))
            code = 1
    elif error is not None:
        _print(lambda: traceback.print_exception(error))
        code = 1
    for stream in (sys.stdout, sys.stderr):
        _print(stream.flush)
    os._exit((code if isinstance(code, int) else 0) & 0xFF)


def _print(what: Callable[[], Any]) -> None:
    # The copy must end, whatever happens to its streams.
    with suppress(BaseException):
        what()
