"""Passes on what the command writes, at once and each stream to its own, and keeps the last of it."""

from __future__ import annotations

import fcntl
import os
import select
import stat

KEPT = 64 * 1024  # bytes of the tail
AT_ONCE = 64 * 1024  # what a pipe holds
NEVER_BLOCKS = 4096  # PIPE_BUF: so much fits where poll(2) says that something does


class OutputTail:
    """The last bytes of all that is added. ``size``: of all of it."""

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
    """One pipe that the command writes to, and where it goes."""

    def __init__(self, source: int, target: int) -> None:
        self.source = source
        self.target = target
        self.pending = b""
        self.open = True
        mode = os.fstat(target).st_mode
        self.most = AT_ONCE if stat.S_ISREG(mode) else NEVER_BLOCKS

    def close(self) -> None:
        """Let the command have its SIGPIPE."""
        if self.open:
            self.open = False
            os.close(self.source)

    def read(self) -> bytes | None:
        """What is there; b"" at the end, None if nothing is."""
        try:
            return os.read(self.source, AT_ONCE)
        except BlockingIOError:
            return None

    def write(self, most: int) -> None:
        """Write some of what is pending. A full disk loses output and not the command, as far as we can help it."""
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
    """The command's streams. Where both of ours are one, as under cron, the command gets one, too: order is kept."""

    def __init__(self) -> None:
        self.tail = OutputTail()
        self.wake = os.pipe()  # the numbers of signals that came
        os.set_blocking(self.wake[0], False)
        self.streams: list[Stream] = []
        writers = [self._pipe(1)]
        writers.append(writers[0] if _same(1, 2) else self._pipe(2))
        self.writers = (writers[0], writers[1])

    def _pipe(self, target: int) -> int:
        source, writer = os.pipe()
        # Not 0 to 2, by no chance: the caller's closed streams were opened before.
        os.set_blocking(source, False)
        self.streams.append(Stream(source, target))
        return writer

    def release_writers(self) -> None:
        """Only the command has them from now on."""
        for writer in {*self.writers}:
            os.close(writer)

    def copy_until_woken(self) -> None:
        """Pass on output until a signal comes."""
        while True:
            poll = select.poll()
            poll.register(self.wake[0], select.POLLIN)
            for stream in self.streams:
                if stream.pending:
                    poll.register(stream.target, select.POLLOUT)
                elif stream.open:
                    poll.register(stream.source, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll()}
            for stream in self.streams:
                if stream.pending:
                    if stream.target in ready:
                        stream.write(stream.most)
                elif stream.open and stream.source in ready:
                    self._take(stream)
            if self.wake[0] in ready:
                try:
                    os.read(self.wake[0], 4096)
                except BlockingIOError:
                    pass
                return

    def _take(self, stream: Stream) -> None:
        data = stream.read()
        if data is None:
            return
        if not data:
            stream.close()
            return
        self.tail.add(data)
        stream.pending = data
        if stream.most == AT_ONCE:
            stream.write(AT_ONCE)

    def take_the_rest(self) -> list[Stream]:
        """Pass on what the ended command has left in the pipes; return those that other processes still hold."""
        for stream in self.streams:
            self._write_all(stream)
            # One read: a pipe holds no more. What comes after it is from processes that the command left behind.
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


def _is_over(source: int) -> bool:
    """Whether nothing is in the pipe and no process holds its other end."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    found = poll.poll(0)
    return bool(found) and not found[0][1] & select.POLLIN


def _same(one: int, other: int) -> bool:
    """Whether two descriptors are one file, pipe or terminal."""
    try:
        first, second = os.fstat(one), os.fstat(other)
        if (first.st_dev, first.st_ino) != (second.st_dev, second.st_ino):
            return False
        if not stat.S_ISREG(first.st_mode):
            return True
        # Opened twice, a file has two positions and may have two modes.
        flags = fcntl.fcntl(one, fcntl.F_GETFL) == fcntl.fcntl(other, fcntl.F_GETFL)
        return flags and os.lseek(one, 0, os.SEEK_CUR) == os.lseek(other, 0, os.SEEK_CUR)
    except OSError:
        return False


def stay_for_the_others(streams: list[Stream]) -> None:
    """Leave a process behind that passes on what the command's background processes write, until they close it.

    Without a reader they would die of SIGPIPE at their next word. Whoever waits for our output (cron, a shell's pipe)
    waits for that of the background, as if exec were not there.
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
        _pass_on(streams)
    finally:
        os._exit(0)


def signals_as_before() -> None:
    """In a process that was forked from exec: none of its handlers."""
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


def _pass_on(streams: list[Stream]) -> None:
    while any(stream.open for stream in streams):
        poll = select.poll()
        for stream in streams:
            if stream.pending:
                poll.register(stream.target, select.POLLOUT)
            elif stream.open:
                poll.register(stream.source, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        for stream in streams:
            if stream.pending and stream.target in ready:
                stream.write(stream.most)
            elif stream.open and not stream.pending and stream.source in ready:
                data = stream.read()
                if data:
                    stream.pending = data
                elif data is not None:
                    stream.close()
