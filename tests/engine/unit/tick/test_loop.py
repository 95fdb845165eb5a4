"""The engine, driven by hand: jobs end when the test says so, and the clock moves only while the loop waits.

Everything here is one thread. The loop waits on the workers' queue; there the clock goes on to the next thing that the
script has, or to the end of the wait. The database is a dictionary that can be made to fail.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cronjobs import events
from cronjobs.engine.config.settings import RunSettings, Settings
from cronjobs.engine.execution.attempt import Attempt, Ended, Phase, WorkerContext
from cronjobs.engine.execution.worker_threads import unbegun
from cronjobs.engine.jobs.job_types import JobType, JobTypes
from cronjobs.engine.rules.lease import heartbeat_s, lease_margin_s
from cronjobs.engine.store.leases import FinishResult, Renewal
from cronjobs.engine.tick import loop as loop_module
from cronjobs.engine.tick.claim_planner import GROUP
from cronjobs.engine.tick.long_jobs import ADOPTED
from cronjobs.engine.tick.loop import CUT_LEASE, EXIT_MARGIN_S, STOP_MARGIN_S, Loop
from cronjobs.engine.tick.pacing import LIMIT_REACHED, NO_SLOT, NO_WRITES, POLL_S, TIME_IS_UP, UNBEGUN_S
from cronjobs.engine.tick.result import NOTHING_DUE, TickFilter
from cronjobs.engine.tick.trouble import FAULT
from cronjobs.engine.tick.turn import Batch, BatchResult
from cronjobs.engine.tick.watchdog import HARD_AFTER_S, PAST_DEADLINE_S, Watchdog
from cronjobs.errors import (
    BadValue,
    CommitUnconfirmed,
    DatabaseBusy,
    DatabaseReadOnly,
    DatabaseUnreachable,
)
from cronjobs.model import Failed, Finished, Job, Outcome, Released, RetryPolicy, Succeeded

ME = "host:boot:1:tick"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
BUDGET_S = 55.0
LEASE_S = 60.0
AWAY = DatabaseUnreachable("db", "it is away")
MOST_ROUNDS = 5_000  # a loop that does not spin needs fewer rounds


class Clock:
    """Seconds since the tick began."""

    def __init__(self) -> None:
        self.s = 0.0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.s)

    def monotonic(self) -> float:
        return self.s

    @property
    def stands_at(self) -> None:
        return None


class Script:
    """A queue that says what happens at which second, in place of the workers' queue of ends."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.steps: list[tuple[float, Callable[[], None]]] = []
        self.ends: deque[Ended | None] = deque()
        self.waits = 0

    def at(self, second: float, do: Callable[[], None]) -> None:
        self.steps.append((second, do))
        self.steps.sort(key=lambda step: step[0])

    def put(self, ended: Ended | None) -> None:
        self.ends.append(ended)

    def qsize(self) -> int:
        return len(self.ends)

    def get_nowait(self) -> Ended | None:
        return self.get(0)

    def get(self, timeout: float) -> Ended | None:
        self.waits += timeout > 0
        assert self.waits < MOST_ROUNDS, "the loop spins"
        until = self.clock.s + timeout
        while not self.ends and self.steps and self.steps[0][0] <= until:
            second, do = self.steps.pop(0)
            self.clock.s = max(self.clock.s, second)
            do()
        if self.ends:
            return self.ends.popleft()
        self.clock.s = max(self.clock.s, until)
        raise queue.Empty


class HandDriven:
    """In place of Workers: begins what it is given while a slot is free, ends it when the test says so."""

    def __init__(self, count: int, around: WorkerContext, clock: Clock) -> None:
        self.count, self.around, self.clock = count, around, clock
        self.fault: str | None = None
        self.ended = Script(clock)
        self.inbox: list[Attempt] = []
        self.running: dict[int, Attempt] = {}
        self.began: dict[int, float] = {}
        self.most = 0
        self.stalled = False  # no thread comes to what it is given

    def hand(self, attempt: Attempt) -> bool:
        attempt.on_its_way = True
        self.inbox.append(attempt)
        self._begin()
        return True

    def _begin(self) -> None:
        while self.inbox and len(self.running) < self.count and not self.stalled:
            attempt = self.inbox.pop(0)
            stopped = unbegun(attempt)
            if stopped is not None:
                self.ended.put(Ended(attempt, Finished(attempt.job, stopped), self.clock.s))
                continue
            assert attempt.job.id not in self.began, "it runs here, or has"
            attempt.started, attempt.begun, attempt.worker = self.clock.s, True, "1"
            self.running[attempt.job.id] = attempt
            self.began[attempt.job.id] = self.clock.s
            self.most = max(self.most, len(self.running))

    def end(self, job_id: int, outcome: Outcome | None = None) -> None:
        attempt = self.running.pop(job_id)
        ran = timedelta(seconds=self.clock.s - self.began[job_id])
        self.ended.put(Ended(attempt, Finished(attempt.job, outcome or Succeeded(job_id), ran, "1"), self.clock.s))
        self._begin()

    def stall(self, stalled: bool) -> None:
        self.stalled = stalled
        self._begin()

    def end_all(self) -> None:
        for job_id in list(self.running):
            self.end(job_id)

    def take_back(self) -> list[Attempt]:
        given, self.inbox = self.inbox, []
        return given

    def wake(self) -> None:
        self.ended.put(None)


