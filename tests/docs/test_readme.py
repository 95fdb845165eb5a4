"""What the README says is what happens: its code, files, commands and tables, executed."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import subprocess
import sys
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer.main
from support.pages import Page
from support.project import BARE, CRONJOBS, Answer, Project
from support.ticking import Project as Ticking

from cronjobs import RetryPolicy
from cronjobs.desk.cli.commands import Listed
from cronjobs.desk.cli.main import app
from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import RunSettings, ScheduleSettings
from cronjobs.engine.rules.retry import backoff

ROOT = Path(__file__).parents[2]
PAGE = Page("README.md")
README = PAGE.text


def commands(heading: str) -> list[str]:
    """What follows the prompts of a section, comments and all: a shell reads them too."""
    lines = [line for one in PAGE.blocks("console") if one.heading == heading for line in one.text.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    return [line.removeprefix("$ ") for line in lines]


def rows_of_table(first_cell: str) -> list[list[str]]:
    """The cells of the table whose header begins with *first_cell*."""
    lines = README.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first_cell} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows


JOBS = PAGE.block("python", "# jobs.py")
YAML = PAGE.block("yaml", "# cronjobs.yaml")
ENQUEUE = PAGE.block("python", "from cronjobs import enqueue")
FAKE = (
    '#!/bin/sh\necho "$0 $*" >> "$(dirname "$0")/calls"\n'  # of programs that a host may lack, or should not be given
)


class Shop(Project):
    """The README's project; the programs it names are on the PATH."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, f"sqlite:///{folder}/cronjobs.db")
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.program("sqlite3", FAKE)
        self.program("cronjobs", f'#!/bin/sh\nexec {shlex.join(CRONJOBS)} "$@"\n')
        self.program("crontab", FAKE + '[ "$1" != -l ] || { echo "no crontab for shop" >&2; exit 1; }\n')
        (folder / "jobs.py").write_text(JOBS)
        (folder / "cronjobs.yaml").write_text(f"{YAML}env: {{PATH: '{self.path}'}}\n")

    @property
    def path(self) -> str:
        return f"{self.bin}:/usr/bin:/bin"

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def shell(self, script: str, folder: Path | None = None) -> Answer:
        """As typed into a shell, in an environment that knows nothing else."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder or self.folder,
            env=BARE | {"PATH": self.path, "HOME": str(self.folder), "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def calls(self) -> list[str]:
        file = self.bin / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def does(self, *arguments: str, code: int = 0) -> Answer:
        answer = self.run(*arguments)
        assert answer.code == code, answer
        return answer


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


# --- the first screen -------------------------------------------------------------------------------------------------


def test_ci_finds_the_two_commands_that_the_first_screen_shows() -> None:
    """By the function of ``.ci/run`` itself, which executes what it finds."""
    [function] = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("readme_command()")]
    shown = [line.removeprefix("$ ") for one in PAGE.blocks("console")[:2] for line in one.text.splitlines()]
    assert len(shown) == 2
    for says, command in zip(("cronjobs.contrib.demo", "pytest"), shown, strict=True):
        found = subprocess.run(
            ["bash", "-c", f"{function}\nreadme_command '{says}'"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert found.stdout == command + "\n"
        assert f"$ {command}" in README.splitlines()[:25]
        subprocess.run(["bash", "-n", "-c", command], check=True)


def test_what_pip_is_told_to_install_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"(?:cronjobs|\.)\[(\w+)\]", README)
    assert named
    assert set(named) <= set(extras)


def test_every_link_leads_somewhere() -> None:
    assert PAGE.dead_links() == []


def test_every_block_is_executed_by_a_test_of_this_file() -> None:
    """A new block needs a test: the ones without a language are pictures and the log line."""
    assert PAGE.counts() == {
        "console": 5,  # one of them, and one of yaml, by test_readme_time.py
        "python": 2,
        "yaml": 2,
        "sql": 1,
        "": 3,
    }


def test_the_picture_of_status_is_part_of_the_one_that_is_tested() -> None:
    picture = PAGE.block("", "TROUBLE")
    assert picture in Page("docs/seeing.md").block("console", "cronjobs status")


# --- five minutes -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_five_minutes_run_as_they_stand(shop: Shop, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    typed = commands("Five minutes")
    *others, last = typed
    assert last.split("#")[0].strip() == "cronjobs crontab install"  # the only one that is not for a test to do
    answer = shop.shell("\n".join([*others, last.replace("install", "install --dry-run", 1)]), empty)
    assert answer.code == 0, answer
    assert {path.name for path in (empty / "shop").iterdir()} >= {"cronjobs.yaml", "jobs.py", "cronjobs.db"}
    assert "run-due --config" in answer.out
    assert str(empty / "shop" / "cronjobs.yaml") in answer.out
    assert [call for call in shop.calls() if not call.endswith("crontab -l")] == []

    shop.url = f"sqlite:///{empty}/shop/cronjobs.db"
    [job] = shop.jobs()
    assert (job["job_type"], job["status"], job["payload"]) == ("hello", "succeeded", {"name": "Ada"})
    assert "Hello, Ada!" in shop.rows("job_runs")[0]["output"]


# --- the shop ---------------------------------------------------------------------------------------------------------


def test_the_yaml_has_no_problem_and_says_what_the_text_says(tmp_path: Path) -> None:
    (tmp_path / "cronjobs.yaml").write_text(YAML)
    settings = load(tmp_path / "cronjobs.yaml", environ={})
    assert settings.problems == ()
    assert settings.database == f"sqlite:///{tmp_path}/cronjobs.db"
    assert set(settings.schedules) == {"nightly-invoices", "nightly-backup", "refresh-cache"}


def test_check_finds_nothing_in_the_shop(shop: Shop) -> None:
    shop.does("check")


def test_the_handler_does_what_its_comments_say(shop: Shop) -> None:
    shop.does("enqueue", "billing.send_invoice", "--payload", '{"invoice_id": 42}')
    shop.does("enqueue", "billing.send_invoice", "--payload", '{"invoice_id": -1}')
    shop.does("run-due", "--workers", "1", code=1)
    sent, refused = shop.jobs()
    assert (sent["status"], sent["result"]) == ("succeeded", {"sent": 42})
    assert (refused["status"], refused["failures"]) == ("dead", 1)
    assert "there is no invoice -1" in refused["last_error"]
    assert "what a handler prints is kept with its attempt\n" in [row["output"] for row in shop.rows("job_runs")]


def test_every_schedule_of_the_shop_runs(shop: Shop) -> None:
    shop.does("run-due")
    assert shop.jobs() == []  # a new schedule never fires for the past
    for name in load(shop.folder / "cronjobs.yaml", environ={}).schedules:
        shop.does("run", name)
    assert [job["status"] for job in shop.jobs()] == ["succeeded"] * 3
    assert shop.calls() == [f"{shop.bin}/sqlite3 shop.db .backup backup.db"]


def enqueue_in(folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", ENQUEUE],
        cwd=folder,
        env=BARE,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr


def test_enqueue_beside_your_own_rows_makes_one_job(shop: Shop) -> None:
    shop.does("run-due")
    for _ in range(2):  # the key is spent with the first
        assert enqueue_in(shop.folder) == (0, "")
    [job] = shop.jobs()
    assert (job["job_type"], job["payload"], job["status"]) == ("billing.send_invoice", {"invoice_id": 42}, "queued")
    assert abs(job["run_at"] - job["created_at"] - timedelta(minutes=5)) < timedelta(seconds=5)


def test_enqueue_into_a_file_without_tables_names_the_command_that_makes_them(shop: Shop) -> None:
    code, said = enqueue_in(shop.folder)
    assert code == 1
    assert said.splitlines()[-1].endswith('cronjobs.db has no cronjobs tables: run "cronjobs db upgrade"')
    shop.does("db", "upgrade")
    assert enqueue_in(shop.folder) == (0, "")
    assert len(shop.jobs()) == 1


@pytest.fixture
def ticking(project: Ticking) -> Ticking:
    return project.configure()


def test_plain_sql_makes_a_job_that_runs(ticking: Ticking) -> None:
    (ticking.folder / "handlers.py").write_text(JOBS)
    for one in PAGE.blocks("sql"):
        ticking.sql(one.text)
    assert ticking.tick().wait() == 0
    assert ticking.job(1)["status"] == "succeeded"


# --- what becomes of a job --------------------------------------------------------------------------------------------


def raised() -> dict[str, str]:
    """What a handler raises → what the README says it means."""
    return {cell.strip("`"): means for cell, means in rows_of_table("raised")}


RAISING = """
from cronjobs import GiveUp, RetryLater, Snooze, job

