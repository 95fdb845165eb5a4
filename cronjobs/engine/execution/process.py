"""Run one attempt of a command or a handler in its own process: start, watch and stop that process.

A command is an argument list, never a shell. The payload goes to standard input and nowhere else, so none of its values
can become an option or a command. A handler runs in ``child``. We start both through ``launcher``, which is responsible
for every process that they start, and makes sure that all of these die with this process. This module makes all
decisions. The docstrings of ``run_command`` and ``run_handler`` state the rules.

Output goes to a file, never to a pipe. With a pipe, ``communicate()`` would wait for every process that inherited the
pipe, and the command would have to wait whenever the runner is busy. The file has no name, so it disappears whichever
process dies.

On macOS and other POSIX systems, two things do not work. A process that leaves the command's process group is not
found, and the command survives a kill -9 of the *launcher*.
"""

from __future__ import annotations

import codecs
import fcntl
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from cronjobs.clock import SYSTEM, Clock
from cronjobs.engine.execution.child_protocol import read_outcome, read_progress, write_reason
from cronjobs.engine.execution.command import Command
from cronjobs.engine.execution.process_outcome import (
    DISK_LIMIT,
    ProcessEnding,
    last_line_of,
    outcome_of_process,
    sentence,
    timed_out_words,
)
from cronjobs.engine.jobs.context import StopSignal
from cronjobs.engine.rules.progress import HowFar
from cronjobs.model import ExitCodes, Failed, Job, Outcome, Released, Succeeded, TimedOut, in_zone
from cronjobs.text import OUTPUT_LIMIT, CappedText, clean

# We notice a request to stop after at most this time. We notice the end of a command at once.
POLL_S: Final = 0.05
# Processes that the command leaves behind may be about to end, as ``tee`` in bash's ``> >(tee log)`` is. Wait this long
# for them.
LEFTOVER_PAUSE_S: Final = 0.5
LEFTOVER_GRACE_S: Final = 2.0
# After a handler's process has written its outcome, the process's exit callbacks get this much time.
EXIT_GRACE_S: Final = 5.0
# Wait this long for the launcher after ordering SIGKILL. The launcher itself gives up after 3 s.
LAUNCHER_GRACE_S: Final = 5.0
CHILD: Final = "cronjobs.engine.execution.child"
LAUNCHER: Final = Path(__file__).with_name("launcher.py")
# All processes of a command inherit this environment variable, whose value is unique to the command.
MARK: Final = "CRONJOBS_PROCESS"
# The rounds take 3 s. Processes that survive them belong to another user, or are stuck in the kernel.
END_ROUNDS, END_PAUSE_S = 300, 0.01


class NoRoom(Exception):
    """The host had no process, descriptor or disk space left. The command has not started, so no try is used up."""


def command_environment(base: Mapping[str, str], job: Job, deadline: datetime) -> dict[str, str]:
    """Return *base* with the job's facts as ``CRONJOBS_…`` variables. Leaves out variables for which the job has no
    value.

    Instants are ISO 8601. ``CRONJOBS_SCHEDULED_FOR`` is in the timezone of the schedule, so that its date is the right
    day.
    """
    timezone = ZoneInfo(job.timezone)
    facts = {
        "CRONJOBS_JOB_ID": str(job.id),
        "CRONJOBS_JOB_TYPE": job.job_type,
        "CRONJOBS_ATTEMPT": str(job.attempt),
        "CRONJOBS_SCHEDULE": job.schedule,
        "CRONJOBS_SCHEDULED_FOR": in_zone(job.scheduled_for, timezone).isoformat() if job.scheduled_for else None,
        "CRONJOBS_STANDS_FOR": str(job.stands_for),
        "CRONJOBS_IDEMPOTENCY_KEY": job.idempotency_key,
        "CRONJOBS_DEADLINE": deadline.isoformat(),
    }
    # If another job's command started this runner, *base* has the variables of that job.
    env = {name: value for name, value in base.items() if name not in facts}
    return env | {name: clean(value) for name, value in facts.items() if value is not None}


