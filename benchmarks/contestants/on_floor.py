"""The floor: what the database itself costs. Hand-written SQL works on cronjobs' tables through the bare driver.

``run`` claims a hundred jobs in one transaction and records their results in another. ``alone`` records each result in
its own transaction.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import drain
from on_cronjobs import fill, left, setup
from verbs import SQLITE_FILE, URL, one_by_one, serve, timed

CLAIM = 100
MARK = "?" if SQLITE_FILE else "%s"
INSERT = f"INSERT INTO cronjobs_jobs (job_type, payload) VALUES ('bench.noop', {MARK})"
INSERT_ALL = (
    "INSERT INTO cronjobs_jobs (job_type, payload) SELECT 'bench.noop', value FROM json_each(?)"
    if SQLITE_FILE
    else "INSERT INTO cronjobs_jobs (job_type, payload) SELECT 'bench.noop', value FROM jsonb_array_elements(%s::jsonb)"
)


def sized(statement: str) -> str:
    limit = f"LIMIT {drain.BATCH}"
    assert limit in statement
    return statement.replace(limit, f"LIMIT {CLAIM}")


def run(at_once: int = CLAIM) -> None:
    from seen import noop

    connection = drain.connect(URL)
    claim, end = on_sqlite(connection) if SQLITE_FILE else on_postgresql(connection)
    while rows := claim():
        for _, _, payload in rows:
            noop((payload if isinstance(payload, dict) else json.loads(payload))["n"])
        ids = [row[0] for row in rows]
        for start in range(0, len(ids), at_once):
            end(ids[start : start + at_once])
    connection.close()


def on_postgresql(connection: Any) -> tuple[Callable[[], list[Any]], Callable[[list[int]], object]]:
    claim = sized(drain.FLOOR_POSTGRESQL[0])
    return lambda: connection.execute(claim).fetchall(), lambda ids: connection.execute(
        drain.FLOOR_POSTGRESQL[1], (ids,)
    )


def on_sqlite(connection: Any) -> tuple[Callable[[], list[Any]], Callable[[list[int]], object]]:
    claiming = sized(drain.FLOOR_SQLITE[0])

    def claim() -> list[Any]:
        now = time.time_ns() // 1000
        connection.execute("BEGIN IMMEDIATE")
        rows: list[Any] = connection.execute(claiming, (now + 60_000_000, now)).fetchall()
        connection.execute("COMMIT")
        return rows

    def end(ids: list[int]) -> None:
        now, text = time.time_ns() // 1000, json.dumps(ids)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(drain.FLOOR_SQLITE[1], (now, text))
        connection.execute(drain.FLOOR_SQLITE[2], (now, now, text))
        connection.execute("COMMIT")

    return claim, end


def single(count: int) -> float:
    connection = drain.connect(URL)
    return one_by_one(lambda n: connection.execute(INSERT, (json.dumps({"n": n}),)))(count)


def bulk(count: int) -> float:
    connection = drain.connect(URL)
    return timed(lambda: connection.execute(INSERT_ALL, (json.dumps([{"n": n} for n in range(count)]),)))


if __name__ == "__main__":
    serve(setup=setup, fill=fill, left=left, run=run, alone=lambda: run(1), single=single, bulk=bulk)
