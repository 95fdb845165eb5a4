"""``explain`` for a range and for a job, and that its answer is fast and safe to print."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import event, text, update
from support.bigtables import fill, whole_table_read
from support.explained import BEGIN, DAY, HOUR, MINUTE, MINUTELY, World, a_night, an_outage, brake, fail, utc
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world
from support.hosts import put
from support.lookingrows import NOW
from support.postgres import OWNER

from cronjobs.desk.insight.evidence import ScheduleEvidence
from cronjobs.desk.insight.explain_facts import LedgerFacts, Now, OccurrenceFacts
from cronjobs.desk.insight.explain_job import explain_job
from cronjobs.desk.insight.explain_occurrence import OCCURRENCE_VERDICTS, explain_occurrence
from cronjobs.desk.insight.job_evidence import job_life
from cronjobs.engine.database import tables
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store.ticks import record

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases

# --- several ----------------------------------------------------------------------------------------------------------


def test_a_range_accounts_for_every_occurrence_once(world: World) -> None:
    an_outage(world)
    world.ticks(utc("2026-03-03T02:32:10"), utc("2026-03-03T02:40:10"))
    world.go(utc("2026-03-03T02:43:00"))
    found = world.ask("s", "--from", "2026-03-03T01:50", "--to", "2026-03-03T02:50").found
    assert found["summary"] == "54 occurrences: 12 enqueued, 32 coalesced, 10 pending"
    assert found["counts"] == {"not_yet_defined": 0, "enqueued": 12, "coalesced": 32, "pending": 10}
    assert sum(entry["facts"]["count"] for entry in found["occurrences"]) == 54
    assert [entry["facts"]["count"] for entry in found["occurrences"] if entry["verdict"] == "pending"] == [3, 7]
    assert found["from"] == "2026-03-03T01:50:00+00:00"


def test_a_range_as_a_list(world: World) -> None:
    an_outage(world)
    world.ticks(utc("2026-03-03T02:32:10"), utc("2026-03-03T02:35:10"))
    world.plan = [fail()]
    world.ticks(utc("2026-03-03T02:36:10"), utc("2026-03-03T02:40:10"))
    world.go(utc("2026-03-03T02:43:00"))
    lines = world.say("s", "--from", "2026-03-03T01:57").out.splitlines()
    assert lines[0] == "s from 2026-03-03 01:57:00 to 2026-03-03 02:43:00 UTC"
    assert lines[1] == "47 occurrences: 11 enqueued, 1 skipped, 32 coalesced, 3 pending."
    told = [re.split(r"\s{2,}", line) for line in lines[3:]]
    assert told == [
        ["2026-03-03 01:57:00", "enqueued", "job 1, on time: succeeded"],
        ["2026-03-03 01:58:00", "enqueued", "job 2, on time: succeeded"],
        ["2026-03-03 01:59:00 … 02:30:00 (32)", "coalesced", "job 3, made at 02:31:12, stands for them"],
        ["2026-03-03 02:31:00", "enqueued", "job 3, 12s late: succeeded"],
        ["2026-03-03 02:32:00 … 02:35:00", "enqueued", "4 jobs, each within 2m of its time, all succeeded"],
        ["2026-03-03 02:36:00", "enqueued", "job 8, 10s late: succeeded at attempt 2"],
        ["2026-03-03 02:37:00", "skipped", "job 8 was still unfinished"],
        ["2026-03-03 02:38:00", "enqueued", "job 9, 10s late: succeeded"],
        ["2026-03-03 02:39:00", "enqueued", "job 10, 10s late: succeeded"],
        ["2026-03-03 02:40:00", "enqueued", "job 11, 10s late: succeeded"],
        ["2026-03-03 02:41:00 … 02:43:00 (3)", "pending", "no tick has settled it yet"],
    ]


def test_a_run_that_began_late_is_not_said_to_be_on_time(world: World) -> None:
    world.file(s='cron: "*/10 * * * *", overlap: allow')
    world.tick(utc("2026-03-03T01:50:00"))
    world.tick(utc("2026-03-03T02:00:00"))
    assert world.cronjobs("pause", "--queue", "default").code == 0
    for minute in (10, 20):
        world.tick(utc(f"2026-03-03T02:{minute}:00"))
    assert world.cronjobs("resume", "--queue", "default").code == 0
    world.ticks(utc("2026-03-03T02:30:00"), utc("2026-03-03T03:00:00"), 10 * MINUTE)
    lines = world.say("s", "--from", "2026-03-03T02:00").out.splitlines()
    assert [re.split(r"\s{2,}", line)[2] for line in lines[3:]] == [
        "job 1, on time: succeeded",
        "job 2, made on time, begun 20m late: succeeded",
        "job 3, made on time, begun 10m late: succeeded",
        "4 jobs, each within 2m of its time, all succeeded",
    ]


@pytest.mark.slow
def test_a_range_over_edits_a_retirement_and_what_is_pruned(world: World) -> None:
    world.file(s='cron: "0 12 * * *"', other='cron: "0 0 1 1 *"')
    world.tick()
    world.ticks(utc("2026-03-02T12:00:10"), utc("2026-04-10T12:00:10"), every=DAY)
    world.file(other='cron: "0 0 1 1 *"')
    world.tick(utc("2026-04-10T18:00:00"))
    world.tick(utc("2026-04-20T18:00:00"))
    world.file(s='cron: "0 6,18 * * *"', other='cron: "0 0 1 1 *"')
    world.tick(utc("2026-04-20T20:00:00"))
    world.ticks(utc("2026-04-21T06:00:10"), utc("2026-06-20T18:00:10"), every=12 * HOUR)
    found = world.ask("s", "--from", "2026-02-20T00:00", "--to", "2026-06-20T19:00").found
    counted = Counter[str]()
    for entry in found["occurrences"]:
        counted[entry["verdict"]] += entry["facts"]["count"]
    kept = counted["enqueued"] - 122
    assert counted == {
        "not_yet_defined": 0,
        "retired": 0,
        "beyond_retention": 40 - kept,
        "enqueued": 122 + kept,
    }
    assert 19 <= kept <= 21  # 90 days before 20 June is 22 March
    spans = {entry["verdict"]: entry for entry in found["occurrences"]}
    assert spans["beyond_retention"]["facts"]["first_for"] == "2026-03-02T12:00:00+00:00"


def test_a_range_that_begins_as_the_schedule_did_has_no_empty_span(world: World) -> None:
    world.file(s='cron: "* * * * *"')
    world.tick()
    world.tick(utc("2026-03-02T08:01:10"))
    rows = world.say("s", "--from", "2026-03-02T08:00:30").out
    assert "not yet defined" not in rows
    assert "not yet defined" in world.say("s", "--from", "2026-03-02T08:00:20").out


def test_what_no_tick_has_settled_counts_among_the_newest(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.ticks(utc("2026-03-02T08:01:10"), utc("2026-03-02T08:03:10"))
    world.go(utc("2026-03-02T08:05:10"))
    for limit in (1, 2, 3):
        found = world.ask("s", "--since", "1d", "--limit", str(limit)).found
        assert len(found["occurrences"]) == limit
        assert found["occurrences"][-1]["verdict"] == "pending"
        assert found["summary"].endswith("older ones are left out")


def test_a_list_with_room_only_for_the_time_without_the_schedule_says_that_older_ones_are_left_out(
    world: World,
) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.tick(utc("2026-03-02T08:01:10"))
    world.file(other='cron: "0 3 * * *"')
    world.tick(utc("2026-03-02T08:01:30"))
    world.go(utc("2026-03-02T08:05:10"))
    found = world.ask("s", "--since", "1h", "--limit", "1").found
    assert [each["verdict"] for each in found["occurrences"]] == ["retired"]
    assert found["summary"] == "no occurrence; older ones are left out"


@pytest.mark.slow
def test_the_newest_of_a_long_range(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.ticks(utc("2026-03-02T08:01:10"), utc("2026-03-02T08:09:10"))
    found = world.ask("s", "--since", "1d", "--limit", "4").found
    assert [entry["at"][11:16] for entry in found["occurrences"]] == ["08:06", "08:07", "08:08", "08:09"]
    assert found["summary"] == "4 occurrences: 4 enqueued; older ones are left out"


def test_a_due_occurrence_without_a_row_is_in_the_list(world: World) -> None:
    world.file(s='cron: "0 * * * *"')
    world.tick(utc("2026-03-03T00:54:00"))
    world.ticks(utc("2026-03-03T01:00:00"), utc("2026-03-03T06:00:00"), every=HOUR)
    with world.database.write() as connection:
        gone = [utc(f"2026-03-03T0{hour}:00:00") for hour in (2, 4, 5)]
        connection.execute(tables.occurrences.delete().where(tables.occurrences.c.last_for.in_(gone)))
    listed = world.say("s", "--from", "2026-03-03T00:30", "--to", "2026-03-03T08:30").out
    assert "8 occurrences: 3 enqueued, 2 pending, 3 unknown" in listed
    assert "the ledger should have a row for it but has none" in listed
    assert "the ledger should have a row for them but has none" in listed
    assert "3 enqueued, 3 unknown" in world.say("s", "--since", "2026-03-03T00:30").out


def test_the_edges_of_a_range_cut_rows(world: World) -> None:
    an_outage(world)
    found = world.ask("s", "--from", "2026-03-03T02:00", "--to", "2026-03-03T02:10").found
    assert [(entry["verdict"], entry["facts"]["count"]) for entry in found["occurrences"]] == [("coalesced", 11)]
    assert "stands for them and 21 more" in " ".join(found["occurrences"][0]["sentences"])


@pytest.mark.parametrize(
    "options",
    [
        ["--at", "02:15", "--since", "1h"],
        ["--to", "02:15"],
        ["--from", "1h"],
        ["--at", "soon"],
        ["--at", "99:00"],
        ["--at", "9999-12-31T23:59"],
        ["--since", "x"],
        ["--from", "2026-03-03T00:00", "--to", "2026-03-02T00:00"],
    ],
)
def test_what_cannot_be_meant_is_exit_code_2(world: World, options: list[str]) -> None:
    a_night(world)
    assert world.say("nightly-report", *options).code == 2


# --- a job ------------------------------------------------------------------------------------------------------------


def test_a_job_of_a_schedule_tells_its_life(world: World) -> None:
    an_outage(world)
    told = world.ask("3")
    assert told.verdict == "succeeded"
    assert told.steady == [
        "Job 3 (t.work) was made by a tick of host alpha for the occurrence of s at 2026-03-03 02:31:00 UTC, 12s late.",
        "The job also stands for 32 more occurrences of s, from 01:59:00 to 02:30:00.",
        "It was due at 02:31:00 and started 12s late, at 02:31:12.",
        "Attempt 1 succeeded at 02:31:12 on alpha, after a moment.",
    ]
    assert told.found["subject"] == "job 3"


def test_a_job_of_an_application_names_who_and_the_key(world: World) -> None:
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work", idempotency_key="invoice:17", enqueued_by="app/web")
    told = world.ask(str(job_id))
    assert told.verdict == "waiting"
    assert (
        "Job 1 (t.work) was enqueued by app/web at 2026-03-02 08:00:30 UTC, with the idempotency key invoice:17."
        in told
    )
    assert "the next tick with a free worker will run it (the last tick began at 08:00:30 on alpha)." in told


def test_where_is_this_job_now(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file("run: {budget: 40s}\n")
    world.tick()
    later = put(world.database, job_type="t.work", run_at=world.clock.now() + 10 * MINUTE)
    stranger = put(world.database, job_type="os:system")
    too_long = put(world.database, job_type="t.work", timeout_s=3600.0)
    mail = put(world.database, job_type="t.work", queue="mail")
    brake(world, "pause", "--queue", "mail", "--why", "provider down", monkeypatch=monkeypatch)
    assert "Job 1 waits for its turn, due at 08:10:30, in 9m59s." in world.ask(str(later))
    told = world.ask(str(stranger))
    assert 'no handler or command "os:system" is registered in this configuration' in told
    assert f'If no handler will ever have this name, type "cronjobs jobs cancel {stranger}".' in told
    assert "the next tick with a free worker will run it" in world.ask(str(too_long))
    assert (
        "queue mail has been paused by ada since 08:00:30, until someone resumes it (why: provider down)"
        in world.ask(str(mail))
    )
    brake(world, "pause", "--all", monkeypatch=monkeypatch)
    assert "When it is due, it will still wait: everything has been paused by ada" in world.ask(str(later))
    world.clock.advance(HOUR)
    assert re.search(r"no tick has reached the database since 08:00:3\d, for (1h|59m)", world.ask(str(mail)).text)


def test_a_dead_and_a_running_job(world: World) -> None:
    world.file()
    world.tick()
    dead = put(world.database, job_type="t.work", max_attempts=1)
    world.plan = [fail()]
    world.tick()
    told = world.ask(str(dead))
    assert told.verdict == "dead"
    assert "died at 08:00:30 after it failed 1 of 1 try." in told
    put(world.database, job_type="t.work")
    running = world.leave_hanging()
    told = world.ask(str(running))
    assert told.verdict == "running"
    assert "attempt 1 on beta" in told


def test_a_job_that_others_gave_way_to(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.plan = [fail(), fail()]
    world.ticks(utc("2026-03-02T08:01:10"), utc("2026-03-02T08:02:10"))
    assert "Because of this job, 1 occurrence of s was skipped, at 08:02:00." in world.ask("1")
    world.tick(utc("2026-03-02T08:03:10"))
    told = world.ask("1")
    assert "Because of this job, 2 occurrences of s were skipped, from 08:02:00 to 08:03:00." in told


def test_what_people_did_to_a_job_is_told(world: World) -> None:
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work")
    now = world.clock.now()
    with world.database.write() as connection:
        record(connection, action="cancel", subject=str(job_id), actor="ada", why="sent twice", at=now)
        connection.execute(update(tables.jobs).values(status="cancelled", finished_at=now))
    told = world.ask(str(job_id))
    assert told.verdict == "cancelled"
    assert told.steady[1:] == [
        "It was cancelled by ada at 08:00:30 (why: sent twice).",
        ('Job 1 was cancelled at 08:00:30. It runs again only if someone types "cronjobs jobs retry 1".'),
    ]


def test_an_unknown_job_is_exit_code_1(world: World) -> None:
    world.file()
    world.tick()
    told = world.ask("4711", code=1)
    assert told.verdict == "unknown"
    assert "there is no job 4711" in world.say("4711").err
    assert world.ask("9" * 30, code=1).verdict == "unknown"


# --- the whole --------------------------------------------------------------------------------------------------------


def test_every_sentence_is_one_harmless_line(world: World) -> None:
    a_night(world)
    world.plan = [fail("\x1b[2J\nsecond line")]
    world.tick(utc("2026-11-20T07:15:12"))
    answer = world.say("nightly-report", "--at", "02:15")
    assert answer.code == 0
    assert "\x1b" not in answer.out
    assert r"\x1b[2J; second line" in answer.out


def test_the_core_needs_no_database() -> None:
    facts = OccurrenceFacts("s", BEGIN, BEGIN, 1, "UTC", Now(BEGIN), "defined", due=False)
    assert explain_occurrence(facts).sentences == ("s was not due at 2026-03-02 08:00:30 UTC.",)


def test_a_full_queue_is_named_once() -> None:
    reason = "full: queue mail was at its limit of waiting jobs, 2 (max_waiting)"
    row = LedgerFacts("skipped", reason, None, BEGIN, BEGIN, 1, BEGIN)
    facts = OccurrenceFacts("s", BEGIN, BEGIN, 1, "UTC", Now(BEGIN), "defined", ledger=row)
    said = "It was skipped: queue mail was at its limit of waiting jobs, 2 (max_waiting)."
    assert explain_occurrence(facts).sentences[-2] == said


def test_verdicts_are_words_of_their_own() -> None:
    assert len(OCCURRENCE_VERDICTS) == 11


@pytest.mark.connects_as(OWNER)  # who may ANALYZE
def test_explaining_reads_no_big_table_from_end_to_end(world: World, rows_of_weeks: datetime) -> None:
    sent: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "SELECT" in statement:
            sent.append((statement, parameters))

    settings, types = world.settings(), JobTypes()
    event.listen(world.database.engine, "before_cursor_execute", note)
    with world.database.read() as connection:
        evidence = ScheduleEvidence(connection, "s", settings, lambda: types)
        found = explain_occurrence(evidence.at(evidence.latest()))
        told, _ = evidence.between(rows_of_weeks - HOUR, rows_of_weeks, 100)
        life = job_life(connection, 100, settings, lambda: types)
    event.remove(world.database.engine, "before_cursor_execute", note)
    assert found.verdict == "enqueued"
    assert len(told) >= 20
    assert life is not None
    assert explain_job(life).verdict == "succeeded"
    bad = {
        statement: lines for statement, given in sent if (lines := whole_table_read(world.database, statement, given))
    }
    assert not bad


@pytest.fixture
def rows_of_weeks(world: World) -> datetime:
    """Two weeks, a row of each kind a minute; schedule 1 has every third of them."""
    world.go(NOW - 15 * DAY)
    world.file(s='cron: "* * * * *"')
    world.tick()
    world.go(NOW)
    fill(world.database)
    with world.database.write() as connection:
        connection.execute(update(tables.schedules).values(seen_until=NOW, next_at=NOW + MINUTE))
        connection.execute(text("UPDATE cronjobs_jobs SET schedule = 's' WHERE id % 3 = 0"))
    return NOW
