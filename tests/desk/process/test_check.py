"""``cronjobs check``: each finding with its position, notes that are not findings, and ``--live``."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, update
from support.project import Project

from cronjobs.desk.cli import known_types
from cronjobs.desk.insight.check_config import _command_fault, check
from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import JobTypeSettings, Settings
from cronjobs.engine.database.tables import jobs, meta, ticks
from cronjobs.engine.jobs import registry as handlers_here
from cronjobs.engine.jobs.job_types import JobType, JobTypes
from cronjobs.model import RetryPolicy

PERHAPS = "The handler may be in a module that cannot be imported."

HANDLERS = """
from cronjobs import Context, job
print("a module that prints")

@job("t.say", timeout="10s")
def say(ctx: Context, line: str, count: int = 1): pass
@job("t.any")
def anything(**payload): pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """With a database that nobody ever made: check needs none."""
    return Project(tmp_path, "sqlite:///cronjobs.db")


def test_all_is_well(project: Project) -> None:
    project.write("schedules: {a: {every: 5m, job: t.say, payload: {line: x}}, b: {every: 1h, job: t.any}}", HANDLERS)
    done = project.run("check")
    assert (done.code, done.out) == (0, "ok: 2 job types, 2 schedules\n")
    assert done.err == "a module that prints\n"
    assert project.run("check", "--json").json == {
        "ok": True,
        "fatal": False,
        "findings": [],
        "notes": [],
        "job_types": 2,
        "schedules": 2,
    }
    assert {file.name for file in project.folder.iterdir()} <= {"cronjobs.yaml", "handlers.py", "__pycache__"}


# YAML below the three lines that every file begins with, and what is found.
FOUND = [
    (
        "schedules:\n  a: {every: 5m, job: t.sya}",
        '5:23: schedules.a.job: no handler or command is registered under "t.sya", did you mean "t.say"?',
    ),
    (
        "schedules:\n  a: {every: 5m, job: t.say, payload: {lime: x}}",
        "5:39: schedules.a.payload: payload does not fit t.say(ctx: cronjobs.Context, line: str, count: int = ",
    ),
    ("schedules:\n  a: {every: 5m, job: t.say}", "5:3: schedules.a: payload does not fit t.say"),
    (
        "schedules:\n  a: {every: 5m, job: t.say, payload: {line: x, count: many}}",
        "5:56: schedules.a.payload.count: is not an int (t.say)",
    ),
    (
        "schedules:\n  a: {every: 5m, job: t.say, payload: {line: 7}}",
        "5:46: schedules.a.payload.line: is not a str (t.say)",
    ),
    (
        "job_types:\n  t.sya: {timeout: 5s}",
        '5:3: job_types.t.sya: no handler is registered under this name, did you mean "t.say"?',
    ),
    (
        "run: {long_jobs: 0}\njob_types:\n  t.say: {timeout: 55s}",
        "6:20: job_types.t.say.timeout: t.say: timeout 55s leaves no room in run.budget (55s) for the tick's start, ",
    ),
    (
        "run: {long_jobs: 0}\nschedules:\n  a: {every: 5m, command: [echo], timeout: 53s}",
        "schedules.a.timeout: a: timeout 53s, with 2s to stop its process, leaves no room in run.budget (55s)",
    ),
    (
        "run: {long_jobs: 0}\njob_types:\n  t.say: {timeout: 53s, isolation: process}",
        (
            "2s to stop its process, leaves no room in run.budget (55s) for the tick's start, so the job would "
            "never run. Set the timeout to at most 52s"
        ),
    ),
    (
        "run: {long_jobs: 0}\nschedules:\n  a: {every: 5m, job: t.any, timeout: 55s}",
        "6:39: schedules.a.timeout: t.any: timeout 55s leaves no room in run.budget (55s)",
    ),
    (
        "run: {long_jobs: 0}\njob_types:\n  t.say: {timeout: 2h}",
        (
            "6:20: job_types.t.say.timeout: t.say: timeout 2h is longer than run.budget (55s), and run.long_jobs is 0: "
            "the job would never start. Raise long_jobs, shorten the timeout, or raise the budget"
        ),
    ),
    (
        "run: {budget: 5s, long_jobs: 0}",
        "3:10: imports: t.say: timeout 10s is longer than run.budget (5s), and run.long",
    ),
    (
        "run: {long_jobs: 0}\nschedules:\n  a: {every: 5m, job: t.any, timeout: 2h}",
        "6:39: schedules.a.timeout: t.any: timeout 2h is longer than run.budget (55s), and run.long_jobs is 0",
    ),
    (
        "job_types:\n  t.say: {max_memory: 64MiB}",
        '5:3: job_types.t.say: max_memory works only for a job in its own process: add "isolation: process"',
    ),
    (
        "job_types:\n  c: {command: [no-such-program, x]}",
        "5:16: job_types.c.command: command not found: no-such-program is not on PATH=/usr/bin:/bin; write its full",
    ),
    ("job_types:\n  c: {command: [./plain]}", "job_types.c.command: command not executable: @/plain; chmod +x it"),
    ("job_types:\n  c: {command: [plain]}", "plain is not on PATH=/usr/bin:/bin; for the file in this folder write ./"),
    ("job_types:\n  c: {command: [./gone]}", "job_types.c.command: command not found: @/gone"),
    ("job_types:\n  c: {command: [/tmp]}", "job_types.c.command: command not executable: /tmp"),
    ("schedules:\n  c: {every: 5m, command: [gone-too]}", "5:27: schedules.c.command: command not found: gone-too"),
    ("log: nowhere/x.log", "4:6: log: there is no folder @/nowhere"),
    ("log: .", "4:6: log: @ is not a file"),
    ("log: link", "4:6: log: @/link is a symbolic link, which cronjobs does not follow"),
    ("schedules:\n  a: {every: 5s, job: t.any}", "schedules.a.every: cron starts a tick once a minute"),
]


