"""A payload that does not fit its handler waits, without using tries, until all hosts' code has refused it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update
from support.cases import judge
from support.hosts import Host, put

from cronjobs.desk.insight.explain_job import explain_job
from cronjobs.desk.insight.explain_named import explain_id
from cronjobs.desk.insight.findings_of_work import work_findings
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.job_evidence import job_life
from cronjobs.desk.insight.same_cause import SameCause
from cronjobs.desk.store.history import deaths_since
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import job_runs, job_type_lists, jobs, ticks
from cronjobs.engine.jobs import job_types, registry
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.store import schedules
from cronjobs.engine.store.operating import OperatorAction, retry
from cronjobs.engine.tick import give_up_misfits as outlived
from cronjobs.engine.tick import work
from cronjobs.testing import FakeClock

START = datetime(2026, 11, 24, 8, 0, 30, tzinfo=UTC)
LATELY, DAY, WAIT = timedelta(minutes=15), timedelta(hours=24), timedelta(minutes=5)
MINUTE = timedelta(seconds=61)  # what a tick does takes a moment, by which a wait ends after the full minute
MOMENT = timedelta(seconds=1)
TYPE = "t.pay"


@dataclass(frozen=True)
class Version:
    """A version of the user's code: whether it has a handler for the type, and whether that takes the payload."""

    name: str
    knows: bool = True
    takes: bool = False


