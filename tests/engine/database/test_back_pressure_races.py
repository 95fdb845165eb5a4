"""A cap holds exactly, even if threads, batches, autocommit connections, SQL and processes enqueue at the same time."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, event
from support.capped import cap, dropped, in_queue
from support.djangos import configured
from support.postgres import ENQUEUE, as_role
from support.targets import plain_url
from support.ticking import Project, rivals

from cronjobs import QueueFull, enqueue, enqueue_many
from cronjobs.clock import sleep
from cronjobs.engine.database.connection import Database
from cronjobs.engine.rules.capacity import admit
from cronjobs.engine.store import claims
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.engine.store.enqueue import replace_rows
from cronjobs.model import Status

THREADS, EACH = 8, 40
MOST = 50


def race(work: Callable[[int], Counter[str]], threads: int = THREADS) -> Counter[str]:
    """Let *threads* do *work* at the same moment; what all of them counted."""
    ready = threading.Barrier(threads)

    def run(number: int) -> Counter[str]:
        ready.wait(30)
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(run, range(threads)), Counter())


@pytest.mark.slow
@pytest.mark.parametrize("on_full", ["error", "drop"])
def test_racing_transactions_fill_a_queue_to_its_cap_and_not_beyond(database: Database, on_full: Any) -> None:
    cap(database, MOST, on_full)

    def work(number: int) -> Counter[str]:
        told: Counter[str] = Counter()
        for _ in range(EACH // 2):
            try:
                with database.write(patience=60) as connection:
                    two = enqueue_many(connection, "t.say", [{}, {}], queue="mail")
            except QueueFull:
                told["refused"] += 2
                continue
            told["made"] += sum(one.new for one in two)
            told["dropped"] += sum(one.dropped for one in two)
        return told

    told = race(work)
    assert (told["made"], in_queue(database)) == (MOST, MOST)
    assert told.total() == THREADS * EACH
    assert dropped(database) == told["dropped"] == (told.total() - MOST if on_full == "drop" else 0)


# --- autocommit: each statement is a transaction ----------------------------------------------------------------------


@contextmanager
def sqlalchemy_autocommit(url: str) -> Iterator[Any]:
    engine = create_engine(plain_url(url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@contextmanager
def driver_autocommit(url: str) -> Iterator[Any]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=0)) as connection:
            yield connection
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            yield connection


@contextmanager
def django_autocommit(url: str) -> Iterator[Any]:
    from django.db import connections  # type: ignore[import-untyped]

    for alias in configured(url):
        yield connections[alias]


@pytest.mark.parametrize("connect", [sqlalchemy_autocommit, driver_autocommit, django_autocommit])
def test_a_cap_is_locked_from_count_to_insert_where_each_statement_is_a_transaction(
    database: Database, database_url: str, connect: Any, monkeypatch: Any
) -> None:
    cap(database, 1)
    found: list[bool] = []

    def look(*asked: Any) -> Any:
        """Between the count and the INSERT."""
        found.append(is_locked(database_url))
        return admit(*asked)

    monkeypatch.setattr("cronjobs.engine.jobs.insertion.admit", look)
    with connect(database_url) as connection:
        assert enqueue(connection, "t.say", queue="mail").new
        assert not is_locked(database_url)
        with pytest.raises(QueueFull):
            enqueue(connection, "t.say", queue="mail")
        assert not is_locked(database_url)
    assert found == [True, True]
    assert in_queue(database) == 1


def test_a_call_for_several_queues_has_sqlites_lock_before_it_counts(sqlite_migrated: str, monkeypatch: Any) -> None:
    found: list[bool] = []

    def look(*asked: Any) -> Any:
        found.append(is_locked(f"sqlite:///{sqlite_migrated}"))
        return admit(*asked)

    monkeypatch.setattr("cronjobs.engine.jobs.insertion.admit", look)
    with closing(sqlite3.connect(sqlite_migrated)) as connection:
        rows: list[Any] = [({}, {"queue": "mail"}), ({}, {"queue": "sms"})]
        assert len(enqueue_many(connection, "t.say", rows)) == 2
    assert found == [True]


def is_locked(url: str) -> bool:
    """Whether another connection could not enqueue there now."""
    with driver_autocommit(url) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE" if url.startswith("sqlite") else LOCK)
        except (sqlite3.OperationalError, psycopg.errors.LockNotAvailable):
            return True
    return False


LOCK = "SELECT 1 FROM cronjobs_queues WHERE name = 'mail' FOR NO KEY UPDATE NOWAIT"


# --- the function of PostgreSQL ---------------------------------------------------------------------------------------


def test_the_function_obeys_the_cap_beside_python(postgres_migrated: str) -> None:
    with psycopg.connect(postgres_migrated, autocommit=True) as connection:
        connection.execute("INSERT INTO cronjobs_queues (name, max_waiting) VALUES ('mail', %s)", [MOST])

    def work(number: int) -> Counter[str]:
        told: Counter[str] = Counter()
        with psycopg.connect(postgres_migrated, autocommit=True) as connection:
            for _ in range(EACH):
                try:
                    if number % 2:
                        connection.execute("SELECT cronjobs_enqueue('t.say', queue => 'mail')")
                    else:
                        enqueue(connection, "t.say", queue="mail")
                except QueueFull:
                    told["refused"] += 1
                except psycopg.Error as error:
                    told["refused" if error.sqlstate == "CJ001" else str(error)] += 1
                else:
                    told["made"] += 1
        return told

    assert race(work, 4) == {"made": MOST, "refused": 4 * EACH - MOST}
    with psycopg.connect(postgres_migrated) as connection:
        assert connection.execute("SELECT count(*) FROM cronjobs_jobs").fetchone() == (MOST,)


def test_the_function_drops_where_the_queue_does_and_tells_of_spent_keys(postgres_migrated: str) -> None:
    with psycopg.connect(postgres_migrated, autocommit=True) as psql:
        psql.execute("INSERT INTO cronjobs_queues (name, max_waiting, on_full) VALUES ('mail', 1, 'drop')")
        call = "SELECT id, new, status FROM cronjobs_enqueue('t.say', queue => 'mail', idempotency_key => %s)"
        assert psql.execute(call, ["k"]).fetchall() == [(1, True, "queued")]
        assert psql.execute(call, ["l"]).fetchall() == [(None, False, None)]
        assert psql.execute(call, ["k"]).fetchall() == [(1, False, "queued")]
        assert psql.execute("SELECT dropped FROM cronjobs_queues").fetchall() == [(1,)]
        psql.execute("UPDATE cronjobs_queues SET on_full = 'wait'")
        with pytest.raises(psycopg.Error, match=r'queue "mail" is full \(max_waiting 1\): nothing was written'):
            psql.execute(call, ["l"])


def test_the_function_waits_for_nobody_for_ever_and_leaves_the_callers_patience(postgres_migrated: str) -> None:
    asked = "SELECT current_setting('lock_timeout')"
    with psycopg.connect(postgres_migrated) as holder, psycopg.connect(postgres_migrated) as user:
        holder.execute("INSERT INTO cronjobs_queues (name, max_waiting) VALUES ('mail', 9)")
        holder.commit()
        user.execute("SELECT cronjobs_enqueue('t.say', queue => 'mail')")
        assert user.execute(asked).fetchone() == ("0",)
        user.commit()
        enqueue(holder, "t.say", queue="mail")
        user.execute("SET lock_timeout = '1ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            user.execute("SELECT cronjobs_enqueue('t.say', queue => 'mail')")


def test_an_enqueuers_least_rights_suffice(postgres_migrated: str) -> None:
    with psycopg.connect(postgres_migrated, autocommit=True) as owner:
        owner.execute("INSERT INTO cronjobs_queues (name, max_waiting, on_full) VALUES ('mail', 2, 'drop')")
    with psycopg.connect(as_role(postgres_migrated, ENQUEUE), autocommit=True) as user:
        told = [enqueue(user, "t.say", queue="mail", idempotency_key=f"k{n}").dropped for n in range(3)]
        user.execute("SELECT cronjobs_enqueue('t.say', queue => 'mail')")
        assert told == [False, False, True]
        assert user.execute("SELECT dropped FROM cronjobs_queues").fetchall() == [(2,)]


# --- processes --------------------------------------------------------------------------------------------------------

ENQUEUER = """
import sys
from collections import Counter
from sqlalchemy import create_engine, event
from cronjobs import enqueue
url, count = sys.argv[1], int(sys.argv[2])
engine = create_engine(url, connect_args={"timeout": 60} if url.startswith("sqlite") else {})
told = Counter()
for n in range(count):
    enqueue(engine, "t.quick", queue="patient", wait="5m")
    told["dropped" if enqueue(engine, "t.quick", queue="hasty").dropped else "made"] += 1
