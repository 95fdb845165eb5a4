"""One cause gives one finding. For random facts, no job and no type is in two findings, and no finding is lost."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.cases import judge

from cronjobs.desk.insight import findings
from cronjobs.desk.insight.check_config import TimeoutTooLong
from cronjobs.desk.insight.finding import Finding, together
from cronjobs.desk.insight.findings import acknowledged, troubles
from cronjobs.desk.insight.findings_of_schedules import schedule_findings
from cronjobs.desk.insight.findings_of_ticks import tick_findings
from cronjobs.desk.insight.findings_of_work import work_findings
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.same_cause import SameCause, failing_runs
from cronjobs.desk.insight.waiting import LateGroup, QueueFacts
from cronjobs.desk.insight.watched import KILLED_WITHIN, ScheduleWithoutRun, Watched
from cronjobs.desk.rules.occurrence_results import JobNow, OccurrenceResult, UnrunOccurrences, Why
from cronjobs.desk.store.failing_types import FailingType
from cronjobs.desk.store.schedule_health import ScheduleSurvey
from cronjobs.desk.store.status_facts import Deaths, Killed
from cronjobs.engine.config.load import DISABLED
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import Fault
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.store.acks import StoredAck
from cronjobs.engine.store.misfits import WaitingMisfits
from cronjobs.engine.store.schedules import StoredSchedule
from cronjobs.engine.tick.result import noted
from cronjobs.errors import Problem

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
OF_ONE_CAUSE = ("dead", "schedule", "failing", "not_run", "failing_type", "unresolved", "config", "behind")
TYPES = ["t.a", "t.b", "t.c"]
NO_MODULE = ("module shop.jobs", "cannot be imported: ModuleNotFoundError: No module named 'shop'")
SETTINGS = Settings(file=Path("cronjobs.yaml"), folder=Path())


@dataclass
class Facts:
    """Random ones, as rows might show them."""

    dice: random.Random
    last_id: int = 0

    def chance(self, one_in: int) -> bool:
        return self.dice.randrange(one_in) == 0

    def some(self, of: Collection[Any], least: int = 0) -> list[Any]:
        return self.dice.sample(sorted(of), self.dice.randint(least, len(of)))

    def job(self) -> JobNow:
        self.last_id += 1
        status = self.dice.choice(["queued", "failed", "failed", "running", "dead", "dead", "cancelled", "succeeded"])
        run_at = NOW + self.dice.choice([-HOUR, HOUR])
        more: dict[str, Any] = {
            "failures": self.dice.choice([0, 1, 3]),
            "dismissed": status == "dead" and self.chance(4),
        }
        return JobNow(self.last_id, status, self.dice.choice(TYPES), "default", run_at, **more)

    def health(self) -> Health:
        jobs = {f"s{number}": [self.job() for _ in range(self.dice.choice([1, 2, 4]))] for number in range(4)}
        definition: dict[str, Any] = {"job": "t.a"}
        schedules, lately, without_run, not_run = [], {}, {}, {}
        for number, (name, its) in enumerate(jobs.items()):
            own = definition | ({"warn_after_failures": 1} if self.chance(4) else {})
            next_at = NOW + self.dice.choice([-HOUR, HOUR, HOUR])
            schedules.append(StoredSchedule(number, name, own, "f", "active", NOW, next_at))
            rows = [(NOW - (place + 1) * HOUR, job) for place, job in enumerate(reversed(its))]
            lately[number] = [OccurrenceResult(number, at, at, "enqueued", None, at, job.id, job) for at, job in rows]
            if self.chance(2):
                without_run[name] = ScheduleWithoutRun("due 02:00", NOW - HOUR, tuple(self.some_jobs(its)))
            if (waiting := [job for job in its if job.waiting]) and self.chance(2):
                job = self.dice.choice(waiting)
                not_run[name] = (UnrunOccurrences(NOW - HOUR, "put off" if job.run_at > NOW else "waits", job),)
        dead = [job for its in jobs.values() for job in its if job.status == "dead" and not job.dismissed]
        last_of = {job_type: NOW - self.dice.choice([MINUTE, 5 * HOUR]) for job_type in self.some(TYPES)}
        more = [self.job().id for _ in last_of]
        unresolved = {job_type: self.dice.choice([1, 3]) for job_type in self.some(TYPES[1:])}
        watch = Watched(
            schedules=schedules,
            deaths=Deaths(len(dead) + len(more), NOW - HOUR, tuple([job.id for job in dead] + more), last_of),
            lately=lately,
            without_run=without_run,
            not_run=not_run,
        )
        return self.with_faults(
            Health(
                now=NOW,
                project="",
                environment="",
                schema_revision="",
                ticks=[],
                running=[],
                running_total=0,
                overdue=0,
                waiting=QueueFacts(unresolved=unresolved),
                dead={},
                pauses=[],
                schedules=ScheduleSurvey(),
                next=[],
                unknown_schedules={job_type: self.some(jobs, 1) for job_type in self.some(unresolved)},
                unknown_since=dict.fromkeys(unresolved, NOW - HOUR),
                gone={job_type: NOW - self.dice.choice([HOUR, 40 * HOUR]) for job_type in self.some(unresolved)},
                failing_types=[FailingType(job_type, 1, NOW - HOUR) for job_type in self.some(TYPES)],
                watch=watch,
            )
        )

    def some_jobs(self, jobs: list[JobNow]) -> list[JobNow]:
        return self.dice.sample(jobs, self.dice.randint(0, len(jobs)))

    def with_faults(self, health: Health) -> Health:
        wrong = [NO_MODULE, ("t.b", "it cannot be used"), ("schedules.s1.evry", "unknown key")]
        ticks = [tick(host, *self.some(wrong)) for host in ("web1", "web2")[: self.dice.randrange(3)]]
        here = tuple(Fault(*each) for each in self.some(wrong)) if self.chance(2) else ()
        since = NOW - self.dice.choice([MINUTE, 10 * HOUR])
        not_loaded: dict[str, datetime | None] = {each["host"]: since for each in ticks if each["did"]["not_loaded"]}
        watch = replace(health.watch, not_loaded=not_loaded)
        return replace(health, ticks=ticks, faults=here, judged_by_ticks=bool(ticks), watch=watch)


def tick(host: str, *wrong: tuple[str, str]) -> dict[str, Any]:
    times = {"started_at": NOW, "finished_at": NOW, "fingerprint": "f"}
    return {"id": 1, "host": host, "did": {"not_loaded": dict(wrong)}, "not_started": [], **times}


def behind(finding: Finding, health: Health) -> Iterator[object]:
    """The jobs by their ids, and the types, that the finding is about."""
    watch = health.watch
    match finding.kind:
        case "dead":
            yield from watch.deaths.newest
        case "schedule":
            yield from (job.id for job in watch.without_run[finding.subject].jobs)
        case "failing":
            yield from (row.job_id for name in finding.rows for row in failing_runs(watch)[name].rows)
        case "not_run":
            yield from (job.id for name in finding.rows for each in watch.not_run[name] if (job := each.job))
        case "failing_type":
            yield finding.subject
        case "unresolved":
            yield finding.subject
            jobs = {row.job for rows in watch.lately.values() for row in rows if row.job is not None}
            yield from (job.id for job in jobs if job.waiting and job.run_at <= NOW and job.job_type == finding.subject)
        case "behind":
            yield from (("schedule", name) for name in finding.rows)
        case "config":
            yield from (("schedule", name) for each in finding.covers if each.key == "behind" for name in each.rows)
            yield from (each.key.removeprefix("unresolved:") for each in finding.covers if "unresolved" in each.key)


def one_by_one(health: Health) -> list[Finding]:
    """The findings as they would be if each were looked for by itself."""
    same = SameCause()
    return [
        *tick_findings(health, SETTINGS, same),
        *schedule_findings(health, SETTINGS, same),
        *work_findings(health, SETTINGS.run, same),
    ]


def case(dice: random.Random) -> None:
    health = Facts(dice).health()
    found = [finding for finding in troubles(health, SETTINGS) if finding.kind in OF_ONE_CAUSE]
    told = [(each.key, each.text) for each in found]
    seen: dict[object, str] = {}
    for finding in found:
        for thing in set(behind(finding, health)):
            assert thing not in seen, f"{thing} is behind {seen[thing]} and {finding.key}: {told}"
            seen[thing] = finding.key
    for lost in one_by_one(health):
        if lost.kind not in OF_ONE_CAUSE:
            continue
        rows = {row for each in found if each.key == lost.key for row in each.rows}
        stands = [each for finding in found for each in finding.covers if each.key == lost.key]
        rows |= {row for each in stands for row in each.rows}
        assert set(lost.rows) <= rows or any(not each.rows for each in stands), f"{lost.key} is lost: {told}"
        worst = min(each.severity.rank for each in found if each.key == lost.key or lost.key in keys_behind(each))
        assert worst <= lost.severity.rank, f"{lost.key} is worse: {told}"


def keys_behind(finding: Finding) -> set[str]:
    return {each.key for each in finding.covers}


def test_no_job_and_no_type_is_behind_two_findings_and_none_is_lost() -> None:
    judge(case, few=300)


# --- what it reads like -----------------------------------------------------------------------------------------------


def facts(*jobs: JobNow, **more: Any) -> Health:
    """One schedule, "nightly", with these jobs, the newest last; it is past its grace."""
    quiet = replace(Facts(random.Random(1)).health(), ticks=[tick("web1")], judged_by_ticks=True, faults=())
    stored = StoredSchedule(1, "nightly", {"job": "t.a"}, "f", "active", NOW, NOW + HOUR)
    rows = [OccurrenceResult(1, NOW - HOUR, NOW - HOUR, "enqueued", None, NOW, job.id, job) for job in reversed(jobs)]
    dead = tuple(job.id for job in jobs if job.status == "dead")
    late = {"nightly": ScheduleWithoutRun("due 07:00: job 7 is dead", NOW - HOUR, jobs)} if jobs else {}
    watch = Watched(
        schedules=[stored], lately={1: rows}, without_run=late, deaths=Deaths(len(dead), NOW, dead if dead else ())
    )
    waiting = QueueFacts(**{each.name: more.pop(each.name) for each in fields(QueueFacts) if each.name in more})
    nothing: dict[str, Any] = {"waiting": waiting, "unknown_schedules": {}, "failing_types": [], "gone": {}}
    return replace(quiet, **{"watch": watch} | nothing | more)


def texts(health: Health, **how: Any) -> dict[str, str]:
    return {each.key: each.text for each in troubles(health, SETTINGS, **how)}


JOB = JobNow(7, "failed", "t.a", "default", NOW + HOUR, failures=3)


@pytest.mark.parametrize(
    ("definition", "queue"), [({"job": "t.a", "queue": "mail"}, "mail"), ({"job": "t.a"}, "default")]
)
def test_a_full_queue_for_which_a_schedule_did_not_run_is_named(definition: dict[str, str], queue: str) -> None:
    health = facts()
    stored = replace(health.watch.schedules[0], definition=definition)
    full = {"nightly": (UnrunOccurrences(NOW - HOUR, "full"),)}
    health = replace(health, watch=replace(health.watch, schedules=[stored], not_run=full))
    said = f"nightly has not run since it was due: queue {queue} was full when nightly was due"
    assert texts(health) == {"not_run": said}


@pytest.mark.parametrize(
    ("why", "said"),
    [("overruns", "runs for longer than its timeout"), ("lease ran out", "is running, but its lease ran out")],
)
def test_a_running_job_whose_lease_ran_out_is_not_said_to_overrun(why: Why, said: str) -> None:
    health = facts()
    ours = {"nightly": (UnrunOccurrences(NOW - HOUR, why, replace(JOB, status="running")),)}
    health = replace(health, watch=replace(health.watch, not_run=ours))
    assert texts(health)["not_run"].endswith(f": job 7 of nightly {said}")


def test_of_a_job_that_ran_only_success_is_missing() -> None:
    health = facts()
    late = {"nightly": ScheduleWithoutRun("due 07:00: job 7 waits for another try", NOW - HOUR, (JOB,), 7, ran=True)}
    ran = replace(health, watch=replace(health.watch, without_run=late))
    assert texts(ran)["schedule:nightly"].startswith("nightly has not succeeded within its grace; ")
    dead = replace(JOB, status="dead", attempts=3)
    late = {"nightly": replace(late["nightly"], jobs=(dead,))}
    died = facts(dead)
    died = replace(died, watch=replace(died.watch, without_run=late))
    assert texts(died)["dead"].endswith("; nightly has not succeeded within its grace")
    snoozed = {"nightly": (UnrunOccurrences(NOW - HOUR, "put off", replace(JOB, status="queued", attempts=1)),)}
    health = replace(health, watch=replace(health.watch, not_run=snoozed))
    assert texts(health)["not_run"].startswith(
        "nightly has not succeeded since it was due: job 7 of nightly was postponed"
    )
    snoozed = {"nightly": (UnrunOccurrences(NOW - HOUR, "put off", replace(JOB, status="queued")),)}
    health = replace(health, watch=replace(health.watch, not_run=snoozed))
    assert texts(health)["not_run"].startswith("nightly has not run since it was due: job 7 of nightly was postponed")


def test_the_dead_job_of_a_schedule_is_one_finding_that_names_it() -> None:
    health = facts(replace(JOB, status="dead"))
    why = "nightly has not run within its grace"
    assert texts(health) == {"dead": f"1 dead job that nobody has retried or dismissed; {why}"}
    assert texts(replace(health, watch=replace(health.watch, without_run={}))) == {
        "dead": "1 dead job that nobody has retried or dismissed; the last runs of nightly failed"
    }


def test_a_schedule_past_its_grace_says_that_its_runs_fail() -> None:
    health = facts(JOB)
    why = "due 07:00: job 7 is dead, and its last runs failed"
    assert texts(health) == {"schedule:nightly": f"nightly has not run within its grace; {why}"}


@pytest.mark.parametrize(
    ("tries", "said"),
    [
        ({"failures": 3}, "the last 3 runs of nightly failed"),
        ({"failures": 1, "losses": 2}, "the last 3 runs of nightly failed or were lost"),
        (
            {"failures": 0, "losses": 3},
            "the last 3 attempts of nightly were lost: their runners died or lost their leases",
        ),
    ],
)
def test_lost_attempts_are_not_said_to_have_failed(tries: dict[str, Any], said: str) -> None:
    health = facts(replace(JOB, **tries))
    assert texts(replace(health, watch=replace(health.watch, without_run={}))) == {"failing": said}


def test_the_last_attempt_of_a_schedule_that_warns_after_one_was_lost() -> None:
    health = facts(replace(JOB, failures=0, losses=1))
    stored = replace(health.watch.schedules[0], definition={"job": "t.a", "warn_after_failures": 1})
    health = replace(health, watch=replace(health.watch, schedules=[stored], without_run={}))
    assert texts(health) == {"failing:1": "the last attempt of nightly was lost: its runner died or lost its lease"}


@pytest.mark.parametrize(("every", "since"), [(timedelta(seconds=30), "1h"), (MINUTE, "1h"), (5 * MINUTE, "3h20m")])
def test_the_command_about_killed_ticks_looks_back_as_far_as_the_finding(every: timedelta, since: str) -> None:
    health = facts()
    killed = {"web1": Killed(2, 0, NOW - KILLED_WITHIN * every, KILLED_WITHIN * every)}
    health = replace(health, watch=replace(health.watch, killed=killed))
    [found] = [each for each in troubles(health, SETTINGS) if each.kind == "ending"]
    assert found.command == f"cronjobs history --since {since}"


STAYS = 'and its schedules stay (to apply a host\'s file, run "cronjobs sync" on that host)'


@pytest.mark.parametrize(
    ("others", "in_force", "said"),
    [
        ("b", None, "hosts have different files: aaaaaaaa on web1; bbbbbbbb on web2"),
        ("b", "b", "hosts have different files: aaaaaaaa on web1; bbbbbbbb, which is in force, on web2"),
        (
            "b",
            "c",
            "hosts have different files: aaaaaaaa on web1; bbbbbbbb on web2; the file in force is cccccccc, " + STAYS,
        ),
        (
            "a",
            "c",
            "no host that ticks has the file in force: aaaaaaaa on web1, web2; the file in force is cccccccc, " + STAYS,
        ),
        ("a", "a", None),
        ("a", None, None),
    ],
)
def test_of_different_files_the_one_in_force_is_named(others: str, in_force: str | None, said: str | None) -> None:
    health = facts(ticks=[tick("web1") | {"fingerprint": "a" * 16}, tick("web2") | {"fingerprint": others * 16}])
    health = replace(health, watch=replace(health.watch, in_force=in_force and in_force * 16))
    assert texts(health) == ({"files": said} if said else {})


def test_jobs_of_a_type_that_died_while_it_fails_are_its_finding() -> None:
    fails = [FailingType("t.a", 1, NOW - HOUR)]
    health = facts(failing_types=fails)
    died = replace(health.watch, deaths=Deaths(2, NOW, (1, 2), {"t.a": NOW}))
    said = "2 dead jobs that nobody has retried or dismissed; other jobs of t.a are failing, too"
    assert texts(replace(health, watch=died)) == {"dead": said}
    before = replace(died, deaths=Deaths(2, NOW, (1, 2), {"t.a": NOW - 2 * HOUR}))
    assert texts(replace(health, watch=before)).keys() == {"dead", "failing_type:t.a"}


@pytest.mark.parametrize("here", [True, False], ids=["here", "on a host"])
def test_a_module_that_cannot_be_imported_is_why_its_types_are_unknown(here: bool) -> None:
    more = {"unresolved": {"t.a": 2}, "unknown_schedules": {"t.b": ["nightly"]}, "ticks": [tick("web1", NO_MODULE)]}
    health = facts(**more, faults=(Fault(*NO_MODULE),) if here else ())
    [found] = troubles(health, SETTINGS)
    why = "so t.a, t.b cannot run: 2 due jobs wait and schedule nightly cannot run"
    there = "" if here else ' (for details, run "cronjobs check" there)'
    assert found.text.endswith(f"{': '.join(NO_MODULE)}; {why}{there}")
    assert (found.key, found.severity) == ("config:web1", "critical")
    assert texts(health, but={"config"}).keys() == {"unresolved:t.a", "unresolved:t.b"}, "for who reports no file"


def test_hosts_with_the_very_same_faults_are_one_finding() -> None:
    """The pages, which import no handlers, called one of two equally broken hosts critical, the other a warning."""
    hosts = ["web3", "web1", "web2"]
    health = facts(unresolved={"t.a": 2, "t.b": 1}, ticks=[tick(host, NO_MODULE) for host in hosts])
    since: dict[str, datetime | None] = {"web1": NOW - MINUTE, "web2": NOW - HOUR, "web3": None}
    health = replace(health, watch=replace(health.watch, misconfigured=since))
    [found] = troubles(health, SETTINGS)
    assert found.text == (
        f"hosts web1, web2, web3 can use only part of their file: {': '.join(NO_MODULE)}; "
        'so t.a, t.b cannot run: 3 due jobs wait (for details, run "cronjobs check" there)'
    )
    assert found.command is None, "typed here it would look at the file here"
    assert (found.key, found.severity, found.since) == ("config:web2", "critical", NOW - HOUR)
    assert found.rows == (": ".join(NO_MODULE), "host web1", "host web3")
    [here] = troubles(replace(health, faults=(Fault(*NO_MODULE),)), SETTINGS)
    assert (here.key, here.rows) == (found.key, found.rows)
    assert here.text == f"{': '.join(NO_MODULE)} (on hosts web1, web2, web3); so t.a, t.b cannot run: 3 due jobs wait"
    other = replace(health, ticks=[*health.ticks, tick("web4", NO_MODULE, ("t.c", "it cannot be used"))])
    assert texts(other).keys() == {"config:web2", "config:web4"}, "one with other faults is not like them"
    idle = replace(health, waiting=QueueFacts())
    assert [(each.key, each.severity) for each in troubles(idle, SETTINGS)] == [("config:web2", "warning")]


def test_a_fault_of_this_hosts_ticks_that_is_not_found_here_sends_nobody_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator was on the very host where the finding told them to run "cronjobs check"."""
    monkeypatch.setenv("CRONJOBS_HOST", "web1")
    absent = 'if "cronjobs check" does not find this on web1, the fault was fixed after the last tick, or ticks have'
    ours = tick("web1", NO_MODULE) | {"config": str(SETTINGS.file)}
    [found] = troubles(facts(ticks=[ours]), SETTINGS)
    assert absent in found.text
    assert "for details" not in found.text
    assert found.command == "cronjobs crontab show"
    [found] = troubles(facts(ticks=[ours, tick("web2", NO_MODULE)]), SETTINGS)
    assert '(for details, run "cronjobs check" on web2); if "cronjobs check" does not find this on web1' in found.text
    [found] = troubles(facts(ticks=[ours | {"config": "/srv/my shop/cronjobs.yaml"}]), SETTINGS)
    assert absent not in found.text
    assert found.command == "cronjobs check --config '/srv/my shop/cronjobs.yaml'"