@dataclass
class Rows:
    """In place of the database. ``fails``: how transactions end now; not ``answers``: the next COMMIT has no answer."""

    clock: Clock
    due: list[Job] = field(default_factory=list)
    released: list[Job] = field(default_factory=list)  # due again from the next transaction on
    wrote: list[tuple[float, int, str]] = field(default_factory=list)  # when, which job, as what
    leased_at: dict[int, float] = field(default_factory=dict)
    renewals: list[float] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)
    overdue: dict[int, str] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    taken_over: set[int] = field(default_factory=set)
    own: set[int] = field(default_factory=set)  # their handlers ended them in a transaction
    due_long: list[Job] = field(default_factory=list)
    locked: set[int] = field(default_factory=set)
    bad: set[int] = field(default_factory=set)  # an end of theirs is refused in any form
    gives_back: bool = False  # what is released can be claimed again
    takes_s: float = 0.0  # how long each transaction takes
    fails: Exception | None = None
    answers: bool = True
    claim_unsettled: bool = False
    warily: bool = False
    unconfirmed: Sequence[Job] = ()

    def write(self, batch: Batch) -> BatchResult:
        if self.fails is not None:
            self.claim_unsettled = self.claim_unsettled or bool(batch.room)
            raise self.fails
        if any(end.attempt.job.id in self.bad for end, _ in batch.ends):
            raise BadValue("a value that no column takes")
        written, lost = self._finish(batch.ends)
        self.overdue |= {row.lease.job_id: str(row.outcome) for row in batch.overdue}
        renewal, settled = None, list[Job]()
        held = {lease.job_id for lease in batch.held}
        given_up = {lease.job_id for lease in batch.given_up}
        if batch.renew and held:
            self.renewals.append(self.clock.s)
            gone, own = held & self.taken_over, frozenset(held & self.own)
            renewed = frozenset(held - gone - own - self.locked - written)
            self.leased_at |= dict.fromkeys(renewed, self.clock.s)
            renewal = Renewal(renewed, frozenset(self.cancelled & renewed), frozenset(gone), own)
        if batch.unsettled:
            ours = self.leased_at.keys() - self.taken_over  # the read asks for our locked_by
            settled = [self._jobs[job_id] for job_id in ours - held - written - given_up]
        claimed = list[Job]()
        if batch.room:
            self.claims.append(self.clock.s)
            claimed, self.due = self.due[: batch.room], self.due[batch.room :]
            self._jobs |= {job.id: job for job in claimed}
            self.leased_at |= {job.id: self.clock.s for job in claimed}
        long, self.due_long = (self.due_long, []) if batch.long is not None else ([], self.due_long)
        self._jobs |= {job.id: job for job in long}
        self.leased_at |= {job.id: self.clock.s for job in long}
        self.due, self.released = [*self.due, *self.released], []
        if batch.last is not None:
            batch.last(cast("Any", self))
        sent, self.clock.s = self.clock.s, self.clock.s + self.takes_s
        if not self.answers:
            self.answers = True
            self.claim_unsettled = self.claim_unsettled or bool(batch.room or batch.long)
            raise AWAY
        self.claim_unsettled = False
        return BatchResult(
            sent=sent,
            ends=batch.ends,
            written=FinishResult(frozenset(written), frozenset(lost), succeeded=frozenset(written & self.own)),
            recorded=frozenset(row.lease.job_id for row in batch.overdue),
            renewal=renewal,
            settled=settled,
            claimed=claimed,
            long=long,
            database_now=self.clock.now(),
        )

    _jobs: dict[int, Job] = field(default_factory=dict)

    def _finish(self, ends: Sequence[tuple[Ended, Any]]) -> tuple[set[int], set[int]]:
        written, lost = set(), set()
        for _, decided in ends:
            job_id, word = decided.finish.lease.job_id, decided.finish.outcome or "released"
            if job_id in self.taken_over:
                lost.add(job_id)
            elif job_id in self.leased_at:
                self.wrote.append((self.clock.s, job_id, word))
                del self.leased_at[job_id]
                written.add(job_id)
                if word == "released" and self.gives_back:
                    self.released.append(self._jobs[job_id])
            elif job_id in self.own or any(row[1:] == (job_id, word) for row in self.wrote):
                written.add(job_id)  # by its handler, or the COMMIT before had no answer
        return written, lost

    def write_one(self, end: tuple[Ended, Any]) -> BatchResult:
        if end[0].attempt.job.id in self.bad:
            raise BadValue("a value that no column takes")
        written, lost = self._finish([end])
        own = frozenset(written & self.own)
        return BatchResult(self.clock.s, [end], FinishResult(frozenset(written), frozenset(lost), succeeded=own))

    def write_alone(self, last: Callable[[Any], None]) -> None:
        last(self)

    def may_work_row_by_row(self, error: Exception) -> bool:
        return False

    def end_itself(self, job_id: int) -> None:
        """The handler commits its own success, if the lease is still its attempt's."""
        if job_id in self.leased_at and job_id not in self.taken_over:
            self.own.add(job_id)
            self.wrote.append((self.clock.s, job_id, "succeeded"))
            del self.leased_at[job_id]

    def ends(self) -> dict[int, str]:
        return {job_id: word for _, job_id, word in self.wrote}

    def wait_for_locks(self) -> None:
        """An end whose row somebody has locked is neither written nor lost."""
        finish = self._finish

        def unlocked(ends: Sequence[tuple[Ended, Any]]) -> tuple[set[int], set[int]]:
            return finish([end for end in ends if end[0].attempt.job.id not in self.locked])

        self._finish = unlocked  # type: ignore[method-assign]


