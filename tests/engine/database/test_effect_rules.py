"""What the effects ledger decides and writes, statement by statement, on both databases, without ticks."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, delete, insert, select
from support.ledger import KEY, Jobs

from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import effects as effects_table
from cronjobs.engine.database.tables import job_runs
from cronjobs.engine.database.tables import jobs as jobs_table
from cronjobs.engine.jobs.context import Context, StopSignal
from cronjobs.engine.jobs.effects import Begin, DoneEffect, Effect, Entry, OnUnknown, Stop, Wait, decide_entry
from cronjobs.engine.rules.lease import Lease
from cronjobs.engine.store import effects as store
from cronjobs.engine.store.effects import Record
from cronjobs.engine.tick.pruner import Before, Pruner
from cronjobs.errors import (
    BadValue,
    Cancelled,
    EffectBusy,
    EffectNotRecorded,
    EffectUnknown,
    LeaseLost,
    Snooze,
    UsageError,
)
from cronjobs.model import Job
from cronjobs.testing import FakeClock


@pytest.fixture
def jobs(database: Database, clock: FakeClock) -> Jobs:
    return Jobs(database, clock)


# --- what entering means ----------------------------------------------------------------------------------------------

MINE = Lease(7, 2, "host:1")
BEGUN = Record(KEY, "begun", 7, 1, running=False)


@pytest.mark.parametrize(
    ("found", "on_unknown", "entry"),
    [
        (None, "again", Begin(new=True)),
        (None, "skip", Begin(new=True)),
        (None, "stop", Begin(new=True)),
        (replace(BEGUN, state="recorded", result=1), "again", DoneEffect(1)),
        (replace(BEGUN, state="recorded", result=1), "stop", DoneEffect(1)),
        (replace(BEGUN, state="recorded", running=True, job_id=8), "again", DoneEffect()),
        (BEGUN, "again", Begin(unknown=True)),
        (BEGUN, "skip", DoneEffect(unknown=True, skip=True)),
        (BEGUN, "stop", Stop()),
        (replace(BEGUN, attempt=2, running=True), "again", Begin(unknown=True)),  # an earlier block of this attempt
        (replace(BEGUN, job_id=8, running=True), "again", Wait(8)),
        (replace(BEGUN, job_id=8, running=True), "skip", Wait(8)),
        (replace(BEGUN, job_id=8, running=True), "stop", Wait(8)),
        (replace(BEGUN, job_id=8), "again", Begin(unknown=True)),
        (replace(BEGUN, job_id=None, attempt=None), "again", Begin(unknown=True)),  # plain SQL began it
        (replace(BEGUN, state="stopped"), "stop", Stop()),
        (replace(BEGUN, state="stopped"), "again", Begin(unknown=True)),  # the code has changed its mind
        (replace(BEGUN, state="skipped"), "again", DoneEffect(unknown=True)),  # a skipped effect stays skipped
    ],
)
def test_what_an_effect_is_decides_what_entering_it_means(
    found: Record | None, on_unknown: OnUnknown, entry: Entry
) -> None:
    assert decide_entry(found, MINE, on_unknown) == entry


# --- the block --------------------------------------------------------------------------------------------------------


def test_the_beginning_is_committed_before_the_body_and_the_result_after_it(jobs: Jobs) -> None:
    job = jobs.claimed()
    with jobs.context(job).effect(KEY) as effect:
        assert (effect.done, effect.unknown, effect.result, effect.key) == (False, False, None, KEY)
        assert jobs.effects() == {KEY: ("begun", job.id, 1, None)}
        effect.result = {"id": [1, "ä"]}
    assert jobs.effects() == {KEY: ("recorded", job.id, 1, {"id": [1, "ä"]})}


def test_a_recorded_effect_is_done_for_every_job_and_keeps_its_first_result(jobs: Jobs) -> None:
    first, other = jobs.claimed(), jobs.claimed()
    with jobs.context(first).effect(("mail", 1)) as effect:
        effect.result = "first"
    with jobs.context(other).effect(KEY) as effect:
        assert (effect.done, effect.unknown, effect.result) == (True, False, "first")
        effect.result = "second"
    assert jobs.effects() == {KEY: ("recorded", first.id, 1, "first")}


def test_an_exception_leaves_the_effect_unknown_also_within_one_attempt(jobs: Jobs) -> None:
    job = jobs.claimed()
    ctx = jobs.context(job)
    with pytest.raises(ZeroDivisionError), ctx.effect(KEY):
        raise ZeroDivisionError
    assert jobs.effects() == {KEY: ("begun", job.id, 1, None)}
    with ctx.effect(KEY) as effect:
        assert (effect.done, effect.unknown) == (False, True)
    assert jobs.effects() == {KEY: ("recorded", job.id, 1, None)}


def test_an_attempt_that_repeats_an_unknown_effect_logs_whose_it_was(
    jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    job = jobs.claimed()
    with pytest.raises(ZeroDivisionError), jobs.context(job).effect(KEY):
        raise ZeroDivisionError
    assert "again" not in caplog.text
    with jobs.context(jobs.taken_over(job)).effect(KEY):
        pass
    said = (
        f"effect {KEY} was begun by attempt 1 of job {job.id}, but its result was not recorded: this attempt repeats "
        "the effect"
    )
    assert [record.getMessage() for record in caplog.records] == [said]


def test_the_ledger_counts_how_often_an_unknown_effect_was_repeated(jobs: Jobs) -> None:
    def repeats() -> int:
        with jobs.database.read() as connection:
            [effect] = connection.execute(select(effects_table)).all()
        return int(effect.repeats)

    job = jobs.claimed()
    for before in range(3):
        with pytest.raises(ZeroDivisionError), jobs.context(job).effect(KEY):
            raise ZeroDivisionError
        assert repeats() == before
        job = jobs.taken_over(job)
    with jobs.context(job).effect(KEY) as effect:
        assert effect.unknown
    assert repeats() == 3
    with jobs.context(jobs.claimed()).effect(KEY) as effect:
        assert effect.done
    assert repeats() == 3


def test_what_surely_did_nothing_was_never_begun(jobs: Jobs) -> None:
    ctx = jobs.context(jobs.claimed())
    with suppress(ZeroDivisionError), ctx.effect(KEY) as effect:
        effect.did_nothing()
        raise ZeroDivisionError
    assert jobs.effects() == {}
    with ctx.effect(KEY, on_unknown="stop") as effect:
        assert not effect.unknown


def test_a_later_call_in_the_block_may_have_done_what_an_earlier_one_did_not(jobs: Jobs) -> None:
    job = jobs.claimed()
    with suppress(ZeroDivisionError), jobs.context(job).effect(KEY) as effect:
        effect.did_nothing()  # a 429, and then a second call
        effect.result = "charged"
        raise ZeroDivisionError
    assert jobs.effects() == {KEY: ("begun", job.id, 1, None)}
    doubt = pytest.raises(UsageError, match="nobody knows whether the effect happened")
    with doubt, jobs.context(job).effect(KEY) as effect:
        effect.did_nothing()
    assert jobs.effects() == {KEY: ("begun", job.id, 1, None)}
    with jobs.context(job).effect(KEY) as effect:
        effect.did_nothing()
        effect.result = "charged"
    assert jobs.effects() == {KEY: ("recorded", job.id, 1, "charged")}


def test_an_attempt_that_did_nothing_says_nothing_about_an_earlier_one(jobs: Jobs) -> None:
    job = jobs.claimed()
    with pytest.raises(ZeroDivisionError), jobs.context(job).effect(KEY):
        raise ZeroDivisionError
    second = jobs.taken_over(job)
    with suppress(ZeroDivisionError), jobs.context(second).effect(KEY) as effect:
        effect.did_nothing()
        raise ZeroDivisionError
    assert jobs.effects() == {KEY: ("begun", job.id, 2, None)}


def test_skip_takes_an_unknown_effect_as_done_and_says_that_it_is_unknown(jobs: Jobs) -> None:
    job = jobs.unknown()
    for _ in range(2):
        with jobs.context(job).effect(KEY, on_unknown="skip") as effect:
            assert (effect.done, effect.unknown, effect.result) == (True, True, None)
            effect.result = "not kept"
        assert jobs.effects() == {KEY: ("skipped", job.id, 1, None)}


def test_stop_never_runs_the_body_of_an_unknown_effect(jobs: Jobs) -> None:
    job = jobs.unknown()
    for _ in range(2):
        with (
            pytest.raises(EffectUnknown, match="cronjobs effects settle mail:1 done"),
            jobs.context(job).effect(KEY, on_unknown="stop"),
        ):
            pytest.fail("the body ran")
        assert jobs.effects() == {KEY: ("stopped", job.id, 1, None)}


@pytest.mark.parametrize(
    ("outcome", "error_type", "said"),
    [
        ("timed_out", "TimedOut", "timed out"),
        ("lost", "Lost", "was lost"),
        ("failed", "SMTPError", "failed with SMTPError"),
        ("failed", "EffectNotRecorded", "failed with EffectNotRecorded"),
    ],
)
def test_a_stop_says_how_the_attempt_ended_that_left_the_effect_unknown(
    jobs: Jobs, outcome: str, error_type: str | None, said: str
) -> None:
    """The job's last error said nothing of the timeout that had caused it."""
    job = jobs.unknown()
    with jobs.database.write() as connection:
        row = {"job_id": job.id, "attempt": 1, "outcome": outcome, "error_type": error_type, "runner": "alpha"}
        now = jobs.database.clock.now()
        connection.execute(insert(job_runs).values(**row, started_at=now, finished_at=now))
    with pytest.raises(EffectUnknown, match=rf"\(or not-done\); attempt 1, which began it, {said}$"):
        jobs.context(job).effect(KEY, on_unknown="stop").__enter__()
    other = jobs.claimed()
    with pytest.raises(EffectUnknown, match=rf"; attempt 1 of job {job.id}, which began it, {said}$"):
        jobs.context(other).effect(KEY, on_unknown="stop").__enter__()