@pytest.mark.parametrize(("yaml", "said"), FOUND, ids=[said[:50] for _, said in FOUND])
def test_what_is_wrong_is_found_with_its_place(project: Project, yaml: str, said: str) -> None:
    (project.folder / "plain").write_text("#!/bin/sh\n")
    (project.folder / "link").symlink_to("elsewhere.log")
    project.write(yaml, HANDLERS)
    done = project.run("check")
    assert done.code == 1
    lines = done.out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("cronjobs.yaml:")
    assert said.replace("@", str(project.folder)) in lines[0]
    assert done.err.endswith("1 finding\n")
    found = project.run("check", "--json").json
    assert not found["ok"]
    assert found["findings"][0]["message"] in lines[0]


def test_a_command_on_the_shells_path_only_is_found(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "mine"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    settings = Settings(tmp_path / "c.yaml", tmp_path)
    entry = JobTypeSettings("c", ("mine",))
    environ = {"PATH": str(program.parent)}
    assert _command_fault(settings, entry, environ) == (
        f"command not found under cron, whose PATH is /usr/bin:/bin: write {program}, or set PATH under the key env"
    )
    ours = JobTypeSettings("c", ("mine",), env=(("PATH", str(program.parent)),))
    assert _command_fault(settings, ours, {}) is None
    assert _command_fault(Settings(tmp_path / "c.yaml", tmp_path, env=ours.env), entry, {}) is None


def test_a_module_that_cannot_be_imported_shows_where(project: Project) -> None:
    module = "from cronjobs import job\ndef setup():\n    raise RuntimeError('no\\nluck')\nsetup()\n"
    project.write("schedules: {a: {every: 5m, job: t.x}}", module)
    done = project.run("check")
    assert done.code == 1
    assert done.out.splitlines() == [
        "cronjobs.yaml:3:11: imports[0]: handlers cannot be imported: RuntimeError: no; luck",
        f'    File "{project.folder}/handlers.py", line 4, in <module>',
        "      setup()",
        f'    File "{project.folder}/handlers.py", line 3, in setup',
        "      raise RuntimeError('no\\nluck')",
        f'note: cronjobs.yaml:4:33: schedules.a.job: no handler or command is registered under "t.x". {PERHAPS}',
    ]
    assert project.run("check", "--no-import").out == "ok: 0 job types, 1 schedule; handlers were not imported\n"


ENDS_THE_PROCESS = "import os\nos._exit(0)"


@pytest.mark.parametrize(
    "module", ["raise SystemExit(0)", "1 +", "import nowhere", "raise BaseException('x')", ENDS_THE_PROCESS]
)
def test_no_module_ends_the_check(project: Project, module: str) -> None:
    project.write("", module)
    done = project.run("check")
    assert done.code == 1
    assert "handlers cannot be imported: " in done.out


@pytest.mark.parametrize("caught", ["Nobody", "Exception"])
def test_an_import_that_hangs_ends_when_a_tick_would_end_and_says_where_it_was(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caught: str
) -> None:
    hangs = f"import time\nclass Nobody(Exception): pass\nwhile True:\n  try: time.sleep(60)\n  except {caught}: pass\n"
    project.write("", "")
    (project.folder / "hangs.py").write_text("import vendor\n")
    (project.folder / "vendor.py").write_text(hangs)
    settings = load(project.folder / "cronjobs.yaml", environ={})
    monkeypatch.syspath_prepend(project.folder)
    monkeypatch.setattr(known_types, "SLOW_IMPORT_S", 0.5)
    monkeypatch.setattr(known_types, "is_terminal", lambda _: True)
    run = replace(settings.run, budget=timedelta(seconds=1))
    known = known_types.known_types(replace(settings, run=run, imports=("hangs",)))
    [fault] = [each for each in known.faults if each.where == "module hangs"]
    where = f"; the import is at {project.folder}/vendor.py, line "
    ended = f"ImportTimeout: the import did not end within 1s (run.budget){where}"
    assert fault.what.startswith(f"cannot be imported: {ended}")
    told = f"still importing the handlers, for at most 1s (run.budget); Ctrl-C ends this command{where}"
    assert told in capsys.readouterr().err
    assert not any(signal.getitimer(signal.ITIMER_REAL))


def test_secrets_are_in_no_finding(project: Project) -> None:
    project.write("env: {TOKEN: '${TOKEN}'}", "import os\nraise RuntimeError(os.environ['TOKEN'])")
    done = project.run("check", env={"TOKEN": "c4n4ry-token"})
    assert "RuntimeError: ***" in done.out
    assert "c4n4ry" not in done.out + done.err + project.run("check", "--json", env={"TOKEN": "c4n4ry-token"}).out


def test_a_file_that_cannot_be_used_ends_in_exit_3(project: Project) -> None:
    (project.folder / "cronjobs.yaml").write_text("database: sqlite:///x.db\nschedules: [\n")
    done = project.call("check")
    assert done.code == 3
    assert done.out.startswith("cronjobs.yaml:")
    found = project.call("check", "--json")
    assert (found.code, found.json["ok"], found.json["fatal"]) == (3, False, True)
    assert project.call("check", "--config", "gone.yaml").code == 3


UNSET = {
    "database": "database: ${UNSET_ONE}\n",
    "a part of the database": "database: postgresql://run:${UNSET_ONE}@db/shop\n",
    "env": "database: sqlite:///x.db\nenv: {TOKEN: '${UNSET_ONE}'}\n",
    "a schedule": "database: sqlite:///x.db\nschedules: {a: {every: 1h, command: [echo, '${UNSET_ONE}']}}\n",
    "alerts": "database: sqlite:///x.db\nalerts: {channels: {ops: {webhook: {url: '${UNSET_ONE}'}}}}\n",
    "log": "database: sqlite:///x.db\nlog: ${UNSET_ONE}\n",
    "a ping": "database: sqlite:///x.db\nrun: {ping: '${UNSET_ONE}'}\n",
}


@pytest.mark.needs("contrib")
@pytest.mark.parametrize("where", UNSET)
def test_a_variable_that_is_not_set_fails_and_is_named(project: Project, where: str) -> None:
    (project.folder / "cronjobs.yaml").write_text(UNSET[where])
    done = project.call("check")
    assert done.code in (1, 3)
    assert "${UNSET_ONE} is not set" in done.out


@pytest.mark.parametrize("prefix", ["t.fetch", "t."])
def test_a_limit_that_names_a_job_type_is_told_what_limits_count(project: Project, prefix: str) -> None:
    types = "job_types: {t.fetch: {command: [/bin/true]}}\n"
    (project.folder / "cronjobs.yaml").write_text(f"database: sqlite:///x.db\nlimits: {{'{prefix}': 2}}\n{types}")
    said = project.call("check").out
    assert f'limits.{prefix}: "{prefix}" names a job type, but limits count by concurrency_key' in said
    assert f'enqueue(connection, "t.fetch", …, concurrency_key="{prefix}")' in said
    (project.folder / "cronjobs.yaml").write_text(f"database: sqlite:///x.db\nlimits: {{'fetch:': 2, t: 1}}\n{types}")
    assert "names a job type" not in project.call("check").out


def test_no_database_is_needed_but_one_must_be_named(project: Project) -> None:
    (project.folder / "cronjobs.yaml").write_text("database: ${DATABASE_URL}\n")
    unset = project.call("check")
    assert unset.code == 1
    assert "cronjobs.yaml:1:11: database: ${DATABASE_URL} is not set: " in unset.out
    assert project.run("check", env={"DATABASE_URL": "sqlite:///x.db"}).code == 0
    (project.folder / "cronjobs.yaml").write_text("project: shop\n")
    missing = project.call("check")
    assert missing.code == 1
    assert "cronjobs.yaml: database: no database is set: add " in missing.out
    (project.folder / "cronjobs.yaml").write_text("database: postgresql://nobody@127.0.0.1:1/x\n")
    assert project.call("check").code == 0


def test_a_folder_that_cannot_be_written_is_found(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write()
    access = os.access  # tests may run as root, who may write everywhere, so ``access`` answers as for another user
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK and access(path, mode))
    assert " cannot create files in " in project.call("check").out


# --- notes ------------------------------------------------------------------------------------------------------------


def test_clock_changes_that_touch_a_schedule_are_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cronjobs.yaml").write_text(
        "database: sqlite:///x.db\ntimezone: Europe/Berlin\nschedules:\n"
        '  nightly: {cron: "30 2 * * *", job: x}\n  hourly: {cron: "5 * * * *", job: x}\n'
        '  day: {cron: "30 12 * * *", job: x}\n  every: {every: 1h, job: x}\n'
        '  utc: {cron: "30 2 * * *", timezone: UTC, job: x}\n'
    )
    settings = load(None, environ={})
    found = check(settings, None, file="cronjobs.yaml", environ={}, now=datetime(2026, 1, 1, tzinfo=UTC))
    assert found.findings == ()
    place = "cronjobs.yaml:4:19: schedules.nightly.cron"
    assert [str(note) for note in found.notes] == [
        f"{place}: 2026-03-29 02:30 does not exist in Europe/Berlin: the schedule runs at 03:00 instead",
        f"{place}: 2026-10-25 02:30 comes twice in Europe/Berlin: the schedule runs the first time only",
    ]


