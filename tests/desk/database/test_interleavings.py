"""Two or three sessions in any order of their statements: decisions over several statements are still right.

Each act is a function of the world and its session's number; the promise is judged from the rows afterwards.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, insert, select, text, update
from sqlalchemy.exc import OperationalError
from support import interleaved
from support.cases import judge
from support.databases import opened
from support.interleaved import stepped
from support.postgres import OWNER
from support.targets import plain_url

from cronjobs import cancel, enqueue, enqueue_many, reschedule
from cronjobs.clock import SYSTEM
from cronjobs.desk.cli import pause_wait
from cronjobs.engine.config.settings import Retention, ScheduleSettings, Settings
from cronjobs.engine.database import retrying, sqlite_turns
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import job_runs, job_type_lists, jobs, meta, metadata, occurrences, ticks
from cronjobs.engine.database.tables import schedules as stored_schedules
from cronjobs.engine.execution.foreground_claim import CannotRun, begin_existing, begin_new
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs import enqueue as enqueueing
from cronjobs.engine.jobs import insertion
from cronjobs.engine.jobs.effects import Begin, Ledger
from cronjobs.engine.jobs.job_types import JobType, JobTypes
from cronjobs.engine.rules.capacity import Cap
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.rules.ending import decide_end
from cronjobs.engine.rules.lease import Finish, Lease
from cronjobs.engine.rules.misfits import MISFIT
from cronjobs.engine.schedules import backfill as filling
from cronjobs.engine.schedules import materialise as materialising
from cronjobs.engine.schedules import sync as syncing
from cronjobs.engine.schedules.decide import job_for
from cronjobs.engine.schedules.definition import definition
from cronjobs.engine.schedules.materialise import materialise
from cronjobs.engine.schedules.sync import sync
from cronjobs.engine.store import claims, leases, operating, schedules
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.engine.store.job_rows import fetch_by_itself
from cronjobs.engine.store.misfits import known_misfits
from cronjobs.engine.store.operating import OperatorAction
from cronjobs.engine.store.queues import put_caps
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.tick.pruner import Before, Pruner
from cronjobs.engine.tick.recovery import Recovery
from cronjobs.engine.tick.runners import Runners
from cronjobs.engine.tick.tick import Tick
from cronjobs.engine.tick.watchdog import Unarmed
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
from cronjobs.events import Event
from cronjobs.model import Failed, Finished, RetryPolicy, Status

pytestmark = [pytest.mark.connects_as(OWNER), pytest.mark.slow]

MOST = 2  # jobs that may wait in the capped queue
KEYS = ("a", "b", "c")
TYPES = ["t.work"]
LEASE = timedelta(minutes=5)
MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HERE = "h:1:1:1:1:t"  # who holds every lease
# Errors that may tell a caller about other sessions; any other error is a fault.
TOLD: tuple[type[Exception], ...] = (DatabaseBusy, EffectBusy, LeaseLost, JobHeld, JobNotWaiting, NoSuchJob)
TOLD += (QueueFull, QueueHeld, TurnTaken, CannotRun, filling.ScheduleBusy, filling.UnknownSchedule)
AT_WORK = ("ticks have settled s up to", 'a tick is settling "s" right now', "were due under another definition")
SESSIONS = 3


@dataclass
class Seen:
    """What the acts of one case claimed, wrote and were told."""

    claimed: list[tuple[int, int]] = field(default_factory=list)
    quiet: list[dict[int, int]] = field(default_factory=list)  # attempts of all jobs when nothing ran any more
    # number of the call, on_conflict, what the call returned
    put: list[tuple[int, str, Any]] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)  # calls that were to have written nothing
    effects: list[tuple[int, int]] = field(default_factory=list)
    ended: list[tuple[int, int]] = field(default_factory=list)
    succeeded: list[tuple[int, int]] = field(default_factory=list)
    triggered: list[int] = field(default_factory=list)  # without force
    by_hand: set[int] = field(default_factory=set)
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
            self.cap = Cap("capped", MOST, chance.choice(["error", "error", "drop"]))
            put_caps(connection, [self.cap], [])
            now = database_now(connection)
            policy: Any = chance.choice(["skip", "wait", "allow"])
            self.schedule = ScheduleSettings("s", "t.work", every=MINUTE, overlap=policy, catch_up="all")
            self.due = due = now - 3 * MINUTE
            schedules.put_definitions(connection, [schedules.Definition("s", definition(self.schedule), "f", due, due)])
            self.overlaps = policy == "allow"
            # A tick of this host, whose code has refused some payloads for long enough to give those jobs up.
            lists = [{"hash": version, "names": TYPES} for version in ("v1", "v2")]
            connection.execute(insert(job_type_lists), lists)
            connection.execute(insert(ticks).values(self.tick_row("h", "v1", now)))
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
            if chance.random() < 0.3:
                connection.execute(update(jobs).values(misfit_since=now - 20 * MINUTE))
        for _ in range(chance.randint(0, 2)):
            claim(self, self.one)
        if chance.random() < 0.5:
            finish(self, self.one)
        self.seen = Seen()
        self.unfinished = {row.id for row in self.rows() if row.schedule == "s" and row.finished_at is None}

    def tick_row(self, host: str, version: str, now: datetime) -> dict[str, Any]:
        self.calls += 1
        return {
            "tick": str(self.calls),
            "host": host,
            "pid": 1,
            "version": "0.2.0",
            "started_at": now,
            "job_types": version,
        }

    def settings(self, *wanted: ScheduleSettings) -> Settings:
        folder = Path(__file__).parent
        return Settings(
            file=folder / "cronjobs.yaml",
            folder=folder,
            schedules={each.name: each for each in wanted},
            limits=(Limit("k:", 1),),
            queues={self.cap.queue: self.cap},  # without it in the file, a sync lifts the cap
        )

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
            job = fetch_by_itself(connection, job_id, HERE) if claims.note_read(connection, job_id, HERE) else None
        if job is not None:
            world.seen.claimed.append((job.id, job.attempt))


def claim_warily(world: World, database: Database) -> None:
    claim(world, database, warily=True)


def claim_many_queues(world: World, database: Database) -> None:
    admission = ClaimFilter(known=TYPES, fitting=TYPES, remaining_s=50, limits=(Limit("k:", 1),), many_queues=True)
    with database.write(patience=5) as connection:
        found = claims.claim(connection, limit=2, locked_by=HERE, lease=LEASE, admission=admission)
    world.seen.claimed += [(job.id, job.attempt) for job in found.jobs]


def finish(world: World, database: Database) -> None:
    """Every attempt ends that its session sees running; the fence keeps it from ending twice."""
    with database.read() as connection:
        running = connection.execute(select(jobs.c.id, jobs.c.attempts).where(jobs.c.status == "running")).all()
    ends = [
        Finish(Lease(row.id, row.attempts, HERE), world.chance.choice(ENDS), 0, 0, 0, "succeeded") for row in running
    ]
    if ends:
        with database.write(patience=5) as connection:
            written = leases.finish(connection, ends).written
        _note_ends(world, [end for end in ends if end.lease.job_id in written])


def _note_ends(world: World, ends: Sequence[Finish]) -> None:
    world.seen.ended += [(end.lease.job_id, end.lease.attempt) for end in ends]
    succeeded = [end.lease for end in ends if end.status is Status.SUCCEEDED]
    world.seen.succeeded += [(lease.job_id, lease.attempt) for lease in succeeded]


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
    """Enqueue one job or several, in the app's transaction, in one of the call's own, or without one."""
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
    """Cancel, dismiss or retry all jobs, as an operator does."""
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
    """Begin an effect. Each session acts as another attempt, and all use the same key."""
    with database.read() as connection:
        running = connection.execute(select(jobs.c.id, jobs.c.attempts).where(jobs.c.status == "running")).all()
    mine = sorted(running)[world.sessions.index(database) :][:1]
    for job_id, attempt in mine:
        lease = Lease(job_id, attempt, HERE)
        ledger = Ledger(database, lease, SYSTEM, logging.getLogger(), lambda: 50.0, lambda: None)
        entry = ledger.begin("mail", "again")
        if isinstance(entry, Begin):
            world.seen.effects.append((job_id, attempt))
            ledger.record("mail", {"by": job_id})


def materialises(world: World, database: Database) -> None:
    materialise(database, lambda _event: None)


def recovers(world: World, database: Database) -> None:
    """Act as a tick that takes this runner for dead. A frozen runner looks dead to another host, and may go on."""

    def note(event: Event) -> None:
        if "attempt" in event.facts:
            world.seen.ended.append((event.facts["job_id"], event.facts["attempt"]))

    tick = Tick(
        settings=world.settings(world.schedule),
        database=database,
        identity=Identity("other", "1", "1", 1, "1", "other"),
        clock=SYSTEM,
        watchdog=Unarmed(),
        began=SYSTEM.monotonic(),
        deadline=SYSTEM.monotonic() + 600,
        emit=note,
    )
    tick.row.started_at = SYSTEM.now()
    Recovery(tick, Runners(dead=(HERE,))).run()


def misfits_end(world: World, database: Database) -> None:
    """All that runs ends as a payload that does not fit, and is given up where all code has refused it long enough."""
    with database.read() as connection:
        held = claims.held_by(connection, HERE)
    for job in held:
        finished = Finished(job, Failed("does not fit", MISFIT))
        with database.write(patience=5) as connection:
            found = known_misfits(connection, [job.id]).get(job.id)
            now = database_now(connection)
            end = decide_end(finished, RetryPolicy(), now, max_losses=1, misfits=found)
            written = leases.finish(connection, [end.finish]).written
        _note_ends(world, [end.finish] if written else [])


def ticks_elsewhere(world: World, database: Database) -> None:
    """Another version, which has refused nothing so far."""
    with database.write(patience=5) as connection:
        connection.execute(insert(ticks).values(world.tick_row("elsewhere", "v2", database_now(connection))))


def triggers(world: World, database: Database) -> None:
    force = world.chance.random() < 0.3
    with database.write(patience=5) as connection:
        job_id = filling.trigger(connection, "s", force=force, actor="ada", host="h")
    world.seen.triggered += [] if force else [job_id]


def backfills(world: World, database: Database) -> None:
    """Before the schedule began, and at times what ticks settle meanwhile."""
    first = world.due - world.chance.randint(1, 5) * MINUTE
    last = world.due + world.chance.choice((0, 0, 0, 1, 3)) * MINUTE
    options: Any = {"actor": "ada", "host": "h", "retention": timedelta(days=90), "dry_run": False}
    with database.write(patience=5) as connection:
        filling.backfill(connection, "s", first, last, **options)


def syncs(world: World, database: Database) -> None:
    edited = replace(world.schedule, payload={"edited": world.chance.randint(0, 2)})
    _sync(world, database, edited)


def syncs_timing(world: World, database: Database) -> None:
    """Or takes the schedule out of the file, or gives it another name."""
    every = replace(world.schedule, every=world.chance.choice((2, 3)) * MINUTE)
    renamed = replace(world.schedule, name="new", renamed_from="s")
    _sync(world, database, *world.chance.choice(((every,), (renamed,), ())))


def _sync(world: World, database: Database, *wanted: ScheduleSettings) -> None:
    sync(database, world.settings(*wanted), lambda _event: None, host="h", actor="a", allow_removals=True)


def runs_by_hand(world: World, database: Database) -> None:
    """``cronjobs run``: a job that waits, or a new one of the schedule."""
    with database.read() as connection:
        named = select(jobs.c.id).where(jobs.c.finished_at.is_(None), jobs.c.locked_by.is_(None)).order_by(jobs.c.id)
        waiting = connection.execute(named.limit(2)).scalars().all()
    settings = world.settings(world.schedule)
    if waiting and world.chance.random() < 0.7:
        job = begin_existing(database, world.chance.choice(waiting), settings, KNOWN, locked_by=HERE)
    else:
        new = replace(job_for(world.schedule, SYSTEM.now()), run_at=None)
        job = begin_new(database, new, settings.run, KNOWN, locked_by=HERE, alone=not world.overlaps, actor="ada")
    world.seen.claimed.append((job.id, job.attempt))
    world.seen.by_hand.add(job.id)


KNOWN = JobTypes({"t.work": JobType("t.work", timedelta(seconds=20), RetryPolicy(), command=("true",))})


CLAIMS = (claim, claim_warily, claim_many_queues)
ACTS: tuple[Callable[[World, Database], None], ...] = (
    *(*CLAIMS, finish, pause_and_wait, resume, enqueues, enqueues, enqueues),
    *(cancels, reschedules, operates, prunes, materialises, begins_effect, begins_effect),
    *(recovers, recovers, misfits_end, ticks_elsewhere, triggers, triggers, backfills, backfills),
    *(syncs, syncs_timing, runs_by_hand, runs_by_hand),
)
# Those that decide over several statements, each beside what may change a job meanwhile.
DECIDE = (recovers, misfits_end, triggers, backfills, syncs, syncs_timing, runs_by_hand, materialises)
CHANGE = (*CLAIMS, finish, cancels, operates, recovers, materialises)


# --- the promise ------------------------------------------------------------------------------------------------------


def judge_rows(world: World, ended: Sequence[Any]) -> None:
    seen, rows = world.seen, world.rows()
    by_id = {row.id: row for row in rows}
    for error in ended:
        busy = isinstance(error, OperationalError) and "locked" in str(error)  # the app's own SQLite driver
        told = isinstance(error, TOLD) or any(words in str(error) for words in AT_WORK)
        assert error is None or busy or told, f"{error!r}"
    assert max(Counter(seen.claimed).values(), default=0) <= 1, "an attempt was claimed twice"
    assert max(Counter(seen.ended).values(), default=0) <= 1, "an attempt ended twice"
    for job_id, attempt in seen.succeeded:
        row = by_id.get(job_id)
        assert row is None or (row.status, row.attempts) == ("succeeded", attempt), "a success is undone"
    running = [row for row in rows if row.status == "running"]
    with world.one.read() as connection:
        over = connection.execute(select(job_runs.c.job_id, job_runs.c.attempt)).all()
    assert not {*over} & {(row.id, row.attempts) for row in running}, "a running attempt is in the history"
    assert sum(row.concurrency_key == "k:1" for row in running) <= 1, "more than the limit run"
    if not world.overlaps:
        assert sum(row.schedule == "s" and not row.meta for row in running) <= 1, "a schedule's jobs run side by side"
    made = Counter(row.scheduled_for for row in rows if row.scheduled_for is not None)
    assert max(made.values(), default=0) <= 1, "an occurrence made two jobs"
    judge_schedule(world, rows)
    if not {"finish", "recovers", "misfits_end"} & {*seen.acts}:  # nobody's attempt is over
        assert len(seen.effects) <= 1, "an effect was begun twice"
    if "operates" not in seen.acts:  # a retry is never refused
        waiting = [row for row in rows if row.queue == "capped" and row.status in ("queued", "failed")]
        assert len(waiting) <= MOST, "more jobs wait than the cap admits"
    if "resume" not in seen.acts:
        for attempts in seen.quiet:
            begun = {row.id for row in rows if row.attempts > attempts.get(row.id, 0)} - seen.by_hand
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


def judge_schedule(world: World, rows: Sequence[Any]) -> None:
    """Each occurrence is settled once, and runs that a person triggers obey the overlap policy."""
    acts = {*world.seen.acts}
    with world.one.read() as connection:
        ledger = connection.execute(select(occurrences).order_by(occurrences.c.first_for)).all()
        stored = connection.execute(select(stored_schedules)).all()
    for before, after in pairwise(ledger):
        assert before.last_for < after.first_for, "an occurrence is in the ledger twice"
    if "prunes" not in acts:
        by_id = {row.id: row for row in rows}
        for row in ledger:
            assert row.outcome != "enqueued" or row.job_id in by_id, "an occurrence's job is lost"
        enqueued = {row.job_id for row in ledger if row.outcome == "enqueued"}
        for row in rows:
            made = str(row.enqueued_by).startswith(("schedule ", "backfill ")) and row.id not in world.seen.by_hand
            assert not made or row.id in enqueued, "a job of no occurrence"
        if "syncs_timing" not in acts:
            [schedule] = stored
            due = [row for row in ledger if row.first_for > world.due]
            minutes = (schedule.seen_until - EPOCH) // MINUTE - (world.due - EPOCH) // MINUTE
            assert sum(row._mapping["count"] for row in due) == minutes, "occurrences are lost"
    if world.schedule.overlap == "skip" and not {"operates", "runs_by_hand", "backfills"} & acts:
        unfinished = {row.id for row in rows if row.schedule == "s" and row.finished_at is None and not row.meta}
        if unfinished & {*world.seen.triggered}:
            assert len(unfinished) == 1, "a trigger did not see an unfinished job of the schedule, or was not seen"


@pytest.fixture
def interleaving(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for module in (sqlite_turns, retrying):
        monkeypatch.setattr(module, "sleep", interleaved.poll)
    for waits in (enqueueing, insertion, syncing, materialising):
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
        match chance.choice(("a claim", "a claim", "a decision", "a decision", "itself", "any")):
            case "a claim":
                acts[0] = chance.choice(CLAIMS)
            case "a decision":
                acts[0] = chance.choice(DECIDE)
                acts[1] = chance.choice((acts[0], chance.choice(DECIDE), chance.choice(CHANGE), chance.choice(CHANGE)))
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