@pytest.mark.parametrize("here", [True, False], ids=["here", "on a host"])
def test_a_fault_keeps_its_key_and_its_since_in_an_outage_of_all_ticks(here: bool) -> None:
    """During an outage, its types became findings of their own, and the fault a milder finding with another key."""
    since = NOW - HOUR
    more = {"unresolved": {"t.a": 2}, "ticks": [tick("web1", NO_MODULE)]}
    health = facts(**more, faults=(Fault(*NO_MODULE),) if here else ())
    watch = replace(health.watch, misconfigured={"web1": since}, not_loaded={"web1": since})
    [before] = troubles(replace(health, watch=watch), SETTINGS)
    away = replace(health, watch=watch, now=NOW + 10 * MINUTE, judged_by_ticks=False)
    found = {each.key: each for each in troubles(away, SETTINGS)}
    assert found.keys() == {"no_tick", "config:web1"}
    assert (found["config:web1"].severity, found["config:web1"].since) == (before.severity, since)
    assert found["config:web1"].text == before.text


def test_a_fault_here_hides_no_other_fault_of_another_host() -> None:
    """A typo here hid that a host lacked the module for which jobs waited."""
    typo = Fault("retentoin", "unknown key")
    since: dict[str, datetime | None] = {"web1": NOW - HOUR, "web2": NOW - MINUTE}
    ticks = [tick("web1", NO_MODULE), tick("web2", ("retentoin", "unknown key"))]
    health = facts(unresolved={"t.a": 2}, ticks=ticks, faults=(typo,))
    health = replace(health, watch=replace(health.watch, misconfigured=since))
    found = {each.key: each for each in troubles(health, SETTINGS)}
    assert {key: (each.severity, each.since) for key, each in found.items()} == {
        "config:web1": ("critical", NOW - HOUR),
        "config:web2": ("warning", NOW - MINUTE),  # since a tick recorded it
    }
    assert "2 due jobs wait" in found["config:web1"].text


