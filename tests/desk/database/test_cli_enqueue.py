"""``cronjobs enqueue``: what it refuses, what it writes, and what it prints."""

from __future__ import annotations

import getpass
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, update
from support.project import Project

from cronjobs.clock import SYSTEM
from cronjobs.engine.database.tables import effects, jobs, meta, queues
from cronjobs.engine.store.pruning import STRIPPED

YAML = 'timezone: Europe/Berlin\njob_types: {t.ok: {command: ["true"]}}\n'
CANARY = "c4n4ry-value"


@pytest.fixture
def project(tmp_path: Path, database_url: str) -> Project:
    """On both databases."""
    project = Project(tmp_path, database_url)
    project.write(YAML)
    return project


@pytest.fixture
def lite(tmp_path: Path, sqlite_migrated: str) -> Project:
    """Where the database does not matter."""
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write(YAML)
    return project


def test_every_option_is_in_the_row(project: Project) -> None:
    done = project.call(
        *("enqueue", "t.ok", "--payload", '{"n": 1, "s": "é"}', "--at", "2030-01-02T03:04+01:00", "--queue", "mail"),
        *("--priority", "2", "--idempotency-key", "invoice:1", "--concurrency-key", "smtp:a", "--max-attempts", "3"),
        *("--timeout", "20s", "--meta", "trace=a=b", "--meta", "tenant=x"),
    )
    assert (done.code, done.out, done.err) == (0, "job 1 enqueued, due 2030-01-02 03:04:00 Europe/Berlin\n", "")
    [row] = project.jobs()
    assert row["payload"] == {"n": 1, "s": "é"}
    assert row["run_at"] == datetime(2030, 1, 2, 2, 4, tzinfo=UTC)
    names = ("job_type", "queue", "priority", "status", "max_attempts", "timeout_s", "idempotency_key")
    assert [row[name] for name in names] == ["t.ok", "mail", 2, "queued", 3, 20.0, "invoice:1"]
    assert (row["concurrency_key"], row["meta"]) == ("smtp:a", {"trace": "a=b", "tenant": "x"})
    assert row["enqueued_by"] == f"cli:{getpass.getuser()}"


def test_now_or_after_a_delay(project: Project) -> None:
    assert project.call("enqueue", "t.ok").out == "job 1 enqueued, due now\n"
    assert project.call("enqueue", "t.ok", "--in", "5m").out == "job 2 enqueued, due in 5m\n"
    now, later = project.jobs()
    assert now["run_at"] - now["created_at"] < timedelta(seconds=1)
    assert timedelta(0) <= later["run_at"] - later["created_at"] - timedelta(minutes=5) < timedelta(seconds=1)


def test_a_time_that_has_passed_is_named_so(project: Project) -> None:
    said = project.call("enqueue", "t.ok", "--at", "2026-01-02T03:04Z").out
    assert said == (
        "job 1 enqueued, due 2026-01-02 04:04:00 Europe/Berlin. This time has passed, so the job is due now\n"
    )


def test_a_key_is_spent_once(project: Project) -> None:
    enqueue = ("enqueue", "t.ok", "--idempotency-key", "k")
    assert project.call(*enqueue, "--json").json == {"id": 1, "new": True, "status": "queued"}
    assert project.call(*enqueue).out == "job 1 existed already (t.ok, queued)\n"
    values = {"status": "dead", "finished_at": datetime.now(UTC)}
    project.execute(update(jobs).values(values))
    again = project.call(*enqueue, "--json")
    assert again.json == {"id": 1, "new": False, "status": "dead"}
    assert '"cronjobs jobs retry 1"' in again.err
    assert len(project.jobs()) == 1


def test_no_retry_is_advised_for_a_job_whose_payload_is_gone(project: Project) -> None:
    enqueue = ("enqueue", "t.ok", "--idempotency-key", "k")
    project.call(*enqueue)
    now = datetime.now(UTC)
    project.execute(update(jobs).values(status="dead", finished_at=now, meta=json.loads(STRIPPED)))
    project.execute(insert(effects).values(key="pay:7", job_id=1, attempt=1, state="stopped", begun_at=now))
    why = "only its key is kept: its payload is gone"
    assert why in project.call("jobs", "retry", "1").err
    for command in (enqueue, ("explain", "1"), ("jobs", "show", "1"), ("effects", "settle", "pay:7", "done")):
        told = project.call(*command)
        assert "jobs retry" not in told.out + told.err
        assert command[0] == "effects" or f"because {why}" in " ".join((told.out + told.err).split())


