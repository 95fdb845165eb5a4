"""How fast enqueue_many is on both databases, beside the raw driver's executemany in the same run.

    python benchmarks/enqueue.py [--jobs 10000] [--rounds 5] [--json]

Machines are noisy, so figures count only as ratios within one run. The floor is what the driver and the table cost: the
same rows by ``executemany`` of a hand-written INSERT, in one transaction, nothing checked, no ids told. enqueue_many
checks each payload and tells each job's id.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], action="append")
    options = parser.parse_args()
    figures = []
    for name in options.database or ["sqlite", "postgresql"]:
        with tempfile.TemporaryDirectory(prefix="cronjobs-bench-") as folder:
            figures += measure(name, Path(folder), options.jobs, options.rounds)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for figure in figures:
        print(f"{figure['database']}, {figure['rows']}: {figure['jobs']:,} jobs, median of {options.rounds} rounds")
        print(f"  enqueue_many        {figure['enqueue_per_s']:8,.0f} jobs/s")
        print(f"  raw executemany     {figure['floor_per_s']:8,.0f} jobs/s")
        print(f"  ratio               {figure['ratio']:8.2f}")


def measure(name: str, folder: Path, jobs: int, rounds: int) -> list[dict[str, Any]]:
    """Figures of one database; floor and enqueue_many alternate, so that noise hits both."""
    from cronjobs.database.address import parse_url
    from cronjobs.database.connection import Database
    from cronjobs.schema import migrations

    server = None
    if name == "postgresql":
        sys.path.insert(0, str(ROOT / "tests"))
        from support import postgres

        postgres.SETTINGS.update(fsync="on", full_page_writes="on", max_wal_size="1GB")  # as in production
        server = postgres.PostgresServer()
        server.start()
        server.execute("CREATE DATABASE bench")
        url = server.url("bench")
    else:
        url = f"sqlite:///{folder}/bench.db"
    try:
        database = Database(parse_url(url))
        migrations.upgrade(database)
        database.close()
        connection = connect(url)
        try:
            return [figure(name, connection, jobs, rounds, keyed=keyed) for keyed in (False, True)]
        finally:
            connection.close()
    finally:
        if server is not None:
            server.remove()


def figure(name: str, connection: Any, jobs: int, rounds: int, *, keyed: bool) -> dict[str, Any]:
    floors, ours = [], []
    for _ in range(rounds):
        floors.append(jobs / timed(connection, lambda: floor(connection, jobs, keyed)))
        ours.append(jobs / timed(connection, lambda: many(connection, jobs, keyed)))
    return {
        "database": name,
        "rows": "with keys" if keyed else "without keys",
        "jobs": jobs,
        "enqueue_per_s": round(median(ours)),
        "floor_per_s": round(median(floors)),
        "ratio": round(median(o / f for o, f in zip(ours, floors, strict=True)), 3),
    }


def connect(url: str) -> Any:
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    import psycopg

    return psycopg.connect(url)


def timed(connection: Any, write: Callable[[], None]) -> float:
    """Seconds of one transaction on an empty table."""
    connection.execute("DELETE FROM cronjobs_jobs")
    connection.commit()
    started = time.perf_counter()
    write()
    connection.commit()
    return time.perf_counter() - started


def floor(connection: Any, jobs: int, keyed: bool) -> None:
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    rows = [("bench.noop", json.dumps({"invoice_id": n}), f"invoice:{n}" if keyed else None) for n in range(jobs)]
    insert = f"INSERT INTO cronjobs_jobs (job_type, payload, idempotency_key) VALUES ({mark}, {mark}, {mark})"
    connection.cursor().executemany(insert + (" ON CONFLICT DO NOTHING" if keyed else ""), rows)


def many(connection: Any, jobs: int, keyed: bool) -> None:
    from cronjobs import enqueue_many

    rows: list[Any] = [{"invoice_id": n} for n in range(jobs)]
    if keyed:
        rows = [(row, {"idempotency_key": ("invoice", row["invoice_id"])}) for row in rows]
    told = enqueue_many(connection, "bench.noop", rows)
    if len(told) != jobs or not all(one.new for one in told):
        raise SystemExit("not every job was enqueued")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
