"""All times on one page are in the same time zone, and the page names it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from support.lookingrows import NOW, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows

from cronjobs.testing import FakeClock

pytestmark = pytest.mark.either


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)  # 14:03:07 in Berlin, 08:03:07 in New York


def test_a_schedule_is_shown_in_its_own_zone(rows: Rows, cronjobs: Cronjobs) -> None:
    schedule = rows.schedule("nightly-report")
    rows.occurrence(schedule, ago(hours=5, minutes=48, seconds=7))
    out = cronjobs("schedules", "show", "nightly-report").out
    assert "next       2026-07-02 02:15:00 America/New_York, in 18h" in out
    assert "settled    every occurrence up to 1m ago (08:02:07) America/New_York" in out
    assert "occurrence (America/New_York)" in out
    assert "Berlin" not in out
    assert "14:0" not in out


def test_instants_in_the_audit_trail_are_in_the_zone_that_it_names(rows: Rows, cronjobs: Cronjobs) -> None:
    assert cronjobs("pause", "--all", "--until", "2026-07-01T15:30").code == 0
    lines = cronjobs("audit").out.splitlines()
    assert lines[0] == "times are Europe/Berlin"
    assert "(until: 15:30:00)" in lines[-1]
    assert cronjobs("audit", "--json").json[0]["detail"]["until"] == "2026-07-01T13:30:00+00:00"


def test_what_a_backfill_would_run_is_in_the_zone_in_which_it_was_asked_for(rows: Rows, cronjobs: Cronjobs) -> None:
    schedule = rows.schedule("nightly-report")
    rows.occurrence(schedule, datetime(2026, 6, 30, 6, 15, tzinfo=UTC), "missed")
    span = ("--from", "2026-06-30T00:00", "--to", "2026-07-01T00:00")
    answer = cronjobs("backfill", "nightly-report", *span, "--dry-run")
    assert answer.out.splitlines()[1:] == ["  2026-06-30 08:15:00 Europe/Berlin"]
    of_day = cronjobs("backfill", "nightly-report", "--from", "yesterday 00:00", "--to", "00:00", "--dry-run")
    assert of_day.out == answer.out, "as history and explain take it"
    assert (
        "--from yesterday 00:00 is taken as Europe/Berlin time, the configured timezone: 2026-06-30T00:00" in of_day.err
    )
    wrong = cronjobs("backfill", "nightly-report", "--from", "25:00", "--to", "00:00", "--dry-run")
    assert wrong.code == 2
    assert "--from '25:00' is not an ISO time" in wrong.err
