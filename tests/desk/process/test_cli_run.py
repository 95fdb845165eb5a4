"""``cronjobs run``: one job runs in the foreground, is recorded, and no tick runs it again."""

from __future__ import annotations

import os
import pty
import select
import signal
import sqlite3
import subprocess
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select as select_from
from sqlalchemy import update
from support.commands import until
from support.inboxes import Web, served
from support.project import CRONJOBS, Project

from cronjobs.clock import SYSTEM
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs, meta

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases

HANDLERS = """
import asyncio, logging, os, sys, threading, time
from cronjobs import Context, GiveUp, RetryLater, Snooze, job

def wait(ctx):
    with open(f"began-{ctx.job_id}", "a") as file:
        file.write("x")
    give_up = time.monotonic() + 30
    while not os.path.exists("gate"):
        assert time.monotonic() < give_up
        time.sleep(0.01)

@job("t.ok")
def ok(ctx: Context, name: str = "world"):
    assert threading.current_thread() is threading.main_thread()
    print(f"hello {name}")
    print("to stderr", file=sys.stderr)
    ctx.log.info("logged")
    return {"name": name}

@job("t.fail")
def fail(ctx):
    print("before")
    raise RuntimeError("no luck")

@job("t.give-up")
def give_up(ctx): raise GiveUp("never")

@job("t.snooze")
def snooze(ctx): raise Snooze("10m")

@job("t.wait", timeout="1s")
def waits(ctx): wait(ctx)

@job("t.async")
async def waits_async(ctx):
    with open(f"began-{ctx.job_id}", "a") as file:
        file.write("x")
    await asyncio.sleep(30)

@job("t.debug")
def debug(ctx):
    x = 41
    breakpoint()
    print("x is", x, sys.stdin.isatty(), sys.stdout.isatty())

@job("t.debug-fails")
def debug_fails(ctx):
    breakpoint()
    raise RuntimeError("a bug of its own")

@job("t.secret")
def secret(ctx):
    print("the token is", os.environ["TOKEN"])
    raise RuntimeError(os.environ["TOKEN"])
"""

YAML = """
timezone: Europe/Berlin
env: {TOKEN: '${TOKEN:-none}'}
run: {lease: @lease@}
job_types:
  cmd.echo: {command: [sh, -c, 'echo out; echo err >&2; cat; echo $CRONJOBS_JOB_ID']}
  cmd.wait: {command: [sh, ./wait]}
  cmd.slow: {command: [sleep, '30'], timeout: 200ms}
schedules:
  nightly: {cron: '15 2 * * *', job: t.ok, payload: {name: nightly}, priority: 7, queue: night}
  shared: {every: 1h, job: t.ok, overlap: allow}
  inline: {every: 1h, command: [sh, -c, 'echo $CRONJOBS_SCHEDULE; cat'], payload: {a: 1}}
  t.fail: {every: 1h, job: t.ok}
  lost: {every: 1h, job: t.nowhere}
"""


WAIT = 'trap "echo stopped; exit 0" TERM; printf x >> began-$CRONJOBS_JOB_ID; while :; do sleep 0.05; done'


def write(project: Project, lease: str = "60s") -> Project:
    (project.folder / "wait").write_text(WAIT)
    project.write(YAML.replace("@lease@", lease), HANDLERS)
    return project


@pytest.fixture
def project(tmp_path: Path, database_url: str) -> Project:
    """On both databases."""
    return write(Project(tmp_path, database_url))


@pytest.fixture
def lite(tmp_path: Path, sqlite_migrated: str) -> Project:
    """Where the database does not matter."""
    return write(Project(tmp_path, f"sqlite:///{sqlite_migrated}"))


def began(project: Project, job_id: int = 1) -> int:
    """How often the handler of a job was begun."""
    file = project.folder / f"began-{job_id}"
    return len(file.read_text()) if file.exists() else 0


def begin(project: Project, *arguments: str) -> subprocess.Popen[str]:
    """Start ``cronjobs run`` and come back when its handler runs."""
    process = project.start("run", *arguments)
    until(lambda: process.poll() is not None or began(project))  # what it wrote, as a signal may come before that
    assert process.poll() is None, process.communicate()
    return process