print(told["made"], told["dropped"])
"""
CAPS = "run: {workers: 4}\nqueues: {patient: {max_waiting: 8, on_full: wait}, hasty: {max_waiting: 8, on_full: drop}}\n"
COUNT = 12


@pytest.mark.slow
def test_four_processes_stay_below_the_caps_while_ticks_drain(project: Project) -> None:
    project.configure(CAPS)
    project.tick()  # puts the caps in force
    enqueuers = [
        subprocess.Popen(
            [sys.executable, "-c", ENQUEUER, plain_url(project.url), str(COUNT)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    most: Counter[str] = Counter()
    try:
        with rivals(project), rivals(project), closing(project.connect()) as connection:
            while any(process.poll() is None for process in enqueuers):
                for queue, waiting in connection.execute(SEEN).fetchall():
                    most[queue] = max(most[queue], waiting)
                sleep(0.002)
            told = [process.communicate(timeout=60)[0].split() for process in enqueuers]
    finally:
        for process in enqueuers:
            process.kill()
    made, dropped = (sum(int(one[place]) for one in told) for place in (0, 1))
    project.tick()
    # Never over; and full, or nearly so when somebody looked, so that the caps were what held.
    assert all(6 <= most[queue] <= 8 for queue in ("patient", "hasty")), most
    assert made + dropped == 4 * COUNT
    assert project.sql("SELECT name, dropped FROM cronjobs_queues ORDER BY name") == [
        ("hasty", dropped),
        ("patient", 0),
    ]
    assert project.sql("SELECT queue, count(*) FROM cronjobs_jobs GROUP BY queue ORDER BY queue") == [
        ("hasty", made),
        ("patient", 4 * COUNT),
    ]
    assert project.statuses() == {"succeeded": made + 4 * COUNT}
    assert set(project.times_ran().values()) == {1}


# Never claimed: what a tick gives back, as a retry, is never refused.
SEEN = "SELECT queue, count(*) FROM cronjobs_jobs WHERE status = 'queued' AND attempts = 0 GROUP BY queue"


# --- a tick claims between two statements -----------------------------------------------------------------------------


@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("many", [True, False])
def test_a_job_that_is_claimed_while_it_is_replaced_stays_as_begun(
    database: Database, database_url: str, many: bool, moved: bool
) -> None:
    """Between the look for the key and the look under the queue's lock. On SQLite only autocommit lets a tick in."""
    cap(database, 5)
    with database.write() as connection:
        there = enqueue(connection, "t.say", queue="other" if moved else "mail", idempotency_key="k")
    claimed: list[str] = []

    def claim(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not claimed and ("SKIP LOCKED" in statement or "SET dropped = dropped" in statement):
            claimed.append(statement)
            with database.write() as connection:
                admission = ClaimFilter(known=["t.say"], fitting=["t.say"], remaining_s=60)
                lease = timedelta(minutes=1)
                claims.claim(connection, limit=1, locked_by="h:1:1:1:1:t", lease=lease, admission=admission)

    engine = create_engine(plain_url(database_url), isolation_level="AUTOCOMMIT")
    event.listen(engine, "before_cursor_execute", claim)
    new: list[Any] = [({}, {"idempotency_key": "k"})] + [({}, {"idempotency_key": "new"})] * many
    with engine.connect() as connection:
        found = enqueue_many(connection, "t.say", new, queue="mail", on_conflict="replace")
    engine.dispose()
    if moved or many:  # else it needs no room, and no lock
        assert claimed
        assert (found[0].id, found[0].new, found[0].status) == (there.id, False, Status.RUNNING)
    assert [each.new for each in found] == [False, True][: len(new)]


# --- a job that is replaced -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("connect", [sqlalchemy_autocommit, driver_autocommit])
def test_a_cap_is_locked_until_a_job_is_moved_in_where_each_statement_is_a_transaction(
    database: Database, database_url: str, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cap(database, 1)
    found: list[bool] = []

    def look(*given: Any) -> Any:
        found.append(is_locked(database_url))
        return replace_rows(*given)

    monkeypatch.setattr("cronjobs.engine.jobs.insertion.replace_rows", look)
    with connect(database_url) as connection:
        there = enqueue(connection, "t.say", queue="other", idempotency_key="k")
        moved = enqueue(connection, "t.say", queue="mail", idempotency_key="k", on_conflict="replace")
    assert (found, moved.id, in_queue(database)) == ([True], there.id, 1)


def test_a_job_that_leaves_its_queue_while_it_is_replaced_comes_back_only_if_there_is_room(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    cap(database, 1)
    with database.write() as connection:
        enqueue(connection, "t.say", queue="mail", idempotency_key="k")

    def overtaken(*given: Any) -> Any:
        """After the look that found it in its queue, where it needs no room."""
        monkeypatch.undo()
        with engine.begin() as other:
            enqueue(other, "t.say", queue="other", idempotency_key="k", on_conflict="replace")
            enqueue(other, "t.say", queue="mail")
        return replace_rows(*given)

    monkeypatch.setattr("cronjobs.engine.jobs.insertion.replace_rows", overtaken)
    url = database.address.url.set(drivername="sqlite" if database.is_sqlite else "postgresql+psycopg")
    engine = create_engine(url)
    autocommit = create_engine(url, isolation_level="AUTOCOMMIT")  # in a transaction SQLite would let nobody in
    with autocommit.connect() as connection, pytest.raises(QueueFull):
        enqueue(connection, "t.say", queue="mail", idempotency_key="k", on_conflict="replace")
    assert in_queue(database) == 1
    engine.dispose()
    autocommit.dispose()