class Engine:
    """A loop with hand-driven workers; ``play`` runs it to its end."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        workers: int = 2,
        limit: int | None = None,
        tells_each: bool = True,
        catches: bool = False,
        **run: Any,
    ) -> None:
        self.clock = Clock()
        self.rows = Rows(self.clock)
        self.events: list[events.Event] = []
        self.watchdog: list[tuple[float, float]] = []
        settings = Settings(Path("cronjobs.yaml"), Path(), run=RunSettings(workers=workers, **run))
        self.workers = HandDriven(workers, WorkerContext(settings), self.clock)
        retry = RetryPolicy()
        types = {
            "t": JobType("t", timedelta(seconds=10), retry),
            "t.slow": JobType("t.slow", timedelta(seconds=40), retry),
            "t.long": JobType("t.long", timedelta(hours=1), retry, command=("sleep", "1")),
        }
        monkeypatch.setattr(loop_module, "sleep", self.sleep)
        monkeypatch.setattr(loop_module, "Writer", lambda *_, **__: self.rows)
        monkeypatch.setattr(loop_module, "cut_leases", self._cut)
        self.loop = Loop(
            database=cast("Any", None),
            job_types=JobTypes(types),
            workers=cast("Any", self.workers),
            watchdog=cast("Watchdog", self),
            locked_by=ME,
            deadline=BUDGET_S,
            database_now=NOW,
            now_read_at=0.0,
            emit=self.events.append,
            before_writing=lambda _: None,
            limits=TickFilter(jobs=limit),
            tells_each=tells_each,
            catches=catches,
        )
        self.handovers: list[Attempt] = []  # that have no answer yet
        self.handed: list[Attempt] = []
        self.attempts: dict[int, Attempt] = {}
        take = self.loop.in_flight.take

        def taken(attempt: Attempt) -> None:
            self.attempts[attempt.job.id] = attempt
            take(attempt)

        monkeypatch.setattr(self.loop.in_flight, "take", taken)
        monkeypatch.setattr(self.loop.handovers, "begin", lambda attempt, until: self._hand_over(attempt))

    def stand_at(self, instant: float) -> None:
        self.watchdog.append((self.clock.s, instant))

    def sleep(self, seconds: float) -> None:
        self.clock.s += max(seconds, 0.001)

    def _cut(self, _: Any, cut: Collection[Any], lease: timedelta) -> None:
        assert lease == CUT_LEASE
        self.rows.cut |= {each.job_id for each in cut}

    def _hand_over(self, attempt: Attempt) -> None:
        attempt.handed_over = attempt.on_its_way = True
        self.handovers.append(attempt)
        self.handed.append(attempt)

    def answer(self, job_id: int, answer: str) -> None:
        [attempt] = [attempt for attempt in self.handovers if attempt.job.id == job_id]
        self.workers.ended.put(Ended(attempt, Finished(attempt.job, Released()), self.clock.s, answer))

    def due(self, count: int, job_type: str = "t") -> None:
        """Make so many more jobs due, with the next numbers."""
        first = len(self.rows.due) + len(self.rows.due_long) + len(self.rows.released) + len(self.rows._jobs) + 1
        jobs = [Job(n, job_type, {}, attempt=1, locked_by=ME) for n in range(first, first + count)]
        if job_type == "t.long":
            self.rows.due_long += jobs
        else:
            self.rows.due += jobs

    def at(self, second: float, do: Callable[..., Any], *args: Any) -> None:
        self.workers.ended.at(second, lambda: do(*args))

    def play(self) -> str:
        return self.loop.run()

    def finish(self) -> bool:
        return self.loop.finish(lambda _: None)

    def names(self) -> list[str]:
        return [event.name for event in self.events]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch)


# --- claiming ---------------------------------------------------------------------------------------------------------


def test_nothing_due_ends_at_once_after_one_look(engine: Engine) -> None:
    assert engine.play() == NOTHING_DUE
    assert engine.rows.claims == [0.0]
    assert engine.clock.s == 0


def test_a_free_slot_is_filled_as_soon_as_one_ends(engine: Engine) -> None:
    engine.due(3)
    engine.at(4, engine.workers.end, 1)
    engine.at(5, engine.workers.end, 2)
    engine.at(6, engine.workers.end, 3)
    assert engine.play() == NOTHING_DUE
    assert engine.workers.began == {1: 0, 2: 0, 3: 4}
    assert engine.rows.wrote == [(4, 1, "succeeded"), (5, 2, "succeeded"), (6, 3, "succeeded")]


def test_with_a_slot_free_and_nothing_due_it_looks_once_a_second(engine: Engine) -> None:
    engine.due(1)
    engine.at(2.5, engine.due, 1)  # enqueued meanwhile
    engine.at(8, engine.workers.end, 1)
    engine.at(8, engine.workers.end, 2)
    assert engine.play() == NOTHING_DUE
    assert engine.rows.claims[:4] == [0, POLL_S, 2 * POLL_S, 3 * POLL_S]
    assert engine.workers.began[2] == 3 * POLL_S


def test_while_every_slot_is_taken_it_does_not_look(engine: Engine) -> None:
    engine.due(2)
    engine.at(9, engine.workers.end, 1)
    engine.at(9, engine.workers.end, 2)
    engine.play()
    assert engine.rows.claims == [0.0, 9.0]


def test_short_jobs_are_claimed_ahead_and_no_more_than_workers_run(engine: Engine) -> None:
    engine.due(40)

    def one_after_another() -> None:
        engine.workers.end_all()
        engine.at(engine.clock.s + 0.002, one_after_another)

    engine.at(0.002, one_after_another)
    assert engine.play() == NOTHING_DUE
    assert engine.rows.ends() == dict.fromkeys(range(1, 41), "succeeded")
    assert engine.workers.most == 2
    assert len(engine.rows.claims) < 20  # many jobs to a claim


def test_a_turn_writes_one_group_so_that_workers_have_jobs_while_it_lasts(engine: Engine) -> None:
    engine.due(5000)

    def until_none_is_left() -> None:  # a thread keeps the interpreter to itself for longer than such jobs take
        while engine.workers.running:
            engine.workers.end_all()
        engine.at(engine.clock.s + 0.001, until_none_is_left)

    turns, write = list[tuple[int, int]](), engine.rows.write

    def written(batch: Batch) -> BatchResult:
        turns.append((len(batch.ends), len(engine.workers.ended.ends)))
        return write(batch)

    engine.rows.write = written  # type: ignore[method-assign]
    engine.at(0.001, until_none_is_left)
    assert engine.play() == NOTHING_DUE
    assert engine.rows.ends() == dict.fromkeys(range(1, 5001), "succeeded")
    assert max(ends for ends, _ in turns) == GROUP
    # The jobs of the next group were with the workers; here they have run already.
    assert sum(left > 0 for _, left in turns) > 5000 // GROUP // 2


def test_an_end_that_comes_while_a_turn_lasts_is_written_by_the_next_as_of_then(engine: Engine) -> None:
    engine.due(2)
    write, ended_ago = engine.rows.write, dict[int, timedelta]()

    def slow(batch: Batch) -> BatchResult:
        ended_ago.update({end.attempt.job.id: decided.finish.ended_ago for end, decided in batch.ends})
        result = write(batch)
        if [end.attempt.job.id for end, _ in batch.ends] == [1]:
            engine.workers.end(2, Failed("no", "Error"))
            engine.clock.s += 3
        return result

    engine.rows.write = slow  # type: ignore[method-assign]
    engine.at(1, engine.workers.end, 1)
    engine.play()
    assert engine.rows.wrote == [(1, 1, "succeeded"), (4, 2, "failed")]
    assert ended_ago[2] == timedelta(seconds=3)
    assert engine.names().count("job.retried") == 1


def test_what_an_end_enqueued_while_a_turn_claimed_is_not_missed(engine: Engine) -> None:
    engine.due(1)
    write, turns = engine.rows.write, list[int]()

    def late(batch: Batch) -> BatchResult:
        turns.append(batch.room)
        if len(turns) == 2:  # finds nothing due; the end comes meanwhile, and its job has enqueued another
            engine.workers.end(1)
            result = write(batch)
            engine.due(1)
            engine.at(engine.clock.s + 0.001, engine.workers.end_all)
            return result
        return write(batch)

    engine.rows.write = late  # type: ignore[method-assign]
    assert engine.play() == NOTHING_DUE
    assert engine.rows.ends() == {1: "succeeded", 2: "succeeded"}


def test_a_signal_while_a_turn_lasts_is_told_at_once(engine: Engine) -> None:
    engine.due(1)
    write, turns, told = engine.rows.write, list[float](), list[float]()

    def signalled(batch: Batch) -> BatchResult:
        turns.append(engine.clock.s)
        if len(turns) == 2:
            engine.loop.stop("SIGTERM")
        return write(batch)

    engine.rows.write = signalled  # type: ignore[method-assign]
    engine.loop.emit = lambda event: told.append(engine.clock.s) if event.name == "tick.stopping" else None
    engine.at(9, engine.workers.end, 1)
    engine.play()
    assert told == [turns[1]]


def test_ends_that_come_in_a_turn_that_fails_wait_for_the_database_and_keep_their_instant(engine: Engine) -> None:
    engine.due(2)
    write, ended_ago = engine.rows.write, dict[int, timedelta]()

    def fails(batch: Batch) -> BatchResult:
        if [end.attempt.job.id for end, _ in batch.ends] == [1]:
            engine.workers.end(2)
        if batch.ends and engine.clock.s < 3:
            raise AWAY
        ended_ago.update({end.attempt.job.id: decided.finish.ended_ago for end, decided in batch.ends})
        return write(batch)

    engine.rows.write = fails  # type: ignore[method-assign]
    engine.at(1, engine.workers.end, 1)
    engine.play()
    assert engine.rows.ends() == {1: "succeeded", 2: "succeeded"}
    assert ended_ago == dict.fromkeys((1, 2), timedelta(seconds=engine.rows.wrote[0][0] - 1))
    assert ended_ago[1] >= timedelta(seconds=2)


@pytest.mark.parametrize(("reads", "of_each"), [(True, 3), (False, 1)])
def test_where_nobody_reads_of_each_job_the_first_success_of_a_type_is_told(
    monkeypatch: pytest.MonkeyPatch, reads: bool, of_each: int
) -> None:
    engine = Engine(monkeypatch, tells_each=reads)
    engine.due(3)
    engine.due(3, "t.slow")
    for second in range(1, 4):
        engine.at(second, engine.workers.end_all)
    engine.play()
    assert engine.names().count("job.succeeded") == 2 * of_each
    assert engine.names().count("job.claimed") == (6 if reads else 0)
    assert engine.loop.counts.succeeded == 6


def test_a_success_with_a_note_and_any_other_end_is_always_told(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, workers=3, tells_each=False)
    engine.due(3)
    engine.at(1, engine.workers.end, 1)
    engine.at(2, engine.workers.end, 2, Succeeded(None, "the result was not kept"))
    engine.at(3, engine.workers.end, 3, Failed("no", "Error"))
    engine.play()
    assert engine.names() == ["job.succeeded", "job.succeeded", "job.retried"]


@pytest.mark.parametrize("limit", [1, 3])
def test_the_callers_limit_counts_claims(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    engine = Engine(monkeypatch, limit=limit)
    engine.due(10)
    for second in range(1, 10):
        engine.at(second, engine.workers.end_all)
    assert engine.play() == LIMIT_REACHED
    assert sorted(engine.workers.began) == list(range(1, limit + 1))


# --- giving back ------------------------------------------------------------------------------------------------------


def test_what_was_claimed_ahead_behind_a_slow_job_goes_back(engine: Engine) -> None:
    engine.due(60)

    def end_all() -> None:  # at first at once; then each takes nine seconds
        engine.workers.end_all()
        engine.at(engine.clock.s + (0.002 if len(engine.workers.began) < 20 else 9), end_all)

    engine.at(0.002, end_all)
    engine.play()
    released = [(when, job_id) for when, job_id, word in engine.rows.wrote if word == "released"]
    assert released
    assert all(when <= UNBEGUN_S + 0.2 for when, _ in released)
    assert not {job_id for _, job_id in released} & engine.workers.began.keys()


def test_a_slow_database_costs_no_job_its_worker(engine: Engine) -> None:
    """How long the claim took says nothing about the workers: they get their second from its answer on."""
    engine.rows.gives_back, engine.rows.takes_s = True, UNBEGUN_S * 3
    engine.workers.stall(True)
    engine.due(1)
    engine.at(UNBEGUN_S * 3 + 0.01, lambda: engine.workers.stall(False))
    engine.at(UNBEGUN_S * 3 + 0.02, engine.workers.end_all)
    engine.play()
    assert [(job_id, word) for _, job_id, word in engine.rows.wrote] == [(1, "succeeded")]


def test_what_goes_back_while_the_loop_looks_for_more_is_claimed_by_the_same_tick(engine: Engine) -> None:
    """The machine was busy: no worker came to it for seconds, and the turn that gives it back is one that claims."""
    engine.rows.gives_back = True
    engine.due(1)
    begin, engine.workers._begin = engine.workers._begin, lambda: None  # type: ignore[method-assign]

    def stall() -> None:
        engine.clock.s = 3
        engine.workers._begin = begin  # type: ignore[method-assign]

    engine.at(0.5, stall)
    engine.at(6, engine.workers.end_all)
    assert engine.play() == NOTHING_DUE
    assert engine.rows.ends() == {1: "succeeded"}


def test_a_signal_stops_claims_tells_what_runs_and_waits_for_it(engine: Engine) -> None:
    engine.due(3)
    engine.at(1, engine.loop.stop, "SIGTERM")
    engine.at(3, engine.workers.end, 1)
    engine.at(4, engine.workers.end, 2)
    assert engine.play() == "SIGTERM"
    assert engine.rows.ends() == {1: "succeeded", 2: "succeeded"}
    assert engine.clock.s == 4
    assert engine.rows.claims == [0.0]


@pytest.mark.parametrize(
    ("second_signal_at", "ends_at"),
    [
        (None, 11),  # the grace of ten seconds
        (5, 5),
    ],
)
def test_what_does_not_stop_is_cut_after_the_grace_or_at_a_second_signal(
    engine: Engine, second_signal_at: float | None, ends_at: float
) -> None:
    engine.due(1, "t.slow")
    engine.at(1, engine.loop.stop, "SIGTERM")
    if second_signal_at is not None:
        engine.at(second_signal_at, engine.loop.stop, "SIGTERM")
    ended = engine.play()
    assert ended.startswith("SIGTERM")
    assert engine.clock.s == ends_at
    assert engine.workers.running[1].stop.reason == "shutdown"
    assert engine.finish()  # a thread still runs
    assert engine.rows.cut == {1}
    assert engine.rows.overdue == {1: "interrupted"}
    assert engine.watchdog[-1][1] <= engine.clock.s + EXIT_MARGIN_S


def test_from_the_first_signal_on_the_watchdog_stands_soon_after_the_grace(engine: Engine) -> None:
    grace_s = engine.loop.settings.run.shutdown_grace.total_seconds()
    engine.due(1, "t.slow")
    engine.at(3, engine.loop.stop, "SIGTERM")
    engine.at(4, engine.workers.end, 1)
    engine.play()
    # If the loop now hangs in a statement on a dead connection, the process is gone at this instant.
    assert (3, 3 + grace_s + STOP_MARGIN_S) in engine.watchdog
    assert engine.watchdog[-1][1] == 3 + grace_s + STOP_MARGIN_S
    assert STOP_MARGIN_S + HARD_AFTER_S < 5, "the docs say that 5 s after the grace are enough"


def test_a_signal_leaves_an_end_its_grace_to_be_written(engine: Engine) -> None:
    engine.rows.wait_for_locks()
    engine.due(1, "t.slow")
    engine.at(2, engine.rows.locked.add, 1)
    engine.at(3, engine.loop.stop, "SIGTERM")
    engine.at(3, engine.workers.end, 1)
    engine.at(3.5, engine.rows.locked.clear)
    engine.play()
    engine.finish()
    assert engine.rows.ends() == {1: "succeeded"}


def test_a_stop_that_comes_while_the_last_write_is_retried_ends_the_retries_after_its_grace(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_at = []

    def sleep(seconds: float) -> None:
        engine.sleep(seconds)
        if engine.loop.stopping is None and engine.clock.s >= 5:
            stopped_at.append(engine.clock.s)
            engine.loop.stop("SIGTERM")

    assert engine.play() == NOTHING_DUE
    engine.rows.fails = AWAY
    monkeypatch.setattr(loop_module, "sleep", sleep)
    engine.finish()
    assert engine.loop.stopping == "SIGTERM"
    grace_s = engine.loop.settings.run.shutdown_grace.total_seconds()
    assert [engine.clock.s] == pytest.approx([at + grace_s for at in stopped_at], abs=0.1)


@pytest.mark.parametrize("began", [40, 40.5, 41, 41.5, 42, 42.5])
def test_no_try_of_the_last_write_waits_for_a_lock_until_the_watchdog_ends_the_process(
    engine: Engine, began: float
) -> None:
    def wait_for_a_lock(batch: Batch) -> BatchResult:
        engine.clock.s += 2
        raise DatabaseBusy("db", 2)

    assert engine.play() == NOTHING_DUE
    engine.clock.s = began
    engine.rows.write = wait_for_a_lock  # type: ignore[method-assign]
    engine.finish()
    assert BUDGET_S - 4 < engine.clock.s < BUDGET_S + PAST_DEADLINE_S


@pytest.mark.parametrize("how", ["fault", "limit"])
def test_a_loop_that_may_not_claim_waits(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    engine = Engine(monkeypatch, catches=True, limit=1 if how == "limit" else None)
    engine.due(1, "t.slow")
    if how == "fault":
        engine.at(2, engine.loop._caught, RuntimeError("nobody expected it"))
    engine.at(4, engine.workers.end_all)
    engine.play()
    assert engine.workers.ended.waits < 50


def test_an_end_whose_row_is_locked_is_tried_ten_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, workers=1, limit=1)
    engine.rows.wait_for_locks()
    turns, write = list[float](), engine.rows.write
    engine.rows.write = lambda batch: turns.append(engine.clock.s) or write(batch)  # type: ignore[method-assign,func-returns-value]
    engine.due(1, "t.slow")
    engine.at(1, engine.rows.locked.add, 1)
    engine.at(2, engine.workers.end, 1)
    engine.at(4, engine.rows.locked.clear)
    engine.play()
    assert engine.rows.ends() == {1: "succeeded"}
    assert len(turns) < 40


def test_what_could_not_be_begun_makes_the_next_claim_wait_whatever_else_ends(engine: Engine) -> None:
    engine.due(2)
    engine.loop._round()
    attempt = engine.workers.running.pop(1)
    engine.workers.ended.put(
        Ended(attempt, Finished(attempt.job, Released("the attempt could not be started")), engine.clock.s)
    )
    engine.workers.end(2)
    engine.due(2)
    engine.loop.ends.collect(0)
    engine.loop._turn()
    assert engine.rows.ends() == {1: "released", 2: "succeeded"}
    assert engine.loop._next_claim() >= engine.clock.s + POLL_S


def test_what_no_memory_was_left_to_hand_out_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, workers=3, catches=True)
    hand, broke = engine.workers.hand, list[int]()

    def handing(attempt: Attempt) -> bool:
        if attempt.job.id == 2 and not broke:
            broke.append(2)
            raise MemoryError
        return hand(attempt)

    engine.workers.hand = handing  # type: ignore[method-assign]
    engine.due(3, "t.slow")
    engine.at(9, engine.workers.end, 1)
    assert engine.play() == FAULT
    engine.finish()
    assert engine.rows.ends() == {1: "succeeded", 2: "released", 3: "released"}
    assert not engine.rows.overdue


def test_what_no_worker_could_take_is_released_and_the_tick_ends_with_the_fault(engine: Engine) -> None:
    def hand(_: Attempt) -> bool:
        engine.workers.count, engine.workers.fault = 0, "can't start new thread"
        return False

    engine.workers.hand = hand  # type: ignore[method-assign,assignment]
    engine.due(2)
    assert engine.play() == FAULT
    assert engine.rows.ends() == {1: "released", 2: "released"}
    assert engine.workers.began == {}


# --- leases -----------------------------------------------------------------------------------------------------------


def test_every_lease_is_renewed_a_quarter_of_its_length_after_the_oldest(engine: Engine) -> None:
    engine.due(1, "t.slow")
    engine.at(3, engine.due, 1, "t.slow")
    engine.at(38, engine.workers.end, 1)
    engine.at(38, engine.workers.end, 2)
    engine.play()
    assert engine.rows.renewals == [15, 30]
    assert engine.rows.ends() == {1: "succeeded", 2: "succeeded"}


def test_a_row_that_somebody_has_locked_is_tried_again_soon(engine: Engine) -> None:
    engine.due(1, "t.slow")
    engine.rows.locked = {1}
    engine.at(15.4, engine.rows.locked.clear)
    engine.at(20, engine.workers.end, 1)
    engine.play()
    assert engine.rows.renewals == [15, 15.25, 15.5]


def test_a_lost_lease_stops_the_code_and_nothing_of_it_is_recorded(engine: Engine) -> None:
    engine.due(2, "t.slow")
    engine.at(10, engine.rows.taken_over.add, 1)
    engine.at(22, engine.workers.end, 2)
    engine.at(25, engine.workers.end, 1)
    assert engine.play() == NOTHING_DUE
    assert engine.clock.s == 22  # the code without a lease is not waited for
    assert engine.rows.ends() == {2: "succeeded"}
    assert engine.names().count("job.lease_lost") == 1
    assert engine.workers.running[1].stop.reason == "lease lost"
    assert engine.finish()  # the code runs on, so the process must end


def test_code_without_a_lease_keeps_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, workers=1)
    engine.due(1, "t.slow")
    engine.rows.taken_over = {1}
    engine.at(16, engine.due, 1)
    assert engine.play() == NO_SLOT
    assert engine.clock.s == 15
    assert engine.workers.began.keys() == {1}


def test_a_cancel_request_reaches_the_code_at_the_next_renewal_and_counts_whatever_it_raises(engine: Engine) -> None:
    engine.due(1, "t.slow")
    engine.at(3, engine.rows.cancelled.add, 1)
    engine.at(16, lambda: engine.workers.end(1, Failed("interrupted in the middle", "ValueError")))
    engine.play()
    assert engine.rows.ends() == {1: "cancelled"}


def test_the_watchdog_stands_before_the_first_lease_ends_whenever_code_runs(engine: Engine) -> None:
    engine.due(2, "t.slow")
    engine.at(20, engine.workers.end, 1)
    engine.at(35, engine.workers.end, 2)
    engine.play()
    margin = lease_margin_s(LEASE_S)
    begun = [instant for when, instant in engine.watchdog if when == 0]
    assert min(begun) <= LEASE_S - margin
    assert all(instant <= when + LEASE_S - margin for when, instant in engine.watchdog if when < 35)


def test_a_job_that_has_ended_and_cannot_be_written_does_not_have_the_process_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(monkeypatch, lease=timedelta(seconds=12))
    engine.rows.wait_for_locks()
    engine.due(2, "t.slow")
    engine.at(1, engine.rows.locked.add, 1)
    engine.at(2, engine.workers.end, 1)
    engine.at(30, engine.rows.locked.clear)
    engine.at(35, engine.workers.end, 2)
    engine.play()
    moved = engine.watchdog
    assert all(instant > until for (_, instant), (until, _) in pairwise(moved))
    assert engine.rows.ends() == {1: "succeeded", 2: "succeeded"}


def test_a_job_that_was_reset_by_hand_is_not_begun_beside_its_earlier_attempt(engine: Engine) -> None:
    engine.due(1, "t.slow")
    engine.at(3, lambda: engine.rows.due.append(Job(1, "t.slow", {}, attempt=2, locked_by=ME)))
    engine.at(10, engine.workers.end_all)
    engine.play()
    assert engine.names().count("job.lease_lost") == 1
    assert engine.workers.running[1].stop.reason == "lease lost"
    assert [row[1:] for row in engine.rows.wrote] == [(1, "released")]
    assert engine.finish()  # its code still runs


def test_an_end_that_comes_while_its_lease_is_found_lost_leaves_the_loop_waiting(engine: Engine) -> None:
    write, renewed = engine.rows.write, list[float]()

    def ends_meanwhile(batch: Batch) -> BatchResult:
        if batch.renew and not renewed:
            renewed.append(engine.clock.s)
            engine.rows.taken_over.add(1)
            engine.workers.end(1)
        return write(batch)

    engine.rows.write = ends_meanwhile  # type: ignore[method-assign]
    engine.due(2, "t.slow")
    engine.at(14.9, engine.loop.stop, "SIGTERM")  # no turn follows that would clear it
    engine.at(22, engine.workers.end, 2)
    collect, rounds = engine.loop.ends.collect, list[float]()

    def counted(wait_s: float) -> None:
        rounds.append(engine.clock.s)
        assert len(rounds) < MOST_ROUNDS, "the loop spins"
        collect(wait_s)

    engine.loop.ends.collect = counted  # type: ignore[method-assign]
    engine.play()
    assert engine.rows.ends() == {2: "succeeded"}


# --- overdue ----------------------------------------------------------------------------------------------------------


def test_overdue_code_is_recorded_keeps_slot_row_and_lease_and_a_result_that_comes_after_all_counts(
    engine: Engine,
) -> None:
    engine.due(2)
    engine.at(8, engine.workers.end, 2)
    engine.at(8, engine.due, 1, "t.slow")
    engine.at(20, engine.workers.end, 1)
    engine.at(25, engine.workers.end, 3)
    assert engine.play() == NOTHING_DUE
    assert engine.rows.overdue == {1: "timed_out"}
    assert engine.rows.ends() == {1: "succeeded", 2: "succeeded", 3: "succeeded"}
    assert engine.loop.counts.timed_out == 0


def test_an_error_after_the_time_out_stays_timed_out(engine: Engine) -> None:
    engine.due(1)
    engine.at(10.1, lambda: engine.workers.end(1, Failed("stopped", "RuntimeError")))
    engine.play()
    assert engine.rows.ends() == {1: "timed_out"}


def test_a_tick_that_has_only_overdue_code_left_ends_and_records_it(engine: Engine) -> None:
    engine.due(2)
    assert engine.play() == NO_SLOT
    assert 10 <= engine.clock.s < 11
    assert engine.finish()
    assert engine.rows.overdue == {1: "timed_out", 2: "timed_out"}
    assert engine.rows.cut == {1, 2}
    assert engine.rows.wrote == []


def test_what_a_claim_took_until_the_time_was_up_goes_back_unbegun(engine: Engine) -> None:
    engine.due(1)
    write = engine.rows.write

    def slow(batch: Batch) -> BatchResult:
        if batch.room:
            engine.clock.s = BUDGET_S
        return write(batch)

    engine.rows.write = slow  # type: ignore[method-assign]
    assert engine.play() == TIME_IS_UP
    assert not engine.finish()
    assert (engine.rows.ends(), engine.workers.began) == ({1: "released"}, {})


def test_the_time_is_up_even_while_jobs_run(engine: Engine) -> None:
    engine.due(1, "t.slow")
    engine.at(20, engine.due, 1, "t.slow")
    engine.at(39, engine.workers.end, 1)
    assert engine.play() == TIME_IS_UP
    assert engine.clock.s == BUDGET_S
    assert engine.finish()
    assert engine.rows.cut == {2}


# --- trouble ----------------------------------------------------------------------------------------------------------


def test_ends_wait_for_a_database_that_is_away_and_are_written_once(engine: Engine) -> None:
    engine.due(2)
    engine.at(2, lambda: setattr(engine.rows, "fails", AWAY))
    engine.at(3, engine.workers.end, 1)
    engine.at(4, engine.workers.end, 2)
    engine.at(9, lambda: setattr(engine.rows, "fails", None))
    assert engine.play() == NOTHING_DUE
    assert sorted(row[1:] for row in engine.rows.wrote) == [(1, "succeeded"), (2, "succeeded")]
    assert 9 <= engine.rows.wrote[0][0] <= 10.5
    assert engine.names().count("database.trouble") == 1
    [outage] = engine.loop.outages
    assert 2 <= outage.began <= 3
    assert (outage.ended, outage.why) == (engine.rows.wrote[0][0], str(AWAY))


def test_a_commit_without_an_answer_is_read_back_and_each_job_runs_once(engine: Engine) -> None:
    engine.due(2)
    engine.rows.answers = False  # the claim
    engine.at(3, lambda: setattr(engine.rows, "answers", False))
    engine.at(3, engine.workers.end, 1)  # and an end
    engine.at(4, engine.workers.end, 2)
    assert engine.play() == NOTHING_DUE
    assert [job_id for _, job_id, _ in engine.rows.wrote] == [1, 2]
    assert engine.workers.began.keys() == {1, 2}


def test_an_attempt_whose_lease_ran_out_while_the_database_was_away_is_not_begun_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its row may still be ours when a claim without an answer is looked for, and its code still runs."""
    engine = Engine(monkeypatch, lease=timedelta(seconds=12))
    engine.due(1, "t.slow")
    handed, hand = list[int](), engine.workers.hand
    engine.workers.hand = lambda attempt: handed.append(attempt.job.id) or hand(attempt)  # type: ignore[method-assign,func-returns-value]
    engine.at(0.5, lambda: setattr(engine.rows, "fails", AWAY))
    engine.at(14, lambda: setattr(engine.rows, "fails", None))
    engine.play()
    assert engine.clock.s >= 14
    assert engine.names().count("job.lease_lost") == 1
    assert handed == [1]
    assert engine.rows.leased_at.keys() == {1}  # until another tick finds it lost


