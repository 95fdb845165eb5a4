"""Cron's mail as an alarm: a fault is reported once, then rarely, and its end once."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError
from support.commands import until
from support.ticking import Project, events

from cronjobs.clock import SYSTEM
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import as_database_error
from cronjobs.engine.run_due.cron_mail import CronMail
from cronjobs.engine.tick import mail_throttle as alarm_module
from cronjobs.engine.tick.mail_throttle import Alarm, leave_end, leave_message, take_messages
from cronjobs.errors import (
    CommitUnconfirmed,
    CommitUnknown,
    DatabaseBusy,
    DatabaseError,
    DatabaseNotReady,
    DatabaseUnreachable,
)
from cronjobs.events import ERROR, Event, alert_not_sent, alert_sent, database_trouble, death_cause, unknown_type

NewProject = Callable[[str], Project]

NOW = datetime(2026, 3, 2, 3, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def alarm(tmp_path: Path) -> Alarm:
    return Alarm(Path("/srv/shop/cronjobs.yaml"), tmp_path)


@pytest.mark.slow
def test_a_cause_that_repeats_each_minute_is_told_at_once_then_hourly_then_daily(alarm: Alarm) -> None:
    told = [minute for minute in range(5 * 24 * 60) if alarm.worth_mailing("database down", NOW + minute * MINUTE)]
    assert told == [*range(0, 24 * 60, 60), *range(24 * 60, 5 * 24 * 60, 24 * 60)]


def test_its_end_is_told_once(alarm: Alarm) -> None:
    for minute in range(5):
        alarm.worth_mailing("database down", NOW + minute * MINUTE)
    assert alarm.over(set(), NOW + 37 * MINUTE) == ["over after 37m: database down"]
    assert alarm.over(set(), NOW + 38 * MINUTE) == []


def test_what_was_mended_before_it_came_again_needs_no_word(alarm: Alarm) -> None:
    assert alarm.worth_mailing("no tables", NOW)
    assert alarm.over(set(), NOW + MINUTE) == []
    assert alarm.worth_mailing("no tables", NOW + 2 * MINUTE)


def test_causes_are_remembered_apart_and_by_configuration(alarm: Alarm, tmp_path: Path) -> None:
    assert alarm.worth_mailing("a", NOW)
    assert alarm.worth_mailing("b", NOW)
    assert not alarm.worth_mailing("a", NOW + MINUTE)
    assert Alarm(Path("/srv/blog/cronjobs.yaml"), tmp_path).worth_mailing("a", NOW + MINUTE)


def test_where_nothing_can_be_remembered_everything_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    alarm = Alarm(Path("/srv/shop/cronjobs.yaml"), tmp_path / "file" / "below")
    assert alarm.worth_mailing("a", NOW)
    assert alarm.worth_mailing("a", NOW)


SPOILED = ["", "nonsense", "[1]", '{"a": 1}', '{"a": {"since": "x"}}', '{"a": {"since": 1, "next": 2, "told": 3}}']
SPOILED += ['{"a": {"since": "x", "next": "2026-01-01", "told": 1, "seen": 1}}', "[" * 100_000]


@pytest.mark.parametrize("content", SPOILED, ids=range(len(SPOILED)))
def test_a_spoiled_memory_is_begun_anew(alarm: Alarm, tmp_path: Path, content: str) -> None:
    alarm.worth_mailing("a", NOW)
    [file] = tmp_path.iterdir()
    file.write_text(content)
    assert alarm.worth_mailing("a", NOW)


# --- jobs that die ----------------------------------------------------------------------------------------------------

DIES = "mail.send dies: 503 for invoice <n>"


def died(alarm: Alarm, minute: int) -> bool:
    return alarm.worth_mailing(DIES, NOW + minute * MINUTE, ended_by="mail.send")


def test_deaths_of_one_cause_are_told_at_once_then_hourly_with_how_many_came_between(alarm: Alarm) -> None:
    told: list[tuple[int, int]] = []
    for minute in range(3 * 60):
        at, untold = NOW + minute * MINUTE, list[int]()
        alarm.worth_mailing(DIES, at, ended_by="mail.send", say=untold.append)
        told += [(minute, number) for number in untold]
        alarm.over(set(), at, {"another.type"})
    assert told == [(0, 0), (60, 59), (120, 59)]


def test_the_last_deaths_of_a_cause_are_told_when_its_next_report_is_due(alarm: Alarm, tmp_path: Path) -> None:
    """They were never mailed, because no later death brought their count."""
    for minute in (0, 20, 30):
        died(alarm, minute)
    [file] = tmp_path.glob("alarm-*")
    assert json.loads(file.read_text())["quiet_until"] == (NOW + 60 * MINUTE).timestamp()
    told: list[tuple[int, str]] = []

    def tick(minute: int) -> None:
        at = NOW + minute * MINUTE
        alarm.report_counted(at, lambda said: told.append((minute, said)))
        alarm.over((), at)

    for minute in range(31, 180):
        tick(minute)
    assert told == [(60, f"2 more with the same cause since the last report: {DIES}")]
    assert json.loads(file.read_text())["quiet_until"] == (NOW + 30 * MINUTE + timedelta(hours=25)).timestamp()


def test_a_job_type_that_mostly_works_does_not_mail_each_of_its_deaths(alarm: Alarm) -> None:
    told = [
        minute
        for minute in range(0, 300, 2)
        if died(alarm, minute) or alarm.over((), NOW + minute * MINUTE, {"mail.send"})
    ]
    assert told == [0, 60, 120, 180, 240]


def test_that_jobs_die_no_more_is_told_once_after_an_hour_in_which_one_went_well(alarm: Alarm) -> None:
    for minute in range(10):
        died(alarm, minute)
    went_well = {20: {"mail.send"}}
    told = {minute: alarm.over((), NOW + minute * MINUTE, went_well.get(minute, ())) for minute in range(10, 300)}
    assert {minute: said for minute, said in told.items() if said} == {
        69: [f"over after 1h9m: {DIES} (9 more since the last report)"]
    }


def test_it_says_until_when_an_idle_tick_need_not_look(alarm: Alarm, tmp_path: Path) -> None:
    def quiet() -> object:
        [file] = tmp_path.glob("alarm-*")
        text = file.read_text()
        said = json.loads(text).get("quiet_until")
        assert said is None or text.startswith(f'{{"quiet_until": {said}, ')
        return said

    died(alarm, 0)
    assert quiet() == (NOW + timedelta(hours=25)).timestamp()
    alarm.over((), NOW + 10 * MINUTE, {"mail.send"})
    assert quiet() == (NOW + timedelta(hours=1)).timestamp()
    alarm.worth_mailing("database down", NOW + 11 * MINUTE)
    assert quiet() is None
    alarm.over((), NOW + 12 * MINUTE)
    assert quiet() == (NOW + timedelta(hours=1)).timestamp()


def test_without_a_job_that_went_well_it_is_not_said_to_be_over(alarm: Alarm) -> None:
    for minute in range(10):
        died(alarm, minute)
    assert not any(alarm.over((), NOW + minute * 10 * MINUTE) for minute in range(300))
    assert died(alarm, 3001)  # forgotten after a day, so told at once


def dead(number: int, job_type: str = "mail.send", error: str = "503") -> Event:
    return Event("job.dead", {"job_id": number, "job_type": job_type, "error_type": "OSError", "error": error}, ERROR)


def test_a_channel_that_fails_is_mailed_once_although_ticks_between_its_retries_do_not_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config = tmp_path / "cronjobs.yaml"

    def tick(*seen: Event) -> str:
        mail = CronMail(config, throttle=True)
        reporter = mail.reporter(None, talk=False)
        for event in seen:
            reporter.note(event)
        mail.print_causes(reporter)
        mail.send()
        return capfd.readouterr().err

    assert "alert.not_sent" in tick(alert_not_sent("ops", 1, "no such file"))
    assert tick() == ""
    assert tick(alert_not_sent("ops", 2, "no such file"), alert_sent("mail", 2)) == ""
    assert "alert.not_sent" in tick(alert_not_sent("night", 1, "no such file"))
    tick(alert_sent("ops", 2))
    said = Alarm(config).over((), SYSTEM.now() + timedelta(hours=2))
    assert [each.partition(": ")[2].split()[:2] for each in said] == [["alert.not_sent", "channel=ops"]]


def test_a_success_that_a_process_left_to_the_next_tick_ends_a_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    settings = Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path)
    alarm = Alarm(settings.file)

    def tick(*left: Event) -> tuple[int, list[str]]:
        for event in left:
            leave_end(settings, event)
        kept = len(list(tmp_path.rglob("word-*")))
        mail = CronMail(settings.file, throttle=True)
        mail.print_causes(mail.reporter(None, talk=False))
        mail.send()
        return kept, alarm.over((), SYSTEM.now() + timedelta(hours=2))

    well = Event("job.succeeded", {"job_id": 9, "job_type": "mail.send"})
    assert tick(well) == (0, []), "no tick waits for it"
    for number in (1, 2):
        assert tick(dead(number)) == (1, [])
    kept, [said] = tick(well)
    assert kept == 1
    assert said.partition(": ")[2].startswith(death_cause(dead(1)))


def test_a_cause_is_printed_before_it_is_recorded_as_printed(alarm: Alarm) -> None:
    def killed(_untold: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        alarm.worth_mailing(DIES, NOW, say=killed)
    assert alarm.worth_mailing(DIES, NOW + MINUTE), "the killed tick did not silence this one"


def test_one_line_names_all_job_types_that_became_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config = tmp_path / "cronjobs.yaml"

    def tick(*types: str, throttle: bool = True) -> list[str]:
        mail = CronMail(config, throttle=throttle)
        reporter = mail.reporter(None, talk=False)
        for job_type in types:
            reporter.note(unknown_type(job_type, [], not_loaded=True))
        mail.print_causes(reporter)
        mail.send(knows_code=True)
        return capfd.readouterr().err.splitlines()

    many = [f"t.{number:02}" for number in range(13)]
    others = f"{', '.join(many[1:11])} and 2 more"
    for throttle in (True, False):
        [line] = tick(*many, throttle=throttle)
        assert line.startswith("jobs.unknown_type job_type=t.00 ")
        assert f" (the same holds for {others}); look: " in line
    assert tick(*many) == []
    [line] = tick(*many, "t.later")
    assert line.startswith("jobs.unknown_type job_type=t.later ")
    assert "the same holds" not in line
    [line] = tick()
    assert " jobs.unknown_type job_type=t." in line
    assert line.startswith("cronjobs: over after ")
    assert line.endswith(" (and 12 more like this)")


@pytest.mark.parametrize("died_in", ["a tick", "a process that left it to the next tick"])
def test_a_cause_is_named_with_its_first_death_and_its_other_deaths_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], died_in: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config = tmp_path / "cronjobs.yaml"

    def tick(*deaths: Event) -> tuple[list[str], list[str]]:
        """What is printed as the jobs die, and what at the end of the tick."""
        mail = CronMail(config, throttle=True)
        reporter = mail.reporter(None, talk=False)
        for event in deaths:
            if died_in == "a tick":
                reporter.note(event)
            else:
                leave_end(Settings(file=config, folder=tmp_path), event)
        at_once = capfd.readouterr().err.splitlines()
        mail.print_causes(reporter)
        mail.send()
        at_the_end = capfd.readouterr().err.splitlines()
        if died_in == "a tick":
            return at_once, at_the_end
        named = [line for line in at_the_end if "a job is dead" in line]
        return named, at_the_end[len(named) :]

    refused = [dead(number, error="mailbox unknown") for number in (2, 4)]
    at_once, at_the_end = tick(dead(1), refused[0], dead(3), refused[1], *(dead(number) for number in range(5, 16)))
    assert [line.partition(";")[0] for line in at_once] == [
        "cronjobs: a job is dead: job 1 mail.send: OSError: 503",
        "cronjobs: a job is dead: job 2 mail.send: OSError: mailbox unknown",
    ]
    first, second = at_the_end
    assert first == "cronjobs: 12 more jobs died of the same cause as job 1: 3, 5, 6, 7, 8 and 7 more"
    assert second.startswith("cronjobs: 1 more job died of the same cause as job 2: 4; to list all: ")
    assert tick(*(dead(number) for number in range(20, 27))) == ([], []), "the cause was reported a moment ago"
    assert tick(dead(30, "billing.charge"))[1] == []
    at_once, at_the_end = tick(*(dead(number, f"type.{number}") for number in range(40, 60)))
    assert len(at_once) == 10
    all_dead = "cronjobs: 20 jobs are dead; the causes of 10 of them are not listed here; to list all: "
    assert at_the_end[0].startswith(all_dead)
    later, untold = NOW + timedelta(days=400), list[int]()
    assert Alarm(config).worth_mailing(death_cause(dead(1)), later, ended_by="mail.send", say=untold.append)
    assert untold == [7]


def test_a_tick_that_is_killed_has_printed_who_died(sqlite_migrated: str, new_project: NewProject) -> None:
    dies = (
        '\n@job("t.dies", retry=RetryPolicy(max_attempts=1))\ndef dies(ctx):\n    raise ValueError("no such invoice")\n'
    )
    project = new_project(f"sqlite:///{sqlite_migrated}").configure(handlers=dies)
    project.add("t.dies")
    project.add("t.gated")
    tick = project.start()
    until(lambda: "no such invoice" in tick.stderr)
    assert project.tick().stderr == ""
    assert deaths_logged(project) == 1, "the other tick is at work, so nobody reports for it"
    tick.send(signal.SIGKILL)
    tick.wait()
    assert tick.stderr.startswith("cronjobs: a job is dead: job 1 t.dies: ValueError: no such invoice")
    project.sql("DELETE FROM cronjobs_jobs WHERE job_type = 't.gated'")
    assert project.tick().stderr == "", "the killed tick has printed this cause"
    assert deaths_logged(project) == 2, "nobody knows what the killed tick has logged"


def deaths_logged(project: Project) -> int:
    return len(events((project.folder / "tick.log").read_text(), "job.dead"))


# The tick is killed right after the commit that records a death.
KILLED_AFTER_COMMIT = """
import os, signal
from pathlib import Path
from cronjobs.engine.tick.ends import EndWriter