def test_a_key_that_a_job_of_another_type_has_is_named(project: Project) -> None:
    project.write(YAML.replace("t.ok:", 't.mail: {command: ["true"]}, t.ok:'))
    key = ("--idempotency-key", "order:7")
    project.call("enqueue", "t.mail", *key)
    kept = project.call("enqueue", "t.ok", *key)
    assert (kept.code, kept.out) == (0, "job 1 existed already (t.mail, queued)\n")
    assert "job 1 (t.mail) has the same idempotency key, so no t.ok job was enqueued" in kept.err
    assert "job 1 (t.mail) had the same" in project.call("enqueue", "t.ok", *key, "--on-conflict", "replace").err


def test_a_full_queue_refuses_and_counts_that(project: Project) -> None:
    project.execute(insert(queues).values(name="mail", max_waiting=1))
    assert project.call("enqueue", "t.ok", "--queue", "mail").code == 0
    refused = project.call("enqueue", "t.ok", "--queue", "mail")
    assert refused.code == 1
    assert 'queue "mail" is full (max_waiting 1)' in refused.err
    assert len(project.jobs()) == 1
    assert [row["refused"] for row in project.rows("queues")] == [1]


def test_somebody_elses_database_is_not_written_to(project: Project) -> None:
    project.execute(update(meta).values(project="other"))
    done = project.call("enqueue", "t.ok")
    assert done.code == 3
    assert 'belongs to project "other"' in done.err
    assert project.jobs() == []


# --- payloads ---------------------------------------------------------------------------------------------------------

BAD = [
    ("[1]", "payload must be a JSON object, not an array"),
    ("null", "payload must be a JSON object, not null"),
    (f'"{CANARY}"', "payload must be a JSON object, not a string"),
    ("", "payload is not JSON: Expecting value (line 1, column 1)"),
    (f"{{invoice: {CANARY}}}", "payload is not JSON: Expecting property name enclosed in double quotes (line 1, "),
    (f'{{"a": "{CANARY}", "a": 1}}', "payload has the key 'a' twice"),
    ('{"a": {"b": NaN}}', "payload has NaN, which is not JSON"),
    ('{"a": -Infinity}', "payload has -Infinity"),
    ('{"a": 1e999}', "payload.a is inf, which is not JSON"),
    (f'{{"a": "{CANARY}\\u0000"}}', "payload.a contains a NUL character"),
    ('{"a\\u0000": 1}', "a key of payload contains a NUL character"),
    ('{"a": "\\ud800"}', "payload.a contains half of a surrogate pair"),
    ('{"a": ' + "7" * 5000 + "}", "payload has a number with 5,000 digits, more than 400"),
    ('{"a": ' * 40 + "1" + "}" * 40, "is nested deeper than 32 levels"),
    ('{"a": ' * 100_000 + "1" + "}" * 100_000, "payload is nested too deeply"),
    ('{"a": "' + "x" * 300_000 + '"}', "payload has 300,008 bytes, but the limit is 262,144"),
    ('{"a": "' + "x" * 10_000_000 + '"}', "the payload from stdin is larger than 1 MiB"),
    ('{"\\u001b[2J\\n": NaN, "\\u001b[2J\\n": 1}', "payload has NaN"),
    ('{"\\u001b[2J\\n": 1, "\\u001b[2J\\n": 1}', r"payload has the key '\x1b[2J\n' twice"),
    ('{"a\\n\\u001b": "\\u0000"}', r"payload.a\n\x1b contains a NUL character"),
]


