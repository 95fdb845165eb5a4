"""SQLite stores any type in any column. Whatever the value, commands that show things, pages and ticks still work."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
from sqlalchemy import text
from support.browsing import Browser, by_link, pages
from support.cases import judge
from support.lookingrows import NOW, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows

from cronjobs.engine.database import tables
from cronjobs.errors import EX_SOFTWARE, CronjobsError
from cronjobs.testing import FakeClock, tick

VALUES = [
    *("x'ff4f414f'", "x''", "'x'", "''", "'7'", "CAST(x'ff4f' AS TEXT)", "9223372036854775807", "-9223372036854775808"),
    *("-1", "0", "1e300", "9e999", "0.5", "'[]'", "'{\"a\":[1e999,null]}'", "NULL"),
]
TICK = "a tick"
COMMANDS = [
    *("status", "status --json", "check --live", "jobs list", "jobs list --json", "jobs show 1", "jobs show 2 --json"),
    *("jobs tail 1", "jobs tail 2", "explain 1", "explain 2", "explain 3 --json", "explain mail.send", "audit"),
    *("explain nightly-report", "jobs list --group-by error", "history --since 24h"),
    *("schedules list", "schedules show nightly-report", "metrics", "report --out r", "effects list", "books", "next"),
    *("ack", "sync --plan", "doctor", TICK, "prune", "jobs retry 1 2", "jobs cancel 4", "effects settle k done"),
]
ADDRESSES = [
    "/",
    "/jobs",
    "/jobs/1",
    "/jobs/2",
    "/jobs/3",
    "/schedule?name=nightly-report",
    "/queues",
    "/types",
    "/hosts",
]
COLUMNS = [(table, column) for table in tables.metadata.sorted_tables for column in table.c]


@pytest.fixture
def database_url(sqlite_migrated: str) -> str:
    return f"sqlite:///{sqlite_migrated}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def world(rows: Rows) -> Rows:
    """Rows in every table."""
    schedule = rows.schedule("nightly-report")
    for status in ("dead", "failed", "running", "queued", "cancelled", "succeeded"):
        rows.attempt(rows.job(status=status, failures=1), "failed", error="ValueError: no")
    rows.job(job_type="gone.away")
    rows.job(
        job_type="exec:backup",
        status="succeeded",
        meta={"cronjobs.exec": "1"},
        finished_at=ago(days=2),
        run_at=ago(days=2),
    )
    rows.occurrence(schedule, ago(hours=1), job_id=1)
    for host in ("web1", "web2"):
        rows.tick(host, job_types="h", schedules_on=1, not_started=[{"why": "paused"}])
    rows.pause("queue", "mail", by="ada", why="x")
    now = {"recorded_at": ago(hours=1)}
    rows.put(tables.job_type_lists, hash="h", names=["mail.send"], **now)
    rows.put(tables.crashing_types, job_type="mail.send", found_at=ago(minutes=5))
    rows.put(tables.effects, key="k", job_id=1, attempt=1, state="begun", begun_at=ago(minutes=9))
    rows.put(tables.queues, name="default", max_waiting=5)
    rows.put(tables.audit, action="cancel", subject="job 1", actor="ada", at=ago(minutes=9), detail={"ids": [1]})
    rows.put(tables.counts, at_hour=0, kind="jobs", name="mail.send", outcome="succeeded", bucket=0, count=1)
    rows.put(tables.new_counts, at_hour=9, kind="jobs", name="mail.send", outcome="succeeded", bucket=0, count=1)
    rows.put(tables.acks, finding="dead", severity="critical", rows=[1], until=NOW, acked_at=ago(hours=1))
    found = {"kind": "dead", "severity": "critical", "text": "x", "rows": [1], "began_at": ago(minutes=9)}
    number = rows.put(tables.findings, finding="dead", **found)
    rows.put(tables.alerts, finding_id=number, channel="ops", due_at=ago(minutes=1))
    rows.put(tables.tokens, job_id=3, attempt=1, token="t")
    rows.put(tables.quarters, schedule_id=schedule, hour=ago(hours=2), quarters="....")
    return rows


def write(file: str, table: str, column: str, value: str) -> bool:
    """Whether the tables take *value* in every row, or in one of them; a CHECK that refuses it is a guard, too."""
    with closing(sqlite3.connect(file)) as plain:
        for rows_of in ("", f" WHERE {column} IS NOT NULL", f" WHERE rowid = (SELECT max(rowid) FROM {table})"):
            with suppress(sqlite3.Error):
                plain.execute(f"UPDATE {table} SET {column} = {value}{rows_of}")
                plain.commit()
                return True
    return False


def faults(cronjobs: Cronjobs, url: str, commands: list[str]) -> list[tuple[str, str]]:
    found = []
    for words in commands:
        if words == TICK:
            try:
                tick(url, clock=FakeClock(NOW), config="cronjobs.yaml")
            except CronjobsError:
                pass  # it says what is wrong
            except Exception as error:
                found.append((words, repr(error)))
            continue
        answer = cronjobs(*words.split())
        if answer.code == EX_SOFTWARE or "Traceback" in answer.err or "\x1b" in answer.out + answer.err:
            found.append((words, answer.err.strip()[-700:]))
    return found


def test_a_job_whose_meta_is_no_json_is_explained_pruned_and_retried(
    cronjobs: Cronjobs, world: Rows, sqlite_migrated: str
) -> None:
    assert write(sqlite_migrated, "cronjobs_jobs", "meta", "'{'")
    for words in ("explain 1", "jobs show 1", "effects settle k done", "prune", "jobs retry 1"):
        answer = cronjobs(*words.split())
        assert answer.code == 0, (words, answer)
    assert "is running" in cronjobs("jobs", "dismiss", "3").err
    with world.database.read() as connection:
        assert connection.execute(text("SELECT status FROM cronjobs_jobs WHERE id = 1")).scalar_one() == "queued"


def test_any_value_in_any_column_stops_no_command_and_no_tick(
    cronjobs: Cronjobs, world: Rows, sqlite_migrated: str, database_url: str
) -> None:
    world.database.close()  # its log goes into the file
    clean = Path(sqlite_migrated).read_bytes()
    tried: set[str] = set()

    def case(random: random.Random) -> None:
        table, column = random.choice(COLUMNS)
        value = random.choice(VALUES)
        for leftover in ("-wal", "-shm"):
            Path(sqlite_migrated + leftover).unlink(missing_ok=True)
        Path(sqlite_migrated).write_bytes(clean)
        if write(sqlite_migrated, table.name, column.name, value):
            tried.add(table.name)
            commands = [*random.sample(COMMANDS, 4), TICK]
            found = faults(cronjobs, database_url, commands)
            assert found == [], f"{table.name}.{column.name} = {value}"

    judge(case, 8)
    assert tried


def test_bytes_where_texts_belong_are_shown_on_every_page(
    cronjobs: Cronjobs, world: Rows, sqlite_migrated: str, database_url: str, tmp_path: Path
) -> None:
    texts = {
        "jobs": "last_error error_type result enqueued_by policy progress live_output",
        "job_runs": "runner worker error_type error traceback output",
    }
    for table, names in texts.items():
        for name in names.split():
            assert write(sqlite_migrated, f"cronjobs_{table}", name, "x'ff4f414f'")
    assert "OAO" in cronjobs("explain", "1").out
    access = by_link()
    browser = Browser(pages(world.database, database_url, tmp_path, access)).log_in(access)
    assert {address: browser.get(address).status for address in ADDRESSES} == dict.fromkeys(ADDRESSES, 200)
    assert "OAO" in browser.get("/jobs/1").words


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", ["jobs.locked_by", "queues.max_waiting", "crashing_types.job_type", "ticks.pid", "counts.kind"]
)
@pytest.mark.parametrize("value", ["x'ff4f'", "'x'", str(2**63 - 1)])
def test_where_a_command_cannot_go_on_it_names_the_value_and_its_place(
    cronjobs: Cronjobs, world: Rows, sqlite_migrated: str, database_url: str, place: str, value: str
) -> None:
    table, _, column = place.partition(".")
    assert write(sqlite_migrated, f"cronjobs_{table}", column, value)
    assert faults(cronjobs, database_url, COMMANDS) == []
