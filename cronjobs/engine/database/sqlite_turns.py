"""Make the writers of a SQLite file take turns. Writers are the threads of a process, and different processes.

SQLite's own busy handler is not fair: a loop once waited 26 s behind transactions of 2 s each, and one process once
took all the work. So writers take turns by locking files beside the database with flock. The kernel releases the locks
of a process that dies.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from cronjobs.clock import Clock, sleep
from cronjobs.engine.database.error_mapping import file_refusal
from cronjobs.engine.host.forks import OutOfReach, replace_by_nothing, undisturbed
from cronjobs.errors import DatabaseBusy

POLL_S: Final = 0.002
# This time is longer than a handler may hold the turn, and shorter than a write waits for its turn.
GO_PAST_S: Final = 3.0


class Turns:
    """Turns to write to one database file. The tick's loop gets the turn before all other waiting threads of its
    process.

    The turn belongs to a process, and any waiting thread can get it for the process. The loop may then use the turn
    before that thread does, and once more afterwards. So a loop waits for at most one writer of each other process, and
    does not wait for its own workers.
    """

    def __init__(self, database: str, file: str, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._files = _Files(database, file, clock)
        self._changed = threading.Condition()
        self._is_ours = False  # True if this process holds the turn
        self._in_use = False  # True if a thread of this process is using the turn
        self._spent = False  # True if a thread other than the loop has used the turn
        self._fetching = False
        self._loops = 0  # the number of loops that are waiting
        self._others = 0  # the number of other threads that are waiting

    @contextmanager
    def turn(self, patience: float, *, next_in_line: bool = False) -> Iterator[None]:
        """Hold the turn during a block.

        *next_in_line* is True for the loop. Raises DatabaseBusy if the turn has not come after *patience* seconds.
        """
        if not self._enter(self._clock.monotonic() + max(0.0, patience), next_in_line):
            raise DatabaseBusy(self._database, max(0.0, patience))
        try:
            yield
        finally:
            with self._changed:
                self._in_use = False
                self._let_go(over=next_in_line and self._spent)

    def close(self) -> None:
        self._files.close()

    def _enter(self, give_up_at: float, is_loop: bool) -> bool:
        tried = False
        with self._changed:
            self._count(is_loop, 1)
            try:
                while True:
                    if self._is_ours and not self._in_use and (is_loop or not (self._loops or self._spent)):
                        self._in_use, self._spent = True, self._spent or not is_loop
                        return True
                    left = give_up_at - self._clock.monotonic()
                    if left <= 0 and tried:
                        return False
                    tried = True
                    if self._is_ours or self._fetching:
                        self._changed.wait(max(0.0, left))
                    else:
                        self._fetch(give_up_at)
            finally:
                self._count(is_loop, -1)
                self._let_go()

    def _count(self, is_loop: bool, by: int) -> None:
        if is_loop:
            self._loops += by
        else:
            self._others += by

    def _fetch(self, give_up_at: float) -> None:
        """Get the turn for the process, while its other threads wait for this one."""
        self._fetching = True
        self._changed.release()
        got = False
        try:
            got = self._files.take(give_up_at)
        finally:
            self._changed.acquire()
            self._fetching, self._is_ours = False, got
            self._changed.notify_all()

    def _let_go(self, *, over: bool = False) -> None:
        """Give the turn to other processes, unless a thread of this process is using it or a waiting thread may still
        use it.
        """
        if self._is_ours and not self._in_use:
            if over or not (self._loops or (self._others and not self._spent)):
                self._files.give_back()
                self._is_ours = self._spent = False
            self._changed.notify_all()


class _Files(OutOfReach):
    """Two empty files beside the database. Only the process that has locked ``-next`` may try to lock ``-turn``.

    In a test of 5 s with only one lock, a process that wrote all the time always got the lock back before the waiting
    process polled again.
    """

    def __init__(self, database: str, file: str, clock: Clock) -> None:
        super().__init__()
        self._database, self._file, self._clock = database, file, clock
        self._open: tuple[int, int] | None = None

    def forked(self) -> None:
        """Close the lock files of this process, which is a forked copy of another one.

        Otherwise the copy would keep the turn as long as it lives.
        """
        for file in self._open or ():
            replace_by_nothing(file)

    def take(self, give_up_at: float) -> bool:
        turn, following = self._opened()
        # If the process that is next is suspended, it must not block all other processes. So after GO_PAST_S, the
        # others try without waiting for it.
        is_next = self._lock(following, min(give_up_at, self._clock.monotonic() + GO_PAST_S), POLL_S)
        try:
            # It is cheap to poll this often, because only one process does so, and only for milliseconds.
            return self._lock(turn, give_up_at, POLL_S / 10 if is_next else POLL_S)
        finally:
            if is_next:
                fcntl.flock(following, fcntl.LOCK_UN)

    def give_back(self) -> None:
        # An unlock in a forked copy would release the lock of the original process, see flock(2).
        if not self.is_copy:
            fcntl.flock(self._opened()[0], fcntl.LOCK_UN)

    def close(self) -> None:
        for file in self._open or ():
            os.close(file)
        self._open = None

    def _opened(self) -> tuple[int, int]:
        if self._open is None:
            with undisturbed():
                self._open = self._lock_file("turn"), self._lock_file("next")
        return self._open

    def _lock_file(self, name: str) -> int:
        path = f"{self._file}-{name}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise file_refusal(self._database, path, error) from None
        # If another user created the file, only that user may change its mode.
        with suppress(OSError):
            self._share(descriptor)
        return descriptor

    def _share(self, descriptor: int) -> None:
        """Give the lock file the mode and the group of the database file, so that all users who share the database can
        lock it.

        SQLite does the same with its own extra files.
        """
        database, lock = Path(self._file).stat(), os.fstat(descriptor)
        if lock.st_gid != database.st_gid:
            os.fchown(descriptor, -1, database.st_gid)
        if stat.S_IMODE(lock.st_mode) != (wanted := stat.S_IMODE(database.st_mode) & 0o666):
            os.fchmod(descriptor, wanted)

    def _lock(self, file: int, give_up_at: float, poll_s: float) -> bool:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if self._clock.monotonic() >= give_up_at:
                    return False
            except OSError as error:
                raise file_refusal(self._database, "a lock file beside it cannot be locked", error) from None
            sleep(poll_s)
