"""Hand a long job from a tick to a separate process, which outlives the tick, and let that process take the job over.

Before any user code runs, the process takes over the lease with a compare-and-swap, and answers with one word on a
pipe. After "adopted" only the process owns the job. If no answer comes, the tick releases the job, but only if the
job's ``locked_by`` is still the tick's. So if the tick and the process both act, whichever acts second finds that it
has lost the lease.
"""

from __future__ import annotations

import json
import os
import queue
import select
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Final

from cronjobs.clock import SYSTEM, Clock
from cronjobs.engine.config.settings import JobTypeSettings, RunSettings, Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.retrying import patiently
from cronjobs.engine.execution.attempt import Attempt, Ended
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs.job_types import PROCESS_GRACE, JobType, policy_of
from cronjobs.engine.rules.lease import Lease
from cronjobs.engine.rules.recovery_policy import read_policy
from cronjobs.engine.store import leases
from cronjobs.engine.store.claims import held_by
from cronjobs.engine.store.sql import database_now
from cronjobs.errors import CronjobsError
from cronjobs.model import ExitCodes, Finished, Job, Released

if TYPE_CHECKING:
    import subprocess

# docs/how-to/long-work.md tells operators to signal long jobs by this name.
PROGRAM: Final = "cronjobs.engine.tick.long_job_process"
# This time is long, because a loaded host may take seconds to start an interpreter.
ANSWER_WITHIN_S: Final = 20.0
REAPED_WITHIN_S: Final = 0.1
ADOPTED: Final = "adopted"
# The answer if this host is already running as many long jobs as it may.
FULL: Final = "full"
STOPPED: Final = "the job was asked to stop before it began"
SILENT: Final = "no answer in time"


@dataclass(frozen=True)
class Handover:
    """The facts that a tick passes to a long job's process. The process reads everything else from the configuration
    file.
    """

    config: str
    database: str
    job_id: int
    job_type: str
    attempt: int
    locked_by: str
    timeout_s: float
    is_command: bool
    max_memory: int | None
    # Exit statuses of the command, as in ExitCodes.
    success: list[int]
    permanent: list[int]
    # The AttemptPolicy for the job's row, as JSON. The process also uses it to decide on a retry.
    row_policy: str
    # The ``setup`` that the tick called before it imported the handlers. A tick of manage.py sets up Django by itself.
    setup: str | None = None

    @classmethod
    def of(cls, settings: Settings, attempt: Attempt) -> Handover:
        job = attempt.job
        assert job.locked_by is not None
        runner = attempt.timeout + max(PROCESS_GRACE, settings.run.shutdown_grace)
        row_policy = replace(
            policy_of(attempt.job_type, settings.run, runner=runner), in_thread=False, retry_until=job.retry_until
        )
        return cls(
            config=str(settings.file),
            database=settings.database,
            job_id=job.id,
            job_type=job.job_type,
            attempt=job.attempt,
            locked_by=job.locked_by,
            timeout_s=attempt.timeout.total_seconds(),
            is_command=attempt.is_command,
            max_memory=attempt.job_type.max_memory,
            success=sorted(attempt.job_type.exit_codes.success),
            permanent=sorted(attempt.job_type.exit_codes.permanent),
            row_policy=row_policy.text(),
            setup=settings.setup,
        )

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Handover:
        return cls(**json.loads(data))

    def as_type(self, job_types: Mapping[str, JobTypeSettings]) -> JobType:
        """Return the job type as the tick knew it.

        For a command, reads the command's own settings from the file again. Raises CronjobsError if the file no
        longer declares the command.
        """
        declared = job_types.get(self.job_type)
        if self.is_command and (declared is None or declared.command is None):
            raise CronjobsError(f"the command {self.job_type} is no longer in {self.config}")
        policy = read_policy(json.loads(self.row_policy))
        assert policy is not None
        return JobType(
            self.job_type,
            timedelta(seconds=self.timeout_s),
            policy.retry,
            command=declared.command if declared else None,
            env=declared.env if declared else (),
            inherit_env=declared.inherit_env if declared else None,
            stdin=declared.stdin if declared else None,
            run_in=declared.run_in if declared else None,
            leftovers=declared.leftovers if declared else "end",
            isolation="process",
            max_memory=self.max_memory,
            exit_codes=ExitCodes(frozenset(self.success), frozenset(self.permanent)),
        )


# --- the tick's side --------------------------------------------------------------------------------------------------