@pytest.mark.parametrize(("payload", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_a_bad_payload_is_refused_in_one_line_without_its_values(lite: Project, payload: str, said: str) -> None:
    done = lite.call("enqueue", "t.ok", "--payload", "-", stdin=payload.encode())
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1
    assert len(done.err) < 400
    assert CANARY not in done.err
    assert "\x1b" not in done.err
    assert lite.jobs() == []


def test_a_payload_comes_from_stdin_or_a_file(lite: Project) -> None:
    (lite.folder / "p.json").write_bytes(b'\xef\xbb\xbf{"from": "file"}\n')
    assert lite.call("enqueue", "t.ok", "--payload", "-", stdin=b' {"from": "stdin"}\n').code == 0
    assert lite.call("enqueue", "t.ok", "--payload", "@p.json").code == 0
    assert [row["payload"] for row in lite.jobs()] == [{"from": "stdin"}, {"from": "file"}]


@pytest.mark.parametrize(
    ("given", "stdin", "said"),
    [
        ("@nowhere", b"", "cannot be read from nowhere: No such file or directory"),
        ("@.", b"", "cannot be read from .: Is a directory"),
        ("@/dev/zero", b"", "is larger than 1 MiB"),
        ("-", b"\xff", "is not UTF-8 text"),
        ("-", b"", "is not JSON"),
    ],
)
def test_a_payload_that_cannot_be_read_is_refused(lite: Project, given: str, stdin: bytes, said: str) -> None:
    done = lite.call("enqueue", "t.ok", "--payload", given, stdin=stdin)
    assert (done.code, lite.jobs()) == (2, [])
    assert said in done.err


# --- other options ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--at", "tomorrow"], "'tomorrow' is not an ISO time: write 2026-11-20T09:00"),
        (["--at", "2026-03-29T02:30"], "does not exist in Europe/Berlin, because the clocks change then"),
        (["--at", "2026-10-25T02:30"], "comes twice in Europe/Berlin, because the clocks change then"),
        (["--at", "0001-01-01T00:00+14:00"], "is not between the years 1974 and 9999"),
        (["--at", "9999-12-31T23:59-12:00"], "is not between the years 1974 and 9999"),
        (["--at", "2026-01-01", "--in", "5m"], "give --at or --in, not both"),
        (["--in", "soon"], "--in 'soon' is not a duration"),
        (["--in", "-5m"], "--in '-5m' is not a duration"),
        (["--in", "1e9"], "is not a duration"),
        (["--timeout", "0s"], "--timeout must be above zero"),
        (["--timeout", "31d"], "timeout 31d is above 30d"),
        (["--priority", "10"], "less than or equal to 9"),
        (["--max-attempts", "0"], "greater than or equal to 1"),
        (["--max-attempts", "99999999"], "is not a whole number"),
        (["--idempotency-key", ""], "--idempotency-key is empty: is the variable set?"),
        (["--idempotency-key", "x" * 501], "is longer than 500 characters"),
        (["--queue", ""], "queue '' must have 1 to 200 characters"),
        (["--queue", "a\nb"], "unprintable characters"),
        (["--meta", "trace"], "--meta must have the form key=value"),
        (["--meta", "a=1", "--meta", "a=2"], "--meta has the key 'a' twice"),
        (["--meta", "a=" + "x" * 9000], "meta has more than 8,192 bytes"),
        (["--nonsense"], "No such option"),
    ],
)
def test_nonsense_is_refused_and_nothing_is_written(lite: Project, options: list[str], said: str) -> None:
    done = lite.call("enqueue", "t.ok", *options)
    assert (done.code, done.out) == (2, "")
    assert said in " ".join(done.err.replace("│", "").split())
    assert lite.jobs() == []


@pytest.mark.parametrize("job_type", ["", " x", "a\tb", "x" * 201, "a\udcff"])
def test_a_job_type_that_is_no_name_is_refused(lite: Project, job_type: str) -> None:
    done = lite.call("enqueue", job_type)
    assert (done.code, lite.jobs()) == (2, [])
    assert done.err.startswith("job_type ")


def test_a_time_without_an_offset_is_read_in_the_configured_zone_and_that_is_said(lite: Project) -> None:
    done = lite.call("enqueue", "t.ok", "--at", "2030-07-01T09:00")
    assert (
        done.err
        == "--at 2030-07-01T09:00 is taken as Europe/Berlin time, the configured timezone: 2030-07-01T09:00:00+02:00\n"
    )
    assert lite.jobs()[0]["run_at"] == datetime(2030, 7, 1, 7, tzinfo=UTC)


@pytest.mark.parametrize("pause", [["--all"], ["--queue", "mail"]])
def test_a_pause_that_holds_it_up_is_said(lite: Project, pause: list[str]) -> None:
    lite.call("pause", *pause)
    assert "is paused" in lite.call("enqueue", "t.ok", "--queue", "mail").err
    assert ("is paused" in lite.call("enqueue", "t.ok").err) == (pause == ["--all"])


# --- what the handlers here know --------------------------------------------------------------------------------------

