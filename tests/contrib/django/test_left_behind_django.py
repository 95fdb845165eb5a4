"""The next job does not see what a handler leaves behind in Django's connections and in its context."""

from __future__ import annotations

import decimal
import random
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
from asgiref.sync import sync_to_async
from django import db  # type: ignore[import-untyped]  # a module: pytest would open a bare "connection"
from django.db import transaction  # type: ignore[import-untyped]
from django.db.backends.signals import connection_created  # type: ignore[import-untyped]
from django.utils import translation  # type: ignore[import-untyped]
from sqlalchemy import insert, select, text
from support.cases import judge
from support.django_project import django_project
from support.hosts import Host
from support.postgres import OWNER

from cronjobs import Context, GiveUp, RetryPolicy, Snooze, job
from cronjobs.clock import SYSTEM
from cronjobs.contrib.django import clean
from cronjobs.engine.config.settings import RunSettings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import job_runs, jobs
from cronjobs.engine.execution.output import follow_threads
from cronjobs.engine.probe.server_session import TIMEOUTS
from cronjobs.engine.tick.loop import Loop
from cronjobs.engine.tick.pacing import NO_SLOT

pytestmark = pytest.mark.connects_as(OWNER)

LEFT_OPEN = "the handler left a transaction open (on 'default' by {}); its writes were rolled back"
AUTOCOMMIT_OFF, BEGIN, ATOMIC = (
    "set_autocommit(False) without a commit",
    "a BEGIN without a COMMIT",
    "an atomic block that was never exited",
)
ONCE = RetryPolicy(max_attempts=1)
TICK_S = 20.0

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@pytest.fixture
def orders(database_url: str) -> Iterator[Database]:
    """A Django project on the jobs' database, which has orders, too."""
    database = Database(parse_url(database_url))
    with database.write() as session:
        session.execute(text("CREATE TABLE orders (job_id bigint, what text)"))
    with django_project(database_url):
        follow_threads()
        yield database
    database.close()


def run(database: Database, folder: Path, workers: int = 1) -> Any:
    """One tick in this process, whose worker threads end with it."""
    loops: list[Loop] = []
    real = Loop.run

    def noted(loop: Loop) -> str:
        loops.append(loop)
        return real(loop)

    host = Host(database, folder)
    host.carry(run=RunSettings(workers=workers))
    began = SYSTEM.monotonic()
    with patch.object(Loop, "run", noted):
        result = host.tick()
    for loop in loops:
        loop.workers.dismiss()
        for thread in loop.workers._threads:
            thread.join(60)
    assert (result.fault, result.trouble, result.stuck) == (None, None, False)
    assert SYSTEM.monotonic() - began < TICK_S
    return result


def put(database: Database, *job_types: str, **payload: Any) -> list[int]:
    """Add jobs that run one after another in this order."""
    now = SYSTEM.now()
    with database.write() as session:
        rows = [{"job_type": name, "payload": payload, "run_at": now, "created_at": now} for name in job_types]
        made = session.execute(insert(jobs).returning(jobs.c.id, sort_by_parameter_order=True), rows)
        return [int(job_id) for job_id in made.scalars()]


def ends(database: Database) -> dict[int, Any]:
    """The one attempt of each job: its outcome, error, error_type and traceback, and the job's result."""
    columns = (job_runs.c[name] for name in ("job_id", "outcome", "error", "error_type", "traceback"))
    with database.read() as session:
        found = session.execute(select(*columns, jobs.c.result).join(jobs, jobs.c.id == job_runs.c.job_id)).all()
    assert len({row.job_id for row in found}) == len(found)
    return {row.job_id: row for row in found}


def written(database: Database) -> list[tuple[int, str]]:
    with database.read() as session:
        return [(row.job_id, row.what) for row in session.execute(text("SELECT job_id, what FROM orders ORDER BY 1"))]


def write(ctx: Context, what: str) -> None:
    with db.connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (%s, %s)", [ctx.job_id, what])


def query(statement: str) -> None:
    with db.connection.cursor() as cursor:
        cursor.execute(statement)


# --- what is left behind ----------------------------------------------------------------------------------------------


def autocommit_off(ctx: Context) -> None:
    transaction.set_autocommit(False)
    write(ctx, "lost")