written = EndWriter.written

def killed(self, turn):
    dead = any(decided.transition.status == "dead" for _, decided in turn.ends)
    if dead and Path(__file__).with_name("kill").exists():
        Path(__file__).with_name("kill").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    written(self, turn)

EndWriter.written = killed

@job("t.dies", retry=RetryPolicy(max_attempts=1))
def dies(ctx, of):
    raise ValueError(of)
"""


def test_a_tick_that_finds_a_killed_tick_reports_its_deaths_once(project: Project) -> None:
    project.configure(handlers=KILLED_AFTER_COMMIT)
    project.tick()  # from now on, a tick without work takes the fast path
    project.add("t.dies", '{"of": "no such invoice"}')
    (project.folder / "kill").touch()
    killed = project.start()
    assert (killed.wait(), killed.stderr) == (-signal.SIGKILL, "")
    told = project.tick()
    died = "cronjobs: a job is dead: job 1 t.dies: ValueError: no such invoice"
    assert told.stderr.startswith(f"{died}; the process that recorded this was killed; look: ")
    assert deaths_logged(project) == 1
    assert project.tick().stderr == ""
    assert not [*(project.folder / "cronjobs").glob("unreported-*")]
    assert [*project.folder.rglob("alarm-*")], "the state folder is here"
    assert not [*project.folder.rglob("unreported-*")]


DIES = """
@job("t.dies", retry=RetryPolicy(max_attempts=1))
def dies(ctx): raise ValueError("no such invoice")
"""


def test_a_cause_is_new_again_once_a_person_has_dealt_with_all_its_deaths(project: Project) -> None:
    project.configure(handlers=DIES)

    def named() -> list[str]:
        """The jobs whose death the next tick prints."""
        lines = project.tick().stderr.splitlines()
        assert all(line.startswith("cronjobs: a job is dead: ") for line in lines), lines
        return [line.split()[6] for line in lines]

    def dies() -> list[str]:
        project.add("t.dies")
        return named()

    def dismiss(where: str) -> None:
        project.sql(f"UPDATE cronjobs_jobs SET dismissed_at = finished_at WHERE {where}")

    assert [dies(), dies()] == [["1"], []]
    dismiss("id = 1")
    assert dies() == [], "nobody has dealt with job 2"
    dismiss("id = 3")
    again = "status = 'queued', run_at = finished_at, finished_at = NULL, failures = 0"
    project.sql(f"UPDATE cronjobs_jobs SET {again} WHERE id = 2")
    assert named() == ["2"], "it died again, and nobody had another of its kind to deal with"
    assert dies() == []
    dismiss("status = 'dead'")
    assert dies() == ["5"]
    dismiss("status = 'dead'")
    for lines in (2, 0):  # the first death, and how many others; then the cause is known
        project.add_many("t.dies", 6)
        assert len(project.tick().stderr.splitlines()) == lines
    project.sql(f"UPDATE cronjobs_jobs SET {again} WHERE dismissed_at IS NULL AND status = 'dead'")
    told = project.tick().stderr
    assert told.startswith("cronjobs: a job is dead: "), "all were retried, and all died again in one tick"
    assert "11 more jobs died of the same cause" in told
    project.sql("DELETE FROM cronjobs_job_runs")
    project.sql("DELETE FROM cronjobs_jobs")  # as in a database that was made anew under the same URL
    assert [len(dies()), dies()] == [1, []]


# --- who else may write there -----------------------------------------------------------------------------------------


def kept(folder: Path) -> bool:
    """Whether a second alarm of the same folder remembers the first's."""
    first, second = (Alarm(Path("/srv/shop/cronjobs.yaml"), folder) for _ in range(2))
    return first.worth_mailing("a", NOW) and not second.worth_mailing("a", NOW)