def test_what_the_last_turn_finds_of_a_claim_without_an_answer_goes_back(engine: Engine) -> None:
    engine.rows._jobs[1], engine.rows.leased_at[1] = Job(1, "t", {}, attempt=1, locked_by=ME), 0.0
    engine.rows.claim_unsettled = True
    assert not engine.finish()
    assert engine.rows.ends() == {1: "released"}
    assert not engine.workers.began
    assert not engine.rows.overdue


def test_an_error_while_an_end_is_taken_begins_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, workers=3, catches=True)
    engine.due(3, "t.slow")
    handed, hand = list[int](), engine.workers.hand
    engine.workers.hand = lambda attempt: handed.append(attempt.job.id) or hand(attempt)  # type: ignore[method-assign,func-returns-value]
    note = engine.loop.planner.note
    engine.at(1, engine.workers.end, 1)
    engine.at(1.4, lambda: setattr(engine.loop.planner, "note", None))
    engine.at(1.5, engine.workers.end, 2)
    engine.at(1.9, lambda: setattr(engine.loop.planner, "note", note))
    engine.at(2, engine.workers.end, 3)
    assert engine.play() == FAULT
    assert handed == [1, 2, 3]
    assert engine.rows.ends() == dict.fromkeys((1, 2, 3), "succeeded")


