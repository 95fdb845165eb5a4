"""Shared by the tests of ``explain``: hosts that tick in fake time, the command line, and its answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cronjobs import RetryPolicy
from cronjobs.engine.config import load
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs import registry
from cronjobs.engine.rules.recovery_policy import AttemptPolicy, ClaimPolicies
from cronjobs.engine.store import claims
from cronjobs.testing import FakeClock
from cronjobs.testing.clocks import StillClock
from support.hosts import Host
from support.lookingrows import Answer, Cronjobs
from support.lookingrows import cronjobs as cronjobs

BEGIN = datetime(2026, 3, 2, 8, 0, 30, 300_000, tzinfo=UTC)  # a Monday
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
MINUTELY = {"s": 'cron: "* * * * *"'}


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> FakeClock:
    """A clock whose monotonic seconds stand still, too. So a tick ends at the instant it began, even on a slow machine.

    A test that waits for a real timeout chooses another class by its parameter.
    """
    made: FakeClock = getattr(request, "param", StillClock)(BEGIN)
    return made


class World:
    """Hosts that tick with the file in their folder, and the command line."""

    def __init__(self, database: Database, url: str, clock: FakeClock, folder: Path, cronjobs: Cronjobs) -> None:
        self.database, self.url, self.clock, self.folder, self.cronjobs = database, url, clock, folder, cronjobs
        self.hosts: dict[str, Host] = {}
        self.plan: list[Callable[[], Any]] = []  # what the next attempts do; without a plan they succeed
        self.more = ""

    def file(self, more: str = "", **schedules: str) -> None:
        """Write the file. Each keyword argument is a schedule, with its timing and other keys in YAML's flow style."""
        entries = "".join(
            f"  {name.replace('_', '-')}: {{{fields if 'job:' in fields else fields + ', job: t.work'}}}\n"
            for name, fields in schedules.items()
        )
        (self.folder / "cronjobs.yaml").write_text(
            f"project: shop\ndatabase: {json.dumps(self.url)}\n{more}" + (f"schedules:\n{entries}" if entries else "")
        )

    def settings(self) -> Settings:
        return load.load(self.folder / "cronjobs.yaml", environ={})

    def tick(self, at: datetime | None = None, host: str = "alpha") -> Any:
        """Run one tick at the time *at*."""
        if at is not None:
            self.go(at)
        ticking = self.hosts.setdefault(host, Host(self.database, self.folder, host))
        ticking.settings = self.settings()
        return ticking.tick()

    def go(self, at: datetime) -> None:
        # Use a time a little after the full second: ticks begin a moment before the frozen time, and end a moment after
        # it.
        self.clock.set(at + timedelta(seconds=0.3))

    def ticks(self, begin: datetime, end: datetime, every: timedelta = MINUTE, host: str = "alpha") -> None:
        at = begin
        while at <= end:
            self.tick(at, host)
            at += every

    def ask(self, *arguments: str, code: int = 0) -> Told:
        answer = self.cronjobs("explain", *arguments, "--json")
        assert answer.code == code, answer
        return Told(answer.json)

    def say(self, *arguments: str) -> Answer:
        return self.cronjobs("explain", *arguments)

    def leave_hanging(self, host: str = "beta", lease: timedelta = MINUTE, **policy: Any) -> int:
        """Imitate a runner that took the next due job and was killed.

        *policy* is what its claim wrote about the job's type.
        """
        policies = ClaimPolicies.of({"t.work": AttemptPolicy(RetryPolicy(), **policy)})
        admission = claims.ClaimFilter(known=["t.work"], fitting=["t.work"], remaining_s=50, longest_s=50)
        with self.database.write() as connection:
            [job] = claims.claim(
                connection,
                limit=1,
                locked_by=f"{host}:boot:1:1:1:dead",
                lease=lease,
                admission=replace(admission, policies=policies),
            ).jobs
        return job.id


class Told:
    """A JSON answer of ``explain``."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        self.verdict: str = found.get("verdict", "")
        self.text = " ".join(found.get("sentences", []))
        self.facts: dict[str, Any] = found.get("facts", {})

    def __repr__(self) -> str:
        return f"{self.verdict}: {self.text}"

    def __contains__(self, words: str) -> bool:
        return words in self.text

    @property
    def steady(self) -> list[str]:
        """Return the sentences without the real durations of attempts."""
        return [re.sub(r"after [\d.]+m?s", "after a moment", sentence) for sentence in self.found["sentences"]]


@pytest.fixture
def world(
    database: Database,
    database_url: str,
    clock: FakeClock,
    tmp_path: Path,
    cronjobs: Cronjobs,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    monkeypatch.setenv("COLUMNS", "160")
    before = dict(registry._registered)
    world = World(database, database_url, clock, tmp_path, cronjobs)

    @registry.job("t.work")
    def work(**_: Any) -> None:
        if world.plan:
            world.plan.pop(0)()

    yield world
    registry._registered.clear()
    registry._registered.update(before)


def fail(message: str = "503 from the provider") -> Callable[[], Any]:
    def raise_it() -> None:
        raise ConnectionError(message)

    return raise_it


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


NIGHTLY = 'cron: "15 2 * * *", timezone: America/New_York'


def a_night(world: World, **more: str) -> None:
    """Apply the schedule nightly-report at noon in New York, before its first night."""
    world.file(nightly_report=NIGHTLY + "".join(f", {key}: {value}" for key, value in more.items()))
    world.tick(utc("2026-11-19T17:00:00"))
    world.tick(utc("2026-11-20T06:58:00"))


# --- what several tests begin with ------------------------------------------------------------------------------------


def no_room(world: World, host: str = "alpha") -> None:
    """Run a tick that settles due occurrences but has no time left to begin a job."""
    ticking = world.hosts[host]
    ticking.settings = world.settings()
    ticking.tick(only="t.nothing")


def an_outage(world: World, **more: str) -> None:
    """A schedule fires each minute. After the tick of 01:58, the next tick is at 02:31:12."""
    world.file(s='cron: "* * * * *"' + "".join(f", {key}: {value}" for key, value in more.items()))
    world.ticks(utc("2026-03-03T01:56:00"), utc("2026-03-03T01:58:00"))
    world.tick(utc("2026-03-03T02:31:12"))


def brake(world: World, *arguments: str, monkeypatch: pytest.MonkeyPatch, who: str = "ada") -> None:
    monkeypatch.setenv("LOGNAME", who)
    answer = world.cronjobs(*arguments)
    assert answer.code == 0, answer
    world.clock.advance(timedelta(seconds=1))  # on PostgreSQL, the fake now advances a little by itself


def retire_all(world: World) -> None:
    world.file(other='cron: "0 0 1 1 *"')
    world.tick()
    assert world.cronjobs("sync", "--allow-removals").code == 0
