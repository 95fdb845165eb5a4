"""``explain`` for a job type and for a key. What it knows of imports, broken entries, environments and tick options."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, text
from support.explained import MINUTE, MINUTELY, World, fail, utc
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world
from support.hosts import put
from support.postgres import OWNER

from cronjobs import reschedule
from cronjobs.desk.insight.explain_facts import AttemptFacts, AuditEntry, JobFacts, Now
from cronjobs.desk.insight.explain_job import job_sentences
from cronjobs.desk.insight.formatting import LocalTimes
from cronjobs.engine.database import tables
from cronjobs.engine.store.crashing_types import note_deaths
from cronjobs.engine.store.ticks import record
from cronjobs.engine.tick.result import LONGEST_WHY, MOST_NOTED, Result, noted

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases

NOT_ANY_TICK = "the next tick with a free worker, on a host and with options that allow the job, will run it"
OK = 'job_types: {t.ok: {command: ["true"], timeout: 1s}}\n'


def did(world: World) -> list[dict[str, object]]:
    with world.database.read() as connection:
        return list(connection.execute(select(tables.ticks.c.did).order_by(tables.ticks.c.id)).scalars())


# --- what a tick records ----------------------------------------------------------------------------------------------


SINCE_THEN = "these jobs have run in child processes"


def test_a_usual_tick_records_nothing_of_it() -> None:
    assert Result().did() == {}


def test_a_file_that_stays_broken_does_not_fill_the_table() -> None:
    many = noted({f"schedules.{n}{'x' * 500}": "y" * 5000 for n in range(50)})
    assert len(many) == MOST_NOTED
    assert sum(len(where) + len(what) for where, what in many.items()) <= MOST_NOTED * (120 + LONGEST_WHY)


def test_a_tick_records_its_options_and_what_was_broken(world: World) -> None:
    world.file(OK + "imports: [nowhere.at_all]\n", s='cron: "61 * * * *"', fine='cron: "* * * * *", job: t.ok')
    put(world.database, job_type="t.ok", queue="mail")
    world.tick()
    world.hosts["alpha"].tick(queue="other", jobs=5)
    first, second = did(world)
    assert first["broken"] == {"schedules.s.cron": "minute 61 is not in 0–59"}
    assert "No module named 'nowhere'" in first["not_loaded"]["module nowhere.at_all"]  # type: ignore[index]
    assert "options" not in first
    assert second["options"] == {"queue": "other", "limit": 5}


# --- a key ------------------------------------------------------------------------------------------------------------


def test_a_job_is_found_by_its_key(world: World) -> None:
    world.file()
    world.tick()
    job_id = put(world.database, job_type="t.work", idempotency_key="invoice:42")
    assert world.ask("--key", "invoice:42").found["sentences"][0] == world.ask(str(job_id)).found["sentences"][0]
    assert world.ask("--key", "invoice:42").facts["job_id"] == job_id
    assert world.ask("--key", "invoice:43", code=1).verdict == "unknown"
    assert world.ask("--type", "t.nobodys", code=1).verdict == "unknown"
    answer = world.say("--key", "invoice:43")
    assert answer.code == 1
    assert 'no job has the idempotency key "invoice:43": either no job was enqueued' in " ".join(answer.err.split())


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("s", "--key", "k"),
        ("--key", "k", "--type", "t"),
        ("--key", "k", "--at", "02:15"),
        ("--type", "t", "--from", "0"),
    ],
)
def test_one_thing_is_explained(world: World, arguments: tuple[str, ...]) -> None:
    world.file()
    world.tick()
    assert world.say(*arguments).code == 2


@pytest.mark.parametrize("what", ["1", "t.work"])
@pytest.mark.parametrize("time", [("--at", "02:15"), ("--since", "1h")])
def test_times_are_for_schedules_not_for_a_job_or_a_type(world: World, what: str, time: tuple[str, str]) -> None:
    world.file(**MINUTELY)
    world.tick()
    world.tick(utc("2026-03-02T08:01:10"))
    answer = world.say(what, *time)
    assert (answer.code, "--at, --from, --to and --since are for schedules" in answer.err) == (2, True)
    answer = world.say("t.wrok", *time)
    assert (answer.code, 'there is no schedule or job type "t.wrok"' in answer.err) == (1, True)


def test_bytes_that_are_no_text_are_a_usage_error(world: World) -> None:
    world.file()
    world.tick()
    for arguments in (("explain", "\udcff"), ("explain", "--key", "\udcff"), ("audit", "--action", "\udcff")):
        answer = world.cronjobs(*arguments)
        assert answer.code == 2
        assert "is not UTF-8" in answer.err
    assert world.cronjobs("jobs", "list", "--queue", "\udcff").code == 2


# --- a type -----------------------------------------------------------------------------------------------------------


def test_a_type_that_runs(world: World) -> None:
    world.file(OK, s='cron: "0 3 * * *", job: t.ok')
    world.tick()
    put(world.database, job_type="t.ok")
    world.clock.advance(MINUTE)
    world.tick()
    told = world.ask("t.ok")
    assert told.verdict == "runnable"
    assert told.found["sentences"] == [
        "Job type t.ok is known: the tick that began at 08:01:30 on alpha loaded it.",
        "Schedules that use it: s.",
        "No job of this type is waiting.",
    ]


def test_a_type_that_crashes_its_process_says_so(world: World) -> None:
    world.file()
    put(world.database, job_type="t.work")
    world.tick(utc("2026-03-02T09:00:10"))
    for tick in ("a", "b"):
        with world.database.write() as connection:
            note_deaths(connection, {"t.work": f"alpha:boot:4026530000:77:1234:{tick}"})
    told = world.ask("t.work")
    assert told.steady[:2] == [
        "Job type t.work is known: the tick that began at 09:00:10 on alpha loaded it.",
        f"Two runners of jobs of this type died or lost the database, so {SINCE_THEN} since 09:00:10.",
    ]


def test_of_several_jobs_the_one_that_is_due_first_is_named_and_not_called_the_oldest(world: World) -> None:
    world.file()
    world.tick(utc("2026-03-02T09:00:10"))
    put(world.database, job_type="t.work", run_at=utc("2026-03-02T09:30:00"), status="failed", failures=3)
    put(world.database, job_type="t.work", run_at=utc("2026-03-02T09:20:00"))
    assert "2 jobs of this type are waiting, 0 of them due; job 2 is due first, at 09:20:00." in world.ask("t.work")
    world.go(utc("2026-03-02T09:21:00"))
    assert "2 jobs of this type are waiting, 1 of them due; job 2 is due first, since 09:20:00." in world.ask("t.work")


def test_a_type_that_no_host_could_load_and_since_when(world: World) -> None:
    (world.folder / "lately_broken.py").write_text("raise RuntimeError('no such table: shop')\n")
    world.file(OK)
    put(world.database, job_type="t.ok")
    world.tick(utc("2026-03-02T09:00:10"))
    put(world.database, job_type="t.ok", idempotency_key="k")
    world.file("imports: [lately_broken]\n")
    for minute in range(1, 20, 2):
        world.tick(utc(f"2026-03-02T09:{minute:02}:10"))
    told = world.ask("t.ok")
    assert told.verdict == "not_runnable"
    since = (
        'no ticking host can run type "t.ok": no tick that loaded handlers has known this type since 09:01:10 '
        "(the last tick that loaded it began at 09:00:10 on alpha)"
    )
    assert since in told
    assert "on alpha module lately_broken cannot be imported: RuntimeError: no such table: shop" in told
    assert told.found["sentences"][-1] == "1 job of this type is waiting: job 2, due since 09:00:10."
    job = world.ask("--key", "k")
    assert job.verdict == "waiting"
    assert since in job
    assert "no such table: shop" in job


def test_a_type_that_was_renamed_a_moment_ago_cannot_run(world: World) -> None:
    world.file(OK)
    put(world.database, job_type="t.ok")
    world.tick(utc("2026-03-02T09:00:10"))
    put(world.database, job_type="t.ok", idempotency_key="k")
    world.file(OK.replace("t.ok", "t.renamed"))
    world.tick(utc("2026-03-02T09:01:10"))
    since = (
        'no ticking host can run type "t.ok": no tick that loaded handlers has known this type since 09:01:10 '
        "(the last tick that loaded it began at 09:00:10 on alpha)"
    )
    assert world.ask("t.ok").verdict == "not_runnable"
    assert since in world.ask("t.ok")
    assert since in world.ask("--key", "k")


@pytest.mark.parametrize("here", ["alpha", "beta"])
def test_a_type_that_only_this_command_can_load_waits_for_no_next_tick(
    world: World, monkeypatch: pytest.MonkeyPatch, here: str
) -> None:
    """``explain`` promised the next tick for a job whose handler no host that ticked could import."""
    (world.folder / "lately_broken.py").write_text("raise KeyError('REPORT_KEY')\n")
    world.file("imports: [lately_broken]\n")
    job_id = put(world.database, job_type="t.ok")
    world.tick(utc("2026-03-02T09:00:10"))
    world.file(OK)
    monkeypatch.setenv("CRONJOBS_HOST", here)
    mended = "the fault was fixed after the last tick, or ticks have a different environment from your shell"
    for told in (world.ask(str(job_id)), world.ask("t.ok")):
        assert 'no ticking host can run type "t.ok": no tick on record has ever known this type' in told
        assert "on alpha module lately_broken cannot be imported: KeyError: 'REPORT_KEY'" in told
        assert ("on this host, this command could load it" in told) == (mended in told) == (here == "alpha")
        assert "a free worker" not in told
    shown = " ".join(world.cronjobs("jobs", "show", str(job_id)).out.split())
    assert 'no ticking host can run type "t.ok": no tick on record has ever known this type' in shown
    [finding] = world.cronjobs("status", "--json").json["findings"]
    assert (mended in finding["text"]) == (here == "alpha")
    assert ('(for details, run "cronjobs check" there)' in finding["text"]) == (here == "beta")
    assert finding["command"] == ("cronjobs crontab show" if here == "alpha" else None)


def test_a_job_of_newly_deployed_code_waits_for_the_next_tick(world: World) -> None:
    world.file()
    put(world.database, job_type="t.work")
    world.tick(utc("2026-03-02T09:00:10"))
    world.file(OK)
    world.go(utc("2026-03-02T09:00:30"))
    told = world.ask(str(put(world.database, job_type="t.ok")))
    assert "the next tick with a free worker will run it" in told
    assert "no host that ticks" not in told


def test_which_tick_can_run_a_type_that_this_configuration_lacks(world: World) -> None:
    world.file(OK)
    put(world.database, job_type="t.ok")
    world.tick(utc("2026-03-02T09:00:10"), host="beta")
    world.file("")
    world.tick(utc("2026-03-02T09:01:10"))
    why = (
        'no handler or command "t.ok" is registered in this configuration, '
        "but the tick that began at 09:00:10 on beta loaded it"
    )
    assert world.ask("t.ok").found["sentences"][0] == f"Job type t.ok: {why}."


def test_an_idle_tick_counts_for_no_type_and_a_fault_of_the_code_here_is_named(world: World) -> None:
    world.file(OK)
    put(world.database, job_type="t.ok")
    world.tick(utc("2026-03-02T09:00:10"))
    (world.folder / "broken_since.py").write_text("raise RuntimeError('no such table: shop')\n")
    world.file("imports: [broken_since]\n")
    world.ticks(utc("2026-03-02T09:01:10"), utc("2026-03-02T09:03:10"))
    assert world.ask("t.ok").found["sentences"][0] == (
        'Job type t.ok: no handler or command "t.ok" is registered in this configuration, but the tick that began at '
        "09:00:10 on alpha loaded it; module broken_since cannot be imported: RuntimeError: no such table: shop (in "
        "this configuration)."
    )


def test_a_broken_file_proves_no_type(world: World) -> None:
    world.file()
    put(world.database, job_type="t.ok")
    (world.folder / "cronjobs.yaml").write_text("schedules: {a: [\n")
    for name in ("7", "t.nobodys"):
        answer = world.say(name, "--database-url", world.url)
        assert (answer.code, answer.out) == (1, ""), answer
    told = world.ask("t.ok", "--database-url", world.url)
    assert "this configuration is invalid, so it does not show the type" in told


def test_a_broken_entry_of_a_type(world: World) -> None:
    world.file('job_types: {t.ok: {command: ["true"], timeout: never}}\n')
    put(world.database, job_type="t.ok")
    world.tick()
    told = world.ask("t.ok")
    assert "no tick on record has ever known this type" in told
    assert "the type's entry in the file here is broken" in told
    assert "timeout" in told


def test_a_fault_that_the_hosts_newest_tick_no_longer_has_explains_no_missing_type(world: World) -> None:
    (world.folder / "once_broken.py").write_text("raise KeyError('REPORT_KEY')\n")
    world.file("imports: [once_broken]\n")
    job_id = put(world.database, job_type="t.nobodys")
    world.tick(utc("2026-03-02T09:00:10"))
    assert "once_broken" in world.ask(str(job_id))
    world.file(OK)
    world.tick(utc("2026-03-02T09:01:10"))
    assert 'no ticking host can run type "t.nobodys"' in world.ask(str(job_id))
    assert "once_broken" not in world.ask(str(job_id))


@pytest.mark.parametrize("here", ["alpha", "beta"])
def test_of_two_faults_the_one_that_the_type_depends_on_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, here: str
) -> None:
    """The broken module was also named for the type whose entry in the file was broken."""
    (world.folder / "broken_a.py").write_text("raise KeyError('A')\n")
    world.file('imports: [broken_a]\njob_types: {t.b: {command: ["true"], timeout: never}}\n')
    for name in ("a", "b"):
        put(world.database, job_type=f"t.{name}", idempotency_key=name)
    world.tick(utc("2026-03-02T09:00:10"))
    monkeypatch.setenv("CRONJOBS_HOST", here)
    if here == "beta":
        world.file()
    for told in (world.ask("t.a"), world.ask("--key", "a")):
        assert "on alpha module broken_a cannot be imported: KeyError: 'A'" in told
        assert "never" not in told
    for told in (world.ask("t.b"), world.ask("--key", "b")):
        assert 'job_types.t.b.timeout: "never" is not a duration' in told
        assert "broken_a" not in told


def test_of_two_broken_modules_either_may_have_the_type(world: World) -> None:
    for name in ("a", "b"):
        (world.folder / f"broken_{name}.py").write_text(f"raise KeyError('{name}')\n")
    put(world.database, job_type="t.a")
    world.file("imports: [broken_a]\n")
    world.tick(utc("2026-03-01T09:00:10"), host="gone")
    world.file("imports: [broken_a, broken_b]\n")
    world.tick(utc("2026-03-02T09:00:10"))
    either = "the type is missing because of one of these: module broken_a (cannot be imported: KeyError: 'a'), module"
    for told in (world.ask("t.a"), world.ask("1")):
        assert f"on alpha {either} broken_b (cannot be imported: KeyError: 'b')" in told
        assert "on gone" not in told, "it does not tick any more"


def test_a_schedule_comes_before_a_type_of_its_name(world: World) -> None:
    world.file(t='cron: "0 4 * * *"')
    world.tick()
    assert world.ask("t").found["subject"] == "t"
    assert world.ask("--type", "t.work").found["subject"] == "type t.work"


def test_nobody_knows_such_a_type(world: World) -> None:
    world.file()
    world.tick()
    assert world.say("t.nobodys").code == 1
    answer = world.say("--type", "t.nobodys\x1b[2J")
    assert answer.code == 1
    assert "\x1b" not in answer.err
    assert "t.nobodys" in answer.err


@pytest.mark.connects_as(OWNER)
def test_rows_of_another_version_or_of_an_enemy_are_passed_over(world: World) -> None:
    world.file()
    put(world.database, job_type="t.gone")
    world.tick()
    with world.database.write() as connection:
        for number, odd in enumerate(
            ({"options": [1], "not_loaded": "x", "broken": 7}, [1], {"not_loaded": {"a": {}}})
        ):
            row = {"tick": f"odd{number}", "host": f"h{number}", "pid": 1, "version": "0", "did": odd, "job_types": "x"}
            at = world.clock.now() + MINUTE
            connection.execute(insert(tables.ticks).values(**row, started_at=at, finished_at=at, not_started=[1]))
        if world.database.is_sqlite:
            connection.execute(text("INSERT INTO cronjobs_job_type_lists (hash, names) VALUES ('x', '[\"t.gone')"))
    world.clock.advance(2 * MINUTE)
    assert world.ask("t.gone").verdict in ("not_runnable", "unknown")
    assert world.ask("1").verdict == "waiting"


# --- environments, tick options ---------------------------------------------------------------------------------------


def test_a_schedule_that_was_moved_to_another_environment(world: World) -> None:
    world.file("environment: staging\n", s='cron: "* * * * *"', t='cron: "0 3 * * *"')
    world.tick()
    world.file("environment: staging\n", s='cron: "* * * * *", environments: [production]', t='cron: "0 3 * * *"')
    world.tick(utc("2026-03-02T08:01:10"))
    told = world.ask("s", "--at", "2026-03-02T08:05")
    assert told.verdict == "retired"
    assert 'The file here has the schedule only for environments other than this one (environment "staging").' in told


def test_due_work_that_no_ticks_options_reach(world: World) -> None:
    world.file(OK)
    world.tick()
    world.tick(host="beta")
    job_id = put(world.database, job_type="t.ok", queue="mail", run_at=utc("2026-03-02T08:00:40"))
    for minute in (1, 2):
        world.go(utc(f"2026-03-02T08:0{minute}:10"))
        world.hosts["alpha"].tick(queue="slow", jobs=50)
    world.clock.advance(timedelta(seconds=20))
    told = world.ask(str(job_id))
    assert "the options of every tick exclude the job: since 08:01:10, all ticks ran on alpha with --queue slow" in told
    world.hosts["alpha"].tick(only="t.work")
    world.clock.advance(timedelta(seconds=20))
    assert "all ticks ran on alpha with --only t.work" in world.ask(str(job_id))
    world.hosts["beta"].tick(budget_s=1, whole_s=50)
    assert NOT_ANY_TICK in world.ask(str(job_id))


def test_due_work_that_only_a_host_which_stopped_could_run(world: World) -> None:
    world.file(OK)
    for minute in (1, 2):
        world.tick(utc(f"2026-03-02T08:0{minute}:10"), host="beta")
    world.file()
    world.tick(utc("2026-03-02T08:03:10"))
    job_id = put(world.database, job_type="t.ok")
    world.ticks(utc("2026-03-02T08:04:10"), utc("2026-03-02T08:07:10"))
    could = "the tick that began at 08:01:10 on beta loaded it (beta has not ticked since 08:02:1"
    assert could in world.ask(str(job_id))

    def late() -> list[str]:
        found = world.cronjobs("status", "--json").json["findings"]
        return [each["text"] for each in found if each["kind"] == "late"]

    only_beta = "no ticking host can run t.ok; beta, which could run it, has not ticked for 5m"
    assert late() == [f"1 job has been due for more than 2m: {only_beta}"]
    put(world.database, job_type="t.work", run_at=utc("2026-03-02T08:04:00"))
    assert late() == [
        "2 jobs have been due for more than 2m, and 1 of them could run: the last ticks recorded no reason; "
        + only_beta
    ]
    world.file(OK)
    world.tick(host="gamma")
    assert late() == []


def test_no_next_tick_is_promised_once_the_only_host_with_the_type_has_stopped(world: World) -> None:
    """For ten minutes after that host's last tick, ``explain`` promised the next tick."""
    world.file(OK)
    world.tick(utc("2026-03-02T08:01:10"), host="beta")
    world.file()
    world.tick(utc("2026-03-02T08:02:10"))
    job_id = put(world.database, job_type="t.ok")
    world.tick(utc("2026-03-02T08:03:10"))
    world.file(OK)
    assert NOT_ANY_TICK in world.ask(str(job_id)), "beta may tick a moment from now"
    world.file()
    world.ticks(utc("2026-03-02T08:04:10"), utc("2026-03-02T08:06:10"))
    world.file(OK)
    for told in (world.ask(str(job_id)), world.ask("t.ok")):
        assert "no ticking host can run t.ok; beta, which could run it, has not ticked since 08:01:10" in told
        assert "the next tick" not in told
    world.tick(utc("2026-03-02T08:07:10"), host="gamma")
    assert "no host" not in world.ask(str(job_id))