HANDLERS = """
from cronjobs import job
print("a module that prints")

@job("t.say")
def say(ctx, line: str): pass
"""


def test_a_type_that_no_handler_has_is_refused_and_nothing_is_written(project: Project) -> None:
    project.write(YAML, HANDLERS)
    done = project.run("enqueue", "t.sya")
    assert (done.code, done.out, project.jobs()) == (2, "", [])
    assert (
        'no handler has the job type "t.sya", here or on a host that ticked lately. Did you mean "t.say"?' in done.err
    )
    assert "Nothing was written" in done.err
    forced = project.run("enqueue", "t.sya", "--force", "--json")
    assert (forced.code, forced.json) == (0, {"id": 1, "new": True, "status": "queued"})
    assert 'jobs of type "t.sya" cannot run here. Did you mean "t.say"? Job 1 waits' in forced.err


def test_a_type_that_a_host_which_ticked_lately_has_is_enqueued(project: Project) -> None:
    project.write(YAML, HANDLERS)
    assert project.run("run-due").code == 0
    project.write(YAML)
    assert project.run("enqueue", "t.say", "--payload", '{"line": "x"}').code == 0
    assert project.run("enqueue", "t.sya").code == 2
    assert [row["job_type"] for row in project.jobs()] == ["t.say"]


def test_a_payload_that_does_not_fit_is_refused_and_with_force_enqueued(lite: Project) -> None:
    lite.write(YAML, HANDLERS)
    assert lite.run("enqueue", "t.say", "--payload", '{"line": "x"}').err.splitlines()[-1] == "a module that prints"
    misfit = lite.run("enqueue", "t.say", "--payload", '{"lime": "x"}')
    why = "payload does not fit t.say(ctx, line: str): missing a required argument: 'line'"
    assert (misfit.code, misfit.out, len(lite.jobs())) == (2, "", 1)
    assert why in misfit.err
    assert (
        ": nothing was written; to enqueue the job for a version of the handler that takes this payload, add --force"
        in misfit.err
    )
    forced = lite.run("enqueue", "t.say", "--payload", '{"lime": "x"}', "--force")
    assert (forced.code, len(lite.jobs())) == (0, 2)
    assert why in forced.err
    assert lite.run("enqueue", "t.nothing", "--no-import").err == ""


@pytest.mark.parametrize("module", ["raise SystemExit(7)", "import nowhere", "1 +"])
def test_a_module_that_cannot_be_imported_may_have_the_type(lite: Project, module: str) -> None:
    lite.write(YAML, module)
    done = lite.run("enqueue", "t.x", "--json")
    assert done.json == {"id": 1, "new": True, "status": "queued"}
    assert [row["job_type"] for row in lite.jobs()] == ["t.x"]
    assert done.code == 0
    assert "module handlers: cannot be imported" in done.err


def test_a_module_that_ends_the_process_never_makes_a_job_that_was_not_written_look_written(lite: Project) -> None:
    lite.write(YAML, "import os; os._exit(7)")
    done = lite.run("enqueue", "t.x", "--json")
    assert (done.code, done.out, lite.jobs()) == (7, "", [])
    assert lite.run("enqueue", "t.ok", "--json").json == {"id": 1, "new": True, "status": "queued"}


# --- surroundings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [">&-", "2>&- >&-", ">/dev/full", "<&- >&- 2>&-", "| true"])
def test_it_is_enqueued_whatever_became_of_the_streams(lite: Project, where: str) -> None:
    lite.write(YAML, HANDLERS)
    command = f"set -o pipefail; {' '.join(lite.run.__globals__['CRONJOBS'])} enqueue t.say --force {where}"
    code = os.waitstatus_to_exitcode(os.system(f'cd {lite.folder} && bash -c "{command}" 2>/dev/null'))
    assert code == 0
    assert len(lite.jobs()) == 1


def test_in_crons_environment_with_umask_0_the_files_are_private(tmp_path: Path) -> None:
    project = Project(tmp_path, "sqlite:///cronjobs.db")
    project.write(YAML)
    assert project.run("enqueue", "t.ok", umask=0).code == 0
    made = {file.name: oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir() if "cronjobs.db" in file.name}
    assert set(made.values()) == {"0o600"}


def test_without_a_configuration_it_says_so(tmp_path: Path) -> None:
    done = Project(tmp_path, "").call("enqueue", "t.ok")
    assert (done.code, done.out) == (3, "")
    assert 'run "cronjobs init"' in done.err