def test_a_folder_that_is_ours_alone_keeps_the_state(tmp_path: Path) -> None:
    assert kept(tmp_path / "fresh")
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_folder_that_others_may_write_keeps_none(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    assert not kept(folder)
    assert list(folder.iterdir()) == []


def test_a_folder_of_another_user_keeps_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    assert not kept(folder)
    assert list(folder.iterdir()) == []


def test_where_no_folder_can_be_written_nothing_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose root is read-only, and which has neither a home nor a temporary folder."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    monkeypatch.setenv("TMPDIR", "/proc/none")
    leave_message(Path("/srv/shop/cronjobs.yaml"), "job 1 died")
    assert take_messages(Path("/srv/shop/cronjobs.yaml")) == ([], [])


def test_no_link_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    (tmp_path / "link").symlink_to(mine)
    assert not kept(tmp_path / "link")
    assert kept(mine)
    config = Path("/srv/shop/cronjobs.yaml")
    monkeypatch.setattr("cronjobs.engine.host.state_folder.state_folder", lambda: mine)
    for file in mine.iterdir():
        file.unlink()
    for name in (f"alarm-{alarm_module._name(config)}.json", f"word-{alarm_module._name(config)}"):
        (mine / name).symlink_to(precious)
        (mine / f"{name}.{os.getpid()}").symlink_to(precious)
    assert Alarm(config, mine).worth_mailing("a", NOW)
    leave_message(config, "job 1 died")
    assert take_messages(config) == ([], [])
    assert precious.read_text() == "keep me"


def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Path("/srv/shop/cronjobs.yaml")
    monkeypatch.setattr("cronjobs.engine.host.state_folder.state_folder", lambda: tmp_path)
    for name in (f"alarm-{alarm_module._name(config)}.json", f"word-{alarm_module._name(config)}"):
        os.mkfifo(tmp_path / name)
    assert Alarm(config, tmp_path).worth_mailing("a", NOW)
    leave_message(config, "job 1 died")
    assert take_messages(config) == ([], [])


def test_a_word_is_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cronjobs.engine.host.state_folder.state_folder", lambda: tmp_path)
    config = Path("/srv/shop/cronjobs.yaml")
    for number in range(3):
        leave_message(config, f"job {number}\ndied")
    assert take_messages(config) == ([f"job {number}\\ndied" for number in range(3)], [])
    assert take_messages(config) == ([], [])


# --- failures before the tick begins ----------------------------------------------------------------------------------


def test_what_keeps_a_tick_from_beginning_is_in_the_log(sqlite_migrated: str, new_project: NewProject) -> None:
    project = new_project(f"sqlite:///{sqlite_migrated}").configure()
    assert project.tick().wait() == 0
    project.sql("UPDATE cronjobs_meta SET project = 'blog'")
    assert project.tick().wait() == 3
    assert 'error="' in project.log().partition("tick.not_started")[2]
    assert "blog" in project.log()
    file = project.folder / "cronjobs.yaml"
    file.write_text(file.read_text() + "\nrun: {workers: [")
    assert project.tick().wait() == 3
    assert len(events(project.log(), "tick.not_started")) == 2
    assert "cronjobs.yaml:" in project.log()  # the file names no log any more; the last good tick's is known


def test_entries_that_a_bad_key_disables_are_one_line_of_the_mail(
    sqlite_migrated: str, new_project: NewProject
) -> None:
    twelve = "".join(f"  s{n}: {{cron: '0 1 * * *', job: t.say}}\n" for n in range(12))
    project = new_project(f"sqlite:///{sqlite_migrated}").configure(f"timezone: Mars/Base\nschedules:\n{twelve}")
    tick = project.tick()
    assert tick.wait() == 3
    [line] = tick.stderr.splitlines()
    assert "timezone: " in line


def test_ticks_that_started_and_met_the_same_cause_are_not_counted(alarm: Alarm) -> None:
    for not_started in (False, True, True, False):
        alarm.worth_mailing("the disk is full", NOW, said="disk full", not_started=not_started)
    [cause] = alarm.kept_from_starting()
    assert (cause["ticks"], cause["why"]) == (2, "disk full")


def test_the_first_tick_that_starts_records_why_those_before_it_did_not(
    sqlite_migrated: str, new_project: NewProject
) -> None:
    project = new_project(f"sqlite:///{sqlite_migrated}").configure()
    file = project.folder / "cronjobs.yaml"
    good = file.read_text()

    def tick(text: str) -> tuple[int, str]:
        file.write_text(text)
        ended = project.tick()
        return ended.wait(), ended.stderr

    assert tick(good) == (0, "")
    assert "is not set" in tick(good + "\nenv_file: ${NOWHERE}")[1]
    assert "run: {" not in tick(good + "\nenv_file: ${NOWHERE}")[1]
    code, said = tick(good + "\nrun: {workers: [")
    assert (code, "over after" in said) == (3, False), "nobody knows whether the variable is set now"
    code, said = tick(good)
    assert (code, said.count("over after")) == (0, 1)
    assert tick(good) == (0, "")
    rows = project.sql("SELECT did FROM cronjobs_ticks ORDER BY id")
    first, back, last = [json.loads(did) if isinstance(did, str) else did for (did,) in rows]
    assert (first, last) == ({}, {})
    variable, syntax = back["kept_from_starting"]
    assert (variable["ticks"], syntax["ticks"]) == (2, 1)
    assert "NOWHERE" in variable["why"]
    assert "cronjobs.yaml:" in syntax["why"]
    assert variable["since"] < syntax["since"]


@pytest.mark.slow
@pytest.mark.parametrize("at_work", [False, True], ids=["before its row", "while its job runs"])
def test_ticks_that_could_not_write_to_a_locked_file_leave_the_reason(
    sqlite_migrated: str, new_project: NewProject, at_work: bool
) -> None:
    project = new_project(f"sqlite:///{sqlite_migrated}").configure("run: {budget: 5s}\n")
    if at_work:
        project.add("t.gated", timeout_s=1)
    tick = project.start() if at_work else None
    if at_work:
        until(lambda: project.effects("start"))
    with closing(project.connect()) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        project.open()
        assert (tick or project.tick()).wait() == 4
        foreign.execute("ROLLBACK")
    project.tick()
    did = json.loads(project.sql("SELECT did FROM cronjobs_ticks ORDER BY id DESC LIMIT 1")[0][0])
    [cause] = did["outages" if at_work else "kept_from_starting"]
    assert at_work or cause["ticks"] == 1
    assert "was locked by another connection" in cause["why"]
    project.tick()
    did = json.loads(project.sql("SELECT did FROM cronjobs_ticks ORDER BY id DESC LIMIT 1")[0][0])
    assert not {"outages", "kept_from_starting"} & {*did}, "the reason is recorded once"


@pytest.mark.slow
def test_ticks_that_could_not_write_to_a_locked_table_leave_the_reason(
    postgres_migrated: str, new_project: NewProject
) -> None:
    project = new_project(postgres_migrated).configure("run: {budget: 15s}\n")
    project.add("t.quick")
    with closing(project.connect()) as foreign:
        foreign.execute("BEGIN")
        foreign.execute("LOCK TABLE cronjobs_ticks IN SHARE MODE")
        assert project.tick().wait() == 4
        foreign.execute("ROLLBACK")
    assert project.tick().wait() == 0
    [(did,)] = project.sql("SELECT did FROM cronjobs_ticks")
    [cause] = did["kept_from_starting"]
    assert cause["ticks"] == 1
    assert "was locked by another connection" in cause["why"]


# --- one outage -------------------------------------------------------------------------------------------------------

A_SERVERS_WORDS = (
    'could not extend file "base/16384/16391": No space left on device',
    'could not write to file "base/pgsql_tmp/pgsql_tmp1234.0": No space left on device\nHINT:  Check free disk space.',
    "Prozess 4711: kein Platz mehr\nCONTEXT:  while updating tuple (3,4) in relation «cronjobs_jobs»",
)


def _refusals(code: str) -> list[DatabaseError]:
    address = parse_url("postgresql://run@db/shop")
    kind = psycopg.errors.lookup(code)
    return [as_database_error(address, DBAPIError("UPDATE", None, kind(words))) for words in A_SERVERS_WORDS]


@pytest.mark.parametrize("code", ["40P01", "42501", "42703", "42P01", "53100", "57014", "57P01", "58030", "XX001"])
def test_no_word_of_the_server_makes_another_cause_of_one_outage(code: str) -> None:
    assert len({refusal.cause for refusal in _refusals(code)}) == 1
    [other] = {refusal.cause for refusal in _refusals("0A000")}
    assert other not in {refusal.cause for refusal in _refusals(code)}


def test_how_long_a_lock_was_waited_for_makes_no_other_cause() -> None:
    assert DatabaseBusy("sqlite:///a", 3.1).cause == DatabaseBusy("sqlite:///a", 9.8).cause


def test_a_server_that_goes_starts_and_refuses_is_one_outage() -> None:
    away = [
        DatabaseUnreachable("db", "Connection refused"),
        DatabaseNotReady("db", "the database system is starting up"),
    ]
    assert len({error.cause for error in [*away, CommitUnknown("db", "gone")]}) == 1
    assert CommitUnconfirmed("db").cause != away[0].cause


def test_what_was_reported_of_one_database_says_nothing_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One file whose database comes from a variable."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "cronjobs.yaml"

    def tick(database: str, trouble: str | None, *, starts: bool = True) -> str:
        mail = CronMail(file, throttle=True)
        mail.know(Settings(file=file, folder=tmp_path, database=f"postgresql://ada:{password}@db/{database}"))
        if starts:
            reporter = mail.reporter(None, talk=False)
            for event in (dead(1), database_trouble(f"{trouble} in {database}", trouble)) if trouble else ():
                reporter.note(event)
            mail.print_causes(reporter)
            mail.send()
        else:
            mail.not_started(DatabaseUnreachable(database, "Connection refused"))
        return capfd.readouterr().err

    password = "zebra"
    for database in ("a", "b"):
        said = tick(database, "full")
        assert "a job is dead" in said
        assert f"full in {database}" in said
        assert tick(database, "full") == "", "not each minute"
        assert "refused" in tick(database, None, starts=False)
    assert "over after" in tick("a", None)
    assert tick("b", "full") == "", "it is not over there"
    password = "a new one"
    assert tick("b", None).count("over after") == 1
    state = [each.name + each.read_text() for each in (tmp_path / "state").rglob("*") if each.is_file()]
    assert state
    assert not [text for text in state if "zebra" in text or "new one" in text]


@pytest.mark.parametrize("begun", [True, False], ids=["ticks that failed", "ticks that did not begin"])
def test_one_outage_is_one_mail_and_is_over_once(
    begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    log = tmp_path / "log"

    def tick(error: DatabaseError | None) -> str:
        mail = CronMail(tmp_path / "cronjobs.yaml", throttle=True)
        reporter = mail.reporter(log, talk=False)
        if error is not None and not begun:
            mail.not_started(error)
        else:
            if error is not None:
                reporter.note(database_trouble(str(error), error.cause))
            mail.print_causes(reporter)
            mail.send()
        return capsys.readouterr().err

    said = [tick(error) for error in _refusals("53100")]
    assert "16391" in said[0]
    assert said[1:] == ["", ""]
    over = tick(None)
    assert over.startswith("cronjobs: over after")
    assert over.count("\n") == 1
    assert tick(None) == ""
    assert all(words in log.read_text() for words in ("16391", "pgsql_tmp1234", "4711")), "the log has all of it"


def test_while_the_database_fails_for_another_cause_none_of_its_causes_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def tick(error: DatabaseError | None) -> str:
        mail = CronMail(tmp_path / "cronjobs.yaml", throttle=True)
        reporter = mail.reporter(None, talk=False)
        if error is not None:
            reporter.note(database_trouble(str(error), error.cause))
        mail.print_causes(reporter)
        mail.send()
        return capsys.readouterr().err

    full = _refusals("53100")
    assert [tick(error) != "" for error in full] == [True, False, False]
    gone = tick(DatabaseUnreachable("db", "Connection refused"))
    assert "cannot be reached" in gone
    assert "over after" not in gone
    assert tick(None).count("over after") == 1, "of the two, the one that had repeated"
