"""Fill tables with the rows of years, by the million, for tests of plans and for benchmarks.

The server makes the rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

KEPT_S = 10 * 86_400  # finished jobs are spread over this time, which is shorter than any retention
OCCURRENCE_EVERY = 10  # a schedule made every tenth finished job
DEAD_EVERY = 10_000


class Grown:
    """Statements that fill a migrated database of either kind, through a plain driver's *connection*."""

    def __init__(self, connection: Any, *, postgresql: bool) -> None:
        self._connection, self._postgresql = connection, postgresql

    def at(self, seconds: str) -> str:
        """Return an SQL expression for the instant that many seconds from now."""
        if self._postgresql:
            return f"(statement_timestamp() + make_interval(secs => {seconds}))"
        return f"({time.time_ns() // 1000} + CAST(1000000 * ({seconds}) AS INTEGER))"

    def run(self, statement: str) -> None:
        self._connection.execute(statement)

    def insert(self, table: str, count: int, first: int = 1, /, **columns: str) -> None:
        """Insert *count* rows into *table*. Each column is an SQL expression of ``i``, which counts from *first*."""
        last = first + count - 1
        counting = (
            f"WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last}) SELECT i FROM n"
        )
        numbers = f"generate_series({first}, {last}) AS n(i)" if self._postgresql else f"({counting})"
        if count:
            values = f"SELECT {', '.join(columns.values())} FROM {numbers}"
            self.run(f"INSERT INTO cronjobs_{table} ({', '.join(columns)}) {values}")

    # --- what has been ------------------------------------------------------------------------------------------------

    def finished(self, count: int, batch: int = 500_000) -> None:
        """Insert ended jobs, each with its attempt. Schedules made some of them, and a few are dead and dismissed."""
        [before] = self._connection.execute("SELECT coalesce(max(id), 0) FROM cronjobs_jobs").fetchone()
        for done in range(0, count, batch):
            here, first = min(batch, count - done), before + done + 1
            ended = self.at(f"-{KEPT_S}.0 * ({before + count} - i) / {max(count, 1)}.0 - 60")
            self.insert(
                "jobs",
                here,
                first,
                id="i",
                job_type="'kind' || (i % 7)",
                payload="'{}'",
                status=f"CASE WHEN i % {DEAD_EVERY} = 0 THEN 'dead' ELSE 'succeeded' END",
                attempts="1",
                run_at=ended,
                created_at=ended,
                started_at=ended,
                finished_at=ended,
                dismissed_at=f"CASE WHEN i % {DEAD_EVERY} = 0 THEN {ended} END",
            )
            self.insert(
                "job_runs",
                here,
                first,
                job_id="i",
                attempt="1",
                outcome=f"CASE WHEN i % {DEAD_EVERY} = 0 THEN 'failed' ELSE 'succeeded' END",
                started_at=ended,
                finished_at=ended,
                runner="'web1:boot:1:4711:99:' || i",
            )
        if self._postgresql:
            self.run(
                "SELECT setval(pg_get_serial_sequence('cronjobs_jobs', 'id'), "
                "greatest(1, (SELECT max(id) FROM cronjobs_jobs)))"
            )

    def ticks(self, count: int) -> None:
        """Insert a tick for each minute until now. Nearly all of them were idle."""
        began = self.at(f"-60.0 * ({count + 1} - i)")
        self.insert(
            "ticks",
            count,
            tick="'grown' || i",
            host="'web' || (i % 3)",
            pid="1",
            version="'0.1.0'",
            fingerprint="'f'",
            started_at=began,
            finished_at=began,
            schedules_on="1",
            ended="'nothing is due'",
        )

    # --- what is to come ----------------------------------------------------------------------------------------------

    def future(self, count: int) -> None:
        self.waiting(count, job_type="'kind' || (i % 7)", run_at=self.at("3600 + i"))

    def due(self, count: int, **columns: str) -> None:
        self.waiting(count, **({"run_at": self.at("-3600")} | columns))

    def waiting(self, count: int, **columns: str) -> None:
        self.insert("jobs", count, **columns)

    def schedules(self, count: int, occurrences: int = 0, job_type: str = "kind1") -> None:
        """Insert schedules that fire yearly, but not now, each with *occurrences* past occurrences."""
        [first] = self._connection.execute("SELECT coalesce(max(id), 0) + 1 FROM cronjobs_schedules").fetchone()
        definition = (
            f'{{"cron": "0 2 29 2 *", "timezone": "UTC", "job": "{job_type}", "overlap": "skip", "catch_up": "latest"}}'
        )
        self.insert(
            "schedules",
            count,
            first,
            name="'grown-' || i",
            definition=f"'{definition}'",
            fingerprint="'f'",
            seen_until=self.at("-60"),
            next_at=self.at("86400 * 30"),
        )
        if occurrences:
            at = self.at(f"-3600.0 * (1 + (i / {count}))")
            self.insert(
                "occurrences",
                count * occurrences,
                0,
                schedule_id=f"{first} + i % {count}",
                first_for=at,
                last_for=at,
                outcome="'enqueued'",
                job_id="1 + i",
                decided_at=at,
            )

    def analyze(self) -> None:
        self.run("ANALYZE")


def tables(connection: Any, *, postgresql: bool) -> Iterator[str]:
    """Return the sizes of the tables, for people."""
    for name in ("jobs", "job_runs", "occurrences", "schedules", "ticks"):
        [count] = connection.execute(f"SELECT count(*) FROM cronjobs_{name}").fetchone()
        yield f"{name} {count:,}"
