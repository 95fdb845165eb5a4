"""Who holds a lease: host, boot, pid namespace, process and tick, so that a death can be proven where it happened."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from cronjobs.clock import process_started


@dataclass(frozen=True)
class Identity:
    """One tick on one host. ``str()`` is ``locked_by``: host:boot id:pid namespace:pid:process start:tick."""

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    started: str
    tick: str

    @classmethod
    def here(cls) -> Identity:
        return cls(
            # Containers get a new random name each time; CRONJOBS_HOST gives theirs a steady one.
            host=(os.environ.get("CRONJOBS_HOST") or socket.gethostname() or "localhost").replace(":", "-"),
            boot_id=_read("/proc/sys/kernel/random/boot_id"),
            pid_namespace=_namespace(),
            pid=os.getpid(),
            started=process_started(os.getpid()) or "0",
            tick=secrets.token_hex(6),
        )

    def __str__(self) -> str:
        return f"{self.host}:{self.boot_id}:{self.pid_namespace}:{self.pid}:{self.started}:{self.tick}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "-"


def _namespace() -> str:
    # Two containers share the host's boot id and count their pids separately.
    try:
        return str(Path("/proc/self/ns/pid").readlink()).removeprefix("pid:").strip("[]")
    except OSError:
        return "-"
