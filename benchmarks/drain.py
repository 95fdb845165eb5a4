"""Compare drains with the same work by hand-written SQL: in groups, with ``durable: each``, and by several processes.

    python benchmarks/drain.py [--jobs 10000] [--rounds 5] [--database sqlite] [--big 100000] [--saturated]
                               [--slow-flush] [--json]

Machines are noisy, so figures count only as ratios within one run. In each round every way of working has its turn. The
floors show what the database itself costs. They use hand-written SQL through the bare driver: claim 100 jobs in one
commit, then record 100 results in one commit, or each result in its own commit. A drain is real ``run-due`` processes
that run no-op jobs. Its rate is N / (time(N + 1) − time(1)), because a tick with one job loads everything that a drain
loads. After a drain no job may be left, and each job must have run once. ``--big`` compares the peak memory of a drain
of that many jobs with the peak memory of a drain of ``--jobs``. ``--saturated`` measures which share of a whole minute
is used by jobs that take 0.2 s and declare no timeout.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from lab import DATABASES, SLOW_FLUSH, cronjobs, database

BATCH = 100
WORKERS = 4

CONFIG = """\
database: {url}
imports: [bench_jobs]
run: {{workers: 4}}
"""
HANDLERS = """\
import time
from cronjobs import job

@job("bench.noop")
def noop():
    pass

@job("bench.durable", durable="each")
def durable():
    pass

@job("bench.nap")
def nap():
    time.sleep(0.2)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--big", type=int)
    parser.add_argument("--saturated", action="store_true")
    parser.add_argument("--slow-flush", action="store_true", help="each WAL flush takes 1 ms longer; PostgreSQL only")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--database", choices=DATABASES, action="append")
    options = parser.parse_args()
    figures = []
    settings = SLOW_FLUSH if options.slow_flush else {}
    for name in ["postgresql"] if options.slow_flush else options.database or DATABASES:
        with (
            tempfile.TemporaryDirectory(prefix="cronjobs-bench-") as folder,
            database(name, Path(folder), **settings) as url,
        ):
            (Path(folder) / "cronjobs.yaml").write_text(CONFIG.format(url=url))
            (Path(folder) / "bench_jobs.py").write_text(HANDLERS)
            cronjobs(Path(folder), "db", "upgrade")
            figures += measured(name, Drains(Path(folder), url), options)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print("| | database | jobs/s | ratio | smallest–largest |\n|---|---|---:|---:|---|")
    for row in figures:
        low, high = row["spread"]
        print(f"| {row['what']} | {row['database']} | {row['figure']:,} | {row['ratio']:.2f} | {low:.2f}–{high:.2f} |")


