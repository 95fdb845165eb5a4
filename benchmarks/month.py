"""Simulate a month with 100,000 jobs a day. Do size and speed stay the same after the first pruning?

    python benchmarks/month.py [--days 30] [--jobs 100000] [--kept 14] [--database sqlite] [--plain]

Each simulated hour enqueues, claims, ends, prunes and counts as many jobs as a real hour would. The first 250 jobs of
each hour go through the real statements of a tick, and these are timed. The other jobs go through SQL that leaves the
same rows and the same dead row versions. One job in a thousand dies, and one in twenty has a key. A schedule fires each
minute, and each minute has a tick. Pruning and counting use the real code. PostgreSQL runs with autovacuum, which looks
every second. A simulated hour takes about half a second, so autovacuum has far fewer chances than in real time, where
it looks every minute. For a comparison, --plain removes our settings of the tables.

Milliseconds are medians of a day. "flat" compares the best day of the last quarter with the best day of the first
quarter, counting from the first pruning. It uses the best days because a busy machine disturbs those least.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from lab import DATABASES, database
from sqlalchemy import text

from cronjobs.clock import SYSTEM
from cronjobs.desk.insight.gathering import look
from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.column_types import to_microseconds
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.ending import decide_end
from cronjobs.engine.schema import migrations
from cronjobs.engine.store import claims, leases
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.engine.store.counts import fold
from cronjobs.engine.store.ticks import overview
from cronjobs.engine.tick import pruner
from cronjobs.model import Finished, RetryPolicy, Succeeded
from cronjobs.testing import FakeClock

GROUP = 250
HOUR = timedelta(hours=1)
ADMISSION = ClaimFilter(known=["bench.noop"], fitting=["bench.noop"], remaining_s=50)
COLUMNS = ("MB", "claim", "end", "look", "status", "prune", "dead rows")
CONFIG = """\
database: {url}
retention: {{succeeded: {kept}d, dead: {kept}d, occurrences: {kept}d, keys: {kept}d, effects: {kept}d}}
schedules:
  minutely: {{every: 1m, job: bench.noop}}