def test_the_same_faults_are_the_same_however_many_and_long_they_are() -> None:
    faults = tuple(Fault(f"module m{number}" + "x" * 200, "no module" * 100) for number in range(12))
    ticks = [tick("web1", *noted({each.where: each.what for each in faults[7:]}).items())]
    found = [each.key for each in troubles(facts(ticks=ticks, faults=faults), SETTINGS)]
    assert found == ["config"] * 7 + ["config:web1"] * 5, "of many faults a tick records the first"


def test_who_acknowledges_a_fault_on_one_host_has_done_so_on_all() -> None:
    """The fault has the same key and rows on every host that judges it, with or without the fault."""

    def case(dice: random.Random) -> None:
        names = ["web1", "web2", "web3"][: dice.randint(1, 3)]
        faults = {name: dice.sample(["schedules.a", "schedules.b", "limits.c"], dice.randint(0, 3)) for name in names}
        ticks = [tick(name, *((where, "bad") for where in its)) for name, its in faults.items()]
        since: dict[str, datetime | None] = {name: NOW - dice.randint(1, 3) * MINUTE for name in names}
        seen = []
        for here in [*faults.values(), []]:
            health = facts(ticks=ticks, faults=tuple(Fault(where, "bad") for where in here))
            seen.append(replace(health, watch=replace(health.watch, misconfigured=since)))
        for health in seen:
            found = troubles(health, SETTINGS)
            for key in {each.key for each in found}:
                assert key.startswith("config:"), "a tick of each host has recorded what its file has"
                meant = together([each for each in found if each.key == key])
                acks = {key: StoredAck(key, meant.severity, meant.rows, NOW + HOUR, None, None, NOW)}
                for other in seen:
                    its = [each for each in findings.judge(replace(other, acks=acks), SETTINGS) if each.key == key]
                    assert all(each.ack for each in its), (faults, key)

    judge(case, few=100)


