"""After random lives, each number on the pages, in ``status --json`` and in metrics is that of a plain SELECT.

CRONJOBS_NUMBERS_SEEDS=300 makes the long form.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from support.browsing import Browser, by_link, pages
from support.lives import SCHEDULES, Lives
from support.lookingrows import NOW
from support.postgres import OWNER

from contrib.metrics.test_counted import check_text
from contrib.web.test_quarters import by_select
from cronjobs import masking
from cronjobs.desk.cli.status_json import all_of_it
from cronjobs.desk.insight.formatting import took
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.worst_first import schedules_shown
from cronjobs.engine.command.printing import json_text
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.quarters import WORDS
from cronjobs.engine.store import operating
from cronjobs.engine.store import schedules as ledger
from cronjobs.engine.store.operating import OperatorAction
from cronjobs.engine.store.schedules import LedgerRow
from cronjobs.engine.tick.result import did_in_words
from cronjobs.model import rough
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.connects_as(OWNER)  # who may write ticks and queues of his own

SEEDS = range(int(os.environ.get("CRONJOBS_NUMBERS_SEEDS", "2")))
STEPS = 60
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
LATE = 2 * MINUTE
FIRED = "c"  # the only schedule whose occurrences are of this year and have jobs
KNOWN = ("t.mail", "other")
YAML = """\
database: @database@
job_types: {t.mail: {command: ["true"]}, other: {command: ["true"]}}
limits: {"card:": {most: 2, each: 1}}
"""


class Days(Lives):
    """Lives in which, besides, ticks come, a schedule fires, and queues are capped and paused."""

    def __init__(self, database: Database, clock: FakeClock, seed: int) -> None:
        super().__init__(database, clock, seed)
        definition = {"cron": "*/10 * * * *", "timezone": "UTC", "job": "t.mail"}
        with database.write() as connection:
            connection.execute(update(tables.schedules).values(definition=definition))
            connection.execute(insert(tables.queues).values(name="mail", max_waiting=4, on_full="drop", dropped=7))
            connection.execute(insert(tables.queues).values(name="was", max_waiting=None, refused=3))
            connection.execute(insert(tables.queues).values(name="big", max_waiting=1000, on_full="error"))

    def acts(self) -> list[Callable[[], None]]:
        return [*super().acts(), self.enqueue, self.enqueue, self.fire, self.fire, self.tick, self.pause, self.dismiss]

    def fire(self) -> None:
        self.clock.advance(timedelta(minutes=self.dice.randint(1, 40)))
        now = self.clock.now()
        outcome = self.dice.choice(["enqueued", "enqueued", "enqueued", "missed", "skipped", "coalesced"])
        with self.database.write() as connection:
            job_id = None
            if outcome == "enqueued":
                row = self.new(schedule=FIRED)
                job_id = connection.execute(insert(tables.jobs).values(row).returning(tables.jobs.c.id)).scalar_one()
            number = SCHEDULES.index(FIRED) + 1
            ledger.record_occurrences(connection, [LedgerRow(number, now, now, 1, outcome, job_id=job_id)], now)
            there = tables.schedules.c.name == FIRED
            connection.execute(update(tables.schedules).where(there).values(next_at=now + 10 * MINUTE))
        self.ledger[number, outcome] += 1

    def tick(self) -> None:
        now = self.clock.now()
        row: dict[str, Any] = {"host": self.dice.choice(["web1", "web2"]), "pid": 7, "version": "0.1.0"}
        row |= {"started_at": now, "tick": f"t{now}{self.dice.random()}", "schedules_on": 1}
        if self.dice.random() < 0.8:
            did = {name: self.dice.randint(0, 9) for name in ("succeeded", "failed", "dead")}
            row |= {"finished_at": now + timedelta(milliseconds=310), "did": did, "ended": "nothing is due"}
        with self.database.write() as connection:
            connection.execute(insert(tables.ticks).values(row))

    def pause(self) -> None:
        scope, name = self.dice.choice([("queue", "mail"), ("schedule", "a"), ("all", "")])
        with self.database.write() as connection:
            if self.dice.random() < 0.6:
                ledger.resume(connection, scope=scope, name=name, now=self.clock.now())
            else:
                asked: dict[str, Any] = {"scope": scope, "name": name, "until": None, "by": "ada", "why": None}
                ledger.pause(connection, **asked, now=self.clock.now())

    def dismiss(self) -> None:
        with self.database.write() as connection:
            ids = [row.id for row in self.some(connection, tables.jobs.c.status == "dead", 2)]
            operating.dismiss(connection, ids, OperatorAction("dismiss", "ada", "alpha", None))


# --- the same by a look at every row ----------------------------------------------------------------------------------


class Select:
    """All rows of the database, and the numbers that must be shown for them *now*."""

    def __init__(self, database: Database, now: datetime) -> None:
        self.database, self.now = database, now
        with database.read() as connection:
            rows = {table.name: connection.execute(select(table)).all() for table in tables.metadata.sorted_tables}
        self.rows = {name.removeprefix("cronjobs_"): found for name, found in rows.items()}
        self.pauses = [row for row in self.rows["pauses"] if row.until is None or row.until > now]
        self.jobs = self.rows["jobs"]
        self.by_id = {job.id: job for job in self.jobs}
        self.waiting = [job for job in self.jobs if job.status in ("queued", "failed")]
        self.due = [job for job in self.waiting if job.run_at <= now]
        self.running = [job for job in self.jobs if job.status == "running"]
        self.dead = [job for job in self.jobs if job.status == "dead"]
        self.open_dead = [job for job in self.dead if job.dismissed_at is None or job.dismissed_at < job.finished_at]

    def paused(self, queue: str) -> bool:
        return any(row.scope == "all" or (row.scope, row.name) == ("queue", queue) for row in self.pauses)

    @property
    def late(self) -> list[Any]:
        """Due for two minutes, and nothing but want of a tick keeps it from running."""
        running = Counter(job.concurrency_key for job in self.running if job.concurrency_key)
        return [
            job
            for job in self.due
            if self.now - job.run_at >= LATE
            and not self.paused(job.queue)
            and job.job_type in KNOWN
            and not (job.concurrency_key and (running.total() >= 2 or running[job.concurrency_key] >= 1))
            and not self.waits_its_turn(job)
        ]

    def waits_its_turn(self, job: Any) -> bool:
        """Behind another job of its schedule; all are of one type, and none allows overlap."""
        others = [each for each in (*self.waiting, *self.running) if each.schedule == job.schedule is not None]
        return any(each.status == "running" or each.id < job.id for each in others if each.id != job.id)

    def queue(self, name: str) -> dict[str, Any]:
        mine, due, late = ([job for job in jobs if job.queue == name] for jobs in (self.waiting, self.due, self.late))
        row: Any = next((row for row in self.rows["queues"] if row.name == name), None)
        capped = row is not None and row.max_waiting is not None
        return {
            "queue": name,
            "due": len(due),
            "future": len(mine) - len(due),
            "failed": sum(job.status == "failed" for job in mine),
            "late": len(late),
            "paused": self.paused(name),
            "max_waiting": row.max_waiting if row is not None and capped else None,
            "on_full": row.on_full if row is not None and capped else None,
            "dropped": row.dropped if row is not None and capped else 0,
            "oldest_due_at": min((job.run_at for job in due), default=None),
        }

    @property
    def queues(self) -> dict[str, dict[str, Any]]:
        capped = {row.name for row in self.rows["queues"] if row.max_waiting is not None}
        return {name: self.queue(name) for name in {job.queue for job in self.waiting} | capped}

    @property
    def limit(self) -> tuple[int, int]:
        """How many jobs run under the one limit, and how many due jobs wait for it."""
        running = Counter(job.concurrency_key for job in self.running if job.concurrency_key)
        keys = [job.concurrency_key for job in self.due if job.concurrency_key and not self.paused(job.queue)]
        return running.total(), sum(running.total() >= 2 or running[key] >= 1 for key in keys)

    @property
    def unresolved(self) -> Counter[str]:
        return Counter(job.job_type for job in self.due if job.job_type not in KNOWN)

    def change(self, queue: str) -> int:
        """How many more jobs of *queue* are due than ten minutes ago."""
        since = self.now - 10 * MINUTE
        came = sum(job.queue == queue and job.run_at > since for job in self.due)
        ended = [job for job in self.jobs if job.finished_at is not None and job.finished_at >= since]
        begun = [job for job in [*ended, *self.running] if job.queue == queue and job.started_at is not None]
        gone = sum(job.started_at > since >= job.run_at for job in begun)
        return int(came - gone)

    def ledger(self, schedule_id: int) -> list[Any]:
        """The schedule's rows of the ledger up to now, newest first."""
        mine = [row for row in self.rows["occurrences"] if row.schedule_id == schedule_id and row.last_for <= self.now]
        return sorted(mine, key=lambda row: row.last_for, reverse=True)

    def outcome(self, row: Any) -> str:
        if row.outcome != "enqueued":
            return str(row.outcome)
        job = self.by_id.get(row.job_id)
        return "pruned" if job is None else job.status

    def took_s(self, row: Any) -> float | None:
        """How long the last attempt took, if it has ended."""
        job = self.by_id.get(row.job_id) if row.outcome == "enqueued" else None
        last = [run for run in self.rows["job_runs"] if job and (run.job_id, run.attempt) == (job.id, job.attempts)]
        return (last[0].finished_at - last[0].started_at).total_seconds() if last else None


