"""Alerts of real ticks: which ticks look, what a kill leaves behind, and what is sent while the database is away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support import forked
from support.databases import until
from support.inboxes import Web, closed_port
from support.inboxes import web as web
from support.ticking import Project, patched

HANDLERS = """
@job("t.dies", retry=RetryPolicy(max_attempts=1))
def dies(ctx):
    raise ValueError("no such card")

@job("t.long", timeout="2m", retry=RetryPolicy(max_attempts=1))
def long(ctx):
    raise ValueError("too long")
"""
SECRET = "hunter2-correct-horse"
PAST = {True: "1600000000000000", False: "'2020-01-01'"}


def configured(project: Project, web: Web, more: str = "") -> Project:
    channels = f'alerts:\n  channels:\n    hook: {{webhook: {{url: "{web.url}/"}}}}\n'
    return project.configure(channels + more, HANDLERS)


def look_now(project: Project) -> None:
    """Make the next look due, as passing time would."""
    project.sql(f"UPDATE cronjobs_meta SET look_at = {PAST[project.is_sqlite]}")
    project.sql(f"UPDATE cronjobs_alerts SET locked_until = {PAST[project.is_sqlite]} WHERE locked_until IS NOT NULL")


def looked_at(project: Project) -> object:
    return project.value("SELECT look_at FROM cronjobs_meta")


def test_idle_ticks_look_when_it_is_time_and_not_before(project: Project, web: Web) -> None:
    configured(project, web, "schedules:\n  nightly: {cron: '15 2 29 2 *', job: t.quick}\n")
    assert project.tick().wait() == 0
    first = looked_at(project)
    assert first is not None
    assert project.tick().wait() == 0
    assert looked_at(project) == first
    look_now(project)
    assert project.tick().wait() == 0
    assert str(looked_at(project)) > str(first)
    assert web.got == []


def test_what_was_sent_by_a_tick_that_was_killed_is_sent_again(project: Project, web: Web) -> None:
    configured(project, web)
    project.tick()
    project.add("t.dies")
    web.hold = True
    tick = project.start()
    until(lambda: bool(web.got))
    tick.process.kill()
    tick.wait()
    web.hold = False
    web.go_on.set()
    project.tick()
    assert len(web.got) == 1, "it is leased"
    look_now(project)
    project.tick()
    assert len(web.got) == 2
    assert web.messages[0]["findings"] == web.messages[1]["findings"]
    look_now(project)
    project.tick()
    assert len(web.got) == 2


def beside_hanging(project: Project, web: Web, more: str = "") -> Project:
    """Three channels that get no answer, and after them one that gets an answer at once."""
    hanging = "".join(f'    hook{n}: {{webhook: {{url: "{web.url}/{n}"}}}}\n' for n in range(3))
    ops = "    ops: {command: [sh, -c, cat >> told; echo >> told]}\n"
    web.hold = True
    return project.configure(f"alerts:\n  channels:\n{hanging}{ops}{more}", HANDLERS)


@pytest.mark.slow
def test_channels_that_hang_hold_up_neither_another_one_nor_the_tick(sqlite_project: Project, web: Web) -> None:
    beside_hanging(sqlite_project, web, "run: {budget: 6s}\n")
    sqlite_project.tick()
    sqlite_project.add("t.dies", timeout_s=1)
    tick = sqlite_project.tick()
    assert tick.wait() == 1
    assert tick.took_s < 8
    assert '"finding": "dead"' in (sqlite_project.folder / "told").read_text()
    found = sqlite_project.sql("SELECT channel, error, failures FROM cronjobs_alerts WHERE failures > 0")
    assert sorted(name for name, _, _ in found) == ["hook0", "hook1", "hook2"]
    assert all(error.startswith("no answer within") and failures == 1 for _, error, failures in found)
    assert "alert.not_sent" in tick.stderr, "cron mails it"


def test_what_was_delivered_beside_a_channel_that_hangs_is_not_sent_again_after_a_kill(
    project: Project, web: Web
) -> None:
    beside_hanging(project, web)
    project.tick()
    project.add("t.dies")
    tick = project.start()
    until(lambda: bool(project.sql("SELECT 1 FROM cronjobs_alerts WHERE channel = 'ops' AND sent = 1")))
    assert tick.process.poll() is None, "the others hang"
    tick.process.kill()
    tick.wait()
    web.hold = False
    web.go_on.set()
    look_now(project)
    project.tick()
    assert len(set(web.paths)) == 3
    assert (project.folder / "told").read_text().count("\n") == 1


def test_a_long_job_that_dies_is_told_at_once_by_its_own_process(project: Project, web: Web) -> None:
    configured(project, web)
    project.tick()
    job = project.add("t.long")
    project.tick()
    until(lambda: bool(web.got))
    [told] = web.messages[0]["findings"]
    assert told["finding"] == "dead"
    [dead] = told["jobs"]
    assert (dead["id"], dead["error_type"], dead["error"]) == (job, "ValueError", "too long")
    assert dead["at"].startswith(f"{project.folder}/handlers.py:")
    project.tick()
    assert len(web.got) == 1


def test_a_death_that_no_tick_recorded_lets_the_next_tick_look(sqlite_project: Project, web: Web) -> None:
    """As of a supervisor, which has hours to live, or of a tick that is killed before its end."""
    configured(sqlite_project, web)
    sqlite_project.tick()
    sqlite_project.sql("UPDATE cronjobs_meta SET look_at = look_at + 1000000000")
    job = sqlite_project.add("t.dies")
    gate = "import cronjobs.engine.tick.loop as it, os\nit.Loop.finish = lambda *_: os.kill(os.getpid(), 9)\n"
    sqlite_project.tick(**patched(sqlite_project, gate))
    assert sqlite_project.job(job)["status"] == "dead"
    assert sqlite_project.value("SELECT look_at - 1e6 * (julianday('now') - 2440587.5) * 86400 FROM cronjobs_meta") <= 0


# --- cron's own mail --------------------------------------------------------------------------------------------------


def test_crons_mail_and_the_alert_name_the_same_of_a_dead_job(project: Project, web: Web) -> None:
    configured(project, web)
    jobs = [project.add("t.dies"), project.add("t.long")]
    first = project.tick()
    until(lambda: project.statuses() == {"dead": 2})
    # The first tick reports both, if it is still at work when the long job dies.
    until(lambda: f"job {jobs[1]} " in first.stderr or bool(words(project)))
    told = first.stderr + project.tick().stderr
    file = project.folder / "cronjobs.yaml"
    for job, job_type, error in zip(jobs, ("t.dies", "t.long"), ("no such card", "too long"), strict=True):
        [line] = [line for line in told.splitlines() if f"job {job} " in line]
        assert f"job {job} {job_type}: ValueError: {error} (failed 1 of 1), at {project.folder}/handlers.py:" in line
        assert line.endswith(f"/cronjobs --config {file} jobs show {job}")
        shown = forked.run(line.rpartition("look: ")[2].split(), cwd="/", env={"PATH": "/usr/bin:/bin"})
        assert shown.returncode == 0
        assert error in shown.stdout
    silent = project.tick()
    assert silent.stderr + silent.stdout == ""


def test_a_secret_in_a_long_jobs_error_is_masked_in_crons_mail(sqlite_project: Project, web: Web) -> None:
    """The secret is masked even where shortening the text would cut it in two."""
    says = f"""
