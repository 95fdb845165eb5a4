"""The tick's own rules, in fake time on both databases: definitions in force, refusals, order, pruning."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import func, insert, select, update
from support.hosts import Host, put

from cronjobs.engine.config.settings import Retention, RunSettings, ScheduleSettings, Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import audit, job_runs, occurrences, ticks
from cronjobs.engine.database.tables import effects as effects_table
from cronjobs.engine.database.tables import jobs as jobs_table
from cronjobs.engine.database.tables import meta as meta_table
from cronjobs.engine.database.tables import schedules as schedules_table
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs import job_types, registry
from cronjobs.engine.jobs.enqueue import enqueue
from cronjobs.engine.probe import timer
from cronjobs.engine.probe.idle_conditions import NOTHING_DUE
from cronjobs.engine.probe.repeated_signals import SAME_SIGNAL_S
from cronjobs.engine.schedules.definition import fingerprint
from cronjobs.engine.store import meta, operating, schedules
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.store.ticks import record
from cronjobs.engine.tick.tick import Tick
from cronjobs.errors import ForeignDatabase
from cronjobs.testing import FakeClock

START = datetime(2026, 3, 2, 8, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def done() -> Iterator[list[Any]]:
    """Handlers for the test, and the effects that they had."""
    seen: list[Any] = []
    before = dict(registry._registered)

    @registry.job("t.say")
    def say(ctx: Any, line: str = "x") -> str:
        seen.append(line)
        return line

    @registry.job("t.fail")
    def fail() -> None:
        seen.append("tried")
        raise RuntimeError("no luck")

    yield seen
    registry._registered.clear()
    registry._registered.update(before)


@pytest.fixture
def host(database: Database, tmp_path: Path, done: list[Any]) -> Host:
    return Host(database, tmp_path)


@pytest.fixture
def ask(database: Database) -> Callable[[Any], list[Any]]:
    def ask(statement: Any) -> list[Any]:
        with database.read() as connection:
            return list(connection.execute(statement).all())

    return ask


def files(cron: str, **more: str) -> dict[str, ScheduleSettings]:
    crons = {"s": cron} | more
    return {name: ScheduleSettings(name=name, job="t.say", cron=cron, overlap="allow") for name, cron in crons.items()}


A, B = files("* * * * *"), files("0 12 * * *")


def in_force(database: Database) -> Any:
    with database.read() as connection:
        return connection.execute(
            select(schedules_table.c.definition).where(schedules_table.c.name == "s")
        ).scalar_one()["cron"]


def test_a_tick_records_that_it_imports_the_handlers_until_the_import_has_ended(
    database: Database, host: Host, ask: Callable[[Any], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick that dies in the import leaves a trace, and one that dies in a job is not blamed on the import."""
    seen: list[tuple[bool, datetime | None]] = []

    def note() -> None:
        seen.extend(("importing" in row.did, row.finished_at) for row in ask(select(ticks.c.did, ticks.c.finished_at)))

    load = job_types.load

    def noting_load(settings: Settings) -> job_types.JobTypes:
        note()
        return load(settings)

    monkeypatch.setattr(job_types, "load", noting_load)
    registry.job("t.note")(note)
    put(database, job_type="t.note")
    host.tick()
    assert seen == [(True, None), (False, None)]
    [row] = ask(select(ticks))
    assert row.did["succeeded"] == 1
    assert "importing" not in row.did


# --- which definitions are in force -----------------------------------------------------------------------------------


def test_a_roll_back_to_a_file_seen_before_is_in_force_on_the_next_tick(database: Database, host: Host) -> None:
    for carried in (A, B, A, B, A):
        host.carry(schedules=carried)
        host.tick()
        assert in_force(database) == carried["s"].cron


@pytest.mark.slow
def test_two_hosts_with_different_files_do_not_flap(database: Database, host: Host, tmp_path: Path) -> None:
    other = Host(database, tmp_path, "beta")
    host.carry(schedules=A)
    other.carry(schedules=B)
    host.tick()
    other.tick()  # the deploy has reached beta: its file was never seen
    for _ in range(100):
        host.tick()
        other.tick()
        assert in_force(database) == "0 12 * * *"


