"""Starts one command, and is responsible for every process that the command starts. Run as a script, never imported.

    runner ──socket── launcher ── command ── what it starts, and what that starts …

The launcher is a separate process, because only a separate process can clean up if the runner gets a kill -9. A process
that was killed cannot kill others, PR_SET_PDEATHSIG reaches only the direct child, and a ``preexec_fn`` may deadlock in
a process with threads (see the docs of subprocess). The launcher is as simple as possible and makes no decisions. The
runner decides when to send signals, and the launcher finds the processes that must get them.

- **No process escapes.** The launcher is a subreaper (PR_SET_CHILD_SUBREAPER, prctl(2)). If the parent of a process
  that the command started dies, that process becomes the launcher's child, even if it is in another session. So when
  the launcher has no children (ECHILD), no process is left. The only exception is ``leave_running``: if the command has
  ended by itself, the launcher lets the remaining processes run on.
- **Death with the runner.** When the runner dies, its end of the socket closes, and the launcher kills everything. If a
  forked copy of the runner keeps that end open, ``getppid`` shows that the runner is dead. PR_SET_PDEATHSIG would not
  help the launcher here, because it takes effect when the thread that started a process ends. But if the launcher
  itself is killed, PR_SET_PDEATHSIG kills at least the command.
- **A frozen runner** (SIGSTOP) sends no orders. In that case the launcher kills everything by its own clock, after
  timeout + grace, or before the lease ends, because another runner may take the job after the end of the lease. The
  runner reports each renewal of the lease. It sends instants of the monotonic clock, which all processes of a host
  share. A launcher that was late, or frozen itself, would measure a span from the wrong start.
- **A late launcher** starts nothing if the runner is gone, or the lease is over. A freeze may come after that check.
  So the forked process has a kernel timer that kills it at the end of the lease, unless it has become the command by
  then. What remains: if the launcher and its command thaw together after the end of the lease, the command runs until
  the launcher gets the CPU, which takes milliseconds. If only the launcher is frozen, and its runner is frozen or dead,
  the command runs on. Without kernel timers (macOS), a freeze just before exec also delays the command past its lease.
- **Disk.** The command's output goes to our standard output, which is one unlinked file. As the file grows, the
  launcher frees the disk space of the file's middle.

The runner sends orders. C means: send SIGTERM to the command. T means: send SIGTERM to all processes. K means: send
SIGKILL until all are gone. If C, T or K arrives first, the launcher starts nothing. R is followed by eight bytes,
which give the new end of the lease, in milliseconds of the monotonic clock. The launcher sends reports, as lines of
tab-separated fields: ``failed WHERE ERRNO`` (nothing was started; WHERE is "late" if it was too late); ``started PID``;
``signalled NAME…``; ``exited CODE STOPPED``, where STOPPED says whether the command was signalled before it ended;
``left NAME…`` (processes that could not be killed). Then the stream ends.

Systems other than Linux have neither subreapers nor PR_SET_PDEATHSIG, so the launcher kills only the command's process
group there. Every import here delays every command, so this module does without typing (4 ms), pathlib and socket.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import select
import signal
import struct
import sys
import time

# The launcher checks the output's size, and whether its parent is alive, at this interval.
TICK_MS = 100
KILL_TICK_MS = 10
# Send SIGKILL in this many rounds, which take 3 s. What survives belongs to another user, or is stuck in the kernel.
KILL_ROUNDS = 300
# This many bytes stay on disk at the beginning and at the end of the output. The runner reads less than that.
KEEP_AT_EACH_END = 1024 * 1024
# Name at most this many processes in a report, so that it fits into the socket's buffer, and never blocks.
MAX_NAMES = 8

# This failure means that nothing was started, because the lease or the time limit is over, or the runner is gone.
LATE = ("late", str(errno.ETIME))

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
FALLOC_FL_KEEP_SIZE = 1  # linux/falloc.h
FALLOC_FL_PUNCH_HOLE = 2
CLOCK_MONOTONIC = 1  # linux/time.h
TIMER_ABSTIME = 1
SIGEV_SIGNAL = 0  # asm-generic/siginfo.h

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
        self.poller = select.poll()
        self.poller.register(self.channel, select.POLLIN)
        self.poller.register(self.wakeups, select.POLLIN)
        # The command's pid, which is also its process group and session.
        self.command = 0
        self.ended = False  # true if the command has ended
        self.stopped = False  # true if we have sent the command a signal
        self.killing = False
        # When to kill everything, on the monotonic clock: at the time limit, or earlier if the lease ends earlier.
        self.limit_at = self.ends_at = 0.0
        self.orders_unread = b""
        # The middle of the output has been freed up to this offset.
        self.punched = 0

    def run(
        self,
        argv: list[bytes],
        env: dict[bytes, bytes],
        folder: bytes,
        limit_at: float,
        max_memory: int,
        leased_until: float | None,
        leave_running: bool,
    ) -> None:
        self.limit_at = limit_at
        self.ends_at = limit_at if leased_until is None else min(limit_at, leased_until)
        # Read all orders that have arrived: the lease may have been renewed, and the runner may be gone.
        while self.look(0):
            pass
        if self.killing:
            self.report("failed", *LATE)
            return
        if not self.start(argv, env, folder, max_memory):
            return
        # The time limit or the lease ended during the start. The kernel's timer may have killed the child, which then
        # counts as stopped.
        if time.monotonic() >= self.ends_at:
            self.killing = self.stopped = True
        rounds = 0
        while self.anyone_left():
            if self.ended and leave_running and not self.stopped:
                # Leave the remaining processes. They become children of init, or of a subreaper above us.
                return
            if self.killing:
                self.signal_all(signal.SIGKILL, tell=rounds == 0)
                rounds += 1
            if rounds > KILL_ROUNDS:
                self.report("left", *names(descendants(os.getpid())))
                return
            self.punch_output()
            left_ms = max(0.0, self.ends_at - time.monotonic()) * 1000
            self.look(KILL_TICK_MS if self.killing else min(TICK_MS, left_ms))

    def look(self, timeout_ms: float) -> bool:
        """Wait for orders and signals, and decide whether everything has to be killed. Return whether any came."""
        ready = [fd for fd, _ in self.poller.poll(timeout_ms)]
        if self.wakeups in ready:
            os.read(self.wakeups, 4096)
        if self.channel in ready and not self.read_orders():
            self.poller.unregister(self.channel)
            self.killing = True
        if time.monotonic() >= self.ends_at or os.getppid() != self.parent:
            self.killing = True
        return bool(ready)

    def read_orders(self) -> bool:
        """Carry out the runner's orders. Return whether the runner is still alive."""
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
                self.ends_at = min(self.limit_at, int.from_bytes(self.orders_unread[1:9], "big") / 1000)
            elif order == b"K" or not self.command:
                self.killing = True
            elif order == b"C" and self.anyone_left() and not self.ended:
                self.stopped = True
                send(os.kill, self.command, signal.SIGTERM)
                send(os.kill, self.command, signal.SIGCONT)
            elif order == b"T" and self.anyone_left():
                self.signal_all(signal.SIGTERM, tell=True)
            self.orders_unread = self.orders_unread[9 if order == b"R" else 1 :]
        return bool(data)

    def start(self, argv: list[bytes], env: dict[bytes, bytes], folder: bytes, max_memory: int) -> bool:
        """Fork, and exec the command. Report whether that worked, and return True if it did."""
        # Both ends of the pipe close on exec, so end of file means that exec succeeded.
        outcome, failure = os.pipe()
        launcher = os.getpid()
        # The launcher has only one thread, so no other thread can hold a lock in the forked copy.
        self.command = os.fork()
        if self.command == 0:
            become(argv, env, folder, max_memory, launcher, failure, self.ends_at)
        os.close(failure)
        failed = os.read(outcome, 64)
        os.close(outcome)
        if failed:
            self.report("failed", *failed.decode().split())
            return False
        self.report("started", str(self.command))
        return True

    def anyone_left(self) -> bool:
        """Reap dead children, and report the command's end. Return whether any process is left."""
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
        """Send a signal to every descendant once. Processes that are forked meanwhile get it in the next round."""
        self.stopped = True
        everyone = descendants(os.getpid()) if self.subreaper else []
        if tell:
            self.report("signalled", *names(everyone))
        # Signal the whole group in one call, so that no member can escape by forking in between. Then list the
        # processes again, to find those outside the group. With the old list, a process that has left the group in
        # between, by calling setsid, would get no signal or two signals.
        if not self.ended or not self.subreaper or self.command in [group for _, group, _ in everyone]:
            send(os.killpg, self.command, number)
        for pid, group, _ in descendants(os.getpid()) if self.subreaper else ():
            if group != self.command:
                send(os.kill, pid, number)
            # A stopped process acts on SIGTERM only after SIGCONT.
            send(os.kill, pid, signal.SIGCONT)

    def punch_output(self) -> None:
        """Free the disk space under the output's middle. The file keeps its size, which says how much is missing."""
        size = os.fstat(1).st_size
        # The file has become shorter: the command has truncated it, for example with ``> /dev/stdout``.
        if size < self.punched:
            self.punched = 0
        start = max(self.punched, KEEP_AT_EACH_END)
        end = size - KEEP_AT_EACH_END
        if LINUX and end - start >= KEEP_AT_EACH_END:
            # If the file system cannot make holes, this call returns EOPNOTSUPP, and the output stays whole. The runner
            # then ends a command whose output gets too large.
            libc.fallocate(1, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, end - start)
            self.punched = end

    def report(self, *fields: str) -> None:
        try:
            os.write(self.channel, ("\t".join(fields) + "\n").encode())
        # The runner is gone. ``read_orders`` will detect that.
        except OSError:
            return