NOTED = """\
database: sqlite:///x.db
defaults: {retry: {base: 5s}}
job_types:
  dump: {command: [/bin/echo, app, ">", /b.sql], retry: {delays: [1m, 10s]}}
  quick: {command: [/bin/echo, a], retry: {delays: [1m, 5m]}}
schedules:
  both: {cron: "0 9 1 * 1", job: dump}
  weekday: {cron: "0 9 * * 1", job: dump}
  step: {cron: "0 9 */2 * 1", job: dump}
"""


def test_what_may_not_be_what_was_meant_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cronjobs.yaml").write_text(NOTED)
    registration = handlers_here.Registration("t.code", print, RetryPolicy(delays=["30s"]))
    once = replace(registration, name="t.once", retry=RetryPolicy(max_attempts=1, base="30s"))
    types = [JobType("t.code", timedelta(1), RetryPolicy(), registration)]
    types += [JobType("t.once", timedelta(1), RetryPolicy(max_attempts=1), once)]
    types += [replace(types[0], name="t.too")]
    types += [replace(types[0], name="t.one", retry=RetryPolicy(max_attempts=1))]  # the file says so
    known = JobTypes(types={each.name: each for each in types})

    def noted(text: str = NOTED) -> list[str]:
        Path("cronjobs.yaml").write_text(text)
        settings = load(None, environ={})
        found = check(settings, known, file="cronjobs.yaml", environ={}, now=datetime(2026, 1, 1, tzinfo=UTC))
        return [
            str(note).removeprefix("cronjobs.yaml:").strip()
            for note in found.notes
            if "run as long jobs" not in str(note)
        ]

    tick = (
        "begins in the same tick if that tick is still at work, and otherwise in the next tick, up to 1m later; "
        'with "run: {linger: true}", ticks poll every second'
    )
    either = 'and also when the weekday is 1: cron joins these two fields by "or", unless one of them begins with "*"'
    shell = 'since commands run without a shell: to use a shell, write [sh, -c, "/bin/echo app > /b.sql"]'
    assert noted() == [
        f'7:16: schedules.both.cron: "0 9 1 * 1" is due when the day of the month is 1, {either}',
        f'4:19: job_types.dump.command: ">" is passed to /bin/echo as an argument, {shell}',
        f"2:19: defaults.retry: a retry after 5s {tick}",
        f"4:57: job_types.dump.retry: a retry after 10s {tick}",
        f"t.code, t.too: a retry after 30s {tick}",
    ]
    assert not [note for note in noted(NOTED + "run: {linger: true}\n") if "a retry" in note]
    assert f"10:10: imports: t.code, t.too: a retry after 30s {tick}" in noted(f"{NOTED}imports: [shop]\n")
    assert not [note for note in noted(NOTED.replace("5s", "5s, max_attempts: 1")) if "after 5s" in note]


