"""Start the supervisors of executors: processes that submit jobs to a cluster, and outlive the tick.

A host has one supervisor per combination of configuration file, executor and queue. For as long as the supervisor takes
jobs, it holds a lock file in the user's state folder. A tick itself never claims jobs whose type has an executor.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from cronjobs import events
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.host.files import make_folder
from cronjobs.engine.host.state_folder import state_folder
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.probe import state_files
from cronjobs.engine.store.not_started import lanes_due
from cronjobs.engine.tick.context import TickContext
from cronjobs.engine.tick.long_jobs import start_apart

# docs/how-to/long-work.md tells operators to signal the supervisor by this name.
PROGRAM: Final = "cronjobs.contrib.dask.supervisor"
NOT_INSTALLED: Final = "Dask is not installed: pip install 'cronjobs[dask]'"


@dataclass(frozen=True)
class Supervision:
    """The facts that a tick passes to a supervisor at its start.

    The supervisor reads everything else from the configuration file. If ``queue`` is None, the supervisor serves every
    queue.
    """

    config: str
    database: str
    executor: str
    queue: str | None = None
    setup: str | None = None  # see ``Handover.setup``

    @classmethod
    def of(cls, settings: Settings, executor: str, queue: str | None) -> Supervision:
        return cls(str(settings.file), settings.database, executor, queue, settings.setup)

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Supervision:
        facts = json.loads(data)
        return cls(**{each.name: facts[each.name] for each in fields(cls)})

    @property
    def lock_name(self) -> str:
        # Leave out ``setup``: a tick of manage.py has one, and another tick with the same file may have none.
        return f"executor-{sha256(replace(self, setup=None).encode()).hexdigest()[:24]}.lock"


class SupervisorLock:
    """The lock of the supervisor that takes jobs. After ``release``, the next tick can start another supervisor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def take(cls, supervision: Supervision, folder: Path | None = None) -> SupervisorLock | None:
        """Take the lock, or return None if another process has it. Raises OSError if the state folder is unusable."""
        descriptor = _open(folder or state_folder(), supervision.lock_name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return cls(descriptor)

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _open(folder: Path, name: str) -> int:
    make_folder(folder, 0o700)
    parent = state_files.open_folder(str(folder))
    try:
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
    finally:
        os.close(parent)


def begin_supervisors(tick: TickContext, types: JobTypes, started: list[subprocess.Popen[bytes]]) -> None:
    """Start the missing supervisors of executors that have due jobs. Add them to *started*: they outlive this tick."""
    far = {name: each.executor for name, each in types.types.items() if each.executor is not None}
    with tick.database.read() as connection:
        lanes = lanes_due(connection, types.runnable)
    limits = tick.limits
    due = {
        far[lane.job_type]
        for lane in lanes
        if lane.job_type in far
        and not lane.paused
        and limits.queue in (None, lane.queue)
        and limits.only in (None, lane.job_type)
    }
    for name in sorted(due) if tick.stop_requested is None else ():
        try:
            process = _begin(Supervision.of(tick.settings, name, limits.queue))
        except OSError as error:
            tick.emit(events.supervisor_not_started(name, f"{error.strerror or error}"))
            continue
        if process is not None:
            started.append(process)
            tick.emit(events.supervisor_started(name, process.pid))


def _begin(supervision: Supervision) -> subprocess.Popen[bytes] | None:
    """Start a supervisor, or return None if there is one already."""
    lock = SupervisorLock.take(supervision)
    if lock is None:
        return None
    # The new process takes the lock itself. If two ticks each start a process, the second process exits at once.
    lock.release()
    if find_spec("distributed") is None:
        raise OSError(NOT_INSTALLED)
    return start_apart(PROGRAM, supervision.encode())