def test_where_no_tick_comes_for_another_database_that_is_one_finding() -> None:
    health = replace(facts(ticks=[]), project="shop", environment="production")
    ours = replace(SETTINGS, project="shop", environment="production")
    assert [each.key for each in troubles(health, ours)] == ["no_tick"]
    assert [each.key for each in troubles(health, replace(ours, environment="staging"))] == ["foreign"]


def test_a_file_that_ticks_refuse_here_is_named_where_nothing_fires_schedules() -> None:
    health = facts(ticks=[tick("web1")], schedules=ScheduleSurvey(active=1))
    health = replace(health, watch=replace(health.watch, fires=False))
    for broken in (False, True):
        settings = replace(SETTINGS, broken=broken, contents={SETTINGS.file: b""})
        found = {each.key: each for each in troubles(health, settings)}["schedules_off"]
        assert found.text.endswith("; ticks refuse the file here") == broken
        assert found.command == ("cronjobs check" if broken else "cronjobs crontab show")


def test_a_host_that_joins_keeps_the_key_and_is_news_for_who_acknowledged_the_fault() -> None:
    since: dict[str, datetime | None] = {"web1": NOW - MINUTE, "web2": NOW - HOUR}
    alone, both = (
        replace(health, watch=replace(health.watch, misconfigured=since))
        for health in [facts(ticks=[tick(host, NO_MODULE) for host in hosts]) for hosts in (["web2"], ["web1", "web2"])]
    )
    [one], [two] = (troubles(each, SETTINGS) for each in (alone, both))
    said = f"host web2 can use only part of its file: {': '.join(NO_MODULE)}"
    assert (one.key, one.text) == ("config:web2", f'{said} (for details, run "cronjobs check" there)')
    assert (one.key, one.rows) == (two.key, two.rows[:1])
    until = NOW + HOUR
    acks = {finding: StoredAck(one.key, "warning", finding.rows, until, "ada", None, NOW) for finding in (one, two)}
    assert acknowledged(one, {one.key: acks[one]}).ack
    assert acknowledged(one, {one.key: acks[two]}).ack, "the other one is mended"
    assert not acknowledged(two, {one.key: acks[one]}).ack


