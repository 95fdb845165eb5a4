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
- **A frozen runner** (SIGSTOP) sends no orders. In that case a kernel timer makes the launcher kill everything after
  timeout + grace, or before the lease ends, because another runner may take the job after the end of the lease. The
  runner reports each renewal of the lease.
- **Disk.** The command's output goes to our standard output, which is one unlinked file. As the file grows, the
  launcher frees the disk space of the file's middle.

The runner sends orders. C means: send SIGTERM to the command. T means: send SIGTERM to all processes. K means: send
SIGKILL until all are gone. R is followed by eight bytes, which give the milliseconds that are left of the lease. The
launcher sends reports, as lines of tab-separated fields: ``failed WHERE ERRNO`` (nothing was started); ``started PID``;
``signalled NAME…``; ``exited CODE STOPPED``, where STOPPED says whether the command was signalled before it ended;
``left NAME…`` (processes that could not be killed). Then the stream ends.

Systems other than Linux have neither subreapers nor PR_SET_PDEATHSIG, so only the command's process group is killed
there. Every import here delays every command, so this module does without typing (4 ms), pathlib and socket.
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

# The launcher checks the output's size, and whether its parent is alive, once in this time.
TICK_MS = 100
KILL_TICK_MS = 10
# The launcher sends SIGKILL in this many rounds, which take 3 s. Processes that survive them belong to another user, or
# are stuck in the kernel.
KILL_ROUNDS = 300
# This many bytes stay on disk at the beginning and at the end of the output. The runner reads less than that.
KEEP_AT_EACH_END = 1024 * 1024
# A report contains at most this many names of processes. That many fit into the socket's buffer, so a report never
# blocks, even if the runner is frozen.
MAX_NAMES = 8

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
        # The command's pid, which is also its process group and session.
        self.command = 0
        self.ended = False  # true if the command has ended
        self.stopped = False  # true if we have sent the command a signal
        self.killing = False
        self.limit_at = 0.0  # when to kill everything, on the monotonic clock
        self.orders_unread = b""
        # The middle of the output has been freed up to this offset.
        self.punched = 0

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
        # Set the timer after the fork, because only the launcher needs it. (A child would not inherit it; see fork(2).)
        self.stand_at_end_of(leased_s)
        poller = select.poll()
        poller.register(self.channel, select.POLLIN)
        poller.register(self.wakeups, select.POLLIN)
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
            ready = [fd for fd, _ in poller.poll(KILL_TICK_MS if self.killing else TICK_MS)]
            woken_by = os.read(self.wakeups, 4096) if self.wakeups in ready else b""
            if self.channel in ready and not self.read_orders():
                poller.unregister(self.channel)
                self.killing = True
            if signal.SIGALRM in woken_by or os.getppid() != self.parent:
                self.killing = True

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
        """Fork, and exec the command. Report whether that worked, and return True if it did."""
        # Both ends of the pipe close on exec, so end of file means that exec succeeded.
        outcome, failure = os.pipe()
        launcher = os.getpid()
        # The launcher has only one thread, so no other thread can hold a lock in the forked copy.
        self.command = os.fork()
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
        """Send a signal to every descendant once. Processes that are forked during this call get their signal in the
        next round.
        """
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
        """Free the disk space under the output's middle.

        The file keeps its size, so the runner knows how many bytes are missing.
        """
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
    argv: list[bytes], env: dict[bytes, bytes], folder: bytes, max_memory: int, launcher: int, failure: int
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
    """Return a descriptor from which the number of each SIGCHLD and SIGALRM can be read. Ignore signals meant for the
    runner.
    """
    wakeups, wake = os.pipe()
    os.set_blocking(wakeups, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, lambda *_: None)
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
        # The format is "pid (name) state ppid pgrp …", see proc(5). The name may contain anything, even parentheses and
        # newlines.
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
