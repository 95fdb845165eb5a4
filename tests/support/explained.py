"""What the tests of ``explain`` share: hosts that tick in fake time, the command line beside them, and its answers."""

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
    """A clock whose monotonic seconds stand still too: a tick ends at the instant it began, on a slow machine as well.

    A test that waits for a real time-out asks for another class by its parameter.
    """
    made: FakeClock = getattr(request, "param", StillClock)(BEGIN)
    return made


class World:
    """Hosts that tick with the file in their folder, and the command line beside them."""

    def __init__(self, database: Database, url: str, clock: FakeClock, folder: Path, cronjobs: Cronjobs) -> None:
        self.database, self.url, self.clock, self.folder, self.cronjobs = database, url, clock, folder, cronjobs
        self.hosts: dict[str, Host] = {}
        self.plan: list[Callable[[], Any]] = []  # what the next attempts do; else they succeed
        self.more = ""

    def file(self, more: str = "", **schedules: str) -> None:
        """Write the file: a schedule a keyword, its timing and other keys as YAML flow."""
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
        """One tick, *at* that time."""
        if at is not None:
            self.go(at)
        ticking = self.hosts.setdefault(host, Host(self.database, self.folder, host))
        ticking.settings = self.settings()
        return ticking.tick()

    def go(self, at: datetime) -> None:
        # A little after the full second: ticks begin and end a moment before and after the time that stands still.
        self.clock.set(at + timedelta(seconds=0.3))

    def ticks(self, begin: datetime, end: datetime, every: timedelta = MINUTE) -> None:
        at = begin
        while at <= end:
            self.tick(at)
            at += every

    def ask(self, *arguments: str, code: int = 0) -> Told:
        answer = self.cronjobs("explain", *arguments, "--json")
        assert answer.code == code, answer
        return Told(answer.json)

    def say(self, *arguments: str) -> Answer:
        return self.cronjobs("explain", *arguments)

    def leave_hanging(self, host: str = "beta", lease: timedelta = MINUTE, **policy: Any) -> int:
        """A runner that took the next due job, and was killed; *policy*: what its claim wrote of the job's type."""
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
    """One JSON answer."""

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
        """The sentences, without how long attempts really took."""
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
    """nightly-report, applied at noon in New York, before its first night."""
    world.file(nightly_report=NIGHTLY + "".join(f", {key}: {value}" for key, value in more.items()))
    world.tick(utc("2026-11-19T17:00:00"))
    world.tick(utc("2026-11-20T06:58:00"))


# --- what several tests begin with ------------------------------------------------------------------------------------


def no_room(world: World) -> None:
    """A tick that settles what is due, and begins nothing: it has no time left."""
    host = world.hosts["alpha"]
    host.settings = world.settings()
    host.tick(only="t.nothing")


def an_outage(world: World, **more: str) -> None:
    """Minutely; the tick of 01:58 is the last before that of 02:31:12."""
    world.file(s='cron: "* * * * *"' + "".join(f", {key}: {value}" for key, value in more.items()))
    world.ticks(utc("2026-03-03T01:56:00"), utc("2026-03-03T01:58:00"))
    world.tick(utc("2026-03-03T02:31:12"))


def brake(world: World, *arguments: str, monkeypatch: pytest.MonkeyPatch, who: str = "ada") -> None:
    monkeypatch.setenv("LOGNAME", who)
    answer = world.cronjobs(*arguments)
    assert answer.code == 0, answer
    world.clock.advance(timedelta(seconds=1))  # PostgreSQL's fake now goes on by itself, a little


def retire_all(world: World) -> None:
    world.file(other='cron: "0 0 1 1 *"')
    world.tick()
    assert world.cronjobs("sync", "--allow-removals").code == 0
