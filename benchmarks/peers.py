"""Compare cronjobs with floors and other job systems, each in its own environment. README.md explains the results.

    python benchmarks/peers.py [--jobs 5000] [--rounds 5] [--only cronjobs,huey] [--slow-flush] [--json]

The first run installs the newest versions with pip and npm in --workdir. Later runs use them offline. In each round
every contestant has a turn, so that noise affects all of them alike. --only takes names in the first column of the
tables, or their beginnings. If a contestant cannot be installed or fails, its name and the reason are printed below the
tables.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import environments
import figures
import psycopg
from environments import Environment, NotInstalled
from lab import DATABASES, LONGEST_S, SLOW_FLUSH, database, run
from ticks import BARE_PSYCOPG

IDLE, START, DRAIN, SINGLE, BULK = "idle", "start", "drain", "single", "bulk"
ONE_S, MANY_S, RUNS = "one", "many", "runs"  # the parts of a drain, from which figures.drain_rates computes the rate
TITLES = {
    IDLE: ("Idle tick: wake, look, nothing, exit", "ms"),
    START: ("Start: from the spawn to a due job's first instruction", "ms"),
    DRAIN: ("Drain of no-op jobs, 4 workers", "jobs/s"),
    SINGLE: ("Enqueue one by one, each committed", "jobs/s"),
    BULK: ("Enqueue in bulk", "jobs/s"),
}
DRAINS = (IDLE, START, DRAIN)
ALL = (*DRAINS, SINGLE, BULK)
MOST_RUNS = 50
WARM_UP = 100
BARE_SQLITE = """\
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1].removeprefix("sqlite:///"))
connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
"""
NO_EQUIVALENT = {
    "APScheduler": "has no equivalent: its scheduler runs until it is stopped, nothing looks once and exits; and "
    "version 3 (4 is a pre-release) takes a one-off job out of its store before it runs, and records no result",
}


class Failed(Exception):
    """A contestant failed and is left out. The message is the reason."""


@dataclass(frozen=True)
class Contestant:
    """A system to measure, and what to measure of it. ``argv`` starts a worker that exits when nothing is due."""

    name: str
    database: str
    script: str
    argv: str = "{runtime} {scripts}/{script} run"
    measures: Sequence[str] = ALL
    floor_of: Sequence[str] = ()
    pip: Sequence[str] = ()
    npm: Sequence[str] = ()
    environ: dict[str, str] = field(default_factory=dict)
    processes: int = 1


DJANGO = ("django-tasks", "django-tasks-db", "django", "psycopg[binary]")
GRAPHILE = "{runtime} node_modules/graphile-worker/dist/cli.js --once --config on_graphile.config.mjs"


def contestants() -> Iterator[Contestant]:
    yield Contestant("python -c pass", "", "", "{runtime} -c pass", (IDLE,))
    for name, bare in (("sqlite", "bare sqlite3"), ("postgresql", "bare psycopg")):
        yield Contestant(bare, name, "", "{runtime} bare.py {url}", (IDLE, START), (IDLE, START))
        floored = (DRAIN, SINGLE, BULK)
        yield Contestant("raw SQL, 100 at a time", name, "on_floor.py", measures=floored, floor_of=floored)
        yield Contestant(
            "raw SQL, each result alone", name, "on_floor.py", "{runtime} {scripts}/{script} alone", (DRAIN,)
        )
        yield Contestant("cronjobs", name, "on_cronjobs.py", "{bin}/cronjobs run-due --config cronjobs.yaml")
        django = {"DJANGO_SETTINGS_MODULE": "on_django"}
        worker = "{bin}/django-admin db_worker --batch --no-startup-delay --verbosity 0"
        # A worker runs one task at a time. SQLite has only one writer, so it gets only one worker.
        workers = 1 if name == "sqlite" else 4
        yield Contestant("django-tasks", name, "on_django.py", worker, pip=DJANGO, environ=django, processes=workers)
    huey = ("huey", "psycopg[binary]")
    yield Contestant("huey, fsync", "sqlite", "on_huey.py", pip=huey, environ={"BENCH_FSYNC": "on"})
    yield Contestant("huey, no fsync", "sqlite", "on_huey.py", pip=huey, environ={"BENCH_FSYNC": "off"})
    yield Contestant("huey", "postgresql", "on_huey.py", pip=huey)
    yield Contestant(
        "procrastinate",
        "postgresql",
        "on_procrastinate.py",
        "{bin}/procrastinate --log-level warning --app on_procrastinate.app worker --one-shot --concurrency 4",
        pip=("procrastinate", "psycopg[binary]"),
    )
    yield Contestant("pgqueuer", "postgresql", "on_pgqueuer.py", pip=("pgqueuer[asyncpg]",))
    yield Contestant("graphile-worker", "postgresql", "on_graphile.mjs", GRAPHILE, DRAINS, npm=("graphile-worker",))
    yield Contestant(
        *("graphile-worker, batching", "postgresql", "on_graphile.mjs", GRAPHILE, DRAINS),
        npm=("graphile-worker",),
        environ={"BENCH_BATCHED": "yes"},
    )
    yield Contestant("pg-boss", "postgresql", "on_pgboss.mjs", measures=DRAINS, npm=("pg-boss",))


class Place:
    """A contestant that is ready to run, with its environment, its own database and a folder."""

    def __init__(self, contestant: Contestant, environment: Environment, folder: Path, url: str) -> None:
        self.contestant = contestant
        self.url = url
        self.seen = folder / "seen"
        # In this folder, Node finds its packages, and the Python scripts find what they import.
        self.folder = environment.scripts if contestant.npm else folder
        names = {"bin": environment.bin, "runtime": environment.runtime, "scripts": environment.scripts}
        self.argv = [word.format(**names, url=url, script=contestant.script) for word in contestant.argv.split()]
        self.script = [environment.runtime, str(environment.scripts / contestant.script)]
        self.environ = contestant.environ | {
            "BENCH_URL": url,
            "BENCH_SEEN": str(self.seen),
            "XDG_STATE_HOME": str(folder / "state"),
            "PYTHONPATH": os.pathsep.join(map(str, (environments.CONTESTANTS, environments.HERE))),
        }
        (folder / "bare.py").write_text(BARE_SQLITE if contestant.database == "sqlite" else BARE_PSYCOPG)
        self.seen.write_bytes(bytes(9))
        if contestant.script:
            self.ask("setup")

    def ask(self, verb: str, count: int | None = None) -> str:
        words = [*self.script, verb, *([] if count is None else [str(count)])]
        try:
            done = subprocess.run(
                words, cwd=self.folder, env=os.environ | self.environ, capture_output=True, text=True, timeout=LONGEST_S
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{verb} took more than {LONGEST_S:.0f} s") from None
        if done.returncode:
            raise Failed(f"{verb} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}")
        return done.stdout.strip()

    def fill(self, count: int) -> None:
        self.ask("fill", count)
        self.seen.write_bytes(bytes(8 + count))
        if self.contestant.database == "postgresql":
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")

    def work(self, processes: int = 1) -> tuple[float, float]:
        """Run the workers to their end.

        Return the monotonic second at which they started, and the seconds they took.
        """
        one = lambda _: run(self.argv, self.folder, **self.environ)  # noqa: E731
        with ThreadPoolExecutor(processes) as pool:
            started = time.monotonic()
            try:
                list(pool.map(one, range(processes)))
            except SystemExit as error:
                raise Failed(str(error)[-500:]) from None
            return started, time.monotonic() - started

    def drain(self, count: int, processes: int) -> tuple[float, float, int]:
        """Fill and drain the queue.

        Return the seconds to the first job's first instruction, all seconds, and the number of runs.
        """
        self.fill(count)
        first, seconds, runs = 0.0, 0.0, 0
        while runs == 0 or self.ask("left") != "0":
            if runs == MOST_RUNS:
                raise Failed(f"{self.ask('left')} jobs are left after {runs} runs")
            started, took = self.work(processes)
            first, seconds, runs = first or started, seconds + took, runs + 1
        seen = self.seen.read_bytes()
        if wrong := [n for n, times in enumerate(seen[8:]) if times != 1]:
            raise Failed(
                f"{len(wrong)} of {count} jobs did not run exactly once; job {wrong[0]}: {seen[8 + wrong[0]]}×"
            )
        return struct.unpack_from("d", seen)[0] - first, seconds, runs


# --- one round of each ------------------------------------------------------------------------------------------------


def idle(place: Place, jobs: int) -> dict[str, float]:
    return {IDLE: 1000 * place.work()[1]}


def drain(place: Place, jobs: int) -> dict[str, float]:
    if not place.contestant.script:  # a floor has no jobs, so measure its whole process
        return {START: 1000 * place.work()[1]}
    processes = place.contestant.processes
    start, alone, _ = place.drain(1, 1)
    if processes > 1:
        _, alone, _ = place.drain(1, processes)
    _, many, runs = place.drain(jobs + 1, processes)
    return {START: 1000 * start, ONE_S: alone, MANY_S: many, RUNS: runs}


def enqueue(place: Place, jobs: int) -> dict[str, float]:
    rates = {}
    for verb, count in ((SINGLE, max(1, jobs // 10)), (BULK, jobs)):
        place.fill(0)
        rates[verb] = count / float(place.ask(verb, count))
    return rates


ROUNDS: Sequence[tuple[Sequence[str], Callable[[Place, int], dict[str, float]]]] = (
    ((IDLE,), idle),
    ((START, DRAIN), drain),
    ((SINGLE, BULK), enqueue),
)


# --- the whole --------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="names, or how they begin, separated by commas")
    parser.add_argument("--slow-flush", action="store_true", help="each WAL flush takes 1 ms longer; PostgreSQL only")
    parser.add_argument("--json", action="store_true", help="all samples instead of tables")
    parser.add_argument("--plot", type=Path, help="default: peers.svg in the work folder")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--workdir", type=Path, default=cache / "cronjobs-benchmarks")
    options = parser.parse_args()
    options.workdir.mkdir(parents=True, exist_ok=True)
    databases = ("postgresql",) if options.slow_flush else DATABASES
    chosen = [
        one
        for one in contestants()
        if one.database in ("", *databases)
        and (not options.only or one.name.startswith(tuple(options.only.split(","))))
    ]
    load = os.getloadavg()[0]
    left_out = {} if options.only else dict(NO_EQUIVALENT)
    with ExitStack() as stack:
        versions = {"cronjobs": version("cronjobs"), "Python": platform.python_version()}
        places = made(chosen, options, stack, versions, left_out)
        samples = measured(places, options, left_out)
    header = ", ".join(f"{name} {number}" for name, number in versions.items())
    header += f"; {os.cpu_count()} cores, load {load:.1f} at the start and {os.getloadavg()[0]:.1f} at the end"
    header += f"; {options.jobs:,} jobs, {options.rounds} rounds" + ("; slow flush" if options.slow_flush else "")
    measures = [(*TITLES[measure], series(places, samples, measure)) for measure in ALL]
    measures = [measure for measure in measures if measure[2]]
    plot = options.plot or options.workdir / "peers.svg"
    plot.write_text(figures.svg(measures))
    if options.json:
        found = {
            title: [
                {"name": one.name, "database": one.database, "unit": unit, "samples": one.samples} for one in all_of
            ]
            for title, unit, all_of in measures
        }
        print(json.dumps({"header": header, "measures": found, "left_out": left_out}, indent=2))
        return
    print(header, *(figures.table(*measure) for measure in measures), sep="\n\n")
    print("", *(f"- {name}: {why}" for name, why in left_out.items()), sep="\n")


def made(
    chosen: Sequence[Contestant],
    options: argparse.Namespace,
    stack: ExitStack,
    versions: dict[str, str],
    left_out: dict[str, str],
) -> list[Place]:
    """Install what each contestant needs, start one server for all, and give each contestant its own database."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cronjobs-bench-")))
    server = ""
    if any(one.database == "postgresql" for one in chosen):
        server = stack.enter_context(database("postgresql", folder, **(SLOW_FLUSH if options.slow_flush else {})))
        with psycopg.connect(server) as connection:
            versions["PostgreSQL"] = connection.info.parameter_status("server_version") or ""
    versions["SQLite"] = sqlite3.sqlite_version
    places = []
    for number, one in enumerate(chosen):
        print(f"setting up {one.name}, {one.database}", file=sys.stderr)
        own = folder / str(number)
        own.mkdir()
        try:
            environment = environment_of(one, options.workdir.resolve())
            versions.update(environment.versions)
            places.append(Place(one, environment, own, own_database(one, own, server)))
        except (NotInstalled, Failed) as why:
            left_out[f"{one.name}, {one.database}"] = " ".join(str(why).split())
    return places


