"""Measure what years of rows cost. Each figure is a ratio to the same work on an empty database, measured in turn.
"Of the fastest" is the ratio of the fastest round of each side, because a busy machine disturbs those least.

    python benchmarks/growth.py [--finished 200000] [--future 20000] [--schedules 2000] [--behind 20000]
                                [--rounds 9] [--autovacuum on] [--analyze] [--database sqlite]

We promise that a tick takes at most 1.1 times as long as on the empty database, and everything else at most 1.11 times.
The full size is --finished 10000000 --future 100000 --schedules 10000 --behind 100000. It needs about 15 GB, and
minutes to fill.

Ticks and commands are whole processes. The schedules are only in the database, because this does not measure how long
it takes to read such a long file. By default PostgreSQL runs without autovacuum, and so without statistics. "Behind" is
a tick with one job that waits behind that many due jobs that nobody may run now: they have an unknown type, or are in a
paused queue, or under a limit that is reached.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from lab import DATABASES, ROOT, cronjobs, database, timed

sys.path.insert(0, str(ROOT / "tests"))
from support.grown import Grown

CONFIG = """\
database: {url}
imports: [bench_jobs]
run: {{workers: 4}}
{more}
schedules:
  night: {{cron: "15 2 29 2 *", job: bench.noop}}
"""
HANDLERS = """\
from cronjobs import job

@job("bench.noop")
def noop():
    pass