def run_command(command: Command, stop: StopSignal, *, clock: Clock) -> tuple[Outcome, str | None]:
    """Run *command* to its end. Return its outcome and its output, cleaned and capped, or None if it printed nothing.

    At the timeout, or when *stop* has a reason, the command and all processes that it started get SIGTERM, and after
    the grace period SIGKILL. If the lease is lost, all these processes get SIGKILL at once, because another runner may
    already be starting the job. The command's result counts only if it ended before SIGTERM. An exit status 0 after
    SIGTERM may only mean that the command stopped as asked, so counting it as success could lose work.

    Also ends the processes that the command leaves running, and names them in the output. They do not make the command
    fail. With ``leave_running``, these processes keep running, unless the command was stopped.

    If the command could not be started, the attempt fails and is retried, because a file may be missing only while a
    deploy replaces that file. If the host had no room for a process, or the lease ended before the command could start,
    the job is released, and no try is used up.
    """
    try:
        end = _attend(command, stop, clock)
    except NoRoom as error:
        return Released(sentence(f"cannot start a process for the command: {error}")), None
    # The command cannot be started, for example because an argument contains a character that exec refuses.
    except (OSError, ValueError) as error:
        return Failed(sentence(f"the command could not be started: {error}"), "StartError"), None
    output = end.output.text()
    return outcome_of_process(command, end.ending, end.reason, last_line_of(output)), output


def run_handler(
    command: Command,
    stop: StopSignal,
    *,
    clock: Clock,
    report: Callable[[HowFar, float], None],
) -> tuple[Outcome, str | None]:
    """Run a Python handler in its own interpreter, by the rules for commands. Return its outcome and output.

    *command* is complete except for its ``argv``, and its ``stdin`` is a ``Request``. Calls *report* with the handler's
    progress, and the instant of the monotonic clock at which we read it.

    The handler's result or exception is passed on unchanged. A result counts even after SIGTERM. Unlike an exit status
    0, a result shows that the handler was not stopped early. To make sure of that, only the handler's own process gets
    SIGTERM. If a process that the handler started with ``subprocess.run`` also got SIGTERM, the handler might not
    detect that, and might return as if all the work were done. After writing the outcome, the process has
    ``EXIT_GRACE_S`` for its exit callbacks. Then we kill it, because a callback that hangs would delay the outcome
    past the end of the tick. If a process ends without an outcome, it has crashed, and the failure is named after the
    signal. If the process could not be started at all, the job is released, and no try is used up.
    """
    with ExitStack() as files:
        try:
            answer = files.enter_context(tempfile.TemporaryFile())
            progress_file = files.enter_context(tempfile.TemporaryFile())
        except OSError as error:
            return Released(sentence(f"cannot start a process for the handler: {error}")), None
        descriptors = (answer.fileno(), progress_file.fileno())
        command = replace(
            command,
            # -P: do not import from the working folder first, because a user's file there may have the name of a
            # library module. -u: write everything that the handler prints to the file at once, so that nothing is lost
            # if the handler is killed.
            argv=(sys.executable, "-P", "-u", "-m", CHILD, *map(str, descriptors)),
            exit_codes=ExitCodes(success=frozenset(), permanent=frozenset()),
            keep_open=descriptors,
            term_alone=True,
            called="the handler's process",
        )
        try:
            tell, forward = partial(write_reason, answer.fileno()), _progress_of(progress_file.fileno(), report, clock)
            has_outcome = False

            def look() -> bool:
                nonlocal has_outcome
                forward()
                has_outcome = has_outcome or read_outcome(answer.fileno()) is not None
                return has_outcome

            end = _attend(command, stop, clock, tell, look)
        except NoRoom as error:
            return Released(sentence(f"cannot start a process for the handler: {error}")), None
        except OSError as error:
            return Failed(sentence(f"the job's process could not be watched: {error}"), "StartError"), None
        if end.ending.failure is not None and not end.ending.late:
            why = os.strerror(end.ending.failure[1])
            return Released(sentence(f"cannot start an interpreter for the handler: {why}")), None
        said = read_outcome(answer.fileno())
    if said is not None and end.ending.stopped and end.reason is None:
        end.output.write("\n[cronjobs] killed, because the process did not exit after its handler had ended\n")
    output = end.output.text()
    if isinstance(said, TimedOut):
        # Name the whole timeout: the child measured the time only from its own start.
        said = replace(said, error=timed_out_words(command.timeout))
    if isinstance(said, Succeeded) or (said is not None and (end.reason is None or not end.ending.stopped)):
        return said, output
    if end.reason is None and end.ending.status == 0:
        text = "the job's process ended with exit status 0 before the handler had ended"
        return Failed(sentence(text), "exit-0"), output
    # After a crash, the last lines of the output come from faulthandler. Do not quote such a line in the error.
    crashed = end.ending.status is not None and end.ending.status < 0
    outcome = outcome_of_process(command, end.ending, end.reason, "" if crashed else last_line_of(output))
    if isinstance(outcome, TimedOut) and isinstance(said, TimedOut | Failed):
        outcome = replace(outcome, traceback=said.traceback)
    return outcome, output


