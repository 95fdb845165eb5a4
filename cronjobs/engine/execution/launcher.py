"""Starts one command and is responsible for every process that the command starts. Run as a script, never imported.

    runner ──socket── launcher ── command ── what it starts, and what that starts …

The launcher is a separate process because nothing else works when the runner gets a kill -9: a SIGKILLed process cannot
kill others, PR_SET_PDEATHSIG reaches the direct child only, and a ``preexec_fn`` may deadlock beside threads
(subprocess's docs). The launcher is as simple as possible and makes no decisions: the runner says when to send signals,
and the launcher knows which processes to send them to.

- **No process escapes.** The launcher is a subreaper (PR_SET_CHILD_SUBREAPER, prctl(2)): a process that the command
  started, in whichever session, becomes the launcher's child when its own parent dies. So "no children" (ECHILD) means
  that nothing is left. With ``leave_running``, and only then, the launcher lets the remaining processes run on when the
  command has ended on its own.
- **Death with the runner.** When the runner dies, its end of the socket closes and everything is killed. If a forked
  copy of the runner keeps that end open, ``getppid`` shows that the runner is dead. Neither check depends on the thread
  that started this process, as PR_SET_PDEATHSIG would. If this process is killed, PDEATHSIG kills at least the command.
- **A frozen runner** (SIGSTOP) sends no orders. Then a kernel timer kills everything at timeout + grace, or before the
  lease ends, since another runner may take the job after that. The runner reports each renewal of the lease.
- **Disk.** The command's output is our standard output: one unlinked file, whose middle is freed as it grows.

Orders: C sends SIGTERM to the command, T to all processes; K sends SIGKILL until all are gone; R and eight bytes give
the milliseconds that are left of the lease. Reports are lines of tab-separated fields: ``failed WHERE ERRNO`` (nothing
was started); ``started PID``; ``signalled NAME…``; ``exited CODE STOPPED``, where STOPPED says whether the command was
signalled before it ended; ``left NAME…`` (processes that could not be killed). Then the stream ends.

Systems other than Linux have neither a subreaper nor PDEATHSIG, so only the command's process group is killed there.
Every import here delays every command, so this module does without typing (4 ms), pathlib and socket.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import select
import signal
import sys
import time

TICK_MS = 100  # how often to look at the output's size and at our parent
KILL_TICK_MS = 10
KILL_ROUNDS = 300  # 3 s; processes left after that belong to another user, or are stuck in the kernel
KEEP_AT_EACH_END = 1024 * 1024  # bytes that stay on disk at each end of the output; more than is ever read
MAX_NAMES = 8  # in a report; this few fit into the socket's buffer, so no report blocks on a frozen runner

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
FALLOC_FL_KEEP_SIZE = 1  # linux/falloc.h
FALLOC_FL_PUNCH_HOLE = 2

LINUX = sys.platform.startswith("linux")
libc = ctypes.CDLL(None)
if LINUX:
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]

Process = tuple[int, int, str]  # pid, process group, name


class Launcher:
    def __init__(self, channel: int, parent: int) -> None:
        self.channel = channel
        self.parent = parent
        self.subreaper = LINUX and libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        self.wakeups = wake_on_signals()
        self.command = 0  # its pid, which is also its process group and session
        self.ended = False  # the command ended
        self.stopped = False  # the command was signalled
        self.killing = False
        self.limit_at = 0.0  # monotonic
        self.orders_unread = b""
        self.punched = 0  # the output's middle is freed up to this offset

    def run(
        self,
        argv: list[bytes],
        env: dict[bytes, bytes],
        folder: bytes,
        limit_s: float,
        max_memory: int,
        leased_s: float | None,
        leave_running: bool,
    ) -> None:
        if not self.start(argv, env, folder, max_memory):
            return
        self.limit_at = time.monotonic() + limit_s
        self.stand_at_end_of(leased_s)  # after the fork; a child would not inherit the timer anyway: fork(2)
        poller = select.poll()
        poller.register(self.channel, select.POLLIN)
        poller.register(self.wakeups, select.POLLIN)
        rounds = 0
        while self.anyone_left():
            if self.ended and leave_running and not self.stopped:
                return  # the remaining processes become children of init, or of a subreaper above us
            if self.killing:
                self.signal_all(signal.SIGKILL, tell=rounds == 0)
                rounds += 1
            if rounds > KILL_ROUNDS:
                self.report("left", *names(descendants(os.getpid())))
                return
            self.punch_output()
            ready = [fd for fd, _ in poller.poll(KILL_TICK_MS if self.killing else TICK_MS)]
            woken_by = os.read(self.wakeups, 4096) if self.wakeups in ready else b""
            if self.channel in ready and not self.read_orders():
                poller.unregister(self.channel)
                self.killing = True
            if signal.SIGALRM in woken_by or os.getppid() != self.parent:
                self.killing = True

    def read_orders(self) -> bool:
        """Carry out the runner's orders; return whether the runner is still alive."""
        try:
            data = os.read(self.channel, 64)
        except OSError:
            data = b""
        self.orders_unread += data
        while self.orders_unread:
            order = self.orders_unread[:1]
            if order == b"R" and len(self.orders_unread) < 9:
                break
            if order == b"R":
                self.stand_at_end_of(int.from_bytes(self.orders_unread[1:9], "big") / 1000)
            elif order == b"C" and self.anyone_left() and not self.ended:
                self.stopped = True
                send(os.kill, self.command, signal.SIGTERM)
                send(os.kill, self.command, signal.SIGCONT)
            elif order == b"T" and self.anyone_left():
                self.signal_all(signal.SIGTERM, tell=True)
            elif order == b"K":
                self.killing = True
            self.orders_unread = self.orders_unread[9 if order == b"R" else 1 :]
        return bool(data)

    def stand_at_end_of(self, leased_s: float | None) -> None:
        """Set the kernel's timer to the time limit or the end of the lease, whichever comes first.

        If *leased_s* is None, no lease limits the command.
        """
        left_s = self.limit_at - time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, max(0.001, left_s if leased_s is None else min(left_s, leased_s)))

    def start(self, argv: list[bytes], env: dict[bytes, bytes], folder: bytes, max_memory: int) -> bool:
        """Fork and exec the command; report and return whether that worked."""
        outcome, failure = os.pipe()  # both ends close on exec, so end of file means that exec succeeded
        launcher = os.getpid()
        self.command = os.fork()  # this process has one thread, so the forked copy holds no other thread's lock
        if self.command == 0:
            become(argv, env, folder, max_memory, launcher, failure)
        os.close(failure)
        failed = os.read(outcome, 64)
        os.close(outcome)
        if failed:
            self.report("failed", *failed.decode().split())
            return False
        self.report("started", str(self.command))
        return True

    def anyone_left(self) -> bool:
        """Reap dead children, report the command's end, and return whether any process is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return not self.subreaper and group_lives(self.command)
            if pid == 0:
                return True
            if pid == self.command:
                self.ended = True
                self.report("exited", str(os.waitstatus_to_exitcode(status)), str(int(self.stopped)))

    def signal_all(self, number: int, tell: bool) -> None:
        """Signal every descendant once. Processes forked in the meantime are caught in the next round."""
        self.stopped = True
        everyone = descendants(os.getpid()) if self.subreaper else []
        if tell:
            self.report("signalled", *names(everyone))
        # Signal the group in one call, so that no member can fork out of it half-way. Then list the processes outside
        # the group again: with the old list, a process that called setsid in between would get no signal, or two.
        if not self.ended or not self.subreaper or self.command in [group for _, group, _ in everyone]:
            send(os.killpg, self.command, number)
        for pid, group, _ in descendants(os.getpid()) if self.subreaper else ():
            if group != self.command:
                send(os.kill, pid, number)
            send(os.kill, pid, signal.SIGCONT)  # a stopped process would act on SIGTERM only after SIGCONT

    def punch_output(self) -> None:
        """Free the disk space under the output's middle.

        The file keeps its size, so the reader knows how much is missing.
        """
        size = os.fstat(1).st_size
        if size < self.punched:  # the command truncated the file (``> /dev/stdout``)
            self.punched = 0
        start = max(self.punched, KEEP_AT_EACH_END)
        end = size - KEEP_AT_EACH_END
        if LINUX and end - start >= KEEP_AT_EACH_END:
            # A file system without holes returns EOPNOTSUPP; then the runner's limit on output ends the command.
            libc.fallocate(1, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, end - start)
            self.punched = end

    def report(self, *fields: str) -> None:
        try:
            os.write(self.channel, ("\t".join(fields) + "\n").encode())
        except OSError:  # the runner is gone; ``read_orders`` will notice
            return


def become(
    argv: list[bytes], env: dict[bytes, bytes], folder: bytes, max_memory: int, launcher: int, failure: int
) -> None:
    """Turn this fork into the command, or write why that failed. Never returns."""
    where = "folder"
    try:
        os.setsid()
        if LINUX:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != launcher:  # the launcher died before prctl
            return
        reset_signals()
        if max_memory:
            limit_memory(max_memory)
        os.chdir(folder)
        where = "command"
        os.execvpe(argv[0], argv, env)
    except (OSError, ValueError) as error:  # ValueError: a NUL inside
        os.write(failure, f"{where} {getattr(error, 'errno', errno.EINVAL)}".encode())
    finally:
        os._exit(127)


def limit_memory(most: int) -> None:
    """Limit how many bytes this process, and each process that it starts, may allocate. The kernel refuses more.

    RLIMIT_DATA counts private writable memory since Linux 4.7, getrlimit(2). RLIMIT_AS would also count memory that is
    only reserved: every thread of a C program reserves 64 MiB that it never touches.
    """
    import resource  # imported here because few commands have a limit

    which = resource.RLIMIT_DATA if LINUX else resource.RLIMIT_AS
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(which, (most, most))


def reset_signals() -> None:
    """Restore the default handling of signals:

    ignored signals and the signal mask survive exec (signal(7)), and Python ignores SIGPIPE.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def wake_on_signals() -> int:
    """Return a descriptor that gets the number of each SIGCHLD and SIGALRM; ignore signals meant for the runner."""
    wakeups, wake = os.pipe()
    os.set_blocking(wakeups, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the mask was inherited from the thread that started us
    return wakeups


def send(how: object, target: int, number: int) -> None:
    """Signal a process, unless it is gone or belongs to another user (sudo). ``left`` reports what survives."""
    try:
        how(target, number)  # type: ignore[operator]
    except OSError:
        return


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def descendants(root: int) -> list[Process]:
    """All processes below *root* except zombies, parents before children; empty where there is no /proc."""
    children: dict[int, list[Process]] = {}
    for entry in os.scandir("/proc") if os.path.isdir("/proc/self") else ():  # noqa: PTH112 pathlib is slow to import
        try:
            with open(f"/proc/{int(entry.name)}/stat", "rb") as file:
                stat = file.read()
        except (ValueError, OSError):  # not a process, or it is gone
            continue
        # proc(5): "pid (name) state ppid pgrp …", where the name may contain anything, even parentheses and newlines
        head, _, rest = stat.rpartition(b")")
        name = ascii(head.partition(b"(")[2].decode(errors="replace"))[1:-1]
        state, parent, group = rest.split(None, 3)[:3]
        if state not in b"ZX":
            children.setdefault(int(parent), []).append((int(entry.name), int(group), name))
    found = list(children.get(root, ()))
    for pid, _, _ in found:  # the list grows during the loop
        found += children.get(pid, ())
    return found


def names(processes: list[Process]) -> list[str]:
    shown = [f"{name} (pid {pid})" for pid, _, name in processes[:MAX_NAMES]]
    more = len(processes) - len(shown)
    return [*shown, f"{more} more"] if more else shown


def read_exactly(channel: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = os.read(channel, count - len(data))
        if not part:
            os._exit(1)  # the runner is gone; nothing was started
        data += part
    return data


def main() -> None:
    channel, parent = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(channel, False)
    # marshal is built in, and both ends are the same interpreter.
    size = int.from_bytes(read_exactly(channel, 8), "big")
    Launcher(channel, parent).run(*marshal.loads(read_exactly(channel, size)))
    os._exit(0)  # there is nothing to finalise


if __name__ == "__main__":
    main()