def test_a_schema_of_another_version_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(tmp_path, "sqlite:///x.db")
    project.write()
    (tmp_path / "cronjobs.schema.json").write_text(project.call("schema").out)
    assert "note" not in project.call("check").out
    (tmp_path / "cronjobs.schema.json").write_text("{}")
    answer = project.call("check")
    assert (answer.code, answer.out.count("cronjobs schema > cronjobs.schema.json")) == (0, 1)


def test_long_jobs_are_one_note_and_no_finding(project: Project) -> None:
    yaml = (
        "job_types:\n  t.say: {timeout: 2h}\nschedules:\n  a: {every: 1d, command: [ls], timeout: 20m}\n"
        "  b: {every: 1d, job: t.any, timeout: 56s}"
    )
    project.write(yaml, HANDLERS)
    done = project.run("check")
    assert (done.code, done.out.splitlines()) == (
        0,
        [
            (
                "note: cronjobs.yaml:7:42: schedules.a.timeout: these job types run as long jobs, because their "
                "timeouts are over 50s, the most that a tick allows: a (20m), t.say (2h), t.any (56s). A host runs at "
                "most 4 long jobs at once (run.long_jobs)"
            ),
            "ok: 3 job types, 2 schedules",
        ],
    )


@pytest.mark.parametrize(("timeout", "noted"), [("49s", False), ("50s", True)])
def test_a_timeout_that_leaves_no_time_for_a_slow_start_is_a_note(project: Project, timeout: str, noted: bool) -> None:
    project.write(f"job_types:\n  t.say: {{timeout: {timeout}}}", HANDLERS)
    done = project.call("check")
    said = "t.say: timeout 50s leaves 5s of run.budget (55s): a tick that needs longer to start does not run the job"
    assert (done.code, said in done.out) == (0, noted)


