"""Measure many hosts on one PostgreSQL: throughput, fairness, connections, and what an idle host costs.

    python benchmarks/hosts.py [--hosts 1,2,4,8,16,50] [--delays 0,0.5,5] [--jobs 100000] [--schedules 1000]
        [--plot FILE] [--json]

A host here is a host name and a state folder. All hosts run on this machine, so its cores limit the throughput, and the
figures show how different numbers of hosts share the cores. All hosts begin a tick at the same moment, as under cron,
and do so again until nothing is left. Each occurrence and each job must have run once. A delay is that of the network,
in milliseconds each way. Idle ticks are measured after each host has had a full tick. A proxy counts what they send,
and the server counts what they write.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from delays import Delay, delayed
from figures import curves
from lab import cronjobs, database
from psycopg.conninfo import conninfo_to_dict

HOSTS, DELAYS_MS = (1, 2, 4, 8, 16, 50), (0.0, 0.5, 5.0)
WARM_UP, LEAST_ROUNDS, LEAST_TICKS = 3, 3, 30  # the first ticks write the files that the fast path needs
STATISTICS_S = 1.5  # a session reports its statistics when it ends, or up to a second later
HANDLERS = """\
from cronjobs import job

@job("bench.noop", timeout="5s")
def noop(**payload):
    pass
"""
HEAD = "database: {url}\nimports: [bench_jobs]\nrun: {{workers: 4}}\nschedules:\n"
WRITTEN = "SELECT pg_current_wal_insert_lsn() - '0/0'"
TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"


@dataclass(frozen=True)
class Figures:
    """The figures for one number of hosts and one delay.

    ``share`` has two numbers: the jobs of the host that ran the fewest, and of the host that ran the most, each divided
    by an equal share. ``idle_…`` are the figures of an idle tick: how often it sent something and waited, how many
    bytes it sent, how much the server wrote to the WAL, the server's transactions, and the server's CPU time.
    ``woken_…`` are the figures of a tick that begins while one job is due for all hosts.
    """

    hosts: int
    delay_ms: float
    jobs_per_s: float
    share: tuple[float, float]
    connections: int
    idle_asked: float
    idle_sent_bytes: float
    idle_wal_bytes: float
    idle_transactions: float
    idle_cpu_ms: float
    woken_asked: float
    woken_cpu_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=_numbers(int), default=HOSTS)
    parser.add_argument("--delays", type=_numbers(float), default=DELAYS_MS)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--schedules", type=int, default=1_000)
    parser.add_argument("--plot", type=Path, help="where to draw the figures, as SVG")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: list[Figures] = []
    more = {"max_connections": "500", "track_activities": "on", "checkpoint_timeout": "1h", "max_wal_size": "8GB"}
    with (
        tempfile.TemporaryDirectory(prefix="cronjobs-bench-") as folder,
        database("postgresql", Path(folder), **more) as url,
    ):
        for delay_ms in options.delays:
            for hosts in options.hosts:
                found.append(Fleet(Path(folder), url, hosts, delay_ms, options.jobs, options.schedules).measured())
                print(f"{hosts} hosts, {delay_ms:g} ms: {found[-1]}", file=sys.stderr)
    if options.plot:
        options.plot.write_text(drawn(found))
    print(json.dumps([asdict(each) for each in found], indent=1) if options.json else table(found))


def _numbers(kind: type) -> Any:
    return lambda text: tuple(kind(part) for part in text.split(","))


def table(found: Sequence[Figures]) -> str:
    head = (
        "| hosts | delay, ms | jobs/s | fewest–most of a host ÷ its share | connections "
        "| idle: asks | sent, bytes | WAL, bytes | transactions | CPU, ms | woken: asks | CPU, ms |"
    )
    lines = [head, "|" + " ---: |" * 12]
    lines += [
        f"| {f.hosts} | {f.delay_ms:g} | {f.jobs_per_s:,.0f} | {f.share[0]:.2f}–{f.share[1]:.2f} | {f.connections} "
        f"| {f.idle_asked:.1f} | {f.idle_sent_bytes:,.0f} | {f.idle_wal_bytes:,.0f} | {f.idle_transactions:.1f} "
        f"| {f.idle_cpu_ms:.1f} | {f.woken_asked:.1f} | {f.woken_cpu_ms:.1f} |"
        for f in found
    ]
    return "\n".join(lines)


def drawn(found: Sequence[Figures]) -> str:
    measures: dict[str, Callable[[Figures], float]] = {
        "jobs a second, all hosts together": lambda each: each.jobs_per_s,
        "connections at most": lambda each: each.connections,
        "idle: questions to the server, by host and minute": lambda each: each.idle_asked,
        "idle: bytes written to the WAL, by host and minute": lambda each: each.idle_wal_bytes,
        "the server's CPU in ms, by host and minute, when one job is due for all": lambda each: each.woken_cpu_ms,
    }
    delays = sorted({each.delay_ms for each in found})
    panels = [
        (
            title,
            [
                (f"{delay:g} ms away", [(each.hosts, value(each)) for each in found if each.delay_ms == delay])
                for delay in delays
            ],
        )
        for title, value in measures.items()
    ]
    return curves(panels, "hosts")


def _stat(pid: int | str) -> list[str]:
    """Return the kernel's facts about a process, beginning with its state. See proc_pid_stat(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