def _progress_of(descriptor: int, report: Callable[[HowFar, float], None], clock: Clock) -> Callable[[], None]:
    """Return a callback that forwards the child's latest progress."""
    seen = None

    def look() -> None:
        nonlocal seen
        latest = read_progress(descriptor)
        if latest is not None and latest != seen:
            seen = latest
            report(latest[1], clock.monotonic())

    return look


class _NewOutput(NamedTuple):
    """New output of a process: ``text``, which follows ``left_out`` bytes that we never read."""

    left_out: int
    text: str


@dataclass(frozen=True)
class _End:
    """The end of a process. ``reason`` is why we stopped the process, or None if we did not stop it."""

    ending: ProcessEnding
    reason: str | None
    output: CappedText


def _attend(
    command: Command,
    stop: StopSignal,
    clock: Clock,
    tell: Callable[[str], None] = lambda _reason: None,
    look: Callable[[], bool] = lambda: False,
) -> _End:
    """Start *command*, unless *stop* already has a reason, and wait until none of its processes is left.

    Calls *tell* with the reason before SIGTERM, and *look* every ``POLL_S`` seconds. *look* returns whether the handler
    has ended.
    """
    if stop.reason is not None:
        return _End(ProcessEnding(), stop.reason, CappedText())
    # The timeout begins here, so it includes the start of the process, which may take seconds on a busy machine.
    began = clock.monotonic()
    limit_at = began + (command.timeout + command.grace).total_seconds() + 1
    leased_until = _for_launcher(command.lease(), clock) if command.lease is not None else None
    try:
        started = _Child(command, _for_launcher(limit_at, clock), leased_until)
    # The host has no process, no descriptor or no temporary file left.
    except (OSError, MemoryError) as error:
        raise NoRoom(str(error) or type(error).__name__) from error
    with started as child:
        reason = _watch(child, command, stop, clock, began + command.timeout.total_seconds(), tell, look)
        output = child.output()
    if child.ending.signalled and child.ending.status is not None and not child.ending.stopped:
        names = ", ".join(child.ending.signalled)
        output.write(f"\n[cronjobs] ended processes that {command.called} left running: {names}\n")
    return _End(child.ending, reason, output)


def _watch(
    child: _Child,
    command: Command,
    stop: StopSignal,
    clock: Clock,
    deadline: float,
    tell: Callable[[str], None],
    look: Callable[[], bool],
) -> str | None:
    """Wait until none of the command's processes is left. Return why we stopped it, or None if we did not.

    *deadline* is the instant of the monotonic clock at which the command times out.
    """
    kill_by = deadline + command.grace.total_seconds()
    reason: str | None = None
    ended = False
    # If the command has to end: the orders to send to the launcher, each with the instant at which to send it.
    plan: deque[tuple[float, bytes]] = deque()
    wait = POLL_S
    lease, on_output = command.lease, command.on_output
    watched = on_output is not None or command.output is not None
    leased_until = lease() if lease is not None else 0.0
    while not child.gone:
        child.listen(wait)
        if lease is not None and (until := lease()) > leased_until:
            leased_until = until
            child.order(_RENEWED + int(_for_launcher(until, clock) * 1000).to_bytes(8, "big"))
        if news := child.new_output() if watched else None:
            if command.output is not None:
                if news.left_out:
                    command.output.skip(news.left_out)
                command.output.write(news.text)
            if on_output is not None:
                on_output(news.text)
        has_outcome = look()
        now = clock.monotonic()
        if not ended and child.ending.status is not None:
            ended = True
            if not plan or (command.term_alone and now < kill_by):
                pause = now + LEFTOVER_PAUSE_S
                plan = _steps(pause, max(pause, min(pause + LEFTOVER_GRACE_S, kill_by)))
        elif not ended and reason is None and (reason := _why_stop(child, stop, now >= deadline)):
            tell(reason)
            kill_by = now + command.grace_for(reason).total_seconds()
            plan = _steps(now, kill_by, _TERM_COMMAND if command.term_alone else _TERM)
        elif has_outcome and not plan:
            plan = deque([(now + EXIT_GRACE_S, _KILL), (now + EXIT_GRACE_S + LAUNCHER_GRACE_S, _GIVE_UP)])
        while plan and plan[0][0] <= now:
            _, order = plan.popleft()
            child.order(order)
            if order == _GIVE_UP:
                return reason
        wait = min(POLL_S, max(0.0, plan[0][0] - now)) if plan else POLL_S
    return reason