@dataclass
class Handovers:
    """Starts the processes of long jobs, lists them in ``started``, and puts their answers on the loop's queue."""

    settings: Settings
    clock: Clock
    ended: queue.SimpleQueue[Ended | None]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def begin(self, attempt: Attempt, until: float) -> None:
        """Start a process for *attempt*. The process's answer is on the queue by *until*, on the monotonic clock."""
        attempt.handed_over = attempt.on_its_way = True
        # In a thread, because a process may take a second to start and answer, and the loop must renew its leases.
        thread = threading.Thread(target=self._hand_over, args=(attempt, until), name="cronjobs-handover", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            self._answer(attempt, f"cannot start a thread: {error}")

    def _hand_over(self, attempt: Attempt, until: float) -> None:
        try:
            process, reader = _start(Handover.of(self.settings, attempt))
            self.started.append(process)
            # The attempt may have been asked to stop while the process was starting.
            if attempt.stop.reason is not None:
                process.terminate()
            until = min(until, self.clock.monotonic() + ANSWER_WITHIN_S)
            with open(reader, "rb", buffering=0) as opened:
                answer = _read_line(opened.fileno(), self.clock, until) or _why_silent(process)
        except OSError as error:
            answer = f"cannot start a process: {error.strerror}"
        # Always put an answer on the queue. Otherwise the tick would wait for the answer until the tick's end.
        except Exception as error:
            answer = f"cannot start a process: {type(error).__name__}: {error}"
        self._answer(attempt, answer)

    def _answer(self, attempt: Attempt, answer: str) -> None:
        self.ended.put(Ended(attempt, Finished(attempt.job, Released()), self.clock.monotonic(), answer))


def _start(handover: Handover) -> tuple[subprocess.Popen[bytes], int]:
    reader, writer = os.pipe()
    try:
        process = start_apart(PROGRAM, handover.encode(), str(writer), pass_fds=(writer,))
    except OSError:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return process, reader


def start_apart(
    program: str, request: bytes, *arguments: str, pass_fds: tuple[int, ...] = ()
) -> subprocess.Popen[bytes]:
    """Start a program of ours that outlives this tick, with *request* as its standard input."""
    # Imported only here, because few ticks have a long job.
    import subprocess
    import tempfile

    with tempfile.TemporaryFile() as stdin:
        stdin.write(request)
        stdin.seek(0)
        # Do not inherit cron's pipes: cron sends its mail only when every process that holds its pipe has exited.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", program, *arguments],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=pass_fds,
            cwd="/",
            start_new_session=True,
        )


def _why_silent(process: subprocess.Popen[bytes]) -> str:
    import subprocess

    with suppress(subprocess.TimeoutExpired):
        # Wait a moment, because the pipe closes shortly before the process ends.
        status = process.wait(REAPED_WITHIN_S)
        how = f"exit status {status}" if status >= 0 else f"signal {-status}"
        return f"the job's process ended before it took the job over: {how}"
    return SILENT


def _read_line(descriptor: int, clock: Clock, until: float) -> str:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    said = b""
    while not said.endswith(b"\n"):
        left_s = until - clock.monotonic()
        if left_s <= 0 or not poller.poll(left_s * 1000):
            return ""
        part = os.read(descriptor, 4096)
        if not part:
            return ""
        said += part
    return said.decode(errors="replace").strip()


# --- the process's side -----------------------------------------------------------------------------------------------

ADOPT_TRIES: Final = 5
PAUSE_S: Final = 0.2


@dataclass(frozen=True)
class Adopted:
    """The job that we took over.

    ``sent`` is when we sent the statement that took the lease over, on the monotonic clock. ``now`` is the database's
    time.
    """

    job: Job
    sent: float
    now: datetime


def adopt(database: Database, handover: Handover, run: RunSettings) -> Adopted | None:
    """Take over the lease of a long job from the tick.

    Return None if the tick no longer has the job, or if too many long jobs already run on this host. If the reply to
    the COMMIT is lost, the call tries again, and finds out from the job's row whether we already have the lease. Raises
    DatabaseError.
    """
    identity = Identity.here()
    own = str(replace(identity, tick=leases.LONG + identity.tick))
    held = Lease(handover.job_id, handover.attempt, handover.locked_by)
    began = SYSTEM.monotonic()

    def take_over() -> Adopted | None:
        sent = SYSTEM.monotonic()
        with database.write() as connection:
            now = database_now(connection)
            job = next(iter(held_by(connection, own)), None)
            if job is not None:
                # An earlier try succeeded, so the lease may have begun as early as the first try.
                sent = began
            else:
                job = leases.adopt(
                    connection,
                    held,
                    locked_by=own,
                    lease=run.lease,
                    host=identity.host,
                    at_most=run.long_jobs,
                    policy=handover.row_policy,
                )
        return None if job is None else Adopted(job, sent, now)

    return patiently(take_over, worth=lambda _: True, pauses=repeat(PAUSE_S, ADOPT_TRIES - 1))
