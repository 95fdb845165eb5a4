"""What must happen next, decided without I/O: transitions, delays, overlap."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cronjobs.engine.rules.ending import decide, next_tick
from cronjobs.engine.rules.occurrences import Busy, overlap
from cronjobs.engine.rules.retry import backoff
from cronjobs.model import (
    CancelledByRequest,
    Failed,
    Interrupted,
    Job,
    Lost,
    Outcome,
    Released,
    RetryPolicy,
    Snoozed,
    Status,
    Succeeded,
    TimedOut,
    duration,
    duration_text,
    rough,
    seconds_text,
    size,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
POLICY = RetryPolicy(max_attempts=3, base="1m", jitter=0.0)
ERROR = Failed("503 from the provider", "ProviderError")
FIVE_MINUTES = timedelta(minutes=5)
MISMATCH = Failed("shape", "SignatureMismatch")


def job(**fields: object) -> Job:
    return Job(**({"id": 1, "job_type": "t", "payload": {}, "attempt": 1} | fields))  # type: ignore[arg-type]


def minutes(*values: float) -> list[timedelta]:
    return [timedelta(minutes=value) for value in values]


def test_the_default_policy_is_the_documented_one() -> None:
    policy = RetryPolicy()
    delays = [backoff(policy, n, 0) for n in range(1, 8)]
    assert delays == minutes(1, 2, 4, 8, 16, 30, 30)
    assert (policy.max_attempts, policy.jitter) == (10, 0.2)


def test_a_delay_list_repeats_its_last_entry() -> None:
    policy = RetryPolicy(delays=["5s", "15s", "2m"], jitter=0)
    assert [backoff(policy, n, 0).total_seconds() for n in range(1, 6)] == [5, 15, 120, 120, 120]


def test_a_fixed_delay_is_a_factor_of_one() -> None:
    policy = RetryPolicy(base="7m", factor=1.0, jitter=0)
    assert {backoff(policy, n, 0) for n in (1, 5, 10**9)} == {timedelta(minutes=7)}


@given(
    failures=st.integers(1, 10**9),
    factor=st.floats(1, 100),
    base_s=st.floats(1, 3600),
    cap_factor=st.floats(1, 1000),
    jitter=st.floats(-1, 1),
)
def test_no_number_of_failures_overflows_or_passes_the_cap(
    failures: int, factor: float, base_s: float, cap_factor: float, jitter: float
) -> None:
    base, cap = timedelta(seconds=base_s), timedelta(seconds=base_s * cap_factor)
    policy = RetryPolicy(base=base, cap=max(base, cap), factor=factor, jitter=0.2)
    delay = backoff(policy, failures, jitter)
    assert base * 0.8 - timedelta(milliseconds=1) <= delay <= max(base, cap) * 1.2 + timedelta(milliseconds=1)


def seconds(least: float, most: float) -> st.SearchStrategy[timedelta]:
    return st.floats(least, most).map(lambda value: timedelta(seconds=value))


SHAPES = st.one_of(
    st.builds(lambda base: {"base": base, "cap": base, "factor": 1.0}, seconds(0.01, 30 * 86400)),
    st.builds(
        lambda base, times, factor: {"base": base, "cap": base * times, "factor": factor},
        seconds(0.01, 86400),
        st.floats(1, 10**6),
        st.floats(1, 100),
    ),
    st.builds(lambda delays: {"delays": delays}, st.lists(seconds(0, 30 * 86400), min_size=1, max_size=20)),
)
CHARGED = st.sampled_from(
    [
        ERROR,
        TimedOut(),
        Interrupted(),
        Failed("429", "RetryLater", retry_after=timedelta(0)),
        Failed("429", "RetryLater", retry_after=timedelta(days=3660)),
    ]
)


@given(
    shape=SHAPES,
    spread=st.floats(0, 0.999),
    failures=st.integers(0, 10**9),
    jitter=st.floats(-1, 1),
    outcome=CHARGED,
    next_in=st.none() | st.timedeltas(timedelta(days=-366), timedelta(days=366)),
)
def test_no_retry_is_instant_and_no_policy_overflows(
    shape: dict[str, Any],
    spread: float,
    failures: int,
    jitter: float,
    outcome: Outcome,
    next_in: timedelta | None,
) -> None:
    policy = RetryPolicy(max_attempts=10**10, jitter=spread, **shape)
    scheduled = job(failures=failures, interruptions=3, next_occurrence=None if next_in is None else NOW + next_in)
    after = decide(scheduled, outcome, policy, NOW, jitter)
    assert (after.status, after.failures) == (Status.FAILED, failures + 1)
    assert after.delay is not None
    assert after.delay >= timedelta(seconds=1)
    assert after.run_at == NOW + after.delay


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=50, unique=True))
def test_jitter_spreads_retries_by_twenty_percent(jitters: list[float]) -> None:
    delays = {backoff(RetryPolicy(), 3, jitter) for jitter in jitters}
    assert all(timedelta(minutes=3.2) <= delay <= timedelta(minutes=4.8) for delay in delays)


@pytest.mark.parametrize(
    ("before", "outcome", "status", "failures", "losses", "interruptions", "delay"),
    [
        ({}, Succeeded(), Status.SUCCEEDED, 0, 0, 0, None),
        ({"interruptions": 2}, Succeeded(), Status.SUCCEEDED, 0, 0, 0, None),
        ({}, ERROR, Status.FAILED, 1, 0, 0, 60),
        ({"failures": 1}, ERROR, Status.FAILED, 2, 0, 0, 120),
        ({"failures": 2}, ERROR, Status.DEAD, 3, 0, 0, None),
        ({"failures": 2, "max_attempts": 9}, ERROR, Status.FAILED, 3, 0, 0, 240),
        ({"max_attempts": 1}, ERROR, Status.DEAD, 1, 0, 0, None),
        ({}, TimedOut(), Status.FAILED, 1, 0, 0, 60),
        ({"failures": 2}, TimedOut(), Status.DEAD, 3, 0, 0, None),
        ({}, Failed("void", "GiveUp", permanent=True), Status.DEAD, 1, 0, 0, None),
        ({}, Failed("429", "RetryLater", retry_after=timedelta(seconds=90)), Status.FAILED, 1, 0, 0, 90),
        ({}, Failed("429", "RetryLater", retry_after=timedelta(0)), Status.FAILED, 1, 0, 0, 1),
        ({}, MISMATCH, Status.FAILED, 0, 0, 0, 300),
        ({"failures": 2, "max_attempts": 1}, MISMATCH, Status.FAILED, 2, 0, 0, 300),
        ({}, Failed("shape", "SignatureMismatch", permanent=True), Status.DEAD, 1, 0, 0, None),
        ({}, Lost(), Status.FAILED, 0, 1, 0, 0),
        ({"losses": 8, "failures": 2}, Lost(), Status.FAILED, 2, 9, 0, 0),
        ({"losses": 9}, Lost(), Status.DEAD, 0, 10, 0, 0),
        ({}, Interrupted(), Status.QUEUED, 0, 0, 1, None),
        ({"interruptions": 2}, Interrupted(), Status.QUEUED, 0, 0, 3, None),
        ({"interruptions": 3}, Interrupted(), Status.FAILED, 1, 0, 0, 60),
        ({}, Snoozed(NOW + timedelta(hours=1)), Status.QUEUED, 0, 0, 0, 3600),
        ({}, Snoozed(NOW - timedelta(hours=1)), Status.QUEUED, 0, 0, 0, 1),
        ({}, CancelledByRequest(), Status.CANCELLED, 0, 0, 0, None),
        ({"failures": 1, "losses": 1, "interruptions": 1}, Released(), Status.QUEUED, 1, 1, 1, None),
    ],
)
def test_every_outcome_moves_a_job_as_the_state_machine_says(
    before: dict[str, int],
    outcome: Outcome,
    status: Status,
    failures: int,
    losses: int,
    interruptions: int,
    delay: float | None,
) -> None:
    after = decide(job(**before), outcome, POLICY, NOW, 0)
    assert (after.status, after.failures, after.losses, after.interruptions) == (
        status,
        failures,
        losses,
        interruptions,
    )
    assert after.delay == (None if delay is None else timedelta(seconds=delay))
    if status is Status.FAILED:
        assert after.run_at is not None
        assert after.run_at == NOW + timedelta(seconds=delay or 0)


def test_a_scheduled_jobs_retry_never_waits_beyond_the_next_occurrence() -> None:
    scheduled = job(failures=1, next_occurrence=NOW + timedelta(seconds=40))
    assert decide(scheduled, ERROR, POLICY, NOW, 0).run_at == NOW + timedelta(seconds=40)


def test_a_retry_is_never_instant_even_when_the_next_occurrence_is_now() -> None:
    scheduled = job(next_occurrence=NOW - timedelta(minutes=5))
    assert decide(scheduled, ERROR, POLICY, NOW, 0).delay == timedelta(seconds=1)


@settings(max_examples=200)
@given(
    next_in=st.sampled_from([-60, 0, 1, 60, 299, 300, 301, 3600]),
    retry_until=st.sampled_from([None, "next_occurrence"]),
    jitter=st.sampled_from([-1.0, 1.0]),
    shape=SHAPES,
)
def test_a_signature_mismatch_waits_five_minutes_whatever_its_schedule_and_policy_say(
    next_in: int, retry_until: str | None, jitter: float, shape: dict[str, Any]
) -> None:
    scheduled = job(next_occurrence=NOW + timedelta(seconds=next_in), retry_until=retry_until)
    after = decide(scheduled, MISMATCH, RetryPolicy(**shape), NOW, jitter)
    assert (after.status, after.delay, after.run_at) == (Status.FAILED, FIVE_MINUTES, NOW + FIVE_MINUTES)


@pytest.mark.parametrize(
    ("delay_s", "every_s", "next_in_s", "is_dead"),
    [
        (5, 60, 120, False),  # the tick in a minute runs it, and the next occurrence is a minute later
        (5, 60, 60, True),  # the tick that would run it is the next occurrence's
        (60, 60, 61, False),
        (61, 60, 119, True),  # due before the next occurrence, and run after it
        (61, 60, 121, False),
        (30, 300, 240, True),
        (30, 300, 301, False),
    ],
)
def test_retry_until_the_next_occurrence_goes_by_the_tick_that_would_run_the_try(
    delay_s: int, every_s: int, next_in_s: int, is_dead: bool
) -> None:
    policy = RetryPolicy(base=timedelta(seconds=delay_s), cap=timedelta(hours=1), jitter=0)
    scheduled = job(next_occurrence=NOW + timedelta(seconds=next_in_s), retry_until="next_occurrence")
    after = decide(scheduled, ERROR, policy, NOW, 0, every=timedelta(seconds=every_s))
    assert (after.status is Status.DEAD) is is_dead


def test_the_tick_that_runs_what_is_due_is_the_next_multiple_of_every() -> None:
    half = NOW + timedelta(seconds=30)
    assert next_tick(NOW, timedelta(minutes=1)) == NOW
    assert next_tick(half, timedelta(minutes=1)) == NOW + timedelta(minutes=1)
    assert next_tick(half, timedelta(minutes=7)) - half < timedelta(minutes=7)


@pytest.mark.parametrize(
    ("policy", "busy", "outcome", "job_id"),
    [
        ("skip", [], "enqueued", None),
        ("skip", [Busy(7, waiting=False)], "skipped", 7),
        ("skip", [Busy(7, waiting=True)], "skipped", 7),
        ("allow", [Busy(7, waiting=False)], "enqueued", None),
        ("wait", [Busy(7, waiting=False)], "enqueued", None),
        ("wait", [Busy(7, waiting=False), Busy(8, waiting=True)], "coalesced", 8),
    ],
)
def test_overlap_gives_way_as_its_policy_says(policy: str, busy: list[Busy], outcome: str, job_id: int | None) -> None:
    placed = overlap(policy, busy)
    assert (placed.outcome, placed.job_id) == (outcome, job_id)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("55s", 55),
        ("10m", 600),
        ("24h", 86400),
        ("7d", 604800),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("2w", 1209600),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "5", "m", "5 m", "5x", "-5m", "5m5m", "1m1h", "1..5h", ".h", "9" * 40 + "d", "infs", "1e9d"]
)
def test_what_is_no_duration_is_refused_with_how_to_write_it(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        duration(text)


@pytest.mark.parametrize(
    ("written", "bytes_"),
    [
        ("512MiB", 512 * 2**20),
        ("2GiB", 2 * 2**30),
        ("1.5GiB", 3 * 2**29),
        ("500MB", 500_000_000),
        ("64KiB", 65536),
        ("1TB", 10**12),
        ("536870912", 2**29),
        (2**29, 2**29),
    ],
)
def test_sizes_are_read_as_people_write_them(written: int | str, bytes_: int) -> None:
    assert size(written) == bytes_


@pytest.mark.parametrize("text", ["", "512M", "512mb", "512 MiB", "-1GiB", "1.5", "MiB", "1e9", "9" * 30, True, 1.5])
def test_what_is_no_size_is_refused_with_how_to_write_it(text: Any) -> None:
    with pytest.raises(ValueError, match=r"is not a size: write it as 512MiB"):
        size(text)


@given(st.integers(0, 10 * 365 * 86_400_000))
def test_a_duration_is_written_as_it_is_read(milliseconds: int) -> None:
    span = timedelta(milliseconds=milliseconds)
    assert duration(duration_text(span)) == span


@given(st.timedeltas(timedelta(milliseconds=1), timedelta(days=3650)))
def test_a_span_is_told_in_six_columns_and_to_a_twentieth(span: timedelta) -> None:
    told = rough(span)
    assert len(told) <= 6
    assert abs(duration(told) - span) <= max(span / 20, timedelta(microseconds=500))
    assert rough(-span) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0s"),
        (0.0314, "31ms"),
        (0.9996, "1s"),
        (3.214, "3.2s"),
        (9.96, "10s"),
        (65.4, "1m5s"),
        (599.7, "10m"),
        (1234, "21m"),
        (7505, "2h5m"),
        (45_000, "12h"),
        (100_000, "1d4h"),
        (3e6, "35d"),
    ],
)
def test_a_span_is_told_in_one_or_two_units(seconds: float, told: str) -> None:
    assert rough(timedelta(seconds=seconds)) == told


@pytest.mark.parametrize(
    "fields",
    [
        {"max_attempts": 0},
        {"factor": 0.5},
        {"jitter": 1.0},
        {"base": "0s"},
        {"base": "2h", "cap": "1h"},
        {"delays": []},
        {"factor": float("nan")},
        {"factor": float("inf")},
        {"jitter": float("nan")},
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 each has a sentence of its own
        RetryPolicy(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "250ms"), (600.0, "10m"), (1e300, "1e+300s"), (math.inf, "infs"), (math.nan, "nans")],
)
def test_any_number_of_seconds_that_a_row_may_have_is_written(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
