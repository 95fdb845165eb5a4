"""Run two or more sessions one statement at a time, in an order that a random case chooses."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import event
from sqlalchemy.engine import Engine

from cronjobs.clock import SYSTEM

STUCK_S = 60.0
# If a session neither arrives at its next stop nor waits for a lock within this time, let another session run beside
# it.
SLOW_S = 1.0
POLL_S = 0.001


class _Session(threading.Thread):
    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.act = act
        self.result: Any = None
        self.error: BaseException | None = None
        self.go = threading.Event()
        self.stands = threading.Event()  # set while the session is stopped before a statement
        self.over = False
        self.polls = False  # whether the session polls for a lock of SQLite's file
        self.backend: int | None = None

    def run(self) -> None:
        _here.session = self
        self.stop()
        try:
            self.result = self.act()
        except BaseException as error:
            self.error = error
        self.over = True
        self.stands.set()

    def stop(self) -> None:
        self.go.clear()
        self.stands.set()
        assert self.go.wait(STUCK_S), "nobody let this session go on"


_here = threading.local()


def step(*_given: object) -> None:
    """A point at which other sessions may overtake. As a replacement for ``sleep``, it lets the others run."""
    session = getattr(_here, "session", None)
    if session is not None:
        session.polls = False
        session.stop()


def poll(_seconds: float) -> None:
    """Replaces the ``sleep`` of a session that waits for the lock of SQLite's file."""
    session = getattr(_here, "session", None)
    if session is not None:
        session.polls = True
    threading.Event().wait(POLL_S)


@contextmanager
def stepped(url: str | None = None) -> Iterator[Callable[..., list[Any]]]:
    """Stop sessions before each statement, COMMIT and ROLLBACK.

    *url* is PostgreSQL's, to see which session waits for a lock.

    Yield a function that runs acts side by side and returns what each act returned or raised.
    """

    def before(connection: Any, *_given: object) -> None:
        session = getattr(_here, "session", None)
        if session is not None:
            driver = None if connection.invalidated else connection.connection.driver_connection
            session.backend = driver.info.backend_pid if isinstance(driver, psycopg.Connection) else None
            step()

    events = ("before_cursor_execute", "commit", "rollback")
    for name in events:
        event.listen(Engine, name, before)
    observer = None if url is None else psycopg.connect(url, autocommit=True)
    try:
        yield lambda chance, *acts: _run(chance, acts, observer)
    finally:
        for name in events:
            event.remove(Engine, name, before)
        if observer is not None:
            observer.close()


def _run(chance: random.Random, acts: Sequence[Callable[[], Any]], observer: Any) -> list[Any]:
    sessions = [_Session(act) for act in acts]
    for session in sessions:
        session.start()
        assert session.stands.wait(STUCK_S)
    while not all(session.over for session in sessions):
        ready = [session for session in sessions if session.stands.is_set() and not session.over]
        if not ready:
            threading.Event().wait(POLL_S)
            continue
        chosen = chance.choice(ready)
        # Often let a session run several statements: a race needs the other session at one point, not at each.
        for _ in range(chance.choice((1, 1, 2, 5, 20))):
            chosen.stands.clear()
            chosen.polls = False
            chosen.go.set()
            if not _arrives(chosen, observer) or chosen.over:
                break
    for session in sessions:
        session.join(STUCK_S)
    return [session.result if session.error is None else session.error for session in sessions]


def _arrives(session: _Session, observer: Any) -> bool:
    """Whether the session arrived at its next stop. If not, it waits for a lock, or is slow."""
    started = SYSTEM.monotonic()
    while not session.stands.wait(POLL_S):
        waited = SYSTEM.monotonic() - started
        if session.polls or waited > SLOW_S or (waited > POLL_S * 10 and _waits(session, observer)):
            return False
    return True


def _waits(session: _Session, observer: Any) -> bool:
    if observer is None or session.backend is None:
        return False
    asked = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
    return bool(observer.execute(asked, (session.backend,)).fetchone()[0])
