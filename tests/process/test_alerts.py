"""Alerts of real ticks: which of them look, what a kill leaves, and what is said while the database is away."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.databases import until
from support.inboxes import Web, closed_port
from support.inboxes import web as web
from support.ticking import Project

HANDLERS = """
@job("t.dies", retry=RetryPolicy(max_attempts=1))
def dies(ctx):
    raise ValueError("no such card")

@job("t.long", timeout="2m", retry=RetryPolicy(max_attempts=1))
def long(ctx):
    raise ValueError("too long")
"""
PAST = {True: "1600000000000000", False: "'2020-01-01'"}


def configured(project: Project, web: Web, more: str = "") -> Project:
    channels = f'alerts:\n  channels:\n    hook: {{webhook: {{url: "{web.url}/"}}}}\n'
    return project.configure(channels + more, HANDLERS)


def look_now(project: Project) -> None:
    """What time does."""
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


@pytest.mark.slow
def test_a_server_that_does_not_answer_holds_a_tick_up_no_longer_than_its_deadline(
    sqlite_project: Project, web: Web
) -> None:
    configured(sqlite_project, web, "run: {budget: 6s}\n")
    sqlite_project.tick()
    sqlite_project.add("t.dies", timeout_s=1)
    web.hold = True
    tick = sqlite_project.tick()
    assert tick.wait() == 1
    assert tick.took_s < 8
    [(error, failures)] = sqlite_project.sql("SELECT error, failures FROM cronjobs_alerts")
    assert error.startswith("no answer within")
    assert failures == 1
    assert "alert.not_sent" in tick.stderr, "cron mails it"


def test_a_long_job_that_dies_is_told_by_the_next_tick(sqlite_project: Project, web: Web) -> None:
    configured(sqlite_project, web)
    sqlite_project.tick()
    job = sqlite_project.add("t.long")
    sqlite_project.tick()
    until(lambda: sqlite_project.job(job)["status"] == "dead")
    until(
        lambda: sqlite_project.value("SELECT look_at < 1e6 * (julianday('now') - 2440587.5) * 86400 FROM cronjobs_meta")
    )
    sqlite_project.tick()
    assert [each["finding"] for message in web.messages for each in message["findings"]][:1] == ["dead"]


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
    assert b"can be used again" in notes[1]


def test_a_channel_that_cannot_be_read_disables_itself_and_nothing_else(sqlite_project: Project, web: Web) -> None:
    configured(sqlite_project, web, "    broken: {mail: {host: x}}\n")
    sqlite_project.add("t.dies")
    tick = sqlite_project.tick()
    assert tick.wait() == 3
    assert "alerts.channels.broken.mail: from:, to: must be given here" in tick.stderr
    told = [each["finding"] for message in web.messages for each in message["findings"]]
    assert sorted(each.partition(":")[0] for each in told) == ["config", "dead"]