@pytest.fixture
def two_releases(database: Database, host: Host, tmp_path: Path) -> tuple[Host, Host]:
    """One host that ticks with the files of two folders."""
    old, new = host, Host(database, tmp_path / "new")
    old.carry(schedules=files("* * * * *", a="* * * * *"))
    new.carry(schedules=files("0 12 * * *", b="* * * * *"))
    assert old.name == new.name
    assert old.settings.file != new.settings.file
    return old, new


def active(ask: Any) -> set[str]:
    rows = ask(select(schedules_table.c.name).where(schedules_table.c.status == "active"))
    return {row.name for row in rows}


@pytest.mark.slow
def test_two_files_of_one_host_do_not_keep_replacing_each_other(
    two_releases: tuple[Host, Host], clock: FakeClock, ask: Any
) -> None:
    old, new = two_releases
    old.tick()
    for minute in range(1, 13):
        clock.set(START + minute * MINUTE if minute < 8 else START + (60 + minute) * MINUTE)  # an hour without ticks
        for release in (old, new):
            release.tick()
        assert active(ask) == {"s", "b"}, "the newer file stays in force"
    syncs = ask(select(audit.c.subject).where(audit.c.action == "sync"))
    assert len(syncs) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("used", "waits"), [(1, 6), (3, 6), (10, 1)])
def test_a_roll_back_to_another_folder_takes_effect_when_the_newer_file_is_gone(
    two_releases: tuple[Host, Host], clock: FakeClock, ask: Any, used: int, waits: int
) -> None:
    old, new = two_releases
    old.tick()
    for minute in range(used):
        clock.set(START + minute * MINUTE + timedelta(seconds=30))
        new.tick()
    assert active(ask) == {"s", "b"}
    last, taken = clock.now(), 0
    while active(ask) != {"s", "a"}:
        taken += 1
        clock.set(last + taken * MINUTE + timedelta(seconds=1))
        old.tick()
    assert taken == waits, "at once, if the newer file was in use for a while"


@pytest.mark.slow
def test_a_deploy_a_roll_back_and_a_late_host_lose_and_double_no_occurrence(
    database: Database, host: Host, clock: FakeClock, tmp_path: Path, ask: Any, done: list[Any]
) -> None:
    other = Host(database, tmp_path, "beta")
    other.carry(schedules=B)
    host.carry(schedules=A)
    host.tick()
    for minute in range(1, 31):
        clock.set(START + minute * MINUTE)
        if minute == 10:
            host.carry(schedules=B)
        if minute == 20:
            host.carry(schedules=A)
        host.tick()
        if minute >= 12:
            other.tick()
    due = [START.replace(second=0) + minute * MINUTE for minute in (*range(1, 11), *range(21, 31))]
    rows = ask(select(occurrences.c.outcome, occurrences.c.last_for).order_by(occurrences.c.last_for))
    assert [(row.outcome, row.last_for) for row in rows] == [("enqueued", instant) for instant in due]
    assert len(done) == len(due)


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("change", [{}, {"cron": "*/2 * * * *"}, {"name": "t", "renamed_from": "s"}])
def test_schedules_that_are_taken_over_from_cron_begin_at_that_tick(
    host: Host, database: Database, clock: FakeClock, ask: Any, done: list[Any], paused: bool, change: dict[str, Any]
) -> None:
    """Swap, restore two minutes later, swap again: cron has run what came in between, and runs nothing from now on."""
    first = A["s"]
    host.carry(schedules=A)
    host.tick()
    clock.advance(MINUTE)
    host.tick()
    assert len(done) == 1
    if paused:
        with database.write() as connection:
            schedules.pause(connection, scope="all", name="", until=None, by="ada", why=None, now=clock.now())
    clock.advance(3 * MINUTE)
    again = replace(first, **change)
    host.carry(schedules={again.name: again})
    assert host.tick(run_by_cron=[again.name]).trouble is None
    with database.write() as connection:
        schedules.resume(connection, scope="all", name="", now=clock.now())
    clock.advance(timedelta(seconds=1))
    host.tick()
    assert len(done) == 1
    clock.advance(MINUTE)
    host.tick()
    clock.advance(MINUTE)
    host.tick()
    assert len(done) == (2 if "cron" in change else 3)
    rows = ask(
        select(occurrences.c.outcome, occurrences.c.count, occurrences.c.reason).order_by(occurrences.c.last_for)
    )
    assert [(row.outcome, row._mapping["count"]) for row in rows][:3] == [
        ("enqueued", 1),
        ("skipped", 3),
        ("enqueued", 1),
    ]
    assert rows[1].reason.startswith("cron itself ran this line")