def test_a_note_of_a_timeout_in_code_names_no_key_that_the_file_does_not_have(tmp_path: Path) -> None:
    """The modules of Django's apps are imported without ``imports:``."""
    known = JobTypes(types={"t.say": JobType("t.say", timedelta(seconds=50), RetryPolicy())})
    settings = Settings(tmp_path / "cronjobs.yaml", tmp_path)
    found = check(settings, known, file="cronjobs.yaml", environ={}, now=datetime(2026, 1, 1, tzinfo=UTC))
    assert str(found.notes[0]).startswith("cronjobs.yaml: t.say: timeout 50s")


def test_a_file_that_cannot_be_used_also_names_the_database_variable_that_is_unset(project: Project) -> None:
    project.url = "${SHOP_DATABASE_URL}"
    project.write("env_file: gone.env")
    done = project.call("check")
    assert done.code == 3
    assert "gone.env" in done.out
    assert "SHOP_DATABASE_URL" in done.out


def test_a_budget_that_no_tick_of_cron_has_is_a_note(project: Project) -> None:
    project.write("run: {budget: 2m}")
    done = project.call("check")
    assert done.code == 0
    assert "note: cronjobs.yaml:3:15: run.budget: budget 2m is not shorter than run.every (1m): each tick" in done.out
    project.write("run: {budget: 2m, every: 5m}")
    assert "run.budget" not in project.call("check").out