"""
LIMITS = 'limits: {"smtp:": 1}'


class Side:
    """A database with its project: either the empty one or the grown one."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url, self.may_complain = folder, url, False
        self.postgresql = not url.startswith("sqlite")
        (folder / "bench_jobs.py").write_text(HANDLERS)
        self.configure()
        self.ours("db", "upgrade")
        self.connection = self._connect()
        self.grown = Grown(self.connection, postgresql=self.postgresql)
        self.ours("run-due")

    def configure(self, more: str = "") -> None:
        (self.folder / "cronjobs.yaml").write_text(CONFIG.format(url=json.dumps(self.url), more=more))

    def _connect(self) -> Any:
        if not self.postgresql:
            return sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
        import psycopg

        return psycopg.connect(self.url, autocommit=True)

    def ours(self, *words: str) -> float:
        """Run a command. Return the seconds that it takes."""

        def call() -> None:
            try:
                cronjobs(self.folder, *words, XDG_STATE_HOME=str(self.folder / "state"))
            except SystemExit:
                # A tick exits with an error if it reports something, for example jobs of an unknown type.
                if not self.may_complain:
                    raise

        return timed(call)

    def value(self, statement: str) -> Any:
        return self.connection.execute(statement).fetchone()[0]

    # --- what is measured -----------------------------------------------------------------------------------------

    def idle_tick(self) -> float:
        return self.ours("run-due")

    def one_job(self) -> float:
        """Run a tick with one job. Check that the job ran. Return the seconds."""
        self.grown.waiting(1, job_type="'bench.noop'", run_at=self.grown.at("-1"))
        job_id = self.value("SELECT max(id) FROM cronjobs_jobs")
        took = self.ours("run-due")
        assert self.value(f"SELECT status FROM cronjobs_jobs WHERE id = {job_id}") == "succeeded"
        return took

    def drain(self, jobs: int) -> float:
        first = self.value("SELECT max(id) FROM cronjobs_jobs")
        self.grown.due(jobs, job_type="'bench.noop'")
        took = self.ours("run-due")
        done = self.value(f"SELECT count(*) FROM cronjobs_jobs WHERE id > {first} AND status = 'succeeded'")
        assert done == jobs, f"{done} of {jobs} jobs were done in one tick"
        return took

    def explain(self) -> float:
        return self.ours("explain", str(self.value("SELECT max(id) FROM cronjobs_jobs WHERE status = 'succeeded'")))

    def hold_limit(self) -> None:
        """Imitate another host that runs a job under the limit and renews its lease."""
        self.grown.run("DELETE FROM cronjobs_jobs WHERE locked_by = 'far:b:1:1:1:t'")
        lease = {"locked_by": "'far:b:1:1:1:t'", "locked_until": self.grown.at("50")}
        self.grown.waiting(1, job_type="'far'", status="'running'", attempts="1", concurrency_key="'smtp:a'", **lease)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("finished", 200_000), ("future", 20_000), ("schedules", 2_000), ("behind", 20_000)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--drain", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--autovacuum", choices=("on", "off"), default="off")
    parser.add_argument("--analyze", action="store_true")
    parser.add_argument("--database", choices=DATABASES, action="append")
    options = parser.parse_args()
    print("| what | database | ratio | of the fastest | from | to | ms | empty, ms |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.database or DATABASES:
        with ExitStack() as stack:
            sides: list[Side] = []
            for _ in ("empty", "grown"):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cronjobs-bench-")))
                url = stack.enter_context(database(name, folder, autovacuum=options.autovacuum))
                sides.append(Side(folder, url))
                stack.callback(sides[-1].connection.close)
            for cells in measure(sides[0], sides[1], options):
                print("| " + " | ".join(str(cell) for cell in (cells[0], name, *cells[1:])) + " |", flush=True)


def measure(empty: Side, grown: Side, options: argparse.Namespace) -> Iterator[list[Any]]:
    rows = grown.grown
    rows.finished(options.finished)
    rows.future(options.future)
    rows.schedules(options.schedules, occurrences=10, job_type="bench.noop")
    rows.ticks(options.finished // 100)
    if options.analyze:
        rows.analyze()

    def row(what: str, call: Callable[[Side], float], rounds: int = options.rounds) -> list[Any]:
        call(empty), call(grown)
        pairs = [(call(grown), call(empty)) for _ in range(rounds)]
        ratios = sorted(more / less for more, less in pairs)
        milliseconds = [round(1000 * median(column), 1) for column in zip(*pairs, strict=True)]
        fastest = min(more for more, _ in pairs) / min(less for _, less in pairs)
        return [what, *(round(ratio, 2) for ratio in (median(ratios), fastest, ratios[0], ratios[-1])), *milliseconds]

    yield row("idle tick", Side.idle_tick)
    yield row("tick with one job", Side.one_job)
    for words in (["status"], ["jobs", "list"]):
        yield row(" ".join(words), lambda side, words=words: side.ours(*words))  # type: ignore[misc]
    yield row("explain", Side.explain)
    yield row(f"drain of {options.drain:,}", lambda side: side.drain(options.drain), max(3, options.rounds // 3))
    yield row("idle tick after that", Side.idle_tick)
    yield row("tick with one job after that", Side.one_job)
    if options.behind:
        yield from behind(empty, grown, options.behind, row)


def behind(empty: Side, grown: Side, jobs: int, row: Callable[..., list[Any]]) -> Iterator[list[Any]]:
    grown.grown.run("INSERT INTO cronjobs_pauses (scope, name) VALUES ('queue', 'stopped')")
    waiting = {
        "an unknown type": {"job_type": "'nobody'"},
        "a paused queue": {"job_type": "'bench.noop'", "queue": "'stopped'"},
        "a full limit": {"job_type": "'bench.noop'", "concurrency_key": "'smtp:' || i"},
    }
    for what, columns in waiting.items():
        limited = what == "a full limit"
        for side in (empty, grown):
            side.configure(LIMITS if limited else "")
            side.may_complain = what == "an unknown type"
        grown.grown.due(jobs, **columns)

        def one(side: Side, limited: bool = limited) -> float:
            if limited:
                side.hold_limit()
            return side.one_job()

        yield row(f"tick with one job behind {what}", one)
        grown.grown.run("DELETE FROM cronjobs_jobs WHERE status = 'queued' AND run_at < " + grown.grown.at("-60"))


if __name__ == "__main__":
    main()