@pytest.mark.parametrize("catch_up", ["none", "latest", "all"])
def test_a_line_that_went_back_to_cron_runs_no_more(
    host: Host, clock: FakeClock, done: list[Any], catch_up: Any
) -> None:
    """Restore, then take the schedule out of the file: cron has run what was due before the edit."""
    host.carry(schedules={"s": replace(A["s"], catch_up=catch_up)} | files("0 0 29 2 *", other="0 0 29 2 *"))
    host.tick()
    clock.advance(MINUTE)
    host.carry(schedules=files("0 0 29 2 *", other="0 0 29 2 *"))
    assert host.tick(run_by_cron=["s", "no schedule"]).trouble is None
    clock.advance(MINUTE)
    host.tick()
    assert done == []


def test_nothing_fires_while_a_schedule_that_is_taken_over_cannot_begin(
    host: Host, clock: FakeClock, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    host.carry(schedules=A)
    host.tick()
    clock.advance(MINUTE)
    of_tick = "cronjobs.engine.schedules.materialise.skip_runs_of_cron"
    monkeypatch.setattr(of_tick, lambda *_, **__: False)  # another session holds the schedule
    held = host.tick(budget_s=1, run_by_cron=["s"])
    assert (held.exit_code(), done) == (4, [])
    assert "was locked by another connection" in str(held.trouble)
    monkeypatch.setattr(of_tick, lambda *_, **__: 1 / 0)
    assert (host.tick(run_by_cron=["s"]).exit_code(), done) == (70, [])


def test_a_refused_file_is_refused_again_until_someone_decides(database: Database, host: Host, ask: Any) -> None:
    host.carry(schedules=files("* * * * *", a="* * * * *", b="* * * * *", c="* * * * *"))
    host.tick()
    host.carry(schedules=files("* * * * *"))
    for _ in range(2):
        result = host.tick()
        assert result.exit_code() == 3
    assert len(ask(select(schedules_table).where(schedules_table.c.status == "active"))) == 4
    assert "--allow-removals" in host.said("config.fault")[0].facts["error"]


# --- whose database it is ---------------------------------------------------------------------------------------------


def test_the_first_tick_claims_the_database_for_its_project(host: Host, ask: Any) -> None:
    host.carry(project="shop", environment="production")
    host.tick()
    assert ask(select(meta_table.c.project, meta_table.c.environment)) == [("shop", "production")]


@pytest.mark.parametrize("theirs", [("shop", "staging"), ("blog", "production"), ("", "")])
def test_a_database_of_another_project_or_environment_is_not_touched(
    database: Database, host: Host, ask: Any, done: list[Any], theirs: tuple[str, str]
) -> None:
    with database.write() as connection:
        meta.adopt(connection, "shop", "production", actor="test")
    put(database)
    host.carry(project=theirs[0], environment=theirs[1])
    with pytest.raises(ForeignDatabase, match="cronjobs db adopt"):
        host.tick()
    assert done == []
    assert ask(select(func.count()).select_from(ticks)) == [(0,)]


# --- what it does -----------------------------------------------------------------------------------------------------


def test_an_idle_tick_is_one_row(host: Host, ask: Any) -> None:
    host.tick()
    before = {table.name: ask(select(func.count()).select_from(table)) for table in (jobs_table, audit, occurrences)}
    host.tick()
    assert {
        table.name: ask(select(func.count()).select_from(table)) for table in (jobs_table, audit, occurrences)
    } == before
    rows = ask(select(ticks.c.host, ticks.c.ended, ticks.c.did, ticks.c.finished_at >= ticks.c.started_at))
    assert [tuple(row) for row in rows] == [("alpha", "nothing is due", {}, True)] * 2


def test_a_paused_system_claims_nothing_and_running_jobs_go_on(
    database: Database, host: Host, done: list[Any], clock: FakeClock
) -> None:
    put(database)
    with database.write() as connection:
        schedules.pause(connection, scope="all", name="", until=None, by="ada", why="3 a.m.", now=clock.now())
    host.tick()
    assert done == []
    with database.write() as connection:
        schedules.resume(connection, scope="all", name="", now=clock.now())
    host.tick()
    assert done == ["x"]


def test_a_paused_queue_hides_no_other_queue(database: Database, host: Host, done: list[Any], clock: FakeClock) -> None:
    put(database, queue="mail", payload={"line": "mail"}, priority=0)
    put(database, queue="default", payload={"line": "default"})
    with database.write() as connection:
        schedules.pause(connection, scope="queue", name="mail", until=None, by="ada", why=None, now=clock.now())
    host.tick()
    assert done == ["default"]


def test_a_job_of_unknown_type_waits_and_spends_no_attempt(database: Database, host: Host, ask: Any) -> None:
    put(database, job_type="os:system", payload={"command": "touch owned"})
    put(database, job_type="t.say")
    result = host.tick()
    rows = ask(select(jobs_table.c.job_type, jobs_table.c.status, jobs_table.c.attempts).order_by(jobs_table.c.id))
    assert [tuple(row) for row in rows] == [("os:system", "queued", 0), ("t.say", "succeeded", 1)]
    assert [event.facts["job_type"] for event in host.said("jobs.unresolved")] == ["os:system"]
    assert result.exit_code() == 3


def test_a_row_with_a_timeout_that_no_job_can_have_dies_with_the_reason(
    database: Database, host: Host, ask: Any
) -> None:
    put(database, timeout_s=31 * 86400.0)
    assert host.tick().exit_code() == 1
    [row] = ask(select(jobs_table.c.status, jobs_table.c.last_error))
    assert row.status == "dead"
    assert "more than the longest timeout, 30 days" in row.last_error


@pytest.mark.parametrize(("fail_on", "code"), [("dead", 0), ("any", 1), ("never", 0)])
def test_a_job_that_will_retry_is_an_exit_code_only_if_asked_for(
    database: Database, host: Host, fail_on: str, code: int
) -> None:
    put(database, job_type="t.fail")
    assert host.tick().exit_code(fail_on) == code


@pytest.mark.parametrize(("fail_on", "code"), [("dead", 1), ("any", 1), ("never", 0)])
def test_a_death_is_exit_code_one_unless_asked_not_to(database: Database, host: Host, fail_on: str, code: int) -> None:
    put(database, job_type="t.fail", max_attempts=1)
    assert host.tick().exit_code(fail_on) == code


def test_limits_narrow_a_tick(database: Database, host: Host, done: list[Any]) -> None:
    for number in range(3):
        put(database, payload={"line": f"d{number}"})
    put(database, queue="mail", payload={"line": "mail"})
    put(database, job_type="t.fail")
    host.tick(queue="mail")
    assert done == ["mail"]
    host.tick(only="t.say", jobs=2)
    assert sorted(done) == ["d0", "d1", "mail"]


def test_jobs_run_in_order_with_one_worker(database: Database, host: Host, done: list[Any], clock: FakeClock) -> None:
    host.carry(run=RunSettings(workers=1))
    wanted: list[str] = []
    for priority, minutes_ago, queue in [(5, 3, "a"), (5, 1, "b"), (0, 1, "b"), (9, 9, "a"), (5, 2, "b"), (5, 3, "b")]:
        line = f"{priority}-{9 - minutes_ago}-{len(wanted)}"
        put(database, priority=priority, run_at=clock.now() - minutes_ago * MINUTE, queue=queue, payload={"line": line})
        wanted.append(line)
    host.tick()
    assert done == sorted(wanted)


# --- pruning ----------------------------------------------------------------------------------------------------------

OLD = timedelta(days=200)


def finished(database: Database, ago: timedelta, status: str = "succeeded", **values: Any) -> int:
    then = database.clock.now() - ago
    job_id = put(database, status=status, finished_at=then, run_at=then, created_at=then, attempts=1, **values)
    with database.write() as connection:
        row = {
            "job_id": job_id,
            "attempt": 1,
            "outcome": "succeeded",
            "started_at": then,
            "finished_at": then,
            "runner": "r",
        }
        connection.execute(insert(job_runs).values(row))
    return job_id


def test_old_rows_go_by_their_retention(database: Database, host: Host, ask: Any) -> None:
    host.carry(retention=Retention(succeeded=timedelta(days=14), dead=timedelta(days=90)))
    kept = [finished(database, timedelta(days=13)), finished(database, timedelta(days=80), "dead")]
    finished(database, timedelta(days=15))
    finished(database, timedelta(days=91), "dead")
    finished(database, timedelta(days=91), "cancelled")
    waiting = put(database, run_at=database.clock.now() - OLD, job_type="nobody.knows")
    host.tick()
    assert [row.id for row in ask(select(jobs_table.c.id).order_by(jobs_table.c.id))] == [*kept, waiting]
    assert {row.job_id for row in ask(select(job_runs.c.job_id))} == set(kept)


def test_a_key_stays_spent_after_its_job_was_pruned(database: Database, host: Host, ask: Any) -> None:
    job_id = finished(
        database, timedelta(days=100), idempotency_key="order-1", payload={"secret": "x"}, result={"r": 1}
    )
    host.tick()
    [row] = ask(select(jobs_table))
    assert (row.id, row.payload, row.result, row.idempotency_key) == (job_id, {}, None, "order-1")
    assert ask(select(job_runs)) == []
    with database.write() as connection:
        again = enqueue(connection, "t.say", idempotency_key="order-1")
    assert (again.id, again.new) == (job_id, False)


def test_a_job_that_was_pruned_but_for_its_key_is_not_run_again_without_its_payload(
    database: Database, host: Host, ask: Any
) -> None:
    """Somebody would retry it by its id, or all that are dead; nobody knows any more what it was to do."""
    age = timedelta(days=100)
    job_id = finished(database, age, "dead", idempotency_key="order-1", payload={"invoice": 7})
    kept_id = finished(database, timedelta(days=1), "dead", idempotency_key="order-2", payload={"invoice": 8})
    host.tick()
    with database.write() as connection:
        states = operating.states(connection, [job_id, kept_id])
        assert [states[id_].stripped for id_ in (job_id, kept_id)] == [True, False]
        changed = operating.retry(connection, [job_id, kept_id], operating.OperatorAction("retry", "ada", "here", None))
    assert changed.done == {kept_id}
    assert [row.status for row in ask(select(jobs_table.c.status).order_by(jobs_table.c.id))] == ["dead", "queued"]


def test_an_overdue_retry_that_somebody_retries_keeps_its_place(database: Database, ask: Any, clock: FakeClock) -> None:
    waiting = {"status": "failed", "attempts": 1, "failures": 1}
    overdue, ahead = clock.now() - timedelta(minutes=7), clock.now() + timedelta(minutes=7)
    ids = [put(database, run_at=at, **waiting) for at in (overdue, ahead)]
    with database.write() as connection:
        act = operating.OperatorAction("retry", "ada", "here", None)
        assert operating.retry(connection, ids, act).done == {*ids}
        now = database_now(connection)
    rows = ask(select(jobs_table).order_by(jobs_table.c.id))
    assert [(row.run_at, row.status, row.failures) for row in rows] == [(overdue, "queued", 0), (now, "queued", 0)]


def test_a_key_goes_at_last(database: Database, host: Host, ask: Any) -> None:
    finished(database, timedelta(days=366), idempotency_key="order-1")
    host.tick()
    assert ask(select(jobs_table)) == []


def test_occurrences_are_never_pruned_above_the_watermark(
    database: Database, host: Host, ask: Any, clock: FakeClock
) -> None:
    host.carry(schedules=B)
    host.tick()
    old = clock.now() - OLD
    with database.write() as connection:
        [schedule_id] = connection.execute(select(schedules_table.c.id)).scalars()
        connection.execute(update(schedules_table).values(seen_until=old))
        for instant in (old - MINUTE, old + MINUTE):
            row = {"schedule_id": schedule_id, "first_for": instant, "last_for": instant, "outcome": "missed"}
            connection.execute(insert(occurrences).values(row))
        connection.execute(update(meta_table).values(pruned_at=None))
        connection.execute(update(schedules_table).values(status="retired", next_at=None))
    host.carry(schedules=B)
    host.tick()
    assert [row.last_for for row in ask(select(occurrences.c.last_for))] == [old + MINUTE]


def test_after_a_jump_of_the_clock_nothing_is_pruned_for_an_hour(
    database: Database, host: Host, ask: Any, clock: FakeClock
) -> None:
    host.tick()
    job_id = finished(database, timedelta(days=1))
    clock.advance(timedelta(days=3650))
    host.tick()
    clock.advance(timedelta(minutes=30))
    host.tick()
    assert [row.id for row in ask(select(jobs_table.c.id))] == [job_id]
    clock.advance(timedelta(minutes=31))
    host.tick()
    assert ask(select(jobs_table.c.id)) == []


def test_old_effects_go_by_their_own_retention(database: Database, host: Host, ask: Any, clock: FakeClock) -> None:
    with database.write() as connection:
        for key, days in (("old", 366), ("new", 364)):
            connection.execute(insert(effects_table).values(key=key, begun_at=clock.now() - timedelta(days=days)))
    host.tick()
    assert [row.key for row in ask(select(effects_table.c.key))] == ["new"]


def test_the_audit_trail_says_who_did_what(database: Database, ask: Any) -> None:
    with database.write() as connection:
        record(connection, action="pause", subject="all", actor="ada", why="deploy", detail={"until": None})
    [row] = ask(select(audit))
    assert (row.action, row.subject, row.actor, row.why, row.detail) == (
        "pause",
        "all",
        "ada",
        "deploy",
        {"until": None},
    )


def test_a_fingerprint_is_the_same_for_the_same_file(host: Host) -> None:
    assert fingerprint(host.carry(schedules=A)) == fingerprint(host.carry(schedules=dict(A)))
    assert fingerprint(host.carry(schedules=A)) != fingerprint(host.carry(schedules=B))


# --- clocks -----------------------------------------------------------------------------------------------------------

WRONG = [timedelta(seconds=1), timedelta(seconds=59), timedelta(minutes=5), timedelta(days=1), timedelta(days=3650)]


@pytest.mark.parametrize("wrong", [sign * by for by in WRONG for sign in (1, -1)], ids=str)
def test_a_hosts_wrong_clock_decides_nothing_and_is_told_when_it_is_far_off(
    database: Database, host: Host, clock: FakeClock, ask: Any, done: list[Any], wrong: timedelta
) -> None:
    host.carry(schedules=A)
    host.tick()
    put(database, run_at=START + timedelta(hours=1), payload={"line": "later"})
    for minute in (1, 2):
        clock.set(START + minute * MINUTE)
        host.clock = FakeClock(clock.now() + wrong)  # this host's; the database's is right
        host.tick()
    rows = ask(select(occurrences.c.outcome, occurrences.c.last_for).order_by(occurrences.c.last_for))
    assert [tuple(row) for row in rows] == [("enqueued", START.replace(second=0) + n * MINUTE) for n in (1, 2)]
    assert done == ["x"] * 2
    assert bool(host.said("clock.skew")) == (abs(wrong) > timedelta(seconds=60))
    began = ask(select(ticks.c.started_at).order_by(ticks.c.id.desc()).limit(1))[0].started_at
    assert abs(began - clock.now()) < timedelta(seconds=5)


def test_ticks_late_twice_five_at_once_or_not_for_a_week_settle_each_occurrence_once(
    database: Database, host: Host, clock: FakeClock, ask: Any, done: list[Any]
) -> None:
    host.carry(schedules=A)
    host.tick()
    for pause in (timedelta(seconds=95), timedelta(0), timedelta(seconds=5), timedelta(days=7), timedelta(0), MINUTE):
        clock.advance(pause)
        for _ in range(5):
            host.tick()
    counted = occurrences.c["count"]
    rows = ask(select(occurrences.c.outcome, func.sum(counted)).group_by(occurrences.c.outcome))
    settled = dict(tuple(row) for row in rows)
    minutes = (clock.now().replace(second=0, microsecond=0) - START.replace(second=0)) // MINUTE
    assert sum(int(count) for count in settled.values()) == minutes
    assert len(done) == int(settled["enqueued"]) == 3


def test_a_tick_with_nothing_to_do_beside_a_running_long_job_loads_no_engine(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: object) -> None:
        raise AssertionError("the loop and the handlers were imported")

    host, here = Host(database, tmp_path), Identity.here()
    host.tick()  # loads the handlers, as once an hour
    alive = Identity(host.name, here.boot_id, here.pid_namespace, here.pid, here.started, "long-0123456789ab")
    now = database.clock.now()
    put(database, status="running", attempts=1, locked_by=str(alive), locked_until=now + timedelta(seconds=50))
    monkeypatch.setattr("cronjobs.engine.tick.work.Work", loaded)
    result = host.tick()
    assert (result.ended, result.exit_code()) == (NOTHING_DUE, 0)


def test_the_start_of_each_attempt_is_told_with_its_worker_before_its_end(database: Database, host: Host) -> None:
    ids = [put(database, payload={"line": str(n)}) for n in range(5)]
    unfit = put(database, payload={"other": 1})  # none of this job's code runs
    host.tick()
    for job_id in ids:
        told = [event for event in host.events if event.facts.get("job_id") == job_id]
        assert [event.name for event in told] == ["job.claimed", "job.started", "job.succeeded"]
        start, end = told[1:]
        assert start.facts == {"job_id": job_id, "job_type": "t.say", "worker": end.facts["worker"], "attempt": 1}
        assert start.facts["worker"] in ("1", "2")
        assert not start.printed  # thousands in a drain: for the log, not for a terminal
    assert unfit not in [event.facts["job_id"] for event in host.said("job.started")]


@pytest.mark.either
@pytest.mark.parametrize("lingers", [True, False])
def test_a_full_tick_of_a_lingering_one_takes_a_repeated_signal_as_one(
    host: Host, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, lingers: bool
) -> None:
    monkeypatch.setattr(Tick, "run", lambda self: self)
    monkeypatch.setattr(timer, "_given", 50.0 if lingers else None)
    tick: Any = host.tick()
    stops = list[str]()
    tick._work_here = SimpleNamespace(loop=SimpleNamespace(stop=stops.append))
    for _ in range(2):
        tick._on_signal(signal.SIGTERM, None)
    assert len(stops) == (1 if lingers else 2)
    stops.clear()
    clock.advance(timedelta(seconds=SAME_SIGNAL_S))
    tick._on_signal(signal.SIGTERM, None)
    assert len(stops) == 1, "a person asks again"
