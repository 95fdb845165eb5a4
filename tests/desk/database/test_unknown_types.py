"""A job type that no tick has known lately is reported at once. A type that another host has is no fault."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from support.hosts import Host

from cronjobs.desk.insight.findings import troubles
from cronjobs.desk.insight.gathering import look
from cronjobs.engine.config.settings import ScheduleSettings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import job_type_lists, occurrences, ticks
from cronjobs.engine.database.tables import jobs as jobs_table
from cronjobs.engine.jobs import registry as jobs
from cronjobs.engine.jobs.job_types import load
from cronjobs.engine.store.job_types import ListUse, in_use, present_types, runnable_types
from cronjobs.testing import FakeClock

START = datetime(2026, 3, 2, 8, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    before = dict(jobs._registered)
    jobs._registered.clear()
    yield
    jobs._registered.clear()
    jobs._registered.update(before)


@pytest.fixture
def host(database: Database, tmp_path: Path) -> Host:
    know("t.say")
    return Host(database, tmp_path)


def know(*names: str) -> None:
    """From now on the handlers' modules register these types, and no others."""
    jobs._registered.clear()
    for name in names:
        jobs.job(name)(lambda: None)


def daily(job: str, name: str = "nightly") -> dict[str, ScheduleSettings]:
    return {name: ScheduleSettings(name=name, job=job, cron="0 3 * * *")}


def put(database: Database, **values: Any) -> int:
    now = database.clock.now()
    with database.write() as connection:
        row = {"job_type": "t.say", "run_at": now, "created_at": now} | values
        return int(connection.execute(insert(jobs_table).values(row).returning(jobs_table.c.id)).scalar_one())


def rows(database: Database, *columns: Any) -> list[Any]:
    with database.read() as connection:
        return [tuple(row) for row in connection.execute(select(*columns).order_by(columns[0].table.c.id)).all()]


def told(host: Host) -> list[tuple[str, Any]]:
    """The faults since the last call: job type and schedules."""
    found = [(event.facts["job_type"], event.facts["schedules"]) for event in host.said("jobs.unknown_type")]
    host.events.clear()
    return found


# --- a schedule -------------------------------------------------------------------------------------------------------


def test_a_misspelt_schedule_is_told_by_the_tick_that_applies_it_and_by_each_idle_one_until_it_is_mended(
    database: Database, host: Host, clock: FakeClock
) -> None:
    host.carry(schedules=daily("t.sya"))
    for _ in range(3):
        assert host.tick().exit_code() == 3
        assert told(host) == [("t.sya", ["nightly"])]
        clock.advance(MINUTE)
    host.carry(schedules=daily("t.say"))
    assert (host.tick().exit_code(), told(host)) == (0, [])
    clock.advance(MINUTE)
    assert (host.tick().exit_code(), told(host)) == (0, [])


def test_a_handler_that_comes_back_ends_the_fault_on_the_next_tick(host: Host, clock: FakeClock) -> None:
    host.carry(schedules=daily("t.renamed"))
    assert host.tick().exit_code() == 3
    know("t.say", "t.renamed")
    clock.advance(MINUTE)
    assert host.tick().exit_code() == 0
    clock.advance(MINUTE)
    assert (host.tick().exit_code(), told(host)[1:]) == (0, [])


def test_a_schedule_that_is_retired_needs_no_handler(host: Host, clock: FakeClock) -> None:
    host.carry(schedules=daily("t.gone") | daily("t.say", "other"))
    assert host.tick().exit_code() == 3
    host.carry(schedules=daily("t.say", "other"))
    clock.advance(MINUTE)
    assert (host.tick().exit_code(), told(host)[1:]) == (0, [])