_TERM_COMMAND: Final = b"C"
_TERM: Final = b"T"
_KILL: Final = b"K"
# This order is followed by the end of the lease, in milliseconds of the system's monotonic clock.
_RENEWED: Final = b"R"
# Not an order to send: stop waiting, because the launcher itself does not answer.
_GIVE_UP: Final = b""


def _for_launcher(instant: float, clock: Clock) -> float:
    """Convert *instant* from *clock* to the system's monotonic clock, which the launcher also reads."""
    # Read the system's clock first. Then a freeze between the two calls makes the instant earlier, and never later.
    return max(0.0, SYSTEM.monotonic() - clock.monotonic() + instant)


def _steps(term_at: float, kill_at: float, term: bytes = _TERM) -> deque[tuple[float, bytes]]:
    return deque([(term_at, term), (kill_at, _KILL), (kill_at + LAUNCHER_GRACE_S, _GIVE_UP)])


def _why_stop(child: _Child, stop: StopSignal, overdue: bool) -> str | None:
    if stop.reason is not None:
        return stop.reason
    if overdue:
        return "timeout"
    return "too much output" if child.disk_used() > DISK_LIMIT else None


def end_marked(mark: bytes) -> None:
    """Kill all processes that have *mark* in their environment, until none is left.

    This is needed only if the launcher was killed.
    """
    for _ in range(END_ROUNDS if hasattr(os, "pidfd_open") else 0):
        numbers = [int(each.name) for each in os.scandir("/proc") if each.name.isdecimal()]
        ended = [number for number in numbers if _kill_if_marked(number, mark)]
        if not ended:
            return
        time.sleep(END_PAUSE_S)


def _kill_if_marked(pid: int, mark: bytes) -> bool:
    try:
        # Open the process before reading its environment, because another process may get this pid in between.
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if mark not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    # The process belongs to another user, or is gone.
    except OSError:
        return False
    finally:
        os.close(process)
    return True


# --- the launcher's other end ----------------------------------------------------------------------------------------