class Fleet:
    """The hosts of one project on the database *url*, behind a network with a delay."""

    def __init__(self, folder: Path, url: str, hosts: int, delay_ms: float, jobs: int, schedules: int) -> None:
        self.folder, self.url, self.hosts, self.delay_ms = folder, url, hosts, delay_ms
        self.jobs, self.schedules = jobs, schedules
        self.most_connections = 0

    def measured(self) -> Figures:
        server = conninfo_to_dict(self.url)
        with delayed(str(server["host"]), int(str(server["port"])), self.delay_ms / 1000) as network:
            self._prepare(network)
            self._drain()
            jobs_per_s, shares = self._judged()
            idle, woken = self._idle(network), self._woken(network)
        return Figures(self.hosts, self.delay_ms, jobs_per_s, shares, self.most_connections, *idle, *woken)

    def _prepare(self, network: Delay) -> None:
        direct = conninfo_to_dict(self.url)
        there = self.url.replace(f":{direct['port']}/", f":{network.port}/")
        lines = [f"  s{number}: {{every: 1h, job: bench.noop, catch_up: latest}}\n" for number in range(self.schedules)]
        (self.folder / "cronjobs.yaml").write_text(HEAD.format(url=there) + "".join(lines))
        (self.folder / "bench_jobs.py").write_text(HANDLERS)
        self._sql("ALTER SYSTEM RESET autovacuum", "SELECT pg_reload_conf()")
        self._sql("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        cronjobs(self.folder, "db", "upgrade")
        self._tick(0)  # this tick applies the file
        back = "- interval '1 hour'"
        self._sql(
            f"UPDATE cronjobs_schedules SET seen_until = seen_until {back}, next_at = next_at {back}",
            f"INSERT INTO cronjobs_jobs (job_type) SELECT 'bench.noop' FROM generate_series(1, {self.jobs})",
            "VACUUM ANALYZE",
        )

    def _tick(self, host: int) -> None:
        state = self.folder / f"state-{host}"
        cronjobs(self.folder, "run-due", CRONJOBS_HOST=f"host{host}", XDG_STATE_HOME=str(state))

    def _all_tick(self) -> None:
        with ThreadPoolExecutor(self.hosts) as pool:
            list(pool.map(self._tick, range(1, self.hosts + 1)))

    def _drain(self) -> None:
        end = threading.Event()
        watcher = threading.Thread(target=self._watch_connections, args=(end,))
        watcher.start()
        try:
            while self._one("SELECT count(*) FROM cronjobs_jobs WHERE status <> 'succeeded'") or not self._settled():
                self._all_tick()
        finally:
            end.set()
            watcher.join()

    def _settled(self) -> bool:
        return bool(self._one("SELECT count(*) FROM cronjobs_occurrences") >= self.schedules)

    def _watch_connections(self, end: threading.Event) -> None:
        question = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'cronjobs'"
        with psycopg.connect(self.url, autocommit=True, application_name="watcher") as connection:
            while not end.wait(0.05):
                row = connection.execute(question).fetchone()
                self.most_connections = max(self.most_connections, row[0] if row else 0)

    def _judged(self) -> tuple[float, tuple[float, float]]:
        """Check that each occurrence and each job ran once. Return the jobs per second and the ``share`` of Figures."""
        total = self.jobs + self.schedules
        runs = self._one("SELECT count(*) FROM cronjobs_job_runs")
        occurrences = self._one(
            "SELECT count(*) FROM (SELECT DISTINCT schedule_id, last_for FROM cronjobs_occurrences) o"
        )
        enqueued = self._one("SELECT count(*) FROM cronjobs_occurrences WHERE outcome = 'enqueued'")
        if (runs, occurrences, enqueued) != (total, self.schedules, self.schedules):
            raise SystemExit(f"{runs} runs of {total} jobs, {occurrences} occurrences, {enqueued} enqueued")
        took = "SELECT extract(epoch FROM max(finished_at) - min(started_at)) FROM cronjobs_job_runs"
        of_hosts = self._rows("SELECT count(*) FROM cronjobs_job_runs GROUP BY split_part(runner, ':', 1)")
        counts = [count for (count,) in of_hosts] + [0] * (self.hosts - len(of_hosts))
        share = total / self.hosts
        return total / float(self._one(took)), (min(counts) / share, max(counts) / share)

    def _idle(self, network: Delay) -> tuple[float, float, float, float, float]:
        """Return the figures of one host's idle tick, as medians, without the server's autovacuum and checkpoints."""
        self._sql("ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()", "VACUUM ANALYZE", "CHECKPOINT")
        for _ in range(WARM_UP):
            self._all_tick()
        rounds, found = max(LEAST_ROUNDS, LEAST_TICKS // self.hosts), []
        time.sleep(STATISTICS_S)
        transactions, cpu_ms = self._one(TRANSACTIONS), self._cpu_ms()
        for _ in range(rounds):
            before = network.asked, network.sent_bytes, self._one(WRITTEN)
            self._all_tick()
            after = network.asked, network.sent_bytes, self._one(WRITTEN)
            found.append([float(new - old) / self.hosts for new, old in zip(after, before, strict=True)])
        cpu_ms = (self._cpu_ms() - cpu_ms) / rounds / self.hosts
        time.sleep(STATISTICS_S)
        # Subtract the transactions of the sessions that read these figures. The start of a session is a transaction,
        # too.
        own = 2 * (2 * rounds + 3)
        transactions = (self._one(TRANSACTIONS) - transactions - own) / rounds / self.hosts
        asked, sent, written = (median(column) for column in zip(*found, strict=True))
        return asked, sent, written, float(transactions), cpu_ms

    def _woken(self, network: Delay) -> tuple[float, float]:
        """Return the figures of one host's tick, if a single job is due when all hosts begin a tick."""
        rounds = max(LEAST_ROUNDS, LEAST_TICKS // 3 // self.hosts)
        asked, cpu_ms = network.asked, self._cpu_ms()
        for _ in range(rounds):
            self._sql("INSERT INTO cronjobs_jobs (job_type) VALUES ('bench.noop')")
            self._all_tick()
        return (network.asked - asked) / rounds / self.hosts, (self._cpu_ms() - cpu_ms) / rounds / self.hosts

    def _cpu_ms(self) -> float:
        """Return the CPU time of all sessions of the server that have ended."""
        with psycopg.connect(self.url) as connection:
            row = connection.execute("SELECT pg_backend_pid()").fetchone()
            assert row is not None
            postmaster = _stat(_stat(row[0])[1])
        # these are cutime and cstime
        return (int(postmaster[13]) + int(postmaster[14])) * 1000 / os.sysconf("SC_CLK_TCK")

    def _sql(self, *statements: Any) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def _rows(self, question: Any) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(question).fetchall()

    def _one(self, question: Any) -> Any:
        return self._rows(question)[0][0]


if __name__ == "__main__":
    main()
