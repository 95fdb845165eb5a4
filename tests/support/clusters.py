"""A Dask cluster of real processes on this machine. Tests can kill, freeze and restart its scheduler and workers."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cronjobs.clock import SYSTEM, sleep
from support import forked
from support.postgres import free_port
from support.ticking import Project

SUPERVISOR = "cronjobs.contrib.dask.supervisor"


@dataclass
class DaskProcesses:
    """A scheduler at ``address``, and its workers. Each worker runs ``threads`` tasks at a time."""

    folder: Path
    env: Mapping[str, str]
    threads: int = 2
    tls: Path | None = None  # the folder of client.pem and client.key
    port: int = field(default_factory=free_port)
    scheduler: subprocess.Popen[bytes] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _started: int = 0

    @property
    def address(self) -> str:
        return f"{'tls' if self.tls else 'tcp'}://127.0.0.1:{self.port}"

    @property
    def _keys(self) -> list[str]:
        if self.tls is None:
            return []
        ca = str(self.tls / "client.pem")
        return ["--tls-ca-file", ca, "--tls-cert", ca, "--tls-key", str(self.tls / "client.key"), "--protocol", "tls"]

    def start_scheduler(self) -> None:
        words = ["--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard", "--no-jupyter", *self._keys]
        self.scheduler = self._start("dask_scheduler", "scheduler", words)

    def start_worker(
        self, *words: str, address: str | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        self._started += 1
        name = f"worker-{self._started}"
        given = [
            address or self.address,
            "--no-nanny",
            "--nthreads",
            str(self.threads),
            "--no-dashboard",
            "--host",
            "127.0.0.1",
        ]
        given += ["--local-directory", str(self.folder / name), "--death-timeout", "60", *self._keys, *words]
        worker = self._start("dask_worker", name, given, env)
        self.workers.append(worker)
        return worker

    def _start(
        self, program: str, name: str, words: list[str], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        self.folder.mkdir(exist_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            argv = [sys.executable, "-m", f"distributed.cli.{program}", *words]
            given: dict[str, Any] = {"stdout": log, "stderr": log, "stdin": subprocess.DEVNULL, "cwd": self.folder}
            return forked.start(argv, env=forked.environment() | {**self.env, **(env or {})}, **given)

    def wait_for_workers(self, count: int, within_s: float = 60) -> None:
        """Wait until that many workers have registered, according to the scheduler's log."""

        def registered() -> bool:
            log = self.log("scheduler")
            there = set(re.findall(r"Register worker addr: (\S+)", log))
            return len(there - set(re.findall(r"Remove worker addr: (\S+)", log))) >= count

        wait_until(registered, within_s)

    def log(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def end(self) -> None:
        for process in [*self.workers, *([self.scheduler] if self.scheduler else [])]:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


def wait_until(condition: Any, within_s: float = 60, what: str = "") -> None:
    end = SYSTEM.monotonic() + within_s
    while not condition():
        assert SYSTEM.monotonic() < end, what or condition
        sleep(0.05)


def supervisors(project: Project) -> list[int]:
    """Return the living supervisors that the ticks of *project* have started, according to the log."""
    started = [int(pid) for pid in re.findall(r"executor\.started executor=\S+ pid=(\d+)", project.log())]
    return [pid for pid in started if is_supervisor(pid)]


def is_supervisor(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return SUPERVISOR in command and state not in "ZX"


@dataclass
class Relay:
    """A relay between a worker and its scheduler, with its own port. While ``cut`` is set, nothing gets through."""

    target: int
    cut: threading.Event = field(default_factory=threading.Event)
    _listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    _sockets: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        for each in [self._listener, *self._sockets]:
            each.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target))
                except OSError:  # the scheduler is dead
                    client.close()
                    continue
                self._sockets += [client, server]
                for here, there in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(here, there), daemon=True).start()

    def _pump(self, here: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while data := here.recv(65536):
                while self.cut.is_set():
                    sleep(0.05)
                there.sendall(data)
        for each in (here, there):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
