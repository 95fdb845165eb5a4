"""``cronjobs prune`` deletes what its dry run lists, in the same batches as ticks. A dry run writes nothing."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from typing import Any

import pytest
import typer
from sqlalchemy import insert, select
from support.lookingrows import NOW, Cronjobs
from support.lookingrows import cronjobs as cronjobs
from support.postgres import OWNER

from cronjobs.desk.cli import prune
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.store.pruning import STRIPPED
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.connects_as(OWNER)
DAY = timedelta(days=1)
FILE = "retention: {succeeded: 10d, dead: 20d, keys: 40d, occurrences: 30d, effects: 50d}\n"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


def anything(database: Database, seed: int) -> None:
    """Rows of every table and age, some of which keep others."""
    chance = random.Random(seed)
    with database.write() as connection:

        def put(table: Any, **values: Any) -> None:
            connection.execute(insert(table).values(**values))

        def at() -> Any:
            return NOW - chance.uniform(0, 80) * DAY

        for n in range(120):
            status = chance.choice(["succeeded", "dead", "cancelled", "queued"])
            values: dict[str, Any] = {"job_type": "t", "status": status, "run_at": at()}
            values["finished_at"] = None if status == "queued" else at()
            values["idempotency_key"] = chance.choice([None, f"k{n}"])
            job_id = connection.execute(insert(tables.jobs).values(values).returning(tables.jobs.c.id)).scalar_one()
            for attempt in range(chance.choice([0, 0, 1, 3])):
                runs = {"outcome": "failed", "started_at": NOW, "finished_at": NOW, "runner": "r", "attempt": attempt}
                put(tables.job_runs, job_id=job_id, **runs)
            for m in range(chance.choice([0, 1])):
                put(tables.effects, key=f"{n}:{m}", job_id=chance.choice([None, job_id]), begun_at=at())
        seen = {"name": "s", "definition": {}, "fingerprint": "", "seen_until": NOW - 50 * DAY}
        put(tables.schedules, **seen)
        [schedule] = connection.execute(select(tables.schedules.c.id)).scalars()
        for n in range(40):
            when = NOW - (n * 2 * DAY)
            put(tables.occurrences, schedule_id=schedule, first_for=when, last_for=when, outcome="missed")
            tick = {"tick": str(n), "host": "h", "pid": 1, "version": "0", "started_at": when}
            put(tables.ticks, **tick, job_types=chance.choice([None, f"h{n % 9}", f"h{n}"]))
        for n in range(40):
            finding = {"finding": f"f{n}", "kind": "f", "severity": "warning", "text": "", "rows": []}
            put(tables.findings, **finding, id=n + 1, began_at=NOW, ended_at=chance.choice([None, at()]))
            put(tables.alerts, finding_id=n + 1, channel="ops")
        for n in range(40):
            put(tables.job_type_lists, hash=f"h{n}", names=[], recorded_at=at())
        put(tables.ticks, tick="now", host="h", pid=1, version="0", started_at=NOW)


def contents(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    with database.read() as connection:
        return {
            name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
            for name, table in tables.metadata.tables.items()
        }


def told(answer: Any) -> dict[str, int]:
    return {row["what"]: row["rows"] for row in answer.json["rows"]}


@pytest.fixture
def short(cronjobs: Cronjobs, tmp_path: Any) -> Cronjobs:
    with (tmp_path / "cronjobs.yaml").open("a") as file:
        file.write(FILE)
    return cronjobs


@pytest.mark.parametrize("seed", range(3))
def test_what_it_says_would_go_is_what_goes(database: Database, short: Cronjobs, seed: int) -> None:
    anything(database, seed)
    short("status")
    before = contents(database)
    planned = short("prune", "--dry-run", "--json")
    assert planned.code == 0
    assert contents(database) == before
    done = short("prune", "--json")
    assert done.json["done"] is True
    assert told(planned) == told(done)
    assert all(told(done).values())
    after = contents(database)
    gone = {name: len(before[name]) - len(after[name]) for name in before}
    assert gone.pop("cronjobs_alerts") == gone["cronjobs_findings"], "who was alerted goes with the finding"
    by_table: dict[str, int] = {}
    for row in done.json["rows"]:
        by_table[row["table"]] = by_table.get(row["table"], 0) + (row["rows"] if row["what"] != "stripped" else 0)
    assert {name: count for name, count in gone.items() if count > 0} == by_table
    assert sum(told(short("prune", "--dry-run", "--json")).values()) == 0
    [entry] = short("audit", "--action", "prune", "--json").json
    assert entry["detail"] == told(done)


def test_the_oldest_row_of_each_kind_and_the_limit(database: Database, short: Cronjobs) -> None:
    with database.write() as connection:
        for days in (9, 11, 15):
            row = {"job_type": "t", "status": "succeeded", "finished_at": NOW - days * DAY}
            connection.execute(insert(tables.jobs).values(row))
        key = {"idempotency_key": "k", "meta": json.loads(STRIPPED)}  # pruned before
        connection.execute(insert(tables.jobs).values(row | key))
    answer = short("prune", "--dry-run")
    assert answer.out.splitlines() == [
        "these rows are past their retention and would be deleted, as of 2026-07-01 14:03:07 Europe/Berlin:",
        "what            rows  oldest               kept",
        "succeeded jobs     2  2026-06-16 14:03:07  10d (retention.succeeded)",
    ]
    found = short("prune", "--dry-run", "--json").json["rows"][0]
    assert (found["table"], found["oldest"][:10], found["before"][:10]) == ("cronjobs_jobs", "2026-06-16", "2026-06-21")
    assert short("prune").out.splitlines()[1:] == [
        "what            rows  kept",
        "succeeded jobs     2  10d (retention.succeeded)",
    ]
    answer = short("prune")
    assert (answer.code, answer.out, answer.err) == (0, "", "nothing is older than its retention\n")


def test_it_works_while_schedules_are_broken_and_refuses_a_foreign_database(
    database: Database, short: Cronjobs, tmp_path: Any
) -> None:
    path = tmp_path / "cronjobs.yaml"
    text = path.read_text()
    path.write_text(text.replace('cron: "15 2 * * *"', 'cron: "99 2 * * *"'))
    assert short("prune", "--dry-run").code == short("prune").code == short("audit").code == 0
    assert short("status").code == 0
    path.write_text(text)
    assert short("db", "adopt").code == 0
    path.write_text(text.replace("project: shop", "project: other"))
    assert short("prune").code != 0
    assert short("prune", "--dry-run").code != 0


def test_ctrl_c_ends_it_after_a_batch_and_what_has_gone_is_on_record(
    database: Database, short: Cronjobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    anything(database, 7)
    asked = iter([False] * 3)

    class Interrupted:
        def __enter__(self) -> Any:
            return lambda: next(asked, True)

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(prune, "interruptible", Interrupted)
    answer = short("prune", "--json")
    assert (answer.code, answer.json["done"]) == (130, False)
    assert sum(told(answer).values()) > 0
    assert "the next ticks will delete the rest" in answer.err
    [entry] = short("audit", "--action", "prune", "--json").json
    assert entry["detail"] == {what: rows for what, rows in told(answer).items() if rows}


def test_a_clock_that_may_be_wrong_is_said_and_asked_about(
    database: Database, short: Cronjobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.write() as connection:
        tick = {"tick": "x", "host": "h", "pid": 1, "version": "0", "started_at": NOW - 3 * DAY}
        connection.execute(insert(tables.ticks).values(tick))
        row = {"job_type": "t", "status": "succeeded", "finished_at": NOW - 30 * DAY}
        connection.execute(insert(tables.jobs).values(row))
    monkeypatch.setattr(prune, "is_interactive", lambda: True)

    def refuse(*_: Any, **__: Any) -> None:
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", refuse)
    answer = short("prune")
    assert answer.code == 1
    assert ", and the last tick began 3d ago" in answer.err
    assert len(contents(database)["cronjobs_jobs"]) == 1
    monkeypatch.setattr(prune, "is_interactive", lambda: False)
    assert short("prune").code == 0
    assert contents(database)["cronjobs_jobs"] == []