def become(
    argv: list[bytes],
    env: dict[bytes, bytes],
    folder: bytes,
    max_memory: int,
    launcher: int,
    failure: int,
    ends_at: float,
) -> None:
    """Turn this forked process into the command, or write to *failure* why that is impossible. Never returns."""
    where = "folder"
    try:
        os.setsid()
        if LINUX:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The launcher died before the prctl call, so the kernel will not kill this process.
        if os.getppid() != launcher:
            return
        kill_at(ends_at)
        # This process may have been frozen before the timer was set, or there is no timer.
        if time.monotonic() >= ends_at:
            os.write(failure, " ".join(LATE).encode())
            return
        reset_signals()
        if max_memory:
            limit_memory(max_memory)
        os.chdir(folder)
        where = "command"
        os.execvpe(argv[0], argv, env)
    # A ValueError means that an argument contains a NUL.
    except (OSError, ValueError) as error:
        os.write(failure, f"{where} {getattr(error, 'errno', errno.EINVAL)}".encode())
    finally:
        os._exit(127)


def kill_at(instant: float) -> None:
    """Let the kernel kill this process at *instant* of the monotonic clock, unless it calls exec before that.

    SIGKILL also ends a stopped process. Exec removes a POSIX timer, but not the timer of setitimer or alarm: execve(2).
    If the kernel refuses to set a timer, this function does nothing.
    """
    if not LINUX:
        return
    try:
        # Before glibc 2.34, these functions are in librt.
        library = libc if hasattr(libc, "timer_create") else ctypes.CDLL("librt.so.1")
    except OSError:
        return
    timer = ctypes.c_void_p()
    event = struct.pack("Pii52x", 0, signal.SIGKILL, SIGEV_SIGNAL)  # struct sigevent, see sigevent(3type)
    if library.timer_create(CLOCK_MONOTONIC, event, ctypes.byref(timer)) == 0:
        when = struct.pack("4l", 0, 0, int(instant), int(instant % 1 * 1e9))  # struct itimerspec
        library.timer_settime(timer, TIMER_ABSTIME, when, None)