@pytest.mark.needs("contrib")
def test_a_run_of_a_schedule_pings_and_one_of_a_type_does_not(lite: Project) -> None:
    with served(Web()) as web:
        with (lite.folder / "cronjobs.yaml").open("a") as file:
            file.write(f"  pinged: {{every: 1h, job: t.ok, ping: '{web.url}/ok'}}\n")
            file.write(f"  fails: {{every: 1h, job: t.give-up, ping: '{web.url}/bad'}}\n")
        assert lite.run("run", "pinged").code == 0
        assert lite.run("run", "t.ok").code == 0
        assert lite.run("run", "fails").code == 1
        assert [path.partition("?")[0] for path in web.paths] == ["/ok/start", "/ok", "/bad/start", "/bad/fail"]
        assert b"never" in web.got[3][1]


def test_it_works_in_the_files_folder_as_a_tick_does(lite: Project, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (lite.folder / "handlers.py").write_text(
        (lite.folder / "handlers.py").read_text() + "\n@job('t.where')\ndef where(ctx): return os.getcwd()\n"
    )
    (elsewhere / "payload.json").write_text("{}")
    words = ["run", "--config", str(lite.folder / "cronjobs.yaml"), "t.where", "--payload", "@payload.json"]
    assert lite.run(*words, cwd=elsewhere).code == 0
    assert [job["result"] for job in lite.jobs()] == [str(lite.folder)]


# --- how it ends ------------------------------------------------------------------------------------------------------


@pytest.mark.either
def test_it_runs_in_the_main_thread_is_seen_and_recorded(project: Project) -> None:
    done = project.run("run", "t.ok", "--payload", '{"name": "you"}')
    assert (done.code, done.out) == (0, "hello you\n")
    assert done.err.splitlines()[:-1] == ["job 1 t.ok started", "to stderr", "INFO cronjobs.job.t.ok: logged"]
    assert done.err.splitlines()[-1].endswith('s; result {"name":"you"}')
    [job] = project.jobs()
    assert (job["status"], job["result"], job["attempts"]) == ("succeeded", {"name": "you"}, 1)
    assert job["enqueued_by"].startswith("cli:")
    [attempt] = project.rows("job_runs")
    assert (attempt["outcome"], attempt["worker"]) == ("succeeded", "foreground")
    assert attempt["output"] == "hello you\nto stderr\nINFO cronjobs.job.t.ok: logged\n"
    assert attempt["error"] is None


@pytest.mark.either
def test_a_failure_shows_its_traceback_and_is_not_tried_again(project: Project) -> None:
    done = project.run("run", "t.fail")
    assert (done.code, done.out) == (1, "before\n")
    assert 'raise RuntimeError("no luck")\nRuntimeError: no luck\njob 1 failed in ' in done.err
    assert done.err.endswith('is dead (no tries are left): no luck. Once fixed: "cronjobs jobs retry 1"\n')
    [job] = project.jobs()
    assert (job["status"], job["failures"], job["max_attempts"], job["error_type"]) == ("dead", 1, 1, "RuntimeError")
    [attempt] = project.rows("job_runs")
    assert attempt["output"] == "before\n"
    assert "RuntimeError: no luck" in attempt["traceback"]


def test_a_job_that_asks_to_be_run_later_is_said_to_be(lite: Project) -> None:
    done = lite.run("run", "t.snooze")
    assert (done.code, lite.jobs()[0]["status"]) == (1, "queued")
    assert "snoozed: a tick will run it in 10m" in done.err


@pytest.mark.either
def test_a_schedule_runs_with_its_payload_now(project: Project) -> None:
    done = project.run("run", "nightly")
    assert (done.code, done.out) == (0, "hello nightly\n")
    [job] = project.jobs()
    assert (job["schedule"], job["priority"], job["queue"]) == ("nightly", 7, "night")
    assert abs(job["scheduled_for"] - datetime.now(UTC)) < timedelta(minutes=1)
    assert job["max_attempts"] == 1
    assert job["enqueued_by"].startswith("cli:")


def test_two_jobs_of_a_schedule_run_at_once_only_if_it_allows_that(project: Project) -> None:
    assert project.run("run", "nightly").code == 0
    waiting = {"status": "queued", "finished_at": None}
    project.execute(update(jobs).values(waiting))
    refused = project.run("run", "nightly")
    assert refused.code == 1
    assert 'job 1 of schedule nightly is still waiting (overlap): to run that job: "cronjobs run 1"' in refused.err
    assert len(project.jobs()) == 1
    project.execute(update(jobs).values(schedule="shared"))
    assert project.run("run", "shared").code == 0


def test_a_command_is_seen_and_recorded_and_gets_its_payload(lite: Project) -> None:
    done = lite.run("run", "cmd.echo", "--payload", '{"a": "$(id)"}')
    assert done.code == 0
    assert sorted(done.out.split()) == sorted(["out", "err", '{"a":', '"$(id)"}1'])
    assert lite.rows("job_runs")[0]["output"] == done.out
    assert lite.run("run", "inline").out == 'inline\n{"a": 1}'


def test_commands_and_handlers_get_the_files_environment(lite: Project) -> None:
    program = lite.folder / "bin" / "mine"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho from $WHERE\n")
    program.chmod(0o755)
    env = f"env: {{PATH: '{program.parent}:/usr/bin:/bin', WHERE: here}}\n"
    lite.write(env + "job_types: {c: {command: [mine]}}", HANDLERS)
    assert lite.run("check").code == 0
    assert lite.run("run", "c", env={"WHERE": "elsewhere"}).out == "from here\n"


@pytest.mark.slow
def test_a_command_has_its_time_limit_and_a_handler_has_none(lite: Project) -> None:
    slow = lite.run("run", "cmd.slow")
    assert slow.code == 1
    assert "timed out after 200ms" in slow.err
    process = lite.start("run", "t.wait")  # the job's timeout is 1s
    until(lambda: began(lite, 2))
    over = SYSTEM.monotonic() + 1.2
    until(lambda: SYSTEM.monotonic() > over)
    (lite.folder / "gate").touch()
    process.communicate(timeout=30)
    assert process.returncode == 0


# --- by its id --------------------------------------------------------------------------------------------------------


def test_a_waiting_job_runs_before_it_is_due_and_retries_as_usual(project: Project) -> None:
    project.call("enqueue", "t.fail", "--in", "24h", "--no-import")
    done = project.run("run", "1")
    assert done.code == 1
    assert "a tick will retry it in " in done.err
    [job] = project.jobs()
    assert (job["status"], job["failures"], job["max_attempts"]) == ("failed", 1, None)
    assert project.run("run", "1").code == 1
    assert project.jobs()[0]["failures"] == 2


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"status": "succeeded"}, 'job 1 has succeeded: "cronjobs run t.ok" runs a new job'),
        ({"status": "dead"}, 'job 1 is dead: "cronjobs jobs retry 1" queues it again'),
        ({"status": "cancelled"}, "job 1 is cancelled:"),
        ({"status": "running"}, "job 1 is running already: attempt 3, on web1"),
        ({"job_type": "os:system"}, 'job 1 is of type "os:system", which cannot run here'),
    ],
)
def test_a_job_that_cannot_be_run_says_why_and_is_left_alone(lite: Project, values: dict[str, str], said: str) -> None:
    lite.call("enqueue", "t.ok", "--no-import")
    more: dict[str, object] = {"attempts": 3}
    if values.get("status") == "running":
        more |= {"locked_by": "web1:boot:1:2:3:4", "locked_until": datetime.now(UTC)}
    elif "status" in values:
        more |= {"finished_at": datetime.now(UTC)}
    lite.execute(update(jobs).values(values | more))
    before = lite.jobs()
    done = lite.run("run", "1")
    assert (done.code, done.out) == (1, "")
    assert said in done.err
    assert (lite.jobs(), lite.rows("job_runs")) == (before, [])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["7"], 1, "there is no job 7"),
        (["007"], 1, "there is no job 7"),
        (["9" * 5000], 1, "there is no job with that id"),
        (["7", "--payload", "{}"], 2, "use --payload only with a TYPE or SCHEDULE"),
        (["t.okk"], 2, 'no job type or schedule "t.okk" is known here; did you mean "t.ok"?'),
        (["nightyl"], 2, 'did you mean "nightly"?'),
        (["--schedule", "t.ok"], 2, 'no schedule "t.ok" is known here'),
        (["lost"], 2, 'schedule lost names the job type "t.nowhere", which cannot run here'),
        (["t.ok", "--payload", "[]"], 2, "payload must be a JSON object"),
        (["t.ok", "--payload", '{"nme": 1}'], 2, "payload does not fit t.ok"),
        (["²"], 2, "no job type or schedule"),
        ([""], 2, "no job type or schedule"),
        (["os:system"], 2, "no job type or schedule"),
    ],
)
def test_nonsense_runs_nothing_and_leaves_no_row(lite: Project, arguments: list[str], code: int, said: str) -> None:
    done = lite.run("run", *arguments)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert lite.jobs() == []


