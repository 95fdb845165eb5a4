"""Two or three sessions, statement by statement in any order: what is decided over several statements still holds.

Each act is a function of the world and its session's number; the promise is judged from the rows afterwards.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.exc import OperationalError
from support import interleaved
from support.cases import judge
from support.databases import opened
from support.interleaved import stepped
from support.postgres import OWNER
from support.targets import plain_url

from cronjobs import cancel, enqueue, enqueue_many, reschedule
from cronjobs.cli import pause_wait
from cronjobs.clock import SYSTEM
from cronjobs.config.settings import Retention
from cronjobs.database import retrying, sqlite_turns
from cronjobs.database.connection import Database
from cronjobs.database.tables import jobs, meta, metadata
from cronjobs.errors import (
    DatabaseBusy,
    EffectBusy,
    JobHeld,
    JobNotWaiting,
    LeaseLost,
    NoSuchJob,
    QueueFull,
    QueueHeld,
    TurnTaken,
)
from cronjobs.jobs import enqueue as enqueueing
from cronjobs.jobs import insertion
from cronjobs.jobs.effects import Begin, Ledger
from cronjobs.model import Status
from cronjobs.rules.capacity import Cap
from cronjobs.rules.concurrency import Limit
from cronjobs.rules.lease import Finish, Lease
from cronjobs.schedules.materialise import materialise
from cronjobs.store import claims, leases, operating, schedules
from cronjobs.store.claims import ClaimFilter
from cronjobs.store.operating import OperatorAction
from cronjobs.store.queues import put_caps
from cronjobs.store.sql import database_now
from cronjobs.tick.pruner import Before, Pruner

pytestmark = [pytest.mark.connects_as(OWNER), pytest.mark.slow]

MOST = 2  # jobs that may wait in the capped queue
KEYS = ("a", "b", "c")
TYPES = ["t.work"]
LEASE = timedelta(minutes=5)
# What a caller is told of others; anything else is a fault.
TOLD = (DatabaseBusy, EffectBusy, LeaseLost, JobHeld, JobNotWaiting, NoSuchJob, QueueFull, QueueHeld, TurnTaken)
SESSIONS = 3


@dataclass
class Seen:
    """What the acts of one case were told."""

    claimed: list[tuple[int, int]] = field(default_factory=list)
    quiet: list[dict[int, int]] = field(default_factory=list)  # attempts of all jobs when nothing ran any more
    put: list[tuple[int, str, Any]] = field(default_factory=list)  # the call, on_conflict, what it returned
    refused: list[int] = field(default_factory=list)  # calls that were to have written nothing
    effects: list[tuple[int, int]] = field(default_factory=list)
    acts: list[str] = field(default_factory=list)


class World:
    def __init__(self, url: str, sessions: Sequence[Database]) -> None:
        self.url, self.sessions = url, sessions
        options: dict[str, Any] = {"connect_args": {"timeout": 0.1}} if url.startswith("sqlite") else {}
        self.engine = create_engine(plain_url(url), **options)
        self.autocommit = create_engine(plain_url(url), isolation_level="AUTOCOMMIT", **options)
        self.seen = Seen()
        self.calls = 0

    @property
    def one(self) -> Database:
        return self.sessions[0]

    def begin(self, chance: random.Random) -> None:
        self.chance, self.seen = chance, Seen()
        with self.one.write() as connection:
            for table in reversed(metadata.sorted_tables):
                if table is not meta:
                    connection.execute(table.delete())
            put_caps(connection, [Cap("capped", MOST, chance.choice(["error", "error", "drop"]))], [])
            now = database_now(connection)
            policy = chance.choice(["skip", "wait", "allow"])
            every = {"every": "1m", "job": "t.work", "overlap": policy, "catch_up": "all", "timezone": "UTC"}
            due = now - timedelta(minutes=3)
            schedules.put_definitions(connection, [schedules.Definition("s", every, "f", due, due)])
            self.overlaps = policy == "allow"
            for _ in range(chance.randint(0, 3)):
                key = chance.choice(["k:1", "k:1", None])
                enqueue(
                    connection, "t.work", {"call": -1}, queue=chance.choice(["other", "default"]), concurrency_key=key
                )
            for key in KEYS:
                if chance.random() < 0.5:
                    with suppress(QueueFull):
                        queue = chance.choice(["capped", "other"])
                        enqueue(connection, "t.work", {"call": -1}, queue=queue, idempotency_key=key)
            if chance.random() < 0.5:
                connection.execute(text("UPDATE cronjobs_jobs SET schedule = 's' WHERE queue = 'default'"))
        for _ in range(chance.randint(0, 2)):
            claim(self, self.one)
        if chance.random() < 0.5:
            finish(self, self.one)
        self.seen = Seen()

    def rows(self) -> list[Any]:
        with self.one.read() as connection:
            return list(connection.execute(select(jobs)).all())

    def close(self) -> None:
        self.engine.dispose()
        self.autocommit.dispose()


# --- what a session does ----------------------------------------------------------------------------------------------


def claim(world: World, database: Database, *, limits: bool = True, warily: bool = False) -> None:
    most = (Limit("k:", 1),) if limits else ()
    admission = ClaimFilter(known=TYPES, fitting=TYPES, remaining_s=50, limits=most)
    with database.write(patience=5) as connection:
        room = world.chance.randint(1, 3)
        if warily:
            found = claims.claim_warily(connection, locked_by=HERE, lease=LEASE, admission=admission)
        else:
            found = claims.claim(connection, limit=room, locked_by=HERE, lease=LEASE, admission=admission)
        assert not found.refused
    world.seen.claimed += [(job.id, job.attempt) for job in found.jobs]
    for job_id in found.unread:
        with database.write(patience=5) as connection:
            job = claims.read_leased(connection, job_id, HERE)
        if job is not None:
            world.seen.claimed.append((job.id, job.attempt))


HERE = "h:1:1:1:1:t"


def claim_warily(world: World, database: Database) -> None:
    claim(world, database, warily=True)


def claim_many_queues(world: World, database: Database) -> None:
    admission = ClaimFilter(known=TYPES, fitting=TYPES, remaining_s=50, limits=(Limit("k:", 1),), many_queues=True)
    with database.write(patience=5) as connection:
        found = claims.claim(connection, limit=2, locked_by="h:1:1:1:1:t", lease=LEASE, admission=admission)
    world.seen.claimed += [(job.id, job.attempt) for job in found.jobs]


def finish(world: World, database: Database) -> None:
    """Every attempt ends that its session sees running; the fence keeps it from ending twice."""
    with database.read() as connection:
        running = connection.execute(select(jobs.c.id, jobs.c.attempts).where(jobs.c.status == "running")).all()
    ends = [
        Finish(Lease(row.id, row.attempts, "h:1:1:1:1:t"), world.chance.choice(ENDS), 0, 0, 0, "succeeded")
        for row in running
    ]
    if ends:
        with database.write(patience=5) as connection:
            leases.finish(connection, ends)


ENDS = (Status.SUCCEEDED, Status.SUCCEEDED, Status.DEAD)


def pause_and_wait(world: World, database: Database) -> None:
    with database.write(patience=5) as connection:
        now = database_now(connection)
        schedules.pause(connection, scope="all", name="", until=None, by="ada", why=None, now=now)
    before = None
    for _ in range(20):
        still = pause_wait._look(database, "UTC", None, before)
        before = still.claims
        if still.quiet:
            with database.read() as connection:
                found = connection.execute(select(jobs.c.id, jobs.c.attempts))
                attempts = {row.id: row.attempts for row in found}
            world.seen.quiet.append(attempts)
            return
        interleaved.step()


def resume(world: World, database: Database) -> None:
    with database.write(patience=5) as connection:
        schedules.resume(connection, scope="all", name="", now=database_now(connection))


def enqueues(world: World, database: Database) -> None:
    """One, or several at once; in the app's transaction, in one of its own, or without any."""
    chance, call = world.chance, world.calls
    world.calls += 1
    on_conflict: Any = chance.choice(["keep", "replace"])
    queue = chance.choice(["capped", "capped", "other"])
    options: dict[str, Any] = {"queue": queue, "on_conflict": on_conflict}
    target = chance.choice([world.engine, world.autocommit, "transaction"])
    several: list[tuple[dict[str, int], Any]] = [
        ({"call": call}, {"idempotency_key": key} if (key := chance.choice([*KEYS, None])) else {})
        for _ in range(chance.randint(1, 3))
    ]

    def put(on: Any) -> Any:
        if len(several) == 1:
            return [enqueue(on, "t.work", {"call": call}, **several[0][1], **options)]
        return enqueue_many(on, "t.work", several, **options)

    try:
        if target == "transaction":
            with world.engine.begin() as connection:
                try:
                    done = put(connection)
                except (QueueFull, JobHeld, QueueHeld) as error:
                    if isinstance(error, QueueFull):
                        world.seen.refused.append(call)
                    connection.execute(select(jobs.c.id).limit(1)).all()  # the transaction stays usable
                    return
        elif target is world.autocommit:
            with world.autocommit.connect() as connection:
                done = put(connection)
        else:
            done = put(target)
    except QueueFull:
        if target is not world.autocommit:
            world.seen.refused.append(call)
        raise
    world.seen.put += [(call, on_conflict, each) for each in done]


