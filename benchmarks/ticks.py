"""Measure an idle tick, which cron runs each minute, the start of a due job, and the commands that people type.

    python benchmarks/ticks.py [--rounds 15] [--json]

Machines are noisy, so a figure counts only as its ratio to the floor beside it, which is measured in turn in the same
run. "from" and "to" are the smallest and the largest ratio of a pair. The floors are ``python -c pass``, a bare psycopg
connection that selects 1, and ``python -c "import sqlalchemy"``. "First instruction" is the time from the start of the
process to the first line of a handler. The peak memory is measured in one more run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from lab import DATABASES, cronjobs, database, peak_mib, run, timed

CONFIG = """\
database: {url}
imports: [bench_jobs]
schedules:
  night: {{cron: "15 2 29 2 *", job: bench.first}}
"""
HANDLERS = """\
import os, time
from cronjobs import job

@job("bench.first")
def first():
    with open("first", "w") as file:
        file.write(str(time.clock_gettime(time.CLOCK_BOOTTIME)))
"""
COMMANDS = {"status": ["status"], "enqueue": ["enqueue", "bench.first"], "jobs show": ["jobs", "show", "1"]}
BARE_PSYCOPG = """\
import psycopg, sys
with psycopg.connect(sys.argv[1]) as connection:
    connection.execute("SELECT 1").fetchone()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--database", choices=DATABASES, action="append")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in options.database or DATABASES:
        with tempfile.TemporaryDirectory(prefix="cronjobs-bench-") as folder, database(name, Path(folder)) as url:
            rows += measure(name, url, Path(folder), options.rounds)
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print("| what | floor | ratio | from | to | ms | floor's ms | peak MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(str(value) for value in row.values()) + " |")


def measure(name: str, url: str, folder: Path, rounds: int) -> list[dict[str, Any]]:
    (folder / "cronjobs.yaml").write_text(CONFIG.format(url=url))
    (folder / "bench_jobs.py").write_text(HANDLERS)
    (folder / "floor.py").write_text(BARE_PSYCOPG)
    state = {"XDG_STATE_HOME": str(folder / "state")}

    def ours(*arguments: str) -> None:
        cronjobs(folder, *arguments, **state)

    def python(program: str) -> Callable[[], float]:
        return lambda: timed(lambda: run([sys.executable, "-c", program], folder))

    def first_instruction() -> float:
        ours("enqueue", "bench.first")
        started = time.clock_gettime(time.CLOCK_BOOTTIME)
        ours("run-due")
        return float((folder / "first").read_text()) - started

    bare = lambda: timed(lambda: run([sys.executable, "floor.py", url], folder))  # noqa: E731
    floor, floors = ("python -c pass", python("pass")) if name == "sqlite" else ("bare psycopg", bare)
    ours("db", "upgrade")
    ours("run-due")

    def row(
        what: str, floor: str, call: Callable[[], float], against: Callable[[], float], *arguments: str
    ) -> dict[str, Any]:
        call()
        pairs = [(call(), against()) for _ in range(rounds)]
        ratios = sorted(mine / floors for mine, floors in pairs)
        if call is first_instruction:
            ours("enqueue", "bench.first")
        return {
            "what": f"{what}, {name}",
            "floor": floor,
            "ratio": round(median(ratios), 2),
            "from": round(ratios[0], 2),
            "to": round(ratios[-1], 2),
            "ms": round(1000 * median(mine for mine, _ in pairs), 1),
            "floor_ms": round(1000 * median(floors for _, floors in pairs), 1),
            "peak_mib": round(peak_mib(folder, *arguments, **state), 1),
        }

    rows = [
        row("idle tick", floor, lambda: timed(lambda: ours("run-due")), floors, "run-due"),
        row("first instruction of a due job", floor, first_instruction, floors, "run-due"),
    ]
    if name == "sqlite":
        sqlalchemy = python("import sqlalchemy")
        rows += [
            row(what, "import sqlalchemy", lambda words=words: timed(lambda: ours(*words)), sqlalchemy, *words)  # type: ignore[misc]
            for what, words in COMMANDS.items()
        ]
    return rows


if __name__ == "__main__":
    main()