"""


class Month:
    """One database and its simulated clock."""

    def __init__(self, url: str, settings: Settings, start: datetime, *, plain: bool) -> None:
        self.clock, self.settings = FakeClock(start), settings
        self.database = Database(parse_url(url), clock=self.clock)
        self.sqlite = self.database.is_sqlite
        self.file = Path(url.removeprefix("sqlite:///"))
        migrations.upgrade(self.database)
        self.times: dict[str, list[float]] = {}
        if plain and not self.sqlite:
            for table in ("jobs", "job_runs", "occurrences", "ticks", "schedules", "counts", "new_counts"):
                options = "autovacuum_vacuum_scale_factor, autovacuum_analyze_scale_factor, fillfactor"
                self.sql(f"ALTER TABLE cronjobs_{table} RESET ({options})")
        self.sql(
            """INSERT INTO cronjobs_schedules (name, definition, fingerprint, seen_until)
               VALUES ('minutely', '{}', 'x', :t)""",
            t=self.at(start),
        )

    def at(self, instant: datetime) -> Any:
        return to_microseconds(instant) if self.sqlite else instant

    def sql(self, statement: str, **values: Any) -> None:
        with self.database.write() as connection:
            connection.execute(text(statement), values)

    def value(self, statement: str) -> Any:
        with self.database.read() as connection:
            return connection.execute(text(statement)).scalar()

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        began = perf_counter()
        yield
        self.times.setdefault(what, []).append((perf_counter() - began) * 1000)

    # --- an hour ------------------------------------------------------------------------------------------------------

    def hour(self, count: int) -> None:
        self.minutes()
        self.enqueue(GROUP)
        self.real_group()
        for done in range(GROUP, count, 4 * GROUP):
            self.enqueue(min(4 * GROUP, count - done))
            self.sql_group()
        with self.timed("prune"):
            before = pruner.Before.of(self.settings.retention, self.clock.now())
            assert pruner.Pruner(self.database, before, self.clock, lambda: True).run()
        more = True
        while more:
            with self.database.write() as connection:
                more = fold(connection)

    def numbers(self, count: int) -> str:
        if self.sqlite:
            return (
                f"(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) SELECT i FROM n)"
            )
        return f"(SELECT i FROM generate_series(1, {count}) i)"

    def minutes(self) -> None:
        """Write the ticks of an hour, their occurrences, and the watermark after each tick."""
        now = self.clock.now()
        minute = "60000000 * i" if self.sqlite else "i * interval '1 minute'"
        self.sql(
            f"""INSERT INTO cronjobs_ticks (tick, host, pid, version, started_at, finished_at)
                SELECT :name || i, 'bench', 1, '0', :now + {minute}, :now + {minute} FROM {self.numbers(60)} n""",
            now=self.at(now),
            name=f"{now.isoformat()} ",
        )
        self.sql(
            f"""INSERT INTO cronjobs_occurrences (schedule_id, first_for, last_for, outcome, decided_at)
                SELECT 1, :now + {minute}, :now + {minute}, 'enqueued', :now FROM {self.numbers(60)} n""",
            now=self.at(now),
        )
        for each in range(1, 61):
            then = self.at(now + each * timedelta(minutes=1))
            self.sql("UPDATE cronjobs_schedules SET seen_until = :t, next_at = :t WHERE id = 1", t=then)

    def enqueue(self, count: int) -> None:
        kind = "text" if self.sqlite else "jsonb"
        key = "CASE WHEN i % 20 = 0 THEN :name || i END"
        self.sql(
            f"""INSERT INTO cronjobs_jobs (job_type, payload, run_at, created_at, idempotency_key)
                SELECT 'bench.noop', CAST(:payload AS {kind}), :now, :now, {key} FROM {self.numbers(count)} n""",
            payload='{"invoice_id": 42, "why": "a payload of the usual size, as it were"}',
            now=self.at(self.clock.now()),
            name=f"{perf_counter()} ",
        )

    def real_group(self) -> None:
        """Claim and end one group of jobs with a tick's own statements, and time them."""
        with self.timed("look"), self.database.read() as connection:
            overview(connection, host="bench", place="", fingerprint="x")
        with self.timed("claim"), self.database.write() as connection:
            found = claims.claim(
                connection, limit=GROUP, locked_by="bench:1", lease=timedelta(minutes=1), admission=ADMISSION
            ).jobs
        assert len(found) == GROUP
        with self.timed("end"), self.database.write() as connection:
            now = self.clock.now()
            ends = [
                decide_end(Finished(job, Succeeded(), output="done\n"), RetryPolicy(), now, max_losses=10).finish
                for job in found
            ]
            assert len(leases.finish(connection, ends).written) == GROUP

    def sql_group(self) -> None:
        """Claim and end all waiting jobs. Each step is a transaction, so that each step leaves a dead row version."""
        now = {"now": self.at(self.clock.now())}
        lease = ":now + 60000000" if self.sqlite else ":now + interval '1 minute'"
        self.sql(
            f"""UPDATE cronjobs_jobs SET status = 'running', attempts = 1, locked_by = 'bench:1', started_at = :now,
                  locked_until = {lease}, policy = '{{}}' WHERE status IN ('queued', 'failed')""",
            **now,
        )
        self.sql(
            """INSERT INTO cronjobs_job_runs (job_id, attempt, outcome, started_at, finished_at, runner, output)
               SELECT id, 1, CASE WHEN id % 1000 = 0 THEN 'failed' ELSE 'succeeded' END, :now, :now, 'bench:1', 'done'
               FROM cronjobs_jobs WHERE locked_until IS NOT NULL""",
            **now,
        )
        self.sql(
            """UPDATE cronjobs_jobs SET status = CASE WHEN id % 1000 = 0 THEN 'dead' ELSE 'succeeded' END,
                 locked_by = NULL, locked_until = NULL, policy = NULL, finished_at = :now
               WHERE locked_until IS NOT NULL""",
            **now,
        )

    # --- a day --------------------------------------------------------------------------------------------------------

    def figures(self) -> list[float]:
        """Return the figures of a day, in the order of ``COLUMNS``."""
        with self.timed("status"), self.database.read() as connection:
            look(connection, self.settings, JobTypes({}))
        ms = {name: median(found) for name, found in self.times.items()}
        self.times.clear()
        return [self.size() / 2**20, *(ms[name] for name in COLUMNS[1:-1]), self.dead()]

    def size(self) -> int:
        if self.sqlite:
            wal = self.file.with_name(self.file.name + "-wal")
            return self.file.stat().st_size + (wal.stat().st_size if wal.exists() else 0)
        return int(
            self.value(
                "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'cronjobs%'"
            )
        )

    def dead(self) -> float:
        """Return the number of dead rows on PostgreSQL, or the MB of free pages in SQLite's file."""
        if self.sqlite:
            return float(
                self.value("SELECT freelist_count * page_size / 1048576.0 FROM pragma_freelist_count, pragma_page_size")
            )
        return float(self.value("SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE relname LIKE 'cronjobs%'"))

    def wal_mb(self) -> float:
        wal = self.file.with_name(self.file.name + "-wal")
        return wal.stat().st_size / 2**20 if self.sqlite and wal.exists() else 0.0

    def hot(self) -> list[Any]:
        statement = """
          SELECT relname, n_tup_upd, n_tup_hot_upd, autovacuum_count, autoanalyze_count FROM pg_stat_user_tables
          WHERE relname LIKE 'cronjobs%' AND n_tup_ins > 0 ORDER BY n_tup_upd + n_tup_ins DESC"""
        with self.database.read() as connection:
            return list(connection.execute(text(statement)))


