"""cronjobs, with handlers in threads. The measured process is ``cronjobs run-due``."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import lab
from verbs import SQLITE_FILE, URL, one_by_one, serve, timed

CONFIG = """\
database: {url}
imports: [bench_jobs]
run: {{workers: 4}}
"""
HANDLERS = """\
from cronjobs import job
from seen import noop

job("bench.noop")(noop)
"""


def setup() -> None:
    Path("cronjobs.yaml").write_text(CONFIG.format(url=URL))
    Path("bench_jobs.py").write_text(HANDLERS)
    lab.cronjobs(Path.cwd(), "db", "upgrade")


def connect() -> Any:
    if SQLITE_FILE:
        return sqlite3.connect(SQLITE_FILE)
    import psycopg

    return psycopg.connect(URL)


def empty(connection: Any) -> None:
    connection.execute("DELETE FROM cronjobs_job_runs")
    connection.execute("DELETE FROM cronjobs_jobs")
    connection.commit()


def fill(count: int) -> None:
    connection = connect()
    empty(connection)
    many(connection, count)
    connection.close()


def many(connection: Any, count: int) -> None:
    from cronjobs import enqueue_many  # import here, because on_floor.py's process must not import it

    enqueue_many(connection, "bench.noop", [{"n": n} for n in range(count)])
    connection.commit()


def left() -> int:
    query = "SELECT count(*) FROM cronjobs_jobs WHERE status <> 'succeeded'"
    return int(connect().execute(query).fetchone()[0])


def bulk(count: int) -> float:
    connection = connect()
    many(connection, 0)  # so that the imports are done before the clock starts
    return timed(lambda: many(connection, count))


def single(count: int) -> float:
    from cronjobs import enqueue

    connection = connect()

    def one(n: int) -> None:
        enqueue(connection, "bench.noop", {"n": n})
        connection.commit()

    return one_by_one(one)(count)


if __name__ == "__main__":
    serve(setup=setup, fill=fill, left=left, single=single, bulk=bulk)