def raw_begin(ctx: Context) -> None:
    query("BEGIN")
    write(ctx, "lost")


def atomic_entered(ctx: Context) -> None:
    transaction.atomic().__enter__()
    write(ctx, "lost")


def two_atomics_entered(ctx: Context) -> None:
    atomic_entered(ctx)
    transaction.atomic().__enter__()
    write(ctx, "lost")


def broken_transaction(ctx: Context) -> None:
    raw_begin(ctx)
    try:
        query("SELECT * FROM no_such_table")
    except Exception:
        return


OPEN: dict[Callable[[Context], None], str] = {
    autocommit_off: AUTOCOMMIT_OFF,
    raw_begin: BEGIN,
    atomic_entered: ATOMIC,
    two_atomics_entered: ATOMIC,
    broken_transaction: BEGIN,
}


def commits_and_stays_off(ctx: Context) -> None:
    transaction.set_autocommit(False)
    write(ctx, "kept")
    transaction.commit()


def connection_cut(ctx: Context) -> None:
    """Cut the connection, by the server or by the handler itself."""
    write(ctx, "kept")
    if db.connection.vendor == "sqlite":
        db.connection.connection.close()
        return
    try:
        query("SELECT pg_terminate_backend(pg_backend_pid())")
    except Exception:
        return


def committed(ctx: Context) -> None:
    with transaction.atomic():
        write(ctx, "kept")


CLOSED: tuple[Callable[[Context], None], ...] = (commits_and_stays_off, connection_cut, committed)


def precision(_ctx: Context) -> None:
    decimal.getcontext().prec = 3


def a_tenant(_ctx: Context) -> None:
    tenant.set("acme")


def a_language(_ctx: Context) -> None:
    translation.activate("de")


BOUND: tuple[Callable[[Context], None], ...] = (precision, a_tenant, a_language)
PRISTINE = {"precision": 28, "tenant": "nobody", "language": "en-us", "autocommit": True, "atomic": False}


def facts() -> dict[str, Any]:
    return {
        "precision": decimal.getcontext().prec,
        "tenant": tenant.get(),
        "language": translation.get_language(),
    }


def facts_of_connection() -> dict[str, Any]:
    return {"autocommit": db.connection.get_autocommit(), "atomic": db.connection.in_atomic_block}


def handlers_that_look() -> None:
    @job("look.thread", timeout="10s", retry=ONCE)
    def look(ctx: Context) -> dict[str, Any]:
        found = facts() | facts_of_connection()
        write(ctx, "paid")
        return found

    @job("look.async", timeout="10s", retry=ONCE)
    async def alook(ctx: Context) -> dict[str, Any]:
        found = facts() | await sync_to_async(facts_of_connection)()
        await sync_to_async(write)(ctx, "paid")
        return found


# --- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", OPEN, ids=[each.__name__ for each in OPEN])
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_an_open_transaction_is_rolled_back_and_fails_its_attempt_and_no_other(
    orders: Database, tmp_path: Path, leave: Callable[[Context], None], kind: str
) -> None:
    handlers_that_look()

    @job("leave.thread", retry=ONCE)
    def leaves(ctx: Context) -> None:
        leave(ctx)

    @job("leave.async", retry=ONCE)
    async def aleaves(ctx: Context) -> None:
        await sync_to_async(leave)(ctx)

    sloppy, *looking = put(orders, f"leave.{kind}", "look.thread", "look.async", "look.thread")
    run(orders, tmp_path)
    found = ends(orders)
    end = found[sloppy]
    assert (end.outcome, end.error) == ("failed", LEFT_OPEN.format(OPEN[leave]))
    assert end.error_type == "cronjobs.errors.TransactionLeftOpen"
    assert [(found[job_id].outcome, found[job_id].result) for job_id in looking] == [("succeeded", PRISTINE)] * 3
    assert written(orders) == [(job_id, "paid") for job_id in looking]