# --- in order ---------------------------------------------------------------------------------------------------------


def test_what_a_person_did_stands_between_the_attempts(world: World) -> None:
    world.file("defaults: {retry: {max_attempts: 1}}\n")
    world.plan = [fail()]
    job_id = put(world.database, job_type="t.work")
    world.tick(utc("2026-03-02T09:00:10"))
    world.clock.advance(MINUTE)
    assert world.cronjobs("jobs", "retry", str(job_id), "--why", "fixed").code == 0
    world.clock.advance(MINUTE)
    world.tick()
    told = world.ask(str(job_id)).steady
    starts = [sentence.split(" ")[0:2] for sentence in told[1:]]
    assert starts == [["Attempt", "1"], ["It", "was"], ["Attempt", "2"]]


def test_a_job_that_was_moved_says_from_when_to_when(world: World) -> None:
    world.file(OK)
    world.tick(utc("2026-03-02T09:00:10"))
    job_id = put(world.database, job_type="t.ok", run_at=utc("2026-03-02T11:00:00"))
    with world.database.write() as connection:
        reschedule(connection, id=job_id, run_at=utc("2026-03-04T11:30:00"), reason="paid late")
        odd: Any
        for odd in ([1], {"from": "soon"}, {"from": "2026-03-02", "to": "2026-03-03"}, {"from": 1, "to": None}):
            at = world.clock.now()
            record(connection, action="reschedule", subject=f"job {job_id}", actor="ada", detail=odd, at=at)
    told = world.ask(str(job_id))
    assert ", from 11:00:00 to 2026-03-04 11:30:00 (why: paid late)." in told
    assert [sentence[-12:] for sentence in told.found["sentences"] if " by ada " in sentence] == ["at 09:00:10."] * 4