def test_jobs_that_several_hosts_leave_for_a_bad_limit_are_counted_once() -> None:
    left = {"why": "limits", "job_type": "t.a", "queue": "default", "jobs": 3, "prefix": "smtp:"}
    its = {"did": {"broken": {"limits.smtp:": "0 would let no job begin"}}, "not_started": [left]}
    [found] = troubles(facts(ticks=[tick("web1") | its, tick("web2") | its]), SETTINGS)
    assert 'limits."smtp:": 0 would let no job begin; 3 due jobs wait' in found.text
    assert "; 3 due jobs wait because of this fault (" in found.text


def test_a_type_that_was_unknown_before_has_a_cause_of_its_own() -> None:
    since: dict[str, datetime | None] = {"web1": NOW - HOUR}
    gone = {"t.a": NOW - HOUR - timedelta(minutes=9), "t.b": NOW - HOUR - timedelta(minutes=11)}
    health = facts(unresolved={"t.a": 1, "t.b": 1}, ticks=[tick("web1", NO_MODULE)], gone=gone)
    health = replace(health, watch=replace(health.watch, not_loaded=since))
    assert texts(health).keys() == {"config:web1", "unresolved:t.b"}


def test_a_fault_of_one_type_is_why_that_type_is_unknown_and_no_other() -> None:
    wrong = tick("web1", ("t.a", "max_memory needs a process"))
    assert texts(facts(unresolved={"t.a": 1, "t.b": 1}, ticks=[wrong])).keys() == {"config:web1", "unresolved:t.b"}