def test_a_handler_that_raised_keeps_its_own_error_and_its_traceback_says_what_it_left(
    orders: Database, tmp_path: Path
) -> None:
    handlers_that_look()

    @job("leave.raises", retry=ONCE)
    def raises(ctx: Context) -> None:
        autocommit_off(ctx)
        raise ValueError("before the commit")

    @job("leave.gives_up")
    def gives_up(ctx: Context) -> None:
        autocommit_off(ctx)
        raise GiveUp("void")

    @job("leave.snoozes", retry=ONCE)
    def snoozes(ctx: Context) -> None:
        autocommit_off(ctx)
        raise Snooze("10m")

    raised, gave_up, snoozed, look = put(orders, "leave.raises", "leave.gives_up", "leave.snoozes", "look.thread")
    run(orders, tmp_path)
    found = ends(orders)
    left_open = LEFT_OPEN.format(AUTOCOMMIT_OFF)
    assert [found[each].error for each in (raised, gave_up, snoozed)] == ["before the commit", "void", left_open]
    assert left_open in found[raised].traceback
    assert found[snoozed].outcome == "failed"  # otherwise it would believe that its writes are in the database
    assert written(orders) == [(look, "paid")]


def test_what_the_orm_writes_inside_ctx_transaction_is_not_part_of_it(orders: Database, tmp_path: Path) -> None:
    """As documented: on PostgreSQL it is committed although the block fails, and SQLite's write lock refuses it."""

    @job("books.both", retry=ONCE)
    def both(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(text("INSERT INTO orders VALUES (:id, 'in the block')"), {"id": ctx.job_id})
            if db.connection.vendor == "sqlite":
                query("PRAGMA busy_timeout = 0")
            write(ctx, "beside it")
            raise ValueError("the block fails")

    [made] = put(orders, "books.both")
    run(orders, tmp_path)
    error = ends(orders)[made].error
    if orders.is_sqlite:
        assert (written(orders), "database is locked" in error) == ([], True)
    else:
        assert (written(orders), error) == ([(made, "beside it")], "the block fails")


def interval() -> str:
    with db.connection.cursor() as cursor:
        cursor.execute("SHOW client_connection_check_interval")
        return str(cursor.fetchone()[0])


def test_a_statement_of_a_handler_ends_with_its_runner(orders: Database, tmp_path: Path) -> None:
    """PostgreSQL then looks every 2 s whether the client is still there. Connections of a web process have no hook."""

    if orders.is_sqlite:
        return  # its statements run in the runner's own process

    @job("look.thread", timeout="10s", retry=ONCE)
    def look() -> str:
        return interval()

    @job("look.async", timeout="10s", retry=ONCE)
    async def alook() -> str:
        return str(await sync_to_async(interval)())

    connection_created.disconnect(clean._end_statements_of_dead_runner)  # as in a process without attempts so far
    before = interval()
    made = put(orders, "look.thread", "look.async")
    run(orders, tmp_path)
    assert [ends(orders)[job_id].result for job_id in made] == ["2s", "2s"]
    assert (before, interval()) == ("0", "0")


@pytest.mark.parametrize(("value", "shown"), [(2000, "2s"), ("'refused'", "0")])
def test_a_connection_from_before_the_first_attempt_gets_the_setting_or_works_without_it(
    orders: Database, value: object, shown: str
) -> None:
    """A module of handlers may have opened it. A server on Windows refuses the setting."""
    if orders.is_sqlite:
        return
    connection_created.disconnect(clean._end_statements_of_dead_runner)  # as in a process without attempts so far
    kept_open = patch.dict(db.connection.settings_dict, CONN_MAX_AGE=None)
    with kept_open, patch.dict(TIMEOUTS, client_connection_check_interval=value):
        before = interval()
        session = db.connection.connection
        with clean.CleanConnections(cast("Any", None)):
            assert (before, interval()) == ("0", shown)
        assert db.connection.connection is session
        db.connection.close()
        assert interval() == shown


@pytest.mark.parametrize("value", [2000, "'refused'"])
def test_the_setting_leaves_no_transaction_open_in_a_project_without_autocommit(
    orders: Database, value: object
) -> None:
    if orders.is_sqlite:
        return
    connection_created.disconnect(clean._end_statements_of_dead_runner)  # as in a process without attempts so far
    without = patch.dict(db.connection.settings_dict, AUTOCOMMIT=False, CONN_MAX_AGE=None)
    with without, patch.dict(TIMEOUTS, client_connection_check_interval=value):
        interval()
        db.connection.commit()
        with clean.CleanConnections(cast("Any", None)):
            pass  # the handler does not use the connection
        with clean.CleanConnections(cast("Any", None)):
            assert interval() == ("2s" if value == 2000 else "0")
            db.connection.rollback()
        db.connection.close()


def test_async_handlers_at_the_same_time_have_connections_of_their_own(orders: Database, tmp_path: Path) -> None:
    """Django's usual thread for them is one for the whole process: what one writes would go with another's rollback."""
    if orders.is_sqlite:
        return  # it has one writer at a time, which this test would wait for
    both = threading.Barrier(2)

    @job("open.async", timeout="10s", retry=ONCE)
    async def opens(ctx: Context) -> None:
        import asyncio

        await sync_to_async(autocommit_off)(ctx)
        await asyncio.to_thread(both.wait, 10)  # the other handler writes between these two lines
        await asyncio.to_thread(both.wait, 10)

    @job("write.async", timeout="10s", retry=ONCE)
    async def writes(ctx: Context) -> None:
        import asyncio

        await asyncio.to_thread(both.wait, 10)
        await sync_to_async(write)(ctx, "paid")
        await asyncio.to_thread(both.wait, 10)

    opened, wrote = put(orders, "open.async", "write.async")
    run(orders, tmp_path, workers=2)
    found = ends(orders)
    assert (found[opened].error, found[wrote].outcome) == (
        LEFT_OPEN.format(AUTOCOMMIT_OFF),
        "succeeded",
    )
    assert written(orders) == [(wrote, "paid")]


@pytest.mark.parametrize("kind", ["thread", "async"])
@pytest.mark.parametrize("max_age", [0, 60])
def test_when_the_server_ends_all_connections_once_at_most_one_job_of_each_worker_fails(
    orders: Database, tmp_path: Path, kind: str, max_age: int
) -> None:
    if orders.is_sqlite:
        return  # it has no server
    db.connection.settings_dict["CONN_MAX_AGE"] = max_age
    begun, many, workers = list[Any](), 80, 4

    def pay(ctx: Context) -> None:
        db.connection.ensure_connection()
        begun.append(db.connection.connection)
        if len(begun) == many // 3:
            with orders.write() as session:
                mine = "pid <> pg_backend_pid() AND application_name NOT LIKE 'cronjobs%'"
                found = f"FROM pg_stat_activity WHERE datname = current_database() AND {mine}"
                session.execute(text(f"SELECT pg_terminate_backend(pid) {found}"))
        write(ctx, "paid")

    @job("pay.thread", timeout="10s", retry=ONCE)
    def pays(ctx: Context) -> None:
        pay(ctx)

    @job("pay.async", timeout="10s", retry=ONCE)
    async def apays(ctx: Context) -> None:
        await sync_to_async(pay)(ctx)

    made = put(orders, *[f"pay.{kind}"] * many)
    run(orders, tmp_path, workers)
    for raw in begun:
        raw.close()  # a tick's process ends with those that are kept
    paid = [job_id for job_id, end in ends(orders).items() if end.outcome == "succeeded"]
    assert len(made) - len(paid) <= workers
    assert written(orders) == [(job_id, "paid") for job_id in sorted(paid)]


# --- by dice ----------------------------------------------------------------------------------------------------------


class Meant(Exception):
    pass


@dataclass
class Leaving:
    """What a job leaves behind, and how it ends."""

    kind: str
    transaction: Callable[[Context], None]
    bound: tuple[Callable[[Context], None], ...]
    end: str
    freezes: bool = False
    made: dict[str, Any] = field(default_factory=dict)

    def act(self, ctx: Context) -> None:
        self.transaction(ctx)
        if self.freezes:
            freeze()

    @property
    def is_open(self) -> bool:
        return self.transaction in OPEN

    def stop(self) -> None:
        if self.end == "raise":
            raise Meant("on purpose")
        if self.end == "give up":
            raise GiveUp("on purpose")


def freeze() -> None:
    """Freeze the monotonic clock, and leave it frozen, as a test library may do by mistake."""
    import time

    stands = time.monotonic()
    time.monotonic = lambda: stands


ENDS = ("return", "raise", "give up", "timeout")
WANTED = {"raise": ("failed", "on purpose"), "give up": ("failed", "on purpose"), "timeout": ("timed_out", None)}


def handlers_that_leave(leaving: list[Leaving]) -> None:
    @job("leave.thread", retry=ONCE)
    def leaves(ctx: Context, n: int) -> None:
        each = leaving[n]
        for bind in each.bound:
            bind(ctx)
        each.act(ctx)
        while each.end == "timeout":
            ctx.check()
            threading.Event().wait(0.005)
        each.stop()

    @job("leave.async", retry=ONCE)
    async def aleaves(ctx: Context, n: int) -> None:
        import asyncio

        each = leaving[n]
        for bind in each.bound:
            bind(ctx)
        await sync_to_async(each.act)(ctx)
        if each.end == "timeout":
            await asyncio.sleep(60)
        each.stop()


def test_whatever_a_job_leaves_behind_the_next_one_finds_nothing_of_it(orders: Database, tmp_path: Path) -> None:
    leaving: list[Leaving] = []
    handlers_that_look()
    handlers_that_leave(leaving)

    def case(dice: random.Random) -> None:
        import time

        leaving.clear()
        rows: list[dict[str, Any]] = []
        for _ in range(dice.randint(1, 3)):
            kind, end = dice.choice(("thread", "async")), dice.choice(ENDS if dice.random() < 0.5 else ENDS[:3])
            bound = tuple(dice.sample(BOUND, dice.randint(0, len(BOUND))))
            made = Leaving(kind, dice.choice((*OPEN, *CLOSED)), bound, end, freezes=dice.random() < 0.2)
            timeout_s = {"timeout_s": 0.1 if end == "timeout" else 10}
            rows.append({"job_type": f"leave.{kind}", "payload": {"n": len(leaving)}} | timeout_s)
            leaving.append(made)
            looking = [dice.choice(("look.thread", "look.async")) for _ in range(dice.randint(1, 2))]
            rows += [{"job_type": name, "payload": {}, "timeout_s": 10} for name in looking]
        now, real = SYSTEM.now(), time.monotonic
        with orders.write() as session:
            made_ids = session.execute(
                insert(jobs).returning(jobs.c.id, sort_by_parameter_order=True),
                [row | {"run_at": now, "created_at": now} for row in rows],
            )
            ids = [int(job_id) for job_id in made_ids.scalars()]
        try:
            workers = 1 if orders.is_sqlite else dice.choice((1, 1, 2))
            while run(orders, tmp_path, workers=workers).ended == NO_SLOT:
                pass  # on a busy machine one that timed out kept its slot for so long that the tick left the others
        finally:
            time.monotonic = real
        found, there = ends(orders), written(orders)
        for job_id, row in zip(ids, rows, strict=True):
            end = found[job_id]
            if not row["payload"]:
                assert (end.outcome, end.result) == ("succeeded", PRISTINE), end
                assert there.count((job_id, "paid")) == 1
                continue
            left = leaving[row["payload"]["n"]]
            left_open = LEFT_OPEN.format(OPEN.get(left.transaction))
            outcome, error = WANTED.get(left.end, ("failed", left_open) if left.is_open else ("succeeded", None))
            assert end.outcome == outcome, (left, end)
            assert error is None or end.error == error, (left, end)
            assert left.end != "raise" or (left_open in end.traceback) == left.is_open, (left, end)
            assert [what for of, what in there if of == job_id] == ([] if left.is_open else ["kept"]), left
        assert not open_transactions(orders)
        with orders.write() as session:
            for table in ("cronjobs_job_runs", "cronjobs_jobs", "orders"):
                session.execute(text(f"DELETE FROM {table}"))

    judge(case, few=6)


def open_transactions(database: Database) -> int:
    """Sessions of others that are in a transaction."""
    if database.is_sqlite:
        with database.write(patience=1):  # nobody holds the lock
            return 0
    mine = "datname = current_database() AND pid <> pg_backend_pid()"
    with database.read() as session:
        found = session.execute(text(f"SELECT count(*) FROM pg_stat_activity WHERE {mine} AND xact_start IS NOT NULL"))
        return int(found.scalar_one())