def test_a_renamed_handler_stops_its_schedule_for_no_minute(database: Database, host: Host, clock: FakeClock) -> None:
    """The old job waits for another try, of a type that is gone; each later occurrence used to give way to it."""
    minutely = ScheduleSettings(name="s", job="t.old", cron="* * * * *")
    know("t.old")
    host.carry(schedules={"s": minutely})
    host.tick()
    with database.write() as connection:
        row = {"job_type": "t.old", "schedule": "s", "status": "failed", "run_at": START + timedelta(hours=1)}
        connection.execute(insert(jobs_table).values(row | {"created_at": START}))
    know("t.new")
    host.carry(schedules={"s": ScheduleSettings(name="s", job="t.new", cron="* * * * *")})
    for _ in range(3):
        clock.advance(MINUTE)
        host.tick()
    assert rows(database, jobs_table.c.job_type, jobs_table.c.status) == [
        ("t.old", "failed"),
        *[("t.new", "succeeded")] * 2,  # the first minute is the old definition's, and gave way to its job
    ]


def test_a_schedule_of_an_unknown_type_still_makes_its_jobs(database: Database, host: Host, clock: FakeClock) -> None:
    host.carry(schedules={"s": ScheduleSettings(name="s", job="t.sya", cron="* * * * *")})
    host.tick()
    for _ in range(2):
        clock.advance(MINUTE)
        assert host.tick().exit_code() == 3
    with database.read() as connection:
        assert list(connection.execute(select(occurrences.c.outcome)).scalars()) == ["enqueued"] * 2


@pytest.mark.parametrize("other_knows", [False, True])
def test_a_type_that_breaks_for_some_minutes(
    database: Database, host: Host, clock: FakeClock, tmp_path: Path, other_knows: bool
) -> None:
    """A waiting job costs the next occurrences their jobs only if another host can run it."""
    host.carry(schedules={"s": ScheduleSettings(name="s", job="t.say", cron="* * * * *")})
    host.tick()
    other = Host(database, tmp_path, "beta")
    if other_knows:
        other.tick()
    know()
    for _ in range(4):
        clock.advance(MINUTE)
        host.tick()
    assert rows(database, jobs_table.c.status) == [("queued",)] * (1 if other_knows else 4)
    know("t.say")
    for _ in range(4):
        host.tick()
    assert {status for (status,) in rows(database, jobs_table.c.status)} == {"succeeded"}


# --- a due job --------------------------------------------------------------------------------------------------------


def test_a_due_job_of_an_unknown_type_is_told_and_one_in_the_future_is_not(
    database: Database, host: Host, clock: FakeClock
) -> None:
    put(database, job_type="t.sya", run_at=START + timedelta(hours=1))
    put(database)
    assert (host.tick().exit_code(), told(host)) == (0, [])
    clock.advance(timedelta(hours=2))
    assert (host.tick().exit_code(), told(host)) == (3, [("t.sya", None)])
    assert (host.tick().exit_code(), told(host)) == (3, [("t.sya", None)])


# --- other hosts ------------------------------------------------------------------------------------------------------


def test_a_type_that_only_another_host_has_is_no_fault_while_that_host_ticks(
    database: Database, host: Host, clock: FakeClock, tmp_path: Path
) -> None:
    other = Host(database, tmp_path, "beta")
    know("r.report")
    put(database, job_type="r.report")
    assert other.tick().exit_code() == 0
    for _ in range(30):  # it has nothing to do, and loads no handlers; but it is there
        clock.advance(MINUTE)
        other.tick()
    know("t.say")
    put(database, job_type="r.report")
    put(database)
    assert (host.tick().exit_code(), told(host)) == (0, [])
    [entry] = rows(database, ticks.c.not_started)[-1][0]
    assert (entry["why"], entry["job_type"], entry["jobs"]) == ("other hosts", "r.report", 1)
    clock.advance(timedelta(minutes=9))
    assert (host.tick().exit_code(), told(host)) == (0, [])
    clock.advance(timedelta(minutes=9))
    assert (host.tick().exit_code(), told(host)) == (3, [("r.report", None)])


def test_after_a_quiet_night_what_the_last_ticks_knew_still_counts(
    database: Database, host: Host, clock: FakeClock
) -> None:
    put(database)
    host.tick()
    clock.advance(timedelta(hours=9))
    with database.read() as connection:
        assert runnable_types(connection) == frozenset(["t.say"])