ENTRY = ("job_types.t.b.timeout", '"never" is not a duration')
OTHER_MODULE = ("module shop.mails", "cannot be imported: KeyError: 'HOST'")


def test_each_of_two_faults_here_is_why_its_own_type_is_unknown() -> None:
    """The broken module was also named for the type whose entry in the file was broken."""
    ticks = [tick("web1", NO_MODULE, ENTRY)]
    health = facts(unresolved={"t.a": 1, "t.b": 2}, ticks=ticks, faults=(Fault(*NO_MODULE),))
    [module, entry] = troubles(health, replace(SETTINGS, problems=(Problem("cronjobs.yaml", 4, 1, *ENTRY),)))
    assert module.text.endswith("; so t.a cannot run: 1 due job waits")
    assert entry.text.endswith("; so t.b cannot run: 2 due jobs wait")


def test_each_of_two_faults_of_a_host_is_why_its_own_type_is_unknown() -> None:
    [found] = troubles(facts(unresolved={"t.a": 1, "t.b": 2}, ticks=[tick("web1", NO_MODULE, ENTRY)]), SETTINGS)
    why = "so t.a (because of module shop.jobs) and t.b (because of job_types.t.b.timeout) cannot run: 3 due jobs wait"
    assert why in found.text


def test_a_fault_of_a_type_whose_name_begins_like_the_imports_is_of_no_other_type() -> None:
    wrong = tick("web1", ("imports.daily", "max_memory needs a process"))
    found = texts(facts(unresolved={"t.a": 1, "imports.daily": 1}, ticks=[wrong]))
    assert found.keys() == {"config:web1", "unresolved:t.a"}