def test_attempts_alike_are_one_sentence_only_where_nobody_came_between() -> None:
    at = utc("2026-03-02T09:00:00")
    attempts = tuple(
        AttemptFacts(n, "failed", at + n * MINUTE, at + n * MINUTE, "alpha", "E", f"error {n}") for n in range(1, 8)
    )
    retry = ("retry", AuditEntry(at + 3.5 * MINUTE, "ada"))
    job = JobFacts(1, "t", "succeeded", "default", at, at, finished_at=at, attempts=attempts, acts=(retry,))
    told = job_sentences(job, LocalTimes(at, "UTC"), Now(at))
    assert [sentence.split(",")[0] for sentence in told[:3]] == [
        "Attempts 1 to 3 failed with E",
        "It was retried by ada at 09:03:30.",
        "Attempts 4 to 7 failed with E",
    ]


def test_attempts_alike_with_a_released_one_between_are_counted() -> None:
    at = utc("2026-03-02T09:00:00")
    failed = (AttemptFacts(n, "failed", at + n * MINUTE, at + n * MINUTE, "alpha", "E", "error") for n in (1, 2, 4, 5))
    attempts = tuple(replace(each, released=int(each.number == 4)) for each in failed)
    job = JobFacts(1, "t", "succeeded", "default", at, at, finished_at=at, attempts=attempts)
    told = job_sentences(job, LocalTimes(at, "UTC"), Now(at))
    assert told[0].startswith("4 attempts, from 1 to 5, failed with E, from 09:01:00 to 09:05:00")
    assert "Attempt 3 was released before it began." in told