def simulate(name: str, options: argparse.Namespace) -> bool:
    """Simulate the month on one kind of database, and print the figures. Return whether they stayed flat."""
    vars(pruner)["sleep"] = lambda _s: None  # the pruner sleeps to let other writers in, but here are none
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cronjobs-month-")))
        url = stack.enter_context(database(name, folder, autovacuum_naptime="1s", shared_buffers="256MB", fsync="off"))
        (folder / "cronjobs.yaml").write_text(CONFIG.format(url=f"'{url}'", kept=options.kept))
        settings = load(folder / "cronjobs.yaml", environ={})
        start = (SYSTEM.now() - timedelta(days=options.days)).replace(minute=0, second=0, microsecond=0, tzinfo=UTC)
        month = Month(url, settings, start, plain=options.plain)
        stack.callback(month.database.close)
        print(f"\n{name}: {options.jobs:,} jobs a day for {options.days} days, kept for {options.kept}", flush=True)
        print(f"{'day':>4}" + "".join(f"{column:>11}" for column in COLUMNS), flush=True)
        days = []
        for day in range(1, options.days + 1):
            for _ in range(24):
                month.hour(max(GROUP, options.jobs // 24))
                month.clock.advance(HOUR)
            days.append(month.figures())
            print(f"{day:>4}" + "".join(f"{figure:>11,.1f}" for figure in days[-1]), flush=True)
        full = days[options.kept + 1 :]
        part = max(1, len(full) // 4)
        ratios = [_ratio([day[n] for day in full], part) for n in range(len(COLUMNS))]
        print("flat" + "".join(f"{ratio:>10.2f}x" for ratio in ratios), flush=True)
        if month.sqlite:
            print(f"its WAL: {month.wal_mb():.1f} MB")
        else:
            for table, updated, hot, vacuums, analyses in month.hot():
                print(f"  {table}: {updated:,} updates, {hot:,} HOT, {vacuums} autovacuums, {analyses} autoanalyses")
    return all(ratio < 1.5 for ratio in ratios[:-1])


def _ratio(figures: list[float], part: int) -> float:
    return min(figures[-part:]) / max(min(figures[:part]), 0.001)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--kept", type=int, default=14, help="days")
    parser.add_argument("--database", choices=DATABASES)
    parser.add_argument("--plain", action="store_true", help="PostgreSQL without our settings of the tables")
    options = parser.parse_args()
    if options.days < options.kept + 3:
        parser.error("--days: at least three more than --kept")
    flat = [simulate(name, options) for name in ([options.database] if options.database else DATABASES)]
    sys.exit(0 if all(flat) else 1)


if __name__ == "__main__":
    main()
