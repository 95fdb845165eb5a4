"""Hosts that send alerts, in fake time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import select, update

from cronjobs.contrib.alerts.texts import Message
from cronjobs.desk.insight.findings import Finding, judge
from cronjobs.desk.insight.gathering import look
from cronjobs.engine.config.settings import (
    AlertChannel,
    AlertFilter,
    AlertSettings,
    AlertThreshold,
    JobTypeSettings,
    MailChannel,
    WebhookChannel,
)
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store.alerts import look_soon
from support.hosts import Host, put
from support.inboxes import Smtp, Web

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def webhook(web: Web, name: str = "hook", **only: Any) -> AlertChannel:
    return AlertChannel(name, WebhookChannel(web.url), AlertFilter(**only))


def noting(told: list[Message]) -> Callable[..., Iterator[tuple[str, None]]]:
    """Return a replacement for ``deliver`` that appends each message to *told*."""

    def deliver(messages: Mapping[str, Message], *_: Any) -> Iterator[tuple[str, None]]:
        told.extend(messages.values())
        yield from dict.fromkeys(messages).items()

    return deliver


def alerting(*channels: AlertChannel, **thresholds: AlertThreshold) -> AlertSettings:
    return AlertSettings({channel.name: channel for channel in channels}, thresholds)


TYPES = {
    name: JobTypeSettings(name, command=(command,), timeout=timedelta(seconds=1))
    for name, command in (("t.say", "true"), ("t.fail", "false"))
}


class Stage:
    """Hosts that have the same configuration file."""

    def __init__(self, database: Database, folder: Path, alerts: AlertSettings, hosts: int = 1) -> None:
        self.database, self.clock = database, database.clock
        self.hosts = [Host(database, folder, f"host{number}") for number in range(hosts)]
        for host in self.hosts:
            host.carry(alerts=alerts, job_types=TYPES, project="shop", environment="production", timezone="UTC")
        self.tick()

    def tick(self) -> None:
        for host in self.hosts:
            host.tick()

    def minutes(self, count: int, each: timedelta = MINUTE) -> None:
        for _ in range(count):
            self.clock.advance(each)  # type: ignore[attr-defined]
            self.tick()

    def kill_a_job(self) -> int:
        return put(self.database, job_type="t.fail", max_attempts=1)

    def settle_deaths(self) -> None:
        with self.database.write() as connection:
            connection.execute(update(tables.jobs).values(dismissed_at=self.clock.now() + timedelta(seconds=1)))
            look_soon(connection)

    def findings(self) -> list[Finding]:
        """Return the findings as ``status`` lists them."""
        settings = self.hosts[0].settings
        with self.database.read() as connection:
            return judge(look(connection, settings, JobTypes({})), settings)

    def rows(self, table: Any) -> list[Any]:
        with self.database.read() as connection:
            return list(connection.execute(select(table).order_by(*table.primary_key.columns)))


def mail(smtp: Smtp, **more: Any) -> AlertChannel:
    way = MailChannel("127.0.0.1", ("ops@example.com", "b@example.com"), "cron@example.com", smtp.port, "none", **more)
    return AlertChannel("ops", way)
