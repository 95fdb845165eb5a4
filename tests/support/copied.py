"""For tests of ``db copy``: fill a SQLite database with rows of every kind, and read all rows of any database."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import Any

from sqlalchemy import insert, select

from cronjobs.engine.database.column_types import Json
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import acks, alerts, findings, metadata
from cronjobs.engine.jobs.enqueue import enqueue
from cronjobs.engine.rules.lease import Finish, Lease
from cronjobs.engine.store import claims, counts, effects, leases, schedules, ticks
from cronjobs.engine.store.sql import database_now
from cronjobs.model import Status

PAYLOAD = {"n": 0.1, "text": 'straße ☂ " \\ \n', "deep": [[{"": None}]], "big": 123456789012345678901234567890}
# Payloads that only hand-written SQL can store: (the payload, the payload after the copy).
ODD = [
    ("[1]", [1]),
    ("not json", "not json"),
    ('{"a": "\\u0000"}', '{"a": "\\u0000"}'),
    ('{"a": "\\ud800"}', '{"a": "\\ud800"}'),
    ('{"a": 1e999999}', '{"a": 1e999999}'),
    ('{"a": NaN}', '{"a": NaN}'),
    ('{"a": "\\\\u0000"}', {"a": "\\u0000"}),
]
DIGITS = '{"a": 1.10, "b": 0.30000000000000000001, "c": 9007199254740993}'


def fill(database: Database) -> None:
    """Insert jobs of every status, history, keys, effects, a schedule with its ledger, ticks and audit entries."""
    with database.write() as connection:
        now = database_now(connection)
        for n in range(12):
            enqueue(connection, "t.work", PAYLOAD | {"n": n}, meta={"trace": f"t{n}"}, idempotency_key=("k", n))
        enqueue(connection, "t.later", delay="90d", concurrency_key="smtp:a", timeout="1m", priority=0)
        locked_by = "host:boot:1:2:3:tick"
        admission = claims.ClaimFilter(known=["t.work"], fitting=["t.work"], remaining_s=50)
        taken = claims.claim(
            connection, limit=5, locked_by=locked_by, lease=timedelta(minutes=1), admission=admission
        ).jobs
        ends: list[tuple[Status, str]] = [
            (Status.SUCCEEDED, "succeeded"),
            (Status.FAILED, "failed"),
            (Status.DEAD, "failed"),
            (Status.CANCELLED, "cancelled"),
        ]
        for job, (status, outcome) in zip(taken, ends, strict=False):
            lease = Lease(job.id, job.attempt, locked_by)
            effects.insert_begun(connection, f"mail:{job.id}", lease)
            if status is Status.SUCCEEDED:
                effects.record(connection, f"mail:{job.id}", lease, '{"id": "<1@shop>"}')
            facts: dict[str, Any] = {"failures": 1, "losses": 0, "interruptions": 0, "outcome": outcome}
            told: dict[str, Any] = {"error": "no luck", "traceback": "line\nline", "output": "said ☂", "worker": "1"}
            result = '{"sent": 1.50}' if status is Status.SUCCEEDED else None
            leases.finish(connection, [Finish(lease=lease, status=status, result=result, **facts, **told)])
        # The fifth job was lost with its runner: its lease expired long ago.
        connection.exec_driver_sql("UPDATE cronjobs_jobs SET locked_until = 1600000000123456 WHERE status = 'running'")
        counts.fold(connection)
        nightly = {"cron": "0 2 * * *", "job": "t.work", "timezone": "UTC"}
        next_at = now + timedelta(hours=3, microseconds=7)
        schedules.put_definitions(connection, [schedules.Definition("nightly", nightly, "f1", now, next_at)])
        [schedule] = schedules.all_schedules(connection)
        day = timedelta(days=1)
        rows = [
            schedules.LedgerRow(schedule.id, now - 3 * day, now - 2 * day, 2, "missed", "no tick"),
            schedules.LedgerRow(schedule.id, now - day, now - day, 1, "enqueued", None, taken[0].id),
        ]
        schedules.record_occurrences(connection, rows, now)
        schedules.pause(connection, scope="queue", name="mail", until=now + day, by="ada", why="deploy", now=now)
        ticks.record(connection, action="sync", subject="f1", actor="tick", detail={"schedules": ["nightly"]})
        connection.exec_driver_sql("INSERT INTO cronjobs_queues (name, max_waiting, dropped) VALUES ('mail', 5, 2)")
        connection.exec_driver_sql("INSERT INTO cronjobs_job_type_lists (hash, names) VALUES ('h1', '[\"t.work\"]')")
        connection.exec_driver_sql("INSERT INTO cronjobs_crashing_types (job_type, clean_ends) VALUES ('t.work', 3)")
        token = "(5, 1, 'abc', 'worker-1', 1700000000000000, 1700000060000000)"
        columns = "job_id, attempt, token, holder, taken_at, permitted_until"
        connection.exec_driver_sql(f"INSERT INTO cronjobs_tokens ({columns}) VALUES {token}")
        hour = "(1, 1700000000000000, 's..k')"
        connection.exec_driver_sql(f"INSERT INTO cronjobs_quarters (schedule_id, hour, quarters) VALUES {hour}")
        in_force = {"finding": "dead", "severity": "notice", "rows": ["1"]}
        connection.execute(insert(acks).values(in_force | {"until": now, "by": "ann"}))
        kept = {"kind": "dead", "text": "1 dead job", "began_at": now}
        connection.execute(insert(findings).values(in_force | kept))
        connection.execute(insert(alerts).values(finding_id=1, channel="ops", rows=["1"], due_at=now))
        facts = {"tick": "t1", "host": "alpha", "pid": 7, "version": "0.1", "started_at": now, "finished_at": now}
        ticks.end_tick(connection, facts | {"did": {"succeeded": 1}, "ended": "nothing is due", "fingerprint": "f1"})
        connection.exec_driver_sql("DELETE FROM cronjobs_jobs WHERE job_type = 'gone'")


def add_odd_rows(file: str) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        for payload, _ in ODD:
            connection.execute("INSERT INTO cronjobs_jobs (job_type, payload) VALUES ('t.odd', ?)", (payload,))
        connection.execute("INSERT INTO cronjobs_jobs (job_type, payload) VALUES ('t.digits', ?)", (DIGITS,))
        connection.execute(
            "INSERT INTO cronjobs_jobs (job_type, last_error, max_attempts, timeout_s, error_type) "
            "VALUES ('t.nul', 'a' || char(0) || 'b', 99999999999, 9e999, x'ff41')"
        )


def everything(database: Database) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of all tables except meta and the audit trail.

    JSON is returned as text with sorted keys. The ids of ``cronjobs_new_counts`` have no meaning, and a copy has other
    ids.
    """
    found = {}
    with database.read() as connection:
        for table in metadata.sorted_tables:
            if table.name in ("cronjobs_meta", "cronjobs_audit"):
                continue
            rows = connection.execute(select(table).order_by(*table.primary_key))
            found[table.name] = [_comparable(table, dict(row._mapping)) for row in rows]
    for row in found["cronjobs_new_counts"]:
        del row["id"]
    return found


def _comparable(table: Any, row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: json.dumps(value, sort_keys=True) if isinstance(table.c[name].type, Json) and value is not None else value
        for name, value in row.items()
    }
