"""Compare the speed of enqueue and enqueue_many with hand-written SQL in the same run, on both databases.

    python benchmarks/enqueue.py [--jobs 2000] [--rounds 7] [--database sqlite] [--json]

Machines are noisy, so figures count only as ratios within one run. The floors and our functions take turns, and each
round has its own ratios. The output shows their median, lowest and highest. The floors write the same columns of the
same table with the bare driver and check nothing. Like our functions, they return the id of each job:

- single: an INSERT … VALUES … RETURNING id for each job, all in one open transaction; this is the main comparison
- single, committed: the same with a COMMIT after each job, as most apps do
- bulk: one INSERT … SELECT … RETURNING id, then a COMMIT. The values that differ come from one parameter: json_each
  on SQLite, unnest on PostgreSQL. This is faster than executemany, which returns no ids.

The bare table has these columns but no index, CHECK or default. It shows the cost of our table, which is not a cost of
enqueue. Our functions are measured on the driver's connection and on SQLAlchemy's. On SQLAlchemy, a committed single is
a call with an Engine.
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

import lab

COLUMNS = ("job_type", "payload", "meta", "queue", "priority", "run_at", "created_at", "enqueued_by", "idempotency_key")
BARE = "bench_bare"
TABLES = ("cronjobs_jobs", BARE)
SHAPES = ("single", "single, committed", "bulk")
Call = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--database", choices=lab.DATABASES, action="append")
    options = parser.parse_args()
    figures = []
    for name in options.database or lab.DATABASES:
        with tempfile.TemporaryDirectory(prefix="cronjobs-bench-") as folder, lab.database(name, Path(folder)) as url:
            figures += measured(name, url, options.jobs, options.rounds)
    print(json.dumps(figures, indent=2) if options.json else as_text(figures, options))


def as_text(figures: list[dict[str, Any]], options: argparse.Namespace) -> str:
    lines = [f"{options.jobs:,} jobs, {options.rounds} rounds; ratio: our rate to the floor's, median (lowest-highest)"]
    for figure in figures:
        lines.append(f"{figure['database']:10} {figure['shape']:18} {'with keys' if figure['keyed'] else 'no keys':10}")
        lines += [f"    floor, {table:14} {figure['floors'][table]:9,} jobs/s" for table in TABLES]
        for name, rate in figure["ours"].items():
            against = "   ".join(
                f"{table} {figure['ratios'][name][table][1]:.2f} "
                f"({figure['ratios'][name][table][0]:.2f}-{figure['ratios'][name][table][2]:.2f})"
                for table in TABLES
            )
            lines.append(f"    {name:21} {rate:9,} jobs/s   {against}")
    return "\n".join(lines)


def measured(name: str, url: str, jobs: int, rounds: int) -> list[dict[str, Any]]:
    prepare(url)
    bench = Bench(url)
    try:
        return [
            figure(name, shape, keyed, [bench.round(shape, keyed, jobs) for _ in range(rounds + 1)][1:], jobs)
            for shape in SHAPES
            for keyed in (False, True)
        ]
    finally:
        bench.close()


def figure(name: str, shape: str, keyed: bool, rounds: list[dict[str, float]], jobs: int) -> dict[str, Any]:
    ours = [one for one in rounds[0] if one not in TABLES]
    return {
        "database": name,
        "shape": shape,
        "keyed": keyed,
        "floors": {table: round(jobs / median(one[table] for one in rounds)) for table in TABLES},
        "ours": {own: round(jobs / median(one[own] for one in rounds)) for own in ours},
        "ratios": {own: {table: spread([one[table] / one[own] for one in rounds]) for table in TABLES} for own in ours},
    }


def spread(ratios: list[float]) -> list[float]:
    return [round(value, 3) for value in (min(ratios), median(ratios), max(ratios))]


def prepare(url: str) -> None:
    from cronjobs.engine.database.address import parse_url
    from cronjobs.engine.database.connection import Database
    from cronjobs.engine.schema import migrations

    database = Database(parse_url(url))
    migrations.upgrade(database)
    database.close()
    connection = connect(url)
    types = {"payload": "jsonb", "meta": "jsonb", "priority": "smallint"}
    types |= dict.fromkeys(("run_at", "created_at"), "timestamptz")
    if isinstance(connection, sqlite3.Connection):
        types = dict.fromkeys(("priority", "run_at", "created_at"), "integer")
    columns = ", ".join(f"{column} {types.get(column, 'text')}" for column in COLUMNS)
    identity = "INTEGER" if isinstance(connection, sqlite3.Connection) else "bigint GENERATED ALWAYS AS IDENTITY"
    connection.execute(f"CREATE TABLE {BARE} (id {identity} PRIMARY KEY, {columns})")
    connection.commit()
    connection.close()


def connect(url: str) -> Any:
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    import psycopg

    return psycopg.connect(url)


class Bench:
    """A connection of the driver and an engine of SQLAlchemy, for the same database."""

    def __init__(self, url: str) -> None:
        from sqlalchemy import create_engine

        self.raw = connect(url)
        self.sqlite = isinstance(self.raw, sqlite3.Connection)
        self.engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        self.driver = "sqlite3" if self.sqlite else "psycopg"

    def close(self) -> None:
        self.raw.close()
        self.engine.dispose()

    def round(self, shape: str, keyed: bool, jobs: int) -> dict[str, float]:
        """Run one round.

        Return the seconds, by table for the floors, and by the kind of connection for our functions.
        """
        calls: dict[str, Call] = {
            table: lambda table=table: self.floor(shape, table, keyed, jobs)  # type: ignore[misc]
            for table in TABLES
        }
        calls[self.driver] = lambda: self.ours(self.raw, shape, keyed, jobs)
        calls["SQLAlchemy"] = lambda: self.with_sqlalchemy(shape, keyed, jobs)
        return {name: self.timed(call) for name, call in calls.items()}

    def timed(self, call: Call) -> float:
        """Empty the tables. Then return the seconds that *call* takes."""
        for table in TABLES:
            self.raw.execute(f"DELETE FROM {table}" if self.sqlite else f"TRUNCATE {table} CASCADE")
        self.raw.commit()
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    # --- floors -------------------------------------------------------------------------------------------------------

    def floor(self, shape: str, table: str, keyed: bool, jobs: int) -> None:
        if shape == "bulk":
            self.raw_bulk(table, keyed, jobs)
            self.raw.commit()
            return
        mark, now = ("?", "?") if self.sqlite else ("%s", "statement_timestamp()")
        marks = [now if column.endswith("_at") else mark for column in COLUMNS]
        insert = f"INSERT INTO {table} ({', '.join(COLUMNS)}) VALUES ({', '.join(marks)})"
        insert += f"{self.conflict(table, keyed)} RETURNING id"
        for n in range(jobs):
            key = f"invoice:{n}" if keyed else None
            row = ("bench.noop", json.dumps({"invoice_id": n}), "{}", "default", 5, *self.now(), "ada/bench", key)
            ((_,),) = self.raw.execute(insert, row).fetchall()
            if shape == "single, committed":
                self.raw.commit()
        self.raw.commit()

    def raw_bulk(self, table: str, keyed: bool, jobs: int) -> None:
        payloads = [json.dumps({"invoice_id": n}) for n in range(jobs)]
        keys = [f"invoice:{n}" for n in range(jobs)] if keyed else []
        rows: tuple[Any, ...]
        if self.sqlite:
            now, payload, key = "?, ?", "value", "NULL"
            source, rows = "json_each(?)", (json.dumps(payloads),)
            if keyed:
                payload, key = "json_extract(value, '$[0]')", "json_extract(value, '$[1]')"
                rows = (json.dumps(list(zip(payloads, keys, strict=True))),)
        else:
            now, payload, key = "statement_timestamp(), statement_timestamp()", "payload", "key" if keyed else "NULL"
            source = "unnest(%s::jsonb[], %s::text[]) AS r(payload, key)"
            rows = (payloads, keys)
        told = self.raw.execute(
            f"INSERT INTO {table} ({', '.join(COLUMNS)}) SELECT 'bench.noop', {payload}, '{{}}', 'default', 5, {now}, "
            f"'ada/bench', {key} FROM {source} WHERE true{self.conflict(table, keyed)} RETURNING id",
            (*self.now(), *rows),
        )
        if len(told.fetchall()) != jobs:
            raise SystemExit("not every row was inserted")

    def now(self) -> tuple[int, ...]:
        """Return the values of run_at and created_at, or () if the statement uses the database's clock."""
        return (time.time_ns() // 1000,) * 2 if self.sqlite else ()

    def conflict(self, table: str, keyed: bool) -> str:
        return " ON CONFLICT (idempotency_key) DO NOTHING" if keyed and table != BARE else ""

    # --- ours ---------------------------------------------------------------------------------------------------------

    def with_sqlalchemy(self, shape: str, keyed: bool, jobs: int) -> None:
        if shape == "single, committed":
            self.ours(self.engine, shape, keyed, jobs)
            return
        with self.engine.connect() as connection:
            self.ours(connection, shape, keyed, jobs)

    def ours(self, target: Any, shape: str, keyed: bool, jobs: int) -> None:
        from cronjobs import enqueue, enqueue_many

        if shape == "bulk":
            rows: list[Any] = [{"invoice_id": n} for n in range(jobs)]
            if keyed:
                rows = [(row, {"idempotency_key": ("invoice", row["invoice_id"])}) for row in rows]
            told = enqueue_many(target, "bench.noop", rows)
            if len(told) != jobs or not all(one.new for one in told):
                raise SystemExit("not every job was enqueued")
        else:
            for n in range(jobs):
                key = ("invoice", n) if keyed else None
                if not enqueue(target, "bench.noop", {"invoice_id": n}, idempotency_key=key).new:
                    raise SystemExit("a job was not enqueued")
                if shape == "single, committed" and target is self.raw:
                    target.commit()
        if target is not self.engine:
            target.commit()


if __name__ == "__main__":
    sys.path.insert(0, str(lab.ROOT))
    main()