def test_json_of_the_help_is_what_the_shell_takes(lite: Project) -> None:
    from cronjobs.desk.cli.parse_values import EXAMPLE

    assert json.loads(EXAMPLE.split("'")[1]) == {"invoice_id": 42}


# --- jobs of a schedule -----------------------------------------------------------------------------------------------

MINUTE = timedelta(minutes=1)
TYPED = """
from cronjobs import job
print("imported")
@job("t.bill")
def bill(day: int): ...
"""


def test_trigger_and_backfill_say_that_the_schedules_definition_in_the_file_is_not_applied(lite: Project) -> None:
    one, two, other = (
        f't{n}: {{cron: "* * * * *", job: t.bill, payload: {{day: {day}}}, overlap: allow}}'
        for n, day in ((1, 1), (2, 1), (1, 2))
    )
    lite.write(f"schedules: {{{one}, {two}}}", TYPED)
    assert lite.call("sync").code == 0
    assert lite.call("trigger", "t1", "--no-import").err == ""
    lite.write(f"schedules: {{{other}, {two}}}", TYPED)
    said = "defines t1 differently, but no tick has applied it yet, so this command used the definition in the database"
    assert said in lite.call("trigger", "t1").err
    now = SYSTEM.now().replace(second=30)
    span = ("--from", (now - 10 * MINUTE).isoformat(), "--to", (now - 9 * MINUTE).isoformat())
    assert said in lite.call("backfill", "t1", *span, "--dry-run").err
    assert lite.call("trigger", "t2", "--no-import").err == ""
    assert lite.call("sync").code == 0
    assert lite.call("trigger", "t1", "--no-import").err == ""


def test_trigger_and_backfill_say_whether_the_schedules_payload_fits(lite: Project) -> None:
    lite.write('schedules: {s: {cron: "* * * * *", job: t.bill, payload: {day: soon}, overlap: allow}}', TYPED)
    early = lite.call("trigger", "s")
    assert (early.code, '"s" is in the file but has not been applied yet: run "cronjobs sync"' in early.err) == (
        1,
        True,
    )
    assert 'there is no active schedule "t"' in lite.call("trigger", "t").err
    assert lite.call("sync").code == 0
    misfit = "payload does not fit t.bill: payload.day is not an int\n"
    now = SYSTEM.now().replace(second=30)
    first, second, third = (
        ("--from", (now - minutes * MINUTE).isoformat(), "--to", (now - (minutes - 1) * MINUTE).isoformat())
        for minutes in (10, 20, 30)
    )
    done = lite.call("trigger", "s")
    assert (done.code, done.out) == (0, "job 1 enqueued, due now\n")
    assert done.err.endswith(f"{misfit}if the payload is wrong: cronjobs jobs cancel 1\n")
    assert misfit in lite.call("backfill", "s", *first, "--dry-run").err
    assert len(lite.jobs()) == 1
    assert lite.call("backfill", "s", *first, "--no-import").err == ""
    filled = lite.call("backfill", "s", *second, "--json")
    assert (len(filled.json["run"]), len(lite.jobs())) == (1, 3)
    assert filled.err.endswith(f"{misfit}if the payload is wrong: cronjobs jobs cancel --schedule s\n")
    again = lite.call("backfill", "s", *second)
    assert (again.code, again.err) == (0, "")  # the second call enqueued nothing
    assert lite.call("pause", "--all").code == 0
    assert lite.call("trigger", "s").err.startswith("the job waits, because everything is paused\n")
    assert lite.call("backfill", "s", *second).err == ""
    assert lite.call("resume", "--all").code == 0
    assert lite.call("pause", "--queue", "default").code == 0
    assert lite.call("backfill", "s", *third).err.startswith("the job waits, because its queue is paused\n")
    assert lite.call("pause", "s").code == 0
    also = "schedule s is paused, but this job will run anyway\n"
    assert lite.call("trigger", "s", "--force").err.startswith(f"the job waits, because its queue is paused\n{also}")
    assert lite.call("resume", "--queue", "default").code == 0
    assert lite.call("trigger", "s", "--force").err.startswith(also)
    fourth = ("--from", (now - 40 * MINUTE).isoformat(), "--to", (now - 39 * MINUTE).isoformat())
    assert "these jobs will run anyway" in lite.call("backfill", "s", *fourth).err