def test_a_type_goes_before_a_schedule_of_that_name(lite: Project) -> None:
    assert lite.run("run", "t.fail").code == 1
    assert lite.run("run", "--schedule", "t.fail").code == 0
    assert [(job["job_type"], job["schedule"]) for job in lite.jobs()] == [("t.fail", None), ("t.ok", "t.fail")]


def test_nothing_runs_from_somebody_elses_database(project: Project) -> None:
    project.execute(update(meta).values(project="shop", environment="production"))
    done = project.run("run", "t.ok")
    assert (done.code, done.out, project.jobs()) == (3, "", [])
    assert 'belongs to environment "production"' in done.err


# --- interrupted ------------------------------------------------------------------------------------------------------


@pytest.mark.either
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_job_begun_by_hand_and_interrupted_is_cancelled_for_good(project: Project, number: signal.Signals) -> None:
    process = begin(project, "t.wait")
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "started by hand, so it is not retried" in err
    assert "Traceback" not in err
    [job] = project.jobs()
    assert (job["status"], job["locked_by"]) == ("cancelled", None)
    assert project.rows("job_runs")[0]["outcome"] == "cancelled"
    (project.folder / "gate").touch()
    assert project.run("run-due").code == 3  # the schedule "lost" names a job type that nobody has
    assert began(project) == 1


