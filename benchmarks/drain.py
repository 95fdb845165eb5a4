"""Drain rate on both databases, beside a raw-driver floor measured in the same run.

    python benchmarks/drain.py [--jobs 10000] [--rounds 3] [--json]

Machines are noisy, so figures count only as ratios within one run. The floor is what the database itself costs: rows
claimed and finished in batches of 250 by hand-written SQL through the bare driver, nothing else. A drain is a real
``run-due`` process over no-op jobs; its rate is N / (time(N + 1) − time(1)), since a tick with one job loads all that a
drain loads. Peak memory is the process's own. For idle ticks see ticks.py.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from lab import DATABASES, cronjobs, database, timed

BATCH = 250

CONFIG = """\
database: {url}
imports: [bench_jobs]
run: {{workers: 4}}
"""
HANDLERS = """\
from cronjobs import job

@job("bench.noop")
def noop():
    pass
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--database", choices=DATABASES, action="append")
    options = parser.parse_args()
    figures = []
    for name in options.database or DATABASES:
        with tempfile.TemporaryDirectory(prefix="cronjobs-bench-") as folder:
            figures.append(measure(name, Path(folder), options.jobs, options.rounds))
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for figure in figures:
        print(f"{figure['database']}: {figure['jobs']:,} no-op jobs, median of {options.rounds} rounds")
        print(f"  drain              {figure['drain_per_s']:7,.0f} jobs/s")
        print(f"  start              {figure['start_ms']:7,.0f} ms   (a tick with one job)")
        print(f"  raw batched floor  {figure['floor_per_s']:7,.0f} jobs/s")
        print(f"  ratio              {figure['ratio']:7.2f}")
        print(f"  peak memory        {figure['peak_mib']:7.0f} MiB")


def measure(name: str, folder: Path, jobs: int, rounds: int) -> dict[str, Any]:
    """Figures of one database; floor and drain alternate, so that noise hits both."""
    with database(name, folder) as url:
        (folder / "cronjobs.yaml").write_text(CONFIG.format(url=url))
        (folder / "bench_jobs.py").write_text(HANDLERS)
        cronjobs(folder, "db", "upgrade")
        floors, drains, starts, peak = [], [], [], 0.0
        for _ in range(rounds):
            floors.append(jobs / floor(url, jobs))
            fill(url, 1)
            starts.append(timed(lambda: cronjobs(folder, "run-due")))
            fill(url, jobs + 1)
            took, ticks = 0.0, 0
            while ticks == 0 or waiting(url):
                started = time.perf_counter()
                peak = max(peak, cronjobs(folder, "run-due"))
                took += time.perf_counter() - started
                ticks += 1
                if ticks > 50:
                    raise SystemExit(f"{waiting(url)} jobs are still waiting after {ticks} ticks")
            drains.append(jobs / (took - ticks * starts[-1]))
        return {
            "database": name,
            "jobs": jobs,
            "start_ms": round(1000 * median(starts), 1),
            "drain_per_s": round(median(drains)),
            "floor_per_s": round(median(floors)),
            "ratio": round(median(d / f for d, f in zip(drains, floors, strict=True)), 3),
            "peak_mib": round(peak, 1),
        }


# --- by hand ----------------------------------------------------------------------------------------------------------


def connect(url: str) -> Any:
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
        connection.execute("PRAGMA synchronous = FULL")
        return connection
    import psycopg

    return psycopg.connect(url, autocommit=True)


def fill(url: str, jobs: int) -> None:
    connection = connect(url)
    connection.execute("DELETE FROM cronjobs_jobs")
    numbers = (
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {jobs}) SELECT 'bench.noop' FROM n"
        if url.startswith("sqlite")
        else f"SELECT 'bench.noop' FROM generate_series(1, {jobs})"
    )
    connection.execute("INSERT INTO cronjobs_jobs (job_type) " + numbers)
    if not url.startswith("sqlite"):
        connection.execute("VACUUM ANALYZE cronjobs_jobs")
    connection.close()


def waiting(url: str) -> int:
    connection = connect(url)
    [count] = connection.execute("SELECT count(*) FROM cronjobs_jobs WHERE status <> 'succeeded'").fetchone()
    connection.close()
    return int(count)


DUE = "status IN ('queued', 'failed') AND queue = 'default' AND priority = 5 AND run_at <="
FLOOR_POSTGRESQL = (
    f"""WITH picked AS MATERIALIZED (
      SELECT id FROM cronjobs_jobs WHERE {DUE} statement_timestamp() ORDER BY run_at, id LIMIT {BATCH}
      FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE cronjobs_jobs j SET status = 'running', attempts = attempts + 1, locked_by = 'floor',
    locked_until = statement_timestamp() + interval '1 minute' FROM picked WHERE j.id = picked.id
    RETURNING j.id, j.job_type, j.payload""",
    """WITH done AS (UPDATE cronjobs_jobs SET status = 'succeeded', locked_by = NULL, locked_until = NULL,
    finished_at = statement_timestamp() WHERE id = ANY(%s) AND locked_by = 'floor' RETURNING id)
    INSERT INTO cronjobs_job_runs (job_id, attempt, outcome, started_at, finished_at, runner)
    SELECT id, 1, 'succeeded', statement_timestamp(), statement_timestamp(), 'floor' FROM done""",
)
FLOOR_SQLITE = (
    f"""UPDATE cronjobs_jobs SET status = 'running', attempts = attempts + 1, locked_by = 'floor', locked_until = ?
    WHERE id IN (SELECT id FROM cronjobs_jobs WHERE {DUE} ? ORDER BY run_at, id LIMIT {BATCH})
    RETURNING id, job_type, payload""",
    """UPDATE cronjobs_jobs SET status = 'succeeded', locked_by = NULL, locked_until = NULL, finished_at = ?
    WHERE id IN (SELECT value FROM json_each(?)) AND locked_by = 'floor'""",
    """INSERT INTO cronjobs_job_runs (job_id, attempt, outcome, started_at, finished_at, runner)
    SELECT value, 1, 'succeeded', ?, ?, 'floor' FROM json_each(?)""",
)


def floor(url: str, jobs: int) -> float:
    """Seconds to claim and finish *jobs* in batches by bare SQL."""
    fill(url, jobs)
    connection = connect(url)
    started = time.perf_counter()
    done = 0
    while done < jobs:
        if url.startswith("sqlite"):
            now = time.time_ns() // 1000
            connection.execute("BEGIN IMMEDIATE")
            rows = connection.execute(FLOOR_SQLITE[0], (now + 60_000_000, now)).fetchall()
            connection.execute("COMMIT")
            ids = json.dumps([row[0] for row in rows])
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(FLOOR_SQLITE[1], (now, ids))
            connection.execute(FLOOR_SQLITE[2], (now, now, ids))
            connection.execute("COMMIT")
        else:
            rows = connection.execute(FLOOR_POSTGRESQL[0]).fetchall()
            connection.execute(FLOOR_POSTGRESQL[1], ([row[0] for row in rows],))
        done += len(rows)
        if not rows:
            raise SystemExit("the floor ran dry")
    took = time.perf_counter() - started
    connection.close()
    return took


if __name__ == "__main__":
    main()
