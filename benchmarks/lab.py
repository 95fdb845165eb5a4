"""The parts that the benchmarks share: databases that commit to disk, and processes with their time and memory."""

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
# Disks differ most in how long a commit waits for them. These settings add 1000 µs to each commit, even if nobody else
# is committing (0 siblings).
SLOW_FLUSH = {"commit_delay": "1000", "commit_siblings": "0"}


@contextmanager
def database(name: str, folder: Path, **settings: str) -> Iterator[str]:
    """Yield the URL of an empty database. A PostgreSQL server comes from a wheel, and runs until the block ends."""
    if name == "sqlite":
        yield f"sqlite:///{folder}/bench.db"
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from support import postgres

    # As in production, a commit waits for the disk. The server of the tests does not wait.
    postgres.SETTINGS.update({"fsync": "on", "full_page_writes": "on", "max_wal_size": "1GB"} | settings)
    server = postgres.PostgresServer(on_disk=True)
    try:
        server.start()
        server.execute("CREATE DATABASE bench")
        yield server.url("bench")
    finally:
        server.remove()


def run(argv: Sequence[str], folder: Path, **environ: str) -> float:
    """Run a program to its end, and return its peak memory in MiB. If it fails or hangs, the benchmark fails.

    The peak is never below the peak of this process, because a child inherits it on Linux. ``SMALL_PARENT`` avoids
    that.
    """
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
    """Run the installed command as cron would, with the configuration in *folder*. Return its peak memory."""
    return run(_argv(folder, arguments), folder, **environ)


# This program runs its arguments as a command, in a child that inherits almost no memory, and prints the child's peak.
SMALL_PARENT = """
import os, resource, sys
child = os.fork()
if not child:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.execv(sys.argv[1], sys.argv[1:])
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(status)
"""


def peak_mib(folder: Path, *arguments: str, **environ: str) -> float:
    """Return the peak memory of the command, even if this process is larger."""
    argv = [sys.executable, "-I", "-S", "-c", SMALL_PARENT, *_argv(folder, arguments)]
    said = subprocess.run(argv, cwd=folder, env=os.environ | environ, stdout=subprocess.PIPE, check=True).stdout
    return int(said) / 1024


def _argv(folder: Path, arguments: Sequence[str]) -> list[str]:
    program = Path(sys.executable).with_name("cronjobs")
    argv = [str(program)] if program.exists() else [sys.executable, "-m", "cronjobs"]
    return [*argv, *arguments, "--config", str(folder / "cronjobs.yaml")]


def timed(call: Callable[[], Any]) -> float:
    """Return the seconds that *call* takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