@pytest.mark.parametrize("moment", range(5))
def test_ctrl_c_is_heard_from_the_claim_on(lite: Project, moment: int) -> None:
    """Between "started" and the handler's first line there are a few hundredths of a second."""
    process = lite.start("run", "t.wait")
    assert process.stderr is not None
    assert "started" in process.stderr.readline()
    give_up = SYSTEM.monotonic() + moment * 0.004
    until(lambda: SYSTEM.monotonic() > give_up)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, "started by hand, so it is not retried" in err) == (130, True), err
    assert [(job["status"], job["locked_by"]) for job in lite.jobs()] == [("cancelled", None)]


@pytest.mark.parametrize("job_type", ["t.async", "cmd.wait"])
def test_async_handlers_and_commands_are_interrupted_too(lite: Project, job_type: str) -> None:
    process = begin(lite, job_type)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert lite.jobs()[0]["status"] == "cancelled"
    assert out.endswith("stopped\n" if job_type == "cmd.wait" else "")


@pytest.mark.either
def test_a_job_named_by_its_id_and_interrupted_waits_as_before(project: Project) -> None:
    project.call("enqueue", "t.wait", "--in", "24h", "--no-import")
    [before] = project.jobs()
    process = begin(project, "1")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted by hand (Ctrl-C or the debugger's q); the job waits as before" in err
    [after] = project.jobs()
    assert {name for name in before if before[name] != after[name]} <= {
        *("attempts", "started_at", "last_error", "last_failed_at"),
    }
    assert after["attempts"] == 1
    assert project.rows("job_runs")[0]["outcome"] == "interrupted"


def test_killed_by_hand_it_is_dead_and_no_tick_runs_it_again(project: Project) -> None:
    process = begin(project, "t.wait")
    process.kill()
    process.communicate()
    [job] = project.jobs()
    assert job["status"] == "running"
    assert project.rows("job_runs") == [], "an attempt that has not ended is in the history"
    project.execute(update(jobs).values(locked_until=datetime.now(UTC) - timedelta(seconds=1)))
    (project.folder / "gate").touch()
    project.run("run-due")
    [job] = project.jobs()
    assert (job["status"], began(project)) == ("dead", 1)
    assert job["last_error"].endswith("no automatic retry of a job that was started by hand")
    [attempt] = project.rows("job_runs")
    assert attempt["outcome"] == "lost"


# --- the lease --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_lease_is_renewed_while_it_runs(project: Project) -> None:
    write(project, lease="2s")
    process = begin(project, "t.wait")
    [first] = project.jobs()
    until(lambda: project.jobs()[0]["locked_until"] > first["locked_until"] + timedelta(seconds=2))
    (project.folder / "gate").touch()
    process.communicate(timeout=30)
    assert (process.returncode, project.jobs()[0]["status"]) == (0, "succeeded")


def test_a_lease_that_was_taken_over_stops_it_and_nothing_is_recorded(project: Project) -> None:
    write(project, lease="2s")
    process = begin(project, "t.wait")
    other = {"attempts": 2, "locked_by": "other:b:1:2:3:4", "locked_until": datetime.now(UTC) + timedelta(minutes=5)}
    project.execute(update(jobs).values(other))
    [before] = project.jobs()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "this attempt will record nothing, because the lease was taken over" in err
    assert project.jobs() == [before]
    assert not (project.folder / "gate").exists()


def test_a_lease_that_cannot_be_renewed_in_time_stops_it_and_nothing_is_recorded(lite: Project) -> None:
    write(lite, lease="2s")
    process = begin(lite, "t.wait")
    with closing(sqlite3.connect(lite.folder / lite.url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        _, err = process.communicate(timeout=30)
        other.execute("ROLLBACK")
    assert process.returncode == 1
    assert "this attempt will record nothing, because the lease expired" in err
    assert lite.jobs()[0]["status"] == "running"  # until a tick finds it


def test_an_end_waits_for_a_row_that_somebody_holds_for_as_long_as_nobody_presses_ctrl_c(project: Project) -> None:
    write(project, lease="2s")
    process = begin(project, "t.wait")
    database = Database(parse_url(project.url))
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(select_from(jobs.c.id).with_for_update())
        (project.folder / "gate").touch()
        errors = process.stderr
        assert errors is not None
        until(lambda: "retrying" in errors.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 4
    database.close()
    process.communicate()
    assert project.jobs()[0]["status"] == "running"


def test_a_cancel_request_reaches_a_command(lite: Project) -> None:
    write(lite, lease="2s")
    process = begin(lite, "cmd.wait")
    lite.execute(update(jobs).values(cancel_requested_at=datetime.now(UTC)))
    out, err = process.communicate(timeout=30)
    assert (process.returncode, lite.jobs()[0]["status"]) == (1, "cancelled")
    assert out.endswith("stopped\n")
    assert "cancel was requested" in err


# --- the terminal -----------------------------------------------------------------------------------------------------


def test_the_debugger_works_through_a_pipe(lite: Project) -> None:
    done = lite.run("run", "t.debug", stdin="p x + 1\nx = 99\nc\n")
    assert (done.code, done.out.splitlines()[-1]) == (0, "(Pdb) (Pdb) x is 99 False False")
    assert "(Pdb) 42" in done.out
    quit_ = lite.run("run", "t.debug", stdin="q\n")
    assert quit_.code == 1
    assert lite.jobs()[1]["status"] == "cancelled"


class Terminal:
    """``cronjobs run`` on a terminal of its own."""

    def __init__(self, project: Project, job_type: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*CRONJOBS, "run", job_type],
            cwd=project.folder,
            env={"PATH": "/usr/bin:/bin", "TERM": "dumb"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        while text not in self.seen:
            assert select.select([self.master], [], [], 20)[0], self.seen
            self.seen += os.read(self.master, 4096).decode()

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def send(self, number: signal.Signals) -> None:
        """Send a signal at the debugger's prompt, again until something happens, as a person would.

        One that comes after readline has shown its prompt, and before it waits, is heard only with the next (CPython's
        ``readline_until_enter_or_signal``).
        """
        for _ in range(20):
            self.process.send_signal(number)
            if select.select([self.master], [], [], 1)[0]:
                return

    def ends(self) -> int:
        """Wait for the exit code, and read the terminal meanwhile: otherwise the process could not end."""
        with suppress(OSError):  # Linux says so when the other side is closed
            while select.select([self.master], [], [], 30)[0]:
                self.seen += os.read(self.master, 4096).decode()
        os.close(self.master)
        return self.process.wait(60)


def test_the_debugger_works_on_a_terminal(lite: Project) -> None:
    terminal = Terminal(lite, "t.debug")
    terminal.wait_for("(Pdb) ")
    terminal.type("x = 7\n")
    terminal.wait_for("x = 7\r\n(Pdb) ")
    terminal.type("c\n")
    terminal.wait_for("x is 7 True True")
    terminal.wait_for("succeeded")
    assert terminal.ends() == 0
    assert "x is 7" in lite.rows("job_runs")[0]["output"]


def test_a_failure_after_a_ctrl_c_that_only_the_debugger_heard_is_the_jobs_own(lite: Project) -> None:
    terminal = Terminal(lite, "t.debug-fails")
    terminal.wait_for("(Pdb) ")
    terminal.send(signal.SIGINT)
    terminal.wait_for("--KeyboardInterrupt--")
    terminal.type("c\n")
    assert terminal.ends() == 1
    assert "RuntimeError: a bug of its own" in terminal.seen
    assert lite.jobs()[0]["status"] == "dead"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_debugger_does_not_keep_a_run_from_being_ended(lite: Project, number: signal.Signals) -> None:
    terminal = Terminal(lite, "t.debug")
    terminal.wait_for("(Pdb) ")
    terminal.send(number)
    assert terminal.ends() == 128 + number
    assert lite.jobs()[0]["status"] == "cancelled"


@pytest.mark.parametrize("where", [">&-", "2>&- >&-", ">/dev/full 2>&1", "<&- >&- 2>&-", "| true"])
def test_the_result_is_recorded_whatever_became_of_the_streams(lite: Project, where: str) -> None:
    script = f"set -o pipefail; {' '.join(CRONJOBS)} run t.ok {where}"
    done = subprocess.run(["bash", "-c", script], cwd=lite.folder, env={"PATH": "/usr/bin:/bin"}, capture_output=True)
    assert done.returncode == 0
    assert lite.jobs()[0]["status"] == "succeeded"
    assert "hello world" in lite.rows("job_runs")[0]["output"]


def test_secrets_are_masked_in_what_is_kept(lite: Project) -> None:
    done = lite.run("run", "t.secret", env={"TOKEN": "c4n4ry-token"})
    assert done.code == 1
    assert "c4n4ry" not in done.err
    assert "c4n4ry" not in str(lite.everything())
    assert lite.rows("job_runs")[0]["output"] == "the token is ***\n"


def test_quietly_only_the_job_speaks(lite: Project) -> None:
    done = lite.run("run", "-q", "t.ok")
    assert (done.out, done.err) == ("hello world\n", "to stderr\nINFO cronjobs.job.t.ok: logged\n")
    assert lite.run("-q", "run", "t.ok").err == done.err


def test_a_module_that_cannot_be_imported_is_named(lite: Project) -> None:
    lite.write("", "import nowhere")
    done = lite.run("run", "t.ok")
    assert done.code == 2
    assert "module handlers: cannot be imported: ModuleNotFoundError: No module named 'nowhere'" in done.err


def test_a_run_of_a_schedule_is_on_record_as_triggered(lite: Project) -> None:
    """Because it is on record, the run makes up for a missed one, and no finding asks to run the work again."""
    assert lite.run("run", "nightly").code == 0
    assert lite.run("run", "t.ok").code == 0
    [told] = [row for row in lite.rows("audit") if row["action"] == "trigger"]
    assert told["subject"] == "nightly"
    assert told["detail"]["job_id"] == 1