def limit_memory(most: int) -> None:
    """Limit how many bytes this process, and each process that it starts, may allocate. The kernel refuses more.

    Since Linux 4.7, RLIMIT_DATA counts private writable memory (getrlimit(2)). RLIMIT_AS would also count memory that
    is only reserved: every thread of a C program reserves 64 MiB that it never touches.
    """
    # Imported only here, because few commands have a limit.
    import resource

    which = resource.RLIMIT_DATA if LINUX else resource.RLIMIT_AS
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(which, (most, most))


def reset_signals() -> None:
    """Restore the default handling of signals.

    Without this, the command would inherit ignored signals and the signal mask, because both survive exec (signal(7)).
    Python itself ignores SIGPIPE.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def wake_on_signals() -> int:
    """Return a descriptor from which the number of each SIGCHLD can be read. Ignore signals meant for the runner."""
    wakeups, wake = os.pipe()
    os.set_blocking(wakeups, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    # The launcher has inherited the signal mask of the thread that started it. Unblock all signals.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return wakeups


def send(how: object, target: int, number: int) -> None:
    """Send the signal *number* to a process or a group.

    Do nothing if the process is gone, or belongs to another user (sudo). The report ``left`` names processes that
    survive.
    """
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
    """Return all processes below *root* except zombies, parents before children. Without /proc, return none."""
    children: dict[int, list[Process]] = {}
    for entry in os.scandir("/proc") if os.path.isdir("/proc/self") else ():  # noqa: PTH112 pathlib is slow to import
        try:
            with open(f"/proc/{int(entry.name)}/stat", "rb") as file:
                stat = file.read()
        # The entry is not a process, or the process is gone.
        except (ValueError, OSError):
            continue
        # The format is "pid (name) state ppid pgrp …", see proc(5). The name may contain parentheses and newlines.
        head, _, rest = stat.rpartition(b")")
        name = ascii(head.partition(b"(")[2].decode(errors="replace"))[1:-1]
        state, parent, group = rest.split(None, 3)[:3]
        if state not in b"ZX":
            children.setdefault(int(parent), []).append((int(entry.name), int(group), name))
    found = list(children.get(root, ()))
    # The loop also visits the processes that it adds to the list.
    for pid, _, _ in found:
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
            # The runner is gone, and has not sent the whole request. Nothing was started.
            os._exit(1)
        data += part
    return data


def main() -> None:
    channel, parent = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(channel, False)
    # marshal is built in. Both ends run the same version of Python, so they agree on its format.
    size = int.from_bytes(read_exactly(channel, 8), "big")
    Launcher(channel, parent).run(*marshal.loads(read_exactly(channel, size)))
    # Exit at once, because there is nothing to finalise.
    os._exit(0)


if __name__ == "__main__":
    main()