def test_claims_without_an_answer_do_not_pile_up(engine: Engine) -> None:
    engine.due(100)
    write = engine.rows.write

    def unanswered(batch: Batch) -> BatchResult:
        engine.rows.answers = False
        return write(batch)

    engine.rows.write = unanswered  # type: ignore[method-assign]
    engine.play()
    engine.finish()
    assert len(engine.rows.leased_at) <= 2


def test_a_claim_without_an_answer_counts_for_the_callers_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, limit=1)
    engine.due(3)
    engine.rows.answers = False
    for second in (3, 4):
        engine.at(second, engine.workers.end_all)
    engine.play()
    assert engine.workers.began.keys() == {1}


def test_what_no_standby_confirmed_goes_back_and_nothing_of_it_begins(engine: Engine) -> None:
    engine.rows.gives_back = True
    engine.due(2)
    write = engine.rows.write

    def unconfirmed(batch: Batch) -> BatchResult:
        result = write(batch)
        engine.rows.unconfirmed = result.claimed
        raise CommitUnconfirmed("db")

    engine.rows.write = unconfirmed  # type: ignore[method-assign]
    engine.play()
    engine.finish()
    assert not engine.workers.began
    assert not engine.rows.leased_at
    assert "job.lost" not in engine.names()


def test_what_no_waiting_mends_ends_the_tick_once_nothing_is_held(engine: Engine) -> None:
    engine.rows.fails = DatabaseReadOnly("db", "a standby", "connect to the primary")
    assert engine.play() == NO_WRITES
    assert engine.clock.s < 1


