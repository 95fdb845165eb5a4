"""When cronjobs gives up a job whose payload does not fit its handler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cronjobs.engine.rules.ending import decide_end
from cronjobs.engine.rules.misfits import MISFIT, UNKNOWN_CODE, Refusals
from cronjobs.model import Failed, Finished, Job, RetryPolicy, Status
from cronjobs.text import ERROR_LIMIT

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
LEAST, MOST, MOMENT = timedelta(minutes=15), timedelta(hours=24), timedelta(microseconds=1)
OLD, NEW, OLDER = "old", "new", "older"


@pytest.mark.parametrize(
    ("ago", "refused", "ticked", "is_dead"),
    [
        (timedelta(0), [OLD], [OLD], False),
        (LEAST - MOMENT, [OLD], [OLD], False),
        (LEAST, [OLD], [OLD], True),
        (LEAST, [OLD], [], True),
        (LEAST, [OLD, OLDER], [OLD], True),  # a version that refused the payload and ticks no more does not count
        (LEAST, [OLD], [OLD, NEW], False),
        (LEAST, [OLD, NEW], [OLD, NEW], True),
        (LEAST, [], [OLD], False),
        (LEAST, [OLD], [OLD, UNKNOWN_CODE], False),
        (MOST - MOMENT, [OLD], [OLD, NEW], False),
        (MOST, [OLD], [OLD, NEW], True),
        (MOST, [], [OLD, UNKNOWN_CODE], True),
        (timedelta(days=-1), [OLD], [OLD], False),  # a clock was set back
    ],
)
def test_a_payload_is_given_up_once_all_code_that_ticks_has_refused_it_or_after_a_day(
    ago: timedelta, refused: list[str], ticked: list[str], is_dead: bool
) -> None:
    misfits = Refusals(NOW - ago, frozenset(refused), frozenset(ticked))
    job = Job(1, "t.pay", {}, attempt=3, failures=2, max_attempts=1, locked_by="h:b:1:1:1:t")
    end = decide_end(
        Finished(job, Failed("it does not fit", MISFIT)), RetryPolicy(), NOW, max_losses=1, misfits=misfits
    )
    assert end.transition.status == end.finish.status == (Status.DEAD if is_dead else Status.FAILED)
    assert (end.transition.failures, end.finish.failures, end.finish.outcome) == (2, 2, "failed")
    assert end.transition.run_at == (None if is_dead else NOW + timedelta(minutes=5))
    assert ("given up" in (end.finish.error or "")) == is_dead


def test_the_last_error_names_both_reasons_and_is_short() -> None:
    job = Job(1, "t.pay", {}, attempt=3, locked_by="h:b:1:1:1:t")
    for ago, why in (
        (
            LEAST,
            (
                "given up: its payload has not fitted for 15 minutes, and every version of the code that ran ticks in "
                "that time has refused it"
            ),
        ),
        (MOST, "given up: no code has accepted it for 24 hours"),
    ):
        for error in ("it does not fit", "x" * ERROR_LIMIT):
            ended = Finished(job, Failed(error, MISFIT))
            end = decide_end(ended, RetryPolicy(), NOW, max_losses=1, misfits=Refusals(NOW - ago))
            assert end.finish.error is not None
            assert end.finish.error.startswith(error[:100])
            assert end.finish.error.endswith(f"; {why}")
            assert len(end.finish.error) <= ERROR_LIMIT
            assert end.finished.outcome == Failed(end.finish.error, MISFIT)
