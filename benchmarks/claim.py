"""Compare a claim on a full table with the same claim on an almost empty table, in one run, on both databases.

    python benchmarks/claim.py [--rows 1000000] [--claims 200] [--json]

The full table has ``rows`` finished jobs. It also has a tenth as many jobs that are due in the future, with the highest
priority, and a tenth as many that are due now, with the lowest. The other table has only a few jobs that are due now.
Machines are noisy, so claims on the two tables alternate, and the medians count only as a ratio. The ratio may be at
most 1.2. Each claim takes four jobs and is rolled back, so that all claims do the same. Claims are measured without
limits, with limits that are not reached, and, without a comparison, behind 10,000 due jobs of a key whose limit is
reached.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TAKE = 4
FEW = 100
MOST_RATIO = 1.2
BLOCKED = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="finished jobs in the full table")
    parser.add_argument("--claims", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], action="append")
    options = parser.parse_args()
    figures = []
    for name in options.database or ["sqlite", "postgresql"]:
        with urls(name) as (few, full, blocked):
            figures.append({"database": name} | measure(few, full, blocked, options.rows, options.claims))
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        for figure in figures:
            print(f"{figure['database']}: a claim of {TAKE}, median of {options.claims}")
            for what in ("plain", "limits"):
                few_ms, full_ms, ratio = (figure[what][key] for key in ("few_ms", "full_ms", "ratio"))
                words = "with limits in the file" if what == "limits" else "without limits"
                print(f"  {words:24} {few_ms:7.2f} ms   {options.rows:,} rows: {full_ms:7.2f} ms   ratio {ratio:5.2f}")
            print(f"  behind {BLOCKED:,} blocked    {figure['blocked_ms']:7.2f} ms")
    worst = max(figure[what]["ratio"] for figure in figures for what in ("plain", "limits"))
    raise SystemExit(0 if worst <= MOST_RATIO else 1)


@contextmanager
def urls(name: str) -> Iterator[tuple[str, str, str]]:
    """Yield the URLs of three empty databases of one kind."""
    with tempfile.TemporaryDirectory(prefix="cronjobs-bench-") as folder:
        if name == "sqlite":
            yield (f"sqlite:///{folder}/few.db", f"sqlite:///{folder}/full.db", f"sqlite:///{folder}/blocked.db")
            return
        sys.path.insert(0, str(ROOT / "tests"))
        from support import postgres

        postgres.SETTINGS.update(max_wal_size="4GB")
        server = postgres.PostgresServer(on_disk=True)
        server.start()
        try:
            for database in ("bench_few", "bench_full", "bench_blocked"):
                server.execute(f"CREATE DATABASE {database}")
            yield (server.url("bench_few"), server.url("bench_full"), server.url("bench_blocked"))
        finally:
            server.remove()


def measure(few: str, full: str, blocked: str, rows: int, claims: int) -> dict[str, Any]:
    from cronjobs.engine.rules.concurrency import Limit

    limits = (Limit("smtp:", most=4), Limit("tenant:", each=2))
    empty_one, full_one, blocked_one = made(few), made(full), made(blocked)
    add(empty_one, FEW, "queued", priority=9)
    add(full_one, rows, "succeeded")
    add(full_one, rows // 10, "queued", priority=0, future=True)
    add(full_one, rows // 10, "queued", priority=9)
    add(blocked_one, BLOCKED, "queued", priority=0, key="smtp:a")
    add(blocked_one, FEW, "queued", priority=9)
    add(blocked_one, 4, "running", priority=0, key="smtp:a")
    found: dict[str, Any] = {}
    for what, given in (("plain", ()), ("limits", limits)):
        took: tuple[list[float], list[float]] = ([], [])
        for number in range(claims + 10):
            pair = (claim_s(empty_one, given), claim_s(full_one, given))
            if number >= 10:  # the first ten claims warm up caches and plans
                took[0].append(pair[0])
                took[1].append(pair[1])
        few_s, full_s = median(took[0]), median(took[1])
        figures = {"few_ms": round(1000 * few_s, 3), "full_ms": round(1000 * full_s, 3)}
        found[what] = figures | {"ratio": round(full_s / few_s, 3)}
    found["blocked_ms"] = round(1000 * median(claim_s(blocked_one, limits) for _ in range(claims // 4 + 1)), 3)
    for database in (empty_one, full_one, blocked_one):
        database.close()
    return found


class RollBack(Exception):
    """Raised to roll back a claim's transaction."""


def claim_s(database: Any, limits: Any) -> float:
    """Return the seconds that one claim takes, without its COMMIT."""
    from cronjobs.engine.store import claims

    admission = claims.ClaimFilter(known=["bench"], fitting=["bench"], remaining_s=50, limits=limits)
    try:
        with database.write() as connection:
            started = time.perf_counter()
            jobs = claims.claim(
                connection, limit=TAKE, locked_by="bench", lease=timedelta(minutes=1), admission=admission
            ).jobs
            took = time.perf_counter() - started
            raise RollBack
    except RollBack:
        assert len(jobs) == TAKE
        return took


# --- rows -------------------------------------------------------------------------------------------------------------


def made(url: str) -> Any:
    from cronjobs.engine.database.address import parse_url
    from cronjobs.engine.database.connection import Database
    from cronjobs.engine.schema import migrations

    database = Database(parse_url(url), connections=1)
    migrations.upgrade(database)
    return database


def add(
    database: Any, count: int, status: str, *, priority: int = 5, future: bool = False, key: str | None = None
) -> None:
    """Insert *count* jobs in one statement, each due a microsecond after the one before.

    Real apps do not enqueue like this.
    """
    if database.is_sqlite:
        now = time.time_ns() // 1000
        run_at = f"{now + 10**12 if future else now - 10**9} + i"
        later = str(now + 6 * 10**7)
        rows = f"(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) SELECT i FROM n)"
    else:
        run_at = f"now() {'+ interval' if future else '- interval'} '10 days' + i * interval '1 microsecond'"
        later = "now() + interval '1 minute'"
        rows = f"generate_series(1, {count}) AS n(i)"
    columns = {
        "job_type": "'bench'",
        "status": f"'{status}'",
        "priority": str(priority),
        "run_at": run_at,
        "finished_at": later if status == "succeeded" else "NULL",
        "locked_by": "'somebody'" if status == "running" else "NULL",
        "locked_until": later if status == "running" else "NULL",
        "concurrency_key": "NULL" if key is None else f"'{key}'",
    }
    with database.write() as connection:
        if not database.is_sqlite:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql(
            f"INSERT INTO cronjobs_jobs ({', '.join(columns)}) SELECT {', '.join(columns.values())} FROM {rows}"
        )
    if not database.is_sqlite:
        import psycopg

        url = database.address.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(url, autocommit=True) as vacuum:
            vacuum.execute("VACUUM ANALYZE cronjobs_jobs")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