def cancels(world: World, database: Database) -> None:
    cancel(world.chance.choice([world.engine, world.autocommit]), idempotency_key=world.chance.choice(KEYS))


def reschedules(world: World, database: Database) -> None:
    target = world.chance.choice([world.engine, world.autocommit])
    reschedule(target, idempotency_key=world.chance.choice(KEYS), delay="0s")


def operates(world: World, database: Database) -> None:
    """As an operator does, on all jobs."""
    name = world.chance.choice(["cancel", "dismiss", "retry"])
    act = OperatorAction(name, "ada", "h", "why")
    with database.read() as connection:
        ids = list(connection.execute(select(jobs.c.id)).scalars())
    with database.write(patience=5) as connection:
        getattr(operating, name)(connection, ids, act)


def prunes(world: World, database: Database) -> None:
    with database.read() as connection:
        later = database_now(connection) + timedelta(days=3650)
    Pruner(database, Before.of(Retention(), later), database.clock, lambda: True).run()


def begins_effect(world: World, database: Database) -> None:
    """Each session as another attempt, all with the same key."""
    with database.read() as connection:
        running = connection.execute(select(jobs.c.id, jobs.c.attempts).where(jobs.c.status == "running")).all()
    mine = sorted(running)[world.sessions.index(database) :][:1]
    for job_id, attempt in mine:
        lease = Lease(job_id, attempt, "h:1:1:1:1:t")
        ledger = Ledger(database, lease, SYSTEM, logging.getLogger(), lambda: 50.0, lambda: None)
        entry = ledger.begin("mail", "again")
        if isinstance(entry, Begin):
            world.seen.effects.append((job_id, attempt))
            ledger.record("mail", {"by": job_id})


