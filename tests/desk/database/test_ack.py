"""``cronjobs ack``: for a while, a finding is not reported with the rows and the severity that it has now."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session
from support.lookingrows import NOW, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows

import cronjobs as api
from cronjobs.desk.insight.finding import Finding, Severity
from cronjobs.desk.insight.findings import acknowledged
from cronjobs.engine.store.acks import StoredAck, put_ack
from cronjobs.errors import DatabaseError
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases


def found(cronjobs: Cronjobs, key: str) -> dict[str, Any]:
    [one] = [each for each in cronjobs("ack", "--json").json if each["key"] == key]
    return dict(one)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture(autouse=True)
def _ticking(rows: Rows) -> None:
    rows.tick()


def test_without_a_finding_it_lists_what_there_is(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.job(status="dead")
    answer = cronjobs("ack")
    assert answer.out.startswith("dead  1 dead job that nobody has retried or dismissed, since ")
    assert cronjobs("status", "--json").json["findings"][0]["key"] == "dead"


def test_all_is_well_says_so(cronjobs: Cronjobs, rows: Rows) -> None:
    answer = cronjobs("ack")
    assert (answer.code, answer.out, answer.err) == (0, "", "all is well: there is nothing to acknowledge\n")


def test_an_acknowledged_finding_is_shown_and_no_alarm(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.job(status="dead")
    answer = cronjobs("ack", "dead", "--for", "8h", "--reason", "Monday")
    assert "acknowledged by " in answer.out
    assert ": Monday" in answer.out
    assert answer.err == "dead: acknowledged\n"
    assert cronjobs("ack").err == "1 finding acknowledged\n"
    assert found(cronjobs, "dead")["alarm"] is False
    [shown] = [each for each in cronjobs("status", "--json").json["findings"] if each["key"] == "dead"]
    assert (shown["alarm"], shown["ack"]["why"]) == (False, "Monday")
    [entry] = cronjobs("audit", "--json", "--action", "ack").json
    assert (entry["subject"], entry["why"]) == ("dead", "Monday")


def test_another_row_opens_it_again(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.job(status="dead")
    cronjobs("ack", "dead")
    rows.job(status="dead")
    assert found(cronjobs, "dead")["ack"] is None


def test_fewer_rows_do_not(cronjobs: Cronjobs, rows: Rows) -> None:
    first = rows.job(status="dead")
    rows.job(status="dead")
    cronjobs("ack", "dead")
    with rows.database.write() as connection:
        connection.execute(text("UPDATE cronjobs_jobs SET dismissed_at = finished_at WHERE id = :id"), {"id": first})
    assert found(cronjobs, "dead")["ack"] is not None


def test_it_is_over_after_a_week_unless_said_otherwise(cronjobs: Cronjobs, rows: Rows, clock: FakeClock) -> None:
    rows.job(status="dead")
    cronjobs("ack", "dead")
    clock.set(NOW + timedelta(days=7) - timedelta(seconds=1))
    assert found(cronjobs, "dead")["ack"] is not None
    clock.advance(timedelta(seconds=2))
    assert found(cronjobs, "dead")["ack"] is None


def test_it_can_be_taken_back(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.job(status="dead")
    cronjobs("ack", "dead")
    assert cronjobs("ack", "dead", "--remove").err.startswith("dead: no longer acknowledged\n")
    assert found(cronjobs, "dead")["alarm"] is True
    assert "nothing to do" in cronjobs("ack", "dead", "--remove").err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dea"], 'did you mean "dead"?'),
        (["pause"], 'did you mean "pause:queue/newsletter-of-the-shop"?'),
        (["dead", "--for", "0s"], "--for"),
        (["dead", "--for", "400d"], "at most 366d"),
        (["--remove"], "needs a FINDING"),
    ],
)
def test_nonsense_is_refused(cronjobs: Cronjobs, rows: Rows, arguments: list[str], said: str) -> None:
    rows.job(status="dead")
    rows.pause("queue", "newsletter-of-the-shop", paused_at=ago(days=2))
    answer = cronjobs("ack", *arguments)
    assert answer.code == 2
    assert said in answer.err
    assert found(cronjobs, "dead")["ack"] is None


ROWS = st.frozensets(st.sampled_from("abcdef"), max_size=4)
SEVERITIES = st.sampled_from(list(Severity))


@given(behind=ROWS, then=ROWS, severity=SEVERITIES, was=SEVERITIES)
def test_it_covers_what_it_was_given_for_and_nothing_worse(
    behind: frozenset[str], then: frozenset[str], severity: Severity, was: Severity
) -> None:
    stored = StoredAck("x", was, sorted(then), NOW + timedelta(days=1), "ada", None, NOW)
    after = acknowledged(Finding("x", "it is so", severity, rows=tuple(sorted(behind))), {"x": stored})
    covered = behind <= then and severity.rank >= was.rank
    assert (after.ack is not None) == covered
    assert not (after.alarm and covered)


@given(
    began=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    acked_at=st.integers(0, 9),
    known=st.booleans(),
)
def test_it_covers_nothing_that_began_after_it(began: list[int], acked_at: int, known: bool) -> None:
    at = [NOW + timedelta(minutes=minute) for minute in began]
    finding = Finding("x", "it is so", since=min(at) if known else None, grew_at=max(at))
    stored = StoredAck(
        "x", finding.severity, [], NOW + timedelta(days=1), "ada", None, NOW + timedelta(minutes=acked_at)
    )
    assert (acknowledged(finding, {"x": stored}).ack is not None) == (max(began) <= acked_at)


def test_it_covers_no_failures_after_a_run_that_succeeded_after_it(cronjobs: Cronjobs, rows: Rows) -> None:
    """The occurrence that fails now was due before the ack, but was failing only after it."""
    schedule = rows.schedule("nightly-report", next_at=NOW + timedelta(hours=1))
    well = rows.job("reports.nightly", "succeeded", finished_at=ago(minutes=30))
    again = {"failures": 3, "attempts": 3, "run_at": NOW + timedelta(minutes=5), "last_failed_at": ago(minutes=5)}
    fails = rows.job("reports.nightly", "failed", schedule="nightly-report", scheduled_for=ago(hours=4), **again)
    rows.occurrence(schedule, ago(hours=5), job_id=well)
    rows.occurrence(schedule, ago(hours=4), job_id=fails)
    for acked_at, alarm in ((ago(minutes=40), True), (ago(minutes=20), False)):
        until = NOW + timedelta(days=1)
        given = StoredAck("failing", "warning", ["nightly-report"], until, None, None, acked_at)
        with rows.database.write() as connection:
            put_ack(connection, given)
        assert found(cronjobs, "failing")["alarm"] is alarm


# --- cronjobs.health --------------------------------------------------------------------------------------------------


def test_an_app_asks_on_its_own_connection(database_url: str, rows: Rows) -> None:
    engine = create_engine(database_url)
    try:
        with engine.connect() as connection:
            kinds = {finding.kind for finding in api.health(connection).findings}
        with Session(engine) as session:
            assert {finding.kind for finding in api.health(session).findings} == kinds
        assert {finding.kind for finding in api.health(engine).findings} == kinds
        assert {finding.kind for finding in api.health(database_url=database_url).findings} == kinds
        assert "no_tick" in kinds  # the last tick of these rows was long ago, by the real clock
    finally:
        engine.dispose()


def test_its_answer_is_json_for_a_health_endpoint(cronjobs: Cronjobs, database_url: str, rows: Rows) -> None:
    rows.job(status="dead", finished_at=ago(days=1))
    answer = api.health(database_url=database_url).as_dict()
    assert answer["ok"] is False
    [dead] = [each for each in answer["findings"] if each["finding"] == "dead"]
    assert dead["command"] == "cronjobs jobs list --status dead"
    assert dead["since"] == ago(days=1).isoformat()


def test_it_takes_no_other_object() -> None:
    with pytest.raises(TypeError, match=r"SQLAlchemy Connection, Session or Engine, not builtins.dict"):
        api.health({})


@pytest.mark.parametrize("kind", [Engine, Session])
def test_health_without_a_server_raises_what_it_promises(tmp_path: Path, kind: type) -> None:
    nowhere = create_engine(f"postgresql+psycopg://shop:hunter22@/shop?host={tmp_path}")
    with pytest.raises(DatabaseError, match="cannot be reached") as refusal:
        api.health(nowhere if kind is Engine else Session(nowhere))
    assert "hunter22" not in str(refusal.value)