@job("first")
def first():
    raise RuntimeError("anything")

@job("give-up")
def give_up():
    raise @GiveUp@

@job("later")
def later():
    raise @RetryLater@

@job("snooze")
def snooze():
    raise @Snooze@

@job("slow", timeout="100ms")
def slow(ctx):
    while True:
        ctx.check()
"""


def test_what_a_handler_raises_decides_as_the_table_says(tmp_path: Path) -> None:
    means = raised()
    assert len(means) == 5
    handlers = RAISING
    for name in ("GiveUp", "RetryLater", "Snooze"):
        [code] = [shown for shown in means if shown.startswith(name)]
        handlers = handlers.replace(f"@{name}@", code)
    project = Project(tmp_path, f"sqlite:///{tmp_path}/cronjobs.db")
    project.write(handlers=handlers)
    for job_type in ("first", "give-up", "later", "snooze", "slow"):
        assert project.run("enqueue", job_type).code == 0
    assert project.run("run-due", "--fail-on", "never").code == 0

    jobs = {job["job_type"]: job for job in project.jobs()}
    ended = {run["job_id"]: run for run in project.rows("job_runs")}
    state = {name: (job["status"], job["failures"], ended[job["id"]]["outcome"]) for name, job in jobs.items()}
    assert state == {
        "first": ("failed", 1, "failed"),  # "failed; retried by the policy"
        "give-up": ("dead", 1, "failed"),  # "permanent: dead at once"
        "later": ("failed", 1, "failed"),  # "failed; retried after that long"
        "snooze": ("queued", 0, "snoozed"),  # "not a failure: comes back then, uncharged"
        "slow": ("failed", 1, "timed_out"),  # "timed out; retried"
    }
    for name, delay in (("later", timedelta(seconds=90)), ("snooze", timedelta(minutes=10))):
        waits = jobs[name]["run_at"] - ended[jobs[name]["id"]]["finished_at"]
        assert abs(waits - delay) < timedelta(seconds=2)


def test_the_figures_of_the_text_are_those_of_the_code() -> None:
    text = " ".join(README.split())
    policy = RetryPolicy()
    [tries, minutes, jitter] = re.findall(
        r"By default a job is tried (\d+) times: after ([\d, a-z]+) minutes, each ±(\d+) %", text
    )[0]
    delays = [timedelta(minutes=int(minute)) for minute in re.findall(r"\d+", minutes)]
    assert policy.max_attempts == int(tries)
    assert [backoff(policy, failures, 0) for failures in range(1, len(delays) + 1)] == delays
    assert backoff(policy, policy.max_attempts, 0) == delays[-1]
    assert policy.jitter * 100 == pytest.approx(int(jitter))
    assert "Not declared: 30 s, or a third of the budget if that is less" in text
    assert RunSettings().default_timeout == min(timedelta(seconds=30), RunSettings().budget / 3)
    assert RunSettings(budget=timedelta(minutes=5)).default_timeout == timedelta(seconds=30)
    assert "waits up to 10 s" in text
    assert RunSettings().shutdown_grace == timedelta(seconds=10)
    schedule = ScheduleSettings("nightly", "x")
    assert "`latest` (default) runs the newest of the last 24 h" in text
    assert (schedule.catch_up, schedule.catch_up_within) == ("latest", timedelta(hours=24))
    assert "`overlap: skip` (default)" in text
    assert schedule.overlap == "skip"


# --- looking ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def busy_shop(shop: Shop) -> Shop:
    """With a job 17 that waits, and one that has the key invoice:42."""
    shop.does("run-due")
    with sqlite3.connect(shop.folder / "cronjobs.db") as connection:
        insert = "INSERT INTO cronjobs_jobs (job_type, payload) VALUES ('billing.send_invoice', '{\"invoice_id\": 1}')"
        for _ in range(17):
            connection.execute(insert)
        connection.execute("UPDATE cronjobs_jobs SET idempotency_key = 'invoice:42' WHERE id = 1")
    connection.close()
    return shop


@pytest.mark.slow
def test_what_the_section_on_looking_shows_can_be_typed(busy_shop: Shop) -> None:
    for command in commands("Looking"):
        answer = busy_shop.shell(command)
        assert answer.code == 0, (command, answer)
    assert busy_shop.jobs()[16]["status"] == "succeeded"  # cronjobs run 17


@pytest.mark.parametrize("command", [command.split("#")[0].split() for command in commands("Looking")])
def test_what_lists_takes_json(busy_shop: Shop, command: list[str]) -> None:
    if command[1] != "run":
        assert busy_shop.call(*command[1:], "--json").json is not None


def test_the_log_line_has_the_keys_of_a_real_one_in_their_order(tmp_path: Path) -> None:
    [shown] = [line for one in PAGE.blocks("") for line in one.text.splitlines() if "job.retried" in line]
    project = Project(tmp_path, f"sqlite:///{tmp_path}/cronjobs.db")
    handlers = (
        'from cronjobs import job\n@job("billing.send_invoice")\ndef send():\n    raise OSError("503 from mail")\n'
    )
    project.write("log: cronjobs.log\ndefaults: {retry: {max_attempts: 20}}\n", handlers)
    assert project.run("enqueue", "billing.send_invoice").code == 0
    assert project.run("run-due").code == 0
    [real] = [line for line in (tmp_path / "cronjobs.log").read_text().splitlines() if "job.retried" in line]
    assert shape(shown) == shape(real)
    assert 'tries="1 of 20"' in real


def shape(line: str) -> list[str]:
    """Of a log line: its instant, its event, and for each key whether its value is a number, a word or quoted text."""
    at, name, rest = line.split(" ", 2)
    kinds = [re.sub(r"\d", "9", at), name]
    for key, value in re.findall(r'(\w+)=("[^"]*"|\S+)', rest):
        kind = "number" if value.isdigit() else "text" if value.startswith('"') else "word"
        kinds.append(f"{key}={kind}")
    return kinds


@pytest.mark.slow
def test_next_answers_as_it_is_written(shop: Shop) -> None:
    shown = re.findall(r"`(cronjobs next[^`]*)`", README)
    assert len(shown) == 2
    for command in shown:
        answer = shop.shell(command)
        assert (answer.code, answer.err) == (0, "")
        assert "Europe/Berlin" in answer.out


def named_commands() -> list[list[str]]:
    """Every ``cronjobs …`` of the README, from code spans and console blocks, as words."""
    spans = re.findall(r"`(cronjobs [^`]+)`", README.replace("\n", " "))
    typed = [line for heading in ("Five minutes", "Looking") for line in commands(heading)]
    return [shlex.split(command, comments=True)[1:] for command in [*spans, *typed] if command.startswith("cronjobs ")]


@pytest.mark.parametrize("words", named_commands(), ids=" ".join)
def test_every_command_and_option_that_is_named_exists(words: list[str]) -> None:
    found: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(found, "commands") and rest:
        assert rest[0] in found.commands, f"cronjobs {' '.join(words)}"
        found = found.commands[rest.pop(0)]
        found = found.load() if isinstance(found, Listed) else found
    options = {name for parameter in found.params for name in parameter.opts}
    assert {word for word in rest if word.startswith("-")} <= options


# --- in production ----------------------------------------------------------------------------------------------------

ENDS = """
import time
from cronjobs import GiveUp, job

