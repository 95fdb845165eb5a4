"""Start the command first, forward its output, pass our signals on to the command, and exit the way it exits.

The recorder needs the database and slow imports, so it is a separate process. Its failure changes neither the command
nor how we exit. This module imports only modules that load fast; a test lists them.
"""

from __future__ import annotations

import errno
import os
import time

# The C part of the signal module, because signal.py imports enum, which is slow.
from _signal import (  # type: ignore[import-not-found]
    SIG_DFL,
    SIG_IGN,
    SIG_UNBLOCK,
    SIGALRM,
    SIGCHLD,
    SIGHUP,
    SIGINT,
    SIGPIPE,
    SIGQUIT,
    SIGTERM,
    SIGUSR1,
    SIGUSR2,
    SIGXFSZ,
    getsignal,
    pthread_sigmask,
    set_wakeup_fd,
    signal,
)

from cronjobs.contrib.exec.arguments import USAGE, WrongArguments, read_arguments
from cronjobs.contrib.exec.copying import Copier, stay_for_the_others
from cronjobs.engine.probe.timer import open_standard_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from cronjobs.contrib.exec.arguments import ExecArguments

FORWARDED = (SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM)
BY_THE_TERMINAL = (SIGINT, SIGQUIT, SIGHUP)
NOT_FOUND, NOT_EXECUTABLE, USAGE_ERROR = 127, 126, 2


def run(arguments: Sequence[str]) -> NoReturn:
    """Run the command, record the run, and exit the way the command exits."""
    try:
        given = read_arguments(arguments)
    except WrongArguments as error:
        _say(f"{error}. Usage: {USAGE}")
        os._exit(USAGE_ERROR)
    closed: list[int] = []
    try:
        closed = open_standard_streams()
        supervised = Supervised(given, stdin_closed=0 in closed)
        supervised.prepare()
    except Exception:
        # We are out of file descriptors or memory. Run the command without recording the run.
        _become(given, closed)
    supervised.run()