def measured(name: str, drains: Drains, options: argparse.Namespace) -> list[dict[str, Any]]:
    jobs, few = options.jobs, max(200, options.jobs // 10)
    samples: dict[str, list[float]] = {}
    turns: dict[str, Callable[[], float]] = {
        "by hand, 100 at a time": lambda: jobs / drains.by_hand(jobs),
        "drain": lambda: drains.rate(jobs),
        "by hand, each result alone": lambda: few / drains.by_hand(few, alone=True),
        "durable: each": lambda: drains.rate(few, "bench.durable"),
        "2 processes": lambda: drains.rate(jobs, processes=2),
        "4 processes": lambda: drains.rate(jobs, processes=4),
    }
    for _ in range(options.rounds):
        for what, turn in turns.items():
            samples.setdefault(what, []).append(turn())
    beside = {
        "drain": "by hand, 100 at a time",
        "durable: each": "by hand, each result alone",
        "2 processes": "drain",
        "4 processes": "drain",
    }
    figures = []
    for what, found in samples.items():
        base = samples[beside.get(what, what)]
        ratios = [one / other for one, other in zip(found, base, strict=True)]
        label = f"{what} ÷ {beside[what]}" if what in beside else what
        figures.append((label, round(median(found)), median(ratios), (min(ratios), max(ratios))))
    if options.big:
        small, big = drains.peak_mib(jobs), drains.peak_mib(options.big)
        figures.append(
            (f"MiB of {options.big:,} jobs ÷ of {jobs:,}", round(big), big / small, (big / small, big / small))
        )
    if options.saturated:
        share = drains.saturated()
        figures.append(("share of a saturated minute", round(share * 55 * WORKERS / 0.2), share, (share, share)))
    return [
        {"what": what, "database": name, "figure": figure, "ratio": ratio, "spread": spread}
        for what, figure, ratio, spread in figures
    ]


class Drains:
    """Drains the jobs of one project in *folder*, on the database *url*."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.peak = 0.0

    def rate(self, jobs: int, job_type: str = "bench.noop", processes: int = 1) -> float:
        """Return the jobs per second, not counting the time that starting takes."""
        start = self._drain(processes, job_type, processes)[0]
        took, ticks = self._drain(jobs + processes, job_type, processes)
        return jobs / (took - ticks * start)

    def peak_mib(self, jobs: int) -> float:
        self.peak = 0.0
        self._drain(jobs, "bench.noop", 1)
        return self.peak

    def saturated(self) -> float:
        """Run one tick with more jobs than it can do.

        Return the share of a minute's budget in which all workers ran jobs.
        """
        fill(self.url, 55 * WORKERS * 5, "bench.nap")
        cronjobs(self.folder, "run-due")
        ran = 55 * WORKERS * 5 - waiting(self.url)
        return ran * 0.2 / (55 * WORKERS)

    def by_hand(self, jobs: int, *, alone: bool = False) -> float:
        fill(self.url, jobs)
        return floor(self.url, jobs, alone=alone)

    def _drain(self, jobs: int, job_type: str, processes: int) -> tuple[float, int]:
        """Run *processes* ticks at once until no job is left.

        Return the seconds, and how many times ticks were started.
        """
        fill(self.url, jobs, job_type)
        took, ticks = 0.0, 0
        with ThreadPoolExecutor(processes) as pool:
            while ticks == 0 or waiting(self.url):
                started = time.perf_counter()
                peaks = list(pool.map(lambda _: cronjobs(self.folder, "run-due"), range(processes)))
                took += time.perf_counter() - started
                self.peak = max(self.peak, *peaks)
                ticks += 1
                if ticks > 50:
                    raise SystemExit(f"{waiting(self.url)} jobs are still waiting after {ticks} ticks")
        connection = connect(self.url)
        [ran] = connection.execute(
            "SELECT count(*) FROM cronjobs_job_runs r JOIN cronjobs_jobs j ON j.id = r.job_id AND j.attempts = 1"
        ).fetchone()
        connection.close()
        if ran != jobs:
            raise SystemExit(f"{ran} executions of {jobs} jobs")
        return took, ticks


# --- by hand ----------------------------------------------------------------------------------------------------------


def connect(url: str) -> Any:
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
        connection.execute("PRAGMA synchronous = FULL")
        return connection
    import psycopg

    return psycopg.connect(url, autocommit=True)


def fill(url: str, jobs: int, job_type: str = "bench.noop") -> None:
    connection = connect(url)
    connection.execute("DELETE FROM cronjobs_jobs")
    connection.execute("DELETE FROM cronjobs_job_runs")  # delete these too, because SQLite's foreign keys are off here
    numbers = (
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {jobs}) SELECT '{job_type}' FROM n"
        if url.startswith("sqlite")
        else f"SELECT '{job_type}' FROM generate_series(1, {jobs})"
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


def floor(url: str, jobs: int, *, alone: bool) -> float:
    """Claim *jobs* in batches by bare SQL, and finish them in batches, or each one *alone*. Return the seconds."""
    connection = connect(url)
    on_sqlite = url.startswith("sqlite")
    started = time.perf_counter()
    done = 0
    while done < jobs:
        now = time.time_ns() // 1000
        if on_sqlite:
            connection.execute("BEGIN IMMEDIATE")
            rows = connection.execute(FLOOR_SQLITE[0], (now + 60_000_000, now)).fetchall()
            connection.execute("COMMIT")
        else:
            rows = connection.execute(FLOOR_POSTGRESQL[0]).fetchall()
        ids = [row[0] for row in rows]
        for group in [[one] for one in ids] if alone else [ids]:
            if on_sqlite:
                given = json.dumps(group)
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(FLOOR_SQLITE[1], (now, given))
                connection.execute(FLOOR_SQLITE[2], (now, now, given))
                connection.execute("COMMIT")
            else:
                connection.execute(FLOOR_POSTGRESQL[1], (group,))
        done += len(rows)
        if not rows:
            raise SystemExit("the floor ran dry")
    took = time.perf_counter() - started
    connection.close()
    return took


if __name__ == "__main__":
    main()
