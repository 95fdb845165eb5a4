"""A tick's row lists due jobs that were not started, with the reason, and no such tick says that nothing was due."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, update
from support.hosts import Host

from cronjobs.desk.cli.status_lines import _waiting_lines
from cronjobs.desk.insight.explain_job import explain_job
from cronjobs.desk.insight.findings import troubles
from cronjobs.desk.insight.formatting import Times
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.job_evidence import job_life
from cronjobs.engine.config.settings import JobTypeSettings, RunSettings, ScheduleSettings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs as jobs_table
from cronjobs.engine.database.tables import ticks
from cronjobs.engine.jobs import registry
from cronjobs.engine.jobs.job_types import load
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.store import not_started, schedules
from cronjobs.engine.store.leases import LONG
from cronjobs.engine.tick.not_started import WHY, entry_for, in_words
from cronjobs.testing import FakeClock

START = datetime(2026, 3, 2, 8, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LATER = START + timedelta(hours=1)
RUNNING = {"status": "running", "locked_by": "beta:x", "locked_until": LATER, "attempts": 1, "policy": {"attempt": 1}}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def ran() -> Iterator[list[str]]:
    seen: list[str] = []
    before = dict(registry._registered)
    registry._registered.clear()
    for name, timeout in {"t.say": "5s", "t.other": "5s", "t.slow": "30s", "t.long": "2h"}.items():
        registry.job(name, timeout=timeout)(lambda: seen.append("ran"))
    yield seen
    registry._registered.clear()
    registry._registered.update(before)


@pytest.fixture
def host(database: Database, tmp_path: Path, ran: list[str]) -> Host:
    return Host(database, tmp_path)


def put(database: Database, **values: Any) -> None:
    row = {"job_type": "t.say", "run_at": START, "created_at": START, "payload": {}} | values
    with database.write() as connection:
        connection.execute(insert(jobs_table).values(row))


def last_tick(database: Database) -> Any:
    with database.read() as connection:
        return connection.execute(select(ticks).order_by(ticks.c.id.desc()).limit(1)).one()


def pause(database: Database, scope: str, name: str) -> None:
    with database.write() as connection:
        schedules.pause(connection, scope=scope, name=name, until=None, by="ada", why=None, now=START)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    # the job, the tick's options, the file, and how the tick ended
    "--queue": ({"queue": "mail"}, {"queue": "default"}, {}, "no other due job can start here"),
    "--only": ({"job_type": "t.other"}, {"only": "t.say"}, {}, "no other due job can start here"),
    "--limit": ({}, {"jobs": 1}, {}, "the tick's --limit is reached"),
    "short tick": ({"job_type": "t.slow"}, {"budget_s": 20}, {}, "no other due job can start here"),
    "limits": (
        {"concurrency_key": "smtp:a"},
        {},
        {"limits": (Limit("smtp:", most=0),)},
        "no other due job can start here",
    ),
    "unknown type": ({"job_type": "t.sya"}, {}, {}, "no other due job can start here"),
    "paused": ({"queue": "mail"}, {}, {}, "no other due job can start here"),
    "overlap": ({"schedule": "s"}, {}, {}, "no other due job can start here"),
    "long jobs": (
        {"job_type": "t.long"},
        {},
        {"run": RunSettings(workers=2, long_jobs=1)},
        "no other due job can start here",
    ),
    "no long jobs": (
        {"job_type": "t.long"},
        {},
        {"run": RunSettings(workers=2, long_jobs=0)},
        "no other due job can start here",
    ),
}


@pytest.mark.parametrize("why", CASES)
@pytest.mark.parametrize("timed", [False, True])
def test_each_reason_is_recorded_and_told(
    database: Database, host: Host, ran: list[str], why: str, timed: bool
) -> None:
    columns, options, file, ended = CASES[why]
    if timed and "job_type" not in columns:
        columns = columns | {"timeout_s": 6.0}
    host.carry(**file)
    if why == "paused":
        pause(database, "queue", "mail")
    if why == "overlap":
        put(database, schedule="s", **RUNNING)
    if why == "long jobs":
        put(database, job_type="t.long", **RUNNING | {"locked_by": f"{host.name}:x:{LONG}1"})
    put(database)
    for _ in range(3):
        put(database, **columns)
    result = host.tick(**options)
    row = last_tick(database)
    assert (row.ended, row.not_started) == (ended, result.not_started)
    [entry] = row.not_started
    assert (entry["why"], entry["jobs"]) == (why, 3)
    job = {"job_type": "t.say", "queue": "default", "schedule": None, "concurrency_key": None} | columns
    asked = {"job_type": job["job_type"], "queue": job["queue"], "schedule": job["schedule"]}
    asked |= {"key": job["concurrency_key"], "timeout_s": job.get("timeout_s")}
    assert entry_for(row.not_started, **asked)
    assert entry_for(row.not_started, **asked | {"job_type": "t.nobodys"}) is None
    assert len(ran) == 1


def test_the_time_to_stop_a_process_has_to_fit_too(database: Database, host: Host, ran: list[str]) -> None:
    declared = JobTypeSettings("t.other", isolation="process", timeout=timedelta(seconds=19))
    host.carry(job_types={"t.other": declared})
    put(database, job_type="t.other")
    host.tick(budget_s=20)
    [entry] = last_tick(database).not_started
    assert entry["why"] == "short tick"
    assert in_words(entry) == (
        "the timeout of 19s, with 2s to stop its process, is longer than the 20s of a whole tick (--budget)"
    )


def test_a_tick_that_finds_only_paused_work_does_not_say_that_nothing_is_due(database: Database, host: Host) -> None:
    host.tick()  # loads the handlers, as once an hour
    put(database, queue="mail")
    pause(database, "queue", "mail")
    host.tick()
    row = last_tick(database)
    assert (row.ended, row.not_started, row.job_types) == (
        "everything that is due is paused",
        [{"why": "paused"}],
        None,
    )
    pause(database, "all", "")
    host.tick()
    assert last_tick(database).ended == "everything that is due is paused"


def test_a_pause_without_due_work_and_a_pause_of_a_schedule_change_nothing(database: Database, host: Host) -> None:
    pause(database, "queue", "mail")
    pause(database, "schedule", "s")
    put(database, queue="mail", run_at=LATER)
    host.tick()
    assert (last_tick(database).ended, last_tick(database).not_started) == ("nothing is due", None)


def test_when_all_is_done_nothing_is_due(database: Database, host: Host, ran: list[str]) -> None:
    put(database)
    host.tick()
    assert (last_tick(database).ended, last_tick(database).not_started) == ("nothing is due", None)


def test_a_flood_is_counted_up_to_a_bound_and_read_from_a_sample(
    database: Database, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(not_started, "SAMPLE", 4)
    monkeypatch.setattr(not_started, "COUNTED", 20)
    row = {"run_at": START, "created_at": START}
    with database.write() as connection:
        connection.execute(insert(jobs_table), [row | {"job_type": "t.sya"}] * 30)
        connection.execute(insert(jobs_table), [row | {"job_type": "t.other", "concurrency_key": "a"}] * 3)
        connection.execute(insert(jobs_table), [row | {"job_type": "t.other", "schedule": "s"}] * 9)
    host.carry(limits=(Limit("a", most=0),), schedules={"s": ScheduleSettings("s", job="t.other", every=MINUTE)})
    host.tick(only="t.say")
    entries = {(entry["why"], entry["job_type"]): entry for entry in last_tick(database).not_started}
    assert entries["unknown type", "t.sya"]["jobs"] == 20
    assert entries["--only", "t.other"]["jobs"] == 12


BUDGET = {"why": "budget", "job_type": "t", "queue": "q"}


def explained(host: Host, job_id: int) -> str:
    with host.database.read() as connection:
        life = job_life(connection, job_id, host.settings, lambda: load(host.settings))
    assert life is not None
    return " ".join(explain_job(life).sentences)


def test_explain_answers_from_the_record_while_the_job_waits_and_once_it_has_begun_late(
    database: Database, host: Host, clock: FakeClock
) -> None:
    put(database)
    put(database)
    clock.advance(MINUTE)
    host.tick(jobs=1)
    clock.advance(timedelta(seconds=20))  # a tick ends by the real clock
    assert "did not start it" not in explained(host, 1)  # the very tick that ran it recorded the other one
    said = "on alpha did not start it: the tick had already started as many jobs as --limit allows"
    assert said in explained(host, 2)
    clock.advance(MINUTE)
    host.tick(queue="mail")
    clock.advance(MINUTE)
    host.tick()
    told = explained(host, 2)
    assert "did not start it: the tick was only for queue mail." in told


def test_explain_says_what_took_the_time_that_a_job_of_a_backlog_lacked(
    database: Database, host: Host, clock: FakeClock
) -> None:
    for _ in range(3):
        put(database)
    clock.advance(MINUTE)
    host.tick(jobs=2)
    clock.advance(timedelta(seconds=20))
    left = [{"why": "budget", "job_type": "t.say", "queue": "default", "timeout_s": 5.0, "left_s": 1.0, "jobs": 1}]
    with database.write() as connection:
        connection.execute(update(ticks).values(not_started=left))
    assert "the timeout of 5s did not fit into the 1s left in the tick, which had begun 2 jobs." in explained(host, 3)
    with database.write() as connection:
        connection.execute(update(ticks).values(did={"claimed": "2"}))
    assert "did not fit into the 1s left in the tick." in explained(host, 3)
    left[0] |= {"timeout_s": 50.0, "left_s": 49.6}
    with database.write() as connection:
        connection.execute(update(ticks).values(not_started=left))
    assert "the timeout of 50.0s did not fit into the 49.6s left in the tick." in explained(host, 3)


@pytest.mark.parametrize("job_type", ["t.say", "t.long"])
def test_a_tick_with_a_free_worker_passed_over_a_job_whose_row_another_transaction_holds(
    postgres_migrated: str, tmp_path: Path, ran: list[str], clock: FakeClock, job_type: str
) -> None:
    database = Database(parse_url(postgres_migrated), clock=clock)
    host = Host(database, tmp_path)
    put(database, job_type=job_type)
    clock.advance(MINUTE)
    with database.write() as psql:
        psql.execute(select(jobs_table.c.id).with_for_update()).all()
        host.tick()
        clock.advance(timedelta(seconds=20))
        told = explained(host, 1)
    assert "did not start it: the tick had a free worker, but passed the job over" in told
    assert "another transaction may hold its row (on PostgreSQL, see pg_stat_activity)" in told
    assert "the next tick with a free worker" not in told
    if job_type == "t.say":
        host.tick()
        assert ran == ["ran"]
    database.close()


def test_an_interruption_of_the_last_day_is_named_where_it_holds_jobs_back(
    database: Database, host: Host, clock: FakeClock
) -> None:
    put(database)
    put(database)
    clock.advance(MINUTE)
    host.tick(jobs=1)
    clock.advance(timedelta(seconds=20))
    left = {"why": "budget", "job_type": "t.say", "queue": "default", "timeout_s": 6.7, "left_s": 6.6, "jobs": 1}
    left |= {"default": True, "overran": True}
    with database.write() as connection:
        connection.execute(update(ticks).values(not_started=[left, left | {"left_s": 6.5}]))
    default = "the default timeout of 6.7s did not fit into the 6.6s left in the tick"
    why = "a tick had to interrupt a job of this type in the last 24 hours, so the whole default timeout must fit"
    told = explained(host, 2)
    assert (default in told, why in told) == (True, True), told
    with database.read() as connection:
        health = look(connection, host.settings, load(host.settings))
    [line] = [
        each for each in _waiting_lines(health, host.settings.run.every, Times(health.now, "UTC"), 400) if why in each
    ]
    assert line.startswith("t.say: the default timeout of 6.7s did not fit into the ")
    put(database, status="succeeded", finished_at=clock.now())
    with database.write() as connection:
        connection.execute(delete(jobs_table).where(jobs_table.c.status == "queued"))
    with database.read() as connection:
        health = look(connection, host.settings, load(host.settings))
    assert _waiting_lines(health, host.settings.run.every, Times(health.now, "UTC"), 400) == ["nothing"]


def test_a_part_of_a_lingering_tick_does_not_take_its_own_length_for_that_of_a_whole_tick(
    database: Database, host: Host
) -> None:
    put(database, job_type="t.other")
    host.tick(budget_s=4, whole_s=50)
    [entry] = last_tick(database).not_started
    assert entry["why"] == "budget"


def test_a_timeout_longer_than_a_whole_tick_waits_for_no_next_tick(
    database: Database, host: Host, clock: FakeClock
) -> None:
    put(database, job_type="t.slow")
    clock.advance(MINUTE)
    host.tick(budget_s=20)
    clock.advance(timedelta(seconds=20))
    told = explained(host, 1)
    assert "is longer than the 20s of a whole tick (--budget)" in told
    assert "the job's timeout is too long for the tick that passed the job over" in told
    assert "the next tick with a free worker will run it" not in told


def test_without_long_jobs_no_place_for_one_is_to_be_had(database: Database, host: Host, clock: FakeClock) -> None:
    host.carry(run=RunSettings(workers=2, long_jobs=0))
    put(database, job_type="t.long")
    for _ in range(3):
        clock.advance(MINUTE)
        host.tick()
    told = explained(host, 1)
    assert "the timeout of 2h is longer than the 50s of a whole tick" in told
    assert "and long jobs are off on that host (run.long_jobs: 0)" in told
    assert "long jobs are off on alpha (run.long_jobs: 0), the only host that ticks" in told
    assert "--budget" not in told
    assert "at most 0" not in told
    with database.read() as connection:
        health = look(connection, host.settings, load(host.settings))
    found = {each.kind: each.text for each in troubles(health, host.settings)}
    assert "late" not in found, "it has the same cause"
    assert "t.long: timeout 2h is longer than run.budget (55s), and run.long_jobs is 0" in found["config"]
    assert found["config"].endswith("; 1 due job waits because of this fault")


def test_another_host_learns_that_long_jobs_are_off_where_ticks_run(
    database: Database, host: Host, clock: FakeClock
) -> None:
    """The hosts that could run long jobs have stopped. Only the ticks' records say why the others do not."""
    here = replace(host.settings, run=RunSettings(workers=2, long_jobs=4))
    host.carry(run=RunSettings(workers=2, long_jobs=0))
    put(database, job_type="t.long")
    for _ in range(3):
        clock.advance(MINUTE)
        host.tick()
    host.settings = here
    off = "long jobs are off on alpha (run.long_jobs: 0), the only host that ticks"
    told = explained(host, 1)
    assert off in told
    assert "allow longer ticks" not in told
    with database.read() as connection:
        health = look(connection, here, load(here))
    found = {each.kind: each.text for each in troubles(health, here)}
    assert found["late"].endswith(f": its timeout is longer than a tick allows, and {off}")
    clock.advance(5 * MINUTE)
    told = explained(host, 1)
    assert "long jobs are off on alpha (run.long_jobs: 0); no tick has reached the database" in told