# --- the test ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def browser(database: Database, database_url: str, tmp_path: Path) -> Iterator[Browser]:
    access = by_link()
    yield Browser(pages(database, database_url, tmp_path, access, YAML)).log_in(access)
    masking.remember(())


@pytest.mark.parametrize("seed", SEEDS)
def test_every_number_is_that_of_a_select(database: Database, clock: FakeClock, browser: Browser, seed: int) -> None:
    days = Days(database, clock, seed)
    application: Any = browser.application
    for number in range(STEPS):
        days.step()
        if number % 20 == 19:
            clock.advance(timedelta(seconds=0.1))  # so that nothing is exactly two minutes old
            right = Select(database, clock.now())
            settings, types = application.current.now()
            found = check_status(right, settings, types)
            check_first_page(right, browser, found)
            check_queues_page(right, browser)
            check_hosts_page(right, browser)
    check_text(days)


def check_status(right: Select, settings: Settings, types: JobTypes) -> list[str]:
    """Return the findings' sentences, which the first page has, too."""
    with right.database.read() as connection:
        health = look(connection, settings, types)
        shown = schedules_shown(connection, health, settings.run.every, None)
        told = json.loads(json_text(all_of_it(connection, health, settings, "", shown)))
    waiting, queues = told["waiting"], {each["queue"]: each for each in told["waiting"]["queues"]}
    assert {name: waiting[name] for name in ("due", "future", "failed", "late")} == {
        "due": len(right.due),
        "future": len(right.waiting) - len(right.due),
        "failed": sum(job.status == "failed" for job in right.waiting),
        "late": len(right.late),
    }
    assert waiting["oldest_due_at"] == as_json(min((job.run_at for job in right.due), default=None))
    for queue in queues.values():
        change, over_s = queue.pop("change"), queue.pop("change_over_s")
        grows = queue["due"] and not queue["paused"]
        assert (change, over_s) == ((right.change(queue["queue"]), 600) if grows else (None, None))
    assert queues == {name: as_json(each) for name, each in right.queues.items()}
    _, limited = right.limit
    assert [each["waiting"] for each in waiting["limited"]] == ([limited] if limited else [])
    assert {each["job_type"]: each["waiting"] for each in told["unresolved"]} == right.unresolved
    overdue = sum(job.locked_until < right.now for job in right.running)
    assert (told["running"]["total"], told["running"]["overdue"]) == (len(right.running), overdue)
    assert [job["id"] for job in told["running"]["jobs"]] == longest_first(right)
    assert told["dead"] == {"total": len(right.dead), "last_24h": died(right, DAY), "last_1h": died(right, DAY / 24)}
    assert sum(cause["jobs"] for cause in told["causes"]) == len(right.open_dead)
    assert len(told["pauses"]) == len(right.pauses)
    assert [tick["id"] for tick in told["ticks"]] == [tick.id for tick in last_ticks(right)]
    facts = {each["name"]: each for each in told["schedules"]}
    assert set(facts) == set(SCHEDULES)
    for number, name in enumerate(SCHEDULES, 1):
        rows = right.ledger(number)[:100]
        outcomes = [(as_json(row.last_for), right.outcome(row), right.took_s(row)) for row in rows[:20]]
        assert [(run["due_at"], run["outcome"], run["took_s"]) for run in facts[name]["runs"]] == outcomes
        went = sorted(s for row in rows if right.outcome(row) == "succeeded" and (s := right.took_s(row)) is not None)
        enough = len(went) >= 20
        assert (facts[name]["median_s"] is None, facts[name]["p95_s"] is None) == (not enough, not enough)
    found = [each["text"] for each in told["findings"]]
    check_findings(right, found)
    return found