@pytest.mark.parametrize(("limit", "noted"), [("most: 1, each: 5", True), ("most: 5, each: 1", False)])
def test_a_limit_of_each_key_that_the_limit_of_all_keys_covers_is_a_note(
    project: Project, limit: str, noted: bool
) -> None:
    project.write(f'limits: {{"api:": {{{limit}}}}}')
    done = project.call("check")
    assert done.code == 0
    assert ('"each: 5" has no effect, because "most: 1" already limits the jobs of one key' in done.out) is noted


def test_a_short_lease_is_a_note(project: Project) -> None:
    project.write("run: {lease: 30s}")
    done = project.call("check")
    assert done.code == 0
    assert "note: cronjobs.yaml:3:14: run.lease: lease 30s is shorter than run.budget + 5s" in done.out


# --- live -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def live(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(handlers_here, "_registered", {})  # what other tests have registered in this process
    project = Project(tmp_path, database_url)
    project.write('job_types: {t.ok: {command: ["true"]}}')
    return project


def test_live_a_system_that_ticks_is_well(live: Project) -> None:
    assert live.run("run-due").code == 0
    done = live.call("check", "--live")
    assert (done.code, done.out) == (0, "ok: 1 job type, 0 schedules\n")


def test_live_a_file_that_cannot_be_used_does_not_hide_that_nothing_ticks(live: Project) -> None:
    assert live.run("run-due").code == 0
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    live.execute(update(ticks).values(started_at=long_ago, finished_at=long_ago))
    file = live.folder / "cronjobs.yaml"
    file.write_text(file.read_text() + "schedules: [\n")
    done = live.call("check", "--live", "--database-url", live.url)
    assert done.code == 3
    assert "no tick" in done.out
    assert done.err == "nothing runs with this file\n"
    [told] = live.call("check", "--live", "--json", "--database-url", live.url).json["live"]
    assert "no tick" in told


def test_live_what_is_wrong_is_told_in_sentences(live: Project) -> None:
    live.execute(update(meta).values(project="other"))
    live.execute(insert(jobs).values(job_type="t.gone"))
    live.execute(insert(jobs).values(job_type="t.ok", status="dead", finished_at=datetime.now(UTC)))
    old = datetime.now(UTC) - timedelta(minutes=10)
    live.execute(insert(ticks).values(tick="a", host="web1", pid=1, version="0", started_at=old, finished_at=old))
    done = live.call("check", "--live")
    assert done.code == 1
    for said in (
        'this database belongs to project "other"',
        '1 due job waits: no handler or command "t.gone" is registered here',
        "1 dead job that nobody has retried or dismissed, since",
    ):
        assert said in done.out
    assert len(live.call("check", "--live", "--json").json["live"]) == 3