class Supervised:
    """One run of the command. If *stdin_closed*, our caller closed stdin, so the command gets no stdin either."""

    def __init__(self, given: ExecArguments, *, stdin_closed: bool) -> None:
        self.given = given
        self.stdin_closed = stdin_closed
        self.child: int | None = None
        self.ended = False
        self.waiting: list[int] = []  # signals that arrived before the command started
        self.failure = ""
        self.mask: set[int] = set()  # the signal mask that our caller set; the command inherits it

    def prepare(self) -> None:
        """Do everything that may fail, before the command starts."""
        _hide_arguments()
        self.copier = Copier()
        os.set_blocking(self.copier.wake[1], False)
        set_wakeup_fd(self.copier.wake[1], warn_on_full_buffer=False)
        # Catch SIGCHLD even if our caller ignores or blocks it, because SIGCHLD wakes us when the command has ended.
        signal(SIGCHLD, lambda number, frame: None)
        self.mask = pthread_sigmask(SIG_UNBLOCK, {SIGCHLD})
        for number in FORWARDED:
            # Keep ignoring a signal that our caller ignores, as nohup ignores SIGHUP.
            if getsignal(number) != SIG_IGN:
                signal(number, self._forward)

    def run(self) -> NoReturn:
        began = (time.time(), time.monotonic())
        status = self._start()
        self.copier.release_writers()
        from cronjobs.contrib.exec.recording import Recording  # do not delay the command by this import

        recording = Recording(self.given, began)
        if status is None:
            recording.begin()
            status = self._wait()
            left = self.copier.take_the_rest()
            self.ended = True  # before we reap the process, because another process may then get its pid
            assert self.child is not None
            os.waitpid(self.child, 0)
            if left:
                stay_for_the_others(left)
        unrecorded = recording.end(status, self.copier.tail, self.failure)
        if unrecorded:
            _say(f"this run of {self.given.name} was not recorded: {unrecorded}")
        elif recording.refused and recording.is_worth_reporting():
            _say(
                f"runs of {self.given.name} wait in the state folder, because cronjobs cannot use the configuration of "
                f"the project that should record them: {recording.refused}"
            )
        if self.given.cron is not None and (fault := cron_fault(self.given.cron)):
            said = f'--cron "{self.given.cron}": {fault}'
            _say(f"{said}. So nobody will notice if {self.given.name} does not run")
        _end_as(status)

    # --- the command ------------------------------------------------------------------------------------------------

    def _start(self) -> int | None:
        """Start the command and return None. If the start fails, return the wait status that a shell would report."""
        argv = self.given.argv
        try:
            try:
                self.child = self._spawn(argv)
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
                # The file is a script without "#!". Run it with sh, as a shell does.
                self.child = self._spawn(["/bin/sh", *argv])
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", None)
            code = NOT_FOUND if number in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE
            self.failure = "not found" if code == NOT_FOUND else os.strerror(number) if number else str(error)
            _say(f"{argv[0]}: {self.failure}")
            return code << 8
        waiting, self.waiting = self.waiting, []
        for number in waiting:
            self._send(number)
        return None

    def _spawn(self, argv: list[str]) -> int:
        out, err = self.copier.writers
        streams: list[Any] = [(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2)]
        if self.stdin_closed:
            streams.append((os.POSIX_SPAWN_CLOSE, 0))
        return os.posix_spawnp(
            argv[0],
            argv,
            environment(),
            file_actions=streams,
            setsigmask=self.mask,
            setsigdef=[SIGPIPE, SIGXFSZ],  # Python ignores these two signals, but the command must not
        )

    def _wait(self) -> int:
        """Forward output until the command ends. Return its wait status, but do not reap its process yet."""
        assert self.child is not None
        found: Any = None
        while found is None:
            try:
                self.copier.copy_until_woken()
            except (MemoryError, OSError):  # drop the kept output, but keep forwarding
                self.copier.tail.clear()
            found = os.waitid(os.P_PID, self.child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        exited: bool = found.si_code == os.CLD_EXITED
        number: int = found.si_status
        return (number & 0xFF) << 8 if exited else number

    # --- signals ----------------------------------------------------------------------------------------------------

    def _forward(self, number: int, frame: Any) -> None:
        if self.child is None:
            self.waiting.append(number)
        elif not self.ended and not _from_the_terminal(number):
            self._send(number)

    def _send(self, number: int) -> None:
        assert self.child is not None
        try:
            os.kill(self.child, number)
        except OSError:
            pass


def _hide_arguments() -> None:
    """Blank the words after "exec" in the command line of this process, and so of the recorder forked from it.

    Otherwise ``pgrep -f`` in the command would find exec, and a script that exits if ``pgrep -f`` finds its own name
    would never work.
    """
    try:
        with open("/proc/self/stat", "rb", buffering=0) as file:
            fields = file.readall().rpartition(b")")[2].split()
        begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end in proc(5)
        memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            before, word, after = os.pread(memory, end - begin, begin).partition(b"\0exec\0")
            os.pwrite(memory, bytes(len(after)), begin + len(before + word))
        finally:
            os.close(memory)
    except (OSError, ValueError, IndexError):  # for example, there is no /proc; then the arguments stay visible
        pass


def _from_the_terminal(number: int) -> bool:
    """Whether the terminal sent the signal to our whole process group, so that the command has received it too."""
    if number not in BY_THE_TERMINAL:
        return False
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def cron_fault(expression: str) -> str | None:
    """Return the fault of the --cron expression, or None if the expression is valid.

    Call this only after the command has ended, because it imports the cron parser, which is slow.
    """
    try:
        from cronjobs.engine.crontime import grammar

        grammar.parse(expression)
    except Exception as error:
        # Catch everything, even MemoryError or a full disk, because no error may change the command's exit code.
        return str(error)
    return None


def environment() -> dict[bytes, bytes]:
    """Return the environment that this process started with. Python may have added LC_CTYPE to os.environ (PEP 538)."""
    try:
        with open("/proc/self/environ", "rb", buffering=0) as file:
            entries = file.readall().split(b"\0")
    except OSError:
        return dict(os.environb)
    found: dict[bytes, bytes] = {}
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        if equals and name:
            found.setdefault(name, value)
    return found


def _become(given: ExecArguments, closed: Sequence[int]) -> NoReturn:
    """Replace this process with the command. First close again the standard streams in *closed*, which we opened."""
    for descriptor in closed:
        os.close(descriptor)
    for number in (SIGPIPE, SIGXFSZ):
        signal(number, SIG_DFL)
    argv = given.argv
    try:
        os.execvpe(argv[0], argv, environment())
    except OSError as error:
        _say(f"{argv[0]}: {error.strerror}")
        os._exit(NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE)


def _end_as(status: int) -> NoReturn:
    """Exit with the command's exit code, or kill ourselves with the signal that killed the command."""
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    try:
        import resource

        # Only the command's core dump is useful, so dump none for this process.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal(number, SIG_DFL)
    except Exception:  # nobody can set a handler for SIGKILL
        pass
    try:
        pthread_sigmask(SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    except Exception:
        pass
    # The signal may not kill this process, for example if it is ignored.
    time.sleep(0.1)
    os._exit(128 + number)


def _say(text: str) -> None:
    try:
        os.write(2, f"cronjobs exec: {text}\n".encode(errors="replace"))
    except OSError:
        pass