def check_findings(right: Select, texts: Sequence[str]) -> None:
    """The numbers in the sentences."""
    for words, jobs in (("nobody has retried or dismissed", right.open_dead), ("due for more than 2m", right.late)):
        # What is late for want of ticks is said of the ticks.
        said = jobs and (jobs is right.open_dead or not any(text.startswith("no tick") for text in texts))
        assert [text.split()[0] for text in texts if words in text] == ([str(len(jobs))] if said else [])
    waiting = Counter(int(text.split()[0]) for text in texts if "due job waits: " in text or "due jobs wait: " in text)
    assert waiting == Counter(right.unresolved.values())
    full = [text for text in texts if text.startswith('queue "mail"')]
    mail = sum(job.queue == "mail" for job in right.waiting)
    assert [f"({mail} of 4)" in text for text in full] == ([True] if mail >= 3.2 else [])


def check_first_page(right: Select, browser: Browser, found: Sequence[str]) -> None:
    reply = browser.get("/")
    figures = {
        "running": len(right.running),
        "due": len(right.due),
        "in the future": len(right.waiting) - len(right.due),
        "retrying": sum(job.status == "failed" for job in right.waiting),
        "late": len(right.late),
        "dead in 24 h": died(right, DAY),
        "dead in all": len(right.dead),
    }
    assert " ".join(f"{count} {name}" for name, count in figures.items()) in reply.words
    listed = [str(given["href"]) for tag, given in browser.get("/jobs?status=dead&limit=500").elements if tag == "a"]
    links = {int(link.removeprefix("/jobs/")) for link in listed if link.startswith("/jobs/")}
    assert links == {job.id for job in right.dead}
    assert [text for text in found if " ".join(text.split()) not in reply.words] == []
    assert reply.body.count('class="finding ') == len(found)
    shown = {row["schedule"]: row for row in reply.tables["Schedules"]}
    assert set(shown) == set(SCHEDULES)
    for number, name in enumerate(SCHEDULES, 1):
        letters = Counter(by_select(right.database, number, right.now))
        strip = [f"{letters[letter]} {word}" for letter, word in reversed(WORDS.items()) if letter != "."]
        there = ", ".join(text for text in strip if not text.startswith("0 ")) or "nothing was due"
        assert shown[name]["last 24 h"].endswith(f"quarter-hours of the last 24 h: {there}")
        lately = right.ledger(number)[:20]
        at_work = sorted((job for job in right.running if job.schedule == name), key=lambda job: job.started_at)
        newest = [row for row in lately if right.outcome(row) not in ("queued", "running")][:1]
        seconds = right.took_s(newest[0]) if newest and not at_work else None
        ran = "" if seconds is None else f", took {took(right.now, right.now + timedelta(seconds=seconds))}"
        shown_at = [job.scheduled_for or job.started_at for job in at_work] or [row.last_for for row in newest]
        due = shown_at[0].isoformat(timespec="seconds") if shown_at else "none yet"
        assert shown[name]["last"].endswith(f"{due} {ran}".strip()), (shown[name], newest)
        [stored] = [row for row in right.rows["schedules"] if row.name == name]
        if "paused" not in shown[name]["next"]:
            assert shown[name]["next"] == (stored.next_at.isoformat(timespec="seconds") if stored.next_at else "")


