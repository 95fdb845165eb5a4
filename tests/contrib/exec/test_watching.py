"""Which runs of exec are absent, and which overlap."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cronjobs.contrib.exec.findings import judge_runs
from cronjobs.desk.insight.explain_exec import LATE
from cronjobs.desk.store.exec_runs import LatestRun

AT = datetime(2026, 3, 29, 0, 30, 1, tzinfo=UTC)
NIGHTLY = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "host": "web1"}
MINUTE = timedelta(minutes=1)


def run(started: datetime, took: timedelta | None = MINUTE, *, number: int = 1, **meta: str) -> LatestRun:
    ended = None if took is None else started + took
    return LatestRun(number, "exec:backup", "succeeded" if ended else "running", started, ended, {**NIGHTLY, **meta})


def reported(kind: str, *runs: LatestRun, now: datetime = AT) -> dict[str, datetime | None]:
    """Map the name in each finding of this *kind* to since when it is so. *runs* are the newest runs of one name."""
    return {each.subject: each.since for each in judge_runs([runs], now).findings if each.kind == kind}


def test_a_run_is_absent_once_it_is_late_by_its_own_clocks() -> None:
    due = datetime(2026, 3, 30, 0, 30, tzinfo=UTC)  # 02:30 in summer time, after the night that had no 02:30
    last = run(datetime(2026, 3, 29, 1, 0, 1, tzinfo=UTC))
    assert reported("absent", last, now=due + LATE) == {}
    assert reported("absent", last, now=due + LATE + MINUTE) == {"backup": due}
    assert reported("absent", run(due + timedelta(seconds=2)), now=due + LATE + MINUTE) == {}


@pytest.mark.parametrize("cron", ["", "@reboot", "61 * * * *", "0 0 30 2 *"])
def test_without_a_time_that_can_be_told_nothing_is_expected(cron: str) -> None:
    assert reported("absent", run(AT, cron=cron), now=AT + timedelta(days=900)) == {}


def test_a_run_that_began_while_the_one_before_ran_overlaps() -> None:
    first, second = run(AT, timedelta(minutes=5), number=1), run(AT + MINUTE, number=2)
    assert reported("overlapped", second, first) == {"backup": AT + MINUTE}
    assert reported("overlapped", second, run(AT, None)) == {"backup": AT + MINUTE}
    assert reported("overlapped", second, run(AT, timedelta(seconds=59))) == {}
    third = run(AT + 2 * MINUTE, number=3)
    assert reported("overlapped", third, run(AT + MINUTE, 2 * MINUTE), first) == {"backup": AT + MINUTE}
    assert reported("overlapped", third, run(AT + MINUTE, 2 * MINUTE), run(AT)) == {"backup": AT + 2 * MINUTE}
    assert reported("overlapped", second, run(AT, None, host="web2")) == {}, "that is another crontab's"
