"""Two sessions, or more, that go on one statement at a time, in an order that a random case chooses."""

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
SLOW_S = 1.0  # a session that neither arrives nor waits for a lock by then: let another go on beside it
POLL_S = 0.001


class _Session(threading.Thread):
    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.act = act
        self.result: Any = None
        self.error: BaseException | None = None
        self.go = threading.Event()
        self.stands = threading.Event()  # before a statement, until it may go on
        self.over = False
        self.polls = False  # waits in a loop for a lock of SQLite's file
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
    """Where a session may be overtaken; in place of ``sleep`` it lets the others do what is waited for."""
    session = getattr(_here, "session", None)
    if session is not None:
        session.polls = False
        session.stop()


def poll(_seconds: float) -> None:
    """In place of the ``sleep`` of who waits for the lock of SQLite's file."""
    session = getattr(_here, "session", None)
    if session is not None:
        session.polls = True
    threading.Event().wait(POLL_S)


@contextmanager
def stepped(url: str | None = None) -> Iterator[Callable[..., list[Any]]]:
    """Stop sessions before each statement, COMMIT and ROLLBACK; *url* PostgreSQL's, to see who waits for a lock.

    Yields a function that runs acts side by side and returns what each returned, or raised.
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
        # A run of several statements, often: a race needs the other one at one place, not at each.
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
    """Whether it came to its next stop; False: it waits for a lock, or takes long."""
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