@pytest.mark.parametrize("here", [True, False], ids=["here", "on a host"])
@pytest.mark.parametrize("other", [OTHER_MODULE, ("imports[1]", '"7" is not a module')], ids=["module", "imports"])
def test_either_of_two_broken_imports_may_be_why_a_type_is_unknown(other: tuple[str, str], here: bool) -> None:
    wrong = [NO_MODULE, other]
    faults = tuple(Fault(*each) for each in wrong) if here else ()
    found = troubles(facts(unresolved={"t.a": 1}, ticks=[tick("web1", *wrong)], faults=faults), SETTINGS)
    assert (
        f"; so t.a (because of one of these: module shop.jobs, {other[0]}) cannot run: 1 due job waits" in found[0].text
    )
    assert [each.severity for each in found] == (["critical", "warning"] if here else ["critical"])


@pytest.mark.parametrize("here", [True, False], ids=["here", "on a host"])
def test_a_bad_schedule_that_holds_the_command_is_why_its_type_is_unknown(here: bool) -> None:
    """The cause, minute 99 is not in 0–59, came last, as a warning."""
    bad = Problem("cronjobs.yaml", 6, 10, "schedules.report.cron", "minute 99 is not in 0–59")
    ticks = [tick("web1") if here else tick("web1") | {"did": {"broken": {bad.path: bad.message}}}]
    more = facts(
        unresolved={"report": 1}, unknown_schedules={"report": ["report"], "gone": ["report.gone"]}, ticks=ticks
    )
    found = {each.key: each for each in troubles(more, replace(SETTINGS, problems=(bad,) if here else ()))}
    config = "config" if here else "config:web1"
    assert found.keys() == {config, "unresolved:gone"}
    assert found[config].severity == "critical"
    assert (
        "minute 99 is not in 0–59; so report cannot run: 1 due job waits and schedule report cannot run"
        in found[config].text
    )


def test_a_schedule_that_ticks_do_not_fire_for_its_bad_entry_is_one_finding() -> None:
    late = StoredSchedule(1, "typo", {"job": "t.a"}, "f", "active", NOW, NOW - HOUR)
    other = StoredSchedule(2, "typo.other", {"job": "t.a"}, "f", "active", NOW, NOW - HOUR)
    bad = Problem("cronjobs.yaml", 6, 10, "schedules.typo.evry", "unknown key")
    facts = replace(Facts(random.Random(1)).health(), watch=Watched(schedules=[late]), faults=())
    facts = replace(facts, waiting=QueueFacts(), unknown_schedules={}, failing_types=[], ticks=[tick("web1")])
    [found] = troubles(facts, replace(SETTINGS, problems=(bad,)))
    assert (found.key, found.severity, found.since) == ("config", "critical", NOW - HOUR)
    assert found.text.endswith("unknown key; no tick has fired the due occurrences of typo")
    elsewhere = replace(facts, ticks=[tick("web1") | {"did": {"broken": {"schedules.typo.evry": "unknown key"}}}])
    [found] = troubles(elsewhere, SETTINGS)
    assert (found.key, found.severity) == ("config:web1", "critical")
    both = replace(elsewhere, watch=Watched(schedules=[late, other]))
    assert {each.key: each.rows for each in troubles(both, SETTINGS)}["behind"] == ("typo.other",)
    assert [each.key for each in troubles(elsewhere, SETTINGS, but={"config"})] == ["behind"]