@job("fails")
def fails():
    raise RuntimeError

@job("dies")
def dies():
    raise GiveUp("no")

@job("patient", timeout="5s")
def patient(ctx):
    open("started", "w").close()
    while True:
        time.sleep(0.01)
        ctx.check()
"""


@pytest.mark.slow
def test_run_due_ends_with_the_exit_codes_of_the_table(ticking: Ticking, tmp_path: Path) -> None:
    said = re.search(r"Exit codes of `run-due`: (.*?)\n\n", README, re.DOTALL)
    assert said is not None
    assert " ".join(said[1].split()) == (
        "0 done (also when nothing was due, or a job failed and will retry), 1 a job died, 2 usage, 3 configuration, "
        "4 database, 70 a fault of cronjobs itself, 128+n ended by a signal (142: the time limit; 137: the same, where "
        "a handler had disarmed it or the tick was frozen)."  # 142 and 137: tests/engine/process/test_time_limit.py
    )
    ticking.configure(handlers=ENDS)
    assert ticking.tick().wait() == 0
    ticking.add("fails")
    assert ticking.tick().wait() == 0
    ticking.add("dies")
    assert ticking.tick().wait() == 1
    assert ticking.tick("--budget", "soon").wait() == 2
    ticking.configure("schedules: {bad: {cron: '61 * * * *', job: x}}\n", ENDS)
    assert ticking.tick().wait() == 3
    ticking.configure(handlers=ENDS)
    assert ticking.tick("--database-url", f"sqlite:///{tmp_path}/no/such/folder/x.db").wait() == 4


def test_a_tick_that_is_stopped_gives_its_job_back_and_ends_with_128_and_the_signal(shop: Shop) -> None:
    """SIGTERM "stops the intake, tells handlers through their context, waits up to 10 s, and gives the rest back"."""
    (shop.folder / "jobs.py").write_text(JOBS + ENDS)
    shop.does("enqueue", "patient")
    tick = shop.start("run-due")
    while not (shop.folder / "started").exists():
        assert tick.poll() is None
        os.sched_yield()
    tick.terminate()
    tick.communicate(timeout=20)
    assert tick.returncode == 128 + 15
    assert [job["status"] for job in shop.jobs()] == ["queued"]


@pytest.mark.slow
def test_the_brake_stops_claims_until_it_is_let_go(busy_shop: Shop) -> None:
    pauses = re.findall(r"`(cronjobs pause [^`]+)`", README)
    [resume] = set(re.findall(r"`(cronjobs resume [^`]+)`", README))
    assert len(pauses) == 2  # for people, and for deploy scripts
    for pause in pauses:
        assert busy_shop.shell(pause).code == 0
        busy_shop.does("run-due")
        assert {job["status"] for job in busy_shop.jobs()} == {"queued"}
        assert busy_shop.shell(resume).code == 0
    busy_shop.does("run-due")
    assert {job["status"] for job in busy_shop.jobs()} == {"succeeded"}


def test_a_copy_under_another_name_claims_nothing_until_it_is_adopted(busy_shop: Shop) -> None:
    file = busy_shop.folder / "cronjobs.yaml"
    file.write_text(file.read_text().replace("project: shop", "project: staging"))
    assert "cronjobs db adopt" in busy_shop.does("run-due", code=3).err
    assert {job["status"] for job in busy_shop.jobs()} == {"queued"}
    assert "ticks still come" in busy_shop.does("db", "adopt", code=1).err
    with sqlite3.connect(busy_shop.folder / "cronjobs.db") as connection:
        connection.execute("UPDATE cronjobs_ticks SET started_at = 1600000000000000, finished_at = NULL")
    connection.close()
    assert busy_shop.run("db", "adopt").code == 0
    busy_shop.does("run-due")
    assert {job["status"] for job in busy_shop.jobs()} == {"succeeded"}
