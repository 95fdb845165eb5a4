"""The order of writers of a SQLite file: fair among processes, and the loop comes first among threads."""

from __future__ import annotations

import ctypes
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.databases import until

from cronjobs.clock import SYSTEM
from cronjobs.engine.database.sqlite_turns import Turns, _Files
from cronjobs.errors import DatabaseBusy


@pytest.fixture
def turns(tmp_path: Path) -> Iterator[Turns]:
    turns = Turns("sqlite:///jobs.db", str(tmp_path / "jobs.db"), SYSTEM)
    yield turns
    turns.close()


def test_the_loop_goes_before_threads_that_came_earlier(turns: Turns) -> None:
    order = []
    waiting = threading.Semaphore(0)

    def write(name: str, next_in_line: bool) -> None:
        waiting.release()
        with turns.turn(10, next_in_line=next_in_line):
            order.append(name)

    with turns.turn(1, next_in_line=True):
        threads = [threading.Thread(target=write, args=(f"worker {n}", False)) for n in range(3)]
        for thread in threads:
            thread.start()
            waiting.acquire()
        loop = threading.Thread(target=write, args=("loop", True))
        loop.start()
        until(lambda: turns._loops == 1)
    for thread in [*threads, loop]:
        thread.join(60)
    assert order[0] == "loop"
    assert sorted(order) == ["loop", "worker 0", "worker 1", "worker 2"]


def test_the_loop_uses_the_turn_that_its_worker_was_waiting_for(turns: Turns, tmp_path: Path) -> None:
    """Else it starves: each time its own patience ends behind another process's handler, a worker takes the place."""
    order: list[str] = []

    def write(name: str, next_in_line: bool) -> None:
        with turns.turn(10, next_in_line=next_in_line):
            order.append(name)

    with (tmp_path / "jobs.db-turn").open("w") as of_another_process:
        fcntl.flock(of_another_process, fcntl.LOCK_EX)
        worker = threading.Thread(target=write, args=("worker", False))
        worker.start()
        until(lambda: turns._fetching)
        loop = threading.Thread(target=write, args=("loop", True))
        loop.start()
        until(lambda: turns._loops == 1)
    worker.join(60)
    loop.join(60)
    assert order == ["loop", "worker"]


def test_after_a_worker_another_process_has_its_turn(turns: Turns, tmp_path: Path) -> None:
    """The rule also holds when more workers of the same process wait, and the loop as well."""
    other = Turns("sqlite:///jobs.db", str(tmp_path / "jobs.db"), SYSTEM)
    order: list[str] = []

    def write(whose: Turns, name: str) -> None:
        with whose.turn(10):
            order.append(name)

    with turns.turn(1):
        rival = threading.Thread(target=write, args=(other, "rival"))
        rival.start()
        until(lambda: is_next(tmp_path))
        threads = [threading.Thread(target=write, args=(turns, "ours")) for _ in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: turns._others == 3)
    for thread in [rival, *threads]:
        thread.join(60)
    assert order[0] == "rival"
    other.close()


def is_next(folder: Path) -> bool:
    with (folder / "jobs.db-next").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_patience_for_a_turn_ends(turns: Turns) -> None:
    with turns.turn(1):
        for next_in_line in (True, False):
            for patience in (0.0, -0.5, 0.01):
                with pytest.raises(DatabaseBusy), turns.turn(patience, next_in_line=next_in_line):
                    pass
    with turns.turn(0.0):  # those who gave up have left nothing behind
        pass


def test_a_copy_forked_in_c_does_not_give_the_original_s_turn_back(tmp_path: Path) -> None:
    """Such a fork tells Python nothing, so the copy has the same open files, and flock's lock is theirs: flock(2)."""
    files = _Files("jobs", str(tmp_path / "jobs.db"), SYSTEM)
    assert files.take(SYSTEM.monotonic() + 5)
    pid = ctypes.PyDLL(None).fork()
    if pid == 0:
        files.give_back()
        os._exit(0)
    os.waitpid(pid, 0)
    with (tmp_path / "jobs.db-turn").open("rb") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    files.give_back()
    with (tmp_path / "jobs.db-turn").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    files.close()