def check_queues_page(right: Select, browser: Browser) -> None:
    shown = browser.get("/queues").tables
    wanted = {}
    for name, queue in right.queues.items():
        waiting = queue["due"] + queue["future"]
        most = queue["max_waiting"]
        cap = f"{waiting} of {most:,}, then {queue['on_full']}" + (" full" if waiting >= most else "") if most else ""
        numbers = [str(queue[each]) for each in ("due", "late", "future", "failed")]
        dropped = str(queue["dropped"]) if queue["dropped"] else ""
        wanted[f"{name}{' paused' if queue['paused'] else ''}"] = [*numbers, cap, dropped]
    assert {row["queue"]: list(row.values())[1:] for row in shown.get("Queues", [])} == wanted
    running, waits = right.limit
    [limit] = shown["Limits"]
    reached = " reached" if waits else ""
    assert (limit["running"], limit["due and waiting"]) == (f"{running}{reached}", str(waits))
    assert len(shown.get("Pauses", [])) == len(right.pauses)


def check_hosts_page(right: Select, browser: Browser) -> None:
    shown = browser.get("/hosts").tables
    rows = {"Hosts": last_ticks(right), "Last ticks": newest(right.rows["ticks"], 30)}
    for caption, ticks in rows.items():
        cells = [(row["host"], row["did"], row["took"]) for row in shown.get(caption, [])]
        assert cells == [(tick.host, words_of(tick, right), took(tick.started_at, tick.finished_at)) for tick in ticks]
    running = [(row["id"], row["since"]) for row in shown.get("Running now", [])]
    assert [int(job_id) for job_id, _ in running] == longest_first(right)
    for (_, since), job_id in zip(running, longest_first(right), strict=True):
        assert since == f"for {rough(right.now - right.by_id[job_id].started_at)}"
    done = [(row["action"], row["target"]) for row in shown.get("Who did what", [])]
    assert done == [(entry.action, entry.subject) for entry in newest(right.rows["audit"], 30)]


# --- parts of it ------------------------------------------------------------------------------------------------------


def as_json(value: Any) -> Any:
    return json.loads(json_text(value))


def died(right: Select, within: timedelta) -> int:
    return sum(job.finished_at >= right.now - within for job in right.dead)


def longest_first(right: Select) -> list[int]:
    return [job.id for job in sorted(right.running, key=lambda job: (job.started_at, job.id))][:50]


def last_ticks(right: Select) -> list[Any]:
    last = {tick.host: tick for tick in sorted(right.rows["ticks"], key=lambda tick: tick.id)}
    return sorted(last.values(), key=lambda tick: (tick.started_at, tick.id), reverse=True)


def newest(rows: Sequence[Any], count: int) -> list[Any]:
    return sorted(rows, key=lambda row: row.id, reverse=True)[:count]


def words_of(tick: Any, right: Select) -> str:
    if tick.finished_at is None:
        return "no end recorded yet" if right.now - tick.started_at < 2 * MINUTE else "did not end; was it killed?"
    done = did_in_words(tick.did)
    ended = ("" if done else "no job was due") if tick.ended == "nothing is due" else tick.ended
    return "; ".join(part for part in (done, ended) if part)