def test_a_host_without_long_jobs_does_not_explain_why_another_did_not_start_one(
    database: Database, host: Host, clock: FakeClock, tmp_path: Path
) -> None:
    other = Host(database, tmp_path, "beta")
    other.carry(run=RunSettings(workers=2, long_jobs=0))
    host.carry(run=RunSettings(workers=2, long_jobs=1))
    put(database, job_type="t.long", **RUNNING | {"locked_by": f"{host.name}:x:{LONG}1"})
    put(database, job_type="t.long")
    for _ in range(3):
        clock.advance(MINUTE)
        host.tick()
        other.tick()
    told = explained(host, 2)
    assert "a host runs at most 1 of these at once (run.long_jobs)" in told
    assert "long jobs are off" not in told
    with database.read() as connection:
        health = look(connection, host.settings, load(host.settings))
    found = {each.kind: each.text for each in troubles(health, host.settings)}
    assert found["late"].endswith(": all places for long jobs are taken (run.long_jobs)")


def test_a_short_tick_is_the_reason_if_the_timeout_fits_into_the_budget_of_the_file(
    database: Database, host: Host
) -> None:
    host.carry(run=RunSettings(workers=2, long_jobs=0))
    put(database, job_type="t.slow")
    host.tick(budget_s=20)
    [entry] = last_tick(database).not_started
    assert entry["why"] == "short tick"


@pytest.mark.parametrize("record", [None, {}, "x", [1], [BUDGET], [{"why": 1}], [{"why": []}], [{}]])
def test_a_record_that_another_version_wrote_is_read_or_passed_over(record: Any) -> None:
    found = entry_for(record, job_type="t", queue="q", schedule=None, key=None, timeout_s=None)
    assert found is None or in_words(found) is None


def test_every_reason_has_its_words() -> None:
    facts = {
        "only": "x",
        "schedule": "s",
        "limit": 'limit "a" is reached (4 at once)',
        "timeout_s": 30.0,
        "left_s": 12.5,
        "whole_s": 20.0,
        "stop": "",
        "default": "",
        "error": "exit status 1",
    }
    assert all(text.format_map(facts) for text in WHY.values())
