"""``cronjobs check --against URL``: which payloads in a database this code would refuse."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text, update
from support.databases import opened
from support.project import Project

from cronjobs.desk.insight.payload_review import PayloadReview, review
from cronjobs.desk.store import payloads
from cronjobs.desk.store.payloads import Chunk, chunk_after
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import SCHEMA_REVISION, jobs, meta
from cronjobs.engine.jobs.job_types import JobType, JobTypes
from cronjobs.engine.jobs.registry import Registration
from cronjobs.engine.store.sql import run
from cronjobs.model import RetryPolicy, duration

HANDLERS = """
from dataclasses import dataclass
from datetime import date
from cronjobs import job

@dataclass
class Line:
    sku: str
    count: int = 1

    def __post_init__(self):
        print("made", self.sku)

@job("t.bill")
def bill(day: date, lines: list[Line]):
    raise SystemError("check runs no handlers")

@job("t.apart", isolation="process")
def apart(line: Line, day: date):
    return [type(line).__name__, day.year]
"""
YAML = "job_types: {t.command: {command: [echo]}}"
GOOD = {"day": "2026-11-23", "lines": [{"sku": "x"}]}
BAD = {"day": "2026-11-23", "lines": [{"sku": "x"}, {"sku": 7}]}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """The code to be deployed; its file names another database, which nobody made."""
    project = Project(tmp_path, "sqlite:///not-this-one.db")
    project.write(YAML, HANDLERS)
    return project


def put(url: str, *rows: dict[str, Any]) -> list[int]:
    with opened(url) as database, database.write() as connection:
        made = insert(jobs).returning(jobs.c.id)
        return [connection.execute(made, {"job_type": "t.bill", "payload": GOOD} | row).scalar_one() for row in rows]


def ended(database: Database, **row: Any) -> dict[str, Any]:
    return row | {"finished_at": database.clock.now()}


def running(database: Database, **row: Any) -> dict[str, Any]:
    now = database.clock.now()
    held = {"locked_by": "web1:b:1:1:1:t", "locked_until": now, "attempts": 1, "started_at": now}
    return row | {"status": "running"} | held


def test_each_payload_that_would_not_run_is_named_and_counted(
    project: Project, database: Database, database_url: str
) -> None:
    url = database_url
    ids = put(
        url,
        {},
        {"payload": BAD},
        {"payload": {"day": "2026-11-23", "lines": [{"sku": 8}]}, "status": "failed", "failures": 1},
        ended(database, payload=BAD, status="dead"),
        {"payload": {"day": "2026-11-23"}},
        {"job_type": "t.gone", "payload": {}},
        running(database, job_type="t.gone", payload={}),
        {"job_type": "t.command", "payload": {"any": "thing"}},
        # Jobs that will not run again, so their payloads are not checked.
        ended(database, payload=BAD, status="succeeded"),
        ended(database, payload=BAD, status="cancelled"),
        ended(database, payload=BAD, status="dead", dismissed_at=database.clock.now()),
        ended(database, payload={}, status="dead", meta={"cronjobs.stripped": "1"}),
        ended(database, job_type="exec:backup", payload={}, status="dead"),
    )
    before = project.call("check")
    assert (before.code, before.err) == (0, "")
    answer = project.call("check", "--against", url)
    assert answer.code == 1
    assert set(answer.err.splitlines()) == {"made x", "3 findings"}, "what a dataclass prints is no answer"
    both = "let the handler take both forms until these jobs are done"
    keep = "keep a handler under this name until these jobs are done"
    signature = "t.bill(day: datetime.date, lines: list[handlers.Line])"
    assert answer.out.splitlines() == [
        "t.bill: payload.lines[1].sku is not a str",
        f"    3 jobs (1 queued, 1 retrying, 1 dead): {ids[1]}, {ids[2]}, {ids[3]}; {both}",
        "t.gone: no handler or command is registered under this name",
        f"    2 jobs (1 queued, 1 running): {ids[5]}, {ids[6]}; {keep}",
        f"t.bill: payload does not fit {signature}: missing a required argument: 'lines'",
        f"    1 job (1 queued): {ids[4]}; {both}",
        "checked 8 payloads of jobs that may still run: 6 do not fit this code",
    ]
    told = project.call("check", "--against", url, "--json").json
    assert (told["ok"], told["against"]["checked"], told["against"]["misfits"]) == (False, 8, 6)
    assert told["against"]["groups"][0] == {
        "job_type": "t.bill",
        "fault": "payload.lines[1].sku is not a str",
        "jobs": 3,
        "by_status": {"queued": 1, "running": 0, "failed": 1, "dead": 1},
        "ids": ids[1:4],
        "remedy": both,
    }


@pytest.mark.either
def test_all_fit(project: Project, database: Database, database_url: str) -> None:
    project.write(YAML + "\nrun: {budget: 2m}", HANDLERS)
    assert "note: " in project.call("check").out
    put(database_url, {}, {"job_type": "t.command"})
    answer = project.call("check", "--against", database_url)
    assert answer.code == 0
    # Other tests of this process may have registered types, too, so the number of types is not compared.
    assert "note: " not in answer.out
    assert answer.out.endswith(" job types, 0 schedules; all 2 payloads in that database fit\n")
    assert project.call("check", "--against", database_url, "--json").json["against"] == {
        "checked": 2,
        "misfits": 0,
        "groups": [],
    }


@pytest.mark.either
def test_it_looks_before_the_next_migration(
    project: Project, database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cronjobs.engine.store.meta.SCHEMA_REVISION", f"{int(SCHEMA_REVISION) + 1:04d}")
    put(database_url, {}, {"job_type": "t.command"})
    answer = project.call("check", "--against", database_url)
    assert (answer.code, answer.out.endswith("all 2 payloads in that database fit\n")) == (0, True)


@pytest.mark.either
def test_a_database_that_it_cannot_look_at(
    project: Project, database: Database, database_url: str, tmp_path: Path
) -> None:
    gone = project.call("check", "--against", "sqlite:///gone.db")
    assert (gone.code, "there is no such file" in gone.err, (tmp_path / "gone.db").exists()) == (4, True, False)
    secret = project.call("check", "--against", "postgresql://ada:hunter22@127.0.0.1:1/none")
    assert (secret.code, "hunter22" in secret.err + secret.out) == (4, False)
    (tmp_path / "empty.db").touch()
    empty = project.call("check", "--against", "sqlite:///empty.db")
    assert (empty.code, "has no cronjobs tables" in empty.err) == (4, True)
    assert project.call("check", "--against", "mysql://x/y").code == 2
    assert project.call("check", "--against", database_url, "--no-import").code == 2
    with database.write() as connection:
        connection.execute(update(meta).values(project="shop", environment="another"))
    assert project.call("check", "--against", database_url).code == 0
    for owner, says in (("crm", 'belongs to project "crm"'), ("shop", "has moved this database to postgresql://new")):
        with database.write() as connection:
            moved = "moved to postgresql://new" if owner == "shop" else ""
            connection.execute(update(meta).values(project=owner, environment=moved))
        answer = project.call("check", "--against", database_url)
        assert (answer.code, says in answer.err) == (3, True)


def test_tables_that_are_too_new_for_this_code(project: Project, sqlite_migrated: str) -> None:
    url = f"sqlite:///{sqlite_migrated}"
    with opened(url) as database, database.write() as connection:
        connection.execute(update(meta).values(schema_revision="9999", oldest_code="9999"))
    newer = project.call("check", "--against", url)
    assert (newer.code, "install a newer cronjobs" in newer.err) == (4, True)


# --- whatever is in the rows ------------------------------------------------------------------------------------------


def bill(day: str, lines: list[int] | None = None) -> None: ...


KNOWN = JobTypes({"t.bill": JobType("t.bill", duration("1s"), RetryPolicy(), Registration("t.bill", bill))})


def reviewed(database: Database) -> PayloadReview:
    [*_, last] = review(database, "shop", KNOWN)
    return last


def test_what_plain_sql_wrote_is_judged_and_stops_nothing(database: Database) -> None:
    wide = json.dumps({"day": "x" * 1_100_000})
    texts = ["[1]", '"text"', wide, '{"day": 1}', '{"day": "x"}']
    with database.write() as connection:
        for each in texts:
            cast = ":payload" if database.is_sqlite else "CAST(:payload AS jsonb)"
            run(connection, f"INSERT INTO {{jobs}} (job_type, payload) VALUES ('t.bill', {cast})", payload=each)
        if database.is_sqlite:
            for raw in ("CAST(x'ff' AS text)", "'['"):
                run(connection, f"INSERT INTO {{jobs}} (job_type, payload) VALUES ('t.bill', {raw})")
            run(connection, "INSERT INTO {jobs} (job_type, payload) VALUES (CAST(x'742eff' AS text), '[]')")
    found = reviewed(database)
    assert found.checked - found.misfits == 1
    examples = " / ".join(group.example for group in found.groups)
    assert "payload must be a JSON object, not an array" in examples
    assert "payload must be a JSON object, not a string" in examples
    assert "payload is larger than 1,048,576 bytes" in examples
    assert "payload.day is not a str" in examples
    if database.is_sqlite:
        assert "payload is not UTF-8" in examples
        assert "payload is not JSON" in examples


def test_ids_far_apart_and_chunks_of_any_size_miss_no_row(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "MOST_ROWS", 7)
    monkeypatch.setattr(payloads, "WINDOW", 50)
    monkeypatch.setattr(payloads, "MOST_BYTES", 4000)
    ids = [*range(5, 60), 1000, 1049, 1050, 1051, 900_000_000_000]
    overriding = "" if database.is_sqlite else "OVERRIDING SYSTEM VALUE"
    with database.write() as connection:
        for job_id in ids:
            payload = {"day": "x" * (3000 if 20 <= job_id < 30 else 1), "lines": ["x"] if job_id % 5 == 0 else []}
            text_of = ":payload" if database.is_sqlite else "CAST(:payload AS jsonb)"
            run(
                connection,
                f"INSERT INTO {{jobs}} (id, job_type, payload) {overriding} VALUES (:id, 't.bill', {text_of})",
                id=job_id,
                payload=json.dumps(payload),
            )
    sizes = []

    def noting(*given: Any) -> Chunk | None:
        chunk = chunk_after(*given)
        sizes.append([] if chunk is None else [len(json.dumps(row.payload)) for row in chunk.rows])
        return chunk

    monkeypatch.setattr("cronjobs.desk.insight.payload_review.chunk_after", noting)
    found = reviewed(database)
    assert max(map(len, sizes)) == 7
    assert max(map(sum, sizes)) < 4000 + 3100, "one that begins below the limit may go beyond it"
    assert found.checked == len(ids)
    assert found.misfits == sum(job_id % 5 == 0 for job_id in ids)


@pytest.mark.either
def test_it_cannot_write(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def writing(connection: Any, *_: Any) -> Any:
        run(connection, "INSERT INTO {jobs} (job_type) VALUES ('t.new')")

    monkeypatch.setattr("cronjobs.desk.insight.payload_review.chunk_after", writing)
    with pytest.raises(Exception, match=r"read-only|readonly|cannot be written to"):
        reviewed(database)


@pytest.mark.slow
def test_memory_stays_flat_over_many_rows_and_kinds_of_misfits(sqlite_migrated: str) -> None:
    with opened(f"sqlite:///{sqlite_migrated}") as database, database.write() as connection:
        connection.execute(
            text(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) "
                "INSERT INTO cronjobs_jobs (job_type, payload) SELECT 't.bill', "
                "json_object('day', 'x', 'k' || (i % 5000), printf('%400d', i)) FROM n"
            )
        )
    with opened(f"sqlite:///{sqlite_migrated}") as database:
        tracemalloc.start()
        try:
            found = reviewed(database)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (found.checked, found.misfits) == (20_000, 20_000)
    assert len(found.groups) <= 501
    assert peak < 12 * 1024 * 1024


@pytest.mark.slow
def test_a_handler_in_a_process_of_its_own_gets_what_it_annotates(tmp_path: Path, database_url: str) -> None:
    project = Project(tmp_path, database_url)
    project.write("", HANDLERS)
    for sku in ('"x"', "3"):
        payload = f'{{"day": "2026-11-23", "line": {{"sku": {sku}}}}}'
        project.call("enqueue", "t.apart", "--force", "--payload", payload)
    assert project.run("run-due").code == 0
    done, failed = project.jobs()
    assert done["result"] == ["Line", 2026]
    assert [row["output"] for row in project.rows("job_runs")] == ["made x\n", None]
    assert (failed["error_type"], failed["last_error"]) == (
        "SignatureMismatch",
        "payload does not fit t.apart: payload.line.sku is not a str",
    )