@dataclass
class Fleet:
    """Hosts that tick on one database, each with the version that was deployed there last."""

    database: Database
    clock: FakeClock
    folder: Path
    patch: pytest.MonkeyPatch
    ticked: list[tuple[datetime, Version]] = field(default_factory=list)

    def tick(self, name: str, version: Version, *, only_so_many: Sequence[Limit] = (), **limits: Any) -> Host:
        registry._registered.clear()
        registry.job("t.other")(lambda: None)
        if version.takes:
            registry.job(TYPE)(lambda amount: None)
        elif version.knows:
            registry.job(TYPE)(lambda amount, currency: None)
        self.patch.setattr(work, "source_hash", lambda _settings: version.name)
        self.ticked.append((self.clock.now(), version))
        host = Host(self.database, self.folder, name)
        host.carry(limits=only_so_many)
        host.tick(**limits)
        return host

    def add(self, **values: Any) -> int:
        return put(self.database, job_type=TYPE, payload={"amount": 1}, **values)

    def job(self, job_id: int) -> Any:
        with self.database.read() as connection:
            return connection.execute(select(jobs).where(jobs.c.id == job_id)).one()

    def refused(self, job_id: int) -> int:
        with self.database.read() as connection:
            return len(connection.execute(select(job_runs).where(job_runs.c.job_id == job_id)).all())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def fleet(database: Database, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    before = dict(registry._registered)
    yield Fleet(database, clock, tmp_path, monkeypatch)
    registry._registered.clear()
    registry._registered.update(before)


OLD, NEW, PATCHED = Version("old"), Version("new", takes=True), Version("patched")
OTHER = Version("other", knows=False)


def test_alone_it_is_refused_each_five_minutes_and_dead_after_fifteen_uncharged(fleet: Fleet) -> None:
    job_id = fleet.add()
    for minute in range(30):
        fleet.tick("alpha", OLD)
        job = fleet.job(job_id)
        assert job.failures == 0
        assert abs(job.misfit_since - START) < MOMENT
        assert (job.status, job.attempts) == ("failed" if minute < 15 else "dead", 1 + min(minute, 15) // 5)
        fleet.clock.advance(MINUTE)
    assert job.last_error.startswith("payload does not fit t.pay(amount, currency): missing a required argument")
    assert job.last_error.endswith("every version of the code that ran ticks in that time has refused it")


def test_a_half_finished_deploy_keeps_it_alive_until_the_new_host_takes_it(fleet: Fleet) -> None:
    job_id = fleet.add()
    for _ in range(60):
        fleet.tick("alpha", OLD)  # the old version ticks first each minute, so the new one never gets the job
        fleet.tick("beta", NEW)
        fleet.clock.advance(MINUTE)
    assert fleet.job(job_id).status == "failed"
    fleet.clock.advance(WAIT)
    fleet.tick("beta", NEW)
    assert (fleet.job(job_id).status, fleet.job(job_id).misfit_since) == ("succeeded", None)


def test_a_host_that_is_deployed_while_it_is_idle_keeps_it_alive_from_its_first_tick_on(fleet: Fleet) -> None:
    fleet.tick("beta", OLD)
    job_id = fleet.add()
    for minute in range(36):
        fleet.tick("alpha", OLD)
        if 13 <= minute <= 18:
            fleet.tick("beta", NEW)  # the new version finds nothing to do
        assert fleet.job(job_id).status == ("failed" if minute < 35 else "dead"), minute
        fleet.clock.advance(MINUTE)


def test_containers_under_new_names_of_one_version_neither_keep_it_alive_nor_let_it_die_early(fleet: Fleet) -> None:
    job_id = fleet.add()
    for minute in range(17):
        fleet.tick(f"pod-{minute}", OLD)
        assert fleet.job(job_id).status == ("failed" if minute < 15 else "dead"), minute
        fleet.clock.advance(MINUTE)


def test_attempts_of_other_jobs_do_not_count(fleet: Fleet) -> None:
    job_id = fleet.add()
    for minute in range(60):
        if minute % 5 == 1:
            fleet.add()
            fleet.tick("beta", PATCHED)  # refuses another job of the type each time
        fleet.tick("alpha", OLD)
        fleet.clock.advance(MINUTE)
    assert fleet.job(job_id).status == "failed"


def test_hosts_that_do_not_know_the_type_have_no_say(fleet: Fleet) -> None:
    job_id = fleet.add()
    for _ in range(16):
        fleet.tick("beta", OTHER)
        fleet.tick("alpha", OLD)
        fleet.clock.advance(MINUTE)
    assert fleet.job(job_id).status == "dead"


def test_a_tick_whose_code_is_unknown_may_be_the_one_that_takes_it(fleet: Fleet) -> None:
    job_id = fleet.add()
    for minute in range(32):
        fleet.tick("alpha", OLD)
        if minute == 10:
            with fleet.database.write() as connection:  # killed before it had loaded its handlers
                row = {"tick": "killed", "host": "gone", "pid": 1, "version": "0", "started_at": fleet.clock.now()}
                connection.execute(ticks.insert().values(row))
        assert fleet.job(job_id).status == ("failed" if minute < 25 else "dead"), minute
        fleet.clock.advance(MINUTE)


def test_after_a_day_it_is_dead_whatever_ticks(fleet: Fleet) -> None:
    job_id = fleet.add()
    fleet.tick("alpha", OLD)
    for waited in (DAY - MINUTE, 6 * MINUTE):
        assert fleet.job(job_id).status == "failed"
        fleet.clock.advance(waited)
        fleet.tick("beta", NEW, queue="another")  # this version could take the job, but looks only at another queue
        fleet.tick("alpha", OLD)
    assert fleet.job(job_id).status == "dead"
    assert fleet.job(job_id).last_error.endswith("given up: no code has accepted it for 24 hours")


def its_handler_is_gone(fleet: Fleet) -> Host:
    return fleet.tick("alpha", OTHER)


def its_queue_is_paused(fleet: Fleet) -> Host:
    with fleet.database.write() as connection:
        now = fleet.clock.now()
        schedules.pause(connection, scope="queue", name="default", until=None, by="ada", why=None, now=now)
    return fleet.tick("alpha", OLD)


def its_limit_is_full(fleet: Fleet) -> Host:
    return fleet.tick("alpha", OLD, only_so_many=[Limit("smtp", most=0)])


def no_tick_looks_for_it(fleet: Fleet) -> Host:
    return fleet.tick("alpha", OLD, queue="another")


@pytest.mark.parametrize("tick", [its_handler_is_gone, its_queue_is_paused, its_limit_is_full, no_tick_looks_for_it])
def test_after_a_day_it_is_dead_though_no_tick_may_claim_it(fleet: Fleet, tick: Callable[[Fleet], Host]) -> None:
    job_id, other = fleet.add(concurrency_key="smtp"), fleet.add(run_at=START + 2 * DAY)
    fleet.tick("alpha", OLD)
    fleet.clock.advance(DAY - MINUTE)
    tick(fleet)
    assert fleet.job(job_id).status == "failed"
    fleet.clock.advance(2 * MINUTE)
    host = tick(fleet)
    job = fleet.job(job_id)
    assert (job.status, job.attempts, job.failures) == ("dead", 1, 0)
    assert abs(job.finished_at - fleet.clock.now()) < MOMENT
    assert "missing a required argument: 'currency'; given up: no code has accepted it for 24 hours" in job.last_error
    [event] = host.said("job.dead")
    assert (event.facts["job_id"], event.facts["error"]) == (job_id, job.last_error)
    assert fleet.job(other).status == "queued"
    with fleet.database.read() as connection:
        seen = look(connection, host.settings, job_types.load(host.settings))
        found = {each.kind: each for each in work_findings(seen, host.settings.run, SameCause())}
        life = job_life(connection, job_id, host.settings, lambda: job_types.load(host.settings))
        [death] = deaths_since(connection, START, 10)
    assert found["dead"].rows == (str(job_id),)
    assert "misfit" not in found
    assert (death.job_id, death.error) == (job_id, job.last_error)
    assert life is not None
    assert "no code has accepted it for 24 hours" in " ".join(explain_job(life).sentences)
    retry = f'only if someone types "cronjobs jobs retry {job_id}", and fails again unless its handler or its payload'
    assert retry in explain_job(life).sentences[-1]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # SQLite locks no single row
def test_a_row_that_somebody_has_locked_keeps_no_tick_waiting(fleet: Fleet) -> None:
    first, second = fleet.add(), fleet.add()
    fleet.tick("alpha", OLD)
    fleet.clock.advance(DAY + MINUTE)
    with fleet.database.write() as connection:
        connection.execute(select(jobs).where(jobs.c.id == first).with_for_update())
        its_handler_is_gone(fleet)
        assert [fleet.job(each).status for each in (first, second)] == ["failed", "dead"]
    its_handler_is_gone(fleet)
    assert fleet.job(first).status == "dead"


def test_thousands_are_given_up_in_short_transactions(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlived, "BATCH", 3)
    found = [fleet.add() for _ in range(7)]
    fleet.tick("alpha", OLD)
    fleet.clock.advance(DAY + MINUTE)
    its_handler_is_gone(fleet)
    assert {fleet.job(each).status for each in found} == {"dead"}


def test_a_retry_by_hand_and_code_that_takes_it_begin_anew(fleet: Fleet) -> None:
    job_id = fleet.add()
    for _ in range(16):
        fleet.tick("alpha", OLD)
        fleet.clock.advance(MINUTE)
    assert fleet.job(job_id).status == "dead"
    fleet.clock.advance(DAY)
    with fleet.database.write() as connection:
        assert retry(connection, [job_id], OperatorAction("retry", "ada", "alpha", None)).done == {job_id}
    fleet.tick("alpha", OLD)
    assert fleet.job(job_id).status == "failed"
    assert abs(fleet.job(job_id).misfit_since - fleet.clock.now()) < MOMENT
    with fleet.database.write() as connection:
        connection.execute(update(jobs).values(payload={"amount": 1, "currency": "EUR"}))
    fleet.clock.advance(WAIT + MOMENT)
    fleet.tick("alpha", OLD)
    assert fleet.job(job_id).status == "succeeded"


def test_status_and_explain_say_what_does_not_fit_and_how_long_it_waits(fleet: Fleet) -> None:
    first, second = fleet.add(), fleet.add()
    fleet.tick("alpha", OLD)
    settings = Host(fleet.database, fleet.folder).settings
    with fleet.database.read() as connection:
        [found] = work_findings(look(connection, settings, job_types.load(settings)), settings.run, SameCause())
        life = job_life(connection, first, settings, lambda: job_types.load(settings))
    assert (found.key, found.command, found.rows) == ("misfit:t.pay", f"cronjobs explain {first}", (str(second),))
    what = "t.pay(amount, currency): missing a required argument: 'currency'"
    assert found.text == f"the payloads of 2 jobs do not fit the handler of t.pay: {what}"
    assert abs((found.since or START) - START) < MOMENT
    assert life is not None
    said = explain_job(life).sentences
    assert what in said[-4]
    assert said[-3].startswith(f"Job {first} waits for code that accepts its payload, due at 08:05:")
    assert said[-2].startswith(f'After a deploy of such code, "cronjobs jobs retry {first}" starts the job')
    assert said[-1].startswith("The job dies at its first try after 08:15:")
    assert "has refused the payload by then. Otherwise the job dies after 2026-11-25 08:" in said[-1]


def test_status_says_that_payloads_do_not_fit_for_several_reasons(fleet: Fleet) -> None:
    for _ in range(3):
        fleet.add()
    fleet.tick("alpha", OLD)
    with fleet.database.write() as connection:
        other = "payload does not fit t.pay: payload.amount is not an int"
        connection.execute(update(jobs).where(jobs.c.id == 2).values(last_error=other))
    settings = Host(fleet.database, fleet.folder).settings
    with fleet.database.read() as connection:
        [found] = work_findings(look(connection, settings, job_types.load(settings)), settings.run, SameCause())
    what = "t.pay(amount, currency): missing a required argument: 'currency'"
    assert found.text == (f"the payloads of 3 jobs do not fit the handler of t.pay, for 2 reasons; one of them: {what}")


def test_whatever_versions_tick_in_whatever_order_it_dies_when_all_have_refused_it_and_never_sooner(
    fleet: Fleet,
) -> None:
    def case(dice: random.Random) -> None:
        with fleet.database.write() as connection:
            for table in (job_runs, jobs, ticks, job_type_lists):
                connection.execute(delete(table))
        fleet.ticked.clear()
        fleet.clock.advance(DAY)
        versions = [Version(f"v{n}", knows=dice.random() < 0.8) for n in range(dice.randint(1, 3))]
        if dice.random() < 0.2:
            versions.append(Version("takes", takes=True))
        deployed = {name: dice.choice(versions) for name in ("alpha", "beta", "gamma")[: dice.randint(1, 3)]}
        containers = dice.random() < 0.3
        job_id, first, refused_by = fleet.add(), None, set[str]()
        for step in range(dice.randint(10, 40)):
            fleet.clock.advance(dice.choice([MINUTE] * 6 + [WAIT + MOMENT, 3 * MINUTE, DAY / 3 + MOMENT]))
            if dice.random() < 0.1:
                deployed[dice.choice([*deployed])] = dice.choice(versions)
            for name in dice.sample([*deployed], dice.randint(1, len(deployed))):
                before, now, version = fleet.job(job_id), fleet.clock.now(), deployed[name]
                fleet.tick(f"{name}-{step}" if containers else name, version)
                job = fleet.job(job_id)
                assert job.failures == 0
                if first is not None and now - first >= DAY:
                    assert (job.status, job.attempts) == ("dead", before.attempts)
                    return
                if job.attempts == before.attempts:
                    assert job.status == before.status
                    continue
                if version.takes:
                    assert job.status == "succeeded"
                    return
                first = first or now
                refused_by.add(version.name)
                lately = {each.name for at, each in fleet.ticked if at >= now - LATELY and each.knows}
                is_over = now - first >= LATELY and lately <= refused_by
                assert (job.status == "dead") == is_over, (now - first, lately, refused_by)
                if job.status == "dead":
                    return
                assert job.status == "failed"
                assert max(abs(job.run_at - now - WAIT), abs(job.misfit_since - first)) < MOMENT

    judge(case, few=12)


def test_explain_does_not_take_the_next_try_for_the_instant_it_was_due(fleet: Fleet) -> None:
    """The row's ``run_at`` is that of the next try, as after every misfit."""
    job_id = fleet.add()
    fleet.tick("alpha", OLD)
    with fleet.database.read() as connection:
        told = explain_id(connection, job_id, Settings(file=fleet.folder / "f", folder=fleet.folder), JobTypes)
    assert told is not None
    assert "before it was due" not in " ".join(told.sentences)