@job("t.tells", timeout="2m", retry=RetryPolicy(max_attempts=1))
def tells(ctx):
    raise ValueError("x" * 590 + "{SECRET}" + "\\n\\x1b[2J")
"""
    sqlite_project.configure(f"env: {{API_TOKEN: {SECRET}}}\n", says)
    sqlite_project.add("t.tells")
    sqlite_project.tick()
    until(lambda: bool(words(sqlite_project)))
    told = sqlite_project.tick().stderr
    assert "ValueError: xxx" in told
    assert SECRET[:5] not in told
    assert told.count("\n") == 1
    assert "\x1b" not in told


def words(project: Project) -> list[Path]:
    return [*(project.folder / "cronjobs").glob("word-*")]


def test_a_database_that_is_away_is_told_once_and_its_return_once(
    new_project: Callable[[str], Project], postgres_migrated: str, web: Web
) -> None:
    project = new_project(f"postgresql://nobody@127.0.0.1:{closed_port()}/gone")
    more = f'run: {{ping: "{web.url}/tick"}}\n'
    configured(project, web, more)
    for _ in range(3):
        assert project.tick().wait() == 4
    notes = [body for path, body in web.got if path == "/"]
    assert len(notes) == 1
    assert b"the database cannot be used" in notes[0]
    assert [path.partition("?")[0] for path in web.paths if path != "/"] == ["/tick/4"] * 3
    project.url = postgres_migrated
    configured(project, web, more)
    for _ in range(2):
        assert project.tick().wait() == 0
        look_now(project)
    notes = [body for path, body in web.got if path == "/"]
    assert len(notes) == 2
    assert b"this host runs jobs again" in notes[1]


def test_a_file_that_no_tick_can_use_is_told_once_and_its_end_once(sqlite_project: Project, web: Web) -> None:
    more = f'run: {{ping: "{web.url}/tick"}}\n'
    configured(sqlite_project, web, more + "shedules: {}\n")
    for _ in range(3):
        assert sqlite_project.tick().wait() == 3
    notes = [body for path, body in web.got if path == "/"]
    assert len(notes) == 1
    assert b"the configuration cannot be used, so this host runs no jobs: " in notes[0]
    assert b"shedules" in notes[0]
    assert [path.partition("?")[0] for path in web.paths if path != "/"] == ["/tick/3"] * 3
    configured(sqlite_project, web, more)
    for _ in range(2):
        assert sqlite_project.tick().wait() == 0
        look_now(sqlite_project)
    notes = [body for path, body in web.got if path == "/"]
    assert len(notes) == 2
    assert b"this host runs jobs again" in notes[1]


def test_a_file_that_is_not_yaml_is_told_if_its_alerts_can_be_read_by_themselves(
    sqlite_project: Project, web: Web
) -> None:
    run = f'run:\n  ping: "{web.url}/tick"\n'
    alerts = f'alerts:\n\n# of the team\n  channels:\n    hook: {{webhook: {{url: "{web.url}/"}}}}\n'
    sqlite_project.configure(run + alerts + "schedules:\n  oops: [\n", HANDLERS)
    for _ in range(2):
        assert sqlite_project.tick().wait() == 3
    [note] = [body for path, body in web.got if path == "/"]
    assert b"the configuration cannot be used, so this host runs no jobs: " in note
    assert b"YAML" in note
    assert [path.partition("?")[0] for path in web.paths if path != "/"] == ["/tick/3"] * 2


def test_a_channel_that_ignores_config_is_not_told_of_an_unusable_file(sqlite_project: Project, web: Web) -> None:
    hook = f'{{webhook: {{url: "{web.url}/"}}, ignore: [config]}}'
    sqlite_project.configure(f"alerts: {{channels: {{hook: {hook}}}}}\nshedules: {{}}\n", HANDLERS)
    assert sqlite_project.tick().wait() == 3
    assert web.got == []


def test_a_channel_that_cannot_be_read_disables_itself_and_nothing_else(sqlite_project: Project, web: Web) -> None:
    configured(sqlite_project, web, "    broken: {mail: {host: x}}\n")
    sqlite_project.add("t.dies")
    tick = sqlite_project.tick()
    assert tick.wait() == 3
    assert "alerts.channels.broken.mail: these keys must be given here: from, to" in tick.stderr
    told = [each["finding"] for message in web.messages for each in message["findings"]]
    assert sorted(each.partition(":")[0] for each in told) == ["config", "dead"]