class _Child:
    """The launcher, its socket, and the command's files. Leaving the ``with`` block ends all remaining processes."""

    def __init__(self, command: Command, limit_at: float, leased_until: float | None) -> None:
        self.ending = ProcessEnding()
        self.gone = False
        self._unread = b""
        self._shown = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._mark = os.urandom(16).hex()
        spec = marshal.dumps(
            (
                [os.fsencode(argument) for argument in command.argv],
                {os.fsencode(name): os.fsencode(value) for name, value in {**command.env, MARK: self._mark}.items()},
                os.fsencode(command.folder),
                limit_at,
                command.max_memory or 0,
                leased_until,
                command.leave_running,
            )
        )
        # Use a file: if the payload is larger than a pipe's buffer, writing it to a pipe would block.
        with tempfile.TemporaryFile() as stdin:
            stdin.write(command.stdin)
            stdin.seek(0)
            self._output = tempfile.TemporaryFile()  # noqa: SIM115 closed by __exit__
            # A command such as ``echo >/dev/stderr`` truncates the output file. Without O_APPEND, the next write would
            # begin at the old offset, after a gap of NULs.
            fcntl.fcntl(self._output, fcntl.F_SETFL, fcntl.fcntl(self._output, fcntl.F_GETFL) | os.O_APPEND)
            self._channel, theirs = socket.socketpair()
            # With gevent, new sockets are non-blocking. Make this one blocking, because the launcher inherits it.
            os.set_blocking(theirs.fileno(), True)
            try:
                with theirs:
                    # With -I and -S, the launcher ignores PYTHON… variables and site-packages, and starts in a third of
                    # the time. The launcher gets its own session, because a Ctrl-C at our terminal, or a kill of our
                    # process group, must reach only us.
                    self._launcher = subprocess.Popen(
                        [sys.executable, "-I", "-S", str(LAUNCHER), str(theirs.fileno()), str(os.getpid())],
                        stdin=stdin if command.stdin else subprocess.DEVNULL,
                        stdout=self._output,
                        stderr=self._output,
                        pass_fds=[theirs.fileno(), *command.keep_open],
                        start_new_session=True,
                    )
            except BaseException:
                self._channel.close()
                self._output.close()
                raise
        self.order(len(spec).to_bytes(8, "big") + spec)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        # When this end of the socket closes, the launcher kills whatever is left.
        self._channel.close()
        try:
            self._launcher.wait(None if self.gone else LAUNCHER_GRACE_S)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
        if self.ending.status is None and self.ending.pid is not None and self._launcher.returncode != 0:
            # The launcher was killed. PR_SET_PDEATHSIG has killed the command, but perhaps not the rest of its group.
            try:
                os.killpg(self.ending.pid, signal.SIGKILL)
            except OSError:
                pass
            end_marked(f"{MARK}={self._mark}".encode())
        self._output.close()

    def order(self, order: bytes) -> None:
        try:
            self._channel.sendall(order)
        # The launcher is gone. listen() will detect that.
        except OSError:
            pass

    def listen(self, timeout_s: float) -> None:
        """Wait at most *timeout_s* for a report from the launcher, and read what has arrived."""
        if not self._has_news(timeout_s):
            # A forked copy of this process (multiprocessing) may keep the other end open, so the stream may not end
            # when the launcher does. Before counting the launcher as gone, look for a last report.
            self.gone = self._launcher.poll() is not None and not self._has_news(0)
            return
        try:
            data = self._channel.recv(65536)
        # The launcher died before it had read one of our orders.
        except ConnectionResetError:
            data = b""
        self.gone = not data
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._report(*line.decode().split("\t"))

    def _has_news(self, timeout_s: float) -> bool:
        # eventlet removes select.poll, so use select.select there.
        if not hasattr(select, "poll"):
            return bool(select.select([self._channel], [], [], timeout_s)[0])
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def _report(self, kind: str, *fields: str) -> None:
        match kind:
            case "started":
                self.ending.pid = int(fields[0])
            case "failed":
                self.ending.failure = (fields[0], int(fields[1]))
            case "exited":
                self.ending.status, self.ending.stopped = int(fields[0]), fields[1] == "1"
            case "signalled":
                self.ending.signalled = self.ending.signalled or fields
            case "left":
                self.ending.left = fields

    def disk_used(self) -> int:
        # POSIX does not define the unit of st_blocks, but it is 512 bytes on every system.
        return os.fstat(self._output.fileno()).st_blocks * 512

    def output(self) -> CappedText:
        """Return the output. If it is long, read only its beginning and its end."""
        text = CappedText(OUTPUT_LIMIT)
        fd = self._output.fileno()
        size = os.fstat(fd).st_size
        if size <= OUTPUT_LIMIT:
            text.write(os.pread(fd, size, 0).decode(errors="replace"))
            return text
        half = OUTPUT_LIMIT // 2
        text.write(os.pread(fd, half, 0).decode(errors="replace"))
        text.skip(size - 2 * half)
        text.write(os.pread(fd, half, size - half).decode(errors="replace"))
        return text

    def new_output(self) -> _NewOutput | None:
        """Return what has been printed since the last call, or None. If that is long, return only its end."""
        fd = self._output.fileno()
        size = os.fstat(fd).st_size
        if size == self._shown:
            return None
        shown = self._shown if self._shown <= size else 0
        start = max(shown, size - OUTPUT_LIMIT)
        self._shown = size
        return _NewOutput(start - shown, self._decoder.decode(os.pread(fd, size - start, start)))