def test_a_type_that_is_renamed_on_its_only_host_is_told_at_once(
    database: Database, host: Host, clock: FakeClock, tmp_path: Path
) -> None:
    other = Host(database, tmp_path, "beta")
    know("t.old")
    host.tick()
    put(database, job_type="t.old")
    know("t.new")
    clock.advance(MINUTE)
    assert (host.tick().exit_code(), told(host)) == (3, [("t.old", None)])
    [entry] = rows(database, ticks.c.not_started)[-1][0]
    assert entry["why"] == "unknown type"
    assert [text.partition(":")[0] for text in red(host)] == ["1 due job waits"]
    know("t.old")
    other.tick(queue="other")
    know("t.new")
    clock.advance(MINUTE)
    assert (host.tick().exit_code(), told(host)) == (0, [])  # that host has not been deployed yet
    assert red(host) == []


def test_two_lines_of_one_crontab_with_different_files_know_the_types_of_both(
    database: Database, host: Host, clock: FakeClock
) -> None:
    for job_type in ("t.one", "t.two", "t.one", "t.two"):
        host.carry(file=host.folder / f"{job_type}.yaml")
        know(job_type)
        put(database, job_type=job_type)
        clock.advance(MINUTE)
        host.tick()
    with database.read() as connection:
        assert present_types(connection) == frozenset(["t.one", "t.two"])


def test_an_idle_hosts_last_list_counts_as_long_as_it_ticks(database: Database, host: Host, clock: FakeClock) -> None:
    host.tick()
    for _ in range(30):
        clock.advance(MINUTE)
        host.tick()
    with database.read() as connection:
        assert present_types(connection) == frozenset(["t.say"])


@pytest.mark.parametrize(
    ("order", "present"),
    [("a", "a"), ("ab", "b"), ("aabb", "b"), ("aba", "ab"), ("abab", "ab"), ("aabbc", "c"), ("abcbc", "bc")],
)
def test_which_files_of_a_host_no_deploy_has_replaced(order: str, present: str) -> None:
    uses = [ListUse("beta", "z.yaml", "z", -2, -1)]
    uses += [ListUse("alpha", f"{name}.yaml", name, order.index(name), order.rindex(name)) for name in set(order)]
    assert in_use(uses) == {"z", *present}


# --- the record -------------------------------------------------------------------------------------------------------


def test_a_tick_that_loads_handlers_records_its_types_once_and_an_idle_one_none(
    database: Database, host: Host, clock: FakeClock
) -> None:
    host.tick()  # the first tick of a host loads the handlers in any case
    host.tick()
    for _ in range(2):
        put(database)
        host.tick()
    know("t.say", "t.more")
    put(database)
    host.tick()
    hashes = [hash_ for (hash_,) in rows(database, ticks.c.job_types)]
    assert hashes[1] is None
    assert hashes[0] == hashes[2] == hashes[3] != hashes[4]
    with database.read() as connection:
        lists = {row.hash: row.names for row in connection.execute(select(job_type_lists))}
    assert lists == {hashes[0]: ["t.say"], hashes[4]: ["t.more", "t.say"]}
    assert [on for (on,) in rows(database, ticks.c.schedules_on)] == [1] * 5


def test_even_an_idle_host_loads_its_handlers_once_an_hour(database: Database, host: Host, clock: FakeClock) -> None:
    """A deploy that changes only Python is noticed before the night."""
    for minutes in (0, 1, 58, 1, 1):
        clock.advance(timedelta(minutes=minutes))
        host.tick()
    assert [hash_ is not None for (hash_,) in rows(database, ticks.c.job_types)] == [True, False, False, True, False]


def test_the_record_of_a_tick_that_was_killed_counts(database: Database, host: Host) -> None:
    put(database)
    host.tick()
    with database.write() as connection:
        connection.execute(update(ticks).values(finished_at=None))
    with database.read() as connection:
        assert runnable_types(connection) == frozenset(["t.say"])


# --- status -----------------------------------------------------------------------------------------------------------