def test_a_stop_says_that_the_effect_was_done_if_its_attempt_said_so(jobs: Jobs) -> None:
    job = jobs.unknown()
    error = str(EffectNotRecorded(KEY, "the server closed the connection"))
    with jobs.database.write() as connection:
        row = {"job_id": job.id, "attempt": 1, "outcome": "failed", "error": error, "runner": "alpha"}
        now = jobs.database.clock.now()
        connection.execute(insert(job_runs).values(**row, started_at=now, finished_at=now))
    with pytest.raises(EffectUnknown, match=r"\(or not-done\); attempt 1 did it, but could not record it$"):
        jobs.context(job).effect(KEY, on_unknown="stop").__enter__()


@pytest.mark.parametrize(
    ("result", "said"), [({1, 2}, "not JSON"), ("x" * 300_000, "larger than"), (float("nan"), "nan"), ("a\0b", "NUL")]
)
def test_a_result_that_cannot_be_kept_does_not_make_the_effect_unknown(
    jobs: Jobs, result: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = jobs.claimed()
    with caplog.at_level(logging.WARNING), jobs.context(job).effect(KEY) as effect:
        effect.result = result
    assert jobs.effects() == {KEY: ("recorded", job.id, 1, None)}
    assert said in caplog.text


def test_a_result_that_the_database_refuses_does_not_make_the_effect_unknown(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(connection: Connection, key: str, lease: Lease, result: str | None) -> bool:
        if result is not None:
            raise BadValue("refused")
        return record(connection, key, lease, result)

    record = store.record
    monkeypatch.setattr(store, "record", refuse)
    job = jobs.claimed()
    with jobs.context(job).effect(KEY) as effect:
        effect.result = 1
    assert jobs.effects() == {KEY: ("recorded", job.id, 1, None)}


# --- steps ------------------------------------------------------------------------------------------------------------


def test_a_step_is_the_jobs_own(jobs: Jobs) -> None:
    first, other = jobs.claimed(), jobs.claimed()
    with jobs.context(first).step("one"):
        pass
    with jobs.context(other).step("one") as step:
        assert not step.done
    with jobs.context(first).step("one") as step:
        assert step.done
    assert set(jobs.effects()) == {f"job:{job.id}:step:one" for job in (first, other)}


@pytest.mark.parametrize("reason", ["cancelled", "shutdown", "timeout"])
def test_a_job_that_is_to_stop_enters_no_step(jobs: Jobs, reason: str) -> None:
    stop = StopSignal()
    ctx = jobs.context(jobs.claimed(), stop=stop)
    stop.set(reason)
    with pytest.raises(Cancelled, match=reason), ctx.step("one"):
        pytest.fail("the body ran")
    assert jobs.effects() == {}


# --- the lease --------------------------------------------------------------------------------------------------------

TAKEN = [{"attempts": 2}, {"locked_by": "host:2"}, {"status": "failed", "locked_by": None, "locked_until": None}]


@pytest.mark.parametrize("change", TAKEN, ids=["attempt", "holder", "status"])
def test_whoever_lost_the_lease_begins_nothing(jobs: Jobs, change: dict[str, Any]) -> None:
    job = jobs.claimed()
    jobs.change(job, **change)
    with pytest.raises(LeaseLost, match="was not begun"), jobs.context(job).effect(KEY):
        pytest.fail("the body ran")
    assert jobs.effects() == {}


@pytest.mark.parametrize("change", TAKEN, ids=["attempt", "holder", "status"])
def test_what_was_done_is_recorded_also_by_whoever_lost_the_lease_meanwhile(jobs: Jobs, change: dict[str, Any]) -> None:
    job = jobs.claimed()

    def lose(effect: Effect) -> None:
        jobs.change(job, **change)
        effect.result = "truth"

    with pytest.raises(LeaseLost, match="is recorded"):
        jobs.do(job, lose)
    assert jobs.effects() == {KEY: ("recorded", job.id, 1, "truth")}


@pytest.mark.parametrize("ended", [False, True])
def test_a_late_end_never_overwrites_a_newer_attempts_record(jobs: Jobs, ended: bool) -> None:
    job = jobs.claimed()

    def fall_behind(stale: Effect) -> None:
        newer = jobs.context(jobs.taken_over(job)).effect(KEY)
        newer.__enter__()
        assert newer.unknown
        newer.result = "newer"
        if ended:
            newer.__exit__(None, None, None)
        stale.result = "stale"

    with pytest.raises(LeaseLost, match="another attempt has begun"):
        jobs.do(job, fall_behind)
    expected = ("recorded", job.id, 2, "newer") if ended else ("begun", job.id, 2, None)
    assert jobs.effects() == {KEY: expected}


@pytest.mark.parametrize("on_unknown", ["skip", "stop"])
def test_a_late_end_settles_what_a_newer_attempt_did_not_know(jobs: Jobs, on_unknown: OnUnknown) -> None:
    job = jobs.claimed()

    def fall_behind(stale: Effect) -> None:
        second = jobs.taken_over(job)
        with suppress(EffectUnknown), jobs.context(second).effect(KEY, on_unknown=on_unknown):
            pass
        stale.result = "truth"

    with pytest.raises(LeaseLost, match="is recorded"):
        jobs.do(job, fall_behind)
    assert jobs.effects() == {KEY: ("recorded", job.id, 1, "truth")}


def test_a_late_end_is_recorded_also_where_someone_removed_the_beginning(jobs: Jobs) -> None:
    job = jobs.claimed()
    with jobs.context(job).effect(KEY) as effect:
        with jobs.database.write() as connection:
            connection.execute(delete(effects_table))
        effect.result = "truth"
    assert jobs.effects() == {KEY: ("recorded", job.id, 1, "truth")}


def test_a_late_withdrawal_leaves_a_newer_beginning_alone(jobs: Jobs) -> None:
    job = jobs.claimed()
    with suppress(ZeroDivisionError), jobs.context(job).effect(KEY) as stale:
        second = jobs.taken_over(job)
        jobs.context(second).effect(KEY).__enter__()
        stale.did_nothing()
        raise ZeroDivisionError
    assert jobs.effects() == {KEY: ("begun", job.id, 2, None)}


# --- two jobs, one effect ---------------------------------------------------------------------------------------------


def test_an_effect_that_another_job_is_doing_is_waited_for(jobs: Jobs) -> None:
    first, other = jobs.claimed(), jobs.claimed()
    with jobs.context(first).effect(KEY):
        for on_unknown in ("again", "skip", "stop"):
            with (
                pytest.raises(EffectBusy, match=f"job {first.id} was performing") as raised,
                jobs.context(other).effect(KEY, on_unknown=on_unknown),
            ):
                pytest.fail("the body ran")
            assert isinstance(raised.value, Snooze)  # so it is not charged
        assert jobs.effects() == {KEY: ("begun", first.id, 1, None)}
    with jobs.context(other).effect(KEY) as effect:
        assert effect.done


@pytest.mark.parametrize("status", ["failed", "dead", "succeeded", "gone"])
def test_an_effect_that_another_job_left_without_an_end_is_unknown(jobs: Jobs, status: str) -> None:
    first, other = jobs.claimed(), jobs.claimed()
    with pytest.raises(ZeroDivisionError), jobs.context(first).effect(KEY):
        raise ZeroDivisionError
    if status == "gone":
        with jobs.database.write() as connection:
            connection.execute(delete(jobs_table).where(jobs_table.c.id == first.id))
    else:
        jobs.ended(first, status)
    with jobs.context(other).effect(KEY) as effect:
        assert (effect.done, effect.unknown) == (False, True)
        effect.result = "other"
    assert jobs.effects() == {KEY: ("recorded", other.id, 1, "other")}


def test_of_many_jobs_that_enter_at_once_one_does_it(jobs: Jobs) -> None:
    rounds, count = 10, 4
    contexts = [jobs.context(jobs.claimed()) for _ in range(count)]
    ran: list[str] = []
    odd: list[BaseException] = []
    barrier = threading.Barrier(count)

    def enter(ctx: Context) -> None:
        for number in range(rounds):
            barrier.wait(30)
            try:
                with ctx.effect(("shared", number)) as effect:
                    if not effect.done:
                        ran.append(effect.key)
            except EffectBusy:
                pass
            except BaseException as error:
                odd.append(error)

    threads = [threading.Thread(target=enter, args=(ctx,)) for ctx in contexts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not odd
    assert sorted(ran) == sorted(f"shared:{number}" for number in range(rounds))


# --- calls that cannot be meant ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", "empty part"),
        (("mail", None), "empty part"),
        ((), "at least one part"),
        ("x" * 501, "longer than 500"),
        (("x" * 300, "y" * 300), "longer than 500"),
        ("a\0", "NUL"),
        ("job:1:step:one", "reserved for ctx.step"),
    ],
)
def test_a_key_that_cannot_be_meant_is_refused(jobs: Jobs, key: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        jobs.context(jobs.claimed()).effect(key)


def test_an_unknown_on_unknown_is_refused(jobs: Jobs) -> None:
    with pytest.raises(UsageError, match="on_unknown 'ignore' is not one of again, skip, stop"):
        jobs.context(jobs.claimed()).effect(KEY, on_unknown="ignore")  # type: ignore[arg-type]


def test_one_effect_is_not_entered_twice_at_once(jobs: Jobs) -> None:
    ctx = jobs.context(jobs.claimed())
    with ctx.effect(KEY), pytest.raises(UsageError, match="is already open"), ctx.effect(KEY):
        pytest.fail("the body ran")
    with ctx.effect(KEY) as effect:
        assert effect.done


def test_a_context_without_a_database_says_what_it_needs() -> None:
    ctx = Context(Job(1, "t", {}), timeout=timedelta(seconds=1))
    for enter in (ctx.effect, ctx.step):
        with pytest.raises(UsageError, match="this context has no database: run the handler through a tick"):
            enter("k")


# --- pruning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "stays"),
    [("queued", True), ("running", True), ("failed", True), ("dead", True), ("cancelled", True), ("succeeded", False)],
)
def test_an_effect_is_not_pruned_while_its_job_may_run_again(
    jobs: Jobs, clock: FakeClock, status: str, stays: bool
) -> None:
    job = jobs.claimed()
    with jobs.context(job).effect(KEY):
        pass
    if status != "running":
        jobs.ended(job, status)
    future = clock.now() + timedelta(days=1)
    long_ago = future - timedelta(days=1000)
    before = Before(long_ago, long_ago, long_ago, long_ago, effects=future)
    assert Pruner(jobs.database, before, clock, go_on=lambda: True).run()
    assert bool(jobs.effects()) == stays


def test_effects_outlive_their_jobs(jobs: Jobs, clock: FakeClock) -> None:
    job = jobs.claimed()
    for number in range(5):
        with jobs.context(job).effect(("k", number)):
            pass
    with jobs.database.write() as connection:
        connection.execute(delete(jobs_table))
    past, future = clock.now() - timedelta(days=1), clock.now() + timedelta(days=1)
    for effects, left in ((past, 5), (future, 0)):
        before = Before(past, past, past, past, effects)
        assert Pruner(jobs.database, before, clock, go_on=lambda: True).run()
        assert len(jobs.effects()) == left
