"""The note beside a job, which ``jobs list`` and the pages share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cronjobs.desk.insight.formatting import Times
from cronjobs.desk.insight.job_notes import note
from cronjobs.desk.insight.releasing import Holders

NOW = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
ALIVE, GONE = "web1:b:1:7:1:t", "web1:b:1:8:1:t"
RUNNING = {"status": "running", "attempts": 1, "locked_by": ALIVE, "locked_until": NOW + timedelta(seconds=48)}
LIMITED = RUNNING | {"policy": {"runner_s": 55}}


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (RUNNING, "on web1, lease 48s left: {}"),
        (RUNNING | {"failures": 2, "queue": "mail"}, "on web1, lease 48s left, failed 2 of 5, queue mail: {}"),
        (RUNNING | {"locked_by": GONE}, "on web1, the runner's process is gone: {}"),
        (RUNNING | {"locked_until": NOW - timedelta(minutes=2)}, "on web1, OVERDUE: lease ended 2m ago: {}"),
        (LIMITED | {"started_at": NOW - timedelta(minutes=5)}, "on web1, lease 48s left: {}"),
        (
            LIMITED | {"started_at": NOW - timedelta(minutes=6)},
            "on web1, should have been stopped 5m5s ago, lease 48s left: {}",
        ),
        (
            LIMITED | {"started_at": NOW - timedelta(minutes=6), "locked_by": GONE},
            "on web1, the runner's process is gone: {}",
        ),
        (RUNNING | {"policy": "too long"}, "on web1, lease 48s left: {}"),
        ({"status": "succeeded", "started_at": NOW - timedelta(minutes=1), "finished_at": NOW}, "1m: {}"),
        ({"status": "queued"}, "{}"),
        ({"status": "queued", "attempts": 1, "queue": "mail"}, "claimed before, queue mail: {}"),
        ({"status": "queued", "losses": 1}, "lost 1 time: no disk"),
        ({"status": "failed", "failures": 3, "losses": 2}, "failed 3 of 5, lost 2 times: no disk"),
        ({"status": "dead", "failures": 5, "queue": "mail"}, "failed 5 of 5, queue mail: no disk"),
    ],
)
def test_a_note_says_how_far_a_job_has_come_and_its_last_error_only_while_that_matters(
    job: dict[str, Any], said: str
) -> None:
    usual = {"queue": "default", "failures": 0, "losses": 0, "attempts": 0, "started_at": None, "finished_at": None}
    usual |= {"policy": None}
    holders = Holders(_gone={ALIVE: False, GONE: True})
    times = Times(NOW, "UTC")
    assert note(usual | job, times, holders, most=5, error="no disk", otherwise="{}") == said
    assert note({**usual, "status": "dead"}, times, holders, most=5, error="", otherwise="{}") == "{}"