def red(host: Host) -> list[str]:
    """The alarms of status about unknown job types."""
    with host.database.read() as connection:
        found = troubles(look(connection, host.settings, load(host.settings)), host.settings)
    return [trouble.text for trouble in found if trouble.kind == "unresolved" and trouble.alarm]


def late(host: Host) -> int:
    with host.database.read() as connection:
        return look(connection, host.settings, load(host.settings)).waiting.total("late")


def test_status_is_red_at_once_for_a_due_job_and_a_schedule_and_neither_is_ever_late(
    database: Database, host: Host, clock: FakeClock
) -> None:
    host.carry(schedules=daily("t.sya"))
    put(database, job_type="t.gone")
    assert [text.partition(":")[0] for text in red(host)] == ["1 due job waits"]  # by what is registered here
    host.tick()
    assert [text.partition(":")[0] for text in red(host)] == ["1 due job waits", "schedule nightly cannot run"]
    clock.advance(timedelta(minutes=4))
    host.tick()
    assert late(host) == 0
    clock.advance(timedelta(minutes=20))
    host.tick()
    assert late(host) == 0
    know("t.say", "t.gone", "t.sya")
    host.tick()
    assert red(host) == []


def since(host: Host) -> datetime | None:
    with host.database.read() as connection:
        found = troubles(look(connection, host.settings, load(host.settings)), host.settings)
    [its] = [each.since for each in found if each.kind == "unresolved"]
    return its


@pytest.mark.parametrize("scheduled", [True, False])
def test_it_is_red_since_the_first_tick_without_the_type_or_since_work_for_it_is_due(
    database: Database, host: Host, clock: FakeClock, scheduled: bool
) -> None:
    """Ticks record their types once an hour: the last record that has the type may be an hour older."""
    know("t.say", "t.gone")
    host.carry(schedules=daily("t.gone") if scheduled else {})
    host.tick()
    clock.advance(timedelta(minutes=40))
    know("t.say")
    put(database)  # so that the tick loads the handlers
    gone = clock.now()
    host.tick()
    clock.advance(timedelta(minutes=20))
    due = clock.now()
    put(database, job_type="t.gone", run_at=due)
    clock.advance(timedelta(minutes=20))
    host.tick()
    found = since(host)
    assert found is not None
    assert timedelta(0) <= (gone if scheduled else due) - found < timedelta(seconds=1)  # its process was there before


def test_it_is_red_since_its_only_host_lost_the_type_and_not_since_another_one_ticked_without_it(
    database: Database, host: Host, clock: FakeClock, tmp_path: Path
) -> None:
    other = Host(database, tmp_path, "beta")
    host.carry(schedules=daily("r.report"))
    other.carry(schedules=daily("r.report"))
    for step in range(30):
        know("t.say", *(["r.report"] if step < 20 else []))
        put(database)  # so that it loads its handlers
        if step == 20:
            gone = clock.now()
        other.tick()
        clock.advance(MINUTE)
        know("t.say")
        put(database)
        host.tick()
        clock.advance(MINUTE)
    found = since(host)
    assert found is not None
    assert abs(found - gone) < timedelta(seconds=1)


def test_what_is_registered_here_and_ticks_do_not_know_is_red_once_a_tick_has_looked(
    database: Database, host: Host, clock: FakeClock
) -> None:
    """Cron's environment is not the shell's: a module that can be imported here may fail there."""
    put(database)
    host.tick()
    clock.advance(MINUTE)
    know("t.say", "t.new")
    put(database, job_type="t.new")
    assert red(host) == []  # no tick has come since
    know("t.say")
    clock.advance(timedelta(seconds=10))
    host.tick()
    know("t.say", "t.new")
    assert [text.partition(":")[0] for text in red(host)] == ["1 due job waits"]


def test_status_does_not_mind_a_type_that_only_another_host_has(
    database: Database, host: Host, clock: FakeClock, tmp_path: Path
) -> None:
    know("r.report")
    put(database, job_type="r.report")
    Host(database, tmp_path, "beta").tick()
    know("t.say")
    put(database, job_type="r.report")
    assert red(host) == []
    clock.advance(timedelta(minutes=3))
    assert late(host) == 1  # that host does not come for it