def test_entries_that_one_bad_key_disables_are_one_finding() -> None:
    zone = Problem("cronjobs.yaml", 2, 11, "timezone", "Mars/Base is not a time zone")
    why = f"{DISABLED}the file's timezone cannot be read"
    disabled = [Problem("cronjobs.yaml", 4 + n, 3, f"schedules.s{n}", why) for n in range(12)]
    problems = (zone, *disabled)
    tick_of_this_file = tick("web1") | {"did": {"broken": noted({each.path: each.message for each in problems})}}
    for ticks in ([], [tick_of_this_file]):
        found = list(troubles(facts(ticks=ticks), replace(SETTINGS, problems=problems)))
        assert [each.text for each in found if each.kind == "config"] == [
            str(zone),
            f"{disabled[0]} (and 11 more entries like it)",
        ]


@pytest.mark.parametrize(
    ("path", "prefix"),
    [
        ("limits.smtp:", "smtp:"),
        ("limits.smtp:.most", "smtp:"),
        ("limits", ""),
        ("limits.x", ""),
        pytest.param("limit", "", id="the section's name is misspelt"),
    ],
)
def test_a_bad_limit_for_which_due_jobs_wait_is_critical(path: str, prefix: str) -> None:
    bad = Problem("cronjobs.yaml", 4, 15, path, "0 would let no job begin")
    quiet = facts(limited={Limit("smtp:other", most=0): 7, Limit("tenant:", most=3): 9})
    [found] = troubles(quiet, replace(SETTINGS, problems=(bad,)))
    assert (found.key, found.severity, found.text) == ("config", "warning", str(bad))
    [found] = troubles(facts(limited={Limit(prefix, most=0): 2}), replace(SETTINGS, problems=(bad,)))
    assert (found.key, found.severity, found.text) == (
        "config",
        "critical",
        f"{bad}; 2 due jobs wait because of this fault",
    )


@pytest.mark.parametrize(
    ("jobs", "prefix", "severity"), [(3, "smtp:", "critical"), (3, "tenant:", "warning"), ("3", "smtp:", "warning")]
)
def test_so_is_one_of_another_host_by_what_its_tick_left(jobs: Any, prefix: str, severity: str) -> None:
    left = {"why": "limits", "job_type": "t.a", "queue": "default", "jobs": jobs, "prefix": prefix}
    its = tick("web1") | {"did": {"broken": {"limits.smtp:": "0 would let no job begin"}}, "not_started": [left]}
    [found] = troubles(facts(ticks=[its]), SETTINGS)
    assert (found.key, found.severity) == ("config:web1", severity)
    assert ("; 3 due jobs wait because of this fault (" in found.text) is (severity == "critical")


def test_a_timeout_without_room_stands_for_its_late_jobs_and_no_others() -> None:
    never = [TimeoutTooLong("t.a", Problem("cronjobs.yaml", 2, 10, "imports", "t.a: it would never begin"))]
    groups = [
        LateGroup(queue, job_type, NOW - HOUR, 2) for queue, job_type in [("x", "t.a"), ("y", "t.a"), ("x", "t.b")]
    ]
    left = [
        {"why": why, "job_type": job_type, "queue": queue, "jobs": 2}
        for why, queue, job_type in [("short tick", "x", "t.a"), ("slots", "y", "t.a"), ("budget", "x", "t.b")]
    ]
    found = texts(facts(never_begin=never, late=groups, ticks=[tick("web1") | {"not_started": left}]))
    assert found.keys() == {"config", "late"}
    assert found["config"].endswith("t.a: it would never begin; 2 due jobs wait because of this fault")
    assert found["late"].startswith("4 jobs have")


def test_a_payload_of_the_file_that_does_not_fit_is_said_until_jobs_wait_for_it() -> None:
    bad = Problem("cronjobs.yaml", 5, 3, "schedules.s.payload", "payload does not fit t.a: missing an argument")
    health = facts(schedule_misfits=[("t.a", bad)])
    assert texts(health) == {"config": str(bad)}
    waits = WaitingMisfits("t.a", 1, NOW, 1, 1, "payload does not fit t.a: x")
    assert texts(replace(health, misfits=[waits])).keys() == {"misfit:t.a"}
