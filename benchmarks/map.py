"""``ctx.map`` of 1,000 calls of 20 ms beside what it is made of: a pool of processes here, Dask's ``client.map`` there.

    python benchmarks/map.py [--calls 1000] [--call-ms 20] [--workers 3] [--rounds 3] [--only here,cluster] [--json]

Each round is a job whose handler maps, with processes that do not exist yet, and the same calls without us: of
``ProcessPoolExecutor.map`` in that handler, with its start and as many processes; of ``client.map`` from a client that
is connected, on the same workers. Who goes first alternates. A ratio is the median of those within the rounds.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from figures import ratio
from lab import ROOT, cronjobs, timed

HANDLERS = """\
import os, time
from concurrent.futures import ProcessPoolExecutor
from cronjobs import job


def sleep(seconds):
    time.sleep(seconds)
    return seconds


@job("bench.call", executor="cluster")
def call(seconds: float):
    return sleep(seconds)


def ours(ctx, calls, seconds):
    began = time.perf_counter()
    assert ctx.map("bench.call", [{"seconds": seconds}] * calls) == [seconds] * calls
    return time.perf_counter() - began


def theirs(calls, seconds):
    began = time.perf_counter()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        assert list(pool.map(sleep, [seconds] * calls)) == [seconds] * calls
    return time.perf_counter() - began


@job("bench.here", isolation="process", timeout="10m")
def here(ctx, calls, seconds, first):
    if first:
        return [ours(ctx, calls, seconds), theirs(calls, seconds)]
    bare = theirs(calls, seconds)
    return [ours(ctx, calls, seconds), bare]


@job("bench.cluster", executor="cluster", timeout="10m")
def cluster(ctx, calls, seconds):
    return ours(ctx, calls, seconds)
"""
LONGEST_S = 600.0


class Bench:
    """A project on SQLite."""

    def __init__(self, folder: Path, executor: str) -> None:
        self.folder = folder
        (folder / "bench_jobs.py").write_text(HANDLERS)
        head = f"database: sqlite:///{folder}/bench.db\nimports: [bench_jobs]\n"
        (folder / "cronjobs.yaml").write_text(f"{head}executors: {{cluster: {{dask: '{executor}'}}}}\n")
        cronjobs(folder, "db", "upgrade")

    def run(self, job_type: str, **payload: Any) -> Any:
        """Run one job of that type to its end; return its result."""
        with sqlite3.connect(self.folder / "bench.db", isolation_level=None) as connection:
            [[job_id]] = connection.execute(
                "INSERT INTO cronjobs_jobs (job_type, payload) VALUES (?, ?) RETURNING id",
                [job_type, json.dumps(payload)],
            ).fetchall()
            cronjobs(self.folder, "run-due")
            until = time.monotonic() + LONGEST_S
            while True:
                [row] = connection.execute(
                    "SELECT status, result, last_error FROM cronjobs_jobs WHERE id = ?", [job_id]
                ).fetchall()
                if row[0] == "succeeded":
                    return json.loads(row[1])
                if row[0] not in ("queued", "running") or time.monotonic() > until:
                    raise SystemExit(f"{job_type}: {row}")
                time.sleep(0.1)


def measure_here(folder: Path, calls: int, seconds: float, rounds: int) -> list[tuple[float, float]]:
    """Seconds of ``ctx.map`` and of a pool of processes, in each round."""
    bench = Bench(folder, "tcp://127.0.0.1:1")
    found = [bench.run("bench.here", calls=calls, seconds=seconds, first=number % 2 == 0) for number in range(rounds)]
    return [(ours, theirs) for ours, theirs in found]


def measure_cluster(folder: Path, calls: int, seconds: float, rounds: int, workers: int) -> list[tuple[float, float]]:
    """Seconds of ``ctx.map`` and of ``client.map`` on so many workers of one thread each, in each round."""
    from distributed import Client

    sys.path.insert(0, str(ROOT / "tests"))
    from support.clusters import DaskProcesses

    cluster = DaskProcesses(folder / "dask", {"CRONJOBS_CONFIG": str(folder / "cronjobs.yaml")}, threads=1)
    bench = Bench(folder, cluster.address)
    cluster.start_scheduler()
    for _ in range(workers):
        cluster.start_worker()
    cluster.wait_for_workers(workers)
    found = []
    try:
        with Client(cluster.address) as client:

            def bare() -> None:
                futures = client.map(lambda _: time.sleep(seconds), range(calls), pure=False)
                client.gather(futures)

            client.gather(client.map(lambda n: n, range(10 * workers), pure=False))
            for number in range(rounds):
                if number % 2:
                    theirs = timed(bare)
                    found.append((bench.run("bench.cluster", calls=calls, seconds=seconds), theirs))
                else:
                    ours = bench.run("bench.cluster", calls=calls, seconds=seconds)
                    found.append((ours, timed(bare)))
    finally:
        cluster.end()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--call-ms", type=float, default=20.0)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="here,cluster")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    seconds, samples = given.call_ms / 1000, {}
    for place in given.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            if place == "here":
                samples[place] = measure_here(Path(folder), given.calls, seconds, given.rounds)
            else:
                samples[place] = measure_cluster(Path(folder), given.calls, seconds, given.rounds, given.workers)
    if given.json:
        print(json.dumps(samples))
        return
    print(f"{given.calls:,} calls of {given.call_ms:g} ms, median of {given.rounds} rounds\n")
    print("| where | beside | ctx.map | bare | throughput ÷ bare |\n|---|---|---|---|---|")
    beside = {"here": "ProcessPoolExecutor.map", "cluster": f"client.map, {given.workers} workers"}
    for place, rounds in samples.items():
        ours, theirs = ([each[side] for each in rounds] for side in (0, 1))
        print(
            f"| {place} | {beside[place]} | {median(ours):.2f} s | {median(theirs):.2f} s | {ratio(theirs, ours):.2f} |"
        )


if __name__ == "__main__":
    main()