def test_live_one_module_that_cannot_be_imported_is_one_finding(live: Project) -> None:
    """There were five: the module, and for each of two schedules its job type in the file and its waiting job."""
    live.write("schedules: {a: {every: 1m, job: t.a}, b: {every: 1m, job: u.b}}", "def broken(:")
    old = datetime.now(UTC) - timedelta(minutes=3)
    assert live.run("run-due").code == 3
    for name in ("t.a", "u.b"):
        live.execute(insert(jobs).values(job_type=name, run_at=old, created_at=old))
    done = live.call("check", "--live")
    assert (done.code, done.err) == (1, "1 finding\n"), done
    assert live.call("check").out.count(PERHAPS) == 2, "the notes, without --live"
    live.write("schedules: {a: {every: 1m, job: t.a}}", "")
    live.run("run-due")
    assert 'no host that ticks has a handler or command "t.a"' in live.call("check", "--live").out


def test_live_a_module_that_ends_the_process_ends_no_command_without_a_word(live: Project) -> None:
    assert live.run("run-due").code == 0
    live.execute(insert(jobs).values(job_type="t.ok", status="dead", finished_at=datetime.now(UTC)))
    live.write("", ENDS_THE_PROCESS)
    done = live.run("check", "--live")
    assert (done.code, done.err) == (1, "2 findings\n")
    assert "handlers cannot be imported: SystemExit: os._exit(0) was called" in done.out
    assert "os._exit(0) was called" in live.run("check").out
    assert "1 dead" in live.run("status").out
    assert "Job 1 died" in live.run("explain", "1").out
    live.execute(insert(jobs).values(job_type="t.other"))
    ticked = live.run("run-due")
    assert ticked.code == 3
    assert "os._exit(0) was called" in ticked.err


def test_live_without_a_database_or_tables(project: Project, empty_url: str) -> None:
    project.write()
    assert 'the first "cronjobs run-due" creates it' in project.call("check", "--live").out
    assert not (project.folder / "cronjobs.db").exists()
    (project.folder / "cronjobs.yaml").write_text("database: postgresql://nobody:c4n4ry@127.0.0.1:1/x\n")
    gone = project.call("check", "--live")
    assert gone.code == 4
    assert "cannot be reached" in gone.err
    assert "c4n4ry" not in gone.err
    if not empty_url.startswith("sqlite"):
        project.url = empty_url
        project.write()
        assert project.call("check", "--live").code == 4


@pytest.mark.parametrize(
    ("database", "noted"),
    [("sqlite:///app.db", True), ("sqlite:///cronjobs.db", False), ("sqlite:///x/cronjobs.db", True)],
)
def test_an_alembic_of_the_app_without_our_filter_is_a_note(tmp_path: Path, database: str, noted: bool) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "alembic").mkdir()
    (tmp_path / "alembic.ini").write_text("[alembic]\n")
    (tmp_path / "alembic/env.py").write_text("from alembic import context\n")
    project = Project(tmp_path, database)
    project.write("schedules: {a: {every: 5m, command: [/bin/true]}}")
    done = project.call("check")
    assert done.code == 0
    assert ("2:11: database: " in done.out and "would drop the tables of cronjobs" in done.out) is noted


def test_live_a_limit_that_applied_to_no_job_is_a_note(live: Project) -> None:
    live.write('job_types: {t.ok: {command: ["true"]}}\nlimits: {"smpt:": 2, "api:": 1}')
    assert live.run("run-due").code == 0
    assert "limit applied" not in live.call("check", "--live").out, "there is no job yet"
    live.execute(insert(jobs).values(job_type="t.ok", concurrency_key="api:eu"))
    live.execute(insert(jobs).values(job_type="t.ok"))
    done = live.call("check", "--live")
    assert done.code == 0
    [note] = [line for line in done.out.splitlines() if "this limit applied" in line]
    assert 'limits."smpt:": this limit applied to none of the newest 2 jobs, since no concurrency_key' in note
    assert note.endswith('(1 of them has a key, such as "api:eu")')