def environment_of(one: Contestant, workdir: Path) -> Environment:
    if one.npm:
        return environments.node(workdir / one.npm[0], one.npm)
    return environments.python(workdir / one.pip[0].partition("[")[0], one.pip) if one.pip else environments.this_one()


def own_database(one: Contestant, folder: Path, server: str) -> str:
    if one.database != "postgresql":
        return f"sqlite:///{folder}/bench.db"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE bench_{folder.name}".encode())
    return f"{server.rpartition('/')[0]}/bench_{folder.name}"


Samples = dict[tuple[Place, str], list[float]]


def measured(places: list[Place], options: argparse.Namespace, left_out: dict[str, str]) -> Samples:
    """Run all rounds. A first round warms up caches and does not count. A contestant that fails once is left out."""
    samples: Samples = {}
    for measures, one_round in ROUNDS:
        for number in range(options.rounds + 1):
            for place in list(places):
                one = place.contestant
                if not set(measures) & set(one.measures):
                    continue
                print(f"{measures[-1]} {number}/{options.rounds}: {one.name}, {one.database}", file=sys.stderr)
                try:
                    found = one_round(place, options.jobs if number else WARM_UP)
                except Failed as why:
                    places.remove(place)
                    left_out[f"{one.name}, {one.database}"] = " ".join(str(why).split())
                    continue
                for measure in found if number else ():
                    samples.setdefault((place, measure), []).append(found[measure])
    for place in [place for place, measure in samples if measure == MANY_S]:
        times = (samples[place, part] for part in (ONE_S, MANY_S, RUNS))
        if rates := figures.drain_rates(options.jobs, *times):
            samples[place, DRAIN] = rates
        else:
            one = place.contestant
            left_out[f"the drain of {one.name}, {one.database}"] = f"{options.jobs} jobs took no longer than one"
    return samples


def series(places: Sequence[Place], samples: Samples, measure: str) -> list[figures.Series]:
    return [
        figures.Series(one.name, one.database, samples[place, measure], floor=measure in one.floor_of)
        for place in places
        for one in (place.contestant,)
        if measure in one.measures and (place, measure) in samples
    ]


if __name__ == "__main__":
    main()
