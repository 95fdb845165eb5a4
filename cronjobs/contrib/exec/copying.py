"""Forward the command's stdout and stderr as they arrive, and keep the end of the output."""

from __future__ import annotations

import fcntl
import os
import select
import stat

KEPT = 64 * 1024  # number of bytes to keep from the end of the output
AT_ONCE = 64 * 1024  # number of bytes to read at once, which is a pipe's capacity
# PIPE_BUF: once poll(2) reports that a pipe is writable, a write of this many bytes does not block.
NEVER_BLOCKS = 4096


class OutputTail:
    """Keeps the last bytes of the output. ``size`` counts all bytes added."""

    def __init__(self, most: int = KEPT) -> None:
        self.most = most
        self.size = 0
        self._kept = bytearray()

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self._kept += data
        if len(self._kept) > 2 * self.most:
            del self._kept[: -self.most]

    def clear(self) -> None:
        self._kept.clear()

    def bytes(self) -> bytes:
        return bytes(self._kept[-self.most :])


class Stream:
    """A pipe that the command writes to, and the descriptor to forward to."""

    def __init__(self, source: int, target: int) -> None:
        self.source = source
        self.target = target
        self.pending = b""
        self.open = True
        mode = os.fstat(target).st_mode
        self.most = AT_ONCE if stat.S_ISREG(mode) else NEVER_BLOCKS

    def close(self) -> None:
        """Close our end of the pipe, so that the command gets SIGPIPE when it writes again."""
        if self.open:
            self.open = False
            os.close(self.source)

    def read(self) -> bytes | None:
        """Return the available bytes, b"" at EOF, or None if no bytes are available yet."""
        try:
            return os.read(self.source, AT_ONCE)
        except BlockingIOError:
            return None

    def step(self, ready: set[int]) -> bytes:
        """If output is pending, write some of it and return b"". Otherwise read more output and return it.

        Use only descriptors in *ready*, the set that poll(2) has found ready.
        """
        if self.pending:
            if self.target in ready:
                self.write(self.most)
            return b""
        data = self.read() if self.open and self.source in ready else None
        if data == b"":
            self.close()
        self.pending = data or b""
        if self.pending and self.most == AT_ONCE:
            self.write(AT_ONCE)
        return data or b""

    def write(self, most: int) -> None:
        """Write some pending output. If the disk is full, drop the output, so that the command does not fail."""
        try:
            self.pending = self.pending[os.write(self.target, self.pending[:most]) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.pending = b""
            self.close()
        except OSError:
            self.pending = b""


class Copier:
    """The pipes for the command's stdout and stderr.

    If our own stdout and stderr are the same file, as they are under cron, the command gets one pipe for both, which
    keeps its output in order.
    """

    def __init__(self) -> None:
        self.tail = OutputTail()
        # Python writes the number of each arriving signal to this pipe (set_wakeup_fd).
        self.wake = os.pipe()
        os.set_blocking(self.wake[0], False)
        self.streams: list[Stream] = []
        writers = [self._pipe(1)]
        writers.append(writers[0] if _same(1, 2) else self._pipe(2))
        self.writers = (writers[0], writers[1])

    def _pipe(self, target: int) -> int:
        source, writer = os.pipe()
        # No end of these pipes is 0, 1 or 2: open_standard_streams has opened the standard streams that our caller had
        # closed.
        os.set_blocking(source, False)
        self.streams.append(Stream(source, target))
        return writer

    def release_writers(self) -> None:
        """Close our write ends of the pipes, so that only the command holds write ends."""
        for writer in {*self.writers}:
            os.close(writer)

    def copy_until_woken(self) -> None:
        """Forward output until a signal arrives."""
        while True:
            ready = _wait(self.streams, self.wake[0])
            for stream in self.streams:
                self.tail.add(stream.step(ready))
            if self.wake[0] in ready:
                try:
                    os.read(self.wake[0], 4096)
                except BlockingIOError:
                    pass
                return

    def take_the_rest(self) -> list[Stream]:
        """Forward what the ended command left in the pipes. Return the pipes that other processes still hold open."""
        for stream in self.streams:
            self._write_all(stream)
            # One read empties the pipe. Any later bytes come from the command's background processes.
            if stream.open:
                data = stream.read()
                if data:
                    self.tail.add(data)
                    stream.pending = data
                    self._write_all(stream)
                    data = stream.read() if stream.open and _is_over(stream.source) else None
                if data == b"":
                    stream.close()
        return [stream for stream in self.streams if stream.open]

    @staticmethod
    def _write_all(stream: Stream) -> None:
        while stream.pending:
            poll = select.poll()
            poll.register(stream.target, select.POLLOUT)
            poll.poll()
            stream.write(stream.most)


def _wait(streams: list[Stream], wake: int | None = None) -> set[int]:
    """Wait until a stream can read or write, or until *wake* is readable. Return the descriptors that are ready."""
    poll = select.poll()
    if wake is not None:
        poll.register(wake, select.POLLIN)
    for stream in streams:
        if stream.pending:
            poll.register(stream.target, select.POLLOUT)
        elif stream.open:
            poll.register(stream.source, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll()}


def _is_over(source: int) -> bool:
    """Whether the pipe is empty and no process holds its write end."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    found = poll.poll(0)
    return bool(found) and not found[0][1] & select.POLLIN


def _same(one: int, other: int) -> bool:
    """Whether two descriptors refer to the same file, pipe or terminal."""
    try:
        first, second = os.fstat(one), os.fstat(other)
        if (first.st_dev, first.st_ino) != (second.st_dev, second.st_ino):
            return False
        if not stat.S_ISREG(first.st_mode):
            return True
        # If a regular file was opened twice, each descriptor has its own position, and perhaps its own mode. Then the
        # output of one descriptor must not go to the other.
        flags = fcntl.fcntl(one, fcntl.F_GETFL) == fcntl.fcntl(other, fcntl.F_GETFL)
        return flags and os.lseek(one, 0, os.SEEK_CUR) == os.lseek(other, 0, os.SEEK_CUR)
    except OSError:
        return False


def stay_for_the_others(streams: list[Stream]) -> None:
    """Fork a process that forwards the output of the command's background processes until they close the pipes.

    Without a reader, SIGPIPE would kill those processes at their next write. The forked process also keeps our output
    open, so cron or a shell's pipe waits for the background processes, just as without exec.
    """
    try:
        if os.fork():
            for stream in streams:
                stream.close()
            return
    except OSError:
        return
    try:
        signals_as_before()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        close_all_but([stream.source for stream in streams])
        while any(stream.open for stream in streams):
            ready = _wait(streams)
            for stream in streams:
                stream.step(ready)
    finally:
        os._exit(0)


def signals_as_before() -> None:
    """Reset the signal handlers in a process forked from exec."""
    from _signal import NSIG, SIG_DFL, getsignal, set_wakeup_fd, signal  # type: ignore[import-not-found]

    set_wakeup_fd(-1)
    for number in range(1, NSIG):
        if callable(getsignal(number)):
            signal(number, SIG_DFL)


def close_all_but(kept: list[int]) -> None:
    """Close every descriptor above 2 except *kept*."""
    at = 3
    for descriptor in sorted(kept):
        os.closerange(at, descriptor)
        at = descriptor + 1
    os.closerange(at, os.sysconf("SC_OPEN_MAX"))