def test_who_waits_for_sqlites_turn_reports_nothing_for_three_seconds(engine: Engine) -> None:
    engine.rows.fails = DatabaseBusy("db", 0.25)
    engine.at(2.5, lambda: setattr(engine.rows, "fails", None))
    assert engine.play() == NOTHING_DUE
    assert engine.names() == []
    assert engine.loop.outages == []


def test_one_end_that_no_column_takes_does_not_hold_up_the_others(engine: Engine) -> None:
    engine.due(2)
    engine.rows.bad = {1}
    engine.at(3, engine.workers.end, 1)
    engine.at(3, engine.workers.end, 2)
    engine.play()
    assert engine.rows.ends() == {2: "succeeded"}
    assert engine.names().count("job.end_not_recorded") == 1


def test_a_claim_that_took_as_long_as_its_lease_is_released_and_the_tick_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another tick may have the jobs by now. A timer set to the end of such a lease would kill this process at once."""
    lease_s = 5.0
    engine = Engine(monkeypatch, lease=timedelta(seconds=lease_s))
    engine.due(2)
    engine.rows.gives_back = True
    engine.rows.takes_s = lease_s - lease_margin_s(lease_s)
    write = engine.rows.write

    def first_is_slow(batch: Batch) -> BatchResult:
        turn = write(batch)
        engine.rows.takes_s = 0.0
        return turn

    monkeypatch.setattr(engine.rows, "write", first_is_slow)
    engine.at(10, engine.workers.end_all)
    assert engine.play() == NOTHING_DUE
    assert all(instant > at for at, instant in engine.watchdog)
    assert [word for _, _, word in engine.rows.wrote] == ["released", "released", "succeeded", "succeeded"]


# --- long jobs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "ends"), [(ADOPTED, {}), ("no answer in time", {1: "released"})])
def test_a_long_job_belongs_to_its_process_once_that_answers(engine: Engine, answer: str, ends: dict[int, str]) -> None:
    job = Job(1, "t.long", {}, attempt=1, locked_by=ME)
    engine.rows._jobs[1], engine.rows.leased_at[1] = job, 0.0
    engine.loop._begin(BatchResult(0.0, claimed=[job]))
    engine.at(2, engine.answer, 1, answer)
    assert engine.play() == NOTHING_DUE
    assert engine.clock.s <= 2 + POLL_S  # what was given back is due again: one more look
    assert engine.rows.ends() == ends
    assert engine.loop.counts.handed_over == (answer == ADOPTED)
    assert not engine.finish()


def test_a_long_job_that_its_process_took_over_unheard_is_not_told_as_lost(engine: Engine) -> None:
    types = engine.loop.planner.job_types.types
    job = Job(1, "t.long", {}, attempt=1, locked_by=ME)
    engine.loop.planner.job_types = JobTypes({**types, "t.long": replace(types["t.long"], on_shutdown="drop")})
    engine.rows._jobs[1], engine.rows.leased_at[1] = job, 0.0
    engine.loop._begin(BatchResult(0.0, claimed=[job]))
    engine.at(1, engine.loop.stop, "SIGTERM")
    engine.at(2, engine.rows.taken_over.add, 1)
    engine.play()
    engine.finish()
    assert "job.lease_lost" not in engine.names()


# --- anything at all --------------------------------------------------------------------------------------------------


class Life:
    """A loop to which anything happens, and what must hold of it in the end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, workers: int, lease_s: float = LEASE_S) -> None:
        self.engine = Engine(monkeypatch, workers=workers, lease=timedelta(seconds=lease_s))
        self.engine.rows.wait_for_locks()
        self.lease_s = lease_s
        self.happened: list[str] = []

    def happen(self, action: str, n: int = 0) -> None:
        """Let it happen now, to the *n*-th of those to whom it can."""
        engine, rows, workers = self.engine, self.engine.rows, self.engine.workers
        self.happened.append(action)
        running = sorted(workers.running)
        one = running[n % len(running)] if running else None
        match action:
            case "end" if one:
                workers.end(one)
            case "fail" if one:
                workers.end(one, Failed("no luck", "ValueError"))
            case "end itself" if one:
                rows.end_itself(one)
            case "cancel" | "take over" | "lock":
                chosen = {"cancel": rows.cancelled, "take over": rows.taken_over, "lock": rows.locked}[action]
                leased = sorted(rows.leased_at)
                if leased:
                    chosen.add(leased[n % len(leased)])
            case "enqueue":
                engine.due(n % 4)
            case "enqueue a long one":
                engine.due(1, "t.long")
            case "adopt" | "stay silent" if engine.handovers:
                attempt = engine.handovers[n % len(engine.handovers)]
                handed = attempt.job.id
                adopts = action == "adopt" and handed in rows.leased_at and handed not in rows.taken_over
                if adopts:
                    rows.taken_over.add(handed)
                engine.answer(handed, ADOPTED if adopts else "no answer in time")
                engine.handovers.remove(attempt)
            case "away":
                rows.fails = AWAY
            case "back":
                rows.fails = None
                rows.locked.clear()
            case "unanswered":
                rows.answers = False
            case "stall" | "go on":
                workers.stall(action == "stall")
            case "stop":
                engine.loop.stop("SIGTERM")

    def play(self) -> None:
        engine, rows = self.engine, self.engine.rows
        engine.play()
        assert engine.clock.s <= BUDGET_S + 1
        runs_on = engine.finish()
        held_to_the_end = set(engine.workers.running)
        began = engine.workers.began.keys()

        assert engine.workers.most <= engine.workers.count
        written = [job_id for _, job_id, word in rows.wrote if word != "released"]
        assert len(written) == len(set(written))
        assert {job_id for _, job_id, word in rows.wrote if word not in ("released", "cancelled")} <= began
        lost = rows.taken_over | {lease.job_id for lease in engine.loop.in_flight.given_up}
        assert not set(written) & lost - rows.own
        assert rows.overdue.keys() <= began
        adopted = {attempt.job.id for attempt in engine.handed}
        assert not adopted & began
        if held_to_the_end:
            assert runs_on
        if rows.fails is None and not rows.locked:
            # Whatever began and ended is written, unless its lease was lost; the rest is cut, or still another's.
            assert began - lost <= set(written) | rows.cut
            if self.happened.count("stop") < 2:  # a second signal does not wait for an answer
                assert rows.leased_at.keys() - lost <= rows.cut
        # Nobody's lease came near its end while the database was there and nobody had the row.
        if not {"away", "lock", "unanswered"} & set(self.happened):
            gaps = [b - a for a, b in zip(rows.renewals, rows.renewals[1:], strict=False)]
            assert all(gap >= heartbeat_s(self.lease_s) - 0.01 or rows.taken_over for gap in gaps)


