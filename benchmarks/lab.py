"""What the benchmarks share: a database of either kind that commits to disk, and whole processes with their figures."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATABASES = ("sqlite", "postgresql")
LONGEST_S = 600.0
# Disks differ most in how long a commit waits for them: in µs; 0: also when nobody else is committing.
SLOW_FLUSH = {"commit_delay": "1000", "commit_siblings": "0"}


@contextmanager
def database(name: str, folder: Path, **settings: str) -> Iterator[str]:
    """The URL of an empty database; a PostgreSQL server comes from a wheel, and lives as long as the block."""
    if name == "sqlite":
        yield f"sqlite:///{folder}/bench.db"
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from support import postgres

    # As in production: a commit is on disk. The tests' server does without.
    postgres.SETTINGS.update({"fsync": "on", "full_page_writes": "on", "max_wal_size": "1GB"} | settings)
    server = postgres.PostgresServer(on_disk=True)
    try:
        server.start()
        server.execute("CREATE DATABASE bench")
        yield server.url("bench")
    finally:
        server.remove()


def run(argv: Sequence[str], folder: Path, **environ: str) -> float:
    """Run a program to its end; return its peak memory in MiB. It fails, or hangs: so does the benchmark."""
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder, env=os.environ | environ
    )
    assert process.stdout is not None
    killer = threading.Timer(LONGEST_S, process.kill)
    killer.daemon = True
    killer.start()
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    killer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {process.returncode}:\n{said.decode()}")
    return usage.ru_maxrss / 1024


def cronjobs(folder: Path, *arguments: str, **environ: str) -> float:
    """Run the installed command line as cron would, with the configuration in *folder*; return its peak memory."""
    program = Path(sys.executable).with_name("cronjobs")
    argv = [str(program)] if program.exists() else [sys.executable, "-m", "cronjobs"]
    return run([*argv, *arguments, "--config", str(folder / "cronjobs.yaml")], folder, **environ)


def timed(call: Callable[[], Any]) -> float:
    """The seconds that *call* takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
