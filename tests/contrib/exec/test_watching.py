"""Which runs of exec are absent, and which overlap."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cronjobs.contrib.exec.watching import judge_runs
from cronjobs.desk.insight.explain_exec import LATE
from cronjobs.desk.store.exec_runs import LatestRun

AT = datetime(2026, 3, 29, 0, 30, 1, tzinfo=UTC)
NIGHTLY = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "host": "web1"}
MINUTE = timedelta(minutes=1)


def run(started: datetime, took: timedelta | None = MINUTE, *, number: int = 1, **meta: str) -> LatestRun:
    ended = None if took is None else started + took
    return LatestRun(number, "exec:backup", "succeeded" if ended else "running", started, ended, {**NIGHTLY, **meta})


def test_a_run_is_absent_once_it_is_late_by_its_own_clocks() -> None:
    due = datetime(2026, 3, 30, 0, 30, tzinfo=UTC)  # 02:30 in summer time, after the night that had no 02:30
    last = run(datetime(2026, 3, 29, 1, 0, 1, tzinfo=UTC))
    assert judge_runs([[last]], due + LATE).absent == {}
    assert judge_runs([[last]], due + LATE + MINUTE).absent == {"backup": due}
    assert judge_runs([[run(due + timedelta(seconds=2))]], due + LATE + MINUTE).absent == {}


@pytest.mark.parametrize("cron", ["", "@reboot", "61 * * * *", "0 0 30 2 *"])
def test_without_a_time_that_can_be_told_nothing_is_expected(cron: str) -> None:
    assert judge_runs([[run(AT, cron=cron)]], AT + timedelta(days=900)).absent == {}


def test_a_run_that_began_while_the_one_before_ran_overlaps() -> None:
    first, second = run(AT, timedelta(minutes=5), number=1), run(AT + MINUTE, number=2)
    assert judge_runs([[second, first]], AT).overlapped == {"backup": AT + MINUTE}
    assert judge_runs([[second, run(AT, None)]], AT).overlapped == {"backup": AT + MINUTE}
    assert judge_runs([[second, run(AT, timedelta(seconds=59))]], AT).overlapped == {}
    assert judge_runs([[second, run(AT, None, host="web2")]], AT).overlapped == {}, "that is another crontab's"