EVENTS = [
    *("end", "fail", "end itself", "cancel", "take over", "lock", "adopt", "stay silent"),
    *("enqueue", "enqueue a long one", "away", "back", "unanswered", "stall", "go on", "stop"),
]
STEPS = st.lists(st.tuples(st.floats(0, BUDGET_S), st.sampled_from(EVENTS), st.integers(0, 30)), max_size=40)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(workers=st.integers(1, 5), jobs=st.integers(0, 20), lease_s=st.sampled_from([LEASE_S, 6.0]), steps=STEPS)
@example(1, 1, LEASE_S, [(0, "unanswered", 0), (0.06, "away", 0), (1, "stop", 0), (2, "back", 0), (2, "stop", 0)])
@example(2, 1, 6.0, [(0.5, "away", 0), (8, "back", 0)])
@example(1, 2, LEASE_S, [(1, "take over", 0), (2, "end", 0), (2, "unanswered", 0), (1, "end", 0)])
def test_whatever_happens_each_job_runs_once_and_is_written_once_or_left_to_its_lease(
    workers: int, jobs: int, lease_s: float, steps: list[tuple[float, str, int]]
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        life = Life(monkeypatch, workers=workers, lease_s=lease_s)
        life.engine.due(jobs)
        for second, action, n in steps:
            life.engine.at(second, life.happen, action, n)
        life.play()


# How job 1 gets into each phase by the second 20; a second job keeps the loop at work.
WAYS: dict[str, tuple[Phase, list[tuple[float, str]]]] = {
    "claimed, and no thread has come to it": (Phase.HELD, []),
    "running": (Phase.HELD, []),
    "overdue": (Phase.OVERDUE, []),
    "ended, and not written": (Phase.ENDED, [(18, "away"), (19, "end")]),
    "ended, and its row is locked": (Phase.ENDED, [(18, "lock"), (19, "end")]),
    "being handed over": (Phase.HANDING_OVER, []),
    "ended itself, and its handler goes on": (Phase.RUNS_ON, [(3, "end itself")]),
    "ended itself, and its handler returned": (Phase.RETURNED, [(3, "end itself"), (18, "away"), (19, "end")]),
    "lost, and its code goes on": (Phase.LOST, [(3, "take over")]),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("phase", WAYS)
def test_each_event_in_each_phase_keeps_the_promises(phase: str, event: str) -> None:
    """And any second event after it, at once or later."""
    expected, way = WAYS[phase]
    stalls = phase.startswith("claimed")
    at = 0.5 if stalls else 20
    for then in EVENTS:
        for later in (0, 0.2, 7):
            with pytest.MonkeyPatch.context() as monkeypatch:
                life = Life(monkeypatch, workers=3)
                engine = life.engine
                engine.workers.stall(stalls)
                engine.due(1, {"overdue": "t", "being handed over": "t.long"}.get(phase, "t.slow"))
                engine.due(1, "t.slow")
                for second, step in way:
                    engine.at(second, life.happen, step)
                seen = list[Phase]()
                engine.at(at, lambda seen=seen, engine=engine: seen.append(engine.attempts[1].phase))
                engine.at(at, life.happen, event)
                engine.at(at + later, life.happen, then)
                engine.at(28, life.happen, "back")
                life.play()
                assert seen == [expected]