def materialises(world: World, database: Database) -> None:
    materialise(database, lambda _event: None)


CLAIMS = (claim, claim_warily, claim_many_queues)
ACTS: tuple[Callable[[World, Database], None], ...] = (
    *(*CLAIMS, finish, pause_and_wait, resume, enqueues, enqueues, enqueues),
    *(cancels, reschedules, operates, prunes, materialises, begins_effect, begins_effect),
)


# --- the promise ------------------------------------------------------------------------------------------------------


def judge_rows(world: World, ended: Sequence[Any]) -> None:
    seen, rows = world.seen, world.rows()
    by_id = {row.id: row for row in rows}
    for error in ended:
        busy = isinstance(error, OperationalError) and "locked" in str(error)  # the app's own SQLite driver
        assert error is None or busy or isinstance(error, TOLD), f"{error!r}"
    assert max(Counter(seen.claimed).values(), default=0) <= 1, "an attempt was claimed twice"
    running = [row for row in rows if row.status == "running"]
    assert sum(row.concurrency_key == "k:1" for row in running) <= 1, "more than the limit run"
    if not world.overlaps:
        assert sum(row.schedule == "s" for row in running) <= 1, "a schedule's jobs run beside each other"
    made = Counter(row.scheduled_for for row in rows if row.scheduled_for is not None)
    assert max(made.values(), default=0) <= 1, "an occurrence made two jobs"
    if "finish" not in seen.acts:  # nobody's attempt is over
        assert len(seen.effects) <= 1, "an effect was begun twice"
    if "operates" not in seen.acts:  # a retry is never refused
        waiting = [row for row in rows if row.queue == "capped" and row.status in ("queued", "failed")]
        assert len(waiting) <= MOST, "more jobs wait than the cap admits"
    if "resume" not in seen.acts:
        for attempts in seen.quiet:
            begun = {row.id for row in rows if row.attempts > attempts.get(row.id, 0)}
            assert not begun, f"{begun} began after pause --wait said quiet"
    calls = [row.payload.get("call") for row in rows]
    for call in seen.refused:
        assert call not in calls, "a refused enqueue wrote something"
    for call, on_conflict, put in seen.put:
        if put.dropped:
            continue
        row = by_id.get(put.id)
        if row is None:
            assert {"prunes"} & {*seen.acts}, "a job is lost"
        elif seen.acts.count("enqueues") == 1 and not {"prunes", "operates"} & {*seen.acts}:
            fresh = put.id in {other.id for _, _, other in seen.put if other.new}
            mine = fresh or (on_conflict == "replace" and put.status is Status.QUEUED)
            assert (row.payload["call"] == call) is mine, "not what the call returned"


@pytest.fixture
def interleaving(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for module in (sqlite_turns, retrying):
        monkeypatch.setattr(module, "sleep", interleaved.poll)
    for waits in (enqueueing, insertion):
        monkeypatch.setattr(waits, "sleep", interleaved.step)
    with (
        opened(database_url) as one,
        opened(database_url) as two,
        opened(database_url) as three,
        closing(World(database_url, (one, two, three))) as world,
    ):
        yield world


def test_no_order_of_two_sessions_breaks_a_promise(interleaving: World, database_url: str) -> None:
    world = interleaving
    url = None if database_url.startswith("sqlite") else database_url

    def case(chance: random.Random) -> None:
        world.begin(chance)
        acts = [chance.choice(ACTS) for _ in range(chance.choice((2, 2, 3)))]
        match chance.choice(("a claim", "a claim", "itself", "any")):  # what most races are with
            case "a claim":
                acts[0] = chance.choice(CLAIMS)
            case "itself":
                acts[0] = acts[1]
        world.seen.acts = [act.__name__ for act in acts]
        with stepped(url) as run:
            ended = run(
                chance, *(lambda act=act, on=on: act(world, on) for act, on in zip(acts, world.sessions, strict=False))
            )
        try:
            judge_rows(world, ended)
        except AssertionError as error:
            error.add_note(f"{world.seen.acts}: {ended}, {world.seen}")
            raise

    judge(case, 60)
