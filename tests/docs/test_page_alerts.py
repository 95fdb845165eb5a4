"""docs/how-to/alerts.md is right: its files are valid, and its message is the one that is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import until
from support.inboxes import Web
from support.inboxes import web as web
from support.pages import Page
from support.postgres import PostgresServer
from support.ticking import Project, cli

from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import CommandChannel, MailChannel, Settings, WebhookChannel

PAGE = Page("docs/how-to/alerts.md")
ENVIRON = {
    "SMTP_PASSWORD": "correct horse",
    "SLACK_URL": "https://hooks.example.com/T0/B0",
    "TICKS_PING": "https://hc.example.com/ticks",
    "REPORT_PING": "https://hc.example.com/report",
}
HANDLERS = """
@job("shop.pay", retry=RetryPolicy(max_attempts=1))
def pay(ctx):
    print("charging")
    raise ValueError("no such card")
"""


def test_no_block_of_the_page_is_left_out_and_no_link_is_dead() -> None:
    assert PAGE.counts() == {
        "console": 1,
        "yaml": 6,
        "json": 1,
        "python": 3,
    }  # test_page_alerts_metrics.py, test_page_alerts_extras.py
    assert PAGE.dead_links() == []


def read(folder: Path, says: str) -> Settings:
    (folder / "cronjobs.yaml").write_text(PAGE.block("yaml", says))
    settings = load(folder / "cronjobs.yaml", environ=ENVIRON)
    assert settings.problems == ()
    return settings


def test_its_first_file_has_three_channels_and_two_thresholds(tmp_path: Path) -> None:
    settings = read(tmp_path, "many-deaths:")
    assert settings.alerts is not None
    ways = {name: type(channel.way) for name, channel in settings.alerts.channels.items()}
    assert ways == {"ops": MailChannel, "chat": WebhookChannel, "pager": CommandChannel}
    assert settings.alerts.channels["chat"].only.severity == "critical"
    assert settings.alerts.channels["ops"].only.ignore == ("late",)
    assert list(settings.alerts.thresholds) == ["many-deaths", "flaky-payments"]
    assert set(ENVIRON.values()) & settings.secrets == {ENVIRON["SMTP_PASSWORD"], ENVIRON["SLACK_URL"]}


def test_its_second_file_pings(tmp_path: Path) -> None:
    settings = read(tmp_path, "TICKS_PING")
    assert settings.run.ping == ENVIRON["TICKS_PING"]
    assert settings.schedules["nightly-report"].ping == ENVIRON["REPORT_PING"]


def shape(value: Any) -> Any:
    """The keys of a JSON value, and the types of its values."""
    match value:
        case dict():
            return {key: shape(item) for key, item in value.items()}
        case list():
            return [shape(item) for item in value[:1]]
    return type(value)


def test_its_message_is_the_one_that_is_sent(project: Project, web: Web) -> None:
    channels = f'alerts:\n  channels:\n    hook: {{webhook: {{url: "{web.url}"}}}}\n'
    project.configure(f"project: shop\nenvironment: production\n{channels}", handlers=HANDLERS)
    project.add("shop.pay")
    assert project.tick().wait() == 1
    [sent] = web.messages
    wanted = json.loads(PAGE.block("json", "findings"))
    wanted["findings"][0]["jobs"][0]["output"] = ["charging"]
    assert shape(sent) == shape(wanted)
    [job] = sent["findings"][0]["jobs"]
    assert job["at"].endswith('handlers.py:37 in pay: raise ValueError("no such card")')
    assert job["output"] == ["charging"]
    tried = cli(project, "alerts", "test", "hook")
    assert "hook: delivered" in str(tried)
    assert web.messages[-1]["note"].startswith('this is a test of the channel "hook"')


def test_a_channel_that_ignores_deaths_hears_of_the_types_with_a_threshold(project: Project, web: Web) -> None:
    named = PAGE.block("yaml", "fetches:").partition("alerts:")[2]
    way = f'webhook: {{url: "{web.url}"}}'
    alerts = named.replace("command: [/usr/local/bin/page, --team, web]", way)
    assert way in alerts
    project.configure(f"alerts:{alerts}", handlers=HANDLERS + HANDLERS.replace("shop.pay", "shop.fetch"))
    project.add("shop.fetch")
    assert project.tick().wait() == 1
    assert web.messages == []
    assert "critical dead" in str(cli(project, "status"))
    project.add("shop.pay")
    assert project.tick().wait() == 1
    assert [each["finding"] for sent in web.messages for each in sent["findings"]] == ["threshold:payments"]


@pytest.mark.slow
def test_an_outage_within_one_tick_is_printed_and_the_next_tick_alerts(
    postgres_project: Project, postgres_server: PostgresServer, web: Web
) -> None:
    project, name = postgres_project, postgres_project.url.rpartition("/")[2]
    project.configure(f'alerts:\n  channels:\n    hook: {{webhook: {{url: "{web.url}"}}}}\n')
    project.tick()
    project.add("t.gated", timeout_s=2)
    tick = project.start("--budget", "8s")
    until(lambda: bool(project.effects("start")))
    postgres_server.execute(
        f"ALTER DATABASE {name} ALLOW_CONNECTIONS false",
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
    )
    project.open()
    try:
        assert tick.wait() == 4
        assert "database.trouble" in tick.stderr
        assert web.messages == []
        assert project.tick().wait() == 4
    finally:
        postgres_server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    assert ["cannot be reached" in sent["note"] for sent in web.messages] == [True]