def test_a_batch_names_its_jobs_also_in_the_order_of_time(world: World) -> None:
    world.file(**MINUTELY)
    world.tick()
    job_id = put(world.database, job_type="t.work")
    with world.database.write() as connection:
        detail = {"filter": {"queue": "default"}, "ids": [job_id, 99]}
        record(connection, action="cancel", subject="jobs", actor="ada", detail=detail, at=world.clock.now())
    assert "It was cancelled by ada" in world.ask(str(job_id))


def test_a_type_whose_jobs_died_says_so(world: World) -> None:
    world.file("defaults: {retry: {max_attempts: 1}}\n")
    put(world.database, job_type="t.work")
    world.plan = [fail()]
    world.tick(utc("2026-03-02T09:00:10"))
    said = 'Jobs of this type are dead; the last died at 09:00:10: "cronjobs jobs list --status dead --type t.work".'
    assert said in world.ask("t.work")
    assert world.cronjobs("jobs", "dismiss", "1").code == 0
    assert "dead" not in world.ask("t.work")


def test_a_job_that_the_tick_that_made_it_could_not_run_says_so(world: World) -> None:
    (world.folder / "broken_there.py").write_text("raise RuntimeError('no such table: shop')\n")
    due = 'cron: "* * * * *", job: t.ok'
    world.file(OK, s=due)
    world.tick(utc("2026-03-02T09:00:10"))
    world.file("imports: [broken_there]\n", s=due)
    world.tick(utc("2026-03-02T09:01:10"), host="beta")
    left = (
        "That tick could not load module broken_there (cannot be imported: RuntimeError: no such table: shop), "
        "so it may have had to leave the job to another host."
    )
    assert left in world.ask("s", "--at", "2026-03-02T09:01").found["sentences"]
    assert left in world.ask("1").found["sentences"]
    world.file(OK, s=due)
    world.tick(utc("2026-03-02T09:02:10"))
    assert left in world.ask("1").found["sentences"]
